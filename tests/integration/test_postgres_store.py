"""PostgresStore: how much it asks, what its rows are, and that it answers as MemoryStore does. The contract is tested by the kit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from littleghost import sync
from littleghost.errors import (
    ConflictError,
    CorruptSessionError,
    LittleGhostError,
    SessionBusyError,
    SessionTooLargeError,
)
from littleghost.message import Message
from littleghost.sessions.contract import ALL_ACTORS, ANY, Lease, SessionInfo, SessionLimits
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.opening import open_store
from littleghost.sessions.postgres import PostgresStore
from littleghost.sessions.postgres.rows import Key, Packed
from littleghost.sessions.postgres.statements import Statement
from littleghost.sessions.postgres.store import _Asked
from littleghost.sessions.records import record
from littleghost.sessions.walk import walk


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with open_store(postgres_url) as made:
        yield made


@pytest.fixture
async def control(store: PostgresStore) -> AsyncIterator[asyncpg.Connection]:
    """A connection to look at the tables with."""
    connection = await asyncpg.connect(
        store._pools.settings.dsn, server_settings={"search_path": store._place[0]}
    )
    yield connection
    await connection.close()


async def append(store: Any, id: str, count: int, *texts: str, state: Any = None, **options: Any) -> Any:
    return await store.append(
        id,
        messages=[Message.user(text) for text in texts],
        state=state or {},
        metadata={},
        expected_count=count,
        **options,
    )


async def replace(store: Any, id: str, *texts: str, state: Any = None, **options: Any) -> Any:
    messages = [Message.user(text) for text in texts]
    return await store.replace(id, messages=messages, state=state or {}, metadata={}, **options)


# How much it asks


class Said:
    """What a client has said to the server: how often after the server had spoken, and how many statements it had executed."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.trips = self.statements = 0

    def take(self, data: bytes) -> bytes:
        """Count the messages in ``data``; what is left is the beginning of one."""
        while len(data) >= 5 and len(data) > (size := int.from_bytes(data[1:5], "big")):
            self.statements += data[:1] in (b"E", b"Q")
            data = data[1 + size :]
        return data


@asynccontextmanager
async def overheard(store: PostgresStore) -> AsyncIterator[tuple[PostgresStore, Said]]:
    """A store that reaches the server through a proxy, and what it says."""
    parts = urlsplit(store._pools.settings.dsn)
    folder = parse_qs(parts.query).get("host", [None])[0]
    said = Said()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if folder:
            up, down = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.5432")
        else:
            up, down = await asyncio.open_connection(parts.hostname, parts.port or 5432)
        answered = True

        async def there() -> None:
            nonlocal answered
            begun = rest = b""
            while data := await reader.read(1 << 20):
                said.trips += answered
                answered = False
                if len(begun) < 8:  # the first message has no type
                    begun += data
                    rest = begun[int.from_bytes(begun[:4], "big") :] if len(begun) >= 8 else b""
                else:
                    rest = said.take(rest + data)
                down.write(data)
            down.close()

        async def back() -> None:
            nonlocal answered
            while data := await up.read(1 << 20):
                answered = True
                writer.write(data)
            writer.close()

        await asyncio.gather(there(), back())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    who = f"{parts.username or 'postgres'}{':' + parts.password if parts.password else ''}"
    near = PostgresStore(
        f"postgresql://{who}@127.0.0.1:{port}{parts.path}?sslmode=disable", schema=store._place[0]
    )
    try:
        yield near, said
    finally:
        await near.aclose()
        await asyncio.sleep(0.01)
        server.close()


