"""Models that run on this machine: llama.cpp in a child process, spoken to like any other server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import mmap
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

import msgspec

from littleghost.errors import CleanupError, ConfigurationError, DependencyError, ModelUnavailableError
from littleghost.events import ModelEvent
from littleghost.models.contract import Model, ModelRequest
from littleghost.models.openai import OpenAIModel

__all__ = ["LlamaServer", "LocalModel"]

HERE = Path(__file__).parent
STOP_SECONDS = 5.0
SEARCHED = 256 * 1024 * 1024
"""Bytes at the start of a file in which its chat template is looked for; the vocabulary comes before it."""


class LlamaServer:
    """A llama.cpp server for one model, in a child process on a free port of the loopback interface.

    It takes requests only with `key`, writes nothing to the terminal, and ends with `stop`, with this object, with this
    process, however that ends. The methods block; `LocalModel` calls them in a thread.

    Args:
        path: A GGUF file.
        context: Tokens of one conversation.
        slots: How many requests are worked on at once; others wait.
        threads: How many threads compute; the number of processors by default.
        template: A Jinja chat template to use in place of the model's own. By default the model's own, but where that is ChatML
            without tools, one of ours that has them.
        patience: Seconds to wait for the model to be loaded.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context: int = 8192,
        slots: int = 1,
        threads: int | None = None,
        template: str | None = None,
        patience: float = 300.0,
    ) -> None:
        self.path = Path(path)
        self.key = secrets.token_urlsafe(24)
        self._options = {
            "path": str(self.path),
            "name": self.path.stem,
            "context": context,
            "slots": slots,
            "threads": threads or _processors(),
            "key": self.key,
        }
        self._template = template
        self._patience = patience
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Any = None
        self._url = ""

    @property
    def running(self) -> bool:
        """Whether the server is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The id of the child process."""
        return self._process.pid if self._process is not None else None

    @property
    def base_url(self) -> str:
        """Where the server's Chat Completions are; known once it runs."""
        return f"{self._url}/v1"

    def start(self) -> None:
        """Start the server, if it does not run, and wait until it takes requests.

        Raises:
            ConfigurationError: There is no such file, or it is no model.
            DependencyError: xllamacpp is not installed.
            ModelUnavailableError: The server did not start.
        """
        with self._lock:
            if not self.running:
                self._start()

    def stop(self) -> None:
        """End the server and everything it holds."""
        with self._lock:
            if self._end is not None:
                self._end()
            self._process = self._end = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        if not self.path.is_file():
            raise ConfigurationError(f"there is no model file at {self.path}")
        own = _own_template(self.path)
        if importlib.util.find_spec("xllamacpp") is None:
            raise DependencyError.missing("xllamacpp", "local")
        template = self._template
        if template is None and "<|im_start|>" in own and "tools" not in own:
            template = (HERE / "local_tools.jinja").read_text("utf-8")
        if self._end is not None:
            self._end()
        process = subprocess.Popen(
            # -P: this folder has modules named like those of others.
            [sys.executable, "-P", str(HERE / "local_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _finish, process)
        try:
            stdin = cast("IO[bytes]", process.stdin)
            stdin.write(json.dumps({**self._options, "template": template}).encode() + b"\n")
            stdin.flush()
            report = self._report(process)
        except BaseException:
            self._end()
            raise
        if "url" not in report:
            self._end()
            raise ConfigurationError(
                f"llama.cpp cannot load {self.path}: {report.get('error', 'no reason given')}"
            )
        self._process, self._url = process, report["url"]

    def _report(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        # A thread, for reading a pipe has no time-out of its own on every platform.
        lines: queue.Queue[bytes] = queue.Queue()
        stdout = cast("IO[bytes]", process.stdout)
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        began = time.monotonic()
        try:
            line = lines.get(timeout=self._patience)
        except queue.Empty:
            process.kill()
            raise ModelUnavailableError(
                f"llama.cpp did not load {self.path} within {time.monotonic() - began:.0f} s"
            ) from None
        if not line:
            raise ModelUnavailableError(
                f"the llama.cpp process ended with status {process.wait()} while it loaded {self.path}"
            )
        return json.loads(line)


def _finish(process: subprocess.Popen[bytes]) -> None:
    """End a server. In a forked copy of its parent this does nothing: the parent's end of the pipe is still open."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue  # it is gone already
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise CleanupError(f"the llama.cpp process {process.pid} does not end") from error


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


def _own_template(path: Path) -> str:
    """Return the chat template in a GGUF file, or an empty string.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigurationError(f"{path} is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            key = b"tokenizer.chat_template"
            at = content.find(len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little"), 0, SEARCHED)
            if at < 0:
                return ""
            at += 8 + len(key) + 4
            size = int.from_bytes(content[at : at + 8], "little")
            return content[at + 8 : at + 8 + size].decode("utf-8", "replace")


class LocalModel(Model):
    """A model in a GGUF file, run by llama.cpp on this machine.

    The server starts at the first call, ends with `aclose` or this process, and is started again when it died.

    Args:
        path: The GGUF file.
        context: Tokens of one conversation; memory grows with it.
        threads: How many threads compute; the number of processors by default.
        slots: How many calls are worked on at once.
        template: See `LlamaServer`.
        settings: Options of every call, such as ``temperature``.
    """

    capabilities = frozenset({"tool_choice", "answer_format"})

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        context: int = 8192,
        threads: int | None = None,
        slots: int = 1,
        template: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.server = LlamaServer(path, context=context, threads=threads, slots=slots, template=template)
        self.context_window = context
        self._settings = settings
        self._model: OpenAIModel | None = None

    def __repr__(self) -> str:
        return f"LocalModel({self.server.path.name!r})"

    @property
    def name(self) -> str:
        return self.server.path.stem

    @property
    def provider(self) -> str:
        return "llama.cpp"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        model = await self._ready()
        if request.tool_choice not in ("auto", "required", "none"):
            # llama.cpp cannot be told a name; where there is only that tool, it need not be.
            only = tuple(tool for tool in request.tools if tool.name == request.tool_choice)
            request = msgspec.structs.replace(request, tools=only, tool_choice="required")
        # It is a generator, and closed with this one; the contract asks for less.
        async with aclosing(cast("AsyncGenerator[ModelEvent]", model.stream(request))) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            await model.aclose()
        await asyncio.to_thread(self.server.stop)

    async def _ready(self) -> OpenAIModel:
        if self._model is not None and self.server.running:
            return self._model
        model, self._model = self._model, None
        if model is not None:
            await model.aclose()
        await asyncio.to_thread(self.server.start)
        if self._model is None:  # else another call was first
            self._model = OpenAIModel(
                self.name,
                base_url=self.server.base_url,
                api_key=self.server.key,
                settings=self._settings,
                max_retries=2,
            )
        return self._model
