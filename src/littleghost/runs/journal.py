"""Where the messages of a run go, one commit at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from littleghost import data, events, transcript
from littleghost.message import Message, pack_messages, pack_plain
from littleghost.runs.notes import Notes
from littleghost.sessions.session import Session

__all__ = ["Journal", "NoJournal", "SessionJournal"]


class Journal(Protocol):
    """Where a run's messages go, one commit at a time."""

    @property
    def count(self) -> int:
        """How many are stored."""
        ...

    async def commit(
        self, messages: Sequence[Message], state: bytes, notes: Notes
    ) -> tuple[int, events.Committed | None]:
        """Store ``messages``, the packed ``state`` and the notes; return how many were stored before, and what to tell listeners."""
        ...


class SessionJournal:
    """Commits to a session.

    Args:
        session: The session, loaded.
        count: How many messages it has.
        state: Its state, packed.
        metadata: Its metadata, the library's notes included.
        notes: Those notes.
    """

    def __init__(
        self, session: Session, count: int, state: bytes, metadata: Mapping[str, Any], notes: Notes
    ) -> None:
        self._session = session
        self.count = count
        self._state = state
        self._metadata = metadata
        self._notes: Notes = notes

    async def commit(
        self, messages: Sequence[Message], state: bytes, notes: Notes
    ) -> tuple[int, events.Committed | None]:
        """Append to the session, guarded by the revision it knows; state and metadata are given where they changed."""
        kept = transcript.sanitise(messages)
        position = self.count
        changed: dict[str, Any] = {}
        if state != self._state:
            changed["state"] = data.unpack(state)
        if notes is not self._notes:
            changed["metadata"] = notes.written(self._metadata)
        if not kept and not changed:
            return position, None
        commit = await self._session.append(kept, **changed)
        self.count, self._state, self._notes = position + len(kept), state, notes
        return position, events.Committed(count=commit.count, revision=commit.revision)


class NoJournal:
    """Checks what the user says as a session would, and stores nothing. What the run makes itself was checked as it was made."""

    def __init__(self) -> None:
        self.count = 0

    async def commit(
        self, messages: Sequence[Message], state: bytes, notes: Notes
    ) -> tuple[int, events.Committed | None]:
        """Count."""
        for message in messages:
            if message.role not in ("assistant", "tool") and pack_plain((message,)) is None:
                pack_messages((message,))
        position = self.count
        self.count += len(messages)
        return position, None
