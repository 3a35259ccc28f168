"""Runs of conversations that are too long for their model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from littleghost import (
    Agent,
    CancellationToken,
    Compacted,
    Compaction,
    ConfigurationError,
    ContextOverflowError,
    LimitExceededError,
    MemoryStore,
    Message,
    ModelEnded,
    ModelStarted,
    ModelUnavailableError,
    Prices,
    RunCancelled,
    RunLimits,
    Runtime,
    Session,
    TextDelta,
    ToolUse,
    Usage,
    UsageReported,
    sync,
    tool,
    transcript,
)
from littleghost.runs.compaction import HEADING, INSTRUCTIONS, LEFT_OUT, REQUEST
from littleghost.testing import FunctionModel, ScriptedModel

WINDOW = 4000
"""Tokens: 16 KB of text."""

PAGE = "x" * 1600
"""About a tenth of the window."""


class Library:
    """A model with a small window: it reads on until it has read ten pages, and writes summaries."""

    def __init__(self, window: int = WINDOW, pages: int = 20) -> None:
        self.window, self.pages = window, pages
        self.summaries: list[str] = []
        self.asked: list[list[Message]] = []
        self.refused = 0
        self.on_summary: Any = None
        self.model = FunctionModel(self.reply)

    def reply(self, request: Any) -> Any:
        messages = request.messages
        size = sum(len(str(message.to_dict())) for message in messages) // 4
        if size > self.window:
            self.refused += 1
            raise ContextOverflowError("too long", limit=None, tokens=None)
        if messages[0].role == "system" and messages[0].text == INSTRUCTIONS:
            assert request.tools == ()
            if self.on_summary is not None:
                done = self.on_summary()
                if done is not None:
                    return done
            self.summaries.append(messages[1].text)
            return ModelEnded(
                message=Message.assistant(f"summary {len(self.summaries)}"),
                usage=Usage(input_tokens=size, output_tokens=10),
            )
        self.asked.append(messages)
        read = sum(message.role == "assistant" for message in self.whole(messages))
        if read < self.pages:
            answer: Any = Message.assistant(
                [ToolUse(id=f"c{len(self.asked)}", name="page", input={"number": len(self.asked)})]
            )
        else:
            answer = Message.assistant("All read.")
        return ModelEnded(message=answer, usage=Usage(input_tokens=size, output_tokens=10))

    def whole(self, messages: list[Message]) -> list[Message]:
        return [Message.assistant("")] * (len(self.asked) - 1)


@tool
def page(number: int) -> str:
    """One page."""
    return f"page {number}: {PAGE}"


def plan(**options: Any) -> Compaction:
    return Compaction(**{"window": WINDOW, **options})


async def read(
    library: Library, store: MemoryStore, compaction: Compaction | None = None, **options: Any
) -> Any:
    agent = Agent(library.model, instructions="Read.", tools=[page], compaction=compaction or plan())
    async with Runtime(session_store=store) as runtime:
        return await runtime.ask(agent, "Read all pages.", session_id="s", **options)


async def test_the_oldest_is_summarised_before_the_window_overflows_and_the_stored_turns_stay() -> None:
    library, store = Library(), MemoryStore()
    run = await read(library, store)
    assert (run.outcome, run.text, run.steps) == ("completed", "All read.", 21)
    assert library.refused == 0
    assert 2 <= len(library.summaries) <= 8
    stored = await Session(id="s", store=store).history()
    assert [message.role for message in stored] == ["user", *["assistant", "tool"] * 20, "assistant"]
    assert stored[2].tool_results[0].text.startswith("page 1: ")
    assert run.messages == list(stored)
    shown = library.asked[-1]
    assert [message.role for message in shown[:3]] == ["system", "user", "assistant"]
    assert shown[1].text.startswith(f"{HEADING}\n\nsummary {len(library.summaries)}")
    assert shown[1].text.endswith(f"{REQUEST}Read all pages."), "the request itself is not left to a summary"
    for view in library.asked:
        assert transcript.for_model(view) == view
    # The later ones are made of the one before and of what came since.
    assert library.summaries[0].startswith("The conversation:\n\nuser: Read all pages.")
    for number, told in enumerate(library.summaries[1:], 1):
        assert told.startswith(
            f"Notes on what came before:\n\nsummary {number}\n\nWhat came then:\n\nassistant calls"
        )
    read_in_summaries = [
        number for number in range(1, 21) if any(f"page {number}: " in told for told in library.summaries)
    ]
    in_view = [number for number in range(1, 21) if f"page {number}: " in str(shown)]
    assert sorted(read_in_summaries + in_view) == list(range(1, 21)), (
        "each page once: in a summary or in the view"
    )


async def test_it_is_counted_and_told() -> None:
    library, store = Library(), MemoryStore()
    agent = Agent(library.model, tools=[page], compaction=plan())
    async with (
        Runtime(session_store=store) as runtime,
        runtime.stream(agent, "Read.", session_id="s") as events,
    ):
        told = [event async for event in events]
    run = events.run
    assert run.usage.output_tokens == 10 * (21 + len(library.summaries))
    starts = [event for event in told if isinstance(event, ModelStarted)]
    assert [event.purpose for event in starts].count("summary") == len(library.summaries)
    assert [event.step for event in starts if event.purpose == "answer"] == list(range(1, 22))
    compacted = [event for event in told if isinstance(event, Compacted)]
    assert len(compacted) == len(library.summaries)
    assert all(event.before > 0.85 * WINDOW > event.after for event in compacted)
    assert [event.count for event in compacted] == sorted({event.count for event in compacted})
    assert "summary" not in "".join(event.text for event in told if isinstance(event, TextDelta))
    assert len([event for event in told if isinstance(event, UsageReported)]) == len(starts)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))


async def test_streamed_plain_and_synchronous_are_the_same() -> None:
    async def plain(runtime: Runtime, agent: Agent) -> Any:
        return await runtime.ask(agent, "Read.", session_id="s")

    async def streamed(runtime: Runtime, agent: Agent) -> Any:
        async with runtime.stream(agent, "Read.", session_id="s") as events:
            async for _ in events:
                pass
        return events.run

    async def synchronous(runtime: Runtime, agent: Agent) -> Any:
        return sync.Runtime(session_store=runtime.session_store).ask(agent, "Read.", session_id="s")

    seen: list[Any] = []
    for ask in (plain, streamed, synchronous):
        library, store = Library(), MemoryStore()
        async with Runtime(session_store=store) as runtime:
            run = await ask(runtime, Agent(library.model, tools=[page], compaction=plan()))
        notes = (await Session(id="s", store=store).metadata())["littleghost"]
        seen.append((run.messages, run.usage, run.steps, library.summaries, library.asked, notes["summary"]))
    assert seen[0] == seen[1] == seen[2]


async def test_without_it_nothing_changes() -> None:
    library = Library()
    run = await Agent(library.model, tools=[page]).ask("Read.")
    assert run.outcome == "failed"
    assert isinstance(run.error, ContextOverflowError)
    assert library.summaries == []
    assert library.refused == 1


async def test_a_short_conversation_is_shown_whole() -> None:
    plain, with_it = ScriptedModel(["a", "b"]), ScriptedModel(["a", "b"])
    stores = [MemoryStore(), MemoryStore()]
    for model, store, compaction in ((plain, stores[0], None), (with_it, stores[1], plan())):
        async with Runtime(session_store=store) as runtime:
            agent = Agent(model, compaction=compaction)
            for _ in range(2):
                await runtime.ask(agent, "hello", session_id="s")
    assert plain.requests == with_it.requests
    notes = [(await Session(id="s", store=store).metadata())["littleghost"].keys() for store in stores]
    assert notes[0] == notes[1]


async def test_the_next_question_and_another_process_use_the_summary_again() -> None:
    library, store = Library(pages=9), MemoryStore()
    await read(library, store)
    summaries, before = len(library.summaries), len(library.asked)
    assert summaries == 1
    library.pages = 0
    again = await read(library, store)
    assert again.text == "All read."
    assert len(library.summaries) == summaries
    assert library.asked[before][1].text.startswith(f"{HEADING}\n\nsummary 1")
    assert library.asked[before][-1].text == "Read all pages."
    assert library.asked[before][1].text.endswith("summary 1"), "the request is shown in its place"
    noted = (await Session(id="s", store=store).metadata())["littleghost"]["summary"]
    assert noted["text"] == "summary 1"


@pytest.mark.parametrize(
    "change", ["replaced", "forked before it", "forked after it", "noted by someone else"]
)
async def test_a_summary_is_used_only_for_just_what_it_stands_for(change: str) -> None:
    library, store = Library(pages=9), MemoryStore()
    await read(library, store)
    session = Session(id="s", store=store)
    count = (await session.metadata())["littleghost"]["summary"]["count"]
    if change == "replaced":
        stored = await session.journal()
        await session.replace([Message.user("Read something else."), *stored[1:]])
    elif change == "noted by someone else":
        await session.append([], metadata={"littleghost": {"summary": {"text": 5}}, "mine": 1})
    else:
        session = await session.fork("f", at=2 if change == "forked before it" else count + 4)
    library.pages, library.window = 0, 100_000
    agent = Agent(library.model, instructions="Read.", tools=[page], compaction=plan(window=100_000))
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(agent, "And?", session_id=session.id)
    assert (HEADING in library.asked[-1][1].text) == (change == "forked after it")
    noted = (await Session(id=session.id, store=store).metadata())["littleghost"]
    assert ("summary" in noted) == (change == "forked after it"), (
        "what it said must not outlive what it stood for"
    )


async def test_after_the_provider_says_so_there_is_one_compaction_and_one_more_call() -> None:
    library, store = Library(window=2000), MemoryStore()
    run = await read(library, store, plan(window=200_000))
    assert (run.outcome, run.text) == ("completed", "All read.")
    assert 1 <= library.refused <= 2, "it learns how large the window is"
    assert library.summaries


@pytest.mark.parametrize("fields", [{"limit": 2000}, {"tokens": 8000, "limit": 6000}, {}])
async def test_a_second_overflow_fails_the_run_with_that_error(fields: dict[str, int]) -> None:
    def overflow(number: int) -> Exception:
        return ContextOverflowError(f"too long {number}", **fields)

    script = [
        Message.assistant([ToolUse(id="a", name="page", input={"number": 1})]),
        overflow(1),
        "notes",
        overflow(2),
    ]
    with ScriptedModel(script) as model:
        run = await Agent(model, tools=[page], compaction=Compaction()).ask("Read.")
    assert run.outcome == "failed"
    assert str(run.error) == "too long 2"


async def test_what_cannot_be_made_shorter_is_not_sent_again() -> None:
    with ScriptedModel([ContextOverflowError("too long")]) as model:
        run = await Agent(model, compaction=Compaction()).ask("Short.")
    assert str(run.error) == "too long"


async def test_a_summary_that_fails_leaves_the_conversation_whole() -> None:
    library, store = Library(pages=9), MemoryStore()
    failures = iter([ModelUnavailableError("overloaded")])

    def fail() -> None:
        raise next(failures)

    library.on_summary = fail
    run = await read(library, store, plan(threshold=0.5))
    assert run.outcome == "completed"
    assert library.summaries == []
    assert len(library.asked) == 10
    assert [message.role for message in library.asked[-1]][:3] == ["system", "user", "assistant"]
    assert library.asked[-1][1].text == "Read all pages."
    assert "summary" not in (await Session(id="s", store=store).metadata())["littleghost"]


@pytest.mark.parametrize("nothing", ["", ModelEnded(message=Message.assistant("no"), stop="filter")])
async def test_no_summary_after_an_overflow_fails_the_run_with_the_overflow(nothing: Any) -> None:
    library = Library(window=2000)
    library.on_summary = lambda: nothing
    run = await read(library, MemoryStore(), plan(window=200_000))
    assert run.outcome == "failed"
    assert isinstance(run.error, ContextOverflowError)
    assert "no summary" in str(run.error.__cause__)


@pytest.mark.parametrize("forced", [False, True])
async def test_it_can_be_cancelled(forced: bool) -> None:
    library, store, token = Library(window=2000 if forced else WINDOW), MemoryStore(), CancellationToken()

    async def hang() -> Any:
        token.cancel("enough")
        await asyncio.Event().wait()

    library.on_summary = hang
    run = await read(library, store, plan(window=200_000) if forced else None, cancellation=token)
    assert run.outcome == "cancelled"
    assert isinstance(run.error, RunCancelled)
    assert transcript.unsettled(run.messages) == ()
    assert run.steps == len(library.asked) + library.refused
    library.on_summary, library.pages = None, 0
    agent = Agent(library.model, tools=[page], compaction=plan())
    async with Runtime(session_store=store) as runtime:
        resumed = await runtime.resume(agent, session_id="s")
    assert resumed.text == "All read."


async def test_its_tokens_count_against_the_limits() -> None:
    library, store = Library(), MemoryStore()
    whole = await read(library, MemoryStore())
    used = whole.usage.total_tokens
    library = Library()
    run = await read(library, store, limits=RunLimits(tokens=used // 3, turns=21))
    assert run.outcome == "partial"
    assert isinstance(run.error, LimitExceededError)
    assert run.error.limit == "tokens"
    assert run.steps == len(library.asked)
    library = Library()
    assert (await read(library, MemoryStore(), limits=RunLimits(turns=21))).outcome == "completed", (
        "no turn is taken"
    )


async def test_its_cost_is_the_writer_s() -> None:
    dollar = {"prices": {"input": 1_000_000, "output": 1_000_000}}
    prices = Prices({"providers": {"littleghost": {"models": {"writer": dollar, "reply": dollar}}}})

    def writer(request: Any) -> ModelEnded:
        return ModelEnded(message=Message.assistant("notes"), usage=Usage(output_tokens=1))

    library = Library()
    agent = Agent(library.model, tools=[page], compaction=plan(model=FunctionModel(writer)))
    async with Runtime(prices=prices) as runtime:
        run = await runtime.ask(agent, "Read.")
    assert run.outcome == "completed"
    assert run.cost == run.usage.total_tokens


async def test_a_model_of_its_own_writes_summaries() -> None:
    library = Library()
    writer = FunctionModel(lambda request: "from the writer")
    run = await read(library, MemoryStore(), plan(model=writer, instructions="Sum up."))
    assert run.outcome == "completed"
    assert library.summaries == []
    assert {request.messages[0].text for request in writer.requests} == {"Sum up."}
    assert HEADING in library.asked[-1][1].text
    with pytest.raises(ConfigurationError, match="nothing-known"):
        await Agent(library.model, compaction=plan(model="nothing-known:x")).ask("Hi")


async def test_a_history_of_many_windows_is_summarised_piece_by_piece() -> None:
    library, store = Library(pages=0), MemoryStore()
    session = Session(id="s", store=store)
    turns = [[Message.user(f"{number}. {PAGE}"), Message.assistant("ok")] for number in range(100)]
    await session.append([message for turn in turns for message in turn])
    run = await read(library, store)
    assert run.outcome == "completed"
    assert 8 < len(library.summaries) < 60
    assert library.refused == 0
    assert all(any(f"user: {number}. " in told for told in library.summaries) for number in range(80))


async def test_a_single_result_longer_than_the_window_is_shown_without_its_middle() -> None:
    library, store = Library(pages=1), MemoryStore()

    @tool(name="page")
    def long(number: int) -> str:
        """One page."""
        return "begin " + "x" * 100_000 + " end"

    agent = Agent(library.model, tools=[long], compaction=plan())
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(agent, "Read.", session_id="s", limits=RunLimits())
    assert run.text == "All read."
    assert library.refused == 0
    shown = library.asked[-1][-1].tool_results[0].text
    assert shown.startswith("begin")
    assert shown.endswith(" end")
    assert LEFT_OUT.partition("{}")[2] in shown


async def test_instructions_within_the_conversation_are_shown_as_they_are() -> None:
    library, store = Library(), MemoryStore()
    await Session(id="s", store=store).append(
        [Message.developer("Metres only."), Message.user("Hello"), Message.assistant("Hi")]
    )
    run = await read(library, store)
    assert run.outcome == "completed"
    assert library.summaries
    assert all("Metres" not in told for told in library.summaries)
    assert library.asked[-1][1] == Message.developer("Metres only.")
    assert HEADING in library.asked[-1][2].text


async def test_no_summary_is_made_that_would_gain_next_to_nothing() -> None:
    library = Library(pages=5)

    @tool(name="page")
    def short(number: int) -> str:
        """One page."""
        return "short"

    told = "x" * int(WINDOW * 0.85 * 4)
    run = await Agent(library.model, instructions=told, tools=[short], compaction=plan()).ask("Read.")
    assert (run.outcome, run.steps) == ("completed", 6)
    assert library.summaries == [], "one for each step"


async def test_the_window_is_the_model_s_where_it_says_so() -> None:
    library = Library()
    library.model.context_window = WINDOW
    run = await read(library, MemoryStore(), Compaction())
    assert run.outcome == "completed"
    assert library.refused == 0
    assert library.summaries


async def test_what_the_provider_counts_corrects_the_estimate() -> None:
    counted = 3.0

    def reply(request: Any) -> Any:
        size = sum(len(str(message.to_dict())) for message in request.messages) // 4
        if request.messages[0].role == "system":
            summaries.append(size)
            return "notes"
        asked.append(size)
        answer: Any = (
            Message.assistant([ToolUse(id="a", name="page", input={"number": len(asked)})])
            if len(asked) < 20
            else "Done."
        )
        message = answer if isinstance(answer, Message) else Message.assistant(answer)
        return ModelEnded(message=message, usage=Usage(input_tokens=int(size * counted)))

    summaries: list[int] = []
    asked: list[int] = []
    run = await Agent(FunctionModel(reply), tools=[page], compaction=plan()).ask("Go")
    assert run.outcome == "completed"
    assert max(asked) * counted < WINDOW * 1.1
    assert summaries


def test_only_a_compaction_is_one() -> None:
    with pytest.raises(ConfigurationError, match="compaction must be"):
        Agent(ScriptedModel([]), compaction=0.5)  # type: ignore[arg-type]
    assert Agent(ScriptedModel([]), compaction=plan()).compaction == plan()
