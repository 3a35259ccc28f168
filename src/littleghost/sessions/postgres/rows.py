"""What is in a row, and the sums that bind it to its place.

PostgreSQL has checksums of its own for what a disk does to a page. These are for what people and programs do to rows: a body edited by
hand, a row restored into the wrong place, a commit missing. They are no protection from somebody who computes them anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any, Final
from zlib import crc32

from msgspec import Struct

from littleghost.errors import CorruptSessionError, DataError
from littleghost.message import Message, unpack_messages
from littleghost.sessions.commits import actor_of, scope_of, unpack_bodies, unpack_object
from littleghost.sessions.contract import Page, SessionInfo, Snapshot
from littleghost.sessions.postgres.statements import LONG_ID, LONG_SCOPE
from littleghost.sessions.records import Record

__all__ = [
    "Key",
    "Packed",
    "bind",
    "hour",
    "id_sum",
    "info",
    "page",
    "problems",
    "revision",
    "revision_of",
    "snapshot",
]

Row = Sequence[Any]

_MASK: Final = 0xFFFFFFFF
_SIGNED: Final = 1 << 31


def bind(crc: int, place: int) -> int:
    """Return a checksum as it is stored: as 4 signed bytes, and another one at another place. The statements do the same."""
    return (crc ^ place & _MASK) - _SIGNED


def id_sum(commit_id: str | None, digest: bytes | None) -> int:
    """Return the checksum of what tells a repeated commit, not yet bound."""
    return 0 if commit_id is None else crc32(digest or b"", crc32(commit_id.encode()))


def hour(seconds: float) -> float:
    """Return what the index by time has of a time. The statements do the same."""
    if not math.isfinite(seconds):
        return seconds
    return float(math.floor((math.floor(seconds) if -1 < seconds < 1 else seconds) / 3600))


class Key(Struct, frozen=True):
    """The key of a session, as the tables have it."""

    name: bytes
    scope: bytes
    id: bytes
    text: str

    @classmethod
    def of(cls, actor_id: str | None, id: str) -> Key:
        """Return the key of ``(actor_id, id)``."""
        scope, encoded = scope_of(actor_id).encode(), id.encode()
        return cls(_name(scope, encoded), scope, encoded, id)

    @property
    def arguments(self) -> tuple[bytes, bytes, bytes]:
        """What the statements of one session begin with."""
        return self.name, self.scope, self.id

    def head_sum(self, state: bytes, metadata: bytes) -> int:
        """Return the checksum of what a session's row says of it, not yet bound."""
        return crc32(metadata, crc32(state, crc32(self.name)))


def _name(scope: bytes, id: bytes) -> bytes:
    return blake2b(b"%d %b%b" % (len(scope), scope, id), digest_size=16).digest()


def beginnings(scope: bytes, id: bytes) -> tuple[bytes, bytes]:
    """Return what the index by order has of a session."""
    return scope[: LONG_SCOPE + 1], b"" if len(scope) > LONG_SCOPE else id[:LONG_ID]


class Packed(Struct, frozen=True):
    """A commit as the statements take it."""

    bodies: list[bytes]
    counts: list[int]
    sums: list[int]
    commit_id: str | None
    digest: bytes | None
    state: bytes
    metadata: bytes
    count: int
    size: int

    @classmethod
    def of(cls, commit: Record) -> Packed:
        """Return ``commit`` in its parts."""
        bodies: list[bytes] = []
        counts: list[int] = []
        total = 0
        for body, count in commit.parts():
            total += count
            bodies.append(body if count else b"")
            counts.append(total)
        return cls(
            bodies,
            counts,
            [crc32(body) for body in bodies],
            commit.commit_id,
            None if commit.commit_id is None else commit.digest(),
            commit.state,
            commit.metadata,
            commit.count,
            sum(map(len, bodies)),
        )

    def arguments(self, key: Key) -> tuple[Any, ...]:
        """Return ``$1`` to ``$14`` of the statements that write."""
        return self._arguments(key, self.bodies, self.counts, self.sums)

    def single(self, key: Key, before: int) -> tuple[Any, ...]:
        """Return the same of a commit of one part, as `statements.ADVANCE` takes it."""
        return self._arguments(key, self.bodies[0], before, self.sums[0])

    def _arguments(self, key: Key, bodies: Any, counts: Any, sums: Any) -> tuple[Any, ...]:
        return (
            *key.arguments,
            bodies,
            counts,
            sums,
            self.commit_id,
            self.digest,
            id_sum(self.commit_id, self.digest),
            self.state,
            self.metadata,
            key.head_sum(self.state, self.metadata),
            self.count,
            self.size,
        )