def commits_of(store: PostgresStore) -> dict[str, Any]:
    """Each operation, what it does to the sessions made by `prepare`, and how many statements it is."""
    lease = Lease(token="x")
    return {
        "first append": (lambda: append(store, "new", 0, "a", expected_revision=None, commit_id="n"), 1),
        "first append, any revision": (lambda: append(store, "new2", 0, "a", commit_id="n"), 1),
        "first append of many": (lambda: append(store, "new3", 0, *["a"] * 1000, expected_revision=None), 1),
        "append": (lambda: append(store, "a", 3, "d", expected_revision=store.known["a"], commit_id="d"), 1),
        "append of many": (
            lambda: append(store, "b", 3, *["d"] * 1000, expected_revision=store.known["b"]),
            1,
        ),
        "append, any revision": (lambda: append(store, "c", 3, "d", commit_id="d"), 1),
        "append of state": (lambda: append(store, "d", 3, state={"v": 9}), 1),
        "replace": (lambda: replace(store, "e", "x", expected_revision=store.known["e"], commit_id="x"), 1),
        "replace, any revision": (lambda: replace(store, "f", "x"), 1),
        "first replace": (lambda: replace(store, "new4", "x"), 1),
        "restore": (
            lambda: store.restore("new5", messages=[], state={}, metadata={}, created_at=1, updated_at=2),
            1,
        ),
        "restore over another one": (
            lambda: store.restore(
                "j", messages=[], state={}, metadata={}, updated_at=2, expected_revision=store.known["j"]
            ),
            1,
        ),
        "load": (lambda: store.load("a"), 1),
        "load of nothing": (lambda: store.load("nothing"), 1),
        "tail": (lambda: store.tail("a", limit=2), 1),
        "tail before": (lambda: store.tail("a", limit=2, before=2), 1),
        "sessions": (lambda: store.sessions(limit=2), 1),
        "sessions of everybody by time": (
            lambda: store.sessions(actor_id=ALL_ACTORS, order="updated", limit=2),
            1,
        ),
        "statistics": (lambda: store.statistics(), 1),
        "delete": (lambda: store.delete("g"), 1),
        "delete of nothing": (lambda: store.delete("nothing"), 1),
        "expire": (lambda: store.expire(expire_after=1000.0), 1),
        "a conflict": (lambda: append(store, "a", 9, "x", expected_revision=store.known["b"]), 2),
        "a repeated commit": (lambda: append(store, "h", 0, "a", "b", "c", commit_id="h"), 2),
        "a lease that is not held": (
            lambda: append(store, "h", 3, "x", expected_revision=store.known["h"], lease=lease),
            2,
        ),
    }


async def prepare(store: PostgresStore) -> None:
    store.known = {}
    for id in "abcdefghj":
        store.known[id] = (await append(store, id, 0, "a", "b", "c", commit_id=id)).revision


@pytest.mark.parametrize("name", list(commits_of(None)))
async def test_an_operation_is_one_statement(name: str, store: PostgresStore):
    async with overheard(store) as (near, said):
        await prepare(near)
        operation, expected = commits_of(near)[name]
        said.clear()
        if expected == 2 and "repeated" not in name:
            with pytest.raises(LittleGhostError):
                await operation()
        else:
            await operation()
        assert said.statements == expected


async def test_an_append_is_one_round_trip_and_so_is_a_load(store: PostgresStore):
    async with overheard(store) as (near, said):
        for id in ("warm", "a"):  # the first time on a connection a statement is prepared
            said.clear()
            commit = await append(near, id, 0, "a", expected_revision=None)
        assert (said.trips, said.statements) == (1, 1)
        for number in (1, 2):
            said.clear()
            commit = await append(
                near, "a", number, "b", expected_revision=commit.revision, commit_id=f"c{number}"
            )
        assert (said.trips, said.statements) == (1, 1)
        for _ in range(2):
            said.clear()
            assert (await near.load("a")).count == 3
        assert (said.trips, said.statements) == (1, 1)


# What its rows are


async def test_most_commits_stay_within_the_page(store: PostgresStore, control: asyncpg.Connection):
    revision, state = None, {"plan": "x" * 900}
    for number in range(200):
        commit = await append(store, "a", number, "text", state=state, expected_revision=revision)
        revision = commit.revision
    await control.execute("SELECT pg_stat_force_next_flush()")
    await asyncio.sleep(0)
    for link in store._pools.here()._links:
        await link.raw.execute("SELECT pg_stat_force_next_flush()")
    row = await control.fetchrow(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'littleghost_sessions' AND schemaname = $1",
        store._place[0],
    )
    assert row["n_tup_upd"] == 199
    assert row["n_tup_hot_upd"] > 190
    assert await control.fetchval("SELECT pg_relation_size('littleghost_sessions')") <= 3 * 8192


