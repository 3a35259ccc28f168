"""langgraph-checkpoint-aws: a graph of one node over `AgentCoreMemorySaver`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph_checkpoint_aws import AgentCoreMemorySaver

from .subject import ACTOR, Subject, new_state, question_and_answer


class Thread(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[AnyMessage], add_messages]
    state: dict[str, Any]


async def answer(thread: Thread) -> dict[str, Any]:
    # No model is faster. Of two checkpoints in one millisecond the snapshot layout cannot tell which is newer.
    await asyncio.sleep(0.002)
    _, said = question_and_answer()
    return {"messages": [AIMessage(said)], "state": new_state(len(thread["messages"]))}


class Remembering(AgentCoreMemorySaver):
    """A saver that writes as it does and remembers the newest checkpoint, so that filling a session does not read it again and again."""

    newest: CheckpointTuple | None = None

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.newest

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        written = await super().aput(config, checkpoint, metadata, new_versions)
        self.newest = CheckpointTuple(written, checkpoint, metadata, config, [])
        return written


def graph_of(saver: AgentCoreMemorySaver) -> Any:
    builder = StateGraph(Thread)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


class Saved(Subject):
    """A graph that is kept; what it holds is no part of the session, which each turn reads anew."""

    holds = False
    longest = (
        1_000,
        "its checkpoints would hold some 33 GB, 100 times those of 1,000 messages; each load reads them all",
    )
    layout: ClassVar[Literal["legacy", "snapshot"]] = "legacy"
    graph: Any = None

    async def restart(self) -> None:
        self.graph = None

    @property
    def config(self) -> Any:
        return {"configurable": {"thread_id": self.session, "actor_id": ACTOR}}

    def opened(self) -> Any:
        if self.graph is None:
            self.saver = AgentCoreMemorySaver(self.memory_id, checkpoint_format=self.layout)
            self.graph = graph_of(self.saver)
        return self.graph

    async def turn(self) -> None:
        question, _ = question_and_answer()
        await self.opened().ainvoke({"messages": [HumanMessage(question)]}, self.config)

    async def fill(self, turns: int, after: Callable[[], None]) -> None:
        """Make the turns, each written as the saver writes it, without reading the session before each."""
        saver = Remembering(self.memory_id, checkpoint_format=self.layout)
        saver.checkpoint_event_client.client = self.quick_client()
        self.graph = graph_of(saver)
        for _ in range(turns):
            await self.turn()
            after()
        await self.restart()

    async def load(self) -> int:
        self.opened()
        found = await self.saver.aget_tuple(self.config)
        return len(found.checkpoint["channel_values"]["messages"]) if found else 0


class Snapshots(Saved):
    """The same with the layout that its makers call experimental: each checkpoint is whole, and only the newest is read."""

    layout = "snapshot"
    longest = None

    async def fill(self, turns: int, after: Callable[[], None]) -> None:
        """Make one checkpoint of all messages, and a turn after it; what is older, nobody reads."""
        messages: list[AnyMessage] = []
        for _ in range(turns - 1):
            question, said = question_and_answer()
            messages += [HumanMessage(question), AIMessage(said)]
        values = {"messages": messages, "state": new_state(turns)}
        await self.opened().aupdate_state(self.config, values, as_node="answer")
        await self.turn()
        await self.restart()
