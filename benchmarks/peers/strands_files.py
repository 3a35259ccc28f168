"""Strands: `FileSessionManager`, a file for each message and one for the agent. Never calls fsync; blocks the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strands.session.file_session_manager import FileSessionManager
from strands.types.session import SessionAgent, SessionMessage

from .subject import Subject, new_state, question_and_answer

AGENT = "agent"


def agent(step: int) -> SessionAgent:
    return SessionAgent(agent_id=AGENT, state=new_state(step), conversation_manager_state={})


class Files(Subject):
    """A manager for each session, used through the calls it makes for an agent."""

    async def open(self) -> None:
        self.managers: dict[str, FileSessionManager] = {}
        self.counts: dict[str, int] = {}

    async def close(self) -> None:
        """Nothing stays open."""

    def of(self, session: str) -> FileSessionManager:
        if session not in self.managers:
            self.managers[session] = FileSessionManager(session, storage_dir=str(self.folder))
            self.managers[session].create_agent(session, agent(0))
            self.counts[session] = 0
        return self.managers[session]

    def add(self, session: str) -> None:
        manager = self.of(session)
        for role, said in zip(("user", "assistant"), question_and_answer(), strict=True):
            message: Any = {"role": role, "content": [{"text": said}]}
            number = self.counts[session]
            manager.create_message(session, AGENT, SessionMessage.from_message(message, number))
            self.counts[session] += 1

    async def fill(self, session: str, turns: int) -> None:
        for _ in range(turns):
            self.add(session)
        self.of(session).update_agent(session, agent(turns))

    async def append(self, session: str) -> None:
        self.add(session)
        self.of(session).update_agent(session, agent(self.counts[session]))

    async def load(self, session: str) -> Sequence[Any]:
        manager = self.of(session)
        manager.read_agent(session, AGENT)
        return [kept.to_message() for kept in manager.list_messages(session, AGENT)]
