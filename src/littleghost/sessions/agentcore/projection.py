"""The projection of a conversation: its visible text, for the service to learn from. It is no part of a session."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from littleghost import data
from littleghost.errors import DataError
from littleghost.message import Message
from littleghost.sessions.agentcore import limits
from littleghost.sessions.agentcore.events import PROJECTION, TYPE, instant
from littleghost.sessions.agentcore.planning import SKIP, Request, spread

__all__ = ["LINKS", "project"]

LINKS: Final = (
    "little_ghost_parent_link",
    "little_ghost_conversation_id",
    "little_ghost_subagent_id",
    "little_ghost_kind",
    "little_ghost_turn",
)
"""The keys of metadata that are sent, as they are called by those who project and by those who look for it."""

_VALUE = re.compile(r"[a-zA-Z0-9\s._:/=+@-]*", re.ASCII)


def project(messages: Iterable[Message], metadata: Mapping[str, Any], now: float) -> list[Request]:
    """Return what to write for a projection; nothing where there is no visible text.

    Text that is too long for an item is in several of the same role, and what does not fit one event in several, each stamped a second
    later than the one before.

    Args:
        messages: All of which the text is to be seen; system messages and transient ones too. Reasoning goes.
        metadata: Of it the keys in `LINKS` are sent, with text, numbers and ``True`` as values. ``None`` and ``False`` are not.
        now: The time, seconds since the epoch.

    Raises:
        DataError: A value of metadata is none that AWS takes there, or text is not valid Unicode.
    """
    labels = _labels(metadata)
    texts: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        text = data.check_text(message.text, f"messages[{index}]")
        step = limits.MAX_ITEM_CHARS
        texts += [(text[start : start + step], message.role) for start in range(0, len(text), step)]
    second = math.floor(now)
    return [
        {
            "eventTimestamp": instant(second + number),
            "payload": payload,
            "metadata": labels,
            "extractionMode": SKIP,
        }
        for number, payload in enumerate(spread(texts, labels))
    ]


def _labels(metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, Mapping):
        raise DataError.at("metadata", f"expected an object with string keys, got {data.kind(metadata)}")
    labels: dict[str, Any] = {TYPE: {"stringValue": PROJECTION}}
    for key in LINKS:
        value = cast("Mapping[str, Any]", metadata).get(key)
        if value is not None and value is not False:
            labels[key] = {"stringValue": _value(value, f"metadata.{key}")}
    return labels


def _value(value: Any, path: str) -> str:
    if value is True:
        return "true"
    if not isinstance(value, str | int | float):
        raise DataError.at(path, f"expected text or a number, got {data.kind(value)}")
    text = data.check_text(value, path) if isinstance(value, str) else json.dumps(value)
    if len(text) > limits.MAX_LINK_CHARS:
        raise DataError.at(path, f"has {len(text)} characters, and AWS takes {limits.MAX_LINK_CHARS}")
    if not _VALUE.fullmatch(text):
        raise DataError.at(
            path, "has a character that is none of those AWS takes: a-z A-Z 0-9 . _ : / = + @ - and spaces"
        )
    return text
