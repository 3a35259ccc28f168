"""An agent that mends a program in a sandbox: it reads, runs the tests, changes a file, and runs them again.

    python examples/coding_agent.py                       # a script stands in for the model
    python examples/coding_agent.py --model openai:gpt-5  # a real one

The programs it runs are isolated by the sandbox of this machine (bubblewrap on Linux): no network, nothing outside the workspace. Where
there is no such sandbox it says so and does not fall back to another.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from littleghost import (
    Agent,
    ConfigurationError,
    Message,
    ModelRequest,
    Runtime,
    SandboxTools,
    TextDelta,
    ToolEnded,
    ToolStarted,
    ToolUse,
    native_sandbox,
)
from littleghost.testing import FunctionModel

PROGRAM = """\
def mean(numbers):
    return sum(numbers) / len(numbers)
"""
TESTS = """\
from program import mean

assert mean([1, 2, 3]) == 2
assert mean([]) == 0, "the mean of nothing is 0"
print("all tests pass")
"""
TASK = "tests.py fails. Find out why, mend program.py, and see that the tests pass."
RUN_TESTS = {"command": ["python3", "tests.py"]}


def script(request: ModelRequest) -> Message:
    """Stand in for a model that knows what to do."""
    steps = [
        ToolUse(id="1", name="shell", input=RUN_TESTS),
        ToolUse(id="2", name="read_file", input={"path": "program.py"}),
        ToolUse(
            id="3",
            name="replace_in_file",
            input={"path": "program.py", "old_text": "len(numbers)", "new_text": "(len(numbers) or 1)"},
        ),
        ToolUse(id="4", name="shell", input=RUN_TESTS),
    ]
    taken = sum(message.role == "assistant" for message in request.messages)
    return Message.assistant(steps[taken] if taken < len(steps) else "Mended: the mean of nothing is 0 now.")


async def mend(model: Any, root: Path) -> bool:
    """Let the agent work in ``root``; return whether it came to an end."""
    agent = Agent(
        model,
        instructions="You mend programs. Use the tools; say at the end what you did.",
        tools=[SandboxTools()],
    )
    async with (
        Runtime(sandbox=native_sandbox(root, writable=True)) as runtime,
        runtime.stream(agent, TASK, timeout=300) as events,
    ):
        async for event in events:
            match event:
                case ToolStarted():
                    print(f"> {event.call.name} {event.call.input}")
                case ToolEnded():
                    print(f"  {event.result.text.strip()[-300:]}")
                case TextDelta():
                    print(event.text, end="")
    print()
    return events.run.outcome == "completed"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="such as openai:gpt-5; without one a script answers")
    model = parser.parse_args().model or FunctionModel(script)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "program.py").write_text(PROGRAM)
        (root / "tests.py").write_text(TESTS)
        try:
            done = asyncio.run(mend(model, root))
        except ConfigurationError as error:
            print(f"no sandbox here: {error}")
            return 1
        print((root / "program.py").read_text(), end="")
        return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
