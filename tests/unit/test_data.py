"""JSON values: what is kept exactly, what is refused, and where the error says it is."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
import math
import sys
import types
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from littleghost import DataError, data

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20)
OBJECTS = st.dictionaries(TEXT, VALUES)


def exact(left: Any, right: Any) -> bool:
    """Equal, and of the same plain types throughout; the sign of zero counts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(exact(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(exact, left, right))
    return left == right and (
        not isinstance(left, float) or math.copysign(1, left) == math.copysign(1, right)
    )


def nested(depth: int, leaf: Any = None) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@given(VALUES)
@example(["\0", "a\0b", "\U0001f600", "e\u0301", "\u2028\u2029\x7f", "\ufffe\uffff"])
@example([2**63, 2**64, -(2**63) - 1, 2**200, -0.0, 0.0, 5e-324, 1.7976931348623157e308, 1e16, 0.1, 1.0])
@example(10**4299)
@example({"": {"\0": [], "é": {}, "\U0001f600": [[]]}})
def test_what_is_packed_comes_back_exactly(value: Any):
    raw = data.pack(value)
    assert exact(data.unpack(raw), value)
    assert exact(data.normalise(value), value)
    assert exact(json.loads(raw), value)


@given(VALUES)
def test_a_copy_is_equal_and_shares_nothing_that_can_change(value: Any):
    copied = data.copy(value)
    assert exact(copied, value)

    def parts(value: Any) -> set[int]:
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return set() if children is None else {id(value)}.union(*map(parts, children))

    assert not parts(copied) & parts(value)


class Colour(enum.StrEnum):
    RED = "red"


class Old(str, enum.Enum):  # noqa: UP042 (its str() is not its value)
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        ({"a": (1, {"b": ()})}, {"a": [1, {"b": []}]}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ([Colour.RED, Number.ONE, {Colour.RED: 1}], ["red", 1, {"red": 1}]),
        ((Colour.RED, Number.ONE, {Colour.RED: 1}), ["red", 1, {"red": 1}]),
        ({"a": Colour.RED, "b": Number.ONE, "c": Old.RED}, {"a": "red", "b": 1, "c": "red"}),
        ({Colour.RED: "a", "b": None}, {"red": "a", "b": None}),
        (Old.RED, "red"),
        ((Old.RED, {Old.RED: 1}), ["red", {"red": 1}]),
        ((True, 1, 1.0), [True, 1, 1.0]),
    ],
)
def test_tuples_become_lists_and_subclasses_their_plain_type(value: Any, plain: Any):
    assert exact(data.normalise(value), plain)


