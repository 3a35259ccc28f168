"""Models behind OpenAI's Responses API, statelessly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from littleghost.models.contract import ModelRequest
from littleghost.models.event_streams import Answer
from littleghost.models.openai_endpoint import OpenAIEndpoint
from littleghost.models.responses_format import (
    responses_choice,
    responses_format,
    responses_input,
    responses_tools,
)
from littleghost.models.responses_stream import ResponsesAnswer
from littleghost.models.retry import RetryPolicy

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["OpenAIResponsesModel"]

ENCRYPTED = "reasoning.encrypted_content"
SILENT = ("chatgpt-", "gpt-3", "gpt-4")
"""How the models are called that do not reason, and refuse a request for encrypted reasoning."""


class OpenAIResponsesModel(OpenAIEndpoint):
    """A model of OpenAI behind the Responses API, or of another server that speaks it.

    The provider keeps nothing (``store`` is false): the conversation is sent with each call, and reasoning comes encrypted and goes
    back with the calls it led to while a run lasts. A turn that goes on from a store, which keeps no reasoning, is sent without the
    ids that tie its calls to it, which OpenAI accepts. Calls that failed are made again as by `OpenAIModel`.

    Args:
        model: Such as ``gpt-5``.
        base_url: Where the API is; ``OPENAI_BASE_URL`` or OpenAI's own by default.
        api_key: The key; ``OPENAI_API_KEY`` by default, also for another ``base_url``.
        client: A client of your own to use instead; you close it.
        settings: Options of every call, such as ``reasoning={"effort": "low", "summary": "auto"}``, ``max_output_tokens`` or
            ``prompt_cache_key``; those of a request go first. ``None`` takes one back, also ``store`` and ``include``.
            ``extra_headers``, ``extra_query`` and ``extra_body`` are as in the SDK.
        max_retries: How often a call that failed is made again.
        timeout: Seconds without a byte from the server after which an attempt has failed.
        keep_signatures: Whether the encrypted reasoning, and nothing readable, is kept in the metadata of messages, so that a turn
            that goes on from a store has it. It makes stored sessions larger by some kilobytes a step.
        capabilities: What the server can, where that is less than what OpenAI's can; see `Model`.
        context_window: Tokens that a request and its answer may have together, where you know.
    """

    api = "Responses"
    ours = frozenset({
        "background", "conversation", "input", "instructions", "model", "previous_response_id", "stream", "tools",
    })  # fmt: skip

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
        keep_signatures: bool = False,
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
        self._keep = keep_signatures

    def answer(self) -> Answer:
        return ResponsesAnswer(keep_signatures=self._keep)

    def resource(self, client: AsyncOpenAI) -> Any:
        return client.responses

    def arguments(self, request: ModelRequest, settings: dict[str, Any]) -> dict[str, Any]:
        body: dict[str, Any] = {"store": False}
        if not self.model.startswith(SILENT):
            body["include"] = [ENCRYPTED]
        body = {name: value for name, value in (body | settings).items() if value is not None}
        instructions, items = responses_input(request.messages)
        body |= {"model": self.model, "input": items, "stream": True}
        if instructions:
            body["instructions"] = instructions
        if request.tools:
            body["tools"] = responses_tools(request.tools)
            if request.tool_choice != "auto" and "tool_choice" in self.capabilities:
                body["tool_choice"] = responses_choice(request.tool_choice)
        if request.format is not None:
            body["text"] = {**(body.get("text") or {}), "format": responses_format(request.format)}
        return body
