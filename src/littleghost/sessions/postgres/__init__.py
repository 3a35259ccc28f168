"""Sessions in PostgreSQL, for many machines."""

from littleghost.sessions.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
