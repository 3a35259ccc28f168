"""A commit as our stores keep it: checked, packed, and with a digest that tells a repeated commit from another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from msgspec import Struct

from littleghost import data, transcript
from littleghost.errors import DataError
from littleghost.message import Message, pack_messages
from littleghost.sessions.contract import COMMIT_ID

__all__ = ["Record", "check_key", "record"]


class Record(Struct, frozen=True, kw_only=True):
    """One commit.

    Attributes:
        kind: ``append`` or ``replace``.
        body: The JSON array of its messages.
        count: How many messages that is.
        state: The packed state.
        metadata: The packed metadata.
        commit_id: Its id, or ``None``.
    """

    kind: Literal["append", "replace"]
    body: bytes
    count: int
    state: bytes
    metadata: bytes
    commit_id: str | None

    def digest(self) -> bytes:
        """Return 16 bytes that differ for other content."""
        hashed = blake2b(self.kind.encode(), digest_size=16)
        for part in (self.body, self.state, self.metadata):
            hashed.update(len(part).to_bytes(8, "big"))
            hashed.update(part)
        return hashed.digest()


def record(
    kind: Literal["append", "replace"],
    messages: Sequence[Message],
    state: Mapping[str, Any],
    metadata: Mapping[str, Any],
    commit_id: str | None,
) -> Record:
    """Return the record of a commit: reasoning removed, messages emptied by that dropped, everything validated.

    Raises:
        DataError: A value cannot be stored exactly, or ``commit_id`` is malformed.
    """
    if commit_id is not None and not COMMIT_ID.fullmatch(data.check_text(commit_id, "commit_id")):
        raise DataError.at("commit_id", "must be 1 to 64 letters, digits or hyphens")
    body, kept = pack_messages(transcript.without_reasoning(messages))
    return Record(
        kind=kind,
        body=body,
        count=len(kept),
        state=data.pack_object(state, "state"),
        metadata=data.pack_object(metadata, "metadata"),
        commit_id=commit_id,
    )


def check_key(id: Any, actor_id: Any) -> tuple[str | None, str]:
    """Return the key of a session, ``(actor_id, id)``.

    Raises:
        DataError: One is not valid text.
    """
    return (None if actor_id is None else data.check_text(actor_id, "actor_id"), data.check_text(id, "id"))
