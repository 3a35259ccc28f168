"""A conversation of one actor, kept in a store."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct

from littleghost import data, telemetry, transcript
from littleghost.content import Text
from littleghost.errors import (
    ConfigurationError,
    ConflictError,
    DataError,
    LeaseLostError,
    ProtocolError,
    UnsupportedError,
)
from littleghost.message import Message, message_from, pack_messages
from littleghost.sessions.contract import (
    COMMIT_ID,
    Commit,
    Lease,
    Page,
    SessionStore,
    Snapshot,
    check_at,
    is_count,
    malformed,
    understood,
)

__all__ = ["Session"]

Answer = TypeVar("Answer")
Messages = Iterable[Message | Mapping[str, Any]] | Message
Changed = tuple[Messages, Mapping[str, Any]] | tuple[Messages, Mapping[str, Any], Mapping[str, Any]]
Update = Callable[[Snapshot], Changed | Awaitable[Changed]]


class _Unset(Enum):
    UNSET = "unset"

    def __repr__(self) -> str:
        return "<as stored>"


UNSET: Final = _Unset.UNSET
State = Mapping[str, Any] | Literal[_Unset.UNSET]


class Result(Protocol):
    """What `Session.checkpoint_result` takes: a `Run` is one."""

    @property
    def messages(self) -> Sequence[Message]:
        """The whole transcript."""
        ...

    @property
    def state(self) -> Mapping[str, Any]:
        """The application's state."""
        ...


class _Known(Struct, kw_only=True):
    """What this session knows of the store's content. Kept packed, so that nobody can change it by accident."""

    exists: bool
    messages: list[Message]
    count: int
    revision: str | None
    state: bytes
    metadata: bytes


NEVER: Final = "never"
"""A revision that no store gives."""


class _Stale(Exception):
    """What a write was drawn up from is no longer what is known."""


class _Draft(Struct, frozen=True, kw_only=True):
    """A write that may have been sent."""

    kind: Literal["append", "replace"]
    messages: tuple[Message, ...]
    body: bytes
    state: bytes
    metadata: bytes
    commit_id: str
    named: bool = False  # by the caller, who may have sent it before, from another process

    def same(self, other: _Draft) -> bool:
        """Whether ``other`` is this write again."""
        return (self.kind, self.body, self.state, self.metadata) == (
            other.kind,
            other.body,
            other.state,
            other.metadata,
        )


