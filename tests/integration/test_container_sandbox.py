"""A container by podman: who programs are, what is refused, what the engine must not ignore, and what is left when something is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from littleghost.errors import CapabilityError, ConfigurationError, ToolConnectionError, ToolError
from littleghost.sandboxes import idmapped
from littleghost.sandboxes.container import ContainerSandbox
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.engines import OWNER, is_left_behind, labels
from littleghost.testing.sandbox_trial import daemon, silent
from littleghost.workspace import Workspace

if TYPE_CHECKING:
    from containers import Containers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux's"),
    pytest.mark.xdist_group("sandboxes"),  # some of those count the supervisors of the whole machine
]


@pytest.fixture
def make(podman: Containers, tmp_path: Path) -> Any:
    def make(workspace: Any = None, **options: Any) -> ContainerSandbox:
        options = {"image": podman.image, "engine": "podman", "writable": True, **options}
        return ContainerSandbox(tmp_path / "root" if workspace is None else workspace, **options)

    return make


def running(podman: Containers) -> list[str]:
    return podman.podman("ps", "--all", "--format", "{{.Names}}").split()


def as_root() -> bool:
    return os.geteuid() == 0


async def gone(podman: Containers, name: str) -> None:
    end = time.monotonic() + 30
    while name in running(podman):
        assert time.monotonic() < end, f"{name} is still there"
        await asyncio.sleep(0.1)


# Who programs are


@pytest.mark.skipif(not as_root(), reason="for root only")
async def test_roots_files_are_worked_on_by_a_user_who_is_not_root(
    make: Any, podman: Containers, tmp_path: Path
) -> None:
    async with make() as sandbox:
        done = await sandbox.execute("id -u; echo x > by-program; stat -c %u by-program", timeout=20)
        await sandbox.write("by-file-method", "text")
        worker = podman.podman("inspect", "--format", "{{.State.Pid}}", sandbox.container).strip()
        inside = os.readlink(f"/proc/{worker}/ns/pid")
        uids = [_uid(pid) for pid in os.listdir("/proc") if pid.isdigit() and _namespace(pid) == inside]
        assert "not root" in sandbox.effective_policy.processes
    assert done.stdout == "65532\n65532\n"
    assert len(uids) >= 3  # the worker, the supervisor and a keeper
    assert set(uids) == {65532}
    assert {(tmp_path / "root" / name).stat().st_uid for name in ("by-program", "by-file-method")} == {0}
    assert not [name for name in os.listdir("/run") if name.startswith(f"littleghost_{os.getpid()}_")]


def _namespace(pid: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def _uid(pid: str) -> int:
    return int(re.search(r"^Uid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])


@pytest.mark.skipif(not as_root(), reason="for root only")
async def test_the_owner_of_the_workspace_works_on_it(make: Any, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    os.chown(root, 1234, 4321)
    tmp_path.chmod(0o755)
    async with make() as sandbox:
        done = await sandbox.execute("id -u; id -g; echo x > made", timeout=20)
    assert done.stdout == "1234\n4321\n"
    assert (root / "made").stat().st_uid == 1234


@pytest.mark.skipif(not as_root(), reason="for root only")
async def test_a_user_who_may_not_write_is_found_when_the_sandbox_opens(make: Any) -> None:
    with pytest.raises(CapabilityError, match=r"user 4444 may not write the workspace"):
        await make(user=4444).open()


@pytest.mark.skipif(not as_root(), reason="for root only")
async def test_where_roots_files_cannot_be_lent_it_is_said_what_to_do(
    make: Any, podman: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idmapped, "_IDMAP", 1 << 40)  # which no kernel knows
    with pytest.raises(CapabilityError, match=r"belongs to root.*chown.*user="):
        await make().open()
    assert running(podman) == []


@pytest.mark.parametrize("user", [0, "0", "0:0", "1000:0", "root", "", "-1", "1:2:3"])
def test_nobody_is_root(make: Any, user: object) -> None:
    with pytest.raises(ConfigurationError, match=r"user|root"):
        make(user=user)


# What is refused, and in which words


async def test_what_is_missing_is_said_with_what_to_do(make: Any, podman: Containers, tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"image": "localhost/none:1"}, r"none is fetched unasked.*podman pull localhost/none:1"),
        ({"image": podman.bare}, r"has no python3.*python="),
        ({"engine": "/nowhere/podman"}, r"/nowhere/podman was not found; install podman"),
        ({"policy": {"root_filesystem": "host"}}, r"isolated root only"),
        ({"limits": SandboxLimits(disk_bytes=1)}, r"disk_bytes"),
        ({"limits": SandboxLimits(memory_bytes=8_000_000)}, r"memory_bytes"),
        ({"limits": SandboxLimits(memory_bytes=1_000_000)}, r"memory_bytes is less than a container takes"),
        ({"workspace": tmp_path / "a,b", "user": 4444}, r"comma"),
        ({"workspace": Path(sys.prefix)}, r"LittleGhost runs in"),
        (
            {"workspace": Workspace(tmp_path / "r", {"in": "in"}), "policy": {"paths": {"in": "read_only"}}},
            "inside",
        ),
    ]
    for options, words in wrong:
        with pytest.raises(CapabilityError, match=words):
            await make(**options).open()
    assert running(podman) == []


async def test_an_old_python_is_told(make: Any, podman: Containers) -> None:
    """By the same lines, made to ask for a newer one than there is."""
    from littleghost.sandboxes.far import guest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guest, "_LEAST", (4, 0))
        with pytest.raises(CapabilityError, match=r"has Python 3\.\d+, and 4\.0 or newer is needed"):
            await make().open()


@pytest.mark.skipif(shutil.which("docker") is None, reason="there is no docker command")
async def test_a_daemon_that_does_not_run_is_told(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(CapabilityError, match="daemon does not run"):
        await make(engine="docker").open()


# An engine that ignores an option


@pytest.mark.parametrize(
    ("dropped", "limits", "words"),
    [
        ("--memory", {"memory_bytes": 100_000_000}, "limit memory_bytes"),
        ("--pids-limit", {"processes": 20}, "limit processes"),
        ("--cap-drop", {}, "have capabilities|may gain rights"),
        ("--read-only", {}, "the image is writable"),
        ("--tmpfs", {"temporary_bytes": 1_000_000}, "temporary_bytes|/tmp"),
    ],
)
async def test_what_the_engine_ignores_makes_opening_fail(
    make: Any, podman: Containers, tmp_path: Path, dropped: str, limits: dict[str, int], words: str
) -> None:
    engine = tmp_path / "podman"
    engine.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import os, sys
        given, kept = sys.argv[1:], []
        while given:
            option = given.pop(0)
            if option == {dropped!r} or (option == "--memory-swap" and {dropped!r} == "--memory"):
                if option != "--read-only":
                    given.pop(0)
            else:
                kept.append(option)
        os.execv({shutil.which("podman")!r}, ["podman", *kept])
        """)
    )
    engine.chmod(0o755)
    with pytest.raises(CapabilityError, match=words):
        await make(engine=engine, limits=SandboxLimits(**limits)).open()
    assert running(podman) == []


