"""An emulator in the foreground: said where it is, kept until it is told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from littleghost import ConfigurationError
from littleghost.cli.terminal import Terminal, printable, write_json
from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator, Call, Fault

__all__ = ["serve_agentcore"]

LOOK = 0.5
"""Seconds after which a wait is begun anew: on Windows, Ctrl-C does not end one."""


def serve_agentcore(
    terminal: Terminal,
    *,
    memories: Sequence[str],
    faults: Sequence[str],
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run an emulator of AgentCore Memory until Ctrl-C or SIGTERM, and then let it save.

    Args:
        terminal: Where to say what is there.
        memories: Memory ids, each with ``=DAYS`` where it has a retention of its own.
        faults: The rules of `Fault.parse`.
        verbose: Whether to write a line for each call.
        as_json: Whether to write JSON.
        **options: Those of `AgentCoreEmulator`.

    Raises:
        ConfigurationError: An option is not what it must be.
    """
    rules = [Fault.parse(rule) for rule in faults]
    kept = dict(_memory(memory) for memory in memories) or None
    lock = threading.Lock()

    stopped = SimpleQueue[None]()

    def tell(call: Call) -> None:
        try:
            with lock:
                if as_json:
                    write_json(_told(call))
                else:
                    terminal.out.print(printable(_line(call), lines=False))
                terminal.out.file.flush()
        except OSError:
            stopped.put(None)  # nobody reads on

    emulator = AgentCoreEmulator(kept, record=False, on_call=tell if verbose else None, **options)
    for rule in rules:
        emulator.fault(rule)
    with stopping(stopped), emulator:
        _introduce(terminal, emulator, rules, options["file"], as_json=as_json)
        wait_for(stopped)
    if not as_json:
        saved = "" if options["file"] is None else f"; everything is in {options['file']}"
        terminal.out.print(printable(f"stopped{saved}", lines=False))


def wait_for(stopped: SimpleQueue[None]) -> None:
    """Return when something was put into ``stopped``."""
    while True:
        try:
            return stopped.get(timeout=LOOK)
        except Empty:
            continue


@contextmanager
def stopping(stopped: SimpleQueue[None]) -> Generator[None]:
    """Have Ctrl-C and SIGTERM put something into ``stopped``, and do nothing else, while the block lasts. For the main thread only.

    It is a queue, for of what threads wait for that alone may be used in a signal's handler: one that comes while the main thread holds
    the lock of a `threading.Event` would wait for itself.
    """

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopped.put(None)

    before = [(number, signal.signal(number, stop)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _memory(text: str) -> tuple[str, float]:
    id, equals, days = text.partition("=")
    try:
        return id, float(days) if equals else 90.0
    except ValueError:
        raise ConfigurationError(
            f"memory {text!r}: write ID or ID=DAYS, such as {DEFAULT_MEMORY}=30"
        ) from None


def _introduce(
    terminal: Terminal, emulator: AgentCoreEmulator, rules: Sequence[Fault], file: Any, *, as_json: bool
) -> None:
    url, events = emulator.endpoint_url, len(emulator.events())
    if as_json:
        write_json({"endpoint_url": url, "memories": emulator.memories, "events": events})
        terminal.out.file.flush()
        return
    lines = [f"AgentCore Memory, emulated at {url}"]
    lines += [f"  memory {id}, {days:g} days" for id, days in emulator.memories.items()]
    if file is not None:
        lines.append(
            f"  file   {file}, with {events} event{'s' * (events != 1)}; saved within a second of each change"
        )
    lines += [f"  fault  {rule}" for rule in rules]
    lines += [
        "",
        "For boto3 and the AWS CLI, in another terminal:",
        f"  export AWS_ENDPOINT_URL_BEDROCK_AGENTCORE={url}",
        "  export AWS_ACCESS_KEY_ID=emulator AWS_SECRET_ACCESS_KEY=emulator AWS_DEFAULT_REGION=us-east-1",
        "",
        "Ctrl-C stops it.",
    ]
    for line in lines:
        terminal.out.print(printable(line, lines=False))
    terminal.out.file.flush()


def _told(call: Call) -> dict[str, Any]:
    return {
        "operation": call.operation,
        "at": call.at,
        "status": call.status,
        "error": call.error,
        "message": call.message,
        "fault": call.fault,
        "event_id": call.event_id,
        **{name: call.params.get(name) for name in ("memoryId", "actorId", "sessionId")},
    }


def _line(call: Call) -> str:
    time = datetime.fromtimestamp(call.at, UTC).astimezone().strftime("%H:%M:%S")
    place = "/".join(str(call.params[name]) for name in ("actorId", "sessionId") if call.params.get(name))
    parts = [time, call.operation or "?", str(call.status or "-"), place, call.event_id or ""]
    if call.fault:
        parts.append(f"[{call.fault}]")
    if call.error:
        parts.append(f"{call.error}: {call.message}")
    return " ".join(part for part in parts if part)
