"""The format of the file, for ever: what each version wrote is read by this one, and brought up to its own format."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from littleghost.errors import CorruptSessionError, FormatError, StoreError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.contract import ALL_ACTORS
from littleghost.sessions.sqlite import SQLiteStore, statements, worker

GOLDEN = Path(__file__).parents[1] / "golden"
OLDER = sorted(set(statements.SCHEMAS) - {statements.VERSION})


async def fill(path: Path) -> None:
    """Make the golden file of the present format; for whoever adds one."""
    chance, clock = random.Random(1), iter(range(1_700_000_000, 1_800_000_000, 1800))

    async def add(id, count, *texts, actor=None, state=None, metadata=None, commit_id=None):
        messages = [Message.user(text) for text in texts]
        content = {"messages": messages, "state": state or {}, "metadata": metadata or {}}
        await store.append(id, **content, expected_count=count, actor_id=actor, commit_id=commit_id)

    with (
        mock.patch("secrets.randbits", side_effect=chance.getrandbits),
        mock.patch("time.time", side_effect=lambda: next(clock) + 0.25),
    ):
        async with SQLiteStore(path) as store:
            await add("plain", 0, "one", "two", actor="user-7", state={"step": 1})
            await add("plain", 2, "three", actor="user-7", state={"step": 2}, metadata={"title": "t"})
            await add("nobody's", 0, "hello", commit_id="first")
            await add("nobody's", 1, state={"only": "state"}, commit_id="second")
            await add("replaced", 0, "old 1", "old 2", actor="user-7", commit_id="r1")
            await add("replaced", 2, "old 3", actor="user-7")
            new = [Message.user("new"), Message.assistant("!", {"n": 12345678901234567890123})]
            await store.replace("replaced", messages=new, state={}, metadata={}, actor_id="user-7", commit_id="r2")  # fmt: skip
            await add("replaced", 2, "newer", actor="user-7", commit_id="r3")
            await add("empty", 0, actor="user-7")
            await store.replace("emptied", messages=[Message.user("x")], state={"a": [1, 2.5, None]}, metadata={})  # fmt: skip
            await store.replace("emptied", messages=[], state={}, metadata={})
            await add("a\0b", 0, "nul \0 in a text", actor="a\0")
            await add("", 0, "no id", actor="")
            await add("\U0001f47b" * 40, 0, "\U0001f984 astral", actor="\U0001d54f")
            await add("long", 0, "x" * 9000, actor="user-7", state={"text": "s" * 5000})
            await add("gone", 0, "x", actor="user-7")
            await store.delete("gone", actor_id="user-7")
            for number in range(30):
                await add("many", number, f"turn {number}", actor="user-8", commit_id=f"c{number}")
            if statements.VERSION > 1:
                parts = [Message.user(str(number)) for number in range(600)]
                await store.append("parts", messages=parts, state={}, metadata={}, expected_count=0, commit_id="p")  # fmt: skip
                await store.restore("restored", messages=[], state={}, metadata={}, created_at=-7000, updated_at=5)  # fmt: skip
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


EXPECTED = {
    ("user-7", "plain"): (["one", "two", "three"], {"step": 2}, {"title": "t"}),
    (None, "nobody's"): (["hello"], {"only": "state"}, {}),
    ("user-7", "replaced"): (["new", "!", "newer"], {}, {}),
    ("user-7", "empty"): ([], {}, {}),
    (None, "emptied"): ([], {}, {}),
    ("a\0", "a\0b"): (["nul \0 in a text"], {}, {}),
    ("", ""): (["no id"], {}, {}),
    ("\U0001d54f", "\U0001f47b" * 40): (["\U0001f984 astral"], {}, {}),
    ("user-7", "long"): (["x" * 9000], {"text": "s" * 5000}, {}),
    ("user-8", "many"): ([f"turn {number}" for number in range(30)], {}, {}),
}
LATER = {
    (None, "parts"): ([str(number) for number in range(600)], {}, {}),
    (None, "restored"): ([], {}, {}),
}


def copied(tmp_path: Path, version: int) -> Path:
    path = tmp_path / "a.db"
    shutil.copyfile(GOLDEN / f"sqlite_v{version}.db", path)
    return path


async def contents(store: SQLiteStore) -> dict[tuple[str | None, str], tuple[list[str], dict, dict]]:
    found = {}
    for info in (await store.sessions(actor_id=ALL_ACTORS)).items:
        snapshot = await store.load(info.id, actor_id=info.actor_id)
        assert (info.count, info.revision) == (snapshot.count, snapshot.revision)
        found[info.actor_id, info.id] = [m.text for m in snapshot.messages], snapshot.state, snapshot.metadata
    return found


def schema(path: Path) -> list[tuple[object, ...]]:
    db = sqlite3.connect(path)
    found = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
    found.append(db.execute("PRAGMA user_version").fetchone())
    db.close()
    return found


@pytest.mark.parametrize("version", statements.SCHEMAS)
async def test_a_file_of_every_format_is_read_and_written(tmp_path: Path, version: int):
    path = copied(tmp_path, version)
    async with SQLiteStore(path) as store:
        assert await contents(store) == EXPECTED | (LATER if version > 1 else {})
        assert (await store.verify()).damaged == ()
        recent = (await store.sessions(actor_id=ALL_ACTORS, order="updated")).items
        times = [info.updated_at for info in recent]
        assert times == sorted(times, reverse=True)
        if version > 1:
            assert (recent[-1].id, recent[-1].created_at, times[-1]) == ("restored", -7000, 5)
        info = next(info for info in recent if info.id == "plain")
        assert (info.created_at, info.updated_at) == (1_700_000_000.25, 1_700_001_800.25)
        assert info.revision == "48dbac252265b1f5-1-2"
        whole = await store.load("plain", actor_id="user-7")
        assert info.size == sum(len(part) for part in self_made(whole.messages)) + len(
            b'{"step":2}{"title":"t"}'
        )
        assert (await store.statistics()).sessions == len(recent)
        again = {"messages": [Message.user("old 1"), Message.user("old 2")], "state": {}, "metadata": {}}
        first = await store.append("replaced", **again, expected_count=0, actor_id="user-7", commit_id="r1")
        assert (first.count, first.revision.rsplit("-")[-1]) == (2, "1"), "a commit id outlives a replace"
        more = {"messages": [Message.user("more")], "state": {}, "metadata": {}}
        await store.append("plain", **more, expected_count=3, actor_id="user-7", expected_revision=info.revision)  # fmt: skip
        await store.append("new", **more, expected_count=0)
        assert (await store.verify()).damaged == ()
    assert schema(path)[-1] == (statements.VERSION,)
    async with SQLiteStore(tmp_path / "new.db") as new:
        await new.load("a")
    assert schema(path) == schema(tmp_path / "new.db")
    async with SQLiteStore(path) as store:
        assert (await store.load("plain", actor_id="user-7")).count == 4


def self_made(messages):
    """The bodies of the commits of the session ``plain``."""
    from littleghost.message import pack_messages

    return pack_messages(messages[:2])[0], pack_messages(messages[2:])[0]


def test_there_is_a_golden_file_and_a_step_for_each_format(tmp_path: Path):
    assert max(statements.SCHEMAS) == statements.VERSION
    assert set(statements.UPGRADES) == set(OLDER)
    assert {path.name for path in GOLDEN.glob("sqlite_*.db")} == {f"sqlite_v{n}.db" for n in statements.SCHEMAS}  # fmt: skip
    for version in statements.SCHEMAS:
        assert schema(GOLDEN / f"sqlite_v{version}.db")[-1] == (version,), (
            "it is what the older library wrote"
        )


@pytest.mark.parametrize("version", OLDER)
async def test_damage_stays_damage_and_harms_no_other_session(tmp_path: Path, version: int):
    path = copied(tmp_path, version)
    db = sqlite3.connect(path)
    for change in (
        "UPDATE sessions SET state = x'7b7d' WHERE id = 'plain'",
        "UPDATE sessions SET updated_at = 'x' WHERE id = 'many'",
        "UPDATE sessions SET count = 2 WHERE id = 'replaced'",
        "UPDATE commits SET body = x'5b5d' WHERE rowid = (SELECT key << 32 | number FROM sessions WHERE id = 'long')",
        "DELETE FROM commits WHERE rowid = (SELECT key << 32 | number FROM sessions WHERE id = 'a' || char(0) || 'b')",
    ):
        assert db.execute(change).rowcount == 1
    db.commit()
    db.close()
    bad = {
        ("user-7", "plain"),
        ("user-8", "many"),
        ("user-7", "replaced"),
        ("user-7", "long"),
        ("a\0", "a\0b"),
    }
    async with SQLiteStore(path) as store:
        for actor, id in EXPECTED:
            if (actor, id) in bad:
                with pytest.raises(CorruptSessionError, match=r"damaged"):
                    await store.load(id, actor_id=actor)
            else:
                assert await store.load(id, actor_id=actor) is not None
        assert {(damage.actor_id, damage.id) for damage in (await store.verify()).damaged} == bad


@pytest.mark.parametrize("version", OLDER)
async def test_what_cannot_be_brought_up_is_left_as_it_was(tmp_path: Path, version: int):
    path = copied(tmp_path, version)
    db = sqlite3.connect(path)
    db.execute("PRAGMA writable_schema = ON")
    db.execute(
        "UPDATE sqlite_master SET sql = replace(sql, 'count INTEGER', 'count INTEGEU') WHERE name = 'sessions'"
    )
    db.commit()
    db.close()
    before = path.read_bytes()
    async with SQLiteStore(path) as store:
        for call in (store.load("plain"), store.delete("plain")):
            with pytest.raises(CorruptSessionError, match="tables"):
                await call
    assert path.read_bytes() == before


async def test_a_page_of_messages_that_cannot_be_read_costs_no_other_session(tmp_path: Path):
    path = tmp_path / "a.db"
    async with SQLiteStore(path, durability="off") as store:
        for session in range(40):
            for number in range(4):
                await store.append(
                    f"{session:03}",
                    messages=[Message.user(f"<{session:03}>" + "x" * 1500)],
                    state={},
                    metadata={},
                    expected_count=number,
                )
    with contextlib.closing(sqlite3.connect(path)) as db:  # as format 1 has it
        db.executescript(
            f"""
            DROP INDEX sessions_by_hour;
            DROP INDEX sessions_by_scope;
            ALTER TABLE sessions RENAME TO newer;
            {statements.SCHEMAS[1][2]};
            INSERT INTO sessions SELECT key, scope, id, epoch, number, root, count, created_at, updated_at,
                fixed_sum, small_sum, body_sum, state, metadata FROM newer;
            DROP TABLE newer;
            PRAGMA user_version = 1;
            PRAGMA journal_mode = DELETE;
            """
        )
    raw = bytearray(path.read_bytes())
    place = raw.index(b"<020>") // 4096 * 4096
    raw[place : place + 4096] = bytes(4096)
    path.write_bytes(raw)
    lost = []
    async with SQLiteStore(path) as store:
        for session in range(40):
            try:
                snapshot = await store.load(f"{session:03}")
                assert snapshot.count == 4
            except CorruptSessionError:
                lost.append(session)
    assert 1 <= len(lost) <= 3, lost


@pytest.mark.parametrize("version", OLDER)
async def test_an_upgrade_that_fails_changes_nothing(tmp_path: Path, version: int, monkeypatch):
    path = copied(tmp_path, version)
    before = schema(path)
    broken = {**statements.UPGRADES, version: (*statements.UPGRADES[version], "SELECT * FROM no_such_table")}
    monkeypatch.setattr(statements, "UPGRADES", broken)
    async with SQLiteStore(path) as store:
        with pytest.raises(CorruptSessionError, match="no_such_table"):
            await store.load("plain", actor_id="user-7")
        assert schema(path) == before
        monkeypatch.undo()
        assert (await store.load("plain", actor_id="user-7")).count == 3


def passing(error: str):
    """Return what a function of SQLite's raises where something fails that may not fail tomorrow."""
    if error == "NOMEM":
        return MemoryError()
    raised = sqlite3.OperationalError(error)
    raised.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{error}")
    return raised


