"""Conversations as text for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from littleghost import Message, Reasoning, Text, ToolResult, ToolUse, transcript
from littleghost.cli.terminal import one_line, printable, short_call

__all__ = ["Line", "lines_of"]


class Line(NamedTuple):
    """A line, or a paragraph, and how it looks on a terminal."""

    style: str
    text: str


def lines_of(messages: Sequence[Message], *, full: bool = False) -> Iterator[Line]:
    """Yield the lines of a conversation in normalised form; unless ``full``, each call and each result in one short line."""
    for message in messages:
        style = "bold" if message.role in ("user", "developer") else ""
        for block in message.content:
            match block:
                case Text():
                    yield Line(
                        style, f"{message.role}: {printable(block.text if full else block.text.rstrip())}"
                    )
                case ToolUse():
                    yield _call(block, full=full)
                case ToolResult():
                    yield _result(block, full=full)
                case Reasoning():
                    continue
                case _:
                    yield Line(
                        "dim", f"{message.role}: [{printable(block.media_type)}, {len(block.data)} bytes]"
                    )
        if transcript.is_partial(message):
            yield Line("dim", "  (cut short here)")


def _call(call: ToolUse, *, full: bool) -> Line:
    if full:
        return Line(
            "cyan",
            f"call {printable(call.id)}: {printable(call.name)} {printable(json.dumps(call.input, ensure_ascii=False))}",
        )
    return Line("cyan", f"  call {short_call(call.name, call.input)}")


def _result(result: ToolResult, *, full: bool) -> Line:
    word, style = ("error", "red") if result.status == "error" else ("result", "cyan")
    if full:
        return Line(style, f"{word} {printable(result.tool_use_id)}: {printable(result.text)}")
    return Line(style, f"  {word} {one_line(result.text)}")
