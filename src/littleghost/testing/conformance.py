"""What the conformance kits share: clauses with names, and a report of which of them hold.

A kit is a list of clauses. A clause is one async function that takes a *maker* (what a maker takes and returns is the kit's
affair), does something observable, and calls `expect` about it. A clause that needs what an implementation does not offer is
skipped by the name of the missing capability, never passed. Nothing here needs pytest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

__all__ = [
    "Clause",
    "ClauseFailure",
    "ClauseSkipped",
    "ClauseTimedOut",
    "Outcome",
    "Report",
    "clause",
    "ended",
    "expect",
    "run_clauses",
]

SECONDS = 60.0
"""The limit of an ordinary clause, unless a kit or its user sets another. Clauses that start processes get a multiple."""
GRACE = 1.0
"""Seconds that what was cancelled gets to end. Then it is left alone, for a store that hangs may hang in closing too."""
PATIENCE = 3
"""Clauses that may run out of time before the rest is no longer tried."""

ClauseFunction = Callable[[Any], Awaitable[None]]


class ClauseFailure(AssertionError):
    """A clause does not hold. Its text says what was expected and what was seen."""


class ClauseTimedOut(ClauseFailure):
    """A clause did not end in time."""


class ClauseSkipped(Exception):
    """A clause cannot be tried here, for a reason found only while trying."""


def expect(condition: object, message: str) -> None:
    """Raise `ClauseFailure` with ``message`` unless ``condition`` is true; ``python -O`` removes ``assert``, not this."""
    if not condition:
        raise ClauseFailure(message)


class Clause(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence of a contract, and the code that tries it.

    Attributes:
        name: The function's name with dashes; unique in its kit.
        doc: The sentence.
        needs: The capabilities without which the clause does not apply.
        function: The code.
        timeout: Seconds after which the clause has failed, where an ordinary one has 60.
    """

    name: str
    doc: str
    function: ClauseFunction
    needs: frozenset[str] = frozenset()
    timeout: float = SECONDS

    def missing(self, capabilities: Iterable[str]) -> frozenset[str]:
        """Return the needed capabilities that ``capabilities`` does not name."""
        return self.needs - frozenset(capabilities)

    async def run(self, make: Any, *, seconds: float | None = None) -> None:
        """Try the clause against what ``make`` makes.

        A task that awaits for ever is cancelled and left; code that blocks the event loop cannot be stopped from here.

        Args:
            make: The maker.
            seconds: The limit of an ordinary clause; this one gets it by the ratio of its ``timeout`` to theirs.

        Raises:
            ClauseFailure: It does not hold, or, as `ClauseTimedOut`, did not end in time.
            ClauseSkipped: It cannot be tried here.
        """
        limit = self.timeout if seconds is None else seconds * self.timeout / SECONDS
        if not await ended(self.function(make), limit):
            raise ClauseTimedOut(f"did not end within {limit:g} s")

    def __repr__(self) -> str:
        return f"<clause {self.name}>"


async def ended(work: Awaitable[None], seconds: float) -> bool:
    """Whether ``work`` ended within ``seconds``. If not it is cancelled, and left to itself where it does not end then either."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait((task,), timeout=GRACE)
        return False
    finally:
        task.cancel()
        task.add_done_callback(_heard)


def _heard(work: asyncio.Future[None]) -> None:
    """Take note of how ``work`` ended, so that asyncio does not complain of an error that nobody asked for."""
    if not work.cancelled():
        work.exception()


def clause(
    registry: list[Clause], *, needs: Iterable[str] = (), timeout: float = SECONDS
) -> Callable[[ClauseFunction], ClauseFunction]:
    """Return a decorator that adds a function to ``registry`` as a `Clause`; its docstring's first line is the sentence."""

    def register(function: ClauseFunction) -> ClauseFunction:
        name = getattr(function, "__name__", "clause").strip("_").replace("_", "-")
        if any(known.name == name for known in registry):
            raise ValueError(f"there is a clause called {name} already")
        doc = (function.__doc__ or "").strip().partition("\n")[0]
        registry.append(
            Clause(name=name, doc=doc, function=function, needs=frozenset(needs), timeout=timeout)
        )
        return function

    return register


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one clause went.

    Attributes:
        name: The clause's name.
        doc: Its sentence.
        status: ``passed``, ``failed`` or ``skipped``.
        error: What failed it.
        reason: Why it was skipped; the missing capabilities where that is why.
        seconds: How long it took.
    """

    name: str
    doc: str
    status: str
    error: BaseException | None = None
    reason: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        detail = f"{type(self.error).__name__}: {self.error}" if self.error is not None else self.reason
        return f"{self.status:7} {self.name}" + (f" ({detail})" if detail else "")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a kit went, clause by clause, in the kit's order."""

    subject: str
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> tuple[Outcome, ...]:
        """The clauses that hold."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "passed")

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The clauses that do not."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "failed")

    @property
    def skipped(self) -> tuple[Outcome, ...]:
        """The clauses that do not apply or could not be tried."""
        return tuple(outcome for outcome in self.outcomes if outcome.status == "skipped")

    @property
    def ok(self) -> bool:
        """Whether no clause failed and at least one passed: a kit that skipped everything proved nothing."""
        return not self.failed and bool(self.passed)

    def raise_for_failures(self) -> None:
        """Raise `ClauseFailure` with what failed unless the report is `ok`; with what was skipped where nothing was tried."""
        if not self.ok:
            text = self._text(self.failed or self.skipped)
            raise ClauseFailure(text) from next((outcome.error for outcome in self.failed), None)

    def __str__(self) -> str:
        return self._text((*self.failed, *self.skipped))

    def _text(self, outcomes: Iterable[Outcome]) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        return "\n".join([f"{self.subject}: {counts}", *(f"  {outcome}" for outcome in outcomes)])


async def run_clauses(
    clauses: Sequence[Clause],
    make: Any,
    capabilities: Iterable[str],
    *,
    subject: str = "conformance",
    seconds: float | None = None,
) -> Report:
    """Try each clause in turn and report; a failing clause does not stop the others, but three that hang do.

    Args:
        clauses: What to try.
        make: The maker each clause is given.
        capabilities: What the implementation offers; a clause that needs more is skipped by name.
        subject: The report's heading, such as the class under test.
        seconds: The limit of an ordinary clause, where it is not that of the clause itself.
    """
    late = 0
    offered = frozenset(capabilities)
    outcomes: list[Outcome] = []
    for one in clauses:
        missing = one.missing(offered)
        if missing:
            reason = "needs " + ", ".join(sorted(missing))
            outcomes.append(Outcome(name=one.name, doc=one.doc, status="skipped", reason=reason))
            continue
        if late >= PATIENCE:
            reason = f"not tried, for {late} clauses before it did not end in time"
            outcomes.append(Outcome(name=one.name, doc=one.doc, status="skipped", reason=reason))
            continue
        started = time.perf_counter()
        status, error, reason = "passed", None, ""
        try:
            await one.run(make, seconds=seconds)
        except ClauseSkipped as skip:
            status, reason = "skipped", str(skip)
        except Exception as failure:  # noqa: BLE001 (whatever it is, it is the clause that failed)
            status, error = "failed", failure
            late += isinstance(failure, ClauseTimedOut)
        took = time.perf_counter() - started
        outcomes.append(
            Outcome(name=one.name, doc=one.doc, status=status, error=error, reason=reason, seconds=took)
        )
    return Report(subject=subject, outcomes=tuple(outcomes))
