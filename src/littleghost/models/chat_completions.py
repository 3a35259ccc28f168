"""The Chat Completions format, both ways and without I/O: messages to a request body, a stream of bytes to events.

Source: https://platform.openai.com/docs/api-reference/chat. Many servers speak it, few of them exactly, so reading is lenient
wherever the meaning is beyond doubt and refuses the rest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, cast

import msgspec

from littleghost.content import Block, Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import ModelProtocolError
from littleghost.events import (
    ModelEnded,
    ModelEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
)
from littleghost.message import Message
from littleghost.models.arguments import mend, pair, read_arguments, whole_characters
from littleghost.models.contract import AnswerFormat, ToolSpec
from littleghost.models.strict import fits_strict
from littleghost.usage import Usage

__all__ = [
    "ChatAnswer",
    "chat_choice",
    "chat_format",
    "chat_messages",
    "chat_tools",
    "read_usage",
]

MAX_ID = 40
"""Characters of a call's id that OpenAI takes; conversations begun with another provider may have longer ones."""


# -- requests


def chat_messages(messages: Iterable[Message], *, developer: str = "developer") -> list[dict[str, Any]]:
    """Return ``messages`` in the form of a request.

    Each `ToolResult` becomes one ``tool`` message in order; a failed one begins with ``Error:``. Such messages hold text only, so
    images and documents in or beside results follow in a ``user`` message. Reasoning has no place in this format and goes.

    Args:
        messages: A transcript in canonical shape.
        developer: The role to send for ``developer``; servers other than OpenAI's often know ``system`` only.
    """
    sent: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "assistant":
            sent.append(_assistant(message))
        elif message.role == "user":
            sent.append({"role": "user", "content": _content(message.content)})
        elif message.role == "tool":
            sent += _results(message)
        else:
            role = developer if message.role == "developer" else "system"
            sent.append(
                {"role": role, "content": "\n\n".join(b.text for b in message.content if type(b) is Text)}
            )
    return sent


def chat_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return ``tools`` in the form of a request."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
        }
        for tool in tools
    ]


def chat_choice(choice: str) -> Any:
    """Return what must be called in the form of a request."""
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def chat_format(form: AnswerFormat) -> dict[str, Any]:
    """Return the form of an answer in that of a request: strict where the schema permits it."""
    described = {"description": form.description} if form.description else {}
    schema = {"name": form.name, **described, "schema": form.schema, "strict": fits_strict(form.schema)}
    return {"type": "json_schema", "json_schema": schema}


def _assistant(message: Message) -> dict[str, Any]:
    form: dict[str, Any] = {"role": "assistant", "content": message.text}
    calls = message.tool_uses
    if calls:
        form["content"] = message.text or None
        form["tool_calls"] = [
            {
                "id": _short(call.id),
                "type": "function",
                "function": {"name": call.name, "arguments": msgspec.json.encode(call.input).decode()},
            }
            for call in calls
        ]
    return form


def _results(message: Message) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []
    attached: list[dict[str, Any]] = []
    for block in message.content:
        if type(block) is ToolResult:
            text = block.text
            if block.status == "error" and not text.lower().startswith("error"):
                text = f"Error: {text}"
            sent.append({"role": "tool", "tool_call_id": _short(block.tool_use_id), "content": text})
            inside: Any = block.content
            for child in cast("tuple[Any, ...]", inside) if isinstance(inside, tuple) else ():
                if isinstance(child, Image | Document):
                    attached += [
                        _text(f"Attached to the result of {_short(block.tool_use_id)}:"),
                        _part(child),
                    ]
        elif type(block) in (Text, Image, Document):
            attached.append(_part(block))
    if attached:
        sent.append({"role": "user", "content": attached})
    return sent


def _content(blocks: Sequence[Block]) -> str | list[dict[str, Any]]:
    shown = [block for block in blocks if type(block) in (Text, Image, Document)]
    if not shown:
        return ""
    if len(shown) == 1 and type(shown[0]) is Text:
        return shown[0].text  # a plain string is what every server takes
    return [_part(block) for block in shown]


def _part(block: Block) -> dict[str, Any]:
    if isinstance(block, Image):
        return {"type": "image_url", "image_url": {"url": _uri(block)}}
    if isinstance(block, Document):
        return {"type": "file", "file": {"filename": block.name, "file_data": _uri(block)}}
    return _text(cast("Text", block).text)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _uri(block: Image | Document) -> str:
    return f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"


