"""Anthropic's Messages format, both ways and without I/O: a request to a body, events of a stream to ours.

Source: https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from littleghost.content import Block, Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import ContextOverflowError, ModelProtocolError, ModelRequestError
from littleghost.events import ModelEnded, ModelEvent
from littleghost.message import Message
from littleghost.models.blocks import Blocks, Thoughts, with_signatures
from littleghost.models.contract import ModelRequest, ToolSpec
from littleghost.models.event_streams import ServerFaultError
from littleghost.models.turns import EMPTY, CallIds, Turns, answer_schema, called, opening, text_of
from littleghost.usage import Usage

__all__ = ["FORM", "MessagesAnswer", "messages_body", "read_usage"]

FORM = "anthropic"
"""What ``Reasoning.details["format"]`` says of reasoning that goes back to this provider."""
MARKS = 4
"""How many cache marks a request may have.
Source: https://platform.claude.com/docs/en/build-with-claude/prompt-caching"""
IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_FOREIGN_TO_IDS = re.compile(r"[^A-Za-z0-9_-]")

Cache = Literal["5m", "1h"] | None


# -- requests


def messages_body(
    request: ModelRequest,
    settings: Mapping[str, Any],
    *,
    cache: Cache = None,
    kept: bool = False,
    developer: Literal["user", "system"] = "user",
) -> dict[str, Any]:
    """Return the body of a request, without ``model`` and ``stream``.

    Args:
        request: What is asked.
        settings: Parameters of the API; ``output_config`` and ``tool_choice`` are completed by what the request says.
        cache: How long prefixes are cached; the marks stand after the tools, after the instructions, at messages that ask for it and
            at the last one.
        kept: Whether signatures that were stored with messages go back.
        developer: The role that developer messages amid the conversation are sent under.

    Raises:
        ModelRequestError: Something in it cannot be sent; the error says where it is.
    """
    body = dict(settings)
    texts, rest = opening(request.messages)
    tools = [_tool(tool) for tool in (*request.tools, *called(request.messages, request.tools))]
    if tools:
        _choose(body, request)
    else:
        body.pop("tool_choice", None)  # it may not stand without tools
    if request.format is not None:
        form = {"type": "json_schema", "schema": answer_schema(request.format.schema)}
        body["output_config"] = {**body.get("output_config", {}), "format": form}
    turns, marked = _turns(rest, Thoughts(FORM, kept=kept), developer)
    if not turns.sent:
        raise ModelRequestError("messages: there is none that a model could answer")
    if not _may_think(body, turns):
        if _is_manual(body):
            body["thinking"] = {"type": "disabled"}
        turns, marked = _turns(rest, None, developer)
    system = [_text(text) for text in texts]
    ends = [part[-1] for part in (tools, system) if part] if cache else []
    last = _markable(turns.sent[-1]["content"]) if cache else None
    _mark([*ends, *marked, *([last] if last is not None else [])], cache)
    if system:
        body["system"] = system
    if tools:
        body["tools"] = tools
    return {**body, "messages": turns.sent}


def _choose(body: dict[str, Any], request: ModelRequest) -> None:
    """Put the tool choice into ``body``; one among the settings keeps what it says beside the choice itself."""
    wanted = (
        request.tool_choice if request.tools else "none"
    )  # tools that stand in for others cannot be called
    if wanted == "none":
        body["tool_choice"] = {"type": "none"}
    elif wanted == "required":
        body["tool_choice"] = {**_object(body.get("tool_choice")), "type": "any"}
    elif wanted != "auto":
        body["tool_choice"] = {**_object(body.get("tool_choice")), "type": "tool", "name": wanted}


def _is_manual(body: Mapping[str, Any]) -> bool:
    return _thinking(body) == "enabled"


def _thinking(body: Mapping[str, Any]) -> Any:
    thinking = body.get("thinking")
    return cast("dict[str, Any]", thinking).get("type") if isinstance(thinking, dict) else None


