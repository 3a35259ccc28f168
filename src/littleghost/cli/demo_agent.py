"""The agent of ``littleghost demo``, and the program that each process of the demo runs.

::

    python -m littleghost.cli.demo_agent FOLDER "Charge order 17" --session shop

It keeps its session in FOLDER/sessions.db, works in FOLDER/workspace, and charges customers at a "bank", which is the file
FOLDER/bank.txt with a line for each thing that happened there. With ``--resume`` it goes on where a killed process stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

from littleghost import (
    Agent,
    HostSandbox,
    LittleGhostError,
    Message,
    ModelRequest,
    RunContext,
    Runtime,
    SandboxTools,
    SQLiteStore,
    ToolResult,
    ToolUse,
    native_sandbox,
    tool,
)
from littleghost.cli.running import run
from littleghost.testing import FunctionModel

__all__ = ["Bank", "agent", "runtime_in"]


class Bank:
    """A service outside of the agent's reach, whose effects cannot be taken back.

    Args:
        folder: Where its book is. It confirms a payment once a file ``bank-is-open`` is there.
    """

    def __init__(self, folder: Path) -> None:
        self.book = folder / "bank.txt"
        self.open = folder / "bank-is-open"

    def write(self, line: str) -> None:
        """Add a line to the book, for good."""
        descriptor = os.open(self.book, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    def lines(self) -> list[str]:
        """Return the book."""
        return self.book.read_text("utf-8").splitlines() if self.book.exists() else []


# Tools. This one has an effect that must not happen twice, so it is not declared idempotent.


@tool(timeout=60)
async def charge(order: int, context: RunContext[Bank]) -> str:
    """Charge the customer of an order."""
    bank = context.deps
    bank.write(f"charged {order}")
    while not bank.open.exists():  # the bank takes its time; the demo kills this process here
        await asyncio.sleep(0.01)
    bank.write(f"confirmed {order}")
    return f"Order {order} is paid."


@tool(idempotent=True)
async def charges(order: int, context: RunContext[Bank]) -> int:
    """How often the customer of an order has been charged, by the bank's book."""
    return context.deps.lines().count(f"charged {order}")


# The model. A script, for a demo must need no key and no network; it knows nothing but the conversation it is sent, as any model.


def script(request: ModelRequest) -> Message:
    """Answer as a model would."""
    question, results = since_question(request.messages)
    order = int((re.findall(r"order (\d+)", question) or ["0"])[0])
    note, receipt = f"order-{order}.txt", f"receipt-{order}.txt"
    if question.startswith("Take"):
        if "write_file" not in results:
            return say(
                "I am a script, not a language model. I note the order.",
                call("write_file", path=note, content=question),
            )
        if "read_file" not in results:
            return say("I read it again.", call("read_file", path=note))
        return say(f"Noted: {results['read_file'].text!r}")
    if question.startswith("Charge"):
        if "charge" not in results:
            return say(
                f"I charge order {order}, and look around meanwhile.",
                call("list_files"),
                call("charge", order=order),
            )
        if results["charge"].status == "error" and "charges" not in results:
            return say(
                "That was interrupted. I do not charge again, I ask the bank first.",
                call("charges", order=order),
            )
        if "write_file" not in results:
            return say(
                "It was charged. I write the receipt.", call("write_file", path=receipt, content="paid")
            )
        return say(f"Order {order} is charged, and {receipt} is written.")
    if question.startswith("Break out"):
        if results:
            return say("That is all I know how to try.")
        outside = question.partition(": ")[2]
        programs = (["ls"], ["cat", outside], ["sh", "-c", "cat /proc/*/environ"])
        return say(
            "I try to leave the folder.",
            *(call("read_file", path=path) for path in ("../secret.txt", outside, "link-to-secret")),
            call("write_file", path="../planted.txt", content="x"),
            *(
                call("shell", command=command)
                for command in programs
                if any(spec.name == "shell" for spec in request.tools)
            ),
        )
    return say("I am a script, and this is not in it.")


def say(text: str, *calls: tuple[str, dict[str, Any]]) -> Message:
    """Return an answer: a text, and tool calls."""
    return Message.assistant(
        [text, *(ToolUse(id=f"call-{at}", name=name, input=given) for at, (name, given) in enumerate(calls))]
    )


def call(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """Return a tool call."""
    return name, arguments


def since_question(messages: list[Message]) -> tuple[str, dict[str, ToolResult]]:
    """Return the last question, and by tool the results since."""
    question = ""
    names: dict[str, str] = {}
    results: dict[str, ToolResult] = {}
    for message in messages:
        if message.role == "user":
            question, results = message.text, {}
        names |= {call.id: call.name for call in message.tool_uses}
        results |= {names[result.tool_use_id]: result for result in message.tool_results}
    return question, results


agent = Agent(FunctionModel(script), tools=[SandboxTools(), charge, charges], name="shop")


def runtime_in(folder: Path, *, isolated: bool) -> Runtime:
    """Return a runtime that keeps its sessions in ``folder`` and works in the workspace there."""
    return Runtime(
        session_store=lambda: SQLiteStore(folder / "sessions.db"),
        workspace=folder / "workspace",
        sandbox=partial(native_sandbox if isolated else HostSandbox, writable=True),
    )


async def main() -> None:
    """Ask or resume once, and write what came of it as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("message", nargs="?")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--session", required=True)
    parser.add_argument("--actor")
    parser.add_argument("--busy", choices=("wait", "raise"), default="wait")
    parser.add_argument("--no-isolation", action="store_true")
    given = parser.parse_args()
    options: dict[str, Any] = {
        "session_id": given.session,
        "actor_id": given.actor,
        "busy": given.busy,
        "deps": Bank(given.folder),
    }
    tell({"asking": True})
    async with runtime_in(given.folder, isolated=not given.no_isolation) as runtime:
        try:
            if given.resume:
                done = await runtime.resume(agent, **options)
            else:
                done = await runtime.ask(agent, given.message, **options)
        except LittleGhostError as error:
            tell({"raised": type(error).__name__, "error": str(error)})
        else:
            tell(
                {
                    "outcome": done.outcome,
                    "text": done.text,
                    "steps": done.steps,
                    "error": str(done.error or ""),
                }
            )


def tell(values: dict[str, Any]) -> None:
    """Write a line of JSON."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(main())