def _short(identifier: str) -> str:
    return (
        identifier if len(identifier) <= MAX_ID else hashlib.sha256(identifier.encode()).hexdigest()[:MAX_ID]
    )


# -- streams


class _Call:
    """A tool call that is being streamed."""

    __slots__ = ("arguments", "held", "id", "name", "position")

    def __init__(self, identifier: str) -> None:
        self.id = identifier
        self.name = ""
        self.arguments: list[str] = []
        self.held = ""
        self.position: int | None = None  # set when it is announced

    @property
    def begun(self) -> bool:
        return any(piece.strip() for piece in self.arguments)

    @property
    def whole(self) -> bool:
        last = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        # Asked for each piece of some streams, and reading it all each time would be quadratic.
        return last.rstrip().endswith("}") and read_arguments("".join(self.arguments))[1] is None


class ChatAnswer:
    """Takes the chunks of an answer as they come, gives its events and at the end the message.

    Calls are told apart by ``index`` and ``id``, by their names where a server sends neither. A call is announced once its name
    is known to be complete: when its arguments begin, when another call begins, or at the end.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._halves = {"text": "", "reasoning": ""}
        self._calls: list[_Call] = []
        self._indexed: dict[int, _Call] = {}
        self._announced: list[_Call] = []
        self._usage: Any = None
        self._stop: Literal["end", "length", "filter"] = "end"
        self.begun = self.finished = self.closed = False  # it is closed by [DONE], not by a chunk
        self.done_ends = True

    def feed(self, chunk: Any) -> Iterator[ModelEvent]:
        """Yield the events of ``chunk``, a decoded event of the stream or a whole answer in one.

        Raises:
            ModelProtocolError: It is no chunk.
        """
        if not isinstance(chunk, dict):
            raise ModelProtocolError("the model's server sent an event that is not a JSON object")
        form = cast("dict[str, Any]", chunk)
        if isinstance(form.get("usage"), dict):
            self._usage = form["usage"]
            self.begun = True
        choice = _first(form.get("choices"))
        if choice is None:
            return
        self.begun = True
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            yield from self._delta(cast("dict[str, Any]", delta))
        self._finish(choice.get("finish_reason"))

    def end(self) -> Iterator[ModelEvent]:
        """Yield what is left to tell, `ModelEnded` last."""
        for kind in ("text", "reasoning"):
            yield from self._say(kind, "", last=True)
        for call in self._calls:
            yield from self._announce(call)
            yield from self._argue(call, "", last=True)
        blocks: list[Block] = []
        if self._reasoning:
            blocks.append(Reasoning(text="".join(self._reasoning)))
        if self._text:
            blocks.append(Text("".join(self._text)))
        malformed: dict[int, str] = {}
        for position, call in enumerate(self._announced):
            value, fault = read_arguments("".join(call.arguments))
            if not call.name:
                value, fault = {}, "the call names no tool"
            if fault is not None:
                malformed[position] = fault
            blocks.append(ToolUse(id=call.id, name=call.name or "unnamed", input=value))
        yield ModelEnded(
            message=Message("assistant", blocks),
            stop=self._stop,
            usage=read_usage(self._usage),
            malformed=malformed,
        )

    def _finish(self, reason: Any) -> None:
        if not isinstance(reason, str) or not reason:
            return
        self.finished = True
        if reason == "content_filter":
            self._stop = "filter"
        elif reason in ("length", "max_tokens") and self._stop == "end":
            self._stop = "length"

    def _delta(self, delta: dict[str, Any]) -> Iterator[ModelEvent]:
        # Two names for one thing; servers that send both send the same text twice.
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str):
            yield from self._say("reasoning", thought)
        content = delta.get("content")
        for part in cast("list[Any]", content) if isinstance(content, list) else (content,):
            text = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield from self._say("text", text)
        if isinstance(delta.get("refusal"), str):
            yield from self._say("text", delta["refusal"])
        calls = delta.get("tool_calls")
        if calls is None and isinstance(delta.get("function_call"), dict):
            calls = [{"index": 0, "function": delta["function_call"]}]  # the form before tool_calls
        for call in cast("list[Any]", calls) if isinstance(calls, list) else ():
            if isinstance(call, dict):
                yield from self._call(cast("dict[str, Any]", call))

    def _say(self, kind: str, piece: str, *, last: bool = False) -> Iterator[ModelEvent]:
        piece, self._halves[kind] = whole_characters(self._halves[kind] + piece, last=last)
        piece = mend(piece)
        if not piece:
            return
        if kind == "text":
            self._text.append(piece)
            yield TextDelta(text=piece)
        else:
            self._reasoning.append(piece)
            yield ReasoningDelta(text=piece)

    def _call(self, form: dict[str, Any]) -> Iterator[ModelEvent]:
        function = form.get("function")
        function = cast("dict[str, Any]", function) if isinstance(function, dict) else form
        identifier, name, arguments = (
            _string(form.get("id")),
            _string(function.get("name")),
            function.get("arguments"),
        )
        if arguments is not None and not isinstance(arguments, str):
            arguments = json.dumps(arguments)  # an object where its text belongs
        index = form.get("index")
        index = index if isinstance(index, int) else None
        if not identifier and not name and not arguments and index not in self._indexed:
            return
        call = self._find(index, identifier, name, argued=bool(arguments and arguments.strip()))
        if call is None:
            for earlier in self._calls:
                yield from self._announce(earlier)
            call = _Call(identifier)
            self._calls.append(call)
        if index is not None:
            self._indexed[index] = call
        call.id = call.id or identifier
        if name and call.position is None:
            # Sent once, again with each chunk, in pieces, or growing.
            call.name = name if name.startswith(call.name) else call.name + name
        if arguments:
            if call.name:
                yield from self._announce(call)
            yield from self._argue(call, arguments)

    def _find(self, index: int | None, identifier: str, name: str, *, argued: bool) -> _Call | None:
        """Return the call that a piece goes on with, or ``None`` where it begins another."""
        if index is not None:
            current = self._indexed.get(index)
        elif identifier:
            same = next((call for call in self._calls if call.id == identifier), None)
            if same is not None:
                return same
            current = self._calls[-1] if self._calls else None
        else:
            current = self._calls[-1] if self._calls else None
        if current is None or not name:
            return current
        if identifier and current.id and identifier != current.id:
            return None
        if identifier and identifier == current.id:
            return current
        if index is None and current.name and current.begun and name != current.name:
            return None
        # Neither index nor id says so, but no arguments go on behind the end of an object.
        return None if argued and current.whole else current

    def _announce(self, call: _Call) -> Iterator[ModelEvent]:
        if call.position is not None:
            return
        call.position = len(self._announced)
        self._announced.append(call)
        call.name = mend(call.name.strip())
        call.id = mend(call.id) or f"call_{uuid.uuid4().hex[:24]}"
        yield ToolCallStarted(index=call.position, id=call.id, name=call.name or "unnamed")
        if call.arguments:  # they came before the name
            yield ToolCallArguments(index=call.position, arguments=mend("".join(call.arguments)))

    def _argue(self, call: _Call, piece: str, *, last: bool = False) -> Iterator[ModelEvent]:
        piece, call.held = whole_characters(call.held + piece, last=last)
        if piece:
            call.arguments.append(pair(piece))
            if call.position is not None:
                yield ToolCallArguments(index=call.position, arguments=mend(piece))


def _first(choices: Any) -> dict[str, Any] | None:
    for choice in cast("list[Any]", choices) if isinstance(choices, list) else ():
        if isinstance(choice, dict) and cast("dict[str, Any]", choice).get("index") in (0, None):
            return cast("dict[str, Any]", choice)
    return None


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def read_usage(usage: Any) -> Usage:
    """Return the tokens that a ``usage`` object counts, none of them twice.

    The format counts cached tokens among those of the prompt, and reasoning among those of the completion.
    """
    if not isinstance(usage, dict):
        return Usage()
    form = cast("dict[str, Any]", usage)
    prompt, completion = _count(form, "prompt_tokens"), _count(form, "completion_tokens")
    of_prompt, of_completion = (
        _object(form.get("prompt_tokens_details")),
        _object(form.get("completion_tokens_details")),
    )
    read = min(prompt, _count(of_prompt, "cached_tokens") or _count(form, "prompt_cache_hit_tokens"))
    written = min(prompt - read, _count(of_prompt, "cache_write_tokens"))
    reasoning = _count(of_completion, "reasoning_tokens")
    if reasoning and _count(form, "total_tokens") == prompt + completion + reasoning:
        completion += reasoning  # a server that counts them apart
    reasoning = min(reasoning, completion)
    return Usage(
        input_tokens=prompt - read - written,
        output_tokens=completion - reasoning,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=reasoning,
    )


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(form: dict[str, Any], name: str) -> int:
    value = form.get(name)
    return max(0, value) if isinstance(value, int) else 0
