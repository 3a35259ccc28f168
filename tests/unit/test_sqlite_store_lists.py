"""Times, sizes and limits of SQLiteStore: what is kept about a session beside its content, and the lists that depend on it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littleghost.errors import ConflictError, CorruptSessionError, SessionTooLargeError
from littleghost.message import Message
from littleghost.sessions.contract import ALL_ACTORS, SessionLimits
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.records import PART
from littleghost.sessions.sqlite import SQLiteStore, rows, statements

HOUR = 3600.0


class Clock:
    """The time of day, as told to whoever asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 480_000 * HOUR + 100
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def append(store, count, *texts, id="a", state=None, **options):
    messages = [Message.user(text) for text in texts]
    return await store.append(
        id, messages=messages, state=state or {}, metadata={}, expected_count=count, **options
    )


async def listed(store, **options):
    return [info.id for info in (await store.sessions(order="updated", **options)).items]


def statements_of(store) -> list[str]:
    seen: list[str] = []
    store._writer.connection.set_trace_callback(lambda text: seen.append(" ".join(text.split()[:3])))
    return seen


FAST = ["BEGIN IMMEDIATE", "UPDATE sessions SET", "INSERT INTO commits", "COMMIT"]


async def test_only_the_first_append_in_an_hour_touches_the_index(tmp_path: Path, clock: Clock):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        commit = await append(store, 0, "x")
        seen = statements_of(store)

        async def step(minutes: float, count: int) -> list[str]:
            nonlocal commit
            seen.clear()
            clock.now += 60 * minutes
            commit = await append(store, count, "x", expected_revision=commit.revision)
            return seen.copy()

        assert await step(1, 1) == FAST
        assert await step(57, 2) == FAST
        slower = await step(1, 3)
        assert slower.count("UPDATE sessions SET") == 3, "the one that changed nothing, and two that did"
        assert await step(1, 4) == FAST
        store._writer.connection.set_trace_callback(None)
        assert (await store.sessions()).items[0].updated_at == clock.now
        assert (await store.verify()).damaged == ()


async def test_a_clock_that_steps_back_changes_no_order_and_no_revision(tmp_path: Path, clock: Clock):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        began = clock.now
        commit = await append(store, 0, "x")
        for step, minutes in enumerate((-1, -50, 20, -90, -100_000, 100_000), 1):
            clock.now += 60 * minutes
            later = await append(store, step, "x", expected_revision=commit.revision)
            assert later.revision.rsplit("-")[-1] == str(step + 1)
            with pytest.raises(ConflictError):
                await append(store, step, "x", expected_revision=commit.revision)
            commit = later
            (info,) = (await store.sessions()).items
            assert (info.created_at, info.updated_at) == (began, began)
        clock.now = began - 5 * HOUR
        await store.replace("a", messages=[], state={}, metadata={})
        await append(store, 0, id="b")
        assert await listed(store) == ["a", "b"]
        clock.now = began + 5 * HOUR
        await append(store, 0)
        assert (await store.sessions()).items[0].updated_at == clock.now
        assert (await store.verify()).damaged == ()


