"""An agent inside an agent, and a summary: killed before or after any effect, and stopped at any point."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nested import INNER_ANSWER
from scenario import ANSWER, QUESTION, Ledger
from test_cancel_matrix import Attempt, go_on
from test_crash_matrix import Machine, machine  # noqa: F401 (a fixture)

from littleghost import (
    DeadlineExceeded,
    Message,
    RunCancelled,
    Session,
    SessionStore,
    SQLiteStore,
    transcript,
)
from littleghost.runs.compaction import digest


async def inside(store: SessionStore) -> list[Session]:
    """The sessions of inner runs."""
    page = await store.sessions(actor_id="a")
    assert all(info.metadata is not None for info in page.items)
    inner = [info for info in page.items if info.id != "s"]
    for info in inner:
        assert (info.metadata or {})["littleghost"]["parent"]["session"] == "s"
    return [Session(id=info.id, actor_id="a", store=store) for info in inner]


def check_calls(messages: list[Message]) -> dict[str, list[Any]]:
    """Every call has one result; return the results by tool."""
    shaped = transcript.normalise(messages)
    assert transcript.unsettled(messages) == ()
    found: dict[str, list[Any]] = {}
    for asked, answer in pairwise(shaped):
        for call, result in zip(asked.tool_uses, answer.tool_results, strict=True) if asked.tool_uses else ():
            found.setdefault(call.name, []).append(result)
    return found


def check_effects(folder: Path) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = {"order": [], "reserve": [], "summary": []}
    for (kind, _), count in Ledger(folder / "effects").counts().items():
        counts[kind.partition(" ")[0]].append(count)
    assert all(count == 1 for count in counts["order"]), "a tool with effects ran twice for one call"
    assert len(counts["order"]) <= 2
    return counts


async def check(folder: Path) -> None:
    """What holds when all is done, whatever was killed on the way."""
    async with SQLiteStore(folder / "sessions.db") as store:
        session = Session(id="s", actor_id="a", store=store)
        messages = await session.journal()
        (inner,) = await inside(store)
        inner_messages = await inner.journal()
        notes = (await session.metadata())["littleghost"]
    assert [message.text for message in messages if message.role == "user"] == [QUESTION]
    assert messages[-1].text == ANSWER
    for stored in (messages, inner_messages):
        shaped = transcript.normalise(stored)
        assert transcript.for_model(shaped) == shaped
    outer = check_calls(messages)
    assert {name: len(results) for name, results in outer.items()} == {"look": 1, "buyer": 1, "order": 1}
    assert (outer["buyer"][0].status, outer["buyer"][0].text) == ("success", INNER_ANSWER)
    assert [message.text for message in inner_messages if message.role == "user"] == ["Order A7."]
    assert inner_messages[-1].text == INNER_ANSWER
    results = check_calls(inner_messages)
    assert {name: len(found) for name, found in results.items()} == {"order": 1, "reserve": 1}
    assert results["reserve"][0].status == "success"
    for result in [*outer["look"], *outer["order"], *results["order"]]:
        assert result.status == "success" or "interrupted" in result.text
    counts = check_effects(folder)
    succeeded = sum(result.status == "success" for result in [*outer["order"], *results["order"]])
    assert succeeded <= len(counts["order"])
    assert len(counts["reserve"]) == 1, "an idempotent call has one key for its whole life"
    if outer["look"][0].status == "success":  # else the conversation is short
        summary = notes["summary"]
        assert summary["digest"] == digest(messages[: summary["count"]])
        assert len(counts["summary"]) == 1, "it was asked for the same each time"


@pytest.mark.parametrize(
    ("scenario", "granularity"), [("nested", "call"), ("nested", "batch"), ("nested waits", "call")]
)
async def test_killed_at_any_point_another_process_goes_on(
    machine: Machine,  # noqa: F811
    scenario: str,
    granularity: str,
) -> None:
    def run(folder: str, how: str, at: int | None) -> dict[str, Any]:
        return machine.run(folder, how, at, granularity, scenario)

    whole = run("whole", "ask", None)
    assert whole["outcome"] == "completed"
    points = whole["points"]
    assert {"inner model starts", "summary model starts", "commit ends", "order took effect"} <= set(points)
    await check(machine.folder / "whole")
    assert ("suspended" in points) == (scenario == "nested waits")
    for at in range(0, len(points), 1 if (scenario, granularity) == ("nested", "call") else 2):
        folder, name = f"killed-{at}", points[at]
        if at and name == points[at - 1]:
            continue  # once in the middle of an answer is enough
        assert run(folder, "ask", at)["outcome"] == "killed", f"{at}: {name}"
        resumed = run(folder, "resume", None)
        assert (resumed["outcome"], resumed.get("text")) == ("completed", ANSWER), f"{at}: {name}"
        await check(machine.folder / folder)
        paid = check_effects(machine.folder / folder)["summary"]
        again = run(folder, "resume", None)
        assert (again["outcome"], again["text"], again["steps"]) == ("completed", ANSWER, 0)
        assert check_effects(machine.folder / folder)["summary"] == paid


@pytest.mark.parametrize(
    ("scenario", "how"),
    [
        ("nested", "task"),
        ("nested", "token"),
        ("nested", "deadline"),
        ("nested", "reader leaves"),
        ("nested waits", "token"),
    ],
)
async def test_stopped_at_any_point(tmp_path: Path, scenario: str, how: str) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    whole = Attempt(folder, "none", None, "call", scenario)
    await whole.perform()
    assert whole.run is not None
    assert whole.run.outcome == "completed"
    await whole.store.aclose()
    stopped = 0
    for at in range(0, len(whole.points.names), 4 if how == "deadline" else 1):
        where = f"{how} at {at}: {whole.points.names[at]}"
        folder = tmp_path / f"stopped-{at}"
        folder.mkdir()
        attempt = Attempt(folder, how, at, "call", scenario)
        await asyncio.create_task(attempt.perform())
        messages = await attempt.messages()
        run, raised = attempt.run, attempt.raised
        suspended = run is not None and run.outcome == "suspended"
        if scenario == "nested waits":  # what waits when the run is stopped goes on waiting
            assert {call.name for call in transcript.unsettled(messages)} <= {"buyer"}, where
        for session in [Session(id="s", actor_id="a", store=attempt.store), *await inside(attempt.store)]:
            if scenario == "nested":
                check_calls(await session.journal())
        check_effects(folder)
        if how == "task":
            assert isinstance(raised, asyncio.CancelledError), where
        elif run is None:
            assert messages == [], f"{where}: {raised!r}"
        elif suspended:
            assert scenario == "nested waits"
            assert isinstance(raised, RunCancelled), where
        else:
            assert run.outcome in {"completed", "partial" if how == "deadline" else "cancelled"}, where
            assert run.messages == transcript.normalise(messages), where
            if run.outcome != "completed":
                assert isinstance(run.error, DeadlineExceeded if how == "deadline" else RunCancelled)
                stopped += 1
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"{where}: a task was left"
        resumed = await go_on(attempt)
        assert (resumed.outcome, resumed.text) == ("completed", ANSWER), where
        after = await attempt.messages()
        assert after[: len(messages)] == messages, where
        check_calls(after)
        check_effects(folder)
        await attempt.store.aclose()
    assert stopped > 5 or how == "task"