async def test_a_replace_keeps_ids_and_no_bodies(store: PostgresStore, control: asyncpg.Connection):
    await append(store, "a", 0, "one", commit_id="id-one")
    await append(store, "a", 1, "two")
    await append(store, "a", 2, *["many"] * 600, commit_id="id-many")
    await replace(store, "a", "new", commit_id="id-new")
    rows = await control.fetch("SELECT number, commit_id, body FROM littleghost_commits ORDER BY number")
    assert [(row["commit_id"], bool(row["body"])) for row in rows] == [
        ("id-one", False),
        ("id-many", False),
        ("id-new", True),
    ]
    assert await replace(store, "a", "newer") is not None
    assert (await append(store, "a", 0, "one", commit_id="id-one")).count == 1
    assert (await append(store, "a", 2, *["many"] * 600, commit_id="id-many")).count == 602
    assert [message.text for message in (await store.load("a")).messages] == ["newer"]
    assert (await store.verify()).damaged == ()


async def test_lists_are_in_the_order_of_code_points_whatever_the_length(store: PostgresStore):
    long = "x" * 999
    actors = [
        None,
        "",
        "a",
        long[:-1],
        long,
        long + "a",
        long + "b",
        long * 5,
        long * 5 + "\0",
        "é",
        "\U0001f984",
        "\uffff",
    ]
    ids = ["", "\0", "a", "b", "x" * 1000, "x" * 1001, "x" * 3000, "x" * 3000 + "a", "\uffff", "\U0001f984"]
    twin = MemoryStore()
    keys = [(actor, id) for actor in actors for id in ids]
    for actor, id in random.sample(keys, len(keys)):
        for one in (store, twin):
            await append(one, id, 0, "a", actor_id=actor)
    for actor in (ALL_ACTORS, *actors):
        for limit in (7, 1000):
            found, theirs = [], []
            for one, names in ((store, found), (twin, theirs)):
                cursor: Any = None
                while True:
                    page = await one.sessions(actor_id=actor, limit=limit, cursor=cursor)
                    names += [(item.actor_id, item.id) for item in page.items]
                    cursor = page.cursor
                    if cursor is None:
                        break
            assert found == theirs


async def test_a_delete_among_appends_leaves_nothing_behind(
    store: PostgresStore, control: asyncpg.Connection
):
    """The rows that an append has just added are in no older snapshot, which is what a delete beside it looks into."""

    async def write() -> None:
        for _ in range(60):
            snapshot = await store.load("a")
            try:
                await append(store, "a", snapshot.count if snapshot else 0, "x", commit_id=None)
            except ConflictError:
                continue

    async def remove(operation: Any) -> None:
        for _ in range(40):
            await operation()
            await asyncio.sleep(0.001)

    await asyncio.gather(
        write(),
        write(),
        write(),
        remove(lambda: store.delete("a")),
        remove(lambda: store.expire(expire_after=1e-6)),
    )
    await store.delete("a")
    assert await control.fetchval("SELECT count(*) FROM littleghost_commits") == 0


async def test_a_replace_among_appends_keeps_no_old_body(store: PostgresStore, control: asyncpg.Connection):
    await append(store, "a", 0)

    async def write() -> None:
        for _ in range(60):
            snapshot = await store.load("a")
            try:
                await append(store, "a", snapshot.count, "x")
            except ConflictError:
                continue

    async def fold() -> None:
        for _ in range(40):
            await replace(store, "a", "summary")
            await asyncio.sleep(0.001)

    await asyncio.gather(write(), write(), write(), fold())
    last = await replace(store, "a", "summary")
    rows = await control.fetch("SELECT number FROM littleghost_commits")
    assert [row["number"] for row in rows] == [int(last.revision.partition("-")[2])]
    assert (await store.verify()).damaged == ()


