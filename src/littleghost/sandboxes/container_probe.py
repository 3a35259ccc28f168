"""Finding out whether containers isolate here, by trying what must work and what must not."""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from littleghost.errors import LittleGhostError
from littleghost.sandboxes.contract import Check, Probe, Sandbox
from littleghost.sandboxes.engines import find_engine
from littleghost.workspace import Workspace

__all__ = ["probe_container"]

# Says of each attempt whether it worked. The arguments are a file of the host, a port of its loopback, and what the file holds.
_SCRIPT = r"""
import ctypes, json, os, socket, stat, sys
host, port, canary = sys.argv[1:]
libc = ctypes.CDLL(None)
tried = {}
def attempt(name, work):
    try:
        tried[name] = bool(work())
    except OSError:
        tried[name] = False
def put(path):
    with open(path, "a") as file:
        file.write("x")
    return True
def get(path):
    with open(path) as file:
        return file.read() == canary
def connect(family, address):
    with socket.socket(family) as line:
        line.settimeout(2)
        line.connect(address)
    return True
def device():
    os.mknod("/tmp/device", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    return True
def setuid():
    os.chmod("given", 0o4755)
    return True
def status(name):
    with open("/proc/self/status") as file:
        return next((line.split()[1] for line in file if line.startswith(name + ":")), "")
attempt("read the workspace", lambda: get("given"))
attempt("write the workspace", lambda: put("made"))
attempt("write /tmp", lambda: put("/tmp/made"))
attempt("read a file of the host", lambda: get(host))
attempt("write beside a file of the host", lambda: put(os.path.dirname(host) + "/made"))
attempt("write the image", lambda: put("/etc/littleghost-probe"))
attempt("write the root directory", lambda: put("/littleghost-probe"))
attempt("write /dev", lambda: put("/dev/littleghost-probe"))
attempt("write a setting of the kernel", lambda: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)) is None)
attempt("make a device", device)
attempt("make a setuid file", setuid)
attempt("read the worker's environment", lambda: open("/proc/1/environ").close() is None)
attempt("kill the worker", lambda: os.kill(1, 9) is None and not os.path.exists("/proc/1"))
attempt("see more processes than its own", lambda: sum(name.isdigit() for name in os.listdir("/proc")) > 8)
attempt("have a capability", lambda: any(int(status(name), 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")))
attempt("gain rights", lambda: status("NoNewPrivs") != "1")
attempt("make a nested user namespace", lambda: libc.unshare(0x10000000) == 0)
attempt("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0)
attempt("reach the host's loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", int(port))))
attempt("reach an address", lambda: connect(socket.AF_INET, ("192.0.2.1", 80)))
attempt("make a socket for socket files", lambda: socket.socket(socket.AF_UNIX).close() is None)
print(json.dumps(tried))
"""
_MUST_WORK = ("read the workspace", "write the workspace", "write /tmp")


def _laid_out(folder: Path, canary: str) -> tuple[Path, Path]:
    """Make a file of the host and a workspace, both holding ``canary``."""
    host_file, root = folder / "canary", folder / "workspace"
    root.mkdir()
    for file in (host_file, root / "given"):
        file.write_text(canary, encoding="utf-8")
    return host_file, root


async def probe_container(
    make: Callable[..., Sandbox],
    *,
    image: str | None,
    engine: str | os.PathLike[str] | None,
    python: str,
) -> Probe:
    """Return whether ``engine`` isolates here, with ``image``, in the sandboxes that ``make`` makes."""
    version = ""
    try:
        found = await find_engine(engine)
        version = found.version
        if image is None:
            return Probe(
                available=False,
                reason=f"there is {found.kind}; name an image to try it with: image=",
                version=version,
            )
        with (
            tempfile.TemporaryDirectory(prefix="littleghost-probe-") as outside,
            socket.socket() as listener,
        ):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            canary = secrets.token_hex(8)
            host_file, root = _laid_out(Path(outside), canary)
            arguments = [python, "-I", "-S", "-B", "-c", _SCRIPT, str(host_file)]
            arguments += [str(listener.getsockname()[1]), canary]
            async with make(
                Workspace(root), image=image, writable=True, engine=engine, python=python
            ) as sandbox:
                tried = await sandbox.execute_program(arguments, timeout=60)
            async with make(Workspace(root), image=image, engine=engine, python=python) as sandbox:
                script = "open('forbidden', 'w')"
                forbidden = await sandbox.execute_program([python, "-I", "-S", "-c", script], timeout=60)
            wrote = root.joinpath("forbidden").exists() or forbidden.success
    except (LittleGhostError, OSError) as error:
        return Probe(available=False, reason=str(error), version=version)
    try:
        results: dict[str, bool] = json.loads(tried.stdout)
    except ValueError:
        said = tried.error or tried.stderr.strip()[-500:]
        return Probe(available=False, reason=f"the probe did not run to its end: {said}", version=version)
    results["write a read-only workspace"] = wrote
    checks = tuple(
        Check(name=name, ok=worked is (name in _MUST_WORK), denial=name not in _MUST_WORK)
        for name, worked in results.items()
    )
    wrong = [f"{check.name} {'worked' if check.denial else 'failed'}" for check in checks if not check.ok]
    wrong += [f"{name} was not tried" for name in _MUST_WORK if name not in results]
    reason = "" if not wrong else "not as it must be: " + ", ".join(wrong)
    return Probe(available=not wrong, reason=reason, checks=checks, version=version)
