"""Replays the ledgers against what the store holds in the end. Knows nothing of the library but what its contract promises.

Every commit names the revision it follows, so those of a session are a chain; a chain ends with a deletion. From that and the times at
which something was certainly known follows what each client may have been told. What remains uncertain is never called a fault.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from .history import Attempt, Book, Life, Operation, Read
from .ledger import Key

__all__ = ["check", "figures"]

CLOCKS = 0.1
"""Seconds by which the store's clock and the clients' may go apart within one soak."""


def check(
    book: Book, final: Mapping[Key, Sequence[Read]], *, strict_leases: bool = True, by_halves: bool = False
) -> list[str]:
    """Return what is wrong, a sentence each.

    Args:
        book: The ledgers.
        final: What the store holds when nobody writes any more, of each session, in as many ways as it was read.
        strict_leases: Whether a lease cannot be lost, as where the operating system keeps it; else only what is written under it counts.
        by_halves: Whether a session is deleted bit by bit, until nothing of it is left, so that what is begun meanwhile may go with it; and
            whether who looks before a commit is answered may see what is then taken back: one that came second, or one of two that a
            service wrote for one.
    """
    checker = _Checker(book, final, by_halves=by_halves)
    checker.everything(strict_leases=strict_leases)
    return [*book.faults, *checker.faults]


def figures(book: Book) -> dict[str, Any]:
    """Return what the ledgers add up to."""
    made, hows = Counter[str](), Counter[str]()
    for operation in book.operations.values():
        for attempt in operation.attempts:
            made[operation.kind] += attempt.how == "ok"
            hows[attempt.how] += 1
    made["load"] = sum(read.whole for read in book.reads)
    made |= {"tail": len(book.tails), "list": len(book.lists), "lease": len(book.leases)}
    open_ones = sum(operation.how == "unknown" for operation in book.operations.values())
    lost = sum(
        one.error == "LeaseLostError" for operation in book.operations.values() for one in operation.attempts
    )
    return {
        "made": made,
        "leases lost": lost,
        "conflicts": hows["refused"],
        "unknown": hows["unknown"],
        "never known": open_ones,
        "halves": len(book.halves),
    }


class _Checker:
    def __init__(self, book: Book, final: Mapping[Key, Sequence[Read]], *, by_halves: bool) -> None:
        self.book, self.final, self.by_halves = book, final, by_halves
        self.faults: list[str] = []
        self.operations = book.by_session()
        self.reads: dict[Key, list[Read]] = defaultdict(list)
        self.twice: Counter[Key] = Counter()  # how often a commit was seen that was then taken back
        self.passing: set[Operation] = set()  # those commits
        for read in sorted(book.reads, key=lambda read: read.t1):
            self.reads[read.session].append(read)
        self.sessions = {*self.operations, *self.reads, *final}
        self.places: dict[Key, dict[str, tuple[Life, int]]] = {}
        self.lives: dict[Key, list[Life]] = {}
        self.by_expiry = 0

    def fault(self, session: Key, what: str) -> None:
        self.faults.append(f"session {session}: {what}")

    def everything(self, *, strict_leases: bool) -> None:
        for session in self.sessions:
            self._resolve(session)
            self._chain(session)
        for session in self.sessions:
            self._ends(session)
        for session in self.sessions:
            for life in self.lives[session]:
                self._contents(session, life)
        for session in self.sessions:
            self._answers(session)
            self._sights(session)
            self._deletions(session)
        self._expired()
        self._tails()
        self._lists()
        self._halves()
        self._leases(strict=strict_leases)

    # What was done, and in which order

    def _resolve(self, session: Key) -> None:
        """Find out the revisions of those whose answer nobody got, from what others saw."""
        known: dict[str, Operation] = {}
        for operation in self.operations[session]:
            if operation.got is not None:
                if operation.got in known:
                    self.fault(session, f"{known[operation.got]} and {operation} have the same revision")
                known[operation.got] = operation
        fork = next((one for one in self.operations[session] if one.kind == "fork"), None)
        for read in [*self.reads[session], *self.final.get(session, ())]:
            if read.revision is None or read.revision in known:
                if read.revision is not None:
                    known[read.revision].seen = min(known[read.revision].seen, read.t1)
                continue
            if not read.whole:
                continue
            operation = self.book.operations.get(read.op or "")
            if operation is None or operation.session != session:
                operation = fork
            if operation is None:
                self.fault(session, f"{read.whose} saw {read.revision}, which nobody wrote ({read.op})")
                continue
            stays = read in self.final.get(session, ())
            answered = max(
                (one.done for one in operation.attempts if one.how in {"ok", "refused"}), default=0.0
            )
            passing = (operation.how == "refused" or operation.got is not None) and not any(
                one.expected == read.revision and one.how != "refused" for one in self.operations[session]
            )
            if self.by_halves and passing and not stays and read.t0 < answered:
                # Seen before it was answered: what the service wrote twice, or what came second, and was still to be taken back.
                self.reads[session].remove(read)
                self.twice[session] += 1
                self.passing.add(operation)
                continue
            if operation.how == "broken" or (
                operation.how == "refused" and (stays or not self._may_have_ended_under(operation))
            ):
                self.fault(session, f"{operation} was refused, and is there as {read.revision}")
            if operation.got is not None:
                self.fault(session, f"{operation} is there twice, as {operation.got} and {read.revision}")
            else:
                operation.got, operation.seen = read.revision, read.t1
            known[read.revision] = operation
        if not any(one.how == "unknown" and one.got is None for one in self.operations[session]):
            for read in self.reads[session]:
                if read.revision is not None and read.revision not in known:
                    self.fault(session, f"{read.whose} saw {read.revision}, which nobody wrote")

    def _chain(self, session: Key) -> None:
        """Put the commits in order: each follows the one whose revision it named."""
        done = [one for one in self.operations[session] if one.got is not None]
        after: dict[str | None, list[Operation]] = defaultdict(list)
        for operation in done:
            after[operation.expected].append(operation)
        for revision, operations in after.items():
            if revision is not None and len(operations) > 1:
                names = ", ".join(map(str, operations))
                self.fault(session, f"all of these follow {revision}, so that all but one are lost: {names}")
        lives: list[Life] = []
        reached: set[Operation] = set()
        for first in after.get(None, []):
            chain = [first]
            while following := after.get(chain[-1].got):
                chain.append(following[0])
                if len(chain) > len(done):
                    self.fault(session, f"the commits from {first} on go in a circle")
                    break
            reached.update(chain)
            lives.append(Life(chain))
        for operation in done:
            if operation not in reached and len(after[operation.expected]) == 1:
                self.fault(session, f"{operation} follows {operation.expected}, which nobody wrote")
        lives.sort(key=lambda life: life.born)
        self.lives[session] = lives
        places = self.places[session] = {}
        for life in lives:
            for position, operation in enumerate(life.chain):
                places[str(operation.got)] = (life, position)

    def _ends(self, session: Key) -> None:
        """See that the last commits are what the store holds, and that nothing lives on beside."""
        lives = self.lives[session]
        for read in self.final.get(session, ()):
            place = self.places[session].get(read.revision or "")
            if place is None:
                continue  # gone, or told already
            life, position = place
            life.final, life.last = True, math.inf
            missing = [operation for operation in life.chain[position + 1 :] if operation.how == "ok"]
            if missing:
                names = ", ".join(map(str, missing[:5]))
                self.fault(session, f"{len(missing)} acknowledged commits are missing at the end: {names}")
        for read in self.reads[session]:
            if read.revision in self.places[session]:
                self.places[session][read.revision][0].saw(read)
        for before, after in pairwise(lives):
            if before.last > after.born:
                self.fault(session, f"{after.chain[0]} made it anew while it was there")

    def _contents(self, session: Key, life: Life) -> None:
        if life.contents is not None:
            return
        first = life.chain[0]
        if first.kind != "fork":
            life.write([], None, None)
            return
        sights = [*self.reads[session], *self.final.get(session, ())]
        read = next((one for one in sights if one.revision == first.got and one.whole), None)
        if read is None:
            return  # nobody saw what it was made of, and nobody wrote on it
        source: Key = tuple(first.asked["of"])
        operation = self.book.operations.get(read.op or "")
        if operation is None or operation.session != source:
            # What it was made of was a fork itself, on which nothing was written yet.
            operation = next((one for one in self.operations[source] if one.kind == "fork"), None)
        if operation is not None and operation.how == "unknown" and operation.got is None:
            return  # it took place, and of what it made only this was seen
        if operation is not None and operation in self.passing:
            return  # it was there for a moment
        place = self.places[source].get(operation.got or "") if operation is not None else None
        if place is None:
            self.fault(session, f"{first} was made of what nobody wrote ({read.op})")
            return
        origin, position = place
        self._contents(source, origin)
        if origin.contents is None:
            return
        if origin.too_new(position, first.seen) or origin.too_old(position, first.sent):
            self.fault(session, f"{first} was made of what {source} was not at that time")
        *_, op, by = origin.contents[position]
        life.write(_cut(origin.lines[position], first.asked["at"]), op, by)

    # What was answered

    def _answers(self, session: Key) -> None:
        for operation in self.operations[session]:
            if operation.kind == "delete":
                continue
            place = self.places[session].get(operation.got or "")
            for attempt in operation.attempts:
                if attempt.how == "ok" and place is not None and place[0].contents is not None:
                    count = place[0].contents[place[1]][1]
                    if count != attempt.number:
                        self.fault(
                            session, f"{operation} was answered {attempt.number} messages, and made {count}"
                        )
                if attempt.how == "refused":
                    self._refusal(session, operation, attempt)
            last = operation.attempts[-1]
            lost = last.how == "refused" and last.error != "LeaseLostError"
            if self.by_halves and self._deletion_begun(session, last.done):
                lost = (
                    False  # it may have taken the commit's name, and been broken off before it took the rest
                )
            if place is not None and place[0].final and lost and operation.how != "refused":
                # Sent again while its session was there, a commit gets its first answer.
                self.fault(session, f"{operation} was refused when it was sent again, and is there")

    def _deletion_begun(self, session: Key, before: float) -> bool:
        """Whether a deletion was begun before a moment, and may have done something."""
        return any(
            attempt.how != "refused" and attempt.sent < before
            for one in self.operations[session]
            if one.kind == "delete"
            for attempt in one.attempts
        )

    def _refusal(self, session: Key, operation: Operation, attempt: Attempt) -> None:
        if attempt.error == "LeaseLostError":
            return
        if operation.kind == "fork":
            source: Key = tuple(operation.asked["of"])
            if any(life.covers(attempt.sent, attempt.done) for life in self.lives[source]):
                self.fault(session, f"{operation} was refused, and {source} was there to be forked")
            return
        place = self.places[session].get(operation.expected or "")
        if place is not None and place[0].stood_at(place[1], attempt.sent, attempt.done):
            self.fault(session, f"{operation} was refused, and nobody else had written since")

    def _sights(self, session: Key) -> None:
        for read in [*self.reads[session], *self.final.get(session, ())]:
            if read.revision is None:
                for life in self.lives[session]:
                    if life.covers(read.t0, read.t1):
                        self.fault(session, f"{read.whose} found nothing, and it was there")
                continue
            place = self.places[session].get(read.revision)
            if place is None:
                continue
            life, position = place
            operation = life.chain[position]
            if life.too_old(position, read.t0):
                self.fault(session, f"{read.whose} saw it as of {operation}, when later ones were known")
            if life.too_new(position, read.t1):
                self.fault(session, f"{read.whose} saw {operation} before it was sent")
            if life.contents is None:
                continue
            sum_, count, _, op, by = life.contents[position]
            if read.number != count:
                self.fault(session, f"{read.whose} saw {read.number} messages after {operation}, not {count}")
            elif read.digest not in (None, sum_):
                self.fault(session, f"{read.whose} saw other messages after {operation} than were written")
            if read.whole and (read.op, read.by) != (op, by):
                self.fault(
                    session, f"{read.whose} saw state {read.op} and metadata {read.by} after {operation}"
                )

    # What is gone

    def _deletions(self, session: Key) -> None:
        deletions = [
            attempt
            for one in self.operations[session]
            if one.kind == "delete"
            for attempt in one.attempts
            if attempt.how != "refused"
        ]
        lives = self.lives[session]
        for deletion in deletions:
            if deletion.how == "ok":
                for life in lives:
                    if life.covers(deletion.sent, deletion.done):
                        self.fault(
                            session, "it was deleted, and was there before and after, not written anew"
                        )
        real = [one for one in deletions if one.how != "ok" or one.number]
        ended = [life for life in lives if not life.final]
        open_ones = sum(
            one.how == "unknown" and one.got is None and one.expected is None
            for one in self.operations[session]
            if one.kind != "delete"
        )
        if sum(one.how == "ok" for one in real) > len(ended) + open_ones + self.twice[session]:
            self.fault(session, "it was deleted more often than it was there")
        ends: dict[int, int] = {}  # which deletion ended which life

        def found(number: int, tried: set[int]) -> bool:
            life = ended[number]
            later = [other.born for other in lives if other.born > life.born]
            for index, one in enumerate(real):
                fits = one.done >= life.last and one.sent <= min(later, default=math.inf)
                if fits and index not in tried:
                    tried.add(index)
                    if index not in ends or found(ends[index], tried):
                        ends[index] = number
                        return True
            return False

        def swept(life: Life) -> bool:
            """Whether it was begun and was gone while a deletion was under way, which may have ended another one too."""
            return self.by_halves and any(one.sent <= life.born and one.done >= life.last for one in real)

        for number, life in enumerate(ended):
            if not found(number, set()) and not swept(life) and not self._may_be_expired(life):
                names = ", ".join(str(one) for one in life.chain[-3:])
                self.fault(session, f"it is gone without having been deleted; last there were {names}")

    def _may_have_ended_under(self, operation: Operation) -> bool:
        """Whether the session may have been deleted while ``operation`` was under way.

        Its commits and their ids are gone then: one that was written, and whose answer was lost, is refused when the store sends it again.
        """
        done = max(attempt.done for attempt in operation.attempts)
        return any(
            one.how != "refused" and one.sent <= done and one.done >= operation.sent
            for other in self.book.operations.values()
            if other.kind == "expire" or (other.kind == "delete" and other.session == operation.session)
            for one in other.attempts
        )

    def _may_be_expired(self, life: Life) -> bool:
        written = max(operation.sent for operation in life.chain)
        for operation in self.book.operations.values():
            if operation.kind == "expire":
                for one in operation.attempts:
                    old = one.done - written > operation.asked["after"] - CLOCKS
                    if one.how != "refused" and one.done >= life.last and old:
                        self.by_expiry += 1
                        return True
        return False

    def _expired(self) -> None:
        attempts = [
            one
            for operation in self.book.operations.values()
            if operation.kind == "expire"
            for one in operation.attempts
        ]
        told = sum(one.number or 0 for one in attempts)
        if self.by_expiry > told and not any(one.how == "unknown" for one in attempts):
            self.faults.append(f"{self.by_expiry} sessions are expired, and {told} were said to be")

    # What else was seen

    def _tails(self) -> None:
        for tail in self.book.tails:
            session, limit, lines = tail["s"], tail["limit"], tail["lines"]
            lives = self.lives[session]
            if any(life.contents is None for life in lives):
                continue
            right = not lines and not any(life.covers(tail["t0"], tail["t1"]) for life in lives)
            for life in lives:
                for position in life.around(tail["t0"], tail["t1"]) if not right else ():
                    _, count, last, *_ = (life.contents or [])[position]
                    if last[-limit:] == lines and tail["cursor"] == (max(0, count - limit) or None):
                        right = True
                        break
            open_ones = any(one.how == "unknown" and one.got is None for one in self.operations[session])
            if not right and not open_ones:
                self.fault(session, f"a tail of {limit} was none of what was there: {lines}")

    def _lists(self) -> None:
        covered: dict[str | None, list[tuple[Key, Life]]] = defaultdict(list)
        for session, lives in self.lives.items():
            covered[session[0]] += [(session, life) for life in lives]
        for listed in self.book.lists:
            ids = [id for id, *_ in listed["items"]]
            if len(set(ids)) != len(ids):
                self.faults.append(f"a list of {listed['actor']} has a session twice")
            for session, life in covered[listed["actor"]]:
                if life.covers(listed["t0"], listed["t1"]) and session[1] not in ids:
                    self.fault(session, "a list leaves it out, and it was there")

    def _halves(self) -> None:
        """See that what could not be read was being deleted, or had been left half deleted."""
        for half in self.book.halves:
            session = half["s"]
            broken_off = [
                attempt
                for one in self.operations[session]
                if one.kind == "delete"
                for attempt in one.attempts
                if attempt.sent <= half["t1"] and (attempt.how == "unknown" or attempt.done >= half["t0"])
            ]
            if not broken_off:
                self.fault(session, "it could not be read, and nobody was deleting it")

    def _leases(self, *, strict: bool) -> None:
        held = defaultdict(list)
        for lease in self.book.leases.values():
            end = max(lease.took, lease.written)
            if strict:
                end = max(end, lease.last if lease.left is None else lease.left)
            held[lease.session].append((lease.took, end, lease.name))
        for session, leases in held.items():
            leases.sort()
            latest = leases[0]
            for lease in leases[1:]:
                if lease[0] < latest[1]:
                    self.fault(session, f"the leases {latest[2]} and {lease[2]} were held at once")
                latest = max(latest, lease, key=lambda one: one[1])


def _cut(lines: list[str], at: int | None) -> list[str]:
    """Return the first ``at`` messages, without a call whose result is cut off."""
    kept = len(lines) if at is None else min(at, len(lines))
    if 0 < kept < len(lines) and lines[kept - 1].startswith("c:"):
        kept -= 1
    return lines[:kept]
