"""What AgentCore Memory drops, keeps by halves or holds much of: it is told, never shown as an empty history, and can be gone on from."""

from __future__ import annotations

import asyncio
from typing import Any

import agentcore
import pytest
from agentcore import ACTOR, append, operations, texts

from littleghost import (
    AgentCoreMemoryStore,
    CorruptSessionError,
    CredentialError,
    MemoryStore,
    Message,
    StoreUnavailableError,
    copy_sessions,
)
from littleghost.emulators.agentcore import AgentCoreEmulator, Fault
from littleghost.sessions.agentcore import rooting
from littleghost.sessions.agentcore.history import History

DAY = 86_400.0


class Clock:
    """A clock that only goes when told, shared by the store and the emulator."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def emulator(clock: Clock):
    with AgentCoreEmulator({agentcore.DEFAULT_MEMORY: 10}, clock=clock) as emulator:
        yield emulator


def by_format(emulator: AgentCoreEmulator) -> list[str]:
    """Return what a reader makes of everything that is stored, by the rules that LittleGhost for Ruby goes by."""
    history = History()
    history.add(list(reversed(emulator.events())), last=True)
    return [message.text for message in history.messages()]


async def test_a_session_whose_root_has_expired_is_damaged_and_not_empty(
    emulator: AgentCoreEmulator, clock: Clock
):
    store = agentcore.store(emulator, clock=clock)
    await append(store, "s", "one", count=0)
    clock.now += 6 * DAY
    await append(store, "s", "two", count=1)
    clock.now += 5 * DAY
    for one in (store, agentcore.store(emulator, clock=clock)):
        with pytest.raises(CorruptSessionError, match="expired"):
            await one.load("s", actor_id=ACTOR)
        with pytest.raises(CorruptSessionError):
            await one.tail("s", limit=5, actor_id=ACTOR)
        for count in (2, 1, 0):
            with pytest.raises(CorruptSessionError, match="replace"):
                await append(one, "s", "three", count=count, commit_id=f"c{count}")
        with pytest.raises(CorruptSessionError):
            await one.fork("s", "other", actor_id=ACTOR)
    assert len(emulator.events()) == 2, "nothing was written"


async def test_a_store_that_knows_the_head_notices_that_the_root_has_expired(
    emulator: AgentCoreEmulator, clock: Clock
):
    """It need not have read the session for days."""
    store = agentcore.store(emulator, clock=clock)
    for number in range(10):
        await append(store, "s", f"{number}", count=number)
        clock.now += DAY
    emulator.reset_calls()
    for error in (CorruptSessionError, CorruptSessionError):
        with pytest.raises(error, match="expired"):
            await append(store, "s", "10", count=10)
    assert "CreateEvent" not in operations(emulator.calls)


async def test_replace_starts_a_session_afresh_whose_root_has_expired(
    emulator: AgentCoreEmulator, clock: Clock
):
    store = agentcore.store(emulator, clock=clock)
    for number in range(3):
        await append(store, "s", f"{number}", count=number)
        clock.now += 4 * DAY
    with pytest.raises(CorruptSessionError):
        await texts(store, "s")
    new = [Message.user("new")]
    await agentcore.store(emulator, clock=clock).replace(
        "s", messages=new, state={"new": True}, metadata={}, actor_id=ACTOR
    )
    await append(store, "s", "end", count=1)
    assert await texts(agentcore.store(emulator), "s") == ["new", "end"]
    assert by_format(emulator) == ["new", "end"]


async def test_a_session_of_which_all_has_expired_is_none(emulator: AgentCoreEmulator, clock: Clock):
    store = agentcore.store(emulator, clock=clock)
    await append(store, "s", "one", count=0)
    clock.now += 11 * DAY
    assert await texts(store, "s") is None
    await append(store, "s", "again", count=0)
    assert await texts(agentcore.store(emulator), "s") == ["again"]


@pytest.mark.parametrize("step", [DAY, 4.9 * DAY])
async def test_a_session_that_is_written_to_outlives_the_retention(
    emulator: AgentCoreEmulator, clock: Clock, step: float
):
    store = agentcore.store(emulator, clock=clock, retention=10 * DAY)
    said: list[str] = []
    for number in range(int(60 * DAY / step)):
        await append(store, "s", f"{number}", count=number, state={"number": number})
        said.append(f"{number}")
        clock.now += step
        if number % 7 == 3:
            store = agentcore.store(emulator, clock=clock, retention=10 * DAY)
        assert await texts(agentcore.store(emulator), "s") == said
    assert by_format(emulator) == said
    assert min(event["eventTimestamp"] for event in emulator.events()) > clock.now - 11 * DAY


async def test_a_commit_sent_again_over_a_new_root_has_its_first_answer(
    emulator: AgentCoreEmulator, clock: Clock
):
    store = agentcore.store(emulator, clock=clock, retention=10 * DAY)
    first = await append(store, "s", "one", count=0, commit_id="c1")
    clock.now += 6 * DAY
    second = await append(store, "s", "two", count=1, commit_id="c2")
    for one in (store, agentcore.store(emulator, clock=clock, retention=10 * DAY)):
        assert await append(one, "s", "two", count=1, commit_id="c2") == second
        assert await append(one, "s", "one", count=0, commit_id="c1") == first
    assert await texts(store, "s") == ["one", "two"]


async def test_a_session_of_many_commits_begins_anew_from_a_root_with_all_messages(
    emulator: AgentCoreEmulator, clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rooting, "MAX_LINEAGE_COMMITS", 20)
    store = agentcore.store(emulator, clock=clock)
    for number in range(55):
        await append(store, "s", f"{number}", count=number)
    said = [f"{number}" for number in range(55)]
    assert await texts(agentcore.store(emulator), "s") == said
    assert by_format(emulator) == said
    emulator.reset_calls()
    page = await agentcore.store(emulator).tail("s", limit=3, actor_id=ACTOR)
    assert [message.text for message in page.items] == said[-3:]


@pytest.mark.timeout(300)
async def test_five_hundred_commits_and_more_are_one_session(emulator: AgentCoreEmulator, clock: Clock):
    store = agentcore.store(emulator, clock=clock)
    count = rooting.MAX_LINEAGE_COMMITS + 60
    for number in range(count):
        await append(store, "s", f"{number}", count=number)
        clock.now += 1.0
    roots = [event for event in emulator.events() if '"root":true' in str(event["payload"])]
    assert len(roots) == 2
    said = [f"{number}" for number in range(count)]
    emulator.reset_calls()
    assert await texts(agentcore.store(emulator), "s") == said
    assert len(emulator.calls) <= 4, "what was before the root is not read"
    assert by_format(emulator) == said


@pytest.mark.timeout(300)
async def test_a_state_of_a_megabyte_that_is_written_a_hundred_times_is_read_with_few_calls(clock: Clock):
    state = {"blob": "x" * 1_000_000}
    read: list[int] = []
    with AgentCoreEmulator(clock=clock, record=False) as emulator:
        client = agentcore.Wrapped(agentcore.patient(emulator))
        store = AgentCoreMemoryStore(agentcore.DEFAULT_MEMORY, client=client, clock=clock)
        for number in range(100):
            await append(store, "s", f"{number}", count=number, state={**state, "number": number})
        with AgentCoreEmulator(clock=clock) as other:
            other.put(*emulator.events())
            for _ in range(2):
                other.reset_calls()
                fresh = agentcore.store(other, clock=clock)
                snapshot = await fresh.load("s", actor_id=ACTOR)
                assert snapshot is not None
                assert snapshot.state["number"] == snapshot.count - 1
                read.append(len(other.calls))
                await append(
                    fresh, "s", "more", count=snapshot.count, state={**state, "number": snapshot.count}
                )
            await fresh.replace("s", messages=[], state=state, metadata={}, actor_id=ACTOR)
            assert await texts(agentcore.store(other), "s") == []
    assert max(read) <= 3


@pytest.mark.parametrize("there", range(6))
async def test_a_delete_that_fails_at_any_event_leaves_damage_or_the_whole_and_is_finished_by_another(
    emulator: AgentCoreEmulator, clock: Clock, there: int
):
    store = agentcore.store(emulator, clock=clock)
    for number in range(3):
        await append(store, "s", f"{number}", count=number)
    kept = emulator.events()[there]["eventId"]
    emulator.fault(Fault(kind="quota_exceeded", where=lambda call: call.params.get("eventId") == kept))
    with pytest.raises(
        StoreUnavailableError, match=r"events of the session are left.*Delete it again"
    ) as caught:
        await store.delete("s", actor_id=ACTOR)
    left = len(emulator.events())
    assert caught.value.left == left
    emulator.clear_faults()
    for one in (store, agentcore.store(emulator)):
        if left == 6:
            assert await texts(one, "s") == ["0", "1", "2"]
            continue
        with pytest.raises(CorruptSessionError, match=r"delete|expired"):
            await texts(one, "s")
        with pytest.raises(CorruptSessionError):
            await append(one, "s", "x", count=3)
    other = agentcore.store(emulator)
    assert await other.delete("s", actor_id=ACTOR) is True
    assert emulator.events() == []
    assert await other.delete("s", actor_id=ACTOR) is False
    assert await texts(store, "s") is None


async def test_no_reader_takes_a_session_that_is_being_deleted_for_an_earlier_one(
    emulator: AgentCoreEmulator, clock: Clock
):
    store = agentcore.store(emulator, clock=clock)
    for number in range(6):
        await append(store, "s", f"{number}", count=number)
    await store.replace("s", messages=[Message.user("summary")], state={}, metadata={}, actor_id=ACTOR)
    whole = ["summary", *(f"{number}" for number in range(4))]
    for number in range(4):
        await append(store, "s", f"{number}", count=number + 1)
    seen: list[Any] = []
    client = agentcore.Wrapped(
        agentcore.patient(emulator), after=lambda name, _: seen.append(_seen(emulator))
    )
    await agentcore.store(emulator, client=client).delete("s", actor_id=ACTOR)
    assert [one for one in seen if one not in (whole, "damage", None)] == []
    assert seen.index("damage") < seen.index(None)


def _seen(emulator: AgentCoreEmulator) -> Any:
    try:
        return by_format(emulator) if emulator.events() else None
    except CorruptSessionError:
        return "damage"


async def test_an_answer_that_is_none_is_not_an_empty_history(
    emulator: AgentCoreEmulator, monkeypatch: pytest.MonkeyPatch
):
    """botocore makes an answer without content of a body that is no JSON, and raises nothing."""
    await append(agentcore.store(emulator), "s", "here", count=0)
    emulator.fault("ListEvents:truncated")
    monkeypatch.setattr("littleghost.sessions.agentcore.calls.FIRST_PAUSE", 0.001)
    store = agentcore.store(emulator)
    for work in (
        store.load("s", actor_id=ACTOR),
        store.tail("s", limit=1, actor_id=ACTOR),
        store.delete("s", actor_id=ACTOR),
        append(store, "s", "x", count=0),
    ):
        with pytest.raises(StoreUnavailableError, match="answer"):
            await work
    emulator.clear_faults()
    assert await texts(store, "s") == ["here"]


async def test_a_client_that_returns_a_page_without_its_events_is_told(
    emulator: AgentCoreEmulator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("littleghost.sessions.agentcore.calls.FIRST_PAUSE", 0.001)

    class Empty:
        def list_events(self, **_: Any) -> dict[str, Any]:
            return {"ResponseMetadata": {"HTTPStatusCode": 200}}

    store = AgentCoreMemoryStore(agentcore.DEFAULT_MEMORY, client=Empty())
    with pytest.raises(StoreUnavailableError):
        await store.load("s", actor_id=ACTOR)


async def test_a_poisoned_page_is_told(emulator: AgentCoreEmulator, monkeypatch: pytest.MonkeyPatch):
    """An item that botocore cannot read is an error of the whole page, also when it is asked for again."""
    monkeypatch.setattr("littleghost.sessions.agentcore.calls.FIRST_PAUSE", 0.001)
    store = agentcore.store(emulator)
    await append(store, "s", "here", count=0)
    (event, _) = emulator.events()
    emulator.put({**event, "eventId": "0000000000000000001#00000000", "payload": [{"blob": None}]})
    with pytest.raises(StoreUnavailableError):
        await texts(agentcore.store(emulator), "s")


async def test_one_delete_ends_while_others_append(emulator: AgentCoreEmulator):
    """Whatever the order, what is left is a whole session or none."""
    for turn in range(10):
        id = f"s{turn}"
        writer, deleter = agentcore.store(emulator), agentcore.store(emulator)
        await append(writer, id, "0", count=0)

        async def write(id: str = id, writer: AgentCoreMemoryStore = writer) -> None:
            for number in range(1, 6):
                try:
                    await append(writer, id, f"{number}", count=number)
                except Exception as error:
                    if "half" in str(error):
                        raise

        await asyncio.gather(write(), deleter.delete(id, actor_id=ACTOR))
        found = await texts(agentcore.store(emulator), id)
        assert found is None or found == [str(number) for number in range(len(found))]
    assert "DeleteEvent" in operations(emulator.calls)


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_session_with_a_checkpoint_missing_in_its_middle_is_damaged_and_not_shorter(
    emulator: AgentCoreEmulator, clock: Clock, number: int
):
    store = agentcore.store(emulator, clock=clock)
    for count in range(5):
        await append(store, "s", str(count), count=count)
    checkpoints = [event for event in emulator.events() if "blob" in event["payload"][0]]
    gone = checkpoints[number]
    emulator.client().delete_event(
        **{name: gone[name] for name in ("memoryId", "actorId", "sessionId", "eventId")}
    )
    before = len(emulator.events())
    fresh = agentcore.store(emulator, clock=clock)
    with pytest.raises(CorruptSessionError, match="is gone"):
        await fresh.load("s", actor_id=ACTOR)
    with pytest.raises(CorruptSessionError, match="is gone"):
        await append(fresh, "s", "new", count=number)
    with pytest.raises(CorruptSessionError):
        await fresh.tail("s", limit=5, actor_id=ACTOR)
    assert len(emulator.events()) == before

    await fresh.replace("s", messages=[Message.user("afresh")], state={}, metadata={}, actor_id=ACTOR)
    assert await texts(agentcore.store(emulator, clock=clock), "s") == ["afresh"]
    assert by_format(emulator) == ["afresh"]


@pytest.mark.parametrize("hidden", range(6))
async def test_what_a_list_does_not_show_yet_is_waited_for(
    emulator: AgentCoreEmulator, monkeypatch: pytest.MonkeyPatch, hidden: int
):
    monkeypatch.setattr("littleghost.sessions.agentcore.reading.PAUSES", (0.001, 0.002))
    for number in range(3):
        await append(agentcore.store(emulator), "s", f"{number}", count=number)
    event_id = emulator.events()[hidden]["eventId"]

    class Hiding:
        """A client whose first list leaves an event out."""

        def __init__(self) -> None:
            self.client, self.hides = agentcore.patient(emulator), True

        def __getattr__(self, name: str) -> Any:
            return getattr(self.client, name)

        def list_events(self, **params: Any) -> dict[str, Any]:
            answer = self.client.list_events(**params)
            if self.hides:
                answer["events"] = [one for one in answer["events"] if one["eventId"] != event_id]
            self.hides = False
            return answer

    newest = "1" if hidden == 5 else "2"  # the last checkpoint is of no commit that anybody knows of yet
    assert (await texts(agentcore.store(emulator, client=Hiding()), "s") or [])[-1] == newest
    tail = await agentcore.store(emulator, client=Hiding()).tail("s", limit=1, actor_id=ACTOR)
    assert [message.text for message in tail.items] == [newest]
    tail = await agentcore.store(emulator, client=Hiding()).tail("s", limit=3, actor_id=ACTOR)
    assert [message.text for message in tail.items][-1] == newest


async def test_what_may_not_be_deleted_is_no_matter_of_trying_again(
    emulator: AgentCoreEmulator, clock: Clock
):
    store = agentcore.store(emulator, clock=clock)
    await append(store, "s", "one", count=0)
    emulator.fault(Fault(operation="DeleteEvent", kind="access_denied"))
    with pytest.raises(CredentialError):
        await store.delete("s", actor_id=ACTOR)


async def test_a_session_of_nobody_is_the_only_one_that_is_not_copied(
    emulator: AgentCoreEmulator, clock: Clock
):
    source = MemoryStore()
    for id, actor in (("a", "u1"), ("b", None), ("c", "u2")):
        await source.append(
            id, messages=[Message.user(id)], state={}, metadata={}, expected_count=0, actor_id=actor
        )
    store = agentcore.store(emulator, clock=clock)
    done = {(one.id, one.outcome): one.problem async for one in copy_sessions(source, store)}
    assert set(done) == {("a", "written"), ("b", "failed"), ("c", "written")}
    assert "actor" in (done["b", "failed"] or "")


async def test_a_damaged_session_is_one_where_there_must_be_none(emulator: AgentCoreEmulator, clock: Clock):
    store = agentcore.store(emulator, clock=clock)
    await append(store, "other", "x", count=0)
    await append(store, "s", "one", count=0)
    clock.now += 6 * DAY
    await append(store, "s", "two", count=1)
    await append(store, "other", "y", count=1)
    clock.now += 5 * DAY
    await append(store, "source", "z", count=0)
    before = len(emulator.events())
    with pytest.raises(CorruptSessionError):
        await store.fork("source", "s", actor_id=ACTOR)
    with pytest.raises(CorruptSessionError):
        await store.restore("s", messages=[], state={}, metadata={}, actor_id=ACTOR, expected_revision=None)
    assert len(emulator.events()) == before
