"""AnthropicModel against a server that speaks, misbehaves and refuses as Anthropic's does."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from typing import Any

import pytest

from littleghost import transcript
from littleghost.content import Reasoning, Text, ToolResult, ToolUse
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
from littleghost.models.anthropic import AnthropicModel
from littleghost.models.contract import AnswerFormat, ModelRequest, ToolSpec
from littleghost.models.retry import RetryPolicy
from littleghost.models.turns import answer_schema
from littleghost.testing.model_anthropic import refusal
from littleghost.usage import Usage

KEY = "sk-ant-very-secret-0123456789"
HELLO = ModelRequest(messages=[Message.user("Hello")])
ADD = ToolSpec(name="add", description="Add numbers.", schema={"type": "object", "properties": {}})
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 2000}}


def quick(model: AnthropicModel) -> AnthropicModel:
    model._policy = RetryPolicy(retries=2, base=0.001)
    return model


@pytest.fixture
async def model(wire):
    model = quick(AnthropicModel("claude-sonnet-4-6", base_url=root(wire), api_key=KEY))
    yield model
    await model.aclose()


def root(wire) -> str:
    return wire.base_url.removesuffix("/v1")


async def events_of(model: AnthropicModel, request: ModelRequest = HELLO) -> list[Any]:
    return [event async for event in model.stream(request)]


async def ended(model: AnthropicModel, request: ModelRequest = HELLO) -> ModelEnded:
    events = await events_of(model, request)
    assert [type(event) for event in events].count(ModelEnded) == 1
    assert type(events[-1]) is ModelEnded
    return events[-1]


def sse(form: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (form["type"].encode(), json.dumps(form).encode())


START = sse({"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}})
STOP = sse({"type": "message_stop"})


def block(index: int, form: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        sse({"type": "content_block_start", "index": index, "content_block": form}),
        *(sse({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas),
        sse({"type": "content_block_stop", "index": index}),
    ]


def words(index: int, *pieces: str) -> list[bytes]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": ""}, *deltas)


def thought(index: int, text: str, signature: str) -> list[bytes]:
    said = [{"type": "thinking_delta", "thinking": text}] if text else []
    return block(
        index,
        {"type": "thinking", "thinking": ""},
        *said,
        {"type": "signature_delta", "signature": signature},
    )


def call(index: int, identifier: str) -> list[bytes]:
    form = {"type": "tool_use", "id": identifier, "name": "add", "input": {}}
    return block(index, form, {"type": "input_json_delta", "partial_json": '{"a": 1}'})


def stop(reason: str = "end_turn") -> list[bytes]:
    delta = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 7}}
    return [sse(delta), STOP]


def answer(*pieces: str) -> list[bytes]:
    return [START, *words(0, *(pieces or ("Hi",))), *stop()]


def fault(kind: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


# -- good answers


async def test_a_plain_answer(wire, model):
    wire.play(answer("Hel", "lo"))
    *deltas, last = await events_of(model)
    assert deltas == [TextDelta(text="Hel"), TextDelta(text="lo")]
    assert last.message == Message.assistant("Hello")
    assert last.usage == Usage(input_tokens=3, output_tokens=7)
    (sent,) = wire.requests
    assert sent["line"].startswith("POST /v1/messages ")
    assert sent["headers"]["anthropic-version"]
    assert KEY in (sent["headers"].get("x-api-key", "") + sent["headers"].get("authorization", ""))
    assert sent["body"] == {
        "model": "claude-sonnet-4-6",
        "max_tokens": 32_000,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "stream": True,
    }


async def test_one_connection_serves_several_calls(wire, model):
    for _ in range(3):
        wire.play(answer())
        await ended(model)
    assert wire.connections == 1


async def test_settings_travel(wire):
    model = AnthropicModel(
        "claude-sonnet-4-6",
        base_url=root(wire),
        api_key=KEY,
        max_tokens=500,
        settings={"temperature": 0, "extra_headers": {"anthropic-beta": "x"}, "top_k": 5},
    )
    wire.play(answer())
    settings = {"temperature": 1, "top_k": None, "max_tokens": 9, "brand_new": True}
    await ended(model, ModelRequest(messages=HELLO.messages, settings=settings))
    body = wire.requests[0]["body"]
    assert (body["temperature"], body["max_tokens"], body["brand_new"], "top_k" in body) == (
        1,
        9,
        True,
        False,
    )
    assert wire.requests[0]["headers"]["anthropic-beta"] == "x"
    await model.aclose()


@pytest.mark.parametrize("name", ["messages", "tools", "stream", "system", "model"])
async def test_settings_do_not_take_over(wire, model, name):
    with pytest.raises(ConfigurationError, match=name):
        await events_of(model, ModelRequest(messages=HELLO.messages, settings={name: 1}))
    with pytest.raises(ConfigurationError, match=name):
        AnthropicModel("claude", settings={name: 1})


def test_what_a_constructor_refuses():
    with pytest.raises(ConfigurationError, match="cache"):
        AnthropicModel("claude", cache="1d")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="developer_role"):
        AnthropicModel("claude", developer_role="boss")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="client"):
        AnthropicModel("claude", client=object(), api_key="x")  # type: ignore[arg-type]


def test_what_a_model_can(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    all_of_it = {"tool_choice", "answer_format", "images", "documents"}
    assert AnthropicModel("claude-sonnet-4-6").capabilities == all_of_it
    assert AnthropicModel("claude-opus-5-5").capabilities == all_of_it - {"tool_choice"}
    elsewhere = AnthropicModel("qwen", base_url="http://127.0.0.1:1")
    assert elsewhere.capabilities == all_of_it - {"answer_format"}
    assert (elsewhere.context_window, AnthropicModel("claude-sonnet-4-6").context_window) == (None, 1_000_000)
    assert AnthropicModel("qwen", context_window=8192).context_window == 8192


async def test_a_model_that_cannot_be_forced_is_not(wire):
    model = AnthropicModel("claude-opus-5-5", base_url=root(wire), api_key=KEY)
    for choice, sent in (("required", None), ("none", {"type": "none"})):
        wire.play(answer())
        await ended(model, ModelRequest(messages=HELLO.messages, tools=(ADD,), tool_choice=choice))
        assert wire.requests[-1]["body"].get("tool_choice") == sent
    await model.aclose()


async def test_an_answer_format(wire, model):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    wire.play(answer('{"n": 1}'))
    await ended(model, ModelRequest(messages=HELLO.messages, format=AnswerFormat(name="n", schema=schema)))
    form = {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}
    assert wire.requests[0]["body"]["output_config"] == {"format": form}


def test_schemas_are_made_acceptable_as_the_sdk_makes_them():
    import anthropic

    schema = {
        "type": "object",
        "description": "A list.",
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "minItems": 1, "maxItems": 5},
            "kind": {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "null"}]},
            "when": {"type": "string", "format": "date-time"},
        },
        "required": ["items"],
        "additionalProperties": True,
        "$defs": {"item": {"type": "object", "properties": {"n": {"type": "number", "maximum": 3}}}},
    }
    assert answer_schema(schema) == anthropic.transform_schema(schema)


# -- reasoning: a server that refuses as Anthropic does


class Provider:
    """Thinks and calls a tool, then answers; refuses what Anthropic refuses, signatures that it did not give included."""

    def __init__(self, wire, *, display: str = "summarized") -> None:
        self.text = "I will add." if display == "summarized" else ""
        self.signed: set[str] = set()
        self.refused: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        wire.always(self)
        self.status = wire.status

    def __call__(self, body: dict[str, Any]) -> list[Any]:
        self.bodies.append(body)
        why = refusal(body, self.signed)
        if why is not None:
            self.refused.append(why)
            return self.status(400, fault("invalid_request_error", why))
        called = sum(b["type"] == "tool_use" for m in body["messages"] for b in m["content"])
        parts: list[bytes] = []
        if body.get("thinking", {}).get("type") == "enabled":
            self.signed |= {f"sig{called}", f"red{called}"}
            parts += thought(0, self.text, f"sig{called}")
            parts += block(1, {"type": "redacted_thinking", "data": f"red{called}"})
        if called < 2:
            return [START, *parts, *call(2, f"toolu_{called}"), *stop("tool_use")]
        return [START, *parts, *words(2, "Done."), *stop()]


def asked(*messages: Message) -> ModelRequest:
    return ModelRequest(messages=list(messages), tools=(ADD,), settings=BUDGET)


def results(message: Message) -> Message:
    return Message.tool([ToolResult(tool_use_id=call.id, content="1") for call in message.tool_uses])


async def test_reasoning_is_sent_back_within_a_run(wire, model):
    provider = Provider(wire)
    messages = [Message.user("Add")]
    for _ in range(3):
        message = (await ended(model, asked(*messages))).message
        messages += [transcript.admit(message), results(message)] if message.tool_uses else [message]
    assert messages[-1].text == "Done."
    assert provider.refused == []
    assert [body["thinking"] for body in provider.bodies] == [BUDGET["thinking"]] * 3
    sent = provider.bodies[-1]["messages"][1]["content"]
    assert [part["type"] for part in sent] == ["thinking", "redacted_thinking", "tool_use"]


async def test_without_the_way_out_a_resumed_run_would_be_refused(wire, model, monkeypatch):
    """The rule is the provider's, and the server of these tests knows it."""
    provider = Provider(wire)
    message = (await ended(model, asked(Message.user("Add")))).message
    stored = transcript.sanitise([Message.user("Add"), message, results(message)])
    monkeypatch.setattr("littleghost.models.anthropic_format._may_think", lambda *_: True)
    with pytest.raises(
        ModelRequestError, match="Expected `thinking` or `redacted_thinking`, but found `tool_use`"
    ):
        await ended(model, asked(*stored))
    assert len(provider.refused) == 1


