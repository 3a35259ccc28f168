"""Conversations as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from littleghost import Message, Reasoning, Text, ToolResult, ToolUse, transcript
from littleghost.cli.terminal import one_line, printable, short_call

__all__ = ["Line", "lines_of", "result_text"]

STYLES = {"user": "bold", "assistant": "", "tool": "cyan", "failed": "red", "aside": "dim"}


class Line(NamedTuple):
    """A line, or a paragraph, and how it looks on a terminal."""

    style: str
    text: str


def lines_of(messages: Sequence[Message], *, full: bool = False) -> Iterator[Line]:
    """Yield the lines of a conversation in normalised form; unless ``full``, each call and each result in one line."""
    for message in messages:
        style = STYLES["user" if message.role in ("user", "developer") else "assistant"]
        for block in message.content:
            match block:
                case Text():
                    yield Line(style, f"{message.role}: {printable(block.text)}")
                case ToolUse() if full:
                    yield Line(STYLES["tool"], f"call {printable(block.id)}: {short_call(block.name, block.input, 1_000_000)}")
                case ToolUse():
                    yield Line(STYLES["tool"], f"  call {short_call(block.name, block.input)}")
                case ToolResult():
                    yield _result(block, full=full)
                case Reasoning():
                    continue
                case other:
                    yield Line(STYLES["aside"], f"{message.role}: [{other.media_type}, {len(other.data)} bytes]")
        if transcript.is_partial(message):
            yield Line(STYLES["aside"], "  (the answer was cut short here)")


def _result(result: ToolResult, *, full: bool) -> Line:
    failed = result.status == "error"
    style = STYLES["failed" if failed else "tool"]
    text = result_text(result)
    if full:
        return Line(style, f"{'error' if failed else 'result'} {printable(result.tool_use_id)}: {printable(text)}")
    return Line(style, f"  {'error' if failed else 'result'} {one_line(text)}")


def result_text(result: ToolResult) -> str:
    """Return what a tool answered as text."""
    content: Any = result.content
    items: Sequence[Any] = content if isinstance(content, tuple) else (content,)
    return "\n".join(_as_text(item) for item in items)


def _as_text(item: Any) -> str:
    match item:
        case Text():
            return item.text
        case str():
            return item
        case _ if hasattr(item, "media_type"):
            return f"[{item.media_type}, {len(item.data)} bytes]"
        case _:
            return msgspec.json.encode(item).decode()
