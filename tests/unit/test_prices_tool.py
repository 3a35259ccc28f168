"""How the table of prices is made of what genai-prices has."""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from littleghost import Prices, Usage

ROOT = Path(__file__).resolve().parents[2]
MILLION = 1_000_000


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prices_tool", ROOT / "tools" / "prices.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def clause(kind: str, value: Any) -> Any:
    """A value of a class named as in that package, by which the tool tells them apart."""
    field = {"ClauseOr": "or_", "ClauseAnd": "and_", "ClauseRegex": "regex"}.get(kind, "text")
    return type(kind, (SimpleNamespace,), {})(**{field: value})


def priced(**prices: Any) -> Any:
    return SimpleNamespace(**{f"{name}_mtok": value for name, value in prices.items()})


def tiered(base: str, start: int, price: str) -> Any:
    return SimpleNamespace(base=Decimal(base), tiers=[SimpleNamespace(start=start, price=Decimal(price))])


def under(constraint: Any, **prices: Any) -> Any:
    return SimpleNamespace(constraint=constraint, prices=priced(**prices))


def model(tool: ModuleType, prices: Any, match: Any = None, context: int | None = None) -> Any:
    return tool.model_form(
        SimpleNamespace(
            id="Rocket",
            match=match or clause("ClauseEquals", "Rocket"),
            prices=prices,
            context_window=context,
        )
    )


def test_prices_that_depend_on_the_size_become_whole_rules(tool):
    form = model(
        tool,
        priced(
            input=tiered("1.250", 200_000, "2.5"),
            output=Decimal(10),
            cache_read=tiered("0.1", 100_000, "0.2"),
        ),
        context=9,
    )
    assert form == {
        "context": 9,
        "prices": [
            {"input": "1.25", "output": "10", "cache_read": "0.1"},
            {"input": "1.25", "output": "10", "cache_read": "0.2", "above": 100_000},
            {"input": "2.5", "output": "10", "cache_read": "0.2", "above": 200_000},
        ],
    }


def test_of_prices_that_changed_those_of_today_and_later_stay(tool):
    today = dt.datetime.now(dt.UTC).date()
    past, later = (SimpleNamespace(start_date=today + dt.timedelta(days=days)) for days in (-9, 9))
    one, two, three = ({"input": Decimal(n), "output": Decimal(n)} for n in (1, 2, 3))
    form = model(tool, [under(None, **one), under(past, **two), under(later, **three)])
    assert form["prices"] == [
        {"input": "2", "output": "2"},
        {"input": "3", "output": "3", "from": str(later.start_date)},
    ]
    hours = SimpleNamespace(start_time=1, end_time=2)
    assert model(tool, [under(None, **three), under(hours, **one)])["prices"] == {"input": "3", "output": "3"}
    assert model(tool, [under(None, **one), under(hours, **three)])["prices"] == {"input": "3", "output": "3"}


def test_what_is_no_language_model_or_cannot_be_counted_is_left_out(tool):
    assert model(tool, priced(input=Decimal(1))) is None
    assert model(tool, SimpleNamespace()) is None
    per_request = SimpleNamespace(input_mtok=Decimal(1), output_mtok=Decimal(1), requests_kcount=Decimal(5))
    assert model(tool, per_request) is None


def test_patterns_fit_what_the_clauses_fit(tool):
    either = clause("ClauseOr", [
        clause("ClauseStartsWith", "A-"), clause("ClauseEndsWith", "-z"), clause("ClauseContains", "mid"),
        clause("ClauseRegex", r"^v\d$"),
        clause("ClauseAnd", [clause("ClauseStartsWith", "b.c"), clause("ClauseRegex", "^(?!.*-tts)")]),
    ])  # fmt: skip
    form = model(tool, priced(input=Decimal(1), output=Decimal(1)), either)
    prices = Prices({"providers": {"acme": {"models": {"rocket": json.loads(json.dumps(form))}}}})

    def known(name: str) -> bool:
        return prices.cost(name, Usage(), "acme") is not None

    assert all(map(known, ("rocket", "a-1", "q-z", "amidst", "v7", "b.c", "b.c-1")))
    assert not any(map(known, ("b-a-1", "q-zz", "v77", "b.c-tts", "bxc", "rockets")))


def test_what_is_written_can_be_read_and_has_a_line_for_each_model(tool):
    models = {name: {"prices": {"input": "1", "output": "2"}} for name in ("é", "b")}
    table = {
        "source": "s",
        "date": "2026-01-01",
        "providers": {"acme": {"called": ["x*"], "models": models}, "empty": {"models": {}}},
    }
    text = tool.written(table)
    assert json.loads(text) == table
    assert len([line for line in text.splitlines() if '"prices"' in line]) == len(models)
    assert Prices(table).cost("b", Usage(input_tokens=MILLION), "x1") == 1.0
