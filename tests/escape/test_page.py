"""The page that says what was tried names tests that there are, every known way out, and all attacks of this directory."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from littleghost.testing.sandbox_kit import sandbox_clauses

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs/escapes.md").read_text("utf-8").splitlines()
    if re.match(r"\| (\d+|[a-z]) \| ", line)
]
KNOWN = 53


def functions(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def named(row: list[str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row[3]) if len(row) > 3 else []


def test_every_known_way_out_is_on_the_page_once() -> None:
    keys = [row[0] for row in ROWS]
    assert len(keys) == len(set(keys))
    assert {int(key) for key in keys if key.isdigit()} == set(range(1, KNOWN + 1))


def test_every_line_names_tests_that_exist_or_says_why_it_does_not_apply() -> None:
    tests = set().union(*(functions(path) for path in (ROOT / "tests").rglob("test_*.py")))
    clauses = {clause.name for clause in sandbox_clauses()}
    for row in ROWS:
        assert named(row) or row[2].startswith("Does not apply: "), row
        assert not [name for name in named(row) if name not in tests | clauses], row


def test_every_attack_is_on_the_page() -> None:
    shown = {name for row in ROWS for name in named(row)}
    attacks = set().union(
        *(functions(path) for path in HERE.glob("test_*.py") if path.name != Path(__file__).name)
    )
    assert attacks <= shown
