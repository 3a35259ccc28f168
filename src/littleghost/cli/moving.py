"""``littleghost sessions export``, ``import`` and ``copy``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path

from littleghost import (
    ALL_ACTORS,
    AllActors,
    ConfigurationError,
    LittleGhostError,
    SessionStore,
    SQLiteStore,
    StoreUnavailableError,
    Transferred,
    copy_sessions,
    export_sessions,
    import_sessions,
)
from littleghost.cli.changing import agreed, somebody
from littleghost.cli.files import opened_device, replacing
from littleghost.cli.listing import NONE_OF_ACTOR
from littleghost.cli.progress import Tally, progress, sessions_of
from littleghost.cli.quantities import amount, shown_size
from littleghost.cli.running import Stoppable, run
from littleghost.cli.stores import closing, existing_store, lasting, store_at
from littleghost.cli.terminal import Terminal, write_json
from littleghost.cli.waiting import bytes_of, write_bytes
from littleghost.sessions.transfer import Existing

__all__ = ["copy_between", "export_to", "import_from"]

STANDARD = "-"
AGAIN = "run the same command again, and it goes on where it stopped"
TOGETHER = 1 << 18
"""How many bytes of lines are written at once."""

Write = Callable[[bytes], Awaitable[None]]


def export_to(
    terminal: Terminal, output: str, *, store: str | None, actor: str | AllActors | None, as_json: bool
) -> int:
    """Write the sessions of a store to a file, or to standard output; return the exit status.

    Raises:
        ConfigurationError: The file has no name, or is the store, or cannot be made.
        LittleGhostError: It cannot be written.
    """
    if not output:
        raise ConfigurationError("--output needs the name of a file; - is standard output")
    tally = Tally(terminal, as_json=as_json)
    opened = existing_store(store)
    if output != STANDARD:
        _spare(opened, output)
    # A bar and what is exported would be one on top of the other.
    hidden = output == STANDARD and sys.stdout.isatty()
    with ExitStack() as stack:
        direct = stack.enter_context(_opened_directly(output))
        signals = (signal.SIGINT, signal.SIGTERM) if direct is None else (signal.SIGINT,)
        stoppable = stack.enter_context(Stoppable(*signals))
        with ExitStack() as told:
            what = f"{output} is as it was before" if direct is None else "the output is cut"
            told.enter_context(_interrupted(terminal, what))
            write = direct
            if write is None:
                put = told.enter_context(replacing(Path(output)))

                async def write_part(raw: bytes) -> None:
                    put(raw)

                write = write_part
            size = stoppable.run(_export(terminal, opened, actor, write, tally, hidden=hidden))
        # Still in the block, so that a signal from now on does not hide that the file is in its place.
        _note_none(terminal, tally, actor)
        if as_json:
            summary = {
                "exported": tally.counts["written"],
                "messages": tally.messages,
                "size": size,
                "failed": tally.failed,
            }
            write_json(summary, sys.stderr if output == STANDARD else sys.stdout)
        else:
            words = f"{amount(tally.counts['written'], 'session')} exported, {amount(tally.messages, 'message')}, {shown_size(size)}"
            failed = f"; {len(tally.failed)} could not be read, and are not in it" if tally.failed else ""
            (terminal.err if output == STANDARD else terminal.out).print(words + failed)
    return 1 if tally.failed else 0


@contextmanager
def _opened_directly(output: str) -> Generator[Write | None]:
    """Return what writes to standard output, or to a device or a pipe; ``None`` for a file, which is made whole first."""
    if output == STANDARD:
        sys.stdout.flush()

        async def write(raw: bytes) -> None:
            try:
                await write_bytes(sys.stdout.fileno(), raw)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise LittleGhostError(f"standard output cannot be written ({error.strerror})") from error

        yield write
        return
    with opened_device(Path(output)) as descriptor:
        if descriptor is None:
            yield None
            return

        async def put(raw: bytes) -> None:
            try:
                await write_bytes(descriptor, raw)
            except OSError as error:
                raise LittleGhostError(f"{output} cannot be written ({error.strerror})") from error

        yield put


def _spare(store: SessionStore, output: str) -> None:
    """Refuse to put an export in the place of what is exported, or of the files beside it."""
    real = os.path.realpath(output)
    if isinstance(store, SQLiteStore) and any(
        real == store.path + end for end in ("", "-wal", "-shm", "-lease")
    ):
        raise ConfigurationError(f"{output} is the store itself, or belongs to it; choose another file")


async def _export(
    terminal: Terminal,
    store: SessionStore,
    actor: str | AllActors | None,
    write: Write,
    tally: Tally,
    *,
    hidden: bool,
) -> int:
    size, waiting = 0, bytearray()
    async with closing(store):
        with progress(terminal, "exporting", await sessions_of(store, actor), hidden=hidden) as advance:

            def report(done: Transferred) -> None:
                tally.add(done)
                advance(1)

            async with aclosing(export_sessions(store, actor_id=actor, report=report)) as lines:
                async for line in lines:
                    waiting += line
                    if len(waiting) >= TOGETHER:
                        size += len(waiting)
                        await write(bytes(waiting))
                        waiting.clear()
    await write(bytes(waiting))
    return size + len(waiting)


def import_from(
    terminal: Terminal, source: str, *, existing: Existing, store: str | None, as_json: bool
) -> int:
    """Put the sessions of a file, or of standard input, into a store; return the exit status.

    Raises:
        ConfigurationError: There is no such file, or the store is one in memory.
    """
    tally = Tally(terminal, as_json=as_json)
    with _opened(source) as descriptor:
        opened = store_at(lasting(store))
        with Stoppable() as stoppable, _told(terminal, tally, as_json=as_json):
            stoppable.run(_import(terminal, opened, _chunks(source, descriptor), existing, tally))
    return 1 if tally.failed else 0


async def _import(
    terminal: Terminal, store: SessionStore, file: AsyncGenerator[bytes], existing: Existing, tally: Tally
) -> None:
    async with closing(store), aclosing(file) as chunks:
        with progress(terminal, "importing", None) as advance:
            await _count(import_sessions(store, chunks, existing=existing), tally, advance)


async def _chunks(source: str, descriptor: int) -> AsyncGenerator[bytes]:
    async with aclosing(bytes_of(descriptor)) as chunks:
        try:
            async for chunk in chunks:
                yield chunk
        except OSError as error:
            what = "standard input" if source == STANDARD else source
            raise LittleGhostError(f"{what} cannot be read ({error.strerror})") from error


@contextmanager
def _opened(source: str) -> Generator[int]:
    if source == STANDARD:
        yield sys.stdin.fileno()
        return
    if not source:
        raise ConfigurationError("FILE is empty; name what export wrote, or - for standard input")
    try:
        if Path(source).is_dir():
            raise IsADirectoryError(21, "it is a folder")
        descriptor = os.open(source, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise ConfigurationError(f"{source} cannot be read ({error.strerror})") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def copy_between(
    terminal: Terminal,
    source: str,
    destination: str,
    *,
    actor: str | AllActors | None,
    existing: Existing,
    prune: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Copy sessions from one store to another; return the exit status.

    Raises:
        ConfigurationError: Sessions are to be deleted, and there is nobody to ask, or no session in the source; or one of the stores is one
            in memory.
    """
    tally = Tally(terminal, as_json=as_json, prune=prune)
    if prune and not yes:
        somebody(terminal, "what the source does not have")
        held = (
            run(_held(existing_store(source), actor)),
            run(_held(store_at(lasting(destination)), actor)),
        )
        figures = "" if None in held else f" It has {held[1]:,} sessions now, the source {held[0]:,}."
        agreed(
            terminal,
            f"What the source does not have will be deleted from the destination, for good.{figures} Go on?",
        )
    stores = existing_store(source), store_at(lasting(destination))
    with Stoppable() as stoppable, _told(terminal, tally, as_json=as_json):
        stoppable.run(_copy(terminal, *stores, actor, existing, tally, prune=prune))
    _note_none(terminal, tally, actor)
    if prune and tally.failed:
        terminal.err.print("nothing is deleted from the destination where a session failed", style="dim")
    return 1 if tally.failed else 0


