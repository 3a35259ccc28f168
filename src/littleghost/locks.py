"""Locks by key, for holders in any thread and on any event loop of one process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager

__all__ = ["KeyedLocks"]


class _Waiter:
    """One who waits: a future on the loop it belongs to."""

    __slots__ = ("future", "granted", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.granted = False

    def wake(self) -> bool:
        """Hand the lock over; ``False`` where the loop is gone and the next one must have it."""
        self.granted = True
        try:
            self.loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:
            self.granted = False
            return False
        return True

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class KeyedLocks:
    """Mutual exclusion per key: first come, first served; waiting can be cancelled; a key nobody holds or waits for takes no memory.

    After ``fork`` the child starts with no key held.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[Hashable, deque[_Waiter]] = {}
        self._process = os.getpid()

    def __len__(self) -> int:
        """Return how many keys are held."""
        return len(self._queues)

    @asynccontextmanager
    async def hold(self, key: Hashable, timeout: float | None = None) -> AsyncGenerator[None]:
        """Hold ``key``.

        Args:
            key: What to exclude others from.
            timeout: Seconds to wait for it; ``0`` does not wait, ``None`` waits for ever.

        Raises:
            TimeoutError: Others held it all that time.
        """
        await self._acquire(key, timeout)
        try:
            yield
        finally:
            self._release(key)

    async def _acquire(self, key: Hashable, timeout: float | None) -> None:
        if os.getpid() != self._process:
            self.__init__()
        with self._guard:
            queue = self._queues.get(key)
            if queue is None:
                self._queues[key] = deque()
                return
            if timeout == 0:
                raise TimeoutError
            waiter = _Waiter()
            queue.append(waiter)
        try:
            async with asyncio.timeout(timeout):
                await waiter.future
        except BaseException:
            self._give_up(key, waiter)
            raise

    def _give_up(self, key: Hashable, waiter: _Waiter) -> None:
        with self._guard:
            if not waiter.granted:
                queue = self._queues.get(key)
                if queue and waiter in queue:  # it is not, where its loop was gone when its turn came
                    queue.remove(waiter)
                return
        self._release(key)  # it was handed over in the very moment of giving up

    def _release(self, key: Hashable) -> None:
        with self._guard:
            queue = self._queues.get(key)
            if queue is None:
                return
            while queue:
                if queue.popleft().wake():
                    return
            del self._queues[key]
