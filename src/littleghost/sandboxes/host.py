"""Files and programs on the host, with no isolation."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from littleghost.descriptors import resolves_in_kernel
from littleghost.errors import CapabilityError
from littleghost.sandboxes.contract import Check, Probe, SandboxLimits
from littleghost.sandboxes.local import LocalSandbox, View
from littleghost.sandboxes.policy import EffectivePolicy, Policy
from littleghost.sandboxes.processes import DEFAULT_PATH, Program
from littleghost.workspace import Workspace

__all__ = ["HostSandbox"]


class HostSandbox(LocalSandbox):
    """Works directly on the host and **isolates nothing**.

    A program runs as the application's user, and may read and write all that user may, use the network, and signal the user's
    processes.

    What does hold: the file methods stay inside the workspace and obey ``writable``; a program gets no environment but what it is
    given, has time and output limits, and on Linux leaves nothing running. ``writable=False`` binds the file methods only,
    for nothing here can stop a program from writing; the capability ``read_only_processes`` is absent, and built-in tools go by that.

    See `Sandbox` for the arguments. A policy or limit that would need isolation makes `open` raise `CapabilityError`.
    """

    _unenforced_limits = ("temporary_bytes",)

    memory_events: str | None = None
    """A file of the kernel that counts, as ``oom_kill``, what was killed for its memory in a limit that holds for all programs together."""

    def __init__(
        self,
        workspace: Workspace | str | os.PathLike[str],
        *,
        writable: bool = False,
        policy: Policy | Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
    ) -> None:
        super().__init__(workspace, writable=writable, policy=policy, limits=limits)
        if sys.platform != "win32":
            self.capabilities |= {"execute", "start_program"}
        if sys.platform == "linux":
            self.capabilities |= {"kill_tree"}

    def stated(self, view: View) -> EffectivePolicy:
        """Return what is in force: next to nothing, for programs."""
        restraints = self.restraints(view.limits)
        ends = (
            "everything a command started is gone when it ends"
            if sys.platform == "linux"
            else "its process group ends with it"
        )
        return EffectivePolicy(
            root=view.files.roots[None].access,
            paths=view.accesses,
            network="inherit",
            root_filesystem="host",
            environment=tuple(sorted(self.policy.environment)),
            processes="run as the application's user on the host, with all of that user's rights",
            enforced=(*self.files_stated(view), "time and output limits", ends, *restraints.stated),
            not_enforced=(
                "read-only access for programs",
                "what programs read and write outside the workspace, and in .git",
                "network access",
                "sight of, and signals to, the other processes of its user",
                "a filter of system calls",
                "memory, process and CPU limits that are not set, and disk limits",
                *(
                    ("limits against a program that leaves its control groups, which its user may",)
                    if restraints.groups
                    else ()
                ),
                "secrecy of the application's environment from programs, which may read /proc",
                "survival of the supervisor and its keepers: a program of the same user that stops or kills all of them can go on",
            ),
        )

    async def check_supported(self) -> None:
        if self.policy.network not in (None, "inherit"):
            raise CapabilityError("HostSandbox cannot keep programs off the network; take native_sandbox()")
        if self.policy.root_filesystem not in (None, "host"):
            raise CapabilityError(
                "HostSandbox cannot hide the host's files from programs; take native_sandbox()"
            )
        self.refuse_limits(self.limits)

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
        directory = view.files.directory(cwd)
        release.callback(os.close, directory)
        search = tuple(environment["PATH"].split(os.pathsep)) if "PATH" in environment else DEFAULT_PATH
        restraints = self.restraints(view.limits)
        rlimits = ("\n".join(["rlimit", *map(str, limit)]) for limit in restraints.rlimits)
        watched = () if self.memory_events is None else (f"watch\n{self.memory_events}",)
        return Program(
            arguments=arguments,
            environment=environment,
            search=search,
            directory=directory,
            restraints=(*restraints.groups, *rlimits, *watched),
        )

    @classmethod
    async def probe(cls, **options: Any) -> Probe:
        """Return that it is there, with no check of denial, for it denies nothing."""
        checks = (
            Check(name="paths resolved in the kernel", ok=resolves_in_kernel(), detail="else by a walk"),
            Check(name="programs", ok=sys.platform != "win32"),
            Check(name="daemons end with their command", ok=sys.platform == "linux"),
        )
        return Probe(available=True, reason="no isolation: nothing is denied to programs", checks=checks)
