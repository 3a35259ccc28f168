"""What is measured: a store of sessions, seen through the few things that every one of them can do."""

from __future__ import annotations

import asyncio
import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

POOL = 10
"""How many connections each subject has to PostgreSQL."""

_letters = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz     ", k=100_000))
_places = itertools.count()


def text(size: int) -> str:
    """Letters and spaces, ever others, so that nothing compresses away."""
    start = next(_places) * 31 % (len(_letters) - size)
    return _letters[start : start + size]


def question_and_answer() -> tuple[str, str]:
    """The two messages of a turn, 300 bytes each."""
    return text(300), text(300)


def new_state(step: int) -> dict[str, Any]:
    """The state after a turn, 1 KB of JSON."""
    return {"plan": text(980), "step": step}


class Database(Protocol):
    """A database of its own in the server of this run."""

    url: str

    def url_for(self, driver: str) -> str:
        """Return the URL as SQLAlchemy wants it, with ``driver``."""
        ...

    async def size(self) -> int:
        """Return how many bytes it has on disk beyond those of an empty one."""
        ...


class Subject(ABC):
    """One store, opened once, with any number of sessions in it.

    Args:
        folder: An empty folder, for a subject that keeps files.
        database: An empty database, for one that keeps its sessions in PostgreSQL.
    """

    def __init__(self, folder: Path, database: Database | None = None) -> None:
        self.folder, self._database = folder, database

    @property
    def file(self) -> Path:
        """Where a subject with a SQLite file keeps it."""
        return self.folder / "sessions.db"

    @property
    def database(self) -> Database:
        if self._database is None:
            raise RuntimeError("PostgreSQL is not running")
        return self._database

    @abstractmethod
    async def open(self) -> None:
        """Make the tables and open the connections, so that no measured call does."""

    @abstractmethod
    async def close(self) -> None:
        """Close whatever is open, also when `open` failed half way."""

    @abstractmethod
    async def fill(self, session: str, turns: int) -> None:
        """Make ``session`` as `append` would have left it after ``turns`` turns, in the cheapest way. Is not measured."""

    @abstractmethod
    async def append(self, session: str) -> None:
        """Add one turn: two messages and the new state, acknowledged as durable as the subject ever makes it."""

    @abstractmethod
    async def load(self, session: str) -> Sequence[Any]:
        """Return all messages of ``session`` as the values its users work with."""

    async def together(self, sessions: Sequence[str], turns: int) -> list[Exception]:
        """Add ``turns`` turns to each of ``sessions``, at once; return what failed."""
        failures: list[Exception] = []

        async def one(session: str) -> None:
            for _ in range(turns):
                try:
                    await self.append(session)
                except Exception as error:  # noqa: BLE001 - a failed append is a result
                    failures.append(error)

        await asyncio.gather(*map(one, sessions))
        return failures
