"""What models write piece by piece: the arguments of calls, and text whose characters may be cut in two."""

from __future__ import annotations

import json
from typing import Any

from littleghost import data
from littleghost.errors import DataError

__all__ = ["mend", "pair", "read_arguments", "whole_characters"]


def read_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """Return the arguments of a call, or an empty object and what is wrong with them.

    The reason does not repeat the arguments, so it can be shown and stored.
    """
    if not text.strip():
        return {}, "the arguments are empty"
    try:
        value: Any = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except RecursionError:
        return {}, f"the arguments nest deeper than {data.MAX_DEPTH}"
    except json.JSONDecodeError as error:
        return {}, f"the arguments are not valid JSON: {error.msg} at character {error.pos}"
    except ValueError as error:
        return {}, f"the arguments are not valid JSON: {error}"
    if not isinstance(value, dict):
        return {}, "the arguments are not a JSON object"
    try:
        return data.unpack(data.pack_object(value, "arguments")), None
    except DataError as error:
        path = error.path if len(error.path) <= 80 else error.path[:79] + "…"
        return {}, f"{path}: {error.reason}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has the same key twice")  # which of them was meant, nobody knows
    return members


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def whole_characters(text: str, *, last: bool) -> tuple[str, str]:
    """Return ``text`` without the first half of a surrogate pair at its end, and that half."""
    if not last and text and "\ud800" <= text[-1] <= "\udbff":
        return text[:-1], text[-1]
    return text, ""


def pair(text: str) -> str:
    """Return ``text`` with surrogate pairs made one character; lone halves stay."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def mend(text: str) -> str:
    """Return ``text`` with surrogate pairs made one character and lone halves replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
