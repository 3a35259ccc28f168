"""``littleghost sessions list``, ``show``, ``tail`` and ``stats``: what a store holds."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from littleghost import (
    ALL_ACTORS,
    AllActors,
    ConfigurationError,
    Message,
    Page,
    Session,
    SessionInfo,
    SessionNotFoundError,
    SessionStore,
)
from littleghost.cli.quantities import moment, shown_moment, shown_size
from littleghost.cli.running import run
from littleghost.cli.stores import closing, existing_store
from littleghost.cli.terminal import Terminal, printable, quoted, write_json
from littleghost.cli.transcripts import lines_of

__all__ = [
    "NONE_OF_ACTOR",
    "ListOptions",
    "chosen_actor",
    "list_sessions",
    "show_session",
    "show_statistics",
    "show_tail",
    "unknown",
]

PAGE = 200
NONE_OF_NOBODY = (
    "no sessions that belong to nobody, and only those were looked for; where the application sets actor_id, "
    "name it: --actor ID, or --all-actors"
)
NONE_OF_ACTOR = "no sessions of this actor"


class ListOptions(Struct, frozen=True, kw_only=True):
    """What `list_sessions` was asked for, as it was typed."""

    actor: str | None
    all_actors: bool
    by_time: bool
    since: str | None
    until: str | None
    limit: int | None


def chosen_actor(actor: str | None, *, everybody: bool) -> str | AllActors | None:
    """Return whose sessions are meant.

    Raises:
        ConfigurationError: Both one actor's and everybody's.
    """
    if everybody and actor is not None:
        raise ConfigurationError(
            "--actor names one actor, and --all-actors means everybody; choose one of them"
        )
    return ALL_ACTORS if everybody else actor


def unknown(id: str, actor: str | None) -> SessionNotFoundError:
    """Return the error for a session that is not there."""
    whose = "that belongs to nobody; --actor ID names one of an actor" if actor is None else "of this actor"
    return SessionNotFoundError(f"there is no session {id!r} {whose}", id=id)


def list_sessions(terminal: Terminal, asked: ListOptions, *, store: str | None, as_json: bool) -> None:
    """Write a line for each session."""
    actor = chosen_actor(asked.actor, everybody=asked.all_actors)
    options: dict[str, Any] = {}
    if asked.by_time:
        options["order"] = "updated"
    if asked.since is not None:
        options["since"] = moment(asked.since, "--since")
    if asked.until is not None:
        options["until"] = moment(asked.until, "--until")
    if asked.limit is not None and asked.limit < 1:
        raise ConfigurationError("--limit must be at least 1")
    run(_list(terminal, existing_store(store), actor, options, asked.limit, as_json=as_json))


async def _list(
    terminal: Terminal,
    store: SessionStore,
    actor: str | AllActors | None,
    options: dict[str, Any],
    limit: int | None,
    *,
    as_json: bool,
) -> None:
    found = 0
    async with closing(store), aclosing(_all(store, actor, options, limit)) as infos:
        async for info in infos:
            if limit is not None and found == limit:
                terminal.err.print(f"there are more than {limit}; --limit shows more", style="dim")
                break
            found += 1
            if as_json:
                write_json(_line_of(info))
                continue
            whose = "actor                 " if actor is ALL_ACTORS else ""
            if found == 1:
                terminal.out.print(f"{'messages':>8}  {'updated':25}  {whose}id", style="dim")
            if whose:
                whose = f"{'' if info.actor_id is None else quoted(info.actor_id):20}  "
            terminal.out.print(
                f"{info.count:>8}  {shown_moment(info.updated_at):25}  {whose}{quoted(info.id)}"
            )
    if not found:
        terminal.err.print(_none(actor, narrowed="since" in options or "until" in options), style="dim")


def _none(actor: str | AllActors | None, *, narrowed: bool) -> str:
    if narrowed:
        return "no sessions of that time"
    if actor is None:
        return NONE_OF_NOBODY
    return "no sessions" if actor is ALL_ACTORS else NONE_OF_ACTOR


async def _all(
    store: SessionStore, actor: str | AllActors | None, options: dict[str, Any], limit: int | None
) -> AsyncGenerator[SessionInfo]:
    size = PAGE if limit is None else min(PAGE, limit + 1)  # one more tells whether there are more
    cursor: Any = None
    while True:
        page = await store.sessions(actor_id=actor, limit=size, cursor=cursor, **options)
        for info in page.items:
            yield info
        cursor = page.cursor
        if cursor is None:
            return


def show_session(
    terminal: Terminal, id: str, *, store: str | None, actor: str | None, state: bool, as_json: bool
) -> None:
    """Write the conversation of a session, whole.

    Raises:
        SessionNotFoundError: There is none.
    """
    run(_show(terminal, existing_store(store), id, actor, state=state, as_json=as_json))


async def _show(
    terminal: Terminal, store: SessionStore, id: str, actor: str | None, *, state: bool, as_json: bool
) -> None:
    async with closing(store):
        snapshot = await Session(id=id, actor_id=actor, store=store).load()
    if snapshot is None:
        raise unknown(id, actor)
    if as_json:
        write_json(
            {
                "id": id,
                "actor_id": actor,
                "revision": snapshot.revision,
                "count": snapshot.count,
                "messages": [_form(message) for message in snapshot.messages],
                "state": snapshot.state,
                "metadata": snapshot.metadata,
            }
        )
        return
    for line in lines_of(snapshot.messages, full=True):
        terminal.out.print(line.text, style=line.style or None)
    if state:
        shown = msgspec.json.format(msgspec.json.encode(snapshot.state), indent=2).decode()
        terminal.out.print("state: " + printable(shown))


def show_tail(
    terminal: Terminal,
    id: str,
    *,
    limit: int,
    before: int | None,
    store: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Write the last messages of a session as they are stored, or those before one of them.

    Raises:
        SessionNotFoundError: There is none.
    """
    if limit < 1:
        raise ConfigurationError("--limit must be at least 1")
    page = run(_tail(existing_store(store), id, actor, limit, before))
    if as_json:
        forms = [_form(message) for message in page.items]
        write_json({"id": id, "actor_id": actor, "messages": forms, "before": page.cursor})
        return
    for line in lines_of(page.items, full=True):
        terminal.out.print(line.text, style=line.style or None)
    if page.cursor is not None:
        terminal.err.print(f"{page.cursor} older ones: --before {page.cursor}", style="dim")


