"""What the commands write to: text made safe for a terminal, and errors in one line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO, cast

import msgspec
import typer
from rich.console import Console

from littleghost import ConfigurationError, LittleGhostError
from littleghost.cli.ctrl_c import INTERRUPTED
from littleghost.cli.streams import let_go, output_failure

__all__ = [
    "Terminal",
    "failed_output",
    "one_line",
    "printable",
    "quoted",
    "reporting",
    "short_call",
    "without_password",
    "write_json",
]

# A model's text may hold what moves the cursor, recolours or overwrites what is there, turns the direction of writing, or is not seen.
_HIDDEN = [
    *range(0x7F, 0xA0),
    0x061C,
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xE0000, 0xE0080),
]
_SAFE: dict[int, int | str | None] = {
    **dict.fromkeys(_HIDDEN, "\ufffd"),
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    0x0D: None,
    0x7F: 0x2421,
}
_ESCAPED = {code: json.dumps(chr(code))[1:-1] for code in _HIDDEN} | {0x7F: "\\u007f"}


def printable(text: str, *, lines: bool = True) -> str:
    """Return ``text`` with nothing in it that a terminal would obey; line ends and tabs stay where ``lines`` are allowed."""
    safe = text.translate(_SAFE)
    return safe if lines else safe.replace("\n", "␊").replace("\t", "␉")


def quoted(name: str) -> str:
    """Return the name of an actor or a session in one line; within quotes where it is empty, or begins or ends with what is not seen."""
    safe = printable(name, lines=False)
    return safe if safe and safe == safe.strip().strip('"') else f'"{safe}"'


def one_line(text: str, width: int = 100) -> str:
    """Return the beginning of ``text`` in one line, safe for a terminal."""
    line = " ".join(printable(text[: width * 4]).split())
    return line if len(line) <= width and len(text) <= width * 4 else line[: width - 1] + "…"


def short_call(name: str, arguments: Mapping[str, Any], width: int = 100) -> str:
    """Return a tool call as one short line, such as ``read_file(path="notes.md")``."""
    shown = (
        f"{key}={one_line(json.dumps(value, ensure_ascii=False), 48)}" for key, value in arguments.items()
    )
    return one_line(f"{name}({', '.join(shown)})", width)


class Terminal:
    """Standard output and error: styled where they are a terminal, plain where they are not.

    Attributes:
        out: For what was asked for.
        err: For everything beside it.
        interactive: Whether a person reads and writes.
    """

    def __init__(self) -> None:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):  # not what a test put in its place
                cast("Any", stream).reconfigure(errors="replace")
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()

    @property
    def aside(self) -> Console:
        """Where remarks go: beside the answers on a terminal, away from them in a pipe."""
        return self.out if self.interactive else self.err

    def remark(self, text: str) -> None:
        """Write a line that is no answer."""
        self.aside.print(printable(text), style="dim")

    def complain(self, error: BaseException) -> None:
        """Write what went wrong, in one line, to standard error."""
        try:
            self.err.print(f"error: {describe(error)}", style="red")
        except OSError:  # that is full as well, and the exit status has to do
            let_go(sys.stderr)


def _console(file: TextIO) -> Console:
    return Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)


def write_json(value: Any, file: TextIO | None = None) -> None:
    """Write ``value`` in one line to ``file``, standard output unless given; what a terminal would obey is escaped."""
    (file or sys.stdout).write(msgspec.json.encode(value).decode().translate(_ESCAPED) + "\n")


_PASSWORD = re.compile(
    r"(?P<before>://)(?:[^\s/]*|[^\s/:@]*:\S*|[^\s/:@]*:[^@\n]*)@|(?P<option>\b(?:password|sslpassword)=)[^\s&'\"]*"
    r"|(?P<half>\b[^\s/:@'\"]+:/?)(?!/)\S+@",
    re.IGNORECASE,
)


def without_password(text: str) -> str:
    """Return ``text`` without what the URLs in it have before the host, which may be a password, and without those in their options."""

    def hidden(found: re.Match[str]) -> str:
        before = found["before"] or found["half"]
        return f"{before}…@" if before else f"{found['option']}…"

    return _PASSWORD.sub(hidden, text)


HERE = {
    "let one with create=True make it": "let import or copy make it",
    "create=False changes nothing": "this command changes nothing",
    "let a store with create=True bring them up to date": "let import or copy bring them up to date",
    "await store.migrate() makes them": "import and copy make them",
}
"""What the library says, and what that is on the command line."""


def describe(error: BaseException) -> str:
    """Return an error in one line. What was typed in the wrong place is repeated in it, but for passwords."""
    said = str(error)
    for there, here in HERE.items():
        said = said.replace(there, here)
    text = one_line(without_password(said), 2000)
    if isinstance(error, LittleGhostError):
        return text or type(error).__name__
    return f"unexpected {type(error).__name__}: {text} (littleghost --debug … shows where)"


def exit_status(error: BaseException) -> int:
    """Return 2 where the caller has to set something up differently, else 1."""
    return 2 if isinstance(error, ConfigurationError) else 1


def failed_output(error: OSError) -> int:
    """Return the exit status where standard output takes no more, having said why, unless those who read it have left."""
    if not isinstance(error, BrokenPipeError):
        Terminal().complain(LittleGhostError(f"standard output cannot be written ({error.strerror})"))
    return 1


@contextmanager
def reporting(terminal: Terminal, *, debug: bool) -> Generator[None]:
    """End the program with one line and an exit status for whatever is raised inside; with ``debug``, with a traceback."""
    try:
        yield
        sys.stdout.flush()
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if not isinstance(error, LittleGhostError) and (failure := output_failure(error)):
            raise typer.Exit(failed_output(failure)) from None
        if debug:
            raise
        terminal.complain(error)
        raise typer.Exit(exit_status(error)) from error
