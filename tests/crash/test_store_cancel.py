"""A store's calls cancelled at every point where they wait: what they do happens whole or not at all, and nothing leaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

import pytest
from places import Place, append, place, server, texts

from littleghost import Message, Session, SessionStore

__all__ = ["place", "server"]

AFTER = (None, 0.0, 0.001, 0.005)
"""How long after a coroutine has begun to wait it is cancelled: at once, after a turn of the loop, after so many seconds."""
MOST = 60

Call = Callable[[SessionStore, str], Awaitable[Any]]


class CancelledAt:
    """Runs a coroutine, and cancels the task at its ``number``-th suspension.

    Attributes:
        waited: How often it was suspended.
    """

    def __init__(self, work: Awaitable[Any], number: int, after: float | None) -> None:
        self._work, self._number, self._after = work, number, after
        self.waited = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self._work.__await__()
        answer: Any = None
        failure: BaseException | None = None
        while True:
            try:
                waits_for = inner.throw(failure) if failure is not None else inner.send(answer)
            except StopIteration as end:
                return end.value
            self.waited += 1
            if self.waited == self._number:
                self._cancel()
            answer = failure = None
            try:
                answer = yield waits_for
            except BaseException as error:
                failure = error

    def _cancel(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._after is None:
            task.cancel()
        elif self._after == 0:
            asyncio.get_running_loop().call_soon(task.cancel)
        else:
            asyncio.get_running_loop().call_later(self._after, task.cancel)


async def cancelled_at(work: Awaitable[Any], number: int, after: float | None) -> tuple[int, bool]:
    """Run ``work`` and cancel it; return how often it waited, and whether it came to its end all the same."""
    step = CancelledAt(work, number, after)

    async def run() -> None:
        await step

    task = asyncio.create_task(run())
    with suppress(asyncio.CancelledError):
        await task
    return step.waited, not task.cancelled()


async def _look(store: SessionStore, id: str) -> None:
    await store.load(id)


async def _listed(store: SessionStore, id: str) -> None:
    await store.sessions(limit=3)


async def _tail(store: SessionStore, id: str) -> None:
    await store.tail(id, limit=1)


async def _held(store: SessionStore, id: str) -> None:
    async with store.lease(id, timeout=5):
        await append(store, id, "new", count=2, state={"n": 1})


async def _turn(store: SessionStore, id: str) -> None:
    await Session(id=id, store=store).update(lambda _: ([Message.user("new")], {"n": 1}))


async def _append(store: SessionStore, id: str) -> None:
    await append(store, id, "new", count=2, state={"n": 1}, commit_id="new")


async def _many(store: SessionStore, id: str) -> None:
    """A commit of several parts."""
    await append(store, id, *[f"new {number}" for number in range(600)], count=2, state={"n": 1})


async def _replace(store: SessionStore, id: str) -> None:
    await store.replace(id, messages=[Message.user("new")], state={"n": 1}, metadata={})


async def _delete(store: SessionStore, id: str) -> None:
    await store.delete(id)


async def _fork(store: SessionStore, id: str) -> None:
    await store.fork(id, f"{id} fork", at=1)


OLD = ["one", "two"]
CALLS: dict[str, tuple[Call, list[str]]] = {
    "load": (_look, OLD),
    "sessions": (_listed, OLD),
    "tail": (_tail, OLD),
    "append": (_append, [*OLD, "new"]),
    "append of many": (_many, [*OLD, *[f"new {number}" for number in range(600)]]),
    "replace": (_replace, ["new"]),
    "delete": (_delete, []),
    "fork": (_fork, OLD),
    "lease": (_held, [*OLD, "new"]),
    "update": (_turn, [*OLD, "new"]),
}


@pytest.fixture
async def store(place: Place) -> AsyncGenerator[SessionStore]:
    async with place.open() as opened:
        yield opened


@pytest.mark.parametrize("name", CALLS)
async def test_cancelled_at_every_wait(store: SessionStore, name: str):
    call, new = CALLS[name]
    seen: set[bool] = set()
    for after in AFTER:
        for number in range(1, MOST):
            id = f"{name} {after} {number}"
            await append(store, id, *OLD, count=0)
            waited, _ = await cancelled_at(call(store, id), number, after)
            # What was cancelled too late is done before anything that is asked for afterwards.
            found = await texts(store, id)
            assert found in (OLD, new), id
            if name == "fork":
                assert await texts(store, f"{id} fork") in ([], OLD[:1])
            snapshot = await store.load(id)
            if found and new != OLD:
                assert snapshot.state == ({"n": 1} if found == new else {})
            seen.add(found == new)
            # Nobody holds what the cancelled one held, and its place is free.
            async with asyncio.timeout(20), store.lease(id, timeout=10):
                await append(store, id, "later", count=len(found))
            if waited < number:
                break
        else:
            pytest.fail(f"{name} waits more than {MOST} times")
    assert True in seen


async def test_a_session_object_goes_on_after_a_cancelled_write(store: SessionStore):
    """It does not know whether its write took place, and finds out by itself; what it then writes is there once."""
    for after in AFTER:
        for number in range(1, MOST):
            id = f"{after} {number}"
            session = Session(id=id, store=store)
            await session.append(Message.user("one"))
            write = session.append(Message.user("two"), state={"n": 1})
            waited, ended = await cancelled_at(write, number, after)
            if number % 2:
                await session.append(Message.user("two"), state={"n": 1})  # a retry
                assert await texts(store, id) == ["one", "two", *(["two"] if ended else [])]
            else:
                await session.append(Message.user("three"))
                assert await texts(store, id) in (["one", "two", "three"], ["one", "three"])
            assert [message.text for message in await session.history()] == await texts(store, id)
            if waited < number:
                break
        else:
            pytest.fail(f"an append waits more than {MOST} times")


async def test_a_thousand_cancelled_calls_leak_nothing(store: SessionStore):
    await append(store, "a", "one", count=0)

    async def one(number: int) -> None:
        call = [_look, _tail, _listed, _append, _turn][number % 5]
        with suppress(TimeoutError):
            async with asyncio.timeout(number % 13 / 1000):
                await call(store, f"{number}")

    for _ in range(4):
        await asyncio.gather(*[one(number) for number in range(250)], return_exceptions=True)
    async with asyncio.timeout(30):
        await asyncio.gather(*[append(store, f"after {number}", "x", count=0) for number in range(100)])
        assert await texts(store, "a") == ["one"]
        assert [await texts(store, f"after {number}") for number in range(100)] == [["x"]] * 100
