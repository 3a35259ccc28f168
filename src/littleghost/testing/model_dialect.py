"""What the conformance kit for models has to know of a wire format: how an answer looks in it, and what a provider refuses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

from msgspec import Struct, field

from littleghost.content import ToolUse
from littleghost.message import Message
from littleghost.models.contract import ToolSpec
from littleghost.usage import Usage

__all__ = ["Dialect", "Said", "Seen"]


class Said(Struct, frozen=True, kw_only=True):
    """What the model behind a server answers, in no format yet.

    Attributes:
        text: The text, in the pieces that it is streamed in.
        reasoning: Private reasoning that comes before the text, in pieces.
        calls: The calls that come after the text.
        arguments: Texts that are streamed as the arguments of a call, by its position, in place of its input.
        stop: Why the model stopped; a model that calls tools stops by ``end``.
        usage: What is counted; a format that does not count some kind of token sends the sum of what it does count.
    """

    text: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()
    calls: tuple[ToolUse, ...] = ()
    arguments: dict[int, str] = field(default_factory=dict[int, str])
    stop: Literal["end", "length", "filter"] = "end"
    usage: Usage = Usage(input_tokens=7, output_tokens=5)


class Seen(Struct, frozen=True, kw_only=True):
    """A request as its provider understands it.

    Attributes:
        messages: The conversation, instructions as ``system`` messages. Reasoning that was sent back is in `reasoning` alone.
        tools: What may be called.
        choice: What must be called, as in `ModelRequest.tool_choice`.
        schema: The JSON Schema that the answer is to fit, or ``None``.
        settings: Every other option, under the names that a user gives them.
        reasoning: What was sent back of earlier reasoning, in order, as the text that `Dialect.proof` gives for it.
    """

    messages: list[Message]
    tools: tuple[ToolSpec, ...] = ()
    choice: str = "auto"
    schema: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    reasoning: tuple[str, ...] = ()


class Dialect(ABC):
    """One wire format, from the provider's side. A subclass with its own answers to these questions brings a format to the kit.

    A server makes one of its own, so what it issued may be kept in it.

    Attributes:
        prefix: What stands before the paths of the API in the URL that a model is given, such as ``/v1``.
        content_type: That of a streamed answer.
        features: What the format has, so that clauses about the rest are skipped: ``reasoning`` (it comes), ``reasoning_back`` (it is
            to be sent back), ``arguments`` (those of a call are streamed as text, so they can be malformed), ``bare_calls`` (no
            text at all stands for no arguments), ``filter`` (it
            tells of a content filter), ``mid_stream_errors``, ``unknown_events`` (events of unknown kinds may come),
            ``ordered`` (some events show their order, see `shows_order`), ``cache_read``, ``cache_write`` and
            ``reasoning_tokens`` (usage counts them), ``instructions`` (system messages), ``unbounded_events`` (an event may
            come without an end).
        setting: An option as a user writes it, which `read` then finds.
        reserved: Names of settings that a model must refuse, for they would change what a call means.
    """

    prefix: str = ""
    content_type: str = "text/event-stream"
    features: frozenset[str] = frozenset()
    setting: dict[str, Any] = {"temperature": 0.5}  # noqa: RUF012 (nobody changes it)
    reserved: tuple[str, ...] = ()

    @abstractmethod
    def serves(self, method: str, path: str) -> bool:
        """Return whether the API has this path; another is answered with 404."""

    @abstractmethod
    def answer(self, said: Said) -> list[bytes]:
        """Return the stream that says ``said``: one item an event, joined they are the body."""

    @abstractmethod
    def finishes(self, said: Said) -> int:
        """Return how many of the events of `answer` it takes until the answer is complete, so that what is lost behind does not matter."""

    @abstractmethod
    def frame(self, payload: bytes) -> bytes:
        """Return ``payload``, which may be rubbish, framed as one event of a stream."""

    @abstractmethod
    def error(self, status: int, message: str, kind: Literal["", "overflow"] = "") -> bytes:
        """Return the body of an error answer.

        Args:
            status: Its HTTP status.
            message: What it says, where ``kind`` does not say it.
            kind: ``overflow``: the conversation of 9001 tokens does not fit a window of 8192, in the provider's words.
        """

    @abstractmethod
    def read(self, body: Any) -> Seen:
        """Return what a request says.

        Args:
            body: Its decoded JSON, which `refusal` found nothing wrong with.
        """

    @abstractmethod
    def refusal(self, body: Any) -> str | None:
        """Return why the provider refuses a request, in its words, or ``None``.

        It knows the rules that a transcript can break: results that follow no call, calls without results, reasoning that is
        missing or was not issued, values that are too long or empty, fields that there are not.
        """

    def headers(self, kind: Literal["", "overflow"] = "") -> dict[str, str]:
        """Return further headers of an error answer."""
        return {}

    def proof(self, said: Said) -> str:
        """Return what shows that the reasoning of ``said`` was sent back: an item's id, or a signature."""
        return ""

    def unknown(self) -> list[bytes]:
        """Return events of kinds that nobody knows yet, to be passed over. With the feature ``unknown_events``."""
        return []

    def broken(self, message: str) -> bytes:
        """Return the event that tells of a server's error in the middle of an answer. With the feature ``mid_stream_errors``."""
        raise NotImplementedError

    def shows_order(self, event: bytes) -> bool:
        """Return whether the format lets a reader see that ``event`` came twice, or before the one ahead of it."""
        return False
