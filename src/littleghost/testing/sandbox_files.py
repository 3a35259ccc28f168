"""Clauses about files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from littleghost.errors import RunCancelled, ToolError
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.testing.conformance import Clause, clause, expect
from littleghost.testing.sandbox_trial import Caller, all_raise, exchange, opened, raises

__all__ = ["CLAUSES"]

CLAUSES: list[Clause] = []

# A sandbox that fails a clause does what it is asked to, so no path is anybody's but the trial's.
_FORBIDDEN = ("../outside/secret", "a/../../outside/secret", "a/..", "..", "")


@clause(CLAUSES, needs={"files"})
async def opening_and_closing_twice_does_nothing_more(make: Any) -> None:
    """``open`` and ``close`` may be called again."""
    async with opened(make) as trial:
        expect(await trial.sandbox.open() is trial.sandbox, "open did not return the sandbox")
        await trial.sandbox.close()
        await trial.sandbox.close()


@clause(CLAUSES, needs={"files", "local_files"})
async def only_an_open_sandbox_works(make: Any) -> None:
    """Before ``open`` and after ``close`` an operation is a `ToolError`."""
    async with opened(make) as trial:
        await trial.sandbox.write("a", "x")
        await trial.sandbox.close()
        await raises(trial.sandbox.read("a"), ToolError, what="reading after close")
        await raises(trial.sandbox.write("a", "y"), ToolError, what="writing after close")
        expect(trial.root.joinpath("a").read_text() == "x", "a closed sandbox wrote")


@clause(CLAUSES, needs={"files", "write"})
async def text_comes_back_exactly(make: Any) -> None:
    """What is written is what is read: line ends, byte order mark, NUL and every plane of Unicode."""
    texts = (
        "",
        "plain\n",
        "a\r\nb\rc\n",
        "\ufeffmark",
        "nul \0 inside",
        "naïve e\u0301 🜁 \U0010ffff",
        "no end",
    )
    async with opened(make) as trial:
        for text in texts:
            await trial.sandbox.write("file.txt", text)
            expect(await trial.sandbox.read("file.txt") == text, f"{text!r} came back otherwise")


@clause(CLAUSES, needs={"files", "write"})
async def missing_directories_are_created(make: Any) -> None:
    """A write makes the directories its path needs."""
    async with opened(make) as trial:
        await trial.sandbox.write("a/b/c.txt", "deep")
        expect(await trial.sandbox.read("a/b/c.txt") == "deep", "the file is not there")
        expect(await trial.sandbox.list("a") == ["b/"], "the directory is not there")


@clause(CLAUSES, needs={"files", "write"})
async def a_listing_is_sorted_and_marks_directories(make: Any) -> None:
    """Names come sorted, and those of directories end in ``/``."""
    async with opened(make) as trial:
        expect(await trial.sandbox.list() == [], "a new workspace is not empty")
        for path in ("b.txt", "dir/x", "a.txt", ".hidden"):
            await trial.sandbox.write(path, "")
        expect(await trial.sandbox.list() == [".hidden", "a.txt", "b.txt", "dir/"], "not the names, sorted")
        expect(
            await trial.sandbox.list("dir") == await trial.sandbox.list("dir/") == ["x"],
            "not the names inside",
        )


@clause(CLAUSES, needs={"files", "write"})
async def what_is_not_there_is_said_so(make: Any) -> None:
    """A missing path is a `ToolError` that is a `FileNotFoundError`, and is not made by asking."""
    async with opened(make) as trial:
        await raises(trial.sandbox.read("no"), ToolError, FileNotFoundError, what="reading what is missing")
        await raises(trial.sandbox.list("no"), ToolError, FileNotFoundError, what="listing what is missing")
        await raises(
            trial.sandbox.replace("no/no", "a", "b"),
            ToolError,
            FileNotFoundError,
            what="editing what is missing",
        )
        expect(await trial.sandbox.list() == [], "a failed operation left something")


@clause(CLAUSES, needs={"files", "write"})
async def files_and_directories_are_told_apart(make: Any) -> None:
    """Reading or writing a directory is an `IsADirectoryError`; listing a file is a `NotADirectoryError`."""
    async with opened(make) as trial:
        await trial.sandbox.write("dir/file", "x")
        await raises(trial.sandbox.read("dir"), ToolError, IsADirectoryError, what="reading a directory")
        await raises(
            trial.sandbox.write("dir", "x"), ToolError, IsADirectoryError, what="writing a directory"
        )
        await raises(trial.sandbox.list("dir/file"), ToolError, NotADirectoryError, what="listing a file")
        for path in ("dir/file/", "dir/file/.", "new/"):
            await raises(trial.sandbox.write(path, "y"), ToolError, what=f"writing {path!r}")
        await raises(trial.sandbox.write("dir/file/below", "y"), ToolError, what="writing below a file")
        expect(await trial.sandbox.read("dir/file") == "x", "a refused write changed the file")


@clause(CLAUSES, needs={"files", "write"})
async def paths_out_of_the_workspace_are_refused(make: Any) -> None:
    """Absolute paths, ``..`` components, NUL and the empty path are `ToolError`, whatever the operation."""
    async with opened(make) as trial:
        await trial.sandbox.write("a/x", "x")
        for path in (f"{trial.outside}/secret", *_FORBIDDEN, "a\0b", "\0", "\ud800"):
            await raises(trial.sandbox.read(path), ToolError, what=f"reading {path!r}")
            await raises(trial.sandbox.list(path), ToolError, what=f"listing {path!r}")
            await raises(trial.sandbox.write(path, "y"), ToolError, what=f"writing {path!r}")
            await raises(trial.sandbox.replace(path, "x", "y"), ToolError, what=f"editing {path!r}")
        expect(trial.outside.joinpath("secret").read_text() == "SECRET", "a file outside was changed")


@clause(CLAUSES, needs={"files", "write"})
async def a_name_is_only_a_name(make: Any) -> None:
    """Dots, dashes, spaces, globs and shell signs in a name mean nothing."""
    names = [
        "a..b",
        "...",
        "..c",
        "d..",
        "-rf",
        " space ",
        "$(touch x)",
        "*",
        "~",
        "naïve 🜁",
        "new\nline",
        "'\"`;&|",
    ]
    if sys.platform != "win32":
        names += ["back\\slash", "c:stream"]
    async with opened(make) as trial:
        for name in names:
            await trial.sandbox.write(f"dir/{name}", name)
        expect(await trial.sandbox.list("dir") == sorted(names), "the listing has other names")
        for name in names:
            expect(await trial.sandbox.read(f"./dir//{name}") == name, f"{name!r} was another file")


@clause(CLAUSES, needs={"files", "write"})
async def replace_needs_exactly_one_place(make: Any) -> None:
    """Text that is absent, ambiguous (overlaps count) or empty is refused, and the file stays."""
    async with opened(make) as trial:
        for content, old in (("abc", "x"), ("abab", "ab"), ("aaa", "aa"), ("abc", ""), ("", "a")):
            await trial.sandbox.write("f", content)
            await raises(
                trial.sandbox.replace("f", old, "new"), ToolError, ValueError, what=f"{old!r} in {content!r}"
            )
            expect(await trial.sandbox.read("f") == content, "a refused edit changed the file")
        await trial.sandbox.write("f", "one two three")
        await trial.sandbox.replace("f", "two", "2")
        expect(await trial.sandbox.read("f") == "one 2 three", "the edit is not what was asked for")


@clause(CLAUSES, needs={"files", "write"})
async def replacement_text_is_taken_literally(make: Any) -> None:
    """Nothing in the new text is expanded, and nothing in the old one is a pattern."""
    texts = (r"\1 \0 \g<0> \& \' \\", "$& $1 $$ ${x} $`", "{0} {} %s %(x)s", ".*", "")
    async with opened(make) as trial:
        for text in texts:
            await trial.sandbox.write("f", "before [a-z]+ after")
            await trial.sandbox.replace("f", "[a-z]+", text)
            expect(await trial.sandbox.read("f") == f"before {text} after", f"{text!r} was expanded")


@clause(CLAUSES, needs={"files", "write"})
async def replace_keeps_the_rest_byte_for_byte(make: Any) -> None:
    """Line ends and a byte order mark survive an edit elsewhere in the file."""
    async with opened(make) as trial:
        await trial.sandbox.write("f", "\ufeffone\r\ntwo\nthree\r\n")
        await trial.sandbox.replace("f", "two", "2")
        expect(await trial.sandbox.read("f") == "\ufeffone\r\n2\nthree\r\n", "more than the edit changed")


@clause(CLAUSES, needs={"files", "write"})
async def text_that_is_no_unicode_is_refused(make: Any) -> None:
    """A lone surrogate cannot be written."""
    async with opened(make) as trial:
        await trial.sandbox.write("f", "old")
        await raises(trial.sandbox.write("f", "bad \ud800"), ToolError, ValueError, what="a lone surrogate")
        expect(await trial.sandbox.read("f") == "old", "a refused write changed the file")


@clause(CLAUSES, needs={"files", "write"})
async def sizes_are_limited(make: Any) -> None:
    """A file, a content or a listing above its limit is refused; one at the limit is not."""
    limits = SandboxLimits(read_bytes=10, write_bytes=20, list_entries=2)
    async with opened(make, limits=limits) as trial:
        await trial.sandbox.write("a", "x" * 10)
        expect(await trial.sandbox.read("a") == "x" * 10, "a file at the limit")
        await trial.sandbox.write("b", "ü" * 10)
        await raises(trial.sandbox.read("b"), ToolError, ValueError, what="reading above the limit")
        await raises(
            trial.sandbox.write("a", "y" * 21), ToolError, ValueError, what="writing above the limit"
        )
        await raises(
            trial.sandbox.replace("a", "x" * 10, "y" * 21),
            ToolError,
            ValueError,
            what="an edit above the limit",
        )
        expect(await trial.sandbox.read("a") == "x" * 10, "a refused write changed the file")
        expect(len(await trial.sandbox.list()) == 2, "a listing at the limit")
        await trial.sandbox.write("c", "")
        await raises(trial.sandbox.list(), ToolError, ValueError, what="a listing above the limit")


@clause(CLAUSES, needs={"files"})
async def a_read_only_sandbox_changes_nothing(make: Any) -> None:
    """With ``writable=False``, changes are refused as `PermissionError`."""
    async with opened(make, writable=False) as trial:
        expect(not trial.sandbox.writable, "it says that it is writable")
        attempts = (
            trial.sandbox.write("f", "x"),
            trial.sandbox.write("d/f", "x"),
            trial.sandbox.replace("f", "a", "b"),
        )
        await all_raise(attempts, ToolError, PermissionError, what="a change")
        expect(await trial.sandbox.list() == [], "a refused change left something")


@clause(CLAUSES, needs={"files", "write"})
async def writers_at_once_leave_one_whole_content(make: Any) -> None:
    """Many writes of one file at once leave the content of one of them."""
    contents = [f"{number:03}" * 20_000 for number in range(20)]
    async with opened(make) as trial:
        await asyncio.gather(*(trial.sandbox.write("f", content) for content in contents))
        expect(await trial.sandbox.read("f") in contents, "the file is a mixture")
        expect(await trial.sandbox.list() == ["f"], "something was left beside the file")


@clause(CLAUSES, needs={"files", "write"})
async def edits_at_once_are_not_lost(make: Any) -> None:
    """Each of many edits of one file at once is either in the file or has raised."""
    async with opened(make) as trial:
        await trial.sandbox.write("f", "".join(f"<{number}>" for number in range(30)))
        edits = (trial.sandbox.replace("f", f"<{number}>", f"[{number}]") for number in range(30))
        results = await asyncio.gather(*edits, return_exceptions=True)
        text = await trial.sandbox.read("f")
        for number, result in enumerate(results):
            done = f"[{number}]" in text
            expect(
                done is (result is None),
                f"edit {number} returned {result!r}, and {'is' if done else 'is not'} there",
            )
            expect(result is None or isinstance(result, ToolError), f"{result!r} is no ToolError")


@clause(CLAUSES, needs={"files", "write", "local_files"})
async def a_cancelled_caller_changes_nothing(make: Any) -> None:
    """A context that is cancelled, before or during a write, raises and leaves the old file and nothing beside it."""
    async with opened(make) as trial:
        await trial.sandbox.write("f", "old")
        for checks in (1, 2):
            await raises(
                trial.sandbox.write("f", "new", context=Caller(checks=checks)), RunCancelled, what="a write"
            )
            edit = trial.sandbox.replace("f", "old", "new", context=Caller(checks=checks))
            await raises(edit, RunCancelled, what="an edit")
            expect(await trial.sandbox.read("f") == "old", "a cancelled change was made")
        await raises(trial.sandbox.read("f", context=Caller(checks=1)), RunCancelled, what="a read")
        expect(await trial.sandbox.list() == ["f"], "something was left beside the file")


@clause(CLAUSES, needs={"files", "local_files"})
async def bytes_that_are_no_text_are_said_so(make: Any) -> None:
    """A file that is not UTF-8 is a `ToolError`, not replaced and not guessed."""
    async with opened(make) as trial:
        trial.root.joinpath("f").write_bytes(b"good \xff\xfe bad")
        await raises(trial.sandbox.read("f"), ToolError, ValueError, what="reading it")
        await raises(trial.sandbox.replace("f", "good", "x"), ToolError, what="editing it")
        expect(
            trial.root.joinpath("f").read_bytes() == b"good \xff\xfe bad", "a refused edit changed the file"
        )


@clause(CLAUSES, needs={"files", "local_files"})
async def errors_tell_no_host_path(make: Any) -> None:
    """An error names the path as it was given, and nothing of the host."""
    async with opened(make) as trial:
        trial.root.joinpath("out").symlink_to(trial.outside)
        trial.root.joinpath("dir").mkdir()
        for path in ("no", "dir", "out/secret", "dir/no", "../x", "/x", "workspace://no/x", "x" * 300):
            for operation in (trial.sandbox.read, trial.sandbox.list):
                error = await raises(operation(f"{path}/no"), ToolError, what=path)
                expect(str(trial.root.parent) not in str(error), f"{error} tells where the workspace is")
        for path in ("dir", "out/new", "../x", f"{trial.outside}/x", "workspace://no/x", "x" * 300):
            error = await raises(trial.sandbox.write(path, "x"), ToolError, what=path)
            said = str(error).replace(path, "")
            expect(str(trial.root.parent) not in said, f"{error} tells where the workspace is")


@clause(CLAUSES, needs={"files", "write", "local_files"})
async def links_out_of_the_workspace_are_refused(make: Any) -> None:
    """A link that leads out, straight or by detours, to a file or directory, gives access to nothing."""
    async with opened(make) as trial:
        root, outside = trial.root, trial.outside
        root.joinpath("dir").mkdir()
        links = {
            "absolute": str(outside / "secret"),
            "relative": "../outside/secret",
            "chain": "absolute",
            "dir/up": "../../outside/secret",
            "process": "/proc/self/cwd",
        }
        folders = {
            "folder": str(outside),
            "climb": "..",
            "dir/climb": "../..",
            "loop/a": "../loop/a",
            "rooted": "/",
        }
        root.joinpath("loop").mkdir()
        for name, target in (*links.items(), *folders.items()):
            root.joinpath(name).symlink_to(target)
        paths = [*links, *folders]
        for name in folders:
            paths += [f"{name}/secret", f"{name}/outside/secret", f"{name}/", f"{name}/."]
            if name != "rooted":
                paths.append(f"{name}/new")
        for path in paths:
            attempts = (
                trial.sandbox.read(path),
                trial.sandbox.list(path),
                trial.sandbox.write(path, "PLANTED"),
                trial.sandbox.replace(path, "SECRET", "PLANTED"),
            )
            await all_raise(attempts, ToolError, what=f"following {path}")
        expect(outside.joinpath("secret").read_text() == "SECRET", "a file outside was changed")
        expect(sorted(path.name for path in outside.iterdir()) == ["secret"], "a file was made outside")
        expect(not root.parent.joinpath("new").exists(), "a file was made above the root")


@clause(CLAUSES, needs={"files", "write", "local_files"})
async def links_that_stay_inside_work(make: Any) -> None:
    """Reading, listing and writing follow a link whose target is inside, and the link stays a link."""
    async with opened(make) as trial:
        await trial.sandbox.write("real/file", "text")
        trial.root.joinpath("link").symlink_to("real/file")
        trial.root.joinpath("folder").symlink_to("real")
        trial.root.joinpath("real/back").symlink_to("../folder/file")
        for path in ("link", "folder/file", "real/back", "folder/back"):
            expect(await trial.sandbox.read(path) == "text", f"{path} is not the file")
        expect(await trial.sandbox.list("folder") == ["back", "file"], "the linked directory lists otherwise")
        await trial.sandbox.write("link", "new")
        await trial.sandbox.replace("real/back", "new", "newer")
        await trial.sandbox.write("folder/more", "x")
        expect(trial.root.joinpath("real/file").read_text() == "newer", "the write did not reach the target")
        expect(trial.root.joinpath("link").is_symlink(), "the link became a file")
        expect(
            trial.root.joinpath("real/more").read_text() == "x", "the write did not go through the directory"
        )


@clause(CLAUSES, needs={"files", "write", "local_files"}, timeout=20)
async def special_files_are_refused_without_waiting(make: Any) -> None:
    """Pipes, sockets and devices are `PermissionError`, at once."""
    async with opened(make) as trial:
        os.mkfifo(trial.root / "pipe")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(trial.root / "socket"))
            names = ["pipe", "socket"]
            with contextlib.suppress(OSError):
                os.mknod(trial.root / "device", 0o20666, os.makedev(1, 5))  # like /dev/zero: without end
                names.append("device")
            for name in names:
                attempts = (
                    trial.sandbox.read(name),
                    trial.sandbox.write(name, "x"),
                    trial.sandbox.replace(name, "a", "b"),
                )
                await asyncio.wait_for(all_raise(attempts, ToolError, PermissionError, what=name), 5)
            expect(sorted(names) == await trial.sandbox.list(), "a special file was replaced")


@clause(CLAUSES, needs={"files", "write", "local_files"})
async def a_write_keeps_the_mode_and_is_never_in_place(make: Any) -> None:
    """The mode stays, whoever has the old file open keeps it whole, and another name of it keeps the old content."""
    async with opened(make) as trial:
        path = trial.root / "script"
        path.write_text("old")
        os.link(path, trial.outside / "other-name")
        for mode in (0o755, 0o600, 0o640):
            path.chmod(mode)
            with path.open() as before:
                await trial.sandbox.write("script", f"new {mode}")
                expect(
                    before.read() in {"old", "new 493", "new 384"}, "an open file changed under its reader"
                )
            expect(
                path.stat().st_mode & 0o777 == mode, f"mode {mode:o} became {path.stat().st_mode & 0o777:o}"
            )
        expect(
            trial.outside.joinpath("other-name").read_text() == "old",
            "the write went into a hard link outside",
        )
        await trial.sandbox.replace("script", "new", "newest")
        expect(path.stat().st_mode & 0o777 == 0o640, "an edit changed the mode")


@clause(CLAUSES, needs={"files", "write", "local_files"})
async def readers_see_the_old_or_the_new(make: Any) -> None:
    """A reader beside a writer sees one content or the other, whole."""
    contents = ("a" * 300_000, "b" * 300_000)
    async with opened(make) as trial:
        await trial.sandbox.write("f", contents[0])
        seen: set[str] = set()
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                seen.add((trial.root / "f").read_text())

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(60):
                await trial.sandbox.write("f", contents[number % 2])
        finally:
            stop.set()
            reader.join()
        expect(seen <= set(contents), "a half-written file was seen")


@clause(CLAUSES, needs={"files", "write", "local_files"})
async def swapped_directories_let_nothing_through(make: Any) -> None:
    """While a directory and a link to outside change places in a tight loop, nothing outside is read or written."""
    async with opened(make) as trial:
        trial.root.joinpath("dir").mkdir()
        trial.root.joinpath("dir/secret").write_text("mine")
        trial.root.joinpath("link").symlink_to(trial.outside)
        trial.outside.joinpath("only-outside").touch()
        stop = threading.Event()
        swapper = threading.Thread(target=_swap, args=(trial.root, stop))
        swapper.start()
        good = 0
        try:
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                with contextlib.suppress(ToolError):
                    text = await trial.sandbox.read("dir/secret")
                    expect(text != "SECRET", "a file outside was read")
                    good += 1
                with contextlib.suppress(ToolError):
                    await trial.sandbox.write("dir/planted", "x")
                with contextlib.suppress(ToolError):
                    expect(
                        "only-outside" not in await trial.sandbox.list("dir"),
                        "a directory outside was listed",
                    )
                expect(not trial.outside.joinpath("planted").exists(), "a file outside was written")
        finally:
            stop.set()
            swapper.join()
        expect(good > 0, "nothing could be read at all, so nothing was shown")


def _swap(root: Path, stop: threading.Event) -> None:
    """Exchange ``dir`` and ``link`` until told to stop, in one step where the system can."""
    swap = exchange()
    while not stop.is_set():
        swap(str(root / "dir"), str(root / "link"))


@clause(CLAUSES, needs={"files", "write", "local_files"})
async def another_directory_in_its_place_is_refused(make: Any) -> None:
    """When the workspace's directory was replaced since it was opened, nothing is read or written."""
    async with opened(make) as trial:
        await trial.sandbox.write("f", "first")
        moved = trial.root.with_name("moved")
        trial.root.rename(moved)
        trial.root.mkdir()
        trial.root.joinpath("f").write_text("second")
        attempts = (trial.sandbox.read("f"), trial.sandbox.write("f", "x"), trial.sandbox.list())
        await all_raise(attempts, ToolError, what="the new directory")
        expect(trial.root.joinpath("f").read_text() == "second", "the new directory was written")
        expect(moved.joinpath("f").read_text() == "first", "the old directory was written")


