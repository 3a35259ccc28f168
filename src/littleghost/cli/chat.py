"""``littleghost chat``: a conversation in a session that survives the program."""

from __future__ import annotations

import asyncio
import importlib
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from msgspec import Struct

from littleghost import (
    Agent,
    CancellationToken,
    ConfigurationError,
    Event,
    HostSandbox,
    LittleGhostError,
    LocalModel,
    MemoryStore,
    Message,
    Model,
    ReasoningDelta,
    Retrying,
    Run,
    RunCancelled,
    Runtime,
    Sandbox,
    SandboxTools,
    SessionStore,
    TextDelta,
    ToolEnded,
    ToolStarted,
    native_sandbox,
    sandbox_tools,
    transcript,
)
from littleghost.cli.choosing import choose_model, what_to_expect
from littleghost.cli.ctrl_c import CtrlC
from littleghost.cli.program import chat_command
from littleghost.cli.running import Stoppable, canceller
from littleghost.cli.stores import default_path, store_at
from littleghost.cli.terminal import (
    INTERRUPTED,
    Terminal,
    exit_status,
    one_line,
    printable,
    short_call,
    without_password,
)
from littleghost.cli.transcripts import lines_of

__all__ = ["ChatOptions", "chat"]

Answer = TypeVar("Answer")

SHOWN = 10
"""Messages of an earlier conversation that are shown when it is taken up again."""

HELP = """\
/history [N|all]   show the last messages of this session
/session           show where this conversation is kept and how to come back to it
/tools             show what the model may do
/resume            go on where the last turn stopped
/new               begin another session
/quit              leave (so does Ctrl-D)
Ctrl-C stops the answer and keeps what was written. A line that begins with a space is sent as it is."""


class ChatOptions(Struct, frozen=True, kw_only=True):
    """What the command line says about a chat."""

    message: str | None = None
    model: str | None = None
    base_url: str | None = None
    store: str | None = None
    session: str | None = None
    actor: str | None = None
    workspace: Path | None = None
    sandbox: Literal["native", "host", "none"] | None = None
    writable: bool = False
    instructions: str | None = None


def chat(options: ChatOptions, terminal: Terminal) -> int:
    """Chat until the user leaves or the input ends, and return the exit status.

    Raises:
        LittleGhostError: It could not begin.
    """
    instructions = _text_or_file(options.instructions)
    sandbox = _sandbox(options)
    model = choose_model(options.model, options.base_url)
    store = store_at(options.store)
    with Stoppable() as stoppable:
        owned = AsyncExitStack()
        owned.push_async_callback(store.aclose)
        owned.push_async_callback(model.aclose)
        try:
            stoppable.run(_open(terminal, owned, model, sandbox))
            tools = () if sandbox is None else (SandboxTools(),)
            agent = Agent(model, instructions=instructions, tools=tools, name="chat")
            runtime = Runtime(session_store=store, sandbox=sandbox)
            owned.push_async_callback(runtime.aclose)
            with CtrlC() as ctrl_c:
                return _Chat(options, terminal, ctrl_c, stoppable, runtime, agent, store, sandbox).run()
        finally:
            stoppable.run(owned.aclose())


def new_session_id() -> str:
    """Return an id that sorts by day and is short enough to type."""
    return f"{time.strftime('%Y-%m-%d')}-{secrets.token_hex(3)}"


def _text_or_file(given: str | None) -> str | None:
    if given is None or not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"the instructions in {given[1:]} cannot be read: {reason}") from error


def _sandbox(options: ChatOptions) -> Sandbox | None:
    kind = options.sandbox or ("none" if options.workspace is None else "native")
    if kind == "none":
        if options.writable:
            raise ConfigurationError("--writable needs a sandbox, in a folder: --workspace DIR")
        return None
    if options.workspace is None:
        raise ConfigurationError(f"--sandbox {kind} needs the folder the model may use: --workspace DIR")
    if not options.workspace.is_dir():
        raise ConfigurationError(f"there is no folder {options.workspace}")
    if kind == "host":
        return HostSandbox(options.workspace, writable=options.writable)
    return native_sandbox(options.workspace, writable=options.writable)


