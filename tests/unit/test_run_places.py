"""Workspaces and sandboxes of runs: who opens them, who closes them, and what tools find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from littleghost import (
    Agent,
    CapabilityError,
    HostSandbox,
    MemoryStore,
    Message,
    RunContext,
    Runtime,
    Sandbox,
    SandboxTools,
    ToolUse,
    Workspace,
    read_file,
    sandbox_tools,
    shell,
    tool,
    write_file,
)
from littleghost.testing import FunctionModel, ScriptedModel


def calls(*uses: tuple[str, dict[str, Any]]) -> Message:
    return Message.assistant(
        [ToolUse(id=f"c{index}", name=name, input=given) for index, (name, given) in enumerate(uses)]
    )


def texts(run: Any) -> list[str]:
    return [result.text for message in run.messages for result in message.tool_results]


def writable(workspace: Workspace) -> HostSandbox:
    return HostSandbox(workspace, writable=True)


async def test_the_tools_of_a_sandbox(tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("one two")
    script = [
        calls(("list_files", {}), ("read_file", {"path": "given.txt"})),
        calls(("replace_in_file", {"path": "given.txt", "old_text": "two", "new_text": r"\g<0> $&"})),
        calls(("write_file", {"path": "new/made.txt", "content": "made"}), ("read_file", {"path": "../x"})),
        calls(("shell", {"command": ["sh", "-c", "cat given.txt; env; exit 3"]}), ("shell", {"command": []})),
        calls(("shell", {"command": ["ls", "*", ";", "id"]}), ("shell", {"command": ["no-such-program"]})),
        "done",
    ]
    async with Runtime(workspace=tmp_path, sandbox=writable) as runtime:
        run = await runtime.ask(Agent(ScriptedModel(script), tools=[SandboxTools]), "go")
    found = texts(run)
    assert found[:2] == ['["given.txt"]', "one two"]
    assert (tmp_path / "given.txt").read_text() == r"one \g<0> $&"
    assert (tmp_path / "new/made.txt").read_text() == "made"
    assert str(tmp_path) not in "".join(found[:5])
    assert '"exit_code":3' in found[5]
    assert r"one \\g<0> $&" in found[5]
    assert "HOME" not in found[5]
    assert "must name a program" in found[6]
    assert "uid=" not in found[7]
    assert '"exit_code":127' in found[8]


async def test_the_tools_that_find(tmp_path: Path) -> None:
    for number in range(210):
        (tmp_path / f"f{number:03}.txt").write_text(f"line one\nneedle {number}\nline three\n")
    (tmp_path / "sub").mkdir()
    script = [
        calls(("read_file", {"path": "f000.txt", "offset": 1, "limit": 1}), ("read_file", {"path": "f000.txt", "offset": -1})),
        calls(("find_files", {"pattern": "f00[12].*"}), ("find_files", {"pattern": "*"}), ("find_files", {"pattern": "no*"})),
        calls(
            ("search_files", {"pattern": r"needle 20\d"}), ("search_files", {"pattern": "needle", "glob": "f00?.txt"}),
            ("search_files", {"pattern": "nothing"}), ("search_files", {"pattern": "("}),
            ("search_files", {"pattern": "x", "path": "../x"}),
        ),
        "done",
    ]  # fmt: skip
    async with Runtime(workspace=tmp_path, sandbox=writable) as runtime:
        run = await runtime.ask(Agent(ScriptedModel(script), tools=[SandboxTools]), "go")
    found = texts(run)
    assert found[0] == "needle 0\n"
    assert "offset must be" in found[1]
    assert found[2] == "f001.txt\nf002.txt"
    assert found[3].splitlines()[199:] == ["f199.txt", "[There may be more: these are the first 200.]"]
    assert found[4] == "Nothing matches."
    assert found[5].splitlines()[0] == "f200.txt:2: needle 200"
    assert len(found[6].splitlines()) == 10
    assert found[7] == "No line matches."
    assert "not a regular expression" in found[8]
    assert str(tmp_path) not in "".join(found)


async def test_parts_are_read_from_a_sandbox_that_only_reads_the_whole(tmp_path: Path) -> None:
    class Page(Sandbox):
        async def read(self, path, *, context=None):
            return "one\ntwo\nthree"

    uses = [
        {"offset": 1},
        {"limit": 1},
        {"offset": 2, "limit": 5},
        {"offset": 9},
        {"limit": 0},
        {"limit": -1},
    ]
    script = [calls(*(("read_file", {"path": "p", **use}) for use in uses)), "done"]
    async with Runtime(workspace=tmp_path, sandbox=Page) as runtime:
        run = await runtime.ask(Agent(ScriptedModel(script), tools=[read_file]), "go")
    assert texts(run)[:5] == ["two\nthree", "one\n", "three", "", ""]
    assert "from 0 up" in texts(run)[5]


async def test_what_changes_is_offered_only_where_the_sandbox_is_writable(tmp_path: Path) -> None:
    names = {
        True: {
            "read_file",
            "list_files",
            "find_files",
            "search_files",
            "write_file",
            "replace_in_file",
            "shell",
        },
        False: {"read_file", "list_files", "find_files", "search_files"},
    }
    for allowed, expected in names.items():
        async with HostSandbox(Workspace(tmp_path), writable=allowed) as sandbox:
            assert {item.name for item in sandbox_tools(sandbox)} == expected
    assert shell.timeout is None


async def test_without_a_sandbox_its_tools_say_so() -> None:
    run = await Agent(ScriptedModel([calls(("read_file", {"path": "x"})), "ok"]), tools=[read_file]).ask("go")
    assert "CapabilityError" in texts(run)[0]
    with pytest.raises(CapabilityError, match="sandbox"):
        await Agent(ScriptedModel([]), tools=[SandboxTools()]).ask("go")


async def test_what_the_caller_opened_stays_open_and_what_the_runtime_opened_is_closed(
    tmp_path: Path,
) -> None:
    agent = Agent(FunctionModel(lambda request: "ok"), tools=[read_file])
    async with HostSandbox(Workspace(tmp_path)) as sandbox:
        async with Runtime(sandbox=sandbox) as runtime:
            await runtime.ask(agent, "go")
        assert sandbox.is_open
    assert not sandbox.is_open
    unopened = HostSandbox(Workspace(tmp_path))
    async with Runtime(sandbox=unopened) as runtime:
        await runtime.ask(agent, "go")
        await runtime.ask(agent, "go")
        assert unopened.is_open
    assert not unopened.is_open


async def test_a_factory_of_workspaces_makes_one_for_each_run_and_knows_whose(tmp_path: Path) -> None:
    made: list[HostSandbox] = []

    def sandbox(workspace: Workspace) -> HostSandbox:
        made.append(writable(workspace))
        return made[-1]

    def workspace(context: RunContext) -> Workspace:
        return Workspace(tmp_path / str(context.actor_id))

    def reply(request: Any) -> Any:
        done = request.messages[-1].role == "tool"
        return "ok" if done else calls(("write_file", {"path": "f", "content": "x"}))

    agent = Agent(FunctionModel(reply), tools=[write_file])
    async with Runtime(session_store=MemoryStore(), workspace=workspace, sandbox=sandbox) as runtime:
        for actor in ("alice", "bob"):
            await runtime.ask(agent, "go", session_id="s", actor_id=actor)
            assert not made[-1].is_open
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["alice", "bob"]
    assert (tmp_path / "bob/f").read_text() == "x"


async def test_a_workspace_alone_is_opened_for_the_tools(tmp_path: Path) -> None:
    @tool
    async def where(context: RunContext) -> str:
        assert context.workspace.is_open
        return context.workspace.root.name

    workspace = Workspace(tmp_path / "new")
    async with Runtime(workspace=workspace) as runtime:
        run = await runtime.ask(Agent(ScriptedModel([calls(("where", {})), "ok"]), tools=[where]), "go")
        assert texts(run) == ["new"]
    assert not workspace.is_open


async def test_a_sandbox_that_does_not_open_is_an_error_before_anything_is_stored(tmp_path: Path) -> None:
    class Broken(HostSandbox):
        async def open(self, run: object = None) -> Any:
            raise CapabilityError("not here")

    store = MemoryStore()
    async with Runtime(session_store=store, workspace=tmp_path, sandbox=Broken) as runtime:
        with pytest.raises(CapabilityError, match="not here"):
            await runtime.ask(Agent(ScriptedModel([])), "go", session_id="s")
        assert await store.load("s") is None
