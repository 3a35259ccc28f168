"""Tool calls of a run: which are run, which are refused, and how each gets its one result."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, cast

from littleghost import transcript
from littleghost.content import ToolResult, ToolUse, made_of
from littleghost.events import ToolEnded
from littleghost.message import Message
from littleghost.runs.effects import (
    NOT_RUN,
    STOPPED,
    AwaitTool,
    Book,
    CommitMessages,
    Effect,
    Emit,
    Interrupted,
    Part,
    StartTools,
    ToolTraits,
    ending_of,
)
from littleghost.runs.limits import RunLimits

__all__ = ["Calls"]


class Calls:
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
        self._free = frozenset(name for name, traits in tools.items() if traits.gives_answer)
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
        limit, free = self._limits.tool_calls, self._free
        before = self._book.tool_calls
        self._book.tool_calls += sum(call.name not in free for call in wanted)
        counted = 0
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
            elif call.name in free:
                run.append(call)
            elif limit is not None and before + counted >= limit:
                refused.append(
                    transcript.error_result(
                        call, "The tool was not run: the run has reached its limit of tool calls."
                    )
                )
            else:
                run.append(call)
                counted += 1
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
        return None if stop is None else ending_of(stop.error, self._book.text)

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
