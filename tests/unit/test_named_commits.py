"""A commit that the caller names is one commit, whoever sends it how often."""

from __future__ import annotations

import pytest

from littleghost import ConflictError, MemoryStore, Message, Session


async def test_a_process_that_loads_the_session_first_does_not_commit_twice() -> None:
    store = MemoryStore()
    first = await Session(id="s", store=store).append([Message.user("hi")], commit_id="turn-1")
    other = Session(id="s", store=store)
    assert len(await other.history()) == 1
    assert await other.append([Message.user("hi")], commit_id="turn-1") == first
    assert len(await other.history()) == 1
    await other.append([Message.assistant("Hello.")], commit_id="turn-2")
    late = Session(id="s", store=store)
    await late.load()
    assert await late.append([Message.user("hi")], commit_id="turn-1") == first
    assert [message.text for message in await late.history()] == ["hi", "Hello."]
    assert (await late.append([Message.user("more")], commit_id="turn-3")).count == 3


async def test_a_state_and_a_replacement_too() -> None:
    store = MemoryStore()
    session = Session(id="s", store=store)
    await session.append([], state={"n": 1}, commit_id="state")
    await Session(id="s", store=store).replace([Message.user("a")], state={"n": 2}, commit_id="whole")
    again = Session(id="s", store=store)
    assert (await again.state()) == {"n": 2}
    await again.append([], state={"n": 1}, commit_id="state")
    await again.replace([Message.user("a")], state={"n": 2}, commit_id="whole")
    assert (await again.reload()) == (await Session(id="s", store=store).load())
    assert (await again.state()) == {"n": 2}


async def test_the_same_name_for_something_else_is_a_conflict() -> None:
    store = MemoryStore()
    await Session(id="s", store=store).append([Message.user("hi")], commit_id="turn-1")
    other = Session(id="s", store=store)
    await other.load()
    with pytest.raises(ConflictError) as caught:
        await other.append([Message.user("something else")], commit_id="turn-1")
    assert caught.value.commit_id == "turn-1"
    assert len(await other.history()) == 1


@pytest.mark.parametrize("kind", ["append", "replace"])
async def test_who_knew_of_no_session_believes_in_no_history_that_lacks_what_was_before(kind: str) -> None:
    store = MemoryStore()
    late, other = Session(id="s", store=store), Session(id="s", store=store)
    assert await late.load() is None
    await other.append([Message.user("A")], state={"a": 1})
    commit = {"messages": [Message.user("B")], "state": {"a": 1, "b": 2}, "commit_id": "turn-1"}
    first = await getattr(other, kind)(**commit)
    assert await getattr(late, kind)(**commit) == first
    seen = [message.text for message in await late.history()]
    assert seen == [message.text for message in await other.history()]
    await late.replace([Message.user("summary of " + " ".join(seen))])
    summary = "summary of A B" if kind == "append" else "summary of B"
    assert [message.text for message in (await store.load("s")).messages] == [summary]


async def test_a_first_answer_from_a_store_without_revisions_is_no_second_turn() -> None:
    class Unrevised(MemoryStore):
        capabilities = MemoryStore.capabilities - {"revisions"}

    store = Unrevised()
    await Session(id="s", store=store).append([Message.user("A")], commit_id="turn-1")
    await Session(id="s", store=store).append([Message.user("B")], commit_id="turn-2")
    other = Session(id="s", store=store)
    assert len(await other.history()) == 2
    assert (await other.append([Message.user("A")], commit_id="turn-1")).count == 1
    assert [message.text for message in await other.history()] == ["A", "B"]
