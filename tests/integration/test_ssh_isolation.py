"""Programs on another machine that are isolated there by its bubblewrap."""

from __future__ import annotations

import asyncio
import getpass
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from littleghost import CapabilityError, DependencyError, Sandbox, SandboxLimits, SSHSandbox
from littleghost.testing.conformance import Clause, ClauseSkipped
from littleghost.testing.sandbox_kit import offered, sandbox_clauses
from littleghost.workspace import Workspace

if sys.platform != "linux":
    pytest.skip("bubblewrap is for Linux", allow_module_level=True)

import sshd

WORDS = {"isolation", "isolated_root", "pid_namespace", "read_only_processes", "hidden_environment", "network_none", "seccomp"}  # fmt: skip
CLAUSES = [clause for clause in sandbox_clauses() if clause.needs & WORDS]


@pytest.fixture
def options(ssh_server, require) -> dict[str, Any]:
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    return {**ssh_server.options, "isolation": "bubblewrap"}


@pytest.fixture
def there(ssh_server, tmp_path: Path) -> str:
    root = ssh_server.folder / f"work-{tmp_path.name}"
    root.mkdir()
    root.chmod(0o777)
    return str(root)


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.name)
async def test_what_isolation_means_holds_over_there(options: dict[str, Any], clause: Clause) -> None:
    make: Callable[..., Sandbox] = lambda workspace, **given: sshd.Loopback(
        workspace, **{**options, "username": getpass.getuser()}, **given
    )
    known = offered(make(Workspace.temporary(), writable=True)) | {"seccomp"}  # which the machine tells later
    assert not clause.missing(known)
    try:
        await clause.run(make)
    except ClauseSkipped as reason:
        pytest.skip(str(reason))


def test_there_are_such_clauses() -> None:
    assert len(CLAUSES) >= 8


async def test_programs_are_isolated_and_files_are_the_same(options: dict[str, Any], there: str) -> None:
    async with SSHSandbox(there, writable=True, **options) as sandbox:
        await sandbox.write("file", "x")
        done = await sandbox.execute("pwd; cat file; touch made; ls /home", timeout=20)
        assert done.stdout == "/workspace\nx"
        assert await sandbox.list() == ["file", "made"]
        stated = sandbox.effective_policy
        assert (stated.network, stated.root_filesystem) == ("none", "isolated")
        assert {"isolation", "network_none", "seccomp"} <= sandbox.capabilities


async def test_programs_cannot_reach_the_worker(options: dict[str, Any], there: str) -> None:
    async with SSHSandbox(there, writable=True, **options) as sandbox:
        await sandbox.execute("kill -9 -1; kill -STOP -1", timeout=20)
        assert (await sandbox.execute("ls /proc | grep -c '^[0-9]'", timeout=20)).stdout.strip() in "12345"
        await sandbox.write("file", "still there")
        assert sandbox.is_open


async def test_a_scope_confines_programs_too(options: dict[str, Any], there: str) -> None:
    async with SSHSandbox(there, writable=True, **options) as sandbox:
        await sandbox.write("outer", "x")
        await sandbox.write("part/inner", "y")
        scope = sandbox.scope(path="part", read_only=True)
        assert "execute" in scope.capabilities
        done = await scope.execute("ls; touch made", timeout=20)
        assert done.stdout == "inner\n"
        assert not done.success


async def test_what_was_started_ends_with_the_connection(options: dict[str, Any], there: str) -> None:
    """A program of the sandbox is found by its name, for its number in there is another one."""
    name = f"sleeper-{Path(there).name}"
    async with SSHSandbox(there, writable=True, **options) as sandbox:
        running = asyncio.create_task(
            sandbox.execute(f"cp /bin/sleep {name}; (setsid ./{name} 1000 &); ./{name} 1000", timeout=100)
        )
        while len(named(name)) < 2:
            await asyncio.sleep(0.05)
        sandbox._connection.abort()
        with pytest.raises(ConnectionError):
            await running
    while named(name):
        await asyncio.sleep(0.05)


def named(name: str) -> list[Path]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == f"./{name}".encode():
            found.append(file)
    return found


async def test_what_that_machine_does_not_have_is_said(
    ssh_server, options: dict[str, Any], there: str
) -> None:
    bin_ = Path(there, "bin")
    bin_.mkdir()
    (bin_ / "python3").symlink_to("/usr/bin/python3")
    with ssh_server.account(f'command="PATH={bin_}; eval \\"$SSH_ORIGINAL_COMMAND\\""') as key:
        with pytest.raises(DependencyError, match="bubblewrap is not installed"):
            await SSHSandbox(there, **{**options, "client_keys": [str(key)]}).open()


async def test_a_home_directory_is_no_writable_workspace(
    ssh_server, options: dict[str, Any], require
) -> None:
    """Programs would write what the next login runs."""
    for root in (ssh_server.login_home, ssh_server.login_home.parent):
        with pytest.raises(CapabilityError, match="home directory"):
            await SSHSandbox(root, writable=True, **options).open()
    async with SSHSandbox(ssh_server.login_home, **options) as sandbox:
        assert not sandbox.writable


async def test_bounds_and_policies_of_an_isolated_one(options: dict[str, Any], there: str) -> None:
    limits = SandboxLimits(temporary_bytes=1 << 20)
    async with SSHSandbox(there, writable=True, limits=limits, **options) as sandbox:
        done = await sandbox.execute("head -c 4000000 /dev/zero > /tmp/x || echo full", timeout=20)
        assert done.stdout == "full\n"
    async with SSHSandbox(there, policy={"network": "inherit"}, **options) as sandbox:
        assert "network_none" not in sandbox.capabilities
        assert sandbox.effective_policy.network == "inherit"
    with pytest.raises(CapabilityError):
        await SSHSandbox(there, policy={"root_filesystem": "host"}, **options).open()
    with pytest.raises(ValueError, match="isolation"):
        SSHSandbox(there, **{**options, "isolation": "jail"})


async def test_a_worker_that_does_not_isolate_is_refused(
    options: dict[str, Any], there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of another version that does not know what it was asked for."""
    greeting = SSHSandbox._greeting
    monkeypatch.setattr(SSHSandbox, "_greeting", lambda self: {**greeting(self), "isolation": None})
    sandbox = SSHSandbox(there, **options)
    with pytest.raises(CapabilityError, match="does not isolate"):
        await sandbox.open()
    assert not sandbox.is_open


async def test_the_probe_of_isolation(
    options: dict[str, Any], there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = await SSHSandbox.probe(directory=there, **options)
    assert probe.available, probe.reason
    assert "read a file outside from a program" in {check.name for check in probe.checks if check.denial}
    greeting, plain = SSHSandbox._greeting, SSHSandbox("/x", host="x")._offers()
    # one that does not isolate, and says it does
    monkeypatch.setattr(SSHSandbox, "_greeting", lambda self: {**greeting(self), "isolation": None})
    monkeypatch.setattr(SSHSandbox, "_offers", lambda self: plain)
    probe = await SSHSandbox.probe(directory=there, **options)
    assert not probe.available
    assert "read a file outside from a program worked" in probe.reason
    assert list(Path(there).iterdir()) == []
