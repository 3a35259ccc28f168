"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from littleghost import ConfigurationError, LittleGhostError

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Generator[Callable[[bytes], None]]:
    """Return what writes to a file that takes the place of ``path`` at the end of the block, for its owner alone to read.

    Where the block fails, ``path`` stays as it was, and nothing is left over. What is no file, such as a pipe, is written to directly.

    Raises:
        ConfigurationError: The file cannot be made.
        LittleGhostError: It cannot be written.
    """
    real = Path(os.path.realpath(path))
    try:
        if real.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        direct = real.exists() and not real.is_file()
        part = real if direct else real.with_name(f".littleghost-{secrets.token_hex(8)}.part")
        flags = os.O_WRONLY if direct else os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(part, flags | getattr(os, "O_BINARY", 0), 0o600)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be made ({error.strerror})") from error
    try:
        with os.fdopen(descriptor, "wb") as file:

            def write(raw: bytes) -> None:
                try:
                    file.write(raw)
                except OSError as error:
                    raise _unwritten(path, error) from error

            yield write
            try:
                file.flush()
                if not direct:
                    os.fsync(descriptor)
            except OSError as error:
                raise _unwritten(path, error) from error
        if not direct:
            _put_in_place(part, real)
    except BaseException:
        if not direct:
            part.unlink(missing_ok=True)
        raise


def _put_in_place(part: Path, real: Path) -> None:
    try:
        part.replace(real)
        if os.name != "nt":  # the new name survives the loss of power too
            folder = os.open(real.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise _unwritten(real, error) from error


def _unwritten(path: Path, error: OSError) -> LittleGhostError:
    return LittleGhostError(f"{path} cannot be written ({error.strerror})")
