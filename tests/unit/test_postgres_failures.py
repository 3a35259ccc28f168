"""Every error of the driver and of the server has a name of ours, and says what is known after it."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import socket
import ssl
import traceback
from typing import Any

import asyncpg
import pytest

from littleghost.errors import (
    ConfigurationError,
    CorruptSessionError,
    CredentialError,
    DataError,
    LittleGhostError,
    StoreError,
    StoreUnavailableError,
)
from littleghost.sessions.postgres.failures import outcome, store_error

EXCEPTIONS = [
    found
    for name in asyncpg.exceptions.__all__
    if inspect.isclass(found := getattr(asyncpg.exceptions, name))
    and issubclass(found, BaseException)
    and not issubclass(found, Warning)
]

# What no statement of ours can cause, and no server says of itself; one that comes all the same is a plain StoreError. By class.
# Source: https://www.postgresql.org/docs/current/errcodes-appendix.html
FOREIGN = {
    "01", "02", "09", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "24", "27", "2B", "2D", "2F", "34", "38", "39", "3B", "44",
    "72", "HV", "P0",
}  # fmt: skip


def test_an_argument_that_the_driver_cannot_send_is_no_damage():
    """The server says how severe an error is, the driver does not."""
    error = asyncpg.DataError("invalid input for query argument $2: 1000 (value out of int64 range)")
    assert type(store_error(error)) is DataError
    error.severity = "ERROR"
    assert type(store_error(error)) is CorruptSessionError


@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__name__)
def test_every_exception_of_the_driver_is_mapped(kind: type[BaseException]):
    error = kind("said")
    ours = store_error(error)
    assert isinstance(ours, LittleGhostError)
    code = getattr(error, "sqlstate", None)
    known = "does not expect" not in str(ours) and "unexpected" not in str(ours)
    if isinstance(code, str):
        assert ours.code == code if not isinstance(ours, DataError) else True
        assert known == (code[:2] not in FOREIGN), code
    else:
        assert known or kind in (
            asyncpg.PostgresError,
            asyncpg.FatalPostgresError,
            asyncpg.UnknownPostgresError,
        )
    assert outcome(error, sent=True) in ("refused", "later", "unknown")
    assert type(pickle.loads(pickle.dumps(ours))) is type(ours)
    if isinstance(ours, ConfigurationError):
        assert "said" not in "".join(traceback.format_exception(ours)), "it may name a piece of the URL"


def of(code: str, text: str = "said") -> BaseException:
    return asyncpg.PostgresError.new({"C": code, "M": text})


@pytest.mark.parametrize(
    ("code", "kind", "words", "known"),
    [
        ("08006", StoreUnavailableError, "reached", "unknown"),
        ("08P01", StoreUnavailableError, "pooler", "unknown"),
        ("22P02", CorruptSessionError, "backup", "refused"),
        ("23505", CorruptSessionError, "backup", "refused"),
        ("25006", StoreUnavailableError, "standby", "refused"),
        ("28P01", CredentialError, "password", "refused"),
        ("28000", CredentialError, "user", "refused"),
        ("3D000", ConfigurationError, "database", "refused"),
        ("3F000", StoreUnavailableError, "migrate", "refused"),
        ("40001", StoreUnavailableError, "try again", "later"),
        ("40P01", StoreUnavailableError, "try again", "later"),
        ("42501", StoreUnavailableError, "grant it SELECT", "refused"),
        ("42P01", StoreUnavailableError, "migrate", "refused"),
        ("53100", StoreUnavailableError, "disk is full", "refused"),
        ("53300", StoreUnavailableError, "max_connections", "later"),
        ("54000", DataError, "too large", "refused"),
        ("55P03", StoreUnavailableError, "try again", "later"),
        ("57014", StoreUnavailableError, "command_timeout", "unknown"),
        ("57P01", StoreUnavailableError, "stopping", "unknown"),
        ("57P02", StoreUnavailableError, "stopping", "unknown"),
        ("57P03", StoreUnavailableError, "starting", "later"),
        ("58030", StoreUnavailableError, "disk", "refused"),
        ("XX000", StoreError, "log", "refused"),
        ("XX001", CorruptSessionError, "damaged", "refused"),
        ("P0001", StoreError, "does not expect", "refused"),
        ("99999", StoreError, "does not expect", "refused"),
    ],
)
def test_codes(code: str, kind: type[LittleGhostError], words: str, known: str):
    error = of(code)
    ours = store_error(error)
    assert type(ours) is kind
    assert words in str(ours)
    assert outcome(error, sent=True) == known
    assert outcome(error, sent=False) == ("later" if known == "unknown" else known)


@pytest.mark.parametrize(
    ("error", "kind", "known"),
    [
        (ConnectionResetError("reset"), StoreUnavailableError, "unknown"),
        (TimeoutError(), StoreUnavailableError, "unknown"),
        (asyncio.IncompleteReadError(b"", 1), StoreUnavailableError, "unknown"),
        (socket.gaierror(-2, "Name or service not known"), StoreUnavailableError, "unknown"),
        (ssl.SSLError(1, "certificate verify failed"), StoreUnavailableError, "unknown"),
        (ssl.SSLCertVerificationError("verify failed"), StoreUnavailableError, "refused"),
        (asyncpg.InterfaceError("connection is closed"), StoreUnavailableError, "later"),
        (asyncpg.InternalClientError("cannot switch to state 1"), StoreUnavailableError, "later"),
        (asyncpg.InternalClientError("what?"), StoreUnavailableError, "unknown"),
        (asyncpg.ClientConfigurationError("s3cret"), ConfigurationError, "refused"),
        (ValueError("s3cret"), ConfigurationError, "refused"),
        (ZeroDivisionError("x"), StoreError, "refused"),
    ],
)
def test_what_is_no_answer_of_the_server(error: BaseException, kind: type[LittleGhostError], known: str):
    ours = store_error(error)
    assert type(ours) is kind
    assert outcome(error, sent=True) == known
    assert "s3cret" not in "".join(traceback.format_exception(ours))


def test_ours_stays_what_it_is():
    error: Any = DataError.at("state", "no")
    assert store_error(error) is error
