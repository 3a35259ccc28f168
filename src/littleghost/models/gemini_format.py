"""The format of Gemini's ``streamGenerateContent``, both ways and without I/O: messages to a request body, chunks to events.

Source: https://ai.google.dev/api/generate-content. A signature belongs to the very part it came with
(https://ai.google.dev/gemini-api/docs/thought-signatures), so a `Reasoning` that carries one stands right before the block of that part.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from littleghost import data, transcript
from littleghost.content import Block, Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import DataError, ModelProtocolError
from littleghost.events import (
    ModelEnded,
    ModelEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
)
from littleghost.message import Message
from littleghost.models.arguments import mend
from littleghost.models.contract import AnswerFormat, ToolSpec
from littleghost.models.event_streams import ServerFaultError
from littleghost.usage import Usage

__all__ = [
    "FORMAT",
    "NO_SIGNATURE",
    "GeminiAnswer",
    "camel",
    "gemini_body",
    "gemini_schema",
    "needs_signatures",
    "read_usage",
]

FORMAT = "gemini"
"""What a `Reasoning` of this format has as ``details["format"]``."""
NO_SIGNATURE = "skip_thought_signature_validator"
"""What stands for a signature that is lost.

Source: https://ai.google.dev/gemini-api/docs/thought-signatures#faqs and
https://docs.cloud.google.com/vertex-ai/generative-ai/docs/thought-signatures
"""

SHOWN_TO_FUNCTIONS = frozenset({"image/png", "image/jpeg", "image/webp", "application/pdf", "text/plain"})
"""What a function may answer with beside JSON, from Gemini 3 on.

Source: https://ai.google.dev/gemini-api/docs/function-calling#multimodal
"""
TOP = frozenset({"cachedContent", "labels", "modelArmorConfig", "safetySettings", "serviceTier", "store"})
"""Settings that stand beside ``generationConfig``; all others stand in it."""
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}


# -- requests


def gemini_body(
    messages: Sequence[Message],
    *,
    model: str,
    tools: Sequence[ToolSpec] = (),
    tool_choice: str = "auto",
    format: AnswerFormat | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the body of a request.

    Instructions and developer messages at the start become ``systemInstruction``, later ones a content of the user's that says whose
    they are. Results answer their calls in order, each one by the name of its tool. Schemas of tools and answers go as JSON Schema
    (``parametersJsonSchema``, ``responseJsonSchema``), for the other fields know no ``$ref`` and no ``$defs``.

    Args:
        messages: A transcript in canonical shape.
        model: The model's name, by which is decided what it needs.
        tools: The tools it may call.
        tool_choice: As in `ModelRequest`.
        format: The form of the answer.
        settings: Options under the names of the API, in camel case or with underscores.
    """
    system, contents = _contents(messages, model)
    body: dict[str, Any] = {"contents": contents}
    if system:
        body["systemInstruction"] = {"parts": system}
    if tools:
        body["tools"] = [{"functionDeclarations": [_declaration(tool) for tool in tools]}]
        if tool_choice != "auto":
            body["toolConfig"] = {"functionCallingConfig": _calling(tool_choice)}
    config: dict[str, Any] = {}
    for name, value in (settings or {}).items():
        name = camel(name)
        (body if name in TOP else config)[name] = value
    if format is not None:
        config |= {"responseMimeType": "application/json", "responseJsonSchema": gemini_schema(format.schema)}
    if config:
        body["generationConfig"] = config
    return body