async def test_a_run_resumed_between_a_call_and_its_result(wire, model):
    provider = Provider(wire)
    message = (await ended(model, asked(Message.user("Add")))).message
    messages = transcript.sanitise([Message.user("Add"), message, results(message)])
    assert not any(isinstance(b, Reasoning) for m in messages for b in m.content)
    second = (await ended(model, asked(*messages))).message
    assert second.content == (ToolUse(id="toolu_1", name="add", input={"a": 1}),)
    messages += [second, results(second)]
    last = (await ended(model, asked(*messages))).message
    assert [body["thinking"]["type"] for body in provider.bodies] == ["enabled", "disabled", "disabled"]
    # the next turn is thought about again
    await ended(model, asked(*messages, last, Message.user("Again")))
    assert provider.bodies[-1]["thinking"] == BUDGET["thinking"]
    assert provider.refused == []


@pytest.mark.parametrize(("display", "goes_on"), [("omitted", True), ("summarized", False)])
async def test_signatures_that_were_kept_let_a_resumed_run_think_on(wire, display, goes_on):
    provider = Provider(wire, display=display)
    model = AnthropicModel("claude-sonnet-4-6", base_url=root(wire), api_key=KEY, keep_signatures=True)
    message = (await ended(model, asked(Message.user("Add")))).message
    messages = transcript.sanitise([Message.user("Add"), message, results(message)])
    assert "I will add" not in json.dumps([message.to_dict() for message in messages])
    await ended(model, asked(*messages))
    assert provider.bodies[-1]["thinking"]["type"] == ("enabled" if goes_on else "disabled")
    assert provider.refused == []
    await model.aclose()


