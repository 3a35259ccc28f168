"""The form of Amazon Bedrock's Converse API, both ways and without I/O: a request to arguments, events of a stream to ours.

Source: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html
"""

from __future__ import annotations

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
from littleghost.models.turns import EMPTY, CallIds, Turns, answer_schema, called, opening, text_of
from littleghost.usage import Usage

__all__ = ["FORM", "ConverseAnswer", "converse_arguments", "read_usage"]

FORM = "bedrock"
"""What ``Reasoning.details["format"]`` says of reasoning that goes back to this provider."""
MARKS = 4
"""How many cache points a request may have.
Source: https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html"""
IMAGES = {"image/jpeg": "jpeg", "image/png": "png", "image/gif": "gif", "image/webp": "webp"}
DOCUMENTS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
}

_FOREIGN_TO_IDS = re.compile(r"[^A-Za-z0-9_.:-]")
_FOREIGN_TO_NAMES = re.compile(r"[^A-Za-z0-9()\[\]-]+")

Cache = Literal["5m", "1h"] | None


# -- requests


def converse_arguments(
    request: ModelRequest,
    settings: Mapping[str, Any],
    *,
    cache: Cache = None,
    kept: bool = False,
    developer: Literal["user", "system"] = "user",
) -> dict[str, Any]:
    """Return the arguments of ``converse_stream``, without ``modelId``.

    Args:
        request: What is asked.
        settings: Arguments of the API; ``outputConfig`` is completed by what the request says.
        cache: How long prefixes are cached; the points stand after the tools, after the instructions, at messages that ask for it and
            at the last one.
        kept: Whether signatures that were stored with messages go back.
        developer: The role that developer messages amid the conversation are sent under.

    Raises:
        ModelRequestError: Something in it cannot be sent; the error says where it is.
    """
    arguments = dict(settings)
    texts, rest = opening(request.messages)
    tools = _tools(request)
    choice: dict[str, Any] | None = None
    if request.tools and request.tool_choice not in ("auto", "none"):
        required = request.tool_choice == "required"
        choice = {"any": {}} if required else {"tool": {"name": request.tool_choice}}
    if request.format is not None:
        arguments["outputConfig"] = {**arguments.get("outputConfig", {}), "textFormat": _format(request)}
    turns, marked = _turns(rest, Thoughts(FORM, kept=kept), developer)
    if not turns.sent:
        raise ModelRequestError("messages: there is none that a model could answer")
    thinking = _thinking(arguments)
    if thinking == "disabled" or (thinking == "enabled" and not _may_think(turns, choice)):
        fields = {**arguments["additionalModelRequestFields"], "thinking": {"type": "disabled"}}
        arguments["additionalModelRequestFields"] = fields
        turns, marked = _turns(rest, None, developer)
    system: list[dict[str, Any]] = [{"text": text} for text in texts]
    ends = [(part, part[-1]) for part in (tools, system) if part] if cache else []
    final = turns.sent[-1]["content"]
    last = [(final, end)] if cache and (end := _markable(final)) is not None else []
    places = [(place, end) for end in marked if (place := _holder(turns, end)) is not None]
    _mark([*ends, *places, *last], cache)
    if system:
        arguments["system"] = system
    if tools:
        arguments["toolConfig"] = {"tools": tools, **({} if choice is None else {"toolChoice": choice})}
    return {**arguments, "messages": turns.sent}


def _tools(request: ModelRequest) -> list[dict[str, Any]]:
    """Return the tools; a conversation with calls is refused without some, so that they cannot be withheld from it."""
    calls = any(message.tool_uses for message in request.messages)
    offered = request.tools if calls or request.tool_choice != "none" else ()
    return [_tool(tool) for tool in (*offered, *called(request.messages, offered))]


def _tool(tool: ToolSpec) -> dict[str, Any]:
    form: dict[str, Any] = {
        "name": tool.name,
        "inputSchema": {"json": {"type": "object", **tool.schema}},
    }
    return {"toolSpec": {**form, "description": tool.description} if tool.description.strip() else form}


