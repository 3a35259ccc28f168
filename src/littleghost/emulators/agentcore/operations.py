"""What the six operations do."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from littleghost.emulators.agentcore.filters import event_filter
from littleghost.emulators.agentcore.idempotency import Ledger
from littleghost.emulators.agentcore.pages import Page, Position, event_page, id_page, open_token, token_for
from littleghost.emulators.agentcore.recording import Call
from littleghost.emulators.agentcore.refusals import invalid, not_found
from littleghost.emulators.agentcore.shapes import milliseconds
from littleghost.emulators.agentcore.storage import DAY, Memory, SessionLog, Storage
from littleghost.emulators.agentcore.stored import MAIN, StoredEvent, encode

__all__ = ["Behaviour", "Operations"]

DEFAULT_RESULTS = 20
JSON_LIMIT = 100_000
"""Bytes of a ``json`` payload; the model's documentation says 100 KB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Behaviour:
    """What is not documented or can be had in several ways; see `AgentCoreEmulator`."""

    scan: bool = True
    oldest_first: bool = False
    permuted: bool = False
    lag: float = 0.0
    filtered_lag: float = 0.0
    get_lag: float = 0.0
    echo: bool = False
    event_limit: int = 10 * 1024 * 1024
    whole_body: bool = True


class Operations:
    """The operations over a storage. It knows nothing of threads; whoever calls holds the lock.

    Attributes:
        changes: How often something was written or deleted.
    """

    def __init__(self, storage: Storage, ledger: Ledger, behaviour: Behaviour, random: random.Random) -> None:
        self.storage = storage
        self.ledger = ledger
        self.changes = 0
        self._behaviour = behaviour
        self._random = random
        self._perform: dict[str, Callable[[Call, int], bytes]] = {
            "CreateEvent": self._create,
            "GetEvent": self._get,
            "ListEvents": self._list_events,
            "DeleteEvent": self._delete,
            "ListSessions": self._list_sessions,
            "ListActors": self._list_actors,
        }

    def perform(self, call: Call, size: int) -> bytes:
        """Carry out a call whose parameters keep to the model, and return the body of its answer.

        Args:
            call: The call.
            size: The bytes of its body.

        Raises:
            Refusal: It cannot be done.
        """
        return self._perform[call.operation](call, size)

    def _create(self, call: Call, size: int) -> bytes:
        params, now = call.params, call.at
        memory = self.storage.memory(params["memoryId"])
        self._check_sizes(params, size)
        key = self.ledger.key(params, memory.id, call.caller)
        earlier = None if key is None else self.ledger.find(key, params, now)
        if earlier is not None:
            call.replayed = True
            event = earlier.event
            if self._behaviour.echo:
                event = self._event(memory, params, event.session, now).under(event.id)
        else:
            session = params.get("sessionId") or self.storage.new_session(memory, params["actorId"])
            event = self._event(memory, params, session, now)
            self._write(event, now)
            if key is not None:
                self.ledger.remember(key, params, event, now)
            if call.fault == "duplicate":
                event = self._event(memory, params, session, now)
                self._write(event, now)
        call.event_id = event.id
        return b'{"event":%s}' % event.wire()

    def _event(self, memory: Memory, params: Mapping[str, Any], session: str, now: float) -> StoredEvent:
        stamp = milliseconds(params["eventTimestamp"])
        content: dict[str, Any] = {
            "memoryId": memory.id,
            "actorId": params["actorId"],
            "sessionId": session,
            "eventId": self.storage.new_id(memory, params["actorId"], session, stamp),
            "eventTimestamp": stamp / 1000 if stamp % 1000 else stamp // 1000,
            "payload": params["payload"],
            "branch": params.get("branch") or {"name": MAIN},
        }
        if params.get("metadata"):
            content["metadata"] = params["metadata"]
        return StoredEvent.of(content, written=now, expires=now + memory.retention * DAY)

    def _write(self, event: StoredEvent, now: float) -> None:
        self.storage.add(event, now)
        self.changes += 1

    def _check_sizes(self, params: Mapping[str, Any], size: int) -> None:
        for number, item in enumerate(params["payload"], 1):
            document = item.get("json")
            if document is not None and len(encode(document["content"])) > JSON_LIMIT:
                path = f"payload.{number}.member.json.content"
                text = f"Member must have at most {JSON_LIMIT} bytes"
                raise invalid(f"Value at '{path}' failed to satisfy constraint: {text}", (path, text))
        limit = self._behaviour.event_limit
        if size > limit and (self._behaviour.whole_body or len(encode(params["payload"])) > limit):
            text = f"The event is larger than {limit} bytes"
            raise invalid(text, ("payload", text))

    def _get(self, call: Call, _size: int) -> bytes:
        event = self._find(call)
        if event.written + self._behaviour.get_lag > call.at:
            raise not_found(f"Unable to find event with id {event.id}")
        return b'{"event":%s}' % event.wire()

    def _delete(self, call: Call, _size: int) -> bytes:
        event = self._find(call)
        log = self._log(call)
        if log is not None:
            log.remove(event.id, call.at)
        self.changes += 1
        return b'{"eventId":%s}' % encode(event.id)

    def _find(self, call: Call) -> StoredEvent:
        id = call.params["eventId"]
        log = self._log(call)
        event = None if log is None else log.events.get(id)
        if event is None:
            raise not_found(f"Unable to find event with id {id}")
        call.event_id = id
        return event

    def _log(self, call: Call) -> SessionLog | None:
        params = call.params
        memory = self.storage.memory(params["memoryId"])
        return self.storage.log(memory, params["actorId"], params["sessionId"], call.at)

    def _list_events(self, call: Call, _size: int) -> bytes:
        params, behaviour = call.params, self._behaviour
        log = self._log(call)
        filter: dict[str, Any] = params.get("filter") or {}
        visible_until = call.at - (behaviour.filtered_lag if filter else behaviour.lag)
        token, start = _tokens(call, "actorId", "sessionId", "filter")
        include = params.get("includePayloads")
        page = event_page(
            log,
            most=params.get("maxResults") or DEFAULT_RESULTS,
            start=start,
            mix=self._random.getrandbits(31) + 1 if behaviour.permuted else 0,
            oldest_first=behaviour.oldest_first,
            seen=lambda event: event.written <= visible_until,
            matches=event_filter(filter, log) if filter else None,
            scan=behaviour.scan,
            payload=include is None or include,
            token=token,
        )
        if call.fault == "dropped_event" and page.entries:
            del page.entries[self._random.randrange(len(page.entries))]
        return _faulty(page, call, token).body("events")

    def _list_sessions(self, call: Call, _size: int) -> bytes:
        params = call.params
        memory = self.storage.memory(params["memoryId"])
        token, start = _tokens(call, "actorId", "filter")
        filter: dict[str, Any] = params.get("filter") or {}
        busy = filter.get("eventFilter") == "HAS_EVENTS"
        sessions = self.storage.sessions(memory, params["actorId"], call.at)

        def summary(entry: tuple[str, SessionLog]) -> bytes:
            created = milliseconds(entry[1].created) / 1000
            return encode({"sessionId": entry[0], "actorId": params["actorId"], "createdAt": created})

        page = id_page(
            [(id, (id, log)) for id, log in sorted(sessions.items()) if log.ids or not busy],
            most=params.get("maxResults") or DEFAULT_RESULTS,
            start=start,
            encode=summary,
            token=token,
        )
        return _faulty(page, call, token).body("sessionSummaries")

    def _list_actors(self, call: Call, _size: int) -> bytes:
        memory = self.storage.memory(call.params["memoryId"])
        token, start = _tokens(call)
        page = id_page(
            [
                (actor, actor)
                for actor in sorted(memory.actors)
                if self.storage.sessions(memory, actor, call.at)
            ],
            most=call.params.get("maxResults") or DEFAULT_RESULTS,
            start=start,
            encode=lambda actor: encode({"actorId": actor}),
            token=token,
        )
        return _faulty(page, call, token).body("actorSummaries")


def _tokens(call: Call, *bound: str) -> tuple[Callable[[Position], str], Position | None]:
    """Return what makes the tokens of a list, and the position of the one it was asked with."""
    names = ("memoryId", *bound)
    content = [call.operation, *(call.params.get(name) for name in names)]
    binding = json.dumps(content, sort_keys=True).encode()
    return (lambda position: token_for(position, binding)), open_token(call.params.get("nextToken"), binding)


def _faulty(page: Page, call: Call, token: Callable[[Position], str]) -> Page:
    if call.fault == "repeat_token":
        page.token = call.params["nextToken"]
    elif call.fault == "dropped_page":
        page.entries.clear()
    elif call.fault == "extra_page" and page.token is None:
        end = token(Position(""))
        page.token = (
            None if call.params.get("nextToken") == end else end
        )  # one page too many, and not any number
    return page
