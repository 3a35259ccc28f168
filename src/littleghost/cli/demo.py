"""``littleghost demo``: the library's promises, tried before your eyes. Each tick is a check that could have failed."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from littleghost import (
    BubblewrapSandbox,
    LittleGhostError,
    Message,
    Probe,
    SessionNotFoundError,
    Snapshot,
    ToolResult,
    sync,
)
from littleghost.cli.ctrl_c import signals_held
from littleghost.cli.demo_agent import Bank, agent
from littleghost.cli.program import this_program
from littleghost.cli.running import run
from littleghost.cli.terminal import Terminal, one_line
from littleghost.cli.transcripts import lines_of

__all__ = ["demo"]

PATIENCE = 60.0
"""Seconds after which a process of the demo counts as hung."""
TOOK_ORDER = "Take order 17: two of A7"


class Demo:
    """Plays the story in a folder.

    Args:
        terminal: Where it is told.
        folder: An empty folder of its own.
        probe: Whether programs can be isolated here.
    """

    def __init__(self, terminal: Terminal, folder: Path, probe: Probe) -> None:
        self._terminal = terminal
        self._folder = folder
        self._isolated = probe.available
        self._bank = Bank(folder)
        self._store = sync.SQLiteStore(folder / "sessions.db")
        self._children: list[subprocess.Popen[str]] = []
        self._secret = secrets.token_hex(16)
        self._told: dict[str, int] = {}
        self._before_death: Snapshot | None = None
        self.kept = 0
        self.broken: list[str] = []
        (folder / "workspace").mkdir()

    def play(self) -> None:
        """Play every step. One that breaks off counts as a broken promise, and the others are played all the same."""
        steps: list[tuple[str, Callable[[], None]]] = [
            ("An agent works in a folder, through a sandbox", self._works),
            ("Its process is killed in the middle of a tool", self._dies),
            ("Another process goes on", self._goes_on),
            ("Two processes ask in one session at the same time", self._meets),
            ("Two customers use the same session id", self._parts),
            ("The agent tries to get out of its folder", self._is_held),
        ]
        for number, (title, step) in enumerate(steps, 1):
            began = time.monotonic()
            self._print(f"\n{number}. {title}", "bold")
            try:
                step()
            except Exception as error:  # noqa: BLE001 (whatever it is, the promise was not kept, and the next is tried)
                self._check(
                    f"this step runs to its end ({type(error).__name__}: {one_line(str(error), 300)})", False
                )
            finally:
                self._kill_children()
            self._print(f"   {time.monotonic() - began:.1f} s", "dim")

    def close(self) -> None:
        """End every process, and close the store."""
        self._kill_children()
        self._store.close()

    # The story

    def _works(self) -> None:
        answer = self._ask(TOOK_ORDER)
        self._tell("shop")
        path = self._folder / "workspace" / "order-17.txt"
        self._check("the run completed", answer.get("outcome") == "completed", answer)
        self._check(
            "the file is in the folder, as the agent wrote it", _content(path) == TOOK_ORDER, _content(path)
        )
        self._check(
            "the agent read back what it had written", repr(TOOK_ORDER) in answer.get("text", ""), answer
        )
        self._check(
            "the conversation is in the store, whole",
            _roles(self._load("shop")) == "user assistant tool assistant tool assistant",
        )

    def _dies(self) -> None:
        child = self._start("Charge order 17")
        self._wait_for("the tool's effect", lambda: "charged 17" in self._bank.lines(), child)
        child.kill()
        child.wait(PATIENCE)
        self._before_death = self._load("shop")
        self._tell("shop")
        if sys.platform != "win32":
            self._check("the process died by SIGKILL", child.returncode == -signal.SIGKILL, child.returncode)
        self._check(
            "it died inside charge(): the bank has charged, and has not confirmed",
            self._bank.lines() == ["charged 17"],
        )
        self._check(
            "the question is in the store, once",
            _said(self._before_death) == [TOOK_ORDER, "Charge order 17"],
        )
        self._check(
            "the call of charge() was stored before it ran, and has no result",
            _open_calls(self._before_death) >= {"charge"},
        )

    def _goes_on(self) -> None:
        self._bank.open.touch()
        answer = self._finish(self._start(None, "--resume"))
        self._bank.open.unlink()
        self._tell("shop")
        before, now = self._before_death, self._load("shop")
        kept = before is not None and now is not None and now.messages[: before.count] == before.messages
        self._check("the run completed, in a new process", answer.get("outcome") == "completed", answer)
        self._check("no stored message was lost or changed", kept)
        self._check("no message was stored twice", _said(now) == [TOOK_ORDER, "Charge order 17"], _said(now))
        self._check(
            "the customer was charged once", self._bank.lines().count("charged 17") == 1, self._bank.lines()
        )
        self._check(
            "the model was told that the payment was interrupted",
            any("interrupted" in text for text in _errors(now)),
        )
        self._check("every call has exactly one result", _each_answered_once(now))
        self._check(
            "the conversation has the shape that every provider accepts", _canonical(self._history("shop"))
        )
        self._check(
            "the work was finished", _content(self._folder / "workspace" / "receipt-17.txt") == "paid"
        )

    def _meets(self) -> None:
        first = self._start("Charge order 18", session="till")
        self._wait_for("the first process", lambda: "charged 18" in self._bank.lines(), first)
        waiting = self._start("Charge order 19", session="till")
        asking = waiting.stdout.readline() if waiting.stdout else ""
        refused = self._start("Charge order 20", "--busy", "raise", session="till")
        self._wait_for(
            "an answer", lambda: refused.poll() is not None or "charged 20" in self._bank.lines(), refused
        )
        time.sleep(0.2)
        waited = "asking" in asking and waiting.poll() is None and "charged 19" not in self._bank.lines()
        self._bank.open.touch()
        answers = [self._finish(first), self._finish(waiting)]
        answer = self._finish(refused)
        self._bank.open.unlink()
        book = [line for line in self._bank.lines() if "17" not in line]
        self._check(
            "who would not wait got SessionBusyError", answer.get("raised") == "SessionBusyError", answer
        )
        self._check("who would wait, waited", waited)
        self._check(
            "both of the others completed",
            [answer.get("outcome") for answer in answers] == ["completed"] * 2,
            answers,
        )
        self._check(
            "one went after the other",
            book == ["charged 18", "confirmed 18", "charged 19", "confirmed 19"],
            book,
        )
        self._check(
            "the conversation is in order",
            _said(self._load("till")) == ["Charge order 18", "Charge order 19"],
        )
        self._check("and has the shape that every provider accepts", _canonical(self._history("till")))

    def _parts(self) -> None:
        self._ask("Take order 1: one of B2", "--actor", "alice", session="mine")
        alice = self._load("mine", "alice")
        self._check("alice has a session called mine", alice is not None and alice.count > 0)
        self._check("bob, who asks for mine, finds nothing", self._load("mine", "bob") is None)
        self._check(
            "nor does he find it in a list",
            [info.id for info in self._store.sessions(actor_id="bob").items] == [],
        )
        self._check("nor can he go on with it", self._not_found("bob"))
        self._ask("Take order 2: one of C3", "--actor", "bob", session="mine")
        self._check(
            "bob's own session called mine has his words alone",
            _said(self._load("mine", "bob")) == ["Take order 2: one of C3"],
        )
        self._check("and hers is what it was", self._load("mine", "alice") == alice)

    def _is_held(self) -> None:
        hidden = self._folder / "secret.txt"
        hidden.write_text(self._secret, "utf-8")
        links = sys.platform != "win32"
        if links:
            (self._folder / "workspace" / "link-to-secret").symlink_to(hidden)
        answer = self._ask(f"Break out: {hidden}", session="escape")
        self._tell("escape", skip=1)
        snapshot = self._load("escape")
        tried = _tried(snapshot)
        files = [result for name, result in tried if name in ("read_file", "write_file")]
        self._check(
            "the run completed, though nearly all it tried was refused",
            answer.get("outcome") == "completed",
            answer,
        )
        self._check(
            "no file outside was read: not by .., not by its path, not by a link",
            [r.status for r in files[:3]] == ["error"] * 3,
        )
        self._check(
            "no file outside was written",
            [r.status for r in files[3:]] == ["error"] and not (self._folder / "planted.txt").exists(),
        )
        if not self._isolated:
            self._print(
                "   ! not checked: what programs can reach. HostSandbox isolates nothing; see above.",
                "bold yellow",
            )
            return
        ran = [_object(result.text) for name, result in tried if name == "shell"]
        found = "" if snapshot is None else "\n".join(result.text for _, result in tried)
        self._check(
            "a program runs inside",
            bool(ran) and ran[0].get("exit_code") == 0 and "order-17.txt" in ran[0].get("stdout", ""),
            ran,
        )
        self._check(
            "a program cannot read the host's file", len(ran) == 3 and ran[1].get("exit_code", 0) != 0, ran
        )
        self._check("nor the environment of the process that started it", self._secret not in found)

    # Processes

    def _start(self, message: str | None, *options: str, session: str = "shop") -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-P",
            "-m",
            "littleghost.cli.demo_agent",
            str(self._folder),
            *([message] if message else []),
        ]
        command += ["--session", session, *options, *([] if self._isolated else ["--no-isolation"])]
        with signals_held(signal.SIGINT, signal.SIGTERM):  # or one could end us before we know whom to end
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={**os.environ, "DEMO_SECRET": self._secret},
                start_new_session=True,  # Ctrl-C comes to us, and we end them
            )
            self._children.append(child)
        return child

    def _ask(self, message: str, *options: str, session: str = "shop") -> dict[str, Any]:
        return self._finish(self._start(message, *options, session=session))

    def _finish(self, child: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = child.communicate(timeout=PATIENCE)
        lines = out.splitlines()
        if child.returncode or not lines:
            raise RuntimeError(f"the process ended with status {child.returncode}: {err.strip()[-500:]}")
        return json.loads(lines[-1])

    def _wait_for(self, what: str, there: Callable[[], bool], child: subprocess.Popen[str]) -> None:
        began = time.monotonic()
        while True:
            ended = child.poll() is not None  # looked at first, for the end may be what is waited for
            if there():
                return
            if ended:
                raise RuntimeError(f"the process ended before {what}: {self._finish(child)}")
            if time.monotonic() - began > PATIENCE:
                raise RuntimeError(f"{what} did not come within {PATIENCE:.0f} s")
            time.sleep(0.005)

    def _kill_children(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
            try:
                child.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:  # somebody else holds its pipe; it is dead all the same
                continue
        self._children.clear()

    # The store, seen from here

    def _load(self, session: str, actor: str | None = None) -> Snapshot | None:
        return self._store.load(session, actor_id=actor)

    def _history(self, session: str) -> Sequence[Message]:
        return sync.Session(id=session, store=self._store).history()

    def _not_found(self, actor: str) -> bool:
        with sync.Runtime(session_store=self._store) as runtime:
            try:
                runtime.resume(agent, session_id="mine", actor_id=actor)
            except LittleGhostError as error:
                return isinstance(error, SessionNotFoundError)
        return False

    # Telling

    def _tell(self, session: str, *, skip: int = 0) -> None:
        """Show what was stored since the last time, in the order it came."""
        messages = sync.Session(id=session, store=self._store).journal()
        for line in lines_of(messages[max(skip, self._told.get(session, 0)) :]):
            self._print(f"   │ {line.text}", line.style or "")
        self._told[session] = len(messages)

    def _check(self, promise: str, kept: object, seen: object = None) -> None:
        if kept:
            self.kept += 1
            self._print(f"   ✓ {promise}", "green")
            return
        self.broken.append(promise)
        self._print(
            f"   ✗ {promise}" + ("" if seen is None else f" — seen: {one_line(repr(seen), 300)}"), "bold red"
        )

    def _print(self, text: str, style: str = "") -> None:
        self._terminal.out.print(text, style=style or None)


def demo(terminal: Terminal, *, keep: bool = False) -> int:
    """Play the demo, and return the exit status: 0 where every promise was kept.

    Args:
        terminal: Where it is told.
        keep: Keep the folder.
    """
    began = time.monotonic()
    out = terminal.out
    out.print(
        "LittleGhost: agents whose conversations cannot be lost and whose tools cannot get out of bounds.",
        style="bold",
    )
    out.print(
        "The model in this demo is a script; it needs no key and no network. All else is real: processes, files, and SIGKILL."
    )
    probe = run(BubblewrapSandbox.probe())
    if probe.available:
        out.print(f"Programs of the agent are isolated, by {probe.version or 'bubblewrap'}.")
    else:
        out.print(
            "NOTHING IS ISOLATED HERE: programs of the agent run with all of your rights, in HostSandbox.",
            style="bold yellow",
        )
        out.print(f"Why: {one_line(probe.reason, 500)}", style="yellow")
    with _folder_for(keep=keep) as folder:
        played = Demo(terminal, folder, probe)
        with closing(played):
            played.play()
        if keep:
            out.print(
                f"\nKept in {folder}; look into it with: "
                + shlex.join(
                    [*this_program(), "sessions", "list", "--store", f"sqlite:///{folder}/sessions.db"]
                )
            )
    took = time.monotonic() - began
    total = played.kept + len(played.broken)
    if played.broken:
        out.print(f"\n{len(played.broken)} of {total} checks failed, in {took:.1f} s:", style="bold red")
        for promise in played.broken:
            out.print(f"  ✗ {promise}", style="red")
        return 1
    isolation = "" if probe.available else " Isolation was not among them, for this machine has none."
    out.print(f"\nAll {total} checks passed, in {took:.1f} s.{isolation}", style="bold green")
    return 0


@contextmanager
def _folder_for(*, keep: bool) -> Generator[Path]:
    """Give an empty folder, and remove it at the end, also when the program is told to end."""
    folder = Path(tempfile.mkdtemp(prefix="littleghost-demo-")).resolve()
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(128 + signal.SIGTERM))
    try:
        yield folder
    finally:
        signal.signal(signal.SIGTERM, before)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


# What is checked, on the stored messages alone and with nothing of the library's own rules


def _content(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def _messages(snapshot: Snapshot | None) -> Sequence[Message]:
    return () if snapshot is None else snapshot.messages


def _roles(snapshot: Snapshot | None) -> str:
    return " ".join(message.role for message in _messages(snapshot))


def _said(snapshot: Snapshot | None) -> list[str]:
    return [message.text for message in _messages(snapshot) if message.role == "user"]


def _errors(snapshot: Snapshot | None) -> list[str]:
    results = (result for message in _messages(snapshot) for result in message.tool_results)
    return [result.text for result in results if result.status == "error"]


def _turns(snapshot: Snapshot | None) -> list[tuple[list[str], list[str]]]:
    """Return the calls of each answer, as ids, and the results that follow it until the next."""
    turns: list[tuple[list[str], list[str]]] = []
    for message in _messages(snapshot):
        if message.role == "assistant":
            turns.append(([call.id for call in message.tool_uses], []))
        elif turns:
            turns[-1][1].extend(result.tool_use_id for result in message.tool_results)
    return turns


def _each_answered_once(snapshot: Snapshot | None) -> bool:
    turns = _turns(snapshot)
    return bool(turns) and all(sorted(calls) == sorted(results) for calls, results in turns)


def _open_calls(snapshot: Snapshot | None) -> set[str]:
    """Return the names of the last answer's calls that have no result."""
    answers = [message for message in _messages(snapshot) if message.role == "assistant"]
    turns = _turns(snapshot)
    return {call.name for call in answers[-1].tool_uses if call.id not in turns[-1][1]} if turns else set()


def _canonical(messages: Sequence[Message]) -> bool:
    """Whether each answer with calls is followed by one message with their results, in their order, and no result is elsewhere."""
    expected: list[str] = []
    for message in messages:
        if [result.tool_use_id for result in message.tool_results] != expected or (
            message.role == "tool"
        ) != bool(expected):
            return False
        expected = [call.id for call in message.tool_uses]
    return bool(messages) and not expected and messages[0].role == "user"


def _tried(snapshot: Snapshot | None) -> list[tuple[str, ToolResult]]:
    """Return the calls of a conversation with one turn of them, by name, in order, with their results."""
    results = {
        result.tool_use_id: result for message in _messages(snapshot) for result in message.tool_results
    }
    calls = [call for message in _messages(snapshot) for call in message.tool_uses]
    return [(call.name, results[call.id]) for call in calls if call.id in results]


def _object(text: str) -> dict[str, Any]:
    """Return the JSON object that a tool answered with."""
    try:
        return json.loads(text)
    except ValueError:
        return {}
