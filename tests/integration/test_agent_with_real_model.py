"""Agents on a real model: tools that read and write files, a session that another process goes on with, a server that dies.

The model has 135 million parameters. What it says is checked only where it could hardly say anything else; what the library
makes of it is checked exactly.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from littleghost import (
    Agent,
    HostSandbox,
    Message,
    ModelUnavailableError,
    OpenAIModel,
    RunLimits,
    Runtime,
    SQLiteStore,
)
from littleghost.events import Retrying, TextDelta
from littleghost.models.local import LlamaServer
from littleghost.models.retry import RetryPolicy
from littleghost.sessions.session import Session
from littleghost.tools.builtin import read_file, write_file

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("llama")]
GREEDY = {"temperature": 0, "max_tokens": 60}


def model_of(server: LlamaServer, **settings: Any) -> OpenAIModel:
    return OpenAIModel("small", base_url=server.base_url, api_key=server.key, settings={**GREEDY, **settings})


@pytest.fixture
async def model(llama: LlamaServer):
    model = model_of(llama)
    yield model
    await model.aclose()


def calls_of(messages: Any) -> list[tuple[Any, Any]]:
    """Each call with its result."""
    results = {result.tool_use_id: result for message in messages for result in message.tool_results}
    return [(call, results[call.id]) for message in messages for call in message.tool_uses]


async def test_an_agent_reads_files(model, tmp_path):
    (tmp_path / "notes.txt").write_text("The meeting is on Friday at noon.")
    agent = Agent(model, tools=[read_file])
    told = 0
    async with Runtime(workspace=tmp_path, sandbox=HostSandbox) as runtime:
        for prompt in (
            "Read the file notes.txt",
            "Please read the file notes.txt.",
            "Show me the contents of notes.txt",
        ):
            run = await runtime.ask(agent, prompt, limits=RunLimits(turns=3))
            assert run.outcome in {"completed", "partial"}
            for call, result in calls_of(run.messages):
                if call.input == {"path": "notes.txt"}:
                    assert result.text == "The meeting is on Friday at noon."
                    told += "Friday" in run.text
    assert told >= 2, f"{told} of 3 answers told what the file says"


async def test_an_agent_writes_files(model, tmp_path):
    agent = Agent(model, tools=[read_file, write_file])
    written = 0
    async with Runtime(
        workspace=tmp_path, sandbox=lambda workspace: HostSandbox(workspace, writable=True)
    ) as runtime:
        for prompt in (
            "Write hello to the file greeting.txt",
            "Write the text 'buy milk' into the file list.txt",
            "Write a text file of the workspace: done.txt, it is done",
        ):
            run = await runtime.ask(agent, prompt, limits=RunLimits(turns=3))
            assert run.outcome in {"completed", "partial"}
            for call, result in calls_of(run.messages):
                if call.name == "write_file" and result.status == "success":
                    written += 1
                    assert (tmp_path / call.input["path"]).read_text() == call.input["content"]
    assert written >= 2, f"{written} of 3 prompts wrote a file"


CONTINUED = """
    import asyncio, json, os, sys
    from littleghost import Agent, OpenAIModel, Runtime, SQLiteStore

    async def main():
        model = OpenAIModel(
            "small", base_url=os.environ["TEST_URL"], api_key=os.environ["TEST_KEY"], settings=json.loads(sys.argv[3])
        )
        async with SQLiteStore(sys.argv[1]) as store, Runtime(session_store=store) as runtime:
            run = await runtime.ask(Agent(model), sys.argv[2], session_id="talk", actor_id="ada")
        await model.aclose()
        print(json.dumps([run.outcome, run.text, run.usage.total_tokens]))

    asyncio.run(main())
"""


async def test_a_conversation_goes_on_in_other_processes(llama, model, tmp_path):
    path = tmp_path / "talk.db"

    async def elsewhere(question: str) -> list[Any]:
        ended = await asyncio.to_thread(
            subprocess.run,
            [
                sys.executable,
                "-W",
                "error",
                "-c",
                textwrap.dedent(CONTINUED),
                str(path),
                question,
                json.dumps(GREEDY),
            ],
            env={**os.environ, "TEST_URL": llama.base_url, "TEST_KEY": llama.key},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        return json.loads(ended.stdout)

    questions = [
        "The capital of France is Paris.",
        "What is the capital of France?",
        "Say the name of that city again.",
    ]
    first = await elsewhere(questions[0])
    second = await elsewhere(questions[1])
    async with SQLiteStore(path) as store, Runtime(session_store=store) as runtime:
        third = await runtime.ask(Agent(model), questions[2], session_id="talk", actor_id="ada")
        history = await Session(id="talk", actor_id="ada", store=store).history()
        assert await Session(id="talk", actor_id="eve", store=store).history() == ()
    assert [first[0], second[0], third.outcome] == ["completed"] * 3
    assert [message.role for message in history] == ["user", "assistant"] * 3
    assert [message.text for message in history] == [
        text for pair in zip(questions, [first[1], second[1], third.text], strict=True) for text in pair
    ]
    assert "Paris" in second[1]
    # The model read what was said before, in whichever process.
    assert first[2] < second[2] < third.usage.total_tokens


async def test_a_server_dies_and_the_run_is_resumed(gguf, tmp_path):
    (tmp_path / "notes.txt").write_text("The meeting is on Friday at noon.")
    server = LlamaServer(gguf, context=2048, threads=1)
    await asyncio.to_thread(server.start)
    dying = model_of(server, max_tokens=1500, ignore_eos=True)
    dying._policy = RetryPolicy(retries=2, base=0.01)
    store = SQLiteStore(tmp_path / "talk.db")
    key: dict[str, Any] = {"session_id": "talk", "actor_id": "ada"}
    try:
        async with Runtime(session_store=store, workspace=tmp_path, sandbox=HostSandbox) as runtime:
            seen: list[Any] = []
            async with runtime.stream(Agent(dying), "Say hello.", **key) as events:
                async for event in events:
                    seen.append(event)
                    if sum(type(event) is TextDelta for event in seen) == 5 and server.running:
                        os.kill(server.pid, signal.SIGKILL)
            run = events.run
            assert run.outcome == "failed"
            assert type(run.error) is ModelUnavailableError
            assert [event.attempt for event in seen if type(event) is Retrying] == [1, 2]
            before = await Session(id="talk", actor_id="ada", store=store).history()
            assert before[0] == Message.user("Say hello.")
            # What was said of the answer may be kept.
            assert [message.role for message in before[1:]] in ([], ["assistant"])

            await asyncio.to_thread(server.start)
            alive = model_of(server)
            run = await runtime.resume(Agent(alive), **key)
            assert run.outcome == "completed"
            assert run.steps == 1
            assert run.text
            history = await Session(id="talk", actor_id="ada", store=store).history()
            assert history[: len(before)] == before
            assert history[-1].text == run.text
            run = await runtime.ask(Agent(alive, tools=[read_file]), "Read the file notes.txt", **key)
            assert run.outcome in {"completed", "partial"}
            await alive.aclose()
    finally:
        await dying.aclose()
        await store.aclose()
        await asyncio.to_thread(server.stop)
    assert not Path(f"/proc/{server.pid}").exists()
