"""What the emulator holds: memories, actors, sessions and their events, in the order of their ids, until they expire."""

from __future__ import annotations

import math
import random
import uuid
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from littleghost.emulators.agentcore.refusals import not_found
from littleghost.emulators.agentcore.stored import StoredEvent
from littleghost.errors import ConfigurationError

__all__ = ["DAY", "DEFAULT_MEMORY", "DEFAULT_RETENTION", "Memory", "SessionLog", "Storage"]

DAY = 86_400.0
DEFAULT_MEMORY = "demo_memory-abcdefghij"
"""The memory that an emulator has where none is named."""
DEFAULT_RETENTION = 90
"""Days that the events of a memory are kept where nothing else is said."""


@dataclass(slots=True)
class SessionLog:
    """The events of one session.

    Attributes:
        created: When its first event was written, in seconds of the clock.
        events: Its events by id.
        ids: Their ids, sorted.
        soonest: When the first of them expires.
        emptied: When the last of them went, while there is none.
    """

    created: float
    events: dict[str, StoredEvent] = field(default_factory=dict[str, StoredEvent])
    ids: list[str] = field(default_factory=list[str])
    soonest: float = math.inf
    emptied: float | None = None

    def add(self, event: StoredEvent) -> None:
        """Add an event, in place of the one with its id."""
        if event.id not in self.events:
            insort(self.ids, event.id)
        self.events[event.id] = event
        self.soonest = min(self.soonest, event.expires)
        self.emptied = None

    def remove(self, id: str, at: float) -> None:
        """Remove an event that is there."""
        del self.events[id]
        del self.ids[bisect_left(self.ids, id)]
        if not self.ids:
            self.emptied = at
            self.soonest = math.inf

    def gone(self, now: float) -> bool:
        """Return whether the session is no longer there: a day after its last event."""
        return self.emptied is not None and self.emptied + DAY <= now

    def expire(self, now: float) -> None:
        """Remove what has expired."""
        if now < self.soonest:
            return
        gone = [event for event in self.events.values() if event.expires <= now]
        for event in sorted(gone, key=lambda event: event.expires):
            self.remove(event.id, event.expires)
        self.soonest = min((event.expires for event in self.events.values()), default=math.inf)


@dataclass(slots=True)
class Memory:
    """One memory.

    Attributes:
        id: Its id.
        retention: Days that an event is kept, counted from when it was written.
        actors: Its sessions by actor and session id.
    """

    id: str
    retention: float
    actors: dict[str, dict[str, SessionLog]] = field(default_factory=dict[str, dict[str, SessionLog]])


class Storage:
    """All memories. It knows nothing of threads; whoever calls holds the lock.

    Args:
        auto_create: Whether a memory comes into being when it is first asked for.
        random: Where the random part of event ids comes from.
    """

    def __init__(self, *, auto_create: bool, random: random.Random) -> None:
        self._auto_create = auto_create
        self._random = random
        self.memories: dict[str, Memory] = {}

    def register(self, id: str, retention: float) -> Memory:
        """Add a memory, or give one that is there another retention, for the events to come.

        Raises:
            ConfigurationError: No memory can have that retention.
        """
        if isinstance(retention, bool) or not 3 <= retention <= 3650:
            raise ConfigurationError(
                f"memories: {id} has a retention of {retention} days; it must be 3 to 3650"
            )
        memory = self.memories.get(id)
        if memory is None:
            memory = self.memories[id] = Memory(id, retention)
        memory.retention = retention
        return memory

    def memory(self, id: str) -> Memory:
        """Return a memory by its id or its ARN.

        Raises:
            Refusal: There is none.
        """
        name = id.rpartition(":memory/")[2]
        memory = self.memories.get(name)
        if memory is None:
            if not self._auto_create:
                raise not_found(f"Memory not found: {name}")
            memory = self.register(name, DEFAULT_RETENTION)
        return memory

    def log(self, memory: Memory, actor: str, session: str, now: float) -> SessionLog | None:
        """Return the events of a session as they are at ``now``; ``None`` where there is no such session."""
        sessions = memory.actors.get(actor)
        log = None if sessions is None else sessions.get(session)
        if log is not None:
            log.expire(now)
        return log

    def add(self, event: StoredEvent, now: float) -> None:
        """Add an event to its memory, which is there."""
        memory = self.memories[event.memory]
        log = self.log(memory, event.actor, event.session, now)
        if log is None or log.gone(now):
            log = memory.actors.setdefault(event.actor, {})[event.session] = SessionLog(now)
        log.add(event)

    def new_id(self, memory: Memory, actor: str, session: str, milliseconds: int) -> str:
        """Return an event id that is not taken: the zero-padded milliseconds of the event's timestamp, and eight random digits."""
        log = memory.actors.get(actor, {}).get(session)
        while True:
            id = f"{milliseconds:019d}#{self._random.getrandbits(32):08x}"
            if log is None or id not in log.events:
                return id

    def new_session(self, memory: Memory, actor: str) -> str:
        """Return a session id that the actor does not have: a UUID."""
        sessions = memory.actors.get(actor, {})
        while True:
            id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
            if id not in sessions:
                return id

    def sessions(self, memory: Memory, actor: str, now: float) -> dict[str, SessionLog]:
        """Return the sessions of an actor at ``now``, those included that are empty and not gone yet."""
        sessions = memory.actors.get(actor)
        if sessions is None:
            return {}
        for id, log in list(sessions.items()):
            log.expire(now)
            if log.gone(now):
                del sessions[id]
        if not sessions:
            del memory.actors[actor]
        return sessions

    def events(self, now: float) -> Iterator[StoredEvent]:
        """Yield every event there is at ``now``, of each session by id."""
        for memory in self.memories.values():
            for sessions in memory.actors.values():
                for log in sessions.values():
                    log.expire(now)
                    for id in log.ids:
                        yield log.events[id]
