"""What the clauses of the store kit work with: stores made for them, and other processes that use the same one."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import tempfile
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import IO, Any, TypeVar, cast

from littleghost.errors import ConfigurationError, ConflictError
from littleghost.message import Message, pack_messages
from littleghost.sessions.contract import (
    AllActors,
    Commit,
    SessionInfo,
    SessionLimits,
    SessionStore,
    Snapshot,
)
from littleghost.testing.conformance import ClauseFailure, ClauseSkipped, ended, expect
from littleghost.testing.store_child import COMMAND, imported, recipe_for

__all__ = ["ACTOR", "Bench", "Child", "Factory", "Subject", "raises", "refused", "same", "short", "user"]

Failure = TypeVar("Failure", bound=Exception)
Factory = Callable[[], "SessionStore | Awaitable[SessionStore]"]

ACTOR = "kit"
SHOWN = 12
"""Lines of what another process wrote to its standard error that are shown in a report."""


def user(text: str) -> Message:
    """Return a message with a text."""
    return Message.user(text)


def same(what: str, expected: object, found: object) -> None:
    """Expect that ``found`` is equal to ``expected``."""
    expect(expected == found, f"{what}: expected {short(expected)}, found {short(found)}")


def short(value: object) -> str:
    """Return ``value`` as it is shown in a report."""
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:150]}… ({len(shown)} characters)"


async def raises(kind: type[Failure], work: Awaitable[Any], what: str) -> Failure:
    """Await ``work``, which must fail with an error of this kind, and return it."""
    try:
        await work
    except kind as error:
        return error
    except Exception as error:
        raise ClauseFailure(
            f"{what} raised {type(error).__name__} in place of {kind.__name__}: {error}"
        ) from error
    raise ClauseFailure(f"{what} was accepted")


async def refused(work: Awaitable[Any], what: str) -> ConflictError:
    """Await ``work``, which must be refused as another writer's, and return how."""
    return await raises(ConflictError, work, what)


class Subject:
    """A store, asked only for what its capabilities name, and its answers in one form."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store

    def can(self, capability: str) -> bool:
        """Whether the store offers ``capability``."""
        return capability in self.store.capabilities

    async def load(self, id: str, actor: str | None = ACTOR) -> Snapshot | None:
        """Return what the store has, a mapping of a simple store as a `Snapshot` too."""
        value: Any = await self.store.load(id, actor_id=actor)
        if value is None or isinstance(value, Snapshot):
            return value
        if not isinstance(value, Mapping):
            raise ClauseFailure(f"load returned a {type(value).__name__}")
        form = cast("Mapping[str, Any]", value)
        messages = pack_messages(form["messages"])[1]
        return Snapshot(
            messages=messages,
            state=form.get("state") or {},
            metadata=form.get("metadata") or {},
            revision=form.get("revision"),
            count=form.get("count"),
        )

    async def get(self, id: str, actor: str | None = ACTOR) -> Snapshot:
        """Return what the store has, which must be something."""
        snapshot = await self.load(id, actor)
        if snapshot is None:
            raise ClauseFailure(f"the session {id[:40]!r} is not there")
        return snapshot

    async def texts(self, id: str, actor: str | None = ACTOR) -> list[str]:
        """Return the text of each message."""
        return [message.text for message in (await self.get(id, actor)).messages]

    async def append(
        self,
        id: str,
        *messages: Message,
        count: int,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str | None = ACTOR,
        **options: Any,
    ) -> Commit:
        """Append; ``options`` go to the store as they are."""
        answer: Any = await self.store.append(
            id,
            messages=list(messages),
            state=state or {},
            metadata=metadata or {},
            expected_count=count,
            actor_id=actor,
            **options,
        )
        return _commit(answer, count + len(messages))

    async def replace(
        self,
        id: str,
        *messages: Message,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str | None = ACTOR,
        **options: Any,
    ) -> Commit:
        """Replace; ``options`` go to the store as they are."""
        answer: Any = await self.store.replace(
            id, messages=list(messages), state=state or {}, metadata=metadata or {}, actor_id=actor, **options
        )
        return _commit(answer, len(messages))

    async def restore(
        self,
        id: str,
        *messages: Message,
        state: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        actor: str | None = ACTOR,
        **times: Any,
    ) -> Commit:
        """Restore; ``times`` go to the store as they are."""
        answer = await self.store.restore(
            id,
            messages=list(messages),
            state=state or {},
            metadata=metadata or {},
            actor_id=actor,
            **times,
        )
        return _commit(answer, len(messages))

    async def pages(
        self, actor: str | AllActors | None, *, limit: int = 1000, **options: Any
    ) -> list[tuple[SessionInfo, ...]]:
        """Return every page of a list of sessions; a list that never ends, or has too long a page, fails the clause."""
        found: list[tuple[SessionInfo, ...]] = []
        seen = set[str]()
        cursor: Any = None
        while True:
            page = await self.store.sessions(actor_id=actor, limit=limit, cursor=cursor, **options)
            expect(len(page.items) <= limit, f"a page of {len(page.items)} where the limit is {limit}")
            found.append(tuple(page.items))
            cursor = page.cursor
            if cursor is None:
                return found
            expect(isinstance(cursor, str) and cursor not in seen, "the cursor leads nowhere")
            seen.add(cursor)

    async def listed(
        self, actor: str | AllActors | None, *, limit: int = 1000, **options: Any
    ) -> list[SessionInfo]:
        """Return a list of sessions, of all its pages."""
        return [info for page in await self.pages(actor, limit=limit, **options) for info in page]

    async def info(self, id: str, actor: str | None = ACTOR) -> SessionInfo:
        """Return the session's line in the list of its actor."""
        found = [info for info in await self.listed(actor) if info.id == id]
        same(f"times that {short(id)} is listed", 1, len(found))
        return found[0]

    @contextmanager
    def limited(self, **limits: int) -> Generator[None]:
        """Set limits on the store, and put back those it had."""
        before = self.store.limits
        self.store.limits = SessionLimits(**limits)
        try:
            yield
        finally:
            self.store.limits = before


