"""What the command line writes is safe for a terminal, and it costs nothing to who does not use it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("typer")

import littleghost
from littleghost import (
    ConfigurationError,
    Image,
    LocalModel,
    Message,
    SessionBusyError,
    StoreError,
    Text,
    ToolResult,
    ToolUse,
)
from littleghost.cli.choosing import what_to_expect
from littleghost.cli.stores import default_path
from littleghost.cli.terminal import (
    HERE,
    describe,
    exit_status,
    one_line,
    printable,
    quoted,
    short_call,
    write_json,
)
from littleghost.cli.transcripts import lines_of


def in_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@given(st.text())
def test_nothing_printable_commands_a_terminal(text: str):
    safe = printable(text)
    assert all(char in "\n\t" or (ord(char) >= 32 and not 0x7F <= ord(char) < 0xA0) for char in safe)
    assert not set(safe) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert printable(safe) == safe


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_stays_as_it_is(text: str):
    assert printable(text) == text


@given(st.text(), st.integers(2, 200))
def test_one_line_is_one_short_line(text: str, width: int):
    line = one_line(text, width)
    assert len(line) <= width
    assert "\n" not in line
    if len(text) <= width and text.isprintable() and text == " ".join(text.split()):
        assert line == printable(text)


def test_a_call_in_short():
    assert short_call("read_file", {"path": "notes.md"}) == 'read_file(path="notes.md")'
    assert short_call("now", {}) == "now()"
    long = short_call("write_file", {"path": "a", "content": "x" * 1000})
    assert long.startswith('write_file(path="a", content="xxx')
    assert len(long) <= 100
    assert "\x1b" not in short_call("a\x1b[31m", {"\x1b": "\x1b"})


def test_an_error_is_one_line_and_says_how_the_program_ends():
    assert describe(StoreError("a\nb")) == "a b"
    assert describe(StoreError()) == "StoreError"
    assert describe(KeyError("x")) == "unexpected KeyError: 'x' (littleghost --debug … shows where)"
    assert [exit_status(error) for error in (ConfigurationError(), SessionBusyError(), KeyError())] == [
        2,
        1,
        1,
    ]


def test_a_conversation_in_lines():
    call = ToolUse(id="c1", name="read_file", input={"path": "a\x1b"})
    messages = [
        Message.user("look"),
        Message.assistant(["I look.", call]),
        Message.tool([ToolResult(tool_use_id="c1", content=[Text("one\ntwo")], status="error")]),
        Message("assistant", "half", {"littleghost": {"partial": "stopped"}}),
    ]
    assert [line.text for line in lines_of(messages)] == [
        "user: look",
        "assistant: I look.",
        '  call read_file(path="a\\u001b")',
        "  error one two",
        "assistant: half",
        "  (cut short here)",
    ]
    full = [line.text for line in lines_of(messages, full=True)]
    assert full[2:4] == ['call c1: read_file {"path": "a\\u001b"}', "error c1: one\ntwo"]


def test_the_default_store_is_where_the_user_keeps_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    if sys.platform == "win32":
        pytest.skip("XDG is of Unix")
    monkeypatch.setenv("HOME", str(tmp_path))
    for given_folder, folder in (
        (None, tmp_path / ".local/share"),
        (str(tmp_path / "x"), tmp_path / "x"),
        ("relative", tmp_path / ".local/share"),
    ):
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        if given_folder is not None:
            monkeypatch.setenv("XDG_DATA_HOME", given_folder)
        assert default_path() == folder / "littleghost" / "sessions.db"


@pytest.mark.parametrize(
    ("size", "word"), [(98_000_000, "tiny"), (1_000_000_000, "small"), (20_000_000_000, "20,000 MB")]
)
def test_a_local_model_is_introduced_by_its_size(tmp_path: Path, size: int, word: str):
    path = tmp_path / "ghost.gguf"
    with path.open("wb") as file:
        file.truncate(size)
    said = what_to_expect(LocalModel(path))
    assert said is not None
    assert said.startswith(f"ghost.gguf: {size / 1e6:,.0f} MB, run on this machine")
    assert word in said
    path.unlink()


def test_the_library_does_not_load_the_command_line():
    code = "import sys, littleghost\nfor name in littleghost.__all__: getattr(littleghost, name)\n"
    done = in_python(
        code
        + "print([name for name in sys.modules if name.partition('.')[0] in ('typer', 'rich') or 'cli' in name.split('.')])"
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_a_missing_package_is_one_line_that_names_the_extra(name: str):
    done = in_python(
        f"import sys; sys.modules[{name!r}] = None; import littleghost.cli; littleghost.cli.main()"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"error: the command line needs {name}; install it with: pip install 'littleghost[cli]'\n"
    )


def test_the_agent_of_the_demo_needs_neither():
    done = in_python(
        "import sys; sys.modules['typer'] = sys.modules['rich'] = None; import littleghost.cli.demo_agent"
    )
    assert (done.returncode, done.stderr) == (0, "")


HIDDEN = "\x1b]0;pwned\x07 \x7f\x9b2J \u202e\u2066 \u200f\u061c \u2028 \U000e0041"


def test_nothing_in_a_conversation_reaches_a_terminal_raw():
    call = ToolUse(id=HIDDEN, name=HIDDEN, input={HIDDEN: HIDDEN})
    messages = [
        Message.user(HIDDEN),
        Message.assistant([call]),
        Message.tool([ToolResult(tool_use_id=HIDDEN, content=HIDDEN)]),
        Message.user([Image(data=b"", media_type="image/png")]),
    ]
    for full in (True, False):
        for line in lines_of(messages, full=full):
            assert not set(line.text) & (set(HIDDEN) - set("]0;pwned2JA ")), line


def test_json_holds_nothing_that_a_terminal_obeys_and_says_the_same():
    out = io.StringIO()
    write_json({HIDDEN: [HIDDEN, "é🦄"]}, out)
    assert not set(out.getvalue()) & (set(HIDDEN) - set("]0;pwned2JA "))
    assert json.loads(out.getvalue()) == {HIDDEN: [HIDDEN, "é🦄"]}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret@h/db",
        "postgresql://u:se/cret@h/db",
        "postgresql://u:sec@ret@h/db",
        "postgresql://u:sec ret@h/db",
        "postgresql:/u:secret@h",
        "u:secret@h/db",
        "postgresql://h/db?password=secret",
    ],
)
def test_a_password_is_shown_in_no_error_however_it_was_typed(url: str):
    shown = describe(ConfigurationError(f"this is no URL of a store: {url!r}; one looks like sqlite:///a.db"))
    assert "sec" not in shown
    assert "ret" not in shown
    assert "sqlite:///a.db" in shown


def test_what_is_said_in_the_words_of_the_library_is_said_in_those_of_the_command_line():
    source = Path(littleghost.__file__).with_name("sessions") / "postgres"
    said = " ".join(re.sub(r'"\s*f?"', "", path.read_text("utf-8")) for path in sorted(source.glob("*.py")))
    for there, here in HERE.items():
        assert there in said, "the library says it in other words by now"
        assert describe(StoreError(f"no tables; {there}, here")) == f"no tables; {here}, here"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a", "a"),
        ("", '""'),
        (" ", '" "'),
        ("a b", "a b"),
        ("a\u00a0", '"a\u00a0"'),
        ('"a"', '""a""'),
        ("a\n", "a␊"),
        ("\x1b", "␛"),
    ],
)
def test_a_name_is_quoted_where_it_could_not_be_seen(name: str, shown: str):
    assert quoted(name) == shown
