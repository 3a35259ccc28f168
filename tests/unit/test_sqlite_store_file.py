"""What SQLiteStore takes a file for: its own, another's, a new one, or a damaged one."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from littleghost.errors import (
    CorruptSessionError,
    DataError,
    FormatError,
    LittleGhostError,
    StoreError,
    StoreUnavailableError,
)
from littleghost.message import Message
from littleghost.sessions.sqlite import SQLiteStore, statements
from littleghost.sessions.sqlite.database import is_busy, store_error


async def write(store, count, *texts, id="a", state=None):
    messages = [Message.user(text) for text in texts]
    return await store.append(id, messages=messages, state=state or {}, metadata={}, expected_count=count)


async def texts(path, id="a"):
    async with SQLiteStore(path, durability="off") as store:
        snapshot = await store.load(id)
        return None if snapshot is None else [message.text for message in snapshot.messages]


async def fill(path, turns=60, size=700):
    async with SQLiteStore(path, durability="off") as store:
        for number in range(turns):
            await write(
                store, number, f"{number:06d} " + "x" * size, state={"number": number, "text": "s" * 500}
            )


# Not ours


async def test_a_missing_folder_is_named_and_can_be_made(tmp_path: Path):
    async with SQLiteStore(tmp_path / "no" / "a.db") as store:
        with pytest.raises(StoreUnavailableError, match=r"/no does not exist"):
            await store.load("a")
        (tmp_path / "no").mkdir()
        assert await store.load("a") is None


async def test_what_is_no_file_is_an_error(tmp_path: Path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "file" / "a.db"):
        with pytest.raises(StoreUnavailableError):
            await texts(path)


async def test_a_database_of_another_program_is_refused_and_not_touched(tmp_path: Path):
    for name, statement in {
        "tables": "CREATE TABLE t (x)",
        "application": "PRAGMA application_id = 42",
        "version": "PRAGMA user_version = 3",
    }.items():
        path = tmp_path / name
        db = sqlite3.connect(path)
        db.execute(statement)
        db.commit()
        db.close()
        before = path.read_bytes()
        with pytest.raises(FormatError, match="another program") as caught:
            await texts(path)
        assert caught.value.supported == statements.VERSION
        assert path.read_bytes() == before
        assert not Path(f"{path}-lease").exists()


async def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path):
    path = tmp_path / "a.db"
    await fill(path, 1)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 7")
    db.close()
    with pytest.raises(FormatError, match="format 7") as caught:
        await texts(path)
    assert (caught.value.found, caught.value.supported) == (7, statements.VERSION)


async def test_text_is_no_database(tmp_path: Path):
    (tmp_path / "a.db").write_text("hello, this is not a database. " * 100)
    with pytest.raises(CorruptSessionError, match="not a SQLite database"):
        await texts(tmp_path / "a.db")


@pytest.mark.parametrize("table", ["sessions", "commits"])
async def test_missing_tables_are_no_empty_history(tmp_path: Path, table: str):
    path = tmp_path / "a.db"
    await fill(path, 1)
    db = sqlite3.connect(path)
    db.execute(f"DROP TABLE {table}")
    db.close()
    with pytest.raises(CorruptSessionError):
        await texts(path)


async def test_missing_columns_are_no_empty_history(tmp_path: Path):
    path = tmp_path / "a.db"
    await fill(path, 1)
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE sessions RENAME COLUMN root TO other")
    db.close()
    with pytest.raises(CorruptSessionError):
        await texts(path)


# Damaged


@pytest.mark.timeout(300)
async def test_a_truncated_file_is_never_an_empty_history(tmp_path: Path):
    path = tmp_path / "a.db"
    await fill(path)
    whole, expected = path.read_bytes(), await texts(path)
    assert len(whole) > 10 * 4096
    sizes = [
        *range(0, len(whole), 4096),
        *(random.Random(3).randrange(len(whole)) for _ in range(40)),
        1,
        99,
        100,
        4095,
    ]
    for size in sizes:
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptSessionError):
            await texts(path)
    path.write_bytes(whole)
    assert await texts(path) == expected


@pytest.mark.timeout(300)
async def test_changed_bytes_are_never_another_history(tmp_path: Path):
    path = tmp_path / "a.db"
    await fill(path, 40)
    whole, expected = path.read_bytes(), await texts(path)
    chance = random.Random(5)
    changed = 0
    # Within what is stored of the session: its texts, its state, and what stands between them.
    first, last = whole.index(b"sss"), len(whole)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[chance.randrange(first, last)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            found = await texts(path)
        except StoreError:
            changed += 1
        else:
            assert found == expected
    assert changed > 30


async def test_a_body_that_is_other_json_is_noticed(tmp_path: Path):
    path = tmp_path / "a.db"
    await fill(path, 3)
    for change in (
        "UPDATE commits SET body = replace(body, '000001', '000009') WHERE rowid & 0xffffffff = 2",
        "UPDATE sessions SET state = '{}'",
        "DELETE FROM commits WHERE rowid & 0xffffffff = 2",
        "UPDATE sessions SET number = number - 1",
        "UPDATE sessions SET count = count + 1",
    ):
        copy = tmp_path / "copy.db"
        copy.write_bytes(path.read_bytes())
        db = sqlite3.connect(copy)
        assert db.execute(change).rowcount > 0
        db.commit()
        db.close()
        with pytest.raises(CorruptSessionError):
            await texts(copy)


async def test_one_damaged_session_leaves_the_others(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        await write(store, 0, "x")
        await write(store, 0, "y", id="b")
        store._writer.connection.execute("UPDATE commits SET body = x'00' WHERE rowid = (1 << 32) + 1")
        for call in (store.load("a"), store.tail("a", limit=1), store.fork("a", "c")):
            with pytest.raises(CorruptSessionError, match="'a'"):
                await call
        assert (await store.load("b")).count == 1


# Empty, missing, deleted


async def test_an_empty_file_is_a_new_database_unless_it_held_sessions(tmp_path: Path):
    path = tmp_path / "a.db"
    path.touch()
    assert await texts(path) is None
    await fill(path, 2)
    os.truncate(path, 0)
    with pytest.raises(CorruptSessionError, match="held sessions before"):
        await texts(path)
    path.unlink()
    assert await texts(path) is None, "who removes the file begins anew"
    await fill(path, 2)
    assert len(await texts(path)) == 2
    os.truncate(path, 0)
    with pytest.raises(CorruptSessionError):
        await texts(path)


async def test_a_sign_that_outlived_its_file_is_forgotten_before_the_next_is_made(
    tmp_path: Path, monkeypatch
):
    """Else another process, in the moment in which that is still empty, would take it for one that was truncated."""
    path = tmp_path / "a.db"
    await fill(path, 1)
    path.unlink()
    connect, sizes = sqlite3.connect, []

    def look(*args, **options):
        sizes.append(os.path.getsize(f"{path}-lease"))
        return connect(*args, **options)

    monkeypatch.setattr(sqlite3, "connect", look)
    assert await texts(path) is None
    assert sizes == [0]
    assert os.path.getsize(f"{path}-lease") > 0


async def test_what_a_file_is_is_seen_in_one_transaction(tmp_path: Path, monkeypatch):
    """Between two looks another process may make the tables, and they would be taken for another program's."""
    connect, seen = sqlite3.connect, []

    class Traced(sqlite3.Connection):
        def execute(self, statement, *args):
            seen.append(" ".join(statement.split()[:2]))
            return super().execute(statement, *args)

    monkeypatch.setattr(
        sqlite3, "connect", lambda *args, **options: connect(*args, **options, factory=Traced)
    )
    await fill(tmp_path / "a.db", 1)
    assert seen[:5] == ["BEGIN", "PRAGMA application_id", "PRAGMA user_version", "SELECT EXISTS", "COMMIT"]


