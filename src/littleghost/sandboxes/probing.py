"""Finding out whether bubblewrap isolates here, by trying what must work and what must not."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from littleghost.errors import LittleGhostError
from littleghost.sandboxes.contract import Check, Execution, Probe
from littleghost.sandboxes.processes import Launcher, Program
from littleghost.sandboxes.seccomp import filter_for
from littleghost.workspace import Workspace

if TYPE_CHECKING:
    from littleghost.sandboxes.local import LocalSandbox

__all__ = ["probe_bubblewrap"]

# Prints "NAME yes" for each attempt that worked. $1 is a file of the host, $2 a port of its loopback, $3 what the file holds, $4 whether
# there is a filter of system calls.
_SCRIPT = r"""
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name yes"; else echo "$name no"; fi; }
put() { echo x > "$1"; }
open_to_write() { true >> "$1"; }
try read-workspace [ "$(cat given)" = "$3" ]
try write-workspace put made
try write-tmp put /tmp/made
try write-system put /usr/bin/littleghost-probe
try write-etc put /etc/littleghost-probe
try write-root put /littleghost-probe
try write-kernel open_to_write /proc/sys/kernel/core_pattern
try read-host-file cat "$1"
try read-host-etc [ -e /etc/shadow ]
try see-other-processes [ "$(ls -d /proc/[0-9]* | wc -l)" -gt 8 ]
if [ "$4" = filtered ]; then try make-setuid chmod 4755 given; fi
if [ -x /usr/bin/unshare ]; then try nested-namespace unshare -U true; fi
if [ -x /usr/bin/bash ]; then try reach-host-loopback bash -c ": < /dev/tcp/127.0.0.1/$2"; fi
for kind in user pid mnt ipc uts net; do echo "ns-$kind $(readlink /proc/self/ns/$kind)"; done
exit 7
"""
_ALLOWED = ("read-workspace", "write-workspace", "write-tmp")
_NAMESPACES = ("user", "pid", "mnt", "ipc", "uts", "net")


class Make(Protocol):
    """Makes a sandbox that uses the program to be tried."""

    def __call__(self, workspace: Workspace, *, writable: bool) -> LocalSandbox:
        """Return the sandbox, which is not open."""
        ...


async def probe_bubblewrap(binary: str, make: Make) -> Probe:
    """Return whether ``binary`` isolates here, in the sandboxes that ``make`` makes with it."""
    launcher = Launcher("the probe of bubblewrap")
    try:
        with tempfile.TemporaryDirectory(prefix="littleghost-probe-") as outside, socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            canary = secrets.token_hex(8)
            host_file, root = _laid_out(Path(outside), canary)
            async with Workspace(root) as workspace:
                arguments = (
                    "/bin/sh",
                    "-c",
                    _SCRIPT,
                    "probe",
                    str(host_file),
                    str(listener.getsockname()[1]),
                    canary,
                    "filtered" if filter_for(network=False) else "",
                )
                writable = await _run(launcher, make(workspace, writable=True), arguments)
                forbidden = ("/bin/sh", "-c", "echo x > forbidden")
                read_only = await _run(launcher, make(workspace, writable=False), forbidden)
            version = await launcher.run(Program(arguments=(binary, "--version")), timeout=10)
            listener.setblocking(False)
            reached = True
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                reached = False
            wrote = root.joinpath("forbidden").exists()
    except (LittleGhostError, OSError) as error:
        return Probe(available=False, reason=f"the probe could not run: {error}")
    finally:
        await launcher.close()
    return _judged(writable, read_only, version.stdout.strip(), reached=reached, wrote=wrote)


def _laid_out(folder: Path, canary: str) -> tuple[Path, Path]:
    """Make a file of the host and a workspace, both holding ``canary``."""
    host_file, root = folder / "canary", folder / "workspace"
    root.mkdir()
    host_file.write_text(canary)
    root.joinpath("given").write_text(canary)
    return host_file, root


async def _run(launcher: Launcher, sandbox: LocalSandbox, arguments: tuple[str, ...]) -> Execution:
    with ExitStack() as release:
        return await launcher.run(sandbox.program(sandbox.view, arguments, {}, ".", release), timeout=20)


def _judged(writable: Execution, read_only: Execution, version: str, *, reached: bool, wrote: bool) -> Probe:
    if writable.exit_code != 7:
        said = (
            writable.error
            or writable.stderr.strip().splitlines()
            or ["it ended with " + str(writable.exit_code)]
        )
        reason = said if isinstance(said, str) else said[-1]
        if "namespace" in reason or "uid map" in reason:
            reason += " (unprivileged user namespaces are switched off: by sysctl, by AppArmor, or in this container)"
        if "-fd" in reason or "disable-userns" in reason:
            reason += " (too old: 0.10, or a distribution's 0.8 with --bind-fd, is needed)"
        return Probe(available=False, reason=reason, version=version)
    checks = [Check(name="run a program and get its exit code", ok=True)]
    for line in writable.stdout.splitlines():
        name, _, result = line.partition(" ")
        if name.startswith("ns-"):
            continue
        denial = name not in _ALLOWED
        checks.append(Check(name=name.replace("-", " "), ok=(result == "no") is denial, denial=denial))
    said = dict(line.split(" ", 1) for line in writable.stdout.splitlines() if line.startswith("ns-"))
    for kind in _NAMESPACES:
        inside, outside = said.get(f"ns-{kind}", ""), os.readlink(f"/proc/self/ns/{kind}")
        checks.append(
            Check(
                name=f"share the host's {kind} namespace", ok=bool(inside) and inside != outside, denial=True
            )
        )
    checks.append(
        Check(
            name="write a read-only workspace",
            ok=not wrote and read_only.exit_code not in (0, None),
            denial=True,
        )
    )
    checks.append(Check(name="be heard on the host's loopback", ok=not reached, denial=True))
    missing = [name for name in _ALLOWED if not any(check.name == name.replace("-", " ") for check in checks)]
    wrong = [
        f"{check.name} {'worked' if check.denial else 'failed'}" for check in checks if not check.ok
    ] + missing
    reason = "" if not wrong else "not as it must be: " + ", ".join(wrong)
    return Probe(available=not wrong, reason=reason, checks=tuple(checks), version=version)
