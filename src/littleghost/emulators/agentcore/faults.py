"""Faults on purpose: which call fails, and how."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from littleghost.emulators.agentcore import refusals
from littleghost.emulators.agentcore.model import OPERATIONS
from littleghost.emulators.agentcore.recording import Call
from littleghost.emulators.agentcore.refusals import Refusal
from littleghost.errors import ConfigurationError

__all__ = ["CONNECTION_FAULTS", "KINDS", "Fault", "Faults", "refusal_of"]

ERRORS: Mapping[str, Callable[[], Refusal]] = {
    "throttle": refusals.throttled,
    "conflict": refusals.conflict,
    "quota_exceeded": refusals.quota_exceeded,
    "access_denied": refusals.access_denied,
    "expired_token": refusals.expired_token,
    **{
        f"error_{status}": lambda status=status: refusals.fault_of_service(status)
        for status in (500, 502, 503, 504)
    },
}
CONNECTION_FAULTS = ("reset", "timeout")
LISTS = ("ListEvents", "ListSessions", "ListActors")
OF_WORK = {
    "truncated": OPERATIONS,
    "slow": OPERATIONS,
    "duplicate": ("CreateEvent",),
    "repeat_token": LISTS,
    "extra_page": LISTS,
    "dropped_page": LISTS,
    "dropped_event": ("ListEvents",),
}
ABLE: Mapping[str, tuple[str, ...]] = {
    **OF_WORK,
    "conflict": ("CreateEvent",),  # the model has it nowhere else, and botocore would not try again
    "conflict_after": ("CreateEvent",),
}
"""Which operations a kind of fault can befall, where that is not all."""
KINDS = (
    *(f"{kind}_{when}" for kind in CONNECTION_FAULTS for when in ("before", "after")),
    *ERRORS,
    *(f"{kind}_after" for kind in ERRORS),
    *OF_WORK,
)
"""Every kind of fault."""

PARTS = ("nth", "times", "probability", "delay")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A rule: which calls fail, and how.

    It looks at the calls of its operation that it can befall, for which ``where`` holds, and counts them. A rule without ``nth`` and
    ``probability`` befalls each. No call is befallen by two: of the rules that are due, the first has it, and the others wait.

    Args:
        kind: What happens. Instead of the work: ``reset_before`` (the connection is reset), ``timeout_before`` (no answer), and the errors
            ``throttle`` (429), ``conflict`` (409, of CreateEvent alone), ``quota_exceeded`` (402), ``access_denied`` and
            ``expired_token`` (403), ``error_500``, ``error_502``, ``error_503`` and ``error_504``. After the work, which is done and
            kept: ``reset_after``, ``timeout_after``, each error with ``_after``, ``truncated`` (half of the answer's body), ``slow`` (a
            whole answer, late). In the work: ``duplicate`` (CreateEvent writes two events and answers with the second), and of lists
            ``repeat_token`` (the answer has the token that it was asked with, again), ``extra_page`` (a last page has a token, which
            leads to an empty one), ``dropped_page`` (a page without its entries, but with its token), ``dropped_event`` (a page of
            ListEvents without one of its events).
        operation: The operation, or ``*`` for every one.
        nth: The first of its calls to be befallen, counted from 1.
        times: How many are befallen at most; with ``nth`` one, else any number.
        probability: How likely each is, above 0 and up to 1.
        where: Called with each `Call` before it is carried out; those for which it is false do not count. It runs under the emulator's
            lock, so it must not call the emulator.
        delay: Seconds until a ``slow`` answer (1 where it is not given) or until the connection of a ``timeout`` is closed (65, which
            is more than botocore's own 60). In the in-process transport a ``timeout`` is raised at once.

    Raises:
        ConfigurationError: A part is not what it must be, or the operation cannot have such a fault.
    """

    kind: str
    operation: str = "*"
    nth: int | None = None
    times: int | None = None
    probability: float | None = None
    where: Callable[[Call], bool] | None = None
    delay: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigurationError(f"kind: {self.kind!r} is no fault; there are {', '.join(KINDS)}")
        if self.operation not in {"*", *OPERATIONS}:
            raise ConfigurationError(
                f"operation: {self.operation!r} is not emulated; there are {', '.join(OPERATIONS)}, and * for all"
            )
        able = ABLE.get(self.kind, OPERATIONS)
        if self.operation not in {"*", *able}:
            raise ConfigurationError(
                f"kind: {self.kind} is a fault of {', '.join(able)}, not of {self.operation}"
            )
        for name in ("nth", "times"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigurationError(f"{name}: {value!r} must be a whole number from 1")
        if self.probability is not None and not 0 < self.probability <= 1:
            raise ConfigurationError(f"probability: {self.probability!r} must be above 0 and at most 1")
        if self.delay is not None and not 0 <= self.delay < float("inf"):
            raise ConfigurationError(f"delay: {self.delay!r} must be a number of seconds")

    @classmethod
    def parse(cls, rule: str) -> Fault:
        """Return the rule that a text such as ``CreateEvent:throttle:nth=3`` or ``*:reset_after:probability=0.01`` says.

        Raises:
            ConfigurationError: It says none.
        """
        operation, _, rest = rule.partition(":")
        kind, *parts = rest.split(":")
        if not kind:
            raise ConfigurationError(
                f"fault rule {rule!r}: write OPERATION:KIND and what restricts it, such as CreateEvent:throttle:nth=3"
            )
        given: dict[str, Any] = {}
        for part in parts:
            name, equals, value = part.partition("=")
            if name not in PARTS or not equals:
                raise ConfigurationError(
                    f"fault rule {rule!r}: {part!r} is none of {', '.join(f'{one}=…' for one in PARTS)}"
                )
            if name in given:
                raise ConfigurationError(f"fault rule {rule!r}: {name} is there twice")
            try:
                given[name] = int(value) if name in {"nth", "times"} else float(value)
            except ValueError:
                raise ConfigurationError(
                    f"fault rule {rule!r}: {name} must be a number, not {value!r}"
                ) from None
        try:
            return cls(operation=operation, kind=kind, **given)
        except ConfigurationError as error:
            raise ConfigurationError(f"fault rule {rule!r}: {error}") from None

    def __str__(self) -> str:
        """Return the rule as `parse` reads it, without its ``where``."""
        parts = [f"{name}={value}" for name in PARTS if (value := getattr(self, name)) is not None]
        return ":".join([self.operation, self.kind, *parts])


@dataclass(slots=True)
class _Armed:
    rule: Fault
    met: int = 0
    fired: int = 0


class Faults:
    """The rules in force. It knows nothing of threads; whoever calls holds the lock.

    Args:
        random: What decides with a probability.
    """

    def __init__(self, random: random.Random) -> None:
        self._random = random
        self._armed: list[_Armed] = []

    def add(self, rule: Fault) -> None:
        """Put a rule in force, after those that are."""
        self._armed.append(_Armed(rule))

    def clear(self) -> None:
        """Put all rules out of force."""
        self._armed.clear()

    def choose(self, call: Call) -> Fault | None:
        """Return the fault that befalls ``call``, the first of the rules that say so; the others count it nevertheless."""
        chosen: Fault | None = None
        for armed in self._armed:
            rule = armed.rule
            if rule.operation not in {"*", call.operation} or not _can_befall(rule.kind, call):
                continue
            if rule.where is not None and not rule.where(call):
                continue
            armed.met += 1
            if chosen is None and self._fires(armed):
                armed.fired += 1
                chosen = rule
        return chosen

    def _fires(self, armed: _Armed) -> bool:
        rule = armed.rule
        times = rule.times if rule.times is not None or rule.nth is None else 1
        if times is not None and armed.fired >= times:
            return False
        if rule.nth is not None and armed.met < rule.nth:
            return False
        return rule.probability is None or self._random.random() < rule.probability


def refusal_of(kind: str) -> Refusal | None:
    """Return the error that a kind of fault is answered with, before or after the work."""
    make = ERRORS.get(kind.removesuffix("_after"))
    return None if make is None else make()


def _can_befall(kind: str, call: Call) -> bool:
    if call.operation not in ABLE.get(kind, OPERATIONS):
        return False
    return kind != "repeat_token" or bool(call.params.get("nextToken"))
