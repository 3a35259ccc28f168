"""The tools of a run at work."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from littleghost import data, events, telemetry, transcript
from littleghost.content import ToolResult, ToolUse, made_of
from littleghost.errors import DataError, DeadlineExceeded, RunCancelled, ToolError
from littleghost.runs.effects import STOPPED, Interrupted, StartTools
from littleghost.runs.emitter import Emitter
from littleghost.runs.state import KeptState
from littleghost.runs.stopping import Stopped, Stopping
from littleghost.tools.contract import RunContext, Tool
from littleghost.tools.function import result_content

__all__ = ["ToolCalls"]

log = logging.getLogger("littleghost")

GRACE = 5.0
"""Seconds that tools get to end after they were told to."""


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
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._context = context
        self._run_id = run_id
        self._life = life
        self._state = state
        self._emitter = emitter
        self._stopping = stopping
        self._running: dict[asyncio.Task[ToolResult], ToolUse] = {}
        self._ended: deque[asyncio.Task[ToolResult]] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def start(self, effect: StartTools) -> None:
        """Start the tools of some calls, side by side."""
        if self._stopping.error is not None:
            return
        for call in effect.calls:
            self._emitter.emit(events.ToolStarted(call=call))
            work = self._run_tool(self._tools[call.name], call, self._key(effect.position, call))
            task = asyncio.create_task(work)
            self._running[task] = call
            task.add_done_callback(self._tool_ended)

    def _key(self, position: int, call: ToolUse) -> str:
        """Return what names this call, and no other, across resumes."""
        where = self._context.session_id if self._context.session_id is not None else self._run_id
        named = [self._context.actor_id, where, self._life, position, call.id]
        return hashlib.sha256(data.pack(named)).hexdigest()

    async def _run_tool(self, tool: Tool, call: ToolUse, key: str) -> ToolResult:
        seen = b""

        def state() -> dict[str, Any]:
            nonlocal seen
            seen = self._state.packed
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
                    self._state.take(seen or self._state.packed, context.touched_state)
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

    def _tool_ended(self, task: asyncio.Task[ToolResult]) -> None:
        self._ended.append(task)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> Any:
        """Wait for the next of the started tools; return its `ToolResult`, or an `Interrupted`."""
        try:
            if self._ended:
                return self._result_of(self._ended.popleft())
            await self._stopping.cut(self._next_ended())
            return self._result_of(self._ended.popleft())
        except Stopped:
            results = await self.end()
            return Interrupted(cast("Exception", self._stopping.error), results=results)

    async def _next_ended(self) -> None:
        while not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _result_of(self, task: asyncio.Task[ToolResult]) -> ToolResult:
        call = self._running.pop(task)
        if task.cancelled():
            return transcript.error_result(call, STOPPED)
        error = task.exception()
        if error is not None:
            raise error
        return task.result()

    async def end(self) -> tuple[ToolResult, ...]:
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
                self._stopping.note()
        results = [
            task.result()
            for task in self._running
            if task.done() and not task.cancelled() and task.exception() is None
        ]
        self._running.clear()
        self._ended.clear()
        return tuple(results)


class _LeftBehind(ToolError):
    """A tool did not end in time; what it does from then on is its own business."""


def _tool_error(tool: Tool, call: ToolUse, error: BaseException) -> ToolResult:
    """Return what the model learns of a tool's failure: a `ToolError` whole, of anything else the class name alone."""
    if isinstance(error, ToolError):
        return transcript.error_result(call, str(error) or type(error).__name__)
    if isinstance(error, DataError):
        return transcript.error_result(call, f"Tool failed: {error}")
    if not isinstance(error, RunCancelled | DeadlineExceeded):
        log.error("tool %s failed", tool.name, exc_info=error)
    return transcript.error_result(call, f"Tool failed ({type(error).__name__})")
