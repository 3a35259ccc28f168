"""The conformance kit for session stores: the contract, clause by clause.

Three lines for a store of your own, in any test or script::

    from littleghost.testing import check_store
    report = await check_store(lambda: MyStore("folder"))
    report.raise_for_failures()

Clauses that need what a store does not name in its ``capabilities`` are skipped and say so. Where the factory makes stores that share their
data, clauses with two stores run too; where another process can call it as well (a function or class of a module, also in a
`functools.partial`, or ``importable``), so do those with real processes, which race and are killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from littleghost.content import Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import ConflictError, DataError, SessionBusyError, SessionNotFoundError, StoreError
from littleghost.message import Message
from littleghost.sessions.contract import ANY
from littleghost.sessions.opening import open_store
from littleghost.sessions.session import Session
from littleghost.testing.conformance import Clause, ClauseFailure, ClauseFunction, Report, clause, expect, run_clauses
from littleghost.testing.store_bench import ACTOR, Bench, Factory, Subject

__all__ = ["check_store", "store_bench", "store_clauses"]

_CLAUSES: list[Clause] = []


def store_clauses() -> tuple[Clause, ...]:
    """Return the clauses, for a test runner that shows each by itself: ``await clause.run(bench)``, see `store_bench`."""
    return tuple(_CLAUSES)


async def store_bench(
    make_store: Factory | str, *, persistent: bool | None = None, importable: str | None = None
) -> Bench:
    """Return what a clause is run with; for the arguments see `check_store`."""
    factory = partial(open_store, make_store) if isinstance(make_store, str) else make_store
    return await Bench.of(factory, persistent=persistent, importable=importable)


async def check_store(
    make_store: Factory | str,
    *,
    persistent: bool | None = None,
    importable: str | None = None,
    only: Iterable[str] | None = None,
) -> Report:
    """Try every clause of the contract on a store, and report which hold.

    The kit makes sessions with new ids and leaves them behind, so give it a store that is for tests.

    Args:
        make_store: Makes a store; called once or more for each clause. Or a URL for `open_store`.
        persistent: Whether two stores made by it share their data; found out unless given. Give ``True`` to have a store that forgets
            fail rather than skip.
        importable: ``module:function``, by which another process makes the store.
        only: Names of clauses, where not all are wanted.

    Returns:
        A `Report`: ``ok``, ``passed``, ``failed``, ``skipped``; as text it names each clause that failed or was skipped, and why.
    """
    bench = await store_bench(make_store, persistent=persistent, importable=importable)
    wanted = None if only is None else set(only)
    chosen = [one for one in _CLAUSES if wanted is None or one.name in wanted]
    return await run_clauses(chosen, bench, bench.capabilities, subject=bench.subject)


def _clause(*needs: str, timeout: float = 60.0) -> Callable[[ClauseFunction], ClauseFunction]:
    return clause(_CLAUSES, needs=needs, timeout=timeout)


def _user(text: str) -> Message:
    return Message.user(text)


async def _refused(work: Awaitable[Any], what: str) -> ConflictError:
    """Await ``work``, which must be refused, and return how."""
    try:
        await work
    except ConflictError as error:
        return error
    except Exception as error:
        raise ClauseFailure(f"{what} raised {type(error).__name__} in place of ConflictError: {error}") from error
    raise ClauseFailure(f"{what} was accepted")


def _same(what: str, expected: object, found: object) -> None:
    expect(expected == found, f"{what}: expected {_short(expected)}, found {_short(found)}")


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:150]}… ({len(shown)} characters)"


# Reading and writing


@_clause()
async def loading_nothing_gives_none(bench: Bench) -> None:
    """A session that was never written is None, and reading does not make it."""
    async with bench.open() as store:
        id = bench.id()
        for _ in range(2):
            expect(await store.load(id) is None, "a session that was never written was found")


@_clause()
async def what_is_appended_is_loaded(bench: Bench) -> None:
    """Messages come back in order; state and metadata are the last ones, whole."""
    async with bench.open() as store:
        id = bench.id()
        texts: list[str] = []
        for number in range(30):
            new = [f"{number}.{part}" for part in range(number % 4)]
            commit = await store.append(
                id, *map(_user, new), count=len(texts), state={f"s{number}": number}, metadata={f"m{number}": [number]}
            )
            texts += new
            _same("count of the commit", len(texts), commit.count)
        snapshot = await store.get(id)
        _same("texts", texts, [message.text for message in snapshot.messages])
        _same("count", len(texts), snapshot.count)
        _same("state", {"s29": 29}, snapshot.state)
        _same("metadata", {"m29": [29]}, snapshot.metadata)


@_clause()
async def replacing_leaves_only_the_new(bench: Bench) -> None:
    """A replace stores messages, state and metadata in place of all there was, also of nothing; appending goes on from there."""
    async with bench.open() as store:
        id = bench.id()
        await store.replace(id, _user("a"), _user("b"), _user("c"), state={"v": 1})
        await store.append(id, _user("d"), count=3, state={"v": 2})
        commit = await store.replace(id, _user("e"), state={"v": 3}, metadata={"m": 1})
        _same("count of the commit", 1, commit.count)
        await store.append(id, _user("f"), count=1, state={"v": 4})
        snapshot = await store.get(id)
        _same("texts", ["e", "f"], [message.text for message in snapshot.messages])
        _same("state", {"v": 4}, snapshot.state)
        _same("metadata", {}, snapshot.metadata)
        await store.replace(id)
        _same("messages after a replace with none", [], await store.texts(id))


@_clause()
async def state_can_change_without_messages(bench: Bench) -> None:
    """An append without messages stores the state, also as the first write."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, count=0, state={"step": 1})
        snapshot = await store.get(id)
        _same("messages", (), tuple(snapshot.messages))
        _same("state", {"step": 1}, snapshot.state)
        await store.append(id, _user("a"), count=0, state={"step": 2})
        await store.append(id, count=1, state={"step": 3})
        snapshot = await store.get(id)
        _same("state", {"step": 3}, snapshot.state)
        _same("count", 1, snapshot.count)


