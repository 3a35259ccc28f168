"""The work: a session is filled, then turns and loads are counted."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from littleghost.emulators.agentcore import AgentCoreEmulator, Call

from .metering import Meter, Tally
from .subject import Subject


@dataclass(frozen=True)
class Entry:
    """One line of the tables: what it is called, and where its class is."""

    name: str
    module: str
    kind: str

    def load(self) -> type[Subject]:
        return getattr(importlib.import_module(f"{__package__}.{self.module}"), self.kind)


ENTRIES = (
    Entry("littleghost, `Session.append` of both messages", "ours", "Appending"),
    Entry("littleghost, run of an agent", "ours", "Running"),
    Entry("bedrock-agentcore, Strands agent", "strands_sessions", "Managed"),
    Entry("bedrock-agentcore, the same, `batch_size=10`", "strands_sessions", "Batched"),
    Entry("langgraph-checkpoint-aws, graph, `legacy`", "langgraph_savers", "Saved"),
    Entry("langgraph-checkpoint-aws, graph, `snapshot`", "langgraph_savers", "Snapshots"),
)


@dataclass
class Figures:
    """What one client costs with sessions of one length.

    Attributes:
        warm_turn: A turn by the process that made the one before.
        cold_turn: The first turn of a process, which loads the session for it.
        cold_load: The session, read by a new process.
        warm_load: The same, by a process that has read it before.
        filled: How many turns were made one by one before these.
        events: How many events those wrote.
        most_events: How many events the dearest of them wrote.
        loaded: How many messages a load returned.
        missing: Why there is nothing.
    """

    warm_turn: Tally = field(default_factory=Tally)
    cold_turn: Tally = field(default_factory=Tally)
    cold_load: Tally = field(default_factory=Tally)
    warm_load: Tally = field(default_factory=Tally)
    filled: int = 0
    events: int = 0
    most_events: int = 0
    loaded: int = 0
    missing: str = ""


class Bench:
    """All figures, by length and client.

    Args:
        lengths: How many messages the sessions have.
        skip: Pairs of a client's class and a length that are left out.
    """

    def __init__(self, lengths: Sequence[int], skip: Sequence[tuple[str, int]] = ()) -> None:
        self.lengths, self.skip = lengths, skip
        self.figures: dict[int, dict[str, Figures]] = {length: {} for length in lengths}

    async def run(self) -> None:
        for length in self.lengths:
            for entry in ENTRIES:
                began = time.monotonic()
                self.figures[length][entry.name] = await self._measured(entry, length)
                print(
                    f"  {length:,} messages, {entry.name}: {time.monotonic() - began:.1f} s", file=sys.stderr
                )

    async def _measured(self, entry: Entry, length: int) -> Figures:
        kind = entry.load()
        if kind.longest is not None and length > kind.longest[0]:
            return Figures(missing=kind.longest[1])
        if (entry.kind, length) in self.skip:
            return Figures(missing="left out by --quick")
        figures, written = Figures(), 0

        def on_call(call: Call) -> None:
            nonlocal written
            written += call.operation == "CreateEvent"

        # An emulator of its own for each, so that no session is held in memory longer than it is measured.
        with AgentCoreEmulator(pagination="scan", record=False, on_call=on_call) as emulator:
            meter = Meter(emulator.endpoint_url)
            subject = kind(emulator, f"s-{length}")

            def after() -> None:
                figures.filled += 1
                figures.most_events = max(figures.most_events, written - figures.events)
                figures.events = written

            # With the turns that are counted the session is as long as it says.
            await subject.fill(length // 2 - (2 if subject.holds else 1), after)
            with meter.counting() as figures.cold_turn:
                await subject.turn()
            figures.warm_turn = figures.cold_turn
            if subject.holds:
                with meter.counting() as figures.warm_turn:
                    await subject.turn()
            await subject.restart()
            with meter.counting() as figures.cold_load:
                figures.loaded = await subject.load()
            figures.warm_load = figures.cold_load
            if subject.holds:
                with meter.counting() as figures.warm_load:
                    await subject.load()
            await subject.restart()
            return figures
