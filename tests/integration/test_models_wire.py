"""OpenAIModel against a server that misbehaves in every way we know of."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import pickle
import threading
import time
import traceback
import warnings
from email.utils import formatdate
from typing import Any

import pytest

from littleghost.content import Reasoning, Text, ToolUse
from littleghost.errors import (
    ConfigurationError,
    ContextOverflowError,
    CredentialError,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailableError,
)
from littleghost.events import ModelEnded, Retrying, TextDelta
from littleghost.message import Message
from littleghost.models.contract import ModelRequest
from littleghost.models.openai import OpenAIModel
from littleghost.models.retry import RetryPolicy
from littleghost.usage import Usage

KEY = "sk-very-secret-0123456789"
HELLO = ModelRequest(messages=[Message.user("Hello")])


@pytest.fixture
async def model(wire):
    model = OpenAIModel("tiny", base_url=wire.base_url, api_key=KEY)
    model._policy = RetryPolicy(retries=2, base=0.001)
    # Waits are short, so that tests are quick; what Retry-After asks is waited for in full.
    yield model
    await model.aclose()


async def events_of(model: OpenAIModel, request: ModelRequest = HELLO) -> list[Any]:
    return [event async for event in model.stream(request)]


async def ended(model: OpenAIModel, request: ModelRequest = HELLO) -> ModelEnded:
    events = await events_of(model, request)
    assert [type(event) for event in events].count(ModelEnded) == 1
    assert type(events[-1]) is ModelEnded
    return events[-1]


def answer(wire, text="Hi") -> list[Any]:
    return [wire.delta(role="assistant", content=""), wire.delta(content=text), wire.delta("stop"), wire.done]


# -- good answers


async def test_a_plain_answer(wire, model):
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 30,
        "total_tokens": 130,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    wire.play([
        wire.delta(role="assistant"),
        wire.delta(content="Hel"),
        wire.delta(content="lo"),
        wire.delta("stop"),
        wire.event({"choices": [], "usage": usage}),
        wire.done,
    ])  # fmt: skip
    *deltas, last = await events_of(model)
    assert deltas == [TextDelta(text="Hel"), TextDelta(text="lo")]
    assert last.message == Message.assistant("Hello")
    assert last.stop == "end"
    assert last.usage == Usage(
        input_tokens=30, cache_read_tokens=60, cache_write_tokens=10, output_tokens=10, reasoning_tokens=20
    )
    assert last.usage.total_tokens == usage["total_tokens"]
    sent = wire.requests[0]
    assert sent["body"] == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert sent["headers"]["authorization"] == f"Bearer {KEY}"


async def test_one_connection_serves_several_calls(wire, model):
    for _ in range(3):
        wire.play(answer(wire))
        await ended(model)
    assert wire.connections == 1


async def test_bytes_come_one_by_one(wire, model):
    whole = b"".join(part.replace(b"\n", b"\r\n") for part in answer(wire, "Grüße 👋"))
    wire.play([bytes([byte]) for byte in whole])
    assert (await ended(model)).message.text == "Grüße 👋"


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_the_reason_to_stop(wire, model, finish):
    wire.play([wire.delta(content="Once upon"), wire.delta(finish), wire.delta("stop"), wire.done])
    last = await ended(model)
    assert last.stop == {"length": "length", "content_filter": "filter"}[finish]
    assert last.message.text == "Once upon"


async def test_settings_travel(wire):
    model = OpenAIModel(
        "tiny",
        base_url=wire.base_url,
        api_key=KEY,
        settings={"temperature": 0, "top_p": 0.5, "extra_headers": {"x-team": "seven"}},
    )
    wire.play(answer(wire))
    await ended(
        model,
        ModelRequest(messages=HELLO.messages, settings={"temperature": 1, "top_p": None, "grammar": "root"}),
    )
    body = wire.requests[0]["body"]
    assert (body["temperature"], body["grammar"], "top_p" in body) == (1, "root", False)
    assert wire.requests[0]["headers"]["x-team"] == "seven"
    await model.aclose()


async def test_stream_options_can_be_taken_back(wire, model):
    wire.play(answer(wire))
    await ended(model, ModelRequest(messages=HELLO.messages, settings={"stream_options": None}))
    assert "stream_options" not in wire.requests[0]["body"]


@pytest.mark.parametrize("name", ["messages", "tools", "stream", "n", "model"])
async def test_settings_do_not_take_over(wire, model, name):
    with pytest.raises(ConfigurationError, match=name):
        await events_of(model, ModelRequest(messages=HELLO.messages, settings={name: 1}))


async def test_what_is_no_json_is_refused_before_it_is_sent(wire, model):
    for request in (
        ModelRequest(messages=[Message.user("half \ud83d of a pair")]),
        ModelRequest(messages=HELLO.messages, settings={"seed": object()}),
    ):
        with pytest.raises(ModelRequestError, match="JSON"):
            await events_of(model, request)
    assert wire.requests == []


# -- what servers get wrong and still mean


async def test_deviations_that_do_not_matter(wire, model):
    wire.play([
        b": a comment\n\nevent: message\nid: 7\nretry: 10\n",
        b"data:" + wire.delta(content="A")[5:],
        wire.event({"choices": []}),
        wire.event({"choices": None, "usage": None}),
        wire.event({"id": "x", "object": "chat.completion.chunk"}),
        wire.event({"choices": [{"index": 0, "delta": None}]}),
        wire.event({"choices": [{"delta": {"content": "B", "tool_calls": None}}]}),
        wire.event({"choices": [{"index": 1, "delta": {"content": "another choice"}}]}),
        wire.delta(content=[{"type": "text", "text": "C"}]),
        wire.delta("stop", role="assistant"),
        wire.delta(content="D"),
        wire.done,
        wire.delta(content="after the end"),
    ])  # fmt: skip
    assert (await ended(model)).message.text == "ABCD"


async def test_no_reason_to_stop_but_done(wire, model):
    wire.play([wire.delta(content="Hi"), wire.done])
    assert (await ended(model)).message.text == "Hi"


async def test_a_reason_to_stop_but_not_done(wire, model):
    wire.play([wire.delta(content="Hi"), wire.delta("stop")])
    assert (await ended(model)).message.text == "Hi"


@pytest.mark.parametrize(
    "end", ["cut", "reset", b"data: {half an eve", b"data: nonsense\n\n", b'data: {"error": "late"}\n\n']
)
async def test_nothing_after_the_end_matters(wire, model, end):
    wire.play([wire.delta(content="Hi"), wire.delta("stop"), 0.05, end])
    assert (await ended(model)).message.text == "Hi"
    assert len(wire.requests) == 1


async def test_a_server_that_does_not_hang_up_is_not_waited_for(wire, model, monkeypatch):
    monkeypatch.setattr("littleghost.models.exchange.TAIL_SECONDS", 0.1)  # and not for ever
    wire.play(
        [wire.delta(content="Hi"), wire.delta("stop"), "hang"], [wire.delta(content="Hi"), wire.done, "hang"]
    )
    for _ in range(2):
        assert (await ended(model)).message.text == "Hi"


async def test_a_server_that_does_not_stream(wire, model):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "choices": [
            {"index": 0, "message": {"content": "Hi", "tool_calls": [call]}, "finish_reason": "tool_calls"}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    wire.play(wire.status(200, body))
    last = await ended(model)
    assert last.message == Message.assistant([Text("Hi"), ToolUse(id="c1", name="f")])
    assert last.usage == Usage(input_tokens=3, output_tokens=2)


async def test_a_last_line_without_its_end(wire, model):
    wire.play([wire.delta(content="Hi"), wire.delta("stop").rstrip(b"\n")])
    assert (await ended(model)).message.text == "Hi"


async def test_reasoning(wire, model):
    wire.play([wire.delta(reasoning_content="Hm", reasoning="Hm"), wire.delta(reasoning="m."), *answer(wire)])
    assert (await ended(model)).message == Message.assistant([Reasoning(text="Hmm."), Text("Hi")])


# -- attempts


async def test_a_cut_answer_is_void_and_made_again(wire, model):
    wire.play(
        [wire.delta(content="Half"), "cut"], [wire.delta(content="Half an"), 0.05, "reset"], answer(wire)
    )
    events = await events_of(model)
    assert [type(event).__name__ for event in events] == [
        "TextDelta",
        "Retrying",
        "TextDelta",
        "Retrying",
        "TextDelta",
        "ModelEnded",
    ]
    assert [(event.attempt, event.delay >= 0) for event in events if type(event) is Retrying] == [
        (1, True),
        (2, True),
    ]
    assert events[-1].message.text == "Hi"


@pytest.mark.parametrize(
    "end", [[], [b"data: {half an"], ["cut"], ["reset"]], ids=["clean", "half", "cut", "reset"]
)
async def test_a_cut_answer_in_the_end_is_unavailable(wire, model, end):
    wire.always(
        [
            wire.delta(content="Half"),
            wire.called({"index": 0, "id": "a", "function": {"name": "f"}}),
            0.02,
            *end,
        ]
    )
    with pytest.raises(ModelUnavailableError) as caught:
        await events_of(model)
    assert len(wire.requests) == 3
    assert caught.value.status is None


async def test_an_answer_closed_by_its_connection_is_cut_too(wire, model):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    wire.play(["raw", head + wire.delta(content="Half"), "cut"], answer(wire))
    assert (await ended(model)).message.text == "Hi"


@pytest.mark.parametrize(
    "rubbish",
    [
        b"data: {]\n\n",
        b"data: 7\n\n",
        b"data: \xff\xfe\n\n",
        b"data: " + b"[" * 100_000 + b"\n\n",
        b"data: [DONE]\n\n",
    ],
    ids=["no-json", "no-object", "no-utf8", "deep", "empty"],
)
async def test_what_is_no_answer_is_asked_for_again(wire, model, rubbish):
    wire.play([rubbish, wire.done], answer(wire))
    assert (await ended(model)).message.text == "Hi"
    wire.always([rubbish, wire.done])
    with pytest.raises(ModelProtocolError):
        await events_of(model)


async def test_an_event_without_an_end(wire, model, monkeypatch):
    monkeypatch.setattr("littleghost.models.event_streams.MAX_EVENT", 10_000)
    wire.always([b"data: " + b"x" * 20_000])
    with pytest.raises(ModelProtocolError, match="10000 bytes"):
        await events_of(model)


async def test_a_web_page_is_no_answer_and_not_asked_for_again(wire, model):
    wire.play(wire.status(200, "<html>Welcome</html>"))
    with pytest.raises(ModelProtocolError, match="base_url"):
        await events_of(model)


@pytest.mark.parametrize("code", [408, 409, 429, 500, 502, 503, 504, 529])
async def test_a_status_that_may_pass(wire, model, code):
    wire.play(wire.status(code, "<html>busy</html>"), answer(wire))
    assert (await ended(model)).message.text == "Hi"
    wire.always(wire.status(code, {"error": {"message": "busy"}}))
    with pytest.raises(ModelUnavailableError) as caught:
        await events_of(model)
    assert caught.value.status == code
    assert len(wire.requests) == 2 + 3


@pytest.mark.parametrize("code", [400, 404, 405, 413, 422])
async def test_a_status_that_will_not_pass(wire, model, code):
    wire.play(
        wire.status(code, {"error": {"message": "no such\nmodel   tiny", "type": "invalid_request_error"}})
    )
    with pytest.raises(ModelRequestError, match="no such model tiny") as caught:
        await events_of(model)
    assert caught.value.status == code


@pytest.mark.parametrize("code", [401, 403])
async def test_a_refused_key(wire, model, code):
    wire.play(wire.status(code, {"error": {"message": f"Incorrect API key provided: {KEY}"}}))
    with pytest.raises(CredentialError, match="key"):
        await events_of(model)


async def test_a_used_up_quota_is_not_asked_for_again(wire, model):
    wire.play(wire.status(429, {"error": {"message": "no money", "code": "insufficient_quota"}}))
    with pytest.raises(ModelUnavailableError, match="quota"):
        await events_of(model)


@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "1"}, {"retry-after-ms": "600", "retry-after": "9"}, {"Retry-After": "date"}],
    ids=str,
)
async def test_retry_after_is_obeyed(wire, model, headers):
    headers = {
        name: formatdate(time.time() + 2, usegmt=True) if value == "date" else value
        for name, value in headers.items()
    }
    wire.play(wire.status(429, {}, headers), answer(wire))
    began = time.monotonic()
    events = await events_of(model)
    assert time.monotonic() - began >= 0.55
    assert 0.55 <= events[0].delay <= 2.1


async def test_too_long_a_wait_ends_the_call(wire, model):
    wire.play(wire.status(503, {}, {"retry-after": "3600"}))
    with pytest.raises(ModelUnavailableError) as caught:
        await events_of(model)
    assert caught.value.retry_after == 3600
    wire.play(wire.status(503, {}, {"retry-after": "5"}))
    with pytest.raises(ModelUnavailableError):
        await events_of(model, ModelRequest(messages=HELLO.messages, timeout=1.0))


async def test_the_server_may_say_not_to_come_again(wire, model):
    wire.play(wire.status(503, {}, {"x-should-retry": "false"}))
    with pytest.raises(ModelUnavailableError):
        await events_of(model)


async def test_nobody_listens():
    model = OpenAIModel("tiny", base_url="http://127.0.0.1:9/v1", max_retries=0)
    with pytest.raises(ModelUnavailableError, match="base_url"):
        await events_of(model)
    await model.aclose()


async def test_silence_before_and_within_an_answer(wire):
    for step in (["raw", "hang"], [wire.delta(content="Half"), "hang"]):
        model = OpenAIModel("tiny", base_url=wire.base_url, timeout=0.2, max_retries=0)
        wire.play(step)
        with pytest.raises(ModelUnavailableError, match="in time"):
            await events_of(model)
        await model.aclose()


async def test_the_time_of_the_call_bounds_a_dripping_answer(wire, model):
    wire.play([part for _ in range(10_000) for part in (wire.delta(content="drip "), 0.05)])
    with pytest.raises(ModelUnavailableError, match="time that was left"):
        await events_of(model, ModelRequest(messages=HELLO.messages, timeout=0.5))
    assert len(wire.requests) == 1


# -- errors in words


@pytest.mark.parametrize(
    ("error", "tokens", "limit"),
    [
        (
            {
                "code": 400,
                "type": "exceed_context_size_error",
                "message": "request (9000 tokens) exceeds the available context size (4096 tokens), try increasing it",
                "n_prompt_tokens": 9000,
                "n_ctx": 4096,
            },
            9000,
            4096,
        ),
        (
            {
                "code": "context_length_exceeded",
                "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
            },
            9001,
            8192,
        ),
        (
            {
                "code": 400,
                "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4900 in the "
                "messages, 100 in the completion). Please reduce the length.",
            },
            5000,
            4096,
        ),
        (
            {
                "code": "context_length_exceeded",
                "message": "Your input exceeds the context window of this model.",
            },
            None,
            None,
        ),
    ],
    ids=["llama.cpp", "openai", "vllm", "no-numbers"],
)
async def test_context_overflow(wire, model, error, tokens, limit):
    wire.play(wire.status(400, {"error": error}), [wire.event({"error": error})])
    for _ in range(2):
        with pytest.raises(ContextOverflowError) as caught:
            await events_of(model)
        assert (caught.value.tokens, caught.value.limit) == (tokens, limit)


async def test_an_error_in_the_middle_of_an_answer(wire, model):
    wire.play(
        [wire.delta(content="Half"), wire.event({"error": {"message": "overloaded", "code": 502}})],
        answer(wire),
    )
    assert (await ended(model)).message.text == "Hi"
    wire.play([wire.event({"error": {"message": "bad schema", "code": 400}})])
    with pytest.raises(ModelRequestError, match="bad schema"):
        await events_of(model)
    wire.play([wire.event({"error": {"message": "bad tool", "type": "invalid_request_error"}})])
    with pytest.raises(ModelRequestError, match="bad tool"):
        await events_of(model)
    wire.play([b'error: {"error": {"message": "gone"}}\n\n', "hang"], answer(wire))
    assert (await ended(model)).message.text == "Hi"


@pytest.mark.parametrize("code", [400, 401, 500])
@pytest.mark.parametrize("key", [KEY, "of/another+form=="])
async def test_errors_keep_secrets_and_are_short(wire, caplog, code, key):
    caplog.set_level(logging.DEBUG, "littleghost")
    model = OpenAIModel("tiny", base_url=wire.base_url, api_key=key)
    text = f"Key {key}, Bearer abcdefgh and sk-other-999999999 are wrong " + "x" * 5000
    wire.always(wire.status(code, {"error": {"message": text}}, {"x-should-retry": "false"}))
    with pytest.raises(Exception) as caught:
        await events_of(model)
    error = caught.value
    assert error.__cause__ is not None
    shown = (
        "".join(traceback.format_exception(error))
        + repr(error)
        + repr(error.__cause__.__dict__)
        + repr(model)
        + caplog.text
    )
    for secret in (key, "abcdefgh", "sk-other"):
        assert secret not in shown
    assert len(str(error)) < 500
    await model.aclose()
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# -- tool calls


CALLS = {
    "usual": lambda w: [
        w.called({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}),
        w.called({"index": 0, "function": {"arguments": '{"x"'}}),
        w.called({"index": 0, "function": {"arguments": ": 1}"}}),
        w.called({"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y": 2}'}}),
    ],
    "interleaved": lambda w: [
        w.called(
            {"index": 0, "id": "a", "function": {"name": "f"}}, {"index": 1, "id": "b", "function": {"name": "g"}}
        ),
        w.called({"index": 1, "function": {"arguments": '{"y":'}}, {"index": 0, "function": {"arguments": '{"x":'}}),
        w.called({"index": 0, "function": {"arguments": "1}"}}, {"index": 1, "function": {"arguments": "2}"}}),
    ],
    "whole": lambda w: [
        w.called(
            {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y": 2}'}},
        )
    ],
    "no index": lambda w: [
        w.called({"id": "a", "function": {"name": "f", "arguments": '{"x"'}}),
        w.called({"function": {"arguments": ":1}"}}),
        w.called({"id": "b", "function": {"name": "g", "arguments": '{"y":2}'}}),
    ],
    "no index, pieces by id": lambda w: [
        w.called({"id": "a", "function": {"name": "f", "arguments": '{"x"'}}),
        w.called({"id": "b", "function": {"name": "g", "arguments": '{"y"'}}),
        w.called({"id": "a", "function": {"arguments": ":1}"}}),
        w.called({"id": "b", "function": {"arguments": ":2}"}}),
    ],
    "one index, two ids": lambda w: [
        w.called({"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}),
        w.called({"index": 0, "id": "b", "function": {"name": "g", "arguments": '{"y":2}'}}),
    ],
    "all repeated": lambda w: [
        w.called({"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}),
        w.called({"index": 0, "id": "a", "function": {"name": "f", "arguments": ":1}"}}),
        w.called({"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y":'}}),
        w.called({"index": 1, "id": "b", "function": {"name": "g", "arguments": "2}"}}),
    ],
    "another id with each piece": lambda w: [
        w.called({"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x"'}}),
        w.called({"index": 0, "id": "q", "function": {"arguments": ":1}"}}),
        w.called({"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y":2}'}}),
    ],
    "objects": lambda w: [
        w.called({"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}),
        w.called({"index": 1, "id": "b", "function": {"name": "g", "arguments": {"y": 2}}}),
    ],
    "arguments before the name": lambda w: [
        w.called({"index": 0, "id": "a", "function": {"arguments": '{"x":'}}),
        w.called({"index": 0, "function": {"name": "f", "arguments": "1}"}}),
        w.called({"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"y":2}'}}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("shape", CALLS)
async def test_shapes_of_calls(wire, model, shape):
    wire.play([*CALLS[shape](wire), wire.delta("tool_calls"), wire.done])
    events = await events_of(model)
    last = events[-1]
    assert last.malformed == {}
    assert last.message.tool_uses == (
        ToolUse(id="a", name="f", input={"x": 1}),
        ToolUse(id="b", name="g", input={"y": 2}),
    )
    told = [event for event in events if type(event).__name__ == "ToolCallStarted"]
    assert [(event.index, event.id, event.name) for event in told] == [(0, "a", "f"), (1, "b", "g")]
    for index, expected in enumerate(({"x": 1}, {"y": 2})):
        pieces = [e.arguments for e in events if type(e).__name__ == "ToolCallArguments" and e.index == index]
        assert json.loads("".join(pieces)) == expected


@pytest.mark.parametrize(
    "pieces", [["get_", "wea", "ther"], ["get_", "get_weather"], ["get_weather", "get_weather"]], ids=str
)
async def test_names_in_pieces(wire, model, pieces):
    wire.play([
        *(wire.called({"index": 0, "id": "a", "function": {"name": piece, "arguments": ""}}) for piece in pieces),
        wire.called({"index": 0, "function": {"arguments": "{}"}}),
        wire.delta("tool_calls"),
    ])  # fmt: skip
    assert (await ended(model)).message.tool_uses == (ToolUse(id="a", name="get_weather"),)


@pytest.mark.parametrize("index", [{"index": 0}, {}], ids=["index-0", "no-index"])
@pytest.mark.parametrize("identifier", [{"id": ""}, {"id": None}, {}], ids=["empty", "null", "missing"])
async def test_calls_without_ids_get_some(wire, model, index, identifier):
    wire.play([
        wire.called({**index, **identifier, "function": {"name": "add", "arguments": '{"a": 1}'}}),
        wire.called({**index, **identifier, "function": {"name": "add", "arguments": '{"a": 2}'}}),
        wire.delta("tool_calls"),
    ])  # fmt: skip
    calls = (await ended(model)).message.tool_uses
    assert [call.input for call in calls] == [{"a": 1}, {"a": 2}]
    assert len({call.id for call in calls} - {""}) == 2


async def test_another_call_begins_before_the_first_is_whole(wire, model):
    wire.play([
        wire.called({"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": "ha'}}),
        wire.called({"index": 0, "id": "b", "function": {"name": "f", "arguments": "{}"}}),
        wire.called({"index": 1, "id": "c", "function": {"name": "f"}}),
        wire.delta("tool_calls"),
    ])  # fmt: skip
    last = await ended(model)
    assert [call.id for call in last.message.tool_uses] == ["a", "b", "c"]
    assert sorted(last.malformed) == [0, 2]


async def test_the_form_before_tool_calls(wire, model):
    wire.play([
        wire.delta(function_call={"name": "f", "arguments": '{"x"'}),
        wire.delta(function_call={"arguments": ": 1}"}),
        wire.delta("function_call"),
    ])  # fmt: skip
    (call,) = (await ended(model)).message.tool_uses
    assert (call.name, call.input) == ("f", {"x": 1})


async def test_a_call_cut_by_the_output_limit(wire, model):
    wire.play([
        wire.delta(content="I write. "),
        wire.called({"index": 0, "id": "a", "function": {"name": "write", "arguments": '{"text": "half a'}}),
        wire.delta("length"),
        wire.done,
    ])  # fmt: skip
    last = await ended(model)
    assert last.stop == "length"
    assert last.message == Message.assistant([Text("I write. "), ToolUse(id="a", name="write")])
    assert "not valid JSON" in last.malformed[0]


async def test_a_call_of_nothing(wire, model):
    wire.play([
        wire.called({"index": 0}),
        wire.called({"index": 0, "id": "a", "function": {"arguments": "{}"}}),
        wire.called("no object"),
        wire.delta("tool_calls"),
    ])  # fmt: skip
    last = await ended(model)
    assert last.malformed == {0: "the call names no tool"}
    assert [call.id for call in last.message.tool_uses] == ["a"]


async def test_halves_of_a_character_in_two_events(wire, model):
    wire.play([
        b'data: {"choices":[{"index":0,"delta":{"content":"a \\ud83d"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\udc4b b \\ud83d"}}]}\n\n',
        wire.delta("stop"),
    ])  # fmt: skip
    last = await ended(model)
    assert last.message.text == "a 👋 b \ufffd"
    last.message.to_dict()


# -- cancelling, loops, clients


async def test_cancelling_hangs_up_at_once(wire, model):
    wire.play([wire.delta(content="Hi"), "hang"])
    task = asyncio.create_task(events_of(model))
    await asyncio.wait_for(wire.sent.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(wire.gone.wait(), 60)


async def test_leaving_early_hangs_up_at_once(wire, model):
    wire.play([wire.delta(content="Hi"), "hang"])
    stream = model.stream(HELLO)
    assert await anext(stream) == TextDelta(text="Hi")
    await stream.aclose()
    await asyncio.wait_for(wire.gone.wait(), 60)


async def test_cancelling_while_waiting_for_a_retry(wire, model):
    wire.play(wire.status(503, {}, {"retry-after": "50"}))
    task = asyncio.create_task(events_of(model))
    while not wire.requests:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_calls_side_by_side(wire, model):
    wire.always([wire.delta(content="Hi"), 0.02, *answer(wire, " there")])
    texts = await asyncio.gather(*(ended(model) for _ in range(20)))
    assert {last.message.text for last in texts} == {"Hi there"}


async def test_several_loops_in_turn_and_at_once(wire):
    """One model under many `asyncio.run`, closed or not: no error, no warning, no connection left."""
    wire.always(answer(wire))
    model = OpenAIModel("tiny", base_url=wire.base_url)
    found: list[Any] = []

    async def twice() -> None:
        found.extend([(await ended(model)).message.text, (await ended(model)).message.text])

    def run() -> None:
        try:
            asyncio.run(twice(), debug=True)
        except BaseException as error:
            found.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            await asyncio.to_thread(run)
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        await ended(model)
        await model.aclose()
        gc.collect()
    assert found == ["Hi"] * 10
    assert wire.connections == 6


async def test_a_forgotten_model_leaves_nothing(wire):
    wire.play(answer(wire))
    model = OpenAIModel("tiny", base_url=wire.base_url)
    await ended(model)
    del model
    gc.collect()
    await asyncio.sleep(0.05)
    gc.collect()


async def test_a_model_of_a_loop_that_was_torn_down_is_forgotten_quietly(wire):
    """A loop closed without the usual care: what is left of it must not be closed in the next loop."""
    wire.play(answer(wire))
    model = OpenAIModel("tiny", base_url=wire.base_url)
    loop = asyncio.new_event_loop()
    await asyncio.to_thread(loop.run_until_complete, ended(model))
    loop.close()
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    with warnings.catch_warnings(record=True):  # its socket was left open, as Python says itself
        warnings.simplefilter("always")
        del model, loop
        gc.collect()
        await asyncio.sleep(0.05)
        gc.collect()
    assert problems == []


async def test_closed_and_used_again(wire, model):
    wire.play(answer(wire), answer(wire))
    await ended(model)
    await model.aclose()
    await model.aclose()
    await ended(model)


async def test_a_client_of_the_callers_own(wire):
    import openai

    client = openai.AsyncOpenAI(base_url=wire.base_url, api_key=KEY, max_retries=5)
    model = OpenAIModel("tiny", client=client, max_retries=0)
    wire.play(answer(wire), wire.status(500, {}))
    await ended(model)
    with pytest.raises(ModelUnavailableError):
        await ended(model)
    await model.aclose()
    assert not client.is_closed()
    await client.close()
    with pytest.raises(ConfigurationError):
        OpenAIModel("tiny", client=client, api_key="x")


async def test_keys(wire, monkeypatch):
    monkeypatch.setenv("LITTLEGHOST_MODEL_REQUESTS", "allow")  # without a key, nothing is sent
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    for missing in (None, "", "  "):
        if missing is None:
            monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        else:
            monkeypatch.setenv("OPENAI_API_KEY", missing)
        with pytest.raises(CredentialError, match="OPENAI_API_KEY"):
            await events_of(OpenAIModel("tiny"))
    wire.always(answer(wire))
    model = OpenAIModel("tiny", base_url=wire.base_url)
    await ended(model)
    assert wire.requests[-1]["headers"]["authorization"] == "Bearer none"
    await model.aclose()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", wire.base_url)
    model = OpenAIModel("tiny")
    await ended(model)
    assert wire.requests[-1]["headers"]["authorization"] == f"Bearer {KEY}"
    await model.aclose()
