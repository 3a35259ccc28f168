"""What a SQLite session costs beside the same work done with the bare `sqlite3` module.

Usage:
    python benchmarks/bench_sessions.py [--quick]

A turn is two messages of 300 bytes with 1 KB of state. The floor keeps the same rows and writes them in one transaction, with the
write-ahead log and an fsync for each, through an executor with one thread; beside it the same, called directly. Rounds are
interleaved, appends go in blocks of 40, for who has just synced flatters the neighbour. Below a ratio of 1.3 two figures on a shared
machine are the same; how much of a processor each took is shown beside, and depends less on who else is there.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec

from littleghost.message import Message
from littleghost.sessions.sqlite import SQLiteStore

QUICK = "--quick" in sys.argv[1:]
BLOCK = 40
LENGTHS = (10, 1_000, 10_000)
WRITERS, TURNS = 64, 20

letters = random.Random(7).choices("abcdefghijklmnopqrstuvwxyz     ", k=100_000)
places = itertools.count()


def text(size: int) -> str:
    start = next(places) * 31 % (len(letters) - size)
    return "".join(letters[start : start + size])


def turn() -> list[Message]:
    return [Message.user(text(300)), Message.assistant(text(300))]


STATE = {"plan": text(900), "step": 1}
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(tuple[Message, ...]).decode


class Bare:
    """The floor: a row for the session, a row for each turn, and nothing else."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("CREATE TABLE heads (id INTEGER PRIMARY KEY, count INTEGER, state BLOB)")
        self.db.execute("CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB)")

    def append(self, session: int, number: int, messages: list[Message]) -> None:
        run = self.db.execute
        run("BEGIN IMMEDIATE")
        if number == 1:
            run("INSERT INTO heads VALUES (?, ?, ?)", (session, 2, encode(STATE)))
        else:
            run("UPDATE heads SET count = ?, state = ? WHERE id = ?", (2 * number, encode(STATE), session))
        run("INSERT INTO bodies VALUES (?, ?)", (session << 32 | number, encode(messages)))
        run("COMMIT")

    def load(self, session: int) -> tuple[Message, ...]:
        rows = self.db.execute(
            "SELECT body FROM bodies WHERE id BETWEEN ? AND ? ORDER BY id",
            (session << 32, (session + 1) << 32),
        ).fetchall()
        return decode(b"[%b]" % b",".join([body[1:-1] for (body,) in rows]))


class Ours:
    """A session in a store, written with the revision known."""

    def __init__(self, store: SQLiteStore, id: str) -> None:
        self.store, self.id, self.count, self.revision = store, id, 0, None

    async def append(self, messages: list[Message]) -> None:
        done = await self.store.append(
            self.id,
            messages=messages,
            state=STATE,
            metadata={},
            expected_count=self.count,
            expected_revision=self.revision,
            commit_id=f"{self.count:032x}",
        )
        self.count, self.revision = done.count, done.revision


class Clock:
    """What was spent in the block, in seconds: of time, and of the processors."""

    def __enter__(self) -> Self:
        self.began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall, self.busy = time.perf_counter() - self.began[0], time.process_time() - self.began[1]


class Table:
    """Microseconds by name, and how to print them."""

    def __init__(self, *names: str) -> None:
        self.wall: dict[str, list[float]] = {name: [] for name in names}
        self.busy: dict[str, list[float]] = {name: [] for name in names}

    def add(self, name: str, clock: Clock, times: int = 1) -> None:
        self.wall[name].append(clock.wall / times * 1e6)
        self.busy[name].append(clock.busy / times * 1e6)

    def show(self, title: str) -> None:
        print(f"\n{title}")
        bases = [statistics.median(next(iter(kind.values()))) for kind in (self.wall, self.busy)]
        for name, walls in self.wall.items():
            wall, busy = statistics.median(walls), statistics.median(self.busy[name])
            print(
                f"  {name:34}{wall:10,.0f} µs  ×{wall / bases[0]:5.2f}   {min(walls):,.0f} to {max(walls):,.0f}".ljust(
                    86
                )
                + f"processor {busy:9,.0f} µs  ×{busy / bases[1]:5.2f}"
            )


async def appends(folder: Path, rounds: int) -> None:
    for length in LENGTHS:
        await appends_to(folder, length, rounds)


