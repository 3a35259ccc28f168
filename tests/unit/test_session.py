"""A session: which calls of its store are made when, with what, and what becomes of the answers."""

from __future__ import annotations

import asyncio
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from littleghost import (
    Commit,
    ConfigurationError,
    ConflictError,
    DataError,
    Image,
    MemoryStore,
    Message,
    ProtocolError,
    Reasoning,
    Session,
    SessionLimits,
    SessionNotFoundError,
    SessionStore,
    Snapshot,
    StoreUnavailableError,
    Text,
    ToolResult,
    ToolUse,
    UnsupportedError,
    sync,
    transcript,
)

A, B, C = Message.user("a"), Message.assistant("b"), Message.user("c")
SECRETS = [
    Message.system("secret"),
    Message.user("secret", {"transient": True}),
    Message.user("secret", {"transient": 0}),
    Message.assistant(Reasoning(text="secret")),
]


class Recording(SessionStore):
    """The methods of a store of one's own, over a dict; notes every call and can be told to fail."""

    def __init__(self, capabilities: Sequence[str] = ()) -> None:
        self.capabilities = frozenset(capabilities)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.operations: list[str | None] = []
        self.inner = MemoryStore()
        self.before: Callable[[str], Any] | None = None  # called before the work, and
        self.after: Callable[[str], Any] | None = None  # after it; may raise, or return what to await

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    async def _do(self, name: str, id: str, **given: Any) -> Any:
        self.calls.append((name, {"id": id, **given}))
        await self._hook(self.before, name)
        result = await getattr(self.inner, name)(id, **given)
        await self._hook(self.after, name)
        return result

    async def _hook(self, hook: Callable[[str], Any] | None, name: str) -> None:
        answer = hook(name) if hook is not None else None
        if answer is not None:
            await answer

    async def load(self, id: str, **given: Any) -> Any:
        found = await self._do("load", id, **given)
        if found is None or "revisions" in self.capabilities:
            return found
        return {
            "messages": [message.to_dict() for message in found.messages],
            "state": found.state,
            "metadata": found.metadata,
        }

    async def append(self, id: str, **given: Any) -> Any:
        return self._answer(await self._do("append", id, **given))

    async def replace(self, id: str, **given: Any) -> Any:
        return self._answer(await self._do("replace", id, **given))

    def _answer(self, commit: Commit) -> Any:
        return commit if "revisions" in self.capabilities else None

    async def project_conversation(self, id: str, **given: Any) -> None:
        self.calls.append(("project_conversation", {"id": id, **given}))

    async def delete(self, id: str, **given: Any) -> bool:
        return await self._do("delete", id, **given)

    @contextmanager
    def operation_context(self, operation_id: str | None) -> Any:
        self.operations.append(operation_id)
        with super().operation_context(operation_id):
            yield


PLAIN: list[str] = []
FULL = ["revisions", "commit_ids", "delete", "fork"]
STORES = pytest.mark.parametrize(
    "capabilities",
    [PLAIN, ["revisions"], ["commit_ids"], FULL],
    ids=["none", "revisions", "commit_ids", "all"],
)


def lost(error: Exception | None = None) -> Callable[[str], Any]:
    """A hook that fails once at a write."""
    left = [error or StoreUnavailableError("the answer was lost")]

    def hook(name: str) -> None:
        if name in ("append", "replace") and left:
            raise left.pop()

    return hook


def new(store: SessionStore, **options: Any) -> Session:
    return Session(**{"id": "s", "actor_id": "a", "store": store, **options})


# Keys


@pytest.mark.parametrize(
    ("id", "text"), [("s", "s"), (42, "42"), ("", ""), (1.5, "1.5"), (types.SimpleNamespace(), "namespace()")]
)
async def test_id_and_actor_become_strings(id: Any, text: str):
    store = Recording()
    session = Session(id=id, actor_id=id, store=store)
    assert (session.id, session.actor_id) == (text, text)
    await session.load()
    assert store.calls == [("load", {"id": text, "actor_id": text})]


async def test_no_actor_stays_no_actor_and_no_id_is_refused():
    store = Recording()
    await Session(id="s", store=store).load()
    assert store.calls == [("load", {"id": "s", "actor_id": None})]
    with pytest.raises(ConfigurationError, match="id must not be None"):
        Session(id=None, store=store)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"id": "\ud800"}, "id"),
        ({"actor_id": "\ud800"}, "actor_id"),
        ({"metadata": {"x": math.nan}}, "metadata.x"),
        ({"metadata": [1]}, "metadata"),
    ],
)
def test_what_could_not_be_a_key_or_metadata_is_refused_at_once(options: Any, path: str):
    with pytest.raises(DataError) as caught:
        new(MemoryStore(), **options)
    assert caught.value.path == path


def test_the_repr_has_no_content():
    session = new(MemoryStore(), metadata={"k": "secret"})
    assert repr(session) == "Session(id='s', actor_id='a', store=MemoryStore)"


# Reading


READS: list[Callable[[Session], Any]] = [
    lambda session: session.load(),
    lambda session: session.history(),
    lambda session: session.journal(),
    lambda session: session.state(),
    lambda session: session.metadata(),
]


@STORES
async def test_nothing_is_read_before_the_first_use_and_then_once(capabilities: list[str]):
    store = Recording(capabilities)
    session = new(store)
    assert store.calls == []
    for read in READS * 2:
        await read(session)
    await session.append([A])
    for read in READS:
        await read(session)
    await session.append([B])
    assert store.names == ["load", "append", "append"]


@pytest.mark.parametrize("read", READS)
async def test_each_read_alone_loads(read: Any):
    store = Recording()
    await read(new(store))
    assert store.calls == [("load", {"id": "s", "actor_id": "a"})]


async def test_many_first_reads_at_once_load_once():
    store = Recording()
    session = new(store)
    await asyncio.gather(*(read(session) for read in READS * 3))
    assert store.names == ["load"]


