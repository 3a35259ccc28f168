"""Code of the application that a run calls at its turning points."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from littleghost.content import ToolResult, ToolUse
from littleghost.message import Message
from littleghost.models.contract import ModelRequest
from littleghost.tools.contract import RunContext
from littleghost.usage import Usage

if TYPE_CHECKING:
    from littleghost.runs.run import Run

__all__ = ["Hooks"]


class Hooks:
    """What an application does at the turning points of a run. Override what is needed, as a plain or an ``async`` method.

    Of several hooks the first given is the outermost: first in each ``before``, last in each ``after``. A hook that raises ends the run:
    its outcome is ``failed``, and its error what was raised; what is open is settled and kept. (A `ToolError` of `before_tool` or
    `after_tool` is the call's result instead.) A run that is told to stop cancels the hook that it waits for. ``context.state`` is
    the hook's own copy; what it changes there is not kept.
    """

    def before_run(self, context: RunContext[Any], message: Message | None) -> Awaitable[None] | None:
        """Act before anything is committed. ``message`` is what the user says, ``None`` where a run goes on."""

    def before_model(
        self, context: RunContext[Any], request: ModelRequest
    ) -> Awaitable[ModelRequest | None] | ModelRequest | None:
        """Act before a model call. Return another request to send that one; the transcript stays as it is."""

    def after_model(self, context: RunContext[Any], message: Message, usage: Usage) -> Awaitable[None] | None:
        """Act when a model has answered, before the answer is committed."""

    def before_tool(
        self, context: RunContext[Any], call: ToolUse
    ) -> Awaitable[ToolUse | ToolResult | str | None] | ToolUse | ToolResult | str | None:
        """Decide about a call before any call of its answer runs and before a person is asked to approve it.

        Asked again where a person changed the arguments, and where a crash makes an idempotent call run again.

        Returns:
            ``None`` to have it run; the call with another ``input``, which is checked, may need approval itself, and of which the model
            learns only that the arguments were changed; or a result or text, which answers the call in place of the tool.

        Raises:
            ToolError: The call is refused; the model reads the text.
        """

    def after_tool(
        self, context: RunContext[Any], call: ToolUse, result: ToolResult
    ) -> Awaitable[ToolResult | None] | ToolResult | None:
        """Act when a tool has run, before its result is committed. Return another result to have that one stored."""

    def after_run(self, context: RunContext[Any], run: Run[Any]) -> Awaitable[None] | None:
        """Act when a run has ended, whatever its outcome. Not called where it raised."""
