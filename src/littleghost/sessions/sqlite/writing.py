"""What writes: each function is done within one transaction, which it shares with others, so it raises before it has written anything."""

from __future__ import annotations

import secrets
import sqlite3
import time

from msgspec import Struct

from littleghost.errors import CorruptSessionError, LeaseLostError, StoreError
from littleghost.sessions.commits import Found, admit, check_room
from littleghost.sessions.contract import Commit, Revision, SessionLimits
from littleghost.sessions.records import Record
from littleghost.sessions.sqlite import rows
from littleghost.sessions.sqlite import statements as sql
from littleghost.sessions.sqlite.rows import LAST_KEY, LAST_NUMBER, Head, Name, rowid

__all__ = ["Write", "delete", "expire", "revision_of", "write"]

_LAST_INTEGER = (1 << 63) - 1


class Write(Struct, frozen=True):
    """A commit, and what has to be so for it to be taken.

    Attributes:
        name: The session.
        record: The commit.
        parts: Its bodies, and how many messages each has.
        added: How many bytes the bodies have; one without messages is not kept.
        digest: What tells it from another one with its id.
        expected_count: How many messages must be stored now; ``None`` to not check.
        expected_revision: The revision the session must have.
        limits: How large the session may become.
    """

    name: Name
    record: Record
    parts: list[tuple[bytes, int]]
    added: int
    digest: bytes | None
    expected_count: int | None
    expected_revision: str | Revision | None
    limits: SessionLimits


def write(db: sqlite3.Connection, asked: Write, lost: LeaseLostError | None = None) -> Commit:
    """Write a commit, or return the first answer to it.

    Raises:
        ConflictError: Another writer was first; or ``lost``, which is given where the commit was to be made under a lease that is over.
        SessionTooLargeError: It would pass a limit.
    """
    advanced = _advance(db, asked) if lost is None else None
    if advanced is not None:
        return advanced
    # What was not the ordinary case is one of many: here they are told apart.
    name, record, parts = asked.name, asked.record, asked.parts
    head, rest = rows.read_head(db, name)

    def find(identifier: str) -> Found | None:
        return None if head is None else _earlier(db, name, head, identifier)

    answer = admit(
        record,
        None if head is None else _answer(head),
        expected_count=asked.expected_count,
        expected_revision=asked.expected_revision,
        find=find,
        lost=lost,
    )
    if answer is not None:
        return answer
    kept = head if record.kind == "append" else None
    count, size = (kept.count, kept.size) if kept else (0, 0)
    count, size = count + record.count, size + asked.added
    check_room(
        asked.limits,
        messages=count,
        size=size + len(record.state) + len(record.metadata),
        before=(head.count, head.size + rest[0]) if head else (0, 0),
    )
    now = _moment(time.time() if record.updated_at is None else record.updated_at)
    if head is None:
        key = (db.execute(sql.LAST_KEY).fetchone()[0] or 0) + 1
        if not 0 < key <= LAST_KEY:
            raise StoreError(f"no key is left for the session {name[1]!r}; begin another file")
        created = now if record.created_at is None else _moment(record.created_at)
        new = Head(key, secrets.randbits(63), len(parts), 1, count, created, now, size)
        place = rowid(key, new.number)
        values = (*new.columns(name), *_written_with(place, new.epoch, record))
        db.execute(sql.NEW_NAME, (rows.name_hash(name),))
        db.execute(sql.NEW_SESSION, (*values, key, *name, rows.hour_of(now)))
        return _add_parts(db, asked, place, new.epoch, count)
    if head.number > LAST_NUMBER - len(parts):
        raise StoreError(
            f"the session {name[1]!r} has {head.number} commits, which is all it can have; fork it"
        )
    root = head.root
    if kept is None:
        before = (rowid(head.key, root), rowid(head.key, head.number))
        db.execute(sql.EMPTY_COMMITS, before)
        db.execute(sql.DROP_COMMITS, before)
        root = head.number + 1
    number, now = head.number + len(parts), max(now, head.updated_at)
    created = head.created_at if record.created_at is None else _moment(record.created_at)
    new = Head(head.key, head.epoch, number, root, count, created, now, size)
    place = rowid(head.key, number)
    values = (*new.columns(name), *_written_with(place, head.epoch, record))
    db.execute(sql.UPDATE_SESSION, (*values, head.key))
    hour = rows.hour_of(now)
    if hour != rows.hour_of(head.updated_at):
        db.execute(sql.SET_HOUR, (hour, head.key))
    return _add_parts(db, asked, place, head.epoch, count)


