"""For tests: fakes, fault injection, and conformance kits for models, stores and sandboxes of your own. Needs no pytest."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from littleghost.models.scripted import (
        FunctionModel as FunctionModel,
    )
    from littleghost.models.scripted import (
        ScriptedModel as ScriptedModel,
    )
    from littleghost.models.scripted import (
        ScriptError as ScriptError,
    )
    from littleghost.testing.conformance import (
        Clause as Clause,
    )
    from littleghost.testing.conformance import (
        ClauseFailure as ClauseFailure,
    )
    from littleghost.testing.conformance import (
        Report as Report,
    )
    from littleghost.testing.faults import (
        FaultyStore as FaultyStore,
    )
    from littleghost.testing.model_chat import (
        ChatDialect as ChatDialect,
    )
    from littleghost.testing.model_dialect import (
        Dialect as Dialect,
    )
    from littleghost.testing.model_dialect import (
        Said as Said,
    )
    from littleghost.testing.model_dialect import (
        Seen as Seen,
    )
    from littleghost.testing.model_gemini import (
        GeminiDialect as GeminiDialect,
    )
    from littleghost.testing.model_kit import (
        check_model as check_model,
    )
    from littleghost.testing.model_kit import (
        model_clauses as model_clauses,
    )
    from littleghost.testing.model_responses import (
        ResponsesDialect as ResponsesDialect,
    )
    from littleghost.testing.model_server import (
        ModelServer as ModelServer,
    )
    from littleghost.testing.model_server import (
        Reply as Reply,
    )
    from littleghost.testing.model_trial import (
        Subject as Subject,
    )
    from littleghost.testing.sandbox_kit import (
        check_sandbox as check_sandbox,
    )
    from littleghost.testing.sandbox_kit import (
        sandbox_clauses as sandbox_clauses,
    )
    from littleghost.testing.store_kit import (
        check_store as check_store,
    )
    from littleghost.testing.store_kit import (
        store_clauses as store_clauses,
    )

_HOMES = {
    "littleghost.models.scripted": ("FunctionModel", "ScriptError", "ScriptedModel"),
    "littleghost.testing.conformance": ("Clause", "ClauseFailure", "Report"),
    "littleghost.testing.faults": ("FaultyStore",),
    "littleghost.testing.model_chat": ("ChatDialect",),
    "littleghost.testing.model_dialect": ("Dialect", "Said", "Seen"),
    "littleghost.testing.model_gemini": ("GeminiDialect",),
    "littleghost.testing.model_kit": ("check_model", "model_clauses"),
    "littleghost.testing.model_responses": ("ResponsesDialect",),
    "littleghost.testing.model_server": ("ModelServer", "Reply"),
    "littleghost.testing.model_trial": ("Subject",),
    "littleghost.testing.sandbox_kit": ("check_sandbox", "sandbox_clauses"),
    "littleghost.testing.store_kit": ("check_store", "store_clauses"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*sorted(_HOME_OF)]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'littleghost.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value
