"""A process killed by SIGKILL before or after any effect loses nothing, and another one goes on."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from scenario import ANSWER, QUESTION, TYPED, Ledger

from littleghost import Message, Session, SQLiteStore, transcript

SCENARIO = Path(__file__).with_name("scenario.py")


class Machine:
    """The process that forks the processes to be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(SCENARIO), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, folder: str, how: str, at: int | None, granularity: str, scenario: str = "text"
    ) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"folder": folder, "how": how, "at": at, "granularity": granularity, "scenario": scenario}
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


async def journal(folder: Path) -> tuple[list[Message], dict[str, Any]]:
    async with SQLiteStore(folder / "sessions.db") as store:
        session = Session(id="s", actor_id="a", store=store)
        return await session.journal(), await session.state()


def check(folder: Path, messages: list[Message], state: dict[str, Any], granularity: str) -> None:
    """What holds when the conversation is complete, whatever was killed on the way."""
    assert [message.text for message in messages if message.role == "user"] == [QUESTION]
    assert messages[-1].text == ANSWER
    shaped = transcript.normalise(messages)
    assert transcript.for_model(shaped) == shaped, "the transcript is not in canonical shape"
    assert transcript.unsettled(messages) == ()
    if granularity == "batch":
        assert shaped == messages
    results: dict[str, list[Any]] = {"look": [], "order": [], "reserve": []}
    for call_message, answer in pairwise(shaped):
        calls = call_message.tool_uses
        if calls:
            assert [result.tool_use_id for result in answer.tool_results] == [call.id for call in calls]
            for call, result in zip(calls, answer.tool_results, strict=True):
                results[call.name].append(result)
    assert {name: len(found) for name, found in results.items()} == {"look": 1, "order": 2, "reserve": 1}
    counts = Ledger(folder / "effects").counts()
    orders = {key: count for (kind, key), count in counts.items() if kind.startswith("order")}
    assert all(count == 1 for count in orders.values()), "a tool with effects ran twice for one call"
    succeeded = sum(result.status == "success" for result in results["order"])
    assert succeeded <= len(orders) <= 2
    assert len(state.get("ordered", [])) >= succeeded
    reserved = [count for (kind, _), count in counts.items() if kind.startswith("reserve")]
    assert len(reserved) == 1, "an idempotent call has one key for its whole life"
    assert results["reserve"][0].status == "success"
    for result in [*results["look"], *results["order"]]:
        assert result.status == "success" or "interrupted" in result.text


async def check_waits(folder: Path, messages: list[Message]) -> None:
    """What holds when the conversation in which calls waited is complete."""
    assert [message.text for message in messages if message.role == "user"] == [QUESTION]
    assert messages[-1].text == ANSWER
    shaped = transcript.normalise(messages)
    assert transcript.for_model(shaped) == shaped, "the transcript is not in canonical shape"
    assert transcript.unsettled(messages) == ()
    results: dict[str, Any] = {}
    for call_message, answer in pairwise(shaped):
        for call, result in zip(call_message.tool_uses, answer.tool_results, strict=False):
            assert call.name not in results
            results[call.name] = result
    counts = Ledger(folder / "effects").counts()
    kinds: Counter[str] = Counter()
    for (kind, _), count in counts.items():
        kinds[kind] += count
    assert set(kinds) <= {"order A8", "reserve A7", "flaky B2"}, "something ran that nobody had approved"
    assert kinds["order A8"] <= 1, "a tool with effects ran twice for one call"
    assert "A8" in results["order"].text, "the model was not told of the changed arguments"
    if results["order"].status == "success":
        assert kinds["order A8"] == 1
    else:
        assert "interrupted" in results["order"].text
    assert "Keep it." in results["discard"].text
    assert results["weigh"].text == "12 kg"
    assert results["reserve"].text.startswith("reserve A7 done")
    assert results["flaky"].text == "flaky B2 done"
    look = results["look"]
    assert look.text.startswith("look A7 twice done") or "interrupted" in look.text
    assert len(kinds) == len(counts), "a call has one key for its whole life"
    async with SQLiteStore(folder / "sessions.db") as store:
        notes = (await Session(id="s", actor_id="a", store=store).metadata())["littleghost"]
    assert set(notes) == {"life", "agent", "spent"}, "something still waits"
    answers = sum(message.role == "assistant" for message in messages)
    assert notes["spent"]["turns"] == answers, "what was committed is what was counted"


async def complete(folder: Path, scenario: str, granularity: str) -> None:
    messages, state = await journal(folder)
    if scenario == "waits":
        await check_waits(folder, messages)
    else:
        check(folder, messages, state, granularity)


SCENARIOS = pytest.mark.parametrize("scenario", ["text", "waits"])


