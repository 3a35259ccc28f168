"""Models behind the Chat Completions API: OpenAI's, and every server that speaks it.

The official SDK makes the requests. The stream is read by `littleghost.models.chat_completions`, for the SDK's own reader does
not tell a stream that was cut from one that ended. The SDK is imported at the first call, never before.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from littleghost.errors import (
    ConfigurationError,
    ContextOverflowError,
    CredentialError,
    DependencyError,
    ModelError,
    ModelProtocolError,
    ModelRequestError,
    ModelUnavailableError,
    OutputLimitError,
)
from littleghost.events import ModelEvent
from littleghost.models.chat_completions import (
    AnswerStream,
    CutError,
    NotTheAPIError,
    ServerFaultError,
    chat_messages,
    chat_tools,
)
from littleghost.models.contract import Model, ModelRequest
from littleghost.models.retry import Again, RetryPolicy, retry_after, retrying

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_E = TypeVar("_E", bound=Exception)
_log = logging.getLogger(__name__)

__all__ = ["OpenAIModel"]

OPENAI_URL = "https://api.openai.com/v1"
CONNECT_SECONDS = 10.0
TAIL_SECONDS = 5.0
"""How long the usage and the end of a stream are waited for when the answer itself is complete."""
DRAIN_SECONDS = 0.25
SHOWN = 300
"""Characters of a provider's own message that an error repeats."""
OURS = frozenset({"messages", "model", "n", "stream", "tools"})
"""What settings cannot change: a call has one answer, streamed, to the messages and tools of the request."""
PER_REQUEST = ("extra_headers", "extra_query", "extra_body")
RETRIED = frozenset({408, 409, 429})
TRANSPORT = frozenset({"anyio", "h11", "h2", "httpcore", "httpcore2", "httpx", "httpx2"})


