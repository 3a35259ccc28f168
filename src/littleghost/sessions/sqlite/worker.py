"""A thread that owns a connection, and does what tasks of any event loop ask of it.

The jobs that wait when a transaction begins share it: one fsync is for all of them, and no answer is given before it. A job that is
refused (another writer was first) is refused alone, for it says so before it writes; if one fails otherwise, the transaction is rolled
back and each job runs again in one of its own.

A process that forks closes its connections first, and opens them again when they are needed. SQLite's locks belong to the process,
and what a child inherits of a connection, even one it never touches, makes its own new ones skip locks that nobody holds for it, until
it writes into a log that its parent has deleted. So a fork waits for the transaction under way.
Source: https://www.sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork_

All connections of a process to a file share what SQLite keeps of its log. So where the log is no longer the one that was opened, every
one of them is closed before another is made, those of other stores too.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from littleghost.errors import LittleGhostError, StoreError, StoreUnavailableError
from littleghost.sessions.sqlite import log
from littleghost.sessions.sqlite.database import DatabaseFile, SameFile, is_busy, is_denied, store_error

__all__ = ["Job", "Worker"]

BUSY_SECONDS: Final = 30.0
"""How long a job waits for other processes before it is an error."""

TOGETHER: Final = 256
SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.025
FORK_SECONDS: Final = 30.0
EXIT_SECONDS: Final = 5.0

Work = Callable[[sqlite3.Connection], Any]


class Job:
    """Something to do within a transaction, and who waits for it."""

    __slots__ = ("_ticket", "answer", "error", "finished", "future", "loop", "since", "started", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.since = time.monotonic()
        self.started = self.finished = False
        self.answer: Any = None
        self.error: LittleGhostError | None = None
        self._ticket = [True]  # taken by who starts the job, or by who withdraws it; list.pop is atomic

    def start(self) -> bool:
        """Return whether the job is to be done: not if it was withdrawn before."""
        self.started = self.started or self._take()
        return self.started

    def withdraw(self) -> bool:
        """Return whether the job will not be done: not if it has started."""
        return self._take()

    @property
    def withdrawn(self) -> bool:
        """Whether nobody wants it any more."""
        return not self._ticket and not self.started

    def _take(self) -> bool:
        try:
            return self._ticket.pop()
        except IndexError:
            return False


class Worker:
    """A thread for one connection to a file. It starts with the first job and ends with `stop`.

    Args:
        file: What to open.
        writes: Whether its transactions write. Those that do are shared by the jobs that wait.
        outlives: Another worker of the same store, whose connection is closed before this one's.
    """

    def __init__(self, file: DatabaseFile, *, writes: bool, outlives: Worker | None = None) -> None:
        self.file = file
        self.writes = writes
        self._outlives = outlives
        self._same: SameFile = outlives._same if outlives else SameFile(file.path)  # noqa: SLF001 (of the same store)
        self._stale = self._renewed = False
        # Who has only read has nothing to commit, and where it met a damaged page SQLite would refuse to.
        self._begin, self._end = ("BEGIN IMMEDIATE", "COMMIT") if writes else ("BEGIN", "ROLLBACK")
        # Only a transaction that excludes all others may let in a job that came after it began: a read must see what was
        # acknowledged before it was asked for.
        self._together = TOGETHER if writes else 1
        self._reset()
        _register(self)

    def _reset(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._first: Job | None = None  # taken from the queue, and before all that are in it
        self._entry = threading.Lock()  # no job is accepted after the sign to stop
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.ended: Future[None] = Future()
        self.using = threading.Lock()  # held while SQLite is at work
        self.connection: sqlite3.Connection | None = None
        self._state: tuple[int, int] | None = None
        self._log: log.Identity | None = None  # that of the connection, unless it has none
        self._paused = False

    def submit(self, job: Job) -> None:
        """Queue ``job``; its future tells how it went.

        Raises:
            StoreError: The worker was stopped.
        """
        with self._entry:
            if self._stopping:
                raise _closed(self.file.path)
            self._jobs.put(job)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"littleghost {self._begin}", daemon=True
                )
                self._thread.start()

    def stop(self) -> None:
        """Let the thread end after the jobs it has; `ended` tells when its connection is closed. Does not wait."""
        with self._entry:
            if self._stopping:
                return
            self._stopping = True
            if self._thread is None:
                self.ended.set_result(None)
            else:
                self._jobs.put(None)

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                jobs = [job]
                try:
                    self._transact(jobs)
                except Exception as error:  # noqa: BLE001 (nobody may wait for ever, whatever went wrong here)
                    self._let_go()  # and with it of whatever transaction was open
                    self._refuse([job for job in jobs if not job.finished], error)
                del job, jobs  # else the last one, and with it its loop, would live until the next comes
        finally:
            # Who closes last takes the log in; of two that close at once neither is the last.
            if self._outlives is not None:
                with suppress(TimeoutError):
                    self._outlives.ended.result(timeout=EXIT_SECONDS)
            with self.using, suppress(sqlite3.Error, OSError):
                self._close()
            self.ended.set_result(None)

    def _next(self) -> Job | None:
        job, self._first = self._first, None
        return job or self._jobs.get()

    def _waited_as_long(self) -> list[Job]:
        """Return the jobs behind that have waited too long too, so that they do not each wait once more."""
        late: list[Job] = []
        while not self._jobs.empty():  # nobody else takes from it
            job = self._jobs.get_nowait()
            if job is None:
                self._jobs.put(None)
                break
            if not _late(job):
                self._first = job
                break
            late.append(job)
        return late

    def _transact(self, jobs: list[Job], *, alone: bool = False) -> None:
        """Do ``jobs``, and those that wait behind them unless they are to be ``alone``.

        Raises:
            StoreUnavailableError: The log is no longer the one that was opened; the jobs that are not finished are to be refused.
        """
        pause = SHORTEST_PAUSE
        self._stale = self._renewed = False
        while True:
            if self._stale:
                self._let_go()
            with self.using:
                self._check_log()  # before others are overwritten, who have begun another one
                try:
                    connection = self._open()
                    connection.execute(self._begin)
                except Exception as error:  # noqa: BLE001 (whatever it is, those who wait are told)
                    if not self._worth_another(jobs[0], error):
                        if is_busy(error) and self._first is None:
                            jobs += self._waited_as_long()
                        self._refuse(jobs, error)
                        return
                else:
                    again = self._work(connection, jobs, alone=alone)
                    if len(again) != 1:
                        break
                    jobs, alone = again, True
            if jobs[0].withdrawn:
                return
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
            pause = min(pause * 2, LONGEST_PAUSE)
        for job in again:
            self._transact([job], alone=True)

    def _work(self, connection: sqlite3.Connection, jobs: list[Job], *, alone: bool) -> list[Job]:
        """Do the jobs within the transaction that has begun, and end it; return those that must each run again, alone."""
        if not alone:
            while len(jobs) < self._together and not self._jobs.empty():  # nobody else takes from it
                job = self._jobs.get_nowait()
                if job is None:
                    self._jobs.put(None)  # nothing comes after it
                    break
                jobs.append(job)
        jobs = [job for job in jobs if job.start()]
        committing = False
        try:
            for job in jobs:
                job.answer = job.error = None
                try:
                    job.answer = job.work(connection)
                except LittleGhostError as error:
                    job.error = error
            committing = True
            connection.execute(self._end)
            if self.writes:
                self._same.check()
            elif self._state is not None and self._state != self.file.at_rest():
                return jobs  # others have begun to write meanwhile
        except Exception as error:  # noqa: BLE001 (whatever it is, those who wait are told)
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            if not committing and jobs and (len(jobs) > 1 or self._worth_another(jobs[0], error)):
                return jobs
            self._refuse(jobs, error)
            return []
        if self.writes:
            self._check_log()  # before anybody is told
        _deliver(jobs)
        return []

    def _open(self) -> sqlite3.Connection:
        if self.connection is not None and not self.writes:
            self._same.check()  # a writer looks when it has written, before it tells anybody
            if self._state is not None and self._state != self.file.at_rest():
                self._close()
        if self.connection is None:
            self._same.check()  # before a new one is made in its place
            self.connection, self._state = self.file.connect(writes=self.writes)
            self._log = None if self._state is not None else log.identity(self.file.log_path)
            self._same.remember()
        return self.connection

    def _check_log(self) -> None:
        """Raise if the log is no longer the one that this worker has open, or without a connection of its own another one."""
        path, log_path = self.file.path, self.file.log_path
        for worker in [self] if self.connection is not None else _workers(path):
            opened = worker._log  # noqa: SLF001 (of the same file)
            if opened is None or log.identity(log_path) == opened:
                continue
            try:
                worker._same.check()  # noqa: SLF001
            except StoreUnavailableError:
                if worker is self:
                    raise
                continue  # it has another file, of which nothing is shared
            if worker._log is opened:  # noqa: SLF001 (else it was closed meanwhile, and took the log with it)
                raise log.lost(path)

    def _close(self) -> None:
        if self.connection is not None:
            with log.undisturbed(self.file.path, self.file.log_path, self._log):
                self._log = None
                connection, self.connection = self.connection, None
                connection.close()

    def _worth_another(self, job: Job, error: BaseException) -> bool:
        """Whether to try ``job`` again."""
        return self._may_be_stale(error) or (is_busy(error) and not _late(job))

    def _may_be_stale(self, error: BaseException) -> bool:
        """Whether ``error`` may only be what SQLite remembers, so that all connections are made anew and it is tried once more.

        What it once found to be read-only it takes for that as long as the process has any connection to the file.
        """
        self._stale = is_denied(error) and not self._renewed
        return self._stale

    def _let_go(self) -> None:
        """Close every connection of the process to the file."""
        self._stale, self._renewed = False, True
        for worker in _workers(self.file.path):
            with worker.using, suppress(sqlite3.Error, OSError):
                worker._close()  # noqa: SLF001 (of the same file)

    def _refuse(self, jobs: list[Job], error: BaseException) -> None:
        for job in jobs:
            if job.start():
                job.answer, job.error = None, store_error(error, self.file.path)
        _deliver([job for job in jobs if job.started])

    # -- around fork, called by the thread that forks

    def before_fork(self) -> None:
        """Close the connection, once it is idle, so that the child inherits nothing of it."""
        self._paused = self.using.acquire(timeout=FORK_SECONDS)
        if self._paused:
            with suppress(sqlite3.Error, OSError):
                self._close()

    def after_fork_in_parent(self) -> None:
        """Go on; the connection is opened again with the next job."""
        if self._paused:
            self._paused = False
            self.using.release()

    def after_fork_in_child(self) -> None:
        """Begin anew: thread, queue and locks stayed with the parent."""
        stopped = self._stopping
        if self.connection is not None:
            _inherited.append(self.connection)  # neither to be used nor to be closed here
            stopped = True
        self._reset()
        if stopped:
            self.stop()


def _late(job: Job) -> bool:
    return time.monotonic() - job.since > BUSY_SECONDS


def _deliver(jobs: list[Job]) -> None:
    """Wake who waits for ``jobs``: each event loop once."""
    for job in jobs:
        job.finished = True  # before anybody is woken, who may read next
    while jobs:
        loop = jobs[0].loop
        mine = [job for job in jobs if job.loop is loop]
        jobs = [job for job in jobs if job.loop is not loop]
        try:
            loop.call_soon_threadsafe(_resolve, mine)
        except RuntimeError:
            pass  # that loop is closed, and nobody waits


def _resolve(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.answer)


def _closed(path: str) -> StoreError:
    return StoreError(f"{path}: the store is closed; make a new one", path=path)


_registry: tuple[weakref.ref[Worker], ...] = ()
"""Replaced and never changed, so that it can be read while a fork holds the guard and waits for the reader."""
_registry_guard = threading.Lock()
_inherited: list[sqlite3.Connection] = []


def _register(worker: Worker) -> None:
    global _registry  # noqa: PLW0603
    with _registry_guard:
        _registry = (*(known for known in _registry if known() is not None), weakref.ref(worker))


def _workers(path: str | None = None) -> list[Worker]:
    """Return those that there are, or those of the file ``path``."""
    known = [worker for reference in _registry if (worker := reference()) is not None]
    return known if path is None else [worker for worker in known if worker.file.path == path]


def _before_fork() -> None:
    _registry_guard.acquire()
    for worker in _workers():
        worker.before_fork()


def _after_fork_in_parent() -> None:
    for worker in _workers():
        worker.after_fork_in_parent()
    _registry_guard.release()


def _after_fork_in_child() -> None:
    global _registry_guard  # noqa: PLW0603
    _registry_guard = threading.Lock()
    for worker in _workers():
        worker.after_fork_in_child()


def _at_exit() -> None:
    workers = _workers()
    for worker in workers:
        worker.stop()
    ends = time.monotonic() + EXIT_SECONDS
    for worker in workers:
        with suppress(TimeoutError):
            worker.ended.result(timeout=max(0.0, ends - time.monotonic()))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )
