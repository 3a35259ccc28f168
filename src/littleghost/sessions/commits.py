"""What our stores do alike with a commit: decide whether it is taken, and read back what was stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from littleghost import data
from littleghost.errors import ConflictError, CorruptSessionError, DataError
from littleghost.message import Message, unpack_messages
from littleghost.sessions.contract import ANY, Commit, Revision, conflict
from littleghost.sessions.records import Record

__all__ = [
    "Found",
    "admit",
    "after_cursor",
    "check_expected",
    "check_limit",
    "cursor_after",
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
) -> Commit | None:
    """Decide about a commit, inside the atomic step that will write it.

    Args:
        commit: What is to be written.
        head: The session's revision and count, ``None`` where there is no session.
        expected_count: What the writer believes to be stored; ``None`` to not check.
        expected_revision: The revision that the writer believes in.
        find: Looks up an earlier commit of the session by its id. Asked only where the check fails or is no check of the revision, for
            a repeated commit cannot pass that one; so a commit in the ordinary way costs no search.

    Returns:
        The first answer where the commit was written before; ``None`` where it is to be written now.

    Raises:
        ConflictError: Another writer was first.
    """
    fault = _mismatch(head, expected_count, expected_revision)
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
    """Return the messages in the bodies of consecutive commits, decoded at once.

    Raises:
        CorruptSessionError: They are not ``count`` messages.
    """
    joined = b"[%b]" % b",".join([body[1:-1] for body in bodies if len(body) > 2])
    try:
        messages = unpack_messages(joined)
    except DataError as error:
        raise CorruptSessionError(f"stored messages cannot be read: {error}") from error
    if len(messages) != count:
        raise CorruptSessionError(f"{count} messages should be stored, and {len(messages)} are")
    return messages


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


def cursor_after(id: str) -> str:
    """Return the cursor of the page that begins after the session ``id``."""
    return f">{id}"  # the sign, so that the one after the session "" is not taken for none


def after_cursor(cursor: Any) -> str | None:
    """Return the id that a cursor names; ``None`` for none.

    Raises:
        DataError: It is no cursor.
    """
    if cursor is None:
        return None
    if not data.check_text(cursor, "cursor").startswith(">"):
        raise DataError.at("cursor", "must be the cursor of a page")
    return cursor[1:]


def _integer(value: Any, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise DataError.at(name, f"expected an integer, got {data.kind(value)}")
