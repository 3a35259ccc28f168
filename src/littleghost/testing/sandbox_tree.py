"""Clauses about what changes a tree of files, and about parts of files.

A clause that goes through all operations tries those that the sandbox's ``capabilities`` name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from itertools import chain
from typing import Any

from littleghost.errors import RunCancelled, ToolError
from littleghost.sandboxes.contract import Sandbox, SandboxLimits
from littleghost.testing.conformance import Clause, ClauseSkipped, clause, expect
from littleghost.testing.sandbox_trial import Caller, Trial, all_raise, opened, raises

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

Attempt = Coroutine[Any, Any, object]


def _changes(sandbox: Sandbox, path: str, offered: frozenset[str] | None = None) -> Iterator[Attempt]:
    """Yield every change of ``path`` that the sandbox offers, or those ``offered``."""
    offered = sandbox.capabilities if offered is None else offered
    yield sandbox.write(path, "x")
    yield sandbox.replace(path, "e", "x")
    if "bytes" in offered:
        yield sandbox.write_bytes(path, b"x")
    if "delete" in offered:
        yield sandbox.delete(path)
    if "move" in offered:
        yield sandbox.move(path, "moved-away")
        yield sandbox.move("fodder", path)
    if "make_directory" in offered:
        yield sandbox.make_directory(path)


def _looks(sandbox: Sandbox, path: str) -> Iterator[Attempt]:
    """Yield every way to look at ``path`` that the sandbox offers."""
    offered = sandbox.capabilities
    yield sandbox.read(path)
    yield sandbox.list(path)
    if "ranges" in offered:
        yield sandbox.read(path, offset=0, limit=1)
    if "bytes" in offered:
        yield sandbox.read_bytes(path)
    if "stat" in offered:
        yield sandbox.stat(path)
    if "glob" in offered:
        yield sandbox.glob("*", path=path)
    if "grep" in offered:
        yield sandbox.grep(".", path=path)


def _nothing_came_out(trial: Trial) -> None:
    secret = trial.outside / "secret"
    expect(secret.exists() and secret.read_text() == "SECRET", "a file outside was changed")
    expect([path.name for path in trial.outside.iterdir()] == ["secret"], "something was made outside")


@clause(CLAUSES, needs={"files", "write", "ranges"})
async def a_part_of_a_text_is_so_many_lines(make: Any) -> None:
    """``offset`` and ``limit`` count lines, which keep their ends; beyond the end there is nothing."""
    async with opened(make) as trial:
        await trial.sandbox.write("f", "one\r\ntwo\x0b\u2028\n\nfour ü")
        lines = ["one\r\n", "two\x0b\u2028\n", "\n", "four ü"]
        for offset in range(6):
            for limit in (None, 0, 1, 2, 5):
                text = await trial.sandbox.read("f", offset=offset, limit=limit)
                wanted = "".join(lines[offset : None if limit is None else offset + limit])
                expect(text == wanted, f"{limit} lines after {offset} were {text!r}")
        for wrong in ({"offset": -1}, {"limit": -1}, {"limit": "1"}, {"offset": True}):
            arguments: Any = wrong
            await raises(trial.sandbox.read("f", **arguments), ToolError, ValueError, what=str(wrong))


@clause(CLAUSES, needs={"files", "write", "bytes", "ranges"})
async def a_part_of_a_file_is_so_many_bytes(make: Any) -> None:
    """Of bytes, ``offset`` and ``limit`` count bytes."""
    data = bytes(range(256))
    async with opened(make) as trial:
        await trial.sandbox.write_bytes("f", data)
        for offset, limit in ((0, 10), (250, 10), (250, None), (256, 5), (1000, None), (0, 0)):
            found = await trial.sandbox.read_bytes("f", offset=offset, limit=limit)
            wanted = data[offset : None if limit is None else offset + limit]
            expect(found == wanted, f"{limit} bytes after {offset} were {found!r}")


@clause(CLAUSES, needs={"files", "write", "ranges"})
async def a_large_file_is_read_in_parts(make: Any) -> None:
    """The limit on reading is for the part, not for the file; a part above it is refused."""
    lines = [f"line {number:05}\n" for number in range(60_000)]  # more than is read from a disk at a time
    async with opened(make, limits=SandboxLimits(read_bytes=1_000)) as trial:
        await trial.sandbox.write("f", "".join(lines))
        await raises(trial.sandbox.read("f"), ToolError, ValueError, what="reading all of it")
        for offset in (0, 25_000, 59_950):
            text = await trial.sandbox.read("f", offset=offset, limit=50)
            expect(text == "".join(lines[offset : offset + 50]), f"other lines came after {offset}")
        await raises(
            trial.sandbox.read("f", offset=10, limit=1000), ToolError, ValueError, what="too large a part"
        )


@clause(CLAUSES, needs={"files", "write", "delete"})
async def delete_takes_a_file_or_an_empty_directory(make: Any) -> None:
    """``delete`` removes one of these, and nothing else: never what is in a directory, never the workspace."""
    async with opened(make) as trial:
        for path in ("file", "dir/file", "other/below/file"):
            await trial.sandbox.write(path, "x")
        await trial.sandbox.delete("file")
        await trial.sandbox.delete("dir/file")
        await trial.sandbox.delete("dir/")
        expect(await trial.sandbox.list() == ["other/"], "not what was to be deleted is gone")
        for path in ("other", "other/below"):
            await raises(trial.sandbox.delete(path), ToolError, what="deleting a directory that is not empty")
        for path in (".", "./"):
            await raises(trial.sandbox.delete(path), ToolError, what="deleting the workspace")
        for path in ("no", "no/no"):
            await raises(trial.sandbox.delete(path), ToolError, FileNotFoundError, what="what is missing")
        for path in ("other/below/file/", "other/below/file/."):
            await raises(trial.sandbox.delete(path), ToolError, NotADirectoryError, what=path)
        expect(await trial.sandbox.read("other/below/file") == "x", "a refused delete deleted")


@clause(CLAUSES, needs={"files", "write", "move"})
async def move_takes_what_is_there_along(make: Any) -> None:
    """A file or a directory with all that is in it has its new path, and missing directories are made."""
    async with opened(make) as trial:
        await trial.sandbox.write("dir/below/file", "text")
        await trial.sandbox.move("dir/below/file", "dir/renamed")
        await trial.sandbox.move("dir", "new/parent/dir")
        expect(await trial.sandbox.read("new/parent/dir/renamed") == "text", "the file is not there")
        expect(await trial.sandbox.list() == ["new/"], "something stayed behind")
        expect(await trial.sandbox.list("new/parent/dir") == ["below/", "renamed"], "not all came along")


@clause(CLAUSES, needs={"files", "write", "move"})
async def move_never_replaces(make: Any) -> None:
    """What is at the target stays, an empty directory too, and so does what was to be moved; nothing else is left."""
    async with opened(make) as trial:
        await trial.sandbox.write("one", "1")
        await trial.sandbox.write("two", "2")
        await trial.sandbox.write("dir/file", "3")
        if "make_directory" in trial.sandbox.capabilities:
            await trial.sandbox.make_directory("empty")
            for path in ("one", "dir"):
                await raises(
                    trial.sandbox.move(path, "empty"), ToolError, FileExistsError, what=f"{path} to empty"
                )
        for path, target in (("one", "two"), ("one", "dir"), ("one", "dir/file"), ("dir", "one")):
            await raises(
                trial.sandbox.move(path, target), ToolError, FileExistsError, what=f"{path} to {target}"
            )
        for path, target in (("dir", "dir/in"), ("no", "new/x"), ("one", "new/"), ("one", "two/x")):
            await raises(trial.sandbox.move(path, target), ToolError, what=f"{path} to {target}")
        for path in (".", "one/"):
            await raises(trial.sandbox.move(path, "new/x"), ToolError, what=path)
        names = [name for name in await trial.sandbox.list() if name != "empty/"]
        expect(names == ["dir/", "one", "two"], "a refused move left something else")
        texts = [await trial.sandbox.read(path) for path in ("one", "two", "dir/file")]
        expect(texts == ["1", "2", "3"], "a refused move changed a file")


@clause(CLAUSES, needs={"files", "write", "move"})
async def moves_at_once_lose_nothing(make: Any) -> None:
    """Of many moves to one path at once, one is made, and the others leave what they were to move."""
    async with opened(make) as trial:
        for number in range(20):
            await trial.sandbox.write(f"f{number}", str(number))
        moves = (trial.sandbox.move(f"f{number}", "target") for number in range(20))
        results = await asyncio.gather(*moves, return_exceptions=True)
        made = [number for number, result in enumerate(results) if result is None]
        expect(len(made) == 1, f"{len(made)} moves say that they were made")
        expect(await trial.sandbox.read("target") == str(made[0]), "another file is at the target")
        expect(len(await trial.sandbox.list()) == 20, "a file is lost")
        expect(all(isinstance(one, FileExistsError) for one in results if one), "not said as what it is")


@clause(CLAUSES, needs={"files", "make_directory"})
async def a_directory_is_made_with_its_parents(make: Any) -> None:
    """``make_directory`` makes what is missing, and leaves alone what is there."""
    async with opened(make) as trial:
        await trial.sandbox.make_directory("a/b/c")
        await trial.sandbox.write("a/b/file", "x")
        for path in ("a/b", "a/b/c/", "."):
            await trial.sandbox.make_directory(path)
        expect(await trial.sandbox.list("a/b") == ["c/", "file"], "other entries are there")
        await raises(
            trial.sandbox.make_directory("a/b/file"), ToolError, FileExistsError, what="where a file is"
        )
        await raises(trial.sandbox.make_directory("a/b/file/new"), ToolError, what="below a file")
        expect(await trial.sandbox.read("a/b/file") == "x", "a file was changed")


@clause(CLAUSES, needs={"files"})
async def a_read_only_sandbox_changes_no_tree(make: Any) -> None:
    """With ``writable=False`` nothing is deleted, moved or made, and no capability says that it could be."""
    async with opened(make, writable=False) as trial:
        offered = trial.sandbox.capabilities & {"write", "delete", "move", "make_directory"}
        expect(not offered, f"it says that it offers {sorted(offered)}")
        sandbox = trial.sandbox
        attempts = {"delete": ("f",), "move": ("f", "g"), "make_directory": ("d",)}
        for name, arguments in attempts.items():
            if getattr(type(sandbox), name) is not getattr(Sandbox, name):  # else it does not exist at all
                await raises(getattr(sandbox, name)(*arguments), ToolError, PermissionError, what=name)
        expect(await sandbox.list() == [], "a refused change left something")


@clause(CLAUSES, needs={"files", "write", "local_files"})
async def no_operation_takes_a_path_out(make: Any) -> None:
    """Absolute paths, ``..``, NUL, and links that lead out are refused by every operation, and no error tells where things are."""
    async with opened(make) as trial:
        root, outside = trial.root, trial.outside
        root.joinpath("fodder").write_text("x")
        root.joinpath("folder").symlink_to(outside)
        root.joinpath("climb").symlink_to("..")
        # A sandbox that fails here does what it is asked to, so nothing that is named is anybody's but the trial's.
        paths = [
            f"{outside}/secret", f"{outside}/new", "../outside/secret", "a/../../outside/secret", "..", "", "a\0b", "\ud800",
            "folder/secret", "folder/new", "folder/new/deep", "climb/outside/secret", "climb/new", "folder/.", "workspace://no/x",
        ]  # fmt: skip
        for path in paths:
            looks = () if path.endswith(("new", "deep")) else _looks(trial.sandbox, path)
            for attempt in chain(_changes(trial.sandbox, path), looks):
                error = await raises(attempt, ToolError, what=f"{path!r}")
                said = str(error).replace(path, "")
                expect(str(root.parent) not in said, f"{error} tells where the workspace is")
        _nothing_came_out(trial)
        expect(root.joinpath("fodder").exists(), "what was to be moved out is gone")
        for name in ("new", "moved-away"):
            expect(not root.parent.joinpath(name).exists(), "something was made above the root")


@clause(CLAUSES, needs={"files", "delete", "move", "local_files"})
async def a_link_is_moved_and_deleted_itself(make: Any) -> None:
    """``delete`` and ``move`` take the link, wherever it leads, and leave what it leads to; a link is in nobody's way but its own."""
    async with opened(make) as trial:
        root = trial.root
        root.joinpath("real").mkdir()
        root.joinpath("real/file").write_text("text")
        for name, target in (
            ("file", "real/file"),
            ("dir", "real"),
            ("out", str(trial.outside)),
            ("gone", "no"),
        ):
            root.joinpath(name).symlink_to(target)
            await trial.sandbox.move(name, f"{name}-moved")
            moved = root / f"{name}-moved"
            expect(str(moved.readlink()) == target, f"{name} was not moved as a link")
            root.joinpath("given").write_text("given")
            await raises(
                trial.sandbox.move("given", f"{name}-moved"), ToolError, FileExistsError, what="onto a link"
            )
            await raises(trial.sandbox.delete(f"{name}-moved/"), ToolError, what="a link with a slash")
            await trial.sandbox.delete(f"{name}-moved")
            expect(not moved.is_symlink(), f"{name} was not deleted")
        expect(root.joinpath("real/file").read_text() == "text", "what a link leads to was changed")
        _nothing_came_out(trial)


