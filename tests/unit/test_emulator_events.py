"""Events as the emulator of AgentCore Memory keeps them: ids, order, times, branches, filters, visibility, expiry, sessions and quotas."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("boto3")

from botocore.config import Config
from botocore.exceptions import ClientError

from littleghost import ConfigurationError
from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

DAY = 86_400
NOW = 1_767_225_600.0
PLACE = {"memoryId": DEFAULT_MEMORY, "actorId": "actor", "sessionId": "session"}


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def emulator() -> Iterator[AgentCoreEmulator]:
    with AgentCoreEmulator(clock=Clock()) as emulator:
        yield emulator


@pytest.fixture
def client(emulator: AgentCoreEmulator) -> Any:
    return emulator.client(transport="memory")


def write(client: Any, at: float = NOW, **more: Any) -> dict[str, Any]:
    return client.create_event(**{**PLACE, "eventTimestamp": at, "payload": [{"blob": "x"}], **more})["event"]


def listed(client: Any, **more: Any) -> list[str]:
    pages = client.get_paginator("list_events").paginate(**{**PLACE, "maxResults": 100, **more})
    return [event["eventId"] for page in pages for event in page["events"]]


@pytest.mark.parametrize(
    ("at", "milliseconds", "back"),
    [
        (1_767_225_600, 1_767_225_600_000, 1_767_225_600),
        (1_767_225_600.123, 1_767_225_600_123, 1_767_225_600.123),
        (1_767_225_600.999999, 1_767_225_600_999, 1_767_225_600.999),
        (0, 0, 0),
        (0.0015, 1, 0.001),
        (1.001, 1001, 1.001),  # times 1000 is 1000.9999999999999
        (datetime(2026, 1, 1, 0, 0, 1, 5000, tzinfo=UTC), 1_767_225_601_005, 1_767_225_601.005),
    ],
)
def test_an_event_id_is_the_milliseconds_of_its_timestamp(
    client: Any, at: Any, milliseconds: int, back: float
):
    event = write(client, at)
    assert re.fullmatch(rf"{milliseconds:019}#[0-9a-f]{{8}}", event["eventId"])
    assert event["eventTimestamp"] == datetime.fromtimestamp(back, UTC)


def test_timestamps_keep_their_milliseconds_whatever_floats_do(emulator: AgentCoreEmulator, client: Any):
    for millisecond in range(0, 1000, 7):
        event = write(client, 1_767_225_600 + millisecond / 1000)
        assert event["eventId"].startswith(f"{1_767_225_600_000 + millisecond:019}#")
    assert {event["eventTimestamp"] * 1000 % 1 for event in emulator.events()} == {0}


def test_lists_begin_with_the_newest_event_whenever_it_was_written(client: Any):
    ids = {at: write(client, at)["eventId"] for at in (5, 1, 9, 3)}
    assert listed(client) == [ids[at] for at in (9, 5, 3, 1)]


def test_lists_may_begin_with_the_oldest():
    with AgentCoreEmulator(order="oldest") as emulator:
        client = emulator.client(transport="memory")
        ids = {at: write(client, at)["eventId"] for at in (5, 1, 9, 3)}
        assert listed(client, maxResults=2) == [ids[at] for at in (1, 3, 5, 9)]


def test_ties_are_in_the_order_of_their_ids_and_not_of_their_writing(client: Any):
    written = [write(client)["eventId"] for _ in range(20)]
    assert listed(client) == sorted(written, reverse=True)
    assert listed(client) != written[::-1]


def test_ids_and_what_else_is_drawn_depend_on_the_seed():
    def drawn(seed: int) -> list[str]:
        with AgentCoreEmulator(seed=seed) as emulator:
            client = emulator.client(transport="memory")
            return [write(client)["eventId"] for _ in range(3)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_no_id_is_given_twice():
    with AgentCoreEmulator() as first, AgentCoreEmulator() as second:
        id = write(first.client(transport="memory"))["eventId"]
        second.put({**PLACE, "eventId": id})
        assert write(second.client(transport="memory"))["eventId"] != id
        assert len(second.events()) == 2


def test_an_event_is_answered_with_all_that_it_has(client: Any):
    item = {"conversational": {"role": "TOOL", "content": {"text": "42 °C"}}}
    metadata = {"kind": {"stringValue": "reading"}}
    event = write(
        client, payload=[item, {"blob": [1, {"z": 1, "a": 2}]}], metadata=metadata, extractionMode="SKIP"
    )
    wanted = {**PLACE, "eventId": event["eventId"], "eventTimestamp": datetime.fromtimestamp(NOW, UTC)}
    wanted |= {
        "payload": [item, {"blob": [1, {"z": 1, "a": 2}]}],
        "branch": {"name": "main"},
        "metadata": metadata,
    }
    assert event == wanted
    assert client.get_event(**PLACE, eventId=event["eventId"])["event"] == wanted
    assert client.list_events(**PLACE)["events"] == [wanted]
    assert client.list_events(**PLACE, includePayloads=True)["events"] == [wanted]
    del wanted["payload"]
    assert client.list_events(**PLACE, includePayloads=False)["events"] == [wanted]


def test_without_a_session_id_the_event_gets_a_session_of_its_own(client: Any):
    without = {name: value for name, value in PLACE.items() if name != "sessionId"}
    ids = {
        client.create_event(**without, eventTimestamp=NOW, payload=[])["event"]["sessionId"] for _ in range(3)
    }
    assert len(ids) == 3
    assert all(re.fullmatch(r"[0-9a-f]{8}-[0-9a-f-]{27}", id) for id in ids)


def test_a_deleted_event_is_gone(client: Any):
    gone, kept = write(client), write(client)
    assert client.delete_event(**PLACE, eventId=gone["eventId"])["eventId"] == gone["eventId"]
    assert listed(client) == [kept["eventId"]]
    for call in (client.get_event, client.delete_event):
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            call(**PLACE, eventId=gone["eventId"])


def test_sessions_and_actors_are_apart(client: Any):
    event = write(client)
    for other in ({"actorId": "other"}, {"sessionId": "other"}):
        assert client.list_events(**{**PLACE, **other})["events"] == []
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.get_event(**{**PLACE, **other}, eventId=event["eventId"])


def filtered(*expressions: Any, **more: Any) -> dict[str, Any]:
    texts = {"=": "EQUALS_TO", "+": "EXISTS", "-": "NOT_EXISTS"}
    return {
        "filter": {
            "eventMetadata": [
                {"left": {"metadataKey": key}, "operator": texts[operator]}
                | ({"right": {"metadataValue": {"stringValue": value[0]}}} if value else {})
                for operator, key, *value in expressions
            ],
            **more,
        }
    }


def test_metadata_filters_are_all_of_them_to_hold(client: Any):
    ids = {}
    for name, metadata in {
        "none": {},
        "a1": {"a": "1"},
        "a2": {"a": "2"},
        "a1b": {"a": "1", "b": ""},
    }.items():
        entries = {key: {"stringValue": value} for key, value in metadata.items()}
        ids[write(client, metadata=entries)["eventId"]] = name

    def found(*expressions: Any) -> set[str]:
        return {ids[id] for id in listed(client, **filtered(*expressions))}

    assert found("=a1") == {"a1", "a1b"}
    assert found("=a2") == {"a2"}
    assert found("=a3") == set()
    assert found(("=", "b", "")) == {"a1b"}
    assert found("+a") == {"a1", "a2", "a1b"}
    assert found("-a") == {"none"}
    assert found("+a", "-b") == {"a1", "a2"}
    assert found("=a1", "+b") == {"a1b"}
    assert len(listed(client, filter={})) == 4


def test_a_branch_is_listed_by_name_and_with_what_it_grew_from(client: Any):
    first = write(client, 1)["eventId"]
    second = write(client, 2)["eventId"]
    third = write(client, 3)["eventId"]
    side = write(client, 4, branch={"name": "side", "rootEventId": second})["eventId"]
    more = write(client, 5, branch={"name": "side"})["eventId"]
    twig = write(client, 6, branch={"name": "twig", "rootEventId": side})["eventId"]

    def found(name: str, **more: Any) -> list[str]:
        return listed(client, filter={"branch": {"name": name, **more}})

    assert found("main") == [third, second, first]
    assert found("side") == [more, side]
    assert found("side", includeParentBranches=False) == [more, side]
    assert found("side", includeParentBranches=True) == [more, side, second, first]
    assert found("twig", includeParentBranches=True) == [twig, side, second, first]
    assert found("main", includeParentBranches=True) == [third, second, first]
    assert found("unknown", includeParentBranches=True) == []
    assert listed(client) == [twig, more, side, third, second, first]


def test_branches_that_lead_in_a_circle_end(client: Any):
    first = write(client, 1, branch={"name": "a"})["eventId"]
    second = write(client, 2, branch={"name": "b", "rootEventId": first})["eventId"]
    write(client, 3, branch={"name": "a", "rootEventId": second})
    assert len(listed(client, filter={"branch": {"name": "b", "includeParentBranches": True}})) == 2


def test_a_branch_and_a_metadata_filter_both_hold(client: Any):
    mark = {"k": {"stringValue": "v"}}
    write(client, metadata=mark)
    wanted = write(client, metadata=mark, branch={"name": "side"})["eventId"]
    write(client, branch={"name": "side"})
    assert listed(client, **filtered("=kv", branch={"name": "side"})) == [wanted]


def test_what_was_just_written_is_seen_by_each_kind_of_read_in_its_own_time():
    with AgentCoreEmulator(clock=Clock(), lag=10, filtered_lag=20, get_lag=5) as emulator:
        client = emulator.client(transport="memory")
        id = write(client, metadata={"k": {"stringValue": "v"}})["eventId"]

        def seen() -> tuple[bool, bool, bool]:
            try:
                client.get_event(**PLACE, eventId=id)
                got = True
            except client.exceptions.ResourceNotFoundException:
                got = False
            return got, id in listed(client), id in listed(client, **filtered("+k"))

        assert seen() == (False, False, False)
        assert [event["eventId"] for event in emulator.events()] == [id]
        emulator.advance(5)
        assert seen() == (True, False, False)
        emulator.advance(5)
        assert seen() == (True, True, False)
        emulator.advance(10)
        assert seen() == (True, True, True)


def test_an_event_expires_by_the_retention_that_its_memory_had_when_it_was_written():
    ids = {"short_memory-abcdefghij": 7, "long_memory-abcdefghij": 30}
    with AgentCoreEmulator(ids, clock=Clock()) as emulator:
        client = emulator.client(transport="memory")
        assert emulator.memories == ids
        old, new = (write(client, at, memoryId="short_memory-abcdefghij")["eventId"] for at in (1, NOW))
        kept = write(client, memoryId="long_memory-abcdefghij")["eventId"]
        emulator.advance(DAY)
        late = write(client, memoryId="short_memory-abcdefghij")["eventId"]
        emulator.advance(6 * DAY - 1)
        assert set(listed(client, memoryId="short_memory-abcdefghij")) == {old, new, late}
        emulator.advance(1)
        assert listed(client, memoryId="short_memory-abcdefghij") == [late]
        with pytest.raises(client.exceptions.ResourceNotFoundException):
            client.get_event(**{**PLACE, "memoryId": "short_memory-abcdefghij"}, eventId=new)
        emulator.advance(DAY)
        assert listed(client, memoryId="short_memory-abcdefghij") == []
        assert listed(client, memoryId="long_memory-abcdefghij") == [kept]
        assert len(emulator.events()) == 1


def sessions(client: Any, **more: Any) -> list[str]:
    pages = client.get_paginator("list_sessions").paginate(memoryId=DEFAULT_MEMORY, actorId="actor", **more)
    return [one["sessionId"] for page in pages for one in page["sessionSummaries"]]


def actors(client: Any, **more: Any) -> list[str]:
    pages = client.get_paginator("list_actors").paginate(memoryId=DEFAULT_MEMORY, **more)
    return [one["actorId"] for page in pages for one in page["actorSummaries"]]


def test_sessions_are_there_with_their_events_and_a_day_longer(emulator: AgentCoreEmulator, client: Any):
    id = write(client)["eventId"]
    emulator.advance(100)
    write(client, sessionId="other")
    summary = client.list_sessions(memoryId=DEFAULT_MEMORY, actorId="actor")["sessionSummaries"]
    created = [datetime.fromtimestamp(NOW + ahead, UTC) for ahead in (100, 0)]
    names = ("sessionId", "actorId", "createdAt")
    assert [tuple(one[name] for name in names) for one in summary] == [
        ("other", "actor", created[0]),
        ("session", "actor", created[1]),
    ]
    client.delete_event(**PLACE, eventId=id)
    busy = {"filter": {"eventFilter": "HAS_EVENTS"}}
    assert (sessions(client), sessions(client, **busy)) == (["other", "session"], ["other"])
    emulator.advance(DAY - 1)
    assert sessions(client) == ["other", "session"]
    emulator.advance(1)
    assert sessions(client) == ["other"]
    write(client)
    assert client.list_sessions(memoryId=DEFAULT_MEMORY, actorId="actor")["sessionSummaries"][1][
        "createdAt"
    ] == datetime.fromtimestamp(NOW + 100 + DAY, UTC)
    assert actors(client) == ["actor"]
    emulator.advance(89 * DAY)
    assert (sessions(client), sessions(client, **busy)) == (["other", "session"], ["session"])
    emulator.advance(DAY)
    assert (sessions(client), sessions(client, **busy), actors(client)) == (["session"], [], ["actor"])
    emulator.advance(DAY)
    assert (sessions(client), actors(client)) == ([], [])


def test_a_session_that_is_written_to_after_it_was_gone_begins_anew(emulator: AgentCoreEmulator, client: Any):
    client.delete_event(**PLACE, eventId=write(client)["eventId"])
    emulator.advance(DAY)
    write(client)
    [summary] = client.list_sessions(memoryId=DEFAULT_MEMORY, actorId="actor")["sessionSummaries"]
    assert summary["createdAt"] == datetime.fromtimestamp(NOW + DAY, UTC)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_sessions_and_actors_come_in_pages(client: Any, size: int):
    for number in range(7):
        write(client, sessionId=f"s{number}")
        write(client, actorId=f"a{number}")
    assert sessions(client, PaginationConfig={"PageSize": size}) == [f"s{number}" for number in range(7)]
    assert actors(client, PaginationConfig={"PageSize": size}) == [
        *(f"a{number}" for number in range(7)),
        "actor",
    ]
    assert len(client.list_actors(memoryId=DEFAULT_MEMORY, maxResults=2)["actorSummaries"]) == 2


def test_a_page_has_twenty_entries_where_no_number_is_given(client: Any):
    for number in range(21):
        write(client, number)
        write(client, sessionId=f"s{number}", actorId="b")
        write(client, actorId=f"a{number}")
    assert len(client.list_events(**PLACE)["events"]) == 20
    assert len(client.list_sessions(memoryId=DEFAULT_MEMORY, actorId="b")["sessionSummaries"]) == 20
    assert len(client.list_actors(memoryId=DEFAULT_MEMORY)["actorSummaries"]) == 20


def test_any_memory_is_there_where_it_may_create_itself():
    with AgentCoreEmulator(auto_create=True) as emulator:
        client = emulator.client(transport="memory")
        write(client, memoryId="new_memory-0123456789")
        assert emulator.memories == {DEFAULT_MEMORY: 90, "new_memory-0123456789": 90}
        with pytest.raises(client.exceptions.ValidationException):
            write(client, memoryId="not a memory")


QUOTAS = {
    "CreateEvent": (lambda client, n: write(client, sessionId=f"s{n}"), 200),
    "CreateEvent.session": (lambda client, n: write(client), 10),
    "CreateEvent.conversational": (
        lambda client, n: write(client, payload=[{"blob": 1}, {"conversational": {"role": "USER", "content": {"text": "x"}}}]),
        5,
    ),
    "ListEvents": (lambda client, n: client.list_events(**{**PLACE, "sessionId": f"s{n}"}), 200),
    "ListEvents.session": (lambda client, n: client.list_events(**PLACE), 20),
    "GetEvent": (lambda client, n: get(client), 20),
    "DeleteEvent": (lambda client, n: get(client, f"s{n}", "delete_event"), 20),
    "DeleteEvent.session": (lambda client, n: get(client, "session", "delete_event"), 5),
    "ListSessions": (lambda client, n: client.list_sessions(memoryId=DEFAULT_MEMORY, actorId=f"a{n}"), 20),
    "ListActors": (lambda client, n: client.list_actors(memoryId=DEFAULT_MEMORY), 20),
}  # fmt: skip


def get(client: Any, session: str = "session", how: str = "get_event") -> None:
    try:
        getattr(client, how)(**{**PLACE, "sessionId": session}, eventId="1#1")
    except client.exceptions.ResourceNotFoundException:
        pass


@pytest.mark.parametrize("name", QUOTAS)
def test_the_documented_rates_are_kept_to(name: str):
    call, rate = QUOTAS[name]
    with AgentCoreEmulator(quotas=True, clock=Clock()) as emulator:
        client = emulator.client(transport="memory", config=Config(retries={"total_max_attempts": 1}))
        for number in range(rate):
            call(client, number)
        with pytest.raises(client.exceptions.ThrottledException) as caught:
            call(client, rate)
        assert caught.value.response["Error"]["Message"] == "Rate exceeded."
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
        emulator.advance(1 / rate)
        call(client, rate + 1)
        with pytest.raises(ClientError):
            call(client, rate + 2)
        emulator.advance(1000)  # what is not used is not saved up
        for number in range(rate):
            call(client, 1000 + number)
        with pytest.raises(ClientError):
            call(client, 3000)


def test_rates_may_be_ones_own():
    with AgentCoreEmulator(quotas={"CreateEvent.session": 0.25}, clock=Clock()) as emulator:
        client = emulator.client(transport="memory", config=Config(retries={"total_max_attempts": 1}))
        write(client)
        write(client, sessionId="other")
        for ahead in (0, 3.9):
            emulator.advance(ahead)
            with pytest.raises(client.exceptions.ThrottledException):
                write(client)
        emulator.advance(0.1)
        write(client)


def test_without_quotas_nothing_is_throttled(client: Any):
    for _ in range(30):
        write(client)
    assert len(listed(client)) == 30


def test_planted_events_are_as_they_are_and_seen_at_once():
    with AgentCoreEmulator(lag=100, filtered_lag=100, get_lag=100) as emulator:
        client = emulator.client(transport="memory")
        odd = {
            **PLACE,
            "eventId": "0001#00",
            "eventTimestamp": "soon",
            "payload": [{"blob": {"x": 1}}, {"odd": 1}],
            "more": None,
        }
        emulator.put(odd)
        assert emulator.events() == [odd]
        emulator.put({**PLACE, "memoryId": "new_memory-abcdefghij", "eventId": "0002#00"})
        assert listed(client, memoryId="new_memory-abcdefghij") == ["0002#00"]
        assert (
            client.get_event(**{**PLACE, "memoryId": "new_memory-abcdefghij"}, eventId="0002#00")["event"][
                "eventId"
            ]
            == "0002#00"
        )
        emulator.put({**odd, "payload": []})
        assert len(emulator.events()) == 2
        assert emulator.events(memory=DEFAULT_MEMORY)[0]["payload"] == []


def test_events_that_boto3_returned_can_be_planted(emulator: AgentCoreEmulator, client: Any):
    event = write(client, NOW + 0.125)
    before = emulator.events()
    with AgentCoreEmulator() as other:
        other.put(event)
        assert other.events() == before
        assert other.client(transport="memory").list_events(**PLACE)["events"] == [event]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({}, "memoryId of an event must be a text, not None"),
        ({**PLACE}, "eventId of an event must be a text, not None"),
        ({**PLACE, "eventId": 5}, "eventId of an event must be a text, not 5"),
        ({**PLACE, "eventId": "1#1", "payload": [b"x"]}, "event 1#1 is no JSON"),
        ({**PLACE, "eventId": "1#1", "payload": [float("nan")]}, "event 1#1 is no JSON"),
    ],
)
def test_what_is_no_event_cannot_be_planted(emulator: AgentCoreEmulator, event: Any, text: str):
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        emulator.put(event)
    assert emulator.events() == []


def test_what_is_stored_is_found_by_place(emulator: AgentCoreEmulator, client: Any):
    for session in ("a", "b"):
        for at in (2, 1):
            write(client, at, sessionId=session)
    assert [event["eventTimestamp"] for event in emulator.events(session="a")] == [1, 2]
    assert len(emulator.events(DEFAULT_MEMORY, "actor")) == 4
    assert emulator.events(DEFAULT_MEMORY, "nobody") == []
    assert json.dumps(emulator.events())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"memories": ["x"]}, "memories: 'x' is no memory id"),
        ({"memories": DEFAULT_MEMORY}, "memories: write ['demo_memory-abcdefghij'] for one memory"),
        ({"memories": {DEFAULT_MEMORY: 2}}, "must be 3 to 3650"),
        ({"memories": {DEFAULT_MEMORY: True}}, "must be 3 to 3650"),
        ({"memories": ["arn:aws:bedrock-agentcore:us-east-1:123456789012:memory/" + DEFAULT_MEMORY]}, "is no memory id"),
        ({"pagination": "ideal"}, "pagination: 'ideal' is none of scan, match"),
        ({"idempotency": "yes"}, "idempotency: 'yes' is none of honoured, expiring, per_caller, ignored"),
        ({"idempotency": "expiring"}, 'token_lifetime: it goes with idempotency="expiring"'),
        ({"token_lifetime": 5}, 'token_lifetime: it goes with idempotency="expiring"'),
        ({"idempotency": "expiring", "token_lifetime": 0}, "token_lifetime: 0 must be a number of seconds above 0"),
        ({"token_scope": "world"}, "token_scope: 'world' is none of memory, actor, session"),
        ({"replay": "last"}, "replay: 'last' is none of first, echo"),
        ({"mismatch": "raise"}, "mismatch: 'raise' is none of ignore, refuse"),
        ({"lag": -1}, "lag: -1 must be a number of seconds"),
        ({"filtered_lag": float("nan")}, "filtered_lag: nan must be"),
        ({"ties": "mixed"}, "ties: 'mixed' is none of stable, permuted"),
        ({"order": "random"}, "order: 'random' is none of newest, oldest"),
        ({"quotas": {"PutEvent": 1}}, "quotas: 'PutEvent' is none of CreateEvent,"),
        ({"quotas": {"CreateEvent": 0}}, "quotas: CreateEvent is 0; it must be a number above 0"),
        ({"text_limit": "words"}, "text_limit: 'words' is none of characters, bytes"),
        ({"event_size": "all"}, "event_size: 'all' is none of body, payload"),
        ({"host": "0.0.0.0"}, "host: '0.0.0.0' is no loopback address"),
        ({"host": "example.org"}, "host: 'example.org' is no loopback address"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_wrong_argument_is_named(arguments: dict[str, Any], text: str):
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        AgentCoreEmulator(**arguments)


def test_a_closed_emulator_says_so():
    emulator = AgentCoreEmulator()
    emulator.close()
    emulator.close()
    for use in (lambda: emulator.endpoint_url, lambda: emulator.client(transport="memory"), emulator.client):
        with pytest.raises(ConfigurationError, match="the emulator is closed"):
            use()
    assert emulator.calls == []
    with pytest.raises(ConfigurationError, match="transport: 'tcp' is none of http, memory"):
        AgentCoreEmulator().client(transport="tcp")
