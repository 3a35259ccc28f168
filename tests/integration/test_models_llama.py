"""OpenAIModel and LocalModel against a real llama.cpp server with a real, very small model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from littleghost.content import ToolResult
from littleghost.errors import (
    ConfigurationError,
    ContextOverflowError,
    CredentialError,
    DependencyError,
    ModelUnavailableError,
)
from littleghost.events import ModelEnded, Retrying, TextDelta, ToolCallArguments, ToolCallStarted
from littleghost.message import Message
from littleghost.models.contract import AnswerFormat, ModelRequest, ToolSpec
from littleghost.models.local import LlamaServer, LocalModel
from littleghost.models.openai import OpenAIModel
from littleghost.models.openai_responses import OpenAIResponsesModel
from littleghost.models.retry import RetryPolicy

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("llama")]


def tool(name: str, description: str, **parameters: str) -> ToolSpec:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description=description, schema=schema)


READ = tool("read_file", "Read a text file.", path="string")
WRITE = tool("write_file", "Write a text file.", path="string", content="string")
ADD = tool("add", "Add two numbers.", a="integer", b="integer")
WEATHER = tool("get_weather", "Get the weather in a city.", city="string")
PROMPTS = [
    ("Read the file notes.txt", READ),
    ("Please read the file todo.txt.", READ),
    ("Show me the contents of data.csv", READ),
    ("Write hello to the file greeting.txt", WRITE),
    ("Write the text 'buy milk' into the file list.txt", WRITE),
    ("Save the word done in the file status.txt", WRITE),
    ("Get the weather in Berlin.", WEATHER),
    ("How is the weather in Tokyo today?", WEATHER),
    ("Use add to add 3 and 4", ADD),
    ("Add the numbers 12 and 30.", ADD),
]


@pytest.fixture
async def model(llama: LlamaServer):
    model = OpenAIModel(
        "small", base_url=llama.base_url, api_key=llama.key, settings={"temperature": 0, "max_tokens": 80}
    )
    yield model
    await model.aclose()


async def events_of(
    model: Any, *messages: Message, tools: tuple[ToolSpec, ...] = (), **settings: Any
) -> list[Any]:
    request = ModelRequest(messages=list(messages), tools=tools, settings=settings)
    return [event async for event in model.stream(request)]


def slots(server: LlamaServer) -> list[dict[str, Any]]:
    request = urllib.request.Request(
        server.base_url.removesuffix("/v1") + "/slots", headers={"Authorization": f"Bearer {server.key}"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


async def until(condition: Any, seconds: float) -> float:
    """Wait for a condition, and return the seconds it took."""
    began = time.monotonic()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() - began < seconds, "it did not happen in time"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def test_text_comes_as_it_is_written(model):
    *deltas, last = await events_of(model, Message.system("You are brief."), Message.user("Say hello."))
    assert len(deltas) > 2
    assert {type(event) for event in deltas} == {TextDelta}
    assert "".join(event.text for event in deltas) == last.message.text
    assert "hello" in last.message.text.lower()


async def test_usage_is_counted(model):
    last = (await events_of(model, Message.user("Say hello to everybody in this room.")))[-1]
    again = (await events_of(model, Message.user("Say hello to everybody in this room.")))[-1]
    assert last.usage.input_tokens + last.usage.cache_read_tokens > 8
    assert 0 < last.usage.output_tokens <= 80
    assert again.usage.total_tokens == last.usage.total_tokens
    assert again.usage.cache_read_tokens > 0


async def test_the_output_limit(model):
    last = (await events_of(model, Message.user("Tell me a long story."), max_tokens=10))[-1]
    assert last.stop == "length"
    assert last.usage.output_tokens == 10
    assert last.message.text


async def test_tools_are_called(model):
    """A model this small does not always call, and with the right arguments less often; here it does for most prompts."""
    called = exact = 0
    for prompt, spec in PROMPTS:
        events = await events_of(model, Message.user(prompt), tools=(spec,))
        last = events[-1]
        calls = last.message.tool_uses
        called += bool(calls)
        exact += bool(calls) and all(str(value) in prompt for value in calls[0].input.values())
        started = [event for event in events if type(event) is ToolCallStarted]
        assert [(event.id, event.name) for event in started] == [(call.id, call.name) for call in calls]
        for position, call in enumerate(calls):
            assert call.id
            assert call.name == spec.name
            pieces = [e.arguments for e in events if type(e) is ToolCallArguments and e.index == position]
            if position not in last.malformed:
                assert json.loads("".join(pieces)) == call.input
                assert set(call.input) <= set(spec.schema["properties"])
    assert called >= 7, f"{called} of {len(PROMPTS)} prompts gave a call"
    assert exact >= 4, f"{exact} of {len(PROMPTS)} prompts gave a call with arguments from the prompt"


async def test_a_result_is_told_in_words(model):
    asked = Message.user("Read the file notes.txt")
    first = (await events_of(model, asked, tools=(READ,)))[-1].message
    (call,) = first.tool_uses
    result = Message.tool([ToolResult(tool_use_id=call.id, content="The meeting is on Friday.")])
    last = (await events_of(model, asked, first, result, tools=(READ,)))[-1]
    assert last.message.tool_uses == ()
    assert "friday" in last.message.text.lower()


async def test_a_conversation_is_remembered(model):
    history = [
        Message.user("My dog is called Rex."),
        Message.assistant("Rex is a nice name for a dog."),
        Message.user("What is my dog called?"),
    ]
    assert "Rex" in (await events_of(model, *history))[-1].message.text


async def test_context_overflow_has_numbers(model):
    with pytest.raises(ContextOverflowError) as caught:
        await events_of(model, Message.user("word " * 6000))
    assert caught.value.tokens > 6000
    assert caught.value.limit == 4096
    assert "4096" in str(caught.value)


async def test_cancelling_frees_the_slot(llama, model):
    async def talk() -> None:
        await events_of(model, Message.user("Tell me a very long story."), max_tokens=3000, ignore_eos=True)

    task = asyncio.create_task(talk())
    await until(lambda: any(slot["is_processing"] for slot in slots(llama)), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    seconds = await until(lambda: not any(slot["is_processing"] for slot in slots(llama)), 20)
    assert seconds < 10  # 0.1 s on an idle machine


async def test_two_calls_at_once(model):
    texts = await asyncio.gather(*(events_of(model, Message.user("Say hello.")) for _ in range(4)))
    assert all(events[-1].message.text for events in texts)


async def test_only_who_has_the_key_is_served(llama):
    model = OpenAIModel("small", base_url=llama.base_url, api_key="wrong")
    with pytest.raises(CredentialError):
        await events_of(model, Message.user("Hello"))
    await model.aclose()


async def test_a_server_killed_in_the_middle_of_an_answer(gguf):
    with LlamaServer(gguf, context=2048, threads=1) as server:
        model = OpenAIModel("small", base_url=server.base_url, api_key=server.key)
        model._policy = RetryPolicy(retries=2, base=0.01)
        seen: list[Any] = []
        request = ModelRequest(
            messages=[Message.user("Tell me a story.")], settings={"max_tokens": 1500, "ignore_eos": True}
        )
        with pytest.raises(ModelUnavailableError):  # noqa: PT012
            async for event in model.stream(request):
                seen.append(event)
                if len(seen) == 5:
                    os.kill(server.pid, signal.SIGKILL)
        assert [event.attempt for event in seen if type(event) is Retrying] == [1, 2]
        assert type(seen[4]) is TextDelta
        assert not server.running
        await model.aclose()


# -- LocalModel


async def test_a_local_model_starts_by_itself_and_again(gguf):
    model = LocalModel(gguf, context=1024, threads=1, settings={"temperature": 0, "max_tokens": 10})
    assert model.server.pid is None
    assert (model.name, model.provider) == (gguf.stem, "llama.cpp")
    first = (await events_of(model, Message.user("Say hello.")))[-1]
    assert type(first) is ModelEnded
    assert model.context_window == 1024
    pid = model.server.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not model.server.running, 10)
    second = (await events_of(model, Message.user("Say hello.")))[-1]
    assert second.message == first.message
    assert model.server.pid != pid
    pid = model.server.pid
    await model.aclose()
    assert not alive(pid)
    assert (await events_of(model, Message.user("Say hello.")))[-1].message == first.message
    await model.aclose()


async def test_a_local_model_is_started_once_for_calls_at_once(gguf):
    before = servers()
    model = LocalModel(gguf, context=1024, threads=1, slots=2, settings={"max_tokens": 3})
    await asyncio.gather(*(events_of(model, Message.user("Say hello.")) for _ in range(4)))
    assert servers() - before == {model.server.pid}
    await model.aclose()


async def test_a_file_that_is_no_model(tmp_path, gguf):
    missing = LocalModel(tmp_path / "none.gguf")
    with pytest.raises(ConfigurationError, match="no model file"):
        await events_of(missing, Message.user("x"))
    (tmp_path / "text.gguf").write_text("not a model")
    with pytest.raises(ConfigurationError, match="not a GGUF file"):
        await events_of(LocalModel(tmp_path / "text.gguf"), Message.user("x"))
    (tmp_path / "half.gguf").write_bytes(gguf.read_bytes()[:5_000_000])
    half = LocalModel(tmp_path / "half.gguf")
    with pytest.raises((ConfigurationError, ModelUnavailableError), match=r"half\.gguf"):
        await events_of(half, Message.user("x"))
    assert not half.server.running


async def test_a_server_that_takes_too_long(gguf):
    server = LlamaServer(gguf, patience=0.001)
    with pytest.raises(ModelUnavailableError, match="did not load"):
        await asyncio.to_thread(server.start)
    assert not server.running


async def test_xllamacpp_missing(gguf, monkeypatch):
    monkeypatch.setattr("littleghost.models.local.importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"littleghost\[local\]"):
        await events_of(LocalModel(gguf), Message.user("x"))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def servers() -> set[int]:
    """The llama.cpp servers that this process has started."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if (
                    stat[0] != "Z"
                    and int(stat[1]) == os.getpid()
                    and "local_server.py" in (folder / "cmdline").read_text()
                ):
                    found.add(int(folder.name))
            except OSError:
                continue
    return found


