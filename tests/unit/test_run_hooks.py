"""What an application does at the turning points of a run."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from littleghost import (
    Agent,
    Approval,
    CancellationToken,
    ConfigurationError,
    Hooks,
    MemoryStore,
    Message,
    ModelEnded,
    ModelRequest,
    Run,
    RunCancelled,
    RunContext,
    Runtime,
    Session,
    Text,
    ToolError,
    ToolPending,
    ToolResult,
    ToolUse,
    Usage,
    tool,
    transcript,
)
from littleghost.testing import ScriptedModel

ran: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@tool
async def pay(amount: int, to: str = "us") -> str:
    """Pay."""
    ran.append((amount, to))
    return f"paid {amount}"


@tool(needs_approval=lambda given: given["amount"] > 10)
async def pay_much(amount: int) -> str:
    """Pay."""
    ran.append(amount)
    return f"paid {amount}"


def calls(*amounts: int, name: str = "pay") -> Message:
    return Message.assistant(
        [ToolUse(id=f"c{index}", name=name, input={"amount": amount}) for index, amount in enumerate(amounts)]
    )


def texts(run: Run) -> list[str]:
    return [result.text for message in run.messages for result in message.tool_results]


class Loud(Hooks):
    """Tells of everything; half of it is async, half is not."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def before_run(self, context: RunContext[Any], message: Message | None) -> None:
        self.told.append(f"{self.name} before_run {message.text if message else None}")

    async def before_model(self, context: RunContext[Any], request: ModelRequest) -> ModelRequest:
        self.told.append(f"{self.name} before_model {len(request.messages)}")
        return msgspec.structs.replace(request, messages=[*request.messages, Message.user(self.name)])

    def after_model(self, context: RunContext[Any], message: Message, usage: Usage) -> None:
        self.told.append(f"{self.name} after_model {usage.total_tokens}")

    async def before_tool(self, context: RunContext[Any], call: ToolUse) -> None:
        self.told.append(f"{self.name} before_tool {context.call_id} {context.state}")

    def after_tool(self, context: RunContext[Any], call: ToolUse, result: ToolResult) -> ToolResult:
        self.told.append(f"{self.name} after_tool {result.text}")
        return msgspec.structs.replace(result, content=(Text(f"{result.text} {self.name}"),))

    async def after_run(self, context: RunContext[Any], run: Run) -> None:
        self.told.append(f"{self.name} after_run {run.outcome}")


async def test_the_first_given_is_the_outermost() -> None:
    told: list[str] = []
    model = ScriptedModel([ModelEnded(message=calls(1), usage=Usage(input_tokens=3)), "Done."])
    run = await Agent(model, tools=[pay], hooks=[Loud("a", told), Loud("b", told)]).ask("Go.")
    assert told == [
        "a before_run Go.",
        "b before_run Go.",
        "a before_model 1",
        "b before_model 2",
        "b after_model 3",
        "a after_model 3",
        "a before_tool c0 {}",
        "b before_tool c0 {}",
        "b after_tool paid 1",
        "a after_tool paid 1 b",
        "a before_model 3",
        "b before_model 4",
        "b after_model 0",
        "a after_model 0",
        "b after_run completed",
        "a after_run completed",
    ]
    assert texts(run) == ["paid 1 b a"]
    assert [message.text for message in model.requests[0].messages] == ["Go.", "a", "b"]
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]


class Gate(Hooks):
    """Does with each call what it was told to do with its amount."""

    def __init__(self, **does: Any) -> None:
        self.does = does

    def before_tool(self, context: RunContext[Any], call: ToolUse) -> Any:
        answer = self.does.get(f"a{call.input['amount']}")
        if isinstance(answer, Exception):
            raise answer
        return answer(call) if callable(answer) else answer


def to(amount: Any) -> Any:
    return lambda call: msgspec.structs.replace(call, input={"amount": amount})


