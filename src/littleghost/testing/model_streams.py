"""Clauses about bad streams: cut, malformed, doubled, out of order, silent, endless; and about going away from one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

from littleghost.errors import ModelError, ModelProtocolError, ModelUnavailableError
from littleghost.events import ModelEnded, Retrying, TextDelta
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.model_answers import CALLS
from littleghost.testing.model_dialect import Said
from littleghost.testing.model_server import Reply
from littleghost.testing.model_trial import HELLO, ModelTrial, Subject, opened, request, same

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

CUTS = 60
"""At about how many places an answer is cut."""


def _places(pieces: list[bytes]) -> Iterator[int]:
    """Where to cut: around the border of each event, and evenly inside."""
    total, border = sum(map(len, pieces)), 0
    places = set(range(0, total, max(1, total // CUTS)))
    for piece in pieces:
        border += len(piece)
        places |= {border - 2, border - 1, border}
    return iter(sorted(place for place in places if 0 <= place < total))


async def _never_another(trial: ModelTrial, reply: Reply, said: Said, what: str) -> bool:
    """Expect that what the server sends is taken for ``said`` or for nothing; return which."""
    trial.server.play(reply)
    try:
        last = await trial.ask()
    except ModelError:
        return False
    same(last, said, what)
    return True


@clause(CLAUSES)
async def a_cut_answer_is_never_taken_for_one_that_ended(subject: Subject) -> None:
    """Wherever it breaks off, with the end of the stream or of the connection: it is the whole answer or an error."""
    async with opened(subject, retries=0) as trial:
        pieces = trial.dialect.answer(CALLS)
        whole = b"".join(pieces)
        enough = len(b"".join(pieces[: trial.dialect.finishes(CALLS)]))
        for number, place in enumerate(_places(pieces)):
            end: Any = ("whole", "cut")[number % 2]
            reply = Reply(pieces=(whole[:place],), end=end)
            good = await _never_another(trial, reply, CALLS, f"cut ({end}) after {place} bytes")
            expect(
                place >= enough - 4 or not good, f"an answer cut after {place} of {enough} bytes was taken"
            )
        expect(
            await _never_another(trial, Reply(pieces=(whole[:enough],)), CALLS, "all that matters"),
            "an answer that has said why it stopped is not taken for whole",
        )


@clause(CLAUSES)
async def a_cut_answer_is_asked_for_again(subject: Subject) -> None:
    """With an event that says that what came of it is void."""
    said = Said(text=("Hel", "lo"))
    async with opened(subject) as trial:
        pieces = trial.dialect.answer(said)
        position = next(n for n, piece in enumerate(pieces) if b"Hel" in piece) + 1
        half = tuple(pieces[:position])
        trial.server.play(Reply(pieces=half, end="cut"), Reply(pieces=half), said)
        events = await trial.hear()
        again = [event for event in events if isinstance(event, Retrying)]
        expect([event.attempt for event in again] == [1, 2], f"it was made again {len(again)} times")
        expect(all(event.delay >= 0 and event.error for event in again), "a retry has no wait or no reason")
        expect(isinstance(events[0], TextDelta), "the first piece was not told")
        same(cast("ModelEnded", events[-1]), said, "the answer after two that were cut")


@clause(CLAUSES)
async def a_cut_answer_fails_in_the_end(subject: Subject) -> None:
    """As unavailable, when it was made again as often as is allowed."""
    async with opened(subject) as trial:
        pieces = trial.dialect.answer(CALLS)
        trial.server.always(Reply(pieces=tuple(pieces[: len(pieces) // 2]), end="cut"))
        await trial.fails(ModelUnavailableError, "an answer that is always cut")
        expect(len(trial.server.requests) == 3, f"it was asked for {len(trial.server.requests)} times")


@clause(CLAUSES)
async def what_is_no_event_is_no_answer(subject: Subject) -> None:
    """Rubbish in place of an event before the end is an error, and worth another attempt."""
    said = Said(text=("Hel", "lo"))
    rubbish = [b"{]", b'{"half": ', b"7", b"\xff\xfe{}", b"[" * 50_000, b'"text"', b"null"]
    async with opened(subject) as trial:
        pieces = trial.dialect.answer(said)
        for payload in rubbish:
            bad = Reply(pieces=(pieces[0], trial.dialect.frame(payload), *pieces[1:]))
            trial.server.play(bad, said)
            events = await trial.hear()
            same(cast("ModelEnded", events[-1]), said, f"the answer after {payload[:10]!r}")
            expect(any(isinstance(event, Retrying) for event in events), f"{payload[:10]!r} was passed over")


@clause(CLAUSES)
async def an_empty_stream_is_no_answer(subject: Subject) -> None:
    """A stream without an event, and a body without a byte, are not an empty answer."""
    async with opened(subject, retries=0) as trial:
        for reply in (Reply(), Reply(pieces=(b"\n\n",)), Reply(end="cut")):
            trial.server.play(reply)
            await trial.fails(ModelError, "an empty stream")


@clause(CLAUSES)
async def a_web_page_is_no_answer(subject: Subject) -> None:
    """A page that comes with the status of success, from a server that is another, is an error."""
    page = Reply(pieces=(b"<!DOCTYPE html><html>Welcome</html>",), content_type="text/html")
    async with opened(subject, retries=0) as trial:
        trial.server.play(page)
        await trial.fails(ModelProtocolError, "a web page")


@clause(CLAUSES, needs=["ordered"])
async def doubled_and_exchanged_events_make_no_other_answer(subject: Subject) -> None:
    """Where the format shows that an event came twice or too early, it is put right or refused."""
    async with opened(subject, retries=0) as trial:
        pieces = trial.dialect.answer(CALLS)
        telling = [n for n, piece in enumerate(pieces) if trial.dialect.shows_order(piece)]
        for n in telling:
            doubled = [*pieces[: n + 1], *pieces[n:]]
            await _never_another(trial, Reply(pieces=tuple(doubled)), CALLS, f"event {n} twice")
            if n:
                moved = [*pieces[: n - 1], pieces[n], pieces[n - 1], *pieces[n + 1 :]]
                await _never_another(trial, Reply(pieces=tuple(moved)), CALLS, f"event {n} too early")
            lost = [*pieces[:n], *pieces[n + 1 :]]
            await _never_another(trial, Reply(pieces=tuple(lost)), CALLS, f"event {n} missing")


@clause(CLAUSES, needs=["mid_stream_errors"])
async def an_error_within_an_answer_is_an_error(subject: Subject) -> None:
    """A server that fails while it answers is asked again."""
    said = Said(text=("Hel", "lo"))
    async with opened(subject) as trial:
        pieces = trial.dialect.answer(said)
        position = next(n for n, piece in enumerate(pieces) if b"Hel" in piece) + 1
        trial.server.play(
            Reply(pieces=(*pieces[:position], trial.dialect.broken("overloaded for a moment"))), said
        )
        events = await trial.hear()
        again = [event for event in events if isinstance(event, Retrying)]
        expect(len(again) == 1, f"it was made again {len(again)} times")
        same(cast("ModelEnded", events[-1]), said, "the answer after one that failed")


@clause(CLAUSES, needs=["unbounded_events"])
async def an_event_without_an_end_is_refused(subject: Subject) -> None:
    """Not kept in memory for as long as the server likes."""
    chunk = b"x" * (1024 * 1024)
    first = b"data: " + chunk
    async with opened(subject, retries=0) as trial:
        trial.server.play(Reply(pieces=(first, *[chunk] * 40)))
        await trial.fails(ModelProtocolError, "an event of forty megabytes")


@clause(CLAUSES)
async def silence_ends_with_the_time_of_the_call(subject: Subject) -> None:
    """Before the answer and within it, and a server that only drips is not endless either."""
    async with opened(subject) as trial:
        pieces = trial.dialect.answer(Said(text=("Hel", "lo")))
        position = next(n for n, piece in enumerate(pieces) if b"Hel" in piece) + 1
        half = tuple(pieces[:position])
        for what, reply in {
            "silence": Reply(end="silence"),
            "silence within an answer": Reply(pieces=half, end="silence"),
            "a dripping answer": Reply(pieces=half, again=0.02),
        }.items():
            trial.server.play(reply)
            await trial.fails(ModelUnavailableError, what, request(*HELLO.messages, timeout=0.3))


@clause(CLAUSES)
async def silence_ends_an_attempt(subject: Subject) -> None:
    """Where the call has all the time it wants, an attempt has not: a server that is silent too long is asked again."""
    said = Said(text=("Hi",))
    async with opened(subject, timeout=0.3) as trial:
        trial.server.play(Reply(end="silence"), said)
        events = await trial.hear()
        expect(isinstance(events[0], Retrying), "the attempt did not fail")
        same(cast("ModelEnded", events[-1]), said, "the answer after silence")


async def _half_heard(trial: ModelTrial) -> AsyncGenerator[Any]:
    pieces = trial.dialect.answer(Said(text=("Hel", "lo")))
    position = next(n for n, piece in enumerate(pieces) if b"Hel" in piece) + 1
    trial.server.play(Reply(pieces=tuple(pieces[:position]), end="silence"))
    return cast("AsyncGenerator[Any]", trial.model.stream(HELLO))


@clause(CLAUSES)
async def cancelling_hangs_up(subject: Subject) -> None:
    """At once, so that the provider stops writing what nobody reads."""
    async with opened(subject) as trial:
        stream = await _half_heard(trial)

        async def read() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(read())
        await asyncio.wait_for(trial.server.sent.wait(), 20)
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        expect(isinstance(ended, asyncio.CancelledError), f"the call ended by {ended!r}")
        await asyncio.wait_for(trial.server.gone.wait(), 20)


@clause(CLAUSES)
async def leaving_early_hangs_up(subject: Subject) -> None:
    """A stream that is closed by its reader is closed to the server."""
    async with opened(subject) as trial:
        stream = await _half_heard(trial)
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        await stream.aclose()
        await asyncio.wait_for(trial.server.gone.wait(), 20)