class OpenAIModel(Model):
    """A model of OpenAI, or of any server that speaks Chat Completions.

    A call is made again, with growing waits, when the server cannot be reached, is silent too long, answers 408, 409, 429 or 5xx,
    breaks off its answer or sends what is no answer; a ``Retry-After`` is obeyed.

    Args:
        model: Such as ``gpt-5``.
        base_url: Where the API is; ``OPENAI_BASE_URL`` or OpenAI's own by default.
        api_key: The key; ``OPENAI_API_KEY`` by default, also for another ``base_url``. A server of your own may need none.
        client: A client of your own to use instead; you close it.
        settings: Options of every call, such as ``temperature``; those of a request go first. ``None`` takes one back.
            ``extra_headers``, ``extra_query`` and ``extra_body`` are as in the SDK.
        max_retries: How often a call that failed is made again.
        timeout: Seconds without a byte from the server after which an attempt has failed.
        developer_role: What to call the role ``developer``; by default ``system`` for servers other than OpenAI's, many of which
            know no other.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        client: AsyncOpenAI | None = None,
        settings: Mapping[str, Any] | None = None,
        max_retries: int = RetryPolicy().retries,
        timeout: float = 600.0,
        developer_role: str | None = None,
    ) -> None:
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigurationError(
                "give either a client, or base_url and api_key, which the client has already"
            )
        self.model = model
        self.settings = _checked(settings or {})
        self._base_url = base_url
        self._api_key = api_key
        self._client = client
        self._timeout = timeout
        self._policy = RetryPolicy(retries=max_retries)
        self._developer = developer_role
        self._lock = threading.Lock()
        self._clients: dict[asyncio.AbstractEventLoop, tuple[AsyncOpenAI, AsyncGenerator[None]]] = {}

    def __repr__(self) -> str:
        return f"OpenAIModel({self.model!r}, host={self.host!r})"

    @property
    def name(self) -> str:
        return self.model

    @property
    def provider(self) -> str:
        return "openai"

    @property
    def host(self) -> str:
        """The host that is asked, without anything secret that a URL may hold."""
        url = str(self._client.base_url) if self._client is not None else self._base_url
        return (
            urlsplit(url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).hostname or "the model's server"
        )

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        def attempt(left: float | None) -> AsyncGenerator[ModelEvent]:
            return self._attempt(request, left)

        return retrying(attempt, self._policy, timeout=request.timeout)

    async def aclose(self) -> None:
        """Close the connections. A client that was passed in stays open. The model can be used again."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for loop, (_, lifetime) in clients.items():
            if loop is asyncio.get_running_loop():
                await lifetime.aclose()
            elif loop.is_running():  # in another thread; connections belong to their loop
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_close(lifetime), loop))

    async def _attempt(self, request: ModelRequest, left: float | None) -> AsyncGenerator[ModelEvent]:
        ends = None if left is None else asyncio.get_running_loop().time() + left
        answer = AnswerStream()
        async with AsyncExitStack() as stack:
            pieces = await self._open(stack, request, ends)
            while not answer.closed:
                piece = await self._read(pieces, answer, ends)
                for event in self._take(answer, piece):
                    yield event
            await _drain(pieces)
        for event in answer.end():
            yield event

    async def _open(
        self, stack: AsyncExitStack, request: ModelRequest, ends: float | None
    ) -> AsyncIterator[bytes]:
        """Send the request, and return the bytes of the answer as they come; ``stack`` closes it."""
        arguments = self._arguments(request)
        client = await self._ready()
        create = cast("Any", client.chat.completions.with_streaming_response.create)
        try:
            async with asyncio.timeout_at(ends):
                response = await stack.enter_async_context(create(**arguments))
        except Exception as error:
            raise self._failed(error, ends) from error
        return response.iter_bytes()

    async def _read(
        self, pieces: AsyncIterator[bytes], answer: AnswerStream, ends: float | None
    ) -> bytes | None:
        """Return the next bytes, or ``None`` at their end."""
        limit = ends
        if answer.finished:
            tail = asyncio.get_running_loop().time() + TAIL_SECONDS
            limit = tail if ends is None else min(ends, tail)
        try:
            async with asyncio.timeout_at(limit):
                return await anext(pieces, None)
        except Exception as error:
            if answer.finished:
                return None  # it is complete; only its usage is lost
            raise self._failed(error, ends) from error

    def _take(self, answer: AnswerStream, piece: bytes | None) -> Iterator[ModelEvent]:
        try:
            yield from answer.feed(piece)
        except CutError as error:
            raise Again(_caused(ModelUnavailableError(f"{self.host} broke off its answer"), error)) from None
        except ServerFaultError as error:
            raise self._refused(_status(error.body), error.body, {}) from None
        except NotTheAPIError:
            raise
        except ModelProtocolError as error:
            raise Again(error) from None

    # -- requests

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        settings = {**self.settings, **_checked(request.settings)}
        known = {name: value for name, value in settings.items() if value is not None}
        developer = self._developer or ("developer" if self._is_openai() else "system")
        arguments: dict[str, Any] = {name: known.pop(name) for name in PER_REQUEST if name in known}
        # Settings travel as they are, those that the SDK has no parameter for as well.
        arguments["extra_body"] = {**known, **arguments.get("extra_body", {})}
        if "stream_options" not in settings:
            arguments["stream_options"] = {"include_usage": True}
        arguments |= {
            "model": self.model,
            "messages": chat_messages(request.messages, developer=developer),
            "stream": True,
        }
        if request.tools:
            arguments["tools"] = chat_tools(request.tools)
        return arguments

    def _is_openai(self) -> bool:
        return f".{self.host}".endswith((".openai.com", ".openai.azure.com"))

    async def _ready(self) -> AsyncOpenAI:
        """Return the client of the running event loop; connections cannot move from one loop to another."""
        if self._client is not None:
            return self._client.with_options(max_retries=0)
        loop = asyncio.get_running_loop()
        known = self._clients.get(loop)
        if known is not None:
            return known[0]
        key = self._key()
        # Importing the SDK takes half a second, making a client a tenth; the event loop is not to stand still for that.
        client = await asyncio.to_thread(self._make, key)
        lifetime = _lifetime(client)
        await anext(lifetime)
        with self._lock:  # other loops are in other threads
            for other in [other for other in self._clients if other.is_closed()]:
                del self._clients[other]
            # Where another call was first, its client is taken, and this one goes unused.
            return self._clients.setdefault(loop, (client, lifetime))[0]

    def _make(self, key: str) -> AsyncOpenAI:
        openai = _import()
        client: AsyncOpenAI = openai.AsyncOpenAI(
            api_key=key,
            base_url=self._base_url,
            max_retries=0,
            timeout=openai.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout)),
            # The SDK's own wrapper closes itself in whatever loop the garbage collector finds running.
            http_client=openai.DefaultAsyncHttpxClient(),
        )
        _ = client.chat.completions.with_streaming_response  # it loads its parts as they are asked for
        return client

    def _key(self) -> str:
        key = self._api_key or os.environ.get("OPENAI_API_KEY", "").strip()
        if key:
            return key
        if self._base_url is None and not os.environ.get("OPENAI_BASE_URL"):
            raise CredentialError("there is no API key for OpenAI; set OPENAI_API_KEY, or pass api_key=")
        return "none"  # the SDK insists on one, a server without keys does not look at it

    # -- errors

    def _failed(self, error: Exception, ends: float | None = None) -> Exception:
        """Return what to raise for an exception of the SDK or of what is below it; `Again` around what may pass."""
        if isinstance(error, TimeoutError) and ends is not None and asyncio.get_running_loop().time() >= ends:
            mapped: Exception = ModelUnavailableError(
                f"{self.host} did not answer within the time that was left"
            )
        else:
            mapped = self._mapped(error)
        self._defuse(error)
        _caused(mapped.error if isinstance(mapped, Again) else mapped, error)
        return mapped

    def _mapped(self, error: Exception) -> Exception:
        openai = cast("Any", sys.modules["openai"])
        status = getattr(error, "status_code", None)
        if isinstance(error, openai.APIResponseValidationError):
            return Again(ModelProtocolError(f"{self.host} answered with what is no Chat Completions answer"))
        if isinstance(error, openai.APIStatusError):
            response = cast("Any", error).response
            return self._refused(status, cast("Any", error).body, response.headers)
        if isinstance(error, openai.APITimeoutError) or "Timeout" in type(error).__name__:
            return Again(ModelUnavailableError(f"{self.host} did not answer in time"))
        if isinstance(error, openai.APIConnectionError):
            return Again(
                ModelUnavailableError(f"{self.host} cannot be reached; check base_url and the network")
            )
        if isinstance(error, openai.APIError):
            return self._refused(None, cast("Any", error).body, {})
        if isinstance(error, openai.LengthFinishReasonError):
            return OutputLimitError("the answer was cut at the output limit")
        if isinstance(error, openai.ContentFilterFinishReasonError):
            return ModelRequestError("the provider's content filter refused the request")
        kind = type(error)
        if kind.__name__ in ("SubjectTokenProviderError", "OAuthError"):
            return CredentialError(f"the credentials for {self.host} could not be obtained ({kind.__name__})")
        if kind.__name__.startswith("WebSocket"):
            return Again(ModelUnavailableError(f"the connection to {self.host} broke"))
        if isinstance(error, openai.OpenAIError):
            # What the SDK raises without a class of its own is about how the client was set up.
            return ConfigurationError(f"the OpenAI client refuses: {self._safe(str(error))}")
        if isinstance(error, OSError) or kind.__module__.partition(".")[0] in TRANSPORT:
            return Again(ModelUnavailableError(f"the connection to {self.host} broke ({kind.__name__})"))
        if isinstance(error, TypeError | ValueError | RecursionError):
            return ModelRequestError(f"the request cannot be written as JSON ({kind.__name__})")
        return ModelError(f"the model call failed ({kind.__name__})")

    def _refused(self, status: int | None, body: Any, headers: Mapping[str, str]) -> Exception:
        """Return the error for a status or an error object; ``status`` is ``None`` for one in the middle of a stream."""
        fault = _fault(body)
        told = self._safe(fault["message"])
        words = {fault["code"], fault["type"]}
        if words & _OVERFLOW_CODES or _OVERFLOW.search(fault["message"]):
            return _overflow(fault)
        what = f"HTTP {status}" if status else "an error in its answer"
        if status in (401, 403) or "invalid_api_key" in words:
            hint = (
                "set OPENAI_API_KEY, or pass api_key="
                if status != 403
                else "it may not use this model, or not from here"
            )
            return CredentialError(f"{self.host} refused the API key ({what}); {hint}")
        if "insufficient_quota" in words:
            return ModelUnavailableError(
                f"{self.host}: the account's quota is used up ({what})", status=status
            )
        why = f": {told}" if told else ""
        if status is None or status >= 500 or status in RETRIED:
            after = retry_after(headers)
            reason = "is asked too often" if status == 429 else "failed"
            error = ModelUnavailableError(
                f"{self.host} {reason} ({what}){why}", status=status, retry_after=after
            )
            # A header of OpenAI's, which knows better than the status.
            return error if headers.get("x-should-retry") == "false" else Again(error, after=after)
        return ModelRequestError(f"{self.host} refused the request ({what}){why}", status=status)

    def _safe(self, text: str) -> str:
        """Return a provider's words as one short line without anything that looks like a key."""
        for key in (self._api_key, os.environ.get("OPENAI_API_KEY"), getattr(self._client, "api_key", None)):
            if isinstance(key, str) and len(key) >= 4:
                text = text.replace(key, "***")
        text = _SECRET.sub("***", text)
        text = " ".join(text.split())
        return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"

    def _defuse(self, error: Exception) -> None:
        """Make the cause safe to log: its own words may repeat the key, or hold a whole page."""
        if error.args:
            error.args = tuple(self._safe(part) if isinstance(part, str) else part for part in error.args)
        for name in ("message", "body"):
            if isinstance(value := getattr(error, name, None), str | dict):
                setattr(error, name, self._safe(value if isinstance(value, str) else str(cast("Any", value))))


