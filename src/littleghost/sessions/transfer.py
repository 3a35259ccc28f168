"""Sessions from one store to another, straight or by way of a file.

Each session is read in one snapshot and written in one commit, so that no reader of either store sees half of one. What is there already
and is the same is left alone: whatever was broken off is simply done again, and goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from hashlib import blake2b
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec
from msgspec import Struct

from littleghost import data, transcript
from littleghost.errors import ConfigurationError, ConflictError, ProtocolError, UnsupportedError
from littleghost.message import Message, pack_messages
from littleghost.sessions.contract import (
    ALL_ACTORS,
    AllActors,
    Commit,
    Damage,
    SessionInfo,
    SessionStore,
    Snapshot,
)
from littleghost.sessions.exchange import ExportReader, ExportWriter, Flaw, WholeSession
from littleghost.sessions.records import PART
from littleghost.sessions.walk import Gap, unlisted, walk

__all__ = ["TAKEN", "Existing", "Transferred", "copy_sessions", "export_sessions", "import_sessions", "need"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Existing = Literal["fail", "skip", "replace"]
"""What becomes of a session whose place is taken by another one."""

Outcome = Literal["written", "same", "replaced", "skipped", "pruned", "failed"]

TAKEN: Final = (
    "another session has this key; existing='skip' leaves that one alone, existing='replace' replaces it"
)
"""The problem of a session whose place is taken."""

ATTEMPTS: Final = 5
"""How often a session is tried whose place in the destination changes under way."""


class Transferred(Struct, frozen=True, kw_only=True):
    """What became of one session.

    Attributes:
        id: Its id; ``None`` where that is lost.
        actor_id: Whose it is.
        outcome: ``written``; ``same`` where it was there already; ``replaced`` where it took the place of another one; ``skipped`` where
            it was to leave that one alone; ``pruned`` where it was deleted from the destination; ``failed``, with nothing written or
            deleted, for the reason in ``problem``.
        count: How many messages it has; ``0`` where it failed or was pruned.
        problem: What went wrong, and what to do.
    """

    id: str | None
    actor_id: str | None
    outcome: Outcome
    count: int = 0
    problem: str | None = None


def export_sessions(
    store: SessionStore,
    *,
    actor_id: str | AllActors | None = ALL_ACTORS,
    report: Callable[[Transferred], object] | None = None,
) -> AsyncGenerator[bytes]:
    """Yield the lines of a file with the sessions of ``store``, each ending with a line feed; `import_sessions` reads it.

    Every session is as it was at one moment, but not all at the same one. One that cannot be read does not end the export: the file
    has a line about it instead. The same sessions of one store give the same bytes; a copy of it has other revisions.

    Args:
        store: Where they are.
        actor_id: Whose; everybody's unless given.
        report: Is called for each session, with the outcome ``written`` or ``failed``.

    Raises:
        UnsupportedError: The store cannot list its sessions, or not those of all actors.
        StoreUnavailableError: The store cannot be reached. The file has no last line then, and counts as cut.
    """
    need(store, "export_sessions", *_listing(actor_id))
    return _export(store, actor_id, report or _nobody)


async def _export(
    store: SessionStore, actor_id: str | AllActors | None, report: Callable[[Transferred], object]
) -> AsyncGenerator[bytes]:
    writer = ExportWriter()
    told: set[tuple[str | None, str | None]] = set()
    gaps: list[Gap] = []
    written = 0
    yield writer.header()
    async with aclosing(walk(store, actor_id)) as listed:
        async for info in listed:
            if isinstance(info, Gap):
                gaps.append(info)
                continue
            try:
                whole = await _read(store, info)
                if whole is None:
                    continue
                lines = writer.session(whole)
            except ProtocolError as error:
                told.add((info.actor_id, info.id))
                yield writer.damaged(info.id, info.actor_id, str(error))
                report(_failed(info, str(error)))
                continue
            for line in lines:
                yield line
            written += 1
            report(_done(whole, "written"))
    async with aclosing(unlisted(store, actor_id, written + len(told), told, gaps)) as hidden:
        async for damage in hidden:
            yield writer.damaged(damage.id, damage.actor_id, damage.problem)
            report(_failed(damage, damage.problem))
    yield writer.totals()


def import_sessions(
    store: SessionStore,
    lines: Iterable[bytes] | AsyncIterable[bytes],
    *,
    existing: Existing = "fail",
    max_size: int = 1 << 30,
) -> AsyncGenerator[Transferred]:
    """Put the sessions of a file into ``store``, with their times, and yield what became of each.

    Each is written whole and at once, or not at all; a part of the file that cannot be read costs the sessions in it and no other.
    One that is there already, and is the same, is left alone, so that an import that broke off is simply run again.

    Args:
        store: Where to put them.
        lines: The file, in pieces of any size, such as an open file in binary mode, or what `export_sessions` yields. Memory is
            taken for one session at a time.
        existing: What to do where another session has the key of one in the file: ``fail``, which is an outcome and no exception;
            ``skip``, and leave it alone; or ``replace`` it in one commit, with the times of the file where the store has ``restore``.
        max_size: How many bytes of the file a session may take.

    Raises:
        FormatError: It is no export, of a newer version, was cut, or was changed. What of it was whole has been imported.
        ProtocolError: The store as a whole cannot be used: it is damaged, of a newer version, or no store.
        UnsupportedError: The store has neither ``restore`` nor ``revisions``, so nothing could be put there safely.
        StoreUnavailableError: The store cannot be reached.
    """
    _check_destination(store, "import_sessions", existing)
    if max_size < 1:
        raise ConfigurationError("max_size must be at least 1")
    return _import(store, lines, existing, max_size)


async def _import(
    store: SessionStore,
    lines: Iterable[bytes] | AsyncIterable[bytes],
    existing: Existing,
    max_size: int,
) -> AsyncGenerator[Transferred]:
    reader = ExportReader(max_size)
    seen: set[bytes] = set()
    async for chunk in _each(lines):
        for found in reader.feed(chunk):
            if isinstance(found, Flaw):
                yield _failed(found, found.problem)
            elif existing == "replace" and _again(found, seen):
                yield _failed(found, "the file has this session twice, and the first one was imported")
            else:
                yield await _put(store, found, existing, check=False)
    reader.close()


def copy_sessions(
    source: SessionStore,
    destination: SessionStore,
    *,
    actor_id: str | AllActors | None = ALL_ACTORS,
    existing: Existing = "fail",
    prune: bool = False,
    concurrency: int = 4,
) -> AsyncGenerator[Transferred]:
    """Copy sessions from one store to another, with their times, and yield what became of each, in the order of the source's list.

    Each is read in one snapshot, written in one commit, and read back and compared. One that cannot be read, or is refused, does not
    stop the others. What is there already and is the same is left alone: run it again where it broke off, or to catch up with what
    was begun since. A session that went on in the source since it was copied is another one by then; see ``existing``.

    Args:
        source: Where they are; nothing is changed there.
        destination: Where to put them.
        actor_id: Whose; everybody's unless given.
        existing: What to do where another session has the key: ``fail``, which is an outcome and no exception; ``skip``, and
            leave it alone; or ``replace`` it in one commit, with the times of the source where the destination has ``restore``.
        prune: Afterwards delete from the destination what the source does not have, of the actors that were copied; each is looked for in
            the source once more before. Where the outcome of any session is ``failed``, nothing is deleted, and where the source has
            no session at all, that is an error: it is more likely another store than the one that was meant. Only towards a store that
            holds nothing but this copy.
        concurrency: How many sessions are under way at a time, each of them whole in memory.

    Raises:
        ConfigurationError: The source has no session, and pruning would delete every one. Nothing was deleted.
        ProtocolError: One of the two as a whole cannot be used: it is damaged, of a newer version, or no store.
        UnsupportedError: The source cannot list its sessions, or the destination has neither ``restore`` nor ``revisions``; or it cannot
            list or delete what is to be pruned.
        StoreUnavailableError: One of the two cannot be reached.
    """
    need(source, "copy_sessions", *_listing(actor_id))
    _check_destination(destination, "copy_sessions", existing)
    if prune:
        need(destination, "copy_sessions with prune", "delete", *_listing(actor_id))
    if concurrency < 1:
        raise ConfigurationError("concurrency must be at least 1")
    return _copy(source, destination, actor_id, existing, concurrency, prune=prune)


async def _copy(
    source: SessionStore,
    destination: SessionStore,
    actor_id: str | AllActors | None,
    existing: Existing,
    concurrency: int,
    *,
    prune: bool,
) -> AsyncGenerator[Transferred]:
    seen: set[bytes] = set()
    told: set[tuple[str | None, str | None]] = set()
    gaps: list[Gap] = []
    whole_walk, read = True, 0

    async def one(info: SessionInfo | Gap) -> Transferred | None:
        if isinstance(info, Gap):
            gaps.append(info)
            return None
        if prune:
            seen.add(_digest(info))
        try:
            whole = await _read(source, info)
        except ProtocolError as error:
            return _failed(info, f"cannot be read: {error}")
        return None if whole is None else await _put(destination, whole, existing, check=True)

    async with (
        aclosing(walk(source, actor_id)) as listed,
        aclosing(_at_once(listed, one, concurrency)) as done,
    ):
        async for outcome in done:
            if outcome is not None:
                read += 1
                if outcome.outcome == "failed":
                    whole_walk = False
                    told.add((outcome.actor_id, outcome.id))
                yield outcome
    async with aclosing(unlisted(source, actor_id, read, told, gaps)) as hidden:
        async for damage in hidden:
            whole_walk = False
            yield _failed(damage, f"cannot be read: {damage.problem}" if damage.id else damage.problem)
    if prune and whole_walk:
        async with aclosing(_prune(source, destination, actor_id, seen)) as pruned:
            async for outcome in pruned:
                yield outcome


async def _prune(
    source: SessionStore, destination: SessionStore, actor_id: str | AllActors | None, seen: set[bytes]
) -> AsyncGenerator[Transferred]:
    """Delete from the destination what is neither in ``seen`` nor in the source."""
    async with aclosing(walk(destination, actor_id)) as listed:
        async for info in listed:
            if isinstance(info, Gap):
                yield _failed(None, f"in the destination: {info.problem}")
                continue
            if _digest(info) in seen:
                continue
            try:
                # Begun, or begun anew, since the list of the source was beyond its place.
                if await _snapshot(source, info.id, info.actor_id) is not None:
                    continue
            except ProtocolError as error:
                yield _failed(info, f"cannot be read: {error}")
                continue
            if not seen:
                raise _empty(actor_id)
            if await destination.delete(info.id, actor_id=info.actor_id):
                yield Transferred(id=info.id, actor_id=info.actor_id, outcome="pruned")


def _empty(actor_id: str | AllActors | None) -> ConfigurationError:
    whose, instead = (
        ("", "begin with a new store in its place")
        if actor_id is ALL_ACTORS
        else (" of this actor", "delete them there")
    )
    return ConfigurationError(
        f"the source has no session{whose}, and to prune would delete every one that the destination has; nothing was deleted. "
        f"See whether it is the source that was meant; if so, {instead}"
    )


def need(store: SessionStore, operation: str, *capabilities: str) -> None:
    """Refuse a store that lacks a capability.

    Raises:
        UnsupportedError: It does.
    """
    for capability in capabilities:
        if capability not in store.capabilities:
            raise UnsupportedError(
                f"{operation} needs the capability {capability}, which {type(store).__name__} does not have",
                operation=operation,
                capability=capability,
            )


def _listing(actor_id: str | AllActors | None) -> tuple[str, ...]:
    return ("sessions", "all_actors") if actor_id is ALL_ACTORS else ("sessions",)


def _check_destination(store: SessionStore, operation: str, existing: Any) -> None:
    if existing not in get_args(Existing):
        raise ConfigurationError(f"existing is one of {', '.join(get_args(Existing))}, not {existing!r}")
    if existing == "replace" or "restore" not in store.capabilities:
        need(store, operation, "revisions")


async def _read(store: SessionStore, info: SessionInfo) -> WholeSession | None:
    """Return the session in one snapshot, or ``None`` where it was deleted since it was listed.

    Raises:
        ProtocolError: It cannot be read.
    """
    snapshot = await _snapshot(store, info.id, info.actor_id)
    if snapshot is None:
        return None
    # Where it was written since it was listed, that was about now.
    updated_at = info.updated_at if snapshot.revision == info.revision else time.time()
    return WholeSession(
        id=info.id,
        actor_id=info.actor_id,
        messages=tuple(transcript.without_reasoning(snapshot.messages)),
        state=snapshot.state,
        metadata=snapshot.metadata,
        created_at=info.created_at,
        updated_at=updated_at,
        revision=snapshot.revision,
    )


async def _put(store: SessionStore, whole: WholeSession, existing: Existing, *, check: bool) -> Transferred:
    """Write a session unless it is there; with ``check``, read it back.

    Raises:
        StoreError: Not this session is refused, but the store cannot be used.
    """
    try:
        for _ in range(ATTEMPTS):
            found = await _snapshot(store, whole.id, whole.actor_id)
            if found is not None and _same(found, whole):
                return _done(whole, "same")
            if found is not None and existing == "skip":
                return _done(whole, "skipped")
            if found is not None and existing == "fail":
                return _failed(whole, TAKEN)
            try:
                commit = await _write(store, whole, found)
            except ConflictError:
                continue  # somebody else was first: look again
            if check:
                back = await _snapshot(store, whole.id, whole.actor_id)
                if back is None or not _same(back, whole):
                    return _failed(whole, _difference(commit, back))
            return _done(whole, "written" if found is None else "replaced")
    except (ProtocolError, UnsupportedError, ConfigurationError) as error:
        # What also befalls one that was never there is no matter of this session, and would befall all that follow.
        never = uuid.uuid4().hex
        await _snapshot(store, never, never)
        return _failed(whole, str(error))
    return _failed(whole, "others write to it all the while; try again when they are done")


async def _write(store: SessionStore, whole: WholeSession, found: Snapshot | None) -> Commit:
    """Write a session where there is none, or in the place of ``found`` as long as that is as it was."""
    options: dict[str, Any] = {
        "messages": whole.messages,
        "state": whole.state,
        "metadata": whole.metadata,
        "actor_id": whole.actor_id,
    }
    if found is not None:
        options["expected_revision"] = found.revision
        if "restore" not in store.capabilities:
            return await store.replace(whole.id, **options)
    return await store.restore(whole.id, created_at=whole.created_at, updated_at=whole.updated_at, **options)


def _difference(commit: Commit, back: Snapshot | None) -> str:
    if back is not None and back.revision == commit.revision:
        return "what is read back is not what was written; the destination does not keep what it is given"
    return "it was changed in the destination before it could be read back; run the copy again"


def _same(found: Snapshot, whole: WholeSession) -> bool:
    """Whether what is stored is the same JSON; times and revisions are no part of it."""
    return (
        found.count == len(found.messages) == len(whole.messages)
        and _equal(found.state, whole.state)
        and _equal(found.metadata, whole.metadata)
        and all(
            _equal_messages(found.messages[start : start + PART], whole.messages[start : start + PART])
            for start in range(0, len(whole.messages), PART)
        )
    )


def _equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return data.equal(_encode(left), _encode(right))


def _equal_messages(left: tuple[Message, ...], right: tuple[Message, ...]) -> bool:
    return data.equal(pack_messages(left)[0], pack_messages(right)[0])


_encode = msgspec.json.Encoder().encode


async def _snapshot(store: SessionStore, id: str, actor_id: str | None) -> Snapshot | None:
    # A store of somebody's own may answer with a mapping, and this reads both.
    return await store._snapshot(id, actor_id)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _done(whole: WholeSession, outcome: Outcome) -> Transferred:
    return Transferred(
        id=whole.id, actor_id=whole.actor_id, outcome=outcome, count=len(whole.messages), problem=None
    )


def _failed(what: WholeSession | SessionInfo | Flaw | Damage | None, problem: str) -> Transferred:
    id, actor_id = (what.id, what.actor_id) if what else (None, None)
    return Transferred(id=id, actor_id=actor_id, outcome="failed", problem=problem)


def _again(whole: WholeSession, seen: set[bytes]) -> bool:
    """Whether the key is one of ``seen``, and let it be one of them from now on."""
    key = _digest(whole)
    if key in seen:
        return True
    seen.add(key)
    return False


def _digest(what: WholeSession | SessionInfo) -> bytes:
    """Return what stands for the key of a session in 16 bytes, for there may be millions."""
    return blake2b(data.pack([what.actor_id, what.id]), digest_size=16).digest()


def _nobody(_: Transferred) -> None:
    pass


async def _each(lines: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(lines, str | bytes | bytearray):
        raise ConfigurationError("lines must be an iterable of bytes; pass a file as open(path, 'rb')")
    if isinstance(lines, AsyncIterable):
        async for chunk in lines:
            yield _bytes(chunk)
    else:
        for chunk in lines:
            yield _bytes(chunk)


def _bytes(chunk: Any) -> bytes:
    if not isinstance(chunk, bytes):
        raise ConfigurationError(
            f"lines must be bytes, not {data.kind(chunk)}; open the file in binary mode, as open(path, 'rb')"
        )
    return chunk


async def _at_once(
    items: AsyncIterator[Item], work: Callable[[Item], Awaitable[Answer]], width: int
) -> AsyncGenerator[Answer]:
    """Yield what ``work`` answers for each item, in order, with ``width`` of them under way; none of them outlives this."""
    running: deque[asyncio.Future[Answer]] = deque()
    try:
        async for item in items:
            running.append(asyncio.ensure_future(work(item)))
            if len(running) == width:
                yield await _first(running)
        while running:
            yield await _first(running)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _first(running: deque[asyncio.Future[Answer]]) -> Answer:
    answer = await running[0]
    running.popleft()
    return answer
