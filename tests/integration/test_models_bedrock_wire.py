"""BedrockModel against a server that speaks the binary event streams of AWS, with botocore reading them."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import traceback
from typing import Any

import pytest

from littleghost import transcript
from littleghost.content import ToolResult, ToolUse
from littleghost.errors import (
    ConfigurationError,
    ContextOverflowError,
    CredentialError,
    ModelError,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailableError,
)
from littleghost.events import ModelEnded, Retrying, TextDelta
from littleghost.message import Message
from littleghost.models import bedrock_calls
from littleghost.models.bedrock import BedrockModel
from littleghost.models.bedrock_calls import END, Call
from littleghost.models.contract import ModelRequest
from littleghost.models.retry import RetryPolicy
from littleghost.testing.model_bedrock import BedrockDialect, encoded, framed
from littleghost.testing.model_dialect import Said
from littleghost.testing.model_server import ModelServer, Reply
from littleghost.testing.model_trial import ADD

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HELLO = ModelRequest(messages=[Message.user("Hello")])
HI = Said(text=("Hi",))
MODEL = "us.anthropic.claude-sonnet-4-6"


@pytest.fixture(autouse=True)
def aws(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_BEARER_TOKEN_BEDROCK", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")


@pytest.fixture
async def server():
    async with ModelServer(BedrockDialect()) as server:
        yield server


@pytest.fixture
async def model(server):
    model = quick(BedrockModel(MODEL, base_url=server.url))
    yield model
    await model.aclose()


def quick(model: BedrockModel, retries: int = 2) -> BedrockModel:
    model._policy = RetryPolicy(retries=retries, base=0.001)
    return model


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """The calls that are made, each with its thread and an event for the moment it begins to connect."""
    made: list[Any] = []

    class Noted(Call):
        def __init__(self, work: Any) -> None:
            self.connects = asyncio.Event()
            made.append(self)
            super().__init__(work)

        def works_on(self, descriptor: int) -> None:
            super().works_on(descriptor)
            self._loop.call_soon_threadsafe(self.connects.set)

    monkeypatch.setattr("littleghost.models.bedrock.Call", Noted)
    return made


async def events_of(model: BedrockModel, request: ModelRequest = HELLO) -> list[Any]:
    return [event async for event in model.stream(request)]


async def ended(model: BedrockModel, request: ModelRequest = HELLO) -> ModelEnded:
    events = await events_of(model, request)
    assert type(events[-1]) is ModelEnded
    return events[-1]


async def over(call: Call) -> None:
    """Wait for the end of a call's thread."""
    await asyncio.to_thread(call.thread.join, 30)
    assert not call.thread.is_alive()


def exception(kind: str, message: str, **more: Any) -> bytes:
    headers = {":message-type": "exception", ":exception-type": kind, ":content-type": "application/json"}
    return framed(headers, json.dumps({"message": message, **more}).encode())


# -- requests and answers


async def test_a_plain_answer(server, model):
    server.play(Said(text=("Hel", "lo")))
    *deltas, last = await events_of(model)
    assert deltas == [TextDelta(text="Hel"), TextDelta(text="lo")]
    assert last.message == Message.assistant("Hello")
    (sent,) = server.requests
    assert sent.path == f"/model/{MODEL}/converse-stream"
    assert "/eu-west-1/bedrock/aws4_request" in sent.headers["authorization"]
    assert sent.body == {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]}


async def test_one_connection_serves_several_calls(server, model):
    server.always(HI)
    for _ in range(3):
        await ended(model)
    assert server.connections == 1


async def test_the_event_loop_does_not_wait_for_the_reader(server, model):
    """A reader that takes its time holds back the thread, and nothing is lost."""
    pieces = tuple(str(number) for number in range(3 * bedrock_calls.ROOM))
    server.play(Said(text=pieces))
    heard: list[str] = []
    async for event in model.stream(HELLO):
        if isinstance(event, TextDelta):
            heard.append(event.text)
            await asyncio.sleep(0)
    assert heard == list(pieces)


