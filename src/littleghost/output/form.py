"""How values of a type are written by a model, as a JSON object, and read again."""

from __future__ import annotations

import logging
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec

from littleghost import data
from littleghost.errors import ConfigurationError
from littleghost.output.schema import apart, of_type, tidy

__all__ = ["Form", "MisfitError"]

log = logging.getLogger("littleghost")

ANSWER = "answer"
"""The one member of the object that holds a value that is no object itself."""

MAX_REASONS, MAX_REASON = 10, 500
"""How many reasons a model is told at once, and the characters of one."""

_AT = re.compile(r"(?P<reason>.*) - at (?P<key>`key` in )?`\$?(?P<path>.*)`", re.DOTALL)
_NO_NAME = re.compile(r"\W+", re.ASCII)
_UNIONS = (typing.Union, types.UnionType)
_PYDANTIC = ("pydantic", "pydantic_core", "annotated_types")

Read = Callable[[Any], Any]
Class = type  # which some parameters are called too


class MisfitError(Exception):
    """What a model wrote cannot be read.

    Attributes:
        reasons: What is wrong, each with its place, for the model to read.
    """

    def __init__(self, *reasons: str) -> None:
        self.reasons = tuple(
            reason if len(reason) <= MAX_REASON else reason[: MAX_REASON - 1] + "…"
            for reason in reasons[:MAX_REASONS]
        )
        super().__init__("; ".join(self.reasons))


