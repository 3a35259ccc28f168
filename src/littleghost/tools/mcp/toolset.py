"""The tools of an MCP server, for the time of a run."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack

from littleghost.errors import DependencyError, ToolConnectionError, ToolError
from littleghost.tools.contract import RunContext, Tool, Toolset
from littleghost.tools.mcp.options import MCPOptions, Options
from littleghost.tools.mcp.servers import HTTP, HeaderSource, Stdio

if TYPE_CHECKING:
    from littleghost.tools.mcp.connection import Connection
    from littleghost.tools.mcp.listing import Offer

__all__ = ["MCPToolset"]

log = logging.getLogger("littleghost.mcp")


class MCPToolset(Toolset):
    """The tools of one MCP server. Made by `stdio` or `http`; any number of runs can use it at once.

    Each run has a connection of its own, opened when it starts and closed when it ends, however that happens. A connection that drops
    is made again for the next call. The server is not trusted: see the page on MCP.
    """

    def __init__(self, server: Stdio | HTTP, options: Options) -> None:
        if importlib.util.find_spec("mcp") is None:
            raise DependencyError.missing("mcp", "mcp")
        self._server, self._options = server, options
        self._name = options.name or f"the MCP server {server.label}"

    @classmethod
    def stdio(
        cls,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        sandbox: bool = False,
        **options: Unpack[MCPOptions],
    ) -> Self:
        """Return the tools of a program that speaks MCP on its standard input and output.

        Args:
            command: The program and its arguments. There is no shell.
            env: Its environment. Beside it the program gets ``PATH`` and ``HOME`` of the application, and nothing in a sandbox.
            cwd: Its directory; the application's when left out, and the workspace in a sandbox.
            sandbox: Start it in the run's sandbox.
            **options: See `MCPOptions`.

        Raises:
            ConfigurationError: Something of it cannot be used.
            DependencyError: The extra ``mcp`` is not installed.
        """
        return cls(Stdio.of(command, env, cwd, sandboxed=sandbox), Options(**options))

    @classmethod
    def http(cls, url: str, *, headers: HeaderSource | None = None, **options: Unpack[MCPOptions]) -> Self:
        """Return the tools of a server on the web, over streamable HTTP.

        Args:
            url: Where it is.
            headers: What to send with each request, such as ``{"Authorization": "Bearer …"}``, or a function that gives it, async or not,
                which is asked before each request. They go to the URL's own origin only.
            **options: See `MCPOptions`.

        Raises:
            ConfigurationError: Something of it cannot be used.
            DependencyError: The extra ``mcp`` is not installed.
        """
        return cls(HTTP.of(url, headers), Options(**options))

    def __repr__(self) -> str:
        return f"<MCPToolset {self._server.label}>"

    @asynccontextmanager
    async def open(self, context: RunContext[Any]) -> AsyncGenerator[Sequence[Tool]]:
        """Connect to the server and give its tools; disconnect afterwards, and end its program.

        Raises:
            ToolConnectionError: The server cannot be reached, or does not speak the protocol, unless it is optional.
            CredentialError: It refuses the credentials.
            ConfigurationError: Its tools cannot be offered as asked for.
            CapabilityError: There is no sandbox for it, or none that starts programs.
        """
        from littleghost.tools.mcp.connection import Connection
        from littleghost.tools.mcp.listing import offers

        connection = Connection(self._server, self._name, self._options, context)
        try:
            try:
                listed = await connection.tools()
            except ToolConnectionError as error:
                details: str = getattr(error, "details", "")
                if details:
                    error.message += f"; it printed: {details}"
                if not self._options.optional:
                    raise
                log.warning("%s. Its tools are left out.", error)
                yield []
            else:
                found = offers(listed, self._options, self._name)
                yield [_MCPTool(connection, offer, self._options) for offer in found]
        finally:
            await connection.close()


class _MCPTool(Tool):
    """A tool of a server, in one run."""

    needs_approval: bool | Callable[[dict[str, Any]], bool]

    def __init__(self, connection: Connection, offer: Offer, options: Options) -> None:
        self.name, self.description, self.schema = offer.name, offer.description, offer.schema
        self.idempotent = offer.idempotent
        self.needs_approval = options.approval(offer.own)
        self._connection, self._own, self._limit = connection, offer.own, options.max_result_bytes

    def __repr__(self) -> str:
        return f"<MCP tool {self.name}>"

    async def call(self, arguments: dict[str, Any], context: RunContext[Any]) -> Any:
        from littleghost.tools.mcp.results import blocks_of, failure_of

        result = await self._connection.call(self._own, arguments, idempotent=self.idempotent)
        if result.is_error:
            raise ToolError(failure_of(result, self._limit))
        return blocks_of(result, self._limit)
