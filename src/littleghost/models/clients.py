"""The clients of a provider's SDK: one for each event loop, for connections cannot move from one loop to another."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Generic, TypeVar

from littleghost.errors import DependencyError

C = TypeVar("C")

__all__ = ["Clients", "import_sdk"]


class Clients(Generic[C]):
    """Gives the client of the running event loop, made at the first call; usable from several threads.

    A client is closed by `aclose` or with its loop, whichever comes first.

    It must not be part of a reference cycle: a model that is forgotten closes its clients only where its end is seen at once.

    Args:
        close: Closes a client, in its loop.
    """

    def __init__(self, close: Callable[[C], Awaitable[None]]) -> None:
        self._close = close
        self._lock = threading.Lock()
        self._known: dict[asyncio.AbstractEventLoop, tuple[C, AsyncGenerator[None]]] = {}

    async def ready(self, make: Callable[[], C]) -> C:
        """Return the client of the running event loop.

        Args:
            make: Makes a client. It runs in a thread: importing an SDK takes half a second, making a client a tenth, and the
                event loop is not to stand still for that.
        """
        loop = asyncio.get_running_loop()
        known = self._known.get(loop)
        if known is not None:
            return known[0]
        client = await asyncio.to_thread(make)
        lifetime = _lifetime(client, self._close)
        await anext(lifetime)
        with self._lock:  # other loops are in other threads
            for other in [other for other in self._known if other.is_closed()]:
                del self._known[other]
            # Where another call was first, its client is taken, and this one goes unused.
            return self._known.setdefault(loop, (client, lifetime))[0]

    async def aclose(self) -> None:
        """Close the clients of all loops; the next call makes another."""
        with self._lock:
            known, self._known = self._known, {}
        for loop, (_, lifetime) in known.items():
            if loop is asyncio.get_running_loop():
                await lifetime.aclose()
            elif loop.is_running():  # in another thread
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_end(lifetime), loop))


async def _lifetime(client: C, close: Callable[[C], Awaitable[None]]) -> AsyncGenerator[None]:
    """Close ``client`` when this generator is closed, which an event loop that ends does by itself."""
    try:
        yield
    finally:
        await close(client)


async def _end(lifetime: AsyncGenerator[None]) -> None:
    await lifetime.aclose()


def import_sdk(name: str, extra: str) -> Any:
    """Return the module ``name`` of an SDK.

    Raises:
        DependencyError: It is not installed; ``extra`` installs it.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Where another module is missing, the SDK is there and broken, which its own words tell best.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise DependencyError.missing(name, extra) from error
