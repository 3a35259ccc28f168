"""Our own stores, used as a run of an agent uses them: with the count, the revision and an id for each commit."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from littleghost import Message, PostgresStore, SessionStore, SQLiteStore

from .subject import POOL, Subject, new_state, question_and_answer

ids = itertools.count()


def turn() -> list[Message]:
    question, answer = question_and_answer()
    return [Message.user(question), Message.assistant(answer)]


class OverStore(Subject):
    """A store of ours."""

    store: SessionStore | None = None

    @abstractmethod
    def opened(self, durability: str) -> SessionStore: ...

    async def open(self) -> None:
        self.store = self.opened("full")
        self.heads: dict[str, tuple[int, str | None]] = {}
        await self.store.load("nobody")

    async def close(self) -> None:
        if self.store is not None:
            await self.store.aclose()

    async def write(self, store: Any, session: str) -> None:
        count, revision = self.heads.get(session, (0, None))
        done = await store.append(
            session,
            messages=turn(),
            state=new_state(count),
            metadata={},
            expected_count=count,
            expected_revision=revision,
            commit_id=f"{next(ids):032x}",
        )
        self.heads[session] = done.count, done.revision

    async def fill(self, session: str, turns: int) -> None:
        async with self.opened("off") as store:
            for _ in range(turns):
                await self.write(store, session)

    async def append(self, session: str) -> None:
        await self.write(self.store, session)

    async def load(self, session: str) -> Sequence[Message]:
        assert self.store is not None
        snapshot = await self.store.load(session)
        return snapshot.messages if snapshot else ()


class OverSQLite(OverStore):
    """`SQLiteStore`."""

    def opened(self, durability: Any) -> SessionStore:
        return SQLiteStore(self.file, durability=durability)


class OverPostgres(OverStore):
    """`PostgresStore`."""

    def opened(self, durability: str) -> SessionStore:
        return PostgresStore(self.database.url, min_connections=POOL, max_connections=POOL)