async def test_pages_by_time_go_through_hours_and_within_them(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        times = [hour * HOUR + second for hour in range(-2, 3) for second in (0, 1, 1, 3599.5)]
        for place, moment in enumerate(times):
            actor = [None, "", "u"][place % 3]
            await store.restore(
                f"s{place}", messages=[], state={}, metadata={}, updated_at=moment, actor_id=actor
            )
        for actor in (ALL_ACTORS, None, "u"):
            for limit in (1, 2, 7):
                found, cursor = [], None
                while True:
                    page = await store.sessions(actor_id=actor, order="updated", limit=limit, cursor=cursor)
                    found += page.items
                    cursor = page.cursor
                    if cursor is None:
                        break
                assert len(found) == len({(info.actor_id, info.id) for info in found})
                assert len(found) == (20 if actor is ALL_ACTORS else 7 if actor is None else 6)
                assert [i.updated_at for i in found] == sorted((i.updated_at for i in found), reverse=True)
        assert (await store.verify()).damaged == ()


async def test_a_time_out_of_all_proportion_is_kept_and_listed(tmp_path: Path):
    times = [-1.7e308, -1e18, -0.0, 0.0, 5e-324, 1.0, 1e18, 1.7e308]
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        for place, moment in enumerate(times):
            await store.restore(f"{place}", messages=[], state={}, metadata={}, created_at=moment, updated_at=moment)  # fmt: skip
        found = (await store.sessions(order="updated")).items
        assert [info.updated_at for info in found] == sorted(times, reverse=True)
        assert (await store.sessions(order="updated", since=1e17, until=float("inf"))).items == found[:2]
        assert len((await store.sessions(since=float("-inf"), until=1.0)).items) == 5
        assert (await store.verify()).damaged == ()


moments = st.integers(0, 12).map(lambda number: 1e9 + number * 1200.0)
everybody = st.sampled_from([ALL_ACTORS, None, "", "u"])
questions = st.tuples(
    everybody, st.sampled_from(["id", "updated"]), st.integers(1, 4), st.none() | moments, st.none() | moments
)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("abcdé\U0001f984"), st.sampled_from([None, "", "u"]), moments), max_size=15),
    st.lists(questions, max_size=8),
    moments,
    st.integers(1, 5),
)  # fmt: skip
def test_lists_figures_and_expiry_are_those_of_memory(sessions, asked, ends, limit):
    async def pages(store, actor, order, limit, since, until):
        found, cursor = [], None
        while True:
            page = await store.sessions(
                actor_id=actor, order=order, limit=limit, since=since, until=until, cursor=cursor
            )
            found.append(
                [(i.actor_id, i.id, i.count, i.created_at, i.updated_at, i.size) for i in page.items]
            )
            cursor = page.cursor
            if cursor is None:
                return found

    async def both(folder: str):
        async with SQLiteStore(Path(folder, "a.db"), durability="off") as store:
            stores = MemoryStore(), store
            for id, actor, moment in sessions:
                for each in stores:
                    content = {"messages": [Message.user(id * 3)], "state": {"id": id}, "metadata": {}}
                    try:
                        await each.restore(id, **content, created_at=1.0, updated_at=moment, actor_id=actor)
                    except ConflictError:
                        await each.load(id, actor_id=actor)
            for question in asked:
                one, two = [await pages(each, *question) for each in stores]
                assert one == two, question
            for actor in (ALL_ACTORS, None, "", "u"):
                one, two = [await each.statistics(actor_id=actor) for each in stores]
                assert one == two
            # As of the moment `ends`; both ask the same clock, and nobody writes.
            one, two = [await each.expire(expire_after=time.time() - ends, limit=limit) for each in stores]
            assert one == two
            one, two = [await pages(each, ALL_ACTORS, "updated", 3, None, None) for each in stores]
            assert one == two
            assert (await store.verify()).damaged == ()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(both(folder))


async def test_a_session_that_is_written_again_does_not_expire(tmp_path: Path, clock: Clock):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        for id in "abcd":
            await append(store, 0, "x", id=id)
            clock.now += 10
        clock.now += HOUR
        await append(store, 1, "y", id="b")
        assert await store.expire(expire_after=HOUR, limit=2) == 2
        assert await listed(store) == ["b", "d"]
        assert await store.expire(expire_after=HOUR, limit=2) == 1
        assert await store.expire(expire_after=HOUR, limit=2) == 0
        assert await listed(store) == ["b"]
        db = store._writer.connection
        assert db.execute("SELECT count(*) FROM commits").fetchone() == (2,)
        assert db.execute("SELECT count(*) FROM names").fetchone() == (1,)


async def test_what_is_damaged_neither_expires_nor_keeps_others(tmp_path: Path, clock: Clock):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        for number in range(9):
            await append(store, 0, "x", id=f"s{number}")
            clock.now += 1
        db = store._writer.connection
        db.execute("UPDATE sessions SET updated_at = 5, hour = 0 WHERE id = 's8'")
        db.execute("UPDATE sessions SET count = 9 WHERE id IN ('s0', 's1', 's3')")
        clock.now += HOUR
        assert await store.expire(expire_after=60, limit=4) == 4
        assert await store.expire(expire_after=60, limit=4) == 1
        left = {id for (id,) in db.execute("SELECT id FROM sessions")}
        assert left == {"s0", "s1", "s3", "s8"}


