"""From a string such as ``openai:gpt-5`` to a model."""

from __future__ import annotations

import importlib
import os
from typing import Any
from urllib.parse import urlsplit

from littleghost.errors import ConfigurationError
from littleghost.models.contract import Model

__all__ = ["resolve_model"]

_Place = tuple[str, str, dict[str, Any]]
_CHAT: _Place = ("openai", "OpenAIModel", {})
_RESPONSES: _Place = ("openai_responses", "OpenAIResponsesModel", {})
_PROVIDERS: dict[str, _Place] = {
    "openai": _RESPONSES,
    "openai-responses": _RESPONSES,
    "openai-chat": _CHAT,
    "anthropic": ("anthropic", "AnthropicModel", {}),
    "bedrock": ("bedrock", "BedrockModel", {}),
    "gemini": ("gemini", "GeminiModel", {}),
    "vertex": ("gemini", "GeminiModel", {"vertex": True}),
    "local": ("local", "LocalModel", {}),
}
"""By prefix: the module, its class, and what it is made with beside the name."""

_FORMS = tuple(f"{prefix}:{'FILE.gguf' if prefix == 'local' else 'MODEL'}" for prefix in _PROVIDERS)
"""How the strings look that name a model."""


def resolve_model(model: Model | str) -> Model:
    """Return the model that ``model`` names. A `Model` is returned as it is.

    | | |
    |---|---|
    | ``openai:MODEL`` | the Responses API of OpenAI; Chat Completions where ``OPENAI_BASE_URL`` names another server |
    | ``openai-responses:MODEL``, ``openai-chat:MODEL`` | one of them, wherever it is |
    | ``anthropic:MODEL``, ``bedrock:MODEL``, ``gemini:MODEL`` | those providers |
    | ``vertex:MODEL`` | Gemini on Vertex AI |
    | ``local:FILE.gguf`` | llama.cpp on this machine |

    Nothing is connected, started or imported from an SDK yet; that happens at the first use.

    Raises:
        ConfigurationError: The string names no model that is known.
    """
    if isinstance(model, Model):
        return model
    prefix, colon, name = model.partition(":")
    if not colon or prefix not in _PROVIDERS:
        known = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"
        raise ConfigurationError(f"{model!r} names no known model; write {known}, or pass a Model")
    if not name.strip():
        form = "FILE.gguf" if prefix == "local" else "MODEL"
        raise ConfigurationError(f"{model!r} names no model after the colon; write {prefix}:{form}")
    module, kind, options = _CHAT if prefix == "openai" and _elsewhere() else _PROVIDERS[prefix]
    return getattr(importlib.import_module(f"littleghost.models.{module}"), kind)(name.strip(), **options)


def _elsewhere() -> bool:
    """Whether ``OPENAI_BASE_URL`` names a server other than OpenAI's; most of them speak Chat Completions only."""
    url = os.environ.get("OPENAI_BASE_URL")
    return bool(url) and not f".{urlsplit(url).hostname}".endswith(".openai.com")