def _format(request: ModelRequest) -> dict[str, Any]:
    asked = request.format
    assert asked is not None  # noqa: S101 (for the type checker)
    schema = msgspec.json.encode(answer_schema(asked.schema)).decode()
    form = {"schema": schema, "name": asked.name}
    if asked.description.strip():
        form["description"] = asked.description
    return {"type": "json_schema", "structure": {"jsonSchema": form}}


def _thinking(arguments: Mapping[str, Any]) -> Any:
    fields = arguments.get("additionalModelRequestFields")
    thinking = cast("dict[str, Any]", fields).get("thinking") if isinstance(fields, dict) else None
    return cast("dict[str, Any]", thinking).get("type") if isinstance(thinking, dict) else None


def _may_think(turns: Turns, choice: dict[str, Any] | None) -> bool:
    """Whether a thinking budget can be asked for in this request.

    A turn that called tools must then begin with reasoning, and tools cannot be forced; the way out is to switch thinking off until the
    turn is over. Adaptive thinking has neither rule.
    Source: https://docs.aws.amazon.com/bedrock/latest/userguide/claude-messages-extended-thinking.html
    """
    turn = turns.last_turn("toolResult")
    return choice is None and (not turn or "reasoningContent" in turn[0]["content"][0])


def _turns(
    messages: Sequence[tuple[int, Message]], thoughts: Thoughts | None, developer: str
) -> tuple[Turns, list[dict[str, Any]]]:
    """Return the turns, and the blocks at which a cached prefix is to end because a message asks for it."""
    turns, ids, names = Turns(), CallIds(_FOREIGN_TO_IDS), _Names()
    marked: list[dict[str, Any]] = []
    for index, message in messages:
        path = f"messages[{index}]"
        if message.role == "assistant":
            ids.begin(message)
            content = message.content if thoughts is None else thoughts.content(message)
            blocks = [
                form for b in content if (form := _said(b, ids, thoughts=thoughts is not None)) is not None
            ]
            turns.add("assistant", blocks)
        elif message.role in ("user", "tool"):
            blocks = list(_parts(message.content, path, ids, names))
            if any("document" in block for block in blocks) and not any("text" in block for block in blocks):
                blocks.append({"text": "(See what is attached.)"})  # a document needs some text beside it
            turns.add("user", blocks or ([{"text": EMPTY}] if message.role == "user" else []))
        else:
            blocks = [{"text": message.text}] if message.text.strip() else []
            if developer == "user":
                blocks = [{"text": f"<{message.role}>\n{b['text']}\n</{message.role}>"} for b in blocks]
            turns.add(developer, blocks)
        end = _markable(blocks) if message.metadata.get("cache") is True else None
        if end is not None:
            marked.append(end)
    if turns.sent and turns.sent[-1]["role"] == "assistant":
        final = turns.sent[-1]["content"][-1]
        if "text" in final:
            final["text"] = final[
                "text"
            ].rstrip()  # blanks are refused at the end of what is to be gone on with
    return turns, marked


def _said(block: Block, ids: CallIds, *, thoughts: bool) -> dict[str, Any] | None:
    """Return a block of an assistant message, ``None`` for what has no place there."""
    if isinstance(block, Text):
        return {"text": block.text} if block.text.strip() else None
    if isinstance(block, ToolUse):
        return {"toolUse": {"toolUseId": ids[block.id], "name": block.name, "input": block.input}}
    if isinstance(block, Reasoning) and thoughts:
        if block.data is not None:
            return {"reasoningContent": {"redactedContent": block.data}}
        return {"reasoningContent": {"reasoningText": {"text": block.text, "signature": block.signature}}}
    return None


