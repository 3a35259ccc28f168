"""Bringing the worker to a guest that has nothing but Python: over the same pipe that it then speaks on.

Nothing is written there. The interpreter is started with a few lines that read a program from standard input; the program holds the
sources of the modules and imports them from memory.
"""

from __future__ import annotations

import functools

from littleghost.errors import CapabilityError, ToolConnectionError
from littleghost.sandboxes.far.line import Transport
from littleghost.sandboxes.far.wire import MAGIC
from littleghost.sandboxes.sources import source_of
from littleghost.workspace import legible, shown

__all__ = ["ISOLATING", "MODULES", "begin", "command"]

MODULES = (
    "littleghost.errors",
    "littleghost.cancellation",
    "littleghost.telemetry",
    "littleghost.descriptors",
    "littleghost.workspace",
    *(
        f"littleghost.sandboxes.{name}"
        for name in (
            "policy",
            "contract",
            "sources",
            "files",
            "patterns",
            "matcher",
            "searching",
            "captures",
            "commands",
            "streaming",
            "prestarted",
            "supervisor",
            "processes",
            "restraints",
            "nesting",
            "local",
            "host",
            "seccomp",
            "far.wire",
            "far.inside",
            "far.serving",
            "far.worker",
        )
    ),
)
"""What the worker is made of. They import the standard library, each other, and as much of msgspec as `standin` has."""

ISOLATING = (
    *MODULES,
    "littleghost.sandboxes.seccomp",
    "littleghost.sandboxes.probing",
    "littleghost.sandboxes.bubblewrap",
)
"""What a worker is made of that can isolate with the guest's bubblewrap."""

_PACKAGES: tuple[str, ...] = ("littleghost", "littleghost.sandboxes", "littleghost.sandboxes.far")
_NOISE = 1 << 16  # bytes that may come before the worker
_LEAST = (3, 11)

# For any Python, so that one that is too old can say so.
_BOOT = """
import os, sys
def read(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part:
            sys.exit(1)
        data += part
    return data
if sys.version_info < %(least)r:
    os.write(1, %(magic)r + ("old %%d.%%d\\n" %% sys.version_info[:2]).encode())
    sys.exit(1)
exec(compile(read(int(read(10))), "<littleghost>", "exec"))
"""

_IMPORTER = """
import importlib.abc, importlib.machinery, sys
class FromMemory(importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name in sources:
            where = "/dev/null/%s.py" % name.replace(".", "/")  # for those who ask, and nowhere
            spec = importlib.machinery.ModuleSpec(name, self, origin=where, is_package=name in packages)
            spec.has_location = True
            return spec
    def get_source(self, name):
        return sources[name]
    def is_package(self, name):
        return name in packages
sys.meta_path.insert(0, FromMemory())
from littleghost.sandboxes.far.worker import main
main()
"""


def command(python: str = "python3") -> list[str]:
    """Return what to run in the guest: an interpreter that waits for the worker."""
    boot = _BOOT % {"least": _LEAST, "magic": MAGIC}
    return [python, "-I", "-S", "-B", "-c", boot.strip()]


@functools.cache
def _program(modules: tuple[str, ...]) -> bytes:
    sources: dict[str, str] = dict.fromkeys(_PACKAGES, "")
    for name, module in {
        **{name: name for name in modules},
        "msgspec": "littleghost.sandboxes.far.standin",
    }.items():
        text = source_of(module)
        if text is None:
            raise CapabilityError("a worker needs the library's sources, and they are not there")
        sources[name] = text
    program = f"sources = {sources!r}\npackages = {_PACKAGES!r}\n{_IMPORTER}".encode(
        "ascii", "backslashreplace"
    )
    return b"%010d" % len(program) + program


async def begin(transport: Transport, where: str, modules: tuple[str, ...] = MODULES) -> bytes:
    """Bring the worker to the interpreter at the other end, and return what it has said beyond that it is ready.

    Args:
        transport: The line to it.
        where: What the guest is called in errors.
        modules: What the worker is made of: `MODULES` or `ISOLATING`.

    Raises:
        CapabilityError: There is no Python, or too old a one.
        ToolConnectionError: The line broke.
    """
    heard = b""
    sending = True
    while MAGIC not in heard or b"\n" not in heard.partition(MAGIC)[2]:
        if sending:
            sending = False
            try:
                await transport.send(_program(modules))
            except OSError:
                pass  # what it said tells why
        data = await transport.receive()
        if not data:
            raise CapabilityError(_silent(where, heard, await transport.last_words()))
        heard += data
        if len(heard) > _NOISE and b"\n" not in heard.partition(MAGIC)[2]:
            raise ToolConnectionError(f"{where} says something else than a worker")
    said, _, rest = heard.partition(MAGIC)[2].partition(b"\n")
    if said.startswith(b"old"):
        least = ".".join(map(str, _LEAST))
        raise CapabilityError(
            f"{where} has Python {shown(said[4:40].decode('ascii', 'replace'))}, and {least} or newer is needed; name another with python="
        )
    return rest


def _lines(said: bytes) -> list[str]:
    """What was said, but for what an SSH server says of an account without a home directory, which then runs programs all the same."""
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return [line for line in lines if not line.startswith("Could not chdir to home directory")]


def _silent(where: str, heard: bytes, errors: bytes) -> str:
    words = _lines(errors) or _lines(heard)
    last = legible(words[-1])[:500] if words else ""
    if any("not found" in word or "No such file" in word or "executable file" in word for word in words[-3:]):
        return f"{where} has no Python where it was looked for ({last}); install Python 3.11 or newer there, or name it with python="
    return f"the worker in {where} did not start" + (f": {last}" if last else "; it said nothing")