REFUSED: list[tuple[Any, str]] = [
    (math.nan, "not a finite number"),
    (math.inf, "not a finite number"),
    (-math.inf, "not a finite number"),
    ("\ud800", "lone surrogate"),
    ("ab\udfff", "lone surrogate at character 2"),
    (b"x", "a bytes is not a JSON value"),
    (bytearray(b"x"), "a bytearray is not a JSON value"),
    ({1, 2}, "a set is not a JSON value"),
    (frozenset(), "a frozenset is not a JSON value"),
    (object(), "an object is not a JSON value"),
    (decimal.Decimal(1), "a Decimal is not a JSON value"),
    (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "a datetime is not a JSON value"),
    (1j, "a complex is not a JSON value"),
    (iter(()), "is not a JSON value"),
    (10**5000, "more digits"),
    ({1: 2}, "has the key 1, which is an int and not text"),
    ({None: 2}, "has the key None"),
    ({True: 2}, "has the key True"),
    ({("a",): 2}, "which is a tuple"),
    ({"\ud800": 1}, "key with a lone surrogate"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED, ids=range(len(REFUSED)))
@pytest.mark.parametrize(
    ("wrap", "where"),
    [
        (lambda value: value, "state"),
        (lambda value: {"plan": {"items": [0, 1, 2, {"due": value}]}}, "state.plan.items[3].due"),
        (lambda value: {"a b": [[value]]}, "state['a b'][0][0]"),
        (lambda value: (1, {"x": value}), "state[1].x"),
        (lambda value: {"": value}, "state['']"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_its_path_named(value: Any, reason: str, wrap: Any, where: str):
    with pytest.raises(DataError) as caught:
        data.pack(wrap(value), "state")
    assert caught.value.path == where
    assert reason in caught.value.reason
    assert str(caught.value) == f"{caught.value.path}: {caught.value.reason}"
    str(caught.value).encode()  # a message that can itself be written


@given(VALUES, st.sampled_from([math.nan, "\udabc", b"", {1: 1}, object()]), st.randoms())
def test_one_bad_value_anywhere_is_found(value: Any, bad: Any, random: Any):
    """Put `bad` somewhere into `value`; the path leads to it."""
    path, top = "x", [value]
    holder: Any = top
    key: Any = 0
    while isinstance(holder[key], list | dict) and holder[key] and random.random() < 0.8:
        holder = holder[key]
        key = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
        path = data.member(path, key) if isinstance(holder, dict) else f"{path}[{key}]"
    holder[key] = bad
    with pytest.raises(DataError) as caught:
        data.pack(top[0], "x")
    assert caught.value.path == path


def test_a_long_key_is_shortened_in_the_path():
    for key in ("k" * 10_000, "k " * 10_000):
        with pytest.raises(DataError) as caught:
            data.pack({key: math.nan})
        assert len(caught.value.path) < 60


@pytest.mark.parametrize("leaf", [None, "[{" * 200, {}, [], {"a": 1}])
def test_a_hundred_levels_are_kept_and_one_more_is_refused(leaf: Any):
    inner = 1 if isinstance(leaf, dict | list) else 0
    for wrap in (lambda v: [v], lambda v: {"a": v}, lambda v: (v,)):
        value = leaf
        for _ in range(100 - inner):
            value = wrap(value)
        assert data.unpack(data.pack(value)) == data.normalise(value)
        with pytest.raises(DataError, match="nested deeper than 100"):
            data.pack(wrap(value))


def test_many_brackets_side_by_side_are_no_depth():
    value = [[[] for _ in range(500)], {str(n): {} for n in range(500)}]
    assert data.normalise(value) == value


@pytest.mark.parametrize("depth", [101, 1000, 100_000])
def test_any_depth_too_many_is_a_data_error(depth: int):
    with pytest.raises(DataError, match="nested deeper than 100"):
        data.pack(nested(depth))


def test_a_number_that_could_not_be_read_back_is_refused_also_where_python_would_print_it():
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert data.normalise([10**4299, -(10**4298)]) == [10**4299, -(10**4298)]
        with pytest.raises(DataError, match=r"^value\.n: has more digits"):
            data.pack({"n": 10**4300})
        with pytest.raises(DataError, match="the sign counted"):
            data.pack(-(10**4299))
    finally:
        sys.set_int_max_str_digits(limit)


def test_a_cycle_is_named_where_it_closes():
    ring: dict[str, Any] = {"a": [1]}
    ring["a"].append(ring)
    with pytest.raises(DataError) as caught:
        data.pack(ring, "state")
    assert (caught.value.path, caught.value.reason) == ("state.a[1]", "contains itself")


def test_the_same_part_twice_is_no_cycle():
    part = {"x": [1]}
    assert data.normalise([part, part, (part,)]) == [part, part, [part]]


@pytest.mark.parametrize("value", [None, [], "x", 1, [("a", 1)], object()])
def test_an_object_is_a_mapping_and_nothing_else(value: Any):
    with pytest.raises(DataError, match=r"^metadata: expected an object with string keys"):
        data.pack_object(value, "metadata")


def test_numbers_and_booleans_are_told_apart_and_the_order_of_keys_is_not():
    one, real, true = data.pack({"n": 1}), data.pack({"n": 1.0}), data.pack({"n": True})
    assert not data.equal(one, real)
    assert not data.equal(one, true)
    assert not data.equal(real, true)
    assert not data.equal(data.pack([0.0]), data.pack([-0.0]))
    assert not data.equal(data.pack([1, 2]), data.pack([2, 1]))
    assert data.equal(
        data.pack({"a": [{"b": 1, "c": 2}], "d": 3}), data.pack({"d": 3, "a": [{"c": 2, "b": 1}]})
    )


@given(OBJECTS, st.randoms())
def test_an_object_equals_itself_in_any_order(value: dict[str, Any], random: Any):
    keys = list(value)
    random.shuffle(keys)
    assert data.equal(data.pack(value), data.pack({key: value[key] for key in keys}))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1,]",
        b"nul",
        b"NaN",
        b"[Infinity]",
        b"'a'",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\\ud800"',
        b'"\\ud800x"',
        b"1 2",
        b"\0",
    ],
)
def test_what_is_no_json_is_refused(raw: bytes):
    with pytest.raises(DataError, match="not valid JSON"):
        data.unpack(raw)


def test_other_spellings_of_the_same_json_are_read():
    assert data.unpack(b' { "a" : "\\u0000\\ud83d\\ude00\\/" , "b":1E2 } ') == {
        "a": "\0\U0001f600/",
        "b": 100.0,
    }


@pytest.mark.parametrize("value", [None, 1, b"x", ["a"]])
def test_text_is_text(value: Any):
    with pytest.raises(DataError, match=r"^id: expected text"):
        data.check_text(value, "id")
    with pytest.raises(DataError, match=r"^id: has a lone surrogate"):
        data.check_text("\ud800", "id")
    assert data.check_text("a\0", "id") == "a\0"
