"""What the emulator of AgentCore Memory accepts and refuses: every constraint of botocore's model, and in which words."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("boto3")

from botocore.config import Config
from botocore.exceptions import ClientError

from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

PLACE = {"memoryId": DEFAULT_MEMORY, "actorId": "actor", "sessionId": "session"}
EVENT = {**PLACE, "eventTimestamp": 1_767_225_600, "payload": [{"blob": "x"}]}
TEXT = {"conversational": {"role": "USER", "content": {"text": "hi"}}}


@pytest.fixture
def emulator() -> Iterator[AgentCoreEmulator]:
    with AgentCoreEmulator() as emulator:
        yield emulator


@pytest.fixture
def client(emulator: AgentCoreEmulator) -> Any:
    # What botocore itself would refuse is to reach the emulator.
    return emulator.client(transport="memory", config=Config(parameter_validation=False))


def refusal(call: Any, **params: Any) -> dict[str, Any]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    return caught.value.response


def said(text: str, role: str = "USER") -> dict[str, Any]:
    return {"conversational": {"role": role, "content": {"text": text}}}


PATTERN = "Member must satisfy regular expression pattern"
ENUM = "Member must satisfy enum value set"
ONE = "Member must have exactly one of these set"
KEYS = "Map keys must satisfy constraint"
SAID = "payload.1.member.conversational"
VARIABLES = "extractionConfig.namespaceVariables"


def most(number: int) -> str:
    return f"Member must have length less than or equal to {number}"


def least(number: int) -> str:
    return f"Member must have length greater than or equal to {number}"


BROKEN = [
    ({"actorId": "a" * 256}, "actorId", most(255)),
    ({"actorId": "-a"}, "actorId", f"{PATTERN}: [a-zA-Z0-9]"),
    ({"actorId": "a:"}, "actorId", PATTERN),
    ({"actorId": "a\n"}, "actorId", PATTERN),
    ({"actorId": None}, "actorId", "Member must not be null"),
    ({"sessionId": "a:b"}, "sessionId", f"{PATTERN}: [a-zA-Z0-9][a-zA-Z0-9-_]*"),
    ({"sessionId": "s" * 101}, "sessionId", most(100)),
    ({"payload": None}, "payload", "Member must not be null"),
    ({"payload": [TEXT] * 101}, "payload", most(100)),
    ({"payload": [TEXT, said("")]}, "payload.2.member.conversational.content.text", least(1)),
    ({"payload": [said("x" * 100_001)]}, f"{SAID}.content.text", most(100000)),
    ({"payload": [said("x", "SYSTEM")]}, f"{SAID}.role", f"{ENUM}: [ASSISTANT, USER, TOOL, OTHER]"),
    ({"payload": [{"conversational": {"content": {"text": "x"}}}]}, f"{SAID}.role", "Member must not be null"),
    ({"payload": [{"conversational": {"role": "USER", "content": {}}}]}, f"{SAID}.content", f"{ONE}: text"),
    ({"payload": [None]}, "payload.1.member", "Member must not be null"),
    ({"payload": [{}]}, "payload.1.member", f"{ONE}: conversational, blob, json"),
    ({"payload": [{"blob": None}]}, "payload.1.member", ONE),
    ({"payload": [{"blob": 1, **TEXT}]}, "payload.1.member", ONE),
    ({"payload": [{"json": {}}]}, "payload.1.member.json.content", "Member must not be null"),
    ({"payload": [{"json": {"content": {"a": "x" * 100_000}}}]}, "payload.1.member.json.content", "Member must have at most 100000 bytes"),
    ({"branch": {"name": "-"}}, "branch.name", PATTERN),
    ({"branch": {}}, "branch.name", "Member must not be null"),
    ({"branch": {"name": "b", "rootEventId": "12"}}, "branch.rootEventId", f"{PATTERN}: [0-9]+#[a-fA-F0-9]+"),
    ({"metadata": {f"k{n}": {"stringValue": "v"} for n in range(16)}}, "metadata", most(15)),
    ({"metadata": {"k" * 129: {"stringValue": "v"}}}, "metadata", f"{KEYS}: [{most(128)}"),
    ({"metadata": {"ä": {"stringValue": "v"}}}, "metadata", f"{KEYS}: [{PATTERN}"),
    ({"metadata": {"k": {"stringValue": "v" * 257}}}, "metadata.k.member.stringValue", most(256)),
    ({"metadata": {"k": {"stringValue": "a\u00a0b"}}}, "metadata.k.member.stringValue", PATTERN),
    ({"metadata": {"k": {}}}, "metadata.k.member", f"{ONE}: stringValue"),
    ({"metadata": {"k": None}}, "metadata.k.member", "Member must not be null"),
    ({"extractionMode": "NONE"}, "extractionMode", f"{ENUM}: [SKIP]"),
    ({"extractionConfig": {"namespaceVariables": {}}}, VARIABLES, least(1)),
    ({"extractionConfig": {"namespaceVariables": {"actorId": "x"}}}, VARIABLES, KEYS),
    ({"eventTimestamp": -1}, "eventTimestamp", "Member must be between 0 and"),
    ({"eventTimestamp": 1e15}, "eventTimestamp", "Member must be between 0 and"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "path", "text"), BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_constraint_is_named_as_the_service_names_it(
    emulator: AgentCoreEmulator, change: dict[str, Any], path: str, text: str
):
    params = {key: value for key, value in {**EVENT, **change}.items() if key != "memoryId"}
    status, headers, body = post(emulator, f"/memories/{DEFAULT_MEMORY}/events", json.dumps(params).encode())
    found = (status, headers["x-amzn-ErrorType"], body["reason"])
    assert found == (400, "ValidationException", "FieldValidationFailed")
    assert f"at '{path}' failed to satisfy constraint: {text}" in body["message"]
    assert [field["name"] for field in body["fieldList"]] == [path]
    assert body["fieldList"][0]["message"].startswith(text)
    assert emulator.events() == []


def post(
    emulator: AgentCoreEmulator, path: str, body: bytes, method: str = "POST", **headers: str
) -> tuple[int, http.client.HTTPMessage, Any]:
    host = emulator.endpoint_url.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        raw = answer.read()
        return answer.status, answer.headers, json.loads(raw)
    finally:
        connection.close()


def test_what_is_just_within_the_limits_is_taken(client: Any):
    client.create_event(
        memoryId=DEFAULT_MEMORY,
        actorId="a" * 255,
        sessionId="s" * 100,
        eventTimestamp=0,
        payload=[said("漢" * 100_000), *[TEXT] * 99],
        metadata={f"{n:0128}": {"stringValue": "v" * 256} for n in range(15)},
        branch={"name": "b" * 100},
        extractionMode="SKIP",
    )
    client.create_event(**{**EVENT, "payload": []})
    client.create_event(**{**EVENT, "actorId": "a/b-_:c/:d", "metadata": {" \t": {"stringValue": ""}}})
    client.create_event(**{**EVENT, "payload": [{"json": {"content": {"a": "x" * 99_992}}}]})


def test_all_that_is_wrong_is_told_at_once(client: Any):
    answer = refusal(client.create_event, **{**EVENT, "actorId": "-", "sessionId": "a:b"})
    assert answer["message"].startswith("2 validation errors detected: Value at 'actorId' failed")
    assert "; Value at 'sessionId' failed to satisfy constraint: Member must satisfy" in answer["message"]
    assert [field["name"] for field in answer["fieldList"]] == ["actorId", "sessionId"]


FAILED = "failed to satisfy constraint:"
KEY = {"metadataKey": "k"}
VALUE = {"metadataValue": {"stringValue": "v"}}


def where(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"filter": {"eventMetadata": list(expressions)}}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"maxResults": 101}, f"Value '101' at 'maxResults' {FAILED} Member must have value less than or equal to 100"),
        ({"maxResults": 0}, f"Value '0' at 'maxResults' {FAILED} Member must have value greater than or equal to 1"),
        (where(), f"'filter.eventMetadata' {FAILED} {least(1)}"),
        (where(*[{"left": KEY, "operator": "EXISTS"}] * 6), f"'filter.eventMetadata' {FAILED} {most(5)}"),
        (where({"left": KEY, "operator": "LIKE"}), f"{ENUM}: [EQUALS_TO, EXISTS, NOT_EXISTS]"),
        (where({"left": KEY, "operator": "EQUALS_TO"}), "'filter.eventMetadata.1.member.right'"),
        (where({"left": KEY, "operator": "EXISTS", "right": VALUE}), "Member must be null for operator EXISTS"),
        ({"nextToken": "made up"}, "Invalid nextToken"),
        ({"nextToken": "AAAAAAAAAAAAAAAAAAAA"}, "Invalid nextToken"),
    ],
)  # fmt: skip
def test_lists_check_what_they_are_asked(client: Any, change: dict[str, Any], text: str):
    answer = refusal(client.list_events, **PLACE, **change)
    assert answer["Error"]["Code"] == "ValidationException"
    assert text in answer["message"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff{}", "the body is not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"payload":[{"blob":NaN}]}', "NaN is no JSON number"),
        (b'{"actorId":5}', "'actorId' cannot be parsed: it must be a string"),
        (b'{"actorId":"a","eventTimestamp":true,"payload":[]}', "'eventTimestamp' cannot be parsed"),
        (b'{"actorId":"a","eventTimestamp":"now","payload":[]}', "'eventTimestamp' cannot be parsed"),
        (b'{"actorId":"a","eventTimestamp":1,"payload":{}}', "'payload' cannot be parsed: it must be a list"),
        (b'{"actorId":"a","eventTimestamp":1,"payload":[5]}', "'payload.1.member' cannot be parsed: it must be an object"),
        (b'{"actorId":"a","eventTimestamp":1,"payload":[],"metadata":[]}', "'metadata' cannot be parsed: it must be an object"),
        (b'{"actorId":"a","eventTimestamp":1,"payload":[],"colour":"red"}', "'colour' is not known; there are memoryId"),
        (b'{"actorId":"a","eventTimestamp":1,"payload":[{"video":1}]}', "'payload.1.member.video' is not known"),
        (b'{"actorId":"a","eventTimestamp":1,"payload":[{"blob":"\\ud800"}]}', "surrogates not allowed"),
        (b'{"actorId":"a","eventTimestamp":1,"payload":[],"\\ud800":1}', "is not known"),
        (b'{"actorId":"a","eventTimestamp":1,"payload":[{"blob":1e999}]}', "cannot be kept as JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"actorId":"a","eventTimestamp":' + b"9" * 5000 + b',"payload":[]}', "the body is not JSON"),
    ],
    ids=range(17),
)  # fmt: skip
def test_what_is_no_request_cannot_be_parsed(emulator: AgentCoreEmulator, body: bytes, text: str):
    status, headers, answer = post(emulator, f"/memories/{DEFAULT_MEMORY}/events", body)
    assert (status, headers["x-amzn-ErrorType"], answer["reason"]) == (
        400,
        "ValidationException",
        "CannotParse",
    )
    assert text in answer["message"]
    assert emulator.events() == []


def test_an_empty_body_is_an_empty_request(emulator: AgentCoreEmulator):
    path = f"/memories/{DEFAULT_MEMORY}/actors"
    assert post(emulator, path, b"")[2] == post(emulator, path, b"{}")[2] == {"actorSummaries": []}


def test_a_list_takes_a_boolean_for_a_boolean_alone(emulator: AgentCoreEmulator):
    path = f"/memories/{DEFAULT_MEMORY}/actor/a/sessions/s"
    assert (
        "'includePayloads' cannot be parsed" in post(emulator, path, b'{"includePayloads":1}')[2]["message"]
    )
    assert "'maxResults' cannot be parsed" in post(emulator, path, b'{"maxResults":true}')[2]["message"]


@pytest.mark.parametrize(
    "id",
    [
        "short",
        "nodash_0123456",
        "1name-abcdefghij",
        "name-abcdefghi",
        "name-abcdefghij0",
        "x" * 101 + "-abcdefghij",
        "arn:aws:s3:::a-abcdefghij",
    ],
)
def test_a_malformed_memory_id_is_no_missing_memory(client: Any, id: str):
    answer = refusal(client.list_events, **{**PLACE, "memoryId": id})
    assert answer["Error"]["Code"] == "ValidationException"
    assert answer["message"] == "Invalid memoryId: not a valid memory ID or ARN"
    assert answer["reason"] == "FieldValidationFailed"
    assert answer["fieldList"][0]["name"] == "memoryId"


def test_what_is_not_there_is_told_apart(client: Any):
    other = {**PLACE, "memoryId": "other_memory-abcdefghij"}
    answer = refusal(client.list_events, **other)
    assert answer["Error"] == {
        "Code": "ResourceNotFoundException",
        "Message": "Memory not found: other_memory-abcdefghij",
    }
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 404
    assert client.list_events(**PLACE)["events"] == []
    assert client.list_sessions(memoryId=DEFAULT_MEMORY, actorId="actor")["sessionSummaries"] == []
    for call in (client.get_event, client.delete_event):
        answer = refusal(call, **PLACE, eventId="0001#ab")
        assert answer["Error"] == {
            "Code": "ResourceNotFoundException",
            "Message": "Unable to find event with id 0001#ab",
        }
    answer = refusal(client.get_event, **PLACE, eventId="0001")
    assert answer["Error"]["Code"] == "ValidationException"


def test_a_memory_is_also_known_by_its_arn(client: Any, emulator: AgentCoreEmulator):
    arn = f"arn:aws:bedrock-agentcore:us-east-1:123456789012:memory/{DEFAULT_MEMORY}"
    event = client.create_event(**{**EVENT, "memoryId": arn})["event"]
    assert event["memoryId"] == DEFAULT_MEMORY
    assert len(client.list_events(**PLACE)["events"]) == 1
    assert emulator.calls[0].params["memoryId"] == arn


def test_the_path_is_split_before_it_is_decoded(client: Any, emulator: AgentCoreEmulator):
    event = client.create_event(**{**EVENT, "actorId": "a/sessions/b:c"})["event"]
    place = {**PLACE, "actorId": "a/sessions/b:c"}
    assert client.get_event(**place, eventId=event["eventId"])["event"]["actorId"] == "a/sessions/b:c"
    assert len(client.list_events(**place)["events"]) == 1
    assert emulator.calls[-1].params["actorId"] == "a/sessions/b:c"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/"),
        ("GET", "/memories/x/events"),
        ("POST", "/memories/x/events/"),
        ("PUT", "/memories/x/events"),
        ("POST", "/memories/x/retrieve"),
    ],
)
def test_other_paths_are_no_operations(emulator: AgentCoreEmulator, method: str, path: str):
    status, headers, answer = post(emulator, path, b"{}", method)
    assert (status, headers["x-amzn-ErrorType"]) == (404, "UnknownOperationException")
    assert "CreateEvent, GetEvent" in answer["message"]


def test_an_operation_that_is_not_emulated_says_so(client: Any):
    answer = refusal(
        client.retrieve_memory_records,
        memoryId=DEFAULT_MEMORY,
        namespace="/",
        searchCriteria={"searchQuery": "x"},
    )
    assert answer["Error"]["Code"] == "UnknownOperationException"
    assert "none of the operations emulated" in answer["Error"]["Message"]


def test_statuses_and_headers_are_those_of_the_service(emulator: AgentCoreEmulator, client: Any):
    answer = client.create_event(**EVENT)
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 201
    id = answer["event"]["eventId"]
    assert re.fullmatch(r"[0-9a-f-]{36}", answer["ResponseMetadata"]["RequestId"])
    assert emulator.calls[0].request_id == answer["ResponseMetadata"]["RequestId"]
    assert client.get_event(**PLACE, eventId=id)["ResponseMetadata"]["HTTPStatusCode"] == 200
    deleted = client.delete_event(**PLACE, eventId=id)
    assert (deleted["ResponseMetadata"]["HTTPStatusCode"], deleted["eventId"]) == (200, id)
    status, headers, _ = post(emulator, f"/memories/{DEFAULT_MEMORY}/actors", b"")
    assert (status, headers["Content-Type"]) == (200, "application/json")


def test_calls_are_recorded(emulator: AgentCoreEmulator, client: Any):
    client.create_event(**EVENT, clientToken="t")
    refusal(client.get_event, **PLACE, eventId="1#2")
    first, second = emulator.calls
    assert (first.operation, first.status, first.error, first.committed, first.caller) == (
        "CreateEvent",
        201,
        None,
        True,
        "emulator",
    )
    assert first.params == {**EVENT, "clientToken": "t"}
    assert first.event_id == emulator.events()[0]["eventId"]
    assert (second.operation, second.status, second.error) == ("GetEvent", 404, "ResourceNotFoundException")
    assert (second.committed, second.message) == (False, "Unable to find event with id 1#2")
    emulator.reset_calls()
    assert emulator.calls == []


def test_calls_can_be_watched_and_left_unrecorded():
    seen: list[str] = []
    with AgentCoreEmulator(record=False, on_call=lambda call: seen.append(call.operation)) as emulator:
        emulator.client(transport="memory").create_event(**EVENT)
        assert seen == ["CreateEvent"]
        assert emulator.calls == []


def test_a_text_may_be_counted_in_bytes():
    with AgentCoreEmulator(text_limit="bytes") as emulator:
        client = emulator.client(transport="memory")
        client.create_event(**{**EVENT, "payload": [said("漢" * 33_333)]})
        answer = refusal(client.create_event, **{**EVENT, "payload": [said("漢" * 33_334)]})
        assert "Member must have length less than or equal to 100000" in answer["message"]
        client.create_event(**{**EVENT, "payload": [{"blob": "漢" * 50_000}]})


@pytest.mark.parametrize(("size", "chars"), [("body", 166), ("payload", 333)])
def test_an_event_is_measured_as_its_body_or_as_its_payload(size: Any, chars: int):
    with AgentCoreEmulator(event_limit=1_200, event_size=size) as emulator:
        client = emulator.client(transport="memory")
        client.create_event(**{**EVENT, "payload": [{"blob": "漢" * chars}]}, clientToken="t")
        answer = refusal(
            client.create_event, **{**EVENT, "payload": [{"blob": "漢" * (chars + 64)}]}, clientToken="u"
        )
        assert answer["message"] == "The event is larger than 1200 bytes"


def test_ten_mebibytes_are_the_limit_of_an_event(client: Any):
    answer = refusal(client.create_event, **{**EVENT, "payload": [{"blob": "x" * 10_485_760}]})
    assert answer["message"] == "The event is larger than 10485760 bytes"
    client.create_event(**{**EVENT, "payload": [{"blob": "x" * 10_485_000}]})


@pytest.mark.parametrize(
    "document",
    ["", "text", 0, 1.5, -1e-7, 10**30, False, [], {}, [None, {"b": 1, "a": [None]}], {"\u2028": "𝄞\0"}],
)
def test_documents_come_back_as_they_went(client: Any, document: Any):
    client.create_event(**{**EVENT, "payload": [{"blob": document}, {"json": {"content": document}}]})
    first, second = client.list_events(**PLACE)["events"][0]["payload"]
    for back in (first["blob"], second["json"]["content"]):
        assert json.dumps(back) == json.dumps(document)  # also of its type, and in its order
