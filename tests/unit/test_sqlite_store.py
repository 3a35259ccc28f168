"""SQLiteStore: its threads, its transactions, and how it ends. The contract is tested by the kit."""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import msgspec
import pytest

from littleghost.errors import ConfigurationError, ConflictError, StoreError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.sqlite import SQLiteStore, rows, statements, worker
from littleghost.sessions.sqlite.worker import Job
from littleghost.sessions.sqlite.writing import delete


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("littleghost BEGIN")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    ends = time.monotonic() + 10
    while threads() and time.monotonic() < ends:
        time.sleep(0.01)
    assert threads() == []


async def write(store, count, *texts, id="a", **options):
    messages = [Message.user(text) for text in texts]
    return await store.append(id, messages=messages, state={}, metadata={}, expected_count=count, **options)


async def texts(store, id="a"):
    snapshot = await store.load(id)
    return None if snapshot is None else [message.text for message in snapshot.messages]


# Making one


@pytest.mark.parametrize("path", [":memory:", "", "a\0b"])
def test_what_is_no_file_is_refused(path: str):
    with pytest.raises(ConfigurationError, match="MemoryStore" if path == ":memory:" else "path"):
        SQLiteStore(path)


def test_an_unknown_durability_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match="full, normal, off"):
        SQLiteStore("a.db", durability="extra")  # type: ignore[arg-type]


async def test_nothing_is_opened_before_the_first_use(tmp_path: Path):
    store = SQLiteStore(tmp_path / "a.db")
    assert list(tmp_path.iterdir()) == []
    assert threads() == []
    await store.aclose()
    assert list(tmp_path.iterdir()) == []


async def test_a_relative_path_is_resolved_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    async with SQLiteStore("a.db") as store:
        monkeypatch.chdir("elsewhere")
        await write(store, 0, "x")
    assert (tmp_path / "a.db").exists()


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1), ("off", 0)])
async def test_durability_is_what_sqlite_is_told(tmp_path: Path, durability, synchronous: int):
    async with SQLiteStore(tmp_path / "a.db", durability=durability) as store:
        await write(store, 0, "x")
        connection = store._writer.connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# Transactions


def traced(store: SQLiteStore) -> list[str]:
    seen: list[str] = []
    store._writer.connection.set_trace_callback(lambda text: seen.append(text.split()[0]))
    return seen


async def test_an_append_is_a_handful_of_statements_whatever_the_length(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        commit = await write(store, 0, "x", commit_id="c0")
        for count in range(1, 200):
            commit = await write(store, count, "x", commit_id=f"c{count}", expected_revision=commit.revision)
        seen = traced(store)
        await write(store, 200, "x", commit_id="next", expected_revision=commit.revision)
        assert seen == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]


WALKS = {"FIGURES_OF_ALL", "NAME_OF_KEY", "COUNTS", "FILE_SIZE"}
"""What looks at every session: figures of everybody, and two questions of `verify`, one of them asked only where there is damage."""


def test_no_statement_walks_a_table_or_sorts_it_whole():
    db = sqlite3.connect(":memory:")
    for statement in statements.SCHEMAS[statements.VERSION]:
        db.execute(statement)
    checked = sorting = 0
    for name, statement in vars(statements).items():
        if (
            isinstance(statement, str)
            and statement.split()[:1] in (["SELECT"], ["UPDATE"], ["DELETE"])
            and "sqlite_master" not in statement
            and name not in WALKS
        ):
            numbers = [int(number) for number in re.findall(r"\?(\d+)", statement)]
            values = [1] * max(numbers, default=statement.count("?"))
            named = {"key": 1, "place": 1} if ":" in statement else values
            plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", named)]
            assert plan[0].startswith("SEARCH"), (name, plan)
            # Within one hour only: what comes before in the order is the order of the index.
            assert plan[1:] in ([], ["USE TEMP B-TREE FOR RIGHT PART OF ORDER BY"]), (name, plan)
            sorting += len(plan) - 1
            checked += 1
    db.close()
    assert checked >= 20
    assert sorting == 3


