"""The events of a commit: what a store has to write, decided before it writes anything.

The messages come first and the checkpoint last, so that what a crash leaves is a commit that is whole or one that is not there. Each event
is stamped a whole second later than the one before, the first one later than the head, whatever the clock says: that is the order that
readers of this format go by.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from littleghost import data, transcript
from littleghost.errors import DataError, SessionTooLargeError
from littleghost.message import Message
from littleghost.sessions.agentcore import limits
from littleghost.sessions.agentcore.checkpoints import Checkpoint, Stored, encode
from littleghost.sessions.agentcore.events import CHECKPOINT_V5, MESSAGE, instant, labels
from littleghost.sessions.agentcore.history import Head
from littleghost.sessions.agentcore.items import item, item_texts, size_of
from littleghost.sessions.records import record

__all__ = ["Plan", "plan", "spread"]

Request = dict[str, Any]
"""Parameters of CreateEvent, without ``memoryId``, ``actorId``, ``sessionId`` and ``clientToken``."""

SKIP: Final = "SKIP"
"""As ``extractionMode``: the service takes nothing from the event for its long-term memory."""

_COMMIT_ID = re.compile(r"[A-Za-z0-9._@=+/-]{1,256}", re.ASCII)
"""What AWS takes as a value of metadata, but for a colon, which ends the id in a chunk, and spaces."""

_ENVELOPE: Final = 67 + 67 + 64 + 24
"""Characters of actorId, sessionId, clientToken and eventTimestamp in the body of a request."""


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be written for a commit, in this order.

    Attributes:
        requests: For each event what to call CreateEvent with; what is missing is the same for all. The last is the checkpoint's.
        checkpoint: The checkpoint in it.
        messages: The messages of the commit as they will be read back, those that it takes over from another generation included.
    """

    requests: list[Request]
    checkpoint: Checkpoint
    messages: tuple[Message, ...]


def plan(
    kind: Literal["append", "replace"],
    messages: Sequence[Message],
    state: Mapping[str, Any],
    metadata: Mapping[str, Any],
    *,
    head: Head | None,
    migrate: Sequence[Message] | None = None,
    commit_id: str,
    generation: str,
    now: float,
) -> Plan:
    """Return what to write for a commit.

    Args:
        kind: ``append`` or ``replace``.
        messages: Its messages. Reasoning goes, and a message that is emptied by that.
        state: The application's state, whole.
        metadata: The session's metadata, whole.
        head: The commit to follow, ``None`` for the first of a session.
        migrate: All messages of the session so far, to append as the root of a new generation that has them too. Needed where the head
            is of version 4 of the format.
        commit_id: The id of the commit: up to 256 characters that AWS takes in metadata, without a colon.
        generation: What to call a new generation, should the commit be a root. Unlike any other.
        now: The time, seconds since the epoch.

    Raises:
        DataError: A value cannot be stored exactly, or a message is too long for this format.
        SessionTooLargeError: The session would pass a limit of this format.
    """
    if not _COMMIT_ID.fullmatch(commit_id):
        raise DataError.at(
            "commit_id", "has characters that AgentCore Memory does not take in metadata, or a colon"
        )
    parent = head.checkpoint if head else None
    root = kind == "replace" or parent is None or migrate is not None
    if parent is not None and not root and parent.version != 5:
        raise ValueError("a session of version 4 of the format is continued with its messages in migrate")
    base = None if root else parent
    generation = base.generation if base else generation
    start = base.message_count if base else 0
    commit = record(kind, messages, state, metadata)
    carried = tuple(migrate or ()) if kind == "append" else ()
    count = start + len(carried) + commit.count
    _limit("messages", limits.MAX_MESSAGES, count, "messages")
    added = (*carried, *commit.messages)
    places = [f"stored message {index}" for index in range(len(carried))]
    places += [f"messages[{index}]" for index in _kept(messages, commit.count)]
    texts: list[tuple[str, str]] = []
    for index, (message, path) in enumerate(zip(added, places, strict=True)):
        found = item_texts(message, generation, commit_id, start + index, path)
        texts += [(text, message.role) for text in found]
    packed = spread(texts, labels(MESSAGE, generation, commit_id))
    checkpoint = _checkpoint(
        parent,
        base,
        generation=generation,
        commit_id=commit_id,
        added=len(added),
        size=size_of(text for text, _ in texts),
        event_count=len(packed),
        payload_count=len(texts),
        state=data.unpack(commit.state),
        metadata=data.unpack(commit.metadata),
    )
    blob = encode(checkpoint)
    second = math.floor(now)
    if parent is not None:
        second = max(second, math.floor(parent.timestamp) + 1)
    # The clock stands still meanwhile: a plan is made in one moment.
    requests: list[Request] = [
        {
            "eventTimestamp": instant(second + number),
            "payload": payload,
            "metadata": labels(MESSAGE, generation, commit_id),
            "extractionMode": SKIP,
        }
        for number, payload in enumerate(packed)
    ]
    requests.append(
        {
            "eventTimestamp": instant(second + len(packed)),
            "payload": [{"blob": blob}],
            "metadata": labels(CHECKPOINT_V5, generation, commit_id),
        }
    )
    return Plan(requests=requests, checkpoint=checkpoint, messages=added)


