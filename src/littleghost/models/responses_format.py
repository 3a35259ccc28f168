"""The Responses format of a request: messages to items, without I/O.

Calls are stateless: the whole conversation is sent, and nothing is kept by the provider. Reasoning comes encrypted, and goes back as it
came, so that a model goes on from it in the next step. OpenAI refuses a call that names its id (``fc_…``) where the reasoning item it
belongs to is missing, and reasoning that is not whole; so ids travel only beside whole reasoning, and everything else without any.

Source: https://platform.openai.com/docs/api-reference/responses, https://platform.openai.com/docs/guides/reasoning
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec

from littleghost import transcript
from littleghost.content import Block, Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.message import Message
from littleghost.models.contract import AnswerFormat, ToolSpec
from littleghost.models.strict import fits_strict

__all__ = [
    "FORMAT",
    "keep_proofs",
    "responses_choice",
    "responses_format",
    "responses_input",
    "responses_tools",
]

FORMAT = "openai.responses"
"""What `Reasoning.details` and kept notes are marked by."""
MAX_ID = 64
"""Characters of a call's id that OpenAI takes; conversations begun with another provider may have longer ones."""
_Groups = dict[int, list[tuple[str, dict[str, Any]]]]
_KINDS: dict[type, str] = {Text: "message", ToolUse: "function_call"}


def responses_input(messages: Iterable[Message]) -> tuple[str, list[dict[str, Any]]]:
    """Return the instructions, and the items of the conversation.

    System messages at the beginning are the instructions. A tool's text, images and documents are its output; a failed one begins
    with ``Error:``. What stands beside results follows as a user's. Reasoning goes with what follows the last message of a user;
    what is before that was answered.

    Args:
        messages: A transcript in canonical shape.
    """
    instructions: list[str] = []
    items: list[dict[str, Any]] = []
    conversation = list(messages)
    asked = max((n for n, message in enumerate(conversation) if message.role == "user"), default=-1)
    for number, message in enumerate(conversation):
        if message.role == "system" and not items:
            instructions.append(message.text)
        elif message.role == "assistant":
            items += _assistant(message, _groups(message) if number > asked else {})
        elif message.role == "tool":
            items += _results(message)
        else:
            items.append({"role": message.role, "content": _content(message.content)})
    return "\n\n".join(filter(None, instructions)), items


def responses_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Return ``tools`` in the form of a request. Not strict: that would change what their schemas say."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.schema,
            "strict": False,
        }
        for tool in tools
    ]


def responses_choice(choice: str) -> Any:
    """Return what must be called in the form of a request."""
    return choice if choice in ("auto", "none", "required") else {"type": "function", "name": choice}


def responses_format(form: AnswerFormat) -> dict[str, Any]:
    """Return the form of an answer in that of a request: strict where the schema permits it."""
    described = {"description": form.description} if form.description else {}
    strict = fits_strict(form.schema)
    return {"type": "json_schema", "name": form.name, **described, "schema": form.schema, "strict": strict}


def keep_proofs(message: Message) -> Message:
    """Return ``message`` with what it takes to send its reasoning back noted in its metadata, without anything readable."""
    proofs: list[dict[str, Any]] = []
    place = 0
    for block in message.content:
        if isinstance(block, Reasoning):
            if (proof := _proof(block)) is not None:
                proofs.append({"at": place, **proof})
        elif type(block) in _KINDS:
            place += 1
    if not proofs:
        return message
    return transcript.mark(message, reasoning={"format": FORMAT, "proofs": proofs})


# -- an assistant's message


def _assistant(message: Message, groups: _Groups) -> list[dict[str, Any]]:
    """Return the items of ``message``: reasoning that is whole with what belongs to it under its ids, the rest without ids."""
    blocks = [block for block in message.content if type(block) in _KINDS]
    items: list[dict[str, Any]] = []
    ids: list[Any] = []
    for place in range(len(blocks) + 1):
        for summary, proof in groups.get(place, ()):
            follow = proof["items"]
            kinds = [_KINDS[type(block)] for block in blocks[place : place + len(follow)]]
            ids = []
            if kinds == [kind for kind, _ in follow]:  # nothing was taken out or put in
                items.append(_reasoning(summary, proof))
                ids = [identifier for _, identifier in follow]
        if place < len(blocks):
            items += _said(blocks[place], ids.pop(0) if ids else None)
    return items


