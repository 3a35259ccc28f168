"""The near half of a remote sandbox, against services that lie, say too much, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import logging
import struct
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

pytest.importorskip("websockets")

from websockets.asyncio.server import ServerConnection, serve

from littleghost import RemoteSandbox
from littleghost.errors import (
    CapabilityError,
    ConfigurationError,
    CredentialError,
    LittleGhostError,
    PolicyError,
    ToolConnectionError,
)
from littleghost.sandboxes import remote
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.far import line, sandbox
from littleghost.sandboxes.far.serving import fields_of
from littleghost.sandboxes.far.wire import GREETING, MOST, PROTOCOL, Frame, Frames, frame

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the service is for Linux")

TOKEN = "lgs_a-token-that-nobody-must-see"
GREETED: dict[str, Any] = {
    "protocol": PROTOCOL,
    "capabilities": ["files", "write", "execute", "isolation", "git_read_only", "local_files"],
    "in force": {"root": "read_write", "network": "none", "root_filesystem": "isolated"},
    "refused": {},
    "limits": fields_of(SandboxLimits()),
    "lease_seconds": 1.0,
    "message_bytes": 1 << 20,
}

Answer = Callable[[Frame], bytes]


@contextlib.asynccontextmanager
async def service(
    answer: Answer | None = None, *, welcome: Any = None, protocol: str = str(PROTOCOL)
) -> AsyncGenerator[tuple[str, list[Frame]]]:
    """A service that says what a test wants."""
    heard: list[Frame] = []

    async def speak(socket: ServerConnection) -> None:
        frames = Frames(lambda _: MOST)
        async for data in socket:
            assert isinstance(data, bytes)
            for question in frames.add(data):
                heard.append(question)
                if question.number == GREETING:
                    said = frame(GREETING, {"is": GREETED if welcome is None else welcome})
                    if isinstance(welcome, str):  # a number that JSON does not have
                        text = json.dumps({"is": {**GREETED, "lease_seconds": "?"}}).replace('"?"', welcome)
                        said = struct.pack(">IQI", len(text), GREETING, len(text)) + text.encode()
                else:
                    said = b"" if answer is None else answer(question)
                for at in range(0, len(said), 1 << 18):
                    await socket.send(said[at : at + (1 << 18)])

    def head(_connection: Any, _request: Any, response: Any) -> None:
        response.headers["LittleGhost-Protocol"] = protocol
        response.headers["LittleGhost-Version"] = "9.9"

    async with serve(speak, "127.0.0.1", 0, compression=None, process_response=head, max_size=None) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", heard


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_DELAYS", (0.01, 0.05))
    monkeypatch.setattr(remote, "_LEAVING", 0.2)
    monkeypatch.setattr(sandbox, "_CLOSING", 0.2)
    monkeypatch.setattr(line, "_GRACE", 0.3)


def client(url: str, **options: Any) -> RemoteSandbox:
    return RemoteSandbox(url, token=TOKEN, **options)


def shown(error: BaseException | None) -> str:
    """Everything that a traceback of it would show."""
    said = ""
    while error is not None:
        said += f"{error!r} {error} {vars(error)}"
        error = error.__cause__ or error.__context__
    return said


@pytest.mark.parametrize(
    "welcome",
    [
        3,
        [],
        {"protocol": "1"},
        {**GREETED, "capabilities": "files"},
        {**GREETED, "in force": None},
        {**GREETED, "limits": {"read_bytes": "x"}},
        {**GREETED, "limits": {"read_bytes": -1}},
        {**GREETED, "lease_seconds": "x"},
        {**GREETED, "message_bytes": "x"},
        {**GREETED, "protocol": PROTOCOL + 1},
    ],
    ids=range(10),
)
async def test_a_greeting_that_is_none_is_refused(welcome: Any):
    async with service(welcome=welcome) as (url, _):
        with pytest.raises(LittleGhostError):
            await client(url).open()


@pytest.mark.parametrize(
    ("options", "changes", "what"),
    [
        ({}, {"capabilities": ["files", "execute", "git_read_only"]}, "does not isolate"),
        ({}, {"in force": {"root": "read_only"}}, "another root"),
        ({"writable": False}, {}, "another root"),
        (
            {"policy": {"network": "none"}},
            {"in force": {"root": "read_write", "network": "inherit"}},
            "another network",
        ),
        (
            {"policy": {"root_filesystem": "isolated"}},
            {"in force": {"root": "read_write"}},
            "another root_filesystem",
        ),
        ({"policy": {"environment": {"A": "b"}}}, {}, "another environment"),
        ({"paths": {"data": "data"}}, {}, "another paths"),
        ({}, {"capabilities": ["files", "execute", "isolation"]}, "another git"),
        ({"limits": SandboxLimits(memory_bytes=5)}, {}, "limit memory_bytes"),
        ({"limits": SandboxLimits(read_bytes=5)}, {}, "limit read_bytes"),
        ({}, {"limits": None}, "limit read_bytes"),
        ({"limits": SandboxLimits(cpu_seconds=5)}, {"refused": {"cpu_seconds": "not here"}}, "cpu_seconds"),
    ],
    ids=range(12),
)
async def test_what_was_asked_for_and_is_not_in_force_makes_open_fail(options: Any, changes: Any, what: str):
    async with service(welcome={**GREETED, **changes}) as (url, _):
        one = client(url, **options)
        with pytest.raises(CapabilityError, match=what):
            await one.open()
        assert not one.is_open


async def test_no_log_has_the_token(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    async with service() as (url, _):
        async with client(url):
            pass
    said = [record.getMessage() for record in caplog.records if "server" not in record.name]
    assert TOKEN not in "".join(said)


async def test_what_the_service_says_is_shown_as_its_word():
    said = {"root": "read_write", "enforced": ["the moon"], "processes": "as they like"}
    async with service(welcome={**GREETED, "in force": said}) as (url, heard), client(url) as one:
        assert one.effective_policy.enforced == ("by the service's word: the moon",)
        assert "anything against who runs the service" in one.effective_policy.not_enforced
        assert one.capabilities == frozenset(GREETED["capabilities"]) - {"local_files"}
        assert heard[0].head["root"] == ""


LIES: dict[str, Answer] = {
    "another kind": lambda question: frame(question.number, {"is": {"x": 1}}),
    "no answer at all": lambda question: frame(question.number, {}),
    "more than asked for": lambda question: frame(question.number, {"is": None}, bytes(90 << 20)),
    "to nobody": lambda question: frame(question.number + 9, {"is": []}),
    "no frame": lambda _question: b"\xff" * 4000,
    "an error that is none": lambda question: frame(question.number, {"error": 3}),
    "an error of the interpreter's": lambda question: frame(question.number, {"error": {"kind": "SystemExit", "message": "x"}}),
    "not what was cancelled": lambda question: frame(question.number, {"cancelled": True}),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
async def test_lies_are_errors_of_the_sandbox(lie: str):
    async with service(LIES[lie]) as (url, _), client(url) as one:
        with pytest.raises(LittleGhostError) as caught:
            await one.list()
        assert TOKEN not in shown(caught.value)


async def test_a_service_that_never_answers_is_left_by_who_cancels_and_by_closing():
    async with service() as (url, _), client(url) as one:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.list(), 0.1)
        waiting = asyncio.ensure_future(one.read("a"))
        await asyncio.sleep(0.05)
        await one.close()
        with pytest.raises(ToolConnectionError):
            await waiting


async def test_a_question_larger_than_the_service_takes_is_refused_here():
    async with (
        service(lambda question: frame(question.number, {"is": None})) as (url, heard),
        client(url) as one,
    ):
        with pytest.raises(ValueError, match="1,048,576 bytes"):
            await one.write_bytes("a", bytes(2 << 20))
        await one.write_bytes("a", bytes(1000))
        assert max(len(each.data) for each in heard) == 1000


async def test_another_protocol_is_told_with_both_versions():
    async with service(protocol="7") as (url, heard):
        with pytest.raises(
            ConfigurationError,
            match=r"service has LittleGhost 9\.9 \(protocol 7\), and this client .*both must",
        ):
            await client(url).open()
        assert heard == []


@pytest.mark.parametrize(
    ("status", "kind", "what"),
    [
        (401, CredentialError, "does not know this token"),
        (404, ConfigurationError, "no sandbox service at this address"),
        (302, ConfigurationError, "no sandbox service at this address"),
        (200, ConfigurationError, "no sandbox service at this address"),
        (503, ToolConnectionError, "refuses: busy"),
        (502, ToolConnectionError, "cannot be reached"),
        (426, ConfigurationError, "busy"),
    ],
)
async def test_refusals_are_told_and_redirects_are_not_followed(
    status: int, kind: type[Exception], what: str
):
    asked: list[str] = []

    def refuse(connection: ServerConnection, request: Any) -> Any:
        asked.append(request.path)
        response = connection.respond(http.HTTPStatus(status), "busy\n")
        response.headers["Location"] = "/elsewhere"
        return response

    async def speak(_socket: ServerConnection) -> None:
        raise AssertionError

    async with serve(speak, "127.0.0.1", 0, process_request=refuse) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/below/"
        with pytest.raises(kind, match=what) as caught:
            await client(url).open()
        assert TOKEN not in shown(caught.value)
    assert asked == ["/below/sandbox"]


async def test_nobody_there_is_an_error_at_once():
    with pytest.raises(ToolConnectionError, match="cannot be reached"):
        await client("http://127.0.0.1:1").open()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "host:80",
        "https://",
        "https://user:secret@host",
        "https://host?token=secret",
        "https://host#secret",
        "http://example.org",
        "ws://10.0.0.1:80",
        "http://localhost.example.org",
        "https://host:99999",
        "http://[::1",
    ],
)
def test_addresses_that_are_none_or_would_tell_the_token(url: str):
    with pytest.raises(ConfigurationError) as caught:
        client(url)
    assert "secret" not in str(caught.value)


def test_what_is_wrong_is_said_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(remote.TOKEN, raising=False)
    for token in (None, "", "two words", "line\nline", "é"):
        with pytest.raises(CredentialError, match="token="):
            RemoteSandbox("https://host", token=token)
    monkeypatch.setenv(remote.TOKEN, TOKEN)
    assert TOKEN not in repr(RemoteSandbox("https://host"))
    assert RemoteSandbox("http://10.0.0.1", insecure=True).writable
    for path in ("/etc", "../x", "a/../../x"):
        with pytest.raises(PolicyError):
            client("https://host", paths={"data": path})
    with pytest.raises(PolicyError):
        client("https://host", policy={"nothing": 1})
    one = client("https://host", writable=False, policy={"git": "read_write"})
    assert not {"write", "delete", "git_read_only"} & one.capabilities
    assert client("https://host", policy={"root": "read_only"}).writable is False
    assert "isolation" not in client("https://host", isolated=False).capabilities
    assert one.effective_policy.enforced == ()


@pytest.mark.parametrize("seconds", ["1e300", "NaN", "Infinity", "-1"])
async def test_a_lying_lease_cannot_hold_a_client_for_ever(monkeypatch: pytest.MonkeyPatch, seconds: str):
    monkeypatch.setattr(remote, "_LONGEST", 0.3)
    async with service(welcome=seconds) as (url, _):
        one = await client(url).open()
    with pytest.raises(ToolConnectionError, match="could not be made again"):
        await one.list()
    await one.close()
