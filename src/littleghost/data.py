"""JSON values: checking that one can be stored exactly, packing it into bytes, copying and comparing.

A JSON value is ``None``, a ``bool``, an ``int`` of up to 4300 characters, a finite ``float``, a ``str`` of valid Unicode, a list or
tuple of JSON values, or a mapping from ``str`` to JSON values, nested at most `MAX_DEPTH` deep. Tuples become lists, subclasses their
plain type. Everything else is refused with a `DataError` that names where it is.

The encoder alone would turn NaN into null, integer keys into strings and bytes into base64, so a value is accepted only
when what comes back equals what went in; the slow walk runs only to name the path, or to normalise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from littleghost.errors import DataError

__all__ = ["MAX_DEPTH", "copy", "equal", "normalise", "pack", "pack_object", "unpack"]

MAX_DEPTH = 100
"""How deep lists and objects may nest. Source: the limit of the JSON library of the Ruby system, which reads what we write."""

MAX_DIGITS = 4300
"""How many characters an integer may have. Source: https://docs.python.org/3/library/stdtypes.html#int-max-str-digits"""

_KEYS = frozenset({str})
_PLAIN = frozenset({str, int, bool, type(None)})
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


def pack(value: Any, path: str = "value", free: int = 0) -> bytes:
    """Return ``value`` as compact JSON.

    Args:
        value: A JSON value.
        path: What to call it in an error, such as ``state``.
        free: How many levels on top do not count as nesting.

    Raises:
        DataError: It cannot be stored exactly.
    """
    try:
        raw = _encode(value)
        if _is_plain(value) and len(raw) < MAX_DIGITS:
            return raw
        if _decode(raw) == value and (is_shallow(raw) or fits(value, MAX_DEPTH + free)):
            return raw
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
        pass
    return _encode(walk(value, path, -free))


def _is_plain(value: Any) -> bool:
    """Whether ``value`` is an object of texts, integers and the like, which come back as they went in unless one is too long."""
    if type(value) is not dict:
        return False
    members = cast("dict[Any, Any]", value)
    return _KEYS.issuperset(map(type, members)) and _PLAIN.issuperset(map(type, members.values()))


def pack_object(value: Any, path: str = "value") -> bytes:
    """Return ``value``, which must be a mapping, as compact JSON; see `pack`."""
    if type(value) is not dict and not isinstance(value, Mapping):
        raise DataError.at(path, f"expected an object with string keys, got {kind(value)}")
    return pack(cast("Any", value), path)


def pack_sorted(value: Any) -> bytes:
    """Return ``value``, a plain JSON value, in a form that is the same for the same JSON."""
    return _encode_sorted(value)


def unpack(raw: bytes | bytearray | memoryview | str) -> Any:
    """Return the JSON value in ``raw``, a copy of the caller's own.

    Raises:
        DataError: It is not valid JSON, or not valid UTF-8.
    """
    try:
        return _decode(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise DataError.at("value", f"not valid JSON: {error}") from error


def normalise(value: Any, path: str = "value", free: int = 0) -> Any:
    """Return a plain deep copy of ``value``: only dicts, lists, strings, numbers, booleans and ``None``; see `pack`.

    Raises:
        DataError: It cannot be stored exactly.
    """
    return _decode(pack(value, path, free))


def copy(value: Any) -> Any:
    """Return a deep copy of ``value``, which is known to be a plain JSON value."""
    if isinstance(value, dict):
        return {key: copy(child) for key, child in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [copy(child) for child in cast("list[Any]", value)]
    return value


def equal(left: bytes, right: bytes) -> bool:
    """Whether two packed values are the same JSON, the order of keys apart; ``1``, ``1.0`` and ``true`` differ."""
    return left == right or _encode_sorted(_decode(left)) == _encode_sorted(_decode(right))


def is_shallow(raw: bytes) -> bool:
    """Whether packed JSON cannot nest too deep, told by its length or the number of its brackets alone."""
    return len(raw) <= MAX_DEPTH or raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH


def fits(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether a plain value nests at most ``depth`` deep."""
    if isinstance(value, dict):
        return depth > 0 and all(fits(child, depth - 1) for child in cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        return depth > 0 and all(fits(child, depth - 1) for child in cast("list[Any]", value))
    return True


def walk(value: Any, path: str, depth: int = 0, inside: tuple[int, ...] = ()) -> Any:
    """Return a plain copy of ``value``, or raise the `DataError` that names what is wrong and where."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        return _integer(value, path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise DataError.at(path, f"{float(value)!r} is not a finite number")
        return float(value)
    if not isinstance(value, Mapping | list | tuple):
        raise DataError.at(path, f"{kind(value)} is not a JSON value")
    identity = id(cast("Any", value))
    if identity in inside:
        raise DataError.at(path, "contains itself")
    if depth >= MAX_DEPTH:
        raise DataError.at(path, f"nested deeper than {MAX_DEPTH}")
    inside = (*inside, identity)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_key(key, path): walk(child, member(path, key), depth + 1, inside) for key, child in items}
    children = cast("list[Any]", value)
    return [walk(child, f"{path}[{index}]", depth + 1, inside) for index, child in enumerate(children)]


def member(path: str, key: str) -> str:
    """Return the path of the member ``key`` of the object at ``path``."""
    shown = key if len(key) <= 40 else key[:37] + "..."
    return f"{path}.{key}" if shown.isidentifier() else f"{path}[{shown!r}]"


def check_text(value: Any, path: str) -> str:
    """Return ``value``, which must be a ``str`` without lone surrogates.

    Raises:
        DataError: It is not.
    """
    if not isinstance(value, str):
        raise DataError.at(path, f"expected text, got {kind(value)}")
    return _text(value, path)


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError.at(path, f"has a lone surrogate at character {error.start}") from None
    return str.__str__(value)  # not str(), which an enumeration makes its own name


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise DataError.at(path, f"has the key {_shown(key)}, which is {kind(key)} and not text")
    try:
        return _text(key, path)
    except DataError:
        raise DataError.at(path, "has a key with a lone surrogate") from None


def _integer(value: int, path: str) -> int:
    value = int(value)
    try:
        _decode(_encode(value))
    except (ValueError, msgspec.MsgspecError):
        raise DataError.at(path, "has more digits than can be read back: 4300, the sign counted") from None
    return value


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."


def kind(value: Any) -> str:
    """Return what to call ``value`` in an error: its class, and nothing of its content."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
