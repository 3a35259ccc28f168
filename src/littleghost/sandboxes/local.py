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
from littleghost.sandboxes.files import Files, Root
from littleghost.sandboxes.nesting import refuse_nesting
from littleghost.sandboxes.policy import Access, EffectivePolicy, Policy
from littleghost.sandboxes.processes import (
    Launcher,
    Program,
    arguments_of,
    check_bounds,
    environment_of,
    settled,
)
from littleghost.sandboxes.restraints import Restraints, restraints_of
from littleghost.sandboxes.searching import Watch, find_lines, find_paths
from littleghost.telemetry import span
from littleghost.workspace import Workspace, parse_path

__all__ = ["LocalSandbox", "View"]

T = TypeVar("T")

_WORDS = {
    "memory_bytes": "memory_limit",
    "processes": "process_limit",
    "cpu_seconds": "cpu_limit",
    "file_bytes": "file_limit",
}
_FILE_CAPABILITIES = frozenset(
    {
        "files",
        "bytes",
        "ranges",
        "stat",
        "glob",
        "grep",
        "named_paths",
        "scope",
        "local_files",
        "git_read_only",
    }
)
_WRITE_CAPABILITIES = frozenset({"write", "delete", "move", "make_directory"})


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
            files=self.files.narrowed(roots, lowered),
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
        if (limits := checked_limits(limits)) is not None:
            self._origin.refuse_limits(limits)
        view = self._view.narrowed(
            read_only=read_only, path=path, paths=paths, execute=execute, limits=limits
        )
        return _Scope(self._origin, view, self.capabilities)

    async def read(
        self, path: str, *, context: Interruptible | None = None, offset: int = 0, limit: int | None = None
    ) -> str:
        return await self._look(lambda given: self._view.files.read(given, offset, limit), path, context)

    async def read_bytes(
        self, path: str, *, context: Interruptible | None = None, offset: int = 0, limit: int | None = None
    ) -> bytes:
        return await self._look(
            lambda given: self._view.files.read_bytes(given, offset, limit), path, context
        )

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

    async def delete(self, path: str, *, context: Interruptible | None = None) -> None:
        await self._change(self._view.files.delete, (path,), context)

    async def move(self, path: str, target: str, *, context: Interruptible | None = None) -> None:
        await self._change(self._view.files.move, (path, target), context)

    async def make_directory(self, path: str, *, context: Interruptible | None = None) -> None:
        await self._change(self._view.files.make_directory, (path,), context)

    async def glob(
        self,
        pattern: str,
        *,
        path: str = ".",
        hidden: bool = False,
        limit: int | None = None,
        context: Interruptible | None = None,
    ) -> Found[str]:
        files = self._view.files
        return await self._search(
            lambda watch: find_paths(files, pattern, path, hidden=hidden, limit=limit, watch=watch), context
        )

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
        files = self._view.files

        def search(watch: Watch) -> Found[Match]:
            return find_lines(files, pattern, path, glob=glob, hidden=hidden, limit=limit, watch=watch)

        return await self._search(search, context)

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
        arguments, variables = self._checked(command, environment, inherit=inherit_environment)
        check_bounds(timeout, max_output_bytes)
        limits = self._view.limits
        if limits.wall_seconds is not None:
            timeout = limits.wall_seconds if timeout is None else min(timeout, limits.wall_seconds)
        if limits.output_bytes is not None:
            max_output_bytes = min(max_output_bytes, limits.output_bytes)
        with span("sandbox.execute", _attributes(origin, arguments)) as recorded, ExitStack() as release:
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

    async def start_program(
        self,
        command: Sequence[str],
        *,
        context: Interruptible | None = None,
        environment: Mapping[str, str] | None = None,
        inherit_environment: bool = False,
        cwd: str | None = None,
    ) -> Process:
        origin = self._origin
        arguments, variables = self._checked(command, environment, inherit=inherit_environment)
        with span("sandbox.start_program", _attributes(origin, arguments)), ExitStack() as release:
            try:
                program = origin.program(
                    self._view, arguments, variables, "." if cwd is None else cwd, release, lasting=True
                )
                return await origin.launcher.start_process(
                    program,
                    timeout=self._view.limits.wall_seconds,
                    context=context,
                    result=lambda execution: origin.translated(execution, program, arguments),
                    release=release,
                )
            except LittleGhostError:
                raise
            except OSError as error:
                raise ToolError(f"the command could not be started: {error.strerror}") from error

    def _checked(
        self, command: Sequence[str], environment: Mapping[str, str] | None, *, inherit: bool
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the arguments and the environment of a command that may be run here."""
        origin = self._origin
        origin.check_open()
        if not self._view.execute:
            raise CapabilityError("this scope does not run programs")
        if not self._view.whole and not origin.confines_processes:
            raise CapabilityError(
                f"{type(origin).__name__} cannot keep a program inside a scope, so a narrower scope runs none"
            )
        inherited = os.environ if inherit else None
        return arguments_of(command), environment_of(inherited, origin.policy.environment, environment)

    async def _look(self, operation: Callable[[str], T], path: str, context: Interruptible | None) -> T:
        self._origin.check_open()
        if context is not None:
            context.check()
        return await asyncio.get_running_loop().run_in_executor(None, operation, path)

    async def _search(self, operation: Callable[[Watch], T], context: Interruptible | None) -> T:
        """Do a search in a thread. Nothing of it goes on after this has returned or raised, or after `close`."""
        self._origin.check_open()
        if context is not None:
            context.check()
        watch = Watch(context, self._view.limits.search_seconds)
        remove = None if context is None else context.cancellation.add_callback(watch.stop)
        self._origin.searches.add(watch)
        work = asyncio.get_running_loop().run_in_executor(None, operation, watch)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            watch.stop()
            await _heard(work)
            raise
        finally:
            self._origin.searches.discard(watch)
            if remove is not None:
                remove()

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
            await _heard(work)
            raise


async def _heard(work: asyncio.Future[Any]) -> None:
    """Wait until ``work`` is done, and take note of its error, so that asyncio does not complain of one that nobody asked for."""
    await settled(work)
    if work.done() and not work.cancelled():
        work.exception()


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
        files = Files(
            roots,
            self._limits,
            git=self._policy.git or "read_only",
            hard_links=self._policy.hard_links != "refuse",
        )
        self._view = View(files=files, limits=self._limits)
        self.searches: set[Watch] = set()
        self._origin = self
        self._state = "new"
        self._opening = asyncio.Lock()
        self._launcher: Launcher | None = None
        if any(root.access == "read_write" for root in roots.values()):
            self.capabilities = _FILE_CAPABILITIES | _WRITE_CAPABILITIES
        else:
            self.capabilities = _FILE_CAPABILITIES
        if files.git == "read_write":
            self.capabilities -= {"git_read_only"}

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
            raise ToolError(
                "the sandbox is closed"
                if self._state == "closed"
                else "the sandbox is not open; open it with: async with sandbox"
            )

    async def open(self, run: object = None) -> Self:
        async with self._opening:
            if self._state == "open":
                return self
            await self.check_supported()
            await self.workspace.open()
            launcher = Launcher(type(self).__name__)
            try:
                refuse_nesting(
                    self.workspace, {name: root.access for name, root in self._view.files.roots.items()}
                )
                if "execute" in self.capabilities:
                    launcher.start()
                await self.prepare(launcher)
            except BaseException:
                await launcher.close()
                await self.workspace.close()
                raise
            self._launcher, self._state = launcher, "open"
            try:
                await self._try_limits(launcher)
            except BaseException:
                self._state = "new"
                await self._end()
                raise
        return self

    async def close(self) -> None:
        async with self._opening:
            if self._state != "open":
                return
            self._state = "closed"
            await self._end()

    async def _end(self) -> None:
        try:
            for search in list(self.searches):
                search.stop()
            await self.release()
            if self._launcher is not None:
                await self._launcher.close()
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
        *,
        lasting: bool = False,
    ) -> Program:
        """Return what to start so that ``arguments`` run in ``view``.

        Descriptors are closed through ``release``. With ``lasting`` it is a program that is talked to, so that its output is nobody
        else's for a moment.
        """

    def translated(self, execution: Execution, program: Program, arguments: tuple[str, ...]) -> Execution:
        """Return ``execution`` as the command's own, where something of the backend's shows in it."""
        return execution

    def files_stated(self, view: View) -> tuple[str, ...]:
        """Return what is in force for the file methods."""
        files = view.files
        return (
            "file methods stay inside the workspace",
            *(
                ("file methods change nothing named .git, nor what is below",)
                if files.git == "read_only"
                else ()
            ),
            *(() if files.hard_links else ("file methods read no file that has more than one name",)),
        )

    def refuse_limits(self, limits: SandboxLimits) -> None:
        """Raise `CapabilityError` where a limit is set that the backend does not enforce."""
        for name in self._unenforced_limits:
            if getattr(limits, name) is not None:
                raise self._not_enforced(name, "in this version")
        refused = self.restraints(limits).refused
        if refused is not None:
            raise self._not_enforced(refused[0], f"here: {refused[1]}")

    def restraints(self, limits: SandboxLimits) -> Restraints:
        """Return how ``limits`` bind programs."""
        return restraints_of(limits, namespaced=self.confines_processes)

    def _not_enforced(self, name: str, why: str) -> CapabilityError:
        return CapabilityError(f"{type(self).__name__} cannot enforce the limit {name} {why}", limit=name)

    async def _try_limits(self, launcher: Launcher) -> None:
        """See that a program starts under the limits, and that they can be put in force."""
        names = self.restraints(self.limits).names
        if not names:
            return
        with ExitStack() as release:
            arguments = ("true",)
            program = self.program(self.view, arguments, {}, ".", release)
            done = self.translated(await launcher.run(program, timeout=30), program, arguments)
        if not done.success:
            why = done.error or f"it ended with {done.exit_code} {done.stderr.strip()}"
            raise CapabilityError(
                f"{type(self).__name__} cannot run a program under the limits {', '.join(sorted(names))}: {why}",
                limit=min(names),
            )
        self.capabilities |= {_WORDS[name] for name in names}


class _Scope(_Local):
    """A narrower view of a `LocalSandbox`, which stays the owner of everything."""

    def __init__(self, origin: LocalSandbox, view: View, capabilities: frozenset[str]) -> None:
        super().__init__(origin.workspace, policy=origin.policy)
        self._origin, self._view = origin, view
        if all(root.access == "read_only" for root in view.files.roots.values()):
            capabilities -= _WRITE_CAPABILITIES
        if not view.execute or not (view.whole or origin.confines_processes):
            capabilities -= {"execute", "start_program"}
        self.capabilities = capabilities

    @property
    def is_open(self) -> bool:
        return self._origin.is_open

    async def open(self, run: object = None) -> Self:
        self._origin.check_open()
        return self

    async def close(self) -> None:
        return None


def _attributes(origin: LocalSandbox, arguments: tuple[str, ...]) -> dict[str, str]:
    """Return what a span tells of a command."""
    name = os.path.basename(arguments[0]) or "?"
    return {"littleghost.sandbox": type(origin).__name__, "process.executable.name": name}
