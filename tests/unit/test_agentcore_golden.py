"""What the Ruby store wrote is read as it reads it, and ours writes the same, byte for byte."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from littleghost import CorruptSessionError, Message
from littleghost.errors import DataError, SessionTooLargeError
from littleghost.sessions.agentcore import checkpoints, limits
from littleghost.sessions.agentcore.history import Head, History
from littleghost.sessions.agentcore.naming import safe_id
from littleghost.sessions.agentcore.planning import plan
from littleghost.sessions.agentcore.projection import project

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "agentcore"


def golden(name: str) -> Any:
    path = GOLDEN / f"{name}.json"
    text = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
    return json.loads(text)


WHOLE = [
    "01_short_conversation",
    "02_tools_reasoning_attachments",
    "04_chunk_ascii_210k",
    "07_250_messages_one_append",
    "10_projection",
    "11_legacy_v4_read_and_upgrade",
    "12_interrupted_and_lost_response",
    "15_empty_replace",
]

# What ours does otherwise than the Ruby store did on load, and why. All else is as it was there.
DEVIATIONS = {
    "checkpoint_timestamp_not_a_time": "an object of the Ruby client, which no answer of the service can hold: a number is a time",
}

ORDERS = pytest.mark.parametrize("newest_first", [True, False], ids=["newest-first", "oldest-first"])
PAGES = pytest.mark.parametrize("size", [1, 7, 100])


def read(events: list[dict[str, Any]], *, newest_first: bool = True, size: int = 100) -> History:
    """As a store reads: page by page, until older ones do not matter any more."""
    listed = sorted(events, key=lambda event: event["eventId"], reverse=newest_first)
    history = History()
    pages = [listed[start : start + size] for start in range(0, len(listed), size)] or [[]]
    for number, page in enumerate(pages, 1):
        history.add(page, last=number == len(pages))
        if history.settled(0):
            break
    return history


def loaded(history: History) -> dict[str, Any] | None:
    head = history.head
    if head is None:
        return None
    return {
        "messages": [message.to_dict() for message in history.messages()],
        "state": head.checkpoint.state,
        "metadata": head.checkpoint.metadata,
    }


@ORDERS
@PAGES
@pytest.mark.parametrize("name", WHOLE)
def test_a_session_of_the_ruby_store_is_read(name: str, size: int, newest_first: bool):
    case = golden(name)
    history = read(case["events"], newest_first=newest_first, size=size)
    assert loaded(history) == case["expected_on_load"]


@ORDERS
@PAGES
@pytest.mark.parametrize("case", golden("errors")["cases"], ids=lambda case: case["name"])
def test_what_is_damaged_is_read_or_refused_as_by_the_ruby_store(
    case: dict[str, Any], size: int, newest_first: bool
):
    history = read(case["events"], newest_first=newest_first, size=size)
    if "loads" in case["outcome"]:
        assert loaded(history) == case["outcome"]["loads"]
    elif case["name"] in DEVIATIONS:
        assert loaded(history) is not None
    else:
        with pytest.raises(CorruptSessionError) as caught:
            loaded(history)
        names = {event["eventId"] for event in case["events"]}
        assert caught.value.event_id in names
        assert caught.value.event_id in str(caught.value)


def test_every_deviation_is_still_a_case():
    assert set(DEVIATIONS) <= {case["name"] for case in golden("errors")["cases"]}


def test_actors_and_sessions_are_called_what_the_ruby_store_calls_them():
    for name in WHOLE:
        case = golden(name)
        assert safe_id(case["actor_id"]) == case["wire_actor_id"]
        assert safe_id(case["session_id"]) == case["wire_session_id"]


def commits(events: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The events of each commit, and each projection alone, in the order of writing."""
    group: list[dict[str, Any]] = []
    for event in events:
        commit = event["metadata"].get("little_ghost_commit")
        if group and (commit is None or commit != group[-1]["metadata"].get("little_ghost_commit")):
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def as_created(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**request, "eventTimestamp": int(request["eventTimestamp"].timestamp())} for request in requests]


def ruby_requests(
    operation: dict[str, Any], events: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], bool]:
    """What the Ruby store asked for, with the payloads, and whether all of it was stored."""
    calls = [call["request"] for call in operation["api_calls"] if call["operation"] == "CreateEvent"]
    common = ("memoryId", "actorId", "sessionId")
    made = [{key: value for key, value in call.items() if key not in common} for call in calls]
    for request, event in zip(made, events, strict=False):
        request["payload"] = event["payload"]
    return made, len(made) == len(events)


def given(operation: dict[str, Any]) -> dict[str, Any]:
    args = operation["args"]
    return {
        "messages": [Message.from_dict(form) for form in args["messages"]],
        "state": args["state"],
        "metadata": args["metadata"],
    }


@pytest.mark.parametrize("name", WHOLE)
def test_ours_asks_for_the_very_events_that_the_ruby_store_asked_for(name: str):
    case = golden(name)
    written = list(case.get("initial_legacy_events", ()))
    groups = commits(case["events"][len(written) :])
    replayed = 0
    for operation in case["operations"]:
        refused = (operation.get("error") or {}).get("class") == "LittleGhost::ProtocolError"
        if operation["op"] == "load" or refused:
            continue
        if operation["op"] == "project_conversation":
            args = operation["args"]
            messages = [Message.from_dict(form) for form in args["messages"]]
            ours = as_created(project(messages, args["metadata"], operation["clock"] + 0.9))
            stored = next(groups) if ours else []
            assert ours == ruby_requests(operation, stored)[0]
        else:
            stored = next(groups)
            history = read(written)
            head = history.head
            ids = stored[0]["metadata"]
            planned = plan(
                operation["op"],
                **given(operation),
                head=head,
                migrate=history.messages() if head and head.checkpoint.version == 4 else None,
                commit_id=ids["little_ghost_commit"]["stringValue"],
                generation=ids["little_ghost_generation"]["stringValue"],
                now=operation["clock"] + 0.9,
            )
            expected, whole = ruby_requests(operation, stored)
            ours = as_created(planned.requests)
            # Of an interrupted commit the last event is not among those stored.
            assert ours[: None if whole else -1] == expected[: None if whole else -1]
            assert len(ours) == len(expected)
        written += stored
        replayed += 1
    assert written == case["events"]
    assert replayed


