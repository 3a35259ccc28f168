"""bedrock-agentcore: `AgentCoreMemorySessionManager` under a Strands agent, with its own settings and no window over the history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import boto3
from bedrock_agentcore.memory.integrations.strands.config import AgentCoreMemoryConfig
from bedrock_agentcore.memory.integrations.strands.session_manager import AgentCoreMemorySessionManager
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model

from .subject import ACTOR, Subject, new_state, question_and_answer


class Said(Model):
    """A model that says what it is told."""

    stateful = False

    def __init__(self) -> None:
        self.answers: list[str | dict[str, Any]] = []

    def update_config(self, **_: Any) -> None:
        """Take none."""

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        answer = self.answers.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(answer, dict):
            yield {
                "contentBlockStart": {
                    "start": {"toolUse": {"toolUseId": answer["id"], "name": answer["name"]}}
                }
            }
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": answer["input"]}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": answer}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if isinstance(answer, dict) else "end_turn"}}


def open_agent(
    memory_id: str, session: str, **options: Any
) -> tuple[Agent, Said, AgentCoreMemorySessionManager]:
    """Make what a process has: a manager and an agent, which is restored where the session exists."""
    given = {name: options.pop(name) for name in list(options) if name in AgentCoreMemoryConfig.model_fields}
    config = AgentCoreMemoryConfig(memory_id=memory_id, session_id=session, actor_id=ACTOR, **given)
    manager = AgentCoreMemorySessionManager(config, boto_session=boto3.DEFAULT_SESSION)
    model = Said()
    agent = Agent(
        model=model,
        agent_id="agent",
        session_manager=manager,
        callback_handler=None,
        conversation_manager=NullConversationManager(),
        **options,
    )
    return agent, model, manager


class Managed(Subject):
    """An agent that is kept."""

    batch_size = 1
    agent: Agent | None = None

    async def restart(self) -> None:
        self.agent = None

    def opened(self) -> Agent:
        if self.agent is None:
            self.agent, self.model, self.manager = open_agent(
                self.memory_id, self.session, batch_size=self.batch_size
            )
        return self.agent

    async def turn(self) -> None:
        agent = self.opened()
        question, answer = question_and_answer()
        change(agent, len(agent.messages))
        self.model.answers.append(answer)
        await agent.invoke_async(question)

    async def fill(self, turns: int, after: Callable[[], None]) -> None:
        """Make the manager's calls of a turn, without the agent, which copies its whole history each time."""
        await self.restart()
        agent = self.opened()
        self.manager.memory_client.gmdp_client = self.quick_client()
        for step in range(turns):
            change(agent, step)
            for role, text in zip(("user", "assistant"), question_and_answer(), strict=True):
                message: Any = {"role": role, "content": [{"text": text}]}
                self.manager.append_message(message, agent)
                self.manager.sync_agent(agent)
            self.manager._flush_messages()
            after()
        await self.restart()

    async def load(self) -> int:
        if self.agent is None:
            return len(self.opened().messages)
        self.manager.read_agent(self.session, "agent")
        return len(self.manager.list_messages(self.session, "agent"))


class Batched(Managed):
    """The same with ``batch_size=10``: what a turn brings is held until the answer is there, and written in one event."""

    batch_size = 10


def change(agent: Agent, step: int) -> None:
    for key, value in new_state(step).items():
        agent.state.set(key, value)
