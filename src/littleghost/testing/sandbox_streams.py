"""Clauses about programs that live on and are talked to: `Sandbox.start_program`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Any

from littleghost.errors import DeadlineExceeded, RunCancelled, ToolError
from littleghost.sandboxes.contract import Process, SandboxLimits
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.sandbox_trial import Caller, Trial, daemon, opened, raises, silent, until

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

_NEEDS = {"execute", "start_program"}
_LOCAL = {*_NEEDS, "kill_tree", "local_files"}


async def _shell(trial: Trial, script: str, **options: Any) -> Process:
    return await trial.sandbox.start_program(["/bin/sh", "-c", script], **options)


async def _all(process: Process) -> bytes:
    parts: list[bytes] = []
    while part := await process.read():
        parts.append(part)
    return b"".join(parts)


async def _line(process: Process) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = await asyncio.wait_for(process.read(1), 20)
        expect(part, f"the output ended after {line!r}")
        line += part
    return line


@clause(CLAUSES, needs=_NEEDS)
async def a_process_is_talked_to(make: Any) -> None:
    """What is written arrives, what it prints can be read while it runs, and it ends when its input does."""
    async with opened(make) as trial:
        script = 'while read line; do echo "got $line"; echo "err $line" >&2; done; echo end; exit 3'
        async with await _shell(trial, script) as process:
            for word in ("one", "two ü"):
                await process.write(f"{word}\n".encode())
                expect(await _line(process) == f"got {word}\n".encode(), "the answer is another")
            await process.close_input()
            await process.close_input()
            expect(await _all(process) == b"end\n", "the end is missing")
            expect(await process.read() == b"", "there is something after the end")
            expect(await process.read_error() == "err one\nerr two ü\n".encode(), "the errors are others")
            expect(await process.wait() == 3 == await process.wait(), "the exit code is another")
            expect(process.error is None, f"there is an error: {process.error}")
            await raises(process.write(b"x"), ToolError, what="writing after the end of the input")
        await process.close()
        await raises(process.read(), ToolError, what="reading from a closed process")


@clause(CLAUSES, needs=_NEEDS)
async def a_process_starts_as_a_command_does(make: Any) -> None:
    """Its environment, its arguments and its directory are what was given, and a bad command is refused."""
    async with opened(make) as trial:
        await trial.sandbox.execute("mkdir dir", timeout=20)
        async with await trial.sandbox.start_program(["env"]) as process:
            expect(await _all(process) == b"", "the environment is not empty")
        async with await trial.sandbox.start_program(
            ["/bin/sh", "-c", 'echo "$A" "$1"; basename "$(pwd)"', "sh", "a  b"],
            environment={"A": "x=y"},
            cwd="dir",
        ) as process:
            expect(await _all(process) == b"x=y a  b\ndir\n", "it started otherwise")
        for command in ("true", [], ["a\0b"]):
            wrong: Any = command
            await raises(trial.sandbox.start_program(wrong), ToolError, what=f"the command {command!r}")
        for cwd in ("no", "..", "/"):
            await raises(
                trial.sandbox.start_program(["true"], cwd=cwd), ToolError, what=f"starting in {cwd!r}"
            )


@clause(CLAUSES, needs=_NEEDS)
async def a_process_ends_with_the_codes_of_a_shell(make: Any) -> None:
    """127 and 126 for what cannot be started, with an error that says so; 128+N for death by signal N."""
    async with opened(make) as trial:
        for command, code in (
            (["no-such-program-anywhere"], 127),
            (["/etc"], 126),
            (["/bin/sh", "-c", "exit 255"], 255),
            (["/bin/sh", "-c", "kill -KILL $$"], 137),
        ):
            async with await trial.sandbox.start_program(command) as process:
                found = await process.wait()
                expect(found == code, f"{command} ended with {found}, not {code}")
                expect((process.error is not None) is (code in (126, 127)), f"{command}: {process.error!r}")


@clause(CLAUSES, needs=_NEEDS)
async def bytes_pass_both_ways_at_once(make: Any) -> None:
    """Any bytes, more than all pipes hold, come back as they went."""
    content = bytes(range(256)) * 20_000
    async with opened(make) as trial, await trial.sandbox.start_program(["cat"]) as process:

        async def feed() -> None:
            await process.write(content)
            await process.close_input()

        _, got = await asyncio.wait_for(asyncio.gather(feed(), _all(process)), 60)
        expect(got == content and await process.wait() == 0, "what came back is not what went in")


@clause(CLAUSES, needs=_NEEDS)
async def a_write_waits_for_the_program_and_a_program_for_its_reader(make: Any) -> None:
    """A program that does not read holds the writer up, and one that is not read waits."""
    async with opened(make) as trial:
        async with await _shell(trial, "sleep 1000") as process:
            writing = asyncio.ensure_future(process.write(b"x" * 5_000_000))
            await asyncio.wait([writing], timeout=0.5)
            expect(not writing.done(), "5 MB went to a program that reads nothing")
            await process.kill()
            await raises(asyncio.wait_for(writing, 10), ToolError, what="a write to a killed program")
        async with await _shell(trial, "yes | head -c 5000000; echo done >&2") as process:
            telling = asyncio.ensure_future(process.read_error())
            await asyncio.wait([telling], timeout=0.5)
            expect(not telling.done(), "5 MB were printed that nobody has read")
            expect(len(await asyncio.wait_for(_all(process), 60)) == 5_000_000, "not all arrived")
            expect(await asyncio.wait_for(telling, 20) == b"done\n", "it did not go on")


@clause(CLAUSES, needs={*_NEEDS, "local_files"}, timeout=120)
async def a_flood_of_a_process_costs_no_memory(make: Any) -> None:
    """300 MB in one line, read or not, cost the application a few megabytes."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    script = "head -c 300000000 /dev/zero | tr '\\0' x"
    async with (
        opened(make) as trial,
        await _shell(trial, script) as process,
        await _shell(trial, "yes") as other,
    ):
        await asyncio.sleep(0.2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        count = 0
        while part := await process.read(1 << 30):
            count += len(part)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
        expect(count == 300_000_000 and await process.wait() == 0, f"{count:,} bytes arrived")
        expect(grown < 24_000_000, f"it cost {grown:,} bytes")
        expect(await other.read(4) == b"y\ny\n", "what was not read is lost")


@clause(CLAUSES, needs=_NEEDS)
async def a_process_can_be_asked_to_end(make: Any) -> None:
    """``terminate`` is SIGTERM, which the program may answer in its own way; ``kill`` gives it no say."""
    async with opened(make) as trial:
        script = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done"
        async with await _shell(trial, script) as process:
            await _line(process)
            await process.terminate()
            expect(await asyncio.wait_for(process.wait(), 20) == 5, "it could not answer")
            expect(await _all(process) == b"bye\n", "what it said last is lost")
            await process.terminate()
        async with await _shell(trial, "trap '' TERM; echo up; sleep 1000 & wait; sleep 1000") as process:
            await _line(process)
            await process.terminate()
            await asyncio.sleep(0.2)
            await asyncio.wait_for(process.kill(), 20)
            expect(await process.wait() == 137, "a killed program ended otherwise")


@clause(CLAUSES, needs=_NEEDS)
async def the_time_limit_binds_a_process(make: Any) -> None:
    """``limits.wall_seconds`` ends it, and ``error`` says so."""
    async with opened(make, limits=SandboxLimits(wall_seconds=0.5)) as trial:
        started = time.monotonic()
        async with await _shell(trial, "sleep 1000") as process:
            expect(await process.wait() == 137, "it ended otherwise")
            expect(process.error is not None and "timed out" in process.error, f"{process.error!r}")
        expect(time.monotonic() - started < 25, "it took too long")


async def _with_daemon(trial: Trial, name: str, **options: Any) -> Process:
    await trial.needs("setsid")
    process = await _shell(trial, f"{daemon(name)}; cat; sleep 1000", **options)
    path = trial.root / name
    await until(lambda: path.exists() and path.stat().st_size > 4, what="the daemon did not start")
    return process


@clause(CLAUSES, needs=_LOCAL)
async def nothing_outlives_a_process(make: Any) -> None:
    """A daemon out of its session, orphaned twice, is gone when the program has ended, is killed or is closed."""
    async with opened(make) as trial:
        process = await _with_daemon(trial, "closed")
        await process.close()
        await silent(trial.root / "closed", what="after close")
        process = await _with_daemon(trial, "killed")
        await process.kill()
        await silent(trial.root / "killed", what="after kill")
        await process.close()
        script = f"{daemon('ended')}; while [ ! -s ended ]; do sleep 0.02; done; echo last"
        async with await _shell(trial, script) as process:
            await process.wait()
            await silent(trial.root / "ended", what="after its end")
            expect(await _all(process) == b"last\n", "what it had printed is lost")


@clause(CLAUSES, needs=_LOCAL)
async def no_process_outlives_its_context(make: Any) -> None:
    """A cancellation or a deadline kills all of it, and whoever reads, writes or waits is told."""
    async with opened(make) as trial:
        caller = Caller()
        async with await _with_daemon(trial, "one", context=caller) as process:
            waiting = [asyncio.ensure_future(process.read()), asyncio.ensure_future(process.wait())]
            await asyncio.sleep(0.05)
            caller.cancellation.cancel("enough")
            for task in waiting:
                await raises(asyncio.wait_for(task, 10), RunCancelled, what="waiting for the cancelled")
            await silent(trial.root / "one", what="after the cancellation")
            await raises(process.write(b"x" * 1_000_000), RunCancelled, what="writing to the cancelled")
        async with await _with_daemon(trial, "two", context=Caller(seconds=2)) as process:
            await raises(asyncio.wait_for(process.wait(), 10), DeadlineExceeded, what="the late process")
            await silent(trial.root / "two", what="after the deadline")
        await raises(_shell(trial, "touch three", context=caller), RunCancelled, what="a start")
        expect(not trial.root.joinpath("three").exists(), "a cancelled caller's program was started")


@clause(CLAUSES, needs=_LOCAL)
async def no_process_outlives_the_sandbox(make: Any) -> None:
    """``close`` of the sandbox kills what its owner has not closed, and whoever reads is told."""
    async with opened(make) as trial:
        process = await _with_daemon(trial, "beat")
        reading = asyncio.ensure_future(process.read())
        await asyncio.sleep(0.05)
        await asyncio.wait_for(trial.sandbox.close(), 10)
        await silent(trial.root / "beat", what="after close")
        with contextlib.suppress(ToolError):
            expect(await asyncio.wait_for(reading, 10) == b"", "there was output")
        expect(await process.wait() != 0, "what was killed succeeded")
        await process.close()


@clause(CLAUSES, needs=_LOCAL)
async def no_process_outlives_a_cancelled_close(make: Any) -> None:
    """``close`` may be cancelled over and over: it goes on when all is gone."""
    async with opened(make) as trial:
        process = await _with_daemon(trial, "beat")
        closing = asyncio.ensure_future(process.close())
        while not closing.done():
            await asyncio.sleep(0)
            closing.cancel()
        await silent(trial.root / "beat", what="after the cancelled close")


@clause(CLAUSES, needs=_NEEDS)
async def processes_at_once_do_not_mix(make: Any) -> None:
    """Many at a time, commands among them, each get their own."""
    async with opened(make) as trial:

        async def one(number: int) -> None:
            async with await _shell(trial, f"read word; echo {number} $word; cat; exit {number}") as process:
                await process.write(f"word{number}\nrest".encode())
                await process.close_input()
                done = await trial.sandbox.execute(f"echo {number}", timeout=60)
                expect(done.stdout == f"{number}\n", f"a command got {done.stdout!r}")
                expect(await _all(process) == f"{number} word{number}\nrest".encode(), "another's output")
                expect(await process.wait() == number, "another's code")

        await asyncio.gather(*(one(number) for number in range(12)))
