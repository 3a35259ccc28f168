"""GeminiModel against a server that speaks Gemini: what the conformance kit does not ask of every model."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator
from typing import Any

import pytest

from littleghost import Agent, MemoryStore, Runtime, resolve_model, tool
from littleghost.content import Reasoning, ToolResult, ToolUse
from littleghost.errors import (
    ConfigurationError,
    ContextOverflowError,
    CredentialError,
    DependencyError,
    ModelError,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailableError,
)
from littleghost.events import ModelEnded, Retrying
from littleghost.message import Message
from littleghost.models.contract import ModelRequest, ToolSpec
from littleghost.models.gemini import GeminiModel
from littleghost.models.gemini_format import NO_SIGNATURE
from littleghost.models.retry import RetryPolicy
from littleghost.testing import GeminiDialect, ModelServer, Reply, Said
from littleghost.usage import Usage

KEY = "AIzaSyVerySecret0123456789"
HI = Said(text=("Hi",))
HELLO = ModelRequest(messages=[Message.user("Hello")])
VARIABLES = (
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION",
    "GOOGLE_GENAI_USE_VERTEXAI",
)


@pytest.fixture(autouse=True)
def sdk(require: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    require(importlib.util.find_spec("google"), "google-genai", "pip install 'littleghost[gemini]'")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(GeminiDialect()) as server:
        yield server
        assert server.left == 0


@pytest.fixture
async def model(server: ModelServer) -> AsyncIterator[GeminiModel]:
    model = made(server)
    yield model
    await model.aclose()


def made(server: ModelServer, name: str = "gemini-3-pro", **options: Any) -> GeminiModel:
    model = GeminiModel(name, base_url=server.url, **({"api_key": KEY} | options))
    model._policy = RetryPolicy(retries=options.get("max_retries", 2), base=0.001)
    return model


async def events_of(model: GeminiModel, request: ModelRequest = HELLO) -> list[Any]:
    return [event async for event in model.stream(request)]


async def ended(model: GeminiModel, request: ModelRequest = HELLO) -> ModelEnded:
    return (await events_of(model, request))[-1]


def refused(status: int, message: str = "no", reason: str = "", *details: dict[str, Any]) -> Reply:
    fault = {"code": status, "message": message, "status": reason, "details": list(details)}
    return Reply(
        status=status, pieces=(json.dumps({"error": fault}).encode(),), content_type="application/json"
    )


def chunks(*forms: Any) -> Reply:
    return Reply(pieces=tuple(b"data: " + json.dumps(form).encode() + b"\r\n\r\n" for form in forms))


def part(text: str, **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"text": text}]}, **fields}]}


# -- what is sent


async def test_a_request_and_its_answer(server, model):
    server.play(Said(text=("Hel", "lo"), usage=Usage(input_tokens=3, output_tokens=2, cache_read_tokens=4)))
    request = ModelRequest(
        messages=[Message.system("Be brief."), Message.user("Hi")],
        tools=(ToolSpec(name="now", description="Now.", schema={"type": "object", "properties": {}}),),
        settings={"top_p": 0.5, "extra_headers": {"x-team": "seven"}, "extra_body": {"store": False}},
    )
    last = await ended(model, request)
    assert last.message == Message.assistant("Hello")
    assert last.usage == Usage(input_tokens=3, output_tokens=2, cache_read_tokens=4)
    (sent,) = server.requests
    assert sent.path.endswith("/models/gemini-3-pro:streamGenerateContent?alt=sse")
    assert sent.body == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "tools": [{"functionDeclarations": [{"name": "now", "description": "Now."}]}],
        "generationConfig": {"topP": 0.5},
        "store": False,
    }
    assert (sent.headers["x-goog-api-key"], sent.headers["x-team"]) == (KEY, "seven")
    # It would be the server's time for the whole answer, and ours is that of silence.
    assert "x-server-timeout" not in sent.headers


async def test_one_connection_serves_several_calls(server, model):
    server.always(HI)
    for _ in range(3):
        await ended(model)
    assert server.connections == 1


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
async def test_the_key_of_the_environment(server, monkeypatch, variable):
    monkeypatch.setenv(variable, KEY)
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")  # speaks to the SDK, not to us
    model = made(server, api_key=None)
    server.play(HI)
    await ended(model)
    await model.aclose()
    assert server.requests[0].headers["x-goog-api-key"] == KEY
    assert "/projects/" not in server.requests[0].path


async def test_without_a_key_nothing_is_sent(server):
    with pytest.raises(CredentialError, match="GEMINI_API_KEY"):
        await ended(made(server, api_key=None))
    assert server.requests == []


async def test_vertex_is_asked_with_credentials_at_its_own_place(server):
    from google.oauth2.credentials import Credentials

    model = made(
        server, api_key=None, vertex=True, project="p", location="l", credentials=Credentials(token="tok")
    )
    server.play(HI)
    await ended(model)
    await model.aclose()
    (sent,) = server.requests
    assert "/projects/p/locations/l/publishers/google/models/gemini-3-pro:stream" in sent.path
    assert sent.headers["authorization"] == "Bearer tok"
    assert "x-goog-api-key" not in sent.headers
    assert (model.provider, made(server).provider) == ("gcp.vertex_ai", "gcp.gemini")


async def test_credentials_that_cannot_be_had(server):
    from google.oauth2.credentials import Credentials

    model = made(
        server, api_key=None, vertex=True, project="p", location="l", credentials=Credentials(token=None)
    )
    with pytest.raises(CredentialError, match="RefreshError"):
        await ended(model)
    await model.aclose()
    assert server.requests == []


def test_arguments_that_contradict_each_other():
    for name, value in (("project", "p"), ("location", "l"), ("credentials", object())):
        with pytest.raises(ConfigurationError, match=f"{name} is of Vertex AI"):
            GeminiModel("gemini-3-pro", **{name: value})
    with pytest.raises(ConfigurationError, match="either api_key or credentials"):
        GeminiModel("gemini-3-pro", vertex=True, api_key="k", credentials=object())
    for name in ("", " ", "a/../b", "gemini?alt=json", "a b"):
        with pytest.raises(ConfigurationError, match="no name of a model"):
            GeminiModel(name)
    for name in ("system_instruction", "tools", "candidateCount", "candidate_count"):
        with pytest.raises(ConfigurationError, match="settings may not hold"):
            GeminiModel("gemini-3-pro", settings={name: 1})


def test_names_of_models():
    for text, host, provider in (
        ("gemini:gemini-3-pro", "generativelanguage.googleapis.com", "gcp.gemini"),
        ("vertex:gemini-3-pro", "aiplatform.googleapis.com", "gcp.vertex_ai"),
    ):
        found = resolve_model(text)
        assert isinstance(found, GeminiModel)
        assert (found.name, found.host, found.provider) == ("gemini-3-pro", host, provider)
        assert repr(found) == f"GeminiModel('gemini-3-pro', host='{host}')"


async def test_without_the_sdk_it_says_what_to_install(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "google.genai", None)
    with pytest.raises(DependencyError, match=r"littleghost\[gemini\]"):
        await ended(made(server))


def test_making_a_model_imports_no_sdk():
    code = "import sys, littleghost; littleghost.resolve_model('gemini:x'); assert 'google.genai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), object(), "\ud83d"], ids=["nan", "inf", "object", "half"]
)
async def test_what_is_no_json_is_not_sent(server, model, value):
    with pytest.raises(ModelRequestError, match="JSON"):
        await ended(model, ModelRequest(messages=HELLO.messages, settings={"seed": value}))
    assert server.requests == []


# -- what goes wrong


async def test_the_wait_that_google_asks_for_is_obeyed(server, model):
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.25s"}
    server.play(refused(429, "slow down", "RESOURCE_EXHAUSTED", {"@type": "x"}, info), HI)
    first, *_ = await events_of(model)
    assert isinstance(first, Retrying)
    assert first.delay >= 0.25
    server.play(refused(503, "later", "UNAVAILABLE", {**info, "retryDelay": "3600s"}))
    with pytest.raises(ModelUnavailableError) as error:
        await ended(model)
    assert (error.value.retry_after, error.value.status) == (3600, 503)


async def test_a_quota_of_the_day_is_not_waited_for(server, model):
    quota = {
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
    }
    server.play(refused(429, "You exceeded your current quota", "RESOURCE_EXHAUSTED", quota))
    with pytest.raises(ModelUnavailableError, match="quota of the day") as error:
        await ended(model)
    assert error.value.status == 429
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        refused(400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT"),
        refused(400, "API key expired. Please renew the API key.", "INVALID_ARGUMENT"),
        refused(400, "no", "INVALID_ARGUMENT", {"@type": "x", "reason": "API_KEY_INVALID"}),
        refused(403, "Permission denied", "PERMISSION_DENIED"),
    ],
)
async def test_a_key_that_is_refused(server, model, reply):
    server.play(reply)
    with pytest.raises(CredentialError):
        await ended(model)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("message", "tokens", "limit"),
    [
        (
            "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
            1200000,
            1048576,
        ),
        (
            "Unable to submit request because the input token count is 32769 but model only supports up to 32768. Reduce it.",
            32769,
            32768,
        ),
        ("The input token count exceeds the maximum number of tokens allowed 1048576.", None, None),
    ],
)
async def test_a_conversation_that_is_too_long(server, model, message, tokens, limit):
    server.play(refused(400, message, "INVALID_ARGUMENT"))
    with pytest.raises(ContextOverflowError) as error:
        await ended(model)
    assert (error.value.tokens, error.value.limit) in ((tokens, limit), (tokens, 1048576))


async def test_an_error_in_a_list_is_an_error(server, model):
    fault = [{"error": {"code": 404, "message": "there is no such model", "status": "NOT_FOUND"}}]
    server.play(Reply(status=404, pieces=(json.dumps(fault).encode(),), content_type="application/json"))
    with pytest.raises(ModelRequestError, match="there is no such model"):
        await ended(model)


@pytest.mark.parametrize("body", [b"", b"<html>" + b"x" * 100_000, b"{", b"[]", b"null", b'"text"', b"\xff"])
async def test_errors_of_any_body_are_short_and_show_no_key(server, body):
    model = made(server, max_retries=0)
    for whole in (body, body + f" key={KEY}".encode()):
        server.play(Reply(status=500, pieces=(whole,)))
        with pytest.raises(ModelUnavailableError) as error:
            await ended(model)
        shown = "".join(traceback.format_exception(error.value)) + repr(vars(error.value.__cause__))
        assert KEY not in shown
        assert len(str(error.value)) < 600
        assert error.value.status == 500
    await model.aclose()


async def test_an_error_without_an_end_is_not_read_to_its_end(server):
    model = made(server, max_retries=0)
    server.play(Reply(status=500, pieces=(b"x" * 200_000,), end="silence"))
    with pytest.raises(ModelUnavailableError) as error:
        await ended(model)
    assert error.value.status == 500
    await asyncio.wait_for(server.gone.wait(), 20)
    await model.aclose()


async def test_a_call_that_the_model_wrote_wrongly_is_asked_for_again(server, model):
    server.play(chunks(part("Let me"), part("", finishReason="MALFORMED_FUNCTION_CALL")), HI)
    events = await events_of(model)
    assert [type(event).__name__ for event in events] == ["TextDelta", "Retrying", "TextDelta", "ModelEnded"]
    server.always(chunks(part("", finishReason="MALFORMED_FUNCTION_CALL")))
    with pytest.raises(ModelProtocolError, match="MALFORMED_FUNCTION_CALL"):
        await ended(model)


async def test_a_signature_that_is_missing_is_not_asked_again(server, model):
    server.play(chunks(part("", finishReason="MISSING_THOUGHT_SIGNATURE")))
    with pytest.raises(ModelRequestError, match="MISSING_THOUGHT_SIGNATURE"):
        await ended(model)
    assert len(server.requests) == 1


async def test_a_blocked_prompt(server, model):
    server.play(chunks({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}))
    last = await ended(model)
    assert (last.stop, last.message.content) == ("filter", ())


# -- answers that are longer than one request may write


async def test_a_long_answer_is_asked_for_until_it_is_whole(server, model):
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 2}
    for text, token in (("Once ", "t1"), ("upon ", "t2")):
        stop = {"finishReason": "CONTINUATION", "continuationToken": token}
        server.play(chunks({**part(text, **stop), "usageMetadata": usage}))
    server.play(chunks({**part("a time", finishReason="STOP"), "usageMetadata": usage}))
    events = await events_of(model)
    assert events[-1].message == Message.assistant("Once upon a time")
    assert events[-1].usage == Usage(input_tokens=15, output_tokens=6)
    first, *further = [sent.body for sent in server.requests]
    assert further == [{**first, "continuationToken": token} for token in ("t1", "t2")]
    assert server.connections == 1


async def test_a_long_answer_that_breaks_off_is_begun_anew(server, model):
    stop = {"finishReason": "CONTINUATION", "continuationToken": "t1"}
    server.play(chunks(part("Once ", **stop)), refused(503, "busy"), HI)
    events = await events_of(model)
    assert [type(event).__name__ for event in events] == ["TextDelta", "Retrying", "TextDelta", "ModelEnded"]
    assert events[-1].message.text == "Hi"
    assert "continuationToken" not in server.requests[-1].body


# -- runs


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


CALLED = Said(reasoning=("I add.",), calls=(ToolUse(id="c1", name="add", input={"a": 1, "b": 2}),))


async def test_a_run_sends_signatures_back_and_stores_none(server, model):
    store = MemoryStore()
    server.play(CALLED, Said(reasoning=("Easy.",), text=("3.",)), HI)
    agent, dialect = Agent(model, tools=[add]), server.dialect
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(agent, "Add.", session_id="s")
        assert run.text == "3."
        assert dialect.read(server.requests[1].body).reasoning == (dialect.proof(CALLED),)
        stored = (await store.load("s")).messages
        assert not any(type(block) is Reasoning for message in stored for block in message.content)
        await runtime.ask(agent, "And now?", session_id="s")
    assert server.refusals == []
    assert dialect.read(server.requests[2].body).reasoning == ()


async def test_the_server_refuses_a_call_without_any_signature(server):
    """As Gemini 3 does; so what stands for a signature is needed, and is accepted."""
    model = made(server, "gemini-2.5-flash")  # which is sent none
    messages = [
        Message.user("Add."),
        Message.assistant([ToolUse(id="c1", name="add", input={})]),
        Message.tool([ToolResult(tool_use_id="c1", content="3")]),
    ]
    with pytest.raises(ModelRequestError, match="missing a thought_signature in functionCall parts"):
        await ended(model, ModelRequest(messages=messages))
    await model.aclose()
    model = made(server)
    server.play(HI)
    await ended(model, ModelRequest(messages=messages))
    await model.aclose()
    assert server.requests[-1].body["contents"][1]["parts"][0]["thoughtSignature"] == NO_SIGNATURE


# -- loops and ends


def test_a_model_that_is_not_closed_closes_with_its_loop():
    async def main() -> None:
        async with ModelServer(GeminiDialect()) as server:
            server.play(HI)
            await ended(made(server))

    asyncio.run(main())
    gc.collect()  # an open connection is a ResourceWarning, and every warning an error


async def test_calls_at_once_have_each_their_own_answer(server, model):
    texts = [f"answer {number}" for number in range(20)]

    async def ask(text: str) -> tuple[str, str]:
        return text, (await ended(model, ModelRequest(messages=[Message.user(text)]))).message.text

    server.dialect.refusal = lambda body: server.play(Said(text=(body["contents"][0]["parts"][0]["text"],)))  # type: ignore[method-assign]
    for asked, answered in await asyncio.gather(*map(ask, texts)):
        assert asked == answered


async def test_a_cancelled_request_leaves_nothing_open(server, model):
    server.play(Reply(end="silence"))
    task = asyncio.create_task(ended(model))
    await asyncio.wait_for(server.sent.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.gone.wait(), 20)
    server.play(HI)
    assert (await ended(model)).message.text == "Hi"


async def test_nobody_there(server):
    model = GeminiModel("gemini-3-pro", base_url="http://127.0.0.1:9", api_key=KEY, max_retries=0)
    with pytest.raises(ModelError, match=r"127\.0\.0\.1"):
        await ended(model)
    await model.aclose()
