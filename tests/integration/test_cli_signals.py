"""Ctrl-C and SIGTERM, twice and at the worst moment: the command line ends, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from littleghost import Message, sync

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of Unix")

LITTLEGHOST = [sys.executable, "-m", "littleghost.cli"]

# The real program, sent signals where what a handler raises does the most harm: the loop has taken a task's wake-up out of its queue, and
# not run it yet. Each comes at a wake-up of its own, the first once the handler in force has the name that is given.
AT_THE_WORST = """
import asyncio.events, signal, sys, threading
from littleghost.cli import main

numbers = [int(number) for number in sys.argv.pop(1).split(",")]
handler = sys.argv.pop(1)
run = asyncio.events.Handle._run

def interrupted(handle):
    if numbers and threading.current_thread() is threading.main_thread() and "wakeup" in repr(handle._callback).lower():
        if handler in getattr(signal.getsignal(signal.SIGINT), "__qualname__", ""):
            signal.raise_signal(numbers.pop(0))
    run(handle)

asyncio.events.Handle._run = interrupted
main()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LITTLEGHOST_"))
    }
    return {**kept, "XDG_DATA_HOME": str(tmp_path / "data"), "COLUMNS": "120", "PYTHONWARNINGS": "error"}


def fill(path: Path, number: int) -> None:
    with sync.SQLiteStore(path, durability="off") as store:
        for at in range(number):
            store.append(
                f"s{at}", messages=[Message.user("x" * 500)] * 10, state={}, metadata={}, expected_count=0
            )


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ([signal.SIGINT] * 2, 130),
        ([signal.SIGINT] * 3, 130),
        ([signal.SIGTERM], 143),
        ([signal.SIGTERM] * 2, 143),
        ([signal.SIGTERM, signal.SIGINT], 143),
    ],
    ids=str,
)
def test_signals_where_a_wake_up_would_be_lost_end_an_export(
    environment: dict[str, str], tmp_path: Path, numbers: list[signal.Signals], status: int
):
    fill(tmp_path / "a.db", 20)
    (tmp_path / "out").mkdir()
    sent = ",".join(str(int(number)) for number in numbers)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            AT_THE_WORST,
            sent,
            "",
            "sessions",
            "export",
            "-o",
            "out/a",
            "--store",
            "sqlite:///a.db",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
        cwd=tmp_path,
    )
    said = "interrupted; out/a is as it was before\n" if status == 130 else ""
    assert (done.returncode, done.stdout, done.stderr) == (status, "", said)
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize("command", ["import", "copy", "verify", "list"])
def test_two_presses_where_a_wake_up_would_be_lost_end_every_command(
    environment: dict[str, str], tmp_path: Path, command: str
):
    fill(tmp_path / "a.db", 20)
    words = {
        "import": ["import", "a", "--store", "sqlite:///b.db"],
        "copy": ["copy", "sqlite:///a.db", "sqlite:///b.db"],
    }.get(command, [command, "--store", "sqlite:///a.db"])
    if command == "import":
        subprocess.run(
            [*LITTLEGHOST, "sessions", "export", "-o", "a", "--store", "sqlite:///a.db"],
            env=environment,
            cwd=tmp_path,
            check=True,
        )
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_WORST, "2,2", "", "sessions", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM], ids=str)
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_two_signals_at_any_moment_end_an_export(
    environment: dict[str, str], tmp_path: Path, first: signal.Signals, second: signal.Signals
):
    fill(tmp_path / "a.db", 400)
    (tmp_path / "out").mkdir()
    for number in range(3):
        with subprocess.Popen(
            [*LITTLEGHOST, "sessions", "export", "-o", f"out/{number}", "--store", "sqlite:///a.db"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
        ) as child:
            try:
                while not any(name.startswith((".", str(number))) for name in os.listdir(tmp_path / "out")):
                    assert child.poll() is None
                    time.sleep(0.001)
                time.sleep(random.uniform(0, 0.1))
                child.send_signal(first)
                time.sleep(random.choice([0, 0.0005, 0.002, 0.01, 0.05]) * random.random())
                child.send_signal(second)
                _, errors = child.communicate(timeout=60)
            finally:
                child.kill()
        # It may be done by then; and once all is cleared away, either does what it does to any program.
        assert child.returncode in {0, 130, 143, -first, -second}
        assert "Traceback" not in errors
        left = os.listdir(tmp_path / "out")
        assert str(number) in left or child.returncode not in ({0} if first == second else {0, -first})
        assert not [name for name in left if name.endswith(".part")]
        assert not re.search("as it was before", errors) or str(number) not in left


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)], ids=str
)
def test_one_signal_ends_an_export_into_a_pipe_that_nobody_reads(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals, status: int
):
    fill(tmp_path / "a.db", 100)
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        [*LITTLEGHOST, "sessions", "export", "-o", "pipe", "--store", "sqlite:///a.db"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    ) as child:
        try:
            with (tmp_path / "pipe").open("rb") as reader:
                assert reader.read(10)  # and no more, so that it stands still
                time.sleep(0.3)
                child.send_signal(number)
                _, errors = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == status
    assert errors == ("interrupted; the output is cut\n" if status == 130 else "")


# The real program, in which a signal comes while Python calls what waits for the end of an object: before the event loop of the command is
# there, or once it is gone.
AT_AN_END = """
import signal, sys, weakref
from littleghost.cli import main
from littleghost.cli.running import Stoppable

class Thing:
    pass

def press():
    thing = Thing()
    reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing

enter, leave = Stoppable.__enter__, Stoppable.__exit__

def entered(self):
    if sys.argv[0] == "before":
        press()
    return enter(self)

def left(self, *given):
    try:
        return leave(self, *given)
    finally:
        press()

Stoppable.__enter__, Stoppable.__exit__ = entered, left
sys.argv.pop(0)
main()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_at_the_end_of_an_object_is_neither_lost_nor_shown(
    environment: dict[str, str], tmp_path: Path, when: str
):
    fill(tmp_path / "a.db", 100)
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            AT_AN_END,
            when,
            "sessions",
            "export",
            "-o",
            "pipe",
            "--store",
            "sqlite:///a.db",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    ) as child:
        try:
            with (tmp_path / "pipe").open(
                "rb"
            ) as reader:  # of which no more than this is read, so that it stands still
                if when == "after":
                    assert reader.read(10)
                    child.send_signal(signal.SIGINT)
                _, errors = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == 130
    assert errors in (
        {"interrupted; the output is cut\n"} if when == "after" else {"", "interrupted; the output is cut\n"}
    )
