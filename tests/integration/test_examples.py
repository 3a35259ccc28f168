"""Each example runs by itself, from any folder, and shows what it says it shows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# What each must show; a new example is run too, and has its words here.
SHOWS: dict[str, list[str]] = {
    "approval.py": [
        "suspended: [{'order': 'A7', 'amount': 900}]",
        "1 refund {'order': 'A7', 'amount': 900}",
        "exit status -",
        "completed: The refund: The tool was interrupted",
        "paid: ['900 for A7']",
    ],
    "own_store.py": ["0 failed", "This is message 2.", "This is message 4."],
    "resuming_worker.py": [
        "the first worker: exit status",
        "ann: completed - Done.",
        "ben: completed - Perhaps sent; I shall ask.",
        "cas: completed - Done.",
        "letters: ['ann', 'ben', 'cas']",
    ],
    "retention.py": ["kept: True", "gone: True", "ann's today: same", "bob's long-ago: written"],
    "shop.py": ["There are 9 of A7.", "4 messages are kept, and the state {'asked_for': ['A7']}"],
    "stream_events.py": [
        "runs      weather {'city': 'Graz'}",
        "committed 5 messages",
        "run ended completed",
        "2 model calls",
    ],
    "survive_a_kill.py": ["told: The tool was interrupted", 'completed - Sent to: ["ann"]', "mails sent: 1"],
    "sync_script.py": ["['Buy milk.', 'Buy bread.'] {'open': 2}", "You have said 2 things.", "RunEnded"],
}


def run(name: str, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_every_example_is_named_here():
    elsewhere = ("sandbox_", "coding_agent.py", "fastapi_app.py")  # below, and in test_example_web.py
    names = {path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith(elsewhere)}
    assert names == set(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_an_example_runs(name: str, tmp_path: Path):
    shown = run(name, tmp_path)
    for words in SHOWS[name]:
        assert words in shown


def test_a_refund_that_is_refused_is_not_paid(tmp_path: Path):
    assert "suspended" in run("approval.py", tmp_path, "ask")
    shown = run("approval.py", tmp_path, "answer", "no")
    assert "completed: The refund: The tool was not run" in shown
    assert "There are photos of the full parcel." in shown
    assert not (tmp_path / "paid.txt").exists()
    assert run("approval.py", tmp_path, "pending") == ""


def test_the_coding_agent_mends_the_program(tmp_path: Path, require: Callable[[object, str, str], None]):
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    shown = run("coding_agent.py", tmp_path)
    for words in ("ZeroDivisionError", "all tests pass", "return sum(numbers) / (len(numbers) or 1)"):
        assert words in shown


def test_the_shop_goes_on_with_its_conversation(tmp_path: Path):
    run("shop.py", tmp_path)
    assert "8 messages are kept, and the state {'asked_for': ['A7', 'A7']}" in run("shop.py", tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_the_kill_is_a_kill(tmp_path: Path):
    assert "--die: exit status -9" in run("survive_a_kill.py", tmp_path)
