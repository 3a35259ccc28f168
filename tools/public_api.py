"""The public names of the library with their signatures, as text that can be compared.

Usage:
    python tools/public_api.py            print it
    python tools/public_api.py --write    into tests/unit/public_api.txt, which a test compares
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

NAMESPACES = ["littleghost", "littleghost.emulators.agentcore", "littleghost.sync", "littleghost.testing"]
SNAPSHOT = Path(__file__).resolve().parents[1] / "tests" / "unit" / "public_api.txt"


def public_names(module: Any) -> list[str]:
    """What `module` offers: its ``__all__``, sorted."""
    return sorted(module.__all__)


def is_ours(thing: Any) -> bool:
    """Whether `thing` was written in this library."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] == "littleghost"


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties of `cls`, with those it has from other classes of ours, by name.

    A value is as the class dictionary holds it, so that a property or a classmethod can be told.
    """
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if is_ours(base):
            found.update(vars(base))
    for name in sorted(found):
        value = found[name]
        kinds = (property, classmethod, staticmethod)
        if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, kinds)):
            yield name, value


def written_annotations(cls: type) -> dict[str, Any]:
    """What `cls` and its bases of ours declare, as it is written in the source."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if is_ours(base):
            found.update(inspect.get_annotations(base))
    return found


def attributes(cls: type) -> Iterator[tuple[str, Any]]:
    """The public attributes that `cls` declares, but for fields, which its signature shows."""
    fields = inspect.signature(cls).parameters if issubclass(cls, msgspec.Struct) else ()
    for name, annotation in sorted(written_annotations(cls).items()):
        if not name.startswith("_") and name not in fields:
            yield name, annotation


def stable(text: str) -> str:
    """`text` without what differs from run to run and from one Python to the next."""
    text = re.sub(r"<(?:class )?'?([\w.]+)'?>", r"\1", text)
    text = re.sub(r"<(?:function |bound method )?([^<>]+) at 0x[0-9a-f]+>", r"<\1>", text)
    return text.replace("typing.", "").replace("collections.abc.", "")


def show_default(value: Any) -> str:
    """A default value; sets in order."""
    if isinstance(value, frozenset | set):
        return "{" + ", ".join(sorted(map(repr, value))) + "}"
    return repr(value)


def show_signature(function: Any) -> str:
    """``(a: int, *, b: str = 'x') -> None``."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(…)"
    # A struct's signature has its annotations evaluated, and how those look differs between Pythons.
    written = (
        written_annotations(function)
        if inspect.isclass(function) and issubclass(function, msgspec.Struct)
        else {}
    )
    parameters, star, slash = [], False, False
    for parameter in signature.parameters.values():
        text = parameter.name
        if parameter.kind is parameter.POSITIONAL_ONLY:
            slash = True
        elif slash:
            parameters.append("/")
            slash = False
        if parameter.kind is parameter.VAR_POSITIONAL:
            text, star = f"*{text}", True
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = f"**{text}"
        elif parameter.kind is parameter.KEYWORD_ONLY and not star:
            parameters.append("*")
            star = True
        if parameter.annotation is not parameter.empty:
            text += f": {show_annotation(written.get(parameter.name, parameter.annotation))}"
        if parameter.default is not parameter.empty:
            text += f" = {show_default(parameter.default)}"
        parameters.append(text)
    if slash:
        parameters.append("/")
    returns = signature.return_annotation
    arrow = "" if returns is signature.empty else f" -> {show_annotation(returns)}"
    return stable(f"({', '.join(parameters)}){arrow}")


def show_annotation(annotation: Any) -> str:
    """As written where annotations are text, else as Python shows it."""
    annotation = getattr(annotation, "__forward_arg__", annotation)
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def show_member(name: str, value: Any) -> str:
    """One line for a method or property."""
    if isinstance(value, property):
        returns = inspect.signature(value.fget).return_annotation if value.fget else None
        return f".{name}: {stable(show_annotation(returns))}"
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    if isinstance(value, classmethod | staticmethod):
        prefix = "class " if isinstance(value, classmethod) else "static "
        if inspect.iscoroutinefunction(value.__func__):
            prefix += "async "
        value = value.__func__
    return f"{prefix}.{name}{show_signature(value)}"


def describe(name: str, thing: Any) -> Iterator[str]:
    """The lines for one public name."""
    if inspect.isclass(thing):
        bases = ", ".join(base.__name__ for base in thing.__bases__ if base is not object)
        yield f"class {name}{f' [{bases}]' if bases else ''}{show_signature(thing)}"
        for attribute, annotation in attributes(thing):
            yield f"    .{attribute}: {stable(show_annotation(annotation))}"
        for member, value in members(thing):
            yield f"    {show_member(member, value)}"
    elif inspect.isroutine(thing):
        yield f"{'async ' if inspect.iscoroutinefunction(thing) else ''}def {name}{show_signature(thing)}"
    elif inspect.ismodule(thing):
        yield f"module {name}"
    else:
        value = thing if isinstance(thing, str | int | float | bool) else type(thing).__name__
        yield f"{name} = {value!r}" if name != "__version__" else f"{name}: str"


def render() -> str:
    """The whole text."""
    lines: list[str] = []
    for namespace in NAMESPACES:
        module = importlib.import_module(namespace)
        lines += [f"# {namespace}", ""]
        for name in public_names(module):
            lines += describe(name, getattr(module, name))
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        SNAPSHOT.write_text(render(), "utf-8")
        print(f"wrote {SNAPSHOT}")
    else:
        print(render(), end="")
