"""Spans, through the OpenTelemetry API where the application uses it, else at no cost.

Nothing here imports OpenTelemetry. A span is recorded when the application has set a tracer provider, as whoever has an exporter does;
until then every span is one shared object that does nothing. Names and attributes follow
the GenAI semantic conventions (https://opentelemetry.io/docs/specs/semconv/gen-ai/) where they have a word for a thing.
No message content is recorded here; `littleghost.runs.tracing` does it where an application asks for it.
"""

from __future__ import annotations

import contextvars
import logging
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Self

__all__ = ["Span", "current_operation", "operation", "recording", "span"]

log = logging.getLogger("littleghost")

Attribute = str | bool | int | float | Sequence[str]

_operation: contextvars.ContextVar[str | None] = contextvars.ContextVar("littleghost_operation", default=None)


class Span:
    """What a span can be told. This base is the one that does nothing.

    Attributes:
        recorded: Whether anybody will see what it is told.
    """

    __slots__ = ()

    recorded = False

    def set(self, name: str, value: Attribute) -> None:
        """Set one attribute."""

    def fail(self, error: BaseException) -> None:
        """Mark the span as failed with the class name of ``error``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _RecordedSpan(Span):
    __slots__ = ("_span", "recorded")

    def __init__(self, span: Any) -> None:
        self._span = span
        self.recorded: bool = span.is_recording()

    def set(self, name: str, value: Attribute) -> None:
        self._span.set_attribute(name, value)

    def fail(self, error: BaseException) -> None:
        status = sys.modules["opentelemetry.trace"].StatusCode.ERROR
        self._span.set_attribute("error.type", type(error).__name__)
        self._span.set_status(status, type(error).__name__)


NOTHING = Span()
_UNCHANGED = nullcontext()


def recording() -> bool:
    """Whether the application has set up OpenTelemetry for spans, so that it is worth the while to make any."""
    return _provided("opentelemetry.trace", "get_tracer_provider")


def metering() -> bool:
    """Whether the application has set up OpenTelemetry for metrics."""
    return _provided("opentelemetry.metrics", "get_meter_provider")


def _provided(module: str, getter: str) -> bool:
    """Whether the API has a provider other than its own, which record nothing, and cost as much as if they did."""
    api = sys.modules.get(module)
    return api is not None and not type(getattr(api, getter)()).__module__.startswith(module)


def span(
    name: str,
    attributes: Mapping[str, Attribute] | None = None,
    *,
    kind: Literal["internal", "client"] = "internal",
    link: str | None = None,
) -> AbstractContextManager[Span]:
    """Return a context manager for a span; an exception that leaves it marks it as failed.

    Args:
        name: What it is called.
        attributes: What it is about.
        kind: Whether it asks somebody else.
        link: A W3C ``traceparent`` value of another span that it has to do with.
    """
    return (
        _record(sys.modules["opentelemetry.trace"], name, attributes, kind, link) if recording() else NOTHING
    )


@contextmanager
def _record(
    trace: Any, name: str, attributes: Mapping[str, Attribute] | None, kind: str, link: str | None
) -> Generator[Span]:
    tracer = trace.get_tracer("littleghost")
    linked = _context_of(trace, link)
    parent = _context_of(trace, _operation.get())
    with tracer.start_as_current_span(
        name,
        context=None if parent is None else trace.set_span_in_context(trace.NonRecordingSpan(parent)),
        kind=trace.SpanKind.CLIENT if kind == "client" else trace.SpanKind.INTERNAL,
        links=None if linked is None else [trace.Link(linked)],
        attributes=dict(attributes or {}),
        record_exception=False,
        set_status_on_exception=False,
    ) as inner:
        recorded = _RecordedSpan(inner)
        token = _operation.set(
            None
        )  # what happens inside is a child of this span, not of the named operation
        try:
            yield recorded
        except BaseException as error:
            recorded.fail(error)
            raise
        finally:
            _operation.reset(token)


def _context_of(trace: Any, operation_id: str | None) -> Any:
    """Return the context of the span that a ``traceparent`` value names, or ``None`` where it names none."""
    parts = (operation_id or "").split("-")
    if len(parts) != 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return None
    try:
        context = trace.SpanContext(
            trace_id=int(parts[1], 16),
            span_id=int(parts[2], 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(int(parts[3], 16)),
        )
    except ValueError:
        return None
    return context if context.is_valid else None


def operation(operation_id: str | None) -> AbstractContextManager[None]:
    """Make ``operation_id``, a W3C ``traceparent`` value, the parent of the spans started inside.

    An id of another form, and ``None``, change nothing.
    Source: https://www.w3.org/TR/trace-context/#traceparent-header
    """
    return _UNCHANGED if operation_id is None else _named(operation_id)


@contextmanager
def _named(operation_id: str) -> Generator[None]:
    token = _operation.set(operation_id)
    try:
        yield
    finally:
        _operation.reset(token)


def current_operation() -> str | None:
    """Return the id of the current span as a W3C ``traceparent`` value, or ``None`` where nothing is recorded."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
