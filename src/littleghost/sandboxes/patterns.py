"""Patterns for paths, matched one component at a time.

A walk through a tree asks with each entry it meets, and never goes into a directory in which nothing can match. The work for one name is
bounded by its length times that of the pattern, whatever both are.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from littleghost.errors import ToolPermissionError, ToolValueError
from littleghost.workspace import parse_path, shown

__all__ = ["PathPattern", "State"]

State = frozenset[tuple[int, int]]
"""Where a walk stands: in which alternatives, and at which part of each."""

_MOST_CHARACTERS = 1_000
_MOST_ALTERNATIVES = 100
_ANY = "**"
_WILD = re.compile(r"[*?\[]")

Part = str | re.Pattern[str]


class PathPattern:
    """A pattern such as ``src/**/*.{py,md}``; see `Sandbox.glob` for what it may have.

    Args:
        text: The pattern.
        hidden: Whether wildcards match names that begin with a dot.

    Attributes:
        prefix: The names it begins with whatever matches, but for its last part. A walk starts below them.
        start: Where a walk stands at first.

    Raises:
        ToolPermissionError: It is absolute or has a ``..`` component.
        ToolValueError: It is empty, too long, has too many alternatives, or is no text.
    """

    def __init__(self, text: str, *, hidden: bool = False) -> None:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] (what arrives comes from a model)
            raise ToolValueError("a pattern must be text")
        if len(text) > _MOST_CHARACTERS:
            raise ToolValueError(f"a pattern has at most {_MOST_CHARACTERS:,} characters")
        if text.startswith("workspace://"):
            raise ToolValueError(f"{shown(text)}: give workspace://… as the path, and the pattern below it")
        self._hidden = hidden
        alternatives: list[tuple[str, ...]] = []
        self._directories: list[bool] = []
        for one in _expanded(text):
            if len(alternatives) == _MOST_ALTERNATIVES:
                raise ToolValueError(
                    f"{shown(text)}: more than {_MOST_ALTERNATIVES} alternatives in one pattern"
                )
            alternatives.append(_split(text, one))
            self._directories.append(one.endswith("/"))
        size = 0
        while all(
            size < len(parts) - 1 and parts[size] == alternatives[0][size] and not _WILD.search(parts[size])
            for parts in alternatives
        ):
            size += 1
        names = alternatives[0][:size]
        self.prefix = parse_path("/".join(names)).components if names else ()
        self._alternatives = [tuple(_compiled(text, part) for part in parts[size:]) for parts in alternatives]
        self.start = self._closed({(number, 0) for number in range(len(alternatives))})

    def step(self, state: State, name: str, *, is_directory: bool) -> tuple[bool, State]:
        """Return whether the entry ``name``, met where the walk stands at ``state``, matches, and where it stands below that entry."""
        after: set[tuple[int, int]] = set()
        dotted = name.startswith(".") and not self._hidden
        for number, position in state:
            parts = self._alternatives[number]
            if position == len(parts):
                continue
            part = parts[position]
            if part == _ANY:
                if not dotted:
                    after.add((number, position))
            elif isinstance(part, str):
                if part == name:
                    after.add((number, position + 1))
            elif part.match(name) and (not dotted or part.pattern.startswith(r"(?s:\.")):
                after.add((number, position + 1))
        closed = self._closed(after)
        matches = any(
            position == len(self._alternatives[number]) and (is_directory or not self._directories[number])
            for number, position in closed
        )
        return matches, frozenset(
            (number, position) for number, position in closed if position < len(self._alternatives[number])
        )

    def _closed(self, positions: set[tuple[int, int]]) -> State:
        """Add where the walk stands too because ``**`` may stand for nothing."""
        closed = set(positions)
        for number, position in positions:
            parts = self._alternatives[number]
            while position < len(parts) and parts[position] == _ANY:
                position += 1
                closed.add((number, position))
        return frozenset(closed)


def _split(text: str, one: str) -> tuple[str, ...]:
    if one.startswith("/"):
        raise ToolPermissionError(f"{shown(text)}: the pattern must be relative")
    parts = [part for part in one.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ToolPermissionError(f"{shown(text)}: '..' is not allowed in a pattern")
    if not parts or "\0" in one:
        raise ToolValueError(f"{shown(text)}: not a pattern")
    # "a/**" is for what is in a. It is not a itself.
    return (*parts, "*") if parts[-1] == _ANY else tuple(parts)


def _compiled(text: str, part: str) -> Part:
    if part == _ANY or not _WILD.search(part):
        return part
    try:
        return re.compile(fnmatch.translate(part))  # which cannot take more than length times length
    except re.error as error:
        raise ToolValueError(f"{shown(text)}: not a pattern: {error}") from error


def _expanded(text: str) -> Iterator[str]:
    """Yield ``text`` once for each of the texts that its first ``{…,…}`` stands for, those in them and after it expanded too."""
    for start, sign in enumerate(text):
        if sign != "{":
            continue
        options: list[str] = []
        depth, begin = 0, start + 1
        for end in range(start, len(text)):
            if text[end] == "{":
                depth += 1
            elif text[end] == "," and depth == 1:
                options.append(text[begin:end])
                begin = end + 1
            elif text[end] == "}":
                depth -= 1
                if depth == 0:
                    break
        else:
            continue
        if not options:  # one without a comma stands for itself
            continue
        for option in (*options, text[begin:end]):
            for rest in _expanded(option + text[end + 1 :]):
                yield text[:start] + rest
        return
    yield text
