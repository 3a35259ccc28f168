"""What there is of a JSON value while its text is being written."""

from __future__ import annotations

import re
from typing import Any

import msgspec

__all__ = ["PartialJSON"]

STEP = 16
"""Characters that must have come for a text to be read again, and for long ones, one part in `SHARE` of what came before."""

SHARE = 32

_decode = msgspec.json.Decoder().decode
_SPACE = re.compile(r"[ \t\r\n]*+")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]++")
_HIGH, _LOW, _HEX = r"[dD][89abAB]", r"[dD][c-fC-F]", r"[0-9a-fA-F]"
_UNITS = re.compile(
    rf'(?:[^"\\]++|\\["\\/bfnrt]|\\u(?!{_HIGH}){_HEX}{{4}}|\\u{_HIGH}{_HEX}{{2}}\\u{_LOW}{_HEX}{{2}})*+'
)
"""As much of a string's inside as is whole: plain characters, escapes, and both halves of a surrogate pair."""


class PartialJSON:
    """Reads a JSON text that comes in pieces, over and over, for a time that grows as the text does and not as its square.

    Each character is looked at once, to know where the text can be cut and what must be closed there. Decoding starts from the front each
    time, but is only `due` when the text has grown by a share of its length.

    A partial value is the whole one's beginning: of an object its first members, of an array its first items, of a string its first
    characters, and only the last of them may be incomplete itself. Numbers, ``true``, ``false`` and ``null`` come whole or not at all.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0
        self._fresh = 0
        self._at = 0
        self._cut = 0
        self._closers: list[str] = []
        self._in_string = False
        self._key = False  # whether a string that begins now, or goes on, is the name of a member
        self._over = False  # nothing that comes can add to the value

    def feed(self, piece: str) -> None:
        """Take the next piece of the text."""
        self._pieces.append(piece)
        self._fresh += len(piece)

    @property
    def due(self) -> bool:
        """Whether enough has come to read again."""
        return self._fresh >= STEP and self._fresh >= self._length // SHARE

    def read(self) -> Any:
        """Return what there is of the value, or ``msgspec.UNSET`` while there is nothing, or where the text is no JSON."""
        text = "".join(self._pieces)
        self._pieces = [text]
        self._length, self._fresh = len(text), 0
        if not self._over:
            self._scan(text)
        if self._in_string and not self._key:
            whole = text[: self._at] + '"'
        elif self._cut:
            whole = text[: self._cut]
        else:
            return msgspec.UNSET
        try:
            return _decode(whole + "".join(reversed(self._closers)))
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return msgspec.UNSET

    def _scan(self, text: str) -> None:
        """Look at what has come since the last time."""
        at = self._at
        while at < len(text) and not self._over:
            if self._in_string:
                at = _end(_UNITS, text, at)
                if text[at : at + 1] != '"':
                    break  # the rest is still to come
                at += 1
                self._in_string = False
                if not self._key:
                    self._ended(at)
                continue
            char = text[at]
            if char == '"':
                self._in_string = True
            elif char in "{[":
                self._closers.append("}" if char == "{" else "]")
                self._key = char == "{"
                self._cut = at + 1
            elif char in "}]":
                if self._closers[-1:] != [char]:
                    self._over = True
                    break
                self._closers.pop()
                self._ended(at + 1)
            elif char == ",":
                self._key = self._closers[-1:] == ["}"]
            elif char == ":":
                self._key = False
            elif char in " \t\r\n":
                at = _end(_SPACE, text, at)
                continue
            else:
                end = _end(_SCALAR, text, at)
                if end == len(text):
                    break  # more of it may come
                self._over = end == at
                at = end
                if not self._over:
                    self._ended(at)
                continue
            at += 1
        self._at = at

    def _ended(self, at: int) -> None:
        """A value ended before ``at``."""
        self._cut = at
        self._key = False
        self._over = not self._closers


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()
