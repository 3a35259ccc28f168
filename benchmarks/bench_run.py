"""One run with one tool: two answers of a scripted model and one call, with nothing stored, in memory, and on disk.

    python benchmarks/bench_run.py [--quick]

The floor is the same conversation as a hand-written loop over dictionaries. The kinds take turns in blocks of 40 runs, for who runs
right after a sync to disk finds the processor's caches cold. Agents are made before the clock starts. Figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from littleghost import Agent, MemoryStore, Message, Runtime, SQLiteStore, ToolUse, tool
from littleghost.testing import ScriptedModel


@tool
async def stock(sku: str) -> int:
    """Units on the shelf for one article."""
    return len(sku)


CALL = Message.assistant([ToolUse(id="1", name="stock", input={"sku": "A7"})])


BLOCK = 40


def agent() -> Agent:
    return Agent(ScriptedModel([CALL, "There are 2."]), tools=[stock])


async def by_hand(_: Agent) -> None:
    script = iter([{"call": ("stock", {"sku": "A7"})}, {"text": "There are 2."}])
    tools = {"stock": stock.function}
    messages: list[object] = [{"role": "user", "content": "How many?"}]

    async def model() -> dict[str, object]:
        return next(script)

    while "call" in (answer := await model()):
        messages.append(answer)
        name, arguments = answer["call"]  # type: ignore[misc]
        messages.append({"role": "tool", "content": await tools[name](**arguments)})
    messages.append(answer)


async def measure(blocks: int) -> dict[str, list[float]]:
    """Seconds of each run, by kind."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            SQLiteStore(Path(folder) / "bench.db") as sqlite,
            Runtime() as bare,
            Runtime(session_store=MemoryStore()) as memory,
            Runtime(session_store=sqlite) as disk,
        ):
            number = 0

            async def stored(runtime: Runtime, agent: Agent) -> None:
                nonlocal number
                number += 1
                await runtime.ask(agent, "How many?", session_id=f"s{number}")

            work: dict[str, Callable[[Agent], Awaitable[object]]] = {
                "loop by hand": by_hand,
                "no session": lambda agent: bare.ask(agent, "How many?"),
                "new session in memory": lambda agent: stored(memory, agent),
                "new session on SQLite, every step durable": lambda agent: stored(disk, agent),
            }

            async def block(call: Callable[[Agent], Awaitable[object]]) -> list[float]:
                taken: list[float] = []
                for made in [agent() for _ in range(BLOCK)]:
                    begun = time.perf_counter()
                    await call(made)
                    taken.append(time.perf_counter() - begun)
                return taken

            for call in work.values():
                await block(call)
            gc.collect()
            gc.freeze()
            times: dict[str, list[float]] = {name: [] for name in work}
            for _ in range(blocks):
                for name, call in work.items():
                    times[name] += await block(call)
            return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer blocks")
    blocks = 3 if parser.parse_args().quick else 20
    times = asyncio.run(measure(blocks))
    floor = statistics.median(times["loop by hand"])
    print(
        f"One run with one tool, µs. Python {platform.python_version()}, {blocks} interleaved blocks of {BLOCK} runs.\n"
    )
    print(f"{'':44}{'median':>9}{'p10':>9}{'p90':>9}{'× floor':>9}")
    for name, taken in times.items():
        p10, *_, p90 = statistics.quantiles(taken, n=10)
        median = statistics.median(taken)
        print(f"{name:44}{median * 1e6:9.1f}{p10 * 1e6:9.1f}{p90 * 1e6:9.1f}{median / floor:9.0f}")


if __name__ == "__main__":
    main()
