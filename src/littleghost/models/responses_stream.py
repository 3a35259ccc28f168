"""The Responses format of an answer: events of a stream to ours, without I/O.

The last event of a stream holds the whole answer once more. What was streamed has to agree with it, so an answer whose events were
lost, doubled or exchanged on the way is never taken for what the model said; where only something is missing at the end, it is told.

Source: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any, Literal, cast

from littleghost.content import Block, Reasoning, Text, ToolUse
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
from littleghost.models.event_streams import ServerFaultError
from littleghost.models.responses_format import FORMAT, keep_proofs
from littleghost.usage import Usage

__all__ = ["ResponsesAnswer", "read_responses_usage"]

_TEXTS = {
    "response.output_text.delta": "message",
    "response.refusal.delta": "message",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
    "response.function_call_arguments.delta": "function_call",
}
_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "failed",
}
_PASSING = {"server_error": 500, "rate_limit_exceeded": 429, "vector_store_timeout": 504}
"""The codes of a failed response that may pass, with the status they stand for; the others say what is wrong with the request."""


class _Item:
    """An item of the output that is being streamed."""

    __slots__ = (
        "call_id",
        "encrypted",
        "halves",
        "id",
        "kind",
        "name",
        "part",
        "pieces",
        "position",
        "refused",
        "summarised",
    )

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.id = ""
        self.call_id = ""
        self.name = ""
        self.encrypted = ""
        self.pieces: list[str] = []  # text, reasoning or arguments, as told
        self.halves = ""
        self.part: int | None = None  # of a reasoning's text
        self.summarised = True  # else its text is the reasoning itself, which is not sent back
        self.refused = False
        self.position: int | None = None  # of a call, set when it is announced

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ResponsesAnswer:
    """Takes the events of an answer as they come, gives ours and at the end the message.

    Args:
        keep_signatures: Whether the message carries what it takes to send its reasoning back when it was stored.
    """

    def __init__(self, *, keep_signatures: bool = False) -> None:
        self.begun = self.finished = self.closed = self.done_ends = False
        self._keep = keep_signatures
        self._items: dict[Any, _Item] = {}
        self._calls: list[_Item] = []
        self._told: list[_Item] = []  # in the order they began
        self._stop: Literal["end", "length", "filter"] = "end"
        self._usage: Any = None
        self._last: tuple[int, Any] = (0, None)

    def feed(self, chunk: Any) -> Iterator[ModelEvent]:
        """Yield the events of ``chunk``, a decoded event of the stream or a whole answer in one.

        Raises:
            ModelProtocolError: It is no event, or the answer does not agree with itself.
            ServerFaultError: The server told of an error.
        """
        if not isinstance(chunk, dict):
            raise ModelProtocolError("the model's server sent an event that is not a JSON object")
        event = cast("dict[str, Any]", chunk)
        if event.get("object") == "response":
            yield from self._finish(event, str(event.get("status")))
            return
        kind = event.get("type")
        if not isinstance(kind, str):
            raise ModelProtocolError("the model's server sent an event without a type")
        if self._came_before(event):
            return
        if kind == "error":
            raise ServerFaultError(event, _PASSING.get(str(event.get("code"))))
        if kind in _ENDS:
            response = event.get("response")
            if not isinstance(response, dict):
                raise ModelProtocolError("the model's server ended its answer without the answer")
            yield from self._finish(cast("dict[str, Any]", response), _ENDS[kind])
            return
        self.begun = self.begun or kind.startswith("response.")
        if kind in _TEXTS:
            yield from self._delta(event, kind)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            item = event.get("item")
            if isinstance(item, dict):
                form = cast("dict[str, Any]", item)
                yield from self._item(form, self._key(event, form), done=kind.endswith("done"))

    def end(self) -> Iterator[ModelEvent]:
        """Yield what is left to tell, `ModelEnded` last."""
        for item in self._told:
            yield from self._say(item, "", last=True)
        blocks: list[Block] = []
        malformed: dict[int, str] = {}
        for item, block in zip(self._told, self._blocks(malformed), strict=True):
            if item.pieces or item.encrypted or item.kind == "function_call":
                blocks.append(block)
        message = Message("assistant", blocks)
        yield ModelEnded(
            message=keep_proofs(message) if self._keep else message,
            stop=self._stop,
            usage=read_responses_usage(self._usage),
            malformed=malformed,
        )

    # -- the stream

    def _came_before(self, event: dict[str, Any]) -> bool:
        """Whether this is the last event once more, by its number; servers that do not count do not grow theirs."""
        number = event.get("sequence_number")
        if not isinstance(number, int):
            return False
        again = number > 0 and self._last == (number, event)
        self._last = (number, event)
        return again

    def _key(self, event: dict[str, Any], item: dict[str, Any]) -> Any:
        index = event.get("output_index")
        return index if isinstance(index, int) else item.get("id") or event.get("item_id")

    def _find(self, key: Any, kind: str) -> _Item:
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item(kind)
            self._told.append(item)
        elif item.kind != kind:
            raise ModelProtocolError(f"the model's server sent a piece of a {kind} in a {item.kind}")
        return item

    def _delta(self, event: dict[str, Any], kind: str) -> Iterator[ModelEvent]:
        piece = event.get("delta")
        if not isinstance(piece, str):
            return
        item = self._find(self._key(event, {}), _TEXTS[kind])
        if kind == "response.refusal.delta":
            item.refused = True
        elif item.kind == "reasoning":
            part = event.get("summary_index", event.get("content_index"))
            part = part if isinstance(part, int) else 0
            if item.part is not None and part != item.part and item.pieces:
                yield from self._say(item, "\n\n")
            item.part = part
            item.summarised = kind != "response.reasoning_text.delta"
        yield from self._say(item, piece)

    def _item(self, form: dict[str, Any], key: Any, *, done: bool) -> Iterator[ModelEvent]:
        kind = form.get("type")
        if kind not in ("message", "reasoning", "function_call"):
            return
        item = self._find(key, kind)
        item.id = _string(form.get("id")) or item.id
        whole = done and form.get("status") in (None, "completed")
        if kind == "reasoning":
            item.encrypted = _string(form.get("encrypted_content")) if whole else item.encrypted
            if whole:
                yield from self._complete(item, _summary(form))
        elif kind == "message":
            item.refused = item.refused or any(
                part.get("type") == "refusal" for part in _objects(form.get("content"))
            )
            if done:
                yield from self._complete(item, _content(form))
        else:
            item.call_id = _string(form.get("call_id")) or item.call_id
            item.name = _string(form.get("name")) or item.name
            if item.name and item.position is None:
                yield from self._announce(item)
            if done:
                arguments = form.get("arguments")
                text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                yield from self._complete(item, "" if arguments is None else text)

    def _complete(self, item: _Item, whole: str) -> Iterator[ModelEvent]:
        """Tell what of ``whole`` was not streamed.

        Raises:
            ModelProtocolError: Something else was.
        """
        told = mend(item.text + item.halves)
        if not whole or told == mend(whole):
            return
        if not mend(whole).startswith(told):
            raise ModelProtocolError("the model's server streamed another answer than the one it ended with")
        yield from self._say(item, mend(whole)[len(told) :])

    def _finish(self, response: dict[str, Any], status: str) -> Iterator[ModelEvent]:
        if status == "failed":
            fault: Any = response.get("error") or {}
            code = str(cast("dict[str, Any]", fault).get("code")) if isinstance(fault, dict) else ""
            raise ServerFaultError(fault, _PASSING.get(code, 400 if code not in ("", "None") else None))
        if status not in ("completed", "incomplete"):
            raise ModelProtocolError(f"the model's server ended its answer as {status[:40]}")
        self.begun = True
        output = _objects(response.get("output"))
        known = [one for one in output if one.get("type") in ("message", "reasoning", "function_call")]
        if known:
            yield from self._agree(output)
        self._usage = response.get("usage")
        reason = _object(response.get("incomplete_details")).get("reason")
        if any(item.refused for item in self._told if item.kind == "message") or reason == "content_filter":
            self._stop = "filter"
        elif status == "incomplete":
            self._stop = "length"
        self.finished = self.closed = True

    def _agree(self, output: list[dict[str, Any]]) -> Iterator[ModelEvent]:
        """Hold what was streamed against the whole answer, item by item."""
        before = list(self._told)
        by_id = {item.id: key for key, item in self._items.items() if item.id}
        order: list[_Item] = []
        for index, form in enumerate(output):
            key = by_id.get(_string(form.get("id")), index)
            if form.get("type") not in ("message", "reasoning", "function_call"):
                continue
            yield from self._item(form, key, done=True)
            order.append(self._items[key])
        if (
            set(map(id, order)) != set(map(id, self._told))
            or [item for item in order if item in before] != before
        ):
            raise ModelProtocolError("the model's server streamed another answer than the one it ended with")

    # -- what is told

    def _announce(self, item: _Item) -> Iterator[ModelEvent]:
        item.position = len(self._calls)
        self._calls.append(item)
        item.name = mend(item.name.strip()) or "unnamed"
        item.call_id = mend(item.call_id) or item.id or f"call_{uuid.uuid4().hex[:24]}"
        yield ToolCallStarted(index=item.position, id=item.call_id, name=item.name)
        if item.pieces:  # they came before the name
            yield ToolCallArguments(index=item.position, arguments=mend(item.text))

    def _say(self, item: _Item, piece: str, *, last: bool = False) -> Iterator[ModelEvent]:
        piece, item.halves = whole_characters(item.halves + piece, last=last)
        piece = pair(piece) if item.kind == "function_call" else mend(piece)
        if not piece:
            return
        item.pieces.append(piece)
        if item.kind == "message":
            yield TextDelta(text=piece)
        elif item.kind == "reasoning":
            yield ReasoningDelta(text=piece)
        elif item.position is not None:
            yield ToolCallArguments(index=item.position, arguments=mend(piece))

    # -- the message

    def _blocks(self, malformed: dict[int, str]) -> Iterator[Block]:
        for place, item in enumerate(self._told):
            if item.kind == "reasoning":
                yield self._reasoning(item, self._told[place + 1 :])
            elif item.kind == "message":
                yield Text(item.text)
            else:
                value, fault = read_arguments(item.text)
                if item.position is None:
                    raise ModelProtocolError("the model's server called no tool by name")
                if fault is not None:
                    malformed[item.position] = fault
                yield ToolUse(id=item.call_id, name=item.name, input=value)

    def _reasoning(self, item: _Item, rest: list[_Item]) -> Reasoning:
        follow: list[list[str]] = []
        for other in rest:
            if other.kind == "reasoning":
                break
            if other.kind != "message" or other.pieces:
                follow.append([other.kind, other.id])
        details = {"format": FORMAT, "id": item.id, "items": follow, "summary": item.summarised}
        return Reasoning(text=item.text, signature=item.encrypted or None, details=details)


def read_responses_usage(usage: Any) -> Usage:
    """Return the tokens that a ``usage`` object counts, none of them twice.

    The format counts cached tokens among those of the input, and reasoning among those of the output.
    """
    form = _object(usage)
    read_all, written_all = _count(form, "input_tokens"), _count(form, "output_tokens")
    of_input, of_output = (
        _object(form.get("input_tokens_details")),
        _object(form.get("output_tokens_details")),
    )
    read = min(read_all, _count(of_input, "cached_tokens"))
    written = min(read_all - read, _count(of_input, "cache_write_tokens"))
    reasoning = min(written_all, _count(of_output, "reasoning_tokens"))
    return Usage(
        input_tokens=read_all - read - written,
        output_tokens=written_all - reasoning,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=reasoning,
    )


def _summary(form: dict[str, Any]) -> str:
    parts = _objects(form.get("summary")) or _objects(form.get("content"))
    return "\n\n".join(_string(part.get("text")) for part in parts)


def _content(form: dict[str, Any]) -> str:
    return "".join(
        _string(part.get("refusal" if part.get("type") == "refusal" else "text"))
        for part in _objects(form.get("content"))
    )


def _objects(value: Any) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(form: dict[str, Any], name: str) -> int:
    value = form.get(name)
    return max(0, value) if isinstance(value, int) else 0
