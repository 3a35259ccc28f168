"""What the emulator was asked, and what it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Call"]


@dataclass(kw_only=True, slots=True)
class Call:
    """One request.

    Attributes:
        operation: Its operation, such as ``CreateEvent``; empty where the path is that of none.
        params: What it was called with, as in the API; timestamps in seconds.
        caller: The access key id it was signed with; empty where it was not.
        at: When, in seconds of the emulator's clock.
        status: The HTTP status of the answer; 0 where there was none, or not yet.
        error: The code of the error, or ``None``.
        message: The text of the error, or ``None``.
        fault: The kind of the fault that befell it, or ``None``.
        committed: Whether it did its work: for a read, whether it was read at all.
        replayed: Whether its client token was known, so that nothing was written.
        event_id: The event it wrote, returned or deleted, or ``None``.
        request_id: What ``x-amzn-RequestId`` said.
    """

    operation: str
    params: Mapping[str, Any]
    caller: str
    at: float
    status: int = 0
    error: str | None = None
    message: str | None = None
    fault: str | None = None
    committed: bool = False
    replayed: bool = False
    event_id: str | None = None
    request_id: str = ""
