"""What tests of MCP share: how servers are started, and a line on which a tool says that it has begun."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

FOLDER = Path(__file__).parent
REAL = [sys.executable, str(FOLDER / "mcp_server.py")]


def raw(**how: Any) -> list[str]:
    """The command of a server that misbehaves as ``how`` says."""
    return [sys.executable, "-S", "-E", str(FOLDER / "mcp_raw.py"), json.dumps(how)]


def alive(pid: int) -> bool:
    """Whether a process lives; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def impatient(tool: Any, **options: Any) -> Iterator[None]:
    """Have the tool's toolset use other options for a while, so that nothing but what must be cut off can be."""
    connection = tool._connection
    before = connection._options
    connection._options = msgspec.structs.replace(before, **options)
    try:
        yield
    finally:
        connection._options = before


class Line:
    """A socket on which tools say that they have begun, and are told to go on."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.address = os.path.join(self._folder.name, "s")
        self._calls: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._take, self.address)
        return self

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._calls.put_nowait((reader, writer))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for writer in self._writers:
            writer.close()
        self._server.close()
        await self._server.wait_closed()
        self._folder.cleanup()

    async def call(self) -> Held:
        """The next call that has begun."""
        reader, writer = await self._calls.get()
        return Held(int((await reader.readline()).split()[1]), reader, writer)


class Held:
    """A call that waits."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid, self._reader, self._writer = pid, reader, writer

    async def go_on(self, said: str) -> None:
        self._writer.write(said.encode())
        await self._writer.drain()

    async def heard(self) -> str:
        """What the call says next; empty when its process is gone."""
        try:
            return (await self._reader.readline()).decode().strip()
        except ConnectionResetError:
            return ""


class Web:
    """The real server over HTTP, in a process of its own."""

    def __init__(self, folder: Path, *, token: str = "", port: int = 0) -> None:
        self.requests = folder / "requests"
        self._arguments = [token] if token else []
        self.port = port
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [*REAL, "http", str(self.port), *self._arguments],
            env={"PATH": os.environ["PATH"], "REQUESTS": str(self.requests)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def seen(self) -> list[tuple[str, str, str, dict[str, str]]]:
        """Method, path, query and headers of each request so far."""
        lines = self.requests.read_text().splitlines() if self.requests.exists() else []
        return [tuple(json.loads(line)) for line in lines]