def _groups(message: Message) -> _Groups:
    """Return the reasoning that can be sent, by the number of blocks before it: what of it can be read, and its proof."""
    found: _Groups = {}
    place = 0
    own = False
    for block in message.content:
        if isinstance(block, Reasoning):
            own = True
            if (proof := _proof(block)) is not None:
                found.setdefault(place, []).append((block.text if proof["summary"] else "", proof))
        elif type(block) in _KINDS:
            place += 1
    kept = transcript.note(message, "reasoning")
    if own or not isinstance(kept, dict) or cast("dict[str, Any]", kept).get("format") != FORMAT:
        return found
    proofs: Any = cast("dict[str, Any]", kept).get("proofs")
    for proof in cast("list[Any]", proofs) if isinstance(proofs, list) else ():
        if isinstance(proof, dict) and _is_whole(cast("dict[str, Any]", proof)):
            found.setdefault(int(cast("Any", proof).get("at", 0)), []).append(
                ("", cast("dict[str, Any]", proof))
            )
    return found


def _proof(block: Reasoning) -> dict[str, Any] | None:
    """Return what OpenAI wants back of ``block``, or ``None`` where it is another's or not whole."""
    form = cast("dict[str, Any]", block.details) if isinstance(block.details, dict) else {}
    if form.get("format") != FORMAT:
        return None
    proof = {
        "id": form.get("id"),
        "content": block.signature,
        "items": form.get("items"),
        "summary": form.get("summary") is True,
    }
    return proof if _is_whole(proof) else None


def _is_whole(proof: dict[str, Any]) -> bool:
    items: Any = proof.get("items")
    return (
        isinstance(proof.get("id"), str)
        and isinstance(proof.get("content"), str)
        and isinstance(items, list)
        and items != []  # reasoning that nothing followed is refused
        and all(
            isinstance(item, list) and len(cast("list[Any]", item)) == 2 for item in cast("list[Any]", items)
        )
    )


def _reasoning(summary: str, proof: dict[str, Any]) -> dict[str, Any]:
    said = [{"type": "summary_text", "text": summary}] if summary else []
    return {"type": "reasoning", "id": proof["id"], "summary": said, "encrypted_content": proof["content"]}


def _said(block: Block, identifier: Any) -> list[dict[str, Any]]:
    if isinstance(block, ToolUse):
        call = {
            "type": "function_call",
            "call_id": _short(block.id),
            "name": block.name,
            "arguments": msgspec.json.encode(block.input).decode(),
        }
        return [{**call, "id": identifier} if identifier else call]
    text = cast("Text", block).text
    if not text and not identifier:
        return []
    message: dict[str, Any] = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    if identifier:
        message |= {"id": identifier, "status": "completed"}
    return [message]


# -- other messages


def _results(message: Message) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    beside: list[Block] = []
    for block in message.content:
        if not isinstance(block, ToolResult):
            beside.append(block)
            continue
        items.append(
            {"type": "function_call_output", "call_id": _short(block.tool_use_id), "output": _output(block)}
        )
    if content := _content(beside):
        items.append({"role": "user", "content": content})
    return items


def _output(result: ToolResult) -> str | list[dict[str, Any]]:
    inside: Any = result.content
    blocks = cast("tuple[Block, ...]", inside) if isinstance(inside, tuple) else ()
    attached = any(isinstance(block, Image | Document) for block in blocks)
    text = "\n".join(block.text for block in blocks if isinstance(block, Text)) if attached else result.text
    if result.status == "error" and not text.lower().startswith("error"):
        text = f"Error: {text}"
    if not attached:
        return text
    parts = [_part(block) for block in blocks if isinstance(block, Image | Document)]
    return [_text(text), *parts] if text else parts


def _content(blocks: Sequence[Block]) -> str | list[dict[str, Any]]:
    shown = [block for block in blocks if type(block) in (Text, Image, Document)]
    if not shown:
        return ""
    if len(shown) == 1 and type(shown[0]) is Text:
        return shown[0].text
    return [_part(block) for block in shown]


def _part(block: Block) -> dict[str, Any]:
    if isinstance(block, Image):
        return {"type": "input_image", "image_url": _uri(block), "detail": "auto"}
    if isinstance(block, Document):
        return {"type": "input_file", "filename": block.name, "file_data": _uri(block)}
    return _text(cast("Text", block).text)


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _uri(block: Image | Document) -> str:
    return f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"


def _short(identifier: str) -> str:
    return (
        identifier if len(identifier) <= MAX_ID else hashlib.sha256(identifier.encode()).hexdigest()[:MAX_ID]
    )