def _parts(blocks: Sequence[Any], path: str, ids: CallIds, names: _Names) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a user's or a tool's message. Text without a visible character is refused, and goes."""
    for index, block in enumerate(blocks):
        place = f"{path}.content[{index}]"
        if isinstance(block, Text):
            if block.text.strip():
                yield {"text": block.text}
        elif isinstance(block, Image):
            kind = IMAGES.get(block.media_type)
            if kind is None:
                raise ModelRequestError(
                    f"{place}: Bedrock takes images as {', '.join(sorted(IMAGES))}, not {block.media_type}"
                )
            yield {"image": {"format": kind, "source": {"bytes": block.data}}}
        elif isinstance(block, Document):
            yield _document(block, place, names)
        elif isinstance(block, ToolResult):
            yield _result(block, place, ids, names)


def _result(result: ToolResult, path: str, ids: CallIds, names: _Names) -> dict[str, Any]:
    inside: Any = result.content
    items = cast("tuple[Any, ...]", inside) if isinstance(inside, tuple) else (inside,)
    blocks = [item if isinstance(item, Text | Image | Document) else Text(_json(item)) for item in items]
    content = list(_parts(blocks, path, ids, names)) or [{"text": EMPTY}]
    form: dict[str, Any] = {"toolUseId": ids[result.tool_use_id], "content": content}
    return {"toolResult": {**form, "status": "error"} if result.status == "error" else form}


def _json(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class _Names:
    """Gives documents names as Bedrock takes them: few characters, and none twice in a request."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def __getitem__(self, name: str) -> str:
        base = " ".join(_FOREIGN_TO_NAMES.sub(" ", name.rpartition(".")[0] or name).split())[:180]
        base, number = base or "document", 1
        found = base
        while found in self._used:
            number += 1
            found = f"{base} ({number})"
        self._used.add(found)
        return found


def _document(document: Document, path: str, names: _Names) -> dict[str, Any]:
    kind = DOCUMENTS.get(document.media_type.partition(";")[0].strip().lower())
    if kind is None and text_of(document) is not None:
        kind = "txt"
    if kind is None:
        raise ModelRequestError(
            f"{path}: Bedrock takes documents as PDF, Word, Excel, CSV, HTML, Markdown or text in UTF-8, "
            f"not {document.media_type}"
        )
    return {
        "document": {"format": kind, "name": names[document.name], "source": {"bytes": document.data}},
    }