async def test_a_new_session_is_empty_and_its_fallback_is_returned_as_it_is():
    session = new(MemoryStore(), metadata={"k": [1]})
    fallback = [C]
    assert await session.load() is None
    assert await session.history() == ()
    assert await session.history(fallback) is fallback
    assert await session.journal() == []
    assert await session.state() == {}
    assert await session.metadata() == {"k": [1]}


async def test_an_empty_session_has_an_empty_history_and_no_fallback():
    store = MemoryStore()
    await new(store).append([], state={}, metadata={})
    session = new(store, metadata={"k": 1})
    assert await session.history([C]) == []
    assert await session.metadata() == {}
    assert await session.load() == Snapshot(
        messages=(), revision=(await store.load("s", actor_id="a")).revision
    )


@STORES
async def test_what_was_written_is_read_by_another_session(capabilities: list[str]):
    store = Recording(capabilities)
    await new(store, metadata={"m": 1}).append([A, B], state={"n": 1})
    session = new(store, metadata={"other": 1})
    assert await session.history([C]) == [A, B]
    assert (await session.state(), await session.metadata()) == ({"n": 1}, {"m": 1})
    snapshot = await session.load()
    assert snapshot is not None
    assert (snapshot.messages, snapshot.count) == ((A, B), 2)
    assert (snapshot.revision is None) == ("revisions" not in capabilities)
    assert await Session(id="s", store=store, actor_id="b").load() is None


async def test_what_is_returned_is_the_callers_own():
    store = MemoryStore()
    result = ToolResult(tool_use_id="1", content={"deep": [1]})
    messages = [
        Message.assistant(ToolUse(id="1", name="f", input={"deep": [1]}), {"deep": [1]}),
        Message.tool(result),
    ]
    session = new(store)
    await session.append(messages, state={"deep": [1]}, metadata={"deep": [1]})

    def spoil(value: Any) -> None:
        if isinstance(value, dict):
            for child in value.values():
                spoil(child)
            value["new"] = 1
        elif isinstance(value, list):
            value.append("new")

    for _ in range(2):
        for got in (await session.history(), await session.journal(), (await session.load()).messages):
            assert [message.to_dict() for message in got] == [message.to_dict() for message in messages]
            spoil(got[0].metadata)
            spoil(got[0].content[0].input)
            spoil(got[1].content[0].content)
            if isinstance(got, list):
                got.clear()
        snapshot = await session.load()
        for got in (await session.state(), await session.metadata(), snapshot.state, snapshot.metadata):
            assert got == {"deep": [1]}
            spoil(got)
    assert (await new(store).load()) == (await session.load())


async def test_what_was_given_is_the_callers_own_too():
    state, metadata, input = {"deep": [1]}, {"deep": [1]}, {"deep": [1]}
    session = new(MemoryStore(), metadata=metadata)
    await session.append([Message.assistant(ToolUse(id="1", name="f", input=input), metadata)], state=state)
    for value in (state, metadata, input):
        value["deep"].append(2)
    assert await session.state() == await session.metadata() == {"deep": [1]}
    (message,) = await session.history()
    assert message.tool_uses[0].input == message.metadata == {"deep": [1]}


# Appending and replacing


async def test_an_append_sends_only_what_is_new_and_sanitised_with_the_count_it_knows():
    store = Recording()
    session = new(store, metadata={"m": 1})
    await session.append([A, *SECRETS, B], state={"n": 1})
    await session.append(C)
    await session.append([], metadata={"m": 2})
    key = {"id": "s", "actor_id": "a"}
    assert store.calls == [
        ("load", key),
        ("append", {**key, "messages": [A, B], "state": {"n": 1}, "metadata": {"m": 1}, "expected_count": 0}),
        ("append", {**key, "messages": [C], "state": {"n": 1}, "metadata": {"m": 1}, "expected_count": 2}),
        ("append", {**key, "messages": [], "state": {"n": 1}, "metadata": {"m": 2}, "expected_count": 3}),
    ]


async def test_a_replace_sends_all_of_it_and_no_count():
    store = Recording()
    session = new(store)
    await session.append([A, B], state={"n": 1})
    await session.replace([*SECRETS, C], metadata={"m": 1})
    assert store.calls[-1] == (
        "replace",
        {"id": "s", "actor_id": "a", "messages": [C], "state": {"n": 1}, "metadata": {"m": 1}},
    )
    assert await session.history() == [C]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        (PLAIN, set()),
        (["revisions"], {"expected_revision"}),
        (["commit_ids"], {"commit_id"}),
        (["revisions", "commit_ids"], {"expected_revision", "commit_id"}),
        (["tail", "leases", "sessions", "anonymous_actor"], set()),
    ],
)
async def test_optional_keywords_are_for_stores_that_name_them(capabilities: list[str], expected: set[str]):
    store = Recording(capabilities)
    session = new(store)
    await session.append([A])
    await session.replace([B])
    await session.checkpoint([B, C])
    always = {"id", "actor_id", "messages", "state", "metadata"}
    assert [(name, set(given) - always - expected) for name, given in store.calls[1:]] == [
        ("append", {"expected_count"}),
        ("replace", set()),
        ("append", {"expected_count"}),
    ]
    assert all(expected <= set(given) for _, given in store.calls[1:])


async def test_a_write_is_guarded_by_the_revision_that_is_known():
    store = Recording(["revisions"])
    session = new(store)
    first = await session.append([A])
    second = await session.append([B])
    await session.replace([C])
    assert [given["expected_revision"] for _, given in store.calls[1:]] == [
        None,
        first.revision,
        second.revision,
    ]


async def test_every_commit_has_an_id_of_its_own_or_the_one_given():
    store = Recording(["commit_ids"])
    session = new(store)
    await session.append([A])
    await session.append([A])
    await session.append([A], commit_id="my-1")
    ids = [given["commit_id"] for _, given in store.calls[1:]]
    assert len(set(ids)) == 3
    assert ids[2] == "my-1"


