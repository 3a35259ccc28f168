"""Calls that wait, in the stores that are not files: whoever answers finds what was asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests import agentcore

from littleghost import (
    Agent,
    Approval,
    Budget,
    Message,
    Runtime,
    Session,
    SessionStore,
    ToolUse,
    open_store,
    tool,
)
from littleghost.emulators.agentcore import AgentCoreEmulator
from littleghost.testing import ScriptedModel

ran: list[str] = []


@tool(needs_approval=True)
async def order(sku: str) -> str:
    """Order an article."""
    ran.append(sku)
    return f"ordered {sku}"


@tool
async def look(sku: str) -> str:
    """Look at the shelf."""
    return f"three of {sku}"


@tool(external=True)
async def weigh(sku: str) -> str:
    """Have an article weighed."""
    raise AssertionError


@pytest.fixture(params=["agentcore", "postgres"])
def new_store(request: pytest.FixtureRequest) -> Callable[[], SessionStore]:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
        return lambda: open_store(url)
    emulator = AgentCoreEmulator()
    return lambda: agentcore.store(emulator)


async def test_each_answer_from_a_process_of_its_own(new_store: Callable[[], SessionStore]) -> None:
    ran.clear()
    calls = Message.assistant(
        [
            ToolUse(id="a", name="order", input={"sku": "A7"}),
            ToolUse(id="l", name="look", input={"sku": "A7"}),
            ToolUse(id="w", name="weigh", input={"sku": "A7"}),
            ToolUse(id="b", name="order", input={"sku": "B2"}),
        ]
    )
    uses = Agent(
        ScriptedModel([calls, "Done."]), tools=[order, look, weigh], budget=Budget(turns=9), name="shop"
    )
    who = {"session_id": "s", "actor_id": "ann"}
    pending: list[list[str]] = []
    for given in [
        None,
        {},
        {"approvals": {"a": Approval(approved=True, arguments={"sku": "A8"})}},
        {"results": {"w": "5 g"}},
        {"approvals": {"b": Approval(approved=False, reason="Too dear."), "a": True}},
    ]:
        store = new_store()
        async with store, Runtime(session_store=store) as runtime:
            if given is None:
                run = await runtime.ask(uses, "Go.", **who)
            else:
                run = await runtime.resume(uses, **who, **given)  # type: ignore[arg-type]
            pending.append([call.id for call in run.pending])
    assert pending == [["a", "w", "b"], ["a", "w", "b"], ["w", "b"], ["b"], []]
    assert run.outcome == "completed"
    assert ran == ["A8"]
    texts = [result.text for message in run.messages for result in message.tool_results]
    assert texts[0].startswith("ordered A8")
    assert texts[1:3] == ["three of A7", "5 g"]
    assert "Too dear." in texts[3]
    store = new_store()
    async with store:
        session = Session(store=store, id="s", actor_id="ann")
        notes = (await session.metadata())["littleghost"]
        assert set(notes) == {"life", "agent", "spent"}
        assert notes["spent"]["turns"] == 2
        assert await session.history() == run.messages
