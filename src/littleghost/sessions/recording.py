"""The writing half of our stores: what a commit is checked for and packed into before a medium sees it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from littleghost.errors import DataError
from littleghost.message import Message
from littleghost.sessions.commits import check_expected
from littleghost.sessions.contract import ANY, Commit, Lease, Revision, SessionStore
from littleghost.sessions.records import Record, check_key, record

__all__ = ["RecordStore"]


class RecordStore(SessionStore):
    """A store that keeps records: one method writes them all. It offers everything that the contract knows."""

    capabilities = frozenset(
        {
            "all_actors",
            "anonymous_actor",
            "commit_ids",
            "delete",
            "expire",
            "fencing",
            "fork",
            "leases",
            "limits",
            "restore",
            "revisions",
            "sessions",
            "sessions_by_time",
            "statistics",
            "tail",
            "verify",
        }
    )

    @abstractmethod
    async def _write(
        self,
        key: tuple[str | None, str],
        commit: Record,
        expected_count: int | None,
        expected_revision: str | Revision | None,
        lease: Lease | None,
    ) -> Commit:
        """Write ``commit`` in one atomic step, or raise and change nothing. The arguments are checked.

        Args:
            key: The actor and the id.
            commit: What to write; one that has times is a restored session.
            expected_count: How many messages must be stored now; ``None`` to not check.
            expected_revision: The revision the session must have.
            lease: The lease that must still be the holder's; ``None`` to not check.
        """

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
        lease: Lease | None = None,
    ) -> Commit:
        key = check_key(id, actor_id)
        check_expected(expected_revision, expected_count)
        commit = record("append", messages, state, metadata, commit_id)
        return await self._write(key, commit, expected_count, expected_revision, lease)

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
        lease: Lease | None = None,
    ) -> Commit:
        key = check_key(id, actor_id)
        check_expected(expected_revision)
        commit = record("replace", messages, state, metadata, commit_id)
        return await self._write(key, commit, None, expected_revision, lease)

    async def restore(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        created_at: float | None = None,
        updated_at: float | None = None,
        actor_id: str | None = None,
        expected_revision: str | None = None,
    ) -> Commit:
        key = check_key(id, actor_id)
        check_expected(expected_revision)
        if expected_revision is ANY:
            raise DataError.at("expected_revision", "must be that of the session to replace, or None")
        commit = record("replace", messages, state, metadata, created_at=created_at, updated_at=updated_at)
        return await self._write(key, commit, None, expected_revision, None)
