"""The answer of a run brought into its type: which way, read by what, and shown while it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from littleghost import data, events
from littleghost.errors import CapabilityError, ConfigurationError, ToolError
from littleghost.models.contract import AnswerFormat, Model
from littleghost.output.declared import Output
from littleghost.output.form import Form, MisfitError
from littleghost.output.partial import PartialJSON
from littleghost.runs.effects import AnswerRule, Read, Unfit
from littleghost.tools.contract import RunContext, Tool

__all__ = ["Shaping"]

TAKEN = "The answer was taken."
UNFIT = "The answer cannot be used:\n{reasons}\n"


class Shaping:
    """The way from a model to a value of the type that the agent declares.

    Args:
        output: What the agent declares.
        model: The model.
        tools: What else the model may call.

    Attributes:
        tool: The tool that takes the answer, or ``None`` where the provider holds the text to a schema.
        format: That schema, or ``None``.
        tool_choice: What the model has to call.
        rule: What the loop goes by.

    Raises:
        CapabilityError: The provider is to hold the answer to a schema, and cannot.
        ConfigurationError: A tool has the name that is the answer's.
    """

    def __init__(self, output: Output[Any], model: Model, tools: Sequence[Tool]) -> None:
        can = "answer_format" in model.capabilities
        if output.strategy == "native" and not can:
            raise CapabilityError(
                f"output: {model.name} cannot hold an answer to a schema; use Output(…, strategy='tool')"
            )
        if any(tool.name == output.name for tool in tools):
            raise ConfigurationError(
                f"output: a tool is called {output.name!r} too; give Output(…, name=…) another name"
            )
        self._form = output.form
        self._last: tuple[Any, Read] | None = None
        self.tool: Tool | None = None
        self.format: AnswerFormat | None = None
        self.tool_choice = "auto"
        if can and output.strategy != "tool":
            self.format = AnswerFormat(
                name=output.name, schema=self._form.schema, description=output.description
            )
            again = "Answer again, with JSON that fits."
        else:
            self.tool = _AnswerTool(output, self)
            if "tool_choice" in model.capabilities:
                self.tool_choice = "required"
            again = f"Give the answer by calling {output.name}."
        self.rule = AnswerRule(tool=output.name, repair=UNFIT + again, repairs=output.repairs)

    def read(self, written: str | dict[str, Any]) -> Read | Unfit:
        """Return an answer as a value, or what is wrong with it."""
        if self._last is not None and self._last[0] == written:
            return self._last[1]
        try:
            form = self._form
            value = form.read_text(written) if isinstance(written, str) else form.read(data.copy(written))
        except MisfitError as error:
            if self.tool is not None and isinstance(written, str) and not written.lstrip().startswith("{"):
                return Unfit((f"the answer is a text and not a call of {self.tool.name}",))
            return Unfit(error.reasons)
        read = Read(value)
        self._last = (written, read)
        return read

    def preview(self) -> Preview:
        """Return what shows the answer of one model call while it is written."""
        return Preview(self._form, None if self.tool is None else self.tool.name)


class _AnswerTool(Tool):
    """Takes the answer. Reading it again does no harm, so a call that a crash left open is settled by itself."""

    idempotent = True

    def __init__(self, output: Output[Any], shaping: Shaping) -> None:
        self.name = output.name
        self.description = f"Give the final answer. {output.description}".strip()
        self.schema = output.form.schema
        self._shaping = shaping

    async def call(self, arguments: dict[str, Any], context: RunContext[Any]) -> str:
        """Say whether the answer fits."""
        outcome = self._shaping.read(arguments)
        if type(outcome) is Unfit:
            again = f"Call {self.name} again, with arguments that fit."
            raise ToolError(UNFIT.format(reasons="\n".join(outcome.reasons)) + again)
        return TAKEN


class Preview:
    """Follows the events of a model call and says what there is of the answer.

    Args:
        form: How the answer is written.
        tool: The tool that it is given by, or ``None`` where it is the text.
    """

    def __init__(self, form: Form, tool: str | None) -> None:
        self._form = form
        self._tool = tool
        self._index: int | None = None
        self._json = PartialJSON()
        self._shown: Any = msgspec.UNSET

    def hear(self, event: Any) -> Any:
        """Return what ``event`` makes of the answer, or ``msgspec.UNSET`` where there is nothing new to show."""
        if isinstance(event, events.Retrying):
            self._index, self._json, self._shown = None, PartialJSON(), msgspec.UNSET
        elif isinstance(event, events.TextDelta) and self._tool is None:
            self._json.feed(event.text)
        elif isinstance(event, events.ToolCallStarted) and event.name == self._tool and self._index is None:
            self._index = event.index
        elif isinstance(event, events.ToolCallArguments) and event.index == self._index:
            self._json.feed(event.arguments)
        return self._new() if self._json.due else msgspec.UNSET

    def rest(self) -> Any:
        """Return what there is at the end, if it is new."""
        return self._new()

    def _new(self) -> Any:
        value = self._form.inside(self._json.read())
        if value is msgspec.UNSET or value == self._shown:
            return msgspec.UNSET
        self._shown = value
        return value
