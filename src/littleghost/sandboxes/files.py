"""File operations that cannot leave a directory, shared by the backends whose workspace is a host directory.

Confinement is by descriptor; see `littleghost.descriptors`.

A write goes to a temporary file beside its target and is renamed over it: readers see the old content or the new. Mode, and where
permitted owner, are kept; the setuid and setgid bits, extended attributes and hard links to the old file are not. A write through a link
replaces what the link points to. Nothing is synced to disk: this protects from a killed process, not from power loss.

What is named ``.git``, and all below it, is read but not changed, for it says what Git runs on the host later. That goes by the names that
are really gone through, whatever links the path had.

Everything here blocks; callers use a thread.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat as modes
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import cast

from littleghost.descriptors import (
    DIRECTORY,
    PathPlace,
    Place,
    make_below,
    parent_of,
    rename_new,
    resolved,
    scan,
    walk,
)
from littleghost.errors import (
    LittleGhostError,
    ToolError,
    ToolFileExistsError,
    ToolFileNotFoundError,
    ToolIsADirectoryError,
    ToolNotADirectoryError,
    ToolPermissionError,
    ToolUnicodeError,
    ToolValueError,
)
from littleghost.sandboxes.contract import FileInfo, SandboxLimits
from littleghost.sandboxes.policy import Access
from littleghost.workspace import Location, Workspace, parse_path, shown

__all__ = ["READ", "Files", "Root", "told"]

READ = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
"""How a file is opened to be read: never waiting for the other end of a pipe."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Edits of one file in this process go one after another. Stripes instead of a lock for each path, so that nothing grows.
_LOCKS = tuple(threading.Lock() for _ in range(64))


class Root:
    """A directory of a workspace that paths start from, and what may be done below it.

    Args:
        workspace: Whose directory it is.
        name: Its name there; ``None`` is the workspace's own root.
        access: Whether files below may be changed.
        below: Components of a directory in it that is the root in its stead, for a scope. None of them may be a link.
    """

    __slots__ = ("access", "below", "name", "workspace")

    def __init__(
        self, workspace: Workspace, name: str | None, access: Access, below: tuple[str, ...] = ()
    ) -> None:
        self.workspace, self.name, self.below = workspace, name, below
        self.access: Access = access

    def narrowed(self, below: tuple[str, ...], *, read_only: bool) -> Root:
        """Return a root further down, or one that may not be written."""
        access: Access = "read_only" if read_only else self.access
        return Root(self.workspace, self.name, access, self.below + below)

    @contextmanager
    def place(self) -> Generator[Place]:
        """Hold the root for the block."""
        with self.workspace.directory(self.name).held() as fd:
            here = top = (
                Place(fd, owned=False)
                if fd is not None
                else PathPlace(str(self.workspace.directory(self.name).path))
            )
            try:
                for name in self.below:
                    inner = here.enter(name)
                    if here is not top:
                        here.close()
                    here = inner
                yield here
            finally:
                if here is not top:
                    here.close()


_REASONS: dict[int, tuple[type[ToolError], str]] = {
    errno.ENOENT: (ToolFileNotFoundError, "no such file or directory"),
    errno.EEXIST: (ToolFileExistsError, "exists already"),
    errno.EISDIR: (ToolIsADirectoryError, "is a directory"),
    errno.ENOTDIR: (ToolNotADirectoryError, "not a directory"),
    errno.EXDEV: (ToolPermissionError, "leads out of the workspace"),
    errno.ELOOP: (ToolPermissionError, "a link that cannot be followed"),
    errno.EACCES: (ToolPermissionError, "permission denied"),
    errno.EPERM: (ToolPermissionError, "permission denied"),
    errno.EROFS: (ToolPermissionError, "read-only file system"),
    errno.ENXIO: (ToolPermissionError, "not a regular file"),
    errno.ENODEV: (ToolPermissionError, "not a regular file"),
    errno.ETXTBSY: (ToolPermissionError, "in use"),
    errno.ENAMETOOLONG: (ToolValueError, "the name is too long"),
    errno.EINVAL: (ToolValueError, "not a possible name"),
    errno.EILSEQ: (ToolValueError, "not a possible name"),
    errno.ENOSPC: (ToolError, "no space left"),
    errno.EDQUOT: (ToolError, "no space left"),
    errno.ENOTEMPTY: (ToolError, "the directory is not empty"),
    errno.EBUSY: (ToolPermissionError, "in use"),
}


