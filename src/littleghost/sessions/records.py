"""A commit as our stores keep it: checked, packed, and with a digest that tells a repeated commit from another one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from msgspec import Struct

from littleghost import data, transcript
from littleghost.errors import DataError
from littleghost.message import Message, pack_messages
from littleghost.sessions.contract import COMMIT_ID

__all__ = ["PART", "Record", "check_key", "record"]

PART = 256
"""A commit of more messages is kept in several parts, so that whoever wants some of them need not read them all."""


class Record(Struct, frozen=True, kw_only=True):
    """One commit.

    Attributes:
        kind: ``append`` or ``replace``.
        messages: Its messages, as they will be read back.
        body: The JSON array of them.
        count: How many that is.
        state: The packed state.
        metadata: The packed metadata.
        commit_id: Its id, or ``None``.
        created_at: When its session was first written, where that is not now; seconds since the epoch.
        updated_at: When it was last written, where that is not now.
    """

    kind: Literal["append", "replace"]
    messages: tuple[Message, ...]
    body: bytes
    count: int
    state: bytes
    metadata: bytes
    commit_id: str | None
    created_at: float | None = None
    updated_at: float | None = None

    def digest(self) -> bytes:
        """Return 16 bytes that differ for other content."""
        hashed = blake2b(self.kind.encode(), digest_size=16)
        for part in (self.body, self.state, self.metadata):
            hashed.update(len(part).to_bytes(8, "big"))
            hashed.update(part)
        return hashed.digest()

    def parts(self) -> list[tuple[bytes, int]]:
        """Return the bodies to keep, one at least, and how many messages each has. Never more than `PART`."""
        if self.count <= PART:
            return [(self.body, self.count)]
        slices = [self.messages[start : start + PART] for start in range(0, self.count, PART)]
        return [(pack_messages(part)[0], len(part)) for part in slices]


def record(
    kind: Literal["append", "replace"],
    messages: Sequence[Message],
    state: Mapping[str, Any],
    metadata: Mapping[str, Any],
    commit_id: str | None = None,
    *,
    created_at: float | None = None,
    updated_at: float | None = None,
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
        messages=kept,
        body=body,
        count=len(kept),
        state=data.pack_object(state, "state"),
        metadata=data.pack_object(metadata, "metadata"),
        commit_id=commit_id,
        created_at=_moment(created_at, "created_at"),
        updated_at=_moment(updated_at, "updated_at"),
    )


def _moment(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise DataError.at(name, f"expected seconds since the epoch, got {data.kind(value)}")
    return float(value)


def check_key(id: Any, actor_id: Any) -> tuple[str | None, str]:
    """Return the key of a session, ``(actor_id, id)``.

    Raises:
        DataError: One is not valid text.
    """
    return (None if actor_id is None else data.check_text(actor_id, "actor_id"), data.check_text(id, "id"))
