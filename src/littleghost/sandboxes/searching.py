"""Finding files by name and lines by content, below a directory that is held.

Each directory is opened from the one where the search began, by a path in which no link is followed; so a directory that becomes a link
meanwhile is not gone into, and however deep a tree is, one descriptor is enough.

Whoever wrote the tree and the pattern may be hostile: what is looked at, read, found and how long it takes is bounded, and regular
expressions are matched in a process of their own (see `matcher`), for nothing else stops one that never ends.

Everything here blocks; callers use a thread.
"""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Self

from littleghost.cancellation import Interruptible
from littleghost.descriptors import DIRECTORY, Kind, PathPlace, Place, resolved, scan
from littleghost.errors import CapabilityError, ToolError, ToolNotADirectoryError, ToolValueError
from littleghost.sandboxes import matcher
from littleghost.sandboxes.contract import Found, Match, SandboxLimits
from littleghost.sandboxes.files import READ, Files, told
from littleghost.sandboxes.patterns import PathPattern, State
from littleghost.sandboxes.sources import source_of
from littleghost.workspace import MOST_COMPONENTS, parse_path, shown

__all__ = ["Watch", "find_lines", "find_paths"]

_MOST_PATTERN = 1_000
_CHUNK = 1 << 18
_BATCH_FILES = 200
_BINARY = 1 << 13  # where a NUL makes a file binary
_GRACE = 1.0
# What says that an entry cannot be looked into, and no more than that.
_PASSED_OVER = frozenset(
    {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EXDEV, errno.ENXIO, errno.EINVAL}
)  # fmt: skip


class Watch:
    """Whether a search may go on. The thread that searches asks; whoever waits for it tells.

    Args:
        context: Whose cancellation and deadline end it.
        seconds: When it stops with what it has found.
    """

    def __init__(self, context: Interruptible | None, seconds: float) -> None:
        self._context, self.seconds = context, seconds
        self._at = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._stopped = False
        self._then: Callable[[], None] | None = None

    @property
    def remaining(self) -> float:
        """The seconds left, the context's deadline considered too; never below zero."""
        left = self._at - time.monotonic()
        if self._context is not None and self._context.deadline is not None:
            left = min(left, self._context.deadline.remaining())
        return max(0.0, left)

    @property
    def late(self) -> bool:
        """Whether its seconds have passed."""
        return time.monotonic() >= self._at

    def stop(self) -> None:
        """End it, from any thread."""
        with self._lock:
            self._stopped = True
            then = self._then
        if then is not None:
            then()

    @contextmanager
    def stopping(self, then: Callable[[], None]) -> Generator[None]:
        """Have `stop` do this too, during the block."""
        with self._lock:
            self._then = then
        try:
            yield
        finally:
            with self._lock:
                self._then = None

    def check(self) -> None:
        """Raise where the search was ended, or its context says so."""
        if self._context is not None:
            self._context.check()
        if self._stopped:
            raise ToolError("the search was ended, for the sandbox was closed or the caller is gone")


class _Tally:
    """What a search has used of its bounds."""

    def __init__(self, limits: SandboxLimits, watch: Watch) -> None:
        self.limits, self.watch = limits, watch
        self.looked = self.read = self.skipped = 0
        self.truncated: str | None = None

    def goes_on(self) -> bool:
        """Whether there is time left."""
        self.watch.check()
        if self.truncated is None and self.watch.late:
            self.truncated = f"stopped after {self.watch.seconds:g} s"
        return self.truncated is None

    def pass_over(self, error: OSError) -> None:
        """Count what cannot be looked into; raise what is wrong with the search itself."""
        if error.errno == errno.ENOENT:  # it has just gone
            return
        if error.errno not in _PASSED_OVER:
            raise error
        self.skipped += 1

    def entries(
        self, top: Place, base: tuple[str, ...], below: tuple[str, ...]
    ) -> Iterator[tuple[str, Kind]]:
        """Return the entries of a directory, sorted."""
        found: list[tuple[str, Kind]] = []
        try:
            with closing(_scanned(top, base + below)) as entries:
                for entry in entries:
                    if self.looked >= self.limits.search_entries:
                        self.truncated = f"stopped after {self.looked:,} entries of directories"
                        break
                    self.looked += 1
                    found.append(entry)
                    if not self.looked % 256 and not self.goes_on():
                        break
        except OSError as error:
            self.pass_over(error)
        return iter(sorted(found))

    def below(
        self, top: Place, base: tuple[str, ...], pattern: PathPattern
    ) -> Iterator[tuple[tuple[str, ...], Kind]]:
        """Yield what matches below a directory, sorted by components, with its path from there."""
        stack: list[tuple[tuple[str, ...], State, Iterator[tuple[str, Kind]]]] = [
            ((), pattern.start, self.entries(top, base, ()))
        ]
        while stack:
            here, state, entries = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                continue
            name, kind = entry
            matches, inner = pattern.step(state, name, is_directory=kind == "directory")
            if matches:
                yield (*here, name), kind
            if kind != "directory" or not inner or not self.goes_on():
                continue
            if len(base) + len(here) + 2 > MOST_COMPONENTS:  # a path down there could not be said
                self.skipped += 1
                continue
            stack.append(((*here, name), inner, self.entries(top, base, (*here, name))))


