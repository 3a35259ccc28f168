"""What happens in a run, as it happens.

Every event of a run carries ``seq``, counted from 1 without gaps, and ``at``, seconds since the epoch. A model yields some of these kinds
itself (`ModelEvent`); the run numbers and passes them on. Texts that a `Retrying` event follows are superseded: the model starts its
answer again.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from littleghost.content import ToolResult, ToolUse
from littleghost.message import Message
from littleghost.usage import Usage

__all__ = [
    "Committed",
    "Compacted",
    "Event",
    "ModelEnded",
    "ModelEvent",
    "ModelStarted",
    "OutputDelta",
    "ReasoningDelta",
    "Retrying",
    "RunEnded",
    "RunStarted",
    "Suspended",
    "TextDelta",
    "ToolCallArguments",
    "ToolCallReady",
    "ToolCallStarted",
    "ToolEnded",
    "ToolStarted",
    "UsageReported",
]


class _Event(Struct, frozen=True, gc=False, kw_only=True, tag_field="event"):
    seq: int = 0
    at: float = 0.0


class RunStarted(_Event, frozen=True, gc=False, kw_only=True, tag="run_started"):
    """A run began."""

    run_id: str
    session_id: str | None = None
    resumed: bool = False


class ModelStarted(_Event, frozen=True, gc=False, kw_only=True, tag="model_started"):
    """A model call began. ``step`` counts the answers from 1; a ``summary`` is written before the answer of its step."""

    step: int
    model: str
    purpose: Literal["answer", "summary"] = "answer"


class TextDelta(_Event, frozen=True, gc=False, kw_only=True, tag="text"):
    """The model wrote a piece of visible text."""

    text: str


class ReasoningDelta(_Event, frozen=True, gc=False, kw_only=True, tag="reasoning"):
    """The model wrote a piece of reasoning."""

    text: str


class ToolCallStarted(_Event, frozen=True, gc=False, kw_only=True, tag="tool_call_started"):
    """The model began to write a tool call; ``index`` tells the calls of one answer apart."""

    index: int
    id: str
    name: str


class ToolCallArguments(_Event, frozen=True, gc=False, kw_only=True, tag="tool_call_arguments"):
    """The model wrote a piece of a call's arguments, which are JSON text."""

    index: int
    arguments: str


class ToolCallReady(_Event, frozen=True, gc=False, kw_only=True, tag="tool_call_ready"):
    """The run took a call as complete."""

    index: int
    call: ToolUse


class OutputDelta(_Event, frozen=True, gc=False, kw_only=True, tag="output"):
    """There is more of an answer in a type; ``value`` is all there is so far, as JSON values and not checked yet.

    It is the beginning of the whole: strings may be cut, and members and items that do not fit yet are missing.
    """

    value: Any


class ToolStarted(_Event, frozen=True, gc=False, kw_only=True, tag="tool_started"):
    """A tool began to run."""

    call: ToolUse


class ToolEnded(_Event, frozen=True, gc=False, kw_only=True, tag="tool_ended"):
    """A call has its result: the tool ended, or the call was refused or settled."""

    call: ToolUse
    result: ToolResult


class UsageReported(_Event, frozen=True, gc=False, kw_only=True, tag="usage"):
    """A model call was counted; ``total`` is the run's so far."""

    usage: Usage
    total: Usage


class Retrying(_Event, frozen=True, gc=False, kw_only=True, tag="retry"):
    """A model call failed and is made again after ``delay`` seconds. What it streamed so far is void."""

    attempt: int
    delay: float
    error: str


class Committed(_Event, frozen=True, gc=False, kw_only=True, tag="committed"):
    """The store acknowledged a commit; ``count`` messages are stored now."""

    count: int
    revision: str | None = None


class Compacted(_Event, frozen=True, gc=False, kw_only=True, tag="compacted"):
    """From now on a summary stands in for the first ``count`` stored messages; estimated tokens of a request ``before`` and ``after``."""

    count: int
    before: int
    after: int


class Suspended(_Event, frozen=True, gc=False, kw_only=True, tag="suspended"):
    """The run waits for answers to ``pending``."""

    pending: tuple[ToolUse, ...]


class RunEnded(_Event, frozen=True, gc=False, kw_only=True, tag="run_ended"):
    """The run is over; ``error`` is the class name of what ended it early, and ``limit`` the limit that it reached, if it did."""

    outcome: Literal["completed", "partial", "failed", "cancelled", "suspended"]
    text: str
    error: str | None = None
    limit: str | None = None


class ModelEnded(_Event, frozen=True, gc=False, kw_only=True, tag="model_ended"):
    """A model's whole answer: the last thing a model yields. The run takes it in; it does not pass it on.

    Attributes:
        message: The answer, with role ``assistant``.
        stop: ``end`` when the model was done or calls tools, ``length`` when its output limit cut it, ``filter`` when the provider
            withheld the rest.
        usage: What the call cost.
        malformed: What was wrong with the arguments of tool calls, by position among the calls.
    """

    message: Message
    stop: Literal["end", "length", "filter"] = "end"
    usage: Usage = field(default_factory=Usage)
    malformed: dict[int, str] = field(default_factory=dict[int, str])


Event = (
    RunStarted
    | ModelStarted
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ToolCallArguments
    | OutputDelta
    | ToolCallReady
    | ToolStarted
    | ToolEnded
    | UsageReported
    | Retrying
    | Committed
    | Compacted
    | Suspended
    | RunEnded
)
"""Any event of a run."""

ModelEvent = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallArguments | Retrying | ModelEnded
"""What a model yields; `ModelEnded` last, and once."""
