"""What is measured: a client of AgentCore Memory with one session, seen through the few things that every one can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from benchmarks.peers.subject import new_state, question_and_answer

from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

__all__ = ["ACTOR", "Subject", "new_state", "question_and_answer"]

ACTOR = "user-7"


class Subject(ABC):
    """One session of one client. What it holds in memory is what one process holds; `restart` drops it.

    Args:
        emulator: What stands for the service. boto3 of this process is pointed at it.
        session: The session's id.

    Attributes:
        holds: Whether a process holds anything of a session that makes a turn or a load cheaper.
        longest: From how many messages on it is not measured, and why.
    """

    holds: ClassVar[bool] = True
    longest: ClassVar[tuple[int, str] | None] = None
    memory_id = DEFAULT_MEMORY

    def __init__(self, emulator: AgentCoreEmulator, session: str) -> None:
        self.emulator, self.session = emulator, session

    @abstractmethod
    async def restart(self) -> None:
        """Forget everything, as a process does that ends."""

    @abstractmethod
    async def turn(self) -> None:
        """Do one turn as a user of the client would: two messages and a new state. Loads first where the process holds nothing."""

    async def fill(self, turns: int, after: Callable[[], None]) -> None:
        """Leave the session as ``turns`` turns would, through the client's own calls, and without a socket.

        Calls ``after`` after each turn, where it makes them one by one.
        """
        for _ in range(turns):
            await self.turn()
            after()

    @abstractmethod
    async def load(self) -> int:
        """Have the client read the session from the service, and return how many messages it has."""

    def quick_client(self) -> Any:
        """Return a boto3 client that reaches the emulator without a socket, to fill a session with."""
        return self.emulator.client(transport="memory")
