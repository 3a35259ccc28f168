"""The sandbox service: who gets in, what they may use, how it ends, and what hostile clients achieve."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from remote import COMMAND, Service

pytest.importorskip("uvicorn")
pytest.importorskip("websockets")

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytest.importorskip("typer")

from littleghost import HostSandbox, RemoteSandbox, SandboxService, native_sandbox
from littleghost.cli import app
from littleghost.errors import (
    CapabilityError,
    ConfigurationError,
    CredentialError,
    PolicyError,
    ToolConnectionError,
    ToolError,
)
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.far.wire import GREETING, MOST, PROTOCOL, Frame, Frames, frame
from littleghost.sandboxes.service.leases import MARK

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the service is for Linux")

HEADERS = {"LittleGhost-Protocol": str(PROTOCOL), "LittleGhost-Version": "0"}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service("--lease-seconds", "1", "--leases-per-token", "6", "--programs", "4") as service:
        yield service
    assert not service.leases


def asked(secret: str | None = None, **others) -> dict:
    wanted = {"writable": True, "policy": {}, "limits": {}, "paths": {}, "again": False}
    return {"lease": secret or secrets.token_urlsafe(32), **wanted, **others}


class Raw:
    """A client that says what a test wants."""

    def __init__(self, socket) -> None:
        self.socket, self.frames, self.held = socket, Frames(lambda _: MOST), []

    async def say(self, number: int, head: dict, data: bytes = b"") -> None:
        await self.socket.send(frame(number, head, data))

    async def hear(self) -> Frame:
        while not self.held:
            self.held = self.frames.add(await self.socket.recv())
        return self.held.pop(0)

    async def ask(self, number: int, head: dict, data: bytes = b"") -> Frame:
        await self.say(number, head, data)
        return await self.hear()


@contextlib.asynccontextmanager
async def raw(
    service: Service, token: str | None = None, path: str = "/sandbox", **headers: str
) -> AsyncGenerator[Raw]:
    url = service.url.replace("http", "ws") + path
    given = {**HEADERS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if token != "":
        given["Authorization"] = f"Bearer {token or service.token}"
    async with connect(url, additional_headers=given, compression=None, proxy=None, max_size=None) as socket:
        yield Raw(socket)


async def works(service: Service) -> None:
    async with service.client() as sandbox:
        assert (await sandbox.execute("echo well", timeout=20)).stdout == "well\n"


def get(url: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


async def test_who_has_no_token_gets_the_same_answer_whatever_else_there_is(service: Service):
    answers = set()
    for token in ("", "wrong", service.token[:-1], service.token + "x", "client"):
        for path in ("/sandbox", "/nothing"):
            for more in ({}, {"LittleGhost_Protocol": "9"}, {"LittleGhost_Lease": "again"}):
                with pytest.raises(InvalidStatus) as caught:
                    async with raw(service, token, path, **more):
                        pass
                response = caught.value.response
                shown = [pair for pair in response.headers.raw_items() if pair[0].lower() != "date"]
                answers.add((response.status_code, bytes(response.body), str(shown)))
    assert len(answers) == 1
    assert next(iter(answers))[0] == 401
    for path in ("/sandbox", "/nothing", "/"):
        assert await asyncio.to_thread(get, service.url + path) == (
            401,
            *(await asyncio.to_thread(get, service.url))[1:],
        )
    status, body, _ = await asyncio.to_thread(get, f"{service.url}/health")
    assert (status, body) == (200, b"ok\n")
    for token in ("wrong", service.token.upper()):
        with pytest.raises(CredentialError, match="does not know this token") as told:
            await service.client(token=token).open()
        assert token not in repr(told.value.__context__)


async def test_a_lease_of_another_is_as_one_that_is_not_there(service: Service):
    other = service.tokens.add("other")
    secret = secrets.token_urlsafe(32)
    async with raw(service) as mine:
        assert "is" in (await mine.ask(GREETING, asked(secret))).head
        answers = []
        for token, lease in (
            (other, secret),
            (other, secrets.token_urlsafe(32)),
            (service.token, secrets.token_urlsafe(32)),
        ):
            async with raw(service, token, LittleGhost_Lease="again") as theirs:
                answers.append(json.dumps((await theirs.ask(GREETING, asked(lease, again=True))).head))
        assert len(set(answers)) == 1
        assert "has ended" in answers[0]
        assert (await mine.ask(1, {"do": "list", "with": {"path": "."}})).head == {"is": []}
        # the same secret under another token is another sandbox
        async with raw(service, other) as theirs:
            await theirs.ask(GREETING, asked(secret))
            await theirs.ask(1, {"do": "write", "with": {"path": "theirs"}}, b"x")
            assert (await mine.ask(2, {"do": "list", "with": {"path": "."}})).head == {"is": []}


async def test_a_token_counts_from_when_it_is_in_the_file_until_it_is_not(tmp_path: Path):
    with Service(folder=tmp_path) as service:
        late = service.tokens.add("late")
        async with service.client(token=late) as sandbox:
            await sandbox.write("a", "x")
        file = tmp_path / "tokens"
        file.write_text(
            "".join(line for line in file.read_text().splitlines(keepends=True) if "late" not in line)
        )
        with pytest.raises(CredentialError):
            await service.client(token=late).open()
        file.write_text("nonsense\n")  # what was read before holds
        await works(service)
        assert "nonsense" not in service.stop()
        assert late not in file.read_text()


async def test_other_versions_are_told_of_each_other_before_anything_is_made(service: Service, monkeypatch):
    from littleghost.sandboxes import remote

    before = service.leases
    for protocol in (PROTOCOL + 1, PROTOCOL - 1):
        monkeypatch.setattr(remote, "PROTOCOL", protocol)
        with pytest.raises(
            ConfigurationError,
            match=rf"service has LittleGhost [\d.]+ \(protocol {PROTOCOL}\), and the client [\d.]+ \(protocol {protocol}\)",
        ):
            await service.client().open()
    monkeypatch.undo()
    with pytest.raises(InvalidStatus) as caught:
        async with raw(service, LittleGhost_Protocol="x" * 3000, LittleGhost_Version="9" * 3000):
            pass
    assert caught.value.response.status_code == 426
    assert len(caught.value.response.body) < 300
    assert service.leases == before


async def test_a_client_asks_for_less_and_never_for_more():
    with Service("--limit", "wall_seconds=1", "--limit", "read_bytes=5000") as service:
        async with service.client(limits=SandboxLimits(read_bytes=100)) as sandbox:
            assert (sandbox.limits.read_bytes, sandbox.limits.wall_seconds) == (100, 1)
            done = await sandbox.execute("sleep 30", timeout=60)
            assert done.timed_out
        async with service.client(limits=SandboxLimits(read_bytes=1 << 40, wall_seconds=500)) as sandbox:
            assert (sandbox.limits.read_bytes, sandbox.limits.wall_seconds) == (5000, 1)
            assert sandbox.scope(limits=SandboxLimits(read_bytes=9000)).limits.read_bytes == 5000
        with pytest.raises(CapabilityError, match="disk_bytes"):
            await service.client(limits=SandboxLimits(disk_bytes=1)).open()
        with pytest.raises(CapabilityError, match="no network"):
            await service.client(policy={"network": "inherit"}).open()
        with pytest.raises(CapabilityError, match="does not isolate"):
            await service.client(isolated=True).open()
        with pytest.raises(PolicyError, match="below the root"):
            service.client(paths={"etc": "/etc"})
        async with raw(service) as client:
            answer = await client.ask(GREETING, asked(paths={"etc": "/etc"}))
            assert "relative" in answer.head["error"]["message"]
        for wrong in ({"paths": {"a": "x" * 300}},
            {"paths": {"a": "../.."}}, {"paths": {"a": 3}}, {"limits": {"x": 1}}, {"limits": [1]}, {"policy": {"root": "x"}},
                      {"policy": 3}, {"writable": 1}, {"lease": "short"}, {"lease": 3}, {"lease": "é" * 40}, {"again": "no"}):  # fmt: skip
            async with raw(service) as client:
                answer = await client.ask(
                    GREETING,
                    asked(**{"secret": None, **wrong}) if "lease" not in wrong else {**asked(), **wrong},
                )
                assert "error" in answer.head, wrong
                assert str(service.root) not in str(answer.head)
        assert not service.leases
        await works(service)


async def test_programs_in_an_isolating_service_are_isolated(require):
    import shutil

    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    with Service(host=False) as service:
        async with service.client(paths={"notes": "inside/notes"}) as one, service.client() as two:
            assert "isolation" in one.capabilities
            assert "local_files" not in one.capabilities
            assert one.effective_policy.network == "none"
            assert any("who runs the service" in each for each in one.effective_policy.not_enforced)
            await one.write("workspace://notes/a", "mine")
            seen = await one.execute("cat /paths/notes/a; ls /workspace; ls /tmp", timeout=20)
            assert seen.stdout == "mineinside\n"
            assert (await two.execute("ls -a /workspace", timeout=20)).stdout == ".\n..\n"
            assert (await two.execute(f"ls {service.folder}", timeout=20)).exit_code == 2
            assert not (await two.execute("echo x > /etc/x", timeout=20)).success
        probe = await RemoteSandbox.probe(url=service.url, token=service.token)
        assert (probe.available, len(probe.checks)) == (True, 4), probe
        assert "token" in (await RemoteSandbox.probe(url=service.url, token="wrong")).reason


async def test_leases_and_programs_are_counted(service: Service):
    async with contextlib.AsyncExitStack() as stack:
        mine = [await stack.enter_async_context(service.client()) for _ in range(6)]
        with pytest.raises(ToolError, match="a token may have 6"):
            await service.client().open()
        other = service.tokens.add("another")
        await stack.enter_async_context(service.client(token=other))
        busy = [asyncio.ensure_future(mine[0].execute("exec sleep 1000.375", timeout=60)) for _ in range(3)]
        process = await mine[0].start_program(["sleep", "30"])
        while len(running("1000.375")) < 3:
            await asyncio.sleep(0.02)
        with pytest.raises(ToolError, match="4 may run"):
            await mine[0].execute("true", timeout=10)
        with pytest.raises(ToolError, match="4 may run"):
            await mine[0].start_program(["true"])
        await process.close()
        assert (await mine[0].execute("echo x", timeout=10)).stdout == "x\n"
        for each in busy:
            each.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
    await works(service)


async def test_closing_ends_a_lease_with_its_programs_and_files(service: Service):
    before = service.leases
    sandbox = await service.client().open()
    (lease,) = service.leases - before
    assert lease.stat().st_mode & 0o777 == 0o700
    await sandbox.execute("mkdir -p a/b; chmod 0 a; (setsid sleep 1000.75 &)", timeout=10)
    process = await sandbox.start_program(["sleep", "1000.75"])
    while not running("1000.75"):
        await asyncio.sleep(0.02)
    await sandbox.close()
    assert not lease.exists()
    assert not running("1000.75")
    with pytest.raises(ToolError):
        await process.read()
    await sandbox.open()  # another one
    assert await sandbox.list() == []
    await sandbox.close()


async def test_a_service_that_is_killed_leaves_nothing_that_runs_and_the_next_one_deletes_its_files(
    tmp_path: Path,
):
    service = Service(folder=tmp_path).start()
    sandbox = await service.client().open()
    await sandbox.write("a/b", "x")
    process = await sandbox.start_program(["sleep", "1000.125"])
    (lease,) = service.leases
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGKILL)
    service.process.communicate()
    while running("1000.125"):
        await asyncio.sleep(0.05)
    assert (lease / "workspace" / "a" / "b").exists()
    mine = service.root / "mine"
    mine.mkdir()
    strange = service.root / f"lease-{'0' * 32}"  # a name like ours, and no mark
    (strange / "workspace").mkdir(parents=True)
    linked = service.root / f"lease-{'1' * 32}"
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "workspace").mkdir(parents=True)
    (elsewhere / MARK).touch()
    linked.symlink_to(elsewhere)
    half = service.root / f"lease-{'2' * 32}"  # whose deletion did not get to the mark
    half.mkdir()
    (half / MARK).touch()
    again = Service(folder=tmp_path).start()
    try:
        assert not lease.exists()
        assert not half.exists()
        assert mine.exists()
        assert (strange / "workspace").exists()
        assert (elsewhere / "workspace").exists()
        other = subprocess.run(
            [*COMMAND, "--root", service.root, "--tokens", tmp_path / "tokens", "--port", "0"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert other.returncode == 2
        assert "another service uses" in other.stderr
        await works(again)
    finally:
        again.stop()
    sandbox._leaving = 0.0
    await process.close()
    await sandbox.close()


async def test_the_first_signal_lets_what_runs_end_and_gives_nothing_new(tmp_path: Path):
    service = Service("--drain", "60", folder=tmp_path).start()
    assert service.process is not None
    busy, idle = await service.client().open(), await service.client().open()
    last = asyncio.ensure_future(
        busy.execute("while [ ! -e go ]; do sleep 0.05; done; echo done", timeout=60)
    )
    await asyncio.sleep(0.2)
    service.process.send_signal(signal.SIGTERM)
    while (await asyncio.to_thread(get, f"{service.url}/health"))[:2] != (503, b"draining\n"):
        await asyncio.sleep(0.02)
    with pytest.raises(ToolConnectionError, match="ending, and makes no more"):
        await service.client().open()
    while idle.is_open:
        await asyncio.sleep(0.02)
    with pytest.raises(ToolConnectionError, match="the service has ended"):
        await idle.list()
    await busy._way.close()  # and a client that is lost meanwhile can come again
    await busy.write("go", "")
    assert (await last).stdout == "done\n"
    _, errors = await asyncio.to_thread(service.process.communicate)
    assert (service.process.returncode, errors) == (0, "")
    assert not service.leases
    await busy.close()
    await idle.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_and_the_end_of_the_time_end_everything(tmp_path: Path, number: int):
    service = Service("--drain", "60" if number == signal.SIGTERM else "0.3", folder=tmp_path).start()
    assert service.process is not None
    seconds = f"1000.{number:02}"
    async with service.client() as sandbox:
        working = asyncio.ensure_future(sandbox.execute(f"sleep {seconds}", timeout=None))
        while not running(seconds):
            await asyncio.sleep(0.02)
        service.process.send_signal(number)
        if number == signal.SIGTERM:
            while (await asyncio.to_thread(get, f"{service.url}/health"))[0] != 503:
                await asyncio.sleep(0.02)
            service.process.send_signal(number)
        with pytest.raises(ToolError):
            await working
        _, errors = await asyncio.to_thread(service.process.communicate)
        assert (service.process.returncode, errors) == (0, "")
        assert not running(seconds)
        assert not service.leases


GARBAGE = {
    "text": "hello",
    "bytes": b"\xff" * 100,
    "a huge length": struct.pack(">IQI", (1 << 32) - 1, 1, 10),
    "a huge head": struct.pack(">IQI", 15 << 20, 1, 15 << 20),
    "a head longer than all": struct.pack(">IQI", 1, 1, 10) + b"x",
    "deep": struct.pack(">IQI", 100_000, 1, 100_000) + b"[" * 100_000,
    "a list": struct.pack(">IQI", 2, 1, 2) + b"[]",
    "a huge message": bytes(3 << 20),
}


@pytest.mark.parametrize("greeted", [False, True])
@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_ends_the_connection_and_nothing_else(service: Service, name: str, greeted: bool):
    async with raw(service, service.tokens.add(f"garbage-{secrets.token_hex(4)}")) as client:
        if greeted:
            await client.ask(GREETING, asked())

        async def say() -> None:
            await client.socket.send(GARBAGE[name])  # in the middle of which it may be closed already
            await client.hear()

        with pytest.raises(ConnectionClosed) as closed:
            await say()
        assert "Traceback" not in str(closed.value)


async def test_hostile_requests_get_errors_and_others_are_served(service: Service):
    async with raw(service, service.tokens.add("hostile")) as client:
        await client.ask(GREETING, asked())
        deep: object = []
        for _ in range(400):
            deep = [deep]
        heads = (
            {"do": "list", "with": {"path": "."}, "in": [{"path": "."}] * 65},
            {"do": "list", "with": {"path": "."}, "in": deep},
            {"do": "list", "with": {"path": deep}},
            {"do": "hear", "with": {"process": 1, "errors": False, "limit": 1 << 60}},
            {"do": "read", "with": {"path": "a", "offset": 1 << 70}},
            {"do": "read", "with": {"path": "a" * 100_000}},
            {"do": "execute", "with": {"command": ["true"], "timeout": 5, "max_output_bytes": -1}},
            {"do": "execute", "with": {"command": [deep], "timeout": 5, "max_output_bytes": 1}},
            {"do": "execute", "with": {"command": ["true"], "timeout": 5, "max_output_bytes": 1, "environment": {"a": 3}}},
            {"do": "execute", "with": {"command": ["x" * 500_000], "timeout": 5, "max_output_bytes": 1}},
            {"do": "list", "with": {"path": "."}, "in": [{"paths": [deep]}]},
            {"do": "grep", "with": {"pattern": "(" * 5000}},
            {"do": "glob", "with": {"pattern": "**/" * 5000}},
            {"seen": [deep, 1 << 70, None]},
        )  # fmt: skip
        for number, head in enumerate(heads, 1):
            answer = await client.ask(number, head)
            assert answer.number == number
            assert "error" in answer.head or answer.head.get("is") is not None, head
            assert "Traceback" not in str(answer.head)
            assert str(service.root) not in str(answer.head)
        for number in range(1000, 2000):  # scopes that are all different
            await client.say(
                number,
                {
                    "do": "list",
                    "with": {"path": "."},
                    "in": [{"limits": {"read_bytes": number}}],
                    "seen": [number - 1],
                },
            )
        heard = {(await client.hear()).number for _ in range(1000)}
        assert heard == set(range(1000, 2000))
        assert (await client.ask(1 << 63, {"do": "list", "with": {"path": "."}})).head == {"is": []}
    await works(service)


def resident(service: Service) -> int:
    assert service.process is not None
    return int(Path(f"/proc/{service.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


async def test_a_client_that_does_not_read_holds_no_more_memory_than_it_may(tmp_path: Path):
    with Service(folder=tmp_path) as service:
        async with raw(service) as client:
            await client.ask(GREETING, asked(limits={"read_bytes": 8 << 20}))
            for number in range(1, 8):
                await client.ask(
                    number, {"do": "write_bytes", "with": {"path": f"f{number}"}}, bytes(900_000)
                )
            await client.ask(
                8,
                {
                    "do": "execute",
                    "with": {"command": ["sh", "-c", "cat f? > large"], "timeout": 20, "max_output_bytes": 1},
                },
            )
            before = resident(service)
            client.socket.transport.pause_reading()
            reading = {"do": "read_bytes", "with": {"path": "large"}}
            await client.socket.send(b"".join(frame(number, reading) for number in range(100, 400)))
            await works(service)
            # 64 MiB that are kept, what eight threads at most read meanwhile, and copies of both on their way
            assert resident(service) - before < 400 << 20
            client.socket.transport.resume_reading()
            refused = 0
            for _ in range(300):
                refused += "error" in (await client.hear()).head
            assert refused > 200
            assert (
                "is"
                in (
                    await client.ask(500, {"do": "list", "with": {"path": "."}, "seen": list(range(500))})
                ).head
            )


async def test_who_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch, caplog):
    """Neither for a request that does not come, nor for a greeting. And no log has a token."""
    caplog.set_level(logging.DEBUG)
    from littleghost.sandboxes.service import app, server

    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(app, "_GREETING_SECONDS", 0.3)
    held = Service(folder=tmp_path)
    ready = asyncio.Event()
    listening = server.listen("127.0.0.1", 0, exposed=False)
    held.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    service = SandboxService(tmp_path / "root", tokens=tmp_path / "tokens", backend=HostSandbox)
    serving = asyncio.ensure_future(server.serve(service, listening, drain=0, ready=ready.set))
    await ready.wait()
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    writer.write(b"GET /sandbox HTTP/1.1\r\nHost: x\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    async with raw(held) as client:
        with pytest.raises(ConnectionClosed):
            await client.hear()
    os.kill(os.getpid(), signal.SIGTERM)
    await serving
    said = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets.")]
    assert said
    assert held.token not in "".join(said)  # but in those of this test's own client


async def test_tls_is_checked_by_the_client(tmp_path: Path, require):
    import shutil
    import ssl

    require(shutil.which("openssl"), "openssl", "apt-get install openssl")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    await asyncio.to_thread(
        subprocess.run,
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    with Service("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), folder=tmp_path) as service:
        assert service.url.startswith("https://")
        with pytest.raises(ConfigurationError, match="is not trusted"):
            await service.client().open()
        async with service.client(ssl=ssl.create_default_context(cafile=certificate)) as sandbox:
            await sandbox.write("a", "x")
        with pytest.raises(ToolConnectionError, match="cannot be reached"):
            await service.client(url=service.url.replace("https", "http")).open()
    wrong = subprocess.run(
        [*COMMAND, "--root", tmp_path / "r", "--tokens", tmp_path / "tokens", "--port", "0", "--ssl-certfile", key, "--ssl-keyfile", key],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (wrong.returncode, "certificate or its key" in wrong.stderr) == (2, True)
    assert str(key) in wrong.stderr


def test_the_command_line_says_what_is_wrong_and_shows_a_token_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["littleghost", "sandbox", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.run()
        return (ended.value.code, *capsys.readouterr())

    status, out, errors = run("token", "shop", "--tokens", "tokens")
    token = out.strip()
    assert (status, errors, len(token)) == (0, "", 47)
    assert token not in (tmp_path / "tokens").read_text()
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    serve = ("serve", "--tokens", "tokens", "--port", "0")
    for arguments, what in (
        (("token", "a b", "--tokens", "tokens"), "a name has"),
        (("serve", "--root", "r", "--tokens", "none"), "cannot be read"),
        ((*serve, "--root", "r", "--host", "0.0.0.0"), "--ssl-certfile"),
        ((*serve, "--root", "r", "--ssl-keyfile", "x"), "belong together"),
        ((*serve, "--root", "r", "--limit", "nothing=1"), "the limit"),
        ((*serve, "--root", "tokens"), "cannot be used"),
        ((*serve, "--root", "r", "--sandbox", "host", "--limit", "disk_bytes=1"), "disk_bytes"),
        ((*serve, "--root", "open"), "nobody else may write it"),
    ):
        status, out, errors = run(*arguments)
        assert (status, out, what in errors) == (2, "", True), errors
        assert "Traceback" not in errors
    (tmp_path / "tokens").chmod(0o666)
    assert "others may write" in run(*serve, "--root", "r")[2]


def test_the_service_isolates_unless_told_otherwise(tmp_path: Path):
    import inspect

    assert inspect.signature(SandboxService).parameters["backend"].default is native_sandbox


def running(argument: str) -> list[int]:
    """The processes that have an argument."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if argument.encode() in file.read().replace(b" ", b"\0").split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
    return found
