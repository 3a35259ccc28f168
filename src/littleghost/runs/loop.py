"""The loop of an agent, as a machine without I/O: effects out, their outcomes in.

`turns` is a generator. It yields an effect, whoever drives it performs the effect and sends the outcome back, and it returns an
`Ending`. The order of effects is the promise that a killed run can go on:

1. What a killed run left unsettled is settled, and that is committed.
2. The user's message is committed before a model is called.
3. An answer is committed, with its tool calls, before any tool starts.
4. Each result is committed as its tool ends (or, in a store that prefers it, those of one answer together), before the model sees it.

So whatever the moment of death, a call without a stored result is one whose effect nobody knows, and it is never started a second time
unless its tool is idempotent.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal

from littleghost import transcript
from littleghost.errors import (
    DataError,
    LimitExceededError,
    ModelError,
    ModelProtocolError,
    OutputLimitError,
)
from littleghost.events import ModelEnded, ToolCallReady, UsageReported
from littleghost.message import Message
from littleghost.runs.calls import Calls
from littleghost.runs.compaction import View
from littleghost.runs.effects import (
    Book,
    CallModel,
    CommitMessages,
    Effect,
    Emit,
    Ending,
    Failed,
    Machine,
    Part,
    ToolTraits,
    ending_of,
)
from littleghost.runs.limits import RunLimits

__all__ = ["turns"]


def turns(
    book: Book,
    new: Message | None,
    tools: Mapping[str, ToolTraits],
    limits: RunLimits,
    *,
    granularity: Literal["call", "batch"] = "call",
    view: View | None = None,
) -> Machine:
    """Drive a conversation until the model has answered.

    Args:
        book: The conversation so far, as stored; counted in and added to.
        new: What the user says now; ``None`` to go on where a run stopped.
        tools: The tools there are.
        limits: What the run may use.
        granularity: How finely results are committed.
        view: What the model is shown of a long conversation; all of it unless given.
    """
    calls = Calls(book, tools, limits, granularity)
    stopped = yield from calls.settle()
    if stopped is not None:
        return stopped
    if new is not None:
        yield CommitMessages((new,))
        book.messages.append(new)
    elif not waits_for_model(book.messages):
        return Ending(outcome="completed", text=last_text(book.messages))
    while True:
        reached = _limit(book, limits)
        if reached is not None:
            return Ending(outcome="partial", text=book.text, error=reached)
        book.steps += 1
        if view is None:
            answer = yield CallModel(transcript.for_model(book.messages), book.steps)
        else:
            answer = yield from view.call(book, lambda: _limit(book, limits))
        if type(answer) is not ModelEnded:
            text = transcript.repair(answer.text)
            yield from _keep(book, text, "failed" if type(answer) is Failed else "stopped")
            return ending_of(answer.error, text or book.text)
        ended = yield from _take(book, answer, calls)
        if ended is not None:
            return ended


def waits_for_model(messages: Sequence[Message]) -> bool:
    """Whether a conversation with all calls settled ends where the model should speak."""
    if not messages:
        return False
    last = messages[-1]
    return last.role != "assistant" or transcript.is_partial(last)


def last_text(messages: Sequence[Message]) -> str:
    """Return the text of the last answer."""
    return next((message.text for message in reversed(messages) if message.role == "assistant"), "")


def _take(book: Book, answer: ModelEnded, calls: Calls) -> Part:
    """Take in a model's answer: count it, commit it, have its tools run."""
    book.usage += answer.usage
    yield Emit(UsageReported(usage=answer.usage, total=book.usage))
    try:
        message = transcript.admit(answer.message, answer.malformed)
    except DataError as error:
        fault = ModelProtocolError(f"the model's answer cannot be stored: {error}")
        fault.__cause__ = error
        return Ending(outcome="failed", text=book.text, error=fault)
    wanted = message.tool_uses
    cut = not wanted and answer.stop != "end"
    if cut:
        message = transcript.mark(message, partial=answer.stop)
    for index, call in enumerate(wanted):
        yield Emit(ToolCallReady(index=index, call=call))
    position = 0
    if message.content or not cut:
        position = yield CommitMessages((message,))
        book.messages.append(message)
    text = message.text
    book.text = text or book.text
    if wanted:
        return (yield from calls.answer(message, wanted, position))
    if not cut:
        return Ending(outcome="completed", text=text)
    if answer.stop == "length":
        return Ending(
            outcome="partial",
            text=text,
            error=OutputLimitError("the answer was cut at the output limit"),
        )
    return Ending(outcome="failed", text=text, error=ModelError("the provider withheld the answer"))


def _keep(book: Book, text: str, why: str) -> Generator[Effect, Any, None]:
    """Commit what the model had written when it was stopped."""
    if not text:
        return
    message = transcript.mark(Message("assistant", text), partial=why)
    yield CommitMessages((message,))
    book.messages.append(message)


def _limit(book: Book, limits: RunLimits) -> LimitExceededError | None:
    """Return the limit that forbids another model call, if one does."""
    if limits.turns is not None and book.steps >= limits.turns:
        name, limit = "turns", limits.turns
    elif limits.tool_calls is not None and book.tool_calls > limits.tool_calls:
        name, limit = "tool_calls", limits.tool_calls
    elif limits.tokens is not None and book.usage.total_tokens >= limits.tokens:
        name, limit = "tokens", limits.tokens
    else:
        return None
    return LimitExceededError(
        f"the run reached its limit of {limit} {name.replace('_', ' ')}", limit=name, value=limit
    )
