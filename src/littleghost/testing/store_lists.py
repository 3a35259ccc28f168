"""Clauses of the store kit: lists of sessions, by id and by time, of one actor and of all, and what the lists say."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, cast

from littleghost.errors import DataError
from littleghost.sessions.contract import ALL_ACTORS, SessionInfo, Statistics
from littleghost.testing.conformance import Clause, ClauseSkipped, clause, expect
from littleghost.testing.store_bench import Bench, Subject, raises, refused, same, short, user

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

MOMENT = 0.02
"""Seconds between two writes whose times must differ."""
SKEW = 600.0
"""Seconds that the clock of a medium may differ from this one's. A time zone is more."""
TRIES = 5


def _ids(listed: Iterable[SessionInfo]) -> list[str]:
    return [info.id for info in listed]


def _keys(listed: Iterable[SessionInfo]) -> list[tuple[str | None, str]]:
    return [(info.actor_id, info.id) for info in listed]


def _updated(info: SessionInfo) -> float:
    expect(isinstance(info.updated_at, float), f"updated_at is {info.updated_at!r} and not a float")
    return cast("float", info.updated_at)


def _era() -> float:
    """Return a moment of the last century that nobody else uses, to the second."""
    return float(random.randrange(100_000_000, 900_000_000))  # noqa: S311 (no secret)


async def _write_each(store: Subject, actor: str | None, *ids: str) -> None:
    """Make sessions one after another, so that their times differ."""
    for id in ids:
        await store.append(id, user(id), count=0, actor=actor)
        await asyncio.sleep(MOMENT)


# By time


@clause(CLAUSES, needs=("sessions_by_time",))
async def a_list_tells_when_sessions_were_written(bench: Bench) -> None:
    """created_at is the first write and updated_at the last one that was accepted, of whatever kind; reading is none."""
    async with bench.open() as store:
        id, actor = bench.id(), bench.id("actor")
        began = time.time()
        await store.append(id, user("a"), count=0, actor=actor)
        first = await store.info(id, actor)
        expect(
            began - SKEW < _updated(first) < time.time() + SKEW,
            f"a session written now is said to have been written {_updated(first) - began:+.0f} seconds from now",
        )
        same("created_at and updated_at of a session written once", first.updated_at, first.created_at)
        last = first
        for what, write in (
            ("an append", lambda: store.append(id, user("b"), count=1, actor=actor)),
            ("an append of state", lambda: store.append(id, count=2, state={"v": 1}, actor=actor)),
            ("a replace", lambda: store.replace(id, user("c"), actor=actor)),
        ):
            await asyncio.sleep(MOMENT)
            await write()
            info = await store.info(id, actor)
            expect(_updated(info) > _updated(last), f"updated_at did not change with {what}")
            same(f"created_at after {what}", first.created_at, info.created_at)
            last = info
        await asyncio.sleep(MOMENT)
        await refused(store.append(id, user("x"), count=7, actor=actor), "a stale append")
        await store.get(id, actor)
        same("the line after a refused write and a read", last, await store.info(id, actor))


@clause(CLAUSES, needs=("sessions_by_time",))
async def what_was_written_last_comes_first(bench: Bench) -> None:
    """By time, the session of the last write is the first in the list, whatever was written, and in pages of any size."""
    async with bench.open() as store:
        actor = bench.id("actor")
        await _write_each(store, actor, *"dacbe")
        await store.append("a", count=1, state={"v": 1}, actor=actor)
        await asyncio.sleep(MOMENT)
        await store.replace("d", user("new"), actor=actor)
        await _write_each(store, bench.id("other"), "f")
        listed: list[SessionInfo] = []
        for limit in (1, 2, 3, 5, 100):
            listed = await store.listed(actor, limit=limit, order="updated")
            same(f"ids in pages of {limit}", ["d", "a", "e", "b", "c"], _ids(listed))
        times = [_updated(info) for info in listed]
        same("times", sorted(times, reverse=True), times)
        same("lines by time and by id", sorted(_ids(listed)), sorted(_ids(await store.listed(actor))))


