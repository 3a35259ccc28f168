"""Clauses of the store kit: holding a session in one process, and what a store may offer beyond reading and writing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from littleghost.content import ToolResult, ToolUse
from littleghost.errors import DataError, SessionBusyError, SessionNotFoundError, StoreError
from littleghost.message import Message
from littleghost.testing.conformance import Clause, ClauseFailure, clause, expect
from littleghost.testing.store_bench import ACTOR, Bench, refused, same, user

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []


# One holder at a time


@clause(CLAUSES)
async def synchronize_excludes(bench: Bench) -> None:
    """One task holds a key, the others come one after another in their order; other keys are free."""
    async with bench.open() as store:
        id = bench.id()
        inside, order = 0, list[int]()

        async def hold(number: int) -> None:
            nonlocal inside
            async with store.store.synchronize(id, actor_id=ACTOR):
                inside += 1
                expect(inside == 1, "two hold the same session")
                await asyncio.sleep(0.001)
                order.append(number)
                inside -= 1

        tasks: list[asyncio.Task[None]] = []
        for number in range(12):
            tasks.append(asyncio.create_task(hold(number)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        same("order", list(range(12)), order)
        async with (
            store.store.synchronize(id, actor_id=ACTOR),
            asyncio.timeout(5),
            store.store.synchronize(id, actor_id=bench.id("actor")),
            store.store.synchronize(bench.id(), actor_id=ACTOR),
        ):
            pass


@clause(CLAUSES)
async def synchronize_can_be_given_up(bench: Bench) -> None:
    """Waiting ends with a cancellation or in time, an error inside lets go, and nothing is left behind."""
    async with bench.open() as store:
        id = bench.id()

        def hold(timeout: float | None = None) -> Any:
            return store.store.synchronize(id, actor_id=ACTOR, timeout=timeout)

        async def enter() -> None:
            async with hold():
                pass

        async with hold():
            for timeout in (0, 0.02):
                try:
                    async with hold(timeout):
                        raise ClauseFailure("two hold the same session")
                except SessionBusyError:
                    pass
            waiting = [asyncio.create_task(enter()) for _ in range(3)]
            await asyncio.sleep(0.01)
            waiting[1].cancel()
        await asyncio.gather(waiting[0], waiting[2])
        expect(waiting[1].cancelled(), "a waiter could not be cancelled")
        with suppress(ZeroDivisionError):
            async with hold():
                raise ZeroDivisionError
        async with asyncio.timeout(5), hold(0):
            pass
        same("keys that are still kept", 0, len(store.store._locks()))  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001


# The rest of what a store can offer


@clause(CLAUSES, needs=("sessions",))
async def sessions_are_listed_by_actor_and_page(bench: Bench) -> None:
    """Each session of an actor is on exactly one page, with its count, and nobody else's is."""
    async with bench.open() as store:
        actor, other = bench.id("actor"), bench.id("other")
        ids = ["", "a", "b", "B", "é", "e\u0301", "a\0b", "🦄", *(f"{number}" for number in range(30))]
        for number, id in enumerate(random.sample(ids, len(ids))):
            await store.append(id, *[user("x")] * (number % 3), count=0, actor=actor)
        await store.append("other", count=0, actor=other)
        for limit in (1, 7, len(ids), 1000):
            found, pages = list[str](), 0
            cursor: Any = None
            while True:
                page = await store.store.sessions(actor_id=actor, limit=limit, cursor=cursor)
                expect(len(page.items) <= limit, f"a page of {len(page.items)} where the limit is {limit}")
                found += [item.id for item in page.items]
                expect(
                    all(item.actor_id == actor for item in page.items),
                    "a session of another actor was listed",
                )
                cursor, pages = page.cursor, pages + 1
                if cursor is None:
                    break
                expect(pages <= len(ids) and isinstance(cursor, str), "the cursor leads nowhere")
            same("listed ids", sorted(ids), sorted(found))
        for item in (await store.store.sessions(actor_id=actor, limit=1000)).items:
            snapshot = await store.get(item.id, actor)
            same("count and revision", (snapshot.count, snapshot.revision), (item.count, item.revision))
        same("sessions of nobody", (), (await store.store.sessions(actor_id=bench.id("nobody"))).items)
        for limit in (0, -1):
            with suppress(DataError):
                await store.store.sessions(actor_id=actor, limit=limit)
                raise ClauseFailure(f"a limit of {limit} was accepted")


@clause(CLAUSES, needs=("tail",))
async def a_tail_is_the_end_of_the_history(bench: Bench) -> None:
    """Pages from the end backwards join to the whole history, whatever commits it came in."""
    async with bench.open() as store:
        id = bench.id()
        same("tail of nothing", ((), None), _page(await store.store.tail(id, limit=3, actor_id=ACTOR)))
        await store.append(id, *map(user, "xyz"), count=0)
        whole = ["replaced"]
        await store.replace(id, user("replaced"))
        for number in range(25):
            new = [f"{number}.{part}" for part in range(number % 4)]
            await store.append(id, *map(user, new), count=len(whole))
            whole += new
        total = len(whole)
        for limit in (1, 2, 5, total, total + 1):
            found: list[str] = []
            before: Any = None
            for _ in range(total + 1):
                page = await store.store.tail(id, limit=limit, before=before, actor_id=ACTOR)
                found = [message.text for message in page.items] + found
                before = page.cursor
                if before is None:
                    break
            same(f"joined pages of {limit}", whole, found)
        for before in (0, 1, 7, total, total + 5):
            page = await store.store.tail(id, limit=3, before=before, actor_id=ACTOR)
            end = min(before, total)
            same(
                f"page before {before}",
                whole[max(0, end - 3) : end],
                [message.text for message in page.items],
            )
        with suppress(DataError):
            await store.store.tail(id, limit=0, actor_id=ACTOR)
            raise ClauseFailure("a limit of 0 was accepted")


