"""Agents that use every kind of tool, and a point before and after each of their effects where they can be stopped.

The one of ``text`` only runs tools; those of ``tool`` and ``native`` answer in a type; that of ``waits`` has hooks, a budget, a tool that
retries, and calls that wait for a person or for a result from elsewhere.

Run as a program it performs a list of scenarios, each in a process of its own that is killed at a point by ``SIGKILL``::

    python scenario.py FOLDER < scenarios.jsonl > results.jsonl
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from littleghost import (
    Agent,
    Approval,
    Budget,
    Hooks,
    Message,
    Model,
    Output,
    Run,
    RunContext,
    Runtime,
    SessionNotFoundError,
    SQLiteStore,
    Text,
    Tool,
    ToolRetry,
    ToolUse,
)
from littleghost.testing import FunctionModel

TYPED = '{"total":2}'
QUESTION, ANSWER = "Order two of A7 and one of B2.", "All is ordered."
Point = Callable[[str], Awaitable[None]]


class Total(Struct):
    """How many articles were ordered."""

    total: int


class Points:
    """Counts the points that a run passes, and acts at one of them."""

    def __init__(self, at: int | None, act: Callable[[], Any]) -> None:
        self.names: list[str] = []
        self._at = at
        self._act = act

    async def __call__(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self._at:
            acted = self._act()
            if asyncio.iscoroutine(acted):
                await acted


class Ledger:
    """A file that knows how often each call took effect, whatever the library believes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def enter(self, kind: str, key: str) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, json.dumps([kind, key]).encode() + b"\n")
        os.fsync(file)
        os.close(file)

    def counts(self) -> dict[tuple[str, str], int]:
        counted: dict[tuple[str, str], int] = {}
        for line in self._path.read_text().splitlines() if self._path.exists() else []:
            kind, key = json.loads(line)
            counted[kind, key] = counted.get((kind, key), 0) + 1
        return counted


class Probed(Tool):
    """A tool with a point before its effect, between effect and end, and after its end."""

    description = "One tool of the scenario."
    schema: ClassVar = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}

    def __init__(
        self, name: str, point: Point, ledger: Ledger | None, *, idempotent: bool = False, state: bool = False
    ) -> None:
        self.name, self.idempotent = name, idempotent
        self._point, self._ledger, self._state = point, ledger, state

    async def call(self, arguments: dict[str, Any], context: RunContext) -> Any:
        await self._point(f"{self.name} starts")
        if self._ledger is not None:
            self._ledger.enter(f"{self.name} {arguments['sku']}", str(context.idempotency_key))
            await self._point(f"{self.name} took effect")
        if self._state:
            context.state["ordered"] = [*context.state.get("ordered", []), arguments["sku"]]
        await asyncio.sleep(0)
        await self._point(f"{self.name} ends")
        return f"{self.name} {arguments['sku']} done"


class Flaky(Probed):
    """A tool whose first attempt in each process fails in a way that passes."""

    failed = False

    async def call(self, arguments: dict[str, Any], context: RunContext) -> Any:
        if not self.failed:
            self.failed = True
            await self._point("flaky fails")
            raise ToolRetry("not yet", after=0)
        return await super().call(arguments, context)


class ProbedHooks(Hooks):
    """Hooks with a point in each; they ask for a second one of every article that is looked at."""

    def __init__(self, point: Point) -> None:
        self._point = point

    async def before_run(self, *_: Any) -> None:
        await self._point("before run")

    async def before_model(self, *_: Any) -> None:
        await self._point("before model")

    async def after_model(self, *_: Any) -> None:
        await self._point("after model")

    async def before_tool(self, context: RunContext, call: ToolUse) -> ToolUse | None:
        await self._point("before tool")
        return msgspec.structs.replace(call, input={"sku": "A7 twice"}) if call.name == "look" else None

    async def after_tool(self, *_: Any) -> None:
        await self._point("after tool")

    async def after_run(self, *_: Any) -> None:
        await self._point("after run")


class ProbedModel(Model):
    """A model with a point before and after each answer, and in the middle of its text."""

    def __init__(self, point: Point, scenario: str) -> None:
        self._point = point
        self._inner = FunctionModel(REPLIES[scenario])
        self.capabilities = frozenset({"answer_format", "tool_choice"})

    async def stream(self, request: Any) -> Any:
        await self._point("model starts")
        async for event in self._inner.stream(request):
            yield event
            await self._point("model streams")


class ProbedStore(SQLiteStore):
    """A store with a point before and after each commit."""

    point: Point

    async def append(self, *args: Any, **options: Any) -> Any:
        await self.point("commit starts")
        answer = await super().append(*args, **options)
        await self.point("commit ends")
        return answer


def reply(request: Any) -> Message | str:
    """Answer by what the conversation holds, so that it makes no difference who asks."""
    return _next(request, [[("look", "A7"), ("order", "A7"), ("reserve", "A7")], [("order", "B2")]])


def reply_waiting(request: Any) -> Message | str:
    """Do the same for the scenario in which calls wait."""
    first = [("look", "A7"), ("order", "A7"), ("weigh", "A7"), ("reserve", "A7"), ("discard", "A7")]
    return _next(request, [first, [("flaky", "B2")]])


