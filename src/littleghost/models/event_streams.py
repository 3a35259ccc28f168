"""The streams that answers come in: bytes to events, and what can be wrong with them. Without I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol, cast

import msgspec

from littleghost.errors import ModelProtocolError
from littleghost.events import ModelEvent

__all__ = [
    "Answer",
    "AnswerStream",
    "CutError",
    "JSONDocument",
    "NotTheAPIError",
    "ServerFaultError",
    "ServerSentEvents",
    "read_json",
]

MAX_EVENT = 8 * 1024 * 1024
"""Bytes of one event; a server that sends more without an end has failed."""


class CutError(Exception):
    """A stream ended before its answer did."""


class NotTheAPIError(ModelProtocolError):
    """What answered is no model's server; asking it again will not help."""


class ServerFaultError(Exception):
    """A server told of an error in the middle of its answer.

    Args:
        body: The error object.
        status: The HTTP status that its kind of error has, where the format tells.
    """

    def __init__(self, body: Any, status: int | None = None) -> None:
        super().__init__("the server told of an error in its answer")
        self.body = body
        self.status = status


class Answer(Protocol):
    """An answer of one format: takes its decoded events as they come, gives ours."""

    begun: bool
    """Whether any event was understood."""
    finished: bool
    """Whether the server said why the model stopped; its usage may follow."""
    closed: bool
    """Whether nothing is to be expected any more."""
    done_ends: bool
    """Whether ``[DONE]`` ends an answer for which the server gave no reason to stop."""

    def feed(self, chunk: Any) -> Iterator[ModelEvent]:
        """Yield the events of ``chunk``, or raise `ModelProtocolError` or `ServerFaultError`."""
        ...

    def end(self) -> Iterator[ModelEvent]:
        """Yield what is left to tell of a complete answer, `ModelEnded` last."""
        ...


class AnswerStream:
    """Takes the bytes of an answer as they come, server-sent events or one JSON document, gives its events.

    An answer is complete when the server said why the model stopped or, in some formats, closed the stream by ``[DONE]``; what goes
    wrong after that does not matter any more.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._reader: ServerSentEvents | JSONDocument | None = None
        self.closed = False
        """Whether nothing is to be expected any more."""

    @property
    def finished(self) -> bool:
        """Whether the server said why the model stopped."""
        return self._answer.finished

    def feed(self, piece: bytes | None) -> Iterator[ModelEvent]:
        """Yield the events of ``piece``; ``None`` means that no more bytes come.

        Raises:
            CutError: No more bytes come, and the answer is not complete.
            ModelProtocolError: The bytes are no answer.
            ServerFaultError: The server told of an error.
        """
        for payload in self._payloads(piece):
            if payload.strip() == b"[DONE]":
                if self._answer.begun and not (self.finished or self._answer.done_ends):
                    raise CutError
                self.closed = True
                break
            try:
                chunk = read_json(payload)
                fault = cast("dict[str, Any]", chunk).get("error") if isinstance(chunk, dict) else None
                if fault:
                    raise ServerFaultError(fault)
                yield from self._answer.feed(chunk)
            except (ModelProtocolError, ServerFaultError) as error:
                if self.finished:
                    break
                if piece is None and isinstance(error, ModelProtocolError):
                    raise CutError from error  # half an event
                raise
            if self._answer.closed:
                self.closed = True
                break
        else:
            if piece is not None:
                return
            if not self.finished:
                raise CutError
        self.closed = self.closed or piece is None
        if self.closed and not self._answer.begun:
            raise ModelProtocolError("the model's server ended its answer without having begun it")

    def end(self) -> Iterator[ModelEvent]:
        """Yield what is left to tell of a complete answer, `ModelEnded` last."""
        return self._answer.end()

    def _payloads(self, piece: bytes | None) -> list[bytes]:
        if piece is None:
            last = self._reader.end() if self._reader is not None else None
            return [] if last is None else [last]
        if self._reader is None:
            start = piece.lstrip()[:1]
            if not start:
                return []
            if start == b"<":
                raise NotTheAPIError("a web page came in place of an answer; is base_url right?")
            self._reader = JSONDocument() if start == b"{" else ServerSentEvents()
        return self._reader.feed(piece)


class ServerSentEvents:
    """Takes the bytes of an event stream as they come, gives the data of each event.

    ``event``, ``id`` and ``retry`` fields and comments are passed over; an ``error`` field, which some servers write, counts as
    data.
    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # a line that goes on
        self._data: list[bytes] = []
        self._sizes = [0, 0]  # of both

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that ``piece`` completes.

        Raises:
            ModelProtocolError: An event has no end.
        """
        if b"\n" not in piece and b"\r" not in piece and self._rest[-1:] != [b"\r"]:
            self._rest.append(piece)  # joined once, for a line may come in many pieces
            self._sizes[0] += len(piece)
            lines: list[bytes] = []
        else:
            pending = b"".join((*self._rest, piece))
            # A line may end in \n, \r\n or \r; a \r at the very end may be half of a \r\n.
            tail = [b"\r"] if pending.endswith(b"\r") else []
            if b"\r" in pending:
                pending = pending[: len(pending) - len(tail)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *lines, rest = pending.split(b"\n")
            self._rest, self._sizes[0] = [rest, *tail], len(rest)
        events = [event for line in lines if (event := self._line(line)) is not None]
        if sum(self._sizes) > MAX_EVENT:
            raise ModelProtocolError(f"the stream has an event of more than {MAX_EVENT} bytes")
        return events

    def end(self) -> bytes | None:
        """Return what an event without its closing blank line holds; many servers leave that line out at the end."""
        rest = b"".join(self._rest).rstrip(b"\r")
        last = self._line(rest) if rest else None
        self._rest = []
        return last if last is not None else self._line(b"")

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            event = b"\n".join(self._data) if self._data else None
            self._data, self._sizes[1] = [], 0
            return event
        name, _, value = line.partition(b":")
        if name in (b"data", b"error"):
            self._data.append(value.removeprefix(b" "))
            self._sizes[1] += len(value)
        return None


class JSONDocument:
    """Takes an answer that comes as one JSON document, from a server that does not stream."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > MAX_EVENT:
            raise ModelProtocolError(f"the answer has more than {MAX_EVENT} bytes")
        return []

    def end(self) -> bytes | None:
        return b"".join(self._pieces)


def read_json(raw: bytes) -> Any:
    """Return the JSON value in ``raw``.

    Raises:
        ModelProtocolError: It is no JSON, or not UTF-8.
    """
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        # Slower, and takes halves of a surrogate pair, which some servers send in two events.
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelProtocolError(
            f"the model's server sent an event that is not JSON ({len(raw)} bytes)"
        ) from error
