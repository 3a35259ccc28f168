"""The Chat Completions format from the provider's side.

Source: https://platform.openai.com/docs/api-reference/chat, and the refusals as OpenAI words them.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Literal, cast

from littleghost.content import Block, Document, Image, Text, ToolResult, ToolUse
from littleghost.message import Message
from littleghost.models.contract import ToolSpec
from littleghost.testing.model_dialect import Dialect, Said, Seen

__all__ = ["ChatDialect", "halves", "openai_error", "uri_data"]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PARTS = {
    "user": {"text", "image_url", "file"},
    "system": {"text"},
    "developer": {"text"},
    "assistant": {"text"},
}
OPTIONS = frozenset({
    "frequency_penalty", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata",
    "parallel_tool_calls", "presence_penalty", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort",
    "safety_identifier", "seed", "service_tier", "stop", "store", "temperature", "top_logprobs", "top_p", "verbosity",
    "web_search_options",
})  # fmt: skip
OURS = frozenset({"messages", "model", "stream", "stream_options", "tools", "tool_choice", "response_format"})


class ChatDialect(Dialect):
    """Chat Completions, as OpenAI and many other servers speak it."""

    prefix = "/v1"
    features = frozenset(
        {
            "arguments",
            "cache_read",
            "cache_write",
            "filter",
            "instructions",
            "mid_stream_errors",
            "reasoning",
            "reasoning_tokens",
            "unbounded_events",
            "unknown_events",
        }
    )
    reserved = ("messages", "model", "n", "stream", "tools")

    def serves(self, method: str, path: str) -> bool:
        return (method, path) == ("POST", "/v1/chat/completions")

    def answer(self, said: Said) -> list[bytes]:
        events = [_delta(role="assistant", content="")]
        events += [_delta(reasoning_content=piece) for piece in said.reasoning]
        events += [_delta(content=piece) for piece in said.text]
        for index, call in enumerate(said.calls):
            begun = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            events.append(_delta(tool_calls=[{"index": index, **begun}]))
            events += [
                _delta(tool_calls=[{"index": index, "function": {"arguments": piece}}])
                for piece in halves(said.arguments.get(index, json.dumps(call.input)))
            ]
        finish = {
            "end": "tool_calls" if said.calls else "stop",
            "length": "length",
            "filter": "content_filter",
        }
        events.append(_delta(finish[said.stop]))
        events.append(_event({"object": "chat.completion.chunk", "choices": [], "usage": _usage(said)}))
        return [*events, _event(b"[DONE]")]

    def finishes(self, said: Said) -> int:
        return len(self.answer(said)) - 2

    def frame(self, payload: bytes) -> bytes:
        return _event(payload)

    def error(self, status: int, message: str, kind: Literal["", "overflow"] = "") -> bytes:
        return openai_error(status, message, kind)

    def unknown(self) -> list[bytes]:
        return [
            b": keep-alive\n\n",
            _event({"object": "chat.completion.chunk", "choices": [], "obfuscation": "x"}),
            _event(
                {"choices": [{"index": 0, "delta": {"annotations": [], "audio": None}, "logprobs": None}]}
            ),
        ]

    def broken(self, message: str) -> bytes:
        return _event({"error": {"message": message, "type": "server_error", "code": None}})

    def read(self, body: Any) -> Seen:
        choice: Any = body.get("tool_choice", "auto")
        form: Any = body.get("response_format") or {}
        return Seen(
            messages=[_message(one) for one in body["messages"]],
            tools=tuple(
                ToolSpec(
                    name=tool["function"]["name"],
                    description=tool["function"].get("description", ""),
                    schema=tool["function"].get("parameters", {}),
                )
                for tool in body.get("tools", ())
            ),
            choice=choice if isinstance(choice, str) else choice["function"]["name"],
            schema=form.get("json_schema", {}).get("schema"),
            settings={name: value for name, value in body.items() if name not in OURS},
        )

    def refusal(self, body: Any) -> str | None:
        if not isinstance(body, dict):
            return "We could not parse the JSON body of your request."
        form = cast("dict[str, Any]", body)
        unknown = sorted(form.keys() - OURS - OPTIONS)
        if unknown:
            return f"Unrecognized request argument supplied: {unknown[0]}"
        if not isinstance(form.get("model"), str):
            return "you must provide a model parameter"
        if form.get("stream") is not True:
            return "this server only streams"
        tools = form.get("tools")
        if tools == []:
            return "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead."
        for number, tool in enumerate(tools or ()):
            name = tool.get("function", {}).get("name", "")
            if tool.get("type") != "function" or not NAME.fullmatch(name):
                return f"Invalid 'tools[{number}].function.name': string does not match pattern."
        if tools is None and "tool_choice" in form:
            return (
                "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
            )
        choice = form.get("tool_choice", "auto")
        if isinstance(choice, dict):
            wanted = cast("dict[str, Any]", choice).get("function", {}).get("name")
            if wanted not in [tool["function"]["name"] for tool in tools or ()]:
                return f"Tool choice '{wanted}' not found in 'tools' parameter."
        elif choice not in ("auto", "none", "required"):
            return f"Invalid value: '{choice}'. Supported values are: 'none', 'auto', and 'required'."
        return _transcript(form.get("messages"))


def openai_error(status: int, message: str, kind: str) -> bytes:
    """Return the body of an error of OpenAI's."""
    if kind == "overflow":
        fault = {
            "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    else:
        types = {401: "authentication_error", 429: "rate_limit_error"}
        fallback = "server_error" if status >= 500 else "invalid_request_error"
        fault = {"message": message, "type": types.get(status, fallback), "param": None, "code": None}
    return json.dumps({"error": fault}).encode()


def halves(text: str) -> list[str]:
    """Return ``text`` in two pieces, as a model streams arguments; nothing of nothing."""
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def uri_data(uri: str) -> tuple[str, bytes]:
    """Return the media type and the bytes of a data URI."""
    head, _, encoded = uri.partition(";base64,")
    return head.removeprefix("data:"), base64.b64decode(encoded, validate=True)


def _event(value: Any) -> bytes:
    raw = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    return b"data: " + raw + b"\n\n"


def _delta(finish: str | None = None, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return _event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})


