"""Models of Anthropic, and of every server that speaks its Messages API.

The official SDK makes the requests; `littleghost.models.anthropic_format` writes their bodies and reads the stream. The SDK is
imported at the first call, never before.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from littleghost.errors import ConfigurationError, CredentialError
from littleghost.events import ModelEvent
from littleghost.models import claude, network
from littleghost.models.anthropic_format import MessagesAnswer, messages_body
from littleghost.models.clients import Clients, import_sdk
from littleghost.models.contract import Model, ModelRequest
from littleghost.models.exchange import exchange
from littleghost.models.failures import Failures
from littleghost.models.retry import RetryPolicy, retrying
from littleghost.models.settings import abilities, checked, joined

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

__all__ = ["AnthropicModel"]

ANTHROPIC_URL = "https://api.anthropic.com"
CONNECT_SECONDS = 10.0
OURS = frozenset({"messages", "model", "stream", "system", "tools"})
"""What settings cannot change: a call has one answer, streamed, to the messages and tools of the request."""
PER_REQUEST = ("extra_headers", "extra_query", "extra_body")
KEY_HINT = "set ANTHROPIC_API_KEY, or pass api_key="


class AnthropicModel(Model):
    """A model of Anthropic, or of any server that speaks the Messages API.

    A call is made again, with growing waits, when the server cannot be reached, is silent too long, is overloaded, answers 408, 409,
    429 or 5xx, breaks off its answer or sends what is no answer; a ``Retry-After`` is obeyed.

    Args:
        model: Such as ``claude-sonnet-5-5``.
        max_tokens: The most tokens of an answer, its thinking counted; the API insists on a number. The setting of that name goes
            first.
        base_url: Where the API is; ``ANTHROPIC_BASE_URL`` or Anthropic's own by default.
        api_key: The key; by default what the SDK finds, such as ``ANTHROPIC_API_KEY``. A server of your own may need none.
        client: A client of your own to use instead; you close it.
        settings: Parameters of every call, such as ``thinking``; those of a request go first. ``None`` takes one back.
            ``extra_headers``, ``extra_query`` and ``extra_body`` are as in the SDK.
        cache: How long the provider keeps prefixes of requests: five minutes, an hour, or only where a message's metadata has
            ``cache: true``.
        keep_signatures: Whether opaque signatures of reasoning are stored with messages, so that a run resumed between a call and
            its result goes on thinking.
        context_window: Tokens that a request and its answer may have together; by default what is known of the model.
        capabilities: What the model can, in place of what is known of it; see `Model`.
        developer_role: The role of developer messages amid a conversation: ``user``, where they stand in tags, or ``system``, which
            only newer models take. Those that a conversation begins with are instructions.
        max_retries: How often a call that failed is made again.
        timeout: Seconds without a byte from the server after which an attempt has failed.
    """

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int = 32_000,
        base_url: str | None = None,
        api_key: str | None = None,
        client: AsyncAnthropic | None = None,
        settings: Mapping[str, Any] | None = None,
        cache: Literal["5m", "1h"] | None = None,
        keep_signatures: bool = False,
        context_window: int | None = None,
        capabilities: Iterable[str] | None = None,
        developer_role: Literal["user", "system"] = "user",
        max_retries: int = RetryPolicy().retries,
        timeout: float = 600.0,
    ) -> None:
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigurationError(
                "give either a client, or base_url and api_key, which the client has already"
            )
        if cache not in (None, "5m", "1h"):
            raise ConfigurationError(f"cache is {cache!r}; it can be '5m', '1h' or None")
        if developer_role not in ("user", "system"):
            raise ConfigurationError(f"developer_role is {developer_role!r}; it can be 'user' or 'system'")
        self.model = model
        self.settings = {"max_tokens": max_tokens, **checked(settings, OURS)}
        self.context_window = context_window or claude.context_window(model)
        self._base_url = base_url
        self._api_key = api_key
        self._client = client
        self.cache: Literal["5m", "1h"] | None = cache
        self._keep = keep_signatures
        self._developer: Literal["user", "system"] = developer_role
        self._policy = RetryPolicy(retries=max_retries)
        self._timeout = timeout
        self._clients: Clients[AsyncAnthropic] = Clients(lambda client: client.close())
        self.capabilities = self._abilities() if capabilities is None else abilities(capabilities)

    def __repr__(self) -> str:
        return f"AnthropicModel({self.model!r}, host={self.host!r})"

    @property
    def name(self) -> str:
        return self.model

    @property
    def provider(self) -> str:
        return "anthropic"

    @property
    def host(self) -> str:
        """The host that is asked, without anything secret that a URL may hold."""
        url = str(self._client.base_url) if self._client is not None else self._base_url
        url = url or os.environ.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
        return urlsplit(url).hostname or "the model's server"

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        def attempt(left: float | None) -> AsyncGenerator[ModelEvent]:
            answer = MessagesAnswer(keep=self._keep)
            return exchange(lambda stack: self._send(stack, request), answer, self._failures, left=left)

        return retrying(attempt, self._policy, timeout=request.timeout)

    async def aclose(self) -> None:
        """Close the connections. A client that was passed in stays open. The model can be used again."""
        await self._clients.aclose()

    def _abilities(self) -> frozenset[str]:
        found = {"images", "documents"}
        if claude.can_be_forced(self.model):
            found.add("tool_choice")
        if f".{self.host}".endswith(".anthropic.com") and claude.holds_to_schema(self.model):
            found.add("answer_format")
        return frozenset(found)

    async def _send(self, stack: AsyncExitStack, request: ModelRequest) -> AsyncIterator[bytes]:
        network.check_host(self.host)
        arguments = self._arguments(request)
        client = self._client
        if client is None:
            client = await self._clients.ready(self._make)
        else:
            client = client.with_options(max_retries=0)
        create = cast("Any", client.messages.with_streaming_response.create)
        response = await stack.enter_async_context(create(**arguments))
        return response.iter_bytes()

    def _arguments(self, request: ModelRequest) -> dict[str, Any]:
        settings = joined(self.settings, request.settings, OURS)
        known = {name: value for name, value in settings.items() if value is not None}
        arguments: dict[str, Any] = {name: known.pop(name) for name in PER_REQUEST if name in known}
        if "tool_choice" not in self.capabilities and request.tool_choice != "none":
            request = msgspec.structs.replace(request, tool_choice="auto")
        body = messages_body(request, known, cache=self.cache, kept=self._keep, developer=self._developer)
        arguments |= {name: body.pop(name) for name in ("max_tokens", "messages") if name in body}
        # Parameters travel as they are, those that the SDK does not know as well.
        arguments["extra_body"] = {**body, **arguments.get("extra_body", {})}
        return {"model": self.model, "stream": True, **arguments}

    def _make(self) -> AsyncAnthropic:
        anthropic = import_sdk("anthropic", "anthropic")
        client: AsyncAnthropic = anthropic.AsyncAnthropic(
            api_key=self._api_key,
            base_url=self._base_url,
            max_retries=0,
            timeout=anthropic.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout)),
            # The SDK's own wrapper closes itself in whatever loop the garbage collector finds running.
            http_client=anthropic.DefaultAsyncHttpxClient(),
        )
        if client.api_key is None and client.auth_token is None and client.credentials is None:
            if self._base_url is None and not os.environ.get("ANTHROPIC_BASE_URL"):
                raise CredentialError(f"there is no API key for Anthropic; {KEY_HINT}")
            client.api_key = "none"  # the SDK insists on one, a server without keys does not look at it
        _ = client.messages.with_streaming_response  # it loads its parts as they are asked for
        return client

    @property
    def _failures(self) -> Failures:
        return Failures(
            self.host,
            api="Messages",
            key_hint=KEY_HINT,
            sdk="anthropic",
            secrets=(
                self._api_key,
                os.environ.get("ANTHROPIC_API_KEY"),
                os.environ.get("ANTHROPIC_AUTH_TOKEN"),
                getattr(self._client, "api_key", None),
                getattr(self._client, "auth_token", None),
            ),
        )
