"""Going through all sessions of a store, around what is damaged, and finding what no list shows.

By id, page after page. A session whose own entry in the list is damaged takes its page with it, and all that follows; from there on the
others are found by the time at which they were last written, in windows that are halved until the damaged one is alone in its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from littleghost.errors import ProtocolError
from littleghost.sessions.commits import scope_of
from littleghost.sessions.contract import ALL_ACTORS, AllActors, Damage, SessionInfo, SessionStore

__all__ = ["Gap", "unlisted", "walk"]

PAGE: Final = 100

LATEST: Final = float(1 << 33)
"""No clock is as late as that, in seconds since the epoch."""

NARROWEST: Final = 1e-6
"""Seconds: no window is halved below."""

FAILURES: Final = 10_000
"""After so many failures no window is halved any more. One damaged entry takes about fifty."""


class Gap(Struct, frozen=True, kw_only=True):
    """Sessions that a store cannot list, one at least.

    Attributes:
        since: When they were last written, or later, as far as that is known.
        until: When that was before.
        problem: What is wrong.
    """

    since: float | None
    until: float | None
    problem: str


async def walk(store: SessionStore, actor_id: str | AllActors | None) -> AsyncGenerator[SessionInfo | Gap]:
    """Yield each session that there is all the while once, in the order of the list.

    Beyond damage they come newest first, and one that is written meanwhile may be left out.

    Raises:
        ProtocolError: The store cannot list its sessions, nor find them by time.
    """
    last: SessionInfo | None = None
    try:
        async with aclosing(_pages(store, actor_id, PAGE)) as infos:
            async for info in infos:
                last = info
                yield info
    except ProtocolError:
        if "sessions_by_time" not in store.capabilities:
            raise
    else:
        return
    async with aclosing(_pages(store, actor_id, PAGE, order="updated", since=0.0, until=0.0)) as none:
        async for _ in none:  # fails where no list can be had at all
            pass
    gap: Gap | None = None
    async with aclosing(_Around(store, actor_id, last).damage()) as found:
        async for item in found:
            if isinstance(item, Gap):
                if gap is not None and gap.since == item.until:
                    gap = msgspec.structs.replace(gap, since=item.since)
                    continue
                gap, item = item, gap
            if item is not None:
                yield item
    if gap is not None:
        yield gap


async def unlisted(
    store: SessionStore,
    actor_id: str | AllActors | None,
    seen: int,
    told: Container[tuple[str | None, str | None]] = (),
    gaps: Sequence[Gap] = (),
) -> AsyncGenerator[Damage]:
    """Yield what is damaged where a store has more sessions than ``seen``: damage can hide one from every list.

    A store that cannot tell how many it has, or verify itself, is believed. Where others begin sessions meanwhile, it is verified for
    nothing.

    Args:
        store: The store.
        actor_id: Whose sessions.
        seen: How many are known, whole or damaged.
        told: Actor and id of those that are known to be damaged, which are not told again.
        gaps: What `walk` found; told last, unless all that is missing has its name from the check of the store.
    """
    missing, named = 0, False
    if store.capabilities >= {"statistics", "verify"}:
        try:
            missing = (await store.statistics(actor_id=actor_id)).sessions - seen
            cursor: str | None = None
            while missing > 0:
                step = await store.verify(limit=PAGE, cursor=cursor)
                for damage in step.damaged:
                    if damage.id is not None and actor_id not in (ALL_ACTORS, damage.actor_id):
                        continue
                    if damage.id is not None and (damage.actor_id, damage.id) in told:
                        continue
                    missing -= damage.id is not None
                    named = True
                    yield damage
                cursor = step.cursor
                if cursor is None:
                    break
        except ProtocolError as error:
            if not gaps:
                yield Damage(id=None, actor_id=None, problem=str(error))
    if missing > 0 or not named:
        for gap in gaps:
            yield Damage(id=None, actor_id=None, problem=gap.problem)


class _Around:
    """What is listed by time, after ``last`` in the list by id."""

    def __init__(
        self, store: SessionStore, actor_id: str | AllActors | None, last: SessionInfo | None
    ) -> None:
        self._store = store
        self._actor_id = actor_id
        self._after = None if last is None else _key(last)
        self._seen: set[tuple[str, str]] = set()
        self._failures = 0

    async def damage(self) -> AsyncGenerator[SessionInfo | Gap]:
        for since, until in ((LATEST, None), (0.0, LATEST), (None, 0.0)):
            async with aclosing(self._within(since, until)) as found:
                async for item in found:
                    yield item

    async def _within(self, since: float | None, until: float | None) -> AsyncGenerator[SessionInfo | Gap]:
        middle = None
        if since is not None and until is not None and until - since > NARROWEST:
            middle = (since + until) / 2
        try:
            # One that is damaged takes its page with it, so in the end they are as small as can be.
            pages = _pages(
                self._store,
                self._actor_id,
                1 if middle is None else PAGE,
                order="updated",
                since=since,
                until=until,
            )
            async with aclosing(pages):
                async for info in pages:
                    key = _key(info)
                    if (self._after is None or key > self._after) and key not in self._seen:
                        self._seen.add(key)
                        yield info
        except ProtocolError as error:
            problem = str(error)
        else:
            return
        self._failures += 1
        if middle is None or self._failures > FAILURES:
            problem = f"cannot be listed, nor can what was written about then: {problem}"
            yield Gap(since=since, until=until, problem=problem)
            return
        for part in ((middle, until), (since, middle)):
            async with aclosing(self._within(*part)) as found:
                async for item in found:
                    yield item


async def _pages(
    store: SessionStore, actor_id: str | AllActors | None, size: int, **options: Any
) -> AsyncGenerator[SessionInfo]:
    cursor: str | None = None
    while True:
        page = await store.sessions(actor_id=actor_id, limit=size, cursor=cursor, **options)
        for info in page.items:
            yield info
        if page.cursor is None:
            return
        if page.cursor == cursor:
            raise ProtocolError(f"{type(store).__name__}.sessions gives the same page over and over")
        cursor = cast("str", page.cursor)


def _key(info: SessionInfo) -> tuple[str, str]:
    return scope_of(info.actor_id), info.id
