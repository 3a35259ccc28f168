"""The way from synchronous code to the library: one private event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["Portal"]

Answer = TypeVar("Answer")
_TICK = 0.1 if os.name == "nt" else None  # on Windows a wait without time-out cannot be interrupted


class Portal:
    """Runs coroutines for threads that have no event loop, or whose loop must not be used.

    The loop starts at the first call, in a daemon thread, so that a program that never closes it still ends. After ``fork`` the
    child gets a loop of its own.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._inherited: list[Any] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._start_anew)

    def call(
        self, function: Callable[..., Coroutine[Any, Any, Answer]], *args: Any, **options: Any
    ) -> Answer:
        """Await ``function(*args, **options)`` with the caller's context variables, and return its answer.

        Ctrl-C cancels the coroutine, waits until it has cleaned up, and is then raised.

        Raises:
            RuntimeError: Called from the portal's own thread, where it would wait for itself.
        """
        loop = self._running()
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "the synchronous interface was called from its own event loop; use the async one there"
            )
        context = contextvars.copy_context()
        done: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        tasks: list[asyncio.Task[Answer]] = []

        def start() -> None:
            try:
                task = loop.create_task(function(*args, **options), context=context)
            except BaseException as error:  # noqa: BLE001 (handed to the caller)
                done.set_exception(error)
                return
            tasks.append(task)
            task.add_done_callback(lambda ended: _hand_over(ended, done))

        loop.call_soon_threadsafe(start)
        try:
            return _wait(done)
        except BaseException:
            if not done.done():
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                _outwait(done)
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                started = threading.Event()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop, started), name="littleghost-portal", daemon=True
                )
                self._thread.start()
                started.wait()
            return self._loop

    def _start_anew(self) -> None:
        """Leave the parent's loop alone, in the child of a fork: closing it would disturb the parent."""
        self._inherited.append(self._loop)
        self._guard, self._loop, self._thread = threading.Lock(), None, None


def _serve(loop: asyncio.AbstractEventLoop, started: threading.Event) -> None:
    asyncio.set_event_loop(loop)
    loop.call_soon(started.set)
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):
            # Raised in a task, which has it too and hands it to who awaits that; the loop goes on for all the others.
            continue


def _hand_over(task: asyncio.Task[Answer], done: concurrent.futures.Future[Answer]) -> None:
    if task.cancelled():
        done.set_exception(concurrent.futures.CancelledError())
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


def _wait(done: concurrent.futures.Future[Answer]) -> Answer:
    while True:
        try:
            return done.result(_TICK)
        except concurrent.futures.TimeoutError:
            if done.done():
                return done.result()


def _outwait(done: concurrent.futures.Future[Any]) -> None:
    """Wait for the cleaning up; a second Ctrl-C leaves at once."""
    try:
        _wait(done)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001, S110 (what interrupted the call is raised, not what became of it)
        pass


portal = Portal()
"""The one that `littleghost.sync` and ``Agent.ask_sync`` share. It holds a thread, and nothing of any user."""
