"""The store, and what each of its operations asks of the server."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from littleghost.errors import ConfigurationError, DataError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.commits import (
    Found,
    Listing,
    admit,
    check_actor,
    check_expiry,
    check_limit,
    check_limits,
    check_listing,
    check_room,
    lease_lost,
    scope_of,
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
from littleghost.sessions.postgres import rows
from littleghost.sessions.postgres.rows import Key, Packed
from littleghost.sessions.postgres.statements import Statement, Statements
from littleghost.sessions.postgres.urls import check_dsn
from littleghost.sessions.recording import RecordStore
from littleghost.sessions.records import Record, check_key, check_timeout

if TYPE_CHECKING:
    from littleghost.sessions.postgres.connections import Pool

__all__ = ["PostgresStore"]

NO_LIMIT: Final = 1 << 62
LARGEST: Final = (1 << 31) - 1

DECODE_IN_THREAD: Final = 1_000_000
"""From this many bytes on a session is decoded in a thread and not on the event loop."""

RACES: Final = 100
"""How often a write is tried that others overtake, though none of them makes it a conflict."""


class PostgresStore(RecordStore):
    """Keeps sessions in PostgreSQL, for any number of processes on any number of machines.

    A commit is one statement and one round trip. Tables are made with the first use where they are missing, and brought up to date.
    Lost connections are made anew; a commit whose answer was lost is sent again where it has a ``commit_id``, and then gets its first
    answer. Works behind a pooler such as PgBouncer in transaction mode. Safe to use from several threads and event loops, each of
    which gets connections of its own, and after ``fork``.

    Args:
        dsn: ``postgresql://user:password@host:port/database``, the password percent-encoded where it has to be. Whatever asyncpg
            takes, such as ``?host=`` for the folder of a socket, ``?sslmode=``, and the variables ``PG…`` of the environment; and
            settings of the server. The options below are not read from it; `open_store` does that.
        schema: Where the tables are; made where it is missing.
        table_prefix: What their names begin with.
        create: ``False`` neither makes the tables nor brings them up to date: where they are missing, every operation is a
            `StoreUnavailableError`, and where they are older, a `FormatError`.
        min_connections: How many connections stay open though idle.
        max_connections: How many are opened at most, by each event loop.
        connect_timeout: Seconds to connect.
        command_timeout: Seconds that the server has for one statement.
        acquire_timeout: Seconds to wait for a connection, and for a server that starts, stops or cannot be reached.
        lease_ttl: Seconds that a lease outlives a holder who died.
        prepared_statements: ``None`` finds out whether a pooler can keep them, ``False`` does without: then an append is two round trips.
        limits: How large a session may become.

    Raises:
        ConfigurationError: An argument makes no sense. It does not repeat ``dsn``.
        DependencyError: asyncpg is not installed.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "public",
        table_prefix: str = "littleghost_",
        create: bool = True,
        min_connections: int = 1,
        max_connections: int = 10,
        connect_timeout: float = 10.0,
        command_timeout: float = 60.0,
        acquire_timeout: float = 30.0,
        lease_ttl: float = 30.0,
        prepared_statements: bool | None = None,
        limits: SessionLimits = NO_LIMITS,
    ) -> None:
        check_dsn(dsn)
        self._sql = Statements(schema, table_prefix)
        _check_sizes(min_connections, max_connections)
        for name, seconds in (
            ("connect_timeout", connect_timeout),
            ("command_timeout", command_timeout),
            ("acquire_timeout", acquire_timeout),
            ("lease_ttl", lease_ttl),
        ):
            _check_seconds(name, seconds)
        if prepared_statements not in (None, True, False):
            raise ConfigurationError("prepared_statements must be None, True or False")
        if create not in (True, False):
            raise ConfigurationError("create must be True or False")
        from littleghost.sessions.postgres.connections import Pools, Settings

        settings = Settings(
            dsn=dsn,
            min_connections=min_connections,
            max_connections=max_connections,
            connect_timeout=connect_timeout,
            command_timeout=command_timeout,
            acquire_timeout=acquire_timeout,
            prepared_statements=prepared_statements,
            create=create,
        )
        self._place = (schema, table_prefix)
        self._lease_ttl = float(lease_ttl)
        self.limits = check_limits(limits)
        self._pools = Pools(settings, self._sql)
        # The pools do not know the store, so one that nobody has any more ends them.
        weakref.finalize(self, self._pools.end).atexit = False

    @staticmethod
    def schema_sql(*, schema: str = "public", table_prefix: str = "littleghost_") -> str:
        """Return a script that makes the tables, for somebody who may where this store may not.

        Raises:
            ConfigurationError: An argument is no plain name.
        """
        return Statements(schema, table_prefix).script()

    def __repr__(self) -> str:
        schema, prefix = self._place
        return f"PostgresStore(…, schema={schema!r}, table_prefix={prefix!r})"

    async def aclose(self) -> None:
        """Close the store after what this event loop has asked of it. Closing it again does nothing; using it again is a `StoreError`.

        A server that does not answer any more is waited for: ``command_timeout`` for what is under way, and some seconds to say goodbye.
        """
        await self._pools.close()

    async def migrate(self) -> None:
        """Make the tables where they are missing, and bring them up to date. Otherwise the first use does.

        Raises:
            ConfigurationError: The store was made with ``create=False``.
            FormatError: They are of a newer version.
            StoreUnavailableError: It cannot be done now, or not by this user; the message tells what to grant.
        """
        if not self._pools.settings.create:
            raise ConfigurationError(
                "migrate() makes tables, and this store was opened with create=False; open another one"
            )
        await self._here.migrate()

    @property
    def _here(self) -> Pool:
        return self._pools.here()

    # -- reading

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        key = Key.of(*check_key(id, actor_id))
        found = await self._read(self._sql.load, key)
        if found and rows.size(found) >= DECODE_IN_THREAD:
            return await asyncio.to_thread(rows.snapshot, key, found)
        return rows.snapshot(key, found)

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        key = Key.of(*check_key(id, actor_id))
        check_limit(limit, before)
        until = None if before is None else max(-1, min(before, NO_LIMIT))
        found = await self._read(self._sql.tail, key, min(limit, NO_LIMIT), until)
        return rows.page(key, found)

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
        statement, arguments = self._listing(asked)
        found = await self._here.fetch(statement, *arguments, repeat=True)
        # What comes after the page only tells that there is more.
        shown = found[: asked.limit]
        if sum(len(row[-1]) for row in shown) >= DECODE_IN_THREAD:
            infos = await asyncio.to_thread(_infos, shown)
        else:
            infos = _infos(shown)
        return asked.page([*infos, *infos[-1:]] if len(found) > asked.limit else infos)

    def _listing(self, asked: Listing) -> tuple[Statement, list[Any]]:
        sql, whole = self._sql, isinstance(asked.actor_id, AllActors)
        arguments: list[Any] = [
            min(asked.limit, LARGEST - 1) + 1,
            asked.since,
            asked.until,
        ]
        scope = b"" if isinstance(asked.actor_id, AllActors) else scope_of(asked.actor_id).encode()
        if asked.after is None:
            after, at = None, None
        else:
            after, at = tuple(part.encode() for part in asked.after.key), asked.after.updated_at
        if asked.order == "updated":
            arguments += [at, *(after or (b"", b""))]
            if whole:
                return sql.latest, arguments
            return sql.latest_of, [*arguments, rows.beginnings(scope, b"")[0], scope]
        if after is None:
            if whole:
                return sql.first_sessions, arguments
            return sql.first_sessions_of, [*arguments, rows.beginnings(scope, b"")[0], scope]
        return sql.sessions if whole else sql.sessions_of, [*arguments, *rows.beginnings(*after), *after]

    async def statistics(self, *, actor_id: str | AllActors | None = ALL_ACTORS) -> Statistics:
        check_actor(actor_id)
        if isinstance(actor_id, AllActors):
            found = await self._here.fetch(self._sql.statistics, repeat=True)
        else:
            scope = scope_of(actor_id).encode()
            arguments = (rows.beginnings(scope, b"")[0], scope)
            found = await self._here.fetch(self._sql.statistics_of, *arguments, repeat=True)
        sessions, messages, size, oldest, newest = found[0]
        return Statistics(sessions=sessions, messages=messages, size=size, oldest_at=oldest, newest_at=newest)

    async def verify(self, *, limit: int = 100, cursor: str | None = None) -> Verified:
        check_limit(limit)
        after = _verified_up_to(cursor)
        pool = self._here
        keys = await pool.fetch(self._sql.keys, after, min(limit, LARGEST), repeat=True)
        ended = len(keys) < limit
        damaged: list[Damage] = []
        for key, scope, id in keys:
            actor_id, name = rows.named(scope, id)
            found = await pool.fetch(self._sql.whole, key, repeat=True)
            if found:  # else it was deleted meanwhile
                problems = await asyncio.to_thread(rows.problems, found)
                damaged += [Damage(id=name, actor_id=actor_id, problem=problem) for problem in problems]
        upto = NO_LIMIT if ended else keys[-1][0]
        damaged += [
            Damage(
                id=None,
                actor_id=None,
                problem=f"there are messages of the session with the key {key}, and there is no such session; delete them by hand",
            )
            for (key,) in await pool.fetch(self._sql.orphans, after, upto, repeat=True)
        ]
        return Verified(checked=len(keys), damaged=tuple(damaged), cursor=None if ended else str(upto))

    async def _read(self, statement: Statement, key: Key, *arguments: Any) -> Any:
        return await self._here.fetch(statement, *key.arguments, *arguments, repeat=True, name=key.name)

    # -- writing

    async def _write(
        self,
        key: tuple[str | None, str],
        commit: Record,
        expected_count: int | None,
        expected_revision: str | Revision | None,
        lease: Lease | None,
    ) -> Commit:
        asked = _Asked(Key.of(*key), commit, Packed.of(commit), expected_count, expected_revision, lease)
        attempt = self._attempt(asked)
        name = asked.key.name
        for _ in range(RACES):
            if attempt is not None:
                statement, arguments = attempt
                found = await self._here.fetch(
                    statement, *arguments, repeat=commit.commit_id is not None, name=name, writes=True
                )
                if found:
                    epoch, number, count = found[0]
                    return Commit(revision=rows.revision(epoch, number), count=count)
            answer = await self._why(asked)
            if answer is not None:
                return answer
        raise _overtaken()

    def _attempt(self, asked: _Asked) -> tuple[Statement, tuple[Any, ...]] | None:
        """Return the statement that writes, and its arguments; ``None`` where there is no such revision or count."""
        commit, count, expected = asked.commit, asked.expected_count, None
        if isinstance(asked.expected_revision, str):
            expected = rows.revision_of(asked.expected_revision)
            if expected is None:
                return None
        if count is not None and not 0 <= count <= LARGEST:
            return None
        limits, packed, key = self.limits, asked.packed, asked.key
        rest = (
            NO_LIMIT if limits.messages is None else min(limits.messages, NO_LIMIT),
            NO_LIMIT if limits.size is None else min(limits.size, NO_LIMIT),
            None if asked.lease is None else asked.lease.token,
        )
        if expected is not None and count is not None and len(packed.bodies) == 1:
            statement = self._sql.advance if asked.lease is None else self._sql.advance_leased
            return statement, (*packed.single(key, count), *rest, *expected)
        new = (*packed.arguments(key), *rest, secrets.randbits(63), commit.created_at, commit.updated_at)
        if asked.expected_revision is None:
            return (self._sql.create, new) if not count else None
        may_create = expected is None and not count
        return self._sql.write, (
            *new,
            may_create,
            commit.kind == "replace",
            *(expected or (None, None)),
            count,
        )

    async def _why(self, asked: _Asked) -> Commit | None:
        """Return the first answer to a commit that was written before; ``None`` where nothing speaks against it any more.

        Raises:
            ConflictError: Another writer was first, or the lease is lost.
            SessionTooLargeError: It would become too large.
        """
        key, commit, lease = asked.key, asked.commit, asked.lease
        found = await self._read(
            self._sql.examine, key, commit.commit_id, None if lease is None else lease.token
        )
        epoch, number, count, kept, size, earlier, its_count, its_sum, digest, held = found[0]

        def find(commit_id: str) -> Found | None:
            if earlier is None:
                return None
            if rows.bind(rows.id_sum(commit_id, digest), epoch + earlier + its_count) != its_sum:
                raise rows.damaged(key.text)
            return digest, Commit(revision=rows.revision(epoch, earlier), count=its_count)

        answer = admit(
            commit,
            None if epoch is None else Commit(revision=rows.revision(epoch, number), count=count),
            expected_count=asked.expected_count,
            expected_revision=asked.expected_revision,
            find=find,
            lost=None if lease is None or held else lease_lost(key.text),
        )
        if answer is None:
            grows = commit.kind == "append" and epoch is not None
            check_room(
                self.limits,
                messages=commit.count + (count if grows else 0),
                size=asked.packed.size + len(commit.state) + len(commit.metadata) + (kept if grows else 0),
                before=(count or 0, size or 0),
            )
        return answer

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        key = Key.of(*check_key(id, actor_id))
        for _ in range(RACES):
            found = await self._here.fetch(
                self._sql.delete, *key.arguments, repeat=False, name=key.name, writes=True
            )
            seen, gone = found[0]
            if gone or not seen:
                return bool(gone)
        raise _overtaken()

    async def expire(self, *, expire_after: float, limit: int = 100) -> int:
        check_expiry(expire_after, limit)
        expired = 0
        for _ in range(RACES):
            wanted = min(limit, LARGEST) - expired
            found = await self._here.fetch(self._sql.expire, float(expire_after), wanted, repeat=False)
            old, gone = found[0]
            expired += gone
            if old == gone or expired >= limit:
                break
        return expired

    # -- holding

    def lease(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        return self._lease(Key.of(*check_key(id, actor_id)), check_timeout(timeout))

    @asynccontextmanager
    async def _lease(self, key: Key, timeout: float | None) -> AsyncGenerator[Lease]:
        from littleghost.sessions.postgres import leases

        loop = asyncio.get_running_loop()
        ends = None if timeout is None else loop.time() + timeout
        # Of those who wait in this store one asks the server at a time.
        async with self._hold(("lease", key.name), key.text, timeout):
            left = None if ends is None else max(0.0, ends - loop.time())
            held = leases.hold(self._pools, key.name, self._lease_ttl, left)
            try:
                lease = await held.__aenter__()
            except TimeoutError as error:
                raise busy(key.text, timeout) from error
            try:
                yield lease
            finally:
                await held.__aexit__(None, None, None)


class _Asked(Struct, frozen=True):
    """What is to be written, and on which condition."""

    key: Key
    commit: Record
    packed: Packed
    expected_count: int | None
    expected_revision: str | Revision | None
    lease: Lease | None


def _overtaken() -> StoreUnavailableError:
    return StoreUnavailableError("PostgreSQL: others wrote the session all the while; try again", code=None)


def _infos(found: Any) -> list[SessionInfo]:
    return [rows.info(row) for row in found]


def _verified_up_to(cursor: Any) -> int:
    if cursor is None:
        return -1
    if not isinstance(cursor, str) or not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise DataError.at("cursor", "must be the cursor of a step before")
    return int(cursor)


def _check_sizes(min_connections: Any, max_connections: Any) -> None:
    for name, value in (("min_connections", min_connections), ("max_connections", max_connections)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigurationError(f"{name} must be an integer")
    if not 0 <= min_connections <= max_connections or max_connections < 1:
        raise ConfigurationError(
            "min_connections must be 0 at least, max_connections 1 at least, and min_connections no more than max_connections"
        )


def _check_seconds(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise ConfigurationError(f"{name} must be a number of seconds, more than 0")
