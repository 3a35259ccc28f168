"""What goes over the wire: every request that boto3 sends and every answer, counted by botocore's own events."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3

OPERATIONS = ("CreateEvent", "ListEvents", "GetEvent", "DeleteEvent", "ListSessions")
"""In the order in which they are printed."""


@dataclass
class Tally:
    """What some work cost.

    Attributes:
        calls: How many requests of each operation, repeated ones included.
        sent: Bytes of the bodies of the requests.
        received: Bytes of the bodies of the answers.
    """

    calls: Counter[str] = field(default_factory=Counter[str])
    sent: int = 0
    received: int = 0

    @property
    def total(self) -> int:
        return self.calls.total()

    @property
    def events(self) -> int:
        """How many events were written, which is what AWS charges for."""
        return self.calls["CreateEvent"]

    @property
    def bytes(self) -> int:
        return self.sent + self.received


class Meter:
    """Counts the calls of every client that is made of boto3's default session from now on, and has them talk to an emulator.

    Args:
        endpoint_url: Where the emulator is.
    """

    def __init__(self, endpoint_url: str) -> None:
        self._tally, self._lock = Tally(), threading.Lock()
        point_at(endpoint_url)
        boto3.setup_default_session()
        events: Any = getattr(boto3.DEFAULT_SESSION, "events")  # noqa: B009 - has no type before it is set up
        events.register("before-send.bedrock-agentcore", self._sent)
        events.register("response-received.bedrock-agentcore", self._received)

    @contextmanager
    def counting(self) -> Iterator[Tally]:
        """Count what is done in a ``with`` block."""
        self._tally = tally = Tally()
        try:
            yield tally
        finally:
            self._tally = Tally()

    def _sent(self, request: Any, event_name: str, **_: Any) -> None:
        body = request.body or b""
        with self._lock:
            self._tally.calls[event_name.rpartition(".")[2]] += 1
            self._tally.sent += len(body.encode() if isinstance(body, str) else body)

    def _received(self, response_dict: Any, **_: Any) -> None:
        with self._lock:
            self._tally.received += len((response_dict or {}).get("body") or b"")


def point_at(endpoint_url: str) -> None:
    """Have every client of boto3 in this process talk to an emulator: what a user sets in the environment, and no line of code."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {
        "AWS_ENDPOINT_URL_BEDROCK_AGENTCORE": endpoint_url,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "emulator",
        "AWS_SECRET_ACCESS_KEY": "emulator",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
