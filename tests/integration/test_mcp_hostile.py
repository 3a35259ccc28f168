"""MCP servers that mean no good: each is a real process that is written by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.shared import jsonrpc_dispatcher
from mcpside import alive, impatient, raw

from littleghost import (
    Agent,
    ConfigurationError,
    MCPToolset,
    Message,
    RunContext,
    Tool,
    ToolConnectionError,
    ToolError,
    ToolTimeoutError,
    ToolUse,
)
from littleghost.testing import ScriptedModel
from littleghost.tools.mcp import pipes


@asynccontextmanager
async def opened(command: list[str], **options: Any):
    async with MCPToolset.stdio(command, **options).open(RunContext()) as tools:
        yield {tool.name: tool for tool in tools}


async def said(tool: Tool, **arguments: Any) -> str:
    (block,) = await tool.call(arguments, RunContext())
    return block.text


async def refused(command: list[str], **options: Any) -> Exception:
    with pytest.raises((ConfigurationError, ToolConnectionError)) as raised:
        async with opened(command, name="Shop", **options):
            pass
    assert "Shop" in str(raised.value)
    return raised.value


@pytest.mark.parametrize(
    ("how", "kind", "complaint"),
    [
        ({"pages": 1_000_000}, ToolConnectionError, "more than 100 pages"),
        ({"many": 2_000}, ToolConnectionError, "more than 1000 tools"),
        (
            {"tools": [{"name": "a", "inputSchema": {"type": "object"}, "description": "x" * 9_000_000}]},
            ToolConnectionError,
            "8 MiB",
        ),
        ({"tools": [{"name": "a"}]}, ToolConnectionError, "tools.0.inputSchema: Field required"),
        ({"tools": [{"name": 1, "inputSchema": {}}]}, ToolConnectionError, "not MCP's"),
        ({"tools": "all"}, ToolConnectionError, "not MCP's"),
        (
            {"tools": [{"name": "a", "inputSchema": {"type": "array"}}]},
            ToolConnectionError,
            "tools.0.inputSchema",
        ),
        (
            {"tools": [{"name": "a", "inputSchema": {"type": "object", "required": ["b", "b"]}}]},
            ConfigurationError,
            "the schema of tool 'a' of Shop",
        ),
        (
            {"tools": [{"name": "a", "inputSchema": {"type": "object"}}] * 2},
            ConfigurationError,
            "two tools named 'a'",
        ),
        ({"version": "1815-06-18"}, ToolConnectionError, "1815-06-18"),
    ],
)
async def test_a_list_of_tools_that_cannot_be_taken(
    how: dict[str, Any], kind: type[Exception], complaint: str, tmp_path: Any
) -> None:
    if len(str(how)) > 100_000:  # too long for an argument
        (tmp_path / "how").write_text(__import__("json").dumps(how))
        command = [*raw()[:-1], f"@{tmp_path / 'how'}"]
    else:
        command = raw(**how)
    error = await refused(command)
    assert isinstance(error, kind)
    assert complaint in str(error)
    assert len(str(error)) < 3_000


async def test_pages_are_read_to_the_end() -> None:
    async with opened(raw(pages=5)) as tools:
        assert list(tools) == ["t0", "t1", "t2", "t3", "t4"]


async def test_a_server_without_tools() -> None:
    async with opened(raw(toolless=True)) as tools:
        assert tools == {}
    assert "has no tool named a; it has: none" in str(await refused(raw(toolless=True), include=["a"]))


async def test_noise_between_the_messages() -> None:
    async with opened(raw(noise=20)) as tools:
        assert await said(tools["echo"], text="heard") == "heard"


async def test_noise_without_end() -> None:
    assert "1000 lines that are no messages" in str(await refused(raw(noise=2_000)))


async def test_a_program_that_is_no_server() -> None:
    assert "1000 lines that are no messages" in str(await refused(["yes"]))
    assert "exit code 0" in str(await refused(["true"]))


async def test_a_message_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "MESSAGE_BYTES", 1 << 20)
    async with opened(raw(), max_result_bytes=1_000) as tools:
        assert "bytes left out" in await said(tools["long"], size=900_000)
        with pytest.raises(ToolConnectionError, match="a message of more than 1 MiB"):
            await said(tools["long"], size=2_000_000)
        assert await said(tools["echo"], text="again") == "again"


async def test_answers_in_a_form_that_is_not_the_protocols() -> None:
    async with opened(raw()) as tools:
        with pytest.raises(ToolError, match="not MCP's"):
            await said(tools["wrong"])
        assert "[" * 50 in await said(tools["nested"], depth=50)
        assert await said(tools["echo"], text="still there") == "still there"


async def test_an_answer_nested_without_end_is_one_calls_loss() -> None:
    async with opened(raw()) as tools:
        # It is no JSON to the parser, so to nobody an answer.
        with impatient(tools["nested"], timeout=1.0), pytest.raises(ToolTimeoutError):
            await said(tools["nested"], depth=100_000)
        assert await said(tools["echo"], text="still there") == "still there"


async def test_a_refusal_is_told_and_cut() -> None:
    async with opened(raw(), name="Shop") as tools:
        with pytest.raises(ToolError) as raised:
            await said(tools["refuse"])
        assert str(raised.value).startswith("no no")
        assert len(str(raised.value)) < 2_100
        with pytest.raises(ToolConnectionError, match="effect is unknown"):
            await said(tools["refuse"], code=-32000)  # says itself that the connection is closed


async def test_a_server_of_the_versions_from_2026_on_that_asks_for_input() -> None:
    async with opened(raw(modern=True)) as tools:
        with pytest.raises(ToolError, match="asks for more input"):
            await said(tools["echo"])


async def test_a_server_that_stops_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonrpc_dispatcher, "_ABANDON_WRITE_TIMEOUT", 0.1)
    monkeypatch.setattr(pipes, "EXIT_SECONDS", 0.1)
    async with opened(raw()) as tools:
        pid = int(await said(tools["pid"]))
        assert await said(tools["deafen"]) == "deaf"
        for _ in range(2):
            with impatient(tools["echo"], timeout=0.3), pytest.raises(ToolTimeoutError):
                await said(tools["echo"], text="x" * 1_000_000)
    assert not alive(pid)


async def test_a_server_that_asks_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends requests and reads no answers. Nothing of it piles up here, and the call ends in time."""
    monkeypatch.setattr(jsonrpc_dispatcher, "_ABANDON_WRITE_TIMEOUT", 0.1)
    monkeypatch.setattr(pipes, "EXIT_SECONDS", 0.1)
    async with opened(raw(), timeout=1.0) as tools:
        with pytest.raises(ToolTimeoutError):
            await said(tools["flood"])
        assert len(asyncio.all_tasks()) < 30


async def test_what_it_returns_is_data_to_the_run() -> None:
    script = [
        Message.assistant(
            [ToolUse(id="1", name="nested", input={"depth": 98}), ToolUse(id="2", name="wrong", input={})]
        ),
        "Done.",
    ]
    run = await Agent(ScriptedModel(script), tools=[MCPToolset.stdio(raw())]).ask("Go")
    assert run.outcome == "completed"
    assert [result.status for result in run.messages[2].tool_results] == ["success", "error"]
