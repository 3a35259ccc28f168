"""Messages and their codec: exactly the wire format, nothing lost, nothing refused on reading that was accepted on writing."""

from __future__ import annotations

import copy
import enum
import json
import math
import pickle
from collections import OrderedDict
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost import DataError, Document, Image, Message, Reasoning, Text, ToolResult, ToolUse
from littleghost.message import pack_messages, unpack_messages
from littleghost.sessions.records import record

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
NAME = TEXT.filter(bool)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=4)
PLAIN = VALUES.filter(lambda value: not (isinstance(value, dict) and "type" in value))

SIMPLE = (
    st.builds(Text, TEXT)
    | st.builds(Image, data=st.binary(max_size=9), media_type=NAME, name=st.none() | TEXT)
    | st.builds(Document, data=st.binary(max_size=9), media_type=NAME, name=TEXT)
    | st.builds(ToolUse, id=NAME, name=NAME, input=OBJECTS)
    | st.builds(
        Reasoning,
        text=TEXT,
        signature=st.none() | TEXT,
        data=st.none() | st.binary(max_size=9),
        details=VALUES,
    )
)


def results(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[ToolResult]:
    content = st.lists(inner | PLAIN, max_size=4) | OBJECTS | SCALARS
    return st.builds(
        ToolResult, tool_use_id=NAME, content=content, status=st.sampled_from(["success", "error"])
    )


BLOCKS = st.recursive(SIMPLE, lambda inner: results(inner) | inner, max_leaves=4)
ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
MESSAGES = st.builds(Message, ROLES, st.lists(BLOCKS, max_size=4), OBJECTS)


def same(left: Any, right: Any) -> bool:
    """Equal, and 1, 1.0 and True told apart."""
    return left == right and msgspec.json.encode(left) == msgspec.json.encode(right)


@given(st.lists(MESSAGES, max_size=4))
def test_messages_come_back_exactly(messages: list[Message]):
    raw, back = pack_messages(messages)
    assert same(back, tuple(messages))
    assert same(unpack_messages(raw), tuple(messages))
    assert pack_messages(back)[0] == raw


@given(MESSAGES)
def test_the_dict_form_comes_back_exactly(message: Message):
    form = message.to_dict()
    assert list(form) == ["role", "content", "metadata"]
    assert same(Message.from_dict(form), message)
    assert json.loads(json.dumps(form)) == form
    # Read by the lenient way, in any order of the keys, it is the same message.
    backwards = json.loads(json.dumps([form]), object_hook=lambda value: dict(reversed(value.items())))
    assert unpack_messages(json.dumps(backwards)) == (message,)


@given(MESSAGES)
def test_a_copy_shares_nothing_that_can_change(message: Message):
    copied = message.copy()
    assert same(copied, message)
    assert copy.deepcopy(message) == pickle.loads(pickle.dumps(message)) == message
    copied.metadata["new"] = 1
    for block in copied.content:
        if isinstance(block, ToolUse):
            block.input["new"] = 1
        if isinstance(block, ToolResult) and isinstance(block.content, dict):
            block.content["new"] = 1
    assert message.metadata.get("new") != 1
    assert all(block.input.get("new") != 1 for block in message.tool_uses)


WRITTEN = [
    (Text("é\0"), '{"type":"text","text":"é\\u0000"}'),
    (
        Image(data=b"\0\xff", media_type="image/png"),
        '{"type":"image","data":"AP8=","encoding":"base64","media_type":"image/png"}',
    ),
    (
        Image(data=b"\0\xff", media_type="image/jpeg", name="b.jpg"),
        '{"type":"image","data":"AP8=","encoding":"base64","media_type":"image/jpeg","name":"b.jpg"}',
    ),
    (
        Document(data=b"", media_type="application/pdf", name=""),
        '{"type":"document","data":"","encoding":"base64","media_type":"application/pdf","name":""}',
    ),
    (
        ToolUse(id="c", name="f", input={"q": [1, {"x": None}]}),
        '{"type":"tool_use","id":"c","name":"f","input":{"q":[1,{"x":null}]}}',
    ),
    (ToolUse(id="c", name="f"), '{"type":"tool_use","id":"c","name":"f","input":{}}'),
    (ToolResult(tool_use_id="c"), '{"type":"tool_result","tool_use_id":"c","content":"","status":"success"}'),
    (
        ToolResult(tool_use_id="c", content=[Text("x"), {"rows": [1]}, "bare"], status="error"),
        '{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"x"},{"rows":[1]},"bare"],"status":"error"}',
    ),
    (Reasoning(text="t"), '{"type":"reasoning","text":"t"}'),
    (
        Reasoning(signature="s", data=b"\1\2", details=[{"type": "x"}]),
        '{"type":"reasoning","text":"","signature":"s","data":"AQI=","encoding":"base64","details":[{"type":"x"}]}',
    ),
]


@pytest.mark.parametrize(("block", "written"), WRITTEN)
def test_the_written_form_of_every_block_key_for_key(block: Any, written: str):
    raw, _ = pack_messages([Message("user", [block], {"k": 1})])
    assert raw.decode() == f'[{{"role":"user","content":[{written}],"metadata":{{"k":1}}}}]'
    assert unpack_messages(raw)[0].content == (block,)


@pytest.mark.parametrize(
    ("content", "blocks"),
    [
        ("null", ()),
        ('""', (Text(""),)),
        ('"x"', (Text("x"),)),
        ('{"type":"text","text":"x"}', (Text("x"),)),
        ('["x",{"type":"text","text":"y"}]', (Text("x"), Text("y"))),
        ("[]", ()),
        (
            '[{"type":"image","data":"","encoding":"base64","media_type":"a","name":null}]',
            (Image(data=b"", media_type="a"),),
        ),
    ],
)
def test_lenient_spellings_are_read(content: str, blocks: Any):
    for end in ("", ',"metadata":{}', ',"metadata":null'):
        raw = f'{{"role":"user","content":{content}{end}}}'
        assert unpack_messages(f"[{raw}]") == (Message("user", blocks),)
        assert Message.from_dict(json.loads(raw)) == Message("user", blocks)


@pytest.mark.parametrize(
    ("form", "path"),
    [
        (["user"], ""),
        ("text", ""),
        (None, ""),
        ({"content": "x"}, ""),
        ({"role": "user"}, ""),
        ({"role": "user", "content": "x", "name": "y"}, ""),
        ({"role": "User", "content": "x"}, ".role"),
        ({"role": None, "content": "x"}, ".role"),
        ({"role": ["user"], "content": "x"}, ".role"),
        ({"role": "user", "content": 1}, ".content[0]"),
        ({"role": "user", "content": [None]}, ".content[0]"),
        ({"role": "user", "content": ["a", ["b"]]}, ".content[1]"),
        ({"role": "user", "content": "x", "metadata": []}, ".metadata"),
        ({"role": "user", "content": "x", "metadata": "y"}, ".metadata"),
        *(
            ({"role": "user", "content": ["first", block]}, ".content[1]")
            for block in (
                {},
                {"text": "x"},
                {"type": "sound"},
                {"type": None},
                {"type": "text"},
                {"type": "text", "text": None},
                {"type": "text", "text": 1},
                {"type": "text", "text": "x", "annotations": []},
                {"type": "image", "data": "AP8=", "media_type": "a"},
                {"type": "image", "data": "AP8=", "encoding": "hex", "media_type": "a"},
                {"type": "image", "data": "AP8=", "encoding": "base64"},
                {"type": "image", "data": "AP8=", "encoding": "base64", "media_type": ""},
                {"type": "image", "data": "AP8", "encoding": "base64", "media_type": "a"},
                {"type": "image", "data": "AP8=\n", "encoding": "base64", "media_type": "a"},
                {"type": "image", "data": "A-8=", "encoding": "base64", "media_type": "a"},
                {"type": "document", "data": "AP8=", "encoding": "base64", "media_type": "a"},
                {"type": "document", "data": "AP8=", "encoding": "base64", "media_type": "a", "name": None},
                {"type": "tool_use", "id": "", "name": "f", "input": {}},
                {"type": "tool_use", "id": "c", "name": "", "input": {}},
                {"type": "tool_use", "id": 1, "name": "f", "input": {}},
                {"type": "tool_use", "id": "c", "name": "f"},
                {"type": "tool_use", "id": "c", "name": "f", "input": []},
                {"type": "tool_use", "id": "c", "name": "f", "input": None},
                {"type": "tool_result", "tool_use_id": "c", "content": "x"},
                {"type": "tool_result", "tool_use_id": "c", "status": "success"},
                {"type": "tool_result", "tool_use_id": "", "content": "x", "status": "success"},
                {"type": "tool_result", "tool_use_id": "c", "content": "x", "status": "ok"},
                {"type": "reasoning"},
            )
        ),
        (
            {
                "role": "tool",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": [1, {"type": "sound"}], "status": "success"}],
            },
            ".content[0].content[1]",
        ),
    ],
)  # fmt: skip
def test_a_form_that_is_no_message_is_refused_by_both_ways_of_reading(form: Any, path: str):
    with pytest.raises(DataError) as caught:
        Message.from_dict(form)
    assert caught.value.path == "message" + path
    with pytest.raises(DataError) as caught:
        unpack_messages(json.dumps([{"role": "user", "content": "first"}, form]))
    assert caught.value.path == "messages[1]" + path


@pytest.mark.parametrize(
    "raw", ["{}", "null", '"x"', "1", "", "[", "[{}", '[{"role":"user","content":"\\ud800"}]']
)
def test_what_is_no_list_of_messages_is_refused(raw: str):
    with pytest.raises(DataError):
        unpack_messages(raw)


def recorded(messages: list[Message]) -> tuple[bytes, tuple[Message, ...]]:
    made = record("append", messages, {}, {})
    return made.body, unpack_messages(made.body, "stored")


def bad(value: Any, **metadata: Any) -> Message:
    """A message that the constructor takes; only its values are wrong."""
    return Message("user", value, metadata)


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (bad("\ud800"), ".content[0].text"),
        (bad(["a", Text("\udfff")]), ".content[1].text"),
        (bad(Text(1)), ".content[0]"),  # type: ignore[arg-type]
        (bad(Image(data=b"", media_type="\ud800")), ".content[0].media_type"),
        (bad(Image(data=b"", media_type="")), ".content[0]"),
        (bad(Image(data="AP8=", media_type="a")), ".content[0].data"),  # type: ignore[arg-type]
        (bad(Document(data=None, media_type="a", name="n")), ".content[0]"),  # type: ignore[arg-type]
        (bad(ToolUse(id="", name="f")), ".content[0]"),
        (bad(ToolUse(id="c", name="f", input={"a": [math.nan]})), ".content[0].input.a[0]"),
        (bad(ToolUse(id="c", name="f", input={1: 2})), ".content[0].input"),  # type: ignore[dict-item]
        (bad(ToolUse(id="c", name="f", input=[1])), ".content[0]"),  # type: ignore[arg-type]
        (bad(ToolResult(tool_use_id="c", content=b"x")), ".content[0].content"),
        (bad(ToolResult(tool_use_id="c", content={"a": math.inf})), ".content[0].content.a"),
        (bad(ToolResult(tool_use_id="c", content=[1, {"a": {2}}])), ".content[0].content[1].a"),
        (bad(ToolResult(tool_use_id="c", content=[Text("\ud800")])), ".content[0].content[0].text"),
        (bad(ToolResult(tool_use_id="c", content=ToolResult(tool_use_id="d", content={"x": set()}))), ".content[0].content[0].content.x"),
        (bad(ToolResult(tool_use_id="c", status="ok")), ".content[0]"),  # type: ignore[arg-type]
        (bad(Reasoning(text="\ud800")), ".content[0].text"),
        (bad(Reasoning(details={"a": -math.inf})), ".content[0].details.a"),
        (bad("x", due=b"soon"), ".metadata.due"),
        (bad("x", plan={"items": [0, 1, 2, {"due": math.nan}]}), ".metadata.plan.items[3].due"),
        (bad("x", plan={"\ud800": 1}), ".metadata.plan"),
        (bad("x", plan={5: 1}), ".metadata.plan"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pack", [pack_messages, recorded])
def test_what_cannot_be_stored_is_refused_and_its_path_named(pack: Any, message: Message, path: str):
    if pack is recorded and isinstance(message.content[0], Reasoning):
        pytest.skip("no store keeps it")
    with pytest.raises(DataError) as caught:
        pack([Message.user("first"), message])
    assert caught.value.path == "messages[1]" + path
    with pytest.raises(DataError) as caught:
        message.to_dict()
    assert caught.value.path == "message[0]" + path
    if message.metadata or not all(type(block) is Text for block in message.content):
        with pytest.raises(DataError):
            message.copy()


class Who(enum.StrEnum):
    USER = "user"


class Loud(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "changed",
    [
        {"role": Who.USER},
        {"content": [Text("x")]},
        {"content": (Text(Loud("x")),)},
        {"metadata": OrderedDict()},
    ],
)
@pytest.mark.parametrize("pack", [pack_messages, recorded])
def test_what_only_looks_like_a_message_of_text_comes_back_as_one(pack: Any, changed: dict[str, Any]):
    raw, (back,) = pack([msgspec.structs.replace(Message.user("x"), **changed)])
    assert raw == b'[{"role":"user","content":[{"type":"text","text":"x"}],"metadata":{}}]'
    assert type(back.role) is str
    assert type(back.content) is tuple
    assert type(back.content[0].text) is str  # type: ignore[union-attr]
    assert type(back.metadata) is dict


@pytest.mark.parametrize("content", [{}, ""])
@pytest.mark.parametrize("pack", [pack_messages, recorded])
def test_what_is_packed_can_be_read_whatever_a_message_was_made_to_hold(pack: Any, content: Any):
    raw, back = pack([msgspec.structs.replace(Message.user("x"), content=content)])
    assert unpack_messages(raw) == back


@pytest.mark.parametrize(
    ("changed", "path"),
    [({"role": "nobody"}, "role"), ({"role": None}, "role"), ({"metadata": None}, "metadata")],
)
@pytest.mark.parametrize("pack", [pack_messages, recorded])
def test_a_message_made_past_the_constructor_is_checked_all_the_same(
    pack: Any, changed: dict[str, Any], path: str
):
    with pytest.raises(DataError) as caught:
        pack([msgspec.structs.replace(Message.user("x"), **changed)])
    assert caught.value.path == f"messages[0].{path}"


@given(MESSAGES, st.sampled_from([math.nan, "\ud800", b"", {1: 1}, object()]))
def test_one_bad_value_in_metadata_spoils_any_message(message: Message, value: Any):
    spoilt = Message(message.role, message.content, {**message.metadata, "deep": [{"here": value}]})
    with pytest.raises(DataError) as caught:
        pack_messages([spoilt])
    assert caught.value.path == "messages[0].metadata.deep[0].here"


@pytest.mark.parametrize(
    ("role", "content", "metadata", "path"),
    [
        ("User", "x", None, "role"),
        (1, "x", None, "role"),
        ([], "x", None, "role"),
        ("user", b"x", None, "content[0]"),
        ("user", 5, None, "content[0]"),
        ("user", [Text("x"), {1}], None, "content[1]"),
        ("user", [Text("x"), {"type": "text", "text": "\ud800"}], None, "content[1].text"),
        ("user", "x", [], "metadata"),
        ("user", "x", "y", "metadata"),
    ],
)
def test_a_constructor_refuses_what_is_no_message(role: Any, content: Any, metadata: Any, path: str):
    with pytest.raises(DataError) as caught:
        Message(role, content, metadata)
    assert caught.value.path == path


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def deep(depth: int) -> list[Message]:
    """Messages with a value that nests `depth` deep in each place that has one."""
    inner = ToolResult(tool_use_id="2", content=nested(depth - 2))
    typed = (Text("x"), [nested(depth - 2)])
    return [
        Message("user", "x", {"a": nested(depth - 1)}),
        Message("assistant", [ToolUse(id="1", name="f", input={"a": nested(depth - 1)})]),
        Message("tool", [ToolResult(tool_use_id="1", content={"a": nested(depth - 1)})]),
        Message("tool", [ToolResult(tool_use_id="1", content=typed)]),
        Message("tool", [ToolResult(tool_use_id="1", content=[inner])]),
        Message("assistant", [Reasoning(details=nested(depth))]),
    ]


def test_values_nest_a_hundred_deep_and_are_read_again_by_either_way():
    # One result with plain JSON in its list has all messages beside it read by the lenient way.
    lenient = Message("tool", [ToolResult(tool_use_id="1", content=[1])])
    for message in deep(100):
        for batch in ([message], [message, lenient]):
            assert unpack_messages(pack_messages(batch)[0]) == tuple(batch)
        assert Message.from_dict(message.to_dict()) == message
        assert message.copy() == message


@pytest.mark.parametrize("message", deep(101))
def test_one_level_more_is_refused_on_writing_and_reading(message: Message):
    with pytest.raises(DataError, match="nested deeper than 100"):
        pack_messages([message])
    with pytest.raises(DataError, match="nested deeper than 100"):
        Message.from_dict(json.loads(msgspec.json.encode(message)))


@pytest.mark.parametrize("depth", [51, 5000])
def test_results_in_results_have_the_same_limit(depth: int):
    block: Any = Text("x")
    for _ in range(depth):
        block = ToolResult(tool_use_id="1", content=[block])
    with pytest.raises(DataError, match="nested deeper than 100"):
        pack_messages([Message("tool", block)])


def test_a_cycle_is_refused():
    ring: dict[str, Any] = {}
    ring["self"] = ring
    with pytest.raises(DataError, match=r"metadata\.self\.self: contains itself"):
        Message("user", "x", ring).to_dict()


def test_reasoning_goes_wherever_it_is_and_nothing_else_does():
    thought = Reasoning(text="secret", data=b"secret")
    typed = {"type": "reasoning", "text": "secret"}
    inner = ToolResult(tool_use_id="2", content=[thought, Text("b")])
    message = Message(
        "tool",
        [thought, Text("a"), ToolResult(tool_use_id="1", content=[thought, inner, typed, {"kept": 1}])],
        {"m": 1},
    )
    expected = ToolResult(
        tool_use_id="1", content=[ToolResult(tool_use_id="2", content=[Text("b")]), {"kept": 1}]
    )
    assert message.without_reasoning() == Message("tool", [Text("a"), expected], {"m": 1})
    assert message.content[0] is thought
    plain = Message("tool", [Text("a"), expected])
    assert plain.without_reasoning() is plain


@given(MESSAGES)
def test_no_reasoning_is_left_anywhere(message: Message):
    def kinds(value: Any) -> set[type]:
        return {type(value)}.union(
            *map(
                kinds,
                value.content if isinstance(value, ToolResult) and isinstance(value.content, tuple) else (),
            )
        )

    clean = message.without_reasoning()
    assert all(Reasoning not in kinds(block) for block in clean.content)
    assert clean.without_reasoning() is clean


def test_what_a_message_offers():
    message = Message.assistant([Text("a"), ToolUse(id="1", name="f"), "b", ToolResult(tool_use_id="0")])
    assert message.text == "ab"
    assert message.tool_uses == (ToolUse(id="1", name="f"),)
    assert message.tool_results == (ToolResult(tool_use_id="0"),)
    makers = (Message.system, Message.developer, Message.user, Message.assistant, Message.tool)
    assert [make("x", {"k": 1}) for make in makers] == [
        Message(role, [Text("x")], {"k": 1}) for role in ("system", "developer", "user", "assistant", "tool")
    ]
    assert Message("user") == Message("user", None) == Message("user", []) == Message("user", (), {})
    assert (
        Message("user", {"type": "text", "text": "x"}) == Message("user", Text("x")) == Message("user", ["x"])
    )


def test_a_message_has_metadata_of_its_own():
    metadata = {"k": 1}
    message = Message("user", "x", metadata)
    metadata["k"] = 2
    assert message.metadata == {"k": 1}
    assert Message("user", "x").metadata is not Message("user", "x").metadata
