"""The store, and what each of its operations does within one transaction."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import sqlite3
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Self, TypeVar, get_args

from msgspec import Struct

from littleghost.errors import ConfigurationError, StoreError
from littleghost.message import Message
from littleghost.sessions import leases
from littleghost.sessions.commits import (
    Found,
    admit,
    check_limit,
    check_listing,
    scope_of,
    unpack_bodies,
    unpack_object,
    window,
)
from littleghost.sessions.contract import (
    AllActors,
    Commit,
    Lease,
    Page,
    Revision,
    SessionInfo,
    SessionOrder,
    Snapshot,
    busy,
)
from littleghost.sessions.recording import RecordStore
from littleghost.sessions.records import Record, check_key
from littleghost.sessions.sqlite import rows
from littleghost.sessions.sqlite import statements as sql
from littleghost.sessions.sqlite.database import DatabaseFile, Durability, store_error
from littleghost.sessions.sqlite.rows import LAST_KEY, LAST_NUMBER, Head, Name, rowid
from littleghost.sessions.sqlite.worker import Job, Worker

__all__ = ["SQLiteStore"]

Answer = TypeVar("Answer")

DECODE_IN_THREAD = 1_000_000
"""From this many bytes on a session is decoded in the reader's thread and not on the event loop."""


class SQLiteStore(RecordStore):
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
        stored = await self._read(partial(_load, name=_scoped(key)))
        if stored is None or isinstance(stored, Snapshot):
            return stored
        return stored.snapshot()

    async def _write(
        self,
        key: tuple[str | None, str],
        commit: Record,
        expected_count: int | None,
        expected_revision: str | Revision | None,
        lease: Lease | None,
    ) -> Commit:
        digest = None if commit.commit_id is None else commit.digest()
        return await self._change(
            partial(
                _commit,
                name=_scoped(key),
                commit=commit,
                digest=digest,
                expected_count=expected_count,
                expected_revision=expected_revision,
            )
        )

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        return await self._change(partial(_delete, name=_scoped(check_key(id, actor_id))))

    async def sessions(
        self,
        *,
        actor_id: str | AllActors | None = None,
        limit: int = 100,
        cursor: str | None = None,
        order: SessionOrder = "id",
        since: float | None = None,
        until: float | None = None,
    ) -> Page[SessionInfo]:
        asked = check_listing(actor_id, limit, cursor, order, since, until)
        if isinstance(actor_id, AllActors) or order != "id" or since is not None or until is not None:
            raise self._cannot("sessions by time or of all actors")
        after = None if asked.after is None else asked.after.id
        found = await self._read(partial(_sessions, scope=scope_of(actor_id), after=after, limit=limit + 1))
        return asked.page(
            [
                SessionInfo(
                    id=id,
                    actor_id=actor_id,
                    count=head.count,
                    revision=_revision(head.key, head.epoch, head.number),
                    created_at=head.created_at,
                    updated_at=head.updated_at,
                )
                for id, head in found
            ]
        )

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        key = check_key(id, actor_id)
        check_limit(limit, before)
        bodies, start, end, skipped, count = await self._read(
            partial(_tail, name=_scoped(key), limit=limit, before=before)
        )
        messages = unpack_bodies(bodies, count)
        return Page(items=messages[start - skipped : end - skipped], cursor=start or None)

    def lease(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        return self._lease(check_key(id, actor_id), timeout)

    @asynccontextmanager
    async def _lease(self, key: tuple[str | None, str], timeout: float | None) -> AsyncGenerator[Lease]:
        # Two keys share a byte once in 2**62: one then waits for the other, and nothing is wrong.
        offset = rows.name_hash(_scoped(key))
        held = leases.hold(self._file.lease_path, offset, timeout)
        try:
            await held.__aenter__()
        except TimeoutError as error:
            raise busy(key[1], timeout) from error
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

    async def _change(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
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


def _scoped(key: tuple[str | None, str]) -> Name:
    return scope_of(key[0]), key[1]


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


def _commit(
    db: sqlite3.Connection,
    *,
    name: Name,
    commit: Record,
    digest: bytes | None,
    expected_count: int | None,
    expected_revision: str | Revision | None,
) -> Commit:
    """Write ``commit``, or raise before anything is written: the transaction is shared with others."""
    now = float(time.time())

    def state(head: Head) -> tuple[int, int, bytes, bytes]:
        place = rowid(head.key, head.number)
        checksum = rows.body_sum(place, head.epoch, commit.state, commit.metadata)
        return head.head_sum(), checksum, commit.state, commit.metadata

    def written(head: Head) -> Commit:
        place, body = rowid(head.key, head.number), commit.body if commit.count else b""
        small = (head.count, commit.commit_id, digest)
        sums = rows.commit_sum(place, head.epoch, *small), rows.body_sum(place, head.epoch, body)
        db.execute(sql.NEW_COMMIT, (place, *small, *sums, body))
        return _answer(head)

    parts = _parts(expected_revision)
    if parts is not None and commit.kind == "append" and expected_count is not None:
        # The ordinary case in one statement, which checks what `admit` would. Where it changes nothing, the longer way tells why.
        key, epoch, number = parts
        count = expected_count + commit.count
        if key <= LAST_KEY and number < LAST_NUMBER and expected_count >= 0 and count < 1 << 63:
            # Its root and its first time stay what they are, and are not known here.
            head = Head(key, epoch, number + 1, 0, count, 0.0, now)
            new, old = (number + 1, count, now, *state(head)), (key, *name, epoch, number, expected_count)
            if db.execute(sql.ADVANCE, new + old).rowcount == 1:
                return written(head)

    head, _ = rows.read_head(db, name)

    def find(identifier: str) -> Found | None:
        return None if head is None else _earlier(db, name, head, identifier)

    answer = admit(
        commit,
        None if head is None else _answer(head),
        expected_count=expected_count,
        expected_revision=expected_revision,
        find=find,
    )
    if answer is not None:
        return answer
    if head is None:
        key = (db.execute(sql.LAST_KEY).fetchone()[0] or 0) + 1
        if not 0 < key <= LAST_KEY:
            raise StoreError(f"no key is left for the session {name[1]!r}; begin another file")
        head = Head(key, secrets.randbits(63), 1, 1, commit.count, now, now)
        values = (head.key, head.epoch, 1, 1, head.count, now, now, head.fixed_sum(name), *state(head), *name)
        db.execute(sql.NEW_NAME, (rows.name_hash(name),))
        db.execute(sql.NEW_SESSION, values)
        return written(head)
    if head.number == LAST_NUMBER:
        raise StoreError(
            f"the session {name[1]!r} has {head.number} commits, which is all it can have; fork it"
        )
    number, root, count = head.number + 1, head.root, head.count + commit.count
    if commit.kind == "replace":
        before = (rowid(head.key, root), rowid(head.key, head.number))
        db.execute(sql.EMPTY_COMMITS, before)
        db.execute(sql.DROP_COMMITS, before)
        root, count = number, commit.count
    head = Head(head.key, head.epoch, number, root, count, head.created_at, now)
    values = (number, root, count, now, head.fixed_sum(name), *state(head), head.key)
    db.execute(sql.UPDATE_SESSION, values)
    return written(head)


def _answer(head: Head) -> Commit:
    return Commit(revision=_revision(head.key, head.epoch, head.number), count=head.count)


def _earlier(db: sqlite3.Connection, name: Name, head: Head, identifier: str) -> Found | None:
    """Return the commit of the session with this id."""
    span = (rowid(head.key, 0), rowid(head.key, head.number))
    row = db.execute(sql.COMMIT_BY_ID, (*span, identifier)).fetchone()
    if row is None:
        return None
    place, count, _, digest, checksum = row
    if checksum != rows.commit_sum(place, head.epoch, count, identifier, digest):
        raise rows.damaged(name[1])
    return digest, Commit(revision=_revision(head.key, head.epoch, place & LAST_NUMBER), count=count)


def _load(db: sqlite3.Connection, *, name: Name) -> _Stored | Snapshot | None:
    head, rest = rows.read_head(db, name, sql.SNAPSHOT)
    if head is None:
        return None
    checksum, state, metadata = rest
    if checksum != rows.body_sum(rowid(head.key, head.number), head.epoch, state, metadata):
        raise rows.damaged(name[1])
    bodies = rows.bodies(db, name, head, head.root, head.number)
    stored = _Stored(bodies, state, metadata, _revision(head.key, head.epoch, head.number), head.count)
    size = sum(map(len, bodies)) + len(state) + len(metadata)
    return stored if size < DECODE_IN_THREAD else stored.snapshot()


def _tail(
    db: sqlite3.Connection, *, name: Name, limit: int, before: int | None
) -> tuple[list[bytes], int, int, int, int]:
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


def _delete(db: sqlite3.Connection, *, name: Name) -> bool:
    head, _ = rows.read_head(db, name)
    if head is None:
        return False
    db.execute(sql.DELETE_COMMITS, (rowid(head.key, 0), rowid(head.key, LAST_NUMBER)))
    db.execute(sql.DELETE_SESSION, (head.key,))
    db.execute(sql.DELETE_NAME, (rows.name_hash(name),))
    return True


def _sessions(db: sqlite3.Connection, *, scope: str, after: str | None, limit: int) -> list[tuple[str, Head]]:
    if after is None:
        found = db.execute(sql.FIRST_SESSIONS, (scope, limit)).fetchall()
    else:
        found = db.execute(sql.NEXT_SESSIONS, (scope, after, limit)).fetchall()
    for *_, id in found:
        if after is not None and id <= after:  # else who follows the cursors might never come to an end
            raise rows.damaged(id)
        after = id
    return [(row[-1], rows.head((scope, row[-1]), row)) for row in found]
