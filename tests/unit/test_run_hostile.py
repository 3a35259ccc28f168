"""Tools, models and callers that behave badly: what is stored stays right, and who is not at fault is not hurt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from littleghost import (
    Agent,
    ConfigurationError,
    MemoryStore,
    Message,
    ModelEnded,
    ModelError,
    ModelProtocolError,
    RunContext,
    Runtime,
    Session,
    SessionStore,
    Text,
    TextDelta,
    ToolError,
    ToolResult,
    ToolUse,
    tool,
    transcript,
)
from littleghost.testing import FunctionModel, ScriptedModel


def calls(*names: str) -> Message:
    return Message.assistant([ToolUse(id=f"c{index}", name=name) for index, name in enumerate(names)])


def statuses(run: Any) -> list[str]:
    return [result.status for message in run.messages for result in message.tool_results]


class Recording(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.states: list[Any] = []

    async def append(self, *args: Any, **options: Any) -> Any:
        self.states.append(options["state"])
        return await super().append(*args, **options)


async def test_a_state_is_stored_when_its_tool_has_ended_and_not_before() -> None:
    ended = asyncio.Event()

    @tool
    async def transfer(context: RunContext) -> None:
        context.state["balance"] = context.state.get("balance", 10) - 10
        await ended.wait()
        context.state["ledger"] = ["-10"]

    @tool
    async def quick() -> str:
        ended.set()
        return "done"

    store = Recording()
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(
            Agent(ScriptedModel([calls("transfer", "quick"), "ok"]), tools=[transfer, quick]),
            "go",
            session_id="s",
        )
    assert run.state == {"balance": 0, "ledger": ["-10"]}
    assert all(("balance" in state) == ("ledger" in state) for state in store.states)


async def test_a_tool_that_was_stopped_changes_no_state() -> None:
    @tool(timeout=0.02)
    async def slow(context: RunContext) -> None:
        context.state["half"] = True
        await asyncio.sleep(30)

    run = await Agent(ScriptedModel([calls("slow"), "ok"]), tools=[slow]).ask("go")
    assert run.state == {}


async def test_calls_that_count_one_after_another_lose_nothing() -> None:
    @tool
    async def count(context: RunContext) -> None:
        await asyncio.sleep(0)
        context.state["n"] = context.state.get("n", 0) + 1

    run = await Agent(ScriptedModel([calls(*["count"] * 5), "ok"]), tools=[count]).ask("go")
    assert run.state == {"n": 5}


async def test_two_calls_that_change_the_same_thing_at_once_do_not_lose_a_change_silently() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def count(context: RunContext) -> None:
        n = context.state.get("n", 0)
        context.state[str(context.call_id)] = "mine"
        await both.wait()
        context.state["n"] = n + 1

    run = await Agent(ScriptedModel([calls("count", "count"), "ok"]), tools=[count]).ask("go")
    assert sorted(statuses(run)) == ["error", "success"]
    assert run.state["n"] == 1
    assert len(run.state) == 2
    assert "another call" in str(run.messages)


async def test_a_state_put_in_place_of_the_old_one_counts_and_is_checked() -> None:
    @tool
    async def put(context: RunContext) -> None:
        context.state = {"new": True}

    @tool
    async def spoil(context: RunContext) -> None:
        context.state = 5  # type: ignore[assignment]

    run = await Agent(ScriptedModel([calls("put"), calls("spoil"), "ok"]), tools=[put, spoil]).ask("go")
    assert statuses(run) == ["success", "error"]
    assert run.state == {"new": True}


class Weird(BaseException):
    """What nobody expects."""


@pytest.mark.parametrize("error", [SystemExit(2), Weird("secret"), GeneratorExit(), StopIteration()])
@pytest.mark.parametrize("threaded", [False, True])
async def test_whatever_a_tool_raises_is_its_answer(error: BaseException, threaded: bool) -> None:
    if threaded:

        @tool
        def burst() -> None:
            raise error
    else:

        @tool
        async def burst() -> None:
            raise error

    run = await Agent(ScriptedModel([calls("burst"), "ok"]), tools=[burst]).ask("go")
    assert (run.outcome, statuses(run)) == ("completed", ["error"])
    assert "secret" not in str(run.messages)


async def test_whatever_a_model_raises_is_a_failed_run() -> None:
    async def burst(request: Any) -> AsyncIterator[Any]:
        yield TextDelta(text="so far")
        raise Weird("x")

    run = await Agent(FunctionModel(lambda request: burst(request))).ask("go")
    assert (run.outcome, run.text) == ("failed", "so far")
    assert isinstance(run.error, ModelError)


async def test_a_model_that_cancels_itself_does_not_cancel_its_caller() -> None:
    async def odd(request: Any) -> str:
        raise asyncio.CancelledError

    task = asyncio.create_task(Agent(FunctionModel(odd)).ask("go"))
    run = await task
    assert run.outcome == "failed"
    assert isinstance(run.error, ModelError)


@pytest.mark.parametrize("bad", ["text", None, ModelEnded(message="hi"), ModelEnded(message=None)])  # type: ignore[arg-type]
async def test_what_is_no_event_is_a_failed_run(bad: Any) -> None:
    async def stream(request: Any) -> AsyncIterator[Any]:
        yield bad

    run = await Agent(FunctionModel(lambda request: stream(request))).ask("go")
    assert run.outcome == "failed"
    assert isinstance(run.error, ModelProtocolError)


async def test_an_answer_is_taken_when_it_is_there() -> None:
    async def hangs(request: Any) -> AsyncIterator[Any]:
        yield ModelEnded(message=Message.assistant("done"))
        await asyncio.sleep(30)

    run = await asyncio.wait_for(Agent(FunctionModel(lambda request: hangs(request))).ask("go"), 10)
    assert (run.outcome, run.text) == ("completed", "done")


async def test_an_answer_cannot_keep_its_calls_out_of_the_store() -> None:
    ran: list[str] = []

    @tool
    async def act() -> None:
        ran.append("act")

    sneaky = Message.assistant(
        [ToolUse(id="1", name="act"), ToolResult(tool_use_id="1", content="done already")],
        {"transient": True},
    )
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(Agent(ScriptedModel([sneaky, "ok"]), tools=[act]), "go", session_id="s")
    stored = await Session(id="s", store=store).history()
    assert stored == run.messages
    assert [message.role for message in stored] == ["user", "assistant", "tool", "assistant"]
    assert transcript.for_model(stored) == stored
    assert ran == ["act"]


async def test_a_tool_that_swallows_its_time_out_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("littleghost.tools.contract.Tool.grace", 0.05)
    release = asyncio.Event()

    @tool(timeout=0.02)
    async def stubborn(context: RunContext) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                context.state["late"] = True
        return "late"

    run = await asyncio.wait_for(
        Agent(ScriptedModel([calls("stubborn"), "ok"]), tools=[stubborn]).ask("go"), 10
    )
    release.set()
    await asyncio.sleep(0.01)
    assert (run.outcome, statuses(run), run.state) == ("completed", ["error"], {})


@pytest.mark.parametrize(
    "message",
    [
        Message.user([ToolUse(id="1", name="x")]),
        Message.user(["hi", ToolResult(tool_use_id="1")]),
        [ToolUse(id="1", name="x")],
    ],
)
async def test_a_caller_cannot_speak_for_a_tool(message: Any) -> None:
    with pytest.raises(ConfigurationError, match="text, images and documents"):
        await Agent(ScriptedModel([])).ask(message)


@pytest.mark.parametrize("where", ["model", "tool", "commit"])
async def test_a_scope_that_cancels_over_and_over_waits_for_the_settling(where: str) -> None:
    reached = asyncio.Event()

    class Slow(MemoryStore):
        async def append(self, *args: Any, **options: Any) -> Any:
            if where == "commit" and len(options["messages"]) and options["messages"][0].role == "assistant":
                reached.set()
            await asyncio.sleep(0.01)
            return await super().append(*args, **options)

    async def reply(request: Any) -> Any:
        if where == "model":
            reached.set()
            await asyncio.sleep(30)
        return calls("wait")

    @tool
    async def wait() -> None:
        if where == "tool":
            reached.set()
        await asyncio.sleep(30)

    store = Slow()
    async with Runtime(session_store=store) as runtime, anyio.create_task_group() as group:

        async def ask() -> None:
            await runtime.ask(Agent(FunctionModel(reply), tools=[wait]), "go", session_id="s")

        group.start_soon(ask)
        await reached.wait()
        group.cancel_scope.cancel()
    stored = await Session(id="s", store=store).history()
    assert [message.role for message in stored] == (
        ["user"] if where == "model" else ["user", "assistant", "tool"]
    )
    assert transcript.unsettled(stored) == ()


async def test_work_that_outlives_its_run_may_ask_again() -> None:
    later: list[asyncio.Task[Any]] = []
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:

        @tool
        async def leave_behind(context: RunContext) -> None:
            over = asyncio.Event()
            later.append(asyncio.create_task(ask_later(over)))
            asyncio.get_running_loop().call_later(0.05, over.set)

        async def ask_later(over: asyncio.Event) -> Any:
            await over.wait()
            return await runtime.ask(Agent(ScriptedModel(["later"])), "later", session_id="s")

        await runtime.ask(
            Agent(ScriptedModel([calls("leave_behind"), "ok"]), tools=[leave_behind]), "go", session_id="s"
        )
        assert (await later[0]).text == "later"


async def test_what_a_store_of_three_methods_has_for_nothing() -> None:
    class Three(SessionStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Any:
            return (
                {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]}
                if id == "s"
                else None
            )

        async def append(self, id: str, **_: Any) -> Any:
            raise ToolError

        async def replace(self, id: str, **_: Any) -> Any:
            raise ToolError

    page = await Three().tail("s", limit=1)
    assert page.items == (Message("assistant", [Text("Hello.")]),)
    assert page.cursor == 1
