"""The write-ahead log: whether it is still the one that was opened.

SQLite opens the log once, by its name. When that name is gone, or another file's, SQLite goes on with the log it has: what it commits
is seen by nobody who comes later, and is gone with the process. Somebody may have removed it by hand. Or this process has closed a
descriptor of the database that was not SQLite's, in copying it for example, and POSIX has dropped all its locks with that: then
another process that closes the file takes itself for the last one, and removes the log.
Source: https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress

from littleghost.errors import StoreUnavailableError

__all__ = ["Identity", "identity", "lost", "undisturbed"]

Identity = tuple[int, int]
"""A file: its device, and its number there. Zeros where there is none."""


def identity(log_path: str) -> Identity:
    """Return which file is the log now."""
    try:
        status = os.stat(log_path)  # noqa: PTH116 (on every commit)
    except FileNotFoundError:
        return 0, 0
    return status.st_dev, status.st_ino


def lost(path: str) -> StoreUnavailableError:
    """Return the error for the database ``path`` whose log is no longer the one that was opened."""
    return StoreUnavailableError(
        f"{path}: its log {path}-wal was deleted or replaced while it was in use, and what was committed lately may be missing; "
        "leave the files beside the database alone, and let no other code of this program open it; then load and try again",
        path=path,
    )


@contextmanager
def undisturbed(path: str, log_path: str, opened: Identity | None) -> Generator[None]:
    """Let a connection be closed without touching a log that is not ``opened``, the one it has, and that holds somebody's commits.

    Who closes last takes the log it has into the database, and removes what has its name. Where nobody has written another log that
    is right: it saves what is in the old one. Else it would take old pages over new ones, and remove what others have committed.

    Raises:
        sqlite3.Error: The file cannot be opened once more; nothing was closed.
    """
    if opened is None or identity(log_path) == opened or not _written(log_path):
        yield
        return
    from pathlib import Path

    # Who closes is not the last while this one has read. It is no last one itself, for it cannot lock what it may not write.
    with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True)) as beside:
        with suppress(sqlite3.Error):  # it may not understand that log; its lock it has all the same
            beside.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield


def _written(log_path: str) -> bool:
    with suppress(FileNotFoundError):
        return os.stat(log_path).st_size > 0  # noqa: PTH116
    return False
