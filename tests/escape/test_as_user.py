"""The same attacks once more, by an ordinary user: much of what stops root's programs is another wall than what stops a user's."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
USER = 65534


def interpreter(paths: list[str]) -> str | None:
    """Return an interpreter of this version that the user can run with these paths; nothing is copied."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        command = [candidate, "-c", "import littleghost, msgspec, pytest, pytest_asyncio, websockets"]
        try:
            done = subprocess.run(
                command,
                user=USER,
                group=USER,
                extra_groups=[],
                env={"PYTHONPATH": os.pathsep.join(paths)},
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return candidate
    return None


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="to become another user; the others run as one already",
)
@pytest.mark.timeout(400)
def test_an_ordinary_users_sandbox_has_the_same_walls(require) -> None:
    paths = [str(ROOT / "src"), sysconfig.get_path("purelib")]
    found = interpreter(paths)
    require(
        found,
        "an interpreter that an ordinary user can run",
        "a Python that is not in root's home, and a checkout that others may read",
    )
    # Not below pytest's own folder, which another run of pytest shuts to other users.
    with tempfile.TemporaryDirectory(prefix="littleghost-escape-") as folder:
        os.chown(folder, USER, USER)
        command = [found, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={folder}/t"]
        environment = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PATH": os.environ["PATH"],
            "CI": os.environ.get("CI", ""),
            "HYPOTHESIS_STORAGE_DIRECTORY": folder,
            # This user has no shell to log in to, and no numbers for containers of its own.
            "LITTLEGHOST_ESCAPE_BACKENDS": "host bubblewrap remote",
        }
        done = subprocess.run(
            [*command, "--deselect", "tests/escape/test_as_user.py", "tests/escape"],
            user=USER, group=USER, extra_groups=[], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert not [line for line in skipped if "bubblewrap" in line], skipped
