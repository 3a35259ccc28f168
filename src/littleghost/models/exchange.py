"""One attempt at an answer over HTTP: bytes in, events out, and every failure mapped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack

from littleghost.errors import LittleGhostError, ModelProtocolError
from littleghost.events import ModelEvent
from littleghost.models.event_streams import Answer, AnswerStream, CutError, NotTheAPIError, ServerFaultError
from littleghost.models.failures import Failures, status_of
from littleghost.models.retry import Again

_log = logging.getLogger(__name__)

__all__ = ["exchange"]

TAIL_SECONDS = 5.0
"""How long the usage and the end of a stream are waited for when the answer itself is complete."""
DRAIN_SECONDS = 0.25

Open = Callable[[AsyncExitStack], Awaitable[AsyncIterator[bytes]]]


async def exchange(
    send: Open, answer: Answer, failures: Failures, *, left: float | None = None
) -> AsyncGenerator[ModelEvent]:
    """Yield the events of one answer, `ModelEnded` last.

    Args:
        send: Sends the request and returns the bytes of the answer as they come; what it puts on the stack is closed at the end.
            What it raises goes to ``failures``, but for our own errors.
        answer: Reads the format.
        failures: Maps what goes wrong; what may pass is raised as `Again`.
        left: Seconds for all of it.
    """
    ends = None if left is None else asyncio.get_running_loop().time() + left
    stream = AnswerStream(answer)
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout_at(ends):
                pieces = await send(stack)
        except LittleGhostError:
            raise
        except Exception as error:
            raise failures.of(error, ends) from error
        while not stream.closed:
            piece = await _read(pieces, stream, failures, ends)
            for event in _take(stream, piece, failures):
                yield event
        await _drain(pieces)
    for event in stream.end():
        yield event


async def _read(
    pieces: AsyncIterator[bytes], stream: AnswerStream, failures: Failures, ends: float | None
) -> bytes | None:
    """Return the next bytes, or ``None`` at their end."""
    limit = ends
    if stream.finished:
        tail = asyncio.get_running_loop().time() + TAIL_SECONDS
        limit = tail if ends is None else min(ends, tail)
    try:
        async with asyncio.timeout_at(limit):
            return await anext(pieces, None)
    except Exception as error:
        if stream.finished:
            return None  # it is complete; only its usage is lost
        raise failures.of(error, ends) from error


def _take(stream: AnswerStream, piece: bytes | None, failures: Failures) -> Iterator[ModelEvent]:
    try:
        yield from stream.feed(piece)
    except CutError as error:
        raise failures.cut(error) from None
    except ServerFaultError as error:
        raise failures.refused(error.status or status_of(error.body), error.body, {}) from None
    except NotTheAPIError:
        raise
    except ModelProtocolError as error:
        raise Again(error) from None


async def _drain(pieces: AsyncIterator[bytes]) -> None:
    """Read what follows the end of an answer, for a moment, so that the connection can be used again."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            async for _ in pieces:
                pass
    except Exception:  # noqa: BLE001 (the answer is complete)
        _log.debug("a connection could not be kept", exc_info=True)
