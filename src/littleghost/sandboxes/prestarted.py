"""Namespaces that are ready before a command needs them, so that it does not wait for their making.

::

    application ──────── supervisor ── keeper ── bwrap ── (its init) ── this program, then the command
         └── line ──────────────────────────────────────────┘

A small Python program is started where the command will run, with everything that isolates it in force, and waits on a socket. The
command, its environment and its streams come over that socket, as descriptors; then the program becomes the command. It serves one
command and no other, and nothing of another command's has ever run there. The namespace belongs to a keeper from the start, so it
ends as every command does.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

__all__ = ["INSIDE", "Spare", "Told", "Waiting", "job_of"]

# It says W when it waits, R when it has a job, and then, where that fails, why: C for the directory, L for a limit, E for the program.
# The search is that of execvp(3), scripts without a first line included. Any Python 3 will do.
INSIDE = r"""
import os, sys, _signal, _socket
line = _socket.socket(1, 1, 0, int(sys.argv[1]))
os.set_inheritable(line.fileno(), False)
line.send(b"W")
given = line.recvmsg(1, _socket.CMSG_SPACE(16), 0x40000000)[1]
if not given:
    os._exit(0)
numbers = [int.from_bytes(given[0][2][at:at + 4], sys.byteorder) for at in (0, 4, 8, 12)]
with open(numbers[0], "rb") as job:
    fields = job.read().split(b"\0")
line.send(b"R")
step = b"C"
try:
    for number, descriptor in enumerate(numbers[1:]):
        os.dup2(descriptor, number)
    os.chdir(fields[0])
    step = b"L"
    counts = [int(field) for field in fields[1:5]]
    parts, at = [], 5
    for count in counts:
        parts.append(fields[at:at + count])
        at += count
    limits, arguments, pairs, search = parts
    if limits:
        import resource
        for limit in limits:
            number, soft, hard = (int(part) for part in limit.split())
            resource.setrlimit(number, (soft, hard))
    for number in (13, 25):
        _signal.signal(number, 0)
    step = b"E"
    environment = dict(pair.split(b"=", 1) for pair in pairs)
    program = arguments[0]
    failure = OSError(2, "")
    for path in [program] if b"/" in program else [(place or b".") + b"/" + program for place in search]:
        try:
            try:
                os.execve(path, arguments, environment)
            except OSError as error:
                if error.errno != 8:
                    raise
                os.execve(b"/bin/sh", [b"/bin/sh", path] + arguments[1:], environment)
        except OSError as error:
            if error.errno in (2, 20):
                continue
            failure = error
            if error.errno != 13:
                break
    raise failure
except Exception as error:
    line.send(step + b"%d" % (getattr(error, "errno", 0) or 0))
os._exit(127)
"""


class Told(msgspec.Struct, frozen=True):
    """What became of a job.

    Attributes:
        begun: Whether the namespace was made, and all that was asked for is in force.
        failure: The number of the error by which the program could not be started.
    """

    begun: bool
    failure: int | None = None


def job_of(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    search: Sequence[str],
    directory: str,
    limits: Iterable[tuple[int, int, int]] = (),
) -> bytes:
    """Return a job as `INSIDE` reads it; ``limits`` are resource limits: number, soft, hard."""
    parts = [
        [b"%d %d %d" % limit for limit in limits],
        [os.fsencode(part) for part in arguments],
        [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in environment.items()],
        [os.fsencode(part) for part in search],
    ]
    fields = [os.fsencode(directory), *(b"%d" % len(part) for part in parts)]
    return b"\0".join([*fields, *(field for part in parts for field in part)])


class Waiting:
    """A namespace that waits for its command. It belongs to no event loop.

    Args:
        connection: The socket to its keeper.
        line: The socket to the program in it.
        messages: A descriptor of a file, to which whatever makes the namespace writes.
        supervisor: The pid of the supervisor.
    """

    def __init__(
        self, connection: socket.socket, line: socket.socket, messages: int, supervisor: int | None
    ) -> None:
        self._connection: socket.socket | None = connection
        self._line, self._messages, self.supervisor = line, messages, supervisor
        self._said = b""
        self._job: int | None = None

    @property
    def ready(self) -> bool:
        """Whether the program inside is up."""
        self._listen()
        return self._said.startswith(b"W")

    @property
    def lost(self) -> bool:
        """Whether it has ended."""
        if self._connection is None:
            return True
        try:
            said = self._connection.recv(256, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not said or any(line[:1] not in b"KS" for line in said.split(b"\n") if line)

    def load(self, job: int) -> None:
        """Take the descriptor of a job; it is closed here."""
        self._job = job

    def keeper(self) -> socket.socket:
        """Hand over the socket to its keeper, for the command that comes with `give`; once."""
        connection, self._connection = self._connection, None
        if connection is None or self._job is None:
            raise OSError("this namespace has no job, or has been given one")
        return connection

    def give(self, streams: Sequence[int]) -> None:
        """Let the command begin with these three streams."""
        if self._connection is not None or self._job is None:
            raise OSError("somebody else has the keeper of this namespace, or it has no job")
        with suppress(BrokenPipeError, ConnectionResetError):  # it has just ended, as `told` will say
            socket.send_fds(self._line, [b"J"], [self._job, *streams])

    def told(self) -> Told:
        """Return what became of the job, the command being over."""
        self._listen()
        said = self._said.lstrip(b"W")
        if not said.startswith(b"R"):
            return Told(begun=False)
        step, number = said[1:2], said[2:]
        return Told(begun=step in (b"", b"E"), failure=int(number) if step == b"E" else None)

    def messages(self) -> str:
        """Return what was said in making the namespace; it may name paths of the host."""
        return os.pread(self._messages, 4096, 0).decode("utf-8", "replace").strip()

    def _listen(self) -> None:
        with suppress(OSError):
            while part := self._line.recv(64):
                self._said += part

    def close(self) -> None:
        """Release everything, and so end what still waits. Closing twice does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._line.close()
        for descriptor in (self._messages, self._job):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._messages, self._job = -1, None

    def __del__(self) -> None:
        if hasattr(self, "_job"):
            self.close()


class Spare:
    """The namespaces that wait, all for commands in one setting.

    Attributes:
        most: How many may wait.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.most = 1
        self._setting: Hashable = None
        self._held: list[Waiting] = []
        self._closed = False

    def take(self, setting: Hashable, *, ready: bool) -> Waiting | None:
        """Return a namespace if it is for exactly this setting; it is the caller's then.

        Args:
            setting: What it must have been made for.
            ready: Leave one that is still being made, for whoever comes next.
        """
        with self._lock:
            self._drop(setting)
            found = next((waiting for waiting in self._held if waiting.ready), None)
            if found is None and self._held and not ready:
                found = self._held[0]
            if found is not None:
                self._held.remove(found)
            return found

    def put(self, setting: Hashable, make: Callable[[], Waiting | None]) -> bool:
        """Have one more wait that ``make`` makes, unless there are enough for this setting; return whether there is room for another."""
        with self._lock:
            if self._closed:
                return False
            self._drop(setting)
            self._setting = setting
            if len(self._held) < self.most:
                waiting = make()
                if waiting is None:
                    return False
                self._held.append(waiting)
            return len(self._held) < self.most

    def _drop(self, setting: Hashable) -> None:
        """End those for another setting, and forget those that have ended."""
        kept = [waiting for waiting in self._held if setting == self._setting and not waiting.lost]
        gone = [waiting for waiting in self._held if waiting not in kept]
        self._held = kept
        for waiting in gone:
            waiting.close()

    def close(self) -> None:
        """End them, and have none any more."""
        with self._lock:
            self._closed = True
            held, self._held = self._held, []
        for waiting in held:
            waiting.close()
