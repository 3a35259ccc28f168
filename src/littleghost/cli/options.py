"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["ActorOption", "JsonOption", "StoreOption"]

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="LITTLEGHOST_STORE",
        help="sqlite:///FILE, postgresql://USER@HOST/DATABASE or memory:. A file of your own by default.",
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
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
