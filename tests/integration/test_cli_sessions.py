"""`littleghost sessions`, and what all commands share."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from littleghost import Message, Session, SQLiteStore, Text, ToolResult, ToolUse, __version__, sync

LITTLEGHOST = [sys.executable, "-m", "littleghost.cli"]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def littleghost(tmp_path: Path) -> Run:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LITTLEGHOST_"))
    }
    environment = {
        **kept,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "COLUMNS": "120",
        "PYTHONWARNINGS": "error",
    }

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LITTLEGHOST, *arguments],
            capture_output=True,
            text=True,
            env={**environment, **more},
            cwd=tmp_path,
            check=False,
        )

    return run


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A store with three sessions of nobody and one of bob."""
    call = ToolUse(id="c1", name="stock", input={"sku": "A7"})
    async with SQLiteStore(tmp_path / "s.db") as store:
        shop = Session(id="shop", store=store)
        await shop.append(
            [Message.user("How many?"), Message.assistant(["I look.", call])], state={"cart": ["A7"]}
        )
        await shop.append(
            [Message.tool([ToolResult(tool_use_id="c1", content=[Text("9")])]), Message.assistant("Nine.")]
        )
        for id, actor in (("two", None), ("three\n\x1b[31m", None), ("his", "bob")):
            await Session(id=id, store=store, actor_id=actor).append([Message.user("x")])
    return f"sqlite:///{tmp_path}/s.db"


def test_list_shows_the_sessions_of_one_actor(littleghost: Run, url: str):
    done = littleghost("sessions", "list", "--store", url)
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["messages", "updated", "id"]
    found = {line.split(maxsplit=3)[3]: line.split()[0] for line in lines}
    assert found == {"shop": "4", "two": "1", "three␊␛[31m": "1"}
    done = littleghost("sessions", "list", "--store", url, "--actor", "bob")
    assert done.stdout.splitlines()[1].endswith("  his")
    done = littleghost("sessions", "list", "--store", url, "--actor", "eve")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no sessions of this actor\n")