async def test_a_commit_id_that_no_store_would_keep_is_refused():
    with pytest.raises(UnsupportedError):
        await new(Recording()).append([A], commit_id="x")
    store = Recording(FULL)
    for commit_id in ("", "a b", "x" * 65, "é"):
        with pytest.raises(DataError, match=r"^commit_id"):
            await new(store).append([A], commit_id=commit_id)
    assert "append" not in store.names


@pytest.mark.parametrize(
    "given", [A, [A], (A,), iter([A]), [A.to_dict()], [{"role": "user", "content": "a"}]]
)
async def test_messages_may_be_one_or_many_or_their_json(given: Any):
    session = new(MemoryStore())
    await session.append(given)
    assert await session.history() == [A]


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ("text", "messages"),
        (b"x", "messages"),
        (5, "messages"),
        (None, "messages"),
        ({"role": "user", "content": "a"}, "messages"),
        (["text"], "messages[0]"),
        ([A, {"role": "nobody", "content": ""}], "messages[1].role"),
        ([A, Message.user("\ud800")], "messages[1].content[0].text"),
        ([Message.user("x", {"a": [math.nan]})], "messages[0].metadata.a[0]"),
    ],
)
@pytest.mark.parametrize("method", ["append", "replace", "checkpoint", "project_conversation"])
async def test_messages_that_cannot_be_stored_are_refused_and_nothing_is_sent(
    messages: Any, path: str, method: str
):
    store = Recording(FULL)
    session = new(store)
    with pytest.raises(DataError) as caught:
        await getattr(session, method)(messages)
    assert caught.value.path == path
    assert set(store.names) <= {"load"}


@pytest.mark.parametrize("name", ["state", "metadata"])
@pytest.mark.parametrize("method", ["append", "replace", "checkpoint"])
async def test_state_and_metadata_that_cannot_be_stored_are_refused_and_nothing_is_sent(
    name: str, method: str
):
    store = Recording(FULL)
    session = new(store)
    await session.append([A], state={"n": 1})
    for bad, path in (
        ({"plan": {"items": [0, 1, 2, {"due": b""}]}}, ".plan.items[3].due"),
        ([], ""),
        (None, ""),
        ({1: 1}, ""),
    ):
        with pytest.raises(DataError) as caught:
            await getattr(session, method)([A, B], **{name: bad})
        assert caught.value.path == name + path
    assert store.names == ["load", "append"]
    await session.append([B])
    assert (await session.state(), await session.history()) == ({"n": 1}, [A, B])


@pytest.mark.parametrize("method", ["append", "replace", "checkpoint"])
async def test_what_is_private_never_reaches_the_store(method: str):
    store = Recording(FULL)
    thought = Reasoning(text="secret")
    inner = ToolResult(
        tool_use_id="1", content=[thought, {"type": "reasoning", "text": "secret"}, Text("ok")]
    )
    messages = [*SECRETS, Message.assistant([thought, ToolUse(id="1", name="f")]), Message.tool([inner])]
    session = new(store)
    await getattr(session, method)(messages)
    assert "secret" not in repr(store.calls)
    assert "secret" not in repr(store.inner._kept["a", "s"].bodies)
    assert len(await session.history()) == 2


async def test_what_another_writer_stored_unsanitised_is_sanitised_when_loaded_and_counts_as_stored():
    store = MemoryStore()
    await store.replace("s", messages=[SECRETS[0], A, SECRETS[1]], state={}, metadata={}, actor_id="a")
    session = new(store)
    assert await session.history() == [A]
    assert (await session.load()).count == 3
    await session.append([B])
    assert await session.history() == [A, B]
    assert (await store.load("s", actor_id="a")).count == 4


# Checkpoints


async def checkpointed(
    capabilities: list[str], stored: list[Message], then: list[Message], **changes: Any
) -> tuple[str | None, Any]:
    """Checkpoint `then` over `stored` and return the write it took, checked by reading it with another session."""
    store = Recording(capabilities)
    await new(store).append(stored, state={"n": 1}, metadata={"m": 1})
    session = new(store)
    await session.load()
    store.calls.clear()
    commit = await session.checkpoint(then, **changes)
    assert commit.count == (await store.inner.load("s", actor_id="a")).count
    other = new(store)
    assert await session.history() == await other.history() == transcript.normalise(transcript.sanitise(then))
    assert await session.state() == await other.state() == changes.get("state", {"n": 1})
    assert await session.metadata() == await other.metadata() == changes.get("metadata", {"m": 1})
    writes = [(name, given) for name, given in store.calls if name != "load"]
    assert len(writes) <= 1
    return writes[0] if writes else (None, None)


@STORES
async def test_a_checkpoint_appends_what_is_new(capabilities: list[str]):
    name, given = await checkpointed(capabilities, [A], [A, B, *SECRETS, C])
    assert (name, given["messages"], given["expected_count"]) == ("append", [B, C], 1)


@STORES
async def test_a_checkpoint_of_the_same_writes_nothing(capabilities: list[str]):
    assert await checkpointed(capabilities, [A, B], [SECRETS[0], A, B]) == (None, None)
    assert await checkpointed(capabilities, [A, B], [A, B], state={"n": 1}, metadata={"m": 1}) == (None, None)


@STORES
@pytest.mark.parametrize(
    "changes",
    [{"state": {"n": 2}}, {"state": {}}, {"metadata": {"m": 2}}, {"state": {"n": 2}, "metadata": {}}],
)
async def test_a_checkpoint_of_new_state_alone_appends_nothing_with_it(capabilities: list[str], changes: Any):
    name, given = await checkpointed(capabilities, [A], [A], **changes)
    assert (name, given["messages"], given["expected_count"]) == ("append", [], 1)
    assert (given["state"], given["metadata"]) == (
        changes.get("state", {"n": 1}),
        changes.get("metadata", {"m": 1}),
    )


@STORES
@pytest.mark.parametrize(
    "then",
    [[], [A], [B, A], [A, C], [C, A, B], [A, Message.user("b")], [A, Message.assistant("b", {"x": 1}), C]],
)
async def test_a_checkpoint_of_another_beginning_replaces(capabilities: list[str], then: list[Message]):
    name, given = await checkpointed(capabilities, [A, B], then)
    assert (name, given["messages"]) == ("replace", then)
    assert ("expected_revision" in given) == ("revisions" in capabilities)


