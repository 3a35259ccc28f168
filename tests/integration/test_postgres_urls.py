"""PostgresStore: what is wrong with a URL is said by its name, at once, and without its value."""

from __future__ import annotations

import time
import traceback
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import asyncpg
import pytest

from littleghost.errors import ConfigurationError, LittleGhostError, StoreUnavailableError
from littleghost.sessions.postgres import PostgresStore

if TYPE_CHECKING:
    from postgres import PostgresServer


async def refusal(url: str) -> LittleGhostError:
    """What the first use of ``url`` raises. Whoever tries it again would do so until the test is over."""
    async with PostgresStore(url, connect_timeout=600, acquire_timeout=600) as store:
        with pytest.raises(LittleGhostError) as caught:
            await store.load("a")
    shown = "".join(traceback.format_exception(caught.value))
    assert "s3cret" not in shown
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in repr(error)
        error = error.__context__
    return caught.value


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("foo=s3cret", "foo"),
        ("channel_binding=s3cret", "channel_binding"),
        ("foo=s3cret&bar=s3cret&sslmode=disable&application_name=s3cret", "foo, bar"),
        ("max_wal_senders=1", "max_wal_senders"),
        ("statement_timeout=s3cret", "statement_timeout"),
        ("DateStyle=s3cret", "DateStyle"),
        ("role=s3cret", "role"),
        ("options=s3cret", "options"),
        ("options=-c%20s3cret%3D1", "options"),
        ("replication=s3cret", "replication"),
        ("foo=1&s3%20cret=1", "foo and others"),
    ],
)
async def test_a_parameter_that_the_server_does_not_take(
    postgres_server: PostgresServer, query: str, names: str
):
    error = await refusal(f"{postgres_server.url}&{query}")
    assert type(error) is ConfigurationError
    assert f" {names};" in str(error)


async def test_one_that_the_pooler_does_not_take(pooler: str):
    error = await refusal(f"{pooler}?foo=s3cret")
    assert type(error) is ConfigurationError
    assert " foo;" in str(error)


async def test_a_setting_that_the_server_takes(postgres_server: PostgresServer):
    schema = f"s{time.time_ns()}"
    async with PostgresStore(
        f"{postgres_server.url}&statement_timeout=1234&application_name=x", schema=schema
    ) as store:
        assert await store.load("a") is None
        link = next(iter(store._pools.here()._links))
        assert await link.raw.fetchval("SHOW statement_timeout") == "1234ms"
        assert await link.raw.fetchval("SHOW application_name") == "x"


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("sslmode=s3cret", "sslmode"),
        ("sslmode=disable&port=s3cret", "port"),
        ("port=5432,5433", "port"),
        ("target_session_attrs=s3cret", "target_session_attrs"),
        ("sslnegotiation=s3cret", "sslnegotiation"),
        ("gsslib=s3cret", "gsslib"),
        ("sslmode=require&ssl_min_protocol_version=s3cret", "ssl_min_protocol_version"),
        ("sslmode=require&ssl_max_protocol_version=SSLs3cret", "ssl_max_protocol_version"),
        ("sslmode=require&sslcert=/s3cret", "sslcert"),
        ("sslmode=verify-ca&sslrootcert=/s3cret", "sslrootcert"),
    ],
)
async def test_a_parameter_that_the_driver_does_not_take(
    postgres_server: PostgresServer, query: str, name: str
):
    error = await refusal(f"{postgres_server.url}&{query}")
    assert type(error) is ConfigurationError
    assert f" {name} " in str(error)


async def test_a_variable_that_the_driver_does_not_take(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PGSSLMODE", "s3cret")
    error = await refusal(postgres_server.url)
    assert type(error) is ConfigurationError
    assert "sslmode" in str(error)
    assert "PG…" in str(error)


async def test_a_folder_without_a_socket_is_a_server_that_does_not_run(postgres_server: PostgresServer):
    url = f"postgresql://postgres@/postgres?host={postgres_server.folder}/data&sslcert=/nowhere"
    async with PostgresStore(url, connect_timeout=0.2) as store:
        with pytest.raises(StoreUnavailableError):
            await store.load("a")


@pytest.fixture
async def role(postgres_server: PostgresServer) -> AsyncIterator[str]:
    connection = await asyncpg.connect(postgres_server.url)
    name = f"r{time.time_ns()}"
    await connection.execute(f"CREATE ROLE {name} LOGIN")
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.execute(f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
    yield name
    await connection.execute(f"DROP DATABASE {name}")
    await connection.execute(f"DROP ROLE {name}")
    await connection.close()


async def test_what_this_user_may_not(postgres_server: PostgresServer, role: str):
    error = await refusal(f"{postgres_server.url_of(role)}&log_statement=all")
    assert type(error) is ConfigurationError
    assert " log_statement;" in str(error)
    error = await refusal(f"postgresql://{role}@/{role}?host={postgres_server.folder}")
    assert type(error) is StoreUnavailableError
    assert error.code == "42501"
    assert "CONNECT" in str(error)
