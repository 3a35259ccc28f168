"""The soak on AgentCore Memory, briefly: processes race on an emulator whose service and network fail; and a loss is found there too."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.soak.agentcore import SERVICES, AgentCore
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