def _page(page: Any) -> tuple[Any, Any]:
    return tuple(page.items), page.cursor


@clause(CLAUSES, needs=("fork",))
async def a_fork_is_a_session_of_its_own(bench: Bench) -> None:
    """A fork has the first messages, the state and the metadata; what is done to one is not done to the other."""
    async with bench.open() as store:
        id, new = bench.id(), bench.id("fork")
        await store.append(id, *map(user, "abc"), count=0, state={"v": 1}, metadata={"m": 1})
        same("count of the fork", 2, (await store.store.fork(id, new, at=2, actor_id=ACTOR)).count)
        snapshot = await store.get(new)
        same(
            "fork",
            (["a", "b"], {"v": 1}, {"m": 1}),
            (await store.texts(new), snapshot.state, snapshot.metadata),
        )
        await store.append(new, user("new"), count=2)
        await store.append(id, user("old"), count=3)
        same(
            "texts",
            (["a", "b", "new"], ["a", "b", "c", "old"]),
            (await store.texts(new), await store.texts(id)),
        )
        whole = bench.id("whole")
        await store.store.fork(id, whole, actor_id=ACTOR)
        same("texts of a whole fork", ["a", "b", "c", "old"], await store.texts(whole))
        await refused(store.store.fork(id, new, actor_id=ACTOR), "a fork onto a session that exists")
        try:
            await store.store.fork(bench.id(), bench.id(), actor_id=ACTOR)
        except SessionNotFoundError:
            pass
        else:
            raise ClauseFailure("a session that does not exist was forked")


@clause(CLAUSES, needs=("fork",))
async def a_fork_parts_no_call_from_its_result(bench: Bench) -> None:
    """Fewer messages are kept where the cut would fall between a call and its result."""
    async with bench.open() as store:
        id = bench.id()
        call = Message.assistant([ToolUse(id="1", name="f"), ToolUse(id="2", name="f")])
        results = [Message.tool([ToolResult(tool_use_id=use, content="ok")]) for use in "21"]
        await store.append(id, user("a"), call, *results, Message.assistant("b"), count=0)
        for at, kept in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 5), (9, 5)):
            new = bench.id("fork")
            same(
                f"messages of a fork at {at}",
                kept,
                (await store.store.fork(id, new, at=at, actor_id=ACTOR)).count,
            )
            same("stored messages", kept, len((await store.get(new)).messages))


@clause(CLAUSES, needs=("delete",))
async def a_deleted_session_is_gone(bench: Bench) -> None:
    """Delete tells whether there was a session; nothing of it is left, and one can be made anew."""
    async with bench.open() as store:
        id, beside = bench.id(), bench.id("beside")
        expect(not await store.store.delete(id, actor_id=ACTOR), "a session that never was, was deleted")
        await store.append(beside, user("stays"), count=0)
        await store.append(id, user("a"), count=0, state={"v": 1}, metadata={"m": 1})
        await store.append(id, user("b"), count=1)
        expect(await store.store.delete(id, actor_id=ACTOR), "delete found nothing")
        expect(await store.load(id) is None, "a deleted session was loaded")
        expect(not await store.store.delete(id, actor_id=ACTOR), "a session was deleted twice")
        await refused(store.append(id, user("x"), count=2), "an append to a deleted session")
        await store.append(id, user("new"), count=0)
        snapshot = await store.get(id)
        same("the new texts", ["new"], await store.texts(id))
        expect(not snapshot.state and not snapshot.metadata, "state or metadata outlived the session")
        same("the session beside it", ["stays"], await store.texts(beside))


@clause(CLAUSES)
async def what_is_not_offered_is_refused(bench: Bench) -> None:
    """An operation that the store does not name in its capabilities is an UnsupportedError, and never a wrong answer."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, user("a"), count=0)
        tries: dict[str, Callable[[], Awaitable[object]]] = {
            "delete": lambda: store.store.delete(id, actor_id=ACTOR),
            "sessions": lambda: store.store.sessions(actor_id=ACTOR),
            "statistics": store.store.statistics,
            "expire": lambda: store.store.expire(expire_after=1e9, limit=1),
        }
        if not store.can("revisions"):
            tries["restore"] = lambda: store.restore(bench.id(), user("x"), updated_at=1e9)
        if not {"sessions", "all_actors"} <= store.store.capabilities:
            tries["verify"] = store.store.verify
        for name, attempt in tries.items():
            if not store.can(name):
                try:
                    await attempt()
                except (NotImplementedError, StoreError):
                    continue
                raise ClauseFailure(f"{name} is not among the capabilities, and answered")
        same("texts", ["a"], await store.texts(id))
