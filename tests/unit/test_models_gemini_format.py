"""The format of Gemini without any server: what is sent, and what is made of what comes."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from littleghost.content import Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import ModelProtocolError
from littleghost.events import ModelEnded, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStarted
from littleghost.message import Message
from littleghost.models.contract import AnswerFormat, ToolSpec
from littleghost.models.event_streams import ServerFaultError
from littleghost.models.gemini_format import (
    NO_SIGNATURE,
    GeminiAnswer,
    gemini_body,
    gemini_schema,
    needs_signatures,
    read_usage,
)
from littleghost.usage import Usage

MODEL = "gemini-3-pro"
CALL = ToolUse(id="c1", name="add", input={"a": 1})
OTHER = ToolUse(id="c2", name="add", input={"a": 2})
RESULT = Message.tool([ToolResult(tool_use_id="c1", content="3")])
PNG = Image(data=b"\x89PNG", media_type="image/png")
MP3 = Document(data=b"ID3", media_type="audio/mpeg", name="a.mp3")


def contents(*messages: Message, model: str = MODEL) -> list[dict[str, Any]]:
    return gemini_body(messages, model=model)["contents"]


def chunk(*parts: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **fields}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate]}


def read(*chunks: Any, keep: bool = False) -> tuple[list[Any], ModelEnded]:
    answer = GeminiAnswer(MODEL, keep_signatures=keep)
    events = [event for one in chunks for event in answer.feed(one)]
    assert answer.finished
    (ended,) = answer.end()
    return events, ended


# -- requests


def test_instructions_stand_apart_and_later_ones_say_whose_they_are():
    body = gemini_body(
        [
            Message.system(["Be brief.", "Be kind."]),
            Message.developer("In English."),
            Message.developer([PNG]),
            Message.user("Hi"),
            Message.developer("In French."),
        ],
        model=MODEL,
    )
    assert body == {
        "systemInstruction": {"parts": [{"text": "Be brief.\n\nBe kind."}, {"text": "In English."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "user", "parts": [{"text": "Instructions of the developer:\nIn French."}]},
        ],
    }


def test_results_have_the_names_of_their_calls_and_stand_in_order():
    calls = [CALL, ToolUse(id="c2", name="look", input={}), ToolUse(id="c3", name="fail", input={})]
    results = [
        ToolResult(tool_use_id="c1", content={"sum": 3}),
        ToolResult(tool_use_id="c2", content=[Text("a"), Text("b")]),
        ToolResult(tool_use_id="c3", content="no", status="error"),
    ]
    _, called, answered = contents(Message.user("Hi"), Message.assistant(calls), Message.tool(results))
    assert [part["functionCall"] for part in called["parts"]] == [
        {"id": "c1", "name": "add", "args": {"a": 1}},
        {"id": "c2", "name": "look", "args": {}},
        {"id": "c3", "name": "fail", "args": {}},
    ]
    assert answered == {
        "role": "user",
        "parts": [
            {"functionResponse": {"id": "c1", "name": "add", "response": {"output": {"sum": 3}}}},
            {"functionResponse": {"id": "c2", "name": "look", "response": {"output": "a\nb"}}},
            {"functionResponse": {"id": "c3", "name": "fail", "response": {"error": "no"}}},
        ],
    }


def test_ids_that_come_again_belong_to_the_nearest_calls():
    again = ToolUse(id="c1", name="other", input={})
    sent = contents(Message.user("Hi"), Message.assistant([CALL]), RESULT, Message.assistant([again]), RESULT)
    assert [one["parts"][0]["functionResponse"]["name"] for one in (sent[2], sent[4])] == ["add", "other"]


@pytest.mark.parametrize(
    ("model", "inside", "beside"), [("gemini-3-pro", 1, 1), ("gemini-2.5-flash", 0, 2), ("tuned", 1, 1)]
)
def test_files_of_a_tool_are_in_its_result_where_the_model_takes_them(model: str, inside: int, beside: int):
    result = Message.tool([ToolResult(tool_use_id="c1", content=[Text("see"), PNG, MP3]), Text("note")])
    parts = contents(Message.user("Hi"), Message.assistant([CALL]), result, model=model)[-1]["parts"]
    answer = parts[0]["functionResponse"]
    assert len(answer.get("parts", ())) == inside
    assert len([part for part in parts if "inlineData" in part]) == beside
    assert "see" in answer["response"]["output"]
    assert parts[-1] == {"text": "note"}
    for part in (*answer.get("parts", ()), *parts):
        if "inlineData" in part:
            assert base64.b64decode(part["inlineData"]["data"]) in (PNG.data, MP3.data)


def test_what_is_empty_is_not_sent_but_a_turn_of_the_user_stays():
    assert contents(Message.assistant([]), Message.user(""), Message.assistant([Text("")])) == [
        {"role": "user", "parts": [{"text": " "}]}
    ]


def test_tools_choices_and_formats():
    tools = [
        ToolSpec(name="add", description="Add.", schema={"type": "object", "properties": {"a": {}}}),
        ToolSpec(name="now", description="Now.", schema={"type": "object", "properties": {}}),
    ]
    hello = [Message.user("Hi")]
    body = gemini_body(hello, model=MODEL, tools=tools)
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {"name": "add", "description": "Add.", "parametersJsonSchema": tools[0].schema},
                {"name": "now", "description": "Now."},
            ]
        }
    ]
    assert "toolConfig" not in body
    for choice, calling in {
        "required": {"mode": "ANY"},
        "none": {"mode": "NONE"},
        "now": {"mode": "ANY", "allowedFunctionNames": ["now"]},
    }.items():
        body = gemini_body(hello, model=MODEL, tools=tools, tool_choice=choice)
        assert body["toolConfig"] == {"functionCallingConfig": calling}
    assert "toolConfig" not in gemini_body(hello, model=MODEL, tool_choice="required")
    form = AnswerFormat(name="x", schema={"type": "object", "properties": {"a": {"const": 1}}})
    body = gemini_body(hello, model=MODEL, format=form, settings={"temperature": 1})
    assert body["generationConfig"] == {
        "temperature": 1,
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object", "properties": {"a": {"enum": [1]}}},
    }


def test_settings_stand_where_the_api_has_them_however_they_are_spelled():
    settings = {
        "max_output_tokens": 9,
        "topP": 0.5,
        "safety_settings": [{"category": "X"}],
        "cachedContent": "cachedContents/1",
        "thinking_config": {"includeThoughts": True},
    }
    body = gemini_body([Message.user("Hi")], model=MODEL, settings=settings)
    del body["contents"]
    assert body == {
        "safetySettings": [{"category": "X"}],
        "cachedContent": "cachedContents/1",
        "generationConfig": {
            "maxOutputTokens": 9,
            "topP": 0.5,
            "thinkingConfig": {"includeThoughts": True},
        },
    }


def test_a_schema_loses_what_gemini_refuses_and_keeps_its_meaning():
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "definitions": {"P": {"type": "object", "properties": {"const": {"type": "string"}}}},
        "properties": {
            "pattern": {"type": "string", "pattern": "^a", "minLength": 1, "default": "a", "examples": ["a"]},
            "one": {"$ref": "#/definitions/P", "description": "goes", "default": None},
            "kind": {"const": "x", "type": "string"},
            "maybe": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
            "inherits": {"allOf": [{"$ref": "#/definitions/P"}]},
            "list": {
                "type": "array",
                "items": {"type": "integer", "exclusiveMinimum": 0},
                "uniqueItems": True,
            },
            "map": {"type": "object", "additionalProperties": {"type": "number", "multipleOf": 2}},
            "two": {"type": "array", "prefixItems": [{"type": "string", "title": "T"}, True]},
        },
        "required": ["kind"],
        "additionalProperties": False,
    }
    assert gemini_schema(schema) == {
        "type": "object",
        "$defs": {"P": {"type": "object", "properties": {"const": {"type": "string"}}}},
        "properties": {
            "pattern": {"type": "string"},
            "one": {"$ref": "#/$defs/P"},
            "kind": {"enum": ["x"], "type": "string"},
            "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "inherits": {"$ref": "#/$defs/P"},
            "list": {"type": "array", "items": {"type": "integer"}},
            "map": {"type": "object", "additionalProperties": {"type": "number"}},
            "two": {"type": "array", "prefixItems": [{"type": "string", "title": "T"}, True]},
        },
        "required": ["kind"],
        "additionalProperties": False,
    }


# -- signatures


@pytest.mark.parametrize(
    ("model", "needs"),
    [
        ("gemini-3-pro", True), ("models/gemini-3.8-flash", True), ("gemini-10-x", True), ("gemini-flash-latest", True),
        ("tunedModels/1", True), ("gemini-2.5-pro", False), ("publishers/google/models/gemini-2.0-flash", False),
    ],
)  # fmt: skip
def test_which_models_need_signatures(model: str, needs: bool):
    assert needs_signatures(model) is needs


def test_a_call_of_this_turn_without_its_signature_gets_what_stands_for_one():
    earlier = [Message.user("A"), Message.assistant([CALL, OTHER]), Message.tool([
        ToolResult(tool_use_id="c1", content="3"), ToolResult(tool_use_id="c2", content="4"),
    ])]  # fmt: skip
    sent = contents(*earlier, Message.assistant([Text("Again"), CALL]), RESULT)
    first, second = sent[1]["parts"]
    assert (first["thoughtSignature"], "thoughtSignature" in second) == (NO_SIGNATURE, False)
    assert [part.get("thoughtSignature") for part in sent[3]["parts"]] == [None, NO_SIGNATURE]
    # In the next turn nobody looks at them any more.
    sent = contents(*earlier, Message.assistant("7"), Message.user("B"), Message.assistant([CALL]), RESULT)
    assert [
        [part.get("thoughtSignature") for part in one["parts"]] for one in sent if one["role"] == "model"
    ] == [[None, None], [None], [NO_SIGNATURE]]
    sent = contents(*earlier, model="gemini-2.5-pro")
    assert not any("thoughtSignature" in part for one in sent for part in one["parts"])


def test_each_signature_goes_back_at_the_part_it_came_with():
    parts = [
        {"text": "Hm", "thought": True},
        {"text": "Let me "},
        {"text": "see. "},
        {"text": "Now:", "thoughtSignature": "s1"},
        {"text": " go"},
        {"functionCall": {"id": "c1", "name": "add", "args": {"a": 1}}, "thoughtSignature": "s2"},
        {"functionCall": {"id": "c2", "name": "add", "args": {"a": 2}}},
        {"text": "", "thoughtSignature": "s3"},
    ]
    _, ended = read(*(chunk(part) for part in parts), chunk(finish="STOP"))
    assert [type(block) for block in ended.message.content] == [
        Reasoning, Text, Reasoning, Text, Text, Reasoning, ToolUse, ToolUse, Reasoning,
    ]  # fmt: skip
    assert ended.message.text == "Let me see. Now: go"
    sent = contents(Message.user("Hi"), ended.message)[1]["parts"]
    assert sent == [{"text": "Let me see. "}, *parts[3:]]


def test_a_thought_with_a_signature_goes_back_whole_and_one_without_stays_here():
    _, ended = read(
        chunk({"text": "a", "thought": True}),
        chunk({"text": "b", "thought": True, "thoughtSignature": "s"}),
        chunk({"text": "c", "thought": True}),
        chunk({"text": "Hi"}, finish="STOP"),
    )
    assert [block.text for block in ended.message.content] == ["a", "b", "c", "Hi"]  # type: ignore[union-attr]
    assert contents(ended.message)[0]["parts"] == [
        {"text": "b", "thought": True, "thoughtSignature": "s"},
        {"text": "Hi"},
    ]


def test_signatures_of_another_model_or_at_another_block_are_not_sent():
    _, ended = read(chunk({"text": "Hi", "thoughtSignature": "s"}, finish="STOP"))
    sent = contents(ended.message, model="gemini-4-pro")
    assert sent == [{"role": "model", "parts": [{"text": "Hi"}]}]
    signature = ended.message.content[0]
    for block in (PNG, CALL):
        sent = contents(Message.user("x"), Message.assistant([signature, block, Text("Hi")]))
        assert "s" not in [part.get("thoughtSignature") for part in sent[1]["parts"]]


def test_kept_signatures_stand_in_the_metadata_and_go_back_without_the_reasoning():
    parts = [
        {"text": "Secret thought", "thought": True, "thoughtSignature": "s0"},
        {"text": "Now:", "thoughtSignature": "s1"},
        {"functionCall": {"id": "c1", "name": "add", "args": {}}, "thoughtSignature": "s2"},
        {"text": "", "thoughtSignature": "s3"},
    ]
    _, ended = read(*(chunk(part) for part in parts), chunk(finish="STOP"), keep=True)
    stored = Message.from_dict(ended.message.without_reasoning().to_dict())
    assert stored.metadata == {
        "littleghost": {
            "reasoning": {
                "format": "gemini",
                "model": MODEL,
                "signatures": [[0, "text", "s1"], [1, "call", "s2"], [2, "end", "s3"]],
            }
        }
    }
    assert contents(Message.user("Hi"), stored)[1]["parts"] == parts[1:]
    # What is still there goes first, and nothing goes twice.
    assert contents(Message.user("Hi"), ended.message)[1]["parts"] == parts
    other = contents(Message.user("Hi"), stored, model="gemini-4-pro")[1]["parts"]
    assert [part.get("thoughtSignature") for part in other] == [None, NO_SIGNATURE]


@pytest.mark.parametrize(
    "note",
    [
        None, 1, "x", [], {}, {"format": "anthropic", "model": MODEL, "signatures": [[0, "text", "s"]]},
        {"format": "gemini", "model": MODEL}, {"format": "gemini", "model": MODEL, "signatures": "s"},
        {"format": "gemini", "model": MODEL, "signatures": [1, [], [0, "text"], ["0", "text", "s"], [0, 1, "s"], [9, "end", "s"]]},
        {"format": "gemini", "model": MODEL, "signatures": [[0, "call", "s"]]},
    ],
    ids=repr,
)  # fmt: skip
def test_metadata_that_fits_nothing_does_no_harm(note: Any):
    message = Message("assistant", "Hi", {"littleghost": {"reasoning": note}})
    assert contents(message) == [{"role": "model", "parts": [{"text": "Hi"}]}]


def test_without_being_asked_nothing_is_kept():
    _, ended = read(chunk({"text": "Hi", "thoughtSignature": "s"}, finish="STOP"))
    assert ended.message.metadata == {}
    _, ended = read(chunk({"text": "Hi"}, finish="STOP"), keep=True)
    assert ended.message.metadata == {}


# -- answers


def test_an_answer_is_told_as_it_comes():
    events, ended = read(
        chunk({"text": "Hm", "thought": True}),
        chunk({"text": "Hel"}),
        chunk({"text": "lo"}, {"functionCall": {"id": "c1", "name": "add", "args": {"a": "ü"}}}),
        {**chunk(finish="STOP"), "usageMetadata": {"promptTokenCount": 3}},
    )
    assert events == [
        ReasoningDelta(text="Hm"),
        TextDelta(text="Hel"),
        TextDelta(text="lo"),
        ToolCallStarted(index=0, id="c1", name="add"),
        ToolCallArguments(index=0, arguments='{"a": "ü"}'),
    ]
    assert (ended.stop, ended.usage, ended.malformed) == ("end", Usage(input_tokens=3), {})
    assert ended.message.content[1:] == (Text("Hello"), ToolUse(id="c1", name="add", input={"a": "ü"}))


def test_calls_without_ids_or_with_one_id_get_some():
    part = {"functionCall": {"name": "now"}}
    empty, twice = (
        {"functionCall": {"name": "now", "id": "", "args": None}},
        {"functionCall": {"name": "now", "id": "c"}},
    )
    _, ended = read(chunk(part, part, empty, twice, twice, finish="STOP"))
    calls = ended.message.tool_uses
    assert [(call.name, call.input) for call in calls] == [("now", {})] * 5
    assert len({call.id for call in calls}) == 5
    assert not ended.malformed


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ({"name": "f", "args": [1]}, "the arguments are not a JSON object"),
        ({"name": "f", "args": "x"}, "the arguments are not a JSON object"),
        ({"name": "f", "args": {"a": float("nan")}}, "arguments.a"),
        ({"name": "f", "args": {"a": "\ud83d"}}, "arguments.a"),
        ({"args": {}}, "the call names no tool"),
        ({"name": 7}, "the call names no tool"),
    ],
    ids=repr,
)
def test_a_call_that_cannot_be_made_is_reported(call: Any, fault: str):
    events, ended = read(chunk({"functionCall": call}, {"functionCall": {"name": "g"}}, finish="STOP"))
    assert list(ended.malformed) == [0]
    assert fault in ended.malformed[0]
    assert [one.input for one in ended.message.tool_uses] == [{}, {}]
    msgspec.json.encode(events)


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("STOP", "end"), ("MAX_TOKENS", "length"), ("SAFETY", "filter"), ("RECITATION", "filter"), ("BLOCKLIST", "filter"),
        ("PROHIBITED_CONTENT", "filter"), ("SPII", "filter"), ("LANGUAGE", "filter"), ("MODEL_ARMOR", "filter"),
    ],
)  # fmt: skip
def test_the_reason_to_stop(reason: str, stop: str):
    _, ended = read(chunk({"text": "Once"}), chunk(finish=reason))
    assert (ended.stop, ended.message.text) == (stop, "Once")


@pytest.mark.parametrize(
    "reason",
    ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "OTHER", "OF_TOMORROW"],
)
def test_what_is_no_answer_is_worth_another_attempt(reason: str):
    answer = GeminiAnswer(MODEL)
    list(answer.feed(chunk({"text": "Hm"})))
    with pytest.raises(ModelProtocolError, match=reason):
        list(answer.feed(chunk(finish=reason)))
    assert not answer.finished


@pytest.mark.parametrize(
    ("reason", "status"), [("MISSING_THOUGHT_SIGNATURE", 400), ("PUP_LIMITED_DISABLED", 403)]
)
def test_a_refusal_in_place_of_an_answer(reason: str, status: int):
    with pytest.raises(ServerFaultError) as refused:
        list(GeminiAnswer(MODEL).feed(chunk(finish=reason, finishMessage="no")))
    assert (refused.value.status, refused.value.body) == (status, {"message": "no"})


def test_a_blocked_prompt_is_filtered():
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}
    _, ended = read(blocked)
    assert (ended.stop, ended.message.content, ended.usage) == ("filter", (), Usage(input_tokens=4))


def test_what_comes_after_the_end_changes_nothing_but_the_usage():
    last = chunk({"text": "lo"}, finish="STOP")
    _, ended = read(
        chunk({"text": "Hel"}), last, last, chunk(finish="SAFETY"), {"usageMetadata": {"promptTokenCount": 2}}
    )
    assert (ended.message.text, ended.stop, ended.usage.input_tokens) == ("Hello", "end", 2)


def test_an_answer_that_is_to_be_continued_is_not_at_its_end():
    answer = GeminiAnswer(MODEL)
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5}
    list(answer.feed({**chunk({"text": "Once "}), "usageMetadata": usage}))
    list(answer.feed(chunk(finish="CONTINUATION", continuationToken="t1")))
    assert not answer.finished
    assert (answer.go_on(), answer.go_on()) == ("t1", None)
    list(answer.feed({**chunk({"text": "upon"}, finish="STOP"), "usageMetadata": usage}))
    (ended,) = answer.end()
    assert ended.message.content == (Text("Once upon"),)
    assert ended.usage == Usage(input_tokens=20, output_tokens=10)
    with pytest.raises(ModelProtocolError, match="did not say how"):
        list(GeminiAnswer(MODEL).feed(chunk(finish="CONTINUATION")))


def test_an_image_of_the_model_is_kept_and_goes_back():
    raw = base64.urlsafe_b64encode(b"\xff\xfe\xfd??").decode()
    part = {"inlineData": {"mimeType": "image/png", "data": raw}, "thoughtSignature": "s"}
    _, ended = read(chunk({"text": "Here:"}, part, finish="STOP"))
    assert ended.message.content[-1] == Image(data=b"\xff\xfe\xfd??", media_type="image/png")
    sent = contents(ended.message)[0]["parts"][-1]
    assert (base64.b64decode(sent["inlineData"]["data"]), sent["thoughtSignature"]) == (
        b"\xff\xfe\xfd??",
        "s",
    )
    with pytest.raises(ModelProtocolError, match="base64"):
        read(chunk({"inlineData": {"mimeType": "image/png", "data": "!"}}))


@pytest.mark.parametrize(
    "odd",
    [
        {}, {"candidates": None}, {"candidates": [None]}, {"candidates": [{"index": 1, "finishReason": "STOP"}]}, chunk({}),
        {"candidates": [{"content": None}]}, {"candidates": [{"content": {"parts": [None, 1, {"text": 7}]}}]}, {"promptFeedback": {}},
        chunk(finish="FINISH_REASON_UNSPECIFIED"), {"candidates": [{"finishReason": 7}]}, chunk({"executableCode": {"code": "1"}}),
    ],
    ids=repr,
)  # fmt: skip
def test_what_says_nothing_is_passed_over(odd: Any):
    events, ended = read(chunk({"text": "Hel"}), odd, chunk({"text": "lo"}, finish="STOP"))
    assert [event.text for event in events] == ["Hel", "lo"]
    assert ended.message == Message.assistant("Hello")


@pytest.mark.parametrize("odd", [None, 1, "x", [], True])
def test_what_is_no_object_is_no_chunk(odd: Any):
    with pytest.raises(ModelProtocolError):
        list(GeminiAnswer(MODEL).feed(odd))


@pytest.mark.parametrize(
    ("form", "usage"),
    [
        (
            {
                "promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 20, "thoughtsTokenCount": 30,
                "toolUsePromptTokenCount": 5, "totalTokenCount": 155,
            },
            Usage(input_tokens=45, cache_read_tokens=60, output_tokens=20, reasoning_tokens=30),
        ),
        ({"promptTokenCount": 5, "cachedContentTokenCount": 9}, Usage(cache_read_tokens=5)),
        ({"promptTokenCount": "5", "candidatesTokenCount": -3, "thoughtsTokenCount": None}, Usage()),
        (None, Usage()),
    ],
)  # fmt: skip
def test_tokens_are_counted_once(form: Any, usage: Usage):
    assert read_usage(form) == usage