class Session:
    """Messages, application state and metadata of one conversation, behind a `SessionStore`.

    Nothing is read before the first read or write; then the snapshot is loaded once and kept. What a session returns is the caller's own
    copy. Every write is checked against what the session knows: where another writer was first, it is a `ConflictError`, nothing is
    written, and `reload` shows the news.

    System messages, messages marked ``transient`` in their metadata, and reasoning never reach the store.

    An application with several users must take ``actor_id`` from an authenticated identity. ``None`` is a namespace of its own, for
    applications that have one user.

    Args:
        id: The session's id; becomes a string.
        store: Where it is kept.
        actor_id: Whose it is; becomes a string unless ``None``.
        metadata: The metadata a new session starts with.
        operation_id: The telemetry parent of the store's calls, a W3C ``traceparent``.

    Raises:
        DataError: ``id`` or ``actor_id`` is not valid text, or ``metadata`` no JSON object.
    """

    def __init__(
        self,
        *,
        id: object,
        store: SessionStore,
        actor_id: object = None,
        metadata: Mapping[str, Any] | None = None,
        operation_id: str | None = None,
    ) -> None:
        if id is None:
            raise ConfigurationError("id must not be None; a session needs a name")
        self.id = _as_text(id, "id")
        self.actor_id = None if actor_id is None else _as_text(actor_id, "actor_id")
        if not isinstance(store, SessionStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"store must be a SessionStore, not {data.kind(store)}; open_store(url) makes one of a URL, and the stores of "
                "littleghost.sync are for littleghost.sync.Session"
            )
        self.store = store
        self.operation_id = operation_id
        self._initial = data.pack_object(metadata or {}, "metadata")
        self._known: _Known | None = None
        self._changes = 0  # how often what is known has changed
        self._uncertain: _Draft | None = None  # a write whose answer was lost
        self._lock = asyncio.Lock()
        self._lease: Lease | None = None

    def __repr__(self) -> str:
        return f"Session(id={self.id!r}, actor_id={self.actor_id!r}, store={type(self.store).__name__})"

    # Reading

    async def load(self) -> Snapshot | None:
        """Return the session as it was loaded or last written, or ``None`` where there is none.

        Messages are in the shape of `transcript.normalise`; ``count`` is that of the stored ones.

        Raises:
            StoreError: It could not be read.
        """
        known = await self._read()
        return self._snapshot(known) if known.exists else None

    async def history(self, fallback: Sequence[Message] = ()) -> Sequence[Message]:
        """Return the messages, or ``fallback`` as it was given where there is no session."""
        known = await self._read()
        return (
            [message.copy() for message in transcript.normalise(known.messages)] if known.exists else fallback
        )

    async def journal(self) -> list[Message]:
        """Return the messages as they are stored: results of tools each in a message of its own, in the order they came."""
        return [message.copy() for message in (await self._read()).messages]

    async def state(self) -> dict[str, Any]:
        """Return the application's state, ``{}`` for a new session."""
        return data.unpack((await self._read()).state)

    async def metadata(self) -> dict[str, Any]:
        """Return the stored metadata, or the constructor's for a new session.

        Under ``littleghost`` runs keep what they have to know of the session: what waits for an answer, what a budget has been used of, and
        the like. Metadata is written whole, but for that key: it stays where what is written does not have it.
        """
        return data.unpack((await self._read()).metadata)

    async def tail(self, *, limit: int, before: int | None = None) -> Page[Message]:
        """Return the last ``limit`` messages as they are stored, or those before the one with the index ``before``, oldest first.

        Asks the store each time, and loads nothing else. The page's ``cursor`` is the ``before`` of the next older page.

        Raises:
            StoreError: It could not be read.
        """
        return await self._call("tail", self.operation_id, self.store.tail, limit=limit, before=before)

    async def reload(self) -> Snapshot | None:
        """Load again, whatever is known, and return what `load` does."""
        async with self._lock:
            self._forget()
        return await self.load()

    # Writing

    async def append(
        self,
        messages: Messages,
        *,
        state: State = UNSET,
        metadata: State = UNSET,
        commit_id: str | None = None,
    ) -> Commit:
        """Add ``messages``, and store ``state`` and ``metadata`` where they are given.

        After a failure whose outcome is unknown, the same call again is a retry and not a second turn.

        Args:
            messages: Messages or their JSON forms.
            state: The state, whole; as stored unless given.
            metadata: The metadata, whole; as stored unless given.
            commit_id: A name for this commit, ``[A-Za-z0-9-]{1,64}``; made up unless given.

        Raises:
            ConflictError: Another writer was first. Nothing was written; see `reload`.
            DataError: A value cannot be stored exactly. Nothing was written.
            StoreError: The store failed.
            UnsupportedError: ``commit_id`` is given, and the store does not keep any.
        """
        return await self._write(
            lambda known: self._draft("append", known, messages, state, metadata, commit_id)
        )

    async def replace(
        self,
        messages: Messages,
        *,
        state: State = UNSET,
        metadata: State = UNSET,
        commit_id: str | None = None,
    ) -> Commit:
        """Store ``messages`` in place of all there were; see `append` for the rest."""
        return await self._write(
            lambda known: self._draft("replace", known, messages, state, metadata, commit_id)
        )

    async def checkpoint(
        self,
        messages: Messages,
        *,
        state: State = UNSET,
        metadata: State = UNSET,
        parent_operation_id: str | Literal[_Unset.UNSET] | None = UNSET,
    ) -> Commit:
        """Store the conversation ``messages`` with as little as it takes.

        What is new is appended where the stored messages are an unchanged beginning, compared in normalised form; nothing is written
        where nothing changed; else everything is replaced.

        Args:
            messages: The whole conversation.
            state: The state, whole; as stored unless given.
            metadata: The metadata, whole; as stored unless given.
            parent_operation_id: The telemetry parent, in place of the session's.
        """
        given = _given(messages)

        def draft(known: _Known) -> _Draft | None:
            whole = self._draft("replace", known, given, state, metadata, None)
            before, after = transcript.normalise(known.messages), transcript.normalise(whole.messages)
            if len(before) > len(after) or not all(map(_same, before, after)):
                return whole
            added = after[len(before) :]
            if added:
                return msgspec.structs.replace(
                    whole, kind="append", messages=tuple(added), body=pack_messages(added)[0]
                )
            if data.equal(known.state, whole.state) and data.equal(known.metadata, whole.metadata):
                return None
            return msgspec.structs.replace(whole, kind="append", messages=(), body=b"[]")

        return await self._write(
            draft, self.operation_id if parent_operation_id is UNSET else parent_operation_id
        )

    async def checkpoint_result(self, result: Result) -> Commit:
        """Store the messages and the state of a `Run`, and keep the stored metadata."""
        return await self.checkpoint(result.messages, state=result.state)

    async def update(self, change: Update, *, attempts: int = 30) -> Commit:
        """Append what ``change`` says, and where another writer was first, load again and ask it anew.

        Args:
            change: Gets the `Snapshot`, an empty one for a new session; returns the messages to append and the new state, and as a third
                the new metadata where that changes too. May be async.
            attempts: How often it is asked at most because of writers elsewhere. Writes of this very session in the meantime do
                not count; each of them is some progress.

        Raises:
            ConfigurationError: ``attempts`` is no positive number.
            ConflictError: Others were first every time.
            LeaseLostError: It was to be made under a lease, see `lease`, that has been lost.
        """
        if not is_count(attempts) or attempts < 1:
            raise ConfigurationError(f"attempts must be a number, at least 1, not {attempts!r}")
        attempt = 1
        while True:
            try:
                return await self._change(change)
            except _Stale:
                continue
            except LeaseLostError:
                raise  # nothing that is read anew would change that
            except ConflictError as error:
                if attempt >= attempts:
                    raise ConflictError(
                        f"others were first {attempts} times; a session with so many writers may be better off as several, or "
                        "give more attempts",
                        expected=error.expected,
                        actual=error.actual,
                        commit_id=error.commit_id,
                    ) from error
                await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 8)))  # noqa: S311 (jitter, no secret)
                await self.reload()
                attempt += 1

    async def _change(self, change: Update) -> Commit:
        known, seen = await self._read(), self._changes
        answer = change(self._snapshot(known))
        pair: Any = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(pair, tuple) or len(cast("tuple[Any, ...]", pair)) not in (2, 3):
            raise ConfigurationError(
                "what update() calls must return the messages to append, the state and, if it changes, the metadata"
            )
        messages, state, *rest = cast("tuple[Any, ...]", pair)

        def draft(known: _Known) -> _Draft:
            if self._changes != seen:
                raise _Stale
            return self._draft("append", known, messages, state, rest[0] if rest else UNSET, None)

        return await self._write(draft)

    # Everything else

    def synchronize(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that one holder of this session has at a time, in this store instance. Others wait for ever."""
        return self.store.synchronize(self.id, actor_id=self.actor_id)

    @asynccontextmanager
    async def lease(self, *, timeout: float | None = None) -> AsyncGenerator[Lease]:
        """Hold the session across processes, where the store has leases; every write of this object inside is made under the lease.

        Where the lease was lost meanwhile, because this process or its network stood still for too long and another one took it over, a
        write is a `LeaseLostError` and changes nothing, even if nobody else has written yet.

        Args:
            timeout: Seconds to wait; ``0`` does not wait, ``None`` waits for ever.

        Raises:
            SessionBusyError: Others held it for ``timeout`` seconds.
            UnsupportedError: The store has no leases.
        """
        async with self.store.lease(self.id, actor_id=self.actor_id, timeout=timeout) as lease:
            self._lease = lease
            try:
                yield lease
            finally:
                self._lease = None

    async def project_conversation(self, messages: Messages, *, metadata: State = UNSET) -> None:
        """Publish a clean view of the conversation, where the store has one; the transcript stays as it is.

        Only reasoning is removed. Leave out system and transient messages, and whatever else should stay here.
        """
        _, view = pack_messages([message.without_reasoning() for message in _given(messages)])
        if metadata is UNSET:
            chosen = data.unpack((await self._read()).metadata)
            chosen.pop(transcript.MARK, None)  # the library's notes are not for others
        else:
            chosen = data.unpack(data.pack_object(metadata, "metadata"))
        await self._call(
            "project_conversation",
            self.operation_id,
            self.store.project_conversation,
            messages=list(view),
            metadata=chosen,
        )

    async def fork(self, new_id: object, *, at: int | None = None) -> Session:
        """Start another session with this one's first ``at`` messages, or all of them, and return it.

        State and metadata are those of now, whatever they were after these messages; see `SessionStore.fork` for the rest.

        Raises:
            DataError: ``new_id`` is no valid text, or ``at`` no number of messages. Nothing was read or written.
        """
        check_at(at)
        forked = Session(id=new_id, store=self.store, actor_id=self.actor_id, operation_id=self.operation_id)
        await self._call("fork", self.operation_id, self.store.fork, forked.id, at=at)
        return forked

    async def delete(self) -> bool:
        """Delete the session and everything about it; return whether there was one.

        Unlike every other write it asks for no revision and no lease: what others have added since is deleted too.
        """
        async with self._lock:
            self._forget()
            return await self._call("delete", self.operation_id, self.store.delete)

    # Within

    async def _read(self) -> _Known:
        known = self._known
        if known is not None:
            return known
        async with self._lock:
            return await self._known_or_loaded()

    async def _known_or_loaded(self) -> _Known:
        if self._known is None:
            self._learn(await self._load())
        return cast("_Known", self._known)

    def _learn(self, known: _Known) -> None:
        self._known = known
        self._changes += 1

    def _forget(self) -> None:
        self._known = self._uncertain = None
        self._changes += 1

    async def _load(self) -> _Known:
        value: Any = await self._call("load", self.operation_id, self.store.load)
        return self._understand(value)

    def _understand(self, value: Any) -> _Known:
        """Return what a store's ``load`` said.

        Raises:
            ProtocolError: It said nothing that the contract knows.
        """
        found = understood(self.store, value)
        if found is None:
            return _Known(
                exists=False, messages=[], count=0, revision=None, state=b"{}", metadata=self._initial
            )
        try:
            return _Known(
                exists=True,
                messages=transcript.sanitise(found.messages),
                count=found.count,
                revision=found.revision,
                state=data.pack_object(found.state, "state"),
                metadata=data.pack_object(found.metadata, "metadata"),
            )
        except DataError as error:
            raise malformed(self.store, f"load returned a malformed value: {error}") from error

    def _snapshot(self, known: _Known) -> Snapshot:
        return Snapshot(
            messages=[message.copy() for message in transcript.normalise(known.messages)],
            state=data.unpack(known.state),
            metadata=data.unpack(known.metadata),
            revision=known.revision,
            count=known.count,
        )

    def _draft(
        self,
        kind: Literal["append", "replace"],
        known: _Known,
        messages: Messages,
        state: State,
        metadata: State,
        commit_id: str | None,
    ) -> _Draft:
        body, plain = pack_messages(transcript.sanitise(_given(messages)))
        if commit_id is not None:
            if "commit_ids" not in self.store.capabilities:
                raise UnsupportedError(
                    f"{type(self.store).__name__} does not keep commit ids", operation="commit_id"
                )
            if not COMMIT_ID.fullmatch(commit_id):
                raise DataError.at("commit_id", "must be 1 to 64 letters, digits or hyphens")
        return _Draft(
            kind=kind,
            messages=plain,
            body=body,
            state=known.state if state is UNSET else data.pack_object(state, "state"),
            metadata=known.metadata if metadata is UNSET else _with_notes(metadata, known.metadata),
            commit_id=os.urandom(16).hex() if commit_id is None else commit_id,
            named=commit_id is not None,
        )

    async def _write(
        self, make: Callable[[_Known], _Draft | None], parent: str | Literal[_Unset.UNSET] | None = UNSET
    ) -> Commit:
        """Write what ``make`` draws up from what is known, if anything, and return where the session stands then."""
        async with self._lock:
            known = await self._known_or_loaded()
            draft, lost = make(known), self._uncertain
            if lost is not None:
                repeated = draft is not None and draft.same(lost)
                if repeated and "commit_ids" in self.store.capabilities:
                    draft = lost  # the store tells whether it has it
                else:
                    took_place = await self._find_out(lost, known)
                    known = await self._known_or_loaded()
                    draft = None if repeated and took_place else make(known)
            if draft is None:
                return Commit(revision=known.revision, count=known.count)
            return await self._send(draft, known, self.operation_id if parent is UNSET else parent)

    async def _send(self, draft: _Draft, known: _Known, parent: str | None) -> Commit:
        options: dict[str, Any] = {"expected_count": known.count} if draft.kind == "append" else {}
        if "revisions" in self.store.capabilities:
            options["expected_revision"] = known.revision if known.exists else None
        if "commit_ids" in self.store.capabilities:
            options["commit_id"] = draft.commit_id
        if self._lease is not None and "fencing" in self.store.capabilities:
            options["lease"] = self._lease
        if draft.named and known.exists and "revisions" in self.store.capabilities:
            first = await self._first_answer(draft, parent, options)
            if first is not None:
                self._known = None  # others may have followed
                return first
        self._uncertain = draft
        try:
            answer = await self._perform(draft, parent, options)
        except ProtocolError:
            self._uncertain = None  # refused: nothing was written
            raise
        commit = self._acknowledged(answer, draft, known)
        self._uncertain = None
        return commit

    async def _first_answer(
        self, draft: _Draft, parent: str | None, options: Mapping[str, Any]
    ) -> Commit | None:
        """Return what was answered to the commit of this name, if there is one.

        A store looks for the id where its check fails, so it is asked to expect what no session has; what was loaded after the commit
        would pass the check, and be a second turn.
        """
        try:
            answer = await self._perform(draft, parent, {**options, "expected_revision": NEVER})
        except ConflictError as error:
            if error.commit_id is not None:
                raise
            return None
        if not isinstance(answer, Commit):
            raise malformed(self.store, f"{draft.kind} accepted a revision that it never gave")
        return answer

    async def _perform(self, draft: _Draft, parent: str | None, options: Mapping[str, Any]) -> Any:
        return await self._call(
            draft.kind,
            parent,
            self.store.append if draft.kind == "append" else self.store.replace,
            messages=list(draft.messages),
            state=data.unpack(draft.state),
            metadata=data.unpack(draft.metadata),
            **options,
        )

    async def _find_out(self, lost: _Draft, known: _Known) -> bool:
        """Read again after a write whose answer was lost, and return whether it took place.

        Raises:
            ConflictError: Someone else has written since, and the caller has not seen it.
        """
        found = await self._load()
        expected = [*known.messages, *lost.messages] if lost.kind == "append" else lost.messages
        moved = found.revision != known.revision or "revisions" not in self.store.capabilities
        took_place = moved and found.exists and _equal(found, expected, lost.state, lost.metadata)
        if not took_place and not (
            found.revision == known.revision and _equal(found, known.messages, known.state, known.metadata)
        ):
            raise ConflictError(
                "another writer has changed the session since a write of this one was interrupted; reload() shows it",
                expected=known.revision or known.count,
                actual=found.revision or found.count,
            )
        self._learn(found)
        self._uncertain = None
        return took_place

    def _acknowledged(self, answer: Any, draft: _Draft, known: _Known) -> Commit:
        """Take in what a store's write answered; `_uncertain` stays where that is not known."""
        before = known.count if draft.kind == "append" else 0
        count, revision = before + len(draft.messages), None
        if isinstance(answer, Commit):
            count, revision = answer.count, answer.revision
            if not is_count(count) or not isinstance(revision, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise malformed(self.store, f"{draft.kind} returned a malformed Commit")
        elif answer is not None:
            raise malformed(
                self.store, f"{draft.kind} returned a {type(answer).__name__} in place of a Commit or None"
            )
        if draft.kind == "append":
            known.messages.extend(draft.messages)
        else:
            known.messages = list(draft.messages)
        known.exists, known.count, known.revision = True, count, revision
        known.state, known.metadata = draft.state, draft.metadata
        self._changes += 1
        if draft.named and draft.kind == "append" and count != before + len(draft.messages):
            self._known = None  # the first answer, to a commit that others came before, which it has not seen
        if "revisions" in self.store.capabilities and revision is None:
            self._known = None  # it keeps revisions and did not tell this one
        return Commit(revision=revision, count=count)

    async def _call(
        self,
        name: str,
        parent: str | None,
        method: Callable[..., Awaitable[Answer]],
        *args: Any,
        **options: Any,
    ) -> Answer:
        with (
            self.store.operation_context(parent),
            telemetry.span(f"session_store.{name}", {"littleghost.store": type(self.store).__name__}),
        ):
            return await method(self.id, *args, actor_id=self.actor_id, **options)


def _as_text(value: object, name: str) -> str:
    """Return an id as text. What has no text of its own is refused: its name would be another one in the next process."""
    nameless = type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__
    if nameless or isinstance(value, bytes | bytearray | list | tuple | dict | set | frozenset):
        raise ConfigurationError(f"{name} must be text, a number or a UUID, not {data.kind(value)}")
    return data.check_text(str(value), name)


def _with_notes(given: Any, known: bytes) -> bytes:
    """Return metadata, packed, with the library's notes of the session in it, unless it has its own."""
    packed = data.pack_object(given, "metadata")
    if transcript.MARK in given or transcript.MARK.encode() not in known:
        return packed
    notes = data.unpack(known).get(transcript.MARK)
    return packed if notes is None else data.pack_object({**given, transcript.MARK: notes}, "metadata")


def _given(messages: Messages) -> list[Message]:
    if isinstance(messages, Message):
        return [messages]
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError.at(
            "messages", f"expected a list of messages, got a {type(cast('Any', messages)).__name__}"
        )
    return [
        message if type(message) is Message else message_from(message, f"messages[{index}]")
        for index, message in enumerate(messages)
    ]


_encode = msgspec.json.Encoder().encode


def _same(left: Message, right: Message) -> bool:
    """Whether two messages are the same JSON: equal, and ``1`` not taken for ``true``."""
    if left is right:
        return True
    if left != right:
        return False
    plain = not left.metadata and all(type(block) is Text for block in left.content)
    return plain or data.equal(_encode(left), _encode(right))


def _equal(found: _Known, messages: Sequence[Message], state: bytes, metadata: bytes) -> bool:
    return (
        len(found.messages) == len(messages)
        and all(map(_same, found.messages, messages))
        and data.equal(found.state, state)
        and data.equal(found.metadata, metadata)
    )
