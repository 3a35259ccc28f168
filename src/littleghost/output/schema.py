"""JSON Schemas of answers, in the few words that every provider knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import inspect

from littleghost.tools.function import parse_docstring

__all__ = ["apart", "of_type", "tidy"]

Schema = dict[str, Any]

_DROPPED = frozenset({"title", "default", "examples", "discriminator"})
"""Said elsewhere, or refused by some provider."""

_NAMED = frozenset({"properties", "$defs", "patternProperties"})
"""Members whose own members are names and not words of JSON Schema."""

_TYPES: Mapping[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_FORMATS: Mapping[type, str] = {inspect.DateTimeType: "date-time", inspect.TimeType: "time"}


def of_type(type: Any) -> Schema:
    """Return the JSON Schema of a type that msgspec knows.

    Raises:
        TypeError: It does not know it.
    """
    (schema,), components = msgspec.json.schema_components([type], ref_template="#/$defs/{name}")
    _say_times(schema, inspect.type_info(type), components, set())
    return {**schema, "$defs": components} if components else schema


def _say_times(schema: Schema, info: inspect.Type, components: Mapping[str, Schema], seen: set[str]) -> None:
    """Say which strings are dates with times, as msgspec does only where a time zone is a must; a model has to know."""
    if isinstance(info, inspect.Metadata):
        _say_times(schema, info.type, components, seen)
    elif isinstance(info, inspect.DateTimeType | inspect.TimeType):
        if schema.get("type") == "string":
            schema.setdefault("format", _FORMATS[type(info)])
    elif isinstance(info, inspect.UnionType):
        branches: list[Schema] = schema.get("anyOf", [])
        if len(branches) == len(info.types):
            for branch, member in zip(branches, info.types, strict=True):
                _say_times(branch, member, components, seen)
    elif isinstance(info, inspect.CollectionType):
        _say_times(cast("Schema", schema.get("items", {})), info.item_type, components, seen)
    elif isinstance(info, inspect.DictType):
        values: Any = schema.get("additionalProperties")
        if isinstance(values, dict):
            _say_times(cast("Schema", values), info.value_type, components, seen)
    elif isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        name = str(schema.get("$ref", "")).rsplit("/", 1)[-1]
        properties: Schema = components.get(name, {}).get("properties", {})
        if name not in seen:
            seen.add(name)
            for member in info.fields:
                if member.encode_name in properties:
                    _say_times(properties[member.encode_name], member.type, components, seen)


def tidy(schema: Schema) -> Schema:
    """Return ``schema`` with what it refers to on top written out there, in a form that strict modes of providers accept.

    Objects with named members are closed. A member that has a default is asked for all the same: strict modes know no others, and reading
    does without it. Docstrings give their first part to the object and their ``Attributes:`` to its members.
    """
    definitions: dict[str, Schema] = schema.get("$defs", {})
    top = {key: value for key, value in schema.items() if key != "$defs"}
    if "$ref" in top:
        name = top.pop("$ref").rsplit("/", 1)[-1]
        top = {**definitions[name], **top}
    made = {name: _tidy(value) for name, value in definitions.items()}
    top = _tidy(top)
    used: set[str] = set()
    waiting = [top]
    while waiting:
        for name in _references(waiting.pop()) - used:
            used.add(name)
            waiting.append(made[name])
    kept = {name: value for name, value in made.items() if name in used}
    return {**top, "$defs": kept} if kept else top


def apart(schema: Schema, taken: Mapping[str, Schema]) -> Schema:
    """Return ``schema`` with its definitions renamed where another one has their name in ``taken``."""
    definitions: dict[str, Schema] = schema.get("$defs", {})
    names: dict[str, str] = {}
    for name, definition in definitions.items():
        fresh, number = name, 1
        while taken.get(fresh, definition) != definition or fresh in names.values():
            number += 1
            fresh = f"{name}_{number}"
        names[name] = fresh
    renamed = _refer({key: value for key, value in schema.items() if key != "$defs"}, names)
    return {**renamed, "$defs": {names[name]: _refer(each, names) for name, each in definitions.items()}}


def _refer(node: Any, names: Mapping[str, str]) -> Any:
    """Return ``node`` with its references to definitions under their new names."""
    if isinstance(node, list):
        return [_refer(child, names) for child in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    made: Schema = {key: _refer(value, names) for key, value in cast("Schema", node).items()}
    if isinstance(made.get("$ref"), str):
        made["$ref"] = f"#/$defs/{names[made['$ref'].rsplit('/', 1)[-1]]}"
    return made


def _tidy(node: Any) -> Any:
    if isinstance(node, list):
        return [_tidy(child) for child in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    given = cast("Schema", node)
    made: Schema = {}
    for key, value in given.items():
        if key in _DROPPED:
            continue
        if key in _NAMED and isinstance(value, dict):
            made[key] = {name: _tidy(child) for name, child in cast("Schema", value).items()}
        elif key in ("enum", "const"):
            made[key] = value
        else:
            made["anyOf" if key == "oneOf" else key] = _tidy(value)
    if "$ref" in made and len(made) > 1:  # no word may stand beside it
        made["anyOf"] = [{"$ref": made.pop("$ref")}]
    values: list[Any] = made.get("enum", [made["const"]] if "const" in made else [])
    kinds = {_kind(value) for value in values}
    if len(kinds) == 1 and None not in kinds and "type" not in made:
        made["type"] = kinds.pop()
    if "properties" in made:
        _close(made, cast("Schema", given["properties"]))
    return made


def _kind(value: Any) -> str | None:
    return _TYPES.get(cast("Any", type(value)))


def _close(made: Schema, given: Schema) -> None:
    """Close an object, ask for all its members that can be asked for, and describe them."""
    required = set(cast("list[str]", made.get("required", [])))
    properties: Schema = made["properties"]
    names = [name for name in properties if name in required or "default" in given[name]]
    made.pop("required", None)
    if names:
        made["required"] = names
    made.setdefault("additionalProperties", False)
    summary, notes = parse_docstring(made.pop("description", ""))
    if summary:
        made["description"] = summary
    for name, note in notes.items():
        found = properties.get(name)
        if isinstance(found, dict) and "description" not in found:
            about = cast("Schema", found)
            if "$ref" in about:
                about["anyOf"] = [{"$ref": about.pop("$ref")}]
            about["description"] = note


def _references(node: Any) -> set[str]:
    """Return the names of the definitions that ``node`` refers to."""
    if isinstance(node, list):
        return {name for child in cast("list[Any]", node) for name in _references(child)}
    if not isinstance(node, dict):
        return set()
    members = cast("Schema", node)
    found = {name for value in members.values() for name in _references(value)}
    reference = members.get("$ref")
    if isinstance(reference, str):
        found.add(reference.rsplit("/", 1)[-1])
    return found
