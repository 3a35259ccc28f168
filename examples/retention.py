"""A service that forgets what nobody has written to for a while, and can be asked to keep a copy of it before.

python examples/retention.py
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from littleghost import (
    Message,
    Session,
    SessionStore,
    SQLiteStore,
    export_sessions,
    import_sessions,
    retention,
)

MONTH = 30 * 86400.0


@asynccontextmanager
async def lifespan(store: SessionStore) -> AsyncIterator[None]:
    """What a web framework calls when it starts and ends, such as FastAPI with ``lifespan=``."""
    async with retention(store, expire_after=MONTH, every=3600):
        yield


async def main(folder: Path) -> None:
    async with SQLiteStore(folder / "shop.db") as store:
        await Session(id="today", store=store, actor_id="ann").append([Message.user("Hello")])
        # One of long ago; `restore` is what an import uses, and keeps times.
        await store.restore(
            "long-ago",
            messages=[Message.user("Hello?")],
            state={},
            metadata={},
            created_at=1.7e9,
            updated_at=1.7e9,
            actor_id="bob",
        )

        with (folder / "backup.jsonl").open("wb") as file:
            async for line in export_sessions(store):
                file.write(line)

        async with lifespan(store):
            while (await store.statistics()).sessions > 1:  # the service works, and the sweep comes by
                await asyncio.sleep(0.01)
        print("kept:", await Session(id="today", store=store, actor_id="ann").load() is not None)
        print("gone:", await Session(id="long-ago", store=store, actor_id="bob").load() is None)

        with (folder / "backup.jsonl").open("rb") as file:
            async for done in import_sessions(store, file):
                print(f"{done.actor_id}'s {done.id}: {done.outcome}")


with tempfile.TemporaryDirectory() as name:
    asyncio.run(main(Path(name)))
