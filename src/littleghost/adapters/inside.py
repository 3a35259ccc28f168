"""Paths as the programs of a sandbox see them, and as its file methods take them.

Other frameworks name files by absolute paths, the same for files and programs. A `Sandbox` takes paths relative to its workspace, and where
its programs see that is the backend's affair: ``/workspace`` with bubblewrap, the host's path without isolation.
"""

from __future__ import annotations

import posixpath

from littleghost.errors import CapabilityError, ToolError, ToolPermissionError, UnsupportedError
from littleghost.sandboxes.contract import Sandbox
from littleghost.workspace import shown

__all__ = ["Inside", "in_directory"]

_NOWHERE = "/workspace"


class Inside:
    """Where the programs of a sandbox see its workspace.

    Args:
        sandbox: An open sandbox, or one that is open when it is asked.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._root: str | None = None

    async def root(self) -> str:
        """Return the absolute path of the workspace, links resolved, as a program sees it; a program is asked once.

        Where no program runs nobody can see it, and it is called ``/workspace``.

        Raises:
            ToolError: The program did not tell.
        """
        if self._root is None:
            self._root = await self._asked()
        return self._root

    async def holds(self, path: str) -> bool:
        """Return whether an absolute path is the workspace or below it, as text."""
        root = await self.root()
        return path == root or path.startswith(root.rstrip("/") + "/")

    async def relative(self, path: str) -> str:
        """Return ``path`` as the sandbox's file methods take it.

        Raises:
            ToolPermissionError: It is absolute and not in the workspace.
        """
        if not posixpath.isabs(path):
            return path
        if not await self.holds(path):
            raise ToolPermissionError(
                f"{shown(path)}: outside the workspace, which is {await self.root()}; files elsewhere are for programs only",
                path=path,
            )
        return path[len(await self.root()) :].lstrip("/") or "."

    async def _asked(self) -> str:
        try:
            done = await self._sandbox.execute("pwd -P", timeout=60)
        except (CapabilityError, UnsupportedError):
            return _NOWHERE
        root = done.stdout.removesuffix("\n")
        if not done.success or not posixpath.isabs(root):
            raise ToolError(f"the sandbox does not tell where its workspace is: {done.error or done.stderr}")
        return root


def in_directory(path: str, command: list[str]) -> list[str]:
    """Return a command that runs ``command`` in a directory anywhere that programs see."""
    return ["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", path, *command]
