"""Our store, alone and under a run of an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import boto3

from littleghost import Agent, AgentCoreMemoryStore, Message, Runtime, Session
from littleghost.sessions.agentcore.rooting import MAX_LINEAGE_COMMITS
from littleghost.testing import FunctionModel

from .subject import ACTOR, Subject, new_state, question_and_answer


class Appending(Subject):
    """A `Session` that is kept, and both messages of a turn in one append."""

    commits: ClassVar[int] = 1
    """How many a turn has, of its two messages."""
    store: AgentCoreMemoryStore | None = None

    async def restart(self) -> None:
        if self.store is not None:
            await self.store.aclose()
        self.store = None

    def opened(self, client: Any = None) -> AgentCoreMemoryStore:
        if self.store is None:
            self.store = AgentCoreMemoryStore(
                self.memory_id, client=client or boto3.client("bedrock-agentcore")
            )
            self.kept = Session(id=self.session, store=self.store, actor_id=ACTOR)
        return self.store

    async def turn(self) -> None:
        self.opened()
        found = await self.kept.load()
        question, answer = question_and_answer()
        count = found.count if found else 0
        await self.kept.append([Message.user(question), Message.assistant(answer)], state=new_state(count))

    async def fill(self, turns: int, after: Callable[[], None]) -> None:
        """Make the commits one by one, but for those before the last root, which holds all of theirs: behind it nobody reads."""
        await self.restart()
        self.opened(self.quick_client())
        messages: list[Message] = []
        for _ in range(turns):
            question, answer = question_and_answer()
            messages += [Message.user(question), Message.assistant(answer)]
        whole = 2 // self.commits
        last_root = (self.commits * turns - 1) // MAX_LINEAGE_COMMITS * MAX_LINEAGE_COMMITS * whole
        begin = 0
        while begin < len(messages):
            end = max(begin, last_root) + whole
            await self.kept.append(messages[begin:end], state=new_state(end))
            if not last_root and end % 2 == 0:
                after()
            begin = end
        await self.restart()

    async def load(self) -> int:
        found = await self.opened().load(self.session, actor_id=ACTOR)
        return found.count if found else 0


class Running(Appending):
    """A run of an agent: it loads, commits the question before it asks the model, and then the answer."""

    holds = False
    commits = 2

    async def turn(self) -> None:
        question, answer = question_and_answer()
        async with Runtime(session_store=self.opened()) as runtime:
            run = await runtime.ask(
                Agent(FunctionModel(lambda _: answer)), question, session_id=self.session, actor_id=ACTOR
            )
        run.check()
