"""The sandbox contract: what an agent may do with files and processes, wherever that happens.

A sandbox of your own overrides what it offers and nothing else::

    class ServiceSandbox(Sandbox):
        async def read(self, path, *, context=None):
            return await self.client.read(path)

        async def execute_program(self, command, *, timeout, context=None, **options):
            return Execution(**await self.client.run(command, timeout=timeout))

`Sandbox.execute` then works too, for it is ``/bin/sh -c`` through `Sandbox.execute_program`. What is not overridden raises
`UnsupportedError`.
"""

from __future__ import annotations

import builtins
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

import msgspec

from littleghost.cancellation import Interruptible
from littleghost.errors import ConfigurationError, PolicyError, ToolValueError, UnsupportedError
from littleghost.sandboxes.policy import Access, EffectivePolicy, Policy
from littleghost.workspace import Workspace

__all__ = [
    "Check",
    "Execution",
    "FileInfo",
    "Found",
    "Match",
    "Probe",
    "Process",
    "Sandbox",
    "SandboxLimits",
]

Item = TypeVar("Item")


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """How a command went.

    Attributes:
        stdout: Its standard output as text; invalid bytes are U+FFFD. Past the cap the middle is cut out and a marker says so.
        stderr: The same of its standard error.
        exit_code: 0–255; 127 for a missing program, 126 for one that cannot be run, 128+N for death by signal N; ``None`` where the
            command did not end by itself.
        error: Why it did not run to its end, in a short text, or ``None``.
        timed_out: Whether the time limit ended it.
        stdout_omitted: How many bytes the cap cut out of ``stdout``.
        stderr_omitted: How many it cut out of ``stderr``.
        duration: Seconds from start to end.
    """

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    error: str | None = None
    timed_out: bool = False
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    duration: float = 0.0

    @property
    def success(self) -> bool:
        """Whether it ran to its end and said 0."""
        return self.error is None and self.exit_code == 0


_ALWAYS = ("read_bytes", "write_bytes", "list_entries", "search_entries", "search_bytes", "search_seconds")
_RANGES: dict[str, tuple[int, int | None]] = {"temporary_bytes": (1, 2**63 - 1)}  # others are from 0 up


def _is_count(value: object, least: int, most: int | None) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return value >= least and (most is None or value <= most)


