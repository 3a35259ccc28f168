"""The request rates that AWS documents, as token buckets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from littleghost.emulators.agentcore.refusals import throttled
from littleghost.errors import ConfigurationError

__all__ = ["QUOTAS", "Quotas"]

QUOTAS: Mapping[str, float] = {
    "CreateEvent": 200,
    "CreateEvent.session": 10,
    "CreateEvent.conversational": 5,
    "ListEvents": 200,
    "ListEvents.session": 20,
    "DeleteEvent": 20,
    "DeleteEvent.session": 5,
    "GetEvent": 20,
    "ListSessions": 20,
    "ListActors": 20,
}
"""Requests a second: of the account, and of one session (``conversational``: of its events with such a payload).

From the developer guide, "Quotas for Amazon Bedrock AgentCore", second half of 2026.
"""

ROUNDING = 1e-3
"""Seconds since the epoch have no more places than to a fraction of a microsecond."""
CROWD = 10_000
"""Buckets above which full ones are thrown away."""


class Quotas:
    """Buckets that hold what a second allows and fill up as the clock goes on.

    Args:
        rates: As `QUOTAS`; those left out have no limit.

    Raises:
        ConfigurationError: A name is unknown, or a rate not above 0.
    """

    def __init__(self, rates: Mapping[str, float]) -> None:
        for name, rate in rates.items():
            if name not in QUOTAS:
                raise ConfigurationError(f"quotas: {name!r} is none of {', '.join(QUOTAS)}")
            if isinstance(rate, bool) or not rate > 0:
                raise ConfigurationError(
                    f"quotas: {name} is {rate!r}; it must be a number above 0, of requests a second"
                )
        self._rates = rates
        self._buckets: dict[tuple[str, ...], tuple[float, float]] = {}

    def take(self, operation: str, params: Mapping[str, Any], now: float) -> None:
        """Count a request.

        Raises:
            Refusal: It is one too many, and not counted.
        """
        taken: list[tuple[tuple[str, ...], float]] = []
        for key in self._keys(operation, params):
            rate = self._rates.get(key[0])
            if rate is None:
                continue
            size = max(rate, 1.0)
            left, since = self._buckets.get(key, (size, now))
            left = min(size, left + max(0.0, now - since) * rate)
            if left < 1 - ROUNDING:
                raise throttled()
            taken.append((key, left - 1))
        for key, left in taken:
            self._buckets[key] = (left, now)
        if len(self._buckets) > CROWD:
            self._buckets = {
                key: (left, since)
                for key, (left, since) in self._buckets.items()
                if left + (now - since) * self._rates[key[0]] < max(self._rates[key[0]], 1.0)
            }

    def _keys(self, operation: str, params: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
        yield (operation,)
        place = tuple(str(params.get(name)) for name in ("memoryId", "actorId", "sessionId"))
        if f"{operation}.session" in QUOTAS:
            yield (f"{operation}.session", *place)
        # The request is not validated yet: what is too much is refused before it is looked at.
        payload = params.get("payload") if operation == "CreateEvent" else None
        if isinstance(payload, list) and any(
            isinstance(item, dict) and "conversational" in item for item in cast("list[Any]", payload)
        ):
            yield ("CreateEvent.conversational", *place)
