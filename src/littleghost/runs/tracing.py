"""What a run tells of itself: its spans and metrics, in the words of the GenAI semantic conventions.

Nothing is computed where the application does not use OpenTelemetry. Content (messages, arguments, results) is recorded only where the
application asked for it, each attribute by way of its redactor.
Source: https://github.com/open-telemetry/semantic-conventions-genai (spans of inference, agents and tools; client metrics).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any, cast

import msgspec

from littleghost import telemetry
from littleghost.content import Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.events import ModelEnded
from littleghost.message import Message
from littleghost.models.contract import Model, ModelRequest
from littleghost.tools.contract import Tool
from littleghost.usage import Usage

__all__ = ["Content", "agent_span", "model_span", "tool_span"]

Redactor = Callable[[str, Any], Any]

FINISHED = {"end": "stop", "length": "length", "filter": "content_filter"}
SETTINGS = {
    "frequency_penalty": (int, float),
    "max_tokens": (int,),
    "presence_penalty": (int, float),
    "seed": (int,),
    "temperature": (int, float),
    "top_k": (int, float),
    "top_p": (int, float),
}
"""Options that the conventions have a name for, and its types."""
TOKENS = [4**power for power in range(14)]
SECONDS = [0.01 * 2**power for power in range(14)]
"""The bounds of buckets that the conventions give."""


class Content:
    """Records what was said, where an application asked for it.

    Args:
        capture: ``False``: nothing; ``True``: everything; a function: called with the name of an attribute and its value in the form of
            JSON, it returns what to record, or ``None`` for nothing.
    """

    def __init__(self, *, capture: bool | Redactor = False) -> None:
        self._capture = capture

    def record(self, span: telemetry.Span, name: str, make: Callable[[], Any]) -> None:
        """Record what ``make`` returns as the attribute ``name``; a redactor that fails records nothing."""
        if self._capture is False or not span.recorded:
            return
        value = make()
        if callable(self._capture):
            try:
                value = self._capture(name, value)
            except Exception as error:  # noqa: BLE001 (what cannot be redacted is not recorded)
                telemetry.log.warning("the redactor failed (%s); %s is left out", type(error).__name__, name)
                return
        if value is not None:
            span.set(
                name, value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=repr).decode()
            )


NO_CONTENT = Content()


def agent_span(
    name: str,
    *,
    model: Model,
    run_id: str,
    session_id: str | None,
    resumed: bool,
    link: str | None = None,
) -> AbstractContextManager[telemetry.Span]:
    """Return the span of a run."""
    if not telemetry.recording():
        return telemetry.NOTHING
    attributes: dict[str, telemetry.Attribute] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": model.provider,
        "gen_ai.agent.name": name,
        "gen_ai.request.model": model.name,
        "littleghost.run_id": run_id,
        "littleghost.resumed": resumed,
    }
    if session_id is not None:
        attributes["gen_ai.conversation.id"] = session_id
    return telemetry.span(f"invoke_agent {name}", attributes, link=link)


def run_ended(span: telemetry.Span, outcome: str, error: Exception | None, usage: Usage) -> None:
    """Tell the span of a run how it ended."""
    span.set("littleghost.outcome", outcome)
    if error is not None:
        span.fail(error)
    if span.recorded:
        _tell_usage(span, usage)


class ModelSpan:
    """The span of one model call, which listens to it.

    Args:
        span: The span.
        attributes: What metrics are told beside their numbers.
        content: What may be recorded of what is said.
    """

    def __init__(self, span: telemetry.Span, attributes: Mapping[str, Any], content: Content) -> None:
        self._span = span
        self._attributes = attributes
        self._content = content
        self._begun = time.perf_counter()
        self._first: float | None = None

    def heard(self) -> None:
        """Note that something of the answer came."""
        if self._first is None:
            self._first = time.perf_counter() - self._begun

    def answered(self, answer: ModelEnded) -> None:
        """Tell what came of the call."""
        span, message = self._span, answer.message
        reason = "tool_call" if message.tool_uses and answer.stop == "end" else FINISHED[answer.stop]
        span.set("gen_ai.response.finish_reasons", [reason])
        if self._first is not None:
            span.set("gen_ai.response.time_to_first_chunk", self._first)
        _tell_usage(span, answer.usage)
        self._content.record(
            span, "gen_ai.output.messages", lambda: [{**message_form(message), "finish_reason": reason}]
        )
        for kind, tokens in (("input", _read(answer.usage)), ("output", _written(answer.usage))):
            if tokens:
                _histogram(
                    "gen_ai.client.token.usage", tokens, {**self._attributes, "gen_ai.token.type": kind}
                )

    def ended(self, error: BaseException | None) -> None:
        """Tell how long the call took."""
        told = (
            {**self._attributes}
            if error is None
            else {**self._attributes, "error.type": type(error).__name__}
        )
        _histogram("gen_ai.client.operation.duration", time.perf_counter() - self._begun, told)
        if self._first is not None:
            _histogram("gen_ai.client.operation.time_to_first_chunk", self._first, told)


class _Unheard(ModelSpan):
    def __init__(self) -> None:
        pass

    def __enter__(self) -> ModelSpan:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def heard(self) -> None:
        pass

    def answered(self, answer: ModelEnded) -> None:
        pass


_UNHEARD = _Unheard()


def model_span(
    model: Model, request: ModelRequest, content: Content = NO_CONTENT
) -> AbstractContextManager[ModelSpan]:
    """Return the span of a model call."""
    told = telemetry.recording() or telemetry.metering()
    return _model_span(model, request, content) if told else _UNHEARD


@contextmanager
def _model_span(model: Model, request: ModelRequest, content: Content) -> Generator[ModelSpan]:
    named: dict[str, telemetry.Attribute] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": model.provider,
        "gen_ai.request.model": model.name,
    }
    attributes = {**named, "gen_ai.request.stream": True}
    for name, kinds in SETTINGS.items():
        value = request.settings.get(name)
        if isinstance(value, kinds) and not isinstance(value, bool):
            attributes[f"gen_ai.request.{name}"] = value
    if request.format is not None:
        attributes["gen_ai.output.type"] = "json"
    with telemetry.span(f"chat {model.name}", attributes, kind="client") as span:
        told = ModelSpan(span, named, content)
        instructions = [message for message in request.messages if message.role == "system"]
        content.record(
            span,
            "gen_ai.system_instructions",
            lambda: [part for message in instructions for part in message_form(message)["parts"]],
        )
        content.record(
            span,
            "gen_ai.input.messages",
            lambda: [message_form(message) for message in request.messages if message.role != "system"],
        )
        content.record(
            span,
            "gen_ai.tool.definitions",
            lambda: [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.schema,
                }
                for tool in request.tools
            ],
        )
        try:
            yield told
        except BaseException as error:
            told.ended(error)
            raise
        told.ended(None)


def tool_span(
    tool: Tool, call: ToolUse, content: Content = NO_CONTENT
) -> AbstractContextManager[telemetry.Span]:
    """Return the span of a tool call."""
    if not telemetry.recording():
        return telemetry.NOTHING
    return _tool_span(tool, call, content)


@contextmanager
def _tool_span(tool: Tool, call: ToolUse, content: Content) -> Generator[telemetry.Span]:
    attributes: dict[str, telemetry.Attribute] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.id,
    }
    if tool.description:
        attributes["gen_ai.tool.description"] = tool.description
    with telemetry.span(f"execute_tool {tool.name}", attributes) as span:
        content.record(span, "gen_ai.tool.call.arguments", lambda: call.input)
        yield span


def tool_ended(span: telemetry.Span, result: ToolResult, content: Content = NO_CONTENT) -> None:
    """Tell the span of a tool call what the tool answered."""
    content.record(span, "gen_ai.tool.call.result", lambda: _response(result))


# -- the forms of the conventions


def message_form(message: Message) -> dict[str, Any]:
    """Return ``message`` as the conventions' JSON Schema of messages has it."""
    return {"role": message.role, "parts": [_part(block) for block in message.content]}


