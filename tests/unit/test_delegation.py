"""Agents that use agents as tools."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from littleghost import (
    Agent,
    CancellationToken,
    ConfigurationError,
    HostSandbox,
    LimitExceededError,
    MemoryStore,
    Message,
    ModelEnded,
    ModelUnavailableError,
    RunContext,
    RunLimits,
    Runtime,
    Session,
    Text,
    ToolError,
    ToolUse,
    UnsupportedError,
    Usage,
    sync,
    tool,
)
from littleghost.testing import FunctionModel, ScriptedModel


def give(task: str, *, name: str = "expert", id: str = "c") -> Message:
    return Message.assistant([ToolUse(id=id, name=name, input={"task": task})])


@dataclass
class Stock:
    sku: str
    count: int


def answered(run: Any) -> list[Any]:
    return [result for message in run.messages for result in message.tool_results]


async def sessions(store: MemoryStore, actor_id: str | None = None) -> dict[str, Any]:
    return {info.id: info for info in (await store.sessions(actor_id=actor_id)).items}


async def test_the_answer_of_an_agent_is_the_result_of_a_tool() -> None:
    inner = ScriptedModel(["Four."])
    expert = Agent(inner, instructions="Be exact.", name="expert").as_tool(description="Knows sums.")
    outer = ScriptedModel([give("2 + 2?"), "It is four."])
    run = await Agent(outer, tools=[expert]).ask("How much is it?")
    assert (run.outcome, run.text) == ("completed", "It is four.")
    assert [(result.status, result.text) for result in answered(run)] == [("success", "Four.")]
    spec = outer.requests[0].tools[0]
    assert (spec.name, spec.description) == ("expert", "Knows sums.")
    assert spec.schema["required"] == ["task"]
    assert list(spec.schema["properties"]) == ["task"]
    assert [message.text for message in inner.requests[0].messages] == ["Be exact.", "2 + 2?"]


async def test_what_it_may_be_called_and_take() -> None:
    @dataclass
    class Order:
        sku: str
        count: int = 1

    agent = Agent(inner := ScriptedModel(["Done."]), name="The Buyer!")
    assert agent.as_tool().name == "The_Buyer_"
    buyer = agent.as_tool("buy", input=Order)
    assert list(buyer.schema["properties"]) == ["sku", "count"]
    call = Message.assistant([ToolUse(id="c", name="buy", input={"sku": "A7"})])
    wrong = Message.assistant([ToolUse(id="c", name="buy", input={"count": 2})])
    run = await Agent(ScriptedModel([wrong, call, "ok"]), tools=[buyer]).ask("Go")
    assert [result.status for result in answered(run)] == ["error", "success"]
    assert "sku" in answered(run)[0].text
    assert inner.requests[0].messages[0].text == '{"sku":"A7"}'
    wrongs: list[dict[str, Any]] = [
        {"name": "not a name"},
        {"name": ""},
        {"input": int},
        {"input": list[str]},
        {"input": 5},
        {"timeout": 0},
        {"max_depth": 0},
        {"max_depth": True},
    ]
    for options in wrongs:
        with pytest.raises(ConfigurationError):
            agent.as_tool(**options)


async def test_it_works_in_a_session_of_its_own_that_says_whose_it_is() -> None:
    store = MemoryStore()
    expert = Agent(ScriptedModel(["Four.", "Six."]), name="expert").as_tool()
    outer = Agent(ScriptedModel([give("2 + 2?"), "4", give("3 + 3?"), "6"]), tools=[expert])
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(outer, "How much?", session_id="s", actor_id="a")
        await runtime.ask(outer, "And 3?", session_id="s", actor_id="a")
        found = await sessions(store, "a")
        inner = {id: info for id, info in found.items() if id != "s"}
        assert len(inner) == 2, "call ids repeat from turn to turn, sessions do not"
        for info in inner.values():
            assert info.metadata is not None
            assert info.metadata["littleghost"]["parent"] == {"session": "s", "call": "c"}
        texts = sorted(
            [[m.text for m in await Session(id=id, actor_id="a", store=store).history()] for id in inner]
        )
        assert texts == [["2 + 2?", "Four."], ["3 + 3?", "Six."]]
        assert await sessions(store) == {}
        assert await runtime.delete_session("s", actor_id="a")
        assert await sessions(store, "a") == {}
        assert not await runtime.delete_session("s", actor_id="a")


async def test_deleting_takes_what_is_inside_of_what_is_inside_and_nothing_else() -> None:
    store = MemoryStore()
    inmost = Agent(ScriptedModel(["1"] * 9), name="inmost").as_tool()
    middle = Agent(FunctionModel(_twice("inmost")), tools=[inmost], name="middle").as_tool()
    outer = Agent(FunctionModel(_twice("middle")), tools=[middle])
    async with Runtime(session_store=store) as runtime:
        for id in ("s", "t"):
            await runtime.ask(outer, "Go", session_id=id)
        await Session(id="mine", store=store, metadata={"littleghost": {"parent": 5}}).append(
            Message.user("x")
        )
        assert len(await sessions(store)) == 7
        assert await runtime.delete_session("s")
        left = await sessions(store)
    assert len(left) == 4
    assert {"mine", "t"} < set(left)
    runtime = sync.Runtime(session_store=store)
    assert runtime.delete_session("t")
    assert set(await sessions(store)) == {"mine"}


def _twice(name: str) -> Any:
    """A model that calls ``name`` once, and then answers."""

    def reply(request: Any) -> Any:
        done = any(message.role == "tool" for message in request.messages)
        return "done" if done else give("go on", name=name)

    return reply


async def test_an_answer_in_a_type_comes_back_as_its_json() -> None:
    expert = Agent(ScriptedModel(['{"sku": "A7", "count": 12}']), output=Stock, name="expert").as_tool()
    run = await Agent(ScriptedModel([give("How many?"), "12"]), tools=[expert]).ask("Go")
    assert answered(run)[0].text == '{"sku":"A7","count":12}'


async def test_without_a_session_nothing_is_stored() -> None:
    store = MemoryStore()
    expert = Agent(ScriptedModel(["Four."]), name="expert").as_tool()
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(Agent(ScriptedModel([give("2 + 2?"), "4"]), tools=[expert]), "How much?")
    assert run.text == "4"
    assert await sessions(store) == {}


async def test_what_the_run_has_the_inner_run_has_too(tmp_path: Path) -> None:
    seen: list[RunContext[Any]] = []

    @tool
    async def look(context: RunContext) -> str:
        """Look."""
        seen.append(context)
        return await context.sandbox.read("note.txt", context=context)

    call = Message.assistant([ToolUse(id="l", name="look", input={})])
    expert = Agent(ScriptedModel([call, "seen"]), tools=[look], name="expert").as_tool()
    outer = Agent(ScriptedModel([call, give("look"), "ok"]), tools=[look, expert])
    (tmp_path / "note.txt").write_text("here")
    async with Runtime(workspace=str(tmp_path), sandbox=HostSandbox) as runtime:
        run = await runtime.ask(outer, "Go", deps="mine", actor_id="a", timeout=60)
    assert run.outcome == "completed"
    first, second = seen
    assert (first.depth, second.depth) == (0, 1)
    assert (first.deps, second.deps) == ("mine", "mine")
    assert (first.actor_id, second.actor_id) == ("a", "a")
    assert first.sandbox is second.sandbox
    assert first.workspace is second.workspace
    assert second.deadline is not None
    assert first.run_id != second.run_id


async def test_a_workspace_made_for_each_run_is_made_once(tmp_path: Path) -> None:
    from littleghost import Workspace

    made: list[Workspace] = []

    def make() -> Workspace:
        made.append(Workspace(tmp_path))
        return made[-1]

    expert = Agent(ScriptedModel(["Four."]), name="expert").as_tool()
    async with Runtime(workspace=make) as runtime:
        await runtime.ask(Agent(ScriptedModel([give("2 + 2?"), "4"]), tools=[expert]), "How much?")
    assert len(made) == 1


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_agents_inside_each_other_have_a_bound(most: int) -> None:
    depths: list[int] = []

    class Again:
        """Hands its task on to itself."""

        def __init__(self) -> None:
            self.agent = Agent(FunctionModel(self.reply), tools=[self.hand_on], name="again")
            self.tool = self.agent.as_tool(max_depth=most)

        def reply(self, request: Any) -> Any:
            if request.messages[-1].role == "tool":
                return request.messages[-1].tool_results[0].text
            return Message.assistant([ToolUse(id="c", name="hand_on", input={"task": "go on"})])

        async def hand_on(self, task: str, context: RunContext) -> str:
            """Hand it on."""
            depths.append(context.depth)
            return await self.tool.call({"task": task}, context)

    run = await Again().agent.ask("Go")
    assert depths == list(range(most + 1))
    assert "limit" in run.text


def counted(answer: Any, tokens: int) -> ModelEnded:
    message = answer if isinstance(answer, Message) else Message.assistant(answer)
    return ModelEnded(message=message, usage=Usage(input_tokens=tokens))


async def test_what_it_uses_counts_as_the_caller_s() -> None:
    def outer(**options: Any) -> Agent:
        inner = Agent(
            ScriptedModel([counted(give("x", name="no"), 100), counted("Four.", 50)]), name="expert"
        )
        script = [counted(give("2 + 2?"), 10), counted("It is four.", 10)]
        return Agent(ScriptedModel(script), tools=[inner.as_tool()], **options)

    run = await outer().ask("How much?")
    assert run.usage.input_tokens == 170
    assert run.steps == 2
    run = await outer().ask("How much?", limits=RunLimits(tokens=100))
    assert run.outcome == "partial"
    assert isinstance(run.error, LimitExceededError)
    assert run.usage.input_tokens == 110, "the inner run had what was left, and the outer nothing after that"
    assert "LimitExceededError" in answered(run)[0].text


async def test_what_is_said_of_an_agent_that_did_not_finish() -> None:
    async def ask(inner: Any, limits: RunLimits | None = None) -> Any:
        expert = Agent(inner, name="expert", limits=limits).as_tool()
        run = await Agent(ScriptedModel([give("go"), "ok"]), tools=[expert]).ask("Go")
        assert run.outcome == "completed"
        return answered(run)[0]

    failed = await ask(ScriptedModel([ModelUnavailableError("key=hunter2")]))
    assert failed.status == "error"
    assert "failed (ModelUnavailableError)" in failed.text
    assert "hunter2" not in failed.text
    working = Message.assistant([Text("I have begun."), ToolUse(id="x", name="none", input={})])
    partial = await ask(ScriptedModel([working]), RunLimits(turns=1))
    assert partial.status == "success"
    assert partial.text.endswith("I have begun.")
    assert "stopped before it had finished (LimitExceededError)" in partial.text
    nothing = await ask(ScriptedModel([give("x", name="none")]), RunLimits(turns=1))
    assert nothing.status == "error"


async def test_several_agents_work_side_by_side() -> None:
    met = asyncio.Barrier(2)

    async def reply(request: Any) -> str:
        await asyncio.wait_for(met.wait(), 30)
        return f"did {request.messages[-1].text}"

    expert = Agent(FunctionModel(reply), name="expert").as_tool()
    uses = [ToolUse(id=str(n), name="expert", input={"task": str(n)}) for n in range(2)]
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(
            Agent(ScriptedModel([Message.assistant(uses), "ok"]), tools=[expert]), "Go", session_id="s"
        )
    assert [result.text for result in answered(run)] == ["did 0", "did 1"]
    assert len(await sessions(store)) == 3


@pytest.mark.parametrize("how", ["token", "task", "close"])
async def test_stopping_the_run_stops_the_inner_one_which_settles_what_it_has_open(how: str) -> None:
    store, token, begun = MemoryStore(), CancellationToken(), asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return "not reached"

    call = Message.assistant([Text("I begin."), ToolUse(id="h", name="hang", input={})])
    expert = Agent(ScriptedModel([call]), tools=[hang], name="expert").as_tool()
    outer = Agent(ScriptedModel([give("go")]), tools=[expert])
    runtime = Runtime(session_store=store)
    asked = asyncio.create_task(runtime.ask(outer, "Go", session_id="s", cancellation=token))
    await begun.wait()
    if how == "token":
        token.cancel()
    elif how == "task":
        asked.cancel()
    else:
        await runtime.aclose()
    if how == "task":
        with pytest.raises(asyncio.CancelledError):
            await asked
    else:
        assert (await asked).outcome == "cancelled"
    await runtime.aclose()
    for id in await sessions(store):
        messages = await Session(id=id, store=store).history()
        assert messages[-1].role == "tool"
        assert messages[-1].tool_results[0].status == "error"
    assert len(await sessions(store)) == 2
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_a_tool_inside_that_does_not_stop_is_left_behind_by_its_own_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        while not end.is_set():
            with suppress(asyncio.CancelledError):
                await end.wait()
        return "much later"

    hang.grace = 0.05
    call = Message.assistant([ToolUse(id="h", name="hang", input={})])
    expert = Agent(ScriptedModel([call]), tools=[hang], name="expert").as_tool()
    store, token = MemoryStore(), CancellationToken()
    async with Runtime(session_store=store) as runtime:
        outer = Agent(ScriptedModel([give("go")]), tools=[expert])
        asked = asyncio.create_task(runtime.ask(outer, "Go", session_id="s", cancellation=token))
        await begun.wait()
        token.cancel()
        run = await asked
        (inner,) = set(await sessions(store)) - {"s"}
        left = [message.role for message in await Session(id=inner, store=store).history()]
    end.set()
    assert run.outcome == "cancelled"
    assert left == ["user", "assistant", "tool"]
    assert [record.args[1] for record in caplog.records if record.args] == ["hang"]


async def test_streamed_is_plain_and_the_inner_events_stay_inside() -> None:
    def outer() -> Agent:
        expert = Agent(ScriptedModel(["The inner answer."]), name="expert").as_tool()
        return Agent(ScriptedModel([give("go"), "ok"]), tools=[expert])

    plain = await outer().ask("Go")
    async with Runtime() as runtime, runtime.stream(outer(), "Go") as events:
        told = [event async for event in events]
    assert events.run.messages == plain.messages == outer().ask_sync("Go").messages
    assert [type(event).__name__ for event in told].count("RunStarted") == 1
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert "inner" not in "".join(getattr(event, "text", "") for event in told)


async def test_called_by_itself_it_asks_the_agent() -> None:
    expert = Agent(ScriptedModel(["Four."]), name="expert").as_tool()
    assert await expert.call({"task": "2 + 2?"}, RunContext()) == "Four."
    with pytest.raises(ToolError, match="limit"):
        await expert.call({"task": "2 + 2?"}, RunContext(depth=3))


async def test_a_store_whose_lists_hold_no_metadata_is_asked_for_it() -> None:
    class Terse(MemoryStore):
        async def sessions(self, **options: Any) -> Any:
            page = await super().sessions(**options)
            items = tuple(msgspec.structs.replace(info, metadata=None) for info in page.items)
            return msgspec.structs.replace(page, items=items)

    store = Terse()
    expert = Agent(ScriptedModel(["Four."]), name="expert").as_tool()
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(Agent(ScriptedModel([give("2 + 2?"), "4"]), tools=[expert]), "Go", session_id="s")
        assert len(await sessions(store)) == 2
        assert await runtime.delete_session("s")
    assert await sessions(store) == {}


async def test_a_store_without_lists_says_so() -> None:
    class Least(MemoryStore):
        capabilities = frozenset({"revisions"})

        async def sessions(self, **options: Any) -> Any:
            raise UnsupportedError("no lists")

    async with Runtime(session_store=Least()) as runtime:
        with pytest.raises(UnsupportedError):
            await runtime.delete_session("s")
