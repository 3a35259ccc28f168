"""Writing a commit: its messages, then its checkpoint in the place after the head, then a look at who else is there.

What holds where the service honours client tokens: of those who follow one head, one writes a checkpoint, and everybody learns whose it
is. Where it does not (a token expired, or means something else than it seems), two checkpoints may follow one head. Whoever finds
another beside its own then takes its own back and is refused, so that what was acknowledged before stays. That leaves a window: between
writing the second checkpoint and taking it back a reader may see it, and a process killed there leaves it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import chain, count, repeat
from typing import Final

from littleghost.errors import CorruptSessionError
from littleghost.sessions.agentcore.calls import Service
from littleghost.sessions.agentcore.checkpoints import decode
from littleghost.sessions.agentcore.claims import claim, token
from littleghost.sessions.agentcore.events import Event, identity
from littleghost.sessions.agentcore.history import History
from littleghost.sessions.agentcore.planning import Plan
from littleghost.sessions.agentcore.reading import PAUSES, VISIBLE, Place, Reader

__all__ = ["Committer"]

GONE: Final = 3.0
"""Seconds after which an event that neither a list nor GetEvent shows counts as deleted. Were it none the less there, it would be found
beside the commit that is then written, which would be taken back."""

LONG_AGO: Final = 60.0
"""Seconds before a commit from which on an event that is not shown counts as deleted at once."""

REMEMBERED: Final = 4096
"""How many deleted events are remembered, so that nobody waits for them."""

log = logging.getLogger("littleghost.sessions.agentcore")


class Committer:
    """Writes commits into one memory."""

    def __init__(self, service: Service, reader: Reader, memory_id: str) -> None:
        self._service = service
        self._reader = reader
        self._memory_id = memory_id
        self._deleted: dict[str, None] = {}

    def deleted(self, event_id: str) -> None:
        """Remember that an event is gone."""
        self._deleted[event_id] = None
        while len(self._deleted) > REMEMBERED:
            del self._deleted[next(iter(self._deleted))]

    async def commit(self, place: Place, plan: Plan, head: str | None) -> str | None:
        """Write a commit and return the id of its checkpoint's event; ``None`` where another commit took the place.

        Args:
            place: Where.
            plan: What.
            head: The event of the checkpoint that it follows.

        Raises:
            StoreUnavailableError: Whether it was written is unknown.
        """
        *messages, checkpoint = plan.requests
        written: list[str] = []
        for request in messages:
            answer = await self._service.create_event(place.actor, place.session, request, token())
            written += [] if answer is None else [str(answer["eventId"])]
        parent = plan.checkpoint.parent_commit_id
        began = time.monotonic()
        for number in count():
            answer = await self._service.create_event(
                place.actor,
                place.session,
                checkpoint,
                claim(self._memory_id, place.actor, place.session, parent, number),
            )
            try:
                taken, event_id = await self._taken(place, plan, head, answer, written, began)
            except BaseException:  # most of all a cancellation: who reads next has to see what was written
                if answer is not None:
                    self._reader.await_event(place, str(answer["eventId"]))
                raise
            if taken:
                return event_id
        raise AssertionError

    async def _taken(
        self,
        place: Place,
        plan: Plan,
        head: str | None,
        answer: Event | None,
        written: list[str],
        began: float,
    ) -> tuple[bool, str | None]:
        """Find out who has the place after ``head``: whether anybody has, and the id of the event if it is ours.

        The answer of the service is a hint. What counts is what is there.
        """
        mine, parent = plan.checkpoint.commit_id, plan.checkpoint.parent_commit_id
        told = None if answer is None else str(answer["eventId"])
        asked = time.monotonic()
        for pause in chain(PAUSES, repeat(PAUSES[-1])):
            followers = await self._followers(place, head, parent, mine, len(plan.requests))
            own = [event_id for event_id, commit in followers.items() if commit == mine]
            others = [event_id for event_id, commit in followers.items() if commit != mine]
            if own and not others:
                # Who deletes a session that is only being begun finds its messages, and no head whose loss would be noticed.
                if parent is None and not await self._are_there(place, written):
                    return True, await self._withdraw(place, own, mine)
                return True, own[0]
            if own:
                return True, await self._withdraw(place, own, mine)
            if told is not None and told in self._deleted:
                return False, None
            stored = None if told is None else await self._event(place, told)
            if stored is not None and identity(stored)[1] != mine:
                self._reader.await_event(place, str(told))
                return True, None
            # Of many that were deleted in one place, only the first is waited for.
            late = time.monotonic() - began >= GONE or _is_long_ago(told, plan)
            if stored is None and others and (told is None or told in followers or late):
                return True, None  # else it may be ours, not to be seen yet, and to be taken back
            if stored is None and late:
                return False, None
            if stored is not None and time.monotonic() - asked >= VISIBLE:
                log.warning("AgentCore Memory does not list event %s, which it has", told)
                return True, told
            await asyncio.sleep(pause)
        raise AssertionError

    async def _followers(
        self, place: Place, head: str | None, parent: str | None, mine: str, likely: int = 0
    ) -> dict[str, str]:
        """Return the checkpoints that follow the commit ``parent``: their commits by event id."""
        newer = await self._reader.newer(place, head, likely=likely)
        if newer is None:
            history = await self._reader.read(place, _never, _as_it_is, contested=True)
            followers = {stored.event_id: stored.commit_id for stored in history.children(parent)}
            if parent is not None and history.find(parent) is None:
                followers[""] = (
                    ""  # what it follows was deleted meanwhile, which is as good as another's commit
                )
            return followers
        return {
            event_id: commit or ""
            for event_id, commit in newer.items()
            if commit == mine or await self._parent(place, event_id) == parent
        }

    async def _are_there(self, place: Place, written: list[str]) -> bool:
        """Tell whether the events of a commit's messages are all there, once its checkpoint is."""
        return not written or set(written).issubset((await self._reader.event_ids(place))[1])

    async def _parent(self, place: Place, event_id: str) -> str | None:
        """Return the commit that a checkpoint follows, ``event_id`` where there is none to be read."""
        stored: Event | None = None
        for pause in PAUSES[:4]:
            stored = await self._event(place, event_id)
            if stored is not None:
                break
            await asyncio.sleep(pause)  # a list has it, so it is there, or was deleted just now
        try:
            return event_id if stored is None else decode(stored).parent_commit_id
        except CorruptSessionError:
            return event_id

    async def _event(self, place: Place, event_id: str) -> Event | None:
        return await self._service.get_event(place.actor, place.session, event_id)

    async def _withdraw(self, place: Place, own: list[str], mine: str) -> str | None:
        """Take a checkpoint back that is not alone in its place, unless others have built on it; return its event if it stays."""
        if any(commit != mine for commit in (await self._followers(place, own[0], mine, "")).values()):
            log.error(
                "two commits of one session follow the same one in AgentCore Memory, and others follow both: "
                "it did not honour a client token. Event %s may be missing from the history.",
                own[0],
            )
            return own[0]
        log.warning("AgentCore Memory did not honour a client token; event %s is taken back", own[0])
        for event_id in own:
            await self._service.delete_event(place.actor, place.session, event_id)
            self.deleted(event_id)
        return None


async def _as_it_is(history: History) -> History:
    return history


def _is_long_ago(event_id: str | None, plan: Plan) -> bool:
    """Tell whether an event is much older than a commit; its id begins with the milliseconds that it is stamped with."""
    stamp = (event_id or "").partition("#")[0]
    if not (stamp.isascii() and stamp.isdigit()):
        return False
    return plan.requests[-1]["eventTimestamp"].timestamp() - int(stamp) / 1000 > LONG_AGO


def _never(_: object) -> bool:
    return False
