"""The child process of `littleghost.models.local`: a llama.cpp server that lives as long as its standard input.

Run as a script, not imported; it needs xllamacpp and the standard library alone. The first line of standard input is a JSON
object of options, the first line of standard output a JSON object with ``url`` or ``error``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any


def _serve(options: dict[str, Any]) -> Any:
    import xllamacpp

    llama: Any = xllamacpp
    params = llama.CommonParams()
    params.model.path = options["path"]
    params.model_alias = {options["name"]}  # else the model would be called by its path
    params.n_ctx = options["context"] * options["slots"]  # llama.cpp divides it among the slots
    params.n_parallel = options["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    params.api_keys = [options["key"]]
    params.verbosity = -1
    params.warmup = params.fit_params = params.ui = False
    params.cache_ram_mib = 0
    params.endpoint_slots = True
    params.use_jinja = True
    if options["template"] is not None:
        params.chat_template = options["template"]
    return llama.Server(params)


def _leave_with(parent: int) -> None:
    """End when the parent is gone, even where another process of its keeps the pipe open."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent
    parent = os.getppid()
    options = json.loads(sys.stdin.readline())
    try:
        server = _serve(options)
        report = {"url": server.listening_address}
    except Exception as error:  # noqa: BLE001 (all of it is told to the parent)
        server, report = None, {"error": f"{type(error).__name__}: {error}"[:500]}
    print(json.dumps(report), flush=True)  # noqa: T201
    if server is not None:
        threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
        sys.stdin.read()
    # Without waiting for requests in work: nobody is left to read their answers.
    os._exit(0)


if __name__ == "__main__":
    main()
