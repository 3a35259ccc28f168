"""A run's connection to one server: opened with the run, made again where it drops, closed in every case."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any, TypeVar, cast

import mcp_types as types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from littleghost.errors import (
    ConfigurationError,
    CredentialError,
    LittleGhostError,
    ToolConnectionError,
    ToolError,
    ToolTimeoutError,
)
from littleghost.tools.contract import RunContext
from littleghost.tools.mcp import pipes, web
from littleghost.tools.mcp.hearing import Fate, Heard, Inbound, Outbound
from littleghost.tools.mcp.listing import all_tools
from littleghost.tools.mcp.options import Options
from littleghost.tools.mcp.results import said
from littleghost.tools.mcp.servers import HTTP, Stdio

__all__ = ["Connection"]

log = logging.getLogger("littleghost.mcp")
Result = TypeVar("Result")

TRIES = 3
"""How often a lost server is reached for, for one call."""
PAUSE = 0.2
"""Seconds before the second try; each further pause is twice as long."""
RECONNECTIONS = 20
"""How often a run connects to one server again, which may be one that dies at every call."""
CLOSE_SECONDS = 10.0
"""What a connection gets to close by itself."""
NOT_MADE = "The call was not made."
UNKNOWN = "Whether the call took effect is unknown."

_Answer = types.CallToolResult | types.InputRequiredResult
_ANSWER: TypeAdapter[Any] = TypeAdapter(_Answer)


class _Link:
    """One session with the server, in a task of its own: the SDK's scopes must be left by the task that entered them."""

    def __init__(
        self, server: Stdio | HTTP, name: str, context: RunContext[Any], connect_timeout: float
    ) -> None:
        self.fate = Fate()
        self.ended = asyncio.Event()
        self.session: ClientSession | None = None
        self._server, self._name, self._context, self._connect_timeout = (
            server,
            name,
            context,
            connect_timeout,
        )
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(), name="littleghost-mcp")

    def _streams(self) -> AbstractAsyncContextManager[tuple[Inbound, Outbound]]:
        if isinstance(self._server, HTTP):
            return web.connected(self._server, self._connect_timeout)
        return pipes.connected(self._server, self._name, self._context, self.fate)

    async def _live(self) -> None:
        web.fate_of_call.set(self.fate)
        try:
            async with self._streams() as (inbound, outbound):
                heard = Heard(inbound, outbound, self._name, self.ended)
                info = types.Implementation(name="littleghost", version=version("littleghost"))
                async with ClientSession(
                    cast("Any", heard), cast("Any", outbound), client_info=info
                ) as session:
                    try:
                        await _greet(session)
                        self.session = session
                        self._ready.set_result(None)
                        await self.ended.wait()
                    finally:
                        self.fate.over = True
        finally:
            self.ended.set()

    async def greeted(self) -> ClientSession:
        """Return the session when the server has answered the greeting.

        Raises:
            ToolConnectionError: It has not, or cannot be reached.
            CredentialError: It refuses the credentials.
            ConfigurationError: Something about it is set up wrongly.
        """
        await asyncio.wait([self._ready, self._task], return_when=asyncio.FIRST_COMPLETED)
        if self.session is not None:
            return self.session
        error = None if self._task.cancelled() else _innermost(self._task.exception())
        if self.fate.refused is not None:
            raise CredentialError(
                f"{self._name} refuses the credentials (HTTP status {self.fate.refused}); see headers="
            ) from error
        if isinstance(error, LittleGhostError):
            raise error
        if isinstance(self.fate.error, ConfigurationError):
            raise self.fate.error
        words = self.fate.words or said(str(error) or type(error).__name__)
        raise ToolConnectionError(
            f"{self._name} cannot be reached: {words}", details=self.fate.details
        ) from (self.fate.error or error)

    def end(self) -> None:
        """Have it end; `close` waits for that."""
        self.ended.set()
        if self.session is None:
            self._task.cancel()

    async def close(self) -> None:
        """End the session and the server's program, and return when they are gone."""
        self.end()
        try:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        finally:
            self._task.cancel()
            await _to_its_end(self._task)
            self._ready.cancel()
        if self.session is not None and not self._task.cancelled() and self._task.exception() is not None:
            log.warning("the connection to %s ended badly", self._name, exc_info=self._task.exception())


