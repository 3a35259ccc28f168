"""Runs whose answer has a type: how it is asked for, taken, repaired, shown and kept."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from msgspec import Struct

from littleghost import (
    Agent,
    CapabilityError,
    ConfigurationError,
    LimitExceededError,
    MemoryStore,
    Message,
    ModelEnded,
    ModelUnavailableError,
    Output,
    OutputDelta,
    OutputError,
    OutputLimitError,
    Retrying,
    RunEnded,
    RunLimits,
    Runtime,
    SQLiteStore,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
    Toolset,
    ToolUse,
    sync,
    tool,
    transcript,
)
from littleghost.runs import shaping
from littleghost.testing import FunctionModel, ScriptedModel


class Total(Struct):
    """How many there are."""

    total: int


class Note(Struct):
    text: str


class Holding(ScriptedModel):
    """A scripted model whose provider holds answers to a schema."""

    capabilities = frozenset({"answer_format", "tool_choice"})


class Choosing(ScriptedModel):
    capabilities = frozenset({"tool_choice"})


@tool
def stock(sku: str) -> int:
    """Units on the shelf."""
    return 7


def give(*given: Any, others: tuple[str, ...] = (), text: str = "") -> Message:
    """An answer that calls ``stock`` for ``others``, then gives what was given."""
    uses = [ToolUse(id=f"s{i}", name="stock", input={"sku": sku}) for i, sku in enumerate(others)]
    uses += [ToolUse(id=f"f{i}", name="final_answer", input=each) for i, each in enumerate(given)]
    return Message.assistant([*([text] if text else []), *uses] if text else uses)


def shape(run: Any) -> list[str]:
    """The roles of a run's messages, with the marks of what the library said."""
    return [message.role + ("*" if transcript.note(message, "repair") else "") for message in run.messages]


def results(run: Any) -> list[str]:
    return [f"{result.status} {result.text}" for message in run.messages for result in message.tool_results]


# Strategies


async def test_a_provider_that_can_hold_an_answer_to_a_schema_is_given_it() -> None:
    model = Holding(['{"total": 3}'])
    run = await Agent(model, output=Total, tools=[stock]).ask("How many?")
    assert run.output == Total(3)
    assert (run.outcome, run.text, shape(run)) == ("completed", '{"total": 3}', ["user", "assistant"])
    request = model.requests[0]
    assert request.format is not None
    assert (request.format.name, request.format.description) == ("final_answer", "How many there are.")
    assert request.format.schema == Output(Total).schema
    assert request.tool_choice == "auto"
    assert [spec.name for spec in request.tools] == ["stock"]


async def test_any_other_model_gives_it_by_a_tool() -> None:
    for kind, choice in ((Choosing, "required"), (ScriptedModel, "auto")):
        model = kind([give({"total": 3})])
        run = await Agent(model, output=Total, tools=[stock]).ask("How many?")
        assert run.output == Total(3)
        assert (run.outcome, run.text) == ("completed", '{"total":3}')
        assert shape(run) == ["user", "assistant", "tool"]
        request = model.requests[0]
        assert (request.format, request.tool_choice) == (None, choice)
        spec = request.tools[-1]
        assert (spec.name, spec.schema) == ("final_answer", Output(Total).schema)
        assert spec.description == "Give the final answer. How many there are."


async def test_the_developer_can_choose() -> None:
    model = Holding([Message.assistant([ToolUse(id="1", name="count", input={"answer": 3})])])
    output = Output(int, strategy="tool", name="count", description="Just count.")
    run = await Agent(model, output=output).ask("How many?")
    assert run.output == 3
    assert model.requests[0].tools[0].description == "Give the final answer. Just count."
    never = ScriptedModel([])
    with pytest.raises(CapabilityError, match="cannot hold an answer to a schema"):
        await Agent(never, output=Output(Total, strategy="native")).ask("How many?")
    assert never.requests == []


async def test_text_stays_text() -> None:
    for agent in (Agent(ScriptedModel(["so"])), Agent(ScriptedModel(["so"]), output=str)):
        assert agent.output is None
        run = await agent.ask("Well?")
        assert run.output == run.text == "so"


async def test_no_other_tool_has_the_name() -> None:
    @tool
    def final_answer() -> int:
        """Say it."""
        return 1

    with pytest.raises(ConfigurationError, match="final_answer"):
        Agent(ScriptedModel([]), output=Total, tools=[final_answer])

    class Late(Toolset):  # what it holds is only known when it is opened
        @asynccontextmanager
        async def open(self, context: Any) -> Any:
            yield [final_answer]

    model = ScriptedModel([])
    with pytest.raises(ConfigurationError, match="another name"):
        await Agent(model, output=Total, tools=[Late()]).ask("go")
    assert model.requests == []


