"""Ways to files, devices and knobs of the host."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

import pytest

ROADS = """
outside, secret = given
name = outside + "/secret"
os.symlink(name, "made-link")
roads = [name, "planted", "made-link", "planted-folder/secret", "../outside/secret", "/".join([".."] * 20) + name, "/oldroot" + name,
         "/newroot" + name, "/.oldroot" + name, "/proc/self/cwd/../outside/secret", "/dev/fd/../../.." + name]
for pid in [entry for entry in os.listdir("/proc") if entry.isdigit()] + ["self", "thread-self"]:
    roads += [f"/proc/{pid}/root{name}", f"/proc/{pid}/cwd{name}", f"/proc/{pid}/cwd/../outside/secret"]
    roads += [f"/proc/{pid}/task/{pid}/root{name}"]
    try:
        roads += [f"/proc/{pid}/fd/{fd}{name}" for fd in os.listdir(f"/proc/{pid}/fd")]
        roads += [f"/proc/{pid}/fd/{fd}/../outside/secret" for fd in os.listdir(f"/proc/{pid}/fd")]
        roads += [f"/proc/{pid}/map_files/{part}" for part in os.listdir(f"/proc/{pid}/map_files")]
    except OSError:
        pass
parts = name.strip("/").split("/")
for line in open("/proc/self/mountinfo"):
    roads += [line.split()[4].rstrip("/") + "/" + "/".join(parts[start:]) for start in range(len(parts))]
for road in roads:
    try:
        with open(road, "rb") as file:
            if secret.encode() in file.read(1000):
                found.append(road)
    except (OSError, ValueError):
        pass
