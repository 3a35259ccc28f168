"""The calls of the service: in threads, tried again where that may help, with credentials made anew when they have expired.

A call that is repeated keeps its client token, so that what was carried out although its answer was lost is not carried out twice.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

from msgspec import Struct

from littleghost import telemetry
from littleghost.errors import ConfigurationError, DependencyError, LittleGhostError
from littleghost.sessions.agentcore.failures import (
    UnreadableAnswer,
    is_mismatch,
    is_missing_event,
    outcome,
    store_error,
)

__all__ = ["Events", "Service"]

Answer = TypeVar("Answer")

ATTEMPTS: Final = 6
"""How often a call is sent, at most."""

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0
"""Seconds between two attempts: up to the first, doubled each time, up to the longest; the actual one is random, from half of it on."""

THREADS: Final = 10
"""How many calls are under way at once; as many as botocore has connections."""


WRITES: Final = frozenset({"create_event", "delete_event"})
"""What goes on in its thread when whoever waits for it is cancelled, and is then waited for by the next call for the session."""

ANSWERS: Final = {
    "create_event": "event",
    "get_event": "event",
    "list_events": "events",
    "list_sessions": "sessionSummaries",
}
"""What every answer has."""


class _Failed(Exception):
    """A call failed."""

    def __init__(self, client: Any, error: Exception) -> None:
        super().__init__()
        self.client = client
        self.error = error


class Events(Struct, frozen=True):
    """A page of a session's events, and the token of the next."""

    items: Sequence[dict[str, Any]]
    token: str | None


