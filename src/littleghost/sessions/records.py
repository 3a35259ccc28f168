"""A commit as our stores keep it: checked, packed, and with a digest that tells a repeated commit from another one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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


REASONING = b'"reasoning"'
"""What is in the packed form of whatever holds a block of reasoning, and of little else."""


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
    if commit_id is not None:
        _check_commit_id(commit_id)
    body, kept = _packed(messages)
    return Record(
        kind=kind,
        messages=kept,
        body=body,
        count=len(kept),
        state=_object(state, "state"),
        metadata=_object(metadata, "metadata"),
        commit_id=commit_id,
        created_at=None if created_at is None else _moment(created_at, "created_at"),
        updated_at=None if updated_at is None else _moment(updated_at, "updated_at"),
    )


def _check_commit_id(value: Any) -> None:
    if not isinstance(value, str) or not COMMIT_ID.fullmatch(value):
        data.check_text(value, "commit_id")
        raise DataError.at("commit_id", "must be 1 to 64 letters, digits or hyphens")


def _packed(messages: Iterable[Message]) -> tuple[bytes, tuple[Message, ...]]:
    # Nearly all are without reasoning. Their packed form tells so at once, and looking into each block would take longer than packing.
    given = tuple(messages)
    try:
        body, kept = pack_messages(given)
    except DataError:  # perhaps for what is in the reasoning
        return pack_messages(transcript.without_reasoning(given))
    return pack_messages(transcript.without_reasoning(kept)) if REASONING in body else (body, kept)


def _object(value: Mapping[str, Any], name: str) -> bytes:
    if type(value) is dict:  # asked first, for what is any other mapping takes longer to find out
        return data.pack(value, name) if value else b"{}"
    return data.pack_object(value, name)


def _moment(value: Any, name: str) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise DataError.at(name, f"expected seconds since the epoch, got {data.kind(value)}")


def check_key(id: Any, actor_id: Any) -> tuple[str | None, str]:
    """Return the key of a session, ``(actor_id, id)``.

    Raises:
        DataError: One is not valid text.
    """
    return (None if actor_id is None else data.check_text(actor_id, "actor_id"), data.check_text(id, "id"))
