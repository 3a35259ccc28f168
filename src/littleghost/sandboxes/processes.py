"""Running commands so that nothing they start outlives them, and whatever they print is bounded.

The application's half: it hands a command and its descriptors to the `supervisor`, reads the two output streams, and says when to
kill. A command's socket is its life line: when the application closes it, or dies, the keeper at the other end kills the tree.

What holds where:

* Linux: a command's whole tree, daemons that left its session included, is gone when `Launcher.run` returns or raises, and soon after the
  death of the application. Programs do not gain rights (``no_new_privs``), so ``sudo`` does not work.
* macOS: the command's process group; a process that leaves it survives.
* A command with the application's own user and no namespace around it can stop or kill the keeper and the supervisor. Nothing here waits
  for them without a bound, and one of them is made up for; with both, a daemon can survive. That is the nature of running
  without isolation.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from littleghost.cancellation import Interruptible
from littleghost.errors import (
    CapabilityError,
    CleanupError,
    DeadlineExceeded,
    RunCancelled,
    ToolError,
    ToolValueError,
)
from littleghost.sandboxes.contract import Execution
from littleghost.workspace import shown

__all__ = [
    "DEFAULT_PATH",
    "Launcher",
    "Program",
    "arguments_of",
    "check_bounds",
    "environment_of",
    "not_started",
    "settled",
]

DEFAULT_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
"""Where a program is looked for when its environment has no ``PATH``."""

_CHUNK = 1 << 18
_MARKER_ROOM = 48
_GRACE = 20.0  # the keeper itself gives up after ten seconds
_TICK = 1.0  # how often a command's keeper is looked at
_DRAIN = 1 << 20  # what a pipe may hold


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to start.

    Attributes:
        arguments: The program and its arguments.
        name: What errors call it, where ``arguments`` are not the caller's own.
        environment: All of its environment.
        search: Directories to look for it in.
        directory: A descriptor of the directory to start in.
        descriptors: More descriptors, which become 10, 11, … in the program.
        status: One of them, in which the program tells its caller how it went.
    """

    arguments: tuple[str, ...]
    name: str | None = None
    environment: Mapping[str, str] = {}
    search: tuple[str, ...] = DEFAULT_PATH
    directory: int | None = None
    descriptors: tuple[int, ...] = ()
    status: int | None = None

    def encoded(self) -> bytes:
        """Return the job as the supervisor reads it."""
        arguments = [os.fsencode(part) for part in self.arguments]
        pairs = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in self.environment.items()]
        search = [os.fsencode(part) for part in self.search]
        counts = [int(self.directory is not None), len(arguments), len(pairs), len(search)]
        fields = b"\0".join([*(b"%d" % count for count in counts), *arguments, *pairs, *search])
        return len(fields).to_bytes(8, "little") + fields


