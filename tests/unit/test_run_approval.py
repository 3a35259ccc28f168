"""Calls that wait: for a person's approval, or for a result from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from littleghost import (
    Agent,
    Approval,
    ConfigurationError,
    ConflictError,
    DataError,
    Hooks,
    Image,
    MemoryStore,
    Message,
    Output,
    OutputError,
    Run,
    RunContext,
    Runtime,
    Session,
    SessionBusyError,
    SessionNotFoundError,
    SessionStore,
    SessionSuspendedError,
    SQLiteStore,
    Suspended,
    Text,
    Tool,
    ToolError,
    ToolPending,
    ToolResult,
    ToolUse,
    sync,
    tool,
    transcript,
)
from littleghost.testing import FunctionModel, ScriptedModel


class Total(Struct):
    total: int


ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool(needs_approval=True)
async def order(sku: str, count: int = 1) -> str:
    """Order an article."""
    ran.append((sku, count))
    return f"ordered {count} of {sku}"


@tool
async def look(sku: str) -> str:
    """Look at the shelf."""
    ran.append(sku)
    return "three"


@tool(external=True)
async def weigh(sku: str) -> str:
    """Have an article weighed by hand."""
    raise AssertionError("an external tool was run")


def answer(*uses: tuple[str, str, dict[str, Any]]) -> Message:
    return Message.assistant([ToolUse(id=id, name=name, input=given) for id, name, given in uses])


BOTH = answer(
    ("a", "order", {"sku": "A7"}), ("l", "look", {"sku": "A7"}), ("b", "order", {"sku": "B2", "count": 2})
)


def agent(*script: Any, tools: Any = (order, look, weigh), **options: Any) -> Agent:
    return Agent(ScriptedModel(list(script)), tools=list(tools), **options)


def texts(run: Run) -> dict[str, str]:
    return {result.tool_use_id: result.text for message in run.messages for result in message.tool_results}


class ThreeMethods(SessionStore):
    """A store as small as one can be."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}

    async def load(self, id: str, *, actor_id: str | None = None) -> Any:
        return self._kept.get((actor_id, id))

    async def append(  # type: ignore[override]
        self, id: str, *, messages: Any, state: Any, metadata: Any, expected_count: int, actor_id: Any = None
    ) -> None:
        found = self._kept.get((actor_id, id), {"messages": []})["messages"]
        if len(found) != expected_count:
            raise ConflictError("stale", expected=expected_count, actual=len(found))
        self._kept[actor_id, id] = {"messages": [*found, *messages], "state": state, "metadata": metadata}

    async def replace(
        self, id: str, *, messages: Any, state: Any, metadata: Any, actor_id: Any = None
    ) -> None:  # type: ignore[override]
        self._kept[actor_id, id] = {"messages": list(messages), "state": state, "metadata": metadata}


class Batched(MemoryStore):
    granularity = "batch"


