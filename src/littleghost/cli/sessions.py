"""The commands below ``littleghost sessions`` and their options."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from littleghost.cli.options import ActorOption, JsonOption, StoreOption
from littleghost.cli.terminal import Terminal, reporting

__all__ = ["sessions"]

sessions = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look into a store, look after it, and move what it holds.",
)


class ExistingKind(StrEnum):
    """What becomes of a session whose place is taken by another one."""

    FAIL = "fail"
    SKIP = "skip"
    REPLACE = "replace"


IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The session.")]
AllActorsOption = Annotated[bool, typer.Option("--all-actors", help="The sessions of everybody.")]
OneActorOption = Annotated[
    str | None,
    typer.Option("--actor", metavar="ID", help="Only the sessions of this one; without it, of everybody."),
]
ExistingOption = Annotated[
    ExistingKind,
    typer.Option(
        "--existing",
        help="Where another session has the same actor and id: count it as failed, leave it alone, or replace it.",
    ),
]


def _examples(*lines: tuple[str, str]) -> str:
    return "\n\n".join(
        ["**Examples**", *(f"`littleghost sessions {command}` — {what}" for command, what in lines)]
    )


def _run(context: typer.Context, work: Callable[[Terminal], int | None]) -> None:
    terminal = Terminal()
    with reporting(terminal, debug=context.obj):
        status = work(terminal)
    raise typer.Exit(status or 0)


@sessions.command(
    "list",
    epilog=_examples(
        ("list --actor user-7", "what belongs to user-7"),
        ("list --all-actors --by-time --limit 20", "the 20 that were written last, of everybody"),
        ("list --since 2d --json", "what was written in the last two days, a JSON object a line"),
    ),
)
def list_command(
    context: typer.Context,
    *,
    store: StoreOption = None,
    actor: ActorOption = None,
    all_actors: AllActorsOption = False,
    by_time: Annotated[bool, typer.Option("--by-time", help="What was written last comes first.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="WHEN", help="Only what was last written then or later: 2026-01-31, 12h, 30d."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="WHEN", help="Only what was last written before.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="NUMBER", help="How many at most.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the sessions of an actor, by id. With --json, a JSON object a line."""

    def work(terminal: Terminal) -> None:
        from littleghost.cli.listing import ListOptions, list_sessions

        asked = ListOptions(
            actor=actor, all_actors=all_actors, by_time=by_time, since=since, until=until, limit=limit
        )
        list_sessions(terminal, asked, store=store, as_json=as_json)

    _run(context, work)


