"""Calls of the store in AgentCore Memory that are cancelled: at each call of the service, before it is sent and once it was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import agentcore
import pytest
from agentcore import ACTOR, append, texts

from littleghost import AgentCoreMemoryStore, CorruptSessionError, Message
from littleghost.emulators.agentcore import AgentCoreEmulator

SERVICES: dict[str, dict[str, Any]] = {
    "plain": {},
    "late": {"lag": 0.05, "get_lag": 0.05},
    "refuse": {"mismatch": "refuse"},
    "ignored": {"idempotency": "ignored"},
}
OLD = ["0", "1"]
NEW = [Message.user("a"), Message.user("b")]

Work = Callable[[AgentCoreMemoryStore], Any]

WORKS: dict[str, tuple[Work, list[str]]] = {
    "append": (lambda store: append(store, "s", "a", "b", count=2, commit_id="c"), [*OLD, "a", "b"]),
    "replace": (
        lambda store: store.replace(
            "s",
            messages=NEW,
            state={},
            metadata={},
            actor_id=ACTOR,
            commit_id="c",
            expected_revision=REVISION[0],
        ),
        ["a", "b"],
    ),
}
REVISION: list[str | None] = [None]


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_commit_that_is_cancelled_at_any_call_is_whole_or_absent_and_can_be_sent_again(
    service: str, name: str, after: bool
):
    work, whole = WORKS[name]
    number = 1
    while True:
        with AgentCoreEmulator(**SERVICES[service]) as emulator:
            cancel = _Cancelling(emulator, number, after=after)
            store = agentcore.store(emulator, client=cancel.client)
            for turn in range(2):
                commit = await append(store, "s", f"{turn}", count=turn)
            REVISION[0] = commit.revision
            await cancel.run(work(store))
            found = await texts(store, "s")
            assert found in (OLD, whole)
            for _ in range(3):
                await asyncio.sleep(0.02)
                assert await texts(store, "s") == found, "it stays so"
            assert await texts(agentcore.store(emulator), "s") == found
            assert (await work(store)).count == len(whole)
            assert await texts(agentcore.store(emulator), "s") == whole
            assert (await append(store, "s", "end", count=len(whole))).count == len(whole) + 1
        if not cancel.reached:
            break
        number += 1
    assert number > 3


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_deletion_that_is_cancelled_at_any_call_can_be_finished(
    after: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("littleghost.sessions.agentcore.committing.GONE", 0.2)
    number = 1
    while True:
        with AgentCoreEmulator() as emulator:
            cancel = _Cancelling(emulator, number, after=after)
            store = agentcore.store(emulator, client=cancel.client)
            for turn in range(2):
                await append(store, "s", f"{turn}", count=turn)
            await cancel.run(store.delete("s", actor_id=ACTOR))
            try:
                assert await texts(store, "s") in (OLD, None)
            except CorruptSessionError:
                assert cancel.reached
            await store.delete("s", actor_id=ACTOR)
            assert emulator.events() == []
            await append(store, "s", "again", count=0)
            assert await texts(agentcore.store(emulator), "s") == ["again"]
        if not cancel.reached:
            break
        number += 1
    assert number > 4


class _Cancelling:
    """A client that has the task cancelled that called it, at its call with a number; the call itself goes on a while later."""

    def __init__(self, emulator: AgentCoreEmulator, number: int, *, after: bool) -> None:
        self.reached = False
        self._left = 0
        self._number = number
        self._task: asyncio.Task[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self.client = agentcore.Wrapped(
            agentcore.patient(emulator), **{"after" if after else "before": self._count}
        )

    async def run(self, work: Any) -> None:
        self._left = self._number
        self._task = asyncio.ensure_future(work)
        await asyncio.wait({self._task})
        self._left = 0
        assert self._task.cancelled() == self.reached or self._task.exception() is None

    def _count(self, name: str, params: dict[str, Any]) -> None:
        if self._left:
            self._left -= 1
            if not self._left and self._task is not None:
                self.reached = True
                done = asyncio.run_coroutine_threadsafe(self._cancel(), self._loop)
                done.result(20)

    async def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
