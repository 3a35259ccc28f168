"""The store: who does what is asked of it, and how it is waited for."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, TypeVar, get_args

from littleghost.errors import ConfigurationError, CorruptSessionError
from littleghost.message import Message
from littleghost.sessions import leases
from littleghost.sessions.commits import (
    check_actor,
    check_expiry,
    check_limit,
    check_limits,
    check_listing,
    lease_lost,
    scope_of,
    unpack_bodies,
)
from littleghost.sessions.contract import (
    ALL_ACTORS,
    NO_LIMITS,
    AllActors,
    Commit,
    Damage,
    Lease,
    Page,
    Revision,
    SessionInfo,
    SessionLimits,
    SessionOrder,
    Snapshot,
    Statistics,
    Verified,
    busy,
)
from littleghost.sessions.recording import RecordStore
from littleghost.sessions.records import Record, check_key, check_timeout
from littleghost.sessions.sqlite import reading, rows, verification, writing
from littleghost.sessions.sqlite.database import DatabaseFile, Durability, store_error
from littleghost.sessions.sqlite.rows import Name
from littleghost.sessions.sqlite.worker import Job, Worker

__all__ = ["SQLiteStore"]

Answer = TypeVar("Answer")


class _Held:
    """A lease that this process has, and what is being written under it."""

    __slots__ = ("jobs", "lock", "owner", "token")

    def __init__(self, lock: leases.Lock) -> None:
        self.lock = lock
        self.token = secrets.token_hex(16)
        self.owner = os.getpid()  # a forked child has a copy of this, and not of the lock
        self.jobs: set[Job] = set()


class SQLiteStore(RecordStore):
    """Keeps sessions in a SQLite file, safe for many processes of one machine.

    Commits that wait at the same moment share one transaction and one fsync. Reading does not wait for writing. No call blocks the
    event loop, not even the first one, which opens the file, makes it where it is missing, and brings it up to the present format where an
    older library made it. Safe to use from several threads and event loops, and after ``fork``. Not for a file system that is shared
    between machines.

    A file that this process may only read is read; to write is then a `StoreUnavailableError`.

    Args:
        path: The file. A relative one is resolved now, so a later change of the working directory does not matter.
        durability: What an acknowledged commit survives. ``full``: the death of the process and the loss of power. ``normal``: the
            death of the process; the loss of power may take the last commits, and never damages the file. ``off``: the death of the
            process; the loss of power may damage the file. For tests.
        limits: How large each session may become.

    Raises:
        ConfigurationError: ``path`` or ``durability`` makes no sense.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        limits: SessionLimits = NO_LIMITS,
    ) -> None:
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
        self._abandoned: set[Job] = set()
        self._leases: dict[Name, _Held] = {}
        self.limits = check_limits(limits)
        # The threads know the workers and not the store, so a store that nobody has any more ends them.
        for worker in (self._writer, self._reader):
            weakref.finalize(self, worker.stop).atexit = False

    @property
    def path(self) -> str:
        """The file, by its absolute path."""
        return self._file.path

    def __repr__(self) -> str:
        return f"SQLiteStore({self._file.path!r}, durability={self._file.durability!r})"

    async def aclose(self) -> None:
        """Close the store after what it was asked to do. Closing it again does nothing; using it again is a `StoreError`."""
        for worker in (self._reader, self._writer):
            worker.stop()
        for worker in (self._reader, self._writer):
            await asyncio.shield(asyncio.wrap_future(worker.ended))

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        key = check_key(id, actor_id)
        stored = await self._read(partial(reading.load, name=_scoped(key)))
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
        parts = commit.parts()
        asked = writing.Write(
            _scoped(key),
            commit,
            parts,
            sum([len(body) for body, count in parts if count]),
            None if commit.commit_id is None else commit.digest(),
            expected_count,
            expected_revision,
            self.limits,
        )
        if lease is None:
            return await self._change(partial(writing.write, asked=asked))
        return await self._fenced(lease, asked)

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        return await self._change(partial(writing.delete, name=_scoped(check_key(id, actor_id))))

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
        return asked.page(await self._read(partial(reading.listed, asked=asked)))

    async def statistics(self, *, actor_id: str | AllActors | None = ALL_ACTORS) -> Statistics:
        check_actor(actor_id)
        return await self._read(partial(reading.figures, actor_id=actor_id))

    async def expire(self, *, expire_after: float, limit: int = 100) -> int:
        check_expiry(expire_after, limit)
        return await self._change(
            partial(writing.expire, expire_after=expire_after, limit=min(limit, rows.LAST_NUMBER))
        )

    async def verify(self, *, limit: int = 100, cursor: str | None = None) -> Verified:
        """Read up to ``limit`` sessions of any actor whole, and tell what is damaged; see `SessionStore.verify`.

        The first step also lets SQLite check a file of up to `verification.CHECKED_WHOLE` bytes. Of a larger one that is left to
        ``PRAGMA integrity_check``; that each session is found by its name, its actor and its time is checked for every file.
        """
        check_limit(limit)
        after = verification.parse(cursor)
        try:
            return await self._read(partial(verification.verify, after=after, limit=limit))
        except CorruptSessionError as error:  # the file cannot even be opened
            return Verified(checked=0, damaged=(Damage(id=None, actor_id=None, problem=str(error)),))

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        key = check_key(id, actor_id)
        check_limit(limit, before)
        bodies, start, end, skipped, count = await self._read(
            partial(reading.tail, name=_scoped(key), limit=limit, before=before)
        )
        messages = unpack_bodies(bodies, count)
        return Page(items=messages[start - skipped : end - skipped], cursor=start or None)

    def lease(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        return self._lease(check_key(id, actor_id), check_timeout(timeout))

    @asynccontextmanager
    async def _lease(self, key: tuple[str | None, str], timeout: float | None) -> AsyncGenerator[Lease]:
        # Two keys share a byte once in 2**62: one then waits for the other, and nothing is wrong.
        name = _scoped(key)
        holding = leases.hold(self._file.lease_path, rows.name_hash(name), timeout)
        try:
            lock = await holding.__aenter__()
        except TimeoutError as error:
            raise busy(key[1], timeout) from error
        except OSError as error:
            raise store_error(error, self._file.lease_path) from error
        held = self._leases[name] = _Held(lock)
        try:
            yield Lease(token=held.token)
        finally:
            self._leases.pop(name, None)
            try:
                # What has not begun yet is refused; what has must end before another process may take the lease.
                while any(job.started and not job.finished for job in list(held.jobs)):
                    await asyncio.sleep(0.001)
            finally:
                await holding.__aexit__(None, None, None)

    async def _fenced(self, lease: Lease, asked: writing.Write) -> Commit:
        held = self._leases.get(asked.name)

        def work(db: sqlite3.Connection) -> Commit:
            # Looked at here, for the lease may have ended while this waited.
            valid = (
                held is not None
                and self._leases.get(asked.name) is held
                and held.token == lease.token
                and held.owner == os.getpid()
                and held.lock.is_sound()
            )
            return writing.write(db, asked, None if valid else lease_lost(asked.name[1]))

        job = Job(work)
        if held is None:
            return await self._run(self._writer, job)
        held.jobs.add(job)
        try:
            return await self._run(self._writer, job)
        finally:
            if job.finished or job.withdrawn:  # else it was abandoned, and the end of the lease waits for it
                held.jobs.discard(job)

    def _read(self, work: Callable[[sqlite3.Connection], Answer]) -> Awaitable[Answer]:
        # What reads after a write that was cancelled too late must see it, so it waits behind it.
        for job in list(self._abandoned):
            if job.finished:
                self._abandoned.discard(job)
        return self._run(self._writer if self._abandoned else self._reader, Job(work))

    def _change(self, work: Callable[[sqlite3.Connection], Answer]) -> Awaitable[Answer]:
        return self._run(self._writer, Job(work))

    async def _run(self, worker: Worker, job: Job) -> Any:
        worker.submit(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            if not job.withdraw() and worker is self._writer:
                self._abandoned.add(job)
            raise


def _scoped(key: tuple[str | None, str]) -> Name:
    return scope_of(key[0]), key[1]
