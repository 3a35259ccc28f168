"""What is planned for a commit is within all limits, and is read back as it was given."""

from __future__ import annotations

import json
import math
from datetime import UTC
from typing import Any

import botocore.serialize
import botocore.session
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littleghost import Message, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import DataError, SessionTooLargeError
from littleghost.sessions.agentcore import limits
from littleghost.sessions.agentcore.checkpoints import Checkpoint, Stored, decode
from littleghost.sessions.agentcore.history import Head, History
from littleghost.sessions.agentcore.planning import Plan, plan

NOW = 1_767_225_600.75
SECOND = 1_767_225_600
COMMIT = "0b7c8f5e-1f5a-4f1e-9a3e-0d2f7c1b5a60"
GENERATION = "5d2c1b0a-9e8f-4a7b-8c6d-1e2f3a4b5c6d"


def planned(messages: Any = (), kind: Any = "append", state: Any = None, **given: Any) -> Plan:
    options: dict[str, Any] = {"head": None, "commit_id": COMMIT, "generation": GENERATION, "now": NOW}
    return plan(kind, list(messages), state or {}, given.pop("metadata", {}), **{**options, **given})


def kept(*plans: Plan) -> list[dict[str, Any]]:
    """The events that the service would list, oldest first."""
    events: list[dict[str, Any]] = []
    for request in (request for each in plans for request in each.requests):
        stamp = int(request["eventTimestamp"].timestamp() * 1000)
        events.append({**request, "eventId": f"{stamp:019d}#{len(events):08x}"})
    return events


def read(events: list[dict[str, Any]]) -> History:
    history = History()
    history.add(events, last=True)
    return history


def head_of(*plans: Plan) -> Head:
    head = read(kept(*plans)).head
    assert head is not None
    return head


def head_with(**facts: Any) -> Head:
    """A head that counts as it is told to."""
    stored = head_of(planned([Message.user("x")])).checkpoint
    changed = {name: facts.get(name, getattr(stored, name)) for name in Stored.__struct_fields__}
    return Head(checkpoint=Stored(**changed))


def stamps(made: Plan) -> list[int]:
    assert all(request["eventTimestamp"].tzinfo is UTC for request in made.requests)
    return [int(request["eventTimestamp"].timestamp()) for request in made.requests]


# --- the order of events -----------------------------------------------------------------------------------------------


def test_the_checkpoint_is_last_and_each_event_is_a_second_after_the_one_before():
    made = planned([Message.user(f"{index}") for index in range(201)])
    assert stamps(made) == [SECOND, SECOND + 1, SECOND + 2, SECOND + 3]
    assert [len(request["payload"]) for request in made.requests] == [100, 100, 1, 1]
    assert [request.get("extractionMode") for request in made.requests] == ["SKIP"] * 3 + [None]
    assert set(made.requests[-1]["payload"][0]) == {"blob"}


@pytest.mark.parametrize(
    ("now", "behind", "first"),
    [
        (NOW, -100.0, SECOND),
        (NOW, 0.0, SECOND + 1),
        (NOW, 0.2, SECOND + 1),
        (NOW, 500.0, SECOND + 501),
        (NOW - 10**6, 0.0, SECOND + 1),
    ],
    ids=["the clock", "same second", "parts of a second", "head in the future", "clock went back"],
)
def test_a_commit_is_stamped_later_than_its_head_whatever_the_clock_says(
    now: float, behind: float, first: int
):
    head = head_with(timestamp=SECOND + behind)
    made = planned([Message.user("x")], head=head, now=now)
    assert stamps(made) == [first, first + 1]
    assert first > head.checkpoint.timestamp or behind < 0


def test_a_commit_without_messages_is_a_checkpoint():
    made = planned([], state={"a": 1})
    assert stamps(made) == [SECOND]
    assert (made.checkpoint.event_count, made.checkpoint.message_count, made.messages) == (0, 0, ())


def test_reasoning_is_not_written_and_a_message_that_was_only_that_is_none():
    thought = Message.assistant([Reasoning(text="private")])
    both = Message.assistant([Reasoning(text="private"), Text("said")])
    made = planned([thought, both, Message.assistant([])])
    assert made.messages == (Message.assistant("said"), Message.assistant([]))
    assert "private" not in json.dumps([request["payload"] for request in made.requests])


# --- what a commit continues -------------------------------------------------------------------------------------------


