"""The conformance kit for session stores: the contract, clause by clause.

Three lines for a store of your own, in any test or script::

    from littleghost.testing import check_store
    report = await check_store(lambda: MyStore("folder"))
    report.raise_for_failures()

A clause that does not end in time has failed, and after three of those the rest is not tried. Code that blocks the event loop, as
`time.sleep` does, cannot be stopped.

Clauses that need what a store does not name in its ``capabilities`` are skipped and say so. Where the factory makes stores that share their
data, clauses with two stores run too; where another process can call it as well (a function or class of a module, also in a
`functools.partial`, or ``importable``), so do those with real processes, which race and are killed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from littleghost.errors import ConfigurationError
from littleghost.sessions.opening import open_store
from littleghost.testing import (
    store_leases,
    store_lists,
    store_offers,
    store_service,
    store_values,
    store_volume,
    store_writers,
)
from littleghost.testing.conformance import Clause, Report, run_clauses
from littleghost.testing.store_bench import Bench, Factory

__all__ = ["STORE_CLAUSES", "check_store", "store_bench", "store_clauses"]

SECONDS = 10.0

STORE_CLAUSES: tuple[Clause, ...] = (
    *store_values.CLAUSES,
    *store_writers.CLAUSES,
    *store_offers.CLAUSES,
    *store_leases.CLAUSES,
    *store_volume.CLAUSES,
    *store_lists.CLAUSES,
    *store_service.CLAUSES,
)
"""Every clause of the contract, in the order in which they are tried."""


def store_clauses() -> tuple[Clause, ...]:
    """Return the clauses, for a test runner that shows each by itself: ``await clause.run(bench)``, see `store_bench`."""
    return STORE_CLAUSES


async def store_bench(
    make_store: Factory | str,
    *,
    persistent: bool | None = None,
    importable: str | None = None,
    seconds: float = SECONDS,
) -> Bench:
    """Return what a clause is run with; for the arguments and errors see `check_store`."""
    factory = partial(open_store, make_store) if isinstance(make_store, str) else make_store
    return await Bench.of(factory, persistent=persistent, importable=importable, seconds=seconds)


async def check_store(
    make_store: Factory | str,
    *,
    persistent: bool | None = None,
    importable: str | None = None,
    only: Iterable[str] | str | None = None,
    seconds: float = SECONDS,
) -> Report:
    """Try every clause of the contract on a store, and report which hold.

    The kit makes sessions with new ids and leaves them behind, so give it a store that is for tests. Others may be in it, and others may
    write to it meanwhile. To see sessions expire it restores some as of the years 1970 to 1972, and lets all expire that are as old.

    Args:
        make_store: Makes a store; called once or more for each clause. Or a URL for `open_store`.
        persistent: Whether two stores made by it share their data; found out unless given. Give ``True`` to have a store that forgets
            fail rather than skip.
        importable: ``module:function``, by which another process makes the store.
        only: Names of clauses, where not all are wanted.
        seconds: How long a clause may take; one that starts other processes gets two or three times as much.

    Returns:
        A `Report`: ``ok``, ``passed``, ``failed``, ``skipped``; as text it names each clause that failed or was skipped, and why.

    Raises:
        ConfigurationError: What was given makes no store, or none in another process, or ``only`` names no clause.
    """
    chosen = _chosen(only)
    bench = await store_bench(make_store, persistent=persistent, importable=importable, seconds=seconds)
    return await run_clauses(chosen, bench, bench.capabilities, subject=bench.subject, seconds=seconds)


def _chosen(only: Iterable[str] | str | None) -> tuple[Clause, ...]:
    if only is None:
        return STORE_CLAUSES
    wanted = {only} if isinstance(only, str) else set(only)
    if not wanted:
        raise ConfigurationError("only names no clause; leave it out to try all of them")
    known = [one.name for one in STORE_CLAUSES]
    if unknown := sorted(wanted.difference(known)):
        raise ConfigurationError(
            f"there is no clause {', '.join(map(repr, unknown))}; the clauses are: {', '.join(known)}"
        )
    return tuple(one for one in STORE_CLAUSES if one.name in wanted)
