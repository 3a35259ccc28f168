"""The file of sessions: every way in which it can be cut, changed, hostile or large."""

from __future__ import annotations

import hashlib
import json
import re
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littleghost import (
    ALL_ACTORS,
    FormatError,
    MemoryStore,
    Message,
    Transferred,
    export_sessions,
    import_sessions,
)
from littleghost.sessions.contract import Commit, Page, SessionInfo, Snapshot


async def write(
    store: MemoryStore, id: str, *texts: str, actor: str | None = None, state: Any = None
) -> Commit:
    messages = [Message.user(text) for text in texts]
    return await store.replace(id, messages=messages, state=state or {}, metadata={"of": id}, actor_id=actor)


async def exported(store: MemoryStore) -> bytes:
    return b"".join([line async for line in export_sessions(store)])


async def imported(store: MemoryStore, *chunks: bytes) -> list[Transferred]:
    return [done async for done in import_sessions(store, chunks)]


async def content(store: MemoryStore) -> dict[Any, Any]:
    return {
        (info.actor_id, info.id): (
            msgspec.structs.replace(await store.load(info.id, actor_id=info.actor_id), revision=None),
            info.updated_at,
        )
        for info in (await store.sessions(actor_id=ALL_ACTORS)).items
    }


async def gather(items: AsyncIterator[Any], into: list[Any]) -> None:
    """Like a list, but with what came before an error as well."""
    async for item in items:
        into.append(item)


def outcomes(done: list[Transferred]) -> list[str]:
    return [one.outcome for one in done]


# Damage in the file


async def small_file() -> tuple[bytes, dict[Any, Any]]:
    store = MemoryStore()
    await write(store, "a", "one\0", actor="bob", state={"n": 1})
    await write(store, "b")
    return await exported(store), await content(store)


async def test_no_byte_can_change_unnoticed():
    """Whatever byte is another one: it is found out, and what is imported all the same is as it was."""
    raw, expected = await small_file()
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        destination = MemoryStore()
        noticed = False
        try:
            async for done in import_sessions(destination, [changed]):
                noticed |= done.outcome == "failed"
        except FormatError:
            noticed = True
        assert noticed, changed
        found = await content(destination)
        assert found.items() <= expected.items(), changed


async def test_no_cut_goes_unnoticed_and_what_is_whole_is_imported():
    raw, expected = await small_file()
    for end in range(len(raw) - 1):  # without its last line feed it is whole
        destination = MemoryStore()
        with pytest.raises(FormatError):
            await imported(destination, raw[:end])
        found = await content(destination)
        assert found.items() <= expected.items()
        assert len(found) == sum(
            b'"end"' in line and line.endswith(b"\n") for line in raw[:end].splitlines(keepends=True)
        )
    assert outcomes(await imported(MemoryStore(), raw[:-1])) == ["written"] * 2


async def test_no_line_can_be_left_out_doubled_or_moved():
    raw, expected = await small_file()
    lines = raw.splitlines(keepends=True)
    orders = [lines[:at] + lines[at + 1 :] for at in range(len(lines))]
    orders += [[*lines[:at], lines[at], *lines[at:]] for at in range(len(lines))]
    orders += [[*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]] for at in range(len(lines) - 1)]
    for order in orders:
        destination = MemoryStore()
        with pytest.raises(FormatError):
            await imported(destination, *order)
        assert (await content(destination)).items() <= expected.items()


async def test_a_spoilt_session_costs_only_itself_and_says_where():
    store = MemoryStore()
    for number in range(4):
        await write(store, f"s{number}", "x")
    raw = (await exported(store)).replace(b'"id":"s1"', b'"id":"s7"')
    destination = MemoryStore()
    done: list[Transferred] = []
    with pytest.raises(FormatError, match=r"line 14: the file is not as it was written: it had 4 sessions"):
        await gather(import_sessions(destination, [raw]), done)
    assert [(one.id, one.outcome) for one in done] == [
        ("s0", "written"), ("s7", "failed"), ("s2", "written"), ("s3", "written"),
    ]  # fmt: skip
    assert (done[1].problem or "").startswith("line 7: the session is not as it was written")


