"""A store by its URL."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from littleghost.errors import ConfigurationError
from littleghost.sessions.contract import SessionLimits, SessionStore

__all__ = ["open_store"]

_KNOWN = "memory:, sqlite:///relative.db, sqlite:////absolute.db, postgresql://user@host/database, agentcore://memory-id?region=us-east-1"


def open_store(url: str, *, create: bool = True) -> SessionStore:
    """Return the store that ``url`` names. Nothing is opened yet; the store does that when it is first used.

    Options stand behind a ``?``, each once. ``max_messages`` and ``max_size`` set the `SessionLimits` of every store with a medium;
    the others are those of the store's constructor.

    Args:
        url: ``memory:``, or ``sqlite:///relative.db``, or ``sqlite:////absolute.db``, the path percent-encoded where it has to be, with
            ``durability``; or ``postgresql://user:password@host:port/database`` with ``schema``, ``table_prefix``, ``min_connections``,
            ``max_connections``, ``connect_timeout``, ``command_timeout``, ``acquire_timeout``, ``lease_ttl``, ``prepared_statements``
            and ``create`` (``true`` or ``false``), with whatever asyncpg takes, such as ``host``, the folder of a socket, and
            ``sslmode``, and with settings of the server; or ``agentcore://memory-id``, an ARN percent-encoded, with ``region`` and
            ``retention_days``.
        create: ``False`` opens PostgreSQL only to use what is there: no tables are made or changed, whatever the URL says. The others
            do not read it: a SQLite file is made by the first use, so look before whether it exists.

    Raises:
        ConfigurationError: The URL is malformed, or of a kind that is unknown. It is not repeated, for it may hold a password.
        DependencyError: The driver of the database is not installed.
    """
    scheme, colon, rest = url.partition(":")
    scheme = scheme.lower()
    if not colon:
        raise ConfigurationError(f"this is not the URL of a store; one looks like: {_KNOWN}")
    if scheme == "memory":
        if rest.strip("/"):
            raise ConfigurationError("memory: takes nothing after it")
        from littleghost.sessions.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        return _sqlite(url)
    if scheme in ("postgresql", "postgres"):
        return _postgres(f"postgresql:{rest}", create=create)
    if scheme == "agentcore":
        return _agentcore(url)
    raise ConfigurationError(f"there is no store of the kind {scheme[:20]!r}; a URL looks like: {_KNOWN}")


def _sqlite(url: str) -> SessionStore:
    from littleghost.sessions.sqlite import SQLiteStore

    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigurationError("the sqlite: URL is malformed") from None
    if parts.netloc or not parts.path.startswith("/"):
        raise ConfigurationError(
            "a sqlite: URL has three slashes before a relative path, and four before an absolute one"
        )
    if parts.fragment:
        raise ConfigurationError("a # in the path of a sqlite: URL is written %23")
    chosen = dict(options)
    if len(chosen) != len(options) or chosen.keys() - {"durability", *_LIMITS}:
        raise ConfigurationError(
            "a sqlite: URL takes these options, each once: durability, max_messages and max_size"
        )
    limits = _limits(chosen)
    return _limited(SQLiteStore(unquote(parts.path[1:]), **chosen), limits)  # type: ignore[arg-type] (checked there)


def _postgres(url: str, *, create: bool) -> SessionStore:
    from littleghost.sessions.postgres import PostgresStore
    from littleghost.sessions.postgres.urls import OPTIONS, check_url

    check_url(url)
    options = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    chosen = {name: value for name, value in options if name in OPTIONS or name in _LIMITS}
    others = [(name, value) for name, value in options if name not in chosen]
    if len(chosen) + len(others) != len(options):
        raise ConfigurationError("an option stands more than once in the postgresql: URL")
    limits = _limits(chosen)
    arguments: dict[str, Any] = {}
    for name, value in chosen.items():
        try:
            arguments[name] = OPTIONS[name](value)
        except (ValueError, KeyError):
            raise ConfigurationError(
                f"the option {name} of the postgresql: URL has a value that makes no sense"
            ) from None
    if not create:
        arguments["create"] = False
    # The rest is the driver's, which must not see ours.
    dsn = url.partition("?")[0] + (f"?{urlencode(others)}" if others else "")
    return _limited(PostgresStore(dsn, **arguments), limits)


def _agentcore(url: str) -> SessionStore:
    from littleghost.sessions.agentcore import AgentCoreMemoryStore

    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigurationError("the agentcore: URL is malformed") from None
    if not parts.netloc or parts.path.strip("/") or parts.fragment or "@" in parts.netloc:
        raise ConfigurationError(
            "an agentcore: URL has the memory's id after two slashes, and nothing else but options: "
            "agentcore://memory-id?region=us-east-1. Credentials come from the environment, as everywhere in AWS."
        )
    chosen = dict(options)
    if len(chosen) != len(options) or chosen.keys() - {"region", "retention_days"} or "" in chosen.values():
        raise ConfigurationError(
            "an agentcore: URL takes these options, each once: region and retention_days"
        )
    days = chosen.get("retention_days")
    if days is not None and not (days.isascii() and days.isdigit() and int(days[:9]) > 0 and len(days) < 9):
        raise ConfigurationError("the option retention_days of the agentcore: URL must be a number of days")
    return AgentCoreMemoryStore(
        unquote(parts.netloc),
        region=chosen.get("region"),
        retention=None if days is None else int(days) * 86_400.0,
    )


_LIMITS = ("max_messages", "max_size")


def _limits(options: dict[str, str]) -> SessionLimits:
    """Take the limits out of ``options``, and return them."""
    values: dict[str, int | None] = {}
    for name in _LIMITS:
        text = options.pop(name, None)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) <= 1000 and int(text)):
            raise ConfigurationError(f"the option {name} of the URL must be a positive integer")
        values[name] = None if text is None else int(text)
    return SessionLimits(messages=values["max_messages"], size=values["max_size"])


def _limited(store: SessionStore, limits: SessionLimits) -> SessionStore:
    if limits != SessionLimits():
        store.limits = limits
    return store
