"""Where agents run: the store, the workspace and the sandbox that their runs share, and the rules of who may run when."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast

import msgspec

from littleghost import data, telemetry, transcript
from littleghost.cancellation import CancellationToken, Deadline
from littleghost.content import Document, Image, Text, ToolUse
from littleghost.errors import ConfigurationError, SessionBusyError, SessionNotFoundError
from littleghost.message import Message
from littleghost.models.contract import Model
from littleghost.models.resolve import resolve_model
from littleghost.output.declared import Output, T_co
from littleghost.runs.answering import checked_answers
from littleghost.runs.compaction import DEFAULT_WINDOW, Compaction, CompactionPlan
from littleghost.runs.driver import Driver
from littleghost.runs.effects import Book
from littleghost.runs.emitter import Emitter
from littleghost.runs.hooks import Hooks
from littleghost.runs.journal import NoJournal, SessionJournal
from littleghost.runs.limits import (
    Budget,
    RunLimits,
    check_bound,
    deadline_for,
    price_of,
    reached,
    rest_of,
)
from littleghost.runs.loop import NOTHING_GIVEN
from littleghost.runs.notes import DEFAULT_AGENT, Notes
from littleghost.runs.run import Run
from littleghost.runs.stopping import stoppable, undisturbed
from littleghost.runs.streaming import Channel, RunStream
from littleghost.runs.tracing import Content, Redactor, agent_span
from littleghost.runs.underway import Underway, UnderwayRun, held
from littleghost.runs.waiting import pending_in
from littleghost.sessions.contract import SessionStore
from littleghost.sessions.session import Session
from littleghost.tools.contract import Approval, RunContext, Tool, Toolset

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from littleghost.prices import Prices
    from littleghost.sandboxes.contract import Sandbox
    from littleghost.workspace import Workspace

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

__all__ = ["Runtime"]

Busy = Literal["wait", "raise"]
_SAYABLE = frozenset({Text, Image, Document})


class Runnable(Protocol[T_co]):
    """What a runtime has to know of an agent."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def model(self) -> Model | str:
        """The model, or the string that names it."""
        ...

    @property
    def instructions(self) -> str | Callable[[RunContext[Any]], str] | None:
        """What the model is told first."""
        ...

    @property
    def tools(self) -> tuple[Tool | Toolset, ...]:
        """The tools it may use."""
        ...

    @property
    def output(self) -> Output[T_co] | None:
        """What it says of its answers; ``None`` where they are text as it comes."""
        ...

    @property
    def limits(self) -> RunLimits:
        """What a run may use."""
        ...

    @property
    def budget(self) -> Budget | None:
        """What all runs of a session may use."""
        ...

    @property
    def hooks(self) -> Sequence[Hooks]:
        """What the application does at the turning points of a run."""
        ...

    @property
    def settings(self) -> Mapping[str, Any]:
        """Options for the model's provider."""
        ...

    @property
    def compaction(self) -> Compaction | None:
        """How a long conversation is shown to the model."""
        ...


class _Outer:
    """The tool call that another agent's run is inside of."""

    def __init__(self, context: RunContext[Any], book: Book) -> None:
        self.context, self._book = context, book

    def metadata(self) -> dict[str, Any]:
        """Return what tells whose session the inner run's is."""
        return {
            transcript.MARK: {"parent": {"session": self.context.session_id, "call": self.context.call_id}}
        }

    def count(self, inner: Book) -> None:
        """Count what the inner run has used."""
        self._book.count(inner.usage, inner.cost)


