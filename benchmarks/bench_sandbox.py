"""What a command and a file operation cost in each sandbox, beside the bare ones.

    python benchmarks/bench_sandbox.py [--quick]

Everything runs in the same loop, interleaved, one after another; figures are medians, and ratios are of medians over the floor named
in the row. Below 1.3, two figures are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from littleghost import BubblewrapSandbox, HostSandbox, Sandbox

TRUE = shutil.which("true") or "/bin/true"
BARE = [
    "bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin",
    "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
    "--", TRUE,
]  # fmt: skip
TEXT = "line of text\n" * 800  # about 10 kB

Work = Callable[[], Awaitable[object]]


def blocking(work: Callable[[], object]) -> Work:
    async def run() -> object:
        return work()

    return run


def spawn() -> None:
    os.waitpid(os.posix_spawn(TRUE, [TRUE], {}), 0)


def atomic_write(path: Path) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(TEXT)
    beside.replace(path)


async def measure(rounds: int, rows: dict[str, Work]) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(rounds + 2):
        for name, work in rows.items():
            started = time.perf_counter()
            await work()
            if number >= 2:
                taken[name].append(time.perf_counter() - started)
    return taken


def show(title: str, taken: dict[str, list[float]], floor: str) -> None:
    print(f"\n{title}: over {floor}")
    base = statistics.median(taken[floor])
    for name, values in taken.items():
        low, middle, high = (statistics.quantiles(values, n=10)[at] for at in (0, 4, 8))
        print(
            f"  {name:34} {middle * 1e3:9.3f} ms   ({low * 1e3:.3f} to {high * 1e3:.3f})   {middle / base:6.2f}×"
        )


def files(sandbox: Sandbox, prefix: str) -> dict[str, Work]:
    return {
        f"{prefix} read": lambda: sandbox.read("file"),
        f"{prefix} write": lambda: sandbox.write("file", TEXT),
        f"{prefix} list": lambda: sandbox.list("many"),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it runs")
    rounds = 10 if parser.parse_args().quick else 200
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        host = await stack.enter_async_context(HostSandbox(folder / "host", writable=True))
        spawns: dict[str, Work] = {
            "subprocess.run": blocking(lambda: subprocess.run([TRUE], check=True, capture_output=True)),
            "os.posix_spawn": blocking(spawn),
            "HostSandbox": lambda: host.execute_program([TRUE], timeout=10),
        }
        if shutil.which("bwrap"):
            isolated = await stack.enter_async_context(
                BubblewrapSandbox(folder / "bubblewrap", writable=True)
            )
            spawns["bwrap, bare"] = blocking(lambda: subprocess.run(BARE, check=True, capture_output=True))
            spawns["BubblewrapSandbox"] = lambda: isolated.execute_program([TRUE], timeout=10)
        show("a command (true)", await measure(rounds, spawns), "subprocess.run")

        await host.write("file", TEXT)
        for number in range(100):
            await host.write(f"many/{number}", "")
        root = host.workspace.root
        raw: dict[str, Work] = {
            "plain read": blocking((root / "file").read_text),
            "plain write, renamed": blocking(lambda: atomic_write(root / "file")),
            "plain list": blocking(lambda: sorted(entry.name for entry in (root / "many").iterdir())),
        }
        for floor, (name, work) in zip(raw, files(host, "sandbox").items(), strict=True):
            taken = await measure(
                rounds * 3, {floor: raw[floor], name: work, "thread hop": lambda: asyncio.to_thread(int)}
            )
            show(
                name.removeprefix("sandbox ") + (" of 100 entries" if "list" in name else " of 10 kB"),
                taken,
                floor,
            )


if __name__ == "__main__":
    asyncio.run(main())
