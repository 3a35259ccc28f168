"""Stores that break a promise now and then, each its own one: the checker must find every one of them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from littleghost import (
    Commit,
    ConflictError,
    Lease,
    Message,
    Page,
    SessionInfo,
    SessionNotFoundError,
    SessionStore,
    Snapshot,
)

__all__ = ["KINDS", "broken"]

SELDOM = 0.02
"""How often a promise is broken, so that what follows on it goes well."""


class Around(SessionStore):
    """A store that asks another one."""

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.chance = random.Random(1)

    def now(self, often: float = SELDOM) -> bool:
        """Whether to break the promise this time."""
        return self.chance.random() < often

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        return await self.inner.load(id, actor_id=actor_id)

    async def append(self, id: str, **values: Any) -> Commit:
        return await self.inner.append(id, **values)

    async def replace(self, id: str, **values: Any) -> Commit:
        return await self.inner.replace(id, **values)

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        return await self.inner.delete(id, actor_id=actor_id)

    async def fork(self, id: str, new_id: str, **values: Any) -> Commit:
        return await self.inner.fork(id, new_id, **values)

    async def sessions(self, **values: Any) -> Page[SessionInfo]:
        return await self.inner.sessions(**values)

    async def tail(self, id: str, **values: Any) -> Page[Message]:
        return await self.inner.tail(id, **values)

    async def expire(self, **values: Any) -> int:
        return await self.inner.expire(**values)

    @contextlib.asynccontextmanager
    async def lease(self, id: str, **values: Any) -> AsyncGenerator[Lease]:
        async with self.inner.lease(id, **values) as lease:
            yield lease

    async def aclose(self) -> None:
        await self.inner.aclose()


class Drops(Around):
    """Acknowledges an append and does not do it."""

    async def append(self, id: str, **values: Any) -> Commit:
        if self.now() and values["expected_revision"] is not None:
            snapshot = await self.inner.load(id, actor_id=values["actor_id"])
            if snapshot is not None and snapshot.revision == values["expected_revision"]:
                count = values["expected_count"] + len(values["messages"])
                return Commit(revision=f"{snapshot.revision}x", count=count)
        return await self.inner.append(id, **values)


class Doubles(Around):
    """Writes the messages of an append twice."""

    async def append(self, id: str, **values: Any) -> Commit:
        if self.now():
            values["messages"] = [*values["messages"], *values["messages"]]
        return await self.inner.append(id, **values)


class Repeats(Around):
    """Takes a commit that is sent again for another one."""

    def __init__(self, inner: SessionStore) -> None:
        super().__init__(inner)
        self._seen: set[str] = set()

    async def append(self, id: str, **values: Any) -> Commit:
        name = values.pop("commit_id")
        if name in self._seen:
            snapshot = await self.inner.load(id, actor_id=values["actor_id"])
            if snapshot is not None:
                values |= {"expected_count": snapshot.count, "expected_revision": snapshot.revision}
        answer = await self.inner.append(id, commit_id=name if name not in self._seen else None, **values)
        self._seen.add(name)
        return answer


class AcceptsStale(Around):
    """Writes what came second as if it had come first."""

    async def append(self, id: str, **values: Any) -> Commit:
        try:
            return await self.inner.append(id, **values)
        except ConflictError:
            snapshot = await self.inner.load(id, actor_id=values["actor_id"])
            if snapshot is None or not self.now(0.1):
                raise
            values |= {"expected_count": snapshot.count, "expected_revision": snapshot.revision}
            return await self.inner.append(id, **values)


class RefusesDone(Around):
    """Writes, and says that it was refused."""

    async def append(self, id: str, **values: Any) -> Commit:
        answer = await self.inner.append(id, **values)
        if self.now():
            raise ConflictError("broken", expected=None, actual=None)
        return answer


class RefusesRight(Around):
    """Refuses what nothing speaks against."""

    async def append(self, id: str, **values: Any) -> Commit:
        if self.now():
            raise ConflictError("broken", expected=None, actual=None)
        return await self.inner.append(id, **values)


class LosesMessage(Around):
    """Leaves out the last message of a commit of several."""

    async def append(self, id: str, **values: Any) -> Commit:
        if len(values["messages"]) > 1 and self.now(0.1):
            values["messages"] = values["messages"][:-1]
        return await self.inner.append(id, **values)


class ForgetsState(Around):
    """Keeps the metadata there was."""

    async def append(self, id: str, **values: Any) -> Commit:
        if self.now():
            values["metadata"] = {}
        return await self.inner.append(id, **values)


class ReadsOld(Around):
    """Shows what a session was some time ago."""

    def __init__(self, inner: SessionStore) -> None:
        super().__init__(inner)
        self._old: dict[Any, Snapshot | None] = {}

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        snapshot = await self.inner.load(id, actor_id=actor_id)
        key = (actor_id, id)
        if self.now() and key in self._old:
            return self._old[key]
        if self.now(0.2):
            self._old[key] = snapshot
        return snapshot


class ReadsNothing(Around):
    """Takes a read that failed for an empty history."""

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        return None if self.now() else await self.inner.load(id, actor_id=actor_id)


class KeepsDeleted(Around):
    """Says that a session is deleted, and keeps it."""

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        return True if self.now(0.3) else await self.inner.delete(id, actor_id=actor_id)


class DeletesWrong(Around):
    """Deletes another session besides."""

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        if self.now(0.3):
            await self.inner.delete("a", actor_id=None)
        return await self.inner.delete(id, actor_id=actor_id)


class ForksLess(Around):
    """Leaves out the last message of what is forked."""

    async def fork(self, id: str, new_id: str, **values: Any) -> Commit:
        snapshot = await self.inner.load(id, actor_id=values["actor_id"])
        if snapshot is None or not snapshot.count or not self.now(0.3):
            return await self.inner.fork(id, new_id, **values)
        return await self.inner.replace(
            new_id,
            messages=snapshot.messages[: values["at"]][:-1],
            state=snapshot.state,
            metadata=snapshot.metadata,
            actor_id=values["actor_id"],
            expected_revision=None,
        )


class ForksOver(Around):
    """Forks what is not there."""

    async def fork(self, id: str, new_id: str, **values: Any) -> Commit:
        try:
            return await self.inner.fork(id, new_id, **values)
        except SessionNotFoundError:
            actor = values["actor_id"]
            return await self.inner.replace(
                new_id, messages=[], state={}, metadata={}, actor_id=actor, expected_revision=None
            )


class ListsLess(Around):
    """Leaves out the first session of a list."""

    async def sessions(self, **values: Any) -> Page[SessionInfo]:
        page = await self.inner.sessions(**values)
        return Page(items=page.items[1:], cursor=page.cursor) if self.now(0.2) else page


class TailsWrong(Around):
    """Shows one message less at the end."""

    async def tail(self, id: str, **values: Any) -> Page[Message]:
        page = await self.inner.tail(id, **values)
        return Page(items=page.items[:-1], cursor=page.cursor) if self.now(0.1) else page


class LendsTwice(Around):
    """Gives everybody a lease at once."""

    @contextlib.asynccontextmanager
    async def lease(self, id: str, **values: Any) -> AsyncGenerator[Lease]:
        yield Lease(token="broken")

    async def append(self, id: str, **values: Any) -> Commit:
        values.pop("lease", None)
        return await self.inner.append(id, **values)


class ExpiresYoung(Around):
    """Takes sessions for old that are not."""

    async def expire(self, **values: Any) -> int:
        return await self.inner.expire(**{**values, "expire_after": 0.02})


class Crashes(Around):
    """Raises what no contract has."""

    async def append(self, id: str, **values: Any) -> Commit:
        if self.now():
            raise RuntimeError("broken")
        return await self.inner.append(id, **values)


KINDS: Mapping[str, Callable[[SessionStore], SessionStore]] = {
    "drops": Drops,
    "doubles": Doubles,
    "repeats": Repeats,
    "accepts-stale": AcceptsStale,
    "refuses-done": RefusesDone,
    "refuses-right": RefusesRight,
    "loses-message": LosesMessage,
    "forgets-state": ForgetsState,
    "reads-old": ReadsOld,
    "reads-nothing": ReadsNothing,
    "keeps-deleted": KeepsDeleted,
    "deletes-wrong": DeletesWrong,
    "forks-less": ForksLess,
    "forks-nothing": ForksOver,
    "lists-less": ListsLess,
    "tails-wrong": TailsWrong,
    "lends-twice": LendsTwice,
    "expires-young": ExpiresYoung,
    "crashes": Crashes,
}


def broken(kind: str, store: SessionStore) -> SessionStore:
    """Return ``store`` with a promise broken."""
    return KINDS[kind](store)
