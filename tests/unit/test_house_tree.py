"""The tree names no machine and no registry, and its locks are exact."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))

SKIPPED = {
    ".git",
    ".venv",
    ".cache",
    "site",
    "dist",
    "build",
    "__pycache__",
    ".hypothesis",
    ".pytest_cache",
    ".ruff_cache",
}

# Names that stand for anybody, in examples and in the file systems that tests make up.
ANYBODY = "user|me|you|alice|bob|app|agent|nobody"
# A folder of somebody in particular.
OF_SOMEBODY = re.compile(
    rf"(?<![\w.])/(?:home|Users)/(?!(?:{ANYBODY})\b)[A-Za-z0-9_.-]+/|/root/\.\w|\b[A-Z]:\\\\?Users\\"
)


def tree() -> list[Path]:
    """What is kept, or is about to be: by Git where there is one, else whatever lies around."""
    try:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        files = [ROOT / name for name in listed.split("\0") if name]
    except (FileNotFoundError, subprocess.CalledProcessError):
        files = [path for path in ROOT.rglob("*") if not SKIPPED & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in files if path.is_file())


def machine_paths(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each path in `text` that exists on one machine only, this one included."""
    here = re.compile(rf"(?<![\w.]){re.escape(str(ROOT))}\b") if len(ROOT.parts) > 2 else None
    for number, line in enumerate(text.splitlines(), 1):
        for pattern in filter(None, [OF_SOMEBODY, here]):
            if found := pattern.search(line):
                yield number, found[0]


def test_no_file_names_a_path_of_a_machine():
    found: list[str] = []
    for path in tree():
        text = path.read_bytes().decode("utf-8", "replace")
        found += [f"{path.relative_to(ROOT)}:{number}: {what}" for number, what in machine_paths(text)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("/home" + "/jane/project", 1),
        ("/Users" + "/jane/project", 1),
        ("/root" + "/.config/pip", 1),
        ("C:" + "\\Users\\jane", 1),
        (f"see {ROOT}/README.md", 1 if len(ROOT.parts) > 2 else 0),
        ("/home/user/notes.txt and /root, /tmp/x, example.org/home/jane", 0),
    ],
    ids=["home", "users", "root", "windows", "here", "anybody"],
)
def test_the_rule_itself(text: str, count: int):
    assert len(list(machine_paths(text))) == count


def test_there_are_locks():
    assert {path.name for path in LOCKS} >= {
        "requirements.lock",
        "requirements-demo.lock",
        "requirements-chat.lock",
    }


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_host_and_pins_with_hashes(lock: Path):
    text = lock.read_text("utf-8")
    assert (
        re.findall(r"https?:|file:|\bwww\.|pypi|--(?:extra-)?index|--find-links|--trusted-host| @ ", text)
        == []
    )
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"[\w.-]+==[\w.!+]+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml"])
def test_locks_that_name_hosts_are_not_kept(name: str):
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    assert any(fnmatch(f"/{name}", pattern) for pattern in ignored)


def pins(lock: Path) -> dict[str, list[Version]]:
    found: dict[str, list[Version]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.!+]+)", lock.read_text("utf-8"), re.MULTILINE):
        found.setdefault(name, []).append(Version(version))
    return found


# Adapters are tested in an environment of their own, which has the frameworks.
APART = {"inspect", "pydantic-ai"}


def wanted(lock: str) -> list[Requirement]:
    project, groups = PYPROJECT["project"], PYPROJECT["dependency-groups"]
    extras = project["optional-dependencies"]
    if lock == "requirements-suites.lock":
        texts = [need for name in APART for need in extras[name]]
    else:
        texts = [need for name, extra in extras.items() if name not in APART for need in extra]
        texts += [need for group in groups.values() for need in group if isinstance(need, str)]
    needs = [Requirement(text) for text in [*project["dependencies"], *texts]]
    return [need for need in needs if need.name != project["name"]]


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-suites.lock"])
def test_the_lock_fulfils_the_project(lock: str):
    locked = pins(ROOT / lock)
    unmet = [
        str(need)
        for need in wanted(lock)
        if not any(need.specifier.contains(v) for v in locked.get(need.name.lower(), []))
    ]
    assert unmet == [], "run: make lock"


@pytest.mark.parametrize("name", ["requirements-demo.lock", "requirements-chat.lock"])
def test_a_smaller_lock_is_part_of_the_whole(name: str):
    whole = pins(ROOT / "requirements.lock")
    other = {
        name: versions
        for name, versions in pins(ROOT / name).items()
        if not set(versions) <= set(whole.get(name, []))
    }
    assert other == {}, "run: make lock"
