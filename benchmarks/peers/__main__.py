"""The command line of the benchmark."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import warnings
from pathlib import Path

from .registry import ENTRIES, Entry, chosen
from .server import Server
from .table import as_json, environment_of, filesystem, show
from .works import QUICK, Bench, Plan

# Nobody reports home, and nobody pays for tracing.
os.environ |= {
    "AGNO_TELEMETRY": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description="What a session costs here and in other frameworks."
    )
    parser.add_argument(
        "--quick", action="store_true", help="shorter sessions and fewer rounds, under two minutes"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="these subjects, by a part of the name, and the floors",
    )
    parser.add_argument(
        "--work",
        default="A,B,C,D",
        metavar="A,B",
        help="A append, B load, C sessions at once, D bytes on disk",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there as well")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="on which disk; a temporary folder is made in it"
    )
    parser.add_argument("--list", action="store_true", help="name the subjects and end")
    given = parser.parse_args()
    given.work = "".join(sorted(set(given.work.upper()) - set(", ")))
    if not given.work or set(given.work) - set("ABCD"):
        parser.error("--work takes letters of A, B, C and D")
    if given.json is not None and not given.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {given.json.resolve().parent}")
    if given.folder is not None and not given.folder.is_dir():
        parser.error(f"--folder: {given.folder} is not a folder")
    try:
        given.entries = chosen(given.only)
    except ValueError as error:
        parser.error(f"--only: {error}")
    return given


async def measure(bench: Bench, works: str) -> bool:
    """Return whether it came to its end; when it is interrupted, what is open gets some seconds to close."""
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    work = asyncio.create_task(bench.run(works))
    stop = asyncio.create_task(interrupted.wait())
    await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0.01)  # a signal that came meanwhile is seen
    if work.done() and not interrupted.is_set():
        work.result()
        return True
    work.cancel()
    await asyncio.wait({work}, timeout=5)
    return False


def run(given: argparse.Namespace, folder: Path) -> bool:
    """Measure and print; return whether it came to its end."""
    entries: list[Entry] = given.entries
    server = Server(folder)
    bench = Bench(entries, QUICK if given.quick else Plan(), folder, server)
    if filesystem(folder) in ("tmpfs", "ramfs"):
        bench.say(f"{folder} is in memory, where fsync costs nothing; --folder takes another place")
    try:
        # Not closed, see the end of this file.
        finished = asyncio.Runner().run(measure(bench, given.work))
    finally:
        server.stop()
    environment = environment_of(folder, bench.load_before)
    if bench.postgres:
        environment["PostgreSQL"] = bench.postgres
    show(bench, given.work, environment)
    if given.json is not None:
        given.json.write_text(json.dumps(as_json(bench, environment), indent=1), "utf-8")
    return finished


def main() -> int:
    given = arguments()
    if given.list:
        print("\n".join(entry.name for entry in ENTRIES))
        return 0
    # What the peers have to say goes into the tables, or not at all.
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder, ignore_cleanup_errors=True) as name:
        finished = run(given, Path(name))
    if not finished:
        print("\nInterrupted; the server is stopped, the files are removed.", file=sys.stderr)
    return 0 if finished else 130


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Some peers, when they are cancelled, leave tasks and threads that never end; an orderly exit would wait for them.
    os._exit(code)
