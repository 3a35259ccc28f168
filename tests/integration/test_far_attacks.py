"""Attacks on sandboxes far away: by a far half on the application, by a client on the service, by who only connects."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from remote import Service

from littleghost.errors import CapabilityError, LittleGhostError, ToolConnectionError
from littleghost.sandboxes.container import ContainerSandbox
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.far import guest, line, process
from littleghost.sandboxes.far import sandbox as far
from littleghost.sandboxes.far.line import Transport
from littleghost.sandboxes.far.sandbox import FarSandbox
from littleghost.sandboxes.far.serving import Served
from littleghost.sandboxes.far.wire import GREETING, MAGIC, MOST, PROTOCOL, Frame, Frames, error_of, frame
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.policy import EffectivePolicy
from littleghost.workspace import Workspace

pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve as websockets_serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from littleghost.sandboxes.remote import RemoteSandbox
from littleghost.sandboxes.service import leases, server
from littleghost.sandboxes.service.app import SandboxService
from littleghost.sandboxes.service.leases import ServiceLimits
from littleghost.sandboxes.service.tokens import TokenFile

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the far halves are for Linux")

NASTY = "\x1b]0;owned\x07\r\nWARNING: forged\x00\u202e\ud800"
OFFERED = frozenset({"files", "bytes", "execute", "start_program", "write"})


# A far half that a hostile program has taken over, against the application.


class Scripted(Transport):
    """Answers each question with what a function makes of it; ``None`` is no answer."""

    def __init__(self, answer: Callable[[Frame], bytes | None], first: bytes = b"") -> None:
        self.answer, self.out = answer, asyncio.Queue[bytes]()
        self.frames = Frames(lambda _: MOST)
        self.closed = False
        if first:
            self.out.put_nowait(first)

    async def send(self, data: bytes) -> None:
        for question in self.frames.add(data):
            if (said := self.answer(question)) is not None:
                self.out.put_nowait(said)

    async def receive(self) -> bytes:
        return await self.out.get()

    async def close(self) -> None:
        self.closed = True
        self.out.put_nowait(b"")


class Hostile(FarSandbox):
    """A sandbox whose far half says what a test wants."""

    def __init__(self, answer: Callable[[Frame], bytes | None], **options: Any) -> None:
        self.lie = answer
        super().__init__("somewhere", writable=True, **options)

    def _offers(self) -> frozenset[str]:
        return OFFERED

    def stated(self) -> EffectivePolicy:
        return EffectivePolicy(root="read_write")

    async def _lay(self) -> tuple[Transport, bytes]:
        greeted = {
            "protocol": PROTOCOL,
            "capabilities": sorted(OFFERED),
            "in force": {"root": "read_write"},
            "refused": {},
        }

        def answer(question: Frame) -> bytes | None:
            if question.number == GREETING:
                return frame(GREETING, {"is": greeted})
            return self.lie(question)

        return Scripted(answer), b""


def shows_nothing_forged(text: str) -> bool:
    text.encode("utf-8")
    return all(char.isprintable() for char in text)


def test_an_error_from_far_away_forges_no_line_and_no_terminal_command():
    error = error_of(
        {"kind": "ToolValueError", "message": NASTY, "fields": {"path": NASTY, "limit": {"a": 1}}}
    )
    assert shows_nothing_forged(str(error))
    assert shows_nothing_forged(error.path)
    assert not hasattr(error, "limit")


async def test_why_no_worker_started_forges_nothing():
    class Ending(Scripted):
        async def last_words(self) -> bytes:
            return f"first\n{NASTY}".encode("utf-8", "surrogatepass")

    for transport in (
        Ending(lambda _: None, b""),
        Ending(lambda _: None, MAGIC + b"old \x1b[2J" + b"9" * 60_000 + b"\n"),
    ):
        transport.out.put_nowait(b"")
        transport.send = lambda _: asyncio.sleep(0)  # type: ignore[method-assign]
        with pytest.raises(CapabilityError) as raised:
            await guest.begin(transport, "there")
        assert shows_nothing_forged(str(raised.value))
        assert len(str(raised.value)) < 1000


async def test_a_worker_that_never_ends_its_first_line_is_none():
    class Endless(Transport):
        said = 0

        async def send(self, data: bytes) -> None: ...

        async def receive(self) -> bytes:
            self.said += 1
            assert self.said < 100, "it is heard without end"
            return MAGIC if self.said == 1 else bytes([65]) * 65_536

        async def close(self) -> None: ...

    with pytest.raises(ToolConnectionError, match="something else"):
        await guest.begin(Endless(), "there")


@pytest.mark.parametrize("call", ["read", "execute"])
async def test_text_that_is_none_does_not_reach_the_application(call: str):
    """A file or an output has no lone surrogates on any backend; what takes the text would fail."""
    broken = b"\xed\xa0\x80"
    fields = dict.fromkeys(("error", "exit_code"), None) | {
        "stdout": 3, "timed_out": False, "stdout_omitted": 0, "stderr_omitted": 0, "duration": 0.1,
    }  # fmt: skip
    async with Hostile(lambda question: frame(question.number, {"is": fields}, broken)) as sandbox:
        with pytest.raises(ToolConnectionError, match="text that is none"):
            await (sandbox.read("a") if call == "read" else sandbox.execute("true", timeout=5))


@pytest.mark.parametrize("number", [GREETING, 1], ids=["a greeting", "an answer"])
async def test_a_large_head_where_none_is_due_ends_the_line(number: int):
    """JSON takes some twenty times its bytes when it is read, so a head has room only where there is a list to be answered."""
    bomb = frame(number, {"is": None, "x": [[]] * 400_000})

    def answer(question: Frame) -> bytes | None:
        return bomb if question.head.get("do") == "read" else None

    limits = SandboxLimits(read_bytes=8 << 20)
    sandbox = Hostile(answer, limits=limits)
    await sandbox.open()
    with pytest.raises(ToolConnectionError, match="said more than it was asked for"):
        await asyncio.wait_for(sandbox.read("a"), 20)
    await sandbox.close()


async def test_a_far_half_that_does_not_end_a_program_holds_up_nobody_for_ever(
    monkeypatch: pytest.MonkeyPatch,
):
    for module in (line, process, far):
        for name in ("_GRACE", "DROPPING"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, 0.2)
    silent = {"drop", "wait", "close"}

    def answer(question: Frame) -> bytes | None:
        return None if question.head.get("do") in silent else frame(question.number, {"is": None})

    sandbox = Hostile(answer)
    await sandbox.open()
    started = await sandbox.start_program(["cat"])
    await asyncio.wait_for(started.close(), 10)
    await asyncio.wait_for(sandbox.close(), 10)

    def withdrawn(question: Frame) -> bytes | None:
        return frame(question.number, {"cancelled": True}) if question.head.get("cancel") else None

    sandbox = Hostile(withdrawn)
    await sandbox.open()
    starting = asyncio.ensure_future(sandbox.start_program(["cat"]))
    await asyncio.sleep(0.05)
    starting.cancel()
    done, _ = await asyncio.wait([starting], timeout=10)
    assert done, "a cancelled start waits for a far half that says nothing"
    await asyncio.wait_for(sandbox.close(), 10)


async def test_a_far_half_that_refused_or_says_nothing_does_not_hold_up_who_leaves(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(far, "_CLOSING", 0.2)
    monkeypatch.setattr(far, "_LEAVING", 0.2)

    class Silent(Hostile):
        async def _lay(self) -> tuple[Transport, bytes]:
            return Scripted(lambda _: None), b""

    opening = asyncio.ensure_future(Silent(lambda _: None).open())
    await asyncio.sleep(0.05)
    opening.cancel()
    done, _ = await asyncio.wait([opening], timeout=10)
    assert done

    class Refusing(Hostile):
        async def _lay(self) -> tuple[Transport, bytes]:
            said = frame(GREETING, {"error": {"kind": "CapabilityError", "message": "no"}})
            return Scripted(lambda question: said if question.number == GREETING else None), b""

    with pytest.raises(CapabilityError):
        await asyncio.wait_for(Refusing(lambda _: None).open(), 10)
    sandbox = Hostile(lambda _: None)
    await sandbox.open()
    await asyncio.wait_for(sandbox.close(), 10)  # and not the time in which what is withdrawn may be answered


SEEN: dict[str, Any] = {
    "user": [1, 1, 1, 1],
    "rights": dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0")
    | {"NoNewPrivs": "1", "Seccomp": "2"},
    "namespaces": {kind: f"{kind}:[1]" for kind in ("pid", "net", "mnt", "ipc", "uts")},
    "devices": ["lo"],
    "limits": {},
    "places": {},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"namespaces": []},
        {"namespaces": {}},
        {"namespaces": {"../../../nothing": "x"}},
        {"places": {"/": []}},
        {"user": []},
        {"rights": {"NoNewPrivs": "1", "Seccomp": "2"}},
        {"rights": 3},
        {"places": {"/": {"read_only": True}, "/workspace": {"identity": None}}},
    ],
    ids=str,
)
async def test_what_a_worker_in_a_container_claims_to_see_is_checked_whole(
    changes: dict[str, Any], tmp_path: Path
):
    sandbox = ContainerSandbox(tmp_path, image="none")
    places = {
        "/": {"read_only": True},
        "/tmp": {"size": 1},
        "/dev/shm": {"size": 1},
        "/workspace": {"identity": [0, 0], "read_only": True, "usable": True, "writable": False},
    }
    await sandbox.workspace.open()
    try:
        held = sandbox.workspace.directory(None).identity
        places["/workspace"]["identity"] = list(held)
        sandbox._welcome = sandbox.told.__class__(seen={**SEEN, "places": places})
        await sandbox._try()
        sandbox._welcome = sandbox.told.__class__(seen={**SEEN, "places": places, **changes})
        with pytest.raises(CapabilityError):
            await sandbox._try()
    finally:
        await sandbox.workspace.close()


def test_the_process_of_an_owner_that_is_hidden_is_not_taken_for_dead():
    """Where /proc hides the processes of others (``hidepid``), a container of another user's on a shared daemon is not left behind."""
    if os.geteuid() != 0:
        pytest.skip("it takes root to mount a /proc that hides processes")
    script = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=2"):
    sys.exit(77)
