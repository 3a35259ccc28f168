"""Any sandbox of this library as a workspace of Pydantic AI.

::

    async with native_sandbox("project", writable=True) as sandbox:
        await agent.run("…", workspace=SandboxWorkspaceBackend(sandbox))
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self

from littleghost.adapters.inside import Inside
from littleghost.errors import (
    DependencyError,
    ToolError,
    ToolFileNotFoundError,
    ToolNotADirectoryError,
    ToolValueError,
    UnsupportedError,
)
from littleghost.sandboxes.contract import Execution, FileInfo, Sandbox
from littleghost.workspace import shown

try:
    from pydantic_ai.workspaces import (
        CommandResult,
        FileEntry,
        SupportsCommands,
        SupportsFilesystem,
        WorkspaceBackend,
        WorkspaceCommand,
        WorkspaceError,
        WorkspaceOutputLimitError,
        WorkspaceRef,
        WorkspaceTimeoutError,
        WorkspaceUnavailableError,
    )
except ImportError as error:
    raise DependencyError.missing("pydantic-ai with workspaces (2.68 or newer)", "pydantic-ai") from error

__all__ = ["SandboxWorkspaceBackend"]

PROVIDER = "littleghost"


class SandboxWorkspaceBackend(WorkspaceBackend, SupportsCommands, SupportsFilesystem):
    """A sandbox as a backend of ``pydantic_ai.workspaces.Workspace``.

    Files and programs are the sandbox's, with all that it refuses. Its errors are those the contract asks for as they are, for every
    `ToolError` is also the nearest builtin. Where a path leads (``realpath``) Pydantic AI asks a program of the sandbox.

    It differs from the contract where the sandbox does: nothing that a command started outlives it, not even in a session of its own; and
    a link whose target is an absolute path is not followed by the file methods.

    A sandbox that is not open is opened at the first operation. It is closed by its owner, or by this object's `close`.

    Args:
        sandbox: The sandbox.
        ref: The reference of the workspace to attach to, from an earlier backend over the same directory. That directory must exist then.
        max_output_bytes: How much of each output stream a command may print; more is an error, for what is returned is complete.

    Raises:
        ValueError: ``ref`` is another workspace's.
    """

    def __init__(
        self, sandbox: Sandbox, *, ref: WorkspaceRef | None = None, max_output_bytes: int = 10 << 20
    ) -> None:
        own = WorkspaceRef(provider=PROVIDER, id=str(sandbox.workspace.root))
        if ref is not None and ref != own:
            raise ValueError(f"the reference is of {ref.provider}:{ref.id}, the sandbox is of {own.id}")
        self._sandbox, self._own, self._most = sandbox, own, max_output_bytes
        self._ref = own if sandbox.is_open else ref
        self._attaching, self._started = ref is not None, sandbox.is_open
        self._inside = Inside(sandbox)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox."""
        return self._sandbox

    @property
    def ref(self) -> WorkspaceRef | None:
        """``littleghost`` and the workspace's root on the host; ``None`` until the sandbox is open for the first time."""
        return self._ref

    async def working_dir(self) -> str:
        """Return where programs see the workspace."""
        async with self._told():
            return await self._inside.root()

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command, as the protocol says.

        Raises:
            WorkspaceTimeoutError: The command took too long, by ``timeout`` or by the sandbox's limits.
            WorkspaceOutputLimitError: It printed more than is kept.
            WorkspaceUnavailableError: The sandbox is closed, or its directory gone, also when the command has ended.
        """
        if isinstance(command, str) != shell:
            raise TypeError("a string is for shell=True, and a list of arguments for shell=False")
        arguments = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        async with self._told() as sandbox:
            done = await sandbox.execute_program(
                arguments, timeout=timeout, environment=env, max_output_bytes=self._most
            )
            if await self._is_gone():
                raise self._gone()
            return self._result(done)

    async def read_bytes(self, path: str) -> bytes:
        async with self._told() as sandbox:
            return await sandbox.read_bytes(await self._relative(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        async with self._told() as sandbox:
            await sandbox.write_bytes(await self._relative(path), data)

    async def stat(self, path: str) -> FileEntry:
        async with self._told() as sandbox:
            return _entry(path, await sandbox.stat(await self._relative(path)))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        async with self._told() as sandbox:
            names = await sandbox.list(await self._relative(path))
            entries: list[FileEntry] = []
            for name in names:
                inside = posixpath.join(path, name.removesuffix("/"))
                info = None
                if not name.endswith("/"):  # a file, or a link that may lead to a directory, or nowhere
                    with suppress(ToolError, UnsupportedError):
                        info = await sandbox.stat(await self._relative(inside))
                entries.append(_entry(inside, info, is_directory=name.endswith("/")))
            return entries

    async def make_dir(self, path: str) -> None:
        async with self._told() as sandbox:
            await sandbox.make_directory(await self._relative(path))

    async def remove(self, path: str) -> None:
        """Remove a file, a link itself, or a directory with all that is in it, one entry after another.

        Raises:
            ValueError: It is the workspace, or a directory that holds it.
        """
        async with self._told() as sandbox:
            root = await self._inside.root()
            if f"{root}/".startswith(posixpath.normpath(path).rstrip("/") + "/"):
                raise ToolValueError(f"{shown(path)}: the workspace itself is not removed", path=path)
            await _delete(sandbox, await self._relative(path))

    async def exists(self, path: str) -> bool:
        try:
            await self.stat(path)
        except (ToolFileNotFoundError, ToolNotADirectoryError):
            return False
        return True

    async def close(self) -> None:
        """Close the sandbox. Closing twice does nothing."""
        await self._sandbox.close()

    async def __aenter__(self) -> Self:
        async with self._told():
            return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _relative(self, path: str) -> str:
        if not posixpath.isabs(path):
            raise ToolValueError(f"{shown(path)}: the path must be absolute", path=path)
        return await self._inside.relative(path)

    @asynccontextmanager
    async def _told(self) -> AsyncGenerator[Sandbox]:
        """Yield the open sandbox; what fails because it is gone is a `WorkspaceUnavailableError`."""
        if not self._started:
            await self._start()
        if not self._sandbox.is_open:
            raise self._gone()
        try:
            yield self._sandbox
        except ToolError as error:
            if await self._is_gone():
                raise self._gone() from error
            raise

    async def _start(self) -> None:
        sandbox = self._sandbox
        local = self._attaching and "local_files" in sandbox.capabilities
        # A workspace is made where it is missing; one that is attached to must be there.
        if local and not await asyncio.to_thread(Path(self._own.id).is_dir):
            raise self._gone()
        await sandbox.open()  # twice does nothing
        self._started, self._ref = True, self._own

    async def _is_gone(self) -> bool:
        if not self._sandbox.is_open:
            return True
        try:
            await self._sandbox.stat(".")
        except UnsupportedError:
            return False
        except ToolError:
            return True
        return False

    def _gone(self) -> WorkspaceUnavailableError:
        return WorkspaceUnavailableError("the sandbox is closed, or its directory is gone or another one")

    def _result(self, done: Execution) -> CommandResult:
        if done.timed_out:
            raise WorkspaceTimeoutError(done.error or "timed out", stdout=done.stdout, stderr=done.stderr)
        if done.stdout_omitted or done.stderr_omitted:
            raise WorkspaceOutputLimitError(
                f"the command printed more than {self._most:,} bytes; let it write to a file, and read parts of that",
                limit=self._most,
                stdout=done.stdout,
                stderr=done.stderr,
            )
        if done.exit_code is None:
            raise WorkspaceError(done.error or "the command did not end by itself")
        told = f"{done.error}\n" if done.error else ""
        return CommandResult(exit_code=done.exit_code, stdout=done.stdout, stderr=done.stderr + told)


def _entry(path: str, info: FileInfo | None, *, is_directory: bool = False) -> FileEntry:
    if info is not None:
        is_directory = info.kind == "directory"
    size = None if info is None or is_directory else info.size
    return FileEntry(name=posixpath.basename(path.rstrip("/")), path=path, is_dir=is_directory, size=size)


async def _delete(sandbox: Sandbox, path: str) -> None:
    """Delete ``path``. What can be deleted as it is, links too, is never looked into."""
    try:
        await sandbox.delete(path)
    except ToolError as error:
        if type(error) is not ToolError:
            raise
        names = await sandbox.list(path)  # a directory that is not empty
        if not names:
            raise
        for name in names:
            await _delete(sandbox, posixpath.join(path, name.removesuffix("/")))
        await sandbox.delete(path)
