"""Clauses of the store kit: writers one after another, at once, cancelled and killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from littleghost.errors import ConflictError, DataError
from littleghost.sessions.contract import ANY
from littleghost.sessions.session import Session
from littleghost.testing.conformance import Clause, ClauseFailure, clause, expect
from littleghost.testing.store_bench import ACTOR, Bench, Subject, refused, same, user

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []


# One writer after another


@clause(CLAUSES)
async def a_stale_append_is_refused(bench: Bench) -> None:
    """An append that expects another count is a ConflictError with both counts, and changes nothing."""
    async with bench.open() as store:
        id = bench.id()
        await refused(
            store.append(id, user("x"), count=1),
            "an append that expects a message where there is no session",
        )
        expect(await store.load(id) is None, "a refused append made the session")
        await store.append(id, user("a"), user("b"), count=0, state={"v": 1}, metadata={"m": 1})
        before = await store.get(id)
        for count in (0, 1, 3):
            error = await refused(
                store.append(id, user("x"), count=count, state={"v": 2}, metadata={"m": 2}),
                f"an append that expects {count} of 2 messages",
            )
            same("expected and actual", (count, 2), (error.expected, error.actual))
            await refused(
                store.append(id, count=count, state={"v": 2}),
                f"an append of state that expects {count} of 2 messages",
            )
        same("session", before, await store.get(id))


@clause(CLAUSES, needs=("revisions",))
async def every_commit_has_a_revision_of_its_own(bench: Bench) -> None:
    """The revision changes with every commit, state-only ones and equal replaces included, and loading tells the last one."""
    async with bench.open() as store:
        id = bench.id()
        seen: list[str | None] = []
        for number in range(3):
            seen.append((await store.append(id, user("a"), count=number)).revision)
            same("revision", seen[-1], (await store.get(id)).revision)
        for _ in range(2):
            seen.append((await store.append(id, count=3)).revision)
            same("revision", seen[-1], (await store.get(id)).revision)
        for _ in range(2):
            seen.append((await store.replace(id, user("a"), user("a"), user("a"))).revision)
            same("revision", seen[-1], (await store.get(id)).revision)
        expect(
            all(isinstance(revision, str) and revision for revision in seen),
            f"a revision is no text: {seen!r}",
        )
        expect(len(set(seen)) == len(seen), f"a revision was used twice: {seen!r}")


@clause(CLAUSES, needs=("revisions",))
async def a_stale_revision_is_refused(bench: Bench) -> None:
    """Append and replace with a revision that is not the last one are ConflictErrors, and change nothing."""
    async with bench.open() as store:
        id = bench.id()
        first = await store.append(id, user("a"), count=0, state={"v": 1})
        second = await store.append(id, count=1, state={"v": 2})  # the count does not tell it
        error = await refused(
            store.append(id, user("x"), count=1, expected_revision=first.revision),
            "an append after another's state-only commit",
        )
        same("expected and actual", (first.revision, second.revision), (error.expected, error.actual))
        await refused(
            store.append(id, count=1, expected_revision=first.revision), "a stale state-only append"
        )
        await refused(store.replace(id, user("x"), expected_revision=first.revision), "a stale replace")
        third = await store.replace(id, user("b"), expected_revision=second.revision)
        for write in (partial(store.append, count=1), store.replace):
            await refused(
                write(id, user("x"), expected_revision=second.revision),
                "a write after another's replace of the same length",
            )
            await refused(
                write(id, user("x"), expected_revision="no-such-revision"),
                "a write with a revision that never was",
            )
        same("texts", ["b"], await store.texts(id))
        await store.append(id, user("c"), count=1, expected_revision=third.revision)
        await store.replace(id, user("d"), expected_revision=ANY)
        same("texts", ["d"], await store.texts(id))


@clause(CLAUSES, needs=("revisions",))
async def a_first_write_can_insist_on_being_first(bench: Bench) -> None:
    """With None as the expected revision the session must not exist; with one, it must."""
    async with bench.open() as store:
        for write in (partial(store.append, count=0), store.replace):
            id = bench.id()
            await refused(
                write(id, user("x"), expected_revision="no-such-revision"),
                "a write with a revision where there is no session",
            )
            expect(await store.load(id) is None, "a refused write made the session")
            await write(id, expected_revision=None, state={"v": 1})  # an empty one is there, too
            for again in (partial(store.append, count=0), store.replace):
                await refused(
                    again(id, user("x"), expected_revision=None),
                    "a write that insists on being first, and is second",
                )
            same("state", {"v": 1}, (await store.get(id)).state)


@clause(CLAUSES, needs=("revisions", "delete"))
async def a_session_made_again_is_another_one(bench: Bench) -> None:
    """After a delete, the same commits have other revisions, and one who knew the old session is refused."""
    async with bench.open() as store:
        id = bench.id()
        rounds: list[list[str | None]] = []
        for _ in range(3):
            commits = [await store.append(id, user("a"), count=number) for number in range(3)]
            rounds.append([commit.revision for commit in commits])
            if len(rounds) > 1:
                for old in rounds[0]:
                    await refused(
                        store.append(id, user("x"), count=3, expected_revision=old),
                        "an append with a revision from before a delete",
                    )
                    await refused(
                        store.replace(id, expected_revision=old),
                        "a replace with a revision from before a delete",
                    )
            expect(await store.store.delete(id, actor_id=ACTOR), "delete found nothing")
            await refused(
                store.append(id, user("x"), count=3, expected_revision=rounds[-1][-1]),
                "an append to a deleted session",
            )
            await refused(
                store.replace(id, expected_revision=rounds[-1][-1]), "a replace of a deleted session"
            )
        expect(len(set(itertools.chain(*rounds))) == 9, f"a revision came again after a delete: {rounds!r}")


# One commit, however often it is sent


@clause(CLAUSES, needs=("commit_ids",))
async def a_repeated_commit_gets_the_first_answer(bench: Bench) -> None:
    """The same commit sent again changes nothing and gets the first answer, also after other commits and after a replace."""
    async with bench.open() as store:
        id = bench.id()
        first = partial(store.append, id, user("a"), count=0, state={"v": 1}, commit_id="first-1")
        answers = [await first()]
        second = partial(store.append, id, user("b"), count=1, state={"v": 2}, commit_id="second-2")
        replace = partial(store.replace, id, user("c"), state={"v": 3}, commit_id="third-3")
        if store.can("revisions"):
            second = partial(second, expected_revision=answers[0].revision)
        answers.append(await second())
        if store.can("revisions"):
            replace = partial(replace, expected_revision=answers[1].revision)
        for _ in range(2):
            same("answer to the repeated first commit", answers[0], await first())
            same("answer to the repeated second commit", answers[1], await second())
        answers.append(await replace())
        await store.append(id, user("d"), count=1, state={"v": 4})
        for number, again in enumerate((first, second, replace)):
            same(f"answer to repeated commit {number + 1}", answers[number], await again())
        same("texts", ["c", "d"], await store.texts(id))
        same("state", {"v": 4}, (await store.get(id)).state)


@clause(CLAUSES, needs=("commit_ids",))
async def a_commit_that_no_check_would_stop_is_not_done_twice(bench: Bench) -> None:
    """Sent again without an expected revision, a state-only append or a replace would pass its check; its id stops it."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, user("a"), count=0, commit_id="a")
        one = await store.append(id, count=1, state={"v": 1}, commit_id="one")
        two = await store.replace(id, user("b"), state={"v": 2}, commit_id="two")
        await store.append(id, count=1, state={"v": 3}, commit_id="three")
        same("answer", one, await store.append(id, count=1, state={"v": 1}, commit_id="one"))
        same("answer", two, await store.replace(id, user("b"), state={"v": 2}, commit_id="two"))
        same("state", {"v": 3}, (await store.get(id)).state)
        same("texts", ["b"], await store.texts(id))


