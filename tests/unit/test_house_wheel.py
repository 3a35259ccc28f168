"""What is delivered: the package, all of it, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "littleghost"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

# What may lie in the package. Another kind of file is welcome once it is named here.
SUFFIXES = {".py", ".pyi", ".sql", ".typed", ".jinja", ".json"}

# What a source distribution must have to be built, tested and read, and what must never be in one.
SDIST_HAS = {
    "LICENSE",
    "Makefile",
    "README.md",
    "pyproject.toml",
    "requirements.lock",
    "src/littleghost/py.typed",
    "tests/conftest.py",
}
SDIST_HAS_NOT = (".venv/", ".cache/", ".git/", "site/", "dist/")


def build(target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


def source_files() -> set[str]:
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PACKAGE.parent).as_posix() for path in files}


def test_the_package_holds_only_what_belongs_there():
    assert sorted(name for name in source_files() if Path(name).suffix not in SUFFIXES) == []


def test_the_wheel_is_the_package_and_its_metadata(wheel: zipfile.ZipFile):
    info = f"{PROJECT['name']}-{PROJECT['version']}.dist-info"
    metadata = {
        f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
    }
    assert set(wheel.namelist()) == source_files() | metadata


def test_the_wheel_is_typed(wheel: zipfile.ZipFile):
    assert "littleghost/py.typed" in wheel.namelist()


def test_the_wheel_has_the_table_of_prices(wheel: zipfile.ZipFile):
    table = json.loads(wheel.read("littleghost/prices.json"))
    assert {"anthropic", "aws", "google", "openai"} <= table["providers"].keys()


def test_the_core_needs_msgspec_and_nothing_else(wheel: zipfile.ZipFile):
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    needs = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert [need.partition(">")[0] for need in needs] == ["msgspec"]
    assert metadata["License-Expression"] == "MIT"


# The frameworks that adapters are for; who wants an adapter has its framework already.
APART = {"inspect", "pydantic-ai"}


def test_the_extra_all_is_every_extra_but_the_frameworks():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    assert everything == f"littleghost[{','.join(sorted(set(extras) - {'all'} - APART))}]"


def test_the_source_distribution_is_complete_and_clean(tmp_path: Path):
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert SDIST_HAS - names == set()
    assert source_files() <= {name.removeprefix("src/") for name in names}
    assert [name for name in names if name.startswith(SDIST_HAS_NOT) or "__pycache__" in name] == []