@clause(CLAUSES, needs={"files", "write", "local_files"}, timeout=20)
async def no_operation_waits_for_a_special_file(make: Any) -> None:
    """A pipe makes nobody wait: it is refused where content is meant, and can be moved and deleted."""
    async with opened(make) as trial:
        offered = trial.sandbox.capabilities
        if not hasattr(os, "mkfifo"):
            raise ClauseSkipped("there are no pipes here")
        os.mkfifo(trial.root / "pipe")
        attempts: list[Attempt] = []
        if "ranges" in offered:
            attempts.append(trial.sandbox.read("pipe", offset=1))
        if "bytes" in offered:
            attempts += [trial.sandbox.read_bytes("pipe"), trial.sandbox.write_bytes("pipe", b"x")]
        if "grep" in offered:
            attempts.append(trial.sandbox.grep("x", path="pipe"))
        await asyncio.wait_for(all_raise(attempts, ToolError, PermissionError, what="a pipe"), 5)
        if "grep" in offered:
            expect(await asyncio.wait_for(trial.sandbox.grep("x"), 10) == [], "a pipe has lines")
        if "stat" in offered:
            expect((await trial.sandbox.stat("pipe")).kind == "other", "it is told as something else")
        if {"move", "delete"} <= offered:
            await asyncio.wait_for(trial.sandbox.move("pipe", "moved"), 5)
            await asyncio.wait_for(trial.sandbox.delete("moved"), 5)


