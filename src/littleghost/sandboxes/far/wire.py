"""How the two halves of a sandbox talk.

A frame is a prefix, a head in JSON, and bytes::

    length of all that follows the prefix (4 bytes) · number (8) · length of the head (4) · head · bytes

The number says which answer belongs to which question; 0 is the greeting. Numbers are big-endian. A question's head is
``{"do": …, "with": {…}, "in": [scopes], "seen": [numbers]}``, where ``seen`` are answers that have come; or ``{"cancel": true}`` to
withdraw it. An answer's is ``{"is": …}``, ``{"error": {…}}`` or ``{"cancelled": true}``.

Text goes as bytes, in UTF-8 that also takes lone surrogates: what is acceptable is decided where it is used. Whatever comes from the
other half is checked by who takes it, for it may be hostile.

Only the standard library, for a guest has nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from littleghost import errors
from littleghost.errors import LittleGhostError, ToolConnectionError, ToolError
from littleghost.workspace import legible, shown

__all__ = [
    "GREETING",
    "MAGIC",
    "MOST",
    "PROTOCOL",
    "Frame",
    "Frames",
    "bytes_of",
    "error_of",
    "error_said",
    "fields_of",
    "frame",
    "mapping",
    "text_of",
]

PROTOCOL = 1
"""The version of what is said here. Both halves must have the same."""

MAGIC = b"\0littleghost\0"
"""What a worker says first, so that what a login shell prints is not taken for it."""

GREETING = 0
"""The number of the greeting."""

MOST = 64 << 20
"""How many bytes a question has at most."""

_PREFIX = struct.Struct(">IQI")
_FIELDS = ("path", "limit", "name", "value")
_KINDS = (str, int, float)
_LONGEST = 4_000
_WEIGHT = 24  # bytes of memory that a byte of JSON takes at most, ``[],`` being 64 and a place in a list
_NO_MESSAGE = "the other side of the sandbox said something that is no message"


class Frame(NamedTuple):
    """A question or an answer."""

    number: int
    head: dict[str, Any]
    data: bytes
    said: int = 0
    """How many bytes the head had."""

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes while it is kept, at most."""
        return len(self.data) + _WEIGHT * self.said


def frame(number: int, head: dict[str, Any], data: bytes = b"") -> bytes:
    """Return a frame as it goes over the line."""
    said = json.dumps(head, separators=(",", ":"), allow_nan=False).encode("ascii")
    return b"".join((_PREFIX.pack(len(said) + len(data), number, len(said)), said, data))


class Frames:
    """Cuts what arrives into frames.

    Args:
        most: Returns how many bytes the frame of a number may have after its prefix.
        heads: Returns how many of them its head may have; much more memory is needed to read it.
    """

    def __init__(self, most: Callable[[int], int], *, heads: Callable[[int], int] | None = None) -> None:
        self._most, self._heads = most, heads or most
        self._held = bytearray()

    def add(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes.

        Raises:
            ToolConnectionError: It is none, or larger than it may be.
        """
        self._held += data
        found: list[Frame] = []
        at = 0
        while len(self._held) - at >= _PREFIX.size:
            length, number, head = _PREFIX.unpack_from(self._held, at)
            start = at + _PREFIX.size
            if head > length:
                raise ToolConnectionError(_NO_MESSAGE)
            if length > self._most(number) or head > self._heads(number):
                raise ToolConnectionError("the other side of the sandbox said more than it was asked for")
            if len(self._held) - start < length:
                break
            at = start + length
            body = bytes(self._held[start:at])
            found.append(Frame(number, _head(body[:head]), body[head:], head))
        del self._held[:at]
        return found


def _head(said: bytes) -> dict[str, Any]:
    try:
        head = mapping(json.loads(said))
    except (ValueError, RecursionError) as error:
        raise ToolConnectionError(_NO_MESSAGE) from error
    if head is None:
        raise ToolConnectionError(_NO_MESSAGE)
    return head


def mapping(value: Any) -> dict[str, Any] | None:
    """Return ``value`` if it is an object, as JSON has them."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def bytes_of(text: str) -> bytes:
    """Return text as it goes over the line."""
    return text.encode("utf-8", "surrogatepass")


def text_of(data: bytes, *, strict: bool = False) -> str:
    """Return text that came over the line.

    Args:
        data: The text as it came.
        strict: Whether a lone surrogate is none, as where nobody looks at the text any more.

    Raises:
        ToolConnectionError: It is none.
    """
    try:
        return data.decode("utf-8", "strict" if strict else "surrogatepass")
    except UnicodeDecodeError as error:
        raise ToolConnectionError("the other side of the sandbox sent text that is none") from error


def fields_of(value: Any, *, without_none: bool = False) -> dict[str, Any]:
    """Return the fields of a value type, by name."""
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return {name: field for name, field in fields.items() if field is not None or not without_none}


def error_said(error: BaseException) -> dict[str, Any]:
    """Return an error as it goes over the line; of one that is not the library's own, the name only."""
    if not isinstance(error, LittleGhostError):
        return {"kind": "ToolError", "message": f"the sandbox failed: {type(error).__name__}", "fields": {}}
    given = vars(error)
    fields = {name: given[name] for name in _FIELDS if isinstance(given.get(name), _KINDS)}
    return {"kind": type(error).__name__, "message": str(error)[:_LONGEST], "fields": fields}


def error_of(said: Any) -> LittleGhostError:
    """Return the error that was said. Its text is in one line, and has nothing that a terminal or a log would obey."""
    said = mapping(said)
    if said is None:
        return ToolConnectionError(_NO_MESSAGE)
    fields = mapping(said.get("fields")) or {}
    kind: Any = getattr(errors, str(said.get("kind")), None)
    kinds = (ToolError, errors.ConfigurationError, errors.CleanupError, errors.UnsupportedError)
    if not (isinstance(kind, type) and issubclass(kind, kinds)):
        kind = ToolError
    known = {name: _field(fields[name]) for name in _FIELDS if isinstance(fields.get(name), _KINDS)}
    lines = str(said.get("message"))[:_LONGEST].splitlines()
    return kind(legible(" ".join(lines)), **known)


def _field(value: str | float) -> str | float:
    return shown(value) if isinstance(value, str) else value
