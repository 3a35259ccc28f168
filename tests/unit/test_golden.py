"""What the Ruby system wrote is read, and written again as it was, for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from littleghost import Message
from littleghost.message import unpack_messages
from littleghost.sessions.records import record

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text("utf-8"))


MESSAGES = [entry["message"] for entry in golden("ruby_messages.json")["messages"]]


@pytest.mark.parametrize("raw", MESSAGES, ids=range(len(MESSAGES)))
def test_a_message_of_the_ruby_system_is_read_and_written_again_byte_for_byte(raw: str):
    (message,) = unpack_messages(f"[{raw}]")
    assert record("append", [message], {}, {}, None).body.decode() == f"[{raw}]"
    assert Message.from_dict(json.loads(raw)) == message
    assert json.dumps(message.to_dict(), ensure_ascii=False, separators=(",", ":")) == raw


def test_what_the_ruby_store_removed_ours_removes():
    case = golden("ruby_sanitised.json")
    given = [Message.from_dict(form) for form in case["given"]]
    kept = record("replace", given, {}, {}, None)
    assert json.loads(kept.body) == case["loaded"]
    assert kept.count == len(case["loaded"]) < len(given)
