"""What is listened to of all that a server says: its answers. It is asked, and asks for nothing."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Any, Protocol, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from littleghost.tools.mcp.results import said

__all__ = ["Fate", "Heard"]

log = logging.getLogger("littleghost.mcp")


class Inbound(Protocol):
    """The messages from a server, and what could not be read as one."""

    async def receive(self) -> SessionMessage | Exception:
        """Return the next one."""
        ...

    async def aclose(self) -> None:
        """Take no more."""
        ...


class Outbound(Protocol):
    """Where messages to a server go."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send one."""
        ...


class Fate:
    """What became of a connection, or of one call over HTTP, as far as its transport can tell.

    Attributes:
        words: What happened, for people and the model.
        details: More, for people: the end of what the server printed to its standard error.
        unsent: It surely did not reach the server.
        expired: The server does not know the session any more, and did nothing.
        refused: The HTTP status by which it refused the credentials.
        lost: It may have reached the server; no answer will come.
        error: What stood behind it.
        over: The connection is being closed; what happens from now on is no reason for anything.
    """

    def __init__(self) -> None:
        self.words = ""
        self.details = ""
        self.unsent = self.expired = self.lost = self.over = False
        self.refused: int | None = None
        self.error: BaseException | None = None


class Heard:
    """A server's messages, without those that nobody here wants.

    Answers come through. A request is refused, whatever it asks for (sampling, elicitation, roots), but for ``ping``; it is answered
    before the next message is read, so a server that asks without end fills no memory here. Log messages go to our logger at debug;
    other notifications are dropped.

    Args:
        inbound: All messages of the server.
        outbound: Where the refusals go.
        server: Its name.
        ended: Set when there are no more messages.
    """

    def __init__(self, inbound: Inbound, outbound: Outbound, server: str, ended: asyncio.Event) -> None:
        self._inbound, self._outbound = inbound, outbound
        self._server, self._ended = server, ended

    async def receive(self) -> SessionMessage | Exception:
        """Return the next answer."""
        try:
            while True:
                item = await self._inbound.receive()
                if isinstance(item, Exception):
                    log.debug("%s: a message that is none: %s", self._server, type(item).__name__)
                    continue
                message = item.message
                if isinstance(message, types.JSONRPCRequest):
                    await self._outbound.send(SessionMessage(_answer(message)))
                elif isinstance(message, types.JSONRPCNotification):
                    self._note(message)
                else:
                    return item
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._ended.set()
            raise

    def _note(self, message: types.JSONRPCNotification) -> None:
        if message.method == "notifications/message" and log.isEnabledFor(logging.DEBUG):
            told: dict[str, Any] = message.params or {}
            log.debug("%s: %s", self._server, said(f"{told.get('level')}: {told.get('data')}"))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Take no more messages."""
        await self._inbound.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _answer(request: types.JSONRPCRequest) -> types.JSONRPCResponse | types.JSONRPCError:
    if request.method == "ping":
        return types.JSONRPCResponse(jsonrpc="2.0", id=request.id, result={})
    refusal = types.ErrorData(
        code=types.METHOD_NOT_FOUND, message="this client answers no requests of a server"
    )
    return types.JSONRPCError(jsonrpc="2.0", id=request.id, error=refusal)