def test_what_is_no_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="output="):
        Agent(ScriptedModel([]), output=3)  # type: ignore[call-overload]


# Repairs


async def test_arguments_that_do_not_fit_are_an_error_that_the_model_can_act_on() -> None:
    model = ScriptedModel([give({"total": "many"}), give({"total": 3})])
    run = await Agent(model, output=Total).ask("How many?")
    assert run.output == Total(3)
    assert results(run) == [
        "error The answer cannot be used:\ntotal: Expected `int`, got `str`\nCall final_answer again, with arguments that fit.",
        "success The answer was taken.",
    ]


async def test_a_text_in_place_of_the_call_is_asked_to_be_one() -> None:
    model = ScriptedModel(["There are three.", give({"total": 3})])
    run = await Agent(model, output=Total).ask("How many?")
    assert run.output == Total(3)
    assert shape(run) == ["user", "assistant", "user*", "assistant", "tool"]
    assert "Give the answer by calling final_answer." in run.messages[2].text
    assert model.requests[1].messages[-1] == run.messages[2]


async def test_a_text_that_is_the_answer_in_json_is_taken() -> None:
    run = await Agent(ScriptedModel(['{"total": 3}']), output=Total).ask("How many?")
    assert run.output == Total(3)


async def test_a_text_that_does_not_fit_is_told_why() -> None:
    model = Holding(['{"total": "x"}', "three", '{"total": 3}'])
    run = await Agent(model, output=Total).ask("How many?")
    assert run.output == Total(3)
    assert shape(run) == ["user", "assistant", "user*", "assistant", "user*", "assistant"]
    assert run.messages[2].text == (
        "The answer cannot be used:\ntotal: Expected `int`, got `str`\nAnswer again, with JSON that fits."
    )
    assert "the answer is not JSON" in run.messages[4].text


@pytest.mark.parametrize("repairs", [0, 1, 2])
@pytest.mark.parametrize("how", ["native", "tool", "text"])
async def test_repairs_have_an_end_and_everything_is_kept(how: str, repairs: int) -> None:
    wrong = {"native": '{"total": null}', "tool": give({"total": None}), "text": "three"}[how]
    model = (Holding if how == "native" else Choosing)([wrong] * (repairs + 1))
    async with Runtime(session_store=MemoryStore()) as runtime:
        agent = Agent(model, output=Output(Total, repairs=repairs))
        run = await runtime.ask(agent, "How many?", session_id="s")
        model.assert_done()
        assert run.outcome == "failed"
        assert run.steps == repairs + 1
        assert isinstance(run.error, OutputError)
        assert isinstance(run.error, ValueError)
        assert run.error.text == ("three" if how == "text" else run.text)
        assert run.error.errors
        assert run.messages == await runtime.session("s").history()
        assert transcript.is_unfinished(run.messages)
        with pytest.raises(OutputError):
            run.output  # noqa: B018
        with pytest.raises(OutputError):
            run.check()
        for again in (copy.copy(run.error), pickle.loads(pickle.dumps(run.error))):
            assert (again.errors, again.text) == (run.error.errors, run.error.text)
        # To go on is to ask again.
        right = Holding(['{"total": 3}']) if how == "native" else Choosing([give({"total": 3})])
        resumed = await runtime.resume(Agent(right, output=Total), session_id="s")
        assert (resumed.outcome, resumed.output) == ("completed", Total(3))


async def test_a_call_with_malformed_arguments_counts_as_an_answer_that_does_not_fit() -> None:
    cut = ModelEnded(message=give({}), malformed={0: "cut off"})
    run = await Agent(ScriptedModel([cut, cut]), output=Output(Total, repairs=1)).ask("How many?")
    assert run.outcome == "failed"
    assert isinstance(run.error, OutputError)
    assert "cut off" in run.error.errors[0]


async def test_an_answer_that_was_cut_is_partial_as_any_other() -> None:
    cut = ModelEnded(message=Message.assistant('{"tot'), stop="length")
    run = await Agent(Holding([cut]), output=Total).ask("How many?")
    assert run.outcome == "partial"
    with pytest.raises(OutputLimitError):
        run.output  # noqa: B018


