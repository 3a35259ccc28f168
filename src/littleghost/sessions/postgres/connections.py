"""Connections to one server: a pool for each event loop, and what becomes of a statement whose connection is lost.

A statement is a transaction by itself, so a connection is clean whenever its answer is there, and goes back without being reset. Each
statement runs in a task of its own: who is cancelled leaves at once, the statement ends in its own time, and who asks next about the same
session waits for that.

When a connection is lost while a statement is under way, nobody knows whether it took place. It is sent again only where that is the same
as once; see `Pool.fetch`.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar, cast

from msgspec import Struct

from littleghost.errors import ConfigurationError, StoreError, StoreUnavailableError
from littleghost.sessions.postgres import migrations
from littleghost.sessions.postgres.failures import (
    asyncpg,
    connect_error,
    is_stale_plan,
    is_unknown_statement,
    outcome,
    store_error,
)
from littleghost.sessions.postgres.statements import Statement, Statements

__all__ = ["Pool", "Pools", "Settings"]

Answer = TypeVar("Answer")
connect: Callable[..., Awaitable[Any]] = cast("Any", asyncpg).connect
Rows = Sequence[Sequence[Any]]

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
UNSEEN_SECONDS: Final = 0.1
"""After so long without use a connection is looked at before it is used, for the server may have ended it meanwhile."""

IDLE_SECONDS: Final = 300.0
CLOSE_SECONDS: Final = 5.0
PATIENCE: Final = 0.2
"""Seconds that who waits for a connection waits on, so that who opens it can say what is wrong."""


class Settings(Struct, frozen=True, kw_only=True):
    """How to connect. Never shown, for ``dsn`` may hold a password."""

    dsn: str
    min_connections: int
    max_connections: int
    connect_timeout: float
    command_timeout: float
    acquire_timeout: float
    prepared_statements: bool | None
    create: bool

    def __repr__(self) -> str:
        return "Settings(…)"


class Link:
    """A connection, and the statements that were prepared on it."""

    __slots__ = ("prepared", "raw", "used")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.prepared: dict[str, Any] = {}
        self.used = time.monotonic()

    def is_good(self) -> bool:
        """Whether the connection can be used: it is open, and nothing came in while nobody asked, which is most likely its end."""
        if self.raw.is_closed():
            return False
        if time.monotonic() - self.used > UNSEEN_SECONDS:
            with suppress(AttributeError, OSError, ValueError):
                poll = select.poll()
                poll.register(self.raw._transport.get_extra_info("socket").fileno(), select.POLLIN)  # noqa: SLF001
                return not poll.poll(0)
        return True


Waiter = asyncio.Future[Link | None]


class Pool:
    """The connections of one event loop. Used by tasks of that loop only."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._settings = pools.settings
        self._loop = asyncio.get_running_loop()
        self._links: set[Link] = set()
        self._idle: list[Link] = []
        self._size = 0  # with those that are being opened
        self._waiting: deque[Waiter] = deque()
        self._opening: dict[Waiter, asyncio.Task[None]] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._left: dict[bytes, set[asyncio.Task[Any]]] = {}  # whose caller was cancelled, by the session
        self._guard = asyncio.Lock()  # of who looks at the tables
        self._trimming: asyncio.TimerHandle | None = None
        self.closed = False
        self._last_wish: AsyncGenerator[None] | None = None

    # -- statements

    async def fetch(
        self,
        statement: Statement,
        *arguments: Any,
        repeat: bool,
        name: bytes | None = None,
        writes: bool = False,
    ) -> Rows:
        """Return the rows that ``statement`` gives.

        Args:
            statement: A statement that is a transaction by itself.
            arguments: Its arguments.
            repeat: Whether doing it twice is the same as once; then it is sent again when its answer was lost.
            name: Whose session it is about. It waits for writes of that one whose caller was cancelled.
            writes: Whether it is such a write.

        Raises:
            StoreError: It failed, in a way that trying again did not cure.
        """
        if name is not None and name in self._left:
            await self.settled(name)
        give_up = self._loop.time() + self._settings.acquire_timeout
        if not self._pools.ready:
            await self._make_ready(give_up)
        pause = FIRST_PAUSE
        while True:
            link = await self._acquire(give_up)
            answer: asyncio.Future[tuple[Rows, BaseException | None]] = self._loop.create_future()
            task = self.start(self._perform(link, statement, arguments, answer))
            try:
                rows, error = await answer  # and not the task, which goes on if this one is cancelled
            except asyncio.CancelledError:
                if name is not None and writes and not task.done():
                    self._leave(name, task)
                raise
            if error is None:
                return rows
            known = outcome(error, sent=True)
            again = known == "later" or (known == "unknown" and repeat)
            if not again or self._loop.time() + pause > give_up:
                raise store_error(error)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def settled(self, name: bytes) -> None:
        """Wait until no write of the session is under way that nobody waits for any more."""
        while left := self._left.get(name):
            await asyncio.wait(left)

    def start(self, work: Coroutine[Any, Any, Answer]) -> asyncio.Task[Answer]:
        """Do ``work`` in a task that lives until it is done."""
        task = self._loop.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    def _leave(self, name: bytes, task: asyncio.Task[Any]) -> None:
        left = self._left.setdefault(name, set())
        left.add(task)

        def end(_: object) -> None:
            left.discard(task)
            if not left and self._left.get(name) is left:
                del self._left[name]

        task.add_done_callback(end)

    async def _perform(
        self,
        link: Link,
        statement: Statement,
        arguments: Sequence[Any],
        answer: asyncio.Future[tuple[Rows, BaseException | None]],
    ) -> None:
        """Do it on ``link``, give that back, and tell in ``answer`` how it went; nobody may be there to see."""
        rows: Rows = ()
        failed: BaseException | None = None
        try:
            rows = await self._send(link, statement, arguments)
        except Exception as error:  # noqa: BLE001 (judged by who asked)
            failed = error
            if isinstance(error, TimeoutError):
                await self._break_off(link)
        except BaseException:  # the loop is ending
            self._discard(link)
            answer.cancel()
            raise
        # What the server refuses leaves the connection as it was; after everything else nobody knows what comes next on it.
        if failed is None or (isinstance(failed, asyncpg.PostgresError) and not link.raw.is_closed()):
            self._release(link)
        else:
            self._discard(link)
        if not answer.done():
            answer.set_result((rows, failed))

    async def _send(self, link: Link, statement: Statement, arguments: Sequence[Any]) -> Rows:
        timeout = self._settings.command_timeout
        while statement.prepare and self._pools.prepared:
            try:
                prepared = link.prepared.get(statement.name)
                if prepared is None:
                    prepared = await link.raw.prepare(statement.text, name=statement.name, timeout=timeout)
                    link.prepared[statement.name] = prepared
                return await prepared.fetch(*arguments, timeout=timeout)
            except asyncpg.PostgresError as error:
                if is_stale_plan(error) and link.prepared:
                    link.prepared.clear()
                elif is_unknown_statement(error) and self._settings.prepared_statements is None:
                    self._pools.prepared = False
                else:
                    raise
        return await link.raw.fetch(statement.text, *arguments, timeout=timeout)

    # -- tables

    async def _make_ready(self, give_up: float) -> None:
        """See that the tables are there and ours, once for the store."""
        create = self._settings.create

        def patience() -> float:
            return min(self._settings.command_timeout, max(0.01, give_up - self._loop.time()))

        async with self._guarded(give_up):
            if not self._pools.ready:
                await self._alone(
                    lambda raw: migrations.prepare(raw, self._pools.statements, patience, create=create),
                    give_up,
                )
                self._pools.ready = True

    async def migrate(self) -> None:
        """Make the tables, or bring them up to date. A step may take longer than anybody would wait for a connection."""
        give_up = self._loop.time() + self._settings.acquire_timeout
        async with self._guarded(give_up):
            await self._alone(
                lambda raw: migrations.migrate(
                    raw, self._pools.statements, lambda: self._settings.command_timeout
                ),
                give_up,
            )
            self._pools.ready = True

    @asynccontextmanager
    async def _guarded(self, give_up: float) -> AsyncGenerator[None]:
        """Hold the guard of who looks at the tables."""
        try:
            async with asyncio.timeout_at(give_up):
                await self._guard.acquire()
        except TimeoutError:
            raise _not_ready() from None
        try:
            yield
        finally:
            self._guard.release()

    async def _alone(self, work: Callable[[Any], Awaitable[None]], give_up: float) -> None:
        """Do ``work`` with a connection, again where it can do no harm; whatever it left unfinished ends with the connection."""
        while True:
            link = await self._acquire(give_up)
            try:
                await work(link.raw)
            except Exception as error:
                if isinstance(error, TimeoutError):
                    self.start(self._break_off(link))
                else:
                    self._discard(link)
                if outcome(error, sent=True) == "refused" or self._loop.time() > give_up:
                    if isinstance(error, TimeoutError):
                        raise _not_ready() from error
                    raise store_error(error) from error.__cause__
                await asyncio.sleep(FIRST_PAUSE * random.uniform(1, 2))  # noqa: S311 (no secret)
            except BaseException:
                self._discard(link)
                raise
            else:
                self._release(link)
                return

    async def _break_off(self, link: Link) -> None:
        """Close ``link`` when the server has broken off what asyncpg told it to."""
        try:
            with suppress(Exception):
                await link.raw.close(timeout=CLOSE_SECONDS)
        finally:
            self._discard(link)

    # -- the pool

    async def _acquire(self, give_up: float) -> Link:
        while True:
            if self.closed:
                raise _closed()
            while self._idle:
                link = self._idle.pop()
                if link.is_good():
                    return link
                self._discard(link)
            link = await self._wait(give_up)
            if link is not None:
                return link

    async def _wait(self, give_up: float) -> Link | None:
        """Wait for a connection, the first that is given back or opened; ``None`` where there is room to open one."""
        waiter: Waiter = self._loop.create_future()
        self._waiting.append(waiter)
        # Each that is opened is for whoever waits first then, so no more are than there are who wait.
        opening = None
        if self._size < self._settings.max_connections and len(self._opening) < len(self._waiting):
            self._size += 1
            opening = self._opening[waiter] = self.start(self._open(waiter, give_up))
        timer = self._loop.call_at(give_up + PATIENCE, self._send_away, waiter, None)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.cancelled() or waiter.exception() is not None:
                with suppress(ValueError):
                    self._waiting.remove(waiter)
            elif (link := waiter.result()) is not None:
                self._release(link)
            else:
                self._wake()
            if opening is not None and len(self._opening) > len(self._waiting):
                opening.cancel()  # nobody needs it, and the loop may end with whoever is cancelled
                await asyncio.wait((opening,))
            raise
        finally:
            timer.cancel()

    def _send_away(self, waiter: Waiter, error: BaseException | None) -> None:
        if not waiter.done():
            self._waiting.remove(waiter)
            waiter.set_exception(
                error
                or StoreUnavailableError(
                    f"PostgreSQL: all {self._settings.max_connections} connections were in use for "
                    f"{self._settings.acquire_timeout:g} s; allow more (max_connections), or wait longer (acquire_timeout)",
                    code=None,
                )
            )

    async def _open(self, waiter: Waiter, give_up: float) -> None:
        """Open a connection for whoever is first then.

        Args:
            waiter: Who had it begun: is told why there is none, and may be served meanwhile by one that is given back.
            give_up: Until when to try, by the clock of the loop.
        """
        try:
            if self._last_wish is None:
                self._last_wish = self._until_the_loop_ends()
                await anext(self._last_wish)
            raw = await self._connect(waiter, give_up)
        except BaseException as error:
            self._size -= 1
            if isinstance(error, Exception):
                self._send_away(waiter, error)
            self._wake()
            if not isinstance(error, Exception):
                raise
            return
        finally:
            self._opening.pop(waiter, None)
        if raw is None:
            self._size -= 1
            self._wake()
            return
        link = Link(raw)
        self._links.add(link)
        self._release(link)

    async def _connect(self, waiter: Waiter, give_up: float) -> Any:
        """Return a connection; ``None`` where there was none yet, and ``waiter`` does not need it any more."""
        settings, pause = self._settings, FIRST_PAUSE
        names = {} if "application_name" in settings.dsn else {"application_name": "littleghost"}
        if not self._pools.ready:  # who was never there is most likely somewhere else
            give_up = min(give_up, self._loop.time() + settings.connect_timeout)
        while not waiter.done():
            left = give_up - self._loop.time()
            try:
                raw = await connect(
                    settings.dsn,
                    timeout=max(0.1, min(settings.connect_timeout, left)),
                    statement_cache_size=0,
                    server_settings=names,
                )
            except Exception as error:  # noqa: BLE001 (in our words)
                failed = connect_error(error, settings.dsn)
                again = outcome(error, sent=False) == "later" and not isinstance(failed, ConfigurationError)
                if again and left > pause:
                    failed = None
            else:
                _know_arrays(raw)
                return raw
            if failed is not None:  # raised here, where it has no context that says more than it may
                raise failed
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
            pause = min(pause * 2, LONGEST_PAUSE)
        return None

    def _release(self, link: Link) -> None:
        if self.closed or link.raw.is_closed():
            self._discard(link)
            return
        link.used = time.monotonic()
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(link)
                return
        self._idle.append(link)
        if self._trimming is None and len(self._links) > self._settings.min_connections:
            self._trimming = self._loop.call_later(IDLE_SECONDS, self._trim)

    def _discard(self, link: Link) -> None:
        if link in self._links:
            self._links.discard(link)
            self._size -= 1
            link.raw.terminate()
            self._wake()

    def _wake(self) -> None:
        """Let the first who waits open a connection of its own."""
        while self._waiting and self._size < self._settings.max_connections:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _trim(self) -> None:
        """Close what nobody has used for a while."""
        self._trimming = None
        old = time.monotonic() - IDLE_SECONDS
        while self._idle and len(self._links) > self._settings.min_connections and self._idle[0].used <= old:
            self._discard(self._idle.pop(0))
        if self._idle and len(self._links) > self._settings.min_connections:
            wait = max(1.0, self._idle[0].used - old)
            self._trimming = self._loop.call_later(wait, self._trim)

    # -- the end

    async def close(self) -> None:
        """Close the connections after what is under way, all at once, for each waits for a server that may not answer any more."""
        self._shut()
        if self._under_way:
            await asyncio.wait(self._under_way)
        await asyncio.gather(*map(self._break_off, list(self._links)))
        if self._last_wish is not None:
            await self._last_wish.aclose()

    def _shut(self) -> None:
        self.closed = True
        if self._trimming is not None:
            self._trimming.cancel()
        for opening in list(self._opening.values()):
            opening.cancel()
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def end(self) -> None:
        """Close the connections at once. In the thread of the loop."""
        self._shut()
        for link in list(self._links):
            with suppress(Exception):
                self._discard(link)

    def end_from_elsewhere(self) -> None:
        """Close the connections at once, from any thread, whatever became of the loop."""
        try:
            self._loop.call_soon_threadsafe(self.end)
        except RuntimeError:  # it is closed
            self.forget()

    def forget(self) -> None:
        """Drop the connections without touching the loop, which is closed, or is the parent's in a forked child."""
        self.closed = True
        for link in self._links:
            _drop(link.raw)
        self._links.clear()
        self._idle.clear()

    @property
    def is_over(self) -> bool:
        """Whether its event loop is closed."""
        return self._loop.is_closed()

    async def _until_the_loop_ends(self) -> AsyncGenerator[None]:
        # Event loops close the asynchronous generators that were begun in them before they close themselves.
        try:
            yield
        finally:
            self.end()


