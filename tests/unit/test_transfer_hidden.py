"""Sessions that no list shows, for damage hides them, are told by an export and a copy, and nothing is deleted because of them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import msgspec
import pytest

from littleghost import (
    ALL_ACTORS,
    Damage,
    MemoryStore,
    Message,
    SQLiteStore,
    Verified,
    copy_sessions,
    export_sessions,
)
from littleghost.sessions.contract import SessionStore


async def fill(store: SessionStore, *ids: str) -> None:
    for id in ids:
        await store.append(
            id, messages=[Message.user(id)], state={}, metadata={}, expected_count=0, actor_id="u"
        )


class Hides(MemoryStore):
    """Lists all but the session ``b``, and knows of it only when it verifies."""

    async def sessions(self, **options):
        page = await super().sessions(**options)
        return msgspec.structs.replace(page, items=tuple(item for item in page.items if item.id != "b"))

    async def load(self, id, **options):
        return None if id == "b" else await super().load(id, **options)

    async def verify(self, **options):
        return Verified(checked=3, damaged=(Damage(id="b", actor_id="u", problem="its row is damaged"),))


class Loses(Hides):
    """Lists ``b`` too, and finds nothing there."""

    async def sessions(self, **options):
        return await MemoryStore.sessions(self, **options)


@pytest.mark.parametrize("actor", ["u", ALL_ACTORS])
@pytest.mark.parametrize("damaged", [Hides, Loses])
async def test_an_export_tells_of_a_session_that_no_list_shows(damaged: type[Hides], actor):
    store, told = damaged(), []
    await fill(store, "a", "b", "c")
    lines = [line async for line in export_sessions(store, actor_id=actor, report=told.append)]
    assert [(one.id, one.outcome) for one in told] == [("a", "written"), ("c", "written"), ("b", "failed")]
    assert told[-1].problem == "its row is damaged"
    assert msgspec.json.decode(lines[-1])["damaged"] == 1


@pytest.mark.parametrize("damaged", [Hides, Loses])
async def test_a_copy_tells_of_it_and_prunes_nothing(damaged: type[Hides]):
    source, destination = damaged(), MemoryStore()
    await fill(source, "a", "b", "c")
    await fill(destination, "b", "old")
    done = [one async for one in copy_sessions(source, destination, prune=True)]
    assert [(one.id, one.outcome) for one in done] == [("a", "written"), ("c", "written"), ("b", "failed")]
    assert {item.id for item in (await destination.sessions(actor_id="u")).items} == {"a", "b", "c", "old"}


async def test_a_sound_store_is_not_verified_for_it():
    class Sound(MemoryStore):
        async def verify(self, **options):
            raise AssertionError("not asked for")

    store = Sound()
    await fill(store, "a", "b")
    assert len([line async for line in export_sessions(store)]) == 8
    assert [one.outcome async for one in copy_sessions(store, MemoryStore())] == ["written"] * 2


async def test_what_is_damaged_is_told_once(tmp_path: Path):
    path = tmp_path / "a.db"
    async with SQLiteStore(path) as store:
        await fill(store, "a", "b", "c")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE commits SET body = x'5b5d' WHERE rowid >> 32 = 2")
        db.execute("UPDATE sessions SET created_at = 'text' WHERE id = 'c'")
        db.commit()
    async with SQLiteStore(path) as store:
        told = []
        async for _ in export_sessions(store, report=told.append):
            pass
        ids = [(one.id, one.outcome) for one in told]
        assert ids.count(("b", "failed")) == 1
        assert ("a", "written") in ids
        assert any(one.outcome == "failed" and one.id in ("c", None) for one in told)
        assert not any(one.id in ("b", "c") and one.outcome == "written" for one in told)
