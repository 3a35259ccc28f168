"""Answers in a type, as the loop sees them: which message holds one, and when the model is asked again."""

from __future__ import annotations

from littleghost import data, transcript
from littleghost.content import ToolUse
from littleghost.errors import OutputError
from littleghost.message import Message
from littleghost.runs.effects import AnswerRule, Book, CommitMessages, Ending, Part, Read, ReadAnswer

__all__ = ["Answers"]


class Answers:
    """Ends the run with an answer that fits, and has others given again, as often as the rule says.

    An answer is a call of the rule's tool that has been accepted, or a text. It makes no difference which of them the model was asked for:
    what is stored stays an answer when another model goes on.
    """

    def __init__(self, book: Book, rule: AnswerRule) -> None:
        self._book = book
        self._rule = rule
        self._repairs = 0

    def stored(self) -> Part:
        """Take the answer that the transcript ends with, if it does."""
        messages = self._book.messages
        if not messages:
            return Ending(outcome="completed")
        index = len(messages) - 1
        while index >= 0 and messages[index].role == "tool":
            index -= 1
        if index < 0 or messages[index].role != "assistant":
            return None
        message = messages[index]
        if message.tool_uses:
            call, _ = self._given(index)
            return None if call is None else (yield from self._take(call.input))
        return None if transcript.is_partial(message) else (yield from self.text(message.text))

    def text(self, text: str) -> Part:
        """Take an answer in text, which has been committed."""
        return (yield from self._take(text))

    def called(self, index: int) -> Part:
        """Take the answer among the calls of the assistant message at ``index``, which all have their results."""
        call, faults = self._given(index)
        if call is not None:
            return (yield from self._take(call.input))
        if not faults:
            return None
        if self._repairs >= self._rule.repairs:
            return self._failed(faults, self._book.text)
        self._repairs += 1  # the result has told the model what was wrong
        return None

    def _given(self, index: int) -> tuple[ToolUse | None, tuple[str, ...]]:
        """Return the first call that was accepted, and what was wrong with the others."""
        messages = self._book.messages
        calls = {call.id: call for call in messages[index].tool_uses if call.name == self._rule.tool}
        faults: list[str] = []
        taken: set[str] = set()
        if calls:
            for message in messages[index + 1 :]:
                for result in message.tool_results:
                    if result.tool_use_id not in calls:
                        continue
                    if result.status == "success":
                        taken.add(result.tool_use_id)
                    else:
                        faults.append(result.text)
        return next((call for call in calls.values() if call.id in taken), None), tuple(faults)

    def _take(self, written: str | dict[str, object]) -> Part:
        outcome = yield ReadAnswer(written)
        text = written if isinstance(written, str) else data.pack(written).decode()
        self._book.text = text
        if type(outcome) is Read:
            return Ending(outcome="completed", text=text, answer=(outcome.value,))
        if self._repairs >= self._rule.repairs:
            return self._failed(outcome.reasons, text)
        self._repairs += 1
        said = Message.user(self._rule.repair.format(reasons="\n".join(outcome.reasons)))
        message = transcript.mark(said, repair=True)
        yield CommitMessages((message,))
        self._book.messages.append(message)
        return None

    def _failed(self, reasons: tuple[str, ...], text: str) -> Ending:
        error = OutputError(
            f"the answer does not fit its type, asked for {self._repairs + 1} times: {'; '.join(reasons)}",
            errors=reasons,
            text=text,
        )
        return Ending(outcome="failed", text=text, error=error)
