"""What is damaged on the disk is an error or makes no difference; it is never another history, and never none."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from littleghost.errors import CorruptSessionError, ProtocolError, StoreError
from littleghost.message import Message
from littleghost.sessions.contract import SessionStore, Snapshot
from littleghost.sessions.sqlite import SQLiteStore

PAGE = 4096
REFUSALS = (ProtocolError, StoreError)
Key = tuple[str | None, str]


async def append(store: SessionStore, key: Key, count: int, *texts: str, state=None, **options):
    return await store.append(
        key[1],
        messages=[Message.user(text) for text in texts],
        state=state or {},
        metadata={"of": key[1]},
        expected_count=count,
        actor_id=key[0],
        **options,
    )


async def small(path: Path) -> None:
    """Two sessions alike; their last commit is of state only."""
    async with SQLiteStore(path, durability="off") as store:
        for key in (("u", "a"), ("v", "a")):
            for count in range(3):
                await append(store, key, count, f"{key[0]}{count}", commit_id=f"c{count}")
            await append(store, key, 3, state={"x": 1})


SWAPPED = """
    UPDATE commits SET ({0}) = (SELECT {0} FROM commits AS other WHERE other.rowid = commits.rowid + {1}) WHERE rowid = {2}
"""
FIRST = 1 << 32 | 1
CHANGES = {
    "root": ["UPDATE sessions SET root = root + 1"],
    "number, where the last commit is of state only": ["UPDATE sessions SET number = number - 1"],
    "number and count": ["UPDATE sessions SET number = number - 2, count = count - 1"],
    "count": ["UPDATE sessions SET count = count + 1"],
    "epoch": ["UPDATE sessions SET epoch = epoch + 1"],
    "actor": ["UPDATE sessions SET scope = ':w' WHERE scope = ':v'", "UPDATE sessions SET scope = ':v' WHERE scope = ':u'"],
    "id": ["UPDATE sessions SET id = 'b'"],
    "time": ["UPDATE sessions SET created_at = 'x'"],
    "later": ["UPDATE sessions SET updated_at = updated_at + 1"],
    "state of another": [
        """UPDATE sessions SET (state, metadata, body_sum) =
        (SELECT state, metadata, body_sum FROM sessions AS other WHERE other.key != sessions.key) WHERE scope = ':u'"""
    ],
    "body of the next": [SWAPPED.format("body, body_sum", 1, FIRST)],
    "row of the next": [SWAPPED.format("count, commit_id, digest, head_sum, body, body_sum", 1, FIRST)],
    "body of another actor": [SWAPPED.format("body, body_sum", 1 << 32, FIRST)],
    "row of another actor": [
        SWAPPED.format("count, commit_id, digest, head_sum, body, body_sum", 1 << 32, FIRST)
    ],
    "index": ["DELETE FROM sessions"],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_what_is_not_where_it_was_written_is_damage(tmp_path: Path, change: list[str]):
    path = tmp_path / "a.db"
    await small(path)
    db = sqlite3.connect(path)
    for statement in change:
        assert db.execute(statement).rowcount
    db.commit()
    db.close()
    commits, state = "UPDATE commits" in change[0], "state" in change[0]
    listed = "v" if ":v" in change[0] else "u"
    async with SQLiteStore(path, durability="off") as store:

        async def refused(*calls):
            for call in calls:
                with pytest.raises(CorruptSessionError, match=r"'[ab]'"):
                    await call

        await refused(store.load("a", actor_id="u"))
        if not state:
            await refused(store.tail("a", limit=9, actor_id="u"))
        if not (commits or state):  # an append looks at no body, and writes the state anew
            await refused(append(store, ("u", "a"), 3, "new"), append(store, ("u", "a"), 0, "new"))
            if not change[0].startswith("DELETE"):
                await refused(store.sessions(actor_id=listed))
        await refused(store.load("a", actor_id="u"))


@pytest.mark.parametrize(
    "change",
    [
        f"DELETE FROM commits WHERE rowid = {FIRST + 3}",
        "UPDATE sessions SET size = size + 1, size_sum = size_sum - 1 WHERE scope = ':u'",
    ],
    ids=["a commit without messages", "size and its sum"],
)
async def test_what_changes_no_message_is_damage_all_the_same(tmp_path: Path, change: str):
    path = tmp_path / "a.db"
    await small(path)
    db = sqlite3.connect(path)
    assert db.execute(change).rowcount == 1
    db.commit()
    db.close()
    async with SQLiteStore(path, durability="off") as store:
        with pytest.raises(CorruptSessionError, match="'a'"):
            await store.load("a", actor_id="u")
        assert (await store.load("a", actor_id="v")).count == 3


async def test_a_count_that_changed_moves_no_page(tmp_path: Path):
    path = tmp_path / "a.db"
    await small(path)
    db = sqlite3.connect(path)
    db.execute("UPDATE commits SET count = count + 1")
    db.commit()
    db.close()
    async with SQLiteStore(path, durability="off") as store:
        with pytest.raises(CorruptSessionError, match="'a'"):
            await store.tail("a", limit=1, before=2, actor_id="u")
        with pytest.raises(CorruptSessionError, match="'a'"):
            await append(store, ("u", "a"), 0, "u0", commit_id="c0")


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        (["INSERT INTO commits SELECT rowid + 1, 3, NULL, NULL, 1, 1, x'' FROM commits ORDER BY rowid DESC LIMIT 1"], 3),
        (["DELETE FROM sessions WHERE scope = ':v'", "DELETE FROM names"], 0),
    ],
)  # fmt: skip
async def test_a_row_where_there_should_be_none_is_damage(tmp_path: Path, changes: list[str], count: int):
    path = tmp_path / "a.db"
    await small(path)
    db = sqlite3.connect(path)
    for change in changes:
        db.execute(change)
    db.commit()
    db.close()
    async with SQLiteStore(path, durability="off") as store:
        with pytest.raises(CorruptSessionError, match="restore"):
            await append(store, ("v", "a"), count, "new")


async def test_a_changed_definition_of_a_table_is_damage(tmp_path: Path):
    path = tmp_path / "a.db"
    await small(path)
    whole = path.read_bytes()
    for old, new in ((b"scope TEXT", b"scope TEXU"), (b"UNIQUE (scope, id)", b"UNIQUE (id, scope)")):
        assert whole.count(old) == 1
        path.write_bytes(whole.replace(old, new))
        async with SQLiteStore(path) as store:
            with pytest.raises(CorruptSessionError):
                await store.load("a", actor_id="u")


# Bytes and pages


def pages(path: Path) -> dict[str, list[int]]:
    """The pages of each tree."""
    db = sqlite3.connect(path)
    try:
        found: dict[str, list[int]] = {}
        for name, number in db.execute("SELECT name, pageno FROM dbstat"):
            found.setdefault(name, []).append(number)
        return found
    except sqlite3.OperationalError:
        pytest.skip("this SQLite does not tell its pages")
    finally:
        db.close()


async def check(path: Path, expected: dict[Key, Snapshot], chance: random.Random) -> tuple[int, int]:
    """Check each session of a damaged file, and write to one; return how many were right, and how many refused."""
    right = refused = 0
    async with SQLiteStore(path, durability="off") as store:
        for (actor, id), whole in expected.items():
            try:
                assert await store.load(id, actor_id=actor) == whole
                right += 1
            except REFUSALS:
                refused += 1
            try:
                page = await store.tail(id, limit=3, before=whole.count - 1, actor_id=actor)
                assert page.items == whole.messages[:-1][-3:]
            except REFUSALS:
                pass
        for actor in {actor for actor, _ in expected}:
            try:
                for item in (await store.sessions(actor_id=actor, limit=1000)).items:
                    whole = expected[actor, item.id]
                    assert (item.count, item.revision) == (whole.count, whole.revision)
            except REFUSALS:
                pass
        key = chance.choice(list(expected))
        whole = expected[key]
        options = chance.choice([{}, {"expected_revision": whole.revision}])
        for count in (0, whole.count):
            try:
                commit = await append(store, key, count, "new", **options)
            except REFUSALS:
                continue
            assert count == whole.count, "a session that exists was begun anew"
            assert commit.count == count + 1
            try:
                after = await store.load(key[1], actor_id=key[0])
                assert [m.text for m in after.messages] == [*(m.text for m in whole.messages), "new"]
            except REFUSALS:
                pass
    return right, refused


async def filled(path: Path) -> dict[Key, Snapshot]:
    """Sessions long and short, of three actors, with rows in many pages of each tree."""
    chance = random.Random(1)
    keys: list[Key] = [
        (actor, f"session-{number:03}" + "-" * 90) for number in range(20) for actor in (None, "u", "v")
    ]
    async with SQLiteStore(path, durability="off") as store:
        for place, key in enumerate(keys):
            for count in range(40 if place < 3 else 2):
                text = f"{key} {count} " + "x" * chance.choice([1, 300, 6000 if place < 3 else 10])
                await append(store, key, count, text, state={"count": count}, commit_id=f"c{count}" if place % 2 else None)  # fmt: skip
        await store.replace(
            keys[1][1], messages=[Message.user("again"), Message.user("!")], state={}, metadata={}, actor_id=keys[1][0]
        )  # fmt: skip
        return {key: await store.load(key[1], actor_id=key[0]) for key in keys}


def begin(path: Path, content: bytes) -> None:
    for name in ("-lease", "-wal", "-shm"):
        Path(f"{path}{name}").unlink(missing_ok=True)
    path.write_bytes(content)


async def test_a_damaged_index_never_hides_a_session(tmp_path: Path):
    path = tmp_path / "a.db"
    expected = await filled(path)
    whole, chance = path.read_bytes(), random.Random(7)
    index = next(numbers for name, numbers in pages(path).items() if "autoindex" in name)
    total = 0
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[(chance.choice(index) - 1) * PAGE + chance.randrange(PAGE)] ^= 1 << chance.randrange(8)
        begin(path, bytes(damaged))
        _, refused = await check(path, expected, chance)
        total += refused > 0
    assert total > 5


async def test_random_damage_is_an_error_or_makes_no_difference(tmp_path: Path):
    path = tmp_path / "a.db"
    expected = await filled(path)
    whole, chance = path.read_bytes(), random.Random(11)
    count = len(whole) // PAGE
    trees = list(pages(path).values())
    assert sum(len(tree) > 1 for tree in trees) >= 3
    harmed = 0
    for _ in range(250):
        damaged = bytearray(whole)
        # A tree first, for most pages are those of long bodies.
        page, other = ((chance.choice(chance.choice(trees)) - 1) * PAGE for _ in "ab")
        at = page + chance.choice([chance.randrange(PAGE), chance.randrange(100)])
        match chance.choice(["flip", "zero", "noise", "empty", "swap", "swap", "copy", "cut"]):
            case "flip":
                damaged[at] ^= 1 << chance.randrange(8)
            case "zero":
                damaged[at : at + 16] = bytes(len(damaged[at : at + 16]))
            case "noise":
                damaged[at : at + 16] = chance.randbytes(len(damaged[at : at + 16]))
            case "empty":
                damaged[page : page + PAGE] = bytes(PAGE)
            case "swap":
                damaged[page : page + PAGE] = whole[other : other + PAGE]
                damaged[other : other + PAGE] = whole[page : page + PAGE]
            case "copy":
                damaged[page : page + PAGE] = whole[other : other + PAGE]
            case _:
                end = chance.choice([chance.randrange(count) * PAGE, chance.randrange(len(whole))])
                del damaged[max(end, 2) :]  # one that is empty, and without its leases, is a new one
        begin(path, bytes(damaged))
        _, refused = await check(path, expected, chance)
        harmed += refused > 0
    assert harmed > 100