def _commit(answer: Any, count: int) -> Commit:
    if answer is None:
        return Commit(revision=None, count=count)
    if not isinstance(answer, Commit):
        raise ClauseFailure(f"a write returned a {type(answer).__name__} in place of a Commit or None")
    return answer


class Child:
    """Another process that uses the store."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors

    async def line(self) -> str | None:
        """Return the next line it says, ``None`` at its end."""
        assert self._process.stdout is not None  # noqa: S101
        return (await self._process.stdout.readline()).decode().rstrip("\n") or None

    async def expect(self, what: str) -> None:
        """Wait for it to say ``what``."""
        said = await self.line()
        if said != what:
            if said is None:
                await self._process.wait()
                raise ClauseFailure(self._how_it_ended())
            raise ClauseFailure(f"another process was to say {what!r}, and said {said!r}")

    def go(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.write(b"\n")

    async def rest(self) -> list[str]:
        """Return all that it says, and wait for its end, which must be a good one."""
        lines, failure = await self.end()
        if failure:
            raise ClauseFailure(failure)
        return lines

    async def end(self) -> tuple[list[str], str]:
        """Return all that it says until its end, and how that went wrong, else an empty text."""
        lines: list[str] = []
        while (line := await self.line()) is not None:
            lines.append(line)
        return lines, self._how_it_ended() if await self._process.wait() else ""

    def _how_it_ended(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        shown = "\n".join(f"    {line[:300]}" for line in lines[-SHOWN:])
        left_out = f" (the last {SHOWN} of {len(lines)} lines)" if len(lines) > SHOWN else ""
        wrote = f", and wrote{left_out}:\n{shown}" if lines else ""
        return f"another process failed with status {self._process.returncode}{wrote}"

    async def kill(self) -> None:
        """Kill it at once, with no chance to tidy up."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        self._errors.close()