@pytest.mark.parametrize("order", ["id", "updated"])
async def test_a_damaged_index_makes_no_list_go_on_for_ever(tmp_path: Path, order: str, monkeypatch):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        for id in "abc":
            await append(store, 0, "x", id=id)
        page = await store.sessions(order=order, limit=1)
        first = {"id": "FIRST_SESSIONS", "updated": "RECENT_SESSIONS"}[order]
        if order == "id":
            monkeypatch.setattr(statements, "NEXT_SESSIONS", statements.NEXT_SESSIONS.replace("id > ?", "(id > ? OR 1)"))  # fmt: skip
        else:
            changed = statements.RECENT_SESSIONS.replace("id > ?7", "(id > ?7 OR 1)").replace("updated_at < ?6 OR", "1 OR")  # fmt: skip
            monkeypatch.setattr(statements, first, changed)
        with pytest.raises(CorruptSessionError):
            await store.sessions(order=order, limit=1, cursor=page.cursor)


# Sizes and limits


async def test_the_size_is_that_of_what_is_stored(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        memory = MemoryStore()
        for each in (memory, store):
            one = await append(each, 0, "x" * 10, state={"a": 1})
            two = await append(each, 1, "y" * 20, state={"b": "é"}, expected_revision=one.revision)
            three = await append(each, 2, state={}, expected_revision=two.revision)
            await append(each, 2, "z")
            for id in ("b", "c"):
                await each.fork("a", id)
            await each.replace("b", messages=[Message.user("r")], state={}, metadata={"m": 1}, commit_id="r")
            await each.replace("c", messages=[], state={}, metadata={})
            assert three.count == 2
        sizes = [[(i.id, i.size) for i in (await each.sessions()).items] for each in (memory, store)]
        assert sizes[0] == sizes[1]
        assert (await memory.statistics()).size == (await store.statistics()).size
        assert (await store.verify()).damaged == ()


@pytest.mark.parametrize("known", [True, False], ids=["fast", "slow"])
async def test_limits_are_kept_in_the_way_that_an_append_takes(tmp_path: Path, known: bool):
    async with SQLiteStore(
        tmp_path / "a.db", durability="off", limits=SessionLimits(messages=3, size=300)
    ) as store:
        commit = await append(store, 0, "x")

        async def more(*texts, state=None):
            nonlocal commit
            options = {"expected_revision": commit.revision} if known else {}
            commit = await append(store, commit.count, *texts, state=state, **options)

        await more("y")
        (info,) = (await store.sessions()).items
        seen = statements_of(store)
        with pytest.raises(SessionTooLargeError) as caught:
            await more("a", "b")
        assert (caught.value.limit, caught.value.value, caught.value.actual) == ("messages", 3, 4)
        room = 300 - info.size
        with pytest.raises(SessionTooLargeError) as caught:
            await more("", state={"s": "x" * room})
        assert (caught.value.limit, caught.value.value) == ("size", 300)
        assert not any(line.startswith("INSERT") for line in seen)
        padding = room - len('{"s":""}') + len("{}")
        with pytest.raises(SessionTooLargeError) as caught:
            await more(state={"s": "x" * (padding + 1)})
        assert caught.value.actual == 301
        seen.clear()
        await more(state={"s": "x" * padding})
        assert (seen == FAST) == known
        store._writer.connection.set_trace_callback(None)
        assert (await store.sessions()).items[0].size == 300
        store.limits = SessionLimits(size=100, messages=1)
        await more(state={"s": "x" * (padding - 1)})  # no larger than it was
        with pytest.raises(SessionTooLargeError):
            await more(state={"s": "x" * padding})
        store.limits = SessionLimits()
        await more("x" * 1000, *"abcdef")


async def test_limits_beyond_all_measure_are_none(tmp_path: Path):
    limits = SessionLimits(messages=10**30, size=10**30)
    async with SQLiteStore(tmp_path / "a.db", durability="off", limits=limits) as store:
        commit = await append(store, 0, "x")
        for count in (-1, 0, 2, 2**63 - 1, 2**63, 2**70):
            with pytest.raises(ConflictError):
                await append(store, count, "y", expected_revision=commit.revision)
        seen = statements_of(store)
        await append(store, 1, "y", expected_revision=commit.revision)
        assert seen == FAST
        store._writer.connection.set_trace_callback(None)


async def test_of_many_that_write_at_once_none_passes_a_limit(tmp_path: Path):
    stores = [SQLiteStore(tmp_path / "a.db", limits=SessionLimits(messages=20, size=2000)) for _ in range(3)]

    async def turns(store, name):
        for number in range(30):
            snapshot = await store.load("a")
            try:
                await append(store, snapshot.count if snapshot else 0, f"{name}{number}" * 10)
            except ConflictError:
                continue
            except SessionTooLargeError:
                return number

    await asyncio.gather(*(turns(store, name) for store in stores for name in "abc"))
    (info,) = (await stores[0].sessions()).items
    assert info.count <= 20
    assert info.size <= 2000
    assert info.count > 10
    assert (await stores[0].verify()).damaged == ()
    for store in stores:
        await store.aclose()


# A commit in several parts


async def test_a_long_commit_is_one_commit_in_parts(tmp_path: Path):
    many = [str(number) for number in range(3 * PART + 7)]
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        one = await append(store, 0, *many, commit_id="first")
        db = store._writer.connection
        kept = db.execute(
            "SELECT rowid, count, commit_id, digest IS NULL FROM commits ORDER BY rowid"
        ).fetchall()
        assert kept == [
            (rows.rowid(1, 1), PART, None, 1),
            (rows.rowid(1, 2), 2 * PART, None, 1),
            (rows.rowid(1, 3), 3 * PART, None, 1),
            (rows.rowid(1, 4), len(many), "first", 0),
        ]
        assert (one.count, one.revision.rsplit("-")[-1]) == (len(many), "4")
        assert await append(store, 0, *many, commit_id="first") == one
        seen = statements_of(store)
        two = await append(store, one.count, *many, expected_revision=one.revision)
        assert seen == [*FAST[:2], *[FAST[2]] * 4, FAST[3]]
        store._writer.connection.set_trace_callback(None)
        three = await append(store, two.count, "last", expected_revision=two.revision)
        assert three.revision.rsplit("-")[-1] == "9"
        snapshot = await store.load("a")
        assert [message.text for message in snapshot.messages] == [*many, *many, "last"]
        for before in (None, 1, PART, PART + 1, len(many), len(many) + 1, 2 * len(many)):
            page = await store.tail("a", limit=5, before=before)
            end = 2 * len(many) + 1 if before is None else before
            assert [message.text for message in page.items] == [*many, *many, "last"][max(0, end - 5) : end]
        assert (await store.verify()).damaged == ()
        new = [Message.user(text) for text in many]
        four = await store.replace("a", messages=new, state={}, metadata={}, commit_id="second")
        assert four.revision.rsplit("-")[-1] == "13"
        assert [message.text for message in (await store.load("a")).messages] == many
        assert await append(store, 0, *many, commit_id="first") == one
        (left,) = db.execute("SELECT count(*) FROM commits").fetchone()
        assert left == 5, "the last part of the first one, for its id"
        assert (await store.verify()).damaged == ()


async def test_a_tail_reads_only_the_parts_it_needs(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        await append(store, 0, *map(str, range(20 * PART)))
        await store.tail("a", limit=3)
        asked = []
        store._reader.connection.set_trace_callback(asked.append)
        await store.tail("a", limit=3)
        await store.tail("a", limit=3, before=10 * PART + 1)
        store._reader.connection.set_trace_callback(None)
        spans = [text.split("BETWEEN ")[1].split(" ORDER")[0].split(" AND ") for text in asked if "BETWEEN" in text]  # fmt: skip
        assert [int(last) - int(first) + 1 for first, last in spans] == [1, 2]


async def test_parts_of_a_commit_do_not_run_over_the_last_number(tmp_path: Path, monkeypatch):
    from littleghost.errors import StoreError

    monkeypatch.setattr("littleghost.sessions.sqlite.writing.LAST_NUMBER", 7)
    async with SQLiteStore(tmp_path / "a.db", durability="off") as store:
        commit = await append(store, 0, *map(str, range(3 * PART)))
        with pytest.raises(StoreError, match="has 3 commits"):
            await append(store, commit.count, *map(str, range(5 * PART)), expected_revision=commit.revision)
        assert (await store.load("a")).count == commit.count
        await append(store, commit.count, *map(str, range(4 * PART)), expected_revision=commit.revision)


@pytest.mark.parametrize("moment", ["'text'", "9e999", "-9e999", "x'00'"])
async def test_a_time_that_is_damaged_hides_no_session_from_a_list(tmp_path: Path, moment: str):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        for id in ("a", "b"):
            await store.append(id, messages=[], state={}, metadata={}, expected_count=0)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"UPDATE sessions SET updated_at = {moment} WHERE id = 'b'")
        db.commit()
    async with SQLiteStore(path) as store:
        for actor in (None, ALL_ACTORS):
            with pytest.raises(CorruptSessionError):
                await store.sessions(actor_id=actor)
