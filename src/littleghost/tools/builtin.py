"""The tools that a sandbox gives a model: files and programs of the workspace."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from littleghost.errors import ToolValueError
from littleghost.tools.contract import RunContext, Tool, Toolset
from littleghost.tools.function import tool

if TYPE_CHECKING:
    from littleghost.sandboxes.contract import Sandbox

__all__ = [
    "SandboxTools",
    "find_files",
    "list_files",
    "read_file",
    "replace_in_file",
    "sandbox_tools",
    "search_files",
    "shell",
    "write_file",
]

SHELL_SECONDS = 30.0
SHELL_BYTES = 1_000_000
FOUND = 200


@tool(idempotent=True)
async def read_file(path: str, context: RunContext, offset: int = 0, limit: int | None = None) -> str:
    """Read a text file of the workspace, or a part of it.

    Args:
        path: The file, relative to the workspace, such as ``notes/today.md``.
        context: The run.
        offset: How many lines to leave out at the start.
        limit: How many lines to read at most. Fewer come at the end of the file.
    """
    sandbox = context.sandbox
    if offset == 0 and limit is None:
        return await sandbox.read(path, context=context)
    if "ranges" in sandbox.capabilities:
        return await sandbox.read(path, context=context, offset=offset, limit=limit)
    if offset < 0 or (limit is not None and limit < 0):
        raise ToolValueError("offset and limit must be whole numbers from 0 up")
    lines = (await sandbox.read(path, context=context)).split("\n")
    ended = [f"{line}\n" for line in lines[:-1]] + lines[-1:]
    return "".join(ended[offset : None if limit is None else offset + limit])


@tool(idempotent=True)
async def list_files(context: RunContext, path: str = ".") -> list[str]:
    """List a directory of the workspace. The names of directories end in a slash.

    Args:
        path: The directory, relative to the workspace.
        context: The run.
    """
    return await context.sandbox.list(path, context=context)


@tool(idempotent=True)
async def find_files(pattern: str, context: RunContext, path: str = ".") -> str:
    """Find files of the workspace by their names. Each line of the answer is a path; the paths of directories end in a slash.

    Args:
        pattern: Such as ``*.md`` (in this directory only), ``**/*.py`` (at any depth) or ``src/**/*.{ts,tsx}``. Names that begin with a
            dot must be named.
        context: The run.
        path: The directory to look in, relative to the workspace.
    """
    found = await context.sandbox.glob(pattern, path=path, limit=FOUND, context=context)
    return _said(found, "Nothing matches.")


@tool(idempotent=True)
async def search_files(pattern: str, context: RunContext, path: str = ".", glob: str | None = None) -> str:
    """Find lines in text files of the workspace. Each line of the answer is ``path:number: text``.

    Args:
        pattern: A regular expression in Python's syntax, tried on each line. A sign that is meant as itself, such as a parenthesis,
            needs a backslash. Begin with ``(?i)`` to ignore case.
        context: The run.
        path: The directory or file to look in, relative to the workspace.
        glob: Which files, such as ``*.py``; all when left out, but for names that begin with a dot.
    """
    found = await context.sandbox.grep(pattern, path=path, glob=glob, limit=FOUND, context=context)
    return _said(found, "No line matches.")


def _said(found: Iterable[object], nothing: str) -> str:
    """Return what was found, a line each, and whether it is all. A sandbox of one's own may give a plain list."""
    lines = [str(one) for one in found]
    truncated: str | None = getattr(found, "truncated", None)
    skipped: int = getattr(found, "skipped", 0)
    if truncated is not None:
        lines.append(f"[There may be more: {truncated}.]")
    elif not lines:
        lines.append(nothing)
    if skipped:
        lines.append(f"[{skipped} could not be looked into.]")
    return "\n".join(lines)


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

    Reading and listing always; finding files and lines where the sandbox can; writing and replacing only where the workspace is
    writable; `shell` only where programs can be run and cannot write more than the file tools may.
    """
    tools: list[Tool] = [read_file, list_files]
    if "glob" in sandbox.capabilities:
        tools.append(find_files)
    if "grep" in sandbox.capabilities:
        tools.append(search_files)
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
