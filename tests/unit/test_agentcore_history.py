"""What the newest pages of a list tell is what the whole list tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from littleghost import CorruptSessionError, Message
from littleghost.sessions.agentcore import limits
from littleghost.sessions.agentcore.checkpoints import Stored
from littleghost.sessions.agentcore.history import Head, History
from littleghost.sessions.agentcore.planning import plan

START = 1_767_225_600


class Session:
    """The events of one session, as the service would keep them, and who writes them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.number = 0

    def fresh(self) -> str:
        self.number += 1
        return f"{self.number * 7919 % 1000:03d}-{self.number}"

    def keep(self, request: dict[str, Any], suffix: int | None = None) -> dict[str, Any]:
        stamp = int(request["eventTimestamp"].timestamp() * 1000)
        tail = len(self.events) * 48271 % 65521 if suffix is None else suffix
        kept = {
            "eventId": f"{stamp:019d}#{tail:08x}",
            "eventTimestamp": request["eventTimestamp"],
            "payload": request["payload"],
            "metadata": request["metadata"],
        }
        self.events.append(kept)
        return kept

    def listed(self) -> list[dict[str, Any]]:
        return sorted(self.events, key=lambda event: event["eventId"], reverse=True)

    def history(self) -> History:
        return whole(self.listed())

    def write(
        self,
        count: int = 1,
        kind: Any = "append",
        *,
        head: Head | str | None = "latest",
        now: float = START,
        whole: bool = True,
        state: Any = None,
        commit_id: str | None = None,
        generation: str | None = None,
        migrate: Sequence[Message] | None = None,
    ) -> str:
        """Write a commit after `head`, without its checkpoint where it is not to be whole; return its id."""
        found = self.history().head if head == "latest" else head
        assert not isinstance(found, str)
        identifier = commit_id or self.fresh()
        messages = [Message.user(f"{identifier}/{index}") for index in range(count)]
        planned = plan(
            kind,
            messages,
            state or {"by": identifier},
            {},
            head=found,
            migrate=migrate,
            commit_id=identifier,
            generation=generation or f"g{self.fresh()}",
            now=now,
        )
        for request in planned.requests if whole else planned.requests[:-1]:
            self.keep(request)
        return identifier


def whole(listed: Sequence[dict[str, Any]]) -> History:
    history = History()
    history.add(listed, last=True)
    return history


def paged(listed: Sequence[dict[str, Any]], size: int, start: int | None) -> tuple[History, int]:
    """Read until it is settled; return the history and how many events were read."""
    history = History()
    for first in range(0, max(1, len(listed)), size):
        history.add(listed[first : first + size], last=first + size >= len(listed))
        if history.settled(start):
            return history, min(first + size, len(listed))
    raise AssertionError("the whole list settles everything")


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except CorruptSessionError as error:
        return error


def summary(head: Head | None) -> Any:
    return None if head is None else (head.checkpoint.commit_id, head.checkpoint.state)


# --- what is assumed, said again and in another way -------------------------------------------------------------------


def assumptions_hold(listed: Sequence[dict[str, Any]]) -> bool:
    every = whole(listed).checkpoints()
    known = {stored.commit_id: stored for stored in every}
    for stored in every:
        parent = known.get(stored.parent_commit_id or "")
        if parent is None:
            continue
        if stored.timestamp <= parent.timestamp:
            return False
        if any(
            other.event_id <= parent.event_id and other.rank > parent.rank
            for other in every
            if other is not parent
        ):
            return False
    return True


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["append"] * 6 + ["replace", "re-root"]),
            "count": st.sampled_from([0, 1, 1, 1, 2, 5]),
            "whole": st.sampled_from([True] * 6 + [False]),
            "stale": st.sampled_from([0] * 6 + [1, 2]),  # how many commits the writer has missed
            "clock": st.integers(-4, 6),
            "foreign": st.sampled_from([False] * 5 + [True]),
        }
    ),
    min_size=1,
    max_size=14,
)


