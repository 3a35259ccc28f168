"""Finding out whether bubblewrap isolates here, by trying what must work and what must not."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from littleghost.errors import LittleGhostError
from littleghost.sandboxes.contract import Check, Execution, Probe
from littleghost.sandboxes.processes import Launcher, Program
from littleghost.sandboxes.seccomp import filter_for
from littleghost.workspace import Workspace

if TYPE_CHECKING:
    from littleghost.sandboxes.local import LocalSandbox

__all__ = ["guards", "probe_bubblewrap"]

# Prints "NAME yes" for each attempt that worked. $1 is a file of the host, $2 a port of its loopback, $3 what the file holds, $4 whether
# there is a filter of system calls, $5 a name that nothing has, $6 what a process of the host has in its environment.
#
# Where nothing isolates, all of this happens on the host. So nothing but what is new is written (set -C), what was written is deleted at
# once, and the workspace is touched only where it is the one made for this.
_SCRIPT = r"""
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name yes"; else echo "$name no"; fi; }
put() { ( set -C; : > "$1" ) || return 1; rm -f "$1"; return 0; }
open_to_write() { true >> "$1"; }
try read-workspace [ "$(cat given)" = "$3" ]
if [ "$(cat given 2>/dev/null)" = "$3" ]; then
    try write-workspace put "$5"
    try write-through-planted-link put "planted/$5"
    try read-through-planted-link cat planted/canary
    if [ "$4" = filtered ]; then try make-setuid chmod 4755 given; fi
    connect='import socket; socket.socket(socket.AF_UNIX).connect("socket")'
    if [ "$4" = filtered ] && [ -x /usr/bin/python3 ]; then try reach-socket-file /usr/bin/python3 -I -S -c "$connect"; fi
