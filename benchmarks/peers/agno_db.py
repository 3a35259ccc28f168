"""Agno: `SqliteDb`, a row for each run and one for the session. Blocks the event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from agno.db.base import SessionType
from agno.db.sqlite import SqliteDb
from agno.db.utils import build_single_run_row
from agno.models.message import Message
from agno.run.agent import RunOutput
from agno.run.base import RunStatus
from agno.session import AgentSession

from .subject import Subject, new_state, question_and_answer


def run(session: str, number: int) -> RunOutput:
    question, answer = question_and_answer()
    return RunOutput(
        run_id=f"{session}-{number}",
        agent_id="agent",
        session_id=session,
        content=answer,
        messages=[Message(role="user", content=question), Message(role="assistant", content=answer)],
        status=RunStatus.completed,
    )


def head(session: str, step: int) -> AgentSession:
    return AgentSession(
        session_id=session, agent_id="agent", session_data={"session_state": new_state(step)}, created_at=1
    )


class Runs(Subject):
    """One database."""

    db: SqliteDb | None = None

    async def open(self) -> None:
        self.db = SqliteDb(db_file=str(self.file))
        self.runs: Counter[str] = Counter()
        # Makes the tables.
        self.db.upsert_session(head("nobody", 0))
        self.db.upsert_run(run("nobody", 0), "nobody", run_index=0)

    async def close(self) -> None:
        if self.db is not None:
            self.db.close()

    async def fill(self, session: str, turns: int) -> None:
        assert self.db is not None
        self.db.upsert_session(head(session, turns))
        table: Any = self.db._get_table(table_type="runs")
        rows = [
            build_single_run_row(run(session, number), session, run_index=number) for number in range(turns)
        ]
        with self.db.Session() as transaction, transaction.begin():
            transaction.execute(table.insert(), rows)
        self.runs[session] = turns

    async def append(self, session: str) -> None:
        assert self.db is not None
        number = self.runs[session]
        self.db.upsert_session(head(session, number))
        self.db.upsert_run(run(session, number), session, run_index=number)
        self.runs[session] += 1

    async def load(self, session: str) -> Sequence[Any]:
        assert self.db is not None
        # Its cache would answer with the objects of the last load; this is the first load of a process.
        self.db._run_object_cache.drop_session(session)
        found: Any = self.db.get_session(session, SessionType.AGENT)
        return [message for kept in found.runs for message in kept.messages]