def _advance(db: sqlite3.Connection, asked: Write) -> Commit | None:
    """Append in the ordinary case, with one statement that checks what `admit` and `check_room` would; else change nothing."""
    record, limits, expected = asked.record, asked.limits, asked.expected_count
    known = _parts(asked.expected_revision)
    if known is None or expected is None or record.kind != "append":
        return None
    key, epoch, number = known
    last, count = number + len(asked.parts), expected + record.count
    most = _LAST_INTEGER if limits.messages is None else min(limits.messages, _LAST_INTEGER)
    if key > LAST_KEY or last > LAST_NUMBER or expected < 0 or count > most:
        return None
    room = _LAST_INTEGER
    if limits.size is not None:
        room = min(limits.size, _LAST_INTEGER) - asked.added - len(record.state) - len(record.metadata)
    # Its root and its first time stay what they are, its size grows, and none of them is known here.
    now = float(time.time())
    small = rows.small_sum(key, epoch, last, count, now)
    place = rowid(key, last)
    new = (last, count, now, small, *_written_with(place, epoch, record), asked.added)
    old = (key, *asked.name, epoch, number, expected, rows.hour_of(now), room)
    if db.execute(sql.ADVANCE, new + old).rowcount != 1:
        return None
    return _add_parts(db, asked, place, epoch, count)


def _written_with(place: int, epoch: int, record: Record) -> tuple[int, bytes, bytes]:
    state, metadata = record.state, record.metadata
    return rows.body_sum(place, epoch, state, metadata), state, metadata


def _add_parts(db: sqlite3.Connection, asked: Write, end: int, epoch: int, count: int) -> Commit:
    """Write the rows of a commit, the last at ``end``. That one has its id, for the others are no commits of their own."""
    place, total = end - len(asked.parts), count - asked.record.count
    for body, more in asked.parts:
        place, total = place + 1, total + more
        small = (total, asked.record.commit_id, asked.digest) if place == end else (total, None, None)
        kept = body if more else b""
        sums = rows.commit_sum(place, epoch, *small), rows.body_sum(place, epoch, kept)
        db.execute(sql.NEW_COMMIT, (place, *small, *sums, kept))
    return Commit(revision=revision_of(end >> sql.NUMBER_BITS, epoch, end & LAST_NUMBER), count=count)


def _moment(seconds: float) -> float:
    return float(seconds) + 0.0  # SQLite knows no negative zero


def delete(db: sqlite3.Connection, name: Name) -> bool:
    """Delete a session; return whether there was one."""
    head, _ = rows.read_head(db, name)
    if head is not None:
        _remove(db, name, head)
    return head is not None


def expire(db: sqlite3.Connection, expire_after: float, limit: int) -> int:
    """Delete up to ``limit`` sessions that were last written more than ``expire_after`` seconds ago; return how many.

    One whose row is damaged stays: its time may be what is damaged.
    """
    before = time.time() - expire_after
    after: tuple[float, str, str] = (float("-inf"), "", "")
    done = 0
    while done < limit:
        span = (rows.hour_of(after[0]), rows.hour_of(before))
        found = db.execute(sql.OLDEST, (*span, before, *after, limit - done)).fetchall()
        for row in found:
            name: Name = row[12:]
            try:
                head = rows.head(name, row)
            except CorruptSessionError:
                continue
            _remove(db, name, head)
            done += 1
        if not found:
            break
        after = (found[-1][6], *found[-1][12:])
    return done


def _remove(db: sqlite3.Connection, name: Name, head: Head) -> None:
    db.execute(sql.DELETE_COMMITS, (rowid(head.key, 0), rowid(head.key, LAST_NUMBER)))
    db.execute(sql.DELETE_SESSION, (head.key,))
    db.execute(sql.DELETE_NAME, (rows.name_hash(name),))


def _answer(head: Head) -> Commit:
    return Commit(revision=revision_of(head.key, head.epoch, head.number), count=head.count)


def _earlier(db: sqlite3.Connection, name: Name, head: Head, identifier: str) -> Found | None:
    """Return the commit of the session with this id."""
    span = (rowid(head.key, 0), rowid(head.key, head.number))
    row = db.execute(sql.COMMIT_BY_ID, (*span, identifier)).fetchone()
    if row is None:
        return None
    place, count, _, digest, checksum = row
    if checksum != rows.commit_sum(place, head.epoch, count, identifier, digest):
        raise rows.damaged(name[1])
    return digest, Commit(revision=revision_of(head.key, head.epoch, place & LAST_NUMBER), count=count)


def revision_of(session: int, epoch: int, number: int) -> str:
    """Return the revision of a commit."""
    return f"{epoch:016x}-{session:x}-{number}"


def _parts(revision: object) -> tuple[int, int, int] | None:
    """Return session, epoch and number of a revision; ``None`` for what is, to the character, none of ours."""
    if not isinstance(revision, str):
        return None
    try:
        epoch, session, number = revision.split("-")
        parts = int(session, 16), int(epoch, 16), int(number)
    except ValueError:
        return None
    return parts if revision == revision_of(*parts) and max(parts) < 1 << 63 else None
