"""What is so where the worker is, as it sees it itself. Whoever started it there compares that with what it claims."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

__all__ = ["NAMESPACES", "RIGHTS", "seen"]

RIGHTS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
NAMESPACES = ("pid", "net", "mnt", "ipc", "uts")
_LIMITS = {
    "memory": ("memory.max", "memory/memory.limit_in_bytes"),
    "processes": ("pids.max", "pids/pids.max"),
}


def seen(paths: Iterable[str]) -> dict[str, Any]:
    """Return who this process is, its rights, namespaces, network devices and limits, and what is at some directories."""
    lines = _text("/proc/self/status").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    devices = [line.split(":")[0].strip() for line in _text("/proc/net/dev").splitlines() if ":" in line]
    return {
        "user": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()],
        "rights": {name: status.get(name, "") for name in (*RIGHTS, "NoNewPrivs", "Seccomp")},
        "namespaces": {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in NAMESPACES},
        "devices": devices,
        "limits": {
            name: [int(text) for file in files if (text := _text(f"/sys/fs/cgroup/{file}").strip()).isdigit()]
            for name, files in _LIMITS.items()
        },
        "places": {path: _place(path) for path in paths},
    }


def _text(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8") as file:
        return file.read()
    return ""


def _place(path: str) -> dict[str, Any]:
    try:
        status, system = os.stat(path), os.statvfs(path)
    except OSError as error:
        return {"error": error.strerror}
    return {
        "identity": [status.st_dev, status.st_ino],
        "read_only": bool(system.f_flag & os.ST_RDONLY),
        "size": system.f_blocks * system.f_frsize,
        "usable": os.access(path, os.R_OK | os.X_OK),
        "writable": os.access(path, os.R_OK | os.W_OK | os.X_OK),
    }