def _kept(messages: Sequence[Message], count: int) -> Iterable[int]:
    """Return the indexes of those that are stored, which are ``count``."""
    if count == len(messages):
        return range(count)
    return [index for index, message in enumerate(messages) if transcript.without_reasoning((message,))]


def spread(texts: Iterable[tuple[str, str]], metadata: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return items in the payloads of as few events as take them, in their order.

    Args:
        texts: The text of each item, of at most `MAX_ITEM_CHARS` characters, and the role of its message.
        metadata: What the events will have as metadata, which takes room in the request too.
    """
    empty: dict[str, Any] = {
        "actorId": "",
        "sessionId": "",
        "clientToken": "",
        "eventTimestamp": 0,
        "payload": [],
        "metadata": metadata,
        "extractionMode": SKIP,
    }
    room = limits.MAX_REQUEST_BYTES - len(json.dumps(empty)) - _ENVELOPE
    payloads: list[list[dict[str, Any]]] = []
    size = body = 0
    for text, role in texts:
        entry = item(text, role)
        more, wide = size_of((text,)), len(json.dumps(entry)) + 2
        if (
            not payloads
            or len(payloads[-1]) == limits.MAX_ITEMS
            or size + more > limits.MAX_EVENT_BYTES
            or body + wide > room
        ):
            payloads.append([])
            size = body = 0
        payloads[-1].append(entry)
        size += more
        body += wide
    return payloads


def _checkpoint(
    parent: Stored | None,
    base: Stored | None,
    *,
    generation: str,
    commit_id: str,
    added: int,
    size: int,
    event_count: int,
    payload_count: int,
    state: dict[str, Any],
    metadata: dict[str, Any],
) -> Checkpoint:
    """Return the checkpoint of a commit after ``parent``, which goes on counting from ``base`` where there is one."""
    revision = parent.revision + 1 if parent else 1
    _limit("revisions", limits.MAX_REVISION, revision, "revisions")
    size += base.serialized_bytes if base else 0
    event_count += base.event_count if base else 0
    payload_count += base.payload_count if base else 0
    _limit("size", limits.MAX_GENERATION_BYTES, size, "bytes of messages")
    _limit("events", limits.MAX_GENERATION_EVENTS, event_count, "events with messages")
    _limit(
        "items",
        limits.MAX_GENERATION_ITEMS,
        payload_count,
        "items, which are messages and parts of long ones",
    )
    start = base.message_count if base else 0
    return Checkpoint(
        generation=generation,
        generation_revision=base.generation_revision if base else revision,
        commit_id=commit_id,
        parent_commit_id=parent.commit_id if parent else None,
        revision=revision,
        root=base is None,
        start_sequence=start,
        added_count=added,
        message_count=start + added,
        serialized_bytes=size,
        event_count=event_count,
        payload_count=payload_count,
        state=state,
        metadata=metadata,
    )


def _limit(name: str, value: int, actual: int, what: str) -> None:
    if actual > value:
        raise SessionTooLargeError(
            f"the session would have {actual:,} {what}, and AgentCore Memory takes {value:,} of them; replace old messages by a summary, "
            "or begin another session",
            limit=name,
            value=value,
            actual=actual,
        )