@clause(CLAUSES, needs=("commit_ids",))
async def a_commit_id_with_other_content_is_refused(bench: Bench) -> None:
    """The same id with other messages, state, metadata or operation is a ConflictError."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, user("a"), count=0, state={"v": 1}, metadata={"m": 1}, commit_id="one")
        again = partial(store.append, id, count=0, commit_id="one")
        await refused(again(user("b"), state={"v": 1}, metadata={"m": 1}), "an id with other messages")
        await refused(again(user("a"), state={"v": 2}, metadata={"m": 1}), "an id with another state")
        await refused(again(user("a"), state={"v": 1}, metadata={"m": 2}), "an id with other metadata")
        await refused(
            store.replace(id, user("a"), state={"v": 1}, metadata={"m": 1}, commit_id="one"),
            "an id of an append on a replace",
        )
        same("texts", ["a"], await store.texts(id))


@clause(CLAUSES, needs=("commit_ids",))
async def commit_ids_belong_to_one_session(bench: Bench) -> None:
    """The same id in another session, or in a session made again, is another commit; malformed ids are refused."""
    async with bench.open() as store:
        id = bench.id()
        for number in range(2):
            await store.append(id + str(number), user(str(number)), count=0, commit_id="same")
            same("texts", [str(number)], await store.texts(id + str(number)))
        await store.append(id + "0", user("other actor"), count=0, actor=bench.id("actor"), commit_id="same")
        if store.can("delete"):
            await store.store.delete(id + "0", actor_id=ACTOR)
            await store.append(id + "0", user("again"), count=0, commit_id="same")
            same("texts", ["again"], await store.texts(id + "0"))
        for bad in ("", "x" * 65, "a b", "a_b", "ü", "a\n"):
            with suppress(DataError):
                await store.append(id + "1", user("x"), count=1, commit_id=bad)
                raise ClauseFailure(f"the commit id {bad!r} was accepted")
        await store.append(id + "1", user("x"), count=1, commit_id="x" * 64)


# Many writers


async def _won(work: Awaitable[object]) -> bool:
    try:
        await work
    except ConflictError:
        return False
    return True


@clause(CLAUSES)
async def one_of_many_appends_wins(bench: Bench) -> None:
    """Of appends that expect the same, exactly one is accepted, the first write of a session included."""
    async with bench.open() as store:
        id = bench.id()
        for count in range(5):
            won = await asyncio.gather(
                *(_won(store.append(id, user(f"{count}"), count=count, state={"by": by})) for by in range(16))
            )
            same("number of accepted appends", 1, sum(won))
            snapshot = await store.get(id)
            same("count", count + 1, snapshot.count)
            same("state", {"by": won.index(True)}, snapshot.state)


@clause(CLAUSES, needs=("revisions",))
async def one_of_many_replaces_wins(bench: Bench) -> None:
    """Of replaces that expect the same revision, exactly one is accepted, the first write of a session included."""
    async with bench.open() as store:
        id = bench.id()
        revision: str | None = None
        for _ in range(5):
            won = await asyncio.gather(
                *(
                    _won(store.replace(id, user(str(by)), state={"by": by}, expected_revision=revision))
                    for by in range(16)
                )
            )
            same("number of accepted replaces", 1, sum(won))
            snapshot = await store.get(id)
            revision = snapshot.revision
            same("state", {"by": won.index(True)}, snapshot.state)
            same("text", str(won.index(True)), snapshot.messages[0].text)


async def _updates(store: Subject, id: str, name: str, times: int) -> list[str]:
    session = Session(id=id, store=store.store, actor_id=ACTOR)
    texts = [f"{name}:{number}" for number in range(times)]
    for text in texts:
        await session.update(lambda snapshot, text=text: ([user(text)], snapshot.state), attempts=1000)
    return texts


def _each_once_in_order(
    texts: list[str], written: Sequence[list[str]], complaints: Sequence[str] = ()
) -> None:
    """Expect that nothing acknowledged is missing or doubled, that each writer's turns are in its order, and no complaints."""
    told = set(itertools.chain(*written))
    wrong = {
        "acknowledged and lost": told.difference(texts),
        "stored and never acknowledged": set(texts) - told,
        "stored more than once": {text for text, times in Counter(texts).items() if times > 1},
    }
    found = [f"{len(turns)} {what}: {_some(turns)}" for what, turns in wrong.items() if turns]
    problems = (
        [f"of {len(told)} acknowledged turns and {len(texts)} stored ones, {'; '.join(found)}"]
        if found
        else []
    )
    if complaints:
        problems.append(
            f"of {len(written)} processes {len(complaints)} failed, the first like this: {complaints[0]}"
        )
    expect(not problems, "; ".join(problems))
    for mine in written:
        names = set(mine)
        same("order of one writer", mine, [text for text in texts if text in names])