def played(steps: list[dict[str, Any]]) -> Session:
    session = Session()
    heads: list[tuple[Head | None, list[Message]]] = [(None, [])]
    now = float(START)
    for step in steps:
        now += max(0, step["clock"])
        head, carried = heads[max(0, len(heads) - 1 - step["stale"])]
        re_root = step["kind"] == "re-root" and head is not None
        session.write(
            step["count"],
            "replace" if step["kind"] == "replace" else "append",
            head=head,
            now=now + min(0, step["clock"]),
            whole=step["whole"],
            migrate=carried if re_root else None,
        )
        if step["foreign"]:
            session.keep(
                {
                    "eventTimestamp": datetime.fromtimestamp(int(now), UTC),
                    "payload": [{"blob": {"of": "somebody else"}}],
                    "metadata": {"stateType": {"stringValue": "SESSION"}},
                }
            )
        history = session.history()
        heads.append((history.head, list(history.messages())))
    return session


@settings(max_examples=300)
@given(
    steps=STEPS,
    size=st.sampled_from([1, 2, 3, 7, 100]),
    start=st.none() | st.integers(0, 8),
    expired=st.sampled_from([0] * 3 + [1, 2, 5]),
)
def test_what_is_settled_stays_as_it_is_when_all_is_read(
    steps: list[dict[str, Any]], size: int, start: int | None, expired: int
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_ITEMS", 2)
        session = played(steps)
        before = session.listed()
        assume(assumptions_hold(before))
        listed = before[: len(before) - expired]
        complete = whole(listed)
        partial, read = paged(listed, size, start)
        event("stopped early" if read < len(listed) else "read all")
        head = outcome(lambda: summary(complete.head))
        if expired and (isinstance(head, Exception) or head != summary(whole(before).head)):
            # Whether what is behind the head has expired is only known when all of it was wanted.
            if start == 0:
                assert type(outcome(lambda: summary(partial.head))) is type(head)
                assert isinstance(head, Exception) or summary(partial.head) == head
            return
        assert summary(partial.head) == head
        if start is not None:
            wanted = outcome(lambda: texts(complete.messages(start)))
            found = outcome(lambda: texts(partial.messages(start)))
            assert isinstance(found, Exception) if isinstance(wanted, Exception) else found == wanted
        if start == 0 and complete.head is not None and partial.head is not None:
            assert partial.head == complete.head
            assert partial.head.root is not None


@settings(max_examples=150)
@given(steps=STEPS, random=st.randoms(use_true_random=False), size=st.sampled_from([1, 3, 100]))
def test_the_order_of_the_list_does_not_matter_when_all_is_read(
    steps: list[dict[str, Any]], random: Any, size: int
):
    session = played(steps)
    complete = session.history()
    shuffled = list(session.events)
    random.shuffle(shuffled)
    again = whole(shuffled)
    assert again.head == complete.head
    assert again.messages() == complete.messages()
    if shuffled != session.listed() and len(shuffled) > 1:
        ordered = sorted(shuffled, key=lambda event: event["eventId"], reverse=True)
        before = next(i for i, (a, b) in enumerate(zip(shuffled, ordered, strict=True)) if a is not b)
        if size == 1 and before == 0:
            # The first event is out of its place, so nothing is known before the last one that should precede it.
            _, read = paged(shuffled, size, 0)
            assert read > shuffled.index(ordered[0])


@settings(max_examples=100)
@given(steps=STEPS, data=st.data())
def test_what_was_stored_twice_says_nothing_new(steps: list[dict[str, Any]], data: st.DataObject):
    session = played(steps)
    assume(session.events)
    complete = session.history()
    twice = data.draw(st.lists(st.sampled_from(session.events), min_size=1, max_size=4))
    for number, original in enumerate(twice):
        repeated = {
            "eventTimestamp": original["eventTimestamp"],
            "payload": json.loads(json.dumps(original["payload"])),
            "metadata": original["metadata"],
        }
        session.keep(repeated, suffix=0xFF000000 + number)
    again = session.history()
    assert summary(again.head) == summary(complete.head)
    assert again.messages() == complete.messages()


# --- what ends the reading ---------------------------------------------------------------------------------------------


def long(commits: int, count: int = 1) -> Session:
    session = Session()
    head = None
    for _ in range(commits):
        session.write(count, head=head)
        newest = session.listed()[:1]
        head = Head(checkpoint=whole(newest).newest or pytest.fail("no checkpoint"))
    return session


def test_the_head_of_a_long_session_is_known_from_its_newest_events():
    session = long(40)
    history, read = paged(session.listed(), 1, None)
    assert read == 3  # a checkpoint, its message, and the checkpoint before
    assert history.head == Head(checkpoint=history.head.checkpoint)  # type: ignore[union-attr]
    assert summary(history.head) == summary(session.history().head)


def test_the_last_messages_are_known_without_the_others():
    session = long(40)
    history, read = paged(session.listed(), 1, 37)
    assert read == 7
    assert history.messages(37) == session.history().messages(37)
    assert history.messages(38, 39) == session.history().messages()[38:39]
    assert history.messages(40) == ()
    with pytest.raises(ValueError, match="not settled"):
        history.messages(30)


def test_what_is_before_a_replace_is_not_read_but_for_the_commit_it_replaced():
    session = long(20)
    session.write(2, "replace")
    session.write(1)
    history, read = paged(session.listed(), 1, 0)
    assert read == 5
    assert texts(history.messages()) == texts(session.history().messages())
    assert len(history.messages()) == 3
    head = history.head
    assert head is not None
    assert head.root is not None
    assert (head.lineage_commits, head.root.revision, head.checkpoint.revision) == (2, 21, 22)
    assert head.lineage_bytes == head.root.size + head.checkpoint.size


def test_of_two_that_replaced_the_same_the_right_one_is_read_although_the_other_went_on():
    session = Session()
    session.write(1)
    session.write(1)
    base = session.history().head
    session.write(2, "replace", head=base, generation="b", commit_id="winner", now=START + 10)
    session.write(0, "replace", head=base, generation="a", commit_id="loser", now=START + 20)
    lost = whole([session.events[-1]]).newest
    assert lost is not None
    session.write(1, head=Head(checkpoint=lost), now=START + 30)
    history, _ = paged(session.listed(), 1, 0)
    assert texts(history.messages()) == ["winner/0", "winner/1"]


def test_a_message_that_is_stamped_earlier_than_it_should_be_is_waited_for():
    session = long(6)
    message = session.listed()[1]
    message["eventTimestamp"] = datetime.fromtimestamp(START + 1, UTC)
    message["eventId"] = f"{(START + 1) * 1000:019d}#00000000"
    history, read = paged(session.listed(), 1, 5)
    assert read == len(session.events) - 1
    assert len(history.messages(5)) == 1


def test_the_first_generation_of_a_session_is_known_at_the_end_of_the_list_only():
    session = Session()
    session.write(1)
    listed = session.listed()
    history = History()
    history.add(listed)
    assert not history.settled(0)
    assert not history.settled()
    history.add([], last=True)
    assert history.settled(0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda listed: listed.reverse(),
        lambda listed: listed.insert(1, listed.pop(0)),
        lambda listed: listed.insert(1, listed[0]),
        lambda listed: listed[0].update(eventId="17#0a"),
        lambda listed: listed[0].update(eventId="not an id"),
        lambda listed: listed[1].update(eventTimestamp=START + 9_999_999),
        lambda listed: listed[1].pop("eventTimestamp"),
    ],
    ids=["oldest-first", "swapped", "twice", "short-id", "no-id", "stamps-ascend", "no-stamp"],
)
def test_a_list_that_is_not_in_order_is_read_to_its_end(spoil: Callable[[list[Any]], Any]):
    listed = [dict(event) for event in long(5).listed()]
    spoil(listed)
    for start in (None, 0, 4):
        history, read = paged(listed, 1, start)
        assert read == len(listed)
        assert history.head is not None
        assert history.head.checkpoint.revision == 5
        assert len(history.messages()) == 5


