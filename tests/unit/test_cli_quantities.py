"""Times, sizes and URLs as people write and read them."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

pytest.importorskip("typer")

from littleghost import ConfigurationError
from littleghost.cli.quantities import amount, duration, moment, shown_moment, shown_size
from littleghost.cli.terminal import without_password


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("12h", 43200),
        ("30d", 2592000),
        ("4w", 2419200),
        ("1.5h", 5400),
        (" 1d ", 86400),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float):
    assert duration(text, "--x") == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "d", "0d", "0.0s", "-1d", "1y", "1e3d", "1 d", "nan", "1d1h", "9" * 20 + "d"]
)
def test_what_is_no_duration_is_said_with_its_option(text: str):
    with pytest.raises(ConfigurationError, match="--x is a time such as"):
        duration(text, "--x")


def test_a_moment_is_a_date_of_here_or_how_long_ago():
    assert moment("2026-01-31", "--x") == datetime(2026, 1, 31).timestamp()  # noqa: DTZ001 (of here is meant)
    assert moment("2026-01-31T18:30", "--x") == datetime(2026, 1, 31, 18, 30).timestamp()  # noqa: DTZ001
    assert moment("2026-01-31T18:30+00:00", "--x") == 1769884200
    assert moment("2d", "--x") == pytest.approx(time.time() - 172800, abs=60)
    for text in ("", "soon", "2026-13-01", "2026", "1769884200.5s", "12345678.5", "1e9", "0d", "9" * 30):
        with pytest.raises(ConfigurationError, match="--x is a"):
            moment(text, "--x")


def test_a_moment_is_read_as_json_writes_it():
    assert moment("1769884200.5", "--x") == 1769884200.5
    assert moment("1769884200", "--x") == 1769884200.0
    assert moment("20260131", "--x") == datetime(2026, 1, 31).timestamp()  # noqa: DTZ001


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process can be set on Unix only")
@pytest.mark.parametrize(
    ("zone", "winter", "summer"),
    [
        ("UTC", "18:30:05+00:00", "18:30:05+00:00"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "19:30:05+01:00", "20:30:05+02:00"),
    ],
)
def test_a_moment_is_shown_with_the_zone_of_here(
    monkeypatch: pytest.MonkeyPatch, zone: str, winter: str, summer: str
):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for date, clock in (("2026-01-31", winter), ("2026-07-31", summer)):
            then = datetime.fromisoformat(f"{date}T18:30:05+00:00").timestamp()
            assert shown_moment(then + 0.75) == f"{date} {clock}"
            assert moment(shown_moment(then), "--x") == then
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_moment_that_no_clock_shows():
    assert shown_moment(None) == ""
    for seconds in (1e18, -1e18, 1e300):  # what a store may hold and no clock shows
        assert shown_moment(seconds).endswith(" s")


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (123_456, "123 kB"),
        (5_600_000, "5.6 MB"),
        (7e13, "70,000 GB"),
    ],
)
def test_a_size_has_the_unit_that_suits_it(size: float, shown: str):
    assert shown_size(size) == shown


def test_one_is_no_plural():
    assert [amount(number, "session") for number in (0, 1, 2)] == ["0 sessions", "1 session", "2 sessions"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@h/db", "postgresql://…@h/db"),
        ("at postgresql://me:se@cret@h:5/db?x=1 and", "at postgresql://…@h:5/db?x=1 and"),
        ("'postgresql://me:se/cret@h/db'", "'postgresql://…@h/db'"),
        ("postgresql://h/db?user=me&password=secret&x=1", "postgresql://h/db?user=me&password=…&x=1"),
        ("PG://:secret@h", "PG://…@h"),
        ("host=h password=secret dbname=d", "host=h password=… dbname=d"),
        ("sqlite:////home/me@work:x/s.db", "sqlite:////home/me@work:x/s.db"),
        ("postgresql://h/db", "postgresql://h/db"),
        ("somebody@example.org says: no", "somebody@example.org says: no"),
    ],
)
def test_no_password_is_shown(text: str, shown: str):
    assert without_password(text) == shown
