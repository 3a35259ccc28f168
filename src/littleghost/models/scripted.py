"""Models that answer from a script or a function: for tests, demonstrations and benchmarks."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, Self, cast

import msgspec

from littleghost.content import Reasoning, Text, ToolUse
from littleghost.events import (
    ModelEnded,
    ModelEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
)
from littleghost.message import Message
from littleghost.models.contract import Model, ModelRequest

__all__ = ["FunctionModel", "ScriptError", "ScriptedModel"]

PIECE = 16
"""Characters of a streamed piece; a text over 64 of them comes in about 64 pieces."""


class ScriptError(AssertionError):
    """A script and the calls made of it do not match: a step too few, a step left over, or a step that is no answer."""


class FunctionModel(Model):
    """A model that answers with what a function returns.

    Args:
        fn: Called with each `ModelRequest`, plain or ``async``. It returns a `Message` of role ``assistant``, what such a message
            may hold (a string, a block, a list of them), a `ModelEnded` where usage or the reason to stop matter, or
            an async iterator of events, which are passed on as they are. What it raises, the model raises.
        delay: Seconds to wait before each event.

    Attributes:
        requests: What it was sent, in order.
    """

    def __init__(self, fn: Callable[[ModelRequest], Any], *, delay: float = 0.0) -> None:
        self._fn = fn
        self._delay = delay
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        return getattr(self._fn, "__name__", type(self).__name__)

    @property
    def provider(self) -> str:
        return "littleghost"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        # The list is the caller's, who may go on to change it.
        self.requests.append(msgspec.structs.replace(request, messages=list(request.messages)))
        answer: Any = self._fn(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if self._delay or isinstance(answer, AsyncIterator):
            async for event in _slowly(cast("Any", answer), self._delay):
                yield event
            return
        # The short way: a scripted call costs microseconds, so that benchmarks of runs measure the run.
        for event in _spelled_out(answer):
            yield event


class ScriptedModel(Model):
    """A model that answers each call with the next step of a script.

    A step is what the function of a `FunctionModel` may return, or such a function itself, or an exception to raise.
    A call too many raises `ScriptError`, and so do, where a step is left over, `assert_done` and the end of a ``with``
    or ``async with`` block.

    Args:
        script: The steps, one a call.
        delay: Seconds to wait before each event.

    Attributes:
        requests: What it was sent, in order.
    """

    def __init__(self, script: Iterable[Any], *, delay: float = 0.0) -> None:
        if isinstance(script, str):
            raise TypeError("a script is a list of steps; write ScriptedModel([text]) for a single answer")
        self._steps = list(script)
        self._delay = delay
        self._position = 0
        self.requests: list[ModelRequest] = []

    @property
    def name(self) -> str:
        return "scripted"

    @property
    def provider(self) -> str:
        return "littleghost"

    @property
    def remaining(self) -> int:
        """How many steps are left."""
        return max(0, len(self._steps) - self._position)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests.append(msgspec.structs.replace(request, messages=list(request.messages)))
        position = self._position
        self._position += 1
        if position >= len(self._steps):
            raise ScriptError(f"the script has {len(self._steps)} steps, and this is call {position + 1}")
        step: Any = self._steps[position]
        if callable(step) and not _is_exception(step):
            step = step(request)
            if inspect.isawaitable(step):
                step = await step
        if _is_exception(step):
            raise cast("BaseException", step)
        if self._delay or isinstance(step, AsyncIterator):
            async for event in _slowly(cast("Any", step), self._delay):
                yield event
            return
        # The short way: a scripted call costs microseconds, so that benchmarks of runs measure the run.
        for event in _spelled_out(step):
            yield event

    def assert_done(self) -> None:
        """Check that every step was taken, and none too many.

        Raises:
            ScriptError: It was not so.
        """
        steps = len(self._steps)
        if self._position != steps:
            raise ScriptError(f"the script has {steps} steps, and {self._position} calls were made")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # an error on its way out is the better explanation
            self.assert_done()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


def _is_exception(step: Any) -> bool:
    return isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException))


async def _slowly(answer: Any, delay: float) -> AsyncIterator[ModelEvent]:
    if isinstance(answer, AsyncIterator):
        async for event in cast("AsyncIterator[ModelEvent]", answer):
            if delay:
                await asyncio.sleep(delay)
            yield event
        return
    for event in _spelled_out(answer):
        await asyncio.sleep(delay)
        yield event


def _spelled_out(answer: Any) -> list[ModelEvent]:
    """Return the events of ``answer``, as a provider would stream it."""
    if type(answer) is ModelEnded:
        ended = answer
    else:
        if answer is None:
            raise ScriptError("a step or function gave None, which is no answer; for an empty one give ''")
        ended = ModelEnded(message=answer if type(answer) is Message else Message.assistant(answer))
    if ended.message.role != "assistant":
        raise ScriptError(
            f"a model answers with role assistant, and this message has role {ended.message.role}"
        )
    events: list[ModelEvent] = []
    position = 0
    for block in ended.message.content:
        if type(block) is Text:
            events += [TextDelta(text=piece) for piece in _pieces(block.text)]
        elif type(block) is ToolUse:
            arguments = _json(block.input)
            events.append(ToolCallStarted(index=position, id=block.id, name=block.name))
            events += [ToolCallArguments(index=position, arguments=piece) for piece in _pieces(arguments)]
            position += 1
        elif type(block) is Reasoning:
            events += [ReasoningDelta(text=piece) for piece in _pieces(block.text)]
    events.append(ended)
    return events


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        # What no JSON can hold is what some tests are about; the message carries it as it is.
        return json.dumps(value, default=repr, skipkeys=True)


def _pieces(text: str) -> list[str]:
    if len(text) <= PIECE:
        return [text] if text else []
    size = max(PIECE, len(text) // 64)
    return [text[start : start + size] for start in range(0, len(text), size)]
