"""The isolating backend of this platform."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from littleghost.errors import CapabilityError
from littleghost.sandboxes.contract import Sandbox, SandboxLimits
from littleghost.sandboxes.policy import Policy
from littleghost.workspace import Workspace

__all__ = ["native_sandbox"]


def native_sandbox(
    workspace: Workspace | str | os.PathLike[str],
    *,
    writable: bool = False,
    policy: Policy | Mapping[str, Any] | None = None,
    limits: SandboxLimits | None = None,
) -> Sandbox:
    """Return the sandbox that isolates on this platform: `BubblewrapSandbox` on Linux.

    It never falls back to one that does not isolate. Whether bubblewrap is installed and works shows when the sandbox is opened.

    Raises:
        CapabilityError: There is none for this platform; `HostSandbox` works there, without isolation.
    """
    if sys.platform != "linux":
        raise CapabilityError(
            f"no isolating sandbox for {sys.platform} in this version; HostSandbox works, without isolation"
        )
    from littleghost.sandboxes.bubblewrap import BubblewrapSandbox

    return BubblewrapSandbox(workspace, writable=writable, policy=policy, limits=limits)
