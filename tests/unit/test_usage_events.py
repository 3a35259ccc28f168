"""Usage adds up; events are values with a JSON form."""

from __future__ import annotations

import typing

import msgspec
import pytest

import littleghost.events
from littleghost import Event, Message, ModelEvent, Text, ToolResult, ToolUse, Usage, events

CALL = ToolUse(id="1", name="f", input={"a": 1})
SAMPLES = [
    events.RunStarted(run_id="r", session_id="s", resumed=True),
    events.ModelStarted(step=1, model="m"),
    events.TextDelta(text="é\0"),
    events.ReasoningDelta(text="r"),
    events.ToolCallStarted(index=0, id="1", name="f"),
    events.ToolCallArguments(index=0, arguments='{"a":'),
    events.ToolCallReady(index=0, call=CALL),
    events.ToolStarted(call=CALL),
    events.ToolEnded(call=CALL, result=ToolResult(tool_use_id="1", content=[Text("x")])),
    events.UsageReported(usage=Usage(input_tokens=1), total=Usage(input_tokens=2)),
    events.Retrying(attempt=1, delay=0.5, error="ModelUnavailableError"),
    events.Committed(count=3, revision="x"),
    events.Suspended(pending=(CALL,)),
    events.OutputDelta(value={"total": 1}),
    events.Compacted(count=4, before=900, after=300),
    events.RunEnded(outcome="completed", text="done"),
]


def test_usage_adds_up_field_by_field():
    one = Usage(
        input_tokens=1, output_tokens=2, cache_read_tokens=4, cache_write_tokens=8, reasoning_tokens=16
    )
    assert one.total_tokens == 31
    assert one + one == Usage(
        input_tokens=2, output_tokens=4, cache_read_tokens=8, cache_write_tokens=16, reasoning_tokens=32
    )
    assert sum([one, one, one], Usage()).total_tokens == 93
    assert Usage().total_tokens == 0


def test_there_is_a_sample_of_every_event_and_every_one_is_exported():
    assert {type(event) for event in SAMPLES} == set(typing.get_args(Event))
    kinds = {*typing.get_args(Event), *typing.get_args(ModelEvent)}
    assert {kind.__name__ for kind in kinds} | {"Event", "ModelEvent"} == set(littleghost.events.__all__)


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_is_a_frozen_value_that_comes_back_from_json(event: typing.Any):
    numbered = msgspec.structs.replace(event, seq=7, at=1.5)
    back = msgspec.json.decode(msgspec.json.encode(numbered), type=Event)
    assert back == numbered
    assert type(back) is type(event)
    with pytest.raises(AttributeError):
        event.seq = 1


def test_a_model_ends_with_its_whole_answer():
    ended = events.ModelEnded(message=Message.assistant("x"))
    assert (ended.stop, ended.usage, ended.malformed) == ("end", Usage(), {})
    assert ended.malformed is not events.ModelEnded(message=Message.assistant("x")).malformed
