"""Scripted and function models, and strings that name models."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from littleghost.content import Reasoning, Text, ToolUse
from littleghost.errors import ConfigurationError, DataError, ModelUnavailableError
from littleghost.events import ModelEnded, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStarted
from littleghost.message import Message
from littleghost.models.contract import ModelRequest
from littleghost.models.local import LocalModel
from littleghost.models.openai import OpenAIModel
from littleghost.models.openai_responses import OpenAIResponsesModel
from littleghost.models.resolve import resolve_model
from littleghost.models.scripted import FunctionModel, ScriptedModel, ScriptError

HELLO = ModelRequest(messages=[Message.user("Hello")])
CALL = ToolUse(id="a", name="add", input={"a": 1, "text": "a text of more than one piece"})


async def events_of(model: Any, request: ModelRequest = HELLO) -> list[Any]:
    return [event async for event in model.stream(request)]


async def test_a_text_comes_in_pieces():
    text = "A text long enough for several pieces. " * 3
    with ScriptedModel([text]) as model:
        *deltas, last = await events_of(model)
    assert len(deltas) > 2
    assert {type(event) for event in deltas} == {TextDelta}
    assert "".join(event.text for event in deltas) == text
    assert last == ModelEnded(message=Message.assistant(text))


async def test_calls_and_reasoning_come_as_events():
    message = Message.assistant([Reasoning(text="Hm."), Text("So:"), CALL, ToolUse(id="b", name="now")])
    *events, last = await events_of(ScriptedModel([message]))
    assert last.message is message
    assert [event for event in events if type(event) is ReasoningDelta] == [ReasoningDelta(text="Hm.")]
    assert [event for event in events if type(event) is ToolCallStarted] == [
        ToolCallStarted(index=0, id="a", name="add"),
        ToolCallStarted(index=1, id="b", name="now"),
    ]
    pieces = [event.arguments for event in events if type(event) is ToolCallArguments and event.index == 0]
    assert len(pieces) > 1
    assert "".join(pieces) == '{"a":1,"text":"a text of more than one piece"}'


async def test_every_kind_of_step():
    async def later(request: ModelRequest) -> str:
        await asyncio.sleep(0)
        return f"later {len(request.messages)}"

    async def streamed(request: ModelRequest):
        yield TextDelta(text="half")
        raise ModelUnavailableError("broke off")

    ended = ModelEnded(message=Message.assistant("cut"), stop="length")
    steps = [
        "text",
        Message.assistant("message"),
        CALL,
        ["text and ", CALL],
        ended,
        lambda request: request.messages[-1].text,
        later,
        ModelUnavailableError("down"),
        TimeoutError,
        streamed,
        "",
    ]
    async with ScriptedModel(steps) as model:
        assert (await events_of(model))[-1].message.text == "text"
        assert (await events_of(model))[-1].message.text == "message"
        assert (await events_of(model))[-1].message.tool_uses == (CALL,)
        assert (await events_of(model))[-1].message.content == (Text("text and "), CALL)
        assert (await events_of(model))[-1] is ended
        assert (await events_of(model))[-1].message.text == "Hello"
        assert (await events_of(model))[-1].message.text == "later 1"
        for error in (ModelUnavailableError, TimeoutError, ModelUnavailableError):
            with pytest.raises(error):
                await events_of(model)
        assert (await events_of(model)) == [ModelEnded(message=Message.assistant(""))]
        assert len(model.requests) == len(steps)


async def test_a_script_and_its_calls_must_match():
    model = ScriptedModel(["one", "two"])
    with pytest.raises(ScriptError, match="2 steps, and 0 calls"):
        model.assert_done()
    await events_of(model)
    assert model.remaining == 1
    with pytest.raises(AssertionError, match="2 steps, and 1 calls"), model:
        pass
    with pytest.raises(ScriptError):
        async with model:
            pass
    await events_of(model)
    model.assert_done()
    with pytest.raises(AssertionError, match="2 steps, and this is call 3"):
        await events_of(model)
    with pytest.raises(ScriptError):  # even where the one who asked hid the error
        model.assert_done()


def test_an_error_on_its_way_is_not_hidden():
    with pytest.raises(ZeroDivisionError), ScriptedModel(["left over"]):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "step", [None, Message.user("x"), lambda _: None], ids=["none", "user", "returns none"]
)
async def test_a_step_that_is_no_answer(step: Any):
    with pytest.raises(ScriptError):
        await events_of(ScriptedModel([step]))
    with pytest.raises(DataError):
        await events_of(ScriptedModel([object()]))
    with pytest.raises(TypeError):
        ScriptedModel("text")


async def test_a_request_is_recorded_as_it_was():
    messages = [Message.user("Hello")]
    model = ScriptedModel(["Hi"])
    await events_of(model, ModelRequest(messages=messages))
    messages.append(Message.user("more"))
    assert model.requests[0].messages == [Message.user("Hello")]


async def test_what_no_json_holds_can_be_scripted():
    bad = ToolUse(id="a", name="f", input={"x": float("nan"), "y": "\ud83d", "z": {1, 2}})
    events = await events_of(ScriptedModel([Message.assistant([bad])]))
    assert events[-1].message.tool_uses == (bad,)


async def test_a_function():
    plain = FunctionModel(lambda request: f"You said {request.messages[-1].text}.")

    async def slow(request: ModelRequest) -> ToolUse:
        await asyncio.sleep(0)
        return CALL

    async def stream(request: ModelRequest):
        yield TextDelta(text="x")
        yield ModelEnded(message=Message.assistant("x"))

    for _ in range(2):
        assert (await events_of(plain))[-1].message.text == "You said Hello."
    assert len(plain.requests) == 2
    assert (await events_of(FunctionModel(slow)))[-1].message.tool_uses == (CALL,)
    assert FunctionModel(slow).name == "slow"
    assert len(await events_of(FunctionModel(stream))) == 2


async def test_delay():
    began = time.monotonic()
    assert len(await events_of(ScriptedModel(["short"], delay=0.05))) == 2
    assert time.monotonic() - began >= 0.095


# -- names


def test_names_of_models(monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    model = resolve_model("openai:gpt-5")
    assert isinstance(model, OpenAIResponsesModel)
    assert (model.name, model.provider) == ("gpt-5", "openai")
    local = resolve_model("local:models/tiny:q4.gguf")
    assert isinstance(local, LocalModel)
    assert str(local.server.path) == "models/tiny:q4.gguf"
    assert resolve_model(local) is local


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("", OpenAIResponsesModel),
        ("https://api.openai.com/v1", OpenAIResponsesModel),
        ("https://eu.api.openai.com/v1", OpenAIResponsesModel),
        ("http://localhost:8000/v1", OpenAIModel),
        ("https://openai.com.example.org/v1", OpenAIModel),
    ],
)
def test_which_api_of_openai_depends_on_where_it_is(monkeypatch, url: str, kind: type):
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert type(resolve_model("openai:gpt-5")) is kind
    assert type(resolve_model("openai-chat:gpt-5")) is OpenAIModel
    assert type(resolve_model("openai-responses:gpt-5")) is OpenAIResponsesModel


@pytest.mark.parametrize("name", ["gpt-5", "", "openai:", "openai: ", "other:model", "OPENAI:gpt-5", ":x"])
def test_names_of_no_model(name: str):
    with pytest.raises(ConfigurationError, match="openai:MODEL"):
        resolve_model(name)