def _import() -> Any:
    try:
        return importlib.import_module("openai")
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise  # it is there and broken, which its own words tell best
        raise DependencyError.missing("openai", "openai") from error


async def _lifetime(client: AsyncOpenAI) -> AsyncGenerator[None]:
    """Close ``client`` when this generator is closed, which an event loop that ends does by itself."""
    try:
        yield
    finally:
        await client.close()


async def _close(lifetime: AsyncGenerator[None]) -> None:
    await lifetime.aclose()


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Read what follows the end of an answer, for a moment, so that the connection can be used again."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in pieces:
                pass
    except Exception:  # noqa: BLE001 (the answer is complete)
        _log.debug("a connection could not be kept", exc_info=True)


def _caused(error: _E, cause: Exception) -> _E:
    error.__cause__ = cause
    return error


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``settings``, none of which takes over what is the library's part."""
    taken = sorted(OURS & settings.keys())
    if taken:
        raise ConfigurationError(f"settings may not hold {', '.join(taken)}: the request says that itself")
    return dict(settings)


_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW = re.compile(
    r"maximum context length|exceeds? the (?:available )?context (?:size|window|length)", re.IGNORECASE
)
_LIMIT = re.compile(r"(?:context (?:length|window|size) (?:is |of )?\(?|n_ctx\D{0,3})(\d+)", re.IGNORECASE)
_TOKENS = re.compile(
    r"(?:resulted in|requested(?: about)?|has|contains(?: at least)?|request \()\s*(\d+)(?: input)? tokens",
    re.IGNORECASE,
)
_SECRET = re.compile(r"\b(?:sk|pk|rk|key)[-_][A-Za-z0-9*_.-]{6,}|\bBearer\s+\S+", re.IGNORECASE)