# -- errors


@pytest.mark.parametrize("kind", ["overloaded_error", "api_error", "rate_limit_error", "timeout_error"])
async def test_an_error_that_may_pass_in_the_middle_of_an_answer(wire, model, kind):
    wire.play([START, *words(0, "Once")[:2], sse(fault(kind, "Overloaded"))], answer())
    first, again, *_, last = await events_of(model)
    assert first == TextDelta(text="Once")
    assert type(again) is Retrying
    assert "Overloaded" in again.error
    assert last.message.text == "Hi"


@pytest.mark.parametrize(
    ("kind", "error"),
    [("invalid_request_error", ModelRequestError), ("authentication_error", CredentialError)],
)
async def test_an_error_that_will_not_pass_in_the_middle_of_an_answer(wire, model, kind, error):
    wire.play([START, sse(fault(kind))])
    with pytest.raises(error):
        await ended(model)
    assert len(wire.requests) == 1


@pytest.mark.parametrize("code", [408, 409, 429, 500, 503, 529])
async def test_a_status_that_may_pass(wire, model, code):
    wire.play(wire.status(code, fault("overloaded_error", "Overloaded")), answer())
    again, *_, last = await events_of(model)
    assert type(again) is Retrying
    assert str(code) in again.error
    assert last.message.text == "Hi"


@pytest.mark.parametrize("code", [400, 402, 404, 413, 422])
async def test_a_status_that_will_not_pass(wire, model, code):
    wire.play(wire.status(code, fault("invalid_request_error", "max_tokens: too\nmany")))
    with pytest.raises(ModelRequestError, match="max_tokens: too many") as caught:
        await ended(model)
    assert caught.value.status == code
    assert len(wire.requests) == 1


async def test_retry_after_is_obeyed(wire, model):
    wire.play(wire.status(429, fault("rate_limit_error"), {"retry-after": "0.05"}), answer())
    again, *_ = await events_of(model)
    assert again.delay >= 0.05


@pytest.mark.parametrize(
    ("message", "tokens", "limit"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", 210000, 200000),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length", None, 200000),
    ],
)  # fmt: skip
async def test_context_overflow(wire, model, message, tokens, limit):
    wire.play(wire.status(400, fault("invalid_request_error", message)))
    with pytest.raises(ContextOverflowError) as caught:
        await ended(model)
    assert (caught.value.tokens, caught.value.limit) == (tokens, limit)


