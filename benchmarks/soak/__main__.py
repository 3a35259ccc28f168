"""The command line of the soak."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from .broken import KINDS
from .run import Plan, Result, soak

SHOWN = 30


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description="Real processes race on one store while it and they are killed; then it is checked that nothing is lost.",
        epilog="Ends with 0 if nothing was lost, with 1 if anything was. Ctrl-C ends it and leaves nothing behind.",
    )
    parser.add_argument("--store", choices=["sqlite", "postgres", "agentcore", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=180.0, help="for how long in all (180)")
    parser.add_argument(
        "--seed", type=int, help="of what clients and faults do; when they meet is up to the system"
    )
    parser.add_argument("--clients", type=int, default=4, help="how many processes (4)")
    parser.add_argument(
        "--broken",
        choices=sorted(KINDS),
        help="break a promise in the clients' stores; the soak must then end with 1",
    )
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="on which disk; a temporary folder is made in it"
    )
    given = parser.parse_args()
    if given.seconds <= 0 or given.clients < 1:
        parser.error("--seconds and --clients must be more than 0")
    if given.folder is not None and not given.folder.is_dir():
        parser.error(f"--folder: {given.folder} is not a folder")
    if given.seed is None:
        given.seed = time.time_ns() % 1_000_000
    return given


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def report(store: str, result: Result) -> str:
    """Return the figures as text."""
    made = result.figures["made"]
    rates = ", ".join(f"{kind} {count / result.seconds:.1f}" for kind, count in made.most_common())
    survived = ", ".join(f"{count} × {name}" for name, count in result.survived.most_common())
    lines = [
        f"{store}, {result.seconds:.0f} s, load average {result.figures['load average']:.1f}",
        f"  held      {made.total():,} operations, {made.total() / result.seconds:.0f} per second: {rates}",
        f"  survived  {result.survived.total()} faults: {survived}",
        f"  conflicts {result.figures['conflicts']:,}, {result.figures['leases lost']} of them under a lease that was lost",
        f"  unknown   {result.figures['unknown']:,} answers, {result.figures['never known']:,} of them for good",
        f"  at the end {result.figures['sessions at the end']} sessions",
        *_of_medium(result),
        f"  LOSSES    {len(result.faults)}",
    ]
    lines += [f"    {fault}" for fault in result.faults[:SHOWN]]
    if len(result.faults) > SHOWN:
        lines.append(f"    and {len(result.faults) - SHOWN} more")
    return "\n".join(lines)


def _of_medium(result: Result) -> list[str]:
    found = result.figures["medium"]
    if not found:
        return []
    befallen = ", ".join(f"{count} × {kind}" for kind, count in found["befallen"].most_common())
    return [
        f"  service   {found['service']}: {found['calls']:,} calls, {found['befallen'].total():,} of them befallen: {befallen}",
        f"  halves    {result.figures['halves']} times a session was seen that was being deleted",
    ]


def main() -> int:
    given = arguments()
    stores = ["sqlite", "postgres"] if given.store == "both" else [given.store]
    say(f"seed {given.seed}")
    lost = 0
    for store in stores:
        plan = Plan(
            store=store,
            seconds=given.seconds / len(stores),
            seed=given.seed,
            clients=given.clients,
            broken=given.broken,
        )
        with tempfile.TemporaryDirectory(
            prefix="soak-", dir=given.folder, ignore_cleanup_errors=True
        ) as name:
            result = soak(plan, Path(name), say)
        print(report(store, result), flush=True)
        lost += len(result.faults)
    return 1 if lost else 0


if __name__ == "__main__":
    # However it is ended, the clients and the server are ended with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("\nInterrupted; clients and server are ended, the files are removed.")
        sys.exit(130)
