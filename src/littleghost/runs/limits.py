"""What a run may use."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, structs

from littleghost import data
from littleghost.cancellation import Deadline
from littleghost.errors import ConfigurationError
from littleghost.usage import Usage

__all__ = ["RunLimits", "Spent"]


class RunLimits(Struct, frozen=True, kw_only=True):
    """What one run may use. Reaching a limit keeps the work done: the run's outcome is ``partial``.

    Attributes:
        turns: Model calls.
        tool_calls: Tool calls; those of one answer beyond it are answered as not run.
        tokens: Tokens of all model calls, input and output, checked before each call.
        wall_time: Seconds.
    """

    turns: int | None = 100
    tool_calls: int | None = 1000
    tokens: int | None = None
    wall_time: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_bound(
                getattr(self, name),
                f"limits.{name}",
                whole=name != "wall_time",
                least=0 if name == "tool_calls" else 1,
            )


class Spent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What runs have used so far.

    Attributes:
        turns: Model calls.
        tool_calls: Tool calls.
        tokens: Tokens of all model calls.
        cost: US dollars.
        wall_time: Seconds.
    """

    turns: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: float = 0.0
    wall_time: float = 0.0


def check_bound(value: Any, name: str, *, whole: bool, least: int = 1) -> None:
    """Raise `ConfigurationError` unless ``value`` is ``None``, or a number that can bound something."""
    kinds = (int,) if whole else (int, float)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigurationError(
            f"{name} must be a {'whole number' if whole else 'number of seconds'}, not {data.kind(value)}"
        )
    if (whole and value < least) or (not whole and not value > 0):
        raise ConfigurationError(
            f"{name} must be {f'at least {least}' if whole else 'more than 0'}, not {value}"
        )


def deadline_for(timeout: float | None, limits: RunLimits) -> Deadline | None:
    """Return the nearer of the caller's time-out and the limit on wall time."""
    bounds = [bound for bound in (timeout, limits.wall_time) if bound is not None]
    return Deadline(min(bounds)) if bounds else None


def rest_of(inner: RunLimits, outer: RunLimits, used: Usage) -> RunLimits:
    """Return the limits of a run inside of one that has ``used`` something of its own: it may have what is left at most."""
    if outer.tokens is None:
        return inner
    left = max(1, outer.tokens - used.total_tokens)
    return structs.replace(inner, tokens=left if inner.tokens is None else min(left, inner.tokens))
