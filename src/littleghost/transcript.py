"""The rules of a transcript, as pure functions.

A transcript is a list of messages. Its shape, which every provider accepts:

* results follow the assistant message that called for them, in one ``tool`` message, in the order of the calls;
* every call has exactly one result, and every result a call.

What is stored is a journal: each result is committed when its tool ends, so results may lie in several messages and in the order they
came, and a killed run leaves calls without a result. `normalise` puts the first right, `settle` answers the second. Call ids may
repeat from turn to turn, so a result belongs to the nearest assistant message before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from littleghost import data
from littleghost.content import Block, Reasoning, Text, ToolResult, ToolUse, made_of
from littleghost.message import Message, pack_messages

__all__ = [
    "MARK",
    "admit",
    "cut",
    "for_model",
    "given_answer",
    "interrupted",
    "is_unfinished",
    "mark",
    "normalise",
    "open_turn",
    "sanitise",
    "unsettled",
    "waits_for_model",
]

MARK = "littleghost"
"""The key of a message's or session's metadata under which the library keeps notes of its own."""

INTERRUPTED = "The tool was interrupted before its result was recorded. Whether it took effect is unknown."
_SIMPLE = frozenset({Text, ToolUse})
_FOREIGN_TO_ANSWERS = frozenset({ToolResult})
_FOREIGN_TO_OTHERS = frozenset({ToolResult, ToolUse})
_NAME = re.compile(r"[^A-Za-z0-9_-]+")


def sanitise(messages: Iterable[Message]) -> list[Message]:
    """Return what of ``messages`` may be stored.

    System messages go; so do messages whose metadata has a ``transient`` other than ``None`` or ``False``, and reasoning blocks.
    A message emptied by that goes, one that was empty from the start stays.
    """
    kept: list[Message] = []
    for message in messages:
        transient = message.metadata.get("transient")
        if message.role != "system" and (transient is None or transient is False):
            kept.append(message)
    return without_reasoning(kept)


def without_reasoning(messages: Iterable[Message]) -> list[Message]:
    """Return ``messages`` without reasoning, as every store has to keep them.

    A message emptied by that goes, one that was empty from the start stays.
    """
    kept: list[Message] = []
    for message in messages:
        clean = message.without_reasoning()
        if clean.content or not message.content:
            kept.append(clean)
    return kept


def normalise(messages: Iterable[Message]) -> list[Message]:
    """Return ``messages`` with the results of each assistant message merged into one message, in call order, right after it.

    Nothing is dropped: results without a call, and further results of one call, stay where they are. Doing it twice changes nothing.
    """
    done: list[Message] = []
    turn: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            done += _ordered(turn)
            turn = [message]
        else:
            turn.append(message)
    return done + _ordered(turn)


def _ordered(turn: list[Message]) -> list[Message]:
    """Return one assistant message and what follows it, its results merged."""
    calls = turn[0].tool_uses if len(turn) > 1 and turn[0].role == "assistant" else ()
    if not calls:
        return turn
    if len(turn) == 2 and turn[1].role == "tool" and _just_answers(turn[1], calls):
        return turn
    order = {call.id: position for position, call in enumerate(calls)}
    results: dict[str, ToolResult] = {}
    beside: list[Block] = []
    metadata: dict[str, Any] = {}
    rest: list[Message] = []
    for message in turn[1:]:
        others: list[Block] = []
        for block in message.content:
            if (
                isinstance(block, ToolResult)
                and block.tool_use_id in order
                and block.tool_use_id not in results
            ):
                results[block.tool_use_id] = block
            else:
                others.append(block)
        if len(others) == len(message.content):
            rest.append(message)
        elif others and message.role != "tool":
            rest.append(msgspec.structs.replace(message, content=tuple(others)))
        else:
            # What stands beside the results (an attachment, a result of no call) stays with them.
            beside += others
            metadata = _merged(metadata, message.metadata)
    if not results:
        return turn
    merged = tuple(sorted(results.values(), key=lambda result: order[result.tool_use_id]))
    return [turn[0], Message("tool", (*merged, *beside), metadata), *rest]


def _just_answers(message: Message, calls: Sequence[ToolUse]) -> bool:
    """Whether ``message`` holds one result for each of ``calls``, in their order, and nothing else."""
    if len(message.content) != len(calls):
        return False
    for block, call in zip(message.content, calls, strict=True):
        if type(block) is not ToolResult or block.tool_use_id != call.id:
            return False
    return True


def _merged(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of two messages in one, the notes of the library side by side."""
    notes = (left.get(MARK), right.get(MARK))
    if all(isinstance(note, dict) for note in notes):
        return {
            **left,
            **right,
            MARK: {**cast("dict[str, Any]", notes[0]), **cast("dict[str, Any]", notes[1])},
        }
    return {**left, **right}


