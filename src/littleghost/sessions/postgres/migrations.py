"""Making the tables, and bringing them up to date.

Each step is one transaction, under a lock that ends with it: of any number of processes that start at the same moment, one does it, and
the others find it done. A transaction leaves a step done or not begun, whatever happens; nothing in it runs outside of one.
"""

from __future__ import annotations

from typing import Any

from littleghost.errors import FormatError, StoreUnavailableError
from littleghost.sessions.postgres import statements as sql
from littleghost.sessions.postgres.statements import VERSION, Statements

__all__ = ["migrate", "prepare"]


async def prepare(connection: Any, statements: Statements, *, create: bool) -> None:
    """See that the tables are there; make them, or bring them up to date, where they are not. Where they are, only reads.

    Args:
        connection: A connection.
        statements: Which tables.
        create: ``False`` only reads in any case.

    Raises:
        FormatError: They are of a newer version, or of an older one and not to be changed.
        StoreUnavailableError: They are not there, and not to be made.
        asyncpg.PostgresError: It cannot be done.
    """
    found = await version(connection, statements)
    if found == VERSION:
        return
    if create:
        await migrate(connection, statements)
    elif found == 0:
        raise StoreUnavailableError(
            f"PostgreSQL: there is no store in schema {statements.schema!r} with prefix {statements.prefix!r}; look at the database, "
            "schema and table_prefix of the URL, or let one with create=True make it",
            code=None,
        )
    else:
        raise FormatError(
            f"PostgreSQL: the tables have format {found}, this library works on {VERSION}, and create=False changes nothing; "
            "use the version that made them, or back up and let a store with create=True bring them up to date",
            found=found,
            supported=VERSION,
        )


async def version(connection: Any, statements: Statements) -> int:
    """Return the version of the tables, 0 where there are none.

    Raises:
        FormatError: It is newer than what this library knows.
    """
    if not await connection.fetchval(statements.text(sql.HAS_FORMAT)):
        return 0
    found = await connection.fetchval(statements.text(sql.FORMAT))
    if not isinstance(found, int) or not 1 <= found <= VERSION:
        raise FormatError(
            f"PostgreSQL: the tables have format {found}, and this version of the library reads up to {VERSION}; use a newer one",
            found=found,
            supported=VERSION,
        )
    return found


async def migrate(connection: Any, statements: Statements) -> None:
    """Do every step that was not done yet."""
    while True:
        async with connection.transaction():
            await connection.execute(statements.lock)
            done = await version(connection, statements)
            if done == VERSION:
                return
            if not await connection.fetchval(statements.text(sql.HAS_SCHEMA)):
                await connection.execute(statements.text(sql.CREATE_SCHEMA))
            for statement in statements.step(done + 1):
                await connection.execute(statement)
