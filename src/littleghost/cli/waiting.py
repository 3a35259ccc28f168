"""Reading and writing that may wait for ever, so that Ctrl-C need not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import TypeVar

__all__ = ["bytes_of", "write_bytes"]

Answer = TypeVar("Answer")

CHUNK = 1 << 18


async def bytes_of(descriptor: int) -> AsyncGenerator[bytes]:
    """Yield what can be read, in pieces, up to its end."""
    while chunk := await _aside(lambda: os.read(descriptor, CHUNK)):
        yield chunk


async def write_bytes(descriptor: int, raw: bytes) -> None:
    """Write all of ``raw``."""

    def write() -> None:
        rest = memoryview(raw)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    await _aside(write)


async def _aside(work: Callable[[], Answer]) -> Answer:
    """Return what ``work`` does, in a thread that is left to itself where this is cancelled; no thread of a pool, which is waited for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def run() -> None:
        try:
            answer = work()
        except OSError as error:
            failure = error
            hand_over = lambda: future.cancelled() or future.set_exception(failure)  # noqa: E731
        else:
            hand_over = lambda: future.cancelled() or future.set_result(answer)  # noqa: E731
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(hand_over)

    threading.Thread(target=run, daemon=True).start()
    return await future
