"""`littleghost chat`, as a process: in a pipe, in a terminal, against a server that speaks the OpenAI API."""

from __future__ import annotations

import http.server
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.test_cli_signals import AT_THE_WORST

from littleghost import BubblewrapSandbox, Message, Session, SQLiteStore, ToolUse, transcript
from littleghost.portal import portal

termios = pytest.importorskip("termios", reason="terminals and signals of Unix")

LITTLEGHOST = [sys.executable, "-m", "littleghost.cli"]
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Server:
    """Answers as `reply` says: it gets the request's body and yields texts to stream, seconds to wait, or tool calls."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.models = ["ghost-1"]
        self.status = 200
        self.reply: Callable[[dict[str, Any]], Any] = lambda body: [
            f"You said: {body['messages'][-1]['content']}"
        ]
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(server.status)
                self.end_headers()
                self.wfile.write(json.dumps({"data": [{"id": name} for name in server.models]}).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append(body)
                self.send_response(server.status)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                if server.status != 200:
                    self.wfile.write(b'{"error": {"message": "no"}}')
                    return
                try:
                    self.stream(body)
                except OSError:  # the client left
                    pass

            def stream(self, body: dict[str, Any]) -> None:
                finish, calls = "stop", 0
                for step in server.reply(body):
                    if isinstance(step, float):
                        time.sleep(step)
                    elif isinstance(step, str):
                        self.send({"content": step})
                    elif step is None:  # break off
                        return
                    else:
                        name, arguments = step
                        function = {"name": name, "arguments": json.dumps(arguments)}
                        call = {"index": calls, "id": f"c{calls}", "type": "function", "function": function}
                        self.send({"tool_calls": [call]})
                        finish, calls = "tool_calls", calls + 1
                self.send({}, finish)
                self.wfile.write(b"data: [DONE]\n\n")

            def send(self, delta: dict[str, Any], finish: str | None = None) -> None:
                choice = {"index": 0, "delta": delta, "finish_reason": finish}
                self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
                self.wfile.flush()

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LITTLEGHOST_"))
    }
    return {
        **kept,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "TERM": "xterm",
        "COLUMNS": "200",
        "PYTHONWARNINGS": "error",
    }


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def littleghost(environment: dict[str, str], tmp_path: Path) -> Run:
    def run(*arguments: str, given: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LITTLEGHOST, *arguments], input=given, capture_output=True, text=True, timeout=240, cwd=tmp_path,
            env={**environment, **more}, check=False,
        )  # fmt: skip

    return run


async def stored(path: Path, id: str, actor: str | None = None) -> list[Message]:
    async with SQLiteStore(path) as store:
        return list(await Session(id=id, store=store, actor_id=actor).history())


# In a pipe


def test_a_pipe_gets_the_answers_and_nothing_else(server: Server, littleghost: Run, tmp_path: Path):
    done = littleghost("chat", "--base-url", server.url, given="hi\n\nagain\n")
    assert (done.returncode, done.stdout) == (0, "You said: hi\nYou said: again\n")
    assert "\x1b" not in done.stdout + done.stderr
    assert re.search(
        r"Session \d{4}-\d\d-\d\d-[0-9a-f]{6}, kept in .*data/littleghost/sessions\.db", done.stderr
    )
    assert (tmp_path / "data" / "littleghost").stat().st_mode & 0o777 == 0o700


def test_text_that_a_terminal_would_obey_is_exact_in_a_pipe(server: Server, littleghost: Run):
    server.reply = lambda body: ["\x1b[31mred\u202e\r\n"]
    done = subprocess.run(
        [*LITTLEGHOST, "chat", "--base-url", server.url, "--store", "memory:", "hi"],
        capture_output=True,
        env=os.environ,
        check=False,
    )
    assert done.stdout == "\x1b[31mred\u202e\r\n\n".encode()


def test_an_argument_is_one_message_and_a_dash_is_all_of_standard_input(server: Server, littleghost: Run):
    assert littleghost("chat", "--base-url", server.url, "one\ntwo").stdout == "You said: one\ntwo\n"
    assert (
        littleghost("chat", "--base-url", server.url, "-", given="one\ntwo\n").stdout
        == "You said: one\ntwo\n"
    )
    assert len(server.requests) == 2


def test_a_session_goes_on_in_another_process_and_is_its_actor_s_alone(
    server: Server, littleghost: Run, tmp_path: Path
):
    store = f"sqlite:///{tmp_path}/s.db"
    for actor in ([], [], ["--actor", "bob"]):
        assert (
            littleghost(
                "chat", "--base-url", server.url, "--store", store, "--session", "s", *actor, given="hi\n"
            ).returncode
            == 0
        )
    assert [len(request["messages"]) for request in server.requests] == [1, 3, 1]


def test_instructions_are_a_text_or_a_file(server: Server, littleghost: Run, tmp_path: Path):
    (tmp_path / "told.txt").write_text("Be brief.")
    for given in ("Be brief.", f"@{tmp_path}/told.txt"):
        littleghost("chat", "--base-url", server.url, "--instructions", given, "hi")
    assert [request["messages"][0] for request in server.requests] == [
        {"role": "system", "content": "Be brief."}
    ] * 2
    done = littleghost("chat", "--base-url", server.url, "--instructions", "@nowhere", "hi")
    assert (done.returncode, done.stderr) == (
        2,
        "error: the instructions in nowhere cannot be read: No such file or directory\n",
    )


# What can be wrong


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, ["no model is configured", "OPENAI_API_KEY", "--base-url", "make chat"]),
        (("--model", "openai:gpt-5"), 2, ["OPENAI_API_KEY is not set"]),
        (
            ("--model", "nonsense"),
            2,
            ["'nonsense' names no model that a chat can talk to", "openai:NAME", "--base-url URL"],
        ),
        (("--model", "other:x"), 2, ["'other:x' names no model that a chat can talk to"]),
        (("--model", "local:nowhere.gguf"), 2, ["there is no model file at nowhere.gguf"]),
        (("--base-url", "http://127.0.0.1:1/v1"), 1, ["127.0.0.1:1 cannot be reached"]),
        (("--base-url", "ftp://x"), 2, ["must begin with http"]),
        (("--base-url", "http://127.0.0.1:1/v1", "--model", "m"), 1, ["127.0.0.1 cannot be reached"]),
        (
            ("--model", "openai:m", "--base-url", "http://x", "--store", "nonsense:"),
            2,
            ["no store of the kind 'nonsense'"],
        ),
        (("--model", "openai:m", "--base-url", "http://x", "--sandbox", "native"), 2, ["--workspace DIR"]),
        (("--model", "openai:m", "--base-url", "http://x", "--writable"), 2, ["--workspace DIR"]),
        (
            ("--model", "openai:m", "--base-url", "http://x", "--workspace", "nowhere"),
            2,
            ["there is no folder nowhere"],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_wrong_is_said_in_one_line(
    littleghost: Run, arguments: tuple[str, ...], status: int, words: list[str]
):
    done = littleghost("chat", *arguments, given="hi\n")
    errors = [line for line in done.stderr.splitlines() if not line.startswith("Talking to ")]
    assert (done.returncode, done.stdout, len(errors)) == (status, "", 1), done.stderr
    assert errors[0].startswith("error: ")
    for word in words:
        assert word in errors[0]


@pytest.mark.parametrize(("code", "status", "words"), [(401, 2, "OPENAI_API_KEY"), (400, 1, "400")])
def test_a_refusal_of_the_server_is_one_line(
    server: Server, littleghost: Run, code: int, status: int, words: str
):
    server.status = code
    done = littleghost("chat", "--base-url", server.url, "--model", "m", given="hi\nagain\n")
    assert (done.returncode, done.stdout) == (status, "")
    assert re.fullmatch(r"Talking to .*\nerror: .*\n", done.stderr), done.stderr
    assert words in done.stderr
    assert len(server.requests) == 1, "after a failure nothing more is sent"


def test_a_server_is_asked_for_its_only_model_and_several_must_be_chosen_from(
    server: Server, littleghost: Run
):
    littleghost("chat", "--base-url", server.url, "hi")
    assert server.requests[0]["model"] == "ghost-1"
    server.models = ["a", "b"]
    done = littleghost("chat", "--base-url", server.url, "hi")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "has 2 models; choose one with --model (a, b)" in done.stderr


def test_a_password_in_a_url_is_not_repeated(littleghost: Run):
    done = littleghost("chat", "--base-url", "http://me:hunter2@127.0.0.1:1/v1", "hi")
    assert done.returncode == 1
    assert "hunter2" not in done.stderr


def test_debug_shows_where(littleghost: Run):
    assert "Traceback" in littleghost("--debug", "chat").stderr
    assert "Traceback" not in littleghost("chat").stderr


def test_another_process_in_the_session_is_one_line(
    server: Server, littleghost: Run, environment: dict[str, str]
):
    server.reply = lambda body: ["slow", 3.0]
    arguments = ["chat", "--base-url", server.url, "--session", "s", "hi"]
    first = subprocess.Popen(
        [*LITTLEGHOST, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: server.requests)
        done = littleghost(*arguments)
        assert done.returncode == 1
        assert re.search(r"^error: session 's' is in use by another holder$", done.stderr, re.MULTILINE)
    finally:
        first.wait(30)


# With a folder


def test_a_model_works_in_a_folder_read_only_unless_asked(
    server: Server, littleghost: Run, tmp_path: Path, isolation: None
):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "note.txt").write_text("the note")

    def reply(body: dict[str, Any]) -> list[Any]:
        last = body["messages"][-1]
        return (
            [("read_file", {"path": "note.txt"}), ("write_file", {"path": "new.txt", "content": "x"})]
            if last["role"] == "user"
            else ["done"]
        )

    server.reply = reply
    offered = {}
    for options in ((), ("--writable",)):
        done = littleghost("chat", "--base-url", server.url, "--workspace", str(folder), *options, "look")
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        offered[options] = [tool["function"]["name"] for tool in server.requests[-1]["tools"]]
        assert any(
            "the note" in str(message["content"])
            for message in server.requests[-1]["messages"]
            if message["role"] == "tool"
        )
        assert (folder / "new.txt").exists() == bool(options)
    assert offered == {
        (): ["read_file", "list_files", "find_files", "search_files", "shell"],
        ("--writable",): [
            "read_file",
            "list_files",
            "find_files",
            "search_files",
            "write_file",
            "replace_in_file",
            "shell",
        ],
    }


def test_no_isolation_is_said_loudly(server: Server, littleghost: Run, tmp_path: Path):
    done = littleghost(
        "chat", "--base-url", server.url, "--workspace", str(tmp_path), "--sandbox", "host", "hi"
    )
    assert done.returncode == 0
    assert "HostSandbox isolates nothing" in done.stderr


@pytest.fixture(scope="module")
def isolation(require: Any) -> None:
    require(
        portal.call(BubblewrapSandbox.probe).available,
        "bubblewrap that works here",
        "apt-get install bubblewrap",
    )


# In a terminal


class Screen:
    """A program in a terminal of its own, and the person before it."""

    def __init__(self, arguments: list[str], environment: dict[str, str], program: list[str]) -> None:
        self.master, slave = os.openpty()
        termios.tcsetwinsize(slave, (50, 200))
        # The new session takes the terminal as its own, so that ^C becomes a signal.
        start = (
            "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
            "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
        )
        command = [sys.executable, "-c", start, *program, *arguments]
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.raw = ""
        self._seen = 0

    @property
    def text(self) -> str:
        return ANSI.sub("", self.raw).replace("\r", "")

    def write(self, text: str) -> None:
        os.write(self.master, text.encode())

    def ctrl_c(self) -> None:
        self.write("\x03")

    def expect(self, *words: str, within: float = 90.0) -> str:
        """Wait for `words`, in this order, after what was expected before."""
        give_up = time.monotonic() + within
        at = self._seen
        for word in words:
            while (found := self.text.find(word, at)) < 0:
                left = give_up - time.monotonic()
                assert left > 0, f"{word!r} did not come; the screen:\n{self.text}"
                if not self.read(left):
                    assert self.text.find(word, at) >= 0, (
                        f"{word!r} did not come before the end; the screen:\n{self.text}"
                    )
            at = found + len(word)
        self._seen = at
        return self.text

    def read(self, timeout: float) -> bool:
        if not select.select([self.master], [], [], timeout)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError:  # EIO: everybody at the other end is gone
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)

    def end(self) -> int:
        while self.read(10):
            pass
        return self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@pytest.fixture
def screen(environment: dict[str, str]) -> Iterator[Callable[..., Screen]]:
    screens: list[Screen] = []

    def start(*arguments: str, program: list[str] = LITTLEGHOST[1:]) -> Screen:
        screens.append(Screen(list(arguments), environment, program))
        return screens[-1]

    yield start
    for one in screens:
        one.close()


def wait_until(there: Callable[[], object], within: float = 90.0) -> None:
    give_up = time.monotonic() + within
    while not there():
        assert time.monotonic() < give_up
        time.sleep(0.01)


async def test_ctrl_c_stops_the_turn_and_not_the_program(server: Server, screen: Any, tmp_path: Path):
    server.reply = lambda body: (
        ["Once upon a time ", 600.0, "never"]
        if "story" in body["messages"][-1]["content"]
        else ["Still here."]
    )
    chat = screen("chat", "--base-url", server.url, "--store", f"sqlite:///{tmp_path}/s.db", "--session", "s")
    chat.expect("> ")
    chat.write("a story\n")
    chat.expect("Once upon a time")
    chat.ctrl_c()
    chat.expect("stopped; what was written is kept", "> ")
    messages = await stored(tmp_path / "s.db", "s")
    assert [message.text for message in messages] == ["a story", "Once upon a time "]
    assert transcript.is_partial(messages[-1])
    chat.write("there?\n")
    chat.expect("Still here.", "> ")
    chat.ctrl_c()
    chat.expect("Ctrl-C again, or Ctrl-D, leaves.", "> ")
    for _ in range(2):  # these clear what was typed, and leave nothing
        chat.write("half a line")
        chat.expect("half a line")
        chat.ctrl_c()
        chat.expect("> ")
    chat.ctrl_c()
    chat.expect("Ctrl-C again, or Ctrl-D, leaves.", "> ")
    chat.ctrl_c()
    assert chat.end() == 0
    assert (
        f"To go on: {sys.executable} -m littleghost.cli chat --session s --base-url {server.url} --store"
        in chat.text
    )
    assert "Traceback" not in chat.text
    messages = await stored(tmp_path / "s.db", "s")
    assert [message.text for message in messages] == ["a story", "Once upon a time ", "there?", "Still here."]


async def test_ctrl_c_while_a_program_of_the_sandbox_runs(
    server: Server, screen: Any, tmp_path: Path, isolation: None
):
    server.reply = lambda body: (
        [("shell", {"command": ["sleep", "60"]})] if body["messages"][-1]["role"] == "user" else ["ok"]
    )
    chat = screen(
        "chat",
        "--base-url",
        server.url,
        "--store",
        f"sqlite:///{tmp_path}/s.db",
        "--session",
        "s",
        "--workspace",
        str(tmp_path),
    )
    chat.expect("> ")
    chat.write("wait\n")
    chat.expect('… shell(command=["sleep", "60"])')
    time.sleep(0.3)
    chat.ctrl_c()
    chat.expect("✗ shell", "stopped", "stopped; what was written is kept", "> ")
    chat.write("and now?\n")
    chat.expect("… shell")
    chat.ctrl_c()
    chat.expect("> ")
    chat.write("\x04")
    assert chat.end() == 0
    messages = await stored(tmp_path / "s.db", "s")
    assert [message.role for message in messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
        "tool",
    ]


async def test_ctrl_c_before_the_first_word_says_what_is_kept(server: Server, screen: Any, tmp_path: Path):
    server.reply = lambda body: [60.0, "never"]
    chat = screen("chat", "--base-url", server.url, "--store", f"sqlite:///{tmp_path}/s.db", "--session", "s")
    chat.expect("> ")
    chat.write("hello\n")
    wait_until(lambda: server.requests)
    chat.ctrl_c()
    text = chat.expect("stopped; there was no answer yet, your message is kept", "> ")
    assert "what was written is kept" not in text
    assert [message.text for message in await stored(tmp_path / "s.db", "s")] == ["hello"]


def test_ctrl_c_while_a_pipe_is_waited_for_ends_the_program(
    server: Server, environment: dict[str, str], tmp_path: Path
):
    command = [*LITTLEGHOST, "chat", "--base-url", server.url, "--store", "memory:"]
    for more in ([], ["-"]):
        with subprocess.Popen(
            [*command, *more],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as child:
            try:
                assert child.stderr.readline().startswith(b"Talking to")
                child.send_signal(signal.SIGINT)
                assert child.wait(20) == 130
                assert child.stderr.read() == b""
            finally:
                child.kill()


async def test_the_way_back_is_the_way_here(
    server: Server, screen: Any, environment: dict[str, str], tmp_path: Path
):
    """By name where the shell finds it, by path where it does not, and by make."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "littleghost"
    script.write_text(f"#!{sys.executable}\nfrom littleghost.cli import main\nmain()\n")
    script.chmod(0o755)
    path = os.environ.get("PATH", os.defpath)
    elsewhere = os.pathsep.join(
        part for part in path.split(os.pathsep) if not (Path(part) / "littleghost").exists()
    )
    made = {"LITTLEGHOST_VIA_MAKE": "local:m.gguf", "PATH": elsewhere}
    for more, back in (
        ({"PATH": f"{folder}{os.pathsep}{elsewhere}"}, "littleghost chat --session s"),
        ({"PATH": elsewhere}, f"{script} chat --session s"),
        (made, "make chat ARGS='--session s --base-url"),
    ):
        environment.update(more)
        chat = screen("chat", "--base-url", server.url, "--session", "s", program=[os.fspath(script)])
        chat.expect("> ")
        chat.write("/session\n")
        chat.expect(f"back     {back}", "> ")
        chat.write("\x04")
        assert chat.end() == 0


