"""Locks of the operating system, which end with the process that holds them, however it ends.

A lock is one byte of a file that nobody reads, at an offset that stands for what is locked. Linux has locks that belong to an open file
(``F_OFD_SETLK``); elsewhere on POSIX they belong to the process, so that closing any descriptor of the file drops them all: there the
process keeps one descriptor for each file, and looks itself who of its own holds what.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import struct
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

__all__ = ["Lock", "hold"]

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
_HELD_BY_OTHERS = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}

_descriptors: set[int] = set()
"""The descriptors of held locks: a forked child closes its copies, else it would keep the locks of its parent."""


@asynccontextmanager
async def hold(path: str, offset: int, timeout: float | None = None) -> AsyncGenerator[Lock]:
    """Hold the byte at ``offset`` of the file ``path``, which is made where it is missing, and yield the lock.

    Waiting occupies no thread and can be cancelled. Who waits longest is not sure to be next.

    Args:
        path: The file.
        offset: Below 2**62.
        timeout: Seconds to wait; ``0`` does not wait, ``None`` waits for ever.

    Raises:
        TimeoutError: Others held it all that time.
        OSError: The file cannot be opened, or its file system has no locks.
    """
    ends = None if timeout is None else time.monotonic() + timeout
    pause = FIRST_PAUSE
    while (lock := _try(path, offset)) is None:
        if ends is not None:
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            pause = min(pause, left)
        # Two who wait must not meet at every try.
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
        pause = min(pause * 2, LONGEST_PAUSE)
    try:
        yield lock
    finally:
        lock.release()


class Lock(Protocol):
    """A lock that is held."""

    def is_sound(self) -> bool:
        """Whether it still keeps others out: not when the file was removed or replaced, for they lock the new one."""
        ...


class _OpenFileLock:
    """A lock of an open file: Linux, and Windows, where every lock is one."""

    def __init__(self, path: str, offset: int) -> None:
        self._path, self._offset = path, offset
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        _descriptors.add(self._descriptor)

    def take(self) -> bool:
        """Take the lock unless another holds it; a file that was replaced meanwhile is not the one that others lock."""
        try:
            _lock_open_file(self._descriptor, self._offset)
        except OSError as error:
            if error.errno in _HELD_BY_OTHERS:
                return False
            raise
        return self.is_sound()

    def is_sound(self) -> bool:
        return self._descriptor in _descriptors and _is_at(self._descriptor, self._path)

    def release(self) -> None:
        # In a forked child the descriptor is closed already, and its number may be another file's.
        if self._descriptor in _descriptors:
            with suppress(OSError):
                # Before closing, for a program that is being started right now may have a copy of the descriptor.
                _unlock_open_file(self._descriptor, self._offset)
            self.close()

    def close(self) -> None:
        _descriptors.discard(self._descriptor)
        os.close(self._descriptor)


class _ProcessLock:
    """A lock of the process: POSIX without locks of an open file."""

    _guard = threading.Lock()
    _files: dict[str, int] = {}  # noqa: RUF012 (the process's, on purpose)
    _mine: set[tuple[str, int]] = set()  # noqa: RUF012

    def __init__(self, path: str, offset: int) -> None:
        self._key = (path, offset)
        self._owner = os.getpid()
        self._descriptor = -1

    def take(self) -> bool:
        import fcntl

        path, offset = self._key
        with self._guard:
            if self._key in self._mine:
                return False
            if path not in self._files or not _is_at(self._files[path], path):
                # That of a file that was removed stays open, for who holds a lock of it.
                self._files[path] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._descriptor = self._files[path]
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except OSError as error:
                if error.errno in _HELD_BY_OTHERS:
                    return False
                raise
            self._mine.add(self._key)
            return True

    def is_sound(self) -> bool:
        return self._owner == os.getpid() and _is_at(self._descriptor, self._key[0])

    def release(self) -> None:
        import fcntl

        with self._guard:
            if self._owner == os.getpid() and self._key in self._mine:
                self._mine.discard(self._key)
                with suppress(OSError):
                    fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._key[1])

    def close(self) -> None:
        """Keep the descriptor: closing it would drop every lock of the process on that file."""

    @classmethod
    def forget(cls) -> None:
        """In a forked child: the locks stayed with the parent."""
        cls._guard = threading.Lock()
        cls._mine.clear()


if sys.platform == "win32":
    import msvcrt

    def _lock_open_file(descriptor: int, offset: int) -> None:
        os.lseek(descriptor, offset, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock_open_file(descriptor: int, offset: int) -> None:
        os.lseek(descriptor, offset, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

    _kind: type[_OpenFileLock | _ProcessLock] = _OpenFileLock
else:
    import fcntl

    _SET: Any = getattr(fcntl, "F_OFD_SETLK", None)

    def _change(descriptor: int, kind: int, offset: int) -> None:
        # struct flock as in fcntl(2): type, whence, start, length, and a process that must be 0 here.
        fcntl.fcntl(descriptor, _SET, struct.pack("hhqqiI", kind, os.SEEK_SET, offset, 1, 0, 0))

    def _lock_open_file(descriptor: int, offset: int) -> None:
        _change(descriptor, fcntl.F_WRLCK, offset)

    def _unlock_open_file(descriptor: int, offset: int) -> None:
        _change(descriptor, fcntl.F_UNLCK, offset)

    # The layout above is Linux's; whoever else has the constant may lay it out otherwise.
    _kind = _OpenFileLock if _SET is not None and sys.platform == "linux" else _ProcessLock


def _try(path: str, offset: int) -> _OpenFileLock | _ProcessLock | None:
    lock = _kind(path, offset)
    taken = False
    try:
        taken = lock.take()
    finally:
        if not taken:
            lock.close()
    return lock if taken else None


def _is_at(descriptor: int, path: str) -> bool:
    """Whether ``descriptor`` is of the file that is at ``path`` now."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))  # noqa: PTH116 (a descriptor)
    return False


def _after_fork_in_child() -> None:
    for descriptor in list(_descriptors):
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _ProcessLock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
