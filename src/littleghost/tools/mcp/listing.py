"""The tools that a server offers, checked before a model sees them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.client.session import ClientSession
from msgspec import Struct

from littleghost import data
from littleghost.errors import ConfigurationError, DataError, ToolConnectionError
from littleghost.tools.mcp.options import Options
from littleghost.tools.mcp.results import said

__all__ = ["Offer", "all_tools", "offers"]

PAGES = 100
TOOLS = 1_000
LISTING_BYTES = 8 << 20
SCHEMA_BYTES = 64 << 10
DESCRIPTION = 4_000
"""Characters of a description that a model is shown."""
NAME = 64

_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class Offer(Struct, frozen=True, kw_only=True):
    """A tool of a server, as an agent gets it.

    Attributes:
        own: What the server calls it.
        name: What the model calls it.
        description: What the server says it does, cut where it is long.
        schema: The JSON Schema of its arguments.
        idempotent: Whether it may run twice.
    """

    own: str
    name: str
    description: str
    schema: dict[str, Any]
    idempotent: bool


async def all_tools(session: ClientSession, server: str) -> list[types.Tool]:
    """Return all tools that the server lists, page by page.

    Raises:
        ToolConnectionError: The list does not end, or is too large.
    """
    capabilities = session.server_capabilities
    if capabilities is not None and capabilities.tools is None:
        return []
    tools: list[types.Tool] = []
    cursor: str | None = None
    size = 0
    for _ in range(PAGES):
        params = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
        page = await session.list_tools(params=params)
        tools += page.tools
        size += sum(len(tool.model_dump_json()) for tool in page.tools)
        if len(tools) > TOOLS or size > LISTING_BYTES:
            raise ToolConnectionError(
                f"{server} lists more than {TOOLS} tools, or more than {LISTING_BYTES >> 20} MiB of them"
            )
        cursor = page.next_cursor
        if cursor is None:
            return tools
    raise ToolConnectionError(f"the list of tools of {server} has more than {PAGES} pages")


def offers(tools: Sequence[types.Tool], options: Options, server: str) -> list[Offer]:
    """Return those of ``tools`` that are wanted, under names that a model can use.

    Raises:
        ConfigurationError: A name that an option has is not the server's, two tools have one name, or a schema cannot be used. What
            ``exclude`` names is not looked at.
    """
    listed = {tool.name for tool in tools}
    unknown = sorted(options.named - listed)
    if unknown:
        there = said(", ".join(sorted(listed)) or "none", 500)
        raise ConfigurationError(f"{server} has no tool named {', '.join(unknown)}; it has: {there}")
    wanted = [tool for tool in tools if options.wants(tool.name)]
    twice = sorted(name for name, count in Counter(tool.name for tool in wanted).items() if count > 1)
    if twice:
        raise ConfigurationError(
            f"{server} lists two tools named {said(twice[0], 128)!r}; exclude= leaves both out"
        )
    found: dict[str, Offer] = {}
    for tool in wanted:
        offer = _offer(tool, options, server)
        other = found.setdefault(offer.name, offer)
        if other is not offer:
            raise ConfigurationError(
                f"tools {said(other.own, 128)!r} and {said(offer.own, 128)!r} of {server} would both be named {offer.name!r}; "
                "exclude= leaves one out"
            )
    return list(found.values())


def _offer(tool: types.Tool, options: Options, server: str) -> Offer:
    hints = tool.annotations if options.trust_annotations else None
    harmless = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return Offer(
        own=tool.name,
        name=_name(options.prefix + tool.name),
        description=said(tool.description or tool.title or "", DESCRIPTION),
        schema=_schema(tool.input_schema, f"tool {said(tool.name, 128)!r} of {server}"),
        idempotent=tool.name in options.idempotent or harmless,
    )


def _name(wanted: str) -> str:
    """Return a name that every provider takes: other signs become ``_``, and a long one ends in a hash of itself."""
    name = _UNFIT.sub("_", wanted) or "_"
    if len(name) <= NAME:
        return name
    digest = hashlib.sha256(wanted.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: NAME - 9]}_{digest}"


def _schema(schema: dict[str, Any], tool: str) -> dict[str, Any]:
    """Return a schema that was looked at: an object's, valid, and of a bearable size.

    Raises:
        ConfigurationError: It is none of that.
    """
    from jsonschema import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for

    remedy = "exclude= leaves it out"
    try:
        packed = data.pack_object({"type": "object", **schema}, "schema")
    except DataError as error:
        raise ConfigurationError(f"the schema of {tool} cannot be used ({error}); {remedy}") from error
    if len(packed) > SCHEMA_BYTES:
        raise ConfigurationError(f"the schema of {tool} has more than {SCHEMA_BYTES >> 10} KiB; {remedy}")
    checked: dict[str, Any] = data.unpack(packed)
    if checked["type"] != "object":
        raise ConfigurationError(f"the schema of {tool} is not that of an object; {remedy}")
    kind: Any = validator_for(checked, default=Draft202012Validator)
    try:
        kind.check_schema(checked)
    except (SchemaError, RecursionError) as error:
        reason = said(str(getattr(error, "message", "it is too deep")), 200)
        raise ConfigurationError(
            f"the schema of {tool} is not a valid JSON Schema ({reason}); {remedy}"
        ) from error
    return checked
