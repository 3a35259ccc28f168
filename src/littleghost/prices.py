"""What tokens cost: a table of prices, which comes with the library and can be replaced.

Prices are US dollars per million tokens. Inside they are whole numbers of 10⁻¹⁵ dollars per token, so that no digit of a price is lost;
`Prices.cost` rounds once, to the nearest float.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from os import PathLike
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from littleghost import data
from littleghost.errors import ConfigurationError
from littleghost.usage import Usage

__all__ = ["Prices"]

DIGITS = 9
"""Digits that a price in dollars per million tokens may have after the point."""
PER_DOLLAR = 10 ** (DIGITS + 6)
KINDS = frozenset({"input", "output", "cache_read", "cache_write", "cache_write_1h", "reasoning"})
"""What has a price. ``input`` and ``output`` must have one; the others cost what these do where they have none."""


class _Rule(Struct, frozen=True, kw_only=True):
    """Prices that apply to requests with more than ``above`` tokens of input, from the day ``begins`` on."""

    prices: dict[str, int]
    above: int = 0
    begins: dt.date | None = None

    def price(self, kind: str, instead: str) -> int:
        return self.prices.get(kind, self.prices[instead])


class _Model(Struct, frozen=True, kw_only=True):
    rules: tuple[_Rule, ...]
    context: int | None


class _Patterns(Struct, frozen=True):
    """Names, and patterns that a name may fit, each with what they stand for."""

    names: dict[str, Any]
    others: list[tuple[re.Pattern[str] | list[str], Any]]

    def find(self, name: str) -> Any:
        found = self.names.get(name)
        if found is not None:
            return found
        return next((what for pattern, what in self.others if _fits(name, pattern)), None)


class _Provider(Struct, frozen=True, kw_only=True):
    models: _Patterns
    like: tuple[str, ...]


class _Table(Struct, frozen=True, kw_only=True):
    """One table: its providers, and by which names they and the models that are theirs are meant."""

    source: str
    date: dt.date | None
    providers: dict[str, _Provider]
    called: _Patterns
    homes: _Patterns

    def find(self, model: str, provider: str | None) -> _Model | None:
        names = list(_spellings(model))
        if provider is None or provider == "unknown":
            home: str | None = next((home for name in names if (home := self.homes.find(name))), None)
        else:
            home = self.called.find(provider.strip().lower())
        if home is None:
            return None
        shops = [self.providers[one] for one in (home, *self.providers[home].like)]
        return next((found for name in names for shop in shops if (found := shop.models.find(name))), None)


class Prices:
    """A table of what models cost. It does not change once it is made.

    Args:
        table: The table, as the page *Prices* of the documentation tells. Prices are numbers, or decimals in strings.
        rest: Another table, for the models that this one does not know.

    Raises:
        ConfigurationError: The table is none; the error names the field, such as ``providers.acme.models.rocket.prices.input``.
    """

    def __init__(self, table: Mapping[str, Any], *, rest: Prices | None = None) -> None:
        others = () if rest is None else rest._tables  # noqa: SLF001 (of the same class)
        self._tables: tuple[_Table, ...] = (_table(table), *others)

    @classmethod
    def bundled(cls) -> Prices:
        """Return the table that comes with the library; it is read at the first call."""
        return _bundled()

    @classmethod
    def load(cls, path: str | PathLike[str], *, rest: Prices | None = None) -> Prices:
        """Return the table in a JSON file.

        Raises:
            ConfigurationError: The file cannot be read, or holds no table.
        """
        try:
            raw = Path(path).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"the table of prices cannot be read: {error.strerror or type(error).__name__}"
            ) from error
        return cls(_decoded(raw), rest=rest)

    @property
    def source(self) -> str:
        """Where the prices are from."""
        return self._tables[0].source

    @property
    def date(self) -> dt.date | None:
        """The day of the prices, or ``None`` where the table names none."""
        return self._tables[0].date

    def __repr__(self) -> str:
        return f"Prices({self._tables[0].source!r}, {self._tables[0].date}, {len(self._tables[0].providers)} providers)"

    def cost(
        self,
        model: str,
        usage: Usage,
        provider: str | None = None,
        *,
        cache: Literal["5m", "1h"] = "5m",
        on: dt.date | None = None,
    ) -> float | None:
        """Return what one model call cost in US dollars, or ``None`` where that is not known.

        The sum over the calls of a run is the run's cost. That of its added-up usage need not be: many models cost more where
        the input of a call is long. Each cost is the float next to the exact one, so a sum of ``n`` of them is off by less than
        ``n`` parts in 10¹⁵; ``math.fsum`` adds them without further loss.

        Args:
            model: Such as ``gpt-5``, ``us.anthropic.claude-sonnet-4-5-20250929-v1:0`` or ``models/gemini-2.5-pro``.
            usage: The tokens of the call.
            provider: Who is paid, such as ``openai`` or ``aws.bedrock``; by default whose name the model's is. A provider that the
                table does not have makes the cost unknown.
            cache: How long what was written to the provider's cache is kept there.
            on: The day of the call; today, in UTC, by default.

        Raises:
            ConfigurationError: A count of ``usage`` is negative or no whole number.
        """
        for field in usage.__struct_fields__:
            count: Any = getattr(usage, field)
            if type(count) is not int or count < 0:
                raise ConfigurationError(f"usage.{field} must be a whole number of at least 0, not {count!r}")
        found = self._find(model, provider)
        if found is None:
            return None
        day = on or dt.datetime.now(dt.UTC).date()
        size = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
        rule: _Rule | None = None
        for one in found.rules:
            if (size > one.above or not one.above) and (one.begins is None or one.begins <= day):
                rule = one
        if rule is None:
            return None
        written = "cache_write_1h" if cache == "1h" and "cache_write_1h" in rule.prices else "cache_write"
        total = (
            usage.input_tokens * rule.prices["input"]
            + usage.output_tokens * rule.prices["output"]
            + usage.cache_read_tokens * rule.price("cache_read", "input")
            + usage.cache_write_tokens * rule.price(written, "input")
            + usage.reasoning_tokens * rule.price("reasoning", "output")
        )
        return total / PER_DOLLAR

    def context_window(self, model: str, provider: str | None = None) -> int | None:
        """Return how many tokens ``model`` can hold, or ``None`` where that is not known."""
        found = self._find(model, provider)
        return None if found is None else found.context

    def _find(self, model: str, provider: str | None) -> _Model | None:
        return next((found for table in self._tables if (found := table.find(model, provider))), None)


@functools.cache
def _bundled() -> Prices:
    return Prices.load(Path(__file__).with_name("prices.json"))


# -- names

_SPELLED = (
    (re.compile(r"^.*/"), ""),
    # us.anthropic.…: where Bedrock is to run it
    (re.compile(r"^[a-z]{2,6}(?:-gov)?\.(?=[a-z0-9]+\.)"), ""),
    (re.compile(r"[-@](20\d\d)(\d\d)(\d\d)(?=$|-v\d)"), r"-\1-\2-\3"),
    (re.compile(r"(?:[-@](?:20\d\d-\d\d-\d\d|20\d{6})|[-@]latest)?(?:-v\d+(?::\w+)?)?$"), ""),
)


def _spellings(model: str) -> Iterator[str]:
    """Yield ``model`` as it is, and other names of the same, the nearest first.

    A path before the name goes (``models/``, an ARN), then a region, then the date and the version at the end.
    """
    forms = [model.strip().lower()]
    for found, written in _SPELLED:
        forms = list(dict.fromkeys([*forms, *(found.sub(written, name) for name in forms)]))
    yield from filter(None, forms)


def _add(patterns: _Patterns, given: list[str], what: Any, path: str) -> None:
    """Put ``what`` under each of the ``given`` patterns; what came first stays."""
    for pattern in given:
        text = pattern.lower()
        if len(pattern) > 2 and pattern.startswith("/") and pattern.endswith("/"):
            try:
                patterns.others.append((re.compile(pattern[1:-1], re.IGNORECASE), what))
            except re.error as error:
                raise ConfigurationError(f"{path}: {pattern!r} is no regular expression: {error}") from error
        elif "*" in text:
            # Compiling thousands of them would take longer than all else here.
            patterns.others.append((text.split("*"), what))
        else:
            patterns.names.setdefault(text, what)


def _fits(name: str, pattern: re.Pattern[str] | list[str]) -> bool:
    """Whether ``name`` matches an expression, or consists of these pieces with anything between them."""
    if isinstance(pattern, re.Pattern):
        return pattern.search(name) is not None
    first, *middle, last = pattern
    if not name.startswith(first):
        return False
    at = len(first)
    for piece in middle:
        at = name.find(piece, at) + len(piece)
        if at < len(piece):
            return False
    return name.endswith(last) and at + len(last) <= len(name)


# -- reading a table


def _decoded(raw: bytes) -> Mapping[str, Any]:
    try:
        # A float would change the digits of a price.
        return msgspec.json.Decoder(float_hook=Decimal).decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the table of prices is no JSON: {error}") from error


def _table(value: Any) -> _Table:
    form = _object(value, "prices")
    _known(form, "prices", {"source", "license", "date", "providers"})
    providers: dict[str, _Provider] = {}
    called, homes = _Patterns({}, []), _Patterns({}, [])
    for name, given in _object(form.get("providers"), "providers").items():
        path = f"providers.{name}"
        entry = _object(given, path)
        _known(entry, path, {"called", "match", "like", "models"})
        providers[name] = _provider(entry, path)
        _add(called, [name, *_list(entry.get("called", ()), f"{path}.called")], name, path)
        _add(homes, _list(entry.get("match", ()), f"{path}.match"), name, path)
    for name, provider in providers.items():
        for other in provider.like:
            if other not in providers:
                raise ConfigurationError(f"providers.{name}.like: there is no provider {other!r}")
    return _Table(
        source=_text(form.get("source", ""), "source"),
        date=_day(form.get("date"), "date"),
        providers=providers,
        called=called,
        homes=homes,
    )


def _provider(form: Mapping[str, Any], path: str) -> _Provider:
    models = _Patterns({}, [])
    for name, value in _object(form.get("models", {}), f"{path}.models").items():
        where = f"{path}.models.{name}"
        entry = _object(value, where)
        _known(entry, where, {"match", "context", "prices"})
        context: Any = entry.get("context")
        if context is not None and (type(context) is not int or context < 1):
            raise ConfigurationError(f"{where}.context must be a whole number of at least 1, not {context!r}")
        given: Any = entry.get("prices")
        rules = cast("list[Any]", given) if isinstance(given, list | tuple) else [given]
        if not rules:
            raise ConfigurationError(f"{where}.prices is empty")
        model = _Model(
            context=context,
            rules=tuple(
                _rule(rule, f"{where}.prices" if len(rules) == 1 else f"{where}.prices[{index}]")
                for index, rule in enumerate(rules)
            ),
        )
        _add(models, [name, *_list(entry.get("match", ()), f"{where}.match")], model, where)
    return _Provider(models=models, like=tuple(_list(form.get("like", ()), f"{path}.like")))


def _rule(value: Any, path: str) -> _Rule:
    form = _object(value, path)
    _known(form, path, KINDS | {"above", "from"})
    for kind in ("input", "output"):
        if kind not in form:
            raise ConfigurationError(f"{path}.{kind} is missing")
    above: Any = form.get("above", 0)
    if type(above) is not int or above < 0:
        raise ConfigurationError(f"{path}.above must be a whole number of at least 0, not {above!r}")
    return _Rule(
        prices={kind: _price(form[kind], f"{path}.{kind}") for kind in form.keys() & KINDS},
        above=above,
        begins=_day(form.get("from"), f"{path}.from"),
    )


def _price(value: Any, path: str) -> int:
    """Return dollars per million tokens as the whole number that `PER_DOLLAR` is the unit of."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise ConfigurationError(f"{path} must be a number, not {data.kind(value)}")
    try:
        return _units(repr(value) if isinstance(value, float) else value)
    except InvalidOperation as error:
        raise ConfigurationError(f"{path} must be a number, not {value!r}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} must be {error}") from error


