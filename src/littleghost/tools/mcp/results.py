"""What a server answers to a call, as content of ours: bounded, and of kinds that every provider takes."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

import mcp_types as types

from littleghost.content import Block, Document, Image, Text
from littleghost.sandboxes.captures import Capture

__all__ = ["blocks_of", "said"]

IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
PDF = "application/pdf"
BLOCKS = 100
"""Blocks of one result."""
ATTACHMENTS = 10
"""How many times the limit of text the pictures and documents of one result may have, in bytes."""
SAID = 2_000
"""Characters of a server's short texts, such as the message of an error."""

Content = (
    types.TextContent | types.ImageContent | types.AudioContent | types.ResourceLink | types.EmbeddedResource
)


def said(text: str, limit: int = SAID) -> str:
    """Return a text of a server in valid Unicode, cut after ``limit`` characters."""
    text = text[: limit + 1].encode("utf-8", "replace").decode()
    return text if len(text) <= limit else f"{text[:limit]}…"


def blocks_of(result: types.CallToolResult, limit: int) -> list[Block]:
    """Return the content of ``result``: text, pictures and PDF documents; of anything else a line that says what it was.

    Structured content is taken where there is no other, for a server gives the same as text beside it.

    Args:
        result: What the server answered.
        limit: Bytes of text to keep. Text beyond is cut in the middle, and a picture or document that is too much is left out; a line
            says so.
    """
    room = _Room(limit)
    blocks = [room.block(item) for item in result.content[:BLOCKS]]
    if not result.content and result.structured_content is not None:
        blocks.append(room.text(json.dumps(result.structured_content, ensure_ascii=False)))
    if len(result.content) > BLOCKS:
        blocks.append(
            Text(f"[{len(result.content) - BLOCKS} more items left out: a result may have {BLOCKS}]")
        )
    return blocks or [Text("[no content]")]


class _Room:
    """What one result may still have."""

    def __init__(self, limit: int) -> None:
        self._text, self._attached = limit, limit * ATTACHMENTS

    def text(self, text: str) -> Text:
        encoded = text.encode("utf-8", "replace")
        capture = Capture(max(self._text, 0))
        capture.add(encoded)
        self._text -= len(encoded)
        return Text(capture.finish()[0])

    def block(self, item: Content) -> Block:
        if isinstance(item, types.TextContent):
            return self.text(item.text)
        if isinstance(item, types.ImageContent):
            return self._file(item.data, item.mime_type, "image")
        if isinstance(item, types.AudioContent):
            return self.text(f"[audio of type {said(item.mime_type, 100)} left out: it cannot be shown]")
        if isinstance(item, types.ResourceLink):
            return self.text(f"[resource {said(item.name, 200)}: {said(str(item.uri))}]")
        resource = item.resource
        if isinstance(resource, types.TextResourceContents):
            return self.text(f"[resource {said(str(resource.uri))}]\n{resource.text}")
        return self._file(resource.blob, resource.mime_type or "application/octet-stream", str(resource.uri))

    def _file(self, encoded: str, media_type: str, name: str) -> Block:
        kind, name = said(media_type.partition(";")[0].strip().lower(), 100), said(name, 200)
        if len(encoded) > (max(self._attached, 0) // 3 + 1) * 4:
            return self.text(f"[{name} of type {kind} left out: it is too large]")
        try:
            content = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return self.text(f"[{name} of type {kind} left out: it is not valid base64]")
        if kind in IMAGES or kind == PDF:
            if not content:
                return self.text(f"[{name} of type {kind} left out: it is empty]")
            self._attached -= len(content)
            if kind == PDF:
                return Document(data=content, media_type=kind, name=name.rpartition("/")[2] or "document.pdf")
            return Image(data=content, media_type=kind)
        if kind.startswith("text/") or kind == "application/json":
            return self.text(f"[resource {name}]\n{content.decode('utf-8', 'replace')}")
        return self.text(f"[{name} of type {kind}, {len(content)} bytes, left out: it cannot be shown]")


def failure_of(result: types.CallToolResult, limit: int) -> str:
    """Return what ``result`` says of its failure, as text."""
    texts: list[Any] = [block for block in blocks_of(result, limit) if isinstance(block, Text)]
    return "\n".join(block.text for block in texts) or "the tool failed and did not say why"