@pytest.fixture(params=["memory", "batch", "sqlite", "three methods"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    make: dict[str, Callable[[], SessionStore]] = {
        "memory": MemoryStore,
        "batch": Batched,
        "sqlite": lambda: SQLiteStore(tmp_path / "s.db"),
        "three methods": ThreeMethods,
    }
    return make[request.param]()


async def test_the_others_run_first_and_the_run_is_suspended_until_all_are_answered(
    store: SessionStore,
) -> None:
    async with store, Runtime(session_store=store) as runtime:
        async with runtime.stream(agent(BOTH), "Order.", session_id="s", actor_id="u") as events:
            kinds = [event async for event in events]
        run = events.run
        assert run.outcome == "suspended"
        assert run.error is None
        assert [call.id for call in run.pending] == ["a", "b"]
        assert [event.pending for event in kinds if type(event) is Suspended] == [run.pending]
        assert ran == ["A7"]
        again = await runtime.resume(agent(), session_id="s", actor_id="u")
        assert (again.outcome, again.pending, again.text) == ("suspended", run.pending, run.text)
        assert (again.steps, again.messages) == (0, run.messages)
        with pytest.raises(SessionSuspendedError) as caught:
            await runtime.ask(agent(), "And?", session_id="s", actor_id="u")
        assert caught.value.pending == run.pending
        half = await runtime.resume(agent(), session_id="s", actor_id="u", approvals={"b": True})
        assert (half.outcome, [call.id for call in half.pending]) == ("suspended", ["a"])
        assert ran == ["A7", ("B2", 2)]
        done = await runtime.resume(
            agent("All done."),
            session_id="s",
            actor_id="u",
            approvals={"a": Approval(approved=False, reason="Too dear."), "b": False, "never": True},
        )
        assert (done.outcome, done.text, done.pending) == ("completed", "All done.", ())
        assert ran == ["A7", ("B2", 2)]
        assert "Too dear." in texts(done)["a"]
        assert texts(done)["b"] == "ordered 2 of B2"
        assert transcript.for_model(done.messages) == done.messages
        metadata = await Session(id="s", actor_id="u", store=store).metadata()
        assert set(metadata["littleghost"]) == {"life"}


async def test_changed_arguments_are_checked_first_and_told(store: SessionStore) -> None:
    async with store, Runtime(session_store=store) as runtime:
        await runtime.ask(agent(BOTH), "Order.", session_id="s")
        before = await Session(id="s", store=store).load()
        for wrong, named in [
            (
                Approval(approved=True, arguments={"sku": "A7", "count": "many"}),
                r"approvals\['a'\]\.arguments",
            ),
            (Approval(approved=True, arguments={"sku": float("nan")}), r"approvals\['a'\]\.arguments\.sku"),
            (Approval(approved=True, arguments=["A7"]), r"approvals\['a'\]\.arguments"),  # type: ignore[arg-type]
            ("yes", r"approvals\['a'\]"),
            (Approval(approved=False, reason="\ud800"), r"approvals\['a'\]\.reason"),
        ]:
            with pytest.raises(ConfigurationError, match=named):
                await runtime.resume(
                    agent(),
                    session_id="s",
                    approvals={"b": True, "a": wrong},  # type: ignore[dict-item]
                )
        assert await Session(id="s", store=store).load() == before
        assert ran == ["A7"]
        run = await runtime.resume(
            agent("Done."),
            session_id="s",
            approvals={"a": Approval(approved=True, arguments={"sku": "A8"}), "b": False},
        )
        assert ran == ["A7", ("A8", 1)]
        assert texts(run)["a"].startswith("ordered 1 of A8")
        assert 'changed its arguments to {"sku":"A8"}' in texts(run)["a"]
        assert run.messages[1].tool_uses[0].input == {"sku": "A7"}, (
            "the transcript says what the model asked for"
        )


async def test_arguments_as_they_were_shown_are_no_change(store: SessionStore) -> None:
    async with store, Runtime(session_store=store) as runtime:
        run = await runtime.ask(agent(BOTH, hooks=[Cheaper()]), "Order.", session_id="s")
        shown = {call.id: Approval(approved=True, arguments=call.input) for call in run.pending}
        run = await runtime.resume(agent("Done."), session_id="s", approvals=shown)
    assert ran == ["A7", ("A7", 1), ("B2", 1)]
    assert texts(run)["a"] == "ordered 1 of A7"
    assert texts(run)["b"].endswith("Note: the application changed the arguments of this call before it ran.")


async def test_results_from_elsewhere(store: SessionStore) -> None:
    asked = answer(("w", "weigh", {"sku": "A7"}), ("x", "weigh", {"sku": "B2"}), ("y", "weigh", {"sku": "C"}))
    async with store, Runtime(session_store=store) as runtime:
        run = await runtime.ask(agent(asked), "Weigh.", session_id="s")
        assert [call.id for call in run.pending] == ["w", "x", "y"]
        with pytest.raises(ConfigurationError, match=r"approvals\['w'\].*results="):
            await runtime.resume(agent(), session_id="s", approvals={"w": True})
        with pytest.raises(DataError, match=r"results\['w'\]"):
            await runtime.resume(agent(), session_id="s", results={"w": object()})
        half = await runtime.resume(
            agent(), session_id="s", results={"w": {"g": 12}, "x": ToolError("The scales are broken.")}
        )
        assert [call.id for call in half.pending] == ["y"]
        pixel = Image(data=b"\0", media_type="image/png")
        done = await runtime.resume(
            agent("So it is."),
            session_id="s",
            results={"y": ToolResult(tool_use_id="other", content=[Text("5 g"), pixel]), "w": "ignored"},
        )
    assert done.outcome == "completed"
    assert texts(done) == {"w": '{"g":12}', "x": "The scales are broken.", "y": "5 g\n[image/png, 1 bytes]"}
    found = [result for message in done.messages for result in message.tool_results]
    assert [result.status for result in found] == ["success", "error", "success"]
    assert pixel in found[2].content


async def test_an_external_call_may_need_approval_first() -> None:
    @tool(external=True, needs_approval=True)
    async def ship(sku: str) -> str:
        raise AssertionError

    uses = agent(answer(("s", "ship", {"sku": "A7"})), "Shipped.", tools=[ship])
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.ask(uses, "Ship.", session_id="s")
        edited = Approval(approved=True, arguments={"sku": "A8"})
        run = await runtime.resume(uses, session_id="s", approvals={"s": edited})
        assert run.outcome == "suspended"
        assert run.pending[0].input == {"sku": "A8"}
        run = await runtime.resume(uses, session_id="s", approvals={"s": True}, results={"s": "done"})
        assert run.text == "Shipped."
        assert "A8" in texts(run)["s"]


async def test_a_result_counts_only_for_what_was_approved() -> None:
    @tool(external=True, needs_approval=True)
    async def ship(sku: str) -> str:
        raise AssertionError

    def begun() -> Agent:
        return agent(answer(("s", "ship", {"sku": "A7"})), "Well.", tools=[ship])

    async with Runtime(session_store=MemoryStore()) as runtime:
        for id, approval in (("no", False), ("yes", Approval(approved=True, arguments={"sku": "A8"}))):
            uses = begun()
            await runtime.ask(uses, "Ship.", session_id=id)
            with pytest.raises(
                ConfigurationError, match=r"results\['s'\]: the call waits for approval first"
            ):
                await runtime.resume(uses, session_id=id, results={"s": "done"})
            run = await runtime.resume(uses, session_id=id, approvals={"s": approval}, results={"s": "done"})
            assert ("done" in texts(run)["s"], "A8" in texts(run)["s"]) == ((id == "yes"), (id == "yes"))
            assert ("did not approve" in texts(run)["s"]) == (id == "no")


async def test_whether_a_call_needs_approval_may_depend_on_its_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Any] = []

    def dear(arguments: dict[str, Any]) -> bool:
        seen.append(arguments)
        if arguments["sku"] == "?":
            raise KeyError("price")
        return arguments["count"] > 1

    @tool(needs_approval=dear)
    async def buy(sku: str, count: int = 1) -> str:
        ran.append((sku, count))
        return "bought"

    asked = answer(
        ("a", "buy", {"sku": "A"}),
        ("b", "buy", {"sku": "B", "count": 2}),
        ("c", "buy", {"sku": "?"}),
        ("d", "buy", {"sku": "D", "count": "x"}),
    )
    async with Runtime(session_store=MemoryStore()) as runtime:
        run = await runtime.ask(agent(asked, tools=[buy]), "Buy.", session_id="s")
        assert [call.id for call in run.pending] == ["b", "c"]
        assert seen == [{"sku": "A", "count": 1}, {"sku": "B", "count": 2}, {"sku": "?", "count": 1}]
        assert ran == [("A", 1)]
        assert "invalid arguments" in texts(run)["d"]
        assert "needs_approval of tool buy failed" in caplog.text


async def test_a_tool_that_is_gone_keeps_its_calls_waiting_and_is_not_run() -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.ask(agent(answer(("a", "order", {"sku": "A7"}))), "Order.", session_id="s")
        assert (await runtime.resume(agent(tools=[look]), session_id="s")).outcome == "suspended"
        run = await runtime.resume(agent("Sorry.", tools=[look]), session_id="s", approvals={"a": True})
        assert run.text == "Sorry."
        assert "no tool named 'order'" in texts(run)["a"]


async def test_a_transcript_that_nobody_had_looked_at_asks_as_well(store: SessionStore) -> None:
    async with store, Runtime(session_store=store) as runtime:
        await Session(id="s", store=store).append([Message.user("Order."), BOTH])
        run = await runtime.resume(agent(), session_id="s")
        assert [call.id for call in run.pending] == ["a", "b"]
        assert "interrupted" in texts(run)["l"]
        done = await runtime.resume(agent("Done."), session_id="s", approvals={"a": True, "b": False})
        assert done.outcome == "completed"
        assert ran == [("A7", 1)]


async def test_a_call_that_had_started_is_not_asked_about_when_its_tool_changes_its_mind() -> None:
    asking = False
    store = MemoryStore()

    @tool(needs_approval=lambda _: asking)
    async def buy(context: RunContext) -> str:
        ran.append("buy")
        raise SystemExit  # as near to a kill as one comes without a process

    @tool(needs_approval=True)
    async def other() -> str:
        return "other"

    calls = answer(("a", "buy", {}), ("o", "other", {}))
    uses = agent(calls, tools=[buy, other])
    async with Runtime(session_store=store) as runtime:
        stored: list[Any] = []
        append = store.append

        async def first_two(id: str, **options: Any) -> Any:
            if any(message.role == "tool" for message in options["messages"]):
                stored.append(options)
                raise asyncio.CancelledError  # killed before a result was stored
            return await append(id, **options)

        store.append = first_two  # type: ignore[method-assign]
        with pytest.raises(BaseException):  # noqa: B017
            await runtime.ask(uses, "Buy.", session_id="s")
        store.append = append  # type: ignore[method-assign]
        asking = True
        run = await runtime.resume(agent(tools=[buy, other]), session_id="s")
    assert [call.id for call in run.pending] == ["o"]
    assert "interrupted" in texts(run)["a"]


@pytest.mark.parametrize("idempotent", [False, True])
async def test_an_answer_is_committed_before_its_tool_starts(store: SessionStore, idempotent: bool) -> None:
    """A crash after that settles the call as any other, with the arguments that were approved."""
    keys: list[Any] = []

    @tool(needs_approval=True, idempotent=idempotent)
    async def buy(sku: str, context: RunContext) -> str:
        metadata = await Session(id="s", store=store).metadata()
        copies.append(metadata)
        ran.append(sku)
        keys.append(context.idempotency_key)
        if len(ran) == 1:
            snapshot = await Session(id="s", store=store).load()
            assert snapshot is not None
            at_death.append(snapshot)
        return f"bought {sku}"

    copies: list[Any] = []
    at_death: list[Any] = []
    uses = agent(answer(("a", "buy", {"sku": "A"})), "x", tools=[buy])
    async with store, Runtime(session_store=store) as runtime:
        await runtime.ask(uses, "Buy.", session_id="s")
        await runtime.resume(
            uses, session_id="s", approvals={"a": Approval(approved=True, arguments={"sku": "B"})}
        )
        dead = at_death[0]
        await Session(id="s", store=store).replace(dead.messages, state=dead.state, metadata=dead.metadata)
        after = await runtime.resume(
            agent("Well.", tools=[buy]),
            session_id="s",
            approvals={"a": Approval(approved=True, arguments={"sku": "C"})},
        )
    assert after.outcome == "completed"
    assert ran == (["B", "B"] if idempotent else ["B"])
    assert len(set(keys)) == 1
    assert ("bought B" if idempotent else "interrupted") in texts(after)["a"]
    assert 'arguments to {"sku":"B"}' in texts(after)["a"], "told, however it ends"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_of_two_who_answer_at_once_one_wins(kind: str, tmp_path: Path) -> None:
    stores: list[SessionStore] = [SQLiteStore(tmp_path / "s.db") for _ in range(2)]
    if kind == "memory":
        stores = [MemoryStore()] * 2

    def model(_: Any) -> str:
        return "Done."

    uses = Agent(FunctionModel(model), tools=[order])
    async with Runtime(session_store=stores[0]) as one, Runtime(session_store=stores[1]) as two:
        await one.ask(agent(answer(("a", "order", {"sku": "A7"}))), "Order.", session_id="s")
        done = await asyncio.gather(
            one.resume(uses, session_id="s", approvals={"a": True}, busy="raise"),
            two.resume(uses, session_id="s", approvals={"a": True}, busy="raise"),
            return_exceptions=True,
        )
    for store in stores:
        await store.aclose()
    assert ran == [("A7", 1)]
    assert all(isinstance(each, Run | SessionBusyError | ConflictError) for each in done), done
    assert any(isinstance(each, Run) for each in done)


async def test_a_loser_without_leases_conflicts_before_the_tool_starts() -> None:
    class Unleased(MemoryStore):
        capabilities = MemoryStore.capabilities - {"leases"}

        def synchronize(self, id: str, *, actor_id: str | None = None, **_: Any) -> Any:
            return asyncio.Lock()  # each its own, as in two processes

    store = Unleased()
    together = asyncio.Barrier(2)
    append = store.append

    async def meet(id: str, **options: Any) -> Any:
        if not options["messages"]:
            await together.wait()
        return await append(id, **options)

    async with Runtime(session_store=store) as runtime:
        await runtime.ask(agent(answer(("a", "order", {"sku": "A7"}))), "Order.", session_id="s")
        store.append = meet  # type: ignore[method-assign]
        done = await asyncio.gather(
            *(runtime.resume(agent("Done."), session_id="s", approvals={"a": True}) for _ in range(2)),
            return_exceptions=True,
        )
    assert sorted(type(each).__name__ for each in done) == ["ConflictError", "Run"]
    assert ran == [("A7", 1)]


async def test_answers_of_the_wrong_kind_are_refused() -> None:
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.ask(agent(answer(("a", "order", {"sku": "A7"}))), "Order.", session_id="s")
        with pytest.raises(ConfigurationError, match=r"results\['a'\].*approvals="):
            await runtime.resume(agent(), session_id="s", results={"a": "done"})
        with pytest.raises(ConfigurationError, match="approvals must be a mapping"):
            await runtime.resume(agent(), session_id="s", approvals=["a"])  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="call ids are text"):
            await runtime.resume(agent(), session_id="s", approvals={1: True})  # type: ignore[dict-item]
        with pytest.raises(ConfigurationError, match="give None"):
            async with runtime.stream(agent(), "x", session_id="s", approvals={"a": True}):
                pass
    assert ran == []