_GIT = (
    ".git/config", ".git/hooks/pre-commit", ".git/new", ".git", "sub/.git/config", "sub/.git", ".git/modules/x/config",
    "fresh/.git/config", "tree/.git", "to-git/config", "to-hooks/pre-commit", ".GIT/config", "named-git/config",
)  # fmt: skip


@clause(CLAUSES, needs={"files", "write", "local_files", "git_read_only"})
async def what_git_would_run_is_not_changed(make: Any) -> None:
    """What is named ``.git``, there or not, directory or file, and all that is below, is read but not changed, through links neither."""
    async with opened(make) as trial:
        root = trial.root
        for path in (".git/config", ".git/hooks/pre-commit", ".git/modules/x/config", "sub/.git/config"):
            root.joinpath(path).parent.mkdir(parents=True, exist_ok=True)
            root.joinpath(path).write_text("kept")
        root.joinpath("tree").mkdir()
        root.joinpath("tree/.git").write_text("kept")
        root.joinpath("empty/.git").mkdir(parents=True)
        root.joinpath("elsewhere").mkdir()
        root.joinpath("elsewhere/config").write_text("kept")
        links = {
            "to-git": ".git",
            "to-hooks": "sub/../.git/hooks",
            "to-config": "to-git/config",
            "named/.git": "../elsewhere",
            "named-git": "named/.git",
        }
        root.joinpath("named").mkdir()
        for name, target in links.items():
            root.joinpath(name).symlink_to(target)
        root.joinpath("fodder").write_text("x")
        before = _snapshot(trial)
        for path in (*_GIT, "empty/.git", "named/.git", "named/.git/config"):
            await all_raise(_changes(trial.sandbox, path), ToolError, what=path)
            expect(_snapshot(trial) == before, f"{path} was changed")
        # This link itself may go. What it leads to may not be changed.
        attempts = (trial.sandbox.write("to-config", "x"), trial.sandbox.replace("to-config", "e", "x"))
        await all_raise(attempts, ToolError, PermissionError, what="through a link to the file")
        expect(_snapshot(trial) == before, "it was changed through a link")
        expect(await trial.sandbox.read(".git/config") == "kept", "it cannot be read")
        if "scope" in trial.sandbox.capabilities:
            for below in (".git", "sub/.git"):
                scope = trial.sandbox.scope(path=below)
                await raises(scope.write("config", "x"), ToolError, PermissionError, what="in a scope")
        for path in (".gitignore", ".github/x", "git/config", "x.git/config"):
            await trial.sandbox.write(path, "x")


