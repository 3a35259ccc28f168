"""A store of your own: three methods, and the conformance kit that says whether they keep the contract.

    python examples/own_store.py

This one keeps each session in a JSON file. It is short and not fast: it writes the whole session at every commit, and nothing else
happens in the process meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from littleghost import Agent, ConflictError, Runtime, SessionStore, transcript
from littleghost.testing import FunctionModel, check_store


class JSONFileStore(SessionStore):
    """Keeps each session in a file of its own. For one process."""

    capabilities = frozenset({"anonymous_actor"})

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    async def load(self, id: str, *, actor_id: str | None = None) -> Any:
        path = self._path(id, actor_id)
        return json.loads(path.read_bytes()) if path.exists() else None

    async def append(
        self,
        id: str,
        *,
        messages: Any,
        state: Any,
        metadata: Any,
        expected_count: int,
        actor_id: str | None = None,
    ) -> Any:
        found = await self.load(id, actor_id=actor_id)
        stored = found["messages"] if found else []
        if len(stored) != expected_count:
            raise ConflictError("the session has changed", expected=expected_count, actual=len(stored))
        # A store keeps no reasoning, whoever writes to it.
        added = [message.to_dict() for message in transcript.without_reasoning(messages)]
        self._write(
            self._path(id, actor_id), {"messages": stored + added, "state": state, "metadata": metadata}
        )

    async def replace(
        self, id: str, *, messages: Any, state: Any, metadata: Any, actor_id: str | None = None
    ) -> Any:
        whole = [message.to_dict() for message in transcript.without_reasoning(messages)]
        self._write(self._path(id, actor_id), {"messages": whole, "state": state, "metadata": metadata})

    def _path(self, id: str, actor_id: str | None) -> Path:
        # The key is the pair. Its JSON tells ("a:b", "c") from ("a", "b:c"), and None from "None".
        return self.folder / hashlib.sha256(json.dumps([actor_id, id]).encode()).hexdigest()

    def _write(self, path: Path, session: dict[str, Any]) -> None:
        new = path.with_suffix(".new")
        with new.open("w") as file:
            json.dump(session, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)  # whole, or not at all


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = await check_store(partial(JSONFileStore, folder))
        print(report)
        report.raise_for_failures()

        agent = Agent(FunctionModel(lambda request: f"This is message {len(request.messages) + 1}."))
        async with Runtime(session_store=JSONFileStore(folder)) as runtime:
            for _ in range(2):
                run = await runtime.ask(agent, "Hello", session_id="s", actor_id="user-7")
                print(run.text)


if __name__ == "__main__":
    asyncio.run(main())
