"""One store object in many hands: forked children, threads, and event loops that come and go."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from places import Place, append, place, server, start, texts

from littleghost import ConflictError, Message, Session, SessionStore

__all__ = ["place", "server"]

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


async def turns(store: SessionStore, name: str, numbers: range) -> None:
    """Append in a session that others append to, and in one's own."""
    shared, own = Session(id="shared", store=store), Session(id=name, store=store)
    for number in numbers:
        await shared.update(lambda _, number=number: ([Message.user(f"{name} {number}")], {}), attempts=1000)
        await own.append(Message.user(f"{number}"))


async def check(place: Place, names: list[str], count: int) -> None:
    async with place.open() as store:
        found = await texts(store, "shared")
        for name in names:
            mine = [text for text in found if text.startswith(f"{name} ")]
            assert mine == [f"{name} {number}" for number in range(count)]
            assert await texts(store, name) == [str(number) for number in range(count)]
        assert len(found) == len(names) * count


async def test_threads_with_loops_of_their_own_share_a_store(place: Place):
    store = place.store()
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for first in (0, 5):  # two loops, one after the other
                asyncio.run(turns(store, name, range(first, first + 5)))
        except BaseException as error:
            failures.append(error)

    names = [f"t{number}" for number in range(8)]
    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    await turns(store, "main", range(10))
    for thread in threads:
        await asyncio.to_thread(thread.join, 60)
        assert not thread.is_alive()
    assert failures == []
    await store.aclose()
    await check(place, ["main", *names], 10)


async def test_a_loop_that_is_closed_in_the_midst_hurts_no_other(place: Place):
    """Whoever waited there is gone; what it asked for is done or not, and its connection is no one's."""
    store = place.store()

    def dies(name: str) -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(append(store, name, "x", count=0))
        for _ in range(3):
            loop.call_soon(loop.stop)
            loop.run_forever()
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()

    names = [f"d{number}" for number in range(20)]
    for name in names:
        thread = threading.Thread(target=dies, args=(name,), daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, 30)
        assert not thread.is_alive()
        async with asyncio.timeout(20):
            await append(store, f"{name} after", "y", count=0)
    for name in names:
        assert await texts(store, name) in ([], ["x"])
        assert await texts(store, f"{name} after") == ["y"]
    await store.aclose()


FORKS = """
store = open_store(url)
children = []

async def before():
    await append(store, "shared", "parent", count=0)
    assert await texts(store, "shared") == ["parent"]

async def turns(name):
    shared = Session(id="shared", store=store)
    for number in range(8):
        await shared.update(lambda _: ([Message.user(f"{name} {number}")], {}), attempts=1000)
    async with store.lease("shared", timeout=60):
        assert f"{name} 7" in await texts(store, "shared")
    if int(name) % 2:
        await store.aclose()

asyncio.run(before())
for name in "0123":
    pid = os.fork()
    if pid == 0:
        asyncio.run(turns(name))
        os._exit(0)
    children.append(pid)
asyncio.run(turns("4"))
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
say("done")
"""


@posix
async def test_forked_children_share_what_their_parent_opened(place: Place):
    process = start(FORKS, place.url)
    out, err = process.communicate(timeout=100)
    assert not process.returncode, err
    async with place.open() as store:
        found = await texts(store, "shared")
    assert found[0] == "parent"
    assert sorted(found[1:]) == sorted(f"{name} {number}" for name in "01234" for number in range(8))
    assert out == '["done"]\n'


FORKS_WHILE_WRITING = """
store = open_store(url)
stop, written = threading.Event(), []

async def keep_writing():
    number = 0
    while not stop.is_set():
        await append(store, "parent", f"{number}", count=number)
        number += 1
        written.append(number)

thread = threading.Thread(target=asyncio.run, args=(keep_writing(),))
thread.start()
while len(written) < 5:
    time.sleep(0.01)
children = []
for name in range(6):
    pid = os.fork()
    if pid == 0:
        async def child():
            for number in range(5):
                await append(store, f"c{name}", f"{number}", count=number)
            assert len(await texts(store, "parent")) >= 5
        asyncio.run(child())
        os._exit(0)
    children.append(pid)
    time.sleep(0.02)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
before = len(written)
while len(written) < before + 5:
    time.sleep(0.01)
stop.set()
thread.join()
say(len(written))
"""


@posix
async def test_forking_in_the_midst_of_writing_hurts_nobody(place: Place):
    process = start(FORKS_WHILE_WRITING, place.url)
    out, err = process.communicate(timeout=100)
    assert not process.returncode, err
    async with place.open() as store:
        assert await texts(store, "parent") == [str(number) for number in range(int(out.strip().strip("[]")))]
        for name in range(6):
            assert await texts(store, f"c{name}") == [str(number) for number in range(5)]


async def test_two_store_objects_and_one_session(place: Place):
    """Two Session objects of one conversation: each sees the other's commits, and never writes over them."""
    async with place.open() as one, place.open() as other:
        first, second = Session(id="a", store=one), Session(id="a", store=other)
        await first.append(Message.user("1"))
        await second.append(Message.user("2"))
        with pytest.raises(ConflictError):
            await first.append(Message.user("lost"))
        await first.reload()
        await first.append(Message.user("3"))
        assert await texts(other, "a") == ["1", "2", "3"]
