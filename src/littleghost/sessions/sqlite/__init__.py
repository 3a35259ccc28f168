"""Sessions in a SQLite file: the embedded default, safe for many processes of one machine."""

from littleghost.sessions.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
