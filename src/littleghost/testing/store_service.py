"""Clauses of the store kit: what an operator of a store relies on. Limits, restoring, expiring, and looking for damage."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from littleghost.content import Reasoning
from littleghost.errors import ConflictError, DataError, SessionTooLargeError
from littleghost.message import Message
from littleghost.sessions.contract import ALL_ACTORS
from littleghost.testing.conformance import Clause, ClauseFailure, ClauseSkipped, clause, expect
from littleghost.testing.store_bench import ACTOR, Bench, Subject, raises, refused, same, user

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

DAY = 86_400.0
SKEW = 600.0
TRIES = 5

Write = Callable[[], Awaitable[object]]


# Limits


async def _too_large(work: Awaitable[object], what: str) -> SessionTooLargeError:
    return await raises(SessionTooLargeError, work, what)


@clause(CLAUSES, needs=("limits",))
async def a_limit_of_messages_is_kept(bench: Bench) -> None:
    """As many messages as are allowed are stored, one more is a SessionTooLargeError that names the figures, and nothing is written."""
    async with bench.open() as store:
        five, six = [user(text) for text in "abcde"], [user(text) for text in "abcdef"]
        with store.limited(messages=5):
            for what, write in (("append", partial(store.append, count=0)), ("replace", store.replace)):
                id = bench.id()
                error = await _too_large(write(id, *six), f"a first {what} of 6 messages where 5 are allowed")
                same("limit, value and actual", ("messages", 5, 6), (error.limit, error.value, error.actual))
                expect(await store.load(id) is None, "a refused commit made the session")
                await write(id, *five[:3], Message.assistant([Reasoning(text="not stored")]), *five[3:])
                before = await store.get(id)
                await _too_large(store.append(id, user("x"), count=5, state={"v": 1}), "a sixth message")
                await _too_large(store.append(id, *six, count=5), "six more messages")
                await _too_large(store.replace(id, *six, state={"v": 1}), "a replace by 6 messages")
                same("session after what was refused", before, await store.get(id))
                await store.append(id, count=5, state={"v": 2})
                await store.replace(id, *reversed(five), state={"v": 3})
                same("texts", list("edcba"), await store.texts(id))
        await store.append(id, user("f"), count=5)
        if store.can("fork"):
            with store.limited(messages=5):
                new = bench.id("fork")
                await _too_large(store.store.fork(id, new, actor_id=ACTOR), "a fork of 6 messages")
                expect(await store.load(new) is None, "a refused fork made a session")
                await store.store.fork(id, new, at=5, actor_id=ACTOR)
        if store.can("restore"):
            with store.limited(messages=5):
                await _too_large(store.restore(bench.id(), *six), "a restored session of 6 messages")


@clause(CLAUSES, needs=("limits",))
async def a_limit_of_size_is_kept(bench: Bench) -> None:
    """So is the size, to the byte: messages, state and metadata count, whatever commits they came in, and state alone too."""
    async with bench.open() as store:
        parts: dict[str, Any] = {"state": {"s": "y" * 500}, "metadata": {"m": "z" * 300}}
        message = user("é" * 1_000)
        for what, write in (("append", partial(store.append, count=0)), ("replace", store.replace)):
            with store.limited(size=10):
                error = await _too_large(write(bench.id(), message, **parts), f"a first {what}")
            same("limit and value", ("size", 10), (error.limit, error.value))
            size = error.actual or 0
            expect(
                2_800 <= size <= 3_100,
                f"2,800 bytes in one message, state and metadata are said to be {size}",
            )
            id = bench.id()
            with store.limited(size=size - 1):
                await _too_large(write(id, message, **parts), f"a first {what} of one byte too many")
                expect(await store.load(id) is None, "a refused commit made the session")
            with store.limited(size=size):
                await write(id, message, **parts)
                before = await store.get(id)
                again = partial(store.append, id, count=1)
                tries: dict[str, Write] = {
                    "a message": partial(again, user("x"), **parts),
                    "a longer state": partial(again, **{**parts, "state": {"s": "y" * 501}}),
                    "longer metadata": partial(again, **{**parts, "metadata": {"m": "z" * 301}}),
                    "a replace by more": partial(store.replace, id, message, user("x"), **parts),
                }
                for more, attempt in tries.items():
                    error = await _too_large(attempt(), f"{more} in a session as large as is allowed")
                    expect(
                        (error.actual or 0) > size, f"{more} made the session {error.actual} bytes, of {size}"
                    )
                same("session after what was refused", before, await store.get(id))
                await store.append(id, count=1, state={"t": "y" * 500}, metadata=parts["metadata"])
                await store.append(id, count=1, **parts)
                await store.append(id, count=1, state={})
                await store.append(id, user("x"), count=1)
        with store.limited(size=50):
            await _too_large(store.append(bench.id(), count=0, state=parts["state"]), "a first state")
            await _too_large(store.append(bench.id(), count=0, metadata=parts["state"]), "first metadata")


@clause(CLAUSES, needs=("limits",))
async def a_session_beyond_a_limit_can_shrink(bench: Bench) -> None:
    """Where a session is larger than is allowed, what leaves it no larger than it was is written, and nothing else."""
    async with bench.open() as store:
        id = bench.id()
        large = {"s": "y" * 1_000}
        await store.append(id, *[user("a")] * 6, count=0)
        await store.append(id, *[user("b")] * 4, count=6, state=large)
        with store.limited(messages=3):
            await _too_large(store.append(id, user("x"), count=10), "an eleventh message where 3 are allowed")
            await _too_large(store.replace(id, *[user("x")] * 11), "a replace of 10 messages by 11")
            await store.append(id, count=10, state={"v": 1})
            for count in (10, 8, 8):
                await store.replace(id, *[user("c")] * count, state=large)
            await _too_large(store.replace(id, *[user("x")] * 9), "a replace of 8 messages by 9")
            await store.replace(id, user("summary"))
            await store.append(id, user("d"), user("e"), count=1, state=large)
            await _too_large(store.append(id, user("x"), count=3), "a fourth message")
            same("texts", ["summary", "d", "e"], await store.texts(id))
        with store.limited(size=100):
            await store.append(id, count=3, state=large)
            await _too_large(store.append(id, count=3, state={"s": "y" * 1_001}), "a longer state")
            await _too_large(store.append(id, user("x"), count=3, state=large), "a message")
            await store.append(id, user("x" * 500), count=3, state={"s": "y" * 300})
            await store.replace(id, user("x" * 300), state={"s": "y" * 300})
            await store.replace(id, user("end"))
            await store.append(id, count=1, state={"v": 1})
            await _too_large(store.append(id, count=1, state=large), "a state that is too large again")
        snapshot = await store.get(id)
        same("state and texts", ({"v": 1}, ["end"]), (snapshot.state, await store.texts(id)))


@clause(CLAUSES, needs=("limits", "commit_ids"))
async def a_repeated_commit_is_not_too_large(bench: Bench) -> None:
    """A commit that was stored gets its first answer again, also where the session has no room for it a second time, or by now."""
    async with bench.open() as store:
        with store.limited(messages=4):
            id = bench.id()
            first = partial(store.append, id, *map(user, "abc"), count=0, commit_id="first")
            answer = await first()
            last = partial(store.append, id, user("d"), count=3, commit_id="last")
            end = await last()
            same("answers", (answer, end), (await first(), await last()))
        with store.limited(messages=1, size=5):
            same("answers under smaller limits", (answer, end), (await first(), await last()))
            await refused(store.append(id, user("x"), count=3, commit_id="last"), "an id with other content")
        same("texts", list("abcd"), await store.texts(id))


@clause(CLAUSES, needs=("limits",))
async def limits_are_those_of_one_store(bench: Bench) -> None:
    """A store has no limits until they are set, they hold from then on until they are taken away, and for no other store."""
    async with bench.open() as store, bench.open() as other:
        id = bench.id()
        same("limits of a new store", (None, None), (store.store.limits.messages, store.store.limits.size))
        await store.append(id, *[user("a")] * 5, count=0)
        with store.limited(messages=5):
            await _too_large(store.append(id, user("x"), count=5), "a sixth message")
            if other.store is not store.store:
                await other.append(bench.id(), *[user("a")] * 6, count=0)
        await store.append(id, user("b"), count=5)


# Restoring


@clause(CLAUSES, needs=("restore", "sessions"))
async def what_is_restored_keeps_its_times(bench: Bench) -> None:
    """A restored session was written when it is said to have been, until it is written again; what is not said is now."""
    async with bench.open() as store:
        actor = bench.id("actor")
        times: dict[str, Any] = {"created_at": 1_000_000_000.25, "updated_at": 1_100_000_000.5}
        await store.restore("both", user("a"), actor=actor, **times)
        info = await store.info("both", actor)
        same("times", tuple(times.values()), (info.created_at, info.updated_at))
        began = time.time()
        await store.restore("none", user("a"), actor=actor)
        for name in times:
            at = getattr(await store.info("none", actor), name)
            expect(
                abs(at - began) < SKEW,
                f"{name} of a session restored without times is {at}, and it is {began}",
            )
        await store.append("both", user("b"), count=1, actor=actor)
        info = await store.info("both", actor)
        same("created_at after an append", times["created_at"], info.created_at)
        expect(abs((info.updated_at or 0) - began) < SKEW, f"updated_at after an append is {info.updated_at}")
        await store.replace("both", actor=actor)
        same("created_at after a replace", times["created_at"], (await store.info("both", actor)).created_at)
        for wrong in (float("nan"), float("inf"), "now", True):
            for name in times:
                values: dict[str, Any] = {name: wrong}
                await raises(DataError, store.restore("wrong", actor=actor, **values), f"{name}={wrong!r}")
        expect(await store.load("wrong", actor) is None, "a refused restore made the session")


@clause(CLAUSES, needs=("restore",))
async def what_is_restored_is_a_session_like_any_other(bench: Bench) -> None:
    """It has its messages, state and metadata, without reasoning, under its actor alone, and is read and gone on with."""
    async with bench.open() as store:
        id = bench.id()
        times: dict[str, Any] = {"created_at": 1e9, "updated_at": 1.1e9}
        texts = [f"m{number}" for number in range(600)]
        secret = Message.assistant([Reasoning(text="secret")])
        commit = await store.restore(
            id, *map(user, texts), secret, state={"v": [1]}, metadata={"m": 1}, **times
        )
        same("count of the commit", 600, commit.count)
        snapshot = await store.get(id)
        same("texts", texts, [message.text for message in snapshot.messages])
        same(
            "state, metadata, count and revision",
            ({"v": [1]}, {"m": 1}, 600, commit.revision),
            (snapshot.state, snapshot.metadata, snapshot.count, snapshot.revision),
        )
        expect(await store.load(id, bench.id("actor")) is None, "it is there under another actor")
        if store.can("tail"):
            page = await store.store.tail(id, limit=3, before=258, actor_id=ACTOR)
            same("a page of it", texts[255:258], [message.text for message in page.items])
        options: dict[str, Any] = {"expected_revision": commit.revision} if store.can("revisions") else {}
        if store.can("commit_ids"):
            options["commit_id"] = "next"
        added = await store.append(id, user("next"), count=600, **options)
        same("count of the next commit", 601, added.count)
        if store.can("commit_ids"):
            same("answer to it again", added, await store.append(id, user("next"), count=600, **options))
        await refused(store.append(id, user("x"), count=600), "a stale append to it")
        same("texts", [*texts, "next"], await store.texts(id))
        empty = bench.id("empty")
        await store.restore(empty, **times)
        same("messages of one without any", [], await store.texts(empty))


@clause(CLAUSES, needs=("restore",))
async def nothing_is_restored_over_a_session(bench: Bench) -> None:
    """Where there is a session, an empty one included, restoring is a ConflictError and changes nothing; of many, one is first."""
    async with bench.open() as store:
        for write in (partial(store.append, count=0), store.restore):
            id = bench.id()
            await write(id, state={"v": 1})
            before = await store.get(id)
            await refused(store.restore(id, user("x"), updated_at=1e9), "restoring over a session")
            await refused(store.restore(id, state={"v": 1}), "restoring an equal session over another")
            same("session", before, await store.get(id))
        id = bench.id()
        results = await asyncio.gather(
            *(store.restore(id, user(str(by)), updated_at=1e9 + by) for by in range(8)),
            return_exceptions=True,
        )
        won = [by for by, result in enumerate(results) if not isinstance(result, BaseException)]
        same("number of those that restored it", 1, len(won))
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, ConflictError):
                raise ClauseFailure(f"a restore that came second raised {result!r}")
        same("texts", [str(won[0])], await store.texts(id))
        if store.can("delete") and store.can("revisions"):
            old = (await store.get(id)).revision
            await store.store.delete(id, actor_id=ACTOR)
            new = (await store.restore(id, user("again"), updated_at=1e9)).revision
            expect(new != old, "a session restored after a delete has a revision of the one before")
            await refused(
                store.append(id, count=1, expected_revision=old), "an append with the revision of before"
            )


@clause(CLAUSES, needs=("restore", "revisions", "sessions"))
async def a_session_is_restored_over_the_revision_that_is_named(bench: Bench) -> None:
    """With a revision, restoring takes the place of exactly that one, times included; with another it is a ConflictError."""
    async with bench.open() as store:
        id, actor = bench.id(), bench.id("actor")
        old = await store.append(id, *map(user, "ab"), count=0, state={"v": 1}, actor=actor)
        info = await store.info(id, actor)
        times = {"created_at": 1e9, "updated_at": info.updated_at}
        new = await store.restore(
            id,
            user("c"),
            state={"v": 2},
            metadata={"m": 1},
            actor=actor,
            expected_revision=old.revision,
            **times,
        )
        snapshot, info = await store.get(id, actor), await store.info(id, actor)
        same(
            "session",
            (["c"], {"v": 2}, {"m": 1}, new.revision),
            (await store.texts(id, actor), snapshot.state, snapshot.metadata, snapshot.revision),
        )
        same("times", tuple(times.values()), (info.created_at, info.updated_at))
        for stale in (old.revision, "never"):
            await refused(
                store.restore(id, user("x"), actor=actor, expected_revision=stale), "a stale restore"
            )
        await refused(
            store.restore(bench.id(), user("x"), expected_revision=new.revision), "restoring over nothing"
        )
        same("session", snapshot, await store.get(id, actor))


# Expiring


def _moment() -> float:
    """Return a moment half a century ago. What is older is this kit's own: no session is so old but one restored so."""
    return float(random.randrange(10 * int(DAY), 1_000 * int(DAY)))  # noqa: S311 (no secret)


