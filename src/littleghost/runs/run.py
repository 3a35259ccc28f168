"""What comes out of a run."""

from __future__ import annotations

from typing import Any, Generic, Self, cast

from msgspec import Struct

from littleghost.content import ToolUse
from littleghost.errors import OutputError
from littleghost.message import Message
from littleghost.output.declared import T_co
from littleghost.runs.effects import Outcome
from littleghost.runs.limits import Spent
from littleghost.usage import Usage

__all__ = ["Run"]


class Run(Struct, Generic[T_co], frozen=True, kw_only=True):
    """What came out of a run.

    Attributes:
        id: The run's id.
        outcome: ``completed``; ``partial``: a limit or the deadline was reached; ``failed``: the model failed; ``cancelled``;
            ``suspended``: answers are awaited.
        text: The last answer, or what there was of it.
        messages: The whole conversation, in normalised form.
        state: The session's state.
        usage: The tokens of all model calls.
        error: What ended the run early, else ``None``.
        steps: How often the model was called.
        pending: The calls that wait for answers, where the run is suspended.
        session_id: The session, or ``None`` where nothing is stored.
        cost: US dollars of all model calls, where the runtime has prices and knows the model's; else ``None``.
        spent: What all runs of the session have used, this one included; ``None`` where none of them had a `Budget`.
        answer: What `output` gives: ``(value,)``; ``()`` where no answer was reached; ``None`` where the agent declares no type.
    """

    id: str
    outcome: Outcome
    text: str
    messages: list[Message]
    state: dict[str, Any]
    usage: Usage
    steps: int
    error: Exception | None = None
    pending: tuple[ToolUse, ...] = ()
    session_id: str | None = None
    cost: float | None = None
    spent: Spent | None = None
    answer: tuple[T_co] | tuple[()] | None = None

    @property
    def output(self) -> T_co:
        """The answer in the type that the agent declares; its text where it declares none.

        Raises:
            OutputError: The agent declares a type, and the run ended without an answer.
            Exception: The same, and `error` says why.
        """
        if self.answer is None:
            return cast("Any", self.text)
        if self.answer:
            return self.answer[0]
        if self.error is not None:
            raise self.error
        raise OutputError(f"the run is {self.outcome} and has no answer", text=self.text)

    def check(self) -> Self:
        """Return the run itself, or raise `error` where there is one."""
        if self.error is not None:
            raise self.error
        return self
