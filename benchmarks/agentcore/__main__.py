"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import warnings

from .table import show, show_checks
from .works import Bench

os.environ |= {"LANGCHAIN_TRACING_V2": "false", "LANGSMITH_TRACING": "false", "OTEL_SDK_DISABLED": "true"}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agentcore",
        description="What a session in AgentCore Memory costs, by client.",
    )
    parser.add_argument("--quick", action="store_true", help="sessions of 10 and 1,000 messages, in a minute")
    parser.add_argument(
        "--checks", action="store_true", help="only whether the other clients run against the emulator"
    )
    given = parser.parse_args()
    # What the clients have to say goes into the tables, or not at all.
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from .checks import run_checks

    if not given.checks:
        bench = Bench((10, 1_000), [("Saved", 1_000)]) if given.quick else Bench((10, 1_000, 10_000))
        asyncio.run(bench.run())
        show(bench)
    results = run_checks()
    show_checks(results)
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