async def _tail(
    store: SessionStore, id: str, actor: str | None, limit: int, before: int | None
) -> Page[Message]:
    async with closing(store):
        page = await store.tail(id, limit=limit, before=before, actor_id=actor)
        # An empty session and one that does not exist have the same page.
        if not page.items and await store.load(id, actor_id=actor) is None:
            raise unknown(id, actor)
        return page


def show_statistics(
    terminal: Terminal, *, store: str | None, actor: str | AllActors | None, as_json: bool
) -> None:
    """Write how much a store holds."""

    async def count() -> Any:
        async with closing(existing_store(store)) as opened:
            return await opened.statistics(actor_id=actor)

    found = run(count())
    if as_json:
        write_json(found)
        return
    terminal.out.print(f"sessions      {found.sessions:,}")
    terminal.out.print(f"messages      {found.messages:,}")
    terminal.out.print(f"size          {shown_size(found.size)}")
    if found.sessions:
        terminal.out.print(f"last written  {shown_moment(found.newest_at)}")
        terminal.out.print(f"oldest        {shown_moment(found.oldest_at)}, not written since")


def _form(message: Message) -> dict[str, Any]:
    return message.to_dict()


def _line_of(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "actor_id": info.actor_id,
        "messages": info.count,
        "size": info.size,
        "created_at": info.created_at,
        "updated_at": info.updated_at,
        "revision": info.revision,
        "metadata": info.metadata,
    }