@pytest.mark.parametrize(
    "error", ["CANTOPEN", "CANTOPEN_DIRTYWAL", "IOERR_READ", "NOMEM", "FULL", "BUSY", "LOCKED", "INTERRUPT"]
)
async def test_an_upgrade_that_cannot_read_for_now_changes_nothing_and_says_what_failed(
    tmp_path: Path, error: str, monkeypatch: pytest.MonkeyPatch
):
    path = copied(tmp_path, 1)
    before = schema(path)
    monkeypatch.setattr(worker, "BUSY_SECONDS", 0.0)
    calls = iter(range(1_000_000))

    class Beside(sqlite3.Connection):
        def execute(self, statement, *values):
            if statement == statements.SIZE_OF and next(calls) % 7 == 4:  # not at the first session
                raise passing(error)
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Beside))
    expected = StoreError if error == "NOMEM" else StoreUnavailableError
    async with SQLiteStore(path) as store:
        for _ in range(2):
            with pytest.raises(expected, match="MemoryError" if error == "NOMEM" else error) as caught:
                await store.append("new", messages=[], state={}, metadata={}, expected_count=0)
            assert not isinstance(caught.value, CorruptSessionError)
        assert schema(path) == before
        monkeypatch.undo()
        assert (await contents(store)).items() >= EXPECTED.items()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no limit of descriptors here")
