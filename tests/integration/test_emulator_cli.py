"""`littleghost emulate agentcore`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")
pytest.importorskip("typer")

import boto3
from botocore.config import Config

from littleghost.emulators.agentcore import DEFAULT_MEMORY

COMMAND = [sys.executable, "-m", "littleghost.cli", "emulate", "agentcore"]
PLACE = {"memoryId": DEFAULT_MEMORY, "actorId": "actor", "sessionId": "session"}
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LITTLEGHOST_"))},
    "COLUMNS": "120",
    "PYTHONWARNINGS": "error",
}

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
            cwd=tmp_path,
        )
        started.append(child)
        return child

    yield begin
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()


def fails(*arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def client_of(url: str) -> Any:
    return boto3.client(
        "bedrock-agentcore",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="emulator",
        aws_secret_access_key="emulator",
        config=Config(retries={"total_max_attempts": 1}),
    )


def introduced(child: subprocess.Popen[str]) -> tuple[str, list[str]]:
    assert child.stdout is not None
    lines = []
    while not lines or lines[-1] != "Ctrl-C stops it.":
        line = child.stdout.readline()
        assert line, child.stderr.read() if child.stderr else ""
        lines.append(line.rstrip("\n"))
    found = re.search(r"http://[\d.:]+", lines[0])
    assert found
    return found[0], lines


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_with_everything_in_its_file(start: Start, tmp_path: Path, number: int):
    arguments = ["--memory", f"{DEFAULT_MEMORY}=7", "--memory", "other_memory-abcdefghij"]
    child = start(*arguments, "--file", "events.json", "--fault", "CreateEvent:throttle:nth=2", "--verbose")
    url, lines = introduced(child)
    assert f"  memory {DEFAULT_MEMORY}, 7 days" in lines
    assert "  memory other_memory-abcdefghij, 90 days" in lines
    assert "  file   events.json, with 0 events; saved within a second of each change" in lines
    assert "  fault  CreateEvent:throttle:nth=2" in lines
    assert f"  export AWS_ENDPOINT_URL_BEDROCK_AGENTCORE={url}" in lines
    client = client_of(url)
    event = client.create_event(**PLACE, eventTimestamp=5, payload=[])["event"]
    with pytest.raises(client.exceptions.ThrottledException):
        client.create_event(**PLACE, eventTimestamp=5, payload=[])
    child.send_signal(number)  # with the connection still open
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, "")
    first, second, last = out.splitlines()
    assert first[9:] == f"CreateEvent 201 actor/session {event['eventId']}"
    assert second[9:] == "CreateEvent 429 actor/session [throttle] ThrottledException: Rate exceeded."
    assert last == "stopped; everything is in events.json"
    assert [one["eventId"] for one in json.loads((tmp_path / "events.json").read_text())["events"]] == [
        event["eventId"]
    ]
    client.close()

    child = start("--file", "events.json")
    assert "with 1 event;" in "\n".join(introduced(child)[1])


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_programs_are_told_in_json(start: Start):
    child = start("--json", "-v")
    assert child.stdout is not None
    told = json.loads(child.stdout.readline())
    assert told["memories"] == {DEFAULT_MEMORY: 90}
    assert told["events"] == 0
    client = client_of(told["endpoint_url"])
    client.list_events(**PLACE)
    call = json.loads(child.stdout.readline())
    assert (call["operation"], call["status"], call["sessionId"]) == ("ListEvents", 200, "session")
    client.close()
    child.terminate()
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (0, "", "")


OPTIONS = [
    (["--pagination", "match"], "pagination", "match"),
    (["--idempotency", "ignored"], "idempotency", "ignored"),
    (["--idempotency", "expiring", "--token-lifetime", "5"], "token_lifetime", 5.0),
    (["--token-scope", "memory"], "token_scope", "memory"),
    (["--replay", "echo"], "replay", "echo"),
    (["--mismatch", "refuse"], "mismatch", "refuse"),
    (["--lag", "1"], "lag", 1.0),
    (["--filtered-lag", "2"], "filtered_lag", 2.0),
    (["--get-lag", "3"], "get_lag", 3.0),
    (["--ties", "permuted"], "ties", "permuted"),
    (["--order", "oldest"], "order", "oldest"),
    (["--quotas"], "quotas", True),
    (["--text-limit", "bytes"], "text_limit", "bytes"),
    (["--seed", "x"], "seed", "x"),
    (["--auto-create"], "auto_create", True),
    (["--host", "localhost"], "host", "localhost"),
    (["--port", "8123"], "port", 8123),
    (["--file", "x.json"], "file", Path("x.json")),
]


@pytest.mark.parametrize(
    ("arguments", "name", "value"), OPTIONS, ids=lambda value: value[0] if isinstance(value, list) else ""
)
def test_each_option_is_that_of_the_constructor(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], name: str, value: Any
):
    from typer.testing import CliRunner

    from littleghost.cli import emulating
    from littleghost.cli.app import app

    given: dict[str, Any] = {}

    def made(memories: Any, **options: Any) -> None:
        given.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(emulating, "AgentCoreEmulator", made)
    CliRunner().invoke(app, ["emulate", "agentcore", *arguments])
    assert given[name] == value


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--fault", "CreateEvent"], "error: fault rule 'CreateEvent': write OPERATION:KIND and what restricts it"),
        (["--fault", "CreateEvent:throttle:n=3"], "error: fault rule 'CreateEvent:throttle:n=3': 'n=3' is none of nth=…"),
        (["--host", "0.0.0.0"], "error: host: '0.0.0.0' is no loopback address"),
        (["--memory", "x"], "error: memories: 'x' is no memory id"),
        (["--memory", f"{DEFAULT_MEMORY}=x"], f"error: memory '{DEFAULT_MEMORY}=x': write ID or ID=DAYS"),
        (["--memory", f"{DEFAULT_MEMORY}=1"], "must be 3 to 3650"),
        (["--port", "70000"], "error: invalid value for '--port'"),
        (["--pagination", "ideal"], "error: invalid value for '--pagination'"),
        (["--idempotency", "expiring"], "error: token_lifetime: it goes with"),
        (["--file", "/nowhere/events.json", "--host", "example.org"], "error: host: 'example.org'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(arguments: list[str], text: str):
    told = fails(*arguments)
    assert text in told
    assert told.count("\n") == 1


def test_a_damaged_file_is_told_and_left_alone(tmp_path: Path):
    (tmp_path / "events.json").write_text("{")
    assert "events.json is no JSON" in fails("--file", str(tmp_path / "events.json"))
    assert (tmp_path / "events.json").read_text() == "{"


def test_the_help_has_an_example(tmp_path: Path):
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--fault CreateEvent:throttle:nth=3" in done.stdout
