"""LangGraph: a graph of one node over a checkpointer. An append is an `ainvoke`, which loads the checkpoint first."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph, add_messages
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from .subject import POOL, Subject, new_state, question_and_answer


class Thread(TypedDict):
    """The state of the graph."""

    messages: Annotated[list[AnyMessage], add_messages]
    state: dict[str, Any]


async def answer(thread: Thread) -> dict[str, Any]:
    _, said = question_and_answer()
    return {"messages": [AIMessage(said)], "state": new_state(len(thread["messages"]))}


def config(session: str) -> Any:
    return {"configurable": {"thread_id": session}}


class Checkpoints(Subject):
    """A graph with a saver."""

    saver: Any = None

    async def made(self, stack: AsyncExitStack) -> Any:
        raise NotImplementedError

    async def open(self) -> None:
        self.stack = AsyncExitStack()
        self.saver = await self.made(self.stack)
        await self.saver.setup()
        builder = StateGraph(Thread)
        builder.add_node("answer", answer)
        builder.add_edge(START, "answer")
        builder.add_edge("answer", END)
        self.graph = builder.compile(checkpointer=self.saver)

    async def close(self) -> None:
        await self.stack.aclose()

    async def fill(self, session: str, turns: int) -> None:
        messages: list[AnyMessage] = []
        for _ in range(turns):
            question, said = question_and_answer()
            messages += [HumanMessage(question), AIMessage(said)]
        values = {"messages": messages, "state": new_state(turns)}
        await self.graph.aupdate_state(config(session), values, as_node="answer")

    async def append(self, session: str) -> None:
        question, _ = question_and_answer()
        await self.graph.ainvoke({"messages": [HumanMessage(question)]}, config(session))

    async def load(self, session: str) -> Sequence[Any]:
        found = await self.saver.aget_tuple(config(session))
        return found.checkpoint["channel_values"]["messages"]


class OverSQLite(Checkpoints):
    """`AsyncSqliteSaver`."""

    async def made(self, stack: AsyncExitStack) -> Any:
        return await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(self.file)))


class OverPostgres(Checkpoints):
    """`AsyncPostgresSaver` over a pool."""

    async def made(self, stack: AsyncExitStack) -> Any:
        # The settings that its documentation asks for.
        settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool = AsyncConnectionPool(
            self.database.url, min_size=POOL, max_size=POOL, kwargs=settings, open=False
        )
        await stack.enter_async_context(pool)
        return AsyncPostgresSaver(pool)
