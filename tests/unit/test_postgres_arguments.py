"""PostgresStore: what it is made with, and what of that is never said."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
import traceback
from typing import Any
from urllib.parse import urlencode

import pytest

from littleghost import sync
from littleghost.errors import ConfigurationError, CredentialError, LittleGhostError, StoreUnavailableError
from littleghost.sessions.contract import SessionLimits
from littleghost.sessions.opening import open_store
from littleghost.sessions.postgres import PostgresStore
from littleghost.sessions.postgres.urls import DRIVERS, LIMITS, OPTIONS, foreign

URL = "postgresql://user:s3cret@host:5433/db"


def settings(store: Any) -> Any:
    return store._pools.settings


def test_a_url_with_our_options_and_the_drivers():
    store = open_store(
        f"{URL}?sslmode=require&schema=s&table_prefix=p_&min_connections=2&max_connections=3&connect_timeout=1&command_timeout=2.5"
        "&acquire_timeout=4&lease_ttl=5&prepared_statements=false&create=false&max_messages=7&max_size=8"
    )
    assert isinstance(store, PostgresStore)
    found = settings(store)
    assert found.dsn == f"{URL}?sslmode=require"
    assert (found.min_connections, found.max_connections) == (2, 3)
    assert (found.connect_timeout, found.command_timeout, found.acquire_timeout) == (1, 2.5, 4)
    assert found.prepared_statements is False
    assert found.create is False
    assert store._lease_ttl == 5
    assert store._place == ("s", "p_")
    assert store.limits == SessionLimits(messages=7, size=8)


@pytest.mark.parametrize(
    ("keyword", "option", "made"),
    [(True, "", True), (False, "", False), (True, "?create=false", False), (False, "?create=true", False)],
)
def test_who_only_looks_makes_nothing_whatever_the_url_says(keyword: bool, option: str, made: bool):
    assert settings(open_store(f"{URL}{option}", create=keyword)).create is made
    assert settings(open_store(URL)).create is True


def test_other_stores_take_the_keyword_too(tmp_path: Any):
    assert open_store("memory:", create=False).limits == SessionLimits()
    assert not (tmp_path / "a.db").exists()
    open_store(f"sqlite:///{tmp_path}/a.db", create=False)


def test_a_store_that_makes_nothing_does_not_migrate_either():
    async def migrate() -> None:
        async with PostgresStore("postgresql://u@127.0.0.1:1/d", create=False) as store:
            await store.migrate()

    with pytest.raises(ConfigurationError, match="create=False"):
        asyncio.run(migrate())


OURS = (
    "schema", "table_prefix", "create", "min_connections", "max_connections", "connect_timeout", "command_timeout", "acquire_timeout",
    "lease_ttl", "prepared_statements", "max_messages", "max_size",
)  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_our_options_in_the_url_of_the_constructor_are_told_where_to_go(name: str):
    url = f"{URL}?sslmode=require&{name}=s3cret"
    with pytest.raises(ConfigurationError, match=rf"\b{name}\b.*open_store\(url\)") as caught:
        PostgresStore(url)
    assert "s3c" not in "".join(traceback.format_exception(caught.value))
    if name.startswith("max_") and name != "max_connections":
        assert "limits=" in str(caught.value)


def test_every_option_of_the_constructor_is_one_of_the_url():
    taken = set(inspect.signature(PostgresStore).parameters) - {"dsn", "limits"}
    assert taken | {"max_messages", "max_size"} == set(OURS) == {*OPTIONS, *LIMITS}


def test_the_driver_takes_what_we_believe_it_takes():
    """What it does not know goes to the server as a setting."""
    from asyncpg import connect_utils

    values = dict.fromkeys(DRIVERS, "1") | {
        "sslmode": "disable", "sslnegotiation": "postgres", "target_session_attrs": "any", "gsslib": "gssapi", "host": "/run",
    }  # fmt: skip
    query = urlencode({**values, "foo": "1", "application_name": "1"})
    nothing = dict.fromkeys(inspect.signature(connect_utils._parse_connect_dsn_and_args).parameters)
    _, found = connect_utils._parse_connect_dsn_and_args(**{**nothing, "dsn": f"postgresql:///?{query}"})
    assert found.server_settings == {"foo": "1", "application_name": "1"}
    assert foreign(f"postgresql:///?{query}") == ["foo"]


@pytest.mark.parametrize("limits", [None, 100, {"messages": 1}, SessionLimits])
def test_limits_that_are_none(limits: Any):
    with pytest.raises(ConfigurationError, match=r"limits must be SessionLimits\(…\)"):
        PostgresStore(URL, limits=limits)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "Postgres"])
def test_both_names_of_the_scheme(scheme: str):
    store = open_store(f"{scheme}://u@/db?host=/run/pg&port=6")
    assert settings(store).dsn == "postgresql://u@/db?host=%2Frun%2Fpg&port=6"
    assert store.limits == SessionLimits()
    assert open_store(f"{scheme}://u@/db?host=/run/pg") is not store


def test_limits_of_a_sqlite_url(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///a.db?durability=off&max_messages=3&max_size=1000")
    assert store.limits == SessionLimits(messages=3, size=1000)
    with pytest.raises(ConfigurationError, match="max_size"):
        open_store("sqlite:///a.db?max_size=many")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql:s3cret", "postgresql://"),
        ("postgresql://user:s3c/ret@host/db", "%2F"),
        ("postgresql://user:s3c#ret@host/db", "%23"),
        ("postgresql://user@host:s3cret/db", "malformed"),
        ("postgresql://user@[s3cret/db", "malformed"),
        (f"{URL}?schema=a&schema=b", "more than once"),
        (f"{URL}?s3cret", "malformed"),
        (f"{URL}?max_connections=s3cret", "max_connections"),
        (f"{URL}?prepared_statements=s3cret", "prepared_statements"),
        (f"{URL}?schema=s3cret;drop", "schema"),
        (f"{URL}?max_messages=s3cret", "max_messages"),
        (f"{URL}?max_connections=0", "max_connections"),
        (f"{URL}?lease_ttl=-1", "lease_ttl"),
        (f"{URL}?lease_ttl=nan", "lease_ttl"),
        (f"{URL}?create=s3cret", "create"),
        ("postgresql://user:123?s3cret=4@host/db", "%40"),
        (f"{URL}?=s3cret", "malformed"),
        (f"{URL}?a%00s3cret=1", "malformed"),
        (f"{URL}?sslmode=%00s3cret", "malformed"),
    ],
)
def test_a_url_that_makes_no_sense_is_not_repeated(url: str, words: str):
    with pytest.raises(ConfigurationError, match=words) as caught:
        open_store(url)
    assert "s3c" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "options",
    [
        {"schema": ""},
        {"schema": 'a"b'},
        {"schema": "a.b"},
        {"schema": "é"},
        {"schema": "1a"},
        {"schema": "x" * 64},
        {"schema": None},
        {"table_prefix": "a b"},
        {"table_prefix": "x" * 40},
        {"table_prefix": "{commits}"},
        {"min_connections": -1},
        {"min_connections": 3, "max_connections": 2},
        {"max_connections": True},
        {"max_connections": 2.5},
        {"connect_timeout": 0},
        {"command_timeout": "1"},
        {"acquire_timeout": float("nan")},
        {"acquire_timeout": float("inf")},
        {"prepared_statements": "no"},
        {"create": "false"},
        {"create": None},
    ],
)
def test_arguments_that_make_no_sense(options: dict[str, Any]):
    with pytest.raises(ConfigurationError, match=next(reversed(options)).split("_")[0]):
        PostgresStore(URL, **options)


def test_nothing_shows_the_url():
    store = PostgresStore(URL)
    for shown in (repr(store), repr(settings(store)), repr(store._pools), str(vars(store))):
        assert "s3cret" not in shown
        assert "5433" not in shown


async def test_who_cannot_be_reached_is_named_without_the_url(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    for url in (
        "postgresql://user:s3cret@127.0.0.1:1/db",
        "postgresql://user:s3cret@/db?host=/nowhere",
        "postgresql://user:s3cret@no.such.host.invalid/db",
        "postgresql://user:s3cret@127.0.0.1/db?sslmode=s3cret",
        "postgresql://user@127.0.0.1:1/db?password=s3cret",
    ):
        async with PostgresStore(url, acquire_timeout=0.05) as store:
            with pytest.raises((StoreUnavailableError, ConfigurationError)) as caught:
                await store.load("a")
        shown = "".join(traceback.format_exception(caught.value))
        assert "s3cret" not in shown
        error: BaseException | None = caught.value
        while error is not None:
            assert "s3cret" not in repr(error)
            error = error.__context__
    assert "s3cret" not in caplog.text


def test_without_the_driver_it_says_which_extra_to_install():
    code = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from littleghost import DependencyError, PostgresStore, open_store\n"
        "for make in (PostgresStore, open_store):\n"
        "    try: make('postgresql://u:s3cret@h/d')\n"
        "    except DependencyError as error: print(error.package, error.extra, error)\n"
        "print(PostgresStore.schema_sql()[:5])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("asyncpg postgres") == 2
    assert "pip install 'littleghost[postgres]'" in done.stdout
    assert done.stdout.endswith("BEGIN\n")
    assert "s3cret" not in done.stdout


def test_the_synchronous_face_takes_the_same_arguments():
    ours = inspect.signature(PostgresStore.__init__).parameters
    theirs = inspect.signature(sync.PostgresStore.__init__).parameters
    assert {name: one.default for name, one in ours.items()} == {
        name: one.default for name, one in theirs.items()
    }


def test_credentials_are_a_kind_of_configuration():
    assert issubclass(CredentialError, ConfigurationError)
    assert issubclass(CredentialError, LittleGhostError)


@pytest.mark.parametrize("value", ["", "-1", "1e3", "٣", "9" * 5000])
@pytest.mark.parametrize("kind", ["postgresql://u@h/d", "sqlite:///x.db"])
def test_a_limit_in_a_url_that_is_no_number_is_refused(kind: str, value: str):
    with pytest.raises(ConfigurationError, match="max_size"):
        open_store(f"{kind}?max_size={value}")
