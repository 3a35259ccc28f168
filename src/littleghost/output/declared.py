"""What an agent says of the answers it gives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Generic, Literal

from littleghost import data
from littleghost.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import TypeForm, TypeVar

    from littleghost.output.form import Form

    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)

__all__ = ["Output", "Strategy"]

Strategy = Literal["auto", "native", "tool"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Output(Generic[T_co]):
    """The type of an agent's answers, and how it gets them. ``output=T`` is short for ``output=Output(T)``.

    Args:
        type: A msgspec struct, a dataclass, a TypedDict, a pydantic model, or plain types, containers and unions of these.
        name: What the tool or the form is called towards the model.
        description: What the answer is for; by default the type's docstring.
        strategy: ``native``: the provider holds the answer to the schema; ``tool``: the answer is the call of a tool; ``auto``: native
            where the model has the capability ``answer_format``, else by a tool.
        repairs: How often in a run the model is told what was wrong and asked again.

    Raises:
        ConfigurationError: The type has no JSON Schema, or something else cannot be used.
    """

    __slots__ = ("_description", "_form", "_name", "_repairs", "_strategy", "_type")

    def __init__(
        self,
        type: type[T_co] | TypeForm[T_co],
        *,
        name: str = "final_answer",
        description: str | None = None,
        strategy: Strategy = "auto",
        repairs: int = 2,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"output name {name!r} must be 1 to 64 letters, digits, '_' or '-'")
        if strategy not in ("auto", "native", "tool"):
            raise ConfigurationError(f"strategy must be 'auto', 'native' or 'tool', not {strategy!r}")
        if isinstance(repairs, bool) or not isinstance(repairs, int) or repairs < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"repairs must be a whole number from 0, not {repairs!r}")
        from littleghost.output.form import Form  # a run whose answer is text does without it

        self._type: Any = type
        self._name = name
        self._form = Form(type)
        told = self._form.description if description is None else description
        self._description = data.check_text(told, "output.description")
        self._strategy: Strategy = strategy
        self._repairs = repairs

    @property
    def type(self) -> Any:
        """The type."""
        return self._type

    @property
    def name(self) -> str:
        """What the tool or the form is called."""
        return self._name

    @property
    def description(self) -> str:
        """What the answer is for."""
        return self._description

    @property
    def strategy(self) -> Strategy:
        """How the answer is got."""
        return self._strategy

    @property
    def repairs(self) -> int:
        """How often the model is asked again."""
        return self._repairs

    @property
    def form(self) -> Form:
        """The JSON form of the type, `Form.schema` among the rest."""
        return self._form

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema that the model is given."""
        return data.copy(self._form.schema)

    def __repr__(self) -> str:
        return f"Output({self._type!r}, strategy={self._strategy!r})"
