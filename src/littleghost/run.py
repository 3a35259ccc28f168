"""A run: what comes out of it, and the driver that performs the effects of the loop."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast, get_args

import msgspec
from msgspec import Struct

from littleghost import data, events, loop, telemetry, transcript
from littleghost.cancellation import CancellationToken, Deadline
from littleghost.content import ToolResult, ToolUse, made_of
from littleghost.errors import (
    ConfigurationError,
    DataError,
    DeadlineExceeded,
    LittleGhostError,
    ModelError,
    ModelProtocolError,
    RunCancelled,
    StoreError,
    ToolError,
)
from littleghost.loop import CallModel, CommitMessages, Emit, StartTools
from littleghost.message import Message, pack_messages, pack_plain
from littleghost.models.contract import Model, ModelRequest, ToolSpec
from littleghost.sessions.session import Session
from littleghost.tools.contract import RunContext, Tool
from littleghost.tools.function import result_content
from littleghost.usage import Usage

__all__ = ["Run"]

Result = TypeVar("Result")
log = logging.getLogger("littleghost")

MODEL_EVENTS: frozenset[type] = frozenset(get_args(events.ModelEvent))
GRACE = 5.0
"""Seconds that tools get to end after they were told to."""


class Run(Struct, frozen=True, kw_only=True):
    """What came out of a run.

    Attributes:
        id: The run's id.
        outcome: ``completed``; ``partial``: a limit or the deadline was reached; ``failed``: the model failed; ``cancelled``;
            ``suspended``: answers are awaited.
        text: The last answer, or what there was of it.
        messages: The whole conversation, in normalised form.
        state: The session's state.
        usage: The tokens of all model calls.
        error: What ended the run early, else ``None``.
        steps: How often the model was called.
        pending: The calls that wait for answers, where the run is suspended.
        session_id: The session, or ``None`` where nothing is stored.
    """

    id: str
    outcome: loop.Outcome
    text: str
    messages: list[Message]
    state: dict[str, Any]
    usage: Usage
    steps: int
    error: Exception | None = None
    pending: tuple[ToolUse, ...] = ()
    session_id: str | None = None

    @property
    def output(self) -> Any:
        """The answer as the type that the agent declares; its text where it declares none."""
        return self.text

    def check(self) -> Run:
        """Return the run itself, or raise `error` where there is one."""
        if self.error is not None:
            raise self.error
        return self


class Journal(Protocol):
    """Where a run's messages go, one commit at a time."""

    async def commit(self, messages: Sequence[Message], state: bytes) -> tuple[int, events.Committed | None]:
        """Store ``messages`` and the packed ``state``; return the number of messages stored before, and what to tell listeners."""
        ...


class SessionJournal:
    """Commits to a session."""

    def __init__(self, session: Session, count: int, state: bytes) -> None:
        self._session = session
        self._count = count
        self._state = state

    async def commit(self, messages: Sequence[Message], state: bytes) -> tuple[int, events.Committed | None]:
        """Append to the session, guarded by the revision it knows."""
        kept = transcript.sanitise(messages)
        position = self._count
        if state != self._state:
            commit = await self._session.append(kept, state=data.unpack(state))
        elif kept:
            commit = await self._session.append(kept)
        else:
            return position, None
        self._count, self._state = position + len(kept), state
        return position, events.Committed(count=commit.count, revision=commit.revision)


class NoJournal:
    """Checks what the user says as a session would, and stores nothing. What the run makes itself was checked as it was made."""

    def __init__(self) -> None:
        self._count = 0

    async def commit(self, messages: Sequence[Message], state: bytes) -> tuple[int, events.Committed | None]:
        """Count."""
        for message in messages:
            if message.role not in ("assistant", "tool") and pack_plain((message,)) is None:
                pack_messages((message,))
        position = self._count
        self._count += len(messages)
        return position, None


