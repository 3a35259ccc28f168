"""The Converse API of Amazon Bedrock from its side: events in the binary encoding of AWS, refusals as the service words them.

Sources: https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ConverseStream.html,
https://smithy.io/2.0/aws/amazon-eventstream.html, and refusals as users of the API report them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec

from littleghost.content import Block, Document, Image, Text, ToolResult, ToolUse
from littleghost.message import Message
from littleghost.models.contract import ToolSpec
from littleghost.testing.model_chat import halves
from littleghost.testing.model_dialect import Dialect, Said, Seen

__all__ = ["BedrockDialect", "OmittedReasoningDialect", "encoded", "refusal"]

PATH = re.compile(r"/model/[^/]+/converse-stream")
OURS = frozenset({"messages", "outputConfig", "system", "toolConfig"})
OPTIONS = frozenset({
    "additionalModelRequestFields", "additionalModelResponseFieldPaths", "guardrailConfig", "inferenceConfig",
    "performanceConfig", "promptVariables", "requestMetadata", "serviceTier",
})  # fmt: skip
CODES = {
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}


class BedrockDialect(Dialect):
    """The Converse API, with a Claude model behind it that has a budget for reasoning, which is shown."""

    content_type = "application/vnd.amazon.eventstream"
    features = frozenset(
        {
            "arguments",
            "bare_calls",
            "cache_read",
            "cache_write",
            "filter",
            "instructions",
            "mid_stream_errors",
            "ordered",
            "reasoning",
            "reasoning_back",
            "unknown_events",
        }
    )
    setting: dict[str, Any] = {"inferenceConfig": {"temperature": 0.5}}  # noqa: RUF012 (nobody changes it)
    reserved = ("messages", "modelId", "system", "toolConfig")
    shown = True
    """Whether reasoning comes with its text."""

    def __init__(self) -> None:
        self._issued: set[str] = set()

    def serves(self, method: str, path: str) -> bool:
        return method == "POST" and PATH.fullmatch(path) is not None

    def proof(self, said: Said) -> str:
        return "sig_" + hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:32]

    def answer(self, said: Said) -> list[bytes]:
        events = [encoded("messageStart", {"role": "assistant"})]
        for index, (start, deltas) in enumerate(self._blocks(said)):
            if start is not None:
                events.append(encoded("contentBlockStart", {"contentBlockIndex": index, "start": start}))
            events += [
                encoded("contentBlockDelta", {"contentBlockIndex": index, "delta": one}) for one in deltas
            ]
            events.append(encoded("contentBlockStop", {"contentBlockIndex": index}))
        reason = {
            "end": "tool_use" if said.calls else "end_turn",
            "length": "max_tokens",
            "filter": "content_filtered",
        }
        events.append(encoded("messageStop", {"stopReason": reason[said.stop]}))
        usage = {
            "inputTokens": said.usage.input_tokens,
            "outputTokens": said.usage.output_tokens,
            "cacheReadInputTokens": said.usage.cache_read_tokens,
            "cacheWriteInputTokens": said.usage.cache_write_tokens,
            "totalTokens": said.usage.total_tokens,
        }
        return [*events, encoded("metadata", {"usage": usage, "metrics": {"latencyMs": 1}})]

    def finishes(self, said: Said) -> int:
        return len(self.answer(said)) - 1

    def frame(self, payload: bytes) -> bytes:
        return encoded("contentBlockDelta", payload)

    def error(self, status: int, message: str, kind: Literal["", "overflow"] = "") -> bytes:
        code = CODES.get(status, "ValidationException" if status < 500 else "InternalServerException")
        if kind == "overflow":
            message = "Input is too long for requested model."
        return json.dumps({"__type": code, "message": message}).encode()

    def unknown(self) -> list[bytes]:
        return [encoded("thoughtProgress", {"percent": 50})]

    def broken(self, message: str) -> bytes:
        headers = {":message-type": "exception", ":exception-type": "serviceUnavailableException"}
        return framed(
            {**headers, ":content-type": "application/json"}, json.dumps({"message": message}).encode()
        )

    def shows_order(self, event: bytes) -> bool:
        return b"contentBlockDelta" not in event

    def read(self, body: Any) -> Seen:
        config: Any = body.get("toolConfig", {})
        choice: Any = config.get("toolChoice", {"auto": {}})
        form: Any = body.get("outputConfig", {}).get("textFormat")
        system = [Message.system(_content(body["system"]))] if "system" in body else []
        specs = [tool["toolSpec"] for tool in config.get("tools", ()) if "toolSpec" in tool]
        return Seen(
            messages=[*system, *(Message(one["role"], _content(one["content"])) for one in body["messages"])],
            tools=tuple(
                ToolSpec(
                    name=one["name"],
                    description=one.get("description", ""),
                    schema=one["inputSchema"]["json"],
                )
                for one in specs
            ),
            choice=choice["tool"]["name"] if "tool" in choice else "required" if "any" in choice else "auto",
            schema=json.loads(form["structure"]["jsonSchema"]["schema"]) if form else None,
            settings={name: value for name, value in body.items() if name not in OURS},
            reasoning=tuple(_signatures(body["messages"])),
        )

    def refusal(self, body: Any) -> str | None:
        return refusal(body, self._issued)

    def _blocks(self, said: Said) -> Iterator[tuple[dict[str, Any] | None, list[dict[str, Any]]]]:
        """Yield what each block begins with, if anything says so, and its deltas."""
        if said.reasoning:
            self._issued |= {self.proof(said)}
            thought: list[dict[str, Any]] = [{"text": piece} for piece in said.reasoning if self.shown]
            thought.append({"signature": self.proof(said)})
            yield None, [{"reasoningContent": one} for one in thought]
        if said.text:
            yield None, [{"text": piece} for piece in said.text]
        for number, call in enumerate(said.calls):
            pieces = halves(said.arguments.get(number, json.dumps(call.input)))
            begun = {"toolUse": {"toolUseId": call.id, "name": call.name}}
            yield begun, [{"toolUse": {"input": piece}} for piece in pieces]


class OmittedReasoningDialect(BedrockDialect):
    """The same where the text of reasoning is left out, as newer models do by default: only its signature comes."""

    features = (BedrockDialect.features - {"reasoning"}) | {"keep_signatures"}
    shown = False


def encoded(kind: str, payload: dict[str, Any] | bytes) -> bytes:
    """Return an event of the stream."""
    raw = payload if isinstance(payload, bytes) else json.dumps(payload, ensure_ascii=False).encode()
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return framed(headers, raw)


def framed(headers: dict[str, str], payload: bytes) -> bytes:
    """Return a message: lengths, their checksum, headers that are strings (type 7), the payload, the checksum of it all."""
    head = b"".join(
        struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", 7, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return message + struct.pack(">I", zlib.crc32(message))


def _content(blocks: Any) -> list[Block]:
    return [found for block in blocks if (found := _block(block)) is not None]


def _block(form: Any) -> Block | None:
    if "text" in form:
        return Text(form["text"])
    if "image" in form:
        image = form["image"]
        return Image(data=base64.b64decode(image["source"]["bytes"]), media_type=f"image/{image['format']}")
    if "document" in form:
        document = form["document"]
        raw = base64.b64decode(document["source"]["bytes"])
        return Document(data=raw, media_type=f"application/{document['format']}", name=document["name"])
    if "toolUse" in form:
        call = form["toolUse"]
        return ToolUse(id=call["toolUseId"], name=call["name"], input=call["input"])
    if "toolResult" in form:
        result = form["toolResult"]
        content = _content(result["content"])
        return ToolResult(
            tool_use_id=result["toolUseId"], content=content, status=result.get("status", "success")
        )
    return None  # reasoning, cache points


def _signatures(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        for block in message["content"]:
            thought = block.get("reasoningContent", {})
            if "reasoningText" in thought:
                yield thought["reasoningText"]["signature"]


# -- what is refused


def refusal(body: Any, signed: set[str] | None = None) -> str | None:
    """Return why Bedrock would refuse a request, or ``None``.

    Args:
        body: Of a request; bytes may be encoded or not.
        signed: The signatures that were given out; ``None`` takes any.
    """
    if not isinstance(body, dict):
        return "The request body is not valid JSON"
    return next(_faults(cast("dict[str, Any]", body), signed), None)


def _faults(arguments: dict[str, Any], signed: set[str] | None) -> Iterator[str]:
    unknown = sorted(arguments.keys() - OURS - OPTIONS)
    if unknown:
        yield f"extraneous key [{unknown[0]}] is not permitted"
    messages: list[dict[str, Any]] = arguments["messages"]
    if not messages or messages[0]["role"] != "user":
        yield "A conversation must start with a user message."
    seen: set[str] = set()
    names: list[str] = []
    for index, message in enumerate(messages):
        if index and message["role"] == messages[index - 1]["role"]:
            yield "roles must alternate"
        yield from _message(index, message, seen, names)
        calls = [block["toolUse"]["toolUseId"] for block in message["content"] if "toolUse" in block]
        following: list[dict[str, Any]] = messages[index + 1]["content"] if index + 1 < len(messages) else []
        results = [block["toolResult"]["toolUseId"] for block in following if "toolResult" in block]
        if sorted(results) != sorted(calls):
            yield f"Expected toolResult blocks at messages.{index + 1}.content for the Ids of the toolUse blocks, and no others"
    if len(set(names)) != len(names):
        yield "Found duplicate document names in the request."
    tools = arguments.get("toolConfig", {}).get("tools", [])
    if seen and not tools:
        yield "The toolConfig field must be defined when using toolUse and toolResult content blocks."
    marks = [*tools, *arguments.get("system", []), *(b for m in messages for b in m["content"])]
    if sum("cachePoint" in block for block in marks) > 4:
        yield "too many cache points"
    if signed is not None and set(_signatures(messages)) - signed:
        yield "Invalid `signature` in `thinking` block"
    yield from _thinking(arguments)


def _message(index: int, message: dict[str, Any], seen: set[str], names: list[str]) -> Iterator[str]:
    content = message["content"]
    inside = [inner for block in content for inner in block.get("toolResult", {}).get("content", [])]
    for block in (*content, *inside):
        if "text" in block and not block["text"].strip():
            yield f"The text field in the ContentBlock object at messages.{index}.content is blank."
        if "document" in block:
            names.append(block["document"]["name"])
    if any("document" in block for block in content) and not any("text" in block for block in content):
        yield "A text block is required beside a document."
    for block in content:
        if "toolUse" in block:
            if block["toolUse"]["toolUseId"] in seen:
                yield "duplicate toolUseId"
            seen.add(block["toolUse"]["toolUseId"])
    if content and "cachePoint" in content[0]:
        yield "a cache point has nothing in front of it"
    kinds = ["toolResult" in block for block in content if "cachePoint" not in block]
    if kinds != sorted(kinds, reverse=True):
        yield "results must come first"


def _thinking(arguments: dict[str, Any]) -> Iterator[str]:
    thinking = arguments.get("additionalModelRequestFields", {}).get("thinking", {})
    if thinking.get("type") != "enabled":
        return
    if arguments.get("toolConfig", {}).get("toolChoice", {}).keys() & {"any", "tool"}:
        yield "Thinking may not be enabled when tool_choice forces tool use."
    first: tuple[int, dict[str, Any]] | None = None
    for index in range(len(arguments["messages"]) - 1, -1, -1):
        message = arguments["messages"][index]
        if message["role"] == "assistant":
            first = index, message["content"][0]
        elif not any("toolResult" in block for block in message["content"]):
            break
    if first is not None and "reasoningContent" not in first[1]:
        kind = "tool_use" if "toolUse" in first[1] else "text"
        yield (
            "The model returned the following errors: "
            f"messages.{first[0]}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{kind}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks)."
        )
