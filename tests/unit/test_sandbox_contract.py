from __future__ import annotations

import asyncio
import inspect
import sys
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost.errors import (
    CapabilityError,
    ConfigurationError,
    PolicyError,
    ToolError,
    ToolValueError,
    UnsupportedError,
)
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.contract import Execution, Sandbox, SandboxLimits
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.native import native_sandbox
from littleghost.sandboxes.policy import EffectivePolicy, Policy
from littleghost.sandboxes.remote import RemoteSandbox
from littleghost.sandboxes.ssh import SSHSandbox
from littleghost.testing.sandbox_kit import check_sandbox, offered
from littleghost.workspace import Workspace

CONTEXT_ONLY = {
    "read": ["path", "context", "offset", "limit"],
    "list": ["path", "context"],
    "write": ["path", "content", "context"],
    "replace": ["path", "old_text", "new_text", "context"],
    "read_bytes": ["path", "context", "offset", "limit"],
    "write_bytes": ["path", "content", "context"],
    "stat": ["path", "context"],
    "delete": ["path", "context"],
    "move": ["path", "target", "context"],
    "make_directory": ["path", "context"],
    "glob": ["pattern", "path", "hidden", "limit", "context"],
    "grep": ["pattern", "path", "glob", "hidden", "limit", "context"],
}


def test_the_signatures_are_those_of_the_contract() -> None:
    for name, parameters in CONTEXT_ONLY.items():
        assert list(inspect.signature(getattr(Sandbox, name)).parameters)[1:] == parameters
    run = inspect.signature(Sandbox.execute_program).parameters
    assert list(run)[1:] == [
        "command", "timeout", "context", "max_output_bytes", "environment", "inherit_environment", "input", "cwd",
    ]  # fmt: skip
    assert run["max_output_bytes"].default == 1_000_000
    assert run["timeout"].default is inspect.Parameter.empty
    for kind in (HostSandbox, BubblewrapSandbox):
        for name in (*CONTEXT_ONLY, "execute_program", "execute", "scope", "open", "close"):
            ours = inspect.signature(getattr(kind, name)).parameters
            assert list(ours) == list(inspect.signature(getattr(Sandbox, name)).parameters)


async def test_a_sandbox_offers_what_it_overrides(tmp_path: Path) -> None:
    class Echo(Sandbox):
        async def execute_program(
            self, command, *, timeout, context=None, max_output_bytes=1_000_000, **options
        ):
            return Execution(stdout=repr((command, timeout, max_output_bytes, options)), exit_code=0)

    async with Echo(tmp_path / "root") as sandbox:
        assert sandbox.workspace.is_open
        done = await sandbox.execute("a | b", timeout=3, cwd="x")
        assert done.stdout == repr((["/bin/sh", "-c", "a | b"], 3, 1_000_000, {"cwd": "x"}))
        assert done.success
        for attempt in (
            sandbox.read("x"), sandbox.list(), sandbox.write("x", "y"), sandbox.replace("x", "a", "b"),
            sandbox.read_bytes("x"), sandbox.write_bytes("x", b""), sandbox.stat("x"), sandbox.delete("x"),
            sandbox.move("x", "y"), sandbox.make_directory("x"), sandbox.glob("*"), sandbox.grep("x"),
            sandbox.start_program(["x"]),
        ):  # fmt: skip
            with pytest.raises(UnsupportedError, match="Echo does not support"):
                await attempt
        with pytest.raises(UnsupportedError):
            sandbox.scope()
        assert not sandbox.writable
        assert sandbox.effective_policy == EffectivePolicy(root="read_only")
        assert offered(sandbox) == {"execute"}
    assert not sandbox.workspace.is_open
    assert not (await Echo.probe()).available


async def test_a_users_own_sandbox_passes_the_kit_with_three_lines(tmp_path: Path) -> None:
    report = await check_sandbox(lambda workspace, **options: MemorySandbox(workspace, **options))
    report.raise_for_failures()
    assert report.ok
    assert len(report.passed) >= 12
    assert {outcome.reason for outcome in report.skipped} >= {"needs execute", "needs bytes"}


