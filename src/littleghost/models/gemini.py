"""Gemini, by its own API or on Vertex AI.

The official SDK makes the requests and the credentials. The stream is read by `littleghost.models.gemini_format`, for the SDK's own
reader takes a stream that was cut for one that ended. The SDK is imported at the first call, never before.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, cast
from urllib.parse import urlsplit

from littleghost.errors import (
    ConfigurationError,
    ContextOverflowError,
    CredentialError,
    DependencyError,
    ModelProtocolError,
    ModelUnavailableError,
)
from littleghost.events import ModelEvent
from littleghost.models import network
from littleghost.models.clients import Clients, import_sdk
from littleghost.models.contract import Model, ModelRequest
from littleghost.models.event_streams import read_json
from littleghost.models.exchange import exchange
from littleghost.models.failures import Failures, fault_of
from littleghost.models.gemini_format import GeminiAnswer, camel, gemini_body
from littleghost.models.retry import Again, RetryPolicy, retrying
from littleghost.models.settings import checked, joined

__all__ = ["GeminiModel"]

CONNECT_SECONDS = 10.0
MAX_REFUSAL = 64 * 1024
OURS = frozenset(
    {"candidateCount", "contents", "continuationToken", "model", "systemInstruction", "toolConfig", "tools"}
)
"""What settings cannot change: a call has one answer, streamed, to the messages and tools of the request."""
HOSTS = {False: "generativelanguage.googleapis.com", True: "aiplatform.googleapis.com"}
KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")


class GeminiModel(Model):
    """A model of Google's Gemini API, or of Vertex AI.

    A call is made again, with growing waits, when the server cannot be reached, is silent too long, answers 408, 409, 429 or 5xx,
    breaks off its answer or sends what is no answer; the wait that it asks for is obeyed. An answer that is longer than one request
    may write (`CONTINUATION`) is asked for until it is whole.

    Args:
        model: Such as ``gemini-3-pro``.
        api_key: The key; ``GEMINI_API_KEY`` or ``GOOGLE_API_KEY`` by default. On Vertex AI credentials take its place.
        base_url: Where the API is, if not at Google's.
        vertex: Whether to ask Vertex AI.
        project: The project on Vertex AI; ``GOOGLE_CLOUD_PROJECT`` or that of the credentials by default.
        location: The location on Vertex AI; ``GOOGLE_CLOUD_LOCATION`` or ``global`` by default.
        credentials: Credentials of google-auth for Vertex AI; the application default by default.
        settings: Options of every call under the API's names, in camel case or with underscores, such as ``maxOutputTokens`` or
            ``thinkingConfig``; those of a request go first. ``None`` takes one back. ``extra_headers`` and ``extra_body`` are added
            to the request as they are.
        max_retries: How often a call that failed is made again.
        timeout: Seconds without a byte from the server after which an attempt has failed.
        keep_signatures: Whether to put the signatures of thoughts, which are opaque, into the metadata of answers, so that a run
            that is resumed goes on with them.
        context_window: Tokens that a request and its answer may have together, where you know.
    """

    capabilities = frozenset({"answer_format", "documents", "images", "keep_signatures", "tool_choice"})

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        vertex: bool = False,
        project: str | None = None,
        location: str | None = None,
        credentials: Any = None,
        settings: Mapping[str, Any] | None = None,
        max_retries: int = RetryPolicy().retries,
        timeout: float = 600.0,
        keep_signatures: bool = False,
        context_window: int | None = None,
    ) -> None:
        for name, value in (("project", project), ("location", location), ("credentials", credentials)):
            if value is not None and not vertex:
                raise ConfigurationError(f"{name} is of Vertex AI; pass vertex=True with it")
        if not model.strip() or re.search(r"[?&#%\s]|\.\.", model):
            raise ConfigurationError(f"{model!r} is no name of a model")
        if credentials is not None and api_key is not None:
            raise ConfigurationError("give either api_key or credentials")
        self.model = model
        self.settings = _settings(settings)
        self._api_key = api_key
        self._base_url = base_url
        self._vertex = vertex
        self._place = {"project": project, "location": location, "credentials": credentials}
        self._timeout = timeout
        self._keep = keep_signatures
        self.context_window = context_window
        self._policy = RetryPolicy(retries=max_retries)
        self._clients: Clients[_Client] = Clients(lambda client: client.aclose())

    def __repr__(self) -> str:
        return f"GeminiModel({self.model!r}, host={self.host!r})"

    @property
    def name(self) -> str:
        return self.model

    @property
    def provider(self) -> str:
        return "gcp.vertex_ai" if self._vertex else "gcp.gemini"

    @property
    def host(self) -> str:
        """The host that is asked, without anything secret that a URL may hold."""
        host = urlsplit(self._base_url).hostname if self._base_url is not None else None
        return host or HOSTS[self._vertex]

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        def attempt(left: float | None) -> AsyncGenerator[ModelEvent]:
            answer = GeminiAnswer(self.model, keep_signatures=self._keep)
            return exchange(
                lambda stack: self._send(stack, request, answer), answer, self._failures, left=left
            )

        return retrying(attempt, self._policy, timeout=request.timeout)

    async def aclose(self) -> None:
        """Close the connections. The model can be used again."""
        await self._clients.aclose()

    async def _send(
        self, stack: AsyncExitStack, request: ModelRequest, answer: GeminiAnswer
    ) -> AsyncIterator[bytes]:
        network.check_host(self.host)
        settings = joined(self.settings, _settings(request.settings), OURS)
        known = {name: value for name, value in settings.items() if value is not None}
        headers, extra = known.pop("extra_headers", None), known.pop("extra_body", None)
        body = gemini_body(
            request.messages,
            model=self.model,
            tools=request.tools,
            tool_choice=request.tool_choice,
            format=request.format,
            settings=known,
        )
        client = await self._clients.ready(self._make)

        async def open_one(token: str | None) -> Any:
            further = {"continuationToken": token} if token is not None else {}
            response = await client.open(self.model, {**body, **(extra or {}), **further}, headers)
            stack.push_async_callback(response.aclose)
            return response

        async def pieces(response: Any) -> AsyncIterator[bytes]:
            while True:
                async for piece in response.aiter_bytes():
                    yield piece
                yield b"\n\n"  # what one response left unended does not run into the next
                token = answer.go_on()
                if token is None:
                    return
                response = await open_one(token)

        return pieces(await open_one(None))

    def _make(self) -> _Client:
        options: dict[str, Any] = {"base_url": self._base_url} if self._base_url is not None else {}
        key = self._key()
        place = {name: value for name, value in self._place.items() if value is not None}
        return _Client({"vertexai": self._vertex, "api_key": key, **place}, options, self._timeout)

    def _key(self) -> str | None:
        if self._vertex:
            return self._api_key
        key = self._api_key or next((key for name in KEYS if (key := os.environ.get(name, "").strip())), None)
        if key is None:
            raise CredentialError("there is no API key for Gemini; set GEMINI_API_KEY, or pass api_key=")
        return key

    @property
    def _failures(self) -> Failures:
        return _GeminiFailures(
            self.host,
            api="streamGenerateContent",
            key_hint="check the credentials of Vertex AI"
            if self._vertex
            else "set GEMINI_API_KEY, or pass api_key=",
            secrets=(self._api_key, *map(os.environ.get, KEYS)),
        )


def _settings(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    apart = ("extra_headers", "extra_body")
    return checked(
        {name if name in apart else camel(name): value for name, value in (settings or {}).items()}, OURS
    )


# -- the SDK

_opened: ContextVar[list[Any]] = ContextVar("_opened")
"""Where a request that is being sent puts its response."""


class _Client:
    """A client of the SDK that sends a request and leaves the reading of its answer to us.

    The SDK is given an HTTP client that keeps a response, and shows the SDK an empty one in its place; so all that there is to know
    about addresses, versions and credentials is done by it.

    Args:
        arguments: Those of ``genai.Client``.
        options: Those of its ``HttpOptions``.
        timeout: Seconds of silence after which a response has failed.
    """

    def __init__(self, arguments: dict[str, Any], options: dict[str, Any], timeout: float) -> None:
        genai = import_sdk("google.genai", "gemini")
        self._types = import_sdk("google.genai.types", "gemini")
        self._http = _http_client(timeout)
        try:
            self._client = genai.Client(
                **arguments, http_options=self._types.HttpOptions(httpx_async_client=self._http, **options)
            )
        except ValueError as error:
            raise ConfigurationError(f"the Gemini client refuses: {str(error)[:200]}") from error

    async def open(self, model: str, body: dict[str, Any], headers: Mapping[str, str] | None) -> Any:
        """Return the response to a request, its body unread."""
        # The SDK would write half a character, and NaN, which no server reads.
        json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
        config = self._types.GenerateContentConfig(
            http_options=self._types.HttpOptions(extra_body=body, headers=dict(headers or {})),
            automatic_continuation=False,
        )
        kept: list[Any] = []
        before = _opened.set(kept)
        try:
            # The contents are replaced by those of the body.
            chunks = await self._client.aio.models.generate_content_stream(
                model=model, contents="-", config=config
            )
            async for _ in chunks:
                pass
        except BaseException:
            for response in kept:
                await response.aclose()
            raise
        finally:
            _opened.reset(before)
        (response,) = kept
        if response.status_code != 200:
            try:
                raise _RefusedError(response.status_code, response.headers, await _beginning(response))
            finally:
                await response.aclose()
        return response

    async def aclose(self) -> None:
        await self._http.aclose()
        self._client.close()


def _http_client(timeout: float) -> Any:
    """Return an HTTP client that keeps the response to a request whose `_opened` is set, and returns an empty one."""
    try:
        httpx = import_sdk("httpx2", "gemini")  # which the SDK needs
    except DependencyError:
        httpx = import_sdk("httpx", "gemini")  # which it needed before, and takes in its place
    limits = httpx.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)).as_dict()
    client: Any = httpx.AsyncClient(follow_redirects=True)
    send = client.send

    async def keeping(request: Any, **kwargs: Any) -> Any:
        request.extensions["timeout"] = limits
        response: Any = await send(request, **kwargs)
        kept = _opened.get(None)
        if kept is None:
            return response
        kept.append(response)
        return httpx.Response(200, request=request)

    client.send = keeping
    return client


class _RefusedError(Exception):
    """A response with another status than success."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.headers = headers
        self.told = body


