"""The chat service of the examples, as a process of its own behind a real socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from littleghost.sync import Session, SQLiteStore

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fastapi_app.py"
ANN, BOB = {"Authorization": "Bearer ann-secret"}, {"Authorization": "Bearer bob-secret"}
QUESTION = {"text": "How many of A7?"}
ANSWER = "There are 9 of A7. (I am a script.)"

# The same service with a model that writes for ever, a word at a time.
SLOW = """
import asyncio, importlib.util, sys
from littleghost import Agent, TextDelta
from littleghost.testing import FunctionModel
spec = importlib.util.spec_from_file_location("fastapi_app", sys.argv[1])
app = importlib.util.module_from_spec(spec)
sys.modules["fastapi_app"] = app
spec.loader.exec_module(app)
async def words(request):
    while True:
        yield TextDelta(text="word ")
        await asyncio.sleep(0.01)
app.script = words
sys.argv[1:2] = []
app.main()
"""


@contextmanager
def served(folder: Path, *, slow: bool = False) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    """The service in ``folder``, and a client of it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    start = ["-c", SLOW, str(EXAMPLE)] if slow else [str(EXAMPLE)]
    command = [sys.executable, *start, "--port", str(port)]
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        try:
            while True:
                assert process.poll() is None, (folder / "log").read_text()
                try:
                    client.get("/docs")
                except httpx.ConnectError:
                    time.sleep(0.02)
                else:
                    break
            yield client, process
        finally:
            process.kill()


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The server-sent events in ``lines``."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def ask(client: httpx.Client, chat: str, headers: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
    with client.stream("POST", f"/chats/{chat}/messages", json=QUESTION, headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(events(response.iter_lines()))


def test_an_answer_is_streamed_and_kept_across_a_restart(tmp_path: Path):
    with served(tmp_path) as (client, process):
        told = ask(client, "shop", ANN)
        assert [name for name, _ in told if name != "text"] == ["tool", "tool_ended", "end"]
        assert "".join(data["text"] for name, data in told if name == "text") == ANSWER
        assert told[-1] == ("end", {"outcome": "completed", "text": ANSWER})
        process.send_signal(signal.SIGKILL)
    with served(tmp_path) as (client, _):
        ask(client, "shop", ANN)
        chat = client.get("/chats/shop", headers=ANN).json()
        assert [message["role"] for message in chat] == ["user", "assistant"] * 2
        assert client.get("/chats", headers=ANN).json() == {"chats": ["shop"], "cursor": None}


def test_nobody_sees_the_chats_of_another(tmp_path: Path):
    with served(tmp_path) as (client, _):
        ask(client, "shop", ANN)
        assert client.get("/chats", headers=BOB).json()["chats"] == []
        assert client.get("/chats/shop", headers=BOB).json() == []
        assert client.post("/chats/shop/resume", headers=BOB).status_code == 404
        assert client.delete("/chats/shop", headers=BOB).status_code == 204
        assert len(client.get("/chats/shop", headers=ANN).json()) == 2
        assert client.delete("/chats/shop", headers=ANN).status_code == 204
        assert client.get("/chats/shop", headers=ANN).json() == []


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer guess"}])
def test_who_proves_nothing_is_refused(tmp_path: Path, headers: dict[str, str]):
    with served(tmp_path) as (client, _):
        assert client.get("/chats", headers=headers).status_code == 401
        assert client.post("/chats/x/messages", json=QUESTION, headers=headers).status_code == 401
        assert client.post("/chats/x/messages", json={"text": ""}, headers=ANN).status_code == 422


def begun(lines: Iterator[str]) -> str:
    """Read some words; return them. Whoever drops ``lines`` drops the connection."""
    words = (data["text"] for name, data in events(lines) if name == "text")
    return "".join(next(words) for _ in range(3))


def test_a_chat_in_use_is_busy_and_what_was_written_outlives_its_reader(tmp_path: Path):
    with served(tmp_path, slow=True) as (client, process):
        with client.stream("POST", "/chats/a/messages", json=QUESTION, headers=ANN) as response:
            words = begun(lines := response.iter_lines())
            busy = client.post("/chats/a/messages", json=QUESTION, headers=ANN)
            assert (busy.status_code, busy.json()) == (409, {"detail": "another answer is being written"})
            assert begun(lines)
        # The reader is gone; the run is stopped and settles, which frees the session.
        while len(chat := client.get("/chats/a", headers=ANN).json()) < 2:
            time.sleep(0.02)
        assert chat[1]["text"].startswith(words)
        with client.stream("POST", "/chats/a/resume", headers=ANN) as response:
            assert begun(response.iter_lines()) == words
        assert process.poll() is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_service_that_is_stopped_keeps_what_was_written(tmp_path: Path):
    source = EXAMPLE.read_text("utf-8").replace("timeout_graceful_shutdown=10", "timeout_graceful_shutdown=0")
    copy = tmp_path / "fastapi_app.py"
    copy.write_text(source, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "EXAMPLE", copy)
        with served(tmp_path, slow=True) as (client, process):
            with client.stream("POST", "/chats/a/messages", json=QUESTION, headers=ANN) as response:
                words = begun(lines := response.iter_lines())
                process.send_signal(signal.SIGTERM)
                try:
                    for _ in lines:
                        pass
                except httpx.HTTPError:
                    pass
            assert process.wait(60) in (0, -signal.SIGTERM), (tmp_path / "log").read_text()
    assert os.path.exists(tmp_path / "chats.db")
    with SQLiteStore(tmp_path / "chats.db") as store:
        _, answer = Session(id="a", actor_id="ann", store=store).history()
    assert answer.text.startswith(words)
