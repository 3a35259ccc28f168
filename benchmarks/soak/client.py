"""One client: a few tasks that share a store object, each doing whatever chance says, for ever.

Run as a program it takes one line of JSON, `Orders`, and ends with its standard input, or by ``SIGKILL``::

    python -m benchmarks.soak.client < orders
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from littleghost import (
    Commit,
    ConflictError,
    CorruptSessionError,
    CredentialError,
    LeaseLostError,
    Message,
    Session,
    SessionBusyError,
    SessionNotFoundError,
    SessionStore,
    Snapshot,
    StoreUnavailableError,
    open_store,
)

from .broken import broken
from .ledger import Key, Ledger, digest, entries, from_line, to_line

__all__ = ["Client", "Orders"]

BASES: Sequence[Key] = [(None, "a"), (None, "b"), ("ann", "a"), ("ann", "c"), ("bob", "a")]
"""The sessions that all clients share, besides the forks of them."""

LONG = 60
"""From so many messages on a session is summed up by a replace."""


class Orders(msgspec.Struct, kw_only=True):
    """What a client is told.

    Attributes:
        url: Of the store.
        name: The client's; no two have the same.
        ledger: Its ledger.
        before: The ledger of the client in whose place it starts, which was killed.
        seed: Of chance.
        tasks: How many tasks it has.
        expire_after: What `SessionStore.expire` is asked for, in seconds.
        broken: How the store is broken, to see the checker find it.
        halves: Whether sessions are deleted bit by bit, so that what is left can be seen, as damage.
    """

    url: str
    name: str
    ledger: str
    before: str | None = None
    seed: int = 0
    tasks: int = 4
    expire_after: float = 5.0
    broken: str | None = None
    halves: bool = False


class Known(msgspec.Struct):
    """What a task believes of a session."""

    revision: str | None
    lines: list[str]


Asked = dict[str, Any]


class Client:
    """Does what chance says, and writes down what came of it."""

    def __init__(self, store: SessionStore, ledger: Ledger, orders: Orders) -> None:
        self._store, self._ledger, self._orders = store, ledger, orders
        self._can = store.capabilities
        self._bases = [key for key in BASES if key[0] is not None or "anonymous_actor" in self._can]
        # After these a write may have been done. Credentials fail in the midst of one where each of its steps has to show them.
        self._away = (StoreUnavailableError, TimeoutError, CredentialError)
        self._chance = random.Random(orders.seed)
        self._number = 0
        self._known: dict[Key, Known] = {}
        self._forks: set[Key] = set()
        self._gone: Key | None = None
        self._half_gone: Key | None = None
        self._taken: list[Asked] = []  # commits that were acknowledged, to be sent again

    async def work(self, goes_on: Callable[[], bool]) -> None:
        """Work until told otherwise."""
        if self._orders.before is not None:
            await self._resend(Path(self._orders.before))
        await asyncio.gather(*[self._task(goes_on) for _ in range(self._orders.tasks)])

    async def _task(self, goes_on: Callable[[], bool]) -> None:
        acts: dict[Callable[[Key], Awaitable[None]], int] = {
            self._append: 40,
            self._update: 10,
            self._replace: 5,
            self._run: 8 if "leases" in self._can else 0,
            self._fork: 5,
            self._delete: 3,
            self._look: 12,
            self._tail: 8,
            self._list: 3 if "sessions" in self._can else 0,
            self._expire: 1,
            self._again: 5,
        }
        while goes_on():
            act = self._chance.choices(list(acts), list(acts.values()))[0]
            await act(self._any_session())
            if self._half_gone is not None and self._chance.random() < 0.3:
                # Somebody has to finish it, or nothing is done there any more.
                key, self._half_gone = self._half_gone, None
                await self._end(key)
            if self._chance.random() < 0.1:
                await asyncio.sleep(self._chance.random() * 0.02)

    def _any_session(self) -> Key:
        if self._forks and self._chance.random() < 0.25:
            return self._chance.choice(sorted(self._forks, key=str))
        return self._chance.choice(self._bases)

    def _name(self) -> str:
        self._number += 1
        return f"{self._orders.name}-{self._number}"

    # Asking

    async def _ask(
        self, asked: Asked, call: Callable[[], Awaitable[Any]], *, impatient: bool = False
    ) -> tuple[str, Any]:
        """Ask for something, and write down what came of it."""
        self._ledger.write("sent", **asked)
        answer: Any = None
        told: dict[str, Any] = {}
        before = time.monotonic()
        try:
            if impatient:
                answer = await asyncio.wait_for(call(), self._chance.random() * 0.01)
            else:
                answer = await call()
            how = "ok"
        except (ConflictError, SessionNotFoundError) as error:  # a lost lease is a conflict
            how, told = "refused", {"error": type(error).__name__}
        except self._away as error:
            how, told = "unknown", {"error": type(error).__name__}
        except CorruptSessionError as error:
            how, told = ("unknown" if self._orders.halves else "broken"), {"error": type(error).__name__}
            if self._orders.halves:
                self._half(asked.get("of", asked["s"]), before)
        except Exception as error:  # noqa: BLE001 (the checker reports it)
            how, told = "broken", {"error": f"{type(error).__name__}: {error}"}
        if isinstance(answer, Commit):
            told = {"rev": answer.revision, "n": answer.count}
        elif isinstance(answer, int):
            told = {"n": int(answer)}
        self._ledger.write("done", op=asked["op"], how=how, **told)
        if told.get("error") == "StoreUnavailableError":
            await asyncio.sleep(0.05)
        return how, answer

    def _half(self, key: Key, before: float) -> None:
        self._known.pop(key, None)
        self._half_gone = key
        self._ledger.write("half", s=key, t0=before, t1=time.monotonic())

    async def _commit(
        self, kind: str, key: Key, lines: Sequence[str], lease: Any = None, *, careless: bool = True
    ) -> bool:
        known = self._known.get(key)
        op = self._name()
        asked: Asked = {
            "op": op,
            "kind": kind,
            "s": key,
            "lines": lines,
            "rev": known.revision if known else None,
            "count": len(known.lines) if known else 0,
        }
        if lease is not None:
            asked["lease"] = lease[0]
        how, answer = await self._send(
            asked, None if lease is None else lease[1], impatient=careless and self._chance.random() < 0.05
        )
        if how == "unknown" and self._chance.random() < 0.5:
            how, answer = await self._send(asked, None if lease is None else lease[1])
        if how == "ok":
            before = known.lines if known and kind == "append" else []
            self._known[key] = Known(answer.revision, [*before, *lines])
            if asked["rev"] is not None:
                later = {name: value for name, value in asked.items() if name != "lease"}
                self._taken = [*self._taken[-20:], later]
        elif how == "refused":
            self._known.pop(key, None)
        return how == "ok"

    async def _send(self, asked: Asked, lease: Any = None, *, impatient: bool = False) -> tuple[str, Any]:
        actor, id = asked["s"]
        options: dict[str, Any] = {"expected_revision": asked["rev"], "commit_id": asked["op"]}
        if asked["kind"] == "append":
            options["expected_count"] = asked["count"]
        if lease is not None and "fencing" in self._can:
            options["lease"] = lease
        method = self._store.append if asked["kind"] == "append" else self._store.replace
        return await self._ask(
            asked,
            lambda: method(
                id,
                messages=[from_line(line) for line in asked["lines"]],
                state={"op": asked["op"]},
                metadata={"by": asked["op"].partition("-")[0]},
                actor_id=actor,
                **options,
            ),
            impatient=impatient,
        )

    @contextlib.asynccontextmanager
    async def _seeing(self, what: str, key: Key) -> AsyncGenerator[Asked]:
        """Write down a line of what is seen inside, unless the store was away."""
        seen: Asked = {"t0": time.monotonic()}
        try:
            yield seen
        except self._away:
            await asyncio.sleep(0.05)
            return
        except Exception as error:  # noqa: BLE001
            if self._orders.halves and isinstance(error, CorruptSessionError):
                self._half(key, seen["t0"])
                return
            seen = {"t0": seen["t0"], "broken": f"{type(error).__name__}: {error}"}
        self._ledger.write(what, t1=time.monotonic(), **seen)

    def _saw(self, seen: Asked, key: Key, snapshot: Snapshot | None) -> None:
        lines = [to_line(message) for message in snapshot.messages] if snapshot else []
        seen |= {"s": key, "rev": None}
        if snapshot is None:
            self._known.pop(key, None)
            return
        seen |= {
            "rev": snapshot.revision,
            "n": snapshot.count,
            "op": snapshot.state.get("op"),
            "by": snapshot.metadata.get("by"),
            "digest": digest(lines),
        }
        self._known[key] = Known(snapshot.revision, lines)

    # What there is to do

    async def _look(self, key: Key) -> None:
        async with self._seeing("read", key) as seen:
            self._saw(seen, key, await self._store.load(key[1], actor_id=key[0]))

    def _lines(self, op: str, most: int = 3) -> list[str]:
        lines: list[str] = []
        for number in range(self._chance.randint(0 if most > 1 else 1, most)):
            mark = f"{op}.{number}"
            long = self._chance.choice([0, 0, 20, 200, 2000 if self._chance.random() < 0.9 else 30_000])
            if self._chance.random() < 0.2:
                lines += [f"c:{mark}", f"r:{mark}"]
            else:
                lines.append(f"{self._chance.choice('ua')}:{mark}:{long}")
        return lines

    async def _append(self, key: Key) -> None:
        # Half of the time with what was known before, which others may have made old.
        if key not in self._known or self._chance.random() < 0.5:
            await self._look(key)
        known = self._known.get(key)
        if known is not None and len(known.lines) > LONG:
            await self._replace(key)
        elif known is not None or key in self._bases:
            await self._commit("append", key, self._lines(f"{self._orders.name}-{self._number + 1}"))

    async def _replace(self, key: Key) -> None:
        await self._look(key)
        known = self._known.get(key)
        if known is not None:
            mark = f"{self._orders.name}-{self._number + 1}"
            await self._commit("replace", key, [f"u:{mark}.s:30", *_without_ends(known.lines[-10:])])

    async def _update(self, key: Key) -> None:
        """Append through a `Session`, which tries again by itself where others were first."""
        session = Session(id=key[1], actor_id=key[0], store=self._store)
        began, tries = time.monotonic(), list[Asked]()

        def refused() -> None:
            if tries:  # the one before was, or it would not be asked again
                self._ledger.write("done", op=tries[-1]["op"], how="refused")

        def change(snapshot: Snapshot) -> tuple[list[Message], Mapping[str, Any]]:
            refused()
            seen: Asked = {}
            stored = snapshot if snapshot.revision is not None else None
            self._saw(seen, key, stored)
            seen.pop("digest", None)  # it is shown in another form than it is stored
            self._ledger.write("read", t0=began, t1=time.monotonic(), **seen)
            op = self._name()
            lines = self._lines(op, 1)
            asked = {"op": op, "kind": "append", "s": key, "lines": lines, "count": snapshot.count}
            asked |= {"rev": snapshot.revision, "by": snapshot.metadata.get("by")}
            tries.append(asked)
            self._ledger.write("sent", **asked)
            return [from_line(line) for line in lines], {"op": op}

        told: dict[str, Any]
        try:
            answer = await session.update(change, attempts=5)
            told = {"how": "ok", "rev": answer.revision, "n": answer.count}
        except ConflictError:
            told = {"how": "refused"}
        except self._away:
            told = {"how": "unknown"}
            await asyncio.sleep(0.05)
        except CorruptSessionError as error:
            told = {"how": "unknown" if self._orders.halves else "broken", "error": type(error).__name__}
            if self._orders.halves:
                self._half(key, began)
        except Exception as error:  # noqa: BLE001
            told = {"how": "broken", "error": f"{type(error).__name__}: {error}"}
        # What is known here was in another form than it is stored.
        self._known.pop(key, None)
        if tries:
            # What failed in reading again had been refused before.
            self._ledger.write("done", op=tries[-1]["op"], **told)

    async def _run(self, key: Key) -> None:
        """Hold the session, and write in it a few times."""
        name = self._name()
        try:
            async with self._store.lease(
                key[1], actor_id=key[0], timeout=self._chance.random() * 0.2
            ) as lease:
                self._ledger.write("took", lease=name, s=key)
                try:
                    await self._look(key)
                    for _ in range(self._chance.randint(1, 3)):
                        if key not in self._known and key not in self._bases:
                            break
                        lines = self._lines(f"{self._orders.name}-{self._number + 1}", 1)
                        if not await self._commit("append", key, lines, (name, lease), careless=False):
                            break
                        await asyncio.sleep(self._chance.random() * 0.02)
                finally:
                    self._ledger.write("left", lease=name)
        except (SessionBusyError, StoreUnavailableError, LeaseLostError):
            await asyncio.sleep(0.01)
        except Exception as error:  # noqa: BLE001
            self._ledger.write("read", s=key, broken=f"in a lease: {type(error).__name__}: {error}")

    async def _fork(self, key: Key) -> None:
        if len(self._forks) > 30 and key not in self._forks:
            return await self._delete(self._chance.choice(sorted(self._forks, key=str)))
        if self._gone is not None and self._chance.random() < 0.1:
            key = self._gone
        op = self._name()
        known = self._known.get(key)
        at = self._chance.choice([None, self._chance.randint(0, len(known.lines) + 2) if known else None])
        asked: Asked = {"op": op, "kind": "fork", "s": (key[0], f"fork {op}"), "of": key, "at": at}
        call = lambda: self._store.fork(key[1], asked["s"][1], at=at, actor_id=key[0])  # noqa: E731
        how, _ = await self._ask(asked, call)
        if how == "ok":
            self._forks.add(asked["s"])
        return None

    async def _delete(self, key: Key) -> None:
        if key in self._bases and self._chance.random() < 0.7:
            return
        await self._end(key)

    async def _end(self, key: Key) -> None:
        op = self._name()
        call = lambda: self._store.delete(key[1], actor_id=key[0])  # noqa: E731
        await self._ask({"op": op, "kind": "delete", "s": key}, call)
        self._known.pop(key, None)
        if key in self._forks:
            self._forks.discard(key)
            self._gone = key

    async def _tail(self, key: Key) -> None:
        limit = self._chance.randint(1, 8)
        async with self._seeing("tail", key) as seen:
            page = await self._store.tail(key[1], limit=limit, actor_id=key[0])
            lines = [to_line(message) for message in page.items]
            seen |= {"s": key, "limit": limit, "lines": lines, "cursor": page.cursor}

    async def _list(self, key: Key) -> None:
        actor, cursor = key[0], None
        async with self._seeing("list", key) as seen:
            found: list[Any] = []
            while True:
                page = await self._store.sessions(actor_id=actor, limit=7, cursor=cursor)
                found += [(info.id, info.count, info.revision) for info in page.items]
                if page.cursor is None:
                    break
                cursor = str(page.cursor)
            seen |= {"actor": actor, "items": found}
            self._forks = {known for known in self._forks if known[0] != actor}
            self._forks |= {(actor, id) for id, *_ in found if id.startswith("fork ")}

    async def _expire(self, key: Key) -> None:
        if "expire" in self._can:
            after = self._orders.expire_after
            call = lambda: self._store.expire(expire_after=after, limit=5)  # noqa: E731
            await self._ask({"op": self._name(), "kind": "expire", "after": after}, call)

    async def _again(self, key: Key) -> None:
        """Send a commit again that was acknowledged, as one does whose answer was lost."""
        if self._taken:
            await self._send(self._chance.choice(self._taken))

    async def _resend(self, before: Path) -> None:
        """Send again, half of the time, what the client before was not told the end of."""
        open_ones: dict[str, Asked] = {}
        for entry in entries(before):
            if entry["e"] == "sent" and entry["kind"] in ("append", "replace") and "by" not in entry:
                open_ones[entry["op"]] = entry
            elif entry["e"] == "done":
                open_ones.pop(entry["op"], None)
        for entry in open_ones.values():
            if self._chance.random() < 0.5 and "lease" not in entry:
                asked = {name: value for name, value in entry.items() if name not in ("e", "t")}
                await self._send({**asked, "s": tuple(asked["s"])})


def _without_ends(lines: list[str]) -> list[str]:
    """Leave out a result whose call is left out."""
    return lines[1:] if lines and lines[0].startswith("r:") else lines


async def main(orders: Orders) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin, ended.set)  # it says nothing more, so what comes is its end
    ledger = Ledger(Path(orders.ledger))
    store = open_store(orders.url)
    if orders.broken is not None:
        store = broken(orders.broken, store)
    try:
        await Client(store, ledger, orders).work(lambda: not ended.is_set())
    finally:
        await store.aclose()
        ledger.close()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.stdin.buffer.readline(), type=Orders)))
