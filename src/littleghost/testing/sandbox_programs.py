"""Clauses about programs: how they start, what they are given, what is kept of their output, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from littleghost.errors import DeadlineExceeded, RunCancelled, ToolError
from littleghost.sandboxes.contract import Execution, SandboxLimits
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.sandbox_trial import Caller, Trial, daemon, opened, raises, silent, until

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

_VARIABLE = "LITTLEGHOST_KIT_VARIABLE"


@clause(CLAUSES, needs={"execute"})
async def arguments_are_not_read_by_a_shell(make: Any) -> None:
    """A program gets its arguments as they are."""
    arguments = ["$HOME", "a b", "*", "; echo x", "`id`", "'\"", "", "naïve 🜁", "-n", "new\nline"]
    async with opened(make) as trial:
        command = ["/bin/sh", "-c", 'for a in "$@"; do printf "%s|" "$a"; done', "sh", *arguments]
        done = await trial.sandbox.execute_program(command, timeout=20)
        expect(
            done.stdout == "".join(f"{argument}|" for argument in arguments),
            f"the arguments became {done.stdout!r}",
        )
        expect(done.success and done.error is None and done.exit_code == 0, f"it did not succeed: {done}")


@clause(CLAUSES, needs={"execute"})
async def a_shell_command_is_read_by_a_shell(make: Any) -> None:
    """``execute`` is ``/bin/sh -c``, and keeps the two streams apart."""
    async with opened(make) as trial:
        done = await trial.sandbox.execute("echo out | tr a-z A-Z; echo err >&2; exit 3", timeout=20)
        expect(
            (done.stdout, done.stderr, done.exit_code) == ("OUT\n", "err\n", 3), f"it went otherwise: {done}"
        )
        expect(not done.success, "exit code 3 is a success")


@clause(CLAUSES, needs={"execute"})
async def a_command_must_be_a_list_of_text(make: Any) -> None:
    """A string, an empty list, an empty program, a NUL and a non-positive time limit are `ToolError`."""
    async with opened(make) as trial:
        for command in ("true", [], [""], ["true", "a\0b"], ["true", 1], ["true", "\ud800"]):
            wrong: Any = command
            await raises(
                trial.sandbox.execute_program(wrong, timeout=20), ToolError, what=f"the command {command!r}"
            )
        for timeout in (0, -1):
            await raises(
                trial.sandbox.execute_program(["true"], timeout=timeout), ToolError, what=f"timeout={timeout}"
            )


@clause(CLAUSES, needs={"execute"})
async def exit_codes_are_those_of_a_shell(make: Any) -> None:
    """127 for a missing program, 126 for one that cannot be run, 128+N for death by signal N."""
    async with opened(make) as trial:
        expected: list[tuple[list[str], int]] = [
            (["/bin/sh", "-c", "exit 255"], 255),
            (["no-such-program-anywhere"], 127),
            (["/no/such/program"], 127),
            (["/etc"], 126),
            (["/bin/sh", "-c", "kill -KILL $$"], 137),
            (["/bin/sh", "-c", "kill -TERM $$"], 143),
        ]
        for command, code in expected:
            done = await trial.sandbox.execute_program(command, timeout=20)
            expect(done.exit_code == code, f"{command} ended with {done.exit_code}, not {code}: {done}")
            expect(not done.success and not done.timed_out, f"{command} is no success: {done}")


@clause(CLAUSES, needs={"execute"})
async def the_environment_is_what_was_given(make: Any) -> None:
    """It is empty, or exactly ``environment``; the application's comes only when asked for."""
    os.environ[_VARIABLE] = "hush"
    try:
        async with opened(make) as trial:

            async def lines(**options: Any) -> list[str]:
                done = await trial.sandbox.execute_program(["env"], timeout=20, **options)
                expect(done.exit_code == 0, f"env failed: {done}")
                return sorted(done.stdout.splitlines())

            expect(await lines() == [], f"without an environment there is {await lines()}")
            given = {"A": "1", "B": "x=y z", "EMPTY": "", "ÜMLAUT": "🜁"}
            expect(
                await lines(environment=given) == sorted(f"{k}={v}" for k, v in given.items()),
                "it is not what was given",
            )
            expect(
                f"{_VARIABLE}=hush" in await lines(inherit_environment=True),
                "asked for, the application's did not come",
            )
            for name in ("", "A=B", "A\0"):
                attempt = trial.sandbox.execute_program(["env"], timeout=20, environment={name: "x"})
                await raises(attempt, ToolError, what=f"a variable called {name!r}")
    finally:
        del os.environ[_VARIABLE]


