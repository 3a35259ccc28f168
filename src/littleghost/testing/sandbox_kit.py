"""The conformance kit for sandboxes.

Three lines try a sandbox of your own::

    from littleghost.testing import check_sandbox

    report = await check_sandbox(lambda workspace, **options: MySandbox(workspace, **options))
    report.raise_for_failures()

The maker is given a `Workspace` and, as keywords, ``writable`` and ``limits``; it returns a sandbox that is not open yet. What a
sandbox overrides of reading and writing files and of running programs is tried; the rest by what its ``capabilities`` name. The clauses
that look at the workspace's directory from outside need the capability ``local_files``.

In a test suite, one test a clause::

    @pytest.mark.parametrize("clause", sandbox_clauses(), ids=lambda clause: clause.name)
    async def test_my_sandbox(clause):
        await clause.run(make)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from littleghost.sandboxes.contract import Sandbox
from littleghost.testing import (
    sandbox_files,
    sandbox_isolation,
    sandbox_limits,
    sandbox_programs,
    sandbox_search,
    sandbox_streams,
    sandbox_tree,
)
from littleghost.testing.conformance import Clause, Report, run_clauses
from littleghost.workspace import Workspace

__all__ = ["SANDBOX_CLAUSES", "SandboxMaker", "check_sandbox", "offered", "sandbox_clauses"]

SandboxMaker = Callable[..., Sandbox]

SANDBOX_CLAUSES: tuple[Clause, ...] = (
    *sandbox_files.CLAUSES,
    *sandbox_tree.CLAUSES,
    *sandbox_search.CLAUSES,
    *sandbox_programs.CLAUSES,
    *sandbox_streams.CLAUSES,
    *sandbox_limits.CLAUSES,
    *sandbox_isolation.CLAUSES,
)
"""Every clause of the contract that can be tried from outside."""

_FILES = ("read", "list", "write", "replace")


def sandbox_clauses() -> tuple[Clause, ...]:
    """Return the clauses, for one test each."""
    return SANDBOX_CLAUSES


def offered(sandbox: Sandbox) -> frozenset[str]:
    """Return the capabilities a sandbox names, and those that show in what it overrides."""

    def overrides(*names: str) -> bool:
        return all(getattr(type(sandbox), name) is not getattr(Sandbox, name) for name in names)

    found: set[str] = set(sandbox.capabilities)
    if overrides(*_FILES):
        found |= {"files", "write"}
    if overrides("execute_program"):
        found.add("execute")
    if overrides("start_program"):
        found.add("start_program")
    return frozenset(found)


async def check_sandbox(make: SandboxMaker, *, capabilities: frozenset[str] | None = None) -> Report:
    """Try every clause that applies to what ``make`` makes, and report.

    Args:
        make: ``make(workspace, *, writable=True, limits=None)`` returns a new sandbox that is not open.
        capabilities: What to try, instead of what the sandbox offers.
    """
    sample: Any = make(Workspace.temporary(), writable=True, limits=None)
    found = offered(sample) if capabilities is None else capabilities
    return await run_clauses(SANDBOX_CLAUSES, make, found, subject=type(sample).__name__)
