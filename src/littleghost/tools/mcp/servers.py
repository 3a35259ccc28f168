"""Which server is meant, checked as it is given. Nothing here needs the SDK."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec import Struct

from littleghost import data
from littleghost.errors import ConfigurationError, ToolValueError
from littleghost.sandboxes.processes import arguments_of, environment_of

__all__ = ["HTTP", "HeaderSource", "Stdio", "checked_headers"]

Headers = Mapping[str, str]
HeaderSource = Headers | Callable[[], Headers | Awaitable[Headers]]

RESERVED = frozenset({"accept", "accept-encoding", "content-length", "content-type", "host", "last-event-id"})
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class Stdio(Struct, frozen=True, kw_only=True):
    """A program that speaks MCP on its standard input and output.

    Attributes:
        command: The program and its arguments.
        environment: Variables for it.
        cwd: Its directory.
        sandboxed: Whether to start it in the run's sandbox.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: str | None
    sandboxed: bool

    @classmethod
    def of(
        cls,
        command: Any,
        environment: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
        *,
        sandboxed: bool,
    ) -> Stdio:
        """Return the server for what a caller gave.

        Raises:
            ConfigurationError: It cannot be one.
        """
        try:
            arguments, variables = arguments_of(command), environment_of(environment)
        except ToolValueError as error:
            raise ConfigurationError(str(error)) from error
        if cwd is not None and not isinstance(cwd, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"cwd must be a path, not {data.kind(cwd)}")
        place = None if cwd is None else os.fspath(cwd)
        return cls(command=arguments, environment=variables, cwd=place, sandboxed=sandboxed)

    @property
    def label(self) -> str:
        """The program's name; the arguments may hold a secret."""
        return self.command[0].rpartition("/")[2] or self.command[0]


class HTTP(Struct, frozen=True, kw_only=True):
    """A server that is reached by URL.

    Attributes:
        url: Where it is.
        headers: Headers for it, or what gives them; asked before each request.
    """

    url: str
    headers: HeaderSource

    @classmethod
    def of(cls, url: Any, headers: Any) -> HTTP:
        """Return the server for what a caller gave.

        Raises:
            ConfigurationError: It cannot be one.
        """
        if not isinstance(url, str):
            raise ConfigurationError(f"url must be a string, not {data.kind(url)}")
        try:
            parts = urlsplit(url)
            fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            fit = False
            parts = urlsplit("")
        if not fit or not url.isascii() or not url.isprintable() or " " in url:
            raise ConfigurationError("url must be a complete one, such as https://example.com/mcp")
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError(
                "url must not hold a user name or password; give headers= what proves who asks"
            )
        return cls(
            url=url,
            headers=cast("HeaderSource", headers) if callable(headers) else checked_headers(headers or {}),
        )

    @property
    def label(self) -> str:
        """The URL's host and path; the query may hold a secret."""
        parts = urlsplit(self.url)
        return f"{parts.netloc}{parts.path}"


def checked_headers(headers: Any) -> dict[str, str]:
    """Return ``headers``, which are fit to be sent.

    Raises:
        ConfigurationError: They are not. Values are not named.
    """
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers must be a mapping of names to values, not {data.kind(headers)}")
    found: dict[str, str] = {}
    for name, value in cast("Mapping[Any, Any]", headers).items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError("headers: a name is not that of a header")
        if name.lower() in RESERVED or name.lower().startswith("mcp-"):
            raise ConfigurationError(f"headers: {name} is part of the protocol and cannot be given")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ConfigurationError(f"headers: the value of {name} is not one line of text")
        found[name] = value
    return found