@SCENARIOS
@pytest.mark.parametrize("granularity", ["call", "batch"])
async def test_killed_at_any_point_another_process_goes_on(
    machine: Machine, granularity: str, scenario: str
) -> None:
    whole = machine.run("whole", "ask", None, granularity, scenario)
    assert whole["outcome"] == "completed"
    points = whole["points"]
    assert {"model starts", "commit ends", "order took effect", "reserve ends"} <= set(points)
    await complete(machine.folder / "whole", scenario, granularity)
    step = 3 if (scenario, granularity) == ("waits", "batch") else 1
    for at, name in list(enumerate(points))[::step]:
        folder = f"killed-{at}"
        assert machine.run(folder, "ask", at, granularity, scenario)["outcome"] == "killed", f"{at}: {name}"
        before, _ = await journal(machine.folder / folder)
        resumed = machine.run(folder, "resume", None, granularity, scenario)
        assert (resumed["outcome"], resumed.get("text")) == ("completed", ANSWER), f"{at}: {name}"
        after, _ = await journal(machine.folder / folder)
        assert after[: len(before)] == before, f"{at}: {name}: a committed message was lost or changed"
        await complete(machine.folder / folder, scenario, granularity)
        again = machine.run(folder, "resume", None, granularity, scenario)
        assert (again["outcome"], again["text"], again["steps"]) == ("completed", ANSWER, 0)
        assert (await journal(machine.folder / folder))[0] == after


@SCENARIOS
@pytest.mark.parametrize("granularity", ["call", "batch"])
async def test_killed_again_and_again_while_it_resumes(
    machine: Machine, granularity: str, scenario: str
) -> None:
    points = len(machine.run("whole", "ask", None, granularity, scenario)["points"])
    luck = random.Random(20)
    for number in range(20 if scenario == "text" else 8):
        folder, kills, before = f"often-{number}", 0, []
        at: int | None = luck.randrange(points)
        result = machine.run(folder, "ask", at, granularity, scenario)
        while result["outcome"] == "killed":
            kills += 1
            assert kills < 50
            stored, _ = await journal(machine.folder / folder)
            assert stored[: len(before)] == before
            before = stored
            at = luck.randrange(8) if kills < 6 else None
            result = machine.run(folder, "resume", at, granularity, scenario)
        assert result["outcome"] == "completed", f"seed 20, round {number}"
        await complete(machine.folder / folder, scenario, granularity)


def check_typed(folder: Path, messages: list[Message], answers: str) -> None:
    """What holds when the answer is there, whatever was killed on the way."""
    said = [message for message in messages if message.role == "user"]
    told = [message for message in said if transcript.note(message, "repair")]
    assert [message.text for message in said if message not in told] == [QUESTION]
    assert len(told) == (answers == "native"), "the model was told once that its answer did not fit"
    shaped = transcript.normalise(messages)
    assert transcript.for_model(shaped) == shaped, "the transcript is not in canonical shape"
    assert transcript.unsettled(messages) == ()
    if answers == "tool":
        given = [result for message in messages for result in message.tool_results]
        assert [result.status for result in given if result.tool_use_id == "answer"] == ["error", "success"]
    counts = Ledger(folder / "effects").counts()
    assert all(count == 1 for count in counts.values()), "a tool with effects ran twice for one call"
    assert len(counts) <= (2 if answers == "tool" else 1)


@pytest.mark.parametrize(
    ("answers", "granularity"), [("tool", "call"), ("tool", "batch"), ("native", "call")]
)
async def test_an_answer_in_a_type_is_reached_whatever_was_killed(
    machine: Machine, answers: str, granularity: str
) -> None:
    whole = machine.run("whole", "ask", None, granularity, answers)
    assert (whole["outcome"], whole["text"]) == ("completed", TYPED)
    check_typed(machine.folder / "whole", (await journal(machine.folder / "whole"))[0], answers)
    settled = 0
    for at, name in enumerate(whole["points"]):
        folder = f"killed-{at}"
        assert machine.run(folder, "ask", at, granularity, answers)["outcome"] == "killed", f"{at}: {name}"
        before, _ = await journal(machine.folder / folder)
        resumed = machine.run(folder, "resume", None, granularity, answers)
        assert (resumed["outcome"], resumed.get("text")) == ("completed", TYPED), f"{at}: {name}"
        after, _ = await journal(machine.folder / folder)
        assert after[: len(before)] == before, f"{at}: {name}: a committed message was lost or changed"
        check_typed(machine.folder / folder, after, answers)
        if any(call.input == {"total": 2} for message in before for call in message.tool_uses):
            assert resumed["steps"] == 0, f"{at}: {name}: the model was asked for an answer that it had given"
            settled += 1
        again = machine.run(folder, "resume", None, granularity, answers)
        assert (again["outcome"], again["text"], again["steps"]) == ("completed", TYPED, 0)
        assert (await journal(machine.folder / folder))[0] == after
    assert settled or answers == "native"
