"""The conformance kit for models, over every adapter of ours, against servers that speak its provider's format."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from littleghost import Agent, MemoryStore, Runtime, tool
from littleghost.errors import ConfigurationError
from littleghost.message import Message
from littleghost.models.contract import Model, ModelRequest
from littleghost.models.network import VARIABLE
from littleghost.models.retry import RetryPolicy
from littleghost.testing.conformance import Clause, ClauseSkipped
from littleghost.testing.model_anthropic import AnthropicDialect, OmittedThinkingDialect
from littleghost.testing.model_bedrock import BedrockDialect, OmittedReasoningDialect
from littleghost.testing.model_chat import ChatDialect
from littleghost.testing.model_gemini import GeminiDialect
from littleghost.testing.model_kit import model_clauses, model_offers
from littleghost.testing.model_responses import ResponsesDialect
from littleghost.testing.model_trial import KEY, Subject, opened
from littleghost.testing.model_turns import CALLED, DONE


def impatient(model: Any, retries: int) -> Model:
    """Waits are short, so that tests are quick; what a server asks is waited for in full."""
    model._policy = RetryPolicy(retries=retries, base=0.001)
    return model


def chat(url: str, *, key: str, retries: int, **options: Any) -> Model:
    from littleghost.models.openai import OpenAIModel

    return impatient(OpenAIModel("tiny", base_url=url, api_key=key, **options), retries)


def responses(url: str, *, key: str, retries: int, **options: Any) -> Model:
    from littleghost.models.openai_responses import OpenAIResponsesModel

    return impatient(OpenAIResponsesModel("tiny", base_url=url, api_key=key, **options), retries)


def gemini(url: str, *, key: str, retries: int, **options: Any) -> Model:
    from littleghost.models.gemini import GeminiModel

    return impatient(GeminiModel("gemini-3-pro", base_url=url, api_key=key, **options), retries)


def vertex(url: str, *, key: str, retries: int, **options: Any) -> Model:
    from google.oauth2.credentials import Credentials

    from littleghost.models.gemini import GeminiModel

    place = {"project": "p", "location": "europe-west1", "credentials": Credentials(token=key)}
    model = GeminiModel("gemini-3-pro", vertex=True, base_url=url, **place, **options)
    return impatient(model, retries)


THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2000}}


def anthropic(url: str, *, key: str, retries: int, settings: Any = None, **options: Any) -> Model:
    from littleghost.models.anthropic import AnthropicModel

    abilities = {"tool_choice", "answer_format", "images", "documents"}
    model = AnthropicModel(
        "claude", base_url=url, api_key=key, settings={**THINKING, **(settings or {})}, capabilities=abilities, **options
    )  # fmt: skip
    return impatient(model, retries)


def bedrock(url: str, *, key: str, retries: int, settings: Any = None, **options: Any) -> Model:
    from littleghost.models.bedrock import BedrockModel

    abilities = {"tool_choice", "answer_format", "images", "documents"}
    fields = {"additionalModelRequestFields": THINKING}
    model = BedrockModel(
        "anthropic.claude", base_url=url, region="us-east-1", settings={**fields, **(settings or {})}, capabilities=abilities, **options
    )  # fmt: skip
    return impatient(model, retries)


SUBJECTS: dict[str, tuple[str, Subject]] = {
    "chat": ("openai", Subject(chat, ChatDialect)),
    "responses": ("openai", Subject(responses, ResponsesDialect)),
    "gemini": ("google", Subject(gemini, GeminiDialect)),
    "vertex": ("google", Subject(vertex, GeminiDialect)),
    "anthropic": ("anthropic", Subject(anthropic, AnthropicDialect)),
    "anthropic-omitted": ("anthropic", Subject(anthropic, OmittedThinkingDialect)),
    "bedrock": ("boto3", Subject(bedrock, BedrockDialect)),
    "bedrock-omitted": ("boto3", Subject(bedrock, OmittedReasoningDialect)),
}
"""By name: the SDK that it needs, and what is tried. Another adapter is one more line, and its maker."""


def offers(subject: Subject) -> frozenset[str]:
    return model_offers(subject)


@pytest.fixture(autouse=True)
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 has its key from the environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_BEARER_TOKEN_BEDROCK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def subject(request: pytest.FixtureRequest, require: Callable[[object, str, str], None]) -> Subject:
    sdk, subject = SUBJECTS[request.param]
    require(importlib.util.find_spec(sdk), sdk, "pip install 'littleghost[all]'")
    return subject


@pytest.mark.parametrize("clause", model_clauses(), ids=lambda clause: clause.name)
@pytest.mark.parametrize("subject", SUBJECTS, indirect=True)
async def test_the_clause_holds(subject: Subject, clause: Clause) -> None:
    missing = clause.missing(offers(subject))
    if missing:
        pytest.skip(f"not offered: {', '.join(sorted(missing))}")
    try:
        await clause.run(subject)
    except ClauseSkipped as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("subject", SUBJECTS, indirect=True)
async def test_requests_can_be_forbidden(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "forbid")
    model = subject.make("http://model.invalid/v1", key="k" * 20, retries=0)
    with pytest.raises(ConfigurationError, match=VARIABLE):
        async for _ in model.stream(ModelRequest(messages=[Message.user("Hello")])):
            pass
    await model.aclose()


@pytest.mark.parametrize("keep", [False, True], ids=["as-stored", "with-signatures"])
@pytest.mark.parametrize("subject", SUBJECTS, indirect=True)
async def test_a_run_goes_on_between_a_call_and_its_result(subject: Subject, keep: bool) -> None:
    """Two calls are under way when the run is cancelled; another runtime goes on with what the store has."""
    if missing := {"reasoning_back", *(["keep_signatures"] if keep else [])} - offers(subject):
        pytest.skip(f"not offered: {', '.join(sorted(missing))}")
    called = asyncio.Event()

    @tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        called.set()
        await asyncio.Event().wait()
        return a + b

    store = MemoryStore()
    async with opened(subject, **({"keep_signatures": True} if keep else {})) as trial:
        trial.server.play(CALLED, DONE)
        agent = Agent(trial.model, tools=[add])
        async with Runtime(session_store=store) as runtime:
            asked = asyncio.create_task(runtime.ask(agent, "Add.", session_id="s"))
            await asyncio.wait_for(called.wait(), 30)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        async with Runtime(session_store=store) as runtime:
            run = await runtime.resume(agent, session_id="s")
        assert run.check().text == "".join(DONE.text)
        seen = trial.seen()
    assert len([call for message in seen.messages for call in message.tool_uses]) == 2
    assert seen.reasoning == ((trial.dialect.proof(CALLED),) if keep else ())
    stored = await store.load("s")
    assert stored is not None
    assert "Private thought" not in repr(stored.messages)


def test_every_clause_applies_somewhere() -> None:
    names = {name for _, subject in SUBJECTS.values() for name in offers(subject)}
    assert [clause.name for clause in model_clauses() if clause.missing(names)] == []
    assert all(clause.doc for clause in model_clauses())
