"""Any sandbox of this library as a sandbox of Inspect.

Where this library and Inspect are installed, an evaluation says ``sandbox="littleghost"``; see `LittleGhostSandboxConfig` for how to say
more. Each sample gets a sandbox of its own, over a temporary directory that goes with it.
"""

from __future__ import annotations

import errno
import os
import posixpath
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any, Literal, NoReturn, overload

from littleghost.adapters.inside import Inside, in_directory
from littleghost.errors import ConfigurationError, DependencyError, ToolError
from littleghost.sandboxes.contract import Sandbox, SandboxLimits
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.native import native_sandbox
from littleghost.workspace import Workspace

try:
    from inspect_ai.util import (
        ExecResult,
        OutputLimitExceededError,
        SandboxEnvironment,
        SandboxEnvironmentConfigType,
        SandboxEnvironmentLimits,
        SandboxUnavailableError,
        SandboxUserUnsupportedError,
        concurrency,
        sandboxenv,
    )
    from pydantic import BaseModel, ConfigDict
except ImportError as error:
    raise DependencyError.missing("inspect-ai 0.3.285 or newer", "inspect") from error

__all__ = ["LittleGhostSandboxConfig", "LittleGhostSandboxEnvironment"]


class LittleGhostSandboxConfig(BaseModel):
    """What sandbox the samples of an evaluation get.

    ::

        SandboxEnvironmentSpec("littleghost", LittleGhostSandboxConfig(policy={"network": "inherit"}))

    ``("littleghost", "sandbox.json")`` reads one from a file; so does ``--sandbox littleghost:sandbox.json``.

    Attributes:
        backend: ``native``, which isolates (see `native_sandbox`), or ``host``, which does not (see `HostSandbox`).
        policy: A `Policy`, as a mapping.
        limits: `SandboxLimits`, as a mapping. Files of up to 100 MiB can be read and written where nothing is said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["native", "host"] = "native"
    policy: dict[str, Any] = {}
    limits: dict[str, Any] = {}

    def __hash__(self) -> int:  # Inspect keeps configurations in sets
        return hash(self.model_dump_json())

    def sandbox(self, workspace: Workspace) -> Sandbox:
        """Return a new sandbox of this kind, writable, that is not open.

        Raises:
            ConfigurationError: A policy or a limit is none.
        """
        size = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        limits: dict[str, Any] = {"read_bytes": size, "write_bytes": size, **self.limits}
        unknown = sorted(set(limits) - set(SandboxLimits.__struct_fields__))
        if unknown:
            raise ConfigurationError(f"a sandbox has no limits called {', '.join(unknown)}")
        make = HostSandbox if self.backend == "host" else native_sandbox
        return make(workspace, writable=True, policy=self.policy, limits=SandboxLimits(**limits))


@sandboxenv(name="littleghost")  # pyright: ignore[reportUntypedClassDecorator]
class LittleGhostSandboxEnvironment(SandboxEnvironment):
    """A sandbox as Inspect's.

    It differs from Inspect's contract where the sandbox does. Files are read and written in the workspace only, which is where programs
    start; ``/tmp`` is not in it, so neither are a sample's ``setup`` script, nor the tools that Inspect injects (``text_editor``,
    ``bash_session``, ``exec_remote``). There is one user. A command that took too long is not tried again, for it may have done a part
    of its work.

    Args:
        sandbox: An open sandbox. Its owner closes it; those that Inspect asks for belong to their sample.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self._sandbox = sandbox
        self._inside = Inside(sandbox)

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox."""
        return self._sandbox

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command, as Inspect's contract says.

        Raises:
            TimeoutError: It took too long, by ``timeout`` or by the sandbox's limits.
            PermissionError: The program may not be run.
            OutputLimitExceededError: It printed more than Inspect keeps.
            SandboxUserUnsupportedError: A ``user`` was asked for.
            SandboxUnavailableError: The sandbox is closed or broken.
        """
        if user is not None:
            raise SandboxUserUnsupportedError(
                f"the sandbox has one user, and cannot run a command as {user!r}"
            )
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        command = list(cmd)
        async with _throttled(concurrency):
            try:
                if cwd is not None and posixpath.isabs(cwd) and not await self._inside.holds(cwd):
                    command, cwd = in_directory(cwd, command), None
                done = await self._sandbox.execute_program(
                    command,
                    timeout=timeout,
                    max_output_bytes=most,
                    environment=env,
                    input=input,
                    cwd=None if cwd is None else await self._inside.relative(cwd),
                )
            except ToolError as error:
                if isinstance(error, OSError | ValueError):
                    raise
                raise SandboxUnavailableError(str(error)) from error
        if done.timed_out:
            raise TimeoutError(done.error)
        if done.exit_code is None:
            raise SandboxUnavailableError(done.error)
        told = f"{done.error}\n" if done.error else ""
        if done.exit_code == 126 and os.strerror(errno.EACCES) in told:
            raise PermissionError(done.error)
        if done.stdout_omitted or done.stderr_omitted:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR,
                done.stdout if done.stdout_omitted else done.stderr,
            )
        return ExecResult(done.success, done.exit_code, done.stdout, done.stderr + told)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        path = await self._inside.relative(file)
        if isinstance(contents, str):
            await self._sandbox.write(path, contents)
        else:
            await self._sandbox.write_bytes(path, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        path = await self._inside.relative(file)
        info = await self._sandbox.stat(path)
        own, theirs = self._sandbox.limits.read_bytes, SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        if info.kind == "file" and info.size > min(own, theirs):
            limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR if theirs <= own else f"{own} bytes"
            raise OutputLimitExceededError(limit, None)
        content = await self._sandbox.read_bytes(path)
        return content.decode("utf-8") if text else content

    async def exec_remote(self, *_: Any, **__: Any) -> NoReturn:
        """Raise, for what it starts would have to outlive the command that starts it."""
        raise NotImplementedError(
            "exec_remote needs a server of Inspect's in the sandbox, and nothing outlives a command there; use exec"
        )

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Return an open sandbox over a new temporary directory.

        Raises:
            ConfigurationError: It cannot be had here, or ``config`` is none of ours.
        """
        sandbox = await _config(config).sandbox(Workspace.temporary()).open()
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Close the sandboxes and delete their directories."""
        async with AsyncExitStack() as stack:
            for environment in environments.values():
                stack.push_async_callback(environment.as_type(LittleGhostSandboxEnvironment).sandbox.close)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return LittleGhostSandboxConfig(**config)


def _throttled(wanted: bool) -> Any:
    """Hold back commands beyond one for each processor, where that is wanted."""
    return concurrency("littleghost", os.cpu_count() or 1) if wanted else nullcontext()


def _config(config: SandboxEnvironmentConfigType | None) -> LittleGhostSandboxConfig:
    if config is None:
        return LittleGhostSandboxConfig()
    if isinstance(config, LittleGhostSandboxConfig):
        return config
    try:
        if isinstance(config, str):
            return LittleGhostSandboxConfig.model_validate_json(Path(config).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the configuration of the sandbox, {config}, cannot be used: {error}"
        ) from error
    raise ConfigurationError(
        f"a littleghost sandbox takes a LittleGhostSandboxConfig, not a {type(config).__name__}"
    )
