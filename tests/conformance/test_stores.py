"""Every store against the kit, and the kit against stores with a fault of each kind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clauses import LARGE
from msgspec import structs

from littleghost.errors import ConfigurationError, ConflictError, SessionBusyError
from littleghost.message import Message
from littleghost.sessions import memory
from littleghost.sessions.contract import ANY, Commit, Lease, Page, SessionStore, Snapshot
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.opening import open_store
from littleghost.sessions.session import Session
from littleghost.sessions.sqlite import SQLiteStore
from littleghost.testing import store_lists, store_offers
from littleghost.testing.conformance import Clause, ClauseFailure, ClauseSkipped, run_clauses
from littleghost.testing.faults import FaultyStore
from littleghost.testing.store_kit import check_store, store_bench, store_clauses

CLAUSES = store_clauses()
NAMES = {clause.name for clause in CLAUSES}


def faultless() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.xdist_group(f"store {name}"))
        for name in ("memory", "sqlite", "sqlite-off", "postgres", "faulty")
    ],
)
def factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], SessionStore]:
    if request.param == "postgres":
        # A killed holder's lease is to end within the time that the kit waits for it.
        return partial(open_store, request.getfixturevalue("new_postgres_url")() + "&lease_ttl=4")
    path = tmp_path_factory.mktemp("kit") / "kit.db"
    return {
        "memory": MemoryStore,
        "sqlite": partial(SQLiteStore, path),
        "sqlite-off": partial(SQLiteStore, path, durability="off"),
        "faulty": faultless,
    }[request.param]


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.name)
async def test_store(factory: Callable[[], SessionStore], clause: Clause):
    bench = await store_bench(factory)
    if missing := clause.missing(bench.capabilities):
        pytest.skip(f"needs {', '.join(missing)}")
    try:
        await clause.run(bench)
    except ClauseSkipped as skip:
        if "no data" not in str(skip):
            pytest.fail(f"only what memory cannot do may be skipped here: {skip}")
        pytest.skip(str(skip))


async def test_nothing_is_skipped_on_sqlite(tmp_path: Path):
    bench = await store_bench(f"sqlite:///{tmp_path}/a.db")
    assert bench.persistent
    assert all(not clause.missing(bench.capabilities) for clause in CLAUSES)
    async with bench.children({"task": "try", "id": "x"}) as (child,):
        assert await child.rest() == ["fine"]


# A store in a few lines, as a user would write it.


class Simple(SessionStore):
    """Three methods, no capability; keeps JSON forms."""

    def __init__(self) -> None:
        self.kept: dict[Any, dict[str, Any]] = {}

    def key(self, id: str, actor_id: str | None) -> Any:
        return (actor_id, id)

    async def load(self, id, *, actor_id=None):
        import copy

        return copy.deepcopy(self.kept.get(self.key(id, actor_id)))

    async def append(self, id, *, messages, state, metadata, expected_count, actor_id=None):
        old = (await self.load(id, actor_id=actor_id) or {"messages": []})["messages"]
        if len(old) != expected_count:
            raise ConflictError("stale", expected=expected_count, actual=len(old))
        self.write(id, actor_id, messages, state, metadata, old)

    async def replace(self, id, *, messages, state, metadata, actor_id=None):
        self.write(id, actor_id, messages, state, metadata, [])

    def write(self, id, actor_id, messages, state, metadata, old):
        import copy

        clean = [(m, m.without_reasoning()) for m in messages]
        new = [after.to_dict() for before, after in clean if after.content or not before.content]
        self.kept[self.key(id, actor_id)] = copy.deepcopy(
            {"messages": old + new, "state": dict(state), "metadata": dict(metadata)}
        )


async def test_a_simple_store_passes_with_three_lines():
    report = await check_store(lambda: Simple())
    report.raise_for_failures()
    assert report.ok
    assert {outcome.name for outcome in report.passed} >= {
        "what-is-appended-is-loaded",
        "keys-do-not-meet",
        "no-turn-of-many-tasks-is-lost",
    }
    assert all("needs" in outcome.reason or "no data" in outcome.reason for outcome in report.skipped)


async def test_a_store_may_answer_with_more_than_is_read():
    report = await check_store(KeepsMore)
    assert not report.failed, str(report)
    store = KeepsMore()
    session = Session(id="a", store=store)
    await session.append([Message.user("x"), Message.assistant("y")])
    assert [message.text for message in (await session.tail(limit=1)).items] == ["y"]
    assert [message.text for message in await Session(id="a", store=store).history()] == ["x", "y"]


# One fault each, and the clauses that must name it.


class KeepsReferences(Simple):
    async def load(self, id, *, actor_id=None):
        return self.kept.get(self.key(id, actor_id))

    def write(self, id, actor_id, messages, state, metadata, old):
        clean = [(m, m.without_reasoning()) for m in messages]
        new = [after for before, after in clean if after.content or not before.content]
        self.kept[self.key(id, actor_id)] = {"messages": old + new, "state": state, "metadata": metadata}


class JoinsKeys(Simple):
    def key(self, id: str, actor_id: str | None) -> Any:
        return f"{actor_id}:{id}"


class NormalisesKeys(Simple):
    def key(self, id: str, actor_id: str | None) -> Any:
        import unicodedata

        return (actor_id, unicodedata.normalize("NFC", id).rstrip())


class CutsKeys(Simple):
    def key(self, id: str, actor_id: str | None) -> Any:
        return (actor_id and actor_id[:8192], id[:8192])


class ForgetsTheActor(Simple):
    def key(self, id: str, actor_id: str | None) -> Any:
        return id


class ChecksNoCount(Simple):
    async def append(self, id, *, messages, state, metadata, expected_count, actor_id=None):
        old = (await self.load(id, actor_id=actor_id) or {"messages": []})["messages"]
        self.write(id, actor_id, messages, state, metadata, old)


class ChecksTooEarly(Simple):
    """Reads, lets others in, and writes."""

    async def append(self, id, *, messages, state, metadata, expected_count, actor_id=None):
        old = (await self.load(id, actor_id=actor_id) or {"messages": []})["messages"]
        if len(old) != expected_count:
            raise ConflictError("stale", expected=expected_count, actual=len(old))
        await asyncio.sleep(0)
        self.write(id, actor_id, messages, state, metadata, old)


class SplitsCommits(Simple):
    async def append(self, id, *, messages, state, metadata, expected_count, actor_id=None):
        old = (await self.load(id, actor_id=actor_id) or {"messages": []})["messages"]
        if len(old) != expected_count:
            raise ConflictError("stale", expected=expected_count, actual=len(old))
        for number in sorted({*range(0, len(messages), max(1, len(messages) // 4)), len(messages)}):
            self.write(id, actor_id, messages[:number], state, metadata, old)
            await asyncio.sleep(0)


class StripsNothing(Simple):
    def write(self, id, actor_id, messages, state, metadata, old):
        import copy

        self.kept[self.key(id, actor_id)] = copy.deepcopy(
            {
                "messages": old + [message.to_dict() for message in messages],
                "state": dict(state),
                "metadata": dict(metadata),
            }
        )


class LosesNul(Simple):
    def write(self, id, actor_id, messages, state, metadata, old):
        import json

        super().write(id, actor_id, messages, state, metadata, old)
        kept = self.kept[self.key(id, actor_id)]
        self.kept[self.key(id, actor_id)] = json.loads(json.dumps(kept).replace("\\u0000", ""))


class RoundsNumbers(Simple):
    def write(self, id, actor_id, messages, state, metadata, old):
        import json

        super().write(id, actor_id, messages, state, metadata, old)
        kept = self.kept[self.key(id, actor_id)]
        self.kept[self.key(id, actor_id)] = json.loads(
            json.dumps(kept), parse_int=lambda text: int(float(text))
        )


class ShowsFailureAsEmpty(Simple):
    """A read that fails, here on what is long, is an empty history."""

    async def load(self, id, *, actor_id=None):
        try:
            found = await super().load(id, actor_id=actor_id)
            assert len(repr(found)) < 1_000_000
            return found
        except AssertionError:
            return {"messages": []}


class KeepsOldState(Simple):
    def write(self, id, actor_id, messages, state, metadata, old):
        kept = self.kept.get(self.key(id, actor_id), {"state": {}})
        super().write(id, actor_id, messages, {**kept["state"], **state}, metadata, old)


class MakesWhatIsRead(Simple):
    async def load(self, id, *, actor_id=None):
        if self.key(id, actor_id) not in self.kept:
            self.write(id, actor_id, [], {}, {}, [])
            return None
        return await super().load(id, actor_id=actor_id)


class Unlocked(MemoryStore):
    """Its `synchronize` lets everybody in."""

    def synchronize(self, id, *, actor_id=None, timeout=None):
        import contextlib

        @contextlib.asynccontextmanager
        async def free():
            yield

        return free()


class ReplacesUnchecked(MemoryStore):
    async def replace(self, id, **options):
        options["expected_revision"] = ANY
        return await super().replace(id, **options)


class AppendsUnchecked(MemoryStore):
    """Compares the count only."""

    async def append(self, id, **options):
        options["expected_revision"] = ANY
        return await super().append(id, **options)


class CountsAsRevision(MemoryStore):
    """Its revision is the number of messages."""

    capabilities = MemoryStore.capabilities - {"restore"}

    def __init__(self) -> None:
        super().__init__()
        self.real: dict[Any, str | None] = {}

    async def load(self, id, *, actor_id=None):
        snapshot = await super().load(id, actor_id=actor_id)
        if snapshot is None:
            return None
        fields = {name: getattr(snapshot, name) for name in Snapshot.__struct_fields__}
        return Snapshot(**{**fields, "revision": str(snapshot.count)})

    async def _checked(self, write, id, actor_id, expected_revision, options):
        if expected_revision is not ANY:
            snapshot = await MemoryStore.load(self, id, actor_id=actor_id)
            actual = None if snapshot is None else str(snapshot.count)
            if actual != expected_revision:
                raise ConflictError("stale", expected=expected_revision, actual=actual)
        commit = await write(id, actor_id=actor_id, **options)
        return Commit(revision=str(commit.count), count=commit.count)

    async def append(self, id, *, actor_id=None, expected_revision=ANY, **options):
        return await self._checked(super().append, id, actor_id, expected_revision, options)

    async def replace(self, id, *, actor_id=None, expected_revision=ANY, **options):
        return await self._checked(super().replace, id, actor_id, expected_revision, options)

    async def sessions(self, **options):
        page = await super().sessions(**options)
        return Page(
            items=tuple(structs.replace(info, revision=str(info.count)) for info in page.items),
            cursor=page.cursor,
        )


class BeginsEpochsAtZero(MemoryStore):
    """A session made again repeats the revisions of the old one."""

    async def append(self, id, **options):
        return await self._zero(super().append, id, options)

    async def replace(self, id, **options):
        return await self._zero(super().replace, id, options)

    async def _zero(self, write, id, options):
        made, memory._Kept = memory._Kept, Zero
        try:
            return await write(id, **options)
        finally:
            memory._Kept = made


class Zero(memory._Kept):
    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0


class ForgetsCommitIds(MemoryStore):
    async def append(self, id, **options):
        return await super().append(id, **{**options, "commit_id": None})

    async def replace(self, id, **options):
        return await super().replace(id, **{**options, "commit_id": None})


class RemembersOneCommitId(MemoryStore):
    async def append(self, id, **options):
        return await self._one(super().append, id, options)

    async def replace(self, id, **options):
        return await self._one(super().replace, id, options)

    async def _one(self, write, id, options):
        answer = await write(id, **options)
        kept = self._kept[options.get("actor_id"), id]
        kept.commits = dict(list(kept.commits.items())[-1:])
        return answer


class KnowsIdsAndNotContent(MemoryStore):
    async def append(self, id, **options):
        kept = self._kept.get((options.get("actor_id"), id))
        if kept and options.get("commit_id") in kept.commits:
            return kept.commits[options["commit_id"]][1]
        return await super().append(id, **options)


class DropsIdsOnReplace(MemoryStore):
    async def replace(self, id, **options):
        kept = self._kept.get((options.get("actor_id"), id))
        answer = await super().replace(id, **options)
        if kept and kept.head == answer:
            kept.commits = {key: value for key, value in kept.commits.items() if value[1] == answer}
        return answer


class ListsEverybody(MemoryStore):
    capabilities = MemoryStore.capabilities - {"sessions_by_time", "all_actors", "verify"}

    async def sessions(self, *, actor_id=None, limit=100, cursor=None):
        infos = [
            item
            for actor in {actor for actor, _ in self._kept}
            for item in (await MemoryStore.sessions(self, actor_id=actor, limit=10**6)).items
        ]
        return Page(items=tuple(infos[:limit]))


class TailsByCommit(MemoryStore):
    """Off by one where a page begins inside a commit."""

    async def tail(self, id, *, limit, before=None, actor_id=None):
        page = await super().tail(id, limit=limit, before=before, actor_id=actor_id)
        return Page(items=page.items, cursor=(page.cursor and page.cursor - 1) or None)


class CutsCalls(MemoryStore):
    async def fork(self, id, new_id, *, at=None, actor_id=None):
        from littleghost.errors import SessionNotFoundError

        snapshot = await self.load(id, actor_id=actor_id)
        if snapshot is None:
            raise SessionNotFoundError("none", id=id)
        return await self.replace(
            new_id, messages=snapshot.messages[:at], state=snapshot.state, metadata=snapshot.metadata,
            actor_id=actor_id, expected_revision=None,
        )  # fmt: skip


class DeletesMessagesOnly(MemoryStore):
    async def delete(self, id, *, actor_id=None):
        if await self.load(id, actor_id=actor_id) is None:
            return False
        await self.replace(id, messages=[], state={}, metadata={}, actor_id=actor_id)
        return True


class LeasesToAll(MemoryStore):
    capabilities = MemoryStore.capabilities - {"fencing"}

    def lease(self, id, *, actor_id=None, timeout=None):
        import contextlib
        import secrets

        @contextlib.asynccontextmanager
        async def lease():
            yield Lease(token=secrets.token_hex(4))

        return lease()


class LeasesForEver(MemoryStore):
    """Nobody ever gets it back."""

    capabilities = MemoryStore.capabilities - {"fencing"}

    def __init__(self) -> None:
        super().__init__()
        self.leased: set[Any] = set()

    def lease(self, id, *, actor_id=None, timeout=None):
        import contextlib

        @contextlib.asynccontextmanager
        async def lease():
            if (actor_id, id) in self.leased:
                await asyncio.sleep(min(timeout or 0, 0.1))
                raise SessionBusyError("busy", waited=timeout)
            self.leased.add((actor_id, id))
            yield Lease(token="always")

        return lease()


class ClaimsToDelete(Simple):
    """Offers nothing, and answers as if it did."""

    async def delete(self, id, *, actor_id=None):
        return True


class KeepsMore(Simple):
    """And answers with all of it."""

    async def load(self, id, *, actor_id=None):
        found = await super().load(id, actor_id=actor_id)
        return found and {**found, "key": [actor_id, id], "format": 3}


class NumbersItsRevisions(Simple):
    """A revision is text, where there is any."""

    async def load(self, id, *, actor_id=None):
        found = await super().load(id, actor_id=actor_id)
        return found and {**found, "revision": 7}


class TailsWithoutSayingSo(Simple):
    """And wrongly."""

    async def tail(self, id, *, limit, before=None, actor_id=None):
        return Page(items=())


RACES = {"one-of-many-appends-wins", "no-turn-of-many-tasks-is-lost"}
CHECKS = {
    "a-stale-revision-is-refused",
    "a-first-write-can-insist-on-being-first",
    "a-session-made-again-is-another-one",
}
REPEATS = {
    "a-repeated-commit-gets-the-first-answer",
    "a-commit-that-no-check-would-stop-is-not-done-twice",
    "a-commit-of-a-thousand-messages-can-be-repeated",
    "a-repeated-commit-is-not-too-large",
}
QUICK = NAMES - LARGE
BROKEN: dict[type[SessionStore], set[str]] = {
    KeepsReferences: {"what-is-loaded-is-the-callers-own"},
    JoinsKeys: {"keys-do-not-meet"},
    NormalisesKeys: {"keys-do-not-meet"},
    CutsKeys: {"keys-do-not-meet"},
    ForgetsTheActor: {"keys-do-not-meet", "actors-do-not-see-each-other"},
    ChecksNoCount: {
        "one-of-many-appends-wins",
        "a-stale-append-is-refused",
        "actors-do-not-see-each-other",
        "a-commit-of-a-thousand-messages-is-one-commit",
    },
    ChecksTooEarly: RACES,
    SplitsCommits: {
        *RACES,
        "a-reader-sees-whole-commits",
        "a-reader-sees-large-commits-whole",
        "a-cancelled-write-is-whole-or-absent",
    },
    StripsNothing: {"reasoning-is-never-stored"},
    LosesNul: {"any-text-comes-back"},
    RoundsNumbers: {"numbers-come-back"},
    ShowsFailureAsEmpty: {"a-large-message-comes-back"},
    KeepsOldState: {"what-is-appended-is-loaded"},
    MakesWhatIsRead: {"loading-nothing-gives-none", "a-stale-append-is-refused"},
    Unlocked: {"synchronize-excludes", "synchronize-can-be-given-up"},
    ReplacesUnchecked: {
        *CHECKS,
        "actors-do-not-see-each-other",
        "one-of-many-replaces-wins",
        "a-fork-is-a-session-of-its-own",
        "an-expired-session-can-be-made-anew",
    },
    AppendsUnchecked: {
        *CHECKS,
        "nothing-is-restored-over-a-session",
        "an-expired-session-can-be-made-anew",
    },
    CountsAsRevision: {
        "what-was-written-under-a-lease-stays-written",
        "every-commit-has-a-revision-of-its-own",
        "a-stale-revision-is-refused",
        "a-session-made-again-is-another-one",
        "a-repeated-commit-gets-the-first-answer",
        "one-of-many-replaces-wins",
    },
    BeginsEpochsAtZero: {"a-session-made-again-is-another-one"},
    ForgetsCommitIds: {
        "what-was-written-under-a-lease-stays-written",
        *REPEATS,
        "a-commit-id-with-other-content-is-refused",
        "commit-ids-belong-to-one-session",
        "what-is-restored-is-a-session-like-any-other",
    },
    RemembersOneCommitId: REPEATS,
    KnowsIdsAndNotContent: {
        "what-was-written-under-a-lease-stays-written",
        "a-commit-id-with-other-content-is-refused",
        "a-commit-of-a-thousand-messages-can-be-repeated",
        "a-repeated-commit-is-not-too-large",
    },
    DropsIdsOnReplace: {
        "a-repeated-commit-gets-the-first-answer",
        "a-commit-that-no-check-would-stop-is-not-done-twice",
    },
    ListsEverybody: {
        "sessions-are-listed-by-actor-and-page",
        "a-list-by-id-goes-on-while-sessions-are-written",
    },
    TailsByCommit: {
        "a-tail-is-the-end-of-the-history",
        "a-tail-of-a-large-commit-begins-and-ends-anywhere",
        "a-tail-is-a-slice-of-any-history",
        "a-fork-of-a-large-commit-ends-anywhere",
    },
    CutsCalls: {"a-fork-parts-no-call-from-its-result", "a-fork-parts-no-call-of-a-large-commit"},
    DeletesMessagesOnly: {
        "actors-do-not-see-each-other",
        "commit-ids-belong-to-one-session",
        "a-deleted-session-is-gone",
        "a-list-by-time-goes-on-while-sessions-are-written",
        "nothing-is-restored-over-a-session",
    },
    LeasesToAll: {"a-lease-has-one-holder", "a-lease-is-waited-for"},
    LeasesForEver: {"a-lease-has-one-holder", "a-lease-is-waited-for"},
    ClaimsToDelete: {"what-is-not-offered-is-refused"},
    NumbersItsRevisions: {
        "a-session-reads-what-is-stored",
        "no-turn-of-many-tasks-is-lost",
        "a-commit-of-a-thousand-messages-is-one-commit",
    },
    TailsWithoutSayingSo: {"a-session-reads-what-is-stored"},
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
async def test_a_broken_store_fails_the_clauses_of_its_fault_and_no_other(
    broken: type[SessionStore], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_lists, "MOMENT", 0.002)
    report = await check_store(broken, only=QUICK | BROKEN[broken])
    assert {outcome.name for outcome in report.failed} == BROKEN[broken], str(report)
    assert not report.ok
    with pytest.raises(ClauseFailure, match="failed"):
        report.raise_for_failures()


# Faults that only another store or another process can see.

LATE = """
import asyncio, json, os
from littleghost.errors import ConflictError
from littleghost.sessions.contract import SessionStore

