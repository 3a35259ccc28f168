"""Clauses about what is sent: the conversation, tools and how they are to be used, options, images, documents."""

from __future__ import annotations

from typing import Any

from littleghost.content import Document, Image, Text, ToolResult, ToolUse
from littleghost.errors import ConfigurationError, LittleGhostError, ModelRequestError
from littleghost.message import Message
from littleghost.models.contract import AnswerFormat, ToolSpec
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.model_dialect import Said, Seen
from littleghost.testing.model_trial import ADD, HELLO, ModelTrial, Subject, opened, request

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

HI = Said(text=("Hi",))
PNG = Image(
    data=bytes.fromhex(
        "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
        "0000000a49444154789c6360000000020001e221bc330000000049454e44ae426082"
    ),
    media_type="image/png",
)
PDF = Document(data=b"%PDF-1.4\n%%EOF\n", media_type="application/pdf", name="paper.pdf")
FORM = AnswerFormat(
    name="person",
    description="A person.",
    schema={
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    },
)


async def _sent(trial: ModelTrial, *messages: Message, **fields: Any) -> Seen:
    trial.server.play(HI)
    await trial.ask(request(*messages, **fields))
    return trial.seen()


def _texts(seen: Seen, role: str) -> str:
    return "\n".join(message.text for message in seen.messages if message.role == role)


def _results(seen: Seen) -> list[tuple[str, str, str]]:
    return [
        (block.tool_use_id, block.text, block.status)
        for message in seen.messages
        for block in message.tool_results
    ]


def _attached(seen: Seen, kind: type[Image | Document]) -> list[bytes]:
    blocks: list[Any] = [block for message in seen.messages for block in message.content]
    for block in list(blocks):
        if isinstance(block, ToolResult) and isinstance(block.content, tuple):
            blocks += block.content
    return [block.data for block in blocks if isinstance(block, kind)]


@clause(CLAUSES)
async def the_conversation_arrives(subject: Subject) -> None:
    """What was said by whom, in order, calls with their ids, and the result of each."""
    calls = [
        ToolUse(id="c1", name="add", input={"a": 1, "b": 2}),
        ToolUse(id="c2", name="add", input={"a": 3}),
    ]
    conversation = [
        Message.user("First."),
        Message.assistant("Second."),
        Message.user(["Third.", "Fourth."]),
        Message.assistant([Text("I add."), *calls]),
        Message.tool([
            ToolResult(tool_use_id="c1", content="3"),
            ToolResult(tool_use_id="c2", content={"no": ["b"]}, status="error"),
        ]),
        Message.assistant("Done."),
        Message.user("Thanks."),
    ]  # fmt: skip
    async with opened(subject) as trial:
        seen = await _sent(trial, *conversation, tools=(ADD,))
    for word in ("First.", "Third.", "Fourth.", "Thanks."):
        expect(word in _texts(seen, "user"), f"the user's {word!r} did not arrive")
    for word in ("Second.", "I add.", "Done."):
        expect(word in _texts(seen, "assistant"), f"the model's {word!r} did not arrive")
    found = [call for message in seen.messages for call in message.tool_uses]
    expect(found == calls, f"the calls arrived as {found}")
    results = _results(seen)
    expect([one[0] for one in results] == ["c1", "c2"], f"the results arrived as {results}")
    expect(results[0][1:] == ("3", "success"), f"the first result arrived as {results[0]}")
    failed = results[1]
    expect('"no"' in failed[1], f"the second result arrived as {failed}")
    expect(failed[2] == "error" or "error" in failed[1].lower(), "nothing says that the second call failed")


@clause(CLAUSES, needs=["instructions"])
async def instructions_arrive(subject: Subject) -> None:
    """Those of the agent, and those that are part of the conversation."""
    messages = [
        Message.system("Be brief."),
        Message.user("Hi"),
        Message.developer("And kind."),
        Message.user("Go on"),
    ]
    async with opened(subject) as trial:
        seen = await _sent(trial, *messages)
    said = "\n".join(message.text for message in seen.messages)
    expect("Be brief." in _texts(seen, "system"), "the instructions did not arrive as such")
    expect("And kind." in said, "the developer's message did not arrive")


@clause(CLAUSES)
async def what_a_conversation_may_hold_is_accepted(subject: Subject) -> None:
    """Empty texts and results, long and odd ids, the same ids in two turns, many results: a provider refuses none of it."""
    long = "x" * 100
    odd = "call/1:ü"
    turns: list[Message] = []
    for ids in ((long, odd), (long, odd)):
        turns += [
            Message.user("Go"),
            Message.assistant([ToolUse(id=one, name="add", input={}) for one in ids]),
            Message.tool([ToolResult(tool_use_id=one, content="") for one in ids]),
        ]
    async with opened(subject) as trial:
        seen = await _sent(trial, *turns, Message.assistant([]), Message.user(["", "x"]), tools=(ADD,))
        calls = [call.id for message in seen.messages for call in message.tool_uses]
        expect(len(calls) == 4 and calls[0] != calls[1], f"the calls arrived as {calls}")
        expect([one[0] for one in _results(seen)] == calls, "the results belong to other calls")
        await _sent(trial, Message.user(""))
        await _sent(trial, Message.user("Go"), *turns[1:3])


