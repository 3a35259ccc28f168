"""The tree of errors is the one that is drawn, and errors survive the ways they travel."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re

import pytest

from littleghost import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]
TOOLS = (errors.ToolError, errors.ToolRetry)
FILES = [kind for kind in CLASSES if kind.__name__.startswith("Tool") and kind not in TOOLS]


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """The tree in the docstring: name → (parent, second base)."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│ ├└─]*)(\w+\*?)(?: \(([\w, …]+)\))?", line)
        if match and (not above or match[1]):
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            tree[match[2]] = (above[depth - 1] if depth else None, match[3])
    return tree


def test_the_tree_is_the_one_that_is_drawn():
    tree = drawn()
    assert tree.pop("Tool*") == ("ToolError", "FileNotFoundError, …")
    assert set(tree) == set(errors.__all__) - {kind.__name__ for kind in FILES}
    for name, (parent, second) in tree.items():
        bases = tuple(base.__name__ for base in getattr(errors, name).__bases__)
        assert bases == (parent or "Exception", *([second] if second else [])), name
    for kind in FILES:
        first, second = kind.__bases__
        assert first is errors.ToolError
        assert getattr(builtins, second.__name__) is second


def test_every_class_of_the_module_is_public_and_documented():
    classes = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    assert classes == set(errors.__all__)
    assert list(errors.__all__) == sorted(errors.__all__)
    assert all(kind.__doc__ for kind in CLASSES)


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_keeps_its_class_text_and_fields_when_pickled_and_copied(
    kind: type[errors.LittleGhostError],
):
    error = kind("what happened", place="a.b", expected=1, more=[1, {"x": 2}])
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert str(other) == "what happened"
        assert other.args == error.args == ("what happened",)
        assert (other.message, other.place, other.expected, other.more) == (
            "what happened",
            "a.b",
            1,
            [1, {"x": 2}],
        )
    assert copy.deepcopy(error).more is not error.more


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_can_be_made_of_nothing_and_keeps_its_cause_and_notes(kind: type[errors.LittleGhostError]):
    assert str(kind()) == ""
    cause = OSError(2, "x")
    with pytest.raises(kind) as caught:
        raise kind("outer") from cause
    assert caught.value.__cause__ is cause
    caught.value.add_note("hint")
    assert pickle.loads(pickle.dumps(caught.value)).__notes__ == ["hint"]


@pytest.mark.parametrize("kind", CLASSES)
def test_the_fields_a_class_declares_have_values_where_none_are_given(kind: type[errors.LittleGhostError]):
    declared = [
        name
        for base in kind.__mro__
        for name in inspect.get_annotations(base)
        if base.__module__ == errors.__name__
    ]
    for name in declared:
        assert getattr(kind("x"), name) in (None, "", 0.0, ())


def test_the_constructors_of_the_common_errors():
    error = errors.DataError.at("state.plan.items[3].due", "is wrong")
    assert (str(error), error.path, error.reason) == (
        "state.plan.items[3].due: is wrong",
        "state.plan.items[3].due",
        "is wrong",
    )
    assert str(errors.DataError.at("", "is wrong")) == "value: is wrong"
    missing = errors.DependencyError.missing("openai", "openai")
    assert "pip install 'littleghost[openai]'" in str(missing)
    assert (missing.extra, missing.package) == ("openai", "openai")


def test_errors_are_caught_as_what_they_are_nearest_to():
    for kind, builtin in [
        (errors.DataError, ValueError),
        (errors.DependencyError, ImportError),
        (errors.StoreUnavailableError, ConnectionError),
        (errors.DeadlineExceeded, TimeoutError),
        (errors.SessionNotFoundError, LookupError),
        (errors.UnsupportedError, NotImplementedError),
        (errors.ToolFileNotFoundError, FileNotFoundError),
        (errors.ToolTimeoutError, TimeoutError),
        (errors.ToolConnectionError, ConnectionError),
    ]:
        with pytest.raises(builtin, match="text"):
            raise kind("text")
    assert issubclass(errors.ConflictError, errors.ProtocolError)
    assert issubclass(errors.CorruptSessionError, errors.ProtocolError)