def test_an_append_and_a_replace_write_no_index():
    db = sqlite3.connect(":memory:")
    for statement in statements.SCHEMAS[statements.VERSION]:
        db.execute(statement)
    for statement in (statements.ADVANCE, statements.UPDATE_SESSION, statements.NEW_COMMIT):
        values = [1] * (16 if statement is statements.ADVANCE else statement.count("?"))
        program = db.execute(f"EXPLAIN {statement}", values).fetchall()
        assert [row[1] for row in program].count("OpenWrite") == 1, statement
    program = db.execute(f"EXPLAIN {statements.SET_HOUR}", [1, 1]).fetchall()
    assert [row[1] for row in program].count("OpenWrite") == 3
    db.close()


async def test_commits_that_wait_share_a_transaction(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        seen = traced(store)
        await asyncio.gather(*(write(store, 0, "y", id=f"s{number}") for number in range(200)))
        assert seen.count("INSERT") == 600
        assert seen.count("COMMIT") <= 20
        store._writer.connection.set_trace_callback(None)


async def test_of_commits_in_one_transaction_a_conflict_fails_alone(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        seen = traced(store)
        with held_up(store):
            tasks = [asyncio.create_task(write(store, count, str(count))) for count in (1, 1, 2, 5, 3)]
            await asyncio.sleep(0.05)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer).__name__ for answer in answers] == [
            "Commit",
            "ConflictError",
            "Commit",
            "ConflictError",
            "Commit",
        ]
        assert seen.count("COMMIT") == 2, "the one that held it up, and one for all five"
        assert await texts(store) == ["x", "1", "2", "3"]


class held_up:
    """Keep the writer busy inside the block, with a job that waits."""

    def __init__(self, store: SQLiteStore) -> None:
        self.go, self.running = threading.Event(), threading.Event()
        self.store = store

    def __enter__(self):
        def work(_):
            self.running.set()
            assert self.go.wait(20)

        self.job = Job(work)
        self.store._writer.submit(self.job)
        assert self.running.wait(20)
        return self

    def __exit__(self, *_):
        self.go.set()


async def test_of_jobs_in_one_transaction_an_unexpected_error_fails_alone(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        runs = []

        def good(db):
            runs.append(1)
            return db.execute("INSERT INTO names DEFAULT VALUES").rowcount

        def bad(db):
            db.execute("UPDATE sessions SET count = count + 7")
            db.execute("SELECT * FROM no_such_table")

        with held_up(store):
            jobs = [Job(work) for work in (good, bad, good)]
            for job in jobs:
                store._writer.submit(job)
        answers = await asyncio.gather(*(job.future for job in jobs), return_exceptions=True)
        assert answers[0] == answers[2] == 1
        assert isinstance(answers[1], StoreError)
        assert "no_such_table" in str(answers[1])
        assert len(runs) == 3, "the first ran twice, for what it did at first was rolled back"
        assert (await store.load("a")).count == 1


async def test_where_committing_fails_nobody_is_told_that_it_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Failing:
        def __init__(self, db):
            self.db = db

        in_transaction = property(lambda self: self.db.in_transaction)

        def execute(self, statement, *args):
            if statement == "COMMIT":
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
                raise error
            return self.db.execute(statement, *args)

    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        with held_up(store):
            tasks = [asyncio.create_task(write(store, count, "y")) for count in (1, 2, 7)]
            await asyncio.sleep(0.05)
            opened = store._writer._open
            monkeypatch.setattr(store._writer, "_open", lambda: Failing(opened()))
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailableError] * 3
        monkeypatch.undo()
        assert await texts(store) == ["x"]
        await write(store, 1, "z")


