"""Google ADK: an append is two calls of `append_event` on a session that is loaded already, the second with the state."""

from __future__ import annotations

import json
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import DatabaseSessionService, Session
from google.adk.sessions.schemas.v1 import StorageEvent, StorageSession
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai.types import Content, Part
from sqlalchemy import select

from .subject import POOL, Subject, new_state, question_and_answer

APP = {"app_name": "bench", "user_id": "user"}


def events(step: int) -> list[Event]:
    question, answer = question_and_answer()
    invocation = f"e-{step}"
    return [
        Event(
            author="user",
            invocation_id=invocation,
            content=Content(role="user", parts=[Part(text=question)]),
        ),
        Event(
            author="agent",
            invocation_id=invocation,
            content=Content(role="model", parts=[Part(text=answer)]),
            actions=EventActions(state_delta=new_state(step)),
        ),
    ]


def past_events(turns: int) -> list[Event]:
    """Events of one turn after the other, the last one now."""
    found = [event for step in range(turns) for event in events(step)]
    now = time.time()
    for place, event in enumerate(found, 1 - len(found)):
        event.timestamp = now + place / 1000
    return found


class Sessions(Subject):
    """A session service, and the sessions it handed out."""

    service: Any = None

    async def open(self) -> None:
        self.service = self.made()
        self.sessions: dict[str, Session] = {}
        await self.service.create_session(**APP, session_id="nobody")

    @abstractmethod
    def made(self) -> Any: ...

    @abstractmethod
    async def put(self, session: Session, past: list[Event]) -> None:
        """Write the rows that `append_event` would have written."""

    async def fill(self, session: str, turns: int) -> None:
        made = await self.service.create_session(**APP, session_id=session, state=new_state(turns))
        await self.put(made, past_events(turns))
        self.sessions[session] = await self.service.get_session(**APP, session_id=session)

    async def append(self, session: str) -> None:
        known = self.sessions.get(session)
        if known is None:
            known = await self.service.create_session(**APP, session_id=session)
            self.sessions[session] = known
        for event in events(len(known.events)):
            await self.service.append_event(known, event)

    async def load(self, session: str) -> Sequence[Any]:
        return (await self.service.get_session(**APP, session_id=session)).events

    async def close(self) -> None:
        if self.service is not None:
            await self.service.close()


class OverSQLite(Sessions):
    """`SqliteSessionService`."""

    def made(self) -> Any:
        return SqliteSessionService(str(self.file))

    async def put(self, session: Session, past: list[Event]) -> None:
        db = sqlite3.connect(self.file)
        key = (session.app_name, session.user_id, session.id)
        rows = [
            (event.id, *key, event.invocation_id, event.timestamp, event.model_dump_json(exclude_none=True))
            for event in past
        ]
        with db:
            db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            db.execute(
                "UPDATE sessions SET update_time = ?, state = ? WHERE app_name = ? AND user_id = ? AND id = ?",
                (past[-1].timestamp, json.dumps(past[-1].actions.state_delta), *key),
            )
        db.close()


class OverDatabase(Sessions):
    """`DatabaseSessionService`."""

    def made(self) -> Any:
        return DatabaseSessionService(f"sqlite+aiosqlite:///{self.file}")

    async def put(self, session: Session, past: list[Event]) -> None:
        rows = [StorageEvent.from_event(session, event) for event in past]
        async with self.service.database_session_factory() as db, db.begin():
            head = (
                await db.execute(select(StorageSession).where(StorageSession.id == session.id))
            ).scalar_one()
            # Its columns keep times without a zone, in UTC.
            head.update_time = rows[-1].timestamp
            head.state = dict(past[-1].actions.state_delta)
            db.add_all(rows)


class OverPostgres(OverDatabase):
    """The same over `asyncpg`."""

    def made(self) -> Any:
        return DatabaseSessionService(self.database.url_for("asyncpg"), pool_size=POOL, max_overflow=0)
