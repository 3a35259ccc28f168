"""Times and sizes as people write and read them."""

from __future__ import annotations

import re
import time
from datetime import datetime

from littleghost import ConfigurationError

__all__ = ["amount", "duration", "moment", "shown_moment", "shown_size"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])")
# Eight digits are a date without dashes, and fewer no time that a session can have.
_EPOCH = re.compile(r"\d{9,10}(?:\.\d*)?")


def amount(number: int, noun: str) -> str:
    """Return so many of a thing, such as ``1 session`` or ``2 sessions``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(text: str, option: str) -> float:
    """Return the seconds that ``text`` names, such as ``90s``, ``12h``, ``30d`` or ``4w``.

    Raises:
        ConfigurationError: It names none.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not seconds:
        raise ConfigurationError(f"{option} is a time such as 90s, 12h, 30d or 4w, and not {text!r}")
    return seconds


def moment(text: str, option: str) -> float:
    """Return the seconds since the epoch that ``text`` names.

    Args:
        text: A date; a date and time, of here unless it has a zone; how long ago, such as ``30d``; or the seconds themselves.
        option: Where it was typed.

    Raises:
        ConfigurationError: It names none.
    """
    if _EPOCH.fullmatch(text.strip()):
        return float(text)
    if _DURATION.fullmatch(text.strip()):
        return time.time() - duration(text, option)
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{option} is a date such as 2026-01-31 or 2026-01-31T18:30+01:00, how long ago, such as 12h or 30d, or seconds since the "
            f"epoch, as --json writes them, and not {text!r}"
        ) from None


def shown_moment(seconds: float | None) -> str:
    """Return a moment as the clock of here shows it, with its distance from UTC, as `moment` reads it."""
    if seconds is None:
        return ""
    try:
        return datetime.fromtimestamp(int(seconds)).astimezone().isoformat(" ")
    except (ValueError, OverflowError, OSError):  # no clock shows it
        return f"{seconds:.0f} s"


def shown_size(size: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError
