"""The public names: there, documented, and no other than the snapshot says."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


api = load_tool("public_api")
NAMES = [
    pytest.param(namespace, name, id=f"{namespace}.{name}")
    for namespace in api.NAMESPACES
    for name in api.public_names(importlib.import_module(namespace))
]


def own_docstring(cls: type) -> str:
    """What the class itself says; a docstring of its base says nothing about it."""
    return inspect.cleandoc(vars(cls).get("__doc__") or "")


def undocumented(thing: object, name: str) -> list[str]:
    """What of `thing` has no docstring; an overriding method may have it from what it overrides."""
    if inspect.isclass(thing):
        missing = [] if own_docstring(thing) or not api.is_ours(thing) else [name]
        for member, _ in api.members(thing):
            if not inspect.getdoc(inspect.getattr_static(thing, member)) and not inspect.getdoc(
                getattr(thing, member)
            ):
                missing.append(f"{name}.{member}")
        return missing
    return [] if inspect.getdoc(thing) else [name]


@pytest.mark.parametrize(("namespace", "name"), NAMES)
def test_a_public_name_is_there_and_documented(namespace: str, name: str):
    thing = getattr(importlib.import_module(namespace), name)
    assert undocumented(thing, name) == []


@pytest.mark.parametrize("namespace", api.NAMESPACES)
def test_names_are_listed_once_and_none_is_private(namespace: str):
    names = importlib.import_module(namespace).__all__
    assert len(names) == len(set(names))
    assert [name for name in names if name.startswith("_") and name != "__version__"] == []


def test_the_public_api_is_what_the_snapshot_says():
    assert api.SNAPSHOT.exists(), "there is no snapshot; write it with: python tools/public_api.py --write"
    before, now = api.SNAPSHOT.read_text("utf-8"), api.render()
    difference = difflib.unified_diff(
        before.splitlines(), now.splitlines(), "snapshot", "now", lineterm="", n=1
    )
    assert before == now, "\n".join([
        "the public API has changed. If that is meant, and CHANGELOG.md says it:",
        "    .venv/bin/python tools/public_api.py --write",
        *difference,
    ])  # fmt: skip


class Documented:
    """Says what it is."""

    def told(self) -> None:
        """Says what it does."""

    def untold(self) -> None: ...


class Overriding(Documented):
    def told(self) -> None: ...


def test_the_rule_itself(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(api, "is_ours", lambda thing: thing.__module__ == __name__)
    assert undocumented(Documented, "D") == ["D.untold"]
    assert undocumented(Overriding, "O") == ["O", "O.untold"]
    assert undocumented(Documented.untold, "untold") == ["untold"]


KINDS = {"AllActors", "Block", "Event", "ModelEvent"}
"""Names for annotations only; the page tells them where they are used."""


def test_every_public_name_is_on_the_page_of_the_api():
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = {line.removeprefix("::: ") for line in page.splitlines() if line.startswith("::: ")}
    homes = importlib.import_module("littleghost")._HOMES
    missing = [
        name
        for home, names in homes.items()
        if f"littleghost.{home}" not in listed
        for name in names
        if name not in KINDS and not any(one.endswith(f".{name}") for one in listed)
    ]
    assert missing == []


@pytest.mark.parametrize("namespace", ["littleghost.sync", "littleghost.testing"])
def test_so_is_every_name_of_the_namespaces_beside_it(namespace: str):
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    listed = {line.removeprefix("::: ") for line in page.splitlines() if line.startswith("::: ")}
    module = importlib.import_module(namespace)
    assert [
        name for name in module.__all__ if f"{getattr(module, name).__module__}.{name}" not in listed
    ] == []
