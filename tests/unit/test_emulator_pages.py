"""Pages of the emulator of AgentCore Memory: whatever happens between them, each event comes exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("boto3")

from littleghost.emulators.agentcore import DEFAULT_MEMORY, AgentCoreEmulator

PLACE = {"memoryId": DEFAULT_MEMORY, "actorId": "actor", "sessionId": "session"}
ODD = {
    "eventMetadata": [
        {
            "left": {"metadataKey": "odd"},
            "operator": "EQUALS_TO",
            "right": {"metadataValue": {"stringValue": "yes"}},
        }
    ]
}
MODES = {"pagination": ["scan", "match"], "order": ["newest", "oldest"], "ties": ["stable", "permuted"]}


def write(client: Any, at: float, *, odd: bool = False) -> str:
    metadata = {"odd": {"stringValue": "yes" if odd else "no"}}
    event = client.create_event(**PLACE, eventTimestamp=at, payload=[{"blob": at}], metadata=metadata)
    return event["event"]["eventId"]


def pages(client: Any, **more: Any) -> Iterator[dict[str, Any]]:
    while True:
        page = client.list_events(**PLACE, **more)
        yield page
        if "nextToken" not in page:
            return
        more["nextToken"] = page["nextToken"]


# What happens before a page: an event is written at some time, odd or not, or one that is there is deleted.
steps = st.lists(st.one_of(st.tuples(st.integers(0, 5), st.booleans()), st.floats(0, 0.999)), max_size=3)


@given(
    before=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=15),
    between=st.lists(steps, max_size=6),
    size=st.integers(1, 6),
    filtered=st.booleans(),
    modes=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in MODES.items()}),
)
def test_every_event_comes_exactly_once(
    before: list[Any], between: list[Any], size: int, filtered: bool, modes: dict[str, Any]
):
    with AgentCoreEmulator(**modes) as emulator:
        client = emulator.client(transport="memory")
        there = {write(client, at, odd=odd): odd for at, odd in before}
        deleted: set[str] = set()
        later: dict[str, bool] = {}
        seen: list[str] = []
        happening = iter(between)
        for page in pages(client, maxResults=size, **({"filter": ODD} if filtered else {})):
            ids = [event["eventId"] for event in page["events"]]
            assert len(ids) <= size
            assert not set(ids) & deleted
            seen += ids
            if modes["pagination"] == "match" and "nextToken" in page:
                assert len(ids) == size
            for step in next(happening, []):
                if isinstance(step, tuple):
                    later[write(client, step[0], odd=step[1])] = step[1]
                elif left := sorted(set(there) - deleted):
                    gone = left[int(step * len(left))]
                    client.delete_event(**PLACE, eventId=gone)
                    deleted.add(gone)
        assert len(seen) == len(set(seen))
        wanted = {id for id, odd in there.items() if odd or not filtered}
        assert (
            wanted - deleted <= set(seen) <= wanted | {id for id, odd in later.items() if odd or not filtered}
        )
        times = [id.partition("#")[0] for id in seen]
        assert times == sorted(times, reverse=modes["order"] == "newest")
        if modes["ties"] == "stable":
            assert seen == sorted(seen, reverse=modes["order"] == "newest")


def test_a_page_of_a_scan_looks_at_so_many_events_and_may_be_empty():
    with AgentCoreEmulator() as emulator:
        client = emulator.client(transport="memory")
        for at in range(6):
            write(client, at, odd=at in {0, 3})
        found = [len(page["events"]) for page in pages(client, maxResults=2, filter=ODD)]
        assert found == [0, 1, 1]
        assert [len(page["events"]) for page in pages(client, maxResults=1, filter=ODD)] == [0, 0, 1, 0, 0, 1]
        assert [len(page["events"]) for page in pages(client, maxResults=4)] == [4, 2]
        assert [len(page["events"]) for page in pages(client, maxResults=6)] == [6]


def test_a_page_of_matches_is_full_but_for_the_last():
    with AgentCoreEmulator(pagination="match") as emulator:
        client = emulator.client(transport="memory")
        for at in range(6):
            write(client, at, odd=at in {1, 3})
        assert [len(page["events"]) for page in pages(client, maxResults=2, filter=ODD)] == [2]
        assert [len(page["events"]) for page in pages(client, maxResults=1, filter=ODD)] == [1, 1]


@pytest.mark.parametrize("pagination", MODES["pagination"])
def test_what_a_list_cannot_see_yet_takes_no_room_in_a_page(pagination: Any):
    with AgentCoreEmulator(lag=10, pagination=pagination) as emulator:
        client = emulator.client(transport="memory")
        ids = [write(client, at) for at in (1, 2, 3)]
        emulator.advance(10)
        for at in (4, 5, 6):
            write(client, at)
        assert [event["eventId"] for event in client.list_events(**PLACE, maxResults=3)["events"]] == ids[
            ::-1
        ]
        assert "nextToken" not in client.list_events(**PLACE, maxResults=3)


def test_ties_are_mixed_anew_in_each_list_and_the_times_are_not():
    with AgentCoreEmulator(ties="permuted") as emulator:
        client = emulator.client(transport="memory")
        for at in (1, 2):
            for _ in range(6):
                write(client, at)

        def listed() -> tuple[str, ...]:
            return tuple(event["eventId"] for page in pages(client, maxResults=5) for event in page["events"])

        orders = {listed() for _ in range(8)}
        assert len(orders) > 4
        assert {len(set(order)) for order in orders} == {12}
        assert all(order[0][:19] > order[6][:19] and order[5][:19] > order[11][:19] for order in orders)


def token(client: Any, **more: Any) -> str:
    return client.list_events(**{**PLACE, **more}, maxResults=1)["nextToken"]


def test_a_token_is_bound_to_its_request_and_to_nothing_else():
    with AgentCoreEmulator([DEFAULT_MEMORY, "other_memory-abcdefghij"]) as emulator:
        client = emulator.client(transport="memory")
        ids = [write(client, at, odd=True) for at in (1, 2, 3)]
        plain = token(client)
        page = client.list_events(**PLACE, maxResults=100, includePayloads=False, nextToken=plain)
        assert [event["eventId"] for event in page["events"]] == [ids[1], ids[0]]
        calls = [
            lambda: client.list_events(**{**PLACE, "sessionId": "other"}, nextToken=plain),
            lambda: client.list_events(**{**PLACE, "actorId": "other"}, nextToken=plain),
            lambda: client.list_events(**{**PLACE, "memoryId": "other_memory-abcdefghij"}, nextToken=plain),
            lambda: client.list_events(**PLACE, filter=ODD, nextToken=plain),
            lambda: client.list_events(**PLACE, nextToken=token(client, filter=ODD)),
            lambda: client.list_events(**PLACE, nextToken=plain[:-4] + "AAAA"),
            lambda: client.list_sessions(memoryId=DEFAULT_MEMORY, actorId="actor", nextToken=plain),
            lambda: client.list_actors(memoryId=DEFAULT_MEMORY, nextToken=plain),
        ]
        for call in calls:
            with pytest.raises(client.exceptions.ValidationException, match="Invalid nextToken"):
                call()


def test_a_token_still_leads_on_where_its_event_is_gone_or_the_emulator_was_started_anew():
    with AgentCoreEmulator() as first:
        client = first.client(transport="memory")
        ids = [write(client, at) for at in (1, 2, 3)]
        plain = token(client)
        client.delete_event(**PLACE, eventId=ids[2])
        stored = first.events()
    with AgentCoreEmulator(seed=5) as second:
        second.put(*stored)
        page = second.client(transport="memory").list_events(**PLACE, nextToken=plain)
        assert [event["eventId"] for event in page["events"]] == [ids[1], ids[0]]
