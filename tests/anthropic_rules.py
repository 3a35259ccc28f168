"""What Anthropic refuses, in its words, as far as a conversation can go wrong.

Sources: https://platform.claude.com/docs/en/api/errors, https://platform.claude.com/docs/en/build-with-claude/extended-thinking,
https://platform.claude.com/docs/en/build-with-claude/prompt-caching, and messages that users of the API report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

THINKING = ("thinking", "redacted_thinking")


def refusal(body: dict[str, Any], signed: set[str] | None = None) -> str | None:
    """Why Anthropic would refuse ``body`` with a 400, or ``None``.

    Args:
        body: Of a request.
        signed: The signatures and encrypted blocks that it gave out; ``None`` takes any.
    """
    return next(_faults(body, signed), None)


def _faults(body: dict[str, Any], signed: set[str] | None) -> Iterator[str]:
    if not isinstance(body.get("max_tokens"), int):
        yield "max_tokens: Field required"
    messages = body["messages"]
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    yield from _texts("system", body.get("system", []))
    seen: set[str] = set()
    for index, message in enumerate(messages):
        yield from _message(f"messages.{index}", message, seen, signed)
        calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        following = messages[index + 1]["content"] if index + 1 < len(messages) else []
        results = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
        if sorted(results) != sorted(calls):
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after, or the reverse"
            )
        kinds = [block["type"] == "tool_result" for block in message["content"]]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{index}: `tool_result` blocks must come first"
    last = messages[-1]["content"][-1]
    if (
        messages[-1]["role"] == "assistant"
        and last["type"] == "text"
        and last["text"] != last["text"].rstrip()
    ):
        yield "messages: final assistant content cannot end with trailing whitespace"
    if seen and not body.get("tools"):
        yield "Requests which include `tool_use` or `tool_result` blocks must define tools"
    if body.get("tool_choice") and not body.get("tools"):
        yield "tool_choice may only be specified while providing tools"
    yield from _marks(body)
    yield from _thinking(body)


def _message(path: str, message: dict[str, Any], seen: set[str], signed: set[str] | None) -> Iterator[str]:
    if not message["content"]:
        yield f"{path}: all messages must have non-empty content"
    yield from _texts(path, message["content"])
    for at, block in enumerate(message["content"]):
        if block["type"] == "tool_use":
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["id"]):
                yield f"{path}.content.{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            if block["id"] in seen:
                yield f"{path}: `tool_use` ids must be unique"
            seen.add(block["id"])
        elif block["type"] == "tool_result":
            content = block.get("content", [])
            yield from _texts(f"{path}.content.{at}.tool_result", content)
            if block.get("is_error") and not content:
                yield f"{path}.content.{at}.tool_result: content cannot be empty if `is_error` is true"
        elif block["type"] in THINKING and message["role"] != "assistant":
            yield f"{path}: thinking blocks may only be in assistant messages"
        elif block["type"] == "thinking" and signed is not None and block["signature"] not in signed:
            yield f"{path}.content.{at}: Invalid `signature` in `thinking` block"
        elif block["type"] == "redacted_thinking" and signed is not None and block["data"] not in signed:
            yield f"{path}.content.{at}: Invalid `data` in `redacted_thinking` block"


def _texts(path: str, blocks: list[dict[str, Any]]) -> Iterator[str]:
    for block in blocks:
        if block["type"] == "text":
            if not block["text"]:
                yield f"{path}: text content blocks must be non-empty"
            elif not block["text"].strip():
                yield f"{path}: text content blocks must contain non-whitespace text"


def _marks(body: dict[str, Any]) -> Iterator[str]:
    marked = [
        block
        for block in (
            *body.get("tools", []),
            *body.get("system", []),
            *(block for message in body["messages"] for block in message["content"]),
        )
        if "cache_control" in block
    ]
    if len(marked) > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(marked)}."
    if any(block.get("type") in THINKING for block in marked):
        yield "cache_control cannot be set on thinking blocks"


def _thinking(body: dict[str, Any]) -> Iterator[str]:
    thinking = body.get("thinking", {})
    if thinking.get("type") != "enabled":
        return
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        yield "Thinking may not be enabled when tool_choice forces tool use."
    if thinking["budget_tokens"] >= body["max_tokens"]:
        yield "`max_tokens` must be greater than `thinking.budget_tokens`."
    first: tuple[int, dict[str, Any]] | None = None
    for index in range(len(body["messages"]) - 1, -1, -1):
        message = body["messages"][index]
        if message["role"] == "assistant":
            first = index, message["content"][0]
        elif not any(block["type"] == "tool_result" for block in message["content"]):
            break
    if first is not None and first[1]["type"] not in THINKING:
        yield (
            f"messages.{first[0]}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first[1]['type']}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous "
            "turns. To avoid this requirement, disable `thinking`. Please consult our documentation at "
            "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
        )