@clause(CLAUSES, needs={"execute"})
async def standard_input_is_at_its_end(make: Any) -> None:
    """A program that reads without being given anything reads nothing, at once."""
    async with opened(make) as trial:
        done = await trial.sandbox.execute_program(["cat"], timeout=20)
        expect((done.stdout, done.exit_code) == ("", 0), f"cat read {done}")


@clause(CLAUSES, needs={"execute"})
async def input_is_passed_whole(make: Any) -> None:
    """Input of any size arrives, also while output flows, and also when nobody reads it."""
    text = "line 🜁\n" * 400_000
    async with opened(make) as trial:
        done = await trial.sandbox.execute_program(["wc", "-c"], timeout=60, input=text)
        expect(done.stdout.strip() == str(len(text.encode())), f"{done.stdout!r} bytes arrived")
        both = await trial.sandbox.execute_program(
            ["cat"], timeout=60, input=text, max_output_bytes=8_000_000
        )
        expect(both.stdout == text, "what came back is not what went in")
        unread = await trial.sandbox.execute_program(["true"], timeout=60, input=text.encode())
        expect(unread.success, f"a program that does not read its input: {unread}")


@clause(CLAUSES, needs={"execute", "files", "write"})
async def programs_and_files_share_the_workspace(make: Any) -> None:
    """A program starts in the workspace, or in ``cwd`` below it, and sees what the file methods see."""
    async with opened(make) as trial:
        await trial.sandbox.write("dir/file", "text")
        here = await trial.sandbox.execute_program(["cat", "dir/file"], timeout=20)
        below = await trial.sandbox.execute_program(["cat", "file"], timeout=20, cwd="dir")
        expect(here.stdout == below.stdout == "text", f"it does not see the file: {here} {below}")
        await trial.sandbox.execute("echo made > dir/made", timeout=20)
        expect(
            await trial.sandbox.read("dir/made") == "made\n",
            "the file method does not see what the program made",
        )
        for cwd in ("no", "dir/file", "..", "/", "../outside"):
            attempt = trial.sandbox.execute_program(["true"], timeout=20, cwd=cwd)
            await raises(attempt, ToolError, what=f"starting in {cwd!r}")


@clause(CLAUSES, needs={"execute"})
async def output_that_is_no_text_is_shown_as_far_as_it_is(make: Any) -> None:
    """Invalid bytes become U+FFFD, and the rest stays."""
    async with opened(make) as trial:
        done = await trial.sandbox.execute(r"printf 'good \377\376 bad\000end'", timeout=20)
        expect(done.stdout == "good \ufffd\ufffd bad\0end", f"it became {done.stdout!r}")


@clause(CLAUSES, needs={"execute"})
async def output_is_cut_in_the_middle(make: Any) -> None:
    """Of a stream above the cap, beginning and end are kept, and how much is missing is said; one at the cap is whole."""
    async with opened(make) as trial:
        command = "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done"
        done = await trial.sandbox.execute(f"{command}; echo short >&2", timeout=60, max_output_bytes=1000)
        size = len(done.stdout.encode())
        expect(size <= 1100, f"{size} bytes were kept of 1000")
        expect(done.stdout.startswith("line 0\nline 1\n"), "the beginning is missing")
        expect(done.stdout.endswith("line 4998\nline 4999\n"), "the end is missing")
        expect(
            "left out" in done.stdout or "truncated" in done.stdout,
            "it is not said that something is missing",
        )
        expect(
            done.stderr == "short\n" and done.exit_code == 0,
            f"the other stream or the code suffered: {done.stderr!r}",
        )
        whole = await trial.sandbox.execute("printf %s 1234567890", timeout=20, max_output_bytes=10)
        expect(whole.stdout == "1234567890", f"output at the cap was cut: {whole.stdout!r}")
        wide = await trial.sandbox.execute(
            "i=0; while [ $i -lt 500 ]; do printf ü🜁; i=$((i+1)); done", timeout=60, max_output_bytes=501
        )
        expect("\ufffd" not in wide.stdout, "a character was cut in two")


