"""What a client writes down: everything it asked for and everything it was told, outside the store.

Each line is one JSON object, written in one go before the client goes on, so that it outlives the client however that ends. ``t``, ``t0``
and ``t1`` are seconds of the system's monotonic clock, which all processes share. Kinds of lines, by ``e``:

* ``sent``: about to ask. ``op`` names what is asked for, ``kind`` is append, replace, fork, delete or expire; ``s`` is the session.
* ``done``: the answer to the last ``sent`` of that ``op``. ``how`` is ``ok``, ``refused`` (surely not done), ``unknown``, or ``broken``
  for an answer that the contract does not have.
* ``read``, ``tail``, ``list``: what was seen, asked for at ``t0`` and known at ``t1``.
* ``half``: a session that could not be read, as where it is being deleted bit by bit.
* ``took``, ``left``: a lease.

A message is one text in a ledger: ``u`` or ``a`` with a mark and a length for what a user or an assistant said, ``c`` and ``r`` for a call
and its result. A session is ``[actor, id]``.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from littleghost import Message, ToolResult, ToolUse

__all__ = ["Key", "Ledger", "digest", "entries", "from_line", "to_line", "to_line_from_json"]

Key = tuple[str | None, str]


class Ledger:
    """A file that only grows. Flushed to the disk twenty times a second, and at its end."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._flush, daemon=True)
        self._thread.start()

    def write(self, e: str, **what: Any) -> None:
        """Add a line, with the time as ``t``."""
        line = json.dumps({"e": e, "t": time.monotonic(), **what}, separators=(",", ":"), ensure_ascii=False)
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        os.close(self._file)

    def _flush(self) -> None:
        while not self._ended.wait(0.05):
            os.fdatasync(self._file)
        os.fdatasync(self._file)


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a ledger. The last one may be cut, where its writer was killed in the middle of it."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield json.loads(line)


def from_line(line: str) -> Message:
    """Return the message that stands for ``line``."""
    kind, _, rest = line.partition(":")
    if kind == "c":
        return Message.assistant([ToolUse(id=rest, name="look")])
    if kind == "r":
        return Message.tool(ToolResult(tool_use_id=rest))
    text = f"{rest}:{'x' * int(rest.rpartition(':')[2])}"
    return Message.user(text) if kind == "u" else Message.assistant(text)


def to_line(message: Message) -> str:
    """Return the line of a message."""
    if message.tool_uses:
        return f"c:{message.tool_uses[0].id}"
    if message.tool_results:
        return f"r:{message.tool_results[0].tool_use_id}"
    return _said(message.role, message.text)


def to_line_from_json(value: Mapping[str, Any]) -> str:
    """Return the line of a message as it is stored."""
    (block,) = value["content"]
    if block["type"] == "tool_use":
        return f"c:{block['id']}"
    if block["type"] == "tool_result":
        return f"r:{block['tool_use_id']}"
    return _said(value["role"], block["text"])


def _said(role: str, text: str) -> str:
    head, _, padding = text.rpartition(":")
    length = head.rpartition(":")[2]
    whole = length.isdigit() and padding == "x" * int(length)
    return f"{role[:1]}:{head}" if whole else f"damaged {role}: {text[:60]}"


def digest(lines: Sequence[str] | Iterable[str]) -> str:
    """Return a short sum of lines."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()