async def test_a_file_without_its_end_is_refused_though_nothing_of_it_is_missed(tmp_path: Path):
    path = tmp_path / "a.db"
    await fill(path)
    async with SQLiteStore(path) as store:
        await write(store, 0, "x", id="b")
        await store.delete("a")
    whole = path.read_bytes()
    for missing in (1, 100, 511, 513, 4095):
        path.write_bytes(whole[:-missing])
        with pytest.raises(CorruptSessionError):
            await texts(path, "b")
    path.write_bytes(whole)
    assert await texts(path, "b") == ["x"]


async def test_an_empty_file_keeps_its_log_for_whoever_repairs_it(tmp_path: Path):
    path, wal = tmp_path / "a.db", tmp_path / "a.db-wal"
    async with SQLiteStore(path) as store:
        await write(store, 0, "x")
        log, size = wal.read_bytes(), path.stat().st_size
    assert size
    os.truncate(path, 0)
    wal.write_bytes(log)
    with pytest.raises(CorruptSessionError):
        await texts(path)
    assert wal.read_bytes() == log


@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_deleted_under_us_takes_no_more_writes(tmp_path: Path, how: str):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "x")
        await store.load("a")
        for name in ("a.db", "a.db-wal", "a.db-shm"):
            (tmp_path / name).unlink()
        if how == "replaced":
            await fill(path, 1)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
                await write(store, 1, "y")
            with pytest.raises(StoreUnavailableError, match="deleted or replaced"):
                await store.load("a")


