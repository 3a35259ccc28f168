"""How a commit takes the place after a head, of which there is one.

The service has no conditional write. It has client tokens: of two requests with the same token it carries out the first. So the checkpoint
of a commit is sent under a token that is made from the commit it follows, and whoever follows the same one sends the same token. Who gets
another's event back was second.

A token may answer with an event that was deleted since; then the place is free, and is claimed under the next number.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import uuid
from collections.abc import Callable

from littleghost.sessions.records import Record

__all__ = ["attempt_of", "claim", "digest_in", "same_commit", "token"]


def claim(memory_id: str, actor: str, session: str, parent: str | None, number: int) -> str:
    """Return the client token for the place after the commit ``parent``, ``None`` for the first place of a session."""
    place = json.dumps(["littleghost claim", memory_id, actor, session, parent, number])
    return str(uuid.UUID(bytes=hashlib.sha256(place.encode()).digest()[:16]))


def token() -> str:
    """Return a client token for an event that claims nothing."""
    return str(uuid.uuid4())


def attempt_of(commit: Record, new_id: Callable[[], str]) -> str:
    """Return the id that an attempt at ``commit`` has in the memory; ``new_id`` makes that of one that has none.

    It holds the commit id and the digest of the content, which the format has no other place for. Each attempt has its own, so that
    events of one that came to nothing never mix with those of the next.
    """
    if commit.commit_id is None:
        return new_id()
    return f"{commit.commit_id}.{commit.digest().hex()}.{secrets.token_hex(8)}"


def same_commit(stored: str, commit_id: str) -> bool:
    """Tell whether the id of a stored commit is that of an attempt at ``commit_id``, with whatever content."""
    return stored.startswith(f"{commit_id}.")


def digest_in(stored: str) -> bytes:
    """Return the digest in the id of a stored commit, ``b""`` where there is none."""
    parts = stored.split(".")
    try:
        return bytes.fromhex(parts[1]) if len(parts) == 3 else b""
    except ValueError:
        return b""
