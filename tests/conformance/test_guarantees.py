"""The page that says what holds names tests that there are, and all of those that were written for it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from littleghost.testing.store_kit import store_clauses

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
CLAUSES = {clause.name for clause in store_clauses()}
# What the kit checks of the simplest store, and what no line of the page is about.
BESIDE = {
    "a-large-message-comes-back",
    "a-commit-id-with-other-content-is-refused",
    "a-commit-of-a-thousand-messages-is-one-commit",
    "a-cursor-of-another-list-is-refused",
    "a-deleted-session-is-gone",
    "a-fork-is-a-session-of-its-own",
    "a-fork-of-a-large-commit-ends-anywhere",
    "a-lease-is-waited-for",
    "a-list-tells-when-sessions-were-written",
    "a-write-under-a-lease-is-a-write",
    "closing-twice-is-once",
    "commit-ids-belong-to-one-session",
    "limits-are-those-of-one-store",
    "loading-nothing-gives-none",
    "many-holders-in-turn-write-in-turn",
    "synchronize-can-be-given-up",
    "what-is-loaded-is-the-callers-own",
    "what-is-not-offered-is-refused",
    "what-is-stored-survives-the-store",
}


def functions(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def named() -> set[str]:
    cells = [row.strip("| ").split(" | ")[-1] for row in ROWS]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_every_test_that_is_named_exists():
    tests = set().union(*(functions(path) for path in (ROOT / "tests").rglob("test_*.py")))
    missing = {name for name in named() if name not in (tests if name.startswith("test_") else CLAUSES)}
    assert len(ROWS) > 30
    assert not missing


def test_every_line_has_three_cells_and_names_a_test():
    for row in ROWS:
        cells = row.strip("| ").split(" | ")
        assert len(cells) == 3, row
        assert re.fullmatch(r"`[^`]+`(, `[^`]+`)*", cells[2]), row


def test_every_behaviour_and_every_clause_is_on_the_page():
    behaviour = {
        name
        for name in functions(Path(__file__).with_name("test_store_behaviour.py"))
        if name.startswith("test_")
    }
    assert behaviour <= named()
    assert CLAUSES - named() == BESIDE
