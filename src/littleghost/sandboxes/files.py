"""File operations that cannot leave a directory, shared by the backends whose workspace is a host directory.

Confinement is by descriptor, so there is no moment between a check and its use. On Linux ``openat2`` resolves a path beneath the
held directory in the kernel. Where it is missing, and wherever a parent directory must be held, a walk opens one component after
another without following links and resolves links by hand. Either way a link that stays inside works; one with an absolute target is
refused, even if it points inside, because it would mean something else in another mount namespace.

A write goes to a temporary file beside its target and is renamed over it: readers see the old content or the new. Mode, and where
permitted owner, are kept; the setuid bit, extended attributes and hard links to the old file are not. A write through a link
replaces what the link points to. Nothing is synced to disk: this protects from a killed process, not from power loss.

Windows has no directory descriptors. There each component is checked for links and the path used right after, which leaves a window
for whoever can swap directories meanwhile.

Everything here blocks; callers use a thread.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
import stat as modes
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

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

__all__ = ["Files", "Root", "resolves_in_kernel"]

_READ = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_MOST_LINKS = 40  # what Linux itself follows in one path

# Edits of one file in this process go one after another. Stripes instead of a lock for each path, so that nothing grows.
_LOCKS = tuple(threading.Lock() for _ in range(64))


class _Place:
    """A directory whose entries are reached by descriptor."""

    __slots__ = ("_owned", "fd")

    def __init__(self, fd: int, *, owned: bool = True) -> None:
        self.fd, self._owned = fd, owned

    def enter(self, name: str) -> _Place:
        return _Place(os.open(name, _DIRECTORY | _NOFOLLOW, dir_fd=self.fd))

    def link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        return os.open(name, flags | _NOFOLLOW, mode, dir_fd=self.fd)

    def stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def writable(self, name: str) -> bool:
        return os.access(name, os.W_OK, dir_fd=self.fd, effective_ids=os.access in os.supports_effective_ids)

    def rename(self, name: str, target: str) -> None:
        os.replace(name, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self.fd)

    def mkdir(self, name: str) -> None:
        os.mkdir(name, dir_fd=self.fd)

    def key(self, name: str) -> int:
        status = os.fstat(self.fd)
        return hash((status.st_dev, status.st_ino, name))

    def close(self) -> None:
        if self._owned:
            os.close(self.fd)


class _PathPlace(_Place):
    """A directory whose entries are reached by path, for a system without directory descriptors."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__(-1, owned=False)
        self.path = path

    def _below(self, name: str) -> str:
        return os.path.join(self.path, name)

    def enter(self, name: str) -> _Place:
        status = os.lstat(self._below(name))
        if not modes.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        return _PathPlace(self._below(name))

    def link(self, name: str) -> str | None:
        path = self._below(name)
        if os.path.islink(path) or _is_junction(path):
            # A link's target is spelled as the system likes; there is no safe reading of it by hand.
            raise OSError(errno.EXDEV, "links are not followed on this system")
        return None

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        return os.open(self._below(name), flags | _NOFOLLOW, mode)

    def stat(self, name: str) -> os.stat_result:
        return os.lstat(self._below(name))

    def writable(self, name: str) -> bool:
        return os.access(self._below(name), os.W_OK)

    def rename(self, name: str, target: str) -> None:
        os.replace(self._below(name), self._below(target))

    def unlink(self, name: str) -> None:
        os.unlink(self._below(name))

    def mkdir(self, name: str) -> None:
        os.mkdir(self._below(name))

    def entries(self, name: str) -> Iterator[tuple[str, bool]]:
        return _entries(self._below(name))

    def key(self, name: str) -> int:
        return hash((os.path.normcase(self.path), os.path.normcase(name)))


def _is_junction(path: str) -> bool:
    test: Callable[[str], bool] | None = getattr(os.path, "isjunction", None)  # since Python 3.12
    return test is not None and test(path)


def _entries(directory: int | str) -> Iterator[tuple[str, bool]]:
    """Yield each entry's name and whether it is a directory, and close a descriptor at the end."""
    try:
        with os.scandir(directory) as found:
            for entry in found:
                yield entry.name, entry.is_dir(follow_symlinks=False)
    finally:
        if isinstance(directory, int):
            os.close(directory)


