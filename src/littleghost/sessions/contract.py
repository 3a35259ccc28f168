"""The contract of a session store.

Who writes: one commit at a time for each session. `SessionStore.append` compares the message count, and the revision where the store has
them, in the same atomic step that writes; a mismatch is a `ConflictError` and changes nothing. What a reader may assume: `load` gives the
snapshot before a commit or after it, never one between. What a crash leaves: every commit that was acknowledged, whole.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar, cast

from msgspec import Struct, field

from littleghost import data, telemetry, transcript
from littleghost.content import Prepared
from littleghost.errors import (
    ConfigurationError,
    ConflictError,
    DataError,
    ProtocolError,
    SessionBusyError,
    SessionNotFoundError,
    UnsupportedError,
)
from littleghost.locks import KeyedLocks
from littleghost.message import Message, pack_messages

__all__ = [
    "ALL_ACTORS",
    "ANY",
    "AllActors",
    "Commit",
    "Damage",
    "Lease",
    "Page",
    "SessionInfo",
    "SessionLimits",
    "SessionOrder",
    "SessionStore",
    "Snapshot",
    "Statistics",
    "Verified",
]

Item = TypeVar("Item")


class Revision(Enum):
    """A revision that is no revision."""

    ANY = "any"

    def __repr__(self) -> str:
        return self.name


ANY: Final = Revision.ANY
"""As ``expected_revision``: do not check."""


class AllActors(Enum):
    """An actor that is no actor."""

    ALL_ACTORS = "all actors"

    def __repr__(self) -> str:
        return self.name


ALL_ACTORS: Final = AllActors.ALL_ACTORS
"""As ``actor_id`` where a store is looked through: of every actor. For those who operate a store, never for a user of it."""

SessionOrder = Literal["id", "updated"]
"""Of a list of sessions: by actor and id, or those that were written last first."""

COMMIT_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


class Snapshot(Struct, frozen=True, kw_only=True, metaclass=Prepared):
    """A session as a store holds it.

    Attributes:
        messages: The stored messages, oldest first.
        state: The application's state.
        metadata: The session's metadata.
        revision: An opaque string that changes with every commit; ``None`` in a store without revisions.
        count: How many messages are stored.
    """

    messages: tuple[Message, ...] = ()
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    revision: str | None = None
    count: int = 0

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            messages: Sequence[Message] = (),
            state: Mapping[str, Any] | None = None,
            metadata: Mapping[str, Any] | None = None,
            revision: str | None = None,
            count: int | None = None,
        ) -> None: ...

    @classmethod
    def prepare(
        cls,
        *,
        messages: Any = (),
        state: Any = None,
        metadata: Any = None,
        revision: Any = None,
        count: Any = None,
    ) -> dict[str, Any]:
        """Return the fields for the arguments of the constructor; ``count`` is that of ``messages`` unless given."""
        if isinstance(messages, list):
            messages = tuple(cast("list[Any]", messages))
        return {
            "messages": messages,
            "state": {} if state is None else state,
            "metadata": {} if metadata is None else metadata,
            "revision": revision,
            "count": len(messages) if count is None else count,
        }


class Commit(Struct, frozen=True, kw_only=True):
    """What a store answers to a write.

    Attributes:
        revision: The session's revision now; ``None`` in a store without revisions.
        count: How many messages are stored now.
    """

    revision: str | None
    count: int


class SessionInfo(Struct, frozen=True, kw_only=True):
    """One line of a list of sessions.

    Attributes:
        id: The session's id.
        actor_id: Whose it is.
        count: How many messages are stored.
        revision: Its revision.
        created_at: When it was first written, seconds since the epoch.
        updated_at: When it was last written, seconds since the epoch.
        size: How many bytes its messages, state and metadata have as they are stored: the JSON array of each commit's messages, its
            brackets and commas included, and the JSON of state and metadata. So a session that was written in many commits has some bytes
            more than the same one written in a single commit, as a copy of it is.
        metadata: Its metadata, where the store tells it in lists: a title can be shown without loading the session.
    """

    id: str
    actor_id: str | None
    count: int
    revision: str | None = None
    created_at: float | None = None
    updated_at: float | None = None
    size: int | None = None
    metadata: dict[str, Any] | None = None


class SessionLimits(Struct, frozen=True, kw_only=True):
    """How large each session of a store may become; ``None`` sets no limit.

    A commit that would pass one is refused, but for one that leaves the session no larger than it was.

    Attributes:
        messages: How many messages.
        size: How many bytes, as `SessionInfo.size` counts them.

    Raises:
        ConfigurationError: One is no positive integer.
    """

    messages: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: Any = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigurationError(
                    f"{name} of SessionLimits must be a positive integer or None, not {value!r}"
                )


NO_LIMITS: Final = SessionLimits()


class Statistics(Struct, frozen=True, kw_only=True):
    """What a store holds, in figures.

    Attributes:
        sessions: How many sessions.
        messages: How many messages they have together.
        size: How many bytes they have together, as `SessionInfo.size` counts them.
        oldest_at: When the one that was not written for longest was written, seconds since the epoch; ``None`` where there is none.
        newest_at: When the last one was written.
    """

    sessions: int
    messages: int
    size: int
    oldest_at: float | None = None
    newest_at: float | None = None


class Damage(Struct, frozen=True, kw_only=True):
    """Something that cannot be read, or does not fit together.

    Attributes:
        id: The session's id; ``None`` where that is not known either.
        actor_id: Whose it is.
        problem: What is wrong, and what to do.
    """

    id: str | None
    actor_id: str | None
    problem: str


class Verified(Struct, frozen=True, kw_only=True):
    """What one step of `SessionStore.verify` found.

    Attributes:
        checked: How many sessions were looked at.
        damaged: What is wrong.
        cursor: What to pass to take the next step; ``None`` at the end.
    """

    checked: int
    damaged: tuple[Damage, ...] = ()
    cursor: str | None = None


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """A part of a list.

    Attributes:
        items: The part.
        cursor: What to pass to get the next part, a string or, of `SessionStore.tail`, an integer; ``None`` at the end.
    """

    items: tuple[Item, ...]
    cursor: Any = None


class Lease(Struct, frozen=True, kw_only=True):
    """A right to work on a session that no other process has at the same time.

    Attributes:
        token: What tells this holder from every other, before and after.
    """

    token: str


class SessionStore(ABC):
    """Keeps sessions. Subclass it to keep them in a medium of your own.

    Three methods make a store: `load`, `append` and `replace`, with the parameters up to ``actor_id``. What else a store can do it
    names in `capabilities`, and only then is it asked for:

    ==================== =============================================================================================
    ``revisions``        `Snapshot.revision` and `Commit.revision` are given, ``expected_revision`` is checked
    ``commit_ids``       ``commit_id`` is kept, and a repeated commit gets the first answer
    ``anonymous_actor``  ``actor_id=None`` is a namespace of its own; without it, an empty actor may be refused too
    ``delete``           `delete`
    ``sessions``         `sessions` of one actor, by id
    ``sessions_by_time`` `sessions` also takes ``order``, ``since`` and ``until``
    ``all_actors``       `sessions` also takes `ALL_ACTORS`
    ``tail``             `tail`
    ``fork``             `fork`
    ``leases``           `lease`
    ``fencing``          `append` and `replace` also take ``lease``, and refuse a write under one that was lost
    ``limits``           `limits` are kept
    ``expire``           `expire`
    ``statistics``       `statistics`
    ``verify``           `verify`
    ``restore``          `restore` keeps the times
    ==================== =============================================================================================

    The key of a session is the pair ``(actor_id, id)``; the same id under another actor is another session. Identity comes from the caller,
    never from ambient state. Values are validated before a store sees them when they come through a `Session`. A store removes reasoning
    itself too, with `transcript.without_reasoning`.
    """

    capabilities: frozenset[str] = frozenset()
    """What the store can do beyond the three methods."""

    granularity: Literal["call", "batch"] = "call"
    """How finely a run commits the results of tools: each as its tool ends, or those of one assistant message together."""

    limits: SessionLimits = NO_LIMITS
    """How large a session may become; set it on the store."""

    @abstractmethod
    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        """Return the session, or ``None`` where there is none. A failed read is an error and never ``None``.

        A store of your own may return a mapping instead, with ``messages`` (a sequence of messages or their JSON forms) and, where there
        are any, ``state``, ``metadata``, ``revision`` and ``count``. What else it holds is not looked at.

        Raises:
            CorruptSessionError: What is stored cannot be read.
            StoreUnavailableError: The store cannot be reached.
        """

    @abstractmethod
    async def append(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        expected_count: int,
        actor_id: str | None = None,
        expected_revision: str | Revision | None = ANY,
        commit_id: str | None = None,
    ) -> Commit:
        """Add ``messages`` and store ``state`` and ``metadata`` in place of the old ones, atomically.

        Args:
            id: The session's id.
            messages: What to add; may be empty.
            state: The application's state, whole.
            metadata: The session's metadata, whole.
            expected_count: How many messages must be stored now, ``0`` for a new session.
            actor_id: Whose session it is.
            expected_revision: The revision the session must have; ``None``: it must not exist; `ANY`: do not check.
            commit_id: ``[A-Za-z0-9-]{1,64}``, unique within the session. The same commit sent again gets the first answer, also when
                others followed it. Ids go with their session when that is deleted.

        Raises:
            ConflictError: The count or the revision is another, or ``commit_id``, which the error then names, was used for other content.
                Nothing was written.
            DataError: A value cannot be stored exactly. Nothing was written.
            StoreUnavailableError: Whether it was written is unknown; sending it again with its ``commit_id`` is safe.
        """

    @abstractmethod
    async def replace(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        actor_id: str | None = None,
        expected_revision: str | Revision | None = ANY,
        commit_id: str | None = None,
    ) -> Commit:
        """Store ``messages``, ``state`` and ``metadata`` in place of all there was, atomically; see `append` for the rest."""

    async def project_conversation(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        metadata: Mapping[str, Any],
        actor_id: str | None = None,
    ) -> None:
        """Publish a clean view of the conversation. Never touches the transcript; a store without such a view does nothing."""

    def operation_context(self, operation_id: str | None) -> AbstractContextManager[None]:
        """Make ``operation_id``, a W3C ``traceparent``, the telemetry parent of the store's calls inside."""
        return telemetry.operation(operation_id)

    def synchronize(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Return a context manager that only one holder for each session has at a time, in this store instance.

        Fair, and cancellable while it waits.

        Raises:
            SessionBusyError: Others held it for ``timeout`` seconds; ``0`` does not wait, ``None`` waits for ever.
        """
        return self._hold((actor_id, id), id, timeout)

    @asynccontextmanager
    async def _hold(self, key: Hashable, id: str, timeout: float | None) -> AsyncGenerator[None]:
        held = self._locks().hold(key, timeout)
        try:
            await held.__aenter__()
        except TimeoutError as error:
            raise busy(id, timeout) from error
        try:
            yield
        finally:
            await held.__aexit__(None, None, None)

    def _locks(self) -> KeyedLocks:
        # Not made in __init__, which a subclass need not call; setdefault is atomic.
        own = cast("dict[str, Any]", self.__dict__)
        return own.get("_keyed_locks") or own.setdefault("_keyed_locks", KeyedLocks())

    def lease(
        self, id: str, *, actor_id: str | None = None, timeout: float | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        """Return a context manager for a `Lease`, which one holder has at a time across processes, and which ends with its holder.

        Raises:
            SessionBusyError: Others held it for ``timeout`` seconds; ``0`` does not wait, ``None`` waits for ever.
        """
        raise self._cannot("lease")

    async def delete(self, id: str, *, actor_id: str | None = None) -> bool:
        """Delete the session and everything about it; return whether there was one."""
        raise self._cannot("delete")

    async def sessions(
        self,
        *,
        actor_id: str | AllActors | None = None,
        limit: int = 100,
        cursor: str | None = None,
        order: SessionOrder = "id",
        since: float | None = None,
        until: float | None = None,
    ) -> Page[SessionInfo]:
        """Return a page of the sessions of ``actor_id``.

        By id, a session that is there all the while is on exactly one page. By time, one that is written between two pages moves to
        the beginning, and is not seen again.

        Args:
            actor_id: Whose; `ALL_ACTORS` for those of everybody.
            limit: How many at most.
            cursor: The one of the page before, with the other arguments as they were.
            order: ``id``, or ``updated``: what was written last comes first.
            since: Only what was last written then or later, seconds since the epoch.
            until: Only what was last written before.
        """
        raise self._cannot("sessions")

    async def statistics(self, *, actor_id: str | AllActors | None = ALL_ACTORS) -> Statistics:
        """Return how much the store holds, of everybody or of one actor."""
        raise self._cannot("statistics")

    async def expire(self, *, expire_after: float, limit: int = 100) -> int:
        """Delete sessions of any actor that were last written more than ``expire_after`` seconds ago; return how many.

        One that is written meanwhile stays. See `expire_sessions` for all of them.

        Args:
            expire_after: Seconds, by the clock of the medium where it has one.
            limit: How many at most, the oldest first; fewer than that are deleted only where no more are left.
        """
        raise self._cannot("expire")

    async def verify(self, *, limit: int = 100, cursor: str | None = None) -> Verified:
        """Read up to ``limit`` sessions of any actor whole, and tell what is damaged; it ends no other work and repairs nothing.

        See `verify_sessions` for the whole store.

        Raises:
            StoreUnavailableError: The store cannot be reached.
        """
        if not self.capabilities >= {"sessions", "all_actors"}:
            raise self._cannot("verify")
        page = await self.sessions(actor_id=ALL_ACTORS, limit=limit, cursor=cursor)
        damaged: list[Damage] = []
        for info in page.items:
            try:
                await self._snapshot(info.id, info.actor_id)
            except ProtocolError as error:
                damaged.append(Damage(id=info.id, actor_id=info.actor_id, problem=str(error)))
        return Verified(checked=len(page.items), damaged=tuple(damaged), cursor=page.cursor)

    async def restore(
        self,
        id: str,
        *,
        messages: Sequence[Message],
        state: Mapping[str, Any],
        metadata: Mapping[str, Any],
        created_at: float | None = None,
        updated_at: float | None = None,
        actor_id: str | None = None,
        expected_revision: str | None = None,
    ) -> Commit:
        """Put a session back as it was elsewhere. A store without ``restore`` forgets its times.

        Args:
            id: The session's id.
            messages: Its messages.
            state: Its state.
            metadata: Its metadata.
            created_at: When it was first written, seconds since the epoch; now, or as stored, unless given.
            updated_at: When it was last written; now unless given. A store may keep a later one that it has.
            actor_id: Whose it is.
            expected_revision: The revision of the session that it takes the place of; ``None``: there must be none.

        Raises:
            ConflictError: There is another session ``id``.
            UnsupportedError: The store has no revisions, and so cannot make sure of that.
        """
        self._need_revisions("restore")
        return await self.replace(
            id,
            messages=messages,
            state=state,
            metadata=metadata,
            actor_id=actor_id,
            expected_revision=expected_revision,
        )

    async def tail(
        self, id: str, *, limit: int, before: int | None = None, actor_id: str | None = None
    ) -> Page[Message]:
        """Return up to ``limit`` stored messages, oldest first: the last ones, or those before the message with index ``before``.

        The page's ``cursor`` is the ``before`` of the next older page. A session that does not exist has none.
        """
        if limit < 1:
            raise DataError.at("limit", "must be at least 1")
        snapshot = await self._snapshot(id, actor_id)
        messages = tuple(snapshot.messages) if snapshot else ()
        end = len(messages) if before is None else max(0, min(before, len(messages)))
        start = max(0, end - limit)
        return Page(items=messages[start:end], cursor=start or None)

    async def fork(
        self, id: str, new_id: str, *, at: int | None = None, actor_id: str | None = None
    ) -> Commit:
        """Start the session ``new_id`` with the first ``at`` messages of ``id``, and with its state and its metadata as they are now.

        Fewer messages are kept where ``at`` would part a call from its result. A store that names ``fork`` and has none of its own needs
        ``revisions`` for this one.

        Raises:
            SessionNotFoundError: There is no session ``id``.
            ConflictError: There is a session ``new_id`` already.
            DataError: ``at`` is no number of messages.
            UnsupportedError: The store has no revisions, and so cannot make sure that there is no session ``new_id``.
        """
        check_at(at)
        self._need_revisions("fork")
        snapshot = await self._snapshot(id, actor_id)
        if snapshot is None:
            raise SessionNotFoundError(f"there is no session {id!r} to fork", id=id)
        kept = transcript.cut(snapshot.messages, len(snapshot.messages) if at is None else at)
        try:
            return await self.replace(
                new_id,
                messages=snapshot.messages[:kept],
                state=snapshot.state,
                metadata=snapshot.metadata,
                actor_id=actor_id,
                expected_revision=None,
            )
        except ConflictError as error:
            raise ConflictError(
                f"there is a session {new_id!r} already; fork under another id",
                expected=None,
                actual=error.actual,
            ) from error

    async def _snapshot(self, id: str, actor_id: str | None) -> Snapshot | None:
        """Return what `load` says as a `Snapshot`, also where it says it as a mapping."""
        return understood(self, await self.load(id, actor_id=actor_id))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the store. One that is never closed neither hangs the process nor warns."""

    def _cannot(self, operation: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} does not offer {operation}", operation=operation)

    def _need_revisions(self, operation: str) -> None:
        if "revisions" not in self.capabilities:
            raise UnsupportedError(
                f"{type(self).__name__} does not offer {operation}: the one that every store has needs the capability revisions, to "
                "write over nothing",
                operation=operation,
                capability="revisions",
            )


def understood(store: SessionStore, value: Any) -> Snapshot | None:
    """Return what a store's ``load`` said. Its messages are checked, its state and metadata where it is no `Snapshot`.

    Raises:
        ProtocolError: It said nothing that the contract knows.
    """
    if value is None:
        return None
    if isinstance(value, Snapshot):
        given: Mapping[str, Any] = {name: getattr(value, name) for name in Snapshot.__struct_fields__}
    elif isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
    else:
        raise malformed(store, f"load returned {data.kind(value)} in place of a Snapshot")
    raw: Any = given.get("messages")
    if not isinstance(raw, Sequence) or isinstance(raw, str | bytes):
        raise malformed(store, "load returned no list of messages")
    raw = cast("Sequence[Any]", raw)
    count, revision = given.get("count"), given.get("revision")
    if count is not None and not is_count(count):
        raise malformed(store, "load returned a count that is no number of messages")
    if not isinstance(revision, str) and (revision is not None or "revisions" in store.capabilities):
        raise malformed(store, "load returned a revision that is no string")
    if isinstance(value, Snapshot) and all(type(item) is Message for item in raw):
        return value  # our own stores decode; nothing is left to check
    try:
        return Snapshot(
            messages=pack_messages(raw)[1],
            state=_object(given.get("state"), "state"),
            metadata=_object(given.get("metadata"), "metadata"),
            revision=revision,
            count=count,
        )
    except DataError as error:
        raise malformed(store, f"load returned a malformed value: {error}") from error


def _object(value: Any, name: str) -> dict[str, Any]:
    return data.unpack(data.pack_object({} if value is None else value, name))


def malformed(store: SessionStore, what: str) -> ProtocolError:
    """Return the error for an answer of ``store`` that is none; ``what`` begins with the method."""
    return ProtocolError(f"{type(store).__name__}.{what}", store=type(store).__name__)


def is_count(value: Any) -> bool:
    """Whether ``value`` is a number of messages."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_at(at: Any) -> None:
    """Refuse what is no number of messages to fork with.

    Raises:
        DataError: It is none.
    """
    if at is not None and not is_count(at):
        raise DataError.at("at", f"must be a number of messages, 0 or more, not {at!r}")


def busy(id: str, waited: float | None) -> SessionBusyError:
    """Return the error for a session that others held for ``waited`` seconds."""
    return SessionBusyError(f"session {id!r} is in use by another holder", id=id, waited=waited or 0.0)


def conflict(expected: object, actual: object, what: str) -> ConflictError:
    """Return the error for a write that came second; ``what`` is ``messages`` or ``revision``."""
    return ConflictError(
        f"the session has changed: expected {what} {expected!r}, found {actual!r}. Load it again before writing.",
        expected=expected,
        actual=actual,
    )
