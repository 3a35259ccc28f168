"""The commands below ``littleghost sandbox`` and their options."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from littleghost.cli.options import Command, Group, JsonOption
from littleghost.cli.terminal import Terminal, reporting

__all__ = ["sandbox"]

sandbox = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Give sandboxes of this machine to agents elsewhere.",
)

EXAMPLES = """\
**Examples**

`littleghost sandbox token shop --tokens tokens` — a token for a client called shop

`littleghost sandbox serve --root /srv/sandboxes --tokens tokens` — for this machine, or a proxy on it

`littleghost sandbox serve --root /srv/sandboxes --tokens tokens --host 0.0.0.0 --ssl-certfile cert.pem --ssl-keyfile key.pem` — for others

`littleghost sandbox serve --root /srv/sandboxes --tokens tokens --limit wall_seconds=600 --limit processes=200` — with limits
"""


class Kind(StrEnum):
    """How programs of clients are held."""

    NATIVE = "native"
    HOST = "host"


TokensOption = Annotated[
    Path,
    typer.Option("--tokens", "-t", metavar="FILE", help="The clients, and the hashes of their tokens."),
]


@sandbox.command("serve", cls=Command, epilog=EXAMPLES)
def serve_command(
    context: typer.Context,
    *,
    root: Annotated[
        Path,
        typer.Option(
            "--root", "-r", metavar="FOLDER", help="Where the clients' files are, while they are there."
        ),
    ],
    tokens: TokensOption,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Where to listen; without TLS a loopback address."),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", "-p", metavar="NUMBER", min=0, max=65535, help="The port; 0 is a free one."),
    ] = 8750,
    certificate: Annotated[
        Path | None,
        typer.Option("--ssl-certfile", metavar="FILE", help="The certificate, and those that vouch for it."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--ssl-keyfile", metavar="FILE", help="The key of the certificate.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen on any address without TLS: tokens and files cross the network as they are.",
        ),
    ] = False,
    kind: Annotated[
        Kind,
        typer.Option(
            "--sandbox",
            help="native isolates. With host, clients can do on this machine whatever this user can.",
        ),
    ] = Kind.NATIVE,
    network: Annotated[
        bool, typer.Option("--network", help="Let clients ask for this machine's network, its loopback too.")
    ] = False,
    leases: Annotated[
        int, typer.Option("--leases", metavar="NUMBER", min=1, help="How many sandboxes at a time.")
    ] = 64,
    leases_per_token: Annotated[
        int,
        typer.Option("--leases-per-token", metavar="NUMBER", min=1, help="How many of them for one client."),
    ] = 16,
    lease_seconds: Annotated[
        float,
        typer.Option(
            "--lease-seconds",
            metavar="SECONDS",
            min=1,
            help="How long a client that was lost may take to come again.",
        ),
    ] = 30.0,
    programs: Annotated[
        int,
        typer.Option("--programs", metavar="NUMBER", min=1, help="How many programs in a sandbox at a time."),
    ] = 32,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=NUMBER",
            help="An upper bound of every sandbox, such as wall_seconds=600; a wrong NAME shows all. May be given again.",
        ),
    ] = None,
    drain: Annotated[
        float,
        typer.Option(
            "--drain",
            metavar="SECONDS",
            min=0,
            help="How long what runs may go on after SIGTERM or Ctrl-C; a second one ends it at once.",
        ),
    ] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Give each client with a token a sandbox of its own on this machine, until SIGTERM or Ctrl-C.

    A client is `RemoteSandbox` in an application. Its sandbox ends with it, with its programs and files.
    """
    terminal = Terminal()
    with reporting(terminal, debug=context.obj):
        from littleghost.cli.serving import serve_sandboxes

        serve_sandboxes(
            terminal,
            root=root,
            tokens=tokens,
            host=host,
            port=port,
            certificate=certificate,
            key=key,
            insecure=insecure,
            isolated=kind is Kind.NATIVE,
            network=network,
            bounds=limit or [],
            drain=drain,
            as_json=as_json,
            leases=leases,
            leases_per_token=leases_per_token,
            lease_seconds=lease_seconds,
            programs=programs,
        )
        raise typer.Exit(0)


@sandbox.command("token", cls=Command)
def token_command(
    context: typer.Context,
    *,
    name: Annotated[str, typer.Argument(help="Who it is for.", show_default=False)],
    tokens: TokensOption,
) -> None:
    """Make a token for a client, write its hash into the file, and show it: once, for nothing keeps it.

    The client gives it as RemoteSandbox(token=…) or in the variable LITTLEGHOST_SANDBOX_TOKEN. A name may have several; to take them
    away, delete its lines.
    """
    terminal = Terminal()
    with reporting(terminal, debug=context.obj):
        from littleghost.sandboxes.service.tokens import TokenFile

        typer.echo(TokenFile.at(tokens).add(name))
        raise typer.Exit(0)