class Delegate(Tool):
    """A tool whose own work waits for answers."""

    name, description, idempotent = "delegate", "Delegates.", True
    schema = {"type": "object"}  # noqa: RUF012

    async def call(self, arguments: dict[str, Any], context: RunContext) -> str:
        ran.append((dict(context.approvals), {name: result.text for name, result in context.results.items()}))
        waiting = [ToolUse(id="x", name="order", input={"n": 1}), ToolUse(id="y", name="weigh")]
        still = [call for call in waiting if call.id not in {**context.approvals, **context.results, **done}]
        done.update(context.approvals)
        if still:
            raise ToolPending(still)
        return "all settled"


done: dict[str, Any] = {}


async def test_a_tool_may_wait_for_answers_itself(store: SessionStore) -> None:
    done.clear()
    uses = agent(
        answer(("d", "delegate", {}), ("l", "look", {"sku": "A"}), ("a", "order", {"sku": "A7"})),
        "So be it.",
        tools=[Delegate(), look, order],
    )
    async with store, Runtime(session_store=store) as runtime:
        run = await runtime.ask(uses, "Go.", session_id="s")
        assert [(call.id, call.name) for call in run.pending] == [
            ("a", "order"),
            ("d/x", "order"),
            ("d/y", "weigh"),
        ]
        again = await runtime.resume(uses, session_id="s")
        assert {call.id for call in again.pending} == {"a", "d/x", "d/y"}
        assert ran == [({}, {}), "A"], "without an answer the tool is not asked again"
        edited = Approval(approved=True, arguments={"n": 2}, reason="less")
        half = await runtime.resume(uses, session_id="s", approvals={"d/x": edited, "a": False})
        assert [call.id for call in half.pending] == ["d/y"]
        assert ran[-1] == ({"x": edited}, {})
        last = await runtime.resume(uses, session_id="s", results={"d/y": 7})
        assert (last.outcome, last.text) == ("completed", "So be it.")
        assert texts(last)["d"] == "all settled"
        assert ran[-1] == ({}, {"y": "7"})