async def _expire(store: Subject, moment: float, limit: int = 1000) -> int:
    """Let the sessions expire that were last written before ``moment``; the margins are days, and clocks differ by less."""
    return await store.store.expire(expire_after=time.time() - moment, limit=limit)


async def _clear(store: Subject, moment: float) -> None:
    """Let everything expire that earlier runs of the kit left behind."""
    while await _expire(store, moment):
        pass


@clause(CLAUSES, needs=("expire", "restore"))
async def old_sessions_expire_and_no_others(bench: Bench) -> None:
    """What was last written longer ago than is said is gone, whoever's it was; the rest stays, also what was made as long ago."""
    async with bench.open() as store:
        moment, actor = _moment(), bench.id("actor")
        await _clear(store, moment)
        actors: list[str | None] = [ACTOR, actor, *([None] if store.can("anonymous_actor") else [])]
        old = [(whose, bench.id("old")) for whose in (*actors, ACTOR)]
        young = [(whose, bench.id("young")) for whose in actors]
        for whose, id in old:
            await store.restore(id, *[user("a")] * 300, actor=whose, updated_at=moment - DAY)
        for whose, id in young:
            await store.restore(id, user("a"), actor=whose, created_at=moment - DAY, updated_at=moment + DAY)
        written = bench.id("written")
        await store.restore(written, user("a"), created_at=moment - DAY, updated_at=moment - DAY)
        await store.append(written, count=1, state={"v": 1})
        same("how many expired", len(old), await _expire(store, moment))
        for whose, id in old:
            expect(await store.load(id, whose) is None, "an old session is still there")
            if store.can("sessions"):
                expect(
                    id not in {info.id for info in await store.listed(whose)},
                    "an old session is still listed",
                )
        for whose, id in young:
            same("texts of a young session", ["a"], [m.text for m in (await store.get(id, whose)).messages])
        same("state of one that was written since", {"v": 1}, (await store.get(written)).state)
        same("how many expired after that", 0, await _expire(store, moment))


