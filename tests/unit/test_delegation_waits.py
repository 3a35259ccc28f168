"""Agents as tools whose own tools wait for answers."""

from __future__ import annotations

from typing import Any

import pytest

from littleghost import (
    Agent,
    MemoryStore,
    Message,
    Runtime,
    Session,
    SessionSuspendedError,
    ToolUse,
    tool,
    transcript,
)
from littleghost.testing import FunctionModel
from littleghost.tools.contract import Approval


def shop(done: list[str], levels: int = 1) -> Agent:
    """An agent whose inmost agent orders, which a person must approve, and asks another department."""

    @tool(needs_approval=True)
    async def order(sku: str) -> str:
        """Order."""
        done.append(sku)
        return f"ordered {sku}"

    @tool(external=True)
    async def counted(sku: str) -> int:
        """Count."""
        raise AssertionError("it never runs here")

    def buy(request: Any) -> Any:
        if request.messages[-1].role == "tool":
            return ", ".join(result.text for result in request.messages[-1].tool_results)
        return Message.assistant(
            [
                ToolUse(id="o", name="order", input={"sku": request.messages[-1].text}),
                ToolUse(id="n", name="counted", input={"sku": "B2"}),
            ]
        )

    agent = Agent(FunctionModel(buy), tools=[order, counted], name="buyer")
    for level in range(levels):
        agent = Agent(FunctionModel(hand_on), tools=[agent.as_tool("ask")], name=f"level{level}")
    return agent


def hand_on(request: Any) -> Any:
    if request.messages[-1].role == "tool":
        return request.messages[-1].tool_results[0].text
    task = request.messages[-1].text
    return Message.assistant([ToolUse(id="c", name="ask", input={"task": task})])


@pytest.mark.parametrize("levels", [1, 2])
async def test_what_the_inner_run_waits_for_the_outer_run_waits_for(levels: int) -> None:
    store, done = MemoryStore(), list[str]()
    path = "c/" * levels
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(shop(done, levels), "A7", session_id="s")
    assert run.outcome == "suspended"
    assert [(call.id, call.name) for call in run.pending] == [(f"{path}o", "order"), (f"{path}n", "counted")]
    async with Runtime(session_store=store) as runtime:  # another process
        with pytest.raises(SessionSuspendedError):
            await runtime.ask(shop(done, levels), "And?", session_id="s")
        again = await runtime.resume(shop(done, levels), session_id="s")
        assert (again.outcome, again.pending) == ("suspended", run.pending)
        assert await runtime.pending(session_id="s") == run.pending
        half = await runtime.resume(shop(done, levels), session_id="s", approvals={f"{path}o": True})
        assert half.outcome == "suspended"
        assert [call.id for call in half.pending] == [f"{path}n"]
        run = await runtime.resume(shop(done, levels), session_id="s", results={f"{path}n": 5})
        assert (run.outcome, run.text) == ("completed", "ordered A7, 5")
        assert done == ["A7"]
        for info in (await store.sessions()).items:
            assert transcript.unsettled(await Session(id=info.id, store=store).journal()) == ()
        after = await runtime.ask(shop(done, levels), "C3", session_id="s")
        assert after.outcome == "suspended"


@pytest.mark.parametrize(
    "approval", [False, Approval(False, reason="too dear"), Approval(True, arguments={"sku": "X1"})]
)
async def test_a_person_may_refuse_or_change_what_an_inner_agent_asks_for(approval: Any) -> None:
    store, done = MemoryStore(), list[str]()
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(shop(done), "A7", session_id="s")
        run = await runtime.resume(
            shop(done), session_id="s", approvals={"c/o": approval}, results={"c/n": 5}
        )
    assert run.outcome == "completed"
    if isinstance(approval, Approval) and approval.approved:
        assert done == ["X1"]
        assert "ordered X1" in run.text
    else:
        assert done == []
        assert "not approve" in run.text


async def test_streamed_it_is_the_same() -> None:
    store, done = MemoryStore(), list[str]()
    async with Runtime(session_store=store) as runtime:
        async with runtime.stream(shop(done), "A7", session_id="s") as events:
            told = [type(event).__name__ async for event in events]
        assert told.count("Suspended") == 1
        assert [call.id for call in events.run.pending] == ["c/o", "c/n"]
        async with runtime.stream(
            shop(done), None, session_id="s", approvals={"c/o": True}, results={"c/n": 5}
        ) as events:
            async for _ in events:
                pass
    assert events.run.text == "ordered A7, 5"