def unsettled(messages: Sequence[Message]) -> tuple[ToolUse, ...]:
    """Return the calls of the last assistant message that have no result yet, in call order."""
    index = open_turn(messages)
    if index is None:
        return ()
    answered = {result.tool_use_id for message in messages[index + 1 :] for result in message.tool_results}
    return tuple(call for call in messages[index].tool_uses if call.id not in answered)


def open_turn(messages: Sequence[Message]) -> int | None:
    """Return the index of the last assistant message where it has calls without a result, else ``None``."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            answered = {
                result.tool_use_id for message in messages[index + 1 :] for result in message.tool_results
            }
            return index if any(call.id not in answered for call in messages[index].tool_uses) else None
    return None


def waits_for_model(messages: Sequence[Message]) -> bool:
    """Whether a conversation with all calls settled ends where the model should speak."""
    if not messages:
        return False
    last = messages[-1]
    if last.role == "tool":
        return given_answer(messages) is None
    return last.role != "assistant" or is_partial(last)


def given_answer(messages: Sequence[Message]) -> ToolUse | None:
    """Return the call that gave the answer which a conversation ends with, where an answer is given by a call.

    It is the first one that succeeded of those of the tool that the last assistant message notes as the answer's.
    """
    taken: set[str] = set()
    for message in reversed(messages):
        if message.role == "tool":
            taken.update(result.tool_use_id for result in message.tool_results if result.status == "success")
        elif message.role != "assistant":
            return None
        else:
            name = note(message, "answer")
            return next((call for call in message.tool_uses if call.name == name and call.id in taken), None)
    return None


def is_unfinished(messages: Sequence[Message]) -> bool:
    """Whether a conversation does not end with an answer: a call has no result, or the model should speak."""
    return open_turn(messages) is not None or waits_for_model(messages)


def error_result(call: ToolUse, text: str) -> ToolResult:
    """Return the result that says of ``call`` what went wrong."""
    return ToolResult(tool_use_id=call.id, content=[Text(repair(text))], status="error")


def interrupted(call: ToolUse) -> ToolResult:
    """Return the result that settles a call whose outcome nobody knows."""
    return error_result(call, INTERRUPTED)


def for_model(messages: Iterable[Message]) -> list[Message]:
    """Return the view of a transcript that every provider accepts.

    Beyond `normalise`: a call without a result gets one that says so; results without a call go, and so do calls that no assistant
    made, and empty messages; an answer that was cut short goes where another answer took its place or the model is to answer anew.
    """
    view: list[Message] = []
    shaped = normalise(messages)
    for index, message in enumerate(shaped):
        if message.role == "tool":
            continue  # comes with its assistant message, or goes
        answer = message.role == "assistant"
        foreign = _FOREIGN_TO_ANSWERS if answer else _FOREIGN_TO_OTHERS
        if not foreign.isdisjoint(map(type, message.content)):
            content = tuple(block for block in message.content if type(block) not in foreign)
            message = msgspec.structs.replace(message, content=content)
        if message.content:
            if answer and view and _is_cut(view[-1]):
                view.pop()  # this one took its place
            view.append(message)
        calls = message.tool_uses if answer else ()
        if calls:
            following = (
                shaped[index + 1]
                if index + 1 < len(shaped) and shaped[index + 1].role == "tool"
                else Message("tool")
            )
            view.append(_answers(following, calls))
    if view and _is_cut(view[-1]):
        view.pop()  # the model is to answer anew
    return view


def _is_cut(message: Message) -> bool:
    """Whether ``message`` is an answer that was cut short and called nothing."""
    return message.role == "assistant" and is_partial(message) and not message.tool_uses


def _answers(message: Message, calls: Sequence[ToolUse]) -> Message:
    """Return the tool message with exactly one result for each of ``calls``, and what else stood in it beside results."""
    if _just_answers(message, calls):
        return message
    found: dict[str, ToolResult] = {}
    for result in message.tool_results:
        found.setdefault(result.tool_use_id, result)
    beside = tuple(block for block in message.content if not isinstance(block, ToolResult | ToolUse))
    content = (*(found.get(call.id) or interrupted(call) for call in calls), *beside)
    return msgspec.structs.replace(message, content=content)


def cut(messages: Sequence[Message], at: int) -> int:
    """Return the largest count up to ``at`` that does not part a call from its result."""
    at = max(0, min(at, len(messages)))
    while at:
        index = open_turn(messages[:at])
        if index is None:
            return at
        settled_later = unsettled(messages[:at]) != unsettled(_through_turn(messages, index))
        if not settled_later:
            return at
        at = index
    return 0


def _through_turn(messages: Sequence[Message], index: int) -> Sequence[Message]:
    """Return ``messages`` up to the assistant message after the one at ``index``."""
    for later in range(index + 1, len(messages)):
        if messages[later].role == "assistant":
            return messages[:later]
    return messages


def parent_of(metadata: Mapping[str, Any] | None) -> str | None:
    """Return the id of the session inside of which, by an agent used as a tool, the one with this metadata is; ``None`` for most."""
    notes: Any = (metadata or {}).get(MARK)
    parent: Any = cast("dict[str, Any]", notes).get("parent") if isinstance(notes, dict) else None
    found: Any = cast("dict[str, Any]", parent).get("session") if isinstance(parent, dict) else None
    return found if isinstance(found, str) else None


def mark(message: Message, **notes: Any) -> Message:
    """Return ``message`` with ``notes`` added to the library's part of its metadata."""
    known = message.metadata.get(MARK)
    merged = {**(cast("dict[str, Any]", known) if isinstance(known, dict) else {}), **notes}
    return msgspec.structs.replace(message, metadata={**message.metadata, MARK: merged})