async def test_a_hook_refuses_changes_or_answers() -> None:
    gate = Gate(
        a2=ToolError("Not two."),
        a3=to(30),
        a4="four, as ever",
        a5=lambda call: ToolResult(tool_use_id="whatever", content={"five": 5}, status="error"),
    )
    run = await Agent(ScriptedModel([calls(1, 2, 3, 4, 5), "Done."]), tools=[pay], hooks=[gate]).ask("Go.")
    assert run.outcome == "completed"
    assert sorted(ran) == [(1, "us"), (30, "us")]
    told = texts(run)
    assert told[:2] == ["paid 1", "Not two."]
    assert told[2].startswith("paid 30")
    assert "the application changed the arguments" in told[2]
    assert told[3:] == ["four, as ever", '{"five":5}']
    assert transcript.for_model(run.messages) == run.messages


async def test_what_a_hook_makes_of_a_call_may_need_approval() -> None:
    uses = Agent(
        ScriptedModel([calls(1, 2, name="pay_much"), "Done."]),
        tools=[pay_much],
        hooks=[Gate(a1=to(100), a3=to(300), a4=ToolError("Not four."))],
    )
    async with Runtime(session_store=MemoryStore()) as runtime:
        run = await runtime.ask(uses, "Go.", session_id="s")
        assert [(call.id, call.input) for call in run.pending] == [("c0", {"amount": 100})]
        assert ran == [2]
        run = await runtime.resume(uses, session_id="s", approvals={"c0": True})
        assert ran == [2, 100], "what was shown is what runs"
        assert "application changed" in texts(run)[0]


@pytest.mark.parametrize(
    ("edited", "expected", "does"),
    [
        (50, "paid 50", [100, 50]),
        (3, "nobody approved", [100]),  # the hook makes it 300, which no person has seen
        (4, "Not four.", [100]),
        (5, "paid 6", [100, 6]),
    ],
)
async def test_hooks_see_what_a_person_changed(edited: int, expected: str, does: list[int]) -> None:
    uses = Agent(
        ScriptedModel([calls(100, 200, name="pay_much"), "Done."]),
        tools=[pay_much],
        hooks=[Gate(a3=to(300), a4=ToolError("Not four."), a5=to(6))],
    )
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.ask(uses, "Go.", session_id="s")
        answer = Approval(approved=True, arguments={"amount": edited})
        run = await runtime.resume(uses, session_id="s", approvals={"c0": True, "c1": answer})
    assert run.outcome == "completed"
    assert expected in texts(run)[1]
    assert f'to {{"amount":{edited}}}' in texts(run)[1]
    assert ran == does


@pytest.mark.parametrize(
    "answer",
    [
        lambda call: msgspec.structs.replace(call, id="other", input={"amount": 1}),
        to("many"),
        to(float("nan")),
        lambda call: 5,
        RuntimeError("boom"),
    ],
)
async def test_a_hook_that_fails_before_a_tool_fails_the_run_and_runs_nothing(answer: Any) -> None:
    store = MemoryStore()
    uses = Agent(ScriptedModel([calls(1, 2)]), tools=[pay], hooks=[Gate(a2=answer)])
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(uses, "Go.", session_id="s")
    assert run.outcome == "failed"
    assert isinstance(run.error, RuntimeError | ConfigurationError | ValueError)
    assert ran == []
    assert all("was not run" in text for text in texts(run))
    stored = await Session(id="s", store=store).history()
    assert transcript.unsettled(stored) == ()
    assert stored == run.messages


class Failing(Hooks):
    """Fails at one place."""

    def __init__(self, place: str, error: Exception) -> None:
        self.place, self.error = place, error

    def _at(self, place: str) -> None:
        if place == self.place:
            raise self.error

    def before_run(self, *_: Any) -> None:
        self._at("before_run")

    async def before_model(self, *_: Any) -> None:
        self._at("before_model")

    async def after_model(self, *_: Any) -> None:
        self._at("after_model")

    async def after_tool(self, *_: Any) -> None:
        self._at("after_tool")

    def after_run(self, *_: Any) -> None:
        self._at("after_run")


