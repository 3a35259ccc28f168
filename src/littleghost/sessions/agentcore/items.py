"""The items of a message event: each is a message as JSON, or a chunk of one that is too long for an item."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta, Struct

from littleghost import data
from littleghost.errors import DataError
from littleghost.message import Message, message_from
from littleghost.sessions.agentcore import events, limits
from littleghost.sessions.agentcore.checkpoints import Stored
from littleghost.sessions.agentcore.events import Event, corrupt

__all__ = ["ROLES", "item", "item_texts", "read_commit", "texts_of"]

PREFIX = "little_ghost:message:v4:"
CHUNK_PREFIX = "little_ghost:message_chunk:v4:"

ROLES: Final = {
    "system": "OTHER",
    "developer": "OTHER",
    "user": "USER",
    "assistant": "ASSISTANT",
    "tool": "TOOL",
}
"""What AWS calls the author of each kind of message."""

_KNOWN_ROLES = frozenset(ROLES.values())
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class Record(Struct, frozen=True, gc=False):
    """A message and its place.

    Attributes:
        generation: The transcript it belongs to.
        commit_id: The commit that it came with.
        sequence: How many messages are before it.
        message: The message.
    """

    generation: str
    commit_id: str
    sequence: Annotated[int, Meta(ge=0)]
    message: Message


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def item_texts(
    message: Message, generation: str, commit_id: str, sequence: int, path: str = "message"
) -> list[str]:
    """Return the texts of the items that hold a message.

    Args:
        message: A message that `pack_messages` has returned.
        generation: The transcript it belongs to.
        commit_id: The commit that it comes with; without a colon.
        sequence: How many messages are before it.
        path: What to call the message in an error.

    Raises:
        DataError: It is too long, or nests too deep together with the record around it.
    """
    raw = _encode(Record(generation, commit_id, sequence, message))
    if len(raw) > limits.MAX_MESSAGE_BYTES:
        raise DataError.at(
            path,
            f"has {len(raw):,} bytes as it is stored, and AgentCore Memory takes {limits.MAX_MESSAGE_BYTES:,} a message",
        )
    if not data.is_shallow(raw):
        data.walk(data.unpack(raw)["message"], path, 1)  # the record is a level
    text = raw.decode()
    if len(PREFIX) + len(text) <= limits.MAX_ITEM_CHARS:
        return [PREFIX + text]
    parts = [text[start : start + limits.CHUNK_CHARS] for start in range(0, len(text), limits.CHUNK_CHARS)]
    if len(parts) > limits.MAX_CHUNKS:
        raise DataError.at(path, f"takes {len(parts):,} chunks, and may take {limits.MAX_CHUNKS:,}")
    head = f"{CHUNK_PREFIX}{commit_id}:{sequence}:"
    return [f"{head}{index}:{len(parts)}:{part}" for index, part in enumerate(parts)]


def item(text: str, role: str) -> dict[str, Any]:
    """Return an item as CreateEvent takes it; ``role`` is that of a message."""
    return {"conversational": {"content": {"text": text}, "role": ROLES[role]}}


def texts_of(event: Event) -> tuple[str, ...]:
    """Return the texts of the items of a message event.

    Raises:
        CorruptSessionError: An item is of another kind, or there are none or too many.
    """
    name = events.name_of(event)
    payload = events.payload_of(event)
    if not 1 <= len(payload) <= limits.MAX_ITEMS:
        raise corrupt(name, f"has {len(payload)} items, and not 1 to {limits.MAX_ITEMS}")
    texts: list[str] = []
    for entry in payload:
        try:
            text, role = entry["conversational"]["content"]["text"], entry["conversational"]["role"]
            fits = role.upper() in _KNOWN_ROLES and 1 <= len(text) <= limits.MAX_ITEM_CHARS
        except (KeyError, TypeError, AttributeError):
            fits, text = False, None
        if not fits or not isinstance(text, str):
            raise corrupt(name, "has an item that is no part of a conversation")
        texts.append(text)
    return tuple(texts)


def size_of(texts: Iterable[str]) -> int:
    """Return how many bytes texts have."""
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts)


def read_commit(
    stored: Stored, parent: Stored | None, found: Iterable[tuple[Event, tuple[str, ...]]]
) -> tuple[Message, ...]:
    """Return the messages that a commit added, in their order.

    Args:
        stored: The checkpoint of the commit.
        parent: The one before it in its generation; ``None`` for a root.
        found: The message events of the commit, each once, with their texts. Their order does not matter.

    Raises:
        CorruptSessionError: An event is missing or too many, an item cannot be read, or the messages are not those announced.
    """
    given = list(found)
    _account(stored, parent, [texts for _, texts in given])
    messages: dict[int, Message] = {}
    chunks: dict[int, _Chunks] = {}
    for event, texts in given:
        name = events.name_of(event)
        if size_of(texts) > limits.MAX_EVENT_BYTES:
            raise corrupt(name, f"has texts of more than {limits.MAX_EVENT_BYTES:,} bytes")
        for text in texts:
            if text.startswith(PREFIX):
                _add(messages, _record(text[len(PREFIX) :], stored, name), stored, name)
            elif text.startswith(CHUNK_PREFIX):
                _chunk(chunks, text[len(CHUNK_PREFIX) :], stored, name)
            else:
                raise corrupt(name, "has an item that is neither a message nor a chunk of one")
    for sequence, group in chunks.items():
        record = _record(group.joined(sequence), stored, group.name)
        if record.sequence != sequence:
            raise corrupt(group.name, f"has chunks of message {sequence} that hold another")
        _add(messages, record, stored, group.name)
    expected = range(stored.start_sequence, stored.message_count)
    missing = next((sequence for sequence in expected if sequence not in messages), None)
    if missing is not None:
        raise corrupt(
            stored.event_id, f"is a checkpoint, and message {missing} of its commit is missing", missing=True
        )
    return tuple([messages[sequence] for sequence in expected])


def _account(stored: Stored, parent: Stored | None, found: list[tuple[str, ...]]) -> None:
    """Refuse a commit whose events are not as many and as long as its checkpoint says."""
    for what, now, before, actual in (
        ("message events", stored.event_count, parent.event_count if parent else 0, len(found)),
        ("items", stored.payload_count, parent.payload_count if parent else 0, sum(map(len, found))),
        (
            "bytes",
            stored.serialized_bytes,
            parent.serialized_bytes if parent else 0,
            sum(map(size_of, found)),
        ),
    ):
        if actual != now - before:
            raise corrupt(
                stored.event_id,
                f"is a checkpoint of {now - before:,} {what}, and {actual:,} are there; some may have expired",
                missing=actual < now - before,
            )


def _add(messages: dict[int, Message], record: Record, stored: Stored, name: str) -> None:
    sequence = record.sequence
    if not stored.start_sequence <= sequence < stored.message_count:
        raise corrupt(name, f"has message {sequence}, which is none of its commit")
    if sequence in messages and not _same(messages[sequence], record.message):
        raise corrupt(name, f"has another message {sequence} than there is already")
    messages[sequence] = record.message


def _same(left: Message, right: Message) -> bool:
    return data.equal(_encode(left), _encode(right))


def _record(text: str, stored: Stored, name: str) -> Record:
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > limits.MAX_MESSAGE_BYTES:
        raise corrupt(name, f"has a message of more than {limits.MAX_MESSAGE_BYTES:,} bytes")
    if not data.is_shallow(raw) and not data.fits(_unpack(raw, name), limits.MAX_NESTING):
        raise corrupt(name, f"has a message that nests deeper than {limits.MAX_NESTING}")
    try:
        record = _decode(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        record = _lenient(_unpack(raw, name), name)
    if record.generation != stored.generation or record.commit_id != stored.commit_id:
        raise corrupt(name, "has a message of another generation or commit")
    return record


def _unpack(raw: bytes, name: str) -> Any:
    try:
        return data.unpack(raw)
    except DataError:
        raise corrupt(name, "has a message that is not valid JSON") from None


def _lenient(value: Any, name: str) -> Record:
    """Return the record that ``value`` is a valid spelling of, if not the canonical one."""
    form = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    generation, commit_id, sequence = (form.get(key) for key in ("generation", "commit_id", "sequence"))
    if (
        not isinstance(generation, str)
        or not isinstance(commit_id, str)
        or not isinstance(sequence, int)
        or isinstance(sequence, bool)
        or sequence < 0
    ):
        raise corrupt(name, "has a message without a place")
    try:
        return Record(generation, commit_id, sequence, message_from(form.get("message"), "message"))
    except DataError as error:
        raise corrupt(name, f"has a message {sequence} that is none, at {error.path}") from None


class _Chunks:
    """The chunks of one message that were found so far."""

    def __init__(self, total: int, name: str) -> None:
        self.total = total
        self.name = name
        self._parts: dict[int, str] = {}

    def add(self, index: int, part: str) -> bool:
        """Add a chunk; return whether it is none of another text than one with this index that is there."""
        return self._parts.setdefault(index, part) == part

    def joined(self, sequence: int) -> str:
        """Return the chunks as one text."""
        if len(self._parts) != self.total:
            raise corrupt(
                self.name,
                f"has chunks of message {sequence}, of which {self.total} should be there",
                missing=True,
            )
        return "".join([self._parts[index] for index in range(self.total)])


def _chunk(groups: dict[int, _Chunks], text: str, stored: Stored, name: str) -> None:
    fields = text.split(":", 4)
    numbers = [int(field) for field in fields[1:4] if _NUMBER.fullmatch(field)]
    if len(fields) != 5 or len(numbers) != 3:
        raise corrupt(name, "has a chunk without a place")
    sequence, index, total = numbers
    if fields[0] != stored.commit_id:
        raise corrupt(name, "has a chunk of another commit")
    if not index < total <= limits.MAX_CHUNKS:
        raise corrupt(name, f"has a chunk {index} of {total} of message {sequence}")
    group = groups.setdefault(sequence, _Chunks(total, name))
    if group.total != total or not group.add(index, fields[4]):
        raise corrupt(name, f"has a chunk of message {sequence} that contradicts another")
