"""What bounds a run, and what bounds a session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from littleghost import (
    Agent,
    Budget,
    ConfigurationError,
    DeadlineExceeded,
    Document,
    Image,
    LimitExceededError,
    MemoryStore,
    Message,
    ModelEnded,
    ModelStarted,
    Prices,
    Run,
    RunContext,
    RunEnded,
    RunLimits,
    Runtime,
    Session,
    Spent,
    SQLiteStore,
    Text,
    TextDelta,
    ToolError,
    ToolResult,
    ToolRetry,
    ToolUse,
    Usage,
    tool,
)
from littleghost.runs.results import fitted
from littleghost.testing import FunctionModel, ScriptedModel


def call(*given: dict[str, Any], name: str = "work", tokens: int = 0) -> ModelEnded:
    uses = [ToolUse(id=f"c{number}", name=name, input=each) for number, each in enumerate(given)]
    return ModelEnded(message=Message.assistant(uses), usage=Usage(input_tokens=tokens))


def results(run: Run) -> list[ToolResult]:
    return [result for message in run.messages for result in message.tool_results]


@tool
async def work(n: int = 0) -> str:
    return f"worked on {n}"


DOLLAR = {"prices": {"input": 1_000_000, "output": 1_000_000}}
"""A dollar for each token."""
PRICES = Prices({"providers": {"littleghost": {"models": {"scripted": DOLLAR}}}})


async def test_cost_is_counted_and_is_a_limit() -> None:
    steps = [call({"n": 1}, tokens=2), call({"n": 2}, tokens=3), "never"]
    async with Runtime(prices=PRICES) as runtime:
        uses = Agent(ScriptedModel(steps), tools=[work], limits=RunLimits(cost=4))
        async with runtime.stream(uses, "Go.") as events:
            told = [event async for event in events]
        run = events.run
        assert (run.outcome, run.cost, run.steps) == ("partial", 5.0, 2)
        assert isinstance(run.error, LimitExceededError)
        assert (run.error.limit, run.error.value) == ("cost", 4)
        assert isinstance(told[-1], RunEnded)
        assert (told[-1].limit, told[-1].error) == ("cost", "LimitExceededError")
        unknown = Agent(FunctionModel(lambda _: "no"), limits=RunLimits(cost=1))
        with pytest.raises(ConfigurationError, match="price"):
            await runtime.ask(unknown, "Go.")
        assert (await runtime.ask(Agent(FunctionModel(lambda _: "yes")), "Go.")).cost is None
    with pytest.raises(ConfigurationError, match="price"):
        await uses.ask("Go.", budget=Budget(cost=1))


async def test_wall_time_names_its_limit_and_is_a_deadline() -> None:
    @tool
    async def sleep() -> None:
        await asyncio.Event().wait()

    run = await Agent(
        ScriptedModel([call({}, name="sleep")]), tools=[sleep], limits=RunLimits(wall_time=0.05)
    ).ask("Go.", timeout=60)
    assert run.outcome == "partial"
    assert isinstance(run.error, LimitExceededError)
    assert isinstance(run.error, DeadlineExceeded)
    assert run.error.limit == "wall_time"
    run = await Agent(
        ScriptedModel([call({}, name="sleep")]), tools=[sleep], limits=RunLimits(wall_time=60)
    ).ask("Go.", timeout=0.05)
    assert type(run.error) is DeadlineExceeded


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        (Budget(turns=3), "turns"),
        (Budget(tokens=25), "tokens"),
        (Budget(cost=25), "cost"),
        (Budget(tool_calls=1), "tool_calls"),
    ],
)
async def test_a_budget_counts_over_the_session(budget: Budget, name: str, tmp_path: Path) -> None:
    def uses() -> Agent:
        return Agent(
            ScriptedModel(
                [
                    call({"n": 1}, tokens=10),
                    ModelEnded(message=Message.assistant("Done."), usage=Usage(output_tokens=5)),
                ]
            ),
            tools=[work],
            budget=budget,
        )

    # Each run in a store and a runtime of its own, as in another process.
    outcomes: list[str] = []
    runs: list[Run] = []
    for _ in range(3):
        async with SQLiteStore(tmp_path / "s.db") as store:
            async with Runtime(session_store=store, prices=PRICES) as runtime:
                run = await runtime.ask(uses(), "Go.", session_id="s")
            runs.append(run)
            outcomes.append(run.outcome)
            noted = (await Session(id="s", store=store).metadata())["littleghost"]["spent"]
            assert run.spent is not None
            assert noted["turns"] == run.spent.turns
            assert noted["wall_time"] > 0
    assert outcomes == ["completed", "partial", "partial"]
    assert runs[0].spent is not None
    assert (runs[0].spent.turns, runs[0].spent.tool_calls, runs[0].spent.tokens, runs[0].spent.cost) == (
        2,
        1,
        15,
        15,
    )
    for run in runs[1:]:
        assert isinstance(run.error, LimitExceededError)
        assert run.error.limit == name
        assert "session" in str(run.error)
    assert len(runs[1].messages) > len(runs[0].messages), "what was done is kept"
    async with (
        SQLiteStore(tmp_path / "s.db") as store,
        Runtime(session_store=store, prices=PRICES) as runtime,
    ):
        more = await runtime.resume(
            Agent(ScriptedModel(["At last."])), session_id="s", budget=Budget(turns=100)
        )
        assert more.text == "At last."


async def test_a_budget_of_wall_time_is_used_up() -> None:
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        await Session(id="s", store=store, metadata={"littleghost": {"spent": {"wall_time": 9.0}}}).append([])
        uses = Agent(ScriptedModel(["Hello."]))
        run = await runtime.ask(uses, "Go.", session_id="s", budget=Budget(wall_time=9))
        assert isinstance(run.error, LimitExceededError)
        assert run.error.limit == "wall_time"
        run = await runtime.resume(uses, session_id="s", budget=Budget(wall_time=900))
        assert run.text == "Hello."


async def test_without_a_budget_nothing_is_counted_in_the_session() -> None:
    store = MemoryStore()
    async with Runtime(session_store=store) as runtime:
        run = await runtime.ask(Agent(ScriptedModel(["Hello."])), "Go.", session_id="s")
        assert run.spent is None
        assert set((await Session(id="s", store=store).metadata())["littleghost"]) == {"life"}
        counted = await runtime.ask(Agent(ScriptedModel(["Hello."])), "Go.", session_id="s", budget=Budget())
        assert counted.spent is not None
        assert counted.spent.turns == 1
        later = await runtime.ask(Agent(ScriptedModel(["Hello."])), "Go.", session_id="s")
        assert later.spent is not None
        assert later.spent.turns == 2, "once a session is counted, every run of it is"
    assert Spent(turns=1) == Spent(turns=1)


async def test_the_same_call_over_and_over_is_refused_and_then_ends_the_run() -> None:
    ran: list[int] = []

    @tool
    async def poll(n: int) -> str:
        ran.append(n)
        return "nothing"

    model = FunctionModel(lambda _: call({"n": 1}, name="poll").message)
    run = await Agent(model, tools=[poll], limits=RunLimits(identical_calls=3)).ask("Go.")
    assert ran == [1, 1]
    assert run.outcome == "partial"
    assert isinstance(run.error, LimitExceededError)
    assert (run.error.limit, run.error.value) == ("identical_calls", 3)
    told = [result.text for result in results(run)]
    assert told[:2] == ["nothing", "nothing"]
    assert all("not run: the last 2 calls were the same" in text for text in told[2:])
    assert len(told) == 4


async def test_another_argument_or_another_result_begins_the_count_anew() -> None:
    count = 0

    @tool
    async def poll(n: int) -> int:
        nonlocal count
        count += 1
        return min(count, 3)

    same = call({"n": 1}, name="poll")
    other = call({"n": 2}, name="poll")
    # 1 2 3 3 | 3 (another argument) | 3 3 (refused)
    steps = [same, same, same, same, other, same, same, same, "Done."]
    run = await Agent(ScriptedModel(steps), tools=[poll], limits=RunLimits(identical_calls=3)).ask("Go.")
    assert run.outcome == "completed"
    assert [result.status for result in results(run)] == ["success"] * 7 + ["error"]
    run = await Agent(
        ScriptedModel([same] * 8 + ["Done."]), tools=[poll], limits=RunLimits(identical_calls=None)
    ).ask("Go.")
    assert run.outcome == "completed"


async def test_no_more_calls_run_at_a_time_than_may() -> None:
    running = most = 0

    @tool
    async def work(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3 + n % 4):
            await asyncio.sleep(0)
        running -= 1
        return n

    uses = [{"n": n} for n in range(10)]
    for concurrency, expected in [(3, 3), (1, 1), (None, 10)]:
        most = 0
        model = ScriptedModel([call(*uses), "Done."])
        run = await Agent(model, tools=[work], limits=RunLimits(concurrency=concurrency)).ask("Go.")
        assert most == expected
        assert [result.text for result in results(run)] == [str(n) for n in range(10)]


async def test_a_tool_that_asks_for_it_is_run_again_in_place() -> None:
    keys: list[Any] = []

    @tool
    async def flaky(context: RunContext, fails: int) -> str:
        context.state["tries"] = context.state.get("tries", 0) + 1
        keys.append(context.idempotency_key)
        if len(keys) <= fails:
            raise ToolRetry(f"busy {len(keys)}", after=0)
        return "done"

    for fails, expected, tries in [(2, "done", 3), (9, "busy 3", 3)]:
        keys.clear()
        run = await Agent(ScriptedModel([call({"fails": fails}, name="flaky"), "Done."]), tools=[flaky]).ask(
            "Go."
        )
        assert results(run)[0].text == expected
        assert results(run)[0].status == ("success" if expected == "done" else "error")
        assert len(keys) == tries
        assert len(set(keys)) == 1
        assert run.state == {"tries": 1}, "what an attempt that failed did to the state is gone"


@pytest.mark.parametrize("after", ["2", float("nan")])
async def test_a_wait_that_is_no_number_is_the_mistake_of_the_tool(after: Any) -> None:
    @tool
    async def busy() -> str:
        raise ToolRetry("busy", after=after)

    run = await Agent(ScriptedModel([call({}, name="busy"), "Done."]), tools=[busy]).ask("Go.")
    assert (run.outcome, results(run)[0].text) == ("completed", "Tool failed (TypeError)")


async def test_there_is_no_second_try_beyond_the_deadline() -> None:
    @tool
    async def flaky() -> str:
        raise ToolRetry("come back in an hour", after=3600)

    run = await Agent(ScriptedModel([call({}, name="flaky"), "Done."]), tools=[flaky]).ask("Go.", timeout=60)
    assert (run.outcome, results(run)[0].text) == ("completed", "come back in an hour")


async def test_a_wait_for_another_try_can_be_cancelled() -> None:
    waiting = asyncio.Event()

    @tool
    async def flaky() -> str:
        waiting.set()
        raise ToolRetry("come back in an hour", after=3600)

    uses = Agent(ScriptedModel([call({}, name="flaky")]), tools=[flaky])
    task = asyncio.create_task(uses.ask("Go."))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_long_results_lose_their_middle() -> None:
    @tool
    async def long(kind: str) -> Any:
        text = "ä" * 3000 + "ö" * 3000
        if kind == "error":
            raise ToolError(text)
        return text

    steps = [call({"kind": "text"}, {"kind": "error"}, name="long"), "Done."]
    run = await Agent(ScriptedModel(steps), tools=[long], limits=RunLimits(result_tokens=1000)).ask("Go.")
    for result in results(run):
        assert result.text.startswith("ä" * 1000 + "\n[… 8,000 bytes left out here, about 2,000 tokens …]\n")
        assert result.text.endswith("ö" * 1000)


@given(
    some.lists(
        some.one_of(
            some.text(max_size=60).map(Text),
            some.just(Image(data=b"\0" * 99, media_type="image/png")),
            some.just(Document(data=b"x", media_type="text/plain", name="d.txt")),
        ),
        max_size=6,
    ),
    some.integers(1, 40),
)
def test_what_is_cut_keeps_head_and_tail_and_every_other_block(blocks: list[Any], tokens: int) -> None:
    result = ToolResult(tool_use_id="c", content=blocks)
    cut = fitted(result, tokens)
    before = "".join(block.text for block in blocks if isinstance(block, Text)).encode()
    assert [b for b in cut.content if not isinstance(b, Text)] == [
        b for b in blocks if not isinstance(b, Text)
    ]  # type: ignore[union-attr]
    if len(before) <= tokens * 4:
        assert cut is result
        return
    after = "".join(block.text for block in cut.content if isinstance(block, Text))  # type: ignore[union-attr]
    head, _, rest = after.partition("\n[… ")
    mark, _, tail = rest.partition(" tokens …]\n")
    gone = int(mark.split(" ")[0].replace(",", ""))
    assert gone == len(before) - tokens * 4
    assert before.startswith(head.encode())
    assert before.endswith(tail.encode())
    kept = len(head.encode()) + len(tail.encode())
    assert tokens * 4 - 6 <= kept <= tokens * 4


def test_bounds_are_checked() -> None:
    for make, named in [
        (lambda: RunLimits(identical_calls=1), r"limits\.identical_calls must be at least 2"),
        (lambda: RunLimits(cost=0), r"limits\.cost must be more than 0"),
        (lambda: RunLimits(concurrency=0), r"limits\.concurrency must be at least 1"),
        (lambda: RunLimits(result_tokens=1.5), r"limits\.result_tokens must be a whole number"),  # type: ignore[arg-type]
        (lambda: Budget(tokens="1"), r"budget\.tokens"),  # type: ignore[arg-type]
        (lambda: Budget(wall_time=-1), r"budget\.wall_time"),
        (lambda: Agent(ScriptedModel([]), budget=RunLimits()), "budget must be Budget"),  # type: ignore[arg-type]
        (lambda: tool(needs_approval="yes")(work.function), "needs_approval"),  # type: ignore[call-overload]
        (lambda: tool(retries=-1)(work.function), "retries"),
    ]:
        with pytest.raises(ConfigurationError, match=named):
            make()


def test_a_price_is_that_of_who_is_paid_and_of_how_long_is_cached() -> None:
    from littleghost.models.openai import OpenAIModel
    from littleghost.runs.limits import price_of

    usage = Usage(input_tokens=1000, cache_write_tokens=1000)
    limits = RunLimits(cost=1)
    there = price_of(OpenAIModel("gpt-5", base_url="https://api.openai.com/v1"), None, limits, None)
    assert there is not None
    assert there(usage)
    elsewhere = OpenAIModel("gpt-5", base_url="http://127.0.0.1:9/v1")
    assert elsewhere.provider == "127.0.0.1"
    with pytest.raises(ConfigurationError, match="a limit on cost needs the price of 'gpt-5'"):
        price_of(elsewhere, None, limits, None)

    class Kept(ScriptedModel):
        name, provider = "claude-sonnet-4-5", "anthropic"  # type: ignore[assignment]

    brief, long = Kept([]), Kept([])
    long.cache = "1h"
    costs = [price_of(model, None, limits, None) for model in (brief, long)]
    assert all(costs)
    assert costs[0](usage) < costs[1](usage)  # type: ignore[misc]


@pytest.mark.parametrize("words", [0, 3])
async def test_who_hangs_up_has_used_the_budget_all_the_same(words: int) -> None:
    async def endless(_: Any) -> Any:
        for _ in range(words):
            yield TextDelta(text="word " * 20)
        await asyncio.Event().wait()

    async with Runtime(session_store=MemoryStore()) as runtime:
        agent = Agent(FunctionModel(endless), budget=Budget(tokens=100))
        question, used = "Go on, and on. " * 10, [0]
        for _ in range(50):
            async with runtime.stream(agent, question, session_id="s") as events:
                async for event in events:
                    if isinstance(
                        event, RunEnded if used[-1] >= 100 else TextDelta if words else ModelStarted
                    ):
                        break
            used.append((await runtime.session("s").metadata())["littleghost"]["spent"].get("tokens", 0))
            if used[-2] >= 100:
                break
        assert used == sorted(used)
        assert 30 <= used[1] < 200
        run = await runtime.ask(agent, "More.", session_id="s")
        assert (run.outcome, run.steps) == ("partial", 0)
        assert isinstance(run.error, LimitExceededError)
        assert run.error.limit == "tokens"
