"""What the suites of the frameworks do not ask of our adapters."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._concurrency import init_concurrency
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from pydantic import ValidationError
from pydantic_ai.workspaces import (
    Workspace,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from littleghost import BubblewrapSandbox, ConfigurationError, HostSandbox, Sandbox, SandboxLimits
from littleghost.adapters.inspect_ai import LittleGhostSandboxConfig, LittleGhostSandboxEnvironment
from littleghost.adapters.pydantic_ai import SandboxWorkspaceBackend

pytestmark = pytest.mark.anyio
DEVIATIONS: dict[str, Any] = {}


@pytest.fixture(params=[HostSandbox, BubblewrapSandbox])
async def own(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    init_concurrency()
    async with request.param(tmp_path / "work", writable=True, limits=SandboxLimits(wall_seconds=60)) as own:
        yield own


# Pydantic AI


async def test_output_that_is_not_whole_is_an_error(own: Sandbox) -> None:
    workspace = Workspace(SandboxWorkspaceBackend(own, max_output_bytes=1000))
    assert (await workspace.run(["printf", "%01000d", "0"])).stdout == "0" * 1000
    with pytest.raises(WorkspaceOutputLimitError) as caught:
        await workspace.run(["printf", "%01001d", "0"])
    assert caught.value.limit == 1000
    assert caught.value.stdout.startswith("000")


async def test_a_time_out_tells_what_was_printed(own: Sandbox) -> None:
    with pytest.raises(WorkspaceTimeoutError) as caught:
        await SandboxWorkspaceBackend(own).run("echo so far; sleep 60", shell=True, timeout=0.5)
    assert caught.value.stdout == "so far\n"


async def test_a_sandbox_that_was_closed_is_not_opened_again(own: Sandbox) -> None:
    backend = SandboxWorkspaceBackend(own)
    await backend.write_bytes(f"{await backend.working_dir()}/file", b"x")
    await own.close()
    for operation in (backend.working_dir(), backend.run(["true"]), backend.exists("/workspace/file")):
        with pytest.raises(WorkspaceUnavailableError):
            await operation
    assert not own.is_open


async def test_a_reference_of_another_workspace_is_refused(own: Sandbox, tmp_path: Path) -> None:
    for ref in (
        WorkspaceRef(provider="local", id=str(own.workspace.root)),
        WorkspaceRef(provider="littleghost", id="/x"),
    ):
        with pytest.raises(ValueError, match="reference"):
            SandboxWorkspaceBackend(own, ref=ref)


async def test_attaching_makes_no_directory(tmp_path: Path) -> None:
    ref = WorkspaceRef(provider="littleghost", id=str(tmp_path / "gone"))
    backend = SandboxWorkspaceBackend(HostSandbox(ref.id), ref=ref)
    with pytest.raises(WorkspaceUnavailableError):
        await backend.working_dir()
    assert not (tmp_path / "gone").exists()


async def test_a_tree_is_removed_and_what_its_links_lead_to_is_not(own: Sandbox, tmp_path: Path) -> None:
    root = own.workspace.root
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    await own.write("kept/file", "x")
    await own.write("tree/a/b/c", "x")
    for name, target in (
        ("in", "../kept"),
        ("out", str(tmp_path / "outside")),
        ("loop", "loop"),
        ("up", ".."),
    ):
        (root / "tree" / name).symlink_to(target)
    os.mkfifo(root / "tree" / "pipe")
    (root / "tree" / "empty").mkdir()
    backend = SandboxWorkspaceBackend(own)
    where = await backend.working_dir()
    assert {entry.name: entry.is_dir for entry in await backend.list_dir(f"{where}/tree")} == {
        "a": True, "empty": True, "in": True, "loop": False, "out": False, "pipe": False, "up": True,
    }  # fmt: skip
    await backend.remove(f"{where}/tree")
    assert not (root / "tree").exists()
    assert await own.read("kept/file") == "x"
    assert (tmp_path / "outside" / "kept").exists()


@pytest.mark.parametrize("path", ["/", "{root}", "{root}/", "{root}/.", "{root}/a/..", "{parent}"])
async def test_the_workspace_is_not_removed(own: Sandbox, path: str) -> None:
    backend = SandboxWorkspaceBackend(own)
    root = await backend.working_dir()
    await own.write("a/file", "x")
    with pytest.raises(ValueError, match="workspace itself"):
        await backend.remove(path.format(root=root, parent=root.rpartition("/")[0] or "/"))
    assert await own.read("a/file") == "x"


async def test_files_elsewhere_and_links_to_them_are_refused(own: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (own.workspace.root / "link").symlink_to("../secret")
    backend = SandboxWorkspaceBackend(own)
    where = await backend.working_dir()
    for path in (str(tmp_path / "secret"), "/etc/passwd", f"{where}/link", f"{where}/../secret"):
        for operation in (backend.read_bytes(path), backend.write_bytes(path, b""), backend.stat(path)):
            with pytest.raises(PermissionError):
                await operation
    with pytest.raises(ValueError, match="absolute"):
        await backend.read_bytes("link")
    assert (tmp_path / "secret").read_text() == "secret"


async def test_a_read_only_sandbox_stays_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    async with SandboxWorkspaceBackend(HostSandbox(tmp_path)) as backend:
        where = await backend.working_dir()
        for operation in (
            backend.write_bytes(f"{where}/file", b"y"),
            backend.make_dir(f"{where}/new"),
            backend.remove(f"{where}/file"),
        ):
            with pytest.raises(PermissionError, match="read-only"):
                await operation
        assert await backend.read_bytes(f"{where}/file") == b"x"
    assert not backend.sandbox.is_open


async def test_a_sandbox_without_programs_has_files(tmp_path: Path) -> None:
    async with HostSandbox(tmp_path, writable=True) as own:
        backend = SandboxWorkspaceBackend(own.scope(execute=False))
        workspace = Workspace(backend)
        await workspace.write_text("a/b", "text")
        assert await workspace.read_text("/workspace/a/b") == "text"


async def test_why_a_command_was_ended_is_told(own: Sandbox) -> None:
    backend = SandboxWorkspaceBackend(own)
    assert (await backend.run("kill -KILL $$", shell=True)).exit_code == 137
    missing = await backend.run(["no-such-program"])
    assert missing.exit_code == 127
    assert missing.stderr.endswith("program not found: no-such-program\n")


async def test_opening_at_once_opens_once(tmp_path: Path) -> None:
    backend = SandboxWorkspaceBackend(HostSandbox(tmp_path, writable=True))
    assert backend.ref is None
    assert len(set(await asyncio.gather(*(backend.working_dir() for _ in range(20))))) == 1
    assert backend.ref == WorkspaceRef(provider="littleghost", id=str(tmp_path))
    await backend.close()


# Inspect


@solver
def look() -> Any:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        environment = sandbox()
        where = await environment.exec(["sh", "-c", "pwd; cat given; [ -e /etc/hostname ] && echo host"])
        state.output.completion = where.stdout
        return state

    return solve


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        ("littleghost", "/workspace\ntext"),
        (("littleghost", "host.json"), "/littleghost-"),
        (
            SandboxEnvironmentSpec("littleghost", LittleGhostSandboxConfig(policy={"network": "inherit"})),
            "/workspace\ntext",
        ),
    ],
)
async def test_an_evaluation_finds_it_by_its_name(
    spec: Any, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "host.json").write_text('{"backend": "host"}')
    sample = Sample(input="look", target=seen, files={"given": "text"})
    task = Task(dataset=[sample], solver=look(), scorer=includes(), sandbox=spec)
    [log] = await eval_async(task, model="mockllm/model", log_dir=str(tmp_path / "logs"))
    assert log.status == "success", log.error
    assert log.results
    assert log.results.scores[0].metrics["accuracy"].value == 1
    assert log.samples
    assert seen in log.samples[0].output.completion
    where = log.samples[0].output.completion.partition("\n")[0]
    assert not Path(where).exists()


async def test_what_a_sandbox_of_inspect_raises(own: Sandbox) -> None:
    environment = LittleGhostSandboxEnvironment(own)
    with pytest.raises(TimeoutError):
        await environment.exec(["sleep", "60"], timeout=1)
    with pytest.raises(SandboxUserUnsupportedError):
        await environment.exec(["true"], user="root")
    with pytest.raises(NotImplementedError):
        await environment.exec_remote(["true"])
    with override_max_exec_output_size(1000), pytest.raises(OutputLimitExceededError) as caught:
        await environment.exec(["sh", "-c", "printf %01001d 0 >&2"])
    assert str(caught.value.truncated_output).startswith("000")
    with pytest.raises(UnicodeDecodeError):
        await environment.write_file("bytes", b"\xff")
        await environment.read_file("bytes")
    for path in ("../x", "/etc/passwd"):
        with pytest.raises(PermissionError):
            await environment.read_file(path)
    with pytest.raises(FileNotFoundError):
        await environment.exec(["true"], cwd="missing")
    missing = await environment.exec(["no-such-program"])
    assert (missing.success, missing.returncode) == (False, 127)
    assert (await environment.exec(["sh", "-c", "exit 126"])).returncode == 126
    await own.close()
    with pytest.raises(SandboxUnavailableError):
        await environment.exec(["true"])


async def test_the_lower_limit_of_a_file_counts(tmp_path: Path) -> None:
    async with HostSandbox(tmp_path, writable=True, limits=SandboxLimits(read_bytes=10)) as own:
        environment = LittleGhostSandboxEnvironment(own)
        await environment.write_file("file", "x" * 11)
        with pytest.raises(OutputLimitExceededError, match="10 bytes"):
            await environment.read_file("file")


def test_a_configuration_survives_and_is_checked() -> None:
    config = LittleGhostSandboxConfig(backend="host", limits={"wall_seconds": 5.0})
    assert LittleGhostSandboxEnvironment.config_deserialize(config.model_dump()) == config
    assert len({config, config.model_copy()}) == 1
    for wrong in ({"backend": "docker"}, {"netwrok": "none"}):
        with pytest.raises(ValidationError):
            LittleGhostSandboxConfig(**wrong)


@pytest.mark.parametrize(
    "config",
    [
        "compose.yaml",
        LittleGhostSandboxConfig(policy={"netwrok": "none"}),
        LittleGhostSandboxConfig(limits={"memory": 1}),
        LittleGhostSandboxConfig(backend="host", policy={"network": "none"}),
    ],
)
async def test_what_cannot_be_had_is_refused(config: Any) -> None:
    with pytest.raises(ConfigurationError):
        await LittleGhostSandboxEnvironment.sample_init("task", config, {})


async def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks that the tests of the house only compile, for there the frameworks are missing."""
    page = (Path(__file__).parents[1] / "docs" / "adapters.md").read_text("utf-8")
    blocks = re.findall(r"^```python no-run\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    init_concurrency()
    # Inspect counts tokens, with tables that it would download.
    monkeypatch.setattr(
        "tiktoken.get_encoding", lambda name: SimpleNamespace(encode=lambda text, **_: text.split())
    )
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks:
        code = compile(block, "docs/adapters.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, module.__dict__)
        if inspect.iscoroutine(result):
            await result