@clause(CLAUSES, needs=("sessions_by_time",))
async def a_span_of_time_has_its_beginning_and_not_its_end(bench: Bench) -> None:
    """What is since a time includes it and what is until one does not: in both orders, in pages, and by either alone."""
    async with bench.open() as store:
        actor = bench.id("actor")
        await _write_each(store, actor, *"abcdef")
        at = {info.id: _updated(info) for info in await store.listed(actor)}
        spans: list[tuple[dict[str, float], str]] = [
            ({"since": at["b"]}, "bcdef"),
            ({"until": at["e"]}, "abcd"),
            ({"since": at["b"], "until": at["e"]}, "bcd"),
            ({"since": at["c"], "until": at["c"]}, ""),
            ({"since": at["e"], "until": at["b"]}, ""),
            ({"since": at["c"], "until": at["d"]}, "c"),
            ({"since": at["f"] + 1e-3}, ""),
            ({"until": at["a"]}, ""),
            ({"since": 0, "until": int(at["f"]) + 2}, "abcdef"),
            ({"since": float("-inf"), "until": float("inf")}, "abcdef"),
        ]
        for span, expected in spans:
            for limit in (2, 100):
                found = await store.listed(actor, limit=limit, order="updated", **span)
                same(f"ids by time, {span}, pages of {limit}", list(expected[::-1]), _ids(found))
                found = await store.listed(actor, limit=limit, **span)
                same(f"ids by id, {span}, pages of {limit}", list(expected), sorted(_ids(found)))
        for wrong in (float("nan"), "2020-01-01", True):
            for name in ("since", "until"):
                options: dict[str, Any] = {name: wrong}
                await raises(DataError, store.listed(actor, order="updated", **options), f"{name}={wrong!r}")
        order: Any = "size"
        await raises(DataError, store.listed(actor, order=order), "an order that there is none of")


@clause(CLAUSES, needs=("sessions_by_time", "restore"))
async def sessions_of_one_moment_are_listed_once(bench: Bench) -> None:
    """Where several were last written at the same time, a page may end between them, and none is left out or doubled."""
    async with bench.open() as store:
        actor, era = bench.id("actor"), _era()
        same_moment = ["b", "a", "B", "é", "c\0", "", "🦄"]
        for id in ("early", *same_moment, "late"):
            offset = {"early": -0.5, "late": 0.5}.get(id, 0.0)
            await store.restore(id, user(id), actor=actor, updated_at=era + offset)
        for limit in (1, 2, 3, 4, 9, 100):
            found = _ids(await store.listed(actor, limit=limit, order="updated"))
            same(f"first and last in pages of {limit}", ("late", "early"), (found[0], found[-1]))
            same(f"ids in pages of {limit}", sorted(same_moment), sorted(found[1:-1]))
            same(f"listed ids in pages of {limit}", len(same_moment) + 2, len(found))
        found = _ids(await store.listed(actor, limit=2, order="updated", since=era, until=era + 0.5))
        same("ids of that moment", sorted(same_moment), sorted(found))


@clause(CLAUSES, needs=("sessions_by_time",))
async def a_list_by_time_goes_on_while_sessions_are_written(bench: Bench) -> None:
    """Between two pages, what is written moves to the beginning, what is deleted is gone, and everything else is seen once."""
    async with bench.open() as store:
        actor = bench.id("actor")
        await _write_each(store, actor, *"abcdefgh")
        sessions: Any = store.store.sessions
        page = await sessions(actor_id=actor, limit=3, order="updated")
        same("the first page", ["h", "g", "f"], _ids(page.items))
        await _write_each(store, actor, "new")
        for id in "gd":  # one that was seen, and one that was not
            await store.append(id, user("again"), count=1, actor=actor)
            await asyncio.sleep(MOMENT)
        left = ["e", "c", "b", "a"]
        if store.can("delete"):
            for id in "fb":  # the last one of the page, and one to come
                await store.store.delete(id, actor_id=actor)
            left.remove("b")
        found = list[str]()
        while page.cursor is not None:
            page = await sessions(actor_id=actor, limit=2, order="updated", cursor=page.cursor)
            found += _ids(page.items)
            expect(len(found) < 20, "the cursor leads nowhere")
        same("the later pages", left, found)
        beginning = _ids(await store.listed(actor, order="updated"))[:3]
        same("the beginning of the list", ["d", "g", "new"], beginning)


