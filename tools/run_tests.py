"""Run the tests by several workers, and what failed beside the others once more, alone, when all others have ended.

Usage:
    python tools/run_tests.py ARGUMENT_OF_PYTEST...

The exit status is pytest's, but 0 where each test that failed has passed alone. None is tried again where more than `MOST` failed, where
one of `FINAL` did, where the run was cut short, or where the tests were not run beside each other. Each failure is told as it happens.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

MOST = 5
"""More failures than this are no matter of the moment."""

FINAL = ("tests/crash/", "tests/escape/")
"""Where a race that is lost once in a thousand times is what the tests look for."""

BESIDE = "FAILED BESIDE THE OTHERS, PASSED ALONE"


class Failures:
    """A plug-in of pytest that tells of failures as they happen, and remembers them.

    Attributes:
        tests: The node id of each test that failed.
        final: Why none is to be tried again, if so.
    """

    def __init__(self) -> None:
        self.tests: list[str] = []
        self.final: str | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        test = without_group(report.nodeid)
        if test not in self.tests:
            self.tests.append(test)
        if report.when not in {"setup", "call", "teardown"}:
            self.final = f"{test} ended its worker"
        message = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or report.longreprtext
        terminal = self._plugins.get_plugin("terminalreporter")
        terminal.ensure_newline()
        terminal.write_line(f"FAILED {test} - {message.strip().partition(chr(10))[0]}", red=True)
        terminal.flush()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not session.config.getoption("numprocesses", None):
            self.final = "they ran in one process"
        elif session.shouldfail or session.shouldstop:
            self.final = "the run was cut short"
        elif len(self.tests) > MOST:
            self.final = f"more than {MOST} failed"
        elif found := [test for test in self.tests if test.startswith(FINAL)]:
            self.final = f"{found[0]} looks for what happens once in a while"


class Only:
    """A plug-in of pytest that runs ``tests`` and no others, whatever characters are in their ids."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.tests = tests
        self.found: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if without_group(item.nodeid) in self.tests]
        self.found = [without_group(item.nodeid) for item in items]


def without_group(test: str) -> str:
    """Return a node id without the group that pytest-xdist puts behind it."""
    at = test.rfind("@")
    return test[:at] if at > test.rfind("]") else test


def alone(test: str) -> int:
    """Run one test; return pytest's exit status."""
    only = Only([test])
    status = pytest.main(["-n", "0", test.partition("::")[0]], plugins=[only])
    return status or int(only.found != [test])


def main(arguments: Sequence[str]) -> int:
    """Run the tests that ``arguments`` name; return the exit status."""
    failures = Failures()
    status = pytest.main(list(arguments), plugins=[failures])
    if status != pytest.ExitCode.TESTS_FAILED or not failures.tests:
        return status
    if failures.final is not None:
        print(f"\nNo test is tried again: {failures.final}.")
        return status
    failed: list[str] = []
    for test in failures.tests:
        print(f"\nAgain, alone: {test}", flush=True)
        if subprocess.run([sys.executable, __file__, "--alone", test], check=False).returncode:
            failed.append(test)
    for title, tests in (
        (BESIDE, [test for test in failures.tests if test not in failed]),
        ("FAILED BESIDE THE OTHERS AND ALONE", failed),
    ):
        if tests:
            print(f"\n{f' {title} ':!^100}", *tests, sep="\n")
    print(
        "\nThe report of each first failure is above."
        + ("" if failed else " Each hides a fault, of the test or the library.")
    )
    return status if failed else 0


if __name__ == "__main__":
    sys.exit(alone(sys.argv[2]) if sys.argv[1:2] == ["--alone"] else main(sys.argv[1:]))
