"""Clauses about reasoning: sent back within a run, not needed by a run that goes on from the store, never another's."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from littleghost.content import Reasoning, Text, ToolResult, ToolUse
from littleghost.message import Message
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.model_dialect import Said
from littleghost.testing.model_trial import ADD, ModelTrial, Subject, opened, request, same

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

CALLED = Said(
    reasoning=("Private thought: ", "I add."),
    text=("I add.",),
    calls=(
        ToolUse(id="call_a", name="add", input={"a": 1, "b": 2}),
        ToolUse(id="call_b", name="add", input={"a": 3, "b": 4}),
    ),
)
DONE = Said(reasoning=("Easy.",), text=("3 and 7.",))
RESULTS = Message.tool([
    ToolResult(tool_use_id="call_a", content="3"),
    ToolResult(tool_use_id="call_b", content="7"),
])  # fmt: skip


async def _called(trial: ModelTrial, said: Said = CALLED) -> list[Message]:
    """Return the conversation after a first call was made."""
    start = [Message.user("Add.")]
    trial.server.play(said)
    last = await trial.ask(request(*start, tools=(ADD,)))
    same(last, said, "the first answer")
    return [*start, last.message, RESULTS]


async def _goes_on(trial: ModelTrial, messages: list[Message], what: str, **fields: Any) -> tuple[str, ...]:
    """Expect that the provider takes ``messages``, and return the reasoning it was sent."""
    trial.server.play(DONE)
    try:
        last = await trial.ask(request(*messages, tools=(ADD,), **fields))
    except Exception as error:
        expect(False, f"{what} is refused: {error}")
        raise
    same(last, DONE, what)
    return trial.seen().reasoning


@clause(CLAUSES, needs=["reasoning_back"])
async def reasoning_goes_back_within_a_run(subject: Subject) -> None:
    """With the calls it led to, in each of several steps, for the provider wants to go on from it."""
    async with opened(subject) as trial:
        messages = await _called(trial)
        sent = await _goes_on(trial, messages, "the second step")
        expect(trial.dialect.proof(CALLED) in sent, "the reasoning before the calls was not sent back")
        other = Said(
            reasoning=("Once more.",), calls=(ToolUse(id="call_c", name="add", input={"a": 3, "b": 7}),)
        )
        trial.server.play(other)
        last = await trial.ask(request(*messages, tools=(ADD,)))
        messages += [last.message, Message.tool([ToolResult(tool_use_id="call_c", content="10")])]
        sent = await _goes_on(trial, messages, "the third step")
        expect(
            [one for one in sent if one in (trial.dialect.proof(CALLED), trial.dialect.proof(other))]
            == [trial.dialect.proof(CALLED), trial.dialect.proof(other)],
            f"of two pieces of reasoning came back: {sent}",
        )


@clause(CLAUSES, needs=["reasoning_back"])
async def a_turn_goes_on_without_its_reasoning(subject: Subject) -> None:
    """A run that was resumed between calls and results has none, for no store keeps any; the provider accepts it still."""
    async with opened(subject) as trial:
        messages = await _called(trial)
        stored = [message.without_reasoning() for message in messages]
        sent = await _goes_on(trial, stored, "a resumed turn")
        expect(not sent, f"reasoning came from nowhere: {sent}")
        # The turn goes on: what follows has reasoning, what stands before has none.
        other = Said(
            reasoning=("Once more.",), calls=(ToolUse(id="call_c", name="add", input={"a": 3, "b": 7}),)
        )
        trial.server.play(other)
        last = await trial.ask(request(*stored, tools=(ADD,)))
        tail = [last.message, Message.tool([ToolResult(tool_use_id="call_c", content="10")])]
        await _goes_on(trial, [*stored, *tail], "the step after a resumed one")
        done = [*stored, *tail, Message.assistant("10."), Message.user("And now?")]
        await _goes_on(trial, [message.without_reasoning() for message in done], "the next turn")


@clause(CLAUSES, needs=["reasoning_back"])
async def reasoning_of_others_is_not_sent(subject: Subject) -> None:
    """A conversation that another provider began goes on here; its reasoning means nothing to this one."""
    foreign = [
        Reasoning(text="Hm.", signature="c2lnbmVk", details={"format": "elsewhere"}),
        Reasoning(data=b"opaque", details={"format": "elsewhere", "id": "rs_elsewhere"}),
        Reasoning(text="Hm."),
    ]
    messages = [
        Message.user("Add."),
        Message.assistant([*foreign, Text("I add."), *CALLED.calls]),
        RESULTS,
    ]
    async with opened(subject) as trial:
        sent = await _goes_on(trial, messages, "a turn that another provider began")
        expect(not sent, f"foreign reasoning was sent: {sent}")


@clause(CLAUSES, needs=["reasoning_back"])
async def reasoning_that_is_not_whole_is_not_sent(subject: Subject) -> None:
    """Where the proof of it is lost, the turn goes on as one without reasoning."""
    async with opened(subject) as trial:
        messages = await _called(trial)
        bare = [
            msgspec.structs.replace(block, signature=None, data=None, encoding=None)
            if isinstance(block, Reasoning)
            else block
            for block in messages[1].content
        ]
        damaged = [messages[0], Message.assistant(bare), messages[2]]
        await _goes_on(trial, damaged, "a turn whose reasoning lost its proof")


@clause(CLAUSES, needs=["reasoning_back", "keep_signatures"])
async def kept_signatures_go_back_after_the_store(subject: Subject) -> None:
    """With ``keep_signatures`` a message carries what the provider wants, and none of the reasoning that could be read."""
    async with opened(subject, keep_signatures=True) as trial:
        messages = await _called(trial)
        kept = json.dumps(messages[1].metadata)
        expect("Private thought" not in kept, "the metadata holds readable reasoning")
        stored = [Message.from_dict(message.without_reasoning().to_dict()) for message in messages]
        sent = await _goes_on(trial, stored, "a resumed turn with its signatures")
        expect(trial.dialect.proof(CALLED) in sent, f"of the kept reasoning came back: {sent}")
    async with opened(subject) as trial:
        messages = await _called(trial)
        expect(not messages[1].metadata, f"without it, the metadata is {messages[1].metadata}")
