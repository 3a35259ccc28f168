"""Patterns as a law, the process that matches, and what a search leaves behind: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fnmatch
import io
import os
import re
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from littleghost.errors import ToolError, ToolPermissionError, ToolValueError
from littleghost.sandboxes import matcher, searching
from littleghost.sandboxes.contract import Found, Match, SandboxLimits
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.patterns import PathPattern
from littleghost.testing.sandbox_search import ENDLESS

PARTS = st.sampled_from(["**", "**", "a", "b", ".a", "ab", "*", "a*", "?", "[ab]", "[!a]", "**", ".*", "*b*"])
PATHS = st.lists(st.sampled_from(["a", "b", ".a", "ab", "abb", ".", "*"]), min_size=1, max_size=5)


def meant(parts: list[str], names: list[str], *, hidden: bool) -> bool:
    """What a pattern means, said in the simplest way."""
    if not parts:
        return not names
    part, *rest = parts
    if part == "**":
        if meant(rest, names, hidden=hidden) and (rest or not names):
            return True
        return bool(names) and (hidden or names[0][0] != ".") and meant(parts, names[1:], hidden=hidden)
    if not names:
        return False
    dotted = names[0].startswith(".") and not part.startswith(".") and not hidden
    return not dotted and fnmatch.fnmatchcase(names[0], part) and meant(rest, names[1:], hidden=hidden)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PARTS, min_size=1, max_size=5), PATHS, st.booleans())
def test_a_pattern_matches_what_it_means(parts: list[str], names: list[str], hidden: bool) -> None:
    pattern = PathPattern("/".join(parts), hidden=hidden)
    prefix = list(pattern.prefix)
    found = False
    if names[: len(prefix)] == prefix and len(names) > len(prefix):
        state = pattern.start
        for name in names[len(prefix) :]:
            found, state = pattern.step(state, name, is_directory=True)
    expected = [*parts, "*"] if parts[-1] == "**" else parts
    assert found == meant(expected, names, hidden=hidden)


@given(st.lists(st.sampled_from(["a", "b", "{", "}", ",", "/"]), max_size=12).map("".join))
def test_braces_never_break(text: str) -> None:
    with contextlib.suppress(ToolError):
        PathPattern(text)


def test_alternatives() -> None:
    for text, wanted in (
        ("{a,b}", "a b"), ("{a,b}{c,d}", "ac ad bc bd"), ("x{,y}", "x xy"), ("{a,{b,c}d}", "a bd cd"), ("{a}", "{a}"), ("{a,b", "{a,b"),
        ("a,b}", "a,b}"), ("{}", "{}"), ("{{a,b}}", "{a} {b}"),
    ):  # fmt: skip
        names = [
            name
            for name in [
                "a",
                "b",
                "ac",
                "ad",
                "bc",
                "bd",
                "x",
                "xy",
                "cd",
                "{a}",
                "{a,b",
                "a,b}",
                "{}",
                "{b}",
            ]
            if PathPattern(text).step(PathPattern(text).start, name, is_directory=False)[0]
        ]
        assert set(names) == set(wanted.split()), text


@pytest.mark.timeout(20)
def test_no_pattern_takes_long() -> None:
    """Each of these takes for ever where a wildcard is tried at every place, combined with all others."""
    for text in (
        "*a" * 400 + "b",
        "?*" * 400 + "b",
        "[a*]*" * 150 + "b",
        "**/" * 300 + "b",
        "{a,}" * 6 + "b",
    ):
        pattern = PathPattern(text)
        state = pattern.start
        for _ in range(20):
            assert not pattern.step(state, "a" * 255, is_directory=True)[0]
            state = pattern.step(state, "a" * 255, is_directory=True)[1] or pattern.start
    with pytest.raises(ToolValueError, match="more than 100 alternatives"):
        PathPattern("{a,b}" * 200)


def asked(
    pattern: str, *frames: tuple[bytes, int, bytes], most: int = 100, room: int = 10_000
) -> tuple[bytes, list]:
    """Run the matching program here, and return its last answer's kind and what it found."""
    given_ = io.BytesIO()
    for kind, number, data in ((b"P", most, pattern.encode()), (b"B", room, b""), *frames, (b"F", 0, b"")):
        given_.write(matcher.FRAME.pack(kind, number, len(data)) + data)
    given_.seek(0)
    answers = io.BytesIO()
    matcher.serve(given_, answers)
    answers.seek(0)
    assert answers.read(1) == b"K"
    kind, count = struct.unpack("<cI", answers.read(5))
    found = []
    for _ in range(count):
        number, line, length = matcher.FOUND.unpack(answers.read(matcher.FOUND.size))
        found.append((number, line, answers.read(length).decode()))
    assert answers.read() == b""
    return kind, found


