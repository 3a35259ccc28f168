"""What the loop asks of whoever drives it, and what it is told: effects out, outcomes in."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct, field

from littleghost.content import ToolResult, ToolUse
from littleghost.errors import DeadlineExceeded, LimitExceededError, RunCancelled
from littleghost.message import Message
from littleghost.runs.limits import Spent
from littleghost.runs.notes import Answer, Notes
from littleghost.usage import Usage

__all__ = ["Ending", "ToolTraits"]

Outcome = Literal["completed", "partial", "failed", "cancelled", "suspended"]


class ToolTraits(Struct, frozen=True, gc=False):
    """What the loop has to know of a tool.

    Attributes:
        idempotent: A call may run again after a crash.
        exclusive: No other call runs beside it.
        asks: A call may need approval.
        external: A call is answered from elsewhere.
        checked: Something has to be asked about a call before it runs: whether it needs approval, or what a hook makes of it.
    """

    idempotent: bool = False
    exclusive: bool = False
    asks: bool = False
    external: bool = False
    checked: bool = False
    gives_answer: bool = False


class AnswerRule(Struct, frozen=True, kw_only=True, gc=False):
    """What the loop has to know of answers in a type.

    Attributes:
        tool: The tool that an answer is given by.
        repair: What the model is told of an answer in text that does not fit, with ``{reasons}`` in it.
        repairs: How often the model is asked again.
    """

    tool: str
    repair: str
    repairs: int


# Effects


class CommitMessages(Struct, frozen=True, gc=False):
    """Store these messages, with the state and the book's notes as they are now. The outcome is how many messages were stored before."""

    messages: tuple[Message, ...]


class CallModel(Struct, frozen=True, gc=False):
    """Call the model with this conversation. The outcome is a `ModelEnded`, a `Failed` or an `Interrupted`."""

    messages: list[Message]
    step: int


class Summarise(Struct, frozen=True, gc=False):
    """Have these messages summarised, before the model call ``step``. The outcome is that of `CallModel`."""

    messages: list[Message]
    step: int


class CheckCalls(Struct, frozen=True, gc=False):
    """Ask, one call after another, what hooks make of it and whether it needs approval.

    The outcome is by call id: a `ToolUse` to run, an `Ask` where a person must approve it, or the `ToolResult` that answers it; or an
    `Interrupted`, where the run was told to stop or a hook failed.
    """

    calls: tuple[ToolUse, ...]


class StartTools(Struct, frozen=True, gc=False):
    """Start these calls, side by side. The outcome is ``None``.

    Attributes:
        calls: The calls, with the arguments that they are to run with.
        position: Where their answer lies in the store.
        given: What was answered to the calls that a call's tool waits for; by the id of the call and by their own ids.
    """

    calls: tuple[ToolUse, ...]
    position: int
    given: Mapping[str, Mapping[str, Answer]] = MappingProxyType({})


class AwaitTool(Struct, frozen=True, gc=False):
    """Wait until one of the started tools ends. The outcome is a `ToolResult` or `Waiting`, or an `Interrupted` with those of all."""


class ReadAnswer(Struct, frozen=True, gc=False):
    """Read an answer, JSON text or what the call of a tool holds, into its type. The outcome is a `Read` or an `Unfit`."""

    written: str | dict[str, Any]


class Emit(Struct, frozen=True, gc=False):
    """Tell whoever listens. The outcome is ``None``."""

    event: Any


Effect = CommitMessages | CallModel | Summarise | CheckCalls | StartTools | AwaitTool | ReadAnswer | Emit

# Outcomes


class Failed(Struct, frozen=True):
    """A model call failed, after it streamed ``text``; ``usage`` where it had ended all the same, or as far as it can be estimated."""

    error: Exception
    text: str = ""
    usage: Usage | None = None


class Ask(Struct, frozen=True, gc=False):
    """A call, with the arguments that it is to run with, needs approval."""

    call: ToolUse


class Waiting(Struct, frozen=True, gc=False):
    """The tool of a call ended without a result: it waits for answers to ``calls``."""

    tool_use_id: str
    calls: tuple[ToolUse, ...]


class Interrupted(Struct, frozen=True):
    """The run was told to stop: what the model streamed so far and an estimate of its cost, or the tools that ended all the same."""

    error: Exception
    text: str = ""
    results: tuple[ToolResult | Waiting, ...] = ()
    usage: Usage | None = None


class Given(Struct, frozen=True):
    """What the caller of ``resume`` answered, checked as far as it can be without the calls."""

    approvals: Mapping[str, Answer] = MappingProxyType({})
    results: Mapping[str, ToolResult] = MappingProxyType({})


class Read(Struct, frozen=True):
    """An answer as a value of its type."""

    value: Any


class Unfit(Struct, frozen=True):
    """An answer does not fit its type."""

    reasons: tuple[str, ...]


class Ending(Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        outcome: The run's outcome.
        text: The last answer's text, or what there was of it.
        error: What ended the run early.
        pending: The calls that wait for answers.
        answer: The answer in its type, in a tuple that is empty where there is none.
    """

    outcome: Outcome
    text: str = ""
    error: Exception | None = None
    pending: tuple[ToolUse, ...] = ()
    answer: tuple[Any, ...] = ()


NOTHING = Notes()
UNSPENT = Spent()


class Book(Struct, kw_only=True):
    """What a run counts, and the conversation as it knows it, reasoning included.

    Attributes:
        cost: US dollars, where the prices are known.
        before: What earlier runs of the session used.
        stored: How many messages the store has.
        notes: What the next commit writes.
        noted: What the last one wrote: the same object where nothing has changed.
        last: The last call that was answered, its result, and how often in a row it was the same.
        stuck: Whether a call was refused because it was the same too often: ``1``, and ``2`` after another one.
    """

    messages: list[Message]
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    tool_calls: int = 0
    text: str = ""
    cost: float | None = None
    before: Spent = UNSPENT
    stored: int = 0
    notes: Notes = NOTHING
    noted: Notes = NOTHING
    last: tuple[ToolUse, ToolResult, int] | None = None
    stuck: int = 0

    def count(self, usage: Usage, cost: float | None) -> None:
        """Count what was used, and what that costs, where it is known."""
        self.usage += usage
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost


Machine = Generator[Effect, Any, Ending]
Part = Generator[Effect, Any, Ending | None]

NOT_RUN = "The tool was not run, because the run was stopped before it."
STOPPED = "The tool was stopped before it ended. Whether it took effect is unknown."


def ending_of(error: Exception, text: str) -> Ending:
    """Return how a run ends that ``error`` stopped."""
    if isinstance(error, DeadlineExceeded | LimitExceededError):
        return Ending(outcome="partial", text=text, error=error)
    return Ending(
        outcome="cancelled" if isinstance(error, RunCancelled) else "failed", text=text, error=error
    )
