"""What all tests share: how a missing service is treated, and how Hypothesis behaves."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import settings

IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}
MISSING = "MISSING: "

# Machines are shared and slow at times, so no example has a deadline. In CI the same examples run every time.
settings.register_profile("littleghost", deadline=None, derandomize=IN_CI, print_blob=True)
settings.load_profile("littleghost")


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


@pytest.fixture(scope="session")
def require() -> Callable[[object, str, str], None]:
    """`require(available, what, how)`: for tests and fixtures that need more than Python packages."""
    return _require


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
