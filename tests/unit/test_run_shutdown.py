"""A runtime that is closed while runs are under way."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from littleghost import (
    Agent,
    ConfigurationError,
    MemoryStore,
    Message,
    ModelEnded,
    RunCancelled,
    Runtime,
    Session,
    SQLiteStore,
    TextDelta,
    ToolUse,
    sync,
    tool,
)
from littleghost.testing import FunctionModel, ScriptedModel

CALL = Message.assistant([ToolUse(id="1", name="go", input={})])


class Endless:
    """A model that writes a word, tells of it, and then never ends."""

    def __init__(self) -> None:
        self.writing = threading.Event()
        self.model = FunctionModel(lambda request: self._write())
        self.agent = Agent(self.model)

    async def _write(self) -> AsyncIterator[Any]:
        return self._events()

    async def _events(self) -> AsyncIterator[Any]:
        yield TextDelta(text="Once ")
        self.writing.set()
        await asyncio.Event().wait()
        yield ModelEnded(message=Message.assistant("Once upon a time."))

    async def started(self) -> None:
        while not self.writing.is_set():
            await asyncio.sleep(0.001)


class Closing(MemoryStore):
    """A store that knows when it was closed, and waits until it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.happened: list[str] = []
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def append(self, *args: Any, **options: Any) -> Any:
        self.happened.append("append")
        return await super().append(*args, **options)

    async def aclose(self) -> None:
        await self.may_close.wait()
        self.happened.append("closed")
        await super().aclose()


async def test_closing_cancels_what_runs_keeps_its_text_and_then_closes_the_store() -> None:
    store, endless = Closing(), Endless()
    runtime = Runtime(session_store=lambda: store)
    asked = asyncio.create_task(runtime.ask(endless.agent, "Tell me", session_id="s"))
    await endless.started()
    store.may_close.clear()
    first = asyncio.create_task(runtime.aclose())
    run = await asked
    assert (run.outcome, run.text) == ("cancelled", "Once ")
    assert isinstance(run.error, RunCancelled)
    assert run.error.reason == "the runtime was closed"
    second = asyncio.create_task(runtime.aclose())
    with pytest.raises(ConfigurationError, match="closed"):
        await runtime.ask(endless.agent, "More", session_id="s")
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    store.may_close.set()
    await asyncio.gather(first, second)
    assert store.happened == ["append", "append", "closed"]
    assert [message.text for message in await Session(id="s", store=store).history()] == ["Tell me", "Once "]
    await runtime.aclose()


async def test_leaving_the_block_by_an_exception_closes_too() -> None:
    store, endless = MemoryStore(), Endless()
    runtime = Runtime(session_store=store)
    asked = asyncio.create_task(runtime.ask(endless.agent, "Tell me", session_id="s"))
    await endless.started()
    with pytest.raises(ZeroDivisionError):
        async with runtime:
            raise ZeroDivisionError
    assert asked.done()
    assert asked.result().outcome == "cancelled"


async def test_a_caller_who_is_cancelled_waits_all_the_same() -> None:
    store, endless = Closing(), Endless()
    runtime = Runtime(session_store=lambda: store)
    asked = asyncio.create_task(runtime.ask(endless.agent, "Tell me", session_id="s"))
    await endless.started()
    store.may_close.clear()
    closing = asyncio.create_task(runtime.aclose())
    await asked
    closing.cancel()
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    assert not closing.done()
    store.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert store.happened[-1] == "closed"


async def test_a_run_that_waits_for_a_session_is_cancelled_before_it_began() -> None:
    store, endless = MemoryStore(), Endless()
    async with Runtime(session_store=store) as runtime:
        first = asyncio.create_task(runtime.ask(endless.agent, "Tell me", session_id="s"))
        await endless.started()
        second = asyncio.create_task(runtime.ask(endless.agent, "And me", session_id="s"))
        await asyncio.sleep(0)
    assert first.result().outcome == "cancelled"
    assert isinstance(second.exception(), RunCancelled)
    assert [message.text for message in await Session(id="s", store=store).history()] == ["Tell me", "Once "]