def _fault(body: Any) -> dict[str, Any]:
    """Return an error object with ``message``, ``code`` and ``type`` as text, whatever form ``body`` has."""
    while isinstance(body, dict) and isinstance(
        inner := cast("dict[str, Any]", body).get("error"), dict | str
    ):
        body = cast("Any", inner)
    if not isinstance(body, dict):
        # A plain sentence may help; a page of HTML does not.
        text = body if isinstance(body, str) and not body.lstrip().startswith("<") else ""
        return {"message": text, "code": "", "type": ""}
    form = cast("dict[str, Any]", body)
    message = form.get("message") or form.get("detail") or ""
    text = {name: form[name] if isinstance(form.get(name), str) else "" for name in ("code", "type")}
    return {**form, **text, "message": message if isinstance(message, str) else str(message)}


def _status(body: Any) -> int | None:
    """Return the HTTP status that an error object names, or ``None``."""
    code = cast("dict[str, Any]", body).get("code") if isinstance(body, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else None


def _overflow(fault: Mapping[str, Any]) -> ContextOverflowError:
    tokens, limit = fault.get("n_prompt_tokens"), fault.get("n_ctx")
    if not isinstance(tokens, int):
        tokens = int(found[1]) if (found := _TOKENS.search(fault["message"])) else None
    if not isinstance(limit, int):
        limit = int(found[1]) if (found := _LIMIT.search(fault["message"])) else None
    numbers = f": {tokens} tokens, and it holds {limit}" if tokens is not None and limit is not None else ""
    return ContextOverflowError(
        f"the conversation does not fit the model's context window{numbers}; shorten it",
        tokens=tokens,
        limit=limit,
    )
