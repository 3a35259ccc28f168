"""What writes: each function is done within one transaction, which it shares with others, so it raises before it has written anything."""

from __future__ import annotations

import re
import secrets
import sqlite3
import time

from msgspec import Struct

from littleghost.errors import CorruptSessionError, StoreError
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
        digest: What tells it from another one with its id.
        expected_count: How many messages must be stored now; ``None`` to not check.
        expected_revision: The revision the session must have.
        limits: How large the session may become.
    """

    name: Name
    record: Record
    parts: list[tuple[bytes, int]]
    digest: bytes | None
    expected_count: int | None
    expected_revision: str | Revision | None
    limits: SessionLimits


def write(db: sqlite3.Connection, asked: Write) -> Commit:
    """Write a commit, or return the first answer to it."""
    added = sum(len(body) for body, count in asked.parts if count)
    advanced = _advance(db, asked, added)
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
    )
    if answer is not None:
        return answer
    kept = head if record.kind == "append" else None
    count, size = (kept.count, kept.size) if kept else (0, 0)
    count, size = count + record.count, size + added
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
        db.execute(sql.NEW_NAME, (rows.name_hash(name),))
        values = (*new.columns(name), *_written_with(new, record), key, *name, rows.hour_of(now))
        db.execute(sql.NEW_SESSION, values)
        return _add_parts(db, asked, new)
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
    new = Head(
        head.key,
        head.epoch,
        head.number + len(parts),
        root,
        count,
        head.created_at,
        max(now, head.updated_at),
        size,
    )
    db.execute(sql.UPDATE_SESSION, (*new.columns(name), *_written_with(new, record), head.key))
    hour = rows.hour_of(new.updated_at)
    if hour != rows.hour_of(head.updated_at):
        db.execute(sql.SET_HOUR, (hour, head.key))
    return _add_parts(db, asked, new)


def _advance(db: sqlite3.Connection, asked: Write, added: int) -> Commit | None:
    """Append in the ordinary case, with one statement that checks what `admit` and `check_room` would; else change nothing."""
    known, record, limits = _parts(asked.expected_revision), asked.record, asked.limits
    if known is None or record.kind != "append" or asked.expected_count is None:
        return None
    key, epoch, number = known
    last, count = number + len(asked.parts), asked.expected_count + record.count
    room = (
        _LAST_INTEGER
        if limits.size is None
        else limits.size - added - len(record.state) - len(record.metadata)
    )
    if (
        key > LAST_KEY
        or last > LAST_NUMBER
        or asked.expected_count < 0
        or count > (_LAST_INTEGER if limits.messages is None else limits.messages)
    ):
        return None
    now = _moment(time.time())
    # Its root, its size and its first time stay what they are, or are changed by what is added, and are not known here.
    head = Head(key, epoch, last, 0, count, 0.0, now, 0)
    new = (last, count, now, head.small_sum(), *_written_with(head, record), added)
    old = (key, *asked.name, epoch, number, asked.expected_count, rows.hour_of(now), room)
    if db.execute(sql.ADVANCE, new + old).rowcount != 1:
        return None
    return _add_parts(db, asked, head)


def _written_with(head: Head, record: Record) -> tuple[int, bytes, bytes]:
    place = rowid(head.key, head.number)
    return rows.body_sum(place, head.epoch, record.state, record.metadata), record.state, record.metadata


def _add_parts(db: sqlite3.Connection, asked: Write, head: Head) -> Commit:
    """Write the rows of the commit that made ``head``. The last one has its id, for the others are no commits of their own."""
    place = rowid(head.key, head.number) - len(asked.parts)
    count = head.count - asked.record.count
    for body, more in asked.parts:
        place, count = place + 1, count + more
        last = place & LAST_NUMBER == head.number
        small = (count, asked.record.commit_id, asked.digest) if last else (count, None, None)
        kept = body if more else b""
        sums = rows.commit_sum(place, head.epoch, *small), rows.body_sum(place, head.epoch, kept)
        db.execute(sql.NEW_COMMIT, (place, *small, *sums, kept))
    return _answer(head)


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


_REVISION = re.compile(r"([0-9a-f]{16})-([0-9a-f]{1,8})-([0-9]{1,10})")


def _parts(revision: object) -> tuple[int, int, int] | None:
    """Return session, epoch and number of a revision; ``None`` for what is, to the character, none of ours."""
    match = _REVISION.fullmatch(revision) if isinstance(revision, str) else None
    if match is None:
        return None
    parts = int(match[2], 16), int(match[1], 16), int(match[3])
    return parts if revision == revision_of(*parts) and max(parts) < 1 << 63 else None