def camel(name: str) -> str:
    """Return the name of a field as the API spells it: ``topP`` for ``top_p``."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def needs_signatures(model: str) -> bool:
    """Whether ``model`` refuses calls that come back without their signature: Gemini 3 and what came after."""
    named = re.search(r"gemini-(\d+)", model)
    return named is None or int(named[1]) >= 3


def _declaration(tool: ToolSpec) -> dict[str, Any]:
    form: dict[str, Any] = {"name": tool.name, "description": tool.description}
    if any(tool.schema.get(key) for key in ("properties", "additionalProperties", "$ref", "anyOf", "oneOf")):
        form["parametersJsonSchema"] = gemini_schema(tool.schema)
    return form  # a tool without arguments has no schema: an object without members is refused


# What a schema may hold. Source: https://ai.google.dev/api/caching#FunctionDeclaration, https://ai.google.dev/api/generate-content
_PLAIN = frozenset({
    "$anchor", "$id", "$ref", "description", "enum", "format", "maxItems", "maximum", "minItems", "minimum", "propertyOrdering",
    "required", "title", "type",
})  # fmt: skip
_OF_NAMES = frozenset({"$defs", "properties"})
_OF_SCHEMAS = frozenset({"anyOf", "oneOf", "prefixItems"})
_OF_ONE = frozenset({"additionalProperties", "items"})


def gemini_schema(schema: Any) -> Any:
    """Return ``schema`` with what Gemini takes of JSON Schema.

    ``const`` becomes an ``enum``, ``definitions`` become ``$defs``, a lone ``allOf`` what it holds; nothing stands beside a ``$ref``.
    Other keywords go: they are hints to the model, and arguments are checked against the whole schema when they come.
    """
    if not isinstance(schema, dict):
        return schema
    form = cast("dict[str, Any]", schema)
    kept: dict[str, Any] = {}
    for key, value in form.items():
        key = "$defs" if key == "definitions" else key
        if key in _PLAIN:
            kept[key] = value
        elif key == "const":
            kept["enum"] = [value]
        elif key in _OF_NAMES and isinstance(value, dict):
            kept[key] = {name: gemini_schema(one) for name, one in cast("dict[str, Any]", value).items()}
        elif key in _OF_SCHEMAS and isinstance(value, list):
            kept[key] = [gemini_schema(one) for one in cast("list[Any]", value)]
        elif key in _OF_ONE:
            kept[key] = gemini_schema(value)
        elif key == "allOf" and isinstance(value, list) and len(cast("list[Any]", value)) == 1:
            kept |= gemini_schema(value[0])
    reference = kept.get("$ref")
    if isinstance(reference, str):
        kept = {key: value for key, value in kept.items() if key.startswith("$")}
        kept["$ref"] = reference.replace("#/definitions/", "#/$defs/", 1)
    return kept


def _calling(choice: str) -> dict[str, Any]:
    if choice in _MODES:
        return {"mode": _MODES[choice]}
    return {"mode": "ANY", "allowedFunctionNames": [choice]}


def _contents(messages: Sequence[Message], model: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the parts of the instructions, and the contents."""
    system: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = []
    turn = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    signed = needs_signatures(model)
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        role = "user"
        if message.role == "assistant":
            role, parts = "model", _answer(message, model)
            names = {call.id: call.name for call in message.tool_uses}
            # Only the first of the calls that were made together has a signature, and only those of this turn are looked at.
            first = next((part for part in parts if "functionCall" in part), None)
            if signed and index > turn and first is not None:
                first.setdefault("thoughtSignature", NO_SIGNATURE)
        elif message.role == "user":
            # What is empty is refused; a blank keeps the turn.
            parts = [part for block in message.content if (part := _part(block))] or [{"text": " "}]
        elif message.role == "tool":
            parts = _results(message, names, shown=signed)
        else:
            text = "\n\n".join(block.text for block in message.content if type(block) is Text and block.text)
            if not text:
                continue
            if not contents:
                system.append({"text": text})
                continue
            parts = [{"text": f"Instructions of the developer:\n{text}"}]
        if parts:  # a content without parts is refused
            contents.append({"role": role, "parts": parts})
    return system, contents


def _answer(message: Message, model: str) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    live = any(type(block) is Reasoning and _is_own(block, model) for block in message.content)
    kept = {} if live else _kept(message, model)
    waiting: Reasoning | None = None
    shown = -1  # the position among the blocks that are no reasoning
    for block in message.content:
        if type(block) is Reasoning:
            if not _is_own(block, model):
                continue
            details: dict[str, Any] = block.details
            of = details.get("of")
            if of == "thought" and block.text:
                parts.append({"text": block.text, "thought": True, "thoughtSignature": block.signature})
            elif of == "end":
                parts.append({"text": "", "thoughtSignature": block.signature})
            else:
                waiting = block
            continue
        shown += 1
        part = _part(block)
        kind = _kind(block)
        if part is None:
            continue
        if waiting is not None and cast("dict[str, Any]", waiting.details).get("of") == kind:
            part["thoughtSignature"] = waiting.signature
        elif (shown, kind) in kept:
            part["thoughtSignature"] = kept[shown, kind]
        waiting = None
        parts.append(part)
    if (shown + 1, "end") in kept:
        parts.append({"text": "", "thoughtSignature": kept[shown + 1, "end"]})
    return parts


