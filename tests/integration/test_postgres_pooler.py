"""PostgresStore behind PgBouncer in transaction mode, which this version of knows no prepared statements."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from littleghost.errors import StoreError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.postgres import PostgresStore
from littleghost.sessions.session import Session
from littleghost.testing import check_store

if TYPE_CHECKING:
    from postgres import PostgresServer


@pytest.fixture
def schema() -> str:
    return f"s{time.time_ns()}"


async def write(store: PostgresStore, sessions: int, turns: int) -> None:
    async def one(id: str) -> None:
        session = Session(id=id, store=store)
        for number in range(turns):
            await session.append([Message.user(f"{number}")])

    await asyncio.gather(*(one(f"{number}") for number in range(sessions)))


@pytest.mark.timeout(300)
async def test_the_whole_contract(pooler: str, schema: str):
    report = await check_store(f"{pooler}?schema={schema}&lease_ttl=4", seconds=30)
    assert report.ok, str(report)


async def test_it_is_found_out_without_an_option(pooler: str, schema: str):
    async with (
        PostgresStore(pooler, schema=schema) as one,
        PostgresStore(pooler, schema=schema, table_prefix="other_") as two,
    ):
        # More clients than connections behind the pooler, and two stores whose statements are others.
        await asyncio.gather(write(one, 20, 5), write(two, 20, 5))
        assert one._pools.prepared is False
        for store in (one, two):
            assert (await store.statistics()).messages == 100
            assert (await store.verify()).damaged == ()


async def test_what_was_asked_for_is_not_changed_and_told(pooler: str, schema: str):
    async with PostgresStore(pooler, schema=schema, prepared_statements=True) as store:
        with pytest.raises(StoreError, match="prepared_statements=false"):
            await write(store, 20, 5)


async def test_without_prepared_statements_from_the_start(
    pooler: str, schema: str, postgres_server: PostgresServer
):
    async with PostgresStore(pooler, schema=schema, prepared_statements=False) as store:
        await write(store, 20, 5)
        assert (await store.statistics()).messages == 100
    control = await asyncpg.connect(postgres_server.url)
    async with PostgresStore(postgres_server.url, schema=schema, prepared_statements=False) as store:
        await write(store, 3, 0)
        await store.load("0")
        for link in store._pools.here()._links:
            assert await link.raw.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
    await control.close()


async def test_a_name_stands_for_one_text_only(postgres_server: PostgresServer, schema: str):
    """Behind a pooler another client's statement of that name may be the one that is executed: it must be the same."""
    names: dict[str, str] = {}
    for place in (schema, f"{schema}_2"):
        async with PostgresStore(postgres_server.url, schema=place) as store:
            for statement in vars(store._sql).values():
                if name := getattr(statement, "name", None):
                    assert names.setdefault(name, statement.text) == statement.text
                    assert len(name) < 64
    assert len(names) > 40


async def test_a_lease_excludes_across_stores(pooler: str, schema: str):
    order: list[int] = []

    async def hold(number: int) -> None:
        async with PostgresStore(pooler, schema=schema) as store, store.lease("a"):
            order.append(number)
            await asyncio.sleep(0.01)
            order.append(number)

    await asyncio.gather(*(hold(number) for number in range(6)))
    assert order[::2] == order[1::2]
    assert sorted(order[::2]) == list(range(6))


@pytest.fixture(scope="module")
def secure(
    postgres_server: PostgresServer, pooler: str, require: Callable[[object, str, str], None]
) -> Iterator[str]:
    """A pooler that takes only connections with TLS."""
    import postgres

    require(shutil.which("openssl"), "openssl", "apt-get install openssl")
    with postgres.pgbouncer(postgres_server, secure=True) as url:
        yield url


async def test_a_secure_connection(secure: str, schema: str, tmp_path: Path):
    async with PostgresStore(f"{secure}?sslmode=require", schema=schema) as store:
        await write(store, 5, 5)
        assert (await store.statistics()).messages == 25
        await asyncio.sleep(0.15)  # after which an idle connection is looked at
        await store.load("0")
        assert len(store._pools.here()._links) <= 5
    other = tmp_path / "other"
    command = [
        "openssl",
        "req",
        "-new",
        "-x509",
        "-nodes",
        "-subj",
        "/CN=other",
        "-keyout",
        tmp_path / "key",
        "-out",
        other,
    ]
    subprocess.run(command, check=True, capture_output=True)
    for mode in ("verify-ca", "verify-full"):
        url = f"{secure}?sslmode={mode}&sslrootcert={other}"
        async with PostgresStore(url, schema=schema) as store:
            with pytest.raises(StoreUnavailableError, match="secure connection"):
                await store.load("a")
    async with PostgresStore(f"{secure}?sslmode=disable", schema=schema, connect_timeout=0.2) as store:
        with pytest.raises(StoreError):
            await store.load("a")


UNCLOSED = """
import asyncio, gc, sys
from littleghost import PostgresStore
store = PostgresStore(sys.argv[1], schema=sys.argv[2])
asyncio.run(store.load("a"))
loop = asyncio.new_event_loop()
loop.run_until_complete(store.load("a"))
loop.close()
asyncio.run(store.load("a"))
del store
gc.collect()
"""


def test_a_secure_store_that_is_never_closed_does_not_warn(secure: str, schema: str):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", UNCLOSED, f"{secure}?sslmode=require", schema],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
