"""The worker: how it comes to a guest, and that nothing of it or of what it started outlives its line."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest
from far import WorkerSandbox

from littleghost.errors import CapabilityError, ToolConnectionError, ToolError
from littleghost.sandboxes.far import guest
from littleghost.sandboxes.far.wire import MAGIC

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="workers are for POSIX")


def fake(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def sandbox_with(tmp_path: Path, python: str) -> WorkerSandbox:
    sandbox = WorkerSandbox(tmp_path / "root", writable=True)
    sandbox.python = python
    return sandbox


async def test_what_a_login_prints_before_the_worker_is_passed_over(tmp_path):
    python = fake(tmp_path / "python", f"echo welcome; echo 'you have mail'; exec {sys.executable} \"$@\"")
    async with sandbox_with(tmp_path, python) as sandbox:
        assert (await sandbox.execute("echo here", timeout=20)).stdout == "here\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (r"printf '\0littleghost\0old 3.8\n'", "has Python 3.8, and 3.11 or newer is needed"),
        ("echo 'sh: python3: not found' >&2; exit 127", "has no Python where it was looked for"),
        ("echo 'Fatal Python error: no home' >&2; exit 1", "did not start: Fatal Python error: no home"),
        ("exit 0", "it said nothing"),
    ],
)
async def test_why_no_worker_starts_is_said(tmp_path, script, said):
    with pytest.raises(CapabilityError, match=said):
        await sandbox_with(tmp_path, fake(tmp_path / "python", script)).open()


async def test_one_that_never_stops_talking_is_no_worker(tmp_path):
    with pytest.raises(ToolConnectionError, match="says something else"):
        await sandbox_with(tmp_path, fake(tmp_path / "python", "yes & sleep 1; kill $!; exit 1")).open()


def test_an_old_python_can_say_that_it_is_one():
    boot = guest.command()[-1]
    assert f"{guest._LEAST!r}" in boot
    assert repr(MAGIC) in boot


async def test_the_worker_has_the_standard_library_and_nothing_else(tmp_path):
    """It runs without site-packages, and writes no file."""
    async with sandbox_with(tmp_path, sys.executable) as sandbox:
        await sandbox.write("a", "x\n")
        assert [str(found) for found in await sandbox.grep("x")] == ["a:1: x"]
        maps = Path(f"/proc/{sandbox.worker.pid}/maps")
        if maps.exists() and os.getuid() == 0:
            assert "site-packages" not in maps.read_text()
    assert os.listdir(tmp_path / "root") == ["a"]


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(entry.parent.name)
            found |= {child} | descendants(child)
    return found


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def gone(pids: set[int]) -> None:
    def alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    for _ in range(1500):
        if not any(alive(pid) for pid in pids):
            return
        await asyncio.sleep(0.01)
    raise AssertionError([pid for pid in pids if alive(pid)])


@pytest.mark.skipif(sys.platform != "linux", reason="daemons are found on Linux")
@pytest.mark.parametrize("how", ["killed", "line", "stopped"])
async def test_nothing_outlives_a_worker_or_its_line(tmp_path, how):
    sandbox = await sandbox_with(tmp_path, sys.executable).open()
    script = "setsid sh -c 'sleep 600 & sleep 600' & sleep 600"
    running = asyncio.ensure_future(sandbox.execute(script, timeout=600))
    while len(pids := descendants(sandbox.worker.pid)) < 6:
        await asyncio.sleep(0.02)
    pids.add(sandbox.worker.pid)
    if how == "killed":
        os.kill(sandbox.worker.pid, signal.SIGKILL)
    elif how == "line":
        await sandbox._line._transport.close()
    else:  # the application dies while its worker is stopped: it hears of it when it goes on
        os.kill(sandbox.worker.pid, signal.SIGSTOP)
        sandbox.worker._transport.get_pipe_transport(0).close()
        os.kill(sandbox.worker.pid, signal.SIGCONT)
    with pytest.raises(ToolConnectionError):
        await running
    await gone(pids)
    assert not sandbox.is_open
    with pytest.raises(ToolError):
        await sandbox.read("a")
    await sandbox.close()


async def test_a_read_that_was_cancelled_loses_nothing(tmp_path):
    async with (
        sandbox_with(tmp_path, sys.executable) as sandbox,
        await sandbox.start_program(["cat"]) as process,
    ):
        heard = b""
        for number in range(20):
            reading = asyncio.ensure_future(process.read())
            await asyncio.sleep(0.002)
            if not reading.cancel():
                heard += await reading
            await process.write(b"%d\n" % number)
            if number % 2:
                await asyncio.sleep(0.005)
        await process.close_input()
        while data := await process.read():
            heard += data
        assert heard == b"".join(b"%d\n" % number for number in range(20))


async def test_two_at_once_and_many_questions(tmp_path):
    async with sandbox_with(tmp_path, sys.executable) as one, sandbox_with(tmp_path, sys.executable) as other:
        await asyncio.gather(*(one.write(f"{number}", str(number)) for number in range(100)))
        texts = await asyncio.gather(*(other.read(f"{number}") for number in range(100)))
        assert texts == [str(number) for number in range(100)]


async def test_a_cancelled_start_leaves_no_program(tmp_path):
    async with sandbox_with(tmp_path, sys.executable) as sandbox:
        for delay in (0, 0.001, 0.005, 0.02, 0.05):
            starting = asyncio.ensure_future(sandbox.start_program(["sleep", "600"]))
            await asyncio.sleep(delay)
            if starting.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await starting
            else:
                await (await starting).close()
        sleeping = [pid for pid in descendants(sandbox.worker.pid) if command(pid).startswith(b"sleep\0")]
        assert sleeping == []


async def test_a_program_ends_with_the_event_loop_it_was_started_in(tmp_path):
    async with sandbox_with(tmp_path, sys.executable) as sandbox:
        started: list[object] = []  # kept, so that it is not the end of the object that ends it

        async def elsewhere() -> None:
            started.append(await sandbox.start_program(["sleep", "600"]))

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        for _ in range(1500):
            if not any(command(pid).startswith(b"sleep\0") for pid in descendants(sandbox.worker.pid)):
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("it is still there")