@_clause()
async def what_is_loaded_is_the_callers_own(bench: Bench) -> None:
    """Changing what was loaded, or what was given, changes nothing stored."""
    async with bench.open() as store:
        id = bench.id()
        state: dict[str, Any] = {"list": [1], "nested": {"a": 1}}
        message = Message.assistant([ToolUse(id="c", name="t", input={"list": [1]})], {"meta": {"a": 1}})
        await store.append(id, message, count=0, state=state, metadata={"m": [1]})
        state["list"].append(2)
        message.metadata["meta"]["a"] = 2
        message.tool_uses[0].input["list"].append(2)
        loaded = await store.get(id)
        for snapshot in (loaded, await store.get(id)):
            _same("state", {"list": [1], "nested": {"a": 1}}, snapshot.state)
            _same("metadata", {"m": [1]}, snapshot.metadata)
            _same("message metadata", {"meta": {"a": 1}}, snapshot.messages[0].metadata)
            _same("input", {"list": [1]}, snapshot.messages[0].tool_uses[0].input)
            if snapshot is loaded:
                snapshot.state["list"].append(3)
                snapshot.state["nested"]["a"] = 3
                snapshot.metadata["m"].append(3)
                snapshot.messages[0].metadata["meta"]["a"] = 3
                snapshot.messages[0].tool_uses[0].input["list"].append(3)


@_clause()
async def every_kind_of_message_comes_back(bench: Bench) -> None:
    """Every role, block and nesting of blocks that may be stored is loaded as it was."""
    blob = bytes(range(256))
    image, document = Image(data=blob, media_type="image/png", name="a.png"), Document(data=b"", media_type="text/plain", name="ü.txt")
    messages = [
        Message.developer("be brief"),
        Message.user([Text("look"), image, document], {"n": 1, "deep": [{"x": None}]}),
        Message.assistant([Text(""), ToolUse(id="1", name="f", input={"a": [1, {"b": None}]}), ToolUse(id="2", name="g")]),
        Message.tool([ToolResult(tool_use_id="2", content={"any": ["json", 1.5]}, status="error")]),
        Message.tool([ToolResult(tool_use_id="1", content=[Text("x"), image, {"plain": True}, 3])]),
        Message.assistant([]),
        Message.user("", {"transient": False}),
    ]
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, *messages[:3], count=0)
        await store.append(id, *messages[3:], count=3)
        _same("messages", messages, list((await store.get(id)).messages))


@_clause()
async def a_large_message_comes_back(bench: Bench) -> None:
    """Three megabytes in one message, and a state of one, are stored and loaded."""
    text, state = "läßt " * 500_000, {"long": "x" * 1_000_000}
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, _user(text), _user("end"), count=0, state=state)
        expect(await store.texts(id) == [text, "end"], "a message of three megabytes changed")
        expect((await store.get(id)).state == state, "a state of one megabyte changed")


@_clause()
async def what_is_stored_survives_the_store(bench: Bench) -> None:
    """A second store, made while the first is open and after it was closed, has everything."""
    bench.need_persistence()
    id = bench.id()
    async with bench.open() as store:
        await store.append(id, _user("a"), count=0, state={"v": 1}, metadata={"m": 1})
        async with bench.open() as other:
            await other.append(id, _user("b"), count=1, state={"v": 2}, metadata={"m": 2})
        _same("texts seen by the first", ["a", "b"], await store.texts(id))
        before = await store.get(id)
    async with bench.open() as store:
        after = await store.get(id)
        _same("snapshot", before, after)


@_clause()
async def closing_twice_is_once(bench: Bench) -> None:
    """Closing a store that is closed does nothing."""
    async with bench.open() as store:
        await store.append(bench.id(), _user("a"), count=0)
        await store.store.aclose()
        await store.store.aclose()


# What may be stored


@_clause()
async def reasoning_is_never_stored(bench: Bench) -> None:
    """A store removes reasoning itself; a message emptied by that goes, one that was empty stays; the count is that of what is stored."""
    secret = Reasoning(text="secret thought", signature="sig")
    messages = [
        _user("a"),
        Message.assistant([secret]),
        Message.assistant([]),
        Message.assistant([secret, Text("b"), Reasoning(data=b"encrypted")]),
        Message.tool([ToolResult(tool_use_id="1", content=[Text("c"), secret])]),
    ]
    async with bench.open() as store:
        for id, write in ((bench.id(), partial(store.append, count=0)), (bench.id(), store.replace)):
            await write(id, *messages)
            snapshot = await store.get(id)
            _same("number of messages", 4, len(snapshot.messages))
            _same("count", 4, snapshot.count)
            expect("secret" not in repr([m.to_dict() for m in snapshot.messages]), "reasoning was stored")
            expect(not any(isinstance(block, Reasoning) for m in snapshot.messages for block in m.content), "reasoning was stored")
            await store.append(id, _user("d"), count=4)


@_clause()
async def a_session_stores_only_what_is_to_be_kept(bench: Bench) -> None:
    """Through a Session, system and transient messages never reach the store, nor does reasoning."""
    messages = [
        Message.system("secret"),
        Message.developer("kept 1"),
        Message.user("secret", {"transient": True}),
        Message.user("secret", {"transient": 0}),
        Message.user("kept 2", {"transient": False}),
        Message.user("kept 3", {"transient": None}),
        Message.assistant([Reasoning(text="secret"), Text("kept 4")]),
    ]
    async with bench.open() as store:
        id = bench.id()
        session = Session(id=id, store=store.store, actor_id=ACTOR)
        await session.append(messages, state={"a": 1})
        kept = [f"kept {number}" for number in range(1, 5)]
        _same("stored texts", kept, await store.texts(id))
        await session.append(Message.user("after"))
        _same("stored texts", [*kept, "after"], await store.texts(id))
        await session.replace(messages)
        _same("stored texts after a replace", kept, await store.texts(id))


_LOOP: dict[str, Any] = {}
_LOOP["self"] = _LOOP
_DEEP: Any = "bottom"
for _ in range(101):
    _DEEP = [_DEEP]