@pytest.mark.parametrize("free", range(9))
async def test_an_upgrade_without_descriptors_leaves_every_session_whole(tmp_path: Path, free: int):
    path = copied(tmp_path, 1)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS, path, str(free)],
        capture_output=True,
        text=True,
        check=True,
    )
    *first, last = done.stdout.splitlines()
    assert last == "3"
    assert [line.split()[0] for line in first] in (["3"], ["StoreUnavailableError"]), done.stdout
    async with SQLiteStore(path) as store:
        assert (await contents(store)).items() >= EXPECTED.items()


WITHOUT_DESCRIPTORS = """
import asyncio, os, resource, sys
from littleghost import LittleGhostError
from littleghost.sessions.sqlite import SQLiteStore

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

async def load(store):
    try:
        print((await store.load("plain", actor_id="user-7")).count)
    except LittleGhostError as error:
        print(type(error).__name__, error)

async def main(path, free):
    taken = []
    async with SQLiteStore(path) as store:
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for descriptor in taken[:int(free)]:
            os.close(descriptor)
        await load(store)
        for descriptor in taken[int(free):]:
            os.close(descriptor)
        await load(store)

asyncio.run(main(*sys.argv[1:]))
"""


OLD_STATEMENTS = {
    1: (
        """
        UPDATE sessions SET number = ?, count = ?, updated_at = ?, head_sum = ?, body_sum = ?, state = ?, metadata = ?
        WHERE key = ? AND scope = ? AND id = ? AND epoch = ? AND number = ? AND count = ?
        """,
        "SELECT key, epoch, number, root, count, created_at, updated_at, fixed_sum, head_sum FROM sessions WHERE scope = ? AND id = ?",
        """
        UPDATE sessions
        SET number = ?, root = ?, count = ?, updated_at = ?, fixed_sum = ?, head_sum = ?, body_sum = ?, state = ?, metadata = ?
        WHERE key = ?
        """,
    )
}


