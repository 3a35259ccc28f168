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
from typing import Any, Literal

__all__ = [
    "DIRECTORY",
    "Kind",
    "PathPlace",
    "Place",
    "delete_tree",
    "make_below",
    "openat2",
    "parent_of",
    "rename_new",
    "resolved",
    "resolves_in_kernel",
    "scan",
    "walk",
]

DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
"""What to open a directory with, to hold it."""
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_MOST_LINKS = 40  # what Linux itself follows in one path
_NO_REPLACE = 1  # RENAME_NOREPLACE

Kind = Literal["file", "directory", "other"]
"""What an entry of a directory is; a link, whatever it leads to, is ``other``."""


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

    def path_of(self, name: str) -> str:
        return self._below(name)

    def unlink(self, name: str) -> None:
        os.unlink(self._below(name))

    def mkdir(self, name: str) -> None:
        os.mkdir(self._below(name))

    def rmdir(self, name: str) -> None:
        os.rmdir(self._below(name))

    def entries(self, name: str) -> Iterator[tuple[str, Kind]]:
        return _entries(self._below(name))

    def key(self, name: str) -> int:
        return hash((os.path.normcase(self.path), os.path.normcase(name)))


def _is_junction(path: str) -> bool:
    test: Callable[[str], bool] | None = getattr(os.path, "isjunction", None)  # since Python 3.12
    return test is not None and test(path)


def _entries(directory: int | str) -> Iterator[tuple[str, Kind]]:
    """Yield each entry's name and what it is, links not followed, and close a descriptor at the end."""
    try:
        with os.scandir(directory) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    yield entry.name, "directory"
                else:
                    yield entry.name, "file" if entry.is_file(follow_symlinks=False) else "other"
    finally:
        if isinstance(directory, int):
            os.close(directory)


class _Kernel:
    """``openat2``, which Python does not wrap. See openat2(2)."""

    BENEATH = 0x08 | 0x02  # RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS
    NO_LINKS = 0x04  # RESOLVE_NO_SYMLINKS
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

    def open(self, fd: int, path: bytes, flags: int, *, links: bool = True) -> int:
        how = (self._ctypes.c_uint64 * 3)(flags, 0, self.BENEATH if links else self.BENEATH | self.NO_LINKS)
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


def _all_pass(_name: str) -> None:
    """Let every name pass."""


@contextmanager
def walk(
    root: Place,
    components: tuple[str, ...],
    *,
    create: bool = False,
    links: Literal["all", "between", "none"] = "all",
    check: Callable[[str], None] = _all_pass,
) -> Generator[tuple[Place, str]]:
    """Yield the directory that holds what ``components`` lead to, and its name there. ``.`` is the root itself.

    Args:
        root: Where to start, and never to leave.
        components: The path.
        create: Whether to make missing directories on the way, which are removed again when the block fails.
        links: Which links to follow: ``all``, so that the name is no link; those ``between``, so that it may be one; or ``none``.
        check: Called with each name on the way and the last one, those that links lead through too, before it is used; it may raise.
    """
    held = [root]
    made: list[tuple[Place, str]] = []
    pending = list(reversed(components))
    followed = 0
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
            check(name)
            last = not any(part not in ("", ".") for part in pending)
            if last and links == "between":
                break
            target = held[-1].link(name)
            if target is not None:
                if links == "none":
                    raise OSError(errno.ELOOP, "a link")
                followed += 1
                if target.startswith("/"):
                    raise OSError(errno.EXDEV, "leads out of the workspace")
                if followed > _MOST_LINKS:
                    raise OSError(errno.ELOOP, "too many links")
                pending.extend(reversed(target.split("/")))
                name = "."
                continue
            if last:
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


def resolved(root: Place, components: tuple[str, ...], flags: int, *, links: bool = True) -> int:
    """Open what ``components`` lead to beneath ``root``, following links or, with ``links=False``, refusing them."""
    kernel = openat2() if type(root) is Place else None
    if kernel is not None:
        path = "/".join(components) or "."
        return kernel.open(root.fd, os.fsencode(path), flags, links=links)
    with walk(root, components, links="all" if links else "none") as (parent, name):
        return parent.open(name, flags)