from littleghost.sandboxes.engines import is_left_behind, _boot, _namespace
owner, gone = (f"{pid}:1:{_namespace()}:{_boot()}" for pid in (os.getppid(), 4_194_000))
os.setgroups([]), os.setgid(65534), os.setuid(65534)
assert not os.path.exists(f"/proc/{os.getppid()}")
assert not is_left_behind(owner), "alive"
assert is_left_behind(gone), "gone"
assert not is_left_behind(owner.replace(owner.split(":")[0], "9" * 30, 1)), "no number of a process"
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("no /proc that hides processes can be mounted here")
    assert done.returncode == 0, done.stderr


def test_names_that_would_be_an_error_of_the_operating_system_are_refused(tmp_path: Path):
    for options in (
        {"python": "a\0b"},
        {"python": "a\nb"},
        {"image": "a\0b"},
        {"image": "-v/:/host"},
        {"python": "--privileged"},
    ):
        with pytest.raises(LittleGhostError):
            ContainerSandbox(tmp_path, **{"image": "image", **options})


# Who has a token, against the service and its other clients.


@contextlib.asynccontextmanager
async def serving(folder: Path, **limits: Any) -> AsyncGenerator[Service]:
    """A service in this process."""
    held = Service(folder=folder)
    ready = asyncio.Event()
    listening = server.listen("127.0.0.1", 0, exposed=False)
    held.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    service = SandboxService(
        folder / "root", tokens=folder / "tokens", backend=HostSandbox, limits=ServiceLimits(**limits)
    )
    held.service = service  # type: ignore[attr-defined]
    task = asyncio.ensure_future(server.serve(service, listening, drain=0, ready=ready.set))
    waiting = asyncio.ensure_future(ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield held
    finally:
        os.kill(os.getpid(), 15)
        await task


def dialled(service: Service, token: str | None = None) -> Any:
    headers = {
        "LittleGhost-Protocol": str(PROTOCOL),
        "Authorization": f"Bearer {token or service.token}",
    }
    url = service.url.replace("http", "ws") + "/sandbox"
    return connect(url, additional_headers=headers, compression=None, proxy=None, max_size=None)


async def works(service: Service, token: str | None = None) -> None:
    async with service.client(**({"token": token} if token else {})) as sandbox:
        assert (await sandbox.execute("echo well", timeout=20)).stdout == "well\n"


async def test_what_a_request_holds_in_json_is_counted_while_it_is_open(tmp_path: Path):
    """A request that waits keeps its head, which takes some twenty times its bytes in memory."""
    said: list[Frame] = []
    frames = Frames(lambda _: MOST)

    async def send(data: bytes) -> None:
        said.extend(frames.add(data))

    async with HostSandbox(tmp_path, writable=True) as sandbox:
        served = Served(sandbox, waiting=8 << 20)
        served.attach(send)
        arriving = Frames(lambda _: MOST)
        start = {"do": "start", "with": {"process": 1, "command": ["cat"]}}
        (question,) = arriving.add(frame(1, start))
        await served.take(question)
        while not said:
            await asyncio.sleep(0.01)
        for number in range(2, 60):
            waits = {"do": "wait", "with": {"process": 1}, "more": [[]] * 20_000}
            (question,) = arriving.add(frame(number, waits))
            await served.take(question)
        await asyncio.sleep(0.05)
        refused = [answer for answer in said if "too much at once" in str(answer.head.get("error"))]
        assert len(refused) >= 50
        (question,) = arriving.add(frame(60, {"do": "drop", "with": {"process": 1}}))
        await served.take(question)
        while said[-1].number != 60 or "is" not in said[-1].head:
            await asyncio.sleep(0.01)
        await served.close()


async def test_scopes_that_take_much_are_not_kept(tmp_path: Path):
    (tmp_path / "d").mkdir()
    async with HostSandbox(Workspace(tmp_path, {"d": "d"}), writable=True) as sandbox:
        served = Served(sandbox)
        for number in range(20):
            step = {"paths": ["d"] * 100_000, "limits": {"read_bytes": 1000 + number}}
            served._view([step])
        assert sum(map(len, served._scopes)) < 100_000


async def test_connections_that_wait_are_counted_for_each_name(tmp_path: Path):
    async with serving(tmp_path, leases_per_token=1, leases=4) as service:
        other = service.tokens.add("other")
        async with contextlib.AsyncExitStack() as held:
            refused = 0
            for _ in range(150):
                try:
                    await held.enter_async_context(dialled(service, other))
                except InvalidStatus as error:
                    refused += error.response.status_code == 503
            assert refused > 100
            await works(service)


async def test_pings_that_are_answered_to_nobody_do_not_fill_the_memory(tmp_path: Path):
    """A client that pings and does not read makes the service write pongs into its own memory."""
    async with serving(tmp_path) as service:
        loop = asyncio.get_running_loop()
        most = 0

        def look() -> None:
            nonlocal most
            for each in service.connections():  # type: ignore[attr-defined]
                most = max(most, each.transport.get_write_buffer_size())

        made: list[Any] = []
        original = server._WebSockets.connection_made

        def connection_made(self: Any, transport: Any) -> None:
            original(self, transport)
            made.append(self)

        server._WebSockets.connection_made = connection_made  # type: ignore[method-assign]
        service.connections = lambda: made  # type: ignore[attr-defined]
        try:
            with socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2]))) as client:
                client.setblocking(False)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                lines = (
                    "GET /sandbox HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket",
                    "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                    f"Authorization: Bearer {service.token}", f"LittleGhost-Protocol: {PROTOCOL}",
                )  # fmt: skip
                await loop.sock_sendall(client, ("\r\n".join(lines) + "\r\n\r\n").encode())
                assert b" 101 " in await loop.sock_recv(client, 400)
                pings = (b"\x89\xfd\0\0\0\0" + bytes(125)) * 2000
                for _ in range(60):
                    try:
                        await asyncio.wait_for(loop.sock_sendall(client, pings), 1.0)
                    except (TimeoutError, ConnectionError):
                        break
                    look()
                look()
            assert most < 8 << 20
        finally:
            server._WebSockets.connection_made = original  # type: ignore[method-assign]


