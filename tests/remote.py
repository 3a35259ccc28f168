"""A sandbox service in a process of its own, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from littleghost.sandboxes.remote import RemoteSandbox
from littleghost.sandboxes.service.tokens import TokenFile
from littleghost.workspace import Workspace

COMMAND = [sys.executable, "-W", "error", "-m", "littleghost.cli", "sandbox", "serve"]


class Service:
    """``littleghost sandbox serve``, in a folder that goes with it."""

    def __init__(self, *arguments: str, folder: Path | None = None, host: bool = True) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="littleghost-service-"))
        self.root = self.folder / "root"
        self._own = folder is None
        self.tokens = TokenFile.at(self.folder / "tokens")
        self.token = self.tokens.add("client")
        self.arguments = [*(["--sandbox", "host"] if host else []), *arguments]
        self.url = ""
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> Service:
        where = ["--root", str(self.root), "--tokens", str(self.folder / "tokens"), "--port", "0", "--json"]
        self.process = subprocess.Popen(
            [*COMMAND, *where, *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("LITTLEGHOST_")},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.url = json.loads(line)["url"]
        return self

    def stop(self) -> str:
        """End it at once, and return what it wrote on standard error."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.5)
            self.process.terminate()
        try:
            errors = self.process.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            if self._own:
                shutil.rmtree(self.folder, ignore_errors=True)
        return errors

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client(self, **options: Any) -> RemoteSandbox:
        options = {"token": self.token, "isolated": "host" not in self.arguments, **options}
        return RemoteSandbox(options.pop("url", self.url), **options)

    @property
    def leases(self) -> set[Path]:
        return set(self.root.glob("lease-*"))


class KitSandbox(RemoteSandbox):
    """One for the conformance kit, which looks at the files: a link leads from where it expects them to where the service has them."""

    service: Service

    def __init__(
        self,
        workspace: Workspace,
        *,
        writable=False,
        limits=None,
        service: Service | None = None,
        **options,
    ) -> None:
        if service is not None:
            self.service = service
        self._seen = workspace
        paths = {name: str(path.relative_to(workspace.root)) for name, path in workspace.paths.items()}
        super().__init__(
            self.service.url,
            token=self.service.token,
            paths=paths,
            writable=writable,
            limits=limits,
            isolated="host" not in self.service.arguments,
            **options,
        )

    def _offers(self):
        return super()._offers() | {"local_files"}

    async def _try(self) -> None:
        await super()._try()
        self.capabilities |= {"local_files"}

    async def _connect(self) -> None:
        before = self.service.leases
        await super()._connect()
        (new,) = self.service.leases - before
        there = new / "workspace"
        root = self._seen.root
        if root.is_dir() and not root.is_symlink():
            _moved(root, there)
        if (outside := root.parent / "outside").is_dir():  # what lies beside the one lies beside the other
            (new / "outside").symlink_to(outside)
        root.parent.mkdir(parents=True, exist_ok=True)
        root.unlink(missing_ok=True)
        root.symlink_to(there)

    async def close(self) -> None:
        root = self._seen.root
        if root.is_symlink():
            (root.resolve().parent / "outside").unlink(missing_ok=True)
            # what was there at the end stays to be seen
            kept = root.with_name(f"{root.name}-{secrets.token_hex(4)}")
            shutil.copytree(root.resolve(), kept, symlinks=True, copy_function=os.link)
            root.unlink()
            kept.rename(root)
        await super().close()


def _moved(source: Path, target: Path) -> None:
    """Move what is in a directory, as it is, links, sockets and devices too, to one that may have some of its directories."""
    for entry in source.iterdir():
        place = target / entry.name
        if place.is_dir() and not place.is_symlink() and entry.is_dir() and not entry.is_symlink():
            _moved(entry, place)
        else:
            entry.rename(place)
    source.rmdir()


class Relay:
    """Passes bytes to a service and back, and cuts the connection after so many of them, one number after another.

    Attributes:
        cuts: How many connections it has cut.
    """

    def __init__(self, url: str, after: Any) -> None:
        self._port = int(url.rpartition(":")[2])
        self._after = iter(after)
        self.cuts = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        left = next(self._after, None)
        over = asyncio.Event()

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            nonlocal left
            with contextlib.suppress(OSError):
                while data := await source.read(4096):
                    if left is not None:
                        data, left = data[:left], left - len(data)
                    target.write(data)
                    await target.drain()
                    if left is not None and left <= 0:
                        break
            over.set()

        pumps = [
            asyncio.ensure_future(pump(reader, far_writer)),
            asyncio.ensure_future(pump(far_reader, writer)),
        ]
        try:
            await over.wait()
            self.cuts += left is not None and left <= 0
        finally:
            for each in pumps:
                each.cancel()
            for each in (writer, far_writer):
                each.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)
