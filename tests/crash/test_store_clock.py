"""Clocks that are set back and forward under a store.

The client's clock is `time.time` of this process. SQLite has no other one; the clock of a PostgreSQL server cannot be set from here, so
there it is tested that the client's does not matter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from places import Place, append, place, server, texts

from littleghost import ALL_ACTORS, Message, Session, SessionBusyError, SessionStore

__all__ = ["place", "server"]

HOUR, DAY = 3600.0, 86400.0
Step = Callable[[float], None]


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Step:
    """Sets this process's clock so many seconds off."""
    real = time.time
    off = 0.0

    def now() -> float:
        return real() + off

    def by(seconds: float) -> None:
        nonlocal off
        off = seconds

    monkeypatch.setattr(time, "time", now)
    return by


async def by_time(store: SessionStore, **asked) -> list[str]:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.sessions(order="updated", limit=2, cursor=cursor, actor_id=ALL_ACTORS, **asked)
        found += [info.id for info in page.items]
        assert len(found) < 100
        if page.cursor is None:
            return found
        cursor = page.cursor


async def test_a_clock_that_jumps_changes_no_order_of_commits(place: Place, step: Step):
    async with place.open() as store:
        session, revisions = Session(id="a", store=store), set[str | None]()
        for number, seconds in enumerate([0, -DAY, DAY, -HOUR, 0, -10 * DAY, 1, -1]):
            step(seconds)
            revisions.add((await session.append(Message.user(f"{number}"), state={"n": number})).revision)
        assert len(revisions) == 8
        assert await texts(store, "a") == [str(number) for number in range(8)]
        (info,) = (await store.sessions()).items
        assert info.created_at is not None
        assert info.updated_at is not None
        await store.delete("a")
        step(-DAY)
        again = await append(store, "a", "anew", count=0)
        assert again.revision not in revisions


async def test_a_list_by_time_ends_and_has_each_session_once(place: Place, step: Step):
    async with place.open() as store:
        names = [f"s{number}" for number in range(9)]
        for number, name in enumerate(names):
            step([0, -DAY, DAY][number % 3])
            await append(store, name, "x", count=0)
        assert sorted(await by_time(store)) == names
        step(-DAY)
        page = await store.sessions(order="updated", limit=4, actor_id=ALL_ACTORS)
        step(DAY)
        rest = await store.sessions(order="updated", limit=100, cursor=page.cursor, actor_id=ALL_ACTORS)
        assert sorted(info.id for info in (*page.items, *rest.items)) == names


async def test_a_clock_that_is_behind_expires_nothing_that_is_young(place: Place, step: Step):
    async with place.open() as store:
        for name in "abc":
            await append(store, name, "x", count=0)
        step(-DAY)
        assert await store.expire(expire_after=HOUR) == 0
        await append(store, "c", "y", count=1)
        assert await store.expire(expire_after=HOUR) == 0
        assert [await texts(store, name) for name in "abc"] == [["x"], ["x"], ["x", "y"]]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_on_a_file_the_clock_of_who_expires_decides(place: Place, step: Step):
    async with place.open() as store:
        await append(store, "old", "x", count=0)
        step(2 * HOUR)
        await append(store, "young", "x", count=0)
        assert await store.expire(expire_after=HOUR) == 1
        assert (await texts(store, "old"), await texts(store, "young")) == ([], ["x"])


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_on_a_server_the_clock_of_a_client_does_not_matter(place: Place, step: Step):
    async with place.open() as store:
        real = time.time()
        step(-30 * DAY)
        await append(store, "a", "x", count=0)
        step(30 * DAY)
        assert await store.expire(expire_after=HOUR) == 0
        (info,) = (await store.sessions()).items
        assert abs(info.updated_at - real) < 60


async def test_a_clock_that_jumps_ends_no_lease_and_gives_none_twice(place: Place, step: Step):
    async with place.open() as store, place.open() as other:
        for seconds in (0, DAY, -DAY, 30 * DAY):
            async with store.lease("a") as lease:
                step(seconds)
                await asyncio.sleep(0.2)
                with pytest.raises(SessionBusyError):
                    async with other.lease("a", timeout=0.1):
                        pass
                count = len(await texts(store, "a"))
                await append(store, "a", "x", count=count, lease=lease)
            async with other.lease("a", timeout=5):
                pass
