"""How to start this program once more, as a person would type it where they started it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["chat_command", "this_program"]

VIA_MAKE = "LITTLEGHOST_VIA_MAKE"
"""Set by ``make chat``, to the model it chooses."""


def this_program() -> list[str]:
    """Return the words that start this program: its name where the shell finds it by that, else its path."""
    started = sys.argv[0]
    name = Path(started).stem
    if name == "__main__":
        return [sys.executable, "-m", "littleghost.cli"]
    found = shutil.which(name)
    if found is not None and _same(found, started):
        return [name]
    # A name without a folder would be looked for elsewhere.
    return [started if Path(started).name != started else f"{os.curdir}{os.sep}{started}"]


def chat_command(options: Sequence[str]) -> str:
    """Return the command line of a chat with ``options``, quoted for the shell; by ``make`` where that began this one."""
    model = os.environ.get(VIA_MAKE)
    if not model:
        return shlex.join([*this_program(), "chat", *options])
    rest = list(options)
    for at in range(len(rest) - 1):
        if rest[at : at + 2] == ["--model", model]:
            del rest[at : at + 2]
            break
    return f"make chat ARGS={shlex.quote(shlex.join(rest).replace('$', '$$'))}"


def _same(found: str, started: str) -> bool:
    # On Windows the one may have its .exe and the other not.
    one, other = (os.path.normcase(Path(os.path.realpath(path)).with_suffix("")) for path in (found, started))
    return one == other
