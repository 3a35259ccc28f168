"""The Responses format from OpenAI's side, with what it demands of reasoning.

Source: https://platform.openai.com/docs/api-reference/responses, https://platform.openai.com/docs/api-reference/responses-streaming,
and the refusals as OpenAI words them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any, Literal, cast

import msgspec

from littleghost.content import Block, Document, Image, Text, ToolResult, ToolUse
from littleghost.message import Message
from littleghost.models.contract import ToolSpec
from littleghost.testing.model_chat import halves, openai_error, uri_data
from littleghost.testing.model_dialect import Dialect, Said, Seen

__all__ = ["ResponsesDialect"]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
OPTIONS = frozenset({
    "include", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "prompt", "prompt_cache_key",
    "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream_options", "temperature",
    "top_logprobs", "top_p", "truncation",
})  # fmt: skip
OURS = frozenset({"model", "input", "instructions", "stream", "tools", "tool_choice", "text"})
PARTS = {
    "user": {"input_text", "input_image", "input_file"},
    "system": {"input_text"},
    "developer": {"input_text"},
    "assistant": {"output_text", "refusal"},
}


class ResponsesDialect(Dialect):
    """The Responses API of OpenAI, which keeps nothing of what it answered."""

    prefix = "/v1"
    features = frozenset(
        {
            "arguments",
            "cache_read",
            "cache_write",
            "filter",
            "instructions",
            "keep_signatures",
            "mid_stream_errors",
            "ordered",
            "reasoning",
            "reasoning_back",
            "reasoning_tokens",
            "unbounded_events",
            "unknown_events",
        }
    )
    reserved = ("input", "model", "stream", "tools", "previous_response_id", "conversation", "background")

    def __init__(self) -> None:
        self._reasoning: dict[str, str] = {}  # what was issued: the content of an item by its id
        self._needs: dict[str, str] = {}  # which reasoning an item belongs to

    def serves(self, method: str, path: str) -> bool:
        return (method, path) == ("POST", "/v1/responses")

    def proof(self, said: Said) -> str:
        return "rs_" + hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:32]

    def answer(self, said: Said) -> list[bytes]:
        return [_event(event) for event in self._events(said)]

    def finishes(self, said: Said) -> int:
        return len(self._events(said))

    def frame(self, payload: bytes) -> bytes:
        return b"data: " + payload + b"\n\n"

    def error(self, status: int, message: str, kind: Literal["", "overflow"] = "") -> bytes:
        return openai_error(status, message, kind)

    def unknown(self) -> list[bytes]:
        return [
            b": keep-alive\n\n",
            _event({"type": "response.thought_of.progress", "percent": 50}),
            _event({"type": "keepalive"}),
        ]

    def broken(self, message: str) -> bytes:
        return _event(
            {
                "type": "error",
                "sequence_number": 99,
                "code": "server_error",
                "message": message,
                "param": None,
            }
        )

    def shows_order(self, event: bytes) -> bool:
        return b'"sequence_number"' in event

    # -- answers

    def _output(self, said: Said) -> list[dict[str, Any]]:
        """Return the items that say ``said``, and remember what was issued."""
        proof = self.proof(said)
        unique = proof.removeprefix("rs_")
        items: list[dict[str, Any]] = []
        if said.reasoning:
            content = base64.b64encode(f"encrypted {proof}".encode()).decode()
            self._reasoning[proof] = content
            summary = [{"type": "summary_text", "text": "".join(said.reasoning)}]
            items.append({"type": "reasoning", "id": proof, "summary": summary, "encrypted_content": content})
        if said.text:
            part: dict[str, Any] = {
                "type": "output_text",
                "text": "".join(said.text),
                "annotations": [],
                "logprobs": [],
            }
            items.append({"type": "message", "id": f"msg_{unique}", "role": "assistant", "content": [part]})
        for number, call in enumerate(said.calls):
            form = {
                "type": "function_call",
                "id": f"fc_{number}_{unique}",
                "call_id": call.id,
                "name": call.name,
            }
            items.append({**form, "arguments": said.arguments.get(number, json.dumps(call.input))})
        cut = said.stop != "end"
        for number, item in enumerate(items):
            if item["type"] != "reasoning":
                item["status"] = "incomplete" if cut and number == len(items) - 1 else "completed"
                if said.reasoning:
                    self._needs[item["id"]] = proof
        return items

    def _events(self, said: Said) -> list[dict[str, Any]]:
        output = self._output(said)
        cut = {"length": "max_output_tokens", "filter": "content_filter"}.get(said.stop)
        begun: dict[str, Any] = {
            "id": "resp_1",
            "object": "response",
            "status": "in_progress",
            "error": None,
            "output": [],
        }
        status = "incomplete" if cut else "completed"
        ended = {
            **begun,
            "status": status,
            "output": output,
            "usage": _usage(said),
            "incomplete_details": {"reason": cut} if cut else None,
        }
        events: list[dict[str, Any]] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(output):
            events += _item_events(index, item, said)
        events.append({"type": f"response.{status}", "response": ended})
        return [{**event, "sequence_number": number} for number, event in enumerate(events)]

    # -- requests

    def read(self, body: Any) -> Seen:
        choice: Any = body.get("tool_choice", "auto")
        items: list[Any] = body["input"]
        text: dict[str, Any] = body.get("text") or {}
        start = [Message.system(body["instructions"])] if "instructions" in body else []
        return Seen(
            messages=[*start, *(_message(item) for item in items if item.get("type") != "reasoning")],
            tools=tuple(
                ToolSpec(name=tool["name"], description=tool["description"], schema=tool["parameters"])
                for tool in body.get("tools", ())
            ),
            choice=choice if isinstance(choice, str) else choice["name"],
            schema=text.get("format", {}).get("schema"),
            settings={name: value for name, value in body.items() if name not in OURS},
            reasoning=tuple(item["id"] for item in items if item.get("type") == "reasoning"),
        )

    def refusal(self, body: Any) -> str | None:
        if not isinstance(body, dict):
            return "We could not parse the JSON body of your request."
        form = cast("dict[str, Any]", body)
        unknown = sorted(form.keys() - OURS - OPTIONS)
        if unknown:
            return f"Unknown parameter: '{unknown[0]}'."
        if not isinstance(form.get("model"), str) or form.get("stream") is not True:
            return "Missing required parameter: 'model'."
        tools: list[dict[str, Any]] = form.get("tools", [])
        for number, tool in enumerate(tools):
            if tool.get("type") != "function" or not NAME.fullmatch(tool.get("name", "")):
                return f"Invalid 'tools[{number}].name': string does not match pattern."
        choice: Any = form.get("tool_choice", "auto")
        if isinstance(choice, dict):
            wanted = cast("dict[str, Any]", choice).get("name")
            if wanted not in [tool["name"] for tool in tools]:
                return f"Tool choice '{wanted}' not found in 'tools' parameter."
        elif choice not in ("auto", "none", "required"):
            return f"Invalid value: '{choice}'."
        items: list[Any] = form.get("input") or []
        if not items:
            return "Missing required parameter: 'input'."
        return self._pairs(items) or self._proofs(items, kept=form.get("store", True) is not False)

    def _pairs(self, items: list[Any]) -> str | None:
        """Return what is wrong with the items by themselves, and with calls and their outputs."""
        calls: set[str] = set()
        open_calls: set[str] = set()
        for number, item in enumerate(items):
            kind = item.get("type", "message")
            if kind == "message":
                content: Any = item.get("content")
                parts: set[str] = PARTS.get(item.get("role"), set())
                kinds: set[str] = (
                    set() if isinstance(content, str) else {part["type"] for part in content or ()}
                )
                if not parts or kinds - parts or content is None or content == []:
                    return f"Invalid value for 'input[{number}].content': {kinds or content!r}."
            elif kind in ("function_call", "function_call_output"):
                identifier = item.get("call_id")
                if not isinstance(identifier, str) or not 0 < len(identifier) <= 64:
                    return f"Invalid 'input[{number}].call_id': string too long. Expected a maximum length of 64."
                if kind == "function_call":
                    calls.add(identifier)
                    open_calls.add(identifier)
                    if not isinstance(item.get("arguments"), str):
                        return f"Invalid type for 'input[{number}].arguments'."
                elif identifier not in calls:
                    return f"No tool call found for function call output with call_id {identifier}."
                else:
                    open_calls.discard(identifier)
                    if not isinstance(item.get("output"), str | list) or item["output"] == []:
                        return f"Invalid type for 'input[{number}].output'."
            elif kind != "reasoning":
                return f"Invalid value: '{kind}'."
        return f"No tool output found for function call {min(open_calls)}." if open_calls else None

    def _proofs(self, items: list[Any], *, kept: bool) -> str | None:
        """Return what is wrong with reasoning and the items that belong to it."""
        given: set[str] = set()
        prefixes = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
        for number, item in enumerate(items):
            kind, identifier = item.get("type", "message"), item.get("id")
            if identifier is not None and not str(identifier).startswith(prefixes.get(kind, "")):
                return f"Invalid 'input[{number}].id': '{identifier}'. Expected an ID that begins with '{prefixes[kind]}'."
            if kind == "reasoning":
                if identifier is None or "summary" not in item:
                    return f"Missing required parameter: 'input[{number}].id'."
                content = item.get("encrypted_content")
                if content is None and not kept:
                    return f"Item with id '{identifier}' not found. Items are not persisted when `store` is false."
                if content != self._reasoning.get(identifier):
                    return f"The encrypted content for item {identifier} could not be verified."
                given.add(identifier)
                following: dict[str, Any] = items[number + 1] if number + 1 < len(items) else {}
                if self._needs.get(following.get("id", "")) != identifier:
                    return f"Item '{identifier}' of type 'reasoning' was provided without its required following item."
            elif identifier in self._needs and self._needs[identifier] not in given:
                return (
                    f"Item '{identifier}' of type '{kind}' was provided without its required 'reasoning' item: "
                    f"'{self._needs[identifier]}'."
                )
        return None


def _event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def _item_events(index: int, item: dict[str, Any], said: Said) -> list[dict[str, Any]]:
    at = {"output_index": index, "item_id": item["id"]}
    empty: dict[str, Any] = {"summary": [], "content": [], "arguments": "", "encrypted_content": "gAAA"}
    begun = {name: empty.get(name, value) for name, value in item.items()}
    if item["type"] != "reasoning":
        begun["status"] = "in_progress"
    inside: list[dict[str, Any]] = []
    if item["type"] == "reasoning":
        part: dict[str, Any] = {**at, "summary_index": 0}
        inside.append(
            {"type": "response.reasoning_summary_part.added", **part, "part": {"type": "summary_text"}}
        )
        inside += [
            {"type": "response.reasoning_summary_text.delta", **part, "delta": piece}
            for piece in said.reasoning
        ]
        inside.append(
            {"type": "response.reasoning_summary_text.done", **part, "text": "".join(said.reasoning)}
        )
    elif item["type"] == "message":
        part = {**at, "content_index": 0}
        inside.append(
            {"type": "response.content_part.added", **part, "part": {"type": "output_text", "text": ""}}
        )
        inside += [{"type": "response.output_text.delta", **part, "delta": piece} for piece in said.text]
        inside.append({"type": "response.output_text.done", **part, "text": "".join(said.text)})
        inside.append({"type": "response.content_part.done", **part, "part": item["content"][0]})
    else:
        inside += [
            {"type": "response.function_call_arguments.delta", **at, "delta": piece}
            for piece in halves(item["arguments"])
        ]
        inside.append({"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]})
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        *inside,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def _usage(said: Said) -> dict[str, Any]:
    usage = said.usage
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    written = usage.output_tokens + usage.reasoning_tokens
    return {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": read + written,
    }


def _message(item: Any) -> Message:
    kind = item.get("type", "message")
    if kind == "function_call":
        return Message.assistant(
            [ToolUse(id=item["call_id"], name=item["name"], input=json.loads(item["arguments"]))]
        )
    if kind == "function_call_output":
        output: Any = item["output"]
        blocks = output if isinstance(output, str) else [_block(part) for part in output]
        return Message.tool([ToolResult(tool_use_id=item["call_id"], content=blocks)])
    content = item["content"]
    return Message(item["role"], content if isinstance(content, str) else [_block(part) for part in content])


def _block(part: Any) -> Block:
    if part["type"] == "input_image":
        media_type, raw = uri_data(part["image_url"])
        return Image(data=raw, media_type=media_type)
    if part["type"] == "input_file":
        media_type, raw = uri_data(part["file_data"])
        return Document(data=raw, media_type=media_type, name=part["filename"])
    return Text(part["text"])
