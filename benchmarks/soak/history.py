"""What the ledgers say, put in order: operations, sights and leases, and the lives of each session, commit by commit."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from .ledger import Key, digest

__all__ = ["TAIL", "Attempt", "Book", "Held", "Life", "Operation", "Read"]

TAIL = 8
"""How many messages of each state are kept to compare tails with."""


@dataclass
class Attempt:
    """Something that was asked for once. Who was killed before an answer never knew it."""

    sent: float
    done: float = math.inf
    how: str = "unknown"
    revision: str | None = None
    number: int | None = None
    error: str | None = None
    lease: str = ""


@dataclass(eq=False)
class Operation:
    """Something that was asked for, once or several times.

    Attributes:
        got: The revision it made: as it was answered, or as others saw it.
        seen: When it had certainly been done.
    """

    name: str
    kind: str
    session: Key
    asked: dict[str, Any]
    attempts: list[Attempt] = field(default_factory=list)
    got: str | None = None
    seen: float = math.inf

    @property
    def how(self) -> str:
        """``ok``, ``unknown``, ``refused`` or ``broken``, whichever of its attempts comes first in this order."""
        found = {attempt.how for attempt in self.attempts}
        return next(how for how in ("ok", "unknown", "refused", "broken") if how in found)

    @property
    def sent(self) -> float:
        """When it was first asked for."""
        return self.attempts[0].sent

    @property
    def lines(self) -> list[str]:
        """The messages of a commit."""
        return self.asked["lines"]

    @property
    def expected(self) -> str | None:
        """The revision that it was to follow."""
        return self.asked.get("rev")

    @property
    def by(self) -> str | None:
        """The metadata it wrote."""
        return self.asked["by"] if "by" in self.asked else self.name.partition("-")[0]

    def __str__(self) -> str:
        return f"{self.kind} {self.name} ({self.how})"


@dataclass
class Read:
    """What was seen of a session, between two moments."""

    session: Key
    t0: float
    t1: float
    revision: str | None
    number: int | None = None
    op: str | None = None
    by: str | None = None
    digest: str | None = None
    whole: bool = True  # else a line of a list
    whose: str = "a client"


@dataclass
class Held:
    """A lease, from when its holder had it to when it last acted on that, or let it go."""

    name: str
    session: Key
    took: float
    left: float | None = None
    last: float = 0.0  # the last thing done under it
    written: float = 0.0  # the last time a commit was first sent under it that was then accepted


class Book:
    """All ledgers together."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self.reads: list[Read] = []
        self.tails: list[dict[str, Any]] = []
        self.lists: list[dict[str, Any]] = []
        self.halves: list[dict[str, Any]] = []
        self.leases: dict[str, Held] = {}
        self.faults: list[str] = []

    def add(self, lines: Iterable[dict[str, Any]], whose: str = "a client") -> None:
        """Take in one ledger."""
        for line in lines:
            if "s" in line:
                line["s"] = tuple(line["s"])
            if "broken" in line:
                self.faults.append(f"{whose} got what no contract has: {line['broken']}")
            else:
                getattr(self, f"_{line['e']}")(line, whose)

    def _sent(self, line: dict[str, Any], whose: str) -> None:
        known = self.operations.get(line["op"])
        if known is None:
            session = line.get("s", (None, ""))
            known = self.operations[line["op"]] = Operation(line["op"], line["kind"], session, line)
        known.attempts.append(Attempt(line["t"], lease=line.get("lease", "")))
        if "lease" in line:
            self.leases[line["lease"]].last = line["t"]

    def _done(self, line: dict[str, Any], whose: str) -> None:
        operation = self.operations[line["op"]]
        attempt = operation.attempts[-1]
        attempt.done, attempt.how = line["t"], line["how"]
        attempt.revision, attempt.number, attempt.error = line.get("rev"), line.get("n"), line.get("error")
        if attempt.how == "broken":
            self.faults.append(f"{operation} got what no contract has: {attempt.error}")
        if attempt.how == "ok":
            operation.seen = min(operation.seen, attempt.done)
            lease = self.leases.get(attempt.lease)
            if lease is not None:
                lease.written = max(lease.written, operation.sent)
            if operation.kind in ("append", "replace", "fork"):
                if operation.got not in (None, attempt.revision):
                    self.faults.append(
                        f"{operation} was acknowledged as {operation.got} and, sent again, as {attempt.revision}"
                    )
                operation.got = attempt.revision

    def _read(self, line: dict[str, Any], whose: str) -> None:
        values = [line.get(name) for name in ("rev", "n", "op", "by", "digest")]
        self.reads.append(Read(line["s"], line["t0"], line["t1"], *values, whose=whose))

    def _tail(self, line: dict[str, Any], whose: str) -> None:
        self.tails.append(line)

    def _list(self, line: dict[str, Any], whose: str) -> None:
        self.lists.append(line)
        for id, count, revision in line["items"]:
            session = (line["actor"], id)
            self.reads.append(
                Read(session, line["t0"], line["t1"], revision, count, whole=False, whose="a list")
            )

    def _half(self, line: dict[str, Any], whose: str) -> None:
        self.halves.append(line)

    def _took(self, line: dict[str, Any], whose: str) -> None:
        self.leases[line["lease"]] = Held(line["lease"], line["s"], line["t"], last=line["t"])

    def _left(self, line: dict[str, Any], whose: str) -> None:
        self.leases[line["lease"]].left = line["t"]

    def by_session(self) -> dict[Key, list[Operation]]:
        """The operations on each session."""
        found: dict[Key, list[Operation]] = defaultdict(list)
        for operation in self.operations.values():
            if operation.kind != "expire":
                found[operation.session].append(operation)
        return found