@clause(CLAUSES, needs={"files", "write", "named_paths"})
async def named_paths_are_reached_by_name(make: Any) -> None:
    """``workspace://name/…`` starts below the path of that name, and nowhere else."""
    async with opened(make, paths={"notes": "inside/notes"}) as trial:
        await trial.sandbox.write("workspace://notes/a/b", "text")
        expect(await trial.sandbox.read("inside/notes/a/b") == "text", "it is not below the path")
        expect(await trial.sandbox.list("workspace://notes") == ["a/"], "it lists otherwise")
        for path in (
            "workspace://notes/../x",
            "workspace://other/x",
            "workspace:///x",
            "workspace://notes//etc/passwd",
        ):
            await raises(trial.sandbox.read(path), ToolError, what=path)


@clause(CLAUSES, needs={"files", "write", "bytes"})
async def bytes_come_back_exactly(make: Any) -> None:
    """Any bytes can be written and read as bytes, within the same limits."""
    data = bytes(range(256)) * 4
    async with opened(make, limits=SandboxLimits(read_bytes=2000, write_bytes=2000)) as trial:
        await trial.sandbox.write_bytes("f", data)
        expect(await trial.sandbox.read_bytes("f") == data, "other bytes came back")
        await raises(
            trial.sandbox.write_bytes("f", b"x" * 2001), ToolError, ValueError, what="above the limit"
        )


