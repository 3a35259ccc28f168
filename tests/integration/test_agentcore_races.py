"""Two writers of one session in AgentCore Memory, made to overlap where it matters, on services that honour client tokens and on others."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import agentcore
import pytest
from agentcore import ACTOR, Halting, append, is_checkpoint, texts

from littleghost import (
    AgentCoreMemoryStore,
    Commit,
    ConflictError,
    CredentialError,
    Message,
    ProtocolError,
    StoreUnavailableError,
)
from littleghost.emulators.agentcore import AgentCoreEmulator, Fault

HONOURED: dict[str, dict[str, Any]] = {
    "first": {},
    "echo": {"replay": "echo"},
    "refuse": {"mismatch": "refuse"},
    "refuse-of-the-memory": {"mismatch": "refuse", "token_scope": "memory"},
    "echo-of-the-actor": {"replay": "echo", "token_scope": "actor"},
    "lag": {"lag": 0.05, "get_lag": 0.1},
    "late": {"lag": 0.5, "get_lag": 0.7},
    "oldest": {"order": "oldest"},
    "ties": {"ties": "permuted"},
}
DISHONOURED: dict[str, dict[str, Any]] = {
    "ignored": {"idempotency": "ignored"},
    "ignored-lag": {"idempotency": "ignored", "lag": 0.05},
    "ignored-ties": {"idempotency": "ignored", "ties": "permuted"},
    "expired": {"idempotency": "expiring", "token_lifetime": 1e-6},
    "of-each-caller": {"idempotency": "per_caller"},
}
ANY_SERVICE = {**HONOURED, **DISHONOURED}


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Let less time go by where the tests have nothing to wait for; still more than the emulator's lists are late, if they are."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    late = "lag" in parameters.get("emulator", {})
    monkeypatch.setattr("littleghost.sessions.agentcore.calls.FIRST_PAUSE", 0.001)
    monkeypatch.setattr("littleghost.sessions.agentcore.committing.GONE", 1.0 if late else 0.1)


@pytest.fixture
def emulator(request: pytest.FixtureRequest):
    with AgentCoreEmulator(**getattr(request, "param", {})) as emulator:
        yield emulator


def on(services: dict[str, dict[str, Any]]) -> pytest.MarkDecorator:
    """Run a test on each of some services."""
    return pytest.mark.parametrize("emulator", services.values(), ids=services, indirect=True)


def halted(
    emulator: AgentCoreEmulator, when: Callable[[str, dict[str, Any]], bool], *, after: bool = False
) -> tuple[Halting, AgentCoreMemoryStore]:
    """Return a store that stops where told, with credentials of its own."""
    halting = Halting(agentcore.patient(emulator, caller="halted"), when, after=after)
    return halting, agentcore.store(emulator, client=halting.client)


def halted_twice(emulator: AgentCoreEmulator) -> tuple[Halting, Halting, AgentCoreMemoryStore]:
    """Return a store that stops before it writes a checkpoint, and once it has."""
    before = Halting(agentcore.patient(emulator, caller="halted twice"), before_checkpoint)
    after = Halting(before.client, before_checkpoint, after=True)
    return before, after, agentcore.store(emulator, client=after.client)


def before_checkpoint(name: str, params: dict[str, Any]) -> bool:
    return name == "create_event" and is_checkpoint(params)


@asynccontextmanager
async def started(halting: Halting, work: Any) -> AsyncGenerator[asyncio.Task[Any]]:
    """Start something that stops on its way, and wait until it has; at the end let it go on and wait for its end."""
    task = asyncio.ensure_future(work)
    try:
        reached = asyncio.ensure_future(asyncio.to_thread(halting.reached.wait, 30))
        await asyncio.wait({reached, task}, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.result()
        yield task
    finally:
        halting.go_on.set()
        await asyncio.wait({task})


async def outcome(work: Any) -> Commit | ConflictError:
    try:
        return await work
    except ConflictError as error:
        return error


async def begun(emulator: AgentCoreEmulator, said: str | None) -> int:
    """Begin the session, unless nothing is said; return its count."""
    if said is None:
        return 0
    await append(agentcore.store(emulator), "s", said, count=0)
    return 1


@on(ANY_SERVICE)
@pytest.mark.parametrize("said", [None, "old"], ids=["new-session", "old-session"])
@pytest.mark.parametrize("after", [False, True], ids=["before-its-checkpoint", "after-its-checkpoint"])
async def test_of_two_that_follow_one_head_at_most_one_is_acknowledged_and_that_one_is_there(
    emulator: AgentCoreEmulator, said: str | None, after: bool
):
    count = await begun(emulator, said)
    halting, slow = halted(emulator, before_checkpoint, after=after)
    async with started(halting, append(slow, "s", "slow", count=count)) as task:
        quick = await outcome(append(agentcore.store(emulator), "s", "quick", count=count))
    late = (await asyncio.gather(task, return_exceptions=True))[0]
    won = [text for text, ended in (("quick", quick), ("slow", late)) if isinstance(ended, Commit)]
    lost = [ended for ended in (quick, late) if not isinstance(ended, Commit)]
    assert all(isinstance(ended, ConflictError) for ended in lost)
    found = await texts(agentcore.store(emulator), "s")
    assert (found or []) == [text for text in (said, *won) if text is not None]
    assert len(won) <= 1
    if not after or "idempotency" not in emulator_options(emulator):
        assert len(won) == 1


def emulator_options(emulator: AgentCoreEmulator) -> dict[str, Any]:
    """Return how tokens are dealt with, where that is another way than the usual one."""
    mode = emulator._core.operations.ledger._rules.mode
    return {} if mode == "honoured" else {"idempotency": mode}


@on(ANY_SERVICE)
async def test_two_that_have_both_written_before_either_looks_are_not_both_acknowledged(
    emulator: AgentCoreEmulator,
):
    await begun(emulator, "old")
    one, one_written, first = halted_twice(emulator)
    two, two_written, second = halted_twice(emulator)
    async with (
        started(one, append(first, "s", "one", count=1)) as a,
        started(two, append(second, "s", "two", count=1)) as b,
    ):
        for halting in (one, two):
            halting.go_on.set()
        for halting in (one_written, two_written):
            assert await asyncio.to_thread(halting.reached.wait, 30)
        for halting in (one_written, two_written):
            halting.go_on.set()
    ends = await asyncio.gather(a, b, return_exceptions=True)
    won = [text for text, end in zip(("one", "two"), ends, strict=True) if isinstance(end, Commit)]
    assert all(isinstance(end, Commit | ConflictError) for end in ends)
    assert len(won) <= 1
    assert await texts(agentcore.store(emulator), "s") == ["old", *won]


@on(DISHONOURED)
async def test_who_comes_third_does_not_build_on_what_is_about_to_be_taken_back(emulator: AgentCoreEmulator):
    """The second of two checkpoints is there for a moment. Whoever follows it then would make the first one, acknowledged, vanish."""
    for turn in range(6):  # which of the two is the greater is up to their ids
        id = f"s{turn}"
        third = agentcore.store(emulator)
        await append(third, id, "old", count=0)
        halting, written, slow = halted_twice(emulator)
        async with started(halting, append(slow, id, "taken back", count=1)) as task:
            acknowledged = await append(agentcore.store(emulator), id, "kept", count=1)
            halting.go_on.set()
            assert await asyncio.to_thread(written.reached.wait, 30)
            asyncio.get_running_loop().call_later(0.2, written.go_on.set)
            ends = await outcome(append(third, id, "third", count=2))
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], ConflictError)
        assert acknowledged.count == 2
        whole = ["old", "kept", *(["third"] if isinstance(ends, Commit) else [])]
        assert await texts(agentcore.store(emulator), id) == whole


@on(ANY_SERVICE)
async def test_a_place_that_a_deleted_commit_had_is_taken_again(emulator: AgentCoreEmulator):
    """The token of the place answers with an event that is gone, in the process that deleted it and in others."""
    store, other = agentcore.store(emulator), agentcore.store(emulator)
    for turn in range(3):
        await append(store, "s", f"{turn}", count=0)
        assert await store.delete("s", actor_id=ACTOR)
    await append(store, "s", "here", count=0)
    assert await texts(other, "s") == ["here"]
    assert await other.delete("s", actor_id=ACTOR)
    third = agentcore.store(emulator)
    await append(third, "s", "there", count=0)
    assert await texts(store, "s") == ["there"]


@on(ANY_SERVICE)
@pytest.mark.parametrize("after", [False, True], ids=["before-its-checkpoint", "after-its-checkpoint"])
@pytest.mark.parametrize("said", [None, "old"], ids=["new-session", "old-session"])
async def test_an_append_that_races_with_delete_is_whole_or_not_there(
    emulator: AgentCoreEmulator, said: str | None, after: bool
):
    count = await begun(emulator, said)
    halting, slow = halted(emulator, before_checkpoint, after=after)
    deleter = agentcore.store(emulator)
    async with started(halting, append(slow, "s", "slow", "more", count=count)) as task:
        await deleter.delete("s", actor_id=ACTOR)
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    emulator.advance(5)  # whatever is there is seen now
    found = await texts(agentcore.store(emulator), "s")
    if isinstance(ended, Commit) and not after:
        assert found == ["slow", "more"]
        assert said is None
    else:
        assert isinstance(ended, Commit | ConflictError)
        assert found in (None, ["slow", "more"])
        if not isinstance(ended, Commit):
            assert found is None


@on({name: ANY_SERVICE[name] for name in ("first", "lag", "oldest", "ignored")})
async def test_deletes_of_two_race_and_nothing_is_left(emulator: AgentCoreEmulator):
    for turn in range(12):
        await append(agentcore.store(emulator), "s", f"{turn}", count=turn)
    one, two = agentcore.store(emulator), agentcore.store(emulator)
    found = await asyncio.gather(one.delete("s", actor_id=ACTOR), two.delete("s", actor_id=ACTOR))
    assert any(found)
    assert emulator.events() == []


LOST = [
    "CreateEvent:reset_after:nth=1",
    "CreateEvent:timeout_after:nth=1",
    "CreateEvent:truncated:nth=1",
    "CreateEvent:error_500_after:nth=1",
    "CreateEvent:conflict_after:nth=1",
    "CreateEvent:expired_token_after:nth=1",
    "CreateEvent:reset_after:nth=2",
    "CreateEvent:timeout_after:nth=2",
    "CreateEvent:truncated:nth=2",
    "CreateEvent:throttle_after:nth=2",
    "CreateEvent:conflict_after:nth=2",
    "CreateEvent:expired_token_after:nth=2",
    "ListEvents:reset_after:nth=2",
    "ListEvents:truncated:nth=2",
    "ListEvents:error_503:nth=2",
    "ListEvents:extra_page:nth=2",
    "ListEvents:dropped_page:nth=2",
    "ListEvents:dropped_event:nth=2",
    "CreateEvent:duplicate:nth=1",
    "CreateEvent:duplicate:nth=2",
]
"""An answer that is lost or not the truth: to a commit's messages, to its checkpoint, of the list that looks who else is there."""


