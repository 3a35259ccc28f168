"""Clauses about what an isolating sandbox keeps from programs. Each is an attempt that must fail beside one that must work."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from typing import Any

from littleghost.errors import CapabilityError
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.sandbox_trial import opened, raises

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []


@clause(CLAUSES, needs={"execute", "isolation"})
async def programs_see_no_file_of_the_host(make: Any) -> None:
    """A file outside the workspace is not there, nor are the host's accounts and home directories."""
    async with opened(make) as trial:
        secret = str(trial.outside / "secret")
        seen = await trial.sandbox.execute(
            f"cat '{secret}' /etc/shadow ../outside/secret; ls /root; ls /home; true", timeout=20
        )
        expect(seen.exit_code == 0 and seen.stdout == "", f"it saw {seen.stdout!r}")
        if "local_files" in trial.sandbox.capabilities:
            trial.root.joinpath("link").symlink_to(secret)
            linked = await trial.sandbox.execute_program(["cat", "link"], timeout=20)
            expect("SECRET" not in linked.stdout, "it saw a file outside through a link")


@clause(CLAUSES, needs={"execute", "isolation"})
async def programs_write_nothing_outside(make: Any) -> None:
    """Outside the workspace and its own ``/tmp`` a program can write nothing, whatever its user."""
    places = (
        "/usr/bin/x",
        "/etc/passwd",
        "/etc/x",
        "/x",
        "/workspace/../x",
        "/proc/sys/kernel/core_pattern",
        "/dev/x",
    )
    async with opened(make) as trial:
        for place in places:
            done = await trial.sandbox.execute(f"true >> {place}", timeout=20)
            expect(done.exit_code != 0, f"{place} can be written")
        done = await trial.sandbox.execute("echo x > /tmp/x && echo y > here && cat /tmp/x here", timeout=20)
        expect(done.stdout == "x\ny\n", f"what must be writable is not: {done}")


@clause(CLAUSES, needs={"execute", "read_only_processes"})
async def a_read_only_workspace_binds_programs_too(make: Any) -> None:
    """With ``writable=False`` a program cannot change the workspace either."""
    async with opened(make, writable=False) as trial:
        done = await trial.sandbox.execute("echo x > made; mkdir dir; chmod 777 .; ls -A", timeout=20)
        expect(done.stdout == "", f"the workspace has {done.stdout!r}")
        if "local_files" in trial.sandbox.capabilities:
            expect(not list(trial.root.iterdir()), "the workspace was written")


@clause(CLAUSES, needs={"execute", "pid_namespace"})
async def programs_see_and_signal_no_process_of_the_host(make: Any) -> None:
    """Processes outside are invisible and out of reach, and so are their environments."""
    marker = f"littleghost-marker-{os.getpid()}"
    victim = subprocess.Popen(  # noqa: ASYNC220 (it starts in a moment, and nothing else waits)
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        env={"MARKER": marker},
        start_new_session=True,
    )
    try:
        async with opened(make) as trial:
            seen = await trial.sandbox.execute(
                "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'", timeout=20
            )
            expect(
                marker not in seen.stdout and sys.executable not in seen.stdout,
                "it sees the host's processes",
            )
            # Not to all that can be reached (-1): without this wall, those are all processes of whoever tries the kit.
            done = await trial.sandbox.execute(
                f"kill -KILL {victim.pid}; kill -KILL -{victim.pid}; echo alive", timeout=20
            )
            expect(victim.poll() is None, f"it killed a process of the host: {done}")
            again = await trial.sandbox.execute("echo works", timeout=20)
            expect(again.stdout == "works\n", f"it killed what it runs in: {again}")
    finally:
        victim.kill()
        victim.communicate()


@clause(CLAUSES, needs={"execute", "isolation"})
async def programs_get_no_namespaces_or_rights(make: Any) -> None:
    """A program has no capability, gains none, and cannot make a namespace in which it would have them."""
    async with opened(make) as trial:
        status = await trial.sandbox.execute_program(["cat", "/proc/self/status"], timeout=20)
        fields = dict(line.split(":\t", 1) for line in status.stdout.splitlines() if ":\t" in line)
        for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
            expect(int(fields.get(name, "1"), 16) == 0, f"{name} is {fields.get(name)}")
        expect(fields.get("NoNewPrivs") == "1", "it may gain rights from a setuid program")
        nested = await trial.sandbox.execute("unshare --user --map-root-user true", timeout=20)
        expect(nested.exit_code != 0, "it made a namespace of its own")
        if "seccomp" in trial.sandbox.capabilities:
            expect(fields.get("Seccomp") == "2", "no filter of system calls is in force")


