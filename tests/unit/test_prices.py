"""The table of prices: what it knows, what it does not know, and what it refuses."""

from __future__ import annotations

import datetime as dt
import json
import math
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import littleghost.prices
from littleghost import ConfigurationError, Prices, Usage

FILE = Path(littleghost.prices.__file__).with_name("prices.json")
TABLE = json.loads(FILE.read_text("utf-8"))
MILLION = 1_000_000
DAY = dt.date.fromisoformat(TABLE["date"])


def table(**prices: Any) -> dict[str, Any]:
    entry = {"prices": {"input": 1, "output": 2} | prices}
    return {"providers": {"acme": {"match": ["rocket*"], "models": {"rocket-1": entry}}}}


def own(*rules: dict[str, Any], **entry: Any) -> Prices:
    models = {"rocket-1": {"prices": list(rules), **entry}}
    return Prices({"providers": {"acme": {"match": ["rocket*"], "models": models}}})


# -- the table that comes along


def test_the_bundled_table_says_where_it_is_from_and_when():
    prices = Prices.bundled()
    assert prices is Prices.bundled()
    assert prices.source.startswith("https://github.com/pydantic/genai-prices ")
    assert "MIT License" in TABLE["license"]
    assert prices.date == dt.date.fromisoformat(TABLE["date"])
    assert prices.source in repr(prices)


def test_every_entry_has_a_price_under_its_own_name():
    prices, usage = Prices.bundled(), Usage(input_tokens=1, output_tokens=1)
    count = 0
    for provider, form in TABLE["providers"].items():
        for model, entry in form["models"].items():
            cost = prices.cost(model, usage, provider)
            assert cost, (provider, model)
            assert prices.context_window(model, provider) == entry.get("context"), (provider, model)
            count += 1
    assert count > 1500


def test_every_entry_costs_what_the_table_says():
    """Worked out again in fractions, for requests small and large."""
    prices = Prices.bundled()
    for size in (1_000, 900_000):
        usage = Usage(input_tokens=size, output_tokens=7, cache_read_tokens=11, reasoning_tokens=13)
        for provider, form in TABLE["providers"].items():
            for model, entry in form["models"].items():
                rules = entry["prices"] if isinstance(entry["prices"], list) else [entry["prices"]]
                (*_, rule) = (
                    r for r in rules if r.get("above", 0) < size and r.get("from", "") <= DAY.isoformat()
                )
                price = {
                    name: Fraction(value)
                    for name, value in rule.items()
                    if isinstance(value, str) and name != "from"
                }
                exact = (
                    size * price["input"]
                    + 7 * price["output"]
                    + 11 * price.get("cache_read", price["input"])
                    + 13 * price.get("reasoning", price["output"])
                ) / MILLION
                assert prices.cost(model, usage, provider, on=DAY) == float(exact), (provider, model)


# Figures of the providers' own price lists, in dollars per million tokens.
@pytest.mark.parametrize(
    ("model", "provider", "read", "written", "cached"),
    [
        ("gpt-5", "openai", 1.25, 10, 0.125),  # https://platform.openai.com/docs/pricing
        ("gpt-5-2025-08-07", None, 1.25, 10, 0.125),
        ("gpt-5", "azure.ai.openai", 1.25, 10, 0.125),
        ("claude-sonnet-4-5-20250929", "anthropic", 3, 15, 0.3),  # https://platform.claude.com/docs/en/about-claude/pricing
        ("claude-sonnet-4-5@20250929", "gcp.vertex_ai", 3, 15, 0.3),
        ("anthropic/claude-sonnet-4-5", None, 3, 15, 0.3),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "aws.bedrock", 3.3, 16.5, 0.33),  # https://aws.amazon.com/bedrock/pricing/
        ("global.anthropic.claude-sonnet-4-5-20250929-v1:0", "aws.bedrock", 3, 15, 0.3),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", None, 3.3, 16.5, 0.33),
        ("arn:aws:bedrock:us-east-1:1:inference-profile/us.amazon.nova-pro-v1:0", None, 0.8, 3.2, 0.2),
        ("models/gemini-2.5-pro", "gcp.gemini", 1.25, 10, 0.125),  # https://ai.google.dev/gemini-api/docs/pricing
        ("publishers/google/models/gemini-2.5-pro", "gcp.vertex_ai", 1.25, 10, 0.125),
        ("Gemini-2.5-Pro", None, 1.25, 10, 0.125),
    ],
)  # fmt: skip
def test_known_figures(model: str, provider: str | None, read: float, written: float, cached: float):
    prices, thousand = Prices.bundled(), 1000  # below every step of a price
    for kind, price in (
        ("input_tokens", read),
        ("output_tokens", written),
        ("reasoning_tokens", written),
        ("cache_read_tokens", cached),
    ):
        cost = prices.cost(model, Usage(**{kind: thousand}), provider, on=DAY)
        assert cost == float(Fraction(str(price)) / 1000), kind


