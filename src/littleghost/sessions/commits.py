"""What our stores do alike with a commit: decide whether it is taken, and read back what was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast, get_args

import msgspec
from msgspec import Struct

from littleghost import data
from littleghost.errors import (
    ConfigurationError,
    ConflictError,
    CorruptSessionError,
    DataError,
    LeaseLostError,
    SessionTooLargeError,
)
from littleghost.message import Message, unpack_messages
from littleghost.sessions.contract import (
    ALL_ACTORS,
    ANY,
    AllActors,
    Commit,
    Page,
    Revision,
    SessionInfo,
    SessionLimits,
    SessionOrder,
    conflict,
)
from littleghost.sessions.records import Record

__all__ = [
    "Found",
    "Listing",
    "Place",
    "actor_of",
    "admit",
    "check_actor",
    "check_expected",
    "check_expiry",
    "check_limit",
    "check_limits",
    "check_listing",
    "check_room",
    "lease_lost",
    "scope_of",
    "unpack_bodies",
    "unpack_object",
    "window",
]

Found = tuple[bytes, Commit]
"""An earlier commit: its digest, and what was answered to it."""


def admit(
    commit: Record,
    head: Commit | None,
    *,
    expected_count: int | None,
    expected_revision: str | Revision | None,
    find: Callable[[str], Found | None],
    lost: LeaseLostError | None = None,
) -> Commit | None:
    """Decide about a commit, inside the atomic step that will write it.

    Args:
        commit: What is to be written.
        head: The session's revision and count, ``None`` where there is no session.
        expected_count: What the writer believes to be stored; ``None`` to not check.
        expected_revision: The revision that the writer believes in.
        find: Looks up an earlier commit of the session by its id. Asked only where the check fails or is no check of the revision, for
            a repeated commit cannot pass that one; so a commit in the ordinary way costs no search.
        lost: The error for a lease that is over, if the commit was to be made under one. What was written before it was lost stays so.

    Returns:
        The first answer where the commit was written before; ``None`` where it is to be written now.

    Raises:
        ConflictError: Another writer was first, or the lease is lost.
    """
    fault = lost or _mismatch(head, expected_count, expected_revision)
    identifier = commit.commit_id
    if identifier is not None and head is not None and (fault is not None or expected_revision is ANY):
        found = find(identifier)
        if found is not None:
            digest, answer = found
            if digest == commit.digest():
                return answer
            raise ConflictError(
                f"the commit id {identifier!r} was used for other content; give each commit an id of its own",
                expected=None if expected_revision is ANY else expected_revision,
                actual=head.revision,
                commit_id=identifier,
            )
    if fault is not None:
        raise fault
    return None


def _mismatch(
    head: Commit | None, expected_count: int | None, expected_revision: str | Revision | None
) -> ConflictError | None:
    if expected_count is not None and expected_count != (head.count if head else 0):
        return conflict(expected_count, head.count if head else None, "messages")
    revision = head.revision if head else None
    if expected_revision is not ANY and expected_revision != revision:
        return conflict(expected_revision, revision, "revision")
    return None


def unpack_bodies(bodies: Iterable[bytes], count: int) -> tuple[Message, ...]:
    """Return the messages in the bodies of consecutive commits; that of one without messages may be empty.

    Raises:
        CorruptSessionError: They are not ``count`` messages.
    """
    messages: list[Message] = []
    # One by one, for to copy them into one long array and decode that takes longer, and keeps all other threads waiting meanwhile, the
    # event loop's among them.
    try:
        for body in bodies:
            if body:
                messages += unpack_messages(body)
    except DataError as error:
        raise CorruptSessionError(f"stored messages cannot be read: {error}") from error
    if len(messages) != count:
        raise CorruptSessionError(f"{count} messages should be stored, and {len(messages)} are")
    return tuple(messages)


def unpack_object(raw: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in ``raw``, the caller's own copy.

    Raises:
        CorruptSessionError: It is none.
    """
    try:
        value = data.unpack(raw)
    except DataError as error:
        raise CorruptSessionError(f"the stored {name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CorruptSessionError(f"the stored {name} is not an object")
    return cast("dict[str, Any]", value)


def window(count: int, limit: int, before: int | None) -> tuple[int, int]:
    """Return the indexes of the first message of a page and of the one after its last.

    Raises:
        DataError: An argument is none; see `check_limit`.
    """
    check_limit(limit, before)
    end = count if before is None else max(0, min(before, count))
    return max(0, end - limit), end


def check_expected(revision: Any, count: Any = 0) -> None:
    """Refuse an ``expected_revision`` or ``expected_count`` that no session can have, for it is a mistake and no conflict.

    Raises:
        DataError: One is of another type.
    """
    _integer(count, "expected_count")
    if revision is not None and revision is not ANY and not isinstance(revision, str):
        raise DataError.at("expected_revision", f"expected text, None or ANY, got {data.kind(revision)}")


def check_limit(limit: Any, before: Any = None) -> None:
    """Refuse a ``limit`` or ``before`` of a page that makes no sense.

    Raises:
        DataError: One is no integer, or ``limit`` is not positive.
    """
    _integer(limit, "limit")
    if limit < 1:
        raise DataError.at("limit", "must be at least 1")
    if before is not None:
        _integer(before, "before")


class Listing(Struct, frozen=True, kw_only=True):
    """What a list of sessions was asked for, checked.

    Attributes:
        actor_id: Whose; `ALL_ACTORS` for everybody's.
        limit: How many at most.
        order: ``id`` or ``updated``.
        since: The earliest last writing, seconds since the epoch.
        until: What the last writing must be before.
        after: The last session of the page before.
    """

    actor_id: str | AllActors | None
    limit: int
    order: SessionOrder
    since: float | None
    until: float | None
    after: Place | None

    def page(self, found: Sequence[SessionInfo]) -> Page[SessionInfo]:
        """Return the page, given the sessions that follow ``after``, one more than ``limit`` if there are so many."""
        items = tuple(found[: self.limit])
        return Page(items=items, cursor=self._cursor(items[-1]) if len(found) > self.limit else None)

    def _cursor(self, last: SessionInfo) -> str:
        moment = last.updated_at if self.order == "updated" else None
        return _encode(Place(moment, last.actor_id, last.id)).decode()


class Place(Struct, frozen=True, array_like=True):
    """Where a page ended. Lists by id are in the order of `key`, lists by time in that of the time, newest first, and then of `key`."""

    updated_at: float | None
    actor_id: str | None
    id: str

    @property
    def key(self) -> tuple[str, str]:
        """The scope and the id."""
        return scope_of(self.actor_id), self.id


def scope_of(actor_id: str | None) -> str:
    """Return one text for an actor or none; nobody's comes first."""
    return "-" if actor_id is None else f":{actor_id}"


def actor_of(scope: str) -> str | None:
    """Return the actor of a scope."""
    return None if scope == "-" else scope[1:]


def check_listing(
    actor_id: Any, limit: Any, cursor: Any, order: Any = "id", since: Any = None, until: Any = None
) -> Listing:
    """Return what was asked for.

    Raises:
        DataError: An argument makes no sense.
    """
    check_actor(actor_id)
    check_limit(limit)
    if order not in get_args(SessionOrder):
        raise DataError.at("order", f"must be one of {', '.join(get_args(SessionOrder))}")
    return Listing(
        actor_id=actor_id,
        limit=limit,
        order=order,
        since=_seconds(since, "since"),
        until=_seconds(until, "until"),
        after=_after(cursor, actor_id, order),
    )


def check_actor(actor_id: Any) -> None:
    """Refuse what is neither an actor, nor none, nor all of them.

    Raises:
        DataError: It is none of them.
    """
    if actor_id is not None and actor_id is not ALL_ACTORS:
        data.check_text(actor_id, "actor_id")


def check_expiry(expire_after: Any, limit: Any) -> None:
    """Refuse what would expire everything by mistake.

    Raises:
        DataError: ``expire_after`` is no positive number of seconds, or ``limit`` no number of sessions.
    """
    check_limit(limit)
    seconds = _seconds(expire_after, "expire_after")
    if seconds is None or seconds <= 0:
        raise DataError.at("expire_after", "must be more than 0 seconds")


def check_limits(limits: Any) -> SessionLimits:
    """Return ``limits``.

    Raises:
        ConfigurationError: They are no `SessionLimits`.
    """
    if not isinstance(limits, SessionLimits):
        raise ConfigurationError(f"limits must be SessionLimits(…), not {data.kind(limits)}")
    return limits


def check_room(limits: SessionLimits, *, messages: int, size: int, before: tuple[int, int]) -> None:
    """Refuse a commit that would leave a session too large, unless it is no larger than it was.

    Args:
        limits: The store's.
        messages: How many messages there would be.
        size: How many bytes there would be.
        before: How many messages and bytes there are.

    Raises:
        SessionTooLargeError: It would be too large.
    """
    for name, limit, now, then in (
        ("messages", limits.messages, messages, before[0]),
        ("size", limits.size, size, before[1]),
    ):
        if limit is not None and now > max(limit, then):
            unit = "bytes" if name == "size" else "messages"
            raise SessionTooLargeError(
                f"the session would have {now:,} {unit}, and its store allows {limit:,}; replace old messages by a summary, or "
                "begin another session",
                limit=name,
                value=limit,
                actual=now,
            )


def lease_lost(id: str) -> LeaseLostError:
    """Return the error for a write under a lease that is over."""
    return LeaseLostError(
        f"the lease of session {id!r} has ended or is another's by now; take it again, and load before writing",
        id=id,
    )


_encode = msgspec.json.Encoder().encode
_decode_place = msgspec.json.Decoder(Place).decode


def _after(cursor: Any, actor_id: str | AllActors | None, order: str) -> Place | None:
    if cursor is None:
        return None
    try:
        place = _decode_place(data.check_text(cursor, "cursor"))
    except msgspec.MsgspecError:
        raise DataError.at("cursor", "must be the cursor of a page") from None
    if (place.updated_at is not None) != (order == "updated") or actor_id not in (ALL_ACTORS, place.actor_id):
        raise DataError.at(
            "cursor", "is that of another list; pass the same arguments as for the page before"
        )
    return place


def _seconds(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value != value:  # noqa: PLR0124 (NaN)
        raise DataError.at(name, f"expected seconds, got {data.kind(value)}")
    try:
        return float(value)
    except OverflowError:
        raise DataError.at(name, "is beyond all time") from None


def _integer(value: Any, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError.at(name, f"expected an integer, got {data.kind(value)}")