FAILURES: defaultdict[str, tuple[type[Exception], ...]] = defaultdict(
    lambda: (StoreUnavailableError,),
    expired_token_after=(CredentialError,),
    extra_page=(ProtocolError,),
)
"""What each may be told as, where it goes on."""


@on({name: ANY_SERVICE[name] for name in ("first", "refuse", "ignored")})
@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("times", [1, 7], ids=["once", "for-good"])
async def test_a_commit_whose_answer_is_lost_is_there_once_however_often_it_is_sent(
    emulator: AgentCoreEmulator, fault: str, times: int
):
    await begun(emulator, "old")
    made = lambda: agentcore.store(emulator, client_factory=lambda: agentcore.patient(emulator))
    emulator.fault(fault if times == 1 else f"{fault}:times={times}")
    commit = None
    for _ in range(4):
        with suppress(*FAILURES[fault.split(":")[1]]):
            commit = await append(made(), "s", "new", count=1, commit_id="c")
            break
    assert commit is not None
    emulator.clear_faults()
    again = await append(made(), "s", "new", count=1, commit_id="c")
    assert again == commit
    assert await texts(made(), "s") == ["old", "new"]
    assert (await append(made(), "s", "end", count=2)).count == 3


WRITER = """
import asyncio, json, os, sys
sys.path[:0] = [{folder!r}]
import agentcore
from littleghost import ConflictError

async def main():
    name, times = sys.argv[1], int(sys.argv[2])
    store = agentcore.store_at(os.environ[agentcore.ENDPOINT])
    print("ready", flush=True)
    sys.stdin.readline()
    told = []
    for turn in range(times):
        while True:
            said = await agentcore.texts(store, "s")
            try:
                await agentcore.append(store, "s", f"{{name}}:{{turn}}", count=len(said))
                told.append([len(said), f"{{name}}:{{turn}}"])
                break
            except ConflictError:
                pass
    print(json.dumps(told), flush=True)

asyncio.run(main())
"""


