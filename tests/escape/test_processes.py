"""Ways to other processes, their memory and environments, to terminals, and to use up the machine."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

from littleghost.errors import CapabilityError
from littleghost.sandboxes.contract import SandboxLimits

TOUCH = """
import ctypes, signal
victims, numbers = given[0], [0, *(getattr(signal, name) for name in given[1])]
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, attempt):
    try:
        if attempt() not in (None, -1): found.append(name)
    except (OSError, ValueError, AttributeError):
        pass
def killed(pid, number):
    os.kill(pid, number)
    return 1
buffer = ctypes.create_string_buffer(64)
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
local = Vector(ctypes.cast(buffer, ctypes.c_void_p), 64)
for pid in victims:
    for number in numbers:
        tried("kill", lambda: killed(pid, number))
        tried("killpg", lambda: os.killpg(pid, number) or 1)
    tried("pidfd", lambda: os.pidfd_open(pid))
    for part in ("environ", "cmdline", "mem", "maps", "root", "exe", "fd"):
        tried(part, lambda: os.stat(f"/proc/{pid}/{part}"))
    tried("nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19) or 1)
    tried("affinity", lambda: os.sched_getaffinity(pid))
    tried("attach", lambda: libc.ptrace(16, pid, 0, 0))
    tried("seize", lambda: libc.ptrace(0x4206, pid, 0, 0))
    tried("read", lambda: libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(local), 1, 0))
    tried("write", lambda: libc.process_vm_writev(pid, ctypes.byref(local), 1, ctypes.byref(local), 1, 0))
"""


async def test_a_process_of_the_host_cannot_be_touched(attack, bystander) -> None:
    """Not the application, its supervisor, nor anybody else of its user."""
    async with attack() as trial:
        if not trial.claims("pid_namespace"):
            return
        known = [os.getpid(), os.getppid()]
        if hasattr(trial.sandbox, "_launcher"):
            known.append(trial.sandbox._launcher.supervisor)
        # Numbers that something inside could have as well prove nothing.
        known = [pid for pid in known if pid > 1000]
        assert await trial.inside(TOUCH, known, []) == []
        assert await trial.inside(TOUCH, [bystander.pid], ["SIGKILL", "SIGSTOP"]) == []
        assert (await trial.sandbox.execute("echo on", timeout=20)).stdout == "on\n"


MEMORY = """
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
secret = ctypes.create_string_buffer(b"own secret")
child = os.fork()
if child == 0:
    signal.pause()
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(16)
local, remote = Vector(ctypes.addressof(buffer), 10), Vector(ctypes.addressof(secret), 10)
for pid in {child, 1}:
    if libc.ptrace(16, pid, 0, 0) == 0: found.append(f"ptrace {pid == 1}")
    if libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) > 0: found.append("process_vm_readv")
    if libc.process_vm_writev(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) > 0: found.append("process_vm_writev")
mine = {f"/proc/{pid}/mem" for pid in (child, os.getpid(), "self", "thread-self")} if given[0] else set()
for path in {f"/proc/{name}/mem" for name in os.listdir("/proc")} - mine:
    try:
        os.open(path, os.O_WRONLY); found.append(path)
    except OSError:
        pass
if libc.ptrace(0, 0, 0, 0) == 0: found.append("PTRACE_TRACEME")
os.kill(child, 9); os.waitpid(child, 0)
"""


async def test_no_program_traces_another(attack) -> None:
    """Not even its own children (in a container, only those, by /proc), so that nothing of what the sandbox is made of can be steered."""
    async with attack() as trial:
        if trial.claims("seccomp"):
            shared = not trial.claims("isolated_root")  # a container's /proc can be written, for one's own
            assert await trial.inside(MEMORY, shared) == []


async def test_everything_inside_is_under_the_same_walls(attack) -> None:
    """What can be seen inside has no capability, gains none, and has the filter."""
    code = """
