"""What a program leaves in the workspace, or a caller passes on from it, must not change what the sandbox itself does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAMS = (
    "bwrap",
    "podman",
    "docker",
    "runc",
    "conmon",
    "env",
    "sh",
    "python3",
    "python",
    "true",
    "git",
    "unshare",
    "ldconfig",
    "id",
    "uname",
)
_MODULES = (
    "json",
    "socket",
    "os",
    "encodings",
    "ctypes",
    "select",
    "fcntl",
    "resource",
    "sitecustomize",
    "usercustomize",
    "_socket",
    "littleghost",
)
VARIABLES = {
    "PATH": "{root}:.:/usr/bin:/bin",
    "LD_PRELOAD": "{root}/evil.so",
    "LD_LIBRARY_PATH": "{root}",
    "LD_AUDIT": "{root}/evil.so",
    "BASH_ENV": "{root}/evil.sh",
    "ENV": "{root}/evil.sh",
    "PYTHONPATH": "{root}",
    "PYTHONSTARTUP": "{root}/evil.py",
    "PYTHONHOME": "{root}",
    "GCONV_PATH": "{root}",
    "GLIBC_TUNABLES": "glibc.malloc.check=3",
    "IFS": "/",
    "SHELLOPTS": "xtrace",
    "PS4": "$(touch {root}/ran)",
    "GIT_CONFIG_GLOBAL": "{root}/evil",
    "BASH_FUNC_echo%%": "() {{ touch {root}/ran; }}",
}


def plant(root: Path) -> None:
    """Leave programs, modules and start-up files that leave the file ``ran`` in ``root``."""
    for name in _PROGRAMS:
        (root / name).write_text(f"#!/bin/sh\n: > {root}/ran\n")
        (root / name).chmod(0o755)
    for name in (*_MODULES, "evil"):
        (root / f"{name}.py").write_text(f"open({str(root / 'ran')!r}, 'w').close()\n")
    for name in ("evil.sh", ".profile", ".bashrc", ".bash_profile", ".env", ".envrc"):
        (root / name).write_text(f": > {root}/ran\n")
    (root / "evil.so").write_bytes(b"no library")
    (root / "evil.pth").write_text(f"import os; open({str(root / 'ran')!r}, 'w').close()\n")
    (root / "pyvenv.cfg").write_text("home = .\n")
    (root / "pyproject.toml").write_text('[tool.littleghost]\nwritable = true\nnetwork = "inherit"\n')
    (root / "littleghost.toml").write_text("writable = true\n")


APPLICATION = """
import asyncio, json, os, sys
paths, root, kind, options = json.loads(sys.argv[1])
sys.path[:0] = paths
import littleghost
os.chdir(root)
os.environ["PATH"] = root + ":.:" + os.environ["PATH"]
async def main():
    sandbox = getattr(littleghost, kind)(root, writable=False, **options)
    async with sandbox:
        print(sandbox.effective_policy.network, sandbox.writable)
        for more in ({}, {"environment": {"PWD": "/"}}):
            done = await sandbox.execute("echo shell", timeout=20, **more)
            print(done.stdout.strip(), done.stderr, done.error)
            await asyncio.sleep(0.2)
asyncio.run(main())
"""


async def test_what_lies_in_the_workspace_is_not_run_by_the_sandbox(attack, backend) -> None:
    """The application was started in the workspace, with a PATH that begins there, and nothing of it runs on the host."""
    async with attack(writable=False) as trial:
        network = trial.sandbox.effective_policy.network
        kind = type(trial.sandbox).__name__
    plant(trial.root)
    given = [sys.path[1:], str(trial.root), kind, backend.options]
    engine = {name: value for name, value in os.environ.items() if name.startswith("CONTAINERS_")}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-P", "-c", APPLICATION, json.dumps(given)],
        env={"HOME": "/", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **engine}, cwd="/", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == f"{network} False\n" + "shell  None\n" * 2, done
    assert not (trial.root / "ran").exists()


@pytest.mark.parametrize("name", VARIABLES)
async def test_no_variable_of_a_command_reaches_the_sandboxs_own_processes(attack, name: str) -> None:
    """The loader's and the shells' variables are the command's alone: not of its keeper, of the supervisor, nor of what isolates it."""
    async with attack() as trial:
        plant(trial.root)
        value = VARIABLES[name].format(root=trial.root)
        launcher = getattr(trial.sandbox, "_launcher", None)
        if launcher is None:
            return
        process = await trial.sandbox.start_program(["/bin/cat"], environment={name: value})
        async with process:
            await process.write(b"on\n")
            assert await process.read() == b"on\n"
            seen = {}
            pending = [launcher.supervisor]
            while pending:
                pid = pending.pop()
                task = Path(f"/proc/{pid}/task/{pid}")
                pending += [int(child) for child in (task / "children").read_text().split()]
                try:
                    environment = (task / "environ").read_bytes()
                except (
                    PermissionError
                ):  # the supervisor and its keepers are sealed; as root they are looked into
                    environment = b""
                seen[pid] = ((task / "comm").read_text().strip(), environment)
            holders = [comm for comm, environment in seen.values() if os.fsencode(f"{name}=") in environment]
            assert holders == ["cat"]
        isolating = "isolation" in trial.sandbox.capabilities
        if isolating:
            assert not (trial.root / "ran").exists()


async def test_a_link_where_the_sandbox_binds_is_not_followed(attack) -> None:
    """A named path that a program turned into a link to the host, between two commands and while commands start."""
    async with attack(
        paths={"inner": "inner"}, before=lambda root, outside: (root / "inner").mkdir()
    ) as trial:
        if not trial.claims("isolation"):
            return
        turns = [
            f"ln -s {there} inner; sleep 0.01; rm inner"
            for there in (f"/oldroot{trial.outside}", trial.outside)
        ]
        swap = f"while :; do mv inner was; {'; '.join(turns)}; mv was inner; sleep 0.01; done"
        swapping = asyncio.ensure_future(trial.sandbox.execute(swap, timeout=60))
        for number in range(12):
            options = {"environment": {"PWD": "/"}} if number % 2 else {}
            try:
                done = await trial.sandbox.execute(
                    "ls -A /paths/inner; touch /paths/inner/made", timeout=20, **options
                )
            except PermissionError:  # another directory is in its place, and is refused
                continue
            assert "secret" not in done.stdout
        swapping.cancel()
        await asyncio.gather(swapping, return_exceptions=True)
        assert os.listdir(trial.outside) == ["secret"]
