"""What the service keeps for its clients: a directory and a sandbox each, for as long as the client is there.

The root belongs to one service at a time, by a lock that ends with its process. A lease is ``lease-`` and 32 hexadecimal digits, holds a
mark and, beside it, the workspace; a client reaches the workspace only. What a service that was killed left is deleted by the next one,
and nothing else is.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import secrets
import stat
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, cast
from weakref import WeakValueDictionary

import msgspec

from littleghost.descriptors import delete_tree
from littleghost.errors import (
    CapabilityError,
    ConfigurationError,
    LittleGhostError,
    PolicyError,
    ToolConnectionError,
    ToolError,
    ToolValueError,
)
from littleghost.sandboxes.contract import Sandbox, SandboxLimits
from littleghost.sandboxes.far.line import whole
from littleghost.sandboxes.far.serving import Answer, Served, limits_of, welcome
from littleghost.sandboxes.far.wire import Frame, mapping
from littleghost.sandboxes.policy import Policy
from littleghost.workspace import Workspace

__all__ = ["Lease", "Leases", "ServiceLimits"]

_log = logging.getLogger(__name__)

MARK = ".littleghost-lease"
LOCK = ".littleghost-service"
_NAME = re.compile(r"lease-[0-9a-f]{32}\Z")
_SECRET = re.compile(r"[A-Za-z0-9_-]{32,128}\Z")
_AT_ONCE = 8  # file operations of a name in the tokens, each of which takes a thread
_PATHS = 32  # named paths of a lease, each of which takes a descriptor
_IN_THREADS = frozenset({
    "read", "read_bytes", "list", "stat", "write", "write_bytes", "replace", "delete", "move", "make_directory", "glob", "grep",
})  # fmt: skip


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients of a `SandboxService` may use.

    Attributes:
        leases: How many sandboxes there may be at a time.
        leases_per_token: How many of them may belong to one name in the tokens.
        lease_seconds: How long a client whose connection was lost may take to come again, before its sandbox ends.
        questions: How many requests of a client may be open at a time. Each started program that is waited for or read from has some.
        programs: How many programs of a client may run at a time.
        message_bytes: Longest request.
        waiting_bytes: How many bytes open requests and unread answers of a client may have together.
        sandbox: Upper bounds of every sandbox. A client may ask for less.
    """

    leases: int = 64
    leases_per_token: int = 16
    lease_seconds: float = 30.0
    questions: int = 256
    programs: int = 32
    message_bytes: int = 16 << 20
    waiting_bytes: int = 64 << 20
    sandbox: SandboxLimits = SandboxLimits(
        read_bytes=16 << 20, write_bytes=16 << 20, list_entries=10_000, output_bytes=4 << 20
    )

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: Any = getattr(self, name)
            if name == "sandbox":
                good = isinstance(value, SandboxLimits)
            else:
                kinds = (int, float) if name.endswith("_seconds") else int
                good = isinstance(value, kinds) and not isinstance(value, bool) and 1 <= value < 1 << 40
            if not good:
                raise ConfigurationError(f"the limit {name} of a service must be 1 or more, not {value!r}")


