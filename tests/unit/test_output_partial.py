"""What there is of a JSON text, at any moment of its being written, is the beginning of what it will be."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from littleghost.output.partial import SHARE, STEP, PartialJSON

texts = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"/{}[]:,\n\x00é😀'), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def begins(part: Any, whole: Any) -> bool:
    """Whether ``part`` is a beginning of ``whole``: only the last of its members may be incomplete."""
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    if isinstance(part, dict) and isinstance(whole, dict):
        if list(part) != list(whole)[: len(part)]:
            return False
        return begins(list(part.values()), list(whole.values()))
    if isinstance(part, list) and isinstance(whole, list):
        if len(part) > len(whole):
            return False
        done = len(part) - 1
        return part[:-1] == whole[: max(done, 0)] and (not part or begins(part[-1], whole[done]))
    return type(part) is type(whole) and part == whole


def size(value: Any) -> int:
    """How much is in a value: a measure that no further text makes smaller."""
    if value is UNSET:
        return 0
    if isinstance(value, str):
        return 1 + len(value)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(size, children))


@given(value=values, compact=st.booleans(), ascii=st.booleans())
def test_every_prefix_gives_a_beginning(value: Any, compact: bool, ascii: bool) -> None:
    whole = {"it": value}
    text = json.dumps(
        whole,
        ensure_ascii=ascii,
        indent=None if compact else 1,
        separators=(",", ":") if compact else (" , ", " : "),
    )
    along = PartialJSON()
    before: Any = UNSET
    for end, char in enumerate(text, 1):
        along.feed(char)
        read = along.read()
        at_once = PartialJSON()
        at_once.feed(text[:end])
        assert at_once.read() == read, "the pieces make a difference"
        assert read is UNSET or begins(read, whole), text[:end]
        assert size(read) >= size(before), "something was taken back"
        before = read
    assert before == whole


@given(text=st.text(st.sampled_from('{}[]",:\\ua0d8+-.etrue \n'), max_size=30), cut=st.integers(0, 30))
def test_what_is_no_json_is_nothing_and_no_error(text: str, cut: int) -> None:
    partial = PartialJSON()
    for piece in (text[:cut], text[cut:]):
        partial.feed(piece)
        partial.read()
    try:
        whole = json.loads(text)
    except ValueError:
        return
    if isinstance(whole, dict | list):
        assert partial.read() == whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", UNSET),
        ("  ", UNSET),
        ("{", {}),
        ('{"a', {}),
        ('{"a"', {}),
        ('{"a":', {}),
        ('{"a":1', {}),
        ('{"a":1,', {"a": 1}),
        ('{"a":"x', {"a": "x"}),
        ('{"a":"x\\', {"a": "x"}),
        ('{"a":"x\\u00e', {"a": "x"}),
        ('{"a":"x\\ud83d', {"a": "x"}),
        ('{"a":"x\\ud83d\\ude', {"a": "x"}),
        ('{"a":"x\\ud83d\\ude00', {"a": "x😀"}),
        ('{"a":tru', {}),
        ('{"a":[1,2', {"a": [1]}),
        ('{"a":[{"b":null}', {"a": [{"b": None}]}),
        ('{"a":1} and more', {"a": 1}),
        ("}", UNSET),
        ("no JSON", UNSET),
        ('{"a":]', {}),
    ],
)
def test_examples(text: str, value: Any) -> None:
    partial = PartialJSON()
    partial.feed(text)
    assert partial.read() == value or (value is UNSET and partial.read() is UNSET)


def test_reading_is_due_after_a_share_of_the_text() -> None:
    partial = PartialJSON()
    text = json.dumps({"a": ["some words"] * 20_000})
    looked = times = 0
    for start in range(0, len(text), 4):
        partial.feed(text[start : start + 4])
        if partial.due:
            partial.read()
            times += 1
            looked += start + 4
    assert times < SHARE * 16
    assert looked < len(text) * (SHARE + 2) + STEP * SHARE * SHARE * 2
    assert partial.read() == json.loads(text)