TEXT = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", "ü".encode(), b"\xff", b"ab"]), max_size=30).map(
    b"".join
)


@given(TEXT, st.lists(st.integers(0, 40), max_size=4))
def test_lines_are_the_same_however_the_bytes_arrive(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    frames = [(b"D", 7, data[start:end]) for start, end in pairwise(edges)]
    _, found = asked("a|^b$|^$", *frames, (b"L", 7, b""))
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    wanted = [
        (7, number, line)
        for number, line in enumerate(
            (line.decode("utf-8", "replace").removesuffix("\r") for line in lines), 1
        )
        if re.search("a|^b$|^$", line)
    ]
    assert found == wanted


def test_results_of_the_program_are_bounded() -> None:
    many = (b"D", 0, b"x\n" * 50), (b"L", 0, b"")
    assert asked("x", *many, most=50) == (b"R", [(0, number, "x") for number in range(1, 51)])
    assert asked("x", *many, most=49) == (b"X", [(0, number, "x") for number in range(1, 50)])
    assert asked("x", *many, room=10) == (b"X", [(0, number, "x") for number in range(1, 11)])
    assert asked("x", *many, most=0) == (b"X", [])
    kind, [(_, _, text)] = asked(
        "needle", (b"D", 0, b"y" * 30_000 + b"needle" + b"y" * 30_000), (b"L", 0, b"")
    )
    assert kind == b"R"
    assert len(text) == 502
    assert text.index("needle") in range(200, 300)
    assert text[0] == text[-1] == "…"


def test_a_line_longer_than_a_piece_counts_as_one() -> None:
    long = b"x" * 200_000 + b"needle" + b"x" * 200_000
    frames = [(b"D", 0, long[at : at + 70_000]) for at in range(0, len(long), 70_000)]
    _, found = asked("needle|x", *frames, (b"D", 0, b"\nneedle\n"), (b"L", 0, b""))
    assert [line for _, line, _ in found] == [1, 2]


@pytest.fixture
async def sandbox(tmp_path: Path):
    async with HostSandbox(tmp_path / "root", writable=True) as opened:
        yield opened


def matching() -> list[int]:
    """The processes of this one that match."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                if (
                    fields[0] != "Z"
                    and int(fields[1]) == os.getpid()
                    and b"regular expressions are matched" in command
                ):
                    found.append(int(name))
    return found


async def until_one_matches() -> int:
    end = time.monotonic() + 20
    while not (found := matching()):
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    return found[0]


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@LINUX
async def test_closing_the_sandbox_ends_its_searches(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!")
    sandbox = await HostSandbox(tmp_path, limits=SandboxLimits(search_seconds=600)).open()
    task = asyncio.ensure_future(sandbox.grep(ENDLESS))
    await until_one_matches()
    await sandbox.close()
    with pytest.raises(ToolError, match="the search was ended"):
        await task
    assert matching() == []


@LINUX
async def test_a_search_whose_process_is_killed_is_an_error_and_no_empty_result(sandbox) -> None:
    await sandbox.write("f", "a" * 60 + "!")
    task = asyncio.ensure_future(sandbox.grep(ENDLESS))
    os.kill(await until_one_matches(), signal.SIGKILL)
    with pytest.raises(ToolError, match="its process was killed"):
        await task


@LINUX
async def test_a_stopped_process_delays_nobody_beyond_the_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!")
    async with HostSandbox(tmp_path, limits=SandboxLimits(search_seconds=1.5)) as sandbox:
        task = asyncio.ensure_future(sandbox.grep(ENDLESS))
        os.kill(await until_one_matches(), signal.SIGSTOP)
        assert (await task).truncated
    assert matching() == []


@LINUX
def test_the_process_ends_when_the_application_is_killed(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a" * 60 + "!")
    program = textwrap.dedent("""
        import asyncio, sys
        from littleghost import HostSandbox, SandboxLimits
        async def main():
            async with HostSandbox(sys.argv[1], limits=SandboxLimits(search_seconds=600)) as sandbox:
                print("open", flush=True)
                await sandbox.grep(sys.argv[2])
        asyncio.run(main())
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), ENDLESS], stdout=subprocess.PIPE, text=True
    ) as application:
        assert application.stdout.readline() == "open\n"
        end = time.monotonic() + 20
        children: list[int] = []
        while not children:
            assert time.monotonic() < end
            text = " ".join(
                path.read_text() for path in Path(f"/proc/{application.pid}/task").glob("*/children")
            )
            children = [pid for pid in map(int, text.split()) if is_at_it(pid)]
            time.sleep(0.01)
        application.kill()
    while any(b"regular expressions" in cmdline(pid) for pid in children):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="alarms")