_UNSTORABLE: dict[str, tuple[Any, str]] = {
    "lone surrogate": ({"plan": {"items": ["\ud800"]}}, "state.plan.items[0]"),
    "lone surrogate in a key": ({"plan": {"\udfff": 1}}, "state.plan"),
    "NaN": ({"n": [1.0, float("nan")]}, "state.n[1]"),
    "infinity": ({"n": float("-inf")}, "state.n"),
    "key that is not text": ({"plan": {1: "a"}}, "state.plan"),
    "bytes": ({"b": b"x"}, "state.b"),
    "object": ({"b": object()}, "state.b"),
    "set": ({"b": {1}}, "state.b"),
    "cycle": (_LOOP, "state.self"),
    "too deep": ({"d": _DEEP}, "state.d"),
}


@_clause()
async def what_cannot_be_stored_exactly_is_refused(bench: Bench) -> None:
    """A value that would come back otherwise is a DataError with its path, and nothing is written."""
    async with bench.open() as store:
        id = bench.id()
        session = Session(id=id, store=store.store, actor_id=ACTOR)
        await session.append(Message.user("a"), state={"v": 1}, metadata={"m": 1})
        before = await store.get(id)
        for name, (state, path) in _UNSTORABLE.items():
            tries: list[tuple[str, Callable[[], Awaitable[object]]]] = [
                ("state", lambda state=state: session.append(Message.user("x"), state=state)),
                ("metadata", lambda state=state: session.replace(Message.user("x"), metadata=state)),
                ("message", lambda state=state: session.append([Message.user("x"), Message.user("x", state)])),
            ]
            for where, write in tries:
                try:
                    await write()
                except DataError as error:
                    expected = path if where == "state" else path.replace("state", "metadata", 1)
                    expect(expected in error.path, f"{name} in {where}: path {_short(error.path)}, not {expected}")
                else:
                    raise ClauseFailure(f"{name} in {where} was stored")
        for role in ("user", "assistant"):
            with suppress(DataError):
                await session.append(Message(role, "\ud83d"))
                raise ClauseFailure("a lone surrogate in a text was stored")
        _same("session", before, await store.get(id))


# Text and numbers

TEXTS = [
    "",
    "\0",
    "a\0b",
    "\\u0000",
    "\u0001\u001f\u007f\u0080\u2028\u2029\ufeff\uffff",
    "𝕬🦄👩‍👩‍👧‍👦",
    "e\u0301 é ﬁ ſ İ",
    "\U0010ffff",
    '"quoted" \\ / \b\f\n\r\t',
    "'; DROP TABLE sessions; --",
    " leading and trailing ",
    "\r\n",
    "שלום ‮abc",
    "%s {} $1 ?1 :id",
]


@_clause()
async def any_text_comes_back(bench: Bench) -> None:
    """Any valid Unicode, U+0000 included, is stored exactly: in messages, as keys, and in state and metadata."""
    async with bench.open() as store:
        id = bench.id()
        table = {text: [text] for text in TEXTS}
        messages = [Message.user(text, {text: text}) for text in TEXTS]
        messages.append(Message.assistant([ToolUse(id="1", name="f", input=table)]))
        messages.append(Message.tool([ToolResult(tool_use_id="1", content=table)]))
        await store.append(id, *messages, count=0, state=table, metadata=table)
        snapshot = await store.get(id)
        for sent, found in zip(messages, snapshot.messages, strict=True):
            _same("message", sent, found)
        _same("state", table, snapshot.state)
        _same("metadata", table, snapshot.metadata)


@_clause()
async def numbers_come_back(bench: Bench) -> None:
    """Integers of any size and finite floats are stored exactly, and keep their type."""
    numbers: list[Any] = [
        *(0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, 2**70, -(10**40)),
        *(0.0, -0.0, 1.0, 0.1, 1e-320, 5e-324, 1.7976931348623157e308, 3.141592653589793, 1e22, True, False, None),
    ]
    async with bench.open() as store:
        id = bench.id()
        message = Message.assistant([ToolUse(id="1", name="f", input={"n": numbers})], {"n": numbers})
        await store.append(id, message, count=0, state={"n": numbers}, metadata={"n": numbers})
        snapshot = await store.get(id)
        first = snapshot.messages[0]
        places = (snapshot.state, snapshot.metadata, first.metadata, first.tool_uses[0].input)
        for found in places:
            _same("numbers", list(map(repr, numbers)), list(map(repr, found["n"])))


# Tenants

_LONG = "x" * 10_000
KEYS = [
    *(("a", "b:c"), ("a:b", "c"), ("a", "b"), ("b", "a"), ("ab", ""), ("", "ab"), ("", ""), ("a", "b/c"), ("a/b", "c")),
    *(("a", "b|c"), ("a|b", "c"), ("a", "b\0c"), ("a\0b", "c"), ("a%3Ab", "c"), ("a", " b"), ("a", "b "), ("a ", "b")),
    *(("A", "b"), ("a", "B"), ("None", "b"), ("null", "b"), ("-", "b"), (":a", "b"), ("a.b", "c"), ("a", "b.c")),
    *(("\u00e9", "n"), ("e\u0301", "n"), ("n", "\u00e9"), ("n", "e\u0301"), ("n", "\u212b"), ("n", "\u00c5")),
    *(("%", "_"), ("_", "%"), ("a", "*"), ("..", "b"), ("a", "../b"), ("a\nb", "c"), ("a", "b\nc"), ("1", "1"), ("01", "1")),
    *((_LONG, "n"), (_LONG + "y", "n"), ("n", _LONG), ("n", _LONG + "y"), (_LONG[:5000], _LONG[:5000]), ("🦄", "🐴")),
]


