"""The kit against stores with one fault each, in what they offer beyond reading and writing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from clauses import LARGE

from littleghost import transcript
from littleghost.errors import CorruptSessionError, DataError, SessionNotFoundError
from littleghost.message import Message
from littleghost.sessions import memory
from littleghost.sessions.commits import lease_lost
from littleghost.sessions.contract import (
    ALL_ACTORS,
    Lease,
    Page,
    SessionInfo,
    SessionLimits,
    SessionStore,
)
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.records import PART, Record
from littleghost.testing import store_leases, store_lists, store_service, store_volume
from littleghost.testing.conformance import ClauseFailure
from littleghost.testing.store_kit import check_store, store_clauses


def changed(value: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(value, **fields)


# Leases and fencing


class LeasesOutliveTheirBlock(MemoryStore):
    """A lease is over when the next one begins, and not before."""

    @contextlib.asynccontextmanager
    async def _lease(self, key, timeout):
        async with self._hold(("lease", key), key[1], timeout):
            lease = self._leases[key] = Lease(token=str(time.perf_counter_ns()))
            yield lease


class ForgetsWhatItDidUnderALease(MemoryStore):
    """Looks at the lease first, and only then whether it has the commit."""

    async def _write(self, key, commit, expected_count, expected_revision, lease):
        if lease is not None and self._leases.get(key) != lease:
            raise lease_lost(key[1])
        return await super()._write(key, commit, expected_count, expected_revision, lease)


class FencesEverybody(MemoryStore):
    """Who names no lease is refused while another has one."""

    async def _write(self, key, commit, expected_count, expected_revision, lease):
        if lease is None and key in self._leases:
            raise lease_lost(key[1])
        return await super()._write(key, commit, expected_count, expected_revision, lease)


class TakesAnyLiveLease(MemoryStore):
    """It is enough that the lease is somebody's."""

    async def _write(self, key, commit, expected_count, expected_revision, lease):
        if lease in self._leases.values():
            lease = None
        return await super()._write(key, commit, expected_count, expected_revision, lease)


class ChecksNoLease(MemoryStore):
    async def _write(self, key, commit, expected_count, expected_revision, lease):
        return await super()._write(key, commit, expected_count, expected_revision, None)


class WritesBeforeItChecks(MemoryStore):
    """The refusal comes after the writing."""

    async def _write(self, key, commit, expected_count, expected_revision, lease):
        answer = await super()._write(key, commit, expected_count, expected_revision, None)
        if lease is not None and self._leases.get(key) != lease:
            raise lease_lost(key[1])
        return answer


class LosesALeaseThatIsWaitedFor(MemoryStore):
    @contextlib.asynccontextmanager
    async def _lease(self, key, timeout):
        if key in self._leases:
            self._leases[key] = Lease(token="waiting")
        async with super()._lease(key, timeout) as lease:
            yield lease


class HasOneLeaseForAll(MemoryStore):
    """Its tokens are those of the session, not of the holder."""

    @contextlib.asynccontextmanager
    async def _lease(self, key, timeout):
        async with super()._lease(key, timeout):
            lease = self._leases[key] = Lease(token=repr(key))
            yield lease


# Large commits, and parts of histories


class TakesACountInside(MemoryStore):
    """An append that expects the messages of the first parts of a commit is accepted."""

    async def append(self, id, *, expected_count, actor_id=None, **options):
        snapshot = await self.load(id, actor_id=actor_id)
        if snapshot and expected_count and expected_count % PART == 0 and expected_count < snapshot.count:
            expected_count = snapshot.count
        return await super().append(id, expected_count=expected_count, actor_id=actor_id, **options)


class FirstPart(Record):
    def digest(self) -> bytes:
        small = changed(self, body=self.parts()[0][0])
        return Record.digest(small)


class ComparesTheFirstPart(MemoryStore):
    """Of a repeated commit only the first messages are looked at."""

    async def _write(self, key, commit, *rest):
        fields = {name: getattr(commit, name) for name in Record.__struct_fields__}
        return await super()._write(key, FirstPart(**fields), *rest)


