"""What a model is to the run: a request in, events out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Literal

from msgspec import Struct, field

from littleghost.events import ModelEvent
from littleghost.message import Message

__all__ = ["AnswerFormat", "Model", "ModelRequest", "ToolSpec"]


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as a model sees it.

    Attributes:
        name: Its name, ``[A-Za-z0-9_-]{1,64}``.
        description: What it does.
        schema: The JSON Schema of its arguments, an object.
    """

    name: str
    description: str
    schema: dict[str, Any]


class AnswerFormat(Struct, frozen=True, kw_only=True):
    """The form that a provider is to hold an answer to.

    Attributes:
        name: What the form is called, ``[A-Za-z0-9_-]{1,64}``.
        schema: The JSON Schema of the answer, an object. The answer's text is then JSON that fits it.
        description: What it is for.
    """

    name: str
    schema: dict[str, Any]
    description: str = ""


class ModelRequest(Struct, frozen=True, kw_only=True):
    """One model call.

    Attributes:
        messages: The conversation in the shape every provider accepts; instructions come first, as a ``system`` message.
        tools: The tools the model may call.
        settings: Options of the provider, passed on as they are, such as ``temperature``.
        timeout: Seconds that are left for the call, or ``None``.
        tool_choice: ``auto``: the model calls tools or answers; ``required``: it must call one; ``none``: it must not; any other
            string is the name of the tool that it must call. A model without the capability ``tool_choice`` passes over it.
        format: The form of the answer, only for a model with the capability ``answer_format``.
    """

    messages: list[Message]
    tools: tuple[ToolSpec, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    timeout: float | None = None
    tool_choice: str = "auto"
    format: AnswerFormat | None = None


class Model(ABC):
    """A language model.

    A subclass needs `stream` alone. It maps every error of its SDK to `ModelError`, `CredentialError` or `ConfigurationError`, retries what
    is worth it and tells of that by `Retrying` events, and stops at once when its task is cancelled.

    Attributes:
        capabilities: What it can beyond answering and calling tools: ``tool_choice``, ``answer_format`` (it holds an answer to a JSON
            Schema), ``images``, ``documents``.
        cache: How long what was written to the provider's cache is kept there, where that has a price of its own.
        context_window: Tokens that a request and its answer may have together, or ``None`` where that is not known.
    """

    capabilities: frozenset[str] = frozenset()
    cache: Literal["5m", "1h"] | None = None
    context_window: int | None = None

    @property
    def name(self) -> str:
        """What the model is called in events and spans."""
        return type(self).__name__

    @property
    def provider(self) -> str:
        """Who serves it, as in the GenAI semantic conventions; such as ``openai``."""
        return "unknown"

    @abstractmethod
    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer ``request``: events as they come, `ModelEnded` last.

        Raises:
            ModelError: The model did not answer.
            CredentialError: It refused the credentials.
        """

    async def aclose(self) -> None:
        """Release connections. A model that holds none does nothing."""