class MemorySandbox(Sandbox):
    """What a user might write: a dictionary, and no programs."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.files: dict[tuple[str, ...], str] = {}

    def _at(self, path):
        from littleghost.errors import ToolIsADirectoryError

        name, components = self.workspace.resolve(path)
        assert name is None
        if (
            not components
            or path.endswith(("/", "/."))
            or any(key[: len(components)] == components != key for key in self.files)
        ):
            raise ToolIsADirectoryError(f"{path}: is a directory")
        return components

    async def read(self, path, *, context=None):
        from littleghost.errors import ToolFileNotFoundError, ToolValueError

        try:
            text = self.files[self._at(path)]
        except KeyError:
            raise ToolFileNotFoundError(f"{path}: no such file") from None
        if len(text.encode()) > self.limits.read_bytes:
            raise ToolValueError(f"{path}: too large")
        return text

    async def list(self, path=".", *, context=None):
        from littleghost.errors import ToolFileNotFoundError, ToolNotADirectoryError, ToolValueError

        _, components = self.workspace.resolve(path)
        size = len(components)
        below = {key[size:] for key in self.files if key[:size] == components and key != components}
        if components in self.files:
            raise ToolNotADirectoryError(f"{path}: not a directory")
        if components and not below:
            raise ToolFileNotFoundError(f"{path}: no such directory")
        names = sorted({key[0] + ("/" if len(key) > 1 else "") for key in below})
        if len(names) > self.limits.list_entries:
            raise ToolValueError(f"{path}: too many")
        return names

    async def write(self, path, content, *, context=None):
        from littleghost.errors import (
            ToolNotADirectoryError,
            ToolPermissionError,
            ToolUnicodeError,
            ToolValueError,
        )

        key = self._at(path)
        if not self.writable:
            raise ToolPermissionError(f"{path}: read-only")
        if any(key[:size] in self.files for size in range(1, len(key))):
            raise ToolNotADirectoryError(f"{path}: not a directory")
        try:
            size = len(content.encode())
        except UnicodeEncodeError as error:
            raise ToolUnicodeError("no text") from error
        if size > self.limits.write_bytes:
            raise ToolValueError(f"{path}: too large")
        self.files[key] = content

    async def replace(self, path, old_text, new_text, *, context=None):
        from littleghost.errors import ToolPermissionError, ToolValueError

        if not self.writable:
            raise ToolPermissionError(f"{path}: read-only")
        text = await self.read(path)
        at = text.find(old_text)
        if not old_text or at < 0 or text.find(old_text, at + 1) >= 0:
            raise ToolValueError("not exactly once")
        await self.write(path, text[:at] + new_text + text[at + len(old_text) :])


def test_an_execution_succeeds_by_its_code_and_its_error() -> None:
    assert Execution(stdout="", stderr="", exit_code=0).success
    assert not Execution(stdout="", stderr="", exit_code=1).success
    assert not Execution(stdout="", stderr="", exit_code=None).success
    assert not Execution(stdout="", stderr="", exit_code=0, error="no").success
    with pytest.raises(AttributeError):
        Execution(exit_code=0).exit_code = 1
    assert msgspec.json.decode(msgspec.json.encode(Execution(exit_code=3)), type=Execution).exit_code == 3


@pytest.mark.parametrize(
    "limits",
    [
        {"read_bytes": -1},
        {"read_bytes": 10.5},
        {"output_bytes": float("inf")},
        {"list_entries": True},
        {"memory_bytes": "1G"},
        {"list_entries": None},
        {"temporary_bytes": 0},
        {"temporary_bytes": 1e6},
        {"temporary_bytes": 2**63},
        {"wall_seconds": float("nan")},
        {"wall_seconds": float("inf")},
        {"wall_seconds": 0},
        {"cpu_seconds": True},
    ],
)
def test_limits_are_numbers(limits) -> None:
    with pytest.raises(ConfigurationError, match=f"the limit {next(iter(limits))} must be"):
        SandboxLimits(**limits)
    SandboxLimits(wall_seconds=0.5, temporary_bytes=1, read_bytes=0)


@pytest.mark.parametrize(
    "make",
    [
        HostSandbox,
        BubblewrapSandbox,
        lambda root, **options: SSHSandbox(root, host="localhost", **options),
        lambda root, **options: RemoteSandbox("https://localhost", token="t", **options),
    ],
    ids=["host", "bubblewrap", "ssh", "remote"],
)
async def test_what_a_newcomer_does_wrong_is_said(tmp_path: Path, make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a SandboxLimits.*not dict"):
        make(tmp_path, limits={"wall_seconds": 60})
    sandbox = make(tmp_path)
    with pytest.raises(ConfigurationError, match=r"must be a SandboxLimits.*not dict"):
        sandbox.scope(limits={"wall_seconds": 60})
    with pytest.raises(ToolError, match="not open; open it with: async with"):
        await sandbox.read("a.txt")
    with pytest.raises(ToolValueError, match="execute_program takes a list"):
        await sandbox.execute(["ls", "-l"], timeout=5)
    with pytest.raises(PolicyError, match=r"network must be 'none' or 'inherit', not 'example\.com'"):
        make(tmp_path, policy={"network": "example.com"})


def test_a_scope_is_refused_a_limit_that_is_not_enforced(tmp_path: Path) -> None:
    with pytest.raises(CapabilityError, match="temporary_bytes"):
        HostSandbox(tmp_path).scope(limits=SandboxLimits(temporary_bytes=1000))
    bubblewrap = BubblewrapSandbox(tmp_path)
    with pytest.raises(CapabilityError, match="disk_bytes"):
        bubblewrap.scope(limits=SandboxLimits(disk_bytes=1))
    scope = bubblewrap.scope(limits=SandboxLimits(temporary_bytes=5000))
    assert "/tmp and /dev/shm of 5,000 bytes each" in scope.effective_policy.enforced


NUMBERS = st.integers(0, 100)
LIMITS = st.builds(
    SandboxLimits,
    read_bytes=NUMBERS,
    write_bytes=NUMBERS,
    list_entries=NUMBERS,
    output_bytes=st.none() | NUMBERS,
    wall_seconds=st.none() | st.integers(1, 100),
    memory_bytes=st.none() | NUMBERS,
)


@given(LIMITS, LIMITS)
def test_lowering_limits_never_raises_one(one: SandboxLimits, other: SandboxLimits) -> None:
    lower = one.lowered(other)
    for name in SandboxLimits.__struct_fields__:
        values = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        assert getattr(lower, name) == (min(values) if values else None)


SCOPES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "read_only": st.booleans(),
            "execute": st.booleans(),
            "path": st.sampled_from(["a", "a/b", ".", "workspace://notes"]),
            "paths": st.sets(st.sampled_from(["notes", "data"])).map(tuple),
            "limits": LIMITS,
        },
    ),
    max_size=5,
)


@given(SCOPES, st.booleans())
def test_a_scope_of_a_scope_never_widens(narrowings, writable: bool) -> None:
    sandbox = HostSandbox(
        Workspace("/nowhere", {"notes": "n", "data": "/data"}),
        writable=writable,
        policy={"paths": {"data": "read_write"}},
    )
    current: Sandbox = sandbox
    for narrowing in narrowings:
        before = current
        try:
            current = current.scope(**narrowing)
        except (PolicyError, CapabilityError):
            continue
        old, new = before._view, current._view
        assert set(new.files.roots) <= set(old.files.roots)
        for name, root in new.files.roots.items():
            same = [other for other in old.files.roots.values() if other.name == root.name]
            assert any(root.below[: len(other.below)] == other.below for other in same)
            assert root.access == "read_only" or any(other.access == "read_write" for other in same)
            assert name is None or root.name == name
        assert old.execute or not new.execute
        assert old.whole or not new.whole
        assert new.limits == old.limits.lowered(new.limits)
        assert current.capabilities <= before.capabilities
        assert (
            before.writable or not current.writable or narrowing.get("path", ".").startswith("workspace://")
        )


def test_a_policy_is_understood_or_refused(tmp_path: Path) -> None:
    for wrong in (
        {"netwrok": "none"},
        {"network": "allowlist"},
        {"network": ["example.org"]},
        {"root": "write"},
        {"environment": {"A": 1}},
        {"paths": {"x": None}},
    ):
        with pytest.raises(PolicyError):
            HostSandbox(tmp_path, policy=wrong)
    with pytest.raises(PolicyError, match="contradict"):
        HostSandbox(tmp_path, writable=True, policy={"root": "read_only"})
    with pytest.raises(PolicyError, match="does not have: other"):
        HostSandbox(tmp_path, policy=Policy(paths={"other": "read_only"}))
    assert HostSandbox(tmp_path, policy={"root": "read_write"}).writable
    assert HostSandbox(tmp_path).policy == Policy()


def test_a_policy_does_not_show_its_values() -> None:
    policy = Policy(environment={"TOKEN": "hush"})
    assert "hush" not in repr(policy)
    assert "TOKEN" in repr(policy)
    assert Policy.of({"environment": {"TOKEN": "hush"}}) == policy


@pytest.mark.parametrize(
    ("policy", "limits"),
    [
        ({"network": "none"}, {}),
        ({"root_filesystem": "isolated"}, {}),
        ({"root_filesystem": "read_only"}, {}),
        ({}, {"temporary_bytes": 1}),
        ({}, {"disk_bytes": 1}),
    ],
)
async def test_the_host_claims_nothing_it_does_not_enforce(tmp_path: Path, policy, limits) -> None:
    sandbox = HostSandbox(tmp_path / "root", policy=policy, limits=SandboxLimits(**limits))
    with pytest.raises(CapabilityError):
        await sandbox.open()
    assert not (tmp_path / "root").exists()
    assert not sandbox.workspace.is_open


async def test_the_host_says_that_it_isolates_nothing(tmp_path: Path) -> None:
    sandbox = HostSandbox(tmp_path)
    policy = sandbox.effective_policy
    assert (policy.root, policy.network, policy.root_filesystem) == ("read_only", "inherit", "host")
    assert "all of that user's rights" in policy.processes
    assert "read-only access for programs" in policy.not_enforced
    assert not sandbox.capabilities & {
        "isolation",
        "read_only_processes",
        "network_none",
        "hidden_environment",
    }
    probe = await HostSandbox.probe()
    assert probe.available
    assert "no isolation" in probe.reason


async def test_a_read_only_path_in_a_writable_root_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "root", {"notes": "notes"})
    with pytest.raises(CapabilityError, match="'notes' cannot be read-only inside 'root'"):
        await HostSandbox(workspace, writable=True, policy={"paths": {"notes": "read_only"}}).open()
    assert not workspace.is_open
    # the other way round is fine
    async with HostSandbox(workspace, policy={"paths": {"notes": "read_write"}}) as sandbox:
        await sandbox.write("workspace://notes/x", "text")
        assert await sandbox.read("notes/x") == "text"
        with pytest.raises(PermissionError):
            await sandbox.write("notes/x", "other")
        assert not sandbox.writable
        assert "write" in sandbox.capabilities


async def test_an_absolute_path_is_read_only_unless_the_policy_says_more(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").write_text("x")
    workspace = Workspace(tmp_path / "root", {"data": tmp_path / "data"})
    async with HostSandbox(workspace, writable=True) as sandbox:
        assert await sandbox.read("workspace://data/x") == "x"
        with pytest.raises(PermissionError):
            await sandbox.write("workspace://data/x", "y")
    async with HostSandbox(workspace, writable=True, policy={"paths": {"data": "read_write"}}) as sandbox:
        await sandbox.write("workspace://data/x", "y")
    assert (tmp_path / "data/x").read_text() == "y"


async def test_a_closed_sandbox_opens_again_and_an_open_one_only_once(tmp_path: Path) -> None:
    sandbox = HostSandbox(tmp_path)
    with pytest.raises(ToolError, match="not open"):
        await sandbox.list()
    with pytest.raises(ToolError, match="not open"):
        await sandbox.execute("true", timeout=1)
    await asyncio.gather(sandbox.open(), sandbox.open())
    await asyncio.gather(sandbox.close(), sandbox.close())
    with pytest.raises(ToolError, match="closed"):
        await sandbox.list()
    async with sandbox:
        assert await sandbox.list() == []


async def test_a_narrow_scope_of_the_host_runs_nothing(tmp_path: Path) -> None:
    async with HostSandbox(Workspace(tmp_path, {"notes": "notes"}), writable=True) as sandbox:
        for narrow in ({"read_only": True}, {"path": "notes"}, {"paths": ()}, {"execute": False}):
            scope = sandbox.scope(**narrow)
            assert "execute" not in scope.capabilities
            with pytest.raises(CapabilityError):
                await scope.execute("true", timeout=5)
        same = sandbox.scope(limits=SandboxLimits(output_bytes=10))
        assert len((await same.execute("printf %050d 1", timeout=5)).stdout) < 50


def test_there_is_no_fallback_from_isolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(native_sandbox(tmp_path)) is BubblewrapSandbox or sys.platform != "linux"
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(CapabilityError, match="HostSandbox works, without isolation"):
        native_sandbox(tmp_path)


async def test_a_command_is_a_span_without_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from littleghost.sandboxes import local

    seen: list[tuple[str, dict]] = []
    real = local.span

    def span(name, attributes):
        seen.append((name, dict(attributes)))
        return real(name, attributes)

    monkeypatch.setattr(local, "span", span)
    async with HostSandbox(tmp_path) as sandbox:
        await sandbox.execute_program(["/bin/echo", "hush"], timeout=5, environment={"TOKEN": "hush"})
    assert seen == [
        ("sandbox.execute", {"littleghost.sandbox": "HostSandbox", "process.executable.name": "echo"})
    ]
    assert isinstance(local, types.ModuleType)