def test_long_input_costs_more_cached_tokens_included():
    prices, model = Prices.bundled(), "gemini-2.5-pro"
    short = Usage(input_tokens=100_000, cache_read_tokens=100_000)
    assert prices.cost(model, short, on=DAY) == 0.1375
    assert prices.cost(model, Usage(input_tokens=100_001, cache_read_tokens=100_000), on=DAY) == 0.2750025


def test_what_is_written_to_the_cache_has_its_price_by_how_long_it_is_kept():
    prices, usage = Prices.bundled(), Usage(cache_write_tokens=1000)
    assert prices.cost("claude-sonnet-4-5", usage) == 0.00375
    assert prices.cost("claude-sonnet-4-5", usage, cache="1h") == 0.006


# -- what is not known


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("no-such-model", None),
        ("no-such-model", "openai"),
        ("gpt-5", "a-gateway"),
        ("", None),
        ("", "openai"),
        ("qwen3-32b", None),  # many sell it, at many prices
        ("my-gpt-5", None),
    ],
)
def test_the_unknown_costs_none_and_not_nothing(model: str, provider: str | None):
    prices = Prices.bundled()
    assert prices.cost(model, Usage(input_tokens=1), provider) is None
    assert prices.cost(model, Usage(), provider) is None
    assert prices.context_window(model, provider) is None


def test_a_provider_called_unknown_is_no_provider():
    usage = Usage(input_tokens=MILLION)
    assert Prices.bundled().cost("gpt-5", usage, "unknown") == Prices.bundled().cost("gpt-5", usage)


def test_a_call_that_used_nothing_costs_nothing():
    assert Prices.bundled().cost("gpt-5", Usage()) == 0.0


# -- tables of one's own


def test_a_table_of_ones_own_stands_alone_or_before_another(tmp_path: Path):
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"source": "our contract", "date": "2026-06-30", **table(input=1.1)}))
    usage = Usage(input_tokens=10)
    alone = Prices.load(file)
    assert (alone.source, alone.date) == ("our contract", dt.date(2026, 6, 30))
    assert alone.cost("rocket-1", usage) == 0.000011
    assert alone.cost("gpt-5", usage) is None
    before = Prices.load(file, rest=Prices.bundled())
    assert before.cost("rocket-1", usage) == 0.000011
    assert before.cost("gpt-5", usage) == Prices.bundled().cost("gpt-5", usage)
    cheaper = {"openai": {"models": {"gpt-5": {"prices": {"input": 1, "output": 1}}}}}
    assert Prices({"providers": cheaper}, rest=Prices.bundled()).cost("gpt-5", usage, "openai") == 0.00001


def test_a_table_does_not_change_with_what_it_was_made_from():
    form = table()
    prices = Prices(form)
    form["providers"]["acme"]["models"]["rocket-1"]["prices"]["input"] = 99
    assert prices.cost("rocket-1", Usage(input_tokens=MILLION)) == 1.0