@clause(CLAUSES, needs=("sessions",))
async def a_list_by_id_goes_on_while_sessions_are_written(bench: Bench) -> None:
    """A session that is there all the while is on exactly one page, whatever is written, made and deleted between the pages."""
    async with bench.open() as store:
        actor = bench.id("actor")
        ids = [f"{number:02}" for number in range(20)]
        for id in ids:
            await store.append(id, user("x"), count=0, actor=actor)
        found, gone, number = list[str](), set[str](), 0
        cursor: Any = None
        while True:
            page = await store.store.sessions(actor_id=actor, limit=3, cursor=cursor)
            found += _ids(page.items)
            cursor = page.cursor
            if cursor is None:
                break
            expect(len(found) < 100, "the cursor leads nowhere")
            if store.can("delete"):
                gone.add(found[-1])  # where the page ended
                await store.store.delete(found[-1], actor_id=actor)
            for id in {ids[0], ids[-1]} - gone:
                await store.append(id, count=1, state={"n": number}, actor=actor)
            for made in (f"{number:02}.made", f"!{number:02}"):
                await store.append(made, count=0, actor=actor)
            number += 1
        times = Counter(found)
        same(
            "sessions that were there all the while, and were not on exactly one page",
            [],
            [id for id in ids if times[id] != 1],
        )
        same("sessions on two pages", [], [id for id, count in times.items() if count > 1])


@clause(CLAUSES, needs=("sessions_by_time",))
async def a_cursor_of_another_list_is_refused(bench: Bench) -> None:
    """A cursor of the other order, of another actor's list, or of none is a DataError and shows nothing."""
    async with bench.open() as store:
        actor, other = bench.id("actor"), bench.id("other")
        for whose in (actor, other):
            await _write_each(store, whose, *"abc")
        by_id = (await store.store.sessions(actor_id=actor, limit=1)).cursor
        by_time = (await store.store.sessions(actor_id=actor, limit=1, order="updated")).cursor
        expect(
            isinstance(by_id, str) and isinstance(by_time, str),
            "a page of three with a limit of one leads on",
        )
        sessions: Any = store.store.sessions
        tries: dict[str, dict[str, Any]] = {
            "a cursor by time in a list by id": {"actor_id": actor, "cursor": by_time},
            "a cursor by id in a list by time": {"actor_id": actor, "cursor": by_id, "order": "updated"},
            "another actor's cursor by id": {"actor_id": other, "cursor": by_id},
            "another actor's cursor by time": {"actor_id": other, "cursor": by_time, "order": "updated"},
            "a text that is no cursor": {"actor_id": actor, "cursor": "nonsense"},
            "an empty cursor": {"actor_id": actor, "cursor": ""},
            "the JSON of something else": {"actor_id": actor, "cursor": '{"a": 1}'},
            "a number": {"actor_id": actor, "cursor": 1},
        }
        for what, options in tries.items():
            await raises(DataError, sessions(limit=1, **options), f"{what}, as a cursor,")
        same(
            "the page after the first",
            ["b"],
            _ids((await sessions(actor_id=actor, limit=1, cursor=by_id)).items),
        )


# Of everybody


def _everybody(store: Subject, mark: str) -> list[str | None]:
    """Return actors whose keys would be near each other, nobody among them where the store knows nobody."""
    named = [mark, mark + "a", mark + ":", mark + "-", "-" + mark, ":" + mark, mark + "é", mark + "\0"]
    return [*named, None] if store.can("anonymous_actor") else [*named]


