"""What users of conversation stores run into, one test for each, on every store of ours. See docs/guarantees.md."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import pytest

from littleghost import (
    ALL_ACTORS,
    Agent,
    ConflictError,
    DataError,
    MemoryStore,
    Message,
    Runtime,
    Session,
    SessionBusyError,
    SessionLimits,
    SessionNotFoundError,
    SessionStore,
    SessionTooLargeError,
    StoreUnavailableError,
    Text,
    ToolResult,
    ToolUse,
    open_store,
    tool,
)
from littleghost.content import Reasoning
from littleghost.testing import FaultyStore, ScriptedModel
from littleghost.testing.store_bench import Bench
from littleghost.testing.store_child import recipe_for


class Medium:
    """Where sessions are kept, and what opens it; each store that is opened is another object where the data can be shared."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self.memory = MemoryStore()

    def make(self) -> SessionStore:
        return self.memory if self.kind == "memory" else open_store(self.url)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[SessionStore]:
        store = self.make()
        try:
            yield store
        finally:
            await store.aclose()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Medium:
    if request.param == "postgres":
        return Medium("postgres", request.getfixturevalue("postgres_url"))
    return Medium(request.param, f"sqlite:///{tmp_path / 'sessions.db'}")


@pytest.fixture
async def store(medium: Medium) -> AsyncIterator[SessionStore]:
    async with medium.open() as made:
        yield made


def users(*texts: str) -> list[Message]:
    return [Message.user(text) for text in texts]


async def append(store: SessionStore, id: str, count: int, *texts: str, **options: Any) -> Any:
    values = {"state": {}, "metadata": {}, **options}
    return await store.append(id, messages=users(*texts), expected_count=count, **values)


async def texts(store: SessionStore, id: str, actor: str | None = None) -> list[str]:
    snapshot = await store.load(id, actor_id=actor)
    return [message.text for message in snapshot.messages] if snapshot else []


# Order


