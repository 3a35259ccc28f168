"""What a run may use, and what a session may."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from littleghost import data
from littleghost.cancellation import Deadline
from littleghost.errors import ConfigurationError, LimitExceededError, WallTimeExceededError
from littleghost.models.contract import Model
from littleghost.usage import Usage

if TYPE_CHECKING:
    from littleghost.prices import Prices

__all__ = ["Budget", "RunLimits", "Spent"]

LEAST = {"tool_calls": 0, "identical_calls": 2}
AMOUNTS = {"wall_time": "number of seconds", "cost": "number of US dollars"}


class RunLimits(Struct, frozen=True, kw_only=True):
    """What one run may use. Reaching a limit keeps the work done: the run's outcome is ``partial``, and its error names the limit.

    Attributes:
        turns: Model calls.
        tool_calls: Tool calls; those of one answer beyond it are answered as not run.
        tokens: Tokens of all model calls, input and output, checked before each call.
        cost: US dollars of all model calls, checked before each call. The model's price must be known.
        wall_time: Seconds.
        identical_calls: The tool call that would be this many in a row with the same arguments and the same result is refused, and the
            model is told; after one more the run ends.
        concurrency: Tool calls of one answer that run at a time.
        result_tokens: Tokens of text, taken as 4 bytes each, that a tool call's result may have; of a longer one the middle goes.
    """

    turns: int | None = 100
    tool_calls: int | None = 1000
    tokens: int | None = None
    cost: float | None = None
    wall_time: float | None = None
    identical_calls: int | None = 5
    concurrency: int | None = 8
    result_tokens: int | None = 10_000

    def __post_init__(self) -> None:
        _check(self, "limits")


class Budget(Struct, frozen=True, kw_only=True):
    """What all runs of one session may use together, the one that it is given to and those before it; see `RunLimits`.

    It is counted in the session's metadata with each commit, from the first run that is given a budget on, across processes. What a
    killed run used after its last commit is not known. Without a session it bounds the one run.
    """

    turns: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    wall_time: float | None = None

    def __post_init__(self) -> None:
        _check(self, "budget")


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


def reached(name: str, value: float, *, session: bool = False) -> LimitExceededError:
    """Return the error that says which limit a run has reached."""
    whose, what = ("session", "budget") if session else ("run", "limit")
    said = {"cost": f"{value:g} US dollars", "wall_time": f"{value:g} s"}.get(
        name, f"{value} {name.replace('_', ' ')}"
    )
    kind = WallTimeExceededError if name == "wall_time" else LimitExceededError
    return kind(f"the {whose} reached its {what} of {said}", limit=name, value=value)


def _check(limits: RunLimits | Budget, name: str) -> None:
    for field in limits.__struct_fields__:
        check_bound(
            getattr(limits, field),
            f"{name}.{field}",
            amount=AMOUNTS.get(field),
            least=LEAST.get(field, 1),
        )


def check_bound(value: Any, name: str, *, amount: str | None, least: int = 1) -> None:
    """Raise `ConfigurationError` unless ``value`` is ``None``, or a number that can bound something.

    Args:
        value: The bound.
        name: What to call it.
        amount: What kind of number it is, or ``None`` for a whole number.
        least: The least of a whole number.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float) if amount else int):
        raise ConfigurationError(f"{name} must be a {amount or 'whole number'}, not {data.kind(value)}")
    if (not amount and value < least) or (amount and not value > 0):
        raise ConfigurationError(
            f"{name} must be {'more than 0' if amount else f'at least {least}'}, not {value}"
        )


def deadline_for(
    timeout: float | None, limits: RunLimits
) -> tuple[Deadline | None, LimitExceededError | None]:
    """Return the nearer of the caller's time-out and the limit on wall time, and what a run ends with there if it is the limit."""
    limit = limits.wall_time
    if limit is not None and (timeout is None or limit <= timeout):
        return Deadline(limit), reached("wall_time", limit)
    return None if timeout is None else Deadline(timeout), None


def price_of(
    model: Model, prices: Prices | None, limits: RunLimits, budget: Budget | None
) -> Callable[[Usage], float | None] | None:
    """Return what tells the price of a call of ``model``, ``None`` where nobody asks for it.

    Raises:
        ConfigurationError: There is a limit on cost, and the price is not known.
    """
    limited = limits.cost is not None or (budget is not None and budget.cost is not None)
    if prices is None:
        if not limited:
            return None
        from littleghost.prices import Prices

        prices = Prices.bundled()
    known = prices
    if limited and prices.cost(model.name, Usage(), model.provider) is None:
        raise ConfigurationError(
            f"a limit on cost needs the price of {model.name!r}, which is not known; give Runtime(prices=…) a table that has it"
        )
    return lambda usage: known.cost(model.name, usage, model.provider, cache=model.cache or "5m")


def rest_of(
    inner: RunLimits, outer: RunLimits, budget: Budget | None, before: Spent, used: Usage, cost: float | None
) -> RunLimits:
    """Return the limits of a run inside of another one, which may use what is left to that one at most.

    Args:
        inner: Its own limits.
        outer: Those of the other run.
        budget: That of the other run's session.
        before: What had been used of it before the other run.
        used: The tokens that the other run has used.
        cost: What these cost, where that is known.
    """
    tokens = [inner.tokens] if outer.tokens is None else [inner.tokens, outer.tokens - used.total_tokens]
    dollars = [inner.cost] if outer.cost is None else [inner.cost, outer.cost - (cost or 0.0)]
    if budget is not None and budget.tokens is not None:
        tokens.append(budget.tokens - before.tokens - used.total_tokens)
    if budget is not None and budget.cost is not None:
        dollars.append(budget.cost - before.cost - (cost or 0.0))
    return structs.replace(
        inner,
        tokens=min((max(1, bound) for bound in tokens if bound is not None), default=None),
        cost=min((max(1e-9, bound) for bound in dollars if bound is not None), default=None),
    )
