"""Imports point down, and files stay small."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "src"
PACKAGE = "littleghost"

# Bottom to top. A module may import from the lines below its own, and within its own line from its own package. An entry
# speaks for all that is inside it, unless a longer entry does. Imports under TYPE_CHECKING and inside functions count:
# they are dependencies of whoever reads the module.
LAYERS = """
    errors
    data
    content
    message
    transcript
    usage
    prices
    cancellation
    events
    telemetry
    locks
    portal
    descriptors
    sessions.contract
    sessions
    workspace
    sandboxes.policy
    sandboxes.contract
    sandboxes
    tools.contract
    models.contract
    models
    tools
    output
    runs
    runtime
    delegation
    agent
    sync
    littleghost
    adapters
    emulators
    testing
    cli
    inspector
"""

# The exceptions, (importer, imported), each with its reason.
ALLOWED: dict[tuple[str, str], str] = {}

MAX_LINES = 800

RANKS = {
    name if name == PACKAGE else f"{PACKAGE}.{name}": rank
    for rank, line in enumerate(LAYERS.strip().splitlines())
    for name in line.split()
}


def name_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def rank_of(module: str) -> int | None:
    """The longest entry that covers `module`; the package itself covers nothing but itself."""
    if module == PACKAGE:
        return RANKS[PACKAGE]
    while module != PACKAGE:
        if module in RANKS:
            return RANKS[module]
        module = module.rpartition(".")[0]
    return None


def imports_of(module: str, path: Path, modules: set[str]) -> dict[str, int]:
    """Which of `modules` are imported by `module`, anywhere in it, and in which line first."""
    found: dict[str, int] = {}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            inside = [f"{source}.{alias.name}" for alias in node.names]
            names = [name if name in modules else source for name in inside]
        else:
            continue
        for name in names:
            if name in modules and name != module:
                found.setdefault(name, node.lineno)
    return found


def graph_of(root: Path) -> tuple[dict[str, dict[str, int]], list[str]]:
    """The imports of every module below `root`, and what is wrong with them."""
    paths = {name_of(path, root): path for path in sorted((root / PACKAGE).rglob("*.py"))}
    graph = {name: imports_of(name, path, set(paths)) for name, path in paths.items()}
    # To import a.b.c is to run a.b too, which matters where that runs more than itself.
    for name, targets in graph.items():
        for target, line in list(targets.items()):
            parent = target.rpartition(".")[0]
            while parent != PACKAGE and parent:
                if graph[parent] and parent != name and not f"{name}.".startswith(f"{parent}."):
                    targets.setdefault(parent, line)
                parent = parent.rpartition(".")[0]

    wrong: list[str] = []
    for name, targets in graph.items():
        own = rank_of(name)
        if own is None:
            wrong.append(f"{name} has no place in LAYERS")
            continue
        if name == PACKAGE:  # resolves its names lazily, so it may name them all
            continue
        for target, line in targets.items():
            other = rank_of(target)
            same_package = name.split(".")[1] == target.split(".")[1] if target != PACKAGE else False
            if other is None or other < own or (other == own and same_package) or (name, target) in ALLOWED:
                continue
            wrong.append(
                f"{paths[name].relative_to(root)}:{line}: {name} imports {target}, which is above it"
            )
    edges = {name: [target for target in targets if target != PACKAGE] for name, targets in graph.items()}
    try:
        TopologicalSorter({name: targets for name, targets in edges.items() if name != PACKAGE}).prepare()
    except CycleError as error:
        wrong.append("cycle: " + " -> ".join(reversed(error.args[1])))
    return graph, wrong


def test_imports_point_down():
    graph, wrong = graph_of(ROOT)
    assert len(graph) > 10, f"only {sorted(graph)} found below {ROOT}"
    assert not wrong, "\n".join(["", *wrong])


def test_every_exception_is_still_one():
    graph, _ = graph_of(ROOT)
    assert [pair for pair in ALLOWED if pair[1] not in graph.get(pair[0], {})] == []


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_long(path: Path):
    lines = len(path.read_text("utf-8").splitlines())
    assert lines <= MAX_LINES, (
        f"{path.relative_to(ROOT)} has {lines} lines; split it by what changes together"
    )


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"errors": "", "data": "from littleghost.errors import X"}, ""),
        ({"errors": "from littleghost.data import X", "data": ""}, "errors imports littleghost.data"),
        ({"errors": "from . import data", "data": ""}, "errors imports littleghost.data"),
        ({"errors": "from .data import X", "data": ""}, "errors imports littleghost.data"),
        (
            {"errors": "def f():\n    import littleghost.data", "data": ""},
            ".py:2: littleghost.errors imports",
        ),
        (
            {"errors": "if TYPE_CHECKING:\n    from littleghost import data", "data": ""},
            "imports littleghost.data",
        ),
        ({"runtime": "from littleghost import Agent"}, "runtime imports littleghost,"),
        ({"cli/__init__": "from littleghost import Agent"}, ""),
        (
            {"sessions/contract": "from .memory import X", "sessions/memory": ""},
            "imports littleghost.sessions.memory",
        ),
        ({"sessions/contract": "", "sessions/memory": "from .contract import X"}, ""),
        ({"sessions/a": "from .b import X", "sessions/b": "from .a import X"}, "cycle: "),
        ({"sessions/a": "from .b import X", "sessions/b": ""}, ""),
        ({"workspace": "from .sessions import a", "sessions/a": ""}, ""),
        ({"sessions/a": "import littleghost.workspace", "workspace": ""}, "imports littleghost.workspace"),
        ({"novelty": ""}, "littleghost.novelty has no place"),
        (
            {
                "models/contract": "from littleghost.tools.contract import X",
                "tools/__init__": "from .function import X",
                "tools/function": "",
                "tools/contract": "",
            },
            "models.contract imports littleghost.tools,",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "+".join(value),
)
def test_the_rule_itself(tmp_path: Path, files: dict[str, str], complaint: str):
    package = tmp_path / PACKAGE
    for name, text in {"__init__": "", **files}.items():
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(text, "utf-8")
    _, wrong = graph_of(tmp_path)
    if complaint:
        assert complaint in "\n".join(wrong)
    else:
        assert wrong == []
