"""The store, and what each of its operations does within one transaction."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sqlite3
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import Any, Self, TypeVar, get_args
from zlib import adler32

from msgspec import Struct

from littleghost.errors import ConfigurationError, CorruptSessionError, DataError, StoreError
from littleghost.message import Message
from littleghost.sessions import leases
from littleghost.sessions.commits import Found, admit, unpack_bodies, unpack_object, window
from littleghost.sessions.contract import (
    ANY,
    Commit,
    Lease,
    Page,
    Revision,
    SessionInfo,
    SessionStore,
    Snapshot,
    busy,
)
from littleghost.sessions.records import Record, check_key, record
from littleghost.sessions.sqlite import statements as sql
from littleghost.sessions.sqlite.database import DatabaseFile, Durability, store_error
from littleghost.sessions.sqlite.worker import Job, Worker

__all__ = ["SQLiteStore"]

Answer = TypeVar("Answer")

LAST_NUMBER = (1 << sql.NUMBER_BITS) - 1
_NO_SESSION: tuple[Any, ...] = (0, 0, 0, 1, 0)
DECODE_IN_THREAD = 1_000_000
"""From this many bytes on a session is decoded in the reader's thread and not on the event loop."""


class SQLiteStore(SessionStore):
    """Keeps sessions in a SQLite file, safe for many processes of one machine.

    Commits that wait at the same moment share one transaction and one fsync. Reading does not wait for writing. No call blocks the
    event loop, not even the first one, which opens the file and makes it where it is missing. Safe to use from several threads
    and event loops, and after ``fork``. Not for a file system that is shared between machines.

    Args:
        path: The file. A relative one is resolved now, so a later change of the working directory does not matter.
        durability: What an acknowledged commit survives. ``full``: the death of the process and the loss of power. ``normal``: the
            death of the process; the loss of power may take the last commits, and never damages the file. ``off``: the death of the
            process; the loss of power may damage the file. For tests.

    Raises:
        ConfigurationError: ``path`` or ``durability`` makes no sense.
    """

    capabilities = frozenset(
        {"anonymous_actor", "commit_ids", "delete", "fork", "leases", "revisions", "sessions", "tail"}
    )

    def __init__(self, path: str | os.PathLike[str], *, durability: Durability = "full") -> None:
        name = os.fspath(path)
        if name == ":memory:":
            raise ConfigurationError("a SQLiteStore is a file; for sessions in memory use MemoryStore()")
        if name.startswith(("sqlite:", "file:")):
            raise ConfigurationError(f"{name!r} is a URL and not a path; open_store() takes URLs")
        if not name or "\0" in name:
            raise ConfigurationError(f"{name!r} is not the path of a file")
        if durability not in get_args(Durability):
            raise ConfigurationError(
                f"durability is one of {', '.join(get_args(Durability))}, not {durability!r}"
            )
        # Links are followed, for the same file by another name must have the same leases.
        self._file = DatabaseFile(os.path.realpath(name), durability)
        self._reader = Worker(self._file, writes=False)
        self._writer = Worker(self._file, writes=True, outlives=self._reader)
        self._abandoned: Job | None = None
        # The threads know the workers and not the store, so a store that nobody has any more ends them.
        for worker in (self._writer, self._reader):
            weakref.finalize(self, worker.stop).atexit = False

    @property
    def path(self) -> str:
        """The file, by its absolute path."""
        return self._file.path

    def __repr__(self) -> str:
        return f"SQLiteStore({self._file.path!r}, durability={self._file.durability!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the store after what it was asked to do. Closing it again does nothing; using it again is a `StoreError`."""
        for worker in (self._reader, self._writer):
            worker.stop()
        for worker in (self._reader, self._writer):
            await asyncio.shield(asyncio.wrap_future(worker.ended))

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        key = check_key(id, actor_id)
        stored = await self._read(partial(_load, key=_scoped(key)))
        if stored is None or isinstance(stored, Snapshot):
            return stored
        return stored.snapshot()

    async def append(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        expected_count: int,
        actor_id: str | None = None,
        expected_revision: str | Revision | None = ANY,
        commit_id: str | None = None,
    ) -> Commit:
        key = check_key(id, actor_id)
        commit = record("append", messages, state, metadata, commit_id)
        return await self._commit(key, commit, expected_count, expected_revision)

    async def replace(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        actor_id: str | None = None,
        expected_revision: str | Revision | None = ANY,
        commit_id: str | None = None,
    ) -> Commit:
        key = check_key(id, actor_id)
        commit = record("replace", messages, state, metadata, commit_id)
        return await self._commit(key, commit, None, expected_revision)

    async def _commit(
        self,
        key: tuple[str | None, str],
        commit: Record,
        expected_count: int | None,
        expected_revision: str | Revision | None,
    ) -> Commit:
        digest = None if commit.commit_id is None else commit.digest()
        return await self._write(
            partial(
                _commit,
                key=_scoped(key),
                commit=commit,
                digest=digest,
                expected_count=expected_count,
                expected_revision=expected_revision,
            )
        )

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        return await self._write(partial(_delete, key=_scoped(check_key(id, actor_id))))

    async def sessions(
        self, *, actor_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[SessionInfo]:
        if limit < 1:
            raise DataError.at("limit", "must be at least 1")
        _, after = check_key("" if cursor is None else cursor, actor_id)
        limit = min(limit, LAST_NUMBER)
        rows = await self._read(
            partial(
                _sessions,
                scope=_scope(actor_id),
                after=None if cursor is None else after[1:],
                limit=limit + 1,
            )
        )
        items = tuple(
            SessionInfo(
                id=id,
                actor_id=actor_id,
                count=count,
                revision=_revision(session, epoch, number),
                created_at=created,
                updated_at=updated,
            )
            for session, id, epoch, number, count, created, updated in rows[:limit]
        )
        # A sign in front, so that the cursor after the session "" is not taken for none.
        return Page(items=items, cursor=f">{items[-1].id}" if len(rows) > limit else None)

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        key = check_key(id, actor_id)
        window(0, limit, before)
        bodies, start, end, skipped, count = await self._read(
            partial(_tail, key=_scoped(key), limit=limit, before=before)
        )
        messages = unpack_bodies(bodies, count)
        return Page(items=messages[start - skipped : end - skipped], cursor=start or None)

    def lease(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        return self._lease(check_key(id, actor_id), timeout)

    @asynccontextmanager
    async def _lease(self, key: tuple[str | None, str], timeout: float | None) -> AsyncGenerator[Lease]:
        scope, id = _scoped(key)
        # Two keys share a byte once in 2**62: one then waits for the other, and nothing is wrong.
        name = b"%d %b%b" % (len(scope.encode()), scope.encode(), id.encode())
        offset = int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 2
        held = leases.hold(self._file.lease_path, offset, timeout)
        try:
            await held.__aenter__()
        except TimeoutError as error:
            raise busy(id, timeout) from error
        except OSError as error:
            raise store_error(error, self._file.lease_path) from error
        try:
            yield Lease(token=secrets.token_hex(16))
        finally:
            await held.__aexit__(None, None, None)

    async def _read(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        # What reads after a write that was cancelled too late must see it, so it waits behind it.
        abandoned = self._abandoned
        return await self._run(
            self._reader if abandoned is None or abandoned.finished else self._writer, work
        )

    async def _write(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        return await self._run(self._writer, work)

    async def _run(self, worker: Worker, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        job = Job(work)
        worker.submit(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            if not job.withdraw() and worker is self._writer:
                self._abandoned = job
            raise


class _Stored(Struct, frozen=True):
    """A session as it was read, not yet decoded."""

    bodies: list[bytes]
    state: bytes
    metadata: bytes
    revision: str
    count: int

    def snapshot(self) -> Snapshot:
        return Snapshot(
            messages=unpack_bodies(self.bodies, self.count),
            state=unpack_object(self.state, "state"),
            metadata=unpack_object(self.metadata, "metadata"),
            revision=self.revision,
            count=self.count,
        )


def _scope(actor_id: str | None) -> str:
    return "-" if actor_id is None else f":{actor_id}"


def _scoped(key: tuple[str | None, str]) -> tuple[str, str]:
    return _scope(key[0]), key[1]


def _revision(session: int, epoch: int, number: int) -> str:
    return f"{epoch:016x}-{session:x}-{number}"


_REVISION = re.compile(r"([0-9a-f]{16})-([0-9a-f]{1,8})-([0-9]{1,10})")


def _parts(revision: object) -> tuple[int, int, int] | None:
    """Return session, epoch and number of a revision; ``None`` for what is, to the character, none of ours."""
    match = _REVISION.fullmatch(revision) if isinstance(revision, str) else None
    if match is None:
        return None
    parts = int(match[2], 16), int(match[1], 16), int(match[3])
    return parts if revision == _revision(*parts) and max(parts) < 1 << 63 else None


def _rowid(key: int, number: int) -> int:
    return key << sql.NUMBER_BITS | number


def _commit(
    db: sqlite3.Connection,
    *,
    key: tuple[str, str],
    commit: Record,
    digest: bytes | None,
    expected_count: int | None,
    expected_revision: str | Revision | None,
) -> Commit:
    """Write ``commit``, or raise before anything is written: the transaction is shared with others."""
    now = time.time()
    checksum = adler32(commit.metadata, adler32(commit.state))

    def written(session: int, epoch: int, number: int, count: int) -> Commit:
        body = commit.body if commit.count else b""
        values = (_rowid(session, number), count, commit.commit_id, digest, adler32(body), body)
        db.execute(sql.NEW_COMMIT, values)
        return Commit(revision=_revision(session, epoch, number), count=count)

    parts = _parts(expected_revision)
    if parts is not None and commit.kind == "append" and expected_count is not None:
        # The ordinary case in one statement, which checks what `admit` would. Where it changes nothing, the longer way tells why.
        session, epoch, number = parts
        count = expected_count + commit.count
        new = (number + 1, count, now, checksum, commit.state, commit.metadata)
        old = (session, *key, epoch, number, expected_count)
        if number < LAST_NUMBER and 0 <= count < 1 << 63 and db.execute(sql.ADVANCE, new + old).rowcount == 1:
            return written(session, epoch, number + 1, count)

    row = db.execute(sql.HEAD, key).fetchone()
    session, epoch, number, root, count = row or _NO_SESSION
    span = (_rowid(session, 0), _rowid(session, number))

    def find(identifier: str) -> Found | None:
        found = db.execute(sql.COMMIT_BY_ID, (*span, identifier)).fetchone()
        if found is None:
            return None
        return found[2], Commit(revision=_revision(session, epoch, found[0] & LAST_NUMBER), count=found[1])

    answer = admit(
        commit,
        Commit(revision=_revision(session, epoch, number), count=count) if row else None,
        expected_count=expected_count,
        expected_revision=expected_revision,
        find=find,
    )
    if answer is not None:
        return answer
    if number == LAST_NUMBER:
        raise StoreError(f"the session {key[1]!r} has {number} commits, which is all it can have; fork it")

    replacing = commit.kind == "replace"
    count = commit.count + (0 if replacing else count)
    if row is None:
        epoch, number = secrets.randbits(63), 1
        values = (*key, epoch, count, now, now, checksum, commit.state, commit.metadata)
        session = db.execute(sql.NEW_SESSION, values).lastrowid or 0
    else:
        number += 1
        if replacing:
            before = (_rowid(session, root), _rowid(session, number - 1))
            db.execute(sql.EMPTY_COMMITS, before)
            db.execute(sql.DROP_COMMITS, before)
            root = number
        values = (number, root, count, now, checksum, commit.state, commit.metadata, session)
        db.execute(sql.UPDATE_SESSION, values)
    return written(session, epoch, number, count)


def _load(db: sqlite3.Connection, *, key: tuple[str, str]) -> _Stored | Snapshot | None:
    row = db.execute(sql.SNAPSHOT, key).fetchone()
    if row is None:
        return None
    session, epoch, number, root, count, checksum, state, metadata = row
    if adler32(metadata, adler32(state)) != checksum:
        raise _damaged(key[1])
    bodies = _bodies(db, key[1], session, root, number)
    stored = _Stored(bodies, state, metadata, _revision(session, epoch, number), count)
    size = sum(map(len, bodies)) + len(state) + len(metadata)
    return stored if size < DECODE_IN_THREAD else stored.snapshot()


def _bodies(db: sqlite3.Connection, id: str, session: int, first: int, last: int) -> list[bytes]:
    rows = db.execute(sql.BODIES, (_rowid(session, first), _rowid(session, last))).fetchall()
    bodies = [body for checksum, body in rows if adler32(body) == checksum]
    if len(bodies) != last - first + 1:
        raise _damaged(id)
    return bodies


def _tail(
    db: sqlite3.Connection, *, key: tuple[str, str], limit: int, before: int | None
) -> tuple[list[bytes], int, int, int, int]:
    """Return the bodies with the page in them, its bounds, how many messages are before the bodies, and how many are in them."""
    row = db.execute(sql.HEAD, key).fetchone()
    session, _, number, root, total = row or _NO_SESSION
    start, end = window(total, limit, before)
    if start == end:
        return [], 0, 0, 0, 0

    def count_at(commit: int) -> int:
        found = db.execute(sql.COUNT_AT, (_rowid(session, commit),)).fetchone()
        if found is None:
            raise _damaged(key[1])
        return found[0]

    def first_with(messages: int) -> int:
        """The first commit after which there were at least so many messages. Counts only grow from the root on."""
        low, high = root, number
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if count_at(middle) >= messages else (middle + 1, high)
        return low

    first = first_with(start + 1)
    last = number if end == total else first_with(end)
    skipped = count_at(first - 1) if first > root else 0
    held = (total if last == number else count_at(last)) - skipped
    return _bodies(db, key[1], session, first, last), start, end, skipped, held


def _delete(db: sqlite3.Connection, *, key: tuple[str, str]) -> bool:
    row = db.execute(sql.HEAD, key).fetchone()
    if row is None:
        return False
    db.execute(sql.DELETE_COMMITS, (_rowid(row[0], 0), _rowid(row[0], LAST_NUMBER)))
    db.execute(sql.DELETE_SESSION, (row[0],))
    return True


def _sessions(
    db: sqlite3.Connection, *, scope: str, after: str | None, limit: int
) -> list[tuple[int, str, int, int, int, float, float]]:
    if after is None:
        return db.execute(sql.FIRST_SESSIONS, (scope, limit)).fetchall()
    return db.execute(sql.NEXT_SESSIONS, (scope, after, limit)).fetchall()


def _damaged(id: str) -> CorruptSessionError:
    return CorruptSessionError(f"the session {id!r} is damaged; restore the file from a backup", id=id)
