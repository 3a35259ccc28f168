"""How far a command is, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from littleghost import ALL_ACTORS, AllActors, SessionStore, Transferred
from littleghost.cli.terminal import Terminal, printable, quoted
from littleghost.sessions.transfer import TAKEN

__all__ = ["Tally", "failure", "named", "progress", "sessions_of"]

BY_OPTION = (
    "another session has this key; --existing skip leaves that one alone, --existing replace replaces it"
)


@contextmanager
def progress(
    terminal: Terminal, what: str, total: int | None, *, hidden: bool = False
) -> Generator[Callable[[int], None]]:
    """Show a bar on standard error while the block lasts, where that is a terminal, and return what moves it on.

    Args:
        terminal: Where to show it.
        what: What is done.
        total: How much there is; ``None`` where that is not known.
        hidden: Show none after all.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=terminal.err,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=hidden or not watched(),
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda number: bar.advance(task, number)


def watched() -> bool:
    """Whether somebody sees what is written to standard error."""
    return sys.stderr.isatty()


async def sessions_of(store: SessionStore, actor: str | AllActors | None = ALL_ACTORS) -> int | None:
    """Return how many sessions there are to go through, where somebody wants to know and the store can tell."""
    if not watched() or "statistics" not in store.capabilities:
        return None
    return (await store.statistics(actor_id=actor)).sessions


class Tally:
    """How many sessions had which outcome, and which failed."""

    def __init__(self, terminal: Terminal, *, as_json: bool, prune: bool = False) -> None:
        self._terminal = terminal
        self._as_json = as_json
        self.counts = {"written": 0, "same": 0, "replaced": 0, "skipped": 0}
        if prune:
            self.counts["pruned"] = 0
        self.messages = 0
        self.failed: list[dict[str, Any]] = []

    def add(self, done: Transferred) -> None:
        """Count one, and say at once what failed."""
        if done.outcome != "failed":
            self.counts[done.outcome] += 1
            self.messages += done.count
            return
        problem = BY_OPTION if done.problem == TAKEN else done.problem or ""
        self.failed.append({"id": done.id, "actor_id": done.actor_id, "problem": problem})
        if not self._as_json:
            failure(self._terminal, done.id, done.actor_id, problem)

    @property
    def empty(self) -> bool:
        """Whether there was no session yet."""
        return not self.failed and not any(self.counts.values())

    def summary(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**self.counts, "messages": self.messages, "failed": self.failed}

    def __str__(self) -> str:
        words = {"same": "there already"}
        parts = [
            f"{number} {words.get(name, name)}"
            for name, number in self.counts.items()
            if number or name == "written"
        ]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        return "sessions: " + ", ".join(parts)


def failure(terminal: Terminal, id: str | None, actor: str | None, problem: str) -> None:
    """Say what failed, in one line."""
    terminal.err.print(f"failed: {named(id, actor)}: {printable(problem, lines=False)}", style="red")


def named(id: str | None, actor: str | None) -> str:
    """Return what to call a session before people."""
    if id is None:
        return "a session of unknown name"
    return quoted(id) if actor is None else f"{quoted(id)} (actor {quoted(actor)})"
