"""SQLiteStore under real processes: started together, forked, and killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from littleghost.message import Message
from littleghost.sessions.sqlite import SQLiteStore, rows, statements

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

PRELUDE = """
import asyncio, json, os, sys, time
from littleghost.message import Message
from littleghost.sessions.session import Session
from littleghost.sessions.sqlite import SQLiteStore

def say(*what):
    os.write(1, (json.dumps(what) + chr(10)).encode())

async def write(store, count, text, id="a"):
    return await store.append(id, messages=[Message.user(text)], state={}, metadata={}, expected_count=count)

async def texts(store, id="a"):
    snapshot = await store.load(id)
    return [message.text for message in snapshot.messages] if snapshot else None

path = sys.argv[1]
"""


def start(code: str, *args: object, **options) -> subprocess.Popen[str]:
    # Not -X dev: it prints which steps of a loop were slow. Python 3.12 warns of a fork where there are threads,
    # which is what is tried here.
    quiet = ["-W", "ignore:This process:DeprecationWarning"]
    command = [sys.executable, "-W", "error", *quiet, "-c", PRELUDE + code, *map(str, args)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def finish(process: subprocess.Popen[str], seconds: float = 90) -> list[list[object]]:
    out, err = process.communicate(timeout=seconds)
    assert (process.returncode, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


async def texts(path: Path, id: str = "a") -> list[str]:
    async with SQLiteStore(path) as store:
        snapshot = await store.load(id)
        return [message.text for message in snapshot.messages]


@pytest.mark.timeout(300)
async def test_sixteen_processes_make_one_file_at_once(tmp_path: Path):
    code = """
async def main():
    me = sys.argv[2]
    async with SQLiteStore(path) as store:
        say("ready")
        sys.stdin.readline()
        mine, all = Session(id=me, store=store), Session(id="all", store=store)
        await asyncio.gather(mine.append(Message.user(me)), store.load("x"))
        await all.update(lambda snapshot: ([Message.user(me)], {}), attempts=1000)
        assert await texts(store, me) == [me]
asyncio.run(main())
"""
    for number in range(3):
        path = tmp_path / f"{number}.db"
        processes = [start(code, path, name) for name in range(16)]
        for process in processes:
            assert process.stdout.readline() == '["ready"]\n'
        assert not path.exists()
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            finish(process)
        assert sorted(await texts(path, "all"), key=int) == [str(name) for name in range(16)]
        async with SQLiteStore(path) as store:
            assert len((await store.sessions()).items) == 17


@posix
async def test_a_forked_child_works_on_after_its_parent_has_closed(tmp_path: Path):
    """The parent is the last one that the system knows of unless the child has locks of its own, and removes the log."""
    code = """
store = SQLiteStore(path)

async def begin():
    await write(store, 0, "parent 1")
    assert await texts(store) == ["parent 1"]
asyncio.run(begin())

first, second = os.pipe(), os.pipe()
pid = os.fork()
if pid == 0:
    async def child():
        await write(store, 1, "child 1")
        os.write(first[1], b"x")
        os.read(second[0], 1)
        await write(store, 3, "child 2")
        assert await texts(store) == ["parent 1", "child 1", "parent 2", "child 2"]
    asyncio.run(child())
    sys.exit(0)

async def end():
    os.read(first[0], 1)
    await write(store, 2, "parent 2")
    await store.aclose()
    os.write(second[1], b"x")
asyncio.run(end())
assert os.waitpid(pid, 0)[1] == 0
say("done")
"""
    path = tmp_path / "a.db"
    assert finish(start(code, path)) == [["done"]]
    assert await texts(path) == ["parent 1", "child 1", "parent 2", "child 2"]


@posix
async def test_forking_in_the_middle_of_writing_loses_nothing_on_either_side(tmp_path: Path):
    code = """
import threading
store = SQLiteStore(path)
stop = threading.Event()
written = []

async def keep_writing():
    count = 0
    while not stop.is_set():
        await write(store, count, f"parent {count}")
        count += 1
        written.append(count)
    await texts(store)

thread = threading.Thread(target=asyncio.run, args=(keep_writing(),))
thread.start()
while len(written) < 5:
    time.sleep(0.01)
children = []
for number in range(10):
    pid = os.fork()
    if pid == 0:
        async def child():
            for count in range(5):
                await write(store, count, f"child {count}", id=f"c{number}")
            assert len(await texts(store, f"c{number}")) == 5
            if number % 2:
                await store.aclose()
        asyncio.run(child())
        os._exit(0)
    children.append(pid)
    time.sleep(0.02)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
thread.join()
say(len(written))
"""
    path = tmp_path / "a.db"
    ((count,),) = finish(start(code, path))
    assert await texts(path) == [f"parent {number}" for number in range(count)]
    for number in range(10):
        assert await texts(path, f"c{number}") == [f"child {count}" for count in range(5)]


@posix
def test_a_child_of_a_parent_that_was_busy_all_the_time_refuses(tmp_path: Path):
    """What it inherits of a connection in use makes every connection of its own unsafe."""
    code = """
