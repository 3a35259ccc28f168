"""An application that is in the middle of two calls of an MCP server: ``python mcp_app.py FOLDER ADDRESS``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcpside import raw

from littleghost import Agent, MCPToolset, Message, Runtime, SQLiteStore, ToolUse
from littleghost.testing import FunctionModel


def make(folder: Path, address: str) -> tuple[Agent, Runtime]:
    """Return the agent, whose model makes one call that may run twice and one that may not, and where it runs."""

    def reply(request: object) -> Message | str:
        if any(message.role == "tool" for message in request.messages):  # type: ignore[attr-defined]
            return "Done."
        given = {"address": address, "ledger": str(folder / "ledger")}
        uses = [ToolUse(id=name, name=f"{name}_hold", input=given) for name in ("once", "again")]
        return Message.assistant(uses)

    servers = [
        MCPToolset.stdio(raw(), include=["hold"], prefix="once_"),
        MCPToolset.stdio(raw(), include=["hold"], prefix="again_", idempotent=["hold"]),
    ]
    return Agent(FunctionModel(reply), tools=servers), Runtime(session_store=SQLiteStore(folder / "s.db"))


async def main() -> None:
    """Ask, which the calls of the tools hold up."""
    agent, runtime = make(Path(sys.argv[1]), sys.argv[2])
    async with runtime:
        await runtime.ask(agent, "Go", session_id="s", actor_id="a")


if __name__ == "__main__":
    asyncio.run(main())
