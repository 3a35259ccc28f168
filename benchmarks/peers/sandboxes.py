"""What a command and a file operation cost in sandboxes, here and in other frameworks.

    python -m benchmarks.peers.sandboxes [--quick]

The same four things, by what each offers for them: a command without a shell where there is such, the bytes of a file of 10 kB, writing
them, and the entries of a directory of 100. Rounds are interleaved; figures are medians, and ratios over the floor named in the row.
What a peer does in between differs and is said: what stops a program, and whether a file operation can be led out of the directory.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.bench_sandbox import PAUSE, TEXT, TRUE, blocking, measure, show

from littleghost import BubblewrapSandbox, HostSandbox, Sandbox

DATA = TEXT.encode()


class Subject(ABC):
    """One sandbox over a directory.

    Attributes:
        name: For the table.
        about: What it does for the cost.
    """

    name = ""
    about = ""

    async def open(self, root: Path, stack: AsyncExitStack) -> None:
        """Open it; ``stack`` closes it."""

    @abstractmethod
    async def command(self) -> None:
        """Run ``true``."""

    @abstractmethod
    async def read(self) -> bytes:
        """Return the bytes of ``file``."""

    @abstractmethod
    async def write(self) -> None:
        """Write ``file``."""

    @abstractmethod
    async def list(self) -> int:
        """Return how many entries ``many`` has."""


class Ours(Subject):
    """A sandbox of this library."""

    def __init__(self, kind: type[Sandbox], about: str) -> None:
        self.kind, self.name, self.about = kind, kind.__name__, about

    async def open(self, root: Path, stack: AsyncExitStack) -> None:
        self.sandbox = await stack.enter_async_context(self.kind(root, writable=True))

    async def command(self) -> None:
        assert (await self.sandbox.execute_program([TRUE], timeout=30)).success

    async def read(self) -> bytes:
        return await self.sandbox.read_bytes("file")

    async def write(self) -> None:
        await self.sandbox.write_bytes("file", DATA)

    async def list(self) -> int:
        return len(await self.sandbox.list("many"))


class Pydantic(Subject):
    """Pydantic AI's local workspace; with ``isolated`` in the harness's bubblewrap."""

    def __init__(self, *, isolated: bool) -> None:
        self.isolated = isolated
        self.name = "pydantic-ai harness, bubblewrap" if isolated else "pydantic-ai, local"
        self.about = (
            "host read-only, own network, shares the host's processes; files by shell commands inside"
            if isolated
            else "no isolation; kills the process group; a swapped directory leads files outside"
        )

    async def open(self, root: Path, stack: AsyncExitStack) -> None:
        from pydantic_ai.workspaces import LocalWorkspaceBackend, Workspace

        self.workspace: Any = Workspace(LocalWorkspaceBackend(root))
        if self.isolated:
            from pydantic_ai_harness.bubblewrap_sandbox import BubblewrapWorkspace

            self.workspace = BubblewrapWorkspace(self.workspace)

    async def command(self) -> None:
        assert (await self.workspace.run([TRUE], timeout=30)).exit_code == 0

    async def read(self) -> bytes:
        return await self.workspace.read_bytes("file")

    async def write(self) -> None:
        await self.workspace.write_bytes("file", DATA)

    async def list(self) -> int:
        return len(await self.workspace.list_dir("many"))


class OpenAI(Subject):
    """The Agents SDK's session on this machine."""

    name = "openai-agents, unix_local"
    about = "no isolation on Linux; files by a walk of descriptors in a process of their own"

    async def open(self, root: Path, stack: AsyncExitStack) -> None:
        from agents.sandbox.manifest import Manifest
        from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

        client = UnixLocalSandboxClient()
        self.session = await client.create(manifest=Manifest(root=str(root)))
        await self.session.start()
        stack.push_async_callback(self.session.stop)

    async def command(self) -> None:
        assert (await self.session.exec(TRUE, timeout=30, shell=False)).exit_code == 0

    async def read(self) -> bytes:
        return (await self.session.read(Path("file"))).read()

    async def write(self) -> None:
        await self.session.write(Path("file"), io.BytesIO(DATA))

    async def list(self) -> int:
        return len(await self.session.ls("many"))


SUBJECTS = (
    Ours(HostSandbox, "no isolation; nothing outlives a command; files by descriptor"),
    Ours(BubblewrapSandbox, "fresh namespaces for each command; files by descriptor"),
    Pydantic(isolated=False),
    Pydantic(isolated=True),
    OpenAI(),
)


def lay_out(root: Path) -> None:
    (root / "many").mkdir(parents=True)
    (root / "file").write_bytes(DATA)
    for number in range(100):
        (root / "many" / str(number)).touch()


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.sandboxes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a few rounds, to see that it runs")
    rounds = 5 if parser.parse_args().quick else 60
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} CPUs, {rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )
    for name in ("pydantic-ai-slim", "pydantic-ai-harness", "openai-agents"):
        print(f"{name} {metadata.version(name)}")
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        opened: list[Subject] = []
        for number, subject in enumerate(SUBJECTS):
            root = folder / str(number)
            lay_out(root)
            if "ubblewrap" in subject.name and not shutil.which("bwrap"):
                print(
                    f"NOT MEASURED: {subject.name}, for there is no bwrap. To have it: apt-get install bubblewrap"
                )
                continue
            await subject.open(root, stack)
            if (await subject.read(), await subject.list()) != (DATA, 100):
                raise RuntimeError(f"{subject.name} reads something else than is there")
            print(f"{subject.name}: {subject.about}")
            opened.append(subject)
        plain = folder / "plain"
        lay_out(plain)
        floors = {
            "command": blocking(lambda: subprocess.run([TRUE], check=True, capture_output=True)),
            "read": blocking((plain / "file").read_bytes),
            "write": blocking(lambda: (plain / "file").write_bytes(DATA)),
            "list": blocking(lambda: sorted((plain / "many").iterdir())),
        }
        titles = {
            "command": "a command (true), after a pause",
            "read": "read of 10 kB",
            "write": "write of 10 kB",
            "list": "list of 100 entries",
        }
        for work, title in titles.items():
            rows = {"plain": floors[work], **{subject.name: getattr(subject, work) for subject in opened}}
            show(title, await measure(rounds, rows, pause=PAUSE if work == "command" else 0.0), "plain")


if __name__ == "__main__":
    asyncio.run(main())
    sys.stdout.flush()
