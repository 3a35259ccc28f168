"""What the backends on this machine share: files in this process, programs through a `Launcher`, and scopes of both."""

from __future__ import annotations

import asyncio
import builtins
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Self, TypeVar, cast

import msgspec

from littleghost.cancellation import Interruptible
from littleghost.errors import CapabilityError, LittleGhostError, PolicyError, ToolError
from littleghost.sandboxes.contract import Execution, FileInfo, Sandbox, SandboxLimits
from littleghost.sandboxes.files import Files, Root
from littleghost.sandboxes.policy import Access, EffectivePolicy, Policy
from littleghost.sandboxes.processes import (
    Launcher,
    Program,
    arguments_of,
    check_bounds,
    environment_of,
    settled,
)
from littleghost.telemetry import span
from littleghost.workspace import Workspace, parse_path

__all__ = ["LocalSandbox", "View"]

T = TypeVar("T")

_FILE_CAPABILITIES = frozenset({"files", "bytes", "stat", "named_paths", "scope", "local_files"})


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What one sandbox or scope lets through.

    Attributes:
        files: The files.
        limits: The bounds.
        execute: Whether programs may run.
        whole: Whether it is everything the sandbox has, so that a program that sees all of that sees no more than this.
    """

    files: Files
    limits: SandboxLimits
    execute: bool = True
    whole: bool = True

    @property
    def accesses(self) -> dict[str, Access]:
        """The access to each named path."""
        return {name: root.access for name, root in self.files.roots.items() if name is not None}

    def narrowed(
        self,
        *,
        read_only: bool,
        path: str | None,
        paths: Sequence[str] | None,
        execute: bool,
        limits: SandboxLimits | None,
    ) -> View:
        """Return a view that lets through no more than this one."""
        known = self.files.roots
        top: tuple[str | None, tuple[str, ...]] = parse_path(path) if path is not None else (None, ())
        wanted = [*(paths or ()), *([top[0]] if top[0] is not None else [])]
        unknown = [str(name) for name in wanted if name not in known]
        if unknown:
            raise PolicyError(
                f"a scope cannot have paths its sandbox does not have: {', '.join(sorted(unknown))}"
            )
        kept = (
            [name for name in known if name is not None]
            if paths is None and path is None
            else list(paths or ())
        )
        roots: dict[str | None, Root] = {None: known[top[0]].narrowed(top[1], read_only=read_only)}
        roots.update({name: known[name].narrowed((), read_only=read_only) for name in kept})
        lowered = self.limits if limits is None else self.limits.lowered(limits)
        same = (
            path is None
            and len(roots) == len(known)
            and all(roots[name].access == known[name].access for name in roots)
        )
        return View(
            files=Files(roots, lowered),
            limits=lowered,
            execute=self.execute and execute,
            whole=self.whole and same,
        )


class _Local(Sandbox):
    """The operations, on a view of a sandbox that is open."""

    _view: View
    _origin: LocalSandbox

    @property
    def limits(self) -> SandboxLimits:
        return self._view.limits

    @property
    def writable(self) -> bool:
        return self._view.files.roots[None].access == "read_write"

    @property
    def effective_policy(self) -> EffectivePolicy:
        """What is in force."""
        return self._origin.stated(self._view)

    def scope(
        self,
        *,
        read_only: bool = False,
        path: str | None = None,
        paths: Sequence[str] | None = None,
        execute: bool = True,
        limits: SandboxLimits | None = None,
    ) -> Sandbox:
        if limits is not None:
            self._origin.refuse_limits(limits)
        view = self._view.narrowed(
            read_only=read_only, path=path, paths=paths, execute=execute, limits=limits
        )
        return _Scope(self._origin, view, self.capabilities)

    async def read(self, path: str, *, context: Interruptible | None = None) -> str:
        return await self._look(self._view.files.read, path, context)

    async def read_bytes(self, path: str, *, context: Interruptible | None = None) -> bytes:
        return await self._look(self._view.files.read_bytes, path, context)

    async def stat(self, path: str, *, context: Interruptible | None = None) -> FileInfo:
        return await self._look(self._view.files.stat, path, context)

    async def list(self, path: str = ".", *, context: Interruptible | None = None) -> builtins.list[str]:
        return await self._look(self._view.files.list, path, context)

    async def write(self, path: str, content: str, *, context: Interruptible | None = None) -> None:
        await self._change(self._view.files.write, (path, content), context)

    async def write_bytes(self, path: str, content: bytes, *, context: Interruptible | None = None) -> None:
        await self._change(self._view.files.write_bytes, (path, content), context)

    async def replace(
        self, path: str, old_text: str, new_text: str, *, context: Interruptible | None = None
    ) -> None:
        await self._change(self._view.files.replace, (path, old_text, new_text), context)

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
        origin = self._origin
        origin.check_open()
        if not self._view.execute:
            raise CapabilityError("this scope does not run programs")
        if not self._view.whole and not origin.confines_processes:
            raise CapabilityError(
                f"{type(origin).__name__} cannot keep a program inside a scope, so a narrower scope runs none"
            )
        arguments = arguments_of(command)
        check_bounds(timeout, max_output_bytes)
        inherited = os.environ if inherit_environment else None
        variables = environment_of(inherited, origin.policy.environment, environment)
        limits = self._view.limits
        if limits.wall_seconds is not None:
            timeout = limits.wall_seconds if timeout is None else min(timeout, limits.wall_seconds)
        if limits.output_bytes is not None:
            max_output_bytes = min(max_output_bytes, limits.output_bytes)
        attributes = {
            "littleghost.sandbox": type(origin).__name__,
            "process.executable.name": os.path.basename(arguments[0]) or "?",
        }
        with span("sandbox.execute", attributes) as recorded, ExitStack() as release:
            try:
                program = origin.program(
                    self._view, arguments, variables, "." if cwd is None else cwd, release
                )
                execution = await origin.launcher.run(
                    program, timeout=timeout, context=context, max_output_bytes=max_output_bytes, input=input
                )
            except LittleGhostError:  # some of them are an OSError too
                raise
            except OSError as error:
                raise ToolError(f"the command could not be started: {error.strerror}") from error
            execution = origin.translated(execution, program, arguments)
            if execution.exit_code is not None:
                recorded.set("process.exit.code", execution.exit_code)
            if execution.error is not None:
                recorded.set("littleghost.sandbox.timed_out", execution.timed_out)
            return execution

    async def _look(self, operation: Callable[[str], T], path: str, context: Interruptible | None) -> T:
        self._origin.check_open()
        if context is not None:
            context.check()
        return await asyncio.get_running_loop().run_in_executor(None, operation, path)

    async def _change(
        self, operation: Callable[..., None], arguments: tuple[Any, ...], context: Interruptible | None
    ) -> None:
        """Do a change in a thread. Nothing changes after this has returned or raised, cancelled or not."""
        self._origin.check_open()
        if context is not None:
            context.check()
        abandoned = threading.Event()

        def proceed() -> None:
            if abandoned.is_set():
                raise ToolError("cancelled before it was written")
            if context is not None:
                context.check()

        work = asyncio.get_running_loop().run_in_executor(None, operation, *arguments, proceed)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            abandoned.set()
            await settled(work)
            raise


class LocalSandbox(_Local):
    """A backend on this machine. A subclass says what it accepts, how it starts a program, and what is in force."""

    confines_processes = False
    """Whether a program sees no more than the view it was started for."""

    _unenforced_limits: ClassVar[tuple[str, ...]] = ()
    """The limits that it must not be given."""

    def __init__(
        self,
        workspace: Workspace | str | os.PathLike[str],
        *,
        writable: bool = False,
        policy: Policy | Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
    ) -> None:
        super().__init__(workspace, writable=writable, policy=policy, limits=limits)
        roots: dict[str | None, Root] = {None: Root(self.workspace, None, self._root_access)}
        for name, path in self.workspace.paths.items():
            below = path.is_relative_to(self.workspace.root)
            access: Access = self._policy.paths.get(name) or (self._root_access if below else "read_only")
            roots[name] = Root(self.workspace, name, access)
        self._view = View(files=Files(roots, self._limits), limits=self._limits)
        self._origin = self
        self._state = "new"
        self._opening = asyncio.Lock()
        self._launcher: Launcher | None = None
        if any(root.access == "read_write" for root in roots.values()):
            self.capabilities = _FILE_CAPABILITIES | {"write"}
        else:
            self.capabilities = _FILE_CAPABILITIES

    @property
    def launcher(self) -> Launcher:
        """What starts programs, while the sandbox is open."""
        self.check_open()
        return cast("Launcher", self._launcher)  # it is there whenever the state says open

    @property
    def view(self) -> View:
        """Everything the sandbox lets through."""
        return self._view

    @property
    def is_open(self) -> bool:
        return self._state == "open"

    def check_open(self) -> None:
        """Raise `ToolError` unless the sandbox is open."""
        if self._state != "open":
            raise ToolError("the sandbox is closed" if self._state == "closed" else "the sandbox is not open")

    async def open(self, run: object = None) -> Self:
        async with self._opening:
            if self._state == "open":
                return self
            await self.check_supported()
            await self.workspace.open()
            launcher = Launcher(type(self).__name__)
            try:
                self._check_nesting()
                if "execute" in self.capabilities:
                    launcher.start()
                await self.prepare(launcher)
            except BaseException:
                await launcher.close()
                await self.workspace.close()
                raise
            self._launcher, self._state = launcher, "open"
        return self

    async def close(self) -> None:
        async with self._opening:
            if self._state != "open":
                return
            self._state = "closed"
            try:
                if self._launcher is not None:
                    await self._launcher.close()
                await self.release()
            finally:
                self._launcher = None
                await self.workspace.close()

    @abstractmethod
    async def check_supported(self) -> None:
        """Raise `CapabilityError` for what was asked for and cannot be enforced, before anything is opened."""

    @abstractmethod
    def stated(self, view: View) -> EffectivePolicy:
        """Return what is in force in ``view``."""

    async def prepare(self, launcher: Launcher) -> None:
        """Get ready to run programs, the workspace being open."""

    async def release(self) -> None:
        """Undo `prepare`."""

    @abstractmethod
    def program(
        self,
        view: View,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        cwd: str,
        release: ExitStack,
    ) -> Program:
        """Return what to start so that ``arguments`` run in ``view``; descriptors are closed through ``release``."""

    def translated(self, execution: Execution, program: Program, arguments: tuple[str, ...]) -> Execution:
        """Return ``execution`` as the command's own, where something of the backend's shows in it."""
        return execution

    def refuse_limits(self, limits: SandboxLimits) -> None:
        """Raise `CapabilityError` where a limit is set that the backend does not enforce."""
        for name in self._unenforced_limits:
            if getattr(limits, name) is not None:
                raise CapabilityError(
                    f"{type(self).__name__} cannot enforce the limit {name} in this version", limit=name
                )

    def _check_nesting(self) -> None:
        """Refuse a read-only directory inside a read-write one: it could be written through the outer one."""
        roots = self._view.files.roots
        real = {name: os.path.realpath(self.workspace.directory(name).path) for name in roots}
        for outer, root in roots.items():
            for inner, other in roots.items():
                inside = os.path.commonpath([real[outer], real[inner]]) == real[outer]
                if inside and root.access == "read_write" and other.access == "read_only":
                    raise CapabilityError(
                        f"the path {inner or 'root'!r} cannot be read-only inside {outer or 'root'!r}, which is read-write"
                    )


class _Scope(_Local):
    """A narrower view of a `LocalSandbox`, which stays the owner of everything."""

    def __init__(self, origin: LocalSandbox, view: View, capabilities: frozenset[str]) -> None:
        super().__init__(origin.workspace, policy=origin.policy)
        self._origin, self._view = origin, view
        if all(root.access == "read_only" for root in view.files.roots.values()):
            capabilities -= {"write"}
        if not view.execute or not (view.whole or origin.confines_processes):
            capabilities -= {"execute"}
        self.capabilities = capabilities

    @property
    def is_open(self) -> bool:
        return self._origin.is_open

    async def open(self, run: object = None) -> Self:
        self._origin.check_open()
        return self

    async def close(self) -> None:
        return None