@pytest.mark.parametrize(
    ("place", "stored"),
    [
        ("before_run", 0),
        ("before_model", 1),
        ("after_model", 1),
        ("after_tool", 3),
        ("after_run", 4),
    ],
)
async def test_a_hook_that_raises_fails_the_run(place: str, stored: int) -> None:
    store = MemoryStore()
    error = KeyError("boom")
    step = ModelEnded(message=calls(1, 2), usage=Usage(input_tokens=7))
    uses = Agent(ScriptedModel([step, "Done."]), tools=[pay], hooks=[Failing(place, error)])
    async with Runtime(session_store=store) as runtime:
        async with runtime.stream(uses, "Go.", session_id="s") as events:
            told = [event async for event in events]
        run = events.run
    assert (run.outcome, run.error) == ("failed", error)
    assert (told[-1].outcome, told[-1].error) == ("failed", "KeyError")  # type: ignore[union-attr]
    kept = await Session(id="s", store=store).history()
    assert len(kept) == stored
    assert transcript.unsettled(kept) == ()
    if place == "after_tool":
        assert "has run" in texts(run)[0]
        assert "paid 1" not in str(kept), "what a hook should have looked at is stored unseen"
    if place in ("after_model", "after_tool"):
        assert run.usage.input_tokens == 7


async def test_a_tool_error_after_a_tool_is_its_result() -> None:
    uses = Agent(
        ScriptedModel([calls(1), "Done."]), tools=[pay], hooks=[Failing("after_tool", ToolError("No."))]
    )
    run = await uses.ask("Go.")
    assert (run.outcome, texts(run)) == ("completed", ["No."])


class Stuck(Hooks):
    """Never comes back from one place."""

    def __init__(self, place: str) -> None:
        self.place, self.there = place, asyncio.Event()

    async def _at(self, place: str) -> None:
        if place == self.place:
            self.there.set()
            await asyncio.Event().wait()

    async def before_run(self, *_: Any) -> None:
        await self._at("before_run")

    async def before_model(self, *_: Any) -> None:
        await self._at("before_model")

    async def after_model(self, *_: Any) -> None:
        await self._at("after_model")

    async def before_tool(self, *_: Any) -> None:
        await self._at("before_tool")

    async def after_tool(self, *_: Any) -> None:
        await self._at("after_tool")

    async def after_run(self, *_: Any) -> None:
        await self._at("after_run")


@pytest.mark.parametrize("how", ["token", "task"])
@pytest.mark.parametrize(
    "place", ["before_run", "before_model", "after_model", "before_tool", "after_tool", "after_run"]
)
async def test_a_hook_is_cancelled_with_its_run(place: str, how: str) -> None:
    if (place, how) == ("after_run", "token"):
        return  # the run is over; a token has nothing left to stop
    store = MemoryStore()
    hook, token = Stuck(place), CancellationToken()
    uses = Agent(ScriptedModel([calls(1), "Done."]), tools=[pay], hooks=[hook])
    async with Runtime(session_store=store) as runtime:
        task = asyncio.create_task(runtime.ask(uses, "Go.", session_id="s", cancellation=token))
        await hook.there.wait()
        if how == "token":
            token.cancel("enough")
        else:
            task.cancel()
        if how == "task":
            with pytest.raises(asyncio.CancelledError):
                await task
        elif place == "before_run":
            with pytest.raises(RunCancelled):
                await task
        else:
            assert (await task).outcome == "cancelled"
        kept = await Session(id="s", store=store).history()
        assert transcript.unsettled(kept) == ()
        if kept:
            again = Agent(ScriptedModel(["Done."]), tools=[pay])
            assert (await runtime.resume(again, session_id="s")).text == "Done."
    assert ran == ([(1, "us")] if place in ("after_tool", "after_run") else [])


def test_hooks_are_hooks() -> None:
    with pytest.raises(ConfigurationError, match="hooks must be a list of Hooks"):
        Agent(ScriptedModel([]), hooks=[print])  # type: ignore[list-item]


async def test_what_a_hook_does_to_its_copies_reaches_no_transcript() -> None:
    class Meddling(Hooks):
        def before_model(self, context: RunContext[Any], request: ModelRequest) -> None:
            request.settings["secret"] = True
            for message in request.messages:
                for call in message.tool_uses:
                    call.input["to"] = "before_model"

        def after_model(self, context: RunContext[Any], message: Message, usage: Usage) -> None:
            for call in message.tool_uses:
                call.input["to"] = "after_model"

        def before_tool(self, context: RunContext[Any], call: ToolUse) -> ToolUse | None:
            call.input["to"] = "before_tool"
            return call if call.input["amount"] == 2 else None

        def after_tool(self, context: RunContext[Any], call: ToolUse, result: ToolResult) -> None:
            call.input["to"] = "after_tool"

    model = ScriptedModel([calls(1, 2), "Done."])
    run = await Agent(model, tools=[pay], hooks=[Meddling()]).ask("Pay.")
    assert [call.input for call in run.messages[1].tool_uses] == [{"amount": 1}, {"amount": 2}]
    assert sorted(ran) == [
        (1, "us"),
        (2, "before_tool"),
    ]  # what it returned counts, and the model learns that
    assert ["application changed" in result.content[-1].text for result in run.messages[2].tool_results] == [
        False,
        True,
    ]


