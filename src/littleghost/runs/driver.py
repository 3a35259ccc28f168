"""Performs the effects of one run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from littleghost import data, events, telemetry, transcript
from littleghost.message import Message
from littleghost.models.contract import Model
from littleghost.runs.calling import ModelCalls
from littleghost.runs.compaction import Compaction, View, fixed_size, window_of
from littleghost.runs.effects import (
    Book,
    CallModel,
    CommitMessages,
    Emit,
    Ending,
    Failed,
    StartTools,
    Summarise,
    ToolTraits,
)
from littleghost.runs.emitter import Emitter
from littleghost.runs.journal import Journal
from littleghost.runs.limits import RunLimits
from littleghost.runs.loop import turns
from littleghost.runs.run import Run
from littleghost.runs.state import KeptState
from littleghost.runs.stopping import Stopping, undisturbed
from littleghost.runs.tooling import ToolCalls
from littleghost.tools.contract import RunContext, Tool

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
        agent: str,
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
        compaction: Compaction | None = None,
        summariser: Model | None = None,
    ) -> None:
        self._run_id = run_id
        self._agent = agent
        self._context = context
        self._book = book
        self._journal = journal
        self._limits = limits
        self._granularity = granularity
        self._emitter = emitter
        self._committed = False
        self._stopping = Stopping(context.cancellation, context.deadline)
        self._state = KeptState(context.state)
        self._traits = {tool.name: ToolTraits(tool.idempotent, tool.exclusive) for tool in tools}
        self._model = ModelCalls(
            model,
            instructions=instructions,
            settings=settings,
            tools=tools,
            deadline=context.deadline,
            emitter=emitter,
            stopping=self._stopping,
        )
        self._view: View | None = None
        if compaction is not None:
            writer = summariser or model
            self._view = View(
                compaction,
                window=window_of(compaction, model),
                summary_window=None if writer is model else writer.context_window,
                fixed=fixed_size(instructions, self._model.specs),
            )
            self._summaries = ModelCalls(
                writer,
                instructions=compaction.instructions,
                settings={},
                tools=(),
                deadline=context.deadline,
                emitter=emitter,
                stopping=self._stopping,
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
        )

    async def drive(self, new: Message | None, *, resumed: bool = False) -> Run:
        """Run until the model has answered or the run is stopped, and return the `Run`.

        Raises:
            ConfigurationError: Something is set up wrongly; raised whenever it shows.
            StoreError: A commit failed or came second; raised whenever it happens.
            RunCancelled: The run was told to stop before anything was committed.
            DeadlineExceeded: The same, by the deadline.
            asyncio.CancelledError: The caller's task was cancelled; what was open has been settled.
        """
        attributes: dict[str, telemetry.Attribute] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self._agent,
            "littleghost.run_id": self._run_id,
            "littleghost.resumed": resumed,
        }
        try:
            with (
                self._stopping.watching(),
                telemetry.span(f"invoke_agent {self._agent}", attributes) as span,
            ):
                self._emitter.emit(
                    events.RunStarted(
                        run_id=self._run_id, session_id=self._context.session_id, resumed=resumed
                    )
                )
                ending = await self._turns(new)
                span.set("littleghost.outcome", ending.outcome)
                if ending.error is not None:
                    span.fail(ending.error)
        finally:
            await self._tools.end()
        self._emitter.emit(
            events.RunEnded(
                outcome=ending.outcome,
                text=ending.text,
                error=None if ending.error is None else type(ending.error).__name__,
            )
        )
        run = Run(
            id=self._run_id,
            outcome=ending.outcome,
            text=ending.text,
            messages=transcript.normalise(self._book.messages),
            state=data.unpack(self._state.packed),
            usage=self._book.usage,
            steps=self._book.steps,
            error=ending.error,
            session_id=self._context.session_id,
        )
        if self._stopping.by_caller:
            raise asyncio.CancelledError("the run was cancelled; what was open has been settled")
        return run

    async def _turns(self, new: Message | None) -> Ending:
        machine = turns(
            self._book, new, self._traits, self._limits, granularity=self._granularity, view=self._view
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
            else:
                outcome = await self._tools.wait()

    async def _commit(self, messages: tuple[Message, ...]) -> int:
        """Commit, whatever happens: a cancellation is noted, and the commit made sure of by sending it again."""
        if not self._committed and self._stopping.error is not None:
            raise self._stopping.error
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
        if event is not None:
            self._emitter.emit(event)
        return position
