"""Clauses about limits on what programs use: one that cannot be enforced is refused, and one that is accepted holds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from littleghost.errors import CapabilityError
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.testing.conformance import Clause, ClauseSkipped, clause, expect
from littleghost.testing.sandbox_trial import Trial, opened

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []


@contextlib.asynccontextmanager
async def _limited(make: Any, **limits: Any) -> AsyncGenerator[Trial]:
    """Open a sandbox with limits, or skip the clause where it says that it cannot enforce them."""
    trials = opened(make, limits=SandboxLimits(**limits))
    try:
        trial = await trials.__aenter__()
    except CapabilityError as error:
        named = str(getattr(error, "limit", None))
        expect(named in limits, f"the refusal names the limit {named!r}")
        expect(named in str(error), f"the refusal does not say which limit: {error}")
        raise ClauseSkipped(f"refused: {error}") from error
    try:
        yield trial
    finally:
        await trials.__aexit__(None, None, None)


@clause(CLAUSES, needs={"execute"})
async def the_limit_of_processes_holds(make: Any) -> None:
    """A command that starts more than it may gets no more, and another command is none the poorer."""
    async with _limited(make, processes=20) as trial:
        many = "i=0; while [ $i -lt 100 ]; do sleep 20 & i=$((i+1)); done 2>/dev/null"
        done = await trial.sandbox.execute(f"( {many} ); echo $(ls -d /proc/[0-9]* | wc -l)", timeout=15)
        expect(not done.timed_out, "it was not stopped")
        bomb = "f() { f | f & }; f 2>/dev/null; sleep 2; echo over"
        done = await trial.sandbox.execute(bomb, timeout=15)
        expect(not done.timed_out, f"the bomb went on: {done}")
        started = 'i=0; while [ $i -lt 10 ]; do sleep 0.5 & i=$((i+1)); done; wait; echo "ten"'
        done = await trial.sandbox.execute(started, timeout=15)
        expect(done.stdout == "ten\n", f"what is within the limit fails: {done}")
        await trial.needs("python3")
        count = (
            "import os, time\nn = 0\ntry:\n while n < 100:\n  if not os.fork(): time.sleep(10); os._exit(0)\n  n += 1\n"
            "except OSError: pass\nprint(n)"
        )
        done = await trial.sandbox.execute_program(["python3", "-c", count], timeout=15)
        expect(10 <= int(done.stdout or -1) <= 20, f"it started {done.stdout.strip()} of 20: {done}")


@clause(CLAUSES, needs={"execute"})
async def the_limit_of_memory_holds(make: Any) -> None:
    """One process that takes more than there is ends, and so do many that do together."""
    async with _limited(make, memory_bytes=64_000_000) as trial:
        grow = "x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo ${#x}"
        done = await trial.sandbox.execute(grow, timeout=60)
        expect("300000000" not in done.stdout and not done.success, f"it had 300 MB: {done}")
        await trial.needs("python3")
        # Told when it ends, for what has its memory may be ended to make room for the next.
        one = "import time; x = bytearray(20_000_000); time.sleep(3); print('up', flush=True)"
        many = f'i=0; while [ $i -lt 8 ]; do python3 -S -c "{one}" & i=$((i+1)); done; wait'
        done = await trial.sandbox.execute(many, timeout=60)
        expect(done.stdout.count("up") < 8, f"eight had 20 MB each of 64: {done}")
        done = await trial.sandbox.execute_program(["python3", "-S", "-c", one], timeout=60)
        expect(done.stdout == "up\n" and done.success, f"what is within the limit fails: {done}")


@clause(CLAUSES, needs={"execute"})
async def the_limit_of_cpu_time_holds(make: Any) -> None:
    """A busy loop ends long before its time limit, and waiting costs nothing."""
    async with _limited(make, cpu_seconds=1) as trial:
        started = time.monotonic()
        done = await trial.sandbox.execute("trap '' XCPU; while :; do :; done", timeout=60)
        expect(not done.timed_out and not done.success, f"it went otherwise: {done}")
        expect(time.monotonic() - started < 40, "it took too long")
        done = await trial.sandbox.execute("sleep 2; echo rested", timeout=60)
        expect(done.stdout == "rested\n", f"what is within the limit fails: {done}")


@clause(CLAUSES, needs={"execute", "files", "write"})
async def the_limit_of_file_sizes_holds(make: Any) -> None:
    """No file that a program writes gets larger."""
    async with _limited(make, file_bytes=100_000) as trial:
        done = await trial.sandbox.execute("head -c 300000 /dev/zero > big", timeout=20)
        expect(not done.success, f"it wrote 300 kB: {done}")
        size = (await trial.sandbox.stat("big")).size
        expect(size <= 100_000, f"it wrote {size:,} bytes")
        done = await trial.sandbox.execute(
            "head -c 100000 /dev/zero > most; truncate -s 200000 most", timeout=20
        )
        expect(not done.success and (await trial.sandbox.stat("most")).size == 100_000, "it grew")


@clause(CLAUSES, needs={"execute", "files", "write"}, timeout=120)
async def the_limit_of_the_disk_holds(make: Any) -> None:
    """The workspace takes no more than it may, in one file or in many."""
    async with _limited(make, disk_bytes=2_000_000) as trial:
        for script in (
            "head -c 5000000 /dev/zero > big",
            "i=0; while [ $i -lt 50 ]; do head -c 100000 /dev/zero > f$i || exit 1; i=$((i+1)); done",
        ):
            done = await trial.sandbox.execute(script, timeout=60)
            expect(not done.success, f"it wrote 5 MB: {done}")


@clause(CLAUSES, needs={"execute", "scope"})
async def a_scope_may_lower_limits(make: Any) -> None:
    """What a scope's limits allow is less, for its own programs."""
    async with opened(make) as trial:
        try:
            scope = trial.sandbox.scope(limits=SandboxLimits(cpu_seconds=1))
        except CapabilityError as error:
            raise ClauseSkipped(f"refused: {error}") from error
        if "execute" not in scope.capabilities:
            raise ClauseSkipped("this scope runs no programs")
        done = await scope.execute("while :; do :; done", timeout=40)
        expect(not done.timed_out and not done.success, f"the limit did not hold: {done}")
