"""The loop without anything around it, where calls wait: whatever is answered when, and wherever it dies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given as having
from hypothesis import settings
from hypothesis import strategies as some

from littleghost import (
    Message,
    RunCancelled,
    RunLimits,
    SessionSuspendedError,
    Text,
    ToolResult,
    ToolUse,
    transcript,
)
from littleghost.events import ModelEnded
from littleghost.runs.effects import (
    Ask,
    AwaitTool,
    Book,
    CallModel,
    CheckCalls,
    CommitMessages,
    Ending,
    Given,
    Interrupted,
    StartTools,
    ToolTraits,
    Waiting,
)
from littleghost.runs.loop import turns
from littleghost.runs.notes import Answer, Notes

TOOLS = {
    "plain": ToolTraits(),
    "again": ToolTraits(idempotent=True),
    "alone": ToolTraits(exclusive=True),
    "ask": ToolTraits(asks=True, checked=True),
    "ask_again": ToolTraits(idempotent=True, asks=True, checked=True),
    "outside": ToolTraits(external=True),
    "inner": ToolTraits(idempotent=True),
}


class Killed(Exception):
    """The process died."""


class World:
    """A store and what happened outside of it, which outlive the process."""

    def __init__(self, granularity: Any = "call") -> None:
        self.granularity = granularity
        self.messages: list[Message] = []
        self.notes = Notes()
        self.started: Counter[str] = Counter()
        self.asked: set[str] = set()
        self.effects: list[str] = []
        self.inner_done: set[str] = set()

    def run(
        self,
        *uses: ToolUse,
        new: str | None = None,
        given: Given | None = None,
        die_at: int | None = None,
        pick: Any = lambda running: running[0],
        stop_at: int | None = None,
    ) -> Ending:
        """Run the loop: the model calls ``uses`` once and then answers."""
        book = Book(
            messages=list(self.messages), stored=len(self.messages), notes=self.notes, noted=self.notes
        )
        machine = turns(
            book,
            None if new is None else Message.user(new),
            TOOLS,
            RunLimits(concurrency=2),
            granularity=self.granularity,
            given=given or Given(),
        )
        outcome: Any = None
        running: list[ToolUse] = []
        count = 0
        answers: Any = {}
        while True:
            try:
                effect = machine.send(outcome)
            except StopIteration as end:
                return end.value
            if die_at == count:
                raise Killed
            count += 1
            outcome = None
            match effect:
                case CommitMessages(messages):
                    outcome = len(self.messages)
                    self.messages += messages
                    self.notes = book.noted = book.notes
                    book.stored = len(self.messages)
                    self.effects.append(
                        "commit " + " ".join(block.role for block in messages) if messages else "commit notes"
                    )
                case CallModel():
                    called = any(message.tool_uses for message in self.messages)
                    said = [Text("Done.")] if called else [Text("Well."), *uses]
                    outcome = ModelEnded(message=Message.assistant(said))
                case CheckCalls(calls):
                    outcome = {call.id: Ask(call) if call.name.startswith("ask") else call for call in calls}
                case StartTools(calls, _, answers):
                    for call in calls:
                        self.started[call.id] += 1
                        self.effects.append(f"start {call.id}")
                    running += calls
                case AwaitTool():
                    if stop_at is not None and count > stop_at:
                        outcome = Interrupted(RunCancelled("stop"))
                        continue
                    call = pick(running)
                    running.remove(call)
                    if call.name == "inner" and "x" not in answers.get(call.id, {}):
                        outcome = Waiting(call.id, (ToolUse(id="x", name="ask"),))
                    else:
                        outcome = ToolResult(tool_use_id=call.id, content=[Text("ok")])
                case _:
                    pass

    def results(self) -> dict[str, ToolResult]:
        return {result.tool_use_id: result for message in self.messages for result in message.tool_results}


def use(name: str, id: str) -> ToolUse:
    return ToolUse(id=id, name=name, input={"sku": "A7"})


def test_what_waits_is_committed_with_the_answer_and_others_run_first() -> None:
    world = World()
    ending = world.run(use("ask", "a"), use("plain", "p"), use("outside", "o"), new="go")
    assert (ending.outcome, [call.id for call in ending.pending]) == ("suspended", ["a", "o"])
    assert world.effects == ["commit user", "commit assistant", "start p", "commit tool"]
    assert set(world.notes.approvals["1"]) == {"a", "o"}


def test_an_answer_is_committed_before_its_tool_starts() -> None:
    world = World()
    world.run(use("ask", "a"), use("ask", "b"), new="go")
    world.effects.clear()
    ending = world.run(given=Given(approvals={"a": Answer()}))
    assert world.effects == ["commit notes", "start a", "commit tool"]
    assert [call.id for call in ending.pending] == ["b"]
    world.effects.clear()
    ending = world.run(given=Given(approvals={"b": Answer(approved=False)}))
    assert world.effects == ["commit tool", "commit assistant"]
    assert ending.outcome == "completed"
    assert world.notes == Notes()


def test_speaking_while_something_waits_changes_nothing() -> None:
    world = World()
    world.run(use("ask", "a"), new="go")
    before = list(world.effects)
    with pytest.raises(SessionSuspendedError) as caught:
        world.run(new="and?")
    assert [call.id for call in caught.value.pending] == ["a"]
    assert world.effects == before


def test_a_stop_leaves_waiting_what_waits() -> None:
    world = World()
    ending = world.run(use("ask", "a"), use("plain", "p"), new="go", stop_at=0)
    assert ending.outcome == "cancelled"
    assert set(world.results()) == {"p"}
    assert [call.id for call in world.run().pending] == ["a"]


def test_without_answers_nothing_is_committed_again() -> None:
    world = World()
    world.run(use("ask", "a"), use("inner", "i"), new="go")
    before = list(world.effects)
    assert [call.id for call in world.run().pending] == ["a", "i/x"]
    assert world.effects == before


KINDS = some.sampled_from(sorted(TOOLS))


@settings(max_examples=300, deadline=None)
@having(some.data(), some.lists(KINDS, min_size=1, max_size=5), some.sampled_from(["call", "batch"]))
def test_whatever_is_answered_when_and_wherever_it_dies(
    data: Any, names: list[str], granularity: str
) -> None:
    world = World(granularity)
    uses = [use(name, f"c{index}") for index, name in enumerate(names)]
    kinds = {call.id: call.name for call in uses}
    approved: set[str] = set()

    def pick(running: list[ToolUse]) -> ToolUse:
        return data.draw(some.sampled_from(running))

    new: str | None = "go"
    given = Given()
    ending: Ending | None = None
    for _ in range(40):
        die_at = data.draw(some.none() | some.integers(0, 14))
        before = list(world.messages)
        try:
            ending = world.run(*uses, new=new, given=given, die_at=die_at, pick=pick)
        except Killed:
            ending = None
        assert world.messages[: len(before)] == before, "a committed message was lost or changed"
        given = Given()
        if world.messages:
            new = None
        if ending is None:
            continue
        if ending.outcome == "completed":
            break
        assert ending.pending
        answers: dict[str, Answer] = {}
        results: dict[str, ToolResult] = {}
        for call in data.draw(
            some.lists(some.sampled_from(ending.pending), min_size=1, unique_by=lambda call: call.id)
        ):
            if kinds.get(call.id) == "outside":
                results[call.id] = ToolResult(tool_use_id=call.id, content=[Text("elsewhere")])
            else:
                answers[call.id] = Answer(approved=data.draw(some.booleans()))
                approved |= {call.id} if answers[call.id].approved else set()
        given = Given(answers, results)
    else:
        return  # it died too often to end
    assert ending is not None
    shaped = transcript.normalise(world.messages)
    assert transcript.for_model(shaped) == shaped
    assert transcript.unsettled(world.messages) == ()
    assert set(world.results()) == set(kinds)
    assert world.notes == Notes()
    for call_id, name in kinds.items():
        if not TOOLS[name].idempotent:
            assert world.started[call_id] <= 1
        if name.startswith("ask"):
            assert not world.started[call_id] or call_id in approved, "something ran that nobody had approved"
        if name == "outside":
            assert not world.started[call_id]
            assert world.results()[call_id].text == "elsewhere"