OWNER = """
    import asyncio, os, sys, time
    from littleghost.message import Message
    from littleghost.models.contract import ModelRequest
    from littleghost.models.local import LocalModel

    async def main():
        model = LocalModel(sys.argv[1], context=512, threads=1, settings={"max_tokens": 3})
        async for event in model.stream(ModelRequest(messages=[Message.user("Hello")])):
            pass
        if sys.argv[2] == "forked":
            if os.fork() == 0:      # a copy that keeps the pipe open
                time.sleep(60)
                os._exit(0)
        print(model.server.pid, flush=True)
        if sys.argv[2] != "ends":
            await asyncio.sleep(60)

    asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", ["ends", "killed", "forked"])
async def test_the_server_ends_with_its_owner(gguf, how):
    owner = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(OWNER), str(gguf), how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        pid = int(await asyncio.to_thread(owner.stdout.readline))
        if how != "ends":
            assert alive(pid)
            owner.kill()
        await asyncio.to_thread(owner.wait, 60)
        if how == "ends":
            assert owner.stderr.read() == ""
            assert owner.returncode == 0
        await until(lambda: not alive(pid), 20)
    finally:
        if how == "forked":
            os.killpg(owner.pid, signal.SIGKILL)
        owner.stdout.close()
        owner.stderr.close()


# -- what must be called, and the form of an answer


async def test_a_tool_that_must_be_called_is_called(model):
    request = ModelRequest(messages=[Message.user("Good morning!")], tools=(WEATHER,), tool_choice="required")
    last = [event async for event in model.stream(request)][-1]
    assert [call.name for call in last.message.tool_uses] == ["get_weather"]
    assert isinstance(last.message.tool_uses[0].input["city"], str)


async def test_a_local_model_calls_the_tool_it_is_told_to(gguf):
    model = LocalModel(gguf, context=1024, threads=1, settings={"temperature": 0, "max_tokens": 40})
    tools = (READ, WEATHER, ADD)
    request = ModelRequest(messages=[Message.user("Read notes.txt")], tools=tools, tool_choice="get_weather")
    last = [event async for event in model.stream(request)][-1]
    assert [call.name for call in last.message.tool_uses] == ["get_weather"]
    await model.aclose()


async def test_an_answer_has_the_form_it_was_asked_for(model):
    form = AnswerFormat(
        name="person",
        schema={
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [7, 8]}},
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    )
    request = ModelRequest(messages=[Message.user("Tell me about a child.")], format=form)
    last = [event async for event in model.stream(request)][-1]
    assert json.loads(last.message.text)["age"] in (7, 8)


# -- Responses


@pytest.fixture
async def responses(llama: LlamaServer):
    model = OpenAIResponsesModel(
        "small",
        base_url=llama.base_url,
        api_key=llama.key,
        settings={"temperature": 0, "max_output_tokens": 40},
    )
    yield model
    await model.aclose()


async def test_text_by_the_responses_api(responses):
    *deltas, last = await events_of(responses, Message.system("You are brief."), Message.user("Say hello."))
    assert len(deltas) > 2
    assert {type(event) for event in deltas} == {TextDelta}
    assert "".join(event.text for event in deltas) == last.message.text
    assert last.usage.output_tokens > 0


async def test_a_call_and_its_result_by_the_responses_api(responses):
    asked = Message.user("Read the file notes.txt")
    events = await events_of(responses, asked, tools=(READ,))
    (call,) = events[-1].message.tool_uses
    assert (call.name, call.input) == ("read_file", {"path": "notes.txt"})
    assert [event.id for event in events if isinstance(event, ToolCallStarted)] == [call.id]
    result = Message.tool([ToolResult(tool_use_id=call.id, content="buy milk")])
    last = (await events_of(responses, asked, events[-1].message, result, tools=(READ,)))[-1]
    assert "milk" in last.message.text


async def test_too_long_a_conversation_by_the_responses_api(responses):
    with pytest.raises(ContextOverflowError) as caught:
        await events_of(responses, Message.user("word " * 6000))
    assert caught.value.tokens > caught.value.limit
