"""What was started over SSH ends with the connection, whoever ends that, and the application is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from littleghost import SandboxLimits, SSHSandbox, ToolConnectionError

if sys.platform != "linux":
    pytest.skip("the server is looked at through /proc", allow_module_level=True)

SCRIPT = "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &) ; echo $$ > main; sleep 1000"


@pytest.fixture
def there(ssh_server, tmp_path: Path) -> str:
    """A workspace that the server's user can write, and the tests can look into."""
    root = ssh_server.folder / f"work-{tmp_path.name}"
    root.mkdir()
    root.chmod(0o777)
    return str(root)


async def started(root: str) -> list[int]:
    """The programs of `SCRIPT`: itself, and a daemon that left its session."""
    found = []
    for name in ("main", "daemon"):
        path = Path(root, name)
        while not (path.exists() and path.read_text().endswith("\n")):
            await asyncio.sleep(0.02)
        found.append(int(path.read_text()))
    return found


def alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


async def all_gone(processes: list[int]) -> None:
    while any(alive(process) for process in processes):
        await asyncio.sleep(0.05)


def children(process: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def workers(root: str) -> list[int]:
    """The workers that hold a directory, which are the grandchildren of the server's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and b"binascii.unhexlify" in _command(int(entry.name)):
            with suppress(OSError):
                held = {os.readlink(each) for each in (entry / "fd").iterdir()}
                if root in held:
                    found.append(int(entry.name))
    return found


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


class Relay:
    """A network between client and server that can fall silent, with nothing said to either."""

    pause = 0.0  # seconds after each 64 KiB

    def __init__(self, port: int) -> None:
        self._port, self._silent, self._tasks = port, asyncio.Event(), set()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._tasks.add(task)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if self._silent.is_set():
                    continue
                target.write(data)
                await target.drain()
                await asyncio.sleep(self.pause)

    def fall_silent(self) -> None:
        self._silent.set()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[tuple[Relay, int]]:
    between = Relay(port)
    server = await asyncio.start_server(between.serve, "127.0.0.1", 0)
    try:
        yield between, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await between.end()


async def test_close_ends_everything(ssh_server, there: str) -> None:
    async with SSHSandbox(there, writable=True, **ssh_server.options) as sandbox:
        running = asyncio.create_task(sandbox.execute(SCRIPT, timeout=100))
        processes = await started(there)
        assert all(map(alive, processes))
    assert not any(map(alive, processes))
    done = await running
    assert done.error
    assert not done.success


@pytest.mark.parametrize("victim", ["session", "worker"])
async def test_when_its_side_over_there_is_killed_everything_ends(
    ssh_server, there: str, victim: str
) -> None:
    sandbox = SSHSandbox(there, writable=True, **ssh_server.options)
    async with sandbox:
        running = asyncio.create_task(sandbox.execute(SCRIPT, timeout=100))
        talking = await sandbox.start_program(["cat"])
        processes = await started(there)
        [worker] = workers(there)
        [session] = [each for each in ssh_server.sessions() if worker in children(each)]
        os.kill({"session": session, "worker": worker}[victim], signal.SIGKILL)

        with pytest.raises(ToolConnectionError) as told:
            await running
        assert victim != "worker" or "was ended there" in str(told.value)
        with pytest.raises(ToolConnectionError):
            await talking.read()
        with pytest.raises(ToolConnectionError):
            await sandbox.read("main")
        assert not sandbox.is_open
        await all_gone([worker, *processes])
    async with sandbox:  # closed, and opened again
        assert await sandbox.read("main")


async def test_when_the_application_is_killed_everything_ends(ssh_server, there: str) -> None:
    program = f"""
import asyncio, json, sys
from littleghost import SSHSandbox
async def main():
    async with SSHSandbox({there!r}, writable=True, **json.loads(sys.argv[1])) as sandbox:
        await sandbox.execute({SCRIPT!r}, timeout=100)
asyncio.run(main())
"""
    application = subprocess.Popen([sys.executable, "-c", program, json.dumps(ssh_server.options)])
    try:
        processes = [*await started(there), *workers(there)]
        assert len(processes) == 3
    finally:
        application.kill()
        application.wait()
    await all_gone(processes)


async def test_when_the_network_falls_silent_both_sides_give_up(ssh_server, there: str) -> None:
    async with relay(ssh_server.port) as (between, port):
        options = {**ssh_server.options, "port": port, "keepalive_interval": 0.5}
        options["known_hosts"] = ssh_server.known_hosts.read_bytes().replace(
            str(ssh_server.port).encode(), str(port).encode()
        )
        async with SSHSandbox(there, writable=True, **options) as sandbox:
            running = asyncio.create_task(sandbox.execute(SCRIPT, timeout=100))
            processes = [*await started(there), *workers(there)]
            await asyncio.sleep(2.5)  # longer than either side bears silence
            assert not running.done()
            between.fall_silent()
            with pytest.raises(ToolConnectionError, match="nothing is heard"):
                await running
            with pytest.raises(ToolConnectionError, match="nothing is heard"):
                await sandbox.read("main")
        await all_gone(processes)  # though the server still has the connection


async def test_a_worker_that_is_stopped_is_given_up_and_killed(ssh_server, there: str) -> None:
    """As a program of the same user can do. The kill goes over the connection, as a request of SSH."""
    async with SSHSandbox(there, writable=True, **ssh_server.options, keepalive_interval=0.5) as sandbox:
        running = asyncio.create_task(sandbox.execute(SCRIPT, timeout=100))
        processes = await started(there)
        [worker] = workers(there)
        os.kill(worker, signal.SIGSTOP)
        with pytest.raises(ToolConnectionError, match="nothing is heard"):
            await running
    await all_gone([worker, *processes])


async def test_a_busy_line_is_no_silent_one(ssh_server, there: str) -> None:
    """An answer that takes longer than the signs of life may, and one that is large, are waited for."""
    async with SSHSandbox(there, writable=True, **ssh_server.options, keepalive_interval=0.2) as sandbox:
        done = await sandbox.execute("sleep 2; head -c 20000000 /dev/zero", timeout=60)
        assert done.success
        assert done.stdout_omitted > 10_000_000
        async with await sandbox.start_program(["sh", "-c", "wc -c"]) as process:
            for _ in range(20):
                await process.write(bytes(1_000_000))
            await process.close_input()
            assert int(await process.read()) == 20_000_000


async def test_a_slow_network_is_no_silent_one(ssh_server, there: str) -> None:
    """The signs of life wait behind a file for longer than they may take, and the file is a sign too."""
    content = os.urandom(3_000_000)
    async with relay(ssh_server.port) as (between, port):
        options = {**ssh_server.options, "port": port, "keepalive_interval": 0.25}
        options["known_hosts"] = ssh_server.known_hosts.read_bytes().replace(
            str(ssh_server.port).encode(), str(port).encode()
        )
        limits = SandboxLimits(read_bytes=5_000_000, write_bytes=5_000_000)
        async with SSHSandbox(there, writable=True, limits=limits, **options) as sandbox:
            between.pause = 0.05
            await sandbox.write_bytes("file", content)
            assert await sandbox.read_bytes("file") == content


async def test_a_cancelled_open_leaves_nothing(ssh_server, there: str) -> None:
    for after in (0.01, 0.1, 0.3, 0.6):
        sandbox = SSHSandbox(there, writable=True, **ssh_server.options)
        opening = asyncio.create_task(sandbox.open())
        await asyncio.sleep(after)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await opening
        await sandbox.close()
        assert not sandbox.is_open
    while workers(there) or ssh_server.sessions():
        await asyncio.sleep(0.05)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def test_the_look_at_processes_itself() -> None:
    """The tests above would pass if `alive` never said yes."""
    sleeper: Callable[[], bool]
    process = subprocess.Popen(["sleep", "100"])
    sleeper = lambda: alive(process.pid)
    assert sleeper()
    process.kill()
    process.wait()
    assert not sleeper()
