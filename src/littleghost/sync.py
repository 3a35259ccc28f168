"""The library for synchronous code: `Session`, `Runtime`, the stores and what moves and looks after sessions, without ``await``.

Everything runs on one private event loop in a thread, with the caller's context variables. It works inside a running event loop too (and
blocks it), from any thread, and Ctrl-C cancels what is under way, waits until that has cleaned up, and is then raised.

The stores here are the asynchronous ones with a synchronous face. `Session` and `Runtime` take either kind.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import (
    AsyncGenerator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast

from littleghost import runtime
from littleghost.output.declared import T_co
from littleghost.portal import portal
from littleghost.runs import streaming
from littleghost.runtime import T
from littleghost.sessions import contract, memory, opening, postgres, session, sqlite, transfer, upkeep

if TYPE_CHECKING:
    from datetime import timedelta

    from littleghost.cancellation import CancellationToken
    from littleghost.content import ToolUse
    from littleghost.events import Event
    from littleghost.message import Message
    from littleghost.prices import Prices
    from littleghost.runs.limits import Budget, RunLimits
    from littleghost.runs.run import Run
    from littleghost.sandboxes.contract import Sandbox
    from littleghost.tools.contract import Approval
    from littleghost.workspace import Workspace

__all__ = [
    "MemoryStore",
    "PostgresStore",
    "RunStream",
    "Runtime",
    "SQLiteStore",
    "Session",
    "Store",
    "copy_sessions",
    "expire_sessions",
    "export_sessions",
    "import_sessions",
    "open_store",
    "retention",
    "unfinished_sessions",
    "verify_sessions",
]

Entered = TypeVar("Entered")
Item = TypeVar("Item")
UNSET = session.UNSET


@contextmanager
def _entered(make: Callable[[], AbstractAsyncContextManager[Entered]]) -> Generator[Entered]:
    """Enter an asynchronous context manager on the portal's loop, and leave it there, on whatever line Ctrl-C is raised here."""
    entered: list[AbstractAsyncContextManager[Entered]] = []
    raised: BaseException | None = None

    async def enter() -> Entered:
        manager = make()
        value = await manager.__aenter__()
        entered.append(manager)
        return value

    try:
        yield portal.call(enter)
    except BaseException as error:
        raised = error
        if not portal.call(_leave, entered, error):
            raise
    else:
        portal.call(_leave, entered, None)
    finally:
        if entered:  # Ctrl-C came first
            portal.call(_leave, entered, raised)


async def _leave(entered: list[AbstractAsyncContextManager[Any]], error: BaseException | None) -> bool:
    kind = None if error is None else type(error)
    if not entered:
        return False
    return bool(await entered.pop().__aexit__(kind, error, None if error is None else error.__traceback__))


def _iterated(items: AsyncGenerator[Item]) -> Generator[Item]:
    """Yield what ``items`` does, which is closed with this."""

    async def following() -> list[Item]:
        async for item in items:
            return [item]
        return []

    async def close() -> None:
        await items.aclose()

    try:
        while found := portal.call(following):
            yield found[0]
    finally:
        try:
            portal.call(close)
        except BaseException:
            portal.call(close)  # Ctrl-C may have come first; what is closed already stays so
            raise


async def _taken(items: Iterable[Item]) -> AsyncGenerator[Item]:
    """Yield ``items``, taken in another thread: one that is itself synchronous and of this module needs the loop meanwhile."""
    iterator, end = iter(items), object()
    while (item := await asyncio.to_thread(next, iterator, end)) is not end:
        yield item  # type: ignore[misc]


