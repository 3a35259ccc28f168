"""bedrock-agentcore: its session manager under a Strands agent, its `MemoryClient` and its `MemorySessionManager`."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from bedrock_agentcore.memory import MemoryClient
from bedrock_agentcore.memory.constants import ConversationalMessage, MessageRole
from bedrock_agentcore.memory.models.filters import (
    EventMetadataFilter,
    LeftExpression,
    OperatorType,
    RightExpression,
)
from bedrock_agentcore.memory.session import MemorySessionManager
from botocore.exceptions import ClientError
from strands import tool

from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

from .checks import check, expect
from .metering import Meter
from .strands_sessions import open_agent
from .subject import ACTOR

CLIENT = "bedrock-agentcore"
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def said(messages: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"][-1].get("text", "")) for message in messages]


def talk(session: str, turns: int, **options: Any) -> list[tuple[str, str]]:
    """Make turns with an agent that is new to the session, and return what it then has in memory."""
    agent, model, manager = open_agent(DEFAULT_MEMORY, session, **options)
    for number in range(turns):
        agent.state.set("step", number)
        model.answers.append(f"answer {number}")
        agent(f"question {number}")
    manager.close()
    return said(agent.messages)


@check(CLIENT, "a new manager restores messages and state, and goes on")
def restores() -> None:
    before = talk("s", 3)
    agent, model, _ = open_agent(DEFAULT_MEMORY, "s")
    expect(said(agent.messages), before)
    expect(agent.state.get("step"), 2)
    model.answers.append("more")
    agent("and?")
    again, _, _ = open_agent(DEFAULT_MEMORY, "s")
    expect(said(again.messages), [*before, ("user", "and?"), ("assistant", "more")])


@check(CLIENT, "240 messages in 362 events are restored in their order, page by page")
def pages(emulator: AgentCoreEmulator, meter: Meter) -> None:
    before = talk("s", 120)
    expect(len(emulator.events()), 362)
    with meter.counting() as tally:
        agent, _, _ = open_agent(DEFAULT_MEMORY, "s")
    expect(said(agent.messages), before)
    # The oldest event marks the session, so its filter looks at all four pages; the newest is the agent's.
    expect(dict(tally.calls), {"ListEvents": 4 + 1 + 4})


@check(CLIENT, "list_messages with limit and offset")
def lists() -> None:
    talk("s", 4)
    _, _, manager = open_agent(DEFAULT_MEMORY, "s")
    found = [one.to_message() for one in manager.list_messages("s", "agent")]
    expect(len(found), 8)
    # It takes the newest limit + offset events, those of the agent's state among them.
    some = [one.to_message() for one in manager.list_messages("s", "agent", limit=2, offset=1)]
    expect(said(some), said(found[-2:])[1:])


@check(CLIENT, "calls and results of tools come back")
def tools() -> None:
    @tool
    def price(sku: str) -> str:
        """Say what an article costs."""
        return f"{sku} costs 3"

    agent, model, _ = open_agent(DEFAULT_MEMORY, "s", tools=[price])
    model.answers += [{"id": "call-1", "name": "price", "input": json.dumps({"sku": "A7"})}, "Three."]
    agent("What does A7 cost?")
    again, _, _ = open_agent(DEFAULT_MEMORY, "s", tools=[price])
    expect([message["role"] for message in again.messages], ["user", "assistant", "user", "assistant"])
    expect(again.messages[1]["content"][0]["toolUse"]["input"], {"sku": "A7"})
    expect(again.messages[2]["content"][0]["toolResult"]["content"], [{"text": "A7 costs 3"}])


@check(CLIENT, "a message of 150,000 characters, which goes as a blob, and one of other scripts")
def large(emulator: AgentCoreEmulator) -> None:
    agent, model, _ = open_agent(DEFAULT_MEMORY, "s")
    model.answers += ["y" * 150_000, "漢字 🎉"]
    agent("x" * 150_000)
    agent("Ünïcödé")
    again, _, _ = open_agent(DEFAULT_MEMORY, "s")
    expect(said(again.messages), said(agent.messages))
    expect(sum("blob" in event["payload"][0] for event in emulator.events()) >= 2, True)


@check(CLIENT, "redact_latest_message writes the message anew and deletes the old event")
def redacts(emulator: AgentCoreEmulator) -> None:
    agent, model, manager = open_agent(DEFAULT_MEMORY, "s")
    model.answers.append("a secret")
    agent("question")
    agent.messages[-1]["content"] = [{"text": "[redacted]"}]  # as an agent does before it calls this
    manager.redact_latest_message(agent.messages[-1], agent)
    again, _, _ = open_agent(DEFAULT_MEMORY, "s")
    expect(said(again.messages), [("user", "question"), ("assistant", "[redacted]")])
    expect("a secret" in json.dumps(emulator.events(), default=str), False)


@check(CLIENT, "batch_size=10: a turn is one event of its messages and one of the state, and is restored")
def batches(emulator: AgentCoreEmulator) -> None:
    before = talk("s", 60, batch_size=10)
    expect(len(emulator.events()), 1 + 60 + 60)
    agent, _, _ = open_agent(DEFAULT_MEMORY, "s", batch_size=10)
    expect(said(agent.messages), before)
    expect(agent.state.get("step"), 59)


@check(CLIENT, "sessions of one actor are apart, and listed")
def apart() -> None:
    talk("one", 1)
    talk("two", 2)
    agent, _, _ = open_agent(DEFAULT_MEMORY, "one")
    expect(len(agent.messages), 2)
    manager = MemorySessionManager(DEFAULT_MEMORY)
    expect(sorted(one["sessionId"] for one in manager.list_actor_sessions(ACTOR)), ["one", "two"])
    expect([one["actorId"] for one in manager.list_actors()], [ACTOR])


@check(CLIENT, "async_mode with three agents at once")
async def asynchronous() -> None:
    async def one(name: str) -> int:
        agent, model, _ = await asyncio.to_thread(open_agent, DEFAULT_MEMORY, name, async_mode=True)
        for number in range(5):
            model.answers.append(f"answer {number}")
            await agent.invoke_async(f"question {number}")
        again, _, _ = await asyncio.to_thread(open_agent, DEFAULT_MEMORY, name)
        return len(again.messages)

    expect(await asyncio.gather(*(one(f"s{number}") for number in range(3))), [10, 10, 10])


@check(CLIENT, "what is throttled, or answered by a 500, boto3 sends again; nothing is there twice")
def throttled(emulator: AgentCoreEmulator) -> None:
    emulator.fault("CreateEvent:throttle:nth=3")
    emulator.fault("CreateEvent:error_500_after:nth=5")
    emulator.fault("ListEvents:error_503:nth=2")
    before = talk("s", 3)
    agent, _, _ = open_agent(DEFAULT_MEMORY, "s")
    expect(said(agent.messages), before)
    expect([call.status for call in emulator.calls if call.status >= 400], [503, 429, 500])


@check(CLIENT, "errors: no such memory, a malformed id, a text that is too long, an event that is not there")
def refused() -> None:
    client = MemoryClient()

    def code_of(act: Any, *args: Any, **options: Any) -> str:
        try:
            act(*args, **options)
        except ClientError as error:
            return str(error.response["Error"]["Code"])
        return ""

    hello = {"actor_id": ACTOR, "session_id": "s", "messages": [("Hello", "USER")]}
    expect(code_of(client.create_event, "other_memory-abcdefghij", **hello), "ResourceNotFoundException")
    expect(
        code_of(client.create_event, DEFAULT_MEMORY, **hello | {"session_id": "a:b"}), "ValidationException"
    )
    long = hello | {"messages": [("x" * 100_001, "USER")]}
    expect(code_of(client.create_event, DEFAULT_MEMORY, **long), "ValidationException")
    nowhere = {
        "memoryId": DEFAULT_MEMORY,
        "actorId": ACTOR,
        "sessionId": "s",
        "eventId": f"{1:019d}#abcdef01",
    }
    expect(code_of(client.gmdp_client.get_event, **nowhere), "ResourceNotFoundException")
    expect(code_of(client.gmdp_client.delete_event, **nowhere), "ResourceNotFoundException")
    expect(client.list_events(DEFAULT_MEMORY, ACTOR, "nothing"), [])


@check(CLIENT, "MemoryClient.list_events with a filter finds 3 of 350, behind a page that is empty")
def filters(meter: Meter) -> None:
    client = MemoryClient(boto3_session=boto3.DEFAULT_SESSION)
    for number in range(350):
        more = {"metadata": {"place": {"stringValue": "Rome"}}} if number in {1, 2, 349} else {}
        client.create_event(
            DEFAULT_MEMORY, ACTOR, "s", [(str(number), "USER")], BEGAN + timedelta(seconds=number), **more
        )
    place = EventMetadataFilter.build_expression(
        LeftExpression.build("place"), OperatorType.EQUALS_TO, RightExpression.build("Rome")
    )
    with meter.counting() as tally:
        found = client.list_events(DEFAULT_MEMORY, ACTOR, "s", event_metadata=[place])
    expect([event["payload"][0]["conversational"]["content"]["text"] for event in found], ["349", "2", "1"])
    expect(tally.calls["ListEvents"], 4)


def branched(client: MemoryClient) -> list[str]:
    """Make four events, and a branch of two from the second; return the ids of the four."""
    ids = [
        client.create_event(
            DEFAULT_MEMORY, ACTOR, "s", [(f"main {number}", "USER")], BEGAN + timedelta(seconds=number)
        )["eventId"]
        for number in range(4)
    ]
    later = BEGAN + timedelta(seconds=10)
    client.fork_conversation(DEFAULT_MEMORY, ACTOR, "s", ids[1], "other", [("other 0", "USER")], later)
    client.create_event(
        DEFAULT_MEMORY,
        ACTOR,
        "s",
        [("other 1", "ASSISTANT")],
        later + timedelta(seconds=1),
        branch={"name": "other"},
    )
    return ids


@check(CLIENT, "MemoryClient's branches: fork, list, tree, context with and without the parents'")
def branches(emulator: AgentCoreEmulator) -> None:
    client = MemoryClient()
    ids = branched(client)
    found = {one["name"]: one for one in client.list_branches(DEFAULT_MEMORY, ACTOR, "s")}
    expect({name: one["eventCount"] for name, one in found.items()}, {"main": 4, "other": 2})
    alone = client.merge_branch_context(DEFAULT_MEMORY, ACTOR, "s", "other", include_parent=False)
    expect([one["content"] for one in alone], ["other 0", "other 1"])
    whole = client.merge_branch_context(DEFAULT_MEMORY, ACTOR, "s", "other")
    expect([one["content"] for one in whole], ["main 0", "main 1", "other 0", "other 1"])
    tree = client.get_conversation_tree(DEFAULT_MEMORY, ACTOR, "s")
    expect(len(tree["main_branch"]["branches"]["other"]["events"]), 2)
    turns = client.get_last_k_turns(DEFAULT_MEMORY, ACTOR, "s", k=1, branch_name="other")
    expect(len(turns), 1)
    expect(
        client.list_branch_events(DEFAULT_MEMORY, ACTOR, "s", "other", max_results=1)[0]["branch"]["name"],
        "other",
    )
    # Only an event says where its branch began.
    roots = {event.get("branch", {}).get("rootEventId") for event in emulator.events()}
    expect(roots - {None}, {ids[1]})


@check(
    CLIENT, "MemorySessionManager: turns, pages whose size changes half-way, fork, branches, get and delete"
)
def managed() -> None:
    manager = MemorySessionManager(DEFAULT_MEMORY)
    session = manager.create_memory_session(ACTOR, "s")
    for number in range(130):
        session.add_turns([ConversationalMessage(f"{number}", MessageRole.USER)])
    expect(len(session.list_events(max_results=120)), 120)
    expect(len(session.list_events(max_results=1000)), 130)
    events = session.list_events(max_results=1000)
    forked = session.fork_conversation(
        [ConversationalMessage("fork", MessageRole.USER)], events[5]["eventId"], "side"
    )
    expect(forked["branch"]["rootEventId"], events[5]["eventId"])
    expect(sorted(branch["name"] for branch in session.list_branches()), ["main", "side"])
    expect(len(session.list_events(branch_name="side")), 1)
    expect(len(session.get_last_k_turns(k=3)), 3)
    expect(session.get_event(events[0]["eventId"])["payload"], events[0]["payload"])
    session.delete_event(events[0]["eventId"])
    expect(len(session.list_events(max_results=1000)), 130)
