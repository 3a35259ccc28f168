"""Clauses about finding files and lines, in trees and with patterns that mean no good too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from littleghost.errors import DeadlineExceeded, RunCancelled, ToolError
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.testing.conformance import Clause, ClauseSkipped, clause, expect
from littleghost.testing.sandbox_trial import Caller, Trial, exchange, opened, raises

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

ENDLESS = r"(a+)+$"
"""Takes longer than the universe has been there, on a line of many ``a`` and something else."""

_TREE = (
    "README.md", "main.py", "src/app.py", "src/app.md", "src/deep/er/util.py", "src/deep/x.ts", "src/[odd]/{y}.py",
    "docs/a.txt", "docs/b.txt", ".hidden/config.py", ".env",
)  # fmt: skip
_PATTERNS: tuple[tuple[str, list[str]], ...] = (
    ("*.py", ["main.py"]),
    ("**/*.py", ["main.py", "src/[odd]/{y}.py", "src/app.py", "src/deep/er/util.py"]),
    ("src/*", ["src/[odd]/", "src/app.md", "src/app.py", "src/deep/"]),
    ("src/**/*.{py,ts}", ["src/[odd]/{y}.py", "src/app.py", "src/deep/er/util.py", "src/deep/x.ts"]),
    ("src/**", [
        "src/[odd]/", "src/[odd]/{y}.py", "src/app.md", "src/app.py", "src/deep/", "src/deep/er/", "src/deep/er/util.py", "src/deep/x.ts",
    ]),
    ("d*/**", ["docs/a.txt", "docs/b.txt"]),
    ("**/deep/**/*.py", ["src/deep/er/util.py"]),
    ("docs/[ab].txt", ["docs/a.txt", "docs/b.txt"]),
    ("docs/[!a].txt", ["docs/b.txt"]),
    ("docs/?.txt", ["docs/a.txt", "docs/b.txt"]),
    ("*/", ["docs/", "src/"]),
    ("src/[[]odd]/*", ["src/[odd]/{y}.py"]),
    ("./src//app.py", ["src/app.py"]),
    ("{docs/a,src/app}.*", ["docs/a.txt", "src/app.md", "src/app.py"]),
    (".*", [".env", ".hidden/"]),
    (".hidden/*", [".hidden/config.py"]),
    ("**/.env", [".env"]),
    ("nothing/*", []),
    ("main.py/*", []),
    ("", []),
)  # fmt: skip


async def _plant(trial: Trial, *paths: str, text: str = "x") -> None:
    for path in paths:
        await trial.sandbox.write(path, text)


@clause(CLAUSES, needs={"files", "write", "glob"})
async def a_pattern_finds_the_paths_it_is_for(make: Any) -> None:
    """``*``, ``?``, ``[…]``, ``{…}`` and ``**`` mean what they do elsewhere; names with a dot are found by name only."""
    async with opened(make) as trial:
        await _plant(trial, *_TREE)
        for pattern, wanted in _PATTERNS:
            if pattern:
                found = await trial.sandbox.glob(pattern)
                expect(found == wanted, f"{pattern} found {list(found)}")
                expect(found.truncated is None, f"{pattern} is said to have found less than there is")
        everything = await trial.sandbox.glob("**", hidden=True)
        expect(
            {name for name in everything if not name.endswith("/")} == set(_TREE), "not everything is found"
        )
        expect(
            everything == sorted(everything, key=lambda name: name.rstrip("/").split("/")), "it is not sorted"
        )
        found = await trial.sandbox.glob("*.py", path="src")
        expect(found == ["src/app.py"], "paths do not begin where the workspace does")
        await raises(trial.sandbox.glob("*", path="no"), ToolError, FileNotFoundError, what="no such path")
        await raises(trial.sandbox.glob("*", path="main.py"), ToolError, NotADirectoryError, what="a file")
        for pattern in ("", "/etc/*", "../*", "src/../../*", "a\0*", "x" * 10_000, "{a,b}" * 50):
            await raises(trial.sandbox.glob(pattern), ToolError, what=f"the pattern {pattern[:20]!r}")


@clause(CLAUSES, needs={"files", "write", "grep"})
async def lines_that_match_are_found(make: Any) -> None:
    """Each line that matches comes once, with its path and number, sorted, from text files only."""
    async with opened(make) as trial:
        sandbox = trial.sandbox
        await sandbox.write("b.py", "one\nimport os\r\nthree import\n")
        await sandbox.write("a/x.md", "import\n\n\nimport import")
        await sandbox.write("a/y.py", "nothing\n")
        await sandbox.write(".env", "import\n")
        await sandbox.write("binary", "import \0\nimport")
        found = await sandbox.grep("import")
        seen = [(one.path, one.line, one.text) for one in found]
        wanted = [
            ("a/x.md", 1, "import"), ("a/x.md", 4, "import import"), ("b.py", 2, "import os"), ("b.py", 3, "three import"),
        ]  # fmt: skip
        expect(seen == wanted and found.truncated is None, f"found {seen}")
        expect(str(found[2]) == "b.py:2: import os", "it reads otherwise")
        for options, paths in (
            ({"path": "a"}, ["a/x.md"] * 2), ({"path": "b.py"}, ["b.py"] * 2), ({"glob": "*.md"}, ["a/x.md"] * 2),
            ({"glob": "a/*"}, ["a/x.md"] * 2), ({"glob": "b.*"}, ["b.py"] * 2), ({"glob": ".env"}, [".env"]), ({"path": ".env"}, [".env"]),
            ({"hidden": True}, [".env", "a/x.md", "a/x.md", "b.py", "b.py"]), ({"glob": "no/*"}, []),
        ):  # fmt: skip
            arguments: Any = options
            paths_found = [one.path for one in await sandbox.grep("import", **arguments)]
            expect(paths_found == paths, f"{options} found lines of {paths_found}")
        for pattern, count in (
            ("^import", 3),
            ("import$", 3),
            ("(?i)IMPORT O", 1),
            (r"\bos\b", 1),
            ("^$", 2),
            ("\\.", 0),
        ):
            number = len(await sandbox.grep(pattern))
            expect(number == count, f"{pattern} found {number} lines")
        await raises(sandbox.grep("x", path="no"), ToolError, FileNotFoundError, what="no such path")
        for pattern in ("(", "[", "*", "(?P<", "(" * 900, "x" * 10_000, "\ud800"):
            await raises(sandbox.grep(pattern), ToolError, ValueError, what=f"the pattern {pattern[:20]!r}")


@clause(CLAUSES, needs={"files", "write", "glob", "grep"})
async def what_is_left_out_of_results_is_said(make: Any) -> None:
    """Results, entries and bytes are bounded; the first results come, and ``truncated`` says that there may be more."""
    async with opened(make, limits=SandboxLimits(list_entries=5)) as trial:
        await _plant(trial, *(f"f{number}" for number in range(5)))
        for search in (trial.sandbox.glob("*"), trial.sandbox.grep("x")):
            found: Any = await search
            expect(
                len(found) == 5 and found.truncated is None, f"at the limit: {list(found)}, {found.truncated}"
            )
        await _plant(trial, "a")
        for limit, count in ((None, 5), (2, 2), (0, 0), (100, 5)):
            paths = await trial.sandbox.glob("*", limit=limit)
            lines = await trial.sandbox.grep("x", limit=limit)
            expect(
                paths == ["a", "f0", "f1", "f2", "f3"][:count], f"with {limit} not the first: {list(paths)}"
            )
            expect([one.path for one in lines] == paths, f"with {limit} not the first lines")
            expect(paths.truncated and lines.truncated, f"with {limit} nothing is said")
        await raises(trial.sandbox.glob("*", limit=-1), ToolError, ValueError, what="a limit below 0")
    async with opened(make, limits=SandboxLimits(search_entries=20)) as trial:
        await _plant(trial, *(f"dir{number}/f" for number in range(15)))
        for search in (trial.sandbox.glob("**"), trial.sandbox.grep("x")):
            found = await search
            expect(found.truncated and len(found) <= 20, f"{len(found)} results, {found.truncated}")
    async with opened(make, limits=SandboxLimits(search_bytes=1_000)) as trial:
        await _plant(trial, "one", "two", text="x\n" * 400)
        for options in ({}, {"path": "two"}, {"glob": "one"}):
            arguments: Any = options
            lines = await trial.sandbox.grep("x", **arguments)
            expect(
                len(lines) == 400 or (not options and 400 < len(lines) <= 501),
                f"{options}: {len(lines)} lines",
            )
            expect(bool(lines.truncated) is not bool(options), f"{options}: {lines.truncated}")


@clause(CLAUSES, needs={"files", "write", "grep"}, timeout=30)
async def a_regular_expression_that_never_ends_is_ended(make: Any) -> None:
    """It is ended by the limit, by a cancelled or late context and by a cancelled task, and meanwhile the event loop goes on."""
    async with opened(make, limits=SandboxLimits(search_seconds=0.7)) as trial:
        await trial.sandbox.write("f", "a" * 60 + "!\n")
        await trial.sandbox.write("g", "a\n")
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beating = asyncio.ensure_future(beat())
        found = await trial.sandbox.grep(ENDLESS)
        beating.cancel()
        expect(found.truncated, "it is said to have found everything")
        expect(beats >= 5, f"the event loop stood still: {beats} beats")
    async with opened(make, limits=SandboxLimits(search_seconds=600)) as trial:
        await trial.sandbox.write("f", "a" * 60 + "!\n")
        late = trial.sandbox.grep(ENDLESS, context=Caller(seconds=0.3))
        await raises(late, DeadlineExceeded, what="a search past its deadline")
        caller = Caller()
        asyncio.get_running_loop().call_later(0.3, caller.cancellation.cancel)
        await raises(trial.sandbox.grep(ENDLESS, context=caller), RunCancelled, what="a cancelled search")
        task = asyncio.ensure_future(trial.sandbox.grep(ENDLESS))
        await asyncio.sleep(0.3)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        expect(task.cancelled(), "a cancelled task was not cancelled")


@clause(CLAUSES, needs={"files", "write", "glob", "grep", "local_files"}, timeout=60)
async def a_hostile_tree_is_searched_all_the_same(make: Any) -> None:
    """Loops of links, depth, pipes, bytes that are no text, names that are no text and huge lines neither hang nor break a search."""
    async with opened(make) as trial:
        root, sandbox = trial.root, trial.sandbox
        await sandbox.write("dir/good", "needle\n")
        root.joinpath("dir/up").symlink_to("..")
        root.joinpath("dir/self").symlink_to("self")
        root.joinpath("outside").symlink_to(trial.outside)
        root.joinpath("secret").symlink_to(trial.outside / "secret")
        root.joinpath("linked").symlink_to("dir/good")
        root.joinpath("mixed").write_bytes(b"\xff\xfe needle \xff\nneedle\r\n")
        root.joinpath("huge").write_text("x" * 3_000_000 + "needle" + "y" * 1_000_000 + "\nneedle")
        if hasattr(os, "mkfifo"):
            os.mkfifo(root / "pipe")
        _dig(root, 300)
        odd = _odd_name(str(root))
        paths = await sandbox.glob("**")
        expect(
            {"dir/good", "dir/up", "dir/self", "outside", "linked"} <= set(paths), "something is not found"
        )
        expect(
            not any(path.startswith(("outside/", "dir/up/", "linked/")) for path in paths),
            "a link was gone into",
        )
        expect(any(path.startswith("d/d/d/") for path in paths), "nothing deep is found")
        found = await sandbox.grep("needle|SECRET")
        seen = [(one.path, one.line) for one in found]
        wanted = [("dir/good", 1), ("huge", 1), ("huge", 2), ("mixed", 1), ("mixed", 2)]
        expect([one for one in seen if one[0] != odd] == wanted, f"found {seen}")
        expect(not odd or (odd, 1) in seen, "a file whose name is no text was left out")
        expect(all(len(one.text) < 1_000 for one in found), "a huge line came whole")
        expect("needle" in found[1].text, f"what was found in a huge line is not shown: {found[1].text!r}")
        expect(
            await sandbox.glob("dir/up/dir/*") == ["dir/up/dir/good", "dir/up/dir/self", "dir/up/dir/up"],
            "a named link",
        )
        expect(
            [one.path for one in await sandbox.grep("needle", path="linked")] == ["linked"],
            "a named link to a file",
        )
        for path in ("outside", "secret", "outside/secret", "dir/self"):
            await raises(sandbox.grep("S", path=path), ToolError, what=f"grep in {path}")
            await raises(sandbox.glob("*", path=path), ToolError, what=f"glob in {path}")
        expect(
            await sandbox.glob("outside/*") == [] == await sandbox.grep("S", glob="outside/*"), "a link out"
        )


def _dig(root: os.PathLike[str], depth: int) -> None:
    """Make directories in one another, ``d`` in ``d``, deeper than a path can say."""
    if os.open not in os.supports_dir_fd:
        return
    here = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def _odd_name(root: str) -> str | None:
    """Make a file whose name is no Unicode, where that is possible, and return how it is told."""
    try:
        descriptor = os.open(os.fsencode(root) + b"/odd\xff", os.O_WRONLY | os.O_CREAT)
    except OSError:
        return None
    os.write(descriptor, b"needle")
    os.close(descriptor)
    return "odd\ufffd"


@clause(
    CLAUSES,
    needs={
        "files",
        "write",
        "delete",
        "move",
        "make_directory",
        "glob",
        "grep",
        "bytes",
        "stat",
        "local_files",
    },
)
async def swapped_directories_let_no_other_operation_through(make: Any) -> None:
    """While a directory and a link to outside change places, no operation looks at or changes anything outside."""
    if sys.platform == "win32":
        raise ClauseSkipped("two paths cannot be exchanged in one step here")
    async with opened(make) as trial:
        trial.outside.joinpath("victim").write_text("SECRET")
        trial.outside.joinpath("empty").mkdir()
        trial.root.joinpath("dir").mkdir()
        trial.root.joinpath("dir/mine").write_text("mine")
        trial.root.joinpath("link").symlink_to(trial.outside)
        swap = exchange()
        stop = threading.Event()

        def attack() -> None:
            while not stop.is_set():
                swap(str(trial.root / "dir"), str(trial.root / "link"))

        attacker = threading.Thread(target=attack)
        attacker.start()
        try:
            done = await harass(trial, seconds=2.0)
        finally:
            stop.set()
            attacker.join()
        expect(done > 0, "nothing worked at all, so nothing was shown")


async def harass(
    trial: Trial, *, seconds: float, tell: Callable[[str, bool], None] = lambda _name, _done: None
) -> int:
    """Try every operation on ``dir`` while somebody exchanges it with a link to outside; return how many did something.

    Args:
        trial: Its ``outside`` has the file ``victim``, which says SECRET, and the directory ``empty``; its root, ``dir/mine``.
        seconds: How long to go on.
        tell: Called with each operation and whether it did something.
    """
    sandbox, outside = trial.sandbox, trial.outside
    before = sorted(path.name for path in outside.iterdir())
    done = 0

    async def one(name: str, attempt: Any, innocent: Callable[[Any], bool] = lambda _: True) -> None:
        nonlocal done
        try:
            result = await attempt
        except ToolError:
            tell(name, False)
            return
        expect(innocent(result), f"{name} brought something from outside: {result!r:.200}")
        done += 1
        tell(name, True)

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await one("write_bytes", sandbox.write_bytes("dir/planted", b"x"))
        await one("read_bytes", sandbox.read_bytes("dir/victim", offset=1), lambda data: b"ECRET" not in data)
        await one("read", sandbox.read("dir/victim", offset=0, limit=1), lambda text: "SECRET" not in text)
        await one("stat", sandbox.stat("dir/empty"), lambda _: False)
        await one("glob", sandbox.glob("*", path="dir"), lambda paths: "dir/victim" not in paths)
        await one("glob", sandbox.glob("dir/*"), lambda paths: "dir/victim" not in paths)
        await one(
            "glob", sandbox.glob("**"), lambda paths: not any(path.endswith("victim") for path in paths)
        )
        await one("grep", sandbox.grep("SECRET", path="dir"), lambda lines: not lines)
        await one("grep", sandbox.grep("SECRET"), lambda lines: not lines)
        await one("make_directory", sandbox.make_directory("dir/made/deep"))
        await one("delete", sandbox.delete("dir/made/deep"))
        await one("delete", sandbox.delete("dir/made"))
        await one("delete", sandbox.delete("dir/planted"))
        await one("delete", sandbox.delete("dir/victim"), lambda _: False)
        await one("delete", sandbox.delete("dir/empty"), lambda _: False)
        await one("move", sandbox.move("dir/victim", "dir/stolen"), lambda _: False)
        await one("move", sandbox.move("dir/victim", "stolen"), lambda _: False)
        await one("move", sandbox.move("dir/empty", "stolen"), lambda _: False)
        await one("write", sandbox.write("fodder", "x"))
        await one("move", sandbox.move("fodder", "dir/moved/fodder"))
        await one("move", sandbox.move("dir/moved/fodder", "back"))
        await one("delete", sandbox.delete("back"))
        await one("delete", sandbox.delete("dir/moved"))
        after = sorted(path.name for path in outside.iterdir())
        expect(after == before, f"outside there is {after} now")
    expect(outside.joinpath("victim").read_text() == "SECRET", "a file outside was changed")
    return done
