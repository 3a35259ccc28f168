"""Ways into the rarely tested parts of the kernel, and to new namespaces."""

from __future__ import annotations

import platform

import pytest

CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(4096)
at = ctypes.addressof(buffer)
for name, number, *arguments in given[0]:
    ctypes.set_errno(0)
    result = libc.syscall(number, *[ctypes.c_long(at if argument == "at" else argument) for argument in arguments])
    found.append((name, result, errno.errorcode.get(ctypes.get_errno(), "")))
"""
NEW = {
    "user": 0x10000000,
    "mount": 0x20000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
}


def numbers() -> list[tuple[object, ...]]:
    from littleghost.sandboxes.seccomp import _CALLS

    index = 0 if platform.machine() == "x86_64" else 1
    # -1 everywhere, so that nothing happens where a call is let through
    listed = [
        (name, pair[index], -1, -1, -1, -1, -1) for name, pair in _CALLS.items() if pair[index] is not None
    ]
    unshare = _CALLS["unshare"][index]
    return listed + [(f"unshare {kind}", unshare, flag) for kind, flag in NEW.items()]


async def test_no_call_of_the_list_is_let_through(attack) -> None:
    """Each is made for real: io_uring, keyctl, userfaultfd, bpf, ptrace, mounts, namespaces and the rest."""
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("the filter is not written for this architecture, and says so")
    async with attack() as trial:
        if not trial.claims("seccomp"):
            return
        for options in ({}, {"environment": {"PWD": "/", "PATH": "/usr/bin:/bin"}}):
            found = await trial.inside(CALLS, numbers(), **options)
            assert len(found) > 55
            assert {(result, name) for _, result, name in found} == {(-1, "EPERM")}, found


async def test_the_other_roads_to_a_namespace_are_closed(attack) -> None:
    """clone with each flag, clone3 and openat2, which a filter cannot look into, and what is newer than the filter."""
    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip("the filter is not written for this architecture, and says so")
    clone = 56 if platform.machine() == "x86_64" else 220
    calls = [(f"clone {kind}", clone, flag | 17, 0, 0, 0, 0) for kind, flag in NEW.items()]
    calls += [("clone high bits", clone, NEW["user"] | 17 | 1 << 40, 0, 0, 0, 0)]
    hidden = [
        ("clone3", 435, "at", 88),
        ("openat2", 437, -100, "at", "at", 24),
        ("newer", 470, 0),
        ("newer", 999, 0),
    ]
    async with attack() as trial:
        if not trial.claims("seccomp"):
            return
        found = await trial.inside(CALLS, calls)
        assert {(result, name) for _, result, name in found} == {(-1, "EPERM")}, found
        found = await trial.inside(CALLS, hidden)
        assert {(result, name) for _, result, name in found} == {(-1, "ENOSYS")}, found
        done = await trial.sandbox.execute(
            "for f in U m p n C u i; do unshare -$f true && echo $f; done 2>/dev/null; unshare -Ur id; true",
            timeout=20,
        )
        assert done.stdout == ""


async def test_what_can_only_be_refused_by_the_kernel_itself_is(attack) -> None:
    """Without the filter's help: mounts, raw sockets, clocks, host names, limits above the hard one, locked memory, priorities."""
    code = """
import ctypes, resource, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, attempt):
    try:
        if attempt() != -1: found.append(name)
    except (OSError, ValueError):
        pass
tried("hostname", lambda: socket.sethostname("x"))
tried("time", lambda: time.clock_settime(time.CLOCK_REALTIME, 0))
tried("limit", lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1] + 1,) * 2))
tried("nice", lambda: os.nice(-5))
tried("realtime", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
tried("chroot", lambda: os.chroot("/tmp"))
tried("setuid", lambda: os.setuid(0))
tried("setgroups", lambda: os.setgroups([0]))
tried("chown", lambda: os.chown("/tmp", 0, 0))
tried("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
tried("umount", lambda: libc.umount2(b"/proc/1", 2))
tried("umount", lambda: libc.umount2(b"/workspace/.git", 2))
for ns in ("user", "mnt", "pid", "net"):
    for pid in ("1", "self"):
        tried("setns", lambda: libc.setns(os.open(f"/proc/{pid}/ns/{ns}", os.O_RDONLY), 0))
"""
    async with attack() as trial:
        if trial.claims("isolation"):
            assert await trial.inside(code) == []


# What they do: getpid by the 32-bit entry (20 there), and by the x32 number (39).
FOREIGN = """
import ctypes, mmap
if given[0] == "x32":
    ctypes.CDLL(None).syscall(0x40000000 | 39)
else:
    code = b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("went through", flush=True)
os._exit(0)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are the second entries of x86-64")
@pytest.mark.parametrize("kind", ["x32", "32-bit"])
async def test_the_second_entries_to_the_kernel_end_the_program(attack, kind: str) -> None:
    """Their numbers are others, and a filter that only knew the first would let everything through."""
    async with attack() as trial:
        if not trial.claims("seccomp"):
            return
        code = f"import os\ngiven = [{kind!r}]\n{FOREIGN}"
        done = await trial.sandbox.execute_program(["python3", "-I", "-S", "-c", code], timeout=20)
        assert done.exit_code in (128 + 31, 128 + 11), (
            done
        )  # SIGSYS; SIGSEGV where the kernel has no such entry
        assert "went through" not in done.stdout