ANSWERS: dict[str, Any] = {
    "order": {"approvals": Approval(approved=True, arguments={"sku": "A8"})},
    "reserve": {"approvals": True},
    "discard": {"approvals": Approval(approved=False, reason="Keep it.")},
    "weigh": {"results": "12 kg"},
}
"""What a person answers to the calls of each tool that wait."""


def _next(request: Any, turns: list[list[tuple[str, str]]]) -> Message | str:
    answered = [result for message in request.messages for result in message.tool_results]
    done = 0
    for uses in turns:
        if len(answered) == done:
            break
        done += len(uses)
    else:
        return ANSWER
    calls = [
        ToolUse(id=f"call{number}", name=name, input={"sku": sku}) for number, (name, sku) in enumerate(uses)
    ]
    return Message.assistant([Text("Working on it. "), *calls])


def reply_by_tool(request: Any) -> Message:
    """Order, with an answer that does not fit; then order, with one that fits."""
    answered = sum(len(message.tool_results) for message in request.messages)
    order = [ToolUse(id="order", name="order", input={"sku": "B2" if answered else "A7"})]
    answer = ToolUse(id="answer", name="final_answer", input={"total": 2 if answered else "two"})
    return Message.assistant([*order[: answered <= 2], answer])


def reply_in_json(request: Any) -> Message | str:
    """Order, give an answer that does not fit, and mend it when told so."""
    if not any(message.tool_results for message in request.messages):
        return Message.assistant([ToolUse(id="order", name="order", input={"sku": "A7"})])
    return TYPED if request.messages[-1].text.startswith("The answer cannot be used") else '{"total":"two"}'


REPLIES: dict[str, Callable[[Any], Message | str]] = {
    "text": reply,
    "tool": reply_by_tool,
    "native": reply_in_json,
    "waits": reply_waiting,
}


def make(
    folder: Path, point: Point, granularity: str, scenario: str = "text"
) -> tuple[Agent[Any], ProbedStore]:
    """Return the agent of a scenario and the store that it uses."""
    if scenario.startswith("nested"):
        return importlib.import_module("nested").make(folder, point, granularity, scenario)
    ledger = Ledger(folder / "effects")
    waits = scenario == "waits"
    tools = [
        Probed("look", point, None),
        Probed("order", point, ledger, state=True),
        Probed("reserve", point, ledger, idempotent=True),
    ]
    if waits:
        discard, weigh = Probed("discard", point, ledger), Probed("weigh", point, ledger)
        for each in [*tools[1:], discard]:
            each.needs_approval = True
        weigh.external = True
        tools += [discard, weigh, Flaky("flaky", point, ledger, idempotent=True)]
    store = ProbedStore(folder / "sessions.db")
    store.point = point
    store.granularity = granularity  # type: ignore[assignment]
    output = Output(Total, strategy=scenario) if scenario in ("tool", "native") else None  # type: ignore[arg-type]
    agent: Agent[Any] = Agent(
        ProbedModel(point, scenario),
        instructions="You order things.",
        tools=tools,
        output=output,
        hooks=[ProbedHooks(point)] if waits else (),
        budget=Budget(turns=50) if waits else None,
        name="orders" if waits else "agent",
    )
    return agent, store


async def answer(runtime: Runtime, agent: Agent[Any], run: Run[Any], point: Point, **who: Any) -> Run[Any]:
    """Answer what a run waits for, one call after another, until it waits for nothing."""
    while run.outcome == "suspended":
        await point("suspended")
        call = run.pending[-1]
        given = {kind: {call.id: value} for kind, value in ANSWERS[call.name].items()}
        run = await runtime.resume(agent, **who, **given)
    return run


async def perform(folder: Path, how: str, point: Points, granularity: str, scenario: str) -> dict[str, Any]:
    """Ask, or go on, and return what became of it."""
    agent, store = make(folder, point, granularity, scenario)
    async with Runtime(session_store=store) as runtime:
        who = {"session_id": "s", "actor_id": "a"}
        if how == "resume":
            try:
                run = await runtime.resume(agent, **who)
            except SessionNotFoundError:
                run = await runtime.ask(agent, QUESTION, **who)
        else:
            run = await runtime.ask(agent, QUESTION, **who)
        run = await answer(runtime, agent, run, point, **who)
    await store.aclose()
    if scenario in ("tool", "native"):
        assert run.output == Total(total=2)
    return {"outcome": run.outcome, "text": run.text, "steps": run.steps, "points": point.names}


def main() -> None:
    """Perform each scenario from standard input in a child process, and say how it ended."""
    root = Path(sys.argv[1])
    for line in sys.stdin:
        job = json.loads(line)
        folder = root / job["folder"]
        folder.mkdir(exist_ok=True)
        child = os.fork()
        if child == 0:
            result = folder / "result"
            result.unlink(missing_ok=True)
            point = Points(job["at"], lambda: os.kill(os.getpid(), signal.SIGKILL))
            try:
                answer = asyncio.run(perform(folder, job["how"], point, job["granularity"], job["scenario"]))
            except BaseException as error:
                answer = {"outcome": f"{type(error).__name__}: {error}", "points": point.names}
            result.write_text(json.dumps(answer))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        answer = {"outcome": "killed"} if killed else json.loads((folder / "result").read_text())
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
