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

from collections.abc import Callable, Generator, Mapping, Sequence
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
from littleghost.runs.answers import Answers
from littleghost.runs.calls import Calls
from littleghost.runs.compaction import View
from littleghost.runs.effects import (
    AnswerRule,
    Book,
    CallModel,
    CommitMessages,
    Effect,
    Emit,
    Ending,
    Failed,
    Given,
    Machine,
    Part,
    ToolTraits,
    ending_of,
)
from littleghost.runs.limits import Budget, RunLimits, reached
from littleghost.usage import Usage

__all__ = ["turns"]

NOTHING_GIVEN = Given()


def turns(
    book: Book,
    new: Message | None,
    tools: Mapping[str, ToolTraits],
    limits: RunLimits,
    *,
    granularity: Literal["call", "batch"] = "call",
    view: View | None = None,
    given: Given = NOTHING_GIVEN,
    budget: Budget | None = None,
    price: Callable[[Usage], float | None] | None = None,
    rule: AnswerRule | None = None,
) -> Machine:
    """Drive a conversation until the model has answered.

    Args:
        book: The conversation so far, as stored; counted in and added to.
        new: What the user says now; ``None`` to go on where a run stopped.
        tools: The tools there are.
        limits: What the run may use.
        granularity: How finely results are committed.
        view: What the model is shown of a long conversation; all of it unless given.
        given: What was answered to calls that wait.
        budget: What all runs of the session may use.
        price: What a model call costs, in US dollars.
        rule: How answers are given, where they have a type.

    Raises:
        SessionSuspendedError: There is something new to say while calls wait for answers. Nothing has been committed.
        ConfigurationError: An answer does not fit its call. Nothing has been committed.
    """
    answers = None if rule is None else Answers(book, rule)
    calls = Calls(book, tools, limits, granularity, budget)
    stopped = yield from calls.settle(given, speaking=new is not None)
    if stopped is not None:
        return stopped
    if new is not None:
        yield CommitMessages((new,))
        book.messages.append(new)
    elif answers is not None:
        ended = yield from answers.stored()
        if ended is not None:
            return ended
    elif not transcript.waits_for_model(book.messages):
        return Ending(outcome="completed", text=last_text(book.messages))
    while True:
        over = _limit(book, limits, budget)
        if over is not None:
            return Ending(outcome="partial", text=book.text, error=over)
        book.steps += 1
        if view is None:
            answer = yield CallModel(transcript.for_model(book.messages), book.steps)
        else:
            answer = yield from view.call(book, lambda: _limit(book, limits, budget))
        if type(answer) is not ModelEnded:
            text = transcript.repair(answer.text)
            if answer.usage is not None:
                book.count(answer.usage, price(answer.usage) if price else None)
            yield from _keep(book, text, "failed" if type(answer) is Failed else "stopped")
            if not text and answer.usage is not None and (budget or book.notes.spent) is not None:
                yield CommitMessages(())  # whoever hangs up has used it all the same
            return ending_of(answer.error, text or book.text)
        book.count(answer.usage, price(answer.usage) if price else None)
        ended = yield from _take(book, answer, calls, answers)
        if ended is not None:
            return ended


def last_text(messages: Sequence[Message]) -> str:
    """Return the text of the last answer."""
    return next((message.text for message in reversed(messages) if message.role == "assistant"), "")


def _take(book: Book, answer: ModelEnded, calls: Calls, answers: Answers | None) -> Part:
    """Take in a model's answer: commit it, and have its tools run."""
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
    if answers is not None and not cut:
        if not wanted:
            return (yield from answers.text(message))
        message = answers.noted(message)
    for index, call in enumerate(wanted):
        yield Emit(ToolCallReady(index=index, call=call))
    plan = None
    if wanted:
        plan = yield from calls.plan(message)
        calls.note(plan)
    position = 0
    if message.content or not cut:
        position = yield CommitMessages((message,))
        book.messages.append(message)
    text = message.text
    book.text = text or book.text
    if plan is not None:
        ended = yield from calls.answer(plan, position)
        return ended if ended is not None or answers is None else (yield from answers.called(message))
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


def _limit(book: Book, limits: RunLimits, budget: Budget | None) -> LimitExceededError | None:
    """Return the limit that forbids another model call, if one does."""
    if limits.turns is not None and book.steps >= limits.turns:
        return reached("turns", limits.turns)
    if limits.tool_calls is not None and book.tool_calls > limits.tool_calls:
        return reached("tool_calls", limits.tool_calls)
    if limits.tokens is not None and book.usage.total_tokens >= limits.tokens:
        return reached("tokens", limits.tokens)
    if limits.cost is not None and (book.cost or 0.0) >= limits.cost:
        return reached("cost", limits.cost)
    if book.stuck > 1 and limits.identical_calls is not None:
        return reached("identical_calls", limits.identical_calls)
    return None if budget is None else _over(book, budget)


def _over(book: Book, budget: Budget) -> LimitExceededError | None:
    """Return the part of the session's budget that is used up, if one is."""
    before = book.before
    if budget.turns is not None and before.turns + book.steps >= budget.turns:
        return reached("turns", budget.turns, session=True)
    if budget.tool_calls is not None and before.tool_calls + book.tool_calls > budget.tool_calls:
        return reached("tool_calls", budget.tool_calls, session=True)
    if budget.tokens is not None and before.tokens + book.usage.total_tokens >= budget.tokens:
        return reached("tokens", budget.tokens, session=True)
    if budget.cost is not None and before.cost + (book.cost or 0.0) >= budget.cost:
        return reached("cost", budget.cost, session=True)
    if budget.wall_time is not None and before.wall_time >= budget.wall_time:
        return reached("wall_time", budget.wall_time, session=True)
    return None
