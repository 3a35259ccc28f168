"""From a string such as ``openai:gpt-5`` to a model."""

from __future__ import annotations

from collections.abc import Callable

from littleghost.errors import ConfigurationError
from littleghost.models.contract import Model

__all__ = ["resolve_model"]


def _openai(name: str) -> Model:
    from littleghost.models.openai import OpenAIModel

    return OpenAIModel(name)


def _gemini(name: str) -> Model:
    from littleghost.models.gemini import GeminiModel

    return GeminiModel(name)


def _vertex(name: str) -> Model:
    from littleghost.models.gemini import GeminiModel

    return GeminiModel(name, vertex=True)


def _local(name: str) -> Model:
    from littleghost.models.local import LocalModel

    return LocalModel(name)


_PROVIDERS: dict[str, tuple[str, Callable[[str], Model]]] = {
    "openai": ("openai:MODEL", _openai),
    "gemini": ("gemini:MODEL", _gemini),
    "vertex": ("vertex:MODEL", _vertex),
    "local": ("local:FILE.gguf", _local),
}
_PLANNED = ("anthropic", "bedrock")


def resolve_model(model: Model | str) -> Model:
    """Return the model that ``model`` names: ``openai:MODEL``, ``gemini:MODEL``, ``vertex:MODEL`` or ``local:FILE.gguf``.

    A `Model` is returned as it is.

    Nothing is connected, started or imported from an SDK yet; that happens at the first use.

    Raises:
        ConfigurationError: The string names no model that is known.
    """
    if isinstance(model, Model):
        return model
    prefix, colon, name = model.partition(":")
    known = " or ".join(form for form, _ in _PROVIDERS.values())
    if prefix in _PLANNED:
        raise ConfigurationError(
            f"{prefix} models are not supported yet; use {known}, or a Model of your own"
        )
    if not colon or prefix not in _PROVIDERS:
        raise ConfigurationError(f"{model!r} names no known model; write {known}, or pass a Model")
    if not name.strip():
        raise ConfigurationError(f"{model!r} names no model after the colon; write {_PROVIDERS[prefix][0]}")
    return _PROVIDERS[prefix][1](name.strip())
