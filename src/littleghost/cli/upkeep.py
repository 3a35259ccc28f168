"""``littleghost sessions verify`` and ``expire``."""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Any

from littleghost import ALL_ACTORS, SessionStore, expire_sessions, verify_sessions
from littleghost.cli.progress import named, progress, sessions_of
from littleghost.cli.quantities import amount, duration
from littleghost.cli.running import Stoppable, run
from littleghost.cli.stores import closing, existing_store
from littleghost.cli.terminal import Terminal, printable, write_json

__all__ = ["expire", "verify"]

PAGE = 200


class _Checked:
    """What was found so far."""

    def __init__(self) -> None:
        self.sessions = 0
        self.damaged: list[dict[str, Any]] = []


def verify(terminal: Terminal, *, store: str | None, as_json: bool) -> int:
    """Read every session of a store, and list what is damaged; return the exit status."""
    found = _Checked()
    with Stoppable() as stoppable:
        try:
            stoppable.run(_verify(terminal, existing_store(store), found, as_json=as_json))
        except KeyboardInterrupt:
            terminal.err.print(
                f"interrupted after {amount(found.sessions, 'session')}, {len(found.damaged)} damaged",
                style="dim",
            )
            raise
    if as_json:
        write_json({"checked": found.sessions, "damaged": found.damaged})
    else:
        terminal.out.print(f"{amount(found.sessions, 'session')} checked, {len(found.damaged)} damaged")
    return 1 if found.damaged else 0


async def _verify(terminal: Terminal, store: SessionStore, found: _Checked, *, as_json: bool) -> None:
    async with closing(store):
        total = await sessions_of(store)
        with progress(terminal, "checking", total) as advance:
            async with aclosing(verify_sessions(store)) as steps:
                async for step in steps:
                    found.sessions += step.checked
                    for damage in step.damaged:
                        found.damaged.append(
                            {"id": damage.id, "actor_id": damage.actor_id, "problem": damage.problem}
                        )
                        if not as_json:
                            terminal.out.print(
                                f"damaged: {named(damage.id, damage.actor_id)}: {printable(damage.problem, lines=False)}",
                                style="red",
                            )
                    advance(step.checked)


def expire(terminal: Terminal, older_than: str, *, dry_run: bool, store: str | None, as_json: bool) -> None:
    """Delete the sessions that nobody has written to for so long, or only count them."""
    seconds = duration(older_than, "--older-than")
    if dry_run:
        number = run(_expired(existing_store(store), seconds))
        if as_json:
            write_json({"deleted": 0, "expired": number})
        else:
            terminal.out.print(f"{amount(number, 'session')} would be deleted")
        return
    deleted: list[int] = []
    with Stoppable() as stoppable:
        try:
            stoppable.run(_expire(existing_store(store), seconds, deleted))
        except KeyboardInterrupt:
            terminal.err.print(
                f"interrupted; {amount(sum(deleted), 'session')} deleted, and running it again goes on",
                style="dim",
            )
            raise
    if as_json:
        write_json({"deleted": sum(deleted)})
    else:
        terminal.out.print(f"{amount(sum(deleted), 'session')} deleted")


async def _expire(store: SessionStore, seconds: float, deleted: list[int]) -> None:
    async with closing(store), aclosing(expire_sessions(store, expire_after=seconds)) as steps:
        async for number in steps:
            deleted.append(number)  # noqa: PERF401 (what was done is told also where this is interrupted)


async def _expired(store: SessionStore, seconds: float) -> int:
    until, number, cursor = time.time() - seconds, 0, None
    async with closing(store):
        while True:
            page = await store.sessions(
                actor_id=ALL_ACTORS, limit=PAGE, cursor=cursor, order="updated", until=until
            )
            number += len(page.items)
            cursor: Any = page.cursor
            if cursor is None:
                return number
