"""Writing under a lease: what a session does with it, and what a store refuses."""

from __future__ import annotations

import asyncio

import pytest

from littleghost import sync
from littleghost.errors import (
    ConflictError,
    LeaseLostError,
    ProtocolError,
    SessionBusyError,
    UnsupportedError,
)
from littleghost.message import Message
from littleghost.sessions.contract import Lease, SessionStore
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.session import Session


class Seized(MemoryStore):
    """A store whose leases can be taken away, as a holder that stood still for too long finds it."""

    def seize(self, id: str) -> None:
        self._leases[None, id] = Lease(token="another's")


async def test_a_holder_that_lost_its_lease_cannot_write_though_nobody_else_has():
    store = Seized()
    session = Session(id="a", store=store)
    async with session.lease():
        await session.append([Message.user("before")])
        store.seize("a")
        with pytest.raises(LeaseLostError, match="take it again"):
            await session.append([Message.user("late")])
        with pytest.raises(LeaseLostError):
            await session.replace([Message.user("late")])
        with pytest.raises(LeaseLostError):
            await session.checkpoint([Message.user("late")])
    assert [message.text for message in await session.history()] == ["before"]


async def test_update_does_not_try_again_under_a_lease_that_is_lost():
    store, asked = Seized(), list[int]()
    session = Session(id="a", store=store)
    async with session.lease():
        store.seize("a")
        with pytest.raises(LeaseLostError):
            await session.update(lambda snapshot: (asked.append(1) or [Message.user("x")], {}))
    assert len(asked) == 1


async def test_the_session_is_usable_again_once_the_lease_is_over():
    store = Seized()
    session = Session(id="a", store=store)
    async with session.lease():
        store.seize("a")
        with pytest.raises(ConflictError):
            await session.append([Message.user("late")])
    await session.append([Message.user("now")])
    async with session.lease():
        await session.append([Message.user("under the next")])
    assert (await store.load("a")).count == 2


async def test_another_session_object_waits_or_is_told_that_it_is_busy():
    store = MemoryStore()
    first, second = Session(id="a", store=store), Session(id="a", store=store)
    async with first.lease():
        with pytest.raises(SessionBusyError):
            async with second.lease(timeout=0):
                pass
        waiting = asyncio.create_task(second.lease().__aenter__())
        await asyncio.sleep(0.01)
        assert not waiting.done()
    assert (await waiting).token


async def test_a_lease_of_a_session_object_cannot_be_held_twice():
    session = Session(id="a", store=MemoryStore())
    async with session.lease():
        with pytest.raises(SessionBusyError):
            async with session.lease(timeout=0):
                pass
        await session.append([Message.user("still under the first")])
    assert session._lease is None


class WithoutFencing(MemoryStore):
    """Its leases do not reach its writes."""

    capabilities = MemoryStore.capabilities - {"fencing"}

    async def append(self, id, *, lease=None, **options):
        assert lease is None
        return await super().append(id, **options)


async def test_a_store_without_fencing_is_not_given_the_lease():
    session = Session(id="a", store=WithoutFencing())
    async with session.lease():
        await session.append([Message.user("x")])


async def test_a_store_without_leases_says_so():
    class Plain(SessionStore):
        async def load(self, id, *, actor_id=None):
            return None

        async def append(self, id, **options):
            return None

        async def replace(self, id, **options):
            return None

    with pytest.raises(UnsupportedError, match="Plain does not offer lease"):
        async with Session(id="a", store=Plain()).lease():
            pass


def test_the_synchronous_session_has_leases_too():
    with sync.MemoryStore() as store:
        session = sync.Session(id="a", store=store)
        with session.lease(timeout=0) as lease:
            session.append([Message.user("x")])
            assert lease.token
        assert session.load().count == 1


def test_a_lost_lease_is_a_refusal_and_not_an_unknown_outcome():
    assert issubclass(LeaseLostError, ConflictError)
    assert issubclass(LeaseLostError, ProtocolError)
