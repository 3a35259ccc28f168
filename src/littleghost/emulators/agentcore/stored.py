"""An event as it is kept: encoded once, when it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from littleghost.emulators.agentcore.refusals import cannot_parse

__all__ = ["MAIN", "StoredEvent", "encode"]

MAIN = "main"
"""The branch of an event that names none."""


def encode(value: Any) -> bytes:
    """Return compact JSON in UTF-8.

    Raises:
        Refusal: A string is no Unicode text (half of a surrogate pair), or a number is infinite.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except RecursionError:
        raise cannot_parse("the body is nested too deeply") from None
    except ValueError as error:  # UnicodeEncodeError as well
        raise cannot_parse(f"the body cannot be kept as JSON: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEvent:
    """One event.

    Attributes:
        memory: The id of its memory.
        actor: Its actor.
        session: Its session.
        id: Its event id, which orders a session.
        written: When it was written, in seconds of the emulator's clock; 0 for one that was planted, which every list sees at once.
        expires: When it is gone.
        branch: The name of its branch.
        root: The event id that its branch says it begins at.
        metadata: Its metadata, of those entries that hold a string.
        before: Its JSON up to the payload.
        payload: Its payload with the key, or nothing.
        after: Its JSON after the payload.
    """

    memory: str
    actor: str
    session: str
    id: str
    written: float
    expires: float
    branch: str
    root: str | None
    metadata: Mapping[str, str]
    before: bytes
    payload: bytes
    after: bytes

    @classmethod
    def of(cls, event: Mapping[str, Any], *, written: float, expires: float) -> Self:
        """Return the event that looks like ``event`` in an answer. What else it holds is kept, and shown.

        Raises:
            Refusal: It cannot be encoded.
        """
        rest = dict(event)
        payload = b',"payload":' + encode(rest.pop("payload")) if "payload" in rest else b""
        first = {name: rest.pop(name) for name in ("memoryId", "actorId", "sessionId", "eventId")}
        if "eventTimestamp" in rest:
            first["eventTimestamp"] = rest.pop("eventTimestamp")
        branch, metadata = rest.get("branch"), rest.get("metadata")
        named = cast("dict[str, Any]", branch) if isinstance(branch, dict) else {}
        entries = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
        return cls(
            memory=first["memoryId"],
            actor=first["actorId"],
            session=first["sessionId"],
            id=first["eventId"],
            written=written,
            expires=expires,
            branch=str(named.get("name") or MAIN),
            root=named.get("rootEventId"),
            metadata={
                key: cast("dict[str, Any]", value)["stringValue"]
                for key, value in entries.items()
                if isinstance(value, dict) and "stringValue" in value
            },
            before=encode(first)[:-1],
            payload=payload,
            after=b"," + encode(rest)[1:] if rest else b"}",
        )

    def wire(self, *, payload: bool = True) -> bytes:
        """Return the event as JSON, as an answer holds it."""
        return self.before + self.payload + self.after if payload else self.before + self.after

    def decoded(self) -> dict[str, Any]:
        """Return the event as an answer holds it, for programs."""
        return json.loads(self.wire())

    def under(self, id: str) -> StoredEvent:
        """Return the same event under another id."""
        renamed = {**json.loads(self.before + b"}"), "eventId": id}
        return replace(self, id=id, before=encode(renamed)[:-1])
