"""Options that several commands have, and how the help shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["ActorOption", "Command", "Group", "JsonOption", "StoreOption", "YesOption"]

if TYPE_CHECKING:
    _Shown = TyperCommand
else:
    _Shown = object


class _Plain(_Shown):
    """Shows a flag without a value, and a required argument without braces, whatever the version of Typer would show."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # a mistake that does not say in which command it was made
                cast("Any", error).ctx = ctx
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.removeprefix("{").removesuffix("}") for piece in super().collect_usage_pieces(ctx)]


class Command(_Plain, TyperCommand):
    """A command with such a help."""


class Group(_Plain, TyperGroup):
    """A group of commands with such a help."""


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="LITTLEGHOST_STORE",
        help="sqlite:///FILE, postgresql://USER@HOST/DATABASE or agentcore://MEMORY. A file of your own by default.",
    ),
]
ActorOption = Annotated[
    str | None,
    typer.Option(
        "--actor",
        metavar="ID",
        help="Whose sessions, as an application's actor_id; without it, those that belong to nobody.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