def _lock(parent: Place, name: str) -> threading.Lock:
    return _LOCKS[parent.key(name) % len(_LOCKS)]


@contextmanager
def told(path: str) -> Generator[None]:
    """Turn an `OSError` into the `ToolError` that says it with the path as the caller gave it."""
    try:
        yield
    except LittleGhostError:  # some of them are an OSError too
        raise
    except OSError as error:
        kind, reason = _REASONS.get(error.errno or 0, (ToolError, os.strerror(error.errno or 0)))
        raise kind(f"{shown(path)}: {reason}", path=path) from error


class Files:
    """The files below some roots, within limits.

    Args:
        roots: By name, as in `Location`; ``None`` is the root of relative paths.
        limits: How much is read, written and listed.
        git: Access to what is named ``.git`` and to what is below.
        hard_links: Whether files with more than one name are read.
    """

    def __init__(
        self,
        roots: Mapping[str | None, Root],
        limits: SandboxLimits,
        *,
        git: Access = "read_only",
        hard_links: bool = True,
    ) -> None:
        self.roots, self.limits = dict(roots), limits
        self.git: Access = git
        self.hard_links = hard_links

    def narrowed(self, roots: Mapping[str | None, Root], limits: SandboxLimits) -> Files:
        """Return other files under the same rules."""
        return Files(roots, limits, git=self.git, hard_links=self.hard_links)

    def read_bytes(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """Return the bytes of a regular file, or some of them."""
        offset, limit = _range(offset, limit)
        with self._opened(path) as (fd, status):
            if offset == 0 and limit is None:
                return self._content(path, fd, status.st_size)
            if offset >= status.st_size:
                return b""
            os.lseek(fd, offset, os.SEEK_SET)
            return self._content(path, fd, status.st_size - offset, limit)

    def read(self, path: str, offset: int = 0, limit: int | None = None) -> str:
        """Return the text of a regular file, or some of its lines."""
        offset, limit = _range(offset, limit)
        with self._opened(path) as (fd, status):
            if offset == 0 and limit is None:
                return _text(path, self._content(path, fd, status.st_size))
            return _text(path, self._lines(path, fd, offset, limit))

    def stat(self, path: str) -> FileInfo:
        """Return what is at ``path``."""
        root, components = self.locate(path, file=False)
        with told(path), root.place() as top:
            if hasattr(os, "O_PATH"):
                fd = resolved(
                    top, components, os.O_PATH | os.O_CLOEXEC
                )  # opens nothing, so no device notices
                try:
                    status = os.fstat(fd)
                finally:
                    os.close(fd)
            else:
                with walk(top, components) as (parent, name):
                    status = parent.stat(name)
        mode = status.st_mode
        if _names_directory(path) and not modes.S_ISDIR(mode):
            raise ToolNotADirectoryError(f"{shown(path)}: not a directory", path=path)
        return FileInfo(
            kind="file" if modes.S_ISREG(mode) else "directory" if modes.S_ISDIR(mode) else "other",
            size=status.st_size,
            modified=status.st_mtime,
            executable=modes.S_ISREG(mode) and bool(mode & 0o111),
        )

    def list(self, path: str) -> list[str]:
        """Return the names in a directory."""
        root, components = self.locate(path, file=False)
        names: list[str] = []
        with told(path), root.place() as top:
            for entry, kind in scan(top, components):
                if len(names) >= self.limits.list_entries:
                    raise ToolValueError(
                        f"{shown(path)}: more than {self.limits.list_entries:,} entries", path=path
                    )
                # A name that is no Unicode cannot be said in JSON; it is shown with U+FFFD and cannot be opened.
                text = entry.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                names.append(text + "/" if kind == "directory" else text)
        return sorted(names)

    def write_bytes(self, path: str, content: bytes, proceed: Callable[[], None] = lambda: None) -> None:
        """Make ``content`` the bytes of a file. ``proceed`` is called just before it shows, and may raise to stop it."""
        if not isinstance(content, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("the content must be bytes")
        content = bytes(content)
        root, components = self.locate(path, file=True)
        self._check_writable(path, root)
        self._check_size(path, len(content))
        with (
            told(path),
            root.place() as top,
            parent_of(top, components, create=True, check=self._checked(path)) as (parent, name),
            _lock(parent, name),
        ):
            _put(path, parent, name, content, proceed)

    def write(self, path: str, content: str, proceed: Callable[[], None] = lambda: None) -> None:
        """Make ``content`` the text of a file."""
        self.write_bytes(path, _encoded(content), proceed)

    def replace(
        self, path: str, old_text: str, new_text: str, proceed: Callable[[], None] = lambda: None
    ) -> None:
        """Put ``new_text`` in the only place where ``old_text`` is."""
        root, components = self.locate(path, file=True)
        self._check_writable(path, root)
        old, new = _encoded(old_text), _encoded(new_text)
        if not old:
            raise ToolValueError("the text to replace is empty", path=path)
        with (
            told(path),
            root.place() as top,
            parent_of(top, components, create=False, check=self._checked(path)) as (parent, name),
            _lock(parent, name),
        ):
            content = self._of(path, parent, name)
            text = _text(path, content)
            position = text.find(old_text)
            if position < 0:
                raise ToolValueError(f"{shown(path)}: the text to replace is not there", path=path)
            if text.find(old_text, position + 1) >= 0:
                raise ToolValueError(f"{shown(path)}: the text to replace is there more than once", path=path)
            edited = text[:position] + new_text + text[position + len(old_text) :]
            self._check_size(path, len(content) - len(old) + len(new))

            def unchanged() -> None:
                proceed()
                if self._of(path, parent, name) != content:
                    raise ToolError(f"{shown(path)}: changed while it was edited; read it again", path=path)

            _put(path, parent, name, edited.encode("utf-8"), unchanged)

    def delete(self, path: str, proceed: Callable[[], None] = lambda: None) -> None:
        """Delete a file, a link itself, or an empty directory."""
        root, components = self._changeable(path)
        check = self._checked(path) or _anything
        with (
            told(path),
            root.place() as top,
            walk(top, components, links="between", check=check) as (parent, name),
            _lock(parent, name),
        ):
            is_directory = modes.S_ISDIR(parent.stat(name).st_mode)
            if _names_directory(path) and not is_directory:
                raise ToolNotADirectoryError(f"{shown(path)}: not a directory", path=path)
            proceed()
            if is_directory:
                parent.rmdir(name)
            else:
                parent.unlink(name)

    def move(self, path: str, target: str, proceed: Callable[[], None] = lambda: None) -> None:
        """Move a file, a link itself, or a directory to where nothing is yet."""
        root, components = self._changeable(path)
        new_root, new_components = self._changeable(target)
        with ExitStack() as held:
            # What is wrong with the source is said before a directory is made for the target.
            held.enter_context(told(path))
            top = held.enter_context(root.place())
            check = self._checked(path) or _anything
            parent, name = held.enter_context(walk(top, components, links="between", check=check))
            is_directory = modes.S_ISDIR(parent.stat(name).st_mode)
            for given in (path, target):
                if _names_directory(given) and not is_directory:
                    raise ToolNotADirectoryError(f"{shown(path)}: not a directory", path=path)
            held.enter_context(told(target))
            new_top = held.enter_context(new_root.place())
            check = self._checked(target) or _anything
            new_parent, new_name = held.enter_context(
                walk(new_top, new_components, create=True, links="between", check=check)
            )
            for lock in sorted({_lock(parent, name), _lock(new_parent, new_name)}, key=id):
                held.enter_context(lock)
            proceed()
            try:
                rename_new(parent, name, new_parent, new_name)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    raise ToolValueError(
                        f"{shown(path)}: a directory cannot be moved into itself", path=path
                    ) from error
                if error.errno == errno.EXDEV:
                    raise ToolError(
                        f"{shown(target)}: on another file system; write it there and delete it here",
                        path=target,
                    ) from error
                if error.errno == errno.ENOENT:  # it has just gone; that is not about the target
                    raise ToolFileNotFoundError(
                        f"{shown(path)}: no such file or directory", path=path
                    ) from error
                raise

    def make_directory(self, path: str, proceed: Callable[[], None] = lambda: None) -> None:
        """Make a directory, and its parents, unless it is there."""
        root, components = self.locate(path)
        self._check_writable(path, root)
        with told(path), root.place() as top:
            proceed()
            make_below(top, components, check=self._checked(path) or _anything)

    def in_git(self, root: Root) -> bool:
        """Whether a root is within what Git keeps, and so is not changed."""
        return self.git == "read_only" and any(_is_git(name) for name in root.below)

    def directory(self, path: str) -> int:
        """Return a new descriptor of a directory, for a process to start in."""
        root, components = self.locate(path, file=False)
        with told(path), root.place() as top:
            return resolved(top, components, DIRECTORY)

    def locate(self, path: str, *, file: bool = False) -> tuple[Root, tuple[str, ...]]:
        """Return where ``path`` starts, and the components from there; with ``file``, it must not say that it is a directory's."""
        name, components = Location(*parse_path(path))
        root = self.roots.get(name)
        if root is None:
            raise ToolFileNotFoundError(f"{shown(path)}: no path has the name {name!r}", path=path)
        if file and (not components or _names_directory(path)):
            raise ToolIsADirectoryError(f"{shown(path)}: names a directory, not a file", path=path)
        return root, components

    def check_readable(self, path: str, status: os.stat_result) -> None:
        """Raise unless an open file of this ``status`` may be read."""
        _check_regular(path, status.st_mode)
        if not self.hard_links and status.st_nlink > 1:
            raise ToolPermissionError(
                f"{shown(path)}: has another name (a hard link), which could be outside the workspace",
                path=path,
            )

    def _changeable(self, path: str) -> tuple[Root, tuple[str, ...]]:
        root, components = self.locate(path)
        self._check_writable(path, root)
        if not components:
            raise ToolPermissionError(f"{shown(path)}: the workspace itself stays where it is", path=path)
        return root, components

    def _checked(self, path: str) -> Callable[[str], None] | None:
        """Return what raises for a name that must not be on the way to a change; ``None`` where all may."""
        if self.git == "read_write":
            return None

        def check(name: str) -> None:
            if _is_git(name):
                raise ToolPermissionError(
                    f"{shown(path)}: what is in .git decides what Git runs, and is not changed here",
                    path=path,
                )

        return check

    @contextmanager
    def _opened(self, path: str) -> Generator[tuple[int, os.stat_result]]:
        root, components = self.locate(path, file=True)
        with told(path), root.place() as top:
            fd = resolved(top, components, READ)
            try:
                status = os.fstat(fd)
                self.check_readable(path, status)
                yield fd, status
            finally:
                os.close(fd)

    def _check_writable(self, path: str, root: Root) -> None:
        if root.access != "read_write":
            raise ToolPermissionError(f"{shown(path)}: the sandbox is read-only here", path=path)
        check = self._checked(path)
        if check is not None:
            for name in root.below:  # a scope can begin in there
                check(name)

    def _check_size(self, path: str, size: int) -> None:
        if size > self.limits.write_bytes:
            raise ToolValueError(
                f"{shown(path)}: {size:,} bytes are more than the {self.limits.write_bytes:,} allowed",
                path=path,
            )

    def _of(self, path: str, parent: Place, name: str) -> bytes:
        fd = parent.open(name, READ)
        try:
            status = os.fstat(fd)
            self.check_readable(path, status)
            return self._content(path, fd, status.st_size)
        finally:
            os.close(fd)

    def _content(self, path: str, fd: int, size: int, most: int | None = None) -> bytes:
        """Read to the end of the file, or ``most`` bytes."""
        limit = self.limits.read_bytes
        wanted = limit + 1 if most is None else min(most, limit + 1)
        if min(size, wanted) > limit:
            raise self._too_large(path)
        parts: list[bytes] = []
        room = wanted  # a file may grow meanwhile, so what counts is what was read
        while room > 0 and (part := os.read(fd, min(room, 1 << 20))):
            parts.append(part)
            room -= len(part)
        if wanted - room > limit:
            raise self._too_large(path)
        return b"".join(parts)

    def _lines(self, path: str, fd: int, offset: int, limit: int | None) -> bytes:
        """Read ``limit`` lines after the first ``offset``."""
        parts: list[bytes] = []
        looked = size = 0
        before, wanted = (
            offset,
            limit,
        )  # the line ends to come before the first line wanted, and then up to the last one's
        while wanted != 0 and (data := os.read(fd, 1 << 18)):
            looked += len(data)
            if looked > self.limits.search_bytes:
                raise ToolValueError(
                    f"{shown(path)}: that is beyond the first {self.limits.search_bytes:,} bytes", path=path
                )
            start, before = _after_lines(data, 0, before)
            if before:
                continue
            end = len(data)
            if wanted is not None:
                end, wanted = _after_lines(data, start, wanted)
            parts.append(data[start:end])
            size += end - start
            if size > self.limits.read_bytes:
                raise self._too_large(path)
        return b"".join(parts)

    def _too_large(self, path: str) -> ToolValueError:
        return ToolValueError(
            f"{shown(path)}: larger than the {self.limits.read_bytes:,} bytes that may be read at once; "
            "read a part of it, with offset and limit",
            path=path,
        )


def _after_lines(data: bytes, start: int, count: int) -> tuple[int, int]:
    """Return where ``data`` goes on after ``count`` line ends from ``start``, and how many are still to come when it ends before."""
    here = data.count(b"\n", start)
    if here < count:
        return len(data), count - here
    for _ in range(count):
        start = data.index(b"\n", start) + 1
    return start, 0


def _range(offset: object, limit: object) -> tuple[int, int | None]:
    for name, value in (("offset", offset), ("limit", 0 if limit is None else limit)):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
            raise ToolValueError(f"{name} must be a whole number from 0 up")
    return cast("int", offset), cast("int | None", limit)


def _anything(_name: str) -> None:
    """Let every name pass."""


# Characters that some file systems leave out when they compare names, so that a name with one is still ``.git``; see CVE-2014-9390.
_IGNORED = dict.fromkeys(
    (*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF), None
)


def _is_git(name: str) -> bool:
    """Whether Git takes an entry of this name for a repository, on the file systems of all systems."""
    name = name.translate(_IGNORED).rstrip(" .").split(":", 1)[0].lower()
    return name in (".git", "git~1")


def _put(path: str, parent: Place, name: str, content: bytes, proceed: Callable[[], None]) -> None:
    """Replace ``name`` in ``parent`` by a file with ``content``, in one step that is seen whole or not at all."""
    try:
        before = parent.stat(name)
    except FileNotFoundError:
        before = None
    if before is not None:
        _check_regular(path, before.st_mode)
        if not parent.writable(name):
            raise ToolPermissionError(f"{shown(path)}: the file is read-only", path=path)
    beside = f".littleghost-{secrets.token_hex(8)}.tmp"
    fd = parent.open(beside, _CREATE, 0o666 if before is None else 0o600)
    try:
        try:
            if before is not None and sys.platform != "win32":
                own = os.fstat(fd)
                if (own.st_uid, own.st_gid) != (before.st_uid, before.st_gid):
                    with suppress(PermissionError):
                        os.fchown(fd, before.st_uid, before.st_gid)
                os.fchmod(fd, modes.S_IMODE(before.st_mode) & ~(modes.S_ISUID | modes.S_ISGID))
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        proceed()
        parent.rename(beside, name)
    except BaseException:
        with suppress(OSError):
            parent.unlink(beside)
        raise


def _check_regular(path: str, mode: int) -> None:
    if modes.S_ISDIR(mode):
        raise ToolIsADirectoryError(f"{shown(path)}: is a directory", path=path)
    if not modes.S_ISREG(mode):
        raise ToolPermissionError(f"{shown(path)}: not a regular file", path=path)


def _names_directory(path: str) -> bool:
    text = os.fspath(path)
    return text.endswith(("/", "/.")) or text == "."


def _text(path: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolUnicodeError(f"{shown(path)}: not UTF-8 text (byte {error.start})", path=path) from error


def _encoded(text: str) -> bytes:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] (what arrives comes from a model)
        raise ToolValueError("the content must be text")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolUnicodeError("the content is not valid Unicode: it has a lone surrogate") from error