async def test_limits_hold_and_giving_the_answer_is_no_tool_call() -> None:
    script = [give(others=("A7",)), give({"total": 7})]
    run = await Agent(ScriptedModel(script), output=Total, tools=[stock], limits=RunLimits(tool_calls=1)).ask(
        "How many?"
    )
    assert (run.outcome, run.output) == ("completed", Total(7))
    run = await Agent(ScriptedModel(["three"] * 2), output=Total, limits=RunLimits(turns=1)).ask("How many?")
    assert run.outcome == "partial"
    with pytest.raises(LimitExceededError):
        run.output  # noqa: B018


async def test_a_type_that_breaks_is_an_answer_that_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Struct):
        total: int

        def __post_init__(self) -> None:
            raise KeyError("secret")

    run = await Agent(Holding(['{"total": 1}'] * 3), output=Broken).ask("How many?")
    assert isinstance(run.error, OutputError)
    assert "secret" not in str(run.messages) + str(run.error)
    assert "KeyError" in run.error.errors[0]


# Beside other calls


async def test_other_calls_run_and_then_the_answer_ends_the_run() -> None:
    model = ScriptedModel([give({"total": 7}, others=("A7", "B2"), text="Looking.")])
    run = await Agent(model, output=Total, tools=[stock]).ask("How many?")
    assert (run.outcome, run.output, run.text) == ("completed", Total(7), '{"total":7}')
    assert results(run) == ["success 7", "success 7", "success The answer was taken."]


async def test_the_first_answer_that_fits_counts() -> None:
    model = ScriptedModel([give({"total": "x"}, {"total": 1}, {"total": 2})])
    run = await Agent(model, output=Total).ask("How many?")
    assert run.output == Total(1)
    assert transcript.for_model(run.messages) == run.messages


async def test_an_answer_that_does_not_fit_beside_other_calls() -> None:
    model = ScriptedModel([give({"total": "x"}, others=("A7",)), give(others=("B2",)), give({"total": 7})])
    run = await Agent(model, output=Output(Total, repairs=1), tools=[stock]).ask("How many?")
    assert run.output == Total(7)


# Sessions


async def test_an_answer_comes_back_from_the_transcript() -> None:
    for model in (Holding(['{"total": 3}']), ScriptedModel([give({"total": 3})])):
        async with Runtime(session_store=MemoryStore()) as runtime:
            await runtime.ask(Agent(model, output=Total), "How many?", session_id="s")
            for other in (Holding([]), ScriptedModel([])):  # whichever way it was given
                run = await runtime.resume(Agent(other, output=Total), session_id="s")
                assert (run.outcome, run.output, run.steps) == ("completed", Total(3), 0)


async def test_a_conversation_goes_on_after_an_answer() -> None:
    model = FunctionModel(lambda request: give({"total": len(request.messages)}))
    agent = Agent(model, output=Total)
    async with Runtime(session_store=MemoryStore()) as runtime:
        totals = [(await runtime.ask(agent, "And now?", session_id="s")).output.total for _ in range(3)]
        assert totals == [1, 4, 7]
        # Repairs of one run are not those of the next, nor what the user said.
        wrong = Agent(ScriptedModel(["a", "b", give({"total": 1})]), output=Total)
        for _ in range(2):
            wrong = Agent(ScriptedModel(["a", "b", give({"total": 1})]), output=Total)
            assert (await runtime.ask(wrong, "Well?", session_id="s")).output == Total(1)


async def test_what_was_answered_in_text_is_asked_for_in_the_type() -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.ask(Agent(ScriptedModel(["There are three."])), "How many?", session_id="s")
        run = await runtime.resume(Agent(ScriptedModel([give({"total": 3})]), output=Total), session_id="s")
        assert run.output == Total(3)
        assert shape(run) == ["user", "assistant", "user*", "assistant", "tool"]


async def test_an_answer_of_another_type_is_asked_for_anew() -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.ask(
            Agent(ScriptedModel([give({"total": 3})]), output=Total), "How many?", session_id="s"
        )
        model = ScriptedModel([give({"text": "three"})])
        run = await runtime.resume(Agent(model, output=Note), session_id="s")
        assert run.output == Note("three")
        assert shape(run) == ["user", "assistant", "tool", "user*", "assistant", "tool"]


async def test_an_empty_session_has_no_answer() -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.session("s").append([], state={"a": 1})
        run = await runtime.resume(Agent(ScriptedModel([]), output=Total), session_id="s")
        assert (run.outcome, run.steps) == ("completed", 0)
        with pytest.raises(OutputError, match="no answer"):
            run.output  # noqa: B018


