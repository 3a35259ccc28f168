from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
import threading
from pathlib import Path

import pytest

from littleghost import descriptors
from littleghost.errors import (
    CleanupError,
    ConfigurationError,
    ToolError,
    ToolFileNotFoundError,
    ToolPermissionError,
    ToolValueError,
)
from littleghost.workspace import Workspace, parse_path, shown


async def test_the_root_is_created_with_its_parents(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "a" / "b")
    assert not workspace.is_open
    assert not (tmp_path / "a").exists()
    async with workspace as opened:
        assert opened is workspace
        assert workspace.is_open
        assert workspace.root.is_dir()
    assert not workspace.is_open
    assert workspace.root.is_dir()


async def test_opening_and_closing_twice(tmp_path: Path) -> None:
    calls: list[str] = []
    workspace = Workspace(
        tmp_path, setup=lambda _: calls.append("setup"), teardown=lambda _: calls.append("teardown")
    )
    await asyncio.gather(workspace.open(), workspace.open())
    await workspace.open()
    await asyncio.gather(workspace.close(), workspace.close())
    await workspace.close()
    assert calls == ["setup", "teardown"]
    async with workspace:  # and again
        pass
    assert calls == ["setup", "teardown"] * 2


async def test_a_relative_path_is_below_the_root_and_created_and_an_absolute_one_must_exist(
    tmp_path: Path,
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    async with Workspace(tmp_path / "root", {"notes": "in/notes", "data": there}) as workspace:
        assert workspace.paths == {"notes": tmp_path / "root/in/notes", "data": there}
        assert workspace.paths["notes"].is_dir()
        assert workspace.directory("data").path == there
    missing = Workspace(tmp_path / "root", {"data": tmp_path / "missing"})
    with pytest.raises(ConfigurationError, match="missing"):
        await missing.open()
    assert not missing.is_open


@pytest.mark.parametrize("name", ["", "A", "a/b", "-a", "a.b", "ü", "a\n", "_a"])
def test_names_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError):
        Workspace(tmp_path, {name: "x"})


async def test_a_relative_path_cannot_leave_the_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="leaves the root"):
        Workspace(tmp_path / "root", {"up": "../x"})
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="link"):
        await Workspace(tmp_path / "root", {"up": "link/x"}).open()


async def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="not a directory"):
        await Workspace(tmp_path / "file").open()


async def test_a_failing_setup_closes_what_was_opened(tmp_path: Path) -> None:
    seen: list[bool] = []

    async def setup(workspace: Workspace) -> None:
        seen.append(workspace.is_open)
        raise LookupError("no")

    workspace = Workspace(tmp_path, setup=setup, teardown=lambda _: seen.append(True))
    with pytest.raises(LookupError):
        await workspace.open()
    assert seen == [True]
    assert not workspace.is_open


async def test_a_failing_teardown_is_a_cleanup_error_after_all_is_closed(tmp_path: Path) -> None:
    async def teardown(_: Workspace) -> None:
        raise LookupError("no")

    workspace = await Workspace(tmp_path, teardown=teardown).open()
    with pytest.raises(CleanupError) as caught:
        await workspace.close()
    assert isinstance(caught.value.__cause__, LookupError)
    assert not workspace.is_open
    await workspace.close()


async def test_a_temporary_workspace_goes_with_its_content() -> None:
    async with Workspace.temporary({"notes": "notes"}) as workspace:
        (workspace.paths["notes"] / "x").touch()
        assert workspace.root.stat().st_mode & 0o77 == 0 or sys.platform == "win32"
    assert not workspace.root.exists()

    def setup(_: Workspace) -> None:
        raise LookupError

    failing = Workspace.temporary(setup=setup)
    with pytest.raises(LookupError):
        await failing.open()
    assert not failing.root.exists()