class Life:
    """A session from its first commit to its end: its commits in the order of their revisions.

    Attributes:
        born: When it certainly was there.
        last: When it was certainly there last.
        contents: Of each commit: the digest of all messages then, their number, the last ones, and the state's and the metadata's marks;
            ``None`` where it cannot be known, for nobody saw of what a fork was made.
    """

    def __init__(self, chain: Sequence[Operation]) -> None:
        self.chain = chain
        self.born = min(operation.seen for operation in chain)
        self.last = max(operation.sent for operation in chain)
        self.final = False
        self.contents: list[tuple[str, int, list[str], str | None, str | None]] | None = None
        self.lines: list[list[str]] = []  # of every commit; only while a fork may want it
        # From a position on: when something of it had certainly been done, and before when nothing of it can have been.
        self._done = _suffix_minima([operation.seen for operation in chain])
        self._sent = _suffix_minima([operation.sent for operation in chain])

    def saw(self, read: Read) -> None:
        """Take in that it was there."""
        self.born, self.last = min(self.born, read.t1), max(self.last, read.t0)

    def covers(self, t0: float, t1: float) -> bool:
        """Whether it was certainly there all that time."""
        return self.born < t0 and self.last > t1

    def too_old(self, position: int, t0: float) -> bool:
        """Whether what was there from ``t0`` on was certainly later than this commit."""
        return self._done[position + 1] < t0

    def too_new(self, position: int, t1: float) -> bool:
        """Whether this commit certainly came after ``t1``."""
        return self._sent[position] > t1

    def stood_at(self, position: int, t0: float, t1: float) -> bool:
        """Whether this commit was certainly the newest all that time."""
        stands = self._done[position] < t0 and self._sent[position + 1] > t1
        return stands and self.covers(t0, t1)

    def around(self, t0: float, t1: float) -> Iterable[int]:
        """The positions that it can have been at, at some moment of that time."""
        position = max(0, bisect_left(self._done, t0) - 1)
        while position < len(self.chain) and not self.too_new(position, t1):
            if not self.too_old(position, t0):
                yield position
            position += 1

    def write(self, first: list[str], op: str | None, by: str | None) -> None:
        """Work out what it held after each commit, having begun with ``first``."""
        self.contents, lines = [], first
        for number, operation in enumerate(self.chain):
            if number or operation.kind != "fork":
                lines = operation.lines if operation.kind == "replace" else lines + operation.lines
                op, by = operation.name, operation.by
            self.lines.append(lines)
            self.contents.append((digest(lines), len(lines), lines[-TAIL:], op, by))


def _suffix_minima(values: Sequence[float]) -> list[float]:
    return [*accumulate(reversed(values), min, initial=math.inf)][::-1]
