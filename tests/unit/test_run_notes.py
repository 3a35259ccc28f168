"""What a run keeps in the session's metadata, beside the keys of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from littleghost import (
    Agent,
    Budget,
    ConfigurationError,
    MemoryStore,
    Message,
    ProtocolError,
    RunContext,
    Runtime,
    Session,
    SQLiteStore,
    ToolUse,
    tool,
)
from littleghost.runs.limits import Spent
from littleghost.runs.notes import Notes, Wait
from littleghost.testing import ScriptedModel


def call(name: str, **given: Any) -> Message:
    return Message.assistant([ToolUse(id="c", name=name, input=given)])


async def notes(store: Any, id: str = "s") -> Any:
    return (await Session(id=id, store=store).metadata()).get("littleghost")


def test_notes_come_back_and_leave_everything_else_alone() -> None:
    known = {"title": "Mine", "littleghost": {"life": "a", "of_a_newer_version": [1]}}
    read = Notes.read(known)
    changed = Notes(
        life=read.life, approvals={"1": {"c": Wait(arguments='{"a":1}')}}, spent=Spent(turns=2, cost=0.5)
    )
    written = changed.written(known)
    assert written == {
        "title": "Mine",
        "littleghost": {
            "life": "a",
            "of_a_newer_version": [1],
            "approvals": {"1": {"c": {"arguments": '{"a":1}'}}},
            "spent": {"turns": 2, "cost": 0.5},
        },
    }
    assert Notes.read(written) == changed
    assert Notes(life="a").written(written) == known
    with pytest.raises(ProtocolError, match=r"metadata\.littleghost"):
        Notes.read({"littleghost": "mine"})


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_first_commit_of_a_run_gives_the_session_a_life(kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "s.db")
    keys: list[str | None] = []

    @tool
    async def look(context: RunContext) -> str:
        keys.append(context.idempotency_key)
        return "seen"

    async with store, Runtime(session_store=store) as runtime:
        for _ in range(2):
            session = Session(id="s", store=store, metadata={"title": "Mine"})
            await session.append([])
            agent = Agent(ScriptedModel([call("look"), "Done."]), tools=[look])
            await runtime.ask(agent, "Look.", session_id="s")
            life = (await notes(store))["life"]
            await runtime.ask(Agent(ScriptedModel(["Yes."])), "Well?", session_id="s")
            assert (await session.reload()) is not None
            assert await session.metadata() == {"title": "Mine", "littleghost": {"life": life}}
            await session.delete()
    assert len(set(keys)) == 2, "the same place in a session that was begun anew is another call"


async def test_a_run_goes_on_with_an_agent_of_the_same_name() -> None:
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(Agent(ScriptedModel(["Hello."]), name="shop"), "Hi.", session_id="s")
        assert (await notes(store))["agent"] == "shop"
        with pytest.raises(ConfigurationError, match=r"'other'.*'shop'"):
            await runtime.resume(Agent(ScriptedModel([]), name="other"), session_id="s")
        assert (await runtime.resume(Agent(ScriptedModel([]), name="shop"), session_id="s")).text == "Hello."
        await runtime.ask(Agent(ScriptedModel(["Hello."])), "Hi.", session_id="s")
        assert "agent" not in await notes(store)


async def test_an_application_that_writes_metadata_leaves_the_notes() -> None:
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        agent = Agent(ScriptedModel(["one", "two", "three"]), budget=Budget(turns=2))
        await runtime.ask(agent, "Go.", session_id="s")
        session = runtime.session("s")
        noted = (await session.metadata())["littleghost"]
        await session.append([], metadata={"title": "t"})
        assert await session.metadata() == {"title": "t", "littleghost": noted}
        await session.replace(await session.history(), metadata={"title": "u"})
        await session.checkpoint(await session.history(), metadata={})
        assert await runtime.session("s").metadata() == {"littleghost": noted}
        await runtime.ask(agent, "Go.", session_id="s")
        assert (await runtime.ask(agent, "Go.", session_id="s")).outcome == "partial"
        await session.reload()
        await session.append([], metadata={"littleghost": {}})  # who means it can
        assert await session.metadata() == {"littleghost": {}}


async def test_a_projection_does_not_tell_the_notes() -> None:
    told: list[Any] = []

    class Projecting(MemoryStore):
        async def project_conversation(self, id: str, **given: Any) -> None:
            told.append(given["metadata"])

    store = Projecting()
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(Agent(ScriptedModel(["one"])), "Go.", session_id="s")
    session = Session(id="s", store=store)
    await session.append([], metadata={"title": "t"})
    await session.project_conversation(await session.history())
    assert told == [{"title": "t"}]