def facts(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return (
        checkpoint.generation,
        checkpoint.generation_revision,
        checkpoint.parent_commit_id,
        checkpoint.revision,
        checkpoint.root,
        checkpoint.start_sequence,
        checkpoint.added_count,
        checkpoint.message_count,
        checkpoint.event_count,
        checkpoint.payload_count,
    )


def test_an_append_goes_on_and_a_replace_begins_anew():
    first = planned([Message.user("a"), Message.user("b")], commit_id="c1", generation="g1")
    assert facts(first.checkpoint) == ("g1", 1, None, 1, True, 0, 2, 2, 1, 2)
    second = planned([Message.user("c")], head=head_of(first), commit_id="c2", generation="unused")
    assert facts(second.checkpoint) == ("g1", 1, "c1", 2, False, 2, 1, 3, 2, 3)
    third = planned(
        [Message.user("d")], "replace", head=head_of(first, second), commit_id="c3", generation="g2"
    )
    assert facts(third.checkpoint) == ("g2", 3, "c2", 3, True, 0, 1, 1, 1, 1)
    history = read(kept(first, second, third))
    assert history.messages() == (Message.user("d"),)


def test_an_append_may_be_a_root_that_brings_all_messages_along():
    first = planned([Message.user("a")], commit_id="c1", generation="g1")
    second = planned([Message.user("b")], head=head_of(first), commit_id="c2", generation="unused")
    third = planned(
        [Message.user("c")],
        head=head_of(first, second),
        migrate=[Message.user("a"), Message.user("b")],
        commit_id="c3",
        generation="g2",
    )
    assert facts(third.checkpoint) == ("g2", 3, "c2", 3, True, 0, 3, 3, 1, 3)
    assert [message.text for message in read(kept(first, second, third)).messages()] == ["a", "b", "c"]
    # The older generation may expire then.
    assert [message.text for message in read(kept(first, second, third)[-2:]).messages()] == ["a", "b", "c"]


def test_a_session_of_the_older_format_cannot_go_on_without_its_messages():
    with pytest.raises(ValueError, match="migrate"):
        planned([Message.user("a")], head=head_with(version=4))
    assert planned([], "replace", head=head_with(version=4)).checkpoint.root


# --- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "value", "full"),
    [
        ("messages", 10_000, {"message_count": 10_000}),
        ("size", 134_217_728, {"serialized_bytes": 134_217_728 - 10}),
        ("events", 10_000, {"event_count": 10_000}),
        ("items", 25_000, {"payload_count": 25_000}),
        ("revisions", 2**63 - 1, {"revision": 2**63 - 1}),
    ],
)
def test_a_session_that_would_pass_a_limit_is_refused_with_its_name(
    limit: str, value: int, full: dict[str, int]
):
    with pytest.raises(SessionTooLargeError) as caught:
        planned([Message.user("x")], head=head_with(**full))
    assert (caught.value.limit, caught.value.value) == (limit, value)
    assert caught.value.actual is not None
    assert caught.value.actual > value
    assert f"{value:,}" in str(caught.value)
    assert f"{caught.value.actual:,}" in str(caught.value)
    if limit != "revisions":
        # A generation of its own counts from nothing.
        assert planned([Message.user("x")], "replace", head=head_with(**full)).checkpoint.root
        assert not planned([], head=head_with(**full)).checkpoint.added_count


