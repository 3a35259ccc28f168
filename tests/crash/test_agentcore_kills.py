"""A writer in AgentCore Memory that is killed after any of its calls, and another process that goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import agentcore
import pytest
from agentcore import ACTOR, append, texts

from littleghost import AgentCoreMemoryStore, CorruptSessionError, Message
from littleghost.emulators.agentcore import AgentCoreEmulator
from littleghost.sessions.agentcore import rooting

WORK = """
import asyncio, os, sys
sys.path[:0] = [{folder!r}]
import agentcore, test_agentcore_kills

async def main():
    client = agentcore.client_at(os.environ[agentcore.ENDPOINT])
    dying = agentcore.Dying(client, int(sys.argv[2]), after=True)
    store = agentcore.AgentCoreMemoryStore(agentcore.DEFAULT_MEMORY, client=dying.client)
    test_agentcore_kills.rooting.MAX_LINEAGE_COMMITS = test_agentcore_kills.COMMITS
    await getattr(test_agentcore_kills, sys.argv[1])(store)

asyncio.run(main())
"""
COMMITS = 4
"""How many commits follow a root in these tests."""
OLD = ["0", "1"]


async def first_append(store: AgentCoreMemoryStore) -> None:
    await append(store, "new", "a", "b", count=0, commit_id="c")


async def next_append(store: AgentCoreMemoryStore) -> None:
    await append(store, "old", "a", "b", count=2, commit_id="c")


async def append_that_is_a_root(store: AgentCoreMemoryStore) -> None:
    await append(store, "long", "a", "b", count=COMMITS, commit_id="c")


async def replacement(store: AgentCoreMemoryStore) -> None:
    messages = [Message.user("a"), Message.user("b")]
    await store.replace("old", messages=messages, state={}, metadata={}, actor_id=ACTOR, commit_id="c")


async def deletion(store: AgentCoreMemoryStore) -> None:
    await store.delete("old", actor_id=ACTOR)


WORKS: dict[str, tuple[Any, str, list[str] | None, list[str]]] = {
    "first_append": (first_append, "new", None, ["a", "b"]),
    "next_append": (next_append, "old", OLD, [*OLD, "a", "b"]),
    "append_that_is_a_root": (
        append_that_is_a_root,
        "long",
        [str(number) for number in range(COMMITS)],
        [*(str(number) for number in range(COMMITS)), "a", "b"],
    ),
    "replacement": (replacement, "old", OLD, ["a", "b"]),
}


def killed(emulator: AgentCoreEmulator, work: str, number: int) -> bool:
    """Do something in another process, which is killed after its call with a number; return whether it had as many."""
    folders = [str(Path(agentcore.__file__).parent), str(Path(__file__).parent)]
    code = WORK.format(folder=folders[0]).replace(repr(folders[0]), ", ".join(map(repr, folders)))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, work, str(number)],
        env={**os.environ, agentcore.ENDPOINT: emulator.endpoint_url},
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL)
    return done.returncode != 0


async def begun(emulator: AgentCoreEmulator) -> None:
    store = agentcore.store(emulator)
    for number in range(COMMITS):
        await append(store, "long", f"{number}", count=number)
    for number in range(2):
        await append(store, "old", f"{number}", count=number)


@pytest.mark.parametrize("name", WORKS)
async def test_a_commit_whose_writer_is_killed_is_whole_or_absent_and_is_finished_by_another(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rooting, "MAX_LINEAGE_COMMITS", COMMITS)
    work, id, before, after = WORKS[name]
    number = 1
    while True:
        with AgentCoreEmulator() as emulator:
            await begun(emulator)
            was_killed = killed(emulator, name, number)
            found = await texts(agentcore.store(emulator), id)
            assert found in ((before, after) if was_killed else (after,))
            assert was_killed or number > 3
            other = agentcore.store(emulator)
            await work(other)
            assert await texts(agentcore.store(emulator), id) == after
            await append(other, id, "end", count=len(after))
            await work(agentcore.store(emulator)) if name != "replacement" else None
            assert await texts(agentcore.store(emulator), id) == [*after, "end"]
        if not was_killed:
            return
        number += 1


async def test_a_deletion_that_is_killed_is_seen_and_finished_by_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("littleghost.sessions.agentcore.committing.GONE", 0.2)
    number, damaged = 1, 0
    while True:
        with AgentCoreEmulator() as emulator:
            await begun(emulator)
            was_killed = killed(emulator, "deletion", number)
            try:
                found = await texts(agentcore.store(emulator), "old")
                assert found in (OLD, None)
            except CorruptSessionError:
                damaged += 1
            await agentcore.store(emulator).delete("old", actor_id=ACTOR)
            assert await texts(agentcore.store(emulator), "old") is None
            await append(agentcore.store(emulator), "old", "again", count=0)
            assert await texts(agentcore.store(emulator), "old") == ["again"]
            assert await texts(agentcore.store(emulator), "long") == ["0", "1", "2", "3"]
        if not was_killed:
            break
        number += 1
    assert damaged >= 2
