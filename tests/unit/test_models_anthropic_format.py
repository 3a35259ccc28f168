"""The Messages format without I/O: bodies that Anthropic takes, and events of its streams."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost import transcript
from littleghost.content import Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import ContextOverflowError, ModelProtocolError, ModelRequestError
from littleghost.events import ModelEnded, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStarted
from littleghost.message import Message
from littleghost.models import claude
from littleghost.models.anthropic_format import MessagesAnswer, messages_body
from littleghost.models.contract import AnswerFormat, ModelRequest, ToolSpec
from littleghost.models.event_streams import AnswerStream, CutError, ServerFaultError
from littleghost.testing.model_anthropic import refusal
from littleghost.usage import Usage

PNG = b"\x89PNG\r\n\x1a\n..."
ADD = ToolSpec(name="add", description="Add numbers.", schema={"type": "object", "properties": {}})
READ = ToolSpec(name="read", description="", schema={"properties": {"path": {"type": "string"}}})
SETTINGS = {"max_tokens": 100}


def body_of(*messages: Message, settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    fields = {name: more.pop(name) for name in ("tools", "tool_choice", "format") if name in more}
    request = ModelRequest(messages=list(messages), **fields)
    body = messages_body(request, {**SETTINGS, **(settings or {})}, **more)
    assert json.loads(json.dumps(body)) == body
    assert refusal(body) is None
    return body


def thought(text: str = "Hm.", signature: str = "c2ln") -> Reasoning:
    return Reasoning(text=text, signature=signature, details={"format": "anthropic"})


def use(identifier: str = "c1", name: str = "add", **arguments: Any) -> ToolUse:
    return ToolUse(id=identifier, name=name, input=arguments)


def result(identifier: str = "c1", content: Any = "5", **more: Any) -> ToolResult:
    return ToolResult(tool_use_id=identifier, content=content, **more)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


# -- requests


def test_a_plain_request():
    body = body_of(Message.system("Be brief."), Message.developer("Be kind."), Message.user("Hello"))
    assert body == {
        "max_tokens": 100,
        "system": [text("Be brief."), text("Be kind.")],
        "messages": [{"role": "user", "content": [text("Hello")]}],
    }


def test_a_whole_turn():
    body = body_of(
        Message.user(["Look:", Image(data=PNG, media_type="image/png")]),
        Message.assistant([thought(), Text("I will add."), use("c1", a=2), use("c2", a=3)]),
        Message.tool([
            result("c1", [Text("5"), Image(data=PNG, media_type="image/png")]),
            result("c2", {"sum": 6}, status="error"),
        ]),
        Message.user("And now?"),
        tools=(ADD, READ),
    )  # fmt: skip
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
    }
    assert body["messages"] == [
        {"role": "user", "content": [text("Look:"), image]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                text("I will add."),
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 2}},
                {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 3}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [text("5"), image]},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "is_error": True,
                    "content": [text('{"sum":6}')],
                },
                text("And now?"),
            ],
        },
    ]
    assert body["tools"] == [
        {"name": "add", "description": "Add numbers.", "input_schema": ADD.schema},
        {"name": "read", "input_schema": {"type": "object", **READ.schema}},
    ]


def test_documents():
    body = body_of(
        Message.user([
            Document(data=b"%PDF", media_type="application/pdf", name="a.pdf"),
            Document(data="Grüße".encode(), media_type="text/markdown; charset=utf-8", name="b.md"),
            Document(data=b'{"a": 1}', media_type="application/json", name=" "),
        ])
    )  # fmt: skip
    pdf, markdown, data = body["messages"][0]["content"]
    assert pdf == {
        "type": "document",
        "title": "a.pdf",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
    }
    assert markdown["source"] == {"type": "text", "media_type": "text/plain", "data": "Grüße"}
    assert data == {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": '{"a": 1}'},
    }


@pytest.mark.parametrize(
    ("block", "place"),
    [
        (Image(data=b"x", media_type="image/tiff"), "content[1]"),
        (Document(data=b"x", media_type="application/zip", name="a.zip"), "content[1]"),
        (Document(data=b"\xff", media_type="text/plain", name="latin.txt"), "content[1]"),
    ],
)
def test_what_cannot_be_sent_is_named(block, place):
    with pytest.raises(ModelRequestError) as caught:
        body_of(Message.user("Hello"), Message.user(["See", block]))
    assert str(caught.value).startswith(f"messages[1].{place}: Anthropic takes")


def test_nothing_to_answer_is_refused():
    with pytest.raises(ModelRequestError, match="messages: there is none"):
        body_of(Message.system("Be brief."))


def test_what_is_blank_is_not_sent():
    body = body_of(
        Message.system(" "),
        Message.user(["", "Hello", " \n"]),
        Message.assistant([Text("\n"), use()]),
        Message.tool([result(content=""), Text(" ")]),
        Message.assistant("  "),
        Message.user(" "),
        tools=(ADD,),
    )
    assert "system" not in body
    assert body["messages"] == [
        {"role": "user", "content": [text("Hello")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "add", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1"}, text("(empty)")]},
    ]


def test_an_error_without_words_has_some():
    body = body_of(
        Message.user("Go"), Message.assistant([use()]), Message.tool([result(content="", status="error")]), tools=(ADD,)
    )  # fmt: skip
    assert body["messages"][-1]["content"][0]["content"] == [text("(empty)")]


def test_who_speaks_in_a_row_speaks_once_and_a_user_first():
    body = body_of(
        Message.assistant("Welcome."),
        Message.assistant("How can I help?"),
        Message.user("One"),
        Message.developer("Mind the time."),
        Message.user("Two"),
    )
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][2]["content"] == [
        text("One"),
        text("<developer>\nMind the time.\n</developer>"),
        text("Two"),
    ]


def test_developer_messages_can_have_a_role_of_their_own():
    body = messages_body(
        ModelRequest(messages=[Message.user("One"), Message.developer("Mind the time.")]), SETTINGS, developer="system"
    )  # fmt: skip
    assert body["messages"][1] == {"role": "system", "content": [text("Mind the time.")]}


def test_an_answer_to_be_gone_on_with_ends_in_a_letter():
    assert body_of(Message.user("Go"), Message.assistant("Once \n"))["messages"][-1]["content"] == [
        text("Once")
    ]


def test_ids_are_acceptable_and_not_repeated():
    turn = [
        Message.assistant([use("a"), use("b:1"), use("x" * 80)]),
        Message.tool([result("a"), result("b:1"), result("x" * 80)]),
    ]
    body = body_of(Message.user("Go"), *turn, *turn, *turn, tools=(ADD,))
    ids = [b["id"] for m in body["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert len(set(ids)) == 9
    assert ids[0] == "a"
    again = body_of(Message.user("Go"), *turn, *turn, tools=(ADD,))
    assert again["messages"] == body["messages"][:5]  # what was sent once is never sent otherwise


def test_a_history_with_calls_needs_tools():
    turn = [Message.user("Go"), Message.assistant([use(name="gone")]), Message.tool([result()])]
    body = body_of(*turn)
    assert [tool["name"] for tool in body["tools"]] == ["gone"]
    assert body["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", None),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ("add", {"type": "tool", "name": "add"}),
    ],
)
def test_tool_choice(choice, sent):
    assert body_of(Message.user("Go"), tools=(ADD,), tool_choice=choice).get("tool_choice") == sent
    assert "tool_choice" not in body_of(Message.user("Go"), tool_choice=choice)
    one = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    merged = body_of(Message.user("Go"), tools=(ADD,), tool_choice=choice, settings=one)["tool_choice"]
    assert merged == ({"type": "none"} if choice == "none" else {**one["tool_choice"], **(sent or {})})


def test_an_answer_format():
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    body = body_of(
        Message.user("Go"),
        format=AnswerFormat(name="number", schema=schema),
        settings={"output_config": {"effort": "low"}},
    )
    assert body["output_config"] == {
        "effort": "low",
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"n": {"type": "integer", "description": "{minimum: 1}"}},
                "required": ["n"],
                "additionalProperties": False,
            },
        },
    }


# -- cache marks


def marks(body: dict[str, Any]) -> list[Any]:
    found = [*body.get("tools", []), *body.get("system", [])]
    found += [block for message in body["messages"] for block in message["content"]]
    return [
        (block.get("name") or block.get("text"), block["cache_control"])
        for block in found
        if "cache_control" in block
    ]


def test_marks_stand_after_the_tools_the_instructions_and_the_last_message():
    messages = [Message.system("One"), Message.developer("Two"), Message.user("Hello")]
    five, hour = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
    assert marks(body_of(*messages, tools=(READ, ADD), cache="5m")) == [
        ("add", five),
        ("Two", five),
        ("Hello", five),
    ]
    assert marks(body_of(*messages, cache="1h")) == [("Two", hour), ("Hello", hour)]
    assert marks(body_of(*messages)) == []


def test_messages_can_ask_for_marks_and_the_last_four_win():
    def asking(text: str) -> Message:
        return Message.user(text, {"cache": True})

    assert marks(body_of(Message.system("S"), asking("A"), Message.user("B"))) == [
        ("A", {"type": "ephemeral"})
    ]
    body = body_of(
        Message.system("S"), asking("A"), Message.assistant("1"), asking("B"), asking("C"), asking("D"), tools=(ADD,), cache="5m"
    )  # fmt: skip
    assert [name for name, _ in marks(body)] == ["A", "B", "C", "D"]


def test_reasoning_is_not_marked():
    body = body_of(
        Message.user("Go"), Message.assistant([Text("So"), thought()], {"cache": True}), Message.user("On"), cache="5m"
    )  # fmt: skip
    assert [name for name, _ in marks(body)] == ["So", "On"]


# -- reasoning


def test_reasoning_goes_back_in_its_order_and_only_its_own():
    redacted = Reasoning(data=b"c2VjcmV0", details={"format": "anthropic"})
    foreign = Reasoning(text="Mine", signature="x", details={"format": "bedrock"})
    unsigned = Reasoning(text="Loose", details={"format": "anthropic"})
    body = body_of(
        Message.user("Go"),
        Message.assistant([thought("A"), Text("One"), foreign, redacted, unsigned, thought(""), use()]),
        Message.tool([result()]),
        tools=(ADD,),
        settings={"thinking": {"type": "enabled", "budget_tokens": 50}},
    )
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "A", "signature": "c2ln"},
        text("One"),
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        {"type": "tool_use", "id": "c1", "name": "add", "input": {}},
    ]
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 50}


BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 50}}


def test_a_resumed_turn_is_thought_about_no_more():
    before = [Message.user("Add"), Message.assistant([thought("Old"), Text("Done.")])]
    turn = [Message.user("Go"), Message.assistant([Text("So"), use()]), Message.tool([result()])]
    body = body_of(*before, *turn, tools=(ADD,), settings=BUDGET)
    assert body["thinking"] == {"type": "disabled"}
    assert "thinking" not in [block["type"] for message in body["messages"] for block in message["content"]]
    # still the same turn, whatever came since
    later = [Message.assistant([use("c2")]), Message.tool([result("c2")]), Message.developer("Hurry")]
    assert body_of(*before, *turn, *later, tools=(ADD,), settings=BUDGET)["thinking"] == {"type": "disabled"}
    over = [Message.assistant("Five."), Message.user("Thanks")]
    body = body_of(*before, *turn, *over, tools=(ADD,), settings=BUDGET)
    assert body["thinking"] == BUDGET["thinking"]
    assert body["messages"][1]["content"][0]["thinking"] == "Old"


def test_a_turn_thinks_once_before_its_calls():
    """Without interleaved thinking only the first answer of a turn begins with thinking."""
    turn = [Message.assistant([thought(), use()]), Message.tool([result()]), Message.assistant([use("c2")])]
    body = body_of(Message.user("Go"), *turn, Message.tool([result("c2")]), tools=(ADD,), settings=BUDGET)
    assert body["thinking"] == BUDGET["thinking"]


@pytest.mark.parametrize("settings", [{}, {"thinking": {"type": "adaptive"}}])
def test_adaptive_thinking_stays_on(settings):
    turn = [Message.user("Go"), Message.assistant([use()]), Message.tool([result()])]
    body = body_of(*turn, tools=(ADD,), tool_choice="required", settings=settings)
    assert body.get("thinking") == settings.get("thinking")


def test_a_forced_call_is_not_thought_about():
    body = body_of(Message.user("Go"), tools=(ADD,), tool_choice="required", settings=BUDGET)
    assert body["thinking"] == {"type": "disabled"}


def test_thinking_that_is_switched_off_gets_no_reasoning():
    messages = [Message.user("Go"), Message.assistant([thought(), Text("Yes")]), Message.user("On")]
    body = body_of(*messages, settings={"thinking": {"type": "disabled"}})
    assert body["messages"][1]["content"] == [text("Yes")]


def kept(*content: Any) -> Message:
    """An assistant message as a store gives it back, signatures kept."""
    answer = MessagesAnswer(keep=True)
    list(answer.feed({"type": "message", "stop_reason": "end_turn", "content": list(content)}))
    (ended,) = answer.end()
    (stored,) = transcript.sanitise([ended.message])
    return stored


OPAQUE = {"type": "thinking", "thinking": "", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "c2VjcmV0"}
CALL = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}


def test_signatures_that_were_kept_go_back_to_their_places():
    content = [OPAQUE, text("So"), REDACTED, OPAQUE, CALL]
    message = kept(*content)
    assert not any(isinstance(block, Reasoning) for block in message.content)
    messages = [Message.user("Go"), message, Message.tool([result()])]
    body = body_of(*messages, tools=(ADD,), kept=True, settings=BUDGET)
    assert body["messages"][1]["content"] == content
    assert body["thinking"] == BUDGET["thinking"]
    assert body_of(*messages, tools=(ADD,), settings=BUDGET)["thinking"] == {"type": "disabled"}


def test_readable_reasoning_is_not_kept_and_ends_what_is_valid():
    readable = {"type": "thinking", "thinking": "My secret plan", "signature": "c2ln"}
    lost = kept(readable, REDACTED, text("So"))
    assert "plan" not in json.dumps(lost.to_dict())
    assert transcript.note(lost, "reasoning") == {"format": "anthropic", "blocks": None}
    earlier, later = kept(OPAQUE, text("A")), kept(OPAQUE, text("B"))
    body = body_of(
        Message.user("1"),
        earlier,
        Message.user("2"),
        lost,
        Message.user("3"),
        later,
        Message.user("4"),
        kept=True,
    )
    assert [len(message["content"]) for message in body["messages"]] == [1, 2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "note",
    [
        7,
        {"format": "bedrock", "blocks": [{"at": 0, "signature": "x"}]},
        {"format": "anthropic"},
        {"format": "anthropic", "blocks": [{"at": "0", "signature": "x"}]},
        {"format": "anthropic", "blocks": [{"at": 0, "data": "no base64"}]},
        {"format": "anthropic", "blocks": [{"at": 0}]},
    ],
)
def test_a_note_that_is_none_is_passed_over(note):
    message = transcript.mark(Message.assistant("Yes"), reasoning=note)
    body = body_of(Message.user("Go"), message, Message.user("On"), kept=True)
    assert body["messages"][1]["content"] == [text("Yes")]


ANY_TEXT = st.sampled_from(["", " ", "\n", "word", "two words ", "Grüße 👋"])
BLOCKS = st.one_of(
    ANY_TEXT.map(Text),
    st.just(Image(data=PNG, media_type="image/png")),
    st.sampled_from(["a", "b", "b:c", "x" * 70]).map(use),
    st.sampled_from(["a", "b", "b:c", "x" * 70]).map(result),
    ANY_TEXT.map(thought),
    st.just(Reasoning(text="foreign", details={"format": "gemini"})),
)
TRANSCRIPTS = st.lists(
    st.builds(
        Message,
        st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        st.lists(BLOCKS, max_size=4),
        st.sampled_from([{}, {"cache": True}]),
    ),
    max_size=8,
)


@given(
    TRANSCRIPTS,
    st.sampled_from([{}, BUDGET, {"thinking": {"type": "disabled"}}]),
    st.sampled_from(["auto", "required", "none", "add"]),
    st.booleans(),
)
def test_no_transcript_is_refused(messages, settings, choice, tools):
    """Whatever a transcript holds, what is made of it is what the provider takes."""
    view = transcript.for_model([transcript.admit(m) if m.role == "assistant" else m for m in messages])
    view = [message for message in view if message.role != "system"]
    request = ModelRequest(
        messages=[*view, Message.user("Go")], tools=(ADD,) if tools else (), tool_choice=choice
    )
    assert refusal(messages_body(request, {**SETTINGS, **settings}, cache="5m")) is None


# -- answers


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)


def start(**usage: int) -> dict[str, Any]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude",
        "usage": usage,
    }
    return {"type": "message_start", "message": {**message, "stop_reason": None}}


def block(index: int, form: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": form},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def words(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, text(""), *({"type": "text_delta", "text": piece} for piece in pieces))


def arguments(index: int, identifier: str, *pieces: str) -> list[dict[str, Any]]:
    form = {"type": "tool_use", "id": identifier, "name": "add", "input": {}}
    return block(index, form, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def stop(reason: str = "end_turn", **usage: int) -> list[dict[str, Any]]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


RECORDED = [
    start(input_tokens=25, cache_creation_input_tokens=10, cache_read_input_tokens=100, output_tokens=1),
    {"type": "ping"},
    *block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "add."},
        {"type": "signature_delta", "signature": "EqQB"},
        {"type": "signature_delta", "signature": "CgI="},
    ),
    *block(1, {"type": "redacted_thinking", "data": "EmwKAhgB"}),
    *words(2, "Okay, ", "adding."),
    *arguments(3, "toolu_1", "", '{"a": 2', ', "b": 3}'),
    *arguments(4, "toolu_2", ""),
    *stop("tool_use", output_tokens=89),
]
CONTENT = (
    Reasoning(text="Let me add.", signature="EqQBCgI=", details={"format": "anthropic"}),
    Reasoning(data=b"EmwKAhgB", details={"format": "anthropic"}),
    Text("Okay, adding."),
    ToolUse(id="toolu_1", name="add", input={"a": 2, "b": 3}),
    ToolUse(id="toolu_2", name="add"),
)


def read(raw: bytes, *, size: int = 1 << 20, **options: Any) -> list[Any]:
    stream = AnswerStream(MessagesAnswer(**options))
    events = [event for at in range(0, len(raw), size) for event in stream.feed(raw[at : at + size])]
    if not stream.closed:
        events += stream.feed(None)
    return [*events, *stream.end()]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_recorded_answer(size):
    *events, last = read(sse(*RECORDED), size=size)
    assert events == [
        ReasoningDelta(text="Let me "),
        ReasoningDelta(text="add."),
        TextDelta(text="Okay, "),
        TextDelta(text="adding."),
        ToolCallStarted(index=0, id="toolu_1", name="add"),
        ToolCallArguments(index=0, arguments='{"a": 2'),
        ToolCallArguments(index=0, arguments=', "b": 3}'),
        ToolCallStarted(index=1, id="toolu_2", name="add"),
    ]
    assert last.message.content == CONTENT
    assert (last.stop, last.malformed) == ("end", {})
    assert last.usage == Usage(
        input_tokens=25, output_tokens=89, cache_read_tokens=100, cache_write_tokens=10
    )


def test_what_was_answered_goes_back_as_it_came():
    message = read(sse(*RECORDED))[-1].message
    body = body_of(
        Message.user("Go"),
        transcript.admit(message),
        Message.tool([result("toolu_1"), result("toolu_2")]),
        tools=(ADD,),
        settings=BUDGET,
    )
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Let me add.", "signature": "EqQBCgI="},
        {"type": "redacted_thinking", "data": "EmwKAhgB"},
        text("Okay, adding."),
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}},
        {"type": "tool_use", "id": "toolu_2", "name": "add", "input": {}},
    ]


def test_an_answer_that_does_not_stream():
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        text("Yes"),
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        CALL,
    ]
    whole = {
        "type": "message",
        "content": content,
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    last = read(json.dumps(whole).encode())[-1]
    assert last.message.content == (thought(), Text("Yes"), use(a=1))
    assert last.usage == Usage(input_tokens=3, output_tokens=4)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("end_turn", "end"),
        ("tool_use", "end"),
        ("stop_sequence", "end"),
        ("something_new", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("pause_turn", "length"),
        ("refusal", "filter"),
    ],
)
def test_the_reason_to_stop(reason, told):
    last = read(sse(start(), *words(0, "So"), *stop(reason)))[-1]
    assert (last.stop, last.message.text) == (told, "So")


def test_a_window_that_is_full_from_the_start():
    with pytest.raises(ContextOverflowError):
        read(sse(start(), *stop("model_context_window_exceeded")))


@pytest.mark.parametrize(("pieces", "cut"), [((), "empty"), (('{"a": ',), "not valid JSON")])
def test_a_call_cut_by_the_output_limit(pieces, cut):
    last = read(sse(start(), *arguments(0, "a", "{}"), *arguments(1, "b", *pieces), *stop("max_tokens")))[-1]
    assert last.stop == "length"
    assert list(last.malformed) == [1]
    assert cut in last.malformed[1]


def test_usage_is_cumulative_and_thinking_is_counted_apart():
    usage = {"output_tokens": 50, "input_tokens": 9, "output_tokens_details": {"thinking_tokens": 30}}
    last = read(sse(start(input_tokens=8, output_tokens=2), *words(0, "So"), *stop(**usage)))[-1]
    assert last.usage == Usage(input_tokens=9, output_tokens=20, reasoning_tokens=30)


def test_what_is_unknown_is_passed_over():
    events = [
        start(),
        {"type": "vendor_event", "index": 0},
        *block(0, {"type": "server_tool_use", "id": "s"}, {"type": "input_json_delta", "partial_json": "{"}),
        *block(1, {"type": "web_search_tool_result", "content": []}),
        *block(
            2, text("A"), {"type": "text_delta", "text": "B"}, {"type": "citations_delta", "citation": {}}
        ),
        *block(3, text("")),
        *stop(),
    ]
    assert read(sse(*events))[-1].message == Message.assistant("AB")


def test_blocks_keep_the_order_of_their_indices():
    first, second = words(0, "A"), words(1, "B")
    events = [start(), second[0], first[0], second[1], first[1], first[2], second[2], *stop()]
    assert read(sse(*events))[-1].message.content == (Text("A"), Text("B"))


@pytest.mark.parametrize("until", range(len(RECORDED) - 1))
def test_a_cut_answer_is_never_a_whole_one(until):
    if RECORDED[until]["type"] == "message_delta":
        return  # it says why the model stopped
    with pytest.raises(CutError):
        read(sse(*RECORDED[: until + 1]))


def test_only_the_end_is_missing():
    assert read(sse(*RECORDED[:-1]))[-1].message.content == CONTENT


STRICT = [e for e in RECORDED if e["type"] != "ping"]
ONCE = [at for at, e in enumerate(STRICT) if e["type"] in ("message_start", "content_block_start")]


@pytest.mark.parametrize("at", ONCE)
def test_what_begins_twice_is_no_answer(at):
    with pytest.raises(ModelProtocolError):
        read(sse(*STRICT[: at + 1], *STRICT[at:]))


@pytest.mark.parametrize("at", range(len(STRICT) - 1))
def test_neighbours_that_changed_places_are_the_same_answer_or_none(at):
    events = [*STRICT[:at], STRICT[at + 1], STRICT[at], *STRICT[at + 2 :]]
    if STRICT[at]["type"] == STRICT[at + 1]["type"] == "content_block_delta":
        return  # nothing in the format tells their order
    try:
        last = read(sse(*events))[-1]
    except (ModelProtocolError, CutError):
        return
    assert last.message.content == CONTENT
    assert last.stop == "end"


def test_text_behind_the_reason_to_stop_is_no_answer():
    tail = stop()
    late = words(1, "late")
    with pytest.raises(ModelProtocolError):
        read(sse(start(), *words(0, "So"), tail[0], *late, tail[1]))


@pytest.mark.parametrize(
    "event",
    [
        [],
        {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "?"}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": "?"},
        },
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "?"}},
        {"type": "content_block_start", "index": "0", "content_block": text("")},
        {"type": "content_block_stop", "index": 9},
        {"type": "message_stop"},
    ],
)
def test_what_is_out_of_place_is_no_answer(event):
    raw = b"data: " + json.dumps(event).encode() + b"\n\n"
    with pytest.raises(ModelProtocolError):
        read(sse(start(), *words(0, "So")[:2]) + raw)


def test_a_part_before_the_beginning_is_no_answer():
    with pytest.raises(ModelProtocolError):
        read(sse(*words(0, "So"), *stop()))


def test_an_error_in_the_middle():
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(ServerFaultError) as caught:
        read(sse(start(), *words(0, "So")[:2], error))
    assert caught.value.body == error["error"]


@given(st.lists(st.text(max_size=5)), st.integers(1, 9))
def test_any_text_comes_whole(pieces, size):
    last = read(sse(start(), *words(0, *pieces), *stop()), size=size)[-1]
    assert type(last) is ModelEnded
    assert last.message.text == "".join(pieces)


# -- what is known of models


@pytest.mark.parametrize(
    ("model", "window", "forced", "held"),
    [
        ("claude-opus-5-5", 1_000_000, False, True),
        ("claude-opus-5", 1_000_000, True, True),
        ("claude-sonnet-5-5", 1_000_000, False, True),
        ("claude-fable-5-1", 1_000_000, False, True),
        ("claude-sonnet-4-6", 1_000_000, True, True),
        ("claude-haiku-4-5-20251001", 200_000, True, True),
        ("claude-sonnet-4-5-20250929", 200_000, True, True),
        ("claude-sonnet-4-20250514", 200_000, True, False),
        ("claude-3-haiku-20240307", 200_000, True, False),
        ("us.anthropic.claude-opus-4-6-v1", 1_000_000, True, True),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", 200_000, True, False),
        ("arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-haiku-4-5-20251001-v1:0", 200_000, True, True),
        ("amazon.nova-pro-v1:0", None, True, False),
        ("claude-next", None, True, True),
    ],
)  # fmt: skip
def test_models(model, window, forced, held):
    assert claude.context_window(model) == window
    assert claude.can_be_forced(model) is forced
    assert claude.holds_to_schema(model) is held
