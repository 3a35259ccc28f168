"""Make ``src/littleghost/prices.json``, the table of `littleghost.Prices`, from the package genai-prices (MIT).

Usage:
    python tools/prices.py              download the newest genai-prices, and make the table
    python tools/prices.py VERSION      of that version
    python tools/prices.py FILE.whl     of a wheel that lies here already

Language models alone are taken: those with a price for tokens read and one for tokens written, and without a fee per request, which
`Prices` cannot count. Of prices that vary within a day the dearest is taken; of prices that changed, the one of today and those to come.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "src" / "littleghost" / "prices.json"
SOURCE = "https://github.com/pydantic/genai-prices"

PRICES = {
    "input_mtok": "input",
    "output_mtok": "output",
    "cache_read_mtok": "cache_read",
    "cache_write_mtok": "cache_write",
    "cache_write_1h_mtok": "cache_write_1h",
    "output_reasoning_mtok": "reasoning",
}

FIRST = ("aws", "azure")
"""Providers whose names for models hold those of other providers, so they are asked first."""

# Vendors as they stand in the ids of Bedrock. Source: https://docs.aws.amazon.com/bedrock/latest/userguide/models-supported.html
BEDROCK = (
    r"/^(?:arn:aws[a-z-]*:bedrock:|(?:[a-z]{2,6}(?:-gov)?\.)?(?:ai21|amazon|anthropic|cohere|deepseek|google|meta|minimax|mistral"
    r"|moonshot|moonshotai|nvidia|openai|qwen|writer|zai)\.)/"
)
MATCHES = {"aws": [BEDROCK]}

# Source: https://opentelemetry.io/docs/specs/semconv/registry/attributes/gen-ai/ (gen_ai.provider.name)
CALLED = {"azure": ["azure*"], "google": ["gcp.*"], "x-ai": ["x_ai"]}


def main(wanted: str = "") -> None:
    """Make the table of what is ``wanted``: a version, a wheel, or the newest version."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(wanted) if wanted.endswith(".whl") else download(wanted, folder)
        sys.path.insert(0, str(wheel))
        from genai_prices.data import providers  # type: ignore[import-not-found]

        (package,) = distributions(name="genai-prices", path=[str(wheel)])
        table = {
            "source": f"{SOURCE} {package.version}",
            "license": license_of(package),
            "date": str(today()),
            "providers": {
                provider.id: form
                for provider in sorted(providers, key=lambda provider: provider.id not in FIRST)
                if (form := provider_form(provider))["models"] or "like" in form
            },
        }
    TABLE.write_text(written(table), "utf-8")
    models = sum(len(provider["models"]) for provider in table["providers"].values())
    print(f"wrote {models} models of {len(table['providers'])} providers into {TABLE}")


def download(version: str, folder: str) -> Path:
    """Return the wheel of genai-prices, newest by default."""
    name = f"genai-prices=={version}" if version else "genai-prices"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", folder, name], check=True)
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def license_of(package: Distribution) -> str:
    """Return the licence of the data, whose terms ask that it comes along."""
    (path,) = (path for path in package.files or () if path.name == "LICENSE")
    return path.read_text("utf-8").strip()


def today() -> dt.date:
    """Return the date, in UTC."""
    return dt.datetime.now(dt.UTC).date()


def provider_form(provider: Any) -> dict[str, Any]:
    """Return a provider as the table has it."""
    form: dict[str, Any] = {}
    called = CALLED.get(provider.id, []) + patterns(provider.provider_match)
    if called:
        form["called"] = called
    match = MATCHES.get(provider.id, []) + patterns(provider.model_match)
    if match:
        form["match"] = match
    if provider.fallback_model_providers:
        form["like"] = provider.fallback_model_providers
    form["models"] = {model.id.lower(): entry for model in provider.models if (entry := model_form(model))}
    return form


def model_form(model: Any) -> dict[str, Any] | None:
    """Return a model as the table has it, or ``None`` where it is none for `Prices`."""
    rules = list(rules_of(model.prices))
    if not rules or any("requests_kcount" in vars(prices) for _, prices in timed(model.prices)):
        return None
    form: dict[str, Any] = {}
    others = [pattern for pattern in patterns(model.match) if pattern != model.id.lower()]
    if others:
        form["match"] = others
    if model.context_window:
        form["context"] = model.context_window
    return {**form, "prices": rules[0] if len(rules) == 1 else rules}


