"""A worker that, when it starts, goes on with every run that the last one did not finish.

    python examples/resuming_worker.py

The first worker takes three jobs and is killed: while a model is asked, in the middle of a tool, and after one. The second finds the three
sessions, goes on where they were, three at a time, and leaves alone what another worker holds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from littleghost import (
    Agent,
    Message,
    ModelRequest,
    Run,
    Runtime,
    SessionBusyError,
    SessionInfo,
    SQLiteStore,
    ToolUse,
    tool,
    unfinished_sessions,
)
from littleghost.testing import FunctionModel

DIE = "--die" in sys.argv
AT_ONCE = 3
LETTERS = Path("sent.txt")


@tool
def send(to: str) -> str:
    """Send a letter. Not idempotent: it is never sent a second time for the same call."""
    with LETTERS.open("a") as file:
        file.write(f"{to}\n")
    if DIE and to == "ben":
        time.sleep(1000)  # the worker dies before this ends
    return "sent"


async def script(request: ModelRequest) -> Message:
    """Stand in for a model, one that takes its time."""
    name = request.messages[-1].text.removeprefix("Write to ") if request.messages[-1].role == "user" else ""
    if DIE and name == "ann":
        await asyncio.sleep(1000)
    if name:
        return Message.assistant([ToolUse(id="1", name="send", input={"to": name})])
    result = request.messages[-1].tool_results[0]
    if DIE:
        await asyncio.sleep(1000)
    return Message.assistant("Done." if result.status == "success" else "Perhaps sent; I shall ask.")


agent = Agent(FunctionModel(script), tools=[send])


async def go_on(runtime: Runtime, info: SessionInfo, places: asyncio.Semaphore) -> None:
    async with places:
        try:
            run = await runtime.resume(agent, session_id=info.id, actor_id=info.actor_id, busy="raise")
        except SessionBusyError:
            return  # another worker is at it
        # One that waits for an approval is still suspended, and stays so.
        print(f"{info.id}: {run.outcome} - {run.text}")


async def work() -> None:
    async with SQLiteStore("jobs.db") as store, Runtime(session_store=store) as runtime:
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            async for info in unfinished_sessions(store):
                group.create_task(go_on(runtime, info, places))
        # ... and then it would take new jobs, from a queue.


async def take_jobs_and_die() -> None:
    names = ("ann", "ben", "cas")
    async with SQLiteStore("jobs.db") as store, Runtime(session_store=store) as runtime:
        for name in names:
            task = asyncio.create_task(
                runtime.ask(agent, f"Write to {name}", session_id=name, actor_id="jobs")
            )
            tasks.add(task)
        while True:
            await asyncio.sleep(0.01)
            stored = [len(await runtime.session(name, actor_id="jobs").history()) for name in names]
            if stored == [1, 2, 3] and "ben" in LETTERS.read_text():  # noqa: ASYNC240
                os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


tasks: set[asyncio.Task[Run]] = set()

if DIE:
    asyncio.run(take_jobs_and_die())
else:
    os.chdir(tempfile.mkdtemp())
    killed = subprocess.run([sys.executable, str(Path(__file__).resolve()), "--die"], check=False)
    print(f"the first worker: exit status {killed.returncode}")
    asyncio.run(work())
    print("letters:", sorted(LETTERS.read_text().split()))