class Late(SessionStore):
    "Acknowledges first and writes a little later; two of them do not exclude each other."

    def __init__(self, folder):
        self.folder, self.kept, self.task = folder, {}, None

    def file(self, id):
        return os.path.join(self.folder, id)

    async def load(self, id, *, actor_id=None):
        if id in self.kept:
            return self.kept[id]
        if os.path.exists(self.file(id)):
            with open(self.file(id)) as file:
                return json.load(file)
        return None

    async def append(self, id, *, messages, state, metadata, expected_count, actor_id=None):
        old = (await self.load(id) or {"messages": []})["messages"]
        if len(old) != expected_count:
            raise ConflictError("stale", expected=expected_count, actual=len(old))
        self.kept[id] = {"messages": old + [m.to_dict() for m in messages], "state": state, "metadata": metadata}
        self.task = self.task or asyncio.get_running_loop().call_later(0.02, self.flush)

    async def replace(self, id, *, messages, state, metadata, actor_id=None):
        raise NotImplementedError

    def flush(self):
        for id, kept in self.kept.items():
            with open(self.file(id) + ".new", "w") as file:
                json.dump(kept, file)
            os.replace(self.file(id) + ".new", self.file(id))
        self.kept, self.task = {}, None

    async def aclose(self):
        self.flush()

