"""The contract of a session store.

Who writes: one commit at a time for each session. `SessionStore.append` compares the message count, and the revision where the store has
them, in the same atomic step that writes; a mismatch is a `ConflictError` and changes nothing. What a reader may assume: `load` gives the
snapshot before a commit or after it, never one between. What a crash leaves: every commit that was acknowledged, whole.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

from msgspec import Struct, field

from littleghost import telemetry, transcript
from littleghost.content import Prepared
from littleghost.errors import (
    ConflictError,
    DataError,
    ProtocolError,
    SessionBusyError,
    SessionNotFoundError,
    UnsupportedError,
)
from littleghost.locks import KeyedLocks
from littleghost.message import Message, pack_messages

__all__ = ["ANY", "Commit", "Lease", "Page", "SessionInfo", "SessionStore", "Snapshot"]

Item = TypeVar("Item")


class Revision(Enum):
    """A revision that is no revision."""

    ANY = "any"

    def __repr__(self) -> str:
        return self.name


ANY: Final = Revision.ANY
"""As ``expected_revision``: do not check."""

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
    """

    id: str
    actor_id: str | None
    count: int
    revision: str | None = None
    created_at: float | None = None
    updated_at: float | None = None


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """A part of a list.

    Attributes:
        items: The part.
        cursor: What to pass to get the next part; ``None`` at the end.
    """

    items: tuple[Item, ...]
    cursor: str | int | None = None


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
    ``anonymous_actor``  ``actor_id=None`` is a namespace of its own
    ``delete``           `delete`
    ``sessions``         `sessions`
    ``tail``             `tail`
    ``fork``             `fork`
    ``leases``           `lease`
    ==================== =============================================================================================

    The key of a session is the pair ``(actor_id, id)``; the same id under another actor is another session. Identity comes from the caller,
    never from ambient state. Values are validated before a store sees them when they come through a `Session`. A store removes reasoning
    itself too, with `transcript.without_reasoning`.
    """

    capabilities: frozenset[str] = frozenset()
    """What the store can do beyond the three methods."""

    granularity: Literal["call", "batch"] = "call"
    """How finely a run commits the results of tools: each as its tool ends, or those of one assistant message together."""

    @abstractmethod
    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        """Return the session, or ``None`` where there is none. A failed read is an error and never ``None``.

        A store of your own may return a mapping instead, with ``messages`` (messages or their JSON forms) and, where there are
        any, ``state``, ``metadata``, ``revision`` and ``count``.

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
                others followed it.

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
            SessionBusyError: Others held it for ``timeout`` seconds.
        """
        return self._hold((actor_id, id), timeout)

    @asynccontextmanager
    async def _hold(self, key: tuple[str | None, str], timeout: float | None) -> AsyncGenerator[None]:
        held = self._locks().hold(key, timeout)
        try:
            await held.__aenter__()
        except TimeoutError as error:
            raise busy(key[1], timeout) from error
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
        self, *, actor_id: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page[SessionInfo]:
        """Return a page of the sessions of ``actor_id``, in a stable order."""
        raise self._cannot("sessions")

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
        """Start the session ``new_id`` with the first ``at`` messages of ``id``, its state and its metadata.

        Fewer messages are kept where ``at`` would part a call from its result.

        Raises:
            SessionNotFoundError: There is no session ``id``.
            ConflictError: There is a session ``new_id`` already.
        """
        if "revisions" not in self.capabilities:
            raise self._cannot("fork")
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
        value: Any = await self.load(id, actor_id=actor_id)
        if value is None or isinstance(value, Snapshot):
            return value
        try:
            given: dict[str, Any] = {**value, "messages": pack_messages(value["messages"])[1]}
            return Snapshot(**given)
        except (TypeError, KeyError, DataError) as error:
            raise ProtocolError(f"{type(self).__name__}.load returned a malformed value: {error}") from error

    async def aclose(self) -> None:
        """Close the store. One that is never closed neither hangs the process nor warns."""

    def _cannot(self, operation: str) -> UnsupportedError:
        return UnsupportedError(f"{type(self).__name__} does not offer {operation}", operation=operation)


def busy(id: str, waited: float | None) -> SessionBusyError:
    """Return the error for a session that others held for ``waited`` seconds."""
    return SessionBusyError(f"session {id!r} is in use by another run", id=id, waited=waited or 0.0)


def conflict(expected: object, actual: object, what: str) -> ConflictError:
    """Return the error for a write that came second; ``what`` is ``messages`` or ``revision``."""
    return ConflictError(
        f"the session has changed: expected {what} {expected!r}, found {actual!r}. Load it again before writing.",
        expected=expected,
        actual=actual,
    )
