"""What asyncpg and the server say, in our words.

By SQLSTATE, whose first two characters are its class. Source: https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

import ssl
from typing import Final, Literal

try:
    import asyncpg
except ImportError as error:
    from littleghost.errors import DependencyError

    raise DependencyError.missing("asyncpg", "postgres") from error

from littleghost.errors import (
    ConfigurationError,
    CorruptSessionError,
    CredentialError,
    DataError,
    LittleGhostError,
    StoreError,
    StoreUnavailableError,
)
from littleghost.sessions.postgres.urls import driver_error, setting_error

__all__ = ["Outcome", "connect_error", "is_stale_plan", "is_unknown_statement", "outcome", "store_error"]

Outcome = Literal["refused", "later", "unknown"]
"""After an error: nothing was done and nothing will be; nothing was done, and it may be tried again; nobody knows what was done."""

_UNAVAILABLE: Final = "it cannot be reached or does not answer; look at the server, and at the way to it"
_GRANT: Final = (
    "the user of the URL may not do this: grant it SELECT on the tables to read, INSERT, UPDATE and DELETE too to write, and USAGE on "
    "their schema; to make the tables, CREATE on the schema, or let somebody else run what PostgresStore.schema_sql() returns"
)
_TABLES: Final = (
    "the tables are not there, or not as this library made them; await store.migrate() makes them, where the "
    "user may make tables"
)
_OTHERS: Final = "others kept it busy for too long; try again"

# By class or by code, the longest that fits.
_WORDS: Final[dict[str, tuple[type[StoreError | ConfigurationError], str]]] = {
    "03": (StoreUnavailableError, _UNAVAILABLE),
    "08": (StoreUnavailableError, _UNAVAILABLE),
    "08P01": (StoreUnavailableError, "it, or the pooler before it, does not speak the protocol as expected"),
    "0A": (StoreError, "it cannot do what this library needs; PostgreSQL 14 or newer is needed"),
    "22": (
        CorruptSessionError,
        "a value in the tables is none that this library wrote; restore it from a backup",
    ),
    "23": (
        CorruptSessionError,
        "there is something where the tables say there is nothing; restore them from a backup",
    ),
    "25": (
        StoreUnavailableError,
        "it takes no writes now, for it is a standby or set read-only; connect to the primary",
    ),
    "26": (
        StoreError,
        "a pooler lost a prepared statement; add prepared_statements=false to the URL",
    ),
    "28": (CredentialError, "it refused the user or the password"),
    "3D": (ConfigurationError, "there is no such database; create it first, or correct the URL"),
    "3F": (StoreUnavailableError, _TABLES),
    "40": (StoreUnavailableError, _OTHERS),
    "40003": (StoreUnavailableError, _UNAVAILABLE),
    "42": (StoreUnavailableError, _TABLES),
    "42501": (StoreUnavailableError, _GRANT),
    "42P05": (StoreError, "a pooler mixed up prepared statements; add prepared_statements=false to the URL"),
    "53": (StoreUnavailableError, "it has run out of something"),
    "53100": (StoreUnavailableError, "its disk is full; free some space and try again"),
    "53300": (
        StoreUnavailableError,
        "it has no connection left; let fewer be opened (max_connections), raise its max_connections, or put a pooler before it",
    ),
    "54": (DataError, "messages: are too large for one commit"),
    "55": (StoreUnavailableError, _OTHERS),
    "57": (StoreUnavailableError, "it is starting, stopping, or was told to cancel the statement; try again"),
    "57014": (StoreUnavailableError, "the statement took longer than the server or command_timeout allows"),
    "57P04": (ConfigurationError, "the database was dropped"),
    "58": (StoreUnavailableError, "reading or writing failed there; look at its disk and its log"),
    "F0": (StoreUnavailableError, "its configuration is wrong; look at its log"),
    "XX": (StoreError, "it found an error of its own; look at its log"),
    "XX001": (CorruptSessionError, "its files are damaged; restore them from a backup"),
    "XX002": (CorruptSessionError, "an index is damaged; REINDEX the tables, and verify them"),
}

# Codes of a setting that is unknown, has a wrong value, or is not for this user; the third one is a pooler's, and also its protocol's.
_SETTINGS: Final = ("22", "42", "08P01", "55P02")

# Codes after which nothing was done, and trying again may help. Source: the same.
_LATER: Final = ("40001", "40P01", "53300", "55P03", "57P03")
# Codes of a connection that ended: when a statement had been sent, nobody knows.
_UNKNOWN: Final = ("08", "40003", "57P01", "57P02", "57P05", "57014", "25P03")


def store_error(error: BaseException) -> LittleGhostError:
    """Return the error of ours for whatever was raised while working with the server; one of ours is returned as it is.

    No text of it holds any part of the URL.
    """
    if isinstance(error, LittleGhostError):
        return error
    ours = _of(error)
    # What is said of a user or a database may be a piece of a password that stood unencoded in the URL.
    ours.__cause__ = None if isinstance(ours, ConfigurationError) else error
    ours.__suppress_context__ = True
    return ours


def connect_error(error: BaseException, dsn: str) -> LittleGhostError:
    """Return the error of ours for whatever was raised while connecting to ``dsn``, where some codes mean something else than later."""
    code, ours = code_of(error), None
    if code is None:
        if isinstance(error, asyncpg.ClientConfigurationError | ValueError | OSError):
            ours = driver_error(error, dsn)
    elif code.startswith(_SETTINGS):
        ours = setting_error(dsn)
    if ours is None and code == "42501":
        # What the server says names the database, which may be a piece of a password; see below.
        ours = StoreUnavailableError(
            "PostgreSQL: the user of the URL may not connect to the database: grant it CONNECT on that",
            code=code,
        )
    return store_error(error) if ours is None else ours


def _of(error: BaseException) -> LittleGhostError:
    code = code_of(error)
    if (
        code == "22000" and getattr(error, "severity", None) is None
    ):  # of the driver, which uses the server's name for it
        return DataError.at("arguments", f"one cannot be sent to PostgreSQL: {_first_line(error)}")
    if code is not None:
        kind, words = next(
            (_WORDS[part] for part in (code, code[:2]) if part in _WORDS),
            (StoreError, "it answered with an error that this library does not expect"),
        )
        said = "" if issubclass(kind, ConfigurationError) else f" ({code}: {_first_line(error)})"
        if kind is DataError:
            return DataError.at("messages", f"are too large for one commit{said}")
        return kind(f"PostgreSQL: {words}{said}", code=code)
    if isinstance(error, TimeoutError):
        return StoreUnavailableError(f"PostgreSQL: {_UNAVAILABLE} (no answer in time)", code=None)
    if isinstance(error, ssl.SSLError):
        return StoreUnavailableError(
            f"PostgreSQL: no secure connection can be made; look at the certificates and at sslmode ({_first_line(error)})",
            code=None,
        )
    if isinstance(error, asyncpg.DataError | asyncpg.ClientConfigurationError | ValueError):
        return ConfigurationError(
            "PostgreSQL: the URL is malformed, or holds an option that asyncpg does not know"
        )
    if isinstance(error, OSError | EOFError | asyncpg.InterfaceError | asyncpg.InternalClientError):
        return StoreUnavailableError(f"PostgreSQL: {_UNAVAILABLE} ({_first_line(error)})", code=None)
    return StoreError(f"PostgreSQL: unexpected {type(error).__name__}: {_first_line(error)}", code=None)


def code_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error of the server, or of one that asyncpg gives one."""
    code = getattr(error, "sqlstate", None)
    return code if isinstance(code, str) else None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def outcome(error: BaseException, *, sent: bool) -> Outcome:
    """Return what is known after ``error``.

    Args:
        error: What the driver raised.
        sent: Whether the statement may have reached the server; else it was about the connection.
    """
    if isinstance(error, LittleGhostError):
        return "refused"  # by us, who looked before doing anything
    code = code_of(error)
    if code is not None and code.startswith(_LATER):
        return "later"
    if not (code.startswith(_UNKNOWN) if code is not None else _is_lost(error)):
        return "refused"
    return "unknown" if sent and not _is_unsent(error) else "later"


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, _LOST) and not isinstance(error, _HOPELESS)


_LOST: Final = (OSError, EOFError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_HOPELESS: Final = (
    ssl.SSLCertVerificationError,
    asyncpg.ClientConfigurationError,
    asyncpg.UnsupportedClientFeatureError,
    asyncpg.UnsupportedServerFeatureError,
)


def _is_unsent(error: BaseException) -> bool:
    """Whether asyncpg found that the connection had ended before it sent anything."""
    return isinstance(error, asyncpg.InterfaceError) or (
        isinstance(error, asyncpg.InternalClientError) and "cannot switch to state" in str(error)
    )


def is_unknown_statement(error: BaseException) -> bool:
    """Whether a pooler sent a prepared statement to a connection that does not have it, or has it already: nothing was done."""
    return code_of(error) in ("26000", "42P05")


def is_stale_plan(error: BaseException) -> bool:
    """Whether a prepared statement has to be prepared anew, because a table was changed: nothing was done."""
    return isinstance(error, asyncpg.InvalidCachedStatementError)
