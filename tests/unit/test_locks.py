"""Locks by key: fair, cancellable at any moment, across threads, loops and forks, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from littleghost import MemoryStore, SessionBusyError
from littleghost.locks import KeyedLocks


async def settle() -> None:
    """Let everything that is ready to run, run."""
    for _ in range(20):
        await asyncio.sleep(0)


class Holder:
    """A task that holds a key until it is told to let go."""

    def __init__(
        self, locks: KeyedLocks, key: Any, name: str, log: list[str], timeout: float | None = None
    ) -> None:
        self.name, self.log, self.go = name, log, asyncio.Event()
        self.task = asyncio.create_task(self._run(locks, key, timeout))

    async def _run(self, locks: KeyedLocks, key: Any, timeout: float | None) -> None:
        async with locks.hold(key, timeout):
            self.log.append(self.name)
            await self.go.wait()

    async def end(self) -> None:
        self.go.set()
        await self.task


async def test_first_come_first_served():
    locks, log = KeyedLocks(), []
    holders = []
    for name in "abcde":
        holders.append(Holder(locks, "k", name, log))
        await settle()
    assert log == ["a"]
    for holder, so_far in zip(holders, ["ab", "abc", "abcd", "abcde", "abcde"], strict=True):
        await holder.end()
        await settle()
        assert "".join(log) == so_far
    assert len(locks) == 0


async def test_who_comes_when_it_is_handed_over_does_not_jump_the_queue():
    locks, log = KeyedLocks(), []
    first, second = Holder(locks, "k", "first", log), Holder(locks, "k", "second", log)
    await settle()
    first.go.set()
    while not first.task.done():
        await asyncio.sleep(0)
    third = Holder(locks, "k", "third", log)
    await settle()
    assert log == ["first", "second"]
    await second.end()
    await third.end()
    assert log == ["first", "second", "third"]


async def test_keys_are_independent_and_leave_nothing():
    locks, log = KeyedLocks(), []
    holders = [
        Holder(locks, key, str(key), log) for key in (("a", "b:c"), ("a:b", "c"), (None, ""), ("", None))
    ]
    await settle()
    assert len(log) == len(locks) == 4
    for holder in holders:
        await holder.end()
    assert len(locks) == 0


async def test_an_error_inside_lets_go():
    locks = KeyedLocks()
    with pytest.raises(ZeroDivisionError):
        async with locks.hold("k"):
            raise ZeroDivisionError
    assert len(locks) == 0
    async with locks.hold("k", timeout=0):
        pass


async def test_not_waiting_is_decided_at_once():
    locks = KeyedLocks()
    async with locks.hold("k"):
        with pytest.raises(TimeoutError):
            locks.hold("k", timeout=0).__aenter__().send(None)  # its first step is its last


async def test_not_waiting_and_waiting_for_a_while():
    locks, log = KeyedLocks(), []
    holder = Holder(locks, "k", "holder", log)
    await settle()
    for timeout in (0, 0.01):
        with pytest.raises(TimeoutError):
            async with locks.hold("k", timeout):
                raise AssertionError
    assert len(locks) == 1
    await holder.end()
    async with locks.hold("k", timeout=0):
        assert len(locks) == 1
    assert len(locks) == 0


@pytest.mark.parametrize("which", [1, 2, 3])
async def test_a_waiter_that_is_cancelled_is_skipped(which: int):
    locks, log = KeyedLocks(), []
    holders = [Holder(locks, "k", str(number), log) for number in range(4)]
    await settle()
    holders[which].task.cancel()
    await settle()
    assert holders[which].task.cancelled()
    for number, holder in enumerate(holders):
        if number != which:
            await holder.end()
    assert log == [str(number) for number in range(4) if number != which]
    assert len(locks) == 0


@pytest.mark.parametrize("ticks", range(6))
async def test_a_waiter_that_is_cancelled_while_it_is_handed_over_passes_it_on(ticks: int):
    """At every step between the release and the wake-up of the next."""
    locks, log = KeyedLocks(), []
    first, second, third = (Holder(locks, "k", name, log) for name in ("first", "second", "third"))
    await settle()
    first.go.set()
    for _ in range(ticks):
        await asyncio.sleep(0)
    second.task.cancel()
    await settle()
    assert second.task.cancelled()
    assert log[-1] == "third"
    await third.end()
    assert len(locks) == 0


async def test_cancelling_the_holder_and_all_waiters_at_once_leaves_nothing():
    locks, log = KeyedLocks(), []
    holders = [Holder(locks, "k", str(number), log) for number in range(5)]
    await settle()
    for holder in holders:
        holder.task.cancel()
    await settle()
    assert all(holder.task.cancelled() for holder in holders)
    assert len(locks) == 0


def in_threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_one_holder_at_a_time_across_threads_and_their_loops():
    locks = KeyedLocks()
    inside, seen, total = 0, [], 0

    async def one() -> None:
        nonlocal inside, total
        async with locks.hold("k"):
            inside += 1
            seen.append(inside)
            value = total
            await asyncio.sleep(0)
            total = value + 1
            inside -= 1

    async def several() -> None:
        await asyncio.gather(*(one() for _ in range(25)))

    in_threads(6, lambda _: asyncio.run(several()))
    assert total == 150
    assert set(seen) == {1}
    assert len(locks) == 0


def test_a_loop_that_is_gone_is_passed_over():
    """A waiter whose loop was closed can neither take the lock nor keep it from the next."""
    locks = KeyedLocks()
    gone, holding = asyncio.new_event_loop(), asyncio.new_event_loop()
    held = locks.hold("k")
    holding.run_until_complete(held.__aenter__())
    waiting = locks._acquire("k", None)
    gone.run_until_complete(_started(waiting))
    gone.close()
    holding.run_until_complete(held.__aexit__(None, None, None))
    assert len(locks) == 0
    waiting.close()  # what the garbage collector does to it
    holding.run_until_complete(_hold_once(locks))
    holding.close()
    gc.collect()


async def _started(coroutine: Any) -> None:
    asyncio.get_running_loop()
    coroutine.send(None)


async def _hold_once(locks: KeyedLocks) -> None:
    async with locks.hold("k", timeout=0):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_after_a_fork_the_child_starts_with_no_key_held():
    locks = KeyedLocks()

    async def main() -> int:
        async with locks.hold("k"):
            child = multiprocessing.get_context("fork").Process(target=_child, args=(locks,))
            _start(child)
            await asyncio.to_thread(child.join)
            assert len(locks) == 1
        assert len(locks) == 0
        return child.exitcode if child.exitcode is not None else -1

    assert asyncio.run(main()) == 0


def _start(child: Any) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
        child.start()


def _child(locks: KeyedLocks) -> None:
    # A loop of its own: the inherited one is marked as running.
    asyncio.events._set_running_loop(None)
    code = 1
    try:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(_hold_once(locks))
        loop.close()
        code = len(locks)
    finally:
        sys.stdout.flush()
        os._exit(code)


async def test_a_store_tells_who_held_it_by_its_own_error():
    store, inside = MemoryStore(), asyncio.Event()

    async def hold() -> None:
        async with store.synchronize("s", actor_id="a"):
            inside.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    await inside.wait()
    with pytest.raises(SessionBusyError) as caught:
        async with store.synchronize("s", actor_id="a", timeout=0):
            raise AssertionError
    assert caught.value.id == "s"
    for key in (("s", None), ("a", "s"), ("s", "b")):
        async with store.synchronize(key[0], actor_id=key[1], timeout=0):
            pass
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    assert len(store._locks()) == 0
