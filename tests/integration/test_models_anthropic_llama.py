"""AnthropicModel against a real llama.cpp server, which speaks the Messages format too."""

from __future__ import annotations

from typing import Any

import pytest

from littleghost.content import ToolResult, ToolUse
from littleghost.errors import ContextOverflowError, CredentialError
from littleghost.events import TextDelta, ToolCallStarted
from littleghost.message import Message
from littleghost.models.anthropic import AnthropicModel
from littleghost.models.contract import ModelRequest, ToolSpec
from littleghost.models.local import LlamaServer

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("llama")]

WEATHER = ToolSpec(
    name="get_weather",
    description="Get the weather in a city.",
    schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@pytest.fixture
async def model(llama: LlamaServer):
    root = llama.base_url.removesuffix("/v1")
    model = AnthropicModel(
        "small", base_url=root, api_key=llama.key, max_tokens=80, settings={"temperature": 0}
    )
    yield model
    await model.aclose()


async def events_of(model: AnthropicModel, *messages: Message, **fields: Any) -> list[Any]:
    return [event async for event in model.stream(ModelRequest(messages=list(messages), **fields))]


async def test_text_comes_as_it_is_written_and_is_counted(model):
    *deltas, last = await events_of(model, Message.system("You are brief."), Message.user("Say hello."))
    assert len(deltas) > 2
    assert {type(event) for event in deltas} == {TextDelta}
    assert "".join(event.text for event in deltas) == last.message.text
    assert "hello" in last.message.text.lower()
    assert last.usage.input_tokens + last.usage.cache_read_tokens > 8
    assert 0 < last.usage.output_tokens <= 80


async def test_the_output_limit(model):
    last = (await events_of(model, Message.user("Tell me a long story."), settings={"max_tokens": 10}))[-1]
    assert (last.stop, last.usage.output_tokens) == ("length", 10)
    assert last.message.text


async def test_a_tool_is_called_and_its_result_told(model):
    cities = ("Berlin", "Tokyo", "Paris", "London")
    for city in cities:  # a model this small does not always call
        asked = Message.user(f"Get the weather in {city}.")
        *events, last = await events_of(model, asked, tools=(WEATHER,))
        if last.message.tool_uses:
            break
    (call, *_) = last.message.tool_uses
    assert call.name == "get_weather"
    assert ToolCallStarted in map(type, events)
    assert (last.stop, last.malformed) == ("end", {})
    result = Message.tool(
        [ToolResult(tool_use_id=one.id, content="It is sunny.") for one in last.message.tool_uses]
    )
    told = (await events_of(model, asked, last.message, result, tools=(WEATHER,)))[-1]
    assert told.message.text


async def test_a_conversation_of_another_provider_is_taken(model):
    call = ToolUse(id="call/ü:1", name="get_weather", input={"city": "Rome"})
    messages = [
        Message.assistant("Welcome."),
        Message.user("How is Rome?"),
        Message.assistant([call]),
        Message.tool([ToolResult(tool_use_id=call.id, content="", status="error")]),
        Message.developer("Be brief."),
        Message.user("Say hello."),
    ]
    assert (await events_of(model, *messages, tools=(WEATHER,)))[-1].message.content


async def test_context_overflow_has_numbers(model):
    with pytest.raises(ContextOverflowError) as caught:
        await events_of(model, Message.user("word " * 6000))
    assert caught.value.limit == 4096
    assert caught.value.tokens > 6000


async def test_only_who_has_the_key_is_served(llama):
    model = AnthropicModel("small", base_url=llama.base_url.removesuffix("/v1"), api_key="wrong")
    with pytest.raises(CredentialError):
        await events_of(model, Message.user("Hello"))
    await model.aclose()