class Bench:
    """Makes what a clause needs. Every session it names is new, for the medium may be shared by all clauses.

    Attributes:
        capabilities: Those of the store.
        subject: What is under test, by name.
        persistent: Whether two stores that the factory makes share their data.
    """

    def __init__(
        self,
        factory: Factory,
        *,
        capabilities: frozenset[str],
        subject: str,
        persistent: bool,
        recipe: dict[str, str] | None,
    ) -> None:
        self._factory = factory
        self._recipe = recipe
        self.capabilities = capabilities
        self.subject = subject
        self.persistent = persistent

    @classmethod
    async def of(
        cls, factory: Factory, *, persistent: bool | None, importable: str | None, seconds: float
    ) -> Bench:
        """Return a bench for the stores of ``factory``, having found out what is not given.

        Raises:
            ConfigurationError: It makes no store, or ``importable`` cannot be imported.
        """
        if importable is not None:
            _check_importable(importable)
        store = await _made(factory)
        bench = cls(
            factory,
            capabilities=frozenset(store.capabilities),
            subject=type(store).__name__,
            persistent=bool(persistent),
            recipe=recipe_for(cast("Callable[[], SessionStore]", factory), importable),
        )
        # A store that cannot even write, or hangs, fails its clauses; here it only counts as one that shares nothing.
        await ended(bench._first_look(store, find_out=persistent is None), seconds)
        return bench

    async def _first_look(self, store: SessionStore, *, find_out: bool) -> None:
        """See that the methods are to be awaited, and find out whether two stores share their data."""
        try:
            id = self.id()
            values: dict[str, Any] = {"messages": [user("x")], "state": {}, "metadata": {}, "actor_id": ACTOR}
            await _awaited(store, "load", id, actor_id=ACTOR)
            await _awaited(store, "append", id, expected_count=0, **values)
            if find_out:
                with suppress(Exception):
                    async with self.open() as other:
                        self.persistent = await other.load(id) is not None
            await _awaited(store, "replace", self.id(), **values)
        finally:
            await store.aclose()

    @staticmethod
    def id(what: str = "session") -> str:
        """Return an id that was never used."""
        return f"{what}-{uuid.uuid4().hex}"

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Subject]:
        """Make a store, and close it in the end."""
        store = await _made(self._factory)
        try:
            yield Subject(store)
        finally:
            await store.aclose()

    def need_persistence(self) -> None:
        """Skip the clause where two stores share nothing."""
        if not self.persistent:
            raise ClauseSkipped("two stores of this factory share no data")

    @asynccontextmanager
    async def children(self, *orders: Mapping[str, Any]) -> AsyncGenerator[Sequence[Child]]:
        """Start a process for each order, and end them all with the block."""
        self.need_persistence()
        if self._recipe is None:
            raise ClauseSkipped(
                "another process cannot make this store; give importable='module:function', or a factory that can be pickled"
            )
        children: list[Child] = []
        try:
            for order in orders:
                child = await self._start({"recipe": self._recipe, "actor_id": ACTOR, **order})
                children.append(child)
            yield children
        finally:
            for child in children:
                await child.kill()

    @staticmethod
    async def _start(order: dict[str, Any]) -> Child:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (the child closes it)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment,
            limit=1 << 20,
        )
        assert process.stdin is not None  # noqa: S101
        process.stdin.write(json.dumps(order).encode() + b"\n")
        return Child(process, errors)


async def _made(factory: Factory) -> SessionStore:
    if not callable(factory):
        raise ConfigurationError(
            f"the kit makes its stores itself: give it what makes one, such as lambda: MyStore(...), not a {type(factory).__name__}"
        )
    made: Any = factory()
    store: object = await made if inspect.isawaitable(made) else made
    if not isinstance(store, SessionStore):
        raise ConfigurationError(f"the factory made a {type(store).__name__}, which is no SessionStore")
    return store


async def _awaited(store: SessionStore, name: str, id: str, **values: Any) -> None:
    """See that a method gives something to await. How that goes, its clauses tell."""
    try:
        answer = getattr(store, name)(id, **values)
        if inspect.isawaitable(answer):
            await answer
            return
    except Exception:  # noqa: BLE001
        return
    raise ConfigurationError(
        f"{type(store).__name__}.{name} returned a {type(answer).__name__}, which cannot be awaited; write: async def {name}(...)"
    )


def _check_importable(importable: str) -> None:
    module, colon, name = importable.partition(":")
    if not (module and colon and name) or module == "__main__":
        raise ConfigurationError(
            f"importable={importable!r} is not of the form module:function, with a module that another process can import"
        )
    try:
        found: object = imported(importable)
    except Exception as error:
        raise ConfigurationError(
            f"importable={importable!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"importable={importable!r} names a {type(found).__name__}, which makes no store"
        )
