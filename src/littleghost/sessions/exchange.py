"""The file that sessions travel in: JSON Lines that tell by themselves whether they are whole.

Every line is a JSON object in UTF-8, with its kind under ``type``, and ends with a line feed:

============ ==================================================================================================================
``header``   the first line: ``format``, which is ``littleghost.sessions``, and ``version``
``session``  begins a session: ``id``, ``actor_id``, ``count`` of messages, ``state``, ``metadata``, ``created_at`` and
             ``updated_at`` in seconds since the epoch or null, ``revision`` in the store it comes from
``messages`` the next messages of the session, 256 at most, in the one JSON form that messages have
``end``      ends the session: ``sha256`` of its lines from ``session`` on, line feeds included
``damaged``  a session that could not be read: ``id`` and ``actor_id``, null where they are lost, and ``problem``
``totals``   the last line: how many ``sessions``, ``messages`` and ``damaged`` there are, and ``sha256`` of all lines before
============ ==================================================================================================================

So a file that was cut or changed is found out, and the sessions in it that are whole can still be told from the others. The sums are
against accidents; whoever changes a file on purpose can compute them anew. Two exports of the same sessions of one store are the same
bytes; in another store the same sessions have other revisions.

Nothing here reads or writes: one class turns sessions into lines, another turns chunks of bytes into sessions.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from littleghost import data
from littleghost.errors import DataError, FormatError
from littleghost.message import Message, pack_messages, unpack_messages
from littleghost.sessions.records import PART

__all__ = ["FORMAT", "VERSION", "ExportReader", "ExportWriter", "Flaw", "WholeSession"]

FORMAT: Final = "littleghost.sessions"
VERSION: Final = 1

LARGE = 1 << 20
"""A line of messages with more bytes is divided, unless it is one message."""


class WholeSession(Struct, frozen=True, kw_only=True):
    """A session on its way from one place to another.

    Attributes:
        id: Its id.
        actor_id: Whose it is.
        messages: Its messages, oldest first.
        state: The application's state.
        metadata: Its metadata.
        created_at: When it was first written, seconds since the epoch; ``None`` where that is not known.
        updated_at: When it was last written.
        revision: What revision it was where it comes from.
    """

    id: str
    actor_id: str | None
    messages: tuple[Message, ...]
    state: dict[str, Any]
    metadata: dict[str, Any]
    created_at: float | None = None
    updated_at: float | None = None
    revision: str | None = None


class Flaw(Struct, frozen=True, kw_only=True):
    """A part of an export that is no session.

    Attributes:
        id: The id of the session that is lost by it, where that can be read.
        actor_id: Whose that is.
        problem: What is wrong, with the number of the line.
    """

    id: str | None
    actor_id: str | None
    problem: str


class _Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class _Session(_Line, frozen=True, kw_only=True, tag="session"):
    id: str
    actor_id: str | None
    count: int
    state: msgspec.Raw
    metadata: msgspec.Raw
    created_at: float | None
    updated_at: float | None
    revision: str | None


class _Messages(_Line, frozen=True, kw_only=True, tag="messages"):
    messages: msgspec.Raw


class _End(_Line, frozen=True, kw_only=True, tag="end"):
    sha256: str


class _Damaged(_Line, frozen=True, kw_only=True, tag="damaged"):
    id: str | None
    actor_id: str | None
    problem: str


class _Totals(_Line, frozen=True, kw_only=True, tag="totals"):
    sessions: int
    messages: int
    damaged: int
    sha256: str


class _Header(Struct, frozen=True, kw_only=True):
    """Read more freely than the other lines, for that of a later version may say more."""

    type: Literal["header"] = "header"
    format: str
    version: int


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_line = msgspec.json.Decoder(_Session | _Messages | _End | _Damaged | _Totals).decode
_MALFORMED = (ValueError, RecursionError, msgspec.MsgspecError)


class ExportWriter:
    """Turns sessions into the lines of a file, which it sums up as it goes."""

    def __init__(self) -> None:
        self._sum = sha256()
        self._sessions = self._messages = self._damaged = 0

    def header(self) -> bytes:
        """Return the first line."""
        return self._line(_Header(format=FORMAT, version=VERSION))

    def session(self, whole: WholeSession) -> list[bytes]:
        """Return the lines of a session.

        Raises:
            DataError: Something in it cannot be stored exactly. Nothing is counted then.
        """
        bodies = [
            body
            for start in range(0, len(whole.messages), PART)
            for body in _bodies(whole.messages[start : start + PART])
        ]
        head = _Session(
            id=whole.id,
            actor_id=whole.actor_id,
            count=len(whole.messages),
            state=msgspec.Raw(data.pack_object(whole.state, "state")),
            metadata=msgspec.Raw(data.pack_object(whole.metadata, "metadata")),
            created_at=whole.created_at,
            updated_at=whole.updated_at,
            revision=whole.revision,
        )
        lines = [self._line(head), *(self._line(_Messages(messages=msgspec.Raw(body))) for body in bodies)]
        self._sessions += 1
        self._messages += len(whole.messages)
        return [*lines, self._line(_End(sha256=_sum_of(lines)))]

    def damaged(self, id: str | None, actor_id: str | None, problem: str) -> bytes:
        """Return the line of a session that could not be read."""
        self._damaged += 1
        return self._line(_Damaged(id=id, actor_id=actor_id, problem=problem))

    def totals(self) -> bytes:
        """Return the last line."""
        return self._line(
            _Totals(
                sessions=self._sessions,
                messages=self._messages,
                damaged=self._damaged,
                sha256=self._sum.hexdigest(),
            )
        )

    def _line(self, line: Struct) -> bytes:
        raw = _encode(line) + b"\n"
        self._sum.update(raw)
        return raw


def _bodies(messages: Sequence[Message]) -> Iterator[bytes]:
    body, _ = pack_messages(messages)
    if len(body) <= LARGE or len(messages) < 2:
        yield body
        return
    half = len(messages) // 2
    yield from _bodies(messages[:half])
    yield from _bodies(messages[half:])


def _sum_of(lines: Sequence[bytes]) -> str:
    summed = sha256()
    for line in lines:
        summed.update(line)
    return summed.hexdigest()


class _Open:
    """A session of which some lines were read."""

    def __init__(self, head: _Session, raw: bytes, line: int) -> None:
        self.head = head
        self.line = line
        self.size = len(raw)
        self.messages: list[Message] = []
        self.sum = sha256(raw)

    def whole(self) -> WholeSession:
        return WholeSession(
            id=self.head.id,
            actor_id=self.head.actor_id,
            messages=tuple(self.messages),
            state=_object(self.head.state, "state"),
            metadata=_object(self.head.metadata, "metadata"),
            created_at=self.head.created_at,
            updated_at=self.head.updated_at,
            revision=self.head.revision,
        )


class ExportReader:
    """Turns the bytes of a file into sessions, each of them whole, and says what else there is.

    Args:
        max_size: How many bytes of lines a session may have. It is what bounds the memory that a file can take.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._lines = _Lines(max_size)
        self._sum = sha256()
        self._number = self._sessions = self._messages = self._damaged = 0
        self._open: _Open | None = None
        self._lost = False  # in a part that is flawed, up to the next session
        self._ended = False

    def feed(self, chunk: bytes) -> Generator[WholeSession | Flaw]:
        """Yield what ends within the next bytes of the file, however they are cut.

        Raises:
            FormatError: It is no export, of a newer version, or not as it was written.
        """
        for raw in self._lines.feed(chunk):
            yield from self._take(raw)

    def close(self) -> None:
        """Say that no bytes follow.

        Raises:
            FormatError: Some are missing.
        """
        rest = self._lines.rest()
        if self._ended and not rest:
            return
        if not self._number:
            raise _no_export() if rest else FormatError("the file is empty")
        self._number += 1
        line = _line_of(rest)
        if isinstance(line, _Totals) and self._open is None and not self._ended:
            self._check(line)  # only its line feed is missing
        elif self._ended:
            raise self._more()
        else:
            where = "in the middle of a session" if self._open else "before its last line"
            raise FormatError(
                f"line {self._number}: the file ends {where}. What was whole up to there has been read; get the rest of "
                "the file, and read it again"
            )

    def _take(self, raw: bytes | None) -> Iterator[WholeSession | Flaw]:
        self._number += 1
        if self._number == 1:
            self._begin(raw)
            return
        if self._ended:
            raise self._more()
        line = "longer than a session may be" if raw is None else _line_of(raw)
        if isinstance(line, _Totals):
            yield from self._cut()
            self._check(line)
            return
        if raw is not None:
            self._sum.update(raw)
        if isinstance(line, _Session | _Damaged):
            yield from self._cut()
            self._lost = False
        if isinstance(line, _Session):
            self._open = _Open(line, cast("bytes", raw), self._number)
        elif isinstance(line, _Damaged):
            self._damaged += 1
            yield Flaw(
                id=line.id,
                actor_id=line.actor_id,
                problem=f"line {self._number}: could not be read when the file was made: {line.problem}",
            )
        elif not self._lost:
            yield from self._go_on(line, raw)

    def _more(self) -> FormatError:
        return FormatError(f"line {self._number}: something follows the end; read files one by one")

    def _begin(self, raw: bytes | None) -> None:
        try:
            header = _decode_header(raw or b"")
        except _MALFORMED:
            raise _no_export() from None
        if header.format != FORMAT:
            raise _no_export()
        if header.version != VERSION:
            raise FormatError(
                f"the file has version {header.version}, and this version of littleghost reads version {VERSION}; "
                "install a newer one",
                found=header.version,
                supported=VERSION,
            )
        self._sum.update(cast("bytes", raw))

    def _go_on(self, line: _Messages | _End | str, raw: bytes | None) -> Iterator[WholeSession | Flaw]:
        """Take a line within a session, or one that should be."""
        opened = self._open
        if isinstance(line, str):
            yield self._flaw(line)
        elif opened is None:
            yield self._flaw("a line of a session, without the one that begins it")
        elif isinstance(line, _Messages):
            opened.size += len(raw or b"")
            opened.sum.update(raw or b"")
            problem = self._add(opened, line)
            if problem is not None:
                yield self._flaw(problem)
        elif line.sha256 != opened.sum.hexdigest():
            yield self._flaw("the session is not as it was written, by its sum")
        elif len(opened.messages) != opened.head.count:
            yield self._flaw(f"{opened.head.count} messages are announced, and {len(opened.messages)} there")
        else:
            try:
                whole = opened.whole()
            except DataError as error:
                yield self._flaw(str(error))
                return
            self._open = None
            self._sessions += 1
            self._messages += len(opened.messages)
            yield whole

    def _add(self, opened: _Open, line: _Messages) -> str | None:
        if opened.size > self._max_size:
            return f"the session is larger than {self._max_size:,} bytes; allow more with max_size"
        try:
            opened.messages += unpack_messages(bytes(line.messages))
        except DataError as error:
            return str(error)
        return None

    def _cut(self) -> Iterator[Flaw]:
        if self._open is not None:
            yield self._flaw(f"the session that begins in line {self._open.line} has no end")

    def _flaw(self, problem: str) -> Flaw:
        opened, self._open, self._lost = self._open, None, True
        return Flaw(
            id=opened.head.id if opened else None,
            actor_id=opened.head.actor_id if opened else None,
            problem=f"line {self._number}: {problem}",
        )

    def _check(self, totals: _Totals) -> None:
        self._ended = True
        found = (self._sessions, self._messages, self._damaged, self._sum.hexdigest())
        if found != (totals.sessions, totals.messages, totals.damaged, totals.sha256):
            raise FormatError(
                f"line {self._number}: the file is not as it was written: it had {totals.sessions} sessions with "
                f"{totals.messages} messages, and {self._sessions} with {self._messages} are whole, which have been read"
            )