class WritesLargeCommitsInParts(MemoryStore):
    """A reader may come between the parts."""

    async def replace(self, id, *, messages, commit_id=None, **options):
        if commit_id is not None or len(messages) <= PART:
            return await super().replace(id, messages=messages, commit_id=commit_id, **options)
        await super().replace(id, messages=messages[:PART], **options)
        await asyncio.sleep(0)
        options.pop("expected_revision", None)
        return await super().append(id, messages=messages[PART:], expected_count=PART, **options)


class CutsLongTexts(MemoryStore):
    """As a column with a length would."""

    async def append(self, id, *, messages, **options):
        cut = [
            Message(message.role, message.text[:16_000_000]) if len(message.text) > 16_000_000 else message
            for message in messages
        ]
        return await super().append(id, messages=cut, **options)


class TailsFromTheFirstParts(MemoryStore):
    """Wrong where a page begins in the third part of a commit."""

    async def tail(self, id, *, limit, before=None, actor_id=None):
        page = await super().tail(id, limit=limit, before=before, actor_id=actor_id)
        snapshot = await self.load(id, actor_id=actor_id)
        if page.cursor and snapshot and snapshot.count > 1200 and page.cursor > 2 * PART:
            return changed(page, items=snapshot.messages[page.cursor - 1 :][: len(page.items)])
        return page


class LosesItsPlaceAfterReplaces(MemoryStore):
    """The second replace of a session leaves the pages without an end."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: dict[Any, int] = {}

    async def replace(self, id, **options):
        self.replaced[id] = self.replaced.get(id, 0) + 1
        return await super().replace(id, **options)

    async def tail(self, id, **options):
        page = await super().tail(id, **options)
        return changed(page, cursor=None) if self.replaced.get(id, 0) > 1 else page


class ForksParts(MemoryStore):
    """A fork ends where a part does."""

    async def fork(self, id, new_id, *, at=None, actor_id=None):
        if at is not None and at > PART:
            at -= at % PART
        return await super().fork(id, new_id, at=at, actor_id=actor_id)


class LooksForCallsInOnePart(MemoryStore):
    """What is in the part before is taken for settled."""

    async def fork(self, id, new_id, *, at=None, actor_id=None):
        snapshot = await self.load(id, actor_id=actor_id)
        if snapshot is None:
            raise SessionNotFoundError("none", id=id)
        at = len(snapshot.messages) if at is None else min(at, len(snapshot.messages))
        begin = at - at % PART if len(snapshot.messages) > PART else 0
        kept = begin + transcript.cut(snapshot.messages[begin:], at - begin)
        return await self.replace(
            new_id,
            messages=snapshot.messages[:kept],
            state=snapshot.state,
            metadata=snapshot.metadata,
            actor_id=actor_id,
            expected_revision=None,
        )


# Lists


class Lists(MemoryStore):
    """Its lines go through `line`."""

    def line(self, info: SessionInfo) -> SessionInfo:
        return info

    async def sessions(self, **options):
        page = await super().sessions(**options)
        return changed(page, items=tuple(map(self.line, page.items)))


class HasAnotherClock(MemoryStore):
    """Two hours fast, as where a local time is taken for the world's."""

    async def _write(self, key, commit, *rest):
        now = time.time() + 7200
        commit = changed(
            commit,
            created_at=now if commit.created_at is None else commit.created_at,
            updated_at=now if commit.updated_at is None else commit.updated_at,
        )
        return await super()._write(key, commit, *rest)


class IsMadeWithEachWrite(Lists):
    def line(self, info):
        return changed(info, created_at=info.updated_at)


class TakesReadingForWriting(MemoryStore):
    async def load(self, id, *, actor_id=None):
        if kept := self._kept.get((actor_id, id)):
            kept.updated = time.time()
        return await super().load(id, actor_id=actor_id)