async def test_a_file_deleted_during_a_commit_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await write(store, 0, "x")

        def delete_and_write(db):
            path.unlink()
            return db.execute("UPDATE sessions SET updated_at = 1").rowcount

        with pytest.raises(StoreUnavailableError, match="deleted"):
            await store._change(delete_and_write)


async def test_a_link_to_the_file_has_its_leases(tmp_path: Path):
    from littleghost.errors import SessionBusyError

    (tmp_path / "link.db").symlink_to("a.db")
    async with SQLiteStore(tmp_path / "a.db") as one, SQLiteStore(tmp_path / "link.db") as two:
        await write(one, 0, "x")
        assert (await two.load("a")).count == 1
        async with one.lease("a"):
            with pytest.raises(SessionBusyError):
                async with two.lease("a", timeout=0):
                    pass


async def test_a_file_with_a_second_name_is_refused_for_each_name_would_have_a_log(tmp_path: Path):
    path, second = tmp_path / "a.db", tmp_path / "b.db"
    await fill(path, 1)
    os.link(path, second)
    for name in (path, second):
        with pytest.raises(StoreUnavailableError, match=r"2 names \(hard links\).*remove the others"):
            await texts(name)
    second.unlink()
    assert await texts(path)


async def test_who_has_it_open_goes_on_when_a_second_name_is_made_and_whoever_opens_that_is_refused(
    tmp_path: Path,
):
    async with SQLiteStore(tmp_path / "a.db") as store, SQLiteStore(tmp_path / "b.db") as second:
        await write(store, 0, "x")
        os.link(tmp_path / "a.db", tmp_path / "b.db")
        for call in (second.load("a"), write(second, 0, "y")):
            with pytest.raises(StoreUnavailableError, match="2 names"):
                await call
        await write(store, 1, "z")
    assert not (tmp_path / "b.db-wal").exists()


HOLDER = """
import asyncio, sys
from littleghost import Message, SQLiteStore

async def main(path):
    store = SQLiteStore(path)
    await store.append("a", messages=[Message.user("x")], state={}, metadata={}, expected_count=0)
    print("open", flush=True)
    sys.stdin.readline()

asyncio.run(main(sys.argv[1]))
"""


async def test_a_file_that_was_removed_while_another_process_has_it_open_is_no_fault_of_the_disk(
    tmp_path: Path,
):
    path = tmp_path / "a.db"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"open\n"
    path.unlink()
    with pytest.raises(StoreUnavailableError, match="deleted while another process has it open"):
        await texts(path)
    holder.kill()
    holder.communicate()