def patterns(clause: Any) -> list[str]:
    """Return the patterns of which one fits what ``clause`` fits: ``*`` stands for anything, ``/…/`` is a regular expression."""
    if clause is None:
        return []
    kind = type(clause).__name__
    if kind == "ClauseOr":
        return [pattern for part in clause.or_ for pattern in patterns(part)]
    if kind == "ClauseAnd":
        return [f"/^{''.join(f'(?=.*?(?:{regex(part)}))' for part in clause.and_)}/"]
    if kind == "ClauseRegex":
        return [f"/{clause.regex}/"]
    text = next(iter(vars(clause).values())).lower()
    before, after = (
        "*" * (kind in ("ClauseEndsWith", "ClauseContains")),
        "*" * (kind in ("ClauseStartsWith", "ClauseContains")),
    )
    return [f"{before}{text}{after}"]


def regex(clause: Any) -> str:
    """Return the regular expression of a clause that is part of a conjunction."""
    (pattern,) = patterns(clause)
    if pattern.startswith("/"):
        return pattern[1:-1]
    start, end = "" if pattern.startswith("*") else "^", "" if pattern.endswith("*") else "$"
    return f"{start}{re.escape(pattern.strip('*'))}{end}"


def timed(prices: Any) -> Iterator[tuple[dt.date | None, Any]]:
    """Yield the prices of today, then those that begin later, with the day they begin."""
    if not isinstance(prices, list):
        yield None, prices
        return
    now: list[Any] = []
    later: list[tuple[dt.date, Any]] = []
    for condition in prices:
        start = getattr(condition.constraint, "start_date", None)
        if start is not None and start > today():
            later.append((start, condition.prices))
        elif start is not None or condition.constraint is None:
            now = [condition.prices]
        else:
            now.append(condition.prices)  # for some hours of the day
    if now:
        yield None, max(now, key=lambda prices: flat(prices, 0).get("output", Decimal(0)))
    yield from sorted(later, key=lambda pair: pair[0])


def rules_of(prices: Any) -> Iterator[dict[str, Any]]:
    """Yield the rules of a model's prices; the last that applies counts."""
    for start, priced in timed(prices):
        steps = {tier.start for value in vars(priced).values() for tier in getattr(value, "tiers", ())}
        for above in (0, *sorted(steps)):
            form: dict[str, Any] = {name: plain(value) for name, value in flat(priced, above).items()}
            if not {"input", "output"} <= form.keys():
                return
            if above:
                form["above"] = above
            if start is not None:
                form["from"] = str(start)
            yield form


def flat(prices: Any, above: int) -> dict[str, Decimal]:
    """Return the prices of a request whose input has more than ``above`` tokens."""
    found: dict[str, Decimal] = {}
    for key, name in PRICES.items():
        value = vars(prices).get(key)
        if value is None:
            continue
        for tier in getattr(value, "tiers", ()):
            if tier.start <= above and above:
                found[name] = tier.price
        found.setdefault(name, getattr(value, "base", value))
    return found


def plain(value: Decimal) -> str:
    """Return a price without exponent, needless zeros and what a float once added to it."""
    text = f"{round(value, 9):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def written(table: dict[str, Any]) -> str:
    """Return ``table`` as JSON with a line for each model, so that a change of the table can be read."""
    dump = json.JSONEncoder(ensure_ascii=False).encode
    lines = ["{"]
    lines += [f"  {dump(name)}: {dump(value)}," for name, value in table.items() if name != "providers"]
    blocks: list[str] = []
    for name, provider in table["providers"].items():
        head = "".join(
            f"\n      {dump(key)}: {dump(value)}," for key, value in provider.items() if key != "models"
        )
        models = ",\n        ".join(
            f"{dump(key)}: {dump(value)}" for key, value in provider["models"].items()
        )
        inner = f"\n        {models}\n      " if models else ""
        blocks.append(f'    {dump(name)}: {{{head}\n      "models": {{{inner}}}\n    }}')
    return "\n".join([*lines, '  "providers": {', ",\n".join(blocks), "  }", "}", ""])


if __name__ == "__main__":
    main(*sys.argv[1:2])
