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
from typing import Any, Literal, cast

from msgspec import Struct, field

from littleghost import data, transcript
from littleghost.content import ToolResult, ToolUse, made_of
from littleghost.errors import (
    ConfigurationError,
    DataError,
    DeadlineExceeded,
    LimitExceededError,
    ModelError,
    ModelProtocolError,
    OutputLimitError,
    RunCancelled,
)
from littleghost.events import ModelEnded, ToolCallReady, ToolEnded, UsageReported
from littleghost.message import Message
from littleghost.usage import Usage

__all__ = ["Ending", "RunLimits", "ToolTraits", "turns"]

Outcome = Literal["completed", "partial", "failed", "cancelled", "suspended"]


class RunLimits(Struct, frozen=True, kw_only=True):
    """What one run may use. Reaching a limit keeps the work done: the run's outcome is ``partial``.

    Attributes:
        turns: Model calls.
        tool_calls: Tool calls; those of one answer beyond it are answered as not run.
        tokens: Tokens of all model calls, input and output, checked before each call.
        wall_time: Seconds.
    """

    turns: int | None = 100
    tool_calls: int | None = 1000
    tokens: int | None = None
    wall_time: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_bound(
                getattr(self, name),
                f"limits.{name}",
                whole=name != "wall_time",
                least=0 if name == "tool_calls" else 1,
            )


def check_bound(value: Any, name: str, *, whole: bool, least: int = 1) -> None:
    """Raise `ConfigurationError` unless ``value`` is ``None``, or a number that can bound something."""
    kinds = (int,) if whole else (int, float)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigurationError(
            f"{name} must be a {'whole number' if whole else 'number of seconds'}, not {data.kind(value)}"
        )
    if (whole and value < least) or (not whole and not value > 0):
        raise ConfigurationError(
            f"{name} must be {f'at least {least}' if whole else 'more than 0'}, not {value}"
        )


class ToolTraits(Struct, frozen=True, gc=False):
    """What the loop has to know of a tool."""

    idempotent: bool = False
    exclusive: bool = False


# Effects


class CommitMessages(Struct, frozen=True, gc=False):
    """Store these messages, and the state as it is now. The outcome is the number of stored messages before them."""

    messages: tuple[Message, ...]


class CallModel(Struct, frozen=True, gc=False):
    """Call the model with this conversation. The outcome is a `ModelEnded`, a `Failed` or an `Interrupted`."""

    messages: list[Message]
    step: int


class StartTools(Struct, frozen=True, gc=False):
    """Start these calls, side by side. ``position`` is where their answer lies in the store. The outcome is ``None``."""

    calls: tuple[ToolUse, ...]
    position: int


class AwaitTool(Struct, frozen=True, gc=False):
    """Wait until one of the started tools ends. The outcome is its `ToolResult`, or an `Interrupted` with those of all that ended."""


class Emit(Struct, frozen=True, gc=False):
    """Tell whoever listens. The outcome is ``None``."""

    event: Any


Effect = CommitMessages | CallModel | StartTools | AwaitTool | Emit

# Outcomes


class Failed(Struct, frozen=True):
    """A model call failed, after it streamed ``text``."""

    error: Exception
    text: str = ""


class Interrupted(Struct, frozen=True):
    """The run was told to stop: what the model streamed so far, or the tools that ended all the same."""

    error: Exception
    text: str = ""
    results: tuple[ToolResult, ...] = ()