def test_what_has_no_price_of_its_own_costs_what_is_read_or_written():
    usage = {
        "input_tokens": 1,
        "cache_read_tokens": 10,
        "cache_write_tokens": 100,
        "output_tokens": 1000,
        "reasoning_tokens": 10_000,
    }
    assert Prices(table()).cost("rocket-1", Usage(**usage)) == (111 + 2 * 11_000) / MILLION
    full = Prices(table(cache_read="0.5", cache_write=3, reasoning=4))
    assert full.cost("rocket-1", Usage(**usage)) == (1 + 5 + 300 + 2000 + 40_000) / MILLION
    assert full.cost("rocket-1", Usage(**usage), cache="1h") == full.cost("rocket-1", Usage(**usage))


def test_prices_begin_on_their_day():
    prices = own({"input": 1, "output": 1}, {"input": 2, "output": 2, "from": "2027-01-01"})
    usage = Usage(input_tokens=MILLION)
    assert prices.cost("rocket-1", usage, on=dt.date(2026, 12, 31)) == 1.0
    assert prices.cost("rocket-1", usage, on=dt.date(2027, 1, 1)) == 2.0
    later = own({"input": 1, "output": 1, "from": "2027-01-01"})
    assert later.cost("rocket-1", usage, on=dt.date(2026, 12, 31)) is None


@pytest.mark.parametrize(
    ("pattern", "fits", "does_not"),
    [
        ("rocket*", ["rocket", "rocket-1"], ["a-rocket"]),
        ("*rocket", ["rocket", "a-rocket"], ["rocket-1"]),
        ("*rocket*", ["rocket", "a-rocket-1"], ["rock"]),
        ("a*b*a", ["aba", "a-b-a", "abba"], ["ab", "a", "aab"]),
        ("r*r", ["r-r", "rr"], ["r"]),  # its two ends do not share a letter
        ("/^v\\d+$/", ["v1", "V22"], ["v", "av1"]),
        ("ROCKET", ["rocket", "Rocket"], ["rockets"]),
    ],
)
def test_patterns(pattern: str, fits: list[str], does_not: list[str]):
    form = {"match": ["*"], "models": {"~": {"match": [pattern], "prices": {"input": 1, "output": 1}}}}
    prices = Prices({"providers": {"acme": form}})
    assert [name for name in fits if prices.cost(name, Usage()) is None] == []
    assert [name for name in does_not if prices.cost(name, Usage()) is not None] == []


def test_an_exact_name_goes_before_a_pattern_and_a_dated_one_before_its_family():
    models = {
        "rocket*": {"prices": {"input": 1, "output": 1}},
        "rocket-1": {"prices": {"input": 2, "output": 2}},
        "rocket-1-2026-01-02": {"prices": {"input": 3, "output": 3}},
    }
    prices = Prices({"providers": {"acme": {"models": models}}})
    found = {
        name: prices.cost(name, Usage(input_tokens=MILLION), "acme")
        for name in ("rocket-2", "rocket-1", "rocket-1-2026-01-02", "rocket-1-20260102")
    }
    # The pattern takes a name as it stands; other spellings are tried only where nothing takes it.
    assert found == {"rocket-2": 1.0, "rocket-1": 2.0, "rocket-1-2026-01-02": 3.0, "rocket-1-20260102": 1.0}
    del models["rocket*"]
    prices = Prices({"providers": {"acme": {"models": models}}})
    assert prices.cost("rocket-1-20260102", Usage(input_tokens=MILLION), "acme") == 3.0
    assert prices.cost("rocket-1-20270101", Usage(input_tokens=MILLION), "acme") == 2.0


# -- exactness


@given(
    st.integers(0, 10**12),
    st.decimals(min_value=0, max_value=10_000, places=9, allow_nan=False, allow_infinity=False),
)
def test_a_cost_is_the_float_next_to_the_exact_one(tokens: int, price: Decimal):
    for given_as in (price, str(price)):
        cost = Prices(table(input=given_as)).cost("rocket-1", Usage(input_tokens=tokens))
        assert cost == float(tokens * Fraction(price) / MILLION)


def test_a_price_given_as_a_float_is_the_decimal_it_shows():
    assert (
        Prices(table(input=0.1)).cost("rocket-1", Usage(input_tokens=3 * MILLION)) == 0.3
    )  # and 3 * 0.1 is not


