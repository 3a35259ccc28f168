"""Every file operation against a process that exchanges directories, and files, with links to outside as fast as it can.

LITTLEGHOST_RACE_SECONDS says how long each of these goes on; a second when left out. ``pytest -s`` shows how many tries it was.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from littleghost import descriptors
from littleghost.errors import ToolError
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.files import Files, Root
from littleghost.sandboxes.searching import Watch, find_lines, find_paths
from littleghost.workspace import Workspace

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="renameat2"),
    pytest.mark.timeout(60 + 2 * float(os.environ.get("LITTLEGHOST_RACE_SECONDS", "1"))),
]

SECONDS = float(os.environ.get("LITTLEGHOST_RACE_SECONDS", "1"))

ATTACKER = r"""
import ctypes, os, sys
exchange = ctypes.CDLL(None).renameat2
names = [os.fsencode(name) for name in sys.argv[1:]]
pairs = list(zip(names[::2], names[1::2]))
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1000):
        for one, other in pairs:
            exchange(-100, one, -100, other, 2)
"""


@contextlib.contextmanager
def attacked(*pairs: tuple[Path, Path]) -> Iterator[None]:
    arguments = [str(path) for pair in pairs for path in pair]
    attacker = subprocess.Popen([sys.executable, "-I", "-S", "-c", ATTACKER, *arguments])
    try:
        yield
    finally:
        attacker.kill()
        attacker.wait()


@pytest.fixture(params=["kernel", "walk", "no-renameat2"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "walk":
        monkeypatch.setattr(descriptors, "openat2", lambda: None)
    if request.param == "no-renameat2":
        monkeypatch.setattr(descriptors, "_renameat2", lambda: lambda *_: False)
    return request.param


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Path, Path, Files]]:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "dir").mkdir(parents=True)
    (outside / "empty").mkdir(parents=True)
    for name in ("victim", "mine", "swapped", "planted"):
        (outside / name).write_text("SECRET")
    (root / "dir/mine").write_text("mine")
    (root / "swapped").write_text("mine")
    (root / "link").symlink_to("../outside")
    (root / "alias").symlink_to("../outside/swapped")
    workspace = Workspace(root)
    workspace._directories = workspace._hold()
    try:
        yield root, outside, Files({None: Root(workspace, None, "read_write")}, SandboxLimits())
    finally:
        for directory in workspace._directories.values():
            directory.close()


def operations(files: Files) -> dict[str, Callable[[], object]]:
    def glob(pattern: str, path: str = ".") -> list[str]:
        return find_paths(files, pattern, path, hidden=True, limit=None, watch=Watch(None, 10))

    return {
        "read": lambda: files.read("dir/mine"),
        "read the swapped file": lambda: files.read("swapped"),
        "read lines": lambda: files.read("dir/victim", 0, 1),
        "read bytes": lambda: files.read_bytes("swapped", 1, 5),
        "list": lambda: files.list("dir"),
        "stat": lambda: files.stat("dir/empty"),
        "write": lambda: files.write("dir/planted", "x"),
        "write the swapped file": lambda: files.write_bytes("swapped", b"mine"),
        "replace": lambda: files.replace("dir/mine", "min", "min"),
        "delete": lambda: files.delete("dir/planted"),
        "delete outside": lambda: files.delete("dir/victim"),
        "delete a directory outside": lambda: files.delete("dir/empty"),
        "make a directory": lambda: files.make_directory("dir/made/deep"),
        "delete a directory": lambda: files.delete(random.choice(["dir/made/deep", "dir/made"])),
        "move out of it": lambda: files.move(random.choice(["dir/victim", "dir/planted"]), "stolen"),
        "move inside": lambda: files.move("dir/empty", "dir/moved"),
        "move into it": lambda: files.move("stolen", "dir/fresh/planted"),
        "tidy": lambda: files.delete(random.choice(["stolen", "dir/fresh/planted", "dir/fresh"])),
        "glob in it": lambda: glob("*", "dir"),
        "glob through it": lambda: glob("dir/*"),
        "glob": lambda: glob("**"),
    }


LOOKS_OUTSIDE = {"stat", "delete outside", "delete a directory outside", "move inside", "read lines"}
"""What is done to what is there outside only, so that it must never work."""


def innocent(name: str, result: object) -> bool:
    text = repr(result)
    return name not in LOOKS_OUTSIDE and "SECRET" not in text and "ECRET" not in text and "victim" not in text


def test_no_operation_gets_outside(places, way: str, capsys) -> None:
    root, outside, files = places
    everything = operations(files)
    worked: Counter[str] = Counter()
    tries = 0
    before = {path.name: path.is_dir() or path.read_text() for path in outside.iterdir()}
    with attacked((root / "dir", root / "link"), (root / "swapped", root / "alias")):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for _ in range(20):
                for name, operation in everything.items():
                    tries += 1
                    try:
                        result = operation()
                    except ToolError:
                        continue
                    assert innocent(name, result), f"{name}: {result!r}"
                    worked[name] += 1
            now = {path.name: path.is_dir() or path.read_text() for path in outside.iterdir()}
            assert now == before
            assert not any(outside.joinpath("empty").iterdir())
    assert sorted(path.name for path in root.parent.iterdir()) == ["outside", "root"]
    assert worked["read"] > 0
    assert worked["write"] > 0
    with capsys.disabled():
        if "LITTLEGHOST_RACE_SECONDS" in os.environ:
            print(f"\n{way}: {tries:,} tries, of which worked: {dict(worked)}")


def test_no_search_for_lines_gets_outside(places, way: str, capsys) -> None:
    root, _, files = places
    tries = found = 0
    with attacked((root / "dir", root / "link"), (root / "swapped", root / "alias")):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for path, glob in (
                ("dir", None),
                (".", None),
                ("swapped", None),
                (".", "dir/*"),
                (".", "dir/v*"),
            ):
                tries += 1
                with contextlib.suppress(ToolError):
                    lines = find_lines(
                        files, "SECRET|mine", path, glob=glob, hidden=False, limit=None, watch=Watch(None, 10)
                    )
                    assert all(line.text == "mine" for line in lines)
                    found += len(lines)
    assert found > 0
    with capsys.disabled():
        if "LITTLEGHOST_RACE_SECONDS" in os.environ:
            print(f"\n{way}: {tries:,} searches found {found:,} lines, none of them outside")


@pytest.mark.parametrize("way", ["kernel"], indirect=True)
def test_nothing_git_would_run_is_changed(places, way: str, capsys) -> None:
    """A directory and a link to ``.git`` change places; the names that count are those really gone through."""
    root, _, files = places
    (root / ".git/hooks").mkdir(parents=True)
    (root / ".git/config").write_text("kept")
    (root / "to-git").symlink_to(".git")
    everything: list[Callable[[], object]] = [
        lambda: files.write("dir/config", "x"),
        lambda: files.replace("dir/config", "k", "x"),
        lambda: files.write("dir/hooks/pre-commit", "x"),
        lambda: files.make_directory("dir/hooks/new"),
        lambda: files.move("dir/config", "away"),
        lambda: files.move("dir/mine", "dir/hooks/mine"),
        lambda: files.delete("dir/hooks"),
        lambda: files.delete("dir/config"),
    ]
    tries = worked = 0
    with attacked((root / "dir", root / "to-git")):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            for operation in everything:
                tries += 1
                with contextlib.suppress(ToolError):
                    operation()
                    worked += 1
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (root / "away").unlink()
            assert sorted(path.name for path in (root / ".git").rglob("*")) == ["config", "hooks"]
            assert (root / ".git/config").read_text() == "kept"
    assert worked > 0
    with capsys.disabled():
        if "LITTLEGHOST_RACE_SECONDS" in os.environ:
            print(f"\n{tries:,} tries to change .git, none of which did")
