"""Whether clients that are not ours run against the emulator, through boto3 and HTTP, as they would against AWS."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from littleghost.emulators.agentcore import AgentCoreEmulator

from .metering import Meter

Check = Callable[..., Any]
"""Takes those of ``emulator``, ``meter`` and what it was added with that it names, and raises where something is not as it should be."""

CHECKS: dict[str, tuple[Check, dict[str, Any]]] = {}


def check(client: str, claim: str, **given: Any) -> Callable[[Check], Check]:
    """Add a check of what a client does; each gets an emulator of its own."""

    def add(function: Check) -> Check:
        CHECKS[f"{client}: {claim}"] = function, given
        return function

    return add


def expect(found: Any, wanted: Any) -> None:
    """Raise where ``found`` is not ``wanted``."""
    if found != wanted:
        raise AssertionError(f"{_short(found)}, and not {_short(wanted)}")


def run_checks() -> dict[str, str]:
    """Return why each check failed, by its name; nothing where it passed."""
    from . import langgraph_checks, strands_checks  # noqa: F401 - they add themselves

    results: dict[str, str] = {}
    for name, (function, given) in CHECKS.items():
        with AgentCoreEmulator(pagination="scan") as emulator:
            things = {"emulator": emulator, "meter": Meter(emulator.endpoint_url), **given}
            try:
                done = function(**{name: things[name] for name in inspect.signature(function).parameters})
                if inspect.iscoroutine(done):
                    asyncio.run(done)
                results[name] = ""
            except Exception as error:  # noqa: BLE001 - whatever a client raises is the result
                results[name] = _short(f"{type(error).__name__}: {error}")
    return results


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
