"""Ctrl-C, from a program's first prompt to its end: no moment at which a press is lost."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["INTERRUPTED", "TERMINATED", "CtrlC", "end_at_once", "not_lost", "signals_held"]

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C ended."""

TERMINATED = 143
"""The exit status of a program that SIGTERM ended."""

PATIENCE = 0.02
"""Seconds that the main thread gets to look after a signal before it is nudged again."""


class CtrlC:
    """What Ctrl-C does, while the block lasts: it ends a `read`, or calls what a `calls` says, or is kept for the next of these.

    The handler is never changed, only what it does: between an answer and the prompt after it there is no gap for a press to fall into.
    For the main thread only.

    Python runs a handler when its main thread gets to it, and a main thread that has just begun to wait for a key, in C, does not. So a
    second thread hears of each press at once, and interrupts that wait with a signal of its own until Python has looked.
    """

    def __init__(self) -> None:
        self._do = self._keep
        self._kept = False
        self._before: list[tuple[int, Any]] = []
        self._looked = False
        self._heard = -1
        self._told = -1
        self._wakeup_before = -1
        self._listener: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.platform != "win32":  # there is neither such a wait nor such a signal
            self._heard, self._told = os.pipe()
            os.set_blocking(self._told, False)
            self._handle(signal.SIGURG, self._look)
            self._wakeup_before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
            self._listener = threading.Thread(
                target=self._listen, args=(threading.get_ident(),), name="littleghost Ctrl-C", daemon=True
            )
            self._listener.start()
        self._handle(signal.SIGINT, self._pressed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._do = self._keep
        if self._listener is not None:
            signal.set_wakeup_fd(self._wakeup_before)
            os.write(self._told, b"\0")
            self._listener.join()
            os.close(self._told)
            os.close(self._heard)
        while self._before:
            signal.signal(*self._before.pop())

    def read(self, how: Callable[[], str]) -> str:
        """Return what ``how`` reads.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile, or since what was done before.
        """
        self._do = _interrupt
        try:
            if self.pressed():
                raise KeyboardInterrupt
            return how()
        finally:
            self._do = self._keep

    @contextmanager
    def calls(self, action: Callable[[], None]) -> Generator[None]:
        """Call ``action`` at each press, from within whatever runs; at once for one that was kept."""
        self._do = action
        try:
            if self.pressed():
                action()
            yield
        finally:
            self._do = self._keep

    def pressed(self) -> bool:
        """Whether a press was kept, which is done with by this."""
        kept, self._kept = self._kept, False
        return kept

    def _look(self) -> None:
        self._looked = True  # and no lock, for one handler may come in the middle of another

    def _pressed(self) -> None:
        self._do()

    def _keep(self) -> None:
        self._kept = True

    def _handle(self, number: int, action: Callable[[], None]) -> None:
        def handler(_number: int, _frame: FrameType | None) -> None:
            action()

        self._before.append((number, signal.signal(number, handler)))

    def _listen(self, main: int) -> None:
        while sys.platform != "win32":
            for number in os.read(self._heard, 512):
                if number == 0:
                    return
                if number != signal.SIGINT:
                    continue
                self._looked = False
                while not self._looked:
                    signal.pthread_kill(main, signal.SIGURG)
                    time.sleep(PATIENCE)


def end_at_once() -> Callable[[], None]:
    """Let Ctrl-C end the program without a word, where nothing is begun yet or all is done; return what undoes this.

    For the main thread only.
    """

    def leave(_number: int, _frame: FrameType | None) -> None:
        os._exit(INTERRUPTED)

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell lets what runs in the background ignore it
        signal.signal(signal.SIGINT, leave)

    def undo() -> None:
        signal.signal(signal.SIGINT, before)

    return undo


@contextmanager
def not_lost() -> Generator[None]:
    """Send a signal again, while the block lasts, whose handler raised in what Python calls at the end of an object.

    Nothing raised gets out of a weak reference's callback or a ``__del__``. Python writes it to standard error instead, with where it was,
    and goes on. It is Ctrl-C, or SIGTERM where its handler exits with `TERMINATED`.
    """
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            number, status = signal.SIGINT, INTERRUPTED
        elif isinstance(unraisable.exc_value, SystemExit) and unraisable.exc_value.code == TERMINATED:
            number, status = signal.SIGTERM, TERMINATED
        else:
            before(unraisable)
            return
        try:
            _thread.start_new_thread(_send_later, (number,))
        except RuntimeError:  # the interpreter is at its end
            os._exit(status)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _send_later(number: signal.Signals) -> None:
    time.sleep(PATIENCE)
    if sys.platform == "win32":
        _thread.interrupt_main(number)
    else:  # which also interrupts what the main thread waits for
        signal.pthread_kill(threading.main_thread().ident or 0, number)


@contextmanager
def signals_held(*numbers: signal.Signals) -> Generator[None]:
    """Let the signals ``numbers`` wait for the end of the block, and then do what they do. For the main thread only."""
    held: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        held.append(number)

    before = [(number, signal.signal(number, hold)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        for number in held:
            signal.raise_signal(number)


def _interrupt() -> None:
    raise KeyboardInterrupt