@clause(CLAUSES, needs=("sessions", "all_actors"))
async def everybodys_sessions_are_listed_once(bench: Bench) -> None:
    """Of all actors, nobody included, every session is on exactly one page and says whose it is; the list of one has no other's."""
    async with bench.open() as store:
        mark = bench.id("actor")
        actors = _everybody(store, mark)
        mine = [(actor, id) for actor in actors for id in (mark + "a", mark + "b", mark + ":", mark + "-")]
        for number, (actor, id) in enumerate(random.sample(mine, len(mine))):
            await store.append(id, *[user("x")] * (number % 3), count=0, actor=actor)
        for limit in (1000, 37):
            listed = await store.listed(ALL_ACTORS, limit=limit)
            times = Counter(_keys(listed))
            same(f"sessions listed twice in pages of {limit}", [], [key for key in times if times[key] > 1])
            same(f"sessions left out of pages of {limit}", [], [key for key in mine if key not in times])
        lines = {(info.actor_id, info.id): info for info in listed}
        for actor, id in mine:
            snapshot = await store.get(id, actor)
            line = lines[actor, id]
            same("count and revision", (snapshot.count, snapshot.revision), (line.count, line.revision))
        for actor in actors:
            keys = _keys(await store.listed(actor))
            same("actors in the list of one", {actor}, {whose for whose, _ in keys})
            same(
                f"sessions in the list of {short(actor)}",
                sorted(id for whose, id in mine if whose == actor),
                sorted(id for _, id in keys if mark in id),
            )
        for named in ("all actors", "ALL_ACTORS", "*"):
            same(
                f"sessions of an actor called {named}",
                [],
                [key for key in _keys(await store.listed(named)) if key in mine],
            )


@clause(CLAUSES, needs=("sessions_by_time", "all_actors"))
async def everybodys_sessions_are_listed_by_time(bench: Bench) -> None:
    """By time, the sessions of all actors are one list, in which actors and pages do not matter."""
    async with bench.open() as store:
        mark = bench.id("actor")
        actors = _everybody(store, mark)
        order = [(actor, id) for id in (mark + "1", mark + "2") for actor in actors]
        for actor, id in order:
            await store.append(id, user("x"), count=0, actor=actor)
            await asyncio.sleep(MOMENT)
        first = _updated(await store.info(order[0][1], order[0][0]))
        for limit in (1, 4, 1000):
            found = _keys(await store.listed(ALL_ACTORS, limit=limit, order="updated", since=first))
            same(f"sessions in pages of {limit}", order[::-1], [key for key in found if key in order])
        if store.can("restore"):
            era = _era()
            for actor in actors:
                await store.restore(mark + "r", actor=actor, updated_at=era)
            for limit in (1, 2, 1000):
                span: dict[str, Any] = {"limit": limit, "since": era, "until": era + 1}
                for by in ("updated", "id"):
                    found = _keys(await store.listed(ALL_ACTORS, order=by, **span))
                    times = Counter(key for key in found if key[1] == mark + "r")
                    same(
                        f"how often each is listed in pages of {limit}, order {by}",
                        dict.fromkeys(((actor, mark + "r") for actor in actors), 1),
                        dict(times),
                    )


@clause(CLAUSES, needs=("sessions",))
async def metadata_in_a_list_are_those_of_the_session(bench: Bench) -> None:
    """Where a list tells metadata, they are those that the session has now, and the caller's own."""
    async with bench.open() as store:
        id, actor = bench.id(), bench.id("actor")
        await store.append(id, user("a"), count=0, metadata={"title": "first\0é"}, actor=actor)
        told = (await store.info(id, actor)).metadata
        if told is None:
            return
        same("metadata", {"title": "first\0é"}, told)
        told["title"] = "mine"
        await store.append(id, count=1, metadata={"title": "second"}, actor=actor)
        same("metadata after a commit", {"title": "second"}, (await store.info(id, actor)).metadata)
        await store.append(id, count=1, actor=actor)
        same("metadata that were taken away", {}, (await store.info(id, actor)).metadata)


# Figures