def _snapshot(trial: Trial) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for path in trial.root.rglob("*"):
        if path.is_symlink() or path.is_dir():
            found.append((str(path), str(path.readlink()) if path.is_symlink() else "a directory"))
        else:
            found.append((str(path), path.read_text("utf-8")))
    return sorted(found)


@clause(CLAUSES, needs={"files", "write", "delete", "move", "make_directory", "local_files"})
async def a_cancelled_caller_changes_no_tree(make: Any) -> None:
    """A context that is cancelled, before or during a change, raises, and nothing is changed."""
    async with opened(make) as trial:
        trial.root.joinpath("f").write_text("x")
        before = _snapshot(trial)
        for checks in (1, 2):
            attempts: tuple[Callable[[Any], Attempt], ...] = (
                lambda context: trial.sandbox.delete("f", context=context),
                lambda context: trial.sandbox.move("f", "new/g", context=context),
                lambda context: trial.sandbox.make_directory("new/d", context=context),
            )
            for attempt in attempts:
                await raises(attempt(Caller(checks=checks)), RunCancelled, what="a change")
                expect(_snapshot(trial) == before, "a cancelled change was made")


@clause(CLAUSES, needs={"files", "write", "scope", "local_files"})
async def a_scope_narrows_every_operation(make: Any) -> None:
    """What a scope does not show is not looked at and not changed, whatever the operation."""
    async with opened(make) as trial:
        root = trial.root
        root.joinpath("sub").mkdir()
        root.joinpath("sub/fodder").write_text("x")
        root.joinpath("sub/inner").mkdir()
        root.joinpath("other").write_text("beside")
        root.joinpath("sub/out").symlink_to("..")
        scope = trial.sandbox.scope(path="sub")
        before = _snapshot(trial)
        for path in ("../other", "out/other", "out/new", str(root / "other")):
            attempts = [*_changes(scope, path), *(() if path.endswith("new") else _looks(scope, path))]
            await all_raise(attempts, ToolError, what=f"{path} through the scope")
        fixed = trial.sandbox.scope(read_only=True)
        offered = trial.sandbox.capabilities
        await all_raise(
            [*_changes(fixed, "other", offered)], ToolError, PermissionError, what="a read-only scope"
        )
        expect(_snapshot(trial) == before, "something was changed")
        if "glob" in scope.capabilities:
            expect(await scope.glob("**") == ["fodder", "inner/", "out"], "it finds other paths")
        if "grep" in scope.capabilities:
            expect(await scope.grep("beside") == [], "it finds other lines")