# What SQLite says, in our words

CODES = {
    name: value
    for name, value in vars(sqlite3).items()
    if name.startswith("SQLITE_") and isinstance(value, int)
}
ERRORS = [
    kind
    for kind in vars(sqlite3).values()
    if isinstance(kind, type) and issubclass(kind, (sqlite3.Error, sqlite3.Warning))
]


def coded(code: int, kind: type[Exception] = sqlite3.OperationalError) -> Exception:
    error = kind("what SQLite said")
    error.sqlite_errorcode = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_exception_of_sqlite3_is_mapped(kind: type[Exception]):
    plain = kind("what SQLite said")
    ours = store_error(plain, "a.db")
    assert isinstance(ours, StoreError)
    assert ours.__cause__ is plain
    assert "what SQLite said" in str(ours)
    for name, code in CODES.items():
        ours = store_error(coded(code, kind), "a.db")
        assert isinstance(ours, StoreError), name
        assert str(ours)


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        ("BUSY BUSY_RECOVERY BUSY_SNAPSHOT LOCKED PROTOCOL", StoreUnavailableError),
        ("READONLY READONLY_DBMOVED FULL CANTOPEN PERM NOMEM INTERRUPT", StoreUnavailableError),
        ("IOERR IOERR_FSYNC IOERR_WRITE", StoreUnavailableError),
        ("CORRUPT CORRUPT_INDEX NOTADB FORMAT SCHEMA ERROR MISMATCH", CorruptSessionError),
        ("CONSTRAINT CONSTRAINT_UNIQUE CONSTRAINT_PRIMARYKEY", CorruptSessionError),
        ("TOOBIG", DataError),
        ("MISUSE INTERNAL RANGE", StoreError),
    ],
)  # fmt: skip
def test_a_code_means(codes: str, kind: type[LittleGhostError]):
    for name in codes.split():
        error = coded(CODES[f"SQLITE_{name}"])
        assert type(store_error(error, "a.db")) is kind, name
        assert is_busy(error) == (name.split("_")[0] in {"BUSY", "LOCKED", "PROTOCOL"})


def test_other_failures_are_mapped_too():
    assert type(store_error(PermissionError(13, "Permission denied"), "a.db")) is StoreUnavailableError
    assert type(store_error(OverflowError("BLOB longer than INT_MAX bytes"), "a.db")) is DataError
    assert type(store_error(ZeroDivisionError("x"), "a.db")) is StoreError
    ours = DataError.at("state", "x")
    assert store_error(ours, "a.db") is ours


async def test_a_commit_that_is_too_long_for_sqlite_is_a_value_error(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        await write(store, 0, "x")
        if not hasattr(sqlite3.Connection, "setlimit"):
            pytest.skip("no limits can be set here")
        store._writer.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        with pytest.raises(DataError, match="too large"):
            await write(store, 1, "y" * 20_000)
        assert (await store.load("a")).count == 1


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting needs root")
@pytest.mark.parametrize("how", ["full", "read-only"])
async def test_a_medium_that_cannot_be_written(tmp_path: Path, how: str, require):
    import subprocess

    folder = tmp_path / "mount"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder]
    mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    require(mounted, "a small file system that fills up", "run the tests where root may mount a tmpfs")
    try:
        async with SQLiteStore(folder / "a.db") as store:
            await write(store, 0, "x")
        if how == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            async with SQLiteStore(folder / "a.db") as store:
                with pytest.raises(StoreUnavailableError):
                    await write(store, 1, "y")
        else:
            async with SQLiteStore(folder / "a.db") as store:
                count, error = 1, None
                while error is None:
                    try:
                        count = (await write(store, count, "y" * 5_000)).count
                    except StoreUnavailableError as unavailable:
                        error = unavailable
                assert "full" in str(error)
                assert (await store.load("a")).count == count > 5
            assert len(await texts(folder / "a.db")) == count
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