@pytest.mark.parametrize("one", [1, 1.0, True, "1", [1], {"1": 1}])
@pytest.mark.parametrize("other", [1, 1.0, True, "1", [1], {"1": 1}])
async def test_numbers_and_booleans_differ_for_a_checkpoint(one: Any, other: Any):
    store = Recording(FULL)
    same = type(one) is type(other) and one == other
    for session in (new(store), new(store, id="reread")):
        await session.checkpoint([Message.user("x", {"v": one})], state={"v": one})
        store.calls.clear()
        await session.checkpoint([Message.user("x", {"v": one})], state={"v": other})
        assert store.names == ([] if same else ["append"])
        await session.checkpoint([Message.user("x", {"v": other})], state={"v": other})
        assert store.names == ([] if same else ["append", "replace"])


async def test_the_order_of_keys_is_no_difference():
    one, other = {"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}
    store = Recording()
    session = new(store)
    await session.checkpoint(
        [Message.user("x", one), Message.assistant(ToolUse(id="1", name="f", input=one))],
        state=one,
        metadata=one,
    )
    await session.checkpoint(
        [Message.user("x", other), Message.assistant(ToolUse(id="1", name="f", input=other))],
        state=other,
        metadata=other,
    )
    assert store.names == ["load", "append"]


async def test_a_checkpoint_of_nothing_makes_no_session():
    store = Recording(FULL)
    session = new(store)
    assert await session.checkpoint([]) == Commit(revision=None, count=0)
    assert store.names == ["load"]
    assert await session.load() is None


CALLS = Message.assistant([ToolUse(id="1", name="f"), ToolUse(id="2", name="f")])
ONE, TWO = (Message.tool(ToolResult(tool_use_id=id, content=id)) for id in "12")
BOTH = Message.tool([*ONE.content, *TWO.content])


async def test_split_results_are_one_message_to_who_reads_and_to_a_checkpoint():
    store = Recording(FULL)
    session = new(store)
    await session.append([A, CALLS])
    await session.append([TWO])
    await session.append([ONE])
    assert await session.history() == [A, CALLS, BOTH]
    assert await session.journal() == [A, CALLS, TWO, ONE]
    assert (await session.load()).count == 4
    store.calls.clear()
    await session.checkpoint(await session.history())
    assert store.names == []
    await session.checkpoint([*await session.history(), B])
    assert [(name, given["messages"], given["expected_count"]) for name, given in store.calls] == [
        ("append", [B], 4)
    ]
    assert await new(store).history() == [A, CALLS, BOTH, B]


async def test_a_checkpoint_that_completes_a_turn_adds_the_rest_of_it():
    store = Recording(FULL)
    session = new(store)
    await session.append([A, CALLS, TWO])
    await session.checkpoint([A, CALLS, BOTH, B])
    assert await new(store).history() == [A, CALLS, BOTH, B]


async def test_a_result_is_stored_with_the_metadata_that_was_there():
    store = Recording(FULL)
    session = new(store, metadata={"m": 1})
    await session.append([A], metadata={"m": 2}, state={"n": 1})
    await session.checkpoint_result(
        types.SimpleNamespace(messages=[A, B], state={"n": 2}, metadata={"never": "asked"})
    )
    other = new(store)
    assert (await other.history(), await other.state(), await other.metadata()) == (
        [A, B],
        {"n": 2},
        {"m": 2},
    )


# Telemetry parents

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_calls_of_the_store_have_the_operation_as_their_parent():
    store = Recording()
    session = new(store, operation_id=TRACE)
    await session.append([A])
    await session.replace([A])
    await session.project_conversation([A])
    await session.reload()
    await session.checkpoint([A, B])
    await session.checkpoint([A, B, C], parent_operation_id="other")
    await session.checkpoint([A], parent_operation_id=None)
    assert store.operations == [TRACE] * 6 + ["other", None]


# Malformed answers


class Answering(SessionStore):
    """A store that answers with whatever it is told."""

    def __init__(self, loaded: Any = None, written: Any = None, capabilities: Sequence[str] = ()) -> None:
        self.loaded, self.written, self.capabilities = loaded, written, frozenset(capabilities)

    async def load(self, id: str, *, actor_id: str | None = None) -> Any:
        return self.loaded

    async def append(
        self,
        id: str,
        *,
        messages: Any,
        state: Any,
        metadata: Any,
        expected_count: int,
        actor_id: str | None = None,
    ) -> Any:
        return self.written

    async def replace(
        self, id: str, *, messages: Any, state: Any, metadata: Any, actor_id: str | None = None
    ) -> Any:
        return self.written


@pytest.mark.parametrize(
    ("loaded", "messages", "state"),
    [
        ({"messages": []}, [], {}),
        ({"messages": (), "state": None, "metadata": None}, [], {}),
        (
            {"messages": [A, B.to_dict(), {"role": "user", "content": "c"}], "state": {"n": 1}, "unknown": 1},
            [A, B, C],
            {"n": 1},
        ),
        (types.MappingProxyType({"messages": [A], "state": types.MappingProxyType({"n": 1})}), [A], {"n": 1}),
        (Snapshot(messages=[A]), [A], {}),
        (Snapshot(messages=[A.to_dict()]), [A], {}),  # type: ignore[list-item]
        ({"messages": [A, *SECRETS]}, [A], {}),
    ],
)
async def test_what_load_may_answer(loaded: Any, messages: list[Message], state: Any):
    session = new(Answering(loaded))
    assert await session.history([C]) == messages
    assert await session.state() == state
    assert await session.metadata() == {}


@pytest.mark.parametrize(
    "loaded",
    [
        [],
        "text",
        5,
        True,
        object(),
        {},
        {"state": {}},
        {"messages": None},
        {"messages": "text"},
        {"messages": b"bytes"},
        {"messages": {}},
        {"messages": 5},
        {"messages": iter([A])},
        {"messages": {A.text}},
        {"messages": ["text"]},
        {"messages": [None]},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "nobody", "content": ""}]},
        {"messages": [{"role": "user", "content": [{"type": "sound"}]}]},
        {"messages": [Message.user("\ud800")]},
        {"messages": [Message.user("x", {"n": math.nan})]},
        {"messages": [], "state": []},
        {"messages": [], "state": "text"},
        {"messages": [], "state": {1: 1}},
        {"messages": [], "state": {"n": math.inf}},
        {"messages": [], "metadata": [("a", 1)]},
        {"messages": [], "metadata": {"x": b""}},
        {"messages": [], "count": -1},
        {"messages": [], "count": "0"},
        {"messages": [], "count": True},
        {"messages": [], "count": 1.0},
        {"messages": [], "revision": 1},
        {"messages": [], "revision": b"1"},
        Snapshot(messages=[], revision=1),  # type: ignore[arg-type]
        Snapshot(messages=["text"]),  # type: ignore[list-item]
        Snapshot(messages=[], state=[1]),  # type: ignore[arg-type]
        Snapshot(messages=[], count=-1),
    ],
    ids=lambda loaded: re.sub(" at 0x[0-9a-f]+", "", repr(loaded)),  # the same in each worker
)
async def test_a_malformed_answer_of_load_is_a_protocol_error_and_never_an_empty_history(loaded: Any):
    store = Answering(loaded)
    session = new(store)
    for read in [
        *READS,
        lambda session: session.append([A]),
        lambda session: session.update(lambda _: ([], {})),
    ]:
        with pytest.raises(ProtocolError, match=r"^Answering\.load returned"):
            await read(session)
    store.loaded = {"messages": [A]}
    assert await session.history() == [A]


