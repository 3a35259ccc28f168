"""Stores on the emulator of AgentCore Memory, for tests: in this process or in others, and clients that stop where it matters."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

from botocore.config import Config

from littleghost import AgentCoreMemoryStore, Commit, Message, SessionStore, Snapshot
from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator, Call
from littleghost.emulators.agentcore.transport import connect

__all__ = [
    "ACTOR",
    "DEFAULT_MEMORY",
    "ENDPOINT",
    "Dying",
    "Halting",
    "Wrapped",
    "append",
    "operations",
    "patient",
    "store",
    "store_at",
    "store_from_environment",
    "texts",
]

ACTOR = "ann"
ENDPOINT = "LITTLEGHOST_TEST_AGENTCORE"
"""The environment variable with the endpoint of the emulator that other processes use."""

# As the store's own client: it repeats nothing by itself. Connections of faults are closed at once, and never waited a minute for.
ONCE = Config(
    retries={"mode": "standard", "total_max_attempts": 1},
    connect_timeout=5,
    read_timeout=5,
    max_pool_connections=10,
)


def patient(emulator: AgentCoreEmulator, **options: Any) -> Any:
    """Return a client in this process that repeats nothing by itself, as the one that the store makes."""
    return emulator.client(transport="memory", config=ONCE, **options)


def store(emulator: AgentCoreEmulator, **options: Any) -> AgentCoreMemoryStore:
    """Return a store on the emulator in this process."""
    if not options.keys() & {"client", "client_factory"}:
        options["client"] = patient(emulator)
    return AgentCoreMemoryStore(DEFAULT_MEMORY, **options)


def client_at(url: str, caller: str = "emulator") -> Any:
    """Return a client of the emulator that listens at ``url``."""
    return connect(url, caller, {"config": ONCE})


def store_at(url: str) -> AgentCoreMemoryStore:
    """Return a store on the emulator that listens at ``url``."""
    return AgentCoreMemoryStore(DEFAULT_MEMORY, client=client_at(url))


def store_from_environment() -> AgentCoreMemoryStore:
    """Return a store on the emulator that `ENDPOINT` names."""
    return store_at(os.environ[ENDPOINT])


class Wrapped:
    """A client that does something before each call, and after it.

    Args:
        client: The client that does the work.
        before: Called with the method's name and its arguments.
        after: The same, once it has been answered, with an error too.
    """

    def __init__(
        self,
        client: Any,
        before: Callable[[str, dict[str, Any]], None] = lambda name, params: None,
        after: Callable[[str, dict[str, Any]], None] = lambda name, params: None,
    ) -> None:
        self._client, self._before, self._after = client, before, after

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(**params: Any) -> Any:
            self._before(name, params)
            try:
                return method(**params)
            finally:
                self._after(name, params)

        return call


class Halting:
    """Stops calls before they are sent, until told to go on.

    Args:
        client: The client.
        when: Which calls are stopped; once they go on, none any more.
        after: Whether they are stopped when they have been answered.
    """

    def __init__(
        self, client: Any, when: Callable[[str, dict[str, Any]], bool], *, after: bool = False
    ) -> None:
        self._when = when
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.client = Wrapped(client, **{"after" if after else "before": self._halt})

    def _halt(self, name: str, params: dict[str, Any]) -> None:
        if not self.go_on.is_set() and self._when(name, params):
            self.reached.set()
            assert self.go_on.wait(60), "nobody said to go on"


class Dying:
    """A client whose process is killed at its call with a number, counted from 1: before it is sent, or once it has been answered."""

    def __init__(self, client: Any, number: int, *, after: bool) -> None:
        self._left, self._guard = number, threading.Lock()
        self.client = Wrapped(client, **{"after" if after else "before": self._count})

    def _count(self, name: str, params: dict[str, Any]) -> None:
        with self._guard:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def is_checkpoint(params: dict[str, Any]) -> bool:
    """Tell whether a CreateEvent writes a checkpoint."""
    return any("blob" in item for item in params.get("payload", ()))


def operations(calls: Sequence[Call]) -> list[str]:
    """Return the operations of calls, in their order."""
    return [call.operation for call in calls]


async def append(
    store: SessionStore,
    id: str,
    *said: str,
    count: int,
    state: dict[str, Any] | None = None,
    **options: Any,
) -> Commit:
    """Append what a user said."""
    return await store.append(
        id,
        messages=[Message.user(text) for text in said],
        state=state or {},
        metadata={},
        expected_count=count,
        actor_id=ACTOR,
        **options,
    )


async def texts(store: SessionStore, id: str) -> list[str] | None:
    """Return what was said in a session, ``None`` where there is none."""
    snapshot = await store.load(id, actor_id=ACTOR)
    assert snapshot is None or isinstance(snapshot, Snapshot)
    return None if snapshot is None else [message.text for message in snapshot.messages]
