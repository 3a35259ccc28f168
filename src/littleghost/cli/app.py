"""The commands and their options."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from littleghost import ConfigurationError, __version__
from littleghost.cli.ctrl_c import INTERRUPTED
from littleghost.cli.emulate import emulate
from littleghost.cli.options import ActorOption, Command, Group
from littleghost.cli.sandbox import sandbox
from littleghost.cli.sessions import sessions
from littleghost.cli.streams import output_failure
from littleghost.cli.terminal import Terminal, failed_output, reporting

__all__ = ["run"]

EXAMPLES = """\
**Examples**

`littleghost demo` — watch an agent die and go on (no key, no network)

`littleghost chat --model openai:gpt-5` — talk; OPENAI_API_KEY holds the key

`littleghost chat --base-url http://127.0.0.1:8080/v1 --workspace . --writable` — a server of your own, working in this folder

`echo "Say hello" | littleghost chat --model openai:gpt-5` — plain answers in a pipe

`littleghost sessions list` — what was said so far

`littleghost sessions export --output backup.jsonl` — and all of it in a file
"""

app = typer.Typer(
    name="littleghost",
    cls=Group,
    help="Agents whose conversations cannot be lost and whose tools cannot get out of bounds.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(sessions, name="sessions")
app.add_typer(emulate, name="emulate")
app.add_typer(sandbox, name="sandbox")


# Typer has no name for it: in some versions it is Click's, in others its own.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class SandboxKind(StrEnum):
    """How the model's tools are held."""

    native = "native"
    host = "host"
    none = "none"


def _version(asked: bool) -> None:  # noqa: FBT001 (Typer calls it so)
    if asked:
        typer.echo(f"littleghost {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Take the options of all commands."""
    context.obj = debug


@app.command("chat", cls=Command)
def chat_command(
    context: typer.Context,
    *,
    message: Annotated[
        str | None,
        typer.Argument(
            help="Say this, show the answer and leave; - takes all of standard input.", show_default=False
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            envvar="LITTLEGHOST_MODEL",
            help="openai:NAME, openai-chat:, openai-responses:, anthropic:, bedrock:, gemini:, vertex: or local:FILE.gguf; "
            "with --base-url, the name there.",
        ),
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            "--base-url",
            metavar="URL",
            envvar="LITTLEGHOST_BASE_URL",
            help="A server that speaks the OpenAI API.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            envvar="LITTLEGHOST_STORE",
            help="sqlite:///FILE, postgresql://USER@HOST/DATABASE, agentcore://MEMORY or memory:. A file of your own by default.",
        ),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", metavar="ID", help="Go on with this session, or begin it."),
    ] = None,
    actor: ActorOption = None,
    workspace: Annotated[
        Path | None,
        typer.Option(
            "--workspace", "-w", metavar="DIR", help="A folder that the model may look into, in a sandbox."
        ),
    ] = None,
    sandbox: Annotated[
        SandboxKind | None,
        typer.Option(
            "--sandbox",
            help="native isolates, host does not; native where there is a --workspace.",
            show_default=False,
        ),
    ] = None,
    writable: Annotated[
        bool, typer.Option("--writable/--read-only", help="Whether the model may change the folder.")
    ] = False,
    instructions: Annotated[
        str | None, typer.Option("--instructions", metavar="TEXT|@FILE", help="What the model is told first.")
    ] = None,
) -> None:
    """Talk to a model, in a session that is still there tomorrow.

    Ctrl-C stops an answer and keeps what was written. In a pipe, each line is a message, and the answers alone are written.
    """
    terminal = Terminal()
    with reporting(terminal, debug=context.obj):
        from littleghost.cli.chat import ChatOptions, chat

        status = chat(
            ChatOptions(
                message=message,
                model=model,
                base_url=base_url,
                store=store,
                session=session,
                actor=actor,
                workspace=workspace,
                sandbox=None if sandbox is None else sandbox.value,
                writable=writable,
                instructions=instructions,
            ),
            terminal,
        )
        raise typer.Exit(status)


@app.command("demo", cls=Command)
def demo_command(
    context: typer.Context,
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder, to look into it afterwards.")
    ] = False,
) -> None:
    """Watch an agent die by SIGKILL in the middle of a tool and go on, and see each promise checked.

    It needs no key and no network: the model is a script, and says so. The exit status is 1 where a promise was not kept.
    """
    terminal = Terminal()
    with reporting(terminal, debug=context.obj):
        from littleghost.cli.demo import demo

        raise typer.Exit(demo(terminal, keep=keep))


def _usage(error: Any) -> int:
    """Say in one line what was wrong about the arguments. Where there were none, Typer has shown the help already."""
    if type(error).__name__ != "NoArgsIsHelpError":
        where = "littleghost" if error.ctx is None else error.ctx.command_path
        text = error.format_message().strip().removesuffix(".").replace("Value error, ", "")
        if type(error).__name__ == "NoSuchOption":
            params = error.ctx.command.params if error.ctx is not None else ()
            if ("argument", "session") in [(param.param_type_name, param.name) for param in params]:
                text += ", and an ID that begins with - stands behind --, after all options"
        Terminal().complain(
            ConfigurationError(f"{text[:1].lower()}{text[1:]}; {where} --help shows what there is")
        )
    return error.exit_code


def run() -> None:
    """Run the command that the arguments of this process name, and exit."""
    try:
        status = app(prog_name="littleghost", standalone_mode=False)
    except UsageError as error:
        status = _usage(error)
    except (typer.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except OSError as error:  # in the help or the version, which no command shows
        if (failure := output_failure(error)) is None:
            raise
        status = failed_output(failure)
    else:
        if failure := output_failure():
            status = failed_output(failure)
    sys.exit(status)
