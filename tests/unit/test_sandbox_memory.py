"""Who is killed first when memory runs out, and a supervisor that can start no keeper, or is ending."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.processes import Launcher, Program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux's")

SCORE = "/proc/self/oom_score_adj"


async def test_commands_are_the_first_to_be_killed_when_memory_runs_out(tmp_path: Path) -> None:
    """Their keeper is not: it has to see to the rest."""
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        own = Path(SCORE).read_text()
        for limits in ("", "ulimit -c 0; "):
            keeper = f"until [ $(cat /proc/$PPID/oom_score_adj) = {own.strip()} ]; do sleep 0.01; done"
            done = await sandbox.execute(f"{limits}cat {SCORE}; {keeper}", timeout=20)
            assert done.success, done
            assert done.stdout == "1000\n"
        assert Path(SCORE).read_text() == own


async def test_a_command_under_limits_is_too(tmp_path: Path) -> None:
    launcher = Launcher()
    try:
        program = Program(arguments=("cat", SCORE), restraints=("rlimit\n1\n50000\n50000",))
        assert (await launcher.run(program, timeout=20)).stdout == "1000\n"
    finally:
        await launcher.close()


@pytest.mark.parametrize(("more", "error"), [(0, None), (1, "killed because it used up its memory")])
async def test_what_was_killed_while_a_watched_limit_was_met_says_so(
    tmp_path: Path, more: int, error: str | None
) -> None:
    """The file is one of the kernel's in a container; here it is made to count."""
    events = tmp_path / "memory.events"
    events.write_text("oom 1\noom_kill 3\n")
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        sandbox.memory_events = str(events)
        script = f"printf 'oom_kill {3 + more}\\n' > {events}; kill -KILL $$"
        done = await sandbox.execute(script, timeout=20)
        assert (done.exit_code, done.error) == (137, error)
        done = await sandbox.execute(f"printf 'oom_kill 9\\n' > {events}; exit 3", timeout=20)
        assert (done.exit_code, done.error) == (3, None)


FULL = """
import os, socket
from littleghost.sandboxes import supervisor
attempts = []
def fork():
    attempts.append(1)
    if len(attempts) > 3:
        print("tried again")
        os.sys.stdout.flush()
        os._exit(0)
    raise BlockingIOError(11, "Resource temporarily unavailable")
near, far = socket.socketpair()
supervisor.CONTROL = far.fileno()
supervisor.close_from = lambda first: None
os.fork = fork
supervisor.serve()
"""


def test_a_supervisor_that_cannot_fork_goes_on() -> None:
    """It tries again, while its application is there."""
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=60)
    assert done.stdout == "tried again\n", done


async def test_a_command_waits_for_a_supervisor_that_is_ending(tmp_path: Path) -> None:
    """Its socket is closed before it has ended; then another is started."""
    async with HostSandbox(tmp_path) as sandbox:
        launcher: Any = sandbox.launcher
        pid = launcher.supervisor
        os.kill(pid, signal.SIGSTOP)  # it is there, and cannot be spoken to
        launcher._control.shutdown(2)
        done = await asyncio.wait_for(sandbox.execute("echo works", timeout=20), 30)
        assert done.stdout == "works\n"
        assert launcher.supervisor != pid


CHILD = """
import os, sys, time
from littleghost.sandboxes import processes
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
        time.sleep(100)
        os._exit(0)
time.sleep(0.2)
processes._kill_all()
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print(os.getpid(), sum(name.isdigit() for name in os.listdir("/proc")))
"""


def test_the_first_process_of_a_namespace_kills_all_the_rest() -> None:
    if subprocess.run(["unshare", "--user", "--pid", "--fork", "--mount-proc", "true"]).returncode != 0:
        pytest.skip("no namespace can be made here")
    done = subprocess.run(
        [
            "unshare",
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--mount-proc",
            sys.executable,
            "-c",
            CHILD,
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "1 1\n", done
