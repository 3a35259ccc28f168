"""The kit against models with one fault each."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar
from unittest import mock

import msgspec
import pytest

from littleghost.content import Image, Reasoning, ToolResult
from littleghost.events import ModelEnded, Retrying, ToolCallStarted
from littleghost.message import Message
from littleghost.models import chat_completions
from littleghost.models.chat_completions import ChatAnswer
from littleghost.models.contract import Model
from littleghost.models.failures import Failures
from littleghost.models.openai import OpenAIModel
from littleghost.models.openai_responses import OpenAIResponsesModel
from littleghost.models.responses_stream import ResponsesAnswer
from littleghost.models.retry import Again, RetryPolicy
from littleghost.testing.model_chat import ChatDialect
from littleghost.testing.model_kit import check_model
from littleghost.testing.model_responses import ResponsesDialect

changed = msgspec.structs.replace


class TakesWhatIsThere(OpenAIModel):
    """The end of the stream is the end of the answer."""

    def answer(self):
        answer = ChatAnswer()
        answer.finished = answer.begun = True
        return answer


class Collects(OpenAIModel):
    """Tells everything at the end."""

    async def stream(self, request):
        for event in [event async for event in super().stream(request)]:
            yield event


class EndsTwice(OpenAIModel):
    async def stream(self, request):
        async for event in super().stream(request):
            yield event
        yield event


class LosesTheLastCall(OpenAIModel):
    async def stream(self, request):
        async for event in super().stream(request):
            if isinstance(event, ModelEnded) and event.message.tool_uses:
                event = changed(event, message=Message.assistant(event.message.content[:-1]))
            if not isinstance(event, ToolCallStarted) or event.index < 2:
                yield event


class TrustsArguments(OpenAIModel):
    """Arguments that cannot be read are none."""

    async def stream(self, request):
        async for event in super().stream(request):
            yield changed(event, malformed={}) if isinstance(event, ModelEnded) else event


class NeverSaysWhyItStopped(OpenAIModel):
    async def stream(self, request):
        async for event in super().stream(request):
            yield changed(event, stop="end") if isinstance(event, ModelEnded) else event


class CountsTwice(OpenAIModel):
    """What came from a cache is counted as read as well."""

    async def stream(self, request):
        async for event in super().stream(request):
            if isinstance(event, ModelEnded):
                usage = event.usage
                more = usage.input_tokens + usage.cache_read_tokens
                event = changed(event, usage=changed(usage, input_tokens=more))
            yield event


class HidesRetries(OpenAIModel):
    """What came of a failed attempt is passed off as part of the answer."""

    async def stream(self, request):
        async for event in super().stream(request):
            if not isinstance(event, Retrying):
                yield event


class PassesOverRubbish(OpenAIModel):
    def answer(self):
        class Deaf(ChatAnswer):
            def feed(self, chunk):
                if isinstance(chunk, dict):
                    yield from super().feed(chunk)

        return Deaf()


class HangsOn(OpenAIModel):
    """Reads in a task of its own, which nobody ends."""

    tasks: ClassVar[set[Any]] = set()

    async def stream(self, request):
        queue: Any = asyncio.Queue()

        async def read() -> None:
            try:
                async for event in OpenAIModel.stream(self, request):
                    queue.put_nowait(event)
            except Exception as error:
                queue.put_nowait(error)

        self.tasks.add(asyncio.create_task(read()))
        while not isinstance(event := await queue.get(), ModelEnded):
            yield event
        yield event

    async def aclose(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks.clear()
        await super().aclose()


class WaitsForEver(OpenAIModel):
    def stream(self, request):
        return super().stream(changed(request, timeout=None))


class GivesUpAtOnce(OpenAIModel):
    _policy = property(lambda _: RetryPolicy(retries=0), lambda *_: None)


class _Refuses(OpenAIModel):
    failures: type[Failures]

    @property
    def _failures(self):
        known = super()._failures
        return self.failures(known._host, api="", key_hint="", sdk="openai", secrets=known._secrets)


class AsksAgainForEverything(_Refuses):
    class failures(Failures):
        def refused(self, status, body, headers):
            error = super().refused(status, body, headers)
            return error if isinstance(error, Again) else Again(error)


class ComesBackTooEarly(_Refuses):
    class failures(Failures):
        def refused(self, status, body, headers):
            return super().refused(status, body, {})


class Chatters(_Refuses):
    """Repeats all that a server says."""

    class failures(Failures):
        def safe(self, text):
            return text


class HasOneError(_Refuses):
    """A key that is refused and a conversation that is too long are requests like others."""

    class failures(Failures):
        def refused(self, status, body, headers):
            return super().refused(status if status and status >= 404 else 400, {}, headers)


class SeesNoImages(OpenAIModel):
    def arguments(self, request, settings):
        def blind(message):
            return changed(message, content=tuple(b for b in message.content if type(b) is not Image))

        return super().arguments(changed(request, messages=[*map(blind, request.messages)]), settings)


class TellsOfNoFailure(OpenAIModel):
    def arguments(self, request, settings):
        def fine(message):
            content = tuple(
                changed(b, status="success") if type(b) is ToolResult else b for b in message.content
            )
            return changed(message, content=content)

        return super().arguments(changed(request, messages=[*map(fine, request.messages)]), settings)


class KeepsLongIds(OpenAIModel):
    def arguments(self, request, settings):
        with mock.patch.object(chat_completions, "MAX_ID", 1000):
            return super().arguments(request, settings)


class ForgetsTools(OpenAIModel):
    def arguments(self, request, settings):
        return super().arguments(changed(request, tools=request.tools[:1], tool_choice="auto"), settings)


class ForgetsTheForm(OpenAIModel):
    def arguments(self, request, settings):
        return super().arguments(changed(request, format=None), settings)


class TakesAnySetting(OpenAIModel):
    ours = frozenset()


class ForgetsSettings(OpenAIModel):
    def arguments(self, request, settings):
        return super().arguments(request, self.settings)


# -- Responses


class ForgetsReasoning(OpenAIResponsesModel):
    def arguments(self, request, settings):
        messages = [message.without_reasoning() for message in request.messages]
        return super().arguments(changed(request, messages=messages), settings)


class KeepsTheIdsOfCalls(OpenAIResponsesModel):
    """Calls go back under their ids, with or without the reasoning that they belong to."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ids: dict[str, str] = {}

    async def stream(self, request):
        async for event in super().stream(request):
            if isinstance(event, ModelEnded):
                for block in event.message.content:
                    if isinstance(block, Reasoning):
                        calls = [one for kind, one in block.details["items"] if kind == "function_call"]
                        self.ids |= zip([call.id for call in event.message.tool_uses], calls, strict=True)
            yield event

    def arguments(self, request, settings):
        body = super().arguments(request, settings)
        for item in body["input"]:
            if item.get("type") == "function_call" and item["call_id"] in self.ids:
                item["id"] = self.ids[item["call_id"]]
        return body


