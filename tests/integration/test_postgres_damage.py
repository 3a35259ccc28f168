"""PostgresStore over rows that somebody edited: a wrong page, a session left out of a list, or an error of Python's would be a lie."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from littleghost.errors import CorruptSessionError
from littleghost.message import Message
from littleghost.sessions.contract import ALL_ACTORS, SessionInfo
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.opening import open_store
from littleghost.sessions.postgres import PostgresStore
from littleghost.sessions.transfer import copy_sessions
from littleghost.sessions.walk import walk


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(postgres_url) as made:
        yield made


@pytest.fixture
async def control(store: PostgresStore) -> AsyncIterator[asyncpg.Connection]:
    """Somebody else, who works on the tables by hand."""
    await store.migrate()
    connection = await asyncpg.connect(
        store._pools.settings.dsn, server_settings={"search_path": store._place[0]}
    )
    yield connection
    await connection.close()


async def append(store: Any, id: str, count: int, *texts: str, **options: Any) -> Any:
    messages = [Message.user(text) for text in texts]
    return await store.append(id, messages=messages, state={}, metadata={}, expected_count=count, **options)


# Lists

ENTRIES = {
    "an id that is not UTF-8": r"id = '\xff41'",
    "an actor that is not UTF-8": r"scope = '\x3aff'",
    "no actor at all": "scope = ''",
    "another id": "id = 'z'",
    "another actor": "scope = ':you'",
    "written at no time": "updated_at = 'NaN'",
    "written after all times": "updated_at = 'Infinity'",
    "written before all times": "updated_at = '-Infinity'",
    "made at no time": "created_at = 'NaN'",
}


@pytest.mark.parametrize("kind", ENTRIES)
async def test_an_entry_that_is_no_sessions_is_an_error_and_never_left_out(
    kind: str, store: PostgresStore, control: asyncpg.Connection
):
    for id in "abcde":
        await append(store, id, 0, "x")
    await control.execute(f"UPDATE littleghost_sessions SET {ENTRIES[kind]} WHERE id = 'c'")
    for order in ("id", "updated"):
        with pytest.raises(CorruptSessionError, match="damaged"):
            await store.sessions(actor_id=ALL_ACTORS, order=order)
    # Whose page does not have it gets that page.
    assert [item.id for item in (await store.sessions(limit=2)).items] in (["a", "b"], [])
    listed = {item.id async for item in walk(store, ALL_ACTORS) if isinstance(item, SessionInfo)}
    assert listed == set("abde")
    assert (await store.verify()).damaged
    told = [item async for item in copy_sessions(store, MemoryStore(), actor_id=ALL_ACTORS)]
    assert sum(item.problem is None for item in told) == 4
    assert any(item.problem for item in told)


# Pages

EDITS = (
    *(
        f"UPDATE littleghost_commits SET {column} = {column} {by} WHERE number = {number}"
        for column in ("number", "count", "head_sum", "body_sum")
        for by in ("+ 1", "- 1", "+ 100", "- 100")
        for number in (1, 3, 5)
        # Taken by another one.
        if column != "number" or (by == "+ 1" and number == 5) or (by == "- 1" and number == 1) or "100" in by
    ),
    *(
        f"UPDATE littleghost_sessions SET {column} = {column} {by}"
        for column in ("epoch", "number", "root", "count", "body_size")
        for by in ("+ 1", "- 1", "+ 100", "- 100")
    ),
    "UPDATE littleghost_sessions SET number = 4, count = 4",
    "UPDATE littleghost_sessions SET number = 6, count = 6",
    "UPDATE littleghost_sessions SET count = -5",
    "UPDATE littleghost_commits SET count = count + 1",
    "UPDATE littleghost_commits SET count = count - 1",
    "UPDATE littleghost_commits SET count = 6 - number",
    "UPDATE littleghost_commits SET count = count + 1; UPDATE littleghost_sessions SET count = count + 1",
    *(f"DELETE FROM littleghost_commits WHERE number = {number}" for number in (1, 3, 5)),
    "DELETE FROM littleghost_commits WHERE number = 5; UPDATE littleghost_commits SET number = 5 WHERE number = 3",
    "UPDATE littleghost_commits SET number = -number; UPDATE littleghost_commits SET number = 6 + number",
    "UPDATE littleghost_commits SET commit_id = 'zz' WHERE number = 3",
    "UPDATE littleghost_commits SET body = '[]' WHERE number = 3",
)


@pytest.mark.parametrize("edit", EDITS)
async def test_a_page_is_right_or_an_error(edit: str, store: PostgresStore, control: asyncpg.Connection):
    for number in range(5):
        await append(store, "a", number, f"{number}", commit_id=f"{number}")
    asked = [(limit, before) for limit in (1, 2, 9) for before in (None, 0, 1, 2, 3, 4, 5, 6)]
    right = [(await store.tail("a", limit=limit, before=before)) for limit, before in asked]
    await control.execute(edit)
    errors = 0
    for (limit, before), page in zip(asked, right, strict=True):
        try:
            assert await store.tail("a", limit=limit, before=before) == page, (limit, before)
        except CorruptSessionError:
            errors += 1
    assert errors or "body_size" in edit or (await store.verify()).damaged


async def test_a_number_that_is_far_away_costs_nothing(store: PostgresStore, control: asyncpg.Connection):
    await append(store, "a", 0, "x")
    await append(store, "a", 1, "y")
    for edit in (
        "number = 5000000",
        "root = -5000000",
        "number = 2, root = 5000000",
        "number = -5000000, root = 1",
    ):
        await control.execute(f"UPDATE littleghost_sessions SET {edit}")
        tracemalloc.start()
        try:
            damaged = (await store.verify()).damaged
            with pytest.raises(CorruptSessionError):
                await store.load("a")
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert any("commits are missing" in item.problem for item in damaged), damaged
        assert most < 5_000_000, edit


async def test_the_first_missing_commit_is_named(store: PostgresStore, control: asyncpg.Connection):
    for number in range(6):
        await append(store, "a", number, "x")
    await control.execute("DELETE FROM littleghost_commits WHERE number IN (3, 5)")
    assert any(
        "2 of its commits are missing, the first of them number 3" in item.problem
        for item in (await store.verify()).damaged
    )


# Arguments, which are no damage


@pytest.mark.parametrize("moment", [5e-324, -5e-324, 1e-310, 0.0, -0.5, 0.99, 8e11, -8e11])
async def test_a_time_may_be_any_number(moment: float, store: PostgresStore):
    for count in (0, 1):
        await store.restore(
            "a" if count else "b",
            messages=[],
            state={},
            metadata={},
            created_at=moment,
            updated_at=moment,
        )
    assert (await store.verify()).damaged == ()
    later = math.nextafter(moment, math.inf)
    for order in ("id", "updated"):
        for since, until, there in (
            (moment, later, True),
            (moment, None, True),
            (None, later, True),
            (None, moment, False),
            (later, None, False),
        ):
            for actor in (None, ALL_ACTORS):
                found, cursor = [], None
                while True:
                    page = await store.sessions(
                        actor_id=actor, order=order, since=since, until=until, limit=1, cursor=cursor
                    )
                    found += [item.id for item in page.items]
                    cursor = page.cursor
                    if cursor is None:
                        break
                assert found == (["a", "b"] if there else [])


async def test_a_limit_may_be_larger_than_any_number_of_the_servers(postgres_url: str):
    for name in ("max_size", "max_messages"):
        async with open_store(f"{postgres_url}&{name}={10**20}") as store:
            await append(store, name, 0, "x")
            await append(store, name, 1, "x")
