"""``agentcore:`` URLs, and what the constructor of the store refuses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from littleghost import AgentCoreMemoryStore, ConfigurationError, open_store
from littleghost.emulators.agentcore import AgentCoreEmulator

MEMORY = "shop_memory-AbCdEf1234"


def test_a_url_names_a_memory():
    store = open_store(f"agentcore://{MEMORY}?region=eu-west-1&retention_days=30")
    assert isinstance(store, AgentCoreMemoryStore)
    assert store.memory_id == MEMORY
    assert store.retention == 30 * 86_400


def test_a_url_names_a_memory_by_its_arn():
    arn = f"arn:aws:bedrock-agentcore:eu-west-1:123456789012:memory/{MEMORY}"
    store = open_store("agentcore://" + arn.replace(":", "%3A").replace("/", "%2F"))
    assert isinstance(store, AgentCoreMemoryStore)
    assert store.memory_id == arn


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("agentcore:", "after two slashes"),
        ("agentcore://", "after two slashes"),
        (f"agentcore:///{MEMORY}", "after two slashes"),
        (f"agentcore://key:secret@{MEMORY}", "Credentials come from the environment"),
        (f"agentcore://{MEMORY}/secret", "after two slashes"),
        (f"agentcore://{MEMORY}#secret", "after two slashes"),
        (f"agentcore://{MEMORY}?secret=1", "region and retention_days"),
        (f"agentcore://{MEMORY}?max_messages=1", "region and retention_days"),
        (f"agentcore://{MEMORY}?region=a&region=secret", "each once"),
        (f"agentcore://{MEMORY}?region=", "each once"),
        (f"agentcore://{MEMORY}?secret", "malformed"),
        (f"agentcore://{MEMORY}?retention_days=secret", "number of days"),
        (f"agentcore://{MEMORY}?retention_days=0", "number of days"),
        (f"agentcore://{MEMORY}?retention_days=2", "3 days at least"),
        (f"agentcore://{MEMORY}?retention_days=-1", "number of days"),
        (f"agentcore://{MEMORY}?retention_days=99999999999", "number of days"),
    ],
)
def test_a_url_that_makes_no_sense(url: str, text: str):
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert text in str(caught.value)
    assert "secret" not in repr(caught.value)


@pytest.mark.parametrize("memory_id", ["", None, 3, b"memory"])
def test_a_memory_has_an_id(memory_id: Any):
    with pytest.raises(ConfigurationError, match="memory_id"):
        AgentCoreMemoryStore(memory_id)


@pytest.mark.parametrize(
    "retention", [0, -1, float("nan"), float("inf"), "30", True, timedelta(0), 90, timedelta(days=2)]
)
def test_a_retention_is_a_time(retention: Any):
    with pytest.raises(ConfigurationError, match="retention"):
        AgentCoreMemoryStore(MEMORY, retention=retention)


def test_a_retention_can_be_a_timedelta():
    assert AgentCoreMemoryStore(MEMORY, retention=timedelta(days=7)).retention == 7 * 86_400


def test_a_factory_is_a_function():
    factory: Any = "boto3"
    with pytest.raises(ConfigurationError, match="client_factory"):
        AgentCoreMemoryStore(MEMORY, client_factory=factory)


@pytest.mark.parametrize("actor", [None, ""])
async def test_an_actor_is_needed(actor: str | None):
    store = AgentCoreMemoryStore(MEMORY, client=object())
    for call in (
        store.load("s", actor_id=actor),
        store.append("s", messages=[], state={}, metadata={}, expected_count=0, actor_id=actor),
        store.delete("s", actor_id=actor),
        store.tail("s", limit=1, actor_id=actor),
        store.project_conversation("s", messages=[], metadata={}, actor_id=actor),
    ):
        with pytest.raises(ConfigurationError, match="actor_id"):
            await call


async def test_an_id_that_is_none_is_a_mistake_of_who_set_it_up():
    with AgentCoreEmulator() as emulator:
        store = AgentCoreMemoryStore("too-short", client=emulator.client())
        with pytest.raises(ConfigurationError, match="memoryId"):
            await store.load("s", actor_id="a")


async def test_a_factory_that_makes_no_client_is_one_too():
    store = AgentCoreMemoryStore(MEMORY, client_factory=lambda: None)
    with pytest.raises(ConfigurationError, match="client_factory"):
        await store.load("s", actor_id="a")
