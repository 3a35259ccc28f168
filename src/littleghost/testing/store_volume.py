"""Clauses of the store kit: large commits, large messages, and parts of long histories."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

from littleghost.content import ToolResult, ToolUse
from littleghost.errors import DataError, SessionTooLargeError
from littleghost.message import Message
from littleghost.testing.conformance import Clause, ClauseFailure, clause, expect
from littleghost.testing.store_bench import ACTOR, Bench, Subject, refused, same, user

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

LARGE = 1000
PLACES = (0, 1, 2, 127, 128, 129, 255, 256, 257, 511, 512, 513, 767, 768, 769, 999, 1000)
"""Where a store that keeps a large commit in several parts may have a boundary, and beside it."""


def _many(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


async def _tail(store: Subject, id: str, limit: int, before: int | None) -> tuple[list[str], Any]:
    page = await store.store.tail(id, limit=limit, before=before, actor_id=ACTOR)
    return [message.text for message in page.items], page.cursor


async def _check_tail(store: Subject, id: str, whole: list[str], limit: int, before: int | None) -> None:
    end = len(whole) if before is None else min(before, len(whole))
    start = max(0, end - limit)
    found = await _tail(store, id, limit, before)
    where = f"of up to {limit} messages before {before}, of {len(whole)}"
    same(f"the page {where}", whole[start:end], found[0])
    if found[0]:
        same(f"the cursor of the page {where}", start or None, found[1])


# One commit


@clause(CLAUSES)
async def a_commit_of_a_thousand_messages_is_one_commit(bench: Bench) -> None:
    """A thousand messages in one append or replace are one commit: whole, in order, and gone on from."""
    async with bench.open() as store:
        texts = _many("m", LARGE)
        for write in (partial(store.append, count=0), store.replace):
            id = bench.id()
            commit = await write(id, *map(user, texts), state={"v": 1})
            same("count of the commit", LARGE, commit.count)
            snapshot = await store.get(id)
            same("texts", texts, [message.text for message in snapshot.messages])
            same("count and revision", (LARGE, commit.revision), (snapshot.count, snapshot.revision))
            same("state", {"v": 1}, snapshot.state)
            await refused(store.append(id, user("x"), count=256), "an append that expects a part of them")
            await store.append(id, *map(user, texts[:300]), count=LARGE)
            await store.append(id, user("end"), count=LARGE + 300)
            same("texts", [*texts, *texts[:300], "end"], await store.texts(id))
            await store.replace(id, user("short"))
            same("texts after a replace with one", ["short"], await store.texts(id))
            await store.append(id, user("end"), count=1)
            same("texts", ["short", "end"], await store.texts(id))


@clause(CLAUSES, needs=("commit_ids",))
async def a_commit_of_a_thousand_messages_can_be_repeated(bench: Bench) -> None:
    """Sent again, it gets the first answer and adds nothing; with another message in it, it is refused."""
    async with bench.open() as store:
        texts = _many("m", LARGE)
        for write in (partial(store.append, count=0), store.replace):
            id = bench.id()
            again = partial(write, id, *map(user, texts), commit_id="large")
            first = await again()
            same("answer to the repeated commit", first, await again())
            await store.append(id, user("end"), count=LARGE, commit_id="end")
            same("answer to the commit repeated later", first, await again())
            for place in (0, 255, 256, 700, LARGE - 1):
                other = [*texts[:place], "other", *texts[place + 1 :]]
                await refused(
                    write(id, *map(user, other), commit_id="large"),
                    f"the id of a commit with another message at {place}",
                )
            same("texts", [*texts, "end"], await store.texts(id))


@clause(CLAUSES)
async def a_reader_sees_large_commits_whole(bench: Bench) -> None:
    """What is loaded, or read of the tail, while hundreds of messages are appended and replaced is all of one commit."""
    async with bench.open() as store:
        id, done = bench.id(), False

        def size(turn: int) -> int:
            return 300 + turn * 37 % 450

        await store.replace(id, *[user("0")] * size(0), state={"turn": 0})

        async def write() -> None:
            nonlocal done
            for turn in range(1, 25):
                texts = [user(str(turn))] * size(turn)
                if turn % 3 == 0:
                    await store.replace(id, *texts, state={"turn": turn})
                    await store.append(id, *texts, count=len(texts), state={"turn": turn})
                else:
                    await store.replace(id, *texts, state={"turn": turn})
            done = True

        async def read() -> None:
            while not done:
                snapshot = await store.get(id)
                seen = {message.text for message in snapshot.messages}
                same("turns in what is loaded", {str(snapshot.state["turn"])}, seen)
                same("count", len(snapshot.messages), snapshot.count)
                whole = size(snapshot.state["turn"])
                expect(
                    snapshot.count in (whole, 2 * whole),
                    f"{snapshot.count} messages were seen of commits of {whole} each",
                )
                if store.can("tail"):
                    texts, _ = await _tail(store, id, 299, None)
                    same("messages and turns in a tail", (299, 1), (len(texts), len(set(texts))))
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        try:
            await asyncio.gather(read(), read(), writing)
        finally:
            writing.cancel()


@clause(CLAUSES, timeout=120)
async def twenty_megabytes_in_one_message_are_stored_or_refused(bench: Bench) -> None:
    """A message of twenty megabytes comes back exactly; a store that cannot have it refuses it with a name and changes nothing."""
    text = "läßt 0123456789 " * 1_200_000 + "the end"
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, user("before"), count=0)
        try:
            await store.append(id, user(text), user("after"), count=1)
        except (SessionTooLargeError, DataError):
            same("texts after a message that was refused", ["before"], await store.texts(id))
            return
        expect(await store.texts(id) == ["before", text, "after"], "a message of twenty megabytes changed")
        await store.append(id, user("end"), count=3)
        if store.can("tail"):
            same("the page before it", (["before"], None), await _tail(store, id, 5, 1))
            same("the page after it", (["after", "end"], 2), await _tail(store, id, 2, None))


# Parts of a history


@clause(CLAUSES, needs=("tail",))
async def a_tail_of_a_large_commit_begins_and_ends_anywhere(bench: Bench) -> None:
    """Pages of a commit of a thousand messages, and of what is before and after it, are right at every boundary."""
    async with bench.open() as store:
        id = bench.id()
        whole = [*_many("a", 7), *_many("b", LARGE), *_many("c", 300), "end"]
        await store.append(id, *map(user, whole[:7]), count=0)
        await store.append(id, *map(user, whole[7 : 7 + LARGE]), count=7)
        await store.append(id, *map(user, whole[7 + LARGE : -1]), count=7 + LARGE)
        await store.append(id, user("end"), count=len(whole) - 1)
        for place in PLACES:
            for before in (place, place + 7):
                await _check_tail(store, id, whole, 1, before)
                await _check_tail(store, id, whole, 3, before)
        for limit, before in ((256, 512), (257, 519), (255, 263), (512, 1024), (1000, 1007), (2000, None)):
            await _check_tail(store, id, whole, limit, before)
        found, before = list[str](), None
        while True:
            texts, before = await _tail(store, id, 300, before)
            found = texts + found
            if before is None:
                break
            expect(len(found) < len(whole), "the cursor leads nowhere")
        same("joined pages", whole, found)


@clause(CLAUSES, needs=("tail",))
async def a_tail_is_a_slice_of_any_history(bench: Bench) -> None:
    """After any sequence of appends and replaces of any length, every page is what the history has there."""
    chance = random.Random(20)  # noqa: S311 (the same every time)
    async with bench.open() as store:
        for _ in range(3):
            id, whole = bench.id(), list[str]()
            for turn in range(30):
                size = chance.choice((0, 1, 1, 2, 3, 17, 40, 256, 257, 300))
                new = _many(f"{turn}.", size)
                if chance.random() < 0.12:
                    whole = new
                    await store.replace(id, *map(user, new))
                else:
                    await store.append(id, *map(user, new), count=len(whole))
                    whole = [*whole, *new]
                for _ in range(3):
                    before = chance.choice((None, chance.randint(0, len(whole) + 3)))
                    limit = chance.choice((1, 2, 50, chance.randint(1, len(whole) + 2)))
                    await _check_tail(store, id, whole, limit, before)
            same("texts", whole, await store.texts(id))


@clause(CLAUSES, needs=("fork",))
async def a_fork_of_a_large_commit_ends_anywhere(bench: Bench) -> None:
    """A fork keeps exactly the messages it is asked for, wherever in a commit of a thousand the cut falls, and is gone on from."""
    async with bench.open() as store:
        id = bench.id()
        texts = _many("m", LARGE)
        await store.append(id, *map(user, texts), count=0, state={"v": 1})
        for at in PLACES:
            new = bench.id("fork")
            same(
                f"count of a fork at {at}", at, (await store.store.fork(id, new, at=at, actor_id=ACTOR)).count
            )
            same(f"texts of a fork at {at}", texts[:at], await store.texts(new))
            await store.append(new, user("end"), count=at)
            same(f"texts of a fork at {at}, gone on from", [*texts[:at], "end"], await store.texts(new))
            if store.can("tail"):
                await _check_tail(store, new, [*texts[:at], "end"], 2, None)
        same("texts of the first", texts, await store.texts(id))


@clause(CLAUSES, needs=("fork",))
async def a_fork_parts_no_call_of_a_large_commit(bench: Bench) -> None:
    """A call at the end of one part of a large commit and its result at the beginning of the next are not parted."""
    async with bench.open() as store:
        id = bench.id()
        messages: list[Message] = []
        for number in range(LARGE // 4):
            call, answer = ToolUse(id=str(number), name="f"), ToolResult(tool_use_id=str(number), content="")
            messages += [user("ask"), Message.assistant([call]), Message.tool([answer]), user("done")]
        messages[:0] = [user("first"), user("second")]  # so that calls are at 255 and 511
        await store.append(id, *messages, count=0)
        for at in (254, 255, 256, 257, 258, 510, 511, 512, 513, 514, LARGE):
            kept = at - 1 if at % 4 == 0 else at
            new = bench.id("fork")
            found = (await store.store.fork(id, new, at=at, actor_id=ACTOR)).count
            same(f"messages of a fork at {at}", kept, found)
            snapshot = await store.get(new)
            if tuple(snapshot.messages) != tuple(messages[:kept]):
                raise ClauseFailure(f"a fork at {at} has other messages than the first {kept}")
