"""What a test needs and does not find: a loud skip on a laptop, a failure in CI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"

TESTS = """
def test_there(require):
    require(True, "python", "nothing to do")

def test_missing(require):
    require(False, "frobnicator", "apt-get install frobnicator")
"""


@pytest.mark.parametrize(
    ("ci", "status", "told"),
    [
        (None, 0, "NOT TESTED ON THIS MACHINE"),
        ("0", 0, "NOT TESTED ON THIS MACHINE"),
        ("1", 1, "CI skips nothing"),
        ("true", 1, "CI skips nothing"),
    ],
)
def test_a_missing_service(tmp_path: Path, ci: str | None, status: int, told: str):
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_it.py").write_text(TESTS, "utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "PYTEST_ADDOPTS"}}
    environment |= {"CI": ci} if ci is not None else {}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout
    assert told in done.stdout
    assert "frobnicator. To have it: apt-get install frobnicator" in done.stdout
    assert "1 passed" in done.stdout
