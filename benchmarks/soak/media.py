"""The media that are soaked: where each is, how it is read without the library, and what is done to it while clients work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
from tests.postgres import PostgresServer

from littleghost import ALL_ACTORS, CorruptSessionError, SessionStore, Snapshot, open_store

from .history import Book, Read
from .ledger import Key, digest, to_line, to_line_from_json

__all__ = ["Medium", "PostgreSQL", "SQLite", "make", "read_by_library", "read_by_library_of", "read_of"]

Fault = Callable[[], None]


class Medium(ABC):
    """Where the store under test keeps its sessions.

    Attributes:
        url: Of the store.
        strict_leases: Whether a lease cannot be lost while its holder lives.
        deletes_by_halves: Whether a session can be seen half deleted, which is told as damage.
        faults: What is done to it, by name.
        seen: What was read of it while clients worked.
    """

    url: str
    strict_leases: bool
    deletes_by_halves = False
    faults: dict[str, Fault]

    def __init__(self) -> None:
        self.seen: list[Read] = []
        self.notes: list[str] = []

    @abstractmethod
    def read(self) -> list[tuple[Key, Read]]:
        """Return every session, read by SQL and JSON alone."""

    @abstractmethod
    def damage(self) -> list[str]:
        """Return what the medium's own checks find."""

    def calm(self) -> None:
        """Do nothing to it any more."""

    def known(self, book: Book) -> list[Key] | None:
        """Return which sessions there may be, where the store cannot list them."""
        return None

    def figures(self) -> dict[str, Any]:
        """Return what else there is to tell."""
        return {}

    def close(self) -> None:
        """Remove it."""


def read_of(
    key: Key, revision: str, bodies: Sequence[bytes | str], state: Any, metadata: Any, whose: str
) -> Read:
    """Return what is stored of a session, of which messages, state and metadata are JSON."""
    lines = [to_line_from_json(message) for body in bodies if body for message in json.loads(body)]
    now = time.monotonic()
    marks = json.loads(state).get("op"), json.loads(metadata).get("by")
    return Read(key, now, now, revision, len(lines), *marks, digest(lines), whose=whose)


# -- SQLite

SESSIONS = "SELECT scope, id, key, epoch, number, root, state, metadata FROM sessions"
BODIES = "SELECT body FROM commits WHERE rowid BETWEEN ? AND ? ORDER BY rowid"


