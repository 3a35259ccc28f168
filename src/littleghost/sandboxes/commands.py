"""One running command, as the application sees it: the line to its keeper, and what is kept of its output."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from littleghost.sandboxes.captures import CHUNK, Capture

__all__ = ["TICK", "Command"]

TICK = 1.0
"""How often a command's keeper is looked at, in seconds."""

_DRAIN = 1 << 20  # what a pipe may hold


class Command:
    """One running command, seen from the application. It belongs to one event loop.

    Args:
        connection: The socket to its keeper.
        attend: Called every `TICK` while it runs.
        captures: What to keep of which descriptor; they are read and closed here.
    """

    def __init__(
        self,
        connection: socket.socket,
        attend: Callable[[Command], None],
        captures: Mapping[int, Capture] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.connection = connection
        self.began = time.monotonic()
        self.ended: float | None = None
        self.keeper: int | None = None
        self.supervisor: int | None = None
        self.nudged = False
        self.started: asyncio.Future[None] = self.loop.create_future()  # or known not to start
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self.drained: asyncio.Future[None] = self.loop.create_future()
        self.reason: str | None = None
        self.pid: int | None = None
        self.code: int | None = None
        self.failure: int | None = None
        self.unbound = False  # its limits could not be put in force, so it was not started
        self.starved = False  # something of it was killed for its memory
        self.state = "running"
        self.abandon: Callable[[], None] = (
            self.close
        )  # releases all that is its, where its event loop is closed
        self._said = b""
        self._open = dict(captures or {})
        for descriptor in self._open:
            self.loop.add_reader(descriptor, self._read, descriptor)
        self.loop.add_reader(connection.fileno(), self._listen)
        self._attend = attend
        self._timer = self.loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._attend(self)
        if self.state == "running":
            self._timer = self.loop.call_later(TICK, self._tick)

    def give_up(self, state: str) -> None:
        """Wait for the keeper no longer."""
        if self.state == "running":
            self.state = state
            self._finish()

    def _finish(self) -> None:
        self._unwatch(self.connection.fileno())
        for known in (self.started, self.finished):
            if not known.done():
                known.set_result(None)

    def end(self, reason: str) -> None:
        """Have everything killed, for ``reason``; the first one counts, and none after the command's own end."""
        if self.reason is None and self.code is None and self.state == "running":
            self.reason = reason
        if self.state == "running":
            self.ended = self.ended or time.monotonic()
            with suppress(OSError):
                self.connection.shutdown(
                    socket.SHUT_WR
                )  # whatever the keeper is at, the end of its life line ends it

    def end_threadsafe(self, reason: str) -> None:
        """Do the same from any thread."""
        with suppress(RuntimeError):  # the loop is closed, and the connection with it
            self.loop.call_soon_threadsafe(self.end, reason)

    def terminate(self) -> None:
        """Have the program asked to end."""
        if self.state == "running":
            with suppress(OSError):
                self.connection.send(b"T")

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._open[descriptor].add(data)
            return
        self._shut(descriptor)
        if not self._open and not self.drained.done():
            self.drained.set_result(None)

    def _shut(self, descriptor: int) -> None:
        if self._open.pop(descriptor, None) is not None:
            self._unwatch(descriptor)
            os.close(descriptor)

    def _unwatch(self, descriptor: int) -> None:
        if not self.loop.is_closed():  # then nothing is watched
            self.loop.remove_reader(descriptor)

    def _listen(self) -> None:
        try:
            data = self.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._said += data
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            kind, value = line[:1], int(line[1:] or b"0")
            if kind == b"K":
                self.keeper = value
            elif kind == b"S":
                self.pid = value
            elif kind == b"E":
                self.failure = value
            elif kind == b"X":
                self.code = value if self.code is None else self.code
                self.ended = self.ended or time.monotonic()
            elif kind == b"B":
                self.unbound = True
            elif kind == b"C":
                self.end("cpu")
            elif kind == b"M":
                self.starved = True
            elif kind in b"DL":
                self.state = "done" if kind == b"D" else "left"
            if kind in b"SEXB" and not self.started.done():
                self.started.set_result(None)
        if not data and self.state == "running":
            self.state = "lost"
        if self.state != "running":
            self._finish()

    def close(self) -> None:
        """Release everything; a keeper that is still there kills its tree because of it."""
        self._timer.cancel()
        for descriptor in list(self._open):
            room = (
                _DRAIN if self.state == "done" else 1
            )  # someone may be writing without end, and the loop waits here
            with suppress(OSError):
                while room > 0 and (data := os.read(descriptor, CHUNK)):
                    self._open[descriptor].add(data)
                    room -= len(data)
            self._shut(descriptor)
        if self.connection.fileno() >= 0:
            self._unwatch(self.connection.fileno())
            self.connection.close()