def arguments_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return ``command`` as a tuple of arguments.

    Raises:
        ToolValueError: It is a single string, is empty, or has something else than text without NUL.
    """
    if isinstance(command, str | bytes) or not isinstance(command, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ToolValueError("the command must be a list: the program and its arguments")
    arguments = tuple(os.fspath(part) if isinstance(part, os.PathLike) else part for part in command)
    if not arguments or not arguments[0]:
        raise ToolValueError("the command must name a program")
    for part in arguments:
        if not isinstance(part, str):  # pyright: ignore[reportUnnecessaryIsInstance] (what arrives comes from a model)
            raise ToolValueError("every argument of a command must be text")
        _check_text(part, "an argument")
    return arguments


def check_bounds(timeout: object, max_output_bytes: object) -> None:
    """Raise `ToolValueError` unless these can be the time limit of a command and what to keep of its output."""
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ToolValueError(f"the time limit must be more than 0 seconds, not {shown(repr(timeout))}")
    if not isinstance(max_output_bytes, int) or max_output_bytes < 0:
        raise ToolValueError("max_output_bytes must be a whole number from 0 up")


def environment_of(*layers: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment that the layers make, later ones over earlier ones.

    Raises:
        ToolValueError: A name or value cannot be one.
    """
    environment: dict[str, str] = {}
    for layer in layers:
        if layer is not None and not isinstance(layer, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("the environment must be a mapping of names to values")
        environment.update(layer or {})
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("environment variables must be text")
        if not name or "=" in name:
            raise ToolValueError(f"{name!r} cannot be the name of an environment variable")
        _check_text(name, "the name of an environment variable")
        _check_text(value, f"the environment variable {name}")
    return environment


def _check_text(text: str, what: str) -> None:
    if "\0" in text:
        raise ToolValueError(f"{what} cannot contain a NUL")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ToolValueError(f"{what} must be valid Unicode") from error


class _Capture:
    """The beginning and the end of a stream, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._tail: bytearray | None = None
        room = limit - _MARKER_ROOM if limit >= 2 * _MARKER_ROOM else limit
        self._head_size = room // 2
        self._tail_size = room - self._head_size
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        if self._tail is None:
            self._kept += data
            if len(self._kept) <= self._limit:
                return
            self._tail = self._kept[self._head_size :]
            del self._kept[self._head_size :]
        else:
            self._tail += data
        if len(self._tail) > 2 * self._tail_size + _CHUNK:
            del self._tail[: len(self._tail) - self._tail_size]

    def finish(self) -> tuple[str, int]:
        """Return the text, and how many bytes were left out of it."""
        if self._tail is None:
            return self._kept.decode("utf-8", "replace"), 0
        head, tail = bytes(self._kept), bytes(self._tail[len(self._tail) - self._tail_size :])
        head, tail = _whole_end(head), _whole_start(tail)
        omitted = self._total - len(head) - len(tail)
        marker = f"\n[… {omitted:,} bytes left out …]\n"
        return head.decode("utf-8", "replace") + marker + tail.decode("utf-8", "replace"), omitted


def _whole_end(data: bytes) -> bytes:
    """Return ``data`` without a character that the cut left unfinished."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if size > back else data
    return data


def _whole_start(data: bytes) -> bytes:
    """Return ``data`` without the rest of a character whose start was cut off."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


class _Command:
    """One running command, seen from the application. It belongs to one event loop."""

    def __init__(
        self,
        connection: socket.socket,
        streams: tuple[int, int],
        max_output_bytes: int,
        attend: Callable[[_Command], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.connection = connection
        self.began = time.monotonic()
        self.ended: float | None = None
        self.keeper: int | None = None
        self.supervisor: int | None = None
        self.nudged = False
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self.drained: asyncio.Future[None] = self.loop.create_future()
        self.captures = (_Capture(max_output_bytes), _Capture(max_output_bytes))
        self.reason: str | None = None
        self.pid: int | None = None
        self.code: int | None = None
        self.failure: int | None = None
        self.state = "running"
        self._said = b""
        self._open = dict(zip(streams, self.captures, strict=True))
        for descriptor in streams:
            self.loop.add_reader(descriptor, self._read, descriptor)
        self.loop.add_reader(connection.fileno(), self._listen)
        self._attend = attend
        self._timer = self.loop.call_later(_TICK, self._tick)

    def _tick(self) -> None:
        self._attend(self)
        if self.state == "running":
            self._timer = self.loop.call_later(_TICK, self._tick)

    def give_up(self, state: str) -> None:
        """Wait for the keeper no longer."""
        if self.state == "running":
            self.state = state
            self._finish()

    def _finish(self) -> None:
        self.loop.remove_reader(self.connection.fileno())
        if not self.finished.done():
            self.finished.set_result(None)

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

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
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
            self.loop.remove_reader(descriptor)
            os.close(descriptor)

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
            elif kind in b"DL":
                self.state = "done" if kind == b"D" else "left"
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
                while room > 0 and (data := os.read(descriptor, _CHUNK)):
                    self._open[descriptor].add(data)
                    room -= len(data)
            self._shut(descriptor)
        if self.connection.fileno() >= 0:
            self.loop.remove_reader(self.connection.fileno())
            self.connection.close()


class Launcher:
    """Starts commands, through a supervisor process of its own.

    Args:
        name: What starts them, for errors.
    """

    def __init__(self, name: str = "sandbox") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._pid: int | None = None
        self._owner = os.getpid()
        self._commands: set[_Command] = set()
        self._closed = False

    @property
    def supervisor(self) -> int | None:
        """The supervisor's pid, where there is one."""
        return self._pid

    def start(self) -> None:
        """Start the supervisor, unless it runs.

        Raises:
            CapabilityError: Commands cannot be run on this system.
        """
        if sys.platform == "win32":
            raise CapabilityError(f"{self._name} cannot run programs on Windows in this version")
        if os.getpid() != self._owner:
            raise CapabilityError(f"{self._name} was opened by another process; open a new one after a fork")
        with self._lock:
            if self._closed:
                raise ToolError("the sandbox is closed")
            if self._pid is not None and not _has_ended(self._pid):
                return
            if self._control is not None:
                self._control.close()
            self._control, self._pid = _start_supervisor()

    async def run(
        self,
        program: Program,
        *,
        timeout: float | None,
        context: Interruptible | None = None,
        max_output_bytes: int = 1_000_000,
        input: str | bytes | None = None,
    ) -> Execution:
        """Run a program to its end, and kill what it leaves; see `Sandbox.execute_program`."""
        if context is not None:
            context.check()
        check_bounds(timeout, max_output_bytes)
        self.start()
        started = time.perf_counter()
        command, job = await self._hand_over(program, input, max_output_bytes)
        self._commands.add(command)
        releases: list[Callable[[], Any]] = []
        try:
            if self._closed:
                command.end("closed")
            if timeout is not None:
                releases.append(command.loop.call_later(timeout, command.end, "timeout").cancel)
            if context is not None:
                if context.deadline is not None:
                    timer = command.loop.call_later(context.deadline.remaining(), command.end, "deadline")
                    releases.append(timer.cancel)
                releases.append(
                    context.cancellation.add_callback(lambda: command.end_threadsafe("cancelled"))
                )
            with suppress(BrokenPipeError, ConnectionResetError):
                await command.loop.sock_sendall(command.connection, job)
            await self._ended(command)
            if not command.drained.done():
                # Whoever could hold the pipes is dead, so they are at their end; only what escaped could still hold them.
                await asyncio.wait([command.drained], timeout=0.5)
        except BaseException:
            command.end("abandoned")
            ending = asyncio.ensure_future(self._ended(command))
            await settled(ending)
            ending.cancel()
            raise
        finally:
            for release in releases:
                release()
            self._commands.discard(command)
            command.close()
        return self._result(program, command, timeout, time.perf_counter() - started, context)

    async def _hand_over(
        self, program: Program, input: str | bytes | None, max_output_bytes: int
    ) -> tuple[_Command, bytes]:
        job = program.encoded()
        theirs: list[int] = []
        mine: list[int] = []
        connection: socket.socket | None = None
        try:
            stdin = _input(input)
            theirs.append(stdin)
            for _ in range(2):
                reading, writing = os.pipe()
                os.set_blocking(reading, False)
                mine.append(reading)
                theirs.append(writing)
            connection, far = socket.socketpair()
            connection.setblocking(False)
            theirs.insert(0, far.detach())
            extra = ([] if program.directory is None else [program.directory]) + list(program.descriptors)
            while not self._send([*theirs, *extra]):
                await asyncio.sleep(0.002)
            command = _Command(connection, (mine[0], mine[1]), max_output_bytes, self._attend)
            command.supervisor = self._pid
            return command, job
        except BaseException:
            for descriptor in mine:
                os.close(descriptor)
            if connection is not None:
                connection.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def _send(self, descriptors: list[int]) -> bool:
        with self._lock:
            if self._control is None:
                raise ToolError("the sandbox is closed")
            try:
                socket.send_fds(self._control, [b"J"], descriptors)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    return False
                raise
            return True

    def _attend(self, command: _Command) -> None:
        """Go on without a keeper or supervisor that does not react: a program of the same user can stop it."""
        now = time.monotonic()
        if command.keeper is not None:
            since = 0.0 if command.ended is None else now - command.ended
            if since > _GRACE:
                command.give_up("left")
            elif since > 0.75 * _GRACE or (since > 0.5 * _TICK and _status(command.keeper)[0] in _STOPPED):
                _kill(command.keeper, session=command.supervisor)  # the supervisor sweeps up after it
        elif command.supervisor is not None and now - command.began > 1.5 * _TICK:
            supervisor = command.supervisor
            keepers = [pid for pid, own in _children(supervisor) if own]
            stuck = [pid for pid in keepers if _status(pid)[0] in _STOPPED]
            if not (stuck or _status(supervisor)[0] in _STOPPED or now - command.began > _GRACE):
                return
            if command.nudged:
                _kill(supervisor, session=supervisor)  # the next command starts another
                command.give_up("lost")
            command.nudged = True
            for pid in stuck:
                _kill(pid, session=supervisor)
            with suppress(OSError):
                os.kill(supervisor, signal.SIGCONT)

    async def _ended(self, command: _Command) -> None:
        await asyncio.shield(command.finished)
        if command.state == "lost":
            await self._clear_up_after(command)

    async def _clear_up_after(self, command: _Command) -> None:
        """The keeper was killed, so its orphans are the supervisor's: wait until it has killed them, and kill what is known."""
        if command.pid is not None:
            with suppress(OSError):
                os.killpg(command.pid, signal.SIGKILL)
        supervisor = command.supervisor
        end = time.monotonic() + 0.75 * _GRACE
        while supervisor is not None and any(not own for _, own in _children(supervisor)):
            if time.monotonic() > end:
                command.state = "left"
                return
            if _status(supervisor)[0] in _STOPPED:
                with suppress(OSError):
                    os.kill(supervisor, signal.SIGCONT)
            await asyncio.sleep(0.01)

    def _result(
        self,
        program: Program,
        command: _Command,
        timeout: float | None,
        duration: float,
        context: Interruptible | None,
    ) -> Execution:
        if command.reason == "deadline":
            seconds = (
                context.deadline.seconds if context is not None and context.deadline is not None else 0.0
            )
            raise DeadlineExceeded(f"the deadline of {seconds:g} s has passed")
        if command.reason == "cancelled":
            _raise_cancelled(context)
        if command.state == "left":
            raise CleanupError("some processes of the command could not be killed", pid=command.pid)
        (stdout, stdout_omitted), (stderr, stderr_omitted) = (
            capture.finish() for capture in command.captures
        )
        code, error = command.code, None
        if command.reason == "timeout":
            code, error = None, f"timed out after {timeout:g} s"
        elif command.reason == "closed":
            code, error = None, "ended because the sandbox was closed"
        elif command.failure is not None:
            code = 127 if command.failure in (errno.ENOENT, errno.ENOTDIR) else 126
            error = not_started(program.name or program.arguments[0], code, os.strerror(command.failure))
        elif command.code is None:
            error = "the process that watches over the command was killed"
        return Execution(
            stdout=stdout,
            stderr=stderr,
            exit_code=code,
            error=error,
            timed_out=command.reason == "timeout",
            stdout_omitted=stdout_omitted,
            stderr_omitted=stderr_omitted,
            duration=duration,
        )

    async def close(self) -> None:
        """Kill everything that runs, and end the supervisor. Closing twice does nothing."""
        with self._lock:
            self._closed = True
        for command in list(self._commands):
            command.end_threadsafe("closed")
        end = time.monotonic() + _GRACE
        while self._commands and time.monotonic() < end:
            await asyncio.sleep(0.002)
        with self._lock:
            control, self._control = self._control, None
            pid, self._pid = self._pid, None
        if control is not None:
            control.close()
        if pid is not None and os.getpid() == self._owner:
            await asyncio.to_thread(_await_end, pid)

    def __del__(self) -> None:
        control = getattr(self, "_control", None)
        if control is not None:
            control.close()
            if self._pid is not None and os.getpid() == self._owner:
                _has_ended(self._pid)


def _supervisor_source() -> str | None:
    """Return the supervisor's program. It is read once: an agent that can write the file later writes what runs on the host."""
    try:
        with open(
            os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py"), encoding="utf-8"
        ) as file:
            return file.read()
    except OSError:
        return None


_SUPERVISOR = _supervisor_source()
_LOADER = "exec(open(4, encoding='utf-8').read())  # littleghost/sandboxes/supervisor.py"


def _start_supervisor() -> tuple[socket.socket, int]:
    if not sys.executable or _SUPERVISOR is None:
        raise CapabilityError("running programs needs a Python interpreter and the library's files on disk")
    import fcntl

    try:
        source = _input(_SUPERVISOR)
        near, far = socket.socketpair()
    except OSError as error:
        raise CapabilityError(f"the supervisor could not be started: {error.strerror}") from error
    high: list[int] = []  # out of the way of the numbers they get
    try:
        high.extend(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (far.fileno(), source))
        keep = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")
        # Its standard streams go nowhere; inheritable descriptors of the application close as it starts (see `serve`).
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, high[0], 3),
            (os.POSIX_SPAWN_DUP2, high[1], 4),
        ]
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-B", "-c", _LOADER],
            {name: os.environ[name] for name in keep if name in os.environ},
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
        )
    except OSError as error:
        near.close()
        raise CapabilityError(f"the supervisor could not be started: {error.strerror}") from error
    finally:
        far.close()
        for descriptor in (source, *high):
            os.close(descriptor)
    near.setblocking(False)
    return near, pid


