"""The worker: a sandbox of the guest's own, served over standard input and output.

It ends, and everything it started with it, when its input ends: when the application closes the line, or dies. Where the greeting
names an interval (``signs``, in seconds), both sides give a sign of life in each: the worker an empty answer to the greeting, and the
application its withdrawal. The worker then ends as well when nothing came for six.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from littleghost.errors import CapabilityError, ConfigurationError, ToolConnectionError
from littleghost.sandboxes.contract import Sandbox
from littleghost.sandboxes.far.inside import seen
from littleghost.sandboxes.far.serving import Served, limits_of, welcome
from littleghost.sandboxes.far.wire import GREETING, MAGIC, MOST, PROTOCOL, Frame, Frames, error_said, frame
from littleghost.sandboxes.host import HostSandbox
from littleghost.sandboxes.policy import Policy
from littleghost.sandboxes.seccomp import filter_for
from littleghost.workspace import Workspace

__all__ = ["main"]

_CHUNK = 1 << 18
_MISSES = (
    6  # intervals without a sign of life after which the application is gone; later than the other way round
)


def main() -> None:
    """Serve until the input ends."""
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # nobody else speaks on the line
    os.close(nothing)
    _hide()
    # What it runs may signal it, and must not end it so. A handler, for what is ignored would be so in programs too.
    signal.signal(signal.SIGINT, _heard)
    with suppress(BrokenPipeError, KeyboardInterrupt):
        asyncio.run(_serve(reading, writing))


def _heard(_number: int, _frame: object) -> None:
    """Do nothing about a signal."""


def _hide() -> None:
    """Let no program of the same user look into this process; see PR_SET_DUMPABLE in prctl(2)."""
    if sys.platform == "linux":
        with suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)


async def _serve(reading: int, writing: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(writing, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def send(answer: bytes) -> None:
        writer.write(answer)
        await writer.drain()

    await send(MAGIC + b"ready\n")
    frames = Frames(lambda _number: MOST)
    arrived: list[Frame] = []
    while not arrived:
        data = await reader.read(_CHUNK)
        if not data:
            return
        arrived = frames.add(data)
    greeting = arrived.pop(0)
    try:
        sandbox = await _opened(greeting)
        look: list[str] | None = greeting.head.get("look")
        told = {} if look is None else {"seen": seen(look)}
    except Exception as error:  # noqa: BLE001 (whoever greeted is told)
        await send(frame(GREETING, {"error": error_said(error)}))
        return
    served = Served(sandbox)
    served.attach(send)
    life: _Life | None = None
    try:
        await send(frame(GREETING, {"is": {**welcome(sandbox), **told, "python": sys.version.split()[0]}}))
        life = _Life(reader, writer, greeting.head.get("signs"))
        while True:
            for question in arrived:
                await served.take(question)
            data = await reader.read(_CHUNK)
            if not data:
                break
            life.missed = 0
            arrived = frames.add(data)
    except (OSError, ToolConnectionError):
        pass  # nobody is there any more
    finally:
        if life is not None:
            life.stop()
        await served.close()
        await sandbox.close()


def _kind(isolation: Any) -> type[Sandbox]:
    if isolation is None:
        return HostSandbox
    if isolation == "bubblewrap":
        from littleghost.sandboxes.bubblewrap import BubblewrapSandbox

        return BubblewrapSandbox
    raise ConfigurationError("the worker was asked for an isolation that it does not know")


class _Life:
    """Gives signs of life, and ends what is read when none came for a time.

    It counts looks, so that a worker that was held up hears what came meanwhile.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, every: Any) -> None:
        self._reader, self._writer, self.missed = reader, writer, 0
        self._looking: asyncio.TimerHandle | None = None
        self._every = every if isinstance(every, int | float) and every > 0 else None
        self._again()

    def _again(self) -> None:
        if self._every is not None:
            self._looking = asyncio.get_running_loop().call_later(self._every, self._look)

    def _look(self) -> None:
        self.missed += 1
        if self.missed > _MISSES:
            self._reader.feed_eof()
            return
        if self._writer.transport.get_write_buffer_size() == 0:  # else something is on its way
            self._writer.write(frame(GREETING, {}))
        self._again()

    def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


def _filter(*, network: bool) -> None:
    """Put this process, and all that it will start, behind a filter of system calls; see seccomp(2)."""
    import ctypes

    program = filter_for(network=network)
    if program is None:
        raise CapabilityError(f"there is no filter of system calls for {os.uname().machine}")
    content = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    given = Program(len(program) // 8, ctypes.cast(content, ctypes.c_void_p))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    # PR_SET_NO_NEW_PRIVS, and PR_SET_SECCOMP with SECCOMP_MODE_FILTER
    if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.byref(given), 0, 0):
        raise CapabilityError(f"no filter of system calls could be set: {os.strerror(ctypes.get_errno())}")


def _threads(number: int) -> None:
    """Have so many threads for files, and have them now: when programs use up the processes that there may be, it is too late."""
    pool = ThreadPoolExecutor(number, thread_name_prefix="littleghost-files")
    begun = threading.Barrier(number + 1)
    for _ in range(number):
        pool.submit(begun.wait)
    begun.wait()
    asyncio.get_running_loop().set_default_executor(pool)


async def _opened(greeting: Frame) -> Sandbox:
    said: dict[str, Any] = greeting.head
    if greeting.number != GREETING or said.get("protocol") != PROTOCOL:
        raise ConfigurationError("the two sides of the sandbox are of different versions of LittleGhost")
    if "network" in said:
        _filter(network=said["network"] == "inherit")
    if "threads" in said:
        _threads(said["threads"])
    sandbox = _kind(said.get("isolation"))(
        Workspace(said["root"], said["paths"]),
        writable=said["writable"],
        policy=Policy(**said["policy"]),
        limits=limits_of(said["limits"]),
    )
    if said.get("isolation") is not None:
        _refuse_home(sandbox)
    if isinstance(sandbox, HostSandbox):
        sandbox.memory_events = said.get("memory events")
    await sandbox.open()
    if isinstance(sandbox, HostSandbox):
        sandbox.launcher.alone = os.getpid() == 1
    return sandbox


def _refuse_home(sandbox: Sandbox) -> None:
    """Refuse to let isolated programs write what the user's next login reads: that would be a way out."""
    home = os.path.realpath(os.path.expanduser("~"))
    workspace = sandbox.workspace
    writable = [workspace.root] if sandbox.writable else []
    access = sandbox.effective_policy.paths
    writable += [path for name, path in workspace.paths.items() if access.get(name) == "read_write"]
    for path in writable:
        if os.path.commonpath([home, os.path.realpath(path)]) == os.path.realpath(path):
            raise CapabilityError(
                f"{path} would be writable and holds the home directory, and so what the user's next login runs; take one below it"
            )