@clause(CLAUSES, needs={"execute"})
async def a_limit_bounds_what_a_call_asks_for(make: Any) -> None:
    """``limits.output_bytes`` and ``limits.wall_seconds`` hold whatever a call says."""
    async with opened(make, limits=SandboxLimits(output_bytes=200, wall_seconds=0.5)) as trial:
        done = await trial.sandbox.execute(
            "head -c 5000 /dev/zero | tr '\\0' x", timeout=20, max_output_bytes=4000
        )
        expect(len(done.stdout) < 300, f"{len(done.stdout)} bytes were kept")
        started = time.monotonic()
        done = await trial.sandbox.execute("sleep 30", timeout=None)
        expect(done.timed_out and time.monotonic() - started < 25, f"the time limit did not hold: {done}")


@clause(CLAUSES, needs={"execute", "local_files"}, timeout=120)
async def endless_output_costs_no_memory(make: Any) -> None:
    """300 MB in one line cost the application a few megabytes."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    async with opened(make) as trial:
        await trial.sandbox.execute("true", timeout=20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        done = await trial.sandbox.execute("head -c 300000000 /dev/zero | tr '\\0' x", timeout=90)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before
        expect(
            done.exit_code == 0 and len(done.stdout) <= 1_000_100,
            f"it went otherwise: {done.exit_code} {done.error}",
        )
        expect(grown < 48_000_000, f"it cost {grown:,} bytes")


@clause(CLAUSES, needs={"execute"})
async def a_background_child_delays_nothing(make: Any) -> None:
    """A command ends with its direct process, even if a child still holds the output."""
    async with opened(make) as trial:
        started = time.monotonic()
        done = await trial.sandbox.execute("sleep 30 & echo done", timeout=20)
        took = time.monotonic() - started
        expect((done.stdout, done.exit_code, done.error) == ("done\n", 0, None), f"it went otherwise: {done}")
        expect(took < 25, f"it took {took:.1f} s")


@clause(CLAUSES, needs={"execute"})
async def a_timeout_is_an_execution(make: Any) -> None:
    """A command that takes too long is told so, with its output so far, and soon."""
    async with opened(make) as trial:
        for command in ("echo so far; sleep 60", "echo so far; trap '' TERM INT HUP; while :; do :; done"):
            done = await _timed_out(partial(trial.sandbox.execute, command))
            expect(done.error is not None and "timed out" in done.error, f"the error is {done.error!r}")
            expect(not done.success and done.stdout == "so far\n", f"it went otherwise: {done}")


@clause(CLAUSES, needs={"execute"})
async def a_timeout_ends_a_flood(make: Any) -> None:
    """A program that prints without end is stopped in time too."""
    async with opened(make) as trial:
        done = await _timed_out(partial(trial.sandbox.execute_program, ["yes"], max_output_bytes=1000))
        expect(done.error is not None, "there was no time-out")
        expect(done.stdout.startswith("y\n"), "the output so far is missing")


async def _timed_out(run: Callable[..., Awaitable[Execution]]) -> Execution:
    """Run a command that never ends for half a second, or for as long as it takes a busy machine to have begun it."""
    seconds = 0.5
    while True:
        started = time.monotonic()
        done = await run(timeout=seconds)
        took = time.monotonic() - started
        expect(took < seconds + 20, f"it took {took:.1f} s")
        if done.stdout or seconds > 10:
            return done
        seconds *= 3


async def _started(trial: Trial, name: str) -> None:
    path = trial.root / name
    await until(lambda: path.exists() and path.stat().st_size > 4, what="the daemon did not start")


@clause(CLAUSES, needs={"execute", "kill_tree", "local_files"})
async def nothing_outlives_a_finished_command(make: Any) -> None:
    """A daemon out of its session, orphaned twice, is gone when the command that started it has ended."""
    async with opened(make) as trial:
        await trial.needs("setsid")
        done = await trial.sandbox.execute(
            f"{daemon('beat')}; while [ ! -s beat ]; do sleep 0.02; done; echo end", timeout=20
        )
        expect(done.stdout == "end\n" and done.exit_code == 0, f"it went otherwise: {done}")
        await silent(trial.root / "beat", what="after the end")


@clause(CLAUSES, needs={"execute", "kill_tree", "local_files"})
async def nothing_outlives_a_timeout(make: Any) -> None:
    """The same after a time-out."""
    async with opened(make) as trial:
        await trial.needs("setsid")
        done = await trial.sandbox.execute(f"{daemon('beat')}; sleep 30", timeout=1)
        expect(done.error is not None, "it did not time out")
        await silent(trial.root / "beat", what="after the time-out")


@clause(CLAUSES, needs={"execute", "kill_tree", "local_files"})
async def nothing_outlives_a_cancelled_task(make: Any) -> None:
    """When the task is cancelled, all is gone before the cancellation goes on."""
    async with opened(make) as trial:
        await trial.needs("setsid")
        task = asyncio.ensure_future(trial.sandbox.execute(f"{daemon('beat')}; sleep 30", timeout=20))
        await _started(trial, "beat")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        expect(task.cancelled(), "the cancellation was swallowed")
        await silent(trial.root / "beat", what="after the cancellation")


@clause(CLAUSES, needs={"execute", "kill_tree", "local_files"})
async def nothing_outlives_a_cancelled_or_late_caller(make: Any) -> None:
    """A context's cancellation raises `RunCancelled`, its deadline `DeadlineExceeded`, and all is gone."""
    async with opened(make) as trial:
        await trial.needs("setsid")
        caller = Caller()
        task = asyncio.ensure_future(
            trial.sandbox.execute(f"{daemon('one')}; sleep 30", timeout=20, context=caller)
        )
        await _started(trial, "one")
        caller.cancellation.cancel("enough")
        await raises(asyncio.wait_for(task, 10), RunCancelled, what="the cancelled command")
        await silent(trial.root / "one", what="after the cancellation")
        late = trial.sandbox.execute(f"{daemon('two')}; sleep 30", timeout=20, context=Caller(seconds=1))
        await raises(asyncio.wait_for(late, 10), DeadlineExceeded, what="the late command")
        await silent(trial.root / "two", what="after the deadline")
        await raises(
            trial.sandbox.execute("touch three", timeout=20, context=Caller(checks=1)),
            RunCancelled,
            what="a start",
        )
        expect(not trial.root.joinpath("three").exists(), "a cancelled caller's command was run")