async def test_writes_within_one_moment_keep_their_order(medium: Medium, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    async with medium.open() as one, medium.open() as two:
        said = [f"{number}" for number in range(200)]
        commits = [
            await append((one, two)[number % 2], "s", number, text, state={"n": number})
            for number, text in enumerate(said)
        ]
        assert len({commit.revision for commit in commits}) == 200
        assert await texts(one, "s") == await texts(two, "s") == said
        page = await two.tail("s", limit=7, before=100)
        assert [message.text for message in page.items] == said[93:100]


async def test_a_clock_that_is_set_back_reorders_nothing_and_refuses_nothing(
    medium: Medium, monkeypatch: pytest.MonkeyPatch
):
    async with medium.open() as store:
        session = Session(id="s", store=store)
        for number in range(30):
            monkeypatch.setattr(time, "time", lambda number=number: 1_700_000_000.0 - 3600 * number)
            await session.append(users(f"{number}"), state={"n": number})
        assert await texts(store, "s") == [f"{number}" for number in range(30)]
        assert (await Session(id="s", store=store).state()) == {"n": 29}
        listed = await store.sessions(order="updated")
        assert [(info.id, info.count) for info in listed.items] == [("s", 30)]


async def test_sessions_side_by_side_keep_the_order_of_each(store: SessionStore):
    async def talk(id: str) -> None:
        for number in range(25):
            await append(store, id, 2 * number, f"{id}{number}", f"{id}{number}!")

    await asyncio.gather(*(talk(f"s{number}-") for number in range(8)))
    for number in range(8):
        id = f"s{number}-"
        assert await texts(store, id) == [f"{id}{turn}{end}" for turn in range(25) for end in ("", "!")]


async def test_equal_messages_are_as_many_as_were_said(store: SessionStore):
    session = Session(id="s", store=store)
    for _ in range(3):
        await session.append(users("yes"))
    await session.append(users("yes", "yes"))
    assert await texts(store, "s") == ["yes"] * 5
    for _ in range(3):
        await session.append(users("once"), commit_id="named")
    assert await texts(store, "s") == ["yes"] * 5 + ["once"]


# Several writers


async def test_a_conflict_says_what_was_expected_and_what_is_there(store: SessionStore):
    first = await append(store, "s", 0, "a")
    second = await append(store, "s", 1, state={"v": 1})
    with pytest.raises(ConflictError) as caught:
        await append(store, "s", 0, "x")
    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert "expected messages 0, found 1" in str(caught.value)
    with pytest.raises(ConflictError) as caught:
        await append(store, "s", 1, "x", expected_revision=first.revision)
    assert (caught.value.expected, caught.value.actual) == (first.revision, second.revision)
    with pytest.raises(ConflictError) as caught:
        await append(store, "none", 3, "x")
    assert (caught.value.expected, caught.value.actual) == (3, None)


async def test_state_alone_changes_the_revision_and_not_the_count(medium: Medium):
    async with medium.open() as store:
        session, other = Session(id="s", store=store), Session(id="s", store=store)
        await session.append(users("a"))
        before = await other.load()
        commit = await session.append([], state={"step": 1})
        assert commit.count == 1
        assert commit.revision != before.revision
        with pytest.raises(ConflictError):
            await other.append([], state={"step": 7})
        await other.reload()
        assert (await other.append(users("b"))).count == 2
        assert await other.state() == {"step": 1}


async def test_who_comes_second_is_refused_and_bases_anew(medium: Medium):
    async with medium.open() as one, medium.open() as two:
        first, second = Session(id="s", store=one), Session(id="s", store=two)
        await first.append(users("begin"), state={"n": 1})
        await second.load()
        await first.append(users("first"), state={"n": 2})
        with pytest.raises(ConflictError):
            await second.append(users("second"), state={"n": 2})
        assert await texts(one, "s") == ["begin", "first"]
        seen: list[int] = []

        def change(snapshot: Any) -> Any:
            seen.append(snapshot.count)
            return users("second"), {"n": snapshot.state["n"] + 1}

        await second.update(change)
        assert seen[-1] == 2
        assert await texts(one, "s") == ["begin", "first", "second"]
        assert await Session(id="s", store=one).state() == {"n": 3}


async def test_who_has_seen_less_replaces_nothing_unseen(medium: Medium):
    async with medium.open() as one, medium.open() as two:
        summary, writer = Session(id="s", store=one), Session(id="s", store=two)
        await writer.append(users("a", "b", "c"))
        await summary.load()
        assert len((await one.tail("s", limit=1)).items) == 1
        await writer.append(users("unseen"))
        with pytest.raises(ConflictError):
            await summary.replace(users("a summary of a, b and c"))
        assert await texts(one, "s") == ["a", "b", "c", "unseen"]


async def test_making_a_session_never_takes_one_over(store: SessionStore):
    await append(store, "s", 0, "mine", state={"v": 1})
    before = await store.load("s")
    empty: dict[str, Any] = {"messages": [], "state": {}, "metadata": {}}
    await append(store, "other", 0, "x")
    tries: list[Callable[[], Awaitable[object]]] = [
        lambda: store.append("s", expected_count=0, expected_revision=None, **empty),
        lambda: store.replace("s", expected_revision=None, **empty),
        lambda: store.restore("s", **empty),
        lambda: store.fork("other", "s"),
    ]
    for attempt in tries:
        with pytest.raises(ConflictError):
            await attempt()
    assert await store.load("s") == before


async def test_many_first_uses_at_once_all_work(medium: Medium):
    """Every one of these makes the tables if it comes first, and all go through the same door at once."""
    stores = [medium.make() for _ in range(12)]
    try:
        await asyncio.gather(
            *(append(store, f"s{number}", 0, "hello") for number, store in enumerate(stores)),
            *(store.load("none") for store in stores),
            *(store.sessions() for store in stores),
        )
        listed = await stores[0].sessions()
        assert {info.id for info in listed.items} == {f"s{number}" for number in range(12)}
    finally:
        await asyncio.gather(*(store.aclose() for store in stores))


async def test_many_processes_start_at_once_with_nothing_there(medium: Medium):
    if medium.kind == "memory":
        pytest.skip("another process does not share this one's memory")
    make = partial(open_store, medium.url)
    # Not by way of `store_bench`, which would write first.
    bench = Bench(make, capabilities=frozenset(), subject="", persistent=True, recipe=recipe_for(make, None))
    orders = [
        {"task": "update", "id": f"s{number % 3}", "name": f"p{number}", "times": 4} for number in range(8)
    ]
    async with bench.children(*orders) as children:
        for child in children:
            await child.expect("ready")
        for child in children:
            child.go()
        said = await asyncio.gather(*(child.rest() for child in children))
    async with medium.open() as store:
        found = [text for number in range(3) for text in await texts(store, f"s{number}", "kit")]
    assert sorted(found) == sorted(text for lines in said for text in lines)
    assert len(found) == 32


# Whole or not at all


async def test_a_cancelled_replace_leaves_the_old_or_the_new_whole(store: SessionStore):
    old = [f"old {number}" for number in range(600)]
    await append(store, "s", 0, *old)
    seen = set[bool]()
    for turn in range(60):
        new = [f"{turn}.{number}" for number in range(300 + turn * 7)]
        task = asyncio.create_task(
            store.replace("s", messages=users(*new), state={"turn": turn}, metadata={})
        )
        for _ in range(turn % 6):
            await asyncio.sleep(0)
        await asyncio.sleep(0.0005 * (turn % 17))
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        found = await texts(store, "s")
        assert found in (old, new), f"turn {turn}: {len(found)} messages are of neither"
        page = await store.tail("s", limit=260)
        assert [message.text for message in page.items] == found[-260:]
        seen.add(found == new)
        old = found
    assert True in seen


async def test_a_failed_read_is_no_empty_history(store: SessionStore):
    await append(store, "s", 0, "a", "b", state={"v": 1})
    before = await store.load("s")
    for error in (StoreUnavailableError("throttled"), TimeoutError("slow"), OSError("gone")):
        faulty = FaultyStore(store).fail("load", None, error=error)
        session = Session(id="s", store=faulty)
        for read in (session.load, session.history, session.state, session.reload):
            with pytest.raises(type(error)):
                await read()
        for write in (session.append, session.replace, session.checkpoint):
            with pytest.raises(type(error)):
                await write(users("x"))
        model = ScriptedModel([])
        async with Runtime(session_store=faulty) as runtime:
            with pytest.raises(type(error)):
                await runtime.ask(Agent(model), "hello", session_id="s")
        assert not model.requests, "a model was asked without its history"
        faulty.heal()
        assert [message.text for message in await session.history()] == ["a", "b"]
    assert await store.load("s") == before


@tool
async def order(sku: str) -> str:
    """Order an article."""
    raise AssertionError("it may have been ordered before")


async def test_a_call_without_a_result_is_settled_once_and_for_good(medium: Medium):
    call = Message.assistant([ToolUse(id="c1", name="order", input={"sku": "A7"})])
    async with medium.open() as store:
        await Session(id="s", store=store).append([*users("Order A7."), call])
    async with medium.open() as store, Runtime(session_store=store) as runtime:
        model = ScriptedModel(["It may have been ordered."])
        run = await runtime.ask(Agent(model, tools=[order]), "And?", session_id="s")
        assert run.outcome == "completed"
    async with medium.open() as store:
        stored = (await store.load("s")).messages
        assert [message.role for message in stored] == ["user", "assistant", "tool", "user", "assistant"]
        assert stored[2].tool_results[0].status == "error"
        assert "interrupted" in stored[2].text + stored[2].tool_results[0].text
        async with Runtime(session_store=store) as runtime:
            model = ScriptedModel(["Yes."])
            await runtime.ask(Agent(model, tools=[order]), "Sure?", session_id="s")
            assert (await runtime.resume(Agent(ScriptedModel([])), session_id="s")).steps == 0
        assert (await store.load("s")).messages[:5] == stored, "what was settled was settled again"


async def test_a_fork_and_a_cut_part_no_call_from_its_result(store: SessionStore):
    call = Message.assistant([ToolUse(id="1", name="f")])
    answer = Message.tool([ToolResult(tool_use_id="1", content="ok")])
    session = Session(id="s", store=store)
    await session.append([*users("a"), call, answer, Message.assistant("b")])
    forked = await session.fork("t", at=2)
    assert [message.role for message in await forked.history()] == ["user"]


# What is stored is what was given


NULS = ["\0", "\\u0000", "\\\\u0000", '"\\u0000"', "a\0b\\u0000c", "\0\0", "\\0", "%00", "\u2400", "\\x00"]


async def test_a_nul_and_its_escape_are_different_texts(medium: Medium):
    async with medium.open() as store:
        table = {text: [text, {text: text}] for text in NULS}
        for text in NULS:
            session = Session(id=text, store=store, actor_id=f"actor{text}")
            await session.append(
                [Message.user(text, {"m": text}), Message.user("end")], state=table, metadata=table
            )
            await session.append(
                [Message.tool([ToolResult(tool_use_id="1", content={text: text})])], state=table
            )
    async with medium.open() as store:
        for text in NULS:
            snapshot = await store.load(text, actor_id=f"actor{text}")
            assert snapshot.messages[0] == Message.user(text, {"m": text})
            assert snapshot.messages[2].tool_results[0].content == {text: text}
            assert snapshot.state == snapshot.metadata == table
            listed = await store.sessions(actor_id=f"actor{text}")
            assert [(info.id, info.actor_id) for info in listed.items] == [(text, f"actor{text}")]
        everybody = await store.sessions(actor_id=ALL_ACTORS)
        assert sorted(info.id for info in everybody.items) == sorted(NULS)


DEEP: Any = "bottom"
for _ in range(101):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"plan": {"items": [1, {"due": object()}]}}, "plan.items[1].due"),
        ({"plan": DEEP}, "plan"),
        ({"b": b"bytes"}, "b"),
        ({"n": [0.0, float("nan")]}, "n[1]"),
        ({"t": "\ud800"}, "t"),
        ({"k": {1: "x"}}, "k"),
    ],
    ids=["object", "deep", "bytes", "nan", "surrogate", "key"],
)
async def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    store: SessionStore, value: Any, path: str
):
    await append(store, "s", 0, "a", state={"v": 1})
    before = await store.load("s")
    values: dict[str, Any] = {"messages": users("x"), "state": {}, "metadata": {}}
    for where, wrong in (
        ("state", value),
        ("metadata", value),
        ("messages", [*users("x"), Message.user("x", value)]),
    ):
        for write in ("append", "replace"):
            options = {"expected_count": 1} if write == "append" else {}
            with pytest.raises(DataError) as caught:
                await getattr(store, write)("s", **{**values, where: wrong}, **options)
            assert path in caught.value.path
            if where == "state":
                assert caught.value.path.startswith(f"state.{path}")
        with pytest.raises(DataError):
            await store.restore("new", **{**values, where: wrong})
    faulty = FaultyStore(store)
    with pytest.raises(DataError):
        await Session(id="s", store=faulty).append(users("x"), state=value)
    assert "append" not in faulty.calls, "it was sent to the store"
    assert await store.load("s") == before
    assert await store.load("new") is None