def _is_own(block: Reasoning, model: str) -> bool:
    details: Any = block.details
    return (
        block.signature is not None
        and isinstance(details, dict)
        and cast("dict[str, Any]", details).get("format") == FORMAT
        and cast("dict[str, Any]", details).get("model") == model
    )


def _kept(message: Message, model: str) -> dict[tuple[int, str], str]:
    """Return the signatures in the metadata, by the position and the kind of what they belong to."""
    noted: Any = transcript.note(message, "reasoning")
    if not isinstance(noted, dict):
        return {}
    form = cast("dict[str, Any]", noted)
    if form.get("format") != FORMAT or form.get("model") != model:
        return {}
    found: dict[tuple[int, str], str] = {}
    for entry in cast("list[Any]", form["signatures"]) if isinstance(form.get("signatures"), list) else ():
        match entry:
            case [int(position), str(kind), str(signature)]:
                found[position, kind] = signature
            case _:
                pass
    return found


def _kind(block: Block) -> str:
    return "call" if type(block) is ToolUse else "text" if type(block) is Text else "data"


def _part(block: Block) -> dict[str, Any] | None:
    if type(block) is Text:
        return {"text": block.text} if block.text else None  # an empty one is refused
    if type(block) is Image or type(block) is Document:
        return {"inlineData": {"mimeType": block.media_type, "data": base64.b64encode(block.data).decode()}}
    if type(block) is ToolUse:
        return {"functionCall": {"id": block.id, "name": block.name, "args": block.input}}
    return None


def _results(message: Message, names: Mapping[str, str], *, shown: bool) -> list[dict[str, Any]]:
    """Return a part for each result, in order, and after them the files that cannot be in one."""
    parts: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    for block in message.content:
        if type(block) is not ToolResult:
            if part := _part(block):
                beside.append(part)
            continue
        name = names.get(block.tool_use_id, "unknown")
        key = "error" if block.status == "error" else "output"
        answer: dict[str, Any] = {"id": block.tool_use_id, "name": name, "response": {key: _output(block)}}
        inside: Any = block.content
        for child in cast("tuple[Any, ...]", inside) if isinstance(inside, tuple) else ():
            if not isinstance(child, Image | Document):
                continue
            part = cast("dict[str, Any]", _part(child))
            if shown and child.media_type in SHOWN_TO_FUNCTIONS:
                answer.setdefault("parts", []).append(part)
            else:
                beside += [{"text": f"Attached to the result of {name} ({block.tool_use_id}):"}, part]
        parts.append({"functionResponse": answer})
    return parts + beside


def _output(result: ToolResult) -> Any:
    """Return what a tool came to: JSON as it is, blocks as text."""
    content: Any = result.content
    return result.text if isinstance(content, tuple) else content


# -- answers

_STOPS: dict[str, Literal["end", "length", "filter"]] = {
    "STOP": "end",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        (
            "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "ESCALATION",
            "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION",
        ),
        "filter",
    ),
}  # fmt: skip
"""Source: https://ai.google.dev/api/generate-content#FinishReason"""
_REFUSALS = {"MISSING_THOUGHT_SIGNATURE": 400, "PUP_LIMITED_DISABLED": 403}
"""Reasons to stop that are refusals of the request, with the status such a refusal has."""
_OPEN = frozenset({"", "FINISH_REASON_UNSPECIFIED"})


