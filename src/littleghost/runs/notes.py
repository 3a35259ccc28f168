"""What the library keeps about a session, in the session's metadata under one key of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, cast

import msgspec
from msgspec import Struct

from littleghost import transcript
from littleghost.errors import ProtocolError
from littleghost.runs.limits import Spent

__all__ = ["Answer", "Inner", "Notes", "Wait", "Waits"]

DEFAULT_AGENT = "agent"
"""The name of an agent that was given none. It is not noted, and so agrees with every other."""


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was answered to a call that waited.

    What was given is kept as JSON text, so that a value that nests as deep as stored values may nests no deeper here.

    Attributes:
        approved: Whether the call may run.
        arguments: The arguments that take the place of what was shown, or ``None``.
        reason: Why not.
        result: The `ToolResult` of what was done elsewhere, for a call that another tool waits for.
    """

    approved: bool = True
    arguments: str | None = None
    reason: str | None = None
    result: str | None = None


class Inner(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that a tool waits for: the `ToolUse` as JSON text, and the answer, once there is one."""

    call: str
    answer: Answer | None = None


class Wait(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that was not started, because it waits for an answer or has got one.

    Attributes:
        approval: It must be approved before it runs.
        external: It never runs here; its result comes from elsewhere.
        arguments: What a hook put in place of the model's arguments, as JSON text, or ``None``.
        answer: The answer, once there is one; from then on the call may have run.
        inner: What its tool waits for, by id, where it has started and said so.
    """

    approval: bool = False
    external: bool = False
    arguments: str | None = None
    answer: Answer | None = None
    inner: dict[str, Inner] = {}


Waits = dict[str, Wait]
"""The calls of one assistant message that wait, by their ids."""


class Notes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run must know of the session beside its messages and state. Written with a commit, and only when it changed.

    To note something, put a changed copy (`msgspec.structs.replace`) in ``book.notes``; the next commit writes it. Add a field with
    a default for what another part of the library has to keep. What newer versions noted is kept.

    Attributes:
        life: A random name that the session got with the first commit of a run, so that one which was deleted and begun anew is
            another one.
        agent: The name of the agent that runs here, unless it is the default one.
        trace: The ``traceparent`` that later runs belong to.
        approvals: What waits among the calls of the last assistant message, by its position in the store. An entry, even an empty one,
            says that each call was looked at before any of them ran; it goes when all have results.
        spent: What runs with a `Budget` have used.
        summary: What takes the place of older messages when the model is asked.
    """

    life: str | None = None
    agent: str | None = None
    trace: str | None = None
    approvals: dict[str, Waits] = {}
    spent: Spent | None = None
    summary: dict[str, Any] | None = None

    @classmethod
    def read(cls, metadata: Mapping[str, Any]) -> Self:
        """Return the notes in a session's metadata.

        Raises:
            ProtocolError: What lies under the library's key is not the library's.
        """
        found = metadata.get(transcript.MARK)
        if found is None:
            return cls()
        try:
            return msgspec.convert(found, cls)
        except msgspec.ValidationError as error:
            raise ProtocolError(
                f"metadata.{transcript.MARK}: {error}; this key of a session's metadata belongs to the library"
            ) from error

    def written(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``metadata`` with these notes in it, and everything else as it was."""
        found: Any = metadata.get(transcript.MARK) or {}
        others = {
            key: value
            for key, value in cast("dict[str, Any]", found).items()
            if key not in self.__struct_fields__
        }
        return {**metadata, transcript.MARK: {**others, **msgspec.to_builtins(self)}}
