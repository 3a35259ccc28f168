"""What the events of one session say, as far as they were read.

The service lists events newest first, page by page, and a session can have thousands. Mostly the newest pages tell all there is to know;
`History` says when. It relies on the list alone, never on the order of writing, and reads nothing by itself.

**The head** is the greatest of all commits that count, by `Stored.rank`. To know it from the newest pages alone, three things are taken
for granted. Where what was read belies the first or the second, every page is read.

1. The list is ordered: event ids descend over all pages, and timestamps do not ascend by more than a millisecond, which ids have too.
2. A commit is stamped later than its parent. Every writer sees to it, whatever its clock says.
3. What was continued was ahead: a commit that another one continues is the greatest of those stamped no later than itself. For whoever
   continued it took it for the head. This fails only where writers have raced, their stamps are further apart than the race took, and a
   branch that was behind went on; our own writers find out that they were second and do not go on.

So once some commit and its parent were read, all that was not read is stamped no later than the parent (1), the parent is the greatest of
that (3), and what can be greater than the parent was read. The head is the greatest of what was read. All rivals of a commit for its place
are stamped after the parent (2), and so were read too.

**The messages** of a commit are in events stamped between the parent and it. So a commit of which it and its parent were read can be read
whole. A root without a parent has a rival wherever another one stands, so it takes the end of the list.

Whether the root of the head's generation has expired is not known before the list was read that far.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from littleghost.errors import CorruptSessionError
from littleghost.message import Message
from littleghost.sessions.agentcore import events
from littleghost.sessions.agentcore.checkpoints import Stored, check_place, decode
from littleghost.sessions.agentcore.events import CHECKPOINT_V4, CHECKPOINT_V5, MESSAGE, Event, corrupt
from littleghost.sessions.agentcore.items import read_commit, texts_of

__all__ = ["Head", "History"]

_EVENT_ID: Final = re.compile(r"[0-9]{19}#[0-9A-Fa-f]{1,64}", re.ASCII)
_CHECKPOINTS: Final = frozenset({CHECKPOINT_V4, CHECKPOINT_V5})


class Head(Struct, frozen=True, kw_only=True):
    """The last commit of a session, and what is behind it.

    Attributes:
        checkpoint: Its checkpoint.
        root: The checkpoint that its generation began with; this and the others ``None`` where the list was not read that far.
        lineage_commits: How many commits its generation has, root and head included.
        lineage_bytes: How many bytes their checkpoints have as JSON.
    """

    checkpoint: Stored
    root: Stored | None = None
    lineage_commits: int | None = None
    lineage_bytes: int | None = None


class History:
    """The events of one session, from an unfiltered list.

    Events of other kinds are skipped, and events of messages are only looked into where their commit is asked for. A stored thing that
    cannot be read is an error when something is asked for, and never before. Messages are decoded once, and given out as they are: who
    hands them on twice copies them.
    """

    def __init__(self) -> None:
        self.complete = False
        """Whether the last page was added."""
        self._ordered = True
        self._last: tuple[str, float] | None = None
        self._fault: CorruptSessionError | None = None
        self._checkpoints: dict[str, Stored] = {}
        self._children: dict[str | None, list[str]] = {}
        self._events: dict[tuple[str, str], list[Event]] = {}
        self._astray: dict[str, Event] = {}
        self._distinct: dict[str, tuple[int, list[tuple[Event, tuple[str, ...]]]]] = {}
        self._messages: dict[str, tuple[Message, ...]] = {}
        self._best: Stored | None = None
        self._resolved = False
        self._frontier: dict[int | None, Stored] = {}

    def add(self, page: Iterable[Event], *, last: bool = False) -> None:
        """Add a page, the one after that which was added before.

        Args:
            page: Events as ListEvents returns them, in its order.
            last: Whether no page follows.
        """
        self._resolved = False
        for event in page:
            if self._ordered:
                self._ordered = self._follows(event)
            kind = events.kind_of(event)
            if kind == MESSAGE:
                self._add_message(event)
            elif kind in _CHECKPOINTS and self._fault is None:
                try:
                    self._add_checkpoint(decode(event))
                except CorruptSessionError as error:
                    self._fault = error
        self.complete = self.complete or last

    def _follows(self, event: Event) -> bool:
        name, moment = event.get("eventId"), events.moment(event)
        if not isinstance(name, str) or moment is None or not _EVENT_ID.fullmatch(name):
            return False
        before, self._last = self._last, (name, moment)
        return before is None or (name < before[0] and moment <= before[1] + 0.001)

    def _add_message(self, event: Event) -> None:
        generation, commit_id = events.identity(event)
        if generation is None:
            return  # no reader finds it by its generation, ours included
        if commit_id is None:
            self._astray.setdefault(generation, event)
        else:
            self._events.setdefault((generation, commit_id), []).append(event)

    def _add_checkpoint(self, stored: Stored) -> None:
        known = self._checkpoints.get(stored.commit_id)
        if known is None:
            self._children.setdefault(stored.parent_commit_id, []).append(stored.commit_id)
        elif not known.same_as(stored):
            raise corrupt(
                stored.event_id, f"is a checkpoint of the same commit as {known.event_id}, and another"
            )
        elif known.timestamp >= stored.timestamp:
            return
        self._checkpoints[stored.commit_id] = stored

    def settled(self, start: int | None = None) -> bool:
        """Return whether no older page can change what was read.

        Args:
            start: The index of the first message that is wanted, ``0`` for all; ``None`` where only the head is.
        """
        if self.complete or self._fault is not None:
            return True
        if not self._ordered or self._still_waits(start):
            return False
        try:
            best = self._resolve()
            return best is not None and self._ordered and self._is_known(best, start)
        except CorruptSessionError:
            return True

    def _is_known(self, best: Stored, start: int | None) -> bool:
        """Return whether the head, the commits down to the message ``start``, and the parents of all of them were read."""
        stored = best
        while True:
            parent = self._parent_of(stored)
            if parent is None:
                self._frontier[start] = stored
                return False
            if start is not None and stored.message_count > start:
                before = 0 if stored.root else parent.event_count
                if len(self._events_of(stored)) < stored.event_count - before:
                    return False
            if _ends(stored, start):
                return True
            stored = parent

    def _still_waits(self, start: int | None) -> bool:
        """Return whether the parent is missing that was missing before, or one behind it, which is told without much ado.

        Another head may have been found meanwhile, and that parent no longer matter; then going on does no harm.
        """
        stored = self._frontier.get(start)
        while stored is not None:
            parent = self._parent_of(stored)
            if parent is None:
                self._frontier[start] = stored
                return True
            stored = None if _ends(stored, start) else parent
        return False

    @property
    def head(self) -> Head | None:
        """The last commit of what was read; ``None`` only where there is no checkpoint at all.

        Raises:
            CorruptSessionError: A checkpoint cannot be read, or none counts because those that they continue are gone.
        """
        best = self._resolve()
        if best is None:
            if self._checkpoints and self.complete:
                newest = max(self._checkpoints.values(), key=lambda stored: stored.rank)
                raise corrupt(
                    newest.event_id,
                    "is the last checkpoint, and the first one of its generation is gone: it has expired, or the session was being "
                    "deleted. What is left of the conversation is no whole; replace starts the session afresh, and so does a new id",
                    missing=True,
                )
            return None
        if self._cut is not None and self.complete:
            raise corrupt(
                self._cut.event_id,
                "is a newer checkpoint than all that can be read, and one that it continues is gone: it has expired or was deleted. "
                "What is left of the conversation is no whole; replace starts the session afresh, and so does a new id",
                missing=True,
            )
        lineage = self._lineage(best)
        if not lineage[0].root:
            return Head(checkpoint=best)
        return Head(
            checkpoint=best,
            root=lineage[0],
            lineage_commits=len(lineage),
            lineage_bytes=sum([stored.size for stored in lineage]),
        )

    @property
    def newest(self) -> Stored | None:
        """The checkpoint of the highest revision of those read, whether it counts or not."""
        self._check()
        return max(
            self._checkpoints.values(), key=lambda stored: (stored.revision, stored.rank), default=None
        )

    def messages(self, start: int = 0, end: int | None = None) -> tuple[Message, ...]:
        """Return the messages of the head's generation from the index ``start`` on, up to ``end``.

        Raises:
            CorruptSessionError: They cannot be read, or are not those that the checkpoints say.
            ValueError: What was read does not tell; see `settled`.
        """
        if not self.settled(start):
            raise ValueError(f"the messages from {start} on are not settled; add older pages first")
        head = self.head
        if head is None:
            return ()
        count = head.checkpoint.message_count
        end = count if end is None else min(end, count)
        if start >= end:
            return ()
        astray = self._astray.get(head.checkpoint.generation)
        if astray is not None:
            raise corrupt(events.name_of(astray), "has messages of the generation, and of no commit")
        found: list[Message] = []
        first: int | None = None
        for stored in self._lineage(head.checkpoint):
            if stored.message_count > start and stored.start_sequence < end:
                first = stored.start_sequence if first is None else first
                found += self.messages_of(stored)
        offset = first or 0
        return tuple(found[start - offset : end - offset])

    def messages_of(self, stored: Stored) -> tuple[Message, ...]:
        """Return the messages that a commit added.

        Raises:
            CorruptSessionError: They cannot be read, or are not those that its checkpoint says.
        """
        known = self._messages.get(stored.commit_id)
        if known is None:
            parent = None if stored.root else self._parent_of(stored)
            if parent is None and not stored.root:
                raise corrupt(
                    stored.event_id,
                    "is a checkpoint whose parent is gone, which may have expired",
                    missing=True,
                )
            known = read_commit(stored, parent, self._events_of(stored))
            self._messages[stored.commit_id] = known
        return known

    def find(self, commit_id: str) -> Stored | None:
        """Return the checkpoint of a commit, whether it counts or not."""
        self._check()
        return self._checkpoints.get(commit_id)

    def answered(self, commit_id: str) -> Stored | None:
        """Return the checkpoint of a commit that the head continues, over whatever generations, or that is the head.

        One that lost its place to another is not, nor is one that cannot be reached because what is between has expired.
        """
        stored = self._resolve()
        while stored is not None and stored.commit_id != commit_id:
            stored = self._parent_of(stored)
        return stored

    def children(self, commit_id: str | None) -> list[Stored]:
        """Return the checkpoints whose parent is ``commit_id``; those of the first commits of a session for ``None``."""
        self._check()
        return [self._checkpoints[child] for child in self._children.get(commit_id, ())]

    def checkpoints(self) -> list[Stored]:
        """Return all checkpoints that were read, whether they count or not."""
        self._check()
        return list(self._checkpoints.values())

    def _parent_of(self, stored: Stored) -> Stored | None:
        parent = stored.parent_commit_id
        return None if parent is None else self._checkpoints.get(parent)

    def _lineage(self, best: Stored) -> Sequence[Stored]:
        """Return the commits from the root, or from as far as was read, to ``best``."""
        lineage = [best]
        while not lineage[-1].root:
            parent = self._parent_of(lineage[-1])
            if parent is None:
                break
            lineage.append(parent)
        lineage.reverse()
        return lineage

    def _events_of(self, stored: Stored) -> list[tuple[Event, tuple[str, ...]]]:
        """Return the message events of a commit with their texts, each once: one that was stored twice says nothing new."""
        found = self._events.get((stored.generation, stored.commit_id), [])
        count, distinct = self._distinct.get(stored.commit_id, (0, []))
        if count != len(found):
            distinct = list({texts: (event, texts) for event, texts in _read(found)}.values())
            self._distinct[stored.commit_id] = len(found), distinct
        return distinct

    def _resolve(self) -> Stored | None:
        """Return the greatest commit that counts.

        Raises:
            CorruptSessionError: A checkpoint cannot be read or does not continue its parent.
        """
        if self._fault is None and not self._resolved:
            try:
                self._best = self._greatest()
            except CorruptSessionError as error:
                self._fault = error
            self._resolved = True
        self._check()
        return self._best

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault

    def _greatest(self) -> Stored | None:
        best: Stored | None = None
        counting: set[str] = set()
        loose: set[str] = set()  # what continues something that is gone
        for stored in sorted(self._checkpoints.values(), key=lambda stored: stored.revision):
            parent = self._parent_of(stored)
            if parent is not None and stored.timestamp <= parent.timestamp:
                self._ordered = False
            if not check_place(stored, parent, complete=self.complete):
                if stored.parent_commit_id is not None:
                    loose.add(stored.commit_id)
                continue
            if parent is not None and not stored.root and parent.commit_id in loose:
                loose.add(stored.commit_id)
            if stored.root or parent is None or parent.commit_id in counting:
                counting.add(stored.commit_id)
                if best is None or stored.rank > best.rank:
                    best = stored
        cut = max((self._checkpoints[one] for one in loose), key=lambda stored: stored.rank, default=None)
        self._cut = cut if cut is not None and best is not None and cut.rank > best.rank else None
        return best


def _ends(stored: Stored, start: int | None) -> bool:
    """Return whether what was committed before ``stored`` is not wanted, if messages are from the index ``start`` on."""
    return start is None or stored.root or 0 < start >= stored.start_sequence


def _read(found: Iterable[Event]) -> Iterable[tuple[Event, tuple[str, ...]]]:
    return ((event, texts_of(event)) for event in found)
