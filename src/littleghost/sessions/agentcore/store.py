"""The store, and what each of its operations asks of the service."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from littleghost import data
from littleghost.errors import (
    ConfigurationError,
    ConflictError,
    CorruptSessionError,
    DataError,
    SessionTooLargeError,
    StoreUnavailableError,
)
from littleghost.message import Message
from littleghost.sessions.agentcore.calls import Service
from littleghost.sessions.agentcore.checkpoints import Facts, Stored
from littleghost.sessions.agentcore.claims import attempt_of, digest_in, same_commit, token
from littleghost.sessions.agentcore.committing import Committer
from littleghost.sessions.agentcore.history import Head, History
from littleghost.sessions.agentcore.naming import check_actor, safe_id
from littleghost.sessions.agentcore.planning import Plan, plan
from littleghost.sessions.agentcore.projection import project
from littleghost.sessions.agentcore.reading import Place, Reader
from littleghost.sessions.agentcore.rooting import is_due
from littleghost.sessions.commits import Found, admit, check_limit, window
from littleghost.sessions.contract import ANY, Commit, Lease, Page, Revision, Snapshot
from littleghost.sessions.recording import RecordStore
from littleghost.sessions.records import Record, check_key

__all__ = ["AgentCoreMemoryStore", "StoredSession"]

DECODE_IN_THREAD: Final = 1_000_000
"""From this many bytes on a session is decoded in a thread and not on the event loop."""

RACES: Final = 30
"""How often a write is tried that others overtake, though none of them makes it a conflict."""

HEADS: Final = 10_000
"""How many sessions' heads are kept in mind."""

DELETIONS: Final = 4
"""How many events are deleted at once; the service takes five a second of one session."""

SHORTEST_RETENTION: Final = 3 * 86_400.0
"""Seconds that every memory keeps an event at least."""

SWEEPS: Final = 10
"""How often a session is looked through again for events that were written while it was being deleted."""


EMPTY: Final = Raw(b"{}")


class StoredSession(Struct, frozen=True, kw_only=True):
    """A session as the service lists it, which knows pseudonyms only.

    Attributes:
        safe_id: `AgentCoreMemoryStore.safe_id` of the session's id.
        created_at: When its first event was written, seconds since the epoch.
    """

    safe_id: str
    created_at: float


