"""`tools/run_tests.py`: what failed beside the others is tried once more, alone, and nothing is hidden by it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "run_tests.py"

ONCE = """
import pathlib, pytest

@pytest.mark.parametrize("how", ["a::b[c]@d", "x"])
def test_once(how):
    mark = pathlib.Path(__file__).with_name("was-here" + str(len(how)))
    there = mark.exists()
    mark.touch()
    assert there, "the first time"
"""
ALWAYS = "def test_always():\n    assert False, 'every time'\n"
SIX = "import pytest\n\n@pytest.mark.parametrize('n', range(6))\ndef test_six(n):\n    assert False\n"
ENDS = "import os\n\ndef test_ends():\n    os._exit(3)\n"
WELL = "def test_well():\n    pass\n"


def run(folder: Path, tests: dict[str, str], *arguments: str) -> tuple[int, str]:
    (folder / "pyproject.toml").write_text(
        "[tool.pytest]\naddopts = ['--import-mode=importlib', '-p', 'xdist', '-p', 'no:cacheprovider']\n"
    )
    for name, text in tests.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = [sys.executable, str(TOOL), "-n", "1", "--dist", "loadgroup"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_what_passes_alone_is_told_loudly_and_its_first_failure_stays(tmp_path: Path):
    status, out = run(tmp_path, {"tests/unit/test_a.py": ONCE, "tests/unit/test_b.py": WELL})
    assert status == 0, out
    first, loud = out.split(" FAILED BESIDE THE OTHERS, PASSED ALONE ")
    names = ["tests/unit/test_a.py::test_once[a::b[c]@d]", "tests/unit/test_a.py::test_once[x]"]
    assert loud.splitlines()[1:3] == names
    assert "= FAILURES =" in first
    for name in names:
        assert (
            f"FAILED {name} - AssertionError: the first time" in first.split("= FAILURES =")[0]
        )  # as it happened
        assert f"Again, alone: {name}" in first
    assert "2 failed, 1 passed in" in first
    assert first.count("= 1 passed in") == 2


def test_what_fails_alone_too_fails_all(tmp_path: Path):
    status, out = run(tmp_path, {"tests/unit/test_a.py": ONCE, "tests/unit/test_b.py": ALWAYS})
    assert status == 1
    beside, both = out.split(" FAILED BESIDE THE OTHERS, PASSED ALONE ")[1].split(
        " FAILED BESIDE THE OTHERS AND ALONE "
    )
    assert "test_once[x]" in beside
    assert "test_always" not in beside
    assert "test_always" in both


@pytest.mark.parametrize(
    ("tests", "arguments", "why"),
    [
        ({"tests/unit/test_a.py": SIX}, [], "more than 5 failed"),
        ({"tests/crash/test_a.py": ONCE}, [], "looks for what happens once in a while"),
        (
            {"tests/escape/test_a.py": ONCE, "tests/unit/test_a.py": ONCE},
            [],
            "looks for what happens once in a while",
        ),
        ({"tests/unit/test_a.py": ONCE}, ["-n", "0"], "they ran in one process"),
        ({"tests/unit/test_a.py": ENDS}, ["-n", "2", "--max-worker-restart", "0"], "ended its worker"),
    ],
    ids=["six", "crash", "escape", "one process", "a worker that ended"],
)
def test_what_is_no_matter_of_the_moment_is_not_tried_again(
    tmp_path: Path, tests: dict[str, str], arguments: list[str], why: str
):
    status, out = run(tmp_path, tests, *arguments)
    assert status == 1
    assert f"{why}.\n" in out
    assert "Again, alone" not in out


@pytest.mark.parametrize("jobs", ["0", "1"])
def test_a_run_that_was_cut_short_has_not_passed(tmp_path: Path, jobs: str):
    status, out = run(
        tmp_path, {"tests/unit/test_a.py": ONCE, "tests/unit/test_b.py": WELL}, "-x", "-n", jobs
    )
    assert status in {1, 2}
    assert "Again, alone" not in out


def test_nothing_is_added_to_a_run_that_is_well_or_has_no_tests(tmp_path: Path):
    status, out = run(tmp_path, {"tests/unit/test_a.py": WELL})
    assert (status, out.count("passed")) == (0, 1)
    assert run(tmp_path, {}, "-k", "nothing")[0] == pytest.ExitCode.NO_TESTS_COLLECTED
