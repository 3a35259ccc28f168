"""MCP servers that are programs: real child processes, one of the official SDK and one that is written by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcpside import REAL, Line, alive, impatient, raw

from littleghost import (
    Agent,
    BubblewrapSandbox,
    CancellationToken,
    ConfigurationError,
    Deadline,
    DeadlineExceeded,
    Document,
    HostSandbox,
    Image,
    MCPToolset,
    Message,
    RunCancelled,
    RunContext,
    Runtime,
    Text,
    Tool,
    ToolConnectionError,
    ToolEnded,
    ToolError,
    ToolTimeoutError,
    ToolUse,
    Workspace,
)
from littleghost.testing import ScriptedModel
from littleghost.tools.mcp import connection, pipes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are not run on Windows")


@asynccontextmanager
async def opened(toolset: MCPToolset, **context: Any):
    async with toolset.open(RunContext(**context)) as tools:
        yield {tool.name: tool for tool in tools}


async def said(tool: Tool, **arguments: Any) -> str:
    (block,) = await tool.call(arguments, RunContext())
    return block.text


def calls(*wanted: tuple[str, dict[str, Any]]) -> Message:
    return Message.assistant(
        [ToolUse(id=f"c{number}", name=name, input=given) for number, (name, given) in enumerate(wanted)]
    )


async def test_a_server_of_the_official_sdk(tmp_path: Path) -> None:
    toolset = MCPToolset.stdio(REAL, env={"LANG": "C.UTF-8", "KEY": "v"}, cwd=tmp_path, exclude=["look"])
    async with opened(toolset) as tools:
        assert {"add", "shop_fail_now", "everything"} <= set(tools)
        assert "look" not in tools
        assert tools["add"].description == "Add two numbers."
        assert tools["add"].schema["required"] == ["a", "b"]
        assert await said(tools["add"], a=1, b=2) == "3"
        place = await said(tools["place"])
        assert str(tmp_path) in place
        assert '"KEY": "v"' in place
        with pytest.raises(ToolError, match=r"shop.fail/now"):
            await said(tools["shop_fail_now"], why="x")
        with pytest.raises(ToolError, match="valid integer"):
            await said(tools["add"], a="x")
        blocks = await tools["everything"].call({}, RunContext())
        assert [type(block) for block in blocks] == [
            Text,
            Image,
            Text,
            Text,
            Text,
            Text,
            Text,
            Document,
            Text,
        ]
        assert await said(tools["grow"]) == "grown"
        assert "grown" not in tools


async def test_a_new_run_sees_new_tools_and_other_runs_have_other_servers() -> None:
    toolset = MCPToolset.stdio(raw())
    async with opened(toolset) as one, opened(toolset) as two:
        pids = await asyncio.gather(said(one["pid"]), said(two["pid"]))
        assert pids[0] != pids[1]
        assert alive(int(pids[0]))
    assert not any(alive(int(pid)) for pid in pids)


async def test_the_environment_is_empty_but_for_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_APPLICATION", "hunter2")
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import mcp_raw;"
        "mcp_raw.call = lambda id, name, given: mcp_raw.send({'id': id, 'result': mcp_raw.text(repr(dict(os.environ)))});"
        "mcp_raw.main()"
    )
    folder = str(Path(__file__).parents[1])
    toolset = MCPToolset.stdio(
        [sys.executable, "-c", program.replace("sys.argv[1]", repr(folder))],
        env={"A": "1", "HOME": "/nowhere"},
    )
    async with opened(toolset) as tools:
        there = eval(await said(tools["echo"]))
    there.pop("LC_CTYPE", None)  # Python's own
    assert there == {"A": "1", "HOME": "/nowhere", "PATH": os.environ["PATH"]}


async def test_two_calls_of_one_turn_run_side_by_side_and_streamed_is_plain() -> None:
    async with Line() as line:
        toolset = MCPToolset.stdio(raw(), include=["hold", "echo"], prefix="s_")
        script = [
            calls(("s_hold", {"address": line.address}), ("s_hold", {"address": line.address})),
            "Done.",
        ]

        async def both() -> None:
            first, second = await line.call(), await line.call()
            assert first.pid == second.pid
            await second.go_on("same")
            await first.go_on("same")

        talk = asyncio.create_task(both())
        plain = await Agent(ScriptedModel(script), tools=[toolset]).ask("Go")
        await talk
        talk = asyncio.create_task(both())
        async with (
            Runtime() as runtime,
            runtime.stream(Agent(ScriptedModel(script), tools=[toolset]), "Go") as events,
        ):
            results = [event.result async for event in events if isinstance(event, ToolEnded)]
        await talk
    assert plain.outcome == "completed"
    assert plain.messages == events.run.messages
    assert [result.text for result in results] == ["same", "same"]


async def test_a_name_that_another_tool_has() -> None:
    with pytest.raises(ConfigurationError, match=r"same name: .*echo"):
        await Agent(ScriptedModel([]), tools=[MCPToolset.stdio(raw()), MCPToolset.stdio(raw())]).ask("Go")


async def test_a_cancelled_run_tells_the_server_and_ends_it() -> None:
    async with Line() as line:
        token = CancellationToken()
        script = [calls(("hold", {"address": line.address}))]
        agent = Agent(ScriptedModel(script), tools=[MCPToolset.stdio(raw())])
        running = asyncio.create_task(agent.ask("Go", cancellation=token))
        held = await line.call()
        token.cancel()
        assert await held.heard() == "cancelled"
        run = await running
        assert run.outcome == "cancelled"
        assert not alive(held.pid)


async def test_the_official_server_is_told_too() -> None:
    async with Line() as line:
        script = [calls(("hold", {"address": line.address}))]
        agent = Agent(ScriptedModel(script), tools=[MCPToolset.stdio(REAL)])
        running = asyncio.create_task(agent.ask("Go"))
        held = await line.call()
        running.cancel()
        assert await held.heard() == "cancelled"
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not alive(held.pid)


async def test_cancelled_over_and_over_it_still_ends_the_server() -> None:
    """As anyio's cancel scopes do."""
    pids: list[int] = []
    begun = asyncio.Event()

    async def run() -> None:
        async with opened(MCPToolset.stdio(raw())) as tools:
            pids.append(int(await said(tools["pid"])))
            begun.set()
            await said(tools["silent"])

    running = asyncio.create_task(run())
    await begun.wait()
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert not alive(pids[0])