class Form:
    """The JSON form of a type.

    An object with named members stands for itself; anything else is the member ``answer`` of an object, for providers want an object.
    Of a union whose members cannot be told apart by their JSON, each is the only member of an object, under the name of its type.

    Args:
        type: What msgspec knows, or pydantic if something of pydantic occurs in it.

    Attributes:
        schema: The JSON Schema, an object.
        description: What the type's docstring says of it.

    Raises:
        ConfigurationError: It has no JSON Schema.
    """

    def __init__(self, type: Any) -> None:
        self._members: dict[str, Read] = {}
        members = _told_apart(type)
        try:
            if members:
                schema = self._of_members(members)
            else:
                schema, self._read = _codec(type)
        except ConfigurationError:
            raise
        except Exception as error:  # pydantic has many kinds
            raise ConfigurationError(f"output={_name(type)} cannot be used: {error}") from error
        schema = tidy(schema)
        self._wrapped = schema.get("type") != "object"
        self.description: str = schema.get("description", "")
        if self._wrapped:
            definitions = schema.pop("$defs", None)
            schema = {
                "type": "object",
                "properties": {ANSWER: schema},
                "required": [ANSWER],
                "additionalProperties": False,
            }
            if definitions:
                schema["$defs"] = definitions
        self.schema: dict[str, Any] = schema

    def _of_members(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the schema of a union of ``members``, each under its name."""
        branches: list[dict[str, Any]] = []
        definitions: dict[str, Any] = {}
        for name, member in members.items():
            schema, self._members[name] = _codec(member)
            schema = apart(schema, definitions)
            definitions.update(schema.pop("$defs", {}))
            branches.append({"type": "object", "properties": {name: schema}, "required": [name]})
        return {"anyOf": branches, "$defs": definitions}

    def read(self, written: Any) -> Any:
        """Return the value that a model has written.

        Raises:
            MisfitError: It does not fit the type.
        """
        path, read = "", self._read if not self._members else None
        if self._wrapped:
            if not isinstance(written, Mapping) or ANSWER not in written:
                raise MisfitError(f"expected an object with the member {ANSWER!r}")
            path, written = ANSWER, cast("Mapping[str, Any]", written)[ANSWER]
        if read is None:
            names = cast("dict[str, Any]", written) if isinstance(written, dict) else {}
            name = next(iter(names), "")
            if len(names) != 1 or name not in self._members:
                known = ", ".join(map(repr, self._members))
                raise MisfitError(f"{path}: expected an object with exactly one of the members {known}")
            path, written, read = f"{path}.{name}", names[name], self._members[name]
        try:
            return read(written)
        except msgspec.ValidationError as error:
            raise MisfitError(_placed(str(error), path)) from error
        except Exception as error:
            reasons = _of_pydantic(error, path)
            if reasons is None:
                log.exception("an answer could not be read")
                reasons = [f"{path or 'the answer'}: could not be read ({type(error).__name__})"]
            raise MisfitError(*reasons) from error

    def read_text(self, text: str) -> Any:
        """Return the value that a model has written as JSON text; see `read`."""
        try:
            written = msgspec.json.decode(text)
            if not data.fits(written):
                raise RecursionError
        except RecursionError:
            raise MisfitError(f"the answer nests deeper than {data.MAX_DEPTH}") from None
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise MisfitError(f"the answer is not JSON: {error}") from error
        if not isinstance(written, dict):
            raise MisfitError("the answer is not a JSON object")
        return self.read(cast("Any", written))

    def inside(self, written: Any) -> Any:
        """Return what ``written``, which may be incomplete, says of the value itself; ``msgspec.UNSET`` where that is nothing yet."""
        if not self._wrapped:
            return written
        inner = _member(written, ANSWER)
        return _member(inner, None) if self._members else inner


def _member(written: Any, name: str | None) -> Any:
    """Return the member called ``name``, or the first, of what should be an object; ``msgspec.UNSET`` where there is none."""
    members = cast("dict[str, Any]", written) if isinstance(written, dict) else {}
    return members.get(next(iter(members), "") if name is None else name, msgspec.UNSET)


def _codec(type: Any) -> tuple[dict[str, Any], Read]:
    """Return the schema of a type and what reads its values."""
    if not any(map(_is_pydantic, _parts(type, []))):
        return of_type(type), lambda written: msgspec.convert(written, type, str_keys=True)
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise ConfigurationError(f"output={_name(type)} has constraints that pydantic must check") from error
    adapter: Any = TypeAdapter(type)
    return adapter.json_schema(), lambda written: adapter.validate_json(msgspec.json.encode(written))


def _told_apart(type: Any) -> dict[str, Any]:
    """Return the members of a union that needs their names in the JSON, by these names; of anything else nothing."""
    if typing.get_origin(type) not in _UNIONS:
        return {}
    members = typing.get_args(type)
    if any(map(_is_pydantic, _parts(type, []))):
        if sum(member is not types.NoneType for member in members) < 2:
            return {}
    else:
        try:
            msgspec.json.schema(type)
        except TypeError:
            pass
        else:
            return {}
    named: dict[str, Any] = {}
    for member in members:
        base, number = _NO_NAME.sub("_", _name(member)).strip("_"), 1
        name = base
        while name in named:
            number += 1
            name = f"{base}_{number}"
        named[name] = member
    return named


def _name(type: Any) -> str:
    """Return what to call a type: the name of a class, else how it is written."""
    if type is types.NoneType:
        return "null"
    return type.__name__ if isinstance(type, Class) else str(type).replace("typing.", "")


def _parts(type: Any, seen: list[Any]) -> Iterator[Any]:
    """Yield a type, all types that occur in it, and what annotates them."""
    if any(type is known for known in seen):
        return
    seen.append(type)
    yield type
    if _is_pydantic(type):
        return  # which looks after its own
    origin = typing.get_origin(type)
    if origin is typing.Annotated:
        yield from type.__metadata__
    if origin is not typing.Literal:
        for part in typing.get_args(type):
            yield from _parts(part, seen)
    named: Any = type if origin is None else origin
    if isinstance(named, Class) and _has_members(named):
        try:
            hints = typing.get_type_hints(named, include_extras=True)
        except (NameError, TypeError):
            return  # what reads the type says it better
        for part in hints.values():
            yield from _parts(part, seen)


def _has_members(named: Any) -> bool:
    return (
        hasattr(named, "__dataclass_fields__")
        or hasattr(named, "__total__")  # a TypedDict, of typing or of typing_extensions
        or issubclass(named, msgspec.Struct | tuple)
    )


def _is_pydantic(part: Any) -> bool:
    """Whether a type is pydantic's, or an annotation one that only pydantic heeds."""
    kind = part if isinstance(part, Class) else type(part)
    return kind.__module__.partition(".")[0] in _PYDANTIC or hasattr(kind, "__get_pydantic_core_schema__")


def _of_pydantic(error: Exception, path: str) -> list[str] | None:
    """Return what a validation error of pydantic says, if it is one."""
    if type(error).__module__.partition(".")[0] != "pydantic_core" or not hasattr(error, "errors"):
        return None
    found: list[dict[str, Any]] = cast("Any", error).errors(
        include_url=False, include_context=False, include_input=False
    )
    reasons: list[str] = []
    for each in found[:MAX_REASONS]:
        place = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in each["loc"])
        reasons.append(f"{place.lstrip('.') or 'the answer'}: {each['msg']}")
    return reasons


def _placed(reason: str, path: str) -> str:
    """Return an error of msgspec with its place in front."""
    found = _AT.fullmatch(reason)
    if found is not None:
        reason = f"a key: {found['reason']}" if found["key"] else found["reason"]
        path += found["path"]
    return f"{path.lstrip('.') or 'the answer'}: {reason}"
