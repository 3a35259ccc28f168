"""Adapters: the paths that programs see, and what is said where the other framework is missing."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from littleghost import (
    BubblewrapSandbox,
    DependencyError,
    Execution,
    HostSandbox,
    Sandbox,
    ToolError,
    ToolPermissionError,
)
from littleghost.adapters.inside import Inside, in_directory


@pytest.fixture(params=[HostSandbox, BubblewrapSandbox])
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path, require) -> AsyncIterator[Sandbox]:
    if request.param is BubblewrapSandbox:
        require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    async with request.param(tmp_path / "link", writable=True) as sandbox:
        yield sandbox


async def test_a_file_has_the_path_that_programs_see(sandbox: Sandbox) -> None:
    inside = Inside(sandbox)
    await sandbox.write("a/b", "text")
    seen = f"{await inside.root()}/a/b"
    assert (await sandbox.execute_program(["cat", seen], timeout=30)).stdout == "text"
    assert await sandbox.read(await inside.relative(seen)) == "text"
    assert await inside.relative(await inside.root()) == "."
    assert await inside.relative("a/b") == "a/b"


@pytest.mark.parametrize("path", ["/etc/passwd", "/", "{root}-other/file", "{parent}"])
async def test_a_path_elsewhere_is_refused(sandbox: Sandbox, path: str) -> None:
    inside = Inside(sandbox)
    root = await inside.root()
    path = path.format(root=root, parent=root.rpartition("/")[0] or "/")
    with pytest.raises(ToolPermissionError, match="outside the workspace"):
        await inside.relative(path)


@pytest.mark.parametrize("way", ["/../..", "/../../etc/passwd", "/a/../../x"])
async def test_a_path_that_climbs_out_is_refused(sandbox: Sandbox, way: str) -> None:
    inside = Inside(sandbox)
    path = await inside.relative(await inside.root() + way)
    with pytest.raises(ToolPermissionError):
        await sandbox.read(path)


async def test_a_command_runs_in_a_directory_elsewhere(sandbox: Sandbox) -> None:
    done = await sandbox.execute_program(in_directory("/usr/bin", ["sh", "-c", "pwd; exit 3"]), timeout=30)
    assert (done.stdout, done.exit_code) == ("/usr/bin\n", 3)
    done = await sandbox.execute_program(in_directory("-missing; id", ["echo", "ran"]), timeout=30)
    assert done.stdout == ""
    assert not done.success


async def test_where_no_program_runs_the_workspace_has_a_name_all_the_same(sandbox: Sandbox) -> None:
    inside = Inside(sandbox.scope(execute=False))
    assert await inside.root() == "/workspace"
    assert await inside.relative("/workspace/a") == "a"


@pytest.mark.parametrize("answer", [Execution(exit_code=1), Execution(stdout="here\n", exit_code=0)])
async def test_a_sandbox_that_does_not_tell_is_an_error(tmp_path: Path, answer: Execution) -> None:
    class Silent(Sandbox):
        async def execute_program(self, command, **options):
            return answer

    with pytest.raises(ToolError, match="does not tell"):
        await Inside(Silent(tmp_path)).root()


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("pydantic_ai", "pydantic_ai", "pydantic-ai"), ("inspect_ai", "inspect_ai", "inspect")],
)
def test_without_its_framework_an_adapter_names_the_extra(module: str, package: str, extra: str) -> None:
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    with pytest.raises(DependencyError, match=r"pip install 'littleghost\[" + extra) as caught:
        importlib.import_module(f"littleghost.adapters.{module}")
    assert caught.value.extra == extra