async def test_threads_are_shared_between_names_not_leases(tmp_path: Path):
    async with serving(tmp_path) as service:
        known = service.service._leases  # type: ignore[attr-defined]
        async with service.client(), service.client():
            one, other = known._leases.values()
            assert one.served._threads is other.served._threads
        await works(service)


async def test_named_paths_are_counted_for_each_takes_a_descriptor(tmp_path: Path):
    async with serving(tmp_path) as service, dialled(service) as client:
        paths = {f"p{number}": "a" for number in range(1000)}
        asked = {
            "lease": "x" * 40,
            "writable": True,
            "policy": {},
            "limits": {},
            "paths": paths,
            "again": False,
        }
        await client.send(frame(GREETING, asked))
        (answer,) = Frames(lambda _: MOST).add(await client.recv())
        assert "at most" in str(answer.head["error"])


async def test_a_service_has_as_many_descriptors_as_it_may(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        async with serving(tmp_path):
            now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            assert now == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_lease_that_is_ended_while_it_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    original = leases._lay_out

    def slow(directory: str) -> None:
        begun.set()
        go_on.wait()
        original(directory)
        made.set()

    begun, go_on, made = threading.Event(), threading.Event(), threading.Event()
    all_leases = leases.Leases(
        str(tmp_path / "root"), HostSandbox, network=False, host=True, limits=ServiceLimits()
    )
    all_leases.open()
    monkeypatch.setattr(leases, "_lay_out", slow)
    greeting = {"lease": "x" * 40, "writable": True, "policy": {}, "limits": {}, "paths": {}, "again": False}
    making = asyncio.ensure_future(all_leases.lease("a", greeting, new=True))
    await asyncio.to_thread(begun.wait)
    closing = asyncio.ensure_future(all_leases.close("over"))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(closing, making, return_exceptions=True)
    await asyncio.to_thread(made.wait)
    while [name for name in os.listdir(tmp_path / "root") if name.startswith("lease-")]:
        await asyncio.sleep(0.01)


# A service, against its client.


@contextlib.asynccontextmanager
async def lying(welcome: dict[str, Any], *, after: float | None = None) -> AsyncGenerator[Any]:
    """A service that welcomes with lies; ``after`` so many seconds it closes each connection."""
    told = {
        "protocol": PROTOCOL,
        "capabilities": ["files", "execute", "isolation", "write", "delete", "git_read_only", "network_none"],
        "in force": {"root": "read_write", "network": "none"},
        "limits": {},
        "refused": {},
        "lease_seconds": 1.0,
        "message_bytes": MOST,
    } | welcome
    seen = {"connections": 0}

    async def handle(socket: Any) -> None:
        seen["connections"] += 1
        frames = Frames(lambda _: MOST)
        with contextlib.suppress(ConnectionClosed):
            async for data in socket:
                for question in frames.add(data):
                    if question.number == GREETING:
                        again = question.head.get("again")
                        await socket.send(frame(GREETING, {"is": None if again else told}))
                        if again:
                            await asyncio.sleep(after or 0)
                            return
                    elif after is not None:
                        return
                    elif "cancel" not in question.head:
                        await socket.send(frame(question.number, {"is": None}))

    def headed(_connection: Any, _request: Any, response: Any) -> None:
        response.headers["LittleGhost-Protocol"] = str(PROTOCOL)

    async with websockets_serve(handle, "127.0.0.1", 0, process_response=headed) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        yield f"http://127.0.0.1:{port}", seen


async def test_a_service_that_welcomes_and_hangs_up_again_and_again_is_left():
    async with lying({}, after=0.0) as (url, seen):
        sandbox = RemoteSandbox(url, token="lgs_x")
        await sandbox.open()
        with pytest.raises(ToolConnectionError, match="could not be made again"):
            await asyncio.wait_for(sandbox.stat("a"), 20)
        assert seen["connections"] < 30
        await sandbox.close()


async def test_a_service_is_believed_no_more_than_was_asked_for():
    async with lying({"in force": {"root": "read_only", "network": "inherit"}}) as (url, _):
        async with RemoteSandbox(url, token="lgs_x", writable=False) as sandbox:
            assert sandbox.capabilities.isdisjoint({"write", "delete", "network_none"})
    async with lying({"capabilities": ["files", "start_program", "git_read_only"]}) as (url, _):
        with pytest.raises(CapabilityError, match="isolate"):
            await RemoteSandbox(url, token="lgs_x").open()


# Who has no token.


async def test_a_connection_without_a_token_is_held_for_a_while_whatever_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.3)
    async with serving(tmp_path) as service:
        where = ("127.0.0.1", int(service.url.rpartition(":")[2]))
        for first, more in (
            (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"G"),
            (b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b"x"),
        ):
            reader, writer = await asyncio.open_connection(*where)
            writer.write(first)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(more)

            async def ends(reader: asyncio.StreamReader) -> None:
                with contextlib.suppress(ConnectionError):
                    while await reader.read(4096):
                        pass

            await ends(reader)
            writer.close()
        await works(service)