async def test_a_run_resumed_between_a_call_and_its_result(server):
    budget = {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 2000}}}
    model = quick(BedrockModel(MODEL, base_url=server.url, settings=budget))
    called = Said(reasoning=("I add.",), calls=(ToolUse(id="c1", name="add", input={"a": 1}),))
    server.play(called, HI, HI)
    message = (await ended(model, ModelRequest(messages=[Message.user("Go")], tools=(ADD,)))).message
    messages = [Message.user("Go"), message, Message.tool([ToolResult(tool_use_id="c1", content="1")])]
    await ended(model, ModelRequest(messages=messages, tools=(ADD,)))
    await ended(model, ModelRequest(messages=transcript.sanitise(messages), tools=(ADD,)))
    fields = [sent.body["additionalModelRequestFields"]["thinking"]["type"] for sent in server.requests]
    assert fields == ["enabled", "enabled", "disabled"]
    assert server.refusals == []
    await model.aclose()


async def test_without_the_way_out_a_resumed_run_would_be_refused(server, monkeypatch):
    """The rule is the provider's, and the server of these tests knows it."""
    monkeypatch.setattr("littleghost.models.bedrock_format._may_think", lambda *_: True)
    budget = {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 2000}}}
    model = quick(BedrockModel(MODEL, base_url=server.url, settings=budget))
    call = ToolUse(id="c1", name="add", input={"a": 1})
    stored = [Message.user("Go"), Message.assistant([call]), Message.tool([ToolResult(tool_use_id="c1")])]
    with pytest.raises(
        ModelRequestError, match="Expected `thinking` or `redacted_thinking`, but found `tool_use`"
    ):
        await ended(model, ModelRequest(messages=stored, tools=(ADD,)))
    await model.aclose()


def test_what_a_constructor_refuses():
    with pytest.raises(ConfigurationError, match="cache"):
        BedrockModel(MODEL, cache="1d")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="developer_role"):
        BedrockModel(MODEL, developer_role="boss")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="client"):
        BedrockModel(MODEL, client=object(), region="x")
    with pytest.raises(ConfigurationError, match="toolConfig"):
        BedrockModel(MODEL, settings={"toolConfig": {}})


def test_what_a_model_can():
    all_of_it = {"tool_choice", "answer_format", "images", "documents"}
    assert BedrockModel(MODEL).capabilities == all_of_it
    assert BedrockModel("amazon.nova-pro-v1:0").capabilities == all_of_it - {"answer_format"}
    assert BedrockModel("meta.llama3-1-8b-instruct-v1:0").capabilities == frozenset()
    assert BedrockModel("some.model", capabilities=["images"]).capabilities == {"images"}
    assert BedrockModel(MODEL).context_window == 1_000_000
    assert (
        repr(BedrockModel(MODEL))
        == f"BedrockModel({MODEL!r}, host='bedrock-runtime.eu-west-1.amazonaws.com')"
    )


# -- errors


@pytest.mark.parametrize(
    "kind", ["throttlingException", "modelStreamErrorException", "serviceUnavailableException", "internalServerException"]
)  # fmt: skip
async def test_an_error_that_may_pass_in_the_middle_of_an_answer(server, model, kind):
    pieces = (*BedrockDialect().answer(HI)[:2], exception(kind, "Slow down", originalStatusCode=400))
    server.play(Reply(pieces=pieces), HI)
    first, again, *_, last = await events_of(model)
    assert (first, type(again)) == (TextDelta(text="Hi"), Retrying)
    assert "Slow down" in again.error
    assert last.message.text == "Hi"


async def test_an_error_that_will_not_pass_in_the_middle_of_an_answer(server, model):
    server.play(Reply(pieces=(exception("validationException", "No such thing"),)))
    with pytest.raises(ModelRequestError, match="No such thing"):
        await ended(model)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (400, "ServiceQuotaExceededException", ModelUnavailableError),
        (400, "ValidationException", ModelRequestError),
        (404, "ResourceNotFoundException", ModelRequestError),
        (403, "ExpiredTokenException", CredentialError),
        (400, "ExpiredToken", CredentialError),
        (403, "InvalidSignatureException", CredentialError),
        (403, "AccessDeniedException", CredentialError),
    ],
)
async def test_a_code_that_will_not_pass(server, model, status, code, error):
    body = json.dumps({"__type": code, "message": "It is so."}).encode()
    server.play(Reply(status=status, pieces=(body,), content_type="application/json"))
    with pytest.raises(error):
        await ended(model)
    assert len(server.requests) == 1  # botocore's own retries are off


