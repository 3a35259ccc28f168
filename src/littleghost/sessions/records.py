"""A commit as our stores keep it: checked, packed, and with a digest that tells a repeated commit from another one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Literal

from msgspec import Struct

from littleghost import data, transcript
from littleghost.errors import DataError
from littleghost.message import Message, pack_messages, pack_plain, unpack_messages
from littleghost.sessions.contract import COMMIT_ID

__all__ = ["PART", "Record", "check_key", "check_timeout", "record"]

PART = 256
"""A commit of more messages is kept in several parts, so that whoever wants some of them need not read them all."""


REASONING = b'"reasoning"'
"""What is in the packed form of whatever holds a block of reasoning, and of little else."""


class Record(Struct, frozen=True, kw_only=True):
    """One commit.

    Attributes:
        kind: ``append`` or ``replace``.
        body: The JSON array of its messages.
        count: How many they are.
        state: The packed state.
        metadata: The packed metadata.
        commit_id: Its id, or ``None``.
        created_at: When its session was first written, where that is not now; seconds since the epoch.
        updated_at: When it was last written, where that is not now.
    """

    kind: Literal["append", "replace"]
    body: bytes
    count: int
    state: bytes
    metadata: bytes
    commit_id: str | None
    created_at: float | None = None
    updated_at: float | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """Its messages, as they will be read back. Few stores ask for them, so they are made when one does."""
        return unpack_messages(self.body)

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
        messages = self.messages
        slices = [messages[start : start + PART] for start in range(0, self.count, PART)]
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
    _check_list(messages)
    body, count = _packed(messages)
    return Record(
        kind=kind,
        body=body,
        count=count,
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


def _check_list(messages: Any) -> None:
    # What is in it is looked at when it is packed; text is made of texts, and would be told to be a wrong message.
    if isinstance(messages, str | bytes | bytearray | Mapping) or not isinstance(messages, Iterable):
        raise DataError.at("messages", f"expected a list of messages, got {data.kind(messages)}")


def _packed(messages: Iterable[Message]) -> tuple[bytes, int]:
    """Return the JSON array of ``messages`` without reasoning, and how many are left."""
    # Nearly all are without reasoning. Their packed form tells so at once, and looking into each block would take longer than packing.
    given = tuple(messages)
    plain = pack_plain(given)
    if plain is not None:
        return plain, len(given)
    try:
        body, kept = pack_messages(given)
        if REASONING in body:
            body, kept = pack_messages(transcript.without_reasoning(kept))
    except DataError:  # perhaps for what is in the reasoning
        if not all(isinstance(message, Message) for message in given):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise
        body, kept = pack_messages(transcript.without_reasoning(given))
    return body, len(kept)


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


def check_timeout(timeout: Any) -> float | None:
    """Return how many seconds to wait for a lease, ``None`` for ever.

    Raises:
        DataError: ``timeout`` is neither.
    """
    with suppress(OverflowError):  # of an integer that no float is
        if timeout is None:
            return None
        if isinstance(timeout, int | float) and not isinstance(timeout, bool) and not math.isnan(timeout):
            return float(timeout)
    raise DataError.at("timeout", f"expected seconds or None, got {data.kind(timeout)}")
