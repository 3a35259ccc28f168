"""Arguments that make no sense are named, by both stores alike, before anything happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from littleghost.errors import DataError
from littleghost.message import Message
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.sqlite import SQLiteStore

WRONG = {
    "limit": [1.5, "1", None, True, 0, -1],
    "before": [1.5, "1", True],
    "cursor": [1, b">a", "a", "", ">\ud800"],
    "expected_count": [None, True, "1", 1.0],
    "expected_revision": [1, b"x", True],
    "commit_id": [5, b"c", "", "a b", True],
}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
async def test_a_wrong_argument_is_named(tmp_path: Path, kind: str, name: str, value: object):
    store = MemoryStore() if kind == "memory" else SQLiteStore(tmp_path / "a.db", durability="off")
    content = {"messages": [Message.user("x")], "state": {}, "metadata": {}}
    wrong = {name: value}
    calls = {
        "limit": [lambda: store.tail("a", **wrong), lambda: store.sessions(**wrong)],
        "before": [lambda: store.tail("a", limit=1, **wrong)],
        "cursor": [lambda: store.sessions(**wrong)],
    }.get(
        name,
        [
            lambda: store.append("a", **{**content, "expected_count": 0, **wrong}),
            lambda: store.append("a", **{**content, "expected_count": 1, **wrong}),
            *([lambda: store.replace("a", **content, **wrong)] if name != "expected_count" else []),
        ],
    )
    for call in calls:
        with pytest.raises(DataError) as caught:
            await call()
        assert caught.value.path == name
    assert not (tmp_path / "a.db").exists()
    assert await store.load("a") is None
    await store.aclose()