def scan(root: Place, components: tuple[str, ...], *, links: bool = True) -> Iterator[tuple[str, Kind]]:
    """Yield the name of each entry of a directory beneath ``root``, and what it is."""
    if isinstance(root, PathPlace):
        with walk(root, components, links="all" if links else "none") as (parent, name):
            if isinstance(parent, PathPlace):  # a walk stays in the kind it started with
                yield from parent.entries(name)
    else:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        yield from _entries(resolved(root, components, flags, links=links))


@contextmanager
def parent_of(
    root: Place,
    components: tuple[str, ...],
    *,
    create: bool,
    check: Callable[[str], None] | None = None,
) -> Generator[tuple[Place, str]]:
    """Yield the directory to write ``components`` in and the name there; with ``create``, make what is missing on the way.

    ``check`` is asked about every name that is really gone through (see `walk`), which only the walk can tell.
    """
    if check is not None:
        with walk(root, components, create=create, check=check) as found:
            yield found
        return
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


def make_below(root: Place, components: tuple[str, ...], *, check: Callable[[str], None] = _all_pass) -> None:
    """Make the directory that ``components`` lead to beneath ``root``, and those on the way, where they are missing.

    Args:
        root: Where to start.
        components: The path.
        check: See `walk`.

    Raises:
        FileExistsError: Something else is there.
    """
    with walk(root, components, create=True, check=check) as (parent, name):
        if name != ".":
            try:
                parent.mkdir(name)
            except FileExistsError:
                if not modes.S_ISDIR(parent.stat(name).st_mode):
                    raise


@functools.cache
def _renameat2() -> Callable[[int, str, int, str], bool]:
    """Return what renames without replacing, and returns whether it could try."""

    def cannot(_source_fd: int, _name: str, _target_fd: int, _target: str) -> bool:
        return False

    if sys.platform != "linux":
        return cannot
    try:
        import ctypes

        call: Any = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, OSError, AttributeError):
        return cannot
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

    def rename(source_fd: int, name: str, target_fd: int, target: str) -> bool:
        if call(source_fd, os.fsencode(name), target_fd, os.fsencode(target), _NO_REPLACE) == 0:
            return True
        number = ctypes.get_errno()
        # Not every file system and every filter of system calls knows it. EINVAL is also a directory moved into itself, which
        # the other way says again.
        if number in (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP):
            return False
        raise OSError(number, os.strerror(number))

    return rename


def rename_new(source: Place, name: str, target: Place, new_name: str) -> None:
    """Rename ``name`` in ``source`` to ``new_name`` in ``target``, where nothing is yet.

    On Linux in one step. Where the system cannot do that a file has both names for a moment, and a directory takes the place of an empty
    one; what is there is never replaced.

    Raises:
        FileExistsError: Something is there.
    """
    if isinstance(source, PathPlace) and isinstance(target, PathPlace):
        if sys.platform != "win32" and os.path.lexists(target.path_of(new_name)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(source.path_of(name), target.path_of(new_name))  # which replaces nothing on Windows
        return
    if _renameat2()(source.fd, name, target.fd, new_name):
        return
    if modes.S_ISDIR(source.stat(name).st_mode):
        target.mkdir(new_name)
        try:
            os.rename(name, new_name, src_dir_fd=source.fd, dst_dir_fd=target.fd)
        except BaseException:
            with suppress(OSError):
                target.rmdir(new_name)
            raise
        return
    os.link(name, new_name, src_dir_fd=source.fd, dst_dir_fd=target.fd, follow_symlinks=False)
    source.unlink(name)


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
                for entry, kind in entries:
                    if kind != "directory":
                        os.unlink(entry, dir_fd=top)
                        continue
                    inner = _unlocked(top, entry)
                    try:
                        for below, inner_kind in list(_listed(inner)):
                            if inner_kind == "directory":
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


def _listed(directory: int) -> Iterator[tuple[str, Kind]]:
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
