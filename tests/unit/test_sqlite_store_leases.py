"""Leases: locks of the operating system, and what forks and other systems do to them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from littleghost.errors import LeaseLostError, SessionBusyError, StoreUnavailableError
from littleghost.message import Message
from littleghost.sessions import leases
from littleghost.sessions.contract import Lease
from littleghost.sessions.sqlite import SQLiteStore
from littleghost.sessions.sqlite.worker import Job

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
        assert time.monotonic() - start >= 0.2
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
        assert threading.active_count() <= before  # one of an earlier test may have ended
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
    assert not lock.take()
    lock.close()
    async with leases.hold(str(path), 7, 5):
        assert await held(path)


async def test_a_lock_of_a_file_that_was_removed_keeps_nobody_out_and_says_so(tmp_path: Path, kind: type):
    path = tmp_path / "lease"
    async with leases.hold(str(path), 7) as lock:
        assert lock.is_sound()
        path.unlink()
        assert not lock.is_sound()
        process = holder(path, kind)
        assert process.stdout.readline() == "held\n"
        assert not lock.is_sound()
        async with leases.hold(str(path), 8) as other:
            assert other.is_sound()
        assert await held(path)
        process.kill()
        process.communicate()
    async with leases.hold(str(path), 7, 5) as lock:
        assert lock.is_sound()


async def test_who_held_a_lease_when_its_file_was_removed_writes_no_more_under_it(tmp_path: Path):
    path = tmp_path / "a.db"
    content = {"messages": [Message.user("x")], "state": {}, "metadata": {}}
    async with SQLiteStore(path) as first, SQLiteStore(path) as second:
        async with first.lease("a") as old:
            await first.append("a", **content, expected_count=0, lease=old)
            Path(f"{path}-lease").unlink()
            async with second.lease("a", timeout=5) as new:
                with pytest.raises(LeaseLostError):
                    await first.append("a", **content, expected_count=1, lease=old)
                await second.append("a", **content, expected_count=1, lease=new)
        assert (await first.load("a")).count == 2


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


# Writing under a lease


async def append(store: SQLiteStore, count: int, id: str = "a", **options):
    return await store.append(
        id, messages=[Message.user("x")], state={}, metadata={}, expected_count=count, **options
    )


async def test_a_lease_is_good_for_its_session_in_its_block_only(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store, SQLiteStore(tmp_path / "a.db") as other:
        async with (
            store.lease("a") as lease,
            store.lease("b") as another,
            store.lease("a", actor_id="u") as third,
        ):
            one = await append(store, 0, lease=lease)
            two = await append(store, 1, lease=lease, expected_revision=one.revision)
            for wrong in (another, third, Lease(token=""), Lease(token=lease.token + "x")):
                with pytest.raises(LeaseLostError, match="'a'"):
                    await append(store, 2, lease=wrong)
            with pytest.raises(LeaseLostError):
                await append(store, 0, id="c", lease=lease)
            with pytest.raises(LeaseLostError):
                await append(other, 2, lease=lease)
            await append(store, 0, actor_id="u", lease=third)
        for _ in range(2):
            with pytest.raises(LeaseLostError) as caught:
                await append(store, 2, lease=lease, expected_revision=two.revision)
            assert caught.value.id == "a"
        async with store.lease("a") as again:
            with pytest.raises(LeaseLostError):
                await append(store, 2, lease=lease)
            await store.replace("a", messages=[], state={}, metadata={}, lease=again)
        assert (await store.load("a")).count == 0
        assert store._leases == {}


class held_up:
    """Keep the writer busy inside the block."""

    def __init__(self, store: SQLiteStore) -> None:
        self.go, self.running = threading.Event(), threading.Event()
        self.store = store

    def __enter__(self):
        def work(db):
            self.running.set()
            assert self.go.wait(20)

        self.store._writer.submit(Job(work))
        assert self.running.wait(20)
        return self

    def __exit__(self, *_):
        self.go.set()


async def test_a_write_that_waits_longer_than_its_lease_is_refused(tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        with held_up(store):
            async with store.lease("a") as lease:
                late = asyncio.create_task(append(store, 0, lease=lease))
                await asyncio.sleep(0.05)
        with pytest.raises(LeaseLostError):
            await late
        assert await store.load("a") is None


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_lease_does_not_end_before_what_is_being_written(
    tmp_path: Path, monkeypatch, cancelled: bool
):
    from littleghost.sessions.sqlite import writing

    path = tmp_path / "a.db"
    go, running = threading.Event(), threading.Event()
    write = writing.write

    def slow(db, asked, *lost):
        running.set()
        assert go.wait(20)
        return write(db, asked, *lost)

    async with SQLiteStore(path) as store, SQLiteStore(path) as other:
        monkeypatch.setattr(writing, "write", slow)

        async def work():
            async with store.lease("a") as lease:
                writing = asyncio.create_task(append(store, 0, lease=lease))
                await asyncio.to_thread(running.wait, 20)
                if cancelled:
                    writing.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await writing
            return writing

        task = asyncio.create_task(work())
        await asyncio.to_thread(running.wait, 20)
        await asyncio.sleep(0.1)
        assert not task.done()
        with pytest.raises(SessionBusyError):
            async with other.lease("a", timeout=0.1):
                pass
        go.set()
        writing_task = await task
        if not cancelled:
            await writing_task
        async with other.lease("a", timeout=5):
            assert (await other.load("a")).count == 1


async def test_a_lease_that_is_cancelled_while_it_ends_is_released(tmp_path: Path, monkeypatch):
    from littleghost.sessions.sqlite import writing

    path = tmp_path / "a.db"
    go, running = threading.Event(), threading.Event()

    def stuck(db, asked, *lost):
        running.set()
        assert go.wait(20)

    async with SQLiteStore(path) as store, SQLiteStore(path) as other:
        monkeypatch.setattr(writing, "write", stuck)

        async def work():
            async with store.lease("a") as lease:
                tasks.append(asyncio.create_task(append(store, 0, lease=lease)))
                await asyncio.to_thread(running.wait, 20)

        tasks: list[asyncio.Task] = []
        task = asyncio.create_task(work())
        await asyncio.to_thread(running.wait, 20)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with other.lease("a", timeout=0):
            pass
        go.set()
        await tasks[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_no_lease_of_its_parent(tmp_path: Path):
    program = r"""
import asyncio, os, sys, warnings
warnings.simplefilter("ignore")
from littleghost.errors import LeaseLostError
from littleghost.message import Message
from littleghost.sessions.sqlite import SQLiteStore

store = SQLiteStore(sys.argv[1])

async def write(count, lease):
    await store.append("a", messages=[Message.user("x")], state={}, metadata={}, expected_count=count, lease=lease)

async def main():
    async with store.lease("a") as lease:
        await write(0, lease)
        pid = os.fork()
        if pid == 0:
            def child():
                try:
                    asyncio.run(write(1, lease))
                except LeaseLostError:
                    os._exit(7)
                os._exit(0)
            import threading
            thread = threading.Thread(target=child)
            thread.start()
            thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        await write(1, lease)
    await store.aclose()

asyncio.run(main())
"""
    command = [sys.executable, "-c", program, tmp_path / "a.db"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
