"""`SQLiteStore.verify`: whatever is damaged is told, by its name where that can be read, and nothing keeps the rest from being read."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from littleghost.errors import CorruptSessionError, DataError, LittleGhostError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.contract import ALL_ACTORS
from littleghost.sessions.sqlite import SQLiteStore, verification

PAGE = 4096


async def append(store, count, *texts, id="a", actor=None, **options):
    messages = [Message.user(text) for text in texts]
    content = {"messages": messages, "state": {"of": id}, "metadata": {}}
    return await store.append(id, **content, expected_count=count, actor_id=actor, **options)


async def small(path: Path) -> None:
    async with SQLiteStore(path, durability="off") as store:
        for id in "abcd":
            for count in range(3):
                await append(store, count, f"{id}{count}", id=id, actor="u", commit_id=f"c{count}")
        await store.replace("d", messages=[Message.user("new")], state={}, metadata={}, actor_id="u")


async def walked(store, limit=100):
    checked, damaged, cursor = 0, [], None
    while True:
        step = await store.verify(limit=limit, cursor=cursor)
        checked += step.checked
        damaged += step.damaged
        cursor = step.cursor
        assert step.checked <= limit
        if cursor is None:
            return checked, damaged


B = "(SELECT key FROM sessions WHERE id = 'b')"
CHANGES = {
    "state": ("UPDATE sessions SET state = x'7b7d' WHERE id = 'b'", "state or metadata"),
    "head": ("UPDATE sessions SET count = 2 WHERE id = 'b'", "is damaged"),
    "size": ("UPDATE sessions SET size = size + 1 WHERE id = 'b'", "is damaged"),
    "size and its sum": ("UPDATE sessions SET size = size + 1, size_sum = size_sum - 1 WHERE id = 'b'", "bytes should be stored"),
    "size of another type": ("UPDATE sessions SET size = 'x' WHERE id = 'b'", "is damaged"),
    "hour": ("UPDATE sessions SET hour = hour - 1 WHERE id = 'b'", "is damaged"),
    "body": (f"UPDATE commits SET body = x'5b5d' WHERE rowid = {B} << 32 | 2", "messages of its commit 2"),
    "body of another type": (f"UPDATE commits SET body = 'x' WHERE rowid = {B} << 32 | 2", "bytes-like"),
    "commit": (f"UPDATE commits SET count = 7 WHERE rowid = {B} << 32 | 2", "commit 2 is not the one"),
    "first commit": (f"DELETE FROM commits WHERE rowid = {B} << 32 | 1", "commit 2 comes after 0"),
    "last commit": (f"DELETE FROM commits WHERE rowid = {B} << 32 | 3", "3 commits with 3 messages"),
    "all commits": (f"DELETE FROM commits WHERE rowid >> 32 = {B}", "3 commits with 3 messages"),
    "commit too many": (f"INSERT INTO commits VALUES (({B} << 32) + 4, 3, NULL, NULL, 1, 1, x'')", "commit 4 is not"),
    "name": ("DELETE FROM names WHERE hash IN (SELECT hash FROM names ORDER BY hash LIMIT 4)", "table of names"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "problem"), CHANGES.values(), ids=CHANGES)
async def test_what_is_wrong_is_told_with_the_name(tmp_path: Path, change: str, problem: str):
    path = tmp_path / "a.db"
    await small(path)
    db = sqlite3.connect(path)
    assert db.execute(change).rowcount
    db.commit()
    db.close()
    async with SQLiteStore(path, durability="off") as store:
        checked, damaged = await walked(store)
        assert checked == 4
        named = [damage for damage in damaged if damage.id == "b"]
        assert [(damage.actor_id, problem in damage.problem) for damage in named] == [("u", True)]
        assert all("restore the file from a backup" in damage.problem for damage in damaged)
        if "names" not in change:
            assert damaged == named
        assert await walked(store, 1) == (checked, damaged), "whatever the steps"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE commits SET body = x'5b5d' WHERE rowid = 4 << 32 | 2", "should have been emptied"),
        ("UPDATE commits SET commit_id = NULL WHERE rowid = 4 << 32 | 2", "commit 2 is not the one"),
        ("UPDATE sessions SET scope = 5 || char(0) WHERE id = 'd'", "is damaged"),
    ],
)
async def test_what_was_kept_of_replaced_commits_is_looked_at(tmp_path: Path, change: str, problem: str):
    path = tmp_path / "a.db"
    await small(path)
    db = sqlite3.connect(path)
    assert db.execute(change).rowcount == 1
    db.commit()
    db.close()
    async with SQLiteStore(path, durability="off") as store:
        checked, (damage,) = await walked(store)
        assert (checked, damage.id) == (4, "d")
        assert problem in damage.problem


async def test_what_belongs_to_nobody_is_found(tmp_path: Path):
    path = tmp_path / "a.db"
    await small(path)
    db = sqlite3.connect(path)
    db.execute("DELETE FROM sessions WHERE id IN ('a', 'd')")
    db.execute("UPDATE commits SET rowid = 9 << 32 | (rowid & 0xffffffff) WHERE rowid >> 32 = 4")
    db.execute("UPDATE commits SET rowid = -1 WHERE rowid = 9 << 32 | 2")
    db.execute("INSERT INTO names VALUES (5)")
    db.commit()
    db.close()
    async with SQLiteStore(path, durability="off") as store:
        for limit in (1, 100):
            checked, damaged = await walked(store, limit)
            told = [damage.problem.split(";")[0] for damage in damaged]
            assert checked == 5
            assert told == [
                "there are commits without their session, key -1",
                "there are commits without their session, key 1",
                "there are commits without their session, key 9",
                "there are 2 sessions and 5 names",
            ]
            assert {damage.id for damage in damaged} == {None}


async def test_a_session_that_an_index_has_not_is_found_in_a_large_file_too(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(verification, "CHECKED_WHOLE", 0)
    path = tmp_path / "a.db"
    await small(path)
    whole = path.read_bytes()
    db = sqlite3.connect(path)
    root = dict(db.execute("SELECT name, rootpage FROM sqlite_master"))
    db.close()
    for name in ("sqlite_autoindex_sessions_1", "sessions_by_hour", "sessions_by_scope"):
        start = (root[name] - 1) * PAGE
        damaged = bytearray(whole)
        damaged[start : start + PAGE] = bytes([10, 0, 0, 0, 0, 16, 0, 0]) + bytes(
            PAGE - 8
        )  # a leaf without cells
        path.write_bytes(damaged)
        async with SQLiteStore(path, durability="off") as store:
            checked, found = await walked(store)
            assert checked == 4
            by_name = {damage.id: damage.problem for damage in found if damage.id is not None}
            assert set(by_name) == set("abcd")
            assert all("REINDEX" in problem and "backup" not in problem for problem in by_name.values())
        db = sqlite3.connect(path)
        db.execute("REINDEX")
        db.close()
        async with SQLiteStore(path, durability="off") as store:
            assert await walked(store) == (4, [])


async def test_sqlite_is_asked_about_pages_once_and_of_small_files_only(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.db"
    await small(path)
    async with SQLiteStore(path, durability="off") as store:
        await store.load("a")
        asked: list[str] = []
        store._reader.connection.set_trace_callback(asked.append)
        await walked(store, 1)
        assert len([text for text in asked if "integrity" in text]) == 1
        asked.clear()
        monkeypatch.setattr(verification, "CHECKED_WHOLE", 5000)
        await walked(store, 1)
        store._reader.connection.set_trace_callback(None)
        assert not [text for text in asked if "integrity" in text]


async def test_a_step_with_very_much_to_read_ends_early(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.db"
    await small(path)
    monkeypatch.setattr(verification, "STEP", 50)
    async with SQLiteStore(path, durability="off") as store:
        step = await store.verify(limit=100)
        assert step.checked == 1
        assert step.cursor is not None
        assert await walked(store) == (4, [])


@pytest.mark.parametrize("cursor", ["", "x", "1.5", "+1", " 1", "9" * 30, "\ud800", 5, b"1", "١"])
async def test_a_cursor_that_is_none_is_refused(tmp_path: Path, cursor: object):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        with pytest.raises(DataError, match="cursor"):
            await store.verify(cursor=cursor)


async def test_a_file_that_cannot_be_opened_is_damage_and_one_that_cannot_be_reached_is_not(tmp_path: Path):
    path = tmp_path / "a.db"
    path.write_text("hello, this is not a database. " * 100)
    async with SQLiteStore(path) as store:
        found = await store.verify()
        assert (found.checked, found.cursor, [damage.id for damage in found.damaged]) == (0, None, [None])
        assert "not a SQLite database" in found.damaged[0].problem
    async with SQLiteStore(tmp_path / "no" / "a.db") as store:
        with pytest.raises(StoreUnavailableError):
            await store.verify()


async def test_a_failure_that_is_no_damage_is_not_called_so(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.db"
    await small(path)

    def failing(*_):
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
        raise error

    for name in ("_commits", "_file", "_names"):
        async with SQLiteStore(path) as store:
            with monkeypatch.context() as patch:
                patch.setattr(verification, name, failing)
                with pytest.raises(StoreUnavailableError):
                    await store.verify()


def pages(path: Path) -> dict[str, list[int]]:
    db = sqlite3.connect(path)
    try:
        found: dict[str, list[int]] = {}
        for name, number, kind in db.execute("SELECT name, pageno, pagetype FROM dbstat"):
            if kind != "overflow":
                found.setdefault(name, []).append(number)
        return found
    except sqlite3.OperationalError:
        pytest.skip("this SQLite does not tell its pages")
    finally:
        db.close()


async def filled(path: Path) -> dict[tuple[str | None, str], int]:
    async with SQLiteStore(path, durability="off") as store:
        for number in range(60):
            actor, id = [None, "u", "v"][number % 3], f"session-{number:03}" + "-" * 90
            for count in range(20 if number < 3 else 2):
                await append(store, count, f"{id} {count} " + "x" * (number % 7) * 60, id=id, actor=actor)
        return {
            (info.actor_id, info.id): info.count
            for info in (await store.sessions(actor_id=ALL_ACTORS, limit=100)).items
        }


async def test_whatever_page_is_damaged_the_walk_finds_what_is_wrong_and_ends(tmp_path: Path, monkeypatch):
    """A session that cannot be loaded, or is not listed, is told of: by name where its name can be read, else at all."""
    path = tmp_path / "a.db"
    expected = await filled(path)
    whole, chance, trees = path.read_bytes(), random.Random(3), pages(path)
    assert {"commits", "names", "sessions", "sessions_by_hour", "sessions_by_scope"} <= set(trees)
    named = without = 0
    for turn in range(150):
        monkeypatch.setattr(verification, "CHECKED_WHOLE", 0 if turn % 3 else 1 << 30)
        damaged = bytearray(whole)
        tree = chance.choice([name for name in trees if name != "sqlite_schema"])
        page = (chance.choice(trees[tree]) - 1) * PAGE
        match chance.choice(["zero", "noise", "flip", "swap"]):
            case "zero":
                damaged[page : page + PAGE] = bytes(PAGE)
            case "noise":
                at = page + chance.randrange(PAGE - 16)
                damaged[at : at + 16] = chance.randbytes(16)
            case "flip":
                damaged[page + chance.randrange(PAGE)] ^= 1 << chance.randrange(8)
            case _:
                other = (chance.choice(trees[tree]) - 1) * PAGE
                damaged[page : page + PAGE] = whole[other : other + PAGE]
        for name in ("-lease", "-wal", "-shm"):
            Path(f"{path}{name}").unlink(missing_ok=True)
        path.write_bytes(damaged)
        async with SQLiteStore(path, durability="off") as store:
            checked, found = await walked(store, 7)
            assert checked <= 3 * len(expected)
            told = {(damage.actor_id, damage.id) for damage in found if damage.id is not None}
            for (actor, id), count in expected.items():
                try:
                    snapshot = await store.load(id, actor_id=actor)
                    assert snapshot.count == count
                except LittleGhostError:
                    assert found, "it cannot be loaded, and nothing was found"
                    if (actor, id) in told:
                        named += 1
                    else:
                        without += 1
                        assert any(damage.id is None for damage in found)
    assert named > 100
    assert without < named


async def test_rows_that_cannot_be_read_are_stepped_over(tmp_path: Path, monkeypatch):
    """A page of each tree is unreadable: what is in others is checked all the same, and nearly everything is told by name."""
    monkeypatch.setattr(verification, "CHECKED_WHOLE", 0)
    path = tmp_path / "a.db"
    expected = await filled(path)
    whole, trees = path.read_bytes(), pages(path)
    for tree in ("sessions", "commits"):
        assert len(trees[tree]) > 3
        for number in trees[tree]:
            damaged = bytearray(whole)
            damaged[(number - 1) * PAGE : number * PAGE] = bytes(PAGE)
            path.write_bytes(damaged)
            async with SQLiteStore(path, durability="off") as store:
                _, found = await walked(store, 100)
                lost = set()
                for actor, id in expected:
                    try:
                        await store.load(id, actor_id=actor)
                    except CorruptSessionError:
                        lost.add((actor, id))
                assert lost
                told = {(damage.actor_id, damage.id) for damage in found if damage.id is not None}
                assert told <= lost
                if len(lost) < len(expected):
                    assert told == lost
                if tree == "sessions":  # one of commits may be within one session
                    assert any(f"rows of {tree}" in damage.problem for damage in found)