@pytest.mark.parametrize(("status", "code"), [(424, "ModelErrorException"), (429, "ModelNotReadyException")])
async def test_a_code_that_may_pass(server, model, status, code):
    body = json.dumps({"__type": code, "message": "It is so."}).encode()
    server.play(Reply(status=status, pieces=(body,), content_type="application/json"), HI)
    assert type((await events_of(model))[0]) is Retrying
    assert len(server.requests) == 2


async def test_context_overflow(server, model):
    told = "The model returned the following errors: prompt is too long: 210000 tokens > 200000 maximum"
    server.play(server.error(400, told))
    with pytest.raises(ContextOverflowError) as caught:
        await ended(model)
    assert (caught.value.tokens, caught.value.limit) == (210000, 200000)


async def test_damage_on_the_way_is_seen(server, model):
    """Every message has checksums, and botocore looks at them."""
    whole = b"".join(BedrockDialect().answer(HI))
    at = whole.index(b'"Hi"')
    for broken in (whole[:at] + b'"Ha"' + whole[at + 4 :], whole[:3] + b"\x99" + whole[4:]):
        server.play(Reply(pieces=(broken,)), HI)
        assert type((await events_of(model))[0]) is Retrying


async def test_a_message_that_claims_to_be_huge_is_refused(server, model):
    prelude = (2**31).to_bytes(4, "big") + bytes(4)
    import zlib

    server.play(
        Reply(pieces=(prelude + zlib.crc32(prelude).to_bytes(4, "big") + bytes(1000),), end="silence")
    )
    with pytest.raises(ModelProtocolError):
        await ended(quick(model, retries=0))


async def test_errors_keep_secrets_and_content_and_are_short(server, model, caplog):
    caplog.set_level(logging.INFO)
    quick(model, retries=0)
    for status in (400, 403, 500):
        server.play(server.error(status, f"secret {SECRET} " + "x" * 5000))
        with pytest.raises((ModelError, CredentialError)) as caught:
            await ended(model)
        shown = "".join(traceback.format_exception(caught.value)) + caplog.text + repr(model)
        assert SECRET not in shown
        assert len(str(caught.value)) < 600
    bad = ModelRequest(
        messages=[Message.user("My diary")], settings={"inferenceConfig": {"maxTokens": "diary"}, "x_y": 1}
    )
    with pytest.raises(
        ModelRequestError, match=r"has it: x_y, inferenceConfig\.maxTokens|inferenceConfig"
    ) as caught:
        await ended(model, bad)
    assert "diary" not in str(caught.value)


