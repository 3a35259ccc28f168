"""What Git runs on the host is said by ``.git``, so programs do not change the one at the top of what they may write."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHANGES = r"""
import ctypes, shutil
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("mine"); os.mkdir("mine/hooks"); open("mine/config", "w").write("evil"); open("flat", "w").write("gitdir: evil")
def tried(name, attempt):
    try:
        if attempt() != -1: found.append(name)
    except (OSError, shutil.Error):
        pass
for top in given[0]:
    git = top + "/.git"
    for name in ("config", "HEAD", "hooks/pre-commit", "new", "hooks/new", "."):
        path = f"{git}/{name}"
        tried(f"write {path}", lambda: open(path, "w"))
        tried(f"append {path}", lambda: open(path, "a"))
        tried(f"chmod {path}", lambda: os.chmod(path, 0o777))
        tried(f"utime {path}", lambda: os.utime(path))
        tried(f"unlink {path}", lambda: os.unlink(path))
        tried(f"rename over {path}", lambda: os.rename("flat", path))
        tried(f"rename away {path}", lambda: os.rename(path, "away"))
        tried(f"link {path}", lambda: os.link(path, "linked"))
        tried(f"link over {path}", lambda: os.link("flat", path))
        tried(f"symlink {path}", lambda: os.symlink("flat", path))
        tried(f"mkdir {path}", lambda: os.mkdir(path))
        tried(f"truncate {path}", lambda: os.truncate(path, 0))
        tried(f"xattr {path}", lambda: os.setxattr(path, "user.x", b""))
        tried(f"reopened {path}", lambda: os.open(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}", os.O_WRONLY))
    tried(f"write {git}", lambda: open(git, "w"))
    tried(f"unlink {git}", lambda: os.unlink(git))
    tried(f"rmdir {git}", lambda: os.rmdir(git))
    tried(f"rename {git}", lambda: os.rename(git, top + "/was"))
    tried(f"rename onto {git}", lambda: os.rename("flat", git))
    tried(f"directory onto {git}", lambda: os.rename("mine", git))
    tried(f"exchange {git}", lambda: libc.syscall(316, -100, b"mine", -100, git.encode(), 2))
    tried(f"exchange {git}", lambda: libc.syscall(276, -100, b"mine", -100, git.encode(), 2) if os.uname().machine == "aarch64" else -1)
    tried(f"unmount {git}", lambda: libc.umount2(git.encode(), 2))
    shutil.rmtree(git, ignore_errors=True)
"""


def repository(root: Path, outside: Path | None = None) -> None:
    """Make a directory that Git takes for a repository."""
    (root / ".git/hooks").mkdir(parents=True, exist_ok=True)
    for name in ("objects", "refs"):
        (root / ".git" / name).mkdir(exist_ok=True)
    (root / ".git/config").write_text("[core]\n\trepositoryformatversion = 0\n")
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")


def worktree(root: Path, outside: Path) -> None:
    """Make a worktree's file."""
    root.joinpath(".git").write_text("gitdir: /somewhere/.git/worktrees/x\n")


def state(root: Path) -> object:
    git = root / ".git"
    if not git.is_dir():
        return git.read_text()
    return sorted(
        (str(path.relative_to(git)), path.read_text() if path.is_file() else "", path.stat().st_mode)
        for path in git.rglob("*")
    )


@pytest.mark.parametrize("made", [repository, worktree])
@pytest.mark.parametrize(
    "options", [{}, {"environment": {"PWD": "/", "PATH": "/usr/bin:/bin"}}], ids=["ahead", "spot"]
)
async def test_git_is_not_changed_by_programs(attack, made, options) -> None:
    """By none of thirty ways, and by no other name that the directory has inside."""
    async with attack(before=made, paths={"again": "."}) as trial:
        if not trial.claims("git_read_only_processes"):
            return
        before = state(trial.root)
        for _ in range(2):
            assert await trial.inside(CHANGES, [".", "/workspace", "/paths/again"], **options) == []
            assert state(trial.root) == before
            for name in ("mine", "flat"):
                subprocess.run(["rm", "-rf", trial.root / name], check=True)
        if made is repository:
            assert (
                await trial.sandbox.execute("cat .git/HEAD; echo x > file; cat file", timeout=20)
            ).stdout == "ref: refs/heads/main\nx\n"


async def test_git_is_open_to_programs_where_that_was_asked_for(attack) -> None:
    async with attack(before=repository, policy={"git": "read_write"}) as trial:
        assert "git_read_only_processes" not in trial.sandbox.capabilities
        done = await trial.sandbox.execute("echo x > .git/new && mv .git away && mkdir .git", timeout=20)
        assert done.success


async def test_another_git_in_its_place_is_protected_too(attack) -> None:
    """Deleted and made again, it can have the same number, and what was mounted for a namespace that waits is gone with the old one."""
    async with attack(before=repository) as trial:
        if not trial.claims("git_read_only_processes"):
            return
        for _ in range(4):
            await trial.sandbox.execute("true", timeout=20)
            await asyncio.sleep(0.2)  # a namespace waits
            shutil.rmtree(trial.root / ".git")
            repository(trial.root)
            done = await trial.sandbox.execute(
                "echo evil > .git/config || echo kept; rm -rf .git 2>/dev/null; cat .git/HEAD", timeout=20
            )
            assert done.stdout == "kept\nref: refs/heads/main\n"
        shutil.rmtree(trial.root / ".git")
        await trial.sandbox.execute("true", timeout=20)
        await asyncio.sleep(0.2)
        repository(trial.root)  # as `git init` on the host would
        assert (
            await trial.sandbox.execute("echo evil > .git/config || echo kept", timeout=20)
        ).stdout == "kept\n"


async def test_a_scope_within_git_is_read_only(attack) -> None:
    def nested(root: Path, outside: Path) -> None:
        repository(root)
        repository(root / "sub")

    async with attack(before=nested) as trial:
        if not trial.claims("git_read_only_processes"):
            return
        for path in (".git", ".git/hooks", "sub/.git"):
            done = await trial.sandbox.scope(path=path).execute("echo x > new || echo kept", timeout=20)
            assert done.stdout == "kept\n", path
        done = await trial.sandbox.scope(path="sub").execute(
            "echo x > .git/config || echo kept; echo x > file", timeout=20
        )
        assert done.stdout == "kept\n"
        assert (trial.root / "sub/file").exists()


async def test_what_is_not_protected_is_said(attack) -> None:
    """A repository further down, and one that a program makes itself."""
    async with attack(before=lambda root, outside: repository(root / "sub")) as trial:
        if not trial.claims("git_read_only_processes"):
            return
        done = await trial.sandbox.execute(
            "echo x > sub/.git/config && mkdir .git && echo x > .git/config", timeout=20
        )
        assert done.success
        assert any(
            "further down" in line and "when a program started" in line
            for line in trial.sandbox.effective_policy.not_enforced
        )


async def test_links_that_take_turns_with_git_lead_nowhere(attack) -> None:
    """A program that was there before ``.git`` puts links to the host in its place, again and again, while others start."""
    async with attack() as trial:
        if not trial.claims("isolation"):
            return
        turns = "mv -T .git was 2>/dev/null; ln -sfn $to .git; sleep 0.003; rm -f .git; rm -rf was; mkdir .git; sleep 0.003"
        there = f"/oldroot{trial.outside} {trial.outside} /oldroot{trial.outside}/new ../outside"
        swap = f"while :; do mkdir -p .git; for to in {there}; do {turns}; done; done"
        swapping = asyncio.ensure_future(trial.sandbox.execute(swap, timeout=60))
        started = 0
        for number in range(20):
            options = {"environment": {"PWD": "/"}} if number % 2 else {}
            try:
                done = await trial.sandbox.execute("echo on; ls .git; touch .git/made", timeout=20, **options)
            except OSError:
                continue
            assert "secret" not in done.stdout
            started += done.stdout.startswith("on\n")
        swapping.cancel()
        await asyncio.gather(swapping, return_exceptions=True)
        assert os.listdir(trial.outside) == ["secret"]
        assert (trial.outside / "secret").read_text() == trial.secret
        assert started, "none started"


async def test_git_itself_works_where_it_may_read(attack, require) -> None:
    async with attack(before=repository) as trial:
        if not trial.claims("git_read_only_processes"):
            return
        found = await trial.sandbox.execute("command -v git", timeout=20)
        require(found.success, "git", "apt-get install git")
        done = await trial.sandbox.execute(
            "echo x > file; git status --short; git commit -qam x; git config user.name evil; true",
            timeout=20,
        )
        assert done.stdout == "?? file\n", done
        assert "Read-only file system" in done.stderr