class SQLite(Medium):
    """A file in ``folder``."""

    strict_leases = True

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__()
        self.path = folder / "sessions.db"
        self.url = f"sqlite:///{self.path}"
        self._folder, self._chance = folder, chance
        self.faults = {
            "backup": self._backup,
            "vacuum": self._vacuum,
            "long reader": self._long_reader,
            "checkpoint": self._checkpoint,
            "writer that holds on": self._long_writer,
        }

    @contextlib.contextmanager
    def _connection(self, path: Path) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as connection:
            yield connection

    def read(self) -> list[tuple[Key, Read]]:
        return self._read(self.path, "SQL")

    def _read(self, path: Path, whose: str) -> list[tuple[Key, Read]]:
        found: list[tuple[Key, Read]] = []
        with self._connection(path) as db:
            db.execute("BEGIN")
            for scope, id, key, epoch, number, root, state, metadata in db.execute(SESSIONS).fetchall():
                session: Key = (None if scope == "-" else scope[1:], id)
                bodies = db.execute(BODIES, (key << 32 | root, key << 32 | number)).fetchall()
                revision = f"{epoch:016x}-{key:x}-{number}"
                texts = [body for (body,) in bodies]
                found.append((session, read_of(session, revision, texts, state, metadata, whose)))
        return found

    def damage(self) -> list[str]:
        return self._damage(self.path)

    def _damage(self, path: Path) -> list[str]:
        with self._connection(path) as db:
            found = [row[0] for row in db.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    def _backup(self) -> None:
        """Copy the file with SQLite's own means, and see that the copy holds what was there, no less and nothing else."""
        copy = self._folder / "copy.db"
        began = time.monotonic()
        with self._connection(self.path) as db, self._connection(copy) as other:
            db.backup(other, pages=50, sleep=0.001)
        ended = time.monotonic()
        self.notes += [f"a backup is damaged: {what}" for what in self._damage(copy)]
        for _, read in self._read(copy, "a backup"):
            read.t0, read.t1 = began, ended
            self.seen.append(read)
        copy.unlink()

    def _vacuum(self) -> None:
        with self._connection(self.path) as db:
            db.execute("VACUUM")

    def _checkpoint(self) -> None:
        with self._connection(self.path) as db:
            mode = self._chance.choice(["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
            db.execute(f"PRAGMA wal_checkpoint({mode})")

    def _long_reader(self) -> None:
        """Keep an old snapshot open, so that the log cannot be taken in."""
        with self._connection(self.path) as db:
            db.execute("BEGIN")
            before = db.execute("SELECT count(*), sum(length(body)) FROM commits").fetchone()
            time.sleep(self._chance.uniform(0.1, 1.0))
            if db.execute("SELECT count(*), sum(length(body)) FROM commits").fetchone() != before:
                self.notes.append("what a transaction reads has changed under it")

    def _long_writer(self) -> None:
        with self._connection(self.path) as db:
            db.execute("BEGIN IMMEDIATE")
            time.sleep(self._chance.uniform(0.05, 0.5))
            db.execute("ROLLBACK")


# -- PostgreSQL

PG_SESSIONS = "SELECT scope, id, key, epoch, number, root, state, metadata FROM littleghost_sessions"
PG_COMMITS = "SELECT session, number, body FROM littleghost_commits ORDER BY session, number"
PG_DAMAGE = (
    "invalid page",
    "checksum",
    "corrupt",
    "could not read block",
    "missing chunk",
    "unexpected chunk",
)
"""What is in the server's log where it has found damage."""


LEASE_SECONDS = 1


class PostgreSQL(Medium):
    """A server of its own, which is killed and started again."""

    strict_leases = False

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__()
        # As an operator runs it: what is acknowledged is on the disk.
        self.server = PostgresServer("fsync = on\nfull_page_writes = on\n")
        # So short that who stands still for a while loses its lease, and must not write under it any more.
        self.url = f"{self.server.url}&lease_ttl={LEASE_SECONDS}"
        self._chance = chance
        self.faults = {
            "server stopped in the midst": lambda: self._restart("immediate"),
            "server restarted": lambda: self._restart("fast"),
            "server and backends killed": self._kill_all,
            "one backend killed": self._kill_backend,
            "connections terminated": self._terminate,
            "queries cancelled": self._cancel,
            "vacuum full": lambda: self._try_sql("VACUUM FULL"),
            "checkpoint": lambda: self._try_sql("CHECKPOINT"),
        }

    def _sql(self, *statements: str) -> list[list[Any]]:
        """Run statements one after the other in one transaction, or alone, past the library."""

        async def run() -> list[list[Any]]:
            connection = await asyncpg.connect(self.server.url, timeout=20)
            try:
                if len(statements) == 1:
                    return [await connection.fetch(statements[0])]
                async with connection.transaction(isolation="repeatable_read", readonly=True):
                    return [await connection.fetch(statement) for statement in statements]
            finally:
                await connection.close(timeout=20)

        return asyncio.run(run())

    def _try_sql(self, statement: str) -> None:
        """Run a statement unless the server is just not there."""
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            self._sql(statement)

    def _processes(self) -> list[int]:
        """The server and all that it has started."""
        postmaster = self.server.pid
        found = [postmaster] if postmaster else []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == postmaster:
                    found.append(int(folder.name))
        return found

    def _restart(self, mode: str) -> None:
        # PostgreSQL 18.4 never ends if it is told to shut down while it recovers from the death of a backend.
        self._await_answer()
        try:
            self.server.run("pg_ctl", "-D", self.server.data, "-m", mode, "-w", "-t", 15, "stop")
        except AssertionError:
            self._kill_all()
        else:
            self.server.start()

    def _await_answer(self) -> None:
        ends = time.monotonic() + 20
        while time.monotonic() < ends:
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                self._sql("SELECT 1")
                return
            time.sleep(0.05)

    def _kill_all(self) -> None:
        processes = self._processes()
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(self._chance.uniform(0, 0.5))
        self.server.start()

    def _kill_backend(self) -> None:
        """PostgreSQL answers the death of one backend by ending all of them, for shared memory may be damaged."""
        backends = self._processes()[1:]
        if backends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._chance.choice(backends), signal.SIGKILL)

    def _terminate(self) -> None:
        self._try_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def _cancel(self) -> None:
        self._try_sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def read(self) -> list[tuple[Key, Read]]:
        found: list[tuple[Key, Read]] = []
        sessions, commits = self._sql(PG_SESSIONS, PG_COMMITS)
        bodies: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for session, number, body in commits:
            bodies[session].append((number, body))
        for scope, id, key, epoch, number, root, state, metadata in sessions:
            session: Key = (None if scope == b"-" else scope[1:].decode(), id.decode())
            texts = [body for place, body in bodies[key] if root <= place <= number]
            revision = f"{epoch:016x}-{number}"
            found.append((session, read_of(session, revision, texts, state, metadata, "SQL")))
        return found

    def damage(self) -> list[str]:
        """Have the server read all it has, and look into its log."""
        dump = ("-h", self.server.folder, "-U", "postgres", "-f", os.devnull, "postgres")
        self.server.run("pg_dump", *dump)
        said = self.server.log.read_text("utf-8", "replace").splitlines()
        # A hint is no finding: there is one about a recovery that was interrupted.
        return [line for line in said if "HINT:" not in line and any(word in line for word in PG_DAMAGE)]

    def close(self) -> None:
        self.server.remove()


def make(kind: str, folder: Path, chance: random.Random) -> Medium:
    """Return a medium of the kind ``sqlite``, ``postgres`` or ``agentcore``."""
    if kind == "agentcore":
        from .agentcore import AgentCore

        return AgentCore(chance)
    return SQLite(folder, chance) if kind == "sqlite" else PostgreSQL(folder, chance)


async def read_by_library(
    url: str, keys: Sequence[Key] | None, book: Book
) -> tuple[list[tuple[Key, Read]], list[str]]:
    """Return every session as the library loads it, those of ``keys`` where it cannot list them, and what its `verify` finds."""
    store = open_store(url)
    try:
        if keys is None:
            return await read_by_library_of(store), await _verify(store)
        found = [(key, await _load_or_end(store, key, book)) for key in keys]
        return [(key, read) for key, read in found if read.revision is not None], []
    finally:
        await store.aclose()


async def _load_or_end(store: SessionStore, key: Key, book: Book) -> Read:
    """Load a session; what is left of one whose deletion was broken off is deleted, and noted as seen by halves."""
    try:
        return await _load(store, key)
    except CorruptSessionError:
        now = time.monotonic()
        book.halves.append({"s": key, "t0": now, "t1": now})
        await store.delete(key[1], actor_id=key[0])
        return await _load(store, key)


async def read_by_library_of(store: SessionStore) -> list[tuple[Key, Read]]:
    """Return every session of ``store`` as the library loads it."""
    return [(key, await _load(store, key)) for key in await _keys(store)]


async def _keys(store: SessionStore) -> list[Key]:
    actors: list[Any] = [ALL_ACTORS] if "all_actors" in store.capabilities else [None, "ann", "bob"]
    found: list[Key] = []
    for actor in actors:
        cursor: str | None = None
        while True:
            page = await store.sessions(actor_id=actor, cursor=cursor)
            found += [(info.actor_id, info.id) for info in page.items]
            if page.cursor is None:
                break
            cursor = str(page.cursor)
    return found


async def _load(store: SessionStore, key: Key) -> Read:
    snapshot = await store.load(key[1], actor_id=key[0])
    now = time.monotonic()
    if not isinstance(snapshot, Snapshot):
        return Read(key, now, now, None, whose="load")
    lines = [to_line(message) for message in snapshot.messages]
    marks = snapshot.state.get("op"), snapshot.metadata.get("by")
    return Read(key, now, now, snapshot.revision, snapshot.count, *marks, digest(lines), whose="load")


async def _verify(store: SessionStore) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while "verify" in store.capabilities:
        step = await store.verify(cursor=cursor)
        found += [f"verify: {damage.actor_id} {damage.id}: {damage.problem}" for damage in step.damaged]
        cursor = step.cursor
        if cursor is None:
            break
    return found
