"""The Responses format: what is sent, and what is read from streams that are whole, in parts or wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost.content import Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import ModelError, ModelProtocolError
from littleghost.events import ModelEnded, ReasoningDelta, TextDelta, ToolCallArguments
from littleghost.message import Message
from littleghost.models.contract import AnswerFormat, ModelRequest, ToolSpec
from littleghost.models.event_streams import AnswerStream, CutError, ServerFaultError
from littleghost.models.openai_responses import OpenAIResponsesModel
from littleghost.models.responses_format import responses_input
from littleghost.models.responses_stream import ResponsesAnswer, read_responses_usage
from littleghost.models.strict import fits_strict
from littleghost.testing.model_answers import CALLS
from littleghost.testing.model_dialect import Said
from littleghost.testing.model_responses import ResponsesDialect
from littleghost.usage import Usage

PNG = Image(data=b"\x89PNG", media_type="image/png")
PDF = Document(data=b"%PDF", media_type="application/pdf", name="a.pdf")
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"x": 1}'}


def sent(model: str = "gpt-5", request: ModelRequest | None = None, **settings: Any) -> dict[str, Any]:
    return OpenAIResponsesModel(model).arguments(
        request or ModelRequest(messages=[Message.user("Hi")]), settings
    )


def event(kind: str, **fields: Any) -> bytes:
    return b"data: " + json.dumps({"type": kind, **fields}).encode() + b"\n\n"


def completed(*output: Any, status: str = "completed", **fields: Any) -> bytes:
    response = {"object": "response", "status": status, "output": list(output), **fields}
    return event(f"response.{status}", response=response)


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "id": "m", "content": [{"type": "output_text", "text": text}], **fields}


def events_of(*pieces: bytes, **options: Any) -> list[Any]:
    stream = AnswerStream(ResponsesAnswer(**options))
    found: list[Any] = []
    for piece in (*pieces, None):
        if not stream.closed:
            found += stream.feed(piece)
    return [*found, *stream.end()]


def ended(*pieces: bytes, **options: Any) -> ModelEnded:
    return events_of(*pieces, **options)[-1]


# -- requests


def test_nothing_is_kept_by_the_provider():
    assert sent() == {
        "model": "gpt-5",
        "input": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "chatgpt-4o-latest"])
def test_models_that_do_not_reason_are_not_asked_for_reasoning(model: str):
    assert "include" not in sent(model)


def test_settings_go_first_and_can_be_taken_back():
    body = sent(store=True, include=None, prompt_cache_key="shop", reasoning={"effort": "low"})
    assert (body["store"], body["prompt_cache_key"], body["reasoning"]) == (True, "shop", {"effort": "low"})
    assert "include" not in body


def test_a_form_stands_beside_other_settings_of_text():
    form = AnswerFormat(name="n", schema={"type": "object", "properties": {"a": {"type": "string"}}})
    body = sent(request=ModelRequest(messages=[Message.user("Hi")], format=form), text={"verbosity": "low"})
    assert body["text"] == {
        "verbosity": "low",
        "format": {"type": "json_schema", "name": "n", "schema": form.schema, "strict": False},
    }


def test_tools_keep_their_schemas_and_a_choice_needs_tools():
    tool = ToolSpec(name="f", description="It does.", schema={"type": "object"})
    chosen = sent(request=ModelRequest(messages=[Message.user("Hi")], tools=(tool,), tool_choice="f"))
    assert chosen["tools"] == [
        {
            "type": "function",
            "name": "f",
            "description": "It does.",
            "parameters": {"type": "object"},
            "strict": False,
        }
    ]
    assert chosen["tool_choice"] == {"type": "function", "name": "f"}
    assert "tool_choice" not in sent(
        request=ModelRequest(messages=[Message.user("Hi")], tool_choice="required")
    )


def test_instructions_results_and_what_they_hold():
    long = "x" * 65
    instructions, items = responses_input(
        [
            Message.system("Be brief."),
            Message.system("Be kind."),
            Message.user(["See", PNG, PDF]),
            Message.assistant([Text("I look."), ToolUse(id=long, name="f", input={"a": 1})]),
            Message.tool(
                [
                    ToolResult(tool_use_id=long, content=[Text("no"), PNG], status="error"),
                    Text("beside"),
                ]
            ),
            Message.developer("Go on."),
        ]
    )
    assert instructions == "Be brief.\n\nBe kind."
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw==", "detail": "auto"}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}
    assert items[0] == {"role": "user", "content": [{"type": "input_text", "text": "See"}, image, file]}
    assert items[1]["content"] == [{"type": "output_text", "text": "I look.", "annotations": []}]
    call, output = items[2:4]
    assert len(call["call_id"]) == 64
    assert call == {
        "type": "function_call",
        "call_id": output["call_id"],
        "name": "f",
        "arguments": '{"a":1}',
    }
    assert output["output"] == [{"type": "input_text", "text": "Error: no"}, image]
    assert items[4:] == [{"role": "user", "content": "beside"}, {"role": "developer", "content": "Go on."}]


THOUGHT = Reasoning(
    text="Hm.",
    signature="gAAAA",
    details={
        "format": "openai.responses",
        "id": "rs_1",
        "items": [["message", "msg_1"], ["function_call", "fc_1"]],
        "summary": True,
    },
)
ANSWER = [Text("I look."), ToolUse(id="c1", name="f")]
RESULT = Message.tool([ToolResult(tool_use_id="c1", content="1")])


def kinds(messages: list[Message]) -> list[tuple[Any, Any]]:
    return [(item.get("type"), item.get("id")) for item in responses_input(messages)[1]]


def test_ids_travel_beside_whole_reasoning_only():
    asked = Message.user("Hi")
    whole = [asked, Message.assistant([THOUGHT, *ANSWER]), RESULT]
    assert kinds(whole)[1:4] == [("reasoning", "rs_1"), ("message", "msg_1"), ("function_call", "fc_1")]
    none = [("message", None), ("function_call", None)]
    for answer in (
        ANSWER,  # as it comes from a store
        [THOUGHT, ANSWER[1]],  # something was taken out
        [Reasoning(text="Hm.", details=THOUGHT.details), *ANSWER],  # its proof is lost
        [Reasoning(signature="x", details={"format": "anthropic"}), *ANSWER],
    ):
        kept = sum(not isinstance(block, Reasoning) for block in answer)
        assert kinds([asked, Message.assistant(answer), RESULT])[1:-1] == none[-kept:]
    assert kinds([*whole, Message.assistant("So."), Message.user("And?")])[1:3] == none  # it was answered


def test_reasoning_that_nothing_follows_is_not_sent():
    alone = Reasoning(signature="x", details={"format": "openai.responses", "id": "rs_2", "items": []})
    assert kinds([Message.user("Hi"), Message.assistant([alone, Text("So.")])]) == [
        (None, None),
        ("message", None),
    ]


@pytest.mark.parametrize(
    "damage", [{"proofs": "x"}, {"proofs": [7, {"id": 1}, {"at": 9}]}, {"format": "other"}, {"proofs": None}]
)
def test_kept_proofs_that_were_damaged_do_no_harm(damage: dict[str, Any]):
    kept = {"format": "openai.responses", "proofs": [], **damage}
    answer = Message.assistant(ANSWER, {"littleghost": {"reasoning": kept}})
    assert kinds([Message.user("Hi"), answer, RESULT])[1:3] == [("message", None), ("function_call", None)]


# -- streams


def test_a_server_that_counts_nothing():
    """As llama.cpp does it: no sequence numbers, no indices."""
    events = events_of(
        event("response.created", response={}),
        event("response.output_item.added", item={"type": "message", "id": "m", "content": []}),
        event("response.output_text.delta", item_id="m", delta="Hi"),
        event("response.output_item.added", item={**CALL, "arguments": ""}),
        event("response.function_call_arguments.delta", item_id="fc_1", delta='{"x": '),
        event("response.function_call_arguments.delta", item_id="fc_1", delta="1}"),
        completed(message("Hi"), CALL),
    )
    assert events[0] == TextDelta(text="Hi")
    assert events[-1].message.tool_uses == (ToolUse(id="c1", name="f", input={"x": 1}),)


def test_an_answer_that_is_not_streamed():
    body = {
        "object": "response",
        "status": "completed",
        "error": None,
        "output": [{"type": "web_search_call", "id": "ws"}, message("Hi"), CALL],
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    last = ended(json.dumps(body).encode())
    assert last.message == Message.assistant([Text("Hi"), ToolUse(id="c1", name="f", input={"x": 1})])
    assert last.usage == Usage(input_tokens=3, output_tokens=2)


def test_what_was_not_streamed_is_told_at_the_end():
    events = events_of(
        event("response.output_item.added", output_index=0, item={"type": "message", "id": "m"}),
        event("response.output_text.delta", output_index=0, delta="Hel"),
        event("response.output_item.done", output_index=1, item=CALL),
        completed(message("Hello"), CALL),
    )
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["Hel", "lo"]
    assert [e.arguments for e in events if isinstance(e, ToolCallArguments)] == ['{"x": 1}']


@pytest.mark.parametrize(
    "end",
    [
        completed(message("Hallo")),
        completed(CALL),
        completed(message("Hello"), message("Hello", id="m")),
        completed(message("Hello"), status="cancelled"),
        event("response.completed"),
        event("response.completed", response={"object": "response", "status": "completed", "output": [CALL]}),
    ],
)
def test_an_end_that_does_not_agree(end: bytes):
    start = (
        event("response.output_item.added", output_index=0, item={"type": "message", "id": "m"}),
        event("response.output_text.delta", output_index=0, delta="Hello"),
    )
    with pytest.raises((ModelProtocolError, ServerFaultError)):
        ended(*start, end)


def test_done_is_no_end():
    with pytest.raises(CutError):
        ended(event("response.output_text.delta", output_index=0, delta="Hi"), b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("reason", "stop"),
    [
        ("max_output_tokens", "length"),
        ("content_filter", "filter"),
        ("max_messages", "length"),
        (None, "length"),
    ],
)
def test_reasons_to_be_incomplete(reason: str | None, stop: str):
    details = {"reason": reason} if reason else None
    last = ended(completed(message("Once"), status="incomplete", incomplete_details=details))
    assert (last.stop, last.message.text) == (stop, "Once")


def test_a_refusal_is_told_and_said():
    refused = {"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "I will not."}]}
    last = ended(
        event("response.refusal.delta", output_index=0, delta="I will "), completed(refused | {"id": ""})
    )
    assert (last.stop, last.message.text) == ("filter", "I will not.")


@pytest.mark.parametrize(
    ("code", "status"),
    [("server_error", 500), ("rate_limit_exceeded", 429), ("invalid_prompt", 400), (None, None)],
)
def test_a_failed_answer(code: str | None, status: int | None):
    with pytest.raises(ServerFaultError) as caught:
        ended(completed(status="failed", error={"code": code, "message": "no"}))
    assert caught.value.status == status


def test_a_call_that_was_cut_is_malformed():
    cut = {**CALL, "arguments": '{"x": ', "status": "incomplete"}
    last = ended(completed(cut, status="incomplete", incomplete_details={"reason": "max_output_tokens"}))
    assert last.stop == "length"
    assert last.message.tool_uses == (ToolUse(id="c1", name="f"),)
    assert "not valid JSON" in last.malformed[0]


def test_parts_of_a_summary_stand_apart():
    parts = [{"type": "summary_text", "text": text} for text in ("First.", "Second.")]
    at = {"output_index": 0, "item_id": "rs"}
    events = events_of(
        event("response.reasoning_summary_text.delta", **at, summary_index=0, delta="First."),
        event("response.reasoning_summary_text.delta", **at, summary_index=1, delta="Second."),
        completed(
            {"type": "reasoning", "id": "rs", "summary": parts, "encrypted_content": "gA"}, message("Hi")
        ),
    )
    told = "".join(e.text for e in events if isinstance(e, ReasoningDelta))
    assert told == "First.\n\nSecond."
    block = events[-1].message.content[0]
    assert (block.text, block.signature, block.details["items"]) == (told, "gA", [["message", "m"]])


def test_reasoning_that_is_no_summary_is_not_sent_back_as_one():
    last = ended(
        event("response.reasoning_text.delta", output_index=0, item_id="rs", delta="Hm."),
        completed(
            {"type": "reasoning", "id": "rs", "content": [{"text": "Hm."}], "encrypted_content": "gA"}, CALL
        ),
    )
    items = responses_input([Message.user("Hi"), last.message, RESULT])[1]
    assert items[1] == {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gA"}


def test_reasoning_that_was_cut_is_not_whole():
    item = {"type": "reasoning", "id": "rs", "status": "incomplete", "summary": [], "encrypted_content": "gA"}
    last = ended(completed(item, message("Hi"), status="incomplete"), keep_signatures=True)
    assert last.message == Message.assistant("Hi")


SAID = Said(reasoning=("Hm, ", "hm."), text=CALLS.text, calls=CALLS.calls)
WHOLE = ResponsesDialect().answer(SAID)


@given(
    st.lists(
        st.tuples(st.sampled_from(["lose", "double", "swap"]), st.integers(0, len(WHOLE) - 1)), max_size=4
    )
)
def test_a_stream_with_faults_is_read_right_or_refused(faults: list[tuple[str, int]]):
    pieces = list(WHOLE)
    for kind, place in faults:
        place = min(place, len(pieces) - 1)
        if kind == "lose":
            del pieces[place]
        elif kind == "double":
            pieces.insert(place, pieces[place])
        else:
            pieces[place - 1], pieces[place] = pieces[place], pieces[place - 1]
    try:
        last = ended(*pieces)
    except (ModelError, CutError, ServerFaultError):
        return
    assert (last.message.text, last.message.tool_uses) == ("".join(SAID.text), SAID.calls)
    assert last.malformed == {}


@given(st.lists(st.integers(1, 400), max_size=30))
def test_a_stream_in_any_pieces(sizes: list[int]):
    whole, pieces = b"".join(WHOLE), []
    for size in sizes:
        pieces.append(whole[:size])
        whole = whole[size:]
    assert ended(*filter(None, [*pieces, whole])) == ended(*WHOLE)


def test_usage_counts_nothing_twice():
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "output_tokens": 30,
        "output_tokens_details": {"reasoning_tokens": 20},
    }
    assert read_responses_usage(usage) == Usage(
        input_tokens=30, cache_read_tokens=60, cache_write_tokens=10, output_tokens=10, reasoning_tokens=20
    )
    assert read_responses_usage({"input_tokens": "many", "output_tokens_details": 7}) == Usage()


# -- strict schemas

STRICT = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": ["integer", "null"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


def deep(levels: int) -> dict[str, Any]:
    return STRICT if not levels else {**STRICT, "properties": {"a": deep(levels - 1)}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        (STRICT, True),
        ({**STRICT, "required": ["a"]}, False),
        ({**STRICT, "additionalProperties": True}, False),
        ({name: value for name, value in STRICT.items() if name != "additionalProperties"}, False),
        ({**STRICT, "anyOf": [STRICT]}, False),
        ({"type": "array", "items": STRICT}, False),
        ({**STRICT, "properties": {"a": {"type": "array", "items": STRICT}}, "required": ["a"]}, True),
        ({**STRICT, "properties": {"a": {"type": "array"}}, "required": ["a"]}, False),
        ({**STRICT, "properties": {"a": {}}, "required": ["a"]}, False),
        ({**STRICT, "properties": {"a": {"allOf": [STRICT]}}, "required": ["a"]}, False),
        ({**STRICT, "properties": {"a": {"type": "string", "format": "uri"}}, "required": ["a"]}, False),
        (
            {**STRICT, "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"], "$defs": {"x": STRICT}},
            True,
        ),
        ({**STRICT, "$defs": {"x": {"type": "object"}}}, False),
        ({**STRICT, "properties": {"a": {"anyOf": [STRICT, {"type": "null"}]}}, "required": ["a"]}, True),
        (deep(10), False),
        (deep(8), True),
    ],
)
def test_what_is_strict(schema: dict[str, Any], fits: bool):
    assert fits_strict(schema) is fits
