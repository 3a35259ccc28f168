"""A server that is a program, started by our own supervisor or in the run's sandbox, so that nothing of it outlives the run."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from littleghost.errors import CapabilityError, ConfigurationError, ToolConnectionError, ToolError
from littleghost.sandboxes.contract import Process
from littleghost.sandboxes.processes import DEFAULT_PATH, Launcher, Program
from littleghost.tools.contract import RunContext
from littleghost.tools.mcp.hearing import Fate, Inbound, Outbound
from littleghost.tools.mcp.results import said
from littleghost.tools.mcp.servers import Stdio

__all__ = ["connected"]

log = logging.getLogger("littleghost.mcp")

MESSAGE_BYTES = 16 << 20
"""Bytes of one message of a server."""
GARBAGE = 1_000
"""Lines that are no messages, until the server is given up."""
ERRORS_KEPT = 2_000  # bytes
EXIT_SECONDS = 2.0
"""How long a server may take to end by itself when its input ends; see the specification of the lifecycle."""
TERM_SECONDS = 1.0
"""How long then to end on SIGTERM, before it is killed."""


@asynccontextmanager
async def connected(
    stdio: Stdio, server: str, context: RunContext[Any], fate: Fate
) -> AsyncGenerator[tuple[Inbound, Outbound]]:
    """Start the program and give the streams of messages from it and to it; end it afterwards.

    Raises:
        ToolConnectionError: It cannot be started.
        ConfigurationError: Its directory is not there, or this system or sandbox starts no programs.
    """
    launcher = None if stdio.sandboxed else Launcher(f"the MCP server {server}")
    try:
        process = await _start(stdio, launcher, server, context)
        try:
            async with _conversation(process, stdio, server, fate) as streams:
                yield streams
        finally:
            await process.close()
    finally:
        if launcher is not None:
            await launcher.close()


async def _start(stdio: Stdio, launcher: Launcher | None, server: str, context: RunContext[Any]) -> Process:
    try:
        if launcher is None:
            return await context.sandbox.start_program(
                stdio.command, environment=stdio.environment, cwd=stdio.cwd
            )
        # Without the two a program is rarely found, and interpreters have no place for what they keep.
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment = {**inherited, **stdio.environment}
        search = tuple(environment["PATH"].split(os.pathsep)) if "PATH" in environment else DEFAULT_PATH
        with ExitStack() as release:
            flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
            directory = os.open("." if stdio.cwd is None else stdio.cwd, flags)
            release.callback(os.close, directory)
            program = Program(
                arguments=stdio.command, environment=environment, search=search, directory=directory
            )
            return await launcher.start_process(
                program, timeout=None, context=None, result=lambda execution: execution, release=release
            )
    except CapabilityError:
        raise
    except OSError as error:
        if isinstance(error, ToolError):
            raise ToolConnectionError(f"{server} could not be started: {error}") from error
        raise ConfigurationError(f"cwd of {server} cannot be used: {error.strerror}") from error
    except ToolError as error:
        raise ToolConnectionError(f"{server} could not be started: {error}") from error


@asynccontextmanager
async def _conversation(
    process: Process, stdio: Stdio, server: str, fate: Fate
) -> AsyncGenerator[tuple[Inbound, Outbound]]:
    receiver, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbound, sender = anyio.create_memory_object_stream[SessionMessage](0)
    errors = asyncio.create_task(_read_errors(process, stdio, server), name="littleghost-mcp-errors")

    async def read() -> None:
        with receiver:
            try:
                await _hand_on(process, receiver, server, fate)
            finally:
                await _tell_end(process, stdio, errors, fate)
        with suppress(ToolError):
            while await process.read():  # else it may not end
                pass

    async def write() -> None:
        with sender, suppress(ToolError):
            async for item in sender:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.write(text.encode() + b"\n")
        await process.close_input()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            group.start_soon(write)
            try:
                yield inbound, outbound
            finally:
                outbound.close()
                inbound.close()
                await _leave(process)
                group.cancel_scope.cancel()
    finally:
        inbound.close()
        outbound.close()
        errors.cancel()
        await asyncio.wait([errors])


async def _tell_end(process: Process, stdio: Stdio, errors: asyncio.Task[bytes], fate: Fate) -> None:
    """Note how the program ended, if it did, before anybody learns that it is gone."""
    if fate.over:
        return
    ending = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([ending], timeout=1.0)
        if ending.done() and ending.exception() is None:
            await asyncio.wait([errors], timeout=0.5)
            fate.words = fate.words or process.error or f"it ended with exit code {ending.result()}"
        fate.words = fate.words or "it closed its output"
        if errors.done() and not errors.cancelled():
            fate.details = _without_secrets(stdio, errors.result().decode("utf-8", "replace").strip())
    finally:
        ending.cancel()


async def _read_errors(process: Process, stdio: Stdio, server: str) -> bytes:
    """Read what the program prints to its standard error, and return the last of it."""
    kept = b""
    with suppress(ToolError):
        while data := await process.read_error():
            kept = (kept + data)[-ERRORS_KEPT:]
            if log.isEnabledFor(logging.DEBUG):
                text = _without_secrets(stdio, data.decode("utf-8", "replace").strip())
                log.debug("%s (standard error): %s", server, said(text))
    return kept


def _without_secrets(stdio: Stdio, text: str) -> str:
    for value in stdio.environment.values():
        if len(value) >= 6:
            text = text.replace(value, "***")
    return text


async def _hand_on(process: Process, receiver: Any, server: str, fate: Fate) -> None:
    """Hand on the messages of the program until it ends, or nobody listens any more."""
    buffer = bytearray()
    garbage = 0
    try:
        while data := await process.read():
            start = len(buffer)
            buffer += data
            while (end := buffer.find(b"\n", start)) >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                start = 0
                if not line.strip():
                    continue
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except (ValueError, RecursionError):
                    garbage += 1
                    log.debug("%s printed a line that is no message", server)
                    if garbage > GARBAGE:
                        fate.words = f"it printed more than {GARBAGE} lines that are no messages"
                        await process.kill()
                        return
                    continue
                await receiver.send(SessionMessage(message))
            if len(buffer) > MESSAGE_BYTES:
                fate.words = f"it sent a message of more than {MESSAGE_BYTES >> 20} MiB"
                await process.kill()
                return
    except (ToolError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass


async def _leave(process: Process) -> None:
    """Let the program end by itself, which it learns from the end of its input; then ask it to."""
    ending = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([ending], timeout=EXIT_SECONDS)
        if not ending.done():
            with suppress(ToolError):
                await process.terminate()
            await asyncio.wait([ending], timeout=TERM_SECONDS)
    finally:
        if ending.done():
            await asyncio.gather(ending, return_exceptions=True)
        ending.cancel()