def _part(block: Any) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "content": block.text}
    if isinstance(block, ToolUse):
        return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": block.input}
    if isinstance(block, ToolResult):
        return {"type": "tool_call_response", "id": block.tool_use_id, "response": _response(block)}
    if isinstance(block, Reasoning):
        return {"type": "reasoning", "content": block.text}
    attached = cast("Image | Document", block)  # their bytes are not for a trace
    modality = "image" if isinstance(block, Image) else "document"
    return {
        "type": modality,
        "mime_type": attached.media_type,
        "name": attached.name,
        "bytes": len(attached.data),
    }


def _response(result: ToolResult) -> Any:
    return result.text


def _read(usage: Usage) -> int:
    """Return all tokens that were read; the conventions count those of caches in."""
    return usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens


def _written(usage: Usage) -> int:
    return usage.output_tokens + usage.reasoning_tokens


def _tell_usage(span: telemetry.Span, usage: Usage) -> None:
    span.set("gen_ai.usage.input_tokens", _read(usage))
    span.set("gen_ai.usage.output_tokens", _written(usage))
    for name, tokens in (
        ("cache_read.input_tokens", usage.cache_read_tokens),
        ("cache_creation.input_tokens", usage.cache_write_tokens),
        ("reasoning.output_tokens", usage.reasoning_tokens),
    ):
        if tokens:
            span.set(f"gen_ai.usage.{name}", tokens)


# -- metrics

HISTOGRAMS: dict[str, tuple[str, str, Sequence[float]]] = {
    "gen_ai.client.token.usage": ("{token}", "Number of input and output tokens used.", TOKENS),
    "gen_ai.client.operation.duration": ("s", "GenAI operation duration.", SECONDS),
    "gen_ai.client.operation.time_to_first_chunk": ("s", "Time to receive the first chunk.", SECONDS),
}


def _histogram(name: str, value: float, attributes: Mapping[str, Any]) -> None:
    """Record ``value``, where the application has set up metrics."""
    if telemetry.metering():
        _instrument(sys.modules["opentelemetry.metrics"].get_meter_provider(), name).record(value, attributes)


@lru_cache(maxsize=16)
def _instrument(provider: Any, name: str) -> Any:
    unit, description, bounds = HISTOGRAMS[name]
    return provider.get_meter("littleghost").create_histogram(
        name, unit=unit, description=description, explicit_bucket_boundaries_advisory=bounds
    )
