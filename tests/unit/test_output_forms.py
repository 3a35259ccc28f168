"""The JSON form of a type: the schema that a model is given, and what is said of JSON that does not fit."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, Union
from uuid import UUID

import msgspec
import pydantic
import pytest
import typing_extensions
from msgspec import UNSET, Meta, Struct

from littleghost import ConfigurationError, Output
from littleghost.models.strict import fits_strict
from littleghost.output.form import Form, MisfitError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(Struct):
    """One article.

    Attributes:
        sku: Article number.
        count: How many,
            at least one.
    """

    sku: Annotated[str, Meta(min_length=2)]
    count: Annotated[int, Meta(ge=1)] = 1


class Order(Struct):
    """What is ordered."""

    lines: list[Line]
    first: Annotated[Line, Meta(description="The main one.")]
    colour: Colour
    speed: Literal["slow", "fast"]
    due: datetime
    at: time | None = None
    days: list[datetime] = []
    seen: dict[str, datetime] = {}
    note: str | None = None
    prices: dict[str, Decimal] = {}
    follows: Order | None = None


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Circle:
    radius: float


class Loose(TypedDict):
    must: int
    may: NotRequired[str]


class Cat(Struct, tag="cat"):
    lives: int


class Dog(Struct, tag="dog"):
    tricks: list[str]


class Pair(NamedTuple):
    left: int
    right: str


class Even(Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError(f"{self.number} is odd")


class Broken(Struct):
    number: int

    def __post_init__(self) -> None:
        raise KeyError("a secret of the host")


class Model(pydantic.BaseModel):
    """A model.

    Attributes:
        name: What it is called.
    """

    name: str
    size: int = pydantic.Field(default=1, gt=0, description="How big.")
    due: datetime | None = None
    parts: list[Point] = []

    @pydantic.field_validator("name")
    @classmethod
    def upper(cls, value: str) -> str:
        if not value.isupper():
            raise ValueError("must be upper case")
        return value


class Other(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    day: date


ORDER = {
    "lines": [{"sku": "A7", "count": 2}],
    "first": {"sku": "A7"},
    "colour": "red",
    "speed": "fast",
    "due": "2026-01-02T03:04:05Z",
}


def nodes(schema: Any) -> list[dict[str, Any]]:
    """Every schema within a schema."""
    if isinstance(schema, list):
        return [node for child in schema for node in nodes(child)]
    if not isinstance(schema, dict):
        return []
    found = [schema]
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            found += [node for child in value.values() for node in nodes(child)]
        elif key not in ("enum", "const", "required"):
            found += nodes(value)
    return found


TYPES: list[Any] = [
    Order, Line, Point, Circle, Loose, Cat, Cat | Dog, Point | Circle, Point | None, Pair, int, bool, list[Point], dict[str, Line],
    Colour, Literal["a", "b"], Literal[1, "a"], datetime, str | int, tuple[int, str], set[UUID], Any,
    Optional[Order], Union[Point, Circle, None],  # noqa: UP007, UP045
    Model, Other, Model | Other, list[Model], Model | Point, Model | None, Annotated[int, pydantic.Field(gt=3)],
]  # fmt: skip


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_a_schema_is_one_that_strict_modes_accept(type: Any) -> None:
    schema = Form(type).schema
    assert schema["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf", "$ref"} & set(schema)
    names = set(schema.get("$defs", {}))
    for node in nodes(schema):
        assert not {"default", "title", "oneOf", "discriminator"} & set(node), node
        if "$ref" in node:
            assert set(node) == {"$ref"}
            assert node["$ref"].removeprefix("#/$defs/") in names
        if "properties" in node:
            assert node["additionalProperties"] is False
            assert set(node.get("required", [])) <= set(node["properties"])
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize(
    "type",
    [Point, Cat | Dog, Point | Circle, Point | None, list[Point], Colour, datetime, Other, int | str],
    ids=str,
)
def test_openai_can_hold_an_answer_to_it_exactly(type: Any) -> None:
    assert fits_strict(Form(type).schema)


def test_a_schema_says_what_the_hints_and_docstrings_say() -> None:
    schema = Form(Order).schema
    assert schema["description"] == "What is ordered."
    line = schema["$defs"]["Line"]
    assert line["description"] == "One article."
    assert line["properties"]["sku"] == {"type": "string", "minLength": 2, "description": "Article number."}
    assert line["properties"]["count"] == {
        "type": "integer",
        "minimum": 1,
        "description": "How many, at least one.",
    }
    assert line["required"] == ["sku", "count"], "what has a default is asked for, as strict modes must"
    properties = schema["properties"]
    assert properties["first"] == {"anyOf": [{"$ref": "#/$defs/Line"}], "description": "The main one."}
    assert properties["speed"] == {"type": "string", "enum": ["fast", "slow"]}
    assert properties["due"] == {"type": "string", "format": "date-time"}
    assert properties["days"]["items"] == {"type": "string", "format": "date-time"}
    assert properties["seen"]["additionalProperties"] == {"type": "string", "format": "date-time"}
    assert properties["at"] == {"anyOf": [{"type": "string", "format": "time"}, {"type": "null"}]}
    assert "Order" in schema["$defs"], "a type that contains itself is defined"
    assert Form(Loose).schema["required"] == ["must"], "what has no default and may be missing may be missing"
    model = Form(Model).schema
    assert model["description"] == "A model."
    assert model["properties"]["name"]["description"] == "What it is called."
    assert model["properties"]["size"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "How big.",
    }


@pytest.mark.parametrize(
    ("type", "written", "value"),
    [
        (Line, {"sku": "A7"}, Line("A7")),
        (Point, {"x": 1}, Point(1)),
        (Loose, {"must": 1}, {"must": 1}),
        (Cat | Dog, {"answer": {"type": "dog", "tricks": []}}, Dog([])),
        (Point | Circle, {"answer": {"Circle": {"radius": 1}}}, Circle(1.0)),
        (Point | Circle | None, {"answer": {"null": None}}, None),
        (Point | None, {"answer": None}, None),
        (Pair, {"answer": [1, "b"]}, Pair(1, "b")),
        (int, {"answer": 3}, 3),
        (list[Point], {"answer": [{"x": 1}]}, [Point(1)]),
        (dict[int, Line], {"7": {"sku": "A7"}}, {7: Line("A7")}),
        (Colour, {"answer": "blue"}, Colour.BLUE),
        (datetime, {"answer": "2026-01-02T03:04:05Z"}, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (Model, {"name": "A", "parts": [{"x": 1}]}, Model(name="A", parts=[Point(1)])),
        (Other, {"day": "2026-01-02"}, Other(day=date(2026, 1, 2))),
        (Model | Other, {"answer": {"Other": {"day": "2026-01-02"}}}, Other(day=date(2026, 1, 2))),
        (Model | Point, {"answer": {"Point": {"x": 1}}}, Point(1)),
        (Model | None, {"answer": None}, None),
        (list[Model], {"answer": [{"name": "A"}]}, [Model(name="A")]),
        (list[int] | dict[str, int], {"answer": [1]}, [1]),
    ],
    ids=str,
)
def test_what_fits_is_read(type: Any, written: Any, value: Any) -> None:
    form = Form(type)
    assert form.read(written) == value
    assert form.read_text(json.dumps(written)) == value


def test_a_whole_order() -> None:
    order = Form(Order).read(ORDER)
    assert (order.colour, order.lines[0].count, order.due.year) == (Colour.RED, 2, 2026)


@pytest.mark.parametrize(
    ("type", "written", "reasons"),
    [
        (Order, {**ORDER, "lines": [{"sku": "A7", "count": "2"}]}, ("lines[0].count: Expected `int`, got `str`",)),
        (Order, {**ORDER, "first": {}}, ("first: Object missing required field `sku`",)),
        (Order, {**ORDER, "colour": "green"}, ("colour: Invalid enum value 'green'",)),
        (Order, {**ORDER, "lines": [{"sku": "A7", "count": 0}]}, ("lines[0].count: Expected `int` >= 1",)),
        (Order, {**ORDER, "prices": {"a": "x"}}, ("prices[...]: Invalid decimal string",)),
        (dict[int, int], {"a": 1}, ("the answer: a key: Expected `int`, got `str`",)),
        (Point, [], ("the answer: Expected `object`, got `array`",)),
        (int, {}, ("expected an object with the member 'answer'",)),
        (int, {"answer": "x"}, ("answer: Expected `int`, got `str`",)),
        (Point | Circle, {"answer": {"x": 1}}, ("answer: expected an object with exactly one of the members 'Point', 'Circle'",)),
        (Point | Circle, {"answer": {"Point": {"x": "a"}}}, ("answer.Point.x: Expected `int`, got `str`",)),
        (Even, {"number": 3}, ("the answer: 3 is odd",)),
        (Broken, {"number": 3}, ("the answer: could not be read (KeyError)",)),
        (Model, {"name": "a", "size": 0, "parts": [{"x": "y"}]}, (
            "name: Value error, must be upper case",
            "size: Input should be greater than 0",
            "parts[0].x: Input should be a valid integer, unable to parse string as an integer",
        )),
        (Model | Other, {"answer": {"Other": {}}}, ("answer.Other.day: Field required",)),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_says_where_and_why(type: Any, written: Any, reasons: tuple[str, ...]) -> None:
    with pytest.raises(MisfitError) as caught:
        Form(type).read(written)
    assert caught.value.reasons == reasons


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the answer is not JSON: Input data was truncated"),
        ('{"x": ', "the answer is not JSON: Input data was truncated"),
        ("Sure! {}", "the answer is not JSON: JSON is malformed: invalid character (byte 0)"),
        ("[1]", "the answer is not a JSON object"),
        ("\ud800", "the answer is not JSON"),
        ('{"x":' + "[" * 101 + "]" * 101 + "}", "the answer nests deeper than 100"),
        ('{"x":' + "[" * 100_000, "the answer nests deeper than 100"),
        ('{"x": NaN}', "the answer is not JSON: JSON is malformed"),
        ('{"x": ' + "9" * 5000 + "}", "the answer is not JSON: Integer value out of range"),
    ],
    ids=lambda text: text[:20],
)
def test_hostile_text(text: str, reason: str) -> None:
    with pytest.raises(MisfitError) as caught:
        Form(Point).read_text(text)
    assert caught.value.reasons[0].startswith(reason)


def test_reasons_are_few_and_short() -> None:
    class Many(pydantic.BaseModel):
        numbers: list[int]

    with pytest.raises(MisfitError) as caught:
        Form(Many).read({"numbers": ["x"] * 1000})
    assert len(caught.value.reasons) == 10
    with pytest.raises(MisfitError) as caught:
        Form(Colour).read({"answer": "x" * 10_000})
    assert len(caught.value.reasons[0]) == 500


def test_what_there_is_of_a_value() -> None:
    assert Form(Point).inside({"x": 1}) == {"x": 1}
    assert Form(int).inside({}) is UNSET
    assert Form(list[int]).inside({"answer": [1]}) == [1]
    assert Form(Point | None).inside({"answer": None}) is None
    tagged = Form(Point | Circle)
    assert tagged.inside({"answer": {}}) is UNSET
    assert tagged.inside({"answer": {"Point": {}}}) == {}


def test_pydantic_checks_what_only_pydantic_heeds() -> None:
    class Strict(typing_extensions.TypedDict):
        age: Annotated[int, pydantic.Field(ge=18)]

    @dataclass
    class Guest:
        age: Annotated[int, pydantic.Field(ge=18)]

    for type in (Guest, Strict, list[Guest], Annotated[int, pydantic.Field(ge=18)]):
        written = {"age": 3}
        with pytest.raises(MisfitError, match="greater than or equal to 18"):
            Form(type).read(
                {"answer": [written]}
                if type == list[Guest]
                else written
                if isinstance(type, Class)
                else {"answer": 3}
            )


Class = type


def test_types_that_cannot_be_used() -> None:
    class Mixed(Struct):
        model: Model

    class Vague(Struct):
        shape: Point | Circle

    for bad in (object(), complex, Mixed, Vague, list[Point | Circle], lambda: 1):
        with pytest.raises(ConfigurationError, match="output="):
            Output(bad)  # type: ignore[arg-type]
    for options in (
        {"name": "no spaces"},
        {"name": 3},
        {"strategy": "magic"},
        {"repairs": -1},
        {"repairs": True},
    ):
        with pytest.raises(ConfigurationError, match=next(iter(options))):
            Output(Point, **options)  # type: ignore[arg-type]


def test_two_types_of_one_name() -> None:
    first = msgspec.defstruct("Same", [("a", int)])
    second = msgspec.defstruct("Same", [("b", int)])
    form = Form(first | second)
    assert form.read({"answer": {"Same_2": {"b": 1}}}) == second(b=1)
