"""What is projected, and what sessions and actors are called."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from littleghost import Message, Reasoning, Text
from littleghost.errors import ConfigurationError, DataError
from littleghost.sessions.agentcore import limits
from littleghost.sessions.agentcore.naming import check_actor, safe_id
from littleghost.sessions.agentcore.projection import LINKS, project

NOW = 1_767_225_600.9


def parts(requests: list[dict[str, Any]]) -> list[list[tuple[str, str]]]:
    return [
        [
            (entry["conversational"]["role"], entry["conversational"]["content"]["text"])
            for entry in request["payload"]
        ]
        for request in requests
    ]


def test_text_that_is_too_long_for_an_item_is_in_several_of_the_same_role():
    text = "漢" * 100_000 + "x"
    (request,) = project([Message.assistant(text), Message.user("y")], {}, NOW)
    assert [(role, len(text)) for role, text in parts([request])[0]] == [
        ("ASSISTANT", 100_000),
        ("ASSISTANT", 1),
        ("USER", 1),
    ]
    assert request["extractionMode"] == "SKIP"


def test_more_items_than_an_event_takes_are_in_several_a_second_apart():
    made = project([Message.user(f"{index}") for index in range(250)], {"little_ghost_kind": "k"}, NOW)
    assert [len(request["payload"]) for request in made] == [100, 100, 50]
    assert [text for part in parts(made) for _, text in part] == [f"{index}" for index in range(250)]
    assert [int(request["eventTimestamp"].timestamp()) for request in made] == [
        int(NOW) + n for n in range(3)
    ]
    assert {request["metadata"]["little_ghost_kind"]["stringValue"] for request in made} == {"k"}


def test_a_request_is_not_larger_than_the_service_takes():
    made = project([Message.user("漢" * 100_000)] * 20, {}, NOW)
    assert [len(request["payload"]) for request in made] == [16, 4]


def test_nothing_visible_is_no_request():
    messages = [Message.assistant([Reasoning(text="thought")]), Message.user(""), Message("tool", [])]
    assert project(messages, {"little_ghost_turn": 1}, NOW) == []


def test_reasoning_goes_and_system_and_transient_messages_stay():
    messages = [
        Message.system("s"),
        Message.assistant([Reasoning(text="thought"), Text("a"), Text("b")]),
        Message("user", "t", {"transient": True}),
    ]
    assert parts(project(messages, {}, NOW)) == [[("OTHER", "s"), ("ASSISTANT", "ab"), ("USER", "t")]]


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("a b/c:d=e+f@g-h_i.j", ...),
        ("", ...),
        (2, "2"),
        (2.5, "2.5"),
        (True, "true"),
        (None, None),
        (False, None),
    ],
)
@pytest.mark.parametrize("key", LINKS)
def test_a_link_is_sent_as_text(key: str, value: Any, sent: Any):
    (request,) = project([Message.user("x")], {key: value, "other": object(), "kind": "without prefix"}, NOW)
    expected: dict[str, Any] = {"little_ghost_type": {"stringValue": "conversation_projection_v1"}}
    if sent is not None:
        expected[key] = {"stringValue": value if sent is ... else sent}
    assert request["metadata"] == expected


@pytest.mark.parametrize(
    "value",
    ["x" * 257, "ü", "a#b", "a,b", "\u2003", "a\x00", ["x"], {"a": 1}, b"x", "\ud800", float("nan") * 1j],
)
def test_a_link_that_the_service_does_not_take_is_refused_and_named(value: Any):
    with pytest.raises(DataError, match=r"^metadata\.little_ghost_turn: ") as caught:
        project([Message.user("x")], {"little_ghost_turn": value}, NOW)
    assert caught.value.path == "metadata.little_ghost_turn"


def test_a_link_is_refused_also_where_there_is_nothing_to_project():
    with pytest.raises(DataError):
        project([], {"little_ghost_kind": "ü"}, NOW)


def test_metadata_that_is_no_object_is_refused():
    with pytest.raises(DataError, match=r"^metadata: "):
        project([], ["little_ghost_kind"], NOW)  # type: ignore[arg-type]


def test_text_that_is_no_valid_unicode_is_refused_and_named():
    with pytest.raises(DataError, match=r"^messages\[2\]: ") as caught:
        project([Message.user("x"), Message.assistant([Reasoning(text="")]), Message.user("\ud800")], {}, NOW)
    assert caught.value.path == "messages[2]"


@pytest.mark.parametrize("value", ["a", "", "lg_" + "0" * 64, "ü/漢😀", " a "])
def test_every_id_is_hashed_also_one_that_looks_as_if_it_were(value: str):
    assert safe_id(value) == "lg_" + sha256(value.encode()).hexdigest()
    assert len(safe_id(value)) == 67


@pytest.mark.parametrize("actor", [None, ""])
def test_no_actor_is_a_mistake_of_the_one_who_set_it_up(actor: Any):
    with pytest.raises(ConfigurationError, match="actor_id"):
        check_actor(actor)


@pytest.mark.parametrize("actor", ["\ud800", 7, b"a", ["a"]])
def test_an_actor_that_is_no_text_is_refused(actor: Any):
    with pytest.raises(DataError, match=r"^actor_id: "):
        check_actor(actor)


def test_an_actor_is_returned_as_it_is():
    assert check_actor(" user/7 ") == " user/7 "
    assert limits.MAX_LINK_CHARS == 256
