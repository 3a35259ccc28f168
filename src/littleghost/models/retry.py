"""When a model call is made again: one policy for every provider.

A provider makes one attempt at a time and raises `Again` around the error of an attempt that may be repeated; any other error
ends the call. Waits grow exponentially with full jitter, so that clients that failed together do not come back together
(https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). A server that says when to come back is obeyed.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from email.utils import parsedate_to_datetime

from msgspec import Struct

from littleghost.errors import ModelError
from littleghost.events import ModelEvent, Retrying

__all__ = ["Again", "RetryPolicy", "retry_after", "retrying"]


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """How often and how patiently a call is made again.

    Attributes:
        retries: Further attempts after the first.
        base: Seconds; the wait before retry ``n``, counted from 0, is random between 0 and ``base * 2**n``.
        longest: The most seconds such a wait can have.
        patience: The longest ``Retry-After``, in seconds, that is waited for; a longer one ends the call.
    """

    retries: int = 4
    base: float = 0.5
    longest: float = 20.0
    patience: float = 60.0

    def delay(
        self, attempt: int, after: float | None = None, jitter: Callable[[], float] = random.random
    ) -> float | None:
        """Return the seconds to wait after the failed ``attempt``, counted from 1, or ``None`` to give up.

        Args:
            attempt: Which attempt failed.
            after: What the server asked for, in seconds.
            jitter: A source of numbers from 0 to 1.
        """
        if attempt > self.retries or (after is not None and after > self.patience):
            return None
        if after is not None:
            return after + jitter() * self.base  # never earlier than asked, and not all at once
        # The exponent is bounded because a float has a largest value.
        return jitter() * min(self.longest, self.base * 2.0 ** min(attempt - 1, 60))


class Again(Exception):
    """An attempt failed in a way that may pass.

    Args:
        error: What to raise when no further attempt is made.
        after: Seconds the server asked to wait.
    """

    def __init__(self, error: ModelError, *, after: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after = after


async def retrying(
    attempt: Callable[[float | None], AsyncGenerator[ModelEvent]],
    policy: RetryPolicy,
    *,
    timeout: float | None = None,
    jitter: Callable[[], float] = random.random,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncGenerator[ModelEvent]:
    """Yield the events of the first attempt that succeeds, and a `Retrying` after each one that failed.

    Args:
        attempt: Makes one attempt; called with the seconds that are left, or ``None``.
        policy: When to go on.
        timeout: Seconds for all attempts and waits together. A wait that would pass it is not begun.
        jitter: A source of numbers from 0 to 1.
        sleep: How to wait.
    """
    ends = None if timeout is None else time.monotonic() + timeout
    number = 0
    while True:
        number += 1
        left = None if ends is None else max(0.0, ends - time.monotonic())
        try:
            # Closed here and now: a stream that is left to the garbage collector keeps its connection.
            async with aclosing(attempt(left)) as events:
                async for event in events:
                    yield event
            return
        except Again as again:
            delay = policy.delay(number, again.after, jitter)
            if delay is None or (ends is not None and time.monotonic() + delay >= ends):
                raise again.error from again.error.__cause__
            error = str(again.error)
        yield Retrying(attempt=number, delay=delay, error=error)
        await sleep(delay)


def retry_after(headers: Mapping[str, str], now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds a response asks to wait: ``retry-after-ms``, or ``retry-after`` in seconds or as an HTTP date.

    What cannot be read counts as absent.
    Source: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        return max(0.0, parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - now())
    except (TypeError, ValueError, OverflowError):
        return None