def _some(turns: Iterable[str]) -> str:
    shown = sorted(turns)
    return ", ".join(shown[:6]) + (", …" if len(shown) > 6 else "")


@clause(CLAUSES, timeout=120)
async def no_turn_of_many_tasks_is_lost(bench: Bench) -> None:
    """Tasks that append to one session, each trying again when refused, lose and double nothing."""
    async with bench.open() as store:
        id = bench.id()
        written = await asyncio.gather(*(_updates(store, id, f"t{number}", 5) for number in range(8)))
        _each_once_in_order(await store.texts(id), written)


@clause(CLAUSES, timeout=120)
async def no_turn_of_two_stores_is_lost(bench: Bench) -> None:
    """The same with two stores on the same data."""
    bench.need_persistence()
    async with bench.open() as one, bench.open() as two:
        id = bench.id()
        work = [
            _updates(store, id, f"{name}{number}", 5)
            for number in range(3)
            for name, store in (("a", one), ("b", two))
        ]
        written = await asyncio.gather(*work)
        _each_once_in_order(await one.texts(id), written)
        same("texts seen by the other", await one.texts(id), await two.texts(id))


@clause(CLAUSES, timeout=180)
async def no_turn_of_several_processes_is_lost(bench: Bench) -> None:
    """The same with processes of their own, all of them starting with the first write."""
    id = bench.id()
    orders = [{"task": "update", "id": id, "name": f"p{number}", "times": 15} for number in range(4)]
    async with bench.children(*orders) as children:
        for child in children:
            await child.expect("ready")
        for child in children:
            child.go()
        ends = await asyncio.gather(*(child.end() for child in children))
    written = [lines for lines, _ in ends]
    complaints = [complaint for _, complaint in ends if complaint]
    async with bench.open() as store:
        try:
            texts = await store.texts(id)
        except Exception as error:
            told = sum(map(len, written))
            raise ClauseFailure(
                "; ".join(
                    [
                        f"{told} turns were acknowledged, and the session cannot be loaded: {error}",
                        *complaints[:1],
                    ]
                )
            ) from error
        _each_once_in_order(texts, written, complaints)
    same("turns written by each", [15] * 4, list(map(len, written)))


