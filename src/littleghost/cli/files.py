"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from littleghost import ConfigurationError, LittleGhostError

__all__ = ["opened_device", "replacing"]

Answer = TypeVar("Answer")


@contextmanager
def opened_device(path: Path) -> Generator[int | None]:
    """Return a descriptor of ``path`` that can be written to, where that is a pipe or a device; ``None`` where it is not.

    Opening a pipe waits for who reads it.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    try:
        descriptor = None
        if path.exists() and not path.is_file() and not path.is_dir():
            descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be made ({error.strerror})") from error
    yield descriptor
    if (
        descriptor is not None
    ):  # where it was broken off, a thread may be writing yet, and must not meet another file of this number
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Generator[Callable[[bytes], None]]:
    """Return what writes to a file that takes the place of ``path`` at the end of the block, for its owner alone to read.

    Where the block fails, ``path`` stays as it was, and nothing is left over; no signal may raise an exception around it.

    Raises:
        ConfigurationError: The file cannot be made.
        LittleGhostError: It cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        real = Path(os.path.realpath(path))
        part = real.with_name(f".littleghost-{secrets.token_hex(8)}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(part, flags | getattr(os, "O_BINARY", 0), 0o600)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be made ({error.strerror})") from error
    try:
        try:
            yield partial(_write, descriptor, path)
            _attempt(path, partial(os.fsync, descriptor))
        finally:
            os.close(descriptor)
        _attempt(path, partial(_put_in_place, part, real))
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _write(descriptor: int, path: Path, raw: bytes) -> None:
    rest = memoryview(raw)
    while rest:
        rest = rest[_attempt(path, partial(os.write, descriptor, rest)) :]


def _put_in_place(part: Path, real: Path) -> None:
    part.replace(real)
    if os.name != "nt":  # the new name survives the loss of power too
        folder = os.open(real.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _attempt(path: Path, work: Callable[[], Answer]) -> Answer:
    # Only around what touches the file: an error of the block is its own, and a store's may be an OSError as well.
    try:
        return work()
    except OSError as error:
        raise LittleGhostError(f"{path} cannot be written ({error.strerror})") from error
