"""A thousand sessions at once, messages of 20 MB, and conversations of 100,000 messages whose next one costs what the first did.

What something costs is counted and not timed: bytes that this process, or the server, has written and read.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from places import Place, append, place, server, texts

from littleghost import Message, Session, SessionStore, open_store

__all__ = ["place", "server"]

Cost = Callable[[Callable[[], Awaitable[object]]], Awaitable[tuple[int, int]]]


async def test_a_thousand_sessions_at_once(place: Place):
    async with place.open() as store:
        names = [f"s{number}" for number in range(1000)]

        async def turns(name: str) -> None:
            session = Session(id=name, store=store)
            for number in range(3):
                await session.append(Message.user(f"{name} {number}"), state={"n": number})
            assert [message.text for message in await session.history()] == await texts(store, name)

        async with asyncio.timeout(100):
            await asyncio.gather(*[turns(name) for name in names])
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = await store.sessions(limit=300, cursor=cursor)
            found += [info.id for info in page.items]
            assert all(info.count == 3 for info in page.items)
            cursor = page.cursor
            if cursor is None:
                break
        assert found == sorted(names)
        for name in names[::50]:
            assert await texts(store, name) == [f"{name} {number}" for number in range(3)]


async def test_a_message_of_20_megabytes(place: Place):
    long = "ä€\0" * 3_500_000
    assert len(long.encode()) > 20_000_000
    async with place.open() as store:
        await append(store, "a", "before", count=0)
        await append(store, "a", long, count=1, commit_id="long")
        await append(store, "a", "after", count=2)
        assert (await append(store, "a", long, count=1, commit_id="long")).count == 2
    async with place.open() as store:
        assert await texts(store, "a") == ["before", long, "after"]
        page = await store.tail("a", limit=1)
        assert [message.text for message in page.items] == ["after"]
        await store.fork("a", "b", at=2)
        assert await texts(store, "b") == ["before", long]


# What it costs


@asynccontextmanager
async def counting(place: Place) -> AsyncGenerator[tuple[SessionStore, Cost]]:
    """Give a store, and what tells how many bytes something has written to the medium, and how many it has read of it."""
    if place.kind == "sqlite":
        store = open_store(f"{place.url}?durability=off")
        try:
            yield store, _of_this_process
        finally:
            await store.aclose()
        return
    async with _Wire(place) as wire:
        store = open_store(wire.url)
        try:
            yield store, wire.cost
        finally:
            await store.aclose()


async def _of_this_process(work: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    def counters() -> tuple[int, int]:
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(lines["wchar"]), int(lines["rchar"])

    written, read = counters()
    await work()
    after = counters()
    return after[0] - written, after[1] - read


class _Wire:
    """Stands between a store and its server, and counts what passes. What the server writes to its log, it tells itself."""

    def __init__(self, place: Place) -> None:
        assert place.server is not None
        self._socket = place.server.folder / ".s.PGSQL.5432"
        self._place = place
        self._folder = place.server.folder / "wire"
        self.url = place.url.replace(str(place.server.folder), str(self._folder))
        self.received = 0

    async def __aenter__(self) -> Self:
        self._folder.mkdir(exist_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, self._folder / ".s.PGSQL.5432")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        (self._folder / ".s.PGSQL.5432").unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, to_them = await asyncio.open_unix_connection(self._socket)
        await asyncio.gather(self._pass(reader, to_them, 0), self._pass(theirs, writer, 1))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: int) -> None:
        try:
            while some := await reader.read(1 << 16):
                self.received += counted * len(some)
                writer.write(some)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def cost(self, work: Callable[[], Awaitable[object]]) -> tuple[int, int]:
        before, received = self._log(), self.received
        await work()
        return self._log() - before, self.received - received

    def _log(self) -> int:
        server = self._place.server
        assert server is not None
        command = [server.bin / "psql", "-h", server.folder, "-U", "postgres", "-At", "-c"]
        asked = "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        done = subprocess.run([*command, asked], check=True, capture_output=True, **server.identity.options)
        return int(done.stdout)


async def test_the_next_of_100_000_messages_costs_what_the_first_did(place: Place):
    async with counting(place) as (store, cost):

        async def least(work: Callable[[], Awaitable[object]]) -> tuple[int, int]:
            # The least of several, for a page is split, a log is taken in, or a full page is logged now and then.
            found = [await cost(work) for _ in range(7)]
            return min(written for written, _ in found), min(read for _, read in found)

        session = Session(id="a", store=store)

        async def one() -> None:
            await session.append(Message.user("x" * 200), state={"n": 1})

        async def tail() -> None:
            page = await store.tail("a", limit=5)
            assert len(page.items) == 5

        async def older() -> None:
            page = await store.tail("a", limit=5, before=500)
            assert [message.text for message in page.items] == [f"{number}" for number in range(495, 500)]

        for first in range(0, 1000, 100):
            await session.append([Message.user(f"{number}") for number in range(first, first + 100)])
        short = [await least(one), await least(tail), await least(older)]
        whole = await cost(lambda: store.load("a"))
        for number in range(990):
            await session.append([Message.user("y" * 50)] * (100 if number else 93))
        long = [await least(one), await least(tail), await least(older)]
        loaded = await store.load("a")
        assert loaded.count == loaded.messages.__len__() == 100_007
        for few, many in zip(short, long, strict=True):
            assert many[0] <= 1.5 * few[0] + 8192, (short, long)
            assert many[1] <= 1.5 * few[1] + 65536, (short, long)
        everything = await cost(lambda: store.load("a"))
        assert everything[1] > 20 * whole[1] / 2, "what is read is not counted"
        assert long[1][1] < everything[1] / 50, "a tail reads much"
        assert long[0][0] > 200, "what is written is not counted"
