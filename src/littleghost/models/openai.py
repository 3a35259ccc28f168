"""Models behind the Chat Completions API: OpenAI's, and every server that speaks it.

The official SDK makes the requests. The stream is read by `littleghost.models.chat_completions`, for the SDK's own reader does
not tell a stream that was cut from one that ended. The SDK is imported at the first call, never before.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from littleghost.errors import ConfigurationError, CredentialError
from littleghost.events import ModelEvent
from littleghost.models import network
from littleghost.models.chat_completions import (
    ChatAnswer,
    chat_choice,
    chat_format,
    chat_messages,
    chat_tools,
)
from littleghost.models.clients import Clients, import_sdk
from littleghost.models.contract import Model, ModelRequest
from littleghost.models.exchange import exchange
from littleghost.models.failures import Failures
from littleghost.models.retry import RetryPolicy, retrying
from littleghost.models.settings import checked, joined

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIModel"]

OPENAI_URL = "https://api.openai.com/v1"
CONNECT_SECONDS = 10.0
OURS = frozenset({"messages", "model", "n", "stream", "tools"})
"""What settings cannot change: a call has one answer, streamed, to the messages and tools of the request."""
PER_REQUEST = ("extra_headers", "extra_query", "extra_body")


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
        capabilities: What the server can, where that is less than what OpenAI's can; see `Model`.
        context_window: Tokens that a request and its answer may have together, where you know.
    """

    capabilities = frozenset({"tool_choice", "answer_format", "images", "documents"})

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
        capabilities: Iterable[str] | None = None,
        context_window: int | None = None,
    ) -> None:
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigurationError(
                "give either a client, or base_url and api_key, which the client has already"
            )
        self.model = model
        self.settings = checked(settings, OURS)
        self._base_url = base_url
        self._api_key = api_key
        self._client = client
        self._timeout = timeout
        self._policy = RetryPolicy(retries=max_retries)
        self._developer = developer_role
        if capabilities is not None:
            self.capabilities = frozenset(capabilities)
        self.context_window = context_window
        self._clients: Clients[AsyncOpenAI] = Clients(lambda client: client.close())

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
            return exchange(lambda stack: self._send(stack, request), ChatAnswer(), self._failures, left=left)

        return retrying(attempt, self._policy, timeout=request.timeout)

    async def aclose(self) -> None:
        """Close the connections. A client that was passed in stays open. The model can be used again."""
        await self._clients.aclose()

    async def _send(self, stack: AsyncExitStack, request: ModelRequest) -> AsyncIterator[bytes]:
        network.check_host(self.host)
        arguments = self._arguments(request)
        client = await self._ready()
        create = cast("Any", client.chat.completions.with_streaming_response.create)
        response = await stack.enter_async_context(create(**arguments))
        return response.iter_bytes()

    # -- requests

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        settings = joined(self.settings, request.settings, OURS)
        known = {name: value for name, value in settings.items() if value is not None}
        developer = self._developer or ("developer" if self._is_openai() else "system")
        arguments: dict[str, Any] = {name: known.pop(name) for name in PER_REQUEST if name in known}
        if request.tools and request.tool_choice != "auto" and "tool_choice" in self.capabilities:
            known["tool_choice"] = chat_choice(request.tool_choice)
        if request.format is not None:
            known["response_format"] = chat_format(request.format)
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
        return await self._clients.ready(self._make)

    def _make(self) -> AsyncOpenAI:
        key = self._key()
        openai = import_sdk("openai", "openai")
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

    @property
    def _failures(self) -> Failures:
        return Failures(
            self.host,
            api="Chat Completions",
            key_hint="set OPENAI_API_KEY, or pass api_key=",
            sdk="openai",
            secrets=(
                self._api_key,
                os.environ.get("OPENAI_API_KEY"),
                getattr(self._client, "api_key", None),
            ),
        )
