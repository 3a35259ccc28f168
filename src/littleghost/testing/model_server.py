"""A server on this machine that speaks a provider's wire format, well or badly, as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Literal, Self

from msgspec import Struct, field

from littleghost.testing.model_dialect import Dialect, Said

__all__ = ["ModelServer", "Recorded", "Reply"]


class Reply(Struct, frozen=True, kw_only=True):
    """What a server answers to one request.

    Attributes:
        pieces: The body, each piece sent by itself.
        status: The HTTP status.
        content_type: The type of the body, by default that of the dialect's streams.
        headers: Further headers.
        end: ``whole``; ``cut``: the connection closes without the end of the body; ``reset``: it is reset; ``silence``: nothing
            comes any more, until the client goes away.
        after: How many pieces are sent before ``gate`` is waited for.
        gate: Holds back the rest.
        again: The last piece is sent over and over, with this many seconds between.
    """

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    end: Literal["whole", "cut", "reset", "silence"] = "whole"
    after: int = 0
    gate: asyncio.Event | None = None
    again: float = 0.0


class Recorded(Struct, frozen=True, kw_only=True):
    """A request as it came.

    Attributes:
        method: Such as ``POST``.
        path: With the query.
        headers: By lower-case name.
        body: The decoded JSON, ``None`` where it is none.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class ModelServer:
    """An HTTP server that answers each request with the next reply of a script, and refuses what its provider would refuse.

    Args:
        dialect: The format it speaks.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.requests: list[Recorded] = []
        """What came, in order; what was refused as well."""
        self.refusals: list[str] = []
        """Why requests were refused."""
        self.connections = 0
        """How many were opened."""
        self.sent = asyncio.Event()
        """Set when a reply that ends in silence has sent what it had."""
        self.gone = asyncio.Event()
        """Set when a client went away before its answer was over."""
        self.url = ""
        """Where a model finds it."""
        self._script: list[Reply] = []
        self._ever: Reply | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def left(self) -> int:
        """How many replies of the script were not asked for."""
        return len(self._script)

    def play(self, *replies: Reply | Said) -> None:
        """Add to the script; what a model says is put into the server's format."""
        self._script += [self._reply(reply) for reply in replies]

    def always(self, reply: Reply | Said) -> None:
        """Answer so whenever the script is at its end."""
        self._ever = self._reply(reply)

    def error(
        self,
        status: int,
        message: str = "it went wrong",
        kind: Literal["", "overflow"] = "",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        """Return the reply of an error in the server's format."""
        return Reply(
            status=status,
            pieces=(self.dialect.error(status, message, kind),),
            content_type="application/json",
            headers={**self.dialect.headers(kind), **(headers or {})},
        )

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self.dialect.prefix}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)

    def _reply(self, reply: Reply | Said) -> Reply:
        return Reply(pieces=tuple(self.dialect.answer(reply))) if isinstance(reply, Said) else reply

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # by the end of the server; the callback that asyncio gives this task does not know cancelled ones
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
        }
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        body: Any = None
        with contextlib.suppress(ValueError):
            body = json.loads(raw)
        self.requests.append(Recorded(method=method, path=path, headers=headers, body=body))
        try:
            return await self._send(self._next(method, path, body), reader, writer)
        except ConnectionError:
            self.gone.set()
            raise

    def _next(self, method: str, path: str, body: Any) -> Reply:
        if not self.dialect.serves(method, path.partition("?")[0]):
            self.refusals.append(f"there is no {method} {path}")
            return self.error(404, "no such path")
        refusal = self.dialect.refusal(body)
        if refusal is not None:
            self.refusals.append(refusal)
            return self.error(400, refusal)
        if self._script:
            return self._script.pop(0)
        return self._ever or self.error(
            500, "the test has no answer left", headers={"x-should-retry": "false"}
        )

    async def _send(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = {
            "content-type": reply.content_type or self.dialect.content_type,
            "transfer-encoding": "chunked",
            **reply.headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {reply.status} X\r\n{head}\r\n".encode())
        for number, piece in enumerate(reply.pieces):
            if reply.gate is not None and number == reply.after:
                await reply.gate.wait()
            await _chunk(writer, piece)
        while reply.again:
            await asyncio.sleep(reply.again)
            await _chunk(writer, reply.pieces[-1])
        if reply.end == "silence":
            await writer.drain()
            self.sent.set()
            await reader.read(1)
            self.gone.set()
            return False
        if reply.end == "reset":
            await writer.drain()
            writer.transport.abort()
            return False
        if reply.end == "cut":
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _chunk(writer: asyncio.StreamWriter, piece: bytes) -> None:
    if piece:
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
