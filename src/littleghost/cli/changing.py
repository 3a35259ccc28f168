"""``littleghost sessions fork`` and ``delete``."""

from __future__ import annotations

import asyncio

import typer

from littleghost import ConfigurationError, ProtocolError, SessionStore
from littleghost.cli.listing import unknown
from littleghost.cli.progress import named
from littleghost.cli.quantities import amount
from littleghost.cli.stores import closing, existing_store
from littleghost.cli.terminal import Terminal, write_json

__all__ = ["delete_session", "fork_session"]


def fork_session(
    terminal: Terminal,
    id: str,
    new_id: str,
    *,
    at: int | None,
    store: str | None,
    actor: str | None,
    as_json: bool,
) -> None:
    """Begin the session ``new_id`` with the first ``at`` messages of ``id``."""

    async def fork() -> int:
        async with closing(existing_store(store)) as opened:
            return (await opened.fork(id, new_id, at=at, actor_id=actor)).count

    count = asyncio.run(fork())
    if as_json:
        write_json({"id": new_id, "actor_id": actor, "messages": count})
    else:
        terminal.out.print(f"{named(new_id, actor)}: begun with {amount(count, 'message')}")


def delete_session(
    terminal: Terminal, id: str, *, yes: bool, store: str | None, actor: str | None, as_json: bool
) -> None:
    """Delete a session, once a person at a terminal has agreed or ``yes`` says so.

    Raises:
        ConfigurationError: There is nobody to ask.
        SessionNotFoundError: There is no such session.
    """
    if not yes:
        if not terminal.interactive:
            raise ConfigurationError("nobody can be asked whether to delete it; --yes deletes without asking")
        what = asyncio.run(_described(existing_store(store), id, actor))
        question = f"Delete {named(id, actor)}, {what}, for good?"
        if not typer.confirm(question, default=False, err=True):
            terminal.remark("nothing was deleted")
            raise typer.Exit(1)
    if not asyncio.run(_delete(existing_store(store), id, actor)):
        raise unknown(id, actor)
    if as_json:
        write_json({"id": id, "actor_id": actor, "deleted": True})
    else:
        terminal.out.print(f"{named(id, actor)}: deleted")


async def _described(store: SessionStore, id: str, actor: str | None) -> str:
    async with closing(store):
        try:
            found = await store.load(id, actor_id=actor)
        except ProtocolError:
            return "which cannot be read"
    if found is None:
        raise unknown(id, actor)
    return f"with its {amount(found.count, 'message')}"


async def _delete(store: SessionStore, id: str, actor: str | None) -> bool:
    async with closing(store):
        return await store.delete(id, actor_id=actor)
