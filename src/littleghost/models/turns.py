"""A conversation as alternating turns of a user and an assistant, which is what Anthropic and Bedrock take. Without I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from littleghost.content import Document
from littleghost.message import Message
from littleghost.models.contract import ToolSpec

__all__ = ["BEGINNING", "EMPTY", "CallIds", "Turns", "answer_schema", "called", "opening", "text_of"]

BEGINNING = "(The conversation begins.)"
"""Stands in front of a conversation that an assistant opened: a user has to have the first word."""
EMPTY = "(empty)"
"""Stands for what has no text where some text has to be."""


class Turns:
    """Collects the turns of a request; what one role says in a row becomes one turn."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def add(self, role: str, blocks: Sequence[dict[str, Any]]) -> None:
        """Add ``blocks``, if there are any."""
        if not blocks:
            return
        if not self.sent and role == "assistant":
            self.add("user", [{**_text_like(blocks), "text": BEGINNING}])
        if self.sent and self.sent[-1]["role"] == role:
            self.sent[-1]["content"].extend(blocks)
        else:
            self.sent.append({"role": role, "content": list(blocks)})

    def last_turn(self, result: str) -> Sequence[dict[str, Any]]:
        """Return the assistant's messages since a user last had the word; results of calls are no user's word.

        Args:
            result: What a block is, or has, that is a result.
        """
        found: list[dict[str, Any]] = []
        for turn in reversed(self.sent):
            if turn["role"] == "assistant":
                found.append(turn)
            elif not any(block.get("type") == result or result in block for block in turn["content"]):
                break
        return found[::-1]


def _text_like(blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "text"} if "type" in blocks[0] else {}


class CallIds:
    """Gives the ids of calls as a provider takes them, none twice in a conversation; call ids may repeat from turn to turn.

    Args:
        foreign: Matches a character that the provider refuses.
        longest: The most characters of an id.
    """

    def __init__(self, foreign: re.Pattern[str], longest: int = 64) -> None:
        self._foreign = foreign
        self._longest = longest
        self._used: set[str] = set()
        self._sent: dict[str, str] = {}

    def begin(self, message: Message) -> None:
        """Take the calls of an assistant message; the results that follow answer these."""
        self._sent = {}
        for call in message.tool_uses:
            base, number = self._acceptable(call.id), 1
            identifier = base
            while identifier in self._used:
                number += 1
                identifier = self._acceptable(f"{call.id}_{number}")
            self._used.add(identifier)
            self._sent[call.id] = identifier

    def __getitem__(self, identifier: str) -> str:
        return self._sent.get(identifier) or self._acceptable(identifier)

    def _acceptable(self, identifier: str) -> str:
        if len(identifier) <= self._longest and not self._foreign.search(identifier):
            return identifier
        return f"call_{hashlib.sha256(identifier.encode()).hexdigest()[:32]}"


def opening(messages: Sequence[Message]) -> tuple[list[str], Sequence[tuple[int, Message]]]:
    """Return the texts of the instructions that a conversation begins with, and the numbered messages after them."""
    texts: list[str] = []
    for index, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            return texts, [(at, messages[at]) for at in range(index, len(messages))]
        if message.text.strip():
            texts.append(message.text)
    return texts, []


def called(messages: Iterable[Message], offered: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return a stand-in for each tool that the conversation calls where none is offered now.

    A conversation with calls is refused without tools.
    """
    if offered:
        return []
    names = dict.fromkeys(call.name for message in messages for call in message.tool_uses)
    return [
        ToolSpec(name=name, description="Not available now.", schema={"type": "object"}) for name in names
    ]


_TEXTUAL = frozenset(
    {
        "application/json",
        "application/x-ndjson",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/javascript",
        "application/sql",
    }
)


def text_of(document: Document) -> str | None:
    """Return the text of a document that is text, by its media type and in UTF-8; else ``None``."""
    kind = document.media_type.partition(";")[0].strip().lower()
    if not (kind.startswith("text/") or kind in _TEXTUAL or kind.endswith(("+json", "+xml"))):
        return None
    try:
        return document.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


_KEPT = frozenset({"$ref", "const", "default", "description", "enum", "required", "title", "type"})
_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"}
)


def answer_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return ``schema`` within what structured outputs of Claude models support.

    Objects are closed, ``oneOf`` becomes ``anyOf``, and keywords that would be refused, such as ``minimum``, move to the description,
    where the model may still heed them.
    Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations
    """
    made: dict[str, Any] = {}
    told: list[str] = []
    for name, value in schema.items():
        if (
            name in _KEPT
            or (name == "format" and value in _FORMATS)
            or (name == "minItems" and value in (0, 1))
        ):
            made[name] = value
        elif name in ("properties", "$defs", "definitions") and isinstance(value, dict):
            made[name] = {key: _inner(child) for key, child in cast("dict[str, Any]", value).items()}
        elif name in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
            made["anyOf" if name == "oneOf" else name] = [_inner(child) for child in cast("list[Any]", value)]
        elif name == "items":
            made[name] = _inner(value)
        elif name not in ("additionalProperties", "$schema", "$id"):
            told.append(f"{name}: {value}")
    if schema.get("type") == "object" or "properties" in schema:
        made["additionalProperties"] = False
    if told:
        made["description"] = "\n\n".join(
            [*filter(None, [schema.get("description")]), "{" + ", ".join(told) + "}"]
        )
    return made


def _inner(schema: Any) -> Any:
    return answer_schema(cast("dict[str, Any]", schema)) if isinstance(schema, dict) else schema
