"""The commands below ``littleghost sessions`` and their options."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from littleghost.cli.options import ActorOption, Command, Group, JsonOption, StoreOption, YesOption
from littleghost.cli.terminal import Terminal, reporting

__all__ = ["sessions"]

sessions = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Look into a store, look after it, and move what it holds.",
)


class ExistingKind(StrEnum):
    """What becomes of a session whose place is taken by another one."""

    FAIL = "fail"
    SKIP = "skip"
    REPLACE = "replace"


BEHIND = "Behind -- where it begins with -."
IdArgument = Annotated[str, typer.Argument(metavar="ID", help=f"The session. {BEHIND}")]
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
    cls=Command,
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
            "--since",
            metavar="WHEN",
            help="Only what was last written then or later: 2026-01-31, 2026-01-31T18:30, 12h or 30d ago, seconds since the epoch.",
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


@sessions.command(
    "show",
    cls=Command,
    epilog=_examples(
        ("show shop-1 --actor user-7", "a session of user-7"),
        ("show shop-1 --state --json", "with what the application keeps, as one JSON object"),
    ),
)
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
    cls=Command,
    epilog=_examples(
        ("tail shop-1", "the last ten messages"),
        ("tail shop-1 --limit 50 --before 200", "the messages 150 to 199, counted from 0"),
    ),
)
def tail_command(
    context: typer.Context,
    *,
    session: IdArgument,
    store: StoreOption = None,
    actor: ActorOption = None,
    limit: Annotated[int, typer.Option("--limit", metavar="NUMBER", help="How many messages.")] = 10,
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="INDEX", min=0, help="Those before this message, counted from 0."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last messages of a conversation, without reading what is before."""

    def work(terminal: Terminal) -> None:
        from littleghost.cli.listing import show_tail

        show_tail(terminal, session, limit=limit, before=before, store=store, actor=actor, as_json=as_json)

    _run(context, work)


@sessions.command(
    "stats",
    cls=Command,
    epilog=_examples(("stats", "of everybody"), ("stats --actor user-7 --json", "of user-7, as JSON")),
)
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
    "fork",
    cls=Command,
    epilog=_examples(("fork shop-1 shop-1b --at 4", "begin shop-1b with the first four messages")),
)
def fork_command(
    context: typer.Context,
    *,
    session: IdArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The id of the new session.")],
    store: StoreOption = None,
    actor: ActorOption = None,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", metavar="NUMBER", min=0, help="How many messages it begins with; all unless given."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a session with the beginning of another one, of the same actor, and with its state and metadata of now.

    A call is never parted from its result; fewer messages are taken then.
    """

    def work(terminal: Terminal) -> None:
        from littleghost.cli.changing import fork_session

        fork_session(terminal, session, new, at=at, store=store, actor=actor, as_json=as_json)

    _run(context, work)


@sessions.command(
    "delete",
    cls=Command,
    epilog=_examples(
        ("delete shop-1 --actor user-7", "one session of user-7"),
        ("delete --actor user-7 --all", "whatever there is of user-7"),
        ("delete --actor user-7 --all --yes --json", "from a script: nobody is asked, and how many is told"),
    ),
)
def delete_command(
    context: typer.Context,
    *,
    session: Annotated[
        str | None, typer.Argument(metavar="ID", help=f"The session. {BEHIND}", show_default=False)
    ] = None,
    store: StoreOption = None,
    actor: ActorOption = None,
    all_of_it: Annotated[
        bool, typer.Option("--all", help="Every session of the actor, in place of one.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a session, or all of an actor, for good. Asks before, and refuses where it cannot ask.

    With --all, the exit status is 1 where something of the actor may be left because of damage.
    """

    def work(terminal: Terminal) -> int | None:
        from littleghost.cli.changing import delete_all, delete_session, which

        which(session, actor, all_of_it=all_of_it)
        if session is not None:
            return delete_session(terminal, session, yes=yes, store=store, actor=actor, as_json=as_json)
        return delete_all(terminal, yes=yes, store=store, actor=actor or "", as_json=as_json)

    _run(context, work)


@sessions.command(
    "export",
    cls=Command,
    epilog=_examples(
        ("export --output backup.jsonl", "all sessions into a file, which is there whole or not at all"),
        ("export --actor user-7 > user-7.jsonl", "what belongs to user-7"),
        ("export | zstd > backup.jsonl.zst", "into another program"),
    ),
)
def export_command(
    context: typer.Context,
    *,
    store: StoreOption = None,
    actor: OneActorOption = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is standard output.")
    ] = "-",
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
    cls=Command,
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
    store: StoreOption = None,
    existing: ExistingOption = ExistingKind.FAIL,
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
    cls=Command,
    epilog=_examples(
        (
            "copy sqlite:///shop.db postgresql://shop@db.example/shop",
            "from a file to a server; PGPASSWORD or ~/.pgpass holds the password",
        ),
        (
            "copy sqlite:///old.db sqlite:///new.db --existing replace --prune",
            "once more, so that the second is as the first is now",
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
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Afterwards delete from DST what SRC does not have, unless a session failed. Asks before, and refuses where it cannot.",
        ),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy sessions from one store to another, each compared with what is read back.

    What is there already and is the same is left alone, so that a copy that broke off is simply run again. The exit status is 1 where a
    session failed.

    --prune deletes nothing where SRC has no session at all; that is an error.

    `--existing replace` overwrites what differs in DST, also where that is newer. Neither it nor --prune is for a DST that is in use.
    """

    def work(terminal: Terminal) -> int:
        from littleghost.cli.listing import chosen_actor
        from littleghost.cli.moving import copy_between

        whose = chosen_actor(actor, everybody=actor is None)
        return copy_between(
            terminal,
            source,
            destination,
            actor=whose,
            existing=existing.value,
            prune=prune,
            yes=yes,
            as_json=as_json,
        )

    _run(context, work)


@sessions.command(
    "verify",
    cls=Command,
    epilog=_examples(
        ("verify", "the whole store"),
        (
            "verify > verify.txt 2>&1 || mail -s damaged ops@example.com < verify.txt",
            "for cron; the exit status is more than 0 where something is damaged, or there is no store to read",
        ),
    ),
)
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
    cls=Command,
    epilog=_examples(
        ("expire --older-than 90d --dry-run", "how many would go"),
        ("expire --older-than 90d", "delete what nobody has written to for 90 days"),
    ),
)
def expire_command(
    context: typer.Context,
    *,
    store: StoreOption = None,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="TIME", help="How long nobody has written to it: 90s, 12h, 30d, 4w."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the sessions, of everybody, that nobody has written to for a time. It does not ask."""

    def work(terminal: Terminal) -> None:
        from littleghost.cli.upkeep import expire

        expire(terminal, older_than, dry_run=dry_run, store=store, as_json=as_json)

    _run(context, work)
