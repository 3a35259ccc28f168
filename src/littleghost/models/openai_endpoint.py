"""What the models behind OpenAI's APIs share: where they are, who asks, and how a call is made.

The official SDK makes the requests. The streams are read by modules of this package, for the SDK's own reader does not tell a stream
that was cut from one that ended. The SDK is imported at the first call, never before.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from littleghost.errors import ConfigurationError, CredentialError
from littleghost.events import ModelEvent
from littleghost.models import network
from littleghost.models.clients import Clients, import_sdk
from littleghost.models.contract import Model, ModelRequest
from littleghost.models.event_streams import Answer
from littleghost.models.exchange import exchange
from littleghost.models.failures import Failures
from littleghost.models.retry import RetryPolicy, retrying
from littleghost.models.settings import checked, joined

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIEndpoint"]

OPENAI_URL = "https://api.openai.com/v1"
CONNECT_SECONDS = 10.0
PER_REQUEST = ("extra_headers", "extra_query", "extra_body")


class OpenAIEndpoint(Model):
    """A model behind one of OpenAI's APIs, at OpenAI or elsewhere; see the subclasses for the arguments."""

    capabilities = frozenset({"tool_choice", "answer_format", "images", "documents"})
    api = ""
    """What the API is called."""
    ours: frozenset[str] = frozenset()
    """What settings cannot change, for the request says it."""

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
        capabilities: Collection[str] | None = None,
        context_window: int | None = None,
    ) -> None:
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigurationError(
                "give either a client, or base_url and api_key, which the client has already"
            )
        self.model = model
        self.settings = checked(settings, self.ours)
        if capabilities is not None:
            if unknown := sorted({*capabilities} - self.capabilities):
                raise ConfigurationError(f"capabilities: there is no {', '.join(unknown)} in this API")
            self.capabilities = frozenset(capabilities)
        self.context_window = context_window
        self._base_url = base_url
        self._api_key = api_key
        self._client = client
        self._timeout = timeout
        self._policy = RetryPolicy(retries=max_retries)
        self._clients: Clients[AsyncOpenAI] = Clients(lambda client: client.close())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, host={self.host!r})"

    @property
    def name(self) -> str:
        return self.model

    @property
    def provider(self) -> str:
        return "openai" if self.is_openai else self.host  # whose prices and whose names are another's

    @property
    def host(self) -> str:
        """The host that is asked, without anything secret that a URL may hold."""
        url = str(self._client.base_url) if self._client is not None else self._base_url
        return (
            urlsplit(url or os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).hostname or "the model's server"
        )

    @property
    def is_openai(self) -> bool:
        """Whether OpenAI itself is asked, or its models at Azure."""
        return f".{self.host}".endswith((".openai.com", ".openai.azure.com"))

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        def attempt(left: float | None) -> AsyncGenerator[ModelEvent]:
            return exchange(
                lambda stack: self._send(stack, request), self.answer(), self._failures, left=left
            )

        return retrying(attempt, self._policy, timeout=request.timeout)

    async def aclose(self) -> None:
        """Close the connections. A client that was passed in stays open. The model can be used again."""
        await self._clients.aclose()

    @abstractmethod
    def answer(self) -> Answer:
        """Return what reads an answer of the API."""

    @abstractmethod
    def arguments(self, request: ModelRequest, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a request's body. Of ``settings``, what is to be sent is among them."""

    @abstractmethod
    def resource(self, client: AsyncOpenAI) -> Any:
        """Return the part of the SDK that makes the requests."""

    async def _send(self, stack: AsyncExitStack, request: ModelRequest) -> AsyncIterator[bytes]:
        network.check_host(self.host)
        settings = joined(self.settings, request.settings, self.ours)
        options = {name: settings.pop(name) for name in PER_REQUEST if name in settings}
        body = self.arguments(request, settings)
        # Settings travel as they are, those that the SDK has no parameter for as well; what it insists on goes by name.
        named = {name: body.pop(name) for name in ("model", "messages", "input", "stream") if name in body}
        options |= {"extra_body": {**body, **(options.get("extra_body") or {})}}
        client = await self._ready()
        create = self.resource(client).with_streaming_response.create
        response = await stack.enter_async_context(create(**named, **options))
        return response.iter_bytes()

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
        _ = self.resource(client).with_streaming_response  # it loads its parts as they are asked for
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
            api=self.api,
            key_hint="set OPENAI_API_KEY, or pass api_key=",
            sdk="openai",
            secrets=(
                self._api_key,
                os.environ.get("OPENAI_API_KEY"),
                getattr(self._client, "api_key", None),
            ),
        )
