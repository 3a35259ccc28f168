"""The loop without anything around it: which effects it asks for, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from littleghost import Message, RunCancelled, RunLimits, Text, ToolResult, ToolUse, transcript
from littleghost.events import ModelEnded
from littleghost.runs.effects import (
    AnswerRule,
    AwaitTool,
    Book,
    CallModel,
    CommitMessages,
    Emit,
    Ending,
    Failed,
    Interrupted,
    ReadAnswer,
    StartTools,
    ToolTraits,
)
from littleghost.runs.loop import turns

TOOLS = {
    "plain": ToolTraits(),
    "again": ToolTraits(idempotent=True),
    "alone": ToolTraits(exclusive=True),
    "give": ToolTraits(idempotent=True, gives_answer=True),
}
STOP = Interrupted(RunCancelled("stop"))


def use(name: str, id: str) -> ToolUse:
    return ToolUse(id=id, name=name)


def done(id: str) -> ToolResult:
    return ToolResult(tool_use_id=id, content=[Text("done")])


def drive(
    outcomes: list[Any],
    *,
    stored: list[Message] | None = None,
    new: str | None = "go",
    granularity: Any = "call",
    rule: AnswerRule | None = None,
) -> tuple[list[str], Ending, Book]:
    """Feed ``outcomes`` to what waits for one; return the effects in short, the ending and the book."""
    book = Book(messages=list(stored or []))
    said = None if new is None else Message.user(new)
    machine = turns(book, said, TOOLS, RunLimits(), granularity=granularity, rule=rule)
    told: list[str] = []
    outcome: Any = None
    feed = iter(outcomes)
    count = len(book.messages)
    while True:
        try:
            effect = machine.send(outcome)
        except StopIteration as stop:
            assert not list(feed), "an outcome was not asked for"
            return told, stop.value, book
        outcome = None
        match effect:
            case CommitMessages(messages):
                outcome, count = count, count + len(messages)
                told.append(f"commit {', '.join(map(short, messages))}")
            case CallModel():
                told.append("model")
                outcome = next(feed)
            case StartTools(calls, position):
                told.append(f"start {' '.join(call.id for call in calls)} of {position}")
            case AwaitTool():
                outcome = next(feed)
            case ReadAnswer(written):
                told.append(f"read {written!r}")
                outcome = next(feed)
            case Emit():
                pass


def short(message: Message) -> str:
    ids = [block.id for block in message.tool_uses] + [
        block.tool_use_id + ("" if block.status == "success" else "!") for block in message.tool_results
    ]
    return " ".join([message.role, *ids])


def answer(*uses: ToolUse) -> ModelEnded:
    return ModelEnded(message=Message.assistant([Text("text"), *uses]))


def test_each_result_is_committed_as_it_comes() -> None:
    told, ending, _ = drive([answer(use("plain", "a"), use("again", "b")), done("b"), done("a"), answer()])
    assert told == [
        "commit user",
        "model",
        "commit assistant a b",
        "start a b of 1",
        "commit tool b",
        "commit tool a",
        "model",
        "commit assistant",
    ]
    assert (ending.outcome, ending.text) == ("completed", "text")


def test_or_those_of_an_answer_together_in_call_order() -> None:
    outcomes = [
        answer(use("plain", "a"), use("unknown", "x"), use("again", "b")),
        done("b"),
        done("a"),
        answer(),
    ]
    told, _, _ = drive(outcomes, granularity="batch")
    assert told == [
        "commit user",
        "model",
        "commit assistant a x b",
        "start a b of 1",
        "commit tool a x! b",
        "model",
        "commit assistant",
    ]


def test_a_refused_call_is_answered_at_once() -> None:
    told, _, _ = drive([answer(use("plain", "a"), use("unknown", "x")), done("a"), answer()])
    assert told[3:6] == ["commit tool x!", "start a of 1", "commit tool a"]


def test_exclusive_tools_start_one_after_another() -> None:
    told, _, _ = drive([answer(use("plain", "a"), use("alone", "b")), done("a"), done("b"), answer()])
    assert told[3:7] == ["start a of 1", "commit tool a", "start b of 1", "commit tool b"]


@pytest.mark.parametrize("granularity", ["call", "batch"])
def test_a_stop_answers_every_call_and_keeps_what_ended_all_the_same(granularity: str) -> None:
    stop = Interrupted(RunCancelled("stop"), results=(done("b"),))
    outcomes = [answer(use("plain", "a"), use("plain", "b"), use("plain", "c")), done("c"), stop]
    told, ending, book = drive(outcomes, granularity=granularity)
    assert told[-1] == ("commit tool a! b" if granularity == "call" else "commit tool a! b c")
    assert ending.outcome == "cancelled"
    assert transcript.unsettled(book.messages) == ()


def test_what_was_not_started_says_so() -> None:
    _, _, book = drive([answer(use("alone", "a"), use("alone", "b")), STOP])
    texts = {result.tool_use_id: result.text for message in book.messages for result in message.tool_results}
    assert "unknown" in texts["a"]
    assert "not run" in texts["b"]


@pytest.mark.parametrize(
    "end", [Interrupted(RunCancelled("stop"), "so far"), Failed(RuntimeError("x"), "so far")]
)
def test_partial_text_is_committed_and_marked(end: Any) -> None:
    told, ending, book = drive([end])
    assert told == ["commit user", "model", "commit assistant"]
    assert transcript.is_partial(book.messages[-1])
    assert ending.text == "so far"
    assert ending.outcome == ("failed" if isinstance(end, Failed) else "cancelled")


def test_no_text_is_no_message() -> None:
    told, _, _ = drive([STOP])
    assert told == ["commit user", "model"]


KILLED = [
    Message.user("go"),
    Message.assistant([use("plain", "a"), use("again", "b"), use("plain", "c")]),
    Message.tool(done("c")),
]


def test_resuming_settles_what_a_crash_left() -> None:
    told, _, _ = drive([done("b"), answer()], stored=KILLED, new=None)
    assert told == ["commit tool a!", "start b of 1", "commit tool b", "model", "commit assistant"]
    told, _, _ = drive([done("b"), answer()], stored=KILLED, new=None, granularity="batch")
    assert told == ["start b of 1", "commit tool a! b", "model", "commit assistant"]


def test_asking_settles_first_and_then_speaks() -> None:
    told, _, _ = drive([done("b"), answer()], stored=KILLED)
    assert told == [
        "commit tool a!",
        "start b of 1",
        "commit tool b",
        "commit user",
        "model",
        "commit assistant",
    ]


def test_resuming_with_nothing_open_asks_for_nothing() -> None:
    told, ending, _ = drive([], stored=[Message.user("go"), Message.assistant("Done.")], new=None)
    assert (told, ending.outcome, ending.text) == ([], "completed", "Done.")
    told, ending, _ = drive([], stored=[], new=None)
    assert (told, ending.outcome, ending.text) == ([], "completed", "")