async def _greet(session: ClientSession) -> None:
    """Open the session: by the handshake that most servers know, else by that of the versions from 2026 on."""
    try:
        await session.initialize()
    except MCPError as error:
        if error.code not in (types.UNSUPPORTED_PROTOCOL_VERSION, types.METHOD_NOT_FOUND):
            raise
        await session.discover()


class Connection:
    """What a run has of one server.

    Args:
        server: Which server.
        name: What it is called.
        options: How to treat it.
        context: The run.
    """

    def __init__(self, server: Stdio | HTTP, name: str, options: Options, context: RunContext[Any]) -> None:
        self._server, self._name, self._options, self._context = server, name, options, context
        self._link: _Link | None = None
        self._old: list[_Link] = []
        self._connecting = asyncio.Lock()
        self._reconnections = 0
        self._closed = False

    async def tools(self) -> Sequence[types.Tool]:
        """Connect, and return the tools that the server lists.

        Raises:
            ToolConnectionError: It cannot be reached, or does not speak the protocol.
            CredentialError: It refuses the credentials.
            RunCancelled: The run was told to stop meanwhile.
            DeadlineExceeded: The run's time was up.
        """
        seconds = self._options.connect_timeout
        deadline = self._context.deadline
        try:
            return await _unless_stopped(
                self._listed(),
                seconds if deadline is None else min(seconds, deadline.remaining()),
                self._context,
            )
        except TimeoutError as error:
            if isinstance(error, LittleGhostError):
                raise
            self._context.check()
            raise ToolConnectionError(
                f"{self._name} did not answer within {seconds:g} s; see connect_timeout="
            ) from error

    async def _listed(self) -> Sequence[types.Tool]:
        link = await self._connect()
        try:
            session = await link.greeted()
            return await all_tools(session, self._name)
        except MCPError as error:
            raise ToolConnectionError(
                f"{self._name} does not list its tools: {link.fate.words or said(error.message)}",
                details=link.fate.details,
            ) from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            place = said(".".join(map(str, first["loc"])), 200)
            raise ToolConnectionError(
                f"{self._name} lists its tools in a form that is not MCP's ({place}: {said(first['msg'], 200)})"
            ) from error

    async def call(self, tool: str, arguments: dict[str, Any], *, idempotent: bool) -> types.CallToolResult:
        """Call a tool of the server, and return what it answered.

        A call that surely did nothing is made again over a new connection; one whose fate is unknown only where it is idempotent, once.

        Raises:
            ToolError: The server refused the call or did not answer it in the protocol's form.
            ToolConnectionError: It is gone.
            ToolTimeoutError: It did not answer in time, and was told to stop.
        """
        seconds = self._options.timeout
        try:
            async with asyncio.timeout(seconds):
                answer = await self._answered(tool, arguments, idempotent=idempotent)
        except TimeoutError as error:
            waited = "in time" if seconds is None else f"within {seconds:g} s"
            raise ToolTimeoutError(
                f"{self._name} did not answer {waited} and was told to stop. {UNKNOWN}"
            ) from error
        if isinstance(answer, types.InputRequiredResult):
            raise ToolError(f"{self._name} asks for more input in the middle of the call, which is not given")
        return answer

    async def _answered(self, tool: str, arguments: dict[str, Any], *, idempotent: bool) -> _Answer:
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
        again, tries, pause = idempotent, TRIES, PAUSE
        effect = NOT_MADE
        while True:
            try:
                link = await self._linked()
            except ToolConnectionError as error:
                raise ToolConnectionError(f"{error}. {effect}") from error
            fate = Fate()
            token = web.fate_of_call.set(fate)
            try:
                session = await link.greeted()
                # Not call_tool: it would have the server's schemas, regular expressions and all, judge the result.
                return await session.send_request(request, _ANSWER)
            except MCPError as error:
                gone = link.ended.is_set() or error.code == types.CONNECTION_CLOSED
                words = fate.words or (link.fate.words if gone else "")
                if fate.refused is not None:
                    raise ToolError(
                        f"{self._name} refuses the credentials (HTTP status {fate.refused})"
                    ) from error
                if fate.expired or fate.unsent:
                    self._retire(link, keep=fate.unsent)
                    tries -= 1
                    if tries:
                        log.warning("%s: %s; trying again", self._name, words)
                        await asyncio.sleep(0 if fate.expired else pause)
                        pause *= 2
                        continue
                    raise ToolConnectionError(f"{self._name} cannot be reached: {words}. {effect}") from (
                        fate.error or error
                    )
                if not (gone or fate.lost):
                    told = said(error.message) or f"{self._name} refused the call"
                    raise ToolError(f"{told} ({words})" if words else told) from error
                if again:
                    again, effect = False, UNKNOWN
                    log.warning("%s is gone (%s); an idempotent call is made again", self._name, words)
                    continue
                raise ToolConnectionError(
                    f"{self._name} went away during the call: {words or said(error.message)}. {UNKNOWN}"
                ) from (fate.error or error)
            except (ValidationError, RecursionError) as error:
                raise ToolError(f"{self._name} answered in a form that is not MCP's. {UNKNOWN}") from error
            finally:
                web.fate_of_call.reset(token)

    async def _linked(self) -> _Link:
        """Return the connection, which is made again where it dropped."""
        async with self._connecting:
            if self._closed:
                raise ToolError(f"the run that {self._name} was opened for has ended")
            if self._link is not None and not self._link.ended.is_set():
                return self._link
            pause, error = PAUSE, None
            for attempt in range(TRIES):
                if self._reconnections >= RECONNECTIONS:
                    break
                if attempt:
                    await asyncio.sleep(pause)
                    pause *= 2
                self._reconnections += 1
                link = await self._connect()
                try:
                    async with asyncio.timeout(self._options.connect_timeout):
                        await link.greeted()
                except (ToolConnectionError, TimeoutError) as failure:
                    error = failure
                except ConfigurationError as failure:
                    raise ToolConnectionError(f"{self._name} cannot be reached again") from failure
                else:
                    log.warning("%s was connected again", self._name)
                    return link
                finally:
                    if link.session is None:
                        link.end()
            if isinstance(error, ToolConnectionError):
                raise error
            told = "was lost too often" if error is None else "does not answer any more"
            raise ToolConnectionError(f"{self._name} {told}") from error

    async def _connect(self) -> _Link:
        """Start a connection, in place of the one before."""
        if self._link is not None:
            self._retire(self._link)
        for link in self._old:
            if link.ended.is_set():
                await link.close()
        self._old = [link for link in self._old if not link.ended.is_set()]
        self._link = _Link(self._server, self._name, self._context, self._options.connect_timeout)
        return self._link

    def _retire(self, link: _Link, *, keep: bool = False) -> None:
        """Make no more calls over ``link``. Those that are under way over it go on."""
        if self._link is link and not keep:
            self._link = None
            self._old.append(link)

    async def close(self) -> None:
        """Close everything, and return when nothing of it is left, however often the caller is cancelled meanwhile."""
        self._closed = True
        links = [*self._old, *([] if self._link is None else [self._link])]
        if links:
            closing = asyncio.ensure_future(asyncio.gather(*(link.close() for link in links)))
            await _to_its_end(closing)


async def _unless_stopped(
    work: Coroutine[Any, Any, Result], seconds: float, context: RunContext[Any]
) -> Result:
    """Return what ``work`` does, or raise `TimeoutError`, or why the run was told to stop."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(context.cancellation.wait())
    try:
        await asyncio.wait([task, stopped], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        context.check()
        raise TimeoutError
    finally:
        stopped.cancel()
        task.cancel()
        await _to_its_end(task)


async def _to_its_end(task: asyncio.Future[Any]) -> None:
    """Wait until ``task`` is done; a cancellation goes on then. What it raises is of no interest any more."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()
    if cancelled is not None:
        raise cancelled


def _innermost(error: BaseException | None) -> BaseException | None:
    """Return what a group of exceptions is about."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseException", error.exceptions[0])
    return error
