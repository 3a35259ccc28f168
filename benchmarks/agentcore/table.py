"""How the figures are printed: as Markdown."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from importlib import metadata

from .metering import OPERATIONS, Tally
from .works import ENTRIES, Bench, Figures

DOLLARS_PER_EVENT = 0.25 / 1000
"""What AWS charges for a new event; it does not charge for lists."""

DISTRIBUTIONS = (
    "boto3", "bedrock-agentcore", "strands-agents", "langgraph-checkpoint-aws", "langgraph", "langchain-core",
)  # fmt: skip
"""Whose versions are printed."""


def size(count: int) -> str:
    """Return bytes in the unit that leaves two or three digits."""
    for unit, scale in (("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            value = count / scale
            return f"{value:,.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{count} B"


def cell(tally: Tally) -> str:
    """Return the calls by the first letter of their operation, and the bytes there and back."""
    letters = {"DeleteEvent": "D", "ListSessions": "S"}
    calls = [
        f"{tally.calls[name]:,} {letters.get(name, name[0])}" for name in OPERATIONS if tally.calls[name]
    ]
    return f"{' + '.join(calls)}; {size(tally.sent)} + {size(tally.received)}"


def price(figures: Figures) -> str:
    """Return the events of a turn, and the dollars for a thousand such turns; both again as the mean of all turns so far."""
    each = figures.warm_turn.events
    text = f"{each} = ${each * DOLLARS_PER_EVENT * 1000:.2f}"
    if figures.filled:
        mean = figures.events / figures.filled
        text += f"; mean {mean:.2f} = ${mean * DOLLARS_PER_EVENT * 1000:.2f}, dearest {figures.most_events}"
    return text


TABLES: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("A turn by the process that made the one before", lambda found: cell(found.warm_turn)),
    ("The first turn of a process, which loads the session", lambda found: cell(found.cold_turn)),
    ("A load by a new process", lambda found: cell(found.cold_load)),
    ("A load by a process that has loaded before", lambda found: cell(found.warm_load)),
    ("Events of a turn, and the price of 1,000 turns at $0.25 for 1,000 events", price),
)


def markdown(rows: list[list[str]]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def versions() -> str:
    names = ", ".join(f"{name} {metadata.version(name)}" for name in DISTRIBUTIONS)
    return f"littleghost {metadata.version('littleghost')}; {names}; Python {platform.python_version()}"


def show(bench: Bench) -> None:
    """Print everything to stdout."""
    print("# Sessions in AgentCore Memory, by client\n")
    print(f"* {versions()}")
    print(
        '* Through boto3 and HTTP against our emulator, pages by "scan". A turn is 2 messages of 300 B and 1 KB of new state.\n'
        "* C CreateEvent, L ListEvents, G GetEvent; then the bytes of the requests' bodies + those of the answers.\n"
        "* With the turns that are counted a session has the messages that its column says."
    )
    for title, shown in TABLES:
        rows = [["", *(f"{length:,} messages" for length in bench.lengths)]]
        for entry in ENTRIES:
            found = [bench.figures[length][entry.name] for length in bench.lengths]
            rows.append([entry.name, *("not run" if one.missing else shown(one) for one in found)])
        print(f"\n## {title}\n\n{markdown(rows)}")
    notes = [
        f"* {entry.name}, {length:,} messages: not run, {figures.missing}."
        for length in bench.lengths
        for entry in ENTRIES
        if (figures := bench.figures[length][entry.name]).missing
    ]
    notes += [
        f"* {entry.name}: **{figures.loaded:,} of {length:,} messages came back.**"
        for length in bench.lengths
        for entry in ENTRIES
        if not (figures := bench.figures[length][entry.name]).missing and figures.loaded != length
    ]
    if notes:
        print("\n" + "\n".join(notes))


def show_checks(results: Mapping[str, str]) -> None:
    """Print what the other clients did against the emulator; a text says why a check failed."""
    failed = sum(map(bool, results.values()))
    print(
        f"\n## Other clients against the emulator: {len(results) - failed} of {len(results)} checks passed\n"
    )
    print(
        "\n".join(
            f"* {'**failed**' if why else 'passed'}: {name}{why and f' – {why}'}"
            for name, why in results.items()
        )
    )
