"""Clauses of the store kit: what is stored, by whom, and that it comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial, reduce
from typing import Any, cast

from littleghost.content import Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import DataError
from littleghost.message import Message
from littleghost.sessions.session import Session
from littleghost.testing.conformance import Clause, ClauseFailure, clause, expect
from littleghost.testing.store_bench import ACTOR, Bench, refused, same, short, user

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

WITHOUT_REASONING = (
    "Store what littleghost.transcript.without_reasoning(messages) returns: it applies message.without_reasoning() to each, and drops "
    "a message that this empties, but not one that was empty before"
)


# Reading and writing


@clause(CLAUSES)
async def loading_nothing_gives_none(bench: Bench) -> None:
    """A session that was never written is None, and reading does not make it."""
    async with bench.open() as store:
        id = bench.id()
        for _ in range(2):
            expect(await store.load(id) is None, "a session that was never written was found")


@clause(CLAUSES)
async def what_is_appended_is_loaded(bench: Bench) -> None:
    """Messages come back in order; state and metadata are the last ones, whole."""
    async with bench.open() as store:
        id = bench.id()
        texts: list[str] = []
        for number in range(30):
            new = [f"{number}.{part}" for part in range(number % 4)]
            commit = await store.append(
                id,
                *map(user, new),
                count=len(texts),
                state={f"s{number}": number},
                metadata={f"m{number}": [number]},
            )
            texts += new
            same("count of the commit", len(texts), commit.count)
        snapshot = await store.get(id)
        same("texts", texts, [message.text for message in snapshot.messages])
        same("count", len(texts), snapshot.count)
        same("state", {"s29": 29}, snapshot.state)
        same("metadata", {"m29": [29]}, snapshot.metadata)


@clause(CLAUSES)
async def replacing_leaves_only_the_new(bench: Bench) -> None:
    """A replace stores messages, state and metadata in place of all there was, also of nothing; appending goes on from there."""
    async with bench.open() as store:
        id = bench.id()
        await store.replace(id, user("a"), user("b"), user("c"), state={"v": 1})
        await store.append(id, user("d"), count=3, state={"v": 2})
        commit = await store.replace(id, user("e"), state={"v": 3}, metadata={"m": 1})
        same("count of the commit", 1, commit.count)
        await store.append(id, user("f"), count=1, state={"v": 4})
        snapshot = await store.get(id)
        same("texts", ["e", "f"], [message.text for message in snapshot.messages])
        same("state", {"v": 4}, snapshot.state)
        same("metadata", {}, snapshot.metadata)
        await store.replace(id)
        same("messages after a replace with none", [], await store.texts(id))


@clause(CLAUSES)
async def state_can_change_without_messages(bench: Bench) -> None:
    """An append without messages stores the state, also as the first write."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, count=0, state={"step": 1})
        snapshot = await store.get(id)
        same("messages", (), tuple(snapshot.messages))
        same("state", {"step": 1}, snapshot.state)
        await store.append(id, user("a"), count=0, state={"step": 2})
        await store.append(id, count=1, state={"step": 3})
        snapshot = await store.get(id)
        same("state", {"step": 3}, snapshot.state)
        same("count", 1, snapshot.count)


@clause(CLAUSES)
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
            same("state", {"list": [1], "nested": {"a": 1}}, snapshot.state)
            same("metadata", {"m": [1]}, snapshot.metadata)
            same("message metadata", {"meta": {"a": 1}}, snapshot.messages[0].metadata)
            same("input", {"list": [1]}, snapshot.messages[0].tool_uses[0].input)
            if snapshot is loaded:
                snapshot.state["list"].append(3)
                snapshot.state["nested"]["a"] = 3
                snapshot.metadata["m"].append(3)
                snapshot.messages[0].metadata["meta"]["a"] = 3
                snapshot.messages[0].tool_uses[0].input["list"].append(3)