def test_a_commit_that_is_seen_to_be_stamped_no_later_than_its_parent_is_a_reason_to_read_all():
    session = long(5)
    stamps = {event["eventId"]: event for event in session.events}
    *_, before, _message, newest = sorted(stamps)
    stamps[newest]["eventTimestamp"] = stamps[before]["eventTimestamp"]
    stamps[newest]["eventId"] = f"{before[:19]}#ffffffff"
    history, read = paged(session.listed(), 1, None)
    assert read == len(session.events)
    assert history.head is not None
    assert history.head.checkpoint.revision == 5


@pytest.mark.parametrize("form", ["naive", "aware", "number"])
def test_a_timestamp_may_be_a_time_or_a_number(form: str):
    listed = [dict(event) for event in long(3).listed()]
    for entry in listed:
        moment = entry["eventTimestamp"]
        entry["eventTimestamp"] = {
            "naive": moment.replace(tzinfo=None),
            "aware": moment,
            "number": moment.timestamp(),
        }[form]
    head = whole(listed).head
    assert head is not None
    assert head.checkpoint.timestamp == START + 5.0


# --- forks -------------------------------------------------------------------------------------------------------------


def test_of_two_that_continue_the_same_commit_the_later_one_is_the_head_and_the_other_is_not_answered():
    session = Session()
    session.write(1)
    base = session.history().head
    assert base is not None
    lost = session.write(1, head=base, now=START + 10)
    won = session.write(1, head=base, now=START + 20)
    history = session.history()
    assert history.head is not None
    assert history.head.checkpoint.commit_id == won
    assert {stored.commit_id for stored in history.children(base.checkpoint.commit_id)} == {lost, won}
    assert history.find(lost) is not None
    assert history.answered(lost) is None
    assert history.answered(won) is not None
    assert history.answered(base.checkpoint.commit_id) is not None
    assert history.answered("unheard-of") is None
    assert texts(history.messages_of(history.find(lost) or pytest.fail("lost"))) == [f"{lost}/0"]
    assert texts(history.messages())[1:] == [f"{won}/0"]


