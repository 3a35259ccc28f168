"""The near half: a sandbox whose files and programs are on the far side of a line."""

from __future__ import annotations

import asyncio
import builtins
import itertools
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

import msgspec

from littleghost.cancellation import Interruptible
from littleghost.errors import (
    CapabilityError,
    ConfigurationError,
    LittleGhostError,
    PolicyError,
    ToolConnectionError,
    ToolError,
    ToolValueError,
)
from littleghost.sandboxes.contract import (
    Execution,
    FileInfo,
    Found,
    Match,
    Process,
    Sandbox,
    SandboxLimits,
    checked_limits,
)
from littleghost.sandboxes.far.line import DROPPING, Line, Transport, whole
from littleghost.sandboxes.far.process import FarProcess
from littleghost.sandboxes.far.wire import MOST, PROTOCOL, Frame, bytes_of, fields_of, text_of
from littleghost.sandboxes.policy import Access, EffectivePolicy, Policy
from littleghost.sandboxes.processes import arguments_of, check_bounds, environment_of
from littleghost.telemetry import span
from littleghost.workspace import Workspace, parse_path

__all__ = ["FarSandbox"]

T = TypeVar("T")

_NAME = 8 << 10  # bytes that a path in a listing takes at most, written in JSON
_LINE = 16 << 10  # the same of a line that was found
_CHANGES = frozenset({"write", "delete", "move", "make_directory"})
_OPENING = 60.0
_CLOSING = 30.0
_LEAVING = 5.0
_WELCOME = 1 << 20  # bytes of what a far half says of itself
_ANSWERING = 120.0  # seconds that an answer may take beyond what is known of the work


