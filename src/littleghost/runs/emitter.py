"""Tells whoever listens to a run what happens in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

__all__ = ["Emitter"]


class Emitter:
    """Numbers events, stamps them and passes them on.

    Args:
        listen: Takes an event; ``None`` where nobody listens.
        ready: Returns when there is room for more events.
    """

    def __init__(
        self,
        listen: Callable[[Any], None] | None = None,
        ready: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.heard = listen is not None
        self._listen = listen
        self._ready = ready
        self._seq = 0

    def emit(self, event: Any) -> None:
        """Pass ``event`` on."""
        if self._listen is None:
            return
        self._seq += 1
        msgspec.structs.force_setattr(event, "seq", self._seq)
        msgspec.structs.force_setattr(event, "at", time.time())
        self._listen(event)

    async def ready(self) -> None:
        """Return when there is room for more."""
        if self._ready is not None:
            await self._ready()