@_clause()
async def keys_do_not_meet(bench: Bench) -> None:
    """Every pair of actor and id is a session of its own, whatever characters they have, and however long they are."""
    async with bench.open() as store:
        mark = bench.id("")
        # The clause's own part comes first or last, so that what is before and after the separator meets as it stands.
        for make in (lambda actor, id: (mark + actor, id), lambda actor, id: (actor, id + mark)):
            keys = [make(actor, id) for actor, id in KEYS]
            for number, (actor, id) in enumerate(keys):
                expect(await store.load(id, actor) is None, f"the key {_short((actor, id))} met an earlier one")
                await store.append(id, _user(str(number)), count=0, state={"n": number}, actor=actor)
            for number, (actor, id) in enumerate(keys):
                snapshot = await store.get(id, actor)
                _same(f"texts of {_short((actor, id))}", [str(number)], [message.text for message in snapshot.messages])
                _same("state", {"n": number}, snapshot.state)


@_clause()
async def actors_do_not_see_each_other(bench: Bench) -> None:
    """The same id under another actor is another session, whatever is done to it."""
    async with bench.open() as store:
        id, mine, other = bench.id(), bench.id("mine"), bench.id("other")
        first = await store.append(id, _user("mine"), count=0, actor=mine)
        expect(await store.load(id, other) is None, "another actor's session was loaded")
        await _refused(store.append(id, _user("x"), count=1, actor=other), "an append with the count of another actor's session")
        if store.can("revisions"):
            await _refused(
                store.replace(id, _user("x"), actor=other, expected_revision=first.revision),
                "a replace with the revision of another actor's session",
            )
        await store.replace(id, _user("other"), actor=other)
        if store.can("delete"):
            expect(await store.store.delete(id, actor_id=other), "the other actor's own session was not there to delete")
            expect(not await store.store.delete(id, actor_id=other), "a session was deleted twice, or another actor's")
        _same("texts", ["mine"], await store.texts(id, mine))


@_clause("anonymous_actor")
async def no_actor_is_a_namespace(bench: Bench) -> None:
    """No actor is a namespace of its own, and neither the empty one nor one called None."""
    actors = [None, "", "None", "null", "-", ":", "\0", "anonymous"]
    async with bench.open() as store:
        id = bench.id()
        for actor in actors:
            expect(await store.load(id, actor) is None, f"the actor {actor!r} met an earlier one")
            await store.append(id, _user(repr(actor)), count=0, actor=actor)
        for actor in actors:
            _same("texts", [repr(actor)], await store.texts(id, actor))


# One writer after another


@_clause()
async def a_stale_append_is_refused(bench: Bench) -> None:
    """An append that expects another count is a ConflictError with both counts, and changes nothing."""
    async with bench.open() as store:
        id = bench.id()
        await _refused(store.append(id, _user("x"), count=1), "an append that expects a message where there is no session")
        expect(await store.load(id) is None, "a refused append made the session")
        await store.append(id, _user("a"), _user("b"), count=0, state={"v": 1}, metadata={"m": 1})
        before = await store.get(id)
        for count in (0, 1, 3):
            error = await _refused(
                store.append(id, _user("x"), count=count, state={"v": 2}, metadata={"m": 2}), f"an append that expects {count} of 2 messages"
            )
            _same("expected and actual", (count, 2), (error.expected, error.actual))
            await _refused(store.append(id, count=count, state={"v": 2}), f"an append of state that expects {count} of 2 messages")
        _same("session", before, await store.get(id))


@_clause("revisions")
async def every_commit_has_a_revision_of_its_own(bench: Bench) -> None:
    """The revision changes with every commit, state-only ones and equal replaces included, and loading tells the last one."""
    async with bench.open() as store:
        id = bench.id()
        seen: list[str | None] = []
        for number in range(3):
            seen.append((await store.append(id, _user("a"), count=number)).revision)
            _same("revision", seen[-1], (await store.get(id)).revision)
        for _ in range(2):
            seen.append((await store.append(id, count=3)).revision)
            _same("revision", seen[-1], (await store.get(id)).revision)
        for _ in range(2):
            seen.append((await store.replace(id, _user("a"), _user("a"), _user("a"))).revision)
            _same("revision", seen[-1], (await store.get(id)).revision)
        expect(all(isinstance(revision, str) and revision for revision in seen), f"a revision is no text: {seen!r}")
        expect(len(set(seen)) == len(seen), f"a revision was used twice: {seen!r}")


@_clause("revisions")
async def a_stale_revision_is_refused(bench: Bench) -> None:
    """Append and replace with a revision that is not the last one are ConflictErrors, and change nothing."""
    async with bench.open() as store:
        id = bench.id()
        first = await store.append(id, _user("a"), count=0, state={"v": 1})
        second = await store.append(id, count=1, state={"v": 2})  # the count does not tell it
        error = await _refused(
            store.append(id, _user("x"), count=1, expected_revision=first.revision), "an append after another's state-only commit"
        )
        _same("expected and actual", (first.revision, second.revision), (error.expected, error.actual))
        await _refused(store.append(id, count=1, expected_revision=first.revision), "a stale state-only append")
        await _refused(store.replace(id, _user("x"), expected_revision=first.revision), "a stale replace")
        third = await store.replace(id, _user("b"), expected_revision=second.revision)
        for write in (partial(store.append, count=1), store.replace):
            await _refused(write(id, _user("x"), expected_revision=second.revision), "a write after another's replace of the same length")
            await _refused(write(id, _user("x"), expected_revision="no-such-revision"), "a write with a revision that never was")
        _same("texts", ["b"], await store.texts(id))
        await store.append(id, _user("c"), count=1, expected_revision=third.revision)
        await store.replace(id, _user("d"), expected_revision=ANY)
        _same("texts", ["d"], await store.texts(id))


@_clause("revisions")
async def a_first_write_can_insist_on_being_first(bench: Bench) -> None:
    """With None as the expected revision the session must not exist; with one, it must."""
    async with bench.open() as store:
        for write in (partial(store.append, count=0), store.replace):
            id = bench.id()
            await _refused(write(id, _user("x"), expected_revision="no-such-revision"), "a write with a revision where there is no session")
            expect(await store.load(id) is None, "a refused write made the session")
            await write(id, expected_revision=None, state={"v": 1})  # an empty one is there, too
            for again in (partial(store.append, count=0), store.replace):
                await _refused(again(id, _user("x"), expected_revision=None), "a write that insists on being first, and is second")
            _same("state", {"v": 1}, (await store.get(id)).state)