def test_ctrl_d_and_quit_leave(server: Server, screen: Any):
    for leave in ("\x04", "/quit\n"):
        chat = screen("chat", "--base-url", server.url)
        chat.expect("Session ", "> ")
        chat.write(leave)
        assert chat.end() == 0
        assert "To go on" not in chat.text, "nothing was said, so there is nothing to come back to"


def test_ctrl_c_in_a_pipe_settles_and_ends(server: Server, environment: dict[str, str], tmp_path: Path):
    server.reply = lambda body: ["Once", 60.0]
    command = [
        *LITTLEGHOST,
        "chat",
        "--base-url",
        server.url,
        "--store",
        f"sqlite:///{tmp_path}/s.db",
        "--session",
        "s",
        "tell",
    ]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            wait_until(lambda: server.requests)
            time.sleep(0.5)
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=20)
        finally:
            child.kill()
    assert (child.returncode, out) == (130, "Once\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("presses", [3, 4])
def test_presses_where_a_wake_up_would_be_lost_end_a_chat(
    server: Server, environment: dict[str, str], tmp_path: Path, presses: int
):
    server.reply = lambda body: ["Once", 60.0]
    sent, store = ",".join([str(int(signal.SIGINT))] * presses), f"sqlite:///{tmp_path}/s.db"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            AT_THE_WORST,
            sent,
            "CtrlC",  # within the turn, and not before
            "chat",
            "--base-url",
            server.url,
            "--store",
            store,
            "tell",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env=environment,
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_tools_are_shown_as_they_run(server: Server, screen: Any, tmp_path: Path):
    (tmp_path / "note.txt").write_text("x")

    def reply(body: dict[str, Any]) -> list[Any]:
        if body["messages"][-1]["role"] == "user":
            return ["I look. ", ("read_file", {"path": "note.txt"}), ("read_file", {"path": "../other"})]
        return ["Seen."]

    server.reply = reply
    chat = screen("chat", "--base-url", server.url, "--workspace", str(tmp_path), "--sandbox", "host")
    chat.expect("HostSandbox isolates nothing", "> ")
    chat.write("look\n")
    chat.expect("I look.", '… read_file(path="note.txt")', "Seen.", "> ")
    assert "✓ read_file 0." in chat.text
    assert "✗ read_file" in chat.text
    assert "'..' is not allowed" in chat.text


def test_a_broken_stream_is_called_void_and_tried_again(server: Server, screen: Any):
    attempts = []

    def reply(body: dict[str, Any]) -> list[Any]:
        attempts.append(1)
        return ["half an ans", None] if len(attempts) == 1 else ["a whole answer"]

    server.reply = reply
    chat = screen("chat", "--base-url", server.url)
    chat.expect("> ")
    chat.write("hi\n")
    chat.expect("half an ans", "is void, trying again in", "a whole answer", "> ")
    chat.write("/history\n")
    text = chat.expect("> ")
    assert "assistant: a whole answer" in text
    assert "assistant: half" not in text


def test_what_a_model_writes_cannot_command_the_terminal(server: Server, screen: Any):
    server.reply = lambda body: ["a\x1b]0;title\x07b\u202ec\x9b31m"]
    chat = screen("chat", "--base-url", server.url)
    chat.expect("> ")
    chat.write("hi\n")
    chat.expect("a␛]0;title␇b\ufffdc\ufffd31m", "> ")
    assert "\x1b]" not in chat.raw


def test_resuming_shows_the_last_messages_and_how_many_came_before(
    server: Server, littleghost: Run, screen: Any
):
    littleghost(
        "chat",
        "--base-url",
        server.url,
        "--session",
        "s",
        given="".join(f"message {number}\n" for number in range(8)),
    )
    chat = screen("chat", "--base-url", server.url, "--session", "s")
    text = chat.expect("… 6 earlier messages", "user: message 3", "assistant: You said: message 7", "> ")
    assert "message 2" not in text
    chat.write("/history all\n")
    chat.expect("user: message 0", "message 7", "> ")
    chat.write("/session\n")
    chat.expect("session  s, 16 messages", "-m littleghost.cli chat --session s", "> ")
    chat.write("/nonsense\n")
    chat.expect("There is no command /nonsense", "> ")
    chat.write("/new\n")
    chat.expect("Session 20", "> ")
    chat.write("/history\n")
    chat.expect("Nothing has been said yet", "> ")


async def interrupted_session(path: Path) -> None:
    async with SQLiteStore(path) as store:
        call = ToolUse(id="c1", name="charge", input={"order": 17})
        await Session(id="s", store=store).append([Message.user("pay"), Message.assistant(["I pay.", call])])


async def test_an_interrupted_session_is_settled_with_a_word(server: Server, screen: Any, tmp_path: Path):
    await interrupted_session(tmp_path / "s.db")
    chat = screen("chat", "--base-url", server.url, "--store", f"sqlite:///{tmp_path}/s.db", "--session", "s")
    chat.expect("I pay.", "interrupted while it waited for: charge", "✗ charge", "You said: ", "> ")
    messages = await stored(tmp_path / "s.db", "s")
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]


