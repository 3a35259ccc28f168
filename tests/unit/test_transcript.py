"""The rules of a transcript: what may be stored, how results find their calls, what a model is shown."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost import Image, Message, Reasoning, Text, ToolResult, ToolUse, transcript
from littleghost.message import pack_messages


def use(id: str, name: str = "f", **input: Any) -> ToolUse:
    return ToolUse(id=id, name=name, input=input)


def result(id: str, text: str = "ok", status: Any = "success") -> ToolResult:
    return ToolResult(tool_use_id=id, content=text, status=status)


def calls(*ids: str, text: str = "") -> Message:
    return Message("assistant", [*([text] if text else []), *map(use, ids)])


def answers(*ids: str) -> Message:
    return Message("tool", [result(id, f"r{id}") for id in ids])


USER, END = Message.user("u"), Message.assistant("end")
PICTURE = Image(data=b"1", media_type="image/png")

# Few ids, so that they meet, repeat and miss each other.
IDS = st.sampled_from("123")
RESULTS = st.builds(result, IDS, st.sampled_from("xyz"))
BLOCKS = st.builds(Text, st.sampled_from(["a", "b"])) | st.builds(use, IDS) | RESULTS
NOTES = st.just({}) | st.just({"m": 1}) | st.just({"littleghost": {"partial": "length"}})
ANY_MESSAGE = st.builds(
    Message, st.sampled_from(["user", "developer", "assistant", "tool"]), st.lists(BLOCKS, max_size=4), NOTES
)
ANYTHING = st.lists(ANY_MESSAGE, max_size=10)


@st.composite
def journals(draw: st.DrawFn) -> list[Message]:
    """What a run leaves in a store: each result in a message of its own, in any order, some missing; ids repeat from turn to turn."""
    journal: list[Message] = []
    for _ in range(draw(st.integers(0, 4))):
        journal.append(Message.user(draw(st.sampled_from("uvw"))))
        ids = draw(st.lists(IDS, unique=True, max_size=3))
        journal.append(calls(*ids, text=draw(st.sampled_from(["", "t"])) or ("" if ids else "t")))
        done = draw(st.permutations(ids))[: draw(st.integers(0, len(ids)))]
        journal += [answers(id) for id in done]
    return journal


def blocks(messages: Sequence[Message]) -> Counter[bytes]:
    return Counter(
        message.role.encode() + msgspec.json.encode(block)
        for message in messages
        for block in message.content
    )


def bare(messages: Sequence[Message]) -> Counter[bytes]:
    return Counter(msgspec.json.encode(block) for message in messages for block in message.content)


# Sanitising


@pytest.mark.parametrize("transient", [0, "", True, "x", 1, [], {}, 0.0, "false", "None"])
@pytest.mark.parametrize("role", ["user", "assistant", "tool", "developer"])
def test_a_message_marked_transient_goes(role: Any, transient: Any):
    assert transcript.sanitise([Message(role, "x", {"transient": transient}), USER]) == [USER]


@pytest.mark.parametrize(
    "metadata",
    [{}, {"transient": None}, {"transient": False}, {"Transient": True}, {"a": {"transient": True}}],
)
def test_a_message_not_marked_stays_as_it_is(metadata: Any):
    message = Message("user", "x", metadata)
    assert transcript.sanitise([message])[0] is message


def test_of_the_roles_only_system_goes():
    messages = [Message(role, "x") for role in ("system", "developer", "user", "assistant", "tool")]
    assert [message.role for message in transcript.sanitise(messages)] == [
        "developer",
        "user",
        "assistant",
        "tool",
    ]


def test_a_message_emptied_by_sanitising_goes_and_one_empty_from_the_start_stays():
    thought, empty = Message.assistant(Reasoning(text="t")), Message.assistant([])
    assert transcript.sanitise([thought, empty]) == [empty]


def test_reasoning_goes_also_inside_results_and_the_result_stays():
    message = Message("tool", [ToolResult(tool_use_id="1", content=[Reasoning(text="t")])])
    assert transcript.sanitise([message]) == [Message("tool", [ToolResult(tool_use_id="1", content=[])])]


@given(ANYTHING)
def test_sanitising_twice_is_sanitising_once(messages: list[Message]):
    once = transcript.sanitise(messages)
    assert transcript.sanitise(once) == once


# Normal form


@pytest.mark.parametrize(
    ("stored", "shape"),
    [
        ([], []),
        ([USER], [USER]),
        ([calls("1", "2"), answers("2"), answers("1")], [calls("1", "2"), answers("1", "2")]),
        ([calls("1", "2"), answers("2", "1")], [calls("1", "2"), answers("1", "2")]),
        ([calls("1", "2", "3"), answers("3"), answers("1")], [calls("1", "2", "3"), answers("1", "3")]),
        # what came between is after the results
        (
            [calls("1", "2"), answers("2"), USER, answers("1"), END],
            [calls("1", "2"), answers("1", "2"), USER, END],
        ),
        # ids repeat from turn to turn: each result belongs to the nearest assistant message before it
        (
            [calls("1"), answers("1"), calls("1", "2"), answers("2"), answers("1")],
            [calls("1"), answers("1"), calls("1", "2"), answers("1", "2")],
        ),
        ([calls("1"), calls("1"), answers("1")], [calls("1"), calls("1"), answers("1")]),
        # orphans, and second results of one call, are kept where they are
        ([answers("1"), USER], [answers("1"), USER]),
        ([calls("1"), answers("9"), answers("1")], [calls("1"), answers("1"), answers("9")]),
        ([calls("1"), answers("1"), answers("1")], [calls("1"), answers("1"), answers("1")]),
        # what stands beside a result stays with it
        (
            [
                calls("1", "2"),
                Message("tool", [result("2"), PICTURE]),
                Message("tool", [result("1"), "note"]),
            ],
            [calls("1", "2"), Message("tool", [result("1"), result("2"), PICTURE, "note"])],
        ),
        # results that a user's message carries are taken out of it
        (
            [calls("1"), Message.user([result("1"), "and?"])],
            [calls("1"), Message.tool([result("1")]), Message.user("and?")],
        ),
        ([calls("1"), Message.user([result("1")])], [calls("1"), Message.tool([result("1")])]),
    ],
)
def test_the_normal_form(stored: list[Message], shape: list[Message]):
    assert transcript.normalise(stored) == shape


def test_the_metadata_of_merged_results_is_kept():
    one = Message("tool", [result("1")], {"a": 1, "littleghost": {"x": 1}})
    two = Message("tool", [result("2")], {"b": 2, "littleghost": {"y": 2}})
    merged = transcript.normalise([calls("1", "2"), two, one])[1]
    assert merged.metadata == {"a": 1, "b": 2, "littleghost": {"x": 1, "y": 2}}


def test_one_result_given_twice_is_not_lost():
    twice = result("1")
    assert len(transcript.normalise([calls("1"), Message("tool", [twice, twice])])[1].content) == 2


@given(ANYTHING)
def test_the_normal_form_loses_nothing_and_is_final(messages: list[Message]):
    shaped = transcript.normalise(messages)
    assert bare(shaped) == bare(messages)
    assert transcript.normalise(shaped) == shaped
    order = [message for message in messages if message.role == "assistant"]
    assert [message for message in shaped if message.role == "assistant"] == order


@given(journals())
def test_the_results_of_a_journal_follow_their_calls_in_call_order(journal: list[Message]):
    shaped = transcript.normalise(journal)
    assert blocks(shaped) == blocks(journal)
    for before, after in itertools.pairwise([USER, *shaped]):
        if after.role == "tool":
            found = [item.tool_use_id for item in after.tool_results]
            assert found == [call.id for call in before.tool_uses if call.id in found]


@given(journals(), st.integers(0, 30))
def test_the_normal_form_of_a_beginning_is_a_beginning_up_to_the_open_turn(
    journal: list[Message], count: int
):
    """So a checkpoint of a journal that goes on can be an append."""
    part = transcript.normalise(journal[: transcript.cut(journal, count)])
    whole = transcript.normalise(journal)
    assert whole[: len(part)] == part


# Calls without results


@pytest.mark.parametrize(
    ("messages", "index", "ids"),
    [
        ([], None, ""),
        ([USER], None, ""),
        ([USER, END], None, ""),
        ([USER, calls("1")], 1, "1"),
        ([USER, calls("1", "2", "3"), answers("2")], 1, "13"),
        ([USER, calls("1", "2"), answers("2"), answers("1")], None, ""),
        ([USER, calls("1"), USER], 1, "1"),
        ([calls("1"), answers("1"), calls("1")], 2, "1"),
        ([calls("1"), END], None, ""),
        ([calls("1"), answers("2")], 0, "1"),
        ([calls("1"), Message.user(result("1"))], None, ""),
    ],
)
def test_the_calls_that_are_unsettled(messages: list[Message], index: int | None, ids: str):
    assert transcript.open_turn(messages) == index
    assert [call.id for call in transcript.unsettled(messages)] == list(ids)


@given(journals())
def test_settling_what_is_unsettled_closes_the_turn(journal: list[Message]):
    settled = [
        *journal,
        *(Message("tool", transcript.interrupted(call)) for call in transcript.unsettled(journal)),
    ]
    assert transcript.open_turn(settled) is None
    assert transcript.unsettled(settled) == ()


# The view for a model


def assert_acceptable(view: list[Message]) -> None:
    """Every call has exactly one result, in the message right after it; no result is without a call, no message empty."""
    for index, message in enumerate(view):
        assert message.content
        following = view[index + 1] if index + 1 < len(view) else Message.user([])
        if message.role == "assistant":
            assert not message.tool_results
            if message.tool_uses:
                assert following.role == "tool"
                assert [item.tool_use_id for item in following.tool_results] == [
                    call.id for call in message.tool_uses
                ]
        elif message.role == "tool":
            assert index
            assert view[index - 1].tool_uses
            assert not message.tool_uses
        else:
            assert not message.tool_uses
            assert not message.tool_results


@given(ANYTHING | journals())
def test_every_transcript_has_a_view_that_a_provider_accepts(messages: list[Message]):
    view = transcript.for_model(messages)
    assert_acceptable(view)
    assert transcript.for_model(view) == view
    visible = [
        block
        for message in messages
        if message.role != "tool"
        for block in message.content
        if type(block) is Text
    ]
    shown = Counter(block for message in view for block in message.content if type(block) is Text)
    if not any(transcript.is_partial(message) for message in messages):
        assert not Counter(visible) - shown


@given(journals())
def test_a_settled_journal_is_shown_whole(journal: list[Message]):
    settled: list[Message] = []
    for message in journal:
        if message.role != "tool" and settled:
            settled += [
                Message("tool", transcript.interrupted(call)) for call in transcript.unsettled(settled)
            ]
        settled.append(message)
    settled += [Message("tool", transcript.interrupted(call)) for call in transcript.unsettled(settled)]
    assert transcript.for_model(settled) == transcript.normalise(settled)


def unknown(*ids: str) -> list[ToolResult]:
    return [transcript.interrupted(use(id)) for id in ids]


PARTIAL = transcript.mark(Message.assistant("half"), partial="length")
PARTIAL_CALL = transcript.mark(calls("1"), partial="length")


@pytest.mark.parametrize(
    ("messages", "view"),
    [
        ([USER, calls("1")], [USER, calls("1"), Message("tool", unknown("1"))]),
        (
            [calls("1", "2"), answers("2")],
            [calls("1", "2"), Message("tool", [*unknown("1"), result("2", "r2")])],
        ),
        ([calls("1"), USER, END], [calls("1"), Message("tool", unknown("1")), USER, END]),
        ([answers("1"), USER], [USER]),
        ([calls("1"), answers("9"), answers("1")], [calls("1"), answers("1")]),
        ([calls("1"), answers("9")], [calls("1"), Message("tool", unknown("1"))]),
        ([calls("1"), answers("1", "1")], [calls("1"), answers("1")]),
        (
            [calls("1"), Message.tool("only a note")],
            [calls("1"), Message("tool", [*unknown("1"), "only a note"])],
        ),
        (
            [calls("1"), Message("tool", [result("1"), PICTURE])],
            [calls("1"), Message("tool", [result("1"), PICTURE])],
        ),
        ([USER, Message.assistant([]), Message.user([]), Message.developer([])], [USER]),
        ([Message.user([use("1"), "x"])], [Message.user("x")]),
        ([Message.assistant([result("1"), "x"])], [Message.assistant("x")]),
        # an answer that was cut short
        ([USER, PARTIAL], [USER]),
        ([USER, PARTIAL, END], [USER, END]),
        ([USER, PARTIAL, USER], [USER, PARTIAL, USER]),
        ([USER, PARTIAL, answers("1"), END], [USER, END]),
        ([USER, PARTIAL, Message.user([]), END], [USER, END]),
        ([USER, PARTIAL, answers("1")], [USER]),
        ([USER, PARTIAL_CALL], [USER, PARTIAL_CALL, Message("tool", unknown("1"))]),
    ],
)
def test_what_a_model_is_shown(messages: list[Message], view: list[Message]):
    assert transcript.for_model(messages) == view


# Cutting


@pytest.mark.parametrize(
    ("at", "kept"),
    [(-1, 0), (0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 5), (6, 6), (7, 7), (99, 7)],
)
def test_a_cut_leaves_a_call_with_its_results(at: int, kept: int):
    # the last call never got a result, so there is nothing it could be parted from
    messages = [USER, calls("1", "2"), answers("2"), answers("1"), END, USER, calls("1")]
    assert transcript.cut(messages, at) == kept


@given(journals(), st.integers(-1, 30))
def test_a_cut_is_the_largest_that_parts_nothing(journal: list[Message], at: int):
    def parts(count: int) -> bool:
        turn = max((index for index in range(count) if journal[index].role == "assistant"), default=count)
        rest = journal[count:]
        later = next((index for index, message in enumerate(rest) if message.role == "assistant"), len(rest))
        mine = {call.id for call in journal[turn].tool_uses} if turn < count else set()
        before = {item.tool_use_id for message in journal[turn:count] for item in message.tool_results}
        return any(
            item.tool_use_id in mine - before for message in rest[:later] for item in message.tool_results
        )

    kept = transcript.cut(journal, at)
    assert kept == max(count for count in range(min(max(at, 0), len(journal)) + 1) if not parts(count))


# Notes


def test_notes_are_kept_beside_the_application_s_metadata():
    message = transcript.mark(transcript.mark(Message("user", "x", {"a": 1}), one=1), two=2)
    assert message.metadata == {"a": 1, transcript.MARK: {"one": 1, "two": 2}}
    assert (transcript.note(message, "one"), transcript.note(message, "three")) == (1, None)


@pytest.mark.parametrize("foreign", [None, 1, "x", [1], True])
def test_foreign_values_under_our_key_are_no_notes(foreign: Any):
    message = Message("assistant", "x", {transcript.MARK: foreign})
    assert transcript.note(message, "partial") is None
    assert not transcript.is_partial(message)
    assert transcript.note(transcript.mark(message, partial="length"), "partial") == "length"


# Taking in what a model answered


def admitted(*blocks: Any, malformed: dict[int, str] | None = None) -> Message:
    message = transcript.admit(Message("assistant", list(blocks)), malformed)
    pack_messages([message])
    return message


def test_a_sound_answer_is_taken_as_it_is():
    message = Message("assistant", ["t", use("1", a=[1]), use("2", "g-h_1"), Reasoning(text="r")], {"m": 1})
    assert transcript.admit(message) == message


@pytest.mark.parametrize(
    ("given_ids", "ids"),
    [
        (["", ""], ["call_0", "call_1"]),
        (["a", "a", "a"], ["a", "a_2", "a_3"]),
        (["a", "a_2", "a"], ["a", "a_2", "a_3"]),
        (["call_1", ""], ["call_1", "call_1_2"]),
        (["\ud800"], ["\ufffd"]),
    ],
)
def test_every_call_gets_an_id_of_its_own(given_ids: list[str], ids: list[str]):
    assert [call.id for call in admitted(*map(use, given_ids)).tool_uses] == ids


@pytest.mark.parametrize(
    ("name", "mended"),
    [
        ("", "unnamed"),
        ("get weather!", "get_weather_"),
        ("a.b/c", "a_b_c"),
        ("é\0\ud800", "_"),
        ("n" * 99, "n" * 64),
        ("ok-1_B", "ok-1_B"),
    ],
)
def test_a_name_that_no_provider_takes_is_mended(name: str, mended: str):
    assert admitted(use("1", name)).tool_uses[0].name == mended


def test_text_with_lone_surrogates_is_repaired_and_pairs_are_joined():
    message = admitted("a\ud800b", "\ud83d\ude00", Reasoning(text="\udfff"))
    assert message.content == (Text("a\ufffdb"), Text("\U0001f600"), Reasoning(text="\ufffd"))


@pytest.mark.parametrize(
    "bad", [{"x": "\ud800"}, {"x": float("nan")}, {1: 2}, {"x": b""}, [1], "text", None, 5]
)
def test_arguments_that_are_no_json_object_are_noted_and_emptied(bad: Any):
    message = transcript.admit(
        Message("assistant", [msgspec.structs.replace(use("1"), input=bad), use("2", ok=True)])
    )
    assert [call.input for call in message.tool_uses] == [{}, {"ok": True}]
    assert list(transcript.note(message, "malformed")) == ["1"]
    pack_messages([message])


def test_what_the_model_module_found_malformed_is_noted_by_id():
    message = admitted("text", use("a", x=1), use("a", x=2), malformed={1: "cut at \ud800"})
    assert [(call.id, call.input) for call in message.tool_uses] == [("a", {"x": 1}), ("a_2", {})]
    assert transcript.note(message, "malformed") == {"a_2": "cut at \ufffd"}


@given(
    st.lists(
        st.tuples(
            st.text(max_size=3),
            st.text(max_size=3),
            st.dictionaries(st.text(max_size=2), st.floats() | st.text()),
            st.booleans(),
        ),
        max_size=4,
    )
)
def test_whatever_a_model_answers_can_be_stored_and_shown(parts: list[tuple[str, str, dict[str, Any], bool]]):
    answer = Message(
        "assistant",
        [Text(id) if plain else ToolUse(id=id, name=name, input=input) for id, name, input, plain in parts],
    )
    message = transcript.admit(answer)
    pack_messages([message])
    assert len(message.content) == len(parts)
    ids = [call.id for call in message.tool_uses]
    assert len(ids) == len(set(ids))
    assert_acceptable(transcript.for_model([USER, message]))
