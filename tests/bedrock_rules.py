"""What botocore and the models behind Converse refuse, as far as a conversation can go wrong.

Sources: botocore's own model of the API, https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html, and
messages that users of the API report.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from botocore.session import Session
from botocore.validate import ParamValidator


@cache
def _shape() -> Any:
    return Session().get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape


def refusal(arguments: dict[str, Any]) -> str | None:
    """Why ``arguments`` would be refused, or ``None``."""
    return next(_faults(arguments), None)


def _faults(arguments: dict[str, Any]) -> Iterator[str]:
    report = ParamValidator().validate({"modelId": "x.y", **arguments}, _shape())
    if report.has_errors():
        yield report.generate_report()
    messages = arguments["messages"]
    if not messages or messages[0]["role"] != "user":
        yield "A conversation must start with a user message."
    seen: set[str] = set()
    names: list[str] = []
    for index, message in enumerate(messages):
        if index and message["role"] == messages[index - 1]["role"]:
            yield "roles must alternate"
        yield from _message(index, message, seen, names)
        calls = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        following = messages[index + 1]["content"] if index + 1 < len(messages) else []
        results = [block["toolResult"]["toolUseId"] for block in following if "toolResult" in block]
        if sorted(results) != sorted(calls):
            yield f"Expected toolResult blocks at messages.{index + 1}.content for the Ids of the toolUse blocks, and no others"
    if len(set(names)) != len(names):
        yield "Found duplicate document names in the request."
    tools = arguments.get("toolConfig", {}).get("tools", [])
    if seen and not tools:
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    marks = [*tools, *arguments.get("system", []), *(b for m in messages for b in m["content"])]
    if sum("cachePoint" in block for block in marks) > 4:
        yield "too many cache points"
    yield from _thinking(arguments)


def _message(index: int, message: dict[str, Any], seen: set[str], names: list[str]) -> Iterator[str]:
    content = message["content"]
    inside = [inner for block in content for inner in block.get("toolResult", {}).get("content", [])]
    for block in (*content, *inside):
        if "text" in block and not block["text"].strip():
            yield f"The text field in the ContentBlock object at messages.{index}.content is blank."
        if "document" in block:
            names.append(block["document"]["name"])
    if any("document" in block for block in content) and not any("text" in block for block in content):
        yield "A text block is required beside a document."
    for block in content:
        if "toolUse" in block:
            if block["toolUse"]["toolUseId"] in seen:
                yield "duplicate toolUseId"
            seen.add(block["toolUse"]["toolUseId"])
    if content and "cachePoint" in content[0]:
        yield "a cache point has nothing in front of it"
    kinds = ["toolResult" in block for block in content if "cachePoint" not in block]
    if kinds != sorted(kinds, reverse=True):
        yield "results must come first"


def _thinking(arguments: dict[str, Any]) -> Iterator[str]:
    thinking = arguments.get("additionalModelRequestFields", {}).get("thinking", {})
    if thinking.get("type") != "enabled":
        return
    if arguments.get("toolConfig", {}).get("toolChoice", {}).keys() & {"any", "tool"}:
        yield "Thinking may not be enabled when tool_choice forces tool use."
    first: tuple[int, dict[str, Any]] | None = None
    for index in range(len(arguments["messages"]) - 1, -1, -1):
        message = arguments["messages"][index]
        if message["role"] == "assistant":
            first = index, message["content"][0]
        elif not any("toolResult" in block for block in message["content"]):
            break
    if first is not None and "reasoningContent" not in first[1]:
        kind = "tool_use" if "toolUse" in first[1] else "text"
        yield (
            "The model returned the following errors: "
            f"messages.{first[0]}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks)."
        )
