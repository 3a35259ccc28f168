"""When a session begins anew from a root that holds all of its messages, so that reading it never grows with its age.

A generation is read from its root on, every checkpoint of it with its whole state. And the memory drops each event when its time is up, so
a generation whose root is gone is gone. A commit that is due therefore writes all messages once more, packed, and becomes a root.
"""

from __future__ import annotations

from typing import Final

from littleghost.sessions.agentcore.history import Head
from littleghost.sessions.agentcore.limits import MAX_GENERATION_EVENTS

__all__ = ["MAX_LINEAGE_BYTES", "MAX_LINEAGE_COMMITS", "is_due"]

MAX_LINEAGE_COMMITS: Final = 500
"""How many commits follow one root, at most."""

MAX_LINEAGE_BYTES: Final = 16 * 1024 * 1024
"""How many bytes the checkpoints since the root have before a new one is due; half of the messages' bytes where that is more, for these
are written again."""


def is_due(head: Head, now: float, retention: float | None) -> bool:
    """Tell whether the next commit has to be a root.

    Args:
        head: What it follows.
        now: Seconds since the epoch.
        retention: Seconds that the memory keeps an event; ``None`` where that is not known.
    """
    stored = head.checkpoint
    commits = stored.revision - stored.generation_revision + 1
    size = commits * stored.size if head.lineage_bytes is None else head.lineage_bytes
    return (
        commits >= MAX_LINEAGE_COMMITS
        or size >= max(MAX_LINEAGE_BYTES, stored.serialized_bytes // 2)
        or stored.event_count >= MAX_GENERATION_EVENTS - 100
        or (retention is not None and head.root is not None and now - head.root.timestamp >= retention / 2)
    )