for pid in [entry for entry in os.listdir("/proc") if entry.isdigit()]:
    try:
        lines = dict(line.split(":\\t", 1) for line in open(f"/proc/{pid}/status").read().splitlines() if ":\\t" in line)
    except OSError:
        continue
    ok = all(int(lines[name], 16) == 0 for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
    if not (ok and lines["NoNewPrivs"] == "1" and lines["Seccomp"] == "2" and lines["TracerPid"] == "0"):
        found.append(lines)
"""
    async with attack() as trial:
        if trial.claims("seccomp") and trial.claims("pid_namespace"):
            assert await trial.inside(code) == []


ENVIRONMENTS = """
wanted = [text.encode() for text in given[0]]
for folder, folders, names in os.walk("/proc"):
    if folder.count("/") > 4:
        folders.clear()
    for name in names:
        if name in ("environ", "cmdline", "auxv", "maps", "comm", "stack", "limits", "mountinfo"):
            try:
                with open(f"{folder}/{name}", "rb") as file: content = file.read()
            except OSError:
                continue
            if name != "cmdline" or b"json.loads" not in content:
                found += [f"{folder}/{name}" for text in wanted if text in content]
found += [name for name in os.environ if name not in ("PATH", "LC_CTYPE")]
"""


async def test_the_applications_environment_is_not_recovered(attack, bystander) -> None:
    """What the application was started with, what it sets, and what its other children have, through all of /proc."""
    os.environ["LITTLEGHOST_ESCAPE"] = "hush-of-the-application"
    try:
        started = Path("/proc/self/environ").read_bytes().split(b"\0")
        values = {pair.partition(b"=")[2].decode("utf-8", "replace") for pair in started}
        # A value that anybody could have, such as /root, proves nothing.
        wanted = [value for value in values if len(value) > 30 and not value.startswith("/")]
        wanted += ["hush-of-the-application", "hush-bystander", "LITTLEGHOST_"]
        async with attack() as trial:
            if not trial.claims("hidden_environment"):
                return
            for options in ({}, {"environment": {"PWD": "/", "PATH": "/usr/bin:/bin"}}):
                found = await trial.inside(ENVIRONMENTS, wanted, **options)
                assert found in ([], ["PWD"])
    finally:
        del os.environ["LITTLEGHOST_ESCAPE"]


INJECT = """
import fcntl, termios
try:
    os.setsid()
except OSError:
    pass
for path in ["/dev/tty", "/dev/console", "/proc/self/fd/0", "/proc/self/fd/1", "/proc/1/fd/0", *given]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        continue
    for number, argument in ((termios.TIOCSCTTY, 1), (termios.TIOCSTI, b"x"), (0x541C, b"\\x02"), (0x5412 | 1 << 32, b"x")):
        try:
            fcntl.ioctl(fd, number, argument); found.append((path, number))
        except (OSError, OverflowError, ValueError):
            pass
for fd in (0, 1, 2):
    if os.isatty(fd): found.append(fd)
    try:
        fcntl.ioctl(fd, termios.TIOCSTI, b"x"); found.append(fd)
    except OSError:
        pass
primary, secondary = os.openpty()
for number in (termios.TIOCSTI, 0x541C):
    try:
        fcntl.ioctl(secondary, number, b"x"); found.append("own")
    except OSError:
        pass
"""
APPLICATION = """
import asyncio, json, os, sys
sys.path[:0] = json.loads(sys.argv[1])
import littleghost
kind, given = json.loads(sys.argv[4])
async def main():
    async with getattr(littleghost, kind)(sys.argv[2], writable=True, **given) as sandbox:
        for options in ({}, {"PWD": "/"}):
            code = "import os\\nfound=[]\\ngiven=[" + repr(os.ttyname(0)) + "]\\n" + sys.argv[3] + "\\nprint(found)"
            environment = {"PATH": "/usr/bin:/bin", **options}
            done = await sandbox.execute_program(["python3", "-I", "-c", code], timeout=30, environment=environment)
            print("INSIDE", done.stdout.strip(), done.stderr.strip(), flush=True)
asyncio.run(main())
"""


async def test_nothing_is_typed_into_the_applications_terminal(attack, backend) -> None:
    """TIOCSTI and TIOCLINUX on every terminal there is, from an application that has one (CVE-2017-5226, CVE-2023-28100)."""
    async with attack() as trial:
        if not (trial.claims("seccomp") and trial.claims("isolation")):
            return
    primary, secondary = pty.openpty()
    made = json.dumps([type(trial.sandbox).__name__, backend.options])
    command = [sys.executable, "-c", APPLICATION, json.dumps(sys.path), str(trial.root), INJECT, made]
    application = subprocess.Popen(
        command, stdin=secondary, stdout=secondary, stderr=secondary, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    said = b""
    while application.poll() is None or select.select([primary], [], [], 0)[0]:
        if select.select([primary], [], [], 0.1)[0]:
            said += os.read(primary, 4096)
    waiting = struct.unpack("i", fcntl.ioctl(secondary, termios.FIONREAD, b"\0" * 4))[0]
    for fd in (primary, secondary):
        os.close(fd)
    assert said.replace(b"\r\n", b"\n") == b"INSIDE [] \n" * 2, said
    assert waiting == 0, "something was typed"


async def test_a_program_has_no_terminal(attack) -> None:
    """On no backend: streams are pipes, and there is no controlling terminal to open."""
    code = """
found += [fd for fd in (0, 1, 2) if os.isatty(fd)]
try:
    found.append(os.open("/dev/tty", os.O_RDWR))
except OSError:
    pass
found += [1] if os.getsid(0) == 0 else []
"""
    async with attack() as trial:
        assert await trial.inside(code) == []


async def test_escape_sequences_in_output_are_data(attack, capfd) -> None:
    """They come back as they were printed, and nothing of them goes to the application's own streams."""
    hostile = "\x1b]0;title\x07\x1b[2J\x1b[1;1H\x1b]52;c;ZXZpbA==\x07\x1bP+q\x1b\\\x9b31m\r\x08\x00\u202eabc"
    async with attack() as trial:
        for options in ({}, {"environment": {"PWD": "/"}}):
            done = await trial.sandbox.execute(
                "cat; printf '\\033[31m' >&2", timeout=20, input=hostile, **options
            )
            assert (done.stdout, done.stderr) == (hostile, "\x1b[31m")
            missing = await trial.sandbox.execute_program(["\x1b[31m\n\r"], timeout=20, **options)
            assert missing.exit_code == 127
            assert "\x1b" not in (missing.error or "")
            assert "\n" not in (missing.error or "")
    assert capfd.readouterr() == ("", "")


async def test_a_fork_bomb_is_bounded_or_the_bound_is_refused(attack, bystander) -> None:
    """Meanwhile another command runs, but for a container, and afterwards there is nothing left of it."""
    bomb = "f() { f | f & }; f 2>/dev/null; sleep 1; echo over"
    try:
        async with attack(limits=SandboxLimits(processes=24)) as trial:
            assert "process_limit" in trial.sandbox.capabilities
            if not trial.claims("pid_namespace"):
                return  # what leaves its control groups is bounded by nothing, which is said
            going = asyncio.ensure_future(trial.sandbox.execute(bomb, timeout=30))
            for _ in range(3 if trial.claims("isolated_root") else 0):  # a container has one bound for all
                assert (await trial.sandbox.execute("echo on", timeout=20)).stdout == "on\n"
            assert not (await going).timed_out
            assert (await trial.sandbox.execute("echo on", timeout=20)).stdout == "on\n"
    except CapabilityError as error:
        if error.limit != "processes":
            raise
    async with attack() as trial:
        assert "process_limit" not in trial.sandbox.capabilities
        assert any(
            "process" in line and "not set" in line for line in trial.sandbox.effective_policy.not_enforced
        )


async def test_a_memory_bomb_is_bounded_or_the_bound_is_refused(attack) -> None:
    """In its own memory, in /tmp, in /dev/shm, in a file in memory, and in pipes."""
    kinds = {
        "own": "x = bytearray(400 << 20)",
        "children": "for _ in range(8):\n if not os.fork():\n  x = bytearray(50 << 20); import time; time.sleep(30)\nos.wait()\nos.abort()",
        "memfd": "f = os.memfd_create('x')\nfor _ in range(400): os.write(f, bytes(1 << 20))",
    }
    try:
        async with attack(limits=SandboxLimits(memory_bytes=64_000_000)) as trial:
            assert "memory_limit" in trial.sandbox.capabilities
            for name, code in kinds.items():
                done = await trial.sandbox.execute_program(
                    ["python3", "-I", "-S", "-c", f"import os\n{code}\nprint('had it')"], timeout=60
                )
                assert not done.success, name
                assert "had it" not in done.stdout, name
            assert (await trial.sandbox.execute("echo on", timeout=20)).stdout == "on\n"
    except CapabilityError as error:
        if error.limit != "memory_bytes":
            raise
    async with attack() as trial:
        assert any(
            "memory" in line and "not set" in line for line in trial.sandbox.effective_policy.not_enforced
        )


async def test_a_flood_of_output_is_kept_in_bounds(attack) -> None:
    """On both streams at once, without a line's end."""
    async with attack() as trial:
        command = "head -c 50000000 /dev/zero & head -c 50000000 /dev/zero >&2; wait"
        done = await trial.sandbox.execute(command, timeout=60, max_output_bytes=10_000)
        assert max(len(done.stdout), len(done.stderr)) < 11_000
        assert done.stdout_omitted > 49_000_000