import threading
from littleghost.errors import StoreError
from littleghost.sessions.sqlite import worker
worker.FORK_SECONDS = 0.2
store = SQLiteStore(path)
go, running = threading.Event(), threading.Event()

def work(db):
    running.set()
    go.wait()

async def main():
    await write(store, 0, "x")
    await store._change(work)
    await write(store, 1, "z")
    assert await texts(store) == ["x", "z"]

thread = threading.Thread(target=asyncio.run, args=(main(),))
thread.start()
running.wait()
pid = os.fork()
if pid == 0:
    try:
        asyncio.run(write(store, 1, "y"))
    except StoreError as error:
        os._exit(7)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
go.set()
thread.join()
assert code == 7
say("done")
"""
    assert finish(start(code, tmp_path / "a.db")) == [["done"]]


@posix
async def test_multiprocessing_children_share_an_inherited_store(tmp_path: Path):
    code = """
import multiprocessing
store = SQLiteStore(path)

def work(name):
    async def turns():
        session = Session(id="a", store=store)
        for number in range(10):
            await session.update(lambda snapshot: ([Message.user(f"{name}{number}")], {}), attempts=1000)
    asyncio.run(turns())

asyncio.run(store.load("a"))
context = multiprocessing.get_context("fork")
children = [context.Process(target=work, args=(name,)) for name in "abcd"]
for child in children:
    child.start()
work("e")
for child in children:
    child.join()
    assert child.exitcode == 0
say("done")
"""
    assert finish(start(code, tmp_path / "a.db")) == [["done"]]
    found = await texts(tmp_path / "a.db")
    assert sorted(found) == sorted(f"{name}{number}" for name in "abcde" for number in range(10))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("durability", ["full", "normal", "off"])
async def test_processes_killed_at_random_moments_lose_nothing(tmp_path: Path, durability: str):
    """Writers of many sessions at once, so that transactions are shared; a book on the disk says what was acknowledged."""
    code = """
