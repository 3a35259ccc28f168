"""What a store asks AgentCore Memory for, how often, and what it does when a call fails or takes its time."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import agentcore
import pytest
from agentcore import ACTOR, append, operations, texts

from littleghost import (
    AgentCoreMemoryStore,
    ConfigurationError,
    ConflictError,
    CredentialError,
    LittleGhostError,
    Message,
    StoreUnavailableError,
)
from littleghost.emulators.agentcore import AgentCoreEmulator, Fault
from littleghost.sessions.agentcore.calls import ATTEMPTS
from littleghost.telemetry import operation


@pytest.fixture
def emulator():
    with AgentCoreEmulator() as emulator:
        yield emulator


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("littleghost.sessions.agentcore.calls.FIRST_PAUSE", 0.001)


def lists(emulator: AgentCoreEmulator) -> list[dict[str, Any]]:
    return [dict(call.params) for call in emulator.calls if call.operation == "ListEvents"]


# How many calls


async def test_an_append_to_what_is_known_is_two_lists_without_payloads_and_an_event_each(
    emulator: AgentCoreEmulator,
):
    store = agentcore.store(emulator)
    await append(store, "s", "one", count=0)
    for said, events in ((["two"], 1), ([], 0), ([f"{number}" for number in range(250)], 3)):
        emulator.reset_calls()
        await append(store, "s", *said, count=0 if said == ["one"] else _count(emulator))
        expected = ["ListEvents", *["CreateEvent"] * (events + 1), "ListEvents"]
        assert operations(emulator.calls) == expected
        assert all(call["includePayloads"] is False for call in lists(emulator))


def _count(emulator: AgentCoreEmulator) -> int:
    blobs = [item["blob"] for event in emulator.events() for item in event["payload"] if "blob" in item]
    return json.loads(blobs[-1].removeprefix("little_ghost:checkpoint:v5:"))["message_count"]


async def test_the_first_append_looks_once_more_whether_its_messages_are_there(emulator: AgentCoreEmulator):
    await append(agentcore.store(emulator), "s", "one", count=0)
    assert operations(emulator.calls) == ["ListEvents", "CreateEvent", "CreateEvent", *["ListEvents"] * 2]


async def test_a_load_reads_every_page_once_and_no_more_than_it_needs(emulator: AgentCoreEmulator):
    store = agentcore.store(emulator)
    for number in range(120):
        await append(store, "s", f"{number}", count=number)
    await store.replace("s", messages=[Message.user("x")], state={}, metadata={}, actor_id=ACTOR)
    for number in range(60):
        await append(store, "s", f"{number}", count=number + 1)
    emulator.reset_calls()
    assert len(await texts(agentcore.store(emulator), "s") or ()) == 61
    assert operations(emulator.calls) == ["ListEvents"] * 2
    tokens = [call.get("nextToken") for call in lists(emulator)]
    assert len(set(tokens)) == len(tokens)
    emulator.reset_calls()
    await agentcore.store(emulator).tail("s", limit=5, actor_id=ACTOR)
    assert len(emulator.calls) == 1


async def test_no_list_has_a_filter(emulator: AgentCoreEmulator):
    """A filtered list may miss events that exist."""
    store = agentcore.store(emulator)
    await append(store, "s", "one", count=0, commit_id="c")
    with pytest.raises(ConflictError):
        await append(agentcore.store(emulator), "s", "other", count=7, commit_id="d")
    await append(agentcore.store(emulator), "s", "one", count=0, commit_id="c")
    await store.fork("s", "t", actor_id=ACTOR)
    await store.tail("s", limit=1, actor_id=ACTOR)
    await store.delete("s", actor_id=ACTOR)
    assert all("filter" not in call for call in lists(emulator))
    assert {call.operation for call in emulator.calls} <= {
        "ListEvents",
        "CreateEvent",
        "GetEvent",
        "DeleteEvent",
    }


# What is repeated


AGAIN = (
    "throttle",
    "error_500",
    "error_502",
    "error_503",
    "error_504",
    "reset_before",
    "timeout_before",
    "reset_after",
    "timeout_after",
    "truncated",
    "throttle_after",
    "error_500_after",
)


@pytest.mark.parametrize("kind", [*AGAIN, "conflict", "conflict_after"])
async def test_what_may_pass_is_sent_again_with_the_same_token_and_not_for_ever(
    emulator: AgentCoreEmulator, kind: str
):
    emulator.fault(Fault(operation="CreateEvent", kind=kind))
    with pytest.raises(StoreUnavailableError) as caught:
        await append(agentcore.store(emulator), "s", "one", count=0)
    sent = [call.params["clientToken"] for call in emulator.calls if call.operation == "CreateEvent"]
    assert len(sent) == ATTEMPTS
    assert len(set(sent)) == 1
    assert "CreateEvent" in str(caught.value)
    assert "try again" in str(caught.value)
    emulator.clear_faults()
    assert await texts(agentcore.store(emulator), "s") is None, "messages alone are no commit"


@pytest.mark.parametrize("kind", AGAIN)
@pytest.mark.parametrize("method", ["ListEvents", "DeleteEvent"])
async def test_what_passes_in_time_is_not_noticed(emulator: AgentCoreEmulator, kind: str, method: str):
    store = agentcore.store(emulator)
    await append(store, "s", "one", count=0)
    emulator.fault(Fault(operation=method, kind=kind, nth=1, times=ATTEMPTS - 1))
    assert await agentcore.store(emulator).delete("s", actor_id=ACTOR) is True
    assert emulator.events() == []


# Credentials


def renewing(emulator: AgentCoreEmulator) -> tuple[list[Any], Callable[[], Any]]:
    made: list[Any] = []

    def make() -> Any:
        made.append(agentcore.patient(emulator, caller=f"key{len(made)}"))
        return made[-1]

    return made, make


def of_key(key: str) -> Callable[[Any], bool]:
    return lambda call: call.caller == key


async def test_expired_credentials_are_made_anew_once_and_the_call_is_repeated(emulator: AgentCoreEmulator):
    made, make = renewing(emulator)
    store = agentcore.store(emulator, client_factory=make)
    await append(store, "s", "one", count=0)
    emulator.fault(Fault(kind="expired_token", where=of_key("key0")))
    emulator.reset_calls()
    await append(store, "s", "two", count=1)
    assert len(made) == 2
    assert [call.error for call in emulator.calls].count("ExpiredTokenException") == 1
    assert await texts(store, "s") == ["one", "two"]


async def test_two_threads_whose_credentials_expire_at_once_make_them_anew_once(emulator: AgentCoreEmulator):
    made, make = renewing(emulator)
    store = agentcore.store(emulator, client_factory=make)
    for id in "ab":
        await append(store, id, "one", count=0)
    both = threading.Barrier(2, timeout=20)

    def expired(call: Any) -> bool:
        return call.caller == "key0"

    real = made[0].list_events

    def together(**params: Any) -> Any:
        both.wait()
        return real(**params)

    made[0].list_events = together
    emulator.fault(Fault(kind="expired_token", where=expired))
    found = await asyncio.gather(texts(store, "a"), texts(store, "b"))
    assert found == [["one"], ["one"]]
    assert len(made) == 2


async def test_credentials_that_expire_again_in_one_call_are_an_error(emulator: AgentCoreEmulator):
    made, make = renewing(emulator)
    store = agentcore.store(emulator, client_factory=make)
    await append(store, "s", "one", count=0)
    emulator.fault(Fault(kind="expired_token", operation="ListEvents"))
    emulator.reset_calls()
    with pytest.raises(CredentialError, match="credentials"):
        await texts(store, "s")
    assert len(emulator.calls) == 2
    assert len(made) == 2


async def test_a_client_that_was_given_is_not_replaced(emulator: AgentCoreEmulator):
    emulator.fault(Fault(kind="expired_token"))
    with pytest.raises(CredentialError, match="expired"):
        await texts(agentcore.store(emulator), "s")
    assert len(emulator.calls) == 1


async def test_a_factory_goes_on_after_a_client_that_was_given(emulator: AgentCoreEmulator):
    made, make = renewing(emulator)
    emulator.fault(Fault(kind="expired_token", where=of_key("emulator")))
    store = agentcore.store(emulator, client=agentcore.patient(emulator), client_factory=make)
    assert await texts(store, "s") is None
    assert len(made) == 1


# What cannot pass


@pytest.mark.parametrize(
    ("memory", "fault", "kind", "words"),
    [
        (agentcore.DEFAULT_MEMORY, "access_denied", CredentialError, ["credentials", "policy"]),
        (agentcore.DEFAULT_MEMORY, "quota_exceeded", StoreUnavailableError, ["quota"]),
        ("unknown_memory-abcdefghij", None, ConfigurationError, ["memory_id", "region"]),
        ("unknown_event-abcdefghij", None, ConfigurationError, ["memory_id", "region"]),
        ("not_an_id_of_one", None, ConfigurationError, ["memoryId"]),
    ],
)
async def test_what_cannot_pass_is_told_at_once_and_says_what_to_do(
    emulator: AgentCoreEmulator,
    memory: str,
    fault: str | None,
    kind: type[LittleGhostError],
    words: list[str],
):
    if fault is not None:
        emulator.fault(Fault(kind=fault))
    store = AgentCoreMemoryStore(memory, client=agentcore.patient(emulator))
    for work in (
        store.load("s", actor_id=ACTOR),
        append(store, "s", "x", count=0),
        store.delete("s", actor_id=ACTOR),
        store.tail("s", limit=1, actor_id=ACTOR),
        store.stored_sessions(actor_id=ACTOR),
    ):
        emulator.reset_calls()
        with pytest.raises(kind) as caught:
            await work
        assert all(word in str(caught.value) for word in words), caught.value
        assert len(emulator.calls) == 1


async def test_what_makes_the_client_may_say_itself_what_is_wrong(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> Any:
        raise CredentialError("log in first")

    store = AgentCoreMemoryStore(agentcore.DEFAULT_MEMORY, client_factory=refuse)
    with pytest.raises(CredentialError, match=r"^log in first$"):
        await store.load("s", actor_id=ACTOR)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    store = AgentCoreMemoryStore(agentcore.DEFAULT_MEMORY)
    with pytest.raises(ConfigurationError, match="region"):
        await store.load("s", actor_id=ACTOR)


# What else happens meanwhile


async def test_a_slow_call_does_not_keep_the_event_loop(emulator: AgentCoreEmulator):
    let_go = threading.Event()
    client = agentcore.Wrapped(agentcore.patient(emulator), before=lambda *_: _wait(let_go))
    store = agentcore.store(emulator, client=client)
    writing = asyncio.create_task(append(store, "s", "one", count=0))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not writing.done()
    let_go.set()
    await writing
    assert await texts(store, "s") == ["one"]


def _wait(event: threading.Event) -> None:
    assert event.wait(30)


async def test_calls_are_spans_with_their_repetitions_and_their_parent(emulator: AgentCoreEmulator):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    before = trace._TRACER_PROVIDER
    trace._TRACER_PROVIDER = provider
    try:
        _, make = renewing(emulator)
        store = agentcore.store(emulator, client_factory=make)
        emulator.fault("ListEvents:throttle:nth=1:times=2")
        emulator.fault("CreateEvent:expired_token:nth=1")
        with operation("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"):
            await append(store, "s", "secret words", count=0)
        emulator.fault("ListEvents:access_denied")
        with pytest.raises(CredentialError):
            await texts(store, "s")
    finally:
        trace._TRACER_PROVIDER = before
    spans = exporter.get_finished_spans()
    assert [span.name.rpartition(" ")[2] for span in spans[:3]] == [
        "ListEvents",
        "CreateEvent",
        "CreateEvent",
    ]
    assert [span.attributes["littleghost.retries"] for span in spans[:3]] == [2, 0, 0]
    assert [span.attributes["littleghost.credential_refreshes"] for span in spans[:3]] == [0, 1, 0]
    assert all(f"{span.parent.span_id:016x}" == "b7ad6b7169203331" for span in spans[:-1])
    assert f"{spans[0].context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert spans[-1].status.is_ok is False
    everything = " ".join(span.to_json() for span in spans)
    for word in ("secret", ACTOR + '"', AgentCoreMemoryStore.safe_id(ACTOR), agentcore.DEFAULT_MEMORY):
        assert word not in everything


async def test_a_refusal_that_was_cut_off_is_asked_for_again():
    """Its reason is in the part that did not arrive: without it, that the place is taken looks like a request that is not valid."""
    with AgentCoreEmulator(mismatch="refuse") as emulator:
        halting = agentcore.Halting(
            agentcore.patient(emulator), lambda _, params: agentcore.is_checkpoint(params)
        )
        first, second = agentcore.store(emulator), agentcore.store(emulator, client=halting.client)
        await append(first, "s", "one", count=0)
        late = asyncio.ensure_future(append(second, "s", "late", count=1))
        await asyncio.to_thread(halting.reached.wait, 60)
        await append(first, "s", "two", count=1)
        emulator.fault("CreateEvent:truncated:nth=1")
        halting.go_on.set()
        with pytest.raises(ConflictError):
            await late
        assert [call.fault for call in emulator.calls if call.fault] == ["truncated"]
        assert await texts(first, "s") == ["one", "two"]


# What leaves the process


async def test_ids_and_texts_are_in_payloads_alone_and_in_no_log_or_error(
    emulator: AgentCoreEmulator, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, "littleghost")
    actor, id, text = "actor-in-clear", "session-in-clear", "text-in-clear"
    store = agentcore.store(emulator)
    messages = [Message.user(text)]
    state = {"state-in-clear": 1}

    async def write(count: int) -> None:
        await store.append(
            id, messages=messages, state=state, metadata={}, expected_count=count, actor_id=actor
        )

    await write(0)
    await store.tail(id, limit=1, actor_id=actor)
    errors: list[str] = []
    for kind in ("access_denied", "error_500", "reset_after", "quota_exceeded", "truncated"):
        emulator.fault(Fault(kind=kind))
        for work in (write(1), store.load(id, actor_id=actor), store.delete(id, actor_id=actor)):
            with pytest.raises(LittleGhostError) as caught:
                await work
            errors.append(f"{caught.value!r} {vars(caught.value)}")
        emulator.clear_faults()
    for call in emulator.calls:
        shown = {name: value for name, value in call.params.items() if name != "payload"}
        for word in (actor, id, text, "state-in-clear"):
            assert word not in str(shown)
    for word in (actor, text, "state-in-clear"):
        assert word not in caplog.text
        assert word not in " ".join(errors)