async def test_a_session_that_is_full_is_told_and_goes_on(store: SessionStore):
    session = Session(id="s", store=store)
    await session.append(users("a"))
    store.limits = SessionLimits(size=5_000)
    before = await store.load("s")
    with pytest.raises(SessionTooLargeError) as caught:
        await session.append(users("x" * 10_000), state={"v": 1})
    assert (caught.value.limit, caught.value.value) == ("size", 5_000)
    assert caught.value.actual > 10_000
    assert await store.load("s") == before
    assert (await session.append(users("b"), state={"v": 2})).count == 2
    with pytest.raises(SessionTooLargeError):
        await session.update(lambda snapshot: (users("x" * 10_000), snapshot.state))
    assert (await session.replace(users("summary"))).count == 1
    store.limits = SessionLimits()


async def test_what_is_private_never_touches_the_medium(medium: Medium):
    secret = "a-secret-of-nineteen"
    async with medium.open() as store:
        for number, write in enumerate(("append", "replace", "checkpoint")):
            session = Session(id=f"s{number}", store=store)
            await getattr(session, write)(
                [
                    Message.system(secret),
                    Message.user(secret, {"transient": True}),
                    Message.assistant([Reasoning(text=secret, signature=secret), Text("kept")]),
                    Message.tool(
                        [ToolResult(tool_use_id="1", content=[Reasoning(text=secret), Text("kept")])]
                    ),
                ]
            )
            found = await _bytes_of(medium)
            assert b"kept" in found
            assert secret.encode() not in found


