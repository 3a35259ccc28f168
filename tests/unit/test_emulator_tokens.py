"""Client tokens of the emulator of AgentCore Memory: what each way of honouring them answers, and what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("boto3")

from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

PLACE = {"memoryId": DEFAULT_MEMORY, "actorId": "actor", "sessionId": "session"}

Start = Callable[..., AgentCoreEmulator]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[AgentCoreEmulator] = []

    def begin(**options: Any) -> AgentCoreEmulator:
        emulator = AgentCoreEmulator(
            [DEFAULT_MEMORY, "other_memory-abcdefghij"], clock=lambda: 1e9, **options
        )
        started.append(emulator)
        return emulator

    yield begin
    for emulator in started:
        emulator.close()


def write(
    client: Any, token: str | None = "t", blob: Any = "x", at: float = 5, **more: Any
) -> dict[str, Any]:
    given = {} if token is None else {"clientToken": token}
    params = {**PLACE, "eventTimestamp": at, "payload": [{"blob": blob}], **given, **more}
    return client.create_event(**params)["event"]


def test_a_token_that_is_known_writes_nothing_and_answers_as_before(start: Start):
    emulator = start()
    client = emulator.client(transport="memory")
    assert write(client) == write(client)
    assert len(emulator.events()) == 1
    assert [call.replayed for call in emulator.calls] == [False, True]
    assert {call.status for call in emulator.calls} == {201}
    assert write(client, "u") != write(client)
    assert len(emulator.events()) == 2


def test_without_a_token_botocore_makes_one_a_call(start: Start):
    emulator = start()
    client = emulator.client(transport="memory")
    assert write(client, None) != write(client, None)
    assert len({call.params["clientToken"] for call in emulator.calls}) == 2


def test_the_order_of_keys_makes_no_other_request(start: Start):
    client = start(mismatch="refuse").client(transport="memory")
    assert write(client, blob={"a": 1, "b": 2}) == write(client, blob={"b": 2, "a": 1})


def test_a_token_outlives_its_event_deleted_or_expired(start: Start):
    emulator = start()
    client = emulator.client(transport="memory")
    deleted, expired = write(client, "t"), write(client, "u")
    client.delete_event(**PLACE, eventId=deleted["eventId"])
    assert write(client, "t") == deleted
    emulator.advance(91 * 86_400)
    assert write(client, "u") == expired
    assert emulator.events() == []
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_event(**PLACE, eventId=deleted["eventId"])


def test_another_request_with_a_known_token_is_ignored_and_answered_with_the_first(start: Start):
    emulator = start()
    client = emulator.client(transport="memory")
    first = write(client)
    assert write(client, blob="y", at=6) == first
    assert [event["payload"] for event in emulator.events()] == [[{"blob": "x"}]]


def test_or_answered_with_its_own_content_under_the_first_id(start: Start):
    emulator = start(replay="echo")
    client = emulator.client(transport="memory")
    first = write(client)
    second = write(client, blob="y", at=6)
    assert second["eventId"] == first["eventId"]
    assert second["payload"] == [{"blob": "y"}]
    assert second["eventTimestamp"].timestamp() == 6
    assert write(client) == first
    assert [event["payload"] for event in emulator.events()] == [[{"blob": "x"}]]


def test_or_refused(start: Start):
    emulator = start(mismatch="refuse")
    client = emulator.client(transport="memory")
    first = write(client)
    for change in ({"blob": "y"}, {"at": 6}, {"metadata": {"k": {"stringValue": "v"}}}):
        with pytest.raises(client.exceptions.ValidationException) as caught:
            write(client, **change)
        assert caught.value.response["reason"] == "IdempotentParameterMismatchException"
    assert write(client) == first
    assert len(emulator.events()) == 1


def test_a_token_of_another_session_has_a_reason_of_its_own(start: Start):
    client = start(mismatch="refuse", token_scope="memory").client(transport="memory")
    write(client)
    with pytest.raises(client.exceptions.ValidationException) as caught:
        write(client, sessionId="other")
    assert caught.value.response["reason"] == "EventInOtherSession"


@pytest.mark.parametrize(("scope", "events"), [("session", 4), ("actor", 3), ("memory", 2)])
def test_a_token_is_the_same_within_its_scope(start: Start, scope: Any, events: int):
    emulator = start(token_scope=scope)
    client = emulator.client(transport="memory")
    first = write(client)
    for change in ({"sessionId": "other"}, {"actorId": "other"}, {"memoryId": "other_memory-abcdefghij"}):
        write(client, **change)
    assert len(emulator.events()) == events
    assert (write(client, sessionId="other") == first) is (scope != "session")


def test_a_session_that_the_service_named_is_answered_again(start: Start):
    emulator = start()
    client = emulator.client(transport="memory")
    request = {
        "memoryId": DEFAULT_MEMORY,
        "actorId": "a",
        "eventTimestamp": 1,
        "payload": [],
        "clientToken": "t",
    }
    assert client.create_event(**request)["event"] == client.create_event(**request)["event"]
    assert len(emulator.events()) == 1


def test_tokens_may_expire(start: Start):
    emulator = start(idempotency="expiring", token_lifetime=60)
    client = emulator.client(transport="memory")
    first = write(client)
    emulator.advance(59.9)
    assert write(client) == first
    emulator.advance(0.1)
    second = write(client)
    assert second["eventId"] != first["eventId"]
    assert len(emulator.events()) == 2
    emulator.advance(59)
    assert write(client) == second  # counted from the request that wrote


def test_tokens_may_do_nothing(start: Start):
    emulator = start(idempotency="ignored")
    client = emulator.client(transport="memory")
    write(client)
    write(client)
    assert len(emulator.events()) == 2


@pytest.mark.parametrize("transport", ["memory", "http"])
def test_tokens_may_be_those_of_a_caller(start: Start, transport: Any):
    emulator = start(idempotency="per_caller")
    one, same = (emulator.client(transport=transport, caller="ONE") for _ in range(2))
    two = emulator.client(transport=transport, caller="TWO")
    assert write(one) == write(same)
    assert write(two)["eventId"] != write(one)["eventId"]
    assert len(emulator.events()) == 2
    assert [call.caller for call in emulator.calls] == ["ONE", "ONE", "TWO", "ONE"]


def test_elsewhere_tokens_are_those_of_everybody(start: Start):
    emulator = start()
    one, two = (emulator.client(transport="memory", caller=caller) for caller in ("ONE", "TWO"))
    assert write(one) == write(two)
    assert len(emulator.events()) == 1


def test_a_request_that_was_refused_leaves_its_token_free(start: Start):
    emulator = start()
    client = emulator.client(transport="memory")
    with pytest.raises(client.exceptions.ValidationException):
        write(client, metadata={"ä": {"stringValue": "v"}})
    emulator.fault("CreateEvent:access_denied:nth=1")
    with pytest.raises(client.exceptions.AccessDeniedException):
        write(client)
    assert write(client) == write(client)
    assert len(emulator.events()) == 1
