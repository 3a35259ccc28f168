"""The event loop of a command, which Ctrl-C and SIGTERM stop without ever raising an exception inside it.

What a signal's handler raises comes out of whatever the main thread does just then. Between the loop's taking a task's wake-up out of its
queue and running it, that wake-up is lost, and the loop's own clearing up waits for that task for ever. `asyncio.run` raises so at the
second Ctrl-C, and in what it clears up at the first. So here a handler only lets the loop cancel the work, and the exception is raised once
the loop stands still.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from littleghost.cli.ctrl_c import TERMINATED

__all__ = ["Stoppable", "canceller", "run"]

Answer = TypeVar("Answer")

PATIENT = 3
"""How many signals let the work clear up. The next one ends a program that is stuck, as it would one without a handler."""


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return what comes of ``work``, in an event loop of its own, which Ctrl-C stops. For the main thread only.

    Raises:
        KeyboardInterrupt: It was pressed.
    """
    with Stoppable() as stoppable:
        return stoppable.run(work)


class Stoppable:
    """An event loop, while the block lasts; meanwhile signals stop what runs in it, and are raised at no other place than its end.

    One that comes when nothing runs is kept for the next `run`, or else for the end of the block. So what has to be whole, or cleared away,
    can be around a `run`, in the block. For the main thread only.

    Args:
        *numbers: The signals, Ctrl-C's unless given. One that is ignored, or that somebody else handles, is left alone. SIGTERM is for what
            leaves something behind where it is not stopped but killed: a loop that waits in a call, as for who reads the output, does not
            get to it, and it is sent but once.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers or (signal.SIGINT,)
        self._runner = asyncio.Runner()
        self._kept: int | None = None
        self._stop = canceller(None)
        self._before: list[tuple[int, Any]] = []
        self._pipe: tuple[int, int] | None = None
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        if sys.platform != "win32":  # where the loop does so itself
            self._wake()
        for number in self._numbers:
            before = signal.getsignal(number)
            if before in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, self._heard)
                self._before.append((number, before))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._runner.close()
        finally:
            if self._pipe is not None:
                signal.set_wakeup_fd(self._wakeup_before)
                for descriptor in self._pipe:
                    os.close(descriptor)
            while self._before:
                signal.signal(*self._before.pop())
        if kind is None:
            self._raise_kept()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        return self._runner.get_loop()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Return what comes of ``work``.

        An error of the work's own goes before a signal.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, be it too late to stop the work.
            SystemExit: There was a SIGTERM; its status is 143.
        """
        task = self.loop.create_task(work)
        self._stop = canceller(task)
        if self._kept is not None:
            task.cancel()
        try:
            answer = self.loop.run_until_complete(task)
        except asyncio.CancelledError:
            self._raise_kept()
            raise
        except BaseException:
            self._kept = None
            raise
        self._raise_kept()
        return answer

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self._kept is None:
            self._kept = number
        self._stop(number)

    def _raise_kept(self) -> None:
        kept, self._kept = self._kept, None
        if kept == signal.SIGTERM:
            raise SystemExit(TERMINATED) from None
        if kept is not None:
            raise KeyboardInterrupt from None

    def _wake(self) -> None:
        """Let each signal wake the loop, at once.

        Python runs a handler when its main thread gets to it, and one that has just begun to wait for the loop's files, in C, does not.
        """
        heard, told = self._pipe = os.pipe()
        os.set_blocking(told, False)
        self.loop.add_reader(heard, os.read, heard, 512)
        self._wakeup_before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)


def canceller(task: asyncio.Task[Any] | None) -> Callable[..., None]:
    """Return what a signal's handler may call to cancel ``task``, with the signal's number unless that is Ctrl-C's.

    It raises nothing. Where that was done `PATIENT` times already, the signal ends the program.
    """
    signals = 0

    def cancel(number: int = signal.SIGINT) -> None:
        nonlocal signals
        signals += 1
        if signals > PATIENT:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if task is not None:
            with suppress(RuntimeError):  # the loop has ended
                task.get_loop().call_soon_threadsafe(task.cancel)

    return cancel