def test_from_synchronous_code() -> None:
    script = [calls(("echo", {"text": "heard"})), "Done."]
    run = Agent(ScriptedModel(script), tools=[MCPToolset.stdio(raw())]).ask_sync("Go")
    assert run.messages[2].tool_results[0].text == "heard"


async def test_a_call_that_takes_too_long() -> None:
    async with Line() as line, opened(MCPToolset.stdio(raw())) as tools:
        with (
            impatient(tools["hold"], timeout=0.3),
            pytest.raises(ToolTimeoutError, match=r"within 0.3 s .* effect is unknown"),
        ):
            await said(tools["hold"], address=line.address)
        assert await (await line.call()).heard() == "cancelled"
        assert await said(tools["echo"], text="still there") == "still there"


async def test_a_server_that_dies_in_a_call_and_is_started_again(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    async with opened(MCPToolset.stdio(raw(), name="Shop", env={"TOKEN": "hunter2-hunter2"})) as tools:
        before = await said(tools["pid"])
        with pytest.raises(
            ToolConnectionError, match=r"Shop went away .*exit code 3.* effect is unknown"
        ) as raised:
            await said(tools["die"], ledger=str(ledger))
        assert "hunter2" not in str(raised.value)
        assert "last word" not in str(raised.value)
        assert await said(tools["pid"]) != before
    assert ledger.read_text() == "once\n"


async def test_an_idempotent_call_is_made_again_once(tmp_path: Path) -> None:
    ledger, once = tmp_path / "ledger", tmp_path / "once"
    async with opened(MCPToolset.stdio(raw(), idempotent=["die"])) as tools:
        assert tools["die"].idempotent
        assert await said(tools["die"], ledger=str(ledger), once=str(once)) == "alive"
        assert ledger.read_text() == "once\n" * 2
        with pytest.raises(ToolConnectionError):
            await said(tools["die"], ledger=str(ledger))
        assert ledger.read_text() == "once\n" * 4


async def test_an_idempotent_call_that_cannot_be_made_again_may_have_taken_effect(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    async with opened(MCPToolset.stdio([program, *raw()[1:]], idempotent=["die"])) as tools:
        program.unlink()
        with pytest.raises(ToolConnectionError, match=r"program not found.* effect is unknown"):
            await said(tools["die"])


async def test_a_server_that_dies_while_calls_are_under_way_is_started_again_once(tmp_path: Path) -> None:
    started = tmp_path / "started"
    async with Line() as line, opened(MCPToolset.stdio(raw(started=str(started)))) as tools:
        holding = [asyncio.create_task(said(tools["hold"], address=line.address)) for _ in range(5)]
        for _ in holding:
            await line.call()
        with pytest.raises(ToolConnectionError):
            await said(tools["die"])
        for ended in await asyncio.gather(*holding, return_exceptions=True):
            assert isinstance(ended, ToolConnectionError)
        assert await asyncio.gather(*(said(tools["echo"], text=str(n)) for n in range(5))) == list("01234")
    assert len(started.read_text().splitlines()) == 2


async def test_a_server_that_cannot_be_started_again(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.symlink_to(sys.executable)
    async with opened(MCPToolset.stdio([program, *raw()[1:]])) as tools:
        program.unlink()
        with pytest.raises(ToolConnectionError, match="went away"):
            await said(tools["die"])
        with pytest.raises(ToolConnectionError, match=r"program not found.* The call was not made"):
            await said(tools["echo"])


async def test_a_server_that_says_nothing_when_it_is_started_again(tmp_path: Path) -> None:
    """Each try is bounded, and of those that failed nothing is left but what is being ended."""
    how, started = tmp_path / "how", tmp_path / "started"
    how.write_text(json.dumps({"started": str(started)}))
    toolset = MCPToolset.stdio([*raw()[:-1], f"@{how}"], timeout=None)
    async with opened(toolset) as tools:
        how.write_text(json.dumps({"started": str(started), "silent": True}))
        with pytest.raises(ToolConnectionError, match="went away"):
            await said(tools["die"])
        with (
            impatient(tools["echo"], connect_timeout=0.3),
            pytest.raises(ToolConnectionError, match=r"does not answer any more\. The call was not made"),
        ):
            await said(tools["echo"])
        how.write_text(json.dumps({"started": str(started)}))
        assert await said(tools["echo"], text="here again") == "here again"
        pids = [int(pid) for pid in started.read_text().split()]
        assert [pid for pid in pids if alive(pid)] == pids[-1:]


async def test_a_server_that_dies_at_every_call_is_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RECONNECTIONS", 2)
    started = tmp_path / "started"
    async with opened(MCPToolset.stdio(raw(started=str(started)))) as tools:
        for _ in range(3):
            with pytest.raises(ToolConnectionError, match="went away"):
                await said(tools["die"])
        with pytest.raises(ToolConnectionError, match=r"lost too often. The call was not made"):
            await said(tools["echo"])
    assert len(started.read_text().split()) == 3


async def test_a_server_that_is_not_there() -> None:
    toolset = MCPToolset.stdio(["no-such-server"])
    with pytest.raises(ToolConnectionError, match=r"MCP server no-such-server .*program not found"):
        await Agent(ScriptedModel([]), tools=[toolset]).ask("Go")
    with pytest.raises(ConfigurationError, match="cwd of the MCP server true"):
        await Agent(ScriptedModel([]), tools=[MCPToolset.stdio(["true"], cwd="/no/such/place")]).ask("Go")


async def test_a_server_that_dies_as_it_starts_has_its_last_words_told() -> None:
    toolset = MCPToolset.stdio(raw(dies=True), env={"TOKEN": "hunter2-hunter2"})
    with pytest.raises(ToolConnectionError, match=r"exit code 5; it printed: cannot start: \*\*\*"):
        await Agent(ScriptedModel([]), tools=[toolset]).ask("Go")


async def test_an_optional_server_may_be_missing(caplog: pytest.LogCaptureFixture) -> None:
    toolset = MCPToolset.stdio(["no-such-server"], optional=True)
    run = await Agent(ScriptedModel(["Alone."]), tools=[toolset]).ask("Go")
    assert run.text == "Alone."
    assert "no-such-server" in caplog.text
    assert "tools are left out" in caplog.text


async def test_a_server_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "EXIT_SECONDS", 0.1)
    for how in ({"silent": True}, {"slowly": True}):
        started = tmp_path / f"started-{len(how)}"
        toolset = MCPToolset.stdio(raw(**how, started=str(started)), connect_timeout=0.5)
        with pytest.raises(ToolConnectionError, match=r"did not answer within 0.5 s; see connect_timeout="):
            await Agent(ScriptedModel([]), tools=[toolset]).ask("Go")
        assert not started.exists() or not any(alive(int(pid)) for pid in started.read_text().split())


async def test_a_run_is_cancelled_while_it_connects(tmp_path: Path) -> None:
    os.mkfifo(fifo := tmp_path / "started")
    toolset = MCPToolset.stdio(raw(silent=True, started=str(fifo)))
    token = CancellationToken()
    agent = Agent(ScriptedModel([]), tools=[toolset])
    running = asyncio.create_task(agent.ask("Go", cancellation=token))
    pid = int(await asyncio.to_thread(fifo.read_text))
    token.cancel()
    with pytest.raises(RunCancelled):
        await running
    assert not alive(pid)
    running = asyncio.create_task(agent.ask("Go"))
    pid = int(await asyncio.to_thread(fifo.read_text))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not alive(pid)


async def test_the_deadline_ends_the_wait_for_a_server() -> None:
    with pytest.raises(DeadlineExceeded):
        async with opened(MCPToolset.stdio(raw(silent=True)), deadline=Deadline(0.2)):
            pass


async def test_a_server_that_does_not_want_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "EXIT_SECONDS", 0.1)
    monkeypatch.setattr(pipes, "TERM_SECONDS", 0.1)
    async with opened(MCPToolset.stdio(raw(stubborn=True))) as tools:
        pid = int(await said(tools["pid"]))
    assert not alive(pid)


async def test_a_daemon_of_a_server_does_not_outlive_the_run(require: Any) -> None:
    require(sys.platform == "linux", "Linux, for daemons to be found", "run it there")
    async with Line() as line:
        async with opened(MCPToolset.stdio(REAL)) as tools:
            await said(tools["daemon"], address=line.address)
            daemon = await line.call()
            assert alive(daemon.pid)
        assert await daemon.heard() == ""
        assert not alive(daemon.pid)


async def test_a_tool_kept_beyond_its_run() -> None:
    async with opened(MCPToolset.stdio(raw())) as tools:
        pass
    with pytest.raises(ToolError, match="has ended"):
        await said(tools["echo"])


async def test_in_the_sandbox_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    toolset = MCPToolset.stdio(REAL, sandbox=True, cwd="in", env={"A": "1"})
    async with HostSandbox(Workspace(tmp_path)) as sandbox, opened(toolset, sandbox=sandbox) as tools:
        place = await said(tools["place"])
        assert str(tmp_path / "in") in place
        assert '"A": "1"' in place
        assert '"HOME"' not in place


async def test_in_a_sandbox_that_isolates(tmp_path: Path, require: Any) -> None:
    probe = await BubblewrapSandbox.probe()
    require(probe.available, "bubblewrap", "apt-get install bubblewrap")
    require(Path("/usr/bin/python3").exists(), "/usr/bin/python3", "apt-get install python3")
    shutil.copy(Path(__file__).parents[1] / "mcp_raw.py", tmp_path)
    toolset = MCPToolset.stdio(["/usr/bin/python3", "mcp_raw.py"], sandbox=True)
    async with BubblewrapSandbox(Workspace(tmp_path)) as sandbox, opened(toolset, sandbox=sandbox) as tools:
        assert int(await said(tools["pid"])) < 10  # in a namespace of its own
        with pytest.raises(ToolConnectionError):
            await said(tools["die"])
        assert await said(tools["echo"], text="again") == "again"


async def test_a_sandbox_that_goes_takes_its_server_along(tmp_path: Path) -> None:
    toolset = MCPToolset.stdio(raw(), sandbox=True)
    async with HostSandbox(Workspace(tmp_path)) as sandbox, opened(toolset, sandbox=sandbox) as tools:
        pid = int(await said(tools["pid"]))
        await sandbox.close()
        assert not alive(pid)
        with pytest.raises(ToolConnectionError, match="The call was not made"):
            await said(tools["echo"])


async def test_approval_and_idempotence_are_on_the_tools() -> None:
    toolset = MCPToolset.stdio(raw(), idempotent=["echo"], needs_approval=["die"])
    async with opened(toolset) as tools:
        assert (tools["echo"].idempotent, tools["pid"].idempotent) == (True, False)
        assert [name for name, tool in tools.items() if tool.needs_approval] == ["die"]


async def test_what_a_server_logs_goes_to_our_log_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(MCPToolset.stdio(raw(), name="Shop")) as tools:
        with caplog.at_level(logging.DEBUG, "littleghost.mcp"):
            told = await said(tools["asks"])
    assert told.splitlines()[0] == "ping: {}"
    refused = "this client answers no requests of a server"
    assert told.splitlines()[1:] == [
        f"{method}: {refused}"
        for method in ("sampling/createMessage", "elicitation/create", "roots/list", "x")
    ]
    assert "Shop: error: logged by the server" in caplog.text
    assert {record.levelname for record in caplog.records if record.name == "littleghost.mcp"} == {"DEBUG"}
