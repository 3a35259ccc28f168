"""Rows that can be trusted: each is checked by sums that bind it to its place, and a session not found is proven not to be there.

SQLite finds a page by a number in another page and a row by halving, and believes both. What a damaged page, or two that changed places,
can make of that is a row of another session, a row missing, or none where there was one. Hence three rules. The sums of a row cover
where it is and whose it is, besides what is in it. Commits must come in sequence, from the first to the last. And there is no session
only where two trees of their own say so: the index of ``sessions``, and ``names``.
"""

from __future__ import annotations

import math
import sqlite3
from binascii import crc_hqx
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import repeat
from struct import Struct as Layout
from typing import Any
from zlib import adler32, crc32

from msgspec import Struct

from littleghost.errors import CorruptSessionError
from littleghost.sessions.sqlite import statements as sql

__all__ = [
    "LAST_KEY",
    "LAST_NUMBER",
    "Head",
    "Name",
    "bodies",
    "body_sum",
    "commit_sum",
    "count_at",
    "damaged",
    "head",
    "hour_of",
    "name_hash",
    "read_head",
    "rowid",
    "size_sum",
    "small_sum",
]

LAST_NUMBER = (1 << sql.NUMBER_BITS) - 1
LAST_KEY = (1 << 63 - sql.NUMBER_BITS) - 1

Name = tuple[str, str]
"""The scope of a session and its id."""

_LAST_HOUR = 1 << 50
_SESSION = Layout("<qq").pack
_SIGNED = 1 << 31
"""Subtracted from a sum, for SQLite keeps an integer from 2**31 on in six bytes and not in four."""


def rowid(key: int, number: int) -> int:
    """Return the rowid of a commit."""
    return key << sql.NUMBER_BITS | number


def name_hash(name: Name) -> int:
    """Return 62 bits that stand for a session: in ``names``, and as the offset of its lease."""
    scope, id = (part.encode() for part in name)
    return int.from_bytes(blake2b(b"%d %b%b" % (len(scope), scope, id), digest_size=8).digest(), "big") >> 2


def _sum(*values: object) -> int:
    # As ASCII, for a damaged row may hold values of any type.
    return crc32(ascii(values).encode()) - _SIGNED


def body_sum(place: int, epoch: int, body: bytes, more: bytes = b"") -> int:
    """Return the sum of a long value of the commit at the rowid ``place``, or of the state and metadata written with it."""
    return (adler32(more, adler32(body, _seed(place, epoch))) ^ place & LAST_NUMBER) - _SIGNED


def _seed(place: int, epoch: int) -> int:
    # For long values Adler-32 is several times as fast as CRC-32; for short ones it is too weak.
    return adler32(_SESSION(place >> sql.NUMBER_BITS, epoch))


def commit_sum(place: int, epoch: int, count: int, commit_id: str | None, digest: bytes | None) -> int:
    """Return the sum of what else is in the row of a commit."""
    # Two bytes, for there are many commits, and few bytes that this sum covers.
    text = f"({place!a}, {epoch!a}, {count!a}, {commit_id!a}, {digest!a})"
    return crc_hqx(text.encode(), 0) - (1 << 15)


class Head(Struct, frozen=True):
    """A session's row but for its state and metadata, in the order of the columns that are selected."""

    key: int
    epoch: int
    number: int
    root: int
    count: int
    created_at: float
    updated_at: float
    size: int

    def fixed_sum(self, name: Name) -> int:
        """Return the sum of what an append leaves as it is."""
        return _sum(self.key, self.epoch, self.root, self.created_at, *name)

    def small_sum(self) -> int:
        """Return the sum of what each commit changes."""
        return small_sum(self.key, self.epoch, self.number, self.count, self.updated_at)

    def columns(self, name: Name) -> tuple[object, ...]:
        """Return what is written of it, in the order of `statements.NEW_SESSION` and `statements.UPDATE_SESSION`."""
        return (
            self.epoch,
            self.number,
            self.root,
            self.count,
            self.size,
            size_sum(self.key, self.epoch, self.size),
            self.created_at,
            self.updated_at,
            self.fixed_sum(name),
            self.small_sum(),
        )


