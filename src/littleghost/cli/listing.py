"""``littleghost sessions``: what a store holds."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from littleghost import Message, Session, SessionInfo, SessionNotFoundError, SessionStore
from littleghost.cli.stores import existing_store
from littleghost.cli.terminal import Terminal, printable
from littleghost.cli.transcripts import lines_of

__all__ = ["list_sessions", "show_session"]

PAGE = 200
NONE_OF_NOBODY = (
    "no sessions that belong to nobody, and only those were looked for; where the application sets actor_id, "
    "name it: --actor ID"
)


def list_sessions(terminal: Terminal, *, store: str | None, actor: str | None, as_json: bool) -> None:
    """Write a line for each session of ``actor``."""
    asyncio.run(_list(terminal, existing_store(store), actor, as_json=as_json))


def show_session(
    terminal: Terminal, id: str, *, store: str | None, actor: str | None, state: bool, as_json: bool
) -> None:
    """Write the conversation of a session, whole.

    Raises:
        SessionNotFoundError: There is none.
    """
    asyncio.run(_show(terminal, existing_store(store), id, actor, state=state, as_json=as_json))


async def _list(terminal: Terminal, store: SessionStore, actor: str | None, *, as_json: bool) -> None:
    try:
        found = 0
        async for info in _all(store, actor):
            found += 1
            if as_json:
                sys.stdout.write(_json(_line_of(info)) + "\n")
                continue
            if found == 1:
                terminal.out.print(f"{'messages':>8}  {'updated':19}  id", style="dim")
            terminal.out.print(
                f"{info.count:>8}  {_moment(info.updated_at):19}  {printable(info.id, lines=False)}"
            )
        if not found:
            terminal.err.print(NONE_OF_NOBODY if actor is None else "no sessions of this actor", style="dim")
    finally:
        await store.aclose()


async def _all(store: SessionStore, actor: str | None) -> AsyncIterator[SessionInfo]:
    cursor: Any = None
    while True:
        page = await store.sessions(actor_id=actor, limit=PAGE, cursor=cursor)
        for info in page.items:
            yield info
        cursor = page.cursor
        if cursor is None:
            return


async def _show(
    terminal: Terminal, store: SessionStore, id: str, actor: str | None, *, state: bool, as_json: bool
) -> None:
    try:
        session = Session(id=id, actor_id=actor, store=store)
        snapshot = await session.load()
    finally:
        await store.aclose()
    if snapshot is None:
        raise SessionNotFoundError(
            f"there is no session {id!r} "
            + (
                "that belongs to nobody; --actor ID shows one of an actor"
                if actor is None
                else "of this actor"
            ),
            id=id,
        )
    if as_json:
        whole = {
            "id": id,
            "actor_id": actor,
            "revision": snapshot.revision,
            "count": snapshot.count,
            "messages": [_form(message) for message in snapshot.messages],
            "state": snapshot.state,
            "metadata": snapshot.metadata,
        }
        sys.stdout.write(_json(whole) + "\n")
        return
    for line in lines_of(snapshot.messages, full=True):
        terminal.out.print(line.text, style=line.style or None)
    if state:
        terminal.out.print("state: " + printable(msgspec.json.format(_json(snapshot.state), indent=2)))


def _form(message: Message) -> dict[str, Any]:
    return message.to_dict()


def _line_of(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "actor_id": info.actor_id,
        "messages": info.count,
        "created_at": info.created_at,
        "updated_at": info.updated_at,
        "revision": info.revision,
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _moment(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
