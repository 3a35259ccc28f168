"""An agent is killed in the middle of a tool, and another process goes on: nothing lost, and nothing done twice.

    python examples/survive_a_kill.py

The tool is not idempotent, so it never runs a second time for the same call. The model is told that the call was interrupted, and
decides what to do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from littleghost import Agent, Message, ModelRequest, Runtime, SQLiteStore, ToolUse, tool
from littleghost.testing import FunctionModel

DIE = "--die" in sys.argv


@tool
def send_mail(to: str) -> str:
    """Send a mail."""
    with Path("sent.txt").open("a") as sent:
        sent.write(f"{to}\n")
    if DIE:
        os.kill(
            os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM)
        )  # no exception, no clean-up: the process is gone
    return "sent"


@tool(idempotent=True)
def sent() -> list[str]:
    """The mails that went out."""
    return Path("sent.txt").read_text().split()


def script(request: ModelRequest) -> Message:
    """Stand in for a model."""
    results = [result for message in request.messages for result in message.tool_results]
    if not results:
        return Message.assistant([ToolUse(id="1", name="send_mail", input={"to": "ann"})])
    if len(results) == 1 and results[0].status == "error":
        print("told:", results[0].text)
        return Message.assistant([ToolUse(id="2", name="sent")])
    return Message.assistant(f"Sent to: {results[-1].text}")


agent = Agent(FunctionModel(script), tools=[send_mail, sent])


async def work() -> None:
    async with SQLiteStore("mail.db") as store, Runtime(session_store=store) as runtime:
        if DIE:
            await runtime.ask(agent, "Write to Ann.", session_id="mail")
        run = await runtime.resume(agent, session_id="mail")
        print(run.outcome, "-", run.text)


def main() -> None:
    if DIE or "--resume" in sys.argv:
        asyncio.run(work())
        return
    with tempfile.TemporaryDirectory() as folder:
        for option in ("--die", "--resume"):
            command = [sys.executable, str(Path(__file__).resolve()), option]
            done = subprocess.run(command, cwd=folder, check=False)
            print(f"{option}: exit status {done.returncode}")
        print("mails sent:", len((Path(folder) / "sent.txt").read_text().split()))


main()
