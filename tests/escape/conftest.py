"""Attacks from inside a sandbox, on every backend.

A backend is one entry in `BACKENDS`. An attack is tried where the sandbox claims the wall that it runs into; where it does not claim the
wall, the test is that it says so. Those that need no server are attacked once more as an ordinary user (`test_as_user.py`).
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import containers
import msgspec
import pytest
import remote

from littleghost.sandboxes.bubblewrap import BubblewrapSandbox
from littleghost.sandboxes.container import ContainerSandbox
from littleghost.sandboxes.contract import Sandbox
from littleghost.sandboxes.host import HostSandbox
from littleghost.workspace import Workspace

WALLS = {
    "isolation": ("what programs read and write outside the workspace",),
    "isolated_root": (
        "what programs read and write outside the workspace",
        "privacy between commands of one sandbox: they have one /tmp",
    ),
    "pid_namespace": ("signals to, the other processes",),
    "hidden_environment": ("secrecy of the application's environment",),
    "network_none": ("network access",),
    "read_only_processes": ("read-only access for programs",),
    "git_read_only_processes": (".git",),
    "seccomp": ("filter of system calls",),
    "kill_tree": ("everything a command started",),
}
"""A capability, and what `EffectivePolicy.not_enforced` says where it is missing: one of these."""


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """What is attacked.

    Attributes:
        name: For the names of tests.
        maker: Returns what makes a sandbox of it. It may ask for fixtures.
        claims: The walls it must claim, when it is open, and no others.
        attacks: The tests that are run on it; all of them when left out.
        options: What a sandbox of it needs beside the workspace, where an application of its own makes one.
    """

    name: str
    maker: Callable[[pytest.FixtureRequest], Callable[..., Sandbox]]
    claims: frozenset[str]
    attacks: frozenset[str] | None = None
    options: dict[str, Any] = {}


def _bubblewrap(request: pytest.FixtureRequest) -> Callable[..., Sandbox]:
    require = request.getfixturevalue("require")
    require(shutil.which("bwrap"), "bubblewrap", "apt-get install bubblewrap")
    return BubblewrapSandbox


def _container(request: pytest.FixtureRequest) -> Callable[..., Sandbox]:
    image = request.getfixturevalue("podman").image
    return lambda workspace, **options: ContainerSandbox(workspace, image=image, engine="podman", **options)


def _ssh(request: pytest.FixtureRequest, **more: Any) -> Callable[..., Sandbox]:
    import sshd

    login = {**request.getfixturevalue("ssh_server").options, "username": getpass.getuser(), **more}
    return lambda workspace, **options: sshd.Loopback(workspace, **login, **options)


def _isolating_ssh(request: pytest.FixtureRequest) -> Callable[..., Sandbox]:
    _bubblewrap(request)
    return _ssh(request, isolation="bubblewrap")


def _remote(request: pytest.FixtureRequest) -> Callable[..., Sandbox]:
    _bubblewrap(request)
    service = request.getfixturevalue("isolating_service")
    return lambda workspace, **options: remote.KitSandbox(workspace, service=service, **options)


_SAME = frozenset(
    {
        "test_what_is_claimed_and_what_is_not",
        "test_a_program_has_no_terminal",
        "test_escape_sequences_in_output_are_data",
        "test_a_flood_of_output_is_kept_in_bounds",
    }
)
"""What goes through the line between the halves, which every far backend has."""

_BEHIND = _SAME | {
    "test_a_file_of_the_host_is_reached_by_no_road",
    "test_nothing_outside_is_written_through_what_is_planted",
    "test_git_is_not_changed_by_programs",
    "test_git_is_open_to_programs_where_that_was_asked_for",
    "test_a_process_of_the_host_cannot_be_touched",
    "test_everything_inside_is_under_the_same_walls",
    "test_the_applications_environment_is_not_recovered",
    "test_nothing_is_reached_over_the_network",
    "test_no_socket_of_the_host_is_reached",
    "test_no_call_of_the_list_is_let_through",
    "test_a_fork_bomb_is_bounded_or_the_bound_is_refused",
    "test_a_memory_bomb_is_bounded_or_the_bound_is_refused",
}
"""For bubblewrap on the far side of a line. The same code makes the same namespaces there, so attacks on their inside (devices, knobs,
modes, setuid, disks, races of links and of ``.git``, the filter's other entries) meet the same walls. What can differ is what lies around
them: the process that holds the line, its environment, descriptors, sockets and network, whether the policy and the limits arrived, and
one attack of each kind to see that each wall is there at all. The others look at processes that are the application's own only here."""

_LOCAL = frozenset({"test_no_variable_of_a_command_reaches_the_sandboxs_own_processes"})
"""What looks at the supervisor of a sandbox of this process."""

_GIT = frozenset(
    {
        "test_git_is_not_changed_by_programs",
        "test_another_git_in_its_place_is_protected_too",
        "test_a_scope_within_git_is_read_only",
        "test_what_is_not_protected_is_said",
        "test_git_itself_works_where_it_may_read",
    }
)
"""Attacks on a wall that containers do not have, and say so."""

HERE = Path(__file__).parent
ATTACKS = frozenset(
    line.removeprefix("async ").removeprefix("def ").partition("(")[0]
    for file in HERE.glob("test_*.py")
    for line in file.read_text("utf-8").splitlines()
    if line.startswith(("async def test_", "def test_"))
)
BACKENDS = (
    Backend(name="host", maker=lambda _: HostSandbox, claims=frozenset({"kill_tree"})),
    Backend(name="bubblewrap", maker=_bubblewrap, claims=frozenset(WALLS)),
    Backend(
        name="container",
        maker=_container,
        claims=frozenset(WALLS) - {"isolated_root", "git_read_only_processes"},
        attacks=ATTACKS - _LOCAL - _GIT,
        options={"image": containers.IMAGE, "engine": "podman"},
    ),
    Backend(name="ssh", maker=_ssh, claims=frozenset({"kill_tree"}), attacks=_SAME),
    Backend(name="ssh-bubblewrap", maker=_isolating_ssh, claims=frozenset(WALLS), attacks=_BEHIND),
    Backend(name="remote", maker=_remote, claims=frozenset(WALLS), attacks=_BEHIND),
)
assert ATTACKS >= _BEHIND | _LOCAL | _GIT, "an attack has another name now"
ONLY = "LITTLEGHOST_ESCAPE_BACKENDS"
"""An environment variable: names of the backends to attack, all when it is not set."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on the backends that it is for."""
    if "backend" in metafunc.fixturenames:
        only = os.environ.get(ONLY, "").split() or [backend.name for backend in BACKENDS]
        name = metafunc.function.__name__
        chosen = [
            backend
            for backend in BACKENDS
            if backend.name in only and (backend.attacks is None or name in backend.attacks)
        ]
        metafunc.parametrize("backend", chosen, indirect=True, ids=[backend.name for backend in chosen])


@pytest.fixture(scope="session")
def isolating_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[remote.Service]:
    """A sandbox service that isolates, one for all."""
    with remote.Service(folder=tmp_path_factory.mktemp("service"), host=False) as service:
        yield service


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> Backend:
    """A backend that is attacked."""
    if sys.platform != "linux":
        pytest.skip("these attacks are Linux's")
    return request.param


@pytest.fixture
def make(backend: Backend, request: pytest.FixtureRequest) -> Callable[..., Sandbox]:
    """Make a sandbox of the backend."""
    return backend.maker(request)


class Trial:
    """A sandbox to attack, and what lies around it.

    Attributes:
        sandbox: It, open.
        root: Its directory on the host.
        outside: A directory of the host beside it, with a file ``secret``.
        secret: What is in that file.
        walls: `WALLS`.
    """

    walls = WALLS

    def __init__(self, sandbox: Sandbox, root: Path, outside: Path, secret: str) -> None:
        self.sandbox, self.root, self.outside, self.secret = sandbox, root, outside, secret

    def claims(self, wall: str) -> bool:
        """Return whether the sandbox claims this wall; where it does not, it must say so."""
        if wall in self.sandbox.capabilities:
            return True
        stated = self.sandbox.effective_policy.not_enforced
        assert any(text in line for line in stated for text in WALLS[wall]), (
            f"it neither has nor denies having {wall}: {stated}"
        )
        return False

    async def inside(self, code: str, *arguments: object, timeout: float = 30, **options: Any) -> Any:
        """Run Python inside, and return what the code has put into ``found``."""
        whole = f"import json, os, sys\ngiven = json.loads(sys.argv[1])\nfound = []\n{code}\nprint(json.dumps(found))"
        options.setdefault("environment", {"PATH": "/usr/bin:/bin"})
        done = await self.sandbox.execute_program(
            ["python3", "-I", "-S", "-c", whole, json.dumps(arguments)], timeout=timeout, **options
        )
        assert done.exit_code == 0, done
        return json.loads(done.stdout)


@pytest.fixture
def attack(make: Callable[..., Sandbox], tmp_path: Path) -> Callable[..., Any]:
    """``async with attack(...) as trial``: a sandbox over a fresh directory, writable unless it is said otherwise."""

    @asynccontextmanager
    async def opened(
        *, paths: dict[str, str] | None = None, before: Any = None, **options: Any
    ) -> AsyncIterator[Trial]:
        root, outside = tmp_path / "root", tmp_path / "outside"
        for folder in (root, outside):
            folder.mkdir(exist_ok=True)
        secret = os.urandom(12).hex()
        (outside / "secret").write_text(secret)
        if before is not None:
            before(root, outside)
        options.setdefault("writable", True)
        async with make(Workspace(root, paths), **options) as sandbox:
            yield Trial(sandbox, root, outside, secret)

    return opened


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the application's user, with ``LITTLEGHOST_BYSTANDER`` in its environment. It must be alive at the end."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        env={"LITTLEGHOST_BYSTANDER": "hush-bystander"},
    )
    try:
        yield process
        assert process.poll() is None, "an attack killed a process of the host"
    finally:
        process.kill()
        process.communicate()