fi
try write-tmp put "/tmp/$5"
try write-system put "/usr/bin/$5"
try write-etc put "/etc/$5"
try write-root put "/$5"
try write-kernel open_to_write /proc/sys/kernel/core_pattern
try read-host-file cat "$1"
try write-host put "${1%/*}/$5"
try read-host-etc [ -e /etc/shadow ]
try see-other-processes [ "$(ls -d /proc/[0-9]* | wc -l)" -gt 8 ]
try see-the-environment-of-the-application grep -q -e "$6" /proc/[0-9]*/environ /proc/[0-9]*/task/*/environ
try reach-the-host-through-a-process cat "/proc/1/root$1" "/proc/$$/root$1" "/proc/$PPID/root$1"
if [ -x /usr/bin/unshare ]; then try nested-namespace unshare -U true; fi
if [ -x /usr/bin/bash ]; then try reach-host-loopback bash -c ": < /dev/tcp/127.0.0.1/$2"; fi
for kind in user pid mnt ipc uts net; do echo "ns-$kind $(readlink /proc/self/ns/$kind)"; done
exit 7
"""
# $1 is what the file in the right workspace holds.
_FORBIDDEN = r"""
[ "$(cat given)" = "$1" ] || exit 3
( set -C; : > forbidden ) 2>/dev/null && exit 4
exit 5
"""
_KEPT = r"""
[ "$(cat given)" = "$1" ] || exit 3
( echo changed > .git/config || rm -f .git/config || mv .git moved || : > .git/new || ln .git/config linked ) 2>/dev/null && exit 4
[ "$(cat .git/config)" = "$1" ] || exit 3
chmod "$(stat -c %a /dev/null)" /dev/null 2>/dev/null && exit 4
: > "$2" && rm "$2" && exit 5
"""
# Where a script that is not isolated could have left the new name, had it been killed right then.
_PLACES = ("/tmp", "/usr/bin", "/etc", "/")  # noqa: S108
_GUARDED = "change .git in a writable workspace, or the mode of /dev/null"
_ALLOWED = ("read-workspace", "write-workspace", "write-tmp")
_NAMESPACES = ("user", "pid", "mnt", "ipc", "uts", "net")


def guards(probe: Probe) -> bool:
    """Return whether ``.git`` can be kept from programs here."""
    return any(check.name == _GUARDED and check.ok for check in probe.checks)


class Make(Protocol):
    """Makes a sandbox that uses the program to be tried."""

    def __call__(self, workspace: Workspace, *, writable: bool, guards: bool) -> LocalSandbox:
        """Return the sandbox, which is not open; with ``guards`` it protects ``.git`` from programs."""
        ...


def _bind(listener: socket.socket, folder: Path) -> None:
    """Bind to ``socket`` in a folder of however long a path; the address of a socket has 108 bytes. See unix(7)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{fd}/socket")
    finally:
        os.close(fd)


async def probe_bubblewrap(binary: str, make: Make, system: Sequence[str]) -> Probe:
    """Return whether ``binary`` isolates here.

    Args:
        binary: The program.
        make: Makes sandboxes that use it.
        system: Its options for showing the system's programs.
    """
    name, canary, hidden = (f"littleghost-probe-{secrets.token_hex(8)}" for _ in range(3))
    launcher = Launcher("the probe of bubblewrap", environment={"LITTLEGHOST_PROBE": hidden})
    try:
        with (
            tempfile.TemporaryDirectory(prefix="littleghost-probe-") as outside,
            socket.socket() as listener,
            socket.socket(socket.AF_UNIX) as beside,
        ):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            host_file, root = _laid_out(Path(outside), canary)
            _bind(beside, root)
            beside.listen()
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
                    name,
                    hidden,
                )
                sandbox = make(workspace, writable=True, guards=False)
                writable = await _run(launcher, sandbox, arguments)
                sandbox = make(workspace, writable=False, guards=False)
                read_only = await _run(launcher, sandbox, ("/bin/sh", "-c", _FORBIDDEN, "probe", canary))
                sandbox = make(workspace, writable=True, guards=True)
                guarded = await _run(launcher, sandbox, ("/bin/sh", "-c", _KEPT, "probe", canary, name))
            version = await launcher.run(Program(arguments=(binary, "--version")), timeout=10)
            led_astray = await _is_led_astray(launcher, binary, system, root, name)
            listener.setblocking(False)
            reached = True
            try:
                listener.accept()[0].close()
            except BlockingIOError:
                reached = False
            wrote = root.joinpath("forbidden").exists()
            kept = guarded.exit_code == 5 and root.joinpath(".git/config").read_text() == canary
    except (LittleGhostError, OSError) as error:
        return Probe(available=False, reason=f"the probe could not run: {error}")
    finally:
        await launcher.close()
        for place in _PLACES:
            with suppress(OSError):
                os.unlink(os.path.join(place, name))
    probe = _judged(writable, read_only, version.stdout.strip(), reached=reached, wrote=wrote)
    if not probe.checks:
        return probe
    return msgspec.structs.replace(probe, checks=(*probe.checks, *_told(led_astray=led_astray, kept=kept)))


async def _is_led_astray(
    launcher: Launcher, binary: str, system: Sequence[str], root: Path, name: str
) -> bool:
    """Return whether this bubblewrap has the fault CVE-2026-87766: that it makes a directory on the host, below a planted link."""
    options = ["--unshare-user", "--unshare-pid", *system, "--bind", str(root), "/workspace"]
    options += ["--dir", f"/workspace/planted/{name}", "--", "/bin/true"]
    await launcher.run(Program(arguments=(binary, *options)), timeout=20)
    return (root.parent / name).exists()


def _told(*, led_astray: bool, kept: bool) -> tuple[Check, ...]:
    """Return what is told, and alone is no reason to do without this bubblewrap."""
    fault = (
        "this bwrap has the fault: what it mounts or makes below a link planted in a bind is the host's. Here it mounts and makes nothing "
        "below what programs write, and in that order the attempts through a planted link failed"
        if led_astray
        else "this bwrap does not have the fault"
    )
    lost = (
        ""
        if kept
        else "this system does not let them be made read-only beforehand; see effective_policy.not_enforced"
    )
    return (
        Check(name="reach CVE-2026-87766", ok=True, denial=True, detail=fault),
        Check(name=_GUARDED, ok=kept, denial=True, detail=lost),
    )


def _laid_out(folder: Path, canary: str) -> tuple[Path, Path]:
    """Make a file of the host and a workspace, both holding ``canary``."""
    host_file, root = folder / "canary", folder / "workspace"
    root.mkdir()
    host_file.write_text(canary)
    root.joinpath("given").write_text(canary)
    root.joinpath(".git").mkdir()
    root.joinpath(".git/config").write_text(canary)
    # where bubblewrap has the host's root while it mounts, and a careless order of mounts would follow (CVE-2026-87766)
    root.joinpath("planted").symlink_to(f"/oldroot{folder}")
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
            ok=not wrote and read_only.exit_code == 5,
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
