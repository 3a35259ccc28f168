"""Sessions in memory: the contract without a medium."""

from __future__ import annotations

import secrets
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from littleghost.message import Message
from littleghost.sessions.commits import (
    Found,
    admit,
    after_cursor,
    check_expected,
    check_limit,
    cursor_after,
    unpack_bodies,
    unpack_object,
    window,
)
from littleghost.sessions.contract import ANY, Commit, Page, Revision, SessionInfo, SessionStore, Snapshot
from littleghost.sessions.records import Record, check_key, record

__all__ = ["MemoryStore"]


class _Kept:
    """One session. Bodies are immutable bytes, so that a reader needs the lock only to copy the list."""

    __slots__ = ("bodies", "commits", "created", "ends", "epoch", "metadata", "number", "state", "updated")

    def __init__(self) -> None:
        self.epoch = secrets.randbits(63)
        self.number = 0
        self.bodies: list[bytes] = []
        self.ends: list[int] = []  # how many messages there are up to the end of each body
        self.state = self.metadata = b"{}"
        self.commits: dict[str, Found] = {}
        self.created = self.updated = time.time()

    @property
    def head(self) -> Commit:
        return Commit(revision=f"{self.epoch:016x}-{self.number}", count=self.ends[-1] if self.ends else 0)

    def write(self, commit: Record) -> Commit:
        if commit.kind == "replace":
            self.bodies, self.ends = [], []
        if commit.count:
            self.ends.append(self.head.count + commit.count)
            self.bodies.append(commit.body)
        self.state, self.metadata = commit.state, commit.metadata
        self.number += 1
        self.updated = time.time()
        answer = self.head
        if commit.commit_id is not None:
            self.commits[commit.commit_id] = (commit.digest(), answer)
        return answer


class MemoryStore(SessionStore):
    """Keeps sessions in this process's memory, for tests and for conversations that need not outlive it.

    Behaves like a store on disk, revisions, commit ids and copies included. Survives nothing: not the process, and not the
    store object. Safe to use from several threads and event loops.
    """

    capabilities = frozenset(
        {"anonymous_actor", "commit_ids", "delete", "fork", "revisions", "sessions", "tail"}
    )

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._kept: dict[tuple[str | None, str], _Kept] = {}

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

    async def append(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        expected_count: int,
        actor_id: str | None = None,
        expected_revision: str | Revision | None = ANY,
        commit_id: str | None = None,
    ) -> Commit:
        key = check_key(id, actor_id)
        check_expected(expected_revision, expected_count)
        return self._write(
            key, record("append", messages, state, metadata, commit_id), expected_count, expected_revision
        )

    async def replace(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        actor_id: str | None = None,
        expected_revision: str | Revision | None = ANY,
        commit_id: str | None = None,
    ) -> Commit:
        key = check_key(id, actor_id)
        check_expected(expected_revision)
        return self._write(
            key, record("replace", messages, state, metadata, commit_id), None, expected_revision
        )

    def _write(
        self,
        key: tuple[str | None, str],
        commit: Record,
        expected_count: int | None,
        expected_revision: str | Revision | None,
    ) -> Commit:
        with self._guard:
            kept = self._kept.get(key)
            answer = admit(
                commit,
                kept.head if kept else None,
                expected_count=expected_count,
                expected_revision=expected_revision,
                find=kept.commits.get if kept else _nothing,
            )
            if answer is None:
                answer = self._kept.setdefault(key, kept or _Kept()).write(commit)
            return answer

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        key = check_key(id, actor_id)
        with self._guard:
            return self._kept.pop(key, None) is not None

    async def sessions(
        self, *, actor_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[SessionInfo]:
        check_limit(limit)
        after = after_cursor(cursor)
        check_key("", actor_id)
        with self._guard:
            mine = sorted(
                id for actor, id in self._kept if actor == actor_id and (after is None or id > after)
            )
            chosen = [(id, self._kept[actor_id, id]) for id in mine[:limit]]
            items = tuple(
                SessionInfo(
                    id=id,
                    actor_id=actor_id,
                    count=kept.head.count,
                    revision=kept.head.revision,
                    created_at=kept.created,
                    updated_at=kept.updated,
                )
                for id, kept in chosen
            )
        return Page(items=items, cursor=cursor_after(items[-1].id) if len(mine) > limit else None)

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        key = check_key(id, actor_id)
        check_limit(limit, before)
        with self._guard:
            kept = self._kept.get(key)
            start, end = window(kept.head.count if kept else 0, limit, before)
            if kept is None or start == end:
                return Page(items=())
            first, last = bisect_right(kept.ends, start), bisect_left(kept.ends, end)
            bodies = kept.bodies[first : last + 1]
            skipped = kept.ends[first - 1] if first else 0
            count = kept.ends[last] - skipped
        messages = unpack_bodies(bodies, count)
        return Page(items=messages[start - skipped : end - skipped], cursor=start or None)


def _nothing(_: str) -> Found | None:
    return None
