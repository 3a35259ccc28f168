"""An agent: a model, what it is told, and what it may use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from littleghost import data
from littleghost.cancellation import CancellationToken
from littleghost.delegation import AgentTool
from littleghost.errors import ConfigurationError
from littleghost.message import Message
from littleghost.models.contract import Model
from littleghost.output.declared import Output, T_co
from littleghost.portal import portal
from littleghost.runs.compaction import Compaction
from littleghost.runs.hooks import Hooks
from littleghost.runs.limits import Budget, RunLimits
from littleghost.runs.run import Run
from littleghost.runtime import Runtime
from littleghost.tools.contract import RunContext, Tool, Toolset
from littleghost.tools.function import FunctionTool

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = ["Agent"]

ORDINARY = RunLimits()
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")


class Agent(Generic[T_co]):
    """A value that says who answers and how. It holds no conversation and can be used by any number of runs at once.

    Args:
        model: A `Model`, or a string such as ``openai:gpt-5`` or ``local:FILE.gguf``.
        instructions: What the model is told first, or a function from the run's context to it.
        tools: Tools, toolsets, and functions, which become tools as by `tool`.
        output: The type of its answers, or an `Output` that says more of them; ``None``, or ``str``, for text as it comes.
        limits: What a run may use.
        compaction: How a conversation is shown that becomes too long for the model; whole unless given.
        budget: What all runs of a session may use together.
        hooks: What the application does at the turning points of a run; the first is the outermost.
        settings: Options for the model's provider, passed on as they are, such as ``{"temperature": 0}``.
        name: What it is called in spans. A session remembers it, and a run of it goes on only with an agent of the same name.

    Raises:
        ConfigurationError: Something cannot be used as what it was given for, or two tools have one name, or ``output`` has no JSON Schema.
        DataError: ``settings`` is no JSON object.
    """

    __slots__ = (
        "_budget",
        "_compaction",
        "_hooks",
        "_instructions",
        "_limits",
        "_model",
        "_name",
        "_output",
        "_settings",
        "_tools",
    )

    @overload
    def __init__(
        self: Agent[str],
        model: Model | str,
        *,
        instructions: str | Callable[[RunContext[Any]], str] | None = None,
        tools: Sequence[Tool | Toolset | Callable[..., Any]] = (),
        output: None = None,
        limits: RunLimits | None = None,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        settings: Mapping[str, Any] | None = None,
        name: str = "agent",
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: Model | str,
        *,
        instructions: str | Callable[[RunContext[Any]], str] | None = None,
        tools: Sequence[Tool | Toolset | Callable[..., Any]] = (),
        output: type[T_co] | TypeForm[T_co] | Output[T_co],
        limits: RunLimits | None = None,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        settings: Mapping[str, Any] | None = None,
        name: str = "agent",
    ) -> None: ...
    def __init__(
        self,
        model: Model | str,
        *,
        instructions: str | Callable[[RunContext[Any]], str] | None = None,
        tools: Sequence[Tool | Toolset | Callable[..., Any]] = (),
        output: Any = None,
        limits: RunLimits | None = None,
        compaction: Compaction | None = None,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        settings: Mapping[str, Any] | None = None,
        name: str = "agent",
    ) -> None:
        if not isinstance(model, Model | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"model must be a Model or a string such as 'openai:gpt-5', not {data.kind(model)}"
            )
        if not _NAME.fullmatch(name):
            raise ConfigurationError("name must have 1 to 128 characters, none of them a control character")
        if isinstance(tools, str | Tool | Toolset) or not isinstance(tools, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError("tools must be a list of tools, toolsets and functions")
        if limits is not None and not isinstance(limits, RunLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"limits must be RunLimits(…), not {data.kind(limits)}")
        if compaction is not None and not isinstance(compaction, Compaction):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"compaction must be Compaction(…), not {data.kind(compaction)}")
        if budget is not None and not isinstance(budget, Budget):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"budget must be Budget(…), not {data.kind(budget)}")
        self._hooks = tuple(hooks) if isinstance(hooks, Iterable) else (hooks,)  # pyright: ignore[reportUnnecessaryIsInstance]
        for hook in self._hooks:
            if not isinstance(hook, Hooks):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"hooks must be a list of Hooks, not of {data.kind(hook)}")
        self._budget = budget
        self._model = model
        self._compaction = compaction
        self._instructions = instructions
        self._tools = tuple(_as_tool(item) for item in tools)
        names = [item.name for item in self._tools if isinstance(item, Tool)]
        twice = sorted({item for item in names if names.count(item) > 1})
        if twice:
            raise ConfigurationError(f"two tools have the same name: {', '.join(twice)}")
        if output is None or output is str:
            self._output: Output[Any] | None = None
        else:
            self._output = cast("Output[Any]", output) if isinstance(output, Output) else Output(output)
            if self._output.name in names:
                raise ConfigurationError(
                    f"a tool is called {self._output.name!r}, as the answer is; give Output(…, name=…) another name"
                )
        self._limits = limits or ORDINARY
        self._settings: dict[str, Any] = data.unpack(data.pack_object(settings or {}, "settings"))
        self._name = name

    @property
    def name(self) -> str:
        """What it is called."""
        return self._name

    @property
    def model(self) -> Model | str:
        """The model, or the string that names it."""
        return self._model

    @property
    def instructions(self) -> str | Callable[[RunContext[Any]], str] | None:
        """What the model is told first."""
        return self._instructions

    @property
    def tools(self) -> tuple[Tool | Toolset, ...]:
        """What it may use."""
        return self._tools

    @property
    def output(self) -> Output[T_co] | None:
        """What it says of its answers; ``None`` where they are text as it comes."""
        return self._output

    @property
    def limits(self) -> RunLimits:
        """What a run may use."""
        return self._limits

    @property
    def compaction(self) -> Compaction | None:
        """How a long conversation is shown to the model."""
        return self._compaction

    @property
    def budget(self) -> Budget | None:
        """What all runs of a session may use together."""
        return self._budget

    @property
    def hooks(self) -> tuple[Hooks, ...]:
        """What the application does at the turning points of a run."""
        return self._hooks

    @property
    def settings(self) -> Mapping[str, Any]:
        """Options for the model's provider."""
        return self._settings

    def __repr__(self) -> str:
        model = self._model if isinstance(self._model, str) else self._model.name
        return f"Agent({model!r}, name={self._name!r}, tools={len(self._tools)})"

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        input: Any = None,
        timeout: float | None = None,
        max_depth: int = 3,
    ) -> Tool:
        """Return a tool with which another agent gives this one a task. It sees nothing of the other's conversation, only the task.

        It works in a session of its own, in the same store, for the same actor; where the other agent's run stores nothing, neither does
        this. `deps`, workspace, sandbox, cancellation and deadline are those of the other's run, and what it uses counts there.

        Args:
            name: The tool's name; made from the agent's unless given.
            description: What the agent can do, for the model that decides whom to ask.
            input: A type with fields (a dataclass, a `TypedDict`, a msgspec struct) that the task must have. The agent is told its JSON.
                Unless given there is one field, ``task``, a text.
            timeout: Seconds a call may take.
            max_depth: How many agents may be at work inside each other.

        Raises:
            ConfigurationError: Something cannot be used as what it was given for.
        """
        return AgentTool(
            self, name=name, description=description, input=input, timeout=timeout, max_depth=max_depth
        )

    async def ask(
        self,
        message: str | Message | Sequence[Any],
        *,
        timeout: float | None = None,
        cancellation: CancellationToken | None = None,
        deps: Any = None,
        limits: RunLimits | None = None,
        budget: Budget | None = None,
    ) -> Run[T_co]:
        """Ask once, without a store and without a sandbox; see `Runtime.ask` for everything more."""
        async with Runtime() as runtime:
            return await runtime.ask(
                self,
                message,
                timeout=timeout,
                cancellation=cancellation,
                deps=deps,
                limits=limits,
                budget=budget,
            )

    def ask_sync(
        self,
        message: str | Message | Sequence[Any],
        *,
        timeout: float | None = None,
        cancellation: CancellationToken | None = None,
        deps: Any = None,
        limits: RunLimits | None = None,
        budget: Budget | None = None,
    ) -> Run[T_co]:
        """Do what `ask` does, from synchronous code, also inside a running event loop."""
        return portal.call(
            self.ask,
            message,
            timeout=timeout,
            cancellation=cancellation,
            deps=deps,
            limits=limits,
            budget=budget,
        )


def _as_tool(item: Any) -> Tool | Toolset:
    if isinstance(item, Tool | Toolset):
        return item
    if isinstance(item, type) and issubclass(cast("type[Any]", item), Toolset):
        return cast("type[Toolset]", item)()
    if callable(item):
        return FunctionTool(cast("Callable[..., Any]", item))
    raise ConfigurationError(f"tools must be tools, toolsets or functions, not {data.kind(item)}")