async def test_a_newer_version_is_refused_before_anything_is_read():
    raw, _ = await small_file()
    newer = raw.replace(b'"version":1}', b'"version":2,"compressed":true}')
    with pytest.raises(FormatError, match="version 2") as caught:
        await imported(MemoryStore(), newer)
    assert (caught.value.found, caught.value.supported) == (2, 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\n",
        b"no json\n",
        b"[]\n",
        b'{"type":"header"}\n',
        b'{"type":"header","format":"other","version":1}\n',
        b'{"type":"header","format":"littleghost.sessions","version":"1"}\n',
        b"\xef\xbb\xbf" + b'{"type":"header","format":"littleghost.sessions","version":1}\n',
        b"x" * 100_000,
        b"[" * 100_000 + b"\n",
        b"SQLite format 3\0",
        b"\xff\xfe\n",
    ],
)
async def test_what_is_no_export_is_said_to_be_none(raw: bytes):
    with pytest.raises(FormatError, match=r"no export|empty"):
        await imported(MemoryStore(), raw)


async def test_one_file_after_another_is_refused():
    raw, _ = await small_file()
    for more in (raw, b"\n", b"x"):
        with pytest.raises(FormatError, match="something follows the end"):
            await imported(MemoryStore(), raw, more)


HEADER = b'{"type":"header","format":"littleghost.sessions","version":1}\n'


def line_of(**changes: Any) -> bytes:
    base = {
        "type": "session",
        "id": "h",
        "actor_id": None,
        "count": 0,
        "state": {},
        "metadata": {},
        "created_at": None,
        "updated_at": None,
        "revision": None,
    }
    return json.dumps({**base, **changes}).encode() + b"\n"


def signed(*lines: bytes) -> bytes:
    """The lines of one session in a file whose sums are right: what somebody makes who means ill."""
    end = b'{"type":"end","sha256":"%b"}\n' % hashlib.sha256(b"".join(lines)).hexdigest().encode()
    return HEADER + b"".join(lines) + end


def messages(*forms: Any) -> bytes:
    return b'{"type":"messages","messages":' + json.dumps(forms).encode() + b"}\n"


USER = {"role": "user", "content": "x"}
DEEP = b'{"type":"messages","messages":[{"role":"user","content":[],"metadata":{"a":%b}}]}\n'


@pytest.mark.parametrize(
    "raw",
    [
        signed(line_of(id=1)),
        signed(line_of(id=None)),
        signed(line_of(actor_id=7)),
        signed(line_of(count=-1)),
        signed(line_of(count=10**40)),
        signed(line_of(count="0")),
        signed(line_of(count=2), messages(USER)),
        signed(line_of(count=1), messages(USER, USER)),
        signed(line_of(state=[])),
        signed(line_of(state="x")),
        signed(line_of(metadata=None)),
        signed(line_of(created_at="now")),
        signed(line_of(updated_at=True)),
        signed(line_of(more=1)),
        signed(line_of(id="\ud800")),
        signed(line_of(state={"a": "\udfff"})),
        signed(line_of().replace(b'"count": 0', b'"count": 0, "count": NaN')),
        signed(line_of(state=0).replace(b'"state": 0', b'"state": {"n": 1e999}')),
        signed(line_of(state=0).replace(b'"state": 0', b'"state": ' + b'{"a":' * 200 + b"1" + b"}" * 200)),
        signed(line_of(state=0).replace(b'"state": 0', b'"state": ' + b"[" * 1_000_000)),
        signed(line_of(state=0).replace(b'"state": 0', b'"state": {"n": ' + b"9" * 9000 + b"}")),
        signed(line_of(count=1), messages("x")),
        signed(line_of(count=1), messages({"role": "root", "content": "x"})),
        signed(line_of(count=1), messages({"role": "user", "content": [{"type": "image", "data": "!"}]})),
        signed(line_of(count=1), DEEP % (b"[" * 150 + b"]" * 150)),
        signed(line_of(count=1), DEEP % (b"[" * 1_000_000)),
        signed(line_of(), b'{"type":"messages","messages":{}}\n'),
        signed(line_of(), b"\n"),
        signed(line_of(), b'{"type":"surprise"}\n'),
        HEADER + line_of(),
        HEADER + b'{"type":"end","sha256":""}\n',
        HEADER + messages(USER),
        HEADER + line_of() + line_of(id="i"),
        HEADER + b'{"type":"totals","sessions":0,"messages":0,"damaged":0,"sha256":"0"}\n',
    ],
)  # fmt: skip
async def test_nothing_hostile_gets_in(raw: bytes):
    destination = MemoryStore()
    done: list[Transferred] = []
    with pytest.raises(FormatError) as caught:
        await gather(import_sessions(destination, [raw]), done)
    assert re.match(r"line \d+: ", str(caught.value))
    assert all(one.outcome == "failed" and len(one.problem or "") < 1000 for one in done)
    assert await content(destination) == {}


