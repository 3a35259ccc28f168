"""Stores by URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from littleghost.errors import ConfigurationError
from littleghost.sessions.memory import MemoryStore
from littleghost.sessions.opening import open_store
from littleghost.sessions.sqlite import SQLiteStore


def test_a_store_in_memory():
    for url in ("memory:", "memory://", "MEMORY:"):
        assert type(open_store(url)) is MemoryStore


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///a.db", "{here}/a.db"),
        ("SQLite:///a.db", "{here}/a.db"),
        ("sqlite:///sub/a.db", "{here}/sub/a.db"),
        ("sqlite:////abs/a.db", "/abs/a.db"),
        ("sqlite:///a%20b%23%3f%C3%A9.db", "{here}/a b#?é.db"),
        ("sqlite:///a+b.db", "{here}/a+b.db"),
    ],
)
def test_a_store_in_a_file(url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = open_store(url)
    assert isinstance(store, SQLiteStore)
    assert store._file.path == path.format(here=tmp_path)
    assert store._file.durability == "full"
    assert list(tmp_path.iterdir()) == []


def test_durability():
    assert open_store("sqlite:///a.db?durability=normal")._file.durability == "normal"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "one looks like"),
        ("a.db", "one looks like"),
        ("mysql://user:secret@host/db", "memory:, sqlite:///"),
        ("memory:secret", "nothing after it"),
        ("sqlite:a.db", "three slashes"),
        ("sqlite://secret@a.db", "three slashes"),
        ("sqlite://host/a.db", "three slashes"),
        ("sqlite:///", "path"),
        ("sqlite:///:memory:", "MemoryStore"),
        ("sqlite:///a.db?durability=secret", "full, normal, off"),
        ("sqlite:///a.db?secret=1", "durability"),
        ("sqlite:///a.db?durability=off&durability=full", "once"),
        ("sqlite:///a.db?secret", "malformed"),
        ("sqlite:///a.db?max_messages=-1", "max_messages of the URL must be a positive integer"),
        ("sqlite:///a.db?max_size=0", "max_size of the URL must be a positive integer"),
        ("sqlite:///a.db#secret", "%23"),
        ("sqlite://[secret/a.db", "malformed"),
    ],
)
def test_a_url_that_makes_no_sense(url: str, text: str):
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert text in str(caught.value)
    if "durability=secret" not in url:
        assert "secret" not in repr(caught.value) + str(caught.value.__cause__)
