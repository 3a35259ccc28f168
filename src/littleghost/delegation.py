"""An agent as a tool of another: it works in a session of its own, and answers with its last word."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from littleghost import data
from littleghost.errors import ConfigurationError, ToolError, ToolValueError
from littleghost.message import Message
from littleghost.runs.run import Run
from littleghost.runtime import Runnable, Runtime
from littleghost.tools.contract import RunContext, Tool, ToolPending
from littleghost.tools.function import schema_of

__all__ = ["AgentTool"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent is asked."""

    task: str


class AgentTool(Tool):
    """Hands a task to an agent; see `Agent.as_tool`.

    A call that was interrupted runs again, and that is no harm: the agent goes on in its session where it was.
    """

    idempotent = True

    def __init__(
        self,
        agent: Runnable,
        *,
        name: str | None = None,
        description: str | None = None,
        input: Any = None,
        timeout: float | None = None,
        max_depth: int = 3,
    ) -> None:
        self.agent = agent
        self.name = name if name is not None else re.sub(r"[^A-Za-z0-9_-]+", "_", agent.name)[:64]
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"tool name {self.name!r} must be 1 to 64 letters, digits, '_' or '-'")
        if timeout is not None and (isinstance(timeout, bool | str) or not timeout > 0):
            raise ConfigurationError(f"tool {self.name}: timeout must be more than 0 seconds")
        if type(max_depth) is not int or max_depth < 1:
            raise ConfigurationError(f"tool {self.name}: max_depth must be a whole number, at least 1")
        self.description = (
            description
            or f"Gives a task to the agent {agent.name}, who sees nothing of this conversation, and returns its answer."
        )
        self.timeout = timeout
        # The tools inside have theirs first, and then there is something to commit.
        self.grace = Tool.grace + max(
            [tool.grace for tool in agent.tools if isinstance(tool, Tool)], default=0.0
        )
        self._max_depth = max_depth
        self._input: Any = Task if input is None else input
        try:
            self.schema = schema_of(self._input)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"tool {self.name}: input must be a type with fields, such as a dataclass, a TypedDict or a msgspec struct"
            ) from error

    def __repr__(self) -> str:
        return f"<agent as tool {self.name}>"

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return ``arguments`` checked and with their defaults, as JSON values."""
        return msgspec.to_builtins(self._checked(arguments))

    def _checked(self, arguments: dict[str, Any]) -> Any:
        try:
            return msgspec.convert(arguments, self._input)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise ToolValueError(f"invalid arguments: {error}") from error

    async def call(self, arguments: dict[str, Any], context: RunContext[Any]) -> Any:
        """Ask the agent, or go on with what it has begun for this call, and return its answer."""
        given = self._checked(arguments)
        if context.depth >= self._max_depth:
            raise ToolError(
                f"The agent was not asked: {context.depth} agents are at work inside each other, and that is the limit."
            )
        message = Message.user(given.task if isinstance(given, Task) else data.pack(arguments).decode())
        if context.delegate is not None:
            run = cast("Run", await context.delegate(self.agent, message, context))
        else:
            async with Runtime() as runtime:  # called by itself, as in a test
                run = await runtime.ask(
                    self.agent, message, deps=context.deps, cancellation=context.cancellation
                )
        return self._answer(run)

    def _answer(self, run: Run) -> Any:
        """Return what a run came to, for the model that asked."""
        if run.outcome == "suspended":
            raise ToolPending(run.pending)
        if run.outcome == "completed":
            return run.output
        why = type(run.error).__name__
        if run.outcome == "partial" and run.text:
            return f"[The agent was stopped before it had finished ({why}). What it had written:]\n{run.text}"
        written = f" What it had written: {run.text}" if run.text else ""
        raise ToolError(f"The agent did not finish: its run {_BECAME[run.outcome]} ({why}).{written}")


_BECAME = {"failed": "failed", "cancelled": "was cancelled", "partial": "was stopped"}