class GeminiAnswer:
    """Takes the chunks of an answer as they come, gives its events and at the end the message.

    Args:
        model: The model's name, which its signatures are good for.
        keep_signatures: Whether to put them into the message's metadata as well.
    """

    def __init__(self, model: str, *, keep_signatures: bool = False) -> None:
        self._model = model
        self._keep = keep_signatures
        self._blocks: list[Block] = []
        self._pieces: list[str] = []
        self._thinking = False
        self._calls = 0
        self._malformed: dict[int, str] = {}
        self._stop: Literal["end", "length", "filter"] = "end"
        self._usage = Usage()
        self._earlier = Usage()
        self.begun = self.finished = self.closed = self.done_ends = False  # its end is that of the stream
        self.continuation: str | None = None
        """With what the request is to be sent again, for the answer to go on."""

    def feed(self, chunk: Any) -> Iterator[ModelEvent]:
        """Yield the events of ``chunk``.

        Raises:
            ModelProtocolError: It is no chunk, or the model wrote what is no answer.
            ServerFaultError: The model refused the request.
        """
        if not isinstance(chunk, dict):
            raise ModelProtocolError("the model's server sent an event that is not a JSON object")
        form = cast("dict[str, Any]", chunk)
        if isinstance(form.get("usageMetadata"), dict):
            self.begun = True
            # Each chunk has the sum so far.
            self._usage = self._earlier + read_usage(form["usageMetadata"])
        candidate = _first(form.get("candidates"))
        if candidate is None:
            blocked = _object(form.get("promptFeedback")).get("blockReason")
            if isinstance(blocked, str) and blocked:
                self.begun = self.finished = True
                self._stop = "filter"
            return
        self.begun = True
        if not self.finished:  # what follows the end, or repeats it, does not count
            parts = _object(candidate.get("content")).get("parts")
            for part in cast("list[Any]", parts) if isinstance(parts, list) else ():
                if isinstance(part, dict):
                    yield from self._part(cast("dict[str, Any]", part))
            self._finish(candidate)

    def go_on(self) -> str | None:
        """Return with what the request is to be sent again, once, or ``None`` where the answer is not to go on."""
        token, self.continuation = self.continuation, None
        if token is not None:
            self._earlier = self._usage
        return token

    def end(self) -> Iterator[ModelEvent]:
        """Yield what is left to tell, `ModelEnded` last."""
        self._flush()
        message = Message("assistant", self._blocks)
        if self._keep and (signatures := _signatures(self._blocks)):
            noted = {"format": FORMAT, "model": self._model, "signatures": signatures}
            message = transcript.mark(message, reasoning=noted)
        yield ModelEnded(message=message, stop=self._stop, usage=self._usage, malformed=self._malformed)

    def _finish(self, candidate: dict[str, Any]) -> None:
        reason: Any = candidate.get("finishReason")
        if not isinstance(reason, str) or reason in _OPEN:
            return
        if reason == "CONTINUATION":
            token: Any = candidate.get("continuationToken")
            if not isinstance(token, str) or not token:
                raise ModelProtocolError(
                    "the answer is to be continued, and the model's server did not say how"
                )
            self.continuation = token
            return
        if reason in _REFUSALS:
            told = candidate.get("finishMessage")
            fault = {"message": told if isinstance(told, str) else f"the model stopped: {reason}"}
            raise ServerFaultError(fault, _REFUSALS[reason])
        if reason not in _STOPS:
            # A call that is none, a semantically wrong one, and whatever else no answer can be made of.
            raise ModelProtocolError(f"the model stopped without an answer ({mend(reason)[:80]})")
        self.finished = True
        self._stop = _STOPS[reason]

    def _part(self, part: dict[str, Any]) -> Iterator[ModelEvent]:
        signature = part.get("thoughtSignature")
        signature = signature if isinstance(signature, str) and signature else None
        call, text, inline = part.get("functionCall"), part.get("text"), part.get("inlineData")
        if isinstance(call, dict):
            self._sign(signature, "call")
            yield from self._call(cast("dict[str, Any]", call))
        elif isinstance(inline, dict) and part.get("thought") is not True:
            self._data(cast("dict[str, Any]", inline), signature)
        elif isinstance(text, str) and text:
            thinking = part.get("thought") is True
            text = mend(text)
            if signature is not None or thinking != self._thinking:
                self._flush()
            if signature is not None and not thinking:
                self._sign(signature, "text")
            self._thinking = thinking
            self._pieces.append(text)
            if signature is not None:
                self._flush(signature)  # what follows is another part
            yield ReasoningDelta(text=text) if thinking else TextDelta(text=text)
        elif signature is not None:
            self._sign(signature, "end")

    def _call(self, form: dict[str, Any]) -> Iterator[ModelEvent]:
        self._flush()
        position, self._calls = self._calls, self._calls + 1
        identifier, name, arguments = form.get("id"), form.get("name"), form.get("args")
        # Older models number their calls by their order alone.
        identifier = mend(identifier) if isinstance(identifier, str) else ""
        if not identifier or any(type(one) is ToolUse and one.id == identifier for one in self._blocks):
            identifier = f"call_{uuid.uuid4().hex[:24]}"
        name = mend(name.strip()) if isinstance(name, str) else ""
        value: dict[str, Any] = {}
        fault = None if name else "the call names no tool"
        if arguments is not None and not isinstance(arguments, dict):
            fault = fault or "the arguments are not a JSON object"
        elif fault is None:
            try:
                value = data.unpack(data.pack_object(arguments or {}, "arguments"))
            except DataError as error:
                fault = f"{error.path[:80]}: {error.reason}"
        if fault is not None:
            self._malformed[position] = fault
        self._blocks.append(ToolUse(id=identifier, name=name or "unnamed", input=value))
        yield ToolCallStarted(index=position, id=identifier, name=name or "unnamed")
        yield ToolCallArguments(index=position, arguments=_shown(value if fault is None else arguments))

    def _data(self, form: dict[str, Any], signature: str | None) -> None:
        kind, raw = form.get("mimeType"), form.get("data")
        if not isinstance(kind, str) or not isinstance(raw, str):
            return
        try:
            content = base64.b64decode(raw.translate(_STANDARD), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ModelProtocolError("the model's server sent a file that is not base64") from error
        if kind.startswith("image/"):
            self._sign(signature, "data")
            self._blocks.append(Image(data=content, media_type=kind))

    def _sign(self, signature: str | None, of: str) -> None:
        self._flush()
        if signature is not None:
            details = {"format": FORMAT, "model": self._model, "of": of}
            self._blocks.append(Reasoning(signature=signature, details=details))

    def _flush(self, signature: str | None = None) -> None:
        text, self._pieces = "".join(self._pieces), []
        if not text:
            return
        if not self._thinking:
            self._blocks.append(Text(text))
            return
        details = {"format": FORMAT, "model": self._model, "of": "thought"}
        self._blocks.append(Reasoning(text=text, signature=signature, details=details))


def _signatures(blocks: Iterable[Block]) -> list[list[Any]]:
    """Return position, kind and text of each signature; that of a thought, whose text would have to go with it, has none."""
    found: list[list[Any]] = []
    position = 0
    for block in blocks:
        if type(block) is not Reasoning:
            position += 1
        elif block.signature is not None and block.details["of"] != "thought":
            found.append([position, block.details["of"], block.signature])
    return found


_STANDARD = str.maketrans("-_", "+/")  # both alphabets of base64 are met


def _shown(value: Any) -> str:
    try:
        return mend(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        return ""


def _first(candidates: Any) -> dict[str, Any] | None:
    for candidate in cast("list[Any]", candidates) if isinstance(candidates, list) else ():
        if isinstance(candidate, dict) and cast("dict[str, Any]", candidate).get("index") in (0, None):
            return cast("dict[str, Any]", candidate)
    return None


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def read_usage(form: Any) -> Usage:
    """Return the tokens that a ``usageMetadata`` object counts, none of them twice.

    The format counts cached tokens among those of the prompt, what its own tools put before the model beside them, and thoughts apart
    from the answer.
    """
    counts = _object(form)
    prompt, read = _count(counts, "promptTokenCount"), _count(counts, "cachedContentTokenCount")
    return Usage(
        input_tokens=max(0, prompt - read) + _count(counts, "toolUsePromptTokenCount"),
        output_tokens=_count(counts, "candidatesTokenCount"),
        cache_read_tokens=min(prompt, read),
        reasoning_tokens=_count(counts, "thoughtsTokenCount"),
    )


def _count(form: dict[str, Any], name: str) -> int:
    value = form.get(name)
    return max(0, value) if isinstance(value, int) else 0
