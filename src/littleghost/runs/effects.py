"""What the loop asks of whoever drives it, and what it is told: effects out, outcomes in."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from msgspec import Struct, field

from littleghost.content import ToolResult, ToolUse
from littleghost.errors import DeadlineExceeded, LimitExceededError, RunCancelled
from littleghost.message import Message
from littleghost.runs.notes import Notes
from littleghost.usage import Usage

__all__ = ["Ending", "ToolTraits"]

Outcome = Literal["completed", "partial", "failed", "cancelled", "suspended"]


class ToolTraits(Struct, frozen=True, gc=False):
    """What the loop has to know of a tool."""

    idempotent: bool = False
    exclusive: bool = False


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


class StartTools(Struct, frozen=True, gc=False):
    """Start these calls, side by side. ``position`` is where their answer lies in the store. The outcome is ``None``."""

    calls: tuple[ToolUse, ...]
    position: int


class AwaitTool(Struct, frozen=True, gc=False):
    """Wait until one of the started tools ends. The outcome is its `ToolResult`, or an `Interrupted` with those of all that ended."""


class Emit(Struct, frozen=True, gc=False):
    """Tell whoever listens. The outcome is ``None``."""

    event: Any


Effect = CommitMessages | CallModel | Summarise | StartTools | AwaitTool | Emit

# Outcomes


class Failed(Struct, frozen=True):
    """A model call failed, after it streamed ``text``."""

    error: Exception
    text: str = ""


class Interrupted(Struct, frozen=True):
    """The run was told to stop: what the model streamed so far, or the tools that ended all the same."""

    error: Exception
    text: str = ""
    results: tuple[ToolResult, ...] = ()


class Ending(Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        outcome: The run's outcome.
        text: The last answer's text, or what there was of it.
        error: What ended the run early.
    """

    outcome: Outcome
    text: str = ""
    error: Exception | None = None


NOTHING = Notes()


class Book(Struct, kw_only=True):
    """What a run counts, and the conversation as it knows it, reasoning included.

    ``notes`` are what the next commit writes, ``noted`` what the last one wrote: the same object where nothing has changed.
    """

    messages: list[Message]
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    tool_calls: int = 0
    text: str = ""
    notes: Notes = NOTHING
    noted: Notes = NOTHING


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