def _usage(said: Said) -> dict[str, Any]:
    usage = said.usage
    prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    completion = usage.output_tokens + usage.reasoning_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _transcript(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "Invalid 'messages': empty array."
    waiting: list[str] = []
    for number, message in enumerate(cast("list[Any]", messages)):
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                return f"messages[{number}] with role 'tool' must be a response to a preceding message with 'tool_calls'."
            waiting.remove(message["tool_call_id"])
            if not isinstance(content, str):
                return f"Invalid type for 'messages[{number}].content': expected a string."
            continue
        if waiting:
            return f"An assistant message with 'tool_calls' must be followed by tool messages. Missing: {waiting}"
        if role not in PARTS:
            return f"Invalid value: '{role}' in messages[{number}].role."
        calls = message.get("tool_calls", ())
        if role == "assistant":
            if content is None and not calls:
                return f"Invalid value for 'content' in messages[{number}]: expected a string, got null."
            if "tool_calls" in message and not calls:
                return f"Invalid 'messages[{number}].tool_calls': empty array."
        for call in calls:
            if not isinstance(call.get("id"), str) or not 0 < len(call["id"]) <= 40:
                return f"Invalid 'messages[{number}].tool_calls[0].id': string too long. Expected a string with maximum length 40."
            try:
                json.loads(call["function"]["arguments"])
            except (KeyError, TypeError, ValueError):
                return f"Invalid 'messages[{number}].tool_calls[0].function.arguments'."
            waiting.append(call["id"])
        if isinstance(content, list):
            kinds = {cast("dict[str, Any]", part).get("type") for part in cast("list[Any]", content)}
            if not content or kinds - PARTS[role]:
                return f"Invalid 'messages[{number}].content': {kinds or 'empty array'}."
        elif not isinstance(content, str) and role != "assistant":
            return f"Invalid value for 'content' in messages[{number}]: expected a string, got {content!r}."
    return f"No tool output found for function call {waiting[0]}." if waiting else None


def _message(form: Any) -> Message:
    role, content = form["role"], form.get("content")
    if role == "tool":
        return Message.tool([ToolResult(tool_use_id=form["tool_call_id"], content=content)])
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    blocks: list[Block] = [_block(part) for part in parts]
    blocks += [
        ToolUse(id=call["id"], name=call["function"]["name"], input=json.loads(call["function"]["arguments"]))
        for call in form.get("tool_calls", ())
    ]
    return Message(role, blocks)


def _block(part: Any) -> Block:
    if part["type"] == "image_url":
        media_type, raw = uri_data(part["image_url"]["url"])
        return Image(data=raw, media_type=media_type)
    if part["type"] == "file":
        media_type, raw = uri_data(part["file"]["file_data"])
        return Document(data=raw, media_type=media_type, name=part["file"]["filename"])
    return Text(part["text"])