def _know_arrays(raw: Any) -> None:
    """Tell asyncpg of the arrays in our statements, which never change.

    Else it asks the server, by a statement that takes functions wherever the ``search_path`` has them, and by changing a setting.
    """
    with suppress(AttributeError):
        raw._protocol.get_settings().register_data_types(_ARRAYS)  # noqa: SLF001


# By their oids. Source: https://github.com/postgres/postgres/blob/master/src/include/catalog/pg_type.dat
_ARRAYS: Final = tuple(
    {
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": "b",
        "basetype": None,
        "elemtype": element,
        "elemdelim": ",",
        "range_subtype": None,
        "attrtypoids": None,
        "attrnames": None,
        "depth": 0,
        "basetype_name": None,
        "elemtype_name": name,
        "range_subtype_name": None,
    }
    for oid, element, name in ((1001, 17, "bytea"), (1007, 23, "int4"), (1016, 20, "int8"))
)


def _drop(raw: Any) -> None:
    """Close this process's end of a connection that asyncpg and asyncio must not touch any more: neither says a word, nor warns."""
    with suppress(AttributeError, OSError):
        raw._aborted = True  # noqa: SLF001
        transport = raw._transport  # noqa: SLF001
        secure = getattr(transport, "_ssl_protocol", None)
        if secure is not None:  # the transport of the encrypted bytes is behind
            transport._closed = True  # noqa: SLF001
            transport = secure._transport  # noqa: SLF001
        socket, transport._sock = transport._sock, None  # noqa: SLF001
        socket.close()


