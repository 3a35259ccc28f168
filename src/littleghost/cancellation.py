"""Telling work to stop: a token that can be handed on, and a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from littleghost.errors import DeadlineExceeded, RunCancelled

if TYPE_CHECKING:
    import asyncio

__all__ = ["CancellationToken", "Deadline", "Interruptible"]


class CancellationToken:
    """A switch that turns once, from any thread, and tells everyone who asked.

    Cancelling a token cancels its children; cancelling a child leaves its parent alone.

    Args:
        parent: A token whose cancellation is also this one's.
    """

    __slots__ = ("_callbacks", "_cancelled", "_lock", "_parent_link", "_reason")

    def __init__(self, parent: CancellationToken | None = None) -> None:
        self._lock = threading.RLock()  # a signal handler may come in while it is held
        self._cancelled = False
        self._reason: str | None = None
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._parent_link: Callable[[], None] | None = None
        if parent is not None:
            self._parent_link = parent.add_callback(lambda: self.cancel(parent.reason))

    @property
    def cancelled(self) -> bool:
        """Whether the token has been cancelled."""
        return self._cancelled

    @property
    def reason(self) -> str | None:
        """Why it was cancelled, where the one who did it said so."""
        return self._reason

    def cancel(self, reason: str | None = None) -> None:
        """Cancel. The first call counts; callbacks run in the calling thread, all of them, and the first error of one is raised."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled, self._reason = True, reason
            callbacks, self._callbacks = list(self._callbacks.values()), {}
        errors: list[Exception] = []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 (raised below)
                errors.append(error)
        if errors:
            raise errors[0]

    def check(self) -> None:
        """Raise `RunCancelled` if the token has been cancelled."""
        if self._cancelled:
            raise RunCancelled(
                f"cancelled: {self._reason}" if self._reason else "cancelled", reason=self._reason
            )

    def child(self) -> CancellationToken:
        """Return a token that is cancelled with this one and can be cancelled alone."""
        return CancellationToken(self)

    def add_callback(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on cancellation, at once if that has happened, and return a function that takes it back."""
        key = object()
        with self._lock:
            if not self._cancelled:
                self._callbacks[key] = callback
                return lambda: self._callbacks.pop(key, None) and None
        callback()
        return lambda: None

    def detach(self) -> None:
        """Stop listening to the parent, so that a long-lived parent does not keep this token alive."""
        if self._parent_link is not None:
            self._parent_link()
            self._parent_link = None

    async def wait(self) -> None:
        """Return when the token is cancelled."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def done() -> None:
            if not future.done():
                future.set_result(None)

        remove = self.add_callback(lambda: loop.call_soon_threadsafe(done) and None)
        try:
            await future
        finally:
            remove()


class Deadline:
    """A moment on the monotonic clock.

    Args:
        seconds: How far away it is.
    """

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    @property
    def expired(self) -> bool:
        """Whether the moment has passed."""
        return time.monotonic() >= self.at

    def remaining(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self.at - time.monotonic())

    def check(self) -> None:
        """Raise `DeadlineExceeded` if the moment has passed."""
        if self.expired:
            raise DeadlineExceeded(f"the deadline of {self.seconds:g} s has passed")

    def __repr__(self) -> str:
        return f"Deadline({self.seconds:g} s, {self.remaining():.3f} s left)"


class Interruptible(Protocol):
    """What an operation asks while it works: whether to go on, and how long it may. A `RunContext` is one."""

    @property
    def cancellation(self) -> CancellationToken:
        """The token that stops the work."""
        ...

    @property
    def deadline(self) -> Deadline | None:
        """When the work must have ended, or ``None``."""
        ...

    def check(self) -> None:
        """Raise `RunCancelled` or `DeadlineExceeded` where the work must stop."""
        ...
