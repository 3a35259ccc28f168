"""What both sides call things by."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

__all__ = ["version"]


@functools.cache
def version() -> str:
    """Return the version of the library, for the other side to name."""
    try:
        return installed("littleghost")
    except PackageNotFoundError:
        return "unknown"
