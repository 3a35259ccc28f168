"""The sources of the programs that run beside the application."""

from __future__ import annotations

import importlib.util
from typing import Any

__all__ = ["source_of"]


def source_of(module: str) -> str | None:
    """Return the text of a module, wherever it was loaded from; ``None`` where only its code is there.

    Read it once, when the library is imported: an agent that can write the file later writes what runs on the host.
    """
    spec = importlib.util.find_spec(module)
    loader: Any = None if spec is None else spec.loader
    try:
        return loader.get_source(module)
    except (AttributeError, ImportError, OSError):
        return None
