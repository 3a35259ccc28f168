"""The process in which regular expressions are matched, so that one which never ends can be killed.

This file is run as a program of its own, by a bare interpreter and from a copy in memory, and imports nothing of the library. It
is given text and gives back lines; it opens nothing. Its own alarm ends it in time, and on Linux the end of the application ends it
at once: whatever it is at, for the system does both.

Standard input has frames: a kind (one byte), a number and a length (four bytes each), and as many bytes.

* ``P``: the pattern in UTF-8; the number is the most lines to find. Answered by ``K``, or ``E`` and why not.
* ``B``: the most bytes of text to find, as the number.
* ``D``: bytes of the file with that number; ``L``: its last ones.
* ``F``: asks for what has been found since the last ``F``: ``R`` (or ``X``, when there was more than the most), the count, and of each its
  file's number, its line's number (eight bytes), and its text.
"""

from __future__ import annotations

import re
import struct
import sys

TYPE_CHECKING = False  # to import typing would take as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

FRAME = struct.Struct("<cII")
FOUND = struct.Struct("<IQI")

_PIECE = 1 << 16
"""How much of a line is looked at as a whole. A longer line is looked at in pieces."""
_SHOWN = 500
_MEMORY = 1 << 30


class _File:
    """The lines of one file, as its bytes arrive."""

    def __init__(self) -> None:
        self.number = 1
        self.found = False  # whether the line at hand, of which there may be more pieces, has been found
        self.rest = b""

    def pieces(self, data: bytes, *, last: bool) -> list[tuple[str, bool]]:
        """Return the text that is there by now, in pieces of which each says whether it ends its line."""
        data = self.rest + data
        if last:
            self.rest = b""
        else:
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) > _PIECE:
                end = len(data) - len(data) % _PIECE
            data, self.rest = data[:end], data[end:]
        if not data:
            return []
        whole = data.endswith(b"\n")
        lines = data.decode("utf-8", "replace").split("\n")
        if whole:
            lines.pop()
        pieces: list[tuple[str, bool]] = []
        for line in lines:
            if len(line) <= _PIECE:
                pieces.append((line.removesuffix("\r"), True))
            else:
                parts = [line[at : at + _PIECE] for at in range(0, len(line), _PIECE)]
                pieces += [(part, False) for part in parts[:-1]]
                pieces.append((parts[-1], True))
        if not whole:
            pieces[-1] = (pieces[-1][0], last)
        return pieces


def cut(text: str, start: int, end: int) -> str:
    """Return ``text``, or of a long one what is around the place from ``start`` to ``end``."""
    if len(text) <= _SHOWN:
        return text
    begin = max(0, min(start - (_SHOWN - min(end - start, _SHOWN)) // 2, len(text) - _SHOWN))
    stop = begin + _SHOWN
    return ("…" if begin else "") + text[begin:stop] + ("…" if stop < len(text) else "")


def serve(given: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the input ends."""
    search: Callable[[str], re.Match[str] | None] | None = None
    most = room = 0
    found: list[bytes] = []
    full = False
    file: _File | None = None
    while len(header := given.read(FRAME.size)) == FRAME.size:
        kind, number, length = FRAME.unpack(header)
        data = given.read(length)
        if kind == b"P":
            most = number
            try:
                search = re.compile(data.decode("utf-8")).search
            except (re.error, RecursionError, OverflowError, ValueError) as error:
                said = "too deeply nested" if isinstance(error, RecursionError) else str(error)
                answers.write(b"E" + said.encode("utf-8", "replace")[:500])
                answers.flush()
                return
            answers.write(b"K")
            answers.flush()
        elif kind == b"B":
            room = number
        elif kind in b"DL" and search is not None:
            file = file or _File()
            for text, ends in () if full else file.pieces(data, last=kind == b"L"):
                match = None if file.found else search(text)
                if match is not None:
                    shown = cut(text, match.start(), match.end()).encode("utf-8", "replace")
                    room -= len(shown)
                    if most == 0 or room < 0:
                        full = True
                        break
                    most -= 1
                    found.append(FOUND.pack(number, file.number, len(shown)) + shown)
                    file.found = True
                if ends:
                    file.number, file.found = file.number + 1, False
            if kind == b"L":
                file = None
        elif kind == b"F":
            answers.write((b"X" if full else b"R") + struct.pack("<I", len(found)) + b"".join(found))
            answers.flush()
            found.clear()


def _bound(seconds: float) -> None:
    """End this process after ``seconds``, whatever it is at, and let it have only so much memory."""
    import signal

    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        import resource
    except ImportError:
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError):
        pass


def _end_with(life: int) -> None:
    """End this process when the other end of the pipe ``life``, into which nothing is ever written, is closed."""
    import fcntl
    import os
    import signal

    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which, on Linux, is to end
    os.set_blocking(life, False)
    fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        os.read(life, 1)
        sys.exit()  # it was closed before that
    except BlockingIOError:
        pass


if __name__ == "__main__":
    _bound(float(sys.argv[1]))
    if len(sys.argv) > 2:
        _end_with(int(sys.argv[2]))
    serve(sys.stdin.buffer, sys.stdout.buffer)