async def _bytes_of(medium: Medium) -> bytes:
    """All that the medium has, while the store is open."""
    if medium.kind == "memory":
        return repr([kept.bodies for kept in medium.memory._kept.values()]).encode()
    if medium.kind == "sqlite":
        file = Path(urlsplit(medium.url).path)
        return b"".join(path.read_bytes() for path in file.parent.glob(f"{file.name}*"))
    async with _tables(medium) as (connection, names):
        rows = [row for name in names for row in await connection.fetch(f"SELECT * FROM {name}")]
    values = [value for row in rows for value in row.values()]
    return b"\n".join(value if isinstance(value, bytes) else str(value).encode() for value in values)


@contextlib.asynccontextmanager
async def _tables(medium: Medium) -> AsyncIterator[tuple[Any, list[str]]]:
    """A connection to the server beside the store's, and the names of its tables."""
    import asyncpg

    schema = parse_qs(urlsplit(medium.url).query)["schema"][0]
    connection = await asyncpg.connect(medium.url.replace(f"schema={schema}", "").rstrip("&?"))
    try:
        found = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
        yield connection, [f'"{schema}"."{row[0]}"' for row in found]
    finally:
        await connection.close()


HOSTILE = [
    "'; DROP TABLE sessions; --",
    '" OR 1=1 --',
    "$1",
    "?1",
    ":id",
    "%s",
    "{0.__class__}",
    "*",
    "%",
    "_",
    "../../etc/passwd",
    "a\\'b",
]


