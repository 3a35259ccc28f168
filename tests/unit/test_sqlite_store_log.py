"""The write-ahead log of SQLite, deleted or replaced while a store has it open: nothing that was acknowledged is lost in silence."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from littleghost import Message, SQLiteStore, StoreUnavailableError

posix = pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed here")

OTHER = """
import asyncio, sys
from littleghost import Message, SQLiteStore

async def main(path, *new):
    async with SQLiteStore(path) as store:
        found = await store.load("a")
        count = found.count if found else 0
        if new:
            content = {"messages": [Message.user(text) for text in new], "state": {}, "metadata": {}}
            await store.append("a", **content, expected_count=count)
        found = await store.load("a")
        print(*[message.text for message in found.messages] if found else [])
        verified = await store.verify()
        assert not verified.damaged, verified

asyncio.run(main(*sys.argv[1:]))
"""


async def another_process(path: Path, *new: str) -> list[str]:
    """Let another process append ``new``, and return what it sees then."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OTHER, str(path), *new, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().split()


async def write(store: SQLiteStore, count: int, text: str) -> None:
    await store.append("a", messages=[Message.user(text)], state={}, metadata={}, expected_count=count)


async def texts(store: SQLiteStore) -> list[str]:
    snapshot = await store.load("a")
    return [message.text for message in snapshot.messages] if snapshot else []


def remove(path: Path, *endings: str) -> None:
    for ending in endings:
        Path(f"{path}{ending}").unlink()


@posix
@pytest.mark.parametrize("endings", [["-wal"], ["-wal", "-shm"]])
@pytest.mark.parametrize("read_before", [True, False])
async def test_a_commit_into_a_log_that_was_removed_is_refused_and_nothing_acknowledged_is_lost(
    tmp_path: Path, endings: list[str], read_before: bool
):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "1")
        if read_before:
            await store.load("a")
        remove(path, *endings)
        with pytest.raises(StoreUnavailableError, match=r"its log .*-wal was deleted or replaced"):
            await write(store, 1, "2")
        await write(store, 1, "3")
        assert await texts(store) == await another_process(path) == ["1", "3"]


@posix
@pytest.mark.parametrize("read_before", [True, False])
async def test_a_removed_log_is_noticed_by_who_only_reads_before_it_opens_another_one(
    tmp_path: Path, read_before: bool
):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "1")
        if read_before:
            await store.load("a")
        remove(path, "-wal", "-shm")
        with pytest.raises(StoreUnavailableError, match="its log"):
            await store.load("a")
        assert await texts(store) == await another_process(path) == ["1"]


@posix
async def test_another_store_of_the_process_does_not_open_another_log_beside_the_one_in_use(tmp_path: Path):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store, SQLiteStore(path) as second:
        await write(store, 0, "1")
        remove(path, "-wal", "-shm")
        with pytest.raises(StoreUnavailableError, match="its log"):
            await write(second, 1, "2")
        await write(store, 1, "3")
        assert await texts(second) == await another_process(path) == ["1", "3"]


@posix
async def test_a_log_removed_during_a_commit_does_not_take_it_for_acknowledged(tmp_path: Path):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "1")

        def remove_and_write(db):
            remove(path, "-wal", "-shm")
            return db.execute("UPDATE names SET hash = hash").rowcount

        with pytest.raises(StoreUnavailableError, match="its log"):
            await store._change(remove_and_write)
        assert await texts(store) == ["1"]


@posix
async def test_what_others_have_committed_into_the_log_that_is_there_now_stays(tmp_path: Path):
    """Two logs cannot be made one. Who has the removed one is told; the others were told that theirs is kept."""
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "1")
        await store.load("a")
        remove(path, "-wal", "-shm")
        theirs = await another_process(path, "2", "3")
        with pytest.raises(StoreUnavailableError, match="may be missing"):
            await write(store, 1, "4")
        assert await texts(store) == theirs
    assert await another_process(path, "5") == [*theirs, "5"]


@posix
async def test_what_others_have_committed_is_kept_also_by_who_only_closes(tmp_path: Path):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "1")
        await store.load("a")
        remove(path, "-wal", "-shm")
        theirs = await another_process(path, "2")
    assert await another_process(path) == theirs


@posix
async def test_a_process_that_opens_the_file_itself_and_loses_its_locks_is_told(tmp_path: Path):
    """Whoever closes the file next takes itself for the last, for the locks of this process are gone."""
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "1")
        path.read_bytes()
        assert await another_process(path, "2") == ["1", "2"]
        assert await another_process(path, "3") == ["1", "2", "3"]
        with pytest.raises(StoreUnavailableError, match="let no other code of this program open it"):
            await write(store, 3, "4")
        await write(store, 3, "5")
        assert await texts(store) == await another_process(path) == ["1", "2", "3", "5"]


async def test_a_log_that_sqlite_empties_or_makes_anew_is_no_other_one(tmp_path: Path):
    import sqlite3

    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "1")
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        db.close()
        await write(store, 1, "2")
        if hasattr(os, "fork"):
            child = os.fork()  # every connection is closed, and with the last one the log is removed
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
            assert not Path(f"{path}-wal").exists()
        assert await texts(store) == ["1", "2"]
        await write(store, 2, "3")
        assert await another_process(path, "4") == ["1", "2", "3", "4"]
        await write(store, 4, "5")
