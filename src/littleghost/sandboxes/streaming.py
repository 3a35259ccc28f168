"""A program that its caller talks to while it runs.

Nothing is read ahead: what nobody reads stays in the pipe, and when that is full the program waits. So a conversation costs as much
memory as its caller asks for, however much the program prints.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack, suppress
from typing import Any

from littleghost.errors import CleanupError, ToolError, ToolValueError
from littleghost.sandboxes.captures import CHUNK
from littleghost.sandboxes.commands import Command
from littleghost.sandboxes.contract import Execution, Process

__all__ = ["StreamedProcess"]

_KILLED = 128 + 9


class StreamedProcess(Process):
    """A running program, over the line to its keeper and three pipes. It belongs to the event loop it was started in.

    Args:
        command: The line to its keeper.
        pipes: The ends of its standard input, output and error, which do not block.
        over: Waits until nothing of it is left.
        result: Returns how it went, when it is over; raises where it was cancelled.
        release: Closed when it is over.
    """

    def __init__(
        self,
        command: Command,
        pipes: tuple[int, int, int],
        over: Callable[[Command], Coroutine[Any, Any, None]],
        result: Callable[[], Execution],
        release: ExitStack,
    ) -> None:
        self._command, self._over, self._result, self._release = command, over, result, release
        self._input: int | None = pipes[0]
        self._outputs: dict[str, int] = {"output": pipes[1], "error output": pipes[2]}
        self._locks = {name: asyncio.Lock() for name in ("input", *self._outputs)}
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._closed = False
        self._outcome: Execution | BaseException | None = None
        self._watch = command.loop.create_task(self._watched(), name="littleghost-process")
        command.finished.add_done_callback(lambda _: self._wake())
        command.abandon = self._abandoned

    async def begun(self) -> None:
        """Wait until it runs, or is known not to."""
        await asyncio.shield(self._command.started)

    async def write(self, data: bytes) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("what is written to a process must be bytes")
        async with self._locks["input"]:
            view = memoryview(data).cast("B")
            while view:
                if self._input is None or self._closed:
                    self._raise_ended()
                    raise ToolError(
                        "the process is closed" if self._closed else "the input of the process is closed"
                    )
                try:
                    view = view[os.write(self._input, view[:CHUNK]) :]
                except BlockingIOError:
                    await self._ready(self._input, self._command.loop.add_writer)
                except OSError as error:
                    self._raise_ended()
                    raise ToolError("the process does not read its input any more") from error

    async def close_input(self) -> None:
        async with self._locks["input"]:
            self._shut_input()

    async def read(self, limit: int = 65_536) -> bytes:
        return await self._receive("output", limit)

    async def read_error(self, limit: int = 65_536) -> bytes:
        return await self._receive("error output", limit)

    async def _receive(self, name: str, limit: int) -> bytes:
        if not isinstance(limit, int) or limit < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("the limit of a read must be a whole number from 1 up")
        async with self._locks[name]:
            while True:
                if self._closed:
                    raise ToolError("the process is closed")
                over = self._command.finished.done()
                try:
                    data = os.read(self._outputs[name], min(limit, CHUNK))
                except BlockingIOError:
                    if over:  # what still holds the pipe is nothing of the program's
                        data = b""
                    else:
                        await self._ready(self._outputs[name], self._command.loop.add_reader)
                        continue
                if not data:
                    self._raise_ended()
                return data

    async def wait(self) -> int:
        await asyncio.shield(self._watch)
        return self._ended().exit_code or 0

    @property
    def error(self) -> str | None:
        return self._outcome.error if isinstance(self._outcome, Execution) else None

    async def terminate(self) -> None:
        self._command.terminate()

    async def kill(self) -> None:
        self._command.end("killed")
        await asyncio.shield(self._watch)

    async def close(self) -> None:
        self._closed = True
        self._command.end("killed")
        self._wake()
        try:
            await _to_the_end(self._watch)
        finally:
            self._shut()

    async def _watched(self) -> None:
        """See it to its end. The end of the event loop, which cancels this, ends it too."""
        ending = asyncio.ensure_future(self._over(self._command))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            self._command.end("abandoned")
            await _to_the_end(ending)
        finally:
            self._command.close()
            try:
                self._outcome = self._result()
            except BaseException as error:  # noqa: BLE001 (whoever waits is told)
                self._outcome = error
            self._release.close()
            if self._command.reason == "closed":  # with the sandbox
                self._closed = True
                self._shut()
            self._wake()

    def _abandoned(self) -> None:
        self._closed = True
        self._command.close()
        self._release.close()
        self._shut()

    def _ended(self) -> Execution:
        if isinstance(self._outcome, Execution):
            return self._outcome
        raise self._outcome or CleanupError("some processes of the command could not be killed")

    def _raise_ended(self) -> None:
        """Raise where it was cancelled or came to a bad end, for the end of a stream says nothing of that."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        if self._command.reason in ("cancelled", "deadline"):
            self._result()

    async def _ready(self, descriptor: int, add: Callable[..., None]) -> None:
        future = self._command.loop.create_future()
        self._waiting[descriptor] = future
        add(descriptor, _settle, future)
        try:
            await future
        finally:
            if self._waiting.get(descriptor) is future:
                self._quiet(descriptor)

    def _quiet(self, descriptor: int) -> None:
        self._waiting.pop(descriptor, None)
        if not self._command.loop.is_closed():
            self._command.loop.remove_reader(descriptor)
            self._command.loop.remove_writer(descriptor)

    def _wake(self) -> None:
        for future in list(self._waiting.values()):
            _settle(future)

    def _shut_input(self) -> None:
        if self._input is not None:
            descriptor, self._input = self._input, None
            self._drop(descriptor)

    def _shut(self) -> None:
        self._shut_input()
        while self._outputs:
            self._drop(self._outputs.popitem()[1])

    def _drop(self, descriptor: int) -> None:
        future = self._waiting.get(descriptor)
        if future is not None:
            self._quiet(descriptor)  # before the number can be someone else's
            _settle(future)
        os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_outputs", None) is not None:
            with suppress(OSError):
                self._shut()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _to_the_end(work: Awaitable[object]) -> None:
    """Wait for ``work`` however often this task is cancelled meanwhile, and let the cancellation go on then."""
    ending = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
