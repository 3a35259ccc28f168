"""The store and the emulator together, against what the Ruby store wrote and read."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from littleghost import AgentCoreMemoryStore, CorruptSessionError, Message, ProtocolError
from littleghost.emulators.agentcore import AgentCoreEmulator
from littleghost.sessions.agentcore.naming import safe_id

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "agentcore"
WRITTEN = [
    "01_short_conversation",
    "02_tools_reasoning_attachments",
    "04_chunk_ascii_210k",
    "07_250_messages_one_append",
    "10_projection",
    "11_legacy_v4_read_and_upgrade",
    "15_empty_replace",
]


# A list of the service has a number there, so this cannot reach a store.
ON_NO_WIRE = {"checkpoint_timestamp_not_a_time"}


def golden(name: str) -> Any:
    path = GOLDEN / f"{name}.json"
    text = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
    return json.loads(text)


@pytest.fixture(params=["newest", "oldest"])
def emulator(request: pytest.FixtureRequest) -> Iterator[AgentCoreEmulator]:
    # Of the time that the files are of, for events expire.
    with AgentCoreEmulator(
        {"golden_memory-AbCdEf1234": 90}, order=request.param, clock=lambda: 1_767_225_600.0
    ) as emulator:
        yield emulator


def plant(emulator: AgentCoreEmulator, events: list[Any]) -> None:
    """Put the events of a file in, with as many digits in their ids as the service has, which orders them by these."""
    emulator.put(*({**event, "eventId": event["eventId"].zfill(28)} for event in events))


def store_for(
    case: Any, emulator: AgentCoreEmulator, clock: list[float], first: int = 1
) -> AgentCoreMemoryStore:
    numbers = itertools.count(first)

    def new_id() -> str:
        number = next(numbers)
        return f"{number:08x}-0000-4000-8000-{number:012x}"

    return AgentCoreMemoryStore(
        case["memory_id"],
        client=emulator.client(transport="memory"),
        clock=lambda: clock[0],
        id_factory=new_id,
    )


def plain(event: Any) -> Any:
    """What a commit writes of an event; floats have another spelling in Ruby, so texts are compared as what they say."""

    def text(value: str) -> Any:
        head, brace, rest = value.partition("{")
        return (head, json.loads(brace + rest)) if "v4:{" in value or "v5:{" in value else value

    return (
        float(event["eventTimestamp"]),
        [
            text(item["blob"])
            if "blob" in item
            else (item["conversational"]["role"], text(item["conversational"]["content"]["text"]))
            for item in event["payload"]
        ],
        event["metadata"],
    )


def in_order(events: Any) -> list[Any]:
    """The events by their times; of those with the same one the order is anybody's."""
    return sorted(map(plain, events), key=repr)


@pytest.mark.parametrize("name", [*WRITTEN, "12_interrupted_and_lost_response"])
async def test_the_emulator_holds_what_ruby_wrote_and_the_store_reads_it(
    name: str, emulator: AgentCoreEmulator
):
    case = golden(name)
    plant(emulator, case["events"])
    store = store_for(case, emulator, [0.0])
    found = await store.load(case["session_id"], actor_id=case["actor_id"])
    assert found is not None
    assert {
        "messages": [message.to_dict() for message in found.messages],
        "state": found.state,
        "metadata": found.metadata,
    } == case["expected_on_load"]
    assert not [call for call in emulator.calls if call.operation not in ("ListEvents", "GetEvent")]


@pytest.mark.parametrize("name", WRITTEN)
async def test_what_ruby_was_told_to_write_is_written_alike(name: str, emulator: AgentCoreEmulator):
    case, clock = golden(name), [0.0]
    plant(emulator, case.get("initial_legacy_events", []))
    store = store_for(case, emulator, clock, 4 if "initial_legacy_events" in case else 1)
    for operation in case["operations"]:
        clock[0] = float(operation["clock"])
        arguments = dict(operation["args"])
        if "messages" in arguments:
            arguments["messages"] = [Message.from_dict(message) for message in arguments["messages"]]
        call = getattr(store, operation["op"])
        answer = await call(case["session_id"], actor_id=case["actor_id"], **arguments)
        if operation["op"] == "load" and operation["result"] is None:
            assert answer is None
    actor, session = safe_id(case["actor_id"]), safe_id(case["session_id"])
    assert in_order(emulator.events(case["memory_id"], actor, session)) == in_order(case["events"])


async def test_a_session_that_goes_on_after_ruby_is_one_that_ruby_reads(emulator: AgentCoreEmulator):
    case = golden("01_short_conversation")
    plant(emulator, case["events"])
    store = store_for(case, emulator, [1_767_225_600.0], 100)
    key = {"actor_id": case["actor_id"]}
    commit = await store.append(
        case["session_id"],
        messages=[Message.user("more")],
        state={"step": 2},
        metadata={},
        expected_count=2,
        commit_id="of-the-caller",
        **key,
    )
    assert commit.count == 3
    again = await store.append(
        case["session_id"],
        messages=[Message.user("more")],
        state={"step": 2},
        metadata={},
        expected_count=2,
        commit_id="of-the-caller",
        **key,
    )
    assert again == commit
    events = emulator.events(case["memory_id"], safe_id(case["actor_id"]), safe_id(case["session_id"]))
    last = max(events, key=lambda event: event["eventId"])
    checkpoint = json.loads(last["payload"][0]["blob"].removeprefix("little_ghost:checkpoint:v5:"))
    first = json.loads(case["events"][-1]["payload"][0]["blob"].removeprefix("little_ghost:checkpoint:v5:"))
    assert checkpoint["parent_commit_id"] == first["commit_id"]
    assert (checkpoint["revision"], checkpoint["root"], checkpoint["generation"]) == (
        2,
        False,
        first["generation"],
    )
    assert ":" not in checkpoint["commit_id"]
    assert len(checkpoint["commit_id"]) <= 256


@pytest.mark.parametrize(
    "case",
    [case for case in golden("errors")["cases"] if case["name"] not in ON_NO_WIRE],
    ids=lambda case: case["name"],
)
async def test_what_is_stored_wrongly_is_an_error_and_no_empty_history(
    case: Any, emulator: AgentCoreEmulator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("littleghost.sessions.agentcore.reading.PAUSES", (0.0, 0.001))
    plant(emulator, case["events"])
    names = {"memory_id": "golden_memory-AbCdEf1234", "actor_id": "actor-1", "session_id": "session-1"}
    store = store_for(names, emulator, [0.0])
    outcome, before = case["outcome"], len(emulator.events())
    if "raises" in outcome:
        with pytest.raises(CorruptSessionError):
            await store.load("session-1", actor_id="actor-1")
        # An append needs no messages, and may find only that there are others than it thinks.
        with pytest.raises(ProtocolError):
            await store.append(
                "session-1", messages=[], state={}, metadata={}, expected_count=0, actor_id="actor-1"
            )
        assert len(emulator.events()) == before
    else:
        found = await store.load("session-1", actor_id="actor-1")
        assert found is not None
        assert [message.to_dict() for message in found.messages] == outcome["loads"]["messages"]
