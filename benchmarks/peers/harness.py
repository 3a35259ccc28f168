"""Pydantic AI's harness: `SqliteConversationStore`, which takes and rewrites the whole history, and has no place for state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai_harness.step_persistence.conversations import ConversationSummary, SqliteConversationStore

from .subject import Subject, question_and_answer


def turn() -> list[ModelMessage]:
    question, answer = question_and_answer()
    return [ModelRequest(parts=[UserPromptPart(question)]), ModelResponse(parts=[TextPart(answer)])]


class Conversations(Subject):
    """A store, with the history of each conversation at hand as an agent has it."""

    async def open(self) -> None:
        self.store = SqliteConversationStore(database=self.file)
        self.summaries: dict[str, ConversationSummary] = {}
        self.histories: dict[str, list[ModelMessage]] = {}
        await self.store.listing()

    async def close(self) -> None:
        """Nothing stays open."""

    async def fill(self, session: str, turns: int) -> None:
        for _ in range(turns):
            self.histories.setdefault(session, []).extend(turn())
        await self.save(session)

    async def append(self, session: str) -> None:
        self.histories.setdefault(session, []).extend(turn())
        await self.save(session)

    async def save(self, session: str) -> None:
        summary = self.summaries.get(session) or ConversationSummary(id=session, workspace="bench")
        self.summaries[session] = await self.store.save(summary=summary, messages=self.histories[session])

    async def load(self, session: str) -> Sequence[Any]:
        return (await self.store.get(conversation_id=session)).messages