@sessions.command("show")
def show_command(
    context: typer.Context,
    *,
    session: IdArgument,
    store: StoreOption = None,
    actor: ActorOption = None,
    state: Annotated[bool, typer.Option("--state", help="Show the application's state as well.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a conversation whole, with its tool calls and their results."""

    def work(terminal: Terminal) -> None:
        from littleghost.cli.listing import show_session

        show_session(terminal, session, store=store, actor=actor, state=state, as_json=as_json)

    _run(context, work)


@sessions.command(
    "tail",
    epilog=_examples(
        ("tail shop-1", "the last ten messages"),
        ("tail shop-1 --limit 50 --before 200", "the messages 150 to 199, counted from 0"),
    ),
)
def tail_command(
    context: typer.Context,
    *,
    session: IdArgument,
    limit: Annotated[int, typer.Option("--limit", metavar="NUMBER", help="How many messages.")] = 10,
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="INDEX", help="Those before this message, counted from 0."),
    ] = None,
    store: StoreOption = None,
    actor: ActorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last messages of a conversation, without reading what is before."""

    def work(terminal: Terminal) -> None:
        from littleghost.cli.listing import show_tail

        show_tail(terminal, session, limit=limit, before=before, store=store, actor=actor, as_json=as_json)

    _run(context, work)


@sessions.command("stats")
def stats_command(
    context: typer.Context,
    *,
    store: StoreOption = None,
    actor: OneActorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many sessions, messages and bytes there are."""

    def work(terminal: Terminal) -> None:
        from littleghost.cli.listing import chosen_actor, show_statistics

        whose = chosen_actor(actor, everybody=actor is None)
        show_statistics(terminal, store=store, actor=whose, as_json=as_json)

    _run(context, work)


@sessions.command(
    "fork", epilog=_examples(("fork shop-1 shop-1b --at 4", "begin shop-1b with the first four messages"))
)
def fork_command(
    context: typer.Context,
    *,
    session: IdArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The id of the new session.")],
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="NUMBER", help="How many messages it begins with; all unless given."),
    ] = None,
    store: StoreOption = None,
    actor: ActorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a session with the beginning of another one, of the same actor.

    A call is never parted from its result; fewer messages are taken then.
    """

    def work(terminal: Terminal) -> None:
        from littleghost.cli.changing import fork_session

        fork_session(terminal, session, new, at=at, store=store, actor=actor, as_json=as_json)

    _run(context, work)


@sessions.command("delete")
def delete_command(
    context: typer.Context,
    *,
    session: IdArgument,
    store: StoreOption = None,
    actor: ActorOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a session for good. Asks before, and refuses where it cannot ask."""

    def work(terminal: Terminal) -> None:
        from littleghost.cli.changing import delete_session

        delete_session(terminal, session, yes=yes, store=store, actor=actor, as_json=as_json)

    _run(context, work)


@sessions.command(
    "export",
    epilog=_examples(
        ("export --output backup.jsonl", "all sessions into a file, which is there whole or not at all"),
        ("export --actor user-7 > user-7.jsonl", "what belongs to user-7"),
        ("export | zstd > backup.jsonl.zst", "into another program"),
    ),
)
def export_command(
    context: typer.Context,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is standard output.")
    ] = "-",
    store: StoreOption = None,
    actor: OneActorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write sessions as JSON Lines, for `import`. The exit status is 1 where one could not be read.

    The file is for its owner alone to read. --json makes the summary JSON; what is exported always is.
    """

    def work(terminal: Terminal) -> int:
        from littleghost.cli.listing import chosen_actor
        from littleghost.cli.moving import export_to

        whose = chosen_actor(actor, everybody=actor is None)
        return export_to(terminal, output, store=store, actor=whose, as_json=as_json)

    _run(context, work)


@sessions.command(
    "import",
    epilog=_examples(
        ("import backup.jsonl", "what export wrote; run it again where it broke off"),
        ("import backup.jsonl --existing replace", "as it was, whatever has become of it"),
        ("import - < backup.jsonl", "from standard input"),
    ),
)
def import_command(
    context: typer.Context,
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export wrote; - is standard input.")],
    existing: ExistingOption = ExistingKind.FAIL,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put exported sessions into a store, each whole or not at all, with their times.

    What is there already and is the same is left alone. The exit status is 1 where a session failed, or the file was cut or changed.
    """

    def work(terminal: Terminal) -> int:
        from littleghost.cli.moving import import_from

        return import_from(terminal, file, existing=existing.value, store=store, as_json=as_json)

    _run(context, work)


@sessions.command(
    "copy",
    epilog=_examples(
        (
            "copy sqlite:///shop.db postgresql://shop@db.example/shop",
            "from a file to a server; PGPASSWORD holds the password",
        ),
        (
            "copy sqlite:///old.db sqlite:///new.db --existing replace",
            "once more, with what was written since",
        ),
    ),
)
def copy_command(
    context: typer.Context,
    *,
    source: Annotated[str, typer.Argument(metavar="SRC", help="The URL of the store to copy from.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="The URL of the store to copy to.")],
    actor: OneActorOption = None,
    existing: ExistingOption = ExistingKind.FAIL,
    as_json: JsonOption = False,
) -> None:
    """Copy sessions from one store to another, each compared with what is read back.

    What is there already and is the same is left alone, so that a copy that broke off is simply run again. The exit status is 1 where a
    session failed.
    """

    def work(terminal: Terminal) -> int:
        from littleghost.cli.listing import chosen_actor
        from littleghost.cli.moving import copy_between

        whose = chosen_actor(actor, everybody=actor is None)
        return copy_between(
            terminal, source, destination, actor=whose, existing=existing.value, as_json=as_json
        )

    _run(context, work)


@sessions.command("verify")
def verify_command(context: typer.Context, *, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Read every session of everybody whole, and list what is damaged. The exit status is 1 where something is.

    Nothing is repaired, and the store can be used meanwhile.
    """

    def work(terminal: Terminal) -> int:
        from littleghost.cli.upkeep import verify

        return verify(terminal, store=store, as_json=as_json)

    _run(context, work)


@sessions.command(
    "expire",
    epilog=_examples(
        ("expire --older-than 90d --dry-run", "how many would go"),
        ("expire --older-than 90d", "delete what nobody has written to for 90 days"),
    ),
)
def expire_command(
    context: typer.Context,
    *,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="TIME", help="How long nobody has written to it: 90s, 12h, 30d, 4w."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete the sessions, of everybody, that nobody has written to for a time. It does not ask."""

    def work(terminal: Terminal) -> None:
        from littleghost.cli.upkeep import expire

        expire(terminal, older_than, dry_run=dry_run, store=store, as_json=as_json)

    _run(context, work)
