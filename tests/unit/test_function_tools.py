"""Tools from functions: the schema a model sees, the check of what it sends, and what becomes of the answer."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import datetime as dt
import enum
import math
import threading
from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar

import msgspec
import pytest

from littleghost import (
    Agent,
    ConfigurationError,
    DataError,
    Image,
    RunContext,
    Text,
    Tool,
    ToolError,
    ToolUse,
    tool,
)
from littleghost.testing import ScriptedModel
from littleghost.tools.function import FunctionTool, parse_docstring, result_content


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Point(msgspec.Struct, frozen=True):
    """A place."""

    x: int
    y: float = 0.5


@dataclasses.dataclass
class Order:
    point: Point
    notes: list[str] = dataclasses.field(default_factory=list)


class Options(TypedDict):
    depth: int
    name: NotRequired[str]


def schema(function: Any) -> dict[str, Any]:
    made = FunctionTool(function).schema
    assert (made.pop("type"), made.pop("additionalProperties")) == ("object", False)
    return made


def property_of(hint: Any, default: Any = ...) -> dict[str, Any]:
    """The schema of a parameter with this hint."""

    def function(value=default) -> None: ...

    if default is ...:

        def function(value) -> None: ...

    function.__annotations__["value"] = hint
    made = schema(function)
    assert made["required"] == (["value"] if default is ... else [])
    return made["properties"]["value"]


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (str, {"type": "string"}),
        (Any, {}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (dt.date, {"type": "string", "format": "date"}),
        (Colour, {"$ref": "#/$defs/Colour"}),
        (list[Point], {"type": "array", "items": {"$ref": "#/$defs/Point"}}),
    ],
)
def test_the_schema_of_a_hint(hint: Any, expected: dict[str, Any]):
    assert property_of(hint) == expected


@pytest.mark.parametrize(
    ("hint", "default", "shown"),
    [
        (int, 3, 3),
        (str | None, None, None),
        (Colour, Colour.RED, "red"),
        (Point, Point(1), {"x": 1, "y": 0.5}),
        (list[int], [], []),
    ],
)
def test_a_default_is_shown_and_makes_it_optional(hint: Any, default: Any, shown: Any):
    assert property_of(hint, default)["default"] == shown


def test_nested_types_are_defined_once_below_the_object():
    def order(order: Order, options: Options, colour: Colour, size: Size = Size.SMALL) -> None: ...

    made = schema(order)
    assert set(made) == {"properties", "required", "$defs"}
    assert made["required"] == ["order", "options", "colour"]
    defs = made["$defs"]
    assert set(defs) == {"Order", "Point", "Options", "Colour", "Size"}
    assert defs["Order"]["properties"]["point"] == {"$ref": "#/$defs/Point"}
    assert (defs["Point"]["required"], defs["Point"]["description"]) == (["x"], "A place.")
    assert defs["Options"]["required"] == ["depth"]
    assert (defs["Colour"]["enum"], sorted(defs["Size"]["enum"])) == (["blue", "red"], [1, 2])


def test_a_function_without_parameters():
    def now() -> str: ...

    assert FunctionTool(now).schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


def search(query: str, limit: int = 10, *, deep: bool = False) -> str:
    """Search the catalogue.

    Finds articles by words
    of their titles.

    Args:
        query: Words, separated by spaces;
            more than one line: with a colon.
        limit (int, optional): How many: at most.
        deep: Also in texts.

            A paragraph of its own.

    Returns:
        query: not a parameter.

    Raises:
        ValueError: Never.

    More of the description.
    """
    return f"{query} {limit} {deep}"


def test_descriptions_come_from_the_docstring():
    made = tool(search)
    assert (
        made.description
        == "Search the catalogue.\n\nFinds articles by words\nof their titles.\n\nMore of the description."
    )
    described = {name: each["description"] for name, each in made.schema["properties"].items()}
    assert described == {
        "query": "Words, separated by spaces; more than one line: with a colon.",
        "limit": "How many: at most.",
        "deep": "Also in texts. A paragraph of its own.",
    }
    assert made.schema["required"] == ["query"]


@pytest.mark.parametrize(
    ("text", "description", "notes"),
    [
        ("", "", {}),
        ("One line.", "One line.", {}),
        ("Args:\n    x: Only this.", "", {"x": "Only this."}),
        ("T.\n\nArguments:\n  x: Two spaces.\n  *args: Star.", "T.", {"x": "Two spaces.", "args": "Star."}),
        ("T.\n\nNote: this is no section.", "T.\n\nNote: this is no section.", {}),
        ("T.\n\nArgs:\n    x:\n        Below.", "T.", {"x": "Below."}),
        ("T.\n\nArgs:\n    x: A list:\n        - a: b\n        - c", "T.", {"x": "A list: - a: b - c"}),
        ("T.\n\nExample:\n    x: no.", "T.", {}),
    ],
)
def test_reading_a_docstring(text: str, description: str, notes: dict[str, str]):
    assert parse_docstring(text) == (description, notes)


def test_the_options_of_the_decorator():
    @tool(name="find-it", description="Other.", idempotent=True, exclusive=True, timeout=2.5)
    def find(x: int) -> int:
        """Find."""
        return x

    assert isinstance(find, Tool)
    assert (find.name, find.description, find.idempotent, find.exclusive, find.timeout) == (
        "find-it",
        "Other.",
        True,
        True,
        2.5,
    )
    assert repr(find) == "<tool find-it>"
    plain = tool(search)
    assert (plain.idempotent, plain.exclusive, plain.timeout) == (False, False, None)


# The context


Deps = TypeVar("Deps")


class Own(Generic[Deps]):
    pass


def by_name(x: int, context: RunContext) -> Any:
    return context, x


def by_parameter(ctx: RunContext[Own[int]], x: int) -> Any:
    return ctx, x


def optional(x: int, context: RunContext | None = None) -> Any:
    return context, x


def annotated(x: int, *, c: Annotated[RunContext[int], "note"]) -> Any:
    return c, x


async def quoted(c: "RunContext[Any]", x: int) -> Any:  # noqa: UP037
    return c, x


@pytest.mark.parametrize("function", [by_name, by_parameter, optional, annotated, quoted])
async def test_the_context_is_found_by_its_annotation_and_is_no_argument(function: Any):
    made, context = tool(function), RunContext[Any]()
    assert list(made.schema["properties"]) == ["x"]
    assert await made.call({"x": 3}, context) == (context, 3)
    with pytest.raises(ToolError, match="unknown field"):
        await made.call({"x": 3, "context": {}, "ctx": {}, "c": {}}, context)


def test_two_contexts_are_one_too_many():
    def two(a: RunContext, b: RunContext) -> None: ...

    with pytest.raises(ConfigurationError, match="'a' and 'b' both take the context"):
        tool(two)


# What cannot be a tool


@pytest.mark.parametrize("name", ["", "a b", "é", "a.b", "x" * 65, "a\n"])
def test_a_name_that_no_provider_takes_is_refused(name: str):
    def function() -> None: ...

    function.__name__ = name
    with pytest.raises(ConfigurationError, match="tool name"):
        tool(function)
    if name:
        with pytest.raises(ConfigurationError, match="tool name"):
            tool(name=name)(search)


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_a_timeout_that_is_none_is_refused(timeout: float):
    with pytest.raises(ConfigurationError, match="timeout must be more than 0"):
        tool(timeout=timeout)(search)


def args(*values: int) -> None: ...
def kwargs(**values: int) -> None: ...
def positional(x: int, /) -> None: ...
def unresolved(x: Missing) -> None: ...  # noqa: F821  # type: ignore[name-defined]
def no_schema(x: threading.Thread) -> None: ...
def no_default(x: Any = threading) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (args, "parameter 'values' must be an ordinary one"),
        (kwargs, "parameter 'values' must be an ordinary one"),
        (positional, "parameter 'x' must be an ordinary one"),
        (unresolved, "its type hints cannot be resolved: .*Missing"),
        (no_schema, "the hint of parameter 'x' has no JSON Schema"),
        (no_default, "its parameters cannot be used"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_when_it_is_made(function: Any, reason: str):
    with pytest.raises(ConfigurationError, match=f"^tool {function.__name__}: {reason}"):
        tool(function)
    with pytest.raises(ConfigurationError):
        Agent(ScriptedModel([]), tools=[function])


# Calling


async def called(function: Any, **arguments: Any) -> Any:
    return await tool(function).call(arguments, RunContext())


async def test_arguments_become_what_the_hints_say():
    def take(
        order: Order,
        options: Options,
        colour: Colour,
        day: dt.date,
        size: Size = Size.SMALL,
        number: float = 1,
    ) -> Any:
        return order, options, colour, day, size, number

    given = {
        "order": {"point": {"x": 1}},
        "options": {"depth": 2},
        "colour": "red",
        "day": "2026-01-02",
        "number": 3,
    }
    assert await called(take, **given) == (
        Order(Point(1, 0.5)),
        {"depth": 2},
        Colour.RED,
        dt.date(2026, 1, 2),
        Size.SMALL,
        3,
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "invalid arguments: Object missing required field `query`"),
        ({"query": 1}, "invalid arguments: Expected `str`, got `int` - at `$.query`"),
        ({"query": None}, "invalid arguments: Expected `str`, got `null` - at `$.query`"),
        ({"query": "x", "limit": "3"}, "invalid arguments: Expected `int`, got `str` - at `$.limit`"),
        ({"query": "x", "limit": 1.5}, "invalid arguments: Expected `int`, got `float` - at `$.limit`"),
        ({"query": "x", "deep": 1}, "invalid arguments: Expected `bool`, got `int` - at `$.deep`"),
        ({"query": "x", "more": 1}, "invalid arguments: Object contains unknown field `more`"),
    ],
)
async def test_what_is_wrong_with_arguments_is_told_to_the_model(arguments: dict[str, Any], text: str):
    with pytest.raises(ToolError) as caught:
        await tool(search).call(arguments, RunContext())
    assert str(caught.value) == text


async def test_bounds_are_checked():
    def take(n: Annotated[int, msgspec.Meta(ge=1)]) -> int:
        return n

    assert await called(take, n=1) == 1
    with pytest.raises(ToolError, match=">= 1"):
        await called(take, n=0)


async def test_defaults_that_can_change_are_new_for_each_call():
    def grow(items: list[int] = [1], table: dict[str, int] = {"a": 1}, names: set[str] = set()) -> Any:  # noqa: B006
        items.append(2)
        table["b"] = 2
        names.add("x")
        return items, table, names

    made = tool(grow)
    for _ in range(2):
        assert await made.call({}, RunContext()) == ([1, 2], {"a": 1, "b": 2}, {"x"})


def test_it_is_still_the_function_it_was():
    made = tool(search)
    assert made("q", 3, deep=True) == search("q", 3, deep=True) == "q 3 True"
    assert (made.__name__, made.__doc__) == ("search", search.__doc__)


async def test_an_async_tool_is_awaited_when_called_as_a_function():
    @tool
    async def double(x: int) -> int:
        return 2 * x

    assert await double(2) == await double.call({"x": 2}, RunContext()) == 4


async def test_a_plain_function_runs_in_a_thread_with_the_context_variables():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    here = threading.get_ident()
    met = threading.Barrier(2)

    def meet() -> Any:
        met.wait()  # two at once, or neither
        return threading.get_ident() != here, variable.get()

    assert await asyncio.gather(called(meet), called(meet)) == [(True, "set")] * 2


async def test_what_a_plain_function_returns_may_be_awaitable():
    async def inner() -> int:
        return 5

    def outer() -> Any:
        return inner()

    assert await called(outer) == 5


async def test_exceptions_pass_and_stopiteration_does_not_hang():
    def fail() -> None:
        raise ZeroDivisionError

    def stop() -> None:
        next(iter(()))

    async def stop_async() -> None:
        raise StopIteration

    with pytest.raises(ZeroDivisionError):
        await called(fail)
    for function in (stop, stop_async):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await called(function)


def test_methods_are_tools_of_their_object():
    class Shelf:
        def count(self, sku: str) -> int:
            return len(sku)

    made = tool(Shelf().count)
    assert (made.name, list(made.schema["properties"]), made("abc")) == ("count", ["sku"], 3)


# Results


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text\0", (Text("text\0"),)),
        ("", (Text(""),)),
        (None, (Text("null"),)),
        (True, (Text("true"),)),
        (1.5, (Text("1.5"),)),
        (2**70, (Text(str(2**70)),)),
        ([], (Text("[]"),)),
        ({"a": [1, None]}, (Text('{"a":[1,null]}'),)),
        (("a", 1), (Text('["a",1]'),)),
        ({1: "x"}, (Text('{"1":"x"}'),)),
        (Point(1), (Text('{"x":1,"y":0.5}'),)),
        (Order(Point(1)), (Text('{"point":{"x":1,"y":0.5},"notes":[]}'),)),
        (Colour.RED, (Text('"red"'),)),
        (dt.date(2026, 1, 2), (Text('"2026-01-02"'),)),
        (Text("x"), (Text("x"),)),
        (
            [Text("x"), Image(data=b"1", media_type="image/png")],
            (Text("x"), Image(data=b"1", media_type="image/png")),
        ),
        ((Text("x"),), (Text("x"),)),
        (["x", "y"], (Text('["x","y"]'),)),
    ],
)
def test_what_a_result_becomes(value: Any, content: Any):
    assert result_content(value) == content


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "result"),
        ({"a": [1, math.inf]}, "result.a[1]"),
        ("\ud800", "result"),
        ({"a": "\ud800"}, "result.a"),
        ({"\ud800": 1}, "result"),
        (Point(1, math.nan), "result.y"),
        (object(), "result"),
        ([object()], "result"),
        (threading, "result"),
        (Text("\ud800"), "result[0].content[0].text"),
        ([Text("a"), ToolUse(id="1", name="f")], "result"),
    ],
)
def test_a_result_with_no_exact_json_is_refused(value: Any, path: str):
    with pytest.raises(DataError) as caught:
        result_content(value)
    assert caught.value.path == path


async def test_what_a_tool_returned_that_cannot_be_stored_is_an_error_the_model_reads():
    @tool
    def bad() -> Any:
        """Return what no JSON can hold."""
        return {"value": math.nan}

    steps = [ToolUse(id="1", name="bad"), "done"]
    run = await Agent(ScriptedModel(steps), tools=[bad]).ask("x")
    (result,) = run.check().messages[2].tool_results
    assert (result.status, result.text) == ("error", "Tool failed: result.value: nan is not a finite number")