class Cheaper(Hooks):
    def before_tool(self, context: RunContext, call: ToolUse) -> ToolUse | None:
        if call.name != "order" or call.input.get("sku") != "B2":
            return None
        return ToolUse(id=call.id, name=call.name, input={"sku": "B2", "count": 1})


@tool(external=True, needs_approval=True)
async def sign(document: str) -> str:
    """Have a document signed."""
    raise AssertionError("an external tool was run")


async def test_what_waits_can_be_looked_at_without_going_on(store: SessionStore) -> None:
    done.clear()
    asked = answer(
        ("d", "delegate", {}),
        ("b", "order", {"sku": "B2", "count": 2}),
        ("s", "sign", {"document": "lease"}),
        ("l", "look", {"sku": "A7"}),
    )
    uses = agent(asked, "So be it.", tools=[Delegate(), look, order, sign], hooks=[Cheaper()])
    async with store, Runtime(session_store=store) as runtime:
        with pytest.raises(SessionNotFoundError):
            await runtime.pending(session_id="s")
        with pytest.raises(ConfigurationError):
            await runtime.pending(session_id=None)
        run = await runtime.ask(uses, "Go.", session_id="s", actor_id="u")
        with pytest.raises(SessionNotFoundError):
            await runtime.pending(session_id="s", actor_id="another")
        before = await Session(id="s", store=store, actor_id="u").load()
        async with Session(id="s", store=store, actor_id="u").synchronize():  # as while a run is under way
            seen = await runtime.pending(session_id="s", actor_id="u")
        assert [call.id for call in seen] == ["d/x", "d/y", "b", "s"]
        assert {call.id: call for call in seen} == {call.id: call for call in run.pending}
        assert seen[2].input == {"sku": "B2", "count": 1}, "as the hook changed it"
        again = await runtime.resume(uses, session_id="s", actor_id="u")
        assert seen == again.pending
        assert await Session(id="s", store=store, actor_id="u").load() == before

        changed = {"s": Approval(approved=True, arguments={"document": "rent"}), "d/x": True}
        half = await runtime.resume(uses, session_id="s", actor_id="u", approvals=changed)
        seen = await runtime.pending(session_id="s", actor_id="u")
        assert {call.id: call for call in seen} == {call.id: call for call in half.pending}
        assert [call.id for call in seen] == ["d/y", "b", "s"]
        assert seen[2].input == {"document": "rent"}, "as the person changed it"

        last = await runtime.resume(
            uses, session_id="s", actor_id="u", approvals={"b": False}, results={"d/y": 7, "s": "signed"}
        )
        assert last.outcome == "completed"
        assert await runtime.pending(session_id="s", actor_id="u") == ()


