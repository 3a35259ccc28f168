"""The way from synchronous code to the library: one private event loop in a thread of its own."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

__all__ = ["Portal"]

Answer = TypeVar("Answer")
_TICK = 0.1 if os.name == "nt" else -1  # on Windows a wait without time-out cannot be interrupted


class Portal:
    """Runs coroutines for threads that have no event loop, or whose loop must not be used.

    The loop starts at the first call, in a daemon thread, so that a program that never closes it still ends. After ``fork`` the
    child gets a loop of its own.

    Ctrl-C is raised on any line of the main thread. So nothing that the two threads share has a state that a line can leave halfway: no
    `threading.Condition`, nor what is made of it (`concurrent.futures.Future`, `threading.Event`), for one whose ``__enter__`` was
    interrupted stays locked, and the loop would wait for it. Nor is the thread one of `threading.Thread`, whose ``start`` is such a wait.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._serving: tuple[asyncio.AbstractEventLoop, int] | None = None
        self._inherited: list[Any] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start_anew)

    def call(
        self, function: Callable[..., Coroutine[Any, Any, Answer]], *args: Any, **options: Any
    ) -> Answer:
        """Await ``function(*args, **options)`` with the caller's context variables, and return its answer.

        Ctrl-C cancels the coroutine, or keeps it from beginning, waits until it has cleaned up, and is then raised.

        Raises:
            RuntimeError: Called from the portal's own thread, where it would wait for itself.
        """
        loop, thread = self._running()
        if threading.get_ident() == thread:
            raise RuntimeError(
                "the synchronous interface was called from its own event loop; use the async one there"
            )
        call = _Call(loop, partial(function, *args, **options))
        try:
            loop.call_soon_threadsafe(call.start)
            call.wait()
        except BaseException:
            loop.call_soon_threadsafe(call.cancel)
            call.wait()  # a second Ctrl-C leaves at once
            raise
        return call.result()

    def _running(self) -> tuple[asyncio.AbstractEventLoop, int]:
        with self._guard:
            if self._serving is None:
                made: list[asyncio.AbstractEventLoop | BaseException] = []
                ready = threading.Lock()
                ready.acquire()
                thread = _thread.start_new_thread(_serve, (made, ready))
                while not made and not ready.acquire(timeout=_TICK):
                    pass
                if isinstance(made[0], BaseException):
                    raise made[0]
                self._serving = made[0], thread
            return self._serving

    def _start_anew(self) -> None:
        """Leave the parent's loop alone, in the child of a fork: closing it would disturb the parent."""
        self._inherited.append(self._serving)
        self._guard, self._serving = threading.Lock(), None


class _Call(Generic[Answer]):
    """One coroutine on its way through the loop. `start` and `cancel` are for the loop's thread, the rest for the caller's."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, Answer]]
    ) -> None:
        self._loop, self._work = loop, work
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[Answer] | None = None
        self._answers: list[Answer] = []
        self._error: BaseException | None = None
        self._over = False
        self._ended = threading.Lock()  # held until it is over
        self._ended.acquire()

    def start(self) -> None:
        try:
            self._task = self._loop.create_task(self._work(), context=self._context)
        except BaseException as error:  # noqa: BLE001 (handed to the caller)
            self._end(error)
        else:
            self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._over:  # it did not get as far as the loop
            self._end(concurrent.futures.CancelledError())

    def _done(self, task: asyncio.Task[Answer]) -> None:
        if task.cancelled():
            self._end(concurrent.futures.CancelledError())
        elif (error := task.exception()) is not None:
            self._end(error)
        else:
            self._answers.append(task.result())
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        # No task ends in the caller's thread, where Ctrl-C would be lost in what asyncio has called at the end of each.
        self._task, self._error, self._over = None, error, True
        self._ended.release()

    def wait(self) -> None:
        while not self._over and not self._ended.acquire(timeout=_TICK):
            pass

    def result(self) -> Answer:
        error, self._error = self._error, None  # its traceback has the frames that have this
        if error is None:
            return self._answers[0]
        try:
            raise error
        finally:
            del error


def _serve(made: list[asyncio.AbstractEventLoop | BaseException], ready: threading.Lock) -> None:
    """Serve for ever. The loop is made here, where nothing interrupts that."""
    threading.current_thread().name = "littleghost-portal"
    try:
        loop = asyncio.new_event_loop()
        made.append(loop)
    except BaseException as error:  # noqa: BLE001 (handed to the caller)
        made.append(error)
        return
    finally:
        ready.release()
    asyncio.set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            # Raised in a task, which has it too and hands it to who awaits that; the loop goes on for all the others.
            continue


portal = Portal()
"""The one that `littleghost.sync` and ``Agent.ask_sync`` share. It holds a thread, and nothing of any user."""