@functools.lru_cache(maxsize=4096)  # prices are often the same
def _units(value: str | int | Decimal) -> int:
    number = Decimal(value)
    if not number.is_finite() or number < 0:
        raise ValueError("a finite number of at least 0")
    _, digits, exponent = number.as_tuple()
    shift = int(exponent) + DIGITS
    if len(digits) > 30 or abs(shift) > 30:
        raise ValueError("a number of up to 30 digits")
    whole = int("".join(map(str, digits)))
    if shift < 0 and whole % 10**-shift:
        raise ValueError(f"a number with up to {DIGITS} digits after the point")
    return whole * 10**shift if shift >= 0 else whole // 10**-shift


def _object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) for key in cast("Mapping[Any, Any]", value)
    ):
        raise ConfigurationError(f"{path} must be an object with string keys, not {data.kind(value)}")
    return cast("Mapping[str, Any]", value)


def _known(form: Mapping[str, Any], path: str, fields: frozenset[str] | set[str]) -> None:
    for key in form:
        if key not in fields:
            raise ConfigurationError(f"{path} has the unknown field {key!r}")


def _list(value: Any, path: str) -> list[str]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, str) for item in cast("list[Any]", value)
    ):
        raise ConfigurationError(f"{path} must be a list of strings")
    return list(cast("list[str]", value))


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{path} must be a string, not {data.kind(value)}")
    return value


def _day(value: Any, path: str) -> dt.date | None:
    if value is None:
        return None
    try:
        return dt.date.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{path} must be a day such as 2026-12-31, not {value!r}") from error