async def test_an_interrupted_session_is_settled_in_a_pipe_too(
    server: Server, littleghost: Run, tmp_path: Path
):
    await interrupted_session(tmp_path / "s.db")
    done = littleghost(
        "chat", "--base-url", server.url, "--store", f"sqlite:///{tmp_path}/s.db", "--session", "s", "hi"
    )
    assert (done.returncode, done.stdout) == (0, "You said: hi\n")
    assert "interrupted while it waited for: charge" in done.stderr
    assert not transcript.unsettled(await stored(tmp_path / "s.db", "s"))
    assert len(await stored(tmp_path / "s.db", "s")) == 5


# With a model that runs on this machine


def test_a_small_model_is_called_small_and_answers(gguf: Path, littleghost: Run, screen: Any):
    done = littleghost("chat", "--model", f"local:{gguf}", "--session", "s", given="Say hello.\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 3
    assert re.search(r"SmolLM2-135M\S*\.gguf: \d+ MB, run on this machine by llama\.cpp", done.stderr)
    assert "tiny" in done.stderr
    chat = screen("chat", "--model", f"local:{gguf}", "--session", "s")
    chat.expect("user: Say hello.", "assistant: ", "> ")
    chat.write("Tell me a very long story about a ghost.\n")
    chat.expect("about a ghost.\n")
    asked = len(chat.text)
    wait_until(lambda: chat.read(0.1) and len(chat.text) > asked)  # the first word
    chat.ctrl_c()
    chat.expect("stopped; what was written is kept", "> ")
    chat.write("\x04")
    assert chat.end() == 0