def test_sums_stay_within_what_is_said_of_them():
    costs = [Prices(table(input="0.1")).cost("rocket-1", Usage(input_tokens=MILLION)) or 0.0] * 10_000
    assert math.fsum(costs) == 1000.0
    assert abs(sum(costs) - 1000) < 1000 * 10_000e-15


# -- what is refused

FREE = {"input": 0, "output": 0}
WRONG_PRICES = [
    -1, "-0.1", float("nan"), "NaN", "sNaN", float("inf"), "-Infinity", True, None, [], "", "free", "1e-10", "1.0000000001", "1e40", 10**40,
]  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["input", "output", "cache_read", "cache_write", "cache_write_1h", "reasoning"]
)
@pytest.mark.parametrize("price", WRONG_PRICES, ids=repr)
def test_a_price_that_is_none_is_refused_by_its_name(kind: str, price: Any):
    with pytest.raises(ConfigurationError, match=rf"^providers\.acme\.models\.rocket-1\.prices\.{kind} "):
        Prices(table(**{kind: price}))


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ([], "prices must be an object"),
        ({}, "providers must be an object"),
        ({"providers": {}, "currency": "EUR"}, "prices has the unknown field 'currency'"),
        ({"providers": {}, "date": "tomorrow"}, "date must be a day"),
        ({"providers": {}, "source": 1}, "source must be a string"),
        ({"providers": {"acme": 1}}, "providers.acme must be an object"),
        ({"providers": {1: {}}}, "providers must be an object with string keys"),
        ({"providers": {"acme": {"modells": {}}}}, "providers.acme has the unknown field 'modells'"),
        ({"providers": {"acme": {"like": ["other"]}}}, "providers.acme.like: there is no provider 'other'"),
        ({"providers": {"acme": {"match": "x"}}}, "providers.acme.match must be a list of strings"),
        ({"providers": {"acme": {"match": ["/(/"]}}}, "providers.acme: '/(/' is no regular expression"),
        ({"providers": {"acme": {"models": {"m": {}}}}}, "providers.acme.models.m.prices must be an object"),
        ({"providers": {"acme": {"models": {"m": {"prices": []}}}}}, "providers.acme.models.m.prices is empty"),
        ({"providers": {"acme": {"models": {"m": {"prices": {"input": 1}}}}}}, "providers.acme.models.m.prices.output is missing"),
        (table(above=-1), "providers.acme.models.rocket-1.prices.above must be a whole number of at least 0, not -1"),
        (table(above=0.5), "prices.above must be a whole number"),
        (table(**{"from": "soon"}), "prices.from must be a day such as 2026-12-31"),
        (table(image=1), "prices has the unknown field 'image'"),
        ({"providers": {"acme": {"models": {"m": {"context": 0, "prices": FREE}}}}}, "context must be a whole number of at least 1"),
        ({"providers": {"acme": {"models": {"m": {"prices": [FREE, FREE | {"output": -1}]}}}}}, "models.m.prices[1].output"),
    ],
)  # fmt: skip
def test_a_table_that_is_none_is_refused_by_the_name_of_the_field(form: Any, says: str):
    with pytest.raises(ConfigurationError) as refused:
        Prices(form)
    assert says in str(refused.value)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"providers": NaN}', b"\xff", b"[" * 100_000])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, raw: bytes):
    file = tmp_path / "prices.json"
    file.write_bytes(raw)
    with pytest.raises(ConfigurationError):
        Prices.load(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        Prices.load(tmp_path / "prices.json")


@pytest.mark.parametrize("count", [-1, 1.5, float("nan"), True, None, "1"], ids=repr)
@pytest.mark.parametrize("field", Usage.__struct_fields__)
def test_a_count_that_is_none_is_refused_by_its_name(field: str, count: Any):
    with pytest.raises(ConfigurationError, match=rf"^usage\.{field} must be a whole number"):
        Prices.bundled().cost("gpt-5", Usage(**{field: count}))


def test_importing_the_library_does_not_read_the_table():
    code = """
import sys
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
import littleghost
littleghost.Prices
assert not any(name.endswith("prices.json") for name in opened), opened
littleghost.Prices.bundled()
assert any(name.endswith("prices.json") for name in opened)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
