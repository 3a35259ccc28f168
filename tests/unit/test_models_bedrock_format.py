"""The Converse form without I/O: arguments that botocore and the models take, and events of its streams."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from botocore.session import Session
from botocore.validate import ParamValidator
from hypothesis import given
from hypothesis import strategies as st

from littleghost import transcript
from littleghost.content import Document, Image, Reasoning, Text, ToolResult, ToolUse
from littleghost.errors import ContextOverflowError, ModelProtocolError, ModelRequestError
from littleghost.events import ReasoningDelta, TextDelta, ToolCallArguments, ToolCallStarted
from littleghost.message import Message
from littleghost.models.bedrock_format import ConverseAnswer, converse_arguments
from littleghost.models.contract import AnswerFormat, ModelRequest, ToolSpec
from littleghost.testing.model_bedrock import refusal as rules
from littleghost.usage import Usage

PNG = b"\x89PNG\r\n\x1a\n..."
ADD = ToolSpec(name="add", description="Add numbers.", schema={"type": "object", "properties": {}})
READ = ToolSpec(name="read", description="", schema={"properties": {"path": {"type": "string"}}})


@cache
def shape() -> Any:
    service = Session().get_service_model("bedrock-runtime")
    return service.operation_model("ConverseStream").input_shape


def refusal(arguments: dict[str, Any]) -> str | None:
    """Why botocore or the service would refuse ``arguments``."""
    report = ParamValidator().validate({"modelId": "x.y", **arguments}, shape())
    return report.generate_report() if report.has_errors() else rules(arguments)


def arguments_of(*messages: Message, settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    fields = {name: more.pop(name) for name in ("tools", "tool_choice", "format") if name in more}
    request = ModelRequest(messages=list(messages), **fields)
    arguments = converse_arguments(request, settings or {}, **more)
    assert refusal(arguments) is None
    return arguments


def thought(text: str = "Hm.", signature: str = "c2ln") -> Reasoning:
    return Reasoning(text=text, signature=signature, details={"format": "bedrock"})


def use(identifier: str = "c1", name: str = "add", **arguments: Any) -> ToolUse:
    return ToolUse(id=identifier, name=name, input=arguments)


def result(identifier: str = "c1", content: Any = "5", **more: Any) -> ToolResult:
    return ToolResult(tool_use_id=identifier, content=content, **more)


def reasoned(text: str = "Hm.", signature: str = "c2ln") -> dict[str, Any]:
    return {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}


# -- requests


def test_a_whole_turn():
    image = {"image": {"format": "png", "source": {"bytes": PNG}}}
    arguments = arguments_of(
        Message.system("Be brief."),
        Message.developer("Be kind."),
        Message.user(["Look:", Image(data=PNG, media_type="image/png")]),
        Message.assistant([thought(), Text("I will add."), use("c1", a=2), use("c2", a=3)]),
        Message.tool([
            result("c1", [Text("5"), Image(data=PNG, media_type="image/png")]),
            result("c2", {"sum": 6}, status="error"),
        ]),
        Message.user("And now?"),
        tools=(ADD, READ),
        settings={"inferenceConfig": {"maxTokens": 9}},
    )  # fmt: skip
    assert arguments == {
        "inferenceConfig": {"maxTokens": 9},
        "system": [{"text": "Be brief."}, {"text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"text": "Look:"}, image]},
            {
                "role": "assistant",
                "content": [
                    reasoned(),
                    {"text": "I will add."},
                    {"toolUse": {"toolUseId": "c1", "name": "add", "input": {"a": 2}}},
                    {"toolUse": {"toolUseId": "c2", "name": "add", "input": {"a": 3}}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "c1", "content": [{"text": "5"}, image]}},
                    {
                        "toolResult": {
                            "toolUseId": "c2",
                            "content": [{"text": '{"sum":6}'}],
                            "status": "error",
                        }
                    },
                    {"text": "And now?"},
                ],
            },
        ],
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": "add",
                        "description": "Add numbers.",
                        "inputSchema": {"json": ADD.schema},
                    }
                },
                {"toolSpec": {"name": "read", "inputSchema": {"json": {"type": "object", **READ.schema}}}},
            ]
        },
    }


def test_documents_have_kinds_and_names_of_their_own():
    content = [
        Document(data=b"%PDF", media_type="application/pdf", name="Report_2024 (final).v2.pdf"),
        Document(data=b"a,b", media_type="text/csv", name="x.csv"),
        Document(data=b"# A", media_type="text/markdown; charset=utf-8", name="x.md"),
        Document(data=b"{}", media_type="application/json", name="..."),
    ]
    blocks = arguments_of(Message.user(content))["messages"][0]["content"]
    assert [(block["document"]["format"], block["document"]["name"]) for block in blocks[:-1]] == [
        ("pdf", "Report 2024 (final) v2"),
        ("csv", "x"),
        ("md", "x (2)"),
        ("txt", "document"),
    ]
    assert blocks[-1] == {"text": "(See what is attached.)"}


@pytest.mark.parametrize(
    "block",
    [
        Image(data=b"x", media_type="image/tiff"),
        Document(data=b"x", media_type="application/zip", name="a.zip"),
        Document(data=b"\xff", media_type="text/plain", name="latin.txt"),
    ],
)
def test_what_cannot_be_sent_is_named(block):
    with pytest.raises(ModelRequestError) as caught:
        arguments_of(Message.user("Hello"), Message.user(["See", block]))
    assert str(caught.value).startswith("messages[1].content[1]: Bedrock takes")


def test_nothing_to_answer_is_refused():
    with pytest.raises(ModelRequestError, match="messages: there is none"):
        arguments_of(Message.system("Be brief."))


def test_what_is_blank_is_not_sent():
    arguments = arguments_of(
        Message.assistant("Welcome."),
        Message.user(["", " \n"]),
        Message.assistant([Text("\n"), use()]),
        Message.tool([result(content="")]),
        tools=(ADD,),
    )
    assert arguments["messages"] == [
        {"role": "user", "content": [{"text": "(The conversation begins.)"}]},
        {"role": "assistant", "content": [{"text": "Welcome."}]},
        {"role": "user", "content": [{"text": "(empty)"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c1", "name": "add", "input": {}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "(empty)"}]}}]},
    ]


@pytest.mark.parametrize(
    ("choice", "sent"), [("auto", None), ("required", {"any": {}}), ("add", {"tool": {"name": "add"}})]
)
def test_tool_choice(choice, sent):
    config = arguments_of(Message.user("Go"), tools=(ADD,), tool_choice=choice)["toolConfig"]
    assert config.get("toolChoice") == sent
    assert "toolConfig" not in arguments_of(Message.user("Go"), tool_choice=choice)


def test_tools_are_withheld_unless_the_conversation_has_called_some():
    turn = [Message.user("Go"), Message.assistant([use()]), Message.tool([result()])]
    assert "toolConfig" not in arguments_of(Message.user("Go"), tools=(ADD,), tool_choice="none")
    config = arguments_of(*turn, tools=(ADD,), tool_choice="none")["toolConfig"]
    assert [tool["toolSpec"]["description"] for tool in config["tools"]] == ["Add numbers."]
    assert arguments_of(*turn)["toolConfig"]["tools"][0]["toolSpec"]["description"] == "Not available now."


def test_an_answer_format():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    sent = arguments_of(
        Message.user("Go"),
        format=AnswerFormat(name="number", schema=schema, description="A number."),
        settings={"outputConfig": {"effort": "low"}},
    )["outputConfig"]
    form = sent["textFormat"]["structure"]["jsonSchema"]
    assert json.loads(form.pop("schema")) == {**schema, "additionalProperties": False}
    assert form == {"name": "number", "description": "A number."}
    assert (sent["effort"], sent["textFormat"]["type"]) == ("low", "json_schema")


def points(arguments: dict[str, Any]) -> list[Any]:
    """What stands in front of each cache point, and the point."""
    places = [arguments.get("toolConfig", {}).get("tools", []), arguments.get("system", [])]
    places += [message["content"] for message in arguments["messages"]]
    return [
        (next(iter(place[at - 1].values())), block["cachePoint"])
        for place in places
        for at, block in enumerate(place)
        if "cachePoint" in block
    ]


def test_points_stand_after_the_tools_the_instructions_and_the_last_message():
    messages = [Message.system("One"), Message.developer("Two"), Message.user("Hello")]
    found = points(arguments_of(*messages, tools=(READ, ADD), cache="5m"))
    assert [what["name"] if isinstance(what, dict) else what for what, _ in found] == ["add", "Two", "Hello"]
    assert [point for _, point in found] == [{"type": "default"}] * 3
    assert points(arguments_of(*messages, cache="1h"))[0][1] == {"type": "default", "ttl": "1h"}
    assert points(arguments_of(*messages)) == []


def test_messages_can_ask_for_points_and_the_last_four_win():
    def asking(text: str) -> Message:
        return Message.user(text, {"cache": True})

    assert points(arguments_of(Message.system("S"), asking("A"), Message.user("B"))) == [
        ("A", {"type": "default"})
    ]
    arguments = arguments_of(
        Message.system("S"), asking("A"), Message.assistant("1"), asking("B"), asking("C"), asking("D"), tools=(ADD,), cache="5m"
    )  # fmt: skip
    assert [what for what, _ in points(arguments)] == ["A", "B", "C", "D"]


# -- reasoning

BUDGET = {"additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 50}, "top_k": 5}}
OFF = {"thinking": {"type": "disabled"}, "top_k": 5}


def test_reasoning_goes_back_in_its_order_and_only_its_own():
    redacted = Reasoning(data=b"\x00\xff", details={"format": "bedrock"})
    foreign = Reasoning(text="Mine", signature="x", details={"format": "anthropic"})
    unsigned = Reasoning(text="Loose", details={"format": "bedrock"})
    arguments = arguments_of(
        Message.user("Go"),
        Message.assistant([thought("A"), Text("One"), foreign, redacted, unsigned, thought(""), use()]),
        Message.tool([result()]),
        tools=(ADD,),
        settings=BUDGET,
    )
    assert arguments["messages"][1]["content"][:-1] == [
        reasoned("A"),
        {"text": "One"},
        {"reasoningContent": {"redactedContent": b"\x00\xff"}},
        reasoned(""),
    ]
    assert arguments["additionalModelRequestFields"] == BUDGET["additionalModelRequestFields"]


def test_a_resumed_turn_is_thought_about_no_more():
    before = [Message.user("Add"), Message.assistant([thought("Old"), Text("Done.")])]
    turn = [Message.user("Go"), Message.assistant([Text("So"), use()]), Message.tool([result()])]
    arguments = arguments_of(*before, *turn, tools=(ADD,), settings=BUDGET)
    assert arguments["additionalModelRequestFields"] == OFF
    assert arguments["messages"][1]["content"] == [{"text": "Done."}]
    over = [Message.assistant("Five."), Message.user("Thanks")]
    arguments = arguments_of(*before, *turn, *over, tools=(ADD,), settings=BUDGET)
    assert arguments["additionalModelRequestFields"] == BUDGET["additionalModelRequestFields"]
    assert arguments["messages"][1]["content"][0] == reasoned("Old")


def test_adaptive_thinking_stays_on():
    turn = [Message.user("Go"), Message.assistant([use()]), Message.tool([result()])]
    settings = {"additionalModelRequestFields": {"thinking": {"type": "adaptive"}}}
    sent = arguments_of(*turn, tools=(ADD,), tool_choice="required", settings=settings)
    assert sent["additionalModelRequestFields"] == settings["additionalModelRequestFields"]


def test_a_forced_call_is_not_thought_about():
    arguments = arguments_of(Message.user("Go"), tools=(ADD,), tool_choice="required", settings=BUDGET)
    assert arguments["additionalModelRequestFields"] == OFF


def test_signatures_that_were_kept_go_back_to_their_places():
    answer = ConverseAnswer(keep=True)
    events = [*signed(0, "", "c2ln"), *redacted(1, b"\x00\xff"), *words(2, "So"), *call(3, "c1", "{}")]
    for event in [START, *events, *stop("tool_use")]:
        list(answer.feed(event))
    (ended,) = answer.end()
    (stored,) = transcript.sanitise([ended.message])
    messages = [Message.user("Go"), stored, Message.tool([result()])]
    sent = arguments_of(*messages, tools=(ADD,), kept=True, settings=BUDGET)
    assert sent["messages"][1]["content"] == [
        reasoned(""),
        {"reasoningContent": {"redactedContent": b"\x00\xff"}},
        {"text": "So"},
        {"toolUse": {"toolUseId": "c1", "name": "add", "input": {}}},
    ]
    assert arguments_of(*messages, tools=(ADD,), settings=BUDGET)["additionalModelRequestFields"] == OFF


ANY_TEXT = st.sampled_from(["", " ", "\n", "word", "two words ", "Grüße 👋"])
BLOCKS = st.one_of(
    ANY_TEXT.map(Text),
    st.just(Image(data=PNG, media_type="image/png")),
    st.sampled_from(["a.pdf", "a.txt", "", "ü" * 300]).map(
        lambda name: Document(data=b"x", media_type="text/plain", name=name)
    ),
    st.sampled_from(["a", "b", "b c", "x" * 70]).map(use),
    st.sampled_from(["a", "b", "b c", "x" * 70]).map(result),
    ANY_TEXT.map(thought),
    st.just(Reasoning(text="foreign", details={"format": "gemini"})),
)
TRANSCRIPTS = st.lists(
    st.builds(
        Message,
        st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
        st.lists(BLOCKS, max_size=4),
        st.sampled_from([{}, {"cache": True}]),
    ),
    max_size=8,
)


@given(
    TRANSCRIPTS,
    st.sampled_from([{}, BUDGET]),
    st.sampled_from(["auto", "required", "none", "add"]),
    st.booleans(),
)
def test_no_transcript_is_refused(messages, settings, choice, tools):
    """Whatever a transcript holds, what is made of it is what the provider takes."""
    view = transcript.for_model([transcript.admit(m) if m.role == "assistant" else m for m in messages])
    request = ModelRequest(
        messages=[Message.user("First"), *view], tools=(ADD,) if tools else (), tool_choice=choice
    )
    assert refusal(converse_arguments(request, settings, cache="5m")) is None


# -- answers

START = {"messageStart": {"role": "assistant"}}


def delta(index: int, form: dict[str, Any]) -> dict[str, Any]:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": form}}


def ended(index: int) -> dict[str, Any]:
    return {"contentBlockStop": {"contentBlockIndex": index}}


def words(index: int, *pieces: str) -> list[dict[str, Any]]:
    return [*(delta(index, {"text": piece}) for piece in pieces), ended(index)]


def signed(index: int, text: str, signature: str) -> list[dict[str, Any]]:
    said = [delta(index, {"reasoningContent": {"text": text}})] if text else []
    return [*said, delta(index, {"reasoningContent": {"signature": signature}}), ended(index)]


def redacted(index: int, data: bytes) -> list[dict[str, Any]]:
    return [delta(index, {"reasoningContent": {"redactedContent": data}}), ended(index)]


def call(index: int, identifier: str, *pieces: str) -> list[dict[str, Any]]:
    begun = {"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": identifier, "name": "add"}}}
    return [
        {"contentBlockStart": begun},
        *(delta(index, {"toolUse": {"input": piece}}) for piece in pieces),
        ended(index),
    ]


def stop(reason: str = "end_turn", **usage: int) -> list[dict[str, Any]]:
    return [
        {"messageStop": {"stopReason": reason}},
        {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}},
    ]


RECORDED = [
    START,
    *signed(0, "Let me add.", "EqQBCgI="),
    *redacted(1, b"\x00\xff"),
    *words(2, "Okay, ", "adding."),
    *call(3, "tooluse_1", "", '{"a": 2', ', "b": 3}'),
    *call(4, "tooluse_2"),
    *stop("tool_use", inputTokens=25, outputTokens=89, cacheReadInputTokens=100, cacheWriteInputTokens=10),
]
CONTENT = (
    Reasoning(text="Let me add.", signature="EqQBCgI=", details={"format": "bedrock"}),
    Reasoning(data=b"\x00\xff", details={"format": "bedrock"}),
    Text("Okay, adding."),
    ToolUse(id="tooluse_1", name="add", input={"a": 2, "b": 3}),
    ToolUse(id="tooluse_2", name="add"),
)


def read(*events: dict[str, Any]) -> list[Any]:
    answer = ConverseAnswer()
    told = [ours for event in events for ours in answer.feed(event)]
    assert answer.finished
    return [*told, *answer.end()]


def test_a_recorded_answer():
    *events, last = read(*RECORDED)
    assert events == [
        ReasoningDelta(text="Let me add."),
        TextDelta(text="Okay, "),
        TextDelta(text="adding."),
        ToolCallStarted(index=0, id="tooluse_1", name="add"),
        ToolCallArguments(index=0, arguments='{"a": 2'),
        ToolCallArguments(index=0, arguments=', "b": 3}'),
        ToolCallStarted(index=1, id="tooluse_2", name="add"),
    ]
    assert last.message.content == CONTENT
    assert (last.stop, last.malformed) == ("end", {})
    assert last.usage == Usage(
        input_tokens=25, output_tokens=89, cache_read_tokens=100, cache_write_tokens=10
    )


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("end_turn", "end"),
        ("tool_use", "end"),
        ("stop_sequence", "end"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "filter"),
        ("content_filtered", "filter"),
    ],
)
def test_the_reason_to_stop(reason, told):
    last = read(START, *words(0, "So"), *stop(reason))[-1]
    assert (last.stop, last.message.text) == (told, "So")


@pytest.mark.parametrize("reason", ["malformed_model_output", "malformed_tool_use"])
def test_a_model_that_wrote_nonsense(reason):
    with pytest.raises(ModelProtocolError, match=reason):
        read(START, *words(0, "So"), *stop(reason))


def test_a_window_that_is_full_from_the_start():
    with pytest.raises(ContextOverflowError):
        read(START, *stop("model_context_window_exceeded"))


def test_a_call_cut_by_the_output_limit():
    last = read(START, *call(0, "a"), *call(1, "b"), *stop("max_tokens"))[-1]
    assert last.malformed == {1: "the arguments are empty"}


def test_what_is_unknown_is_passed_over():
    server = {
        "contentBlockIndex": 0,
        "start": {"toolUse": {"toolUseId": "s", "name": "x", "type": "server_tool_use"}},
    }
    events = [
        START,
        {"contentBlockStart": server},
        delta(0, {"toolUse": {"input": "{"}}),
        ended(0),
        ended(1),
        {"vendorEvent": {}},
        {},
        delta(2, {"citation": {"title": "x"}}),
        *words(2, "A"),
    ]
    assert read(*events, *stop())[-1].message == Message.assistant("A")


@pytest.mark.parametrize("at", range(len(RECORDED) - 1))
def test_neighbours_that_changed_places_are_the_same_answer_or_none(at):
    kinds = [next(iter(event)) for event in RECORDED]
    if kinds[at] == kinds[at + 1] == "contentBlockDelta":
        return  # nothing in the form tells their order
    events = [*RECORDED[:at], RECORDED[at + 1], RECORDED[at], *RECORDED[at + 2 :]]
    answer = ConverseAnswer()
    try:
        for event in events:
            list(answer.feed(event))
    except ModelProtocolError:
        return
    if answer.finished:
        (last,) = answer.end()
        assert last.message.content == CONTENT


@pytest.mark.parametrize("until", range(len(RECORDED) - 2))
def test_a_cut_answer_is_never_a_whole_one(until):
    answer = ConverseAnswer()
    for event in RECORDED[: until + 1]:
        list(answer.feed(event))
    assert not answer.finished


@pytest.mark.parametrize(
    "event",
    [
        START,
        {
            "contentBlockStart": {
                "contentBlockIndex": 0,
                "start": {"toolUse": {"toolUseId": "a", "name": "b"}},
            }
        },
        delta(0, {"toolUse": {"input": "{"}}),
        delta(5, {"toolUse": {"input": "{"}}),
        {"contentBlockDelta": {"delta": {"text": "?"}}},
        {"contentBlockDelta": {}},
        {"messageStop": {}},
        {"contentBlockStop": {}},
    ],
)
def test_what_is_out_of_place_is_no_answer(event):
    with pytest.raises(ModelProtocolError):
        read(START, delta(0, {"text": "So"}), event)


def test_text_behind_the_reason_to_stop_is_no_answer():
    with pytest.raises(ModelProtocolError):
        read(START, *words(0, "So"), stop()[0], *words(1, "late"))
