"""The switch that keeps models of other machines out of tests."""

from __future__ import annotations

import pytest

from littleghost.errors import ConfigurationError, CredentialError
from littleghost.message import Message
from littleghost.models.contract import ModelRequest
from littleghost.models.network import VARIABLE, check_host, is_loopback
from littleghost.models.openai import OpenAIModel

HERE = [
    "localhost",
    "LOCALHOST.",
    "api.localhost",
    "127.0.0.1",
    "127.8.9.1",
    "::1",
    "[::1]",
    "::ffff:127.0.0.1",
]
ELSEWHERE = ["api.openai.com", "localhost.example.com", "10.0.0.1", "0.0.0.0", "127.0.0.1.example.com", "", "::ffff:8.8.8.8"]  # fmt: skip


@pytest.mark.parametrize("host", HERE)
def test_this_machine(host, monkeypatch):
    monkeypatch.setenv(VARIABLE, "forbid")
    assert is_loopback(host)
    check_host(host)


@pytest.mark.parametrize("host", ELSEWHERE)
def test_other_machines(host, monkeypatch):
    assert not is_loopback(host)
    for allowed in ("", "allow"):
        monkeypatch.setenv(VARIABLE, allowed)
        check_host(host)
    monkeypatch.setenv(VARIABLE, " Forbid ")
    with pytest.raises(ConfigurationError, match="forbid"):
        check_host(host)


def test_a_value_that_is_none_of_these_is_no_leave(monkeypatch):
    monkeypatch.setenv(VARIABLE, "forbidden")
    with pytest.raises(ConfigurationError, match="allow or forbid"):
        check_host("127.0.0.1")


async def test_nothing_is_sent_and_no_key_is_looked_for(monkeypatch):
    monkeypatch.setenv(VARIABLE, "forbid")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    model = OpenAIModel("gpt-5")
    request = ModelRequest(messages=[Message.user("Hello")])
    with pytest.raises(ConfigurationError, match=r"api\.openai\.com"):
        await anext(model.stream(request))
    monkeypatch.setenv(VARIABLE, "allow")
    with pytest.raises(CredentialError):
        await anext(model.stream(request))
