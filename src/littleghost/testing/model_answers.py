"""Clauses about good answers: text, reasoning, calls, reasons to stop, usage."""

from __future__ import annotations

import asyncio
from typing import Any

from littleghost.content import ToolUse
from littleghost.events import ModelEnded, ReasoningDelta, TextDelta
from littleghost.message import Message
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.model_dialect import Said
from littleghost.testing.model_server import Reply
from littleghost.testing.model_trial import ADD, HELLO, Subject, lawful, opened, request, same
from littleghost.usage import Usage

__all__ = ["CALLS", "CLAUSES"]

CLAUSES: list[Clause] = []

CALLS = Said(
    text=("I look ", "it up."),
    calls=(
        ToolUse(id="call_1", name="add", input={"a": 1, "b": -2}),
        ToolUse(
            id="call_2", name="write_file", input={"text": 'a "quoted" \\ Grüße 👋\n', "deep": [{"x": None}]}
        ),
        ToolUse(id="call_3", name="nothing", input={}),
    ),
)


@clause(CLAUSES)
async def text_comes_as_it_is_written(subject: Subject) -> None:
    """What the model has written is told while it writes on, and the answer ends with all of it."""
    said = Said(text=("Hel", "lo, ", "world."))
    async with opened(subject) as trial:
        gate = asyncio.Event()
        events = trial.dialect.answer(said)
        position = next(n for n, event in enumerate(events) if b"Hel" in event)
        trial.server.play(Reply(pieces=tuple(events), after=position + 1, gate=gate))
        heard: list[Any] = []
        async for event in trial.model.stream(HELLO):
            heard.append(event)
            if isinstance(event, TextDelta):
                gate.set()  # before that the server holds the rest back
        lawful(heard)
        same(heard[-1], said, "text")
        expect(len([e for e in heard if isinstance(e, TextDelta)]) >= 2, "the text came in one piece")


@clause(CLAUSES)
async def any_text_comes_back(subject: Subject) -> None:
    """Text of any characters and a megabyte of it arrive as they were written."""
    texts = ("", " \n\t", "Grüße 👋🏽 \u2028 \x00 \\n \"'", "<html>data: [DONE]\n\n{}", "x" * 1_000_000)
    async with opened(subject) as trial:
        for text in texts:
            said = Said(text=("Begin ", text, " end"))
            trial.server.play(said)
            same(await trial.ask(), said, f"the text {text[:20]!r}")


@clause(CLAUSES)
async def calls_come_whole(subject: Subject) -> None:
    """Several calls in one answer, with the text before them, keep ids, order and arguments of any content."""
    async with opened(subject) as trial:
        trial.server.play(CALLS)
        same(await trial.ask(request(Message.user("Hi"), tools=(ADD,))), CALLS, "three calls")


@clause(CLAUSES)
async def the_bytes_of_an_answer_may_come_in_any_pieces(subject: Subject) -> None:
    """One by one, and all at once."""
    async with opened(subject) as trial:
        whole = b"".join(trial.dialect.answer(CALLS))
        trial.server.play(Reply(pieces=tuple(bytes([byte]) for byte in whole)), Reply(pieces=(whole,)))
        for what in ("bytes one by one", "all bytes at once"):
            same(await trial.ask(), CALLS, what)


@clause(CLAUSES, needs=["arguments"])
async def arguments_that_are_no_object_are_reported(subject: Subject) -> None:
    """Such a call has no input and a reason, and the calls beside it are as they are."""
    broken = ["", '{"a": 1', '{"a": 1}}', "[1]", '"a"', "null", '{"a": NaN}', '{"a": 1, "a": 2}']
    async with opened(subject) as trial:
        for text in broken:
            if not text and "bare_calls" in trial.dialect.features:
                continue
            said = Said(
                calls=(ToolUse(id="call_1", name="add"), ToolUse(id="call_2", name="add", input={"a": 1, "b": 2})),
                arguments={0: text},
            )  # fmt: skip
            trial.server.play(said)
            last = await trial.ask()
            calls = last.message.tool_uses
            expect(set(last.malformed) == {0}, f"of {text!r} and a good call, malformed are {last.malformed}")
            expect(calls[0].input == {}, f"the arguments {text!r} became {calls[0].input}")
            expect(calls[1].input == {"a": 1, "b": 2}, "the good call is another")


