"""The envelope of an event: what tells its kind and whom it belongs to, and what it is stamped with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from littleghost.errors import CorruptSessionError, DataError
from littleghost.sessions.agentcore.limits import MAX_ID_CHARS

__all__ = [
    "CHECKPOINT_V4",
    "CHECKPOINT_V5",
    "MESSAGE",
    "PROJECTION",
    "corrupt",
    "identity",
    "instant",
    "kind_of",
    "labels",
    "moment",
    "name_of",
    "payload_of",
]

Event = Mapping[str, Any]
"""One event as ListEvents returns it."""

TYPE: Final = "little_ghost_type"
GENERATION: Final = "little_ghost_generation"
COMMIT: Final = "little_ghost_commit"

MESSAGE: Final = "message_v4"
CHECKPOINT_V5: Final = "checkpoint_v5"
CHECKPOINT_V4: Final = "checkpoint_v4"
PROJECTION: Final = "conversation_projection_v1"


def corrupt(name: str, problem: str, *, missing: bool = False) -> CorruptSessionError:
    """Return the error for the event called ``name``.

    Args:
        name: What to call it.
        problem: What is wrong with it; must not repeat what is in it.
        missing: Whether something is not there, which may be because it cannot be seen yet.
    """
    return CorruptSessionError(
        f"the stored session cannot be read: event {name} {problem}", event_id=name, missing=missing
    )


def name_of(event: Event) -> str:
    """Return what to call an event in an error: its id."""
    name = event.get("eventId")
    return name if isinstance(name, str) and name else "without an id"


def kind_of(event: Event) -> str | None:
    """Return the ``little_ghost_type`` of an event; ``None`` for one that is no event of ours."""
    return _label(event, TYPE)


def identity(event: Event) -> tuple[str | None, str | None]:
    """Return the generation and the commit that an event says it belongs to; ``None`` for what it does not say."""
    return _id(event, GENERATION), _id(event, COMMIT)


def labels(kind: str, generation: str, commit_id: str) -> dict[str, Any]:
    """Return the metadata of an event of a commit."""
    return {
        TYPE: {"stringValue": kind},
        GENERATION: {"stringValue": generation},
        COMMIT: {"stringValue": commit_id},
    }


def _id(event: Event, key: str) -> str | None:
    value = _label(event, key)
    return value if value is not None and 1 <= len(value) <= MAX_ID_CHARS else None


def _label(event: Event, key: str) -> str | None:
    metadata = event.get("metadata")
    entry = cast("Event", metadata).get(key) if isinstance(metadata, Mapping) else None
    value = cast("Event", entry).get("stringValue") if isinstance(entry, Mapping) else None
    return value if isinstance(value, str) else None


def payload_of(event: Event) -> list[Any]:
    """Return the items of an event, of any kind and number."""
    payload = event.get("payload")
    return cast("list[Any]", payload) if isinstance(payload, list) else []


def moment(event: Event) -> float | None:
    """Return when an event is stamped, seconds since the epoch; ``None`` where that is no time."""
    stamp = event.get("eventTimestamp")
    if isinstance(stamp, datetime):
        return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
    if isinstance(stamp, int | float) and not isinstance(stamp, bool) and abs(stamp) < 1 << 53:
        return float(stamp)
    return None


def instant(seconds: int) -> datetime:
    """Return the time that so many seconds since the epoch are.

    Raises:
        DataError: It is beyond the year 9999.
    """
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise DataError.at("clock", f"{seconds} seconds since the epoch are beyond all time") from None
