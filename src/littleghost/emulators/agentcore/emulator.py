"""The emulator as it is used: made, asked, looked into, and closed."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from littleghost.emulators.agentcore.core import Core
from littleghost.emulators.agentcore.faults import Fault
from littleghost.emulators.agentcore.idempotency import MODES, SCOPES, Ledger, Rules
from littleghost.emulators.agentcore.model import service_model
from littleghost.emulators.agentcore.operations import Behaviour, Operations
from littleghost.emulators.agentcore.quotas import QUOTAS, Quotas
from littleghost.emulators.agentcore.recording import Call
from littleghost.emulators.agentcore.saving import FileClaim, plant, read, restore, snapshot, write
from littleghost.emulators.agentcore.server import Server, loopback
from littleghost.emulators.agentcore.storage import DEFAULT_MEMORY, DEFAULT_RETENTION, Storage
from littleghost.emulators.agentcore.transport import CALLER, connect, in_process
from littleghost.errors import ConfigurationError

__all__ = ["AgentCoreEmulator"]

logger = logging.getLogger(__name__)

SAVE_EVERY = 1.0


class AgentCoreEmulator:
    """Amazon Bedrock AgentCore Memory on this machine, as far as its events go.

    It is made by the constructor, usable at once, and ended by `close` or the end of a ``with`` block. It answers any number of threads,
    and over HTTP any number of processes. Signatures are not checked; the access key id in them tells callers apart.

    What the documentation leaves open can be had in each way that it may turn out to be. The defaults are what was observed of the service,
    else what its documentation says.

    Args:
        memories: Memory ids and how many days (3 to 3650) each keeps an event, or ids alone, for 90 days; `DEFAULT_MEMORY` by default.
            Those of a ``file`` are there as well; what is said here about one of them counts for the events to come.
        auto_create: Whether any other well-formed memory id stands for a memory, too.
        pagination: ``"scan"``: a page of ListEvents looks at ``maxResults`` events and returns those that match, which can be none, with a
            token. ``"match"``: it returns ``maxResults`` that match.
        idempotency: What a CreateEvent with the ``clientToken`` of an earlier one does. ``"honoured"``: it writes nothing, for ever, also
            where the event is deleted or expired by now. ``"expiring"``: the same for ``token_lifetime`` seconds. ``"per_caller"``: the
            same among requests signed with one access key id. ``"ignored"``: tokens do nothing.
        token_lifetime: Seconds of the clock from the first request on, with ``"expiring"``.
        token_scope: Where a token is one and the same: in a ``"memory"``, of an ``"actor"`` in it, or in a ``"session"`` of that.
        replay: What such a request is answered with: ``"first"``, the answer to the first one, or ``"echo"``, its own content under the
            event id of the first.
        mismatch: What becomes of one that differs from the first: ``"ignore"`` answers it all the same, ``"refuse"`` with a
            ``ValidationException`` (``IdempotentParameterMismatchException``, or ``EventInOtherSession``).
        lag: Seconds of the clock until ListEvents without a filter sees a new event.
        filtered_lag: The same for ListEvents with a ``filter``.
        get_lag: The same for GetEvent.
        ties: How events of one millisecond are ordered: ``"stable"``, by id, or ``"permuted"``, differently in each list, but not between
            the pages of one.
        order: Whether ListEvents begins with the ``"newest"`` or the ``"oldest"`` event.
        quotas: Whether requests are limited to the rates that AWS documents; or rates of your own by the names in
            ``littleghost.emulators.agentcore.quotas.QUOTAS``.
        text_limit: Whether the 100,000 of a text are ``"characters"`` or UTF-8 ``"bytes"``.
        event_limit: Bytes of an event.
        event_size: What they are counted of: the request ``"body"``, in which botocore escapes all that is not ASCII, or the
            ``"payload"`` as JSON in UTF-8.
        clock: Seconds since the epoch. `advance` adds to it.
        seed: What event ids, mixed ties and faults with a probability are drawn from.
        record: Whether calls are kept in `calls`.
        on_call: Called with each `Call` once it is answered, before the answer is sent, by the thread that serves it.
        file: A file that is read where it exists, written within a second of each change, and at the end. It is replaced whole.
        host: A loopback address.
        port: Where to listen; 0 for a port that is free.

    Raises:
        ConfigurationError: An argument is not one of these.
        DependencyError: botocore is not installed, or too old.
    """

    def __init__(
        self,
        memories: Mapping[str, float] | Sequence[str] | None = None,
        *,
        auto_create: bool = False,
        pagination: Literal["scan", "match"] = "scan",
        idempotency: Literal["honoured", "expiring", "per_caller", "ignored"] = "honoured",
        token_lifetime: float | None = None,
        token_scope: Literal["memory", "actor", "session"] = "session",  # noqa: S107
        replay: Literal["first", "echo"] = "first",
        mismatch: Literal["ignore", "refuse"] = "ignore",
        lag: float = 0.0,
        filtered_lag: float = 0.0,
        get_lag: float = 0.0,
        ties: Literal["stable", "permuted"] = "stable",
        order: Literal["newest", "oldest"] = "newest",
        quotas: bool | Mapping[str, float] = False,
        text_limit: Literal["characters", "bytes"] = "characters",
        event_limit: int = 10 * 1024 * 1024,
        event_size: Literal["body", "payload"] = "body",
        clock: Callable[[], float] = time.time,
        seed: int | str = 0,
        record: bool = True,
        on_call: Callable[[Call], None] | None = None,
        file: str | os.PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        _one_of("pagination", pagination, "scan", "match")
        _one_of("idempotency", idempotency, *MODES)
        _one_of("token_scope", token_scope, *SCOPES)
        _one_of("replay", replay, "first", "echo")
        _one_of("mismatch", mismatch, "ignore", "refuse")
        _one_of("ties", ties, "stable", "permuted")
        _one_of("order", order, "newest", "oldest")
        _one_of("text_limit", text_limit, "characters", "bytes")
        _one_of("event_size", event_size, "body", "payload")
        for name, value in (("lag", lag), ("filtered_lag", filtered_lag), ("get_lag", get_lag)):
            if not 0 <= value < float("inf"):
                raise ConfigurationError(f"{name}: {value!r} must be a number of seconds")
        if (token_lifetime is not None) != (idempotency == "expiring"):
            raise ConfigurationError(
                'token_lifetime: it goes with idempotency="expiring", and only with that'
            )
        if token_lifetime is not None and not token_lifetime > 0:
            raise ConfigurationError(
                f"token_lifetime: {token_lifetime!r} must be a number of seconds above 0"
            )
        loopback(host)
        model = service_model(text_in_bytes=text_limit == "bytes")
        self._clock = clock
        self._ahead = 0.0
        rules = Rules(
            mode=idempotency,
            lifetime=token_lifetime,
            scope=token_scope,
            refuse_mismatch=mismatch == "refuse",
        )
        behaviour = Behaviour(
            scan=pagination == "scan",
            oldest_first=order == "oldest",
            permuted=ties == "permuted",
            lag=lag,
            filtered_lag=filtered_lag,
            get_lag=get_lag,
            echo=replay == "echo",
            event_limit=event_limit,
            whole_body=event_size == "body",
        )
        # Faults draw from a source of their own, so that a rule more changes no event id.
        self._storage = Storage(auto_create=auto_create, random=random.Random(f"{seed} ids"))  # noqa: S311
        self._ledger = Ledger(rules)
        operations = Operations(self._storage, self._ledger, behaviour, random.Random(f"{seed} lists"))  # noqa: S311
        rates = QUOTAS if quotas is True else quotas or None
        self._core = Core(
            model=model,
            operations=operations,
            quotas=None if rates is None else Quotas(rates),
            clock=self.clock,
            random=random.Random(f"{seed} faults"),  # noqa: S311
            record=record,
            on_call=on_call,
        )
        asked = _memories(memories)
        for id, _ in asked:
            model.check_memory(id)
        self._host, self._port = host, port
        self._server: Server | None = None
        self._clients: list[Any] = []
        self._closed = False
        self._saved = 0
        self._file = None if file is None else Path(file)
        self._saver: threading.Thread | None = None
        self._ending = threading.Event()
        self._claim = None if self._file is None else FileClaim(self._file)
        if self._file is not None and self._file.exists():
            try:
                self.load(self._file)
            except BaseException:
                self._release()
                raise
            self._saved = operations.changes
        for id, retention in asked:
            self._storage.register(id, retention)
        if memories is None and DEFAULT_MEMORY not in self._storage.memories:
            self._storage.register(DEFAULT_MEMORY, DEFAULT_RETENTION)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Listen, where a port was asked for, and begin to save, where there is a file. A ``with`` block does it.

        Raises:
            ConfigurationError: The port is taken, or the emulator is closed.
        """
        if self._port:
            self._listen()
        if self._file is not None and self._saver is None:
            self._saver = threading.Thread(
                target=self._keep_saving, name="AgentCore emulator file", daemon=True
            )
            self._saver.start()

    def close(self) -> None:
        """Write the file, where there is one, and close every connection and client. What was recorded can still be read.

        Raises:
            ConfigurationError: The file cannot be written.
        """
        if self._closed:
            return
        self._closed = True
        for client in self._clients:
            client.close()
        if self._server is not None:
            self._server.close()
        self._ending.set()
        if self._saver is not None:
            self._saver.join()
        try:
            if self._file is not None:
                self._save_changes(self._file)
        finally:
            self._release()

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()

    @property
    def endpoint_url(self) -> str:
        """Where the emulator is reached over HTTP. It begins to listen when this is first asked for, or `start` is called.

        Raises:
            ConfigurationError: The port is taken, or the emulator is closed.
        """
        return self._listen().url

    def client(
        self, *, transport: Literal["http", "memory"] = "http", caller: str = CALLER, **options: Any
    ) -> Any:
        """Return a boto3 client of the emulator, which is closed together with it.

        Args:
            transport: ``"memory"`` is several times faster and uses no socket; connections that a fault breaks are raised as botocore
                would raise them, without waiting.
            caller: The access key id it signs with.
            **options: For ``boto3.session.Session.client``, such as ``config`` or ``region_name``.

        Raises:
            ConfigurationError: There is no such transport, or the emulator is closed.
            DependencyError: boto3 is not installed.
        """
        _one_of("transport", transport, "http", "memory")
        if self._closed:
            raise ConfigurationError("the emulator is closed; make another one")
        url = self.endpoint_url if transport == "http" else "http://127.0.0.1"
        client = connect(url, caller, options)
        if transport == "memory":
            in_process(client, self._core.answer)
        self._clients.append(client)
        return client

    @property
    def memories(self) -> dict[str, float]:
        """The memories there are, and how many days each keeps an event."""
        with self._core.lock:
            return {memory.id: memory.retention for memory in self._storage.memories.values()}

    @property
    def calls(self) -> list[Call]:
        """The calls since the beginning or `reset_calls`, in the order in which they were answered."""
        with self._core.lock:
            return list(self._core.calls)

    def reset_calls(self) -> None:
        """Forget the calls that were recorded."""
        with self._core.lock:
            self._core.calls.clear()

    def fault(self, rule: Fault | str) -> None:
        """Put a rule in force, as a `Fault` or as text such as ``CreateEvent:throttle:nth=3``. A call is befallen by one fault at most.

        Raises:
            ConfigurationError: The text is no rule.
        """
        parsed = Fault.parse(rule) if isinstance(rule, str) else rule
        with self._core.lock:
            self._core.faults.add(parsed)

    def clear_faults(self) -> None:
        """Put all rules out of force."""
        with self._core.lock:
            self._core.faults.clear()

    def clock(self) -> float:
        """Return the emulator's time, in seconds since the epoch."""
        return self._clock() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let time go on, all at once: events expire and become visible, quotas fill up."""
        with self._core.lock:
            self._ahead += seconds

    def events(
        self, memory: str | None = None, actor: str | None = None, session: str | None = None
    ) -> list[dict[str, Any]]:
        """Return what is stored, whether lists see it yet or not: each session's events oldest first, as ListEvents has them."""
        with self._core.lock:
            found = [
                event
                for event in self._storage.events(self.clock())
                if memory in {None, event.memory}
                and actor in {None, event.actor}
                and session in {None, event.session}
            ]
        return [event.decoded() for event in found]

    def put(self, *events: Mapping[str, Any]) -> None:
        """Plant events as they are, valid or not: no check, no lag. One with an id that is there replaces it; unknown memories are made.

        Args:
            *events: As ListEvents has them: ``memoryId``, ``actorId``, ``sessionId``, ``eventId``, and the rest as it may be.
                ``eventTimestamp`` may be a ``datetime``, as boto3 has it, or anything that is JSON.

        Raises:
            ConfigurationError: One of these four is missing, or the event is no JSON.
        """
        with self._core.lock:
            for event in events:
                plant(dict(event), self._storage, self.clock(), "put")
                self._core.operations.changes += 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all memories, events and tokens to a file, which is replaced whole.

        Raises:
            ConfigurationError: It cannot be written.
        """
        with self._core.lock:
            content = snapshot(self._storage, self._ledger, self.clock())
        write(Path(path), content)

    def load(self, path: str | os.PathLike[str], *, case: str | None = None) -> None:
        """Add what a file holds: one that `save` wrote, or any JSON that has events in a list or under ``events``, which are `put`.

        Args:
            path: The file.
            case: Of a file that has ``cases``, the ``name`` of the one whose events are meant.

        Raises:
            ConfigurationError: It cannot be read, or is no such file.
        """
        content = read(Path(path), case)
        with self._core.lock:
            restore(content, self._storage, self._ledger, self.clock(), str(path))
            self._core.operations.changes += 1

    def _listen(self) -> Server:
        with self._core.lock:
            if self._closed:
                raise ConfigurationError("the emulator is closed; make another one")
            if self._server is None:
                self._server = Server(self._host, self._port, self._core.answer)
                self._server.start()
            return self._server

    def _keep_saving(self) -> None:
        while not self._ending.wait(SAVE_EVERY):
            if self._file is not None:
                try:
                    self._save_changes(self._file)
                except ConfigurationError as error:
                    logger.warning("%s", error)  # `close` tries again, and raises

    def _save_changes(self, file: Path) -> None:
        changes = self._core.operations.changes
        if changes != self._saved or not file.exists():
            self.save(file)
            self._saved = changes


def _one_of(name: str, value: str, *allowed: str) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{name}: {value!r} is none of {', '.join(allowed)}")


def _memories(memories: Mapping[str, float] | Sequence[str] | None) -> list[tuple[str, float]]:
    if memories is None:
        return []
    if isinstance(memories, str):
        raise ConfigurationError(f"memories: write [{memories!r}] for one memory")
    if isinstance(memories, Mapping):
        return list(memories.items())
    return [(id, DEFAULT_RETENTION) for id in memories]