class Service:
    """The data plane of one memory.

    Args:
        memory_id: The memory.
        client: What has boto3's methods; made by ``client_factory`` where none is given, with the first call.
        client_factory: Makes one, and another when credentials have expired.
        region: Of clients that are made here.
    """

    def __init__(
        self,
        memory_id: str,
        *,
        client: Any = None,
        client_factory: Callable[[], Any] | None = None,
        region: str | None = None,
    ) -> None:
        self._memory_id = memory_id
        self._client = client
        self._factory = client_factory or (lambda: _boto3_client(region))
        self._renewable = client is None or client_factory is not None
        self._guard = threading.Lock()
        self._making = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._abandoned: dict[tuple[str, str | None], Future[Any]] = {}
        self.on_late: Callable[[str, str, dict[str, Any]], None] | None = None
        """Called with an event that was written after whoever wrote it had been cancelled; maybe in a thread."""

    async def create_event(
        self, actor: str, session: str, request: dict[str, Any], token: str
    ) -> dict[str, Any] | None:
        """Write an event and return it as the service tells it; ``None`` where another request had the same client token."""
        try:
            answer = await self._call(
                "create_event", actorId=actor, sessionId=session, clientToken=token, **request
            )
        except LittleGhostError:
            raise
        except Exception as error:
            if is_mismatch(error):
                return None
            raise store_error(error, "CreateEvent") from error
        return cast("dict[str, Any]", answer["event"])

    async def list_events(
        self, actor: str, session: str, *, payloads: bool, limit: int, token: str | None
    ) -> Events:
        """Return a page of all events, without a filter, for filtered lists may lag behind."""
        more = {} if token is None else {"nextToken": token}
        answer = await self._ask(
            "list_events",
            actorId=actor,
            sessionId=session,
            includePayloads=payloads,
            maxResults=limit,
            **more,
        )
        return Events(answer["events"], answer.get("nextToken"))

    async def get_event(self, actor: str, session: str, event_id: str) -> dict[str, Any] | None:
        """Return an event, ``None`` where there is none."""
        try:
            answer = await self._call("get_event", actorId=actor, sessionId=session, eventId=event_id)
        except LittleGhostError:
            raise
        except Exception as error:
            if is_missing_event(error):
                return None
            raise store_error(error, "GetEvent") from error
        return cast("dict[str, Any]", answer["event"])

    async def delete_event(self, actor: str, session: str, event_id: str) -> None:
        """Delete an event; one that is gone already is as well."""
        try:
            await self._call("delete_event", actorId=actor, sessionId=session, eventId=event_id)
        except LittleGhostError:
            raise
        except Exception as error:
            if not is_missing_event(error):
                raise store_error(error, "DeleteEvent") from error

    async def list_sessions(
        self, actor: str, *, limit: int, token: str | None
    ) -> tuple[Sequence[dict[str, Any]], str | None]:
        """Return a page of the sessions that an actor has."""
        more = {} if token is None else {"nextToken": token}
        answer = await self._ask("list_sessions", actorId=actor, maxResults=limit, **more)
        return answer["sessionSummaries"], answer.get("nextToken")

    async def in_thread(self, work: Callable[..., Answer], *args: Any) -> Answer:
        """Do ``work`` in one of the threads."""
        return await asyncio.wrap_future(self._submit(work, *args))

    def _submit(self, work: Callable[..., Answer], *args: Any) -> Future[Answer]:
        context = contextvars.copy_context()
        return self._pool().submit(lambda: context.run(work, *args))

    async def aclose(self) -> None:
        """Wait for calls that are under way. A client that was passed in stays open."""
        with self._guard:
            threads, self._threads = self._threads, None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown)

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        try:
            return await self._call(method, **params)
        except LittleGhostError:  # of what makes the client
            raise
        except Exception as error:
            raise store_error(error, _operation(method)) from error

    async def _call(self, method: str, **params: Any) -> dict[str, Any]:
        operation = _operation(method)
        with telemetry.span(
            f"AgentCore Memory {operation}",
            {"rpc.system": "aws-api", "rpc.service": "Bedrock AgentCore", "rpc.method": operation},
        ) as span:
            retries, refreshed = 0, False
            try:
                while True:
                    try:
                        return await self._send(method, params)
                    except _Failed as failed:
                        error, client = failed.error, failed.client
                        kind = outcome(error)
                        if kind == "expired" and not refreshed and self._renewable:
                            refreshed = True
                            await self.in_thread(self._made, client)
                        elif kind == "again" and retries < ATTEMPTS - 1:
                            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**retries)
                            retries += 1
                            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 (spreads load)
                        else:
                            raise error from None
            finally:
                span.set("littleghost.retries", retries)
                span.set("littleghost.credential_refreshes", int(refreshed))
                if type(span) is not telemetry.Span:
                    left = _seconds_to_expiry(self._client)
                    if left is not None:
                        span.set("littleghost.credential_expires_in", left)

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request once, after what was sent for the same session and given up by a caller who was cancelled.

        Raises:
            _Failed: It failed.
        """
        client = self._client or await self.in_thread(self._made, None)
        place = params["actorId"], params.get("sessionId")
        under_way = self._abandoned.get(place)
        if under_way is not None:
            await asyncio.wait([_watched(under_way)])
        future = self._submit(_invoke, client, method, self._memory_id, params)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if method in WRITES and not future.cancelled():
                self._abandon(place, future)
            raise
        except Exception as error:  # noqa: BLE001 (of whatever client)
            raise _Failed(client, error) from None

    def _abandon(self, place: tuple[str, str | None], future: Future[Any]) -> None:
        self._abandoned[place] = future

        def over(future: Future[Any]) -> None:
            written = None if future.cancelled() or future.exception() else future.result().get("event")
            if written is not None and self.on_late is not None:
                self.on_late(place[0], place[1] or "", written)
            if self._abandoned.get(place) is future:
                self._abandoned.pop(place, None)

        future.add_done_callback(over)

    def _made(self, old: Any) -> Any:
        """Return the client, made anew if it is still ``old``: who comes second finds the one that the first one made."""
        with self._making:
            if self._client is old:
                made = self._factory()
                if not hasattr(made, "create_event"):
                    raise ConfigurationError(
                        f"client_factory must return a client with the methods of boto3's, and returned a {type(made).__name__}"
                    )
                self._client = made
            return self._client

    def _pool(self) -> ThreadPoolExecutor:
        with self._guard:
            if self._threads is None or self._process != os.getpid():
                self._process = os.getpid()
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="littleghost-agentcore")
            return self._threads


def _watched(future: Future[Any]) -> asyncio.Future[Any]:
    """Return a future that ends with another one, and of which nobody has to look at the outcome."""
    watched = asyncio.wrap_future(future)
    watched.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return watched


def _operation(method: str) -> str:
    return "".join(word.capitalize() for word in method.split("_"))


def _invoke(client: Any, method: str, memory_id: str, params: dict[str, Any]) -> dict[str, Any]:
    answer = getattr(client, method)(memoryId=memory_id, **params)
    needed = ANSWERS.get(method)
    if needed is not None and answer.get(needed) is None:
        # Of a body that is no JSON botocore makes an answer without content, and no error.
        raise UnreadableAnswer(f"the answer has no {needed!r}")
    return answer


def _seconds_to_expiry(client: Any) -> float | None:
    """Return how long the client's credentials last, where it tells."""
    signer: Any = getattr(client, "_request_signer", None)
    expiry: Any = getattr(getattr(signer, "_credentials", None), "_expiry_time", None)
    return None if expiry is None else expiry.timestamp() - time.time()


def _boto3_client(region: str | None) -> Any:
    try:
        import boto3.session
        import botocore.config
        import botocore.exceptions
    except ImportError as error:
        raise DependencyError.missing("boto3", "agentcore") from error
    session: Any = boto3.session.Session()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    failures: Any = botocore.exceptions
    # One attempt there: repeating is done here, where the credentials and the client token are known.
    config: Any = botocore.config.Config(
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=10,
        read_timeout=60,
        max_pool_connections=THREADS,
    )
    try:
        return session.client("bedrock-agentcore", region_name=region, config=config)
    except (failures.NoRegionError, failures.InvalidRegionError) as error:
        raise ConfigurationError(f"region of AgentCoreMemoryStore: {error}") from error
    except failures.UnknownServiceError as error:
        raise DependencyError.missing("boto3 1.43.35 or newer", "agentcore") from error
