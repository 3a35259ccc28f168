"""PostgresStore where others may make functions and operators in a schema of the search path: none of theirs may run as its user."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest

from littleghost.errors import ConflictError
from littleghost.message import Message
from littleghost.sessions.contract import ALL_ACTORS, ANY
from littleghost.sessions.postgres import PostgresStore

if TYPE_CHECKING:
    from postgres import PostgresServer

# Each operator for each pair of types, and each function for each of these and of their arrays, and for anything. Who runs one counts up,
# which no rollback undoes.
TRAPS = """
CREATE SCHEMA {schema};
CREATE SEQUENCE {schema}.ran;
GRANT USAGE ON SCHEMA {schema} TO PUBLIC;
GRANT ALL ON SEQUENCE {schema}.ran TO PUBLIC;
DO $make$
DECLARE
    types text[] := ARRAY['bool', 'int2', 'int4', 'int8', 'float4', 'float8', 'numeric', 'text', 'varchar', 'name', 'oid', 'bytea',
        'timestamptz', 'int4[]', 'bytea[]'];
    arguments text[] := ARRAY['', 'anyelement', 'anyarray', 'int8[]', 'bytea, int4, int4', 'text, text, bool', 'anyelement, int4, int4'];
    l text; r text; o text; f text; a text; body text;
BEGIN
    body := $body$ LANGUAGE plpgsql AS 'BEGIN PERFORM nextval(''{schema}.ran''); RAISE ''trapped by %s''; END'$body$;
    FOREACH l IN ARRAY types LOOP
        arguments := arguments || l || (l || ', int4');
        FOREACH r IN ARRAY types LOOP
            EXECUTE format('CREATE FUNCTION {schema}.compare(%s, %s) RETURNS bool', l, r) || format(body, 'a comparison');
            EXECUTE format('CREATE FUNCTION {schema}.compute(%s, %s) RETURNS %s', l, r, l) || format(body, 'an operator');
            FOREACH o IN ARRAY ARRAY['=', '<>', '<', '>', '<=', '>='] LOOP
                EXECUTE format('CREATE OPERATOR {schema}.%s (leftarg = %s, rightarg = %s, function = {schema}.compare)', o, l, r);
            END LOOP;
            FOREACH o IN ARRAY ARRAY['+', '-', '*', '/', '#', '&', '||'] LOOP
                EXECUTE format('CREATE OPERATOR {schema}.%s (leftarg = %s, rightarg = %s, function = {schema}.compute)', o, l, r);
            END LOOP;
        END LOOP;
    END LOOP;
    arguments := arguments || ARRAY['text, timestamptz', 'varchar, timestamptz', 'text, text', 'bytea[], int4[], int8[]'];
    FOREACH f IN ARRAY ARRAY['cardinality', 'length', 'substr', 'floor', 'date_part', 'extract', 'now', 'count', 'sum', 'min', 'max',
            'unnest', '"right"', 'array_agg', 'current_setting', 'set_config', 'pg_advisory_xact_lock'] LOOP
        FOREACH a IN ARRAY arguments LOOP
            EXECUTE format('CREATE FUNCTION {schema}.%s(%s) RETURNS %s', f, a,
                CASE f WHEN 'now' THEN 'timestamptz' WHEN 'floor' THEN 'float8' WHEN 'substr' THEN 'bytea' ELSE 'int4' END)
                || format(body, f);
        END LOOP;
    END LOOP;
END
$make$
"""


async def everything(store: PostgresStore) -> None:
    def text(*texts: str) -> list[Message]:
        return [Message.user(text) for text in texts]

    async def append(id: str, count: int, *texts: str, **options: object) -> None:
        await store.append(id, messages=text(*texts), state={}, metadata={}, expected_count=count, **options)

    await store.migrate()
    await append("a", 0, "1")
    await append("a", 1, "2", commit_id="2")
    await append("a", 1, "2", commit_id="2")
    last = await store.append(
        "a", messages=text("3"), state={}, metadata={}, expected_count=2, expected_revision=ANY
    )
    await append("a", 3, *["x"] * 600, expected_revision=last.revision, commit_id="many")
    with pytest.raises(ConflictError):
        await append("a", 1, "2")
    async with store.lease("a", timeout=1) as lease:
        last = await store.replace(
            "a", messages=text("1"), state={}, metadata={}, expected_revision=ANY, lease=lease
        )
        await append("a", 1, "2", expected_revision=last.revision, lease=lease)
        await asyncio.sleep(store._lease_ttl / 2)  # its end is moved on three times in its life
    await store.restore(
        "b", messages=text("1"), state={}, metadata={}, created_at=1.0, updated_at=2.0, actor_id="me"
    )
    await store.fork("a", "c")
    assert (await store.load("a")).count == 2
    assert len((await store.tail("a", limit=1, before=2)).items) == 1
    for order in ("id", "updated"):
        for actor in (None, ALL_ACTORS):
            page = await store.sessions(actor_id=actor, order=order, limit=1, since=0, until=1e12)
            await store.sessions(actor_id=actor, order=order, limit=1, cursor=page.cursor)
    for actor in (None, ALL_ACTORS):
        await store.statistics(actor_id=actor)
    assert (await store.verify()).damaged == ()
    async with store.lease("a"):  # expiry tidies leases away
        assert await store.expire(expire_after=1000) == 1
    assert await store.delete("c")


@pytest.mark.parametrize("prepared", [None, False])
async def test_nothing_of_anybody_elses_runs(postgres_server: PostgresServer, prepared: bool | None):
    name = f"s{time.time_ns()}"
    control = await asyncpg.connect(postgres_server.url)
    try:
        await control.execute(TRAPS.format(schema=f"{name}_evil"))
        await control.execute(
            f"CREATE ROLE {name} LOGIN; ALTER ROLE {name} SET search_path = {name}_evil, public;"
            f"CREATE SCHEMA {name} AUTHORIZATION {name}"
        )
        # They would run.
        other = await asyncpg.connect(postgres_server.url_of(name))
        for trapped in ("SELECT cardinality(ARRAY['x'::bytea])", "SELECT 1::float8 / 2"):
            with pytest.raises(asyncpg.RaiseError):
                await other.fetch(trapped)
        await other.close()
        assert await control.fetchval(f"SELECT last_value FROM {name}_evil.ran") == 2
        async with PostgresStore(
            postgres_server.url_of(name), schema=name, lease_ttl=2.0, prepared_statements=prepared
        ) as store:
            await everything(store)
        assert await control.fetchval(f"SELECT last_value FROM {name}_evil.ran") == 2
    finally:
        await control.execute(f"DROP SCHEMA {name}_evil CASCADE; DROP OWNED BY {name}; DROP ROLE {name}")
        await control.close()