async def test_credentials_that_are_not_there(server, model, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(CredentialError, match="no AWS credentials"):
        await ended(model)
    assert server.requests == []
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(CredentialError, match="ProfileNotFound"):
        await ended(BedrockModel(MODEL, base_url=server.url))


async def test_no_region(server, monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(ConfigurationError, match="region="):
        await ended(BedrockModel(MODEL))
    model = BedrockModel(MODEL, region="us-west-2", base_url=server.url)
    server.play(HI)
    await ended(model)
    assert "/us-west-2/" in server.requests[0].headers["authorization"]
    await model.aclose()


async def test_requests_can_be_forbidden(server, model, monkeypatch):
    monkeypatch.setenv("LITTLEGHOST_MODEL_REQUESTS", "forbid")
    with pytest.raises(ConfigurationError, match="amazonaws"):
        await ended(BedrockModel(MODEL))
    server.play(HI)
    assert (await ended(model)).message.text == "Hi"


# -- threads and connections


@pytest.mark.parametrize("sent", [0, 2])
async def test_a_cancelled_call_closes_its_connection_and_ends_its_thread(server, model, calls, sent):
    """While it waits for an answer, and in the middle of one."""
    server.play(Reply(pieces=tuple(BedrockDialect().answer(HI)[:sent]), end="silence"))
    task = asyncio.create_task(ended(model))
    await server.sent.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(server.gone.wait(), 30)
    await over(calls[0])
    server.play(HI)
    assert (await ended(model)).message.text == "Hi"


async def test_leaving_early_closes_the_connection(server, model, calls):
    server.play(Reply(pieces=tuple(BedrockDialect().answer(HI)[:2]), end="silence"))
    stream = model.stream(HELLO)
    assert await anext(stream) == TextDelta(text="Hi")
    await stream.aclose()
    await asyncio.wait_for(server.gone.wait(), 30)
    await over(calls[0])


async def test_a_reader_that_leaves_many_events_behind_leaves_no_thread(server, model, calls):
    server.play(Said(text=tuple("x" * (4 * bedrock_calls.ROOM))))
    stream = model.stream(HELLO)
    await anext(stream)
    await stream.aclose()
    await over(calls[0])


async def test_a_call_that_is_cancelled_while_it_connects_ends_its_thread(calls, monkeypatch):
    """To an address where nobody answers: its queue of connections is full."""
    monkeypatch.setattr("littleghost.models.bedrock.CONNECT_SECONDS", 600.0)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        model = BedrockModel(MODEL, base_url=f"http://127.0.0.1:{full.getsockname()[1]}")
        task = asyncio.create_task(ended(model))
        while not calls:
            await asyncio.sleep(0)  # the task has not begun
        await calls[0].connects.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await over(calls[0])
        for one in waiting:
            one.close()


async def test_a_call_that_was_broken_off_spares_the_connection_that_another_took_over(server, model, calls):
    server.play(HI)
    await ended(model)
    await over(calls[0])
    server.play(Reply(pieces=tuple(BedrockDialect().answer(HI)[:2]), end="silence"))
    stream = model.stream(HELLO)
    assert await anext(stream) == TextDelta(text="Hi")
    calls[0].break_off()
    assert server.connections == 1
    assert calls[1]._socket is not None
    assert not server.gone.is_set()
    await stream.aclose()
    await asyncio.wait_for(server.gone.wait(), 30)


async def test_the_time_of_the_call_bounds_it(server, model, calls):
    server.play(Reply(pieces=tuple(BedrockDialect().answer(HI)[:1]), end="silence"))
    with pytest.raises(ModelUnavailableError, match="time that was left"):
        await ended(model, ModelRequest(messages=HELLO.messages, timeout=0.5))
    await over(calls[0])


async def test_silence(server):
    model = quick(BedrockModel(MODEL, base_url=server.url, timeout=0.1), retries=0)
    server.play(Reply(end="silence"), Reply(pieces=tuple(BedrockDialect().answer(HI)[:2]), end="silence"))
    for _ in range(2):
        with pytest.raises(ModelUnavailableError, match="in time"):
            await ended(model)
    await model.aclose()


async def test_only_the_usage_is_missing(server, model, monkeypatch):
    monkeypatch.setattr("littleghost.models.bedrock.TAIL_SECONDS", 0.05)
    server.play(Reply(pieces=tuple(BedrockDialect().answer(HI)[:-1]), end="silence"))
    last = await ended(model)
    assert (last.message.text, last.usage.total_tokens) == ("Hi", 0)


async def test_a_client_of_the_callers_own(server):
    import boto3
    from botocore.config import Config

    config = Config(retries={"total_max_attempts": 1})
    client = boto3.client("bedrock-runtime", region_name="us-east-1", endpoint_url=server.url, config=config)
    model = quick(BedrockModel(MODEL, client=client))
    assert model.host == "127.0.0.1"
    server.play(server.error(500), HI)
    assert type((await events_of(model))[0]) is Retrying
    await model.aclose()
    server.play(HI)
    answer = await asyncio.to_thread(  # the client goes on as it was, outside of our calls
        lambda: client.converse_stream(
            modelId=MODEL, messages=[{"role": "user", "content": [{"text": "Hi"}]}]
        )
    )
    kinds = [next(iter(event)) for event in answer["stream"]]
    assert kinds[0] == "messageStart"
    client.close()


async def test_a_call_tells_what_went_wrong_and_its_end():
    def work() -> Any:
        yield 1
        raise KeyError("no")

    call = Call(work)
    assert await call.next() == 1
    with pytest.raises(KeyError):
        await call.next()
    other = Call(lambda: iter([2]))
    assert [await other.next(), await other.next()] == [2, END]
    assert threading.current_thread() is not other.thread


def test_events_are_encoded_as_botocore_reads_them():
    from botocore.eventstream import EventStreamBuffer

    buffer = EventStreamBuffer()
    buffer.add_data(encoded("messageStart", {"role": "assistant"}))
    (message,) = list(buffer)
    assert message.headers[":event-type"] == "messageStart"
    assert json.loads(message.payload) == {"role": "assistant"}
