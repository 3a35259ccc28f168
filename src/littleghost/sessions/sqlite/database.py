"""Opening the file, telling what it is, and saying in our words what SQLite says in its own.

Beside the file lies ``NAME-lease``. Its bytes are locked by leases and read by nobody; its size is a sign: not 0 once the tables of the
file exist. An empty file is a new database, unless that sign says that there was one, for then it was truncated.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from littleghost.errors import (
    CorruptSessionError,
    DataError,
    FormatError,
    LittleGhostError,
    StoreError,
    StoreUnavailableError,
)
from littleghost.sessions.sqlite import rows
from littleghost.sessions.sqlite import statements as sql

__all__ = ["DatabaseFile", "Durability", "SameFile", "is_busy", "is_denied", "store_error"]

Durability = Literal["full", "normal", "off"]

BUSY_MILLISECONDS: Final = 200
"""How long SQLite itself waits for a lock; whoever runs a transaction tries again, with pauses in which the process may fork."""

SMALLEST_PAGE: Final = 512
WAL_LIMIT: Final = 64 * 1024 * 1024

# Primary result codes. Source: https://www.sqlite.org/rescode.html
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "others kept it locked for too long; try again, or look for a process that holds a transaction open",
    sqlite3.SQLITE_LOCKED: "others kept it locked for too long; try again",
    sqlite3.SQLITE_PROTOCOL: "the locks of the file are too busy; try again",
    sqlite3.SQLITE_READONLY: "it, or its folder, is read-only; make both writable for this process",
    sqlite3.SQLITE_IOERR: "reading or writing failed; look at the disk and at the system's log",
    sqlite3.SQLITE_FULL: "the disk is full; free some space and try again",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; look at the path, and at the permissions of its folder",
    sqlite3.SQLITE_PERM: "access is denied; look at the permissions of the file and its folder",
    sqlite3.SQLITE_AUTH: "access is denied; look at the permissions of the file and its folder",
    sqlite3.SQLITE_NOMEM: "there is not enough memory",
    sqlite3.SQLITE_INTERRUPT: "the operation was interrupted; try again",
    sqlite3.SQLITE_ABORT: "the operation was interrupted; try again",
    sqlite3.SQLITE_NOLFS: "the file has reached the largest size of its file system",
}
_CORRUPT = {
    sqlite3.SQLITE_CORRUPT: "it is damaged; restore it from a backup, or recover what is left with: sqlite3 FILE .recover",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database, or its beginning is damaged; restore it from a backup",
    sqlite3.SQLITE_FORMAT: "it is damaged; restore it from a backup",
    sqlite3.SQLITE_MISMATCH: "a value in it has another type than was written; restore it from a backup",
    # A row is only written where there was found to be none.
    sqlite3.SQLITE_CONSTRAINT: "there is something where it says there is nothing; restore it from a backup",
    sqlite3.SQLITE_SCHEMA: "its tables were changed by something else",
    # The generic code; our statements are fixed, so what is wrong is a table or column that is not there.
    sqlite3.SQLITE_ERROR: "its tables are not those that this library made; restore it from a backup",
}


def store_error(error: BaseException, path: str) -> LittleGhostError:
    """Return the error of ours for whatever was raised while working with the file; one of ours is returned as it is."""
    if isinstance(error, LittleGhostError):
        return error
    ours: LittleGhostError
    primary = _primary(error)
    if primary in _UNAVAILABLE:
        ours = StoreUnavailableError(f"{path}: {_UNAVAILABLE[primary]} ({error})", path=path)
    elif primary in _CORRUPT:
        ours = CorruptSessionError(f"{path}: {_CORRUPT[primary]} ({error})", path=path)
    elif primary == sqlite3.SQLITE_TOOBIG or (isinstance(error, OverflowError) and "BLOB" in str(error)):
        ours = DataError.at("messages", f"is too large for one commit ({error})")
    elif isinstance(error, TypeError | ValueError) or "decode to UTF-8" in str(error):
        # What we ask and how we read it is fixed, so a value of another type was not written by us.
        ours = CorruptSessionError(f"{path}: {_CORRUPT[sqlite3.SQLITE_MISMATCH]} ({error})", path=path)
    elif isinstance(error, OSError):
        ours = StoreUnavailableError(f"{path}: {error.strerror or error}", path=path)
    else:
        ours = StoreError(f"{path}: unexpected {type(error).__name__}: {error}", path=path)
    ours.__cause__ = error
    return ours


def is_busy(error: BaseException) -> bool:
    """Whether ``error`` only says that another process was faster, and trying again is the answer."""
    return _primary(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


class DatabaseFile(Struct, frozen=True):
    """A file of sessions, by its absolute path.

    The file itself is never opened but by SQLite: on POSIX, closing any other descriptor of it would drop SQLite's locks.
    """

    path: str
    durability: Durability

    @property
    def lease_path(self) -> str:
        """The file beside it."""
        return f"{self.path}-lease"

    @property
    def log_path(self) -> str:
        """The write-ahead log, as SQLite names it."""
        return f"{self.path}-wal"

    def connect(self, *, writes: bool) -> tuple[sqlite3.Connection, tuple[int, int] | None]:
        """Return a new connection to the file, which is made, with its tables, where it is missing. One attempt.

        A file of an older format is brought up to this one, in one transaction.

        Args:
            writes: Whether the connection is to write. One that is not also opens what this process may only read.

        Returns:
            The connection, and the state of the file if what is read is true only as long as `at_rest` tells the same.

        Raises:
            FormatError: It belongs to another program, or to a newer version of this library, or to an older one and cannot be written.
            CorruptSessionError: It is damaged, or was truncated.
            StoreUnavailableError: It cannot be opened.
            sqlite3.Error: Anything else; see `is_busy` and `store_error`.
        """
        self._look()
        new = not _size(self.path)
        try:
            return self._opened(self.path, self._prepare), None
        except sqlite3.Error as error:
            if new and _primary(error) == sqlite3.SQLITE_IOERR and _size(self.log_path) is not None:
                raise StoreUnavailableError(
                    f"{self.path}: it was deleted while another process has it open, and that one's log is still there; stop that "
                    f"process, remove {self.log_path} and {self.path}-shm, and try again ({error})",
                    path=self.path,
                ) from error
            if writes or not is_denied(error):
                raise
            # To read beside writers takes a small file beside the log, which cannot be made here. Where there is no log, nobody
            # writes now, and the file alone is all there is.
            state = self.at_rest()
            if state is None:
                if _size(self.log_path):
                    raise StoreUnavailableError(
                        f"{self.path}: its log holds commits that cannot be read without writing beside it; "
                        f"open it once where this process may write ({error})",
                        path=self.path,
                    ) from error
                raise
            return self._opened(f"{_uri(self.path)}?immutable=1", self._prepare_still), state

    def _opened(self, name: str, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
        connection = sqlite3.connect(
            name,
            timeout=BUSY_MILLISECONDS / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
            uri=name != self.path,
        )
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def at_rest(self) -> tuple[int, int] | None:
        """Return the size of the file and when it was written, if there is no log beside it, else ``None``."""
        with suppress(FileNotFoundError):
            if not _size(self.log_path):
                status = os.stat(self.path)  # noqa: PTH116
                return status.st_size, status.st_mtime_ns
        return None

    def _look(self) -> None:
        """Refuse what SQLite would take for a new database, and is not.

        The sign is read before the size: who makes the database sets them in the other order, so a sign seen here is older than an
        empty file seen here. One case is left, a sign that outlived its file while another process makes the next one; it passes.
        A file of one byte is an empty one to SQLite, for there are systems that cannot lock less.
        """
        for pause in (0.05, 0.2, 0.75, None):
            signed = _size(self.lease_path)
            size = _size(self.path)
            if size is None:
                folder = os.path.dirname(self.path)  # noqa: PTH120
                if not os.path.isdir(folder):  # noqa: PTH112
                    raise StoreUnavailableError(
                        f"{self.path}: the folder {folder} does not exist; make it first", path=self.path
                    )
                if signed:  # the file was removed on purpose, and its sign forgotten
                    os.truncate(self.lease_path, 0)
                return
            self._check_names()
            if size > 1 or not signed:
                return
            if pause is not None:
                time.sleep(pause)
        raise CorruptSessionError(
            f"{self.path}: it is empty, and held sessions before; restore it from a backup, or remove it to begin anew",
            path=self.path,
        )

    def _check_names(self) -> None:
        """Refuse a file with a second name, a hard link: SQLite has a log for each name, and commits in two logs lose each other."""
        with suppress(FileNotFoundError):
            names = os.stat(self.path).st_nlink  # noqa: PTH116
            if names > 1:
                raise StoreUnavailableError(
                    f"{self.path}: the file has {names} names (hard links), and commits made by one name are lost to who uses another; "
                    f"remove the others, which find -samefile {self.path} shows, or put a copy in its place",
                    path=self.path,
                )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Before anything is changed, for the file may be another program's; in one transaction, for tables may be made meanwhile.
        connection.execute("BEGIN")
        version = self._recognise(connection)
        connection.execute("COMMIT")
        if version:
            self._check_end()
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailableError(
                f"{self.path}: this file system cannot hold a write-ahead log", path=self.path
            )
        connection.execute(f"PRAGMA synchronous = {self.durability}")
        # On macOS a plain fsync does not reach the medium; elsewhere these two do nothing.
        connection.execute(f"PRAGMA fullfsync = {self.durability == 'full'}")
        connection.execute(f"PRAGMA checkpoint_fullfsync = {self.durability != 'off'}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
        _distrust(connection)
        if version != sql.VERSION:
            connection.execute("BEGIN IMMEDIATE")
            self._bring_up(
                connection, self._recognise(connection)
            )  # another process may have done it meanwhile
            connection.execute("COMMIT")
        if not _size(self.lease_path):
            with suppress(OSError):  # a protection less, and nothing that must not work without it
                os.close(os.open(self.lease_path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))
            with suppress(OSError):
                os.truncate(self.lease_path, 1)

    def _prepare_still(self, connection: sqlite3.Connection) -> None:
        """Prepare a connection that takes no locks and sees no log."""
        version = self._recognise(connection)
        if not version:
            raise StoreUnavailableError(
                f"{self.path}: it is empty, and cannot be written by this process", path=self.path
            )
        self._check_end()
        if version != sql.VERSION:
            raise self._stuck(version)
        _distrust(connection)

    def _check_end(self) -> None:
        if (_size(self.path) or 0) % SMALLEST_PAGE:
            # SQLite would take what is missing of the last page for zeros.
            raise CorruptSessionError(
                f"{self.path}: its end is missing; restore it from a backup", path=self.path
            )

    def _bring_up(self, connection: sqlite3.Connection, version: int) -> None:
        """Make tables, or make those of an older format into ours, within a transaction that writes."""
        if version == sql.VERSION:
            return
        new = () if version else (*sql.SCHEMAS[sql.VERSION], sql.MARK)
        steps = [sql.UPGRADES[older] for older in range(version or sql.VERSION, sql.VERSION)]
        failures: list[Exception] = []
        # It sees what was committed before, and nobody else writes meanwhile.
        with closing(sqlite3.connect(self.path)) if version else nullcontext() as beside:
            if beside is not None:
                connection.create_function("hour_of", 1, rows.hour_of)
                connection.create_function("size_sum", 3, rows.size_sum)
                connection.create_function("size_of", 2, partial(_size_of, beside, failures))
            try:
                for statement in itertools.chain(new, *steps, [sql.MARK_VERSION]):
                    connection.execute(statement)
            except sqlite3.Error as error:
                if failures:  # of a function SQLite only says that it failed
                    raise failures[0] from error
                if version and is_denied(error):
                    raise self._stuck(version) from error
                raise
        self._recognise(connection)

    def _stuck(self, version: int) -> LittleGhostError:
        if os.access(self.path, os.W_OK) and os.access(os.path.dirname(self.path), os.W_OK):  # noqa: PTH120
            return StoreUnavailableError(
                f"{self.path}: the file has format {version}, and could not be made format {sql.VERSION} for now; look whether this "
                "process has too many files open, and whether the files beside it can be written; then try again",
                path=self.path,
            )
        return FormatError(
            f"{self.path}: the file has format {version}, and is read-only for this process; open it once where it can be written, "
            f"which makes it format {sql.VERSION}",
            found=version,
            supported=sql.VERSION,
        )

    def _recognise(self, connection: sqlite3.Connection) -> int:
        """Return the format of the file, ``0`` if it is new, or raise unless it is ours."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application == sql.APPLICATION_ID:
            if version not in sql.SCHEMAS:
                raise FormatError(
                    f"{self.path}: the file has format {version}, and this version of the library reads formats up to {sql.VERSION}",
                    found=version,
                    supported=sql.VERSION,
                )
            found = [_words(text) for (text,) in connection.execute(sql.TEXTS)]
            if found != [_words(text) for text in sql.SCHEMAS[version]]:
                raise CorruptSessionError(f"{self.path}: {_CORRUPT[sqlite3.SQLITE_ERROR]}", path=self.path)
            return version
        (anything,) = connection.execute(sql.ANYTHING).fetchone()
        if application or version or anything:
            raise FormatError(
                f"{self.path}: the file belongs to another program (application {application:#x}, version {version})",
                found=f"application {application:#x}, version {version}",
                supported=sql.VERSION,
            )
        return 0


