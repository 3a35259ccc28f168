"""Faults of the emulator of AgentCore Memory: each kind as boto3 sees it, over HTTP and in this process, and what it leaves behind."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3")

from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, PaginationError, ReadTimeoutError

from littleghost import ConfigurationError
from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator, Fault
from littleghost.emulators.agentcore.faults import KINDS

PLACE = {"memoryId": DEFAULT_MEMORY, "actorId": "actor", "sessionId": "session"}
ONCE = Config(retries={"total_max_attempts": 1}, read_timeout=1.0)

Start = Callable[..., tuple[AgentCoreEmulator, Any]]


@pytest.fixture(params=["memory", "http"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    started: list[AgentCoreEmulator] = []

    def begin(*rules: str, config: Config = ONCE, **options: Any) -> tuple[AgentCoreEmulator, Any]:
        emulator = AgentCoreEmulator(**options)
        started.append(emulator)
        client = emulator.client(transport=request.param, config=config)
        for rule in rules:
            emulator.fault(rule)
        return emulator, client

    yield begin
    for emulator in started:
        emulator.close()


def write(client: Any, at: float = 5, **more: Any) -> dict[str, Any]:
    return client.create_event(**PLACE, eventTimestamp=at, payload=[{"blob": at}], **more)


ERRORS = {
    "throttle": (429, "ThrottledException", "Rate exceeded."),
    "conflict": (
        409,
        "RetryableConflictException",
        "The request conflicts with another one. Please try again.",
    ),
    "quota_exceeded": (402, "ServiceQuotaExceededException", "A service quota was exceeded."),
    "access_denied": (403, "AccessDeniedException", "User is not authorized"),
    "expired_token": (403, "ExpiredTokenException", "The security token included in the request is expired"),
    "error_500": (500, "ServiceException", "An internal error occurred."),
    "error_502": (502, "502", "Bad Gateway"),
    "error_503": (503, "503", "Service Unavailable"),
    "error_504": (504, "504", "Gateway Timeout"),
}


@pytest.mark.parametrize("when", ["", "_after"])
@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_comes_in_place_of_the_work_or_after_it(start: Start, kind: str, when: str):
    emulator, client = start(f"CreateEvent:{kind}{when}:nth=1")
    with pytest.raises(ClientError) as caught:
        write(client, clientToken="t")
    answer = caught.value.response
    status, code, message = ERRORS[kind]
    assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]) == (status, code)
    assert answer["Error"]["Message"].startswith(message)
    assert len(emulator.events()) == (1 if when else 0)
    [call] = emulator.calls
    assert (call.fault, call.status, call.committed) == (f"{kind}{when}", status, bool(when))
    write(client, clientToken="t")
    assert len(emulator.events()) == 1


def test_errors_of_the_model_are_their_own_classes(start: Start):
    _, client = start()
    for kind in ("throttle", "conflict", "quota_exceeded", "access_denied", "error_500"):
        assert issubclass(getattr(client.exceptions, ERRORS[kind][1]), ClientError)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_is_reset_before_or_after_the_work(start: Start, when: str):
    emulator, client = start(f"CreateEvent:reset_{when}:nth=2")
    write(client, 1)  # so that the connection is one that is kept
    with pytest.raises(ConnectionClosedError):
        write(client, 2)
    assert len(emulator.events()) == (2 if when == "after" else 1)
    assert (emulator.calls[1].status, emulator.calls[1].committed) == (0, when == "after")
    write(client, 3)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_does_not_come(start: Start, when: str):
    emulator, client = start(f"CreateEvent:timeout_{when}:nth=1:delay=3600")
    with pytest.raises(ReadTimeoutError):
        write(client, 1)
    assert len(emulator.events()) == (1 if when == "after" else 0)
    emulator.close()  # which does not wait for the hour to be over


def test_a_late_answer_comes(start: Start):
    emulator, client = start("*:slow:delay=0.05", config=Config())
    began = time.monotonic()
    assert write(client)["event"]["eventId"] == emulator.events()[0]["eventId"]
    assert time.monotonic() - began >= 0.05
    assert (emulator.calls[0].fault, emulator.calls[0].status) == ("slow", 201)


def test_half_an_answer_is_one_without_anything_to_botocore(start: Start):
    # botocore does not look at the length of a body, and takes JSON that it cannot read for an empty object.
    emulator, client = start("CreateEvent:truncated:nth=1", "ListEvents:truncated:nth=1")
    assert set(write(client)) == {"ResponseMetadata"}
    assert len(emulator.events()) == 1
    assert set(client.list_events(**PLACE)) == {"ResponseMetadata"}
    assert len(client.list_events(**PLACE)["events"]) == 1


@pytest.mark.parametrize(
    ("kind", "error"), [("reset_after", ConnectionClosedError), ("timeout_after", ReadTimeoutError), ("truncated", ClientError)]
)  # fmt: skip
def test_an_answer_that_is_an_error_is_lost_as_well(start: Start, kind: str, error: type[Exception]):
    emulator, client = start(f"GetEvent:{kind}:nth=1:delay=60")
    with pytest.raises(error) as caught:
        client.get_event(**PLACE, eventId="1#1")
    assert "Unable to find" not in str(caught.value)
    assert (emulator.calls[0].error, emulator.calls[0].committed) == ("ResourceNotFoundException", False)
    with pytest.raises(client.exceptions.ResourceNotFoundException, match="Unable to find event with id 1#1"):
        client.get_event(**PLACE, eventId="1#1")


def test_a_duplicate_is_two_events_of_one_request(start: Start):
    emulator, client = start("CreateEvent:duplicate:nth=1")
    event = write(client, clientToken="t")["event"]
    first, second = sorted(emulator.events(), key=lambda one: one["eventId"] == event["eventId"])
    assert second["eventId"] == event["eventId"] != first["eventId"]
    assert {**first, "eventId": ""} == {**second, "eventId": ""}
    again = write(client, clientToken="t")["event"]
    assert again["eventId"] == first["eventId"]
    assert len(emulator.events()) == 2


def sizes(client: Any, operation: str, **more: Any) -> list[int]:
    pages = client.get_paginator(operation).paginate(**more)
    name = {"list_events": "events", "list_sessions": "sessionSummaries", "list_actors": "actorSummaries"}[
        operation
    ]
    return [len(page[name]) for page in pages]


def test_a_token_is_answered_with_itself(start: Start):
    emulator, client = start("ListEvents:repeat_token:nth=2")
    for at in range(8):
        write(client, at)
    with pytest.raises(PaginationError, match="The same next token was received twice"):
        sizes(client, "list_events", **PLACE, maxResults=2)
    assert [call.fault for call in emulator.calls if call.operation == "ListEvents"] == [
        None,
        None,
        "repeat_token",
    ]


LISTS = {
    "list_events": PLACE,
    "list_sessions": {"memoryId": DEFAULT_MEMORY, "actorId": "actor"},
    "list_actors": {"memoryId": DEFAULT_MEMORY},
}


@pytest.mark.parametrize("operation", LISTS)
def test_a_list_has_a_page_too_many_or_loses_one(start: Start, operation: str):
    emulator, client = start()
    for number in range(4):
        place = {"actorId": f"a{number}"} if operation == "list_actors" else {}
        place |= {"sessionId": f"s{number}"} if operation == "list_sessions" else {}
        client.create_event(**{**PLACE, **place}, eventTimestamp=number, payload=[])
    asked = {**LISTS[operation], "maxResults": 2}
    assert sizes(client, operation, **asked) == [2, 2]
    emulator.fault("*:dropped_page:nth=1")
    assert sizes(client, operation, **asked) == [0, 2]
    emulator.fault("*:extra_page")
    assert sizes(client, operation, **asked) == [2, 2, 0]


def test_an_extra_page_is_empty_whatever_a_list_begins_with(start: Start):
    _, client = start("*:extra_page", order="oldest")
    write(client)
    assert sizes(client, "list_events", **PLACE) == [1, 0]


def test_a_page_misses_an_event(start: Start):
    _, client = start("ListEvents:dropped_event:nth=1")
    ids = {write(client, at)["event"]["eventId"] for at in range(4)}
    found = {event["eventId"] for event in client.list_events(**PLACE)["events"]}
    assert found < ids
    assert len(found) == 3
    assert len(client.list_events(**PLACE)["events"]) == 4


def test_every_kind_has_a_test():
    here = Path(__file__).read_text("utf-8")
    kinds = {kind.removesuffix("_before").removesuffix("_after") for kind in KINDS}
    assert [kind for kind in kinds if kind not in ERRORS and f":{kind}" not in here] == []
    assert {kind for kind in kinds if kind in ERRORS} == set(ERRORS)


RETRIED = {
    "throttle": 3,
    "error_500": 3,
    "error_502": 3,
    "error_503": 3,
    "error_504": 3,
    "conflict": 3,
    "reset_before": 3,
}
RETRIED |= {"quota_exceeded": 1, "access_denied": 1, "expired_token": 1}


@pytest.mark.parametrize("kind", RETRIED)
def test_botocore_tries_again_as_it_does_with_the_service(start: Start, kind: str):
    config = Config(retries={"mode": "standard", "total_max_attempts": 3})
    emulator, client = start(f"CreateEvent:{kind}", config=config)
    with pytest.raises((ClientError, ConnectionClosedError)):
        write(client)
    assert len(emulator.calls) == RETRIED[kind]
    assert len({call.params["clientToken"] for call in emulator.calls}) == 1


@pytest.mark.parametrize("kind", ["reset_after", "error_503_after", "throttle_after", "conflict_after"])
def test_what_botocore_tries_again_after_the_work_is_one_event(start: Start, kind: str):
    emulator, client = start(f"CreateEvent:{kind}:nth=1", config=Config())
    event = write(client)["event"]
    assert [call.replayed for call in emulator.calls] == [False, True]
    assert [one["eventId"] for one in emulator.events()] == [event["eventId"]]


def test_and_two_where_tokens_do_nothing(start: Start):
    emulator, client = start("CreateEvent:reset_after:nth=1", config=Config(), idempotency="ignored")
    write(client)
    assert len(emulator.events()) == 2


def fates(client: Any, number: int = 8) -> str:
    """`x` for each write that failed, `.` for each that did not."""
    found = ""
    for at in range(number):
        try:
            write(client, at)
            found += "."
        except ClientError:
            found += "x"
    return found


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        (["CreateEvent:throttle"], "xxxxxxxx"),
        (["*:throttle"], "xxxxxxxx"),
        (["ListEvents:throttle"], "........"),
        (["CreateEvent:throttle:nth=3"], "..x....."),
        (["CreateEvent:throttle:times=2"], "xx......"),
        (["CreateEvent:throttle:nth=3:times=2"], "..xx...."),
        (["CreateEvent:throttle:probability=1"], "xxxxxxxx"),
        (["CreateEvent:throttle:probability=1:nth=7:times=9"], "......xx"),
        (["CreateEvent:throttle:nth=2", "CreateEvent:conflict:nth=2"], ".xx....."),
        (["CreateEvent:throttle:nth=2", "CreateEvent:conflict:nth=4"], ".x.x...."),
    ],
)
def test_a_rule_befalls_the_calls_that_it_names(rules: list[str], wanted: str):
    with AgentCoreEmulator() as emulator:
        for rule in rules:
            emulator.fault(rule)
        assert fates(emulator.client(transport="memory", config=ONCE)) == wanted


def test_chances_depend_on_the_seed_and_on_nothing_else():
    def tried(seed: int) -> str:
        with AgentCoreEmulator(seed=seed) as emulator:
            emulator.fault("CreateEvent:throttle:probability=0.5")
            return fates(emulator.client(transport="memory", config=ONCE), 40)

    assert tried(1) == tried(1) != tried(2)
    assert 5 < tried(1).count("x") < 35


def test_a_rule_may_look_at_the_call():
    with AgentCoreEmulator() as emulator:
        emulator.fault(
            Fault(kind="throttle", nth=2, where=lambda call: call.params.get("eventTimestamp", 0) > 3)
        )
        assert fates(emulator.client(transport="memory", config=ONCE)) == ".....x.."


def test_rules_can_be_taken_back():
    with AgentCoreEmulator() as emulator:
        emulator.fault("*:throttle")
        emulator.clear_faults()
        assert fates(emulator.client(transport="memory", config=ONCE)) == "........"


def test_a_look_that_fails_is_an_error_of_the_emulator(start: Start, caplog: pytest.LogCaptureFixture):
    emulator, client = start()
    emulator.fault(Fault(kind="throttle", where=lambda call: call.params["nothing"]))
    with pytest.raises(client.exceptions.ServiceException, match="the emulator failed: KeyError: 'nothing'"):
        write(client)
    assert "KeyError" in caplog.text
    assert emulator.events() == []


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("", "write OPERATION:KIND and what restricts it"),
        ("throttle", "write OPERATION:KIND and what restricts it"),
        ("CreateEvent:", "write OPERATION:KIND"),
        ("CreateEvent:boom", "kind: 'boom' is no fault; there are reset_before,"),
        ("PutEvent:throttle", "operation: 'PutEvent' is not emulated; there are CreateEvent,"),
        ("ListEvents:conflict", "kind: conflict is a fault of CreateEvent, not of ListEvents"),
        ("GetEvent:dropped_page", "kind: dropped_page is a fault of ListEvents, ListSessions, ListActors, not of GetEvent"),
        ("*:throttle:third", "'third' is none of nth=…, times=…, probability=…, delay=…"),
        ("*:throttle:where=x", "'where=x' is none of nth=…"),
        ("*:throttle:nth=x", "nth must be a number, not 'x'"),
        ("*:throttle:nth=1.5", "nth must be a number, not '1.5'"),
        ("*:throttle:nth=0", "nth: 0 must be a whole number from 1"),
        ("*:throttle:times=-1", "times: -1 must be a whole number from 1"),
        ("*:throttle:nth=1:nth=2", "nth is there twice"),
        ("*:throttle:probability=0", "probability: 0.0 must be above 0 and at most 1"),
        ("*:throttle:probability=nan", "probability: nan must be above 0 and at most 1"),
        ("*:slow:delay=-1", "delay: -1.0 must be a number of seconds"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_told(rule: str, text: str):
    with AgentCoreEmulator() as emulator, pytest.raises(ConfigurationError, match=re.escape(text)) as caught:
        emulator.fault(rule)
    assert repr(rule) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_is_written_as_it_is_read(kind: str):
    rule = f"*:{kind}:nth=2:times=3:probability=0.5:delay=1.5"
    assert str(Fault.parse(rule)) == rule
    assert Fault.parse(f"*:{kind}") == Fault(kind=kind)