for fd in range(3, 200):  # what was left open
    try:
        found.append(f"descriptor {fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
    except OSError:
        pass
for step in range(30):  # as chroot is left
    os.chdir("..")
if os.path.exists("." + name):
    found.append("by going up")
"""


async def test_a_file_of_the_host_is_reached_by_no_road(attack) -> None:
    """By links that the host or the program made, by /proc, by descriptors, by the roots of bubblewrap's own set-up, by going up."""

    def plant(root: Path, outside: Path) -> None:
        (root / "planted").symlink_to(outside / "secret")
        (root / "planted-folder").symlink_to(outside)

    async with attack(before=plant) as trial:
        if trial.claims("isolation"):
            assert await trial.inside(ROADS, str(trial.outside), trial.secret) == []


async def test_nothing_outside_is_written_through_what_is_planted(attack) -> None:
    """Links named as what a set-up could make or mount in the workspace, to the host by each of its names (CVE-2026-87766)."""
    names = ("workspace", "paths", "tmp", "proc", "dev", "etc", "usr", ".git", "in", "made", "newroot")

    def plant(root: Path, outside: Path) -> None:
        (root / "inner").mkdir()
        for folder in (root, root / "inner"):
            for number, name in enumerate(names):
                there = (f"/oldroot{outside}", str(outside), f"../outside/{name}")[number % 3]
                (folder / name).symlink_to(there)

    async with attack(before=plant, paths={"inner": "inner"}) as trial:
        if not trial.claims("isolation"):
            return
        for options in ({}, {"environment": {"PWD": "/"}}, {"cwd": "inner"}):
            done = await trial.sandbox.execute(
                "for n in * .git; do echo x > $n/made; mkdir $n/dir; done; true", timeout=20, **options
            )
            assert done.exit_code == 0, done
        assert sorted(os.listdir(trial.outside)) == ["secret"]
        assert (trial.outside / "secret").read_text() == trial.secret


KNOBS = (
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
    "/proc/irq/0/smp_affinity",
    "/proc/acpi/wakeup",
    "/proc/self/oom_score_adj",
    "/proc/self/uid_map",
    "/proc/1/mem",
    "/proc/1/oom_score_adj",
    "/proc/1/fd/2",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/unified/cgroup.procs",
    "/sys/fs/cgroup/memory/cgroup.procs",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/debug/x",
)
MEMORY = (
    "kcore",
    "kmem",
    "kmsg",
    "kpageflags",
    "kpagecount",
    "kpagecgroup",
    "slabinfo",
    "vmallocinfo",
    "pagetypeinfo",
    "timer_list",
    "keys",
)


async def test_no_knob_of_the_kernel_can_be_turned_and_its_memory_not_be_read(attack) -> None:
    """They are only opened, which changes nothing where it works."""
    code = """
knobs, memory, bare = given
for path in knobs:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK)); found.append(path)
    except OSError:
        pass
devices = "mem kmem port kmsg kvm fuse userfaultfd".split()
for path in ["/proc/" + name for name in memory] + ["/dev/" + name for name in devices]:
    try:
        found += [path] if os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1) else []  # a mask is empty
    except OSError:
        pass
try:
    found += [line for line in open("/proc/kallsyms") if not line.startswith("0" * 16)][:1]
except OSError:
    pass
found += os.listdir("/sys") if bare and os.path.exists("/sys") else []
"""
    async with attack() as trial:
        if not trial.claims("isolation"):
            return
        bare = trial.claims("isolated_root")  # a container has a /sys, and knobs of its own processes
        knobs = [path for path in KNOBS if bare or not path.startswith("/proc/self/")]
        assert await trial.inside(code, knobs, MEMORY, bare) == []


async def test_there_are_a_few_devices_and_none_can_be_made(attack, backend) -> None:
    """Neither in the workspace nor in /tmp; and one that the host has put into the workspace does not work."""

    def plant(root: Path, outside: Path) -> None:
        if os.geteuid() == 0:
            os.mknod(root / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
            os.chmod(root / "zero", 0o666)
            if backend.name == "container":  # files of another than root are mounted as they are
                os.chown(root, 1000, 1000)

    code = """
import stat
for folder in ("/workspace", "/tmp", "/dev", "/dev/shm"):
    for kind, number in ((stat.S_IFCHR, (1, 1)), (stat.S_IFCHR, (1, 3)), (stat.S_IFBLK, (8, 0)), (stat.S_IFBLK, (254, 0))):
        try:
            os.mknod(f"{folder}/node", 0o666 | kind, os.makedev(*number)); found.append(folder)
        except OSError:
            pass
try:
    os.open("zero", os.O_RDONLY); found.append("the planted one")
except OSError:
    pass
allowed = "core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero".split()
found += [name for name in os.listdir("/dev") if name not in allowed]
found += [name for name in os.listdir("/dev/pts") if name != "ptmx"]
try:
    os.open("/dev/tty", os.O_RDWR); found.append("a terminal")
except OSError:
    pass
"""
    async with attack(before=plant) as trial:
        if trial.claims("isolation"):
            assert await trial.inside(code) == []


async def test_what_is_the_hosts_keeps_its_mode_and_times(attack) -> None:
    """Where the application's user owns a file of the host that programs see, they could change its mode without writing it."""
    code = """
places = ["/usr", "/usr/bin/env", "/etc", "/etc/ld.so.cache", "/etc/alternatives", "/proc", "/dev", "/", sys.executable, *given]
places += ["/dev/" + name for name in os.listdir("/dev") if name not in ("pts", "shm", "ptmx", "core", "fd", "stdin", "stdout", "stderr")]
for pid in [entry for entry in os.listdir("/proc") if entry.isdigit()] + ["self"]:
    places += [f"/proc/{pid}/exe", f"/proc/{pid}/root"] + [f"/proc/{pid}/fd/{fd}" for fd in range(20)]
for path in places:
    changes = [lambda: os.chmod(path, os.stat(path).st_mode & 0o777), lambda: os.setxattr(path, "user.x", b"")]
    changes += [lambda: os.utime(path, ns=(os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns))]
    for change in changes:
        try:
            change()
        except OSError:
            continue
        if not (os.path.islink(path) and os.readlink(path).startswith(("pipe:", "/memfd:", "/workspace"))):
            found.append(path)
"""
    async with attack() as trial:
        if not trial.claims("isolation"):
            return
        binary = getattr(trial.sandbox, "_binary", None)
        before = [os.stat(path) for path in ("/dev/null", "/usr/bin/env", binary) if path]
        for options in ({}, {"environment": {"PWD": "/", "PATH": "/usr/bin:/bin"}}):
            assert await trial.inside(code, **options) == []
        after = [os.stat(path) for path in ("/dev/null", "/usr/bin/env", binary) if path]
        assert [(status.st_mode, status.st_ino) for status in before] == [
            (status.st_mode, status.st_ino) for status in after
        ]


HELD = """
import time
held = []
for pid in [entry for entry in os.listdir("/proc") if entry.isdigit()] + ["self"]:
    for flags in (os.O_RDONLY, os.O_PATH):
        try:
            held.append((os.readlink(f"/proc/{pid}/exe"), os.open(f"/proc/{pid}/exe", flags)))
        except OSError:
            pass
for _ in range(50):
    for name, fd in held:
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            try:
                os.open(f"/proc/self/fd/{fd}", flags); found.append(name)
            except OSError:
                pass
    time.sleep(0.002)
for path in ("/usr/bin/bwrap", "/usr/bin/env", "/bin/sh", sys.executable, "/usr/bin/python3", "/lib/x86_64-linux-gnu/libc.so.6", *given):
    try:
        os.open(path, os.O_WRONLY); found.append(path)
    except OSError:
        pass
"""


async def test_the_programs_that_make_the_sandbox_cannot_be_rewritten(attack, tmp_path: Path) -> None:
    """By /proc/PID/exe, held open until it is at rest, as runc's could (CVE-2019-5736), nor by a path. It is a copy that is tried."""
    kept = tmp_path / "kept"
    kept.mkdir()
    found = shutil.which("bwrap")
    async with attack() as probe:
        if not probe.claims("isolation"):
            return
        if "_binary" not in vars(probe.sandbox) or found is None:
            engine = [path for name in ("podman", "conmon", "runc") if (path := shutil.which(name))]
            whole = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in engine]
            assert await probe.inside(HELD, *engine) == []
            assert [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in engine] == whole
            return
    copy = kept / "bwrap"
    shutil.copy(found, copy)
    copy.chmod(0o755)
    before = (hashlib.sha256(copy.read_bytes()).hexdigest(), copy.stat().st_mode)
    async with attack(bubblewrap=copy) as trial:
        for options in ({}, {"environment": {"PWD": "/", "PATH": "/usr/bin:/bin"}}):
            assert await trial.inside(HELD, str(copy), **options) == []
    assert (hashlib.sha256(copy.read_bytes()).hexdigest(), copy.stat().st_mode) == before


async def test_a_setuid_file_of_the_host_gives_no_rights(attack) -> None:
    """Neither the system's nor one in the workspace."""

    def plant(root: Path, outside: Path) -> None:
        shutil.copy("/usr/bin/python3", root / "id")
        (root / "id").chmod(0o6755)

    async with attack(before=plant) as trial:
        if not trial.claims("isolation"):
            return
        tried = "for f in su mount passwd newgrp; do echo | $f >/dev/null 2>&1; done"
        ask = "-I -S -c 'import os; print(*os.getresuid(), *os.getresgid())'"
        done = await trial.sandbox.execute(
            f"./id {ask}; {tried}; id -u", timeout=20, environment={"PATH": "/usr/bin:/bin"}
        )
        assert len(done.stdout.split()) == 7, done
        assert len(set(done.stdout.split())) == 1, done
        assert done.stdout.split()[0] != "0"


ARCHIVES = """
import io, tarfile, zipfile
outside, = given
data = io.BytesIO()
with tarfile.open(fileobj=data, mode="w") as tar:
    def add(name, kind=tarfile.REGTYPE, link="", text=b"evil"):
        info = tarfile.TarInfo(name); info.type, info.linkname, info.mode = kind, link, 0o6777
        info.size = len(text) if kind == tarfile.REGTYPE else 0
        tar.addfile(info, io.BytesIO(text))
    add("up", tarfile.SYMTYPE, "../outside"); add("up/from-tar")
    add("far", tarfile.SYMTYPE, outside); add("far/from-tar")
    add("old", tarfile.SYMTYPE, "/oldroot" + outside); add("old/from-tar")
    add("../outside/from-tar"); add(outside + "/from-tar")
    add("hard", tarfile.LNKTYPE, "../outside/secret"); add("hard")
    add("null", tarfile.CHRTYPE)
packed = io.BytesIO()
with zipfile.ZipFile(packed, "w") as archive:
    link = zipfile.ZipInfo("zipped"); link.create_system, link.external_attr = 3, 0o120777 << 16
    archive.writestr(link, outside); archive.writestr("zipped/from-zip", "evil"); archive.writestr("../outside/from-zip", "evil")
data.seek(0)
with tarfile.open(fileobj=data) as tar:
    for member in tar.getmembers():
        try:
            tar.extract(member, ".", **({"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}))
        except (OSError, KeyError, tarfile.TarError):
            pass
packed.seek(0)
with zipfile.ZipFile(packed) as archive:
    for member in archive.infolist():
        try:
            archive.extract(member, ".")
        except OSError:
            pass
with open("evil.zip", "wb") as file: file.write(packed.getvalue())
with open("evil.tar", "wb") as file: file.write(data.getvalue())
os.system("tar -xPf evil.tar 2>/dev/null >&2; unzip -oq evil.zip 2>/dev/null >&2")
for folder, _, names in os.walk("."):
    found += [name for name in names if os.lstat(folder + "/" + name).st_mode & 0o6000]
"""


async def test_an_archive_unpacked_inside_reaches_nothing_outside(attack) -> None:
    """With links, hard links, absolute names, ``..``, devices and setuid bits in it."""
    async with attack() as trial:
        if not trial.claims("isolation"):
            return
        assert await trial.inside(ARCHIVES, str(trial.outside)) == []
        assert sorted(os.listdir(trial.outside)) == ["secret"]
        assert (trial.outside / "secret").read_text() == trial.secret
        # and what it left in the workspace leads the file methods nowhere
        for name in ("up/secret", "far/secret", "old/secret", "up/from-tar"):
            with pytest.raises(OSError):
                await trial.sandbox.read(name)
            with pytest.raises(OSError):
                await trial.sandbox.write(name, "x")


async def test_disks_are_filled_as_far_as_there_is_a_bound(attack) -> None:
    """/tmp and /dev/shm are bounded by themselves; the workspace is not, which is said, and a bound that is asked for is refused."""
    async with attack() as trial:
        stated = trial.sandbox.effective_policy.not_enforced
        assert any("disk" in line or "written to the workspace" in line for line in stated)
        if not trial.claims("isolation"):
            return
        code = """
for folder in ("/tmp", "/dev/shm"):
    total = 0
    try:
        with open(folder + "/big", "wb", buffering=0) as file:
            for _ in range(100): total += file.write(bytes(1 << 20))
    except OSError:
        pass
    found.append(total)
for folder in ("/", "/etc", "/dev", "/proc", "/proc/1", "/usr", "/var"):
    try:
        open(folder + "/x", "w"); found.append(folder)
    except OSError:
        pass
"""
        assert await trial.inside(code) == [64 << 20, 64 << 20]