def revision(epoch: int, number: int) -> str:
    """Return the revision of a commit."""
    return f"{epoch:016x}-{number}"


def revision_of(text: str) -> tuple[int, int] | None:
    """Return the epoch and the number of a revision, ``None`` where ``text`` is none of ours."""
    epoch, _, number = text.partition("-")
    try:
        found = int(epoch, 16), int(number)
    except ValueError:
        return None
    return found if revision(*found) == text and found[0] < 1 << 63 and found[1] < _SIGNED else None


def damaged(id: str) -> CorruptSessionError:
    """Return the error for a session that cannot be trusted."""
    return CorruptSessionError(
        f"the session {id!r} is damaged: its rows do not fit together; verify() tells more, a backup has it whole",
        id=id,
    )


def size(found: Sequence[Row]) -> int:
    """Return how many bytes the messages have in the rows of `statements.LOAD`, as far as it matters."""
    return next((row[3][4] for row in found if row[0] == -2), 0)


def snapshot(key: Key, found: Sequence[Row]) -> Snapshot | None:
    """Return the session in the rows of `statements.LOAD`.

    Raises:
        CorruptSessionError: They do not fit together.
    """
    if not found:
        return None
    # As `LOAD` begins, and mostly in order already.
    numbers, sums, bodies, heads = zip(*sorted(found, key=itemgetter(0)), strict=True)
    epoch, number, root, count, _ = heads[0]
    state, metadata = bodies[:2]
    # As `bind` has it.
    whole = (
        bind(key.head_sum(state, metadata), epoch + number) == sums[0]
        and len(numbers) - 2 == number - root + 1  # a root is in no sum, and may be anything
        and numbers[2:] == tuple(range(root, number + 1))
        and list(sums[2:])
        == [(crc32(body) ^ place & _MASK) - _SIGNED for place, body in enumerate(bodies[2:], epoch + root)]
    )
    if not whole:
        raise damaged(key.text)
    return Snapshot(
        messages=unpack_bodies(bodies[2:], count),
        state=unpack_object(state, "state"),
        metadata=unpack_object(metadata, "metadata"),
        revision=revision(epoch, number),
        count=count,
    )


def page(key: Key, found: Sequence[Row]) -> Page[Message]:
    """Return the page in the rows of `statements.TAIL`.

    The halving believes what it reads, and the sum of a session's row is over state and metadata, which do not come with a page. So this
    looks whether the newest commit is what the session's row says, and whether the commits that were found are those of the page.

    Raises:
        CorruptSessionError: They do not fit together.
    """
    if not found:
        return Page(items=())
    epoch, number, count, start, stop, beyond, its_count, its_sum, its_id, its_digest = found[0][:10]
    newest = its_count == count and _is_head(its_sum, its_id, its_digest, epoch + number + its_count)
    if beyond or not newest or count < 0:
        raise damaged(key.text)
    if start == stop:
        return Page(items=())
    first, last, skipped = found[0][10:13]
    if first is None or last is None or skipped is None or len(found) != last - first + 1:
        raise damaged(key.text)
    bodies: list[bytes] = []
    for place, row in enumerate(found, first):
        its_number, upto, head_sum, body_sum, commit_id, digest, body = row[13:]
        whole = (
            its_number == place
            and bind(crc32(body), epoch + place) == body_sum
            and _is_head(head_sum, commit_id, digest, epoch + place + upto)
        )
        if not whole:
            raise damaged(key.text)
        bodies.append(body)
    upto = found[-1][14]
    if not skipped <= start < stop <= upto:
        raise damaged(key.text)
    messages = unpack_bodies(bodies, upto - skipped)
    return Page(items=messages[start - skipped : stop - skipped], cursor=start or None)


