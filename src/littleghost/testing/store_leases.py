"""Clauses of the store kit: leases across processes, and writes that are made under one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from littleghost.errors import ConflictError, LeaseLostError, SessionBusyError
from littleghost.sessions.contract import Lease
from littleghost.testing.conformance import Clause, ClauseFailure, clause, expect
from littleghost.testing.store_bench import ACTOR, Bench, Subject, raises, refused, same, user

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []


# Holding


async def _busy(context: Any, what: str) -> None:
    try:
        async with context:
            raise ClauseFailure(what)
    except SessionBusyError:
        pass


@clause(CLAUSES, needs=("leases",))
async def a_lease_has_one_holder(bench: Bench) -> None:
    """A lease excludes others, in this store and in another, ends with its block, and has a token of its own."""
    async with bench.open() as store, bench.open() as second:
        others = (store, second) if bench.persistent else (store,)
        id, tokens = bench.id(), set[str]()
        for _ in range(3):
            async with store.store.lease(id, actor_id=ACTOR, timeout=0) as lease:
                tokens.add(lease.token)
                for other in others:
                    for timeout in (0, 0.05):
                        await _busy(
                            other.store.lease(id, actor_id=ACTOR, timeout=timeout), "two hold the lease"
                        )
                    async with (
                        other.store.lease(id, actor_id=bench.id("actor"), timeout=0),
                        other.store.lease(bench.id(), actor_id=ACTOR, timeout=0),
                    ):
                        pass
        same("number of tokens", 3, len(tokens))


@clause(CLAUSES, needs=("leases",))
async def a_lease_is_waited_for(bench: Bench) -> None:
    """Who waits for a lease gets it when it is free, and can be cancelled before."""
    async with bench.open() as store:
        id, got = bench.id(), list[int]()

        async def take(number: int) -> None:
            async with store.store.lease(id, actor_id=ACTOR, timeout=30):
                got.append(number)

        async with store.store.lease(id, actor_id=ACTOR):
            tasks = [asyncio.create_task(take(number)) for number in range(3)]
            await asyncio.sleep(0.05)
            tasks[1].cancel()
            await asyncio.sleep(0.01)
            same("holders while it is held", [], got)
        await asyncio.gather(tasks[0], tasks[2])
        same("later holders", [0, 2], sorted(got))


@clause(CLAUSES, needs=("leases",), timeout=120)
async def a_lease_ends_with_its_process(bench: Bench) -> None:
    """A lease held by another process excludes this one, until that process lets go or is killed."""
    id = bench.id()
    for killed in (True, False):
        async with bench.children({"task": "hold", "id": id}) as (child,), bench.open() as store:
            await child.expect("held")
            await _busy(store.store.lease(id, actor_id=ACTOR, timeout=0.1), "two processes hold the lease")
            if killed:
                await child.kill()
            else:
                child.go()
                await child.rest()
            async with store.store.lease(id, actor_id=ACTOR, timeout=10 if killed else 0):
                pass


# Writing under a lease


async def _lost(store: Subject, id: str, lease: Lease, whose: str, *, count: int) -> None:
    """Expect that no write of any kind passes under ``lease``."""
    tries: dict[str, Callable[[], Awaitable[object]]] = {
        "an append": lambda: store.append(id, user("x"), count=count, state={"x": 1}, lease=lease),
        "an append of state": lambda: store.append(id, count=count, state={"x": 1}, lease=lease),
        "a replace": lambda: store.replace(id, user("x"), state={"x": 1}, lease=lease),
    }
    for what, attempt in tries.items():
        await raises(LeaseLostError, attempt(), f"{what} under a lease {whose}")


@clause(CLAUSES, needs=("leases", "fencing"))
async def a_write_under_a_lease_is_a_write(bench: Bench) -> None:
    """Under a lease that is held, what is right is written and what is stale is refused, and who names no lease is asked for none."""
    async with bench.open() as store:
        id = bench.id()
        async with store.store.lease(id, actor_id=ACTOR) as lease:
            await store.append(id, user("a"), count=0, state={"v": 1}, lease=lease)
            await store.append(id, count=1, state={"v": 2}, lease=lease)
            await store.append(id, user("b"), count=1, lease=None)
            error = await refused(store.append(id, user("x"), count=1, lease=lease), "a stale append")
            expect(not isinstance(error, LeaseLostError), "a lease that is held was called lost")
            same("texts", ["a", "b"], await store.texts(id))
            await store.replace(id, user("c"), lease=lease)
            await store.append(id, user("d"), count=1)
        async with store.store.lease(id, actor_id=ACTOR) as lease:
            await store.append(id, user("e"), count=2, state={"v": 3}, lease=lease)
        same("texts", ["c", "d", "e"], await store.texts(id))
        same("state", {"v": 3}, (await store.get(id)).state)


@clause(CLAUSES, needs=("leases", "fencing"))
async def nothing_is_written_under_a_lease_that_has_ended(bench: Bench) -> None:
    """A write under a lease that is over is a LeaseLostError and changes nothing, whoever holds the session now."""
    async with bench.open() as store:
        id = bench.id()
        async with store.store.lease(id, actor_id=ACTOR) as old:
            pass
        await _lost(store, id, old, "that has ended", count=0)
        expect(await store.load(id) is None, "a write under a lease that has ended made the session")
        await store.append(id, user("a"), count=0, state={"v": 1})
        before = await store.get(id)
        await _lost(store, id, old, "that has ended", count=1)
        async with store.store.lease(id, actor_id=ACTOR) as lease:
            await _lost(store, id, old, "that is another's by now", count=1)
            same("session", before, await store.get(id))
            await store.append(id, user("b"), count=1, lease=lease)
        await _lost(store, id, lease, "that has ended", count=2)
        same("texts", ["a", "b"], await store.texts(id))


@clause(CLAUSES, needs=("leases", "fencing", "commit_ids", "revisions"))
async def what_was_written_under_a_lease_stays_written(bench: Bench) -> None:
    """A commit sent again when its lease is over gets its first answer: it was written, and is not refused afterwards."""
    async with bench.open() as store:
        for write in (partial(store.append, count=1), store.replace):
            id, name = bench.id(), "under-a-lease"
            before = await store.append(id, user("a"), count=0)
            options: dict[str, Any] = {"expected_revision": before.revision, "commit_id": name}
            async with store.store.lease(id, actor_id=ACTOR) as lease:
                done = await write(id, user("b"), lease=lease, **options)
            same("answer to it again", done, await write(id, user("b"), lease=lease, **options))
            await store.append(id, user("c"), count=done.count)
            same("and when another followed", done, await write(id, user("b"), lease=lease, **options))
            await refused(
                write(id, user("x"), lease=lease, **options), "other content under the id of a commit"
            )
            same("messages", done.count + 1, len(await store.texts(id)))


@clause(CLAUSES, needs=("leases", "fencing"))
async def a_lease_serves_its_own_session(bench: Bench) -> None:
    """The lease of another session, or of the same id under another actor, and one that was made up are no leases here."""
    async with bench.open() as store:
        id, other, actor = bench.id(), bench.id("other"), bench.id("actor")
        async with store.store.lease(id, actor_id=ACTOR) as lease:
            await _lost(store, other, lease, "of another session", count=0)
            expect(await store.load(other) is None, "the lease of another session served to make one")
            async with store.store.lease(other, actor_id=ACTOR):
                await _lost(store, other, lease, "of another session, with its own held", count=0)
            await raises(
                LeaseLostError,
                store.append(id, user("x"), count=0, actor=actor, lease=lease),
                "an append under the lease of another actor",
            )
            await _lost(store, id, Lease(token=bench.id("none")), "that was made up", count=0)
            await store.append(id, user("a"), count=0, lease=lease)
        same("texts", ["a"], await store.texts(id))


@clause(CLAUSES, needs=("leases", "fencing"))
async def a_lease_that_another_store_took_over_is_lost(bench: Bench) -> None:
    """With two stores on the same data, the one that held the session first cannot write under its old lease."""
    bench.need_persistence()
    async with bench.open() as one, bench.open() as two:
        id = bench.id()
        async with one.store.lease(id, actor_id=ACTOR) as old:
            await one.append(id, user("a"), count=0, lease=old)
        async with two.store.lease(id, actor_id=ACTOR) as lease:
            await _lost(one, id, old, "that another store took over", count=1)
            await two.append(id, user("b"), count=1, lease=lease)
            await _lost(one, id, old, "that another store took over", count=2)
        async with one.store.lease(id, actor_id=ACTOR) as again:
            await one.append(id, user("c"), count=2, lease=again)
            await _lost(two, id, lease, "that the first store took back", count=3)
        same("texts", ["a", "b", "c"], await two.texts(id))


@clause(CLAUSES, needs=("leases", "fencing"), timeout=120)
async def a_lease_that_another_process_took_over_is_lost(bench: Bench) -> None:
    """A process that held the session and comes back late writes nothing under its old lease."""
    id = bench.id()
    async with bench.children({"task": "late", "id": id}) as (child,), bench.open() as store:
        await child.expect("let go")
        async with store.store.lease(id, actor_id=ACTOR, timeout=10) as lease:
            child.go()
            same("what became of the late write", ["lost"], await child.rest())
            same("texts", ["early"], await store.texts(id))
            await store.append(id, user("mine"), count=1, lease=lease)
        same("texts", ["early", "mine"], await store.texts(id))


@clause(CLAUSES, needs=("leases", "fencing"))
async def many_holders_in_turn_write_in_turn(bench: Bench) -> None:
    """Tasks that each hold the session for two writes are never refused, and nobody's writes come between."""
    async with bench.open() as one, bench.open() as two:
        id, stores = bench.id(), (one, two) if bench.persistent else (one, one)
        await one.append(id, count=0)

        async def work(number: int) -> None:
            store = stores[number % 2]
            async with store.store.lease(id, actor_id=ACTOR, timeout=30) as lease:
                for _ in range(2):
                    count = (await store.get(id)).count
                    try:
                        await store.append(id, user(str(number)), count=count, lease=lease)
                    except ConflictError as error:
                        raise ClauseFailure(f"a holder's write was refused: {error}") from error
                    await asyncio.sleep(0.001)

        await asyncio.gather(*map(work, range(8)))
        texts = await one.texts(id)
        same("pairs", texts[::2], texts[1::2])
        same("holders", sorted(map(str, range(8))), sorted(texts[::2]))
