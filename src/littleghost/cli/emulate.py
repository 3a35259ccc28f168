"""The commands below ``littleghost emulate`` and their options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from littleghost.cli.options import Command, Group, JsonOption
from littleghost.cli.terminal import Terminal, reporting

__all__ = ["emulate"]

emulate = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Stand in for a service of others, on this machine.",
)

EXAMPLES = """\
**Examples**

`littleghost emulate agentcore` — a memory that is gone when it ends

`littleghost emulate agentcore --port 8123 --memory shop_memory-AbCdEf1234=30 --file events.json` — one in a file, for 30 days

`littleghost emulate agentcore --fault CreateEvent:throttle:nth=3 --fault '*:reset_after:probability=0.01'` — and one that fails at times
"""


class Pagination(StrEnum):
    """What ``maxResults`` counts."""

    SCAN = "scan"
    MATCH = "match"


class Idempotency(StrEnum):
    """What client tokens do."""

    HONOURED = "honoured"
    EXPIRING = "expiring"
    PER_CALLER = "per_caller"
    IGNORED = "ignored"


class Scope(StrEnum):
    """Where a client token counts."""

    MEMORY = "memory"
    ACTOR = "actor"
    SESSION = "session"


class Replay(StrEnum):
    """What a repeated request is answered with."""

    FIRST = "first"
    ECHO = "echo"


class Mismatch(StrEnum):
    """What becomes of another request with a known token."""

    IGNORE = "ignore"
    REFUSE = "refuse"


class Ties(StrEnum):
    """How events of one millisecond are ordered."""

    STABLE = "stable"
    PERMUTED = "permuted"


class Order(StrEnum):
    """What lists begin with."""

    NEWEST = "newest"
    OLDEST = "oldest"


class TextLimit(StrEnum):
    """What the limit of a text counts."""

    CHARACTERS = "characters"
    BYTES = "bytes"


@emulate.command("agentcore", cls=Command, epilog=EXAMPLES)
def agentcore_command(
    context: typer.Context,
    *,
    port: Annotated[
        int,
        typer.Option(
            "--port", "-p", metavar="NUMBER", min=0, max=65535, help="Where to listen; 0 is a free port."
        ),
    ] = 0,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="A loopback address; there is no other.")
    ] = "127.0.0.1",
    memory: Annotated[
        list[str] | None,
        typer.Option(
            "--memory",
            metavar="ID[=DAYS]",
            help="A memory, and how long it keeps an event, 90 days by default. May be given again.",
        ),
    ] = None,
    auto_create: Annotated[
        bool, typer.Option("--auto-create", help="Accept any other well-formed memory id, too.")
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="Keep everything in this file, which is read first where it exists.",
        ),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            metavar="RULE",
            help="What goes wrong, such as CreateEvent:throttle:nth=3; docs/emulator.md has every kind. May be given again.",
        ),
    ] = None,
    pagination: Annotated[
        Pagination,
        typer.Option(
            "--pagination", help="Whether maxResults counts events before or after they are filtered."
        ),
    ] = Pagination.SCAN,
    idempotency: Annotated[
        Idempotency, typer.Option("--idempotency", help="What a client token does that was used before.")
    ] = Idempotency.HONOURED,
    token_lifetime: Annotated[
        float | None,
        typer.Option(
            "--token-lifetime",
            metavar="SECONDS",
            help="How long, with --idempotency expiring.",
            show_default=False,
        ),
    ] = None,
    token_scope: Annotated[
        Scope, typer.Option("--token-scope", help="Where a client token is the same.")
    ] = Scope.SESSION,
    replay: Annotated[
        Replay,
        typer.Option("--replay", help="What a repeated request gets: the first answer, or its own content."),
    ] = Replay.FIRST,
    mismatch: Annotated[
        Mismatch, typer.Option("--mismatch", help="What becomes of another request with a known token.")
    ] = Mismatch.IGNORE,
    lag: Annotated[
        float, typer.Option("--lag", metavar="SECONDS", help="Until an unfiltered list sees a new event.")
    ] = 0.0,
    filtered_lag: Annotated[
        float, typer.Option("--filtered-lag", metavar="SECONDS", help="Until a filtered one does.")
    ] = 0.0,
    get_lag: Annotated[
        float, typer.Option("--get-lag", metavar="SECONDS", help="Until GetEvent does.")
    ] = 0.0,
    ties: Annotated[
        Ties, typer.Option("--ties", help="Events of one millisecond: by id, or mixed.")
    ] = Ties.STABLE,
    order: Annotated[Order, typer.Option("--order", help="What lists begin with.")] = Order.NEWEST,
    quotas: Annotated[bool, typer.Option("--quotas", help="Keep to the rates that AWS documents.")] = False,
    text_limit: Annotated[
        TextLimit, typer.Option("--text-limit", help="What the 100,000 of a text are.")
    ] = TextLimit.CHARACTERS,
    seed: Annotated[
        str, typer.Option("--seed", metavar="TEXT", help="What event ids and chances are drawn from.")
    ] = "0",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Write a line for each call.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stand in for Amazon Bedrock AgentCore Memory: its events, for boto3 and the AWS CLI, until Ctrl-C.

    No account, no network, no cost; signatures are not checked, and only this machine is served. With --json, the address comes as a JSON
    object, and each call of --verbose as another.
    """
    terminal = Terminal()
    with reporting(terminal, debug=context.obj):
        from littleghost.cli.emulating import serve_agentcore

        serve_agentcore(
            terminal,
            memories=memory or [],
            faults=fault or [],
            verbose=verbose,
            as_json=as_json,
            auto_create=auto_create,
            pagination=pagination.value,
            idempotency=idempotency.value,
            token_lifetime=token_lifetime,
            token_scope=token_scope.value,
            replay=replay.value,
            mismatch=mismatch.value,
            lag=lag,
            filtered_lag=filtered_lag,
            get_lag=get_lag,
            ties=ties.value,
            order=order.value,
            quotas=quotas,
            text_limit=text_limit.value,
            seed=seed,
            file=file,
            host=host,
            port=port,
        )
        raise typer.Exit(0)
