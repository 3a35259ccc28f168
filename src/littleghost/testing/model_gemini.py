"""The format of Gemini's ``streamGenerateContent`` from the provider's side.

Source: https://ai.google.dev/api/generate-content, https://ai.google.dev/gemini-api/docs/thought-signatures, and the refusals as the
API words them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any, Literal, cast

from littleghost.content import Block, Document, Image, Text, ToolResult, ToolUse
from littleghost.message import Message
from littleghost.models.contract import ToolSpec
from littleghost.testing.model_dialect import Dialect, Said, Seen

__all__ = ["GeminiDialect"]

DUMMIES = frozenset({"skip_thought_signature_validator", "context_engineering_is_the_way_to_go"})
PATH = re.compile(
    r"/v1(?:alpha|beta1?)?/(?:projects/[^/]+/locations/[^/]+/publishers/google/)?models/[^/:]+:streamGenerateContent"
)
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
FIELDS = frozenset({
    "cachedContent", "contents", "continuationToken", "generationConfig", "labels", "safetySettings", "serviceTier", "store",
    "systemInstruction", "toolConfig", "tools",
})  # fmt: skip
OPTIONS = frozenset({
    "enableEnhancedCivicAnswers", "frequencyPenalty", "logprobs", "maxOutputTokens", "mediaResolution", "presencePenalty",
    "responseJsonSchema", "responseLogprobs", "responseMimeType", "responseModalities", "responseSchema", "seed", "speechConfig",
    "stopSequences", "temperature", "thinkingConfig", "topK", "topP",
})  # fmt: skip
KEYWORDS = frozenset({
    "$anchor", "$defs", "$id", "$ref", "additionalProperties", "anyOf", "description", "enum", "format", "items", "maxItems",
    "maximum", "minItems", "minimum", "oneOf", "prefixItems", "properties", "propertyOrdering", "required", "title", "type",
})  # fmt: skip
DATA = ("functionCall", "functionResponse", "inlineData", "text")
STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
          429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE", 504: "DEADLINE_EXCEEDED"}  # fmt: skip
FINISH = {"end": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}


class GeminiDialect(Dialect):
    """The format of Gemini, by its own API and on Vertex AI, with the rules of Gemini 3: it refuses a call without its signature."""

    features = frozenset({
        "cache_read", "filter", "instructions", "mid_stream_errors", "reasoning", "reasoning_back", "reasoning_tokens",
        "unbounded_events", "unknown_events",
    })  # fmt: skip
    reserved = (
        "candidateCount",
        "contents",
        "continuationToken",
        "model",
        "systemInstruction",
        "toolConfig",
        "tools",
    )

    def __init__(self) -> None:
        self._issued: dict[str, str | None] = {}  # and of which call, if of one

    def serves(self, method: str, path: str) -> bool:
        return method == "POST" and PATH.fullmatch(path) is not None

    def answer(self, said: Said) -> list[bytes]:
        signature = self.proof(said)
        self._issued[signature] = said.calls[0].id if said.calls else None
        parts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in said.reasoning]
        parts += [{"text": piece} for piece in said.text]
        calls: list[dict[str, Any]] = [
            {"functionCall": {"id": call.id, "name": call.name, "args": call.input}} for call in said.calls
        ]
        if said.reasoning and calls:
            calls[0]["thoughtSignature"] = signature  # that of calls made together is at the first
        events = [_chunk([part]) for part in [*parts, *calls]]
        last = [{"text": "", "thoughtSignature": signature}] if said.reasoning and not calls else []
        return [*events, _chunk(last, FINISH[said.stop], _usage(said))]

    def finishes(self, said: Said) -> int:
        return len(self.answer(said))

    def frame(self, payload: bytes) -> bytes:
        return b"data: " + payload + b"\r\n\r\n"

    def error(self, status: int, message: str, kind: Literal["", "overflow"] = "") -> bytes:
        if kind == "overflow":
            message = "The input token count (9001) exceeds the maximum number of tokens allowed (8192)."
        fault = {"code": status, "message": message, "status": STATUS.get(status, "UNKNOWN")}
        return json.dumps({"error": fault}).encode()

    def unknown(self) -> list[bytes]:
        return [
            b": keep-alive\n\n",
            _chunk([]),
            _event({"responseId": "r1", "modelVersion": "gemini-3-pro"}),
            _event({"candidates": [{"index": 1, "content": {"parts": [{"text": "another candidate"}]}}]}),
            _chunk([{"partOfTomorrow": {"text": "x"}}]),
            _event({"candidates": [{"index": 0, "groundingMetadata": {}, "finishReason": None}]}),
        ]

    def broken(self, message: str) -> bytes:
        return _event({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}})

    def proof(self, said: Said) -> str:
        written = json.dumps([said.reasoning, said.text, [call.id for call in said.calls]])
        return base64.b64encode(hashlib.sha256(written.encode()).digest()).decode()

    def read(self, body: Any) -> Seen:
        system: Any = body.get("systemInstruction")
        messages = [Message.system([part["text"] for part in system["parts"]])] if system else []
        config: Any = body.get("generationConfig", {})
        calling: Any = body.get("toolConfig", {}).get("functionCallingConfig", {"mode": "AUTO"})
        named = calling.get("allowedFunctionNames", [])
        tools: Any = [one for tool in body.get("tools", ()) for one in tool["functionDeclarations"]]
        parts: list[Any] = [part for content in body["contents"] for part in content["parts"]]
        return Seen(
            messages=messages + [_message(content) for content in body["contents"]],
            tools=tuple(
                ToolSpec(
                    name=tool["name"],
                    description=tool["description"],
                    schema=tool.get("parametersJsonSchema", {}),
                )
                for tool in tools
            ),
            choice=named[0]
            if named
            else {"AUTO": "auto", "ANY": "required", "NONE": "none"}[calling["mode"]],
            schema=config.get("responseJsonSchema"),
            settings={name: value for name, value in config.items() if not name.startswith("response")},
            reasoning=tuple(
                part["thoughtSignature"]
                for part in parts
                if "thoughtSignature" in part and part["thoughtSignature"] not in DUMMIES
            ),
        )

    def refusal(self, body: Any) -> str | None:
        if not isinstance(body, dict):
            return "Invalid JSON payload received. Unexpected end of string."
        form = cast("dict[str, Any]", body)
        config: Any = form.get("generationConfig", {})
        for where, known, given in (("", FIELDS, form), (" at 'generation_config'", OPTIONS, config)):
            unknown = sorted(given.keys() - known)
            if unknown:
                return (
                    f'Invalid JSON payload received. Unknown name "{unknown[0]}"{where}: Cannot find field.'
                )
        if "responseJsonSchema" in config:
            if config.get("responseMimeType") != "application/json":
                return "response_schema only works with response_mime_type 'application/json'."
            if wrong := _wrong_schema(config["responseJsonSchema"]):
                return f"Invalid value at 'generation_config.response_json_schema': {wrong}"
        return self._tools(form) or self._contents(form.get("contents"))

    def _tools(self, form: dict[str, Any]) -> str | None:
        names: list[str] = []
        for tool in form.get("tools", ()):
            if not tool.get("functionDeclarations"):
                return "tools[0].tool_type: required one_of 'tool_type' must have one initialized field"
            for number, one in enumerate(tool["functionDeclarations"]):
                where = f"GenerateContentRequest.tools[0].function_declarations[{number}]"
                if not NAME.fullmatch(one.get("name", "")):
                    return f"{where}.name: Invalid function name."
                if one.keys() - {"name", "description", "parametersJsonSchema"}:
                    return f"{where}: Unknown name."
                schema = one.get("parametersJsonSchema")
                if schema is not None and (wrong := _wrong_schema(schema)):
                    return f"{where}.parameters_json_schema: {wrong}"
                names.append(one["name"])
        calling = form.get("toolConfig", {}).get("functionCallingConfig")
        if calling is None:
            return None
        if not names:
            return "Function calling config is set without function_declarations."
        if calling.get("mode") not in ("AUTO", "ANY", "NONE", "VALIDATED"):
            return "Invalid value at 'tool_config.function_calling_config.mode'"
        foreign = [name for name in calling.get("allowedFunctionNames", ()) if name not in names]
        return (
            f"allowed_function_names: {foreign[0]} is not among the function declarations."
            if foreign
            else None
        )

    def _contents(self, contents: Any) -> str | None:
        if not isinstance(contents, list) or not contents:
            return "* GenerateContentRequest.contents: contents is not specified"
        turn = 0
        calls: list[dict[str, Any]] = []
        given = cast("list[Any]", contents)
        for number, content in enumerate(given):
            role, parts = content.get("role"), content.get("parts")
            if role not in ("user", "model"):
                return "Please use a valid role: user, model."
            if not parts:
                return f"* GenerateContentRequest.contents[{number}].parts: contents.parts must not be empty."
            for at, part in enumerate(parts):
                if wrong := self._part(part):
                    return f"Invalid value at 'contents[{number}].parts[{at}]': {wrong}"
            answers = [part["functionResponse"] for part in parts if "functionResponse" in part]
            if len(answers) != len(calls):
                return (
                    "Please ensure that the number of function response parts is equal to the number of function call parts of the "
                    "function call turn."
                )
            for answer, call in zip(answers, calls, strict=True):
                if (answer["name"], answer.get("id")) != (call["name"], call.get("id")):
                    return f"Function response {answer} does not answer function call {call}."
            calls = [part["functionCall"] for part in parts if "functionCall" in part]
            if calls and role != "model":
                return "Please ensure that function call turn comes immediately after a user turn."
            if role == "user" and not answers:
                turn = number
        if calls:
            return "Please ensure that function response turn comes immediately after a function call turn."
        return self._unsigned(given, turn)

    def _part(self, part: Any) -> str | None:
        if part.keys() - {*DATA, "thought", "thoughtSignature"}:
            return "Unknown name: Cannot find field."
        if sum(name in part for name in DATA) != 1:
            return "required oneof field 'data' must have one initialized field"
        signature = part.get("thoughtSignature")
        if part.get("text") == "" and signature is None:
            return "Unable to submit request because it must have a text parameter."
        if signature is not None and signature not in DUMMIES:
            of = part.get("functionCall", {}).get("id")
            if signature not in self._issued or self._issued[signature] != of:
                return "Thought signature is not valid."
        answer = part.get("functionResponse")
        if answer is not None and not isinstance(answer.get("response"), dict):
            return "function_response.response: must be a Struct."
        if "functionCall" in part and not isinstance(part["functionCall"].get("args"), dict):
            return "function_call.args: must be a Struct."
        return None

    def _unsigned(self, contents: list[Any], turn: int) -> str | None:
        """Return the refusal of the first step of this turn whose first call has no signature."""
        for number, content in enumerate(contents):
            first = next((part for part in content["parts"] if "functionCall" in part), None)
            if number > turn and first is not None and not first.get("thoughtSignature"):
                return (
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, "
                    "and missing thought_signature may lead to degraded model performance. Additional data, function call "
                    f"`default_api:{first['functionCall']['name']}`, position {number + 1}."
                )
        return None


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\r\n\r\n"


def _chunk(
    parts: list[dict[str, Any]], finish: str | None = None, usage: dict[str, Any] | None = None
) -> bytes:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return _event({"candidates": [candidate], "usageMetadata": usage or {"promptTokenCount": 1}})


def _usage(said: Said) -> dict[str, Any]:
    usage = said.usage
    prompt = usage.input_tokens + usage.cache_read_tokens
    return {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": usage.cache_read_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": prompt + usage.output_tokens + usage.reasoning_tokens,
    }


def _wrong_schema(schema: Any) -> str | None:
    """Return what is wrong with a schema: a keyword that is not known, or something beside a reference."""
    if isinstance(schema, bool):
        return None
    form = cast("dict[str, Any]", schema)
    unknown = sorted(form.keys() - KEYWORDS)
    if unknown:
        return f"unknown keyword {unknown[0]}"
    if "$ref" in form and any(not key.startswith("$") for key in form):
        return "$ref has other properties beside it"
    if form.get("type") == "object" and form.get("properties") == {} and not form.get("additionalProperties"):
        return "properties: should be non-empty for OBJECT type"
    inside: list[Any] = [*form.get("properties", {}).values(), *form.get("$defs", {}).values()]
    for key in ("anyOf", "oneOf", "prefixItems"):
        inside += form.get(key, ())
    inside += [form[key] for key in ("items", "additionalProperties") if key in form]
    return next((wrong for one in inside if (wrong := _wrong_schema(one))), None)


def _message(content: Any) -> Message:
    parts: Any = content["parts"]
    if content["role"] == "model":
        return Message.assistant(
            [_block(part) for part in parts if not part.get("thought") and part.get("text") != ""]
        )
    if any("functionResponse" in part for part in parts):
        return Message.tool([_block(part) for part in parts])
    return Message.user([_block(part) for part in parts])


def _block(part: Any) -> Block:
    if "functionCall" in part:
        call = part["functionCall"]
        return ToolUse(id=call["id"], name=call["name"], input=call["args"])
    if "functionResponse" in part:
        answer = part["functionResponse"]
        key = "error" if "error" in answer["response"] else "output"
        said = answer["response"][key]
        inside = [_block(one) for one in answer.get("parts", ())]
        return ToolResult(
            tool_use_id=answer["id"],
            content=[Text(said if isinstance(said, str) else json.dumps(said)), *inside],
            status="error" if key == "error" else "success",
        )
    if "inlineData" in part:
        kind, raw = (
            part["inlineData"]["mimeType"],
            base64.b64decode(part["inlineData"]["data"], validate=True),
        )
        if kind.startswith("image/"):
            return Image(data=raw, media_type=kind)
        return Document(data=raw, media_type=kind, name="unnamed")
    return Text(part["text"])
