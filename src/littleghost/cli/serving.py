"""The sandbox service in the foreground: said where it is, kept until it is told to stop."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from littleghost import (
    ConfigurationError,
    HostSandbox,
    SandboxLimits,
    SandboxService,
    ServiceLimits,
    native_sandbox,
)
from littleghost.cli.running import run
from littleghost.cli.terminal import Terminal, printable, write_json

__all__ = ["serve_sandboxes"]


def serve_sandboxes(
    terminal: Terminal,
    *,
    root: Path,
    tokens: Path,
    host: str,
    port: int,
    certificate: Path | None,
    key: Path | None,
    insecure: bool,
    isolated: bool,
    network: bool,
    bounds: Sequence[str],
    drain: float,
    as_json: bool,
    **limits: Any,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        terminal: Where to say what is there.
        root: See `SandboxService`.
        tokens: See `SandboxService`.
        host: Where to listen.
        port: The port.
        certificate: A file with the certificate.
        key: A file with its key.
        insecure: Whether other machines may be served without TLS.
        isolated: Whether sandboxes isolate.
        network: See `SandboxService`.
        bounds: Limits of every sandbox, as ``NAME=NUMBER``.
        drain: Seconds for what runs at the end.
        as_json: Whether to write JSON.
        **limits: Those of `ServiceLimits`.

    Raises:
        ConfigurationError: An option is not what it must be.
    """
    from littleghost.sandboxes.service.server import listen, serve

    if (certificate is None) != (key is None):
        raise ConfigurationError("--ssl-certfile and --ssl-keyfile belong together")
    service = SandboxService(
        root,
        tokens=tokens,
        backend=native_sandbox if isolated else HostSandbox,
        network=network,
        limits=ServiceLimits(sandbox=_bounded(bounds), **limits),
    )
    listening = listen(host, port, exposed=insecure or certificate is not None)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    address, number = listening.getsockname()[:2]
    scheme = "http" if certificate is None else "https"
    url = f"{scheme}://{f'[{address}]' if ':' in address else address}:{number}"

    def introduce() -> None:
        if as_json:
            write_json({"url": url, "root": str(root), "isolated": isolated})
        else:
            for line in (
                f"sandboxes at {url}",
                f"  root    {root}",
                f"  tokens  {tokens}",
                f"  {'isolated by the native sandbox' if isolated else 'NOT ISOLATED: clients can do whatever this user can'}",
                "",
                "Ctrl-C stops it.",
            ):
                terminal.out.print(printable(line, lines=False))
        terminal.out.file.flush()

    run(serve(service, listening, certificate=certificate, key=key, drain=drain, ready=introduce))
    if not as_json:
        terminal.out.print("stopped")


def _bounded(bounds: Sequence[str]) -> SandboxLimits:
    limits = ServiceLimits().sandbox
    for bound in bounds:
        name, _, text = bound.partition("=")
        try:
            value: float = float(text) if name.endswith("_seconds") else int(text)
        except ValueError:
            value = -1
        if name not in SandboxLimits.__struct_fields__ or value < 0:
            raise ConfigurationError(
                f"the limit {bound!r}: write NAME=NUMBER, with one of {', '.join(SandboxLimits.__struct_fields__)}"
            )
        limits = msgspec.structs.replace(limits, **{name: value})
    return limits