def test_a_commit_before_a_replace_was_answered():
    session = Session()
    first = session.write(2)
    second = session.write(1)
    session.write(1, "replace")
    third = session.write(1)
    history = session.history()
    for commit in (first, second, third):
        found = history.answered(commit)
        assert found is not None
        assert texts(history.messages_of(found))[0] == f"{commit}/0"


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_two_first_commits_the_generation_decides(order: tuple[str, str]):
    session = Session()
    for number, generation in enumerate(order):
        session.write(1, head=None, generation=generation, commit_id=f"of-{generation}", now=START + number)
    history = session.history()
    assert history.head is not None
    assert history.head.checkpoint.generation == "b"
    assert {stored.generation for stored in history.children(None)} == {"a", "b"}


@pytest.mark.parametrize(
    ("given_ids", "stamps", "expected"),
    [
        (("a", "b"), (10, 10), "b"),
        (("b", "a"), (10, 10), "b"),
        (("a", "b"), (10.9, 10.1), "b"),  # only whole seconds count
        (("b", "a"), (10, 11), "a"),
    ],
)
def test_between_siblings_the_second_decides_and_then_the_commit(
    given_ids: tuple[str, str], stamps: tuple[float, float], expected: str
):
    session = Session()
    session.write(0)
    base = session.history().head
    for commit_id, stamp in zip(given_ids, stamps, strict=True):
        session.write(0, head=base, commit_id=commit_id, now=START + stamp)
        session.events[-1]["eventTimestamp"] = datetime.fromtimestamp(START + stamp, UTC)
    head = session.history().head
    assert head is not None
    assert head.checkpoint.commit_id == expected


# --- what is missing ---------------------------------------------------------------------------------------------------


def test_a_session_without_a_checkpoint_is_none():
    assert whole([]).head is None
    assert whole([]).messages() == ()
    assert whole([]).newest is None
    session = Session()
    session.write(1, whole=False)
    assert session.history().head is None
    assert session.history().messages() == ()