class Store:
    """The synchronous face of a `SessionStore`, which is its ``store``."""

    def __init__(self, store: contract.SessionStore) -> None:
        self.store = store

    @property
    def capabilities(self) -> frozenset[str]:
        """What the store can do; see `SessionStore`."""
        return self.store.capabilities

    def load(self, id: str, *, actor_id: str | None = None) -> contract.Snapshot | None:
        """Do what `SessionStore.load` does."""
        return portal.call(self.store.load, id, actor_id=actor_id)

    def append(self, id: str, **options: Any) -> contract.Commit:
        """Do what `SessionStore.append` does."""
        return portal.call(self.store.append, id, **options)

    def replace(self, id: str, **options: Any) -> contract.Commit:
        """Do what `SessionStore.replace` does."""
        return portal.call(self.store.replace, id, **options)

    def project_conversation(self, id: str, **options: Any) -> None:
        """Do what `SessionStore.project_conversation` does."""
        portal.call(self.store.project_conversation, id, **options)

    def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        """Do what `SessionStore.delete` does."""
        return portal.call(self.store.delete, id, actor_id=actor_id)

    def sessions(
        self,
        *,
        actor_id: str | contract.AllActors | None = None,
        limit: int = 100,
        cursor: str | None = None,
        **options: Any,
    ) -> contract.Page[contract.SessionInfo]:
        """Do what `SessionStore.sessions` does."""
        return portal.call(self.store.sessions, actor_id=actor_id, limit=limit, cursor=cursor, **options)

    def statistics(
        self, *, actor_id: str | contract.AllActors | None = contract.ALL_ACTORS
    ) -> contract.Statistics:
        """Do what `SessionStore.statistics` does."""
        return portal.call(self.store.statistics, actor_id=actor_id)

    def expire(self, *, expire_after: float, limit: int = 100) -> int:
        """Do what `SessionStore.expire` does."""
        return portal.call(self.store.expire, expire_after=expire_after, limit=limit)

    def verify(self, *, limit: int = 100, cursor: str | None = None) -> contract.Verified:
        """Do what `SessionStore.verify` does."""
        return portal.call(self.store.verify, limit=limit, cursor=cursor)

    def restore(self, id: str, **options: Any) -> contract.Commit:
        """Do what `SessionStore.restore` does."""
        return portal.call(self.store.restore, id, **options)

    def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> contract.Page[Message]:
        """Do what `SessionStore.tail` does."""
        return portal.call(self.store.tail, id, limit=limit, before=before, actor_id=actor_id)

    def fork(
        self, id: str, new_id: str, *, at: int | None = None, actor_id: str | None = None
    ) -> contract.Commit:
        """Do what `SessionStore.fork` does."""
        return portal.call(self.store.fork, id, new_id, at=at, actor_id=actor_id)

    @contextmanager
    def synchronize(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> Generator[None]:
        """Do what `SessionStore.synchronize` does."""
        options = {} if timeout is None else {"timeout": timeout}
        with _entered(lambda: self.store.synchronize(id, actor_id=actor_id, **options)):
            yield

    @contextmanager
    def lease(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> Generator[contract.Lease]:
        """Do what `SessionStore.lease` does."""
        with _entered(lambda: self.store.lease(id, actor_id=actor_id, timeout=timeout)) as lease:
            yield lease

    def close(self) -> None:
        """Close the store."""
        portal.call(self.store.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryStore(Store):
    """The synchronous face of `littleghost.MemoryStore`."""

    def __init__(self, *, limits: contract.SessionLimits = contract.NO_LIMITS) -> None:
        super().__init__(memory.MemoryStore(limits=limits))


class SQLiteStore(Store):
    """The synchronous face of `littleghost.SQLiteStore`, and its arguments."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["full", "normal", "off"] = "full",
        limits: contract.SessionLimits = contract.NO_LIMITS,
    ) -> None:
        super().__init__(sqlite.SQLiteStore(path, durability=durability, limits=limits))


class PostgresStore(Store):
    """The synchronous face of `littleghost.PostgresStore`, and its arguments."""

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "public",
        table_prefix: str = "littleghost_",
        create: bool = True,
        min_connections: int = 1,
        max_connections: int = 10,
        connect_timeout: float = 10.0,
        command_timeout: float = 60.0,
        acquire_timeout: float = 30.0,
        lease_ttl: float = 30.0,
        prepared_statements: bool | None = None,
        limits: contract.SessionLimits = contract.NO_LIMITS,
    ) -> None:
        self._store = postgres.PostgresStore(
            dsn,
            schema=schema,
            table_prefix=table_prefix,
            create=create,
            min_connections=min_connections,
            max_connections=max_connections,
            connect_timeout=connect_timeout,
            command_timeout=command_timeout,
            acquire_timeout=acquire_timeout,
            lease_ttl=lease_ttl,
            prepared_statements=prepared_statements,
            limits=limits,
        )
        super().__init__(self._store)

    @staticmethod
    def schema_sql(*, schema: str = "public", table_prefix: str = "littleghost_") -> str:
        """Do what `littleghost.PostgresStore.schema_sql` does."""
        return postgres.PostgresStore.schema_sql(schema=schema, table_prefix=table_prefix)

    def migrate(self) -> None:
        """Do what `littleghost.PostgresStore.migrate` does."""
        portal.call(self._store.migrate)


def open_store(url: str, *, create: bool = True) -> Store:
    """Return the store that ``url`` names; see `littleghost.open_store`."""
    return Store(opening.open_store(url, create=create))


def _store_of(store: Store | contract.SessionStore) -> contract.SessionStore:
    return store.store if isinstance(store, Store) else store


def export_sessions(
    store: Store | contract.SessionStore,
    *,
    actor_id: str | contract.AllActors | None = contract.ALL_ACTORS,
    report: Callable[[transfer.Transferred], object] | None = None,
) -> Generator[bytes]:
    """Do what `littleghost.export_sessions` does."""
    return _iterated(transfer.export_sessions(_store_of(store), actor_id=actor_id, report=report))


def import_sessions(
    store: Store | contract.SessionStore,
    lines: Iterable[bytes],
    *,
    existing: transfer.Existing = "fail",
    max_size: int = 1 << 30,
) -> Generator[transfer.Transferred]:
    """Do what `littleghost.import_sessions` does."""
    return _iterated(
        transfer.import_sessions(_store_of(store), _taken(lines), existing=existing, max_size=max_size)
    )


def copy_sessions(
    source: Store | contract.SessionStore,
    destination: Store | contract.SessionStore,
    *,
    actor_id: str | contract.AllActors | None = contract.ALL_ACTORS,
    existing: transfer.Existing = "fail",
    prune: bool = False,
    concurrency: int = 4,
) -> Generator[transfer.Transferred]:
    """Do what `littleghost.copy_sessions` does."""
    return _iterated(
        transfer.copy_sessions(
            _store_of(source),
            _store_of(destination),
            actor_id=actor_id,
            existing=existing,
            prune=prune,
            concurrency=concurrency,
        )
    )


def verify_sessions(
    store: Store | contract.SessionStore, *, batch: int = 100
) -> Generator[contract.Verified]:
    """Do what `littleghost.verify_sessions` does."""
    return _iterated(upkeep.verify_sessions(_store_of(store), batch=batch))


def expire_sessions(
    store: Store | contract.SessionStore,
    *,
    expire_after: timedelta | float,
    batch: int = 100,
    pause: float = 0.0,
) -> Generator[int]:
    """Do what `littleghost.expire_sessions` does."""
    return _iterated(
        upkeep.expire_sessions(_store_of(store), expire_after=expire_after, batch=batch, pause=pause)
    )


def unfinished_sessions(
    store: Store | contract.SessionStore,
    *,
    actor_id: str | contract.AllActors | None = contract.ALL_ACTORS,
) -> Generator[contract.SessionInfo]:
    """Do what `littleghost.unfinished_sessions` does."""
    return _iterated(upkeep.unfinished_sessions(_store_of(store), actor_id=actor_id))


@contextmanager
def retention(
    store: Store | contract.SessionStore,
    *,
    expire_after: timedelta | float,
    every: timedelta | float = 3600.0,
    batch: int = 100,
    pause: float = 0.1,
) -> Generator[None]:
    """Do what `littleghost.retention` does, in the thread of this module's loop."""
    with _entered(
        lambda: upkeep.retention(
            _store_of(store), expire_after=expire_after, every=every, batch=batch, pause=pause
        )
    ):
        yield


class Session:
    """The synchronous face of `littleghost.Session`, and its arguments."""

    def __init__(
        self,
        *,
        id: object,
        store: Store | contract.SessionStore,
        actor_id: object = None,
        metadata: Mapping[str, Any] | None = None,
        operation_id: str | None = None,
    ) -> None:
        self._session = session.Session(
            id=id, store=_store_of(store), actor_id=actor_id, metadata=metadata, operation_id=operation_id
        )

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    @property
    def actor_id(self) -> str | None:
        """Whose it is."""
        return self._session.actor_id

    def __repr__(self) -> str:
        return f"sync.{self._session!r}"

    def load(self) -> contract.Snapshot | None:
        """Do what `littleghost.Session.load` does."""
        return portal.call(self._session.load)

    def reload(self) -> contract.Snapshot | None:
        """Do what `littleghost.Session.reload` does."""
        return portal.call(self._session.reload)

    def history(self, fallback: Sequence[Message] = ()) -> Sequence[Message]:
        """Do what `littleghost.Session.history` does."""
        return portal.call(self._session.history, fallback)

    def tail(self, *, limit: int, before: int | None = None) -> contract.Page[Message]:
        """Do what `littleghost.Session.tail` does."""
        return portal.call(self._session.tail, limit=limit, before=before)

    def journal(self) -> list[Message]:
        """Do what `littleghost.Session.journal` does."""
        return portal.call(self._session.journal)

    def state(self) -> dict[str, Any]:
        """Do what `littleghost.Session.state` does."""
        return portal.call(self._session.state)

    def metadata(self) -> dict[str, Any]:
        """Do what `littleghost.Session.metadata` does."""
        return portal.call(self._session.metadata)

    def append(
        self,
        messages: session.Messages,
        *,
        state: session.State = UNSET,
        metadata: session.State = UNSET,
        commit_id: str | None = None,
    ) -> contract.Commit:
        """Do what `littleghost.Session.append` does."""
        return portal.call(
            self._session.append, messages, state=state, metadata=metadata, commit_id=commit_id
        )

    def replace(
        self,
        messages: session.Messages,
        *,
        state: session.State = UNSET,
        metadata: session.State = UNSET,
        commit_id: str | None = None,
    ) -> contract.Commit:
        """Do what `littleghost.Session.replace` does."""
        return portal.call(
            self._session.replace, messages, state=state, metadata=metadata, commit_id=commit_id
        )

    def checkpoint(
        self,
        messages: session.Messages,
        *,
        state: session.State = UNSET,
        metadata: session.State = UNSET,
        parent_operation_id: Any = UNSET,
    ) -> contract.Commit:
        """Do what `littleghost.Session.checkpoint` does."""
        return portal.call(
            self._session.checkpoint,
            messages,
            state=state,
            metadata=metadata,
            parent_operation_id=parent_operation_id,
        )

    def checkpoint_result(self, result: session.Result) -> contract.Commit:
        """Do what `littleghost.Session.checkpoint_result` does."""
        return portal.call(self._session.checkpoint_result, result)

    def update(self, change: session.Update, *, attempts: int = 30) -> contract.Commit:
        """Do what `littleghost.Session.update` does."""
        return portal.call(self._session.update, change, attempts=attempts)

    def project_conversation(self, messages: session.Messages, *, metadata: session.State = UNSET) -> None:
        """Do what `littleghost.Session.project_conversation` does."""
        portal.call(self._session.project_conversation, messages, metadata=metadata)

    def fork(self, new_id: object, *, at: int | None = None) -> Session:
        """Do what `littleghost.Session.fork` does."""
        forked = portal.call(self._session.fork, new_id, at=at)
        return Session(
            id=forked.id, store=forked.store, actor_id=forked.actor_id, operation_id=forked.operation_id
        )

    def delete(self) -> bool:
        """Do what `littleghost.Session.delete` does."""
        return portal.call(self._session.delete)

    @contextmanager
    def synchronize(self) -> Generator[None]:
        """Do what `littleghost.Session.synchronize` does."""
        with _entered(self._session.synchronize):
            yield

    @contextmanager
    def lease(self, *, timeout: float | None = None) -> Generator[contract.Lease]:
        """Do what `littleghost.Session.lease` does."""
        with _entered(lambda: self._session.lease(timeout=timeout)) as lease:
            yield lease


class RunStream(Generic[T_co]):
    """The synchronous face of `littleghost.RunStream`."""

    def __init__(self, stream: streaming.RunStream[T_co]) -> None:
        self._stream = stream

    @property
    def run(self) -> Run[T_co]:
        """The finished run; see `littleghost.RunStream`."""
        return self._stream.run

    def __iter__(self) -> Iterator[Event]:
        while (event := portal.call(_next, self._stream)) is not None:
            yield event


async def _next(stream: streaming.RunStream[Any]) -> Event | None:
    try:
        return await stream.__anext__()
    except StopAsyncIteration:
        return None


class Runtime:
    """The synchronous face of `littleghost.Runtime`, and its arguments."""

    def __init__(
        self,
        *,
        session_store: Store | contract.SessionStore | Callable[[], contract.SessionStore] | None = None,
        workspace: Workspace | str | os.PathLike[str] | Callable[..., Workspace] | None = None,
        sandbox: Sandbox | Callable[[Workspace], Sandbox] | None = None,
        prices: Prices | None = None,
        capture_content: bool | runtime.Redactor = False,
    ) -> None:
        store = session_store.store if isinstance(session_store, Store) else session_store
        self._runtime = runtime.Runtime(
            session_store=store,
            workspace=workspace,
            sandbox=sandbox,
            prices=prices,
            capture_content=capture_content,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do what `littleghost.Runtime.aclose` does; runs that other threads wait for end as cancelled."""
        portal.call(self._runtime.aclose)

    def session(
        self, id: object, *, actor_id: object = None, metadata: Mapping[str, Any] | None = None
    ) -> Session:
        """Return the session ``id`` of ``actor_id`` in the runtime's store."""
        return Session(id=id, store=self._runtime.session_store, actor_id=actor_id, metadata=metadata)

    def delete_session(self, id: object, *, actor_id: object = None) -> bool:
        """Do what `littleghost.Runtime.delete_session` does."""
        return portal.call(self._runtime.delete_session, id, actor_id=actor_id)

    def ask(
        self,
        agent: runtime.Runnable[T],
        message: str | Message | Sequence[Any],
        *,
        session_id: object = None,
        actor_id: object = None,
        busy: runtime.Busy = "wait",
        timeout: float | None = None,
        cancellation: CancellationToken | None = None,
        deps: Any = None,
        limits: RunLimits | None = None,
        budget: Budget | None = None,
    ) -> Run[T]:
        """Do what `littleghost.Runtime.ask` does."""
        return portal.call(
            self._runtime.ask,
            agent,
            message,
            session_id=session_id,
            actor_id=actor_id,
            busy=busy,
            timeout=timeout,
            cancellation=cancellation,
            deps=deps,
            limits=limits,
            budget=budget,
        )

    def resume(
        self,
        agent: runtime.Runnable[T],
        *,
        session_id: object,
        actor_id: object = None,
        busy: runtime.Busy = "wait",
        timeout: float | None = None,
        cancellation: CancellationToken | None = None,
        deps: Any = None,
        limits: RunLimits | None = None,
        budget: Budget | None = None,
        approvals: Mapping[str, bool | Approval] | None = None,
        results: Mapping[str, Any] | None = None,
    ) -> Run[T]:
        """Do what `littleghost.Runtime.resume` does."""
        run: Run[T] = portal.call(
            cast("Any", self._runtime.resume),
            agent,
            session_id=session_id,
            actor_id=actor_id,
            busy=busy,
            timeout=timeout,
            cancellation=cancellation,
            deps=deps,
            limits=limits,
            budget=budget,
            approvals=approvals,
            results=results,
        )
        return run

    def pending(self, *, session_id: object, actor_id: object = None) -> tuple[ToolUse, ...]:
        """Do what `littleghost.Runtime.pending` does."""
        return portal.call(self._runtime.pending, session_id=session_id, actor_id=actor_id)

    @contextmanager
    def stream(
        self, agent: runtime.Runnable[T], message: str | Message | Sequence[Any] | None, **options: Any
    ) -> Generator[RunStream[T]]:
        """Do what `littleghost.Runtime.stream` does; the options are its own."""
        with _entered(lambda: self._runtime.stream(agent, message, **options)) as stream:
            yield RunStream(stream)
