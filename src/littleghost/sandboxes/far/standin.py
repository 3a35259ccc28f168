"""As much of msgspec as the modules of the worker use, for a guest that has only the standard library.

`guest` brings it there under the name ``msgspec``. Values are not checked again: the near half has done so.
"""

from __future__ import annotations

import copy
from typing import Any

__all__ = ["Struct", "ValidationError", "convert", "structs"]


class ValidationError(ValueError):
    """Never raised here."""


class Struct:
    """A value whose fields are the annotations of its class, given by name."""

    __struct_fields__: tuple[str, ...] = ()

    def __init_subclass__(cls, **_options: Any) -> None:
        super().__init_subclass__()
        own = [name for name in vars(cls).get("__annotations__", {}) if not name.startswith("_")]
        cls.__struct_fields__ = (*cls.__struct_fields__, *own)

    def __init__(self, **given: Any) -> None:
        for name in self.__struct_fields__:
            if name in given:
                value = given.pop(name)
            elif hasattr(type(self), name):
                value = copy.copy(getattr(type(self), name))
            else:
                raise TypeError(f"{type(self).__name__} needs {name}")
            object.__setattr__(self, name, value)
        if given:
            raise TypeError(f"{type(self).__name__} has no {', '.join(given)}")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Do what a subclass does when all is set."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))


def convert(value: Any, _kind: Any, **_options: Any) -> Any:
    """Return ``value``."""
    return value


class structs:  # noqa: N801 (msgspec's name)
    """What msgspec has in its module of this name."""

    @staticmethod
    def replace(value: Any, /, **changes: Any) -> Any:
        """Return a copy with other fields."""
        return type(value)(**{**vars(value), **changes})