@pytest.mark.parametrize("code", [400, 401, 403, 500])
async def test_errors_keep_secrets_and_are_short(wire, caplog, code):
    caplog.set_level(logging.DEBUG)
    model = AnthropicModel("claude-sonnet-4-6", base_url=root(wire), api_key=KEY, max_retries=0)
    wire.play(wire.status(code, fault("authentication_error", f"bad key {KEY} " + "x" * 5000)))
    with pytest.raises((CredentialError, ModelRequestError, ModelUnavailableError)) as caught:
        await ended(model)
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(model)
    assert KEY not in shown
    assert len(str(caught.value)) < 500
    await model.aclose()


@pytest.mark.parametrize("end", ["cut", "reset", b"event: content_block_delta\ndata: {half"])
@pytest.mark.parametrize("until", [1, 2, 3])
async def test_a_cut_answer_is_void_and_made_again(wire, model, end, until):
    wire.play([*answer("Once", "upon")[:until], 0.02, end], answer())
    events = await events_of(model)
    assert Retrying in map(type, events)
    assert events[-1].message.text == "Hi"


@pytest.mark.parametrize(
    "rubbish",
    [
        b"data: nonsense\n\n",
        b"data: []\n\n",
        START,
        words(7, "x")[1],
        STOP,
        sse({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    ],
)
async def test_what_is_no_answer_is_asked_for_again(wire, model, rubbish):
    wire.play([START, *words(0, "So")[:2], rubbish, *stop()], answer())
    events = await events_of(model)
    assert Retrying in map(type, events)
    assert events[-1].message.text == "Hi"


async def test_a_web_page_is_no_answer_and_not_asked_for_again(wire, model):
    wire.play(wire.status(200, "<html>hello</html>"))
    with pytest.raises(ModelProtocolError, match="web page"):
        await ended(model)
    assert len(wire.requests) == 1


async def test_silence(wire):
    model = quick(AnthropicModel("claude", base_url=root(wire), api_key=KEY, timeout=0.1, max_retries=0))
    model._policy = RetryPolicy(retries=0)
    wire.play(["hang"], [START, "hang"])
    for _ in range(2):
        with pytest.raises(ModelUnavailableError, match="in time"):
            await ended(model)
    await model.aclose()


async def test_the_time_of_the_call_bounds_it(wire, model):
    wire.play([START, "hang"])
    with pytest.raises(ModelUnavailableError, match="time that was left"):
        await ended(model, ModelRequest(messages=HELLO.messages, timeout=0.3))


async def test_cancelling_hangs_up_at_once(wire, model):
    wire.play([START, "hang"])
    task = asyncio.create_task(ended(model))
    await wire.sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(wire.gone.wait(), 20)


async def test_leaving_early_hangs_up_at_once(wire, model):
    wire.play([START, *words(0, "Once")[:2], "hang"])
    stream = model.stream(HELLO)
    assert await anext(stream) == TextDelta(text="Once")
    await stream.aclose()
    await asyncio.wait_for(wire.gone.wait(), 20)


# -- keys and clients


async def test_keys(wire, monkeypatch, tmp_path):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ANTHROPIC_CONFIG_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(CredentialError, match="ANTHROPIC_API_KEY"):
        await ended(AnthropicModel("claude"))
    wire.always(answer())
    for given, environment, sent in (
        ("mine-0", {}, "mine-0"),
        (None, {"ANTHROPIC_API_KEY": "theirs-1"}, "theirs-1"),
        (None, {"ANTHROPIC_AUTH_TOKEN": "token-2"}, "token-2"),
        (None, {}, "none"),
    ):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            model = AnthropicModel("claude", base_url=root(wire), api_key=given)
            await ended(model)
            await model.aclose()
        headers = wire.requests[-1]["headers"]
        assert sent in headers.get("x-api-key", "") + headers.get("authorization", "")


async def test_a_client_of_the_callers_own(wire):
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=root(wire), api_key=KEY, max_retries=7) as client:
        model = quick(AnthropicModel("claude", client=client))
        assert model.host == "127.0.0.1"
        wire.play(wire.status(500), answer())
        assert type((await events_of(model))[0]) is Retrying  # it is we who try again
        await model.aclose()
        wire.play(answer())
        assert (await ended(model)).message.content == (Text("Hi"),)


async def test_requests_can_be_forbidden(wire, model, monkeypatch):
    monkeypatch.setenv("LITTLEGHOST_MODEL_REQUESTS", "forbid")
    with pytest.raises(ConfigurationError, match="anthropic"):
        await ended(AnthropicModel("claude", base_url="https://api.anthropic.com", api_key=KEY))
    wire.play(answer())
    assert (await ended(model)).message.text == "Hi"
