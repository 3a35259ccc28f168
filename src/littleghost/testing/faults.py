"""A store that fails when it is told to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Literal, Self, TypeVar

import msgspec

from littleghost.errors import StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions.contract import (
    Commit,
    Lease,
    Page,
    SessionInfo,
    SessionLimits,
    SessionStore,
    Snapshot,
    Statistics,
    Verified,
)

__all__ = ["Fault", "FaultyStore"]

Answer = TypeVar("Answer")
When = Literal["before", "after"]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong.

    Attributes:
        operation: The method's name, such as ``append``; ``*`` for any.
        number: Which call of it, counted from 1; ``None`` for every one.
        when: ``before`` the inner store is asked, so that nothing is written; ``after`` it has answered, so that the answer is lost.
        error: What is raised, if anything.
        seconds: How long it takes before; infinite for one that never ends.
    """

    operation: str
    number: int | None
    when: When
    error: BaseException | None
    seconds: float


class FaultyStore(SessionStore):
    """A store around another one, with faults at chosen calls. Without any it behaves like the inner store.

    ::

        store = FaultyStore(MemoryStore())
        store.fail("append", 2, when="after")      # the second append is written, and its answer lost
        store.hang("load", 1)                       # the first load never ends, until it is cancelled

    Args:
        inner: The store that does the work.

    Attributes:
        inner: The same.
        calls: The names of the methods that were called, in order.
    """

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self.capabilities = inner.capabilities
        self.granularity = inner.granularity
        self._faults: list[Fault] = []
        self._counts: Counter[str] = Counter()

    @property
    def limits(self) -> SessionLimits:
        """Those of the inner store, which keeps them."""
        return self.inner.limits

    @limits.setter
    def limits(self, limits: SessionLimits) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.inner.limits = limits

    def fail(
        self,
        operation: str,
        number: int | None = 1,
        *,
        when: When = "before",
        error: BaseException | None = None,
    ) -> Self:
        """Let a call fail, with a `StoreUnavailableError` unless ``error`` is given."""
        error = error or StoreUnavailableError(
            f"a fault that was asked for, {when} {operation} number {number}"
        )
        return self._add(operation, number, when, error, 0.0)

    def delay(self, operation: str, number: int | None = 1, *, seconds: float, when: When = "before") -> Self:
        """Let a call take ``seconds`` longer."""
        return self._add(operation, number, when, None, seconds)

    def hang(self, operation: str, number: int | None = 1, *, when: When = "before") -> Self:
        """Let a call never end, until it is cancelled."""
        return self._add(operation, number, when, None, float("inf"))

    def heal(self) -> None:
        """Forget every fault; calls are counted on."""
        self._faults.clear()

    def _add(
        self, operation: str, number: int | None, when: When, error: BaseException | None, seconds: float
    ) -> Self:
        self._faults.append(
            Fault(operation=operation, number=number, when=when, error=error, seconds=seconds)
        )
        return self

    async def _call(self, operation: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        self.calls.append(operation)
        self._counts[operation] += 1
        number = self._counts[operation]
        await self._suffer(operation, number, "before")
        answer = await work()
        await self._suffer(operation, number, "after")
        return answer

    async def _suffer(self, operation: str, number: int, when: When) -> None:
        for fault in list(self._faults):
            if fault.operation in (operation, "*") and fault.number in (number, None) and fault.when == when:
                if fault.seconds == float("inf"):
                    await asyncio.Event().wait()
                elif fault.seconds:
                    await asyncio.sleep(fault.seconds)
                if fault.error is not None:
                    raise fault.error

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        return await self._call("load", lambda: self.inner.load(id, actor_id=actor_id))

    async def append(self, id: str, **options: Any) -> Commit:
        return await self._call("append", lambda: self.inner.append(id, **options))

    async def replace(self, id: str, **options: Any) -> Commit:
        return await self._call("replace", lambda: self.inner.replace(id, **options))

    async def project_conversation(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        metadata: Mapping[str, Any],
        actor_id: str | None = None,
    ) -> None:
        await self._call(
            "project_conversation",
            lambda: self.inner.project_conversation(
                id, messages=messages, metadata=metadata, actor_id=actor_id
            ),
        )

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        return await self._call("delete", lambda: self.inner.delete(id, actor_id=actor_id))

    async def sessions(self, **options: Any) -> Page[SessionInfo]:
        return await self._call("sessions", lambda: self.inner.sessions(**options))

    async def statistics(self, **options: Any) -> Statistics:
        return await self._call("statistics", lambda: self.inner.statistics(**options))

    async def expire(self, **options: Any) -> int:
        return await self._call("expire", lambda: self.inner.expire(**options))

    async def verify(self, **options: Any) -> Verified:
        return await self._call("verify", lambda: self.inner.verify(**options))

    async def restore(self, id: str, **options: Any) -> Commit:
        return await self._call("restore", lambda: self.inner.restore(id, **options))

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        return await self._call(
            "tail", lambda: self.inner.tail(id, limit=limit, before=before, actor_id=actor_id)
        )

    async def fork(
        self, id: str, new_id: str, *, at: int | None = None, actor_id: str | None = None
    ) -> Commit:
        return await self._call("fork", lambda: self.inner.fork(id, new_id, at=at, actor_id=actor_id))

    async def aclose(self) -> None:
        await self._call("aclose", self.inner.aclose)

    def operation_context(self, operation_id: str | None) -> AbstractContextManager[None]:
        return self.inner.operation_context(operation_id)

    def synchronize(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        return self.inner.synchronize(id, actor_id=actor_id, timeout=timeout)

    def lease(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        return self.inner.lease(id, actor_id=actor_id, timeout=timeout)
