"""Inspect's checks of a sandbox, unchanged: `inspect_ai.util._sandbox.self_check`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from conftest import Deviation
from inspect_ai.util import SandboxEnvironment, SandboxUserUnsupportedError
from inspect_ai.util._concurrency import init_concurrency
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from littleghost.adapters.inspect_ai import LittleGhostSandboxConfig, LittleGhostSandboxEnvironment

ELSEWHERE = "files are read and written in the workspace only, which /tmp and /etc are not part of"

DEVIATIONS = {
    "test_read_and_write_file_including_directory_absolute": Deviation(ELSEWHERE, PermissionError),
    "test_read_file_is_directory": Deviation(ELSEWHERE, AssertionError),
    "test_write_text_file_is_directory": Deviation(ELSEWHERE, PermissionError),
    "test_write_binary_file_is_directory": Deviation(ELSEWHERE, PermissionError),
    "test_cwd_absolute": Deviation(ELSEWHERE, PermissionError),
    "test_exec_as_user": Deviation("a sandbox has one user", SandboxUserUnsupportedError),
}

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["host", "bubblewrap"])
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    init_concurrency()
    config = LittleGhostSandboxConfig(backend="host" if request.param == "host" else "native")
    kind = LittleGhostSandboxEnvironment
    environments = await kind.sample_init("suite", config, {})
    yield environments["default"]
    await kind.sample_cleanup("suite", config, environments, interrupted=False)