def small_sum(key: int, epoch: int, number: int, count: int, updated_at: float) -> int:
    """Return the sum of what each commit changes."""
    # As `_sum` has it.
    return crc32(f"({key!a}, {epoch!a}, {number!a}, {count!a}, {updated_at!a})".encode()) - _SIGNED


def size_sum(key: object, epoch: object, size: int) -> int:
    """Return what ``size`` is written with. The sum of both stays the same for a session, whatever is added to its size."""
    return _sum(key, epoch) - size


def hour_of(moment: object) -> int:
    """Return the hour since 1970 in which ``moment``, in seconds, is; ``0`` for what is no number."""
    if not isinstance(moment, int | float):
        return 0
    return math.floor(max(-_LAST_HOUR, min(_LAST_HOUR, moment / 3600)))


def head(name: Name, row: tuple[Any, ...]) -> Head:
    """Return the head in ``row``, which begins with the columns of `statements.HEAD`.

    Raises:
        CorruptSessionError: It is not what was written for the session ``name``.
    """
    found, size = Head(*row[:8]), row[7]
    derived = (
        size_sum(found.key, found.epoch, size) if isinstance(size, int) else None,
        hour_of(found.updated_at),
        found.fixed_sum(name),
        found.small_sum(),
    )
    if row[8:12] != derived:
        raise damaged(name[1])
    return found


def read_head(
    db: sqlite3.Connection, name: Name, statement: str = sql.HEAD
) -> tuple[Head | None, tuple[Any, ...]]:
    """Return the head of a session, and what else ``statement`` selects; ``None`` where there is surely no session.

    Raises:
        CorruptSessionError: It is damaged, or may be there and cannot be found.
    """
    row = db.execute(statement, name).fetchone()
    if row is not None:
        return head(name, row), row[12:]
    if db.execute(sql.NAMED, (name_hash(name),)).fetchone():
        raise damaged(name[1])
    return None, ()


def bodies(db: sqlite3.Connection, name: Name, found: Head, first: int, last: int) -> Sequence[bytes]:
    """Return the bodies of the commits ``first`` to ``last``.

    Raises:
        CorruptSessionError: One is damaged, missing, or not in its place.
    """
    start, count = rowid(found.key, first), last - first + 1
    rows = db.execute(sql.BODIES, (start, start + count - 1)).fetchall()
    if len(rows) != count:
        raise damaged(name[1])
    columns: Any = zip(*rows, strict=True)
    sums, intact = columns
    # As `body_sum` has it, but for all of them at once, which is several times as fast. The number that is expected at each place is
    # mixed in, so a row that is in the place of another is noticed too.
    plain: Iterator[int] = map(adler32, intact, repeat(_seed(start, found.epoch)))
    mixed: Iterator[int] = map(int.__xor__, plain, range(first, last + 1))
    if sums != tuple(map(int.__sub__, mixed, repeat(_SIGNED))):
        raise damaged(name[1])
    return intact


def count_at(db: sqlite3.Connection, name: Name, found: Head, number: int) -> int:
    """Return how many messages the session had after the commit ``number``.

    Raises:
        CorruptSessionError: Its row is damaged, missing, or not in its place.
    """
    place = rowid(found.key, number)
    row = db.execute(sql.COMMIT_AT, (place,)).fetchone()
    if row is None or row[3] != commit_sum(place, found.epoch, *row[:3]):
        raise damaged(name[1])
    return row[0]


def damaged(id: str) -> CorruptSessionError:
    """Return the error for a session that cannot be trusted."""
    return CorruptSessionError(f"the session {id!r} is damaged; restore the file from a backup", id=id)
