"""Which JSON Schemas OpenAI can hold an answer to exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

__all__ = ["fits_strict"]

MAX_DEPTH = 10
MAX_PROPERTIES = 5000
KEYWORDS = frozenset({
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maximum", "minItems", "minimum", "multipleOf", "pattern",
    "properties", "required", "title", "type",
})  # fmt: skip
FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})


def fits_strict(schema: Mapping[str, Any]) -> bool:
    """Return whether ``schema`` is within the part of JSON Schema that strict answers may use.

    The root is an object without ``anyOf``; every object has no other properties than those it names, and requires all of them;
    no other keywords than the documented ones, ten levels at most.
    Source: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
    """
    if schema.get("type") != "object" or "anyOf" in schema:
        return False
    left = [MAX_PROPERTIES]
    return _fits(schema, 0, left)


def _fits(schema: Any, depth: int, left: list[int]) -> bool:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return False
    form = cast("Mapping[str, Any]", schema)
    if form.keys() - KEYWORDS or form.get("format", "date") not in FORMATS:
        return False
    kinds = form.get("type")
    inside: list[Any] = []
    if kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
        properties: Any = form.get("properties", {})
        left[0] -= len(properties)
        if form.get("additionalProperties") is not False or set(form.get("required", ())) != set(properties):
            return False
        inside += properties.values()
    elif not form.keys() & {"type", "anyOf", "$ref", "enum", "const"}:
        return False
    inside += form.get("anyOf", ())
    if "items" in form:
        inside.append(form["items"])
    elif kinds == "array":
        return False
    definitions: Any = form.get("$defs", {})
    return (
        left[0] >= 0
        and all(_fits(one, depth + 1, left) for one in inside)
        and all(_fits(one, depth, left) for one in definitions.values())
    )
