"""What the caller of ``resume`` answered, checked before anything is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from littleghost import data, transcript
from littleghost.content import ToolResult, ToolUse, made_of
from littleghost.errors import ConfigurationError, DataError, ToolError
from littleghost.message import Message
from littleghost.runs.effects import Given
from littleghost.runs.notes import Answer
from littleghost.runs.results import fitted, result_of
from littleghost.tools.contract import Approval, Tool

__all__ = ["checked_answers"]


def checked_answers(
    approvals: Mapping[str, bool | Approval] | None,
    results: Mapping[str, Any] | None,
    *,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    result_tokens: int | None,
) -> Given:
    """Return the answers as the loop takes them.

    Args:
        approvals: By call id.
        results: By call id, of what was done elsewhere.
        messages: The conversation.
        tools: The tools there are, which check the arguments that a person changed.
        result_tokens: How long a result may be.

    Raises:
        ConfigurationError: One is not what can be answered; the error names it.
        DataError: A result has no exact JSON form.
    """
    approved, done = _items(approvals, "approvals"), _items(results, "results")
    _check_known({id for id, _ in (*approved, *done)}, messages)
    by_name = {tool.name: tool for tool in tools}
    named = {call.id: by_name.get(call.name) for call in transcript.unsettled(messages)}
    return Given(
        {id: _answer(id, given, named.get(id)) for id, given in approved},
        {id: fitted(_result(id, given), result_tokens) for id, given in done},
    )


def _check_known(ids: set[str], messages: Sequence[Message]) -> None:
    """Raise `ConfigurationError` where the conversation has no call, nor one inside of one, with any of these ids."""
    made = {call.id for message in messages for call in message.tool_uses}
    if ids and not any(id in made or id.startswith(tuple(f"{call}/" for call in made)) for id in ids):
        names = ", ".join(sorted(map(repr, ids)))
        raise ConfigurationError(
            f"there is no call {names} in this session; Runtime.pending has the ids of those that wait"
        )


def _items(answers: Any, name: str) -> list[tuple[str, Any]]:
    if answers is None:
        return []
    if not isinstance(answers, Mapping):
        raise ConfigurationError(f"{name} must be a mapping from call ids, not {data.kind(answers)}")
    items = list(cast("Mapping[Any, Any]", answers).items())
    for id, _ in items:
        if not isinstance(id, str):
            raise ConfigurationError(f"{name}: call ids are text, not {data.kind(id)}")
    return items


def _answer(id: str, given: Any, tool: Tool | None) -> Answer:
    name = f"approvals[{id!r}]"
    if isinstance(given, bool):
        return Answer(approved=given)
    if not isinstance(given, Approval) or not isinstance(given.approved, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{name} must be True, False or Approval(…), not {data.kind(given)}")
    reason: Any = given.reason
    try:
        if reason is not None:
            data.check_text(reason, f"{name}.reason")
        if not given.approved or given.arguments is None:
            return Answer(approved=given.approved, reason=given.reason)
        packed = data.pack_object(given.arguments, f"{name}.arguments")
        if tool is not None:
            tool.validate(data.unpack(packed))
    except DataError as error:
        raise ConfigurationError(str(error)) from error
    except (ToolError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{name}.arguments: {error}") from error
    return Answer(arguments=packed.decode(), reason=given.reason)


def _result(id: str, given: Any) -> ToolResult:
    try:
        return result_of(made_of(ToolUse, id=id, name="", input={}), given)
    except DataError as error:
        raise DataError.at(f"results[{id!r}]", error.reason) from error