async def test_a_call_that_was_approved_and_then_cut_off_waits_no_more() -> None:
    store, started = MemoryStore(), asyncio.Event()

    @tool(needs_approval=True)
    async def slow() -> str:
        """Take long."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    uses = agent(answer(("a", "slow", {}), ("b", "slow", {})), tools=[slow])
    async with Runtime(session_store=store) as runtime:
        await runtime.ask(uses, "Go.", session_id="s")
        going = asyncio.create_task(runtime.resume(uses, session_id="s", approvals={"a": True}))
        await started.wait()
        seen = await runtime.pending(session_id="s")  # which is what a killed process leaves as well
        assert [call.id for call in seen] == ["b"]
        going.cancel()
        await asyncio.wait([going])


@pytest.mark.parametrize("kind", ["memory", "batch"])
async def test_streamed_and_plain_and_sync_are_the_same(kind: str) -> None:
    given = [
        {"approvals": {"a": Approval(approved=True, arguments={"sku": "A8"})}},
        {"approvals": {"b": False}, "results": {"w": "5 g"}},
    ]
    script = [
        answer(*(("a", "order", {"sku": "A7"}), ("b", "order", {"sku": "B2"}), ("w", "weigh", {"sku": "A"})))
    ]

    def seen(run: Run) -> Any:
        return (
            run.outcome,
            run.pending,
            run.messages,
            run.text,
            run.steps,
            run.usage,
            run.state,
            run.spent is None,
        )

    def new_store() -> SessionStore:
        return MemoryStore() if kind == "memory" else Batched()

    async def plain() -> list[Any]:
        async with Runtime(session_store=new_store()) as runtime:
            uses = agent(*script, "Done.")
            runs = [await runtime.ask(uses, "Go.", session_id="s")]
            runs += [await runtime.resume(uses, session_id="s", **each) for each in given]  # type: ignore[arg-type]
        return [seen(run) for run in runs]

    async def streamed() -> list[Any]:
        runs: list[Run] = []
        async with Runtime(session_store=new_store()) as runtime:
            uses = agent(*script, "Done.")
            for message, each in [("Go.", {}), *((None, each) for each in given)]:
                async with runtime.stream(uses, message, session_id="s", **each) as events:  # type: ignore[arg-type]
                    told = [event async for event in events]
                assert [event.seq for event in told] == list(range(1, len(told) + 1))
                assert (type(told[-2]) is Suspended) == (events.run.outcome == "suspended")
                runs.append(events.run)
        return [seen(run) for run in runs]

    def from_sync() -> list[Any]:
        with sync.Runtime(session_store=new_store()) as runtime:
            uses = agent(*script, "Done.")
            runs = [runtime.ask(uses, "Go.", session_id="s")]
            assert runtime.pending(session_id="s") == runs[0].pending
            runs += [runtime.resume(uses, session_id="s", **each) for each in given]  # type: ignore[arg-type]
        return [seen(run) for run in runs]

    expected = await plain()
    assert [run[0] for run in expected] == ["suspended", "suspended", "completed"]
    assert await streamed() == expected
    assert from_sync() == expected


async def test_without_a_session_a_run_can_be_suspended_but_not_resumed() -> None:
    run = await agent(BOTH).ask("Order.")
    assert (run.outcome, run.session_id) == ("suspended", None)
    assert run.check() is run


async def test_an_answer_in_a_type_waits_for_the_calls_beside_it(store: SessionStore) -> None:
    given = answer(("a", "order", {"sku": "A7"}), ("f", "final_answer", {"total": 2}))

    def uses(*script: Any) -> Agent[Total]:
        return Agent(ScriptedModel(list(script)), tools=[order], output=Output(Total, strategy="tool"))

    async with store, Runtime(session_store=store) as runtime:
        run = await runtime.ask(uses(given), "Order.", session_id="s")
        assert run.outcome == "suspended"
        assert [call.id for call in run.pending] == ["a"]
        with pytest.raises(OutputError):
            _ = run.output
        ended = await runtime.resume(uses(), session_id="s", approvals={"a": True})
        assert (ended.outcome, ended.output, ended.steps) == ("completed", Total(total=2), 0)
        assert ran == [("A7", 1)]


@pytest.mark.parametrize("given", [{"approvals": {"typo": True}}, {"results": {"typo": "done"}}])
async def test_an_answer_to_no_call_at_all_is_a_mistake(given: Any) -> None:
    call = ToolUse(id="c1", name="gated", input={})

    @tool(needs_approval=True)
    async def gated() -> str:
        """Gated."""
        return "done"

    async with Runtime(session_store=MemoryStore()) as runtime:
        agent = Agent(ScriptedModel([Message.assistant([call]), "Done."]), tools=[gated])
        await runtime.ask(agent, "Go.", session_id="s")
        before = await runtime.session("s").load()
        with pytest.raises(ConfigurationError, match="there is no call 'typo' in this session"):
            await runtime.resume(agent, session_id="s", **given)
        assert await runtime.session("s").load() == before
        assert (await runtime.resume(agent, session_id="s", approvals={"c1": True})).text == "Done."
        assert (await runtime.resume(agent, session_id="s", approvals={"c1": True})).text == "Done."