def _is_head(checksum: int, commit_id: str | None, digest: bytes | None, place: int) -> bool:
    return bind(id_sum(commit_id, digest), place) == checksum


def info(row: Row) -> SessionInfo:
    """Return what a list says of a session.

    Args:
        row: Its ``INFO``.

    Raises:
        CorruptSessionError: The row is not that of a session, or its metadata cannot be read.
    """
    scope, id, count, epoch, number, created_at, updated_at, size, name, packed = row
    try:
        actor_id, text = actor_of(scope.decode()), id.decode()
    except UnicodeDecodeError:
        raise damaged(named(scope, id)[1]) from None
    if _name(scope, id) != name or not (math.isfinite(created_at) and math.isfinite(updated_at)):
        raise damaged(text)
    try:
        metadata = unpack_object(packed, "metadata")
    except CorruptSessionError as error:
        raise CorruptSessionError(f"session {text!r}: {error}; a backup has it whole", id=text) from error
    return SessionInfo(
        id=text,
        actor_id=actor_id,
        count=count,
        revision=revision(epoch, number),
        created_at=created_at,
        updated_at=updated_at,
        size=size,
        metadata=metadata,
    )


def named(scope: bytes, id: bytes) -> tuple[str | None, str]:
    """Return the actor and the id that a row names, as far as they can be read."""
    return actor_of(scope.decode("utf-8", "replace")), id.decode("utf-8", "replace")


def problems(found: Sequence[Row]) -> list[str]:
    """Return what is wrong in the rows of `statements.WHOLE`, those of one session."""
    _, _, _, _, _, _, _, epoch, number, root, count, size, checksum, name, scope, id = found[0][:16]
    wrong: list[str] = []
    key = Key(_name(scope, id), scope, id, "")
    if key.name != name:
        wrong.append("its row has the name of another session")
    its_hour, *times = found[0][18:]
    if not all(map(math.isfinite, times)) or hour(times[1]) != its_hour:
        wrong.append("its time was changed: lists by time, and expiry, take it for another one's")
    for state, metadata in ((row[16], row[17]) for row in found if row[16] is not None):
        if bind(key.head_sum(state, metadata), epoch + number) != checksum:
            wrong.append("its state, its metadata or its number was changed")
        wrong += [
            text
            for value, what in ((state, "state"), (metadata, "metadata"))
            for text in _unreadable(value, what)
        ]
    commits = {row[0]: row for row in found if row[0] is not None}
    # Counted, for root and number may be anything.
    present = sorted(place for place in commits if root <= place <= number)
    missing = number - root + 1 - len(present)
    if missing or not 1 <= root <= number:
        first = next(
            (place for place, there in enumerate(present, root) if place != there), root + len(present)
        )
        wrong.append(
            f"{missing if missing > 0 else 'all'} of its commits are missing, the first of them number {first}"
        )
    if max(commits, default=0) > number:
        wrong.append(f"it has commits after its last one, up to number {max(commits)}")
    total = length = 0
    for place, row in sorted(commits.items()):
        upto, head, body_check, commit_id, digest, body = row[1:7]
        if bind(id_sum(commit_id, digest), epoch + place + upto) != head:
            wrong.append(f"commit {place}: its count, its id or its place was changed")
        if place < root:
            if body or commit_id is None:
                wrong.append(f"commit {place}: it was replaced, and is still there")
            continue
        if bind(crc32(body), epoch + place) != body_check:
            wrong.append(f"commit {place}: its messages or its place were changed")
        length += len(body)
        try:
            total += len(unpack_messages(body)) if body else 0
        except DataError as error:
            wrong.append(f"commit {place}: its messages cannot be read: {error}")
            total = upto
        if total != upto:
            wrong.append(f"commit {place}: there should be {upto} messages up to here, and there are {total}")
            total = upto
    if not missing and total != count:
        wrong.append(f"it should have {count} messages, and has {total}")
    if not missing and length != size:
        wrong.append(f"its messages should have {size} bytes, and have {length}")
    return wrong


def _unreadable(raw: bytes, what: str) -> list[str]:
    try:
        unpack_object(raw, what)
    except CorruptSessionError as error:
        return [str(error)]
    return []
