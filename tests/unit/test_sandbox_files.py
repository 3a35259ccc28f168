"""Confinement of paths as a law, on every way of resolving them, and the corners of writing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littleghost import descriptors
from littleghost.errors import DeadlineExceeded, ToolError, ToolPermissionError, ToolValueError
from littleghost.sandboxes import files
from littleghost.sandboxes.contract import SandboxLimits
from littleghost.sandboxes.files import Files, Root
from littleghost.sandboxes.host import HostSandbox
from littleghost.workspace import Workspace

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and descriptors as on POSIX")

WAYS = ["kernel", "walk", "path"]


def set_way(patch: pytest.MonkeyPatch, way: str) -> None:
    if way == "walk":
        patch.setattr(descriptors, "openat2", lambda: None)
    elif way == "path":  # as on Windows: no descriptors of directories
        from contextlib import contextmanager

        @contextmanager
        def held(self):
            self.check()
            yield None

        patch.setattr("littleghost.workspace.Directory.held", held)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    set_way(monkeypatch, request.param)
    return request.param


NAMES = st.sampled_from(["a", "b", "c", "l", "secret"])
PARTS = st.lists(
    st.sampled_from(["a", "b", "c", "l", "secret", ".", "..", "", "root", "outside"]), min_size=1, max_size=5
)
TARGETS = st.one_of(
    PARTS.map("/".join).filter(bool),
    st.sampled_from(
        [
            "/",
            "/etc/hostname",
            "/proc/self/cwd",
            "ROOT/a",
            "OUTSIDE/secret",
            "..",
            "../outside",
            "../root/a",
            "l",
        ]
    ),
)
ENTRIES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join),
    st.one_of(st.just("file"), st.just("directory"), TARGETS.map(lambda target: ("link", target))),
    max_size=8,
)


def build(top: Path, entries: dict[str, object]) -> Path:
    root, outside = top / "root", top / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("SECRET")
    for path, kind in sorted(entries.items()):
        place = root / path
        try:
            if not f"{os.path.realpath(place.parent)}/".startswith(f"{root}/"):
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                place.write_text(f"content of {path}")
            elif kind == "directory":
                place.mkdir()
            else:
                target = kind[1].replace("ROOT", str(root)).replace("OUTSIDE", str(outside))
                place.symlink_to(target)
        except (OSError, ValueError):
            continue
    return root


@settings(max_examples=400)
@given(entries=ENTRIES, paths=st.lists(PARTS.map("/".join), min_size=1, max_size=6))
def test_nothing_outside_is_ever_reached(entries: dict[str, object], paths: list[str]) -> None:
    """What can be read is the file that the path really means, inside the root, and every way of resolving agrees."""
    with tempfile.TemporaryDirectory() as folder:
        root = build(Path(folder).resolve(), entries)
        workspace = Workspace(root)
        workspace._directories = workspace._hold()
        results: dict[str, list[object]] = {}
        for name in WAYS:
            with pytest.MonkeyPatch.context() as patch:
                set_way(patch, name)
                found = results[name] = []
                sandboxed = Files({None: Root(workspace, None, "read_write")}, SandboxLimits())
                for path in paths:
                    try:
                        text: object = sandboxed.read(path)
                    except ToolError:
                        text = None
                    else:
                        real = os.path.realpath(root / path)
                        assert real.startswith(f"{root}/")
                        assert text == Path(real).read_text() != "SECRET"
                    found.append(text)
                    try:
                        listing: object = sandboxed.list(path)
                    except ToolError:
                        listing = None
                    else:
                        real = os.path.realpath(root / path)
                        assert real == str(root) or real.startswith(f"{root}/")
                        assert [entry.rstrip("/") for entry in listing] == sorted(
                            os.listdir(real),
                            key=lambda e: (
                                e + "/" * (os.path.isdir(f"{real}/{e}") and not os.path.islink(f"{real}/{e}"))
                            ),
                        )
                    found.append(listing)
        assert results["kernel"] == results["walk"]
        for mine, theirs in zip(results["path"], results["kernel"], strict=True):
            assert mine in (None, theirs)  # there, links are refused
        for name in WAYS:
            with pytest.MonkeyPatch.context() as patch:
                set_way(patch, name)
                sandboxed = Files({None: Root(workspace, None, "read_write")}, SandboxLimits())
                for path in paths:
                    try:
                        sandboxed.write(path, "PLANTED")
                    except ToolError:
                        continue
                    real = os.path.realpath(root / path)
                    assert real.startswith(f"{root}/")
                    assert Path(real).read_text() == "PLANTED"
        for directory in workspace._directories.values():
            directory.close()
        assert sorted(os.listdir(Path(folder) / "outside")) == ["secret"]
        assert (Path(folder) / "outside/secret").read_text() == "SECRET"
        assert sorted(os.listdir(folder)) == ["outside", "root"]
        shutil.rmtree(root)


async def test_reading_writing_and_editing_on_every_way(tmp_path: Path, way: str) -> None:
    async with HostSandbox(tmp_path / "root", writable=True) as sandbox:
        await sandbox.write("a/b/c", "one two")
        await sandbox.replace("a/b/c", "two", "2")
        assert await sandbox.read("a/b/c") == "one 2"
        assert await sandbox.list("a") == ["b/"]
        assert (await sandbox.stat("a/b")).kind == "directory"
        with pytest.raises(FileNotFoundError):
            await sandbox.replace("new/x", "a", "b")
        assert await sandbox.list() == ["a/"]
        with pytest.raises(NotADirectoryError):
            await sandbox.list("a/b/c")
        with pytest.raises(IsADirectoryError):
            await sandbox.read("a/b")
        (tmp_path / "root/out").symlink_to("/etc")
        for path in ("out/hostname", "out"):
            with pytest.raises(PermissionError):
                await sandbox.read(path)
            with pytest.raises(PermissionError):
                await sandbox.write(path, "x")


@pytest.mark.parametrize("renames", [True, False])
async def test_trees_are_changed_and_searched_on_every_way(
    tmp_path: Path, way: str, renames: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not renames:  # as on macOS, and on file systems that do not know how not to replace
        monkeypatch.setattr(descriptors, "_renameat2", lambda: lambda *_: False)
    root = tmp_path / "root"
    async with HostSandbox(root, writable=True) as sandbox:
        await sandbox.write("a/b/c", "one\ntwo\nthree")
        assert await sandbox.read("a/b/c", offset=1, limit=1) == "two\n"
        await sandbox.make_directory("a/d")
        await sandbox.make_directory("a/d")
        for path, target in (("a/b/c", "x/y"), ("a/b", "moved"), ("x/y", "moved/c")):
            await sandbox.move(path, target)
        assert await sandbox.read("moved/c") == "one\ntwo\nthree"
        await sandbox.write("f", "f")
        for path, target in (("f", "moved"), ("f", "moved/c"), ("moved", "a/d"), ("moved", "f")):
            with pytest.raises(FileExistsError):
                await sandbox.move(path, target)
        for path, target in (
            ("moved", "moved/in"),
            ("moved", "moved/in/it"),
            ("no", "new/x"),
            ("f", "moved/c/x"),
        ):
            with pytest.raises(ToolError):
                await sandbox.move(path, target)
        assert await sandbox.glob("**") == ["a/", "a/d/", "f", "moved/", "moved/c", "x/"]
        found = await sandbox.grep("^t")
        assert [(one.path, one.line) for one in found] == [("moved/c", 2), ("moved/c", 3)]
        (root / "out").symlink_to(tmp_path)
        (root / "link").symlink_to("moved")
        for attempt in (
            sandbox.delete("out/root"), sandbox.move("f", "out/f"), sandbox.make_directory("out/d"), sandbox.glob("*", path="out"),
            sandbox.grep("x", path="out"), sandbox.delete("moved"), sandbox.delete("link/"),
        ):  # fmt: skip
            with pytest.raises(ToolError):
                await attempt
        if way != "path":  # there, links are refused
            await sandbox.move("link", "renamed")
            assert os.readlink(root / "renamed") == "moved"
            await sandbox.delete("renamed")
        for path in ("moved/c", "moved", "a/d", "f"):
            await sandbox.delete(path)
        assert await sandbox.list("a") == []
        with pytest.raises(PermissionError):
            await sandbox.write(".git/config", "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]


def test_the_kernel_is_asked_on_linux() -> None:
    assert descriptors.resolves_in_kernel() is (sys.platform == "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="openat2")
def test_a_resolution_that_raced_is_tried_again(tmp_path: Path) -> None:
    kernel = descriptors._Kernel()
    fd = os.open(tmp_path, os.O_RDONLY)
    real, attempts = kernel._syscall, []

    def flaky(*arguments):
        attempts.append(1)
        if len(attempts) < 4:
            kernel._ctypes.set_errno(errno.EAGAIN)
            return -1
        return real(*arguments)

    kernel._syscall = flaky
    try:
        os.close(kernel.open(fd, b".", os.O_RDONLY))
        assert len(attempts) == 4
        kernel._syscall = lambda *_: (kernel._ctypes.set_errno(errno.EAGAIN), -1)[1]
        with pytest.raises(OSError, match="keep changing"):
            kernel.open(fd, b".", os.O_RDONLY)
    finally:
        os.close(fd)


@pytest.fixture
async def sandbox(tmp_path: Path):
    async with HostSandbox(tmp_path / "root", writable=True) as opened:
        yield opened


async def test_a_file_that_changes_during_an_edit_stays_as_it_is_then(sandbox, tmp_path: Path) -> None:
    """Another program writes between reading and renaming: in place, and by renaming."""
    path = tmp_path / "root/f"
    for change in (lambda: path.write_text("theirs"), lambda: os.replace(other(tmp_path), path)):
        path.write_text("mine old")
        calls: list[int] = []

        def proceed(change=change, calls=calls) -> None:
            calls.append(1)
            change()

        with pytest.raises(ToolError, match="changed while"):
            sandbox.view.files.replace("f", "old", "new", proceed)
        assert calls == [1]
        assert path.read_text() == "theirs"
        assert os.listdir(tmp_path / "root") == ["f"]


def other(tmp_path: Path) -> Path:
    (tmp_path / "other").write_text("theirs")
    return tmp_path / "other"


async def test_whatever_fails_leaves_the_old_file_and_no_other(sandbox, tmp_path: Path, monkeypatch) -> None:
    await sandbox.write("f", "old")
    real = {name: getattr(os, name) for name in ("write", "fchmod", "replace")}
    for name, function in real.items():

        def fail(*_, **__):
            raise OSError(errno.ENOSPC, "full")

        monkeypatch.setattr(files.os, name, fail)
        with pytest.raises(ToolError, match="no space left"):
            await sandbox.write("f", "new")
        monkeypatch.setattr(files.os, name, function)
        assert os.listdir(tmp_path / "root") == ["f"]
        assert await sandbox.read("f") == "old"


async def test_a_deadline_in_a_write_is_no_tool_error(sandbox) -> None:
    """`DeadlineExceeded` is an OSError too, and must not be taken for the file system's."""

    class Late:
        def __init__(self) -> None:
            self.asked = 0

        def check(self) -> None:
            self.asked += 1
            if self.asked > 1:
                raise DeadlineExceeded("late")

    with pytest.raises(DeadlineExceeded):
        await sandbox.write("f", "x", context=Late())
    assert await sandbox.list() == []


