"""What programs must not be given to write, whatever the access that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from littleghost.errors import CapabilityError
from littleghost.sandboxes.policy import Access
from littleghost.workspace import Workspace

__all__ = ["refuse_nesting", "refuse_own_code"]


def refuse_nesting(workspace: Workspace, accesses: Mapping[str | None, Access]) -> None:
    """Refuse a read-only directory inside a read-write one: it could be written through the outer one. The workspace is open.

    Args:
        workspace: The directories.
        accesses: The access to each, by name; ``None`` is the root.

    Raises:
        CapabilityError: There is one.
    """
    real = {name: os.path.realpath(workspace.directory(name).path) for name in accesses}
    for outer, access in accesses.items():
        for inner, other in accesses.items():
            inside = os.path.commonpath([real[outer], real[inner]]) == real[outer]
            if inside and access == "read_write" and other == "read_only":
                raise CapabilityError(
                    f"the path {inner or 'root'!r} cannot be read-only inside {outer or 'root'!r}, which is read-write"
                )


def refuse_own_code(workspace: Workspace, accesses: Mapping[str | None, Access]) -> None:
    """Refuse to let programs write what the application itself runs: that would be a way out of the sandbox.

    Raises:
        CapabilityError: They would.
    """
    package = os.path.realpath(Path(__file__).parents[1])
    interpreter = [path for path in (sys.executable, sys.prefix, sys.base_prefix) if path]
    own = [package, *interpreter, *(os.path.realpath(path) for path in interpreter)]
    for name, access in accesses.items():
        if access == "read_only":
            continue
        folder = os.path.realpath(workspace.root if name is None else workspace.paths[name])
        found = [path for path in own if Path(path).is_relative_to(folder)]
        if found or Path(folder).is_relative_to(package):
            raise CapabilityError(
                f"the {'root' if name is None else f'path {name!r}'} would be writable and holds the Python environment "
                f"that LittleGhost runs in ({found[0] if found else package}), so a program could change what runs outside "
                "the sandbox; keep the environment elsewhere (uv: UV_PROJECT_ENVIRONMENT), or give the agent a directory "
                "without it",
                path=found[0] if found else package,
            )
