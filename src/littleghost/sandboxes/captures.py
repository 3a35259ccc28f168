"""What is kept of a stream that may be longer than memory."""

from __future__ import annotations

__all__ = ["CHUNK", "Capture"]

CHUNK = 1 << 18
"""How much is read at a time, in bytes."""

_MARKER_ROOM = 48


class Capture:
    """The beginning and the end of a stream, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._tail: bytearray | None = None
        room = limit - _MARKER_ROOM if limit >= 2 * _MARKER_ROOM else limit
        self._head_size = room // 2
        self._tail_size = room - self._head_size
        self._total = 0

    def add(self, data: bytes) -> None:
        self._total += len(data)
        if self._tail is None:
            self._kept += data
            if len(self._kept) <= self._limit:
                return
            self._tail = self._kept[self._head_size :]
            del self._kept[self._head_size :]
        else:
            self._tail += data
        if len(self._tail) > 2 * self._tail_size + CHUNK:
            del self._tail[: len(self._tail) - self._tail_size]

    def finish(self) -> tuple[str, int]:
        """Return the text, and how many bytes were left out of it."""
        if self._tail is None:
            return self._kept.decode("utf-8", "replace"), 0
        head, tail = bytes(self._kept), bytes(self._tail[len(self._tail) - self._tail_size :])
        head, tail = _whole_end(head), _whole_start(tail)
        omitted = self._total - len(head) - len(tail)
        marker = f"\n[… {omitted:,} bytes left out …]\n"
        return head.decode("utf-8", "replace") + marker + tail.decode("utf-8", "replace"), omitted


def _whole_end(data: bytes) -> bytes:
    """Return ``data`` without a character that the cut left unfinished."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        size = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if size > back else data
    return data


def _whole_start(data: bytes) -> bytes:
    """Return ``data`` without the rest of a character whose start was cut off."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
