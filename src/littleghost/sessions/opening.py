"""A store by its URL."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from littleghost.errors import ConfigurationError, UnsupportedError
from littleghost.sessions.contract import SessionStore

__all__ = ["open_store"]

_KNOWN = "memory:, sqlite:///relative.db, sqlite:////absolute.db"
_LATER = {"postgresql", "postgres", "agentcore"}


def open_store(url: str) -> SessionStore:
    """Return the store that ``url`` names. Nothing is opened yet; the store does that when it is first used.

    Args:
        url: ``memory:``, or ``sqlite:///relative.db``, or ``sqlite:////absolute.db``, the path percent-encoded where it has to be.
            ``?durability=normal`` sets that of `SQLiteStore`.

    Raises:
        ConfigurationError: The URL is malformed, or of a kind that is unknown. It is not repeated, for it may hold a password.
        UnsupportedError: The store is not part of this version.
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
    if scheme in _LATER:
        raise UnsupportedError(
            f"{scheme}: stores are not available in this version of littleghost", operation="open_store"
        )
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
    if len(chosen) != len(options) or chosen.keys() - {"durability"}:
        raise ConfigurationError("a sqlite: URL takes one option, once: durability")
    return SQLiteStore(unquote(parts.path[1:]), **chosen)  # type: ignore[arg-type] (checked there)