class SendsAnyReasoning(OpenAIResponsesModel):
    def arguments(self, request, settings):
        body = super().arguments(request, settings)
        for message in request.messages:
            for block in message.content:
                if isinstance(block, Reasoning):
                    details = block.details or {}
                    item = {"type": "reasoning", "id": details.get("id", "rs_x"), "summary": []}
                    body["input"].insert(1, {**item, "encrypted_content": block.signature})
        return body


class KeepsWhatCanBeRead(OpenAIResponsesModel):
    async def stream(self, request):
        async for event in super().stream(request):
            if isinstance(event, ModelEnded):
                kept = [block.text for block in event.message.content if isinstance(block, Reasoning)]
                event = changed(event, message=changed(event.message, metadata={"kept": kept}))
            yield event


class BelievesEveryEvent(OpenAIResponsesModel):
    """Does not look at what a stream ends with, nor at what came before."""

    def answer(self):
        class Gullible(ResponsesAnswer):
            def _came_before(self, event):
                return False

            def _complete(self, item, whole):
                return iter(())

            def _agree(self, output):
                return iter(())

        return Gullible()


FAULTS: list[tuple[type[Model], list[str]]] = [
    (TakesWhatIsThere, ["a-cut-answer-is-never-taken-for-one-that-ended", "a-cut-answer-is-asked-for-again",
        "a-cut-answer-fails-in-the-end", "what-is-no-event-is-no-answer", "an-error-within-an-answer-is-an-error",
        "an-empty-stream-is-no-answer"]),
    (Collects, ["text-comes-as-it-is-written"]),
    (EndsTwice, ["text-comes-as-it-is-written", "any-text-comes-back"]),
    (LosesTheLastCall, ["calls-come-whole", "the-bytes-of-an-answer-may-come-in-any-pieces",
        "events-of-unknown-kinds-are-passed-over"]),
    (TrustsArguments, ["arguments-that-are-no-object-are-reported"]),
    (NeverSaysWhyItStopped, ["the-reason-to-stop-is-told", "a-content-filter-is-told"]),
    (CountsTwice, ["tokens-are-counted-once"]),
    (HidesRetries, ["a-cut-answer-is-asked-for-again", "silence-ends-an-attempt",
        "a-status-that-may-pass-is-asked-again", "retry-after-is-obeyed"]),
    (PassesOverRubbish, ["what-is-no-event-is-no-answer"]),
    (HangsOn, ["cancelling-hangs-up", "leaving-early-hangs-up"]),
    (WaitsForEver, ["silence-ends-with-the-time-of-the-call"]),
    (GivesUpAtOnce, ["a-cut-answer-is-asked-for-again", "a-status-that-may-pass-is-asked-again",
        "an-error-within-an-answer-is-an-error"]),
    (AsksAgainForEverything, ["a-status-that-will-not-pass-ends-the-call",
        "a-refused-key-is-a-matter-of-credentials", "an-overflow-of-the-context-is-told"]),
    (ComesBackTooEarly, ["retry-after-is-obeyed"]),
    (Chatters, ["errors-show-no-key"]),
    (HasOneError, ["a-refused-key-is-a-matter-of-credentials", "an-overflow-of-the-context-is-told",
        "a-status-that-will-not-pass-ends-the-call"]),
    (SeesNoImages, ["images-arrive"]),
    (TellsOfNoFailure, ["the-conversation-arrives"]),
    (KeepsLongIds, ["what-a-conversation-may-hold-is-accepted"]),
    (ForgetsTools, ["tools-arrive", "what-must-be-called-arrives"]),
    (ForgetsTheForm, ["the-form-of-an-answer-arrives"]),
    (TakesAnySetting, ["options-cannot-change-what-a-call-is"]),
    (ForgetsSettings, ["options-arrive"]),
    (ForgetsReasoning, ["reasoning-goes-back-within-a-run"]),
    (KeepsTheIdsOfCalls, ["a-turn-goes-on-without-its-reasoning", "reasoning-that-is-not-whole-is-not-sent"]),
    (SendsAnyReasoning, ["reasoning-of-others-is-not-sent", "reasoning-that-is-not-whole-is-not-sent"]),
    (KeepsWhatCanBeRead, ["kept-signatures-go-back-after-the-store"]),
    (BelievesEveryEvent, ["doubled-and-exchanged-events-make-no-other-answer"]),
]  # fmt: skip


@pytest.mark.parametrize(("faulty", "found"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
async def test_the_kit_finds_the_fault(faulty: Any, found: list[str]) -> None:
    pytest.importorskip("openai")

    def make(url: str, *, key: str, retries: int, **options: Any) -> Model:
        model = faulty("tiny", base_url=url, api_key=key, **options)
        model._policy = RetryPolicy(retries=retries, base=0.001)
        return model

    dialect = ResponsesDialect if issubclass(faulty, OpenAIResponsesModel) else ChatDialect
    seconds = 0.7 if faulty in (Collects, HangsOn, WaitsForEver) else 30  # they would hang
    report = await check_model(make, dialect, only=found, seconds=seconds)
    assert report.failed == report.outcomes, str(report)
    assert sorted(outcome.name for outcome in report.outcomes) == sorted(found)


async def test_a_clause_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="no-such"):
        await check_model(OpenAIModel, ChatDialect, only=["no-such"])