@on({name: HONOURED[name] for name in ("first", "echo", "refuse", "lag")})
def test_processes_that_follow_one_head_are_acknowledged_one_by_one(emulator: AgentCoreEmulator):
    """What each process was told is where it was told, and nothing else is there."""
    asyncio.run(begun(emulator, "old"))
    code = WRITER.format(folder=str(Path(agentcore.__file__).parent))
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, name, "6"],
            env={**os.environ, agentcore.ENDPOINT: emulator.endpoint_url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abc"
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate(timeout=150)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    told = {place: text for answer in answers for place, text in answer}
    found = asyncio.run(texts(agentcore.store(emulator), "s"))
    assert sum(map(len, answers)) == len(told) == 18
    assert found == ["old", *(told[place] for place in sorted(told))]


async def test_two_stores_with_one_commit_id_write_it_once(emulator: AgentCoreEmulator):
    await begun(emulator, "old")
    halting, slow = halted(emulator, before_checkpoint, after=True)
    async with started(halting, append(slow, "s", "new", count=1, commit_id="c")) as task:
        first = await append(agentcore.store(emulator), "s", "new", count=1, commit_id="c")
    assert await task == first
    assert await texts(agentcore.store(emulator), "s") == ["old", "new"]


async def test_a_replace_and_an_append_that_follow_one_head_do_not_both_take_place(
    emulator: AgentCoreEmulator,
):
    await begun(emulator, "old")
    head = await agentcore.store(emulator).load("s", actor_id=ACTOR)
    assert head is not None
    halting, slow = halted(emulator, before_checkpoint)
    replaced = slow.replace(
        "s",
        messages=[Message.user("new")],
        state={},
        metadata={},
        actor_id=ACTOR,
        expected_revision=head.revision,
    )
    async with started(halting, replaced) as task:
        await append(agentcore.store(emulator), "s", "more", count=1)
    with pytest.raises(ConflictError):
        await task
    assert await texts(agentcore.store(emulator), "s") == ["old", "more"]


def test_the_faults_that_are_tried_can_be_told():
    assert [str(Fault.parse(rule)) for rule in LOST] == LOST
