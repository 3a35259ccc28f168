"""The loop where answers have a type: which effects it asks for, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.test_loop import answer, done, drive, use

from littleghost import Message, OutputError, RunCancelled, ToolResult, ToolUse, transcript
from littleghost.events import ModelEnded
from littleghost.runs.effects import AnswerRule, Interrupted, Read, Unfit

RULE = AnswerRule(tool="give", repair="Wrong: {reasons}", repairs=1)
GIVEN = transcript.mark(Message.assistant([use("give", "g")]), answer="give")
TAKEN = Message("tool", [done("g")])
WRONG = ToolResult(tool_use_id="g", content="wrong", status="error")


def run(outcomes: list[Any], **options: Any) -> Any:
    return drive(outcomes, rule=RULE, **options)


def text(said: str) -> ModelEnded:
    return ModelEnded(message=Message.assistant(said))


def test_a_text_is_read_and_committed() -> None:
    told, ending, book = run([text("yes"), Read("value")])
    assert told == ["commit user", "model", "read 'yes'", "commit assistant"]
    assert not transcript.is_unfinished(book.messages)
    assert (ending.outcome, ending.text, ending.answer) == ("completed", "yes", ("value",))


def test_what_is_wrong_with_a_text_is_committed_with_it() -> None:
    told, ending, book = run([text("no"), Unfit(("because",)), text("yes"), Read(1)])
    assert told[2:] == [
        "read 'no'", "commit assistant, user", "model", "read 'yes'", "commit assistant",
    ]  # fmt: skip
    assert book.messages[2].text == "Wrong: because"
    assert ending.answer == (1,)


def test_a_call_is_run_beside_others_and_read_when_all_are_done() -> None:
    told, ending, _ = run([answer(use("plain", "a"), use("give", "g")), done("g"), done("a"), Read(1)])
    assert told[2:] == [
        "commit assistant a g", "start a g of 1", "commit tool g", "commit tool a", "read {}",
    ]  # fmt: skip
    assert (ending.outcome, ending.text, ending.answer) == ("completed", "{}", (1,))


def test_an_error_lets_the_model_try_again_and_then_no_more() -> None:
    told, ending, _ = run([answer(use("give", "g")), WRONG, answer(use("give", "g")), WRONG])
    assert told.count("model") == 2
    assert ending.outcome == "failed"
    assert isinstance(ending.error, OutputError)
    assert (ending.error.errors, ending.answer) == (("wrong",), ())


def test_a_text_that_never_fits_is_kept_as_no_whole_answer() -> None:
    _, ending, book = run([text("no"), Unfit(("why",)), text("no"), Unfit(("because",))])
    assert ending.outcome == "failed"
    assert isinstance(ending.error, OutputError)
    assert (ending.error.errors, ending.error.text) == (("because",), "no")
    assert book.messages[-1].text == "no"
    assert transcript.is_unfinished(book.messages)
    assert transcript.for_model(book.messages)[-1].role == "user", "the model is to answer anew"


def test_whether_there_is_an_answer_can_be_told_without_its_type() -> None:
    _, _, book = run([answer(use("give", "g")), done("g"), Read(1)])
    assert not transcript.is_unfinished(book.messages)
    assert transcript.is_unfinished(book.messages[:-1])
    _, _, book = run([answer(use("give", "g")), WRONG, answer(use("give", "g")), WRONG])
    assert transcript.is_unfinished(book.messages)
    _, ending, _ = drive([], stored=[Message.user("go"), GIVEN, TAKEN], new=None)
    assert ending.outcome == "completed", "an agent without a type has nothing to add"


def test_being_stopped_is_no_answer() -> None:
    stop = Interrupted(RunCancelled("stop"), results=(done("g"),))
    _, ending, book = run([answer(use("plain", "a"), use("give", "g")), stop])
    assert (ending.outcome, ending.answer) == ("cancelled", ())
    told, ending, _ = run([Read(1)], stored=book.messages, new=None)
    assert (told, ending.answer) == (["read {}"], (1,))


@pytest.mark.parametrize(
    ("stored", "outcomes", "effects"),
    [
        ([GIVEN, TAKEN], [Read(1)], ["read {}"]),
        ([GIVEN], [done("g"), Read(1)], ["start g of 1", "commit tool g", "read {}"]),
        ([GIVEN, Message("tool", [WRONG])], [text("a"), Read(1)], ["model", "read 'a'", "commit assistant"]),
        ([Message.assistant("a")], [Read(1)], ["read 'a'"]),
        (
            [Message.assistant("a")],
            [Unfit(("no",)), text("b"), Read(1)],
            ["read 'a'", "commit user", "model", "read 'b'", "commit assistant"],
        ),
        ([], [text("a"), Read(1)], ["model", "read 'a'", "commit assistant"]),
    ],
)
def test_going_on(stored: list[Message], outcomes: list[Any], effects: list[str]) -> None:
    told, ending, _ = run(outcomes, stored=[Message.user("go"), *stored], new=None)
    assert (told, ending.answer) == (effects, (1,))


def test_a_new_message_leaves_the_stored_answer_behind() -> None:
    told, _, _ = run([text("a"), Read(1)], stored=[Message.user("go"), GIVEN, TAKEN])
    assert told == ["commit user", "model", "read 'a'", "commit assistant"]


def test_the_call_counts_by_its_name_and_not_by_its_id() -> None:
    other = Message.assistant([ToolUse(id="g", name="plain")])
    told, _, _ = run([text("a"), Read(1)], stored=[Message.user("go"), other, TAKEN], new=None)
    assert told == ["model", "read 'a'", "commit assistant"]