def _scanned(top: Place, components: tuple[str, ...]) -> Generator[tuple[str, Kind]]:
    yield from scan(top, components, links=False)


@contextmanager
def _started(top: Place, components: tuple[str, ...]) -> Generator[tuple[Place, tuple[str, ...]]]:
    """Hold the directory where a search starts, links on the way there followed."""
    if isinstance(top, PathPlace):
        yield top, components
        return
    place = Place(resolved(top, components, DIRECTORY))
    try:
        yield place, ()
    finally:
        place.close()


def _told(prefix: str, path: tuple[str, ...]) -> str:
    # A name that is no Unicode cannot be said in JSON; it is shown with U+FFFD and cannot be opened.
    text = "/".join(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return prefix + text


def _prefix(name: str | None, components: tuple[str, ...]) -> str:
    """Return what the paths found begin with, so that they lead there from the workspace."""
    start = "" if name is None else f"workspace://{name}/"
    return start + "".join(f"{part}/" for part in components)


def _bounded(limit: int | None, most: int) -> int:
    if limit is None:
        return most
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ToolValueError("limit must be a whole number from 0 up")
    return min(limit, most)


def find_paths(
    files: Files, pattern: str, path: str, *, hidden: bool, limit: int | None, watch: Watch
) -> Found[str]:
    """Return the paths that match; see `Sandbox.glob`."""
    wanted = PathPattern(pattern, hidden=hidden)
    most = _bounded(limit, files.limits.list_entries)
    if files.stat(path).kind != "directory":
        raise ToolNotADirectoryError(f"{shown(path)}: not a directory", path=path)
    root, components = files.locate(path)
    name = parse_path(path).name
    tally = _Tally(files.limits, watch)
    components += wanted.prefix
    prefix = _prefix(name, components)
    found: list[str] = []
    with told(path), root.place() as top:
        try:
            with _started(top, components) as (base, below):
                for relative, kind in tally.below(base, below, wanted):
                    if len(found) == most:
                        tally.truncated = f"these are the first {most:,}"
                        break
                    found.append(_told(prefix, relative) + ("/" if kind == "directory" else ""))
        except OSError as error:
            if not wanted.prefix or isinstance(error, ToolError):
                raise
            tally.pass_over(error)  # where the pattern begins there is no directory, so nothing matches
    return Found(found, truncated=tally.truncated, skipped=tally.skipped)


def find_lines(
    files: Files,
    pattern: str,
    path: str,
    *,
    glob: str | None,
    hidden: bool,
    limit: int | None,
    watch: Watch,
) -> Found[Match]:
    """Return the lines that match; see `Sandbox.grep`."""
    if not isinstance(pattern, str):  # pyright: ignore[reportUnnecessaryIsInstance] (what arrives comes from a model)
        raise ToolValueError("a regular expression must be text")
    if len(pattern) > _MOST_PATTERN:
        raise ToolValueError(f"a regular expression has at most {_MOST_PATTERN:,} characters here")
    if glob is None:
        wanted = PathPattern("**", hidden=hidden)
    else:
        anywhere = isinstance(glob, str) and "/" not in glob  # pyright: ignore[reportUnnecessaryIsInstance]
        wanted = PathPattern(f"**/{glob}" if anywhere else glob, hidden=hidden)
    most = _bounded(limit, files.limits.list_entries)
    root, components = files.locate(path)
    name = parse_path(path).name
    kind = files.stat(path).kind
    tally = _Tally(files.limits, watch)
    with told(path), root.place() as top, _Matcher(pattern, most, tally) as matching:
        try:
            if kind != "directory":
                fd = resolved(top, components, READ)
                try:
                    files.check_readable(path, os.fstat(fd))
                    matching.take(fd, _prefix(name, components).removesuffix("/"))
                finally:
                    os.close(fd)
            else:
                components += wanted.prefix
                try:
                    with _started(top, components) as (base, below):
                        prefix = _prefix(name, components)
                        for relative, entry_kind in tally.below(base, below, wanted):
                            if entry_kind == "file" and not matching.take_below(
                                files, base, below + relative, _told(prefix, relative)
                            ):
                                break
                except OSError as error:
                    if not wanted.prefix or isinstance(error, ToolError):
                        raise
                    tally.pass_over(error)
            matching.flush()
        except _Ended:
            watch.check()
            if watch.remaining > 0:
                raise ToolError(
                    "the regular expression needs too much memory, or its process was killed"
                ) from None
            tally.truncated = (
                f"stopped after {watch.seconds:g} s, in which the regular expression did not get through"
            )
        return Found(matching.found, truncated=tally.truncated, skipped=tally.skipped)


class _Ended(Exception):
    """The process that matches is gone."""


class _Matcher:
    """Lines that a regular expression matches, in the process that does it."""

    def __init__(self, pattern: str, most: int, tally: _Tally) -> None:
        self.found: list[Match] = []
        self._tally = tally
        self._pattern, self._most = pattern, most
        self._paths: list[str] = []
        self._unsent = bytearray()
        self._unanswered = 0
        self._full = False
        self._life: int | None = None  # what ends the process when the system closes it

    def __enter__(self) -> Self:
        if not sys.executable or _PROGRAM is None:
            raise CapabilityError("grep needs a Python interpreter and the library's files on disk")
        watch = self._tally.watch
        seconds = watch.remaining
        keep = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "SYSTEMROOT")
        arguments = [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, f"{seconds + _GRACE:.3f}"]
        theirs: tuple[int, ...] = ()
        try:
            if sys.platform == "linux":
                reading, self._life = os.pipe()
                theirs = (reading,)
                arguments.append(str(reading))
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in keep if name in os.environ},
                pass_fds=theirs,
                start_new_session=True,  # Ctrl-C is the application's
                bufsize=0,
            )
        except OSError as error:
            if self._life is not None:
                os.close(self._life)
            raise ToolError(f"the search could not be started: {error.strerror}") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._timer = threading.Timer(seconds, self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        self._stopping = watch.stopping(self._process.kill)
        self._stopping.__enter__()
        try:
            watch.check()
            try:
                text = self._pattern.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ToolValueError("a regular expression must be valid Unicode") from error
            self._frame(b"P", self._most, text)
            self._frame(b"B", self._tally.limits.read_bytes)
            try:
                self._send()
                answer = self._receive(1)
            except _Ended:
                return self  # which the first question finds too
            if answer != b"K":
                said = (self._process.stdout.read() if self._process.stdout else b"").decode(
                    "utf-8", "replace"
                )
                raise ToolValueError(
                    f"{shown(self._pattern)}: not a regular expression: {shown(said)}; "
                    "write a backslash before a sign that is meant as itself"
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._stopping.__exit__(None, None, None)
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        if self._life is not None:
            os.close(self._life)
        self._process.wait()
        self._timer.join()

    def take_below(self, files: Files, top: Place, components: tuple[str, ...], path: str) -> bool:
        """Search one file of a tree, unless it cannot be read. Return whether there is room for more."""
        try:
            fd = resolved(top, components, READ, links=False)
        except OSError as error:
            self._tally.pass_over(error)
            return self._tally.goes_on()
        try:
            files.check_readable(path, os.fstat(fd))
            return self.take(fd, path)
        except ToolError as error:
            if isinstance(error, ToolValueError):
                raise
            self._tally.watch.check()
            self._tally.skipped += 1  # no file any more, or one with other names
            return True
        finally:
            os.close(fd)

    def take(self, fd: int, path: str) -> bool:
        """Search one file that is open. Return whether there is room for more."""
        tally = self._tally
        number = len(self._paths)
        begun = False
        while tally.goes_on():
            data = os.read(fd, min(_CHUNK, tally.limits.search_bytes - tally.read + 1))
            tally.read += len(data)
            if tally.read > tally.limits.search_bytes:
                tally.truncated = f"stopped after reading {tally.limits.search_bytes:,} bytes"
                break
            if not begun:
                if not data or b"\0" in data[:_BINARY]:
                    break
                self._paths.append(path)
                begun = True
            self._frame(b"D" if data else b"L", number, data)
            if not data:
                begun = False
                break
            if self._unanswered >= _CHUNK and not self.flush():
                return False
        if begun:
            self._frame(b"L", number)
        if self._unanswered >= _CHUNK or len(self._paths) % _BATCH_FILES == 0:
            self.flush()
        return not self._full and tally.truncated is None

    def flush(self) -> bool:
        """Take in what has been found by now. Return whether there is room for more."""
        if self._full:
            return False
        self._frame(b"F", 0)
        self._send()
        self._unanswered = 0
        kind, count = struct.unpack("<cI", self._receive(5))
        for _ in range(count):
            numbers: tuple[int, int, int] = matcher.FOUND.unpack(self._receive(matcher.FOUND.size))
            number, line, length = numbers
            text = self._receive(length).decode("utf-8")
            self.found.append(Match(path=self._paths[number], line=line, text=text))
        if kind == b"X":
            self._full = True
            self._tally.truncated = f"these are the first {len(self.found):,}"
        return not self._full

    def _frame(self, kind: bytes, number: int, data: bytes = b"") -> None:
        self._unsent += matcher.FRAME.pack(kind, number, len(data))
        self._unsent += data
        self._unanswered += len(data)
        if len(self._unsent) >= _CHUNK:
            self._send()

    def _send(self) -> None:
        stream = self._process.stdin
        view = memoryview(bytes(self._unsent))
        self._unsent.clear()
        try:
            while view and stream is not None:
                view = view[stream.write(view) :]
        except OSError as error:
            raise _Ended from error

    def _receive(self, size: int) -> bytes:
        stream = self._process.stdout
        parts: list[bytes] = []
        while size > 0:
            part = stream.read(size) if stream is not None else b""
            if not part:
                raise _Ended
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


_PROGRAM = source_of("littleghost.sandboxes.matcher")
