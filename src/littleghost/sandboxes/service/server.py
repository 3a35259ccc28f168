"""The service on uvicorn (https://uvicorn.dev), with what a client may not hold for ever held for a while."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

from littleghost.errors import ConfigurationError, DependencyError
from littleghost.sandboxes.service.app import PIECE, SandboxService

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
except ImportError as error:
    raise DependencyError.missing("uvicorn", "web") from error

__all__ = ["listen", "serve"]

_REQUEST_SECONDS = 10.0  # until a request is whole
_DESCRIPTORS = 65_536  # where it may have so many: each connection, named path and started program takes some
_THREADS = 64  # for file operations of all clients


class _Requests(H11Protocol):
    """Closes a connection whose request does not come, or that goes on after its answer; and one of too many at once."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.abort()
            return
        self.loop.call_later(_REQUEST_SECONDS, self._look)

    def _look(self) -> None:
        if self.transport.get_protocol() is self:  # pyright: ignore[reportUnnecessaryComparison]
            self.transport.abort()  # answers take no time


class _WebSockets(WebSocketsSansIOProtocol):
    """Lets go of a client that does not answer, and so does not read what would have to be sent before the connection can close."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn.debug = False  # it would write the headers of requests, and so tokens

    def handle_ping(self) -> None:
        if self.transport.is_closing():
            return
        super().handle_ping()
        if (
            self.transport.get_write_buffer_size() > 4 * PIECE
        ):  # answers alone never are; it pings, and takes no pongs
            self.transport.abort()

    def keepalive_timeout(self) -> None:
        self.transport.abort()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # it was refused, which is nothing to log as an error


class _Server(uvicorn.Server):
    """Lets the service drain at the first signal, and end at the second."""

    def __init__(self, config: uvicorn.Config, service: SandboxService, drain: float) -> None:
        super().__init__(config)
        self._service, self._drain = service, drain
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._told)

    def _told(self) -> None:
        task = self._loop.create_task(self._end(), name="littleghost-drain")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        second = self._service.draining
        try:
            await self._service.drain(self._drain)
        finally:
            if not second:
                self.should_exit = True


def listen(host: str, port: int, *, exposed: bool) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: An address or a name of this machine.
        port: 0 for a free one.
        exposed: Whether it may be an address that other machines reach.

    Raises:
        ConfigurationError: It may not, or cannot be listened on.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        if not exposed and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise ConfigurationError(
                f"{host} is reached by other machines, and tokens would cross the network as they are: give --ssl-certfile and "
                "--ssl-keyfile, or put a proxy with TLS in front and listen on 127.0.0.1; --insecure does without"
            )
        made = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(256)
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}"
        ) from error
    made.setblocking(False)
    return made


async def serve(
    service: SandboxService,
    listening: socket.socket,
    *,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    drain: float = 30.0,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, and then until nothing runs any more or the time for that is up; a second one ends it at once.

    Args:
        service: The service.
        listening: Where; it is closed at the end.
        certificate: A file with the certificate for TLS, and those that vouch for it.
        key: A file with its key.
        drain: Seconds for what runs.
        ready: Called when it can be reached.

    Raises:
        ConfigurationError: The service cannot start.
    """
    options: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key} if certificate else {}
    config = uvicorn.Config(
        service,
        http=_Requests,
        ws=_WebSockets,
        ws_max_size=4 * PIECE,
        ws_ping_interval=10.0,
        ws_ping_timeout=20.0,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=service.limits.leases * 2 + 100,
        timeout_graceful_shutdown=5,
        **options,
    )
    try:
        config.load()
    except (OSError, ValueError) as error:
        listening.close()
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigurationError(
            f"the certificate or its key cannot be used: {why}: {certificate}, {key}"
        ) from error
    _take_descriptors()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="littleghost-files"))
    server = _Server(config, service, drain)
    try:
        await service.start()
        try:
            announcing = loop.create_task(_announce(server, ready))
            await server.serve(sockets=[listening])
            await announcing
        finally:
            await service.close()
    finally:
        listening.close()


def _take_descriptors() -> None:
    """Have as many descriptors as this process may: what one client holds open is not to be missing where another's is opened."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _announce(server: _Server, ready: Callable[[], None]) -> None:
    while not (server.started or server.should_exit):
        await asyncio.sleep(0.01)
    ready()
