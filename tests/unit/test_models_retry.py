"""When a call is made again, how long is waited, and that every exception of the SDK is mapped."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from email.utils import formatdate
from typing import Any

import pytest

from littleghost.errors import (
    ConfigurationError,
    ContextOverflowError,
    CredentialError,
    DependencyError,
    LittleGhostError,
    ModelError,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailableError,
    OutputLimitError,
)
from littleghost.events import Retrying, TextDelta
from littleghost.message import Message
from littleghost.models.contract import ModelRequest
from littleghost.models.openai import OpenAIModel
from littleghost.models.retry import Again, RetryPolicy, retry_after, retrying


def test_waits_grow_with_full_jitter():
    policy = RetryPolicy(retries=100, base=0.5, longest=4.0)
    assert [policy.delay(n, jitter=lambda: 1.0) for n in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert policy.delay(3, jitter=lambda: 0.0) == 0.0
    assert policy.delay(100, jitter=lambda: 1.0) == 4.0
    assert policy.delay(101) is None
    delays = [policy.delay(3) for _ in range(200)]
    assert len(set(delays)) > 100
    assert all(0 <= delay <= 2 for delay in delays)


def test_a_server_that_says_when_is_obeyed():
    policy = RetryPolicy(retries=3, base=0.5, patience=30)
    assert policy.delay(1, 10, jitter=lambda: 0.0) == 10
    assert policy.delay(1, 10, jitter=lambda: 1.0) == 10.5
    assert policy.delay(1, 30.1) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3),
        ({"retry-after": " 2.5 "}, 2.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({"retry-after": "-4"}, 0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": formatdate(1_000_030, usegmt=True)}, 30),
        ({"retry-after": formatdate(999_000, usegmt=True)}, 0),
        ({"retry-after": "Fri, 99 Foo 2026 99:99:99 GMT"}, None),
    ],
    ids=str,
)
def test_retry_after(headers: dict[str, str], seconds: float | None):
    assert retry_after(headers, now=lambda: 1_000_000) == seconds


async def played(
    *errors: Exception, policy: RetryPolicy, timeout: float | None = None
) -> tuple[list[Any], list[float]]:
    left = list(errors)
    waits: list[float] = []

    async def attempt(_: float | None):
        yield TextDelta(text="a")
        if left:
            raise left.pop(0)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    return [
        event async for event in retrying(attempt, policy, timeout=timeout, jitter=lambda: 1.0, sleep=sleep)
    ], waits


async def test_attempts():
    policy = RetryPolicy(retries=2, base=1)
    down = ModelUnavailableError("down")
    events, waits = await played(Again(down), Again(down, after=7), policy=policy)
    assert waits == [1, 8]
    assert [event for event in events if type(event) is Retrying] == [
        Retrying(attempt=1, delay=1, error="down"),
        Retrying(attempt=2, delay=8, error="down"),
    ]
    with pytest.raises(ModelUnavailableError) as caught:
        await played(*[Again(down)] * 3, policy=policy)
    assert caught.value is down
    with pytest.raises(ModelRequestError):
        await played(ModelRequestError("no"), policy=policy)
    with pytest.raises(ModelUnavailableError):
        await played(Again(down, after=5), policy=policy, timeout=4)


async def test_an_attempt_is_closed_with_the_call():
    closed: list[int] = []
    attempts: list[Any] = []  # held, so that no garbage collector closes them

    async def attempt():
        try:
            yield TextDelta(text="a")
            if len(attempts) == 1:
                raise Again(ModelUnavailableError("down"))
            yield TextDelta(text="b")
        finally:
            closed.append(len(attempts))

    def begun(_: float | None) -> Any:
        attempts.append(attempt())
        return attempts[-1]

    events = retrying(begun, RetryPolicy(base=0))
    for _ in range(3):
        await anext(events)
    assert closed == [1]
    await events.aclose()
    assert closed == [1, 2]


async def test_the_time_that_is_left_shrinks():
    seen: list[float | None] = []

    async def attempt(left: float | None):
        seen.append(left)
        time.sleep(0.02)
        if len(seen) < 3:
            raise Again(ModelUnavailableError("down"))
        yield TextDelta(text="a")

    policy = RetryPolicy(retries=5, base=0)
    assert [event async for event in retrying(attempt, policy, timeout=50)][-1] == TextDelta(text="a")
    assert 50 >= seen[0] > seen[1] + 0.015 > seen[2] + 0.03


# -- the SDK's exceptions

SDK: dict[str, type[LittleGhostError] | None] = {
    "OpenAIError": ConfigurationError,
    "APIError": ModelUnavailableError,
    "APIConnectionError": ModelUnavailableError,
    "APITimeoutError": ModelUnavailableError,
    "APIResponseValidationError": ModelProtocolError,
    "APIStatusError": None,  # by status, below
    "AuthenticationError": CredentialError,
    "BadRequestError": ModelRequestError,
    "ConflictError": ModelUnavailableError,
    "ContentFilterFinishReasonError": ModelRequestError,
    "InternalServerError": ModelUnavailableError,
    "InvalidWebhookSignatureError": ModelRequestError,  # never from a model call
    "LengthFinishReasonError": OutputLimitError,
    "NotFoundError": ModelRequestError,
    "OAuthError": CredentialError,
    "PermissionDeniedError": CredentialError,
    "RateLimitError": ModelUnavailableError,
    "SubjectTokenProviderError": CredentialError,
    "UnprocessableEntityError": ModelRequestError,
    "WebSocketConnectionClosedError": ModelUnavailableError,
    "WebSocketQueueFullError": ModelUnavailableError,
}
STATUSES = {
    400: ModelRequestError,
    401: CredentialError,
    403: CredentialError,
    404: ModelRequestError,
    408: ModelUnavailableError,
    409: ModelUnavailableError,
    413: ModelRequestError,
    418: ModelRequestError,
    422: ModelRequestError,
    429: ModelUnavailableError,
    500: ModelUnavailableError,
    503: ModelUnavailableError,
    529: ModelUnavailableError,
}


def walk(cls: type[BaseException]) -> set[type[BaseException]]:
    return {cls}.union(*(walk(child) for child in cls.__subclasses__()))


def classes_of(space: Any) -> set[type[Exception]]:
    values = [getattr(space, name) for name in getattr(space, "__all__", list(vars(space)))]
    return {value for value in values if inspect.isclass(value) and issubclass(value, Exception)}


def made(cls: type[Any], status: int = 400, body: object = None) -> Any:
    """An instance, as the SDK makes it."""
    import httpx2

    request = httpx2.Request("POST", "http://model.test/v1/chat/completions")
    error = cls.__new__(cls)
    Exception.__init__(error, "something")
    response = httpx2.Response(getattr(cls, "status_code", None) or status, request=request)
    for name, value in {
        "response": response,
        "status_code": response.status_code,
        "body": body,
        "message": "something",
        "request": request,
    }.items():
        if name in {"response", "status_code"} and not hasattr(cls, "__annotations__"):
            continue
        setattr(error, name, value)
    return error


def mapped(error: Exception) -> BaseException:
    raised = OpenAIModel("tiny", base_url="http://model.test/v1")._failures.of(error)
    inner = raised.error if isinstance(raised, Again) else raised
    assert inner.__cause__ is error
    assert isinstance(inner, ModelError | CredentialError | ConfigurationError)
    assert isinstance(raised, Again) == isinstance(inner, ModelUnavailableError | ModelProtocolError)
    return inner


@pytest.fixture(autouse=True)
def need_openai(require) -> None:
    import importlib.util

    require(importlib.util.find_spec("openai"), "openai", "pip install 'littleghost[openai]'")


def test_every_exception_of_the_sdk_is_mapped():
    import openai
    import openai._exceptions

    public = {cls.__name__: cls for cls in classes_of(openai) | classes_of(openai._exceptions)}
    assert sorted(public) == sorted(SDK)
    for name, expected in SDK.items():
        if expected is not None:
            assert type(mapped(made(public[name], status=503))) is expected, name
    # Those of its other parts, which are loaded as they are needed, are no model calls; they are mapped nevertheless.
    for cls in walk(openai.OpenAIError):
        mapped(made(cls, status=503))


@pytest.mark.parametrize(("status", "expected"), STATUSES.items())
def test_every_status_is_mapped(status: int, expected: type[LittleGhostError]):
    import openai

    error = mapped(made(openai.APIStatusError, status))
    assert type(error) is expected
    assert getattr(error, "status", status) == status


def test_an_overflow_is_told_by_any_status():
    import openai

    body = {"code": "context_length_exceeded", "message": "too long"}
    assert type(mapped(made(openai.APIStatusError, 400, body))) is ContextOverflowError
    assert type(mapped(made(openai.APIStatusError, 413, {"error": body}))) is ContextOverflowError


def test_every_exception_of_the_http_client_is_mapped():
    import httpcore2
    import httpx2

    for cls in classes_of(httpx2) | classes_of(httpcore2):
        assert type(mapped(made(cls))) is ModelUnavailableError, cls
    for error in (OSError(5, "x"), ConnectionResetError(), TimeoutError()):
        assert type(mapped(error)) is ModelUnavailableError


# -- the SDK as a dependency


def test_the_sdk_is_not_loaded_before_it_is_used():
    code = (
        "import sys; from littleghost.models.openai import OpenAIModel; OpenAIModel('m'); "
        "from littleghost.models.resolve import resolve_model; resolve_model('openai:m'); "
        "sys.exit(any(m in sys.modules for m in ('openai', 'httpx', 'httpx2', 'pydantic')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_missing_sdk_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "openai"]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "openai":
                raise ModuleNotFoundError("No module named 'openai'", name="openai")

    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    model = OpenAIModel("m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(DependencyError, match=r"littleghost\[openai\]"):
        await anext(model.stream(ModelRequest(messages=[Message.user("x")])))


def test_a_model_shows_no_secret():
    model = OpenAIModel(
        "m", base_url="https://user:pass-word@host.test/v1?key=abc", api_key="sk-secret-123456"
    )
    assert repr(model) == "OpenAIModel('m', host='host.test')"
