"""The tools that a sandbox gives a model: files and programs of the workspace."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from littleghost.errors import ToolValueError
from littleghost.tools.contract import RunContext, Tool, Toolset
from littleghost.tools.function import tool

if TYPE_CHECKING:
    from littleghost.sandboxes.contract import Sandbox

__all__ = [
    "SandboxTools",
    "list_files",
    "read_file",
    "replace_in_file",
    "sandbox_tools",
    "shell",
    "write_file",
]

SHELL_SECONDS = 30.0
SHELL_BYTES = 1_000_000


@tool(idempotent=True)
async def read_file(path: str, context: RunContext) -> str:
    """Read a text file of the workspace.

    Args:
        path: The file, relative to the workspace, such as ``notes/today.md``.
        context: The run.
    """
    return await context.sandbox.read(path, context=context)


@tool(idempotent=True)
async def list_files(context: RunContext, path: str = ".") -> list[str]:
    """List a directory of the workspace. The names of directories end in a slash.

    Args:
        path: The directory, relative to the workspace.
        context: The run.
    """
    return await context.sandbox.list(path, context=context)


@tool
async def write_file(path: str, content: str, context: RunContext) -> str:
    """Write a text file of the workspace, in place of what it held.

    Args:
        path: The file, relative to the workspace.
        content: Its whole new text.
        context: The run.
    """
    await context.sandbox.write(path, content, context=context)
    return f"Wrote {len(content.encode())} bytes to {path}"


@tool
async def replace_in_file(path: str, old_text: str, new_text: str, context: RunContext) -> str:
    """Replace a piece of text in a file of the workspace. The old text must occur exactly once.

    Args:
        path: The file, relative to the workspace.
        old_text: The text to replace, exactly as it stands in the file.
        new_text: What to put in its place.
        context: The run.
    """
    await context.sandbox.replace(path, old_text, new_text, context=context)
    return f"Replaced the text in {path}"


@tool
async def shell(command: list[str], context: RunContext) -> dict[str, Any]:
    """Run a program in the workspace and return its output. There is no shell syntax: no pipes, globs or variables.

    Args:
        command: The program and its arguments, each an item of its own, such as ``["ls", "-l"]``.
        context: The run.
    """
    if not command or not command[0]:
        raise ToolValueError("command must name a program", command=command)
    ended = await context.sandbox.execute_program(
        command, timeout=SHELL_SECONDS, context=context, max_output_bytes=SHELL_BYTES
    )
    answer = {
        "stdout": ended.stdout,
        "stderr": ended.stderr,
        "exit_code": ended.exit_code,
        "success": ended.success,
    }
    return answer if ended.error is None else {**answer, "error": ended.error}


def sandbox_tools(sandbox: Sandbox) -> list[Tool]:
    """Return the tools that ``sandbox`` allows.

    Reading and listing always; writing and replacing only where the workspace is writable; `shell` only where programs can be run and
    cannot write more than the file tools may.
    """
    tools: list[Tool] = [read_file, list_files]
    if sandbox.writable:
        tools += [write_file, replace_in_file]
    if "execute" in sandbox.capabilities and (
        sandbox.writable or "read_only_processes" in sandbox.capabilities
    ):
        tools.append(shell)
    return tools


class SandboxTools(Toolset):
    """The tools of the run's sandbox; see `sandbox_tools`.

    Args:
        shell: Whether `shell` is among them.
    """

    def __init__(self, *, shell: bool = True) -> None:
        self._shell = shell

    @asynccontextmanager
    async def open(self, context: RunContext[Any]) -> AsyncGenerator[Sequence[Tool]]:
        """Give the tools of ``context.sandbox``.

        Raises:
            CapabilityError: The run has no sandbox.
        """
        yield [item for item in sandbox_tools(context.sandbox) if self._shell or item is not shell]
