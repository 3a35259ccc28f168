"""The command line with closed, full and left streams, ended by signals, and with stores that can only be a mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from littleghost import Message, sync

LITTLEGHOST = [sys.executable, "-m", "littleghost.cli"]
NO_SPACE = "error: standard output cannot be written (No space left on device)\n"

Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="streams and signals of Unix")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LITTLEGHOST_")}
    kept.pop("PYTHONUNBUFFERED", None)
    return {**kept, "XDG_DATA_HOME": str(tmp_path / "data"), "COLUMNS": "120", "PYTHONWARNINGS": "error"}


@pytest.fixture
def littleghost(environment: dict[str, str], tmp_path: Path) -> Run:
    """Run the program by a shell, which can close a stream."""

    def run(*arguments: str, streams: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {streams}', "sh", *LITTLEGHOST, *arguments],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**environment, **more},
            cwd=tmp_path,
        )

    return run


def fill(path: Path, number: int = 6, actor: str | None = None, **fields: Any) -> None:
    with sync.SQLiteStore(path, durability="off") as store:
        for at in range(number):
            session = sync.Session(id=f"s{at}", store=store, actor_id=actor, **fields)
            session.append([Message.user(f"{at}")])


def number_of(path: Path) -> int:
    with sync.SQLiteStore(path) as store:
        return store.statistics().sessions


# Streams


@pytest.mark.parametrize(
    ("streams", "status", "error"),
    [
        ("<&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- 2>&-", 0, ""),
        (">&-", 2, "error: standard output is closed; > /dev/null throws away what is written there\n"),
        ("<&- >&- 2>&-", 2, ""),
    ],
)
def test_a_closed_stream_is_no_riddle(
    littleghost: Run, tmp_path: Path, streams: str, status: int, error: str
):
    fill(tmp_path / "a.db")
    done = littleghost("sessions", "stats", "--json", "--store", "sqlite:///a.db", streams=streams)
    assert (done.returncode, done.stderr) == (status, error)
    assert [json.loads(line)["sessions"] for line in done.stdout.splitlines()] == [6] * (status == 0)


def test_a_closed_input_has_nothing_in_it(littleghost: Run, tmp_path: Path):
    done = littleghost("sessions", "import", "-", "--store", "sqlite:///b.db", streams="<&-")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: the file is empty\n")
    fill(tmp_path / "a.db")
    done = littleghost(
        "sessions", "delete", "--actor", "a", "--all", "--store", "sqlite:///a.db", streams="<&-"
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nobody can be asked" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "command",
    [
        ("--help",),
        ("--version",),
        ("sessions", "--help"),
        ("sessions", "stats", "--store", "sqlite:///a.db"),
        ("sessions", "list", "--json", "--store", "sqlite:///a.db"),
        ("sessions", "export", "--store", "sqlite:///a.db"),
    ],
    ids=" ".join,
)
def test_a_full_output_is_one_line(
    littleghost: Run, tmp_path: Path, command: tuple[str, ...], unbuffered: str
):
    fill(tmp_path / "a.db")
    done = littleghost(*command, streams="> /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (1, NO_SPACE)


def test_an_error_is_told_by_the_status_where_no_stream_takes_it(littleghost: Run, tmp_path: Path):
    done = littleghost("sessions", "stats", "--store", "sqlite:///no.db", streams="> /dev/full 2> /dev/full")
    assert done.returncode == 1
    done = littleghost("sessions", "stats", "--store", "sqlite:///no.db", streams="> /dev/full")
    assert "there is no store" in done.stderr


def test_who_reads_the_summary_and_leaves_loses_no_session(environment: dict[str, str], tmp_path: Path):
    fill(tmp_path / "a.db")
    program = " ".join(LITTLEGHOST)
    script = f"""
        {program} sessions export -o a.jsonl --json --store sqlite:///a.db | true
        {program} sessions import a.jsonl --json --store sqlite:///b.db | true
    """
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.stderr == ""
    assert number_of(tmp_path / "b.db") == 6


# Files


def test_a_folder_or_a_file_without_a_name_is_a_mistake_of_the_caller(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db")
    for command, error in (
        (("import", "."), "error: . cannot be read (it is a folder)\n"),
        (("import", ""), "error: FILE is empty; name what export wrote, or - for standard input\n"),
        (("export", "-o", ""), "error: --output needs the name of a file; - is standard output\n"),
    ):
        done = littleghost("sessions", *command, "--store", "sqlite:///a.db")
        assert (done.returncode, done.stdout, done.stderr) == (2, "", error)


def test_a_path_that_cannot_be_looked_at_is_the_stores_own_error(littleghost: Run, tmp_path: Path):
    done = littleghost("sessions", "list", "--store", f"sqlite:///{'x' * 300}.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "unexpected" not in done.stderr
    fill(tmp_path / "a.db")
    done = littleghost("sessions", "list", "--store", "sqlite:///a.db/b.db")
    assert "there is no store at" in done.stderr


@pytest.mark.skipif(getattr(os, "geteuid", int)() == 0, reason="a user whom permissions hold")
def test_a_folder_without_permission_is_the_stores_own_error(littleghost: Run, tmp_path: Path):
    (tmp_path / "closed").mkdir()
    fill(tmp_path / "closed" / "a.db")
    (tmp_path / "closed").chmod(0)
    try:
        done = littleghost("sessions", "list", "--store", "sqlite:///closed/a.db")
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "unexpected" not in done.stderr


# Stores


@pytest.mark.parametrize(
    "command",
    [
        ("list", "--store", "memory:"),
        ("stats", "--store", "MEMORY:"),
        ("show", "x", "--store", "memory://"),
        ("verify", "--store", "memory:"),
        ("expire", "--older-than", "1d", "--store", "memory:"),
        ("import", "a.jsonl", "--store", "memory:"),
        ("copy", "sqlite:///a.db", "memory:"),
        ("copy", "sqlite:///a.db", "memory:", "--prune"),
        ("copy", "memory:", "sqlite:///a.db", "--existing", "replace", "--prune", "--yes"),
    ],
    ids=" ".join,
)
def test_memory_is_no_store_to_look_into_or_to_fill(
    littleghost: Run, tmp_path: Path, command: tuple[str, ...]
):
    fill(tmp_path / "a.db")
    littleghost("sessions", "export", "-o", "a.jsonl", "--store", "sqlite:///a.db")
    done = littleghost("sessions", *command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "name a store that lasts" in done.stderr or "nobody can be asked" in done.stderr
    done = littleghost("sessions", "stats", LITTLEGHOST_STORE="memory:")
    assert "name a store that lasts" in done.stderr
    assert number_of(tmp_path / "a.db") == 6


@pytest.mark.parametrize("scope", [(), ("--actor", "bob")])
def test_an_empty_source_does_not_empty_the_destination(
    littleghost: Run, tmp_path: Path, scope: tuple[str, ...]
):
    fill(tmp_path / "empty.db", 0)
    if scope:
        fill(tmp_path / "empty.db", 2, "eve")
    with sync.SQLiteStore(tmp_path / "empty.db") as store:
        store.sessions()
    fill(tmp_path / "a.db", 6, "bob")
    command = (
        "copy", "sqlite:///empty.db", "sqlite:///a.db", "--existing", "replace", "--prune", "--yes", *scope
    )  # fmt: skip
    done = littleghost("sessions", *command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the source has no session" in done.stderr
    assert number_of(tmp_path / "a.db") == 6


def test_a_destination_that_is_no_store_is_one_line(littleghost: Run, tmp_path: Path):
    fill(tmp_path / "a.db", 20)
    littleghost("sessions", "export", "-o", "a.jsonl", "--store", "sqlite:///a.db")
    (tmp_path / "none.db").write_text("no database " * 1000)
    for command in (
        ("import", "a.jsonl", "--store", "sqlite:///none.db"),
        ("copy", "sqlite:///a.db", "sqlite:///none.db"),
    ):
        done = littleghost("sessions", *command)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert "none.db" in done.stderr


# Names


def test_names_that_are_empty_or_end_unseen_are_quoted(littleghost: Run, tmp_path: Path):
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        for actor, id in ((None, "a"), ("", "b"), (" ", "c"), ("x", ""), ("x", " d"), ("x", "e f")):
            sync.Session(id=id, actor_id=actor, store=store, metadata={"title": id}).append([])
    _, *lines = littleghost(
        "sessions", "list", "--all-actors", "--store", "sqlite:///a.db"
    ).stdout.splitlines()
    assert [(line[37:59].strip(), line[59:]) for line in lines] == [
        ("", "a"),
        ('""', "b"),
        ('" "', "c"),
        ("x", '""'),
        ("x", '" d"'),
        ("x", "e f"),
    ]
    done = littleghost("sessions", "delete", "b", "--actor", "", "--yes", "--store", "sqlite:///a.db")
    assert done.stdout == 'b (actor ""): deleted\n'
    listed = littleghost("sessions", "list", "--all-actors", "--json", "--store", "sqlite:///a.db").stdout
    assert {line["id"]: line["metadata"] for line in map(json.loads, listed.splitlines())}["e f"] == {
        "title": "e f"
    }


def test_an_id_that_begins_with_a_dash_stands_behind_two(littleghost: Run, tmp_path: Path):
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        sync.Session(id="-x", store=store).append([Message.user("hello")])
    for command in ("show", "tail", "delete"):
        done = littleghost("sessions", command, "-x", "--store", "sqlite:///a.db")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "an ID that begins with - stands behind --" in done.stderr
        shown = littleghost("sessions", command, "--help").stdout
        assert "Behind -- where it begins with -." in " ".join(shown.replace("│", " ").split())
    assert "stands behind" not in littleghost("sessions", "list", "-x").stderr
    assert littleghost("sessions", "show", "--store", "sqlite:///a.db", "--", "-x").stdout == "user: hello\n"


def test_an_option_without_its_value_names_the_help_of_its_command(littleghost: Run):
    done = littleghost("sessions", "list", "--actor")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.endswith("littleghost sessions list --help shows what there is\n")


# Signals


SLOW = """
import sys, time

