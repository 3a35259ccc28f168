"""The store in AgentCore Memory against the kit, on services that behave in each way that the documentation leaves open."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from littleghost.sessions.contract import SessionStore
from littleghost.testing.conformance import Clause, ClauseSkipped
from littleghost.testing.store_kit import store_bench, store_clauses

CLAUSES = store_clauses()

SERVICES: dict[str, dict[str, Any]] = {
    "http": {"pagination": "match"},
    "scan": {},
    "lag": {"lag": 0.05, "filtered_lag": 1.0},
    "ties": {"ties": "permuted"},
}
"""Options of the emulator. Only the first is reached over HTTP and by other processes, the others in this one. Answers to repeated
tokens and lists in the other order are tried where writers race, and with the golden files."""

LONG = {
    "a-fork-of-a-large-commit-ends-anywhere",
    "a-fork-parts-no-call-of-a-large-commit",
    "a-reader-sees-large-commits-whole",
    "a-reader-sees-whole-commits",
    "a-tail-is-a-slice-of-any-history",
    "a-tail-of-a-large-commit-begins-and-ends-anywhere",
    "twenty-megabytes-in-one-message-are-stored-or-refused",
}
"""Clauses of so much data that one service is enough for them."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"agentcore {name}")) for name in SERVICES],
)
def factory(
    request: pytest.FixtureRequest, require: Callable[[object, str, str], None]
) -> Iterator[Callable[[], SessionStore]]:
    require(importlib.util.find_spec("boto3"), "boto3", "pip install 'littleghost[agentcore]'")
    import agentcore

    with agentcore.AgentCoreEmulator(**SERVICES[request.param], record=False) as emulator:
        if request.param == "http":
            yield partial(agentcore.store_at, emulator.endpoint_url)
        else:
            yield partial(agentcore.store, emulator)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.name)
async def test_store(factory: Callable[[], SessionStore], clause: Clause, request: pytest.FixtureRequest):
    service = request.node.callspec.params["factory"]
    if clause.name in LONG and service != "scan":
        pytest.skip("tried on one of the services")
    bench = await store_bench(factory, persistent=True)
    if missing := clause.missing(bench.capabilities):
        pytest.skip(f"needs {', '.join(missing)}")
    try:
        await clause.run(bench, seconds=150)  # the emulator's work is done here too
    except ClauseSkipped as skip:
        if service == "http" or "another process" not in str(skip):
            pytest.fail(f"only what needs other processes may be skipped here: {skip}")
        pytest.skip(str(skip))