def _line_of(raw: bytes) -> _Session | _Messages | _End | _Damaged | _Totals | str:
    """Return the line, or what is wrong with it."""
    try:
        return _decode_line(raw)
    except _MALFORMED as error:
        return f"not a line of an export: {error}"


def _object(raw: msgspec.Raw, name: str) -> dict[str, Any]:
    value = data.unpack(bytes(raw))
    if not isinstance(value, dict):
        raise DataError.at(name, f"expected an object, got {data.kind(value)}")
    return cast("dict[str, Any]", value)


def _no_export() -> FormatError:
    return FormatError("line 1: this is no export of sessions, which `littleghost sessions export` makes")


class _Lines:
    """Cuts bytes into lines, and drops those that are longer than ``limit``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes | None]:
        """Yield each line that ends here, with its line feed; ``None`` for one that was dropped."""
        start = 0
        while end := chunk.find(b"\n", start) + 1:
            self._keep(chunk[start:end])
            start = end
            parts, size, self._parts, self._size = self._parts, self._size, [], 0
            yield b"".join(parts) if size <= self._limit else None
        if start < len(chunk):
            self._keep(chunk[start:])

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._limit:
            self._parts.clear()

    def rest(self) -> bytes:
        """Return what came after the last line feed."""
        return b"".join(self._parts) if self._size <= self._limit else b"\0"
