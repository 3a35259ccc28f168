"""Servers to test models against: one that plays what a test wrote, and a real one."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from littleghost.models.local import LlamaServer

ROOT = Path(__file__).resolve().parents[2]
GGUF = Path(os.environ.get("LITTLEGHOST_TEST_GGUF") or ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")


def status(code: int, body: Any = None, headers: dict[str, str] | None = None) -> list[Any]:
    """A step: an answer with a status."""
    raw = body.encode() if isinstance(body, str) else json.dumps(body if body is not None else {}).encode()
    kind = "text/html" if isinstance(body, str) else "application/json"
    head = f"HTTP/1.1 {code} X\r\ncontent-type: {kind}\r\ncontent-length: {len(raw)}\r\n"
    for name, value in (headers or {}).items():
        head += f"{name}: {value}\r\n"
    return ["raw", head.encode() + b"\r\n" + raw]


def event(value: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def delta(finish: str | None = None, **fields: Any) -> bytes:
    """One chunk of an answer."""
    return event({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]})


def called(*calls: dict[str, Any]) -> bytes:
    """One chunk with pieces of tool calls."""
    return delta(tool_calls=list(calls))


class Wire:
    """An HTTP server that answers each request with the next step of a script, byte by byte as it says.

    A step is a list of: ``bytes`` to send (after the head, as one chunk), a ``float`` to wait, and ``"cut"`` (close without the
    end), ``"reset"`` (RST), ``"hang"`` (until the client goes away), ``"raw"`` (what follows goes without head or chunks). A function
    in place of a list gets the body of the request, and returns one.
    """

    status = staticmethod(status)
    event = staticmethod(event)
    delta = staticmethod(delta)
    called = staticmethod(called)
    done = event(b"[DONE]")

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self.gone = asyncio.Event()
        self.sent = asyncio.Event()
        self._script: list[list[Any]] = []
        self._again: list[Any] | None = None
        self._tasks: set[Any] = set()

    def play(self, *steps: list[Any]) -> None:
        self._script += steps

    def always(self, step: list[Any]) -> None:
        self._again = step

    @property
    def remaining(self) -> int:
        return len(self._script)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._tasks.add(asyncio.current_task())
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        except asyncio.CancelledError:
            pass  # by stop; the callback that asyncio gives this task does not know cancelled ones
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append(
            {"line": lines[0], "headers": headers, "body": json.loads(body) if body else None}
        )
        step = self._script.pop(0) if self._script else self._again
        if step is None:
            step = status(500, "the test has no answer left", {"x-should-retry": "false"})
        if callable(step):
            step = step(self.requests[-1]["body"])
        raw = begun = False
        for action in step:
            if isinstance(action, float):
                await asyncio.sleep(action)
            elif action == "raw":
                raw = True
            elif action == "cut":
                return False
            elif action == "reset":
                writer.transport.abort()
                return False
            elif action == "hang":
                self.sent.set()
                await reader.read(1)
                self.gone.set()
                return False
            elif raw:
                writer.write(action)
            else:
                if not begun:
                    begun = True
                    writer.write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                    )
                writer.write(b"%x\r\n%s\r\n" % (len(action), action))
            await writer.drain()
        if not raw:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return True


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    server = Wire()
    await server.start()
    try:
        yield server
        assert server.remaining == 0, f"{server.remaining} answers were not asked for"
    finally:
        await server.stop()


@pytest.fixture(scope="session")
def gguf(require: Callable[[object, str, str], None]) -> Path:
    require(importlib.util.find_spec("xllamacpp"), "xllamacpp", "pip install 'littleghost[local]'")
    require(GGUF.is_file(), f"a model at {GGUF}", "make test fetches it; or set LITTLEGHOST_TEST_GGUF")
    return GGUF


@pytest.fixture(scope="session")
def llama(gguf: Path) -> Iterator[LlamaServer]:
    """A llama.cpp server with SmolLM2-135M, one for all tests."""
    # One thread: two wait for each other, which on a busy machine is ten times slower.
    with LlamaServer(gguf, context=4096, slots=2, threads=1) as server:
        yield server
