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
from contextlib import ExitStack, suppress
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
from littleghost.sandboxes.captures import Capture
from littleghost.sandboxes.commands import TICK, Command
from littleghost.sandboxes.contract import Execution
from littleghost.sandboxes.prestarted import Waiting
from littleghost.sandboxes.sources import source_of
from littleghost.sandboxes.streaming import StreamedProcess
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

_BROKEN = 1.0  # seconds
_GRACE = 20.0  # the keeper itself gives up after ten seconds


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
        depth: How many processes below the one that is started the command itself is.
        restraints: The limits on it, as `supervisor.Groups` reads them.
        waiting: The namespace that it is to start in, which has the job already; most of the rest does not matter then.
    """

    arguments: tuple[str, ...]
    name: str | None = None
    environment: Mapping[str, str] = {}
    search: tuple[str, ...] = DEFAULT_PATH
    directory: int | None = None
    descriptors: tuple[int, ...] = ()
    status: int | None = None
    depth: int = 0
    restraints: tuple[str, ...] = ()
    waiting: Waiting | None = None

    def encoded(self) -> bytes:
        """Return the job as the supervisor reads it."""
        arguments = [os.fsencode(part) for part in self.arguments]
        pairs = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in self.environment.items()]
        search = [os.fsencode(part) for part in self.search]
        restraints = [os.fsencode(part) for part in self.restraints]
        parts = (arguments, pairs, search, restraints)
        counts = [int(self.directory is not None), self.depth, *(len(part) for part in parts)]
        fields = b"\0".join(
            [*(b"%d" % count for count in counts), *(field for part in parts for field in part)]
        )
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


class Launcher:
    """Starts commands, through a supervisor process of its own.

    Args:
        name: What starts them, for errors.
        environment: Variables of the supervisor, which no command gets. A probe looks for them where none may be.

    Attributes:
        alone: Whether this is the first process of a namespace that has nothing but commands beside it, so that what the loss of a
            supervisor leaves can be killed by killing all.
    """

    alone = False

    def __init__(self, name: str = "sandbox", *, environment: Mapping[str, str] | None = None) -> None:
        self._name, self._environment = name, dict(environment or {})
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._pid: int | None = None
        self._owner = os.getpid()
        self._commands: set[Command] = set()
        self._broken: float | None = None  # since when nothing can be sent to the supervisor, which is ending
        self._closed = False

    @property
    def supervisor(self) -> int | None:
        """The supervisor's pid, where there is one."""
        return self._pid

    @property
    def running(self) -> int:
        """How many commands run."""
        return len(self._commands)

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
                if self._broken is not None and time.monotonic() - self._broken > _BROKEN:
                    with suppress(OSError):
                        os.kill(self._pid, signal.SIGKILL)
                return
            self._broken = None
            if self._control is not None:
                self._control.close()
            if self.alone and self._pid is not None:
                _kill_all()
            self._control, self._pid = _start_supervisor(self._environment)

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
        captures = (Capture(max_output_bytes), Capture(max_output_bytes))
        command, job, _ = await self._hand_over(program, _input(input), captures)
        self._commands.add(command)
        releases = ExitStack()
        try:
            self._bind(command, releases, timeout, context)
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
            releases.close()
            self._commands.discard(command)
            command.close()
        duration = time.perf_counter() - started
        return self._result(program, command, timeout, duration, context, captures)

    async def start_process(
        self,
        program: Program,
        *,
        timeout: float | None,
        context: Interruptible | None,
        result: Callable[[Execution], Execution],
        release: ExitStack,
    ) -> StreamedProcess:
        """Start a program that its caller talks to; see `Sandbox.start_program`.

        Args:
            program: What to start.
            timeout: Seconds after which it is killed.
            context: Whose cancellation and deadline kill it.
            result: Puts how it went into the backend's words.
            release: Closed when it is over.
        """
        if context is not None:
            context.check()
        self.start()
        started = time.perf_counter()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        try:
            command, job, outputs = await self._hand_over(program, reading, None)
        except BaseException:
            os.close(writing)
            raise
        self._commands.add(command)
        releases = release.pop_all()

        def outcome() -> Execution:
            duration = time.perf_counter() - started
            execution = self._result(program, command, timeout, duration, context)
            if execution.exit_code is None:  # it was killed, whatever for
                execution = msgspec.structs.replace(execution, exit_code=128 + signal.SIGKILL)
            return result(execution)

        async def over(command: Command) -> None:
            try:
                await self._ended(command)
            finally:
                self._commands.discard(command)

        process = StreamedProcess(command, (writing, *outputs), over, outcome, releases)
        try:
            self._bind(command, releases, timeout, context)
            with suppress(BrokenPipeError, ConnectionResetError):
                await command.loop.sock_sendall(command.connection, job)
            await process.begun()
        except BaseException:
            await process.close()
            raise
        return process

    def _bind(
        self, command: Command, releases: ExitStack, timeout: float | None, context: Interruptible | None
    ) -> None:
        """Have the command end with the sandbox, the time and the caller it was given; ``releases`` undoes it."""
        if self._closed:
            command.end("closed")
        if timeout is not None:
            releases.callback(command.loop.call_later(timeout, command.end, "timeout").cancel)
        if context is not None:
            if context.deadline is not None:
                timer = command.loop.call_later(context.deadline.remaining(), command.end, "deadline")
                releases.callback(timer.cancel)
            releases.callback(context.cancellation.add_callback(lambda: command.end_threadsafe("cancelled")))

    async def _hand_over(
        self, program: Program, stdin: int, captures: tuple[Capture, Capture] | None
    ) -> tuple[Command, bytes, tuple[int, int]]:
        """Give a keeper its descriptors; return the command, the job to send it, and the ends of its output streams.

        Args:
            program: What is to run.
            stdin: Its standard input; it is closed here.
            captures: What to keep of its streams; without, the caller reads and closes them.
        """
        theirs = [stdin]
        mine: list[int] = []
        connection: socket.socket | None = None
        try:
            job = b"" if program.waiting is not None else program.encoded()
            for _ in range(2):
                reading, writing = os.pipe()
                os.set_blocking(reading, False)
                mine.append(reading)
                theirs.append(writing)
            if program.waiting is not None:
                connection, supervisor = program.waiting.keeper(), program.waiting.supervisor
            else:
                connection, far = _line()
                theirs.insert(0, far)
                extra = ([] if program.directory is None else [program.directory]) + list(program.descriptors)
                while not self._send([*theirs, *extra]):
                    await asyncio.sleep(0.002)
                    self.start()
                supervisor = self._pid
            kept = None if captures is None else dict(zip(mine, captures, strict=True))
            command = Command(connection, self._attend, kept)
            command.supervisor = supervisor
            if program.waiting is not None:  # last, for from here on both want the processor
                try:
                    program.waiting.give(theirs)
                except BaseException:
                    command.close()
                    if captures is not None:
                        mine.clear()  # the command closed them
                    raise
            return command, job, (mine[0], mine[1])
        except BaseException:
            for descriptor in mine:
                os.close(descriptor)
            if connection is not None:
                connection.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def prestart(self, program: Program, line: socket.socket) -> Waiting | None:
        """Start a program that waits for a command at the other end of ``line``; `None` where that cannot be done now."""
        self.start()
        connection, far = _line()
        messages = os.memfd_create("messages", os.MFD_CLOEXEC)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            if self._send([far, nothing, nothing, messages, *program.descriptors]):
                connection.sendall(program.encoded())
                return Waiting(connection, line, messages, self._pid)
        except OSError:
            pass
        finally:
            os.close(far)
            os.close(nothing)
        connection.close()
        os.close(messages)
        return None

    def _send(self, descriptors: list[int]) -> bool:
        with self._lock:
            if self._control is None:
                raise ToolError("the sandbox is closed")
            try:
                socket.send_fds(self._control, [b"J"], descriptors)
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET):
                    self._broken = self._broken or time.monotonic()
                elif error.errno != errno.ETOOMANYREFS:
                    raise
                return False
            return True

    def _attend(self, command: Command) -> None:
        """Go on without a keeper or supervisor that does not react: a program of the same user can stop it."""
        now = time.monotonic()
        if command.keeper is not None:
            since = 0.0 if command.ended is None else now - command.ended
            if since > _GRACE:
                command.give_up("left")
            elif since > 0.75 * _GRACE or (since > 0.5 * TICK and _status(command.keeper)[0] in _STOPPED):
                _kill(command.keeper, session=command.supervisor)  # the supervisor sweeps up after it
        elif command.supervisor is not None and now - command.began > 1.5 * TICK:
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

    async def _ended(self, command: Command) -> None:
        await asyncio.shield(command.finished)
        if command.state == "lost":
            await self._clear_up_after(command)

    async def _clear_up_after(self, command: Command) -> None:
        """The keeper was killed, so its orphans are the supervisor's: wait until it has killed them, and kill what is known.

        The line to a keeper is shut as it dies, before its orphans are handed over; when it has been reaped, they are. The kernel's list of
        children may leave one out while another is taken off it, so there are none only when it says so twice.
        """
        if command.pid is not None:
            with suppress(OSError):
                os.killpg(command.pid, signal.SIGKILL)
        supervisor = command.supervisor
        if self.alone and supervisor == self._pid and supervisor is not None and _has_ended(supervisor):
            await asyncio.to_thread(_kill_all)
        end = time.monotonic() + 0.75 * _GRACE
        clear = 0
        while supervisor is not None and clear < 2:
            found = _children(supervisor)
            clear = 0 if any(pid == command.keeper or not own for pid, own in found) else clear + 1
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
        command: Command,
        timeout: float | None,
        duration: float,
        context: Interruptible | None,
        captures: Sequence[Capture] = (),
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
            (capture.finish() for capture in captures) if captures else (("", 0), ("", 0))
        )
        code, error = command.code, None
        if command.reason == "timeout":
            code, error = None, f"timed out after {timeout:g} s"
        elif command.reason == "closed":
            code, error = None, "ended because the sandbox was closed"
        elif command.failure is not None:
            code = 127 if command.failure in (errno.ENOENT, errno.ENOTDIR) else 126
            error = not_started(program.name or program.arguments[0], code, os.strerror(command.failure))
        elif command.unbound:
            error = "the limits of the command could not be put in force"
        elif command.reason == "cpu" or command.code == 128 + signal.SIGXCPU:
            code, error = 128 + signal.SIGXCPU, "ended because it used up its CPU time"
        elif command.starved and command.code == 128 + signal.SIGKILL:
            error = "killed because it used up its memory"
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
            if command.loop.is_closed():  # and nobody of it is left to hear of anything
                command.abandon()
                self._commands.discard(command)
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


def _line() -> tuple[socket.socket, int]:
    """Return the two ends of the line between a command and its keeper; the application's does not block."""
    near, far = socket.socketpair()
    near.setblocking(False)
    return near, far.detach()


_SUPERVISOR = source_of("littleghost.sandboxes.supervisor")
_LOADER = "exec(open(4, encoding='utf-8').read())  # littleghost/sandboxes/supervisor.py"


def _start_supervisor(environment: Mapping[str, str]) -> tuple[socket.socket, int]:
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
            {**{name: os.environ[name] for name in keep if name in os.environ}, **environment},
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
    if data is None:  # /dev/null would be the host's, whose mode its owner can change
        content = b""
    elif isinstance(data, str):
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


def _kill_all() -> None:
    """Kill all other processes that this one can signal, and reap them."""
    end = time.monotonic() + 0.5 * _GRACE
    while time.monotonic() < end:
        with suppress(OSError):
            os.kill(-1, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


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
