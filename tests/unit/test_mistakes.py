"""What people get wrong, and what they are told."""

from __future__ import annotations

import asyncio
import signal
import uuid
from typing import Any

import pytest

from littleghost import (
    Agent,
    CancellationToken,
    ConfigurationError,
    ConflictError,
    MemoryStore,
    Message,
    RunCancelled,
    RunContext,
    RunLimits,
    Runtime,
    Session,
    SessionBusyError,
    SQLiteStore,
    ToolUse,
    sync,
    tool,
)
from littleghost.testing import FunctionModel, ScriptedModel


class Nameless:
    """What has no text of its own."""


@pytest.mark.parametrize("bad", [Nameless(), b"x", [1], ("a",), {"a": 1}, None])
def test_an_id_has_a_text_that_is_the_same_tomorrow(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="id must"):
        Session(id=bad, store=MemoryStore())
    if bad is not None:
        with pytest.raises(ConfigurationError, match="actor_id must"):
            Session(id="s", actor_id=bad, store=MemoryStore())


def test_numbers_and_uuids_are_ids() -> None:
    name = uuid.uuid4()
    assert Session(id=7, actor_id=name, store=MemoryStore()).actor_id == str(name)


@pytest.mark.parametrize("bad", ["shop.db", MemoryStore, sync.MemoryStore(), None])
def test_a_store_is_a_store(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="store must be a SessionStore"):
        Session(id="s", store=bad)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: RunLimits(turns="1"), "limits.turns must be a whole number"),  # type: ignore[arg-type]
        (lambda: RunLimits(turns=-1), "limits.turns must be at least 1"),
        (lambda: RunLimits(wall_time=0), "limits.wall_time must be more than 0"),
        (lambda: RunLimits(tokens=True), "limits.tokens"),
        (lambda: Agent(ScriptedModel([]), limits={"turns": 1}), "limits must be RunLimits"),  # type: ignore[arg-type]
        (lambda: Agent(ScriptedModel([]), tools="shell"), "tools must be a list"),  # type: ignore[arg-type]
        (lambda: Agent(ScriptedModel([]), tools=[7]), "tools must be tools"),  # type: ignore[list-item]
        (lambda: Runtime(session_store="shop.db"), "open_store"),  # type: ignore[arg-type]
        (lambda: Runtime(sandbox="host"), "sandbox must be a Sandbox"),  # type: ignore[arg-type]
        (lambda: tool(name="x", timeout="x")(lambda: None), "timeout"),  # type: ignore[call-overload]
        (lambda: SQLiteStore("sqlite:///x.db"), "open_store"),
    ],
)
def test_the_message_says_what_to_give(make: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        make()


async def test_limits_and_time_outs_of_a_call_are_checked_too() -> None:
    with pytest.raises(ConfigurationError, match="limits must be"):
        await Agent(ScriptedModel([])).ask("hi", limits={"turns": 1})  # type: ignore[arg-type]
    for bad in ("1", 0, True):
        with pytest.raises(ConfigurationError, match="timeout must be"):
            await Agent(ScriptedModel([])).ask("hi", timeout=bad)  # type: ignore[arg-type]


async def test_update_wants_messages_and_state() -> None:
    session = Session(id="s", store=MemoryStore())
    for wrong in (None, [Message.user("a")], {"n": 1}):
        with pytest.raises(ConfigurationError, match="must return the messages to append, the state"):
            await session.update(lambda _, wrong=wrong: wrong)  # type: ignore[arg-type,return-value,misc]
    assert await session.load() is None


async def test_a_fork_onto_a_session_says_that_it_exists() -> None:
    session = Session(id="s", store=MemoryStore())
    await session.append([Message.user("hi")])
    with pytest.raises(ConflictError, match="already"):
        await session.fork("s")


async def test_a_tool_that_asks_in_its_own_session_is_told_and_does_not_wait_for_itself() -> None:
    store = MemoryStore()
    seen: list[BaseException] = []
    async with Runtime(session_store=store) as runtime:
        inner = Agent(FunctionModel(lambda request: "inner"))

        @tool
        async def ask_again(context: RunContext) -> str:
            assert context.session_id is not None
            try:
                await runtime.ask(inner, "again", session_id=context.session_id)
            except SessionBusyError as error:
                seen.append(error)
            return (await runtime.ask(inner, "other", session_id="other")).text

        outer = Agent(
            ScriptedModel([Message.assistant([ToolUse(id="1", name="ask_again")]), "done"]), tools=[ask_again]
        )
        run = await asyncio.wait_for(runtime.ask(outer, "go", session_id="s"), 10)
        assert run.messages[2].tool_results[0].text == "inner"
        assert "very run" in str(seen[0])
        assert (await runtime.ask(inner, "after", session_id="s")).text == "inner"


async def test_a_stream_that_was_left_at_once_says_so() -> None:
    async with Runtime() as runtime:
        async with runtime.stream(Agent(ScriptedModel(["x"])), "hi") as stream:
            pass
        with pytest.raises(RunCancelled, match="reader left"):
            stream.run  # noqa: B018


def test_a_signal_handler_can_cancel() -> None:
    token = CancellationToken()

    @tool
    async def wait() -> None:
        signal.raise_signal(signal.SIGUSR1)
        await asyncio.sleep(30)

    before = signal.signal(signal.SIGUSR1, lambda *_: token.cancel("signal"))
    try:
        model = ScriptedModel([Message.assistant([ToolUse(id="1", name="wait")])])
        run = asyncio.run(asyncio.wait_for(Agent(model, tools=[wait]).ask("go", cancellation=token), 10))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert run.outcome == "cancelled"
