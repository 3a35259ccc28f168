"""langgraph-checkpoint-aws: graphs over `AgentCoreMemorySaver`, in both of its layouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import Command, interrupt
from langgraph_checkpoint_aws import AgentCoreMemorySaver

from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

from .checks import Check, check, expect
from .langgraph_savers import graph_of
from .subject import ACTOR

Layout = Literal["legacy", "snapshot"]


def config(thread: str, **more: str) -> Any:
    return {"configurable": {"thread_id": thread, "actor_id": ACTOR, **more}}


def saver(layout: Layout) -> AgentCoreMemorySaver:
    return AgentCoreMemorySaver(DEFAULT_MEMORY, checkpoint_format=layout)


def both(claim: str) -> Callable[[Check], Check]:
    """Add a check of each layout."""

    def add(function: Check) -> Check:
        for layout in ("legacy", "snapshot"):
            check(f"langgraph-checkpoint-aws, {layout}", claim, layout=layout)(function)
        return function

    return add


async def talk(layout: Layout, thread: str, turns: int, **options: Any) -> list[Any]:
    """Make turns with a graph that is new to the thread, and return the messages it then has."""
    graph, found = graph_of(saver(layout)), {}
    for number in range(turns):
        found = await graph.ainvoke(
            {"messages": [HumanMessage(f"question {number}")]}, config(thread), **options
        )
    return texts(found.get("messages", ()))


def begun(state: Any) -> Any:
    """Make a graph whose first node takes 2 ms, so that the checkpoint after it is the newest by its time as well."""
    builder = StateGraph(state)

    async def begin(_: Any) -> dict[str, Any]:
        await asyncio.sleep(0.002)
        return {}

    builder.add_node("begin", begin)
    builder.add_edge(START, "begin")
    return builder


def texts(messages: Any) -> list[str]:
    return [str(message.content) for message in messages]


@both("a new graph goes on with a thread")
async def resumes(layout: Layout) -> None:
    before = await talk(layout, "t", 3)
    state = await graph_of(saver(layout)).aget_state(config("t"))
    expect(texts(state.values["messages"]), before)
    expect(state.next, ())
    after = await talk(layout, "t", 2)
    expect((len(after), after[:6]), (10, before))
    expect(await talk(layout, "other", 0), [])


@both("a graph that is called synchronously, with one checkpoint for each call")
def synchronous(layout: Layout) -> None:
    builder = StateGraph(Counted)
    builder.add_node("add", lambda state: {"count": state["count"] + 1})
    builder.add_edge(START, "add")
    builder.add_edge("add", END)
    builder.compile(checkpointer=saver(layout)).invoke({"count": 1}, config("t"), durability="exit")
    graph = builder.compile(checkpointer=saver(layout))
    expect(graph.get_state(config("t")).values, {"count": 2})
    expect(graph.invoke({}, config("t"), durability="exit"), {"count": 3})
    expect(len(list(graph.get_state_history(config("t")))), 2)


@both("a thread of more than 100 events")
async def pages(emulator: AgentCoreEmulator, layout: Layout) -> None:
    after = await talk(layout, "t", 40)
    expect(len(after), 80)
    sessions = [event["sessionId"] for event in emulator.events()]
    expect(max(map(sessions.count, set(sessions))) > 100, True)
    state = await graph_of(saver(layout)).aget_state(config("t"))
    expect(texts(state.values["messages"]), after)


@both("history, newest first; an earlier checkpoint is read, and continued beside the newer ones")
async def history(layout: Layout) -> None:
    await talk(layout, "t", 12)
    graph = graph_of(saver(layout))
    found = [state async for state in graph.aget_state_history(config("t"))]
    expect([state.metadata["step"] for state in found], list(range(34, -2, -1)))
    expect(
        [state.config["configurable"]["checkpoint_id"] for state in found[1:]],
        [state.parent_config["configurable"]["checkpoint_id"] for state in found[:-1]],
    )
    ended = next(state for state in found if state.metadata["step"] == 4)
    again = await graph.aget_state(ended.config)
    expect(texts(again.values["messages"]), texts(ended.values["messages"]))
    expect(len(again.values["messages"]), 4)
    after = await graph.ainvoke({"messages": [HumanMessage("instead")]}, ended.config)
    expect((len(after["messages"]), texts(after["messages"])[4]), (6, "instead"))
    newest = await graph_of(saver(layout)).aget_state(config("t"))
    expect(len(newest.values["messages"]), 6)
    some = [state async for state in graph.aget_state_history(config("t"), limit=3)]
    expect(len(some), 3)


@both("an interrupt waits in the thread, and a new graph answers it")
async def waits(layout: Layout) -> None:
    def compiled() -> Any:
        builder = begun(Counted)
        builder.add_node("ask", lambda state: {"count": state["count"] + interrupt("how many?")})
        builder.add_edge("begin", "ask")
        builder.add_edge("ask", END)
        return builder.compile(checkpointer=saver(layout))

    await compiled().ainvoke({"count": 1}, config("t"))
    state = await compiled().aget_state(config("t"))
    expect((state.next, [one.value for one in state.interrupts]), (("ask",), ["how many?"]))
    expect(await compiled().ainvoke(Command(resume=4), config("t")), {"count": 5})


@both("of two nodes side by side one fails; a new graph runs only that again")
async def fails(layout: Layout) -> None:
    ran: list[str] = []

    def compiled(*, broken: bool) -> Any:
        def right(_: Any) -> dict[str, Any]:
            ran.append("right")
            if broken:
                raise RuntimeError("broken")
            return {"messages": [HumanMessage("right")]}

        def left(_: Any) -> dict[str, Any]:
            ran.append("left")
            return {"messages": [HumanMessage("left")]}

        builder = begun(Talked)
        for name, node in (("left", left), ("right", right)):
            builder.add_node(name, node)
            builder.add_edge("begin", name)
            builder.add_edge(name, END)
        return builder.compile(checkpointer=saver(layout))

    try:
        await compiled(broken=True).ainvoke({"messages": []}, config("t"))
    except RuntimeError:
        ran.clear()
    found = await compiled(broken=False).ainvoke(None, config("t"))
    expect((ran, sorted(texts(found["messages"]))), (["right"], ["left", "right"]))


@both("a checkpoint of 12 MB, in several events")
async def large(emulator: AgentCoreEmulator, layout: Layout) -> None:
    builder = StateGraph(Wide)
    builder.add_node("fill", lambda _: {"one": "x" * 4_500_000, "two": "漢" * 1_500_000})
    builder.add_edge(START, "fill")
    builder.add_edge("fill", END)
    before = await builder.compile(checkpointer=saver(layout)).ainvoke({}, config("t"), durability="exit")
    state = await builder.compile(checkpointer=saver(layout)).aget_state(config("t"))
    expect(state.values == before, True)
    expect(len(emulator.events()) > 1, True)


@both("delete_thread deletes every event of a thread of 150 and more, and no other's")
async def deletes(emulator: AgentCoreEmulator, layout: Layout) -> None:
    await talk(layout, "t", 35)
    await talk(layout, "kept", 2)
    await saver(layout).adelete_thread("t", ACTOR)
    expect(await graph_of(saver(layout)).aget_state(config("t")) is not None, True)
    expect((await graph_of(saver(layout)).aget_state(config("t"))).values, {})
    expect(len((await graph_of(saver(layout)).aget_state(config("kept"))).values["messages"]), 4)
    left = {event["sessionId"] for event in emulator.events()}
    expect([session for session in left if session == "t"], [])


@both("conflicts and throttling are tried again; what was written though its answer was a 500 is there once")
async def repeated(emulator: AgentCoreEmulator, layout: Layout) -> None:
    emulator.fault("CreateEvent:conflict:nth=2")
    emulator.fault("CreateEvent:throttle:nth=4")
    emulator.fault("CreateEvent:error_500_after:nth=6")
    before = await talk(layout, "t", 3)
    expect([call.status for call in emulator.calls if call.status >= 400], [409, 429, 500])
    created = [call for call in emulator.calls if call.operation == "CreateEvent" and call.committed]
    expect(len(emulator.events()), len(created) - sum(call.replayed for call in created))
    expect(len([call for call in created if call.replayed]), 1)
    state = await graph_of(saver(layout)).aget_state(config("t"))
    expect(texts(state.values["messages"]), before)


@both("a subgraph that is interrupted is read with its parent, and resumed")
async def subgraphs(layout: Layout) -> None:
    inner = begun(Counted)
    inner.add_node("ask", lambda state: {"count": state["count"] * interrupt("times?")})
    inner.add_edge("begin", "ask")

    def compiled() -> Any:
        outer = begun(Counted)
        outer.add_node("inner", inner.compile())
        outer.add_edge("begin", "inner")
        return outer.compile(checkpointer=saver(layout))

    await compiled().ainvoke({"count": 3}, config("t"))
    state = await compiled().aget_state(config("t"), subgraphs=True)
    expect(state.tasks[0].state.values, {"count": 3})
    expect(await compiled().ainvoke(Command(resume=5), config("t")), {"count": 15})


class Counted(TypedDict):
    """A state with a number."""

    count: int


class Talked(TypedDict):
    """A state with messages."""

    messages: Annotated[list[AnyMessage], add_messages]


class Wide(TypedDict, total=False):
    """A state in two channels."""

    one: str
    two: str