@clause(CLAUSES, needs=("expire", "restore"))
async def the_oldest_expire_first_and_no_more_than_are_asked_for(bench: Bench) -> None:
    """A limit is kept, begins with what was not written for longest, and is reached while there are as many."""
    async with bench.open() as store:
        moment = _moment()
        await _clear(store, moment)
        ids = [bench.id(str(number)) for number in range(7)]
        for number, id in random.sample(list(enumerate(ids)), len(ids)):
            await store.restore(id, user("a"), updated_at=moment - (9 - number) * DAY)
        left = ids
        for expected in (2, 2, 2, 1, 0):
            same("how many of up to 2 expired", expected, await _expire(store, moment, limit=2))
            left = left[expected:]
            found = [id for id in ids if await store.load(id) is not None]
            same("which are left, by age", [ids.index(id) for id in left], [ids.index(id) for id in found])


@clause(CLAUSES, needs=("expire", "restore"))
async def what_is_written_meanwhile_does_not_expire(bench: Bench) -> None:
    """Of a write and an expiry at once, one is first: an acknowledged write stays, and one to a session that is gone is refused."""
    async with bench.open() as store, bench.open() as other:
        writer = other if bench.persistent else store
        moment = _moment()
        await _clear(store, moment)

        async def expire() -> None:
            for _ in range(40):
                await _expire(store, moment, limit=2)
                await asyncio.sleep(0)

        async def write(id: str, number: int) -> bool:
            for _ in range(number):
                await asyncio.sleep(0)
            try:
                await writer.append(id, user("b"), count=1)
            except ConflictError:
                return False
            return True

        for round in range(4):
            ids = [bench.id(f"{round}.{number}") for number in range(16)]
            for number, id in enumerate(ids):
                await store.restore(id, user("a"), updated_at=moment - (number + 1) * DAY)
            written, _ = await asyncio.gather(
                asyncio.gather(*(write(id, number % 5) for number, id in enumerate(ids))), expire()
            )
            for id, acknowledged in zip(ids, written, strict=True):
                snapshot = await store.load(id)
                found = [message.text for message in snapshot.messages] if snapshot else None
                same(
                    "texts after an accepted append" if acknowledged else "a session that refused an append",
                    ["a", "b"] if acknowledged else None,
                    found,
                )