class Ending(Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        outcome: The run's outcome.
        text: The last answer's text, or what there was of it.
        error: What ended the run early.
    """

    outcome: Outcome
    text: str = ""
    error: Exception | None = None


class Book(Struct, kw_only=True):
    """What a run counts, and the conversation as it knows it, reasoning included."""

    messages: list[Message]
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    tool_calls: int = 0
    text: str = ""


Machine = Generator[Effect, Any, Ending]
Part = Generator[Effect, Any, Ending | None]

NOT_RUN = "The tool was not run, because the run was stopped before it."
STOPPED = "The tool was stopped before it ended. Whether it took effect is unknown."


def turns(
    book: Book,
    new: Message | None,
    tools: Mapping[str, ToolTraits],
    limits: RunLimits,
    *,
    granularity: Literal["call", "batch"] = "call",
) -> Machine:
    """Drive a conversation until the model has answered.

    Args:
        book: The conversation so far, as stored; counted in and added to.
        new: What the user says now; ``None`` to go on where a run stopped.
        tools: The tools there are.
        limits: What the run may use.
        granularity: How finely results are committed.
    """
    calls = _Calls(book, tools, limits, granularity)
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
        answer = yield CallModel(transcript.for_model(book.messages), book.steps)
        if type(answer) is not ModelEnded:
            text = transcript.repair(answer.text)
            yield from _keep(book, text, "failed" if type(answer) is Failed else "stopped")
            return _ending(answer.error, text or book.text)
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


def _take(book: Book, answer: ModelEnded, calls: _Calls) -> Part:
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


def _ending(error: Exception, text: str) -> Ending:
    if isinstance(error, DeadlineExceeded | LimitExceededError):
        return Ending(outcome="partial", text=text, error=error)
    return Ending(
        outcome="cancelled" if isinstance(error, RunCancelled) else "failed", text=text, error=error
    )


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


class _Calls:
    """Has tool calls answered, each exactly once."""

    def __init__(
        self,
        book: Book,
        tools: Mapping[str, ToolTraits],
        limits: RunLimits,
        granularity: Literal["call", "batch"],
    ) -> None:
        self._book = book
        self._tools = tools
        self._limits = limits
        self._at_once = granularity == "call"

    def settle(self) -> Part:
        """Settle the calls that a killed run left without a result: idempotent ones run again, the others are called interrupted."""
        messages = self._book.messages
        index = transcript.open_turn(messages)
        if index is None:
            return None
        message = messages[index]
        again: list[ToolUse] = []
        settled: list[ToolResult] = []
        for call in transcript.unsettled(messages):
            traits = self._tools.get(call.name)
            fault = _malformed(message, call)
            if fault is None and traits is not None and traits.idempotent:
                again.append(call)
            else:
                settled.append(fault or transcript.interrupted(call))
        return (yield from self._run(message.tool_uses, again, settled, index))

    def answer(self, message: Message, wanted: Sequence[ToolUse], position: int) -> Part:
        """Run the calls of a fresh answer, or refuse them."""
        limit, before = self._limits.tool_calls, self._book.tool_calls
        self._book.tool_calls += len(wanted)
        run: list[ToolUse] = []
        refused: list[ToolResult] = []
        for call in wanted:
            fault = _malformed(message, call)
            if fault is not None:
                refused.append(fault)
            elif call.name not in self._tools:
                known = ", ".join(sorted(self._tools)) or "none"
                refused.append(
                    transcript.error_result(call, f"There is no tool named {call.name!r}. Tools: {known}.")
                )
            elif limit is not None and before + len(run) >= limit:
                refused.append(
                    transcript.error_result(
                        call, "The tool was not run: the run has reached its limit of tool calls."
                    )
                )
            else:
                run.append(call)
        return (yield from self._run(wanted, run, refused, position))

    def _run(
        self, wanted: Sequence[ToolUse], run: Sequence[ToolUse], answered: Sequence[ToolResult], position: int
    ) -> Part:
        """Run calls, side by side unless one of them is exclusive, and commit the results, beside those that are known already.

        Args:
            wanted: All calls of the assistant message.
            run: Those to run.
            answered: Results of others.
            position: Where the assistant message lies in the store.
        """
        calls = {call.id: call for call in wanted}
        for result in answered:
            yield Emit(ToolEnded(call=calls[result.tool_use_id], result=result))
        held = list(answered)
        if held and self._at_once:
            yield from self._record(held, calls)
        alone = any(self._tools[call.name].exclusive for call in run)
        waiting = [call.id for call in run]
        stop: Interrupted | None = None
        for batch in [(call,) for call in run] if alone else [tuple(run)] if run else []:
            yield StartTools(batch, position)
            for _ in batch:
                outcome = yield AwaitTool()
                if type(outcome) is Interrupted:
                    stop = outcome
                    break
                waiting.remove(outcome.tool_use_id)
                yield Emit(ToolEnded(call=calls[outcome.tool_use_id], result=outcome))
                held.append(outcome)
                if self._at_once:
                    yield from self._record(held, calls)
            if stop is not None:
                ended = {result.tool_use_id: result for result in stop.results}
                started = {call.id for call in batch}
                for name in waiting:
                    result = ended.get(name) or transcript.error_result(
                        calls[name], STOPPED if name in started else NOT_RUN
                    )
                    yield Emit(ToolEnded(call=calls[name], result=result))
                    held.append(result)
                break
        if held:
            yield from self._record(held, calls)
        return None if stop is None else _ending(stop.error, self._book.text)

    def _record(
        self, results: list[ToolResult], calls: Mapping[str, ToolUse]
    ) -> Generator[Effect, Any, None]:
        """Commit results in one message, in call order, and forget them."""
        if len(results) > 1:
            order = {name: index for index, name in enumerate(calls)}
            results.sort(key=lambda result: order[result.tool_use_id])
        message = made_of(Message, "tool", tuple(results))
        yield CommitMessages((message,))
        self._book.messages.append(message)
        results.clear()


def _malformed(message: Message, call: ToolUse) -> ToolResult | None:
    """Return the answer to a call whose arguments were no JSON object."""
    wrong: Any = transcript.note(message, "malformed")
    reason = cast("dict[str, Any]", wrong).get(call.id) if isinstance(wrong, dict) else None
    return (
        None
        if reason is None
        else transcript.error_result(
            call, f"The tool was not run: its arguments are not a JSON object ({reason})."
        )
    )
