"""MemoryStore and SQLiteStore answer alike, whatever is asked of them in whatever order."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from littleghost.errors import LittleGhostError
from littleghost.message import Message
from littleghost.sessions.contract import ANY
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.sqlite import SQLiteStore

ids = st.sampled_from(["a", "b"])
actors = st.sampled_from([None, "", "x"])
texts = st.lists(st.text(max_size=5), max_size=4)
revisions = st.sampled_from(["any", "none", "known", "older"])
commit_ids = st.sampled_from([None, "c1", "c2", "c3"])
counts = st.sampled_from(["right", "right", "right", "wrong", "zero"])

steps = st.one_of(
    st.tuples(st.just("append"), ids, actors, texts, counts, revisions, commit_ids, st.integers(0, 2)),
    st.tuples(
        st.just("replace"), ids, actors, texts, st.just("right"), revisions, commit_ids, st.integers(0, 2)
    ),
    st.tuples(st.just("delete"), ids, actors),
    st.tuples(st.just("fork"), ids, ids, actors, st.one_of(st.none(), st.integers(-1, 9))),
    st.tuples(st.just("tail"), ids, actors, st.integers(0, 5), st.one_of(st.none(), st.integers(-1, 12))),
    st.tuples(st.just("sessions"), actors, st.integers(0, 3)),
)


class Twin:
    """A store, and the revisions it has told, oldest first, so that two stores can be asked the same."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.told: dict[Any, list[str]] = {}

    def name(self, key: Any, revision: str | None) -> Any:
        told = self.told.setdefault(key, [])
        if revision is not None and revision not in told:
            told.append(revision)
        return revision and told.index(revision)

    async def do(self, step: tuple[Any, ...]) -> Any:
        try:
            return await getattr(self, step[0])(*step[1:])
        except LittleGhostError as error:
            return type(error).__name__

    async def seen(self, id: str, actor: str | None) -> Any:
        snapshot = await self.store.load(id, actor_id=actor)
        if snapshot is None:
            return None
        return snapshot.messages, snapshot.state, snapshot.count, self.name((id, actor), snapshot.revision)

    async def _write(
        self, method: Any, id, actor, new, count, revision, commit_id, state, **options: Any
    ) -> Any:
        key = (id, actor)
        told = self.told.get(key, [])
        chosen = {
            "any": ANY,
            "none": None,
            "known": told[-1] if told else "x",
            "older": told[0] if told else "x",
        }
        commit = await method(
            id,
            messages=[Message.user(text) for text in new],
            state={"v": state},
            metadata={},
            actor_id=actor,
            expected_revision=chosen[revision],
            commit_id=commit_id,
            **options,
        )
        return commit.count, self.name(key, commit.revision)

    async def append(self, id, actor, new, count, revision, commit_id, state):
        snapshot = await self.store.load(id, actor_id=actor)
        stored = snapshot.count if snapshot else 0
        expected = {"right": stored, "wrong": stored + 1, "zero": 0}[count]
        return await self._write(
            self.store.append, id, actor, new, count, revision, commit_id, state, expected_count=expected
        )

    async def replace(self, *step):
        return await self._write(self.store.replace, *step)

    async def delete(self, id, actor):
        return await self.store.delete(id, actor_id=actor)

    async def fork(self, id, new, actor, at):
        commit = await self.store.fork(id, new, at=at, actor_id=actor)
        return commit.count, self.name((new, actor), commit.revision)

    async def tail(self, id, actor, limit, before):
        page = await self.store.tail(id, limit=limit, before=before, actor_id=actor)
        return page.items, page.cursor

    async def sessions(self, actor, limit):
        found, cursor = [], None
        while True:
            page = await self.store.sessions(actor_id=actor, limit=limit, cursor=cursor)
            found.append([(item.id, item.actor_id, item.count) for item in page.items])
            cursor = page.cursor
            if cursor is None:
                return found


@settings(max_examples=150)
@given(st.lists(steps, max_size=25))
def test_they_answer_alike(todo: list[tuple[Any, ...]]):
    async def both(folder: str) -> None:
        async with SQLiteStore(Path(folder, "a.db"), durability="off") as store:
            one, two = Twin(MemoryStore()), Twin(store)
            for step in todo:
                assert await one.do(step) == await two.do(step), step
                for id in "ab":
                    for actor in (None, "", "x"):
                        assert await one.seen(id, actor) == await two.seen(id, actor), step

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(both(folder))
