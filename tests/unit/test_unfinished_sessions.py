"""Which sessions a worker that starts has to go on with."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from littleghost import (
    CorruptSessionError,
    MemoryStore,
    Message,
    SessionStore,
    SQLiteStore,
    StoreUnavailableError,
    ToolResult,
    ToolUse,
    UnsupportedError,
    transcript,
    unfinished_sessions,
)
from littleghost import sync as littleghost_sync

USER, ANSWER = Message.user("Hello"), Message.assistant("Hi")
CALLS = Message.assistant([ToolUse(id="1", name="a"), ToolUse(id="2", name="b")])


def result(id: str) -> Message:
    return Message("tool", [ToolResult(tool_use_id=id, content="done")])


FINISHED: dict[str, list[Message]] = {
    "empty": [],
    "answered": [USER, ANSWER],
    "answered twice": [USER, CALLS, result("2"), result("1"), ANSWER, USER, ANSWER],
}
UNFINISHED: dict[str, list[Message]] = {
    "asked": [USER],
    "asked again": [USER, ANSWER, USER],
    "called": [USER, CALLS],
    "one result": [USER, CALLS, result("2")],
    "all results": [USER, CALLS, result("2"), result("1")],
    "cut short": [USER, transcript.mark(ANSWER, partial="stopped")],
    "long ago": [USER, CALLS, *(Message("developer", str(number)) for number in range(100))],
}


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "s.db")
    async with made:
        for number, (id, messages) in enumerate({**FINISHED, **UNFINISHED}.items()):
            actor = None if number % 2 else "ann"
            await made.replace(id, messages=messages, state={}, metadata={}, actor_id=actor)
        yield made


async def ids(store: SessionStore, **options: Any) -> set[str]:
    return {info.id async for info in unfinished_sessions(store, **options)}


async def test_those_without_an_answer_are_found(store: SessionStore):
    assert await ids(store) == set(UNFINISHED)


async def test_of_one_actor(store: SessionStore):
    mine = {info.id async for info in unfinished_sessions(store, actor_id="ann")}
    assert mine
    assert mine < set(UNFINISHED)
    assert mine | await ids(store, actor_id=None) == set(UNFINISHED)


async def test_only_the_end_of_a_session_is_read(store: SessionStore, monkeypatch: pytest.MonkeyPatch):
    async def load(*_: Any, **__: Any) -> Any:
        raise AssertionError("read whole")

    asked: list[tuple[str, int | None]] = []
    tail = store.tail

    async def listening(id: str, **given: Any) -> Any:
        asked.append((id, given["before"]))
        return await tail(id, **given)

    if not isinstance(store, MemoryStore):
        monkeypatch.setattr(store, "load", load)
    monkeypatch.setattr(store, "tail", listening)
    await ids(store)
    assert [before for id, before in asked if id == "long ago"] == [None, 70, 38, 6]
    assert len(asked) == len(FINISHED) + len(UNFINISHED) + 3


async def test_one_that_cannot_be_read_is_logged_and_left_out(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    tail = store.tail

    async def damaged(id: str, **given: Any) -> Any:
        if id == "called":
            raise CorruptSessionError("a bit fell over")
        return await tail(id, **given)

    monkeypatch.setattr(store, "tail", damaged)
    with caplog.at_level(logging.WARNING, "littleghost"):
        assert await ids(store) == set(UNFINISHED) - {"called"}
    assert "'called' was not looked at (CorruptSessionError)" in caplog.text


async def test_a_store_that_is_gone_is_an_error(store: SessionStore, monkeypatch: pytest.MonkeyPatch):
    async def gone(*_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(store, "tail", gone)
    with pytest.raises(StoreUnavailableError):
        await ids(store)


def test_a_store_that_cannot_list_says_so():
    class Plain(MemoryStore):
        capabilities = MemoryStore.capabilities - {"all_actors"}

    with pytest.raises(UnsupportedError, match="all_actors"):
        unfinished_sessions(Plain())


def test_the_same_without_async(tmp_path: Path):
    with littleghost_sync.SQLiteStore(tmp_path / "s.db") as store:
        littleghost_sync.Session(id="s", store=store, actor_id="ann").append([USER])
        assert [info.id for info in littleghost_sync.unfinished_sessions(store)] == ["s"]


async def test_what_is_inside_of_another_session_is_left_to_it(store: SessionStore) -> None:
    inside = {"littleghost": {"parent": {"session": "asked", "call": "1"}}}
    before = await ids(store, actor_id=None)
    for id, metadata in {"inner": inside, "odd": {"littleghost": {"parent": 5}}}.items():
        await store.replace(id, messages=[USER], state={}, metadata=metadata)
    assert await ids(store, actor_id=None) == before | {"odd"}