def _is_time(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value < math.inf


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Upper bounds. ``None`` sets none; one that a backend cannot enforce makes its ``open`` fail, and is never ignored.

    Attributes:
        read_bytes: Largest file that is read.
        write_bytes: Largest content that is written.
        list_entries: Longest listing, and most results of a search.
        search_entries: How many entries of directories a search looks at.
        search_bytes: How many bytes a search, or the way to a part of a file, reads.
        search_seconds: How long a search takes.
        output_bytes: Most bytes kept of each output stream, whatever a call asks for. (A call asks for 1,000,000 by default.)
        wall_seconds: Longest a command may take, whatever a call asks for.
        temporary_bytes: Size of the private ``/tmp``, where there is one.
        memory_bytes: Memory of everything a command starts.
        processes: Number of processes and threads of a command at a time.
        cpu_seconds: CPU time of a command; where there are no control groups, of each of its processes, in whole seconds.
        file_bytes: Largest file a process may write.
        disk_bytes: What the workspace may grow to. No backend on this machine enforces it.
    """

    read_bytes: int = 1_000_000
    write_bytes: int = 1_000_000
    list_entries: int = 10_000
    search_entries: int = 100_000
    search_bytes: int = 100_000_000
    search_seconds: float = 10.0
    output_bytes: int | None = None
    wall_seconds: float | None = None
    temporary_bytes: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    cpu_seconds: float | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: Any = getattr(self, name)
            if value is None and name not in _ALWAYS:
                continue
            if name.endswith("_seconds"):
                good, must = _is_time(value), "a number of seconds above 0"
            else:
                least, most = _RANGES.get(name, (0, None))
                good = _is_count(value, least, most)
                must = f"a whole number from {least}" + (f" to {most}" if most else " up")
            if not good:
                raise ConfigurationError(f"the limit {name} must be {must}, not {value!r}", limit=name)

    def lowered(self, other: SandboxLimits) -> SandboxLimits:
        """Return the lower of each two limits; the result is never wider than ``self``."""
        lower: dict[str, Any] = {}
        for name in self.__struct_fields__:
            known = [value for value in (getattr(self, name), getattr(other, name)) if value is not None]
            lower[name] = min(known) if known else None
        return SandboxLimits(**lower)


def checked_limits(limits: SandboxLimits | None) -> SandboxLimits | None:
    """Return ``limits``, if they are some.

    Raises:
        ConfigurationError: They are something else, such as a dict.
    """
    if limits is None or isinstance(limits, SandboxLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
        return limits
    raise ConfigurationError(
        f"limits must be a SandboxLimits, such as SandboxLimits(wall_seconds=60), not {type(limits).__name__}"
    )


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `Sandbox.stat` tells about a path; links that stay inside the workspace have been followed.

    Attributes:
        kind: What is there.
        size: Bytes.
        modified: Seconds since 1970.
        executable: Whether an execute bit is set.
    """

    kind: Literal["file", "directory", "other"]
    size: int
    modified: float
    executable: bool = False


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A line that `Sandbox.grep` found. As a string it is ``path:line: text``.

    Attributes:
        path: The file, as `Sandbox.read` takes it.
        line: Its number, from 1.
        text: The line without its end. Of a long one, what is around the place found, with ``…`` where something was cut; bytes that
            are no text are U+FFFD.
    """

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Found(list[Item]):
    """What a search found: a list that says whether it is all.

    Args:
        items: What it holds.
        truncated: See below.
        skipped: See below.

    Attributes:
        truncated: Why there may be more than this, in a few words, or ``None`` where this is all.
        skipped: How many files and directories could not be looked into, such as those that deny access.
    """

    def __init__(self, items: Iterable[Item] = (), *, truncated: str | None = None, skipped: int = 0) -> None:
        super().__init__(items)
        self.truncated, self.skipped = truncated, skipped


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a probe tried: ``denial`` tells an attempt that had to fail from one that had to work."""

    name: str
    ok: bool
    denial: bool = False
    detail: str = ""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a backend works here.

    Attributes:
        available: Whether every check came out as it must.
        reason: Why not, in a sentence that says what to do.
        checks: What was tried.
        version: What was found, such as ``bubblewrap 0.8.0``.
    """

    available: bool
    reason: str = ""
    checks: tuple[Check, ...] = ()
    version: str = ""


class Process(ABC):
    """A running program that the caller owns: it talks to it, and closes it. An async context manager.

    Nothing is read ahead. What nobody reads stays with the program, which waits when its pipe is full; so does `write` while the program
    does not read. When the program ends, what it left running is killed; what it printed can still be read.

    The calls are for the event loop that started it. At the end of that loop, of the sandbox or of the application it is killed,
    with everything it started. A cancelled `write` may have written a part.
    """

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to its standard input, waiting while it does not read.

        Raises:
            ToolError: It does not read any more, or the input or the process is closed.
        """

    @abstractmethod
    async def close_input(self) -> None:
        """Let its standard input end, after what is being written. Closing twice does nothing."""

    @abstractmethod
    async def read(self, limit: int = 65_536) -> bytes:
        """Return the next bytes of its standard output, at most ``limit``; ``b""`` at the end.

        Raises:
            ToolError: The process is closed.
            RunCancelled: It was ended by its context's cancellation; there is no more.
            DeadlineExceeded: The same for the deadline.
        """

    @abstractmethod
    async def read_error(self, limit: int = 65_536) -> bytes:
        """Return the next bytes of its standard error, in the same way."""

    @abstractmethod
    async def wait(self) -> int:
        """Return its exit code when it has ended and nothing of it is left.

        The code is 127 for a missing program, 126 for one that cannot be run, 128+N for death by signal N; 137 where it was killed
        here. It waits for no output to be read; a program that has more to print than its pipe holds does not end before it is.

        Raises:
            RunCancelled: It was ended by its context's cancellation.
            DeadlineExceeded: The deadline of its context passed.
        """

    @property
    def error(self) -> str | None:
        """Why it did not run to its end, in a short text, once it is over; else ``None``."""
        return None

    @abstractmethod
    async def terminate(self) -> None:
        """Ask it to end: SIGTERM to it and its process group. It may take its time, or not listen."""

    @abstractmethod
    async def kill(self) -> None:
        """End it, and everything it started, and return when all of it is gone."""

    @abstractmethod
    async def close(self) -> None:
        """Kill what still lives and release everything. Closing twice does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Sandbox(ABC):
    """What an agent may do with files and processes. An async context manager.

    Paths are relative to the workspace, or ``workspace://name/…``. Every refusal or failure of a file method is a `ToolError` whose
    second base is the nearest builtin (`FileNotFoundError`, `PermissionError`, …) and whose text names no host path.

    Args:
        workspace: The directories; a plain path stands for ``Workspace(path)``. The sandbox opens it, and closes it.
        writable: Whether the root may be written.
        policy: More exactly what is asked for; see `Policy`.
        limits: Upper bounds; see `SandboxLimits`.

    Attributes:
        capabilities: What the implementation offers and enforces, in words such as ``files``, ``write``, ``bytes``, ``ranges``, ``stat``,
            ``delete``, ``move``, ``make_directory``, ``glob``, ``grep``, ``git_read_only``, ``git_read_only_processes``, ``execute``,
            ``kill_tree``, ``isolation``, ``network_none``, ``read_only_processes``.

    Raises:
        PolicyError: ``policy`` contradicts itself, ``writable`` or the workspace.
    """

    capabilities: frozenset[str] = frozenset()

    def __init__(
        self,
        workspace: Workspace | str | os.PathLike[str],
        *,
        writable: bool = False,
        policy: Policy | Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
    ) -> None:
        self._workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
        self._policy = Policy.of(policy)
        self._limits = checked_limits(limits) or SandboxLimits()
        if writable and self._policy.root == "read_only":
            raise PolicyError("writable=True and policy.root='read_only' contradict each other")
        unknown = sorted(set(self._policy.paths) - set(self._workspace.paths))
        if unknown:
            raise PolicyError(f"the policy speaks of paths the workspace does not have: {', '.join(unknown)}")
        self._root_access: Access = (
            "read_write" if writable or self._policy.root == "read_write" else "read_only"
        )

    @property
    def workspace(self) -> Workspace:
        """The directories this sandbox governs."""
        return self._workspace

    @property
    def policy(self) -> Policy:
        """What was asked for."""
        return self._policy

    @property
    def limits(self) -> SandboxLimits:
        """The upper bounds."""
        return self._limits

    @property
    def effective_policy(self) -> EffectivePolicy:
        """What is in force. A sandbox that does not say more than this claims nothing about processes."""
        return EffectivePolicy(root=self._root_access, paths=dict(self._policy.paths))

    @property
    def writable(self) -> bool:
        """Whether the file methods may change the workspace root."""
        return self._root_access == "read_write"

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self.workspace.is_open

    async def open(self, run: object = None) -> Self:
        """Open the workspace and make ready; from here on the sandbox owns closing both. Opening twice does nothing.

        Args:
            run: The run it is opened for, where there is one.
        """
        await self.workspace.open()
        return self

    async def close(self) -> None:
        """End what still runs, release everything, and close the workspace. Closing twice does nothing."""
        await self.workspace.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @classmethod
    async def probe(cls, **options: Any) -> Probe:
        """Return whether this backend works here, and whether what it denies is really denied."""
        return Probe(available=False, reason=f"{cls.__name__} does not probe itself")

    def scope(
        self,
        *,
        read_only: bool = False,
        path: str | None = None,
        paths: Sequence[str] | None = None,
        execute: bool = True,
        limits: SandboxLimits | None = None,
    ) -> Sandbox:
        """Return a narrower view of this sandbox. It can never do what this one cannot, and closing it closes nothing.

        Args:
            read_only: Allow no change.
            path: A directory that is the view's root.
            paths: The named paths that stay; all of them when left out. With ``path``, none unless named here.
            execute: Whether programs may be run.
            limits: Bounds of which the lower one counts, theirs or this sandbox's.

        Raises:
            CapabilityError: One of ``limits`` cannot be enforced.
            UnsupportedError: The backend has no scopes.
        """
        raise self._unsupported("scopes")

    # Files

    async def read(
        self, path: str, *, context: Interruptible | None = None, offset: int = 0, limit: int | None = None
    ) -> str:
        r"""Return the text of a file exactly: strict UTF-8, line ends and byte order mark as they are.

        Args:
            path: The file.
            context: Who asks.
            offset: How many lines to leave out at the start; a line ends with ``\n``. A file too large to be read whole can be read in
                parts. Needs the capability ``ranges``, as ``limit`` does.
            limit: How many lines to return at most.

        Raises:
            ToolUnicodeError: It, or the part asked for, is not UTF-8.
            ToolValueError: It, or the part, is larger than ``limits.read_bytes``.
            ToolError: It does not exist, is no regular file, or is outside the workspace.
        """
        raise self._unsupported("reading files")

    async def list(self, path: str = ".", *, context: Interruptible | None = None) -> builtins.list[str]:
        """Return the names in a directory, sorted; those of directories end in ``/``.

        Raises:
            ToolValueError: There are more than ``limits.list_entries``.
        """
        raise self._unsupported("listing directories")

    async def write(self, path: str, content: str, *, context: Interruptible | None = None) -> None:
        """Make ``content`` the text of a file: wholly or, when this raises, not at all. Missing directories are created.

        Where it fails, those are removed again, unless something else has come into them.

        Raises:
            ToolPermissionError: The sandbox is read-only, or the path is outside the workspace.
            ToolValueError: The content is larger than ``limits.write_bytes``.
        """
        raise self._unsupported("writing files")

    async def replace(
        self, path: str, old_text: str, new_text: str, *, context: Interruptible | None = None
    ) -> None:
        """Put ``new_text`` where ``old_text`` is, which must be exactly one place; overlapping places count.

        Raises:
            ToolValueError: ``old_text`` is empty, absent, or there more than once.
            ToolError: The file changed meanwhile; it is left as it is now.
        """
        raise self._unsupported("editing files")

    async def read_bytes(
        self, path: str, *, context: Interruptible | None = None, offset: int = 0, limit: int | None = None
    ) -> bytes:
        """Return the bytes of a file, or ``limit`` bytes after the first ``offset``, under the same rules as `read`."""
        raise self._unsupported("reading bytes")

    async def write_bytes(self, path: str, content: bytes, *, context: Interruptible | None = None) -> None:
        """Make ``content`` the bytes of a file, under the same rules as `write`."""
        raise self._unsupported("writing bytes")

    async def stat(self, path: str, *, context: Interruptible | None = None) -> FileInfo:
        """Return what is at ``path``."""
        raise self._unsupported("stat")

    async def delete(self, path: str, *, context: Interruptible | None = None) -> None:
        """Delete a file or an empty directory. Of a link the link itself goes, not what it leads to.

        Raises:
            ToolError: The directory is not empty, nothing is there, or the path is the workspace itself.
        """
        raise self._unsupported("deleting files")

    async def move(self, path: str, target: str, *, context: Interruptible | None = None) -> None:
        """Move a file, a link itself, or a directory with all that is in it, in one step. Missing directories are created.

        Args:
            path: What to move.
            target: Its new path, not the directory to put it in.
            context: Who asks.

        Raises:
            ToolFileExistsError: Something is at ``target``; it is never replaced, not even an empty directory.
        """
        raise self._unsupported("moving files")

    async def make_directory(self, path: str, *, context: Interruptible | None = None) -> None:
        """Create a directory and its missing parents. One that is there already is left as it is.

        Raises:
            ToolFileExistsError: Something else is there.
        """
        raise self._unsupported("creating directories")

    async def glob(
        self,
        pattern: str,
        *,
        path: str = ".",
        hidden: bool = False,
        limit: int | None = None,
        context: Interruptible | None = None,
    ) -> Found[str]:
        """Return the paths below a directory that match a pattern, sorted component by component; a directory ends in ``/``.

        ``*`` stands for any characters of a name, ``?`` for one, ``[a-z]`` and ``[!a-z]`` for one of a set, ``{py,md}`` for one of
        several texts, ``**`` as a whole component for any number of directories, none included.

        A link is followed where ``path`` or the beginning of the pattern names it. One that a wildcard finds is told and not gone into.

        Args:
            pattern: Relative to ``path``.
            path: The directory. The paths found begin with it, so that `read` takes them.
            hidden: Whether wildcards match names that begin with a dot.
            limit: Most paths to return; never more than ``limits.list_entries``.
            context: Who asks.

        Raises:
            ToolValueError: It is no pattern.
            ToolError: ``path`` does not exist, is no directory, or is outside the workspace. (That nothing matches is no error.)
        """
        raise self._unsupported("glob")

    async def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        hidden: bool = False,
        limit: int | None = None,
        context: Interruptible | None = None,
    ) -> Found[Match]:
        """Return the lines of the text files below a directory that a regular expression matches, sorted by path and line.

        Files with a NUL near their start are taken for binary and left out. Links found on the way are not followed.

        Args:
            pattern: In the syntax of Python's `re`, tried on each line without its end. ``(?i)`` at its start ignores case.
            path: The directory, or one file.
            glob: Which files, as in `glob`; one without ``/`` is for their names, at any depth.
            hidden: Whether to look into files and directories whose names begin with a dot. (``path`` and ``glob`` can name them.)
            limit: Most lines to return; never more than ``limits.list_entries``.
            context: Who asks.

        Raises:
            ToolValueError: It is no regular expression.
            ToolError: ``path`` does not exist or is outside the workspace.
        """
        raise self._unsupported("grep")

    # Processes

    async def execute(
        self,
        command: str,
        *,
        timeout: float | None,
        context: Interruptible | None = None,
        max_output_bytes: int = 1_000_000,
        **options: Any,
    ) -> Execution:
        """Run a shell command: ``/bin/sh -c``. Take `execute_program` for arguments that a model chose.

        Raises:
            ToolValueError: The command is no text.
        """
        if not isinstance(command, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError(
                "execute takes one text, for /bin/sh; execute_program takes a list of arguments"
            )
        return await self.execute_program(
            ["/bin/sh", "-c", command],
            timeout=timeout,
            context=context,
            max_output_bytes=max_output_bytes,
            **options,
        )

    async def execute_program(
        self,
        command: Sequence[str],
        *,
        timeout: float | None,
        context: Interruptible | None = None,
        max_output_bytes: int = 1_000_000,
        environment: Mapping[str, str] | None = None,
        inherit_environment: bool = False,
        input: str | bytes | None = None,
        cwd: str | None = None,
    ) -> Execution:
        """Run a program with arguments; no shell reads them.

        It ends when its direct process ends, and what it left running is killed then; a time-out, a cancellation and `close` kill
        all of it too.

        Args:
            command: The program and its arguments.
            timeout: Seconds; a command that takes longer is an `Execution` with an ``error`` and the output so far.
                ``None`` sets no limit of this call's own.
            context: Whose cancellation and deadline end it, by raising.
            max_output_bytes: How much of each stream to keep.
            environment: Its whole environment, but for what the policy sets.
            inherit_environment: Start from the application's environment instead of from nothing.
            input: Its standard input, which is at its end at once otherwise.
            cwd: A directory of the workspace to start in, the root when left out.

        Raises:
            RunCancelled: ``context`` was cancelled; everything the command started is gone.
            DeadlineExceeded: The deadline of ``context`` passed; the same.
            ToolValueError: The command is no list, is empty, or has a NUL.
        """
        raise self._unsupported("running programs")

    async def start_program(
        self,
        command: Sequence[str],
        *,
        context: Interruptible | None = None,
        environment: Mapping[str, str] | None = None,
        inherit_environment: bool = False,
        cwd: str | None = None,
    ) -> Process:
        """Start a program that lives on, and return the caller's handle on it, to be closed by it.

        A program that cannot be started is a `Process` that has ended; see `Process.wait`.

        Args:
            command: The program and its arguments.
            context: Whose cancellation and deadline kill it.
            environment: Its whole environment, but for what the policy sets.
            inherit_environment: Start from the application's environment instead of from nothing.
            cwd: A directory of the workspace to start in, the root when left out.

        Raises:
            RunCancelled: ``context`` was cancelled; nothing is left of the program.
            DeadlineExceeded: The deadline of ``context`` passed; the same.
            ToolValueError: The command is no list, is empty, or has a NUL.
        """
        raise self._unsupported("long-lived programs")

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} does not support {what}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._workspace.root)!r}, writable={self.writable})"