def test_the_checkpoint_may_have_a_mebibyte():
    empty = len(planned().requests[-1]["payload"][0]["blob"]) - len("little_ghost:checkpoint:v5:")
    room = 1_048_576 - empty - len('"k":""')
    assert planned(state={"k": "x" * room}).requests
    with pytest.raises(SessionTooLargeError, match="1,048,577") as caught:
        planned(state={"k": "x" * (room + 1)})
    assert (caught.value.limit, caught.value.value, caught.value.actual) == (
        "checkpoint",
        1_048_576,
        1_048_577,
    )
    with pytest.raises(SessionTooLargeError):
        planned(metadata={"k": "é" * (room // 2 + 1)})


def test_a_checkpoint_is_measured_as_the_ruby_store_spells_it():
    assert planned(
        state={"k": [1e16] * 110_000}
    ).requests  # 8 bytes each for Ruby, with the comma, and 5 for us
    with pytest.raises(SessionTooLargeError, match=r"1,120,\d\d\d bytes"):
        planned(state={"k": [1e16] * 140_000})
    with pytest.raises(SessionTooLargeError, match=r"1,120,\d\d\d bytes"):
        planned(metadata={"k": {"n": [1e-7] * 140_000}})
    assert planned(state={"k": [1.25] * 200_000}).requests


def test_a_text_of_99781_characters_is_one_item_and_one_more_makes_two_chunks():
    one = planned([Message.user("x" * 99_781)])
    two = planned([Message.user("x" * 99_782)])
    assert [len(request["payload"]) for request in one.requests[:-1]] == [1]
    texts = [entry["conversational"]["content"]["text"] for entry in two.requests[0]["payload"]]
    assert [len(text) for text in texts] == [90_073, 10_050]
    assert len(one.requests[0]["payload"][0]["conversational"]["content"]["text"]) == 100_000


def test_a_message_too_long_for_the_format_is_named():
    text = "x" * 16_777_216
    with pytest.raises(DataError, match=r"^messages\[2\]: has 16,777,\d\d\d bytes") as caught:
        planned([Message.user("x"), Message.assistant([Reasoning(text="")]), Message.user(text)])
    assert caught.value.path == "messages[2]"


@pytest.mark.parametrize("name", ["state", "metadata"])
def test_what_nests_too_deep_for_the_ruby_store_is_refused_and_named(name: str):
    def lists(depth: int) -> Any:
        value: Any = []
        for _ in range(depth - 1):
            value = [value]
        return value

    given: dict[str, Any] = {"state": {}, "metadata": {}}
    given[name] = {"k": lists(98)}
    assert read(kept(planned(**given))).head is not None
    given[name] = {"k": lists(99)}
    with pytest.raises(DataError, match=rf"^{name}\.k.*nested deeper than 100"):
        planned(**given)
    message = Message("user", "x", {"k": lists(97)})
    assert read(kept(planned([message]))).messages() == (message,)
    with pytest.raises(DataError, match=r"^messages\[1\]\.metadata\.k.*nested deeper than 100"):
        planned([message, Message("user", "x", {"k": lists(98)})])
    call = ToolUse(id="1", name="n", input={"k": lists(95)})
    assert read(kept(planned([Message.assistant([call])]))).messages() == (Message.assistant([call]),)
    with pytest.raises(DataError, match=r"^messages\[0\]\.content\[0\]\.input\.k.*nested deeper than 100"):
        planned([Message.assistant([ToolUse(id="1", name="n", input={"k": lists(96)})])])


@pytest.mark.parametrize(
    ("messages", "state", "path"),
    [
        ([Message.user("ok"), Message.user("\ud800")], {}, r"messages\[1\].content\[0\].text"),
        ([], {"a": {"b": math.nan}}, r"state\.a\.b"),
        ([], {"a": "\udfff"}, r"state\.a"),
        ([Message("user", "x", {"n": math.inf})], {}, r"messages\[0\]\.metadata\.n"),
    ],
)
def test_what_cannot_be_stored_exactly_is_refused_and_named(messages: Any, state: Any, path: str):
    with pytest.raises(DataError, match=f"^{path}: "):
        planned(messages, state=state)


@pytest.mark.parametrize("now", [1e12, -1e20])
def test_a_clock_that_tells_no_time_is_refused(now: float):
    with pytest.raises(DataError, match=r"^clock: "):
        planned(now=now)


@pytest.mark.parametrize("commit_id", ["", "a:b", "x" * 257, "a b", "ü", "a\n"])
def test_a_commit_id_that_the_format_cannot_hold_is_refused(commit_id: str):
    with pytest.raises(DataError, match=r"^commit_id: "):
        planned(commit_id=commit_id)


# --- the size of a request ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def body_of() -> Any:
    """What botocore would send, as it writes it."""
    model = botocore.session.get_session().get_service_model("bedrock-agentcore")
    serializer = botocore.serialize.create_serializer(model.metadata["protocol"])
    operation = model.operation_model("CreateEvent")

    def body(request: dict[str, Any]) -> bytes:
        whole = {
            "memoryId": "golden_memory-AbCdEf1234",
            "actorId": "lg_" + "a" * 64,
            "sessionId": "lg_" + "b" * 64,
            "clientToken": "c" * 36,
            **request,
        }
        return serializer.serialize_to_request(whole, operation)["body"]

    return body


@pytest.mark.parametrize(
    "text", ["漢" * 4_500_000, "😀" * 2_000_000, '\x7f\x00\\"' * 800_000, "x" * 12_000_000]
)
def test_no_request_is_larger_than_the_service_takes_and_none_is_much_smaller_than_it_could_be(
    body_of: Any, text: str
):
    made = planned([Message.user(text)])
    sizes = [len(body_of(request)) for request in made.requests]
    assert max(sizes) <= limits.MAX_REQUEST_BYTES
    largest = max(
        len(json.dumps(entry)) + 2 for request in made.requests[:-1] for entry in request["payload"]
    )
    for request, size in list(zip(made.requests, sizes, strict=True))[:-2]:
        assert len(request["payload"]) == limits.MAX_ITEMS or size + largest + 100 > limits.MAX_REQUEST_BYTES
    assert len(sizes) > 2
    assert read(kept(made)).messages() == (Message.user(text),)


def test_the_largest_checkpoint_fits_a_request(body_of: Any):
    made = planned(state={"k": "\x7f" * 1_048_000})
    assert len(body_of(made.requests[-1])) <= limits.MAX_REQUEST_BYTES


def test_the_size_of_a_request_is_counted_as_botocore_writes_it(body_of: Any, monkeypatch: Any):
    message = Message.user("漢" * 100)
    (request, _) = planned([message] * 3).requests
    size = len(body_of(request))
    monkeypatch.setattr(limits, "MAX_REQUEST_BYTES", size + 50)  # room for longer tokens and times
    assert len(planned([message] * 3).requests) == 2
    monkeypatch.setattr(limits, "MAX_REQUEST_BYTES", size - 1)
    assert len(planned([message] * 3).requests) == 3


def test_an_event_is_closed_before_its_texts_have_more_than_ten_mebibytes(monkeypatch: Any):
    (request, _) = planned([Message.user("x")] * 3).requests
    size = sum(len(entry["conversational"]["content"]["text"]) for entry in request["payload"])
    monkeypatch.setattr(limits, "MAX_EVENT_BYTES", size)
    assert [len(request["payload"]) for request in planned([Message.user("x")] * 4).requests] == [3, 1, 1]
    monkeypatch.setattr(limits, "MAX_EVENT_BYTES", size - 1)
    assert [len(request["payload"]) for request in planned([Message.user("x")] * 4).requests] == [2, 2, 1]


# --- there and back ----------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    st.lists(
        st.builds(Text, st.text(max_size=200))
        | st.builds(ToolUse, id=st.text(min_size=1), name=st.text(min_size=1), input=OBJECTS)
        | st.builds(
            ToolResult,
            tool_use_id=st.text(min_size=1),
            content=st.lists(st.builds(Text, st.text()) | st.text() | st.integers(), max_size=3)
            | st.text()
            | OBJECTS,
            status=st.sampled_from(["success", "error"]),
        ),
        max_size=3,
    ),
    OBJECTS,
)


@settings(max_examples=60)
@given(
    commits=st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "replace"]), st.lists(MESSAGES, max_size=5), OBJECTS, OBJECTS
        ),
        min_size=1,
        max_size=4,
    ),
    sizes=st.fixed_dictionaries(
        {
            "MAX_ITEMS": st.integers(1, 6),
            "CHUNK_CHARS": st.integers(40, 200),
            "MAX_ITEM_CHARS": st.integers(310, 600),
            "MAX_EVENT_BYTES": st.integers(2_500, 5_000),
            "MAX_REQUEST_BYTES": st.integers(4_500, 9_000),
        }
    ),
    random=st.randoms(use_true_random=False),
)
def test_what_is_planned_is_read_back_from_events_and_items_in_any_order(
    commits: list[Any], sizes: dict[str, int], random: Any
):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(limits, name, value)
        plans: list[Plan] = []
        expected: list[Message] = []
        for number, (kind, messages, state, metadata) in enumerate(commits):
            head = read(kept(*plans)).head if plans else None
            made = planned(
                messages,
                kind,
                state,
                metadata=metadata,
                head=head,
                commit_id=f"commit-{number}",
                generation=f"generation-{number}",
            )
            plans.append(made)
            expected = [*([] if kind == "replace" else expected), *made.messages]
            assert list(made.messages) == messages
        events = kept(*plans)
        for each in events:
            each["payload"] = random.sample(each["payload"], len(each["payload"]))
        random.shuffle(events)
        history = read(events)
        head = history.head
        assert head is not None
        assert list(history.messages()) == expected
        assert (head.checkpoint.state, head.checkpoint.metadata) == commits[-1][2:]
        assert head.checkpoint.revision == len(commits)
        first = random.randint(0, len(expected))
        last = random.randint(first, len(expected))
        assert list(history.messages(first, last)) == expected[first:last]


@given(
    state=OBJECTS,
    metadata=OBJECTS,
    moment=st.floats(0, 4_102_444_800),
)
def test_a_checkpoint_says_what_it_was_made_of(state: Any, metadata: Any, moment: float):
    made = planned(state=state, metadata=metadata, now=moment)
    (event,) = kept(made)
    stored = decode(event)
    assert (stored.state, stored.metadata) == (state, metadata)
    assert stored.timestamp == math.floor(moment)
    blob = event["payload"][0]["blob"]
    assert stored.size == len(blob.encode()) - len("little_ghost:checkpoint:v5:")
    assert blob.removeprefix("little_ghost:checkpoint:v5:").startswith('{"generation":"')