def test_a_session_whose_first_checkpoint_is_gone_is_an_error_and_no_empty_one():
    session = long(3)
    listed = session.listed()[:-2]
    history = whole(listed)
    with pytest.raises(CorruptSessionError, match="replace starts the session afresh") as caught:
        _ = history.head
    assert caught.value.event_id == listed[0]["eventId"]
    newest = history.newest
    assert isinstance(newest, Stored)
    assert newest.revision == 3
    again = Session()
    again.events = list(listed)
    again.write(1, "replace", head=Head(checkpoint=newest), commit_id="anew")
    head = again.history().head
    assert head is not None
    assert (head.checkpoint.revision, head.checkpoint.root) == (4, True)
    assert head.checkpoint.parent_commit_id == newest.commit_id
    assert texts(again.history().messages()) == ["anew/0"]


def test_a_root_whose_parent_has_expired_is_a_root():
    session = long(3)
    session.write(2, "replace")
    listed = session.listed()[:2]
    history, read = paged(listed, 1, 0)
    assert read == 2
    assert len(history.messages()) == 2


def test_messages_that_have_expired_are_an_error_that_names_their_checkpoint():
    session = long(3)
    history = whole(session.listed()[:-1])
    assert history.head is not None
    assert len(history.messages(1)) == 2
    with pytest.raises(CorruptSessionError, match=r"of 1 message events, and 0 are there"):
        history.messages()


def test_an_event_of_the_generation_that_names_no_commit_is_an_error():
    session = long(2)
    listed = session.listed()
    astray = {**listed[-1], "eventId": "0000000000000000001#00"}
    astray["metadata"] = {key: value for key, value in astray["metadata"].items() if "commit" not in key}
    with pytest.raises(CorruptSessionError, match="0000000000000000001#00"):
        whole([*listed, astray]).messages()


def test_what_cannot_be_read_is_told_when_it_is_asked_for_and_settles_everything():
    listed = [dict(event) for event in long(3).listed()]
    listed[0]["payload"] = [{"blob": "little_ghost:checkpoint:v5:{"}]
    history = History()
    history.add(listed[:1])
    assert history.settled(0)
    for ask in (
        lambda: history.head,
        lambda: history.newest,
        history.messages,
        history.checkpoints,
        lambda: history.find("x"),
        lambda: history.answered("x"),
        lambda: history.children(None),
    ):
        with pytest.raises(CorruptSessionError, match="holds no valid checkpoint"):
            ask()


def test_a_message_that_cannot_be_read_settles_what_is_after_it():
    listed = [dict(event) for event in long(4).listed()]
    listed[1]["payload"] = [{"blob": "x"}]
    history, read = paged(listed, 1, 3)
    assert read == 3
    with pytest.raises(CorruptSessionError, match="no part of a conversation"):
        history.messages(3)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_checkpoint_that_was_stored_twice_is_as_late_as_the_later_one(reverse: bool):
    session = long(2)
    again = {**session.events[-1], "eventTimestamp": datetime.fromtimestamp(START + 77, UTC)}
    kept = session.keep(again)
    events = session.listed()[::-1] if reverse else session.listed()
    head = whole(events).head
    assert head is not None
    assert (head.checkpoint.timestamp, head.checkpoint.event_id) == (START + 77.0, kept["eventId"])
    assert len(whole(events).children(head.checkpoint.parent_commit_id)) == 1


def test_two_checkpoints_of_one_commit_that_differ_are_an_error():
    session = long(2)
    other = dict(session.events[-1])
    other["payload"] = [{"blob": other["payload"][0]["blob"].replace('"by"', '"of"')}]
    session.keep(other, suffix=0xFFFFFFFF)
    with pytest.raises(CorruptSessionError, match="another"):
        _ = session.history().head


def test_what_others_keep_in_the_session_is_left_alone():
    session = long(2)
    for metadata in (
        {},
        None,
        {"little_ghost_type": None},
        {"little_ghost_type": {"stringValue": "message_v9"}},
    ):
        session.keep(
            {
                "eventTimestamp": datetime.fromtimestamp(START + 99, UTC),
                "payload": [{"SDK_UNKNOWN_MEMBER": {"name": "x"}}],
                "metadata": metadata,
            }
        )
    assert len(session.history().messages()) == 2