def _may_think(body: Mapping[str, Any], turns: Turns) -> bool:
    """Whether reasoning can be asked for, and sent back, in this request.

    With a thinking budget a turn that called tools must begin with thinking, and tools cannot be forced; the way out is to switch
    thinking off until the turn is over. Adaptive thinking has neither rule, and some models refuse to have it switched off.
    Source: https://platform.claude.com/docs/en/build-with-claude/extended-thinking
    """
    if _thinking(body) == "disabled":
        return False
    if not _is_manual(body):
        return True
    choice = body.get("tool_choice", {}).get("type")
    turn = turns.last_turn("tool_result")
    begins = not turn or turn[0]["content"][0]["type"] in ("thinking", "redacted_thinking")
    return begins and choice not in ("any", "tool")


def _turns(
    messages: Sequence[tuple[int, Message]], thoughts: Thoughts | None, developer: str
) -> tuple[Turns, list[dict[str, Any]]]:
    """Return the turns, and the blocks at which a cached prefix is to end because a message asks for it."""
    turns, ids = Turns(), CallIds(_FOREIGN_TO_IDS)
    marked: list[dict[str, Any]] = []
    for index, message in messages:
        path = f"messages[{index}]"
        if message.role == "assistant":
            ids.begin(message)
            content = message.content if thoughts is None else thoughts.content(message)
            blocks = [
                form
                for block in content
                if (form := _said(block, ids, thoughts=thoughts is not None)) is not None
            ]
            turns.add("assistant", blocks)
        elif message.role in ("user", "tool"):
            blocks = list(_parts(message.content, path, ids))
            turns.add("user", blocks or ([_text(EMPTY)] if message.role == "user" else []))
        else:
            blocks = [_text(message.text)] if message.text.strip() else []
            if developer == "user":
                blocks = [_text(f"<{message.role}>\n{part['text']}\n</{message.role}>") for part in blocks]
            turns.add(developer, blocks)
        end = _markable(blocks) if message.metadata.get("cache") is True else None
        if end is not None:
            marked.append(end)
    if turns.sent and turns.sent[-1]["role"] == "assistant":
        _trim(turns)
    return turns, marked


def _trim(turns: Turns) -> None:
    """Take blanks from the end of an answer that is to be gone on with; the API refuses them there."""
    final = turns.sent[-1]["content"][-1]
    if final["type"] == "text":
        final["text"] = final["text"].rstrip()


def _said(block: Block, ids: CallIds, *, thoughts: bool) -> dict[str, Any] | None:
    """Return a block of an assistant message, ``None`` for what has no place there."""
    if isinstance(block, Text):
        return _text(block.text) if block.text.strip() else None
    if isinstance(block, ToolUse):
        return {"type": "tool_use", "id": ids[block.id], "name": block.name, "input": block.input}
    if isinstance(block, Reasoning) and thoughts:
        if block.data is not None:
            return {"type": "redacted_thinking", "data": block.data.decode()}
        return {"type": "thinking", "thinking": block.text, "signature": block.signature}
    return None


