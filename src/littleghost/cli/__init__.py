"""The command line, ``littleghost``. Typer and Rich are loaded when it runs, and by nothing else in the library."""

from __future__ import annotations

import importlib.util
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the command line needs {' and '.join(missing)}; install it with: pip install 'littleghost[cli]'\n"
        )
        sys.exit(2)
    from littleghost.cli.app import run

    run()
