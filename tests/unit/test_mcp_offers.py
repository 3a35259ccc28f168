"""What is taken of a server's tools and results, and what the options of a toolset refuse."""

from __future__ import annotations

import base64
import importlib.util
from typing import Any

import pytest
from mcp.types import CallToolResult, ImageContent, TextContent, Tool, ToolAnnotations

from littleghost import ConfigurationError, DependencyError, Document, Image, MCPToolset, RunContext, Text
from littleghost.tools.mcp import listing
from littleghost.tools.mcp.listing import offers
from littleghost.tools.mcp.options import Options
from littleghost.tools.mcp.results import BLOCKS, blocks_of
from littleghost.tools.mcp.servers import checked_headers

OBJECT: dict[str, Any] = {"type": "object"}


def listed(*names: str, schema: dict[str, Any] = OBJECT, **fields: Any) -> list[Tool]:
    return [Tool(name=name, input_schema=schema, **fields) for name in names]


def names(tools: list[Tool], **options: Any) -> list[str]:
    return [offer.name for offer in offers(tools, Options(**options), "S")]


def test_names_are_mended() -> None:
    assert names(listed("a", "b.c/d", "ä€", "")) == ["a", "b_c_d", "__", "_"]
    assert names(listed("a.b"), prefix="my shop.") == ["my_shop_a_b"]
    long = names(listed("x" * 70, "x" * 69 + "y"))
    assert [len(name) for name in long] == [64, 64]
    assert long[0] != long[1]
    assert names(listed("x" * 64)) == ["x" * 64]


def test_include_and_exclude() -> None:
    tools = listed("a", "b", "c")
    assert names(tools, include=["a", "b"], exclude={"b"}) == ["a"]
    assert names(tools, include=lambda name: name > "a") == ["b", "c"]
    assert names(tools, exclude=lambda name: name > "a") == ["a"]
    assert names(tools, include=()) == []
    assert names(tools, include=["b"], prefix="p_") == ["p_b"]


@pytest.mark.parametrize("option", ["include", "exclude", "idempotent", "needs_approval"])
def test_a_name_that_the_server_does_not_have_is_an_error(option: str) -> None:
    with pytest.raises(ConfigurationError, match=r"S has no tool named delete; it has: a, remove"):
        names(listed("a", "remove"), **{option: ["delete"]})


def test_two_tools_of_one_name() -> None:
    twice = listed("a", "b", "a")
    with pytest.raises(ConfigurationError, match=r"S lists two tools named 'a'; exclude= leaves both out"):
        names(twice)
    assert names(twice, exclude=["a"]) == ["b"]
    with pytest.raises(ConfigurationError, match=r"'a.b' and 'a_b' of S would both be named 'a_b'"):
        names(listed("a.b", "a_b"))


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"type": "array"}, "not that of an object"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "not a valid JSON Schema"),
        ({"type": "object", "properties": []}, "not a valid JSON Schema"),
        ({"type": "object", "required": "a"}, "not a valid JSON Schema"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, "not a valid JSON Schema"),
        ({"type": "object", "description": "x" * 70_000}, "more than 64 KiB"),
        ({"type": "object", "a": float("nan")}, "cannot be used"),
        (
            {"type": "object", "$schema": "http://json-schema.org/draft-04/schema#", "required": []},
            "not a valid",
        ),
    ],
)
def test_a_schema_that_cannot_be_used(schema: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as raised:
        names(listed("bad", "good", schema=schema))
    assert "tool 'bad' of S" in str(raised.value)
    assert "exclude= leaves it out" in str(raised.value)
    assert names([*listed("bad", schema=schema), *listed("good")], exclude=["bad"]) == ["good"]


def test_a_schema_nested_without_end() -> None:
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = {"properties": {"a": schema}}
    with pytest.raises(ConfigurationError, match="cannot be used"):
        names(listed("bad", schema=schema))


def test_a_schema_without_a_type_is_an_objects() -> None:
    (offer,) = offers(listed("a", schema={}), Options(), "S")
    assert offer.schema == {"type": "object"}


def test_descriptions_are_cut() -> None:
    (offer,) = offers(listed("a", description="d" * 10_000), Options(), "S")
    assert len(offer.description) == listing.DESCRIPTION + 1
    (offer,) = offers(listed("a", title="A title"), Options(), "S")
    assert offer.description == "A title"


def test_what_a_server_says_of_its_tools_counts_only_if_it_is_trusted() -> None:
    tools = [
        *listed("plain"),
        *listed("reads", annotations=ToolAnnotations(read_only_hint=True)),
        *listed("again", annotations=ToolAnnotations(idempotent_hint=True)),
    ]
    assert [offer.idempotent for offer in offers(tools, Options(), "S")] == [False, False, False]
    assert [offer.idempotent for offer in offers(tools, Options(trust_annotations=True), "S")] == [
        False,
        True,
        True,
    ]
    assert [offer.idempotent for offer in offers(tools, Options(idempotent=["plain"]), "S")] == [
        True,
        False,
        False,
    ]


def test_approval() -> None:
    assert Options(needs_approval=True).approval("a") is True
    assert Options(needs_approval=["a"]).approval("a") is True
    assert Options(needs_approval=["a"]).approval("b") is False
    asked = Options(needs_approval=lambda name, arguments: arguments["sum"] > 9 and name == "pay").approval(
        "pay"
    )
    assert callable(asked)
    assert (asked({"sum": 10}), asked({"sum": 1})) == (True, False)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"include": "abc"}, "include must be a list"),
        ({"exclude": [1]}, "exclude must hold the names"),
        ({"idempotent": True}, "idempotent must be a list"),
        ({"idempotent": lambda name: True}, "idempotent must be a list"),
        ({"needs_approval": "delete"}, "needs_approval must be a list"),
        ({"prefix": 1}, "prefix must be a string"),
        ({"timeout": 0}, "timeout must be a number above 0"),
        ({"timeout": "5"}, "timeout must be"),
        ({"connect_timeout": None}, "connect_timeout must be"),
        ({"connect_timeout": float("nan")}, "connect_timeout must be"),
        ({"max_result_bytes": 1.5}, "max_result_bytes must be a whole number"),
        ({"max_result_bytes": True}, "max_result_bytes must be"),
    ],
)
def test_an_option_that_cannot_be_used(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        MCPToolset.stdio(["server"], **options)
    with pytest.raises(ConfigurationError, match=complaint):
        MCPToolset.http("http://localhost/mcp", **options)


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="inculde"):
        MCPToolset.stdio(["server"], inculde=["a"])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("command", "options", "complaint"),
    [
        ("server --stdio", {}, "must be a list"),
        ([], {}, "must name a program"),
        ([""], {}, "must name a program"),
        (["server", 1], {}, "must be text"),
        (["a\0"], {}, "NUL"),
        (["a"], {"env": {"A": 1}}, "must be text"),
        (["a"], {"env": {"A=": "1"}}, "cannot be the name"),
        (["a"], {"cwd": 1}, "cwd must be a path"),
    ],
)
def test_a_command_that_cannot_be_one(command: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        MCPToolset.stdio(command, **options)


@pytest.mark.parametrize(
    "url",
    [
        1,
        "",
        "example.com/mcp",
        "ftp://a/b",
        "http://",
        "http://[::1",
        "https://a b/",
        "http://a:b/",
        "http://ä/",
    ],
)
def test_a_url_that_cannot_be_one(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="url must be"):
        MCPToolset.http(url)


def test_a_password_does_not_belong_into_a_url() -> None:
    with pytest.raises(ConfigurationError, match="headers=") as raised:
        MCPToolset.http("https://me:hunter2@example.com/mcp")
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "hunter2\r\nX: y"},
        {"Authorization": b"hunter2"},
        {"Author ization": "hunter2"},
        {"Mcp-Session-Id": "hunter2"},
        {"content-type": "hunter2"},
        {"Authorization": "hunter2€"},
        ["hunter2"],
    ],
)
def test_headers_that_cannot_be_sent(headers: Any) -> None:
    with pytest.raises(ConfigurationError, match="headers") as raised:
        MCPToolset.http("https://example.com/mcp", headers=headers)
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigurationError):
        checked_headers(headers)


