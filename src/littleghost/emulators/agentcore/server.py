"""The HTTP server: keep-alive, a thread a connection, this machine only, and what a server of good manners never does to a connection."""

from __future__ import annotations

import ipaddress
import selectors
import socket
import socketserver
import struct
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from littleghost.emulators.agentcore.core import Answer
from littleghost.errors import ConfigurationError

__all__ = ["Server", "loopback"]

LARGEST_BODY = 64 * 1024 * 1024
LINGER_NOT = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""For SO_LINGER: closing resets the connection."""

Respond = Callable[[str, str, str, bytes], Answer]


def loopback(host: str) -> str:
    """Return ``host`` where it is this machine and reached by no other.

    Raises:
        ConfigurationError: It is not.
    """
    try:
        fine = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        fine = False
    if not fine:
        raise ConfigurationError(
            f"host: {host!r} is no loopback address; the emulator checks no signatures and listens on 127.0.0.1, ::1 or localhost alone"
        )
    return host


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A server on a loopback address. It listens when it is made, and answers after `start`.

    Args:
        host: The address.
        port: The port; 0 for one that is free.
        respond: Answers a request: method, raw path, authorization, body.

    Raises:
        ConfigurationError: It is no loopback address, or the port is taken.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, respond: Respond) -> None:
        self.address_family = socket.AF_INET6 if ":" in loopback(host) else socket.AF_INET
        self.respond = respond
        self.stopping = threading.Event()
        self._host = host
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._doomed: set[socket.socket] = set()
        self._told, self._heard = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="AgentCore emulator", daemon=True)
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            self._told.close()
            self._heard.close()
            reason = getattr(error, "strerror", None) or error
            raise ConfigurationError(f"port: {host}:{port} cannot be listened on ({reason})") from error

    @property
    def url(self) -> str:
        """Where it is reached."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self.server_address[1]}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End every connection, and return when no thread is left."""
        self.stopping.set()
        self._told.send(b"\0")
        self._thread.join()
        self.server_close()
        self._told.close()
        self._heard.close()
        with self._lock:
            left = dict(self._open)
        for connection, thread in left.items():
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended meanwhile
            thread.join()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = threading.current_thread()
        try:
            if not self.stopping.is_set():
                self.finish_request(request, client_address)
        except OSError:
            pass  # the other side has gone
        finally:
            with self._lock:
                del self._open[request]
            self.shutdown_request(request)

    def doom(self, request: socket.socket) -> None:
        """Have a connection end with a reset."""
        request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NOT)
        with self._lock:
            self._doomed.add(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            doomed = request in self._doomed
            self._doomed.discard(request)
        if doomed:
            request.close()  # and no FIN before
        else:
            super().shutdown_request(request)

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            selector.register(self._heard, selectors.EVENT_READ)
            while not self.stopping.is_set():
                for key, _ in selector.select():
                    if key.fileobj is not self.socket:
                        continue
                    try:
                        request, address = self.get_request()
                    except OSError:
                        continue  # gone before it was accepted
                    self.process_request(request, address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self.close_connection = True
            self._send(Answer(status=411, body=b'{"message":"Content-Length is needed"}'))
            return
        if int(length) > LARGEST_BODY:
            self.close_connection = True
            self._send(Answer(status=413, body=b'{"message":"Request is too large"}'))
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            return
        server = cast("Server", self.server)
        answer = server.respond(self.command, self.path, self.headers.get("Authorization", ""), body)
        if answer.delay:
            server.stopping.wait(answer.delay)
        if answer.broken == "reset":
            server.doom(self.connection)
        if answer.broken is not None:
            self.close_connection = True
        if answer.broken not in {"reset", "timeout"}:
            self._send(answer)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _serve  # noqa: N815 (http.server looks for these)

    def _send(self, answer: Answer) -> None:
        phrase = HTTPStatus(answer.status).phrase
        lines = [f"HTTP/1.1 {answer.status} {phrase}", f"Content-Length: {len(answer.body)}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        lines += ["Connection: close"] * self.close_connection
        body = answer.body[: len(answer.body) // 2] if answer.broken == "truncated" else answer.body
        # In one piece: the second of two small ones would wait for the first to be acknowledged.
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; the emulator records its calls."""
