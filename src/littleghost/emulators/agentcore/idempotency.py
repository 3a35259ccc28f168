"""Client tokens: what a second request with the token of an earlier one gets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from littleghost.emulators.agentcore.refusals import invalid
from littleghost.emulators.agentcore.stored import StoredEvent

__all__ = ["MODES", "SCOPES", "Ledger", "Remembered", "Rules", "fingerprint"]

MODES = ("honoured", "expiring", "per_caller", "ignored")
SCOPES = ("memory", "actor", "session")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How tokens work; see `AgentCoreEmulator` for what each value means."""

    mode: str = "honoured"
    lifetime: float | None = None
    scope: str = "session"
    refuse_mismatch: bool = False
    echo: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """A request that had a token.

    Attributes:
        key: The token and where it counts.
        request: The fingerprint of the request without the token.
        event: What it wrote, which may be deleted by now.
        at: When, in seconds of the clock.
    """

    key: tuple[str, ...]
    request: str
    event: StoredEvent
    at: float


def fingerprint(params: Mapping[str, Any]) -> str:
    """Return what two requests have in common that differ in their token at most, whatever the order of their keys."""
    content = {name: value for name, value in params.items() if name != "clientToken"}
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


class Ledger:
    """The tokens that were used. It knows nothing of threads; whoever calls holds the lock."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._entries: dict[tuple[str, ...], Remembered] = {}

    def key(self, params: Mapping[str, Any], memory: str, caller: str) -> tuple[str, ...] | None:
        """Return under what a request's token is remembered; ``None`` where it has none or tokens do nothing."""
        token = params.get("clientToken")
        if not token or self._rules.mode == "ignored":
            return None
        place = (memory, params["actorId"], params.get("sessionId") or "")
        whose = caller if self._rules.mode == "per_caller" else ""
        return (token, whose, *place[: SCOPES.index(self._rules.scope) + 1])

    def find(self, key: tuple[str, ...], params: Mapping[str, Any], now: float) -> Remembered | None:
        """Return the earlier request with the same token, if there was one.

        Raises:
            Refusal: It was another request, and the rules refuse that.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        if self._rules.mode == "expiring" and entry.at + (self._rules.lifetime or 0) <= now:
            del self._entries[key]
            return None
        if self._rules.refuse_mismatch and entry.request != fingerprint(params):
            if params.get("sessionId") not in {None, entry.event.session}:
                raise invalid(
                    "The client token was used for an event of another session",
                    ("clientToken", "It was used in another session"),
                    reason="EventInOtherSession",
                )
            raise invalid(
                "The client token was used for another request",
                ("clientToken", "It was used with other parameters"),
                reason="IdempotentParameterMismatchException",
            )
        return entry

    def remember(
        self, key: tuple[str, ...], params: Mapping[str, Any], event: StoredEvent, now: float
    ) -> None:
        """Remember a request that was carried out."""
        self.restore(Remembered(key=key, request=fingerprint(params), event=event, at=now))

    def restore(self, entry: Remembered) -> None:
        """Remember what an earlier process did."""
        self._entries[entry.key] = entry

    def entries(self) -> list[Remembered]:
        """Return everything that is remembered."""
        return list(self._entries.values())