def note(message: Message, name: str) -> Any:
    """Return the note ``name`` in the library's part of the metadata, or ``None``."""
    known = message.metadata.get(MARK)
    return cast("dict[str, Any]", known).get(name) if isinstance(known, dict) else None


def is_partial(message: Message) -> bool:
    """Whether ``message`` is an answer that was cut short."""
    return note(message, "partial") is not None


def admit(message: Message, malformed: Mapping[int, str] | None = None) -> Message:
    """Return a model's answer as a message that can be stored and sent to any provider.

    Ids that are missing or used twice get another, names that no provider takes are mended, text with lone surrogates is
    repaired. A call whose arguments were no JSON object keeps an empty input, and the note ``malformed`` says what was wrong with
    them, so that it is answered with an error and never run, now or after a crash.

    Args:
        message: What the model answered.
        malformed: What was wrong with the arguments of calls, by position among the calls.

    Raises:
        DataError: Something else in it cannot be stored.
    """
    wrong: dict[str, str] = {}
    content: list[Block] = []
    used: set[str] = set()
    position = 0
    for block in message.content:
        if type(block) is ToolUse:
            fault = (malformed or {}).get(position)
            block, fault = _admit_call(block, position, used, fault)
            if fault is not None:
                wrong[block.id] = repair(fault)
            position += 1
        elif type(block) is Text or type(block) is Reasoning:
            text = repair(block.text)
            if text is not block.text:
                block = msgspec.structs.replace(block, text=text)
        elif type(block) is ToolResult:
            continue  # no model has results to give
        content.append(block)
    # A transient answer would be left out of the store, and its tools run without a trace.
    metadata = dict(message.metadata)
    metadata.pop("transient", None)
    admitted = made_of(Message, "assistant", tuple(content), metadata)
    if message.metadata or not _SIMPLE.issuperset(map(type, content)):
        pack_messages((admitted,), "answer")
    return mark(admitted, malformed=wrong) if wrong else admitted


def _admit_call(
    call: ToolUse, position: int, used: set[str], fault: str | None
) -> tuple[ToolUse, str | None]:
    identifier = repair(call.id) or f"call_{position}"
    base, number = identifier, 1
    while identifier in used:
        number += 1
        identifier = f"{base}_{number}"
    used.add(identifier)
    name = _NAME.sub("_", call.name)[:64] or "unnamed"
    arguments: Any = call.input
    if fault is None:
        try:
            arguments = data.unpack(data.pack_object(arguments, "arguments"))
        except ValueError as error:
            fault = str(error)
    return made_of(ToolUse, id=identifier, name=name, input={} if fault is not None else arguments), fault


def repair(text: str) -> str:
    """Return ``text`` with pairs of surrogates joined, and lone ones replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