class _Served(Served):
    """Answers one client, who ends its lease by closing."""

    def __init__(
        self,
        sandbox: Sandbox,
        limits: ServiceLimits,
        threads: asyncio.Semaphore,
        end: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(
            sandbox,
            keep=True,
            questions=limits.questions,
            programs=limits.programs,
            waiting=limits.waiting_bytes,
        )
        self._threads = threads
        self._end = end

    async def _done(self, question: Frame) -> Answer:
        if question.head.get("do") in _IN_THREADS:
            async with self._threads:
                return await super()._done(question)
        return await super()._done(question)

    async def _close(self, view: Sandbox, given: dict[str, Any], data: bytes) -> Answer:
        await self._end()
        return None, b""


class Lease:
    """A sandbox of one client.

    Attributes:
        owner: Whose it is.
        connection: What its client is on, or ``None``.
        emptied: Whether its programs and files are gone, and it is there for its last answers only.
    """

    def __init__(self, leases: Leases, owner: str, key: tuple[str, bytes], directory: str) -> None:
        self._leases, self.owner, self.key, self._directory = leases, owner, key, directory
        self.connection: Any = None
        self.emptied = False
        self.told: dict[str, Any] = {}
        self.made: asyncio.Task[None] | None = None
        self._sandbox: Sandbox | None = None
        self.served: _Served | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._emptying = asyncio.Lock()

    @property
    def idle(self) -> bool:
        """Whether it does nothing just now that anybody would miss."""
        return self.made is not None and self.made.done() and (self.served is None or self.served.idle)

    async def make(self, asked: Mapping[str, Any]) -> None:
        """Make the directory and the sandbox that was asked for, or nothing."""
        try:
            self._sandbox = sandbox = self._leases.sandbox(os.path.join(self._directory, "workspace"), asked)
            await whole(asyncio.to_thread(_lay_out, self._directory))
            await sandbox.open()
            self.served = _Served(sandbox, self._leases.limits, self._leases.threads(self.owner), self._empty)
            told = welcome(sandbox)
            told["capabilities"] = [word for word in told["capabilities"] if word != "local_files"]
            self.told = {
                **told,
                "lease_seconds": self._leases.limits.lease_seconds,
                "message_bytes": self._leases.limits.message_bytes,
            }
        except BaseException as error:
            await self._empty()
            self._leases.forget(self)
            if isinstance(error, LittleGhostError):  # which may name a path of this machine
                error.message = error.message.replace(self._directory, "the lease")
            raise

    def attach(self, connection: Any) -> None:
        """Let the client be on ``connection`` from now on; on one that it had before nothing is heard any more."""
        before, self.connection = self.connection, connection
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if before is not None:
            before.end("the client has come on another connection")
        if self.served is not None:
            self.served.attach(connection.say)

    def detach(self, connection: Any) -> None:
        """Note that a connection is lost. The lease ends when its client does not come again."""
        if self.connection is not connection:
            return
        self.connection = None
        if self._timer is not None:
            self._timer.cancel()
        if self.served is not None:
            self.served.attach(None)
        if self.emptied or self._leases.closed:
            self.end("the sandbox is closed")
        else:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                self._leases.limits.lease_seconds, self.end, "the client did not come again"
            )

    def end(self, why: str) -> asyncio.Task[None]:
        """End it: its programs, its files, and its connection."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._end(why), name="littleghost-lease")
        return self._ending

    async def _end(self, why: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.made is not None and not self.made.done():
            self.made.cancel()
            await asyncio.wait([self.made])
        try:
            if self.served is not None:
                await self.served.close()
            await self._empty()
        finally:
            self._leases.forget(self)
            if self.connection is not None:
                self.connection.end(why)

    async def _empty(self) -> None:
        async with self._emptying:
            if self.emptied:
                return
            try:
                if self._sandbox is not None:
                    await self._sandbox.close()
            except Exception:  # noqa: BLE001 (its files are deleted all the same)
                _log.exception("a sandbox could not be closed")
            try:
                await whole(asyncio.to_thread(_delete, self._directory))
            except OSError as error:
                _log.warning("a lease could not be deleted, and will be at the next start: %s", error)
            self.emptied = True


class Leases:
    """All leases of a service.

    Args:
        root: Where their directories are made.
        backend: Makes a sandbox.
        network: Whether a client may ask for this machine's network.
        host: Whether a client may ask for this machine's files.
        limits: See `ServiceLimits`.
    """

    def __init__(
        self,
        root: str,
        backend: Callable[..., Sandbox],
        *,
        network: bool,
        host: bool,
        limits: ServiceLimits,
    ) -> None:
        self._root, self._backend = root, backend
        self._network, self._host = network, host
        self.limits = limits
        self.closed = False
        self._leases: dict[tuple[str, bytes], Lease] = {}
        self._lock: int | None = None
        self._threads: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def threads(self, owner: str) -> asyncio.Semaphore:
        """Return what the leases of ``owner`` share, of the threads for files."""
        return self._threads.setdefault(owner, asyncio.Semaphore(_AT_ONCE))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._leases)

    def open(self) -> None:
        """Take the root, and delete what a service that was killed has left there.

        Raises:
            ConfigurationError: It cannot be used, or another service does.
        """
        if sys.platform == "win32":
            raise CapabilityError("a sandbox service is for Linux")
        import fcntl

        try:
            os.makedirs(self._root, 0o700, exist_ok=True)
            status = os.stat(self._root)
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
                raise ConfigurationError(
                    f"{self._root} must belong to the user of the service, and nobody else may write it"
                )
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(os.path.join(self._root, LOCK), flags, 0o600)
        except OSError as error:
            if isinstance(error, LittleGhostError):
                raise
            raise ConfigurationError(f"{self._root} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise ConfigurationError(f"another service uses {self._root}") from error
        self._lock = lock
        for name in os.listdir(self._root):
            if _NAME.match(name):
                try:
                    _delete(os.path.join(self._root, name))
                except OSError as error:
                    _log.warning("what is left of a lease could not be deleted: %s", error)

    async def try_one(self) -> None:
        """Make a sandbox and end it, so that what would fail for every client fails now.

        Raises:
            LittleGhostError: It cannot be made.
        """
        directory = os.path.join(self._root, f"lease-{secrets.token_hex(16)}")
        lease = Lease(self, "", ("", b""), directory)
        await lease.make({"paths": {}, "policy": {}, "limits": {}, "writable": True})
        await lease.end("it was a trial")

    async def close(self, why: str) -> None:
        """End all leases, and let the root go."""
        self.closed = True
        endings = [lease.end(why) for lease in list(self._leases.values())]
        await asyncio.gather(*endings, return_exceptions=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def end_idle(self, why: str) -> None:
        """End the leases in which nothing runs."""
        for lease in list(self._leases.values()):
            if lease.idle:
                lease.end(why)

    def full(self, owner: str) -> str | None:
        """Return why ``owner`` cannot have another lease, or ``None``."""
        alive = [lease for lease in self._leases.values() if not lease.emptied]
        if sum(lease.owner == owner for lease in alive) >= self.limits.leases_per_token:
            return f"too many sandboxes at once; a token may have {self.limits.leases_per_token}"
        if len(alive) >= self.limits.leases:
            return "the service has as many sandboxes as it may have; try again later"
        return None

    async def lease(self, owner: str, greeting: Mapping[str, Any], *, new: bool) -> Lease:
        """Return the lease that a client greets for: its own of before, or a new one.

        Raises:
            LittleGhostError: There is none, and there will be none.
        """
        secret = greeting.get("lease")
        if not isinstance(secret, str) or not _SECRET.match(secret):
            raise ToolValueError("a client must name its lease by 32 to 128 letters and digits")
        key = (owner, hashlib.sha256(secret.encode("ascii")).digest())
        lease = self._leases.get(key)
        if lease is None:
            if greeting.get("again") is not False or not new:
                raise ToolConnectionError("the sandbox has ended on the service, with its files")
            why = "the service is ending" if self.closed else self.full(owner)
            if why is not None:
                raise ToolError(why)
            directory = os.path.join(self._root, f"lease-{secrets.token_hex(16)}")
            lease = self._leases[key] = Lease(self, owner, key, directory)
            lease.made = _made(lease.make(greeting))
        assert lease.made is not None  # noqa: S101 (it is begun with the lease)
        try:
            await asyncio.shield(lease.made)
        except asyncio.CancelledError:
            if lease.made.cancelled():
                raise ToolConnectionError("the service is ending") from None
            if lease.connection is None:
                lease.detach(None)
            raise
        return lease

    def forget(self, lease: Lease) -> None:
        """Have no such lease any more."""
        if self._leases.get(lease.key) is lease:
            del self._leases[lease.key]

    def sandbox(self, root: str, asked: Mapping[str, Any]) -> Sandbox:
        """Return the sandbox that is asked for, over a directory, or raise where it is more than may be had."""
        paths, policy, limits = (mapping(asked.get(name)) for name in ("paths", "policy", "limits"))
        writable = asked.get("writable")
        if paths is None or policy is None or limits is None or not isinstance(writable, bool):
            raise ToolValueError("the service was asked for a sandbox that is none")
        if len(paths) > _PATHS:
            raise PolicyError(f"a remote sandbox has at most {_PATHS} named paths")
        for path in paths.values():
            if not isinstance(path, str) or "\0" in path or os.path.isabs(path):
                raise PolicyError("a named path of a remote sandbox must be relative to its workspace")
        wanted = Policy.of(policy)
        if wanted.network == "inherit" and not self._network:
            raise CapabilityError(
                "the service gives programs no network; its operator may: littleghost sandbox serve --network"
            )
        if wanted.root_filesystem in ("host", "read_only") and not self._host:
            raise CapabilityError("the service lets programs see no files of its machine")
        workspace = Workspace(root, cast("dict[str, str]", paths))
        lowered = self.limits.sandbox.lowered(limits_of(limits))
        return self._backend(workspace, writable=writable, policy=wanted, limits=lowered)


def _made(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work, name="littleghost-lease")
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


def _lay_out(directory: str) -> None:
    os.mkdir(directory, 0o700)
    with open(os.path.join(directory, MARK), "xb"):
        pass
    os.mkdir(os.path.join(directory, "workspace"), 0o700)


def _delete(directory: str) -> None:
    """Delete a lease's directory, the mark last, so that one half deleted is still one. What has no mark is deleted if it is empty."""
    mark = os.path.join(directory, MARK)
    try:
        marked = stat.S_ISREG(os.lstat(mark).st_mode) and not os.path.islink(directory)
    except (FileNotFoundError, NotADirectoryError):
        marked = False
    if marked:
        with suppress(FileNotFoundError):
            delete_tree(os.path.join(directory, "workspace"))
        os.unlink(mark)
    with suppress(FileNotFoundError, NotADirectoryError):
        os.rmdir(directory)
