"""What the store kit runs in processes of its own: one line of JSON in, lines out, until it is done or killed."""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from littleghost.errors import LeaseLostError
from littleghost.message import Message
from littleghost.sessions.contract import SessionStore
from littleghost.sessions.session import Session

__all__ = ["COMMAND", "imported", "maker_from", "recipe_for"]

COMMAND = "from littleghost.testing.store_child import main; main()"

Factory = Callable[[], SessionStore]


def recipe_for(factory: Factory, importable: str | None) -> dict[str, str] | None:
    """Return how another process can make the same store, or ``None`` where it cannot."""
    if importable is not None:
        return {"importable": importable}
    try:
        pickled = pickle.dumps(factory)
    except Exception:  # noqa: BLE001 (whatever it is, the answer is no)
        return None
    # A name in __main__ is another one there.
    return None if b"__main__" in pickled else {"pickled": base64.b64encode(pickled).decode()}


def maker_from(recipe: dict[str, str]) -> Factory:
    """Return the factory that ``recipe`` describes."""
    if "pickled" in recipe:
        return pickle.loads(base64.b64decode(recipe["pickled"]))  # noqa: S301 (from our own parent)
    return imported(recipe["importable"])


def imported(importable: str) -> Factory:
    """Return what ``module:function`` names; whatever the import raises is raised."""
    module, _, name = importable.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    """Do what the line on standard input says."""
    order: dict[str, Any] = json.loads(sys.stdin.readline())
    try:
        make = maker_from(order["recipe"])
    except Exception as error:  # noqa: BLE001 (whatever an import raises)
        sys.exit(f"what makes the store cannot be imported here: {type(error).__name__}: {error}")
    asyncio.run(_obey(make, order))


async def _obey(make: Factory, order: dict[str, Any]) -> None:
    store: Any = make()
    if inspect.isawaitable(store):
        store = await store
    await {"try": _try, "update": _update, "write": _write, "hold": _hold, "late": _late}[order["task"]](
        store, order
    )
    await store.aclose()


def _say(what: str) -> None:
    print(what, flush=True)  # noqa: T201 (the parent reads it)


async def _try(store: SessionStore, order: dict[str, Any]) -> None:
    """Only show that the store can be made and read here."""
    await store.load(order["id"], actor_id=order["actor_id"])
    _say("fine")


async def _update(store: SessionStore, order: dict[str, Any]) -> None:
    """Append messages in a session that others append to."""
    session = Session(id=order["id"], store=store, actor_id=order["actor_id"])
    _say("ready")
    sys.stdin.readline()
    for number in range(order["times"]):
        text = f"{order['name']}:{number}"
        await session.update(
            lambda snapshot, text=text: ([Message.user(text)], snapshot.state), attempts=1000
        )
        _say(text)


async def _write(store: SessionStore, order: dict[str, Any]) -> None:
    """Append without end, and keep a book of what was acknowledged, beside the store and on the disk."""
    session = Session(id=order["id"], store=store, actor_id=order["actor_id"])
    book = os.open(order["book"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    number = (await session.state()).get("number", 0)
    _say("ready")
    while True:
        number += 1
        messages = [
            Message.user(f"{number}"),
            *[Message.assistant("x" * (number * 37 % 9000))] * order.get("between", 1),
            Message.user(f"{number}"),
        ]
        await session.append(messages, state={"number": number})
        os.write(book, f"{number}\n".encode())
        os.fsync(book)


async def _hold(store: SessionStore, order: dict[str, Any]) -> None:
    """Hold a lease until killed, or until a line comes."""
    async with store.lease(order["id"], actor_id=order["actor_id"]):
        _say("held")
        await asyncio.to_thread(sys.stdin.readline)


async def _late(store: Any, order: dict[str, Any]) -> None:
    """Write under a lease, let go of it, and when a line comes write under it again."""
    key = {"actor_id": order["actor_id"]}

    async def write(text: str, count: int) -> None:
        await store.append(
            order["id"],
            messages=[Message.user(text)],
            state={},
            metadata={},
            expected_count=count,
            lease=lease,
            **key,
        )

    async with store.lease(order["id"], **key) as lease:
        await write("early", 0)
    _say("let go")
    await asyncio.to_thread(sys.stdin.readline)
    try:
        await write("late", 1)
    except LeaseLostError:
        _say("lost")
    else:
        _say("written")
