"""An agent with one tool, in a session that is kept.

    python examples/shop.py                                    # a script answers, so this needs no key
    python examples/shop.py --model openai:gpt-5 "Do you have B2?"

Run it twice: the second time it goes on with the conversation of the first.
"""

from __future__ import annotations

import argparse
import asyncio

from littleghost import Agent, Message, ModelRequest, RunContext, Runtime, SQLiteStore, ToolUse, tool
from littleghost.testing import FunctionModel

SHELF = {"A7": 9, "B2": 0}


@tool(idempotent=True)
async def stock(sku: str, context: RunContext) -> int:
    """Units on the shelf for one article.

    Args:
        sku: Article number.
    """
    context.state["asked_for"] = [*context.state.get("asked_for", []), sku]  # kept with the session
    return context.deps.get(sku, 0)


def script(request: ModelRequest) -> Message:
    """Stand in for a model: ask the tool, then say what it answered."""
    last = request.messages[-1]
    if last.role == "tool":
        return Message.assistant(f"There are {last.tool_results[0].text} of A7. (I am a script.)")
    return Message.assistant([ToolUse(id="1", name="stock", input={"sku": "A7"})])


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("question", nargs="?", default="How many of A7?")
    parser.add_argument("--model", help="openai:NAME or local:FILE.gguf")
    parser.add_argument("--store", default="shop.db")
    given = parser.parse_args()

    agent = Agent(given.model or FunctionModel(script), instructions="Answer from stock().", tools=[stock])
    async with SQLiteStore(given.store) as store, Runtime(session_store=store) as runtime:
        run = await runtime.ask(agent, given.question, session_id="shop-1", actor_id="user-7", deps=SHELF)
        print(run.check().text)
        print(f"{len(run.messages)} messages are kept, and the state {run.state}")


asyncio.run(main())
