"""Limits on what programs use: which of them the kernel will enforce here, and how.

* Control groups bound memory, processes and CPU time of a command as a whole. Each command gets groups of its own, below the
  application's: its keeper makes them, starts the command in them, and removes them. Version 2 needs a subtree that the application may
  divide (``Delegate=yes``, or root), version 1 needs root.
* Resource limits bound each process: CPU time and the size of files. ``RLIMIT_NPROC`` counts all processes of a user, so it is taken only
  inside a user namespace, where Linux counts since 5.14 those of that namespace; it does not bind root.

See cgroups(7), getrlimit(2), user_namespaces(7) and the kernel's ``admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import functools
import math
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from littleghost.sandboxes.contract import SandboxLimits

__all__ = ["Restraints", "clear_groups", "groups_of", "restraints_of"]

_CPU, _FSIZE, _NPROC = 0, 1, 6  # Linux's numbers of the resource limits; CPU and FSIZE are everyone's
_GROUP = re.compile(r"littleghost-(\d+)-(\d+)\Z")  # see `Groups` of the supervisor
_SETTLED = 10.0  # seconds within which a command has entered its groups
_BINDING = ("memory_bytes", "processes", "cpu_seconds", "file_bytes", "disk_bytes")
_MOST = 2**63 - 1
_MAKING = 0.1  # seconds of CPU time that the making of a namespace may take of a command's


class Restraints(msgspec.Struct, frozen=True, kw_only=True):
    """How limits are enforced.

    Attributes:
        groups: What a keeper does, a text for each control group: its parent, then ``file=value`` lines; and ``cpu`` with nanoseconds.
        rlimits: Resource limits: number, soft, hard.
        stated: What holds, in words.
        names: The limits that are in force.
        refused: The first limit that cannot be, and why.
    """

    groups: tuple[str, ...] = ()
    rlimits: tuple[tuple[int, int, int], ...] = ()
    stated: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    refused: tuple[str, str] | None = None


def restraints_of(limits: SandboxLimits, *, namespaced: bool = False) -> Restraints:
    """Return how ``limits`` are enforced here.

    Args:
        limits: What is asked for; only what bounds programs is looked at.
        namespaced: Whether a command has a user namespace of its own, whose first process is one more.
    """
    groups: list[str] = []
    rlimits: list[tuple[int, int, int]] = []
    stated: list[str] = []
    names: set[str] = set()
    if all(getattr(limits, name) is None for name in _BINDING):
        return Restraints()
    found, why = ({}, "they are Linux's") if sys.platform != "linux" else groups_of()
    clear_groups(found.values())

    def refuse(name: str, reason: str) -> Restraints:
        return Restraints(refused=(name, reason))

    if limits.disk_bytes is not None:
        return refuse(
            "disk_bytes",
            "it would take a file system with project quotas, made for this; bound it with one of your own",
        )
    if limits.memory_bytes is not None:
        if "memory" not in found:
            return refuse("memory_bytes", f"it takes a control group, and there is none: {why}")
        groups.append(_memory(found["memory"], limits.memory_bytes))
        stated.append(f"{limits.memory_bytes:,} bytes of memory for a command, its files in /tmp included")
        names.add("memory_bytes")
    if limits.processes is not None:
        if "pids" in found:
            # bwrap has one process outside the namespace and one that is the first inside
            groups.append(f"{found['pids']}\npids.max={min(limits.processes + 2 * namespaced, 4 << 20)}")
        elif namespaced and os.getuid() != 0 and _counts_in_namespaces():
            most = min(limits.processes + 1, _MOST)
            rlimits.append((_NPROC, most, most))
        else:
            return refuse("processes", f"it takes a control group, and there is none: {why}")
        stated.append(f"{limits.processes:,} processes and threads of a command at a time")
        names.add("processes")
    if limits.cpu_seconds is not None:
        seconds = math.ceil(limits.cpu_seconds)
        rlimits.append((_CPU, seconds, seconds + 1))
        names.add("cpu_seconds")
        if "cpuacct" in found:
            groups += [found["cpuacct"], f"cpu\n{int((limits.cpu_seconds + _MAKING * namespaced) * 1e9)}"]
            stated.append(f"{limits.cpu_seconds:g} s of CPU time for a command")
        else:
            stated.append(f"{seconds} s of CPU time for each process of a command, whose number counts too")
    if limits.file_bytes is not None:
        rlimits.append((_FSIZE, limits.file_bytes, limits.file_bytes))
        stated.append(f"{limits.file_bytes:,} bytes for each file that is written")
        names.add("file_bytes")
    return Restraints(
        groups=tuple(groups), rlimits=tuple(rlimits), stated=tuple(stated), names=frozenset(names)
    )


def _memory(folder: str, most: int) -> str:
    if os.path.exists(f"{folder}/cgroup.controllers"):
        return f"{folder}\nmemory.max={most}\n?memory.swap.max=0"
    return f"{folder}\nmemory.limit_in_bytes={most}\n?memory.memsw.limit_in_bytes={most}"


def _counts_in_namespaces() -> bool:
    numbers = os.uname().release.split("-")[0].split(".")
    return [int(number) for number in numbers[:2] if number.isdigit()] >= [5, 14]


@functools.cache
def clear_groups(folders: Iterable[str], *, older: float = _SETTLED) -> None:
    """Remove the control groups of commands that were killed together with everybody who would have removed them.

    Args:
        folders: The directories that they are in.
        older: How many seconds ago they were made at least. The processes of another pid namespace cannot be seen to be there.
    """
    for folder in set(folders):
        with suppress(OSError):
            for name in os.listdir(folder):
                made_by = _GROUP.match(name)
                if made_by is None or any(os.path.exists(f"/proc/{pid}") for pid in made_by.groups()):
                    continue
                with suppress(OSError):  # something is in it, or another was quicker
                    if time.time() - os.stat(f"{folder}/{name}").st_mtime >= older:
                        os.rmdir(f"{folder}/{name}")


def groups_of(
    process: str = "/proc/self", needed: tuple[str, ...] = ("memory", "pids", "cpuacct")
) -> tuple[dict[str, str], str]:
    """Return the directories below which groups can be made, by controller, and why there is none where one is missing.

    Args:
        process: The directory that tells of the application.
        needed: The controllers that are looked for, by their names in version 1.
    """
    try:
        with open(f"{process}/cgroup", encoding="utf-8") as file:
            memberships = [line.rstrip("\n").split(":", 2) for line in file]
        with open(f"{process}/mountinfo", encoding="utf-8") as file:
            mounts = [line.split() for line in file]
    except OSError as error:
        return {}, f"{process} cannot be read ({error.strerror})"
    found: dict[str, str] = {}
    reasons: list[str] = []
    for number, controllers, path in memberships:
        names = controllers.split(",")
        wanted = [name for name in needed if name in names or number == "0"]
        for mount in mounts:
            kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
            right = kind == "cgroup2" if number == "0" else kind == "cgroup" and set(names) <= set(options)
            root, point = mount[3], mount[4]
            if not right or not wanted or "/.." in path or not (root == "/" or path.startswith(root)):
                continue
            below = path if root == "/" else path[len(root) :]
            folder = point + below.rstrip("/")
            if number == "0":
                _divisible(folder, point, wanted, found, reasons)
            elif _writable(folder):
                found.update(dict.fromkeys(wanted, folder))
            else:
                reasons.append(f"{folder} cannot be written")
    return found, "; ".join(dict.fromkeys(reasons)) or "no hierarchy with that controller is mounted"


def _divisible(folder: str, top: str, wanted: list[str], found: dict[str, str], reasons: list[str]) -> None:
    """Look in version 2 for the nearest group above the application's whose subtree has the controllers, or can have them."""
    real = {name: "cpu" if name == "cpuacct" else name for name in wanted}
    while True:
        try:
            with open(f"{folder}/cgroup.controllers", encoding="utf-8") as file:
                offered = set(file.read().split())
            with open(f"{folder}/cgroup.subtree_control", encoding="utf-8") as file:
                divided = set(file.read().split())
        except OSError:
            offered, divided = set[str](), set[str]()
        if _writable(folder) and os.access(f"{folder}/cgroup.procs", os.W_OK):
            for name in ("memory", "pids"):
                if name in wanted and name in offered - divided:
                    with (
                        suppress(OSError),
                        open(f"{folder}/cgroup.subtree_control", "w", encoding="utf-8") as file,
                    ):
                        file.write(f"+{name}")
                        file.flush()
                        divided.add(name)
            for name in wanted:
                # how much CPU time was used is told by every group
                if name not in found and (
                    real[name] in divided or (name == "cpuacct" and {"memory", "pids"} & divided)
                ):
                    found[name] = folder
        else:
            reasons.append(f"{folder} cannot be written")
        if folder == top or not folder.startswith(top):
            break
        folder = os.path.dirname(folder)
    if any(name not in found for name in wanted):
        reasons.append(
            "no group of version 2 with those controllers may be divided (see Delegate= in systemd)"
        )


def _writable(folder: str) -> bool:
    """Return whether a group can be made below ``folder``, by making one."""
    trial = f"{folder}/littleghost-trial-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        os.mkdir(trial)
        os.rmdir(trial)
    except OSError:
        return False
    return True
