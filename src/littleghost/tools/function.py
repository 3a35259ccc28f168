"""Tools made from functions: the schema from the type hints, the descriptions from the docstring."""

from __future__ import annotations

import asyncio
import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import msgspec

from littleghost import data
from littleghost.content import Block, Document, Image, Text
from littleghost.errors import ConfigurationError, DataError, ToolValueError
from littleghost.message import BLOCK_TYPES, Message, pack_messages
from littleghost.tools.contract import RunContext, Tool

__all__ = ["FunctionTool", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

_RESULT_TYPES: frozenset[type] = frozenset({Text, Image, Document})
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns?|Raises|Yields?|Notes?|Examples?|Attributes):\s*$")
_OF_NAMES = frozenset({"Args", "Arguments", "Parameters", "Attributes"})
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class FunctionTool(Tool, Generic[P, R]):
    """A tool made from a function; see `tool`. It can still be called as the function it was."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        idempotent: bool = False,
        exclusive: bool = False,
        timeout: float | None = None,
        needs_approval: bool | Callable[[dict[str, Any]], bool] = False,
        external: bool = False,
        retries: int = 2,
    ) -> None:
        self.function = function
        self.name = name or getattr(function, "__name__", "")
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"tool name {self.name!r} must be 1 to 64 letters, digits, '_' or '-'")
        if timeout is not None and (isinstance(timeout, bool | str) or not timeout > 0):
            raise ConfigurationError(f"tool {self.name}: timeout must be more than 0 seconds")
        summary, notes = parse_docstring(inspect.getdoc(function) or "")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"tool {self.name}: retries must be a whole number, and at least 0")
        if not isinstance(needs_approval, bool) and (
            not callable(needs_approval) or inspect.iscoroutinefunction(needs_approval)
        ):
            raise ConfigurationError(
                f"tool {self.name}: needs_approval must be a bool, or a function of the arguments that is not async"
            )
        self.description = description or summary
        self.idempotent, self.exclusive, self.timeout = idempotent, exclusive, timeout
        self.needs_approval, self.external, self.retries = needs_approval, external, retries
        self._context_name, self._arguments = _signature(self.name, function, notes)
        self._is_async = inspect.iscoroutinefunction(function)
        self.schema = schema_of(self._arguments)
        self.__doc__ = function.__doc__
        self.__name__ = self.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as if it were no tool."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def validate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return ``arguments`` checked against the hints and with their defaults, as JSON values."""
        return msgspec.to_builtins(self._checked(arguments))

    def _checked(self, arguments: dict[str, Any]) -> msgspec.Struct:
        try:
            return msgspec.convert(arguments, self._arguments)
        except (msgspec.ValidationError, ValueError, RecursionError) as error:
            raise ToolValueError(f"invalid arguments: {error}") from error

    async def call(self, arguments: dict[str, Any], context: RunContext[Any]) -> Any:
        """Check ``arguments`` against the hints and call the function; one that is not async runs in a thread."""
        given = self._checked(arguments)
        values: dict[str, Any] = {name: getattr(given, name) for name in self._arguments.__struct_fields__}
        if self._context_name is not None:
            values[self._context_name] = context
        function = cast("Callable[..., Any]", self.function)
        if self._is_async:
            return await function(**values)
        answer = await asyncio.to_thread(_outside_generators, function, values)
        return await answer if inspect.isawaitable(answer) else answer


