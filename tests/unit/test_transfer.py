"""Sessions to a file and back: every value exact, and every way in which a file can be cut, changed or hostile."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from littleghost import (
    ALL_ACTORS,
    ConfigurationError,
    CorruptSessionError,
    Document,
    FormatError,
    Image,
    MemoryStore,
    Message,
    SessionLimits,
    SessionStore,
    SQLiteStore,
    StoreUnavailableError,
    Text,
    ToolResult,
    ToolUse,
    Transferred,
    UnsupportedError,
    copy_sessions,
    export_sessions,
    import_sessions,
    open_store,
    sync,
)
from littleghost.sessions import walk
from littleghost.sessions.contract import Commit, Page, SessionInfo, Snapshot
from littleghost.sessions.exchange import LARGE
from littleghost.testing import FaultyStore

Make = Callable[[], SessionStore]

KEYS = [
    (None, "a"),
    ("", "a"),
    ("None", "a"),
    (":", "a\0b"),
    ("-", ""),
    ("ö\u0300", "🦄\n\x1b[31m"),
    ("a", "x" * 900),
]

HARD: list[Message] = [
    Message.user(['\0 ␀ \u2028 \U0010ffff e\u0301 \\u0000 \\" </script>', Image(data=bytes(range(256)), media_type="image/png")]),
    Message.developer([Document(data=b"\0\xff", media_type="application/pdf", name="ä.pdf")]),
    Message.assistant(["", ToolUse(id="c", name="t", input={"big": 10**300, "f": 0.1 + 0.2, "z": -0.0, "deep": [[[{}]]]})]),
    Message.tool([ToolResult(tool_use_id="c", content=[Text("x\0"), Image(data=b"", media_type="image/gif")], status="error")]),
    Message.tool([ToolResult(tool_use_id="d", content={"a": [1, True, None, 1e-320]})]),
    Message.user([]),
    Message.system("stays, for a store keeps what it is given"),
    Message.user("m", metadata={"littleghost": {"k": 1}, "": [], "transient": True}),
]  # fmt: skip
STATE = {"n": 2**200, "s": "\0", "nested": {"b": [1.5, None, False], "a": ""}, "": {}}


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[SessionStore] = []
    new_url = request.getfixturevalue("new_postgres_url") if request.param == "postgres" else None

    def build() -> SessionStore:
        if request.param == "memory":
            made.append(MemoryStore())
        elif new_url is not None:
            made.append(open_store(new_url()))
        else:
            made.append(SQLiteStore(tmp_path / f"{len(made)}.db", durability="off"))
        return made[-1]

    yield build
    for store in made:
        await store.aclose()


async def write(
    store: SessionStore, id: str, *messages: Message | str, actor: str | None = None, state: Any = None
) -> Commit:
    given = [Message.user(message) if isinstance(message, str) else message for message in messages]
    return await store.replace(
        id, messages=given, state=state or {}, metadata={"of": id}, actor_id=actor, expected_revision=None
    )


async def exported(store: SessionStore, **options: Any) -> bytes:
    return b"".join([line async for line in export_sessions(store, **options)])


async def imported(store: SessionStore, *chunks: bytes, **options: Any) -> list[Transferred]:
    return [done async for done in import_sessions(store, chunks, **options)]


async def content(store: SessionStore) -> dict[Any, Any]:
    """All there is, in a form that tells 1 from true."""
    page = await store.sessions(actor_id=ALL_ACTORS, limit=10_000)
    found: dict[Any, Any] = {}
    for info in page.items:
        snapshot = await store.load(info.id, actor_id=info.actor_id)
        assert snapshot is not None
        whole = [
            [message.to_dict() for message in snapshot.messages],
            snapshot.state,
            snapshot.metadata,
            info.count,
            info.created_at,
            info.updated_at,
        ]
        found[info.actor_id, info.id] = json.dumps(whole, sort_keys=True)
    return found


async def gather(items: AsyncIterator[Any], into: list[Any]) -> None:
    """Like a list, but with what came before an error as well."""
    async for item in items:
        into.append(item)


def outcomes(done: list[Transferred]) -> list[str]:
    return [one.outcome for one in done]


# There and back


async def test_everything_comes_back_exactly_and_with_its_times(make: Make):
    source, destination = make(), make()
    for actor, id in KEYS:
        await write(source, id, *HARD, actor=actor, state=STATE)
    await write(source, "empty")
    await write(source, "long", *(f"{number}" for number in range(700)))
    raw = await exported(source)
    before = await content(source)
    done = await imported(destination, raw)
    assert outcomes(done) == ["written"] * (len(KEYS) + 2)
    assert {(one.actor_id, one.id) for one in done} == set(before)
    assert await content(destination) == before
    again = await exported(destination)
    without = re.compile(rb'"revision":"[^"]*"|"sha256":"[^"]*"')
    assert without.sub(b"", again) == without.sub(b"", raw)


async def test_the_same_sessions_are_the_same_bytes(make: Make):
    store = make()
    await write(store, "a", *HARD)
    assert await exported(store) == await exported(store)


async def test_the_sessions_of_one_actor(make: Make):
    source = make()
    for actor in (None, "bob", "eve"):
        await write(source, "a", f"of {actor}", actor=actor)
    for actor in (None, "bob"):
        destination = MemoryStore()
        await imported(destination, await exported(source, actor_id=actor))
        assert list(await content(destination)) == [(actor, "a")]


async def test_the_lines_are_what_is_documented(make: Make):
    store = make()
    await write(store, "a", *(f"{number}" for number in range(600)), actor="bob", state={"n": 1})
    raw = await exported(store)
    assert raw.endswith(b"\n")
    lines = [json.loads(line) for line in raw.splitlines()]
    assert [line["type"] for line in lines] == ["header", "session", *["messages"] * 3, "end", "totals"]
    assert lines[0] == {"type": "header", "format": "littleghost.sessions", "version": 1}
    assert (lines[1]["id"], lines[1]["actor_id"], lines[1]["count"], lines[1]["state"]) == (
        "a",
        "bob",
        600,
        {"n": 1},
    )
    assert [len(line["messages"]) for line in lines[2:5]] == [256, 256, 88]
    assert (lines[6]["sessions"], lines[6]["messages"], lines[6]["damaged"]) == (1, 600, 0)


async def test_lines_of_large_messages_are_divided():
    store = MemoryStore()
    await write(store, "a", *(["x" * 200_000] * 20))
    raw = await exported(store)
    assert max(map(len, raw.splitlines())) < LARGE + 100
    destination = MemoryStore()
    assert outcomes(await imported(destination, raw)) == ["written"]
    assert await content(destination) == await content(store)


async def test_what_is_read_in_any_pieces_is_the_same():
    store = MemoryStore()
    await write(store, "a", *HARD, state=STATE)
    await write(store, "b")
    raw = await exported(store)
    expected = await content(store)
    for size in (1, 2, 3, 7, 64, 1000, len(raw)):
        destination = MemoryStore()
        await imported(destination, *(raw[at : at + size] for at in range(0, len(raw), size)))
        assert await content(destination) == expected
    destination = MemoryStore()  # and an async source, and empty pieces

    async def pieces() -> AsyncIterator[bytes]:
        yield b""
        yield raw

    assert outcomes([done async for done in import_sessions(destination, pieces())]) == ["written"] * 2


async def test_an_empty_store_is_a_whole_file():
    assert await imported(MemoryStore(), await exported(MemoryStore())) == []


async def test_reasoning_of_a_store_that_keeps_it_is_left_behind():
    class Careless(MemoryStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Any:
            reasoning = {"type": "reasoning", "text": "secret"}
            return {
                "messages": [
                    {"role": "assistant", "content": [reasoning]},
                    {"role": "assistant", "content": [reasoning, {"type": "text", "text": "said"}]},
                ],
                "revision": "1",
            }

    store = Careless()
    await write(store, "a", "x")
    raw = await exported(store)
    assert b"secret" not in raw
    destination = MemoryStore()
    assert outcomes(await imported(destination, raw)) == ["written"]
    assert outcomes(await imported(destination, raw)) == ["same"]


async def test_the_synchronous_face_does_the_same():
    store = MemoryStore()
    await write(store, "a", *HARD)
    raw = await exported(store)
    kept = MemoryStore()
    assert b"".join(sync.export_sessions(store)) == raw
    assert outcomes(list(sync.import_sessions(kept, sync.export_sessions(store)))) == ["written"]
    assert await content(kept) == await content(store)
    with pytest.raises(FormatError):
        list(sync.import_sessions(kept, [b"{}\n"]))
    lines = sync.export_sessions(store)
    next(lines)
    lines.close()


# What is there already


async def test_an_import_that_broke_off_is_run_again(make: Make):
    source, destination = make(), make()
    for number in range(6):
        await write(source, f"s{number}", f"{number}")
    raw = await exported(source)
    faulty = FaultyStore(destination).fail("restore", 3).fail("restore", 5, when="after")
    with pytest.raises(StoreUnavailableError):
        await imported(faulty, raw)
    assert len(await content(destination)) == 2
    with pytest.raises(StoreUnavailableError):  # written, and the answer lost
        await imported(faulty, raw)
    assert len(await content(destination)) == 4
    assert outcomes(await imported(faulty, raw)) == ["same"] * 4 + ["written"] * 2
    assert await content(destination) == await content(source)
    faulty.calls.clear()
    await imported(faulty, raw)
    assert {"restore", "replace", "append"}.isdisjoint(faulty.calls)


@pytest.mark.parametrize(
    ("existing", "outcome", "text"),
    [("fail", "failed", "mine"), ("skip", "skipped", "mine"), ("replace", "replaced", "theirs")],
)
async def test_another_session_in_its_place(make: Make, existing: Any, outcome: str, text: str):
    source, destination = make(), make()
    await write(source, "a", "theirs")
    await write(source, "b", "new")
    await write(destination, "a", "mine")
    done = await imported(destination, await exported(source), existing=existing)
    assert outcomes(done) == [outcome, "written"]
    snapshot = await destination.load("a")
    assert snapshot is not None
    assert [message.text for message in snapshot.messages] == [text]
    if existing == "fail":
        assert "another session" in (done[0].problem or "")


@pytest.mark.parametrize(
    "other",
    [
        {"state": {"n": 1.0}},
        {"state": {"n": True}},
        {"metadata": {"k": 2}},
        {"messages": [Message.user("x")]},
        {"messages": [Message.user("x", metadata={"n": True})]},
        {"messages": [Message.user("x", metadata={"n": 1}), Message.user("y")]},
    ],
)
async def test_what_differs_a_little_is_another_session(other: dict[str, Any]):
    own: dict[str, Any] = {
        "messages": [Message.user("x", metadata={"n": 1})],
        "state": {"n": 1},
        "metadata": {"k": 1},
    }
    source, destination = MemoryStore(), MemoryStore()
    await source.replace("a", **own)
    await destination.replace("a", **{**own, **other})
    assert outcomes(await imported(destination, await exported(source))) == ["failed"]


@pytest.mark.parametrize("number", [0, 1, 256, 512])
async def test_a_session_that_is_longer_is_another_one(number: int):
    source, destination = MemoryStore(), MemoryStore()
    await write(source, "a", *["x"] * number)
    await write(destination, "a", *["x"] * (number + 1))
    assert outcomes(await imported(destination, await exported(source))) == ["failed"]


async def test_who_writes_at_the_same_moment_is_not_run_over():
    class Racing(MemoryStore):
        """Somebody else is first, once."""

        raced = False

        async def restore(self, id: str, **options: Any) -> Commit:
            if not self.raced:
                self.raced = True
                if options.get("expected_revision") is None:
                    await write(self, id, "theirs")
                else:
                    await self.append(
                        id, messages=[Message.user("and")], state={}, metadata={}, expected_count=1
                    )
            return await super().restore(id, **options)

    source = MemoryStore()
    await write(source, "a", "ours")
    raw = await exported(source)
    done = await imported(destination := Racing(), raw)
    assert outcomes(done) == ["failed"]
    assert [message.text for message in (await destination.load("a")).messages] == ["theirs"]  # type: ignore[union-attr]
    destination.raced = False
    faulty = FaultyStore(destination)
    assert outcomes(await imported(faulty, raw, existing="replace")) == ["replaced"]
    assert faulty.calls.count("restore") == 2
    assert [message.text for message in (await destination.load("a")).messages] == ["ours"]  # type: ignore[union-attr]


async def test_what_replaces_a_session_keeps_its_times(make: Make):
    source, destination = make(), make()
    await write(source, "b", "x")
    await source.restore(
        "a",
        messages=[Message.user("ours")],
        state={"n": 1},
        metadata={},
        created_at=1000.25,
        updated_at=2000.5,
    )
    raw = await exported(source)
    await destination.restore(
        "a", messages=[Message.user("theirs")], state={}, metadata={}, created_at=500.5, updated_at=1500.5
    )
    assert outcomes(await imported(destination, raw, existing="replace")) == ["replaced", "written"]
    assert await content(destination) == await content(source)
    assert outcomes(await imported(destination, raw, existing="replace")) == ["same", "same"]


async def test_a_store_without_restore_replaces_and_counts_it_as_written_now():
    class Timeless(MemoryStore):
        capabilities = MemoryStore.capabilities - {"restore"}

        async def restore(self, id: str, **options: Any) -> Commit:
            raise AssertionError

    source, destination = MemoryStore(), Timeless()
    await source.restore("a", messages=[], state={"n": 1}, metadata={}, created_at=1.5, updated_at=2.5)
    await destination.replace("a", messages=[], state={}, metadata={})
    raw = await exported(source)
    assert outcomes(await imported(destination, raw, existing="replace")) == ["replaced"]
    (info,) = (await destination.sessions()).items
    assert info.updated_at is not None
    assert info.updated_at > 1e9
    assert (await destination.load("a")).state == {"n": 1}  # type: ignore[union-attr]


async def test_a_session_that_is_too_large_for_the_store_fails_alone(make: Make):
    source, destination = make(), MemoryStore()
    await write(source, "a", "x", "y", "z")
    await write(source, "b", "x")
    destination.limits = SessionLimits(messages=2)
    done = await imported(destination, await exported(source))
    assert outcomes(done) == ["failed", "written"]
    assert "3 messages" in (done[0].problem or "")
    assert [id for _, id in await content(destination)] == ["b"]


# Damage in the store


def spoil(store: SessionStore, number: int) -> None:
    """Make the messages of the session with this number unreadable."""
    assert isinstance(store, MemoryStore)
    kept = store._kept[None, f"s{number}"]
    kept.bodies = [body[:-5] for body in kept.bodies]


async def test_a_damaged_session_does_not_end_the_export():
    store = MemoryStore()
    for number in range(4):
        await write(store, f"s{number}", "x")
    spoil(store, 1)
    reported: list[Transferred] = []
    raw = await exported(store, report=reported.append)
    assert outcomes(reported) == ["written", "failed", "written", "written"]
    assert (reported[1].id, reported[1].count) == ("s1", 0)
    assert "cannot be read" in (reported[1].problem or "")
    totals = json.loads(raw.splitlines()[-1])
    assert (totals["sessions"], totals["damaged"]) == (3, 1)
    destination = MemoryStore()
    done = await imported(destination, raw)
    assert [(one.id, one.outcome) for one in done] == [
        ("s0", "written"),
        ("s1", "failed"),
        ("s2", "written"),
        ("s3", "written"),
    ]
    assert "when the file was made" in (done[1].problem or "")
    assert len(await content(destination)) == 3


@pytest.mark.parametrize("bad", [(0,), (249,), (100,), (99, 100, 101), (7, 120, 121, 240)])
async def test_sessions_whose_entries_are_damaged_cost_no_others(tmp_path: Path, bad: tuple[int, ...]):
    """The list itself cannot be read there, so the others are found around it."""
    async with SQLiteStore(tmp_path / "s.db", durability="off") as store:
        for number in range(250):
            then = 1e9 + number * 37 % 250
            await store.restore(
                f"s{number:03}",
                messages=[Message.user("x")],
                state={},
                metadata={},
                created_at=then,
                updated_at=then,
            )
        expected = {key: value for key, value in (await content(store)).items() if int(key[1][1:]) not in bad}
    with closing(sqlite3.connect(tmp_path / "s.db")) as db, db:
        for number in bad:
            assert (
                db.execute("UPDATE sessions SET count = count + 1 WHERE id = ?", (f"s{number:03}",)).rowcount
                == 1
            )
    destination, copied = MemoryStore(), MemoryStore()
    reported: list[Transferred] = []
    async with SQLiteStore(tmp_path / "s.db", durability="off") as store:
        with pytest.raises(CorruptSessionError):
            await store.sessions(limit=250)
        raw = await exported(store, report=reported.append)
        done = [one async for one in copy_sessions(store, copied)]
    assert await content(copied) == expected
    assert outcomes(done).count("failed") == len(bad)
    assert outcomes(reported).count("written") == 250 - len(bad)
    # Once each, and by its name, which the check of the store knows.
    for told in (done, reported):
        failed = sorted(one.id or "" for one in told if one.outcome == "failed")
        assert failed == [f"s{number:03}" for number in bad]
    assert outcomes(await imported(destination, raw)).count("failed") == len(bad)
    assert await content(destination) == expected


async def test_where_the_check_of_the_store_fails_too_something_is_told():
    class Hides(MemoryStore):
        async def sessions(self, **options: Any) -> Any:
            page = await super().sessions(**options)
            return Page(items=page.items[1:])

        async def verify(self, **options: Any) -> Any:
            raise CorruptSessionError("nothing fits together")

    store = Hides()
    await write(store, "a", "x")
    await write(store, "b", "x")
    reported: list[Transferred] = []
    await exported(store, report=reported.append)
    assert [(one.id, one.outcome, one.problem) for one in reported] == [
        ("b", "written", None),
        (None, "failed", "nothing fits together"),
    ]


async def test_of_what_was_written_in_the_same_moment_as_a_damaged_one_the_first_are_found(tmp_path: Path):
    async with SQLiteStore(tmp_path / "s.db", durability="off") as store:
        for number in range(9):
            await store.restore(f"s{number}", messages=[], state={}, metadata={}, updated_at=1e9)
    with closing(sqlite3.connect(tmp_path / "s.db")) as db, db:
        db.execute("UPDATE sessions SET count = count + 1 WHERE id = 's6'")
    reported: list[Transferred] = []
    async with SQLiteStore(tmp_path / "s.db", durability="off") as store:
        await exported(store, report=reported.append)
    assert {f"s{number}" for number in range(5)} <= {one.id for one in reported if one.outcome == "written"}
    assert "nor can what was written about then" in (reported[-1].problem or "")


async def test_a_whole_part_of_the_list_that_is_damaged_is_one_failure_and_comes_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
):
    """However narrow the window: what lies in the hour is not to be had."""
    monkeypatch.setattr(walk, "FAILURES", 300)

    class Holed(MemoryStore):
        async def sessions(self, **options: Any) -> Page[SessionInfo]:
            since, until = options.get("since"), options.get("until")
            if (since is None or since < 5e5) and (until is None or until > 5e5 - 3600):
                raise CorruptSessionError("this hour is damaged")
            return await super().sessions(**options)

    store = Holed()
    for number in range(1, 20):
        await store.restore(f"s{number:02}", messages=[], state={}, metadata={}, updated_at=5e4 * number)
    reported: list[Transferred] = []
    await exported(store, report=reported.append)
    assert {one.id for one in reported if one.outcome == "written"} == {
        f"s{number:02}" for number in range(1, 20)
    }
    failed = [one for one in reported if one.outcome == "failed"]
    assert 1 <= len(failed) <= 3
    assert "this hour is damaged" in (failed[0].problem or "")


async def test_a_damaged_list_that_cannot_be_had_by_time_is_an_error():
    class Broken(MemoryStore):
        capabilities = frozenset({"sessions", "all_actors"})

        async def sessions(self, **_: Any) -> Page[SessionInfo]:
            raise CorruptSessionError("the list is damaged")

    with pytest.raises(CorruptSessionError, match="the list is damaged"):
        await exported(Broken())


async def test_a_store_that_cannot_be_reached_ends_the_export_without_an_end():
    store = MemoryStore()
    for number in range(4):
        await write(store, f"s{number}", "x")
    lines: list[bytes] = []
    with pytest.raises(StoreUnavailableError):
        await gather(export_sessions(FaultyStore(store).fail("load", 3)), lines)
    destination = MemoryStore()
    with pytest.raises(FormatError, match="ends before its last line"):
        await imported(destination, *lines)
    assert len(await content(destination)) == 2


async def test_a_session_that_was_written_or_deleted_since_it_was_listed():
    class Busy(MemoryStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
            if id == "b":
                await self.append(id, messages=[Message.user("y")], state={}, metadata={}, expected_count=1)
            if id == "c":
                await self.delete(id)
            return await super().load(id, actor_id=actor_id)

    store = Busy()
    for id in ("a", "b", "c"):
        await store.restore(
            id, messages=[Message.user("x")], state={}, metadata={}, created_at=5, updated_at=7
        )
    destination = MemoryStore()
    assert outcomes(await imported(destination, await exported(store))) == ["written"] * 2
    infos = {info.id: info for info in (await destination.sessions()).items}
    assert (infos["a"].count, infos["a"].created_at, infos["a"].updated_at) == (1, 5, 7)
    assert (infos["b"].count, infos["b"].created_at) == (2, 5)
    assert infos["b"].updated_at > 1e9  # type: ignore[operator]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    key=st.tuples(st.none() | st.text(max_size=5), st.text(max_size=5)),
    texts=st.lists(st.text(max_size=20), max_size=5),
    state=st.dictionaries(st.text(max_size=5), JSON, max_size=3),
    cuts=st.lists(st.integers(0, 5000), max_size=5),
)
async def test_any_session_comes_back_from_any_pieces(
    key: tuple[str | None, str], texts: list[str], state: dict[str, Any], cuts: list[int]
):
    source, destination = MemoryStore(), MemoryStore()
    await write(source, key[1], *texts, actor=key[0], state=state)
    raw = await exported(source)
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    await imported(destination, *(raw[start:end] for start, end in pairwise(places)))
    assert await content(destination) == await content(source)


# What cannot be


class Bare(SessionStore):
    """A store with three methods."""

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        return None

    async def append(self, id: str, **options: Any) -> Any:
        raise AssertionError

    async def replace(self, id: str, **options: Any) -> Any:
        raise AssertionError


class Listing(Bare):
    capabilities = frozenset({"sessions"})


class Guarded(MemoryStore):
    """Has revisions and forgets times."""

    capabilities = frozenset({"revisions", "sessions", "all_actors", "anonymous_actor"})

    async def restore(self, id: str, **options: Any) -> Commit:
        return await SessionStore.restore(self, id, **options)


async def test_a_missing_capability_is_named_at_once():
    for work, capability in (
        (lambda: export_sessions(Bare()), "sessions"),
        (lambda: export_sessions(Listing()), "all_actors"),
        (lambda: import_sessions(Bare(), []), "revisions"),
        (lambda: import_sessions(Listing(), [], existing="replace"), "revisions"),
    ):
        with pytest.raises(
            UnsupportedError, match=f"needs the capability {capability}, which (Bare|Listing) does"
        ):
            work()
    export_sessions(Listing(), actor_id="bob")


async def test_revisions_alone_are_enough_to_import():
    source = MemoryStore()
    await write(source, "a", "x")
    assert outcomes(await imported(Guarded(), await exported(source))) == ["written"]


@pytest.mark.parametrize("lines", ["text", b"bytes", ["text"], [None]])
async def test_what_is_no_bytes_is_a_mistake_of_the_caller(lines: Any):
    with pytest.raises(ConfigurationError, match="open\\(path, 'rb'\\)"):
        [done async for done in import_sessions(MemoryStore(), lines)]


async def test_arguments_that_make_no_sense():
    with pytest.raises(ConfigurationError, match="fail, skip, replace"):
        import_sessions(MemoryStore(), [], existing="merge")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="max_size"):
        import_sessions(MemoryStore(), [], max_size=0)


async def test_a_store_that_turns_in_circles_is_found_out():
    class Turning(MemoryStore):
        async def sessions(self, **_: Any) -> Page[SessionInfo]:
            return Page(items=(), cursor="again")

    with pytest.raises(Exception, match="the same page over and over"):
        await exported(Turning())
