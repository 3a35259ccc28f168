"""Tool calls of a run: which are run, which wait, which are refused, and how each gets its one result."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from littleghost import transcript
from littleghost.content import Text, ToolResult, ToolUse, made_of
from littleghost.errors import SessionSuspendedError
from littleghost.events import Suspended, ToolEnded
from littleghost.message import Message
from littleghost.runs.effects import (
    NOT_RUN,
    STOPPED,
    Ask,
    AwaitTool,
    Book,
    CheckCalls,
    CommitMessages,
    Effect,
    Emit,
    Ending,
    Given,
    Interrupted,
    Part,
    StartTools,
    ToolTraits,
    Waiting,
    ending_of,
)
from littleghost.runs.limits import Budget, RunLimits
from littleghost.runs.notes import Answer, Inner, Wait, Waits
from littleghost.runs.waiting import Fate, changed_note, decide, effective, waits_for

__all__ = ["Calls", "Plan"]


class Plan(Struct):
    """What becomes of the calls of one answer.

    Attributes:
        wanted: All of them.
        run: Those to run, with the arguments that they run with.
        answered: Results that are known already.
        told: What to add to the result of a call, by its id.
        waits: Those that wait, or have waited; ``None`` where none of them could.
        pending: What is to be answered.
        given: What was answered to calls that a call's tool waits for.
        open: How many of them have no result in the store yet.
        stop: What stopped the run before any of them started.
    """

    wanted: Sequence[ToolUse]
    run: list[ToolUse]
    answered: list[ToolResult]
    open: int
    told: dict[str, str] = {}
    waits: Waits | None = None
    pending: list[ToolUse] = []
    given: dict[str, Mapping[str, Answer]] = {}
    stop: Interrupted | None = None


class Calls:
    """Has tool calls answered, each exactly once."""

    def __init__(
        self,
        book: Book,
        tools: Mapping[str, ToolTraits],
        limits: RunLimits,
        granularity: Literal["call", "batch"],
        budget: Budget | None = None,
    ) -> None:
        self._book = book
        self._tools = tools
        self._limits = limits
        self._free = frozenset(name for name, traits in tools.items() if traits.gives_answer)
        self._at_once = granularity == "call"
        bounds = [] if limits.tool_calls is None else [limits.tool_calls]
        if budget is not None and budget.tool_calls is not None:
            bounds.append(budget.tool_calls - book.before.tool_calls)
        self._tool_calls = min(bounds) if bounds else None
        self._same = limits.identical_calls

    # After a crash, or with answers

    def settle(self, given: Given, *, speaking: bool) -> Part:
        """Settle the calls that a killed run left without a result, and take in what was answered to those that wait.

        Idempotent calls run again, what waits goes on waiting, and the others are called interrupted.

        Args:
            given: The answers.
            speaking: Whether the user has something new to say, which cannot be while something waits.

        Raises:
            SessionSuspendedError: So it was. Nothing has been committed.
            ConfigurationError: An answer is not of the kind that the call waits for. Nothing has been committed.
        """
        messages = self._book.messages
        index = transcript.open_turn(messages)
        if index is None:
            self._forget()
            return None
        message = messages[index]
        self._book.text = message.text
        looked_at = self._book.notes.approvals.get(str(index))
        waits = dict(looked_at or {})
        open_calls = transcript.unsettled(messages)
        plan = Plan(message.tool_uses, [], [], len(open_calls))
        unsure: list[ToolUse] = []
        for call in open_calls:
            traits = self._tools.get(call.name)
            fault = _malformed(message, call)
            if fault is not None:
                plan.answered.append(fault)
            elif call.id in waits:
                continue
            elif traits is None:
                plan.answered.append(transcript.interrupted(call))
            elif looked_at is None and (traits.asks or traits.external):
                unsure.append(call)  # whoever made this transcript had not asked, so had not started it
            elif not traits.idempotent:
                plan.answered.append(transcript.interrupted(call))
            elif traits.checked:
                unsure.append(call)
            else:
                plan.run.append(call)
        if unsure:
            yield from self._look_at(unsure, plan, waits, fresh=False)
            if plan.stop is not None:
                return ending_of(plan.stop.error, self._book.text)
        edited: list[ToolUse] = []
        for call in open_calls:
            wait = waits.get(call.id)
            if wait is not None:
                fate = decide(call, wait, self._tools.get(call.name), given)
                waits[call.id] = fate.wait
                self._take_in(call, fate, plan)
                if fate.edited and self._tools[call.name].checked:
                    edited.append(plan.run[-1])
        if speaking and plan.pending:
            raise SessionSuspendedError(
                "the session waits for answers; give them with resume(approvals=…, results=…)",
                pending=tuple(plan.pending),
            )
        if edited:
            yield from self._look_again(edited, plan)
            if plan.stop is not None:
                return ending_of(plan.stop.error, self._book.text)
        plan.waits = waits if looked_at is not None or waits else None
        return (yield from self._carry_out(plan, index))

    def _take_in(self, call: ToolUse, fate: Fate, plan: Plan) -> None:
        """Enter into ``plan`` what was decided of a call that waited."""
        if fate.told is not None:
            plan.told[call.id] = fate.told
        if fate.result is not None:
            plan.answered.append(fate.result)
        elif fate.run is not None:
            plan.run.append(fate.run)
            if fate.given:
                plan.given[call.id] = fate.given
        else:
            plan.pending += fate.pending

    def _look_again(self, edited: list[ToolUse], plan: Plan) -> Generator[Effect, Any, None]:
        """Ask hooks about arguments that a person changed. What they change in turn, the person has not seen."""
        outcome = yield CheckCalls(tuple(edited))
        if type(outcome) is Interrupted:
            plan.stop = outcome
            return
        for call in edited:
            verdict = outcome[call.id]
            if type(verdict) is Ask and verdict.call.input == call.input:
                continue
            place = plan.run.index(call)
            if type(verdict) is ToolUse:
                plan.run[place] = verdict
                continue
            del plan.run[place]
            plan.answered.append(
                verdict
                if type(verdict) is ToolResult
                else transcript.error_result(
                    call,
                    "The tool was not run: its arguments were changed after the approval, and nobody approved the new ones.",
                )
            )

    # Fresh answers

    def plan(self, message: Message) -> Generator[Effect, Any, Plan]:
        """Decide what becomes of the calls of a fresh answer, before it is committed."""
        wanted = message.tool_uses
        limit, before = self._tool_calls, self._book.tool_calls
        self._book.tool_calls += sum(call.name not in self._free for call in wanted)
        counted = 0
        plan = Plan(wanted, [], [], len(wanted))
        check = waiting = False
        for call in wanted:
            traits = self._tools.get(call.name)
            fault = _malformed(message, call) or self._repeated(call)
            free = call.name in self._free
            if fault is not None:
                plan.answered.append(fault)
            elif traits is None:
                known = ", ".join(sorted(self._tools)) or "none"
                plan.answered.append(
                    transcript.error_result(call, f"There is no tool named {call.name!r}. Tools: {known}.")
                )
            elif limit is not None and not free and before + counted >= limit:
                plan.answered.append(
                    transcript.error_result(
                        call, "The tool was not run: the run has reached its limit of tool calls."
                    )
                )
            else:
                check = check or traits.checked
                waiting = waiting or traits.asks or traits.external
                plan.run.append(call)
                counted += not free
        if check or waiting:
            calls, plan.run = plan.run, []
            waits: Waits = {}
            yield from self._look_at(calls, plan, waits, fresh=True)
            if waiting or waits:
                plan.waits = waits
                plan.pending += [effective(call, waits[call.id]) for call in calls if call.id in waits]
        return plan

    def note(self, plan: Plan) -> None:
        """Have the next commit, which is that of the answer, note what waits."""
        if plan.waits is not None:
            self._note(self._book.stored, plan.waits)

    def answer(self, plan: Plan, position: int) -> Part:
        """Run the calls of a fresh answer, or refuse them."""
        if plan.stop is not None:
            return (yield from self._give_up(plan, plan.stop))
        return (yield from self._carry_out(plan, position, fresh=True))

    def _look_at(
        self, calls: Sequence[ToolUse], plan: Plan, waits: Waits, *, fresh: bool
    ) -> Generator[Effect, Any, None]:
        """Sort ``calls`` into those to run, those that wait and those that have their answer; hooks and tools are asked."""
        verdicts: Any = {}
        checked = tuple(call for call in calls if self._tools[call.name].checked)
        if checked:
            verdicts = yield CheckCalls(checked)
            if type(verdicts) is Interrupted:
                plan.stop = verdicts
                return
        for call in calls:
            traits = self._tools[call.name]
            verdict = verdicts.get(call.id, call)
            if type(verdict) is ToolResult:
                plan.answered.append(verdict)
                continue
            made = verdict.call if type(verdict) is Ask else verdict
            changed = None if made.input == call.input else msgspec.json.encode(made.input).decode()
            if type(verdict) is Ask or traits.external:
                waits[call.id] = Wait(
                    approval=type(verdict) is Ask, external=traits.external, arguments=changed
                )
            elif fresh or traits.idempotent:
                plan.run.append(made)
                if changed is not None:
                    plan.told[call.id] = changed_note(None)
            else:
                plan.answered.append(transcript.interrupted(call))

    def _repeated(self, call: ToolUse) -> ToolResult | None:
        """Return the refusal of a call that was made too often in a row."""
        last, limit = self._book.last, self._same
        if call.name in self._free:
            return None  # how often an answer is asked for again has a bound of its own
        if last is None or limit is None or last[2] < limit - 1 or not _alike(last[0], call):
            return None
        self._book.stuck += 1
        return transcript.error_result(
            call,
            f"The tool was not run: the last {last[2]} calls were the same, with the same arguments and the same result. "
            "Do something else, or answer.",
        )

    def _count(self, wanted: Sequence[ToolUse], results: Mapping[str, ToolResult]) -> None:
        """Count how often in a row a call was the same, in the order of the calls."""
        book = self._book
        for call in wanted:
            result, last = results.get(call.id), book.last
            if result is None or call.name in self._free:
                continue
            if last is None or not _alike(last[0], call):
                book.last, book.stuck = (call, result, 1), 0
            elif last[1].status == result.status and last[1].content == result.content:
                book.last = (call, result, last[2] + 1)
            elif not book.stuck:
                book.last = (call, result, 1)

    # Both

    def _carry_out(self, plan: Plan, position: int, *, fresh: bool = False) -> Part:
        """Run what is to run, as many side by side as may, and commit the results, beside those that are known already.

        Args:
            plan: What becomes of the calls.
            position: Where the assistant message lies in the store.
            fresh: Whether the message was committed just now.
        """
        book, run = self._book, plan.run
        calls = {call.id: call for call in plan.wanted}
        held: list[ToolResult] = []
        results: dict[str, ToolResult] = {}
        for known in plan.answered:
            results[known.tool_use_id] = known
            yield Emit(self._hold(known, calls, held, plan))
        if not fresh and plan.waits is not None:
            self._note(position, plan.waits)
        unsaid = bool(run) and book.notes is not book.noted
        if held and (self._at_once or unsaid):
            yield from self._record(held, plan)
        elif unsaid:
            yield CommitMessages(())  # an answer is committed before its tool starts
        for call in run:
            calls[call.id] = call
        width = self._limits.concurrency or len(run)
        if any(self._tools[call.name].exclusive for call in run):
            width = 1
        stop: Interrupted | None = None
        started = 0
        running: set[str] = set()
        while running or started < len(run):
            batch = tuple(run[started : started + width - len(running)])
            if batch:
                yield StartTools(batch, position, plan.given)
                started += len(batch)
                running.update(call.id for call in batch)
            outcome = yield AwaitTool()
            if type(outcome) is Interrupted:
                stop = outcome
                break
            running.discard(outcome.tool_use_id)
            if type(outcome) is Waiting:
                self._wait(calls[outcome.tool_use_id], outcome, plan, position)
                continue
            results[outcome.tool_use_id] = outcome
            yield Emit(self._hold(outcome, calls, held, plan))
            if self._at_once:
                yield from self._record(held, plan)
        if stop is not None:
            ended = {result.tool_use_id: result for result in stop.results}
            for index, call in enumerate(run):
                if index < started and call.id not in running:
                    continue
                result = ended.get(call.id) or transcript.error_result(
                    call, STOPPED if index < started else NOT_RUN
                )
                if isinstance(result, Waiting):
                    self._wait(call, result, plan, position)
                else:
                    yield Emit(self._hold(result, calls, held, plan))
        if held:
            yield from self._record(held, plan)
        elif plan.pending and book.notes is not book.noted:
            yield CommitMessages(())
        if stop is not None:
            return ending_of(stop.error, book.text)
        if fresh and self._same is not None:
            self._count(plan.wanted, results)
        if plan.pending:
            pending = tuple(plan.pending)
            yield Emit(Suspended(pending=pending))
            return Ending(outcome="suspended", text=book.text, pending=pending)
        return None

    def _give_up(self, plan: Plan, stop: Interrupted) -> Part:
        """Answer calls that a stopped run has not even looked at."""
        calls = {call.id: call for call in plan.wanted}
        known = {result.tool_use_id: result for result in plan.answered}
        held: list[ToolResult] = []
        for call in plan.wanted:
            result = known.get(call.id) or transcript.error_result(call, NOT_RUN)
            yield Emit(self._hold(result, calls, held, plan))
        yield from self._record(held, plan)
        return ending_of(stop.error, self._book.text)

    def _hold(
        self, result: ToolResult, calls: Mapping[str, ToolUse], held: list[ToolResult], plan: Plan
    ) -> ToolEnded:
        """Keep a result for the next commit, with what the model has to know beside it; return the event that tells of it."""
        told = plan.told.get(result.tool_use_id)
        if told is not None:
            result = msgspec.structs.replace(
                result, content=(*cast("tuple[Any, ...]", result.content), Text(told))
            )
        held.append(result)
        return ToolEnded(call=calls[result.tool_use_id], result=result)

    def _record(self, results: list[ToolResult], plan: Plan) -> Generator[Effect, Any, None]:
        """Commit results in one message, in call order, and forget them."""
        if len(results) > 1:
            order = {call.id: index for index, call in enumerate(plan.wanted)}
            results.sort(key=lambda result: order[result.tool_use_id])
        plan.open -= len(results)
        if not plan.open and self._book.notes.approvals:
            self._forget()
        message = made_of(Message, "tool", tuple(results))
        yield CommitMessages((message,))
        self._book.messages.append(message)
        results.clear()

    def _wait(self, call: ToolUse, outcome: Waiting, plan: Plan, position: int) -> None:
        """Note what the tool of a call waits for."""
        waits = plan.waits if plan.waits is not None else {}
        inner = {made.id: Inner(call=msgspec.json.encode(made).decode()) for made in outcome.calls}
        wait = msgspec.structs.replace(waits.get(call.id, Wait()), inner=inner)
        made = next(each for each in plan.wanted if each.id == call.id)
        if (
            call.input != made.input
        ):  # by a hook; an approved call ran with what a person made of it, or agreed to
            wait = msgspec.structs.replace(wait, arguments=msgspec.json.encode(call.input).decode())
        plan.waits = {**waits, call.id: wait}
        plan.pending = [*plan.pending, *waits_for(call, wait)]
        self._note(position, plan.waits)

    def _note(self, position: int, waits: Waits) -> None:
        known = self._book.notes.approvals
        place = str(position)
        if known.get(place) != waits or len(known) != 1:
            self._book.notes = msgspec.structs.replace(self._book.notes, approvals={place: waits})

    def _forget(self) -> None:
        """Forget what waited, when nothing does any more."""
        if self._book.notes.approvals:
            self._book.notes = msgspec.structs.replace(self._book.notes, approvals={})


def _alike(left: ToolUse, right: ToolUse) -> bool:
    return left.name == right.name and left.input == right.input


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
