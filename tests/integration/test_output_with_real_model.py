"""Answers in a type from a real model: what a grammar holds it to, what it gives by a tool, and what there is on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

import pydantic
import pytest
from msgspec import Meta, Struct

from littleghost import Agent, MemoryStore, OpenAIModel, Output, OutputDelta, Runtime
from littleghost.models.local import LlamaServer

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("llama")]


class Item(Struct):
    """One article.

    Attributes:
        sku: Article number.
    """

    sku: Literal["A7", "B2"]
    count: Annotated[int, Meta(ge=1, le=9)] = 1


class Order(Struct):
    """What the customer wants."""

    items: Annotated[list[Item], Meta(min_length=1, max_length=3)]
    speed: Literal["slow", "fast"]
    due: datetime | None = None


class Refusal(Struct):
    """The order is not possible."""

    reason: Literal["unknown article", "too many"]


class Verdict(pydantic.BaseModel):
    """A judgement."""

    positive: bool
    score: int = pydantic.Field(ge=0, le=10)


@pytest.fixture
async def model(llama: LlamaServer) -> AsyncIterator[OpenAIModel]:
    settings = {"temperature": 0, "max_tokens": 200}
    model = OpenAIModel("small", base_url=llama.base_url, api_key=llama.key, settings=settings)
    yield model
    await model.aclose()


@pytest.mark.parametrize(
    ("strategy", "type", "classes"),
    [
        ("native", Verdict, (Verdict,)),
        ("native", Order | Refusal, (Order, Refusal)),
        ("tool", Order, (Order,)),
        ("tool", bool, (bool,)),
    ],
    ids=str,
)
async def test_a_model_gives_a_value_of_the_type(
    model: OpenAIModel, strategy: Any, type: Any, classes: Any
) -> None:
    agent = Agent(model, instructions="Take down the order.", output=Output(type, strategy=strategy))
    async with Runtime(session_store=MemoryStore()) as runtime:
        async with runtime.stream(agent, "Two of A7, quickly.", session_id="s") as events:
            partial = [event.value async for event in events if isinstance(event, OutputDelta)]
        run = events.run
        assert run.outcome == "completed", run.error
        assert run.steps == 1, "the grammar leaves no room for an answer that does not fit"
        assert isinstance(run.output, classes)
        assert partial, "nothing was shown"
        again = await runtime.resume(agent, session_id="s")
        assert (again.output, again.steps) == (run.output, 0)
        # Asked in the other way it understands the conversation as it is stored.
        other = Agent(model, output=Output(bool, strategy="native"))
        assert (await runtime.ask(other, "Is that a lot?", session_id="s")).output in (True, False)
