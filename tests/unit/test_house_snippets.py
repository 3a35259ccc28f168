"""What README and docs show is run.

The ```python blocks of a page run from top to bottom in one namespace, inside an empty folder, and may `await` at the top
level. A block that cannot run here (a key, a network, a service) is marked and then only compiled: ```python no-run as its
fence, or <!-- no-run --> on the line before it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.util._once import Once

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^(?P<indent>[ ]*)(?P<ticks>`{3,}|~{3,})[ ]*(?P<info>.*)$")
MARK = re.compile(r"^\s*<!--\s*no-run\b.*-->\s*$")


class Snippet(NamedTuple):
    line: int  # of its first line of code, from 1
    code: str
    runs: bool


def snippets(text: str) -> list[Snippet]:
    """The Python blocks of a Markdown page."""
    found: list[Snippet] = []
    fence, info, start, marked = None, "", 0, False
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        match = FENCE.match(line)
        if fence is None and match:
            fence, info, start = match, match["info"], number
        elif fence and match and match["ticks"].startswith(fence["ticks"]) and not match["info"]:
            language, _, rest = re.sub(r"[{}]", " ", info).strip().partition(" ")
            if language.lstrip(".") in {"python", "py"}:
                code = textwrap.dedent("\n".join(lines[start : number - 1]))
                found.append(Snippet(start + 1, code, "no-run" not in rest.split() and not marked))
            fence, marked = None, False
        elif fence is None and line.strip():
            marked = bool(MARK.match(line))
    assert fence is None, f"line {start}: a fence is not closed"
    return found


def run(page: Path, name: str) -> None:
    """Run the snippets of `page`; an error shows the line of the page."""
    text = page.read_text("utf-8")
    # A module of its own, for annotations are looked up in sys.modules.
    module = ModuleType(name)
    sys.modules[name] = module
    try:
        with asyncio.Runner() as runner:
            for number, snippet in enumerate(snippets(text)):
                source, filename = "\n" * (snippet.line - 1) + snippet.code + "\n", f"{page}[{number}]"
                linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
                code = compile(source, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                if not snippet.runs:
                    continue
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(_awaited(code, module))
                else:
                    exec(code, module.__dict__)
    finally:
        del sys.modules[name]


async def _awaited(code: object, module: ModuleType) -> None:
    await eval(code, module.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    # A page may set up an exporter, which a process can do once; other tests are to know nothing of it.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    run(page, "snippets_of_" + re.sub(r"\W", "_", page.relative_to(ROOT).as_posix()))


def page_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(textwrap.dedent(text), "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nx = 1\n```\ntext\n```python\nassert x == 1\n```", None),
        ("```python\nassert False\n```", AssertionError),
        ("```py\nassert False\n```", AssertionError),
        ("``` {.python title='a.py'}\nassert False\n```", AssertionError),
        ("1. step\n\n    ```python\n    assert False\n    ```", AssertionError),
        ("```python no-run\nassert False\n```", None),
        ("<!-- no-run: needs a key -->\n```python\nassert False\n```", None),
        ("<!-- no-run -->\n\n```python\nassert False\n```", None),
        ("<!-- no-run -->\n```python\nassert False\n```\n```python\nassert False\n```", AssertionError),
        ("<!-- no-run -->\n```python\nno python\n```", SyntaxError),
        ("```python\nfrom asyncio import sleep\nx = await sleep(0, 1)\n```\n```python\nassert x == 1\n```", None),
        ("```python\nfrom asyncio import sleep\nx = await sleep(0, 1)\n```\n```python\nassert x == 2\n```", AssertionError),
        ("```python\nimport asyncio\nasync def main(): assert False\nasyncio.run(main())\n```", AssertionError),
        ("````text\n```python\nassert False\n```\n````", None),
        ("```sh\nassert False\n```", None),
        ("```python\nx = 1\n", AssertionError),
    ],
)  # fmt: skip
def test_the_rule_itself(tmp_path: Path, text: str, error: type[Exception] | None):
    page = page_of(tmp_path, text)
    if error:
        with pytest.raises(error):
            run(page, "page")
    else:
        run(page, "page")


def test_a_failure_names_the_line_of_the_page(tmp_path: Path):
    page = page_of(tmp_path, "# Title\n\ntext\n\n```python\nx = 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run(page, "page")
    assert caught.tb.tb_next
    assert caught.traceback[-1].lineno + 1 == 7


def test_classes_of_a_page_find_their_annotations(tmp_path: Path):
    page = page_of(
        tmp_path,
        """
        ```python
        from __future__ import annotations
        import msgspec
        class A(msgspec.Struct):
            x: int
        class B(msgspec.Struct):
            a: A
        assert msgspec.convert({"a": {"x": 1}}, B).a.x == 1
        ```
        """,
    )
    run(page, "page")