@clause(CLAUSES, needs={"execute", "seccomp", "write"})
async def programs_leave_no_setuid_file(make: Any) -> None:
    """No file gets the setuid or setgid bit, which on the host would lend the application's rights to whoever runs it."""
    script = """
import ctypes, os
os.umask(0)
def attempt(make):
    try: make()
    except OSError: pass
open("changed", "w").close()
for mode in (0o4755, 0o2755):
    attempt(lambda: os.chmod("changed", mode))
    attempt(lambda: os.chmod(os.open("changed", os.O_RDONLY), mode))
    attempt(lambda: os.open(f"made-{mode}", os.O_CREAT | os.O_WRONLY, mode))
    attempt(lambda: os.mkdir(f"dir-{mode}", mode))
    attempt(lambda: os.mknod(f"node-{mode}", mode))
    attempt(lambda: os.link(f"/proc/self/fd/{os.open('.', os.O_TMPFILE | os.O_WRONLY, mode)}", f"tmp-{mode}", follow_symlinks=True))
    libc = ctypes.CDLL(None)
    libc.creat(b"creat-%d" % mode, mode)
    libc.syscall(452, -100, b"changed", mode, 0)
    libc.syscall(437, -100, b"how-%d" % mode, (ctypes.c_uint64 * 3)(0o101, mode, 0), 24)
os.chmod("changed", 0o755)
print([name for name in os.listdir(".") if os.stat(name).st_mode & 0o6000], oct(os.stat("changed").st_mode & 0o7777))
"""
    async with opened(make) as trial:
        await trial.needs("python3")
        done = await trial.sandbox.execute_program(["python3", "-c", script], timeout=20)
        expect(done.stdout == "[] 0o755\n", f"there are {done}")


@contextlib.contextmanager
def _listening(family: int, address: Any) -> Generator[socket.socket]:
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
        yield listener


def _heard(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@clause(CLAUSES, needs={"execute", "network_none"})
async def programs_reach_no_network(make: Any) -> None:
    """The host's loopback does not hear a program, and there is no other way out."""
    with _listening(socket.AF_INET, ("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with opened(make) as trial:
            await trial.needs("bash")
            for address in (f"127.0.0.1/{port}", "192.0.2.1/80"):
                script = f"echo x > /dev/tcp/{address}"
                done = await trial.sandbox.execute_program(["bash", "-c", script], timeout=20)
                expect(done.exit_code != 0 and not _heard(listener), f"{address} was reached: {done}")
            done = await trial.sandbox.execute("cut -sd: -f1 /proc/net/dev", timeout=20)
            expect(done.stdout.split() == ["lo"], f"it has the devices {done.stdout.split()}")


@clause(CLAUSES, needs={"execute", "network_none", "local_files"})
async def programs_reach_no_socket_file(make: Any) -> None:
    """A service of the host that listens on a socket file in the workspace does not hear a program."""
    script = (
        "import socket\nfor kind in (1, 2):\n s = socket.socket(socket.AF_UNIX, kind)\n s.connect('socket')"
    )
    pair = "import socket\na, b = socket.socketpair(socket.AF_UNIX, {})\na.sendto(b'x', 'datagram')"
    async with opened(make) as trial:
        await trial.needs("python3")
        with (
            _listening(socket.AF_UNIX, str(trial.root / "socket")) as listener,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        ):
            datagram.bind(str(trial.root / "datagram"))
            datagram.setblocking(False)
            done = await trial.sandbox.execute_program(["python3", "-c", script], timeout=20)
            expect(done.exit_code != 0 and not _heard(listener), f"the socket was reached: {done}")
            for kind in (
                socket.SOCK_DGRAM,
                socket.SOCK_RAW,
            ):  # of which the second is the first by another name
                done = await trial.sandbox.execute_program(
                    ["python3", "-c", pair.format(int(kind))], timeout=20
                )
                heard = b""
                with contextlib.suppress(BlockingIOError):
                    heard = datagram.recv(10)
                expect(done.exit_code != 0 and not heard, f"the datagram socket was reached: {done}")


@clause(CLAUSES, needs={"execute", "isolated_root"})
async def temporary_files_are_bounded_and_private(make: Any) -> None:
    """``/tmp`` holds ``limits.temporary_bytes`` and is another one for every command."""
    async with opened(make, limits=SandboxLimits(temporary_bytes=1_000_000)) as trial:
        for place in ("/tmp", "/dev/shm"):  # noqa: S108 (the sandbox's own)
            done = await trial.sandbox.execute(
                f"head -c 3000000 /dev/zero > {place}/big; wc -c < {place}/big", timeout=20
            )
            expect(0 < int(done.stdout or 0) < 1_100_000, f"{place} took {done.stdout.strip()} bytes: {done}")
            left = await trial.sandbox.execute(f"ls {place}", timeout=20)
            expect(left.stdout == "", f"a later command finds {left.stdout!r}")


@clause(CLAUSES, needs={"execute", "isolation", "scope", "files", "write"})
async def a_scope_binds_programs_too(make: Any) -> None:
    """A program in a scope sees the scope's directory as its workspace, read-only where the scope is; or the scope runs none."""
    async with opened(make) as trial:
        await trial.sandbox.write("sub/file", "inside")
        await trial.sandbox.write("other", "beside")
        scope = trial.sandbox.scope(path="sub", read_only=True)
        if "execute" in scope.capabilities:
            script = "ls -A; cat ../other /workspace/../other; echo x > new; ls -A"
            done = await scope.execute(script, timeout=20)
            expect(done.stdout == "file\nfile\n", f"it saw or made {done.stdout!r}")
        else:
            await raises(
                scope.execute("true", timeout=20), CapabilityError, what="a program in a narrower scope"
            )
        none = trial.sandbox.scope(execute=False)
        await raises(
            none.execute("true", timeout=20), CapabilityError, what="a program in a scope without programs"
        )