async def test_a_hook_may_return_the_call_that_it_was_shown() -> None:
    class Allows(Hooks):
        def before_tool(self, context: RunContext[Any], call: ToolUse) -> ToolUse:
            return call

    wrong = Message.assistant([ToolUse(id="c", name="pay", input={"amount": "much"})])
    run = await Agent(ScriptedModel([wrong, "Done."]), tools=[pay], hooks=[Allows()]).ask("Pay.")
    assert run.outcome == "completed"  # the arguments are the model's mistake, and not the hook's
    assert "Expected `int`" in texts(run)[0]


class Unasked(Hooks):
    def before_tool(self, context: RunContext[Any], call: ToolUse) -> ToolUse | None:
        them = call.input["to"] == "them"
        return msgspec.structs.replace(call, input={"to": "us"}) if them else None


async def test_hooks_see_what_a_person_changed_after_a_crash_too() -> None:
    class DiesFirst(BaseException):
        pass

    @tool(needs_approval=lambda given: given["to"] == "?", idempotent=True)
    async def send(to: str) -> str:
        ran.append(to)
        return "sent"

    class Dies(MemoryStore):
        async def append(self, *args: Any, **options: Any) -> Any:
            commit = await super().append(*args, **options)
            answers = str(options["metadata"])
            if "them" in answers and not died:
                died.append(True)
                raise DiesFirst
            return commit

    died: list[bool] = []
    asks = Message.assistant([ToolUse(id="c", name="send", input={"to": "?"})])
    agent = Agent(ScriptedModel([asks, "Done."]), tools=[send], hooks=[Unasked()])
    async with Runtime(session_store=Dies()) as runtime:
        await runtime.ask(agent, "Send.", session_id="s")
        edited = Approval(approved=True, arguments={"to": "them"})
        with pytest.raises(DiesFirst):
            await runtime.resume(agent, session_id="s", approvals={"c": edited})
        run = await runtime.resume(agent, session_id="s")
    assert (run.outcome, ran) == ("completed", ["us"])


async def test_a_tool_that_waits_runs_again_with_what_a_hook_made_of_its_call() -> None:
    @tool
    async def send(to: str, context: RunContext[Any]) -> str:
        ran.append(to)
        if not context.results:
            raise ToolPending([ToolUse(id="i", name="stamp", input={})])
        return "sent"

    asks = Message.assistant([ToolUse(id="c", name="send", input={"to": "them"})])
    agent = Agent(ScriptedModel([asks, "Done."]), tools=[send], hooks=[Unasked()])
    async with Runtime(session_store=MemoryStore()) as runtime:
        await runtime.ask(agent, "Send.", session_id="s")
        run = await runtime.resume(agent, session_id="s", results={"c/i": "stamped"})
    assert (run.outcome, ran) == ("completed", ["us", "us"])
    assert "application changed" in texts(run)[0]


@pytest.mark.parametrize(
    "name", ["before_run", "before_model", "after_model", "before_tool", "after_tool", "after_run"]
)
async def test_a_hook_whose_own_work_was_cancelled_cancels_nobody_else(name: str) -> None:
    async def waits(self: Hooks, *given: Any) -> None:
        task = asyncio.create_task(asyncio.sleep(3600))
        task.cancel()
        await task

    hook = type("Waits", (Hooks,), {name: waits})()
    run = await Agent(ScriptedModel([calls(1), "Done."]), tools=[pay], hooks=[hook]).ask("Pay.")
    assert (run.outcome, str(run.error)) == ("failed", "Waits.waits was cancelled from within")
    if name == "after_tool":
        assert "withheld" in texts(run)[0]
