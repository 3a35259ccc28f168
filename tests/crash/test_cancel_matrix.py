"""A run that is told to stop, at any point and in any way, settles what is open before it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenario import ANSWER, ANSWERS, QUESTION, TYPED, Ledger, Points, answer, make

from littleghost import (
    CancellationToken,
    DeadlineExceeded,
    Message,
    Run,
    RunCancelled,
    Runtime,
    Session,
    transcript,
)

HOWS = ["task", "token", "deadline", "thread", "twice", "reader leaves"]


class Attempt:
    """One run that is stopped at one point in one way."""

    def __init__(
        self, folder: Path, how: str, at: int | None, granularity: str, scenario: str = "text"
    ) -> None:
        self.folder, self.how, self.granularity, self.scenario = folder, how, granularity, scenario
        self.token = CancellationToken()
        self.points = Points(at, self._stop)
        self.agent, self.store = make(folder, self.points, granularity, scenario)
        self.run: Run | None = None
        self.raised: BaseException | None = None

    def _stop(self) -> Any:
        assert self._task is not None
        if self.how in {"task", "twice"}:
            self._task.cancel()
            if self.how == "twice":
                asyncio.get_running_loop().call_soon(self._task.cancel)
        elif self.how == "token":
            self.token.cancel("enough")
        elif self.how == "thread":
            return asyncio.to_thread(self.token.cancel, "enough")
        elif self.how == "deadline":
            time.sleep(max(0.0, self._deadline - time.monotonic()))
        else:
            self._leave.set()
        return None

    async def perform(self) -> None:
        self._task = asyncio.current_task()
        self._leave = asyncio.Event()
        self._deadline = time.monotonic() + 0.25
        options: dict[str, Any] = {"session_id": "s", "actor_id": "a", "cancellation": self.token}
        if self.how == "deadline":
            options["timeout"] = 0.25
        try:
            async with Runtime(session_store=self.store) as runtime:
                self.run = await self._say(runtime, QUESTION, options)
                while self.run.outcome == "suspended" and not self._leave.is_set():
                    await self.points("suspended")
                    call = self.run.pending[-1]
                    given = {kind: {call.id: value} for kind, value in ANSWERS[call.name].items()}
                    self.run = await self._say(runtime, None, {**options, **given})
                await asyncio.sleep(0)  # a cancellation that came too late for the run arrives here
        except (asyncio.CancelledError, RunCancelled, DeadlineExceeded) as error:
            self.raised = error

    async def _say(self, runtime: Runtime, message: str | None, options: dict[str, Any]) -> Run:
        if self.how == "reader leaves":
            async with runtime.stream(self.agent, message, **options) as events:
                async for _ in events:
                    if self._leave.is_set():
                        break
            return events.run
        if message is None:
            return await runtime.resume(self.agent, **options)
        return await runtime.ask(self.agent, message, **options)

    async def messages(self) -> list[Message]:
        return await Session(id="s", actor_id="a", store=self.store).journal()


def check_settled(attempt: Attempt, messages: list[Message]) -> None:
    open_calls = transcript.unsettled(messages)
    ran = {kind.split()[0] for kind, _ in Ledger(attempt.folder / "effects").counts()}
    assert {call.name for call in open_calls} <= set(ANSWERS) - ran, "a call that ran has no result"
    shaped = transcript.normalise(messages)
    said = [message for message in messages if message.role == "user"]
    assert [message.text for message in said if not transcript.note(message, "repair")] == (
        [QUESTION] if messages else []
    )
    for call_message, results in zip(shaped, [*shaped[1:], None], strict=False):
        if call_message.tool_uses:
            if results is None and open_calls:
                continue
            assert results is not None
            assert [result.tool_use_id for result in results.tool_results] == [
                call.id for call in call_message.tool_uses if call not in open_calls
            ]
    counts = Ledger(attempt.folder / "effects").counts()
    assert all(count == 1 for (kind, _), count in counts.items() if kind.startswith("order"))


@pytest.mark.parametrize("granularity", ["call", "batch"])
@pytest.mark.parametrize("how", HOWS)
async def test_stopped_at_any_point(tmp_path: Path, how: str, granularity: str) -> None:
    await stop_at_any_point(tmp_path, how, granularity, "text")


@pytest.mark.parametrize(
    ("how", "granularity"), [("token", "call"), ("task", "batch"), ("reader leaves", "call")]
)
@pytest.mark.parametrize("scenario", ["tool", "native", "waits"])
async def test_in_the_other_scenarios(tmp_path: Path, how: str, granularity: str, scenario: str) -> None:
    await stop_at_any_point(tmp_path, how, granularity, scenario)


async def stop_at_any_point(tmp_path: Path, how: str, granularity: str, scenario: str) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    whole = Attempt(folder, "none", None, granularity, scenario)
    await whole.perform()
    assert whole.run is not None
    assert whole.run.outcome == "completed"
    await whole.store.aclose()
    names = whole.points.names
    stopped = 0
    for at in range(0, len(names), 3 if how == "deadline" else 1):
        where = f"{how} at {at}: {names[at]}"
        folder = tmp_path / f"stopped-{at}"
        folder.mkdir()
        attempt = Attempt(folder, how, at, granularity, scenario)
        await asyncio.create_task(attempt.perform())
        messages = await attempt.messages()
        check_settled(attempt, messages)
        run, raised = attempt.run, attempt.raised
        if how in {"task", "twice"}:
            assert isinstance(raised, asyncio.CancelledError), where
        elif run is None:
            assert messages == [], f"{where}: {raised!r} was raised, although the message had been committed"
        else:
            waiting = {"suspended"} if scenario == "waits" else set()
            assert run.outcome in {"completed", "partial" if how == "deadline" else "cancelled"} | waiting, (
                where
            )
            assert run.messages == transcript.normalise(messages), where
            if run.outcome not in {"completed", "suspended"}:
                assert isinstance(run.error, DeadlineExceeded if how == "deadline" else RunCancelled)
                stopped += 1
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()], (
            f"{where}: a task was left"
        )
        resumed = await go_on(attempt)
        assert (resumed.outcome, resumed.text) == (
            "completed",
            ANSWER if scenario in {"text", "waits"} else TYPED,
        ), where
        after = await attempt.messages()
        assert after[: len(messages)] == messages, where
        check_settled(attempt, after)
        await attempt.store.aclose()
    assert stopped > 5 or how in {"task", "twice"}


async def go_on(attempt: Attempt) -> Run:
    points = Points(None, print)
    agent, store = make(attempt.folder, points, attempt.granularity, attempt.scenario)
    async with Runtime(session_store=store) as runtime:
        if not await attempt.messages():
            run = await runtime.ask(agent, QUESTION, session_id="s", actor_id="a")
        else:
            run = await runtime.resume(agent, session_id="s", actor_id="a")
        run = await answer(runtime, agent, run, points, session_id="s", actor_id="a")
    await store.aclose()
    return run


async def test_the_text_that_was_written_is_kept(tmp_path: Path) -> None:
    async def point(name: str) -> None:
        await asyncio.sleep(0.01 if name == "model streams" else 0)

    agent, store = make(tmp_path, point, "call")
    token = CancellationToken()
    async with Runtime(session_store=store) as runtime:
        async with runtime.stream(
            agent, QUESTION, session_id="s", actor_id="a", cancellation=token
        ) as events:
            async for event in events:
                if getattr(event, "text", None):
                    token.cancel("enough")
        run = events.run
    assert run.outcome == "cancelled"
    assert run.text.startswith("Working on it.")
    stored = await Session(id="s", actor_id="a", store=store).history()
    assert stored[-1].text == run.text
    await store.aclose()


def test_stopping_from_outside_the_loop_reaches_the_run(tmp_path: Path) -> None:
    async def ask(stop: Callable[[], None]) -> Run:
        async def point(name: str) -> None:
            if name == "order took effect":
                await asyncio.to_thread(stop)
                await asyncio.sleep(30)

        agent, store = make(tmp_path, point, "call")
        async with store, Runtime(session_store=store) as runtime:
            return await runtime.ask(agent, QUESTION, session_id="s", cancellation=token)

    token = CancellationToken()
    run = asyncio.run(ask(token.cancel))
    assert run.outcome == "cancelled"
    order = [result for message in run.messages for result in message.tool_results][1]
    assert order.status == "error"
    assert "unknown" in order.text
