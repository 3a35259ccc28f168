"""``littleghost sessions fork`` and ``delete``."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import typer

from littleghost import ConfigurationError, ProtocolError, SessionNotFoundError, SessionStore
from littleghost.cli.listing import NONE_OF_ACTOR, unknown
from littleghost.cli.progress import failure, named, progress, sessions_of
from littleghost.cli.quantities import amount
from littleghost.cli.running import Stoppable, run
from littleghost.cli.stores import closing, existing_store
from littleghost.cli.terminal import Terminal, quoted, write_json
from littleghost.sessions.walk import Gap, unlisted, walk

__all__ = ["agreed", "delete_all", "delete_session", "fork_session", "somebody", "which"]


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
    """Begin the session ``new_id`` with the first ``at`` messages of ``id``.

    Raises:
        SessionNotFoundError: There is no session ``id``.
    """

    async def fork(opened: SessionStore) -> int:
        async with closing(opened):
            try:
                return (await opened.fork(id, new_id, at=at, actor_id=actor)).count
            except SessionNotFoundError as error:
                # One without an id is of a store that is not there.
                if getattr(error, "id", None) is None:
                    raise
                raise unknown(id, actor) from error

    count = run(fork(existing_store(store)))
    if as_json:
        write_json({"id": new_id, "actor_id": actor, "messages": count})
    else:
        terminal.out.print(f"{named(new_id, actor)}: begun with {amount(count, 'message')}")


def agreed(terminal: Terminal, question: str) -> None:
    """Go on where the person at the terminal agrees, and otherwise leave with the exit status 1."""
    if not typer.confirm(question, default=False, err=True):
        terminal.remark("nothing was deleted")
        raise typer.Exit(1)


def somebody(terminal: Terminal, what: str) -> None:
    """Make sure that there is somebody to ask whether to delete ``what``.

    Raises:
        ConfigurationError: There is not.
    """
    if not terminal.interactive:
        raise ConfigurationError(
            f"nobody can be asked whether to delete {what}; --yes deletes without asking"
        )


def which(id: str | None, actor: str | None, *, all_of_it: bool) -> None:
    """Make sure that what to delete was named, and once.

    Raises:
        ConfigurationError: It was not.
    """
    if all_of_it and actor is None:
        raise ConfigurationError("--all means every session of one actor; name it with --actor ID")
    if all_of_it == (id is not None):
        raise ConfigurationError(
            "name either the ID of one session, or --actor ID and --all for every one of an actor"
        )


def delete_session(
    terminal: Terminal, id: str, *, yes: bool, store: str | None, actor: str | None, as_json: bool
) -> None:
    """Delete a session, once a person at a terminal has agreed or ``yes`` says so.

    Raises:
        ConfigurationError: There is nobody to ask.
        SessionNotFoundError: There is no such session.
    """
    if not yes:
        somebody(terminal, "it")
        what = run(_described(existing_store(store), id, actor))
        agreed(terminal, f"Delete {named(id, actor)}, {what}, for good?")
    if not run(_delete(existing_store(store), id, actor)):
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


class _Deleted:
    """What was done so far."""

    def __init__(self) -> None:
        self.sessions = 0
        self.failed: list[dict[str, Any]] = []


def delete_all(terminal: Terminal, *, yes: bool, store: str | None, actor: str, as_json: bool) -> int:
    """Delete every session of an actor, once a person has agreed or ``yes`` says so; return the exit status.

    Raises:
        ConfigurationError: There is nobody to ask.
    """
    if not yes:
        somebody(terminal, "them")
        number = run(_number(existing_store(store), actor))
        if number:
            agreed(terminal, f"Delete {amount(number, 'session')}, all of actor {quoted(actor)}, for good?")
    done = _Deleted()
    with Stoppable() as stoppable:
        try:
            stoppable.run(_delete_all(terminal, existing_store(store), actor, done, as_json=as_json))
        except KeyboardInterrupt:
            terminal.err.print(
                f"interrupted; {amount(done.sessions, 'session')} deleted, and running it again goes on",
                style="dim",
            )
            raise
    if not done.sessions and not done.failed:
        terminal.err.print(NONE_OF_ACTOR, style="dim")
    if as_json:
        write_json({"actor_id": actor, "deleted": done.sessions, "failed": done.failed})
    else:
        terminal.out.print(f"{amount(done.sessions, 'session')} deleted")
    return 1 if done.failed else 0


async def _number(store: SessionStore, actor: str) -> int:
    number = 0
    async with closing(store):
        if "statistics" in store.capabilities:
            return (await store.statistics(actor_id=actor)).sessions
        async with aclosing(walk(store, actor)) as listed:
            async for _ in listed:
                number += 1
    return number


async def _delete_all(
    terminal: Terminal, store: SessionStore, actor: str, done: _Deleted, *, as_json: bool
) -> None:
    left: dict[str | None, str] = {}
    gaps: list[Gap] = []

    async def delete(id: str) -> None:
        try:
            done.sessions += await store.delete(id, actor_id=actor)
        except ProtocolError as error:
            left[id] = str(error)

    async with closing(store):
        with progress(terminal, "deleting", await sessions_of(store, actor)) as advance:
            async with aclosing(walk(store, actor)) as listed:
                async for info in listed:
                    if isinstance(info, Gap):
                        gaps.append(info)
                        continue
                    await delete(info.id)
                    advance(1)
            # What no list shows has its name from the check of the store.
            told = {(actor, id) for id in left}
            async with aclosing(unlisted(store, actor, len(told), told, gaps)) as hidden:
                async for damage in hidden:
                    if damage.id is None:
                        left[None] = damage.problem
                    else:
                        await delete(damage.id)
    for id, problem in left.items():
        done.failed.append({"id": id, "actor_id": actor, "problem": problem})
        if not as_json:
            failure(terminal, id, actor, problem)
