"""What may be asked of an MCP server's tools, checked as it is given."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypedDict, cast

from msgspec import Struct

from littleghost import data
from littleghost.errors import ConfigurationError

__all__ = ["MCPOptions", "Options"]

Names = Collection[str]


class MCPOptions(TypedDict, total=False):
    """The options of `MCPToolset`. Names of tools are the server's own, without the prefix; one that it does not have is an error.

    Attributes:
        include: Which tools to take: names, or a function from a name to whether. All when left out.
        exclude: Which to leave out, in the same way.
        prefix: Put before each name, so that two servers' tools do not collide. Signs that a provider does not take become ``_``.
        timeout: Seconds a call may take; ``None`` leaves it to the run.
        connect_timeout: Seconds for starting the server, or reaching it, and listing its tools.
        idempotent: Tools that may run twice. A call that a lost connection or a crash interrupted is made again, and no other ever is.
        trust_annotations: Believe the server which of its tools only read, or are idempotent.
        needs_approval: Whether calls wait for somebody's approval: all, those of some tools, or those for which a function from name and
            arguments says so.
        optional: Go on without the tools, with a warning in the log, where the server cannot be reached.
        max_result_bytes: Bytes of text that a result may have; its pictures and documents may have ten times that. What is over is cut.
        name: What errors, logs and the model call the server. The program's name, or the URL's host and path, when left out.
    """

    include: Names | Callable[[str], bool] | None
    exclude: Names | Callable[[str], bool] | None
    prefix: str
    timeout: float | None
    connect_timeout: float
    idempotent: Names
    trust_annotations: bool
    needs_approval: bool | Names | Callable[[str, dict[str, Any]], bool]
    optional: bool
    max_result_bytes: int
    name: str


class Options(Struct, frozen=True, kw_only=True):
    """The same, with their defaults.

    Raises:
        ConfigurationError: One of them cannot be used; the message names it.
    """

    include: Names | Callable[[str], bool] | None = None
    exclude: Names | Callable[[str], bool] | None = None
    prefix: str = ""
    timeout: float | None = 120.0
    connect_timeout: float = 30.0
    idempotent: Names = ()
    trust_annotations: bool = False
    needs_approval: bool | Names | Callable[[str, dict[str, Any]], bool] = False
    optional: bool = False
    max_result_bytes: int = 1_000_000
    name: str = ""

    def __post_init__(self) -> None:
        for field in ("include", "exclude", "idempotent", "needs_approval"):
            value: Any = getattr(self, field)
            if field == "needs_approval" and isinstance(value, bool):
                continue
            if field in ("include", "exclude") and value is None:
                continue
            if callable(value) and field != "idempotent":
                continue
            if isinstance(value, str) or not isinstance(value, Collection):
                raise ConfigurationError(
                    f"{field} must be a list of the names of tools, not {data.kind(value)}"
                )
            if not all(isinstance(name, str) for name in cast("Collection[Any]", value)):
                raise ConfigurationError(f"{field} must hold the names of tools")
        for field in ("prefix", "name"):
            if not isinstance(getattr(self, field), str):
                raise ConfigurationError(f"{field} must be a string")
        for field in ("timeout", "connect_timeout", "max_result_bytes"):
            value = getattr(self, field)
            if field == "timeout" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigurationError(f"{field} must be a number above 0, not {value!r}")
        if not isinstance(self.max_result_bytes, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"max_result_bytes must be a whole number, not {self.max_result_bytes!r}"
            )

    @property
    def named(self) -> set[str]:
        """The names that the server must have."""
        values: tuple[Any, ...] = (self.include, self.exclude, self.idempotent, self.needs_approval)
        return {name for value in values if isinstance(value, Collection) for name in cast("Names", value)}

    def wants(self, name: str) -> bool:
        """Return whether the tool ``name`` is to be there."""
        return (self.include is None or _holds(self.include, name)) and (
            self.exclude is None or not _holds(self.exclude, name)
        )

    def approval(self, name: str) -> bool | Callable[[dict[str, Any]], bool]:
        """Return whether calls of the tool ``name`` need approval, or what says so of a call's arguments."""
        asked = self.needs_approval
        if isinstance(asked, bool):
            return asked
        return partial(asked, name) if callable(asked) else name in asked


def _holds(these: Names | Callable[[str], bool], name: str) -> bool:
    return bool(these(name)) if callable(these) else name in these
