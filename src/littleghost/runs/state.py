"""The state of a session while a run works on it."""

from __future__ import annotations

from typing import Any

from littleghost import data
from littleghost.errors import DataError

__all__ = ["KeptState"]


class KeptState:
    """The state as the next commit stores it, packed.

    Args:
        state: The state as the run found it.

    Raises:
        DataError: It cannot be stored.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.packed = data.pack_object(state, "state")

    def take(self, seen: bytes, made: Any) -> None:
        """Take over what a call made of the state that it saw.

        Raises:
            DataError: It cannot be stored, or another call changed the same thing since. Nothing is taken over.
        """
        mine = data.pack_object(made, "state")
        if data.equal(mine, seen):
            return
        if self.packed == seen:
            self.packed = mine
            return
        before, after, now = (_members(raw) for raw in (seen, mine, self.packed))
        for key in before.keys() | after.keys():
            wanted = after.get(key)
            if wanted == before.get(key):
                continue  # even the same new value is a loss, if it is a count that both have raised
            if now.get(key) != before.get(key):
                raise DataError.at(
                    data.member("state", key), "was changed by another call meanwhile, and that change stays"
                )
            if wanted is None:
                del now[key]
            else:
                now[key] = wanted
        self.packed = data.pack_object({key: data.unpack(raw) for key, raw in now.items()}, "state")


def _members(raw: bytes) -> dict[str, bytes]:
    """Return the members of a packed object, each packed, in a form that is the same for the same JSON."""
    return {key: data.pack_sorted(value) for key, value in data.unpack(raw).items()}
