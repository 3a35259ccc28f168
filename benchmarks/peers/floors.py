"""The floors: the least that the same work costs with the bare driver.

They keep a row for a session and a row for each turn, and nothing else: no check of who else wrote, no ids, no times.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import msgspec

from littleghost import Message

from .subject import POOL, Subject, new_state, question_and_answer

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(tuple[Message, ...]).decode


def turn() -> bytes:
    question, answer = question_and_answer()
    return encode([Message.user(question), Message.assistant(answer)])


def joined(bodies: Sequence[bytes]) -> tuple[Message, ...]:
    return decode(b"[%b]" % b",".join([body[1:-1] for body in bodies]))


class Direct(Subject):
    """`sqlite3` with the write-ahead log and an fsync for each turn, called on the event loop."""

    db: sqlite3.Connection | None = None

    async def open(self) -> None:
        self.db = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute(
            "CREATE TABLE heads (id INTEGER PRIMARY KEY, name TEXT UNIQUE, count INTEGER, state BLOB)"
        )
        self.db.execute("CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB)")
        self.turns: Counter[str] = Counter()
        self.numbers: dict[str, int] = {}

    async def close(self) -> None:
        if self.db is not None:
            self.db.close()

    def write(self, session: str, turns: int = 1) -> None:
        assert self.db is not None
        self.db.execute("BEGIN IMMEDIATE")
        self.write_within(session, turns)
        self.db.execute("COMMIT")

    def write_within(self, session: str, turns: int) -> None:
        assert self.db is not None
        run = self.db.execute
        number = self.numbers.setdefault(session, len(self.numbers) + 1)
        before = self.turns[session]
        self.turns[session] += turns
        state = encode(new_state(self.turns[session]))
        if before == 0:
            run("INSERT INTO heads VALUES (?, ?, ?, ?)", (number, session, 2 * turns, state))
        else:
            run(
                "UPDATE heads SET count = ?, state = ? WHERE id = ?", (2 * self.turns[session], state, number)
            )
        for step in range(before, self.turns[session]):
            run("INSERT INTO bodies VALUES (?, ?)", (number << 32 | step, turn()))

    async def fill(self, session: str, turns: int) -> None:
        self.write(session, turns)

    async def append(self, session: str) -> None:
        self.write(session)

    async def load(self, session: str) -> Sequence[Message]:
        return self.read(session)

    def read(self, session: str) -> Sequence[Message]:
        assert self.db is not None
        found = self.db.execute(
            "SELECT body FROM bodies WHERE id >= (SELECT id << 32 FROM heads WHERE name = :name)"
            " AND id < (SELECT (id + 1) << 32 FROM heads WHERE name = :name) ORDER BY id",
            {"name": session},
        )
        return joined([body for (body,) in found.fetchall()])


class Threaded(Direct):
    """The same, called in an executor with one thread: what it costs not to block the event loop."""

    async def open(self) -> None:
        await super().open()
        self.executor = ThreadPoolExecutor(1)

    async def close(self) -> None:
        if self.db is not None:
            self.executor.shutdown()
        await super().close()

    async def append(self, session: str) -> None:
        await asyncio.get_running_loop().run_in_executor(self.executor, self.write, session)

    async def load(self, session: str) -> Sequence[Message]:
        return await asyncio.get_running_loop().run_in_executor(self.executor, self.read, session)


class Grouped(Direct):
    """One transaction for a turn of every session: the least that many sessions at once can cost."""

    async def together(self, sessions: Sequence[str], turns: int) -> list[Exception]:
        assert self.db is not None
        for _ in range(turns):
            self.db.execute("BEGIN IMMEDIATE")
            for session in sessions:
                self.write_within(session, 1)
            self.db.execute("COMMIT")
        return []


class OneStatement(Subject):
    """`asyncpg` with a pool, and one statement for each turn."""

    APPEND = """
        WITH head AS (
            INSERT INTO heads VALUES ($1, 2, $2)
            ON CONFLICT (name) DO UPDATE SET count = heads.count + 2, state = $2
            RETURNING count
        )
        INSERT INTO bodies SELECT $1, count / 2, $3 FROM head
    """
    pool: Any = None

    async def open(self) -> None:
        async def no_reset(_: Any) -> None:
            """A round trip less for each use of a connection."""

        self.pool = await asyncpg.create_pool(self.database.url, min_size=POOL, max_size=POOL, reset=no_reset)
        await self.pool.execute("CREATE TABLE heads (name TEXT PRIMARY KEY, count INTEGER, state BYTEA)")
        await self.pool.execute(
            "CREATE TABLE bodies (name TEXT, number INTEGER, body BYTEA, PRIMARY KEY (name, number))"
        )

    async def close(self) -> None:
        if self.pool is not None:
            await self.pool.close()

    async def fill(self, session: str, turns: int) -> None:
        await self.pool.execute(
            "INSERT INTO heads VALUES ($1, $2, $3)", session, 2 * turns, encode(new_state(turns))
        )
        records = [(session, number, turn()) for number in range(1, turns + 1)]
        await self.pool.copy_records_to_table("bodies", records=records)

    async def append(self, session: str) -> None:
        await self.pool.execute(self.APPEND, session, encode(new_state(1)), turn())

    async def load(self, session: str) -> Sequence[Message]:
        found = await self.pool.fetch("SELECT body FROM bodies WHERE name = $1 ORDER BY number", session)
        return joined([body for (body,) in found])