async def _open(terminal: Terminal, owned: AsyncExitStack, model: Model, sandbox: Sandbox | None) -> None:
    """Start what takes its time or may be missing now, and not in the middle of a first answer."""
    if sandbox is not None:
        owned.push_async_callback(sandbox.close)
        await sandbox.open()
    expectation = what_to_expect(model)
    if expectation is not None:
        terminal.remark(expectation)
    if isinstance(model, LocalModel):
        await asyncio.to_thread(model.server.start)


class _Chat:
    """One conversation at a time."""

    def __init__(
        self,
        options: ChatOptions,
        terminal: Terminal,
        ctrl_c: CtrlC,
        stoppable: Stoppable,
        runtime: Runtime,
        agent: Agent,
        store: SessionStore,
        sandbox: Sandbox | None,
    ) -> None:
        self.options = options
        self.terminal = terminal
        self.ctrl_c = ctrl_c
        self.stoppable = stoppable
        self.runtime = runtime
        self.agent = agent
        self.store = store
        self.sandbox = sandbox
        self.session_id = options.session or new_session_id()
        self.said = False
        self._fresh_line = True
        self._began: dict[str, float] = {}

    # The conversation

    def run(self) -> int:
        """Talk, and return the exit status."""
        self._introduce()
        status = self._take_up() if self.options.session is not None else 0
        if status:
            return status
        if self.options.message is not None:
            message = (
                self.ctrl_c.read(sys.stdin.read) if self.options.message == "-" else self.options.message
            )
            return self._say(message.strip("\n"))
        if self.terminal.interactive:
            for line in self._prompted():
                if line.startswith("/"):
                    if self._command(line):
                        break
                else:
                    self._say(line)
            if self.said and not self._in_memory:
                self.terminal.remark(f"To go on: {self._how_to_come_back()}")
            return 0
        while line := self.ctrl_c.read(sys.stdin.readline):
            if line.strip() and (status := self._say(line.rstrip("\n"))):
                return status
        return 0

    def _prompted(self) -> Iterator[str]:
        """Yield what the user writes, until Ctrl-D, or Ctrl-C twice."""
        readline = _readline()
        leaving = False
        while True:
            try:
                line = self.ctrl_c.read(lambda: input("> "))
            except EOFError:
                self.terminal.out.print()
                return
            except KeyboardInterrupt:
                self.terminal.out.print()
                if readline is not None and readline.get_line_buffer():
                    leaving = False  # it was for the line, which is gone now
                    continue
                if leaving:
                    return
                leaving = True
                self.terminal.remark("Ctrl-C again, or Ctrl-D, leaves.")
                continue
            leaving = False
            if line.strip():
                yield line

    def _say(self, message: str | None) -> int:
        """Let the model answer, and return the exit status that it would mean.

        Args:
            message: What the user says; ``None`` to go on where a turn stopped.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed more than twice.
        """
        token = CancellationToken()
        presses = 0

        def stop(cancel: Callable[[], None]) -> None:
            nonlocal presses
            presses += 1
            if presses <= 2:
                # A signal comes at any moment, while a lock is held as well, and does not wake the loop by itself.
                self.stoppable.loop.call_soon_threadsafe(token.cancel, "Ctrl-C")
            else:  # what was committed is safe, and the rest is settled when the session is taken up again
                cancel()

        try:
            run = self._await(self._turn(message, token), stop)
        except RunCancelled:
            self._line("stopped; nothing was stored", "dim")
            return INTERRUPTED
        except LittleGhostError as error:
            self._end_line()
            self.terminal.complain(error)
            return exit_status(error)
        self.said = True
        return self._conclude(run)

    async def _turn(self, message: str | None, token: CancellationToken) -> Run:
        async with self.runtime.stream(
            self.agent,
            message,
            session_id=self.session_id,
            actor_id=self.options.actor,
            busy="raise",
            cancellation=token,
        ) as events:
            async for event in events:
                if self.terminal.interactive:
                    self._show(event)
        return events.run

    def _conclude(self, run: Run) -> int:
        self._end_line()
        if not self.terminal.interactive and run.text:
            # Whole and exact: in a pipe nothing can be taken back when an attempt fails.
            sys.stdout.write(run.text + "\n")
            sys.stdout.flush()
        if run.outcome == "completed":
            return 0
        if run.outcome == "cancelled":
            answered = bool(run.messages) and run.messages[-1].role != "user"
            kept = "what was written is kept" if answered else "there was no answer yet, your message is kept"
            self._line(f"stopped; {kept}", "dim")
            return INTERRUPTED
        error = run.error or LittleGhostError(f"the run ended early: {run.outcome}")
        self.terminal.complain(error)
        return exit_status(error)

    # What is shown

    def _show(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._stream(event.text, "")
            case ReasoningDelta():
                self._stream(event.text, "dim")
            case Retrying():
                self._line(
                    f"  {one_line(event.error)}; what stands above is void, trying again in {event.delay:.1f} s",
                    "yellow",
                )
            case ToolStarted():
                self._began[event.call.id] = event.at
                self._line(f"  … {short_call(event.call.name, event.call.input)}", "cyan")
            case ToolEnded():
                began = self._began.pop(event.call.id, None)
                took = "" if began is None else f" {event.at - began:.1f} s"
                if event.result.status == "error":
                    self._line(f"  ✗ {event.call.name}{took}: {one_line(event.result.text)}", "red")
                else:
                    self._line(f"  ✓ {event.call.name}{took}", "cyan")
            case _:
                pass

    def _stream(self, text: str, style: str) -> None:
        if text:
            self.terminal.out.out(printable(text), style=style or None, end="", highlight=False)
            self.terminal.out.file.flush()
            self._fresh_line = text.endswith("\n")

    def _line(self, text: str, style: str) -> None:
        self._end_line()
        self.terminal.aside.print(text, style=style)

    def _end_line(self) -> None:
        if not self._fresh_line:
            self.terminal.out.print()
            self._fresh_line = True

    # Around it

    @property
    def _in_memory(self) -> bool:
        return isinstance(self.store, MemoryStore)

    def _introduce(self) -> None:
        where = self.options.store or str(default_path())
        kept = "only as long as this program runs" if self._in_memory else f"in {without_password(where)}"
        self.terminal.remark(
            f"Talking to {self.agent.model.name if isinstance(self.agent.model, Model) else self.agent.model}. "
            f"Session {self.session_id}, kept {kept}."
        )
        if isinstance(self.sandbox, HostSandbox):
            self.terminal.aside.print(
                "HostSandbox isolates nothing: the programs that the model starts run with all of your rights.",
                style="bold red",
            )
        if self.terminal.interactive and self.options.message is None:
            self.terminal.remark("Ctrl-C stops an answer, Ctrl-D leaves, /help says more.")

    def _take_up(self) -> int:
        """Show what there was, and go on where a killed run left calls open; return the exit status of that."""
        messages = self._await(self._history())
        if self.terminal.interactive:
            self._show_history(messages, SHOWN)
        open_calls = transcript.unsettled(messages)
        if open_calls:
            names = ", ".join(one_line(call.name, 40) for call in open_calls)
            self.terminal.remark(
                f"The last turn was interrupted while it waited for: {names}. What can be known is settled now."
            )
            return 0 if self.options.message or not self.terminal.interactive else self._resume()
        if messages and self.terminal.interactive and transcript.waits_for_model(messages):
            self.terminal.remark("The last message has no whole answer; /resume asks for one.")
        return 0

    def _resume(self) -> int:
        self._say(None)
        return 0

    async def _history(self) -> list[Message]:
        return list(await self.runtime.session(self.session_id, actor_id=self.options.actor).history())

    def _await(
        self, work: Coroutine[Any, Any, Answer], pressed: Callable[[Callable[[], None]], None] | None = None
    ) -> Answer:
        """Return what comes of ``work``, which Ctrl-C cancels.

        Args:
            work: What to do.
            pressed: What to do at Ctrl-C instead; it is given what cancels.

        Raises:
            KeyboardInterrupt: It was cancelled.
        """
        task = self.stoppable.loop.create_task(work)
        cancel = canceller(task)
        try:
            with self.ctrl_c.calls(cancel if pressed is None else partial(pressed, cancel)):
                return self.stoppable.run(_end_of(task))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    def _show_history(self, messages: list[Message], last: int | None) -> None:
        shown = messages if last is None else messages[-last:]
        if len(shown) < len(messages):
            self.terminal.remark(f"… {len(messages) - len(shown)} earlier messages (/history all shows them)")
        for line in lines_of(shown):
            if self.ctrl_c.pressed():
                self._line("stopped", "dim")
                return
            self.terminal.out.print(line.text, style=line.style or None)

    def _how_to_come_back(self) -> str:
        words = ["--session", self.session_id]
        for name in ("model", "base_url", "actor", "store", "workspace", "sandbox"):
            value = getattr(self.options, name)
            if value is not None:
                words += [f"--{name.replace('_', '-')}", without_password(str(value))]
        if self.options.writable:
            words.append("--writable")
        return chat_command(words)

    # Commands

    def _command(self, line: str) -> bool:
        """Do what the user commands, and return whether that was to leave."""
        name, _, argument = line.strip().partition(" ")
        try:
            match name:
                case "/quit" | "/exit":
                    return True
                case "/help":
                    self.terminal.out.print(HELP)
                case "/history":
                    self._history_command(argument.strip())
                case "/session":
                    self._session_command()
                case "/tools":
                    self._tools_command()
                case "/resume":
                    self._say(None)
                case "/new":
                    self.session_id = new_session_id()
                    self.terminal.remark(f"Session {self.session_id}.")
                case _:
                    self.terminal.err.print(
                        f"There is no command {one_line(name, 40)}; /help lists them.", style="red"
                    )
        except LittleGhostError as error:
            self.terminal.complain(error)
        except KeyboardInterrupt:
            self._line("stopped", "dim")
        return False

    def _history_command(self, argument: str) -> None:
        if argument not in ("", "all") and not argument.isdecimal():
            self.terminal.err.print("Write /history, /history 20 or /history all.", style="red")
            return
        messages = self._await(self._history())
        if not messages:
            self.terminal.remark("Nothing has been said yet.")
        last = None if argument == "all" else int(argument or SHOWN)
        self._show_history(messages, last)

    def _session_command(self) -> None:
        session = self.runtime.session(self.session_id, actor_id=self.options.actor)
        snapshot = self._await(session.load())
        count = 0 if snapshot is None else snapshot.count
        self.terminal.out.print(f"session  {self.session_id}, {count} messages")
        self.terminal.out.print(
            f"actor    {'none' if self.options.actor is None else printable(self.options.actor)}"
        )
        self.terminal.out.print(f"store    {without_password(self.options.store or str(default_path()))}")
        if self.sandbox is not None:
            access = "may be written" if self.sandbox.writable else "read-only"
            self.terminal.out.print(
                f"folder   {self.options.workspace}, {access}, {type(self.sandbox).__name__}"
            )
        self.terminal.out.print(f"back     {self._how_to_come_back()}")

    def _tools_command(self) -> None:
        if self.sandbox is None:
            self.terminal.out.print("none; --workspace DIR gives the model a folder")
            return
        for item in sandbox_tools(self.sandbox):
            self.terminal.out.print(f"{item.name:16} {one_line(item.description, 90)}")


async def _end_of(task: asyncio.Task[Answer]) -> Answer:
    return await task


def _readline() -> Any:
    """Return the module that gives ``input`` its editing and its history, where there is one."""
    try:
        return importlib.import_module("readline")
    except ImportError:
        return None