@clause(CLAUSES)
async def the_reason_to_stop_is_told(subject: Subject) -> None:
    """An answer that was cut at the output limit says so; one that was not does not."""
    async with opened(subject) as trial:
        for said in (Said(text=("Once",), stop="length"), Said(text=("Once",)), CALLS):
            trial.server.play(said)
            same(await trial.ask(), said, f"stop {said.stop}")


@clause(CLAUSES, needs=["filter"])
async def a_content_filter_is_told(subject: Subject) -> None:
    """An answer that a content filter cut says so."""
    said = Said(text=("Once",), stop="filter")
    async with opened(subject) as trial:
        trial.server.play(said)
        same(await trial.ask(), said, "a filtered answer")


@clause(CLAUSES)
async def tokens_are_counted_once(subject: Subject) -> None:
    """The five counts do not overlap, whichever of them the format has inside another."""
    async with opened(subject) as trial:
        features = trial.dialect.features
        usage = Usage(
            input_tokens=30,
            output_tokens=10,
            cache_read_tokens=60 if "cache_read" in features else 0,
            cache_write_tokens=20 if "cache_write" in features else 0,
            reasoning_tokens=40 if "reasoning_tokens" in features else 0,
        )
        trial.server.play(Said(text=("Hi",), usage=usage))
        found = (await trial.ask()).usage
        expect(found == usage, f"{usage} was counted as {found}")


@clause(CLAUSES, needs=["reasoning"])
async def reasoning_is_no_text(subject: Subject) -> None:
    """Private reasoning is told and kept as such."""
    said = Said(reasoning=("Hm, ", "let me see."), text=("Hi",))
    async with opened(subject) as trial:
        trial.server.play(said)
        events = await trial.hear()
        same(events[-1], said, "an answer with reasoning")  # pyright: ignore[reportArgumentType]
        thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        expect(thought == "Hm, let me see.", f"the reasoning was told as {thought!r}")


@clause(CLAUSES, needs=["unknown_events"])
async def events_of_unknown_kinds_are_passed_over(subject: Subject) -> None:
    """A format grows; what is new in it changes nothing of the rest."""
    async with opened(subject) as trial:
        events: list[bytes] = []
        for event in trial.dialect.answer(CALLS):
            events += [*trial.dialect.unknown(), event]
        trial.server.play(Reply(pieces=tuple(events)))
        same(await trial.ask(), CALLS, "an answer among unknown events")


@clause(CLAUSES)
async def calls_run_side_by_side(subject: Subject) -> None:
    """One model answers many requests at once."""
    said = Said(text=("Hi", " there"))
    async with opened(subject) as trial:
        trial.server.always(said)
        for last in await asyncio.gather(*(trial.ask() for _ in range(12))):
            same(last, said, "one of twelve answers")


@clause(CLAUSES)
async def a_model_serves_several_event_loops(subject: Subject) -> None:
    """In turn and at once, and it can be used again after it was closed."""
    async with opened(subject) as trial:
        trial.server.always(Said(text=("Hi",)))

        async def once() -> ModelEnded:
            return await trial.ask()

        both = [asyncio.to_thread(asyncio.run, once()) for _ in range(2)]
        found = [*await asyncio.gather(*both), await asyncio.to_thread(asyncio.run, once()), await once()]
        await trial.model.aclose()
        await trial.model.aclose()
        found.append(await once())
        expect([last.message.text for last in found] == ["Hi"] * 5, "the answers are others")