def described(text: str | dict[str, Any]) -> dict[str, Any]:
    """What a text is known by; the longer ones are kept in this form."""
    if isinstance(text, dict):
        return {key: text[key] for key in ("chars", "bytes", "sha256")}
    raw = text.encode()
    return {"chars": len(text), "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def test_where_the_request_would_be_too_large_ours_begins_another_event_and_the_items_are_the_same():
    case = golden("18_ten_mib_event_packing")
    messages: list[Message] = []
    for form in case["operations"][0]["args"]["messages"]:
        text = form["content"][0]["text"]
        messages.append(Message.user(text["head"][0] * text["chars"]))
        assert described(messages[-1].text) == described(text)
    *stored, checkpoint = case["events"]
    ids = checkpoint["metadata"]
    planned = plan(
        "append",
        messages,
        {},
        {},
        head=None,
        commit_id=ids["little_ghost_commit"]["stringValue"],
        generation=ids["little_ghost_generation"]["stringValue"],
        now=case["operations"][0]["clock"],
    )
    *ours, last = planned.requests
    items = [entry["conversational"] for request in ours for entry in request["payload"]]
    theirs = [entry["conversational"] for event in stored for entry in event["payload"]]
    assert [(described(entry["content"]["text"]), entry["role"]) for entry in items] == [
        (described(entry["content"]["text"]), entry["role"]) for entry in theirs
    ]
    # Nearly each of these items takes 540,000 bytes in a request, two for each of its own.
    assert [len(event["payload"]) for event in stored] == [38, 39, 25]
    assert [len(request["payload"]) for request in ours] == [18, 18, 19, 18, 18, 11]
    blob = checkpoint["payload"][0]["blob"]
    text = blob if isinstance(blob, str) else blob["head"]
    assert last["payload"][0]["blob"][:300] == text.replace('"event_count":3', '"event_count":6')[:300]
    assert planned.checkpoint.event_count == 6
    assert planned.checkpoint.payload_count == len(theirs)
    assert planned.checkpoint.serialized_bytes == sum(
        described(entry["content"]["text"])["bytes"] for entry in theirs
    )


def nested(depth: int) -> Any:
    """Lists in one another, so many."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def write(
    messages: list[Message] | None = None, state: Any = None, head: Head | None = None, kind: Any = "append"
) -> Any:
    return plan(
        kind, messages or [], state or {}, {}, head=head, commit_id="c", generation="g", now=1767225600
    )


def mappings(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth - 1):
        value = {"k": value}
    return value


WRITER = {
    "state depth 90": lambda: write(state=mappings(90)),
    "state list depth 97": lambda: write(state={"k": nested(97)}),
    "state list depth 99": lambda: write(state={"k": nested(99)}),
    "message metadata list depth 92": lambda: write([Message("user", "x", {"k": nested(92)})]),
    "message metadata list depth 94": lambda: write([Message("user", "x", {"k": nested(94)})]),
    "message metadata list depth 96": lambda: write([Message("user", "x", {"k": nested(96)})]),
    "nan in state": lambda: write(state={"k": math.nan}),
    "checkpoint over 1 MiB": lambda: write(state={"k": "x" * 1_100_000}),
    "10001 messages": lambda: write([Message.user("x")] * 10_001),
    "tool_result nested nil and hash with unknown type": lambda: write(
        [
            Message.from_dict(
                {
                    "role": "tool",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "1",
                            "content": {"a": None, "b": {"type": "x"}},
                            "status": "success",
                        }
                    ],
                }
            )
        ]
    ),
}


@pytest.mark.parametrize(
    "case", [c for c in golden("writer_errors") if "count" not in c], ids=lambda c: c["name"]
)
def test_what_the_ruby_store_refuses_to_write_ours_refuses_and_nothing_else(case: dict[str, Any]):
    attempt = WRITER[case["name"]]
    if case["error"] is None:
        assert len(attempt().requests) == case["create_calls"]
    else:
        with pytest.raises((DataError, SessionTooLargeError)):
            attempt()


def test_the_life_of_a_session_is_not_limited_by_the_sum_of_its_checkpoints():
    wall = next(case for case in golden("writer_errors") if "count" in case)["count"]
    state = {"k": "x" * 1_000_000}
    stored: list[dict[str, Any]] = []
    head = None
    for number in range(wall + 2):
        planned = plan("append", [], state, {}, head=head, commit_id=f"c{number}", generation="g", now=0)
        assert [len(request["payload"]) for request in planned.requests] == [1]
        (request,) = as_created(planned.requests)
        stored.append({**request, "eventId": f"{request['eventTimestamp'] * 1000:019d}#{number:08x}"})
        head = Head(checkpoint=checkpoints.decode(stored[-1]))
    assert sum(len(event["payload"][0]["blob"]) for event in stored) > 64 * 1024 * 1024
    history = read(stored, size=7)
    assert history.complete
    assert history.head is not None
    assert history.head.checkpoint.revision == wall + 2
    assert history.head.checkpoint.state == state
    assert limits.MAX_CHECKPOINT_BYTES > 1_000_000
    assert checkpoints.PREFIX in stored[0]["payload"][0]["blob"]
