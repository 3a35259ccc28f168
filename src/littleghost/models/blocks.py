"""Answers that come as indexed content blocks, as Anthropic and Bedrock stream them, and what of their reasoning is kept. Without I/O."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

from littleghost import transcript
from littleghost.content import Block, Reasoning, Text, ToolUse
from littleghost.errors import ModelProtocolError
from littleghost.events import ModelEvent, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStarted
from littleghost.message import Message
from littleghost.models.arguments import mend, pair, read_arguments, whole_characters

__all__ = ["Blocks", "Thoughts", "with_signatures"]


class _Open:
    """A block that is being streamed."""

    __slots__ = ("closed", "data", "held", "id", "kind", "name", "pieces", "position", "signature")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.pieces: list[str] = []
        self.held = ""
        self.signature = ""
        self.data = b""
        self.id = ""
        self.name = ""
        self.position = 0
        self.closed = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Blocks:
    """Takes the blocks of an answer piece by piece, gives their events and at the end the content.

    A piece for a block that is not open, and a block that begins twice, mean that the stream lost its order: no answer can be made
    of it.

    Args:
        form: Whose reasoning it is, as in ``Reasoning.details["format"]``.
        announced: Whether each block must be opened before its first piece.
    """

    def __init__(self, form: str, *, announced: bool) -> None:
        self._form = form
        self._announced = announced
        self._blocks: dict[int, _Open] = {}
        self._calls = 0

    @property
    def complete(self) -> bool:
        """Whether every block that began has ended."""
        return all(block.closed for block in self._blocks.values())

    def open(self, index: Any, kind: str, *, id: Any = "", name: Any = "") -> Iterator[ModelEvent]:
        """Begin a block.

        Args:
            index: Its place in the answer.
            kind: ``text``, ``reasoning``, ``call``, or ``other`` for what is passed over.
            id: Of a call.
            name: Of a call.

        Raises:
            ModelProtocolError: It has begun before, or ``index`` is none.
        """
        if type(index) is not int or index in self._blocks:
            raise ModelProtocolError(
                "the model's server began a block of its answer twice, or without an index"
            )
        block = self._blocks[index] = _Open(kind)
        if kind == "call":
            block.id = mend(id) if isinstance(id, str) and id else f"call_{uuid.uuid4().hex[:24]}"
            block.name = mend(name.strip()) if isinstance(name, str) else ""
            block.position = self._calls
            self._calls += 1
            yield ToolCallStarted(index=block.position, id=block.id, name=block.name or "unnamed")

    def add(self, index: Any, kind: str, piece: Any) -> Iterator[ModelEvent]:
        """Add a piece of text, reasoning or arguments to a block.

        Raises:
            ModelProtocolError: There is no such open block.
        """
        block = yield from self._at(index, kind)
        if isinstance(piece, str):
            yield from self._say(block, piece)

    def sign(self, index: Any, *, signature: Any = None, data: bytes | None = None) -> Iterator[ModelEvent]:
        """Add a piece of the signature of a reasoning block, or of its encrypted form; see `add`."""
        block = yield from self._at(index, "reasoning")
        block.signature += signature if isinstance(signature, str) else ""
        block.data += data or b""

    def close(self, index: Any) -> Iterator[ModelEvent]:
        """End a block; ending it again changes nothing.

        Raises:
            ModelProtocolError: It never began.
        """
        block = self._blocks.get(index) if type(index) is int else None
        if block is None:
            if self._announced or type(index) is not int:
                raise ModelProtocolError(
                    "the model's server ended a block of its answer that it had not begun"
                )
            block = self._blocks[index] = _Open("other")  # an empty one, of which nothing was told
        if not block.closed:
            yield from self._say(block, "", last=True)
            block.closed = True

    def finish(self, *, cut: bool) -> tuple[list[Block], dict[int, str]]:
        """Return the content, and what is wrong with the arguments of calls, by position among the calls.

        Args:
            cut: Whether the output limit ended the answer; a last call without arguments is then not one that has none.
        """
        content: list[Block] = []
        malformed: dict[int, str] = {}
        last = max(self._blocks, default=None)
        for index, block in sorted(self._blocks.items()):
            if block.kind == "text" and block.pieces:
                content.append(Text(block.text))
            elif block.kind == "reasoning" and (block.pieces or block.signature or block.data):
                content.append(
                    Reasoning(
                        text=block.text,
                        signature=block.signature or None,
                        data=block.data or None,
                        details={"format": self._form},
                    )
                )
            elif block.kind == "call":
                # A call without arguments comes as no piece at all, or as an empty one.
                written = block.text if block.text.strip() or (cut and index == last) else "{}"
                value, fault = read_arguments(written)
                if not block.name:
                    value, fault = {}, "the call names no tool"
                if fault is not None:
                    malformed[block.position] = fault
                content.append(ToolUse(id=block.id, name=block.name or "unnamed", input=value))
        return content, malformed

    def _at(self, index: Any, kind: str) -> Generator[ModelEvent, None, _Open]:
        block = self._blocks.get(index) if type(index) is int else None
        if block is None and not self._announced and kind != "call":
            yield from self.open(index, kind)
            block = self._blocks[index]
        if block is None or block.closed or block.kind not in (kind, "other"):
            raise ModelProtocolError("the model's server sent a piece of a block that is not open")
        return block

    def _say(self, block: _Open, piece: str, *, last: bool = False) -> Iterator[ModelEvent]:
        piece, block.held = whole_characters(block.held + piece, last=last)
        if not piece or block.kind == "other":
            return
        if block.kind == "call":
            block.pieces.append(pair(piece))
            yield ToolCallArguments(index=block.position, arguments=mend(piece))
            return
        piece = mend(piece)
        block.pieces.append(piece)
        yield TextDelta(text=piece) if block.kind == "text" else ReasoningDelta(text=piece)


# -- what is kept of reasoning when its message is stored


def with_signatures(message: Message, form: str) -> Message:
    """Return an answer with what of its reasoning may be stored, in the library's note ``reasoning``.

    That is only what nobody can read: encrypted blocks, and signatures of blocks that came without text. A block with readable text
    is of no use without it, and one block left out makes the others invalid, so a message keeps all of its blocks or none.
    """
    found = [(at, block) for at, block in enumerate(message.content) if isinstance(block, Reasoning)]
    if not found:
        return message
    kept: list[dict[str, Any]] | None = []
    for at, block in found:
        if block.text or not (block.signature or block.data):
            kept = None
            break
        opaque = (
            {"signature": block.signature}
            if block.data is None
            else {"data": base64.b64encode(block.data).decode()}
        )
        kept.append({"at": at, **opaque})
    return transcript.mark(message, reasoning={"format": form, "blocks": kept})


class Thoughts:
    """Gives the content of assistant messages with the reasoning that a provider is to get back.

    Ask in the order of the conversation: behind a message whose reasoning is known to be lost, nothing that was stored is valid.

    Args:
        form: Whose reasoning to send; that of others is passed over.
        kept: Whether to read what `with_signatures` stored.
    """

    def __init__(self, form: str, *, kept: bool) -> None:
        self._form = form
        self._kept = kept

    def content(self, message: Message) -> Sequence[Block]:
        """Return the blocks of ``message``; its reasoning is of this provider and can be sent back."""
        blocks = [
            block for block in message.content if not isinstance(block, Reasoning) or self._is_ours(block)
        ]
        if not self._kept or any(isinstance(block, Reasoning) for block in blocks):
            return blocks
        note = transcript.note(message, "reasoning")
        form = cast("dict[str, Any]", note) if isinstance(note, dict) else {}
        if form.get("format") != self._form:
            return blocks
        restored = _restored(form.get("blocks"), self._form)
        if not restored:
            self._kept = False
        for at, block in restored:
            blocks.insert(at, block)
        return blocks

    def _is_ours(self, block: Reasoning) -> bool:
        details = block.details
        ours = isinstance(details, dict) and cast("dict[str, Any]", details).get("format") == self._form
        return ours and bool(block.signature or block.data)


def _restored(kept: Any, form: str) -> list[tuple[int, Reasoning]]:
    """Return the blocks of a note and their places; none where it is not as `with_signatures` wrote it."""
    restored: list[tuple[int, Reasoning]] = []
    for item in cast("list[Any]", kept) if isinstance(kept, list) else ():
        block = cast("dict[str, Any]", item) if isinstance(item, dict) else {}
        at, signature, data = block.get("at"), block.get("signature"), block.get("data")
        if type(at) is not int:
            return []
        if isinstance(signature, str):
            restored.append((at, Reasoning(signature=signature, details={"format": form})))
        elif isinstance(data, str):
            try:
                raw = base64.b64decode(data, validate=True)
            except binascii.Error:
                return []
            restored.append((at, Reasoning(data=raw, details={"format": form})))
        else:
            return []
    return restored
