"""An OpenSSH server on loopback, with keys and (where the tests run as root) a user of its own."""

from __future__ import annotations

import getpass
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from littleghost.sandboxes.ssh import SSHSandbox

FOLDERS = "/usr/sbin:/usr/local/sbin:/sbin"


def program() -> str | None:
    """The server, where both it and the client's tools are installed."""
    found = shutil.which("sshd") or shutil.which("sshd", path=FOLDERS)
    return found if shutil.which("ssh") and shutil.which("ssh-keygen") else None


class Server:
    """A running server.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        user: Whom its key lets in: a user made for it, or, where the tests do not run as root, their own.
        key: The private key.
        known_hosts: A file that has its host key.
        home: The user's own folder, where there is one made for it.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sshd-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.home = self.folder / "home"
        self._made = ""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.remove()
            raise

    def _start(self) -> None:
        for name in ("host", "key", "other"):
            make_key(self.folder / name)
        self.key = self.folder / "key"
        shutil.copy(self.folder / "key.pub", self.folder / "authorized")
        self.home.mkdir()
        if os.getuid() == 0:
            self.user = f"lg-{secrets.token_hex(4)}"
            shell = shutil.which("bash") or "/bin/sh"
            subprocess.run(
                [_tool("useradd"), "-M", "-d", self.home, "-s", shell, "-p", "*", self.user], check=True
            )
            self._made = self.user
            shutil.chown(self.home, self.user, self.user)
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        else:
            self.user = getpass.getuser()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {(self.folder / 'host.pub').read_text()}")
        (self.folder / "config").write_text(
            f"""Port {self.port}
ListenAddress 127.0.0.1
HostKey {self.folder}/host
AuthorizedKeysFile {self.folder}/authorized {self.folder}/authorized-%u
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UseDNS no
MaxSessions 50
MaxStartups 100
Subsystem sftp internal-sftp
"""
        )
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(program()), "-D", "-e", "-f", self.folder / "config"],
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        for _ in range(400):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise RuntimeError(f"sshd did not start: {(self.folder / 'log').read_text()[-2000:]}")

    @property
    def login_home(self) -> Path:
        """The home directory of the user."""
        return Path(pwd.getpwnam(self.user).pw_dir)

    @property
    def options(self) -> dict[str, Any]:
        """What an `SSHSandbox` needs to log in."""
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "username": self.user,
            "known_hosts": str(self.known_hosts),
            "client_keys": [str(self.key)],
            "agent_path": None,
        }

    @contextmanager
    def account(self, options: str = ""):
        """Let in a key of its own, with `options` as in ``authorized_keys``; yields its file."""
        key = self.folder / f"key-{secrets.token_hex(4)}"
        make_key(key)
        allowed = self.folder / f"authorized-{self.user}"
        before = allowed.read_text() if allowed.exists() else ""
        allowed.write_text(f"{before}{options} {key.with_suffix('.pub').read_text()}")
        try:
            yield key
        finally:
            allowed.write_text(before)

    def sessions(self) -> list[int]:
        """The processes of the server that serve a login of the user."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if words.startswith(("sshd:", "sshd-session:")) and f"{self.user}@notty" in words:
                        found.append(int(entry.name))
        return found

    def remove(self) -> None:
        """End it, and everything of it and of its user."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._made:
            uid = pwd.getpwnam(self._made).pw_uid
            for _ in range(50):
                left = [process for process in _processes() if _owner(process) == uid]
                for process in left:
                    with suppress(OSError):
                        os.kill(process, signal.SIGKILL)
                if not left:
                    break
                time.sleep(0.05)
            subprocess.run([_tool("userdel"), self._made], check=True, capture_output=True)
        shutil.rmtree(self.folder)


class Loopback(SSHSandbox):
    """A sandbox whose other machine is this one, and its user this one's: what it works on can be looked at, and changed, from here."""

    def _offers(self) -> frozenset[str]:
        return super()._offers() | {"local_files"}

    async def _prepare(self) -> None:
        await self.workspace.open()

    async def _release(self) -> None:
        await self.workspace.close()


def make_key(path: Path, passphrase: str = "") -> None:
    """Make a key pair, `path` and ``path.pub``."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-a", "1", "-N", passphrase, "-f", str(path)], check=True
    )


def _tool(name: str) -> str:
    return shutil.which(name) or shutil.which(name, path=FOLDERS) or name


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _owner(process: int) -> int | None:
    try:
        return os.stat(f"/proc/{process}").st_uid
    except OSError:
        return None
