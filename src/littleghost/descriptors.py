"""Directories held by descriptor, and paths that cannot lead out of them.

On Linux ``openat2`` resolves a path beneath the held directory in the kernel. Where it is missing, and wherever a parent directory must
be held, a walk opens one component after another without following links and resolves links by hand. Either way there is no moment
between a check and its use. A link that stays inside works; one with an absolute target is refused, even if it points inside,
because it would mean something else in another mount namespace.

Windows has no directory descriptors. There each component is checked for links and the path used right after, which leaves a window
for whoever can swap directories meanwhile.
"""

# What is reached by descriptor cannot be reached by pathlib.

from __future__ import annotations

import errno
import functools
import os
import secrets
import stat as modes
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = [
    "DIRECTORY",
    "PathPlace",
    "Place",
    "delete_tree",
    "make_below",
    "openat2",
    "parent_of",
    "resolved",
    "resolves_in_kernel",
    "scan",
    "walk",
]

DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
"""What to open a directory with, to hold it."""
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_MOST_LINKS = 40  # what Linux itself follows in one path


class Place:
    """A directory whose entries are reached by descriptor."""

    __slots__ = ("_owned", "fd")

    def __init__(self, fd: int, *, owned: bool = True) -> None:
        self.fd, self._owned = fd, owned

    def enter(self, name: str) -> Place:
        return Place(os.open(name, DIRECTORY | _NOFOLLOW, dir_fd=self.fd))

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

    def rmdir(self, name: str) -> None:
        os.rmdir(name, dir_fd=self.fd)

    def key(self, name: str) -> int:
        status = os.fstat(self.fd)
        return hash((status.st_dev, status.st_ino, name))

    def close(self) -> None:
        if self._owned:
            os.close(self.fd)


class PathPlace(Place):
    """A directory whose entries are reached by path, for a system without directory descriptors."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        super().__init__(-1, owned=False)
        self.path = path

    def _below(self, name: str) -> str:
        return os.path.join(self.path, name)

    def enter(self, name: str) -> Place:
        status = os.lstat(self._below(name))
        if not modes.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        return PathPlace(self._below(name))

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

    def rmdir(self, name: str) -> None:
        os.rmdir(self._below(name))

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
def openat2() -> _Kernel | None:
    """Return ``openat2`` where the kernel has it and no filter forbids it."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            kernel = _Kernel()
            probe = os.open("/", DIRECTORY)
            try:
                os.close(kernel.open(probe, b".", DIRECTORY))
                return kernel
            finally:
                os.close(probe)
    return None


def resolves_in_kernel() -> bool:
    """Whether paths are confined by ``openat2`` rather than by the walk."""
    return openat2() is not None


@contextmanager
def walk(root: Place, components: tuple[str, ...], *, create: bool = False) -> Generator[tuple[Place, str]]:
    """Yield the directory that holds what ``components`` lead to, and its name there, which is no link. ``.`` is the root itself.

    With ``create``, missing directories on the way are made, and those are removed again when the block fails.
    """
    held = [root]
    made: list[tuple[Place, str]] = []
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
                left = held.pop()
                made = [(place, below) for place, below in made if place is not left]
                left.close()
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
                    made.append((held[-1], name))
                inner = held[-1].enter(name)
            held.append(inner)
            name = "."
        yield held[-1], name
    except BaseException:
        for place, below in reversed(made):
            with suppress(OSError):  # someone has put something there meanwhile
                place.rmdir(below)
        raise
    finally:
        for place in held[1:]:
            place.close()


def resolved(root: Place, components: tuple[str, ...], flags: int) -> int:
    """Open what ``components`` lead to beneath ``root``."""
    kernel = openat2() if type(root) is Place else None
    if kernel is not None:
        path = "/".join(components) or "."
        return kernel.open(root.fd, os.fsencode(path), flags)
    with walk(root, components) as (parent, name):
        return parent.open(name, flags)


def scan(root: Place, components: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Yield the name of each entry of a directory beneath ``root``, and whether it is a directory itself."""
    if isinstance(root, PathPlace):
        with walk(root, components) as (parent, name):
            if isinstance(parent, PathPlace):  # a walk stays in the kind it started with
                yield from parent.entries(name)
    else:
        yield from _entries(resolved(root, components, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


@contextmanager
def parent_of(root: Place, components: tuple[str, ...], *, create: bool) -> Generator[tuple[Place, str]]:
    """Yield the directory to write ``components`` in and the name there; with ``create``, make what is missing on the way."""
    kernel = openat2() if type(root) is Place else None
    if kernel is not None and components:
        place: Place | None = None
        with suppress(OSError):
            place = Place(kernel.open(root.fd, os.fsencode("/".join(components[:-1]) or "."), DIRECTORY))
        if place is not None:
            try:
                if place.link(components[-1]) is None:
                    yield place, components[-1]
                    return
            finally:
                place.close()
    with walk(root, components, create=create) as found:
        yield found


def make_below(root: Place, components: tuple[str, ...]) -> None:
    """Make the directory that ``components`` lead to beneath ``root``, and those on the way, where they are missing."""
    with walk(root, components, create=True) as (parent, name):
        if name != ".":
            with suppress(FileExistsError):
                parent.mkdir(name)


def delete_tree(path: str) -> None:
    """Delete a directory, however deep it is and whatever its modes are; no link is followed.

    A directory that is not empty gives its own directories to the top and is empty then. So it needs neither a stack nor many descriptors,
    and no path becomes too long.
    """
    folder, name = os.path.split(path)
    parent = os.open(folder, DIRECTORY)
    try:
        top = _unlocked(parent, name)
        try:
            prefix = f".littleghost-{secrets.token_hex(8)}-"
            count = 0
            while entries := list(_listed(top)):
                for entry, is_directory in entries:
                    if not is_directory:
                        os.unlink(entry, dir_fd=top)
                        continue
                    inner = _unlocked(top, entry)
                    try:
                        for below, is_inner in list(_listed(inner)):
                            if is_inner:
                                os.close(_unlocked(inner, below))  # to move a directory is to write its ".."
                                count += 1
                                os.rename(below, f"{prefix}{count}", src_dir_fd=inner, dst_dir_fd=top)
                            else:
                                os.unlink(below, dir_fd=inner)
                    finally:
                        os.close(inner)
                    os.rmdir(entry, dir_fd=top)
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=parent)
    finally:
        os.close(parent)


def _listed(directory: int) -> Iterator[tuple[str, bool]]:
    return _entries(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory))


def _unlocked(parent: int, name: str) -> int:
    """Open a directory and see to it that its owner may do everything with it."""
    if os.chmod in os.supports_follow_symlinks:
        os.chmod(name, 0o700, dir_fd=parent, follow_symlinks=False)
    fd = os.open(name, DIRECTORY | _NOFOLLOW, dir_fd=parent)
    try:
        if modes.S_IMODE(os.fstat(fd).st_mode) & 0o700 != 0o700:
            os.chmod(
                f"/proc/self/fd/{fd}", 0o700
            )  # a descriptor that is only a place can be changed in no other way
    except BaseException:
        os.close(fd)
        raise
    return fd
