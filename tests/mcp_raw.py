"""A server written by hand, for what no decent one does: ``python mcp_raw.py [JSON]`` reads and writes lines of JSON-RPC.

The JSON is an object; its keys are how to misbehave, see the code. Its tools are those of ``tools``, or `TOOLS`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

GIVEN = sys.argv[1] if len(sys.argv) > 1 else "{}"
HOW: dict[str, Any] = json.loads(open(GIVEN[1:]).read() if GIVEN.startswith("@") else GIVEN)
OBJECT = {"type": "object"}
TOOLS = [
    {"name": name, "inputSchema": OBJECT}
    for name in (
        "echo",
        "hold",
        "die",
        "asks",
        "silent",
        "wrong",
        "long",
        "nested",
        "refuse",
        "pid",
        "deafen",
        "look",
        "flood",
    )
]
lock = threading.Lock()
answers: dict[Any, Any] = {}
heard = threading.Condition()
held: dict[Any, socket.socket] = {}


def send(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def note(arguments: dict[str, Any]) -> None:
    if "ledger" in arguments:
        with open(arguments["ledger"], "a") as file:
            file.write("once\n")


def call(id: Any, name: str, arguments: dict[str, Any]) -> None:
    note(arguments)
    if name in ("echo", "look"):
        send({"id": id, "result": text(arguments.get("text", ""))})
    elif name == "pid":
        send({"id": id, "result": text(str(os.getpid()))})
    elif name == "hold":
        said = held[id].recv(100)
        if said:
            send({"id": id, "result": text(said.decode())})
    elif name == "die":
        if "once" in arguments and os.path.exists(arguments["once"]):
            send({"id": id, "result": text("alive")})
            return
        open(arguments.get("once", os.devnull), "a").close()
        print("a last word and", os.environ.get("TOKEN"), file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "asks":
        told = []
        for number, method in enumerate(
            ("ping", "sampling/createMessage", "elicitation/create", "roots/list", "x")
        ):
            send({"id": f"mine{number}", "method": method, "params": {}})
            with heard:
                heard.wait_for(lambda name=f"mine{number}": name in answers)
            told.append(f"{method}: {answers[f'mine{number}']}")
        send(
            {"method": "notifications/message", "params": {"level": "error", "data": "logged by the server"}}
        )
        send({"method": "notifications/tools/list_changed"})
        send({"method": "notifications/unheard-of", "params": {"a": 1}})
        send({"id": "nobody's", "result": {}})
        send({"id": id, "result": text("\n".join(told))})
    elif name == "silent":
        pass
    elif name == "wrong":
        send({"id": id, "result": {"content": [{"type": "text"}]}})
    elif name == "long":
        send({"id": id, "result": text("x" * arguments["size"])})
    elif name == "nested":
        deep = arguments["depth"]
        with lock:
            content = "[" * deep + "1" + "]" * deep
            sys.stdout.write(
                f'{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"structuredContent":{{"a":{content}}}}}}}\n'
            )
            sys.stdout.flush()
    elif name == "refuse":
        send({"id": id, "error": {"code": arguments.get("code", -32602), "message": "no " * 5000}})
    elif name == "flood":
        while True:
            send({"id": "mine", "method": "roots/list"})
    elif name == "deafen":
        send({"id": id, "result": text("deaf")})
        time.sleep(600)


def listed(params: dict[str, Any]) -> dict[str, Any]:
    page = int(params.get("cursor") or 0)
    if HOW.get("pages"):
        tools = [{"name": f"t{page}", "inputSchema": OBJECT}]
        return {"tools": tools, "nextCursor": str(page + 1)} if page + 1 < HOW["pages"] else {"tools": tools}
    if HOW.get("many"):
        return {"tools": [{"name": f"t{number}", "inputSchema": OBJECT} for number in range(HOW["many"])]}
    return {"tools": HOW.get("tools", TOOLS)}


def handle(message: dict[str, Any]) -> None:
    method, id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method is None:
        with heard:
            answers[id] = message.get("error", {}).get("message", message.get("result"))
            heard.notify_all()
    elif method == "initialize":
        if HOW.get("silent"):
            return
        if HOW.get("modern"):
            send(
                {
                    "id": id,
                    "error": {
                        "code": -32022,
                        "message": "old",
                        "data": {"supported": ["2026-07-28"], "requested": "x"},
                    },
                }
            )
            return
        result = {
            "protocolVersion": HOW.get("version", params["protocolVersion"]),
            "capabilities": {"tools": {}} if not HOW.get("toolless") else {},
            "serverInfo": {"name": "raw", "version": "1"},
        }
        send({"id": id, "result": result})
    elif method == "server/discover":
        capabilities = {"tools": {}}
        send({"id": id, "result": {
            "supportedVersions": ["2026-07-28"], "capabilities": capabilities, "resultType": "complete",
            "ttlMs": 0, "cacheScope": "private",
        }})  # fmt: skip
    elif method == "tools/list":
        extra = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if HOW.get("modern") else {}
        if HOW.get("slowly"):
            time.sleep(600)
        send({"id": id, "result": {**listed(params), **extra}})
    elif method == "tools/call":
        if HOW.get("modern"):
            send({"id": id, "result": {"resultType": "input_required", "requestState": "x"}})
            return
        work = (id, params["name"], params.get("arguments") or {})
        if params["name"] in ("deafen", "flood"):
            call(*work)
        if params["name"] == "hold":  # before a cancellation can be read
            held[id] = line = socket.socket(socket.AF_UNIX)
            line.connect(work[2]["address"])
            line.send(f"began {os.getpid()}\n".encode())
        threading.Thread(target=call, args=work, daemon=True).start()
    elif method == "notifications/cancelled":
        line = held.pop(params["requestId"], None)
        if line is not None:
            line.send(b"cancelled\n")
            line.shutdown(socket.SHUT_RDWR)


def main() -> None:
    if HOW.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if HOW.get("started"):
        with open(HOW["started"], "a") as file:
            file.write(f"{os.getpid()}\n")
    if HOW.get("dies"):
        print("cannot start:", os.environ.get("TOKEN"), file=sys.stderr, flush=True)
        sys.exit(5)
    if HOW.get("noise"):
        for _ in range(HOW["noise"]):
            print("Welcome! {not json}", flush=True)
        print('[1, 2]\n\n{}\n""', flush=True)
        sys.stderr.write("x" * 1_000_000 + "\n")
        sys.stderr.flush()
    for line in sys.stdin:
        handle(json.loads(line))
    if HOW.get("stubborn"):
        time.sleep(600)


if __name__ == "__main__":
    main()
