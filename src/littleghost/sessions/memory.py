"""Sessions in memory: the contract without a medium."""

from __future__ import annotations

import secrets
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from operator import itemgetter

from littleghost.message import Message
from littleghost.sessions.commits import (
    Found,
    admit,
    check_actor,
    check_expiry,
    check_limit,
    check_limits,
    check_listing,
    check_room,
    lease_lost,
    scope_of,
    unpack_bodies,
    unpack_object,
    window,
)
from littleghost.sessions.contract import (
    ALL_ACTORS,
    NO_LIMITS,
    AllActors,
    Commit,
    Lease,
    Page,
    Revision,
    SessionInfo,
    SessionLimits,
    SessionOrder,
    Snapshot,
    Statistics,
)
from littleghost.sessions.recording import RecordStore
from littleghost.sessions.records import Record, check_key, check_timeout

__all__ = ["MemoryStore"]


class _Kept:
    """One session. Bodies are immutable bytes, so that a reader needs the lock only to copy the list."""

    __slots__ = (
        "bodies",
        "commits",
        "created",
        "ends",
        "epoch",
        "metadata",
        "number",
        "packed",
        "state",
        "updated",
    )

    def __init__(self) -> None:
        self.epoch = secrets.randbits(63)
        self.number = 0
        self.bodies: list[bytes] = []
        self.ends: list[int] = []  # how many messages there are up to the end of each body
        self.packed = 0  # how many bytes the bodies have
        self.state = self.metadata = b"{}"
        self.commits: dict[str, Found] = {}
        self.created = self.updated = time.time()

    @property
    def count(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def head(self) -> Commit:
        return Commit(revision=f"{self.epoch:016x}-{self.number}", count=self.count)

    @property
    def size(self) -> int:
        return self.packed + len(self.state) + len(self.metadata)

    def info(self, actor_id: str | None, id: str) -> SessionInfo:
        head = self.head
        return SessionInfo(
            id=id,
            actor_id=actor_id,
            count=head.count,
            revision=head.revision,
            created_at=self.created,
            updated_at=self.updated,
            size=self.size,
            metadata=unpack_object(self.metadata, "metadata"),
        )

    def check_room(self, limits: SessionLimits, commit: Record) -> None:
        added = sum(len(body) for body, count in commit.parts() if count)
        count, packed = (self.count, self.packed) if commit.kind == "append" else (0, 0)
        check_room(
            limits,
            messages=count + commit.count,
            size=packed + added + len(commit.state) + len(commit.metadata),
            before=(self.count, self.size),
        )

    def write(self, commit: Record) -> Commit:
        if commit.kind == "replace":
            self.bodies, self.ends, self.packed = [], [], 0
        for body, count in commit.parts():
            if count:
                self.ends.append(self.count + count)
                self.bodies.append(body)
                self.packed += len(body)
        self.state, self.metadata = commit.state, commit.metadata
        self.number += 1
        self.updated = time.time() if commit.updated_at is None else commit.updated_at
        if commit.created_at is not None:
            self.created = commit.created_at
        elif self.number == 1:
            self.created = self.updated
        answer = self.head
        if commit.commit_id is not None:
            self.commits[commit.commit_id] = (commit.digest(), answer)
        return answer


class MemoryStore(RecordStore):
    """Keeps sessions in this process's memory, for tests and for conversations that need not outlive it.

    Behaves like a store on disk, revisions, commit ids and copies included. Survives nothing: not the process, and not the
    store object. Safe to use from several threads and event loops.

    Args:
        limits: How large a session may become.
    """

    def __init__(self, *, limits: SessionLimits = NO_LIMITS) -> None:
        self.limits = check_limits(limits)
        self._guard = threading.Lock()
        self._kept: dict[tuple[str | None, str], _Kept] = {}
        self._leases: dict[tuple[str | None, str], Lease] = {}

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        key = check_key(id, actor_id)
        with self._guard:
            kept = self._kept.get(key)
            if kept is None:
                return None
            head, bodies, state, metadata = kept.head, kept.bodies.copy(), kept.state, kept.metadata
        return Snapshot(
            messages=unpack_bodies(bodies, head.count),
            state=unpack_object(state, "state"),
            metadata=unpack_object(metadata, "metadata"),
            revision=head.revision,
            count=head.count,
        )

    async def _write(
        self,
        key: tuple[str | None, str],
        commit: Record,
        expected_count: int | None,
        expected_revision: str | Revision | None,
        lease: Lease | None,
    ) -> Commit:
        with self._guard:
            kept = self._kept.get(key)
            answer = admit(
                commit,
                kept.head if kept else None,
                expected_count=expected_count,
                expected_revision=expected_revision,
                find=kept.commits.get if kept else _nothing,
                lost=None if lease is None or self._leases.get(key) == lease else lease_lost(key[1]),
            )
            if answer is None:
                kept = kept or _Kept()
                kept.check_room(self.limits, commit)
                answer = self._kept.setdefault(key, kept).write(commit)
            return answer

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        key = check_key(id, actor_id)
        with self._guard:
            return self._kept.pop(key, None) is not None

    async def sessions(
        self,
        *,
        actor_id: str | AllActors | None = None,
        limit: int = 100,
        cursor: str | None = None,
        order: SessionOrder = "id",
        since: float | None = None,
        until: float | None = None,
    ) -> Page[SessionInfo]:
        asked = check_listing(actor_id, limit, cursor, order, since, until)
        with self._guard:
            found = [
                kept.info(*key)
                for key, kept in self._of(actor_id)
                if (asked.since is None or kept.updated >= asked.since)
                and (asked.until is None or kept.updated < asked.until)
            ]
        ranked = sorted((_rank(order, info.updated_at, info.actor_id, info.id), info) for info in found)
        if asked.after is not None:
            after = _rank(order, asked.after.updated_at, asked.after.actor_id, asked.after.id)
            ranked = ranked[bisect_right(ranked, after, key=itemgetter(0)) :]
        return asked.page([info for _, info in ranked])

    async def statistics(self, *, actor_id: str | AllActors | None = ALL_ACTORS) -> Statistics:
        check_actor(actor_id)
        with self._guard:
            found = [kept for _, kept in self._of(actor_id)]
            times = [kept.updated for kept in found]
            return Statistics(
                sessions=len(found),
                messages=sum(kept.count for kept in found),
                size=sum(kept.size for kept in found),
                oldest_at=min(times, default=None),
                newest_at=max(times, default=None),
            )

    async def expire(self, *, expire_after: float, limit: int = 100) -> int:
        check_expiry(expire_after, limit)
        with self._guard:
            before = time.time() - expire_after
            old = sorted(
                (kept.updated, scope_of(key[0]), key)
                for key, kept in self._kept.items()
                if kept.updated < before
            )[:limit]
            for *_, key in old:
                del self._kept[key]
        return len(old)

    def _of(self, actor_id: str | AllActors | None) -> list[tuple[tuple[str | None, str], _Kept]]:
        return [(key, kept) for key, kept in self._kept.items() if actor_id in (ALL_ACTORS, key[0])]

    def lease(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        return self._lease(check_key(id, actor_id), check_timeout(timeout))

    @asynccontextmanager
    async def _lease(self, key: tuple[str | None, str], timeout: float | None) -> AsyncGenerator[Lease]:
        async with self._hold(("lease", key), key[1], timeout):
            lease = self._leases[key] = Lease(token=secrets.token_hex(16))
            try:
                yield lease
            finally:
                self._leases.pop(key, None)

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        key = check_key(id, actor_id)
        check_limit(limit, before)
        with self._guard:
            kept = self._kept.get(key)
            start, end = window(kept.count if kept else 0, limit, before)
            if kept is None or start == end:
                return Page(items=())
            first, last = bisect_right(kept.ends, start), bisect_left(kept.ends, end)
            bodies = kept.bodies[first : last + 1]
            skipped = kept.ends[first - 1] if first else 0
            count = kept.ends[last] - skipped
        messages = unpack_bodies(bodies, count)
        return Page(items=messages[start - skipped : end - skipped], cursor=start or None)


def _rank(order: str, updated_at: float | None, actor_id: str | None, id: str) -> tuple[float, str, str]:
    """Return what lists are sorted by. See `Place`."""
    return (-(updated_at or 0.0) if order == "updated" else 0.0, scope_of(actor_id), id)


def _nothing(_: str) -> Found | None:
    return None
