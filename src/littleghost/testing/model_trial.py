"""What the clauses about models share: a server with a model in front of it, and the law that every answer keeps."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from msgspec import Struct

from littleghost.content import Reasoning
from littleghost.errors import LittleGhostError
from littleghost.events import (
    ModelEnded,
    ModelEvent,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
)
from littleghost.message import Message
from littleghost.models.contract import Model, ModelRequest, ToolSpec
from littleghost.testing.conformance import expect
from littleghost.testing.model_dialect import Dialect, Said, Seen
from littleghost.testing.model_server import ModelServer

__all__ = ["ADD", "HELLO", "KEY", "ModelTrial", "Subject", "opened", "request", "same"]

KEY = "sk-very-secret-0123456789"
"""The key that models are given, or what stands for it; it must show nowhere."""
HELLO = ModelRequest(messages=[Message.user("Hello")])
ADD = ToolSpec(
    name="add",
    description="Add two numbers.",
    schema={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)


class Subject(Struct, frozen=True):
    """What is tried.

    Attributes:
        make: Makes the model; see `littleghost.testing.model_kit`.
        dialect: Makes what knows its format.
    """

    make: Callable[..., Model]
    dialect: Callable[[], Dialect]


class ModelTrial:
    """A model, the server it asks, and what was heard."""

    def __init__(self, model: Model, server: ModelServer) -> None:
        self.model = model
        self.server = server
        self.dialect = server.dialect

    async def hear(self, request: ModelRequest = HELLO) -> list[ModelEvent]:
        """Return the events of a call, found to keep the law of every answer."""
        events = [event async for event in self.model.stream(request)]
        lawful(events)
        return events

    async def ask(self, request: ModelRequest = HELLO) -> ModelEnded:
        """Return the end of a call."""
        return cast("ModelEnded", (await self.hear(request))[-1])  # lawful

    async def fails(
        self, kind: type[LittleGhostError], what: str, request: ModelRequest = HELLO
    ) -> LittleGhostError:
        """Return the error of a call that has to fail by ``kind``."""
        try:
            events = [event async for event in self.model.stream(request)]
        except kind as error:
            return error
        except Exception as error:
            expect(False, f"{what} raised {type(error).__name__} ({error}), not {kind.__name__}")
            raise
        expect(False, f"{what} raised nothing, but gave {[type(event).__name__ for event in events]}")
        raise AssertionError

    def seen(self, position: int = -1) -> Seen:
        """Return what a request said that the server did not refuse."""
        expect(not self.server.refusals, f"the provider refuses: {self.server.refusals}")
        return self.dialect.read(self.server.requests[position].body)


def lawful(events: list[ModelEvent]) -> None:
    """Expect what holds for any answer: it ends once, and says at its end what it said on its way."""
    ends = [event for event in events if isinstance(event, ModelEnded)]
    expect(
        len(ends) == 1 and events[-1] is ends[0], f"an answer has {len(ends)} ends, or goes on behind its end"
    )
    start = max((n + 1 for n, event in enumerate(events) if isinstance(event, Retrying)), default=0)
    last, told = ends[0], events[start:]
    text = "".join(event.text for event in told if isinstance(event, TextDelta))
    thought = "".join(event.text for event in told if isinstance(event, ReasoningDelta))
    kept = "".join(block.text for block in last.message.content if isinstance(block, Reasoning))
    expect(last.message.role == "assistant", "an answer is no assistant's message")
    expect(text == last.message.text, f"the deltas say {text[:80]!r}, the message {last.message.text[:80]!r}")
    expect(thought == kept, f"the reasoning was told as {thought[:80]!r} and kept as {kept[:80]!r}")
    begun = [event for event in told if isinstance(event, ToolCallStarted)]
    calls = last.message.tool_uses
    expect(
        [(event.index, event.id, event.name) for event in begun]
        == [(n, call.id, call.name) for n, call in enumerate(calls)],
        f"the calls {[call.name for call in calls]} were announced as {[(e.index, e.name) for e in begun]}",
    )
    expect(len({call.id for call in calls}) == len(calls), "two calls have one id")
    known: set[int] = set()
    for event in told:
        if isinstance(event, ToolCallStarted):
            known.add(event.index)
        elif isinstance(event, ToolCallArguments):
            expect(event.index in known, "arguments came before their call")
    expect(set(last.malformed) <= set(range(len(calls))), "a call is malformed that there is not")


def same(last: ModelEnded, said: Said, what: str) -> None:
    """Expect that an answer is ``said``."""
    expect(last.message.text == "".join(said.text), f"{what}: the text is {last.message.text[:80]!r}")
    expect(
        [(call.id, call.name, call.input) for call in last.message.tool_uses]
        == [(call.id, call.name, call.input) for call in said.calls],
        f"{what}: the calls are {last.message.tool_uses}",
    )
    expect(not last.malformed, f"{what}: calls are malformed: {last.malformed}")
    expect(last.stop == said.stop, f"{what}: it stopped by {last.stop}")


def request(*messages: Message, **fields: Any) -> ModelRequest:
    """Return a request with ``messages``."""
    return ModelRequest(messages=list(messages), **fields)


@asynccontextmanager
async def opened(subject: Subject, **options: Any) -> AsyncGenerator[ModelTrial]:
    """A model that asks a server of its own; both are closed at the end.

    Args:
        subject: What is tried.
        options: Further options for its maker.
    """
    async with ModelServer(subject.dialect()) as server:
        model = subject.make(server.url, **{"key": KEY, "retries": 2, **options})
        try:
            yield ModelTrial(model, server)
        finally:
            await model.aclose()
