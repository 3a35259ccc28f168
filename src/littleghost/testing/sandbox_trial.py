"""What the clauses for sandboxes share: a sandbox over a fresh folder, and ways to see what it did."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import msgspec

from littleghost.cancellation import CancellationToken, Deadline
from littleghost.sandboxes.contract import Sandbox, SandboxLimits
from littleghost.testing.conformance import ClauseFailure, ClauseSkipped, expect
from littleghost.workspace import Workspace

__all__ = ["Caller", "Trial", "all_raise", "daemon", "exchange", "opened", "raises", "silent", "until"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox, open, over a folder of its own.

    Attributes:
        sandbox: The sandbox.
        root: The workspace's directory.
        outside: A directory beside it, holding ``secret`` with the text ``SECRET``.
    """

    sandbox: Sandbox
    root: Path
    outside: Path

    async def needs(self, *programs: str) -> None:
        """Skip the clause unless the sandbox can run all of these programs."""
        for program in programs:
            found = await self.sandbox.execute(f"command -v {program}", timeout=20)
            if found.exit_code != 0:
                raise ClauseSkipped(f"there is no {program} inside")


class Caller:
    """A caller's context: what a tool hands on as ``context=``."""

    def __init__(self, *, seconds: float | None = None, checks: int | None = None) -> None:
        self.cancellation = CancellationToken()
        self.deadline = None if seconds is None else Deadline(seconds)
        self._checks = checks

    def check(self) -> None:
        """Raise where the work must stop: at the latest at the ``checks``-th time of asking."""
        if self._checks is not None:
            self._checks -= 1
            if self._checks <= 0:
                self.cancellation.cancel("enough")
        self.cancellation.check()
        if self.deadline is not None:
            self.deadline.check()


@contextlib.asynccontextmanager
async def opened(
    make: Any,
    *,
    writable: bool = True,
    limits: SandboxLimits | None = None,
    paths: dict[str, str] | None = None,
) -> AsyncGenerator[Trial]:
    """Make a sandbox over a fresh folder, and close and delete both."""
    with tempfile.TemporaryDirectory(prefix="littleghost-kit-", ignore_cleanup_errors=True) as folder:
        root, outside = _laid_out(Path(folder))
        sandbox: Sandbox = make(Workspace(root, paths), writable=writable, limits=limits)
        try:
            await sandbox.open()
            yield Trial(sandbox=sandbox, root=root, outside=outside)
        finally:
            await sandbox.close()


def _laid_out(folder: Path) -> tuple[Path, Path]:
    root, outside = folder / "root", folder / "outside"
    outside.mkdir()
    outside.joinpath("secret").write_text("SECRET", encoding="utf-8")
    return root, outside


async def raises(awaitable: Awaitable[object], *kinds: type[BaseException], what: str) -> BaseException:
    """Await, and return the exception, which must be of all ``kinds``."""
    try:
        result = await awaitable
    except kinds as error:
        for kind in kinds:
            expect(isinstance(error, kind), f"{what}: {type(error).__name__} is no {kind.__name__}")
        return error
    except Exception as error:
        raise ClauseFailure(
            f"{what}: {type(error).__name__} ({error}) instead of {kinds[0].__name__}"
        ) from error
    raise ClauseFailure(f"{what} was accepted: {result!r:.200}")


async def all_raise(
    attempts: Iterable[Coroutine[Any, Any, object]], *kinds: type[BaseException], what: str
) -> None:
    """Await each attempt; every one must raise an exception of all ``kinds``."""
    pending = list(attempts)
    try:
        while pending:
            await raises(pending.pop(0), *kinds, what=what)
    finally:
        for attempt in pending:
            attempt.close()


async def until(condition: Callable[[], bool], *, seconds: float = 10.0, what: str) -> None:
    """Wait until ``condition`` holds."""
    end = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < end, f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.01)


def exchange() -> Callable[[str, str], None]:
    """Return what exchanges two paths in one step; skip the clause where the system cannot."""
    try:
        import ctypes

        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, AttributeError, OSError) as error:
        raise ClauseSkipped("two paths cannot be exchanged in one step here") from error

    def swap(one: str, other: str) -> None:
        rename(-100, os.fsencode(one), -100, os.fsencode(other), 2)  # AT_FDCWD, RENAME_EXCHANGE

    return swap


def daemon(name: str) -> str:
    """Return a shell command that starts a daemon, out of its session and orphaned twice, which adds to the file ``name`` for ever."""
    loop = f"while :; do echo x >> {name}; sleep 0.05; done"
    return f"( setsid sh -c '( {loop} ) > /dev/null 2>&1 < /dev/null & ' & )"


async def silent(path: Path, *, what: str) -> None:
    """See that a daemon had begun to write ``path``, and that it does not any more."""
    size = _size(path)
    expect(size, f"{what}: the daemon never started, so nothing was shown")
    await asyncio.sleep(0.4)
    expect(_size(path) == size, f"{what}: something the command started is still alive")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
