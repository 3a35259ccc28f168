"""Answers in a type, as the loop sees them: which message holds one, and when the model is asked again."""

from __future__ import annotations

from littleghost import data, transcript
from littleghost.errors import OutputError
from littleghost.message import Message
from littleghost.runs.effects import AnswerRule, Book, CommitMessages, Ending, Part, Read, ReadAnswer

__all__ = ["Answers"]


class Answers:
    """Ends the run with an answer that fits, and has others given again, as often as the rule says.

    An answer is a call of the rule's tool that has been accepted, or a text. It makes no difference which of them the model was asked for:
    what is stored stays an answer when another model goes on.

    Whoever reads the store can tell, without knowing the type, whether there is an answer: an assistant message with calls of the tool
    notes its name (``answer``), and a text that does not fit is followed by what is wrong with it in the same commit, or noted as partial.
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
        call = transcript.given_answer(messages)
        if call is not None:
            return (yield from self._take(call.input))
        last = messages[-1]
        if transcript.waits_for_model(messages):
            return None
        return (yield from self._take(last.text))

    def noted(self, message: Message) -> Message:
        """Return a model's message with a note of the answer's tool, if it calls it."""
        tool = self._rule.tool
        given = any(call.name == tool for call in message.tool_uses)
        return transcript.mark(message, answer=tool) if given else message

    def text(self, message: Message) -> Part:
        """Take an answer in text, which has not been committed."""
        return (yield from self._take(message.text, message))

    def called(self, message: Message) -> Part:
        """Take the answer among the calls of ``message``, which all have their results in the last messages."""
        call = transcript.given_answer(self._book.messages)
        if call is not None:
            return (yield from self._take(call.input))
        calls = {call.id for call in message.tool_uses if call.name == self._rule.tool}
        if not calls:
            return None
        if self._repairs >= self._rule.repairs:
            return self._failed(self._faults(calls), self._book.text)
        self._repairs += 1  # the results have told the model what was wrong
        return None

    def _faults(self, calls: set[str]) -> tuple[str, ...]:
        """Return the results of ``calls``."""
        faults: list[str] = []
        for message in reversed(self._book.messages):
            if message.role == "assistant":
                break
            faults[:0] = [result.text for result in message.tool_results if result.tool_use_id in calls]
        return tuple(faults)

    def _take(self, written: str | dict[str, object], message: Message | None = None) -> Part:
        """Read an answer, and commit the ``message`` that it came in, if that is still to do."""
        outcome = yield ReadAnswer(written)
        text = written if isinstance(written, str) else data.pack(written).decode()
        self._book.text = text
        made = [] if message is None else [message]
        ending: Ending | None = None
        if type(outcome) is Read:
            ending = Ending(outcome="completed", text=text, answer=(outcome.value,))
        elif self._repairs >= self._rule.repairs:
            ending = self._failed(outcome.reasons, text)
            made = [transcript.mark(each, partial="unfit") for each in made]
        else:
            self._repairs += 1
            said = Message.user(self._rule.repair.format(reasons="\n".join(outcome.reasons)))
            made.append(transcript.mark(said, repair=True))
        if made:
            yield CommitMessages(tuple(made))
            self._book.messages += made
        return ending

    def _failed(self, reasons: tuple[str, ...], text: str) -> Ending:
        error = OutputError(
            f"the answer does not fit its type, asked for {self._repairs + 1} times: {'; '.join(reasons)}",
            errors=reasons,
            text=text,
        )
        return Ending(outcome="failed", text=text, error=error)
