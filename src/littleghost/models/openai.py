"""Models behind the Chat Completions API: OpenAI's, and every server that speaks it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from littleghost.models.chat_completions import (
    ChatAnswer,
    chat_choice,
    chat_format,
    chat_messages,
    chat_tools,
)
from littleghost.models.contract import ModelRequest
from littleghost.models.event_streams import Answer
from littleghost.models.openai_endpoint import OpenAIEndpoint
from littleghost.models.retry import RetryPolicy

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIModel"]


class OpenAIModel(OpenAIEndpoint):
    """A model of OpenAI, or of any server that speaks Chat Completions.

    A call is made again, with growing waits, when the server cannot be reached, is silent too long, answers 408, 409, 429 or 5xx,
    breaks off its answer or sends what is no answer; a ``Retry-After`` is obeyed.

    Args:
        model: Such as ``gpt-5``.
        base_url: Where the API is; ``OPENAI_BASE_URL`` or OpenAI's own by default.
        api_key: The key; ``OPENAI_API_KEY`` by default, also for another ``base_url``. A server of your own may need none.
        client: A client of your own to use instead; you close it.
        settings: Options of every call, such as ``temperature`` or ``prompt_cache_key``; those of a request go first. ``None`` takes
            one back. ``extra_headers``, ``extra_query`` and ``extra_body`` are as in the SDK.
        max_retries: How often a call that failed is made again.
        timeout: Seconds without a byte from the server after which an attempt has failed.
        developer_role: What to call the role ``developer``; by default ``system`` for servers other than OpenAI's, many of which
            know no other.
        capabilities: What the server can, where that is less than what OpenAI's can; see `Model`.
        context_window: Tokens that a request and its answer may have together, where you know.
    """

    api = "Chat Completions"
    ours = frozenset({"messages", "model", "n", "stream", "tools"})

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
        super().__init__(
            model,
            base_url=base_url,
            api_key=api_key,
            client=client,
            settings=settings,
            max_retries=max_retries,
            timeout=timeout,
            capabilities=capabilities,
            context_window=context_window,
        )
        self._developer = developer_role

    def answer(self) -> Answer:
        return ChatAnswer()

    def resource(self, client: AsyncOpenAI) -> Any:
        return client.chat.completions

    def arguments(self, request: ModelRequest, settings: dict[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"stream_options": {"include_usage": True}, **settings}
        body = {name: value for name, value in body.items() if value is not None}
        developer = self._developer or ("developer" if self.is_openai else "system")
        body |= {
            "model": self.model,
            "messages": chat_messages(request.messages, developer=developer),
            "stream": True,
        }
        if request.tools:
            body["tools"] = chat_tools(request.tools)
            if request.tool_choice != "auto" and "tool_choice" in self.capabilities:
                body["tool_choice"] = chat_choice(request.tool_choice)
        if request.format is not None:
            body["response_format"] = chat_format(request.format)
        return body
