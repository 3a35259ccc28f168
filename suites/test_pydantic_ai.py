"""Pydantic AI's checks of a workspace backend, unchanged: `pydantic_ai.workspaces.conformance`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from conftest import Deviation
from pydantic_ai.workspaces import WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from littleghost import BubblewrapSandbox, HostSandbox, Sandbox, SandboxLimits, Workspace
from littleghost.adapters.pydantic_ai import SandboxWorkspaceBackend

LIMITS = SandboxLimits(read_bytes=16 << 20, write_bytes=16 << 20)

ABSOLUTE_LINK = "file methods follow no link whose target is an absolute path"

DEVIATIONS = {
    "test_writes_go_through_a_symlink": Deviation(ABSOLUTE_LINK, PermissionError),
    "test_realpath_and_entries_follow_symlinks": Deviation(ABSOLUTE_LINK, PermissionError),
    "test_a_backend_attached_by_ref_reaches_a_detached_process": Deviation(
        "nothing that a command started outlives it, in a session of its own or not", TimeoutError
    ),
    "test_cancellation_stops_foreground_work": Deviation(
        "each command has process ids of its own, so the id in question is that of the command that asks",
        TimeoutError,
        only="bubblewrap",
    ),
}


class Checks(WorkspaceBackendSuite):
    kind: type[Sandbox]

    @pytest.fixture
    async def sandboxes(self) -> AsyncIterator[list[Sandbox]]:
        """What the check opens, to be closed after it."""
        made: list[Sandbox] = []
        yield made
        for sandbox in reversed(made):
            await sandbox.close()

    @pytest.fixture
    def fresh_backend(self, sandboxes: list[Sandbox]) -> Callable[[], SandboxWorkspaceBackend]:
        def make() -> SandboxWorkspaceBackend:
            sandboxes.append(self.kind(Workspace.temporary(), writable=True, limits=LIMITS))
            return SandboxWorkspaceBackend(sandboxes[-1])

        return make

    @pytest.fixture
    def backend(self, fresh_backend: Callable[[], SandboxWorkspaceBackend]) -> SandboxWorkspaceBackend:
        return fresh_backend()

    @pytest.fixture
    def attach_backend(self, sandboxes: list[Sandbox]) -> Callable[[WorkspaceRef], SandboxWorkspaceBackend]:
        def attach(ref: WorkspaceRef) -> SandboxWorkspaceBackend:
            sandboxes.append(self.kind(ref.id, writable=True, limits=LIMITS))
            return SandboxWorkspaceBackend(sandboxes[-1], ref=ref)

        return attach

    @pytest.fixture
    def destroy_environment(self) -> Callable[[SandboxWorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: SandboxWorkspaceBackend) -> None:
            await asyncio.to_thread(shutil.rmtree, backend.sandbox.workspace.root)

        return destroy


class TestHostSandbox(Checks):
    kind = HostSandbox


class TestBubblewrapSandbox(Checks):
    kind = BubblewrapSandbox