class SortsItself(MemoryStore):
    """Makes its own pages, of what `order_of` puts first; its cursor is the last key that was shown."""

    def order_of(self, info: SessionInfo, order: str) -> Any:
        return (
            (-(info.updated_at or 0), str(info.actor_id), info.id)
            if order == "updated"
            else (str(info.actor_id), info.id)
        )

    def shown(self, key: Any, after: Any) -> bool:
        return key > after

    async def sessions(self, *, limit=100, cursor=None, order="id", **options):
        await super().sessions(limit=limit, cursor=cursor, order=order, **options)
        infos = (await super().sessions(limit=10**6, order=order, **options)).items
        found = sorted((self.order_of(info, order), info) for info in infos)
        if cursor is not None:
            place = memory.check_listing(options.get("actor_id"), limit, cursor, order).after
            after = self._seen[place.actor_id, place.id]
            found = [pair for pair in found if self.shown(pair[0], after)]
        self._seen = {
            **getattr(self, "_seen", {}),
            **{(info.actor_id, info.id): key for key, info in found[:limit]},
        }
        asked = memory.check_listing(options.get("actor_id"), limit, cursor, order)
        return asked.page([info for _, info in found])


class SortsByCreation(SortsItself):
    def order_of(self, info, order):
        if order == "updated":
            return (-(info.created_at or 0), str(info.actor_id), info.id)
        return super().order_of(info, order)


class SortsByActorFirst(SortsItself):
    def order_of(self, info, order):
        if order == "updated":
            return (str(info.actor_id), -(info.updated_at or 0), info.id)
        return super().order_of(info, order)


class GoesOnAfterTheMoment(SortsItself):
    """A page goes on with what is older, and forgets what is as old."""

    def shown(self, key, after):
        return key[0] > after[0] if isinstance(after[0], float) else key > after


class PagesByNumber(MemoryStore):
    """Its cursor is how many have been shown."""

    async def sessions(self, *, limit=100, cursor=None, **options):
        memory.check_listing(options.get("actor_id"), limit, None)
        infos = (await super().sessions(limit=10**6, **options)).items
        start = int(cursor or 0)
        more = start + limit < len(infos)
        return Page(items=infos[start : start + limit], cursor=str(start + limit) if more else None)


class BoundsOneOrder(MemoryStore):
    """`since` and `until` are forgotten in a list by id."""

    async def sessions(self, *, order="id", since=None, until=None, **options):
        await super().sessions(order=order, since=since, until=until, **options)
        if order == "id":
            since = until = None
        return await super().sessions(order=order, since=since, until=until, **options)


class IncludesTheEnd(MemoryStore):
    async def sessions(self, *, until=None, **options):
        if isinstance(until, float) and math.isfinite(until):
            until = math.nextafter(until, math.inf)
        return await super().sessions(until=until, **options)


class TakesAnyCursor(MemoryStore):
    """Of one that it cannot read it begins anew."""

    async def sessions(self, *, cursor=None, **options):
        try:
            return await super().sessions(cursor=cursor, **options)
        except DataError as error:
            if "cursor" not in str(error):
                raise
            return await super().sessions(**options)


class ListsAllToNobody(MemoryStore):
    """No actor means no condition."""

    async def sessions(self, *, actor_id=None, **options):
        return await super().sessions(actor_id=ALL_ACTORS if actor_id is None else actor_id, **options)


class LeavesNobodyOut(MemoryStore):
    async def sessions(self, *, actor_id=None, **options):
        page = await super().sessions(actor_id=actor_id, **options)
        if actor_id is not ALL_ACTORS:
            return page
        return changed(page, items=tuple(info for info in page.items if info.actor_id is not None))


# Figures


class CountsCharacters(Lists):
    def characters(self, key: Any) -> int:
        kept = self._kept[key]
        return sum(len(part.decode()) for part in (*kept.bodies, kept.state, kept.metadata))

    def line(self, info):
        return changed(info, size=self.characters((info.actor_id, info.id)))

    async def statistics(self, *, actor_id=ALL_ACTORS):
        found = await super().statistics(actor_id=actor_id)
        keys = [key for key in self._kept if actor_id in (ALL_ACTORS, key[0])]
        return changed(found, size=sum(map(self.characters, keys)))