async def _beginning(response: Any) -> bytes:
    """Return the first `MAX_REFUSAL` bytes of a body, at least, where it has as many."""
    pieces: list[bytes] = []
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        if sum(map(len, pieces)) >= MAX_REFUSAL:
            break
    return b"".join(pieces)


class _GeminiFailures(Failures):
    """Knows what Google's error objects say beside their status, and the errors of its credentials."""

    def of_sdk(self, error: Exception) -> Exception | None:
        if isinstance(error, _RefusedError):
            body, error.told = error.told, b""
            try:
                told: Any = read_json(body)
            except ModelProtocolError:
                told = body.decode(errors="replace")
            return self.refused(error.status, told, error.headers)
        if type(error).__module__.startswith("google.auth."):
            name = type(error).__name__
            if name == "TransportError":
                return Again(ModelUnavailableError(f"the credentials for {self._host} could not be fetched"))
            return CredentialError(f"the credentials for {self._host} could not be obtained ({name})")
        return None

    def refused(self, status: int | None, body: Any, headers: Mapping[str, str]) -> Exception:
        while isinstance(body, list) and body:
            body = cast("list[Any]", body)[0]
        fault = fault_of(body)
        details = [
            cast("dict[str, Any]", one)
            for one in cast("list[Any]", fault["details"] if isinstance(fault.get("details"), list) else [])
            if isinstance(one, dict)
        ]
        found = _OVERFLOW.search(fault["message"])
        if found is not None:
            tokens, limit = int(found[1]), int(found[2])
            return ContextOverflowError(
                f"the conversation does not fit the model's context window: {tokens} tokens, and it holds {limit}; shorten it",
                tokens=tokens,
                limit=limit,
            )
        if any(one.get("reason") in _KEY_REASONS for one in details) or _KEY.search(fault["message"]):
            return CredentialError(f"{self._host} refused the API key (HTTP {status}); {self._hint}")
        if status == 429 and _PER_DAY.search(str(details)):
            return ModelUnavailableError(
                f"{self._host}: the quota of the day is used up (HTTP 429)", status=429
            )
        after = next((wait for one in details if (wait := _delay(one.get("retryDelay"))) is not None), None)
        if after is not None and "retry-after" not in headers:
            headers = {**headers, "retry-after": str(after)}
        return super().refused(status, body, headers)


_OVERFLOW = re.compile(
    r"input token count (?:is |\()(\d+)\D{1,80}?(?:supports up to |allowed \()(\d+)", re.IGNORECASE
)
_KEY = re.compile(r"\bAPI key (?:not valid|expired|not found)", re.IGNORECASE)
_KEY_REASONS = frozenset({"API_KEY_INVALID", "API_KEY_EXPIRED"})
_PER_DAY = re.compile(r"PerDay", re.IGNORECASE)


def _delay(value: Any) -> float | None:
    """Return the seconds of a ``RetryInfo``, such as ``34.07s``."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)s", value) if isinstance(value, str) else None
    return float(found[1]) if found else None
