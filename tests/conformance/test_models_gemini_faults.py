"""What an adapter of Gemini can get wrong, and the kit has to find."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from littleghost.content import Reasoning
from littleghost.errors import ModelRequestError
from littleghost.models import gemini_format
from littleghost.models.gemini import GeminiModel
from littleghost.models.retry import RetryPolicy
from littleghost.testing.conformance import ClauseFailure
from littleghost.testing.model_gemini import GeminiDialect
from littleghost.testing.model_kit import model_clauses
from littleghost.testing.model_trial import Subject

pytestmark = pytest.mark.skipif(importlib.util.find_spec("google") is None, reason="needs google-genai")


def make(url: str, *, key: str, retries: int, **options: Any) -> GeminiModel:
    model = GeminiModel("gemini-3-pro", base_url=url, api_key=key, **options)
    model._policy = RetryPolicy(retries=retries, base=0.001)
    return model


def unordered(message: Any, names: Any, *, shown: bool) -> list[Any]:
    return RESULTS(message, names, shown=shown)[::-1]


def moved(message: Any, model: str) -> list[Any]:
    """The signature comes back, at another part."""
    parts = ANSWER(message, model)
    signed = [part.pop("thoughtSignature") for part in parts if "thoughtSignature" in part]
    for part, signature in zip(reversed(parts), signed, strict=False):
        part["thoughtSignature"] = signature
    return parts


def foreign(message: Any, model: str) -> list[Any]:
    parts = ANSWER(message, model)
    given = [block.signature for block in message.content if type(block) is Reasoning and block.signature]
    if given:
        parts[-1]["thoughtSignature"] = given[0]
    return parts


RESULTS, ANSWER, FEED = gemini_format._results, gemini_format._answer, gemini_format.GeminiAnswer.feed
KEPT = gemini_format._signatures


def readable(blocks: Any) -> list[Any]:
    return [*KEPT(blocks), *[[0, "text", block.text] for block in blocks if type(block) is Reasoning]]


def hasty(self: Any, chunk: Any) -> Any:
    yield from FEED(self, chunk)
    self.finished = self.finished or bool(self._pieces)


@pytest.mark.parametrize(
    ("clause", "name", "value"),
    [
        ("a-turn-goes-on-without-its-reasoning", "needs_signatures", lambda model: False),
        ("reasoning-of-others-is-not-sent", "_answer", foreign),
        ("reasoning-goes-back-within-a-run", "_is_own", lambda block, model: False),
        ("reasoning-goes-back-within-a-run", "_answer", moved),
        ("kept-signatures-go-back-after-the-store", "_kept", lambda message, model: {}),
        ("kept-signatures-go-back-after-the-store", "_signatures", readable),
        ("the-conversation-arrives", "_results", unordered),
        ("tools-arrive", "gemini_schema", lambda schema: {**schema, "$schema": "draft"}),
        ("tokens-are-counted-once", "_count", lambda form, name: form.get("promptTokenCount", 0)),
        ("a-cut-answer-is-never-taken-for-one-that-ended", "GeminiAnswer.feed", hasty),
    ],
)
async def test_the_kit_finds(monkeypatch: pytest.MonkeyPatch, clause: str, name: str, value: Any) -> None:
    (found,) = (one for one in model_clauses() if one.name == clause)
    subject = Subject(make, GeminiDialect)
    await found.run(subject)
    owner: Any = gemini_format
    *path, last = name.split(".")
    for step in path:
        owner = getattr(owner, step)
    monkeypatch.setattr(owner, last, value)
    with pytest.raises((ClauseFailure, ModelRequestError)):
        await found.run(subject)
