"""Looking after a store: whether all of it can be read, and what is old enough to go."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from littleghost import data, transcript
from littleghost.errors import DataError, ProtocolError, StoreError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.commits import check_expiry
from littleghost.sessions.contract import ALL_ACTORS, AllActors, SessionInfo, SessionStore, Verified
from littleghost.sessions.transfer import need
from littleghost.sessions.walk import Gap, walk

__all__ = ["expire_sessions", "retention", "unfinished_sessions", "verify_sessions"]

log = logging.getLogger("littleghost")

TURN: Final = 32
"""So many messages are read at a time to find the last turn of a session."""

GRACE: Final = 10.0
"""Seconds that a step of a sweep gets to end, when the service does."""


def verify_sessions(store: SessionStore, *, batch: int = 100) -> AsyncGenerator[Verified]:
    """Read every session of ``store`` whole, and yield what each step found. Nothing is repaired, and no damage ends it.

    Args:
        store: The store, which goes on working meanwhile.
        batch: How many sessions a step looks at, at most.

    Raises:
        UnsupportedError: The store cannot verify, nor list the sessions of all actors.
        StoreUnavailableError: The store cannot be reached.
    """
    if "verify" not in store.capabilities:
        need(store, "verify_sessions", "sessions", "all_actors")
    return _verify(store, batch)


async def _verify(store: SessionStore, batch: int) -> AsyncGenerator[Verified]:
    cursor: str | None = None
    while True:
        step = await store.verify(limit=batch, cursor=cursor)
        yield step
        if step.cursor is None:
            return
        if step.cursor == cursor:
            raise ProtocolError(f"{type(store).__name__}.verify takes the same step over and over")
        cursor = step.cursor


def unfinished_sessions(
    store: SessionStore, *, actor_id: str | AllActors | None = ALL_ACTORS
) -> AsyncGenerator[SessionInfo]:
    """Yield the sessions whose last run has not come to an answer: it was killed, stopped or failed, waits for answers, or is under way.

    For whoever starts and wants to go on with them, see `Runtime.resume`; a run that is under way elsewhere holds its session, and
    ``busy="raise"`` leaves it alone. Those in which an agent worked as a tool are left out: the session around each
    goes on with it. Of each session the end is read, never the whole. One that cannot be read is logged and left out.

    Args:
        store: The store.
        actor_id: Whose sessions; everybody's by default.

    Raises:
        UnsupportedError: The store cannot list these sessions.
        StoreUnavailableError: The store cannot be reached.
    """
    needed = ["sessions", "all_actors"] if actor_id is ALL_ACTORS else ["sessions"]
    need(store, "unfinished_sessions", *needed)
    return _unfinished(store, actor_id)


async def _unfinished(store: SessionStore, actor_id: str | AllActors | None) -> AsyncGenerator[SessionInfo]:
    async with aclosing(walk(store, actor_id)) as found:
        async for info in found:
            if isinstance(info, Gap):
                log.warning("sessions that cannot be listed were not looked at: %s", info.problem)
                continue
            if transcript.parent_of(info.metadata) is not None:
                continue  # the run that it is inside of goes on with it
            try:
                end = await _last_turn(store, info)
            except StoreUnavailableError:
                raise
            except StoreError as error:
                log.warning("session %r was not looked at (%s)", info.id, type(error).__name__)
                continue
            if transcript.is_unfinished(end):
                yield info


async def _last_turn(store: SessionStore, info: SessionInfo) -> list[Message]:
    """Return the end of a session, from its last assistant message on."""
    messages: list[Message] = []
    before: int | None = None
    while not any(message.role == "assistant" for message in messages):
        page = await store.tail(info.id, limit=TURN, before=before, actor_id=info.actor_id)
        messages[:0] = page.items
        if not page.items or page.cursor is None:
            break
        before = page.cursor
    return messages


def expire_sessions(
    store: SessionStore, *, expire_after: timedelta | float, batch: int = 100, pause: float = 0.0
) -> AsyncGenerator[int]:
    """Delete all sessions, of any actor, that nobody has written to for ``expire_after``; yield how many each step deleted.

    One that is written meanwhile stays. To stop early is safe: what was deleted is gone, the rest is not touched.

    Args:
        store: The store.
        expire_after: How long ago the last writing must be; seconds, or a `timedelta`.
        batch: How many sessions a step deletes at most. Other writers come between two steps.
        pause: Seconds between two steps, to leave the store to others.

    Raises:
        DataError: ``expire_after`` is no positive time.
        UnsupportedError: The store cannot expire sessions.
        StoreUnavailableError: The store cannot be reached.
    """
    need(store, "expire_sessions", "expire")
    seconds = _seconds(expire_after, "expire_after")
    check_expiry(seconds, batch)
    return _expire(store, seconds, batch, pause)


async def _expire(store: SessionStore, seconds: float, batch: int, pause: float) -> AsyncGenerator[int]:
    while True:
        deleted = await store.expire(expire_after=seconds, limit=batch)
        if deleted:
            yield deleted
        if deleted < batch:
            return
        await asyncio.sleep(pause)


@asynccontextmanager
async def retention(
    store: SessionStore,
    *,
    expire_after: timedelta | float,
    every: timedelta | float = 3600.0,
    batch: int = 100,
    pause: float = 0.1,
) -> AsyncGenerator[None]:
    """Delete what has expired in the background, at once and then again and again, for as long as the block lasts.

    For a service: any number of processes may do it for one store. What goes wrong is logged under ``littleghost``, and tried again
    the next time; nothing of it reaches the block. Leaving the block lets the step under way end, for ten seconds at most, and
    nothing is deleted afterwards.

    Args:
        store: The store.
        expire_after: How long ago the last writing must be; seconds, or a `timedelta`.
        every: How long from the end of one sweep to the beginning of the next, give or take a tenth so that the processes of a service
            do not all come at the same moment.
        batch: How many sessions are deleted in one step.
        pause: Seconds between two steps.

    Raises:
        DataError: A time is no positive one.
        UnsupportedError: The store cannot expire sessions.
    """
    need(store, "retention", "expire")
    seconds, interval = _seconds(expire_after, "expire_after"), _seconds(every, "every")
    check_expiry(seconds, batch)
    if not interval > 0:
        raise DataError.at("every", "must be more than 0 seconds")
    leaving = asyncio.Event()
    sweep = _sweep(store, leaving, seconds, interval, batch, pause)
    task = asyncio.create_task(sweep, name="littleghost retention")
    try:
        yield
    finally:
        leaving.set()
        try:
            # A step that is cancelled under way may still take place, and after the block nothing should.
            await asyncio.wait([task], timeout=GRACE)
        finally:
            task.cancel()
            await asyncio.wait([task])  # not by awaiting it, which could not tell its cancellation from ours


async def _sweep(
    store: SessionStore, leaving: asyncio.Event, seconds: float, interval: float, batch: int, pause: float
) -> None:
    while not leaving.is_set():
        try:
            deleted = 0
            async with aclosing(_expire(store, seconds, batch, pause)) as steps:
                async for number in steps:
                    deleted += number
                    if leaving.is_set():
                        break
            if deleted:
                log.info("retention deleted %d sessions", deleted)
        except Exception:
            log.exception(
                "retention could not delete what has expired; it is tried again in %.0f s", interval
            )
        with suppress(TimeoutError):
            await asyncio.wait_for(leaving.wait(), interval * random.uniform(0.9, 1.1))  # noqa: S311 (no secret)


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DataError.at(name, f"expected seconds or a timedelta, got {data.kind(value)}")
    return float(value)