async def test_connections_that_say_nothing_do_not_take_all_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 10_000)  # else they would end for that
    async with serving(tmp_path, leases=1) as service:
        where = ("127.0.0.1", int(service.url.rpartition(":")[2]))
        held = [await asyncio.open_connection(*where) for _ in range(260)]
        reads = [asyncio.ensure_future(reader.read(1)) for reader, _ in held]
        while sum(read.done() for read in reads) <= 50:
            await asyncio.wait([read for read in reads if not read.done()], return_when="FIRST_COMPLETED")
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        for _, writer in held:
            writer.close()


def test_tokens_that_cannot_be_read_again_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    tokens = TokenFile.at(tmp_path / "tokens")
    token = tokens.add("a")
    assert tokens.owner(token) == "a"
    (tmp_path / "tokens").write_text("nonsense\n")
    for _ in range(50):
        assert tokens.owner("x") is None
        assert tokens.owner(token) == "a"
    assert len(caplog.records) == 1


def test_a_token_after_a_line_without_an_end_is_a_line_of_its_own(tmp_path: Path):
    tokens = TokenFile.at(tmp_path / "tokens")
    first = tokens.add("a")
    file = tmp_path / "tokens"
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    second = tokens.add("b")
    again = TokenFile(file)
    assert (again.owner(first), again.owner(second)) == ("a", "b")
