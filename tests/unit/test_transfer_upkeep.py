"""Verifying a store, deleting what is old, and doing so for as long as a service runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from littleghost import (
    ALL_ACTORS,
    DataError,
    MemoryStore,
    Message,
    SessionStore,
    SQLiteStore,
    StoreUnavailableError,
    UnsupportedError,
    expire_sessions,
    open_store,
    retention,
    sync,
    verify_sessions,
)
from littleghost.sessions import upkeep
from littleghost.sessions.contract import Verified
from littleghost.testing import FaultyStore

Make = Callable[[], SessionStore]

DAY = 86400.0


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionStore]:
    if request.param == "postgres":
        made = open_store(request.getfixturevalue("new_postgres_url")())
    else:
        made = (
            MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db", durability="off")
        )
    yield made
    await made.aclose()


def tasks() -> set[asyncio.Task[Any]]:
    """All but those of a store, which completes what was cancelled too late."""
    return {task for task in asyncio.all_tasks() if "Pool." not in repr(task.get_coro())}


async def fill(store: SessionStore, number: int, *, days: float, actor: str | None = None) -> None:
    then = time.time() - days * DAY
    for at in range(number):
        await store.restore(
            f"{days}-{at:03}",
            messages=[Message.user("x")],
            state={},
            metadata={},
            created_at=then,
            updated_at=then,
            actor_id=actor,
        )


async def left(store: SessionStore) -> int:
    return len((await store.sessions(actor_id=ALL_ACTORS, limit=1000)).items)


async def until(there: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not there():
            await asyncio.sleep(0.001)


class Circling(MemoryStore):
    async def verify(self, *, limit: int = 100, cursor: str | None = None) -> Verified:
        return Verified(checked=1, cursor="here")


class Nothing(SessionStore):
    async def load(self, id: str, *, actor_id: str | None = None) -> Any: ...
    async def append(self, id: str, **options: Any) -> Any: ...
    async def replace(self, id: str, **options: Any) -> Any: ...


# Verifying


async def test_every_session_is_checked_once(store: SessionStore):
    await fill(store, 25, days=1)
    await fill(store, 5, days=1, actor="bob")
    steps = [step async for step in verify_sessions(store, batch=7)]
    assert sum(step.checked for step in steps) == 30
    assert max(step.checked for step in steps) <= 7
    assert [step.damaged for step in steps if step.damaged] == []


async def test_an_empty_store_is_whole(store: SessionStore):
    assert sum([step.checked async for step in verify_sessions(store)]) == 0


async def test_damage_does_not_end_it():
    store = MemoryStore()
    await fill(store, 10, days=1, actor="bob")
    for at in (3, 7):
        kept = store._kept["bob", f"1-{at:03}"]
        kept.state = b"["
    steps = [step async for step in verify_sessions(store, batch=4)]
    damaged = [damage for step in steps for damage in step.damaged]
    assert sum(step.checked for step in steps) == 10
    assert [(damage.actor_id, damage.id) for damage in damaged] == [("bob", "1-003"), ("bob", "1-007")]
    assert all("cannot be read" in damage.problem for damage in damaged)


async def test_a_store_that_verifies_in_circles_is_found_out():
    with pytest.raises(Exception, match="over and over"):
        [step async for step in verify_sessions(Circling())]


# Expiring


async def test_what_is_old_goes_in_steps_and_the_rest_stays(store: SessionStore):
    await fill(store, 25, days=40)
    await fill(store, 5, days=31, actor="bob")
    await fill(store, 4, days=29, actor="bob")
    assert [number async for number in expire_sessions(store, expire_after=timedelta(days=30), batch=10)] == [
        10,
        10,
        10,
    ]
    assert await left(store) == 4
    assert [number async for number in expire_sessions(store, expire_after=30 * DAY)] == []
    assert [number async for number in expire_sessions(store, expire_after=28 * DAY)] == [4]


async def test_it_can_be_stopped_between_two_steps(store: SessionStore):
    await fill(store, 25, days=40)
    steps = expire_sessions(store, expire_after=DAY, batch=10, pause=1000.0)
    assert await anext(steps) == 10
    task = asyncio.ensure_future(anext(steps))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await left(store) == 15


@pytest.mark.parametrize("never", [0, -1, timedelta(0), timedelta(days=-1), float("nan"), "30d", None, True])
async def test_a_time_that_would_expire_everything_is_refused_at_once(never: Any):
    store = MemoryStore()
    with pytest.raises(DataError, match="expire_after"):
        expire_sessions(store, expire_after=never)
    with pytest.raises(DataError, match="expire_after"):
        async with retention(store, expire_after=never):
            raise AssertionError
    with pytest.raises(DataError, match="limit"):
        expire_sessions(store, expire_after=1, batch=0)


async def test_a_missing_capability_is_named_at_once():
    store = Nothing()
    with pytest.raises(UnsupportedError, match="expire_sessions needs the capability expire, which Nothing"):
        expire_sessions(store, expire_after=1)
    with pytest.raises(UnsupportedError, match="retention needs the capability expire, which Nothing"):
        async with retention(store, expire_after=1):
            raise AssertionError
    with pytest.raises(
        UnsupportedError, match="verify_sessions needs the capability sessions, which Nothing"
    ):
        verify_sessions(store)


# For as long as a service runs


async def test_a_service_deletes_what_expires_while_it_runs(store: SessionStore):
    await fill(store, 30, days=40)
    watched = FaultyStore(store)
    before = tasks()
    async with retention(watched, expire_after=timedelta(days=30), every=0.01, batch=20, pause=0):
        await until(lambda: watched.calls.count("expire") >= 3)
        assert await left(store) == 0
        await fill(store, 1, days=31)
        seen = watched.calls.count("expire")
        await until(lambda: watched.calls.count("expire") >= seen + 2)
        assert await left(store) == 0
    assert tasks() == before
    await fill(store, 1, days=31)
    await asyncio.sleep(0.05)
    assert await left(store) == 1


async def test_what_goes_wrong_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture):
    store = MemoryStore()
    await fill(store, 3, days=40)
    faulty = (
        FaultyStore(store).fail("expire", 1).fail("expire", 2, error=ValueError("a mistake of the store's"))
    )
    with caplog.at_level(logging.INFO, "littleghost"):
        async with retention(faulty, expire_after=DAY, every=0.01):
            await until(lambda: not store._kept)
            await until(lambda: "deleted 3" in caplog.text)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "ERROR", "INFO"]
    assert {record.name for record in caplog.records} == {"littleghost"}
    assert caplog.records[1].exc_info[0] is ValueError  # type: ignore[index]
    assert "tried again" in caplog.records[0].getMessage()


async def test_an_error_of_the_block_is_the_block_s():
    with pytest.raises(StoreUnavailableError, match="mine"):
        async with retention(MemoryStore(), expire_after=DAY):
            raise StoreUnavailableError("mine")


@pytest.mark.parametrize("every", [0, -1, float("nan"), "1h", timedelta(0)])
async def test_an_interval_that_makes_no_sense_is_refused(every: Any):
    with pytest.raises(DataError, match="every"):
        async with retention(MemoryStore(), expire_after=DAY, every=every):
            raise AssertionError


async def test_a_sweep_that_hangs_does_not_keep_the_service_from_ending(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upkeep, "GRACE", 0.01)
    faulty = FaultyStore(MemoryStore()).hang("expire")
    async with retention(faulty, expire_after=DAY):
        await until(lambda: "expire" in faulty.calls)


async def test_a_step_under_way_ends_before_the_service_does_and_no_other_begins():
    store = MemoryStore()
    await fill(store, 30, days=40)
    slow = FaultyStore(store).delay("expire", 1, seconds=0.2)
    async with retention(slow, expire_after=DAY, batch=10, pause=0):
        await until(lambda: "expire" in slow.calls)
    assert slow.calls == ["expire"]
    assert await left(store) == 20


async def test_a_service_that_is_cancelled_while_it_ends_is_cancelled():
    entered = asyncio.Event()

    async def service() -> None:
        async with retention(MemoryStore(), expire_after=DAY):
            entered.set()
            await asyncio.sleep(1000)

    before = tasks()
    task = asyncio.create_task(service())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tasks() == before


async def test_the_synchronous_face_does_the_same():
    store = sync.MemoryStore()
    await fill(store.store, 30, days=40)
    assert sum(step.checked for step in sync.verify_sessions(store, batch=7)) == 30
    assert list(sync.expire_sessions(store, expire_after=DAY, batch=20)) == [20, 10]
    await fill(store.store, 30, days=40)
    with sync.retention(store, expire_after=timedelta(days=1), every=0.01):
        give_up = time.monotonic() + 30
        while store.statistics().sessions:
            assert time.monotonic() < give_up
            time.sleep(0.001)
    with pytest.raises(UnsupportedError), sync.retention(Nothing(), expire_after=1):
        raise AssertionError