def _parts(blocks: Sequence[Any], path: str, ids: CallIds) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a user's or a tool's message. Text without a visible character is refused, and goes."""
    for index, block in enumerate(blocks):
        place = f"{path}.content[{index}]"
        if isinstance(block, Text):
            if block.text.strip():
                yield _text(block.text)
        elif isinstance(block, Image):
            yield _image(block, place)
        elif isinstance(block, Document):
            yield _document(block, place)
        elif isinstance(block, ToolResult):
            yield _result(block, place, ids)


def _result(result: ToolResult, path: str, ids: CallIds) -> dict[str, Any]:
    inside: Any = result.content
    if isinstance(inside, tuple):
        items = [
            item if isinstance(item, Text | Image | Document) else Text(_json(item))
            for item in cast("tuple[Any, ...]", inside)
        ]
    else:
        items = [Text(inside if isinstance(inside, str) else _json(inside))]
    form: dict[str, Any] = {"type": "tool_result", "tool_use_id": ids[result.tool_use_id]}
    content = list(_parts(items, path, ids))
    if result.status == "error":
        form["is_error"] = True
        content = content or [_text(EMPTY)]  # an error has to say something
    return {**form, "content": content} if content else form


def _json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(image: Image, path: str) -> dict[str, Any]:
    if image.media_type not in IMAGES:
        raise ModelRequestError(
            f"{path}: Anthropic takes images as {', '.join(sorted(IMAGES))}, not {image.media_type}"
        )
    return {"type": "image", "source": _base64(image)}


def _document(document: Document, path: str) -> dict[str, Any]:
    text = text_of(document)
    if document.media_type == "application/pdf":
        source = _base64(document)
    elif text is not None:
        source = {"type": "text", "media_type": "text/plain", "data": text or EMPTY}
    else:
        raise ModelRequestError(
            f"{path}: Anthropic takes documents as application/pdf or text in UTF-8, not {document.media_type}"
        )
    form: dict[str, Any] = {"type": "document", "source": source}
    return {**form, "title": document.name} if document.name.strip() else form


def _base64(block: Image | Document) -> dict[str, Any]:
    return {
        "type": "base64",
        "media_type": block.media_type,
        "data": base64.b64encode(block.data).decode(),
    }


def _tool(tool: ToolSpec) -> dict[str, Any]:
    form: dict[str, Any] = {"name": tool.name, "input_schema": {"type": "object", **tool.schema}}
    return {**form, "description": tool.description} if tool.description.strip() else form


def _markable(blocks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last block that can end a cached prefix, which reasoning cannot."""
    return next((b for b in reversed(blocks) if not b["type"].endswith("thinking")), None)


def _mark(ends: Sequence[dict[str, Any]], cache: Cache) -> None:
    """Mark the last few of ``ends``, which stand in the order of the prompt; a block may be there twice."""
    distinct: list[dict[str, Any]] = []
    for end in reversed(ends):
        if not any(end is other for other in distinct):
            distinct.append(end)
    for end in distinct[:MARKS]:
        end["cache_control"] = {"type": "ephemeral", **({"ttl": cache} if cache == "1h" else {})}


# -- answers