def test_the_process_ends_by_itself_in_time() -> None:
    """However busy it is, and though the application lives and holds everything open."""
    arguments = [sys.executable, "-I", "-S", "-c", searching._PROGRAM, "0.5"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        for kind, data in ((b"P", ENDLESS.encode()), (b"L", b"a" * 60 + b"!")):
            process.stdin.write(matcher.FRAME.pack(kind, 1, len(data)) + data)
        process.stdin.flush()
        assert process.wait(timeout=20) == -signal.SIGALRM


def is_at_it(pid: int) -> bool:
    """Whether a process matches, and has been busy for longer than it takes to start."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11])  # in the user's mode
        return b"regular expressions" in cmdline(pid) and ticks > 0.3 * os.sysconf("SC_CLK_TCK")
    return False


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


async def test_the_pattern_and_the_environment_stay_out_of_the_process_list(sandbox, monkeypatch) -> None:
    seen = []
    real = subprocess.Popen

    def popen(arguments, **options):
        seen.append((arguments, options["env"]))
        return real(arguments, **options)

    monkeypatch.setenv("TOKEN", "hush")
    monkeypatch.setattr(searching.subprocess, "Popen", popen)
    await sandbox.write("f", "x")
    await sandbox.grep("hushed")
    assert "hush" not in repr(seen)


async def test_too_few_descriptors_are_an_error_and_not_a_shorter_result(sandbox, monkeypatch) -> None:
    await sandbox.write("a/f", "x")
    real = searching.scan

    def scan(top, components, *, links=True) -> Iterator:
        if components:
            raise OSError(errno.EMFILE, "too many")
        yield from real(top, components, links=links)

    monkeypatch.setattr(searching, "scan", scan)
    with pytest.raises(ToolError, match="Too many open files"):
        await sandbox.glob("**")
    with pytest.raises(ToolError, match="Too many open files"):
        await sandbox.grep("x")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="nothing is denied to root")
async def test_what_denies_access_is_counted(sandbox, tmp_path: Path) -> None:
    await sandbox.write("a/f", "x")
    await sandbox.write("g", "x")
    (tmp_path / "root/a").chmod(0)
    (tmp_path / "root/g").chmod(0)
    try:
        found = await sandbox.grep("x")
        assert (found, found.skipped, found.truncated) == ([], 2, None)
    finally:
        (tmp_path / "root/a").chmod(0o700)


async def test_a_directory_without_end_is_stopped_and_said(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"f{number}").touch()
    async with HostSandbox(tmp_path, limits=SandboxLimits(search_entries=100)) as sandbox:
        found = await sandbox.glob("**")
        assert found.truncated == "stopped after 100 entries of directories"
        assert len(found) == 100
        assert found == sorted(found)
    async with HostSandbox(tmp_path, limits=SandboxLimits(search_seconds=1e-9)) as sandbox:
        assert (await sandbox.glob("**")).truncated == "stopped after 1e-09 s"
        assert (await sandbox.grep("x")).truncated


async def test_hard_links_are_refused_where_that_was_asked_for(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("old secret")
    os.link(tmp_path / "secret", root / "f")
    (root / "plain").write_text("old secret")
    async with HostSandbox(root, writable=True) as sandbox:
        assert await sandbox.read("f") == "old secret"
        assert len(await sandbox.grep("secret")) == 2
    async with HostSandbox(root, writable=True, policy={"hard_links": "refuse"}) as sandbox:
        for scope in (sandbox, sandbox.scope(path=".")):
            for attempt in (
                scope.read("f"), scope.read("f", offset=0, limit=1), scope.read_bytes("f"), scope.replace("f", "old", "new"),
                scope.grep("secret", path="f"),
            ):  # fmt: skip
                with pytest.raises(ToolPermissionError, match="another name"):
                    await attempt
            found = await scope.grep("secret")
            assert [(one.path, found.skipped) for one in found] == [("plain", 1)]
        assert "file methods read no file that has more than one name" in sandbox.effective_policy.enforced
        await sandbox.write("f", "new")  # which has one name
        assert await sandbox.read("f") == "new"
    assert (tmp_path / "secret").read_text() == "old secret"


@pytest.mark.parametrize(
    "name",
    [
        ".git",
        ".GIT",
        ".Git",
        ".git.",
        ".git ",
        ".git::$INDEX_ALLOCATION",
        "GIT~1",
        ".g\u200cit",
        "\ufeff.git",
    ],
)
async def test_every_spelling_of_git_is_protected(sandbox, name: str) -> None:
    await sandbox.write("f", "x")
    for attempt in (
        sandbox.write(f"{name}/config", "x"), sandbox.write(name, "x"), sandbox.move("f", name), sandbox.make_directory(f"a/{name}"),
    ):  # fmt: skip
        with pytest.raises(ToolPermissionError):
            await attempt
    assert await sandbox.glob("**", hidden=True) == ["f"]


async def test_git_is_open_to_changes_where_that_was_asked_for(tmp_path: Path) -> None:
    async with HostSandbox(tmp_path, writable=True, policy={"git": "read_write"}) as sandbox:
        assert "git_read_only" not in sandbox.capabilities
        scope = sandbox.scope(path=".")
        await scope.write(".git/config", "x")
        await scope.move(".git/config", ".git/other")
        await scope.delete(".git/other")
        assert not any(".git" in line for line in sandbox.effective_policy.enforced)
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        assert any(".git" in line for line in sandbox.effective_policy.enforced)


async def test_named_paths_are_found_by_name(tmp_path: Path) -> None:
    from littleghost.workspace import Workspace

    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.md").write_text("needle")
    workspace = Workspace(tmp_path / "root", {"data": tmp_path / "data"})
    async with HostSandbox(workspace, writable=True, policy={"paths": {"data": "read_write"}}) as sandbox:
        assert await sandbox.glob("*", path="workspace://data") == ["workspace://data/x.md"]
        [found] = await sandbox.grep("needle", path="workspace://data")
        assert await sandbox.read(found.path) == "needle"
        [found] = await sandbox.grep("needle", path="workspace://data/x.md")
        assert found.path == "workspace://data/x.md"
        await sandbox.move("workspace://data/x.md", "here/y.md")
        assert await sandbox.read("here/y.md") == "needle"
        assert await sandbox.glob("**") == ["here/", "here/y.md"]
        with pytest.raises(ToolValueError, match="as the path"):
            await sandbox.glob("workspace://data/*")
    async with HostSandbox(workspace, writable=True) as sandbox:
        for attempt in (
            sandbox.move("here/y.md", "workspace://data/y"),
            sandbox.move("workspace://data/x", "z"),
            sandbox.make_directory("workspace://data/d"),
            sandbox.delete("workspace://data/x"),
        ):
            with pytest.raises(ToolPermissionError):
                await attempt


def test_what_is_found_is_a_list_that_says_whether_it_is_all() -> None:
    found = Found(["a"], truncated="these are the first 1", skipped=2)
    assert found == ["a"]
    assert (found.truncated, found.skipped) == ("these are the first 1", 2)
    assert (Found().truncated, Found().skipped) == (None, 0)
    assert str(Match(path="a:b", line=3, text="x")) == "a:b:3: x"


@LINUX
async def test_searches_and_changes_leak_no_descriptors(sandbox, tmp_path: Path) -> None:
    await sandbox.write("dir/sub/f", "x\n" * 100)
    (tmp_path / "root/out").symlink_to("/etc")

    async def everything() -> None:
        await sandbox.make_directory("new/deep")
        await sandbox.move("new/deep", "other/deep")
        for path in ("other/deep", "other", "new"):
            await sandbox.delete(path)
        await sandbox.glob("**", limit=1)
        await sandbox.grep("x", limit=1)
        await sandbox.read("dir/sub/f", offset=2, limit=2)
        for attempt in (
            sandbox.delete("out/x"), sandbox.move("dir", "dir/in/it"), sandbox.move("dir", "out/x"), sandbox.make_directory("out/x/y"),
            sandbox.glob("*", path="out"), sandbox.grep("(", path="dir"), sandbox.grep("x", path="out"), sandbox.read("dir", offset=1),
            sandbox.write(".git/x", "x"),
        ):  # fmt: skip
            with pytest.raises(ToolError):
                await attempt

    await everything()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        await everything()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert await sandbox.glob("**") == ["dir/", "dir/sub/", "dir/sub/f", "out"]