class AgentCoreMemoryStore(RecordStore):
    """Keeps sessions in Amazon Bedrock AgentCore Memory, in the format of LittleGhost for Ruby.

    Needs an actor: ``actor_id=None`` is refused. A commit is at least two calls that write, which the service charges for, so a run commits
    the results of one assistant message together. Calls run in threads and never block the event loop. Safe to use from several threads
    and event loops.

    **What leaves the process.** Actor and session ids go as pseudonyms, see `safe_id`. Messages go whole, but for reasoning: texts,
    attachments, calls and results of tools, metadata; and so do state and metadata of the session. System and transient messages stay,
    where they come through a `Session`. `project_conversation` sends the visible text of all that it is given, system messages too.

    **Two writers.** The service has no conditional write; the place after a commit is claimed by a client token, and docs/agentcore.md
    says what that guarantees.

    Args:
        memory_id: The memory.
        client: What has boto3's methods ``create_event``, ``list_events``, ``get_event``, ``delete_event`` and ``list_sessions``. boto3 is
            imported only if none is given.
        client_factory: Makes a client, first where none is given, and once more when its credentials have expired.
        region: Of the client that is made otherwise; that of the environment unless given.
        clock: Seconds since the epoch, for what events are stamped with.
        id_factory: Makes the ids of generations, and of commits that come without one; unique each.
        retention: How long the memory keeps an event, its *event expiry duration*; seconds or a ``timedelta``. A session that is written to
            then outlives it, for half-way all is written anew. Without it, a session is lost so long after its generation began.

    Raises:
        ConfigurationError: An argument makes no sense.
    """

    capabilities = frozenset({"commit_ids", "delete", "fork", "revisions", "tail"})
    granularity = "batch"

    def __init__(
        self,
        memory_id: str,
        *,
        client: Any = None,
        client_factory: Callable[[], Any] | None = None,
        region: str | None = None,
        clock: Callable[[], float] = time.time,
        id_factory: Callable[[], str] = lambda: str(uuid.uuid4()),
        retention: float | timedelta | None = None,
    ) -> None:
        if not isinstance(memory_id, str) or not memory_id:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError("memory_id must be the id or the ARN of a memory")
        if client_factory is not None and not callable(client_factory):
            raise ConfigurationError("client_factory must be a function that makes a client")
        self.memory_id = memory_id
        """The memory."""
        self.retention = _seconds(retention)
        """Seconds that the memory keeps an event; ``None`` where that is not known."""
        self._clock = clock
        self._new_id = id_factory
        self._service = Service(memory_id, client=client, client_factory=client_factory, region=region)
        self._reader = Reader(self._service)
        self._committer = Committer(self._service, self._reader, memory_id)
        self._heads: OrderedDict[Place, Head] = OrderedDict()

    @staticmethod
    def safe_id(value: object) -> str:
        """Return the pseudonym that stands for an id in the service: ``lg_`` and the SHA-256 of its text in hexadecimal.

        It keeps an id out of AWS's logs and within its alphabet. It does not anonymise: the same id always has the same pseudonym, which
        can be linked, and whoever guesses an id, as of a number or an e-mail address, can check the guess.
        """
        return safe_id(str(value))

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        place = _place(check_key(id, actor_id))
        return await self._reader.read(place, _all_of_it, partial(self._loaded, place))

    async def _loaded(self, place: Place, history: History) -> Snapshot | None:
        head = history.head
        self._keep(place, head)
        if head is None:
            return None
        stored = head.checkpoint
        if stored.serialized_bytes + stored.size > DECODE_IN_THREAD:
            return await self._service.in_thread(_snapshot, history, stored)
        return _snapshot(history, stored)

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        place = _place(check_key(id, actor_id))
        check_limit(limit, before)

        def enough(history: History) -> bool:
            if not history.settled():
                return False
            head = history.head
            return head is None or history.settled(window(head.checkpoint.message_count, limit, before)[0])

        async def take(history: History) -> Page[Message]:
            head = history.head
            start, end = window(head.checkpoint.message_count if head else 0, limit, before)
            if start == end:
                return Page(items=())
            return Page(items=history.messages(start, end), cursor=start or None)

        return await self._reader.read(place, enough, take)

    async def _write(
        self,
        key: tuple[str | None, str],
        commit: Record,
        expected_count: int | None,
        expected_revision: str | Revision | None,
        lease: Lease | None,
    ) -> Commit:
        if lease is not None:
            raise self._cannot("lease")
        place = _place(key)
        async with self._hold(("commit", place), key[1], None):
            for _ in range(RACES):
                head, newest = await self._head(
                    place, afresh=commit.kind == "replace" and expected_revision is ANY
                )
                answer = await self._admitted(place, commit, head, expected_count, expected_revision)
                if answer is not None:
                    return answer
                drawn = await self._plan(place, commit, head, newest)
                if drawn is None:
                    self._heads.pop(place, None)
                    continue
                followed = head.checkpoint if head else newest
                event_id = await self._committer.commit(place, drawn, followed.event_id if followed else None)
                if event_id is not None:
                    return self._committed(place, head, drawn, event_id)
                self._heads.pop(place, None)
        raise StoreUnavailableError(
            f"other writers of session {key[1]!r} were faster {RACES} times; try again"
        )

    async def _head(self, place: Place, *, afresh: bool) -> tuple[Head | None, Stored | None]:
        """Return the head, or, to begin ``afresh`` where the session has no root any more, the newest checkpoint in its stead."""
        known = self._heads.get(place)
        if (
            known is not None
            and await self._reader.newer(place, known.checkpoint.event_id) == {}
            and await self._is_rooted(place, known)
        ):
            return known, None

        async def take(history: History) -> tuple[Head | None, Stored | None]:
            try:
                head = history.head
            except CorruptSessionError:
                if not afresh or not history.complete or history.newest is None:
                    raise
                return None, history.newest
            self._keep(place, head)
            return head, None

        return await self._reader.read(place, _all_of_it, take)

    async def _is_rooted(self, place: Place, head: Head) -> bool:
        """Tell whether the root of a head that is known is still there; without it nobody could read what follows.

        The service is asked only where it may have expired.
        """
        root = head.root
        if root is None or self._clock() - root.timestamp < SHORTEST_RETENTION:
            return True
        return await self._service.get_event(place.actor, place.session, root.event_id) is not None

    async def _admitted(
        self,
        place: Place,
        commit: Record,
        head: Head | None,
        expected_count: int | None,
        expected_revision: str | Revision | None,
    ) -> Commit | None:
        """Decide about a commit; see `admit`. Earlier ones are only looked for where it matters, for that may take many calls."""

        def decide(found: Found | None) -> Commit | None:
            return admit(
                commit,
                _answer(head.checkpoint) if head else None,
                expected_count=expected_count,
                expected_revision=expected_revision,
                find=lambda _: found,
            )

        if commit.commit_id is None or head is None:
            return decide(None)
        try:
            if decide(None) is None and expected_revision is not ANY:
                return None
        except ConflictError:
            pass
        return decide(await self._earlier(place, commit.commit_id, expected_revision))

    async def _earlier(
        self, place: Place, commit_id: str, expected_revision: str | Revision | None
    ) -> Found | None:
        """Look for a commit that was made before under an id. One that follows a certain revision is newer than that."""
        behind = expected_revision.partition("-")[2] if isinstance(expected_revision, str) else None

        def found(history: History) -> Stored | None:
            for stored in history.checkpoints():
                if same_commit(stored.commit_id, commit_id) and history.answered(stored.commit_id):
                    return stored
            return None

        def enough(history: History) -> bool:
            if not history.settled():
                return False
            return found(history) is not None or (behind is not None and history.answered(behind) is not None)

        async def take(history: History) -> Found | None:
            stored = found(history)
            return None if stored is None else (digest_in(stored.commit_id), _answer(stored))

        return await self._reader.read(place, enough, take)

    async def _plan(
        self, place: Place, commit: Record, head: Head | None, newest: Stored | None
    ) -> Plan | None:
        """Return the events of a commit; ``None`` where it has been overtaken already.

        Where a new root is due it brings all messages along.
        """
        now = self._clock()

        def drawn(carried: Sequence[Message] | None) -> Plan:
            continued = head if commit.kind == "append" and carried is None else None
            generation = continued.checkpoint.generation if continued else self._new_id()
            return plan(
                commit.kind,
                commit.messages,
                data.unpack(commit.state),
                data.unpack(commit.metadata),
                head=head or (Head(checkpoint=newest) if newest else None),
                migrate=carried,
                commit_id=attempt_of(commit, self._new_id),
                generation=generation,
                now=now,
            )

        legacy = head is not None and head.checkpoint.version == 4
        if commit.kind == "replace" or head is None or not (legacy or is_due(head, now, self.retention)):
            return drawn(None)
        carried = await self._reader.read(place, _all_of_it, partial(_messages_at, head.checkpoint))
        if carried is None:
            return None
        try:
            return drawn(carried)
        except (DataError, SessionTooLargeError):
            # Written anew, messages may be a little longer than they are, for an id of a commit is in each. Better an old root than none.
            if legacy:
                raise
            return drawn(None)

    def _committed(self, place: Place, head: Head | None, drawn: Plan, event_id: str) -> Commit:
        """Take in that a commit was written, and return the answer."""
        checkpoint, request = drawn.checkpoint, drawn.requests[-1]
        facts = {name: getattr(checkpoint, name) for name in Facts.__struct_fields__}
        stored = Stored(
            **facts,
            raw_state=EMPTY,
            raw_metadata=EMPTY,
            event_id=event_id,
            timestamp=request["eventTimestamp"].timestamp(),
            size=len(request["payload"][0]["blob"].encode()),
            version=5,
        )
        continued = head if head is not None and not stored.root else None
        self._keep(
            place,
            Head(
                checkpoint=stored,
                root=continued.root if continued else stored,
                lineage_commits=1 + ((continued.lineage_commits or 0) if continued else 0),
                lineage_bytes=stored.size + ((continued.lineage_bytes or 0) if continued else 0),
            ),
        )
        return _answer(stored)

    def _keep(self, place: Place, head: Head | None) -> None:
        """Keep a head in mind, without what it may weigh."""
        if head is None:
            self._heads.pop(place, None)
            return
        root = None if head.root is None else _light(head.root)
        self._heads[place] = msgspec.structs.replace(head, checkpoint=_light(head.checkpoint), root=root)
        self._heads.move_to_end(place)
        while len(self._heads) > HEADS:
            self._heads.popitem(last=False)

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        """Delete every event of the session, projections of it too; return whether there was one.

        Oldest first, so that what is left when it is interrupted is never taken for a session: to load it is a `CorruptSessionError` then,
        and to delete it once more goes on. Takes a call for each event, and the service allows five a second.

        A session that somebody begins anew meanwhile may be deleted with it, also where that first commit was acknowledged: nothing tells
        its events from those that were there. Who commits after this has returned loses nothing.

        Raises:
            StoreUnavailableError: Some are left; the error says how many.
        """
        key = check_key(id, actor_id)
        place = _place(key)
        async with self._hold(("commit", place), id, None):
            self._heads.pop(place, None)
            self._reader.forget(place)
            there = False
            for _ in range(SWEEPS):
                checkpoints, others = await self._reader.event_ids(place)
                there = there or bool(checkpoints)
                if not checkpoints and not others:
                    return there
                # Checkpoints one by one, for with the oldest there and a later one gone this would look like an earlier state of
                # the session; and the newest last of all, for as long as it is there this does not look like no session.
                steps = [[one] for one in checkpoints[:-1]]
                steps += [others[start : start + DELETIONS] for start in range(0, len(others), DELETIONS)]
                await self._delete(place, [*steps, checkpoints[-1:]])
        raise StoreUnavailableError(
            f"session {id!r} was written to while it was being deleted, again and again; stop its writers"
        )

    async def _delete(self, place: Place, steps: Sequence[Sequence[str]]) -> None:
        """Delete events, those of a step at once, and one step after the other."""
        left = sum(map(len, steps))
        for step in steps:
            results = await asyncio.gather(
                *(self._service.delete_event(place.actor, place.session, event_id) for event_id in step),
                return_exceptions=True,
            )
            for event_id, result in zip(step, results, strict=True):
                if result is None:
                    self._committer.deleted(event_id)
                    left -= 1
            failed = next((result for result in results if result is not None), None)
            if isinstance(failed, ConfigurationError):
                raise failed  # no repetition helps
            if failed is not None:
                raise StoreUnavailableError(
                    f"{left} events of the session are left: {failed}. Delete it again to go on.", left=left
                ) from failed

    async def project_conversation(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        metadata: Mapping[str, Any],
        actor_id: str | None = None,
    ) -> None:
        """Publish the visible text of ``messages`` as events of their own, for the memory to extract from and others to read.

        Reasoning is left out. System and transient messages are not: leave out what must stay. More than fits one event becomes several.

        Args:
            id: The session's id.
            messages: What to publish.
            metadata: Up to five links, sent where they are given: ``little_ghost_parent_link``, ``little_ghost_conversation_id``,
                ``little_ghost_subagent_id``, ``little_ghost_kind`` and ``little_ghost_turn``.
            actor_id: Whose session it is.

        Raises:
            DataError: A link has characters that the service does not take, or more than 256. Nothing was sent.
        """
        place = _place(check_key(id, actor_id))
        for request in project(messages, metadata, self._clock()):
            await self._service.create_event(place.actor, place.session, request, token())

    async def stored_sessions(
        self, *, actor_id: str, limit: int = 100, cursor: str | None = None
    ) -> Page[StoredSession]:
        """Return a page of the sessions that the service has of an actor, of ours and of others, in the service's order.

        Ids are not stored, only pseudonyms: compare with `safe_id` of the ids that you know.

        Args:
            actor_id: Whose.
            limit: How many at most, up to 100.
            cursor: The one of the page before.
        """
        check_limit(limit)
        found, following = await self._service.list_sessions(
            safe_id(check_actor(actor_id)), limit=min(limit, 100), token=cursor
        )
        return Page(
            items=tuple(
                StoredSession(safe_id=str(one["sessionId"]), created_at=one["createdAt"].timestamp())
                for one in found
            ),
            cursor=following,
        )

    async def aclose(self) -> None:
        """Wait for calls that are under way. A client that was passed in stays open."""
        await self._service.aclose()


