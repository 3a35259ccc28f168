"""Clients and servers killed in the midst of writing: what was acknowledged is there, once and in its order, and work goes on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from places import Place, place, server, start, texts
from tests.postgres import PostgresServer

from littleghost import Message, Session, SessionBusyError, SessionStore, StoreUnavailableError

__all__ = ["place", "server"]

WRITER = """
book = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

async def turns(store, name):
    session = Session(id=name, store=store)
    number = (await session.state()).get("n", 0)
    while True:
        number += 1
        long = Message.assistant("x" * (number * 997 % 12000))
        messages = [Message.user(f"{number}"), long, Message.user(f"{number}")]
        if number % 7:
            await session.append(messages, state={"n": number})
        else:
            await session.replace([*await session.history(), *messages], state={"n": number})
        os.write(book, f"{name} {number}{chr(10)}".encode())

async def main():
    store = open_store(url)
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(turns(store, f"{sys.argv[3]}-{number}"))
        say("ready")
asyncio.run(main())
"""


async def test_clients_killed_at_random_moments_lose_nothing(place: Place, tmp_path: Path):
    book = tmp_path / "book"
    chance = random.Random()
    for _ in range(5):
        processes = [start(WRITER, place.url, book, name) for name in "ab"]
        for process in processes:
            assert process.stdout.readline() == '["ready"]\n', process.communicate()
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.communicate()
        told: dict[str, int] = defaultdict(int)
        for line in book.read_text().splitlines():
            name, number = line.split()
            told[name] = max(told[name], int(number))
        async with place.open() as store:
            for name in [f"{process}-{number}" for process in "ab" for number in range(6)]:
                await asyncio.sleep(0)
                snapshot = await store.load(name)
                last = snapshot.state["n"] if snapshot else 0
                # One for each kill may be there whose answer nobody lived to write down.
                assert told[name] <= last <= told[name] + 5, name
                found = [message.text for message in snapshot.messages] if snapshot else []
                assert found[::3] == found[2::3] == [str(number + 1) for number in range(last)]
    assert sum(told.values()) > 50


async def test_who_is_killed_lets_go_of_its_lease(place: Place):
    code = """
async def main():
    store = open_store(url)
    async with store.lease("a"):
        await append(store, "a", "killed", count=0)
        say("held")
        time.sleep(3600)
asyncio.run(main())
"""
    process = start(code, place.url)
    assert process.stdout.readline() == '["held"]\n', process.communicate()
    async with place.open() as store:
        with pytest.raises(SessionBusyError):
            async with store.lease("a", timeout=0):
                pass
        process.kill()
        process.communicate()
        async with store.lease("a", timeout=60):
            assert await texts(store, "a") == ["killed"]


def kill_all(server: PostgresServer) -> None:
    """Kill the server and each process it has started, as when its machine is switched off."""
    postmaster = server.pid
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == postmaster:
                os.kill(int(folder.name), signal.SIGKILL)
    os.kill(postmaster, signal.SIGKILL)


FAULTS: dict[str, Callable[[PostgresServer], None]] = {
    "stopped at once": lambda server: server.stop("immediate"),
    "killed with its backends": kill_all,
    "shut down": lambda server: server.stop("fast"),
}


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
@pytest.mark.parametrize("how", FAULTS)
async def test_a_server_that_ends_while_all_write(place: Place, how: str):
    """The same call again is a retry: each turn is there once, and nothing is raised but `StoreUnavailableError`."""
    assert place.server is not None
    goes_on = True
    done: dict[str, int] = {}

    async def turns(store: SessionStore, name: str) -> None:
        session = Session(id=name, store=store)
        number = 0
        while goes_on:
            try:
                await session.append(Message.user(f"{number}"), state={"n": number})
            except StoreUnavailableError:
                await asyncio.sleep(0.02)
            else:
                number += 1
        done[name] = number

    async with place.open() as store:
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(turns(store, f"s{number}"))
            for _ in range(3):
                await asyncio.sleep(0.3)
                pid = place.server.pid
                await asyncio.to_thread(FAULTS[how], place.server)
                await asyncio.sleep(0.1)
                await asyncio.to_thread(place.server.start)
                assert place.server.pid != pid
            await asyncio.sleep(0.3)
            goes_on = False
        for name, count in done.items():
            assert count > 5
            # The last one may have been under way.
            found = await texts(store, name)
            assert found[:count] == [str(number) for number in range(count)]
            assert found[count:] in ([], [str(count)])


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_a_server_that_is_away_is_an_error_and_no_empty_history(place: Place):
    assert place.server is not None
    place.url += "&acquire_timeout=1"
    async with place.open() as store:
        session = Session(id="a", store=store)
        await session.append(Message.user("one"))
        place.server.stop()
        try:
            began = time.monotonic()
            for call in (store.load("a"), store.sessions(), store.tail("a", limit=1), session.reload()):
                with pytest.raises(StoreUnavailableError):
                    await call
            with pytest.raises(StoreUnavailableError):
                await Session(id="b", store=store).append(Message.user("one"))
            assert time.monotonic() - began < 90
        finally:
            place.server.start()
        assert await texts(store, "a") == ["one"]
        await session.append(Message.user("two"))
        assert await texts(store, "a") == ["one", "two"]