async def test_a_list_of_nobody_s_sessions_says_how_to_see_an_actor_s(littleghost: Run, tmp_path: Path):
    async with SQLiteStore(tmp_path / "a.db") as store:
        await Session(id="shop-1", store=store, actor_id="user-7").append([Message.user("x")])
    done = littleghost("sessions", "list", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)
    assert "only those were looked for" in done.stderr
    assert "--actor ID" in done.stderr
    done = littleghost("sessions", "show", "shop-1", "--store", "sqlite:///a.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "--actor ID" in done.stderr
    assert (
        "shop-1" in littleghost("sessions", "list", "--store", "sqlite:///a.db", "--actor", "user-7").stdout
    )


def test_a_time_is_shown_with_its_zone_and_can_be_given_back(littleghost: Run, url: str):
    zone = {"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"} if os.name != "nt" else {}
    line = littleghost("sessions", "list", "--store", url, **zone).stdout.splitlines()[1]
    assert re.fullmatch(r" {7}4  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0[12]:00  shop" if zone else r".*\+.*", line)
    shown = littleghost("sessions", "stats", "--store", url, **zone).stdout
    assert re.search(r"last written  \S+ \d\d:\d\d:\d\d[+-]\d\d:\d\d\n", shown)
    ids = {
        info["id"]: info["updated_at"]
        for info in map(
            json.loads, littleghost("sessions", "list", "--store", url, "--json").stdout.splitlines()
        )
    }
    last = max(ids.values())
    for given in (line[10:35], str(min(ids.values()))):
        assert littleghost("sessions", "list", "--store", url, "--since", given).stdout.count("\n") == 4
    done = littleghost("sessions", "list", "--store", url, "--json", "--since", str(last))
    assert [json.loads(line)["updated_at"] for line in done.stdout.splitlines()] == [last]


def test_list_shows_the_sessions_of_everybody(littleghost: Run, url: str):
    head, *lines = littleghost("sessions", "list", "--store", url, "--all-actors").stdout.splitlines()
    assert head.split() == ["messages", "updated", "actor", "id"]
    assert [(line[37:59].strip(), line[59:]) for line in lines] == [
        ("", "shop"),
        ("", "three␊␛[31m"),
        ("", "two"),
        ("bob", "his"),
    ]
    done = littleghost("sessions", "list", "--store", url, "--all-actors", "--actor", "bob")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "choose one of them" in done.stderr


async def test_list_by_time_and_of_a_time(littleghost: Run, tmp_path: Path):
    async with SQLiteStore(tmp_path / "t.db") as store:
        for id, days in (("a", 3.0), ("b", 1.0), ("c", 9.0)):
            then = time.time() - days * 86400
            await store.restore(id, messages=[], state={}, metadata={}, created_at=then, updated_at=then)

    def ids(*options: str) -> list[str]:
        done = littleghost("sessions", "list", "--store", "sqlite:///t.db", "--json", *options)
        assert done.returncode == 0
        return [json.loads(line)["id"] for line in done.stdout.splitlines()]

    assert ids() == ["a", "b", "c"]
    assert ids("--by-time") == ["b", "a", "c"]
    assert ids("--by-time", "--limit", "2") == ["b", "a"]
    assert ids("--since", "5d") == ["a", "b"]
    assert ids("--by-time", "--since", "1w", "--until", "2d") == ["a"]
    assert ids("--since", datetime.fromtimestamp(time.time() - 2 * 86400, UTC).isoformat()) == ["b"]
    assert ids("--until", "2020-01-31") == []
    done = littleghost("sessions", "list", "--store", "sqlite:///t.db", "--limit", "2")
    assert done.stdout.count("\n") == 3
    assert done.stderr == "there are more than 2; --limit shows more\n"
    done = littleghost("sessions", "list", "--store", "sqlite:///t.db", "--until", "2020-01-31")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no sessions of that time\n")
    for option in (("--since", "yesterday"), ("--until", "3x"), ("--limit", "0")):
        done = littleghost("sessions", "list", "--store", "sqlite:///t.db", *option)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert option[0] in done.stderr


def test_list_as_json_is_an_object_a_line(littleghost: Run, url: str):
    lines = [
        json.loads(line)
        for line in littleghost("sessions", "list", "--store", url, "--json").stdout.splitlines()
    ]
    assert {line["id"]: line["messages"] for line in lines} == {"shop": 4, "two": 1, "three\n\x1b[31m": 1}
    assert all(line["actor_id"] is None and line["updated_at"] > 1e9 for line in lines)


async def test_list_goes_through_all_pages(littleghost: Run, tmp_path: Path):
    async with SQLiteStore(tmp_path / "many.db", durability="off") as store:
        for number in range(450):
            await Session(id=f"s{number}", store=store).append([Message.user("x")])
    ids = [
        json.loads(line)["id"]
        for line in littleghost(
            "sessions", "list", "--store", "sqlite:///many.db", "--json"
        ).stdout.splitlines()
    ]
    assert len(ids) == 450
    assert set(ids) == {f"s{number}" for number in range(450)}


def test_show_shows_everything(littleghost: Run, url: str):
    done = littleghost("sessions", "show", "shop", "--store", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "user: How many?",
        "assistant: I look.",
        'call c1: stock {"sku": "A7"}',
        "result c1: 9",
        "assistant: Nine.",
    ]
    assert (
        'state: {\n  "cart": [\n    "A7"\n  ]\n}'
        in littleghost("sessions", "show", "shop", "--store", url, "--state").stdout
    )


def test_show_as_json_is_the_wire_form(littleghost: Run, url: str):
    shown = json.loads(littleghost("sessions", "show", "shop", "--store", url, "--json").stdout)
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [Message.from_dict(message).text for message in shown["messages"]][-1] == "Nine."
    assert (shown["id"], shown["actor_id"], shown["count"], shown["state"]) == (
        "shop",
        None,
        4,
        {"cart": ["A7"]},
    )


def test_tail_shows_the_end_and_says_what_is_before(littleghost: Run, url: str):
    done = littleghost("sessions", "tail", "shop", "--store", url, "--limit", "1")
    assert (done.stdout, done.stderr) == ("assistant: Nine.\n", "3 older ones: --before 3\n")
    done = littleghost("sessions", "tail", "shop", "--store", url, "--limit", "2", "--before", "3")
    assert done.stdout.splitlines() == ["assistant: I look.", 'call c1: stock {"sku": "A7"}', "result c1: 9"]
    found = json.loads(
        littleghost("sessions", "tail", "shop", "--store", url, "--limit", "3", "--json").stdout
    )
    assert (found["id"], found["actor_id"], found["before"]) == ("shop", None, 1)
    assert [message["role"] for message in found["messages"]] == ["assistant", "tool", "assistant"]
    assert littleghost("sessions", "tail", "shop", "--store", url).stderr == ""
    done = littleghost("sessions", "tail", "his", "--store", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: there is no session 'his'")


async def test_tail_of_an_empty_session_is_empty(littleghost: Run, tmp_path: Path):
    async with SQLiteStore(tmp_path / "e.db") as store:
        await Session(id="e", store=store).replace([])
    done = littleghost("sessions", "tail", "e", "--store", "sqlite:///e.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_stats_counts(littleghost: Run, url: str):
    found = json.loads(littleghost("sessions", "stats", "--store", url, "--json").stdout)
    assert (found["sessions"], found["messages"]) == (4, 7)
    assert found["size"] > 100
    assert found["oldest_at"] <= found["newest_at"] <= time.time()
    found = json.loads(littleghost("sessions", "stats", "--store", url, "--actor", "bob", "--json").stdout)
    assert (found["sessions"], found["messages"]) == (1, 1)
    lines = littleghost("sessions", "stats", "--store", url).stdout.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["sessions", "4"], ["messages", "7"]]


async def test_fork_begins_another_session(littleghost: Run, url: str, tmp_path: Path):
    done = littleghost("sessions", "fork", "shop", "branch", "--at", "2", "--store", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "branch: begun with 1 message\n", "")
    found = json.loads(littleghost("sessions", "fork", "shop", "all", "--store", url, "--json").stdout)
    assert found == {"id": "all", "actor_id": None, "messages": 4}
    async with SQLiteStore(tmp_path / "s.db") as store:
        assert [message.text for message in (await store.load("branch")).messages] == ["How many?"]
        assert (await store.load("all")).state == {"cart": ["A7"]}
    for arguments, error in (
        (("shop", "two"), "there is a session 'two' already"),
        (("his", "new"), "no session 'his' that belongs to nobody; --actor ID names one of an actor"),
        (("shop", "new", "--actor", "bob"), "no session 'shop' of this actor"),
    ):
        done = littleghost("sessions", "fork", *arguments, "--store", url)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert error in done.stderr


async def test_delete_needs_a_yes(littleghost: Run, url: str, tmp_path: Path):
    done = littleghost("sessions", "delete", "his", "--actor", "bob", "--store", url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--yes" in done.stderr
    async with SQLiteStore(tmp_path / "s.db") as store:
        assert await store.load("his", actor_id="bob") is not None
    done = littleghost("sessions", "delete", "his", "--actor", "bob", "--yes", "--store", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "his (actor bob): deleted\n", "")
    async with SQLiteStore(tmp_path / "s.db") as store:
        assert await store.load("his", actor_id="bob") is None
        assert await store.load("shop") is not None
    done = littleghost("sessions", "delete", "his", "--actor", "bob", "--yes", "--store", url)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "error: there is no session 'his' of this actor\n",
    )
    done = littleghost("sessions", "delete", "two", "--yes", "--store", url, "--json")
    assert json.loads(done.stdout) == {"id": "two", "actor_id": None, "deleted": True}


@pytest.mark.parametrize("arguments", [("nowhere",), ("his",), ("shop", "--actor", "bob")])
def test_an_unknown_session_and_another_actor_s_are_the_same_error(
    littleghost: Run, url: str, arguments: tuple[str, ...]
):
    done = littleghost("sessions", "show", *arguments, "--store", url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"error: there is no session '{arguments[0]}'")


def test_looking_makes_no_store(littleghost: Run, tmp_path: Path):
    for options in ((), ("--store", "sqlite:///missing.db"), ("--store", "sqlite:///sub/missing.db")):
        commands = (
            ("list",),
            ("show", "x"),
            ("tail", "x"),
            ("stats",),
            ("fork", "x", "y"),
            ("delete", "x", "-y"),
            ("export",),
            ("verify",),
            ("expire", "--older-than", "1d"),
        )
        for command in commands:
            done = littleghost("sessions", *command, *options)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith("error: there is no store at ")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def schemas(url: str) -> list[str]:
    import asyncpg

    async def look() -> list[str]:
        connection = await asyncpg.connect(url.partition("?")[0] + host(url))
        try:
            rows = await connection.fetch(
                "SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace"
            )
        finally:
            await connection.close()
        schema = dict(parse_qsl(urlsplit(url).query))["schema"]
        return [row["relname"] for row in rows if row["nspname"] == schema]

    return asyncio.run(look())


def host(url: str) -> str:
    others = [(name, value) for name, value in parse_qsl(urlsplit(url).query) if name != "schema"]
    return f"?{urlencode(others)}"


def test_looking_makes_no_tables_on_a_server(
    littleghost: Run, tmp_path: Path, new_postgres_url: Callable[[], str]
):
    url = new_postgres_url()
    commands = (
        ("list",),
        ("show", "x"),
        ("tail", "x"),
        ("stats",),
        ("fork", "x", "y"),
        ("delete", "x", "-y"),
        ("delete", "--actor", "x", "--all", "-y"),
        ("export",),
        ("export", "-o", "out.jsonl"),
        ("verify",),
        ("expire", "--older-than", "1d"),
        ("expire", "--older-than", "1d", "--dry-run"),
    )
    for command in commands:
        for more in ((), ("--json",)):
            done = littleghost("sessions", *command, *more, "--store", url)
            assert (done.returncode > 0, done.stdout if command != ("export",) else "") == (True, ""), command
            assert done.stderr.startswith("error: "), command
            assert done.stderr.count("\n") == 1, command
            assert "create=" not in done.stderr, "what is no word of the command line"
            assert "let import or copy make it" in done.stderr, command
            assert not schemas(url)
    done = littleghost("sessions", "copy", url, "sqlite:///new.db")
    assert (done.returncode > 0, done.stdout, done.stderr.count("\n")) == (True, "", 1)
    assert not schemas(url)
    assert not (tmp_path / "out.jsonl").exists()
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        store.replace("x", messages=[Message.user("x")], state={}, metadata={})
    assert littleghost("sessions", "copy", "sqlite:///a.db", url).stdout == "sessions: 1 written\n"
    assert schemas(url)
    assert littleghost("sessions", "verify", "--store", url).stdout == "1 session checked, 0 damaged\n"


def test_a_path_is_no_url_and_is_told_what_it_would_be(littleghost: Run, tmp_path: Path):
    with sync.SQLiteStore(tmp_path / "a.db") as store:
        store.sessions()
    for path, meant in (
        ("shop.db", "sqlite:///shop.db"),
        ("sub dir/shop.db", "sqlite:///sub%20dir/shop.db"),
        ("/tmp/shop.db", "sqlite:////tmp/shop.db"),
    ):
        for command in (
            ("list", "--store", path),
            ("copy", path, "sqlite:///b.db"),
            ("copy", "sqlite:///a.db", path),
            ("import", os.devnull, "--store", path),
        ):
            done = littleghost("sessions", *command)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert done.stderr.endswith(f"did you mean {meant}?\n")
    for other in ("", "me@example.org/secret", "shop.db?secret"):
        done = littleghost("sessions", "list", "--store", other)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "secret" not in done.stderr
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} <= {"a.db", "a.db-lease"}


def test_a_store_that_is_not_there_is_said_by_its_place(littleghost: Run, tmp_path: Path):
    done = littleghost("sessions", "list")
    assert done.stderr.endswith("sessions.db; name another with --store URL, or set LITTLEGHOST_STORE\n")
    for command in (("list", "--store", "sqlite:///no.db"), ("copy", "sqlite:///no.db", "sqlite:///b.db")):
        done = littleghost("sessions", *command)
        assert done.stderr == f"error: there is no store at {tmp_path}/no.db; correct the path in its URL\n"


def test_a_store_that_is_none_is_one_line(littleghost: Run, tmp_path: Path):
    (tmp_path / "text.db").write_text("This is no database. " * 100)
    done = littleghost("sessions", "list", "--store", "sqlite:///text.db")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: ")


def test_the_store_can_be_set_for_good(littleghost: Run, url: str):
    assert "shop" in littleghost("sessions", "list", LITTLEGHOST_STORE=url).stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_leaves_is_no_error(url: str, options: tuple[str, ...]):
    command = [*LITTLEGHOST, "sessions", "show", "shop", "--store", url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait() == 1


def test_version_and_help(littleghost: Run):
    assert littleghost("--version").stdout == f"littleghost {__version__}\n"
    below = "list show tail stats fork delete export import copy verify expire".split()
    shown = littleghost("sessions", "--help").stdout
    assert [name for name in below if f" {name} " not in shown] == []
    for command in ((), ("chat",), ("demo",), ("sessions",), *(("sessions", name) for name in below)):
        done = littleghost(*command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: littleghost" in done.stdout
        assert "\x1b" not in done.stdout
    assert "littleghost chat --model openai:gpt-5" in littleghost("--help").stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--nonsense",), "no such option: --nonsense; littleghost --help shows what there is"),
        (("chat", "--nonsense"), "no such option: --nonsense; littleghost chat --help shows what there is"),
        (("nonsense",), "no such command 'nonsense'; littleghost --help shows what there is"),
        (("sessions", "show"), "missing argument 'ID'; littleghost sessions show --help shows what there is"),
        (
            ("sessions", "list", "postgresql://me:secret@example.org/db"),
            "got unexpected extra argument(s) (postgresql://…@example.org/db); littleghost sessions list --help",
        ),
        (("sessions", "expire"), "missing option '--older-than'; littleghost sessions expire --help"),
        (
            ("sessions", "import", "x", "--existing", "merge"),
            "invalid value for '--existing': 'merge' is not one of",
        ),
        (
            ("sessions", "fork", "a", "b", "--at", "-1"),
            "invalid value for '--at': ",
        ),
        (
            ("sessions", "tail", "a", "--before", "-1"),
            "invalid value for '--before': ",
        ),
        (("sessions", "delete"), "name either the ID of one session, or --actor ID and --all for every one"),
        (
            ("sessions", "delete", "x", "--all", "--actor", "bob"),
            "name either the ID of one session, or --actor ID",
        ),
        (
            ("sessions", "delete", "--actor", "bob"),
            "name either the ID of one session, or --actor ID and --all",
        ),
        (
            ("sessions", "delete", "--all", "-y"),
            "--all means every session of one actor; name it with --actor ID",
        ),
        (("chat", "--sandbox", "foo"), "invalid value for '--sandbox': 'foo' is not one of 'native', 'host'"),
    ],
)
def test_a_usage_error_is_one_line(littleghost: Run, arguments: tuple[str, ...], error: str):
    done = littleghost(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: {error}")


def test_the_help_of_all_commands_is_alike(littleghost: Run):
    order = [
        "--store",
        "--actor",
        "--all-actors",
        "--all",
        "--existing",
        "--prune",
        "--yes",
        "--json",
        "--help",
    ]
    below = "list show tail stats fork delete export import copy verify expire".split()
    commands = ["", "chat", "demo", "sessions", *(f"sessions {name}" for name in below)]
    helps = {command: littleghost(*command.split(), "--help").stdout for command in commands}
    for command in below:
        shown = helps[f"sessions {command}"]
        options = re.findall(r"^│ \*? *(--[a-z-]+)", shown, re.MULTILINE)
        assert options[-2:] == ["--json", "--help"]
        known = [order.index(option) for option in options if option in order]
        assert known == sorted(known)
        if command != "copy":
            assert options[0] == "--store"
        else:
            assert "--existing replace overwrites what differs in DST" in shown
        assert "memory:" not in shown
        assert "Examples" in shown
        usage = re.search(r"Usage: (.*)", shown)[1]  # type: ignore[index]
        assert "{" not in usage
    assert "Usage: littleghost sessions fork [OPTIONS] ID NEW " in helps["sessions fork"]
    assert "memory:" in helps["chat"]
    for command, shown in helps.items():
        assert "Usage" in shown, command
        assert "bool" not in shown.lower(), command


@pytest.mark.parametrize("command", [(), ("sessions",)])
def test_no_command_is_help(littleghost: Run, command: tuple[str, ...]):
    done = littleghost(*command)
    assert done.returncode == 2
    assert "Usage: littleghost" in done.stdout
    assert "error" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="a path of Unix")
def test_a_url_is_read_as_the_store_reads_it(littleghost: Run, tmp_path: Path):
    done = littleghost("sessions", "list", "--store", "SQLITE:///a%20b.db?durability=normal")
    assert done.stderr.startswith(f"error: there is no store at {tmp_path}/a b.db; ")