class Runtime:
    """Runs agents in sessions.

    Each argument is an instance, which the caller opened or will close, or a factory, whose products the runtime owns and closes. A
    sandbox or workspace that is not open yet is opened, and then closed by the runtime.

    Args:
        session_store: A `SessionStore`, or a function that makes one.
        workspace: A `Workspace`, the path of one, or a function that makes one for each run; a function with a parameter
            gets the run's `RunContext`.
        sandbox: A `Sandbox`, or a function from a `Workspace` to one (a class is such a function). Made once where ``workspace`` is one
            workspace, for each run where it is a function.
        prices: What model calls cost, for `Run.cost`. Limits on cost take the table that comes with the library where none is given.
        capture_content: Whether spans hold messages, arguments and results: ``False``, ``True``, or a function that is called with the
            name of each attribute of that kind and its value in the form of JSON, and returns what is to be recorded (``None``: nothing).

    Raises:
        ConfigurationError: An argument is none of these.
    """

    def __init__(
        self,
        *,
        session_store: SessionStore | Callable[[], SessionStore] | None = None,
        workspace: Workspace | str | os.PathLike[str] | Callable[..., Workspace] | None = None,
        sandbox: Sandbox | Callable[[Workspace], Sandbox] | None = None,
        prices: Prices | None = None,
        capture_content: bool | Redactor = False,
    ) -> None:
        if (
            session_store is not None
            and not isinstance(session_store, SessionStore)
            and not callable(session_store)
        ):
            raise ConfigurationError(
                "session_store must be a SessionStore or a function that makes one; see open_store(url)"
            )
        if sandbox is not None and not callable(sandbox) and not hasattr(sandbox, "execute_program"):
            raise ConfigurationError(
                f"sandbox must be a Sandbox, or a function from a Workspace to one, not {data.kind(sandbox)}"
            )
        if callable(sandbox) and workspace is None:
            raise ConfigurationError("a sandbox factory needs workspace=…, which it is called with")
        self._given_store = session_store
        self._store: SessionStore | None = session_store if isinstance(session_store, SessionStore) else None
        self._workspace = workspace
        self._sandbox = sandbox
        self._prices = prices
        if not isinstance(capture_content, bool) and not callable(capture_content):
            raise ConfigurationError(
                f"capture_content must be True, False or a function, not {data.kind(capture_content)}"
            )
        self._content = Content(capture=capture_content)
        self._models: dict[str, Model] = {}
        self._owned: AsyncExitStack | None = None
        self._opening = asyncio.Lock()
        self._shared: tuple[Workspace | None, Sandbox | None] | None = None
        self._underway = Underway()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the runs that are under way, wait until they have settled what was open, and close what the runtime owns.

        What it owns are the products of factories, and the models it made from strings. New runs are refused from the first moment. Whoever
        calls this again waits too. Called from within one of the runtime's own runs, such as by a tool, it cannot wait, for it would wait
        for itself: it begins the closing, which ends after that run has, and returns.

        Raises:
            Exception: What closing one of those things raised; the others have been closed all the same.
        """
        self._closed = True
        if self._closing is None and (self._underway or self._models or self._owned is not None):
            self._closing = asyncio.create_task(self._close())
        if self._closing is not None and not self._underway.around():
            await undisturbed(self._closing)

    async def _close(self) -> None:
        await self._underway.end("the runtime was closed")
        for model in self._models.values():
            self._own().push_async_callback(model.aclose)
        self._models = {}
        await self._own().aclose()

    def _own(self) -> AsyncExitStack:
        """Return what closes the things that the runtime owns."""
        if self._owned is None:
            self._owned = AsyncExitStack()
        return self._owned

    @property
    def session_store(self) -> SessionStore:
        """The store.

        Raises:
            ConfigurationError: The runtime was given none.
        """
        if self._store is None:
            if self._given_store is None:
                raise ConfigurationError("a session_id needs a store; give Runtime(session_store=…) one")
            if self._closed:
                raise ConfigurationError("the runtime is closed")
            store = cast("Callable[[], SessionStore]", self._given_store)()
            self._own().push_async_callback(store.aclose)
            self._store = store
        return self._store

    def session(
        self, id: object, *, actor_id: object = None, metadata: Mapping[str, Any] | None = None
    ) -> Session:
        """Return the session ``id`` of ``actor_id`` in the runtime's store."""
        return Session(id=id, store=self.session_store, actor_id=actor_id, metadata=metadata)

    async def delete_session(self, id: object, *, actor_id: object = None) -> bool:
        """Delete a session, and before it those in which agents have worked as tools for it. It needs the store's list of sessions.

        Returns:
            Whether there was such a session.

        Raises:
            UnsupportedError: The store keeps no list of sessions, or cannot delete.
        """
        session = self.session(id, actor_id=actor_id)
        inner: dict[Any, list[str]] = {}
        cursor: str | None = None
        while True:
            page = await session.store.sessions(actor_id=session.actor_id, cursor=cursor)
            for info in page.items:
                metadata = info.metadata
                if metadata is None:  # the store does not tell it in lists
                    metadata = await self.session(info.id, actor_id=session.actor_id).metadata()
                inner.setdefault(transcript.parent_of(metadata), []).append(info.id)
            cursor = page.cursor
            if cursor is None:
                break
        doomed = [session.id]
        for name in doomed:
            doomed += inner.get(name, [])
        for name in reversed(doomed[1:]):  # so that whoever is interrupted can begin again
            await session.store.delete(name, actor_id=session.actor_id)
        return await session.delete()

    async def ask(
        self,
        agent: Runnable[T],
        message: str | Message | Sequence[Any],
        *,
        session_id: object = None,
        actor_id: object = None,
        busy: Busy = "wait",
        timeout: float | None = None,
        cancellation: CancellationToken | None = None,
        deps: Any = None,
        limits: RunLimits | None = None,
        budget: Budget | None = None,
    ) -> Run[T]:
        """Say ``message`` to ``agent`` and return the `Run` when it has answered.

        What a killed run left in the session is settled first.

        Args:
            agent: Whom to ask.
            message: What the user says: a string, content blocks, or a user or developer `Message`.
            session_id: The session to go on with or to begin. Without one nothing is stored.
            actor_id: Whose session it is, from an authenticated identity; ``None`` is a namespace of its own.
            busy: Where another run holds the session, ``wait`` for it, or ``raise`` at once.
            timeout: Seconds until the run must have ended; then its outcome is ``partial``.
            cancellation: A token that stops the run; then its outcome is ``cancelled``.
            deps: What tools find as ``context.deps``. Never stored.
            limits: In place of the agent's own.
            budget: In place of the agent's own.

        Returns:
            The run, whatever its outcome, once the message has been committed; see `Run.check`.

        Raises:
            ConfigurationError: Something is set up wrongly, credentials included.
            SessionBusyError: Another run holds the session.
            SessionSuspendedError: The session waits for answers; see `resume`.
            ConflictError: Something else wrote to the session in the meantime.
            StoreError: The store failed.
            asyncio.CancelledError: The caller's task was cancelled; what was open has been settled and committed.
        """
        return await self._run(
            agent,
            _new_message(message),
            session_id,
            actor_id,
            busy,
            timeout,
            cancellation,
            deps,
            limits,
            budget,
        )

    async def resume(
        self,
        agent: Runnable[T],
        *,
        session_id: object,
        actor_id: object = None,
        busy: Busy = "wait",
        timeout: float | None = None,
        cancellation: CancellationToken | None = None,
        deps: Any = None,
        limits: RunLimits | None = None,
        budget: Budget | None = None,
        approvals: Mapping[str, bool | Approval] | None = None,
        results: Mapping[str, Any] | None = None,
    ) -> Run[T]:
        """Go on where a run was killed or stopped, in this process or another; see `ask` for the rest.

        Calls without a result are settled: tools declared idempotent run again, the others are answered as interrupted. With nothing open
        the run is ``completed``, has 0 steps, and its text is the last answer.

        Calls that wait are answered here, by the ids in ``pending`` of the suspended run. An answer is committed before its tool starts.
        What is not answered goes on waiting; answers to calls that have their result, or had an answer before, are passed over.

        ``approvals`` say whether calls may run; ``results`` are those of calls of external tools: whatever a tool may return, a
        `ToolResult`, or a `ToolError` for a failure.

        Raises:
            ConfigurationError: An answer does not fit its call, or the agent has another name than the one that began.
            SessionNotFoundError: There is no such session for this actor.
        """
        if session_id is None:
            raise ConfigurationError("resume needs a session_id")
        return await self._run(
            agent,
            None,
            session_id,
            actor_id,
            busy,
            timeout,
            cancellation,
            deps,
            limits,
            budget,
            approvals,
            results,
        )

    async def pending(self, *, session_id: object, actor_id: object = None) -> tuple[ToolUse, ...]:
        """Return the calls that a session waits for, as `Run.pending` of its suspended run has them; ``()`` where none waits.

        It reads only: no agent, no lease, no commit.

        Raises:
            SessionNotFoundError: There is no such session for this actor.
        """
        session = self.session(session_id, actor_id=actor_id)
        if await session.load() is None:
            raise _no_session(session)
        return pending_in(await session.journal(), Notes.read(await session.metadata()))

    @asynccontextmanager
    async def stream(
        self,
        agent: Runnable[T],
        message: str | Message | Sequence[Any] | None,
        *,
        session_id: object = None,
        actor_id: object = None,
        busy: Busy = "wait",
        timeout: float | None = None,
        cancellation: CancellationToken | None = None,
        deps: Any = None,
        limits: RunLimits | None = None,
        budget: Budget | None = None,
        approvals: Mapping[str, bool | Approval] | None = None,
        results: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RunStream[T]]:
        """Do what `ask` does, or with ``None`` for a message what `resume` does, and give its events as they happen.

        Leaving the block early cancels the run, and waits until what was open is settled. What `ask` raises, reading the events raises.
        """
        new = None if message is None else _new_message(message)
        if new is None and session_id is None:
            raise ConfigurationError("resuming needs a session_id")
        if new is not None and (approvals or results):
            raise ConfigurationError("approvals and results are for resuming; give None for the message")
        channel: Channel[T] = Channel()
        token = CancellationToken(cancellation)
        task = asyncio.create_task(
            self._run(
                agent,
                new,
                session_id,
                actor_id,
                busy,
                timeout,
                token,
                deps,
                limits,
                budget,
                approvals,
                results,
                channel,
            )
        )
        channel.start(task)
        try:
            yield RunStream(channel)
        finally:
            token.detach()
            if not task.done():
                token.cancel("the reader left")
                channel.let_go()
                with suppress(Exception):
                    await undisturbed(task)
            if not task.cancelled():
                channel.error = task.exception()
                channel.run = None if channel.error is not None else task.result()

    # Within

    async def _run(
        self,
        agent: Runnable[T],
        new: Message | None,
        session_id: object,
        actor_id: object,
        busy: Busy,
        timeout: float | None,
        cancellation: CancellationToken | None,
        deps: Any,
        limits: RunLimits | None,
        budget: Budget | None,
        approvals: Mapping[str, bool | Approval] | None = None,
        results: Mapping[str, Any] | None = None,
        channel: Channel[T] | None = None,
        outer: _Outer | None = None,
    ) -> Run[T]:
        """Hold everything that a run needs, and drive it: with what the user says, or ``None`` to go on where one stopped."""
        if self._closed:
            raise ConfigurationError("the runtime is closed")
        if busy not in ("wait", "raise"):
            raise ConfigurationError(f"busy must be 'wait' or 'raise', not {busy!r}")
        check_bound(timeout, "timeout", amount="number of seconds")
        if limits is not None and not isinstance(limits, RunLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"limits must be RunLimits(…), not {data.kind(limits)}")
        if budget is not None and not isinstance(budget, Budget):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"budget must be Budget(…), not {data.kind(budget)}")
        model = self._model(agent.model)
        session = None
        if session_id is not None:
            metadata = None if outer is None else outer.metadata()
            session = self.session(session_id, actor_id=actor_id, metadata=metadata)
        run_id = os.urandom(16).hex()
        chosen = limits or agent.limits
        budget = budget or agent.budget
        price = price_of(model, self._prices, chosen, budget)
        compaction = agent.compaction and self._planned(agent.compaction, model, chosen, budget)
        deadline, out_of_time = deadline_for(timeout, chosen)
        token = CancellationToken(cancellation)
        async with AsyncExitStack() as stack:
            if cancellation is not None:
                stack.callback(token.detach)
            underway = stack.enter_context(self._underway.begin(token))
            if session is not None:
                with stoppable(token):
                    left = None if deadline is None else deadline.remaining()
                    await self._hold(stack, session, underway, busy, left)
            # A new question has a trace of its own, which begins here; a resumed run belongs to one that only the session names.
            span = telemetry.NOTHING if new is None else self._span(stack, agent, model, run_id, session)
            context: RunContext[Any] = RunContext(
                deps=deps,
                session_id=None if session is None else session.id,
                actor_id=session.actor_id
                if session is not None
                else None
                if actor_id is None
                else str(actor_id),
                run_id=run_id,
                cancellation=token,
                deadline=deadline,
            )
            book = Book(messages=[])
            if outer is not None:
                stack.callback(lambda: outer.count(book))
            journal: Any = NoJournal()
            if session is not None:
                exists = await session.load() is not None
                if exists and outer is not None:
                    new = None  # an earlier attempt at this very call has said it
                if new is None and not exists:
                    raise _no_session(session)
                book.messages = await session.journal()
                book.stored = len(book.messages)
                context.state = await session.state()
                metadata = await session.metadata()
                book.notes = book.noted = Notes.read(metadata)
                if book.notes.spent is not None:
                    book.before = book.notes.spent
                journal = SessionJournal(
                    session,
                    len(book.messages),
                    data.pack_object(context.state, "state"),
                    metadata,
                    book.notes,
                )
                book.notes = _introduced(book.notes, agent.name, resumed=new is None)
            if budget is not None and budget.wall_time is not None:
                left = max(0.0, budget.wall_time - book.before.wall_time)
                if deadline is None or left < deadline.remaining():
                    context.deadline = Deadline(left)
                    out_of_time = reached("wall_time", budget.wall_time, session=True)
            if new is None and outer is None:
                span = self._span(stack, agent, model, run_id, session, resumed=True, trace=book.notes.trace)
            if span.recorded and session is not None and (new is not None or book.notes.trace is None):
                book.notes = msgspec.structs.replace(book.notes, trace=telemetry.current_operation())
            if outer is None:
                context = await self._with_places(stack, context)
            else:
                context = context.within(outer.context)
            context.delegate = partial(self._delegate, book, chosen, budget)
            tools = await _tools(stack, agent.tools, context)
            given = NOTHING_GIVEN
            if approvals is not None or results is not None:
                given = checked_answers(
                    approvals,
                    results,
                    messages=book.messages,
                    tools=tools,
                    result_tokens=chosen.result_tokens,
                )
            instructions = agent.instructions
            driver = Driver(
                run_id=run_id,
                span=span,
                content=self._content,
                model=model,
                instructions=instructions(context) if callable(instructions) else instructions,
                settings=agent.settings,
                tools=tools,
                context=context,
                book=book,
                journal=journal,
                limits=chosen,
                granularity="call" if session is None else session.store.granularity,
                output=agent.output,
                emitter=Emitter() if channel is None else Emitter(channel.hear, channel.ready),
                compaction=compaction,
                hooks=agent.hooks,
                budget=budget,
                price=price,
                out_of_time=out_of_time,
            )
            return await driver.drive(new, resumed=new is None, given=given)

    async def _delegate(
        self,
        book: Book,
        limits: RunLimits,
        budget: Budget | None,
        agent: Runnable,
        message: Message,
        context: RunContext[Any],
    ) -> Run:
        """Ask ``agent`` inside of a tool call, or go on with what it has begun for it, and count what it uses as the caller's."""
        key = context.idempotency_key
        stored = context.session_id is not None and key is not None
        return await self._run(
            agent,
            message,
            f"delegated-{key[:32]}" if stored and key is not None else None,
            context.actor_id,
            "wait",
            None if context.deadline is None else max(1e-3, context.deadline.remaining()),
            context.cancellation,
            context.deps,
            rest_of(agent.limits, limits, budget, book.before, book.usage, book.cost),
            None,
            context.approvals or None,
            context.results or None,
            outer=_Outer(context, book),
        )

    def _planned(
        self, compaction: Compaction, model: Model, limits: RunLimits, budget: Budget | None
    ) -> CompactionPlan:
        """Return ``compaction`` for ``model`` with its writer, its window and its price."""
        writer = model if compaction.model is None else self._model(compaction.model)
        window = compaction.window or model.context_window
        if window is None:
            from littleghost.prices import Prices

            window = (self._prices or Prices.bundled()).context_window(model.name, model.provider)
        return CompactionPlan(
            compaction=compaction,
            writer=writer,
            window=window or DEFAULT_WINDOW,
            writer_window=None if writer is model else writer.context_window,
            price=price_of(writer, self._prices, limits, budget),
        )

    def _span(
        self,
        stack: AsyncExitStack,
        agent: Runnable,
        model: Model,
        run_id: str,
        session: Session | None,
        *,
        resumed: bool = False,
        trace: str | None = None,
    ) -> telemetry.Span:
        """Begin the span of a run, which ends with ``stack``; below the span that ``trace`` names, linked to where it was asked for."""
        if not telemetry.recording():
            return telemetry.NOTHING
        link = None
        if trace is not None:
            link = telemetry.current_operation()
            stack.enter_context(telemetry.operation(trace))
        return stack.enter_context(
            agent_span(
                agent.name,
                model=model,
                run_id=run_id,
                session_id=None if session is None else session.id,
                resumed=resumed,
                link=link,
            )
        )

    def _model(self, model: Model | str) -> Model:
        if not isinstance(model, str):
            return model
        if model not in self._models:
            self._models[model] = resolve_model(model)
        return self._models[model]

    async def _hold(
        self, stack: AsyncExitStack, session: Session, run: UnderwayRun, busy: Busy, seconds: float | None
    ) -> None:
        """Become the one run of ``session``: in this store instance, and across processes where the store has leases."""
        store, started, key = session.store, time.monotonic(), (session.actor_id, session.id)
        if held(store, key):
            raise SessionBusyError(
                f"session {session.id!r} is in use by the very run that asks for it; a tool can ask in another session",
                id=session.id,
            )
        bound = 0.0 if busy == "raise" else seconds
        options: dict[str, Any] = {} if bound is None else {"timeout": bound}
        await stack.enter_async_context(store.synchronize(session.id, actor_id=session.actor_id, **options))
        if "leases" in store.capabilities:
            left = bound if bound is None else max(0.0, bound - (time.monotonic() - started))
            await stack.enter_async_context(session.lease(timeout=left))
        run.holds = store, key

    async def _with_places(self, stack: AsyncExitStack, context: RunContext[Any]) -> RunContext[Any]:
        """Return ``context`` with the workspace and the sandbox of the run."""
        if self._workspace is None and self._sandbox is None:
            return context
        if callable(self._workspace):
            make = self._workspace
            made = make(context) if _takes_argument(make) else make()
            workspace, sandbox = await _open(stack, made, self._sandbox)
        else:
            async with self._opening:
                if self._shared is None:
                    self._shared = await _open(self._own(), self._shared_workspace(), self._sandbox)
            workspace, sandbox = self._shared
        return context.inside(workspace, sandbox)

    def _shared_workspace(self) -> Workspace | None:
        if isinstance(self._workspace, str | os.PathLike):
            from littleghost.workspace import Workspace

            return Workspace(cast("str | os.PathLike[str]", self._workspace))
        return cast("Workspace | None", self._workspace)


