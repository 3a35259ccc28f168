"""MCP servers on the web: a real one of the official SDK behind uvicorn, and sockets that answer as they should not."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcpside import Line, Web, impatient

from littleghost import (
    Agent,
    CancellationToken,
    ConfigurationError,
    CredentialError,
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
from littleghost.tools.mcp import pipes, web


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    server = Web(tmp_path_factory.mktemp("shop"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    server = Web(tmp_path_factory.mktemp("guarded"), token="hunter2")
    yield server
    server.stop()


@asynccontextmanager
async def opened(toolset: MCPToolset, **context: Any):
    async with toolset.open(RunContext(**context)) as tools:
        yield {tool.name: tool for tool in tools}


async def said(tool: Tool, **arguments: Any) -> str:
    (block,) = await tool.call(arguments, RunContext())
    return block.text


async def test_a_server_of_the_official_sdk(shop: Web) -> None:
    before = len(shop.seen())
    async with opened(MCPToolset.http(shop.url)) as tools:
        assert await said(tools["add"], a=1, b=2) == "3"
        with pytest.raises(ToolError, match="valid integer"):
            await said(tools["add"], a="x")
        assert len(await tools["everything"].call({}, RunContext())) == 9
    seen = shop.seen()[before:]
    assert [method for method, *_ in seen].count("DELETE") == 1
    assert seen[-1][0] == "DELETE"
    assert {headers.get("mcp-session-id") for method, _, _, headers in seen[1:]} != {None}
    assert "GET" not in {method for method, *_ in seen}


async def test_calls_side_by_side_and_runs_with_sessions_of_their_own(shop: Web) -> None:
    before = len(shop.seen())
    toolset = MCPToolset.http(shop.url)
    async with Line() as line, opened(toolset) as one, opened(toolset) as two:
        holding = [
            asyncio.create_task(said(tools["hold"], address=line.address)) for tools in (one, one, two)
        ]
        for held in [await line.call() for _ in holding]:
            await held.go_on("at once")
        assert await asyncio.gather(*holding) == ["at once"] * 3
    sessions = {headers.get("mcp-session-id") for *_, headers in shop.seen()[before:]} - {None}
    assert len(sessions) == 2


async def test_a_cancelled_run_tells_the_server(shop: Web) -> None:
    async with Line() as line:
        script = [Message.assistant([ToolUse(id="1", name="hold", input={"address": line.address})])]
        token = CancellationToken()
        agent = Agent(ScriptedModel(script), tools=[MCPToolset.http(shop.url)])
        running = asyncio.create_task(agent.ask("Go", cancellation=token))
        held = await line.call()
        token.cancel()
        assert await held.heard() == "cancelled"
        assert (await running).outcome == "cancelled"


async def test_a_call_that_takes_too_long(shop: Web) -> None:
    async with Line() as line, opened(MCPToolset.http(shop.url)) as tools:
        with (
            impatient(tools["hold"], timeout=1.0),
            pytest.raises(ToolTimeoutError, match="effect is unknown"),
        ):
            await said(tools["hold"], address=line.address)
        assert await (await line.call()).heard() == "cancelled"
        assert await said(tools["echo"], text="still there") == "still there"


async def test_a_server_that_is_started_again_in_a_run(tmp_path: Path) -> None:
    server = Web(tmp_path)
    ledger, again = tmp_path / "ledger", tmp_path / "again"
    try:
        async with (
            Line() as line,
            opened(MCPToolset.http(server.url)) as plain,
            opened(MCPToolset.http(server.url, idempotent=["hold"])) as idempotent,
        ):
            assert await said(plain["note"], ledger=str(ledger)) == "noted"
            lost = asyncio.create_task(said(plain["hold"], address=line.address, ledger=str(ledger)))
            kept = asyncio.create_task(said(idempotent["hold"], address=line.address, ledger=str(again)))
            for _ in range(2):
                await line.call()
            server.stop()
            server.start()
            with pytest.raises(ToolConnectionError, match=r"went away during the call.* effect is unknown"):
                await lost
            await (await line.call()).go_on("at last")
            assert await kept == "at last"
            # It answers 404 to the session it does not know, so none of these took effect the first time.
            answers = await asyncio.gather(*(said(plain["note"], ledger=str(ledger)) for _ in range(3)))
            assert answers == ["noted"] * 3
    finally:
        server.stop()
    assert ledger.read_text() == "once\n" * 5
    assert again.read_text() == "once\n" * 2


async def test_a_server_that_goes_between_two_calls() -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(silent_socket(text_of("there")))
        async with opened(MCPToolset.http(f"http://127.0.0.1:{port}/")) as tools:
            assert await said(tools["go"]) == "there"
            await stack.aclose()
            with pytest.raises(ToolConnectionError, match=r"no connection.* The call was not made"):
                await said(tools["go"])


async def test_a_server_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    async with silent_socket() as port:
        pass
    url = f"http://127.0.0.1:{port}/mcp"
    with pytest.raises(
        ToolConnectionError, match=rf"MCP server 127.0.0.1:{port}/mcp cannot be reached: no connection"
    ):
        await Agent(ScriptedModel([]), tools=[MCPToolset.http(url)]).ask("Go")
    run = await Agent(ScriptedModel(["Alone."]), tools=[MCPToolset.http(url, optional=True)]).ask("Go")
    assert run.text == "Alone."
    assert "tools are left out" in caplog.text


async def test_a_page_that_is_no_server(shop: Web) -> None:
    toolset = MCPToolset.http(shop.url.replace("/mcp", "/other"))
    with pytest.raises(ToolConnectionError, match="HTTP status 404"):
        await Agent(ScriptedModel([]), tools=[toolset]).ask("Go")


# Who asks


async def test_headers_are_asked_for_each_request(guarded: Web, caplog: pytest.LogCaptureFixture) -> None:
    tokens = iter(range(1000))

    async def headers() -> dict[str, str]:
        await asyncio.sleep(0)
        return {"Authorization": "Bearer hunter2", "X-Number": str(next(tokens))}

    before = len(guarded.seen())
    toolset = MCPToolset.http(f"{guarded.url}?key=swordfish", headers=headers)
    with caplog.at_level(logging.DEBUG):
        async with opened(toolset) as tools:
            assert await said(tools["add"], a=1, b=2) == "3"
    seen = guarded.seen()[before:]
    assert [headers["x-number"] for *_, headers in seen] == [str(number) for number in range(len(seen))]
    assert {query for _, _, query, _ in seen} == {"key=swordfish"}
    assert "127.0.0.1" in caplog.text  # the SDK and its HTTP client do log
    assert "hunter2" not in caplog.text
    assert "swordfish" not in caplog.text


@pytest.mark.parametrize("headers", [None, {"Authorization": "Bearer wrong-one"}])
async def test_credentials_that_are_refused(guarded: Web, headers: dict[str, str] | None) -> None:
    toolset = MCPToolset.http(guarded.url, headers=headers, optional=True)
    with pytest.raises(CredentialError, match=r"refuses the credentials \(HTTP status 401\)") as raised:
        await Agent(ScriptedModel([]), tools=[toolset]).ask("Go")
    assert "wrong-one" not in str(raised.value)


async def test_credentials_that_run_out_in_a_run(guarded: Web) -> None:
    token = "hunter2"
    async with opened(
        MCPToolset.http(guarded.url, headers=lambda: {"Authorization": f"Bearer {token}"})
    ) as tools:
        token = "old"
        with pytest.raises(ToolError, match=r"refuses the credentials \(HTTP status 401\)"):
            await said(tools["add"], a=1, b=2)
        token = "hunter2"
        assert await said(tools["add"], a=1, b=2) == "3"


async def test_a_function_that_gives_no_headers(guarded: Web) -> None:
    def headers() -> dict[str, str]:
        raise KeyError("swordfish")

    with pytest.raises(ToolConnectionError, match=r"headers could not be had \(KeyError\)") as raised:
        await Agent(ScriptedModel([]), tools=[MCPToolset.http(guarded.url, headers=headers)]).ask("Go")
    assert "swordfish" not in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)
    toolset = MCPToolset.http(guarded.url, headers=lambda: {"Authorization": "a\nb"})
    with pytest.raises(ConfigurationError, match="the value of Authorization is not one line of text"):
        await Agent(ScriptedModel([]), tools=[toolset]).ask("Go")


async def test_headers_do_not_follow_a_redirect_to_another_place(shop: Web, guarded: Web) -> None:
    before = len(shop.seen())
    url = f"http://127.0.0.1:{guarded.port}/elsewhere?{shop.url}"
    toolset = MCPToolset.http(url, headers={"Authorization": "Bearer hunter2"})
    with pytest.raises(ToolConnectionError, match="not followed"):
        await Agent(ScriptedModel([]), tools=[toolset]).ask("Go")
    assert shop.seen()[before:] == []


async def test_headers_and_query_go_to_the_servers_own_origin_whatever_the_sdk_does() -> None:
    sent: list[httpx2.Request] = []

    class Recording(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            sent.append(request)
            return httpx2.Response(200, stream=httpx2.ByteStream(b""))

    own = httpx2.URL("https://example.com/mcp?key=swordfish")
    transport = web._Guarded(own, {"Authorization": "hunter2"}, Recording())
    others = ["https://example.com:444/mcp", "http://example.com/mcp", "https://example.org/mcp"]
    for url in ["https://example.com/other", *others]:
        await transport.handle_async_request(httpx2.Request("POST", url))
    assert [request.headers.get("authorization") for request in sent] == ["hunter2", None, None, None]
    assert [request.url.query for request in sent] == [b"key=swordfish", b"", b"", b""]


async def test_a_redirect_within_the_server_is_followed(guarded: Web) -> None:
    url = f"http://127.0.0.1:{guarded.port}/elsewhere?{guarded.url}"
    async with opened(MCPToolset.http(url, headers={"Authorization": "Bearer hunter2"})) as tools:
        assert await said(tools["add"], a=1, b=2) == "3"


# Sockets that answer as they should not

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def silent_socket(answer: Answer | None = None):
    """A server whose answer to each message is what ``answer`` writes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if answer is not None:
                    method = head.split()[0].decode()
                    message = {"HTTP": method, **fields, **(json.loads(body) if body else {})}
                    await answer(message, writer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def respond(
    writer: asyncio.StreamWriter,
    body: bytes = b"",
    status: int = 200,
    kind: str = "application/json",
    **more: str,
) -> None:
    lines = [f"HTTP/1.1 {status} x", f"content-type: {kind}", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)


def packed(id: Any, result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode()


async def greeting(message: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
    """Answer all but calls."""
    method = message.get("method")
    if method == "initialize":
        result = {
            "protocolVersion": message["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "socket", "version": "1"},
        }
        respond(writer, packed(message["id"], result), mcp_session_id="s")
    elif method == "tools/list":
        tools = [{"name": "go", "inputSchema": {"type": "object"}}]
        respond(writer, packed(message["id"], {"tools": tools}))
    elif method == "tools/call":
        return False
    else:
        respond(writer, status=202)
    return True


def text_of(text: str) -> Answer:
    """What greets, and answers calls with a text, each over a connection of its own."""

    async def whole(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if not await greeting(message, writer):
            respond(writer, packed(message["id"], {"content": [{"type": "text", "text": text}]}))
        await writer.drain()
        writer.close()

    return whole


@asynccontextmanager
async def answering(answer: Answer, **options: Any):
    async def whole(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if not await greeting(message, writer):
            await answer(message, writer)

    async with (
        silent_socket(whole) as port,
        opened(MCPToolset.http(f"http://127.0.0.1:{port}/", **options)) as tools,
    ):
        yield tools["go"]


async def test_an_answer_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MESSAGE_BYTES", 100_000)

    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        content = [{"type": "text", "text": "x" * 200_000}]
        respond(writer, packed(message["id"], {"content": content}))

    async with answering(answer) as go:
        with pytest.raises(ToolConnectionError, match=r"more than .* MiB.* effect is unknown"):
            await said(go)
        with pytest.raises(ToolConnectionError):
            await said(go)


async def test_an_event_stream_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MESSAGE_BYTES", 100_000)

    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\n\r\n")
        event = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "x"}})
        while True:
            writer.write(f"event: message\ndata: {event}\n\n".encode())
            await writer.drain()

    async with answering(answer) as go:
        with pytest.raises(ToolConnectionError, match="effect is unknown"):
            await said(go)


async def test_a_compressed_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        assert message["accept-encoding"] == "identity"
        respond(writer, gzip.compress(packed(message["id"], {"content": []})), content_encoding="gzip")

    async with answering(answer) as go:
        with pytest.raises(ToolConnectionError, match="compressed its answer"):
            await said(go)


@pytest.mark.parametrize("status", [500, 503])
async def test_a_server_that_fails(status: int) -> None:
    asked = 0

    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        respond(writer, status=status)

    async with answering(answer) as go:
        with pytest.raises(ToolConnectionError, match=rf"HTTP status {status}.* effect is unknown"):
            await said(go)
    assert asked == 1


async def test_a_server_that_has_had_enough() -> None:
    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        respond(writer, status=429)

    async with answering(answer) as go:
        with pytest.raises(ToolError, match="HTTP status 429") as raised:
            await said(go)
    assert not isinstance(raised.value, ToolConnectionError)


async def test_a_server_that_always_says_that_the_session_is_over() -> None:
    asked = 0

    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        respond(writer, status=404)

    async with answering(answer) as go:
        with pytest.raises(ToolConnectionError, match=r"HTTP status 404\. The call was not made"):
            await said(go)
    assert asked == 3


async def test_a_connection_that_breaks_in_an_answer_is_the_loss_of_that_call_alone() -> None:
    release = asyncio.Event()

    async def answer(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if message["params"].get("arguments"):
            await release.wait()
            respond(writer, packed(message["id"], {"content": [{"type": "text", "text": "whole"}]}))
        else:
            writer.write(b"HTTP/1.1 200 x\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
            writer.close()

    async with answering(answer) as go:
        slow = asyncio.create_task(said(go, slow=True))
        with pytest.raises(ToolConnectionError, match=r"the connection broke .* effect is unknown"):
            await said(go)
        release.set()
        assert await slow == "whole"


async def test_a_server_that_has_the_client_come_back_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "RESUMPTIONS", 5)
    asked: list[str] = []

    async def whole(message: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        asked.append(message["HTTP"])
        if message["HTTP"] == "GET" or not await greeting(message, writer):
            writer.write(b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            writer.write(b"id: 1\nretry: 0\ndata:\n\n")
            writer.close()

    async with (
        silent_socket(whole) as port,
        opened(MCPToolset.http(f"http://127.0.0.1:{port}/")) as tools,
    ):
        with pytest.raises(ToolConnectionError, match="effect is unknown"):
            await said(tools["go"])
    assert asked.count("GET") <= 6


async def test_a_socket_that_says_nothing() -> None:
    async with silent_socket() as port:
        toolset = MCPToolset.http(f"http://127.0.0.1:{port}/", connect_timeout=0.3)
        with pytest.raises(ToolConnectionError, match=r"did not answer within 0.3 s"):
            await Agent(ScriptedModel([]), tools=[toolset]).ask("Go")


def test_the_bound_is_the_same_for_both_kinds() -> None:
    assert web.MESSAGE_BYTES == pipes.MESSAGE_BYTES
