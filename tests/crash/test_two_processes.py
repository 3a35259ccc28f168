"""Two processes that ask in one session at once: one goes, the other waits or is told, and no tool runs because of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scenario import Ledger

from littleghost import Session, SQLiteStore, transcript

CHILD = """
import asyncio, json, os, sys, time
from pathlib import Path
from littleghost import Agent, Message, RunContext, Runtime, SessionBusyError, SQLiteStore, ToolUse, tool
from littleghost.testing import FunctionModel
from scenario import Ledger

folder, question, busy = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

@tool
async def order(context: RunContext) -> str:
    Ledger(folder / "effects").enter(question, context.idempotency_key)
    print("working", flush=True)
    while not (folder / "go").exists():
        await asyncio.sleep(0.01)
    return "ordered"

def reply(request):
    if request.messages[-1].role == "tool":
        return f"answer to {question}"
    return Message.assistant([ToolUse(id="call", name="order")])

async def main():
    async with SQLiteStore(folder / "sessions.db") as store, Runtime(session_store=store) as runtime:
        try:
            run = await runtime.ask(Agent(FunctionModel(reply), tools=[order]), question, session_id="s", busy=busy)
        except SessionBusyError as error:
            return {"outcome": "busy"}
        return {"outcome": run.outcome, "texts": [m.text for m in run.messages if m.text]}

print(json.dumps(asyncio.run(main())), flush=True)
"""


def start(folder: Path, question: str, busy: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), question, busy],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate(timeout=60)
    return json.loads(output.splitlines()[-1])


async def test_one_goes_and_the_others_wait_or_are_told(tmp_path: Path) -> None:
    first = start(tmp_path, "first", "wait")
    assert first.stdout is not None
    assert first.stdout.readline() == "working\n"
    assert answer(start(tmp_path, "refused", "raise")) == {"outcome": "busy"}
    second = start(tmp_path, "second", "wait")
    time.sleep(0.5)
    assert second.poll() is None
    (tmp_path / "go").touch()
    assert answer(first)["texts"] == ["first", "answer to first"]
    assert answer(second)["texts"] == ["first", "answer to first", "second", "answer to second"]
    assert sorted(kind for kind, _ in Ledger(tmp_path / "effects").counts()) == ["first", "second"]
    assert set(Ledger(tmp_path / "effects").counts().values()) == {1}


async def test_who_is_killed_lets_go_of_the_session(tmp_path: Path) -> None:
    first = start(tmp_path, "first", "wait")
    assert first.stdout is not None
    assert first.stdout.readline() == "working\n"
    second = start(tmp_path, "second", "wait")
    time.sleep(0.3)
    assert second.poll() is None
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (tmp_path / "go").touch()
    assert answer(second)["outcome"] == "completed"
    async with SQLiteStore(tmp_path / "sessions.db") as store:
        messages = await Session(id="s", store=store).history()
    assert transcript.for_model(messages) == list(messages)
    statuses = [result.status for message in messages for result in message.tool_results]
    assert statuses == ["error", "success"]
    assert set(Ledger(tmp_path / "effects").counts().values()) == {1}


async def test_many_at_once_all_get_their_turn(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    processes = [start(tmp_path, f"question {number}", "wait") for number in range(6)]
    for process in processes:
        assert answer(process)["outcome"] == "completed"
    async with SQLiteStore(tmp_path / "sessions.db") as store:
        messages = await Session(id="s", store=store).history()
    assert len(messages) == 24
    assert transcript.for_model(messages) == list(messages)
    asked = [message.text for message in messages if message.role == "user"]
    assert sorted(asked) == [f"question {number}" for number in range(6)]
    assert [message.text for message in messages if message.role == "assistant" and message.text] == [
        f"answer to {question}" for question in asked
    ]


async def test_ctrl_c_settles_what_is_open_before_the_program_ends(tmp_path: Path) -> None:
    process = start(tmp_path, "first", "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    async with SQLiteStore(tmp_path / "sessions.db") as store:
        messages = await Session(id="s", store=store).history()
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert transcript.unsettled(messages) == ()
    assert "unknown" in messages[2].tool_results[0].text