async def test_a_cancelled_write_is_withdrawn_before_the_cancellation_goes_on(sandbox, monkeypatch) -> None:
    await sandbox.write("f", "old")
    entered, release = threading.Event(), threading.Event()
    real = files.os.write

    def slow(fd, data):
        entered.set()
        release.wait(5)
        return real(fd, data)

    monkeypatch.setattr(files.os, "write", slow)
    task = asyncio.ensure_future(sandbox.write("f", "new"))
    while not entered.is_set():
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    monkeypatch.undo()
    assert await sandbox.read("f") == "old"
    assert await sandbox.list() == ["f"]


async def test_what_is_no_path_text_or_number_is_a_tool_error(sandbox) -> None:
    for attempt in (
        lambda: sandbox.read(None),
        lambda: sandbox.read(5),
        lambda: sandbox.list(None),
        lambda: sandbox.write_bytes("f", "text"),
        lambda: sandbox.write("f", b"bytes"),
        lambda: sandbox.execute("true", timeout="5"),
        lambda: sandbox.execute("true", timeout=5, max_output_bytes="5"),
        lambda: sandbox.execute("true", timeout=5, input="\ud800"),
        lambda: sandbox.execute("true", timeout=5, input=5),
        lambda: sandbox.execute("true", timeout=5, cwd=5),
        lambda: sandbox.execute("true", timeout=5, environment=["A"]),
        lambda: sandbox.execute(None, timeout=5),
        lambda: sandbox.execute_program(None, timeout=5),
        lambda: sandbox.execute_program(5, timeout=5),
    ):
        with pytest.raises(ToolValueError):
            await attempt()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