@clause(CLAUSES, needs=("expire", "restore", "revisions"))
async def an_expired_session_can_be_made_anew(bench: Bench) -> None:
    """Nothing is left of it, who knew it is refused, and a session of its name is another one, with revisions of its own."""
    async with bench.open() as store:
        id, moment = bench.id(), _moment()
        await _clear(store, moment)
        old = await store.restore(
            id, *map(user, "abc"), state={"v": 1}, metadata={"m": 1}, updated_at=moment - DAY
        )
        same("how many expired", 1, await _expire(store, moment))
        await refused(store.append(id, user("x"), count=3), "an append to an expired session")
        await refused(
            store.replace(id, user("x"), expected_revision=old.revision), "a replace of an expired session"
        )
        new = await store.append(id, user("new"), count=0, expected_revision=None)
        expect(new.revision != old.revision, f"the revision {new.revision!r} came again")
        snapshot = await store.get(id)
        same("texts", ["new"], [message.text for message in snapshot.messages])
        expect(not snapshot.state and not snapshot.metadata, "state or metadata outlived the session")
        await refused(
            store.append(id, user("x"), count=1, expected_revision=old.revision),
            "an append with a revision of the expired session",
        )
        same("how many expired after that", 0, await _expire(store, moment))


@clause(CLAUSES, needs=("expire",))
async def nothing_expires_by_mistake(bench: Bench) -> None:
    """An age that is none, negative or no number, and a limit below one, are DataErrors, and nothing is deleted."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, user("a"), count=0)
        expire: Any = store.store.expire
        for age in (0, -1, 0.0, -1e9, float("nan"), float("-inf"), None, "1", True):
            await raises(DataError, expire(expire_after=age), f"expire_after={age!r}")
        for limit in (0, -1, 1.5, True):
            await raises(DataError, expire(expire_after=1e9, limit=limit), f"a limit of {limit!r}")
        same("texts", ["a"], await store.texts(id))


# Looking for damage


@clause(CLAUSES, needs=("verify", "sessions", "all_actors"))
async def a_healthy_store_has_no_damage(bench: Bench) -> None:
    """A walk in steps reads every session of every actor once, reports none of what was written here, and changes nothing."""
    async with bench.open() as store:
        ids = [bench.id(str(number)) for number in range(5)]
        actors: list[str | None] = [ACTOR, bench.id("actor")]
        if store.can("anonymous_actor"):
            actors.append(None)
        for actor in actors:
            for number, id in enumerate(ids):
                await store.append(id, *[user("a\0é")] * number * 90, count=0, state={"n": 1}, actor=actor)
            await store.append(ids[3], user("b"), count=270, metadata={"m": 1}, actor=actor)
            await store.append(ids[3], count=271, actor=actor)
            await store.replace(ids[4], *[user("c")] * 300, actor=actor)
        for _ in range(TRIES):
            before = await store.listed(ALL_ACTORS)
            for limit in (max(2, len(before) // 7), len(before) + 100):
                checked, cursor, steps = 0, None, 0
                while True:
                    step = await store.store.verify(limit=limit, cursor=cursor)
                    expect(step.checked <= limit, f"{step.checked} sessions in a step of {limit}")
                    mine = [damage for damage in step.damaged if damage.id in ids]
                    same("damage of what was just written", [], mine)
                    checked, cursor, steps = checked + step.checked, step.cursor, steps + 1
                    if cursor is None:
                        break
                    expect(steps <= len(before) + 10, "the cursor leads nowhere")
                if before == await store.listed(ALL_ACTORS):
                    same(f"sessions looked at in steps of {limit}", len(before), checked)
                else:
                    break
            else:
                for limit in (0, -1):
                    await raises(DataError, store.store.verify(limit=limit), f"a limit of {limit}")
                return
        raise ClauseSkipped("others write to this store all the while")
