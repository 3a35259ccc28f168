"""A refund that a person has to approve: one process asks and ends, another one answers, as late as it likes.

    python examples/approval.py                  # both, one after the other
    python examples/approval.py ask              # suspends
    python examples/approval.py pending          # what waits
    python examples/approval.py answer yes|no    # goes on

The process that pays is killed in the middle of it, and started again: the money goes out once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from littleghost import Agent, Approval, Message, ModelRequest, Runtime, SQLiteStore, ToolUse, tool
from littleghost.testing import FunctionModel

SESSION = {"session_id": "complaint-1", "actor_id": "ann"}
PAID = Path("paid.txt")


@tool(needs_approval=lambda given: given["amount"] > 50)
def refund(order: str, amount: int) -> str:
    """Pay a customer back. Up to 50 needs no approval."""
    with PAID.open("a") as file:
        file.write(f"{amount} for {order}\n")
    if "die" in sys.argv:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
    return "paid"


def script(request: ModelRequest) -> Message:
    """Stand in for a model."""
    last = request.messages[-1]
    if last.role != "tool":
        return Message.assistant([ToolUse(id="1", name="refund", input={"order": "A7", "amount": 900})])
    return Message.assistant(f"The refund: {last.tool_results[0].text}")


agent = Agent(FunctionModel(script), tools=[refund], name="complaints")


async def ask(runtime: Runtime) -> None:
    run = await runtime.ask(agent, "The parcel was empty. I want my money back.", **SESSION)
    print(f"{run.outcome}: {[call.input for call in run.pending]}")


async def pending(runtime: Runtime) -> None:
    for call in await runtime.pending(**SESSION):
        print(f"{call.id} {call.name} {call.input}")


async def answer(runtime: Runtime, word: str) -> None:
    calls = await runtime.pending(**SESSION)
    # What was shown is what is approved: naming the arguments pins them.
    answers = {
        call.id: Approval(True, arguments=call.input)
        if word == "yes"
        else Approval(False, reason="There are photos of the full parcel.")
        for call in calls
    }
    run = await runtime.resume(agent, approvals=answers, **SESSION)
    print(f"{run.outcome}: {run.text}")


async def main(what: str, word: str) -> None:
    async with SQLiteStore("complaints.db") as store, Runtime(session_store=store) as runtime:
        await (
            ask(runtime)
            if what == "ask"
            else pending(runtime)
            if what == "pending"
            else answer(runtime, word)
        )


def both() -> None:
    """Start a process for each step."""
    program = str(Path(__file__).resolve())
    os.chdir(tempfile.mkdtemp())
    for step in (["ask"], ["pending"], ["answer", "yes", "die"], ["pending"], ["answer", "yes"]):
        print("$", *step, flush=True)
        done = subprocess.run([sys.executable, program, *step], check=False)
        if done.returncode:
            print(f"exit status {done.returncode}")
    print("paid:", PAID.read_text().splitlines())


if len(sys.argv) > 1:
    asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""))
else:
    both()