def _place(key: tuple[str | None, str]) -> Place:
    actor_id, id = key
    return Place(safe_id(check_actor(actor_id)), safe_id(id))


async def _messages_at(stored: Stored, history: History) -> tuple[Message, ...] | None:
    """Return all messages, ``None`` where the head is another one by now."""
    head = history.head
    return history.messages() if head and head.checkpoint.commit_id == stored.commit_id else None


def _snapshot(history: History, stored: Stored) -> Snapshot:
    return Snapshot(
        messages=history.messages(),
        state=stored.state,
        metadata=stored.metadata,
        revision=_answer(stored).revision,
        count=stored.message_count,
    )


def _answer(stored: Stored) -> Commit:
    return Commit(revision=f"{stored.revision}-{stored.commit_id}", count=stored.message_count)


def _light(stored: Stored) -> Stored:
    return msgspec.structs.replace(stored, raw_state=EMPTY, raw_metadata=EMPTY)


def _all_of_it(history: History) -> bool:
    return history.settled(0)


def _seconds(retention: float | timedelta | None) -> float | None:
    value: Any = retention.total_seconds() if isinstance(retention, timedelta) else retention
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigurationError("retention must be a timedelta, or a number of seconds")
    if value < SHORTEST_RETENTION:
        raise ConfigurationError("retention must be 3 days at least, as of every memory: timedelta(days=90)")
    return float(value)