class _Far(Sandbox):
    """The operations, on a sandbox or a scope of it."""

    _origin: FarSandbox
    _chain: tuple[dict[str, Any], ...] = ()
    _accesses: dict[str | None, Access]
    _executes = True
    _whole = True

    @property
    def writable(self) -> bool:
        return self._accesses[None] == "read_write"

    @property
    def effective_policy(self) -> EffectivePolicy:
        """What is in force."""
        named = {name: access for name, access in self._accesses.items() if name is not None}
        return msgspec.structs.replace(self._origin.stated(), root=self._accesses[None], paths=named)

    def scope(
        self,
        *,
        read_only: bool = False,
        path: str | None = None,
        paths: Sequence[str] | None = None,
        execute: bool = True,
        limits: SandboxLimits | None = None,
    ) -> Sandbox:
        if (limits := checked_limits(limits)) is not None:
            self._origin.refuse_limits(limits)
        name = None if path is None else parse_path(path).name
        unknown = [each for each in [*(paths or ()), *([name] if name else [])] if each not in self._accesses]
        if unknown:
            raise PolicyError(
                f"a scope cannot have paths its sandbox does not have: {', '.join(sorted(map(str, unknown)))}"
            )
        everything = paths is None and path is None
        kept = [each for each in self._accesses if each is not None] if everything else list(paths or ())
        accesses: dict[str | None, Access] = {None: self._accesses[name]}
        accesses.update({each: self._accesses[each] for each in kept})
        if read_only:
            accesses = dict.fromkeys(accesses, "read_only")
        step: dict[str, Any] = {"read_only": read_only, "path": path, "execute": execute}
        step["paths"] = None if paths is None else list(paths)
        step["limits"] = None if limits is None else fields_of(limits, without_none=True)
        same = path is None and all(accesses.get(each) == access for each, access in self._accesses.items())
        return _Scope(
            self._origin,
            (*self._chain, step),
            accesses,
            self.limits if limits is None else self.limits.lowered(limits),
            executes=self._executes and execute,
            whole=self._whole and same,
        )

    async def read(
        self, path: str, *, context: Interruptible | None = None, offset: int = 0, limit: int | None = None
    ) -> str:
        given = {"path": _path(path), "offset": offset, "limit": limit}
        answer = await self._ask("read", given, context=context, room=self.limits.read_bytes)
        return text_of(answer.data, strict=True)

    async def read_bytes(
        self, path: str, *, context: Interruptible | None = None, offset: int = 0, limit: int | None = None
    ) -> bytes:
        given = {"path": _path(path), "offset": offset, "limit": limit}
        return (await self._ask("read_bytes", given, context=context, room=self.limits.read_bytes)).data

    async def list(self, path: str = ".", *, context: Interruptible | None = None) -> builtins.list[str]:
        room = self._listing(_NAME)
        answer = await self._ask("list", {"path": _path(path)}, context=context, room=room, heads=room)
        return _is(answer, list[str])

    async def stat(self, path: str, *, context: Interruptible | None = None) -> FileInfo:
        return _is(await self._ask("stat", {"path": _path(path)}, context=context), FileInfo)

    async def write(self, path: str, content: str, *, context: Interruptible | None = None) -> None:
        if not isinstance(content, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("the content must be text", path=path)
        await self._ask("write", {"path": _path(path)}, bytes_of(content), context=context)

    async def write_bytes(self, path: str, content: bytes, *, context: Interruptible | None = None) -> None:
        if not isinstance(content, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("the content must be bytes", path=path)
        await self._ask("write_bytes", {"path": _path(path)}, bytes(content), context=context)

    async def replace(
        self, path: str, old_text: str, new_text: str, *, context: Interruptible | None = None
    ) -> None:
        if not isinstance(old_text, str) or not isinstance(new_text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ToolValueError("the texts must be text", path=path)
        old = bytes_of(old_text)
        given = {"path": _path(path), "old": len(old)}
        await self._ask("replace", given, old + bytes_of(new_text), context=context)

    async def delete(self, path: str, *, context: Interruptible | None = None) -> None:
        await self._ask("delete", {"path": _path(path)}, context=context)

    async def move(self, path: str, target: str, *, context: Interruptible | None = None) -> None:
        await self._ask("move", {"path": _path(path), "target": _path(target)}, context=context)

    async def make_directory(self, path: str, *, context: Interruptible | None = None) -> None:
        await self._ask("make_directory", {"path": _path(path)}, context=context)

    async def glob(
        self,
        pattern: str,
        *,
        path: str = ".",
        hidden: bool = False,
        limit: int | None = None,
        context: Interruptible | None = None,
    ) -> Found[str]:
        given = {"pattern": _text(pattern), "path": _path(path), "hidden": hidden, "limit": limit}
        room = self._listing(_NAME)
        answer = await self._ask(
            "glob", given, context=context, room=room, heads=room, patience=self._searching()
        )
        found = _is(answer, _FoundPaths)
        return Found(found.items, truncated=found.truncated, skipped=found.skipped)

    async def grep(
        self,
        pattern: str,
        *,
        path: str = ".",
        glob: str | None = None,
        hidden: bool = False,
        limit: int | None = None,
        context: Interruptible | None = None,
    ) -> Found[Match]:
        given = {
            "pattern": _text(pattern),
            "path": _path(path),
            "hidden": hidden,
            "limit": limit,
            "glob": glob,
        }
        room = self._listing(_NAME + _LINE)
        answer = await self._ask(
            "grep", given, context=context, room=room, heads=room, patience=self._searching()
        )
        found = _is(answer, _FoundLines)
        return Found(found.items, truncated=found.truncated, skipped=found.skipped)

    def _searching(self) -> float:
        return self.limits.search_seconds + _ANSWERING

    def _listing(self, each: int) -> int:
        return min(self.limits.list_entries * each, MOST)

    async def execute_program(
        self,
        command: Sequence[str],
        *,
        timeout: float | None,
        context: Interruptible | None = None,
        max_output_bytes: int = 1_000_000,
        environment: Mapping[str, str] | None = None,
        inherit_environment: bool = False,
        input: str | bytes | None = None,
        cwd: str | None = None,
    ) -> Execution:
        arguments, given = self._checked(command, environment, inherit=inherit_environment, cwd=cwd)
        check_bounds(timeout, max_output_bytes)
        if self.limits.output_bytes is not None:
            max_output_bytes = min(max_output_bytes, self.limits.output_bytes)
        given |= {"timeout": timeout, "max_output_bytes": max_output_bytes, "input": input is not None}
        # a byte that is no text becomes three, and a marker says what was cut out
        room = 2 * (3 * max_output_bytes + 1_000)
        with span("sandbox.execute", self._attributes(arguments)) as recorded:
            times = [each for each in (timeout, self.limits.wall_seconds) if each is not None]
            patience = min(times) + _ANSWERING if times else None
            answer = await self._ask(
                "execute", given, _input(input), context=context, room=room, patience=patience
            )
            said = _is(answer, _Execution)
            execution = Execution(
                stdout=text_of(answer.data[: said.stdout], strict=True),
                stderr=text_of(answer.data[said.stdout :], strict=True),
                exit_code=said.exit_code,
                error=said.error,
                timed_out=said.timed_out,
                stdout_omitted=said.stdout_omitted,
                stderr_omitted=said.stderr_omitted,
                duration=said.duration,
            )
            if execution.exit_code is not None:
                recorded.set("process.exit.code", execution.exit_code)
            if execution.error is not None:
                recorded.set("littleghost.sandbox.timed_out", execution.timed_out)
            return execution

    async def start_program(
        self,
        command: Sequence[str],
        *,
        context: Interruptible | None = None,
        environment: Mapping[str, str] | None = None,
        inherit_environment: bool = False,
        cwd: str | None = None,
    ) -> Process:
        arguments, given = self._checked(command, environment, inherit=inherit_environment, cwd=cwd)
        origin = self._origin
        number = next(origin.numbers)
        with span("sandbox.start_program", self._attributes(arguments)):
            try:
                await self._ask("start", {**given, "process": number}, context=context)
            except asyncio.CancelledError:
                await origin.forget(number)  # it may have started
                raise
            process = FarProcess(
                origin.line, number, context, lambda: origin.processes.pop(number, None) and None
            )
            origin.processes[number] = process
            return process

    def _checked(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        *,
        inherit: bool,
        cwd: str | None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return the arguments of a command that may be run here, and what is asked."""
        self._origin.check_open()
        if not self._executes:
            raise CapabilityError("this scope does not run programs")
        if not self._whole and not self._origin.confines_processes:
            raise CapabilityError(
                f"{type(self._origin).__name__} cannot keep a program inside a scope, so a narrower scope runs none"
            )
        arguments = arguments_of(command)
        variables = environment_of(os.environ if inherit else None, environment)
        where = None if cwd is None else _path(cwd)
        return arguments, {"command": list(arguments), "environment": variables, "cwd": where}

    def _attributes(self, arguments: tuple[str, ...]) -> dict[str, str]:
        name = os.path.basename(arguments[0]) or "?"
        return {"littleghost.sandbox": type(self._origin).__name__, "process.executable.name": name}

    async def _ask(
        self,
        do: str,
        given: dict[str, Any],
        data: bytes = b"",
        *,
        context: Interruptible | None = None,
        room: int = 0,
        heads: int = 0,
        patience: float | None = _ANSWERING,
    ) -> Frame:
        origin = self._origin
        origin.check_open()
        if context is not None:
            context.check()  # and once more when it is about to be sent
        given = {name: value for name, value in given.items() if value is not None}
        head: dict[str, Any] = {"do": do, "with": given}
        if self._chain:
            head["in"] = self._chain
        try:
            return await origin.line.ask(
                head, data, room=room, heads=heads, context=context, patience=patience
            )
        except ValueError as error:
            if isinstance(error, ToolError | ConfigurationError):
                raise
            raise ToolValueError(f"that cannot be asked of a sandbox: {error}") from error


class FarSandbox(_Far):
    """A sandbox on the far side of a line. A subclass says how the line is laid, and what the far side is."""

    _refused_here: Mapping[str, str] = {}
    """Limits that the sandbox must not be given, and why."""

    confines_processes = False
    """Whether a program that is run in a scope sees no more than that scope."""

    def __init__(
        self,
        workspace: Workspace | str | os.PathLike[str],
        *,
        writable: bool = False,
        policy: Policy | Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
    ) -> None:
        super().__init__(workspace, writable=writable, policy=policy, limits=limits)
        self._origin = self
        self._accesses = {None: self._root_access}
        for name, path in self.workspace.paths.items():
            below = path.is_relative_to(self.workspace.root)
            self._accesses[name] = self._policy.paths.get(name) or (
                self._root_access if below else "read_only"
            )
        self.numbers = itertools.count(1)
        self.processes: dict[int, FarProcess] = {}
        self._line: Line | None = None
        self._welcome = _Welcome()
        self._state = "new"
        self._refused = False  # whether the far half has opened nothing, and has nothing to close
        self._opening = asyncio.Lock()
        self.capabilities = self._offers()
        if all(access == "read_only" for access in self._accesses.values()):
            self.capabilities -= _CHANGES
        if self._policy.git == "read_write":
            self.capabilities -= {"git_read_only"}

    @abstractmethod
    def _offers(self) -> frozenset[str]:
        """Return what the sandbox offers where it can be written."""

    @abstractmethod
    async def _lay(self) -> tuple[Transport, bytes]:
        """Return a line to where the far half is, and what has come over it already. What was made for it is `_unlay`'s to remove."""

    async def _unlay(self) -> None:
        """Remove what `_lay` made. It is called whenever `_lay` was, also where that failed."""

    def _greeting(self) -> dict[str, Any]:
        """Return what the far half is told first."""
        return {
            "protocol": PROTOCOL,
            "root": str(self.workspace.root),
            "paths": {name: str(path) for name, path in self.workspace.paths.items()},
            "writable": self._root_access == "read_write",
            "policy": fields_of(self._policy, without_none=True),
            "limits": fields_of(self._limits, without_none=True),
        }

    @abstractmethod
    def stated(self) -> EffectivePolicy:
        """Return what is in force for the whole sandbox."""

    @property
    def told(self) -> _Welcome:
        """What the far half said of itself when the sandbox was opened."""
        return self._welcome

    @property
    def is_open(self) -> bool:
        return self._state == "open" and self._line is not None and self._line.lost is None

    @property
    def line(self) -> Line:
        """The line, while the sandbox is open."""
        self.check_open()
        assert self._line is not None  # noqa: S101 (the state says so)
        return self._line

    def check_open(self) -> None:
        """Raise `ToolError` unless the sandbox is open."""
        if self._state != "open":
            raise ToolError(
                "the sandbox is closed"
                if self._state == "closed"
                else "the sandbox is not open; open it with: async with sandbox"
            )

    def refuse_limits(self, limits: SandboxLimits) -> None:
        """Raise `CapabilityError` where a limit is set that the far half does not enforce."""
        for name, why in {**self._welcome.refused, **self._refused_here}.items():
            if getattr(limits, name, None) is not None:
                raise CapabilityError(why, limit=name)

    async def open(self, run: object = None) -> Self:
        async with self._opening:
            if self._state == "open":
                return self
            self.refuse_limits(self._limits)
            await self._prepare()
            try:
                await self._connect()
                self._state = "open"
                await self._try()
            except BaseException:
                self._state = "new"
                await self._end()
                raise
        return self

    async def _prepare(self) -> None:
        """Check what can be checked, and open what is on this side."""

    async def _release(self) -> None:
        """Undo `_prepare`."""

    async def _try(self) -> None:
        """See that what is claimed is so, the sandbox being open. It is closed again where this raises."""

    async def _connect(self) -> None:
        async with asyncio.timeout(_OPENING):
            transport, held = await self._lay()
        self._line = Line(transport, held=held, reopen=self._reopening())
        self._refused = False
        try:
            answer = await self._greeted(self._line)
        except LittleGhostError:
            self._refused = True
            raise
        welcome = _is(answer, _Welcome)
        if welcome.protocol != PROTOCOL:
            raise ConfigurationError("the two sides of the sandbox are of different versions of LittleGhost")
        self._welcome = welcome

    async def _greeted(self, line: Line) -> Frame:
        """Return the answer to the greeting. Who is cancelled waits a moment for it, so that what was opened is closed, and not long."""
        asking = asyncio.ensure_future(
            line.ask(self._greeting(), room=_WELCOME, heads=_WELCOME, patience=_OPENING)
        )
        try:
            await asyncio.wait([asking])
        except asyncio.CancelledError:
            try:
                await asyncio.wait([asking], timeout=_LEAVING)
            finally:
                line.give_up(asking)
                await whole(asyncio.wait([asking]))
                asking.exception()
            raise
        return asking.result()

    def _reopening(self) -> Any:
        """Return what lays the line again where it broke, or ``None`` where the far half ends with it."""
        return None

    async def close(self) -> None:
        async with self._opening:
            if self._state != "open":
                return
            self._state = "closed"
            await self._end()

    async def _end(self) -> None:
        line, self._line = self._line, None
        try:
            if line is not None:
                try:
                    if not self._refused:
                        await _closed(line, list(self.processes.values()))
                finally:
                    await line.close()
        finally:
            try:
                await self._unlay()
            finally:
                await self._release()

    async def forget(self, number: int) -> None:
        """Have a program ended of which it is not known whether it started."""
        if self._line is not None:
            dropping = asyncio.ensure_future(
                self._line.ask({"do": "drop", "with": {"process": number}}, patience=DROPPING)
            )
            while not dropping.done():
                try:
                    await asyncio.wait([dropping])
                except asyncio.CancelledError:
                    continue
            dropping.exception()


class _Scope(_Far):
    """A narrower view of a `FarSandbox`, which stays the owner of everything."""

    def __init__(
        self,
        origin: FarSandbox,
        chain: tuple[dict[str, Any], ...],
        accesses: dict[str | None, Access],
        limits: SandboxLimits,
        *,
        executes: bool,
        whole: bool,
    ) -> None:
        super().__init__(origin.workspace, policy=origin.policy, limits=limits)
        self._origin, self._chain, self._accesses = origin, chain, accesses
        self._executes, self._whole = executes, whole
        self.capabilities = origin.capabilities
        if all(access == "read_only" for access in accesses.values()):
            self.capabilities -= _CHANGES
        if not (executes and (whole or origin.confines_processes)):
            self.capabilities -= {"execute", "start_program"}

    @property
    def is_open(self) -> bool:
        return self._origin.is_open

    async def open(self, run: object = None) -> Self:
        self._origin.check_open()
        return self

    async def close(self) -> None:
        return None


class _Welcome(msgspec.Struct, frozen=True, kw_only=True, rename={"in_force": "in force"}):
    protocol: int = 0
    capabilities: frozenset[str] = frozenset()
    in_force: EffectivePolicy = EffectivePolicy(root="read_only")
    refused: dict[str, str] = {}
    limits: SandboxLimits | None = None
    python: str = ""
    lease_seconds: float = 0.0
    message_bytes: int = MOST
    seen: dict[str, Any] = {}


class _FoundPaths(msgspec.Struct):
    items: list[str]
    truncated: str | None
    skipped: int


class _FoundLines(msgspec.Struct):
    items: list[Match]
    truncated: str | None
    skipped: int


class _Execution(msgspec.Struct):
    stdout: int
    exit_code: int | None
    error: str | None
    timed_out: bool
    stdout_omitted: int
    stderr_omitted: int
    duration: float


async def _closed(line: Line, processes: list[FarProcess]) -> None:
    """Have everything on the far side ended, or give up on it; the end of the line ends it too."""
    with suppress(LittleGhostError):
        await line.ask({"do": "close"}, patience=_CLOSING)
    for process in processes:
        if process.loop is asyncio.get_running_loop():
            await process.close()


def _is(answer: Frame, kind: type[T]) -> T:
    """Return what was answered, which must be of a kind."""
    try:
        return msgspec.convert(answer.head.get("is"), kind, strict=True)
    except msgspec.ValidationError as error:
        raise ToolConnectionError(
            "the other side of the sandbox answered something else than it was asked"
        ) from error


def _path(path: str) -> str:
    """Return a path as it is sent. What is wrong with it is found here already, and then again where it is used."""
    parse_path(path)
    return os.fspath(path)


def _text(pattern: Any) -> str:
    if not isinstance(pattern, str):
        raise ToolValueError("a pattern must be text")
    return pattern


def _input(data: str | bytes | None) -> bytes:
    if data is None:
        return b""
    if isinstance(data, str):
        try:
            return data.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ToolValueError("the input is not valid Unicode: it has a lone surrogate") from error
    if isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]
        return bytes(data)
    raise ToolValueError("the input must be text or bytes")
