"""The scenarios ``nested``, an agent that uses an agent as a tool, and whose conversation is too long for its model, and ``nested waits``,
where a call of the inner agent waits for approval."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scenario import ANSWER, Ledger, Point, Probed, ProbedModel, ProbedStore

from littleghost import Agent, Compaction, Message, ModelRequest, RunContext, ToolUse
from littleghost.testing import FunctionModel

WINDOW = 800
"""Tokens. What `Catalogue` gives fills most of it."""

INNER_ANSWER = "A7 is ordered and reserved."


class Catalogue(Probed):
    """A tool with a long result."""

    async def call(self, arguments: dict[str, Any], context: RunContext) -> Any:
        return f"{await super().call(arguments, context)} {'x' * 2400}"


class Named(ProbedModel):
    """A model whose points say whose they are."""

    def __init__(self, who: str, point: Point, reply: Any) -> None:
        async def named(name: str) -> None:
            await point(f"{who} {name}")

        self._point, self._inner = named, FunctionModel(reply)


def _calls(*uses: tuple[str, str]) -> Message:
    return Message.assistant(
        [
            ToolUse(id=f"call{number}", name=name, input={"task" if name == "buyer" else "sku": given})
            for number, (name, given) in enumerate(uses)
        ]
    )


def outer_reply(request: ModelRequest) -> Message | str:
    """Answer by how many results there are, those in the summary included."""
    noted = re.search(r"results: (\d+)", request.messages[1].text)
    answered = sum(len(message.tool_results) for message in request.messages) + (
        int(noted[1]) if noted else 0
    )
    if not answered:
        return _calls(("look", "A7"), ("buyer", "Order A7."))
    return _calls(("order", "B2")) if answered == 2 else ANSWER


def inner_reply(request: ModelRequest) -> Message | str:
    """Order and reserve, and say so."""
    answered = [result for message in request.messages for result in message.tool_results]
    return INNER_ANSWER if answered else _calls(("order", "A7"), ("reserve", "A7"))


def make(folder: Path, point: Point, granularity: str, scenario: str) -> tuple[Agent, ProbedStore]:
    """Return the agent of the scenario and the store that it uses."""
    ledger = Ledger(folder / "effects")

    def summary(request: ModelRequest) -> str:
        text = request.messages[-1].text
        ledger.enter("summary", text)
        before = re.search(r"results: (\d+)", text)
        return f"results: {(int(before[1]) if before else 0) + len(re.findall(r'^(?:result|error): ', text, re.MULTILINE))}"

    reserve = Probed("reserve", point, ledger, idempotent=True)
    reserve.needs_approval = scenario == "nested waits"
    buyer = Agent(
        Named("inner", point, inner_reply),
        tools=[Probed("order", point, ledger, state=True), reserve],
        name="buyer",
    )
    tools = [
        Catalogue("look", point, None),
        Probed("order", point, ledger, state=True),
        buyer.as_tool(),
    ]
    store = ProbedStore(folder / "sessions.db")
    store.point = point
    store.granularity = granularity  # type: ignore[assignment]
    compaction = Compaction(window=WINDOW, model=Named("summary", point, summary))
    return Agent(
        Named("outer", point, outer_reply),
        instructions="You order things.",
        tools=tools,
        compaction=compaction,
    ), store