def _uri(path: str) -> str:
    """Return an absolute path as SQLite takes it where options follow.

    Source: https://www.sqlite.org/uri.html#the_uri_path
    """
    for special in "%?#":
        path = path.replace(special, f"%{ord(special):02x}")
    if os.name == "nt":
        path = "/" + path.replace("\\", "/")
    return f"file://{path}"


def _distrust(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def is_denied(error: BaseException) -> bool:
    """Whether ``error`` says that something cannot be written, or made, beside what is read."""
    return _primary(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def _primary(error: BaseException) -> int | None:
    """Return SQLite's result code without what is said beyond its kind; ``None`` for what is no error of SQLite's."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


class SameFile:
    """Which file is at a path, from the first connection of a store on, so that none of its connections is ever to another one."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None

    def remember(self) -> None:
        """Remember the file that a first connection has opened, and for a later one `check` it.

        Raises:
            StoreUnavailableError: It is gone already, or another one.
        """
        self._identity = self._identity or self._look()
        self.check(opened=True)

    def check(self, *, opened: bool = False) -> None:
        """Raise if the file is no longer there: what is written into it would be gone with the process, and what is read with it.

        Args:
            opened: Whether there must be one, also where none is remembered yet.

        Raises:
            StoreUnavailableError: It is gone, or another one is in its place.
        """
        if (opened or self._identity) and (self._look() or ()) != self._identity:
            raise StoreUnavailableError(
                f"{self.path}: the file was deleted or replaced while it was in use; restore it, and make a new store",
                path=self.path,
            )

    def _look(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)  # noqa: PTH116 (on every commit)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino


def _size_of(db: sqlite3.Connection, failures: list[Exception], first: object, last: object) -> int:
    """Return how many bytes the bodies at these rowids have; ``0`` if they are damaged, for then nobody can read the session either.

    What may pass, as a lack of memory, of descriptors or of a lock, is put into ``failures`` and ends the upgrade: the file stays as it is.
    """
    try:
        return db.execute(sql.SIZE_OF, (first, last)).fetchone()[0]
    except Exception as error:
        if _primary(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return 0
        failures.append(error)
        raise


def _words(text: object) -> list[str]:
    return str(text).split()


def _size(path: str) -> int | None:
    """Return the size of a regular file, or ``None`` where there is nothing."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise StoreUnavailableError(f"{path}: it is not a regular file", path=path)
    return status.st_size