@clause(CLAUSES)
async def a_reader_sees_whole_commits(bench: Bench) -> None:
    """What is loaded while others write is a snapshot: its messages, count and state belong together."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, count=0, state={"turns": 0})
        done = False

        async def write() -> None:
            nonlocal done
            for number in range(1, 61):
                if number % 20:
                    await store.append(
                        id,
                        user("a"),
                        user("b"),
                        user("c"),
                        count=3 * (number - 1),
                        state={"turns": number},
                    )
                else:
                    await store.replace(id, *[user("r")] * (3 * number), state={"turns": number})
            done = True

        async def read() -> None:
            last = 0
            while not done:
                snapshot = await store.get(id)
                turns = snapshot.state["turns"]
                same("messages and state", (3 * turns, 3 * turns), (len(snapshot.messages), snapshot.count))
                expect(turns >= last, f"a later read went back from {last} turns to {turns}")
                last = turns
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        try:
            await asyncio.gather(read(), read(), writing)
        finally:
            writing.cancel()


@clause(CLAUSES)
async def a_cancelled_write_is_whole_or_absent(bench: Bench) -> None:
    """A write that is cancelled at any moment took place or did not, and the store goes on."""
    async with bench.open() as store:
        id = bench.id()
        stored: list[str] = []
        for number in range(60):
            new = [f"{number}.a", f"{number}.b"]
            state = {"number": number}
            task = asyncio.create_task(store.append(id, *map(user, new), count=len(stored), state=state))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            if number % 3 == 2:
                await asyncio.sleep(random.uniform(0, 0.003))  # noqa: S311 (a moment)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            snapshot = await store.load(id)
            texts = [message.text for message in snapshot.messages] if snapshot else []
            if texts == [*stored, *new]:
                stored = texts
                same("state", state, snapshot.state if snapshot else None)
            else:
                same("texts after a cancelled append", stored, texts)
                if task.done() and not task.cancelled() and task.exception() is None:
                    raise ClauseFailure("an acknowledged append is not there")
        await store.append(id, user("end"), count=len(stored))
        same("texts", [*stored, "end"], await store.texts(id))


def _entries(book: Path) -> list[int]:
    return [int(line) for line in book.read_text().split()] if book.exists() else []


async def _kill_writers(bench: Bench, times: int, between: int) -> None:
    """Kill processes that write turns of ``between`` messages and two, and look at what each of them leaves."""
    id, size = bench.id(), between + 2
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder, "book")
        order = {"task": "write", "id": id, "book": os.fspath(book), "between": between}
        for _ in range(times):
            async with bench.children(order) as (child,):
                await child.expect("ready")
                await asyncio.sleep(random.uniform(0.0, 0.3))  # noqa: S311 (a moment)
                await child.kill()
            told = _entries(book)
            async with bench.open() as store:
                snapshot = await store.load(id)
                last = snapshot.state["number"] if snapshot else 0
                texts = [message.text for message in snapshot.messages] if snapshot else []
                same("messages, from the state", size * last, len(texts))
                for number in range(1, last + 1):
                    turn = texts[size * (number - 1) : size * number]
                    same("a turn", (str(number),) * 2, (turn[0], turn[-1]))
                expect(
                    set(told) <= set(range(1, last + 1)),
                    f"acknowledged and lost: {sorted(set(told) - set(range(1, last + 1)))}",
                )
                expect(last - len(set(told)) <= times, "more turns than could have been under way")


@clause(CLAUSES, timeout=180)
async def a_killed_writer_loses_nothing(bench: Bench) -> None:
    """A process killed while it writes leaves whole commits, and every one that it had been told of."""
    await _kill_writers(bench, 6, between=1)


@clause(CLAUSES, timeout=180)
async def a_killed_writer_of_large_commits_loses_nothing(bench: Bench) -> None:
    """The same where each commit has hundreds of messages."""
    await _kill_writers(bench, 4, between=598)