@clause(CLAUSES)
async def every_kind_of_message_comes_back(bench: Bench) -> None:
    """Every role, block and nesting of blocks that may be stored is loaded as it was."""
    blob = bytes(range(256))
    image, document = (
        Image(data=blob, media_type="image/png", name="a.png"),
        Document(data=b"", media_type="text/plain", name="ü.txt"),
    )
    messages = [
        Message.developer("be brief"),
        Message.user([Text("look"), image, document], {"n": 1, "deep": [{"x": None}]}),
        Message.assistant(
            [Text(""), ToolUse(id="1", name="f", input={"a": [1, {"b": None}]}), ToolUse(id="2", name="g")]
        ),
        Message.tool([ToolResult(tool_use_id="2", content={"any": ["json", 1.5]}, status="error")]),
        Message.tool([ToolResult(tool_use_id="1", content=[Text("x"), image, {"plain": True}, 3])]),
        Message.assistant([]),
        Message.user("", {"transient": False}),
    ]
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, *messages[:3], count=0)
        await store.append(id, *messages[3:], count=3)
        same("messages", messages, list((await store.get(id)).messages))


@clause(CLAUSES)
async def a_large_message_comes_back(bench: Bench) -> None:
    """Three megabytes in one message, and a state of one, are stored and loaded."""
    text, state = "läßt " * 500_000, {"long": "x" * 1_000_000}
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, user(text), user("end"), count=0, state=state)
        expect(await store.texts(id) == [text, "end"], "a message of three megabytes changed")
        expect((await store.get(id)).state == state, "a state of one megabyte changed")


@clause(CLAUSES)
async def what_is_stored_survives_the_store(bench: Bench) -> None:
    """A second store, made while the first is open and after it was closed, has everything."""
    bench.need_persistence()
    id = bench.id()
    async with bench.open() as store:
        await store.append(id, user("a"), count=0, state={"v": 1}, metadata={"m": 1})
        async with bench.open() as other:
            await other.append(id, user("b"), count=1, state={"v": 2}, metadata={"m": 2})
        same("texts seen by the first", ["a", "b"], await store.texts(id))
        before = await store.get(id)
    async with bench.open() as store:
        after = await store.get(id)
        same("snapshot", before, after)


@clause(CLAUSES)
async def closing_twice_is_once(bench: Bench) -> None:
    """Closing a store that is closed does nothing."""
    async with bench.open() as store:
        await store.append(bench.id(), user("a"), count=0)
        await store.store.aclose()
        await store.store.aclose()


# What may be stored


@clause(CLAUSES)
async def reasoning_is_never_stored(bench: Bench) -> None:
    """A store removes reasoning itself; a message emptied by that goes, one that was empty stays; the count is that of what is stored."""
    secret = Reasoning(text="secret thought", signature="sig")
    messages = [
        user("a"),
        Message.assistant([secret]),
        Message.assistant([]),
        Message.assistant([secret, Text("b"), Reasoning(data=b"encrypted")]),
        Message.tool([ToolResult(tool_use_id="1", content=[Text("c"), secret])]),
    ]
    async with bench.open() as store:
        for id, write in ((bench.id(), partial(store.append, count=0)), (bench.id(), store.replace)):
            await write(id, *messages)
            snapshot = await store.get(id)
            kept = [block for message in snapshot.messages for block in message.content]
            expect(
                not any(isinstance(block, Reasoning) for block in kept)
                and "secret" not in repr([message.to_dict() for message in snapshot.messages]),
                f"reasoning was stored. {WITHOUT_REASONING}",
            )
            found = (len(snapshot.messages), snapshot.count)
            expect(
                found == (4, 4),
                f"of five messages, one of them nothing but reasoning and one empty, four are to be kept; messages and count: {found}. "
                + WITHOUT_REASONING,
            )
            await store.append(id, user("d"), count=4)


@clause(CLAUSES)
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
        same("stored texts", kept, await store.texts(id))
        await session.append(Message.user("after"))
        same("stored texts", [*kept, "after"], await store.texts(id))
        await session.replace(messages)
        same("stored texts after a replace", kept, await store.texts(id))