async def test_a_store_with_revisions_must_tell_them():
    for loaded in ({"messages": []}, Snapshot(messages=[])):
        with pytest.raises(ProtocolError, match="revision"):
            await new(Answering(loaded, capabilities=["revisions"])).load()


@pytest.mark.parametrize(
    "written",
    [
        True,
        1,
        "ok",
        {},
        {"revision": "1", "count": 1},
        [],
        Commit(revision=1, count=1),  # type: ignore[arg-type]
        Commit(revision=None, count=-1),
        Commit(revision=None, count="1"),  # type: ignore[arg-type]
        Commit(revision=None, count=None),  # type: ignore[arg-type]
        Commit(revision=None, count=True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("method", ["append", "replace", "checkpoint"])
async def test_a_malformed_answer_of_a_write_is_a_protocol_error(written: Any, method: str):
    store = Answering(written=written)
    session = new(store)
    with pytest.raises(ProtocolError, match=r"^Answering\.(append|replace) returned"):
        await getattr(session, method)([A])
    # It may have been written; the session looks before it writes again.
    store.loaded, store.written = {"messages": [A]}, None
    await session.append([B])
    assert await session.history() == [A, B]


async def test_none_is_an_answer_and_so_is_a_count_of_the_stores_own():
    session = new(Answering(written=None))
    assert await session.append([A]) == Commit(revision=None, count=1)
    assert await session.append([B, C]) == Commit(revision=None, count=3)
    assert await session.replace([C]) == Commit(revision=None, count=1)
    session = new(Answering(written=Commit(revision=None, count=7)))
    assert (await session.append([A])).count == 7
    assert (await session.load()).count == 7


async def test_a_store_that_keeps_revisions_and_does_not_tell_the_new_one_is_asked_again():
    class Silent(Recording):
        def _answer(self, commit: Commit) -> Any:
            return None

    store = Silent(["revisions"])
    session = new(store)
    await session.append([A])
    await session.append([B])
    assert store.names == ["load", "append", "load", "append"]
    assert await session.history() == [A, B]


# Failures


@STORES
@pytest.mark.parametrize("error", [StoreUnavailableError("down"), OSError("down"), ZeroDivisionError()])
async def test_a_failed_read_reaches_the_caller_and_the_next_one_tries_again(
    capabilities: list[str], error: Exception
):
    store = Recording(capabilities)
    await new(store).append([A])
    failures = [error]
    store.before = lambda name: (_ for _ in ()).throw(failures.pop()) if failures and name == "load" else None
    session = new(store)
    with pytest.raises(type(error)):
        await session.history([C])
    assert await session.history([C]) == [A]


@STORES
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("write", ["append", "replace", "checkpoint"])
async def test_the_same_write_after_a_lost_answer_is_a_retry_and_no_second_turn(
    capabilities: list[str], where: str, write: str
):
    store = Recording(capabilities)
    session = new(store)
    await session.append([A], state={"n": 1})
    setattr(store, where, lost())
    messages = [A, B] if write == "checkpoint" else [B]
    with pytest.raises(StoreUnavailableError):
        await getattr(session, write)(messages, state={"n": 2})
    commit = await getattr(session, write)(messages, state={"n": 2})
    expected = [B] if write == "replace" else [A, B]
    assert commit.count == len(expected)
    await session.append([C])
    for each in (session, new(store)):
        assert await each.history() == [*expected, C]
        assert await each.state() == {"n": 2}


@STORES
@pytest.mark.parametrize("where", ["before", "after"])
async def test_the_first_write_of_a_session_can_be_retried_too(capabilities: list[str], where: str):
    store = Recording(capabilities)
    session = new(store)
    setattr(store, where, lost())
    with pytest.raises(StoreUnavailableError):
        await session.append([A])
    await session.append([A])
    assert await session.history() == await new(store).history() == [A]


async def test_with_commit_ids_a_retry_sends_the_same_commit_and_without_it_looks_first():
    for capabilities, calls in ((["commit_ids"], ["append", "append"]), (PLAIN, ["append", "load"])):
        store = Recording(capabilities)
        session = new(store)
        await session.load()
        store.after = lost()
        with pytest.raises(StoreUnavailableError):
            await session.append([A])
        await session.append([A])
        assert store.names[1:] == calls
        ids = {given.get("commit_id") for name, given in store.calls if name == "append"}
        assert len(ids) == 1
        # The retry is over: the same messages again are another turn.
        await session.append([A])
        assert await new(store).history() == [A, A]


@STORES
@pytest.mark.parametrize("where", ["before", "after"])
async def test_another_write_after_a_lost_answer_finds_out_first(capabilities: list[str], where: str):
    store = Recording(capabilities)
    session = new(store)
    await session.append([A], state={"n": 1})
    setattr(store, where, lost())
    with pytest.raises(StoreUnavailableError):
        await session.append([B], state={"n": 2})
    took_place = where == "after"
    await session.append([C])
    expected = [A, B, C] if took_place else [A, C]
    for each in (session, new(store)):
        assert await each.history() == expected
        assert await each.state() == {"n": 2 if took_place else 1}


@STORES
@pytest.mark.parametrize("where", ["before", "after"])
async def test_an_update_after_a_lost_answer_sees_what_took_place(capabilities: list[str], where: str):
    store = Recording(capabilities)
    session = new(store)
    await session.append([A], state={"n": 1})
    setattr(store, where, lost())
    with pytest.raises(StoreUnavailableError):
        await session.append([B], state={"n": 2})
    await session.update(lambda snapshot: ([C], {"n": snapshot.state["n"] + 10}))
    assert await new(store).state() == {"n": 12 if where == "after" else 11}


@STORES
@pytest.mark.parametrize("where", ["before", "after"])
async def test_another_writer_after_a_lost_answer_is_a_conflict_until_reloaded(
    capabilities: list[str], where: str
):
    store = Recording(capabilities)
    session = new(store)
    await session.append([A])
    setattr(store, where, lost())
    with pytest.raises(StoreUnavailableError):
        await session.append([B])
    other = new(store)
    await other.append([C])
    for _ in range(2):
        with pytest.raises(ConflictError):
            await session.append([Message.user("d")])
    expected = [A, B, C] if where == "after" else [A, C]
    assert await new(store).history() == expected
    await session.reload()
    assert await session.history() == expected
    await session.append([Message.user("d")])
    assert await new(store).history() == [*expected, Message.user("d")]


async def test_a_retry_with_a_commit_id_gets_its_first_answer_also_when_another_writer_followed():
    store = Recording(FULL)
    session = new(store)
    store.after = lost()
    with pytest.raises(StoreUnavailableError):
        await session.append([A])
    await new(store).append([B])
    assert (await session.append([A])).count == 1
    with pytest.raises(ConflictError):  # what this session knows is old, and it says so
        await session.append([C])
    assert await new(store).history() == [A, B]


@STORES
async def test_a_refused_write_is_forgotten(capabilities: list[str]):
    store = Recording(capabilities)
    session = new(store)
    await session.append([A])
    store.before = lost(ProtocolError("no"))
    with pytest.raises(ProtocolError):
        await session.append([B])
    assert await session.history() == [A]
    await session.append([C])
    assert store.names == ["load", "append", "append", "append"]
    assert await session.history() == [A, C]


@STORES
async def test_a_failed_delete_or_projection_leaves_the_session_usable(capabilities: list[str]):
    store = Recording(capabilities)
    session = new(store)
    await session.append([A])
    store.before = lambda name: (
        (_ for _ in ()).throw(StoreUnavailableError("x")) if name == "delete" else None
    )
    with pytest.raises(StoreUnavailableError):
        await session.delete()
    assert await session.history() == [A]


# Conflicts


@STORES
async def test_a_stale_append_is_a_conflict_and_changes_nothing(capabilities: list[str]):
    store = Recording(capabilities)
    one, two = new(store), new(store)
    await one.load()
    await two.load()
    await one.append([A], state={"n": 1})
    with pytest.raises(ConflictError):
        await two.append([B], state={"n": 2})
    assert (await new(store).history(), await new(store).state()) == ([A], {"n": 1})
    assert await two.history([C]) == [C]  # still what it knows
    await two.reload()
    await two.append([B])
    assert await new(store).history() == [A, B]


@pytest.mark.parametrize("write", ["append", "replace", "checkpoint"])
async def test_with_revisions_a_state_only_commit_of_another_counts_too(write: str):
    store = Recording(["revisions"])
    await new(store).append([A])
    one, two = new(store), new(store)
    await one.load()
    await two.load()
    await one.append([], state={"n": 1})
    with pytest.raises(ConflictError):
        await getattr(two, write)([B], state={"n": 2})
    assert await new(store).state() == {"n": 1}


# Cancellation


class Gated(Recording):
    """Waits before or after the work of a write until told to go on."""

    def __init__(self, capabilities: Sequence[str], where: str) -> None:
        super().__init__(capabilities)
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        setattr(self, where, self._gate)

    def _gate(self, name: str) -> Any:
        if name == "load":
            return None
        self.reached.set()
        return self.go.wait()


@STORES
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("again", ["same", "other"])
async def test_after_a_cancelled_write_the_next_one_makes_sure(
    capabilities: list[str], where: str, again: str
):
    store = Gated(capabilities, where)
    session = new(store)
    writing = asyncio.create_task(session.append([A]))
    await store.reached.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    store.go.set()
    await session.append([A] if again == "same" else [B])
    took_place = where == "after"
    expected = [A] if again == "same" else [A, B] if took_place else [B]
    assert await session.history() == await new(store).history() == expected


async def test_a_cancelled_wait_for_the_session_s_turn_writes_nothing():
    store = Gated(FULL, "before")
    session = new(store)
    first = asyncio.create_task(session.append([A]))
    await store.reached.wait()
    second = asyncio.create_task(session.append([B]))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    store.go.set()
    await first
    assert await session.history() == await new(store).history() == [A]
    assert store.names.count("append") == 1


async def test_a_cancelled_load_is_done_again():
    store = Recording()
    reached, go = asyncio.Event(), asyncio.Event()

    def gate(name: str) -> Any:
        reached.set()
        return go.wait()

    store.before = gate
    session = new(store)
    reading = asyncio.create_task(session.history())
    await reached.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    go.set()
    assert await session.history([C]) == [C]


# Several tasks, one session


@STORES
async def test_tasks_that_share_a_session_write_one_after_the_other(capabilities: list[str]):
    store = Recording(capabilities)
    store.before = lambda name: asyncio.sleep(0)
    session = new(store)
    messages = [Message.user(str(number)) for number in range(20)]
    await asyncio.gather(*(session.append([message]) for message in messages))
    assert sorted(message.text for message in await session.history()) == sorted(
        message.text for message in messages
    )
    assert await session.history() == await new(store).history()


def increment(snapshot: Snapshot) -> tuple[list[Message], dict[str, Any]]:
    number = snapshot.state.get("n", 0) + 1
    return [Message.user(str(number))], {"n": number}


async def increment_later(snapshot: Snapshot) -> tuple[list[Message], dict[str, Any]]:
    await asyncio.sleep(0)
    return increment(snapshot)


@STORES
@pytest.mark.parametrize("change", [increment, increment_later])
@pytest.mark.parametrize("shared", [True, False])
async def test_no_update_is_lost(capabilities: list[str], change: Any, shared: bool):
    """Neither among the tasks of one session nor among sessions; a store without revisions tells by the count."""
    store = Recording(capabilities)
    store.before = lambda name: asyncio.sleep(0)
    one = new(store)
    await asyncio.gather(*((one if shared else new(store)).update(change, attempts=100) for _ in range(12)))
    history = await new(store).history()
    assert [message.text for message in history] == [str(number + 1) for number in range(12)]
    assert await new(store).state() == {"n": 12}


async def test_an_update_and_an_append_of_one_session_do_not_undo_each_other():
    store = Recording(FULL)
    session = new(store)
    asked = []

    async def change(snapshot: Snapshot) -> Any:
        asked.append(snapshot.state)
        if len(asked) == 1:
            await session.append([A], state={"n": 10})
        return [B], {"n": snapshot.state.get("n", 0) + 1}

    await session.update(change, attempts=1)
    assert asked == [{}, {"n": 10}]
    assert (await session.state(), await session.history()) == ({"n": 11}, [A, B])


async def test_an_update_gives_up_after_its_attempts():
    store = Recording(FULL)
    session = new(store)
    asked = 0

    async def change(snapshot: Snapshot) -> Any:
        nonlocal asked
        asked += 1
        await new(store).append([C])
        return [B], {}

    with pytest.raises(ConflictError):
        await session.update(change, attempts=3)
    assert asked == 3
    assert await new(store).history() == [C, C, C]
    for attempts in (0, "3", None, True):
        with pytest.raises(ConfigurationError, match="attempts must be a number, at least 1"):
            await session.update(change, attempts=attempts)
    assert asked == 3


async def test_an_update_keeps_metadata_gets_copies_and_lets_errors_out():
    store = Recording(FULL)
    session = new(store, metadata={"m": 1})

    def change(snapshot: Snapshot) -> Any:
        snapshot.state["n"] = 1
        snapshot.metadata["spoilt"] = 1
        return [A], snapshot.state

    await session.update(change)
    assert (await session.state(), await session.metadata()) == ({"n": 1}, {"m": 1})

    def fail(snapshot: Snapshot) -> Any:
        snapshot.state["n"] = 2
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await session.update(fail)
    assert await session.state() == {"n": 1}


# Everything else


async def test_reload_shows_what_others_wrote():
    store = Recording(FULL)
    session = new(store)
    assert await session.history([C]) == [C]
    await new(store).append([A])
    assert await session.history([C]) == [C]
    assert (await session.reload()).messages == (A,)
    assert await session.history([C]) == [A]


async def test_a_deleted_session_is_new_again():
    store = Recording(FULL)
    session = new(store, metadata={"m": 1})
    assert await session.delete() is False
    await session.append([A], metadata={"m": 2})
    assert await session.delete() is True
    assert (await session.history([C]), await session.metadata(), await session.load()) == (
        [C],
        {"m": 1},
        None,
    )
    await session.append([B])
    assert await new(store).history() == [B]


async def test_what_a_store_cannot_do_is_said():
    session = new(Answering())
    for act in (session.delete(), session.fork("t")):
        with pytest.raises(UnsupportedError, match="Answering does not offer"):
            await act


async def test_a_default_that_needs_revisions_says_so():
    store = Answering({"messages": [A]}, capabilities=["fork"])
    for act in (new(store).fork("t"), store.restore("t", messages=[], state={}, metadata={})):
        with pytest.raises(
            UnsupportedError, match=r"does not offer .*needs the capability revisions"
        ) as caught:
            await act
        assert caught.value.capability == "revisions"  # type: ignore[attr-defined]


async def test_a_fork_takes_the_state_and_metadata_of_now():
    session = new(MemoryStore())
    await session.append([A], state={"n": 1})
    await session.append([B], state={"n": 2}, metadata={"m": 2})
    forked = await session.fork("t", at=1)
    assert (len(await forked.history()), await forked.state(), await forked.metadata()) == (
        1,
        {"n": 2},
        {"m": 2},
    )


async def test_a_fork_is_another_session_with_the_same_beginning():
    store = MemoryStore()
    session = new(store, operation_id=TRACE)
    await session.append([A, CALLS, TWO, ONE, B], state={"n": 1}, metadata={"m": 1})
    forked = await session.fork(7, at=3)
    assert (forked.id, forked.actor_id, forked.store, forked.operation_id) == ("7", "a", store, TRACE)
    assert (await forked.history(), await forked.state(), await forked.metadata()) == (
        [A],
        {"n": 1},
        {"m": 1},
    )
    assert await (await session.fork("all")).history() == [A, CALLS, BOTH, B]
    await forked.append([C])
    assert len(await session.history()) == 4
    with pytest.raises(ConflictError):
        await session.fork(7)
    with pytest.raises(SessionNotFoundError):
        await new(store, id="none").fork("x")
    with pytest.raises(ConfigurationError):
        await session.fork(None)
    for at in (-1, "4", 1.0, True):
        for fork in (session.fork, partial(SessionStore.fork, store, session.id, actor_id=session.actor_id)):
            with pytest.raises(DataError, match="at: must be a number of messages") as caught:
                await fork("never", at=at)
            assert caught.value.path == "at"
    assert await new(store, id="never").load() is None


async def test_a_projection_takes_out_reasoning_alone_and_does_not_touch_the_transcript():
    store = Recording()
    session = new(store, metadata={"m": 1})
    await session.append([A])
    view = [
        Message.system("s"),
        Message.user("t", {"transient": True}),
        Message.assistant([Reasoning(text="r"), "b"]),
        B,
    ]
    await session.project_conversation(view)
    await session.project_conversation([B], metadata={"link": "x"})
    sent = [Message.system("s"), Message.user("t", {"transient": True}), Message.assistant("b"), B]
    assert store.calls[2:] == [
        ("project_conversation", {"id": "s", "actor_id": "a", "messages": sent, "metadata": {"m": 1}}),
        ("project_conversation", {"id": "s", "actor_id": "a", "messages": [B], "metadata": {"link": "x"}}),
    ]
    assert await session.history() == await new(store).history() == [A]


async def test_synchronize_is_the_stores():
    store = MemoryStore()
    one, two, other = new(store), new(store), new(store, actor_id="b")
    order: list[str] = []

    async def work(session: Session, name: str) -> None:
        async with session.synchronize():
            order.append(name)
            await asyncio.sleep(0)
            order.append(name)

    await asyncio.gather(work(one, "1"), work(two, "2"), work(other, "other"))
    assert [name for name in order if name != "other"] == ["1", "1", "2", "2"]
    assert order.index("other") < order.index("2")


async def test_the_readme_s_smallest_store_works():
    """Three methods, mappings and None: all that a user has to write."""
    rows: dict[Any, dict[str, Any]] = {}

    class DictStore(SessionStore):
        async def load(self, id: str, *, actor_id: str | None = None) -> Any:
            return rows.get((actor_id, id))

        async def append(
            self, id: str, *, messages: Sequence[Message], state: Mapping[str, Any], metadata: Mapping[str, Any], expected_count: int,
            actor_id: str | None = None,
        ) -> Any:  # fmt: skip
            old = rows.get((actor_id, id), {"messages": []})["messages"]
            if len(old) != expected_count:
                raise ConflictError("changed", expected=expected_count, actual=len(old))
            rows[actor_id, id] = {
                "messages": [*old, *(message.to_dict() for message in messages)],
                "state": state,
                "metadata": metadata,
            }

        async def replace(
            self, id: str, *, messages: Any, state: Any, metadata: Any, actor_id: str | None = None
        ) -> Any:
            rows[actor_id, id] = {
                "messages": [message.to_dict() for message in messages],
                "state": state,
                "metadata": metadata,
            }

    store = DictStore()
    session = new(store)
    picture = Message.user(["look", Image(data=b"\0\xff", media_type="image/png")])
    await session.append([picture], state={"n": 2**70})
    await session.checkpoint([picture, B])
    await asyncio.gather(*(new(store).update(increment_big) for _ in range(4)))
    assert await new(store).history() == [picture, B, *[C] * 4]
    assert await new(store).state() == {"n": 2**70 + 4}


def increment_big(snapshot: Snapshot) -> tuple[list[Message], dict[str, Any]]:
    return [C], {"n": snapshot.state["n"] + 1}


async def test_update_changes_metadata_too_when_it_is_given_a_third():
    store = MemoryStore()
    session = Session(id="a", store=store, metadata={"title": "old"})
    await session.append([Message.user("x")], state={"v": 1})
    await session.update(lambda seen: ([], seen.state, {**seen.metadata, "title": "new"}))
    snapshot = await store.load("a")
    assert (snapshot.metadata, snapshot.state, snapshot.count) == ({"title": "new"}, {"v": 1}, 1)
    await session.update(lambda seen: ([], {"v": 2}))
    assert (await store.load("a")).metadata == {"title": "new"}
    for wrong in ([], ((),), ((), {}, {}, {})):
        with pytest.raises(ConfigurationError, match="must return the messages to append"):
            await session.update(lambda seen, wrong=wrong: wrong)


async def test_update_says_how_often_others_were_first():
    class Overtaken(MemoryStore):
        async def append(self, id, **options):
            raise ConflictError("second", expected=1, actual=2)

    with pytest.raises(ConflictError, match="others were first 3 times") as caught:
        await Session(id="a", store=Overtaken()).update(lambda seen: ([], {}), attempts=3)
    assert (caught.value.expected, caught.value.actual) == (1, 2)


async def test_the_end_of_a_session_is_read_without_the_rest():
    class Counts(MemoryStore):
        loads = 0

        async def load(self, id, **options):
            self.loads += 1
            return await super().load(id, **options)

    store = Counts()
    for number in range(5):
        await store.append(
            "a",
            messages=[Message.user(str(number))],
            state={},
            metadata={},
            expected_count=number,
            actor_id="u",
        )
    session = Session(id="a", store=store, actor_id="u")
    page = await session.tail(limit=2)
    assert [message.text for message in page.items] == ["3", "4"]
    page = await session.tail(limit=2, before=page.cursor)
    assert [message.text for message in page.items] == ["1", "2"]
    assert store.loads == 0
    assert sync.Session(id="a", store=store, actor_id="u").tail(limit=1).items[0].text == "4"


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "5"])
def test_limits_that_make_no_sense_are_refused_when_they_are_made(wrong):
    for name in ("messages", "size"):
        with pytest.raises(ConfigurationError, match=f"{name} of SessionLimits must be a positive integer"):
            SessionLimits(**{name: wrong})
    with pytest.raises(ConfigurationError, match="limits must be SessionLimits"):
        MemoryStore(limits={"messages": 5})


async def test_every_store_is_a_context_manager():
    async with MemoryStore(limits=SessionLimits(messages=1)) as store:
        assert store.limits.messages == 1
