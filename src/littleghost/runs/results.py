"""Results of tool calls: from any value, and no longer than a model should read."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from littleghost import transcript
from littleghost.content import Block, Text, ToolResult, ToolUse, made_of
from littleghost.errors import ToolError
from littleghost.tools.function import result_content

__all__ = ["fitted", "result_of"]

BYTES = 4
"""How many bytes of text a token is taken to have."""


def result_of(call: ToolUse, value: Any) -> ToolResult:
    """Return the result of ``call`` that ``value`` stands for: a `ToolResult`, a `ToolError`, or whatever a tool may return.

    Raises:
        DataError: It has no exact JSON form.
    """
    if isinstance(value, ToolError):
        return transcript.error_result(call, str(value) or type(value).__name__)
    status = "success"
    if isinstance(value, ToolResult):
        status, value = value.status, value.content
    return made_of(ToolResult, tool_use_id=call.id, content=result_content(value), status=status)


def fitted(result: ToolResult, tokens: int | None) -> ToolResult:
    """Return ``result`` with at most ``tokens`` tokens of text; of more, the middle goes, and a mark says how much.

    A token is taken as 4 bytes. Blocks that are not text stay, and do not count.
    """
    if tokens is None:
        return result
    room = tokens * BYTES
    blocks = cast("tuple[Block, ...]", result.content)
    if sum(len(block.text) for block in blocks if type(block) is Text) * 4 <= room:
        return result  # no character has more than 4 bytes
    sizes = [len(block.text.encode()) if type(block) is Text else 0 for block in blocks]
    total = sum(sizes)
    if total <= room:
        return result
    tail = room // 2
    head = room - tail
    content: list[Block] = []
    before = 0
    marked = False
    for block, size in zip(blocks, sizes, strict=True):
        start, end = before, before + size
        before = end
        if type(block) is not Text:
            content.append(block)
            continue
        kept_head, kept_tail = max(0, min(head, end) - start), max(0, end - max(total - tail, start))
        if kept_head + kept_tail >= size:
            content.append(block)
            continue
        raw = block.text.encode()
        text = raw[:kept_head].decode(errors="ignore")
        if not marked:
            gone = total - room
            text += f"\n[… {gone:,} bytes left out here, about {-(-gone // BYTES):,} tokens …]\n"
            marked = True
        if kept_tail:
            text += raw[size - kept_tail :].decode(errors="ignore")
        if text:
            content.append(Text(text))
    return msgspec.structs.replace(result, content=tuple(content))
