"""Leases: locks of the operating system, and what forks and other systems do to them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from littleghost.errors import SessionBusyError, StoreUnavailableError
from littleghost.sessions import leases
from littleghost.sessions.sqlite import SQLiteStore

KINDS = [leases._OpenFileLock, leases._ProcessLock] if sys.platform == "linux" else [leases._kind]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__.strip("_"))
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(leases, "_kind", request.param)
    return request.param


HOLDER = r"""
import asyncio, os, sys
from littleghost.sessions import leases
leases._kind = getattr(leases, sys.argv[2])

async def main():
    async with leases.hold(sys.argv[1], 7):
        if "fork" in sys.argv:
            if os.fork() == 0:
                import time
                os.write(1, b"child %d\n" % os.getpid())
                time.sleep(60)
        os.write(1, b"held\n")
        await asyncio.sleep(60)

asyncio.run(main())
"""


def holder(path: Path, kind: type, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, kind.__name__, *more], stdout=subprocess.PIPE, text=True
    )


async def held(path: Path, offset: int = 7) -> bool:
    try:
        async with leases.hold(str(path), offset, 0):
            return False
    except TimeoutError:
        return True


async def test_offsets_are_locked_one_by_one(tmp_path: Path, kind: type):
    path = tmp_path / "lease"
    async with leases.hold(str(path), 0), leases.hold(str(path), 2**62 - 1):
        assert await held(path, 0)
        assert await held(path, 2**62 - 1)
        assert not await held(path, 1)
    assert not await held(path, 0)
    assert path.stat().st_size == 0


async def test_another_process_holds_it_until_it_is_killed(tmp_path: Path, kind: type):
    path = tmp_path / "lease"
    with holder(path, kind) as other:
        assert other.stdout.readline() == "held\n"
        assert await held(path)
        assert not await held(path, 8)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            async with leases.hold(str(path), 7, 0.2):
                pass
        assert 0.2 <= time.monotonic() - start < 2
        other.kill()
        async with leases.hold(str(path), 7, 10):
            pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
async def test_a_forked_child_does_not_keep_it(tmp_path: Path, kind: type):
    path = tmp_path / "lease"
    with holder(path, kind, "fork") as other:
        lines = [other.stdout.readline().split() for _ in range(2)]
        child = int(next(line[1] for line in lines if line[0] == "child"))
        try:
            assert await held(path), "the fork did not release it either"
            other.kill()
            other.wait()
            async with leases.hold(str(path), 7, 10):
                pass
            os.kill(child, 0)
        finally:
            os.kill(child, 9)


async def test_waiting_takes_no_thread_and_can_be_cancelled(tmp_path: Path, kind: type):
    import threading

    path = str(tmp_path / "lease")
    before = threading.active_count()
    async with leases.hold(path, 7):
        tasks = [asyncio.create_task(enter(path)) for _ in range(20)]
        await asyncio.sleep(0.1)
        assert threading.active_count() == before
        for task in tasks[::2]:
            task.cancel()
        await asyncio.wait(tasks[::2])
    assert all(task.cancelled() for task in tasks[::2])
    await asyncio.gather(*tasks[1::2])
    assert leases._descriptors == set()


async def enter(path: str) -> None:
    async with leases.hold(path, 7):
        await asyncio.sleep(0.001)


async def test_a_lease_file_that_is_replaced_is_not_the_one_to_lock(tmp_path: Path):
    """Between opening and locking, another one can take its place; who locks the old one has nothing."""
    path = tmp_path / "lease"
    lock = leases._OpenFileLock(str(path), 7)
    path.unlink()
    path.touch()
    assert not lock.take(str(path))
    lock.close()
    async with leases.hold(str(path), 7, 5):
        assert await held(path)


async def test_an_error_inside_lets_go(tmp_path: Path, kind: type):
    path = tmp_path / "lease"
    with pytest.raises(ZeroDivisionError):
        async with leases.hold(str(path), 7):
            raise ZeroDivisionError
    assert not await held(path)


async def test_programs_started_meanwhile_do_not_keep_it(tmp_path: Path, kind: type):
    path = tmp_path / "lease"
    async with leases.hold(str(path), 7):
        program = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        assert not await held(path)
    finally:
        program.kill()
        program.wait()


async def test_a_store_says_what_is_wrong(tmp_path: Path):
    async with SQLiteStore(tmp_path / "no" / "a.db") as store:
        with pytest.raises(StoreUnavailableError, match="No such file"):
            async with store.lease("a", timeout=0):
                pass
    async with SQLiteStore(tmp_path / "a.db") as store, store.lease("a"):
        with pytest.raises(SessionBusyError) as caught:
            async with store.lease("a", timeout=0.05):
                pass
        assert caught.value.waited == 0.05
        assert caught.value.id == "a"


async def test_keys_have_leases_of_their_own(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        from contextlib import AsyncExitStack

        async with AsyncExitStack() as stack:
            for actor, id in [
                ("a", "b:c"),
                ("a:b", "c"),
                (None, "a"),
                ("", "a"),
                ("-", "a"),
                (":", "a"),
                ("a", "b\0c"),
                ("a\0b", "c"),
            ]:
                await stack.enter_async_context(store.lease(id, actor_id=actor, timeout=0))