@_clause("revisions", "delete")
async def a_session_made_again_is_another_one(bench: Bench) -> None:
    """After a delete, the same commits have other revisions, and one who knew the old session is refused."""
    async with bench.open() as store:
        id = bench.id()
        rounds: list[list[str | None]] = []
        for _ in range(3):
            commits = [await store.append(id, _user("a"), count=number) for number in range(3)]
            rounds.append([commit.revision for commit in commits])
            if len(rounds) > 1:
                for old in rounds[0]:
                    await _refused(store.append(id, _user("x"), count=3, expected_revision=old), "an append with a revision from before a delete")
                    await _refused(store.replace(id, expected_revision=old), "a replace with a revision from before a delete")
            expect(await store.store.delete(id, actor_id=ACTOR), "delete found nothing")
            await _refused(store.append(id, _user("x"), count=3, expected_revision=rounds[-1][-1]), "an append to a deleted session")
            await _refused(store.replace(id, expected_revision=rounds[-1][-1]), "a replace of a deleted session")
        expect(len(set(itertools.chain(*rounds))) == 9, f"a revision came again after a delete: {rounds!r}")


# One commit, however often it is sent


@_clause("commit_ids")
async def a_repeated_commit_gets_the_first_answer(bench: Bench) -> None:
    """The same commit sent again changes nothing and gets the first answer, also after other commits and after a replace."""
    async with bench.open() as store:
        id = bench.id()
        first = partial(store.append, id, _user("a"), count=0, state={"v": 1}, commit_id="first-1")
        answers = [await first()]
        second = partial(store.append, id, _user("b"), count=1, state={"v": 2}, commit_id="second-2")
        replace = partial(store.replace, id, _user("c"), state={"v": 3}, commit_id="third-3")
        if store.can("revisions"):
            second = partial(second, expected_revision=answers[0].revision)
        answers.append(await second())
        if store.can("revisions"):
            replace = partial(replace, expected_revision=answers[1].revision)
        for _ in range(2):
            _same("answer to the repeated first commit", answers[0], await first())
            _same("answer to the repeated second commit", answers[1], await second())
        answers.append(await replace())
        await store.append(id, _user("d"), count=1, state={"v": 4})
        for number, again in enumerate((first, second, replace)):
            _same(f"answer to repeated commit {number + 1}", answers[number], await again())
        _same("texts", ["c", "d"], await store.texts(id))
        _same("state", {"v": 4}, (await store.get(id)).state)


@_clause("commit_ids")
async def a_commit_that_no_check_would_stop_is_not_done_twice(bench: Bench) -> None:
    """Sent again without an expected revision, a state-only append or a replace would pass its check; its id stops it."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, _user("a"), count=0, commit_id="a")
        one = await store.append(id, count=1, state={"v": 1}, commit_id="one")
        two = await store.replace(id, _user("b"), state={"v": 2}, commit_id="two")
        await store.append(id, count=1, state={"v": 3}, commit_id="three")
        _same("answer", one, await store.append(id, count=1, state={"v": 1}, commit_id="one"))
        _same("answer", two, await store.replace(id, _user("b"), state={"v": 2}, commit_id="two"))
        _same("state", {"v": 3}, (await store.get(id)).state)
        _same("texts", ["b"], await store.texts(id))


@_clause("commit_ids")
async def a_commit_id_with_other_content_is_refused(bench: Bench) -> None:
    """The same id with other messages, state, metadata or operation is a ConflictError."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, _user("a"), count=0, state={"v": 1}, metadata={"m": 1}, commit_id="one")
        same = partial(store.append, id, count=0, commit_id="one")
        await _refused(same(_user("b"), state={"v": 1}, metadata={"m": 1}), "an id with other messages")
        await _refused(same(_user("a"), state={"v": 2}, metadata={"m": 1}), "an id with another state")
        await _refused(same(_user("a"), state={"v": 1}, metadata={"m": 2}), "an id with other metadata")
        await _refused(
            store.replace(id, _user("a"), state={"v": 1}, metadata={"m": 1}, commit_id="one"), "an id of an append on a replace"
        )
        _same("texts", ["a"], await store.texts(id))


@_clause("commit_ids")
async def commit_ids_belong_to_one_session(bench: Bench) -> None:
    """The same id in another session, or in a session made again, is another commit; malformed ids are refused."""
    async with bench.open() as store:
        id = bench.id()
        for number in range(2):
            await store.append(id + str(number), _user(str(number)), count=0, commit_id="same")
            _same("texts", [str(number)], await store.texts(id + str(number)))
        await store.append(id + "0", _user("other actor"), count=0, actor=bench.id("actor"), commit_id="same")
        if store.can("delete"):
            await store.store.delete(id + "0", actor_id=ACTOR)
            await store.append(id + "0", _user("again"), count=0, commit_id="same")
            _same("texts", ["again"], await store.texts(id + "0"))
        for bad in ("", "x" * 65, "a b", "a_b", "ü", "a\n"):
            with suppress(DataError):
                await store.append(id + "1", _user("x"), count=1, commit_id=bad)
                raise ClauseFailure(f"the commit id {bad!r} was accepted")
        await store.append(id + "1", _user("x"), count=1, commit_id="x" * 64)


# Many writers


async def _won(work: Awaitable[object]) -> bool:
    try:
        await work
    except ConflictError:
        return False
    return True


@_clause()
async def one_of_many_appends_wins(bench: Bench) -> None:
    """Of appends that expect the same, exactly one is accepted, the first write of a session included."""
    async with bench.open() as store:
        id = bench.id()
        for count in range(5):
            won = await asyncio.gather(*(_won(store.append(id, _user(f"{count}"), count=count, state={"by": by})) for by in range(16)))
            _same("number of accepted appends", 1, sum(won))
            snapshot = await store.get(id)
            _same("count", count + 1, snapshot.count)
            _same("state", {"by": won.index(True)}, snapshot.state)


