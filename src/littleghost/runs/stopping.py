"""How a run is told to stop: by a token, by the deadline, by the cancellation of the caller's task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from littleghost.cancellation import CancellationToken, Deadline
from littleghost.errors import DeadlineExceeded, ModelError, RunCancelled

__all__ = ["Stopped", "Stopping", "stoppable", "undisturbed"]

Result = TypeVar("Result")


class Stopped(Exception):
    """An effect was cut short because the run was told to stop."""


class Stopping:
    """Notes that a run was told to stop, and cuts short what may be cut.

    A commit never is. It is to be used in the task of the run.

    Args:
        token: Stops the run.
        deadline: When the run must have ended.
        passed: What it is to end with then, where that is a limit and not the caller's wish.

    Attributes:
        error: Why the run was told to stop, or ``None``.
        by_caller: Whether the caller's task was cancelled.
    """

    def __init__(
        self, token: CancellationToken, deadline: Deadline | None, passed: Exception | None = None
    ) -> None:
        self.error: Exception | None = None
        self.by_caller = False
        self._token = token
        self._deadline = deadline
        self._passed = passed
        self._task: asyncio.Task[Any] | None = None
        self._before = 0  # requests that the caller's task had before the run
        self._stoppable = False
        self._poked = False

    @contextmanager
    def watching(self) -> Generator[None]:
        """Listen to the token and the deadline while the block runs, in the current task."""
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        running, token = asyncio.get_running_loop(), self._token
        remove = token.add_callback(lambda: call_on(running, lambda: self.stop(cancelled(token))))
        timer = None
        if self._deadline is not None:
            passed = self._passed or DeadlineExceeded(
                f"the run did not end within {self._deadline.seconds:g} s"
            )
            timer = running.call_later(self._deadline.remaining(), self.stop, passed)
        try:
            yield
        finally:
            remove()
            if timer is not None:
                timer.cancel()

    def stop(self, error: Exception) -> None:
        """Stop the run because of ``error``. To be called on the run's loop; the first call counts."""
        if self.error is None:
            self.error = error
        if self._stoppable and not self._poked and self._task is not None:
            self._poked = True
            self._task.cancel()

    async def cut(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await ``work``, or raise `Stopped` as soon as the run is told to stop."""
        if self.error is not None:
            work.close()
            raise Stopped
        self._stoppable = True
        try:
            return await work
        except asyncio.CancelledError as error:
            if not self._poked and cast("asyncio.Task[Any]", self._task).cancelling() <= self._before:
                raise ModelError("the model was cancelled from within") from error  # by nobody who may
            self.note()
            raise Stopped from None
        finally:
            self._stoppable = False
            if self._poked:
                await self._absorb()

    def note(self) -> None:
        """Tell a cancellation that we asked for ourselves from one by the caller, and note it."""
        task = cast("asyncio.Task[Any]", self._task)
        if self._poked:
            self._poked = False
            if task.uncancel() <= self._before:
                return
        self.by_caller = True
        if self.error is None:
            self.error = RunCancelled("cancelled by the caller")

    async def _absorb(self) -> None:
        """Take back our own cancellation where the work ended before it arrived."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.note()
        if self._poked:
            self._poked = False
            cast("asyncio.Task[Any]", self._task).uncancel()


async def undisturbed(
    work: Coroutine[Any, Any, Result] | asyncio.Task[Result], note: Callable[[], None] | None = None
) -> Result:
    """Await ``work`` to its end, in a task of its own, whoever cancels the caller meanwhile, and however often.

    Some frameworks cancel over and over until the code that they left behind is gone; anyio's cancel scopes do.

    Args:
        work: What must be done.
        note: Called for each cancellation. Without it, a cancellation is raised when the work is done.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if note is not None:
                note()
    if cancelled is not None and note is None:
        if not task.cancelled():
            task.exception()  # seen; the cancellation goes first
        raise cancelled
    return task.result()


def cancelled(token: CancellationToken) -> RunCancelled:
    return RunCancelled(
        f"the run was cancelled: {token.reason}" if token.reason else "the run was cancelled",
        reason=token.reason,
    )


def call_on(running: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call ``callback`` on ``running``: at once where that is the current loop, else soon; not at all where it is closed."""
    try:
        if asyncio.get_running_loop() is running:
            callback()
            running.call_soon_threadsafe(lambda: None)  # it sleeps, where a signal handler has called
            return
    except RuntimeError:
        pass
    try:
        running.call_soon_threadsafe(callback)
    except RuntimeError:
        pass


@contextmanager
def stoppable(token: CancellationToken) -> Generator[None]:
    """Cancel what is awaited inside when ``token`` is, and raise `RunCancelled` in its place."""
    token.check()
    running, task = asyncio.get_running_loop(), cast("asyncio.Task[Any]", asyncio.current_task())
    before, asked = task.cancelling(), False

    def cancel() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    remove = token.add_callback(lambda: call_on(running, cancel))
    try:
        yield
    except asyncio.CancelledError:
        if asked and task.uncancel() <= before:
            raise cancelled(token) from None
        raise
    finally:
        remove()