book = os.open(sys.argv[3], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

async def turns(store, me, name):
    session = Session(id=name, store=store)
    number = (await session.state()).get("n", 0)
    while True:
        number += 1
        messages = [Message.user(f"{number}"), Message.user("x" * (number * 997 % 12000)), Message.user(f"{number}")]
        if number % 7:
            await session.append(messages, state={"n": number})
        else:
            await session.replace([*await session.history(), *messages], state={"n": number})
        os.write(book, f"{name} {number}{chr(10)}".encode())

async def main():
    async with SQLiteStore(path, durability=sys.argv[4]) as store, asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(turns(store, sys.argv[2], f"{sys.argv[2]}-{number}"))
        say("ready")
asyncio.run(main())
"""
    path, book = tmp_path / "a.db", tmp_path / "book"
    chance = random.Random()
    for _ in range(6):
        processes = [start(code, path, name, book, durability) for name in "ab"]
        for process in processes:
            process.stdout.readline()
        time.sleep(chance.uniform(0.05, 0.5))
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.communicate()
        told: dict[str, int] = {}
        for line in book.read_text().splitlines():
            name, number = line.split()
            told[name] = max(told.get(name, 0), int(number))
        async with SQLiteStore(path) as store:
            for info in (await store.sessions()).items:
                snapshot = await store.load(info.id)
                last = snapshot.state["n"]
                assert told.get(info.id, 0) <= last <= told.get(info.id, 0) + 6
                found = [message.text for message in snapshot.messages]
                assert found[::3] == found[2::3] == [str(number + 1) for number in range(last)]
    assert sum(told.values()) > 50


@pytest.mark.timeout(300)
async def test_a_log_cut_anywhere_leaves_whole_commits(tmp_path: Path):
    """What a loss of power may leave of the newest part of the log: any beginning of it."""
    path, copy = tmp_path / "a.db", tmp_path / "copy.db"
    async with SQLiteStore(path) as store:
        for number in range(25):
            messages = [Message.user(f"{number}"), Message.user("x" * 3000)]
            state = {"n": number + 1}
            await store.append("a", messages=messages, state=state, metadata={}, expected_count=2 * number)
        base, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    seen = set()
    chance = random.Random(1)
    for _ in range(60):
        size = chance.randrange(len(log))
        copy.write_bytes(base)
        Path(f"{copy}-wal").write_bytes(log[:size] + chance.randbytes(chance.randrange(2) * 5000))
        async with SQLiteStore(copy) as store:
            snapshot = await store.load("a")
        for name in ("", "-wal", "-lease"):
            Path(f"{copy}{name}").unlink(missing_ok=True)
        count = snapshot.state["n"] if snapshot else 0
        found = snapshot.messages if snapshot else ()
        assert [message.text for message in found[::2]] == [str(number) for number in range(count)]
        seen.add(count)
    assert len(seen) > 8


async def test_two_processes_see_each_others_commits_at_once(tmp_path: Path):
    code = """
async def main():
    async with SQLiteStore(path) as store:
        for line in sys.stdin:
            say(await texts(store))
            await write(store, int(line), "other")
            say("written")
asyncio.run(main())
"""
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        other = start(code, path)
        try:
            for count in range(0, 20, 2):
                await store.append(
                    "a", messages=[Message.user("mine")], state={}, metadata={}, expected_count=count
                )
                other.stdin.write(f"{count + 1}\n")
                other.stdin.flush()
                assert json.loads(await asyncio.to_thread(other.stdout.readline)) == [
                    ["mine", "other"] * (count // 2) + ["mine"]
                ]
                assert await asyncio.to_thread(other.stdout.readline) == '["written"]\n'
                assert (await store.load("a")).count == count + 2
        finally:
            finish(other)


# A file of an older format

OLDER = Path(__file__).parents[1] / "golden" / "sqlite_v1.db"


def large(path: Path, turns: int) -> dict[str, int]:
    """Make a file of format 1 with many sessions, by copying the rows of the golden one; return how many messages are in each."""
    shutil.copyfile(OLDER, path)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    db.execute("BEGIN")
    columns = (
        "epoch, number, root, count, created_at, updated_at, fixed_sum, head_sum, body_sum, state, metadata"
    )
    row = dict(
        zip(
            columns.split(", "),
            db.execute(f"SELECT {columns} FROM sessions WHERE id = 'many'").fetchone(),
            strict=True,
        )
    )
    (body,) = db.execute(
        "SELECT body FROM commits WHERE rowid >> 32 = (SELECT key FROM sessions WHERE id = 'many') LIMIT 1"
    ).fetchone()
    expected = {}
    for key in range(100, 100 + turns):
        name, number = ("-", f"copy-{key}"), 1 + key % 9
        head = rows.Head(key, row["epoch"], number, 1, number, row["created_at"], row["updated_at"], 0)
        place = rows.rowid(key, number)
        values = (key, *name, row["epoch"], number, 1, number, row["created_at"], row["updated_at"])
        sums = (
            head.fixed_sum(name),
            head.small_sum(),
            rows.body_sum(place, head.epoch, row["state"], row["metadata"]),
        )
        db.execute(
            f"INSERT INTO sessions VALUES ({', '.join('?' * 14)})",
            (*values, *sums, row["state"], row["metadata"]),
        )
        db.execute("INSERT INTO names VALUES (?)", (rows.name_hash(name),))
        for each in range(1, number + 1):
            place, small = rows.rowid(key, each), (each, None, None)
            sums = rows.commit_sum(place, head.epoch, *small), rows.body_sum(place, head.epoch, body)
            db.execute("INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?, ?)", (place, *small, *sums, body))
        expected[name[1]] = number
    db.execute("COMMIT")
    db.close()
    return expected


async def whole(path: Path, expected: dict[str, int]) -> None:
    async with SQLiteStore(path) as store:
        cursor, checked = None, 0
        while True:
            step = await store.verify(limit=500, cursor=cursor)
            assert step.damaged == ()
            checked += step.checked
            cursor = step.cursor
            if cursor is None:
                break
        assert checked >= len(expected) + 10
        for id in list(expected)[::50]:
            assert (await store.load(id)).count == expected[id]


@pytest.mark.timeout(300)
async def test_many_processes_bring_one_file_up_at_once(tmp_path: Path):
    code = """
async def main():
    async with SQLiteStore(path) as store:
        say("ready")
        sys.stdin.readline()
        me = int(sys.argv[2])
        if me % 2:
            assert len(await texts(store, "copy-104")) == 6
        else:
            await write(store, 0, sys.argv[2], f"new-{me}")
        assert len(await texts(store, "copy-104")) == 6
asyncio.run(main())
"""
    path = tmp_path / "a.db"
    expected = large(path, 2_000)
    processes = [start(code, path, number) for number in range(12)]
    for process in processes:
        assert process.stdout.readline() == '["ready"]\n'
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        finish(process)
    await whole(path, expected)
    async with SQLiteStore(path) as store:
        for number in range(0, 12, 2):
            assert (await store.load(f"new-{number}")).count == 1


@pytest.mark.timeout(300)
async def test_a_process_killed_while_it_brings_a_file_up_leaves_it_as_it_was_or_done(tmp_path: Path):
    code = """
import sqlite3

class Telling(sqlite3.Connection):
    def execute(self, statement, *values):
        if "sessions_1" in statement or "INDEX" in statement or "user_version =" in statement or statement == "COMMIT":
            say(statement.split()[0])
        return super().execute(statement, *values)

connect = sqlite3.connect
sqlite3.connect = lambda *args, **options: connect(*args, **options, factory=Telling)
asyncio.run(write(SQLiteStore(path), 0, "new", "new"))
"""
    path, chance = tmp_path / "a.db", random.Random()
    expected = large(path, 4_000)
    older = path.read_bytes()
    versions = set()
    for turn in range(18):
        for name in ("-wal", "-shm", "-lease"):
            Path(f"{path}{name}").unlink(missing_ok=True)
        path.write_bytes(older)
        process = start(code, path)
        for _ in range(1 + turn % 9):
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.02) if turn > 8 else 0)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        db = sqlite3.connect(path)
        (version,) = db.execute("PRAGMA user_version").fetchone()
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        db.close()
        assert tables == {"commits", "names", "sessions"}
        versions.add(version)
        await whole(path, expected)
    assert versions == {1, statements.VERSION}