@_clause("revisions")
async def one_of_many_replaces_wins(bench: Bench) -> None:
    """Of replaces that expect the same revision, exactly one is accepted, the first write of a session included."""
    async with bench.open() as store:
        id = bench.id()
        revision: str | None = None
        for _ in range(5):
            won = await asyncio.gather(
                *(_won(store.replace(id, _user(str(by)), state={"by": by}, expected_revision=revision)) for by in range(16))
            )
            _same("number of accepted replaces", 1, sum(won))
            snapshot = await store.get(id)
            revision = snapshot.revision
            _same("state", {"by": won.index(True)}, snapshot.state)
            _same("text", str(won.index(True)), snapshot.messages[0].text)


async def _updates(store: Subject, id: str, name: str, times: int) -> list[str]:
    session = Session(id=id, store=store.store, actor_id=ACTOR)
    texts = [f"{name}:{number}" for number in range(times)]
    for text in texts:
        await session.update(lambda snapshot, text=text: ([_user(text)], snapshot.state), attempts=1000)
    return texts


def _each_once_in_order(texts: list[str], written: Iterable[list[str]]) -> None:
    """Expect that nothing acknowledged is missing or doubled, and that each writer's turns are in its order."""
    told = sorted(itertools.chain(*written))
    missing, extra = set(told) - set(texts), set(texts) - set(told)
    expect(not missing, f"acknowledged and lost: {_short(sorted(missing))}")
    expect(not extra, f"stored and never acknowledged: {_short(sorted(extra))}")
    _same("number of messages", len(told), len(texts))
    for mine in written:
        names = set(mine)
        _same("order of one writer", mine, [text for text in texts if text in names])


@_clause(timeout=120)
async def no_turn_of_many_tasks_is_lost(bench: Bench) -> None:
    """Tasks that append to one session, each trying again when refused, lose and double nothing."""
    async with bench.open() as store:
        id = bench.id()
        written = await asyncio.gather(*(_updates(store, id, f"t{number}", 5) for number in range(8)))
        _each_once_in_order(await store.texts(id), written)


@_clause(timeout=120)
async def no_turn_of_two_stores_is_lost(bench: Bench) -> None:
    """The same with two stores on the same data."""
    bench.need_persistence()
    async with bench.open() as one, bench.open() as two:
        id = bench.id()
        work = [_updates(store, id, f"{name}{number}", 5) for number in range(3) for name, store in (("a", one), ("b", two))]
        written = await asyncio.gather(*work)
        _each_once_in_order(await one.texts(id), written)
        _same("texts seen by the other", await one.texts(id), await two.texts(id))


@_clause(timeout=180)
async def no_turn_of_several_processes_is_lost(bench: Bench) -> None:
    """The same with processes of their own, all of them starting with the first write."""
    id = bench.id()
    orders = [{"task": "update", "id": id, "name": f"p{number}", "times": 15} for number in range(4)]
    async with bench.children(*orders) as children:
        for child in children:
            await child.expect("ready")
        for child in children:
            child.go()
        written = await asyncio.gather(*(child.rest() for child in children))
    _same("turns written by each", [15] * 4, list(map(len, written)))
    async with bench.open() as store:
        _each_once_in_order(await store.texts(id), written)


