"""The standard streams as a shell may hand them over: closed, full, or with nobody at the other end."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO, cast

from littleghost.errors import LittleGhostError

__all__ = ["let_go", "output_failure", "stand_in"]

FULL = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


def stand_in() -> None:
    """Put a stream with nothing in it in the place of a closed standard input, and of a closed standard error one that takes all.

    Raises:
        SystemExit: Standard output is closed, so that what was asked for could reach nobody.
    """
    # Also so that no file of ours gets the number of a standard stream.
    if cast("TextIO | None", sys.stdin) is None:
        sys.stdin = _nothing(os.O_RDONLY)
    if cast("TextIO | None", sys.stderr) is None:
        sys.stderr = _nothing(os.O_WRONLY)
    if cast("TextIO | None", sys.stdout) is None:
        sys.stderr.write("error: standard output is closed; > /dev/null throws away what is written there\n")
        sys.exit(2)


def output_failure(error: BaseException | None = None) -> OSError | None:
    """Return why standard output does not take what is written to it, if so; what is still to be written is dropped then.

    Args:
        error: What went wrong. No other file of the command line's fails with the operating system's own error.
    """
    failure: OSError | None = None
    if isinstance(error, OSError) and not isinstance(error, LittleGhostError) and error.errno in FULL:
        failure = error
    try:
        sys.stdout.flush()
    except OSError as stuck:
        failure = stuck
        let_go(sys.stdout)
    return failure


def let_go(stream: TextIO) -> None:
    """Let what is still to be written to ``stream``, which takes no more, go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _nothing(flags: int) -> TextIO:
    mode = "r" if flags == os.O_RDONLY else "w"
    return os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8", closefd=False)
