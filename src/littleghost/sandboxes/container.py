"""Files and programs in a container of their own, by podman or docker.

::

    application ── Line ── podman run --interactive ── engine ── worker, the container's first process ─┬─ command
                                                                                                        └─ command …

There is one container for a sandbox, from `ContainerSandbox.open` to `ContainerSandbox.close`. Its first process is the worker, which
serves files and programs over its standard streams: it ends when they do, and the kernel ends everything in a container whose first
process has ended. So nothing outlives the application, the engine's client, or the line between them. A program in the container can
neither kill nor stop the first process.

What is claimed is looked at from inside, each time a sandbox is opened; an engine that ignores an option makes that fail.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

from littleghost.errors import (
    CapabilityError,
    ConfigurationError,
    LittleGhostError,
    ToolConnectionError,
)
from littleghost.sandboxes.contract import Probe, SandboxLimits
from littleghost.sandboxes.engines import (
    OWNER,
    Engine,
    find_engine,
    is_left_behind,
    labels,
    reap,
    refusal,
    remove,
)
from littleghost.sandboxes.far import guest
from littleghost.sandboxes.far.inside import NAMESPACES, RIGHTS
from littleghost.sandboxes.far.line import PipeTransport, Transport, whole
from littleghost.sandboxes.far.sandbox import FarSandbox
from littleghost.sandboxes.nesting import refuse_nesting, refuse_own_code
from littleghost.sandboxes.policy import EffectivePolicy, Policy
from littleghost.sandboxes.seccomp import filter_for
from littleghost.workspace import Workspace

__all__ = ["ContainerSandbox"]

WORKSPACE = "/workspace"
PATHS = "/paths"
_NOBODY = 65532  # who works on root's files, by a number that is nobody's
_TEMPORARY_BYTES = 64 << 20
_TEMPORARY = ("/tmp", "/dev/shm")  # noqa: S108 (the container's own)
_PROCESSES = 2048  # where no limit was asked for
_THREADS = 4
_OWN = (
    1 + _THREADS + 1 + 3
)  # the worker and its threads, the supervisor, two idle keepers and the one of a command
_MOST_OPEN = 32_768
_ENDING = 15.0
_BETWEEN_REAPINGS = 60.0
_V2 = "/sys/fs/cgroup/cgroup.controllers"

_OFFERED = frozenset(
    {
        "files", "bytes", "ranges", "stat", "glob", "grep", "named_paths", "scope", "local_files", "git_read_only",
        "write", "delete", "move", "make_directory", "execute", "start_program", "kill_tree",
        "isolation", "pid_namespace", "hidden_environment", "read_only_processes", "seccomp",
    }
)  # fmt: skip
_WHOLE = {"memory_bytes": "memory_limit", "processes": "process_limit", "temporary_bytes": None}
"""The limits that the engine enforces for the container as a whole, and the capability that says so."""

_OURS = {"cpu_seconds": "cpu_limit", "file_bytes": "file_limit"}


class ContainerSandbox(FarSandbox):
    """Runs programs in a container of podman's or docker's. Linux only.

    Programs see the image's files, read-only; the workspace at ``/workspace``, where they start, and named paths at ``/paths/NAME``,
    both read-only unless the sandbox may write them; and a ``/tmp`` that lives as long as the sandbox. With ``policy.network`` left
    out or ``none`` they have a loopback and nothing else; with ``inherit``, the network that the engine gives to containers.

    Who they are on the host is never root. Where the application is an ordinary user, they are that user; where it is root, they are the
    owner of the workspace's root; and where that is root as well, they are user 65532, to whom the files are mounted as their own.

    Args:
        workspace: See `Sandbox`.
        image: An image that is here already; none is fetched. It needs Python 3.11 or newer.
        writable: See `Sandbox`.
        policy: See `Sandbox`.
        limits: See `Sandbox`. ``memory_bytes`` and ``processes`` are of all programs of the sandbox together, the worker's memory
            included (some 40 MB) and its processes not. ``temporary_bytes`` is of ``/tmp`` and of ``/dev/shm`` each, 64 MiB when left out.
        engine: ``podman``, ``docker`` or a path; whichever of the two is found on ``PATH`` when left out.
        python: The interpreter in the image.
        user: Who programs are, ``UID`` or ``UID:GID``, instead of the above. Files are then mounted as they are.

    Raises:
        ConfigurationError: ``user`` is none, or is root.
        PolicyError: See `Sandbox`.
    """

    _refused_here = {  # noqa: RUF012 (nobody changes it)
        "disk_bytes": "ContainerSandbox cannot enforce the limit disk_bytes: the workspace is a directory of the host, and it would take a "
        "file system with project quotas, made for this; bound it with one of your own"
    }
    _reaped: ClassVar[dict[str, float]] = {}

    def __init__(
        self,
        workspace: Workspace | str | os.PathLike[str],
        *,
        image: str,
        writable: bool = False,
        policy: Policy | Mapping[str, Any] | None = None,
        limits: SandboxLimits | None = None,
        engine: str | os.PathLike[str] | None = None,
        python: str = "python3",
        user: str | int | None = None,
    ) -> None:
        super().__init__(workspace, writable=writable, policy=policy, limits=limits)
        if not image or image.startswith("-") or not image.isprintable():
            raise ConfigurationError(f"{image!r} is not the name of an image", image=image)
        if not python or python.startswith("-") or not python.isprintable():
            raise ConfigurationError(f"{python!r} is not a program", python=python)
        self._image, self._python, self._given = image, python, engine
        self._user = None if user is None else _user(str(user))
        self._engine: Engine | None = None
        self._staging: str | None = None
        self._client: asyncio.subprocess.Process | None = None
        self._name = ""
        self._runs_as = ""

    def _offers(self) -> frozenset[str]:
        return _OFFERED if self._network else _OFFERED | {"network_none"}

    @property
    def _network(self) -> bool:
        return self._policy.network == "inherit"

    @property
    def _temporary(self) -> int:
        return _TEMPORARY_BYTES if self._limits.temporary_bytes is None else self._limits.temporary_bytes

    def _inside(self) -> dict[str | None, str]:
        """Return where programs have each directory."""
        return {name: WORKSPACE if name is None else f"{PATHS}/{name}" for name in self._accesses}

    @property
    def container(self) -> str | None:
        """The name of the container, while there is one."""
        return self._name or None

    @classmethod
    async def reap(cls, engine: str | os.PathLike[str] | None = None) -> list[str]:
        """Remove containers whose application is dead, and return their numbers.

        `open` does so too, now and then. Those of another machine, or of a pid namespace other than this one, are left alone.

        Args:
            engine: As in the constructor.

        Raises:
            CapabilityError: There is no engine, or it does not answer.
        """
        found = await find_engine(engine)
        await asyncio.to_thread(_clear_staging)
        return await reap(found)

    @classmethod
    async def probe(
        cls,
        *,
        image: str | None = None,
        engine: str | os.PathLike[str] | None = None,
        python: str = "python3",
        **_: Any,
    ) -> Probe:
        """Start a container that tries what must work and what must not, and return how that went.

        Args:
            image: The image to try. Without one, it is only said whether there is an engine.
            engine: As in the constructor.
            python: As in the constructor.
        """
        from littleghost.sandboxes.container_probe import probe_container

        return await probe_container(cls, image=image, engine=engine, python=python)

    def stated(self) -> EffectivePolicy:
        told, limits = self.told.in_force, self._limits
        ours = (item for item in told.enforced if "command" not in item and "outlives" not in item)
        return EffectivePolicy(
            root=self._accesses[None],
            network="inherit" if self._network else "none",
            root_filesystem="isolated",
            environment=tuple(sorted(self._policy.environment)),
            processes=self._runs_as or "run in a container, as a user who is not root, without capabilities",
            enforced=(
                *dict.fromkeys(ours),
                "programs see the image, the workspace and the named paths only; the image is read-only, and so is what may not be written",
                *(() if self._network else ("no network but a loopback of their own",)),
                "no sight of, or signals to, processes outside; no nested namespaces; no rights from setuid programs",
                f"/tmp and /dev/shm of {self._temporary:,} bytes each",  # noqa: S108 (the sandbox's own)
                "everything a command started is gone when it ends, and everything in the container when the application does",
                *_stated(limits),
                "a filter of system calls (ptrace, io_uring, bpf, keys, mounts, terminal input, setuid and setgid bits"
                + (", …)" if self._network else ", sockets of the host, …)"),
            ),
            not_enforced=(
                "a kernel of its own: the container shares the host's, with what /proc and /sys tell of the machine",
                "protection from the container engine, which is trusted, as is whoever may use it (for docker: who is as good as root)",
                "privacy between commands of one sandbox: they have one /tmp and one user, and see each other",
                "programs in a narrower scope, which runs none",
                "limits of memory, processes and CPU time that are not set",
                "how much is written to the workspace, and how many files there are",
                "what programs write in .git, where the directory it is in is read-write",
                *(
                    ("an allowlist of addresses: the network is what the engine gives to containers",)
                    if self._network
                    else ()
                ),
            ),
        )

    def check_open(self) -> None:
        super().check_open()
        for name in self._accesses:  # the container goes on with those it was given
            self.workspace.directory(name).check()

    def refuse_limits(self, limits: SandboxLimits) -> None:
        for name, why in self._refused_here.items():
            if getattr(limits, name) is not None:
                raise CapabilityError(why, limit=name)
        for name in _WHOLE if limits is not self._limits else ():
            if getattr(limits, name) is not None:
                raise CapabilityError(
                    f"ContainerSandbox cannot enforce the limit {name} in a scope: it is set for the container as a whole",
                    limit=name,
                )

    async def _prepare(self) -> None:
        if sys.platform != "linux":
            raise CapabilityError("ContainerSandbox is for Linux in this version")
        if filter_for(network=self._network) is None:
            raise CapabilityError(f"ContainerSandbox has no filter of system calls for {os.uname().machine}")
        if self._policy.root_filesystem not in (None, "isolated"):
            raise CapabilityError(
                f"ContainerSandbox has an isolated root only, not {self._policy.root_filesystem!r}"
            )
        refuse_own_code(self.workspace, self._accesses)
        folders = [self.workspace.root, *self.workspace.paths.values()]
        self._engine = engine = await find_engine(self._given, folders)
        await self.workspace.open()
        try:
            refuse_nesting(self.workspace, self._accesses)
            await self._reap(engine)
        except BaseException:
            await self.workspace.close()
            raise

    async def _release(self) -> None:
        await self.workspace.close()

    async def _reap(self, engine: Engine) -> None:
        """Remove what dead applications left, unless that was done a moment ago. What goes wrong is the next one's."""
        now = time.monotonic()
        if now - self._reaped.get(engine.program, -_BETWEEN_REAPINGS) < _BETWEEN_REAPINGS:
            return
        self._reaped[engine.program] = now
        with suppress(LittleGhostError):
            await asyncio.to_thread(_clear_staging)
            await reap(engine)

    def _greeting(self) -> dict[str, Any]:
        said = super()._greeting()
        policy = {
            name: value
            for name, value in said["policy"].items()
            if name not in ("network", "root_filesystem")
        }
        named = {name: access for name, access in self._accesses.items() if name is not None}
        limits = {name: value for name, value in said["limits"].items() if name not in _WHOLE}
        events = "memory.events" if os.path.exists(_V2) else "memory/memory.oom_control"
        return {
            **said,
            "root": WORKSPACE,
            "paths": {name: path for name, path in self._inside().items() if name is not None},
            "look": ["/", *_TEMPORARY, *self._inside().values()],
            "policy": {**policy, "root": self._accesses[None], "paths": named},
            "limits": limits,
            "network": "inherit" if self._network else "none",
            "threads": _THREADS,
            **({} if self._limits.memory_bytes is None else {"memory events": f"/sys/fs/cgroup/{events}"}),
        }

    async def _lay(self) -> tuple[Transport, bytes]:
        assert self._engine is not None  # noqa: S101 (it is found before)
        engine = self._engine
        self._name = f"littleghost-{secrets.token_hex(8)}"
        with ExitStack() as release:
            user, sources = await whole(asyncio.to_thread(self._sources, release))
            self._runs_as = (
                f"run in a container as user {user}, who has no capabilities and is not root on the host"
                + (", with root's files mounted as that user's" if self._staging else "")
            )
            arguments = self._arguments(engine, user, sources)
            client = await whole(self._start(arguments))
            transport = _Attached(self, client, self._end_client)
            try:
                held = await guest.begin(transport, f"the image {self._image}")
            except (CapabilityError, ToolConnectionError) as error:
                said = (await transport.last_words()).decode("utf-8", "replace")
                await transport.close()
                if client.returncode in (125, 126, 127) or (said and "has Python" not in str(error)):
                    raise refusal(engine, self._image, self._python, said) from error
                if client.returncode == 137 and self._limits.memory_bytes is not None:
                    raise self._too_little(
                        f"{self._limits.memory_bytes:,} bytes are not enough for the worker"
                    ) from error
                raise
            except BaseException:
                await whole(transport.close())
                raise
            transport.begun = True
            return transport, held

    async def _start(self, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        """Start the client, in a session of its own, for Ctrl-C is the application's.

        It starts where nobody can make a file: podman's monitor would leave one called ``oom`` when memory runs out.
        """
        pipe = asyncio.subprocess.PIPE
        self._client = await asyncio.create_subprocess_exec(
            *arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, cwd="/proc"
        )
        return self._client

    def _too_little(self, why: str) -> CapabilityError:
        return CapabilityError(
            f"ContainerSandbox cannot enforce the limit memory_bytes: {why}", limit="memory_bytes"
        )

    def _sources(self, release: ExitStack) -> tuple[str, dict[str | None, str]]:
        """Return who programs are, and which host path is mounted for each directory; ``release`` undoes what was made for that."""
        paths = {name: str(self.workspace.directory(name).path) for name in self._accesses}
        self._staging = None
        if self._user is not None:
            return self._user, paths
        if os.geteuid() != 0:
            return f"{os.geteuid()}:{os.getegid()}", paths
        owner = os.stat(paths[None])
        if owner.st_uid != 0:
            return f"{owner.st_uid}:{owner.st_gid}", paths
        from littleghost.sandboxes.idmapped import attach, detach

        self._staging = staging = tempfile.mkdtemp(
            prefix="_".join(["littleghost", *labels()[OWNER].split(":"), ""]), dir=_STAGING
        )
        release.callback(lambda: _without_error(os.rmdir, staging))
        for number, name in enumerate(self._accesses):
            where = f"{staging}/{number}"
            os.mkdir(where)
            release.callback(detach, where)
            with self.workspace.directory(name).held() as directory:
                assert directory is not None  # noqa: S101 (this is Linux)
                what = "the workspace" if name is None else f"the path {name!r}"
                attach(directory, where, _NOBODY, name=what)
            paths[name] = where
        return f"{_NOBODY}:{_NOBODY}", paths

    def _arguments(self, engine: Engine, user: str, sources: Mapping[str | None, str]) -> list[str]:
        limits = self._limits
        processes = min((limits.processes if limits.processes is not None else _PROCESSES) + _OWN, 4 << 20)
        given = [
            "--rm", "--interactive", "--pull=never", "--log-driver=none", "--no-healthcheck", "--init=false",
            "--name", self._name, "--hostname", "sandbox", "--workdir", "/",
            "--cap-drop", "all", "--security-opt", "no-new-privileges", "--read-only", "--user", user,
            "--ipc", "private", "--cgroupns", "private",
            "--tmpfs", f"/tmp:rw,exec,nosuid,nodev,size={self._temporary},mode=1777",  # noqa: S108 (the container's own)
            "--shm-size", f"{self._temporary}b", "--pids-limit", str(processes), "--ulimit", "core=0:0",
        ]  # fmt: skip
        if limits.memory_bytes is not None:
            given += ["--memory", f"{limits.memory_bytes}b", "--memory-swap", f"{limits.memory_bytes}b"]
        if not self._network:
            given += ["--network", "none"]
        if engine.kind == "podman":
            given += [
                "--http-proxy=false", "--env-host=false", "--image-volume=ignore", "--read-only-tmpfs=false", "--no-hosts",
                "--sdnotify=ignore",
            ]  # fmt: skip
            for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
                # What podman gives where nothing is said may be more than it can. The number of processes is bounded otherwise.
                own = resource.getrlimit(number)[1]
                most = _MOST_OPEN if own == resource.RLIM_INFINITY else min(own, _MOST_OPEN)
                given += ["--ulimit", f"{name}={most}:{most}"]
            if engine.rootless:
                given += ["--userns", "keep-id"]
        for name, value in labels().items():
            given += ["--label", f"{name}={value}"]
        for name, inside in self._inside().items():
            read_only = self._accesses[name] == "read_only"
            given += ["--mount", _mount(sources[name], inside, engine.kind, read_only=read_only)]
        program, *rest = guest.command(self._python)
        return [engine.program, "run", *given, "--entrypoint", program, self._image, *rest]

    async def _end_client(self) -> None:
        """See the client end, its standard input being closed, and the container with it."""
        await whole(self._ended())

    async def _ended(self) -> None:
        client, engine = self._client, self._engine
        self._client = None
        if client is None or engine is None:
            return
        if client.stdin is not None:
            client.stdin.close()
        try:
            await asyncio.wait_for(client.wait(), _ENDING)
        except TimeoutError:
            pass
        if client.returncode is None or client.returncode < 0:  # else the client has seen to it
            try:
                await remove(engine, self._name)
            finally:
                if client.returncode is None:
                    with suppress(ProcessLookupError):
                        client.kill()
                    await client.wait()
        self._name = ""

    async def _unlay(self) -> None:
        await self._end_client()
        self.capabilities -= {word for word in (*_WHOLE.values(), *_OURS.values()) if word is not None}

    async def _try(self) -> None:
        seen = self.told.seen
        try:
            wrong = self._wrong(seen)
            if wrong:
                raise CapabilityError(f"the container is not as it must be: {'; '.join(wrong)}")
            self._look_at_limits(seen)
        except LittleGhostError:  # some of them are a ValueError too
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CapabilityError("the worker in the container did not say what it sees there") from error
        names = (name for name in (*_WHOLE, *_OURS) if getattr(self._limits, name) is not None)
        self.capabilities |= {word for name in names if (word := {**_WHOLE, **_OURS}[name]) is not None}

    def _wrong(self, seen: dict[str, Any]) -> list[str]:
        """Return what is not as it is claimed, in words."""
        wrong: list[str] = []
        user, rights, places = seen["user"], dict(seen["rights"]), seen["places"]
        gains, filtered = rights.pop("NoNewPrivs"), rights.pop("Seccomp")
        if len(user) != 4 or 0 in user:
            wrong.append("programs are root, or in root's group")
        if any(int(rights[name], 16) for name in RIGHTS):
            wrong.append("programs have capabilities")
        if gains != "1":
            wrong.append("programs may gain rights")
        if filtered != "2":
            wrong.append("there is no filter of system calls")
        if places["/"].get("read_only") is not True:
            wrong.append("the image is writable")
        spaces = seen["namespaces"]
        shared = [kind for kind in NAMESPACES if spaces[kind] == os.readlink(f"/proc/self/ns/{kind}")]
        wrong += [
            f"the {kind} namespace is the host's" for kind in shared if kind != "net" or not self._network
        ]
        if not self._network and set(seen["devices"]) - {"lo"}:
            wrong.append("there is a network")
        for name, inside in self._inside().items():
            what = "the workspace" if name is None else f"the path {name!r}"
            place = places[inside]
            if tuple(place.get("identity", ())) != self.workspace.directory(name).identity:
                wrong.append(f"{what} is another directory inside (does the engine run on another machine?)")
            elif self._accesses[name] == "read_only" and not place["read_only"]:
                wrong.append(f"{what} is not read-only")
            elif not place["usable"]:
                wrong.append(
                    f"user {user[0]} may not look into {what}; see user= (or, with SELinux, label the directory)"
                )
            elif self._accesses[name] == "read_write" and not place["writable"]:
                wrong.append(f"user {user[0]} may not write {what}; see user=")
        return wrong

    def _look_at_limits(self, seen: dict[str, Any]) -> None:
        limits, page = self._limits, os.sysconf("SC_PAGE_SIZE")
        for place in _TEMPORARY:
            if not 0 < seen["places"][place].get("size", 0) <= self._temporary + page:
                raise CapabilityError(
                    f"the engine does not enforce the limit temporary_bytes for {place}",
                    limit="temporary_bytes",
                )
        wanted = {"memory": limits.memory_bytes, "processes": limits.processes}
        for name, most in wanted.items():
            if most is None:
                continue
            found = seen["limits"][name]
            if not found or min(found) > most + (_OWN if name == "processes" else 0):
                limit = "memory_bytes" if name == "memory" else name
                raise CapabilityError(
                    f"the engine does not enforce the limit {limit} here (rootless containers need cgroups version 2, delegated)",
                    limit=limit,
                )


class _Attached(PipeTransport):
    """The streams of the engine's client. Where they end by themselves, it is said why.

    Args:
        sandbox: Whose they are.
        client: The client.
        end: See `PipeTransport`.
    """

    begun = False

    def __init__(self, sandbox: ContainerSandbox, client: asyncio.subprocess.Process, end: Any) -> None:
        super().__init__(client.stdout, client.stdin, client.stderr, end)
        self._sandbox, self._client, self._ending = sandbox, client, False

    async def receive(self) -> bytes:
        data = await super().receive()
        if data or not self.begun or self._ending:
            return data
        with suppress(TimeoutError):
            await asyncio.wait_for(self._client.wait(), _ENDING)
        code = self._client.returncode
        why = "the container has ended" + (f" ({code})" if code is not None else "")
        if code == 137:
            memory = self._sandbox.limits.memory_bytes
            why = "the container was killed" + (
                "" if memory is None else f", perhaps for its memory, which may be {memory:,} bytes in all"
            )
        elif code is not None and code < 0:
            why = "the client of the container engine was killed, and the container with it"
        raise ToolConnectionError(why)

    async def close(self) -> None:
        self._ending = True
        await super().close()


def _user(given: str) -> str:
    found = re.fullmatch(r"([0-9]{1,10})(?::([0-9]{1,10}))?", given, re.ASCII)
    if found is None:
        raise ConfigurationError(f"{given!r} is not a user: give UID or UID:GID, as numbers", user=given)
    user, group = int(found[1]), int(found[2] or found[1])
    if user == 0 or group == 0:
        raise ConfigurationError(
            "programs in a container are not to be root, nor in root's group", user=given
        )
    return f"{user}:{group}"


def _mount(source: str, inside: str, kind: str, *, read_only: bool) -> str:
    if any(char in source for char in ',"\n\r'):
        raise CapabilityError(
            f"a container engine cannot be given a directory with a comma, a quote or a line break in its path: {source!r}"
        )
    # What is mounted below the directory is left out: it would not be read-only with it.
    options = (",readonly" if read_only else "") + (",nodev,nosuid" if kind == "podman" else "")
    return f"type=bind,source={source},destination={inside}{options},bind-nonrecursive=true"


def _stated(limits: SandboxLimits) -> Sequence[str]:
    stated: list[str] = ["time and output limits of commands"]
    if limits.memory_bytes is not None:
        stated.append(
            f"{limits.memory_bytes:,} bytes of memory for all programs, the worker, and the files in /tmp"
        )
    if limits.processes is not None:
        stated.append(f"{limits.processes:,} processes and threads of all programs at a time")
    if limits.cpu_seconds is not None:
        stated.append(f"{limits.cpu_seconds:g} s of CPU time for each process of a command")
    if limits.file_bytes is not None:
        stated.append(f"{limits.file_bytes:,} bytes for each file that is written")
    return stated


_STAGING = "/run"
"""Where directories are mounted for a moment; a place that nothing tidies up."""


def _clear_staging() -> None:
    """Take away mounts that a process left which was killed just then."""
    if os.geteuid() != 0:
        return
    from littleghost.sandboxes.idmapped import detach

    with suppress(OSError):
        for entry in os.listdir(_STAGING):
            parts = entry.split("_", 5)
            if len(parts) == 6 and parts[0] == "littleghost" and is_left_behind(":".join(parts[1:5])):
                for inner in os.listdir(f"{_STAGING}/{entry}"):
                    detach(f"{_STAGING}/{entry}/{inner}")
                _without_error(os.rmdir, f"{_STAGING}/{entry}")


def _without_error(operation: Any, *arguments: Any) -> None:
    with suppress(OSError):
        operation(*arguments)