async def _open(
    stack: AsyncExitStack,
    workspace: Workspace | None,
    sandbox: Sandbox | Callable[[Workspace], Sandbox] | None,
) -> tuple[Workspace | None, Sandbox | None]:
    """Open a workspace and the sandbox over it, unless they are open, and have ``stack`` close what this opened."""
    if sandbox is None:
        if workspace is not None and not workspace.is_open:
            await workspace.open()
            stack.push_async_callback(lambda: undisturbed(workspace.close()))
        return workspace, None
    box = sandbox(cast("Workspace", workspace)) if callable(sandbox) else sandbox
    if not box.is_open:
        stack.push_async_callback(lambda: undisturbed(box.close()))
    await box.open()
    return workspace, box


async def _tools(
    stack: AsyncExitStack, given: Sequence[Tool | Toolset], context: RunContext[Any]
) -> list[Tool]:
    """Return the tools of a run, with those of its toolsets."""
    tools: list[Tool] = []
    for item in given:
        if isinstance(item, Toolset):
            tools += await stack.enter_async_context(item.open(context))
        else:
            tools.append(item)
    names = [tool.name for tool in tools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"two tools have the same name: {', '.join(twice)}")
    return tools


def _introduced(notes: Notes, agent: str, *, resumed: bool) -> Notes:
    """Return ``notes`` as the next commit writes them: the session has a life, and the agent its name.

    Raises:
        ConfigurationError: Another agent's run is to go on.
    """
    if resumed and notes.agent is not None and notes.agent != agent:
        raise ConfigurationError(
            f"agent {agent!r} cannot go on with a run of agent {notes.agent!r}; resume it with an agent of that name"
        )
    name = None if agent == DEFAULT_AGENT else agent
    if notes.life is not None and notes.agent == name:
        return notes
    return msgspec.structs.replace(notes, life=notes.life or os.urandom(8).hex(), agent=name)


def _new_message(message: Any) -> Message:
    new = message if isinstance(message, Message) else Message("user", message)
    if new.role not in ("user", "developer"):
        raise ConfigurationError(f"message must have the role user or developer, not {new.role}")
    if transcript.sanitise([new]) != [new] or not new.content:
        raise ConfigurationError("message must have content, and must not be transient")
    if not _SAYABLE.issuperset(map(type, new.content)):
        raise ConfigurationError(
            "message may hold text, images and documents; tool calls and results come from runs"
        )
    return new


def _no_session(session: Session) -> SessionNotFoundError:
    return SessionNotFoundError(f"there is no session {session.id!r} for this actor", id=session.id)


def _takes_argument(factory: Callable[..., Any]) -> bool:
    try:
        return bool(inspect.signature(factory).parameters)
    except (TypeError, ValueError):
        return False
