"""The command line, ``littleghost``. Typer and Rich are loaded when it runs, and by nothing else in the library."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable

from littleghost.cli.ctrl_c import INTERRUPTED, end_at_once, not_lost
from littleghost.cli.streams import stand_in

__all__ = ["main"]


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    stand_in()
    go_on = end_at_once()
    run = _loaded()
    with not_lost():
        try:
            try:
                go_on()
                run()
            finally:
                end_at_once()
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


def _loaded() -> Callable[[], None]:
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the command line needs {' and '.join(missing)}; install it with: pip install 'littleghost[cli]'\n"
        )
        sys.exit(2)
    from littleghost.cli.app import run

    return run