@clause(CLAUSES)
async def tools_arrive(subject: Subject) -> None:
    """Their names, descriptions and schemas; and calls of tools that are no longer there do no harm."""
    bare = ToolSpec(name="read-2_X", description="Read.", schema={"type": "object", "properties": {}})
    async with opened(subject) as trial:
        seen = await _sent(trial, Message.user("Hi"), tools=(ADD, bare))
        expect([tool.name for tool in seen.tools] == ["add", "read-2_X"], f"the tools are {seen.tools}")
        expect(
            seen.tools[0].description == ADD.description and seen.tools[0].schema == ADD.schema,
            f"the first tool arrived as {seen.tools[0]}",
        )
        call = ToolUse(id="c1", name="gone", input={})
        history = [
            Message.user("Hi"),
            Message.assistant([call]),
            Message.tool([ToolResult(tool_use_id="c1", content="3")]),
        ]
        await _sent(trial, *history)


@clause(CLAUSES, needs=["tool_choice"])
async def what_must_be_called_arrives(subject: Subject) -> None:
    """``auto``, ``required``, ``none``, and one tool by its name."""
    async with opened(subject) as trial:
        for choice in ("auto", "required", "none", "add"):
            seen = await _sent(trial, Message.user("Hi"), tools=(ADD,), tool_choice=choice)
            hidden = choice == "none" and not seen.tools
            expect(seen.choice == choice or hidden, f"{choice} arrived as {seen.choice}")
        seen = await _sent(trial, Message.user("Hi"))
        expect(not seen.tools, "without tools, some arrived")


@clause(CLAUSES, needs=["answer_format"])
async def the_form_of_an_answer_arrives(subject: Subject) -> None:
    """As the JSON Schema that the answer is to fit."""
    async with opened(subject) as trial:
        seen = await _sent(trial, Message.user("Who?"), format=FORM)
        expect(seen.schema is not None, "no schema arrived")
        found: Any = seen.schema or {}
        expect("name" in found.get("properties", {}), f"the schema arrived as {found}")
        seen = await _sent(trial, Message.user("Who?"))
        expect(seen.schema is None, "a schema arrived where none was asked for")


@clause(CLAUSES)
async def options_arrive(subject: Subject) -> None:
    """Under the provider's names; those of a request go before those of the model, and ``None`` takes one back."""
    async with opened(subject) as trial:
        setting = trial.dialect.setting
        seen = await _sent(trial, Message.user("Hi"), settings=setting)
        for name, value in setting.items():
            expect(seen.settings.get(name) == value, f"{name} arrived as {seen.settings.get(name)}")
    async with opened(subject, settings=setting) as trial:
        seen = await _sent(trial, Message.user("Hi"))
        for name, value in setting.items():
            expect(seen.settings.get(name) == value, f"of the model, {name} arrived as {seen.settings}")
        seen = await _sent(trial, Message.user("Hi"), settings=dict.fromkeys(setting))
        for name in setting:
            expect(name not in seen.settings, f"{name} was taken back, and arrived")


@clause(CLAUSES)
async def options_cannot_change_what_a_call_is(subject: Subject) -> None:
    """What the request says itself is refused by name, before anything is sent."""
    async with opened(subject) as trial:
        for name in trial.dialect.reserved:
            error = await trial.fails(
                ConfigurationError, f"the setting {name}", request(*HELLO.messages, settings={name: 1})
            )
            expect(name in str(error), f"the error does not name {name}: {error}")
            try:
                subject.make(trial.server.url, key="none", retries=0, settings={name: 1})
            except ConfigurationError:
                continue
            expect(False, f"a model takes the setting {name}")
        expect(not trial.server.requests, "something was sent")


@clause(CLAUSES)
async def what_is_no_json_is_refused_before_it_is_sent(subject: Subject) -> None:
    """Half a surrogate pair, which no server could read."""
    async with opened(subject) as trial:
        trial.server.always(HI)
        await trial.fails(LittleGhostError, "half a character", request(Message.user("half \ud83d of it")))
        await trial.fails(ModelRequestError, "half a character", request(Message.user("half \ud83d of it")))
        expect(not trial.server.requests, "it was sent")


@clause(CLAUSES, needs=["images"])
async def images_arrive(subject: Subject) -> None:
    """Byte by byte, from a user and in the result of a tool."""
    async with opened(subject) as trial:
        seen = await _sent(trial, Message.user(["Look:", PNG, PNG]))
        expect(_attached(seen, Image) == [PNG.data] * 2, "the user's images are others")
        seen = await _sent(
            trial,
            Message.user("Look"),
            Message.assistant([ToolUse(id="c1", name="see"), ToolUse(id="c2", name="see")]),
            Message.tool([
                ToolResult(tool_use_id="c1", content=[Text("a cat"), PNG]),
                ToolResult(tool_use_id="c2", content="nothing"),
            ]),
            tools=(ADD,),
        )  # fmt: skip
        expect(_attached(seen, Image) == [PNG.data], "the image in a result is another")
        expect([one[0] for one in _results(seen)] == ["c1", "c2"], "a result is missing")
        expect("a cat" in _results(seen)[0][1], "the text beside the image is missing")


@clause(CLAUSES, needs=["documents"])
async def documents_arrive(subject: Subject) -> None:
    """Byte by byte, from a user and in the result of a tool."""
    async with opened(subject) as trial:
        seen = await _sent(trial, Message.user(["Read:", PDF]))
        expect(_attached(seen, Document) == [PDF.data], "the user's document is another")
        seen = await _sent(
            trial,
            Message.user("Read"),
            Message.assistant([ToolUse(id="c1", name="see")]),
            Message.tool([ToolResult(tool_use_id="c1", content=[Text("here"), PDF])]),
            tools=(ADD,),
        )
        expect(_attached(seen, Document) == [PDF.data], "the document in a result is another")
