"""A server on the web, over streamable HTTP."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, cast

import httpx2
from mcp.client.streamable_http import LAST_EVENT_ID, MCP_SESSION_ID, streamable_http_client

from littleghost.tools.mcp.hearing import Fate, Inbound, Outbound
from littleghost.tools.mcp.pipes import MESSAGE_BYTES
from littleghost.tools.mcp.servers import HTTP, HeaderSource, checked_headers

__all__ = ["connected", "fate_of_call"]

fate_of_call: ContextVar[Fate | None] = ContextVar("littleghost_mcp_fate", default=None)
"""Of the call that the current code sends. The SDK sends each message in the context of whoever made it."""

RESUMPTIONS = 100
"""How often a server may have the client come back for the rest of an answer, over one connection."""


@asynccontextmanager
async def connected(http: HTTP, connect_timeout: float) -> AsyncGenerator[tuple[Inbound, Outbound]]:
    """Give the streams of messages from the server and to it; end its session afterwards."""
    url = httpx2.URL(http.url)
    # How long an answer may take is the business of whoever waits for it.
    timeout = httpx2.Timeout(connect_timeout, read=None)
    transport = _Guarded(url, http.headers, httpx2.AsyncHTTPTransport())
    async with (
        httpx2.AsyncClient(transport=transport, timeout=timeout, trust_env=False) as client,
        # Without the query, which may hold a key: the SDK logs the URL.
        streamable_http_client(
            str(url.copy_with(query=None)), http_client=client, max_sse_event_size=MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


class _Guarded(httpx2.AsyncBaseTransport):
    """Sends requests, and holds back what a hostile server could make of the SDK.

    * The headers, and the query of the URL, go to the server's own origin and nowhere else.
    * No stream is kept open for what a server might say unasked, and it cannot have the client come back for ever.
    * Answers are bounded, and not compressed, so that the bound holds.
    * What goes wrong with one request is that request's, and is noted in its `Fate`: an exception would end the connection for all.
    """

    def __init__(self, url: httpx2.URL, headers: HeaderSource, inner: httpx2.AsyncBaseTransport) -> None:
        self._url, self._headers, self._inner = url, headers, inner
        self._resumptions = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        fate = fate_of_call.get() or Fate()
        if request.method == "GET":
            self._resumptions += LAST_EVENT_ID in request.headers
            if LAST_EVENT_ID not in request.headers or self._resumptions > RESUMPTIONS:
                return httpx2.Response(405, request=request)
        url, headers = request.url, request.headers.copy()
        headers["accept-encoding"] = "identity"
        if _origin(url) == _origin(self._url):
            try:
                headers.update(await _given(self._headers))
            except Exception as error:  # noqa: BLE001 (it is whoever wrote the function that must hear of it)
                fate.unsent, fate.error = True, error
                fate.words = f"its headers could not be had ({type(error).__name__})"
                return httpx2.Response(503, request=request)
            url = url.copy_with(query=self._url.query or None)
        # The client logs the request it made, which therefore stays as it was.
        sent = httpx2.Request(
            request.method, url, headers=headers, stream=request.stream, extensions=request.extensions
        )
        try:
            response = await self._inner.handle_async_request(sent)
        except (
            httpx2.ConnectError,
            httpx2.ConnectTimeout,
            httpx2.PoolTimeout,
            httpx2.UnsupportedProtocol,
        ) as error:
            fate.unsent, fate.error, fate.words = True, error, f"no connection ({error})"
            return httpx2.Response(503, request=request)
        except httpx2.TransportError as error:
            fate.lost, fate.error, fate.words = True, error, f"the connection broke ({type(error).__name__})"
            return httpx2.Response(503, request=request)
        status = response.status_code
        if status >= 400:
            fate.words = f"it answered with HTTP status {status}"
            fate.expired = status == 404 and MCP_SESSION_ID in request.headers
            fate.refused = status if status in (401, 403) else None
            fate.lost = status >= 500
        coding = response.headers.get("content-encoding", "identity")
        if coding != "identity":
            await response.aclose()
            fate.lost, fate.words = True, "it compressed its answer, which it was asked not to"
            return httpx2.Response(502, request=request)
        response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream), fate)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to a limit."""

    def __init__(self, inner: httpx2.AsyncByteStream, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._inner:
                size += len(chunk)
                if size > MESSAGE_BYTES:
                    self._fate.lost = True
                    self._fate.words = f"it answered with more than {MESSAGE_BYTES >> 20} MiB"
                    raise httpx2.StreamError(self._fate.words)
                yield chunk
        except httpx2.TransportError as error:
            self._fate.lost, self._fate.error = True, error
            self._fate.words = f"the connection broke ({type(error).__name__})"
            raise httpx2.StreamError(self._fate.words) from error

    async def aclose(self) -> None:
        await self._inner.aclose()


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


async def _given(source: HeaderSource) -> dict[str, str]:
    found: Any = source() if callable(source) else source
    return checked_headers(await found if inspect.isawaitable(found) else found)
