"""What is MemoryStore's own; the contract is tested by the kit."""

from __future__ import annotations

import asyncio
import tempfile
import threading

import pytest

from littleghost.errors import ConflictError, CorruptSessionError, DataError
from littleghost.message import Message
from littleghost.sessions.commits import unpack_bodies, unpack_object, window
from littleghost.sessions.contract import ANY
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.sqlite import SQLiteStore


async def write(store, count, *texts, id="a", **options):
    messages = [Message.user(text) for text in texts]
    return await store.append(id, messages=messages, state={}, metadata={}, expected_count=count, **options)


async def test_two_stores_share_nothing():
    one, two = MemoryStore(), MemoryStore()
    await write(one, 0, "x")
    assert await two.load("a") is None


async def test_refuses_itself_what_cannot_be_stored():
    store = MemoryStore()
    with pytest.raises(DataError) as caught:
        await store.append("a", messages=[], state={"n": [float("nan")]}, metadata={}, expected_count=0)
    assert caught.value.path == "state.n[0]"
    for id, actor in (("\ud800", None), ("a", "\udfff"), (1, None), ("a", 1)):
        with pytest.raises(DataError):
            await store.load(id, actor_id=actor)
    assert await store.load("a") is None


def test_many_threads_and_loops_lose_nothing():
    store = MemoryStore()

    async def turns(name: str) -> None:
        for number in range(40):
            while True:
                snapshot = await store.load("a")
                try:
                    await write(store, snapshot.count if snapshot else 0, f"{name}{number}")
                    break
                except ConflictError:
                    await asyncio.sleep(0)

    threads = [threading.Thread(target=asyncio.run, args=(turns(name),)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = asyncio.run(store.load("a")).messages
    assert len({message.text for message in messages}) == len(messages) == 160


async def test_a_conflict_carries_what_was_expected_and_found():
    store = MemoryStore()
    with pytest.raises(ConflictError) as caught:
        await write(store, 3, "x")
    assert (caught.value.expected, caught.value.actual) == (3, None)
    commit = await write(store, 0, "x")
    with pytest.raises(ConflictError) as caught:
        await write(store, 1, "x", expected_revision="other")
    assert (caught.value.expected, caught.value.actual) == ("other", commit.revision)


async def test_a_new_id_is_not_searched_for_where_the_revision_is_checked():
    """The ordinary commit costs no search: one that repeats an id cannot have the present revision."""
    store = MemoryStore()
    first = await write(store, 0, "x", commit_id="one")
    kept = store._kept[None, "a"]
    searched = []

    class Watched(dict):
        def get(self, key, default=None):
            searched.append(key)
            return dict.get(self, key, default)

    kept.commits = Watched(kept.commits)
    second = await write(store, 1, "y", commit_id="two", expected_revision=first.revision)
    assert searched == []
    await write(store, 2, "z", commit_id="three", expected_revision=ANY)
    assert await write(store, 1, "y", commit_id="two", expected_revision=first.revision) == second
    assert searched == ["three", "two"]


async def test_what_is_written_while_a_reader_decodes_is_not_in_its_snapshot(monkeypatch: pytest.MonkeyPatch):
    from littleghost.sessions import memory

    store = MemoryStore()
    await write(store, 0, "x")
    decode = memory.unpack_bodies

    def slowly(bodies, count):
        threading.Thread(target=lambda: asyncio.run(write(store, 1, "y"))).start()
        while store._kept[None, "a"].head.count == 1:
            pass
        return decode(bodies, count)

    monkeypatch.setattr(memory, "unpack_bodies", slowly)
    assert (await store.load("a")).count == 1


def test_bodies_that_are_damaged_are_no_history():
    good = b'[{"role":"user","content":[{"type":"text","text":"x"}],"metadata":{}}]'
    assert [message.text for message in unpack_bodies([good, b"", b"[]", good], 2)] == ["x", "x"]
    for bodies, count in (
        ([good], 2),
        ([good], 0),
        ([], 1),
        ([good[:-9]], 1),
        ([b"[null]"], 1),
        ([b"[\xff]"], 1),
    ):
        with pytest.raises(CorruptSessionError):
            unpack_bodies(bodies, count)
    for raw in (b"[]", b"{", b"", b"null", b'{"a":\xff}'):
        with pytest.raises(CorruptSessionError):
            unpack_object(raw, "state")


def test_windows():
    assert window(10, 3, None) == (7, 10)
    assert window(10, 3, 2) == (0, 2)
    assert window(10, 3, 99) == (7, 10)
    assert window(10, 3, -1) == (0, 0)
    assert window(0, 3, None) == (0, 0)
    with pytest.raises(DataError):
        window(10, 0, None)


@pytest.mark.parametrize("store", [MemoryStore, lambda: SQLiteStore(tempfile.mkdtemp() + "/a.db")])
async def test_numbers_beyond_all_bounds_are_refused_by_name(store):
    huge = 10**400
    async with store() as kept:
        for name, call in {
            "since": lambda: kept.sessions(since=huge),
            "until": lambda: kept.sessions(until=-huge),
            "expire_after": lambda: kept.expire(expire_after=huge),
            "updated_at": lambda: kept.restore("a", messages=[], state={}, metadata={}, updated_at=huge),
            "created_at": lambda: kept.restore("a", messages=[], state={}, metadata={}, created_at=-huge),
        }.items():
            with pytest.raises(DataError, match=name):
                await call()
        assert (await kept.sessions(limit=huge)).items == ()
        assert await kept.expire(expire_after=1, limit=huge) == 0
        assert (await kept.tail("a", limit=huge)).items == ()
