"""What happens in a run, as it happens.

python examples/stream_events.py
"""

from __future__ import annotations

import asyncio

from littleghost import (
    Agent,
    Committed,
    MemoryStore,
    RunEnded,
    Runtime,
    TextDelta,
    ToolEnded,
    ToolStarted,
    ToolUse,
    tool,
)
from littleghost.testing import ScriptedModel


@tool(idempotent=True)
async def weather(city: str) -> str:
    """The weather in a city."""
    await asyncio.sleep(0.1)
    return f"It rains in {city}."


SCRIPT = [
    [
        "I look outside. ",
        ToolUse(id="1", name="weather", input={"city": "Graz"}),
        ToolUse(id="2", name="weather", input={"city": "Linz"}),
    ],
    "It rains everywhere, says this script, so take an umbrella and do not wait for a better day.",
]


async def main() -> None:
    agent = Agent(ScriptedModel(SCRIPT, delay=0.01), tools=[weather])
    async with (
        Runtime(session_store=MemoryStore()) as runtime,
        runtime.stream(agent, "Umbrella?", session_id="s") as events,
    ):
        async for event in events:
            match event:
                case TextDelta():
                    print("text     ", repr(event.text))
                case ToolStarted():
                    print("runs     ", event.call.name, event.call.input)
                case ToolEnded():
                    print("ended    ", event.call.name, event.call.input, event.result.text)
                case Committed():
                    print("committed", event.count, "messages")
                case RunEnded():
                    print("run ended", event.outcome)
    print(f"{events.run.steps} model calls")


asyncio.run(main())
