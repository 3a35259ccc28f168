"""Which events a filter of ListEvents lets through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from littleghost.emulators.agentcore.refusals import invalid
from littleghost.emulators.agentcore.storage import SessionLog
from littleghost.emulators.agentcore.stored import StoredEvent

__all__ = ["Matches", "event_filter"]

Matches = Callable[[StoredEvent], bool]


def event_filter(filter: Mapping[str, Any], log: SessionLog | None) -> Matches:
    """Return what tells whether an event matches every part of ``filter``.

    Args:
        filter: The ``filter`` of a ListEvents request.
        log: The session, whose branches are looked up where parents are asked for.

    Raises:
        Refusal: An expression has no right side and needs one, or has one too many.
    """
    parts = [_expression(one, number) for number, one in enumerate(filter.get("eventMetadata") or (), 1)]
    branch = filter.get("branch")
    if branch is not None:
        parts.append(_branch(branch["name"], log, parents=bool(branch.get("includeParentBranches"))))
    return lambda event: all(part(event) for part in parts)


def _expression(expression: Mapping[str, Any], number: int) -> Matches:
    key: str = expression["left"]["metadataKey"]
    operator: str = expression["operator"]
    right = expression.get("right")
    path = f"filter.eventMetadata.{number}.member.right"
    if operator == "EQUALS_TO":
        if right is None:
            text = f"Value at '{path}' failed to satisfy constraint: Member must not be null for operator EQUALS_TO"
            raise invalid(text, (path, text))
        wanted: str = right["metadataValue"]["stringValue"]
        return lambda event: event.metadata.get(key) == wanted
    if right is not None:
        text = f"Value at '{path}' failed to satisfy constraint: Member must be null for operator {operator}"
        raise invalid(text, (path, text))
    if operator == "EXISTS":
        return lambda event: key in event.metadata
    return lambda event: key not in event.metadata


def _branch(name: str, log: SessionLog | None, *, parents: bool) -> Matches:
    last: dict[str, str | None] = {name: None}
    if parents and log is not None:
        # Up from branch to branch: of a parent, what came before the event that the branch begins at, and that event.
        roots: dict[str, str] = {}
        for id in log.ids:
            event = log.events[id]
            if event.root is not None:
                roots.setdefault(event.branch, event.root)
        while (root := roots.get(name)) is not None:
            event = log.events.get(root)
            if event is None or event.branch in last:
                break
            name = event.branch
            last[name] = root
    return lambda event: event.branch in last and ((end := last[event.branch]) is None or event.id <= end)