@clause(CLAUSES, needs={"files", "write", "stat"})
async def stat_tells_kind_and_size(make: Any) -> None:
    """``stat`` tells files from directories, and a file's size."""
    async with opened(make) as trial:
        await trial.sandbox.write("dir/file", "12345")
        file, directory = await trial.sandbox.stat("dir/file"), await trial.sandbox.stat("dir")
        expect((file.kind, file.size) == ("file", 5), f"the file is {file}")
        expect(directory.kind == "directory", f"the directory is {directory}")
        expect(abs(file.modified - time.time()) < 3600, "it was not modified just now")
        await raises(trial.sandbox.stat("no"), ToolError, FileNotFoundError, what="what is missing")
        await raises(trial.sandbox.stat("../outside/secret"), ToolError, what="what is outside")


@clause(CLAUSES, needs={"files", "write", "scope"})
async def a_scope_only_narrows(make: Any) -> None:
    """A scope reaches its directory and nothing else, changes nothing when read-only, and owns nothing."""
    async with opened(make, limits=SandboxLimits(read_bytes=100)) as trial:
        sandbox = trial.sandbox
        await sandbox.write("sub/file", "inside")
        await sandbox.write("other", "beside")
        sub = sandbox.scope(path="sub")
        expect(
            await sub.read("file") == "inside" and await sub.list() == ["file"],
            "it does not show its directory",
        )
        for path in ("../other", "sub/file", "other"):
            await raises(sub.read(path), ToolError, what=f"{path} through the scope")
        await sub.write("new", "x")
        expect(await sandbox.read("sub/new") == "x", "it wrote elsewhere")
        fixed = sub.scope(read_only=True, limits=SandboxLimits(read_bytes=10_000))
        expect(not fixed.writable, "a read-only scope says it is writable")
        await raises(
            fixed.write("file", "x"), ToolError, PermissionError, what="a change in a read-only scope"
        )
        await raises(
            fixed.scope(read_only=False).write("file", "x"), ToolError, PermissionError, what="widening"
        )
        expect(fixed.limits.read_bytes == 100, "a scope raised a limit")
        async with fixed.scope():
            pass
        expect(await sandbox.read("other") == "beside", "closing a scope closed the sandbox")


@clause(CLAUSES, needs={"files", "write", "scope", "local_files"})
async def a_scope_is_not_widened_by_links(make: Any) -> None:
    """A link inside a scope that leads out of it is refused, even though it stays in the workspace; so is a linked scope."""
    async with opened(make) as trial:
        await trial.sandbox.write("sub/file", "inside")
        await trial.sandbox.write("other", "beside")
        trial.root.joinpath("sub/out").symlink_to("../other")
        trial.root.joinpath("linked").symlink_to(".")
        await raises(trial.sandbox.scope(path="sub").read("out"), ToolError, what="a link out of the scope")
        await raises(
            trial.sandbox.scope(path="linked").read("other"), ToolError, what="a scope that is a link"
        )