async def test_the_value_is_the_callers_own() -> None:
    agent = Agent(ScriptedModel([give({"a": [1]})]), output=dict[str, Any])
    async with Runtime(session_store=MemoryStore()) as runtime:
        asked = await runtime.ask(agent, "go", session_id="s")
        for run in (asked, await runtime.resume(agent, session_id="s")):
            run.output["a"].append(2)
            assert run.messages[1].tool_uses[0].input == {"a": [1]}


# Streams


def long_note(native: bool) -> Any:
    written = {"text": "some words " * 40}
    return Holding([json.dumps(written)]) if native else ScriptedModel([give(written)])


@pytest.mark.parametrize("native", [True, False])
async def test_streamed_plain_and_sync_runs_are_the_same_and_partial_values_grow(native: bool) -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        plain = await runtime.ask(Agent(long_note(native), output=Note), "go", session_id="plain")
        agent = Agent(long_note(native), output=Note)
        async with runtime.stream(agent, "go", session_id="streamed") as events:
            heard = [event async for event in events]
        streamed = events.run
        with sync.Runtime() as other:
            synced = await asyncio.to_thread(other.ask, Agent(long_note(native), output=Note), "go")
        for run in (streamed, synced):
            for name in ("outcome", "text", "messages", "usage", "steps", "error", "output"):
                assert getattr(run, name) == getattr(plain, name)
        assert await runtime.session("plain").journal() == await runtime.session("streamed").journal()
    assert [event.seq for event in heard] == list(range(1, len(heard) + 1))
    partial = [event.value for event in heard if isinstance(event, OutputDelta)]
    assert len(partial) > 5
    texts = [value["text"] for value in partial if value]
    assert all(after.startswith(before) and after != before for before, after in pairwise(texts))
    assert Note(texts[-1]) == plain.output
    last = heard[-1]
    assert isinstance(last, RunEnded)
    assert last.text == plain.text


async def test_nothing_is_read_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shaping, "Preview", None)
    run = await Agent(long_note(native=True), output=Note).ask("go")
    assert run.outcome == "completed"


async def test_a_retry_voids_what_was_shown_and_other_calls_are_no_answer() -> None:
    async def events(request: Any) -> Any:
        yield TextDelta(text='{"not": "the answer"}')
        yield ToolCallStarted(index=0, id="f0", name="final_answer")
        yield ToolCallArguments(index=0, arguments='{"text": "it is too long to be true')
        yield Retrying(attempt=1, delay=0.0, error="ModelUnavailableError")
        yield ToolCallStarted(index=0, id="s0", name="stock")
        yield ToolCallArguments(index=0, arguments='{"sku": "a very long article number"}')
        yield ToolCallStarted(index=1, id="f1", name="final_answer")
        yield ToolCallArguments(index=1, arguments='{"text": "it is over')
        yield ToolCallStarted(index=2, id="f2", name="final_answer")
        yield ToolCallArguments(index=2, arguments=" and what another call says")
        yield ToolCallArguments(index=1, arguments='"}')
        yield ModelEnded(message=give({"text": "it is over"}, {"text": "a second answer"}, others=("A7",)))

    async with (
        Runtime() as runtime,
        runtime.stream(Agent(FunctionModel(events), output=Note, tools=[stock]), "go") as stream,
    ):
        heard = [event async for event in stream]
    shown = [event.value for event in heard if isinstance(event, OutputDelta)]
    assert shown == [{"text": "it is too long to be true"}, {"text": "it is over"}]
    assert stream.run.output == Note("it is over")


async def test_a_run_that_fails_raises_its_own_error() -> None:
    run = await Agent(ScriptedModel([ModelUnavailableError("down")]), output=Total).ask("How many?")
    assert run.outcome == "failed"
    with pytest.raises(ModelUnavailableError):
        run.output  # noqa: B018


async def test_with_a_store_on_disk_that_is_read_again(tmp_path: Any) -> None:
    agent = Agent(Holding(["three", '{"total": 3}']), output=Total)
    async with SQLiteStore(tmp_path / "s.db") as store, Runtime(session_store=store) as runtime:
        first = await runtime.ask(agent, "How many?", session_id="s")
    async with SQLiteStore(tmp_path / "s.db") as store, Runtime(session_store=store) as runtime:
        run = await runtime.resume(Agent(Holding([]), output=Total), session_id="s")
        assert (run.output, run.messages) == (first.output, first.messages)
        assert shape(run) == ["user", "assistant", "user*", "assistant"]
