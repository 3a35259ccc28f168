"""How the figures are printed, and where they were taken."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from .registry import DISTRIBUTIONS, MEDIA, Entry
from .works import Bench, Figure

TITLES = {
    "A": "A. Durable append of one turn (2 messages of 300 B, 1 KB of state) to a session: µs",
    "B": "B. Load of the whole session into the values its users work with: µs",
    "C": "C. Turns a second, all sessions at once in one process (×: the time of a turn)",
    "D": "D. Bytes on disk for each message, after turns appended one by one",
}


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def ratio(value: float) -> str:
    return f"×{value:,.0f}" if value >= 100 else f"×{value:.1f}" if value >= 10 else f"×{value:.2f}"


def cell(work: str, figure: Figure | None, floor: Figure | None) -> str:
    """One figure: median and ratio to the floor, the same of the best round, the worst round, how many."""
    if figure is None or not (figure.samples or figure.failure):
        return ""
    if not figure.samples:
        return "failed"
    middle = statistics.median(figure.samples)
    # Who was slow took part in the first rounds only, and is compared with the floor of those.
    base = floor.samples[: len(figure.samples)] if floor else []
    times = f" {ratio(middle / statistics.median(base))}" if base else ""
    best = f" {ratio(min(figure.samples) / min(base))}" if base else ""
    if work == "D":
        more = ""
        if figure.notes.get("allocated", 0) > 1.5 * middle:
            more = f" ({figure.notes['allocated']:,.0f} allocated, {figure.notes['files']:,} files)"
        return f"{number(middle)}{times}{more}"
    found = [middle, min(figure.samples), max(figure.samples)]
    if work == "C":
        found = [1e6 / value for value in found]
    middle, good, bad = map(number, found)
    text = f"{middle}{times} (best {good}{best}, worst {bad}; {len(figure.samples)})"
    if failed := figure.notes.get("failed appends"):
        text += f", {failed} appends failed"
    return text + (", then failed" if figure.failure else "")


def rows_of(bench: Bench, work: str) -> list[list[str]]:
    columns = [column for column in bench.figures[work] if column]
    rows = [["", *columns]]
    for medium, title in MEDIA.items():
        entries = [entry for entry in bench.who(medium, work) if any_figure(bench, work, entry)]
        if not entries:
            continue
        rows.append([f"**{title}**", *[""] * len(columns)])
        floor = next((entry.name for entry in entries if entry.floor), "")
        for entry in entries:
            found = [bench.figures[work][column] for column in columns]
            cells = [cell(work, figures.get(entry.name), figures.get(floor)) for figures in found]
            if entry.name in bench.figures[work].get("", {}):
                cells = ["failed" for _ in columns]
            rows.append([entry.name + mark(entry), *cells])
    return rows


def failures_of(bench: Bench) -> list[str]:
    """Return what failed, each text once: where, who and why."""
    places: dict[tuple[str, str], list[str]] = {}
    for work, columns in bench.figures.items():
        for column, figures in columns.items():
            for name, figure in figures.items():
                for text in filter(None, [figure.failure, figure.notes.get("first failure")]):
                    places.setdefault((name, text), []).append(f"{work} with {column}" if column else work)
    return [f"- {name}: {text} ({', '.join(where)})" for (name, text), where in places.items()]


def any_figure(bench: Bench, work: str, entry: Entry) -> bool:
    return any(entry.name in figures for figures in bench.figures[work].values())


def mark(entry: Entry) -> str:
    return " *" if entry.remark else ""


def markdown(rows: list[list[str]]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def show(bench: Bench, works: str, environment: dict[str, Any]) -> None:
    """Print everything to stdout, as Markdown."""
    print(f"# {bench_title(bench)}\n")
    for name, value in environment.items():
        shown = (
            ", ".join(f"{key} {what}" for key, what in value.items()) if isinstance(value, dict) else value
        )
        print(f"- {name}: {shown}")
    print(
        "\nMedians over interleaved rounds, × the floor of the medium (its first line) in the same rounds; in brackets the best round,"
        " × the floor's best, the worst one, and how many. Below ×1.3 two figures on a shared machine are the same."
    )
    if max(bench.load_before, os.getloadavg()[0]) > 1.5 * cores():
        print("\n**Others were using this machine: go by the best rounds.**")
    for work in works:
        if bench.figures[work]:
            print(f"\n## {TITLES[work]}\n\n{markdown(rows_of(bench, work))}")
    remarks: dict[str, list[str]] = {}
    for entry in bench.entries:
        if entry.remark and set(works) & set(entry.works):
            remarks.setdefault(entry.remark, []).append(entry.name)
    if failures := failures_of(bench):
        print("\n## Failures\n\n" + "\n".join(failures))
    if remarks:
        print("\n\\* " + "\n\\* ".join(f"{', '.join(names)}: {remark}." for remark, names in remarks.items()))


def bench_title(bench: Bench) -> str:
    return f"Sessions, the same work: {len([entry for entry in bench.entries if 'floor' not in entry.name])} stores"


def as_json(bench: Bench, environment: dict[str, Any]) -> dict[str, Any]:
    """Return all samples, for a file."""
    return {
        "environment": environment,
        "plan": vars(bench.plan),
        "figures": {
            work: {
                column: {name: vars(figure) for name, figure in found.items()}
                for column, found in columns.items()
            }
            for work, columns in bench.figures.items()
        },
    }


# -- where


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment_of(folder: Path, load_before: float) -> dict[str, Any]:
    return {
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "SQLite": sqlite3.sqlite_version,
        "cores": cores(),
        "load average": f"{load_before:.1f} before, {os.getloadavg()[0]:.1f} after",
        "file system": filesystem(folder),
        "fsync of 4 KB": f"{fsync(folder):,.0f} µs",
        "littleghost": version("littleghost"),
        "versions": {name: version(name) for name in DISTRIBUTIONS},
    }


def version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def filesystem(folder: Path) -> str:
    """Return the type of the file system that ``folder`` is on, as Linux names it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()]
    except OSError:
        return f"unknown ({sys.platform})"
    under = [(len(place), kind) for place, kind in mounts if folder.resolve().is_relative_to(place)]
    return max(under)[1] if under else "unknown"


def fsync(folder: Path, times: int = 50) -> float:
    """Return how many microseconds a write of 4 KB takes until the disk has it; the median."""
    found: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            start = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            found.append((time.perf_counter() - start) * 1e6)
    return statistics.median(found)
