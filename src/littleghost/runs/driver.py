"""Performs the effects of one run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from littleghost import data, events, telemetry, transcript
from littleghost.content import ToolUse
from littleghost.errors import LimitExceededError
from littleghost.message import Message
from littleghost.models.contract import Model
from littleghost.output.declared import Output
from littleghost.runs.calling import ModelCalls
from littleghost.runs.compaction import CompactionPlan, View, fixed_size
from littleghost.runs.effects import (
    Book,
    CallModel,
    CheckCalls,
    CommitMessages,
    Emit,
    Ending,
    Failed,
    Given,
    ReadAnswer,
    StartTools,
    Summarise,
    ToolTraits,
)
from littleghost.runs.emitter import Emitter
from littleghost.runs.hooking import HookChain, HookFailed
from littleghost.runs.hooks import Hooks
from littleghost.runs.journal import Journal
from littleghost.runs.limits import Budget, RunLimits, Spent
from littleghost.runs.loop import NOTHING_GIVEN, turns
from littleghost.runs.run import Run
from littleghost.runs.state import KeptState
from littleghost.runs.stopping import Stopped, Stopping, undisturbed
from littleghost.runs.tooling import ToolCalls
from littleghost.runs.tracing import Content, run_ended
from littleghost.tools.contract import RunContext, Tool
from littleghost.usage import Usage

if TYPE_CHECKING:
    from littleghost.runs.shaping import Shaping

__all__ = ["Driver"]

log = logging.getLogger("littleghost")


class Driver:
    """Performs the effects of one run, in the caller's task.

    Being told to stop (by the token, the deadline, or the cancellation of the caller's task) never interrupts a commit. It ends the
    model call or the tools that run, and the machine settles what is open before the run ends.
    """

    def __init__(
        self,
        *,
        run_id: str,
        span: telemetry.Span,
        content: Content,
        model: Model,
        instructions: str | None,
        settings: Mapping[str, Any],
        tools: Sequence[Tool],
        context: RunContext[Any],
        book: Book,
        journal: Journal,
        limits: RunLimits,
        granularity: Any,
        emitter: Emitter,
        compaction: CompactionPlan | None = None,
        hooks: Sequence[Hooks] = (),
        budget: Budget | None = None,
        price: Callable[[Usage], float | None] | None = None,
        out_of_time: Exception | None = None,
        output: Output[Any] | None = None,
    ) -> None:
        self._shaping: Shaping | None = None
        if output is not None:
            from littleghost.runs.shaping import Shaping  # a run whose answer is text does without it

            self._shaping = Shaping(output, model, tools)
            if self._shaping.tool is not None:
                tools = [*tools, self._shaping.tool]
        self._run_id = run_id
        self._span = span
        self._context = context
        self._book = book
        self._journal = journal
        self._limits = limits
        self._granularity = granularity
        self._emitter = emitter
        self._committed = False
        self._budget = budget
        self._price = price
        self._started = time.monotonic()
        # Once a session is counted, every run of it is.
        self._counting = budget is not None or book.notes.spent is not None
        self._stopping = Stopping(context.cancellation, context.deadline, out_of_time)
        self._state = KeptState(context.state)
        self._hooks = HookChain(hooks, self._for_hook) if hooks else None
        hooked = self._hooks is not None and self._hooks.has("before_tool")
        self._traits = {tool.name: _traits(tool, hooked=hooked) for tool in tools}
        if self._shaping is not None and self._shaping.tool is not None:
            self._traits[self._shaping.tool.name] = ToolTraits(idempotent=True, gives_answer=True)
        self._model = ModelCalls(
            model,
            instructions=instructions,
            settings=settings,
            tools=tools,
            deadline=context.deadline,
            emitter=emitter,
            stopping=self._stopping,
            hooks=self._hooks,
            content=content,
            shaping=self._shaping,
        )
        self._view: View | None = None
        if compaction is not None:
            self._view = View(
                compaction,
                fixed=fixed_size(
                    instructions, self._model.specs, None if self._shaping is None else self._shaping.format
                ),
            )
            self._summaries = ModelCalls(
                compaction.writer,
                instructions=compaction.compaction.instructions,
                settings={},
                tools=(),
                deadline=context.deadline,
                emitter=emitter,
                stopping=self._stopping,
                content=content,
                purpose="summary",
            )
        self._tools = ToolCalls(
            tools,
            context=context,
            run_id=run_id,
            life=book.notes.life,
            state=self._state,
            emitter=emitter,
            stopping=self._stopping,
            hooks=self._hooks,
            result_tokens=limits.result_tokens,
            content=content,
        )

    async def drive(
        self, new: Message | None, *, resumed: bool = False, given: Given = NOTHING_GIVEN
    ) -> Run[Any]:
        """Run until the model has answered or the run is stopped, and return the `Run`.

        Raises:
            ConfigurationError: Something is set up wrongly; raised whenever it shows.
            StoreError: A commit failed or came second; raised whenever it happens.
            RunCancelled: The run was told to stop before anything was committed.
            DeadlineExceeded: The same, by the deadline.
            SessionSuspendedError: There is something new to say while calls wait for answers.
            asyncio.CancelledError: The caller's task was cancelled; what was open has been settled.
        """
        try:
            with self._stopping.watching():
                self._emitter.emit(
                    events.RunStarted(
                        run_id=self._run_id, session_id=self._context.session_id, resumed=resumed
                    )
                )
                ending = await self._before(new) or await self._turns(new, given)
                run_ended(self._span, ending.outcome, ending.error, self._book.usage)
        finally:
            await self._tools.end()
        run: Run[Any] = Run(
            id=self._run_id,
            outcome=ending.outcome,
            text=ending.text,
            messages=transcript.normalise(self._book.messages),
            state=data.unpack(self._state.packed),
            usage=self._book.usage,
            steps=self._book.steps,
            error=ending.error,
            pending=ending.pending,
            session_id=self._context.session_id,
            cost=self._book.cost,
            spent=self._spent() if self._counting else None,
            answer=None if self._shaping is None else ending.answer,
        )
        if self._hooks is not None and self._hooks.has("after_run"):
            run = await self._after(self._hooks, run)
        error = run.error
        self._emitter.emit(
            events.RunEnded(
                outcome=run.outcome,
                text=run.text,
                error=None if error is None else type(error).__name__,
                limit=error.limit if isinstance(error, LimitExceededError) else None,
            )
        )
        if self._stopping.by_caller:
            raise asyncio.CancelledError("the run was cancelled; what was open has been settled")
        return run

    async def _before(self, new: Message | None) -> Ending | None:
        """Call the hooks before a run; return how it ends where one fails."""
        if self._hooks is None or not self._hooks.has("before_run"):
            return None
        try:
            await self._stopping.cut(self._hooks.before_run(new))
        except Stopped:
            raise self._stopped() from None
        except HookFailed as failure:
            return Ending(outcome="failed", error=failure.error)
        return None

    def _stopped(self) -> BaseException:
        """Return what to raise where the run was told to stop before anything was committed."""
        if self._stopping.by_caller:
            return asyncio.CancelledError("the run was cancelled before anything was committed")
        return cast("Exception", self._stopping.error)

    async def _after(self, hooks: HookChain, run: Run[Any]) -> Run[Any]:
        """Call the hooks after a run; return the run as it is then."""
        try:
            await hooks.after_run(run)
        except HookFailed as failure:
            return msgspec.structs.replace(run, outcome="failed", error=failure.error)
        except asyncio.CancelledError:
            self._stopping.note()
        return run

    def _for_hook(self, call: ToolUse | None) -> RunContext[Any]:
        """Return what a hook learns of the run, with a copy of the state of its own."""
        return self._context.for_hook(
            None if call is None else call.id, lambda: data.unpack(self._state.packed)
        )

    def _spent(self) -> Spent:
        """Return what the session's runs have used so far."""
        book = self._book
        before = book.before
        return Spent(
            turns=before.turns + book.steps,
            tool_calls=before.tool_calls + book.tool_calls,
            tokens=before.tokens + book.usage.total_tokens,
            cost=before.cost + (book.cost or 0.0),
            wall_time=before.wall_time + time.monotonic() - self._started,
        )

    async def _turns(self, new: Message | None, given: Given) -> Ending:
        shaping = self._shaping
        machine = turns(
            self._book,
            new,
            self._traits,
            self._limits,
            granularity=self._granularity,
            given=given,
            budget=self._budget,
            price=self._price,
            view=self._view,
            rule=None if shaping is None else shaping.rule,
        )
        outcome: Any = None
        while True:
            try:
                effect = machine.send(outcome)
            except StopIteration as stop:
                return stop.value
            if type(effect) is Emit:
                outcome = self._emitter.emit(effect.event)
            elif type(effect) is CommitMessages:
                outcome = await self._commit(effect.messages)
            elif type(effect) is CallModel:
                outcome = await self._model.call(effect)
            elif type(effect) is Summarise:
                outcome = await self._summaries.call(effect)
                if type(outcome) is Failed:
                    log.warning("a summary could not be written: %s", type(outcome.error).__name__)
            elif type(effect) is StartTools:
                outcome = self._tools.start(effect)
            elif type(effect) is CheckCalls:
                outcome = await self._tools.check(effect)
            elif type(effect) is ReadAnswer:
                outcome = cast("Shaping", shaping).read(effect.written)
            else:
                outcome = await self._tools.wait()

    async def _commit(self, messages: tuple[Message, ...]) -> int:
        """Commit, whatever happens: a cancellation is noted, and the commit made sure of by sending it again."""
        if not self._committed and self._stopping.error is not None:
            raise self._stopped()
        if self._counting:
            self._book.notes = msgspec.structs.replace(self._book.notes, spent=self._spent())
        state, notes = self._state.packed, self._book.notes
        try:
            position, event = await self._journal.commit(messages, state, notes)
        except asyncio.CancelledError:
            self._stopping.note()
            if not self._committed:
                raise
            position, event = await undisturbed(
                self._journal.commit(messages, state, notes), self._stopping.note
            )
        self._committed = True
        self._book.noted = notes
        self._book.stored = self._journal.count
        if event is not None:
            self._emitter.emit(event)
        return position


def _traits(tool: Tool, *, hooked: bool) -> ToolTraits:
    asks = tool.needs_approval is not False
    return ToolTraits(tool.idempotent, tool.exclusive, asks, tool.external, asks or hooked)
