"""Checkpoints: the record that ends a commit, and the rules by which one continues another.

A checkpoint is a JSON text in the only blob of an event. What is before it in the list of events and names its commit belongs to the
session from the moment it is there, and not before.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Raw, Struct

from littleghost import data
from littleghost.errors import DataError, SessionTooLargeError
from littleghost.sessions.agentcore import events, limits
from littleghost.sessions.agentcore.events import CHECKPOINT_V4, Event, corrupt

__all__ = ["Checkpoint", "Facts", "Stored", "check_place", "decode", "encode"]

PREFIX = "little_ghost:checkpoint:v5:"
LEGACY_PREFIX = "little_ghost:checkpoint:v4:"
SYMBOL_KEY = "little_ghost:symbol:"
STRING_KEY = "little_ghost:string:"

_Id = Annotated[str, Meta(min_length=1, max_length=limits.MAX_ID_CHARS)]
_Revision = Annotated[int, Meta(ge=1, le=limits.MAX_REVISION)]
_Messages = Annotated[int, Meta(ge=0, le=limits.MAX_MESSAGES)]


class Facts(Struct, frozen=True, kw_only=True):
    """What a checkpoint says of its commit, in the order in which it is written.

    Attributes:
        generation: The transcript that the commit belongs to.
        generation_revision: The revision of the root of that transcript.
        commit_id: The commit.
        parent_commit_id: The one that was the head when it was written; ``None`` for the first of a session.
        revision: One more than that of the parent; 1 for the first.
        root: Whether it begins its generation.
        start_sequence: How many messages the generation had before.
        added_count: How many messages the commit has.
        message_count: How many messages the generation has with it.
        serialized_bytes: How many bytes the texts of all items of the generation have.
        event_count: How many message events the generation has.
        payload_count: How many items these have.
    """

    generation: _Id
    generation_revision: _Revision
    commit_id: _Id
    parent_commit_id: _Id | None = None
    revision: _Revision
    root: bool
    start_sequence: _Messages
    added_count: _Messages
    message_count: _Messages
    serialized_bytes: Annotated[int, Meta(ge=0, le=limits.MAX_GENERATION_BYTES)]
    event_count: Annotated[int, Meta(ge=0, le=limits.MAX_GENERATION_EVENTS)]
    payload_count: Annotated[int, Meta(ge=0, le=limits.MAX_GENERATION_ITEMS)]


class Checkpoint(Facts, frozen=True, kw_only=True):
    """A checkpoint to be written.

    Attributes:
        state: The application's state, whole.
        metadata: The session's metadata, whole.
    """

    state: dict[str, Any]
    metadata: dict[str, Any]


class _Parsed(Facts, frozen=True, kw_only=True):
    state: Raw = Raw(b"{}")
    metadata: Raw = Raw(b"{}")


class Stored(Facts, frozen=True, kw_only=True):
    """A checkpoint that was read. Its state and metadata stay text until they are asked for.

    Attributes:
        event_id: The id of its event.
        timestamp: What the event is stamped with, seconds since the epoch.
        size: How many bytes it has as JSON.
        version: Of the format, 4 or 5.
    """

    raw_state: Raw
    raw_metadata: Raw
    event_id: str
    timestamp: float
    size: int
    version: int

    @property
    def state(self) -> dict[str, Any]:
        """The application's state, the caller's own copy.

        Raises:
            CorruptSessionError: It is no JSON object.
        """
        return _object(self.raw_state, "state", self.event_id)

    @property
    def metadata(self) -> dict[str, Any]:
        """The session's metadata, the caller's own copy.

        Raises:
            CorruptSessionError: It is no JSON object.
        """
        return _object(self.raw_metadata, "metadata", self.event_id)

    @property
    def rank(self) -> tuple[int, str, int, bool, int, str]:
        """What the head is the greatest of. Text compares by code points, as its bytes do."""
        return (
            self.generation_revision,
            self.generation,
            self.revision,
            self.root,
            int(self.timestamp),
            self.commit_id,
        )

    def same_as(self, other: Stored) -> bool:
        """Whether both say the same, when and in which format they were written apart."""
        return (
            all(getattr(self, name) == getattr(other, name) for name in Facts.__struct_fields__)
            and data.equal(bytes(self.raw_state), bytes(other.raw_state))
            and data.equal(bytes(self.raw_metadata), bytes(other.raw_metadata))
        )


_encode = msgspec.json.Encoder().encode
_parse = msgspec.json.Decoder(_Parsed).decode


def encode(checkpoint: Checkpoint) -> str:
    """Return the text of the blob.

    Raises:
        DataError: The state or the metadata cannot be stored exactly, or nests too deep.
        SessionTooLargeError: It is too long.
    """
    values = {name: data.pack_object(getattr(checkpoint, name), name) for name in ("state", "metadata")}
    text = _encode(checkpoint)
    if not data.is_shallow(text):
        for name, raw in values.items():
            data.walk(data.unpack(raw), name, 1)  # the checkpoint itself is a level
    size = len(text)
    if size > limits.MAX_CHECKPOINT_BYTES // 2:
        size += _growth([checkpoint.state, checkpoint.metadata])
    if size > limits.MAX_CHECKPOINT_BYTES:
        raise SessionTooLargeError(
            f"state and metadata would make a checkpoint of {size:,} bytes, and AgentCore Memory takes "
            f"{limits.MAX_CHECKPOINT_BYTES:,}; keep what is large elsewhere, and its place in the state",
            limit="checkpoint",
            value=limits.MAX_CHECKPOINT_BYTES,
            actual=size,
        )
    return PREFIX + text.decode()


def _growth(values: list[Any]) -> int:
    """Return how many bytes longer the numbers in ``values`` are as the Ruby store spells them, which measures what it reads anew."""
    growth = 0
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += cast("dict[str, Any]", value).values()
        elif isinstance(value, list | tuple):
            values += cast("list[Any]", value)
        elif isinstance(value, float):
            # 1.0e+21 and 1.0e-07, where Python has 1e+21 and 1e-07; they change to this form at the same numbers.
            spelled = repr(value)
            growth += len(spelled) - len(_encode(value))
            growth += 2 if "e" in spelled and "." not in spelled else 0
    return growth


def decode(event: Event) -> Stored:
    """Return the checkpoint in an event. Other items beside the blob are left unread.

    Raises:
        CorruptSessionError: There is none, or it does not say what a checkpoint has to.
    """
    name = events.name_of(event)
    legacy = events.kind_of(event) == CHECKPOINT_V4
    text = _blob(event, LEGACY_PREFIX if legacy else PREFIX, name)
    timestamp = events.moment(event)
    if timestamp is None:
        raise corrupt(name, "has no timestamp")
    raw = text.encode("utf-8", "surrogatepass")
    try:
        parsed = _parse(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise corrupt(name, f"holds no valid checkpoint: {error}") from None
    state, metadata = parsed.state, parsed.metadata
    _check_text(raw, (state, metadata), name)
    if legacy:
        state, metadata = _plain(state, "state", name), _plain(metadata, "metadata", name)
    facts = {field: getattr(parsed, field) for field in Facts.__struct_fields__}
    if parsed.generation_revision > parsed.revision:
        raise corrupt(name, "has a generation_revision beyond its revision")
    if events.identity(event) != (parsed.generation, parsed.commit_id):
        raise corrupt(name, "has metadata of another generation or commit than its checkpoint")
    return Stored(
        **facts,
        raw_state=state,
        raw_metadata=metadata,
        event_id=name,
        timestamp=timestamp,
        size=len(raw),
        version=4 if legacy else 5,
    )


def check_place(stored: Stored, parent: Stored | None, *, complete: bool) -> bool:
    """Return whether a checkpoint counts, as far as its parent does: a root, or one whose parent is there.

    Args:
        stored: The checkpoint.
        parent: Its parent, ``None`` where that is not among those listed.
        complete: Whether all there are were listed. If not, a parent that is missing may still come.

    Raises:
        CorruptSessionError: It does not continue its parent as a checkpoint has to.
    """
    if stored.root:
        _check_root(stored, parent)
        return True
    if parent is None:
        return stored.parent_commit_id is not None and not complete
    if (
        stored.generation != parent.generation
        or stored.generation_revision != parent.generation_revision
        or stored.revision != parent.revision + 1
        or stored.start_sequence != parent.message_count
        or stored.message_count != parent.message_count + stored.added_count
        or stored.serialized_bytes < parent.serialized_bytes
        or stored.event_count < parent.event_count
        or stored.payload_count < parent.payload_count
    ):
        raise corrupt(stored.event_id, f"is a checkpoint that does not continue that in {parent.event_id}")
    return True


def _check_root(stored: Stored, parent: Stored | None) -> None:
    if (
        stored.generation_revision != stored.revision
        or stored.start_sequence != 0
        or stored.added_count != stored.message_count
    ):
        raise corrupt(
            stored.event_id, "is the first checkpoint of a generation, and counts as if it were not"
        )
    if stored.parent_commit_id is None:
        if stored.revision != 1:
            raise corrupt(stored.event_id, "is the first checkpoint of the session, and not of revision 1")
    elif parent is None:
        if stored.revision == 1:
            raise corrupt(stored.event_id, "is a checkpoint of revision 1, and has a parent")
    elif stored.revision != parent.revision + 1 or stored.generation == parent.generation:
        raise corrupt(
            stored.event_id, f"is the first checkpoint of a generation, and does not follow {parent.event_id}"
        )


def _blob(event: Event, prefix: str, name: str) -> str:
    items = events.payload_of(event)
    blobs = [cast("Event", item)["blob"] for item in items if isinstance(item, dict) and "blob" in item]
    if len(blobs) != 1 or len(items) > limits.MAX_ITEMS:
        raise corrupt(name, f"is a checkpoint, and has {len(blobs)} blobs among {len(items)} items")
    text = blobs[0]
    if not isinstance(text, str) or not text.startswith(prefix):
        raise corrupt(name, "is a checkpoint, and its blob is none")
    return text[len(prefix) :]


def _check_text(raw: bytes, values: tuple[Raw, Raw], name: str) -> None:
    if any(bytes(value).lstrip()[:1] != b"{" for value in values):
        raise corrupt(name, "holds a checkpoint whose state or metadata is no object")
    if not data.is_shallow(raw) or len(raw) > limits.MAX_CHECKPOINT_BYTES:
        try:
            whole = data.unpack(raw)
        except DataError:
            raise corrupt(name, "holds a checkpoint that is not valid JSON") from None
        if not data.fits(whole, limits.MAX_NESTING):
            raise corrupt(name, f"holds a checkpoint that nests deeper than {limits.MAX_NESTING}")
        # What counts is the compact form, which another writer need not have used.
        if len(_encode(whole)) > limits.MAX_CHECKPOINT_BYTES:
            raise corrupt(name, f"holds a checkpoint of more than {limits.MAX_CHECKPOINT_BYTES:,} bytes")


def _object(raw: Raw, field: str, name: str) -> dict[str, Any]:
    try:
        value = data.unpack(bytes(raw))
    except DataError:
        raise corrupt(name, f"holds a checkpoint whose {field} is not valid JSON") from None
    if not isinstance(value, dict):
        raise corrupt(name, f"holds a checkpoint whose {field} is no object")
    return cast("dict[str, Any]", value)


def _plain(raw: Raw, field: str, name: str) -> Raw:
    """Return what version 4 keeps as ``raw``: there each key of each object says whether it was a symbol or a string."""
    return Raw(_encode(_untyped(_object(raw, field, name), name)))


def _untyped(value: Any, name: str) -> Any:
    if isinstance(value, list):
        return [_untyped(child, name) for child in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    plain: dict[str, Any] = {}
    symbols: dict[str, bool] = {}
    for key, child in cast("dict[str, Any]", value).items():
        symbol = key.startswith(SYMBOL_KEY)
        key = key.removeprefix(SYMBOL_KEY) if symbol else key.removeprefix(STRING_KEY)
        if symbols.setdefault(key, symbol) != symbol:
            raise corrupt(
                name, "holds a checkpoint with a key that is there both as a symbol and as a string"
            )
        plain[key] = _untyped(child, name)
    return plain