async def test_a_full_disk_is_an_error_that_passes(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        db = store._writer.connection
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(StoreUnavailableError, match="disk is full"):
            await write(store, 1, "y" * 100_000)
        assert await texts(store) == ["x"]
        await write(store, 1, "small")
        db.execute("PRAGMA max_page_count = 1000000")
        await write(store, 2, "y" * 100_000)


async def test_nobody_waits_for_ever_whatever_goes_wrong_in_the_thread(tmp_path: Path, monkeypatch):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")

        def broken(connection, jobs, *, alone):
            jobs.append(store._writer._jobs.get())
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setattr(store._writer, "_work", broken)
        tasks = [asyncio.create_task(write(store, 1, "y")) for _ in range(2)]
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert ["a fault of ours" in str(answer) for answer in answers] == [True, True]
        monkeypatch.undo()
        await write(store, 1, "z")
        assert await texts(store) == ["x", "z"]


# Cancelling


async def test_a_write_that_has_not_started_is_withdrawn(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        with held_up(store):
            task = asyncio.create_task(write(store, 1, "y"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await texts(store) == ["x"]


async def test_a_write_that_has_started_completes_and_the_next_read_waits_for_it(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        go, running = threading.Event(), threading.Event()

        def slow(db):
            running.set()
            assert go.wait(20)
            return delete(db, ("-", "a"))

        task = asyncio.create_task(store._change(slow))
        await asyncio.to_thread(running.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reading = asyncio.create_task(store.sessions())
        await asyncio.sleep(0.1)
        assert not reading.done()
        go.set()
        assert (await reading).items == ()
        assert await store.load("a") is None
        assert threads()[1:], "reads go to the reader again"


async def test_the_next_read_waits_for_every_write_that_was_cancelled_too_late(tmp_path: Path):
    """The two share a transaction that fails, so each runs again alone; and they were not cancelled in the order of their coming."""
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        running, fail, go = threading.Event(), threading.Event(), threading.Event()
        calls = []

        def first(db):
            calls.append("first")

        def second(db):
            calls.append("second")
            running.set()
            if calls.count("second") == 1:
                assert fail.wait(20)
                raise sqlite3.OperationalError("for this time")
            assert go.wait(20)
            return delete(db, ("-", "a"))

        with held_up(store):
            tasks = [asyncio.create_task(store._change(work)) for work in (first, second)]
            await asyncio.sleep(0.05)
        await asyncio.to_thread(running.wait, 20)
        for task in reversed(tasks):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        running.clear()
        fail.set()
        await asyncio.to_thread(running.wait, 20)
        assert calls == ["first", "second", "first", "second"]
        reading = asyncio.create_task(store.load("a"))
        await asyncio.sleep(0.2)
        assert not reading.done()
        go.set()
        assert await reading is None
        assert await store.load("a") is None
        assert not store._abandoned


async def test_what_was_withdrawn_is_not_done_even_if_it_was_the_first_to_wait(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        done = []
        with held_up(store):
            jobs = [Job(lambda _, number=number: done.append(number)) for number in range(3)]
            for job in jobs:
                store._writer.submit(job)
            assert [job.withdraw() for job in jobs[:2]] == [True, True]
            assert not jobs[0].withdraw()
        await jobs[2].future
        assert done == [2]
        assert not jobs[2].withdraw()


async def test_closing_does_not_wait_for_what_was_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "BUSY_SECONDS", 3600)  # it would wait so long
    store = SQLiteStore(tmp_path / "a.db")
    await write(store, 0, "x")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    task = asyncio.create_task(write(store, 1, "y"))
    await asyncio.sleep(0.1)
    task.cancel()
    await store.aclose()
    other.execute("ROLLBACK")
    other.close()


async def test_a_thread_keeps_nothing_of_a_job_that_is_done(tmp_path: Path):
    class Kept:
        pass

    async with SQLiteStore(tmp_path / "a.db") as store:
        for run in (store._change, store._read):
            kept = Kept()
            gone = weakref.ref(kept)
            await run(lambda _, kept=kept: None)
            del kept
            for _ in range(100):
                gc.collect()
                if gone() is None:
                    break
                await asyncio.sleep(0.01)
            assert gone() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda revision: revision.replace("-1-1", "-01-1"),
        lambda revision: revision.replace("-1-1", "-1-01"),
        lambda revision: revision.upper() if revision != revision.upper() else revision + "x",
        lambda revision: revision + " ",
        lambda revision: revision + "-1",
        lambda revision: "f" * 16 + "-ffffffff-9999999999",
        lambda revision: "",
    ],
)
async def test_a_revision_is_compared_to_the_character(tmp_path: Path, change):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        commit = await write(store, 0, "x")
        assert commit.revision.endswith("-1-1")
        other = change(commit.revision)
        with pytest.raises(ConflictError) as caught:
            await write(store, 1, "y", expected_revision=other)
        assert (caught.value.expected, caught.value.actual) == (other, commit.revision)
        await write(store, 1, "y", expected_revision=commit.revision)


async def test_a_revision_of_another_session_or_actor_opens_no_door(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        commit = await write(store, 0, "x", actor_id="one")
        for id, actor in (("a", "two"), ("a", None), ("b", "one")):
            with pytest.raises(ConflictError) as caught:
                await write(store, 1, "y", id=id, actor_id=actor, expected_revision=commit.revision)
            assert caught.value.actual is None
        for count in (0, 2, -1, 2**63, 2**70):
            with pytest.raises(ConflictError):
                await write(store, count, "y", actor_id="one", expected_revision=commit.revision)
        assert (await store.load("a", actor_id="one")).count == 1


# Waiting for other processes


async def test_no_call_blocks_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No statement is executed in the loop's thread, no database opened there, and no lock waited for."""
    monkeypatch.setattr(
        worker, "BUSY_SECONDS", 3600
    )  # who waited in the loop's thread would never come to its end
    used_in: list[int] = []
    connect = sqlite3.connect

    def opened(*arguments, **options):
        used_in.append(threading.get_ident())
        connection = connect(*arguments, **options)
        connection.set_trace_callback(lambda statement: used_in.append(threading.get_ident()))
        return connection

    other = sqlite3.connect(tmp_path / "b.db", isolation_level=None)
    monkeypatch.setattr(sqlite3, "connect", opened)
    store = SQLiteStore(tmp_path / "a.db")
    locked = SQLiteStore(tmp_path / "b.db")
    await write(locked, 0, "x")
    other.execute("BEGIN EXCLUSIVE")
    waiting = asyncio.create_task(write(locked, 1, "y"))
    reading = asyncio.create_task(texts(locked))
    for count in range(30):
        await write(store, count, "x")
        await texts(store)
    await asyncio.sleep(0.5)
    assert not waiting.done()
    other.execute("COMMIT")
    other.close()
    await waiting
    await reading
    await store.aclose()
    await locked.aclose()
    assert len(used_in) > 90
    assert threading.get_ident() not in used_in


async def test_who_waits_for_a_lock_can_give_up_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "BUSY_SECONDS", 3600)
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await write(store, 1, "y")
        assert await texts(store) == ["x"], "reading does not wait"
        other.execute("ROLLBACK")
        other.close()
        await write(store, 1, "z")
        assert await texts(store) == ["x", "z"]


async def test_a_lock_that_is_never_released_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "BUSY_SECONDS", 0.5)
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        tasks = [asyncio.create_task(write(store, 1, "y")) for _ in range(5)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailableError] * 5
        assert "locked" in str(answers[0])
        other.execute("ROLLBACK")
        other.close()
        await write(store, 1, "z")


async def test_many_who_wait_for_a_lock_that_is_never_released_wait_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker, "BUSY_SECONDS", 0.5)
    tries = 0
    async with SQLiteStore(tmp_path / "a.db") as store:
        await write(store, 0, "x")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        begin = worker.Worker._open

        def counted(self):
            nonlocal tries
            tries += self.writes
            return begin(self)

        monkeypatch.setattr(worker.Worker, "_open", counted)
        tasks = [asyncio.create_task(write(store, 1, "y")) for _ in range(300)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(answer) for answer in answers} == {StoreUnavailableError}
        assert tries < 300
        late = asyncio.create_task(write(store, 1, "z"))
        await asyncio.sleep(0.05)
        other.execute("ROLLBACK")
        other.close()
        await late
        assert (await store.load("a")).count == 2


# Threads, loops, and the end


def test_many_threads_and_loops_share_one_store(tmp_path: Path):
    store = SQLiteStore(tmp_path / "a.db")

    async def turns(name: str) -> None:
        for number in range(15):
            while True:
                snapshot = await store.load("a")
                try:
                    await write(store, snapshot.count if snapshot else 0, f"{name}{number}")
                    break
                except ConflictError:
                    await asyncio.sleep(0)

    workers = [threading.Thread(target=asyncio.run, args=(turns(name),)) for name in "abcd"]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()

    async def check():
        found = await texts(store)
        assert len(set(found)) == len(found) == 60
        await store.aclose()

    asyncio.run(check())


def test_a_loop_that_is_gone_harms_nobody(tmp_path: Path):
    store = SQLiteStore(tmp_path / "a.db")
    go = threading.Event()

    async def leave():
        await write(store, 0, "x")
        held = held_up(store)
        held.go = go
        held.__enter__()
        asyncio.get_running_loop().create_task(write(store, 1, "y"))
        await asyncio.sleep(0.02)

    asyncio.run(leave())  # cancels the task, and closes the loop while a job of it is running
    go.set()

    async def check():
        assert await texts(store) == ["x"]
        await write(store, 1, "z")
        await store.aclose()

    asyncio.run(check())


async def test_closing_waits_for_what_was_asked_and_is_done_once(tmp_path: Path):
    store = SQLiteStore(tmp_path / "a.db")
    tasks = [asyncio.create_task(write(store, 0, "x", id=f"s{number}")) for number in range(50)]
    await asyncio.sleep(0)
    await asyncio.gather(
        store.aclose(), store.aclose(), asyncio.to_thread(lambda: asyncio.run(store.aclose()))
    )
    assert all(task.done() and task.result() for task in tasks)
    await store.aclose()
    assert not (tmp_path / "a.db-wal").exists(), "the last one to close takes the log in"
    for call in (store.load("a"), write(store, 0, "x"), store.sessions(), store.delete("a")):
        with pytest.raises(StoreError, match="closed"):
            await call
    async with SQLiteStore(tmp_path / "a.db") as again:
        assert len((await again.sessions()).items) == 50


async def test_a_store_that_nobody_has_any_more_ends_its_threads(tmp_path: Path):
    store = SQLiteStore(tmp_path / "a.db")
    await write(store, 0, "x")
    await texts(store)
    assert len(threads()) == 2
    gone = weakref.ref(store)
    del store
    gc.collect()
    assert gone() is None
    for _ in range(500):
        if not threads():
            break
        await asyncio.sleep(0.01)
    assert threads() == []
    assert not (tmp_path / "a.db-wal").exists()


PROGRAM = """
import asyncio, sys
from littleghost.message import Message
from littleghost.sessions.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])

async def main():
    await store.append("a", messages=[Message.user("x")], state={}, metadata={}, expected_count=0)
    assert (await store.load("a")).count == 1
    if "hanging" in sys.argv:
        import threading
        asyncio.get_running_loop().create_task(store._change(lambda db: threading.Event().wait()))
        await asyncio.sleep(0.1)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["idle", "hanging"])
def test_a_process_ends_without_closing(tmp_path: Path, how: str):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, tmp_path / "a.db", how],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "a.db-wal").exists() == (how == "hanging")


def test_importing_the_library_loads_no_database():
    code = "import sys, littleghost, littleghost.sessions.contract; sys.exit('sqlite3' in sys.modules or 'asyncio' in sys.modules and 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_long_session_is_decoded_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from littleghost.sessions.sqlite import reading as module

    where = []
    decode = module.unpack_bodies
    monkeypatch.setattr(
        module, "unpack_bodies", lambda *args: (where.append(threading.current_thread()), decode(*args))[1]
    )
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        await write(store, 0, "x", id="short")
        await write(store, 0, "x" * 2_000_000, id="long")
        assert await texts(store, "long") == ["x" * 2_000_000]
        assert await texts(store, "short") == ["x"]
        assert [thread is threading.main_thread() for thread in where] == [False, True]


async def test_a_replace_keeps_ids_and_drops_bodies(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        for count in range(10):
            await write(store, count, "x" * 1000, commit_id=f"c{count}" if count % 2 else None)
        await store.replace("a", messages=[Message.user("new")], state={}, metadata={}, commit_id="r")
        rows = store._writer.connection.execute("SELECT commit_id, length(body) > 0 FROM commits").fetchall()
        assert rows == [*((f"c{count}", 0) for count in range(1, 10, 2)), ("r", 1)]
        await store.delete("a")
        assert store._writer.connection.execute("SELECT count(*) FROM commits").fetchone() == (0,)


async def test_a_session_has_a_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its number must not run over into the rows of the next session."""
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        await write(store, 0, "x")
        db, last = store._writer.connection, rows.LAST_NUMBER
        head, (_, state, metadata) = rows.read_head(db, ("-", "a"), statements.SNAPSHOT)
        head, place = msgspec.structs.replace(head, number=last, root=last), rows.rowid(head.key, last)
        [body] = db.execute("SELECT body FROM commits").fetchone()
        db.execute(
            "UPDATE sessions SET number = ?, root = ?, fixed_sum = ?, small_sum = ?, body_sum = ?",
            (
                last,
                last,
                head.fixed_sum(("-", "a")),
                head.small_sum(),
                rows.body_sum(place, head.epoch, state, metadata),
            ),
        )
        db.execute(
            "UPDATE commits SET rowid = ?, body_sum = ?", (place, rows.body_sum(place, head.epoch, body))
        )
        assert await texts(store) == ["x"]
        with pytest.raises(StoreError, match="4294967295 commits"):
            await write(store, 1, "y")
        await store.fork("a", "b")
        assert await texts(store, "b") == ["x"]