def make():
    return Late(os.environ["LATE_FOLDER"])
"""


async def test_a_store_that_writes_too_late_is_caught_by_real_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "late_store.py").write_text(LATE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LATE_FOLDER", str(tmp_path))
    import late_store  # type: ignore[import-not-found]

    names = {
        "what-is-stored-survives-the-store",
        "no-turn-of-two-stores-is-lost",
        "no-turn-of-several-processes-is-lost",
        "a-killed-writer-loses-nothing",
        "a-killed-writer-of-large-commits-loses-nothing",
    }
    by_name = partial(check_store, lambda: late_store.make(), importable="late_store:make", persistent=True)
    report = await by_name(only=names, seconds=60)
    failed, race = {outcome.name for outcome in report.failed}, "no-turn-of-several-processes-is-lost"
    for _ in range(5):  # processes that a busy machine lets run one after another do not race
        if race not in failed:
            failed |= {outcome.name for outcome in (await by_name(only=[race], seconds=60)).failed}
    assert failed == names, str(report)
    (killed,) = [outcome for outcome in report.failed if outcome.name == "a-killed-writer-loses-nothing"]
    assert "lost" in str(killed.error) or "not there" in str(killed.error)


async def test_a_store_that_forgets_fails_where_persistence_is_promised():
    names = {"what-is-stored-survives-the-store"}
    report = await check_store(MemoryStore, only=names, persistent=True)
    assert {outcome.name for outcome in report.failed} == names
    report = await check_store(MemoryStore, only=names)
    assert report.failed == ()
    assert not report.ok, "a report of skipped clauses proves nothing"


async def test_what_another_process_cannot_make_is_skipped_and_says_so(tmp_path: Path):
    report = await check_store(lambda: SQLiteStore(tmp_path / "a.db"), only=["a-killed-writer-loses-nothing"])
    assert "importable" in report.skipped[0].reason


class Hangs(MemoryStore):
    async def append(self, id, **options):
        await asyncio.Event().wait()


class HangsInClosingToo(Hangs):
    async def aclose(self):
        await asyncio.Event().wait()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("hanging", [Hangs, HangsInClosingToo], ids=lambda hanging: hanging.__name__)
async def test_a_store_that_hangs_is_named_by_clause_and_takes_no_longer_than_it_must(
    hanging: type[SessionStore], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("littleghost.testing.conformance.GRACE", 0.1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    report = await check_store(hanging, seconds=0.2)
    assert loop.time() - began < 10
    late = [outcome for outcome in report.failed if "did not end within 0.2 s" in str(outcome)]
    assert len(late) == 3, str(report)
    untried = [outcome for outcome in report.skipped if "3 clauses before it did not end" in outcome.reason]
    assert len(report.outcomes) == len(CLAUSES)
    assert len(untried) > 20
    assert "what-is-appended-is-loaded" in {outcome.name for outcome in late}


async def test_a_store_that_hangs_seldom_does_not_stop_the_kit():
    class HangsOnce(MemoryStore):
        async def tail(self, id, **options):
            await asyncio.Event().wait()

    offers = [clause.name for clause in store_offers.CLAUSES]
    report = await check_store(HangsOnce, only=offers, seconds=2)
    assert [outcome.name for outcome in report.failed] == ["a-tail-is-the-end-of-the-history"]
    assert [outcome.name for outcome in report.passed] == [
        name for name in offers if name != "a-tail-is-the-end-of-the-history"
    ]
    assert "did not end within 2 s" in str(report)


def test_a_clause_with_processes_gets_its_share_of_the_time():
    limits = {clause.name: clause.timeout for clause in CLAUSES}
    assert limits["what-is-appended-is-loaded"] == 60
    assert limits["a-killed-writer-loses-nothing"] == 180


async def test_a_clause_that_hangs_fails_in_time():
    class Silent(MemoryStore):
        async def load(self, id, *, actor_id=None):
            await asyncio.Event().wait()

    (clause,) = [clause for clause in CLAUSES if clause.name == "loading-nothing-gives-none"]
    quick = type(clause)(name=clause.name, doc=clause.doc, function=clause.function, timeout=0.1)
    bench = await store_bench(Silent, persistent=False, seconds=0.1)
    report = await run_clauses([quick], bench, bench.capabilities)
    assert "did not end" in str(report)


# What the kit says of a wrong call, before it tries anything.


class Loads(Simple):
    def load(self, id, *, actor_id=None):
        return {"messages": []}


class Appends(Simple):
    def append(self, id, **options):
        return None


class Replaces(Simple):
    def replace(self, id, **options):
        return None


async def made_later() -> SessionStore:
    return Simple()


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (Simple(), {}, ["give it what makes one", "not a Simple"]),
        (dict, {}, ["made a dict, which is no SessionStore"]),
        (Loads, {}, ["Loads.load returned a dict", "async def load"]),
        (Appends, {}, ["Appends.append returned a NoneType", "async def append"]),
        (Replaces, {"persistent": True}, ["Replaces.replace returned a NoneType", "async def replace"]),
        (
            Simple,
            {"only": ["nonsense", "keys-do-not-meet"]},
            ["no clause 'nonsense'; the clauses are: ", "tail"],
        ),
        (Simple, {"only": "nonsense"}, ["no clause 'nonsense'; "]),
        (Simple, {"only": []}, ["only names no clause", "leave it out"]),
        (Simple, {"importable": "no_such_module:make"}, ["'no_such_module:make'", "No module named"]),
        (Simple, {"importable": "json:make"}, ["'json:make'", "no attribute 'make'"]),
        (Simple, {"importable": "json:__name__"}, ["names a str"]),
        (Simple, {"importable": "json"}, ["module:function"]),
        (Simple, {"importable": "__main__:make"}, ["module:function"]),
    ],
)
async def test_a_wrong_call_is_told_at_once_and_clearly(make: Any, options: dict[str, Any], words: list[str]):
    with pytest.raises(ConfigurationError) as caught:
        await check_store(make, **options)
    for word in words:
        assert word in str(caught.value)


async def test_a_factory_may_be_async_and_one_clause_a_text():
    report = await check_store(made_later, only="loading-nothing-gives-none")
    assert [outcome.name for outcome in report.passed] == ["loading-nothing-gives-none"]


async def test_failures_are_raised_without_what_was_skipped():
    report = await check_store(StripsNothing)
    assert "skipped " in str(report)
    with pytest.raises(ClauseFailure) as caught:
        report.raise_for_failures()
    assert "\n  failed  reasoning-is-never-stored" in str(caught.value)
    assert "\n  skipped" not in str(caught.value)
    report = await check_store(lambda: Simple(), only="a-lease-has-one-holder")
    with pytest.raises(ClauseFailure, match=r"\n  skipped a-lease-has-one-holder .needs leases"):
        report.raise_for_failures()


async def test_what_to_do_about_reasoning_is_said():
    report = await check_store(StripsNothing)
    for word in (
        "littleghost.transcript.without_reasoning(messages)",
        "message.without_reasoning()",
        "drops",
    ):
        assert word in str(report.failed[0].error)


RACING = """
import asyncio, hashlib, json, os, sys
from littleghost import ConflictError, SessionStore, transcript

