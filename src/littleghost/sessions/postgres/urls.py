"""What may stand in a URL: options of ours, parameters of the driver, and settings of the server, which is everything else.

A URL may hold a password, and one that is not encoded may be anywhere in it. What is said about a URL names parameters, never a value.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from littleghost.errors import ConfigurationError

__all__ = [
    "DRIVERS",
    "LIMITS",
    "OPTIONS",
    "check_dsn",
    "check_url",
    "driver_error",
    "foreign",
    "setting_error",
]

_truth: Final = {"true": True, "false": False}.__getitem__

OPTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "schema": str,
    "table_prefix": str,
    "create": _truth,
    "min_connections": int,
    "max_connections": int,
    "connect_timeout": float,
    "command_timeout": float,
    "acquire_timeout": float,
    "lease_ttl": float,
    "prepared_statements": _truth,
}
"""What `open_store` takes out of a URL and gives to the constructor, and how it reads that."""

LIMITS: Final = ("max_messages", "max_size")
"""The same, for `SessionLimits`."""

# Source: asyncpg.connect_utils, whose documentation leaves out some.
DRIVERS: Final = frozenset(
    {
        "database",
        "dbname",
        "gsslib",
        "host",
        "krbsrvname",
        "passfile",
        "password",
        "port",
        "service",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcrl",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "target_session_attrs",
        "user",
    }
)
"""What asyncpg takes out of a URL; the rest it sends to the server."""

_FILES: Final = ("sslcert", "sslcrl", "sslkey", "sslrootcert")
_UNNAMED: Final = (
    ("TLS version", ["ssl_min_protocol_version", "ssl_max_protocol_version"]),
    ("root certificate", ["sslrootcert"]),
    ("int()", ["port"]),
)
"""What the driver says of a parameter without its name."""

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,62}")


def check_url(url: Any) -> None:
    """Refuse what is no URL, without a word of it.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
        raise ConfigurationError("the URL of a PostgresStore begins with postgresql:// or postgres://")
    try:
        parts = urlsplit(url)
        # An @ in the query is most likely the end of a password with a ? in it, and what is before it part of that password.
        whole = not ("@" in parts.path or "@" in parts.query or parts.fragment or parts.port == 0)
        named = _parameters(url)
    except ValueError:
        whole, named = False, {}
    if not whole or "" in named or any("\0" in text for pair in named.items() for text in pair):
        raise ConfigurationError(
            "the postgresql:// URL is malformed; in a user or a password, write @ as %40, / as %2F, : as %3A, # as %23 and ? as %3F, "
            "and behind the ? each parameter as name=value, an @ in it as %40"
        )


def check_dsn(dsn: Any) -> None:
    """Refuse what the driver cannot be given: no URL, and one with options of ours, which would go to the server as settings.

    Raises:
        ConfigurationError: It is such a URL.
    """
    check_url(dsn)
    given = _parameters(dsn)
    for name in (*OPTIONS, *LIMITS):
        if name in given:
            keyword = "limits=SessionLimits(…)" if name in LIMITS else f"{name}=…"
            raise ConfigurationError(
                f"{name} is an option of open_store(url), and PostgresStore() does not read it from its URL: use open_store(url) or the "
                f"keyword {keyword}"
            )


def foreign(dsn: str) -> list[str]:
    """Return the names of what the server gets as settings from ``dsn``, without ``application_name``, which is never wrong."""
    return [name for name in _parameters(dsn) if name not in DRIVERS and name != "application_name"]


def setting_error(dsn: str) -> ConfigurationError | None:
    """Return the error for a server that did not take a setting when it was connected to; ``None`` where ``dsn`` has none."""
    given = foreign(dsn)
    if not given:
        return None
    return ConfigurationError(
        f"PostgreSQL: it does not take a setting that the URL asks for, or not from this user. Look at {_listed(given)}; what is an option "
        "neither of littleghost nor of asyncpg goes to the server as a setting"
    )


def driver_error(error: BaseException, dsn: str) -> ConfigurationError | None:
    """Return the error for a parameter that the driver did not take; ``None`` where it was something else.

    Args:
        error: What it raised before it had reached the server.
        dsn: The URL.
    """
    given = _parameters(dsn)
    if isinstance(error, OSError):
        # What is raised where a socket is missing says the same, and comes from elsewhere.
        missing = [name for name in _FILES if name in given and not os.access(given[name], os.R_OK)]
        return _refused(missing, "names no file that can be read") if missing and _is_drivers(error) else None
    said = str(error)
    names = next((names for words, names in _UNNAMED if words in said), None) or [
        name for name in sorted(DRIVERS) if re.search(rf"\b{name}\b", said)
    ]
    return _refused(names, "has a value that asyncpg does not take") if names else None


def _is_drivers(error: BaseException) -> bool:
    """Whether the driver's own code raised it, and not the event loop's."""
    innermost = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        innermost = frame
    return innermost is not None and str(innermost.f_globals.get("__name__")).startswith("asyncpg.")


def _refused(names: Iterable[str], what: str) -> ConfigurationError:
    return ConfigurationError(
        f"PostgreSQL: the parameter {' or '.join(names)} {what}; it stands in the URL, or in a variable PG… of the environment"
    )


def _parameters(url: str) -> dict[str, str]:
    """Return the parameters of ``url``.

    Raises:
        ValueError: They are malformed.
    """
    query = urlsplit(url).query
    return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}


def _listed(names: Iterable[str]) -> str:
    plain = [name for name in names if _PLAIN.fullmatch(name)]
    others = [name for name in names if not _PLAIN.fullmatch(name)]
    return " and ".join([*([", ".join(plain)] if plain else []), *(["others"] if others else [])])
