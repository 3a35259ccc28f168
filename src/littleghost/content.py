"""The blocks a message is made of. Their JSON is the wire format: ``{"type": "text", "text": …}``, bytes as base64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Struct

from littleghost import data
from littleghost.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Block", "Document", "Image", "Reasoning", "Text", "ToolResult", "ToolUse"]

Value = TypeVar("Value")
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class Prepared(type(Struct)):
    """The metaclass of values whose constructor accepts more than their fields hold.

    ``prepare`` gets the arguments and returns the fields. Decoding does not pass through here, so reading costs nothing.
    """

    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(**cls.prepare(*args, **kwargs))


if TYPE_CHECKING:

    def made_of(kind: type[Value], /, *fields: Any, **named: Any) -> Value:
        """Return the value of these very fields, which are known to be right: `Prepared` does not look at them again."""
        ...

else:
    made_of = type(Struct).__call__


class Text(Struct, frozen=True, gc=False, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Visible text."""

    text: str


class _Bytes(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
    metaclass=Prepared,
):
    data: bytes
    encoding: Literal["base64"]
    media_type: NonEmpty

    @classmethod
    def prepare(cls, **fields: Any) -> dict[str, Any]:
        """Return the fields for the arguments of the constructor; ``encoding`` need not be given."""
        return {"encoding": "base64", **fields}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.media_type}, {len(self.data)} bytes)"


class Image(_Bytes, frozen=True, gc=False, kw_only=True, tag="image"):
    """A picture.

    Attributes:
        data: Its bytes.
        media_type: Such as ``image/png``.
        name: A file name, or ``None``.
    """

    name: str | None = None

    if TYPE_CHECKING:

        def __init__(self, *, data: bytes, media_type: str, name: str | None = None) -> None: ...


class Document(_Bytes, frozen=True, gc=False, kw_only=True, tag="document"):
    """A file for the model to read.

    Attributes:
        data: Its bytes.
        media_type: Such as ``application/pdf``.
        name: Its file name.
    """

    name: str

    if TYPE_CHECKING:

        def __init__(self, *, data: bytes, media_type: str, name: str) -> None: ...


class ToolUse(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="tool_use",
    tag_field="type",
    forbid_unknown_fields=True,
    metaclass=Prepared,
):
    """A model's call of a tool.

    Attributes:
        id: What the result refers to; unique within its message.
        name: The tool's name.
        input: Its arguments, a JSON object.
    """

    id: NonEmpty
    name: NonEmpty
    input: dict[str, Any]

    if TYPE_CHECKING:

        def __init__(self, *, id: str, name: str, input: dict[str, Any] | None = None) -> None: ...

    @classmethod
    def prepare(cls, *, id: str, name: str, input: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the fields for the arguments of the constructor; without ``input`` there are no arguments."""
        return {"id": id, "name": name, "input": {} if input is None else input}


class ToolResult(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="tool_result",
    tag_field="type",
    forbid_unknown_fields=True,
    metaclass=Prepared,
):
    """What a tool call came to.

    Attributes:
        tool_use_id: The ``id`` of the `ToolUse` it answers.
        content: Any JSON value; in a list, blocks are kept as blocks, and objects with a ``type`` become blocks.
        status: ``success`` or ``error``.

    Raises:
        DataError: An object with a ``type`` in ``content`` is no block.
    """

    tool_use_id: NonEmpty
    content: tuple[Block, ...] | dict[str, Any] | str | int | float | bool | None
    status: Literal["success", "error"]

    if TYPE_CHECKING:

        def __init__(
            self, *, tool_use_id: str, content: Any = "", status: Literal["success", "error"] = "success"
        ) -> None: ...

    @classmethod
    def prepare(cls, *, tool_use_id: str, content: Any = "", status: str = "success") -> dict[str, Any]:
        """Return the fields for the arguments of the constructor: a list becomes a tuple, a lone block a tuple of one."""
        if isinstance(content, list | tuple):
            items = cast("Sequence[Any]", content)
            content = tuple(_block_or_json(item, f"content[{index}]") for index, item in enumerate(items))
        elif isinstance(content, Block):
            content = (content,)
        return {"tool_use_id": tool_use_id, "content": content, "status": status}

    @property
    def text(self) -> str:
        """The content as text: text blocks joined, other JSON spelled out, attachments named."""
        if isinstance(self.content, str):
            return self.content
        if isinstance(self.content, tuple):
            return "\n".join(_as_text(item) for item in cast("tuple[Any, ...]", self.content))
        return _as_text(self.content)


class Reasoning(
    Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    tag="reasoning",
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
    metaclass=Prepared,
):
    """What a model thought before it answered. Private: kept within a run, never stored.

    Attributes:
        text: The readable part.
        signature: The provider's proof that the text is its own.
        data: An encrypted form, in place of readable text.
        details: Whatever else the provider wants back.
    """

    text: str
    signature: str | None = None
    data: bytes | None = None
    encoding: Literal["base64"] | None = None
    details: Any = None

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            text: str = "",
            signature: str | None = None,
            data: bytes | None = None,
            details: Any = None,
        ) -> None: ...

    @classmethod
    def prepare(
        cls,
        *,
        text: str = "",
        signature: str | None = None,
        data: bytes | None = None,
        details: Any = None,
        encoding: Any = None,
    ) -> dict[str, Any]:
        """Return the fields for the arguments of the constructor; ``encoding`` follows from ``data``."""
        encoding = "base64" if data is not None else None
        return {"text": text, "signature": signature, "data": data, "encoding": encoding, "details": details}

    def __repr__(self) -> str:
        return f"Reasoning({len(self.text)} characters)"


Block = Text | Image | Document | ToolUse | ToolResult | Reasoning
"""Any content block."""


def _as_text(value: Any) -> str:
    if isinstance(value, Text):
        return value.text
    if isinstance(value, Image | Document):
        return f"[{value.media_type}, {len(value.data)} bytes]"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def blocks_of(content: Any) -> Iterator[Any]:
    """Yield the blocks of ``content``: nothing for ``None``, a lone string or block as one, else each of the list."""
    if content is None:
        return
    items = cast("Sequence[Any]", content) if isinstance(content, list | tuple) else (content,)
    for item in items:
        yield Text(item) if isinstance(item, str) else item


def block_from(item: Any, path: str) -> Block:
    """Return the block that ``item``, a block or its JSON form, stands for.

    Raises:
        DataError: It stands for none; the error names the place below ``path``.
    """
    if isinstance(item, Block):
        return item
    if not isinstance(item, Mapping):
        raise DataError.at(path, f"expected a block, got a {type(item).__name__}")
    form = data.normalise(cast("Any", item), path, free=1)
    if form.get("type") == "tool_result" and isinstance(form.get("content"), list):
        items = cast("list[Any]", form["content"])
        content = tuple(
            _block_or_json(child, f"{path}.content[{index}]") for index, child in enumerate(items)
        )
        return msgspec.structs.replace(_convert({**form, "content": None}, path), content=content)
    return _convert(form, path)


def _block_or_json(item: Any, path: str) -> Any:
    """Return an element of the list in a tool result: blocks are typed; anything else is plain JSON."""
    return block_from(item, path) if isinstance(item, Mapping) and "type" in item else cast("Any", item)


def _convert(form: Any, path: str) -> Any:
    try:
        return msgspec.convert(form, Block)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DataError.at(path, f"is not a content block: {error}") from error
