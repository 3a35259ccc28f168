"""A program on the far side that its caller talks to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from littleghost.cancellation import Interruptible
from littleghost.errors import (
    DeadlineExceeded,
    LittleGhostError,
    ToolConnectionError,
    ToolError,
    ToolValueError,
)
from littleghost.sandboxes.contract import Process
from littleghost.sandboxes.far.line import DROPPING, Line
from littleghost.sandboxes.far.wire import Frame, mapping

__all__ = ["FarProcess"]

_PIECE = 1 << 18  # of what is written at once
_MOST = 1 << 16  # of what is read at once


class FarProcess(Process):
    """A program on the far side, by its number there. It belongs to the event loop it was started in.

    Args:
        line: The line.
        number: Which program.
        context: Whose cancellation and deadline kill it.
        forget: Called when it is closed.
    """

    def __init__(
        self, line: Line, number: int, context: Interruptible | None, forget: Callable[[], None]
    ) -> None:
        self._line, self._number, self._forget = line, number, forget
        self._loop = asyncio.get_running_loop()
        self._closed: asyncio.Future[Frame] | None = None
        self._input_open = True
        self._locks = {name: asyncio.Lock() for name in ("input", "output", "errors")}
        # A read that was cancelled goes on, and what it brings is the next one's; so no byte is lost on the way.
        self._reading: dict[str, asyncio.Future[Frame]] = {}
        self._held = {"output": b"", "errors": b""}
        self._stopped: LittleGhostError | None = None
        self._release = ExitStack()
        self._over = asyncio.ensure_future(self._ask("wait"))
        self._over.add_done_callback(self._ended)
        if context is not None:
            self._bind(context)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop it belongs to."""
        return self._loop

    def _bind(self, context: Interruptible) -> None:
        deadline = context.deadline
        if deadline is not None:

            def late() -> None:
                self._stop(DeadlineExceeded(f"the deadline of {deadline.seconds:g} s has passed"))

            self._release.callback(self._loop.call_later(deadline.remaining(), late).cancel)

        def cancelled() -> None:
            try:
                context.cancellation.check()
            except LittleGhostError as error:
                self._stop(error)

        def cancelled_threadsafe() -> None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(cancelled)

        self._release.callback(context.cancellation.add_callback(cancelled_threadsafe))

    def _stop(self, why: LittleGhostError) -> None:
        """Kill it for ``why``, unless it has ended by itself by then."""

        async def stop() -> None:
            with suppress(LittleGhostError):
                answer = await self._ask("signal", kill=True)
                if (mapping(answer.head.get("is")) or {}).get("over"):
                    self._stopped = None

        if self._stopped is None and not self._over.done():
            self._stopped = why
            self._stopping = asyncio.ensure_future(stop())

    def _ended(self, over: asyncio.Future[Frame]) -> None:
        self._release.close()
        if not over.cancelled():
            over.exception()
        elif self._closed is None:  # its event loop ends, and it with that
            self._line.drop(self._number)

    def _ask(
        self, do: str, data: bytes = b"", *, room: int = 0, patience: float | None = None, **given: Any
    ) -> asyncio.Task[Frame]:
        """Ask something of it, in a task that a caller's cancellation does not end."""
        head = {"do": do, "with": {"process": self._number, **given}}
        task = self._loop.create_task(self._line.ask(head, data, room=room, patience=patience))
        task.add_done_callback(_heard)
        return task

    async def write(self, data: bytes) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("what is written to a process must be bytes")
        async with self._locks["input"]:
            view = memoryview(data).cast("B")
            while True:
                self._check_open()
                if not self._input_open:
                    raise ToolError("the input of the process is closed")
                piece, view = view[:_PIECE], view[_PIECE:]
                head = {"do": "tell", "with": {"process": self._number}}
                try:
                    await self._line.ask(head, bytes(piece))
                except LittleGhostError:
                    self._raise_stopped()
                    raise
                if not view:
                    return

    async def close_input(self) -> None:
        async with self._locks["input"]:
            if self._input_open and self._closed is None:
                self._input_open = False
                await asyncio.shield(self._ask("end_input"))

    async def read(self, limit: int = 65_536) -> bytes:
        return await self._receive("output", limit)

    async def read_error(self, limit: int = 65_536) -> bytes:
        return await self._receive("errors", limit)

    async def _receive(self, name: str, limit: int) -> bytes:
        if not isinstance(limit, int) or limit < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("the limit of a read must be a whole number from 1 up")
        async with self._locks[name]:
            self._check_open()
            if not self._held[name]:
                wanted = min(limit, _MOST)
                if name not in self._reading:
                    self._reading[name] = self._ask(
                        "hear", room=wanted, errors=name == "errors", limit=wanted
                    )
                closing = self._closing()
                await asyncio.wait([self._reading[name], closing], return_when=asyncio.FIRST_COMPLETED)
                self._check_open()
                try:
                    self._held[name] = self._reading.pop(name).result().data
                except LittleGhostError:
                    self._raise_stopped()
                    raise
                if not self._held[name]:
                    self._raise_stopped()
                    return b""
            data, self._held[name] = self._held[name][:limit], self._held[name][limit:]
            return data

    def _closing(self) -> asyncio.Future[None]:
        if not hasattr(self, "_closes"):
            self._closes: asyncio.Future[None] = self._loop.create_future()
        return self._closes

    async def wait(self) -> int:
        try:
            answer = await asyncio.shield(self._over)
        except LittleGhostError:
            self._raise_stopped()
            raise
        self._raise_stopped()
        code = (mapping(answer.head.get("is")) or {}).get("code")
        if not isinstance(code, int):
            raise ToolConnectionError("the other side of the sandbox told no exit code")
        return code

    @property
    def error(self) -> str | None:
        if not self._over.done() or self._over.cancelled() or self._over.exception() is not None:
            return None
        error = (mapping(self._over.result().head.get("is")) or {}).get("error")
        return error if isinstance(error, str) else None

    async def terminate(self) -> None:
        if self._closed is None:
            await asyncio.shield(self._ask("signal", kill=False))

    async def kill(self) -> None:
        if self._closed is None:
            await asyncio.shield(self._ask("signal", kill=True))

    async def close(self) -> None:
        if self._closed is None:
            closes = self._closing()
            if not closes.done():
                closes.set_result(None)
            self._closed = self._ask("drop", patience=DROPPING)
            self._release.close()
            self._closed.add_done_callback(self._dropped)
        cancelled: asyncio.CancelledError | None = None
        for ending in (self._closed, self._over):  # the second follows, and may still be asked for
            while not ending.done():
                try:
                    await asyncio.wait([ending])
                except asyncio.CancelledError as error:
                    cancelled = error
        self._forget()
        if cancelled is not None:
            raise cancelled
        with suppress(ToolConnectionError):  # then the far half is gone, or ends it
            self._closed.result()

    def _dropped(self, _closed: asyncio.Future[Frame]) -> None:
        """Do not wait for ever for the answer that follows."""
        giving_up = self._loop.call_later(DROPPING, self._line.give_up, self._over)
        self._over.add_done_callback(lambda _: giving_up.cancel())

    def _check_open(self) -> None:
        if self._closed is not None:
            raise ToolError("the process is closed")

    def _raise_stopped(self) -> None:
        if self._stopped is not None:
            raise self._stopped


def _heard(task: asyncio.Task[Frame]) -> None:
    if not task.cancelled():
        task.exception()
