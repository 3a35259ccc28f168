"""Commits as our stores keep them."""

from __future__ import annotations

from littleghost import Message, Reasoning, Text
from littleghost.message import pack_messages
from littleghost.sessions.records import PART, record


def test_what_a_record_holds_is_its_own():
    message = Message.user("hello")
    made = record("append", [message], {}, {}, None)
    message.metadata["later"] = object()
    assert made.messages == (Message.user("hello"),)


def test_reasoning_goes_and_what_is_left_is_counted():
    thought, answer = Reasoning(text="hm"), Text("yes")
    made = record("append", [Message.assistant([thought]), Message.assistant([thought, answer])], {}, {})
    assert (made.count, made.messages) == (1, (Message.assistant([answer]),))


def test_many_messages_are_kept_in_parts():
    given = [Message.user(f"{number}") for number in range(PART + 1)]
    parts = record("append", given, {}, {}).parts()
    assert parts == [(pack_messages(given[:PART])[0], PART), (pack_messages(given[PART:])[0], 1)]
