"""Options of a provider, which travel under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from littleghost.errors import ConfigurationError

__all__ = ["checked", "joined"]


def checked(settings: Mapping[str, Any] | None, ours: AbstractSet[str]) -> dict[str, Any]:
    """Return a copy of ``settings``.

    Raises:
        ConfigurationError: One of them is among ``ours``, which the request itself says.
    """
    taken = sorted(ours & (settings or {}).keys())
    if taken:
        raise ConfigurationError(f"settings may not hold {', '.join(taken)}: the request says that itself")
    return dict(settings or {})


def joined(
    of_model: Mapping[str, Any], of_request: Mapping[str, Any], ours: AbstractSet[str]
) -> dict[str, Any]:
    """Return the settings of a call: those of the request go first, and ``None`` takes one back, but stays to tell of that.

    Raises:
        ConfigurationError: See `checked`.
    """
    return {**of_model, **checked(of_request, ours)}