async def test_what_is_signed_as_it_should_be_does_get_in():
    destination = MemoryStore()
    with pytest.raises(
        FormatError, match="ends before its last line"
    ):  # so the cases above fail for their own reasons
        await imported(destination, signed(line_of(count=1), messages(USER)))
    assert list(await content(destination)) == [(None, "h")]


async def test_a_line_without_end_takes_no_memory():
    def endless() -> Any:
        yield HEADER + b'{"type":"session","id":"'
        for _ in range(400):
            yield b"x" * 100_000
        yield b"\n" + line_of()

    done: list[Transferred] = []
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            await gather(import_sessions(MemoryStore(), endless(), max_size=1_000_000), done)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert "longer than a session may be" in (done[0].problem or "")


async def test_a_session_without_end_takes_no_memory():
    def endless() -> Any:
        yield HEADER + line_of(count=10**9)
        for _ in range(3000):
            yield messages(*[{"role": "user", "content": "x" * 100}] * 100)

    tracemalloc.start()
    done: list[Transferred] = []
    try:
        with pytest.raises(FormatError):
            await gather(import_sessions(MemoryStore(), endless(), max_size=1_000_000), done)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert len(done) == 1
    assert "larger than 1,000,000 bytes" in (done[0].problem or "")


class Sink(MemoryStore):
    """Keeps nothing."""

    async def restore(self, id: str, **options: Any) -> Commit:
        return Commit(revision="1", count=len(options["messages"]))


class Spring(MemoryStore):
    """Has many large sessions, each made when it is read."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    async def sessions(self, *, cursor: str | None = None, limit: int = 100, **_: Any) -> Page[SessionInfo]:
        start = int(cursor or 0)
        end = min(start + limit, self.number)
        infos = tuple(SessionInfo(id=f"{at:09}", actor_id=None, count=10) for at in range(start, end))
        return Page(items=infos, cursor=str(end) if end < self.number else None)

    async def load(self, id: str, *, actor_id: str | None = None) -> Snapshot | None:
        return Snapshot(messages=[Message.user(id + "x" * 50_000) for _ in range(10)], revision="1")


async def test_no_more_than_one_session_is_in_memory():
    """0.5 MB each, 60 of them, out of one store and into another."""
    tracemalloc.start()
    try:
        done = [one async for one in import_sessions(Sink(), export_sessions(Spring(60)))]
        assert outcomes(done) == ["written"] * 60
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


async def test_the_same_key_twice_does_not_replace_itself():
    raw = signed(line_of(state={"n": 1})) + signed(line_of(state={"n": 2})).removeprefix(HEADER)
    for existing in ("fail", "skip", "replace"):
        destination = MemoryStore()
        done: list[Transferred] = []
        with pytest.raises(FormatError, match="ends before its last line"):
            await gather(import_sessions(destination, [raw], existing=existing), done)  # type: ignore[arg-type]
        assert outcomes(done)[1] == ("skipped" if existing == "skip" else "failed")
        assert (await destination.load("h")).state == {"n": 1}  # type: ignore[union-attr]


@settings(max_examples=200)
@given(garbage=st.binary(max_size=200), header=st.booleans())
async def test_garbage_is_a_format_error_and_nothing_else(garbage: bytes, header: bool):
    destination = MemoryStore()
    with pytest.raises(FormatError):
        await imported(destination, HEADER * header + garbage)
    assert await content(destination) == {}
