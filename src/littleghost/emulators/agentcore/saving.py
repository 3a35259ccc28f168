"""The file that an emulator's contents are kept in, and files of events that were written by others.

A file of the emulator is a JSON object: ``format``, ``memories`` (id and ``retention`` in days), ``events`` (each as ListEvents returns it,
with ``eventTimestamp`` in seconds), ``times`` (for each event when it was written and when it expires), ``sessions`` and ``tokens``. Of any
other JSON object the ``events`` are read, or the list itself where the file is a list.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import sys
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from littleghost.emulators.agentcore.idempotency import Ledger, Remembered
from littleghost.emulators.agentcore.refusals import Refusal
from littleghost.emulators.agentcore.storage import DAY, DEFAULT_RETENTION, SessionLog, Storage
from littleghost.emulators.agentcore.stored import StoredEvent, encode
from littleghost.errors import ConfigurationError

__all__ = ["FileClaim", "Snapshot", "plant", "read", "restore", "snapshot", "write"]

FORMAT = "littleghost-agentcore-emulator-1"
GZIP = b"\x1f\x8b"
KEYS = ("memoryId", "actorId", "sessionId")

Snapshot = dict[str, Any]


class FileClaim:
    """The right to write a file, which one emulator has at a time; beside it lies an empty ``.lock`` as long as somebody has it.

    Args:
        path: The file.

    Raises:
        ConfigurationError: Another emulator, of this process or another one, has it; or there is no such folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._fd = -1
        if sys.platform == "win32":
            return
        import fcntl

        while True:
            try:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._fd)
                raise ConfigurationError(
                    f"another emulator has {path}; each needs a file of its own"
                ) from error
            if os.fstat(self._fd).st_nlink:
                return
            os.close(self._fd)  # whoever had it removed it just now

    def release(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


def snapshot(storage: Storage, ledger: Ledger, now: float) -> Snapshot:
    """Return all there is at ``now``. Its events are not decoded yet, so that this is quick."""
    events = list(storage.events(now))
    sessions = [
        {
            "memoryId": memory.id,
            "actorId": actor,
            "sessionId": session,
            "created": log.created,
            "emptied": log.emptied,
        }
        for memory in storage.memories.values()
        for actor, logs in memory.actors.items()
        for session, log in logs.items()
    ]
    return {
        "format": FORMAT,
        "memories": {memory.id: {"retention": memory.retention} for memory in storage.memories.values()},
        "events": events,
        "sessions": sessions,
        "tokens": ledger.entries(),
    }


def write(path: Path, content: Snapshot) -> None:
    """Write a snapshot to ``path``: whole, or not at all.

    Raises:
        ConfigurationError: It cannot be written.
    """
    real = Path(os.path.realpath(path))
    part = real.with_name(f".littleghost-{secrets.token_hex(8)}.part")
    try:
        try:
            # What was said is for the owner alone.
            descriptor = os.open(
                part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600
            )
            with os.fdopen(descriptor, "wb") as file:
                file.write(_encoded(content))
                file.flush()
                os.fsync(file.fileno())
            part.replace(real)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written ({error.strerror or error})") from error


def _encoded(content: Snapshot) -> bytes:
    """Return a snapshot as JSON, an event a line."""
    events: list[StoredEvent] = content["events"]
    tokens: list[Remembered] = content["tokens"]
    parts = {
        "format": encode(content["format"]),
        "memories": encode(content["memories"]),
        "events": _lines(event.wire() for event in events),
        "times": _lines(encode([event.written, event.expires]) for event in events),
        "sessions": _lines(encode(session) for session in content["sessions"]),
        "tokens": _lines(
            b'{"key":%s,"request":%s,"at":%s,"event":%s}'
            % (encode(entry.key), encode(entry.request), encode(entry.at), entry.event.wire())
            for entry in tokens
        ),
    }
    return b"{\n%s\n}\n" % b",\n".join(b'"%s":%s' % (name.encode(), raw) for name, raw in parts.items())


def _lines(items: Iterable[bytes]) -> bytes:
    return b"[\n%s\n]" % b",\n".join(items)


def read(path: Path, case: str | None) -> Any:
    """Return the JSON of a file, which may be packed with gzip, or that of one of its ``cases``.

    Raises:
        ConfigurationError: There is no such file or case, or it is no JSON.
    """
    try:
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if raw.startswith(GZIP) else raw)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path} is no JSON: {error}") from error
    if case is None:
        return content
    cases: Any = cast("dict[str, Any]", content).get("cases") if isinstance(content, dict) else None
    found: list[Any] = [one for one in cases or () if one.get("name") == case]
    if not found:
        raise ConfigurationError(f"case: {path} has no case named {case!r}")
    return found[0]


def restore(content: Any, storage: Storage, ledger: Ledger, now: float, where: str) -> None:
    """Add what a file holds.

    Raises:
        ConfigurationError: It is not a file with events.
    """
    events = cast("dict[str, Any]", content).get("events") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise ConfigurationError(f"{where} has no list of events")
    saved: dict[str, Any] = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    if saved.get("format", FORMAT) != FORMAT:
        raise ConfigurationError(f"{where} is of another format, {saved['format']!r}; this one is {FORMAT}")
    if "format" not in saved:
        for event in cast("list[Any]", events):
            plant(event, storage, now, where)
        return
    try:
        for id, memory in saved["memories"].items():
            storage.register(id, memory["retention"])
        for entry in saved["sessions"]:
            log = SessionLog(entry["created"], emptied=entry["emptied"])
            sessions = storage.memories[entry["memoryId"]].actors.setdefault(entry["actorId"], {})
            sessions.setdefault(entry["sessionId"], log)
        for event, (written, expires) in zip(cast("list[Any]", events), saved["times"], strict=True):
            storage.add(StoredEvent.of(event, written=written, expires=expires), now)
        for entry in saved["tokens"]:
            event = StoredEvent.of(entry["event"], written=entry["at"], expires=entry["at"])
            key = tuple(entry["key"])
            ledger.restore(Remembered(key=key, request=entry["request"], event=event, at=entry["at"]))
    except (Refusal, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(f"{where} is damaged: {type(error).__name__}: {error}") from error


def plant(event: Any, storage: Storage, now: float, where: str) -> StoredEvent:
    """Add an event as it is, valid or not, and its memory if need be. It expires as if it was written now.

    Raises:
        ConfigurationError: It has no memory, actor, session or event id, or is no JSON.
    """
    content = dict(_keys(event, where))
    memory = storage.memories.get(content["memoryId"]) or storage.register(
        content["memoryId"], DEFAULT_RETENTION
    )
    stamp = event.get("eventTimestamp")
    if isinstance(stamp, datetime):  # as boto3 returns it
        event = {**event, "eventTimestamp": stamp.timestamp()}
    try:
        planted = StoredEvent.of(event, written=0.0, expires=now + memory.retention * DAY)
    except (Refusal, TypeError) as error:
        raise ConfigurationError(f"{where}: event {event['eventId']} is no JSON: {error}") from error
    storage.add(planted, now)
    return planted


def _keys(event: Any, where: str) -> Iterator[tuple[str, str]]:
    if not isinstance(event, dict):
        raise ConfigurationError(f"{where}: an event must be an object, not {type(event).__name__}")
    for name in (*KEYS, "eventId"):
        value = cast("dict[str, Any]", event).get(name)
        if not isinstance(value, str) or not value:
            raise ConfigurationError(f"{where}: {name} of an event must be a text, not {value!r}")
        yield name, value
