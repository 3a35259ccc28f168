"""The tools of a run at work."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from littleghost import data, events, transcript
from littleghost.content import ToolResult, ToolUse, made_of
from littleghost.errors import (
    ConfigurationError,
    DataError,
    DeadlineExceeded,
    RunCancelled,
    ToolError,
    ToolRetry,
)
from littleghost.runs.effects import STOPPED, Ask, CheckCalls, Interrupted, StartTools, Waiting
from littleghost.runs.emitter import Emitter
from littleghost.runs.hooking import HookChain, HookFailed
from littleghost.runs.notes import Answer
from littleghost.runs.results import fitted
from littleghost.runs.state import KeptState
from littleghost.runs.stopping import Stopped, Stopping
from littleghost.runs.tracing import Content, tool_ended, tool_span
from littleghost.tools.contract import Approval, RunContext, Tool, ToolPending
from littleghost.tools.function import result_content

__all__ = ["ToolCalls"]

log = logging.getLogger("littleghost")

WITHHELD = "The tool has run, but its result could not be checked and is withheld."


class ToolCalls:
    """Runs the tools of a run, each in a task of its own.

    Args:
        tools: The tools there are.
        context: What they learn of the run.
        run_id: The run.
        life: The session's life, where there is a session.
        state: What they read and change.
        emitter: Whom to tell.
        stopping: What cuts the wait for them short.
        hooks: What the application does before and after.
        result_tokens: How long a result may be.
        content: What spans may tell of arguments and results.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        context: RunContext[Any],
        run_id: str,
        life: str | None,
        state: KeptState,
        emitter: Emitter,
        stopping: Stopping,
        content: Content,
        hooks: HookChain | None = None,
        result_tokens: int | None = None,
    ) -> None:
        self._after = hooks if hooks is not None and hooks.has("after_tool") else None
        self._before = hooks if hooks is not None and hooks.has("before_tool") else None
        self._result_tokens = result_tokens
        self._tools = {tool.name: tool for tool in tools}
        self._context = context
        self._run_id = run_id
        self._life = life
        self._state = state
        self._emitter = emitter
        self._stopping = stopping
        self._content = content
        self._running: dict[asyncio.Task[Ended], ToolUse] = {}
        self._ended: deque[asyncio.Task[Ended]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def check(self, effect: CheckCalls) -> Any:
        """Ask hooks and tools about calls, one after another; return what `CheckCalls` says."""
        try:
            return await self._stopping.cut(self._check_all(effect.calls))
        except Stopped:
            return Interrupted(cast("Exception", self._stopping.error))
        except HookFailed as failure:
            return Interrupted(failure.error)
        except Exception as error:  # noqa: BLE001 (whatever it is, the answer is kept and its calls are settled)
            return Interrupted(error)

    async def _check_all(self, calls: Sequence[ToolUse]) -> dict[str, ToolUse | Ask | ToolResult]:
        return {call.id: await self._verdict(self._tools[call.name], call) for call in calls}

    async def _verdict(self, tool: Tool, call: ToolUse) -> ToolUse | Ask | ToolResult:
        made = call
        if self._before is not None:
            try:
                answer = await self._before.before_tool(call)
            except ToolError as error:
                return self._fitted(_tool_error(tool, call, error))
            if isinstance(answer, ToolResult):
                return self._fitted(answer)
            made = answer
            if made is not call:
                try:
                    tool.validate(data.copy(made.input))
                except ToolError as error:
                    raise ConfigurationError(
                        f"a hook gave tool {tool.name} arguments that it does not take: {error}"
                    ) from error
        if tool.needs_approval is False:
            return made
        try:
            arguments = tool.validate(data.copy(made.input))
        except Exception as error:  # noqa: BLE001 (it is the call's result)
            return self._fitted(_tool_error(tool, call, error))
        return Ask(made) if _needs_approval(tool, arguments) else made

    def _fitted(self, result: ToolResult) -> ToolResult:
        return fitted(result, self._result_tokens)

    def start(self, effect: StartTools) -> None:
        """Start the tools of some calls, side by side."""
        if self._stopping.error is not None:
            return
        for call in effect.calls:
            self._emitter.emit(events.ToolStarted(call=call))
            given = effect.given.get(call.id) if effect.given else None
            work = self._run_tool(self._tools[call.name], call, self._key(effect.position, call), given)
            task = asyncio.create_task(work)
            self._running[task] = call
            task.add_done_callback(self._tool_ended)

    def _key(self, position: int, call: ToolUse) -> str:
        """Return what names this call, and no other, across resumes."""
        where = self._context.session_id if self._context.session_id is not None else self._run_id
        named = [self._context.actor_id, where, self._life, position, call.id]
        return hashlib.sha256(data.pack(named)).hexdigest()

    async def _run_tool(
        self, tool: Tool, call: ToolUse, key: str, given: Mapping[str, Answer] | None
    ) -> Ended:
        seen = b""

        def state() -> dict[str, Any]:
            nonlocal seen
            seen = self._state.packed
            return data.unpack(seen)

        with tool_span(tool, call, self._content) as span:
            result: ToolResult | Waiting
            attempt = 0
            while True:
                context = self._context.for_call(call.id, key, state)
                if given is not None:
                    _hand_over(context, given)
                try:
                    content = await self._bounded(tool, data.copy(call.input), context)
                except (asyncio.CancelledError, KeyboardInterrupt):
                    raise
                except ToolPending as pending:
                    result = _waiting(tool, call, pending)
                except BaseException as error:  # noqa: BLE001 (whatever a tool raises is its answer)
                    if isinstance(error, ToolRetry) and attempt < tool.retries:
                        attempt += 1
                        if await self._pause(error, attempt):
                            continue  # what it did to its copy of the state is gone
                    span.fail(error)
                    result = self._fitted(_tool_error(tool, call, error))
                    if isinstance(error, _LeftBehind):
                        return result
                else:
                    result = self._fitted(
                        made_of(ToolResult, tool_use_id=call.id, content=content, status="success")
                    )
                break
            if type(result) is ToolResult:
                tool_ended(span, result, self._content)
            if context.touched_state is not None:
                try:
                    self._state.take(seen or self._state.packed, context.touched_state)
                except DataError as error:
                    span.fail(error)
                    result = transcript.error_result(
                        call, f"Tool failed: its changes of the state were not taken over ({error})."
                    )
            if self._after is None or type(result) is Waiting:
                return result
            return await self._reviewed(self._after, tool, call, cast("ToolResult", result))

    async def _reviewed(self, hooks: HookChain, tool: Tool, call: ToolUse, result: ToolResult) -> Ended:
        """Return what hooks make of a result."""
        try:
            return self._fitted(await hooks.after_tool(call, result))
        except ToolError as error:
            return self._fitted(_tool_error(tool, call, error))
        except HookFailed as failure:
            # What was to be looked at first is not stored unseen.
            return _Faulted(transcript.error_result(call, WITHHELD), failure.error)

    async def _pause(self, error: ToolRetry, attempt: int) -> bool:
        """Wait before a tool is run again; return whether there is time for that."""
        delay = min(30.0, 0.5 * 2.0 ** (attempt - 1)) if error.after is None else max(0.0, error.after)
        deadline = self._context.deadline
        if deadline is not None and not delay < deadline.remaining():
            return False
        await asyncio.sleep(delay)
        return True

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
                await asyncio.wait([task], timeout=tool.grace)
                raise _LeftBehind(
                    f"The tool did not end within {tool.timeout:g} s and was stopped. Whether it took effect is unknown."
                )
            return result_content(task.result())
        finally:
            task.cancel()

    def _tool_ended(self, task: asyncio.Task[Ended]) -> None:
        self._ended.append(task)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> Any:
        """Wait for the next of the started tools; return its `ToolResult`, or an `Interrupted`."""
        try:
            if not self._ended:
                await self._stopping.cut(self._next_ended())
            ended = self._result_of(self._ended.popleft())
            if type(ended) is not _Faulted:
                return ended
            return Interrupted(ended.error, results=(ended.result, *await self.end()))
        except Stopped:
            results = await self.end()
            return Interrupted(cast("Exception", self._stopping.error), results=results)

    async def _next_ended(self) -> None:
        while not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _result_of(self, task: asyncio.Task[Ended]) -> Ended:
        call = self._running.pop(task)
        if task.cancelled():
            return transcript.error_result(call, STOPPED)
        error = task.exception()
        if error is not None:
            raise error
        return task.result()

    async def end(self) -> tuple[ToolResult | Waiting, ...]:
        """Stop the tools that run, wait for them a while, and return the results of those that ended all the same."""
        if not self._running:
            return ()
        for task in self._running:
            task.cancel()
        grace = max(self._tools[call.name].grace for call in self._running.values())
        give_up = time.monotonic() + grace
        while waiting := [task for task in self._running if not task.done()]:
            left = give_up - time.monotonic()
            if left <= 0:
                names = ", ".join(sorted(self._running[task].name for task in waiting))
                log.warning("tools did not stop within %g s and were left behind: %s", grace, names)
                break
            try:
                await asyncio.wait(waiting, timeout=left)
            except asyncio.CancelledError:
                self._stopping.note()
        ended = [
            task.result()
            for task in self._running
            if task.done() and not task.cancelled() and task.exception() is None
        ]
        self._running.clear()
        self._ended.clear()
        return tuple(result.result if isinstance(result, _Faulted) else result for result in ended)


class _LeftBehind(ToolError):
    """A tool did not end in time; what it does from then on is its own business."""


class _Faulted(Struct, frozen=True):
    """What is stored of a tool's result that a hook failed over."""

    result: ToolResult
    error: Exception


Ended = ToolResult | Waiting | _Faulted


def _needs_approval(tool: Tool, arguments: dict[str, Any]) -> bool:
    """Whether a person must approve a call with ``arguments``; where the tool's function fails, one must."""
    if not callable(tool.needs_approval):
        return bool(tool.needs_approval)
    try:
        return bool(tool.needs_approval(arguments))
    except Exception:
        log.exception("needs_approval of tool %s failed; the call needs approval", tool.name)
        return True


def _hand_over(context: RunContext[Any], given: Mapping[str, Answer]) -> None:
    """Let a tool find the answers to what it waited for."""
    context.results = {
        name: msgspec.json.decode(answer.result, type=ToolResult)
        for name, answer in given.items()
        if answer.result is not None
    }
    context.approvals = {
        name: Approval(
            answer.approved,
            None if answer.arguments is None else data.unpack(answer.arguments),
            answer.reason,
        )
        for name, answer in given.items()
        if answer.result is None
    }


def _waiting(tool: Tool, call: ToolUse, pending: ToolPending) -> ToolResult | Waiting:
    """Return what a tool waits for; an error where it is nothing that could be answered."""
    calls: Any = pending.calls
    names = [made.id for made in calls if isinstance(made, ToolUse)]
    if not calls or len(set(names)) != len(calls):
        log.error("tool %s raised ToolPending without calls that can be told apart", tool.name)
        return transcript.error_result(call, "Tool failed (ToolPending)")
    return Waiting(call.id, tuple(calls))


def _tool_error(tool: Tool, call: ToolUse, error: BaseException) -> ToolResult:
    """Return what the model learns of a tool's failure: a `ToolError` whole, of anything else the class name alone."""
    if isinstance(error, ToolError):
        return transcript.error_result(call, str(error) or type(error).__name__)
    if isinstance(error, DataError):
        return transcript.error_result(call, f"Tool failed: {error}")
    if not isinstance(error, RunCancelled | DeadlineExceeded):
        log.error("tool %s failed", tool.name, exc_info=error)
    return transcript.error_result(call, f"Tool failed ({type(error).__name__})")
