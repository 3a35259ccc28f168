"""Leases: a row with a token and an end, which its holder moves on while it lives.

No transaction and no lock of the database is held meanwhile. What time it is says the server. Who died, or stands still, does not move
the end on, and another one takes over when it has passed. Who comes to itself then and still commits is refused, for each commit
under a lease looks for its token, and holds the row while it writes (``FOR SHARE``): between a takeover and what the new holder reads no
commit of the old one comes. Waiting is asking again: notifications do not pass a pooler.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

from littleghost.errors import StoreError
from littleghost.sessions.contract import Lease
from littleghost.sessions.postgres.connections import Pool, Pools
from littleghost.sessions.postgres.statements import Statements

__all__ = ["hold"]

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.4
BEATS: Final = 3
"""How often the end is moved on in the time that a lease has."""


@asynccontextmanager
async def hold(pools: Pools, name: bytes, ttl: float, timeout: float | None) -> AsyncGenerator[Lease]:
    """Hold the lease of the session ``name``.

    Args:
        pools: The connections.
        name: The session.
        ttl: How many seconds the lease outlives its holder.
        timeout: Seconds to wait; ``0`` does not wait, ``None`` waits for ever.

    Raises:
        TimeoutError: Others held it all that time.
    """
    pool, statements = pools.here(), pools.statements
    lease = Lease(token=secrets.token_hex(16))
    try:
        await _take(pool, statements, name, lease, ttl, timeout)
    except TimeoutError:
        raise
    except BaseException:
        pool.start(_give_back(pool, statements, name, lease))  # it may be ours all the same
        raise
    heart = asyncio.create_task(_beat(pool, statements, name, lease, ttl))
    try:
        yield lease
    finally:
        heart.cancel()
        await asyncio.shield(pool.start(_give_back(pool, statements, name, lease)))


async def _take(
    pool: Pool, statements: Statements, name: bytes, lease: Lease, ttl: float, timeout: float | None
) -> None:
    loop = asyncio.get_running_loop()
    ends = None if timeout is None else loop.time() + timeout
    pause = FIRST_PAUSE
    while not await pool.fetch(
        statements.take_lease, name, lease.token, ttl, repeat=True, name=name, writes=True
    ):
        if ends is not None:
            left = ends - loop.time()
            if left <= 0:
                raise TimeoutError
            pause = min(pause, left)
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
        pause = min(pause * 2, LONGEST_PAUSE)


async def _beat(pool: Pool, statements: Statements, name: bytes, lease: Lease, ttl: float) -> None:
    """Move the end on, until the lease is lost. A server that is away for a while is waited for: its clock goes on as well."""
    while not pool.closed:
        await asyncio.sleep(ttl / BEATS)
        with suppress(StoreError):
            if not await pool.fetch(statements.keep_lease, name, lease.token, ttl, repeat=True):
                return


async def _give_back(pool: Pool, statements: Statements, name: bytes, lease: Lease) -> None:
    # Where that fails, it ends by itself.
    with suppress(StoreError):
        await pool.fetch(statements.end_lease, name, lease.token, repeat=True, name=name, writes=True)
