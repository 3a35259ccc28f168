"""Checks of a request against the shapes of botocore's model, which botocore itself applies in part only.

A shape is compiled once into a function ``check(value, path, problems)``. It appends what breaks a constraint, as (path, value to be shown,
text), and raises a `Refusal` where a value is not of its type at all. Paths and texts are those that the service was seen to use: list
items are numbered from 1, and followed by ``member``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any, cast

from littleghost.emulators.agentcore.refusals import Refusal, cannot_parse

__all__ = ["Check", "Problems", "compile_shape", "milliseconds"]

Problems = list[tuple[str, str, str]]
Check = Callable[[Any, str, Problems], None]

LATEST = 253_402_300_800
"""Seconds since the epoch at the end of the year 9999."""

NULL = "Member must not be null"
ONE_MEMBER = "Member must have exactly one of these set: "


def compile_shape(shape: Any, in_bytes: Collection[str] = ()) -> Check:
    """Return the check of a botocore shape.

    Args:
        shape: A ``botocore.model.Shape``.
        in_bytes: Names of string shapes whose maximum counts UTF-8 bytes, not characters.
    """
    kind = shape.type_name
    if kind == "structure":
        return _document if shape.is_document_type else _structure(shape, in_bytes)
    if kind == "list":
        return _list(shape, in_bytes)
    if kind == "map":
        return _map(shape, in_bytes)
    if kind == "string":
        return _string(shape, in_bytes=shape.name in in_bytes)
    return {"integer": _integer(shape), "boolean": _boolean, "timestamp": _timestamp}[kind]


def milliseconds(timestamp: float) -> int:
    """Return a timestamp of seconds, as it stands in a body, in whole milliseconds; what is finer is cut off."""
    return int(Decimal(repr(timestamp)) * 1000 // 1)


def _wrong_type(path: str, expected: str) -> Refusal:
    return cannot_parse(f"'{path}' cannot be parsed: it must be {expected}")


def _least(least: int) -> str:
    return f"Member must have length greater than or equal to {least}"


def _most(most: int) -> str:
    return f"Member must have length less than or equal to {most}"


def _document(_value: Any, _path: str, _problems: Problems) -> None:
    """Any JSON value is a document."""


def _boolean(value: Any, path: str, _problems: Problems) -> None:
    if value.__class__ is not bool:
        raise _wrong_type(path, "a boolean")


def _timestamp(value: Any, path: str, problems: Problems) -> None:
    if value.__class__ is not int and value.__class__ is not float:
        raise _wrong_type(path, "a timestamp, in seconds since the epoch")
    if not 0 <= value < LATEST:
        problems.append((path, f"'{value}' ", f"Member must be between 0 and {LATEST}"))


def _integer(shape: Any) -> Check:
    least, most = shape.metadata.get("min"), shape.metadata.get("max")

    def check(value: Any, path: str, problems: Problems) -> None:
        if value.__class__ is not int:
            raise _wrong_type(path, "an integer")
        if least is not None and value < least:
            problems.append((path, f"'{value}' ", f"Member must have value greater than or equal to {least}"))
        elif most is not None and value > most:
            problems.append((path, f"'{value}' ", f"Member must have value less than or equal to {most}"))

    return check


def _string(shape: Any, *, in_bytes: bool) -> Check:
    traits = shape.metadata
    least, most = traits.get("min", 0), traits.get("max")
    # As in Java, whose \s knows the white space of ASCII alone.
    pattern = re.compile(traits["pattern"], re.ASCII) if "pattern" in traits else None
    allowed = frozenset(shape.enum)

    def check(value: Any, path: str, problems: Problems) -> None:
        if value.__class__ is not str:
            raise _wrong_type(path, "a string")
        length = len(value)
        if length < least:
            problems.append((path, "", _least(least)))
        elif most is not None:
            if in_bytes:
                length = len(value.encode("utf-8", "surrogatepass"))
            if length > most:
                problems.append((path, "", _most(most)))
                return
        if pattern is not None and pattern.fullmatch(value) is None:
            problems.append((path, "", f"Member must satisfy regular expression pattern: {pattern.pattern}"))
        if allowed and value not in allowed:
            problems.append((path, "", f"Member must satisfy enum value set: [{', '.join(shape.enum)}]"))

    return check


def _structure(shape: Any, in_bytes: Collection[str]) -> Check:
    members: dict[str, Check] = {
        name: compile_shape(member, in_bytes) for name, member in shape.members.items()
    }
    required = tuple(shape.required_members)
    union = bool(shape.is_tagged_union)

    def check(value: Any, path: str, problems: Problems) -> None:
        if value.__class__ is not dict:
            raise _wrong_type(path or "body", "an object")
        prefix = f"{path}." if path else ""
        given = 0
        for name, content in cast("dict[str, Any]", value).items():
            member = members.get(name)
            if member is None:
                raise cannot_parse(f"'{prefix}{name}' is not known; there are {', '.join(members)}")
            if content is not None:
                given += 1
                member(content, prefix + name, problems)
        for name in required:
            if value.get(name) is None:
                problems.append((prefix + name, "", NULL))
        if union and given != 1:
            problems.append((path, "", ONE_MEMBER + ", ".join(members)))

    return check


def _list(shape: Any, in_bytes: Collection[str]) -> Check:
    member = compile_shape(shape.member, in_bytes)
    least, most = shape.metadata.get("min", 0), shape.metadata.get("max")

    def check(value: Any, path: str, problems: Problems) -> None:
        if value.__class__ is not list:
            raise _wrong_type(path, "a list")
        if len(value) < least:
            problems.append((path, "", _least(least)))
        elif most is not None and len(value) > most:
            problems.append((path, "", _most(most)))
            return
        for number, item in enumerate(cast("list[Any]", value), 1):
            where = f"{path}.{number}.member"
            if item is None:
                problems.append((where, "", NULL))
            else:
                member(item, where, problems)

    return check


def _map(shape: Any, in_bytes: Collection[str]) -> Check:
    key_check, value_check = compile_shape(shape.key, in_bytes), compile_shape(shape.value, in_bytes)
    least, most = shape.metadata.get("min", 0), shape.metadata.get("max")

    def check(value: Any, path: str, problems: Problems) -> None:
        if value.__class__ is not dict:
            raise _wrong_type(path, "an object")
        if len(value) < least:
            problems.append((path, "", _least(least)))
        elif most is not None and len(value) > most:
            problems.append((path, "", _most(most)))
            return
        for key, content in cast("dict[str, Any]", value).items():
            of_key: Problems = []
            key_check(key, path, of_key)
            if of_key:
                texts = ", ".join(text for _, _, text in of_key)
                problems.append((path, "", f"Map keys must satisfy constraint: [{texts}]"))
            if content is None:
                problems.append((f"{path}.{key}.member", "", NULL))
            else:
                value_check(content, f"{path}.{key}.member", problems)

    return check