@_clause()
async def a_reader_sees_whole_commits(bench: Bench) -> None:
    """What is loaded while others write is a snapshot: its messages, count and state belong together."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, count=0, state={"turns": 0})
        done = False

        async def write() -> None:
            nonlocal done
            for number in range(1, 61):
                if number % 20:
                    await store.append(id, _user("a"), _user("b"), _user("c"), count=3 * (number - 1), state={"turns": number})
                else:
                    await store.replace(id, *[_user("r")] * (3 * number), state={"turns": number})
            done = True

        async def read() -> None:
            last = 0
            while not done:
                snapshot = await store.get(id)
                turns = snapshot.state["turns"]
                _same("messages and state", (3 * turns, 3 * turns), (len(snapshot.messages), snapshot.count))
                expect(turns >= last, f"a later read went back from {last} turns to {turns}")
                last = turns
                await asyncio.sleep(0)

        writing = asyncio.create_task(write())
        try:
            await asyncio.gather(read(), read(), writing)
        finally:
            writing.cancel()


@_clause()
async def a_cancelled_write_is_whole_or_absent(bench: Bench) -> None:
    """A write that is cancelled at any moment took place or did not, and the store goes on."""
    async with bench.open() as store:
        id = bench.id()
        stored: list[str] = []
        for number in range(60):
            new = [f"{number}.a", f"{number}.b"]
            state = {"number": number}
            task = asyncio.create_task(store.append(id, *map(_user, new), count=len(stored), state=state))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            if number % 3 == 2:
                await asyncio.sleep(random.uniform(0, 0.003))  # noqa: S311 (a moment)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            snapshot = await store.load(id)
            texts = [message.text for message in snapshot.messages] if snapshot else []
            if texts == [*stored, *new]:
                stored = texts
                _same("state", state, snapshot.state if snapshot else None)
            else:
                _same("texts after a cancelled append", stored, texts)
                if task.done() and not task.cancelled() and task.exception() is None:
                    raise ClauseFailure("an acknowledged append is not there")
        await store.append(id, _user("end"), count=len(stored))
        _same("texts", [*stored, "end"], await store.texts(id))


@_clause(timeout=180)
async def a_killed_writer_loses_nothing(bench: Bench) -> None:
    """A process killed while it writes leaves whole commits, and every one that it had been told of."""
    id = bench.id()
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder, "book")
        for _ in range(6):
            async with bench.children({"task": "write", "id": id, "book": os.fspath(book)}) as (child,):
                await child.expect("ready")
                await asyncio.sleep(random.uniform(0.0, 0.3))  # noqa: S311 (a moment)
                await child.kill()
            told = [int(line) for line in book.read_text().split()] if book.exists() else []
            async with bench.open() as store:
                snapshot = await store.load(id)
                last = snapshot.state["number"] if snapshot else 0
                texts = [message.text for message in snapshot.messages] if snapshot else []
                _same("turns, from the state", 3 * last, len(texts))
                for number in range(1, last + 1):
                    _same("a turn", (str(number),) * 2, tuple(texts[3 * number - 3 : 3 * number : 2]))
                expect(set(told) <= set(range(1, last + 1)), f"acknowledged and lost: {sorted(set(told) - set(range(1, last + 1)))}")
                expect(last - len(set(told)) <= 6, "more turns than could have been under way")


# One holder at a time


@_clause()
async def synchronize_excludes(bench: Bench) -> None:
    """One task holds a key, the others come one after another in their order; other keys are free."""
    async with bench.open() as store:
        id = bench.id()
        inside, order = 0, list[int]()

        async def hold(number: int) -> None:
            nonlocal inside
            async with store.store.synchronize(id, actor_id=ACTOR):
                inside += 1
                expect(inside == 1, "two hold the same session")
                await asyncio.sleep(0.001)
                order.append(number)
                inside -= 1

        tasks: list[asyncio.Task[None]] = []
        for number in range(12):
            tasks.append(asyncio.create_task(hold(number)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        _same("order", list(range(12)), order)
        async with store.store.synchronize(id, actor_id=ACTOR), asyncio.timeout(5):
            async with store.store.synchronize(id, actor_id=bench.id("actor")), store.store.synchronize(bench.id(), actor_id=ACTOR):
                pass


@_clause()
async def synchronize_can_be_given_up(bench: Bench) -> None:
    """Waiting ends with a cancellation or in time, an error inside lets go, and nothing is left behind."""
    async with bench.open() as store:
        id = bench.id()

        def hold(timeout: float | None = None) -> Any:
            return store.store.synchronize(id, actor_id=ACTOR, timeout=timeout)

        async def enter() -> None:
            async with hold():
                pass

        async with hold():
            for timeout in (0, 0.02):
                try:
                    async with hold(timeout):
                        raise ClauseFailure("two hold the same session")
                except SessionBusyError:
                    pass
            waiting = [asyncio.create_task(enter()) for _ in range(3)]
            await asyncio.sleep(0.01)
            waiting[1].cancel()
        await asyncio.gather(waiting[0], waiting[2])
        expect(waiting[1].cancelled(), "a waiter could not be cancelled")
        with suppress(ZeroDivisionError):
            async with hold():
                raise ZeroDivisionError
        async with asyncio.timeout(5), hold(0):
            pass
        _same("keys that are still kept", 0, len(store.store._locks()))  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001


async def _busy(context: Any, what: str) -> None:
    try:
        async with context:
            raise ClauseFailure(what)
    except SessionBusyError:
        pass


@_clause("leases")
async def a_lease_has_one_holder(bench: Bench) -> None:
    """A lease excludes others, in this store and in another, ends with its block, and has a token of its own."""
    async with bench.open() as store, bench.open() as second:
        others = (store, second) if bench.persistent else (store,)
        id, tokens = bench.id(), set[str]()
        for _ in range(3):
            async with store.store.lease(id, actor_id=ACTOR, timeout=0) as lease:
                tokens.add(lease.token)
                for other in others:
                    for timeout in (0, 0.05):
                        await _busy(other.store.lease(id, actor_id=ACTOR, timeout=timeout), "two hold the lease")
                    async with other.store.lease(id, actor_id=bench.id("actor"), timeout=0), other.store.lease(bench.id(), actor_id=ACTOR, timeout=0):
                        pass
        _same("number of tokens", 3, len(tokens))


@_clause("leases")
async def a_lease_is_waited_for(bench: Bench) -> None:
    """Who waits for a lease gets it when it is free, and can be cancelled before."""
    async with bench.open() as store:
        id, got = bench.id(), list[int]()

        async def take(number: int) -> None:
            async with store.store.lease(id, actor_id=ACTOR, timeout=30):
                got.append(number)

        async with store.store.lease(id, actor_id=ACTOR):
            tasks = [asyncio.create_task(take(number)) for number in range(3)]
            await asyncio.sleep(0.05)
            tasks[1].cancel()
            await asyncio.sleep(0.01)
            _same("holders while it is held", [], got)
        await asyncio.gather(tasks[0], tasks[2])
        _same("later holders", [0, 2], sorted(got))


@_clause("leases", timeout=120)
async def a_lease_ends_with_its_process(bench: Bench) -> None:
    """A lease held by another process excludes this one, until that process lets go or is killed."""
    id = bench.id()
    for killed in (True, False):
        async with bench.children({"task": "hold", "id": id}) as (child,), bench.open() as store:
            await child.expect("held")
            await _busy(store.store.lease(id, actor_id=ACTOR, timeout=0.1), "two processes hold the lease")
            if killed:
                await child.kill()
            else:
                child.go()
                await child.rest()
            async with store.store.lease(id, actor_id=ACTOR, timeout=10 if killed else 0):
                pass


# The rest of what a store can offer


@_clause("sessions")
async def sessions_are_listed_by_actor_and_page(bench: Bench) -> None:
    """Each session of an actor is on exactly one page, with its count, and nobody else's is."""
    async with bench.open() as store:
        actor, other = bench.id("actor"), bench.id("other")
        ids = ["", "a", "b", "B", "é", "e\u0301", "a\0b", "🦄", *(f"{number}" for number in range(30))]
        for number, id in enumerate(random.sample(ids, len(ids))):
            await store.append(id, *[_user("x")] * (number % 3), count=0, actor=actor)
        await store.append("other", count=0, actor=other)
        for limit in (1, 7, len(ids), 1000):
            found, cursor, pages = list[str](), None, 0
            while True:
                page = await store.store.sessions(actor_id=actor, limit=limit, cursor=cursor)
                expect(len(page.items) <= limit, f"a page of {len(page.items)} where the limit is {limit}")
                found += [item.id for item in page.items]
                expect(all(item.actor_id == actor for item in page.items), "a session of another actor was listed")
                cursor, pages = page.cursor, pages + 1
                if cursor is None:
                    break
                expect(pages <= len(ids) and isinstance(cursor, str), "the cursor leads nowhere")
            _same("listed ids", sorted(ids), sorted(found))
        for item in (await store.store.sessions(actor_id=actor, limit=1000)).items:
            snapshot = await store.get(item.id, actor)
            _same("count and revision", (snapshot.count, snapshot.revision), (item.count, item.revision))
        _same("sessions of nobody", (), (await store.store.sessions(actor_id=bench.id("nobody"))).items)
        for limit in (0, -1):
            with suppress(DataError):
                await store.store.sessions(actor_id=actor, limit=limit)
                raise ClauseFailure(f"a limit of {limit} was accepted")


