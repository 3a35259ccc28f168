"""What is known of Claude models, by the names that Anthropic and Bedrock give them.

Source: https://platform.claude.com/docs/en/about-claude/models/overview
"""

from __future__ import annotations

import re

__all__ = ["can_be_forced", "context_window", "holds_to_schema", "is_claude"]

_NAME = re.compile(r"(?:^|[./])(claude-[a-z0-9-]+)")
_MILLION = re.compile(
    r"claude-(?:(?:opus|sonnet|haiku|fable|mythos)-[5-9]|opus-4-[6-9]|sonnet-4-[6-9])(?!\d)"
)
_OLDER = re.compile(r"claude-(?:3|(?:opus|sonnet|haiku)-4)(?!\d)")
_UNFORCED = re.compile(r"claude-(?:(?:opus|sonnet)-5-[5-9]|(?:fable|mythos)-5-[1-9])(?!\d)")
_UNHELD = re.compile(r"claude-(?:3|(?:opus|sonnet)-4-(?:0|2025))(?!\d(?!\d))")


def _claude(model: str) -> str:
    found = _NAME.search(model)
    return found[1] if found else ""


def is_claude(model: str) -> bool:
    """Return whether ``model`` names a Claude model."""
    return bool(_claude(model))


def context_window(model: str) -> int | None:
    """Return the tokens of a model's context window, ``None`` where that is not known."""
    name = _claude(model)
    if _MILLION.match(name):
        return 1_000_000
    return 200_000 if _OLDER.match(name) else None


def can_be_forced(model: str) -> bool:
    """Return whether a model can be told to call a tool; some answer that with an error.

    Source: https://platform.claude.com/docs/en/models/opus-5-5/whats-new-opus-5-5#forced-tool-use-is-not-supported
    """
    return not _UNFORCED.match(_claude(model))


def holds_to_schema(model: str) -> bool:
    """Return whether a model's answer can be held to a JSON Schema; the oldest have no structured outputs.

    Source: https://platform.claude.com/docs/en/build-with-claude/structured-outputs
    """
    return is_claude(model) and not _UNHELD.match(_claude(model))