def _input(data: str | bytes | None) -> int:
    """Return a descriptor that reads as ``data`` and then ends. It is a file, so nobody has to feed it."""
    if data is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    if isinstance(data, str):
        try:
            content = data.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ToolValueError("the input is not valid Unicode: it has a lone surrogate") from error
    elif isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
        content = bytes(data)
    else:
        raise ToolValueError("the input must be text or bytes")
    if hasattr(os, "memfd_create"):
        import fcntl

        descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        _fill(descriptor, content)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor
    with tempfile.TemporaryFile() as file:
        descriptor = os.dup(file.fileno())
    _fill(descriptor, content)
    return descriptor


def _fill(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)


async def settled(finished: asyncio.Future[Any]) -> None:
    """Wait until ``finished`` is done, however often this task is cancelled meanwhile, but not for ever."""
    end = time.monotonic() + _GRACE
    while not finished.done() and time.monotonic() < end:
        with suppress(asyncio.CancelledError):
            await asyncio.wait([finished], timeout=end - time.monotonic())


def _raise_cancelled(context: Interruptible | None) -> NoReturn:
    if context is not None:
        context.cancellation.check()
    raise RunCancelled("cancelled")


def not_started(program: str, code: int, reason: str) -> str:
    """Say that ``program`` did not start, by the exit code that a shell would give."""
    return (
        f"program not found: {shown(program)}" if code == 127 else f"{shown(program)} cannot be run: {reason}"
    )


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _await_end(pid: int) -> None:
    end = time.monotonic() + _GRACE
    pause = 0.0005
    while not _has_ended(pid):
        with suppress(OSError):
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                end += 5.0
            elif _status(pid)[0] in _STOPPED:
                os.kill(pid, signal.SIGCONT)
        time.sleep(pause)
        pause = min(pause * 2, 0.02)


_STOPPED = ("T", "t")  # by a signal, or by a tracer


def _status(pid: int) -> tuple[str, int]:
    """Return the state of a process and its session, ``("", 0)`` where that cannot be told."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[3])
    return "", 0


def _children(supervisor: int) -> list[tuple[int, bool]]:
    """Return the supervisor's children, and whether each is a keeper: those are in its session, orphans are not."""
    try:
        with open(f"/proc/{supervisor}/task/{supervisor}/children", encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
    except OSError:
        return []
    found = [(pid, _status(pid)) for pid in pids]
    return [(pid, session == supervisor) for pid, (state, session) in found if state]


def _kill(pid: int, *, session: int | None) -> None:
    """Kill a keeper or supervisor, unless its number has another process now."""
    if not sys.platform.startswith("linux") or _status(pid)[1] == session:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
