"""What is shown of a conversation that is too long, without a model: sizes, places to cut, texts to read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from littleghost import (
    Compaction,
    ConfigurationError,
    DataError,
    Document,
    Image,
    Message,
    Reasoning,
    Text,
    ToolResult,
    ToolUse,
    transcript,
)
from littleghost.runs.compaction import digest, place_to_cut, rendered, shortened, size_of


def use(id: str, **arguments: Any) -> ToolUse:
    return ToolUse(id=id, name="look", input=arguments)


def done(id: str, content: Any = "done") -> ToolResult:
    return ToolResult(tool_use_id=id, content=[content] if isinstance(content, str) else content)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"window": 0}, "compaction.window"),
        ({"window": 1.5}, "compaction.window"),
        ({"window": True}, "compaction.window"),
        ({"threshold": 0}, "compaction.threshold"),
        ({"threshold": 1.1}, "compaction.threshold"),
        ({"threshold": float("nan")}, "compaction.threshold"),
        ({"keep": "0.3"}, "compaction.keep"),
        ({"keep": 0.9}, "compaction.keep .* below compaction.threshold"),
        ({"model": 5}, "compaction.model"),
        ({"instructions": " "}, "compaction.instructions"),
    ],
)
def test_values_out_of_range_are_named(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Compaction(**wrong)
    with pytest.raises(DataError, match=r"compaction\.instructions"):
        Compaction(instructions="\ud800")


def test_sizes() -> None:
    assert size_of(Message.user("x" * 4000)) == pytest.approx(1000, rel=0.02)
    assert size_of(Message.user("漢" * 4000)) == pytest.approx(3000, rel=0.02), "three bytes each"
    picture = Image(data=b"\0" * 5_000_000, media_type="image/png")
    assert size_of(Message.user([picture])) == pytest.approx(1600, rel=0.02), "not its bytes"
    assert size_of(Message.tool([done("a", [picture])])) == pytest.approx(1600, rel=0.02)
    paper = Document(data=b"\0" * 50_000, media_type="application/pdf", name="a.pdf")
    assert size_of(Message.user([paper])) == pytest.approx(2500, rel=0.02)
    note = Document(data=b"x" * 4000, media_type="text/plain", name="a.txt")
    assert size_of(Message.user([note])) == pytest.approx(1000, rel=0.05)
    assert size_of(Message.assistant([use("a", text="x" * 4000)])) == pytest.approx(1000, rel=0.05)
    assert size_of(Message.tool([ToolResult(tool_use_id="a", content="x" * 4000)])) > 1000


CONVERSATION = [
    Message.user("one"),
    Message.assistant([use("a"), use("b")]),
    Message.tool([done("b")]),
    Message.tool([done("a")]),
    Message.assistant("It is done."),
    Message.user("two"),
    Message.assistant([use("a")]),
    Message.tool([done("a")]),
]


def test_a_cut_never_parts_a_call_from_its_result() -> None:
    sizes = [1] * len(CONVERSATION)
    cuts = [place_to_cut(CONVERSATION, sizes, 0, room) for room in range(10)]
    assert cuts == [6, 6, 6, 5, 4, 4, 4, 1, 1, 1]
    assert place_to_cut(CONVERSATION, sizes, 6, 0) == 6, "there is no further place"
    assert place_to_cut([], [], 0, 5) == 0


messages = st.lists(
    st.sampled_from(["user", "answer", "calls", "result a", "result b", "developer"]), max_size=14
)


@given(messages, st.integers(0, 14), st.integers(0, 14))
def test_whatever_the_conversation_the_parts_hold_whole_turns(
    kinds: list[str], start: int, room: int
) -> None:
    made = {
        "user": Message.user("u"),
        "developer": Message.developer("d"),
        "answer": Message.assistant("x"),
        "calls": Message.assistant([use("a"), use("b")]),
        "result a": Message.tool([done("a")]),
        "result b": Message.tool([done("b")]),
    }
    conversation = [made[kind] for kind in kinds]
    sizes = [1] * len(conversation)
    first = place_to_cut(conversation, sizes, 0, start)
    cut = place_to_cut(conversation, sizes, first, room)
    assert first <= cut <= max(first, len(conversation) - 1)
    for at in {first, cut}:
        parts = transcript.normalise(conversation[:at]) + transcript.normalise(conversation[at:])
        assert parts == transcript.normalise(conversation), "a result lies on the other side of the cut"


def test_what_is_summarised_reads_well_and_comes_in_pieces() -> None:
    said = [
        Message.developer("Be brief."),
        Message.user([Text("Look at this."), Image(data=b"\0" * 9999, media_type="image/png")]),
        Message.assistant([Reasoning(text="secret"), Text("I look."), use("a", sku="A7"), use("b")]),
        Message.tool([ToolResult(tool_use_id="b", content=[Text("no such thing")], status="error")]),
        Message.tool([done("a", "12")]),
    ]
    assert rendered(said, 10_000) == [
        (
            "user: Look at this.\nuser: [image image/png, not shown here]\n"
            'assistant: I look.\nassistant calls look {"sku":"A7"}\nassistant calls look {}\n'
            "result: 12\nerror: no such thing"
        )
    ]
    long = [Message.user(f"{number} " + letter * 3000) for number, letter in enumerate("ab漢d" * 5)]
    pieces = rendered(long, 2000)
    assert len(pieces) > 4
    assert all(len(piece.encode()) <= 8000 for piece in pieces)
    for number in range(20):
        assert any(f"user: {number} " in piece for piece in pieces)
    assert rendered([], 100) == []
    huge = Message.tool([done(str(number), "x" * 100_000) for number in range(40)])
    assert all(len(piece.encode()) <= 8000 for piece in rendered([huge], 2000))


def test_long_texts_lose_their_middle_and_images_their_bytes_until_all_fits() -> None:
    short = [Message.user("hello"), *CONVERSATION]
    assert shortened(short, 10_000) == short
    result = done("a", "begin" + "x" * 400_000 + "end")
    picture = Image(data=b"\0" * 9999, media_type="image/png")
    view = shortened(
        [Message.user([picture, Text("look")]), Message.assistant([use("a")]), Message.tool([result])], 5000
    )
    assert sum(map(size_of, view)) <= 5000
    text = view[2].tool_results[0].text
    assert text.startswith("begin")
    assert text.endswith("end")
    assert "characters are left out here" in text
    assert view[0].content[0] == picture, "it fits"
    assert view[1].tool_uses == (use("a"),)
    smaller = shortened(view, 1000)
    assert smaller[0].content[0] == Text("[image image/png, not shown here]")
    plain = ToolResult(tool_use_id="a", content="x" * 400_000)
    assert sum(map(size_of, shortened([Message.tool([plain])], 500))) <= 500
    assert shortened([], 5) == []


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    one = Message.assistant([use("a", x=1, y=2)])
    other = Message.assistant([use("a", y=2, x=1)])
    assert digest([one]) == digest([other])
    assert digest([one, one]) != digest([one])
    assert digest([Message.user("ab"), Message.user("c")]) != digest([Message.user("a"), Message.user("bc")])
