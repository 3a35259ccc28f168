"""What a run does with its model, its tools and its session."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from littleghost import (
    Agent,
    CancellationToken,
    CapabilityError,
    ConfigurationError,
    ConflictError,
    CredentialError,
    DataError,
    DeadlineExceeded,
    Image,
    LimitExceededError,
    MemoryStore,
    Message,
    ModelEnded,
    ModelProtocolError,
    ModelUnavailableError,
    OutputLimitError,
    Reasoning,
    Retrying,
    RunCancelled,
    RunContext,
    RunLimits,
    Runtime,
    Session,
    SessionBusyError,
    SessionNotFoundError,
    StoreUnavailableError,
    Text,
    TextDelta,
    ToolError,
    ToolUse,
    Usage,
    tool,
)
from littleghost.testing import FunctionModel, ScriptedModel


def calls(*uses: tuple[str, dict[str, Any]], text: str = "") -> Message:
    content: list[Any] = [Text(text)] if text else []
    return Message.assistant(
        [*content, *(ToolUse(id=f"c{i}", name=name, input=given) for i, (name, given) in enumerate(uses))]
    )


def results(run: Any) -> list[Any]:
    return [result for message in run.messages for result in message.tool_results]


@tool
async def stock(sku: str, context: RunContext) -> int:
    """Units on the shelf for one article."""
    context.state[sku] = 12
    return 12


async def test_an_agent_answers_with_the_help_of_a_tool() -> None:
    with ScriptedModel([calls(("stock", {"sku": "A7"})), "There are 12."]) as model:
        run = await Agent(model, instructions="Answer from stock().", tools=[stock]).ask("How many of A7?")
    assert (run.outcome, run.text, run.output, run.steps, run.error) == (
        "completed",
        "There are 12.",
        "There are 12.",
        2,
        None,
    )
    assert run.check() is run
    assert run.state == {"A7": 12}
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert results(run)[0].content == (Text("12"),)
    assert [message.role for message in model.requests[0].messages] == ["system", "user"]
    assert model.requests[0].tools[0].schema["required"] == ["sku"]
    assert model.requests[1].messages[-1].role == "tool"


async def test_ask_sync_works_inside_a_running_loop() -> None:
    assert Agent(ScriptedModel(["Yes."])).ask_sync("Well?").text == "Yes."


async def test_what_a_tool_returns() -> None:
    @tool
    def many(kind: str) -> Any:
        pixel = Image(data=b"\0", media_type="image/png")
        return {"text": "plain", "blocks": [Text("a"), pixel], "value": {"n": [1, None]}, "none": None}[kind]

    kinds = ["text", "blocks", "value", "none"]
    model = ScriptedModel([calls(*(("many", {"kind": kind}) for kind in kinds)), "ok"])
    answers = results(await Agent(model, tools=[many]).ask("go"))
    assert [[type(block).__name__ for block in answer.content] for answer in answers] == [
        ["Text"],
        ["Text", "Image"],
        ["Text"],
        ["Text"],
    ]
    assert [answer.content[0].text for answer in answers] == ["plain", "a", '{"n":[1,null]}', "null"]


async def test_what_the_model_learns_of_failures(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    async def refuse() -> None:
        raise ToolError("Ask for fewer than 5.")

    @tool
    async def burst() -> None:
        raise ValueError("password=hunter2")

    @tool
    async def surrogate() -> str:
        return "\ud800"

    @tool
    async def surrogate_block() -> Text:
        return Text("\ud800")

    @tool
    async def surrogate_error() -> str:
        raise ToolError("no file \udcff")

    @tool
    async def thinking() -> list[Any]:
        return [Text("a"), Reasoning(text="secret")]

    @tool
    async def not_json() -> float:
        return float("nan")

    tools = [refuse, burst, surrogate, surrogate_block, not_json, surrogate_error, thinking, stock]
    names = ["refuse", "burst", "surrogate", "surrogate_block", "not_json", "surrogate_error", "thinking"]
    model = ScriptedModel(
        [calls(*((name, {}) for name in names), ("nothing", {}), ("stock", {"sku": 5})), "ok"]
    )
    run = await Agent(model, tools=tools).ask("go")
    answers = results(run)
    assert run.outcome == "completed"
    assert {answer.status for answer in answers} == {"error"}
    texts = [answer.text for answer in answers]
    assert texts[0] == "Ask for fewer than 5."
    assert texts[1] == "Tool failed (ValueError)"
    assert "hunter2" not in str(run.messages)
    assert "lone surrogate" in texts[2]
    assert "lone surrogate" in texts[3]
    assert "not a finite number" in texts[4] or "JSON" in texts[4]
    assert texts[5] == "no file \ufffd"
    assert "secret" not in str(answers)
    assert "no tool named 'nothing'" in texts[7]
    assert "sku" in texts[8]
    assert "burst failed" in caplog.text


async def test_calls_that_are_no_json_object_are_answered_and_never_run() -> None:
    ran: list[str] = []

    @tool(idempotent=True)
    async def go(x: str = "default") -> str:
        ran.append(x)
        return x

    message = Message.assistant(
        [
            ToolUse(id="", name="go"),
            ToolUse(id="same", name="go", input={"x": "1"}),
            ToolUse(id="same", name="b@d"),
        ]
    )
    model = ScriptedModel([ModelEnded(message=message, malformed={0: "cut"}), "ok"])
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(Agent(model, tools=[go]), "go", session_id="s")
    assert ran == ["1"]
    uses = run.messages[1].tool_uses
    assert len({use.id for use in uses}) == 3
    assert all(use.id for use in uses)
    assert [result.status for result in results(run)] == ["error", "success", "error"]
    assert uses[0].input == {}
    stored = await Session(id="s", store=store).journal()
    cut_off = Session(id="cut", store=store)
    await cut_off.append(stored[:2])
    async with Runtime(session_store=store) as runtime:
        resumed = await runtime.resume(Agent(ScriptedModel(["ok"]), tools=[go]), session_id="cut")
    assert ran == ["1", "1"], "after a crash, a malformed call must not run either"
    assert results(resumed)[0].status == "error"


async def test_a_state_that_cannot_be_stored_is_a_tool_error_and_restored() -> None:
    @tool(exclusive=True)
    async def spoil(kind: str, context: RunContext) -> str:
        context.state["kept"] = "no"
        if kind == "bad":
            context.state["bad"] = {1: 2}
        return "done"

    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        await runtime.session("s").append([], state={"kept": "yes"})
        agent = Agent(ScriptedModel([calls(("spoil", {"kind": "bad"})), "ok"]), tools=[spoil])
        run = await runtime.ask(agent, "go", session_id="s")
        assert results(run)[0].status == "error"
        assert "state.bad" in results(run)[0].text
        assert run.state == {"kept": "yes"} == await runtime.session("s").state()


async def test_of_calls_side_by_side_only_the_bad_state_is_restored() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def count(context: RunContext) -> None:
        context.state["n"] = context.state.get("n", 0) + 1
        await both.wait()

    @tool
    async def spoil(context: RunContext) -> None:
        context.state["bad"] = b"x"
        await both.wait()

    run = await Agent(ScriptedModel([calls(("count", {}), ("spoil", {})), "ok"]), tools=[count, spoil]).ask(
        "go"
    )
    assert [result.status for result in results(run)].count("error") >= 1
    assert run.state == {"n": 1}


async def test_calls_of_one_turn_run_side_by_side_unless_one_is_exclusive() -> None:
    inside = most = 0

    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1

    shared = tool(name="shared")(work)
    alone = tool(name="alone", exclusive=True)(work)
    await Agent(ScriptedModel([calls(("shared", {}), ("shared", {})), "ok"]), tools=[shared]).ask("go")
    assert most == 2
    most = 0
    await Agent(
        ScriptedModel([calls(("shared", {}), ("alone", {}), ("shared", {})), "ok"]), tools=[shared, alone]
    ).ask("go")
    assert most == 1


async def test_a_tool_that_does_not_end_in_time_is_stopped() -> None:
    stopped = asyncio.Event()

    @tool(timeout=0.02)
    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            stopped.set()

    @tool(timeout=30)
    async def own_timeout() -> None:
        raise TimeoutError

    run = await Agent(
        ScriptedModel([calls(("slow", {}), ("own_timeout", {})), "ok"]), tools=[slow, own_timeout]
    ).ask("go")
    assert stopped.is_set()
    assert "did not end within 0.02 s" in results(run)[0].text
    assert results(run)[1].text == "Tool failed (TimeoutError)"


async def test_a_plain_function_runs_in_a_thread() -> None:
    @tool
    def where() -> str:
        return threading.current_thread().name

    run = await Agent(ScriptedModel([calls(("where", {})), "ok"]), tools=[where]).ask("go")
    assert results(run)[0].text != threading.current_thread().name


async def test_what_a_tool_knows_of_its_run() -> None:
    seen: list[RunContext] = []

    @tool
    async def look(context: RunContext) -> None:
        context.check()
        seen.append(context)

    token = CancellationToken()
    async with Runtime(session_store=MemoryStore()) as runtime:
        agent = Agent(ScriptedModel([calls(("look", {})), "ok"]), tools=[look])
        await runtime.ask(
            agent, "go", session_id=7, actor_id=8, deps={"database": 1}, timeout=60, cancellation=token
        )
        assert "database" not in str(await runtime.session(7, actor_id=8).load())
    (context,) = seen
    assert (context.session_id, context.actor_id, context.call_id, context.deps) == (
        "7",
        "8",
        "c0",
        {"database": 1},
    )
    assert context.idempotency_key
    assert context.deadline is not None
    assert 0 < context.deadline.remaining() <= 60
    for missing in ("sandbox", "workspace"):
        with pytest.raises(CapabilityError):
            getattr(context, missing)


@pytest.mark.parametrize(
    ("limits", "name", "steps"),
    [
        (RunLimits(turns=2), "turns", 2),
        (RunLimits(tool_calls=1), "tool_calls", 2),
        (RunLimits(tokens=30), "tokens", 3),
    ],
)
async def test_reaching_a_limit_keeps_the_work(limits: RunLimits, name: str, steps: int) -> None:
    def endless(request: Any) -> ModelEnded:
        return ModelEnded(
            message=calls(("stock", {"sku": "A7"}), text="On it. "), usage=Usage(input_tokens=10)
        )

    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(
            Agent(FunctionModel(endless), tools=[stock]), "go", session_id="s", limits=limits
        )
        assert (run.outcome, run.steps, run.text) == ("partial", steps, "On it. ")
        assert isinstance(run.error, LimitExceededError)
        assert run.error.limit == name
        with pytest.raises(LimitExceededError):
            run.check()
        assert run.messages == await runtime.session("s").history()
        assert run.messages[-1].role == "tool"
        if name == "tool_calls":
            assert [result.status for result in results(run)] == ["success", "error"]
        resumed = await runtime.resume(Agent(ScriptedModel(["Done."]), tools=[stock]), session_id="s")
        assert (resumed.outcome, resumed.text) == ("completed", "Done.")


async def test_wall_time_is_a_limit() -> None:
    @tool
    async def sleep() -> None:
        await asyncio.sleep(30)

    agent = Agent(
        ScriptedModel([calls(("sleep", {}), text="Wait.")]), tools=[sleep], limits=RunLimits(wall_time=0.05)
    )
    run = await agent.ask("go")
    assert (run.outcome, run.text) == ("partial", "Wait.")
    assert isinstance(run.error, DeadlineExceeded)


async def test_a_cut_answer_is_partial_and_can_be_gone_on_with() -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        cut = ModelEnded(message=Message.assistant("Once upon a"), stop="length")
        run = await runtime.ask(Agent(ScriptedModel([cut])), "tell", session_id="s")
        assert (run.outcome, run.text) == ("partial", "Once upon a")
        assert isinstance(run.error, OutputLimitError)
        model = ScriptedModel(["Once upon a time."])
        resumed = await runtime.resume(Agent(model), session_id="s")
        assert (resumed.outcome, resumed.text) == ("completed", "Once upon a time.")
        assert [message.role for message in model.requests[0].messages] == ["user"]
        later = ScriptedModel(["Sure."])
        await runtime.ask(Agent(later), "again", session_id="s")
        assert [message.text for message in later.requests[0].messages] == [
            "tell",
            "Once upon a time.",
            "again",
        ]


async def test_a_failing_model_is_a_failed_run_that_keeps_its_text() -> None:
    async def broken(request: Any) -> AsyncIterator[Any]:
        yield TextDelta(text="I was just ")
        raise ModelUnavailableError("connection lost")

    async with Runtime(session_store=MemoryStore()) as runtime:
        run = await runtime.ask(Agent(FunctionModel(lambda request: broken(request))), "hi", session_id="s")
        assert (run.outcome, run.text) == ("failed", "I was just ")
        with pytest.raises(ModelUnavailableError):
            run.check()
        resumed = await runtime.resume(Agent(ScriptedModel(["Here."])), session_id="s")
        assert (resumed.outcome, resumed.text) == ("completed", "Here.")


async def test_text_before_a_retry_is_void() -> None:
    async def flaky(request: Any) -> AsyncIterator[Any]:
        yield TextDelta(text="void ")
        yield Retrying(attempt=1, delay=0, error="ModelUnavailableError")
        yield TextDelta(text="kept ")
        raise ModelUnavailableError("gone")

    run = await Agent(FunctionModel(lambda request: flaky(request))).ask("hi")
    assert (run.outcome, run.text) == ("failed", "kept ")


async def test_a_model_that_ends_without_an_answer_has_failed() -> None:
    async def silent(request: Any) -> AsyncIterator[Any]:
        yield TextDelta(text="So")

    run = await Agent(FunctionModel(lambda request: silent(request))).ask("hi")
    assert (run.outcome, run.text) == ("failed", "So")
    assert isinstance(run.error, ModelProtocolError)


async def test_an_answer_that_cannot_be_stored_is_a_failed_run() -> None:
    run = await Agent(ScriptedModel([Message.assistant("hi", {"a": float("nan")})])).ask("hi")
    assert run.outcome == "failed"
    assert isinstance(run.error, ModelProtocolError)
    assert "metadata.a" in str(run.error)


async def test_what_a_tool_does_to_its_arguments_stays_with_it() -> None:
    @tool
    async def spoil(items: Any) -> str:
        items.append("spoiled")
        return "done"

    run = await Agent(ScriptedModel([calls(("spoil", {"items": [1]})), "ok"]), tools=[spoil]).ask("go")
    assert run.messages[1].tool_uses[0].input == {"items": [1]}


async def test_an_unexpected_error_of_a_model_is_a_failed_run_too(caplog: pytest.LogCaptureFixture) -> None:
    run = await Agent(ScriptedModel([KeyError("x")])).ask("hi")
    assert run.outcome == "failed"
    assert isinstance(run.error, KeyError)
    assert "failed" in caplog.text


async def test_configuration_errors_are_raised() -> None:
    with pytest.raises(CredentialError):
        await Agent(ScriptedModel([CredentialError("no key")])).ask("hi")
    with pytest.raises(ConfigurationError, match="openai:MODEL"):
        await Agent("nonsense").ask("hi")
    with pytest.raises(ConfigurationError, match="store"):
        await Runtime().ask(Agent(ScriptedModel([])), "hi", session_id="s")
    with pytest.raises(ConfigurationError, match="stock"):
        Agent(ScriptedModel([]), tools=[stock, stock])
    with pytest.raises(ConfigurationError, match="role"):
        await Agent(ScriptedModel([])).ask(Message.assistant("hi"))
    with pytest.raises(ConfigurationError, match="content"):
        await Agent(ScriptedModel([])).ask(("" and []) or [])
    with pytest.raises(ConfigurationError, match="busy"):
        await Runtime().ask(Agent(ScriptedModel([])), "hi", busy="maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="session_id"):
        await Runtime().resume(Agent(ScriptedModel([])), session_id=None)
    with pytest.raises(DataError, match="lone surrogate"):
        await Agent(ScriptedModel([])).ask("\ud800")
    with pytest.raises(ConfigurationError, match="workspace"):
        Runtime(sandbox=lambda workspace: None)  # type: ignore[arg-type,return-value]
    async with Runtime() as runtime:
        pass
    with pytest.raises(ConfigurationError, match="closed"):
        await runtime.ask(Agent(ScriptedModel([])), "hi")


async def test_a_stopped_run_that_stored_nothing_raises() -> None:
    token = CancellationToken()
    token.cancel("no")
    with pytest.raises(RunCancelled, match="no"):
        await Agent(ScriptedModel([])).ask("hi", cancellation=token)


async def test_reasoning_is_kept_in_the_run_and_not_stored() -> None:
    thinking = Message.assistant(
        [Reasoning(text="secret thought", signature="s"), *calls(("stock", {"sku": "A7"})).content]
    )
    model = ScriptedModel([thinking, "ok"])
    async with Runtime(session_store=MemoryStore()) as runtime:
        run = await runtime.ask(
            Agent(model, tools=[stock], instructions="secret instructions"), "go", session_id="s"
        )
        assert any(type(block).__name__ == "Reasoning" for block in model.requests[1].messages[2].content)
        stored = await runtime.session("s").load()
        assert "secret" not in str(stored)
        await runtime.session("s").checkpoint_result(run)
        assert (await runtime.session("s").load()) == stored


class Events(list[Any]):
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self]


async def collect(runtime: Runtime, *args: Any, **options: Any) -> tuple[Any, Events]:
    heard = Events()
    async with runtime.stream(*args, **options) as stream:
        with pytest.raises(ConfigurationError):
            stream.run  # noqa: B018
        async for event in stream:
            heard.append(event)
    return stream.run, heard


async def test_streamed_and_plain_runs_are_the_same() -> None:
    def script() -> ScriptedModel:
        return ScriptedModel([calls(("stock", {"sku": "A7"}), ("nothing", {}), text="Hm. "), "There are 12."])

    async with Runtime(session_store=MemoryStore()) as runtime:
        plain = await runtime.ask(Agent(script(), tools=[stock]), "How many?", session_id="plain")
        streamed, events = await collect(
            runtime, Agent(script(), tools=[stock]), "How many?", session_id="streamed"
        )
        for name in ("outcome", "text", "messages", "state", "usage", "steps"):
            assert getattr(plain, name) == getattr(streamed, name)
        assert await runtime.session("plain").journal() == await runtime.session("streamed").journal()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(abs(event.at - time.time()) < 600 for event in events)
    kinds = events.kinds()
    assert kinds[0] == "RunStarted"
    assert kinds[-1] == "RunEnded"
    assert kinds.index("Committed") < kinds.index("ModelStarted")
    assert (
        kinds.index("ToolCallReady")
        < kinds.index("ToolStarted")
        < kinds.index("ToolEnded", kinds.index("ToolStarted"))
    )
    assert kinds.count("ToolStarted") == 1
    assert kinds.count("ToolEnded") == 2
    assert (
        "".join(event.text for event in events if type(event).__name__ == "TextDelta") == "Hm. There are 12."
    )
    assert events[-1].outcome == "completed"


async def test_a_stream_resumes_with_no_message_and_raises_what_ask_raises() -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.session("s").append([Message.user("hi")])
        run, events = await collect(runtime, Agent(ScriptedModel(["Hello."])), None, session_id="s")
        assert run.text == "Hello."
        assert events[0].resumed
        with pytest.raises(SessionNotFoundError):
            await collect(runtime, Agent(ScriptedModel([])), None, session_id="none")


async def test_a_slow_reader_slows_the_model_and_not_the_memory() -> None:
    from littleghost import TextDelta
    from littleghost.runs import streaming

    made = 0

    async def chatty(request: Any) -> AsyncIterator[Any]:
        nonlocal made
        for _ in range(streaming.QUEUE * 3):
            made += 1
            yield TextDelta(text="x")
        yield ModelEnded(message=Message.assistant("x" * streaming.QUEUE * 3))

    agent = Agent(FunctionModel(lambda request: chatty(request)))
    async with Runtime() as runtime, runtime.stream(agent, "go") as stream:
        for _ in range(streaming.QUEUE * 4):
            await asyncio.sleep(0)
        assert made <= streaming.QUEUE + 10
        async for _ in stream:
            pass
        assert stream.run.outcome == "completed"
    async with Runtime() as runtime, runtime.stream(agent, "go") as stream:
        await asyncio.sleep(0.01)
    assert stream.run.outcome == "cancelled"


async def test_resuming_with_nothing_open() -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        with pytest.raises(SessionNotFoundError):
            await runtime.resume(Agent(ScriptedModel([])), session_id="s")
        await runtime.session("s").append([Message.user("hi"), Message.assistant("Hello.")], state={"a": 1})
        run = await runtime.resume(Agent(ScriptedModel([])), session_id="s")
        assert (run.outcome, run.text, run.steps, run.state) == ("completed", "Hello.", 0, {"a": 1})
        with pytest.raises(SessionNotFoundError):
            await runtime.resume(Agent(ScriptedModel([])), session_id="s", actor_id="someone else")


async def test_asking_in_an_interrupted_session_settles_it_first() -> None:
    ran: list[str] = []

    @tool(idempotent=True)
    async def again() -> str:
        ran.append("again")
        return "fresh"

    @tool
    async def never() -> str:
        ran.append("never")
        return "no"

    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.session("s").append([Message.user("one"), calls(("never", {}), ("again", {}))])
        model = ScriptedModel(["Two."])
        run = await runtime.ask(Agent(model, tools=[again, never]), "two", session_id="s")
        assert ran == ["again"]
        assert [message.role for message in run.messages] == [
            "user",
            "assistant",
            "tool",
            "user",
            "assistant",
        ]
        assert [(result.status, result.tool_use_id) for result in results(run)] == [
            ("error", "c0"),
            ("success", "c1"),
        ]
        assert "interrupted" in results(run)[0].text
        assert [message.role for message in model.requests[0].messages] == [
            "user",
            "assistant",
            "tool",
            "user",
        ]


async def test_one_run_at_a_time() -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: Any) -> str:
        began.set()
        await go_on.wait()
        return "first"

    async with Runtime(session_store=MemoryStore()) as runtime:
        first = asyncio.create_task(runtime.ask(Agent(FunctionModel(slow)), "1", session_id="s"))
        await began.wait()
        with pytest.raises(SessionBusyError):
            await runtime.ask(Agent(ScriptedModel(["no"])), "2", session_id="s", busy="raise")
        with pytest.raises(SessionBusyError):
            await runtime.ask(Agent(ScriptedModel(["no"])), "2", session_id="s", timeout=0.01)
        token = CancellationToken()
        gives_up = asyncio.create_task(
            runtime.ask(Agent(ScriptedModel(["no"])), "2", session_id="s", cancellation=token)
        )
        await asyncio.sleep(0)
        token.cancel()
        with pytest.raises(RunCancelled):
            await gives_up
        other = await runtime.ask(
            Agent(ScriptedModel(["other"])), "2", session_id="s", actor_id="another", busy="raise"
        )
        assert other.text == "other"
        second = asyncio.create_task(runtime.ask(Agent(ScriptedModel(["second"])), "2", session_id="s"))
        await asyncio.sleep(0)
        go_on.set()
        assert (await first).text == "first"
        assert [message.text for message in (await second).messages] == ["1", "first", "2", "second"]


async def test_a_writer_from_outside_is_a_conflict_and_stops_the_tools() -> None:
    stopped = asyncio.Event()
    store = MemoryStore()

    @tool
    async def meddle() -> str:
        await Session(id="s", store=store).append([Message.user("me too")])
        return "done"

    @tool
    async def wait() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            stopped.set()

    async with Runtime(session_store=store) as runtime:
        with pytest.raises(ConflictError):
            await runtime.ask(
                Agent(ScriptedModel([calls(("meddle", {}), ("wait", {}))]), tools=[meddle, wait]),
                "go",
                session_id="s",
            )
        assert stopped.is_set()
        run = await runtime.resume(Agent(ScriptedModel(["ok"]), tools=[meddle, wait]), session_id="s")
        assert run.outcome == "completed"
        assert {result.status for result in results(run)} == {"error"}


async def test_a_store_that_fails_is_an_error_and_what_was_stored_can_be_gone_on_with() -> None:
    class Failing(MemoryStore):
        left = 2

        async def append(self, *args: Any, **options: Any) -> Any:
            if Failing.left == 0:
                raise StoreUnavailableError("disk full")
            Failing.left -= 1
            return await super().append(*args, **options)

    async with Runtime(session_store=Failing()) as runtime:
        agent = Agent(
            FunctionModel(
                lambda request: calls(("stock", {"sku": "A7"})) if len(request.messages) < 3 else "ok"
            ),
            tools=[stock],
        )
        with pytest.raises(StoreUnavailableError):
            await runtime.ask(agent, "go", session_id="s")
        Failing.left = 99
        run = await runtime.resume(agent, session_id="s")
        assert (run.outcome, run.text) == ("completed", "ok")
        assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]


async def test_what_a_factory_makes_is_closed_and_what_the_caller_made_is_not() -> None:
    closed: list[str] = []

    class Closing(MemoryStore):
        async def aclose(self) -> None:
            closed.append("store")

    async with Runtime(session_store=Closing()) as runtime:
        await runtime.ask(Agent(ScriptedModel(["ok"])), "hi", session_id="s")
    assert closed == []
    async with Runtime(session_store=Closing) as runtime:
        await runtime.ask(Agent(ScriptedModel(["ok"])), "hi", session_id="s")
        assert runtime.session_store is runtime.session_store
    assert closed == ["store"]


async def test_a_tool_that_will_not_stop_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("littleghost.tools.contract.Tool.grace", 0.05)
    release = asyncio.Event()

    @tool
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    run = await Agent(ScriptedModel([calls(("stubborn", {}))]), tools=[stubborn]).ask("go", timeout=1)
    assert run.outcome == "partial"
    assert results(run)[0].status == "error"
    assert "stubborn" in caplog.text
    release.set()
    await asyncio.sleep(0.01)
