"""Reading a session from the service: page by page, newest first, no further than the answer needs.

Lists have no filter. A filtered one may miss events that exist, and a history with a hole in it is worse than a slow one.
Source: https://github.com/aws/bedrock-agentcore-sdk-python/issues/564
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import chain, repeat
from typing import Final, TypeVar

from msgspec import Struct

from littleghost.errors import CorruptSessionError
from littleghost.sessions.agentcore.calls import Events, Service
from littleghost.sessions.agentcore.events import CHECKPOINT_V4, CHECKPOINT_V5, Event, identity, kind_of
from littleghost.sessions.agentcore.history import History

__all__ = ["Place", "Reader"]

Taken = TypeVar("Taken")

PAGE: Final = 100
"""How many events a call returns, at most; the service's own limit."""

FEW: Final = 10
"""How many are asked for where all that matters is whether something is newer than what is known."""

PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between two looks at what may not be visible yet."""

VISIBLE: Final = 5.0
"""Seconds until an event that is known to exist has to be seen in a list. What was not is taken for deleted."""

CONTESTED: Final = 3.0
"""Seconds in which who has written a second commit into one place takes it back, unless it was killed."""


class Place(Struct, frozen=True):
    """Where a session is: the pseudonyms of its actor and of itself."""

    actor: str
    session: str


class Reader:
    """Reads sessions of one memory."""

    def __init__(self, service: Service) -> None:
        self._service = service
        service.on_late = self._written_late
        self._awaited: dict[Place, tuple[str, float]] = {}
        self._forked: dict[Place, str] = {}

    def await_event(self, place: Place, event_id: str) -> None:
        """Let the next readings wait for a checkpoint that exists, and that a list may not show yet."""
        self._awaited[place] = (event_id, time.monotonic() + VISIBLE)

    def _written_late(self, actor: str, session: str, event: Event) -> None:
        if _is_checkpoint(event):
            self.await_event(Place(actor, session), str(event["eventId"]))

    def forget(self, place: Place) -> None:
        """Wait for nothing there any more."""
        self._awaited.pop(place, None)

    async def read(
        self,
        place: Place,
        enough: Callable[[History], bool],
        take: Callable[[History], Awaitable[Taken]],
        *,
        contested: bool = False,
    ) -> Taken:
        """Return what ``take`` makes of the newest events, as many of them as are ``enough``.

        Args:
            place: Where.
            enough: Whether what was read is enough.
            take: What makes the answer of it.
            contested: Whether not to wait while two commits have the place of the head, of which one will be taken back.

        Raises:
            CorruptSessionError: It cannot be read, also not some moments later.
        """
        began = time.monotonic()
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            try:
                history, newest = await self._read(place, enough)
                if not contested and self._contested(place, history, time.monotonic() - began):
                    await asyncio.sleep(pause)
                    continue
                taken = await take(history)
            except CorruptSessionError as error:
                # What is missing may only not be visible yet.
                if not getattr(error, "missing", False) or pause == PAUSES[-1]:
                    raise
            else:
                if not self._lags(place, newest):
                    return taken
            await asyncio.sleep(pause)
        raise AssertionError

    async def newer(
        self, place: Place, event_id: str | None, *, likely: int = 0
    ) -> dict[str, str | None] | None:
        """Return the checkpoints that are newer than the one with ``event_id``, of all if that is ``None``: their commits by event id.

        Asks for no payloads, and so costs little. ``None`` where the list is not in order, or has no event ``event_id``.

        Args:
            place: Where.
            event_id: The event.
            likely: How many events are newer, as far as is known.
        """
        size = PAGE if event_id is None else min(PAGE, max(FEW, likely + 2))
        found: dict[str, str | None] = {}
        last: str | None = None
        async for page in self._pages(place, payloads=False, size=size):
            reached = False
            for event in page.items:
                here = str(event["eventId"])
                if last is not None and here >= last:
                    return None
                last = here
                if here == event_id:
                    reached = True
                elif not reached and _is_checkpoint(event):
                    found[here] = identity(event)[1]
            if reached:
                return found
        return found if event_id is None else None

    async def event_ids(self, place: Place) -> tuple[list[str], list[str]]:
        """Return the ids of all events: those of checkpoints, and the others; both oldest first."""
        checkpoints: list[str] = []
        others: list[str] = []
        async for page in self._pages(place, payloads=False):
            for event in page.items:
                (checkpoints if _is_checkpoint(event) else others).append(str(event["eventId"]))
        return sorted(checkpoints), sorted(others)

    async def _read(self, place: Place, enough: Callable[[History], bool]) -> tuple[History, str]:
        history, newest = History(), ""
        async for page in self._pages(place, payloads=True):
            newest = max([newest, *(str(event["eventId"]) for event in page.items if _is_checkpoint(event))])
            history.add(page.items, last=page.token is None)
            if enough(history):
                break
        return history, newest

    async def _pages(self, place: Place, *, payloads: bool, size: int = PAGE) -> AsyncGenerator[Events]:
        token: str | None = None
        seen: set[str] = set()
        while True:
            page = await self._service.list_events(
                place.actor, place.session, payloads=payloads, limit=size, token=token
            )
            yield page
            token = page.token
            if token is None:
                return
            if token in seen:
                raise CorruptSessionError("the service gave the same pagination token twice")
            seen.add(token)

    def _contested(self, place: Place, history: History, waited: float) -> bool:
        """Tell whether another commit follows the same one as the head, and may still be taken back, or the head.

        It happens where a client token was not honoured. Who followed the one that is taken back would let the other one vanish.
        """
        try:
            head = history.head
            rivals = [] if head is None else history.children(head.checkpoint.parent_commit_id)
        except CorruptSessionError:
            return False
        if head is None or len(rivals) < 2 or self._forked.get(place) == head.checkpoint.commit_id:
            return False
        if waited < CONTESTED:
            return True
        self._forked[place] = head.checkpoint.commit_id  # so it stays, and nobody waits again
        return False

    def _lags(self, place: Place, newest: str) -> bool:
        """Tell whether a checkpoint that is known to exist should still show."""
        awaited = self._awaited.get(place)
        if awaited is None:
            return False
        event_id, until = awaited
        if newest >= event_id or time.monotonic() >= until:
            self._awaited.pop(place, None)
            return False
        return True


def _is_checkpoint(event: Event) -> bool:
    return kind_of(event) in {CHECKPOINT_V4, CHECKPOINT_V5}