def _outside_generators(function: Callable[..., Any], values: dict[str, Any]) -> Any:
    """Call ``function``, with StopIteration turned into an error that a future can carry; else it would be awaited for ever."""
    try:
        return function(**values)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    exclusive: bool = False,
    timeout: float | None = None,
    needs_approval: bool | Callable[[dict[str, Any]], bool] = False,
    external: bool = False,
    retries: int = 2,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool from a function.

    The parameters' hints become the JSON Schema, and what a model sends is checked against it; the docstring's first part
    becomes the description, its ``Args:`` section those of the parameters. A parameter hinted as `RunContext` is not
    part of the schema and gets the call's context. A function that is not async runs in a thread.

    Args:
        function: The function, where the decorator has no arguments.
        **options: ``name`` and ``description`` in place of the function's own; ``idempotent``: a call that a crash
            interrupted runs again; ``exclusive``: no other call runs beside it; ``timeout``: seconds a call may take;
            ``needs_approval``, ``external`` and ``retries``: see `Tool`.

    Raises:
        ConfigurationError: The function cannot be a tool.
    """
    if function is None:
        return partial(cast("Any", FunctionTool), **options)
    return FunctionTool(function, **options)


def result_content(value: Any) -> tuple[Block, ...]:
    """Return what a tool returned as content: a string as one text block, blocks as they are, anything else as its JSON.

    Raises:
        DataError: It has no exact JSON form.
    """
    if isinstance(value, str):
        return (Text(data.check_text(value, "result")),)
    items = cast("Sequence[Any]", value if isinstance(value, list | tuple) else (value,))
    if not BLOCK_TYPES.isdisjoint(map(type, items)):
        if not _RESULT_TYPES.issuperset(map(type, items)):
            raise DataError.at(
                "result", "blocks of a result are Text, Image or Document, with nothing else beside them"
            )
        return pack_messages((Message("tool", items),), "result")[1][0].content
    try:
        plain: Any = msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError.at("result", f"has no JSON form: {error}") from error
    return (Text(data.pack(plain, "result").decode()),)


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description in a Google-style docstring, and what it says of each parameter or attribute."""
    summary: list[str] = []
    notes: dict[str, str] = {}
    section: str | None = None
    current = ""
    indent = 0
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if heading:
            section, current, indent = heading[1], "", 0
            continue
        if section is None:
            summary.append(line)
            continue
        if line.strip() and not line[0].isspace():
            section = None
            summary.append(line)
            continue
        if section not in _OF_NAMES or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        entry = _ENTRY.match(line.strip()) if depth <= indent else None
        if entry:
            current = entry[1]
            notes[current] = entry[2].strip()
        elif current:
            notes[current] = f"{notes[current]} {line.strip()}".strip()
    return "\n".join(summary).strip(), notes


def _signature(
    name: str, function: Callable[..., Any], notes: dict[str, str]
) -> tuple[str | None, type[msgspec.Struct]]:
    """Return the name of the context's parameter, if there is one, and a struct of the others."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(f"tool {name}: its type hints cannot be resolved: {error}") from error
    context_name: str | None = None
    fields: list[tuple[str, Any, Any]] = []
    for parameter in parameters.values():
        hint = hints.get(parameter.name, Any)
        if _is_context(hint):
            if context_name is not None:
                raise ConfigurationError(
                    f"tool {name}: parameters {context_name!r} and {parameter.name!r} both take the context"
                )
            context_name = parameter.name
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(
                f"tool {name}: parameter {parameter.name!r} must be an ordinary one with a name"
            )
        if parameter.name in notes:
            hint = typing.Annotated[hint, msgspec.Meta(description=notes[parameter.name])]
        default: Any = msgspec.NODEFAULT if parameter.default is parameter.empty else parameter.default
        if isinstance(default, list | dict | set) and default:
            default = msgspec.field(default_factory=cast("Any", default).copy)
        try:
            msgspec.json.schema(hint)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"tool {name}: the hint of parameter {parameter.name!r} has no JSON Schema; use plain types, dataclasses, "
                "TypedDicts or msgspec structs"
            ) from error
        fields.append((parameter.name, hint, cast("Any", default)))
    try:
        struct = msgspec.defstruct(f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
        msgspec.json.schema(struct)  # the defaults are part of it
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"tool {name}: its parameters cannot be used: {error}") from error
    return context_name, struct


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):  # RunContext | None
        return any(map(_is_context, typing.get_args(hint)))
    return hint is RunContext or typing.get_origin(hint) is RunContext


def schema_of(arguments: Any) -> dict[str, Any]:
    """Return the JSON Schema of ``arguments``, a type with fields: the object itself on top, what it refers to under ``$defs``."""
    (top,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema = dict(components.pop(cast("str", top["$ref"]).rsplit("/", 1)[-1]))
    schema.pop("title", None)
    if components:
        schema["$defs"] = components
    return schema
