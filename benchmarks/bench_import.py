"""What `import littleghost` costs, beside a bare interpreter and what it cannot do without.

Usage:
    python benchmarks/bench_import.py [--quick]

Each figure is the wall time of a whole interpreter, started anew, the kinds taking turns; the last column is what the
kind adds to a bare interpreter. Byte code is there, as an installer leaves it, whatever ``PYTHONDONTWRITEBYTECODE`` says: it goes
to a directory of the benchmark's own. Below a ratio of 1.3 two figures on a shared machine are the same.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

MAIN_NAMES = [
    "Agent",
    "Message",
    "Runtime",
    "RunLimits",
    "Session",
    "SQLiteStore",
    "Workspace",
    "native_sandbox",
    "tool",
]

KINDS = {
    "bare interpreter": "pass",
    "msgspec": "import msgspec",
    "littleghost": "import littleghost",
    "msgspec + asyncio": "import msgspec, asyncio",
    "littleghost, main names used": f"import littleghost\nfor name in {MAIN_NAMES}: getattr(littleghost, name)",
}


def milliseconds(code: str, environment: dict[str, str]) -> float:
    """How long a new interpreter takes to start, run `code` and end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return (time.perf_counter() - start) * 1000


def measure(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each start, by kind."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for code in KINDS.values():  # the first start writes byte code and warms the disk cache
            milliseconds(code, environment)
        for _ in range(rounds):
            for kind, code in KINDS.items():
                times[kind].append(milliseconds(code, environment))
    return times


def main() -> None:
    rounds = 5 if "--quick" in sys.argv[1:] else 15
    times = measure(rounds)
    median = {kind: statistics.median(values) for kind, values in times.items()}
    bare = median["bare interpreter"]
    print(f"import cost, Python {sys.version.split()[0]}, median of {rounds} interleaved starts")
    print(f"{'':30}{'ms':>8}{'spread':>16}{'× bare':>9}{'adds ms':>9}")
    for kind, values in times.items():
        low, *_, high = statistics.quantiles(values, n=10)
        spread = f"{low:.1f}–{high:.1f}"
        print(f"{kind:30}{median[kind]:8.1f}{spread:>16}{median[kind] / bare:9.2f}{median[kind] - bare:9.1f}")
    for ours, floor in [("littleghost", "msgspec"), ("littleghost, main names used", "msgspec + asyncio")]:
        print(f"{ours} / {floor}: {median[ours] / median[floor]:.2f}×")


if __name__ == "__main__":
    main()
