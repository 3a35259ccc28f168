"""The works: what every subject does, and how it is timed.

Rounds are interleaved and their order rotates, so that a slow minute of the machine falls on all. A subject that has used up its
seconds gets no more rounds, beyond the fewest: the slow ones are known well enough. Every subject has to prove its work: what it was
given is loaded again and counted.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .registry import MEDIA, Entry, Medium
from .server import OwnDatabase, Server
from .subject import Subject

PATIENCE = 600
"""Seconds after which a subject that does not answer has failed."""


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    lengths: tuple[int, ...] = (10, 1_000, 10_000)
    append_rounds: int = 12
    load_rounds: int = 30
    block: int = 12
    seconds: float = 3.0
    writers: int = 64
    turns: int = 20
    together_rounds: int = 5
    together_seconds: float = 8.0
    size_turns: int = 1_000
    fewest: int = 3


QUICK = Plan(
    lengths=(10, 1_000),
    append_rounds=5,
    load_rounds=10,
    seconds=1.0,
    turns=5,
    together_rounds=2,
    together_seconds=1.0,
    size_turns=100,
    fewest=2,
)


@dataclass
class Figure:
    """What one subject showed in one column.

    Attributes:
        samples: Microseconds for a turn, or bytes for a message.
        failure: Why there are no more samples.
        notes: What else was seen, such as appends that failed.
    """

    samples: list[float] = field(default_factory=list)
    failure: str = ""
    notes: dict[str, Any] = field(default_factory=dict)


class WrongCountError(Exception):
    """A subject did not keep what it was given."""


def check_count(found: int, wanted: int) -> None:
    if found != wanted:
        raise WrongCountError(f"{found:,} messages are stored where {wanted:,} were given")


class Bench:
    """One run: who takes part, where, and what was found.

    Args:
        entries: Who takes part.
        plan: How much is done.
        folder: An empty folder for all files.
        server: PostgreSQL.
    """

    def __init__(self, entries: Sequence[Entry], plan: Plan, folder: Path, server: Server) -> None:
        self.entries, self.plan, self.folder, self.server = entries, plan, folder, server
        self.figures: dict[str, dict[str, dict[str, Figure]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(Figure))
        )
        self.postgres: dict[str, str] = {}
        self.load_before = os.getloadavg()[0]
        self.start = time.monotonic()

    def who(self, medium: Medium, works: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.medium == medium and set(works) & set(entry.works)]

    def figure(self, work: str, column: str, entry: Entry) -> Figure:
        return self.figures[work][column][entry.name]

    def enough(self, entry: Entry, figure: Figure, seconds: float, fewest: int) -> bool:
        # The floor takes part in every round, for the others are compared with it round by round.
        return (
            not entry.floor and figure.notes.get("seconds", 0.0) > seconds and len(figure.samples) >= fewest
        )

    def say(self, text: str, *, passing: bool = False) -> None:
        """Tell on stderr how far it is; a ``passing`` line only to a terminal, which overwrites it."""
        line = f"[{time.monotonic() - self.start:4.0f} s] {text}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line[:110]}", end="" if passing else "\n", file=sys.stderr, flush=True)
        elif not passing:
            print(line, file=sys.stderr, flush=True)

    @asynccontextmanager
    async def blame(
        self, entry: Entry, figures: Iterable[Figure], leaves: dict[Entry, Subject] | None = None
    ) -> AsyncGenerator[None]:
        """Let an exception be a failure of ``entry`` and of nobody else: it is noted, and ``entry`` leaves the others."""
        try:
            async with asyncio.timeout(PATIENCE):
                yield
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is its result
            for figure in figures:
                figure.failure = described(error)
            self.say(f"FAILED {entry.name}: {described(error)}")
            if leaves is not None:
                leaves.pop(entry, None)

    @asynccontextmanager
    async def opened(
        self, entry: Entry, then: Callable[[Path], None] | None = None
    ) -> AsyncGenerator[Subject]:
        """Give a subject with nothing in it; ``then`` sees its folder after it was closed."""
        kind = entry.load()
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        database: OwnDatabase | None = None
        try:
            if entry.medium == "postgres":
                database = await self.server.database()
            subject = kind(folder, database)
            try:
                await subject.open()
                yield subject
            finally:
                await self.tidy(entry, subject.close())
            if then is not None:
                then(folder)
        finally:
            if database is not None:
                await self.tidy(entry, self.server.drop(database))
            shutil.rmtree(folder, ignore_errors=True)

    async def tidy(self, entry: Entry, work: Awaitable[None]) -> None:
        """Do what comes after the figures; when it fails, the figures stand."""
        try:
            async with asyncio.timeout(30):
                await work
        except Exception as error:  # noqa: BLE001 - see above
            self.say(f"closing {entry.name}: {described(error)}")

    # -- A and B

    async def appends_and_loads(self, medium: Medium, works: str) -> None:
        for length in self.plan.lengths:
            column = f"{length:,} messages"
            async with AsyncExitStack() as stack:
                subjects: dict[Entry, Subject] = {}
                for entry in self.who(medium, works):
                    self.say(f"{MEDIA[medium]}: {column} for {entry.name}", passing=True)
                    figures = [self.figure(work, column, entry) for work in works if work in "AB"]
                    async with self.blame(entry, figures, subjects):
                        subject = await stack.enter_async_context(self.opened(entry))
                        await subject.fill("filled", length // 2)
                        check_count(len(await subject.load("filled")), length)
                        subjects[entry] = subject
                gc.collect()
                gc.freeze()
                if "B" in works:
                    self.say(f"{MEDIA[medium]}: loads of {column}")
                    await self.loads(dict(subjects), length, column)
                if "A" in works:
                    self.say(f"{MEDIA[medium]}: appends to {column}")
                    await self.appends(dict(subjects), length, column)
                gc.unfreeze()
                self.say("closing", passing=True)

    async def loads(self, subjects: dict[Entry, Subject], length: int, column: str) -> None:
        for number in range(self.plan.load_rounds):
            for entry in rotated(subjects, number):
                figure = self.figure("B", column, entry)
                if self.enough(entry, figure, self.plan.seconds, self.plan.fewest):
                    continue
                async with self.blame(entry, [figure], subjects):
                    gc.collect()  # or a load pays for the garbage of its neighbour
                    subject = subjects[entry]
                    block = self.plan.block if length < 1_000 else 1
                    start = time.perf_counter()
                    for _ in range(block):
                        found = await subject.load("filled")
                    took = time.perf_counter() - start
                    check_count(len(found), length)
                    note(figure, took / block * 1e6, took)
                    del found

    async def appends(self, subjects: dict[Entry, Subject], length: int, column: str) -> None:
        """Time blocks of appends, each after one that is not timed.

        A short session is made anew for each round, and ends with at most 34 messages; a longer one grows by all appends, by a third
        at most.
        """
        grows = length >= 1_000
        stored = dict.fromkeys(subjects, length)
        for number in range(self.plan.append_rounds):
            for entry in rotated(subjects, number):
                figure = self.figure("A", column, entry)
                if self.enough(entry, figure, self.plan.seconds, self.plan.fewest):
                    continue
                subject, session = subjects[entry], "filled" if grows else f"round-{number}"
                async with self.blame(entry, [figure], subjects):
                    if not grows:
                        await subject.fill(session, length // 2 - 1)
                        stored[entry] = length - 2
                    gc.collect()
                    start = time.perf_counter()
                    await subject.append(session)
                    once = time.perf_counter() - start
                    block = max(1, min(self.plan.block, int(0.05 / once)))
                    start = time.perf_counter()
                    for _ in range(block):
                        await subject.append(session)
                    took = time.perf_counter() - start
                    stored[entry] += 2 * (block + 1)
                    note(figure, took / block * 1e6, once + took)
                    if number == 0 or not grows:
                        check_count(len(await subject.load(session)), stored[entry])

    # -- C

    async def together(self, medium: Medium) -> None:
        plan = self.plan
        column = f"{plan.writers} sessions × {plan.turns} turns"
        entries = self.who(medium, "C")
        for number in range(plan.together_rounds):
            self.say(f"{MEDIA[medium]}: {column}, round {number + 1} of {plan.together_rounds}")
            for entry in rotated(entries, number):
                figure = self.figure("C", column, entry)
                if figure.failure or self.enough(entry, figure, plan.together_seconds, 2):
                    continue
                self.say(f"{MEDIA[medium]}: {column} for {entry.name}", passing=True)
                async with self.blame(entry, [figure]), self.opened(entry) as subject:
                    await self.one_together(subject, figure)

    async def one_together(self, subject: Subject, figure: Figure) -> None:
        plan = self.plan
        sessions = [f"session-{index}" for index in range(plan.writers)]
        gc.collect()
        start = time.perf_counter()
        failures = await subject.together(sessions, plan.turns)
        took = time.perf_counter() - start
        done = plan.writers * plan.turns - len(failures)
        if not done:
            raise failures[0]
        stored = sum([len(await subject.load(session)) for session in sessions])
        if stored < 2 * done:
            raise WrongCountError(
                f"{2 * done - stored:,} messages are lost of {2 * done:,} that were acknowledged"
            )
        if failures:
            figure.notes["failed appends"] = figure.notes.get("failed appends", 0) + len(failures)
            figure.notes["first failure"] = described(failures[0])
        note(figure, took / done * 1e6, took)

    # -- D

    async def sizes(self, medium: Medium) -> None:
        turns = self.plan.size_turns
        column = f"{turns:,} turns"
        for entry in self.who(medium, "D"):
            self.say(f"{MEDIA[medium]}: {column} for {entry.name}", passing=sys.stderr.isatty())
            figure = self.figure("D", column, entry)

            def measure(folder: Path, figure: Figure = figure) -> None:
                files = [file.stat() for file in folder.rglob("*") if file.is_file()]
                figure.samples.append(sum(file.st_size for file in files) / turns / 2)
                figure.notes |= {
                    "allocated": sum(file.st_blocks * 512 for file in files) / turns / 2,
                    "files": len(files),
                }

            start = time.perf_counter()
            async with (
                self.blame(entry, [figure]),
                self.opened(entry, measure if medium == "sqlite" else None) as subject,
            ):
                for _ in range(turns):
                    await subject.append("grown")
                figure.notes["seconds"] = time.perf_counter() - start
                check_count(len(await subject.load("grown")), 2 * turns)
                if medium == "postgres":
                    figure.samples.append(await subject.database.size() / turns / 2)

    async def run(self, works: str) -> None:
        """Do ``works``, one medium after the other."""
        for medium in MEDIA:
            if not self.who(medium, works):
                continue
            if medium == "postgres":
                self.say("starting PostgreSQL")
                try:
                    self.server.start()
                    self.postgres = await self.server.settings()
                except Exception as error:  # noqa: BLE001 - the other medium's figures are worth printing
                    self.say(f"FAILED PostgreSQL: {described(error)}")
                    self.postgres = {"failed": described(error)}
                    for entry, work in itertools.product(self.who(medium, works), works):
                        if work in entry.works:
                            self.figure(work, "", entry).failure = "PostgreSQL did not start"
                    continue
            if set("AB") & set(works):
                await self.appends_and_loads(medium, works)
            if "C" in works:
                await self.together(medium)
            if "D" in works:
                await self.sizes(medium)
        self.say(f"done, load average {os.getloadavg()[0]:.1f}")


def described(error: BaseException) -> str:
    """Return what an error is, on one line that is not too long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def note(figure: Figure, sample: float, seconds: float) -> None:
    figure.samples.append(sample)
    figure.notes["seconds"] = figure.notes.get("seconds", 0.0) + seconds


def rotated(entries: Iterable[Entry], by: int) -> list[Entry]:
    """Return ``entries`` beginning with another one in each round."""
    found = list(entries)
    by %= max(1, len(found))
    return found[by:] + found[:by]