@clause(CLAUSES)
async def a_session_reads_what_is_stored(bench: Bench) -> None:
    """A Session that was not there before reads what the store has, whole and from its end, in whatever form the store says it."""
    async with bench.open() as store:
        id = bench.id()
        await store.append(id, *map(user, "abc"), count=0, state={"v": 1}, metadata={"m": [1]})
        session = Session(id=id, store=store.store, actor_id=ACTOR)
        same("texts", ["a", "b", "c"], [message.text for message in await session.history()])
        same("state", {"v": 1}, await session.state())
        same("metadata", {"m": [1]}, await session.metadata())
        expect(await session.load() is not None, "a Session found nothing where something is stored")
        page = await session.tail(limit=2)
        same("the end that a Session reads", ["b", "c"], [message.text for message in page.items])
        none = Session(id=bench.id(), store=store.store, actor_id=ACTOR)
        same("what is read of a session that is not there", None, await none.load())
        same("the end of one that is not there", (), tuple((await none.tail(limit=2)).items))


_CYCLE: dict[str, Any] = {}
_CYCLE["self"] = _CYCLE

_UNSTORABLE: dict[str, tuple[Any, str]] = {
    "lone surrogate": ({"plan": {"items": ["\ud800"]}}, "state.plan.items[0]"),
    "lone surrogate in a key": ({"plan": {"\udfff": 1}}, "state.plan"),
    "NaN": ({"n": [1.0, float("nan")]}, "state.n[1]"),
    "infinity": ({"n": float("-inf")}, "state.n"),
    "key that is not text": ({"plan": {1: "a"}}, "state.plan"),
    "bytes": ({"b": b"x"}, "state.b"),
    "object": ({"b": object()}, "state.b"),
    "set": ({"b": {1}}, "state.b"),
    "cycle": (_CYCLE, "state.self"),
    "too deep": ({"d": reduce(lambda inner, _: [inner], range(101), cast("Any", "bottom"))}, "state.d"),
}


@clause(CLAUSES)
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
                (
                    "message",
                    lambda state=state: session.append([Message.user("x"), Message.user("x", state)]),
                ),
            ]
            for where, write in tries:
                try:
                    await write()
                except DataError as error:
                    expected = path if where == "state" else path.replace("state", "metadata", 1)
                    expect(
                        expected in error.path,
                        f"{name} in {where}: path {short(error.path)}, not {expected}",
                    )
                else:
                    raise ClauseFailure(f"{name} in {where} was stored")
        for role in ("user", "assistant"):
            with suppress(DataError):
                await session.append(Message(role, "\ud83d"))
                raise ClauseFailure("a lone surrogate in a text was stored")
        same("session", before, await store.get(id))


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
    "שלום \u202eabc",
    "%s {} $1 ?1 :id",
]


@clause(CLAUSES)
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
            same("message", sent, found)
        same("state", table, snapshot.state)
        same("metadata", table, snapshot.metadata)


@clause(CLAUSES)
async def numbers_come_back(bench: Bench) -> None:
    """Integers of any size and finite floats are stored exactly, and keep their type."""
    numbers: list[Any] = [
        *(0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, 2**70, -(10**40)),
        *(
            0.0,
            -0.0,
            1.0,
            0.1,
            1e-320,
            5e-324,
            1.7976931348623157e308,
            3.141592653589793,
            1e22,
            True,
            False,
            None,
        ),
    ]
    async with bench.open() as store:
        id = bench.id()
        message = Message.assistant([ToolUse(id="1", name="f", input={"n": numbers})], {"n": numbers})
        await store.append(id, message, count=0, state={"n": numbers}, metadata={"n": numbers})
        snapshot = await store.get(id)
        first = snapshot.messages[0]
        places = (snapshot.state, snapshot.metadata, first.metadata, first.tool_uses[0].input)
        for found in places:
            same("numbers", list(map(repr, numbers)), list(map(repr, found["n"])))


# Tenants