class _Stopped(Exception):
    """An effect was cut short because the run was told to stop."""


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
        book: loop.Book,
        journal: Journal,
        limits: loop.RunLimits,
        granularity: Any,
        listen: Callable[[Any], None] | None = None,
        ready: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._run_id = run_id
        self._agent = agent
        self._model = model
        told = data.check_text(instructions, "instructions") if instructions else ""
        self._instructions = [Message.system(told)] if told else []
        self._settings = dict(settings)
        self._tools = {tool.name: tool for tool in tools}
        self._specs = tuple(
            [ToolSpec(name=tool.name, description=tool.description, schema=tool.schema) for tool in tools]
        )
        self._context = context
        self._book = book
        self._journal = journal
        self._limits = limits
        self._granularity = granularity
        self._listen = listen
        self._ready = ready
        self._seq = 0
        self._task: asyncio.Task[Any] | None = None
        self._stop: Exception | None = None
        self._stoppable = False
        self._poked = False
        self._cancelled_by_caller = False
        self._cancellations = 0  # requests that the caller's task had before the run
        self._committed = False
        self._good_state = data.pack_object(context.state, "state")
        self._running: dict[asyncio.Task[ToolResult], ToolUse] = {}
        self._ended: deque[asyncio.Task[ToolResult]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    # Being told to stop

    def stop(self, error: Exception) -> None:
        """Stop the run because of ``error``. To be called on the run's loop; the first call counts."""
        if self._stop is None:
            self._stop = error
        if self._stoppable and not self._poked and self._task is not None:
            self._poked = True
            self._task.cancel()

    async def _interruptible(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await ``work``, or raise `_Stopped` as soon as the run is told to stop."""
        if self._stop is not None:
            work.close()
            raise _Stopped
        self._stoppable = True
        try:
            return await work
        except asyncio.CancelledError as error:
            if not self._poked and cast("asyncio.Task[Any]", self._task).cancelling() <= self._cancellations:
                raise ModelError("the model was cancelled from within") from error  # by nobody who may
            self._note_cancellation()
            raise _Stopped from None
        finally:
            self._stoppable = False
            if self._poked:
                await self._absorb()

    def _note_cancellation(self) -> None:
        """Tell a cancellation that we asked for ourselves from one by the caller."""
        task = cast("asyncio.Task[Any]", self._task)
        if self._poked:
            self._poked = False
            if task.uncancel() <= self._cancellations:
                return
        self._cancelled_by_caller = True
        if self._stop is None:
            self._stop = RunCancelled("cancelled by the caller")

    async def _absorb(self) -> None:
        """Take back our own cancellation where the work ended before it arrived."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._note_cancellation()
        if self._poked:
            self._poked = False
            cast("asyncio.Task[Any]", self._task).uncancel()

    # Driving

    async def drive(self, new: Message | None, *, resumed: bool = False) -> Run:
        """Run until the model has answered or the run is stopped, and return the `Run`.

        Raises:
            ConfigurationError: Something is set up wrongly; raised whenever it shows.
            StoreError: A commit failed or came second; raised whenever it happens.
            RunCancelled: The run was told to stop before anything was committed.
            DeadlineExceeded: The same, by the deadline.
            asyncio.CancelledError: The caller's task was cancelled; what was open has been settled.
        """
        self._task = asyncio.current_task()
        self._cancellations = self._task.cancelling() if self._task is not None else 0
        running = asyncio.get_running_loop()
        deadline, token = self._context.deadline, self._context.cancellation
        remove = token.add_callback(lambda: _call_on(running, lambda: self.stop(_cancelled(token))))
        timer = None
        if deadline is not None:
            passed = DeadlineExceeded(f"the run did not end within {deadline.seconds:g} s")
            timer = running.call_later(deadline.remaining(), self.stop, passed)
        try:
            with telemetry.span(
                f"invoke_agent {self._agent}",
                {
                    "gen_ai.operation.name": "invoke_agent",
                    "gen_ai.agent.name": self._agent,
                    "littleghost.run_id": self._run_id,
                    "littleghost.resumed": resumed,
                },
            ) as span:
                self._emit(
                    events.RunStarted(
                        run_id=self._run_id, session_id=self._context.session_id, resumed=resumed
                    )
                )
                ending = await self._turns(new)
                span.set("littleghost.outcome", ending.outcome)
                if ending.error is not None:
                    span.fail(ending.error)
        finally:
            remove()
            if timer is not None:
                timer.cancel()
            await self._end_tools()
        self._emit(
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
            state=data.unpack(self._good_state),
            usage=self._book.usage,
            steps=self._book.steps,
            error=ending.error,
            session_id=self._context.session_id,
        )
        if self._cancelled_by_caller:
            raise asyncio.CancelledError("the run was cancelled; what was open has been settled")
        return run

    async def _turns(self, new: Message | None) -> loop.Ending:
        traits = {
            tool.name: loop.ToolTraits(tool.idempotent, tool.exclusive) for tool in self._tools.values()
        }
        machine = loop.turns(self._book, new, traits, self._limits, granularity=self._granularity)
        outcome: Any = None
        while True:
            try:
                effect = machine.send(outcome)
            except StopIteration as stop:
                return stop.value
            if type(effect) is Emit:
                outcome = self._emit(effect.event)
            elif type(effect) is CommitMessages:
                outcome = await self._commit(effect.messages)
            elif type(effect) is CallModel:
                outcome = await self._call_model(effect)
            elif type(effect) is StartTools:
                outcome = self._start_tools(effect)
            else:
                outcome = await self._await_tool()

    def _emit(self, event: Any) -> None:
        if self._listen is None:
            return
        self._seq += 1
        msgspec.structs.force_setattr(event, "seq", self._seq)
        msgspec.structs.force_setattr(event, "at", time.time())
        self._listen(event)

    async def _commit(self, messages: tuple[Message, ...]) -> int:
        """Commit, whatever happens: a cancellation is noted, and the commit made sure of by sending it again."""
        if not self._committed and self._stop is not None:
            raise self._stop
        state = self._good_state
        try:
            position, event = await self._journal.commit(messages, state)
        except asyncio.CancelledError:
            self._note_cancellation()
            if not self._committed:
                raise
            position, event = await undisturbed(
                self._journal.commit(messages, state), self._note_cancellation
            )
        self._committed = True
        if event is not None:
            self._emit(event)
        return position

    # The model

    async def _call_model(self, effect: CallModel) -> Any:
        deadline = self._context.deadline
        request = ModelRequest(
            messages=[*self._instructions, *effect.messages],
            tools=self._specs,
            settings=self._settings,
            timeout=None if deadline is None else deadline.remaining(),
        )
        heard: list[str] = []
        self._emit(events.ModelStarted(step=effect.step, model=self._model.name))
        try:
            with telemetry.span(
                f"chat {self._model.name}",
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.provider.name": self._model.provider,
                    "gen_ai.request.model": self._model.name,
                },
            ) as span:
                answer = await self._interruptible(self._listen_to(request, heard))
                span.set("gen_ai.usage.input_tokens", answer.usage.input_tokens)
                span.set("gen_ai.usage.output_tokens", answer.usage.output_tokens)
                return answer
        except _Stopped:
            return loop.Interrupted(cast("Exception", self._stop), "".join(heard))
        except (ConfigurationError, StoreError):
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not isinstance(error, LittleGhostError):
                log.exception("model %s failed", self._model.name)
            if not isinstance(error, Exception):
                fault = ModelError(f"{self._model.name} failed ({type(error).__name__})")
                fault.__cause__ = error
                return loop.Failed(fault, "".join(heard))
            return loop.Failed(error, "".join(heard))

    async def _listen_to(self, request: ModelRequest, heard: list[str]) -> events.ModelEnded:
        ended: events.ModelEnded | None = None
        stream = self._model.stream(request)
        close = getattr(stream, "aclose", None)  # generators have it; an iterator need not
        try:
            async for event in stream:
                if type(event) is events.ModelEnded:
                    ended = event
                    break
                if type(event) not in MODEL_EVENTS:
                    raise ModelProtocolError(
                        f"{self._model.name} yielded {data.kind(event)} in place of an event"
                    )
                if type(event) is events.TextDelta:
                    heard.append(event.text)
                elif type(event) is events.Retrying:
                    heard.clear()
                if self._listen is not None:
                    self._emit(event)
                    if self._ready is not None:
                        await self._ready()
        finally:
            if close is not None:
                await close()
        if ended is None:
            raise ModelProtocolError(f"{self._model.name} ended its stream without an answer")
        if not isinstance(ended.message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModelProtocolError(
                f"{self._model.name} answered with {data.kind(ended.message)} in place of a Message"
            )
        return ended

    # Tools

    def _start_tools(self, effect: StartTools) -> None:
        if self._stop is not None:
            return
        for call in effect.calls:
            self._emit(events.ToolStarted(call=call))
            work = self._run_tool(self._tools[call.name], call, self._key(effect.position, call))
            task = asyncio.create_task(work)
            self._running[task] = call
            task.add_done_callback(self._tool_ended)

    def _key(self, position: int, call: ToolUse) -> str:
        """Return what names this call, and no other, across resumes."""
        where = self._context.session_id if self._context.session_id is not None else self._run_id
        return hashlib.sha256(data.pack([self._context.actor_id, where, position, call.id])).hexdigest()

    async def _run_tool(self, tool: Tool, call: ToolUse, key: str) -> ToolResult:
        seen = b""

        def state() -> dict[str, Any]:
            nonlocal seen
            seen = self._good_state
            return data.unpack(seen)

        context = self._context.for_call(call.id, key, state)
        with telemetry.span(
            f"execute_tool {tool.name}",
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool.name,
                "gen_ai.tool.call.id": call.id,
            },
        ) as span:
            result: ToolResult | None = None
            try:
                content = await self._bounded(tool, data.copy(call.input), context)
            except (asyncio.CancelledError, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 (whatever a tool raises is its answer)
                span.fail(error)
                result = _tool_error(tool, call, error)
                if isinstance(error, _LeftBehind):
                    return result
            else:
                result = made_of(ToolResult, tool_use_id=call.id, content=content, status="success")
            if context.touched_state is not None:
                try:
                    self._take_state(seen or self._good_state, context.touched_state)
                except DataError as error:
                    span.fail(error)
                    return transcript.error_result(
                        call, f"Tool failed: its changes of the state were not taken over ({error})."
                    )
            return result

    async def _bounded(
        self, tool: Tool, arguments: dict[str, Any], context: RunContext[Any]
    ) -> tuple[Any, ...]:
        if tool.timeout is None:
            return result_content(await tool.call(arguments, context))
        task = asyncio.ensure_future(tool.call(arguments, context))
        try:
            await asyncio.wait([task], timeout=tool.timeout)
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=GRACE)
                raise _LeftBehind(
                    f"The tool did not end within {tool.timeout:g} s and was stopped. Whether it took effect is unknown."
                )
            return result_content(task.result())
        finally:
            task.cancel()

    def _take_state(self, seen: bytes, made: Any) -> None:
        """Take over what a call made of the state that it saw.

        Raises:
            DataError: It cannot be stored, or another call changed the same thing since. Nothing is taken over.
        """
        mine = data.pack_object(made, "state")
        if data.equal(mine, seen):
            return
        if self._good_state == seen:
            self._good_state = mine
            return
        before, after, now = (_members(raw) for raw in (seen, mine, self._good_state))
        for key in before.keys() | after.keys():
            wanted = after.get(key)
            if wanted == before.get(key):
                continue  # even the same new value is a loss, if it is a count that both have raised
            if now.get(key) != before.get(key):
                raise DataError.at(
                    data.member("state", key), "was changed by another call meanwhile, and that change stays"
                )
            if wanted is None:
                del now[key]
            else:
                now[key] = wanted
        self._good_state = data.pack_object({key: data.unpack(raw) for key, raw in now.items()}, "state")

    def _tool_ended(self, task: asyncio.Task[ToolResult]) -> None:
        self._ended.append(task)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _await_tool(self) -> Any:
        try:
            if self._ended:
                return self._result_of(self._ended.popleft())
            await self._interruptible(self._next_ended())
            return self._result_of(self._ended.popleft())
        except _Stopped:
            results = await self._end_tools()
            return loop.Interrupted(cast("Exception", self._stop), results=results)

    async def _next_ended(self) -> None:
        while not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _result_of(self, task: asyncio.Task[ToolResult]) -> ToolResult:
        call = self._running.pop(task)
        if task.cancelled():
            return transcript.error_result(call, loop.STOPPED)
        error = task.exception()
        if error is not None:
            raise error
        return task.result()

    async def _end_tools(self) -> tuple[ToolResult, ...]:
        """Stop the tools that run, wait for them a while, and return the results of those that ended all the same."""
        if not self._running:
            return ()
        for task in self._running:
            task.cancel()
        give_up = time.monotonic() + GRACE
        while waiting := [task for task in self._running if not task.done()]:
            left = give_up - time.monotonic()
            if left <= 0:
                names = ", ".join(sorted(self._running[task].name for task in waiting))
                log.warning("tools did not stop within %g s and were left behind: %s", GRACE, names)
                break
            try:
                await asyncio.wait(waiting, timeout=left)
            except asyncio.CancelledError:
                self._note_cancellation()
        results = [
            task.result()
            for task in self._running
            if task.done() and not task.cancelled() and task.exception() is None
        ]
        self._running.clear()
        self._ended.clear()
        return tuple(results)


async def undisturbed(
    work: Coroutine[Any, Any, Result] | asyncio.Task[Result], note: Callable[[], None] | None = None
) -> Result:
    """Await ``work`` to its end, in a task of its own, whoever cancels the caller meanwhile, and however often.

    Some frameworks cancel over and over until the code that they left behind is gone; anyio's cancel scopes do.

    Args:
        work: What must be done.
        note: Called for each cancellation. Without it, a cancellation is raised when the work is done.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            if note is not None:
                note()
    if cancelled is not None and note is None:
        if not task.cancelled():
            task.exception()  # seen; the cancellation goes first
        raise cancelled
    return task.result()


class _LeftBehind(ToolError):
    """A tool did not end in time; what it does from then on is its own business."""


def _members(raw: bytes) -> dict[str, bytes]:
    """Return the members of a packed object, each packed, in a form that is the same for the same JSON."""
    return {key: data.pack_sorted(value) for key, value in data.unpack(raw).items()}


def _tool_error(tool: Tool, call: ToolUse, error: BaseException) -> ToolResult:
    """Return what the model learns of a tool's failure: a `ToolError` whole, of anything else the class name alone."""
    if isinstance(error, ToolError):
        return transcript.error_result(call, str(error) or type(error).__name__)
    if isinstance(error, DataError):
        return transcript.error_result(call, f"Tool failed: {error}")
    if not isinstance(error, RunCancelled | DeadlineExceeded):
        log.error("tool %s failed", tool.name, exc_info=error)
    return transcript.error_result(call, f"Tool failed ({type(error).__name__})")


def _cancelled(token: CancellationToken) -> RunCancelled:
    return RunCancelled(
        f"the run was cancelled: {token.reason}" if token.reason else "the run was cancelled",
        reason=token.reason,
    )


def _call_on(running: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call ``callback`` on ``running``: at once where that is the current loop, else soon; not at all where it is closed."""
    try:
        if asyncio.get_running_loop() is running:
            callback()
            running.call_soon_threadsafe(lambda: None)  # it sleeps, where a signal handler has called
            return
    except RuntimeError:
        pass
    try:
        running.call_soon_threadsafe(callback)
    except RuntimeError:
        pass


@contextmanager
def stoppable(token: CancellationToken) -> Generator[None]:
    """Cancel what is awaited inside when ``token`` is, and raise `RunCancelled` in its place."""
    token.check()
    running, task = asyncio.get_running_loop(), cast("asyncio.Task[Any]", asyncio.current_task())
    before, asked = task.cancelling(), False

    def cancel() -> None:
        nonlocal asked
        asked = True
        task.cancel()

    remove = token.add_callback(lambda: _call_on(running, cancel))
    try:
        yield
    except asyncio.CancelledError:
        if asked and task.uncancel() <= before:
            raise _cancelled(token) from None
        raise
    finally:
        remove()


def deadline_for(timeout: float | None, limits: loop.RunLimits) -> Deadline | None:
    """Return the nearer of the caller's time-out and the limit on wall time."""
    bounds = [bound for bound in (timeout, limits.wall_time) if bound is not None]
    return Deadline(min(bounds)) if bounds else None