class MessagesAnswer:
    """Takes the events of an answer as they come, gives ours and at the end the message.

    Args:
        keep: Whether the message is to have a note of its signatures; see `with_signatures`.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self._blocks = Blocks(FORM, announced=True)
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self.begun = False
        self.finished = False
        """Whether the server said why the model stopped, and every block has ended."""
        self.closed = False
        self.done_ends = False

    def feed(self, chunk: Any) -> Iterator[ModelEvent]:
        """Yield the events of ``chunk``, a decoded event of the stream or a whole answer in one.

        Raises:
            ModelProtocolError: It is no event, or not where it belongs.
            ServerFaultError: It tells of an error.
        """
        if not isinstance(chunk, dict):
            raise ModelProtocolError("the model's server sent an event that is not a JSON object")
        event = cast("dict[str, Any]", chunk)
        kind = event.get("type")
        if kind == "error":
            raise ServerFaultError(event.get("error") or {})
        if kind == "message":
            yield from self._whole(event)
        elif kind == "message_start":
            if self.begun:
                raise ModelProtocolError("the model's server began its answer twice")
            self.begun = True
            self._count(_object(event.get("message")).get("usage"))
        elif kind == "message_delta":
            self._count(event.get("usage"))
            reason = _object(event.get("delta")).get("stop_reason")
            self._reason = reason if isinstance(reason, str) and reason else self._reason
        elif kind == "message_stop":
            if not self.finished:
                raise ModelProtocolError(
                    "the model's server ended its answer without saying why, or in a block"
                )
            self.closed = True
        elif kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            if not self.begun or (self.finished and kind != "content_block_stop"):
                self.finished = False  # the answer is not complete after all
                raise ModelProtocolError("the model's server sent a part of its answer outside of it")
            yield from self._part(kind, event)
        self.finished = self._reason is not None and self._blocks.complete

    def end(self) -> Iterator[ModelEvent]:
        """Yield `ModelEnded`.

        Raises:
            ContextOverflowError: The context window was full before the model said anything.
        """
        cut = self._reason in ("max_tokens", "model_context_window_exceeded", "pause_turn")
        content, malformed = self._blocks.finish(cut=cut)
        if self._reason == "model_context_window_exceeded" and not content:
            raise ContextOverflowError("the conversation fills the model's context window; shorten it")
        message = Message("assistant", content)
        yield ModelEnded(
            message=with_signatures(message, FORM) if self._keep else message,
            stop="length" if cut else "filter" if self._reason == "refusal" else "end",
            usage=read_usage(self._usage),
            malformed=malformed,
        )

    def _part(self, kind: str, event: dict[str, Any]) -> Iterator[ModelEvent]:
        index = event.get("index")
        if kind == "content_block_start":
            yield from self._begin(index, _object(event.get("content_block")))
        elif kind == "content_block_stop":
            yield from self._blocks.close(index)
        else:
            delta = _object(event.get("delta"))
            for name, block in (("text", "text"), ("thinking", "reasoning"), ("partial_json", "call")):
                if name in delta:
                    yield from self._blocks.add(index, block, delta[name])
            if "signature" in delta:
                yield from self._blocks.sign(index, signature=delta["signature"])

    def _begin(self, index: Any, form: dict[str, Any]) -> Iterator[ModelEvent]:
        kind = form.get("type")
        if kind == "text":
            yield from self._blocks.open(index, "text")
            yield from self._blocks.add(index, "text", form.get("text"))
        elif kind == "thinking":
            yield from self._blocks.open(index, "reasoning")
            yield from self._blocks.add(index, "reasoning", form.get("thinking"))
            yield from self._blocks.sign(index, signature=form.get("signature"))
        elif kind == "redacted_thinking":
            yield from self._blocks.open(index, "reasoning")
            data = form.get("data")
            yield from self._blocks.sign(index, data=data.encode() if isinstance(data, str) else None)
        elif kind == "tool_use":
            yield from self._blocks.open(index, "call", id=form.get("id"), name=form.get("name"))
            if form.get("input"):
                # Anthropic leaves it empty here; where it is not, it is all there is.
                yield from self._blocks.add(index, "call", json.dumps(form["input"]))
        else:
            yield from self._blocks.open(index, "other")  # such as what tools on the server did

    def _whole(self, event: dict[str, Any]) -> Iterator[ModelEvent]:
        yield from self.feed({"type": "message_start", "message": event})
        content: Any = event.get("content")
        for index, form in enumerate(cast("list[Any]", content) if isinstance(content, list) else ()):
            yield from self._begin(index, _object(form))
            yield from self._blocks.close(index)
        yield from self.feed({"type": "message_delta", "delta": event})
        yield from self.feed({"type": "message_stop"})

    def _count(self, usage: Any) -> None:
        """Take in counts; those that come later are of the whole answer so far."""
        self._usage.update({name: count for name, count in _object(usage).items() if count is not None})


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the tokens that a ``usage`` object counts, none of them twice.

    The format counts cached tokens apart from ``input_tokens``, and thinking among ``output_tokens``.
    """
    output = _count(usage, "output_tokens")
    reasoning = min(output, _count(_object(usage.get("output_tokens_details")), "thinking_tokens"))
    return Usage(
        input_tokens=_count(usage, "input_tokens"),
        output_tokens=output - reasoning,
        cache_read_tokens=_count(usage, "cache_read_input_tokens"),
        cache_write_tokens=_count(usage, "cache_creation_input_tokens"),
        reasoning_tokens=reasoning,
    )


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(form: Mapping[str, Any], name: str) -> int:
    value = form.get(name)
    return max(0, value) if isinstance(value, int) else 0