class Slow:
    "Lets the program stand still while it loads."

    def find_spec(self, name, path=None, target=None):
        if name == "littleghost.cli.app":
            print("loading", flush=True)
            time.sleep(60)

sys.meta_path.insert(0, Slow())
from littleghost.cli import main
main()
"""


def test_ctrl_c_while_the_program_loads_ends_it_without_a_word(environment: dict[str, str]):
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "loading\n"
        child.send_signal(signal.SIGINT)
        out, errors = child.communicate()
    assert (child.returncode, out, errors) == (130, "", "")


TERMINATED = """
import sys
from littleghost import open_store
from littleghost.cli import moving
from littleghost.cli.app import run
from littleghost.testing import FaultyStore

class Announcing(FaultyStore):
    async def _suffer(self, called, count, when):
        if (called, count, when) == ("load", 4, "before"):
            sys.stderr.write("there\\n")
        await super()._suffer(called, count, when)

moving.existing_store = lambda url: Announcing(open_store(url)).hang("load", 4)
run()
"""


@pytest.mark.parametrize("trap", ["", "trap '' INT;"], ids=["in front", "in the background"])
def test_sigterm_in_an_export_leaves_no_file(environment: dict[str, str], tmp_path: Path, trap: str):
    fill(tmp_path / "a.db")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.jsonl").write_text("from before")
    command = ["sessions", "export", "-o", "out/a.jsonl", "--store", "sqlite:///a.db"]
    with subprocess.Popen(
        ["sh", "-c", f'{trap} exec "$@"', "sh", sys.executable, "-c", TERMINATED, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    ) as child:
        assert child.stderr is not None
        assert child.stderr.readline() == "there\n"
        assert len(os.listdir(tmp_path / "out")) == 2
        child.send_signal(signal.SIGTERM)
        out, errors = child.communicate()
    assert (child.returncode, out, errors) == (143, "", "")
    assert os.listdir(tmp_path / "out") == ["a.jsonl"]
    assert (tmp_path / "out" / "a.jsonl").read_text() == "from before"
