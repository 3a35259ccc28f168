"""Which checks of others do not hold for our sandboxes, and why: each is expected to fail, in its one way, and to fail it.

A module of checks has ``DEVIATIONS``, by the name of the check.
"""

from __future__ import annotations

import os
import tempfile
from typing import NamedTuple

import pytest


class Deviation(NamedTuple):
    """A check that is not to pass.

    Attributes:
        reason: Why the sandbox does otherwise.
        raises: What the check fails with.
        only: The backend it is about, where it is about one.
    """

    reason: str
    raises: type[BaseException]
    only: str | None = None


def _permissions_count() -> bool:
    """Whether this process is refused what the mode of a file denies: not so for root, unless it gave that right up."""
    with tempfile.NamedTemporaryFile() as file:
        os.chmod(file.name, 0)
        return not os.access(file.name, os.R_OK)


PERMISSIONS = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
    "test_permission_denied_uses_builtin_error",
}
AS_ROOT = None if _permissions_count() else Deviation("root may read and write every file", BaseException)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def deviation(request: pytest.FixtureRequest) -> None:
    name = request.node.originalname
    found = AS_ROOT if name in PERMISSIONS else request.module.DEVIATIONS.get(name)
    if found is None or (found.only is not None and found.only not in request.node.nodeid.lower()):
        return
    request.node.add_marker(pytest.mark.xfail(strict=True, reason=found.reason, raises=found.raises))


WAITING = (  # a minute, or half of one
    "TestHostSandbox::test_a_backend_attached_by_ref_reaches_a_detached_process",
    "TestBubblewrapSandbox::test_a_backend_attached_by_ref_reaches_a_detached_process",
    "TestBubblewrapSandbox::test_cancellation_stops_foreground_work",
    "TestHostSandbox::test_background_child_does_not_hold_up_completed_command",
    "TestBubblewrapSandbox::test_background_child_does_not_hold_up_completed_command",
    "TestBubblewrapSandbox::test_destroying_environment_during_command_raises_unavailable",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits longest, in a process each."""
    items.sort(key=lambda item: not item.nodeid.endswith(WAITING))