def with_links(root: Path, outside: Path) -> None:
    outside.mkdir()
    (root / "real/inner").mkdir(parents=True)
    (root / "a").symlink_to(outside)
    (root / "up").symlink_to("../outside")
    (root / "here").symlink_to("real")
    (root / "loop").symlink_to("loop")


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize("path", ["a/b/c", "a", "up/b", "up", "loop/x"])
@pytest.mark.parametrize("kernel", [True, False])
async def test_a_planted_link_makes_and_opens_nothing_outside(
    tmp_path: Path, path: str, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel:
        monkeypatch.setattr(descriptors, "openat2", lambda: None)
    with_links(tmp_path / "root", tmp_path / "outside")
    with pytest.raises(ConfigurationError, match="leads out of the root through a link"):
        await Workspace(tmp_path / "root", {"n": path}).open()
    assert list((tmp_path / "outside").iterdir()) == []
    async with Workspace(tmp_path / "root", {"n": "here/new/deep", "m": "here/inner"}):
        assert (tmp_path / "root/real/new/deep").is_dir()


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2")
async def test_a_directory_swapped_for_a_link_is_never_the_one_opened(tmp_path: Path) -> None:
    with_links(tmp_path / "root", tmp_path / "outside")
    (tmp_path / "outside/inner").mkdir()
    identity = ((tmp_path / "outside/inner").stat().st_dev, (tmp_path / "outside/inner").stat().st_ino)
    real, link = (os.fsencode(tmp_path / "root" / name) for name in ("real", "a"))
    rename = ctypes.CDLL(None).renameat2
    going = threading.Event()

    def swap() -> None:
        while not going.is_set():
            rename(-100, real, -100, link, 2)

    thread = threading.Thread(target=swap)
    thread.start()
    opened = 0
    try:
        for _ in range(300):
            with contextlib.suppress(ConfigurationError):
                async with Workspace(tmp_path / "root", {"n": "real/inner"}) as workspace:
                    opened += 1
                    assert workspace.directory("n").identity != identity
                    with contextlib.suppress(ToolError), workspace.directory("n").held() as fd:
                        assert (os.fstat(fd).st_dev, os.fstat(fd).st_ino) != identity
    finally:
        going.set()
        thread.join()
    assert opened


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
async def test_a_temporary_workspace_is_deleted_however_deep_and_locked_it_is(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    workspace = await Workspace.temporary().open()
    fd = os.open(workspace.root, os.O_RDONLY)
    os.symlink(tmp_path, "link", dir_fd=fd)
    for depth in range(1500):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.symlink(tmp_path, "link", dir_fd=inner)
        if depth % 100 == 0:
            os.mkdir("beside", dir_fd=inner)
            os.fchmod(fd, 0)
        os.close(fd)
        fd = inner
    os.close(fd)
    await workspace.close()
    assert not os.path.lexists(workspace.root)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="to become another user")
def test_an_ordinary_user_deletes_what_denies_access_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    root = tmp_path / "root"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(tmp_path)
            os.setgid(65534)
            os.setuid(65534)
            os.makedirs("root/a/b/c")
            os.mkdir("root/empty")
            for path in ("root/a/b", "root/a", "root/empty", "root"):
                os.chmod(path, 0)
            descriptors.delete_tree("./root")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not root.exists()


async def test_another_directory_in_its_place_fails_closed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    async with Workspace(root, {"notes": "notes"}) as workspace:
        with workspace.directory().held():
            pass
        os.rename(root, tmp_path / "moved")
        with pytest.raises(ToolPermissionError, match="gone"), workspace.directory().held():
            pass
        (root / "notes").mkdir(parents=True)
        for name in (None, "notes"):
            with pytest.raises(ToolPermissionError, match="replaced"), workspace.directory(name).held():
                pass


async def test_a_directory_in_use_is_closed_afterwards(tmp_path: Path) -> None:
    workspace = await Workspace(tmp_path).open()
    directory = workspace.directory()
    with directory.held() as fd:
        await workspace.close()
        if fd is not None:
            os.fstat(fd)
        with pytest.raises(ToolError, match="closed"), directory.held():
            pass
    if fd is not None:
        with pytest.raises(OSError):
            os.fstat(fd)
    with pytest.raises(ToolError, match="not open"):
        workspace.directory()


async def test_an_unclosed_workspace_leaks_nothing(tmp_path: Path) -> None:
    workspace = await Workspace(tmp_path).open()
    with workspace.directory().held() as fd:
        pass
    del workspace
    await asyncio.sleep(0.1)  # the thread that opened it lets go of it too
    gc.collect()
    if fd is not None:
        with pytest.raises(OSError):
            os.fstat(fd)


async def test_resolve_splits_and_never_joins(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path, {"notes": "notes"})
    assert workspace.resolve(".") == (None, ())
    assert workspace.resolve("./a//b/./c/") == (None, ("a", "b", "c"))
    assert workspace.resolve("a..b/...") == (None, ("a..b", "..."))
    assert workspace.resolve("workspace://notes/a/b") == ("notes", ("a", "b"))
    assert workspace.resolve("workspace://notes") == ("notes", ())
    assert workspace.resolve("workspace:/x") == (None, ("workspace:", "x"))
    with pytest.raises(ToolFileNotFoundError):
        workspace.resolve("workspace://other/a")


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/etc/passwd", ToolPermissionError),
        ("//x", ToolPermissionError),
        ("..", ToolPermissionError),
        ("a/../b", ToolPermissionError),
        ("workspace://notes/../x", ToolPermissionError),
        ("workspace://notes//x", ToolPermissionError),
        ("", ToolValueError),
        ("a\0", ToolValueError),
        ("\udc80", ToolValueError),
        ("workspace://", ToolValueError),
        ("workspace:///x", ToolValueError),
        ("workspace://A/x", ToolValueError),
        (b"bytes", ToolValueError),
        (None, ToolValueError),
        ("x" * 5000, ToolValueError),
        ("a/" * 200, ToolValueError),
    ],
)
def test_paths_that_are_refused(path: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        parse_path(path)
    assert isinstance(caught.value, ToolError)


@pytest.mark.parametrize(
    "path", ["a\\b", "c:x", "file.txt:stream", "con", "NUL.txt", "a/lpt1", "a.", "a ", "conin$"]
)
def test_what_windows_reads_into_a_name_is_refused_there(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ToolPermissionError):
        parse_path(path)
    assert parse_path("console/a.b/.c").components == ("console", "a.b", ".c")


def test_what_an_error_shows_is_short_and_valid() -> None:
    assert shown("a\ud800b\x1b[0m\n") == "a?b\ufffd[0m\ufffd"
    assert len(shown("x" * 1000)) == 200