class Racing(SessionStore):
    "Looks, waits and writes, and nothing keeps others out meanwhile."

    def file(self, id, actor_id):
        key = hashlib.sha256(json.dumps([actor_id, id]).encode()).hexdigest()
        return os.path.join(os.environ["RACING_FOLDER"], key)

    async def load(self, id, *, actor_id=None):
        if not os.path.exists(self.file(id, actor_id)):
            return None
        with open(self.file(id, actor_id)) as file:
            return json.load(file)

    async def append(self, id, *, messages, state, metadata, expected_count, actor_id=None):
        old = (await self.load(id, actor_id=actor_id) or {"messages": []})["messages"]
        if len(old) != expected_count:
            raise ConflictError("stale", expected=expected_count, actual=len(old))
        new = [message.to_dict() for message in transcript.without_reasoning(messages)]
        await asyncio.sleep(0.005)
        path = self.file(id, actor_id)
        with open(f"{path}.{os.getpid()}", "w") as file:
            json.dump({"messages": old + new, "state": dict(state), "metadata": dict(metadata)}, file)
        os.replace(file.name, path)

    async def replace(self, id, *, messages, state, metadata, actor_id=None):
        raise NotImplementedError

class Dying(Racing):
    "And one that breaks off with a long story."

    async def append(self, id, **options):
        if options["expected_count"] > 3 and os.environ.get("RACING_DIES") != str(os.getpid()):
            sys.stderr.write("a word\\n" * 100 + "the last word\\n")
            os._exit(7)
        await super().append(id, **options)