class _Kernel:
    """``openat2``, which Python does not wrap. See openat2(2)."""

    BENEATH = 0x08 | 0x02  # RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS
    NUMBER = 437  # the same on every architecture

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        self._syscall: Any = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.argtypes = (
            ctypes.c_long,
            ctypes.c_long,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
        )
        self._syscall.restype = ctypes.c_long

    def open(self, fd: int, path: bytes, flags: int) -> int:
        how = (self._ctypes.c_uint64 * 3)(flags, 0, self.BENEATH)
        for _ in range(64):
            result: int = self._syscall(self.NUMBER, fd, path, self._ctypes.byref(how), 24)
            if result >= 0:
                return result
            number = self._ctypes.get_errno()
            # The kernel says EAGAIN when something was renamed while it resolved "..".
            if number not in (errno.EAGAIN, errno.EINTR):
                raise OSError(number, os.strerror(number))
        raise OSError(errno.EAGAIN, "the directories keep changing")


@functools.cache
def _openat2() -> _Kernel | None:
    """Return ``openat2`` where the kernel has it and no filter forbids it."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            kernel = _Kernel()
            probe = os.open("/", _DIRECTORY)
            try:
                os.close(kernel.open(probe, b".", _DIRECTORY))
                return kernel
            finally:
                os.close(probe)
    return None


def resolves_in_kernel() -> bool:
    """Whether paths are confined by ``openat2`` rather than by the walk."""
    return _openat2() is not None


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
    def place(self) -> Generator[_Place]:
        """Hold the root for the block."""
        with self.workspace.directory(self.name).held() as fd:
            here = top = (
                _Place(fd, owned=False)
                if fd is not None
                else _PathPlace(str(self.workspace.directory(self.name).path))
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


@contextmanager
def _walk(
    root: _Place, components: tuple[str, ...], *, create: bool = False
) -> Generator[tuple[_Place, str]]:
    """Yield the directory that holds what ``components`` lead to, and its name there, which is no link. ``.`` is the root itself.

    With ``create``, missing directories on the way are made.
    """
    held = [root]
    pending = list(reversed(components))
    links = 0
    name = "."
    try:
        while pending:
            name = pending.pop()
            if name in ("", "."):
                name = "."
                continue
            if (
                name == ".."
            ):  # only a link's target has one; its parent is the directory it was reached through
                if len(held) == 1:
                    raise OSError(errno.EXDEV, "leads out of the workspace")
                held.pop().close()
                name = "."
                continue
            target = held[-1].link(name)
            if target is not None:
                links += 1
                if target.startswith("/"):
                    raise OSError(errno.EXDEV, "leads out of the workspace")
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, "too many links")
                pending.extend(reversed(target.split("/")))
                name = "."
                continue
            if not any(part not in ("", ".") for part in pending):
                break
            try:
                inner = held[-1].enter(name)
            except FileNotFoundError:
                if not create:
                    raise
                with suppress(FileExistsError):
                    held[-1].mkdir(name)
                inner = held[-1].enter(name)
            held.append(inner)
            name = "."
        yield held[-1], name
    finally:
        for place in held[1:]:
            place.close()


def _resolved(root: _Place, components: tuple[str, ...], flags: int) -> int:
    """Open what ``components`` lead to beneath ``root``."""
    kernel = _openat2() if type(root) is _Place else None
    if kernel is not None:
        path = "/".join(components) or "."
        return kernel.open(root.fd, os.fsencode(path), flags)
    with _walk(root, components) as (parent, name):
        return parent.open(name, flags)


def _scan(root: _Place, components: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Yield the name of each entry of a directory beneath ``root``, and whether it is a directory itself."""
    if isinstance(root, _PathPlace):
        with _walk(root, components) as (parent, name):
            if isinstance(parent, _PathPlace):  # a walk stays in the kind it started with
                yield from parent.entries(name)
    else:
        yield from _entries(_resolved(root, components, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


@contextmanager
def _parent(root: _Place, components: tuple[str, ...], *, create: bool) -> Generator[tuple[_Place, str]]:
    """Yield the directory to write ``components`` in and the name there; with ``create``, make what is missing on the way."""
    kernel = _openat2() if type(root) is _Place else None
    if kernel is not None and components:
        place: _Place | None = None
        with suppress(OSError):
            place = _Place(kernel.open(root.fd, os.fsencode("/".join(components[:-1]) or "."), _DIRECTORY))
        if place is not None:
            try:
                if place.link(components[-1]) is None:
                    yield place, components[-1]
                    return
            finally:
                place.close()
    with _walk(root, components, create=create) as found:
        yield found


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
}


def _lock(parent: _Place, name: str) -> threading.Lock:
    return _LOCKS[parent.key(name) % len(_LOCKS)]


@contextmanager
def _told(path: str) -> Generator[None]:
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
    """

    def __init__(self, roots: Mapping[str | None, Root], limits: SandboxLimits) -> None:
        self.roots, self.limits = dict(roots), limits

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a regular file."""
        root, components = self._locate(path, file=True)
        with _told(path), root.place() as top:
            fd = _resolved(top, components, _READ)
            try:
                return self._content(path, fd)
            finally:
                os.close(fd)

    def read(self, path: str) -> str:
        """Return the text of a regular file."""
        return _text(path, self.read_bytes(path))

    def stat(self, path: str) -> FileInfo:
        """Return what is at ``path``."""
        root, components = self._locate(path, file=False)
        with _told(path), root.place() as top:
            if hasattr(os, "O_PATH"):
                fd = _resolved(
                    top, components, os.O_PATH | os.O_CLOEXEC
                )  # opens nothing, so no device notices
                try:
                    status = os.fstat(fd)
                finally:
                    os.close(fd)
            else:
                with _walk(top, components) as (parent, name):
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
        root, components = self._locate(path, file=False)
        names: list[str] = []
        with _told(path), root.place() as top:
            for entry, is_directory in _scan(top, components):
                if len(names) >= self.limits.list_entries:
                    raise ToolValueError(
                        f"{shown(path)}: more than {self.limits.list_entries:,} entries", path=path
                    )
                # A name that is no Unicode cannot be said in JSON; it is shown with U+FFFD and cannot be opened.
                text = entry.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                names.append(text + "/" if is_directory else text)
        return sorted(names)

    def write_bytes(self, path: str, content: bytes, proceed: Callable[[], None] = lambda: None) -> None:
        """Make ``content`` the bytes of a file. ``proceed`` is called just before it shows, and may raise to stop it."""
        root, components = self._locate(path, file=True)
        self._check_writable(path, root)
        self._check_size(path, len(content))
        with (
            _told(path),
            root.place() as top,
            _parent(top, components, create=True) as (parent, name),
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
        root, components = self._locate(path, file=True)
        self._check_writable(path, root)
        old, new = _encoded(old_text), _encoded(new_text)
        if not old:
            raise ToolValueError("the text to replace is empty", path=path)
        with (
            _told(path),
            root.place() as top,
            _parent(top, components, create=False) as (parent, name),
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

    def directory(self, path: str) -> int:
        """Return a new descriptor of a directory, for a process to start in."""
        root, components = self._locate(path, file=False)
        with _told(path), root.place() as top:
            return _resolved(top, components, _DIRECTORY)

    def _locate(self, path: str, *, file: bool) -> tuple[Root, tuple[str, ...]]:
        name, components = Location(*parse_path(path))
        root = self.roots.get(name)
        if root is None:
            raise ToolFileNotFoundError(f"{shown(path)}: no path has the name {name!r}", path=path)
        if file and (not components or _names_directory(path)):
            raise ToolIsADirectoryError(f"{shown(path)}: names a directory, not a file", path=path)
        return root, components

    def _check_writable(self, path: str, root: Root) -> None:
        if root.access != "read_write":
            raise ToolPermissionError(f"{shown(path)}: the sandbox is read-only here", path=path)

    def _check_size(self, path: str, size: int) -> None:
        if size > self.limits.write_bytes:
            raise ToolValueError(
                f"{shown(path)}: {size:,} bytes are more than the {self.limits.write_bytes:,} allowed",
                path=path,
            )

    def _of(self, path: str, parent: _Place, name: str) -> bytes:
        fd = parent.open(name, _READ)
        try:
            return self._content(path, fd)
        finally:
            os.close(fd)

    def _content(self, path: str, fd: int) -> bytes:
        status = os.fstat(fd)
        _check_regular(path, status.st_mode)
        limit = self.limits.read_bytes
        parts: list[bytes] = []
        room = limit + 1  # a file may grow meanwhile, so what counts is what was read
        while room > 0 and status.st_size <= limit:
            part = os.read(fd, min(room, 1 << 20))
            if not part:
                return b"".join(parts)
            parts.append(part)
            room -= len(part)
        raise ToolValueError(f"{shown(path)}: larger than the {limit:,} bytes that may be read", path=path)


def _put(path: str, parent: _Place, name: str, content: bytes, proceed: Callable[[], None]) -> None:
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
                os.fchmod(fd, modes.S_IMODE(before.st_mode) & ~modes.S_ISUID)
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
    return path.endswith(("/", "/.")) or path == "."


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