def _markable(blocks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the last block that a cache point can stand behind, which reasoning cannot be."""
    return next((block for block in reversed(blocks) if "reasoningContent" not in block), None)


def _holder(turns: Turns, block: dict[str, Any]) -> list[dict[str, Any]] | None:
    return next(
        (turn["content"] for turn in turns.sent if any(block is other for other in turn["content"])), None
    )


def _mark(ends: Sequence[tuple[list[dict[str, Any]], dict[str, Any]]], cache: Cache) -> None:
    """Put points behind the last few of ``ends``, which stand in the order of the prompt; a block may be there twice."""
    distinct: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
    for end in reversed(ends):
        if not any(end[1] is other for _, other in distinct):
            distinct.append(end)
    for place, block in distinct[:MARKS]:
        at = next(index for index, other in enumerate(place) if other is block)
        point: dict[str, Any] = {"type": "default", **({"ttl": cache} if cache == "1h" else {})}
        place.insert(at + 1, {"cachePoint": point})


# -- answers


class ConverseAnswer:
    """Takes the events of an answer as botocore gives them, gives ours and at the end the message.

    Args:
        keep: Whether the message is to have a note of its signatures; see `with_signatures`.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        # Only calls are announced; text and reasoning begin with their first piece.
        self._blocks = Blocks(FORM, announced=False)
        self._usage: dict[str, Any] | None = None
        self._reason: str | None = None
        self.begun = False
        self.finished = False
        """Whether the server said why the model stopped, and every block has ended."""
        self.closed = False
        """Whether the usage has come too, which is the last event."""

    def feed(self, event: Any) -> Iterator[ModelEvent]:
        """Yield the events of ``event``.

        Raises:
            ModelProtocolError: It is not where it belongs, or says that the model wrote nonsense.
        """
        form = _object(event)
        if "messageStart" in form:
            if self.begun:
                raise ModelProtocolError("the model's server began its answer twice")
            self.begun = True
        elif "messageStop" in form:
            reason = _object(form["messageStop"]).get("stopReason")
            if reason in ("malformed_model_output", "malformed_tool_use"):
                raise ModelProtocolError(f"the model's answer cannot be read ({reason})")
            if not isinstance(reason, str):
                raise ModelProtocolError("the model's server ended its answer without saying why")
            self._reason = reason
        elif "metadata" in form:
            self._usage = _object(_object(form["metadata"]).get("usage"))
        elif form.keys() & {"contentBlockStart", "contentBlockDelta", "contentBlockStop"}:
            if not self.begun or (self.finished and "contentBlockStop" not in form):
                self.finished = False  # the answer is not complete after all
                raise ModelProtocolError("the model's server sent a part of its answer outside of it")
            yield from self._part(form)
        self.finished = self._reason is not None and self._blocks.complete
        self.closed = self.finished and self._usage is not None

    def end(self) -> Iterator[ModelEvent]:
        """Yield `ModelEnded`.

        Raises:
            ContextOverflowError: The context window was full before the model said anything.
        """
        cut = self._reason in ("max_tokens", "model_context_window_exceeded")
        content, malformed = self._blocks.finish(cut=cut)
        if self._reason == "model_context_window_exceeded" and not content:
            raise ContextOverflowError("the conversation fills the model's context window; shorten it")
        withheld = self._reason in ("guardrail_intervened", "content_filtered", "refusal")
        message = Message("assistant", content)
        yield ModelEnded(
            message=with_signatures(message, FORM) if self._keep else message,
            stop="length" if cut else "filter" if withheld else "end",
            usage=read_usage(self._usage or {}),
            malformed=malformed,
        )

    def _part(self, form: dict[str, Any]) -> Iterator[ModelEvent]:
        if "contentBlockStart" in form:
            begun = _object(form["contentBlockStart"])
            index, call = begun.get("contentBlockIndex"), _object(_object(begun.get("start")).get("toolUse"))
            if call and call.get("type") is None:
                yield from self._blocks.open(index, "call", id=call.get("toolUseId"), name=call.get("name"))
            else:
                yield from self._blocks.open(index, "other")  # such as what tools on the server did
        elif "contentBlockStop" in form:
            yield from self._blocks.close(_object(form["contentBlockStop"]).get("contentBlockIndex"))
        else:
            piece = _object(form["contentBlockDelta"])
            delta = piece.get("delta")
            if not isinstance(delta, dict):  # what botocore makes of a payload that is no JSON
                raise ModelProtocolError("the model's server sent an event that cannot be read")
            yield from self._delta(piece.get("contentBlockIndex"), cast("dict[str, Any]", delta))

    def _delta(self, index: Any, delta: dict[str, Any]) -> Iterator[ModelEvent]:
        if "text" in delta:
            yield from self._blocks.add(index, "text", delta["text"])
        elif "toolUse" in delta:
            yield from self._blocks.add(index, "call", _object(delta["toolUse"]).get("input"))
        elif "reasoningContent" in delta:
            thought = _object(delta["reasoningContent"])
            if "text" in thought:
                yield from self._blocks.add(index, "reasoning", thought["text"])
            data = thought.get("redactedContent")
            yield from self._blocks.sign(
                index,
                signature=thought.get("signature"),
                data=data if isinstance(data, bytes) else None,
            )


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return the tokens that a ``usage`` object counts, none of them twice; the API does not tell those of reasoning."""
    return Usage(
        input_tokens=_count(usage, "inputTokens"),
        output_tokens=_count(usage, "outputTokens"),
        cache_read_tokens=_count(usage, "cacheReadInputTokens"),
        cache_write_tokens=_count(usage, "cacheWriteInputTokens"),
    )


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(form: Mapping[str, Any], name: str) -> int:
    value = form.get(name)
    return max(0, value) if isinstance(value, int) else 0
