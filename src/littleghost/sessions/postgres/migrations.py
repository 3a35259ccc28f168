"""Making the tables, and bringing them up to date.

Each step is one transaction, under a lock that ends with it: of any number of processes that start at the same moment, one does it, and
the others find it done. A transaction leaves a step done or not begun, whatever happens; nothing in it runs outside of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from littleghost.errors import FormatError, StoreUnavailableError
from littleghost.sessions.postgres import statements as sql
from littleghost.sessions.postgres.statements import VERSION, Statements

__all__ = ["migrate", "prepare"]


Patience = Callable[[], float]
"""How many seconds the next statement may take."""


async def prepare(connection: Any, statements: Statements, patience: Patience, *, create: bool) -> None:
    """See that the tables are there; make them, or bring them up to date, where they are not. Where they are, only reads.

    Args:
        connection: A connection.
        statements: Which tables.
        patience: How long each statement may take, for somebody may hold a lock on the tables.
        create: ``False`` only reads in any case.

    Raises:
        FormatError: They are of a newer version, or of an older one and not to be changed.
        StoreUnavailableError: They are not there, and not to be made.
        TimeoutError: A statement took longer than it may.
        asyncpg.PostgresError: It cannot be done.
    """
    found = await version(connection, statements, patience)
    if found == VERSION:
        return
    if create:
        await migrate(connection, statements, patience)
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


async def version(connection: Any, statements: Statements, patience: Patience) -> int:
    """Return the version of the tables, 0 where there are none.

    Raises:
        FormatError: It is newer than what this library knows.
    """
    if not await connection.fetchval(statements.text(sql.HAS_FORMAT), timeout=patience()):
        return 0
    found = await connection.fetchval(statements.text(sql.FORMAT), timeout=patience())
    if not isinstance(found, int) or not 1 <= found <= VERSION:
        raise FormatError(
            f"PostgreSQL: the tables have format {found}, and this version of the library reads up to {VERSION}; use a newer one",
            found=found,
            supported=VERSION,
        )
    return found


async def migrate(connection: Any, statements: Statements, patience: Patience) -> None:
    """Do every step that was not done yet. After an error the connection may be within a transaction, and is to be closed."""

    async def do(statement: str) -> None:
        await connection.execute(statement, timeout=patience())

    found = 0
    while found < VERSION:
        # Whatever the server does by default: who waited for the lock has to see what was done under it.
        await do("BEGIN ISOLATION LEVEL READ COMMITTED")
        await do(statements.lock)
        found = await version(connection, statements, patience)
        if found < VERSION:
            schema = statements.text(sql.HAS_SCHEMA)
            if not await connection.fetchval(schema, timeout=patience()):
                await do(statements.text(sql.CREATE_SCHEMA))
            found += 1
            for statement in statements.step(found):
                await do(statement)
        await do("COMMIT")
