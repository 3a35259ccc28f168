"""The model calls of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import msgspec

from littleghost import data, events
from littleghost.cancellation import Deadline
from littleghost.errors import (
    ConfigurationError,
    LittleGhostError,
    ModelError,
    ModelProtocolError,
    StoreError,
)
from littleghost.message import Message
from littleghost.models.contract import Model, ModelRequest, ToolSpec
from littleghost.runs.effects import CallModel, Failed, Interrupted, Summarise
from littleghost.runs.emitter import Emitter
from littleghost.runs.hooking import HookChain, HookFailed
from littleghost.runs.stopping import Stopped, Stopping
from littleghost.runs.tracing import Content, ModelSpan, model_span
from littleghost.tools.contract import Tool
from littleghost.usage import Usage

if TYPE_CHECKING:
    from littleghost.runs.shaping import Shaping

__all__ = ["ModelCalls"]

log = logging.getLogger("littleghost")

MODEL_EVENTS: frozenset[type] = frozenset(get_args(events.ModelEvent))


class ModelCalls:
    """Calls the model of a run.

    Args:
        model: The model.
        instructions: What it is told first, or ``None``.
        settings: Options of its provider.
        tools: What it may call.
        deadline: When the run must have ended.
        emitter: Whom to tell.
        stopping: What cuts a call short.
        purpose: What it is called for. What it writes in a ``summary`` is not passed on.
        hooks: What the application does before and after.
        content: What spans may tell of what is said.
        shaping: How the answer gets its type, or ``None``.
    """

    def __init__(
        self,
        model: Model,
        *,
        instructions: str | None,
        settings: Mapping[str, Any],
        tools: Sequence[Tool],
        deadline: Deadline | None,
        emitter: Emitter,
        stopping: Stopping,
        content: Content,
        purpose: Literal["answer", "summary"] = "answer",
        hooks: HookChain | None = None,
        shaping: Shaping | None = None,
    ) -> None:
        self._model = model
        self._purpose: Literal["answer", "summary"] = purpose
        told = data.check_text(instructions, "instructions") if instructions else ""
        self._instructions = [Message.system(told)] if told else []
        self._settings = dict(settings)
        self.specs = tuple(
            [ToolSpec(name=tool.name, description=tool.description, schema=tool.schema) for tool in tools]
        )
        self._deadline = deadline
        self._emitter = emitter
        self._stopping = stopping
        hooked = hooks is not None and (hooks.has("before_model") or hooks.has("after_model"))
        self._hooks = hooks if hooked else None
        self._content = content
        self._shaping = shaping
        self._format = None if shaping is None else shaping.format
        self._tool_choice = "auto" if shaping is None else shaping.tool_choice

    async def call(self, effect: CallModel | Summarise) -> Any:
        """Call the model; return its `ModelEnded`, or `Failed` or `Interrupted`."""
        deadline = self._deadline
        request = ModelRequest(
            messages=[*self._instructions, *effect.messages],
            tools=self.specs,
            settings=self._settings,
            timeout=None if deadline is None else deadline.remaining(),
            tool_choice=self._tool_choice,
            format=self._format,
        )
        heard: list[str] = []
        self._emitter.emit(
            events.ModelStarted(step=effect.step, model=self._model.name, purpose=self._purpose)
        )
        ended: list[Usage] = []
        sent = self._stopping.error is None
        try:
            with model_span(self._model, request, self._content) as span:
                hooks = self._hooks
                work = (
                    self._listen_to(request, heard, span)
                    if hooks is None
                    else self._with_hooks(hooks, request, heard, span, ended)
                )
                answer = await self._stopping.cut(work)
                span.answered(answer)
                return answer
        except Stopped:
            used = None if not sent else _estimated(request, heard)
            return Interrupted(cast("Exception", self._stopping.error), self._written(heard), usage=used)
        except HookFailed as failure:
            return Failed(failure.error, "".join(heard), ended[0] if ended else None)
        except (ConfigurationError, StoreError):
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if not isinstance(error, LittleGhostError):
                log.exception("model %s failed", self._model.name)
            if not isinstance(error, Exception):
                fault = ModelError(f"{self._model.name} failed ({type(error).__name__})")
                fault.__cause__ = error
                error = fault
            return Failed(error, self._written(heard), _estimated(request, heard) if heard else None)

    def _written(self, heard: list[str]) -> str:
        """Return what there is of an answer; half a summary is nothing."""
        return "".join(heard) if self._purpose == "answer" else ""

    async def _with_hooks(
        self,
        hooks: HookChain,
        request: ModelRequest,
        heard: list[str],
        span: ModelSpan,
        ended: list[Usage],
    ) -> events.ModelEnded:
        answer = await self._listen_to(await hooks.before_model(request), heard, span)
        ended.append(answer.usage)
        await hooks.after_model(answer.message, answer.usage)
        return answer

    async def _listen_to(self, request: ModelRequest, heard: list[str], span: ModelSpan) -> events.ModelEnded:
        ended: events.ModelEnded | None = None
        preview = None if self._shaping is None or not self._emitter.heard else self._shaping.preview()
        stream = self._model.stream(request)
        close = getattr(stream, "aclose", None)  # generators have it; an iterator need not
        try:
            async for event in stream:
                if type(event) is events.ModelEnded:
                    ended = event
                    break
                if type(event) not in MODEL_EVENTS:
                    raise ModelProtocolError(
                        f"{self._model.name} yielded {data.kind(event)} in place of an event"
                    )
                span.heard()
                if type(event) is events.TextDelta:
                    heard.append(event.text)
                elif type(event) is events.Retrying:
                    heard.clear()
                if self._emitter.heard and (self._purpose == "answer" or type(event) is events.Retrying):
                    self._emitter.emit(event)
                    if preview is not None:
                        self._show(preview.hear(event))
                    await self._emitter.ready()
        finally:
            if close is not None:
                await close()
        if preview is not None:
            self._show(preview.rest())
        if ended is None:
            raise ModelProtocolError(f"{self._model.name} ended its stream without an answer")
        if not isinstance(ended.message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModelProtocolError(
                f"{self._model.name} answered with {data.kind(ended.message)} in place of a Message"
            )
        return ended

    def _show(self, value: Any) -> None:
        if value is not msgspec.UNSET:
            self._emitter.emit(events.OutputDelta(value=value))


def _estimated(request: ModelRequest, heard: Sequence[str]) -> Usage:
    """Return about what a call cost that ended before its provider could say so."""
    from littleghost.runs.compaction import fixed_size, size_of  # most runs do without it

    read = sum(map(size_of, request.messages))
    return Usage(
        input_tokens=read + fixed_size(None, request.tools),
        output_tokens=size_of(Message.assistant("".join(heard))),
    )