@pytest.mark.parametrize("version", OLDER)
async def test_an_older_library_that_has_the_file_open_fails_and_writes_nothing(tmp_path: Path, version: int):
    path = copied(tmp_path, version)
    old = sqlite3.connect(path, isolation_level=None)
    for statement in OLD_STATEMENTS[version]:
        old.execute(statement, [0] * statement.count("?"))
    async with SQLiteStore(path) as store:
        await store.load("plain")
    for statement in OLD_STATEMENTS[version]:
        with pytest.raises(sqlite3.OperationalError, match="no such column: head_sum"):
            old.execute(statement, [0] * statement.count("?"))
    old.close()


AS_NOBODY = """
import asyncio, os, sys
from littleghost.errors import LittleGhostError
from littleghost.message import Message
from littleghost.sessions.contract import ALL_ACTORS
from littleghost.sessions.sqlite import SQLiteStore

if os.geteuid() == 0:  # after the imports, for what root has installed others may not read
    os.setgid(65534)
    os.setuid(65534)

async def tell(name, call):
    try:
        print(name, await call)
    except LittleGhostError as error:
        print(name, type(error).__name__, error)

async def main():
    async with SQLiteStore(sys.argv[1]) as store:
        await tell("load", count(store))
        await tell("append", store.append("new", messages=[Message.user("x")], state={}, metadata={}, expected_count=0))
        await tell("tail", last(store))
        await tell("sessions", names(store))
        await tell("verify", checked(store))
        if "wait" in sys.argv:
            print("ready", flush=True)
            for line in sys.stdin:
                await tell("load", count(store))
                print("told", flush=True)

async def count(store):
    snapshot = await store.load("plain", actor_id="user-7")
    return snapshot and snapshot.count

async def last(store):
    return (await store.tail("plain", limit=1, actor_id="user-7")).items[0].text

async def names(store):
    return len((await store.sessions(actor_id=ALL_ACTORS, order="updated")).items)

async def checked(store):
    found = await store.verify()
    return found.checked, len(found.damaged)

asyncio.run(main())
"""


