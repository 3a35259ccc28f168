"""Copying from store to store: restartable, checked, and nothing run over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from littleghost import (
    ALL_ACTORS,
    ConfigurationError,
    CorruptSessionError,
    MemoryStore,
    Message,
    ProtocolError,
    SessionStore,
    SQLiteStore,
    StoreUnavailableError,
    Transferred,
    UnsupportedError,
    copy_sessions,
    export_sessions,
    import_sessions,
    open_store,
    sync,
)
from littleghost.sessions.contract import Commit, Snapshot
from littleghost.testing import FaultyStore

Make = Callable[[], SessionStore]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[SessionStore] = []
    new_url = request.getfixturevalue("new_postgres_url") if request.param == "postgres" else None

    def build() -> SessionStore:
        if request.param == "memory":
            made.append(MemoryStore())
        elif new_url is not None:
            made.append(open_store(new_url()))
        else:
            made.append(SQLiteStore(tmp_path / f"{len(made)}.db", durability="off"))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()


def tasks() -> set[asyncio.Task[Any]]:
    """All but those of a store, which completes what was cancelled too late."""
    return {task for task in asyncio.all_tasks() if "Pool." not in repr(task.get_coro())}


async def fill(store: SessionStore, number: int, actor: str | None = None) -> None:
    for at in range(number):
        await store.restore(
            f"s{at:03}",
            messages=[Message.user(f"{at}.{turn}\0") for turn in range(at % 4)],
            state={"n": at},
            metadata={"at": at},
            created_at=1000.25 + at,
            updated_at=2000.5 + at,
            actor_id=actor,
        )


async def copied(source: SessionStore, destination: SessionStore, **options: Any) -> list[Transferred]:
    return [done async for done in copy_sessions(source, destination, **options)]


async def content(store: SessionStore) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for info in (await store.sessions(actor_id=ALL_ACTORS, limit=10_000)).items:
        snapshot = await store.load(info.id, actor_id=info.actor_id)
        assert snapshot is not None
        assert snapshot.count == info.count
        found[info.actor_id, info.id] = (
            msgspec.structs.replace(snapshot, revision=None),
            info.created_at,
            info.updated_at,
        )
    return found


def outcomes(done: list[Transferred]) -> list[str]:
    return [one.outcome for one in done]


async def test_all_of_it_is_copied_with_its_times_and_in_order(make: Make):
    source, destination = make(), make()
    for actor in (None, "", "bob"):
        await fill(source, 120 if actor is None else 3, actor)
    done = await copied(source, destination)
    assert outcomes(done) == ["written"] * 126
    assert [(one.actor_id, one.id) for one in done] == list(await content(source))
    assert await content(destination) == await content(source)
    assert sum(one.count for one in done) == sum(
        found.count for found, *_ in (await content(source)).values()
    )


async def test_between_kinds_of_stores(make: Make):
    for source, destination in ((make(), MemoryStore()), (MemoryStore(), make())):
        await fill(source, 5)
        await copied(source, destination)
        assert await content(destination) == await content(source)


async def test_one_actor_alone(make: Make):
    source, destination = make(), make()
    for actor in (None, "bob", "eve"):
        await fill(source, 2, actor)
    await copied(source, destination, actor_id="bob")
    assert {actor for actor, _ in await content(destination)} == {"bob"}
    await copied(source, destination, actor_id=None)
    assert {actor for actor, _ in await content(destination)} == {"bob", None}


@pytest.mark.parametrize("concurrency", [1, 3, 50])
async def test_a_second_time_writes_nothing(make: Make, concurrency: int):
    source, destination = make(), make()
    await fill(source, 10)
    await copied(source, destination, concurrency=concurrency)
    watched = FaultyStore(destination)
    assert outcomes(await copied(source, watched, concurrency=concurrency)) == ["same"] * 10
    assert set(watched.calls) == {"load"}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_copy_that_broke_off_goes_on(make: Make, when: Any):
    source, destination = make(), make()
    await fill(source, 20)
    for number in (3, 5, 1):
        faulty = FaultyStore(destination).fail("restore", number, when=when)
        with pytest.raises(StoreUnavailableError):
            await copied(source, faulty)
    assert 0 < len(await content(destination)) < 20
    done = await copied(source, destination)
    assert set(outcomes(done)) == {"same", "written"}
    assert await content(destination) == await content(source)


async def test_a_cancelled_copy_leaves_nothing_running_and_goes_on(make: Make):
    source, destination = make(), make()
    await fill(source, 20)
    faulty = FaultyStore(destination).hang("restore", 6)
    before = tasks()
    task = asyncio.create_task(copied(source, faulty))
    while faulty.calls.count("restore") < 6:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tasks() == before
    await copied(source, destination)
    assert await content(destination) == await content(source)


async def test_leaving_the_loop_early_leaves_nothing_running():
    source, destination = MemoryStore(), MemoryStore()
    await fill(source, 20)
    before = tasks()
    items = copy_sessions(source, FaultyStore(destination).hang("restore", 6), concurrency=7)
    async for _ in items:
        break
    await items.aclose()
    assert tasks() == before
    await copied(source, destination)
    assert await content(destination) == await content(source)


async def test_no_more_are_under_way_than_allowed():
    class Counting(MemoryStore):
        now = most = 0

        async def restore(self, id: str, **options: Any) -> Commit:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.001)
            self.now -= 1
            return await super().restore(id, **options)

    source = MemoryStore()
    await fill(source, 20)
    for concurrency in (1, 3):
        destination = Counting()
        await copied(source, destination, concurrency=concurrency)
        assert destination.most == concurrency


async def test_a_damaged_session_is_reported_and_the_others_are_copied(make: Make):
    source, destination = MemoryStore(), make()
    await fill(source, 5)
    kept = source._kept[None, "s003"]
    kept.bodies = [body[:-3] for body in kept.bodies]
    done = await copied(source, destination)
    assert outcomes(done) == ["written", "written", "written", "failed", "written"]
    assert (done[3].id, done[3].actor_id, done[3].count) == ("s003", None, 0)
    assert "cannot be read" in (done[3].problem or "")
    assert [id for _, id in await content(destination)] == ["s000", "s001", "s002", "s004"]


async def test_damage_at_the_other_end_is_reported_and_left_alone(make: Make):
    source, destination = make(), MemoryStore()
    await fill(source, 4)
    await copied(source, destination)
    kept = destination._kept[None, "s003"]
    kept.bodies = [body[:-3] for body in kept.bodies]
    for existing in ("fail", "skip", "replace"):
        done = await copied(source, destination, existing=existing)
        assert outcomes(done) == ["same", "same", "same", "failed"]


@pytest.mark.parametrize(
    ("existing", "outcome", "text"),
    [("fail", "failed", "mine"), ("skip", "skipped", "mine"), ("replace", "replaced", "2.0\0")],
)
async def test_another_session_in_its_place(make: Make, existing: Any, outcome: str, text: str):
    source, destination = make(), make()
    await fill(source, 3)
    await destination.replace("s002", messages=[Message.user("mine")], state={}, metadata={})
    done = await copied(source, destination, existing=existing)
    assert outcomes(done) == ["written", "written", outcome]
    snapshot = await destination.load("s002")
    assert snapshot is not None
    assert snapshot.messages[0].text == text


async def test_a_replaced_session_has_the_times_of_the_source(make: Make):
    source, destination = make(), make()
    await fill(source, 3)
    await destination.restore(
        "s002", messages=[Message.user("mine")], state={}, metadata={}, created_at=500.5, updated_at=1500.5
    )
    assert outcomes(await copied(source, destination, existing="replace")) == [
        "written",
        "written",
        "replaced",
    ]
    assert await content(destination) == await content(source)


async def test_the_destination_is_pruned_of_what_the_source_lost(make: Make):
    source, destination = make(), make()
    for actor in (None, "", "bob"):
        await fill(source, 3, actor)
    await copied(source, destination)
    for actor in (None, "", "bob"):
        await source.delete("s001", actor_id=actor)
    await destination.replace("new", messages=[Message.user("x")], state={}, metadata={})
    done = await copied(source, destination)
    assert outcomes(done) == ["same"] * 6
    assert len(await content(destination)) == 10
    done = await copied(source, destination, actor_id="bob", prune=True)
    assert [(one.outcome, one.actor_id, one.id) for one in done] == [
        ("same", "bob", "s000"),
        ("same", "bob", "s002"),
        ("pruned", "bob", "s001"),
    ]
    assert len(await content(destination)) == 9
    done = await copied(source, destination, prune=True)
    assert outcomes(done) == ["same"] * 6 + ["pruned"] * 3
    assert [(one.actor_id, one.id, one.count) for one in done[6:]] == [
        (None, "new", 0),
        (None, "s001", 0),
        ("", "s001", 0),
    ]
    assert await content(destination) == await content(source)


async def test_more_than_a_page_is_pruned(make: Make):
    source, destination = make(), make()
    await fill(destination, 250)
    await fill(source, 5)
    watched = FaultyStore(source)
    assert outcomes(await copied(watched, destination, prune=True)) == ["same"] * 5 + ["pruned"] * 245
    assert watched.calls.count("load") == 250  # what was copied is not looked for again
    assert await content(destination) == await content(source)


@pytest.mark.parametrize("where", ["body", "entry", "destination"])
async def test_nothing_is_pruned_where_a_session_failed(where: str):
    class Unlisted(MemoryStore):
        async def sessions(self, **options: Any) -> Any:
            page = await super().sessions(**options)
            if any(info.id == "s003" for info in page.items):
                raise CorruptSessionError("the entry is damaged")
            return page

    source = Unlisted() if where == "entry" else MemoryStore()
    destination = MemoryStore()
    await fill(source, 5)
    await fill(destination, 9)
    if where != "entry":
        kept = (source if where == "body" else destination)._kept[None, "s003"]
        kept.bodies = [body[:-3] for body in kept.bodies]
    done = await copied(source, destination, prune=True)
    assert "failed" in outcomes(done)
    assert "pruned" not in outcomes(done)
    assert len((await destination.sessions(limit=100)).items) == 9


async def test_nothing_is_pruned_where_the_source_goes_away():
    source, destination = MemoryStore(), MemoryStore()
    await fill(source, 150)
    await fill(destination, 9, "bob")
    for operation, number in (("sessions", 2), ("load", 150)):
        with pytest.raises(StoreUnavailableError):
            await copied(FaultyStore(source).fail(operation, number), destination, prune=True)
        assert len((await destination.sessions(actor_id="bob")).items) == 9


async def test_what_was_begun_in_the_source_meanwhile_is_not_pruned():
    class Growing(MemoryStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
            if id == "s002":
                await self.replace("s000", messages=[Message.user("anew")], state={}, metadata={})
            return await super().load(id, actor_id=actor_id)

    source, destination = Growing(), MemoryStore()
    await fill(source, 3)
    await copied(source, destination)
    await source.delete("s000")
    await source.delete("s001")
    done = await copied(source, destination, prune=True)
    assert [(one.outcome, one.id) for one in done] == [("same", "s002"), ("pruned", "s001")]


@pytest.mark.parametrize("actor", [ALL_ACTORS, "bob"])
async def test_a_source_with_nothing_prunes_nothing(make: Make, actor: Any):
    source, destination = make(), make()
    await fill(destination, 3, "bob")
    if actor == "bob":
        await fill(source, 2, "eve")
    assert await copied(make(), make(), prune=True) == []
    for options in ({}, {"existing": "replace"}):
        with pytest.raises(ConfigurationError, match=r"the source has no session.*nothing was deleted"):
            await copied(source, destination, actor_id=actor, prune=True, **options)
    assert len((await destination.sessions(actor_id="bob")).items) == 3


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_destination_that_can_take_none_is_told_once(tmp_path: Path, concurrency: int):
    (tmp_path / "none.db").write_bytes(b"no database" * 1000)
    source = MemoryStore()
    await fill(source, 30)
    lines = [line async for line in export_sessions(source)]
    async with SQLiteStore(tmp_path / "none.db") as destination:
        for done in (
            copy_sessions(source, destination, concurrency=concurrency),
            import_sessions(destination, lines),
        ):
            with pytest.raises(ProtocolError, match=r"none\.db"):
                await anext(done)


async def test_a_session_that_is_refused_does_not_stop_the_others(make: Make):
    class Choosy(MemoryStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
            if id == "s001":
                raise CorruptSessionError("this one is damaged")
            return await super().load(id, actor_id=actor_id)

    source = make()
    await fill(source, 3)
    assert outcomes(await copied(source, Choosy())) == ["written", "failed", "written"]


async def test_what_cannot_be_pruned_is_refused_before_anything_is_done(make: Make):
    class Keeping(MemoryStore):
        capabilities = MemoryStore.capabilities - {"delete"}

    class Blind(MemoryStore):
        capabilities = MemoryStore.capabilities - {"all_actors"}

    with pytest.raises(UnsupportedError, match="delete, which Keeping"):
        copy_sessions(make(), Keeping(), prune=True)
    with pytest.raises(UnsupportedError, match="all_actors, which Blind"):
        copy_sessions(make(), Blind(), prune=True)
    copy_sessions(make(), Blind(), actor_id="bob", prune=True)


async def test_a_store_onto_itself_is_not_pruned(make: Make):
    store = make()
    await fill(store, 5)
    assert outcomes(await copied(store, store, prune=True)) == ["same"] * 5
    assert len(await content(store)) == 5


async def test_a_copy_is_of_one_snapshot_while_the_source_goes_on():
    """Whatever is written to the source meanwhile, each copy is a state that the session had, whole."""

    class Busy(MemoryStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
            snapshot = await super().load(id, actor_id=actor_id)
            if snapshot is not None:
                turn = snapshot.count + 1
                await self.append(
                    id,
                    messages=[Message.user(str(turn))],
                    state={"turn": turn},
                    metadata={},
                    expected_count=snapshot.count,
                )
            return snapshot

    source, destination = Busy(), MemoryStore()
    for number in range(20):
        await source.replace(f"s{number}", messages=[Message.user("1")], state={"turn": 1}, metadata={})
    assert outcomes(await copied(source, destination)) == ["written"] * 20
    for snapshot, *_ in (await content(destination)).values():
        assert [message.text for message in snapshot.messages] == ["1"]
        assert snapshot.state == {"turn": 1}
    # The source has gone on since, so the copy is made anew where that was asked for, and only there.
    assert outcomes(await copied(source, destination)) == ["failed"] * 20
    assert outcomes(await copied(source, destination, existing="replace")) == ["replaced"] * 20


async def test_a_session_deleted_meanwhile_is_no_outcome():
    class Shrinking(MemoryStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
            if id == "s001":
                await self.delete(id)
            return await super().load(id, actor_id=actor_id)

    source, destination = Shrinking(), MemoryStore()
    await fill(source, 3)
    assert [one.id for one in await copied(source, destination)] == ["s000", "s002"]


@pytest.mark.parametrize("what", ["state", "metadata", "messages", "last message"])
async def test_a_destination_that_does_not_keep_what_it_is_given_is_found_out(what: str):
    class Forgetful(MemoryStore):
        async def restore(self, id: str, **options: Any) -> Commit:
            if what == "messages":
                options["messages"] = [Message.user("instead") for _ in options["messages"]]
            elif what == "last message":
                options["messages"] = options["messages"][:-1]
            else:
                options[what] = {}
            return await super().restore(id, **options)

    source = MemoryStore()
    await fill(source, 3)
    done = (await copied(source, Forgetful()))[2]
    assert done.outcome == "failed"
    assert "does not keep what it is given" in (done.problem or "")


async def test_who_writes_to_the_copy_before_it_is_read_back_is_told_apart():
    class Eager(MemoryStore):
        async def restore(self, id: str, **options: Any) -> Commit:
            commit = await super().restore(id, **options)
            await self.append(id, messages=[], state={"new": 1}, metadata={}, expected_count=commit.count)
            return commit

    source = MemoryStore()
    await fill(source, 1)
    (done,) = await copied(source, Eager())
    assert done.outcome == "failed"
    assert "changed in the destination" in (done.problem or "")


async def test_one_that_is_written_all_the_while_is_given_up():
    class Restless(MemoryStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
            snapshot = await super().load(id, actor_id=actor_id)
            await self.replace(id, messages=[], state={"more": 1}, metadata={})
            return snapshot

    source, destination = MemoryStore(), Restless()
    await fill(source, 1)
    await destination.replace("s000", messages=[], state={}, metadata={})
    (done,) = await copied(source, destination, existing="replace")
    assert done.outcome == "failed"
    assert "all the while" in (done.problem or "")


async def test_a_store_onto_itself_changes_nothing(make: Make):
    store = make()
    await fill(store, 5)
    before = await content(store)
    assert outcomes(await copied(store, store, existing="replace")) == ["same"] * 5
    assert await content(store) == before


async def test_a_store_of_ones_own_that_answers_with_mappings():
    class Own(SessionStore):
        capabilities = frozenset({"sessions"})

        async def sessions(self, **options: Any) -> Any:
            return await kept.sessions(actor_id=options["actor_id"])

        async def load(self, id: str, *, actor_id: str | None = None) -> Any:
            snapshot = await kept.load(id, actor_id=actor_id)
            assert snapshot is not None
            return {"messages": [message.to_dict() for message in snapshot.messages], "state": snapshot.state}

        async def append(self, id: str, **options: Any) -> Any:
            raise AssertionError

        async def replace(self, id: str, **options: Any) -> Any:
            raise AssertionError

    kept, destination = MemoryStore(), MemoryStore()
    await fill(kept, 3, "bob")
    assert outcomes(await copied(Own(), destination, actor_id="bob")) == ["written"] * 3
    snapshot = await destination.load("s002", actor_id="bob")
    assert snapshot is not None
    assert [message.text for message in snapshot.messages] == ["2.0\0", "2.1\0"]
    with pytest.raises(UnsupportedError, match="all_actors, which Own"):
        copy_sessions(Own(), destination)
    with pytest.raises(UnsupportedError, match="revisions, which Own"):
        copy_sessions(kept, Own())


async def test_arguments_that_make_no_sense():
    store = MemoryStore()
    with pytest.raises(ConfigurationError, match="existing"):
        copy_sessions(store, store, existing="merge")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="concurrency"):
        copy_sessions(store, store, concurrency=0)


async def test_the_synchronous_face_does_the_same():
    source, destination = MemoryStore(), MemoryStore()
    await fill(source, 9)
    assert outcomes(list(sync.copy_sessions(source, sync.Store(destination)))) == ["written"] * 9
    assert await content(destination) == await content(source)
    for _ in sync.copy_sessions(source, MemoryStore()):
        break