async def test_a_list_reads_no_more_than_its_page_whosever_it_is(
    store: PostgresStore, control: asyncpg.Connection
):
    """Also for the seventh time, when a prepared statement has got a plan that is the same for all."""
    await append(store, "a", 0)
    for scope, count, anyone in (("':u' || g % 200", 8_000, False), ("'-'", 12_000, True)):
        await control.execute(
            "INSERT INTO littleghost_sessions (name, scope, id, epoch, number, root, count, body_size, created_at, updated_at, hour, sum,"
            f" state, metadata) SELECT name, convert_to({scope}, 'UTF8'), convert_to('s' || g, 'UTF8'),"
            " g, 1, 1, 0, 0, g, g * 40.0, floor(g / 90.0), 0, '{}', '{}' FROM unnest($1::bytea[]) WITH ORDINALITY AS named (name, g)",
            [Key.of(None if anyone else f"u{g % 200}", f"s{g}").name for g in range(1, count + 1)],
        )
    await control.execute("ANALYZE littleghost_sessions")
    read = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'littleghost_sessions' AND schemaname = $1"
    (link,) = store._pools.here()._links
    for actor in (None, "u7", ALL_ACTORS):
        for order in ("id", "updated"):
            cursor: Any = None
            for _ in range(8):
                await link.raw.execute("SELECT pg_stat_force_next_flush()")
                before = await control.fetchval(read, store._place[0])
                page = await store.sessions(actor_id=actor, order=order, limit=4, cursor=cursor)
                cursor = page.cursor
                await link.raw.execute("SELECT pg_stat_force_next_flush()")
                assert len(page.items) == 4
                assert await control.fetchval(read, store._place[0]) - before < 500, (actor, order)


@pytest.mark.parametrize("how", ["delete", "replace", "expire"])
async def test_what_removes_rows_misses_none_that_came_while_it_waited(
    how: str, store: PostgresStore, control: asyncpg.Connection
):
    """An append that began before and ends in the middle: its row is in no snapshot taken before its end."""
    first = await append(store, "a", 0, "one", commit_id="one")
    late = record("append", [Message.user("late")], {}, {})
    attempt = store._attempt(_Asked(Key.of(None, "a"), late, Packed.of(late), 1, first.revision, None))
    assert attempt is not None
    statement, arguments = attempt
    transaction = control.transaction()
    await transaction.start()
    assert await control.fetch(statement.text, *arguments)
    # It locks no row that it would have to wait for, so it is made to wait before it looks.
    slow = store._sql.expire.text.replace("LIMIT $2", "OFFSET (SELECT length(pg_sleep(0.3)::text)) LIMIT $2")
    store._sql.expire = Statement.of(slow)
    removing = asyncio.create_task(
        {
            "delete": lambda: store.delete("a"),
            "replace": lambda: replace(store, "a", "summary"),
            "expire": lambda: store.expire(expire_after=1e-6),
        }[how]()
    )
    await asyncio.sleep(0.1)
    assert not removing.done()
    await transaction.commit()
    await removing
    bodies = await control.fetch("SELECT body FROM littleghost_commits WHERE body <> ''")
    assert len(bodies) == (how == "replace")
    assert (await store.verify()).damaged == ()