def test_no_secret_is_in_a_repr() -> None:
    toolset = MCPToolset.http("https://example.com/mcp?key=hunter2", headers={"Authorization": "hunter2"})
    assert repr(toolset) == "<MCPToolset example.com/mcp>"
    toolset = MCPToolset.stdio(["/opt/bin/server", "--key=hunter2"], env={"KEY": "hunter2"})
    assert repr(toolset) == "<MCPToolset server>"


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mcp" else find(name, *rest)
    )
    with pytest.raises(DependencyError, match=r"littleghost\[mcp\]"):
        MCPToolset.stdio(["server"])


def image(size: int, kind: str = "image/png") -> ImageContent:
    return ImageContent(data=base64.b64encode(b"x" * size).decode(), mime_type=kind)


def test_long_text_is_cut_and_says_so() -> None:
    (block,) = blocks_of(CallToolResult(content=[TextContent(text="a" * 600 + "b" * 600)]), 1_000)
    assert isinstance(block, Text)
    assert len(block.text.encode()) <= 1_000
    assert block.text.startswith("aaa")
    assert block.text.endswith("bbb")
    assert "bytes left out" in block.text


def test_the_limit_is_that_of_all_texts_together() -> None:
    blocks = blocks_of(CallToolResult(content=[TextContent(text="a" * 600) for _ in range(10)]), 1_000)
    assert sum(len(block.text) for block in blocks if isinstance(block, Text)) < 2_000
    assert blocks[0] == Text("a" * 600)


def test_pictures_are_kept_whole_or_left_out() -> None:
    blocks = blocks_of(CallToolResult(content=[image(6_000), image(6_000), image(3_000)]), 1_000)
    assert [type(block) for block in blocks] == [Image, Text, Image]
    assert blocks[1] == Text("[image of type image/png left out: it is too large]")
    assert blocks_of(CallToolResult(content=[image(0)]), 1_000) == [
        Text("[image of type image/png left out: it is empty]")
    ]
    assert isinstance(blocks_of(CallToolResult(content=[image(9, "application/pdf")]), 1_000)[0], Document)


def test_too_many_items() -> None:
    blocks = blocks_of(CallToolResult(content=[TextContent(text="a")] * (BLOCKS + 5)), 1_000)
    assert len(blocks) == BLOCKS + 1
    assert blocks[-1] == Text(f"[5 more items left out: a result may have {BLOCKS}]")


def test_structured_content_is_shown_where_there_is_no_other() -> None:
    assert blocks_of(CallToolResult(content=[], structured_content={"a": "ä"}), 1_000) == [Text('{"a": "ä"}')]
    both = CallToolResult(content=[TextContent(text="one")], structured_content={"result": "one"})
    assert blocks_of(both, 1_000) == [Text("one")]
    assert blocks_of(CallToolResult(content=[]), 1_000) == [Text("[no content]")]


async def test_a_missing_sandbox_is_named() -> None:
    from littleghost import CapabilityError

    with pytest.raises(CapabilityError, match="no sandbox"):
        async with MCPToolset.stdio(["server"], sandbox=True).open(RunContext()):
            pass