async def appends_to(folder: Path, length: int, rounds: int) -> None:
    loop = asyncio.get_running_loop()
    path = folder / f"ours-{length}.db"
    bare = Bare(folder / f"bare-{length}.db")
    bare.db.execute("PRAGMA synchronous = OFF")
    for number in range(1, length // 2 + 1):
        bare.append(1, number, turn())
    bare.db.execute("PRAGMA synchronous = FULL")
    numbers = itertools.count(length // 2 + 1)
    async with SQLiteStore(path, durability="off") as filling:
        filled = Ours(filling, "a")
        for _ in range(length // 2):
            await filled.append(turn())

    async with SQLiteStore(path) as store:
        with ThreadPoolExecutor(1) as executor:
            ours = Ours(store, "a")
            ours.count, ours.revision = filled.count, filled.revision

            async def direct(messages: list[Message]) -> None:
                bare.append(1, next(numbers), messages)

            async def threaded(messages: list[Message]) -> None:
                await loop.run_in_executor(executor, bare.append, 1, next(numbers), messages)

            await loads(length, bare, store, rounds if length >= 10_000 else rounds * 4)
            kinds = {
                "sqlite3, one-thread executor": threaded,
                "sqlite3, called directly": direct,
                "SQLiteStore": ours.append,
            }
            table = Table(*kinds)
            for kind in kinds.values():
                await kind(turn())
            gc.collect()
            gc.freeze()
            for _ in range(rounds):
                for name, kind in kinds.items():
                    turns = [turn() for _ in range(BLOCK)]
                    with Clock() as clock:
                        for messages in turns:
                            await kind(messages)
                    table.add(name, clock, BLOCK)
            gc.unfreeze()
            table.show(f"durable append of a turn to {length:,} messages")
    bare.db.close()


async def lengths(folder: Path, rounds: int) -> None:
    """Whether an append depends on what is there: sessions of each length, in the same rounds."""
    stores: dict[str, SQLiteStore] = {}
    sessions: dict[str, Ours] = {}
    for length in LENGTHS:
        path, name = folder / f"length-{length}.db", f"SQLiteStore, {length:,} messages"
        async with SQLiteStore(path, durability="off") as filling:
            filled = Ours(filling, "a")
            for _ in range(length // 2):
                await filled.append(turn())
        stores[name] = SQLiteStore(path)
        sessions[name] = Ours(stores[name], "a")
        sessions[name].count, sessions[name].revision = filled.count, filled.revision
        await sessions[name].append(turn())
    table = Table(*sessions)
    for _ in range(rounds):
        for name, session in sessions.items():
            turns = [turn() for _ in range(BLOCK)]
            with Clock() as clock:
                for messages in turns:
                    await session.append(messages)
            table.add(name, clock, BLOCK)
    table.show("durable append of a turn, by what is there before")
    for store in stores.values():
        await store.aclose()


async def loads(length: int, bare: Bare, store: SQLiteStore, rounds: int) -> None:
    table = Table("sqlite3 and one decode", "SQLiteStore")
    for _ in range(rounds):
        gc.collect()
        with Clock() as clock:
            bare.load(1)
        table.add("sqlite3 and one decode", clock)
        gc.collect()
        with Clock() as clock:
            await store.load("a")
        table.add("SQLiteStore", clock)
    table.show(f"load of {length:,} messages")


async def together(folder: Path, rounds: int) -> None:
    table = Table("sqlite3, one after another", "SQLiteStore, at once")
    for number in range(rounds):
        bare, store = Bare(folder / f"bare-many-{number}.db"), SQLiteStore(folder / f"ours-many-{number}.db")
        await store.load("a")
        turns = [[turn() for _ in range(TURNS)] for _ in range(WRITERS)]
        with Clock() as clock:
            for step in range(1, TURNS + 1):
                for session in range(WRITERS):
                    bare.append(session, step, turns[session][step - 1])
        table.add("sqlite3, one after another", clock, WRITERS * TURNS)
        bare.db.close()

        async def one(session: Ours, mine: list[list[Message]]) -> None:
            for messages in mine:
                await session.append(messages)

        with Clock() as clock:
            await asyncio.gather(
                *(one(Ours(store, f"session-{index}"), mine) for index, mine in enumerate(turns))
            )
        table.add("SQLiteStore, at once", clock, WRITERS * TURNS)
        await store.aclose()
    table.show(f"{WRITERS} sessions, {TURNS} turns each, a turn")
    floor, ours = (statistics.median(values) for values in table.wall.values())
    print(f"  {1e6 / floor:,.0f} and {1e6 / ours:,.0f} turns a second: {floor / ours:.1f} times as many")


async def sizes(folder: Path) -> None:
    turns = 1_000
    bare, store = Bare(folder / "bare-size.db"), SQLiteStore(folder / "ours-size.db", durability="off")
    bare.db.execute("PRAGMA synchronous = OFF")
    ours = Ours(store, "a")
    for number in range(1, turns + 1):
        bare.append(1, number, turn())
        await ours.append(turn())
    bare.db.close()
    await store.aclose()
    floor, mine = ((folder / f"{name}-size.db").stat().st_size / turns / 2 for name in ("bare", "ours"))
    print(
        f"\nbytes a message after {turns:,} turns: sqlite3 {floor:,.0f}, SQLiteStore {mine:,.0f} (×{mine / floor:.2f})"
    )


async def main() -> None:
    rounds = 5 if QUICK else 25
    print(
        f"Python {sys.version.split()[0]}, SQLite {sqlite3.sqlite_version}; medians of {rounds} rounds, × the first row, spread"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await appends(folder, rounds)
        await lengths(folder, rounds)
        await together(folder, max(3, rounds // 3))
        await sizes(folder)


if __name__ == "__main__":
    asyncio.run(main())
