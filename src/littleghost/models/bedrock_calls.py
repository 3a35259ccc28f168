"""A blocking call of botocore in a thread of its own, whose events come out in an event loop and which can be broken off.

botocore cannot be interrupted, but its connection can: closing a file descriptor that another thread reads from wakes nobody,
shutting its socket down does. So each call knows the socket it works on, from the moment it begins to connect.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

__all__ = ["END", "Call", "make_breakable"]

END: Final = object()
"""Comes out of a call behind its last event."""
ROOM = 64
"""How many events a call may be ahead of its reader."""

_here = threading.local()


class Call:
    """One call.

    Args:
        work: Makes the call and yields its events; runs in the thread, to its end or until the call is broken off.
    """

    def __init__(self, work: Callable[[], Iterator[Any]]) -> None:
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._room = threading.Semaphore(ROOM)
        self._guard = threading.Lock()
        self._socket: socket.socket | None = None
        self._broken = False
        # Not a thread of the loop's pool, which has few: a call may take minutes. A daemon: it must not keep a process alive.
        self.thread = threading.Thread(target=self._run, name="littleghost-bedrock", daemon=True)
        self.thread.start()

    async def next(self) -> Any:
        """Return the next event, or `END`; raise what the call raised."""
        event = await self._events.get()
        self._room.release()
        if isinstance(event, BaseException):
            raise event
        return event

    def break_off(self) -> None:
        """End the call, wherever it is; its thread ends as soon as it notices. What it still raises is lost."""
        with self._guard:
            self._broken = True
            if self._socket is not None:
                _shut(self._socket)
        self._room.release()

    def works_on(self, descriptor: int) -> None:
        """Take note of the socket that the call works on from now.

        Raises:
            ConnectionAbortedError: The call was broken off.
        """
        # A duplicate stays the same connection when TLS takes over the socket, and cannot become another one's number.
        mine = socket.socket(fileno=os.dup(descriptor))
        with self._guard:
            known, self._socket = self._socket, mine
            broken = self._broken
        if known is not None:
            known.close()
        if broken:
            _shut(mine)
            raise ConnectionAbortedError("the call was broken off")

    def let_go(self) -> None:
        """Forget the socket: the connection is idle again, or another call's."""
        with self._guard:
            known, self._socket = self._socket, None
        if known is not None:
            known.close()

    def _run(self) -> None:
        _here.call = self
        try:
            last: Any = END
            for event in self._work():
                if not self._put(event):
                    return
        except BaseException as error:  # noqa: BLE001 (raised by `next`)
            last = error
        finally:
            self.let_go()
        self._put(last)

    def _put(self, event: Any) -> bool:
        self._room.acquire()
        if self._broken:
            return False
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop is closed
            return False
        return True


def _shut(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already


def make_breakable(client: Any) -> None:
    """Make the connections of a boto3 client known to the calls that use them.

    Calls from elsewhere are not changed by it. Where botocore is another than the one known here, calls are ended by their time-outs
    alone.
    """
    session: Any = getattr(getattr(client, "_endpoint", None), "http_session", None)
    pools: Any = getattr(session, "_pool_classes_by_scheme", None)
    if not isinstance(pools, dict):
        return
    for scheme, pool in list(cast("dict[str, Any]", pools).items()):
        if not issubclass(pool.ConnectionCls, _Connection):
            connection = type("BreakableConnection", (_Connection, pool.ConnectionCls), {})
            pools[scheme] = type("BreakablePool", (pool,), {"ConnectionCls": connection})


class _Connection:
    """What a connection of urllib3 does more, in front of its class."""

    _call: Call | None = None

    def _new_conn(self) -> socket.socket:
        call: Call | None = getattr(_here, "call", None)
        self._call = call
        if call is None:
            return cast("Any", super())._new_conn()  # noqa: SLF001 (the one place where urllib3 makes a socket)
        return _connected(self, call)

    def request(self, *args: Any, **kwargs: Any) -> Any:
        call: Call | None = getattr(_here, "call", None)
        line: Any = cast("Any", self).sock
        if call is not self._call and line is not None:  # a connection that was kept from another call
            if self._call is not None:
                self._call.let_go()
            self._call = call
            if call is not None:
                call.works_on(line.fileno())
        return cast("Any", super()).request(*args, **kwargs)


def _connected(connection: Any, call: Call) -> socket.socket:
    """Return a new socket to where ``connection`` leads; unlike urllib3's own, it is known to ``call`` while it connects."""
    from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

    failed: OSError = OSError("the name has no address")
    try:
        found = socket.getaddrinfo(connection.host, connection.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise NameResolutionError(connection.host, connection, cast("Any", error)) from error
    for family, kind, protocol, _, address in found:
        line = socket.socket(family, kind, protocol)
        try:
            call.works_on(line.fileno())
            _set(line, connection.socket_options)
            timeout = connection.timeout
            line.settimeout(timeout if isinstance(timeout, int | float) else None)
            if connection.source_address:
                line.bind(connection.source_address)
            line.connect(address)
        except OSError as error:
            line.close()
            failed = error
            if isinstance(error, ConnectionAbortedError):
                break
        else:
            return line
    if isinstance(failed, TimeoutError):
        raise ConnectTimeoutError(connection, f"{connection.host} took too long to connect") from failed
    raise NewConnectionError(connection, f"{connection.host} cannot be connected: {failed}") from failed


def _set(line: socket.socket, options: Iterable[Any] | None) -> None:
    for option in options or ():
        line.setsockopt(*option)
