"""The programs that run containers, ``podman`` and ``docker``: where they are, what they say when they cannot, and what is left of owners.

Every container carries labels that say which process it belongs to: its number, when it was started, its pid namespace, and the boot
of the machine. Only where all four can be told, and the process is gone, is a container taken for left behind.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from littleghost.errors import CapabilityError, CleanupError
from littleghost.workspace import legible

__all__ = [
    "OWNER",
    "Engine",
    "Said",
    "find_engine",
    "is_left_behind",
    "labels",
    "reap",
    "refusal",
    "remove",
    "say",
]

OWNER = "littleghost.owner"
"""The label that says whose a container is."""

_SECONDS = 60.0
_HOW = "install podman (apt install podman) or docker, or name the program with engine="


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """A program that runs containers.

    Attributes:
        program: Its path.
        kind: What it is, whatever it is called.
        version: What it says of itself.
    """

    program: str
    kind: Literal["podman", "docker"]
    version: str

    @property
    def rootless(self) -> bool:
        """Whether containers are this user's own, and this user is not root."""
        return self.kind == "podman" and os.geteuid() != 0


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a program printed, and how it ended; ``None`` where it took too long."""

    code: int | None
    output: str
    errors: str


_known: dict[tuple[object, ...], Engine] = {}  # which are asked once what they are


async def find_engine(
    given: str | os.PathLike[str] | None, folders: Sequence[str | os.PathLike[str]] = ()
) -> Engine:
    """Return the engine.

    Args:
        given: ``podman``, ``docker`` or a path; ``None`` takes whichever of the two is found first.
        folders: Directories of an agent's, in which none is taken.

    Raises:
        CapabilityError: There is none, or it does not run.
    """
    names = ["podman", "docker"] if given is None else [os.fspath(given)]
    for program in _programs(names, folders):
        status = os.stat(program)
        key = (program, status.st_dev, status.st_ino, status.st_mtime_ns)
        if key in _known:
            return _known[key]
        said = await say(program, "--version", seconds=20)
        version = said.output.strip().splitlines()[0] if said.output.strip() else ""
        if said.code != 0 or not version:
            raise CapabilityError(f"{program} does not run: {_last(said.errors) or 'it said nothing'}")
        kind = (
            "podman" if "podman" in version.lower() else "docker"
        )  # there is a podman that is called docker
        _known[key] = Engine(program=program, kind=kind, version=version)
        return _known[key]
    what = (
        "no container engine was found" if given is None else f"the container engine {names[0]} was not found"
    )
    raise CapabilityError(f"{what}; {_HOW}")


def _programs(names: Sequence[str], folders: Sequence[str | os.PathLike[str]]) -> Iterator[str]:
    places = [part for part in os.get_exec_path() if os.path.isabs(part)]
    own = [os.path.realpath(folder) for folder in folders]
    for name in names:
        given = os.sep in name
        for program in (
            [os.path.abspath(name)] if given else [shutil.which(name, path=place) for place in places]
        ):
            if program is not None and os.access(program, os.X_OK):
                real = Path(os.path.realpath(program))
                if not any(real.is_relative_to(folder) for folder in own):
                    yield program


async def say(program: str, *arguments: str, seconds: float = _SECONDS) -> Said:
    """Run a program of the engine's to its end, or kill it after ``seconds``."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        return Said(code=None, output="", errors=f"it took more than {seconds:g} s")
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
    return Said(
        code=process.returncode,
        output=output.decode("utf-8", "replace"),
        errors=errors.decode("utf-8", "replace"),
    )


def _last(said: str) -> str:
    words = [line.strip() for line in said.strip().splitlines() if line.strip()]
    return legible(words[-1])[:500] if words else ""


