"""The service as an ASGI application: a WebSocket at ``…/sandbox`` for each client, and ``…/health``.

Its binary messages are the bytes of the frames of `littleghost.sandboxes.far.wire`, cut anywhere. The first frame greets: it names the
lease by a secret that the client has drawn, and says what is wanted. A client whose connection is lost greets with the same secret.

Before the WebSocket is accepted, and before anything else is looked at, the token is: who has none gets the same answer, whatever else
there is or is not.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from littleghost.errors import LittleGhostError, ToolConnectionError
from littleghost.sandboxes.contract import Sandbox
from littleghost.sandboxes.far.wire import GREETING, PROTOCOL, Frame, Frames, error_said, frame
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.native import native_sandbox
from littleghost.sandboxes.service.leases import Lease, Leases, ServiceLimits
from littleghost.sandboxes.service.names import version
from littleghost.sandboxes.service.tokens import TokenFile

__all__ = ["SandboxService"]

_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
SendEvent = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PIECE = 1 << 18  # bytes of a message
_HEADS = 2 << 20  # bytes of what is JSON in a request
_MORE = (
    8  # connections of a name beyond two for each of its leases, of which one may be lost and not known to be
)
_GREETING_SECONDS = 10.0
_SENDING_SECONDS = 30.0
_LOOK = 0.05

OVER = 4000
"""The code of a close after which there is nothing to come again for."""
WRONG = 4002
"""The code of a close because of what the client said."""


class SandboxService:
    """Gives each client a sandbox of this machine; an ASGI application. `RemoteSandbox` is its client.

    A client has a lease: a directory below ``root`` and a sandbox of ``backend`` over it, which nobody else reaches. It ends with the
    client: at once when that closes it, or when it does not come again in time. Programs and files end with it.

    Args:
        root: A directory for the leases, of this service alone. It is made where it is missing.
        tokens: A file of who may use it; see `TokenFile`.
        backend: Makes the sandboxes: `native_sandbox`, which isolates or fails, unless given. With `HostSandbox` every client can do on
            this machine whatever the user of the service can.
        network: Whether clients may ask for this machine's network for their programs.
        limits: What clients may use.

    Raises:
        ConfigurationError: The tokens cannot be read.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        tokens: TokenFile | str | os.PathLike[str],
        backend: Callable[..., Sandbox] = native_sandbox,
        network: bool = False,
        limits: ServiceLimits | None = None,
    ) -> None:
        self._tokens = tokens if isinstance(tokens, TokenFile) else TokenFile(tokens)
        self.limits = limits or ServiceLimits()
        self._leases = Leases(
            os.path.abspath(root),
            backend,
            network=network,
            host=backend is HostSandbox,
            limits=self.limits,
        )
        self._connections: Counter[str] = Counter()
        self._draining = False
        self._at_once = asyncio.Event()

    @property
    def draining(self) -> bool:
        """Whether it is ending, and makes no more sandboxes."""
        return self._draining

    async def start(self) -> None:
        """Take the root, delete what a service that was killed has left there, and make a sandbox to see that it works.

        The lifespan of the application does it.

        Raises:
            ConfigurationError: The root cannot be used, another service does, or the sandboxes do not work.
        """
        await asyncio.to_thread(self._leases.open)
        try:
            await self._leases.try_one()
        except BaseException:
            await self.close()
            raise

    async def drain(self, seconds: float) -> None:
        """Make no more sandboxes, end each when nothing runs in it, and all of them after ``seconds``; then close.

        A second call ends them at once.
        """
        if self._draining:
            self._at_once.set()
            return
        self._draining = True
        end = asyncio.get_running_loop().time() + seconds
        while len(self._leases) and not self._at_once.is_set() and asyncio.get_running_loop().time() < end:
            self._leases.end_idle("the service has ended")
            try:
                await asyncio.wait_for(self._at_once.wait(), _LOOK)
            except TimeoutError:
                continue
        await self.close()

    async def close(self) -> None:
        """End everything now."""
        self._draining = True
        await self._leases.close("the service has ended")

    async def __call__(self, scope: Scope, receive: Receive, send: SendEvent) -> None:
        """Serve one connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, send)

    async def _lifespan(self, receive: Receive, send: SendEvent) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                try:
                    await self.start()
                except LittleGhostError as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, send: SendEvent) -> None:
        path = str(scope.get("path"))
        if path.endswith("/health") and scope.get("method") in ("GET", "HEAD"):
            status, body = (503, "draining\n") if self._draining else (200, "ok\n")
        elif self._owner(scope) is None:
            status, body = 401, _NO_TOKEN
        elif path.endswith("/sandbox"):
            status, body = 426, "a WebSocket is spoken here\n"
        else:
            status, body = 404, "there is nothing here\n"
        await _respond(send, "http.response", status, body, head=scope.get("method") == "HEAD")

    def _owner(self, scope: Scope) -> str | None:
        said = _header(scope, b"authorization")
        kind, _, token = said.partition(" ")
        return self._tokens.owner(token.strip() if kind.lower() == "bearer" else "")

    async def _websocket(self, scope: Scope, receive: Receive, send: SendEvent) -> None:
        await receive()  # that it wants to connect
        owner = self._owner(scope)
        new = _header(scope, b"littleghost-lease") != "again"
        refused = (401, _NO_TOKEN) if owner is None else self._refused(scope, owner, new=new)
        if owner is None or refused is not None:
            if "websocket.http.response" in (scope.get("extensions") or {}):
                await _respond(send, "websocket.http.response", *(refused or (401, _NO_TOKEN)))
            else:
                await send({"type": "websocket.close", "code": WRONG})
            return
        headers = [
            (b"littleghost-protocol", b"%d" % PROTOCOL),
            (b"littleghost-version", version().encode("ascii", "replace")),
        ]
        self._connections[owner] += 1
        connection = _Connection(receive, send)
        try:
            await send({"type": "websocket.accept", "headers": headers})
            await self._serve(connection, owner, new=new)
        except ToolConnectionError as error:
            connection.end(str(error), WRONG)
        except OSError:
            pass  # the client is gone
        except Exception:  # noqa: BLE001 (the client is told no more)
            _log.exception("a client could not be served")
            connection.end("the service failed", OVER)
        finally:
            self._connections -= Counter((owner,))  # and one of none is not kept
            await connection.close()

    def _refused(self, scope: Scope, owner: str, *, new: bool) -> tuple[int, str] | None:
        if not str(scope.get("path")).endswith("/sandbox"):
            return 404, "there is nothing here\n"
        protocol = _header(scope, b"littleghost-protocol")
        if protocol != str(PROTOCOL):
            theirs = _header(scope, b"littleghost-version")[:40] or "unknown"
            return 426, (
                f"the service has LittleGhost {version()} (protocol {PROTOCOL}), "
                f"and the client {theirs} (protocol {protocol[:10] or 'unknown'}); both must have the same protocol\n"
            )
        if self._connections[owner] >= 2 * self.limits.leases_per_token + _MORE:
            return 503, "too many connections at once\n"
        if new and self._draining:
            return 503, "the service is ending, and makes no more sandboxes\n"
        return None

    async def _serve(self, connection: _Connection, owner: str, *, new: bool) -> None:
        frames = Frames(lambda _number: self.limits.message_bytes, heads=lambda _number: _HEADS)
        try:
            async with asyncio.timeout(_GREETING_SECONDS):
                arrived: list[Frame] = []
                while not arrived:
                    data = await connection.receive()
                    if data is None:
                        return
                    arrived = frames.add(data)
        except TimeoutError:
            raise ToolConnectionError("the client did not say what it wants") from None
        greeting = arrived.pop(0)
        if greeting.number != GREETING:
            raise ToolConnectionError("the client did not say what it wants")
        try:
            lease = await self._leases.lease(owner, greeting.head, new=new)
        except Exception as error:  # noqa: BLE001 (whoever greeted is told)
            if not isinstance(error, LittleGhostError):
                _log.warning("a sandbox could not be made", exc_info=True)
            await connection.say(frame(GREETING, {"error": error_said(error)}))
            connection.end("there is no sandbox", OVER)
            return
        try:
            known = greeting.head.get("again") is True
            await connection.say(frame(GREETING, {"is": None}) if known else _welcome(lease))
            lease.attach(connection)
            await self._hear(connection, lease, frames, arrived)
        finally:
            if lease.connection is None:
                lease.connection = connection
            lease.detach(connection)

    async def _hear(
        self, connection: _Connection, lease: Lease, frames: Frames, arrived: list[Frame]
    ) -> None:
        assert lease.served is not None  # noqa: S101 (it is made)
        while True:
            for question in arrived:
                if lease.connection is not connection:
                    return
                if question.number == GREETING:
                    await connection.say(_welcome(lease))  # its answer was lost with the connection before
                else:
                    await lease.served.take(question)
            data = await connection.receive()
            if data is None or lease.connection is not connection:
                return
            arrived = frames.add(data)


class _Connection:
    """A WebSocket that is accepted."""

    def __init__(self, receive: Receive, send: SendEvent) -> None:
        self._receive, self._send = receive, send
        self._order = asyncio.Lock()
        self._ended = asyncio.Event()
        self._gone = False
        self._code, self._why = OVER, ""
        self._getting: asyncio.Future[MutableMapping[str, Any]] | None = None

    async def receive(self) -> bytes | None:
        """Return what comes next; ``None`` where the client is gone, or this has been ended.

        Raises:
            ToolConnectionError: It is no bytes.
        """
        ended = asyncio.ensure_future(self._ended.wait())
        if self._getting is None:
            self._getting = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait([self._getting, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if self._ended.is_set():
            return None
        event, self._getting = self._getting.result(), None
        if event["type"] != "websocket.receive":
            self._gone = True
            return None
        data = event.get("bytes")
        if not isinstance(data, bytes):
            raise ToolConnectionError("the client sent text")
        return data

    async def say(self, data: bytes) -> None:
        """Send bytes, waiting while the client does not read, but not for ever.

        Raises:
            OSError: It is gone.
        """
        async with self._order:
            for at in range(0, len(data), PIECE):
                if self._ended.is_set() or self._gone:
                    raise ConnectionResetError("the connection has ended")
                try:
                    async with asyncio.timeout(_SENDING_SECONDS):
                        await self._send({"type": "websocket.send", "bytes": data[at : at + PIECE]})
                except TimeoutError:
                    self._gone = True
                    self.end("the client does not read")
                    raise
                except RuntimeError as error:  # what an ASGI server says where the WebSocket is closed
                    raise ConnectionResetError("the connection has ended") from error

    def end(self, why: str, code: int = OVER) -> None:
        """Have it closed, with a reason for the client."""
        if not self._ended.is_set():
            self._code, self._why = code, why
            self._ended.set()

    async def close(self) -> None:
        """Close it."""
        if self._getting is not None:
            self._getting.cancel()
            await asyncio.gather(self._getting, return_exceptions=True)
        if not self._gone:
            self._gone = True
            reason = self._why.encode("utf-8")[:120].decode("utf-8", "ignore")
            try:
                async with asyncio.timeout(1.0):
                    await self._send({"type": "websocket.close", "code": self._code, "reason": reason})
            except (OSError, RuntimeError):
                pass


def _welcome(lease: Lease) -> bytes:
    return frame(GREETING, {"is": {**lease.told, "version": version()}})


_NO_TOKEN = "a token is needed, and this is none\n"  # noqa: S105


def _header(scope: Mapping[str, Any], name: bytes) -> str:
    for key, value in scope.get("headers") or ():
        if key.lower() == name:
            return bytes(value).decode("latin-1")
    return ""


async def _respond(send: SendEvent, kind: str, status: int, body: str, *, head: bool = False) -> None:
    said = body.encode("ascii", "replace")
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", b"%d" % len(said)),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": b"" if head else said})