def nobody(path: Path, *more: str):
    program = [sys.executable, "-c", AS_NOBODY, path, *more]
    return subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip


async def told(process) -> dict[str, str]:
    out, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert (process.returncode, err) == (0, "")
    return dict(line.split(" ", 1) for line in out.splitlines() if " " in line)


posix = pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")


def protect(path: Path, *, folder: bool) -> None:
    path.chmod(0o444)
    if folder:
        path.parent.chmod(0o555)


@pytest.fixture
def shelf():
    """A folder that others may look into, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


READ = {"load": "3", "tail": "three", "sessions": "12", "verify": "(12, 0)"}


@posix
@pytest.mark.parametrize("protected", ["file", "folder", "both"])
@pytest.mark.parametrize("state", ["closed", "open", "left open"])
async def test_what_may_only_be_read_is_read(shelf: Path, protected: str, state: str):
    path = copied(shelf, statements.VERSION)
    if state == "closed":
        if protected != "folder":
            path.chmod(0o444)
        else:
            path.chmod(0o666)
        shelf.chmod(0o777 if protected == "file" else 0o555)
        seen = await told(nobody(path))
    else:
        async with SQLiteStore(path) as store:
            await store.append(
                "other", messages=[], state={}, metadata={}, expected_count=0, actor_id="user-7"
            )
            await store.delete("other", actor_id="user-7")
            if state == "left open":
                # What a process that was killed leaves.
                for name in ("", "-wal", "-shm"):
                    shutil.copyfile(f"{path}{name}", shelf / f"b.db{name}")
                path = shelf / "b.db"
            for file in shelf.iterdir():
                file.chmod(0o666 if protected == "folder" else 0o444)
            shelf.chmod(0o777 if protected == "file" else 0o555)
            seen = await told(nobody(path))
            shelf.chmod(0o755)
    append = seen.pop("append")
    if protected == "folder" and state != "closed":
        # All the files are there already, and may be written.
        assert append.startswith("Commit")
        assert seen == READ | {"sessions": "13", "verify": "(13, 0)"}
    else:
        assert append.startswith("StoreUnavailableError")
        assert "read-only; make both writable for this process" in append
        assert seen == READ


@posix
@pytest.mark.parametrize("name", ["a?mode=rw.db", "a#b.db", "a%23b.db", "ä b&c=d.db"], ids=range(4))
async def test_what_may_only_be_read_is_read_whatever_it_is_called(shelf: Path, name: str):
    path = copied(shelf, statements.VERSION).rename(shelf / name)
    protect(path, folder=True)
    seen = await told(nobody(path))
    del seen["append"]
    assert seen == READ


@posix
async def test_who_reads_a_file_that_is_at_rest_sees_what_others_begin_to_write(shelf: Path):
    path = copied(shelf, statements.VERSION)
    protect(path, folder=True)
    process = nobody(path, "wait")
    try:
        while (await asyncio.to_thread(process.stdout.readline)) != "ready\n":
            assert process.poll() is None

        async def load() -> str:
            process.stdin.write("\n")
            process.stdin.flush()
            line = await asyncio.to_thread(process.stdout.readline)
            assert await asyncio.to_thread(process.stdout.readline) == "told\n"
            return line.strip()

        shelf.chmod(0o755)
        for count in (4, 6):
            more = {"messages": [Message.user("more")], "state": {}, "metadata": {}}
            async with SQLiteStore(path) as store:
                for extra in range(2):
                    await store.append("plain", **more, expected_count=count - 1 + extra, actor_id="user-7")
                    if os.name == "posix":
                        Path(f"{path}-wal").chmod(0o644)
                        Path(f"{path}-shm").chmod(0o644)
                    assert await load() == f"load {count + extra}"
            assert await load() == f"load {count + 1}"
    finally:
        _, err = await asyncio.to_thread(process.communicate, timeout=60)
    assert (process.returncode, err) == (0, "")


@posix
async def test_a_log_that_cannot_be_read_is_an_error_and_no_older_history(shelf: Path):
    path = copied(shelf, statements.VERSION)
    async with SQLiteStore(path) as store:
        more = {"messages": [Message.user("four")], "state": {}, "metadata": {}}
        await store.append("plain", **more, expected_count=3, actor_id="user-7")
        for name in ("", "-wal"):
            shutil.copyfile(f"{path}{name}", shelf / f"b.db{name}")
    protect(shelf / "b.db", folder=True)
    seen = await told(nobody(shelf / "b.db"))
    for name in ("load", "tail", "sessions", "verify"):
        assert seen[name].startswith("StoreUnavailableError"), name
        assert "open it once where this process may write" in seen[name]


@posix
@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])
async def test_an_older_file_that_cannot_be_written_says_what_to_do(shelf: Path, version: int, folder: bool):
    path = copied(shelf, version)
    protect(path, folder=folder)
    if not folder:
        shelf.chmod(0o777)
    before = path.read_bytes()
    seen = await told(nobody(path))
    assert path.read_bytes() == before
    for name in ("load", "tail", "sessions", "verify"):
        assert seen[name].startswith("FormatError"), seen
        assert f"format {version}" in seen[name]
        assert "open it once where it can be written" in seen[name]
    assert seen["append"].startswith("StoreUnavailableError" if folder else "FormatError")
    assert "read-only" in seen["append"]


def test_the_error_of_an_older_file_has_both_versions(tmp_path: Path):
    from littleghost.sessions.sqlite.database import DatabaseFile

    error = DatabaseFile(str(tmp_path / "a.db"), "full")._stuck(1)
    assert isinstance(error, FormatError)
    assert (error.found, error.supported) == (1, statements.VERSION)
