"""`littleghost sessions export`, `import`, `copy`, `verify` and `expire`, in pipes, in terminals, and broken off."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from littleghost import ALL_ACTORS, Message, sync

LITTLEGHOST = [sys.executable, "-m", "littleghost.cli"]
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# The real program and a real file, between which something goes wrong at a chosen call.
FAULTY = """
import sys
from littleghost import open_store
from littleghost.cli import changing, moving, upkeep
from littleghost.cli.app import run
from littleghost.testing import FaultyStore

fault, operation, number = sys.argv[1:4]
del sys.argv[1:4]

class Announcing(FaultyStore):
    async def _suffer(self, called, count, when):
        if (called, count, when) == (operation, int(number), "before"):
            sys.stderr.write("there\\n")
        await super()._suffer(called, count, when)

def opened(url):
    return getattr(Announcing(open_store(url)), fault)(operation, int(number))

changing.existing_store = moving.existing_store = moving.store_at = upkeep.existing_store = opened
run()
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LITTLEGHOST_"))
    }
    return {
        **kept,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "TERM": "xterm",
        "COLUMNS": "120",
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def littleghost(environment: dict[str, str], tmp_path: Path) -> Run:
    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LITTLEGHOST, "sessions", *arguments],
            **{
                "capture_output": True,
                "text": True,
                "check": False,
                "env": environment,
                "cwd": tmp_path,
                **options,
            },
        )

    return run


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the program with a fault, and let it run."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, fault: tuple[str, str, str] | None = None) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", FAULTY, *fault] if fault else LITTLEGHOST
        child = subprocess.Popen(
            [*program, "sessions", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        started.append(child)
        return child

    yield run
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()


def fill(path: Path, number: int = 6, actor: str | None = None, size: int = 1) -> None:
    with sync.SQLiteStore(path, durability="off") as store:
        for at in range(number):
            store.restore(
                f"s{at}",
                messages=[Message.user(f"{at}\0" * size)],
                state={"n": 10**30 + at},
                metadata={},
                actor_id=actor,
                created_at=1000.5,
                updated_at=2000.25 + at,
            )


def content(path: Path) -> dict[Any, Any]:
    with sync.SQLiteStore(path) as store:
        return {
            (info.actor_id, info.id): (
                info.created_at,
                info.updated_at,
                [message.text for message in (store.load(info.id, actor_id=info.actor_id)).messages],  # type: ignore[union-attr]
            )
            for info in store.sessions(actor_id=ALL_ACTORS, limit=1000).items
        }


def spoil(path: Path, id: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        key = db.execute("SELECT key FROM sessions WHERE id = ?", (id,)).fetchone()[0]
        assert db.execute("UPDATE sessions SET state = '[]' WHERE key = ?", (key,)).rowcount == 1


@contextmanager
def terminal(environment: dict[str, str], folder: Path, command: list[str]) -> Iterator[Callable[..., str]]:
    """Run a program in a terminal; the function types something, waits for words, and returns the screen."""
    master, slave = os.openpty()
    child = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=folder, start_new_session=True
    )
    os.close(slave)
    shown = ""

    def expect(words: str | None, typed: str = "") -> str:
        nonlocal shown
        os.write(master, typed.encode())
        give_up = time.monotonic() + 60
        while words is None or words not in shown:
            assert time.monotonic() < give_up, shown[-2000:]
            if not select.select([master], [], [], 1)[0]:
                continue
            try:
                data = os.read(master, 65536)
            except OSError:
                data = b""
            if not data:
                assert words is None, shown
                return f"{shown}[{child.wait(60)}]"
            shown = ANSI.sub("", shown + data.decode()).replace("\r\n", "\n")
        return shown

    try:
        yield expect
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        os.close(master)


# There and back


def test_export_to_a_file_and_import(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db")
    fill(tmp_path / "a.db", 2, "bob")
    done = littleghost("export", "--output", "all.jsonl", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"8 sessions exported, 8 messages, \d\.\d kB\n", done.stdout)
    if os.name != "nt":
        assert (tmp_path / "all.jsonl").stat().st_mode & 0o777 == 0o600
    done = littleghost("import", "all.jsonl", "--store", "sqlite:///b.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "sessions: 8 written\n", "")
    assert content(tmp_path / "b.db") == content(tmp_path / "a.db")
    done = littleghost("import", "all.jsonl", "--store", "sqlite:///b.db")
    assert (done.returncode, done.stdout) == (0, "sessions: 0 written, 8 there already\n")


def test_export_and_import_in_a_pipe(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db")
    fill(tmp_path / "a.db", 2, "bob")
    exported = littleghost("export", "--actor", "bob", "--store", "sqlite:///a.db", text=False)
    assert exported.returncode == 0
    assert re.fullmatch(rb"2 sessions exported, 2 messages, \d+(\.\d)? (bytes|kB)\n", exported.stderr)
    assert all(json.loads(line) for line in exported.stdout.splitlines())
    done = littleghost(
        "import", "-", "--store", "sqlite:///b.db", "--json", input=exported.stdout, text=False
    )
    assert json.loads(done.stdout) == {
        "written": 2, "same": 0, "replaced": 0, "skipped": 0, "messages": 2, "failed": [],
    }  # fmt: skip
    assert list(content(tmp_path / "b.db")) == [("bob", "s0"), ("bob", "s1")]
    done = littleghost("export", "--json", "-o", "x", "--store", "sqlite:///b.db")
    found = json.loads(done.stdout)
    assert found == {"exported": 2, "messages": 2, "failed": [], "size": (tmp_path / "x").stat().st_size}
    done = littleghost("export", "--json", "--store", "sqlite:///b.db")
    assert done.stdout == (tmp_path / "x").read_text()
    assert json.loads(done.stderr) == found


def test_another_session_in_its_place(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 2)
    littleghost("export", "-o", "a.jsonl", "--store", "sqlite:///a.db")
    with sync.SQLiteStore(tmp_path / "b.db") as store:
        store.replace("s1", messages=[Message.user("mine")], state={}, metadata={})
    for command in (
        ("import", "a.jsonl", "--store", "sqlite:///b.db"),
        ("copy", "sqlite:///a.db", "sqlite:///b.db"),
    ):
        done = littleghost(*command)
        assert done.returncode == 1
        how = "--existing skip leaves that one alone, --existing replace replaces it"
        assert done.stderr == f"failed: s1: another session has this key; {how}\n"
        assert done.stdout.endswith(", 1 failed\n")
        done = littleghost(*command, "--json")
        assert done.stderr == ""
        (failed,) = json.loads(done.stdout)["failed"]
        assert (failed["id"], failed["problem"]) == ("s1", f"another session has this key; {how}")
        done = littleghost(*command, "--existing", "skip")
        assert (done.returncode, done.stdout) == (0, "sessions: 0 written, 1 there already, 1 skipped\n")
    assert content(tmp_path / "b.db")[None, "s1"][2] == ["mine"]
    done = littleghost("import", "a.jsonl", "--store", "sqlite:///b.db", "--existing", "replace")
    assert (done.returncode, done.stdout) == (0, "sessions: 0 written, 1 there already, 1 replaced\n")
    created_at, _, texts = content(tmp_path / "b.db")[None, "s1"]
    assert (created_at, texts) == (1000.5, ["1\0"])


def test_copy_from_store_to_store(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db")
    fill(tmp_path / "a.db", 2, "bob")
    done = littleghost("copy", "sqlite:///a.db", "sqlite:///b.db", "--actor", "bob")
    assert (done.returncode, done.stdout, done.stderr) == (0, "sessions: 2 written\n", "")
    done = littleghost("copy", "sqlite:///a.db", "sqlite:///b.db")
    assert (done.returncode, done.stdout) == (0, "sessions: 6 written, 2 there already\n")
    assert content(tmp_path / "b.db") == content(tmp_path / "a.db")
    done = littleghost("copy", "sqlite:///none.db", "sqlite:///c.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert not (tmp_path / "c.db").exists()


def test_from_a_file_to_a_server_and_back(
    littleghost: Run, environment: dict[str, str], tmp_path: Path, new_postgres_url: Callable[[], str]
):
    fill(tmp_path / "a.db")
    fill(tmp_path / "a.db", 2, "bob\0")
    one, other = new_postgres_url(), new_postgres_url()
    done = littleghost("copy", "sqlite:///a.db", one)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sessions: 8 written\n", "")
    assert littleghost("copy", one, other).stdout == "sessions: 8 written\n"
    assert littleghost("copy", one, other).stdout == "sessions: 0 written, 8 there already\n"
    by_environment = {"env": {**environment, "LITTLEGHOST_STORE": other}}
    assert littleghost("verify", **by_environment).stdout == "8 sessions checked, 0 damaged\n"
    assert json.loads(littleghost("stats", "--json", **by_environment).stdout)["sessions"] == 8
    assert littleghost("list", "--all-actors", "--by-time", **by_environment).stdout.count("\n") == 9
    assert littleghost("export", "-o", "all.jsonl", **by_environment).returncode == 0
    assert littleghost("import", "all.jsonl", "--store", "sqlite:///b.db").stdout == "sessions: 8 written\n"
    assert content(tmp_path / "b.db") == content(tmp_path / "a.db")
    assert littleghost("expire", "--older-than", "1d", **by_environment).stdout == "8 sessions deleted\n"


@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_a_password_is_never_shown(
    environment: dict[str, str], tmp_path: Path, debug: tuple[str, ...], require: Any
):
    require(importlib.util.find_spec("asyncpg"), "asyncpg", "pip install 'littleghost[postgres]'")
    fill(tmp_path / "a.db", 1)
    bad = "postgresql://me:s3cret@127.0.0.1:1/db?connect_timeout=1"
    for command in (
        ("copy", "sqlite:///a.db", bad),
        ("copy", bad, "sqlite:///b.db"),
        ("list", "--store", bad),
        ("import", "a.jsonl", bad),
        ("verify", "--store", f"{bad}&schema=a&schema=b"),
        ("copy", "sqlite:///a.db", bad.replace("postgresql", "pg")),
    ):
        done = subprocess.run(
            [*LITTLEGHOST, *debug, "sessions", *command],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=tmp_path,
        )
        assert done.returncode
        assert done.stderr
        assert "s3cret" not in done.stdout + done.stderr


def test_a_file_that_is_none_or_cut_or_changed(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db")
    littleghost("export", "-o", "a.jsonl", "--store", "sqlite:///a.db")
    raw = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "none").write_bytes(b"hello\n")
    (tmp_path / "cut").write_bytes(raw[: len(raw) // 2])
    (tmp_path / "changed").write_bytes(raw.replace(b"2\\u0000", b"7\\u0000"))
    (tmp_path / "newer").write_bytes(raw.replace(b'"version":1', b'"version":99'))
    for name, error, written in (
        ("none", "line 1: this is no export of sessions", 0),
        ("cut", "the file ends ", 3),
        ("changed", "the file is not as it was written", 5),
        ("newer", "version 99", 0),
    ):
        done = littleghost("import", name, "--store", f"sqlite:///{name}.db")
        assert done.returncode == 1
        assert error in done.stderr.splitlines()[-1]
        assert done.stderr.splitlines()[-1].startswith("error: ")
        assert done.stdout.startswith(f"sessions: {written} written" if written else "")
        assert bool(done.stdout) is bool(written)
        assert "run the same command again" not in done.stderr
        if written:
            assert len(content(tmp_path / f"{name}.db")) == written
    done = littleghost("import", "missing", "--store", "sqlite:///m.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not (tmp_path / "m.db").exists()


def test_what_can_never_go_well_is_not_to_be_run_again(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 1)
    assert littleghost("export", "-o", "a.jsonl", "--store", "sqlite:///a.db").returncode == 0
    for bad in ("sqlite:///none/b.db", "sqlite://b.db", "nosuch://b", "b.db"):
        for command in (("import", "a.jsonl", "--store", bad), ("copy", "sqlite:///a.db", bad)):
            done = littleghost(*command)
            assert done.returncode
            assert (done.stdout, done.stderr.count("\n")) == ("", 1)
            assert done.stderr.startswith("error: ")


def test_an_actor_of_whom_there_is_nothing_is_told(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 1, "bob")
    for command in (
        ("export", "--actor", "bbo", "--store", "sqlite:///a.db"),
        ("export", "--actor", "bbo", "--store", "sqlite:///a.db", "-o", "x"),
        ("copy", "sqlite:///a.db", "sqlite:///b.db", "--actor", "bbo"),
    ):
        done = littleghost(*command)
        assert done.returncode == 0
        assert "no sessions of this actor\n" in done.stderr
    for command in (
        ("export", "--actor", "bob", "--store", "sqlite:///a.db"),
        ("copy", "sqlite:///a.db", "sqlite:///b.db", "--actor", "bob"),
    ):
        assert "no sessions" not in littleghost(*command).stderr


# Pruning


def test_a_copy_can_be_made_to_hold_what_the_source_holds(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db")
    fill(tmp_path / "a.db", 2, "bob")
    command = ("copy", "sqlite:///a.db", "sqlite:///b.db", "--existing", "replace", "--prune")
    assert littleghost(*command[:-1]).returncode == 0
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        store.delete("s1")
        store.delete("s1", actor_id="bob")
        store.append("s2", messages=[Message.user("more")], state={}, metadata={}, expected_count=1)
    done = littleghost(*command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--yes" in done.stderr
    assert len(content(tmp_path / "b.db")) == 8
    done = littleghost(*command, "--yes", "--actor", "bob")
    assert (done.returncode, done.stdout) == (0, "sessions: 0 written, 1 there already, 1 pruned\n")
    assert len(content(tmp_path / "b.db")) == 7
    done = littleghost(*command, "-y", "--json")
    assert json.loads(done.stdout) == {
        "written": 0, "same": 5, "replaced": 1, "skipped": 0, "pruned": 1, "messages": 7, "failed": [],
    }  # fmt: skip
    assert content(tmp_path / "b.db") == content(tmp_path / "a.db")


def test_nothing_is_pruned_where_a_session_failed(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 3)
    fill(tmp_path / "b.db", 5)
    spoil(tmp_path / "a.db", "s1")
    done = littleghost("copy", "sqlite:///a.db", "sqlite:///b.db", "--prune", "--yes")
    assert (done.returncode, done.stdout) == (1, "sessions: 0 written, 2 there already, 1 failed\n")
    assert done.stderr.endswith("nothing is deleted from the destination where a session failed\n")
    assert len(content(tmp_path / "b.db")) == 5


@pytest.mark.skipif(os.name == "nt", reason="terminals of Unix")
def test_pruning_asks_before(environment: dict[str, str], tmp_path: Path):
    fill(tmp_path / "a.db", 2)
    fill(tmp_path / "b.db", 5)
    command = [*LITTLEGHOST, "sessions", "copy", "sqlite:///a.db", "sqlite:///b.db", "--prune"]
    for answer, left, status in (("n\n", 5, 1), ("y\n", 2, 0)):
        with terminal(environment, tmp_path, command) as screen:
            screen("It has 5 sessions now, the source 2. Go on? [y/N]:")
            assert screen(None, answer).endswith(f"[{status}]")
        assert len(content(tmp_path / "b.db")) == left


# All of an actor


def test_everything_of_an_actor_is_deleted(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 3)
    fill(tmp_path / "a.db", 250, "bob")
    fill(tmp_path / "a.db", 3, "")
    command = ("delete", "--actor", "bob", "--all", "--store", "sqlite:///a.db")
    done = littleghost(*command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--yes" in done.stderr
    assert len(content(tmp_path / "a.db")) == 256
    done = littleghost(*command, "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (0, "250 sessions deleted\n", "")
    assert {actor for actor, _ in content(tmp_path / "a.db")} == {None, ""}
    done = littleghost(*command, "--yes")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "0 sessions deleted\n",
        "no sessions of this actor\n",
    )
    done = littleghost("delete", "--actor", "", "--all", "-y", "--json", "--store", "sqlite:///a.db")
    assert json.loads(done.stdout) == {"actor_id": "", "deleted": 3, "failed": []}
    assert {actor for actor, _ in content(tmp_path / "a.db")} == {None}


def test_what_is_damaged_is_deleted_with_the_rest(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 3, "bob")
    spoil(tmp_path / "a.db", "s1")
    done = littleghost("delete", "--actor", "bob", "--all", "-y", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3 sessions deleted\n", "")


def test_what_is_too_damaged_to_delete_does_not_keep_the_rest(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 3, "bob")
    fill(tmp_path / "a.db", 2, "eve")
    with closing(sqlite3.connect(tmp_path / "a.db")) as db, db:
        changed = "UPDATE sessions SET created_at = 'text' WHERE id = 's1' AND scope LIKE '%bob%'"
        assert db.execute(changed).rowcount == 1
    command = ("delete", "--actor", "bob", "--all", "-y", "--store", "sqlite:///a.db")
    done = littleghost(*command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "2 sessions deleted\n", 1)
    assert done.stderr.startswith("failed: s1 (actor bob): ")
    done = littleghost(*command, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["deleted"], [failed["id"] for failed in found["failed"]]) == (0, ["s1"])
    assert littleghost("verify", "--store", "sqlite:///a.db").stdout.endswith(
        "3 sessions checked, 1 damaged\n"
    )


@pytest.mark.skipif(os.name == "nt", reason="terminals of Unix")
def test_deleting_everything_of_an_actor_asks_before(environment: dict[str, str], tmp_path: Path):
    fill(tmp_path / "a.db", 3, "bob")
    command = [*LITTLEGHOST, "sessions", "delete", "--actor", "bob", "--all", "--store", "sqlite:///a.db"]
    for answer, left, status in (("n\n", 3, 1), ("\x04", 3, 130), ("y\n", 0, 0)):
        with terminal(environment, tmp_path, command) as screen:
            screen("Delete 3 sessions, all of actor bob, for good? [y/N]:")
            assert screen(None, answer).endswith(f"[{status}]")
        assert len(content(tmp_path / "a.db")) == left


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_deleting_that_was_interrupted_says_what_is_gone(start: Any, tmp_path: Path):
    fill(tmp_path / "a.db", 9, "bob")
    command = ("delete", "--actor", "bob", "--all", "--yes", "--store", "sqlite:///a.db")
    child = start(*command, fault=("hang", "delete", "5"))
    assert child.stderr.readline() == "there\n"
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate()
    assert (child.returncode, out) == (130, "")
    assert "interrupted; 4 sessions deleted, and running it again goes on" in errors
    assert len(content(tmp_path / "a.db")) == 5


# Files


def test_the_file_is_there_whole_or_not_at_all(littleghost: Run, start: Any, tmp_path: Path):
    fill(tmp_path / "a.db")
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "a.jsonl"
    target.write_text("from before")
    child = start("export", "-o", str(target), "--store", "sqlite:///a.db", fault=("fail", "load", "4"))
    _, errors = child.communicate()
    assert child.returncode == 1
    assert "a fault that was asked for" in errors
    assert target.read_text() == "from before"
    assert os.listdir(target.parent) == ["a.jsonl"]
    littleghost("export", "-o", str(target), "--store", "sqlite:///a.db")
    assert target.read_text().startswith('{"type":"header"')


@pytest.mark.skipif(os.name == "nt", reason="links and devices of Unix")
def test_links_are_followed_and_devices_are_written_to(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db")
    (tmp_path / "link").symlink_to("real")
    assert littleghost("export", "-o", "link", "--store", "sqlite:///a.db").returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text().startswith('{"type":"header"')
    done = littleghost("export", "-o", "/dev/stdout", "--store", "sqlite:///a.db")
    assert done.stdout.startswith('{"type":"header"')
    done = littleghost("export", "-o", "/dev/full", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stderr) == (
        1,
        "error: /dev/full cannot be written (No space left on device)\n",
    )


@pytest.mark.parametrize("target", ["none/x", "."])
def test_a_file_that_cannot_be_made_is_a_mistake_of_the_caller(littleghost: Run, tmp_path: Path, target: str):
    fill(tmp_path / "a.db", 1)
    done = littleghost("export", "-o", target, "--store", "sqlite:///a.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cannot be made" in done.stderr


# Damage


def test_damage_is_reported_and_what_is_whole_is_not_held_back(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db")
    assert littleghost("verify", "--store", "sqlite:///a.db").stdout == "6 sessions checked, 0 damaged\n"
    spoil(tmp_path / "a.db", "s2")
    done = littleghost("verify", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stderr) == (1, "")
    *damaged, summary = done.stdout.splitlines()
    assert summary == "6 sessions checked, 1 damaged"
    assert [line.startswith("damaged: s2: ") for line in damaged] == [True]
    found = json.loads(littleghost("verify", "--store", "sqlite:///a.db", "--json").stdout)
    assert (found["checked"], [damage["id"] for damage in found["damaged"]]) == (6, ["s2"])

    done = littleghost("export", "-o", "a.jsonl", "--store", "sqlite:///a.db")
    assert done.returncode == 1
    assert done.stderr.startswith("failed: s2: ")
    assert "5 sessions exported" in done.stdout
    assert "1 could not be read" in done.stdout
    done = littleghost("copy", "sqlite:///a.db", "sqlite:///b.db")
    assert (done.returncode, done.stdout) == (1, "sessions: 5 written, 1 failed\n")
    done = littleghost("import", "a.jsonl", "--store", "sqlite:///c.db")
    assert (done.returncode, done.stdout) == (1, "sessions: 5 written, 1 failed\n")
    assert content(tmp_path / "b.db") == content(tmp_path / "c.db")


# Expiring


def test_expire_deletes_what_is_old(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 250)
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        store.replace("new", messages=[], state={}, metadata={})
    done = littleghost("expire", "--older-than", "30d", "--dry-run", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "250 sessions would be deleted\n", "")
    assert len(content(tmp_path / "a.db")) == 251
    found = littleghost("expire", "--older-than", "4w", "--dry-run", "--json", "--store", "sqlite:///a.db")
    assert json.loads(found.stdout) == {"deleted": 0, "expired": 250}
    done = littleghost("expire", "--older-than", "30d", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "250 sessions deleted\n", "")
    assert list(content(tmp_path / "a.db")) == [(None, "new")]
    done = littleghost("expire", "--older-than", "12h", "--store", "sqlite:///a.db", "--json")
    assert json.loads(done.stdout) == {"deleted": 0}


@pytest.mark.parametrize("time", ["", "30", "0d", "-1d", "d", "1y", "1e9d", "nan"])
def test_a_time_that_is_none_deletes_nothing(littleghost: Run, tmp_path: Path, time: str):
    fill(tmp_path / "a.db", 1)
    done = littleghost("expire", f"--older-than={time}", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert len(content(tmp_path / "a.db")) == 1


# Broken off


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_ctrl_c_in_an_export_leaves_no_file(start: Any, tmp_path: Path):
    fill(tmp_path / "a.db")
    (tmp_path / "out").mkdir()
    child = start("export", "-o", "out/a.jsonl", "--store", "sqlite:///a.db", fault=("hang", "load", "4"))
    assert child.stderr.readline() == "there\n"
    assert len(os.listdir(tmp_path / "out")) == 1
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate()
    assert (child.returncode, out) == (130, "")
    assert errors == "interrupted; out/a.jsonl is as it was before\n"
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_ctrl_c_in_an_export_that_nobody_reads(start: Any, tmp_path: Path):
    fill(tmp_path / "a.db", 20, size=20_000)
    child = start("export", "--store", "sqlite:///a.db")
    assert child.stdout.read(10)  # and no more, so that it stands still
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert "interrupted; the output is cut" in child.stderr.read()


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_ctrl_c_in_an_import_that_waits_for_more(littleghost: Run, start: Any, tmp_path: Path):
    fill(tmp_path / "a.db")
    littleghost("export", "-o", "a.jsonl", "--store", "sqlite:///a.db")
    raw = (tmp_path / "a.jsonl").read_text()
    child = start("import", "-", "--store", "sqlite:///b.db")
    child.stdin.write(raw[: raw.index('"s4"')])
    child.stdin.flush()
    while not (tmp_path / "b.db").exists() or len(content(tmp_path / "b.db")) < 4:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 130
    assert re.fullmatch(r"sessions: [34] written\n", child.stdout.read())  # the last may not be counted yet
    assert child.stderr.read() == "interrupted; run the same command again, and it goes on where it stopped\n"
    done = littleghost("import", "a.jsonl", "--store", "sqlite:///b.db")
    assert (done.returncode, done.stdout) == (0, "sessions: 2 written, 4 there already\n")


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_copy_that_was_ended_goes_on(littleghost: Run, start: Any, tmp_path: Path, end: signal.Signals):
    fill(tmp_path / "a.db")
    child = start("copy", "sqlite:///a.db", "sqlite:///b.db", fault=("hang", "restore", "5"))
    assert child.stderr.readline() == "there\n"
    while len(content(tmp_path / "b.db")) < 4:
        time.sleep(0.05)
    child.send_signal(end)
    out, errors = child.communicate()
    if end == signal.SIGINT:
        assert child.returncode == 130
        assert "run the same command again" in errors
        assert out.startswith("sessions: ")
    done = littleghost("copy", "sqlite:///a.db", "sqlite:///b.db")
    assert done.returncode == 0
    assert re.fullmatch(r"sessions: \d written, \d there already\n", done.stdout)
    assert content(tmp_path / "b.db") == content(tmp_path / "a.db")


def test_a_copy_whose_store_goes_away_says_how_to_go_on(littleghost: Run, start: Any, tmp_path: Path):
    fill(tmp_path / "a.db")
    child = start("copy", "sqlite:///a.db", "sqlite:///b.db", "--json", fault=("fail", "restore", "3"))
    out, errors = child.communicate()
    assert child.returncode == 1
    assert "run the same command again" in errors
    assert errors.splitlines()[-1].startswith("error: a fault that was asked for")
    assert json.loads(out)["failed"] == []
    done = littleghost("copy", "sqlite:///a.db", "sqlite:///b.db")
    assert done.returncode == 0
    assert content(tmp_path / "b.db") == content(tmp_path / "a.db")


@pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
def test_an_expiry_that_was_interrupted_says_what_is_gone(start: Any, tmp_path: Path):
    fill(tmp_path / "a.db", 250)
    child = start("expire", "--older-than", "1d", "--store", "sqlite:///a.db", fault=("hang", "expire", "3"))
    assert child.stderr.readline() == "there\n"
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate()
    assert (child.returncode, out) == (130, "")
    assert "interrupted; 200 sessions deleted, and running it again goes on" in errors
    assert len(content(tmp_path / "a.db")) == 50


# In a terminal


@pytest.mark.skipif(os.name == "nt", reason="terminals of Unix")
@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("export", "-o", "x", "--store", "sqlite:///a.db"), "exporting"),
        (("copy", "sqlite:///a.db", "sqlite:///b.db"), "copying"),
    ],
)
def test_a_bar_shows_how_far_it_is(
    environment: dict[str, str], tmp_path: Path, command: tuple[str, ...], what: str
):
    fill(tmp_path / "a.db", 12)
    program = [sys.executable, "-c", FAULTY, "hang", "load", "10", "sessions", *command]
    with terminal(environment, tmp_path, program) as screen:
        shown = screen("/12", "")
        assert what in shown


@pytest.mark.skipif(os.name == "nt", reason="terminals of Unix")
def test_delete_asks_before(environment: dict[str, str], tmp_path: Path):
    fill(tmp_path / "a.db")
    command = [*LITTLEGHOST, "sessions", "delete", "s1", "--store", "sqlite:///a.db"]
    for answer, gone, status in (("n\n", False, 1), ("\n", False, 1), ("\x04", False, 130), ("y\n", True, 0)):
        with terminal(environment, tmp_path, command) as screen:
            screen("Delete s1, with its 1 message, for good? [y/N]:")
            shown = screen(None, answer)
            assert shown.endswith(f"[{status}]"), shown
        assert ((None, "s1") not in content(tmp_path / "a.db")) is gone
    with terminal(environment, tmp_path, command) as screen:
        shown = screen(None)
        assert "there is no session 's1'" in shown
    spoil(tmp_path / "a.db", "s2")
    with terminal(environment, tmp_path, [*command[:-3], "s2", *command[-2:]]) as screen:
        screen("Delete s2, which cannot be read, for good?")
        screen(None, "y\n")
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        assert store.load("s2") is None


@pytest.mark.parametrize("end", ["", "-wal", "-lease"])
def test_an_export_does_not_take_the_place_of_the_store(littleghost: Run, tmp_path: Path, end: str):
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        sync.Session(id="a", store=store).append([Message.user("x")])
    (tmp_path / "link.db").symlink_to(tmp_path / f"a.db{end}")
    for output in (f"a.db{end}", str(tmp_path / f"a.db{end}"), "link.db"):
        done = littleghost("export", "--output", output, "--store", "sqlite:///a.db")
        assert done.returncode == 2
        assert "is the store itself" in done.stderr
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        assert store.load("a").count == 1
