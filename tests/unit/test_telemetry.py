"""Spans: their names, parents, attributes and errors; and no content in any of them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import littleghost
from littleghost import (
    Agent,
    ConfigurationError,
    ConflictError,
    Image,
    MemoryStore,
    Message,
    ModelEnded,
    ModelUnavailableError,
    Reasoning,
    RunContext,
    RunLimits,
    Runtime,
    Session,
    StoreUnavailableError,
    ToolError,
    ToolUse,
    Usage,
    telemetry,
    tool,
)
from littleghost.testing import ScriptedModel

SECRET = "sekrit"  # in everything that a conversation holds, and in nothing that a span does
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OPERATION = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    for span in exporter.get_finished_spans():
        assert SECRET not in span.to_json(), "content in a span"


def tree(exporter: InMemorySpanExporter) -> dict[str, Any]:
    """The names of the finished spans, children below their parents, in the order they began."""
    spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def below(parent: ReadableSpan | None) -> dict[str, Any]:
        mine = [
            span
            for span in spans
            if (span.parent.span_id if span.parent else None) == (parent.context.span_id if parent else None)
        ]
        return {
            f"{span.name} #{index}" if [s.name for s in mine].count(span.name) > 1 else span.name: below(span)
            for index, span in enumerate(mine)
        }

    return below(None)


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


@tool
def look(word: str, context: RunContext) -> str:
    """Look."""
    context.state["word"] = word
    return word


@tool
async def fail(word: str) -> str:
    """Fail."""
    raise ToolError(word)


def call(name: str, id: str = "1") -> ToolUse:
    return ToolUse(id=id, name=name, input={"word": SECRET})


def agent(*steps: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(steps), instructions=SECRET, tools=[look, fail], name="helper", **options)


async def test_a_run_with_a_tool_in_a_session(exporter: InMemorySpanExporter):
    store = MemoryStore()
    usage = Usage(input_tokens=11, output_tokens=7)
    steps = [ModelEnded(message=Message.assistant([SECRET, call("look")]), usage=usage), SECRET]
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(agent(*steps), SECRET, session_id="s", actor_id="a")
    assert run.check().state == {"word": SECRET}
    assert tree(exporter) == {
        "invoke_agent helper": {
            "session_store.load": {},
            "session_store.append #1": {},
            "chat scripted #2": {},
            "session_store.append #3": {},
            "execute_tool look": {},
            "session_store.append #5": {},
            "chat scripted #6": {},
            "session_store.append #7": {},
        },
    }
    (invoked,) = named(exporter, "invoke_agent helper")
    assert dict(invoked.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "littleghost",
        "gen_ai.agent.name": "helper",
        "gen_ai.conversation.id": "s",
        "gen_ai.request.model": "scripted",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "littleghost.run_id": run.id,
        "littleghost.resumed": False,
        "littleghost.outcome": "completed",
    }
    asked = dict(named(exporter, "chat scripted")[0].attributes or {})
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "littleghost",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ("tool_call",),
    }
    first = asked.pop("gen_ai.response.time_to_first_chunk")
    assert isinstance(first, float)
    assert first >= 0
    assert asked == expected
    assert {span.name: span.kind.name for span in exporter.get_finished_spans()} == {
        "invoke_agent helper": "INTERNAL",
        "chat scripted": "CLIENT",
        "execute_tool look": "INTERNAL",
        "session_store.load": "INTERNAL",
        "session_store.append": "INTERNAL",
    }
    (executed,) = named(exporter, "execute_tool look")
    assert dict(executed.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.description": "Look.",
        "gen_ai.tool.call.id": "1",
    }
    assert dict(named(exporter, "session_store.append")[0].attributes or {}) == {
        "littleghost.store": "MemoryStore"
    }
    assert all(span.status.is_unset for span in exporter.get_finished_spans())


USAGE = Usage(input_tokens=10, cache_read_tokens=3, cache_write_tokens=2, output_tokens=5, reasoning_tokens=4)


async def test_all_tokens_are_told_and_those_of_caches_and_reasoning_apart(exporter: InMemorySpanExporter):
    async with Runtime() as runtime:
        await runtime.ask(agent(ModelEnded(message=Message.assistant("x"), usage=USAGE, stop="length")), "x")
    told = dict(named(exporter, "chat scripted")[0].attributes or {})
    usage = {name: value for name, value in told.items() if name.startswith("gen_ai.usage.")}
    assert usage == {
        "gen_ai.usage.input_tokens": 15,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.usage.cache_creation.input_tokens": 2,
        "gen_ai.usage.reasoning.output_tokens": 4,
    }
    assert told["gen_ai.response.finish_reasons"] == ("length",)


async def test_options_are_told_that_the_conventions_know(exporter: InMemorySpanExporter):
    settings = {"temperature": 0.5, "max_tokens": 7, "seed": True, "user": SECRET, "top_p": SECRET}
    async with Runtime() as runtime:
        await runtime.ask(agent("x", settings=settings), "x")
    told = dict(named(exporter, "chat scripted")[0].attributes or {})
    requested = {name: value for name, value in told.items() if name.startswith("gen_ai.request.")}
    assert requested == {
        "gen_ai.request.model": "scripted",
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 7,
    }


def exchange() -> Agent:
    use = ToolUse(id="1", name="look", input={"word": "moon"})
    return Agent(
        ScriptedModel([[Reasoning(text="hm"), "I look.", use], "Found."]),
        instructions="Be brief.",
        tools=[look],
    )


async def test_content_is_recorded_where_it_is_asked_for(exporter: InMemorySpanExporter):
    question = Message.user(["What?", Image(data=b"123", media_type="image/png")])
    async with Runtime(capture_content=True) as runtime:
        await runtime.ask(exchange(), question)
    first, second = named(exporter, "chat scripted")
    asked = [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "What?"},
                {"type": "image", "mime_type": "image/png", "name": None, "bytes": 3},
            ],
        }
    ]
    said = {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "hm"},
            {"type": "text", "content": "I look."},
            {"type": "tool_call", "id": "1", "name": "look", "arguments": {"word": "moon"}},
        ],
    }
    answered = {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "1", "response": "moon"}],
    }
    told = {
        key: json.loads(str(value)) for key, value in (first.attributes or {}).items() if "messages" in key
    }
    assert told == {
        "gen_ai.input.messages": asked,
        "gen_ai.output.messages": [{**said, "finish_reason": "tool_call"}],
    }
    attributes = dict(second.attributes or {})
    assert json.loads(str(attributes["gen_ai.input.messages"])) == [*asked, said, answered]
    assert json.loads(str(attributes["gen_ai.system_instructions"])) == [
        {"type": "text", "content": "Be brief."}
    ]
    (definition,) = json.loads(str(attributes["gen_ai.tool.definitions"]))
    assert (definition["name"], definition["parameters"]["required"]) == ("look", ["word"])
    (executed,) = named(exporter, "execute_tool look")
    told = dict(executed.attributes or {})
    assert json.loads(str(told["gen_ai.tool.call.arguments"])) == {"word": "moon"}
    assert told["gen_ai.tool.call.result"] == "moon"


async def test_content_passes_through_the_redactor(exporter: InMemorySpanExporter):
    seen: set[str] = set()

    def redact(name: str, value: Any) -> Any:
        seen.add(name)
        if name == "gen_ai.tool.call.result":
            return None
        if name == "gen_ai.tool.call.arguments":
            return dict.fromkeys(value, "***")
        raise ZeroDivisionError(SECRET)

    async with Runtime(capture_content=redact) as runtime:
        await runtime.ask(agent(call("look"), "done"), SECRET)
    (executed,) = named(exporter, "execute_tool look")
    told = dict(executed.attributes or {})
    assert told["gen_ai.tool.call.arguments"] == '{"word":"***"}'
    assert "gen_ai.tool.call.result" not in told
    assert seen >= {"gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"}
    # and what it fails on is left out, which the fixture checks


def test_what_can_capture_content_is_checked():
    with pytest.raises(ConfigurationError, match="capture_content must be True, False or a function"):
        Runtime(capture_content="yes")  # pyright: ignore[reportArgumentType]


async def test_metrics_of_model_calls(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    async with Runtime() as runtime:
        await runtime.ask(agent(ModelEnded(message=Message.assistant("x"), usage=USAGE)), "x")
        await runtime.ask(agent(ModelUnavailableError(SECRET)), "x")
    found: dict[str, list[tuple[dict[str, Any], int, float]]] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        found[metric.name] = [
            (dict(point.attributes or {}), point.count, point.sum)  # pyright: ignore[reportAttributeAccessIssue]
            for point in metric.data.data_points
        ]
    base = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "littleghost",
        "gen_ai.request.model": "scripted",
    }
    assert found.pop("gen_ai.client.token.usage") == [
        ({**base, "gen_ai.token.type": "input"}, 1, 15),
        ({**base, "gen_ai.token.type": "output"}, 1, 9),
    ]
    durations = found.pop("gen_ai.client.operation.duration")
    assert [(attributes, count) for attributes, count, _ in durations] == [
        (base, 1),
        ({**base, "error.type": "ModelUnavailableError"}, 1),
    ]
    assert list(found) == ["gen_ai.client.operation.time_to_first_chunk"]


async def test_tools_of_one_turn_are_siblings(exporter: InMemorySpanExporter):
    async with Runtime() as runtime:
        await runtime.ask(agent(Message.assistant([call("look", "1"), call("look", "2")]), "done"), "x")
    (invoked,) = named(exporter, "invoke_agent helper")
    assert [span.parent.span_id for span in named(exporter, "execute_tool look") if span.parent] == [
        invoked.context.span_id
    ] * 2


async def test_a_resumed_run_says_so(exporter: InMemorySpanExporter):
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.ask(agent("x"), "x", session_id="s")
        await runtime.resume(agent(), session_id="s")
    resumed = [
        dict(span.attributes or {})["littleghost.resumed"] for span in named(exporter, "invoke_agent helper")
    ]
    assert resumed == [False, True]


async def test_a_resumed_run_joins_the_trace_of_the_one_that_was_killed(exporter: InMemorySpanExporter):
    store = MemoryStore()
    killed = Session(id="s", store=store)
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(agent(call("fail"), ModelUnavailableError()), "x", session_id="s")
        (first,) = named(exporter, "invoke_agent helper")
        assert (await killed.metadata())["littleghost"]["trace"] == (
            f"00-{first.context.trace_id:032x}-{first.context.span_id:016x}-{first.context.trace_flags:02x}"
        )
        for _ in range(2):
            with telemetry.span("worker"):
                await runtime.resume(agent(ModelUnavailableError()), session_id="s")
        await runtime.ask(agent("y"), "another", session_id="s")
        with telemetry.span("after"):
            pass
    _, *resumed, last = named(exporter, "invoke_agent helper")
    workers = named(exporter, "worker")
    assert [ids(span.parent) for span in resumed] == [ids(first.context)] * 2
    assert [ids(span.links[0].context) for span in resumed] == [ids(worker.context) for worker in workers]
    assert [last.parent, list(last.links)] == [None, []]
    assert named(exporter, "after")[0].parent is None
    loads = [span for span in named(exporter, "session_store.load") if span.parent]  # one was the test's
    assert [ids(span.parent) for span in loads] == [ids(span.context) for span in (first, *workers, last)]


async def test_without_a_recorder_no_trace_is_noted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(agent("x"), "x", session_id="s")
    assert "trace" not in (await Session(id="s", store=store).metadata())["littleghost"]


def ids(context: Any) -> tuple[int, int]:
    """What tells a span from all others."""
    return context.trace_id, context.span_id


def failed(span: ReadableSpan) -> str | None:
    """The class name of the error, checked to be all that is told of it."""
    assert not span.events, "an exception's text is content"
    error = dict(span.attributes or {}).get("error.type")
    assert (span.status.status_code is trace.StatusCode.ERROR) == (error is not None)
    assert span.status.description == error
    return str(error) if error is not None else None


async def test_a_failed_tool_fails_its_span_and_not_the_run(exporter: InMemorySpanExporter):
    async with Runtime() as runtime:
        await runtime.ask(agent(call("fail"), "done"), "x")
    assert failed(named(exporter, "execute_tool fail")[0]) == "ToolError"
    assert failed(named(exporter, "invoke_agent helper")[0]) is None


async def test_a_failed_model_fails_its_span_and_the_run(exporter: InMemorySpanExporter):
    async with Runtime() as runtime:
        run = await runtime.ask(agent(ModelUnavailableError(SECRET)), "x")
    assert run.outcome == "failed"
    assert failed(named(exporter, "chat scripted")[0]) == "ModelUnavailableError"
    (invoked,) = named(exporter, "invoke_agent helper")
    assert failed(invoked) == "ModelUnavailableError"
    assert dict(invoked.attributes or {})["littleghost.outcome"] == "failed"


async def test_a_limit_that_was_reached_is_the_outcome(exporter: InMemorySpanExporter):
    async with Runtime() as runtime:
        run = await runtime.ask(agent(call("look"), limits=RunLimits(turns=1)), "x")
    assert run.outcome == "partial"
    assert (
        dict(named(exporter, "invoke_agent helper")[0].attributes or {})["littleghost.outcome"] == "partial"
    )


async def test_a_failed_store_operation(exporter: InMemorySpanExporter):
    class Down(MemoryStore):
        async def append(self, id: str, **given: Any) -> Any:
            raise StoreUnavailableError(SECRET)

    with pytest.raises(StoreUnavailableError):
        await Session(id=SECRET, actor_id=SECRET, store=Down()).append([Message.user(SECRET)])
    assert failed(named(exporter, "session_store.append")[0]) == "StoreUnavailableError"
    assert failed(named(exporter, "session_store.load")[0]) is None


async def test_every_operation_of_a_session_has_a_span(exporter: InMemorySpanExporter):
    session = Session(id="s", store=MemoryStore())
    await session.append([Message.user("x")])
    await session.replace([Message.user("y")])
    await session.project_conversation([Message.user("x")])
    await session.fork("t")
    await session.delete()
    names = [
        f"session_store.{name}"
        for name in ("load", "append", "replace", "project_conversation", "fork", "delete")
    ]
    assert list(tree(exporter)) == names


async def test_an_operation_is_the_parent_of_store_calls(exporter: InMemorySpanExporter):
    session = Session(id="s", store=MemoryStore(), operation_id=OPERATION)
    await session.append([Message.user("x")])
    with trace.get_tracer("test").start_as_current_span("outer"):
        await session.append([Message.user("x")])
        await session.checkpoint([Message.user("z")], parent_operation_id=None)
    stores = [span for span in exporter.get_finished_spans() if span.name.startswith("session_store")]
    parents = [
        f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" for span in stores[:3] if span.parent
    ]
    assert parents == [f"{TRACE_ID}-{SPAN_ID}"] * 3
    (outer,) = named(exporter, "outer")
    assert stores[3].parent == outer.context


async def test_what_happens_inside_a_span_is_its_child_and_not_the_operations(exporter: InMemorySpanExporter):
    with telemetry.operation(OPERATION):
        with telemetry.span("one"), telemetry.span("inner"):
            await asyncio.create_task(_spanned("task"))
        with telemetry.span("two"):
            pass
    inner, task, one, two = (named(exporter, name)[0] for name in ("inner", "task", "one", "two"))
    assert f"{one.parent.span_id:016x}" == f"{two.parent.span_id:016x}" == SPAN_ID
    assert inner.parent == one.context
    assert task.parent == inner.context
    with telemetry.span("after"):
        pass
    assert named(exporter, "after")[0].parent is None


async def _spanned(name: str) -> None:
    with telemetry.span(name):
        await asyncio.sleep(0)


def test_the_current_operation_can_be_handed_on(exporter: InMemorySpanExporter):
    assert telemetry.current_operation() is None
    with telemetry.span("here") as span:
        span.set("number", 1)
        handed = telemetry.current_operation()
    with telemetry.operation(handed), telemetry.span("there"):
        pass
    here, there = named(exporter, "here")[0], named(exporter, "there")[0]
    assert (there.parent.span_id, there.context.trace_id) == (here.context.span_id, here.context.trace_id)
    assert dict(here.attributes or {}) == {"number": 1}


@pytest.mark.parametrize(
    "id",
    [
        None,
        "",
        "run-7",
        "00-xyz-abc-01",
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00-{'z' * 32}-{SPAN_ID}-01",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
    ],
)
def test_an_operation_id_of_another_form_changes_nothing(exporter: InMemorySpanExporter, id: str | None):
    with telemetry.span("outer"), telemetry.operation(id), telemetry.span("inner"):
        pass
    assert named(exporter, "inner")[0].parent == named(exporter, "outer")[0].context


@pytest.mark.parametrize("error", [ConflictError(SECRET), KeyError(SECRET), asyncio.CancelledError(SECRET)])
def test_an_exception_that_leaves_a_span_is_told_by_class_and_goes_on(
    exporter: InMemorySpanExporter, error: BaseException
):
    with pytest.raises(type(error)) as caught, telemetry.span("x"):
        raise error
    assert caught.value is error
    assert failed(named(exporter, "x")[0]) == type(error).__name__


def test_without_opentelemetry_spans_are_one_object_that_does_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    one, two = telemetry.span("a"), telemetry.span("b", {"x": 1})
    assert one is two
    with one as span:
        span.set("x", 1)
        span.fail(KeyError())
        assert telemetry.current_operation() is None
    with pytest.raises(ZeroDivisionError), one:
        raise ZeroDivisionError


async def test_where_nobody_has_set_up_an_exporter_spans_are_that_one_object_too(
    monkeypatch: pytest.MonkeyPatch,
):
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a span for nobody")

    monkeypatch.setattr(trace, "get_tracer", never)
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    assert telemetry.span("a") is telemetry.NOTHING
    async with Runtime(session_store=MemoryStore()) as runtime:
        run = await runtime.ask(agent(call("look"), "done"), "x", session_id="s")
    assert run.text == "done"


async def test_metrics_need_no_spans(monkeypatch: pytest.MonkeyPatch):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: provider)
    async with Runtime() as runtime:
        await runtime.ask(agent("x"), "x")
    data = reader.get_metrics_data()
    assert data is not None
    names = {metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    assert "gen_ai.client.operation.duration" in names


def test_a_run_does_not_import_opentelemetry():
    code = (
        "import sys; from littleghost import Agent; from littleghost.testing import ScriptedModel; "
        "assert Agent(ScriptedModel(['x'])).ask_sync('x').text == 'x'; "
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(littleghost.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
