"""The events of a run, carried from its task to a reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Generic, cast

from littleghost.errors import ConfigurationError
from littleghost.events import Event
from littleghost.output.declared import T_co
from littleghost.runs.run import Run

__all__ = ["Channel", "RunStream"]

QUEUE = 1000
"""Events that may wait for a reader before the model is made to wait."""


class RunStream(Generic[T_co]):
    """The events of a run, as they happen. At the end, `run` is the run.

    Iterate over it once. Events wait for the reader; when very many wait, the model waits too.
    """

    def __init__(self, channel: Channel[T_co]) -> None:
        self._channel = channel

    @property
    def run(self) -> Run[T_co]:
        """The finished run.

        Raises:
            ConfigurationError: It has not ended yet.
            RunCancelled: The reader left before anything was committed.
            LittleGhostError: Whatever the run raised.
        """
        if self._channel.error is not None:
            raise self._channel.error
        if self._channel.run is None:
            raise ConfigurationError("the run has not ended; read its events to the end first")
        return self._channel.run

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self._channel.next()
        if event is None:
            raise StopAsyncIteration
        return event


class Channel(Generic[T_co]):
    """Carries the events of a run from its task to a reader."""

    def __init__(self) -> None:
        self.run: Run[T_co] | None = None
        self.error: BaseException | None = None
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[Run[T_co]] | None = None
        self._listening = True

    def start(self, task: asyncio.Task[Run[Any]]) -> None:
        """Carry the events of the run in ``task``."""
        self._task = task
        task.add_done_callback(lambda _: self._wake.set())

    def hear(self, event: Event) -> None:
        """Take an event of the run."""
        if self._listening:
            self._events.append(event)
            self._wake.set()

    async def ready(self) -> None:
        """Return when there is room for more."""
        while self._listening and len(self._events) >= QUEUE:
            self._room.clear()
            await self._room.wait()

    async def next(self) -> Event | None:
        """Return the next event, ``None`` after the last; raise what the run raised."""
        while not self._events:
            task = cast("asyncio.Task[Run[T_co]]", self._task)
            if task.done():
                self.run = task.result()
                return None
            self._wake.clear()
            await self._wake.wait()
        event = self._events.popleft()
        if len(self._events) < QUEUE // 2:
            self._room.set()
        return event

    def let_go(self) -> None:
        """Nobody reads any more: keep no event, and hold nobody up."""
        self._listening = False
        self._events.clear()
        self._room.set()