async def test_text_is_never_taken_for_code(store: SessionStore):
    objects: list[dict[str, Any]] = [
        {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "true"}},
        {"__class__": "os.system", "__reduce__": ["true"], "py/object": "os.system"},
        {"$type": "System.Object", "__proto__": {"admin": True}, "!!python/object/apply": "os.system"},
        {"type": "text", "text": 1},
    ]
    for name in HOSTILE:
        session = Session(id=name, store=store, actor_id=name)
        await session.append(
            [
                Message.assistant(
                    [ToolUse(id=name, name="f", input={"o": objects, name: name})], {name: objects}
                )
            ],
            state={name: objects},
        )
    for name in HOSTILE:
        snapshot = await store.load(name, actor_id=name)
        assert snapshot.messages[0].tool_uses[0].input == {"o": objects, name: name}
        assert snapshot.state == {name: objects}
        assert [type(value) for value in snapshot.state[name]] == [dict] * 4
        assert [info.id for info in (await store.sessions(actor_id=name)).items] == [name]
        with pytest.raises(DataError):
            await store.sessions(actor_id=name, cursor=name)
    assert len((await store.sessions(actor_id=ALL_ACTORS)).items) == len(HOSTILE)


# Whose it is


async def test_a_session_of_another_is_not_there_whatever_is_asked(store: SessionStore):
    mine = Session(id="s", store=store, actor_id="me")
    commit = await mine.append(users("mine"), state={"v": 1}, commit_id="first")
    before = await store.load("s", actor_id="me")
    for actor in ("other", "", "ME", "me ", None):
        other = Session(id="s", store=store, actor_id=actor)
        assert await other.load() is None
        assert await other.history(fallback=["nothing"]) == ["nothing"]
        assert (await store.tail("s", limit=5, actor_id=actor)).items == ()
        assert not await store.delete("s", actor_id=actor)
        assert (await store.sessions(actor_id=actor)).items == ()
        with pytest.raises(SessionNotFoundError):
            await store.fork("s", "t", actor_id=actor)
        with pytest.raises(ConflictError) as caught:
            await append(
                store, "s", 1, "x", actor_id=actor, expected_revision=commit.revision, commit_id="first"
            )
        assert caught.value.actual is None, "the error tells of another's session"
        async with store.lease("s", actor_id="me", timeout=0), store.lease("s", actor_id=actor, timeout=0):
            pass
    assert await store.load("s", actor_id="me") == before


async def test_long_names_never_meet(store: SessionStore):
    names = [f"{'x' * length}{end}" for length in (99, 100, 101, 255, 256, 10_000) for end in ("", "a", "b")]
    names += [f"{start}{'x' * 10_000}" for start in "ab"]
    for name in names:
        await append(store, name, 0, name[:3] + name[-3:], state={"n": len(name)})
        await append(store, "s", 0, name[-1], actor_id=name, state={"n": len(name)})
    for name in names:
        assert await texts(store, name) == [name[:3] + name[-3:]]
        assert (await store.load("s", actor_id=name)).state == {"n": len(name)}
        assert [info.id for info in (await store.sessions(actor_id=name)).items] == ["s"]
    listed = [info.id for info in (await store.sessions()).items]
    assert sorted(listed) == sorted(names)
    async with store.lease(names[-5], timeout=0), store.lease(names[-4], timeout=0):
        with pytest.raises(SessionBusyError):
            async with store.lease(names[-5], timeout=0):
                pass
    assert await store.delete(names[-4])
    assert await texts(store, names[-5]) != []


# Long conversations, and the event loop


@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [3_000, 100_000])
async def test_a_long_session_is_paged_through_by_cursor(store: SessionStore, count: int):
    said = [f"{number}" for number in range(count)]
    half = count // 2
    await append(store, "s", 0, *said[:half])
    for start in range(half, half + 300, 3):  # and by small commits
        await append(store, "s", start, *said[start : start + 3])
    await append(store, "s", half + 300, *said[half + 300 :])
    found: list[str] = []
    before: Any = None
    size = 1 + count // 23
    while True:
        page = await store.tail("s", limit=size, before=before)
        found[:0] = [message.text for message in page.items]
        before = page.cursor
        if before is None:
            break
    assert found == said
    assert (await store.load("s")).count == count


