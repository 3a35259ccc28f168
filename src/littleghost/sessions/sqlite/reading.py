"""What reads: each function is done within one transaction, and sees one moment."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from littleghost.sessions.commits import Listing, actor_of, scope_of, unpack_bodies, unpack_object, window
from littleghost.sessions.contract import AllActors, SessionInfo, Snapshot, Statistics
from littleghost.sessions.sqlite import rows
from littleghost.sessions.sqlite import statements as sql
from littleghost.sessions.sqlite.rows import Name, rowid
from littleghost.sessions.sqlite.writing import revision_of

__all__ = ["Stored", "figures", "listed", "load", "tail"]

DECODE_IN_THREAD = 1_000_000
"""From this many bytes on a session is decoded in the reader's thread and not on the event loop."""


class Stored(Struct, frozen=True):
    """A session as it was read, not yet decoded."""

    bodies: Sequence[bytes]
    state: bytes
    metadata: bytes
    revision: str
    count: int

    def snapshot(self) -> Snapshot:
        """Return it decoded."""
        return Snapshot(
            messages=unpack_bodies(self.bodies, self.count),
            state=unpack_object(self.state, "state"),
            metadata=unpack_object(self.metadata, "metadata"),
            revision=self.revision,
            count=self.count,
        )


def load(db: sqlite3.Connection, name: Name) -> Stored | Snapshot | None:
    """Return a session, decoded if that takes long; ``None`` where there is none."""
    head, rest = rows.read_head(db, name, sql.SNAPSHOT)
    if head is None:
        return None
    checksum, state, metadata = rest
    if checksum != rows.body_sum(rowid(head.key, head.number), head.epoch, state, metadata):
        raise rows.damaged(name[1])
    bodies = rows.bodies(db, name, head, head.root, head.number)
    if sum(map(len, bodies)) != head.size:
        raise rows.damaged(name[1])
    stored = Stored(bodies, state, metadata, revision_of(head.key, head.epoch, head.number), head.count)
    size = head.size + len(state) + len(metadata)
    return stored if size < DECODE_IN_THREAD else stored.snapshot()


def tail(
    db: sqlite3.Connection, name: Name, limit: int, before: int | None
) -> tuple[Sequence[bytes], int, int, int, int]:
    """Return the bodies with the page in them, its bounds, how many messages are before the bodies, and how many are in them."""
    head, _ = rows.read_head(db, name)
    start, end = window(head.count if head else 0, limit, before)
    if head is None or start == end:
        return [], 0, 0, 0, 0

    def count_at(number: int) -> int:
        return rows.count_at(db, name, head, number)

    def first_with(messages: int) -> int:
        """The first commit after which there were at least so many messages. Counts only grow from the root on."""
        low, high = head.root, head.number
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if count_at(middle) >= messages else (middle + 1, high)
        return low

    first = first_with(start + 1)
    last = head.number if end == head.count else first_with(end)
    skipped = count_at(first - 1) if first > head.root else 0
    held = (head.count if last == head.number else count_at(last)) - skipped
    return rows.bodies(db, name, head, first, last), start, end, skipped, held


def listed(db: sqlite3.Connection, asked: Listing) -> list[SessionInfo]:
    """Return the sessions of a page and the one after it."""
    by_time = asked.order == "updated"
    found = [_info(row) for row in (_by_time if by_time else _by_id)(db, asked)]
    last = None
    for place in [asked.after, *found] if asked.after else found:
        rank = (-(place.updated_at or 0.0) if by_time else 0.0, scope_of(place.actor_id), place.id)
        if last is not None and rank <= last:  # else who follows the cursors might never come to an end
            raise rows.damaged(place.id)
        last = rank
    return found


def _by_id(db: sqlite3.Connection, asked: Listing) -> list[Any]:
    # Where nothing was asked of the time none is compared: one that is damaged must be met, and not passed over.
    since, until = asked.since, asked.until
    after, limit = asked.after, _one_more(asked)
    if isinstance(asked.actor_id, AllActors):
        # Every scope has a character.
        key = ("", "") if after is None else after.key
        return db.execute(sql.NEXT_OF_ALL, (*key, since, until, limit)).fetchall()
    scope = scope_of(asked.actor_id)
    if after is None:
        return db.execute(sql.FIRST_SESSIONS, (scope, since, until, limit)).fetchall()
    return db.execute(sql.NEXT_SESSIONS, (scope, after.id, since, until, limit)).fetchall()


def _by_time(db: sqlite3.Connection, asked: Listing) -> list[Any]:
    since, until = _span(asked)
    moment, key = float("inf"), ("", "")
    if asked.after is not None and asked.after.updated_at is not None:
        moment, key = asked.after.updated_at, asked.after.key
    span = (rows.hour_of(since), rows.hour_of(min(until, moment)), since, until, moment)
    if isinstance(asked.actor_id, AllActors):
        return db.execute(sql.RECENT_OF_ALL, (*span, *key, _one_more(asked))).fetchall()
    scope = scope_of(asked.actor_id)
    return db.execute(sql.RECENT_SESSIONS, (scope, *span, key[1], _one_more(asked))).fetchall()


def _one_more(asked: Listing) -> int:
    return min(asked.limit, rows.LAST_NUMBER) + 1


def _span(asked: Listing) -> tuple[float, float]:
    return (
        float("-inf") if asked.since is None else asked.since,
        float("inf") if asked.until is None else asked.until,
    )


def _info(row: tuple[Any, ...]) -> SessionInfo:
    scope, id, metadata = row[13:]
    head = rows.head((scope, id), row)
    return SessionInfo(
        id=id,
        actor_id=actor_of(scope),
        count=head.count,
        revision=revision_of(head.key, head.epoch, head.number),
        created_at=head.created_at,
        updated_at=head.updated_at,
        size=head.size + row[12],
        metadata=unpack_object(metadata, "metadata"),
    )


def figures(db: sqlite3.Connection, actor_id: str | AllActors | None) -> Statistics:
    """Return figures as the rows tell them; none of them is checked."""
    if isinstance(actor_id, AllActors):
        row = db.execute(sql.FIGURES_OF_ALL).fetchone()
    else:
        row = db.execute(sql.FIGURES, (scope_of(actor_id),)).fetchone()
    return Statistics(sessions=row[0], messages=row[1], size=row[2], oldest_at=row[3], newest_at=row[4])
