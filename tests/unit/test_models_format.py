"""The Chat Completions format: what is sent, and what is read from bytes, arguments and usage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost.content import Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.events import ModelEnded
from littleghost.message import Message
from littleghost.models.arguments import read_arguments
from littleghost.models.chat_completions import ChatAnswer, chat_messages, chat_tools, read_usage
from littleghost.models.contract import ToolSpec
from littleghost.models.event_streams import AnswerStream, CutError, ServerSentEvents
from littleghost.usage import Usage

PNG = Image(data=b"\x89PNG", media_type="image/png")
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
PDF = Document(data=b"%PDF", media_type="application/pdf", name="a.pdf")
PDF_PART = {
    "type": "file",
    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
}


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (Message.system("Be brief."), [{"role": "system", "content": "Be brief."}]),
        (Message.system(["One.", "Two."]), [{"role": "system", "content": "One.\n\nTwo."}]),
        (Message.developer("Be kind."), [{"role": "developer", "content": "Be kind."}]),
        (Message.user("Hi"), [{"role": "user", "content": "Hi"}]),
        (Message.user([]), [{"role": "user", "content": ""}]),
        (
            Message.user(["See", PNG, PDF]),
            [{"role": "user", "content": [{"type": "text", "text": "See"}, PNG_PART, PDF_PART]}],
        ),
        (Message.user([PNG]), [{"role": "user", "content": [PNG_PART]}]),
        (
            Message.assistant([Reasoning(text="Hm"), Text("A"), Text("B")]),
            [{"role": "assistant", "content": "AB"}],
        ),
        (Message.assistant([Reasoning(text="Hm")]), [{"role": "assistant", "content": ""}]),
        (
            Message.assistant([ToolUse(id="x", name="f", input={"a": [1, "ü"]}), ToolUse(id="y", name="g")]),
            [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "x",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"a":[1,"ü"]}'},
                        },
                        {"id": "y", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                    ],
                }
            ],
        ),
        (
            Message.tool([
                ToolResult(tool_use_id="x", content="fine"),
                ToolResult(tool_use_id="y", content={"n": 1}),
                ToolResult(tool_use_id="z", content="no such file", status="error"),
                ToolResult(tool_use_id="w", content="Error: told already", status="error"),
            ]),
            [
                {"role": "tool", "tool_call_id": "x", "content": "fine"},
                {"role": "tool", "tool_call_id": "y", "content": '{"n":1}'},
                {"role": "tool", "tool_call_id": "z", "content": "Error: no such file"},
                {"role": "tool", "tool_call_id": "w", "content": "Error: told already"},
            ],
        ),
        (
            Message.tool([
                ToolResult(tool_use_id="x", content=[Text("a picture"), PNG]),
                ToolResult(tool_use_id="y", content="b"),
                PDF,
            ]),
            [
                {"role": "tool", "tool_call_id": "x", "content": "a picture\n[image/png, 4 bytes]"},
                {"role": "tool", "tool_call_id": "y", "content": "b"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Attached to the result of x:"},
                        PNG_PART,
                        PDF_PART,
                    ],
                },
            ],
        ),
    ],
    ids=lambda value: value.role if isinstance(value, Message) else "",
)  # fmt: skip
def test_what_is_sent(message: Message, sent: list[object]):
    assert chat_messages([message]) == sent


def test_developer_messages_have_the_role_the_server_knows():
    assert chat_messages([Message.developer("x")], developer="system")[0]["role"] == "system"


def test_long_ids_of_other_providers_are_shortened_alike_in_call_and_result():
    long = "toolu_" + "x" * 60
    call, result = chat_messages([
        Message.assistant([ToolUse(id=long, name="f")]),
        Message.tool([ToolResult(tool_use_id=long)]),
    ])  # fmt: skip
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert len(result["tool_call_id"]) == 40


def test_tools():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert chat_tools([ToolSpec(name="f", description="Does f.", schema=schema)]) == [
        {"type": "function", "function": {"name": "f", "description": "Does f.", "parameters": schema}}
    ]


# -- arguments


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{}", {}),
        (' {"a": 1}\n', {"a": 1}),
        ('{"n": 123456789012345678901234567890}', {"n": 123456789012345678901234567890}),
        ('{"t": "\\u0000 \\ud83d\\udc4b"}', {"t": "\0 👋"}),
        ('{"a":' * 99 + "{}" + "}" * 99, None),
    ],
)
def test_arguments(text: str, value: object):
    read, fault = read_arguments(text)
    assert fault is None
    assert read == (json.loads(text) if value is None else value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ('{"a": "half', "not valid JSON"),
        ('{"a": 1}{"a": 2}', "not valid JSON"),
        ("nothing", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('"{}"', "not a JSON object"),
        ("null", "not a JSON object"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "arguments.a"),
        ('{"a": ["\\ud83d"]}', "arguments.a[0]"),
        ('{"\\ud83d": 1}', "surrogate"),
        ('{"a": {"b": 1, "b": 2}}', "twice"),
        ('{"a":' * 101 + "1" + "}" * 101, "deep"),
        ('{"a":' * 100_000, "deep"),
        ('{"n": ' + "1" * 5000 + "}", "not valid JSON"),
    ],
    ids=range(17),
)
def test_malformed_arguments(text: str, words: str):
    value, fault = read_arguments(text)
    assert value == {}
    assert fault is not None
    assert words in fault
    assert len(fault) < 200


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
def test_any_arguments_are_an_object_or_a_fault(text: str):
    value, fault = read_arguments(text)
    assert isinstance(value, dict)
    assert fault is None or value == {}
    Message.assistant([ToolUse(id="a", name="f", input=value)]).to_dict()


# -- usage


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, Usage()),
        ("many", Usage()),
        ({}, Usage()),
        ({"prompt_tokens": 5, "completion_tokens": 3}, Usage(input_tokens=5, output_tokens=3)),
        ({"prompt_tokens": -5, "completion_tokens": "3", "prompt_tokens_details": 7}, Usage()),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}, Usage(input_tokens=5, cache_read_tokens=4)),
        (
            {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 9, "cache_write_tokens": 9}},
            Usage(cache_read_tokens=4),
        ),
        (
            {
                "prompt_tokens": 1,
                "completion_tokens": 5,
                "total_tokens": 6,
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            Usage(input_tokens=1, output_tokens=1, reasoning_tokens=4),
        ),
        (
            {
                "prompt_tokens": 1,
                "completion_tokens": 5,
                "total_tokens": 10,
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            Usage(input_tokens=1, output_tokens=5, reasoning_tokens=4),
        ),
    ],
    ids=range(9),
)
def test_usage(usage: object, expected: Usage):
    assert read_usage(usage) == expected


# -- bytes


def stream_of(*values: object, newline: str = "\n") -> bytes:
    return "".join(
        f"data: {value if isinstance(value, str) else json.dumps(value)}{newline}{newline}"
        for value in values
    ).encode()


def chunk(content: str | None = None, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


@given(st.lists(st.text(max_size=8), max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.data())
def test_however_the_bytes_are_split_the_answer_is_the_same(texts, newline, data):
    raw = stream_of(*map(chunk, texts), chunk(finish="stop"), "[DONE]", newline=newline)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    answer = AnswerStream(ChatAnswer())
    events = [event for piece in [*pieces, None] for event in answer.feed(piece)]
    events += answer.end()
    assert answer.closed
    assert [type(event) for event in events].count(ModelEnded) == 1
    assert events[-1].message.text == "".join(texts)
    assert "".join(event.text for event in events[:-1]) == "".join(texts)


@given(st.data())
def test_a_stream_cut_anywhere_is_whole_or_cut(data):
    raw = stream_of(chunk("Hello"), chunk(" there"), chunk(finish="stop"), "[DONE]")
    at = data.draw(st.integers(0, len(raw)))
    answer = AnswerStream(ChatAnswer())
    try:
        for piece in (raw[:at], None):
            list(answer.feed(piece))
    except CutError:
        assert b"stop" not in raw[:at] or at < raw.index(b"[DONE]")
    else:
        assert list(answer.end())[-1].message.text == "Hello there"


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_no_bytes_break_the_decoder(pieces):
    decoder = ServerSentEvents()
    for piece in pieces:
        assert all(isinstance(event, bytes) for event in decoder.feed(piece))
    decoder.end()


def test_a_line_end_split_in_two_is_one():
    raw = b"data: a\r\ndata: b\r\n\r\n"
    for at in range(len(raw)):
        decoder = ServerSentEvents()
        assert decoder.feed(raw[:at]) + decoder.feed(raw[at:]) == [b"a\nb"]


def test_an_event_of_several_lines():
    decoder = ServerSentEvents()
    assert decoder.feed(b"data: a\ndata:b\n\ndata\n\n") == [b"a\nb", b""]
    assert decoder.feed(b"\n\n: comment\nid: 3\n\n") == []
    assert decoder.end() is None
