"""The synchronous face: the same answers from anywhere, with Ctrl-C, threads, forks and running loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import gc
import inspect
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import littleghost
from littleghost import (
    Agent,
    ConfigurationError,
    ConflictError,
    LittleGhostError,
    Message,
    RunContext,
    SessionBusyError,
    SessionNotFoundError,
    StoreUnavailableError,
    ToolUse,
    sync,
    tool,
)
from littleghost import (
    runtime as async_runtime,
)
from littleghost.portal import Portal, _Call, portal
from littleghost.sessions import contract
from littleghost.sessions import session as async_session
from littleghost.testing import FunctionModel, ScriptedModel

A, B, C = Message.user("a"), Message.assistant("b"), Message.user("c")


@pytest.fixture(params=["memory", "sqlite", "url"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        made: sync.Store = sync.MemoryStore()
    elif request.param == "sqlite":
        made = sync.SQLiteStore(tmp_path / "s.db")
    else:
        made = sync.open_store(f"sqlite:///{tmp_path}/u.db")
    with made:
        yield made


# The portal


async def answer(value: Any = None) -> Any:
    await asyncio.sleep(0)
    return value


def test_a_call_returns_the_answer_or_raises_the_error_with_its_cause():
    async def fail() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ConflictError("outer", expected=1, actual=2) from error

    assert portal.call(answer, 5) == 5
    with pytest.raises(ConflictError, match="outer") as caught:
        portal.call(fail)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert isinstance(caught.value.__cause__, KeyError)
    assert "fail" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("mine"),
        asyncio.CancelledError(),
        SystemExit(3),
        KeyboardInterrupt(),
        StopAsyncIteration(),
    ],
)
def test_any_exception_of_the_coroutine_ends_the_call_and_not_the_portal(error: BaseException):
    own = Portal()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    async def fail_in_a_task() -> None:
        await asyncio.create_task(fail())

    for work in (fail, fail_in_a_task):
        with pytest.raises(
            concurrent.futures.CancelledError if isinstance(error, asyncio.CancelledError) else type(error)
        ):
            own.call(work)
        assert own.call(answer, 1) == 1


def test_a_function_that_fails_before_it_awaits_raises_too():
    with pytest.raises(TypeError):
        portal.call(answer, 1, 2, 3)
    assert portal.call(answer, 1) == 1


def test_the_context_of_the_caller_is_seen():
    variable = contextvars.ContextVar("variable", default="unset")

    async def read() -> str:
        seen = variable.get()
        variable.set("changed inside")
        return seen

    variable.set("the caller's")
    assert portal.call(read) == "the caller's"
    assert variable.get() == "the caller's"
    assert contextvars.Context().run(portal.call, read) == "unset"


def test_a_call_from_the_portals_own_thread_is_refused():
    async def inner() -> Any:
        return portal.call(answer, 1)

    with pytest.raises(RuntimeError, match="from its own event loop"):
        portal.call(inner)
    assert portal.call(answer, 1) == 1


async def test_it_works_inside_a_running_loop_which_stays_usable():
    store = sync.MemoryStore()
    session = sync.Session(id="s", store=store)
    session.append([A])
    assert session.history() == [A]
    await asyncio.sleep(0)
    assert await littleghost.Session(id="s", store=store.store).history() == [A]


def test_calls_from_many_threads_at_once_do_not_wait_for_each_other():
    """All are inside at the same time, or the barrier would never open."""
    inside, opened = 0, asyncio.Event()

    async def meet() -> None:
        nonlocal inside
        inside += 1
        if inside == 8:
            opened.set()
        await opened.wait()

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(portal.call, meet) for _ in range(8)]:
            done.result()


def test_the_first_calls_from_many_threads_start_one_loop():
    own = Portal()
    start = threading.Barrier(8)

    async def loop_of() -> Any:
        return asyncio.get_running_loop()

    def first() -> Any:
        start.wait()
        return own.call(loop_of)

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        loops = {done.result() for done in [threads.submit(first) for _ in range(8)]}
    assert len(loops) == 1


# Ctrl-C at any place


class Interrupted:
    """Raise Ctrl-C at place ``number`` of what this thread runs in the block, or where ``last`` is called.

    The places are those at which Python runs a signal's handler: where a function begins, and where one of C's returns, the standard
    library's included, but for what is called when an object ends: nothing that is raised gets out of there. Where a generator goes on with
    an exception is none, though a profiler is called.

    Attributes:
        over: Whether there is no such place, or it was ``last``.
    """

    def __init__(self, number: int, last: Any = None) -> None:
        self.number, self.last, self.over = number, last, True

    def __enter__(self) -> None:
        gc.disable()  # what listens to it (Hypothesis does) is called by no code of ours, and nothing raised gets out of there
        sys.setprofile(self.look)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def look(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if (
            event in {"call", "c_return"}
            and code is not Interrupted.__exit__.__code__
            and not (event == "call" and code.co_flags & inspect.CO_GENERATOR)
            and "weakref" not in code.co_filename
        ):
            self.number -= 1
            at_last = self.last is not None and code is self.last.__code__
            if self.number == 0 or at_last:
                self.over = at_last
                sys.setprofile(None)
                raise KeyboardInterrupt


def test_ctrl_c_at_any_place_until_the_answer_is_waited_for_cancels_the_call_and_waits_for_it():
    happened: list[str] = []

    async def forever() -> None:
        happened.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            happened.append("cleaned up")

    portal.call(answer)
    for number in itertools.count(1):
        happened.clear()
        interrupted = Interrupted(number, last=_Call.wait)
        with pytest.raises(KeyboardInterrupt), interrupted:
            portal.call(forever)
        assert happened in ([], ["began", "cleaned up"]), number
        if interrupted.over:
            break
    assert number > 10
    assert portal.call(answer, 1) == 1


def test_ctrl_c_at_any_place_leaves_nothing_running_and_the_loop_usable():
    running = 0

    async def short() -> None:
        nonlocal running
        running += 1
        try:
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            running -= 1

    portal.call(answer)
    for number in itertools.count(1):
        interrupted = Interrupted(number)
        with contextlib.suppress(KeyboardInterrupt), interrupted:
            portal.call(short)
        assert running == 0, number
        assert portal.call(answer, 1) == 1, number
        if interrupted.over:
            break
    assert number > 10


def test_ctrl_c_at_any_place_of_the_first_call_leaves_the_portal_usable():
    process = child(
        """
        import itertools, sys
        from littleghost.portal import Portal
        sys.path.insert(0, sys.argv[1])
        from test_sync import Interrupted, answer

        for number in itertools.count(1):
            portal, interrupted = Portal(), Interrupted(number)
            try:
                with interrupted:
                    portal.call(answer)
            except KeyboardInterrupt:
                pass
            assert portal.call(answer, 1) == 1, number
            if interrupted.over:
                break
        print(number > 12)
        """,
        str(Path(__file__).parent),
    )
    out, err = process.communicate(timeout=120)
    assert (out, err) == ("True\n", "")


@pytest.mark.parametrize("fails", [False, True], ids=["a body that works", "a body that fails"])
def test_ctrl_c_at_any_place_of_a_block_leaves_it(fails: bool):
    class Held:
        inside = 0

        async def __aenter__(self) -> None:
            self.inside += 1

        async def __aexit__(self, *_: object) -> None:
            self.inside -= 1

    class Holding(littleghost.MemoryStore):
        def synchronize(self, id: str, **options: Any) -> Any:
            return held

    held, store = Held(), sync.Store(Holding())
    for number in itertools.count(1):
        interrupted = Interrupted(number)
        with contextlib.suppress(KeyboardInterrupt, ZeroDivisionError), interrupted:
            with store.synchronize("s"):
                if fails:
                    raise ZeroDivisionError
        assert held.inside == 0, number
        if interrupted.over:
            break
    assert number > 50


def test_ctrl_c_at_any_place_of_an_iteration_closes_what_is_iterated_over():
    class Items:
        left, closed = 2, False

        def __aiter__(self) -> Items:
            return self

        async def __anext__(self) -> int:
            self.left -= 1
            if self.left < 0:
                raise StopAsyncIteration
            return self.left

        async def aclose(self) -> None:
            self.closed = True

    for number in itertools.count(1):
        items, interrupted = Items(), Interrupted(number)
        iterated: Any = sync._iterated(items)  # type: ignore[arg-type]
        first = next(iterated)
        assert first == 1
        with contextlib.suppress(KeyboardInterrupt), interrupted:
            assert list(iterated) == [0]
        iterated = None
        assert items.closed, number
        if interrupted.over:
            break
    assert number > 30


# The faces have what they stand for


@pytest.mark.parametrize(
    ("face", "real", "renamed"),
    [
        (sync.Session, async_session.Session, {}),
        (sync.Store, contract.SessionStore, {"aclose": "close"}),
        (sync.Runtime, async_runtime.Runtime, {"aclose": "close"}),
    ],
)
def test_a_face_has_every_public_method_with_the_same_parameters(
    face: Any, real: Any, renamed: dict[str, str]
):
    for name, method in vars(real).items():
        if name.startswith("_") or not callable(method) or name == "operation_context":
            continue
        mine = getattr(face, renamed.get(name, name), None)
        assert mine is not None, f"{face.__name__} has no {name}"
        theirs, ours = inspect.signature(method).parameters, inspect.signature(mine).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours.values()):
            assert list(ours) == list(theirs), name
            assert [parameter.kind for parameter in ours.values()] == [
                parameter.kind for parameter in theirs.values()
            ], name
            assert [parameter.default for parameter in ours.values()] == [
                parameter.default for parameter in theirs.values()
            ], name


# Sessions and stores


def test_a_session_does_all_that_the_other_does(store: sync.Store):
    session = sync.Session(id=7, store=store, actor_id="a", metadata={"m": 1})
    assert (session.id, session.actor_id) == ("7", "a")
    assert repr(session).startswith("sync.Session(id='7'")
    assert (session.load(), session.history([C]), session.state(), session.metadata()) == (
        None,
        [C],
        {},
        {"m": 1},
    )
    assert session.append([A], state={"n": 1}).count == 1
    assert session.checkpoint([A, B], metadata={"m": 2}).count == 2
    assert session.journal() == session.history() == [A, B]
    session.update(lambda snapshot: ([C], {"n": snapshot.state["n"] + 1}))
    assert session.state() == {"n": 2}
    session.project_conversation([A])
    fork = (
        session.fork("8", at=1) if "fork" in store.capabilities or "revisions" in store.capabilities else None
    )
    assert fork is not None
    assert fork.history() == [A]
    other = sync.Session(id="7", store=store.store, actor_id="a")
    other.replace([C])
    with pytest.raises(ConflictError):
        session.append([A])
    assert session.reload().messages == (C,)
    session.checkpoint_result(type("Result", (), {"messages": [C, B], "state": {"n": 3}}))
    assert (session.history(), session.state(), session.metadata()) == ([C, B], {"n": 3}, {"m": 2})
    assert session.delete() is True
    assert session.load() is None


def test_a_store_does_all_that_the_other_does(store: sync.Store):
    given = {"messages": [A, B], "state": {"n": 1}, "metadata": {}, "actor_id": "a"}
    assert store.load("s", actor_id="a") is None
    commit = store.append("s", expected_count=0, **given)
    assert store.load("s", actor_id="a") == contract.Snapshot(
        messages=[A, B], state={"n": 1}, revision=commit.revision
    )
    assert store.replace("s", **given).count == 2
    assert [info.id for info in store.sessions(actor_id="a").items] == ["s"]
    assert store.tail("s", limit=1, actor_id="a").items == (B,)
    assert store.fork("s", "t", actor_id="a").count == 2
    assert store.delete("s", actor_id="a") is True
    assert "revisions" in store.capabilities


def test_one_holder_at_a_time(store: sync.Store):
    session = sync.Session(id="s", store=store)
    with session.synchronize():
        with pytest.raises(SessionBusyError), store.synchronize("s", timeout=0):
            raise AssertionError
        with store.synchronize("s", actor_id="other", timeout=0):
            pass
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), store.synchronize("s", timeout=0):
            raise ZeroDivisionError


@pytest.mark.parametrize("error", [None, ZeroDivisionError(), KeyboardInterrupt(), SystemExit()])
def test_a_block_is_left_before_what_follows_it_and_told_the_error(error: BaseException | None):
    happened: list[Any] = []

    class Noting(littleghost.MemoryStore):
        @contextlib.asynccontextmanager
        async def synchronize(self, id: str, **options: Any) -> Any:
            try:
                yield
            except BaseException as raised:
                happened.append(raised)
                raise
            finally:
                happened.append("left")

    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt, SystemExit):
        with sync.Store(Noting()).synchronize("s"):
            happened.append("inside")
            if error is not None:
                raise error
        happened.append("after")
    assert happened == (["inside", "left", "after"] if error is None else ["inside", error, "left"])


def test_a_lease_ends_with_its_block(tmp_path: Path):
    with sync.SQLiteStore(tmp_path / "s.db") as store, sync.SQLiteStore(tmp_path / "s.db") as other:
        for _ in range(2):
            with store.lease("s", timeout=0) as lease:
                assert lease.token
                with pytest.raises(SessionBusyError), other.lease("s", timeout=0):
                    raise AssertionError


def test_interrupted_just_when_it_had_entered_it_leaves_again(monkeypatch: pytest.MonkeyPatch):
    store = sync.MemoryStore()
    real = portal.call
    interrupted = [KeyboardInterrupt()]

    def call(function: Any, *args: Any, **options: Any) -> Any:
        value = real(function, *args, **options)
        if interrupted:
            raise interrupted.pop()
        return value

    monkeypatch.setattr(portal, "call", call)
    with pytest.raises(KeyboardInterrupt), store.synchronize("s"):
        raise AssertionError
    with store.synchronize("s", timeout=0):
        pass


def test_threads_that_share_a_session_lose_nothing(store: sync.Store):
    session = sync.Session(id="s", store=store)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: session.append([Message.user(str(number))]), range(40)))
    assert {message.text for message in session.history()} == {str(number) for number in range(40)}
    assert sync.Session(id="s", store=store).history() == session.history()


# Runs


@tool
def add(a: int, b: int, context: RunContext) -> int:
    """Add."""
    context.state["sum"] = a + b
    return a + b


def scripted() -> Agent:
    return Agent(
        ScriptedModel(
            [Message.assistant(["adding", ToolUse(id="1", name="add", input={"a": 1, "b": 2})]), "three"]
        ),
        tools=[add],
    )


def test_a_run_and_its_stream_give_the_same(store: sync.Store):
    with sync.Runtime(session_store=store) as runtime:
        run = runtime.ask(scripted(), "1 + 2?", session_id="plain", actor_id="a")
        with runtime.stream(scripted(), "1 + 2?", session_id="streamed", actor_id="a") as stream:
            events = list(stream)
            streamed = stream.run
        assert run.outcome == streamed.outcome == "completed"
        assert run.messages == streamed.messages == runtime.session("plain", actor_id="a").history()
        assert run.state == streamed.state == runtime.session("streamed", actor_id="a").state() == {"sum": 3}
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert type(events[-1]).__name__ == "RunEnded"
        again = runtime.resume(Agent(ScriptedModel([])), session_id="plain", actor_id="a")
        assert (again.text, again.steps) == ("three", 0)
        with pytest.raises(SessionNotFoundError):
            runtime.resume(scripted(), session_id="plain", actor_id="b")
    with pytest.raises(ConfigurationError):
        runtime.ask(scripted(), "x")


def test_leaving_a_stream_early_cancels_the_run():
    async def forever(request: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    with sync.Runtime() as runtime:
        with runtime.stream(Agent(FunctionModel(forever)), "x") as stream:
            assert type(next(iter(stream))).__name__ == "RunStarted"
        assert stream.run.outcome == "cancelled"


async def test_ask_sync_works_inside_a_running_loop():
    assert scripted().ask_sync("1 + 2?").check().text == "three"


def test_errors_of_a_run_are_raised_as_they_are():
    class Down(littleghost.MemoryStore):
        async def append(self, id: str, **given: Any) -> Any:
            raise StoreUnavailableError("down") from OSError("disk")

    with sync.Runtime(session_store=Down) as runtime, pytest.raises(StoreUnavailableError) as caught:
        runtime.ask(scripted(), "x", session_id="s")
    assert isinstance(caught.value.__cause__, OSError)
    assert isinstance(caught.value, LittleGhostError)


# Processes


def child(code: str, *args: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(littleghost.__file__).parents[1])}
    command = [
        sys.executable,
        "-X",
        "dev",
        "-W",
        "error",
        "-W",
        "ignore::DeprecationWarning:__main__",
        "-c",
        textwrap.dedent(code),
        *args,
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.skipif(os.name == "nt", reason="a child cannot be sent SIGINT alone")
@pytest.mark.parametrize("what", ["call", "hold", "run"])
def test_ctrl_c_cleans_up_and_is_then_raised(what: str):
    process = child(
        """
        import asyncio, sys
        from littleghost import Agent, sync
        from littleghost.portal import portal
        from littleghost.testing import FunctionModel

        async def wait(*_):
            print("started", flush=True)
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                print("cleaned up", flush=True)

        store = sync.MemoryStore()
        try:
            if sys.argv[1] == "call":
                portal.call(wait)
            elif sys.argv[1] == "hold":
                with store.synchronize("s"):
                    portal.call(wait)
            else:
                with sync.Runtime(session_store=store) as runtime:
                    runtime.ask(Agent(FunctionModel(wait)), "hello", session_id="s")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        with store.synchronize("s", timeout=0):
            pass
        session = sync.Session(id="s", store=store)
        print([message.text for message in session.history()], flush=True)
        raise KeyboardInterrupt
        """,
        what,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    history = "['hello']" if what == "run" else "[]"
    assert out.splitlines() == ["cleaned up", "interrupted", history]
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT


@pytest.mark.skipif(os.name == "nt", reason="a child cannot be sent SIGINT alone")
def test_a_second_ctrl_c_leaves_a_clean_up_that_hangs():
    process = child(
        """
        import asyncio
        from littleghost.portal import portal

        async def stubborn():
            print("started", flush=True)
            try:
                await asyncio.Event().wait()
            finally:
                print("hanging", flush=True)
                await asyncio.Event().wait()

        portal.call(stubborn)
        """
    )
    assert process.stdout is not None
    for line in ("started\n", "hanging\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert process.returncode == -signal.SIGINT


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_after_a_fork_both_processes_go_on():
    process = child(
        """
        import gc, os, threading, warnings
        from littleghost import Message, sync
        from littleghost.portal import portal

        async def loop_id():
            import asyncio
            await asyncio.sleep(0)
            return id(asyncio.get_running_loop())

        store = sync.MemoryStore()
        session = sync.Session(id="s", store=store)
        session.append([Message.user("before")])
        mine = portal.call(loop_id)
        portal._guard.acquire()  # as if another thread were in the middle of it
        pid = os.fork()
        if pid == 0:
            gc.collect()
            assert portal.call(loop_id) != mine
            assert [m.text for m in sync.Session(id="s", store=store).history()] == ["before"]
            with store.synchronize("s", timeout=0):
                pass
            os._exit(7)
        portal._guard.release()
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert portal.call(loop_id) == mine
        session.append([Message.user("after")])
        print(len(session.history()))
        """
    )
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("2\n", "")


def test_a_program_that_closes_nothing_ends_without_a_word(tmp_path: Path):
    process = child(
        """
        import sys
        from littleghost import Message, sync
        store = sync.SQLiteStore(sys.argv[1])
        sync.Session(id="s", store=store).append([Message.user("x")])
        print("done")
        """,
        str(tmp_path / "s.db"),
    )
    out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == ("done\n", "", 0)