@clause(CLAUSES, needs={"execute", "kill_tree", "local_files"})
async def nothing_outlives_close(make: Any) -> None:
    """``close`` ends what is running, tells whoever waits for it, and leaves nothing."""
    async with opened(make) as trial:
        await trial.needs("setsid")
        task = asyncio.ensure_future(trial.sandbox.execute(f"{daemon('beat')}; sleep 30", timeout=20))
        await _started(trial, "beat")
        await asyncio.wait_for(trial.sandbox.close(), 10)
        await silent(trial.root / "beat", what="after close")
        done: Execution | ToolError
        try:
            done = await asyncio.wait_for(task, 10)
        except ToolError as error:
            done = error
        expect(isinstance(done, ToolError) or not done.success, f"a command that was ended succeeded: {done}")


@clause(CLAUSES, needs={"execute", "kill_tree", "local_files"})
async def what_keeps_forking_is_killed_too(make: Any) -> None:
    """Processes that replace themselves in a tight loop do not slip through."""
    forking = "f() { echo x >> beat; ( f ) & exit; }; f"
    async with opened(make) as trial:
        done = await trial.sandbox.execute(f"( ( {forking} ) & ) ; sleep 30", timeout=1)
        expect(done.error is not None, f"it did not time out: {done}")
        await silent(trial.root / "beat", what="after the time-out")


@clause(CLAUSES, needs={"execute"})
async def commands_at_once_do_not_mix(make: Any) -> None:
    """Many commands at a time each get their own input, output and exit code."""
    async with opened(make) as trial:

        async def one(number: int) -> None:
            done = await trial.sandbox.execute(
                f"cat; echo err{number} >&2; sleep 0.2; exit {number}", timeout=60, input=f"in{number}"
            )
            said = (done.stdout, done.stderr, done.exit_code)
            expect(said == (f"in{number}", f"err{number}\n", number), f"command {number} got {said}")

        await asyncio.gather(*(one(number) for number in range(24)))
