"""Which store a command works on."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

from littleghost import ConfigurationError, SessionNotFoundError, SessionStore, SQLiteStore, open_store

__all__ = ["closing", "default_path", "existing_store", "lasting", "store_at"]

_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


def default_path() -> Path:
    """Return the file that sessions are kept in where nothing else was said.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/
    """
    if sys.platform == "win32":
        given, otherwise = os.environ.get("LOCALAPPDATA", ""), Path.home() / "AppData" / "Local"
    else:
        given, otherwise = os.environ.get("XDG_DATA_HOME", ""), Path.home() / ".local" / "share"
    return (Path(given) if Path(given).is_absolute() else otherwise) / "littleghost" / "sessions.db"


def store_at(url: str | None) -> SessionStore:
    """Return the store with the URL ``url``, or the user's own, in a folder that nobody else may read."""
    if url is not None:
        return open_store(_checked(url))
    path = default_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"the folder {path.parent} cannot be made ({error.strerror}); choose a place with --store"
        ) from error
    return SQLiteStore(path)


def existing_store(url: str | None) -> SessionStore:
    """Return the store, and do not make one only to look into it.

    Raises:
        ConfigurationError: It is one in memory.
        SessionNotFoundError: There is none; that of a server says so when it is first used.
    """
    url = lasting(url)
    store = SQLiteStore(default_path()) if url is None else open_store(_checked(url), create=False)
    if isinstance(store, SQLiteStore) and _missing(store.path):
        what = (
            "name another with --store URL, or set LITTLEGHOST_STORE"
            if url is None
            else "correct the path in its URL"
        )
        raise SessionNotFoundError(f"there is no store at {store.path}; {what}")
    return store


def lasting(url: str | None) -> str | None:
    """Return ``url``, unless what it names begins and ends with this program.

    Raises:
        ConfigurationError: It does.
    """
    if url is not None and url.lower().startswith("memory:"):
        raise ConfigurationError(
            "memory: is empty when a command begins, and gone when it ends; name a store that lasts, such as sqlite:///FILE"
        )
    return url


def _missing(path: str) -> bool:
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # something is in the way: the store finds out what, and says so
        return False
    return False


def _checked(url: str) -> str:
    """Return ``url`` unless it is a path.

    Raises:
        ConfigurationError: It is, and can be repeated, for a password is no part of it.
    """
    if (":" in url and not _DRIVE.match(url)) or set(url) & {"@", "?"} or not url:
        return url
    meant = f"sqlite:///{quote(url, safe='/:')}".replace("%5C", "/")
    raise ConfigurationError(f"{url} is a path, and a store is named by a URL; did you mean {meant}?")


@asynccontextmanager
async def closing(store: SessionStore) -> AsyncGenerator[SessionStore]:
    """Return the store, and close it after the block."""
    try:
        yield store
    finally:
        await store.aclose()