_LONG = "x" * 10_000
KEYS = [
    *(
        ("a", "b:c"),
        ("a:b", "c"),
        ("a", "b"),
        ("b", "a"),
        ("ab", ""),
        ("", "ab"),
        ("", ""),
        ("a", "b/c"),
        ("a/b", "c"),
    ),
    *(
        ("a", "b|c"),
        ("a|b", "c"),
        ("a", "b\0c"),
        ("a\0b", "c"),
        ("a%3Ab", "c"),
        ("a", " b"),
        ("a", "b "),
        ("a ", "b"),
    ),
    *(
        ("A", "b"),
        ("a", "B"),
        ("None", "b"),
        ("null", "b"),
        ("-", "b"),
        (":a", "b"),
        ("a.b", "c"),
        ("a", "b.c"),
    ),
    *(("\u00e9", "n"), ("e\u0301", "n"), ("n", "\u00e9"), ("n", "e\u0301"), ("n", "\u212b"), ("n", "\u00c5")),
    *(
        ("%", "_"),
        ("_", "%"),
        ("a", "*"),
        ("..", "b"),
        ("a", "../b"),
        ("a\nb", "c"),
        ("a", "b\nc"),
        ("1", "1"),
        ("01", "1"),
    ),
    *(
        (_LONG, "n"),
        (_LONG + "y", "n"),
        ("n", _LONG),
        ("n", _LONG + "y"),
        (_LONG[:5000], _LONG[:5000]),
        ("🦄", "🐴"),
    ),
]


@clause(CLAUSES)
async def keys_do_not_meet(bench: Bench) -> None:
    """Every pair of actor and id is a session of its own, whatever characters they have, and however long they are."""
    async with bench.open() as store:
        mark = bench.id("")
        # The clause's own part comes first or last, so that what is before and after the separator meets as it stands.
        first = [(mark + actor, id) for actor, id in KEYS]
        # A store that needs an actor may take an empty one for none.
        named = bench.capabilities >= {"anonymous_actor"}
        last = [(actor, id + mark) for actor, id in KEYS if actor or named]
        for keys in (first, last):
            for number, (actor, id) in enumerate(keys):
                expect(
                    await store.load(id, actor) is None, f"the key {short((actor, id))} met an earlier one"
                )
                await store.append(id, user(str(number)), count=0, state={"n": number}, actor=actor)
            for number, (actor, id) in enumerate(keys):
                snapshot = await store.get(id, actor)
                same(
                    f"texts of {short((actor, id))}",
                    [str(number)],
                    [message.text for message in snapshot.messages],
                )
                same("state", {"n": number}, snapshot.state)


@clause(CLAUSES)
async def actors_do_not_see_each_other(bench: Bench) -> None:
    """The same id under another actor is another session, whatever is done to it."""
    async with bench.open() as store:
        id, mine, other = bench.id(), bench.id("mine"), bench.id("other")
        first = await store.append(id, user("mine"), count=0, actor=mine)
        expect(await store.load(id, other) is None, "another actor's session was loaded")
        await refused(
            store.append(id, user("x"), count=1, actor=other),
            "an append with the count of another actor's session",
        )
        if store.can("revisions"):
            await refused(
                store.replace(id, user("x"), actor=other, expected_revision=first.revision),
                "a replace with the revision of another actor's session",
            )
        await store.replace(id, user("other"), actor=other)
        if store.can("delete"):
            expect(
                await store.store.delete(id, actor_id=other),
                "the other actor's own session was not there to delete",
            )
            expect(
                not await store.store.delete(id, actor_id=other),
                "a session was deleted twice, or another actor's",
            )
        same("texts", ["mine"], await store.texts(id, mine))


@clause(CLAUSES, needs=("anonymous_actor",))
async def no_actor_is_a_namespace(bench: Bench) -> None:
    """No actor is a namespace of its own, and neither the empty one nor one called None."""
    actors = [None, "", "None", "null", "-", ":", "\0", "anonymous"]
    async with bench.open() as store:
        id = bench.id()
        for actor in actors:
            expect(await store.load(id, actor) is None, f"the actor {actor!r} met an earlier one")
            await store.append(id, user(repr(actor)), count=0, actor=actor)
        for actor in actors:
            same("texts", [repr(actor)], await store.texts(id, actor))