class Pools:
    """The pools of a store, one for each event loop. After ``fork`` the child has none."""

    def __init__(self, settings: Settings, statements: Statements) -> None:
        self.settings = settings
        self.statements = statements
        self.ready = False
        """Whether the tables were seen to be there."""
        self.prepared = settings.prepared_statements is not False
        """Whether statements are prepared; not any more once a pooler has lost one."""
        self._by_loop: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._guard = threading.Lock()
        self._closed = False
        _registry.add(self)

    def here(self) -> Pool:
        """Return the pool of the running event loop.

        Raises:
            StoreError: The store is closed.
        """
        loop = asyncio.get_running_loop()
        pool = self._by_loop.get(loop)
        if pool is not None and not pool.closed:
            return pool
        with self._guard:
            if self._closed:
                raise _closed()
            for other, old in list(self._by_loop.items()):
                if old.is_over:
                    del self._by_loop[other]
                    old.forget()
            pool = self._by_loop[loop] = Pool(self)
            return pool

    async def close(self) -> None:
        """Close every pool: that of this loop when it has done what it was asked to, the others at once."""
        with self._guard:
            self._closed = True
            mine = self._by_loop.pop(asyncio.get_running_loop(), None)
        self.end()
        if mine is not None:
            await mine.close()

    def end(self) -> None:
        """Close every pool at once, from any thread."""
        with self._guard:
            self._closed = True
            pools = list(self._by_loop.values())
            self._by_loop.clear()
        for pool in pools:
            pool.end_from_elsewhere()

    def after_fork_in_child(self) -> None:
        """Begin anew: the connections, and the loops, are the parent's."""
        self._guard = threading.Lock()
        inherited = list(self._by_loop.values())
        self._by_loop.clear()
        for pool in inherited:
            pool.forget()
        _inherited.extend(inherited)


def _not_ready() -> StoreUnavailableError:
    return StoreUnavailableError(
        "PostgreSQL: the tables cannot be looked at, or not be made or changed, within command_timeout and acquire_timeout: somebody else "
        "holds a lock on them, or is bringing them up to date; try again, or look for who waits in pg_stat_activity",
        code=None,
    )


def _closed() -> StoreError:
    return StoreError("PostgreSQL: the store is closed; make a new one", code=None)


_registry: weakref.WeakSet[Pools] = weakref.WeakSet()
_inherited: list[Pool] = []
"""In a forked child, what must not be collected: it is part of the parent's event loops."""


def _after_fork_in_child() -> None:
    for pools in list(_registry):
        pools.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
