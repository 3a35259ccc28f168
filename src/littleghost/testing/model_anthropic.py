"""Anthropic's Messages format from the provider's side, with what it demands of conversations and their thinking.

Sources: https://platform.claude.com/docs/en/api/messages, https://platform.claude.com/docs/en/build-with-claude/streaming,
https://platform.claude.com/docs/en/build-with-claude/extended-thinking, and the refusals as users of the API report them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec

from littleghost.content import Block, Document, Image, Text, ToolResult, ToolUse
from littleghost.message import Message
from littleghost.models.contract import ToolSpec
from littleghost.testing.model_chat import halves
from littleghost.testing.model_dialect import Dialect, Said, Seen

__all__ = ["AnthropicDialect", "OmittedThinkingDialect", "refusal"]

THINKING = ("thinking", "redacted_thinking")
OURS = frozenset({"messages", "model", "output_config", "stream", "system", "tools", "tool_choice"})
OPTIONS = frozenset({
    "cache_control", "container", "inference_geo", "max_tokens", "metadata", "service_tier", "speed", "stop_sequences",
    "temperature", "thinking", "top_k", "top_p",
})  # fmt: skip


class AnthropicDialect(Dialect):
    """The Messages API of Anthropic. It answers with a budget for thinking, which is shown."""

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
            "reasoning_tokens",
            "unbounded_events",
            "unknown_events",
        }
    )
    reserved = ("messages", "model", "stream", "system", "tools")
    shown = True
    """Whether thinking comes with its text."""

    def __init__(self) -> None:
        self._issued: set[str] = set()

    def serves(self, method: str, path: str) -> bool:
        return (method, path) == ("POST", "/v1/messages")

    def proof(self, said: Said) -> str:
        return "sig_" + hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:32]

    def answer(self, said: Said) -> list[bytes]:
        usage = {
            "input_tokens": said.usage.input_tokens,
            "cache_read_input_tokens": said.usage.cache_read_tokens,
            "cache_creation_input_tokens": said.usage.cache_write_tokens,
            "output_tokens": 1,
        }
        message: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "claude",
        }
        events = [
            _event({"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}})
        ]
        for index, (form, deltas) in enumerate(self._blocks(said)):
            events.append(_event({"type": "content_block_start", "index": index, "content_block": form}))
            events += [
                _event({"type": "content_block_delta", "index": index, "delta": one}) for one in deltas
            ]
            events.append(_event({"type": "content_block_stop", "index": index}))
        reason = {
            "end": "tool_use" if said.calls else "end_turn",
            "length": "max_tokens",
            "filter": "refusal",
        }
        output = {
            "output_tokens": said.usage.output_tokens + said.usage.reasoning_tokens,
            "output_tokens_details": {"thinking_tokens": said.usage.reasoning_tokens},
        }
        delta = {"stop_reason": reason[said.stop], "stop_sequence": None}
        events.append(_event({"type": "message_delta", "delta": delta, "usage": output}))
        return [*events, _event({"type": "message_stop"})]

    def finishes(self, said: Said) -> int:
        return len(self.answer(said)) - 1

    def frame(self, payload: bytes) -> bytes:
        return b"event: content_block_delta\ndata: " + payload + b"\n\n"

    def error(self, status: int, message: str, kind: Literal["", "overflow"] = "") -> bytes:
        kinds = {
            401: "authentication_error",
            403: "permission_error",
            404: "not_found_error",
            429: "rate_limit_error",
        }
        fallback = "api_error" if status >= 500 else "invalid_request_error"
        if kind == "overflow":
            message = "prompt is too long: 9001 tokens > 8192 maximum"
        fault = {"type": kinds.get(status, fallback), "message": message}
        return json.dumps({"type": "error", "error": fault, "request_id": "req_1"}).encode()

    def unknown(self) -> list[bytes]:
        return [
            b": keep-alive\n\n",
            _event({"type": "ping"}),
            _event({"type": "thought_progress", "percent": 50}),
        ]

    def broken(self, message: str) -> bytes:
        return _event({"type": "error", "error": {"type": "overloaded_error", "message": message}})

    def shows_order(self, event: bytes) -> bool:
        return not event.startswith(b"event: content_block_delta")

    def read(self, body: Any) -> Seen:
        choice: Any = body.get("tool_choice", {"type": "auto"})
        names = {"auto": "auto", "any": "required", "none": "none"}
        config: Any = body.get("output_config", {})
        system = (
            [Message.system([Text(block["text"]) for block in body["system"]])] if "system" in body else []
        )
        blocks = [block for message in body["messages"] for block in message["content"]]
        settings = {name: value for name, value in body.items() if name not in OURS}
        return Seen(
            messages=[*system, *(Message(one["role"], _content(one["content"])) for one in body["messages"])],
            tools=tuple(
                ToolSpec(
                    name=tool["name"], description=tool.get("description", ""), schema=tool["input_schema"]
                )
                for tool in body.get("tools", ())
            ),
            choice=choice["name"] if choice["type"] == "tool" else names[choice["type"]],
            schema=config.get("format", {}).get("schema"),
            settings=settings,
            reasoning=tuple(
                block.get("signature") or block["data"] for block in blocks if block["type"] in THINKING
            ),
        )

    def refusal(self, body: Any) -> str | None:
        return refusal(body, self._issued)

    def _blocks(self, said: Said) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Yield what each block begins with, and its deltas."""
        if said.reasoning:
            self._issued |= {self.proof(said)}
            pieces = said.reasoning if self.shown else ()
            thought = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            signed = [{"type": "signature_delta", "signature": self.proof(said)}]
            yield {"type": "thinking", "thinking": "", "signature": ""}, [*thought, *signed]
        if said.text:
            yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in said.text]
        for number, call in enumerate(said.calls):
            written = said.arguments.get(number, json.dumps(call.input))
            pieces = ["", *halves(written)]
            begun: dict[str, Any] = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield begun, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


