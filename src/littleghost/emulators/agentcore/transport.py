"""boto3 clients of an emulator: over HTTP, or without a socket."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from littleghost.emulators.agentcore.core import Answer
from littleghost.errors import DependencyError

__all__ = ["CALLER", "REGION", "connect", "in_process"]

CALLER = "emulator"
"""The access key id of a client that is given no other; the secret is never checked."""
REGION = "us-east-1"

_lock = threading.Lock()
_sessions: list[Any] = []


def connect(endpoint_url: str, caller: str, options: dict[str, Any]) -> Any:
    """Return a boto3 client for an endpoint. Those of one process share a session, which keeps the models it has read.

    Raises:
        DependencyError: boto3 is not installed.
    """
    try:
        boto3: Any = importlib.import_module("boto3.session")
        config: Any = importlib.import_module("botocore.config").Config(
            proxies={}
        )  # none leads to this machine
    except ImportError as error:
        raise DependencyError.missing("boto3", "agentcore") from error
    given: dict[str, Any] = {
        "endpoint_url": endpoint_url,
        "region_name": REGION,
        "aws_access_key_id": caller,
        "aws_secret_access_key": "emulator",
        **options,
    }
    given["config"] = config.merge(given["config"]) if given.get("config") is not None else config
    with _lock:  # a session makes one client at a time
        if not _sessions:
            _sessions.append(boto3.Session())
        return _sessions[0].client("bedrock-agentcore", **given)


def in_process(client: Any, respond: Callable[[str, str, str, bytes], Answer]) -> None:
    """Have a client answered by ``respond``, without a socket. What breaks a connection is raised at once, as botocore would raise it."""
    exceptions: Any = importlib.import_module("botocore.exceptions")
    awsrequest: Any = importlib.import_module("botocore.awsrequest")

    def answer(request: Any, **_: Any) -> Any:
        body = request.body or b""
        path = urlsplit(str(request.url)).path
        authorization = request.headers.get("Authorization", b"")
        given = respond(
            request.method,
            path,
            _text(authorization),
            body.encode() if isinstance(body, str) else bytes(body),
        )
        if given.broken == "reset":
            raise exceptions.ConnectionClosedError(
                error=ConnectionResetError("reset by the emulator"), request=request, endpoint_url=request.url
            )
        if given.broken == "timeout":
            raise exceptions.ReadTimeoutError(
                endpoint_url=request.url, error=TimeoutError("timed out in the emulator")
            )
        if given.delay:
            time.sleep(given.delay)
        content = given.body[: len(given.body) // 2] if given.broken == "truncated" else given.body
        headers = {"Content-Length": str(len(given.body)), **given.headers}
        return awsrequest.AWSResponse(request.url, given.status, headers, _Raw(content))

    client.meta.events.register_first("before-send.bedrock-agentcore", answer)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Raw:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> Iterator[bytes]:
        yield self._content
