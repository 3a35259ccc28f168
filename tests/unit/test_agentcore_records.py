"""What is in an event is read in whatever valid spelling, and refused by name where it is none."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost import CorruptSessionError, Message
from littleghost.sessions.agentcore import checkpoints, limits
from littleghost.sessions.agentcore.checkpoints import decode
from littleghost.sessions.agentcore.history import History
from littleghost.sessions.agentcore.items import item_texts
from littleghost.sessions.agentcore.planning import plan

RECORD = "little_ghost:message:v4:"
CHUNK = "little_ghost:message_chunk:v4:"
SECRET = "to-be-kept-out-of-errors"


def session(*messages: Message, state: Any = None) -> list[dict[str, Any]]:
    """The events of one commit, newest first."""
    made = plan(
        "append", messages, state or {}, {}, head=None, commit_id="commit", generation="generation", now=10
    )
    return [
        {**copy.deepcopy(request), "eventId": f"{number:019d}#0a"}
        for number, request in enumerate(made.requests)
    ][::-1]


def read(events: list[dict[str, Any]]) -> tuple[Message, ...]:
    history = History()
    history.add(events, last=True)
    return history.messages()


def texts(event: dict[str, Any]) -> list[str]:
    return [entry["conversational"]["content"]["text"] for entry in event["payload"]]


def with_texts(found: list[str], messages: list[Message] | None = None) -> list[dict[str, Any]]:
    """A session whose message event has these texts, and whose checkpoint says so."""
    checkpoint, message = session(*(messages or [Message.user("one")]))
    message["payload"] = [{"conversational": {"content": {"text": text}, "role": "USER"}} for text in found]
    blob = checkpoint["payload"][0]["blob"]
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in found)
    blob = re.sub(r'"serialized_bytes":\d+', f'"serialized_bytes":{size}', blob)
    checkpoint["payload"][0]["blob"] = re.sub(r'"payload_count":\d+', f'"payload_count":{len(found)}', blob)
    return [checkpoint, message]


def record(message: Any, **changes: Any) -> str:
    given = {"generation": "generation", "commit_id": "commit", "sequence": 0, "message": message, **changes}
    return RECORD + json.dumps({key: value for key, value in given.items() if value is not ...})


# --- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"role": "user", "content": "plain"}, Message.user("plain")),
        ({"role": "user", "content": None}, Message("user", [])),
        ({"role": "user", "content": ["a", {"type": "text", "text": "b"}]}, Message.user(["a", "b"])),
        ({"role": "user", "content": {"type": "text", "text": "b"}, "metadata": None}, Message.user("b")),
        (
            {"metadata": {"n": 1e21}, "content": [], "role": "assistant"},
            Message("assistant", [], {"n": 1e21}),
        ),
    ],
)
def test_a_message_is_read_in_any_valid_spelling(form: Any, expected: Message):
    assert read(with_texts([record(form, more="ignored")])) == (expected,)
    pretty = RECORD + json.dumps(json.loads(record(form).removeprefix(RECORD)), indent=1)
    assert read(with_texts([pretty])) == (expected,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (record({"role": SECRET, "content": []}), "a message 0 that is none, at message.role"),
        (record({"role": "user", "content": [{"type": SECRET}]}), r"at message.content\[0\]"),
        (record({"role": "user"}), "at message"),
        (record({"role": "user", "content": [], SECRET: 1}), "at message"),
        (record({"role": "user", "content": [], "metadata": []}), "at message.metadata"),
        (record(SECRET), "at message"),
        (record({"role": "user", "content": []}, sequence=0.0), "without a place"),
        (record({"role": "user", "content": []}, sequence=True), "without a place"),
        (record({"role": "user", "content": []}, sequence=-1), "without a place"),
        (record({"role": "user", "content": []}, sequence=...), "without a place"),
        (record({"role": "user", "content": []}, sequence=1), "message 1, which is none of its commit"),
        (record({"role": "user", "content": []}, commit_id=SECRET), "another generation or commit"),
        (record({"role": "user", "content": []}, commit_id=None), "without a place"),
        (record({"role": "user", "content": []}, generation=SECRET), "another generation or commit"),
        (RECORD + "[]", "without a place"),
        (RECORD + '{"' + SECRET, "not valid JSON"),
        (record({"role": "user", "content": [], "metadata": {"n": float("nan")}}), "not valid JSON"),
        (RECORD + record({"role": "user", "content": "\ud800"}).removeprefix(RECORD), "not valid JSON"),
        (
            record({"role": "user", "content": [], "metadata": {"k": eval("[" * 98 + "]" * 98)}}),
            "deeper than 100",
        ),
        (SECRET, "neither a message nor a chunk"),
        (CHUNK + SECRET, "a chunk without a place"),
        (f"{CHUNK}commit:0:0:1", "a chunk without a place"),
        (f"{CHUNK}commit:0:-1:1:x", "a chunk without a place"),
        (f"{CHUNK}commit:0:00:1:x", "a chunk without a place"),
        (f"{CHUNK}commit:0:٠:1:x", "a chunk without a place"),
        (f"{CHUNK}commit:0:0:0:x", "a chunk 0 of 0"),
        (f"{CHUNK}commit:0:1:1:x", "a chunk 1 of 1"),
        (f"{CHUNK}commit:0:0:10001:x", "a chunk 0 of 10001"),
        (f"{CHUNK}commit:0:0:2:x", "of which 2 should be there"),
        (f"{CHUNK}{SECRET}:0:0:1:x", "a chunk of another commit"),
        (f"{CHUNK}commit:0:0:1:{SECRET}", "not valid JSON"),
        (
            f"{CHUNK}commit:1:0:1:" + record({"role": "user", "content": []}).removeprefix(RECORD),
            "that hold another",
        ),
    ],
)
def test_a_message_that_is_none_is_refused_with_its_event_and_without_its_content(text: str, problem: str):
    events = with_texts([text])
    with pytest.raises(CorruptSessionError, match=problem) as caught:
        read(events)
    assert caught.value.event_id == events[1]["eventId"]
    assert caught.value.event_id in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_same_message_twice_in_a_commit_is_one_and_two_different_ones_are_none():
    (text,) = item_texts(Message.user("one"), "generation", "commit", 0)
    assert read(with_texts([text, text])) == (Message.user("one"),)
    (other,) = item_texts(Message.user("two"), "generation", "commit", 0)
    with pytest.raises(CorruptSessionError, match="another message 0"):
        read(with_texts([text, other]))


def test_a_message_that_is_missing_is_named():
    (text,) = item_texts(Message.user("one"), "generation", "commit", 0)
    with pytest.raises(CorruptSessionError, match="message 1 of its commit is missing"):
        read(with_texts([text], [Message.user("one"), Message.user("two")]))


@given(
    text=st.text(min_size=1, max_size=300) | st.text('x\n漢:😀"\\', min_size=1, max_size=300),
    size=st.integers(1, 80),
    random=st.randoms(use_true_random=False),
)
def test_chunks_are_joined_whatever_their_size_and_order(text: str, size: int, random: Any):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_CHARS", size)
        patch.setattr(limits, "MAX_ITEM_CHARS", 170)
        patch.setattr(limits, "MAX_ITEMS", 1000)
        found = item_texts(Message.user(text), "generation", "commit", 0)
        random.shuffle(found)
        assert read(with_texts(found)) == (Message.user(text),)


def test_chunks_that_contradict_each_other_are_refused():
    whole = record({"role": "user", "content": []}).removeprefix(RECORD)
    first, second = f"{CHUNK}commit:0:0:2:{whole[:9]}", f"{CHUNK}commit:0:1:2:{whole[9:]}"
    assert read(with_texts([second, first])) == (Message("user", []),)
    for other in (f"{CHUNK}commit:0:1:3:{whole[9:]}", f"{CHUNK}commit:0:1:2:{whole[9:]} "):
        with pytest.raises(CorruptSessionError, match="contradicts another"):
            read(with_texts([first, second, other]))
    with pytest.raises(CorruptSessionError, match="of which 2 should be there"):
        read(with_texts([first]))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda event: event.update(payload=[]), "0 items"),
        (lambda event: event.pop("payload"), "0 items"),
        (lambda event: event.update(payload=event["payload"] * 101), "101 items"),
        (lambda event: event["payload"][0].update(conversational=None), "no part of a conversation"),
        (lambda event: event.update(payload=[None]), "no part of a conversation"),
        (
            lambda event: event["payload"][0]["conversational"].update(role="SYSTEM"),
            "no part of a conversation",
        ),
        (lambda event: event["payload"][0]["conversational"].update(role=None), "no part of a conversation"),
        (lambda event: event["payload"][0]["conversational"].update(content={"text": ""}), "no part of"),
        (lambda event: event["payload"][0]["conversational"].update(content={"text": ["x"]}), "no part of"),
        (
            lambda event: event["payload"][0]["conversational"].update(content={"text": "x" * 100_001}),
            "no part of a conversation",
        ),
    ],
)
def test_an_event_of_a_commit_that_is_no_message_event_is_refused(
    spoil: Callable[[dict[str, Any]], Any], problem: str
):
    events = session(Message.user("one"))
    spoil(events[1])
    with pytest.raises(CorruptSessionError, match=problem) as caught:
        read(events)
    assert caught.value.event_id == events[1]["eventId"]


def test_the_author_that_aws_knows_may_be_spelled_in_any_case_and_says_nothing():
    events = session(Message.assistant("one"))
    events[1]["payload"][0]["conversational"]["role"] = "user"
    assert read(events) == (Message.assistant("one"),)


def test_the_json_is_spelled_as_the_ruby_store_spells_it():
    text = '/\x7f\u2028é漢😀\b\t\n\f\r\x00\x1f"\\'
    (found,) = item_texts(Message("user", text, {"n": [-0.0, 10**30, 0.5, None, True]}), "g", "c", 7)
    assert found == (
        'little_ghost:message:v4:{"generation":"g","commit_id":"c","sequence":7,"message":{"role":"user","content":'
        '[{"type":"text","text":"/\x7f\u2028é漢😀\\b\\t\\n\\f\\r\\u0000\\u001f\\"\\\\"}],'
        '"metadata":{"n":[-0.0,1000000000000000000000000000000,0.5,null,true]}}}'
    )


# --- checkpoints -------------------------------------------------------------------------------------------------------


def checkpoint(legacy: bool = False, **changes: Any) -> dict[str, Any]:
    (event,) = session(state={"a": 1})
    form = json.loads(event["payload"][0]["blob"].removeprefix(checkpoints.PREFIX)) | changes
    prefix = checkpoints.LEGACY_PREFIX if legacy else checkpoints.PREFIX
    event["payload"][0]["blob"] = prefix + json.dumps(
        {key: value for key, value in form.items() if value is not ...}, indent=1
    )
    if legacy:
        event["metadata"]["little_ghost_type"]["stringValue"] = "checkpoint_v4"
    return event


def test_a_checkpoint_is_read_in_any_valid_spelling():
    stored = decode(checkpoint(parent_commit_id=..., metadata=..., more=[SECRET]))
    assert (stored.parent_commit_id, stored.state, stored.metadata) == (None, {"a": 1}, {})
    assert (stored.version, stored.timestamp, stored.event_id) == (5, 10.0, "0000000000000000000#0a")
    again = stored.state
    again["a"] = 2
    assert stored.state == {"a": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {name: value}
        for name in ("revision", "generation_revision", "start_sequence", "added_count", "message_count")
        for value in (-1, 1.0, True, "1", None, ..., 2**63)
    ]
    + [
        {"revision": 0},
        {"generation_revision": 0},
        {"generation_revision": 2},
        {"message_count": 10_001},
        {"serialized_bytes": 134_217_729},
        {"event_count": 10_001},
        {"payload_count": 25_001},
        {"root": 1},
        {"root": None},
        {"generation": ""},
        {"generation": "g" * 257},
        {"commit_id": 7},
        {"commit_id": SECRET},
        {"parent_commit_id": ""},
        {"parent_commit_id": 7},
        {"state": None},
        {"state": []},
        {"state": SECRET},
        {"metadata": None},
        {"state": {"k": eval("[" * 99 + "]" * 99)}},
        {"state": {"k": "x" * 1_048_576}},
    ],
    ids=lambda changes: ",".join(f"{key}={str(value)[:12]}" for key, value in changes.items()),
)
def test_a_checkpoint_that_is_none_is_refused_with_its_event_and_without_its_content(changes: dict[str, Any]):
    with pytest.raises(CorruptSessionError) as caught:
        decode(checkpoint(**changes))
    assert caught.value.event_id == "0000000000000000000#0a"
    assert SECRET not in str(caught.value)


def test_a_checkpoint_is_measured_in_its_compact_form():
    event = checkpoint(state={"k": ["x"] * 200_000})
    assert len(event["payload"][0]["blob"]) > limits.MAX_CHECKPOINT_BYTES
    assert len(decode(event).state["k"]) == 200_000


@pytest.mark.parametrize(
    "spoil",
    [
        lambda event: event["payload"].append({"blob": "x"}),
        lambda event: event["payload"].clear(),
        lambda event: event.pop("payload"),
        lambda event: event.update(payload=[{"blob": {"a": 1}}]),
        lambda event: event.update(payload=[{"blob": SECRET}]),
        lambda event: event.update(payload=[{"blob": checkpoints.PREFIX + "[]"}]),
        lambda event: event.update(payload=[{"blob": checkpoints.PREFIX + "[" * 9000}]),
        lambda event: event.update(payload=[{"blob": checkpoints.PREFIX + '"\ud800"'}]),
        lambda event: event.update(payload=event["payload"] + [{"json": 1}] * 100),
        lambda event: event.pop("eventTimestamp"),
        lambda event: event.update(eventTimestamp="now"),
        lambda event: event["metadata"].pop("little_ghost_commit"),
        lambda event: event["metadata"]["little_ghost_generation"].update(stringValue="other"),
        lambda event: event["metadata"]["little_ghost_type"].update(stringValue="checkpoint_v4"),
    ],
)
def test_an_event_that_holds_no_checkpoint_is_refused(spoil: Callable[[dict[str, Any]], Any]):
    event = checkpoint()
    spoil(event)
    with pytest.raises(CorruptSessionError) as caught:
        decode(event)
    assert SECRET not in str(caught.value)


def test_a_number_beyond_all_floats_is_refused_when_it_is_asked_for():
    event = checkpoint()
    event["payload"][0]["blob"] = event["payload"][0]["blob"].replace('"a": 1', '"a": 1e999')
    with pytest.raises(CorruptSessionError, match="state is not valid JSON"):
        _ = decode(event).state


def test_keys_of_the_older_format_lose_what_says_their_kind_at_every_depth():
    symbol, string = checkpoints.SYMBOL_KEY, checkpoints.STRING_KEY
    state = {
        f"{symbol}a": [{f"{string}b": {f"{symbol}c": f"{symbol}value"}}],
        "bare": 1,
        f"{string}d": 1,
        "d": 2,
        f"{symbol}{string}e": 3,
    }
    stored = decode(checkpoint(legacy=True, state=state))
    assert stored.version == 4
    assert stored.state == {"a": [{"b": {"c": f"{symbol}value"}}], "bare": 1, "d": 2, f"{string}e": 3}


@pytest.mark.parametrize("other", ["", checkpoints.STRING_KEY])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_key_of_the_older_format_that_is_a_symbol_and_a_string_is_refused(other: str, reverse: bool):
    pairs = [(f"{checkpoints.SYMBOL_KEY}a", 1), (f"{other}a", 2)]
    state = dict(reversed(pairs) if reverse else pairs)
    for where in ({"state": state}, {"metadata": {"deep": [state]}}):
        with pytest.raises(CorruptSessionError, match="both as a symbol and as a string"):
            decode(checkpoint(legacy=True, **where))


# --- what continues what -----------------------------------------------------------------------------------------------


def stored_as(**facts: Any) -> checkpoints.Stored:
    return msgspec.structs.replace(decode(checkpoint()), event_id=facts.pop("name", "an-event"), **facts)


PARENT: dict[str, Any] = {
    "commit_id": "parent",
    "parent_commit_id": "before",
    "revision": 7,
    "generation_revision": 5,
    "start_sequence": 2,
    "added_count": 2,
    "message_count": 4,
    "serialized_bytes": 900,
    "event_count": 3,
    "payload_count": 6,
    "root": False,
    "name": "the-parent",
}
CHILD: dict[str, Any] = {
    **PARENT,
    "commit_id": "child",
    "parent_commit_id": "parent",
    "revision": 8,
    "start_sequence": 4,
    "added_count": 1,
    "message_count": 5,
    "name": "the-child",
}
ROOT: dict[str, Any] = {
    **CHILD,
    "generation": "another",
    "generation_revision": 8,
    "root": True,
    "start_sequence": 0,
    "added_count": 5,
}
FIRST: dict[str, Any] = {**ROOT, "parent_commit_id": None, "revision": 1, "generation_revision": 1}


@pytest.mark.parametrize(
    ("child", "parent", "complete", "counts"),
    [
        (CHILD, PARENT, True, True),
        (CHILD, PARENT, False, True),
        (CHILD, None, False, True),
        (CHILD, None, True, False),
        (CHILD | {"parent_commit_id": None}, None, False, False),
        (ROOT, PARENT, True, True),
        (ROOT, None, True, True),
        (ROOT, None, False, True),
        (FIRST, None, True, True),
    ],
)
def test_a_checkpoint_counts_where_it_is_a_root_or_its_parent_is_there_or_may_come(
    child: dict[str, Any], parent: dict[str, Any] | None, complete: bool, counts: bool
):
    behind = None if parent is None else stored_as(**parent)
    assert checkpoints.check_place(stored_as(**child), behind, complete=complete) is counts


@pytest.mark.parametrize(
    ("child", "parent", "changes"),
    [
        (CHILD, PARENT, {"generation": "another"}),
        (CHILD, PARENT, {"generation_revision": 4}),
        (CHILD, PARENT, {"revision": 9}),
        (CHILD, PARENT, {"revision": 7}),
        (CHILD, PARENT, {"start_sequence": 3}),
        (CHILD, PARENT, {"message_count": 6}),
        (CHILD, PARENT, {"serialized_bytes": 899}),
        (CHILD, PARENT, {"event_count": 2}),
        (CHILD, PARENT, {"payload_count": 5}),
        (ROOT, PARENT, {"generation": "generation"}),
        (ROOT, PARENT, {"revision": 9, "generation_revision": 9}),
        (ROOT, PARENT, {"generation_revision": 7}),
        (ROOT, None, {"generation_revision": 7}),
        (ROOT, None, {"start_sequence": 1}),
        (ROOT, None, {"added_count": 4}),
        (ROOT, None, {"revision": 1, "generation_revision": 1}),
        (FIRST, None, {"revision": 2, "generation_revision": 2}),
    ],
    ids=lambda value: ",".join(map(str, value)) if value and len(value) < 4 else "",
)
def test_a_checkpoint_that_does_not_continue_its_parent_is_refused(
    child: dict[str, Any], parent: dict[str, Any] | None, changes: dict[str, Any]
):
    behind = None if parent is None else stored_as(**parent)
    for complete in (False, True):
        with pytest.raises(CorruptSessionError, match="event the-child") as caught:
            checkpoints.check_place(stored_as(**child | changes), behind, complete=complete)
        assert caught.value.event_id == "the-child"
