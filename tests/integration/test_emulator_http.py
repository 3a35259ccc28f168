"""The emulator of AgentCore Memory over HTTP: many clients, threads and processes, large bodies, kept connections, and its end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("boto3")

from botocore.config import Config

from littleghost import ConfigurationError
from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

PLACE = {"memoryId": DEFAULT_MEMORY, "actorId": "actor", "sessionId": "session"}
CHILD = """
import sys, boto3
client = boto3.client("bedrock-agentcore")
for number in range(20):
    client.create_event(
        memoryId="demo_memory-abcdefghij", actorId="actor", sessionId="session", eventTimestamp=5,
        payload=[{"blob": [sys.argv[1], number]}], clientToken=f"t{number}",
    )
client.close()
"""


@pytest.fixture
def emulator() -> Iterator[AgentCoreEmulator]:
    with AgentCoreEmulator() as emulator:
        yield emulator


def connect(emulator: AgentCoreEmulator) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(emulator.endpoint_url.removeprefix("http://"), timeout=60)


def environment(url: str, caller: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {
        **kept,
        "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": url,
        "AWS_ACCESS_KEY_ID": caller,
        "AWS_SECRET_ACCESS_KEY": "emulator",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@pytest.mark.parametrize(("idempotency", "events"), [("honoured", 20), ("per_caller", 40)])
def test_processes_share_an_emulator(idempotency: Any, events: int):
    with AgentCoreEmulator(idempotency=idempotency) as emulator:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD, name],
                env=environment(emulator.endpoint_url, name),
                stderr=subprocess.PIPE,
                text=True,
            )
            for name in ("ONE", "TWO")
        ]
        for child in children:
            assert child.communicate()[1] == ""
            assert child.returncode == 0
        assert len(emulator.events()) == events
        assert {call.caller for call in emulator.calls} == {"ONE", "TWO"}


@pytest.mark.parametrize("transport", ["http", "memory"])
def test_threads_lose_nothing_and_write_nothing_twice(emulator: AgentCoreEmulator, transport: Any):
    client = emulator.client(transport=transport, config=Config(max_pool_connections=8))

    def work(thread: int) -> None:
        for number in range(25):
            client.create_event(
                **PLACE,
                eventTimestamp=number,
                payload=[{"blob": [thread, number]}],
                clientToken=f"{thread % 4} {number}",
            )
            client.list_events(**PLACE, maxResults=5)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert len(emulator.events()) == 100
    assert len(emulator.calls) == 400


def test_a_body_of_twenty_megabytes_is_taken():
    with AgentCoreEmulator(event_size="payload") as emulator:
        client = emulator.client()
        text = "漢" * 30_000
        items = [{"conversational": {"role": "USER", "content": {"text": text}}}] * 100
        client.create_event(**PLACE, eventTimestamp=1, payload=items)
        [event] = client.list_events(**PLACE)["events"]
        assert event["payload"] == items


def test_a_connection_is_kept(emulator: AgentCoreEmulator):
    connection = connect(emulator)
    connection.connect()
    before = connection.sock
    for _ in range(3):
        connection.request("POST", f"/memories/{DEFAULT_MEMORY}/actors", b"{}")
        assert json.loads(connection.getresponse().read()) == {"actorSummaries": []}
    assert connection.sock is before
    connection.close()


def test_a_client_that_asks_so_has_its_connection_closed(emulator: AgentCoreEmulator):
    connection = connect(emulator)
    connection.request("POST", f"/memories/{DEFAULT_MEMORY}/actors", b"{}", {"Connection": "close"})
    connection.getresponse().read()
    assert connection.sock is None
    connection.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Transfer-Encoding": "chunked"}, 411), ({"Content-Length": "x"}, 411), ({"Content-Length": "99999999999"}, 413)],
)  # fmt: skip
def test_a_body_of_unknown_or_too_great_a_length_is_refused(
    emulator: AgentCoreEmulator, headers: dict[str, str], status: int
):
    connection = connect(emulator)
    connection.putrequest("POST", f"/memories/{DEFAULT_MEMORY}/events")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    with connection.getresponse() as answer:
        assert answer.status == status
    connection.close()


def test_a_reset_is_one_and_no_end(emulator: AgentCoreEmulator):
    emulator.fault("*:reset_after")
    request = f"POST /memories/{DEFAULT_MEMORY}/actors HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(emulator.endpoint_url.rpartition(":")[2]))) as connection:
        connection.sendall(request.encode())
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_what_is_no_http_harms_nobody(emulator: AgentCoreEmulator):
    for text in (
        b"",
        b"\r\n",
        b"HELLO\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 50\r\n\r\nshort",
        b"\0" * 100,
    ):
        with socket.create_connection(
            ("127.0.0.1", int(emulator.endpoint_url.rpartition(":")[2]))
        ) as connection:
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    assert emulator.client().list_events(**PLACE)["events"] == []


def test_it_ends_while_connections_wait_and_answers_are_late():
    before = set(threading.enumerate())
    emulator = AgentCoreEmulator()
    emulator.fault("ListEvents:slow:delay=600")
    idle = connect(emulator)
    idle.request("POST", f"/memories/{DEFAULT_MEMORY}/actors", b"{}")
    idle.getresponse().read()
    failed: list[Exception] = []

    def wait() -> None:
        try:
            late = emulator.client(config=Config(retries={"total_max_attempts": 1}))
            late.list_events(**PLACE)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 60
    while not any(call.operation == "ListEvents" for call in emulator.calls):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    emulator.close()
    thread.join(60)
    assert not thread.is_alive()
    idle.close()
    deadline = time.monotonic() + 60  # what it has answered last may still be about to end
    while left := [each.name for each in set(threading.enumerate()) - before]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def test_a_port_is_free_again_at_once_and_taken_ones_are_told():
    with AgentCoreEmulator() as emulator:
        port = int(emulator.endpoint_url.rpartition(":")[2])
        kept = connect(emulator)  # until after the server has closed it, whose side of it then lingers on
        kept.request("POST", f"/memories/{DEFAULT_MEMORY}/actors", b"{}")
        kept.getresponse().read()
        with pytest.raises(ConfigurationError, match=rf"port: 127\.0\.0\.1:{port} cannot be listened on"):
            AgentCoreEmulator(port=port).start()
    kept.close()
    with AgentCoreEmulator(port=port) as emulator:
        assert emulator.endpoint_url == f"http://127.0.0.1:{port}"
        emulator.client().list_events(**PLACE)


def test_a_port_that_is_none_is_told():
    with pytest.raises(ConfigurationError, match=r"port: 127\.0\.0\.1:70000 cannot"):
        AgentCoreEmulator(port=70_000).start()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "::1"])
def test_every_loopback_address_will_do(host: str, require: Any):
    try:
        emulator = AgentCoreEmulator(host=host)
        url = emulator.endpoint_url
    except ConfigurationError as error:
        require(host == "localhost", f"the address {host}", f"a loopback interface that has it ({error})")
        raise
    with emulator:
        assert url.startswith(f"http://{f'[{host}]' if ':' in host else host}:")
        assert emulator.client().list_events(**PLACE)["events"] == []


def test_a_proxy_is_not_asked_for_this_machine(emulator: AgentCoreEmulator, monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for config in (None, Config(retries={"total_max_attempts": 1})):
        client = emulator.client(config=config)
        assert client.list_events(**PLACE)["events"] == []
    assert client.meta.config.retries["total_max_attempts"] == 1


def test_nothing_listens_where_no_address_is_asked_for():
    before = set(threading.enumerate())
    with AgentCoreEmulator() as emulator:
        emulator.client(transport="memory").list_events(**PLACE)
        assert set(threading.enumerate()) <= before


SAVED = """
import sys, time
from littleghost.emulators.agentcore import AgentCoreEmulator, DEFAULT_MEMORY
with AgentCoreEmulator(file=sys.argv[1]) as emulator:
    client = emulator.client(transport="memory")
    for number in range(1_000_000):
        client.create_event(
            memoryId=DEFAULT_MEMORY, actorId="a", sessionId="s", eventTimestamp=number, payload=[{"blob": "x" * 1000}]
        )
        if number == 100:
            print("going", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_killed_process_leaves_a_whole_file(tmp_path: Any):
    path = tmp_path / "events.json"
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", SAVED, path], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "going\n"
        deadline = time.monotonic() + 60
        before = path.stat().st_mtime_ns if path.exists() else 0
        while not path.exists() or path.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        assert json.loads(path.read_text())["events"]
    with AgentCoreEmulator(file=path) as emulator:
        assert len(emulator.events()) > 100
