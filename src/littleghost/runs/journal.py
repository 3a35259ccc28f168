"""Where the messages of a run go, one commit at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from littleghost import data, events, transcript
from littleghost.message import Message, pack_messages, pack_plain
from littleghost.sessions.session import Session

__all__ = ["Journal", "NoJournal", "SessionJournal"]


class Journal(Protocol):
    """Where a run's messages go, one commit at a time."""

    async def commit(self, messages: Sequence[Message], state: bytes) -> tuple[int, events.Committed | None]:
        """Store ``messages`` and the packed ``state``; return the number of messages stored before, and what to tell listeners."""
        ...


class SessionJournal:
    """Commits to a session."""

    def __init__(self, session: Session, count: int, state: bytes) -> None:
        self._session = session
        self._count = count
        self._state = state

    async def commit(self, messages: Sequence[Message], state: bytes) -> tuple[int, events.Committed | None]:
        """Append to the session, guarded by the revision it knows."""
        kept = transcript.sanitise(messages)
        position = self._count
        if state != self._state:
            commit = await self._session.append(kept, state=data.unpack(state))
        elif kept:
            commit = await self._session.append(kept)
        else:
            return position, None
        self._count, self._state = position + len(kept), state
        return position, events.Committed(count=commit.count, revision=commit.revision)


class NoJournal:
    """Checks what the user says as a session would, and stores nothing. What the run makes itself was checked as it was made."""

    def __init__(self) -> None:
        self._count = 0

    async def commit(self, messages: Sequence[Message], state: bytes) -> tuple[int, events.Committed | None]:
        """Count."""
        for message in messages:
            if message.role not in ("assistant", "tool") and pack_plain((message,)) is None:
                pack_messages((message,))
        position = self._count
        self._count += len(messages)
        return position, None