async def test_too_few_descriptors_are_a_tool_error_and_leak_none(sandbox) -> None:
    assert (await sandbox.execute("true", timeout=10)).success
    import resource

    before = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    taken: list[int] = []
    said: list[str] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(9):
            os.close(taken.pop())
            try:
                await sandbox.execute("true", timeout=10)
            except ToolError as error:
                said.append(str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    assert said
    assert all("Too many open files" in text for text in said)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert (await sandbox.execute("true", timeout=10)).success


async def test_a_failed_write_leaves_no_directory_it_made(way: str, tmp_path: Path) -> None:
    async with HostSandbox(tmp_path, writable=True) as sandbox:
        await sandbox.write("kept/x", "x")
        with pytest.raises(ToolError):
            await sandbox.write("kept/new/deep/" + "n" * 300, "x")
        with pytest.raises(ToolError):
            await sandbox.write("kept/x/new/f", "x")
        assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["kept", "x"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
async def test_owner_stays_and_setuid_and_setgid_go(sandbox, tmp_path: Path) -> None:
    path = tmp_path / "root/f"
    path.write_text("old")
    os.chown(path, 65534, 65534)
    path.chmod(0o6755)
    await sandbox.write("f", "new")
    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (65534, 65534, 0o755)


async def test_a_new_file_has_the_mode_of_the_umask(sandbox, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        await sandbox.write("f", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "root/f").stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everything")
async def test_a_read_only_file_is_not_replaced(sandbox, tmp_path: Path) -> None:
    (tmp_path / "root/f").touch(0o444)
    with pytest.raises(ToolPermissionError):
        await sandbox.write("f", "x")


async def test_a_file_that_grows_while_it_is_read_is_still_bounded(tmp_path: Path, monkeypatch) -> None:
    async with HostSandbox(tmp_path, limits=SandboxLimits(read_bytes=100)) as sandbox:
        (tmp_path / "f").write_text("x" * 50)
        real = files.os.read

        def growing(fd, size):
            with (tmp_path / "f").open("a") as file:
                file.write("y" * 80)
            return real(fd, size)

        monkeypatch.setattr(files.os, "read", growing)
        with pytest.raises(ToolError, match="larger than the 100 bytes"):
            await sandbox.read("f")


async def test_names_that_are_no_unicode_are_listed_as_text(sandbox, tmp_path: Path) -> None:
    try:
        os.close(os.open(os.fsencode(tmp_path / "root") + b"/bad\xff", os.O_CREAT | os.O_WRONLY))
    except OSError:
        pytest.skip("this file system has Unicode names only")
    assert await sandbox.list() == ["bad\ufffd"]
    with pytest.raises(ToolError):
        await sandbox.read("bad\udcff")


async def test_the_event_loop_goes_on_during_slow_reads(sandbox, monkeypatch) -> None:
    await sandbox.write("f", "x")
    real = files.os.read

    began, go_on = threading.Event(), threading.Event()

    def slow(fd, size):
        began.set()
        assert go_on.wait(60)
        return real(fd, size)

    monkeypatch.setattr(files.os, "read", slow)
    task = asyncio.ensure_future(sandbox.read("f"))
    while not began.is_set():
        await asyncio.sleep(0.001)
    go_on.set()
    assert await task == "x"


async def test_descriptors_do_not_leak(sandbox, tmp_path: Path) -> None:
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("no /proc")
    (tmp_path / "root/link").symlink_to("d/f")
    (tmp_path / "root/out").symlink_to("/etc")

    async def everything() -> None:
        await sandbox.write("d/f", "x")
        await sandbox.write("link", "y")
        await sandbox.replace("link", "y", "z")
        await sandbox.list("d")
        for path in ("out/x", "d", "no", "d/f/x"):
            for attempt in (
                sandbox.read(path),
                sandbox.write(path + "/new/x" if path == "d/f" else path, "x"),
            ):
                try:
                    await attempt
                except ToolError:
                    pass

    await everything()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await everything()
    assert len(os.listdir("/proc/self/fd")) <= before