async def test_a_workspace_that_was_exchanged_before_it_was_mounted_is_refused(
    make: Any, tmp_path: Path
) -> None:
    """The engine mounts by path; what it took is compared with what was opened."""
    other = tmp_path / "other"
    other.mkdir()
    sandbox = make(user=4444)
    seen = sandbox._sources

    def exchanged(release: Any) -> Any:
        user, _ = seen(release)
        return user, {None: str(other)}

    sandbox._sources = exchanged
    with pytest.raises(CapabilityError, match="another directory inside"):
        await sandbox.open()


# Limits, and what happens when they are met


async def test_what_needs_too_much_memory_is_killed_and_the_sandbox_goes_on(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    async with make(limits=SandboxLimits(memory_bytes=80_000_000)) as sandbox:
        assert "memory_limit" in sandbox.capabilities
        grow = ["python3", "-S", "-c", "x = bytearray(200_000_000)"]
        for _ in range(3):
            done = await sandbox.execute_program(grow, timeout=60)
            assert (done.exit_code, done.error) == (137, "killed because it used up its memory")
        score = await sandbox.execute("cat /proc/self/oom_score_adj /proc/1/oom_score_adj", timeout=20)
        assert score.stdout.split()[0] == "1000"
        assert (await sandbox.execute("echo works", timeout=20)).stdout == "works\n"
        with pytest.raises(CapabilityError, match="as a whole"):
            sandbox.scope(limits=SandboxLimits(memory_bytes=1))
    assert os.listdir() == []  # podman's monitor leaves a file called oom where it was started


async def test_a_bomb_leaves_the_sandbox_usable(make: Any) -> None:
    async with make(limits=SandboxLimits(processes=30)) as sandbox:
        done = await sandbox.execute("f() { f | f & }; f 2>/dev/null; sleep 1; echo over", timeout=30)
        assert not done.timed_out
        await sandbox.write("file", "text")
        assert (await sandbox.execute("cat file", timeout=20)).stdout == "text"


async def test_temporary_files_are_bounded(make: Any) -> None:
    async with make(limits=SandboxLimits(temporary_bytes=1_000_000)) as sandbox:
        for place in ("/tmp", "/dev/shm"):
            done = await sandbox.execute(
                f"head -c 3000000 /dev/zero > {place}/big; wc -c < {place}/big", timeout=20
            )
            assert 0 < int(done.stdout) <= 1_004_096


# Hostile programs


# Kills the supervisor and the keepers, so that nobody is left who knows of the rest.
WATCHERS = r"""for p in /proc/[0-9]*; do
case "$(tr '\\0' ' ' < $p/cmdline)" in *supervisor.py*) kill -KILL ${p#/proc/};; esac; done 2>/dev/null"""


@pytest.mark.parametrize("how", ["-INT", "-TERM", "-STOP", "-KILL", "watchers"])
async def test_a_program_that_kills_all_it_can_is_survived(make: Any, tmp_path: Path, how: str) -> None:
    """Its daemon is not: not even where nobody is left to find it but the first process."""
    ticks = tmp_path / "root" / "ticks"
    killing = WATCHERS if how == "watchers" else f"kill {how} 1; kill {how} -1"
    async with make() as sandbox:
        script = f"{daemon('ticks')}; while [ ! -s ticks ]; do sleep 0.05; done; {killing}; sleep 30"
        done = await sandbox.execute(script, timeout=2)
        assert not done.success
        again = await sandbox.execute("echo works", timeout=60)
        assert again.stdout == "works\n"
        await silent(ticks, what=how)


async def test_secrets_are_nowhere_but_with_the_program(make: Any, podman: Containers) -> None:
    secret, other = "policy-secret-7", "command-secret-8"
    async with make(policy={"environment": {"TOKEN": secret}}) as sandbox:
        async with await sandbox.start_program(
            ["sh", "-c", "echo $TOKEN $OTHER; cat"], environment={"OTHER": other}
        ) as process:
            assert (await process.read()).decode().split() == [secret, other]
            told = podman.podman("inspect", sandbox.container)
            told += "".join(
                Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
                for pid in os.listdir("/proc")
                if pid.isdigit() and os.path.exists(f"/proc/{pid}/cmdline")
            )
            assert secret not in told
            assert other not in told
            worker = await sandbox.execute("cat /proc/1/environ /proc/1/maps; true", timeout=20)
            assert worker.stdout == ""
        assert (
            json.loads(podman.podman("inspect", sandbox.container))[0]["HostConfig"]["LogConfig"]["Type"]
            == "none"
        )
    assert secret not in repr(sandbox.policy)


# Ends


async def test_nothing_is_left_of_a_sandbox_that_could_not_wait(
    make: Any, podman: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun = asyncio.create_subprocess_exec, asyncio.Event()

    async def started(*arguments: str, **options: Any) -> Any:
        process = await start(*arguments, **options)
        if "run" in arguments:
            begun.set()
            await asyncio.sleep(0.3)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    for pause in (
        0.0,
        0.4,
        0.8,
    ):  # while the client starts, while the worker does, and about when it is there
        begun.clear()
        opening = asyncio.ensure_future(make().open())
        await begun.wait()
        await asyncio.sleep(pause)
        opening.cancel()
        result = (await asyncio.gather(opening, return_exceptions=True))[0]
        if isinstance(result, ContainerSandbox):
            await result.close()
        assert running(podman) == [], pause


async def test_the_end_of_the_client_ends_the_container(
    make: Any, podman: Containers, tmp_path: Path
) -> None:
    sandbox = await make().open()
    process = await sandbox.start_program(["sh", "-c", f"{daemon('ticks')}; echo ready; sleep 100"])
    assert await process.read() == b"ready\n"
    while not (tmp_path / "root" / "ticks").exists():
        await asyncio.sleep(0.05)
    name = sandbox.container
    os.kill(sandbox._client.pid, signal.SIGKILL)
    with pytest.raises(ToolConnectionError, match="client of the container engine was killed"):
        await sandbox.execute("sleep 100", timeout=60)
    await gone(podman, name)
    await silent(tmp_path / "root" / "ticks", what="the client's end")
    await process.close()
    await sandbox.close()
    with pytest.raises(ToolError, match="closed"):
        await sandbox.read("ticks")
    async with sandbox:
        assert (await sandbox.execute("echo again", timeout=20)).stdout == "again\n"


APPLICATION = """
import asyncio, sys
from littleghost.sandboxes.container import ContainerSandbox
from littleghost.testing.sandbox_trial import daemon
async def main():
    sandbox = await ContainerSandbox(sys.argv[1], image=sys.argv[2], engine="podman", writable=True).open()
    asyncio.ensure_future(sandbox.execute(daemon("ticks") + "; sleep 1000", timeout=None))
    while True:
        try:
            await sandbox.read("ticks")
            break
        except FileNotFoundError:
            await asyncio.sleep(0.05)
    print(sandbox.container, sandbox._client.pid, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("also_the_client", [False, True], ids=["application", "application-and-client"])
async def test_the_end_of_the_application_ends_the_container(
    podman: Containers, tmp_path: Path, also_the_client: bool
) -> None:
    root = tmp_path / "root"
    application = await asyncio.create_subprocess_exec(
        sys.executable, "-c", APPLICATION, str(root), podman.image, stdout=subprocess.PIPE
    )
    try:
        name, client = (await application.stdout.readline()).decode().split()
        assert name in running(podman)
        await ContainerSandbox.reap("podman")
        assert name in running(podman), "the container of a living application was removed"
    finally:
        application.kill()
    if also_the_client:
        os.kill(int(client), signal.SIGKILL)
    await application.wait()
    await gone(podman, name)
    await silent(root / "ticks", what="the application's end")


async def test_what_dead_owners_left_is_removed_and_nothing_else(make: Any, podman: Containers) -> None:
    owner = labels()[OWNER]
    pid, started, namespace, boot = owner.split(":")
    dead = subprocess.Popen(["true"])
    dead.wait()
    owners = {
        "dead": f"{dead.pid}:1:{namespace}:{boot}",
        "again": f"{pid}:{int(started) - 1}:{namespace}:{boot}",  # another process has the number now
        "alive": owner,
        "other-boot": f"{dead.pid}:1:{namespace}:{boot[::-1]}",
        "other-namespace": f"{dead.pid}:1:1:{boot}",
        "nonsense": "x",
    }
    try:
        for name, label in owners.items():
            podman.podman(
                "run", "--detach", "--pull=never", "--name", name, "--label", f"{OWNER}={label}", "--ulimit", "nofile=1024:1024",
                "--ulimit", "nproc=1024:1024", "--entrypoint", "sleep", podman.image, "1000",
            )  # fmt: skip
        ContainerSandbox._reaped.clear()
        async with make() as sandbox:
            assert set(running(podman)) == {
                "alive",
                "other-boot",
                "other-namespace",
                "nonsense",
                sandbox.container,
            }
        assert await ContainerSandbox.reap("podman") == []
    finally:
        podman.podman("rm", "--all", "--force", "--time", "0")


@pytest.mark.skipif(not as_root(), reason="for root only")
async def test_a_mount_that_a_dead_owner_left_is_taken_away_and_its_files_stay(
    podman: Containers, tmp_path: Path
) -> None:
    """An application can be killed in the moment between mounting for the engine and unmounting."""
    _, _, namespace, boot = labels()[OWNER].split(":")
    dead = subprocess.Popen(["true"])
    dead.wait()
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("text")
    places = [
        Path("/run", "_".join(["littleghost", *owner, "x"]))
        for owner in (
            (str(dead.pid), "1", namespace, boot),
            (str(os.getpid()), *labels()[OWNER].split(":")[1:]),
        )
    ]
    for place in places:
        (place / "0").mkdir(parents=True)
        directory = os.open(root, os.O_RDONLY)
        idmapped.attach(directory, str(place / "0"), 65532, name="it")
        os.close(directory)
        assert (place / "0" / "file").stat().st_uid == 65532
    try:
        await ContainerSandbox.reap("podman")
        assert [place.exists() for place in places] == [False, True]
    finally:
        idmapped.detach(str(places[1] / "0"))
        places[1].rmdir()
    assert (root / "file").read_text() == "text"


@pytest.mark.parametrize("label", ["", "1", "a:b:c:d", "1:2:3", "1:?:3:4", "١:2:3:4", "1:2:3:4:5"])
def test_a_label_that_says_nothing_is_nobodys(label: str) -> None:
    assert not is_left_behind(label)


# The probe


async def test_the_probe_tries_what_must_fail(podman: Containers) -> None:
    probe = await ContainerSandbox.probe(image=podman.image, engine="podman")
    assert probe.available, probe.reason
    assert sum(check.denial for check in probe.checks) >= 18
    assert "podman" in probe.version
    for options in ({"image": "localhost/none:1"}, {"image": podman.bare}, {}):
        failed = await ContainerSandbox.probe(engine="podman", **options)
        assert not failed.available
        assert failed.reason
    assert not (await ContainerSandbox.probe(image=podman.image, engine="/nowhere")).available


async def test_the_probe_is_not_fooled(podman: Containers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the filter, a setuid file, a namespace and a socket can be made; the probe says which."""
    greeting = ContainerSandbox._greeting
    monkeypatch.setattr(
        ContainerSandbox,
        "_greeting",
        lambda self: {name: value for name, value in greeting(self).items() if name != "network"},
    )
    probe = await ContainerSandbox.probe(image=podman.image, engine="podman")
    assert not probe.available
    assert "make a setuid file worked" in probe.reason
    assert "make a socket for socket files worked" in probe.reason
