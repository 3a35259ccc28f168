"""Pages of lists, and the tokens that lead from one to the next.

A token says behind which id the list goes on, so that what is written meanwhile moves nothing: an entry that was there when a list began
comes exactly once. It is bound to its request, and needs nothing that the emulator would have to remember.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from littleghost.emulators.agentcore.filters import Matches
from littleghost.emulators.agentcore.refusals import invalid
from littleghost.emulators.agentcore.storage import SessionLog
from littleghost.emulators.agentcore.stored import StoredEvent

__all__ = ["Page", "Position", "event_page", "id_page", "open_token", "token_for"]


@dataclass(slots=True)
class Page:
    """A page of a list: its entries as JSON, and the token of the next one."""

    entries: list[bytes]
    token: str | None = None

    def body(self, name: str) -> bytes:
        """Return the body of the answer, with the entries under ``name``."""
        end = b"" if self.token is None else b',"nextToken":' + json.dumps(self.token).encode()
        return b'{"%s":[%s]%s}' % (name.encode(), b",".join(self.entries), end)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a list goes on.

    Attributes:
        after: The id that was looked at last; empty where nothing comes any more.
        mix: What the order of ties depends on, where it changes from list to list.
    """

    after: str
    mix: int = 0


def token_for(position: Position, binding: bytes) -> str:
    """Return the token of a position, for requests with the same ``binding`` alone."""
    content = json.dumps([position.after, position.mix]).encode()
    return base64.urlsafe_b64encode(_seal(content, binding) + content).decode()


def open_token(token: str | None, binding: bytes) -> Position | None:
    """Return the position that a token stands for.

    Raises:
        Refusal: It is none of ours, or of another request.
    """
    if not token:
        return None
    try:
        raw = base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    seal, content = raw[:8], raw[8:]
    if not content or seal != _seal(content, binding):
        text = "Invalid nextToken: it is not one that this list returned, or the request has changed"
        raise invalid(text, ("nextToken", text))
    after, mix = json.loads(content)
    return Position(after, mix)


def _seal(content: bytes, binding: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8, key=hashlib.blake2b(binding).digest()).digest()


def event_page(
    log: SessionLog | None,
    *,
    most: int,
    start: Position | None,
    mix: int,
    oldest_first: bool,
    seen: Callable[[StoredEvent], bool],
    matches: Matches | None,
    scan: bool,
    payload: bool,
    token: Callable[[Position], str],
) -> Page:
    """Return a page of a session's events.

    Args:
        log: The session.
        most: How many events: looked at, where ``scan``, else returned.
        start: Where the list goes on.
        mix: The order of ties of a list that begins; 0 for that of the ids.
        oldest_first: Whether the list begins with the oldest event.
        seen: Which events this list can see already.
        matches: Which of these it is asked for; ``None`` for all.
        scan: Whether ``most`` counts the events before they are filtered.
        payload: Whether the events come with their payload.
        token: Makes a token.
    """
    page = Page([])
    if log is None or (start is not None and not start.after):
        return page
    if start is not None:
        mix = start.mix
    looked, last = 0, ""
    for id in _ids(log.ids, start, mix, oldest_first=oldest_first):
        event = log.events[id]
        if not seen(event):
            continue
        fits = matches is None or matches(event)
        # What comes next decides whether there is a next page; without the scan, only what matches does.
        if looked == most:
            if scan or fits:
                page.token = token(Position(last, mix))
                break
            continue
        if fits:
            page.entries.append(event.wire(payload=payload))
        if scan or fits:
            looked += 1
            last = id
    return page


def _ids(ids: list[str], start: Position | None, mix: int, *, oldest_first: bool) -> Iterator[str]:
    if not mix:
        if oldest_first:
            first = 0 if start is None else bisect_right(ids, start.after)
            return (ids[index] for index in range(first, len(ids)))
        first = len(ids) if start is None else bisect_left(ids, start.after)
        return (ids[index] for index in range(first - 1, -1, -1))

    def key(id: str) -> tuple[str, int, str]:
        return id.partition("#")[0], zlib.crc32(f"{mix}{id}".encode()), id

    mixed = sorted((key(id) for id in ids), reverse=not oldest_first)
    if start is not None:
        end = key(start.after)
        mixed = [one for one in mixed if (one > end if oldest_first else one < end)]
    return (id for _, _, id in mixed)


def id_page(
    entries: Sequence[tuple[str, Any]],
    *,
    most: int,
    start: Position | None,
    encode: Callable[[Any], bytes],
    token: Callable[[Position], str],
) -> Page:
    """Return a page of what is sorted by its id."""
    if start is not None and not start.after:
        return Page([])
    first = 0 if start is None else bisect_right(entries, start.after, key=lambda entry: entry[0])
    page = Page([encode(value) for _, value in entries[first : first + most]])
    if first + most < len(entries):
        page.token = token(Position(entries[first + most - 1][0]))
    return page