@_clause("tail")
async def a_tail_is_the_end_of_the_history(bench: Bench) -> None:
    """Pages from the end backwards join to the whole history, whatever commits it came in."""
    async with bench.open() as store:
        id = bench.id()
        _same("tail of nothing", ((), None), _page(await store.store.tail(id, limit=3, actor_id=ACTOR)))
        await store.append(id, *map(_user, "xyz"), count=0)
        whole = ["replaced"]
        await store.replace(id, _user("replaced"))
        for number in range(25):
            new = [f"{number}.{part}" for part in range(number % 4)]
            await store.append(id, *map(_user, new), count=len(whole))
            whole += new
        total = len(whole)
        for limit in (1, 2, 5, total, total + 1):
            found: list[str] = []
            before: Any = None
            for _ in range(total + 1):
                page = await store.store.tail(id, limit=limit, before=before, actor_id=ACTOR)
                found = [message.text for message in page.items] + found
                before = page.cursor
                if before is None:
                    break
            _same(f"joined pages of {limit}", whole, found)
        for before in (0, 1, 7, total, total + 5):
            page = await store.store.tail(id, limit=3, before=before, actor_id=ACTOR)
            end = min(before, total)
            _same(f"page before {before}", whole[max(0, end - 3) : end], [message.text for message in page.items])
        with suppress(DataError):
            await store.store.tail(id, limit=0, actor_id=ACTOR)
            raise ClauseFailure("a limit of 0 was accepted")


def _page(page: Any) -> tuple[Any, Any]:
    return tuple(page.items), page.cursor


@_clause("fork")
async def a_fork_is_a_session_of_its_own(bench: Bench) -> None:
    """A fork has the first messages, the state and the metadata; what is done to one is not done to the other."""
    async with bench.open() as store:
        id, new = bench.id(), bench.id("fork")
        await store.append(id, *map(_user, "abc"), count=0, state={"v": 1}, metadata={"m": 1})
        _same("count of the fork", 2, (await store.store.fork(id, new, at=2, actor_id=ACTOR)).count)
        snapshot = await store.get(new)
        _same("fork", (["a", "b"], {"v": 1}, {"m": 1}), (await store.texts(new), snapshot.state, snapshot.metadata))
        await store.append(new, _user("new"), count=2)
        await store.append(id, _user("old"), count=3)
        _same("texts", (["a", "b", "new"], ["a", "b", "c", "old"]), (await store.texts(new), await store.texts(id)))
        whole = bench.id("whole")
        await store.store.fork(id, whole, actor_id=ACTOR)
        _same("texts of a whole fork", ["a", "b", "c", "old"], await store.texts(whole))
        await _refused(store.store.fork(id, new, actor_id=ACTOR), "a fork onto a session that exists")
        try:
            await store.store.fork(bench.id(), bench.id(), actor_id=ACTOR)
        except SessionNotFoundError:
            pass
        else:
            raise ClauseFailure("a session that does not exist was forked")


@_clause("fork")
async def a_fork_parts_no_call_from_its_result(bench: Bench) -> None:
    """Fewer messages are kept where the cut would fall between a call and its result."""
    async with bench.open() as store:
        id = bench.id()
        call = Message.assistant([ToolUse(id="1", name="f"), ToolUse(id="2", name="f")])
        results = [Message.tool([ToolResult(tool_use_id=use, content="ok")]) for use in "21"]
        await store.append(id, _user("a"), call, *results, Message.assistant("b"), count=0)
        for at, kept in ((0, 0), (1, 1), (2, 1), (3, 1), (4, 4), (5, 5), (9, 5)):
            new = bench.id("fork")
            _same(f"messages of a fork at {at}", kept, (await store.store.fork(id, new, at=at, actor_id=ACTOR)).count)
            _same("stored messages", kept, len((await store.get(new)).messages))


@_clause("delete")
async def a_deleted_session_is_gone(bench: Bench) -> None:
    """Delete tells whether there was a session; nothing of it is left, and one can be made anew."""
    async with bench.open() as store:
        id, beside = bench.id(), bench.id("beside")
        expect(not await store.store.delete(id, actor_id=ACTOR), "a session that never was, was deleted")
        await store.append(beside, _user("stays"), count=0)
        await store.append(id, _user("a"), count=0, state={"v": 1}, metadata={"m": 1})
        await store.append(id, _user("b"), count=1)
        expect(await store.store.delete(id, actor_id=ACTOR), "delete found nothing")
        expect(await store.load(id) is None, "a deleted session was loaded")
        expect(not await store.store.delete(id, actor_id=ACTOR), "a session was deleted twice")
        await _refused(store.append(id, _user("x"), count=2), "an append to a deleted session")
        await store.append(id, _user("new"), count=0)
        snapshot = await store.get(id)
        _same("the new session", (["new"], {}, {}), (await store.texts(id), snapshot.state, snapshot.metadata))
        _same("the session beside it", ["stays"], await store.texts(beside))


@_clause()
async def what_is_not_offered_is_refused(bench: Bench) -> None:
    """An operation that the store does not name in its capabilities is an UnsupportedError, and never a wrong answer."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, _user("a"), count=0)
        tries: dict[str, Callable[[], Awaitable[object]]] = {
            "delete": lambda: store.store.delete(id, actor_id=ACTOR),
            "sessions": lambda: store.store.sessions(actor_id=ACTOR),
        }
        for name, attempt in tries.items():
            if not store.can(name):
                try:
                    await attempt()
                except (NotImplementedError, StoreError):
                    continue
                raise ClauseFailure(f"{name} is not among the capabilities, and answered")
        _same("texts", ["a"], await store.texts(id))