class GrowsWithEveryCommit(Lists):
    """Counts a little for each commit, and with it what was stored before."""

    def line(self, info):
        return changed(info, size=info.size + self._kept[info.actor_id, info.id].number)

    async def statistics(self, *, actor_id=ALL_ACTORS):
        found = await super().statistics(actor_id=actor_id)
        kept = [kept for key, kept in self._kept.items() if actor_id in (ALL_ACTORS, key[0])]
        return changed(found, size=found.size + sum(one.number for one in kept))


class CountsTheDeleted(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[Any, int] = {}

    async def delete(self, id, *, actor_id=None):
        kept = self._kept.get((actor_id, id))
        self.gone[actor_id] = self.gone.get(actor_id, 0) + (kept.head.count if kept else 0)
        return await super().delete(id, actor_id=actor_id)

    async def statistics(self, *, actor_id=ALL_ACTORS):
        found = await super().statistics(actor_id=actor_id)
        return changed(found, messages=found.messages + self.gone.get(actor_id, 0))


class CountsNobodyByDefault(MemoryStore):
    async def statistics(self, *, actor_id=None):
        return await super().statistics(actor_id=actor_id)


# Limits


class ForksAnything(MemoryStore):
    """A fork is not looked at."""

    async def fork(self, id, new_id, **options):
        limits, self.limits = self.limits, SessionLimits()
        try:
            return await super().fork(id, new_id, **options)
        finally:
            self.limits = limits


class Kept(memory._Kept):
    """What is looked at is `room_for`."""

    def room_for(self, commit: Record) -> Record:
        return commit

    def check_room(self, limits, commit):
        super().check_room(limits, self.room_for(commit))


class Keeps(MemoryStore):
    kept: type[Kept] = Kept

    async def _write(self, *arguments):
        made, memory._Kept = memory._Kept, self.kept
        try:
            return await super()._write(*arguments)
        finally:
            memory._Kept = made


class WithoutMetadata(Kept):
    def room_for(self, commit):
        return changed(commit, metadata=b"{}")

    @property
    def size(self) -> int:
        return super().size - len(self.metadata) + 2


class MeasuresNoMetadata(Keeps):
    kept = WithoutMetadata


class OneLess(Kept):
    def check_room(self, limits, commit):
        super().check_room(
            changed(limits, messages=None if limits.messages is None else limits.messages - 1), commit
        )


class AllowsOneLess(Keeps):
    kept = OneLess


class NeverBeyond(Kept):
    def check_room(self, limits, commit):
        fresh = memory._Kept()
        if commit.kind == "append":
            fresh.bodies, fresh.ends = self.bodies, self.ends
        head, fresh.state, fresh.metadata = fresh.head, b"", b""
        bodies = sum(map(len, fresh.bodies)) + sum(len(body) for body, count in commit.parts() if count)
        memory.check_room(
            limits,
            messages=head.count + commit.count,
            size=bodies + len(commit.state) + len(commit.metadata),
            before=(0, 0),
        )


class RefusesToShrink(Keeps):
    """Whatever leaves a session beyond a limit is refused, also what makes it smaller."""

    kept = NeverBeyond


class LooksForRoomFirst(MemoryStore):
    """And only then whether it has the commit already."""

    async def _write(self, key, commit, *rest):
        (self._kept.get(key) or memory._Kept()).check_room(self.limits, commit)
        return await super()._write(key, commit, *rest)


class LimitsAll(MemoryStore):
    """What is set on one store is set on all."""

    @property
    def limits(self) -> SessionLimits:
        return type(self).of_all

    @limits.setter
    def limits(self, limits: SessionLimits) -> None:
        type(self).of_all = limits

    of_all = SessionLimits()


# Restoring


class ForgetsTimes(MemoryStore):
    async def restore(self, id, *, created_at=None, updated_at=None, **options):
        await super().restore(
            "checked",
            created_at=created_at,
            updated_at=updated_at,
            messages=[],
            state={},
            metadata={},
            actor_id=repr(time.perf_counter_ns()),
        )
        return await super().restore(id, **options)


class TakesAnyMoment(MemoryStore):
    """A time that is none is now."""

    async def restore(self, id, **options):
        for name in ("created_at", "updated_at"):
            value = options.get(name)
            if type(value) is not float or not math.isfinite(value):
                options.pop(name, None)
        return await super().restore(id, **options)


class RestoresNoMetadata(MemoryStore):
    async def restore(self, id, *, metadata, **options):
        return await super().restore(id, metadata={}, **options)


class RestoresOverAnyRevision(MemoryStore):
    """Does not look which revision is to be replaced."""

    async def restore(self, id, *, actor_id=None, expected_revision=None, **options):
        if expected_revision is not None:
            snapshot = await self.load(id, actor_id=actor_id)
            expected_revision = snapshot and snapshot.revision
        return await super().restore(id, actor_id=actor_id, expected_revision=expected_revision, **options)


class TellsOldMetadata(MemoryStore):
    """Lists tell the metadata that a session had first."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[Any, Any] = {}

    async def sessions(self, **options):
        page = await super().sessions(**options)
        items = [
            changed(item, metadata=self.first.setdefault((item.actor_id, item.id), item.metadata))
            for item in page.items
        ]
        return changed(page, items=tuple(items))


class RestoresOver(MemoryStore):
    async def restore(self, id, *, created_at=None, updated_at=None, **options):
        if (options.get("actor_id"), id) in self._kept:
            return await self.replace(id, **options)
        return await super().restore(id, created_at=created_at, updated_at=updated_at, **options)


# Expiring


class ExpiresByCreation(MemoryStore):
    async def expire(self, *, expire_after, limit=100):
        for kept in self._kept.values():
            kept.updated, kept.created = kept.created, kept.updated
        try:
            return await super().expire(expire_after=expire_after, limit=limit)
        finally:
            for kept in self._kept.values():
                kept.updated, kept.created = kept.created, kept.updated


class ExpiresAnyOfThem(MemoryStore):
    """Those that are young first, if they are old enough."""

    async def expire(self, *, expire_after, limit=100):
        await super().expire(expire_after=1e12, limit=limit)
        memory.check_expiry(expire_after, limit)
        before = time.time() - expire_after
        old = sorted(
            (key for key, kept in self._kept.items() if kept.updated < before),
            key=lambda key: -self._kept[key].updated,
        )[:limit]
        for key in old:
            del self._kept[key]
        return len(old)


class ExpiresAllAtOnce(MemoryStore):
    async def expire(self, *, expire_after, limit=100):
        memory.check_expiry(expire_after, limit)
        return await super().expire(expire_after=expire_after, limit=10**6)


class LooksAndExpiresLater(MemoryStore):
    """What is written between looking and deleting is deleted too."""

    async def expire(self, *, expire_after, limit=100):
        memory.check_expiry(expire_after, limit)
        before = time.time() - expire_after
        old = sorted((kept.updated, key[1], key) for key, kept in self._kept.items() if kept.updated < before)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return sum([self._kept.pop(key, None) is not None for *_, key in old[:limit]])


class BeginsAnewAsBefore(MemoryStore):
    """A session that is made after one of its name expired has the revisions of that one."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[Any, int] = {}

    async def expire(self, **options):
        before = dict(self._kept)
        answer = await super().expire(**options)
        self.epochs |= {key: kept.epoch for key, kept in before.items() if key not in self._kept}
        return answer

    async def _write(self, key, *rest):
        answer = await super()._write(key, *rest)
        if key in self.epochs and self._kept[key].number == 1:
            self._kept[key].epoch = self.epochs.pop(key)
            return self._kept[key].head
        return answer


class TakesAnyAge(MemoryStore):
    """What is no age is no time at all."""

    async def expire(self, *, expire_after, limit=100):
        if not isinstance(expire_after, int | float) or not expire_after > 0:
            expire_after = 1e12
        return await super().expire(expire_after=expire_after, limit=limit)


class ExpiresForOneActor(MemoryStore):
    async def expire(self, *, expire_after, limit=100):
        others = {key: self._kept.pop(key) for key in list(self._kept) if key[0] != "kit"}
        try:
            return await super().expire(expire_after=expire_after, limit=limit)
        finally:
            self._kept |= others


# Looking for damage


class VerifiesTheBeginning(MemoryStore):
    async def verify(self, *, limit=100, cursor=None):
        return changed(await super().verify(limit=limit, cursor=cursor), cursor=None)


class SeesDamageEverywhere(MemoryStore):
    """As one does whose rule is wrong for some sound sessions."""

    async def _snapshot(self, id, actor_id):
        snapshot = await super()._snapshot(id, actor_id)
        if snapshot and snapshot.count > PART:
            raise CorruptSessionError("more messages than in one part")
        return snapshot

    async def fork(self, id, new_id, **options):
        snapshot = MemoryStore._snapshot
        whole, type(self)._snapshot = type(self)._snapshot, snapshot
        try:
            return await super().fork(id, new_id, **options)
        finally:
            type(self)._snapshot = whole


class ClaimsToRestore(SessionStore):
    """Three methods, no capability, and an answer to a restore that it cannot keep."""

    def __init__(self) -> None:
        self.inner = MemoryStore()

    async def load(self, id, *, actor_id=None):
        snapshot = await self.inner.load(id, actor_id=actor_id)
        return snapshot and changed(snapshot, revision=None)

    async def append(self, id, **options):
        return changed(await self.inner.append(id, **options), revision=None)

    async def replace(self, id, **options):
        return changed(await self.inner.replace(id, **options), revision=None)

    async def restore(self, id, *, created_at=None, updated_at=None, **options):
        return await self.replace(id, **options)


class ClaimsToCount(ClaimsToRestore):
    restore = SessionStore.restore

    async def statistics(self, *, actor_id=ALL_ACTORS):
        return await self.inner.statistics(actor_id=actor_id)


QUICK = {clause.name for clause in store_clauses()} - LARGE
FAULTS: dict[type[SessionStore], set[str]] = {
    ForgetsWhatItDidUnderALease: {"what-was-written-under-a-lease-stays-written"},
    LeasesOutliveTheirBlock: {"nothing-is-written-under-a-lease-that-has-ended"},
    FencesEverybody: {"a-write-under-a-lease-is-a-write"},
    TakesAnyLiveLease: {"a-lease-serves-its-own-session"},
    ChecksNoLease: {"nothing-is-written-under-a-lease-that-has-ended", "a-lease-serves-its-own-session"},
    WritesBeforeItChecks: {
        "what-was-written-under-a-lease-stays-written",
        "nothing-is-written-under-a-lease-that-has-ended",
        "a-lease-serves-its-own-session",
    },
    LosesALeaseThatIsWaitedFor: {"many-holders-in-turn-write-in-turn"},
    HasOneLeaseForAll: {"a-lease-has-one-holder", "nothing-is-written-under-a-lease-that-has-ended"},
    TakesACountInside: {"a-commit-of-a-thousand-messages-is-one-commit"},
    ComparesTheFirstPart: {"a-commit-of-a-thousand-messages-can-be-repeated"},
    WritesLargeCommitsInParts: {"a-reader-sees-large-commits-whole"},
    CutsLongTexts: {"twenty-megabytes-in-one-message-are-stored-or-refused"},
    TailsFromTheFirstParts: {
        "a-tail-of-a-large-commit-begins-and-ends-anywhere",
        "a-tail-is-a-slice-of-any-history",
    },
    LosesItsPlaceAfterReplaces: {"a-tail-is-a-slice-of-any-history"},
    ForksParts: {"a-fork-of-a-large-commit-ends-anywhere", "a-fork-parts-no-call-of-a-large-commit"},
    LooksForCallsInOnePart: {"a-fork-parts-no-call-of-a-large-commit"},
    HasAnotherClock: {"a-list-tells-when-sessions-were-written", "what-is-restored-keeps-its-times"},
    IsMadeWithEachWrite: {
        "a-session-is-restored-over-the-revision-that-is-named",
        "a-list-tells-when-sessions-were-written",
        "what-is-restored-keeps-its-times",
    },
    TakesReadingForWriting: {
        "a-session-is-restored-over-the-revision-that-is-named",
        "a-list-tells-when-sessions-were-written",
        "the-oldest-expire-first-and-no-more-than-are-asked-for",
    },
    SortsByCreation: {
        "what-was-written-last-comes-first",
        "a-list-by-time-goes-on-while-sessions-are-written",
    },
    SortsByActorFirst: {"everybodys-sessions-are-listed-by-time"},
    GoesOnAfterTheMoment: {
        "sessions-of-one-moment-are-listed-once",
        "everybodys-sessions-are-listed-by-time",
    },
    PagesByNumber: {
        "a-list-by-id-goes-on-while-sessions-are-written",
        "a-list-by-time-goes-on-while-sessions-are-written",
        "a-cursor-of-another-list-is-refused",
    },
    BoundsOneOrder: {"a-span-of-time-has-its-beginning-and-not-its-end"},
    IncludesTheEnd: {
        "a-span-of-time-has-its-beginning-and-not-its-end",
        "sessions-of-one-moment-are-listed-once",
    },
    TakesAnyCursor: {"a-cursor-of-another-list-is-refused"},
    ListsAllToNobody: {"everybodys-sessions-are-listed-once"},
    LeavesNobodyOut: {
        "everybodys-sessions-are-listed-once",
        "everybodys-sessions-are-listed-by-time",
        "statistics-of-everybody-are-the-sums-of-all",
    },
    CountsCharacters: {"a-size-is-that-of-what-is-stored"},
    GrowsWithEveryCommit: {"a-size-is-that-of-what-is-stored"},
    CountsTheDeleted: {"statistics-are-the-sums-of-a-list"},
    CountsNobodyByDefault: {"statistics-of-everybody-are-the-sums-of-all"},
    ForksAnything: {"a-limit-of-messages-is-kept"},
    MeasuresNoMetadata: {"a-limit-of-size-is-kept", "a-size-is-that-of-what-is-stored"},
    AllowsOneLess: {
        "a-limit-of-messages-is-kept",
        "a-session-beyond-a-limit-can-shrink",
        "a-repeated-commit-is-not-too-large",
    },
    RefusesToShrink: {"a-session-beyond-a-limit-can-shrink"},
    LooksForRoomFirst: {"a-repeated-commit-is-not-too-large"},
    LimitsAll: {"limits-are-those-of-one-store"},
    ForgetsTimes: {
        "a-session-is-restored-over-the-revision-that-is-named",
        "what-is-restored-keeps-its-times",
        "sessions-of-one-moment-are-listed-once",
        "everybodys-sessions-are-listed-by-time",
        "old-sessions-expire-and-no-others",
        "the-oldest-expire-first-and-no-more-than-are-asked-for",
        "an-expired-session-can-be-made-anew",
    },
    TakesAnyMoment: {"what-is-restored-keeps-its-times"},
    RestoresNoMetadata: {
        "a-session-is-restored-over-the-revision-that-is-named",
        "what-is-restored-is-a-session-like-any-other",
    },
    RestoresOver: {
        "a-session-is-restored-over-the-revision-that-is-named",
        "nothing-is-restored-over-a-session",
    },
    RestoresOverAnyRevision: {"a-session-is-restored-over-the-revision-that-is-named"},
    TellsOldMetadata: {"metadata-in-a-list-are-those-of-the-session"},
    ExpiresByCreation: {
        "old-sessions-expire-and-no-others",
        "what-is-written-meanwhile-does-not-expire",
    },
    ExpiresForOneActor: {"old-sessions-expire-and-no-others"},
    ExpiresAnyOfThem: {"the-oldest-expire-first-and-no-more-than-are-asked-for"},
    ExpiresAllAtOnce: {"the-oldest-expire-first-and-no-more-than-are-asked-for"},
    LooksAndExpiresLater: {"what-is-written-meanwhile-does-not-expire"},
    BeginsAnewAsBefore: {"an-expired-session-can-be-made-anew"},
    TakesAnyAge: {"nothing-expires-by-mistake"},
    VerifiesTheBeginning: {"a-healthy-store-has-no-damage"},
    SeesDamageEverywhere: {"a-healthy-store-has-no-damage"},
    ClaimsToRestore: {"what-is-not-offered-is-refused"},
    ClaimsToCount: {"what-is-not-offered-is-refused"},
}


@pytest.mark.parametrize("broken", FAULTS, ids=lambda broken: broken.__name__)
async def test_a_broken_store_fails_the_clauses_of_its_fault_and_no_other(
    broken: type[SessionStore], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_lists, "MOMENT", 0.002)
    report = await check_store(broken, only=QUICK | FAULTS[broken])
    assert {outcome.name for outcome in report.failed} == FAULTS[broken], str(report)
    with pytest.raises(ClauseFailure, match="failed"):
        report.raise_for_failures()


async def test_making_its_own_pages_is_no_fault():
    report = await check_store(SortsItself)
    assert not report.failed, str(report)


UNFENCED = """
import contextlib, functools, os
from littleghost.sessions.contract import Lease
from littleghost.sessions.sqlite import SQLiteStore

class Unfenced(SQLiteStore):
    "Takes a lease with a write, and does not look at it."

    capabilities = SQLiteStore.capabilities | {"fencing"}

    async def append(self, id, *, lease=None, **options):
        return await super().append(id, **options)

    async def replace(self, id, *, lease=None, **options):
        return await super().replace(id, **options)

class Halving(SQLiteStore):
    "Writes what is long in two transactions."

    async def append(self, id, *, messages, commit_id=None, **options):
        half = len(messages) // 2
        if half > 100:
            first = await super().append(id, messages=messages[:half], **options)
            options["expected_revision"], messages = first.revision, messages[half:]
            options["expected_count"] += half
        return await super().append(id, messages=messages, commit_id=commit_id, **options)

unfenced = functools.partial(Unfenced, os.environ["FAULTS_FILE"])
halving = functools.partial(Halving, os.environ["FAULTS_FILE"], durability="off")
"""


async def test_faults_that_only_other_stores_and_processes_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "faulty_files.py").write_text(UNFENCED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FAULTS_FILE", str(tmp_path / "faults.db"))
    by_name = partial(check_store, persistent=True, seconds=30)
    import faulty_files  # type: ignore[import-not-found]

    both = {"a-lease-that-another-store-took-over-is-lost", "a-lease-that-another-process-took-over-is-lost"}
    sound = {"a-write-under-a-lease-is-a-write", "many-holders-in-turn-write-in-turn"}
    report = await by_name(faulty_files.unfenced, importable="faulty_files:unfenced", only=both | sound)
    assert {outcome.name for outcome in report.failed} == both, str(report)
    assert {outcome.name for outcome in report.passed} == sound, str(report)
    killed = "a-killed-writer-of-large-commits-loses-nothing"
    for _ in range(
        10
    ):  # it has to die between two transactions, which on a busy machine may take a few attempts
        report = await by_name(faulty_files.halving, importable="faulty_files:halving", only=killed)
        if report.failed:
            break
    assert {outcome.name for outcome in report.failed} == {killed}, str(report)


def test_every_clause_about_what_is_offered_is_seen_to_fail():
    elsewhere = {
        "a-lease-that-another-store-took-over-is-lost",
        "a-lease-that-another-process-took-over-is-lost",
        "a-lease-is-waited-for",
        "a-lease-ends-with-its-process",
    }
    kits = (store_leases, store_volume, store_lists, store_service)
    named = {clause.name for kit in kits for clause in kit.CLAUSES}
    assert named - set().union(*FAULTS.values()) == elsewhere
