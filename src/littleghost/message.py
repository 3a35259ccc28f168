"""Messages, and the one codec that every store uses for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

import msgspec
from msgspec import Struct, field

from littleghost import data
from littleghost.content import Block, Prepared, Reasoning, Text, ToolResult, ToolUse, block_from, blocks_of
from littleghost.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Content", "Message", "Role", "pack_messages", "unpack_messages"]

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: frozenset[str] = frozenset(get_args(Role))
BLOCK_TYPES: frozenset[type] = frozenset(get_args(Block))

Content = "str | Block | Sequence[str | Block | Mapping[str, Any]] | None"
"""What a message accepts as its content."""


class Message(Struct, frozen=True, gc=False, forbid_unknown_fields=True, metaclass=Prepared):
    """One entry of a conversation.

    Args:
        role: ``system``, ``developer``, ``user``, ``assistant`` or ``tool``.
        content: A string, a block, or a list of both.
        metadata: A JSON object for the application. A true ``transient`` in it keeps the message out of every store; what
            stands under ``littleghost`` is the library's.

    Raises:
        DataError: The role is unknown, or something in ``content`` is no block.
    """

    role: Role
    content: tuple[Block, ...]
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    if TYPE_CHECKING:

        def __init__(
            self,
            role: Role,
            content: str | Block | Sequence[str | Block | Mapping[str, Any]] | None = (),
            metadata: Mapping[str, Any] | None = None,
        ) -> None: ...

    @classmethod
    def prepare(cls, role: Any, content: Any = (), metadata: Any = None) -> dict[str, Any]:
        """Return the fields for the arguments of the constructor."""
        if not isinstance(role, str) or role not in ROLES:
            raise DataError.at("role", f"{role!r} is none of {', '.join(get_args(Role))}")
        if metadata is not None and not isinstance(metadata, Mapping):
            raise DataError.at(
                "metadata", f"expected an object with string keys, got a {type(metadata).__name__}"
            )
        if type(content) is str:
            blocks: tuple[Block, ...] = (Text(content),)
        else:
            items = enumerate(blocks_of(content))
            blocks = tuple(
                [
                    item if type(item) in BLOCK_TYPES else block_from(item, f"content[{index}]")
                    for index, item in items
                ]
            )
        return {
            "role": role,
            "content": blocks,
            "metadata": {} if metadata is None else dict(cast("Mapping[str, Any]", metadata)),
        }

    @classmethod
    def system(cls, content: Any, metadata: Mapping[str, Any] | None = None) -> Self:
        """Return instructions for the model. Never stored."""
        return cls("system", content, metadata)

    @classmethod
    def developer(cls, content: Any, metadata: Mapping[str, Any] | None = None) -> Self:
        """Return instructions that are part of the conversation, and are stored with it."""
        return cls("developer", content, metadata)

    @classmethod
    def user(cls, content: Any, metadata: Mapping[str, Any] | None = None) -> Self:
        """Return what a user says."""
        return cls("user", content, metadata)

    @classmethod
    def assistant(cls, content: Any, metadata: Mapping[str, Any] | None = None) -> Self:
        """Return what a model answered."""
        return cls("assistant", content, metadata)

    @classmethod
    def tool(cls, content: Any, metadata: Mapping[str, Any] | None = None) -> Self:
        """Return results of tool calls."""
        return cls("tool", content, metadata)

    @property
    def text(self) -> str:
        """The visible text, blocks joined."""
        return "".join([block.text for block in self.content if type(block) is Text])

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        """The tool calls in the message."""
        return tuple([block for block in self.content if type(block) is ToolUse])

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The tool results in the message."""
        return tuple([block for block in self.content if type(block) is ToolResult])

    def without_reasoning(self) -> Message:
        """Return the message without reasoning blocks, also inside tool results; itself where there are none."""
        if not _holds_reasoning(self.content):
            return self
        content = tuple(_strip(block) for block in self.content if type(block) is not Reasoning)
        return msgspec.structs.replace(self, content=content)

    def copy(self) -> Message:
        """Return a copy whose mutable parts (metadata, tool inputs and results) are its own.

        Raises:
            DataError: Something in it is no JSON value.
        """
        if not self.metadata and all(type(block) is Text for block in self.content):
            return msgspec.structs.replace(self, metadata={})
        return pack_messages((self,), "message")[1][0]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form.

        Raises:
            DataError: Something in it cannot be stored exactly.
        """
        raw, _ = pack_messages((self,), "message")
        return data.unpack(raw)[0]

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Message:
        """Return the message with the JSON form ``value``.

        A lone string or block as content, strings among the blocks, and ``null`` for no content are accepted.

        Raises:
            DataError: The form is not that of a message.
        """
        return message_from(value, "message")


_MESSAGE = frozenset({Message})
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Message, ...]).decode


def pack_messages(
    messages: Iterable[Message | Mapping[str, Any]], path: str = "messages"
) -> tuple[bytes, tuple[Message, ...]]:
    """Return the JSON array of ``messages``, and the messages as they will be read back.

    Args:
        messages: Messages, or their JSON forms.
        path: What to call them in an error.

    Raises:
        DataError: One cannot be stored exactly.
    """
    given = cast("tuple[Message, ...]", tuple(messages))
    if not _MESSAGE.issuperset(map(type, given)):
        given = tuple(message_from(message, f"{path}[{index}]") for index, message in enumerate(given))
    try:
        raw = _encode(given)
        back = _decode(raw)
        if back == given and (data.is_shallow(raw) or all(map(_fits, given))):
            return raw, back
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
        pass
    checked = tuple(_checked(message, f"{path}[{index}]") for index, message in enumerate(given))
    raw = _encode(checked)
    return raw, checked


def pack_plain(messages: tuple[Any, ...]) -> bytes | None:
    """Return the JSON array of ``messages`` where they are messages of nothing but text, else ``None``; see `pack_messages` then.

    These come back as they went in, so who does not want what comes back need not decode them to see it.
    """
    for message in messages:
        if type(message) is not Message or type(message.role) is not str or message.role not in ROLES:
            return None
        content, metadata = message.content, message.metadata
        if type(content) is not tuple or type(metadata) is not dict or metadata:
            return None
        for block in content:
            if type(block) is not Text or type(block.text) is not str:
                return None
    try:
        return _encode(messages)
    except UnicodeEncodeError:
        return None  # whoever looks closer says where


def unpack_messages(raw: bytes | bytearray | memoryview | str, path: str = "messages") -> tuple[Message, ...]:
    """Return the messages in a JSON array: canonical bytes straight into structs, other valid spellings by a slower way.

    Raises:
        DataError: It is not a JSON array of messages.
    """
    try:
        return _decode(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError):
        values = data.unpack(raw)
    if not isinstance(values, list):
        raise DataError.at(path, f"expected a list of messages, got a {type(values).__name__}")
    return tuple(
        message_from(value, f"{path}[{index}]") for index, value in enumerate(cast("list[Any]", values))
    )


def message_from(value: Any, path: str) -> Message:
    """Return the message that ``value``, a message or its JSON form, stands for.

    Raises:
        DataError: It stands for none; the error names the place below ``path``.
    """
    if isinstance(value, Message):
        return value
    if not isinstance(value, Mapping):
        raise DataError.at(path, f"expected a message, got a {type(value).__name__}")
    form = cast("Mapping[str, Any]", value)
    for key in form:
        if key not in ("role", "content", "metadata"):
            raise DataError.at(path, f"has the unknown key {key!r}")
    for key in ("role", "content"):
        if key not in form:
            raise DataError.at(path, f"has no {key}")
    metadata = form.get("metadata")
    try:
        return Message(
            form["role"],
            form["content"],
            metadata if metadata is None else data.normalise(metadata, "metadata"),
        )
    except DataError as error:
        raise DataError.at(f"{path}.{error.path}", error.reason) from error


def _fits(message: Message) -> bool:
    """Whether nothing in ``message`` nests too deep."""
    return data.fits(message.metadata) and all(map(_block_fits, message.content))


def _block_fits(block: Block, depth: int = data.MAX_DEPTH) -> bool:
    if type(block) is ToolUse:
        return data.fits(block.input, depth)
    if type(block) is Reasoning:
        return data.fits(block.details, depth)
    if type(block) is not ToolResult or not isinstance(block.content, tuple):
        return type(block) is not ToolResult or data.fits(block.content, depth)
    # The list is one level, a block in it another.
    children = cast("tuple[Any, ...]", block.content)
    return depth > 0 and all(
        depth > 1 and _block_fits(cast("Block", child), depth - 2)
        if isinstance(child, Struct)
        else data.fits(child, depth - 1)
        for child in children
    )


def _checked(message: Message, path: str) -> Message:
    """Return ``message`` with plain values throughout, or raise the error that names what is wrong."""
    if message.role not in ROLES:
        raise DataError.at(f"{path}.role", f"{message.role!r} is none of {', '.join(get_args(Role))}")
    content = tuple(
        _checked_block(block, f"{path}.content[{index}]") for index, block in enumerate(message.content)
    )
    metadata: Any = message.metadata
    if not isinstance(metadata, Mapping):
        raise DataError.at(
            f"{path}.metadata", f"expected an object with string keys, got a {type(metadata).__name__}"
        )
    return msgspec.structs.replace(message, content=content, metadata=data.walk(metadata, f"{path}.metadata"))


def _checked_block(block: Any, path: str, depth: int = 0) -> Any:
    if not isinstance(block, Block):
        raise DataError.at(path, f"expected a block, got a {type(block).__name__}")
    if depth > data.MAX_DEPTH:
        raise DataError.at(path, f"nested deeper than {data.MAX_DEPTH}")
    changes: dict[str, Any] = {}
    for name in block.__struct_fields__:
        value: Any = getattr(block, name)
        if name == "data":
            if not isinstance(value, bytes | None):
                raise DataError.at(f"{path}.data", f"expected bytes, got a {type(value).__name__}")
        elif name == "content" and isinstance(value, tuple):
            children = cast("tuple[Any, ...]", value)
            if depth >= data.MAX_DEPTH:
                raise DataError.at(f"{path}.content", f"nested deeper than {data.MAX_DEPTH}")
            changes[name] = tuple(
                _checked_block(child, f"{path}.content[{index}]", depth + 2)
                if isinstance(child, Struct)
                else data.walk(child, f"{path}.content[{index}]", depth + 1)
                for index, child in enumerate(children)
            )
        else:
            changes[name] = data.walk(value, f"{path}.{name}", depth)
    checked = msgspec.structs.replace(block, **changes)
    loose = isinstance(checked, ToolResult) and isinstance(checked.content, tuple)
    try:
        msgspec.json.decode(
            _encode(msgspec.structs.replace(checked, content=None) if loose else checked), type=Block
        )
    except msgspec.ValidationError as error:
        raise DataError.at(path, str(error)) from error
    return checked


def _holds_reasoning(blocks: tuple[Any, ...]) -> bool:
    """Whether a reasoning block is among ``blocks``, or in a tool result among them."""
    for block in blocks:
        if type(block) is Reasoning:
            return True
        if type(block) is ToolResult and isinstance(block.content, tuple):
            children = cast("tuple[Any, ...]", block.content)
            if _holds_reasoning(children):
                return True
    return False


def _strip(block: Any) -> Any:
    if type(block) is not ToolResult or not _holds_reasoning((block,)):
        return block
    children = cast("tuple[Any, ...]", block.content)
    return msgspec.structs.replace(
        block, content=tuple(_strip(child) for child in children if type(child) is not Reasoning)
    )
