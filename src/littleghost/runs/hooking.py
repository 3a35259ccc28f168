"""The hooks of a run, called in their order."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from littleghost import data
from littleghost.content import ToolResult, ToolUse, made_of
from littleghost.errors import ConfigurationError, DataError, ToolError
from littleghost.message import Message
from littleghost.models.contract import ModelRequest
from littleghost.runs.hooks import Hooks
from littleghost.runs.results import result_of
from littleghost.runs.run import Run
from littleghost.tools.contract import RunContext
from littleghost.usage import Usage

__all__ = ["HookChain", "HookFailed"]


class HookFailed(Exception):
    """A hook raised ``error``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class HookChain:
    """Calls the hooks of a run: those before something in the order they were given, those after it in the other.

    Each method raises `HookFailed` where a hook fails.

    Args:
        hooks: The hooks.
        context: Makes what they learn of the run.
    """

    def __init__(self, hooks: Sequence[Hooks], context: Callable[[ToolUse | None], RunContext[Any]]) -> None:
        self._context = context
        self._methods = {
            name: [
                getattr(hook, name) for hook in hooks if getattr(type(hook), name) is not getattr(Hooks, name)
            ]
            for name in (
                "before_run",
                "before_model",
                "after_model",
                "before_tool",
                "after_tool",
                "after_run",
            )
        }
        for name in ("after_model", "after_tool", "after_run"):
            self._methods[name].reverse()

    def has(self, name: str) -> bool:
        """Whether a hook overrides the method ``name``."""
        return bool(self._methods[name])

    async def before_run(self, message: Message | None) -> None:
        """Call what is to be done before a run."""
        for method in self._methods["before_run"]:
            await _call(method, self._context(None), message)

    async def before_model(self, request: ModelRequest) -> ModelRequest:
        """Return the request as the hooks will have it."""
        methods = self._methods["before_model"]
        if methods:
            messages = [_own(each) for each in request.messages]
            request = msgspec.structs.replace(request, messages=messages, settings=dict(request.settings))
        for method in methods:
            made = await _call(method, self._context(None), request)
            if made is not None:
                request = _expected(made, (ModelRequest,), method)
        return request

    async def after_model(self, message: Message, usage: Usage) -> None:
        """Call what is to be done with an answer."""
        for method in self._methods["after_model"]:
            await _call(method, self._context(None), _own(message), usage)

    async def before_tool(self, call: ToolUse) -> ToolUse | ToolResult:
        """Return the call as the hooks will have it, or what answers it.

        Raises:
            ToolError: A hook refuses it.
        """
        for method in self._methods["before_tool"]:
            made = await _call(method, self._context(call), _own_call(call))
            if made is None:
                continue
            made = _expected(made, (ToolUse, ToolResult, str), method)
            if not isinstance(made, ToolUse):
                return _result(call, made, method)
            if (made.id, made.name) != (call.id, call.name):
                raise HookFailed(
                    ConfigurationError(f"{_name(method)} may change the input of a call, not its id or name")
                )
            call = _with_input(call, made.input, method)
        return call

    async def after_tool(self, call: ToolUse, result: ToolResult) -> ToolResult:
        """Return the result as the hooks will have it.

        Raises:
            ToolError: It is to be this error instead.
        """
        for method in self._methods["after_tool"]:
            made = await _call(method, self._context(call), _own_call(call), result)
            if made is not None:
                result = _result(call, _expected(made, (ToolResult,), method), method)
        return result

    async def after_run(self, run: Run[Any]) -> None:
        """Call what is to be done with a run."""
        for method in self._methods["after_run"]:
            await _call(method, self._context(None), run)


async def _call(method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        made = method(*arguments)
        return await made if inspect.isawaitable(made) else made
    except ToolError as error:
        if method.__name__ in ("before_tool", "after_tool"):
            raise
        raise HookFailed(error) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        fault = RuntimeError(f"{_name(method)} was cancelled from within")  # by nobody who may stop the run
        raise HookFailed(fault) from error
    except Exception as error:
        raise HookFailed(error) from error


def _own(message: Message) -> Message:
    """Return ``message`` for a hook, which may do what it likes with it: the arguments of calls are copies."""
    if not message.tool_uses:
        return message
    content = [_own_call(block) if isinstance(block, ToolUse) else block for block in message.content]
    return made_of(Message, message.role, tuple(content), message.metadata)


def _own_call(call: ToolUse) -> ToolUse:
    return made_of(ToolUse, id=call.id, name=call.name, input=deepcopy(call.input))


def _expected(made: Any, kinds: tuple[type, ...], method: Callable[..., Any]) -> Any:
    if isinstance(made, kinds):
        return made
    names = " or ".join(kind.__name__ for kind in kinds)
    raise HookFailed(
        ConfigurationError(f"{_name(method)} must return {names} or None, not {data.kind(made)}")
    )


def _result(call: ToolUse, made: Any, method: Callable[..., Any]) -> ToolResult:
    try:
        return result_of(call, made)
    except DataError as error:
        raise HookFailed(DataError.at(_name(method), f"{error.path}: {error.reason}")) from error


def _with_input(call: ToolUse, arguments: Any, method: Callable[..., Any]) -> ToolUse:
    try:
        packed = data.pack_object(arguments, f"{_name(method)}: input")
    except ValueError as error:
        raise HookFailed(error) from error
    if packed == data.pack(call.input):
        return call  # a hook that returns what it was shown has changed nothing
    return made_of(ToolUse, id=call.id, name=call.name, input=data.unpack(packed))


def _name(method: Any) -> str:
    return f"{type(method.__self__).__name__}.{method.__name__}"