async def test_the_clock_is_the_servers(
    store: PostgresStore, control: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("time.time", lambda: 0.0)
    before = await control.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    await append(store, "a", 0)
    (info,) = (await store.sessions()).items
    assert before <= info.created_at == info.updated_at <= before + 60


async def test_a_session_restored_over_another_one_keeps_its_times(store: PostgresStore):
    async def times() -> tuple[float, float]:
        (info,) = (await store.sessions(order="updated")).items
        assert (await store.verify()).damaged == ()
        return info.created_at, info.updated_at

    async def restore(commit: Any, **given: float) -> Any:
        options = {"messages": [Message.user("x")] * 300, "state": {}, "metadata": {}}
        return await store.restore("a", **options, **given, expected_revision=commit.revision)

    commit = first = await append(store, "a", 0, "x")
    made, _ = await times()
    commit = await restore(commit, updated_at=7_300.5)
    assert await times() == (made, 7_300.5)
    commit = await restore(commit, created_at=10.25, updated_at=20.0)
    assert await times() == (10.25, 20.0)
    commit = await restore(commit)
    created, updated = await times()
    assert created == 10.25
    assert updated >= made
    for revision in (first, await append(store, "b", 0)):
        with pytest.raises(ConflictError):
            await restore(revision, updated_at=1.0)
    await store.delete("b")
    # Written again, it was written now.
    commit = await restore(commit, updated_at=1.0)
    await replace(store, "a", "x", expected_revision=commit.revision)
    assert (await times())[1] >= made
    assert (await store.load("a")).count == 1


async def test_lists_tell_metadata_and_name_the_session_whose_cannot_be_read(
    store: PostgresStore, control: asyncpg.Connection
):
    for id in ("a", "b", "c"):
        await store.append(
            id, messages=[], state={}, metadata={"title": id * 600_000}, expected_count=0, actor_id="me"
        )
    for order in ("id", "updated"):
        for actor in ("me", ALL_ACTORS):
            page = await store.sessions(actor_id=actor, order=order, limit=2)
            page2 = await store.sessions(actor_id=actor, order=order, limit=2, cursor=page.cursor)
            for item in (*page.items, *page2.items):
                assert item.metadata == {"title": item.id * 600_000}
    for wrong in ("{", "[]", "\\xff"):
        await control.execute(f"UPDATE littleghost_sessions SET metadata = '{wrong}' WHERE id = 'b'")
        with pytest.raises(CorruptSessionError, match=r"session 'b'.*metadata") as caught:
            await store.sessions(actor_id="me", limit=2)
        assert caught.value.id == "b"
        # A page is only about what is on it.
        page = await store.sessions(actor_id="me", limit=1)
        assert [item.id for item in page.items] == ["a"]
        assert page.cursor is not None
        found = [item async for item in walk(store, "me")]
        assert {item.id if isinstance(item, SessionInfo) else "gap" for item in found} == {"a", "c", "gap"}


async def test_sizes_and_limits_are_counted_in_the_statement_that_writes(store: PostgresStore):
    store.limits = SessionLimits(messages=3, size=2_000)
    await append(store, "a", 0, "1", "2")

    async def one() -> str:
        try:
            await append(store, "a", 2, "3")
        except (ConflictError, SessionTooLargeError) as error:
            return type(error).__name__
        return "written"

    outcomes = sorted(await asyncio.gather(*(one() for _ in range(8))))
    assert outcomes == ["ConflictError"] * 7 + ["written"]
    with pytest.raises(SessionTooLargeError) as caught:
        await append(store, "a", 3, "4")
    assert (caught.value.limit, caught.value.value, caught.value.actual) == ("messages", 3, 4)
    with pytest.raises(SessionTooLargeError) as caught:
        await append(store, "a", 3, state={"x": "y" * 2_000})
    assert caught.value.limit == "size"
    with pytest.raises(SessionTooLargeError):
        await append(store, "b", 0, "x" * 2_000, expected_revision=None)
    assert await store.load("b") is None
    (info,) = (await store.sessions()).items
    snapshot = await store.load("a")
    assert info.count == snapshot.count == 3
    assert (await store.statistics()).size == info.size


async def test_large_values(store: PostgresStore):
    text = "é\0" * 1_500_000
    state = {"text": text}
    first = await append(store, "a", 0, text, state=state, expected_revision=None)
    await append(store, "a", 1, text, "b", state=state, expected_revision=first.revision)
    snapshot = await store.load("a")
    assert [len(message.text) for message in snapshot.messages] == [len(text), len(text), 1]
    assert snapshot.messages[0].text == text
    assert snapshot.state == state
    assert [message.text for message in (await store.tail("a", limit=1)).items] == ["b"]


# Damage


DAMAGE = {
    "a body that was edited": (
        "UPDATE littleghost_commits SET body = convert_to(replace(convert_from(body, 'UTF8'), 'two', 'owt'), 'UTF8') WHERE number = 2",
        "commit 2: its messages or its place were changed",
    ),
    "a body that is no JSON": (
        "UPDATE littleghost_commits SET body = '[' WHERE number = 2",
        "cannot be read",
    ),
    "two commits that changed places": (
        (
            "UPDATE littleghost_commits SET number = -number WHERE number IN (2, 3);"
            "UPDATE littleghost_commits SET number = 5 + number WHERE number < 0"
        ),
        "its place",
    ),
    "a commit that is missing": ("DELETE FROM littleghost_commits WHERE number = 2", "missing"),
    "the last commit missing": ("DELETE FROM littleghost_commits WHERE number = 3", "missing"),
    "all commits missing": ("DELETE FROM littleghost_commits", "missing"),
    "a commit too many": (
        "INSERT INTO littleghost_commits SELECT session, 4, count, head_sum, body_sum, NULL, NULL, body FROM littleghost_commits LIMIT 1",
        "after its last one",
    ),
    "a state that was edited": ("UPDATE littleghost_sessions SET state = '{\"v\":4}'", "state"),
    "a state that is no JSON": ("UPDATE littleghost_sessions SET state = '{'", "state"),
    "metadata that was edited": ("UPDATE littleghost_sessions SET metadata = '{\"v\":4}'", "metadata"),
    "a count that was edited": ("UPDATE littleghost_sessions SET count = 4", "should have 4 messages"),
    "an epoch that was edited": ("UPDATE littleghost_sessions SET epoch = epoch # 1", "commit 1"),
    "a root that was edited": ("UPDATE littleghost_sessions SET root = 2", "commit 1: it was replaced"),
    "a time that was edited": (
        "UPDATE littleghost_sessions SET updated_at = updated_at - 9999",
        "its time was changed",
    ),
    "another session's row": ("UPDATE littleghost_sessions SET id = 'z'", "the name of another session"),
}


@pytest.mark.parametrize("kind", DAMAGE)
async def test_damage_is_told_and_never_shown_as_a_history(
    kind: str, store: PostgresStore, control: asyncpg.Connection
):
    statement, words = DAMAGE[kind]
    for number, text in enumerate(("one", "two", "six")):
        await append(store, "a", number, text, state={"v": 3}, commit_id=text)
    before = await store.load("a")
    await control.execute(statement)
    verified = await store.verify()
    assert verified.checked == 1
    assert verified.cursor is None
    assert any(words in damage.problem for damage in verified.damaged), verified.damaged
    try:
        assert await store.load("a") in (None, before)
        assert any(word in kind for word in ("another session", "too many", "count", "time")), (
            "nothing wrong was seen"
        )
    except CorruptSessionError:
        pass


async def test_messages_without_a_session_are_found_and_the_others_verified(
    store: PostgresStore, control: asyncpg.Connection
):
    for number in range(5):
        await append(store, f"{number}", 0, "x", actor_id="me")
    await control.execute("DELETE FROM littleghost_sessions WHERE id = '2'")
    await control.execute(
        "UPDATE littleghost_commits SET body = '[]' WHERE session IN (SELECT key FROM littleghost_sessions WHERE id = '4')"
    )
    found, checked, cursor = [], 0, None
    while True:
        step = await store.verify(limit=2, cursor=cursor)
        checked += step.checked
        found += step.damaged
        cursor = step.cursor
        if cursor is None:
            break
    assert checked == 4
    assert {(damage.id, damage.actor_id) for damage in found} == {("4", "me"), (None, None)}
    assert sum("no such session" in damage.problem for damage in found) == 1


# As MemoryStore does


TIMES = (0.0, -5.5, 1e300, 2e9)
"""What restored sessions are given."""


class Twin:
    """A store, and the revisions it has told, so that two stores can be asked the same."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.told: dict[Any, list[str | None]] = {}

    def name(self, key: Any, revision: str | None) -> int | None:
        told = self.told.setdefault(key, [])
        if revision is not None and revision not in told:
            told.append(revision)
        return None if revision is None else told.index(revision)

    async def do(self, step: dict[str, Any]) -> Any:
        try:
            return await getattr(self, step["do"])(
                **{name: value for name, value in step.items() if name != "do"}
            )
        except LittleGhostError as error:
            return type(error).__name__, getattr(error, "commit_id", None), getattr(error, "limit", None)

    async def write(self, kind, id, actor_id, texts, count, revision, commit_id, state, limits):
        key = (actor_id, id)
        told = self.told.get(key) or ["x"]
        snapshot = await self.store.load(id, actor_id=actor_id)
        stored = snapshot.count if snapshot else 0
        options: dict[str, Any] = {
            "expected_revision": {"any": ANY, "none": None, "last": told[-1], "first": told[0]}[revision]
        }
        if kind == "append":
            options["expected_count"] = {
                "right": stored,
                "more": stored + 1,
                "zero": 0,
                "huge": 1 << 40,
                "less": -1,
            }[count]
        self.store.limits = limits
        try:
            commit = await getattr(self.store, kind)(
                id,
                messages=[Message.user(text) for text in texts],
                state={"v": state},
                metadata={"m": state},
                actor_id=actor_id,
                commit_id=commit_id,
                **options,
            )
        finally:
            self.store.limits = SessionLimits()
        return commit.count, self.name(key, commit.revision)

    async def delete(self, id, actor_id):
        return await self.store.delete(id, actor_id=actor_id)

    async def fork(self, id, new, actor_id, at):
        commit = await self.store.fork(id, new, at=at, actor_id=actor_id)
        return commit.count, self.name((actor_id, new), commit.revision)

    async def tail(self, id, actor_id, limit, before):
        page = await self.store.tail(id, limit=limit, before=before, actor_id=actor_id)
        return page.items, page.cursor

    async def restore(self, id, actor_id, texts, at, since, revision):
        key = (actor_id, id)
        told = self.told.get(key) or ["x"]
        commit = await self.store.restore(
            id,
            messages=[Message.user(text) for text in texts],
            state={},
            metadata={"at": at},
            actor_id=actor_id,
            created_at=since,
            updated_at=at,
            expected_revision={"none": None, "last": told[-1], "first": told[0]}[revision],
        )
        return commit.count, self.name(key, commit.revision)

    async def look(self):
        found = []
        for actor in (ALL_ACTORS, None, "", "x"):
            statistics = await self.store.statistics(actor_id=actor)
            found.append((statistics.sessions, statistics.messages, statistics.size))
            items = (await self.store.sessions(actor_id=actor)).items
            for item in items:
                snapshot = await self.store.load(item.id, actor_id=item.actor_id)
                found.append(
                    (item.id, item.actor_id, item.count, item.size, snapshot.state, snapshot.messages)
                )
                found.append((item.metadata, snapshot.metadata))
                found += [time if time in TIMES else "now" for time in (item.created_at, item.updated_at)]
                found.append(self.name((item.actor_id, item.id), item.revision))
        found.append((await self.store.verify()).damaged)
        return found


def step(choose: random.Random) -> dict[str, Any]:
    id, actor = choose.choice("ab"), choose.choice([None, "", "x"])
    texts = [choose.choice(["", "t", "é\0"])] * choose.choice([0, 1, 1, 2, 3, 300])
    kind = choose.choice(
        ["append"] * 6 + ["replace"] * 3 + ["delete", "fork", "tail", "tail", "restore", "look"]
    )
    if kind in ("append", "replace"):
        return {
            "do": "write",
            "kind": kind,
            "id": id,
            "actor_id": actor,
            "texts": texts,
            "count": choose.choice(["right"] * 6 + ["more", "zero", "huge", "less"]),
            "revision": choose.choice(["any", "any", "none", "last", "last", "last", "first"]),
            "commit_id": choose.choice([None, None, "c1", "c2", "c3", "c4"]),
            "state": choose.randint(0, 2),
            "limits": choose.choice(
                [SessionLimits()] * 4
                + [SessionLimits(messages=4), SessionLimits(size=200), SessionLimits(messages=1, size=1)]
            ),
        }
    if kind == "fork":
        return {
            "do": kind,
            "id": id,
            "new": choose.choice("ab"),
            "actor_id": actor,
            "at": choose.choice([None, 0, 2, 9]),
        }
    if kind == "tail":
        before = choose.choice([None, -1, 0, 1, 5, 300, 1 << 70])
        return {
            "do": kind,
            "id": id,
            "actor_id": actor,
            "limit": choose.choice([0, 1, 3, 257, 1 << 70]),
            "before": before,
        }
    if kind == "restore":
        return {
            "do": kind,
            "id": id,
            "actor_id": actor,
            "texts": texts,
            "at": choose.choice([None, *TIMES]),
            "since": choose.choice([None, *TIMES]),
            "revision": choose.choice(["none", "last", "last", "first"]),
        }
    return {"do": kind} if kind == "look" else {"do": kind, "id": id, "actor_id": actor}


@pytest.mark.parametrize("seed", range(12))
async def test_it_answers_as_the_memory_store_does(seed: int, store: PostgresStore):
    choose = random.Random(seed)
    one, two = Twin(MemoryStore()), Twin(store)
    for number in range(120):
        now = step(choose)
        assert await one.do(now) == await two.do(now), (number, now)
    assert await one.look() == await two.look()


def test_the_synchronous_face(postgres_url: str):
    dsn, _, schema = postgres_url.rpartition("&schema=" if "&schema=" in postgres_url else "?schema=")
    assert "CREATE TABLE" in sync.PostgresStore.schema_sql(schema=schema)
    with sync.PostgresStore(dsn, schema=schema) as store, sync.open_store(postgres_url) as other:
        store.migrate()
        session = sync.Session(id="a", store=store)
        session.append([Message.user("x")], state={"v": 1})
        with store.lease("a"), pytest.raises(SessionBusyError), other.lease("a", timeout=0):
            pass
        assert sync.Session(id="a", store=other).state() == {"v": 1}
