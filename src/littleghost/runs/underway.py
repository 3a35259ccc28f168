"""The runs that are under way in a runtime: which of them the current code is part of, what they hold, and how they are all ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from littleghost.cancellation import CancellationToken

__all__ = ["Underway", "UnderwayRun", "held"]

log = logging.getLogger("littleghost")


class UnderwayRun:
    """One run, as long as it lasts.

    Args:
        owner: Whose it is.
        token: Stops it.

    Attributes:
        holds: The store and the session that it has for itself, once it has.
        ended: Cancelled when the run has let go of everything. It can be waited for from any loop.
    """

    def __init__(self, owner: Underway, token: CancellationToken) -> None:
        self.owner, self.token = owner, token
        self.holds: tuple[object, tuple[str | None, str]] | None = None
        self.ended = CancellationToken()
        self.loop = asyncio.get_running_loop()


_inside: ContextVar[tuple[UnderwayRun, ...]] = ContextVar("littleghost_inside", default=())
"""The runs that the current code is part of, outermost first."""


class Underway:
    """The runs of one runtime."""

    def __init__(self) -> None:
        self._runs: set[UnderwayRun] = set()

    def __bool__(self) -> bool:
        return bool(self._runs)

    @contextmanager
    def begin(self, token: CancellationToken) -> Generator[UnderwayRun]:
        """Count a run, which ``token`` stops, while the block runs."""
        run = UnderwayRun(self, token)
        self._runs.add(run)
        reset = _inside.set((*_inside.get(), run))
        try:
            yield run
        finally:
            _inside.reset(reset)
            self._runs.discard(run)
            run.ended.cancel()

    def around(self) -> bool:
        """Whether the current code is part of one of these runs."""
        return any(run.owner is self and not run.ended.cancelled for run in _inside.get())

    async def end(self, reason: str) -> None:
        """Cancel all runs and return when they have settled what was open."""
        for run in tuple(self._runs):
            try:
                run.token.cancel(reason)
            except Exception:
                log.exception("what listened to the cancellation of a run failed")
        for run in tuple(self._runs):
            if not run.loop.is_closed():  # else nothing of it will ever happen
                await run.ended.wait()


def held(store: Any, key: tuple[str | None, str]) -> bool:
    """Whether a run that the current code is part of has this session for itself."""
    return any(
        not run.ended.cancelled and run.holds is not None and run.holds[0] is store and run.holds[1] == key
        for run in _inside.get()
    )
