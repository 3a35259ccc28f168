"""Looking for damage: every session is read whole, in steps, and none that is damaged keeps the others from being read.

A step goes through the keys in order. What has the next one, ``sessions`` or ``commits``, is asked of both, so commits without a session
are found as well as a session without commits; where a page of the one cannot be read, the other still leads on.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Literal

from littleghost import data
from littleghost.errors import CorruptSessionError, DataError
from littleghost.message import unpack_messages
from littleghost.sessions.commits import actor_of, unpack_object
from littleghost.sessions.contract import Damage, Verified
from littleghost.sessions.sqlite import rows
from littleghost.sessions.sqlite import statements as sql
from littleghost.sessions.sqlite.database import store_error
from littleghost.sessions.sqlite.rows import LAST_KEY, LAST_NUMBER, Head, Name, rowid

__all__ = ["CHECKED_WHOLE", "parse", "verify"]

CHECKED_WHOLE = 64 * 1024 * 1024
"""Up to how many bytes of a file SQLite itself is asked about all of its pages, which takes it a second at most."""

STEP = 32 * 1024 * 1024
"""After how many bytes a step ends early, for it keeps other reads of this store waiting."""

_FIRST = -(1 << 63)
_RESTORE = "restore the file from a backup"


def parse(cursor: object) -> int | None:
    """Return the key at which the step before ended.

    Raises:
        DataError: It is no cursor of a step.
    """
    if cursor is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,18}", data.check_text(cursor, "cursor")):
        raise DataError.at("cursor", "must be the cursor of the step before")
    return int(str(cursor))


def verify(db: sqlite3.Connection, after: int | None, limit: int) -> Verified:
    """Check up to ``limit`` sessions with a key greater than ``after``; ``None`` begins with the file as a whole."""
    damaged = _file(db) if after is None else []
    after = _FIRST if after is None else after
    trees = _Keys(db, sql.NEXT_KEY, "sessions"), _Keys(db, sql.NEXT_COMMIT, "commits")
    checked = read = 0
    while checked < limit and read < STEP:
        following = [key for tree in trees if (key := tree.next(after, damaged)) is not None]
        if not following:
            damaged += _names(db)
            return Verified(checked=checked, damaged=tuple(damaged))
        after = min(following)
        size, damage = _session(db, after)
        checked, read = checked + 1, read + size
        damaged += damage
    return Verified(checked=checked, damaged=tuple(damaged), cursor=str(after))


class _Keys:
    """The keys of sessions in one table, in order, as far as they can be read."""

    def __init__(self, db: sqlite3.Connection, statement: str, table: str) -> None:
        self._db, self._statement, self._table = db, statement, table
        self._next: int | None = _FIRST

    def next(self, after: int, damaged: list[Damage]) -> int | None:
        """Return the first key greater than ``after``, and tell if some cannot be read."""
        if self._next is None or self._next > after:
            return self._next
        try:
            self._next = self._ask(after)
        except (CorruptSessionError, sqlite3.Error) as error:
            self._next = self._beyond(after)
            what = f"rows of {self._table} from key {max(after + 1, 1)} on cannot be read"
            damaged.append(_damage(None, f"{what}: {_problem(error)}"))
        return self._next

    def _beyond(self, low: int) -> int | None:
        """Return the first key that can be read, some way after ``low``: forward in growing steps, and back by halving."""
        step = 1
        while (found := self._try(low + step)) is False:
            if low > LAST_KEY:
                return None
            low, step = low + step, 2 * step
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            nearer = self._try(middle)
            if nearer is False:
                low = middle
            else:
                high, found = middle, nearer
        return found

    def _try(self, after: int) -> int | Literal[False] | None:
        try:
            return self._ask(after)
        except (CorruptSessionError, sqlite3.Error) as error:
            _problem(error)
            return False

    def _ask(self, after: int) -> int | None:
        row = self._db.execute(self._statement, {"key": after, "place": _place_after(after)}).fetchone()
        if row is None:
            return None
        if row[0] <= after:  # else a page in the wrong place would lead round in a circle
            raise CorruptSessionError(f"key {row[0]} comes after {after}")
        return row[0]


def _place_after(key: int) -> int:
    """Return the greatest rowid of a commit of the session ``key``."""
    return max(_FIRST, min(rowid(key, LAST_NUMBER), (1 << 63) - 1))


def _session(db: sqlite3.Connection, key: int) -> tuple[int, list[Damage]]:
    """Return how many bytes the session has, and what is wrong with it."""
    name: Name | None = None
    try:
        row = db.execute(sql.WHOLE, (key,)).fetchone()
        if row is None:
            return 0, [_damage(_indexed(db, key), f"there are commits without their session, key {key}")]
        name = row[15:]
        head = rows.head(row[15:], row)
        size = _check(db, row[15:], head, row)
    except (CorruptSessionError, sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        return 0, [_damage(name or _indexed(db, key), _problem(error))]
    return size, []


def _check(db: sqlite3.Connection, name: Name, head: Head, row: tuple[Any, ...]) -> int:
    checksum, state, metadata = row[12:15]
    if checksum != rows.body_sum(rowid(head.key, head.number), head.epoch, state, metadata):
        raise CorruptSessionError("its state or metadata are not those that were written")
    unpack_object(state, "state")
    unpack_object(metadata, "metadata")
    if db.execute(sql.NAMED, (rows.name_hash(name),)).fetchone() is None:
        raise CorruptSessionError("its entry in the table of names is missing")
    for statement, place in (
        (sql.KEY_BY_NAME, name),
        (sql.KEY_BY_HOUR, (rows.hour_of(head.updated_at), head.key)),
        (sql.KEY_BY_SCOPE, (name[0], rows.hour_of(head.updated_at), head.key)),
    ):
        if db.execute(statement, place).fetchone() != (head.key,):
            raise CorruptSessionError("an index does not have it; repair that with: sqlite3 FILE REINDEX")
    return _commits(db, head) + len(state) + len(metadata)


def _commits(db: sqlite3.Connection, head: Head) -> int:
    """Return how many bytes the bodies of a session have."""
    number, count, size = head.root - 1, 0, 0
    span = (rowid(head.key, 0), rowid(head.key, LAST_NUMBER))
    for place, total, commit_id, digest, small_sum, body_sum, body in db.execute(sql.COMMITS, span):
        this = place & LAST_NUMBER
        if small_sum != rows.commit_sum(place, head.epoch, total, commit_id, digest):
            raise CorruptSessionError(f"its commit {this} is not the one that was written")
        if this < head.root:  # replaced, and kept for its id
            if body or commit_id is None:
                raise CorruptSessionError(f"its commit {this} should have been emptied")
            continue
        if this != number + 1 or this > head.number:
            raise CorruptSessionError(f"its commit {this} comes after {number}")
        if body_sum != rows.body_sum(place, head.epoch, body):
            raise CorruptSessionError(f"the messages of its commit {this} are not those that were written")
        number, count, size = this, count + _messages(body), size + len(body)
        if count != total:
            raise CorruptSessionError(
                f"{total} messages should be stored up to commit {this}, and {count} are"
            )
    if (number, count, size) != (head.number, head.count, head.size):
        raise CorruptSessionError(
            f"{head.number} commits with {head.count} messages of {head.size} bytes should be stored, and {number} with {count} of {size} "
            "are"
        )
    return size


def _messages(body: bytes) -> int:
    try:
        return len(unpack_messages(body)) if body else 0
    except DataError as error:
        raise CorruptSessionError(f"stored messages cannot be read: {error}") from error


def _file(db: sqlite3.Connection) -> list[Damage]:
    """Return what SQLite finds wrong with its pages, in a file that is not too large for the question."""
    try:
        (size,) = db.execute(sql.FILE_SIZE).fetchone()
        if size > CHECKED_WHOLE:
            return []
        return [
            _damage(None, f"SQLite finds this wrong: {line}")
            for (text,) in db.execute("PRAGMA integrity_check(20)").fetchall()
            for line in str(text).splitlines()
            if line != "ok"
        ]
    except sqlite3.Error as error:
        return [_damage(None, _problem(error))]


def _names(db: sqlite3.Connection) -> list[Damage]:
    """Compare how many names there are with how many sessions; that each session has its name is known by now."""
    try:
        names, sessions = db.execute(sql.COUNTS).fetchone()
    except sqlite3.Error as error:
        return [_damage(None, _problem(error))]
    if names == sessions:
        return []
    return [
        _damage(None, f"there are {sessions} sessions and {names} names; one without the other is missing")
    ]


def _indexed(db: sqlite3.Connection, key: int) -> Name | None:
    """Return the name of a session whose row cannot be read, if the index has it."""
    try:
        return db.execute(sql.NAME_OF_KEY, (key,)).fetchone()
    except sqlite3.Error as error:
        _problem(error)
        return None


def _problem(error: Exception) -> str:
    """Return what to call the damage that ``error`` tells of, or raise what tells of none."""
    ours = store_error(error, "the file")
    if not isinstance(ours, CorruptSessionError):
        raise ours
    return str(error)


def _damage(name: tuple[Any, ...] | None, problem: str) -> Damage:
    told = problem if "with: sqlite3" in problem or _RESTORE in problem else f"{problem}; {_RESTORE}"
    if name is None or not all(isinstance(part, str) for part in name):
        return Damage(id=None, actor_id=None, problem=told)
    return Damage(id=name[1], actor_id=actor_of(name[0]), problem=told)
