"""One soak: clients are started, killed and started again, the medium is maltreated, and in the end everything is checked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from .check import check, figures
from .client import Orders
from .history import Book, Read
from .ledger import Key, entries
from .media import Medium, make, read_by_library

__all__ = ["Plan", "Result", "soak"]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 90.0
"""Seconds in which clients must end once they are told to: what waits for a store that is away must give up by then."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done.

    Attributes:
        store: ``sqlite``, ``postgres`` or ``agentcore``.
        seconds: For how long.
        seed: Of chance. The operating system's part of it cannot be repeated.
        clients: How many processes.
        pause: How long nothing happens between two faults, at most.
        broken: How the clients' stores are broken.
    """

    store: str
    seconds: float = 90.0
    seed: int = 0
    clients: int = 4
    pause: float = 1.5
    broken: str | None = None


@dataclass
class Result:
    """How it went.

    Attributes:
        faults: What is wrong, a sentence each; empty if nothing is.
        figures: See `figures`.
        survived: How often each thing was done to the store and its clients.
        seconds: How long the clients worked.
    """

    faults: list[str]
    figures: dict[str, Any]
    survived: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0


class _Clients:
    """The client processes, each with a ledger, and a new one for each time it is started."""

    def __init__(self, plan: Plan, medium: Medium, folder: Path) -> None:
        self._plan, self._medium, self._folder = plan, medium, folder
        self._running: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
        self._started = 0
        self.ledgers: list[Path] = []
        self.faults: list[str] = []

    def start(self, number: int, before: Path | None = None) -> None:
        ledger = self._folder / f"ledger-{number}.{self._started}"
        orders = Orders(
            url=self._medium.url,
            name=f"c{number}r{self._started}",
            ledger=str(ledger),
            before=None if before is None else str(before),
            seed=self._plan.seed * 1000 + self._started,
            broken=self._plan.broken,
            halves=self._medium.deletes_by_halves,
        )
        self._started += 1
        with ledger.with_suffix(f"{ledger.suffix}-err").open("wb") as errors:
            # Not in the foreground: Ctrl-C is for the one process that ends the others.
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak.client"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        process.stdin.flush()
        ledger.touch()
        self._running[number] = process, ledger
        self.ledgers.append(ledger)

    def wait_for_the_first(self) -> None:
        """Wait until somebody was told something, for there is a store then."""
        ends = time.monotonic() + PATIENCE
        while not any(b'"how":"ok"' in path.read_bytes() for path in self.ledgers):
            self.check()
            if time.monotonic() > ends:
                raise TimeoutError(f"no client has written anything; {self.faults[:3]}")
            time.sleep(0.02)

    def kill(self, number: int) -> None:
        """Kill one, and start another in its place."""
        process, ledger = self._running[number]
        process.kill()
        self._end(process)
        self._look(process, ledger, killed=True)
        self.start(number, ledger)

    def freeze(self, number: int, seconds: float) -> None:
        """Let one stand still, as where its machine does, and then go on as if nothing had been."""
        process, _ = self._running[number]
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def end(self, *, kill: bool = False) -> None:
        """Let all come to their end."""
        for process, _ in self._running.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            if kill:
                process.kill()
        for process, ledger in self._running.values():
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                self.faults.append(f"{ledger.name}: the client did not end within {PATIENCE:.0f} seconds")
            self._end(process)
            self._look(process, ledger, killed=kill)
        self._running.clear()

    def check(self) -> None:
        """Note who has ended by itself, and start another in its place."""
        for number, (process, ledger) in list(self._running.items()):
            if process.poll() is not None:
                self._end(process)
                self._look(process, ledger, killed=False)
                self.start(number, ledger)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait()

    def _look(self, process: subprocess.Popen[bytes], ledger: Path, *, killed: bool) -> None:
        if process.returncode and not (killed and process.returncode < 0):
            said = ledger.with_suffix(f"{ledger.suffix}-err").read_text("utf-8", "replace").strip()
            self.faults.append(f"{ledger.name}: the client ended with {process.returncode}: {said[-2000:]}")


def soak(plan: Plan, folder: Path, say: Callable[[str], None] = lambda _: None) -> Result:
    """Do all of it, and leave nothing running."""
    chance = random.Random(plan.seed)
    medium = make(plan.store, folder, chance)
    try:
        clients = _Clients(plan, medium, folder)
        began = time.monotonic()
        try:
            for number in range(plan.clients):
                clients.start(number)
            clients.wait_for_the_first()
            survived = _maltreat(plan, medium, clients, chance, say)
            clients.end()
        finally:
            clients.end(kill=True)
        seconds = time.monotonic() - began
        say(f"{plan.store}: checking what {len(clients.ledgers)} clients wrote down ...")
        result = _checked(medium, clients)
        result.survived, result.seconds = survived, seconds
        return result
    finally:
        medium.close()


def _maltreat(
    plan: Plan, medium: Medium, clients: _Clients, chance: random.Random, say: Callable[[str], None]
) -> Counter[str]:
    survived = Counter[str]()
    began = told = time.monotonic()
    while (now := time.monotonic()) - began < plan.seconds:
        if now - told > 5:
            told = now
            written = sum(path.stat().st_size for path in clients.ledgers)
            say(
                f"{plan.store}: {now - began:.0f} of {plan.seconds:.0f} s, {survived.total()} faults, "
                f"{written / 1e6:.1f} MB of ledgers"
            )
        time.sleep(min(chance.uniform(0, plan.pause), max(0.0, began + plan.seconds - now)))
        clients.check()
        act = chance.random()
        if act < 0.4:
            clients.kill(chance.randrange(plan.clients))
            survived["client killed"] += 1
        elif act < 0.5:
            clients.freeze(chance.randrange(plan.clients), chance.uniform(0.5, 2.5))
            survived["client stopped and continued"] += 1
        else:
            name = chance.choice(sorted(medium.faults))
            medium.faults[name]()
            survived[name] += 1
    return survived


def _checked(medium: Medium, clients: _Clients) -> Result:
    book = Book()
    for ledger in clients.ledgers:
        book.add(entries(ledger), ledger.name)
    book.reads += medium.seen
    medium.calm()
    final: dict[Key, list[Read]] = defaultdict(list)
    by_library, damaged = asyncio.run(read_by_library(medium.url, medium.known(book), book))
    by_sql = medium.read()
    for key, read in [*by_library, *by_sql]:
        final[key].append(read)
    faults = [*clients.faults, *medium.notes, *damaged, *medium.damage()]
    faults += check(book, final, strict_leases=medium.strict_leases, by_halves=medium.deletes_by_halves)
    if {key for key, _ in by_library} != {key for key, _ in by_sql}:
        faults.append("the library lists other sessions than are stored")
    found = figures(book)
    found["sessions at the end"] = len(final)
    found["load average"] = os.getloadavg()[0]
    found["medium"] = medium.figures()
    return Result(faults, found)
