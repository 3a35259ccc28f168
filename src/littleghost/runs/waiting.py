"""What becomes of a call that waits, given what was answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct

from littleghost import data, transcript
from littleghost.content import ToolResult, ToolUse, made_of
from littleghost.errors import ConfigurationError
from littleghost.message import Message
from littleghost.runs.effects import Given, ToolTraits
from littleghost.runs.notes import Answer, Inner, Notes, Wait

__all__ = ["Fate", "changed_note", "decide", "effective", "pending_in", "waits_for"]

NO_ANSWERS: Mapping[str, Answer] = MappingProxyType({})


class Fate(Struct, kw_only=True):
    """What becomes of a call that waits: it runs, or it has its result, or it goes on waiting.

    Attributes:
        wait: What is to be noted of it.
        run: The call to run.
        result: Its result.
        pending: What is to be answered.
        told: What to add to its result, whatever that is.
        given: The answers to what its tool waits for.
    """

    wait: Wait
    run: ToolUse | None = None
    result: ToolResult | None = None
    pending: tuple[ToolUse, ...] = ()
    told: str | None = None
    given: Mapping[str, Answer] = NO_ANSWERS

    @property
    def edited(self) -> bool:
        """Whether it is to run with arguments that a person changed. Hooks see these before each start, and what they say is not kept."""
        answer = self.wait.answer
        return self.run is not None and answer is not None and answer.arguments is not None


def decide(call: ToolUse, wait: Wait, traits: ToolTraits | None, given: Given) -> Fate:
    """Return what becomes of ``call``.

    Args:
        call: The call as the model made it.
        wait: What was noted of it.
        traits: Those of its tool, ``None`` where there is no such tool any more.
        given: What was answered now.

    Raises:
        ConfigurationError: The answer is not of the kind that it waits for.
    """
    if wait.inner:
        return _with_inner(call, wait, traits, given)
    answer = wait.answer
    if answer is not None and not (answer.approved and wait.external):
        # It was answered before, by a run that did not live to record the result.
        return _refused(call, wait, answer) if not answer.approved else _settled(call, wait, traits)
    result, fresh = given.results.get(call.id), given.approvals.get(call.id)
    if result is not None and not wait.external:
        raise ConfigurationError(
            f"results[{call.id!r}]: the call waits for approval, not for a result; answer it with approvals=…"
        )
    if result is not None and (fresh is None or fresh.approved):
        if wait.approval and answer is None:
            if fresh is None:
                raise ConfigurationError(
                    f"results[{call.id!r}]: the call waits for approval first; answer it with approvals=…"
                )
            wait = msgspec.structs.replace(wait, answer=fresh)
        return Fate(wait=wait, result=result, told=_told(wait))
    if fresh is None or answer is not None:
        if fresh is not None and not fresh.approved:
            return _refused(call, wait, fresh)
        return Fate(wait=wait, pending=(effective(call, wait),))
    if not fresh.approved:
        return _refused(call, msgspec.structs.replace(wait, answer=fresh), fresh)
    if not wait.approval:
        raise ConfigurationError(
            f"approvals[{call.id!r}]: the call waits for its result, not for approval; answer it with results=…"
        )
    if fresh.arguments == _packed(effective(call, wait)):
        fresh = msgspec.structs.replace(fresh, arguments=None)  # what was shown, and so no change
    wait = msgspec.structs.replace(wait, answer=fresh)
    if wait.external:
        return Fate(wait=wait, pending=(effective(call, wait),))
    if traits is None:
        return Fate(wait=wait, result=_no_tool(call))
    return Fate(wait=wait, run=effective(call, wait), told=_told(wait))


def pending_in(messages: Sequence[Message], notes: Notes) -> tuple[ToolUse, ...]:
    """Return what is to be answered in a conversation, as far as its runs have noted it, in call order."""
    waits = notes.approvals.get(str(transcript.open_turn(messages)), {})
    found: list[ToolUse] = []
    for call in transcript.unsettled(messages):
        if call.id in waits:
            # Whether a call waits is not a question of its tool; that matters where it is settled.
            found += decide(call, waits[call.id], None, Given({}, {})).pending
    return tuple(found)


def _with_inner(call: ToolUse, wait: Wait, traits: ToolTraits | None, given: Given) -> Fate:
    """Return what becomes of a call whose tool has run and waits for answers itself."""
    answered_before = any(inner.answer is not None for inner in wait.inner.values())
    fresh = False
    inner: dict[str, Inner] = {}
    for name, waiting in wait.inner.items():
        answer = _answer_to(f"{call.id}/{name}", given) if waiting.answer is None else None
        fresh = fresh or answer is not None
        inner[name] = waiting if answer is None else msgspec.structs.replace(waiting, answer=answer)
    wait = msgspec.structs.replace(wait, inner=inner)
    if not fresh and not answered_before:
        return Fate(wait=wait, pending=waits_for(call, wait))
    answers = {name: waiting.answer for name, waiting in inner.items() if waiting.answer is not None}
    fate = _settled(call, wait, traits) if answered_before else None
    if fate is None and traits is None:
        fate = Fate(wait=wait, result=_no_tool(call))
    if fate is None:
        fate = Fate(wait=wait, run=effective(call, wait), told=_told(wait))
    if fate.run is not None:
        fate.given = answers
    return fate


def _answer_to(name: str, given: Given) -> Answer | None:
    result = given.results.get(name)
    if result is not None:
        return Answer(result=msgspec.json.encode(result).decode())
    return given.approvals.get(name)


def _settled(call: ToolUse, wait: Wait, traits: ToolTraits | None) -> Fate:
    """Return what becomes of a call that may have started: it runs again if that is no harm."""
    told = _told(wait)
    if traits is not None and traits.idempotent:
        return Fate(wait=wait, run=effective(call, wait), told=told)
    return Fate(wait=wait, result=transcript.interrupted(call), told=told)


def _refused(call: ToolUse, wait: Wait, answer: Answer) -> Fate:
    why = f" The reason given: {answer.reason}" if answer.reason else ""
    text = f"The tool was not run: the person who was asked did not approve the call.{why}"
    return Fate(wait=wait, result=transcript.error_result(call, text))


def _no_tool(call: ToolUse) -> ToolResult:
    return transcript.error_result(
        call, f"The tool was not run: there is no tool named {call.name!r} any more."
    )


def effective(call: ToolUse, wait: Wait) -> ToolUse:
    """Return ``call`` with the arguments that it is to run with."""
    changed = wait.arguments
    if wait.answer is not None and wait.answer.arguments is not None:
        changed = wait.answer.arguments
    if changed is None:
        return call
    return made_of(ToolUse, id=call.id, name=call.name, input=msgspec.json.decode(changed))


def _packed(call: ToolUse) -> str:
    return data.pack_object(call.input, "arguments").decode()


def waits_for(call: ToolUse, wait: Wait) -> tuple[ToolUse, ...]:
    """Return what is to be answered for a call whose tool waits, under ids that tell whose they are."""
    found: list[ToolUse] = []
    for name, inner in wait.inner.items():
        if inner.answer is None:
            made: Any = msgspec.json.decode(inner.call, type=ToolUse)
            found.append(made_of(ToolUse, id=f"{call.id}/{name}", name=made.name, input=made.input))
    return tuple(found)


def _told(wait: Wait) -> str | None:
    """Return what the model has to know of the arguments that a call runs with."""
    if wait.answer is not None and wait.answer.arguments is not None:
        return changed_note(wait.answer.arguments)
    return None if wait.arguments is None else changed_note(None)


def changed_note(arguments: str | None) -> str:
    """Return the text that says that a call ran with other arguments: a person's, or (not shown: they may hold secrets) a hook's."""
    if arguments is None:
        return "Note: the application changed the arguments of this call before it ran."
    return f"Note: the person who approved this call changed its arguments to {arguments}"