async def test_a_tool_that_closes_its_own_runtime_does_not_wait_for_itself() -> None:
    @tool
    async def go() -> str:
        """Close."""
        await runtime.aclose()
        seen.append([*store.happened])
        await asyncio.sleep(0)
        return "not reached"

    store, seen = Closing(), list[list[str]]()
    runtime = Runtime(session_store=lambda: store)
    agent = Agent(ScriptedModel([CALL, "not reached"]), tools=[go])
    run = await runtime.ask(agent, "Go", session_id="s")
    assert seen == [["append"] * 2], "it waited, until the run gave it up"
    await runtime.aclose()
    assert run.outcome == "cancelled"
    assert store.happened == ["append"] * 3 + ["closed"]


def test_a_synchronous_tool_that_closes_its_own_runtime_does_not_wait_for_itself() -> None:
    @tool
    def go() -> str:
        """Close."""
        runtime.close()
        returned.set()
        return "closed"

    returned, store = threading.Event(), Closing()
    runtime = sync.Runtime(session_store=lambda: store)
    agent = Agent(ScriptedModel([CALL, "not reached"]), tools=[go])
    run = runtime.ask(agent, "Go", session_id="s")
    returned.wait()
    runtime.close()
    assert run.outcome == "cancelled"
    assert store.happened == ["append"] * 3 + ["closed"]


async def test_the_reader_of_a_stream_may_close(tmp_path: Path) -> None:
    endless = Endless()
    async with (
        SQLiteStore(tmp_path / "s.db") as store,
        Runtime(session_store=store) as runtime,
        runtime.stream(endless.agent, "Tell me", session_id="s") as events,
    ):
        async for event in events:
            if isinstance(event, TextDelta):
                await runtime.aclose()
    assert (events.run.outcome, events.run.text) == ("cancelled", "Once ")


@pytest.mark.skipif(os.name == "nt", reason="no signals for a loop here")
async def test_a_task_of_a_signal_handler_may_close() -> None:
    store, endless = MemoryStore(), Endless()
    tasks: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    async with Runtime(session_store=store) as runtime:
        loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.append(asyncio.create_task(runtime.aclose())))
        try:
            asked = asyncio.create_task(runtime.ask(endless.agent, "Tell me", session_id="s"))
            await endless.started()
            os.kill(os.getpid(), signal.SIGUSR1)
            run = await asked
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)
    assert (run.outcome, run.text) == ("cancelled", "Once ")
    assert tasks[0].done()


async def test_the_lifespan_of_an_application_ends_runs_in_the_background() -> None:
    store, endless = MemoryStore(), Endless()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        async with Runtime(session_store=store) as runtime:
            yield {"runtime": runtime}

    app = FastAPI(lifespan=lifespan)
    async with app.router.lifespan_context(app) as state:
        asked = asyncio.create_task(state["runtime"].ask(endless.agent, "Tell me", session_id="s"))
        await endless.started()
    assert asked.done()
    assert asked.result().text == "Once "


def test_closing_from_another_thread_ends_what_synchronous_callers_wait_for() -> None:
    endless, runs = Endless(), list[Any]()
    runtime = sync.Runtime(session_store=sync.MemoryStore())
    thread = threading.Thread(
        target=lambda: runs.append(runtime.ask(endless.agent, "Tell me", session_id="s"))
    )
    thread.start()
    endless.writing.wait()
    runtime.close()
    thread.join()
    assert (runs[0].outcome, runs[0].text) == ("cancelled", "Once ")
    with pytest.raises(ConfigurationError, match="closed"):
        runtime.ask(endless.agent, "More")
    runtime.close()


def test_runs_on_other_loops_are_waited_for() -> None:
    endless, runs = Endless(), list[Any]()
    store = MemoryStore()
    runtime = Runtime(session_store=store)
    thread = threading.Thread(
        target=lambda: runs.append(asyncio.run(runtime.ask(endless.agent, "Tell me", session_id="s")))
    )
    thread.start()
    endless.writing.wait()
    asyncio.run(runtime.aclose())
    assert not runtime._underway
    thread.join()
    assert runs[0].text == "Once "