@clause(CLAUSES, needs=("sessions", "statistics"))
async def a_size_is_that_of_what_is_stored(bench: Bench) -> None:
    """The size of a session is that of its messages, state and metadata as JSON in bytes, and not of what was stored before."""
    async with bench.open() as store:
        id, actor = bench.id(), bench.id("actor")

        async def size() -> int:
            found = (await store.info(id, actor)).size
            expect(isinstance(found, int), f"the size is {found!r} and no number of bytes")
            return cast("int", found)

        async def grows(least: int, what: str) -> None:
            nonlocal now
            before, now = now, await size()
            expect(
                least <= now - before <= least + 200,
                f"{what} of {least} bytes made the size {now - before} bytes larger",
            )

        now = 0
        await store.append(id, count=0, actor=actor)
        await grows(0, "an empty session")
        await store.append(id, user("é" * 10_000), count=0, actor=actor)
        await grows(20_000, "a message")
        await store.append(id, user("x" * 3_000), count=1, state={"s": "y" * 5_000}, actor=actor)
        await grows(8_000, "a message and a state")
        await store.append(id, count=2, state={"s": "y" * 5_000}, metadata={"m": "z" * 700}, actor=actor)
        await grows(700, "metadata")
        for _ in range(3):
            await store.append(id, count=2, state={"s": "z" * 5_000}, metadata={"m": "z" * 700}, actor=actor)
        same("size after the same again and again", now, await size())
        await store.append(id, count=2, actor=actor)
        now = await size()
        expect(23_000 <= now <= 23_400, f"without its state and metadata the session has {now} bytes")
        now = 0
        await store.replace(id, user("x" * 900), actor=actor)
        await grows(900, "what was replaced by a message")


def _sums(listed: Iterable[SessionInfo]) -> Statistics:
    found = list(listed)
    times = [_updated(info) for info in found]
    return Statistics(
        sessions=len(found),
        messages=sum(info.count for info in found),
        size=sum(info.size or 0 for info in found),
        oldest_at=min(times, default=None),
        newest_at=max(times, default=None),
    )


@clause(CLAUSES, needs=("sessions_by_time", "statistics"))
async def statistics_are_the_sums_of_a_list(bench: Bench) -> None:
    """The figures of an actor are the sums over the list of its sessions, after every kind of write, and zero where there is none."""
    async with bench.open() as store:
        actor, other = bench.id("actor"), bench.id("other")

        async def check(what: str) -> Statistics:
            found = await store.store.statistics(actor_id=actor)
            same(f"figures after {what}", _sums(await store.listed(actor)), found)
            return found

        nothing = Statistics(sessions=0, messages=0, size=0)
        same("figures of an actor without sessions", nothing, await check("nothing"))
        await _write_each(store, actor, *"abc")
        await _write_each(store, other, *"abcd")
        found = await check("three sessions")
        same("sessions and messages", (3, 3), (found.sessions, found.messages))
        await store.append("a", *map(user, "xyz"), count=1, state={"v": "long" * 100}, actor=actor)
        await check("an append")
        await store.append("b", count=1, metadata={"v": 1}, actor=actor)
        await check("an append of metadata")
        await store.replace("a", user("x"), actor=actor)
        same("messages after a replace", 3, (await check("a replace")).messages)
        await refused(store.append("a", user("x" * 999), count=7, actor=actor), "a stale append")
        await check("a refused append")
        if store.can("fork"):
            await store.store.fork("b", "d", actor_id=actor)
            await check("a fork")
            await store.append("d", user("e"), count=1, actor=actor)
        if store.can("restore"):
            await store.restore("r", user("e"), actor=actor, updated_at=_era())
            await check("a restored session")
        if store.can("delete"):
            for id in "abc":
                await store.store.delete(id, actor_id=actor)
                await check("a delete")


@clause(CLAUSES, needs=("sessions_by_time", "all_actors", "statistics"))
async def statistics_of_everybody_are_the_sums_of_all(bench: Bench) -> None:
    """The figures of all actors are the sums over the list of all, which is also what is told where nobody is named."""
    async with bench.open() as store:
        mark = bench.id("actor")
        for number, actor in enumerate(_everybody(store, mark)):
            await store.append(mark, *[user("x" * 100)] * number, count=0, actor=actor)
        for _ in range(TRIES):
            listed = await store.listed(ALL_ACTORS)
            found = await store.store.statistics(actor_id=ALL_ACTORS)
            unnamed = await store.store.statistics()
            if listed == await store.listed(ALL_ACTORS):
                same("figures of all actors", _sums(listed), found)
                same("figures where nobody is named", _sums(listed), unnamed)
                return
        raise ClauseSkipped("others write to this store all the while")