def refusal(engine: Engine, image: str, python: str, said: str) -> CapabilityError:
    """Return why a container did not start, by what the engine or the container said."""
    words, last = said.lower(), _last(said)
    name = engine.kind

    def has(*parts: str) -> bool:
        return any(part in words for part in parts)

    if has("image not known", "no such image", "unable to find image", "does not exist locally"):
        return CapabilityError(
            f"the image {image} is not here, and none is fetched unasked; to have it: {name} pull {image}"
        )
    if has("permission denied while trying to connect", "got permission denied"):
        return CapabilityError(
            f"this user may not talk to the {name} daemon; take rootless podman, or add the user to its group (who may talk to it is as "
            f"good as root): {last}"
        )
    if has(
        "cannot connect to the docker daemon",
        "is the docker daemon running",
        "failed to connect to the docker api",
    ):
        return CapabilityError(f"the {name} daemon does not run; start it (systemctl start docker): {last}")
    if has("rlimit", "rlimits"):
        return CapabilityError(
            f"{name} may not set the resource limits that it is configured to; set default_ulimits in containers.conf: {last}"
        )
    if has("unable to set memory limit", "minimum memory limit allowed"):
        return CapabilityError(
            f"limits.memory_bytes is less than a container takes to start; the worker alone takes some 30 MB: {last}",
            limit="memory_bytes",
        )
    if has("cgroup"):
        return CapabilityError(
            f"{name} cannot set up control groups here; another runtime or cgroup_manager in containers.conf may "
            f'(runtime = "runc", cgroup_manager = "cgroupfs"): {last}'
        )
    if has(
        "executable file",
        f"exec {python.lower()}",
        f"{python.lower()}: not found",
        f"{python.lower()}: no such file",
    ):
        return CapabilityError(
            f"the image {image} has no {python}; take one with Python 3.11 or newer, or name it with python=: {last}"
        )
    if has("subuid", "newuidmap", "user namespace"):
        return CapabilityError(
            f"{name} cannot make a user namespace for this user (apt install uidmap, and lines in /etc/subuid and /etc/subgid): {last}"
        )
    if has("permission denied"):
        return CapabilityError(f"{name} was denied something it needs for a container of {image}: {last}")
    return CapabilityError(f"{name} did not start a container of {image}: {last or 'it said nothing'}")


def labels() -> dict[str, str]:
    """Return the labels of a container of this process's."""
    owner = ":".join((str(os.getpid()), _started(os.getpid()) or "?", _namespace(), _boot()))
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {OWNER: owner, "littleghost.host": socket.gethostname(), "littleghost.created": created}


def _started(pid: int) -> str | None:
    """Return when a process was started, in ticks since the boot; ``None`` where it is gone, or dead and not yet reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode("ascii")


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")
    return "?"


def _boot() -> str:
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return "?"


def is_left_behind(owner: str) -> bool:
    """Return whether the owner that a label names is certainly gone."""
    parts = owner.split(":")
    if len(parts) != 4 or not parts[0].isascii() or not parts[0].isdigit() or "?" in parts:
        return False
    pid, started, namespace, boot = parts
    if (namespace, boot) != (_namespace(), _boot()):
        return False  # of another machine, or of a container whose processes are not seen from here
    now = _started(int(pid))
    return now != started and not (now is None and _hidden(int(pid)))


def _hidden(pid: int) -> bool:
    """Return whether a process that ``/proc`` does not show may be there: another user's, where it is mounted with ``hidepid``."""
    if os.path.exists(f"/proc/{pid}"):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


async def reap(engine: Engine) -> list[str]:
    """Remove containers whose owner is gone; return their numbers.

    Raises:
        CapabilityError: The engine does not say which there are.
    """
    listed = await say(engine.program, "ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={OWNER}")
    if listed.code != 0:
        raise refusal(engine, "any image", "python3", listed.errors)
    numbers = listed.output.split()
    if not numbers:
        return []
    form = '{{.Id}} {{index .Config.Labels "' + OWNER + '"}}'
    told = await say(engine.program, "container", "inspect", "--format", form, *numbers)
    removed: list[str] = []
    for line in told.output.splitlines():
        number, _, owner = line.strip().partition(" ")
        if number in numbers and is_left_behind(owner):
            with suppress(CleanupError):  # the next one tries again
                await remove(engine, number)
                removed.append(number)
    return removed


async def remove(engine: Engine, name: str) -> None:
    """Kill a container with everything in it, and remove it. One that is gone already is no error.

    Raises:
        CleanupError: It is still there.
    """
    at_once = ("--time", "0") if engine.kind == "podman" else ()
    for again in (True, True, True, True, False):  # podman fails where the container ends by itself meanwhile
        said = await say(engine.program, "rm", "--force", "--volumes", *at_once, name)
        missing = said.errors.lower()
        if said.code == 0 or "no such container" in missing or "no container with" in missing:
            return
        if again:
            await asyncio.sleep(0.2)
            continue
        raise CleanupError(f"the container {name} could not be removed: {_last(said.errors)}", container=name)
