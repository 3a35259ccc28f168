"""Content blocks: what a constructor takes, and that blocks are values."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from littleghost import DataError, Document, Image, Reasoning, Text, ToolResult, ToolUse

BLOCKS = [
    Text("x"),
    Image(data=b"\0\xff", media_type="image/png"),
    Image(data=b"", media_type="image/png", name="a.png"),
    Document(data=b"%PDF", media_type="application/pdf", name="a.pdf"),
    ToolUse(id="1", name="f"),
    ToolUse(id="1", name="f", input={"a": [1]}),
    ToolResult(tool_use_id="1"),
    ToolResult(tool_use_id="1", content=[Text("x"), {"a": 1}, None, "s", 2], status="error"),
    Reasoning(text="t", signature="s", details=[1]),
    Reasoning(data=b"secret"),
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_a_frozen_value_that_survives_copying_and_pickling(block: Any):
    assert copy.copy(block) == copy.deepcopy(block) == pickle.loads(pickle.dumps(block)) == block
    with pytest.raises(AttributeError):
        setattr(block, block.__struct_fields__[0], "other")


@pytest.mark.parametrize("kind", [Image, Document, ToolUse, ToolResult, Reasoning])
def test_a_block_takes_keywords_only_and_no_unknown_ones(kind: type):
    with pytest.raises(TypeError):
        kind("x")
    with pytest.raises(TypeError):
        kind(colour="red")


def test_each_tool_use_has_an_input_of_its_own():
    assert ToolUse(id="1", name="f").input is not ToolUse(id="1", name="f").input


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("x", "x"),
        (None, None),
        (
            {"type": "text", "text": "only in a list it is a block"},
            {"type": "text", "text": "only in a list it is a block"},
        ),
        ([], ()),
        (Text("x"), (Text("x"),)),
        ([Text("x"), {"rows": [1]}, "bare", None], (Text("x"), {"rows": [1]}, "bare", None)),
        (({"type": "text", "text": "x"},), (Text("x"),)),
        ([[{"type": "deeper is plain"}]], ([{"type": "deeper is plain"}],)),
    ],
)
def test_what_stands_in_the_list_of_a_result(content: Any, kept: Any):
    assert ToolResult(tool_use_id="1", content=content).content == kept


def test_a_typed_object_in_a_result_that_is_no_block_is_refused_before_it_can_be_stored():
    with pytest.raises(DataError, match=r"^content\[1\]: is not a content block"):
        ToolResult(tool_use_id="1", content=["x", {"type": "sound", "data": ""}])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x", "x"),
        (None, "null"),
        ({"a": [1]}, '{"a":[1]}'),
        ([Text("a"), Text("b")], "a\nb"),
        (
            [Text("a"), {"b": 1}, "c", Image(data=b"12", media_type="image/png")],
            'a\n{"b":1}\nc\n[image/png, 2 bytes]',
        ),
    ],
)
def test_the_text_of_a_result(content: Any, text: str):
    assert ToolResult(tool_use_id="1", content=content).text == text


@pytest.mark.parametrize(
    ("block", "secret"),
    [
        (Image(data=b"sekrit", media_type="image/png"), "sekrit"),
        (Document(data=b"sekrit", media_type="text/plain", name="sekrit"), "sekrit"),
        (Reasoning(text="sekrit", signature="sekrit", data=b"sekrit"), "sekrit"),
    ],
)
def test_what_is_long_or_private_is_not_in_the_repr(block: Any, secret: str):
    assert secret not in repr(block)
