"""What sessions and actors are called in AgentCore Memory."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from littleghost import data
from littleghost.errors import ConfigurationError

__all__ = ["check_actor", "safe_id"]


def safe_id(value: str) -> str:
    """Return the name in AgentCore Memory of the actor or session with the id ``value``: ``lg_`` and 64 hexadecimal digits.

    It is the SHA-256 of the id as UTF-8, so any id fits the alphabet of AWS, and ids such as mail addresses are not in its logs as they
    are. That is all it protects: the same id always has the same name, so what belongs together can be linked, and an id that can be
    guessed can be found out by hashing guesses. It is a pseudonym, not anonymity.
    """
    return f"lg_{sha256(value.encode()).hexdigest()}"


def check_actor(actor_id: Any) -> str:
    """Return ``actor_id``, without which AgentCore Memory keeps nothing.

    Raises:
        ConfigurationError: There is none, or it is empty.
        DataError: It is no valid text.
    """
    if actor_id is None or actor_id == "":
        raise ConfigurationError(
            "AgentCore Memory keeps every session under an actor, and an empty one is none: pass actor_id, or --actor on the command line"
        )
    return data.check_text(actor_id, "actor_id")