class Ticks:
    """How long the event loop was away at the longest while something was done, and how long that took."""

    async def __aenter__(self) -> Self:
        self.longest = 0.0
        self._began = time.perf_counter()
        self._task = asyncio.create_task(self._tick())
        await asyncio.sleep(0.01)
        return self

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.longest = max(self.longest, now - last)
            last = now

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.01)
        self.took = time.perf_counter() - self._began
        self._task.cancel()


async def test_the_event_loop_goes_on_while_a_large_session_is_read(medium: Medium):
    if medium.kind == "memory":
        pytest.skip("there is nothing to wait for: what is read is decoded at once")
    async with medium.open() as store:
        for number in range(40):
            await append(store, "s", 400 * number, *["läßt \0 \\ " * 100] * 400)
        parts: list[float] = []
        for _ in range(5):
            async with Ticks() as ticks:
                assert (await store.load("s")).count == 16_000
            parts.append(ticks.longest / ticks.took)
    assert min(parts) < 0.25, f"of the time that a load took, the loop was away for {parts}"


async def test_the_event_loop_goes_on_while_others_hold_what_is_wanted(medium: Medium):
    async with medium.open() as store, medium.open() as other:
        await append(store, "s", 0, "a")
        leasing: list[float] = []
        writing: list[float] = []
        for turn in range(4):
            async with Ticks() as ticks:
                async with other.lease("s"):
                    with pytest.raises(SessionBusyError):
                        async with store.lease("s", timeout=0.4):
                            pass
            assert ticks.took > 0.4
            leasing.append(ticks.longest / ticks.took)
            async with _locked(medium), Ticks() as ticks:
                write = asyncio.create_task(append(store, "s", 1 + turn, "b"))
                read = asyncio.create_task(store.load("s"))
                await asyncio.sleep(0.4)
                if medium.kind != "memory":
                    assert not write.done()
            writing.append(ticks.longest / ticks.took)
            await write
            await read
            if leasing[-1] < 0.5 and writing[-1] < 0.5:
                break  # else the machine may have been away, once
        assert min(leasing) < 0.5, leasing
        assert min(writing) < 0.5, writing
        assert await texts(store, "s") == ["a", *["b"] * len(writing)]


@contextlib.asynccontextmanager
async def _locked(medium: Medium) -> AsyncIterator[None]:
    """Another connection is in the midst of writing."""
    if medium.kind == "sqlite":
        begun, end = threading.Event(), threading.Event()

        def hold() -> None:
            connection = sqlite3.connect(urlsplit(medium.url).path)
            connection.execute("BEGIN IMMEDIATE")
            begun.set()
            end.wait(30)
            connection.rollback()
            connection.close()

        holding = asyncio.create_task(asyncio.to_thread(hold))
        await asyncio.to_thread(begun.wait)
        try:
            yield
        finally:
            end.set()
            await holding
    elif medium.kind == "postgres":
        async with _tables(medium) as (connection, names), connection.transaction():
            await connection.execute(f"LOCK TABLE {', '.join(names)} IN EXCLUSIVE MODE")
            yield
    else:
        yield


@pytest.mark.parametrize("messages", [None, 5, "x", b"x", {"role": "user"}, Message.user("x"), [1], [None]])
async def test_what_are_no_messages_is_an_error_that_names_them(store: SessionStore, messages: Any):
    content: dict[str, Any] = {"messages": messages, "state": {}, "metadata": {}}
    for write in (
        partial(store.append, expected_count=0),
        store.replace,
        partial(store.restore, expected_revision=None),
    ):
        with pytest.raises(DataError, match="messages"):
            await write("s", **content)
    assert await store.load("s") is None


@pytest.mark.parametrize("timeout", ["1", 10**400, float("nan"), True, [1], b"1"])
async def test_what_is_no_time_to_wait_for_a_lease_is_an_error_that_names_it(
    store: SessionStore, timeout: Any
):
    with pytest.raises(DataError, match="timeout"):
        async with store.lease("s", timeout=timeout):
            pass
    async with store.lease("s", timeout=float("inf")), store.lease("t", timeout=10**300):
        with pytest.raises(SessionBusyError):
            async with store.lease("s", timeout=-1):
                pass
