"""PostgresStore's tables: made once by many, brought up to date, and used by those who may not do everything."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from littleghost.errors import ConfigurationError, CredentialError, FormatError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.opening import open_store
from littleghost.sessions.postgres import PostgresStore, statements
from littleghost.sessions.postgres.migrations import migrate

if TYPE_CHECKING:
    from postgres import PostgresServer


@pytest.fixture
def schema() -> str:
    return f"s{time.time_ns()}"


@pytest.fixture
async def control(postgres_server: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_server.url)
    yield connection
    await connection.close()


async def append(store: Any, id: str, count: int, *texts: str, **options: Any) -> Any:
    messages = [Message.user(text) for text in texts]
    return await store.append(id, messages=messages, state={}, metadata={}, expected_count=count, **options)


STARTER = """
import asyncio, sys
from littleghost import Message, PostgresStore, Session
async def main():
    async with PostgresStore(sys.argv[1], schema=sys.argv[2], max_connections=2) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        await Session(id=sys.argv[3], store=store).append([Message.user("x")])
        print((await store.load(sys.argv[3])).count)
asyncio.run(main())
"""


def test_sixteen_processes_that_start_at_once_all_succeed(postgres_server: PostgresServer, schema: str):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", STARTER, postgres_server.url, schema, f"{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(16)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            said, wrong = process.communicate(timeout=60)
            assert (said, wrong) == ("1\n", "")
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def test_many_stores_in_one_process_too(postgres_server: PostgresServer, schema: str):
    stores = [PostgresStore(postgres_server.url, schema=schema, max_connections=2) for _ in range(12)]
    await asyncio.gather(*(append(store, f"{number}", 0, "x") for number, store in enumerate(stores)))
    assert (await stores[0].statistics()).sessions == 12
    for store in stores:
        await store.aclose()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_whoever_waited_for_the_tables_sees_them_whatever_the_isolation(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection, isolation: str
):
    url = f"{postgres_server.url}&default_transaction_isolation={isolation.replace(' ', '%20')}"
    stores = [PostgresStore(url, schema=schema) for _ in range(4)]
    async with control.transaction():
        await control.execute(stores[0]._sql.lock)
        found = [asyncio.create_task(append(store, f"{id}", 0, "x")) for id, store in enumerate(stores)]
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while await control.fetchval(waiting) < 4:
            await asyncio.sleep(0.01)
    assert [commit.count for commit in await asyncio.gather(*found)] == [1] * 4
    for store in stores:
        await store.aclose()


async def test_stores_with_other_prefixes_and_schemas_share_nothing(
    postgres_server: PostgresServer, schema: str
):
    places = [
        {"schema": schema},
        {"schema": schema, "table_prefix": ""},
        {"schema": f"{schema}_2", "table_prefix": "Select_$1"},
    ]
    stores = [PostgresStore(postgres_server.url, **place) for place in places]
    for number, store in enumerate(stores):
        await append(store, "a", 0, f"{number}")
    for number, store in enumerate(stores):
        assert (await store.load("a")).messages[0].text == f"{number}"
        assert (await store.verify()).damaged == ()
        async with store.lease("a"):
            pass
        await store.aclose()


async def test_a_newer_format_is_refused_and_not_touched(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection
):
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        await append(store, "a", 0, "x")
    await control.execute(f"UPDATE {schema}.littleghost_format SET version = 2")
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        for operation in (store.load("a"), append(store, "a", 1, "y"), store.migrate()):
            with pytest.raises(FormatError) as caught:
                await operation
            assert (caught.value.found, caught.value.supported) == (2, 1)
    await control.execute(f"UPDATE {schema}.littleghost_format SET version = 0")
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        with pytest.raises(FormatError):
            await store.load("a")


async def test_a_step_is_done_whole_or_not_at_all(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
):
    """A second version, whose step fails at first."""
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        await append(store, "a", 0, "x")
    monkeypatch.setattr("littleghost.sessions.postgres.migrations.VERSION", 2)
    steps = [*statements.STEPS, ("ALTER TABLE {sessions} ADD COLUMN colour text", "SELECT 1 / 0")]
    monkeypatch.setattr(statements, "STEPS", steps)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(control, statements.Statements(schema, "littleghost_"), lambda: 60.0)
    await control.execute("ROLLBACK")
    columns = f"SELECT count(*) FROM information_schema.columns WHERE table_schema = '{schema}' AND column_name = 'colour'"
    assert await control.fetchval(columns) == 0
    assert await control.fetchval(f"SELECT version FROM {schema}.littleghost_format") == 1
    steps[-1] = steps[-1][:1]
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        assert (await store.load("a")).count == 1
        assert await control.fetchval(columns) == 1
        assert await control.fetchval(f"SELECT version FROM {schema}.littleghost_format") == 2


async def test_a_store_goes_on_while_another_one_brings_the_tables_up_to_date(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection
):
    """A prepared statement has to be prepared anew when a column is added or changed."""
    async with PostgresStore(postgres_server.url, schema=schema, max_connections=1) as store:
        await append(store, "a", 0, "x")
        await store.load("a")
        await control.execute(f"ALTER TABLE {schema}.littleghost_sessions ADD COLUMN colour text")
        await control.execute(f"ALTER TABLE {schema}.littleghost_commits ALTER COLUMN body_sum TYPE bigint")
        assert (await store.load("a")).count == 1
        await append(store, "a", 1, "y")
        assert (await store.load("a")).count == 2


async def test_no_lock_outlives_the_making(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection
):
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        await store.migrate()
        await store.migrate()
        assert await control.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


# Who only looks


async def everything(store: PostgresStore) -> AsyncIterator[tuple[str, Any]]:
    """Every operation, each ready to be awaited."""

    async def lease() -> None:
        async with store.lease("a"):
            pass

    yield "load", store.load("a")
    yield "tail", store.tail("a", limit=1)
    yield "sessions", store.sessions()
    yield "statistics", store.statistics()
    yield "verify", store.verify()
    yield "append", append(store, "a", 0, "x")
    yield "replace", store.replace("a", messages=[], state={}, metadata={})
    yield "restore", store.restore("a", messages=[], state={}, metadata={})
    yield "fork", store.fork("a", "b")
    yield "delete", store.delete("a")
    yield "expire", store.expire(expire_after=1)
    yield "lease", lease()


async def relations(control: asyncpg.Connection, schema: str) -> tuple[bool, int]:
    return (
        await control.fetchval("SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema),
        await control.fetchval(
            "SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace WHERE nspname = $1",
            schema,
        ),
    )


@pytest.mark.parametrize("exists", [False, True], ids=["no schema", "no tables"])
async def test_who_makes_no_tables_finds_none_and_leaves_none(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection, exists: bool
):
    if exists:
        await control.execute(f"CREATE SCHEMA {schema}")
    looking = open_store(
        f"{postgres_server.url}&schema={schema}&acquire_timeout=600&connect_timeout=600", create=False
    )
    async with looking as store:
        async for name, operation in everything(store):
            with pytest.raises(
                StoreUnavailableError,
                match=rf"there is no store in schema '{schema}' with prefix 'littleghost_'; .*create",
            ):
                await operation
            assert await relations(control, schema) == (exists, 0), name
        with pytest.raises(ConfigurationError, match="create=False"):
            await store.migrate()
        assert await relations(control, schema) == (exists, 0)
        async with PostgresStore(postgres_server.url, schema=schema) as maker:
            await append(maker, "b", 0, "x")
        # It looks again, and is a store like any other.
        assert (await store.load("b")).count == 1
        await append(store, "a", 0, "x")
        assert (await store.verify()).damaged == ()
    async with PostgresStore(
        postgres_server.url, schema=schema, table_prefix="other_", create=False
    ) as store:
        with pytest.raises(StoreUnavailableError, match="with prefix 'other_'"):
            await store.load("a")


async def test_who_makes_no_tables_does_not_change_older_ones(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
):
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        await append(store, "a", 0, "x")
    monkeypatch.setattr("littleghost.sessions.postgres.migrations.VERSION", 2)
    monkeypatch.setattr(
        statements, "STEPS", [*statements.STEPS, ("ALTER TABLE {sessions} ADD COLUMN colour text",)]
    )
    async with PostgresStore(postgres_server.url, schema=schema, create=False) as store:
        async for _, operation in everything(store):
            with pytest.raises(FormatError, match="create") as caught:
                await operation
            assert (caught.value.found, caught.value.supported) == (1, 2)
    assert await control.fetchval(f"SELECT version FROM {schema}.littleghost_format") == 1
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        assert (await store.load("a")).count == 1
    async with PostgresStore(postgres_server.url, schema=schema, create=False) as store:
        assert (await store.load("a")).count == 1


# Who may do what


@pytest.fixture
async def role(control: asyncpg.Connection) -> AsyncIterator[str]:
    name = f"r{time.time_ns()}"
    await control.execute(f"CREATE ROLE {name} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    yield name
    await control.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


async def test_who_may_only_read_reads_and_is_told_what_else_it_takes(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection, role: str
):
    async with PostgresStore(postgres_server.url, schema=schema) as owner:
        await append(owner, "a", 0, "x", "y", actor_id="me")
    await control.execute(
        f"GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}"
    )
    async with PostgresStore(postgres_server.url_of(role), schema=schema) as reader:
        assert (await reader.load("a", actor_id="me")).count == 2
        assert (await reader.tail("a", limit=1, actor_id="me")).items[0].text == "y"
        assert [item.id for item in (await reader.sessions(actor_id="me")).items] == ["a"]
        assert (await reader.statistics()).messages == 2
        assert (await reader.verify()).damaged == ()
        for operation in (
            append(reader, "a", 2, "z", actor_id="me"),
            append(reader, "new", 0, "z"),
            reader.delete("a", actor_id="me"),
            reader.expire(expire_after=1),
        ):
            with pytest.raises(
                StoreUnavailableError, match=r"grant it SELECT .* INSERT, UPDATE and DELETE"
            ) as caught:
                await operation
            assert caught.value.code == "42501"
        with pytest.raises(StoreUnavailableError, match="grant"):
            async with reader.lease("a"):
                pass
    async with PostgresStore(postgres_server.url, schema=schema) as owner:
        assert (await owner.load("a", actor_id="me")).count == 2


async def test_who_is_not_let_in_is_told_at_once_and_without_the_url(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection, role: str
):
    rules = postgres_server.data / "pg_hba.conf"
    before = rules.read_text()
    await control.execute(
        f"ALTER ROLE {role} PASSWORD 'c0rrect'; GRANT CREATE ON DATABASE postgres TO {role}"
    )
    rules.write_text(f"local all {role} scram-sha-256\n{before}")
    try:
        await control.execute("SELECT pg_reload_conf()")
        for url, kind in (
            (f"postgresql://{role}:wr0ng@/postgres?host={postgres_server.folder}", CredentialError),
            (f"postgresql://{role}@/postgres?host={postgres_server.folder}", CredentialError),
            (f"postgresql://nobody-wr0ng@/postgres?host={postgres_server.folder}", CredentialError),
            (f"postgresql://postgres@/wr0ng?host={postgres_server.folder}", ConfigurationError),
        ):
            async with PostgresStore(url, schema=schema, connect_timeout=600, acquire_timeout=600) as store:
                with pytest.raises(kind) as caught:
                    await store.load("a")
            assert type(caught.value) is kind
            assert "wr0ng" not in "".join(traceback.format_exception(caught.value))
        url = f"postgresql://{role}:c0rrect@/postgres?host={postgres_server.folder}"
        async with PostgresStore(url, schema=schema) as store:
            await append(store, "a", 0, "x")
    finally:
        rules.write_text(before)
        await control.execute("SELECT pg_reload_conf()")


async def test_a_server_that_takes_no_writes_is_read(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection, role: str
):
    async with PostgresStore(postgres_server.url, schema=schema) as owner:
        await append(owner, "a", 0, "x")
    await control.execute(
        f"GRANT ALL ON SCHEMA {schema} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role};"
        f"ALTER ROLE {role} SET default_transaction_read_only = on"
    )
    async with PostgresStore(postgres_server.url_of(role), schema=schema) as store:
        assert (await store.load("a")).count == 1
        with pytest.raises(StoreUnavailableError, match="standby") as caught:
            await append(store, "a", 1, "y", commit_id="y")
        assert caught.value.code == "25006"


async def test_who_may_not_make_tables_is_told_what_to_do(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection, role: str
):
    for place in (schema, "public"):
        async with PostgresStore(postgres_server.url_of(role), schema=place, table_prefix="other_") as store:
            with pytest.raises(
                StoreUnavailableError, match=r"CREATE on the schema, .*PostgresStore.schema_sql\(\)"
            ):
                await store.load("a")
    await control.execute(PostgresStore.schema_sql(schema=schema))
    await control.execute(
        f"GRANT USAGE ON SCHEMA {schema} TO {role};"
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
    )
    async with PostgresStore(postgres_server.url_of(role), schema=schema) as store:
        await store.migrate()
        await append(store, "a", 0, "x")
        await store.replace("a", messages=[], state={}, metadata={})
        async with store.lease("a") as lease:
            await append(store, "a", 0, "x", lease=lease)
        assert await store.delete("a")
        assert await store.expire(expire_after=1) == 0


async def test_the_script_makes_what_the_store_makes(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection
):
    async def shape(place: str) -> list[Any]:
        columns = await control.fetch(
            "SELECT table_name, column_name, data_type, collation_name, is_nullable, is_identity, is_generated"
            f" FROM information_schema.columns WHERE table_schema = '{place}' ORDER BY 1, ordinal_position"
        )
        indexes = await control.fetch(
            f"SELECT indexdef FROM pg_indexes WHERE schemaname = '{place}' ORDER BY 1"
        )
        options = await control.fetch(
            f"SELECT relname, reloptions FROM pg_class WHERE relnamespace = '{place}'::regnamespace AND relkind = 'r' ORDER BY 1"
        )
        return [str(row).replace(place, "") for row in (*columns, *indexes, *options)]

    async with PostgresStore(postgres_server.url, schema=schema) as store:
        await store.migrate()
    await control.execute(PostgresStore.schema_sql(schema=f"{schema}_2"))
    assert await shape(schema) == await shape(f"{schema}_2")
    assert len(await shape(schema)) > 25
    async with PostgresStore(postgres_server.url, schema=f"{schema}_2") as store:
        await append(store, "a", 0, "x")


async def test_tables_that_were_dropped_are_an_error_and_no_empty_history(
    postgres_server: PostgresServer, schema: str, control: asyncpg.Connection
):
    async with PostgresStore(postgres_server.url, schema=schema) as store:
        await append(store, "a", 0, "x")
        await control.execute(f"DROP SCHEMA {schema} CASCADE")
        for operation in (store.load("a"), append(store, "a", 1, "y"), store.sessions()):
            with pytest.raises(StoreUnavailableError, match="migrate"):
                await operation
        await store.migrate()
        assert await store.load("a") is None