class OmittedThinkingDialect(AnthropicDialect):
    """The same where the text of thinking is left out, as newer models do by default: only its signature comes."""

    features = (AnthropicDialect.features - {"reasoning"}) | {"keep_signatures"}
    shown = False


def _event(form: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (form["type"].encode(), json.dumps(form, ensure_ascii=False).encode())


def _content(blocks: Any) -> list[Block]:
    return [found for block in blocks if (found := _block(block)) is not None]


def _block(form: Any) -> Block | None:
    if form["type"] == "text":
        return Text(form["text"])
    if form["type"] == "image":
        source = form["source"]
        return Image(data=base64.b64decode(source["data"]), media_type=source["media_type"])
    if form["type"] == "document":
        source = form["source"]
        raw = base64.b64decode(source["data"]) if source["type"] == "base64" else source["data"].encode()
        return Document(data=raw, media_type=source["media_type"], name=form.get("title", ""))
    if form["type"] == "tool_use":
        return ToolUse(id=form["id"], name=form["name"], input=form["input"])
    if form["type"] == "tool_result":
        status = "error" if form.get("is_error") else "success"
        content = _content(form.get("content", []))
        return ToolResult(tool_use_id=form["tool_use_id"], content=content, status=status)
    return None  # thinking


# -- what is refused


def refusal(body: Any, signed: set[str] | None = None) -> str | None:
    """Return why Anthropic would refuse ``body`` with a 400, in its words, or ``None``.

    Args:
        body: Of a request.
        signed: The signatures and encrypted blocks that it gave out; ``None`` takes any.
    """
    if not isinstance(body, dict):
        return "The request body is not valid JSON"
    return next(_faults(cast("dict[str, Any]", body), signed), None)


def _faults(body: dict[str, Any], signed: set[str] | None) -> Iterator[str]:
    unknown = sorted(body.keys() - OURS - OPTIONS)
    if unknown:
        yield f"{unknown[0]}: Extra inputs are not permitted"
    if not isinstance(body.get("max_tokens"), int):
        yield "max_tokens: Field required"
    messages = body["messages"]
    if not messages:
        yield "messages: at least one message is required"
        return
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    yield from _texts("system", body.get("system", []))
    seen: set[str] = set()
    for index, message in enumerate(messages):
        yield from _message(f"messages.{index}", message, seen, signed)
        calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        following: list[dict[str, Any]] = messages[index + 1]["content"] if index + 1 < len(messages) else []
        results = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
        if sorted(results) != sorted(calls):
            yield (
                f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after, or the reverse"
            )
        kinds = [block["type"] == "tool_result" for block in message["content"]]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{index}: `tool_result` blocks must come first"
    last = messages[-1]["content"][-1]
    if (
        messages[-1]["role"] == "assistant"
        and last["type"] == "text"
        and last["text"] != last["text"].rstrip()
    ):
        yield "messages: final assistant content cannot end with trailing whitespace"
    if seen and not body.get("tools"):
        yield "Requests which include `tool_use` or `tool_result` blocks must define tools"
    if body.get("tool_choice") and not body.get("tools"):
        yield "tool_choice may only be specified while providing tools"
    yield from _marks(body)
    yield from _thinking(body)


def _message(path: str, message: dict[str, Any], seen: set[str], signed: set[str] | None) -> Iterator[str]:
    if not message["content"]:
        yield f"{path}: all messages must have non-empty content"
    yield from _texts(path, message["content"])
    for at, block in enumerate(message["content"]):
        if block["type"] == "tool_use":
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", block["id"]):
                yield f"{path}.content.{at}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            if block["id"] in seen:
                yield f"{path}: `tool_use` ids must be unique"
            seen.add(block["id"])
        elif block["type"] == "tool_result":
            content = block.get("content", [])
            yield from _texts(f"{path}.content.{at}.tool_result", content)
            if block.get("is_error") and not content:
                yield f"{path}.content.{at}.tool_result: content cannot be empty if `is_error` is true"
        elif block["type"] in THINKING and message["role"] != "assistant":
            yield f"{path}: thinking blocks may only be in assistant messages"
        elif block["type"] == "thinking" and signed is not None and block["signature"] not in signed:
            yield f"{path}.content.{at}: Invalid `signature` in `thinking` block"
        elif block["type"] == "redacted_thinking" and signed is not None and block["data"] not in signed:
            yield f"{path}.content.{at}: Invalid `data` in `redacted_thinking` block"


def _texts(path: str, blocks: list[dict[str, Any]]) -> Iterator[str]:
    for block in blocks:
        if block["type"] == "text":
            if not block["text"]:
                yield f"{path}: text content blocks must be non-empty"
            elif not block["text"].strip():
                yield f"{path}: text content blocks must contain non-whitespace text"


def _marks(body: dict[str, Any]) -> Iterator[str]:
    marked = [
        block
        for block in (
            *body.get("tools", []),
            *body.get("system", []),
            *(block for message in body["messages"] for block in message["content"]),
        )
        if "cache_control" in block
    ]
    if len(marked) > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(marked)}."
    if any(block.get("type") in THINKING for block in marked):
        yield "cache_control cannot be set on thinking blocks"


def _thinking(body: dict[str, Any]) -> Iterator[str]:
    thinking = body.get("thinking", {})
    if thinking.get("type") != "enabled":
        return
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        yield "Thinking may not be enabled when tool_choice forces tool use."
    if thinking["budget_tokens"] >= body["max_tokens"]:
        yield "`max_tokens` must be greater than `thinking.budget_tokens`."
    first: tuple[int, dict[str, Any]] | None = None
    for index in range(len(body["messages"]) - 1, -1, -1):
        message = body["messages"][index]
        if message["role"] == "assistant":
            first = index, message["content"][0]
        elif not any(block["type"] == "tool_result" for block in message["content"]):
            break
    if first is not None and first[1]["type"] not in THINKING:
        yield (
            f"messages.{first[0]}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first[1]['type']}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
            "lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous "
            "turns. To avoid this requirement, disable `thinking`. Please consult our documentation at "
            "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
        )
