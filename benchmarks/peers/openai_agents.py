"""OpenAI Agents: `SQLiteSession` and `SQLAlchemySession`. They keep items only, and have no place for state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from agents import SQLiteSession
from agents.extensions.memory import SQLAlchemySession
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from .subject import POOL, Subject, question_and_answer


def items(turns: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(turns):
        question, answer = question_and_answer()
        found += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return found


class Sessions(Subject):
    """One session object for each session, kept."""

    @abstractmethod
    def made(self, session: str) -> Any: ...

    async def open(self) -> None:
        self.sessions: dict[str, Any] = {}
        await self.of("nobody").get_items()

    def of(self, session: str) -> Any:
        if session not in self.sessions:
            self.sessions[session] = self.made(session)
        return self.sessions[session]

    async def fill(self, session: str, turns: int) -> None:
        await self.of(session).add_items(items(turns))

    async def append(self, session: str) -> None:
        await self.of(session).add_items(items(1))

    async def load(self, session: str) -> Sequence[Any]:
        return await self.of(session).get_items()


class OverSQLite(Sessions):
    """`SQLiteSession`, all in one file."""

    def made(self, session: str) -> Any:
        return SQLiteSession(session, self.file)

    async def close(self) -> None:
        for session in self.sessions.values():
            session.close()


class OverSQLAlchemy(Sessions):
    """`SQLAlchemySession`, all with one engine."""

    engine: AsyncEngine | None = None

    def made(self, session: str) -> Any:
        assert self.engine is not None
        return SQLAlchemySession(session, engine=self.engine, create_tables=True)

    async def open(self) -> None:
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{self.file}")
        await super().open()

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.dispose()


class OverPostgres(OverSQLAlchemy):
    """The same over `asyncpg`."""

    async def open(self) -> None:
        url = self.database.url_for("asyncpg")
        self.engine = create_async_engine(url, pool_size=POOL, max_overflow=0)
        await Sessions.open(self)
