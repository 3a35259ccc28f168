"""What a run lets go of, and when."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

from littleghost import (
    Agent,
    CancellationToken,
    Message,
    Model,
    ModelEnded,
    ModelEvent,
    ModelRequest,
    ToolUse,
    tool,
)
from littleghost.testing import ScriptedModel

CALL = Message.assistant([ToolUse(id="1", name="note", input={})])


async def test_the_stream_of_a_model_is_closed_before_the_run_goes_on() -> None:
    happened: list[str] = []

    @tool
    async def note() -> str:
        happened.append("tool")
        return "noted"

    class Streaming(Model):
        def __init__(self) -> None:
            self.answers = [CALL, Message.assistant("Done.")]

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            try:
                yield ModelEnded(message=self.answers.pop(0))
            finally:
                for _ in range(10):
                    await asyncio.sleep(0)
                happened.append("closed")

    run = await Agent(Streaming(), tools=[note]).ask("Go")
    assert run.outcome == "completed"
    assert happened == ["closed", "tool", "closed"]


async def test_a_stream_need_not_be_a_generator() -> None:
    class Answer:
        def __init__(self) -> None:
            self.events: list[ModelEvent] = [ModelEnded(message=Message.assistant("Done."))]

        def __aiter__(self) -> Answer:
            return self

        async def __anext__(self) -> ModelEvent:
            return self.events.pop(0)

    class Plain(Model):
        def stream(self, request: ModelRequest) -> Any:
            return Answer()

    run = await Agent(Plain()).ask("Go")
    assert (run.outcome, run.text) == ("completed", "Done.")


async def test_a_long_lived_token_keeps_nothing_of_a_finished_run() -> None:
    token = CancellationToken()

    async def ask() -> int:
        await Agent(ScriptedModel(["Done."])).ask("Go", cancellation=token)
        gc.collect()
        return sum(isinstance(item, CancellationToken) for item in gc.get_objects())

    before = await ask()
    assert [await ask() for _ in range(3)] == [before] * 3