async def _held(store: SessionStore, actor: str | AllActors | None) -> int | None:
    async with closing(store):
        if "statistics" not in store.capabilities:
            return None
        return (await store.statistics(actor_id=actor)).sessions


def _note_none(terminal: Terminal, tally: Tally, actor: str | AllActors | None) -> None:
    if actor is not ALL_ACTORS and tally.empty:
        terminal.err.print(NONE_OF_ACTOR, style="dim")


async def _copy(
    terminal: Terminal,
    source: SessionStore,
    destination: SessionStore,
    actor: str | AllActors | None,
    existing: Existing,
    tally: Tally,
    *,
    prune: bool,
) -> None:
    async with closing(source), closing(destination):
        total = await sessions_of(source, actor)
        with progress(terminal, "copying", total) as advance:
            await _count(
                copy_sessions(source, destination, actor_id=actor, existing=existing, prune=prune),
                tally,
                advance,
            )


async def _count(outcomes: AsyncGenerator[Transferred], tally: Tally, advance: Callable[[int], None]) -> None:
    async with aclosing(outcomes):
        async for done in outcomes:
            tally.add(done)
            if done.outcome != "pruned":
                advance(1)


@contextmanager
def _told(terminal: Terminal, tally: Tally, *, as_json: bool) -> Generator[None]:
    """Say what was done, also where the block ends early, and that it can be run again where that goes on."""
    try:
        with _interrupted(terminal, AGAIN):
            yield
    except LittleGhostError as error:
        if tally.empty:  # it did not stop but never began, and there is nothing to tell
            raise
        if isinstance(error, StoreUnavailableError):
            terminal.err.print(AGAIN, style="dim")
        _tell(terminal, tally, as_json=as_json)
        raise
    except BaseException:
        _tell(terminal, tally, as_json=as_json)
        raise
    _tell(terminal, tally, as_json=as_json)


def _tell(terminal: Terminal, tally: Tally, *, as_json: bool) -> None:
    if as_json:
        write_json(tally.summary())
    else:
        terminal.out.print(str(tally))


@contextmanager
def _interrupted(terminal: Terminal, what: str) -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        terminal.err.print(f"interrupted; {what}", style="dim")
        raise
