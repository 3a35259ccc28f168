"""An event loop that signals stop: at its end, and never in its middle."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from littleghost import cli
from littleghost.cli.running import PATIENT, Stoppable, run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def everything_is_as_it_was_afterwards() -> Iterator[None]:
    def counts() -> tuple[int, int]:
        return threading.active_count(), len(os.listdir("/dev/fd"))

    handlers, (threads, files) = [*map(signal.getsignal, BOTH)], counts()
    yield
    assert [*map(signal.getsignal, BOTH)] == handlers
    if counts() != (threads, files):
        gc.collect()
    now = counts()
    assert now[0] <= threads  # what an earlier test left may end meanwhile
    assert now[1] <= files
    assert signal.set_wakeup_fd(-1) == -1


async def stopped_by(*numbers: int, done: list[str]) -> None:
    """Send signals to this very thread, and clear up over some turns of the loop."""
    for number in numbers:
        signal.raise_signal(number)
    try:
        await asyncio.sleep(60)
    finally:
        for _ in range(3):
            await asyncio.sleep(0)
        done.append("cleared up")


@pytest.mark.parametrize("times", range(1, PATIENT + 1))
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_work_when_it_has_cleared_up(number: signal.Signals, status: int, times: int):
    done: list[str] = []
    with pytest.raises((KeyboardInterrupt, SystemExit)) as raised, Stoppable(*BOTH) as stoppable:
        stoppable.run(stopped_by(*[number] * times, done=done))
    assert getattr(raised.value, "code", 130) == status
    assert done == ["cleared up"]


def test_the_first_signal_names_the_status():
    with pytest.raises(SystemExit), Stoppable(*BOTH) as stoppable:
        stoppable.run(stopped_by(signal.SIGTERM, signal.SIGINT, done=[]))


def test_a_signal_in_what_asyncio_clears_up_does_no_harm():
    done: list[str] = []

    async def left_over() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            done.append("cleared up")

    async def work() -> None:
        left = asyncio.ensure_future(left_over())
        await asyncio.sleep(0)
        assert not left.done()

    with pytest.raises(KeyboardInterrupt):
        run(work())
    assert done == ["cleared up"]


async def answer() -> str:
    await asyncio.sleep(0)
    return "done"


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_signal_that_does_not_meet_the_work_waiting_is_not_lost(when: str):
    done: list[str] = []

    async def work() -> None:
        if when == "within":
            signal.raise_signal(signal.SIGINT)
        else:
            await answer()
        done.append("worked")

    def all_of_it() -> None:
        with Stoppable() as stoppable:
            if when == "before":
                signal.raise_signal(signal.SIGINT)
                done.append("opened")
            stoppable.run(work())
            done.append("went on")
            if when == "after":
                signal.raise_signal(signal.SIGINT)
                done.append("put in place")

    with pytest.raises(KeyboardInterrupt):
        all_of_it()
    assert (
        done
        == {"before": ["opened"], "within": ["worked"], "after": ["worked", "went on", "put in place"]}[when]
    )


def test_what_follows_in_the_block_is_not_stopped_by_the_signal_before():
    with Stoppable() as stoppable:
        with pytest.raises(KeyboardInterrupt):
            stoppable.run(stopped_by(signal.SIGINT, done=[]))
        assert stoppable.run(answer()) == "done"

        async def fail() -> None:
            signal.raise_signal(signal.SIGINT)
            raise ValueError("an error says more than the signal")

        with pytest.raises(ValueError, match="says more"):
            stoppable.run(fail())
        assert stoppable.run(answer()) == "done"


@pytest.mark.timeout(20)
def test_a_signal_that_does_not_interrupt_the_wait_of_the_loop_ends_it_all_the_same():
    """As one that comes between the last look at the signals and the wait: Python knows of it, and the main thread sleeps on."""
    other = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    other.start()
    late = threading.Event()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        timer = threading.Timer(
            5, lambda: (late.set(), loop.call_soon_threadsafe(print))
        )  # or a failure would wait for ever
        timer.start()
        try:
            await asyncio.sleep(60)
        finally:
            timer.cancel()
            timer.join()

    with pytest.raises(KeyboardInterrupt):
        run(work())
    other.join()
    assert not late.is_set(), "something else woke it"


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "somebody else's"])
def test_a_signal_that_is_ignored_or_of_somebody_else_stays_that(handler: Any):
    before = [signal.signal(number, handler) for number in BOTH]
    try:
        with Stoppable(*BOTH) as stoppable:
            assert [signal.getsignal(number) for number in BOTH] == [handler, handler]
            for number in BOTH:
                signal.raise_signal(number)
            assert stoppable.run(answer()) == "done"
    finally:
        for number, handler_before in zip(BOTH, before, strict=True):
            signal.signal(number, handler_before)


STUCK = """
import asyncio, signal, sys, time
from littleghost.cli.running import run

async def blocked():
    for number in range(9):
        print(number, flush=True)
        signal.raise_signal(signal.SIGINT)

async def deaf():
    loop, number = asyncio.get_running_loop(), 0
    while True:
        print(number, flush=True)
        number += 1
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

run(globals()[sys.argv[1]]())
"""


@pytest.mark.parametrize("how", ["blocked", "deaf"])
def test_a_program_that_is_stuck_ends_at_the_fourth_press(how: str):
    done = subprocess.run(
        [sys.executable, "-c", STUCK, how], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (-signal.SIGINT, list("0123"), "")


def test_every_loop_of_the_command_line_is_such_a_one():
    folder = Path(cli.__file__).parent
    found = {
        path.name
        for path in folder.glob("*.py")
        if re.search(r"\basyncio\.(run|Runner|new_event_loop)\b", path.read_text("utf-8"))
    }
    assert found == {"running.py"}