"""


async def test_a_race_of_processes_tells_what_was_lost_and_what_the_processes_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "racing_store.py").write_text(RACING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RACING_FOLDER", str(tmp_path))
    import racing_store  # type: ignore[import-not-found]

    race = partial(check_store, only="no-turn-of-several-processes-is-lost", persistent=True, seconds=30)
    (outcome,) = (await race(racing_store.Racing)).outcomes
    assert outcome.status == "failed"
    assert "acknowledged and lost: p" in str(outcome.error)
    (outcome,) = (await race(racing_store.Dying)).outcomes
    said = str(outcome.error)
    assert "of 4 processes" in said
    assert "failed with status 7, and wrote (the last 12 of 101 lines):" in said
    assert "the last word" in said
    assert len(said) < 2000
    assert capfd.readouterr().err == "", "what other processes wrote is in the report, and there alone"


def test_clauses_are_sentences_with_names_of_their_own():
    assert len(NAMES) == len(CLAUSES) > 40
    for clause in CLAUSES:
        assert clause.doc.endswith("."), clause.name


def test_the_kit_needs_no_pytest():
    import subprocess

    code = (
        "import sys, littleghost.testing.store_kit, littleghost.testing.faults;"
        "sys.exit('pytest' in sys.modules or 'sqlite3' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# The fault injector.


async def test_a_fault_before_a_write_leaves_nothing_and_one_after_leaves_it_written():
    from littleghost.errors import StoreUnavailableError

    inner = MemoryStore()
    store = (
        FaultyStore(inner)
        .fail("append", 1)
        .fail("append", 2, when="after")
        .fail("append", 3, error=OSError("x"))
    )
    write = partial(
        store.append,
        "a",
        messages=[Message.user("x")],
        state={},
        metadata={},
        expected_count=0,
        commit_id="c",
    )
    with pytest.raises(StoreUnavailableError, match="before append number 1"):
        await write()
    assert await inner.load("a") is None
    with pytest.raises(StoreUnavailableError, match="after append number 2"):
        await write()
    assert (await inner.load("a")).count == 1
    with pytest.raises(OSError, match="x"):
        await write()
    assert (await write()).count == 1, "the repeated commit is the first one"
    assert store.calls == ["append"] * 4


async def test_delays_hangs_and_healing():
    store = (
        FaultyStore(MemoryStore())
        .delay("load", 1, seconds=0.05)
        .hang("load", 2)
        .fail("*", None, when="after")
    )
    loop = asyncio.get_running_loop()
    start = loop.time()
    with pytest.raises(Exception, match="after"):
        await store.load("a")
    assert loop.time() - start >= 0.05
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await store.load("a")
    store.heal()
    assert await store.load("a") is None


def test_the_fault_injector_covers_the_whole_contract():
    names = {name for name in vars(SessionStore) if not name.startswith("_")} - {
        "capabilities",
        "granularity",
    }
    assert names <= set(vars(FaultyStore)), names - set(vars(FaultyStore))
