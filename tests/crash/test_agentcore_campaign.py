"""The soak on AgentCore Memory, briefly: processes race on an emulator whose service and network fail; and a loss is found there too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.soak.agentcore import SERVICES, AgentCore
from benchmarks.soak.check import check
from benchmarks.soak.history import Book, Read
from benchmarks.soak.run import Plan, soak


def test_fifteen_seconds_lose_nothing(tmp_path: Path):
    result = soak(Plan(store="agentcore", seconds=15, seed=7, clients=3), tmp_path)
    assert result.faults == []
    figures = result.figures
    # It was a soak: much was done, and much was done to it.
    assert result.survived.total() > 4
    assert figures["made"]["append"] > 20
    assert figures["conflicts"] > 5
    assert figures["medium"]["befallen"].total() > 50
    assert figures["unknown"] > 0


def test_a_loss_is_found(tmp_path: Path):
    # Which operation meets which is left to chance, so a soak is repeated until one has met the fault.
    for seed in range(1, 5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        result = soak(Plan(store="agentcore", seconds=8, seed=seed, clients=2, broken="drops"), folder)
        if [fault for fault in result.faults if "all but one are lost" in fault]:
            return
    pytest.fail("four soaks on a store that drops turns found no loss")


@pytest.mark.parametrize(
    ("second", "faults"),
    [(12.0, 0), (25.0, 1)],
    ids=["begun while it is being deleted", "begun after that"],
)
def test_a_deletion_may_take_what_is_begun_meanwhile_and_nothing_later(second: float, faults: int):
    session = ("ann", "s")

    def commit(op: str, sent: float) -> list[dict[str, Any]]:
        asked = {"e": "sent", "t": sent, "op": op, "kind": "append", "s": session, "lines": [], "rev": None}
        return [asked, {"e": "done", "t": sent + 1, "op": op, "how": "ok", "rev": f"1-{op}", "n": 0}]

    deletion = [
        {"e": "sent", "t": 10.0, "op": "d", "kind": "delete", "s": session},
        {"e": "done", "t": 20.0, "op": "d", "how": "ok", "n": 1},
    ]
    book = Book()
    book.add([*commit("a", 1.0), *deletion, *commit("b", second)])
    assert len(check(book, {}, by_halves=True)) == faults
    assert len(check(book, {}, by_halves=False)) == 1


@pytest.mark.parametrize(
    ("looked", "faults"), [(2.0, 0), (6.0, 1)], ids=["before it is acknowledged", "after that"]
)
def test_a_commit_may_be_seen_twice_until_it_is_acknowledged(looked: float, faults: int):
    session = ("ann", "s")
    asked = {"e": "sent", "t": 1.0, "op": "a", "kind": "append", "s": session, "lines": [], "rev": None}
    done = {"e": "done", "t": 5.0, "op": "a", "how": "ok", "rev": "1-a", "n": 0}
    deletion: list[dict[str, Any]] = []
    if not faults:  # it took the other one
        deletion = [
            {"e": "sent", "t": 3.5, "op": "d", "kind": "delete", "s": session},
            {"e": "done", "t": 4.0, "op": "d", "how": "ok", "n": 1},
        ]
    saw = {"t": looked + 1, "t0": looked, "t1": looked + 1}
    read = {"e": "read", **saw, "s": session, "rev": "1-b", "n": 0, "op": "a", "by": "a"}

    def found(*, by_halves: bool) -> list[str]:
        book = Book()
        book.add([dict(line) for line in (asked, *deletion, done, read)])
        last = Read(session=session, t0=9.0, t1=10.0, revision="1-a", number=0, op="a", by="a")
        return check(book, {session: [last]}, by_halves=by_halves)

    assert len([fault for fault in found(by_halves=True) if "there twice" in fault]) == faults
    assert len([fault for fault in found(by_halves=False) if "there twice" in fault]) == 1
    assert faults or not found(by_halves=True)


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_has_the_same_service_each_time(seed: int):
    import random

    seen: set[str] = set()
    for _ in range(2):
        medium = AgentCore(random.Random(seed))
        seen.add(medium.service)
        medium.close()
    assert len(seen) == 1
    assert seen <= SERVICES.keys()
